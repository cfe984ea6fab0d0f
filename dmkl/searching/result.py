"""What a search found: scores of every point and fold, the choice, the refitted model, saving."""

from __future__ import annotations

import html
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import xarray as xr
import zarr

from dmkl._version import __version__
from dmkl.errors import InputError, StoreError
from dmkl.estimators.learner import KernelClassifier
from dmkl.estimators.saving import (
    READERS,
    check_version,
    decode,
    encode,
    load,
    put_in_place,
    write_dataset,
    write_model,
)
from dmkl.searching.choice import Rule, check_rule, choose
from dmkl.searching.means import grid_points, mean_and_error
from dmkl.solvers.outcome import WORDS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["SearchResult", "as_coordinate"]

FORMAT, FORMAT_VERSION = "dmkl-search", 1
BEST = "best"
"""The subgroup of the refitted model."""
_MEANINGS = {
    "score": "validation score",
    "mean_score": "mean validation score",
    "standard_error": "standard error of the mean validation score",
    "test_score": "test score",
    "refit_test_score": "test score after refitting on training and validation rows",
    "weight": "kernel weight",
    "gap": "proven relative gap, NaN where nothing is proven",
    "objective": "objective",
    "status": "how the solver ended",
    "round_kind": "kind of pass",
    "round_seconds": "time of the pass",
    "round_bytes": "size of what the pass read",
    "round_basis": "size of the largest basis",
    "round_certified": "fits certified so far",
    "round_worst_gap": "largest proven relative gap so far",
}
_UNITS = {"round_seconds": "s", "round_bytes": "byte"}
_NEEDED = ("score", "weight", "gap", "objective", "status")


class _NoModel(InputError, AttributeError):
    """So that hasattr(result, "best_") tells whether there is one."""


class SearchResult:
    """What a search over a grid of parameters found.

    Made by `dmkl.search` and by `dmkl.load`; everything it knows is in `scores`, a Dataset.

    Parameters
    ----------
    scores
        One dimension for each parameter of the grid by its name, "fold", "kernel", "task" (of a multilabel problem)
        and "round" (one for each pass of the search). With P for the parameters' dimensions:

        ============================ ==================== =============================================================
        score, score_NAME            P, fold[, task]       on the validation rows, by the deciding measure and by others
        test_score, test_score_NAME  P, fold[, task]       on the test rows, where folds have any
        mean_score, standard_error   P[, task]             of `score` over the folds where it is defined; added if not
                                                           there
        weight                       P, fold, kernel[, task] β
        gap, objective               P, fold[, task]       proven relative gap (NaN where nothing is proven), and
                                                           objective
        status                       P, fold[, task]       0 certified, 1 finished, 2 converged, 3 open
        refit_test_score             fold[, task]          of the chosen point, fitted anew on training and validation
                                                           rows
        round_…                      round                 kind, seconds, bytes, basis, certified, worst_gap of a pass
        ============================ ==================== =============================================================

        Attributes: estimator, parameters (JSON), scoring, kind, parameters_searched (JSON list of P in order),
        n_passes, seconds, n_points, solver, created_by.
    best
        The model fitted on all rows with the chosen parameters; None where there is none.
    rule
        How the point is chosen, "best" or "one_standard_error"; see `dmkl.searching.choice.choose`. The tasks of a
        multilabel problem choose each for itself.

    Raises
    ------
    InputError
        If the rule is none of these, or `scores` lacks something of the above.
    """

    def __init__(self, scores: xr.Dataset, *, best: KernelClassifier | None = None, rule: Rule = "best") -> None:
        check_rule(rule)
        self._scores = _completed(scores)
        self._best = best
        self._rule: Rule = rule

    # --- what was found ------------------------------------------------------------------------------------------

    @property
    def scores(self) -> xr.Dataset:
        """Scores, weights, gaps of every point and fold, and what each pass took."""
        return self._scores

    @property
    def rule(self) -> Rule:
        """How the point was chosen."""
        return self._rule

    @property
    def parameters(self) -> tuple[str, ...]:
        """Names of the parameters searched, in the order of the grid."""
        return tuple(json.loads(self._scores.attrs["parameters_searched"]))

    @property
    def grid(self) -> dict[str, list[Any]]:
        """Values of each parameter searched."""
        return {name: _values(self._scores[name]) for name in self.parameters}

    @property
    def tasks(self) -> tuple[str, ...] | None:
        """Names of the tasks of a multilabel problem, None otherwise."""
        return tuple(map(str, self._scores["task"].values)) if "task" in self._scores["score"].dims else None

    @property
    def n_passes_(self) -> float:
        """Passes over the stored kernels that the search took; a part of one counts by the tiles that it read."""
        return float(self._scores.attrs["n_passes"])

    @property
    def best_(self) -> KernelClassifier:
        """The model fitted on all rows with the chosen parameters.

        Raises
        ------
        InputError
            If there is none; it is an AttributeError too.
        """
        if self._best is None:
            msg = (
                "this search has no fitted model, since it ran with refit=False; search with refit=True, or fit an "
                "estimator with best_params_"
            )
            raise _NoModel(msg)
        return self._best

    # --- the choice ----------------------------------------------------------------------------------------------

    @property
    def best_index_(self) -> dict[str, Any]:
        """Position of the chosen value of each parameter, for `scores.isel`; for each task where there are some."""
        index: dict[str, Any] = self._by_task(lambda task: self._choice(self._rule, task))
        return index

    @property
    def best_params_(self) -> dict[str, Any]:
        """Chosen value of each parameter; for each task where there are some."""
        return self.choose(self._rule)

    @property
    def best_score_(self) -> Any:
        """Mean validation score of the chosen point; a dict of them by task where there are some."""
        return self._by_task(lambda task: float(self._of(task)["mean_score"].isel(self._choice(self._rule, task))))

    def choose(self, rule: Rule) -> dict[str, Any]:
        """`best_params_` under another rule.

        Parameters
        ----------
        rule
            "best" or "one_standard_error"; see `dmkl.searching.choice.choose`.

        Raises
        ------
        InputError
            If the rule is none of these, or no point can be chosen.
        """
        grid = self.grid
        params: dict[str, Any] = self._by_task(
            lambda task: {name: grid[name][at] for name, at in self._choice(rule, task).items()}
        )
        return params

    def _by_task(self, tell: Callable[[str | None], Any]) -> Any:
        return tell(None) if self.tasks is None else {task: tell(task) for task in self.tasks}

    def _choice(self, rule: Rule, task: str | None) -> dict[str, int]:
        try:
            position = choose(**grid_points(self._of(task), self.parameters), rule=rule)
        except InputError as error:
            if task is None:
                raise
            msg = f"task {task!r}: {error}"
            raise InputError(msg) from error
        return dict(zip(self.parameters, position, strict=True))

    def _of(self, task: str | None) -> xr.Dataset:
        return self._scores if task is None else self._scores.sel(task=task)

    # --- as text and tables --------------------------------------------------------------------------------------

    def table(self) -> pd.DataFrame:
        """The points of the grid, best mean score first.

        Returns
        -------
        DataFrame
            The parameters, mean_score, standard_error, gap (the largest of the folds) and status (the worst). For a
            multilabel problem the points of each task, one task after the other.
        """
        scores, places = self._scores, {task: place for place, task in enumerate(self.tasks or ())}
        dims, worst = [*(["task"] if places else []), *self.parameters], scores["status"].max("fold")
        values = scores[["mean_score", "standard_error"]].assign(
            gap=scores["gap"].max("fold"), status=worst.copy(data=np.array(WORDS)[worst.values])
        )
        frame = values.to_dataframe(dim_order=dims).reset_index()[[*dims, *values.data_vars]]
        frame = frame.sort_values("mean_score", ascending=False, kind="stable")
        if places:
            frame = frame.sort_values("task", key=lambda names: names.map(places), kind="stable")
        return frame.reset_index(drop=True)

    def summary(self) -> str:
        """A few lines: what was searched, what was chosen, how good it is, what it took."""
        scores, attrs = self._scores, self._scores.attrs
        grid = " × ".join(f"{scores.sizes[name]} {name}" for name in self.parameters)
        tasks = "" if self.tasks is None else f", {len(self.tasks)} tasks"
        lines = [f"Search of {attrs['estimator']}: {grid}, {_count(scores.sizes['fold'], 'fold')}{tasks}"]
        try:
            lines += self._chosen_lines()
        except InputError as error:
            lines.append(str(error))
        counts = np.bincount(scores["status"].values.ravel(), minlength=len(WORDS))
        found = ", ".join(f"{n} {status}" for n, status in zip(counts, WORDS, strict=True) if n)
        took = f"{_count(self.n_passes_, 'pass')}, {attrs['seconds']:.3g} s"
        gap = float(scores["gap"].max())
        proven = f"; largest gap {gap:.1e}" if np.isfinite(gap) else ""
        lines.append(f"{counts.sum()} fits ({found}{proven}) in {took}")
        return "\n".join(lines)

    def _chosen_lines(self) -> list[str]:
        scoring, by = self._scores.attrs["scoring"], "" if self.rule == "best" else " (one-standard-error rule)"
        if self.tasks is None:
            index = self.best_index_
            point = self._scores.isel(index)
            lines = [f"Chosen{by}: {_told(self.best_params_)}"]
            lines.append(f"{scoring} {_with_error(point['mean_score'], point['standard_error'])} in validation")
            if "test_score" in point:
                lines.append(f"{scoring} {_with_error(*mean_and_error(point['test_score']))} in test")
            if "refit_test_score" in point:
                refitted = mean_and_error(point["refit_test_score"])
                lines.append(f"{scoring} {_with_error(*refitted)} in test, refitted with the validation rows")
            return lines
        params, means = self.best_params_, self.best_score_
        lines = [f"Chosen{by}, {scoring} in validation:"]
        shown = self.tasks[:10]
        lines += [f"  {task}: {_told(params[task])}, {means[task]:.4g}" for task in shown]
        if len(self.tasks) > len(shown):
            lines.append(f"  … and {len(self.tasks) - len(shown)} more tasks")
        lines.append(f"{scoring} {np.mean(list(means.values())):.4g} in validation, mean over tasks")
        return lines

    def __repr__(self) -> str:
        return self.summary()

    def _repr_html_(self) -> str:
        lines = "<br>".join(map(html.escape, self.summary().split("\n")))
        return f"<div>{lines}</div>{self._scores._repr_html_()}"

    # --- pictures ------------------------------------------------------------------------------------------------

    def plot_scores(self, ax: Axes | Sequence[Axes] | None = None, *, task: str | None = None) -> Figure:
        """Draw the mean scores over the grid; see `dmkl.searching.plots.plot_scores`."""
        from dmkl.searching.plots import plot_scores

        return plot_scores(self, ax, task=task)

    def plot_weights(self, task: str | None = None, at: Mapping[str, Any] | None = None) -> Figure:
        """Draw the kernel weights of a point; see `dmkl.searching.plots.plot_weights`."""
        from dmkl.searching.plots import plot_weights

        return plot_weights(self, task, at)

    # --- saving --------------------------------------------------------------------------------------------------

    def save(self, path: Any, *, overwrite: bool = False) -> None:
        """Write the result as a Zarr group with JSON attributes, the model as its subgroup "best": no pickle.

        `dmkl.load` reads it, and ``xarray.open_zarr`` its scores.

        Raises
        ------
        StoreExistsError
            If something is at `path` and `overwrite` was not given, or it is no search.
        """
        put_in_place(path, self._write, FORMAT, "search", overwrite=overwrite)

    def _write(self, path: Path) -> None:
        # The model first: writing the scores ends with the metadata of all that is there.
        if self._best is not None:
            write_model(self._best, path / BEST)
        own = {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            "rule": self._rule,
            "has_model": self._best is not None,
        }
        write_dataset(self._scores.assign_attrs(own), path, "a", None)


# --- the Dataset -----------------------------------------------------------------------------------------------------


def as_coordinate(name: str, values: Sequence[Any]) -> xr.Variable:
    """Values of a parameter as a coordinate of `SearchResult.scores`: numbers as they are, all else by their text.

    What the text does not tell (None, truth values) is kept in the attribute "values", a JSON list.
    """
    numbers = np.array(values) if all(isinstance(value, int | float | np.number) for value in values) else None
    if numbers is not None and numbers.dtype.kind in "iuf" and not any(isinstance(value, bool) for value in values):
        return xr.Variable((name,), numbers)
    texts = np.array([_text(value) for value in values])
    if all(isinstance(value, str) for value in values):
        return xr.Variable((name,), texts)
    return xr.Variable((name,), texts, {"values": json.dumps([encode(value) for value in values])})


def _text(value: Any) -> str:
    if isinstance(value, tuple) and all(isinstance(part, str) for part in value):
        return "+".join(value) or "none"  # steps, as a command line takes them
    return value if isinstance(value, str) else repr(value)


def _values(coordinate: xr.DataArray) -> list[Any]:
    if "values" in coordinate.attrs:
        return [decode(value) for value in json.loads(coordinate.attrs["values"])]
    return [value if coordinate.dtype.kind in "iuf" else str(value) for value in coordinate.values.tolist()]


def _completed(scores: xr.Dataset) -> xr.Dataset:
    """With the means and what describes the variables; the Dataset given stays as it is."""
    missing = [name for name in _NEEDED if name not in scores]
    dims = set(json.loads(scores.attrs.get("parameters_searched", "[]")))
    if missing or not dims or not {*dims, "fold"} <= set(scores["score"].dims):
        msg = (
            f"scores must have {', '.join(_NEEDED)}, the score over 'fold' and the dimensions of the attribute "
            f"'parameters_searched', found {', '.join(map(str, scores.data_vars)) or 'nothing'} with "
            f"{', '.join(map(str, scores.dims)) or 'no dimensions'}; dmkl.search and dmkl.load make such"
        )
        raise InputError(msg)
    scores = scores.copy()
    scores.attrs.setdefault("created_by", f"dmkl {__version__}")
    if not {"mean_score", "standard_error"} <= set(scores.data_vars):
        scores["mean_score"], scores["standard_error"] = mean_and_error(scores["score"])
    if "round_bytes" in scores:
        # NetCDF 3 has no integers of 64 bits; counts up to 2⁵³ are exact as floats.
        scores["round_bytes"] = scores["round_bytes"].astype(np.float64)
    for name, variable in scores.data_vars.items():
        if name in _MEANINGS:
            variable.attrs.setdefault("long_name", _MEANINGS[str(name)])
        if name in _UNITS:
            variable.attrs.setdefault("units", _UNITS[str(name)])
    flags = {"flag_values": np.arange(len(WORDS), dtype=np.int8), "flag_meanings": " ".join(WORDS)}
    meant = str(scores["status"].attrs.get("flag_meanings", flags["flag_meanings"])).split()
    codes = np.array([WORDS.index(word) if word in WORDS else len(WORDS) - 1 for word in meant], dtype=np.int8)
    scores["status"] = scores["status"].copy(data=codes[scores["status"].values.astype(np.int64)]).assign_attrs(flags)
    return scores


def _count(n: float, what: str) -> str:
    return f"{n:g} {what}" if n == 1 else f"{n:.4g} {what}{'es' if what.endswith('s') else 's'}"


def _told(params: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}" for name, value in params.items()
    )


def _with_error(mean: xr.DataArray, error: xr.DataArray) -> str:
    return f"{float(mean):.4g}" + (f" ± {float(error):.2g}" if np.isfinite(float(error)) else "")


# --- reading ---------------------------------------------------------------------------------------------------------


def _read_search(path: Path, attrs: dict[str, Any]) -> SearchResult:
    check_version(path, attrs, FORMAT_VERSION, "search")
    try:
        return _read(path)
    except (OSError, KeyError, ValueError, TypeError, RuntimeError) as error:
        msg = f"the search at {path} is damaged ({error!r}); save it again"
        raise StoreError(msg) from error


def _read(path: Path) -> SearchResult:
    # The root's consolidated metadata tell of everything that there was.
    for name, member in zarr.open_group(path, mode="r", use_consolidated=True).members(max_depth=None):
        if isinstance(member, zarr.Array) and member.nchunks_initialized < member.nchunks:
            msg = f"{name} has missing values"
            raise ValueError(msg)
    stored = xr.open_zarr(path, chunks=None, consolidated=True).load().drop_encoding()
    strings = {
        name: (variable.dims, variable.values.astype(object).astype(str), variable.attrs)
        for name, variable in stored.variables.items()
        if variable.dtype.kind in "OT"
    }
    scores = stored.assign(strings)
    own = {name: scores.attrs.pop(name) for name in ("format", "format_version", "rule", "has_model")}
    best = load(path / BEST) if own["has_model"] else None
    return SearchResult(scores, best=best, rule=own["rule"])


READERS[FORMAT] = _read_search
