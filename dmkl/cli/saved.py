"""`dmkl info` and `dmkl check` of what is no kernel set: models, results, tables, and states of searches."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer
from rich.text import Text

from dmkl.cli.output import print_json, say, say_aside, show, size, table
from dmkl.errors import StoreNotFoundError
from dmkl.files.urls import Place, Url, as_place, files_in
from dmkl.searching.texts import count

__all__ = ["Kind", "check_saved", "kind_of", "show_saved"]


@dataclass(frozen=True)
class Kind:
    """A kind of folder that commands leave behind."""

    title: str
    facts: Callable[[Place], dict[str, Any]]
    """What is told of one."""
    damage: Callable[[Place], Iterator[str]]
    """One sentence for each part that is damaged."""
    sealed: Callable[[Place], bool]
    """Whether it carries checksums."""


def kind_of(path: str) -> Kind | None:
    """What is at a path, if it is one of these kinds; None for anything else, a kernel set among it.

    Raises
    ------
    StoreNotFoundError
        If there is nothing but the state of a search that broke off.
    """
    folder = as_place(path)
    if isinstance(folder, Url):
        from dmkl.store.groups import root_attributes

        return _KINDS.get(str(root_attributes(folder).get("format")))
    if (folder / "state.json").is_file():
        return _STATE
    begun = folder.with_name(f"{folder.name}.partial")
    if not folder.exists() and (begun / "state.json").is_file():
        msg = f"there is nothing at {folder} yet; the state of a search of it that broke off is {begun}"
        raise StoreNotFoundError(msg)
    try:
        attrs = json.loads((folder / "zarr.json").read_bytes())["attributes"]
        return _KINDS.get(attrs["format"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None  # whoever opens it says what is wrong


def show_saved(path: str, kind: Kind, *, as_json: bool) -> None:
    """What `dmkl info` tells."""
    folder = as_place(path)
    facts = {
        "path": path,
        "kind": kind.title,
        **kind.facts(folder),
        "bytes_on_disk": sum(files_in(folder).values()),
        "checksums": kind.sealed(folder),
    }
    if as_json:
        print_json(facts)
        return
    facts["bytes_on_disk"] = size(facts["bytes_on_disk"])
    about = table("", "")
    about.show_header = False
    about.columns[0].style = "bold"
    for name, value in list(facts.items())[1:]:
        about.add_row(name.replace("_", " "), Text(_told(value)))
    say(path, style="bold")
    show(about)


def _told(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} = {_told(item)}" for key, item in value.items()) or "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def check_saved(path: str, kind: Kind, *, strict: bool, as_json: bool) -> None:
    """What `dmkl check` tells; the exit status is 1 where something is damaged, or with `strict` cannot be checked."""
    folder = as_place(path)
    found = list(kind.damage(folder))
    sealed = bool(found) or kind.sealed(folder)
    if as_json:
        findings = [{"severity": "error", "message": message} for message in found]
        print_json({"path": path, "kind": kind.title, "checksums": sealed, "findings": findings})
    else:
        for message in found:
            say_aside("error", message)
        if not sealed:
            say_aside("warning", f"{path} was written by a dmkl that kept no checksums; save it again to have them")
        n_files = len(files_in(folder))
        what = f"{count(len(found), 'damaged part')}" if found else "no damage found"
        say(f"{path}: a {kind.title}, {count(n_files, 'file')} checked: {what}.", style="bold")
    if found or (strict and not sealed):
        raise typer.Exit(1)


# --- the kinds -----------------------------------------------------------------------------------------------------


def _damage(folder: Place) -> Iterator[str]:
    import dmkl
    from dmkl.errors import DmklError
    from dmkl.health.integrity import damage

    found = list(damage(folder))
    if not found:
        try:
            dmkl.load(folder)
        except DmklError as error:
            found = [str(error)]
    return iter(found)


def _labeled_damage(folder: Place) -> Iterator[str]:
    """Of labeled data, which may be larger than memory, chunk by chunk."""
    from dmkl.errors import DmklError
    from dmkl.health.integrity import damage
    from dmkl.store.saved import Saved

    try:
        Saved.open(folder)
    except DmklError as error:
        return iter([str(error)])
    return damage(folder)


def _sealed(folder: Place) -> bool:
    from dmkl.store.groups import has_checksum, open_group

    return has_checksum(open_group(folder))


def _model_facts(folder: Place) -> dict[str, Any]:
    import numpy as np

    import dmkl
    from dmkl.cli.tables import effects_as_mapping

    model = dmkl.load(folder)
    weights = model.weights_.values.reshape(len(model.kernel_names_), -1)
    return {
        "model": type(model).__name__,
        "parameters": model.get_params(deep=False),
        "learns": model.kind_,
        "classes": ", ".join(map(str, model.classes_)) or "none",
        "training_samples": model.n_features_in_,
        "kernels": len(model.kernel_names_),
        "kernels_with_weight": int(np.count_nonzero(weights.any(axis=1))),
        "features": "none" if isinstance(model.features_, str) else ", ".join(model.features_.tables) or "none",
        "largest_gap": float(np.max(np.asarray(model.gap_))),
        "status": model.status_,
        **effects_as_mapping(model),
    }


def _result_facts(folder: Place) -> dict[str, Any]:
    import dmkl

    found = dmkl.load(folder)
    data = found.scores if hasattr(found, "scores") else found.data
    return {"summary": found.summary(), "created_by": data.attrs.get("created_by")}


def _labeled_facts(folder: Place) -> dict[str, Any]:
    """Of labeled data, from its metadata alone."""
    import xarray as xr

    from dmkl.store.saved import Saved

    saved = Saved.open(folder)
    with xr.open_dataset(xr.backends.ZarrStore(saved.group, mode="r"), chunks=None) as found:
        return {
            "variables": {
                str(name): f"{array.attrs.get('long_name', 'no description')} ({', '.join(map(str, array.dims))})"
                for name, array in found.data_vars.items()
            },
            "sizes": {str(name): size for name, size in found.sizes.items()},
            "created_by": found.attrs.get("created_by"),
        }


def _state_facts(folder: Place) -> dict[str, Any]:
    from dmkl.searching.state import read_state
    from dmkl.solvers.workspace import read_state_file

    assert isinstance(folder, Path)
    begun = read_state_file(folder / "state.json")
    state = read_state(folder)
    return {
        "passes_done": state.n_passes,
        "problems_done_by_other_solvers": state.n_outcomes,
        "belongs_to": {name: _short(value) for name, value in begun["identity"].items()},
        "format_version": begun["format_version"],
    }


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 60 else f"{text[:57]}…"


def _state_damage(folder: Place) -> Iterator[str]:
    from dmkl.searching.state import damage_of_state

    assert isinstance(folder, Path)
    return damage_of_state(folder)


_STATE = Kind("state of a search", _state_facts, _state_damage, lambda folder: True)
_KINDS = {
    "dmkl-model": Kind("model", _model_facts, _damage, _sealed),
    "dmkl-search": Kind("result of a search", _result_facts, _damage, _sealed),
    "dmkl-evaluation": Kind("result of a nested cross-validation", _result_facts, _damage, _sealed),
    "dmkl-importance": Kind("importance of kernels", _result_facts, _damage, _sealed),
    "dmkl-stability": Kind("result of resampling", _result_facts, _damage, _sealed),
    "dmkl-permutation-test": Kind("result of a permutation test", _result_facts, _damage, _sealed),
    "dmkl-combined-kernel": Kind("weighted kernel", _labeled_facts, _labeled_damage, _sealed),
    "dmkl-table": Kind("table", _labeled_facts, _labeled_damage, _sealed),
}
"""By the attribute "format" of the root."""
