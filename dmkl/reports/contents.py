"""`dmkl.report`: what is told of each kind of model and result."""

from __future__ import annotations

import ast
import json
from functools import singledispatch
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import sklearn.model_selection
import xarray as xr

from dmkl.analysis.result import Analysis
from dmkl.arrays import plain_repr
from dmkl.errors import InputError
from dmkl.estimators.learner import KernelLearner
from dmkl.estimators.saving import encode, models
from dmkl.files.writing import write_whole
from dmkl.inference.finding import Finding
from dmkl.reports.page import Page, Section, render
from dmkl.searching.evaluation import EvaluationResult
from dmkl.searching.folds import SPLITS
from dmkl.searching.result import SearchResult
from dmkl.searching.texts import count, told, value_told

__all__ = ["report"]

_TOO_GOOD = (
    "The best score of a search is too good: it is the best of many, on rows that chose it. dmkl.evaluate estimates "
    "how good the same search is on new samples."
)

_ON_WEIGHTS = (
    "Weights depend on p, on λ or C, and on the spectra of the kernels: a kernel of noise with many equal eigenvalues "
    "wins weight at a small λ. dmkl.permutation_test has p-values."
)
_TOO_SMALL = "The standard error takes outer folds for independent; they share training samples, so it is too small."


def report(found: Any, path: str | Path | None = None) -> str:
    """Write a model or a result as one page of HTML that stands alone.

    It tells what was asked and of which data, the answer in a sentence, what a reader must know before believing it,
    tables, figures, certificates, and how to do it again. Figures are part of the page; it needs no other file.

    Parameters
    ----------
    found
        A fitted model, a `SearchResult`, an `EvaluationResult`, an `Analysis`, or what the tests and analyses of
        weights have found.
    path
        Where the page is written, replacing what is there; nowhere where None.

    Returns
    -------
    str
        The page.

    Raises
    ------
    InputError
        If there is no report of such an object, or a model is not fitted.
    """
    text = render(page_of(found))
    if path is not None:
        write_whole(Path(path), text.encode())
    return text


@singledispatch
def page_of(found: Any) -> Page:
    """What is told of a model or a result."""
    msg = (
        f"there is no report of a {type(found).__name__}; give a fitted model, or what dmkl.search, dmkl.evaluate, "
        "dmkl.analyze and their like return"
    )
    raise InputError(msg)


# --- models --------------------------------------------------------------------------------------------------------


@page_of.register
def _model(model: KernelLearner) -> Page:
    model._check_fitted()
    weights = model.weights_.transpose("kernel", ...)
    each = np.abs(weights.values.reshape(len(model.kernel_names_), -1)).mean(axis=1)
    n_used = int(np.count_nonzero(each))
    leading = [model.kernel_names_[j] for j in np.argsort(-each, kind="stable")[:3]]
    gap = float(np.max(np.asarray(model.gap_)))
    proven = f"; no other weights have an objective better by more than {gap:.2g} of it" if np.isfinite(gap) else ""
    answer = f"{n_used} of {count(len(each), 'kernel')} have weight, most of all {', '.join(leading[:n_used])}{proven}."
    facts = {
        "model": type(model).__name__,
        "parameters": told(_changed(model)) or "all at their defaults",
        "learns": model.kind_ + (f": {', '.join(map(str, model.classes_))}" if len(model.classes_) else ""),
        "training samples": f"{model.n_features_in_:,}",
        "status": model.status_,
        "passes": f"{model.n_passes_:g}" if hasattr(model, "n_passes_") else "as part of a search",
    }
    frame = pd.DataFrame(weights.values.reshape(len(each), -1), columns=_columns(weights))
    frame.insert(0, "kernel", list(model.kernel_names_))
    frame = frame.iloc[np.argsort(-each, kind="stable")]
    sections = [
        Section("Weights", table=frame, figure=model.plot_weights(), caption="Weight of each kernel.", named=True),
        *_weight_map(model),
        *_convergence(model),
        *_model_again(model),
    ]
    notes = () if np.isfinite(gap) else ("Nothing is proven of these weights: the problem has no certificate.",)
    notes = (*notes, _ON_WEIGHTS, *([price] if (price := model._default_price()) else []))
    told_open = (model.status_,) if np.isfinite(gap) and gap > getattr(model, "tol", np.inf) else ()
    return Page(
        f"{type(model).__name__} on {count(len(each), 'kernel')}", answer, facts, (*notes, *told_open), tuple(sections)
    )


def _weight_map(model: KernelLearner) -> list[Section]:
    several = [str(dim) for dim in model.weights_.dims if dim != "kernel" and model.weights_.sizes[dim] > 1]
    if not several:
        return []
    return [Section(f"Weights by {several[0]}", figure=model.plot_weight_map(), caption="Weight of each kernel.")]


def _convergence(model: KernelLearner) -> list[Section]:
    if "gap" not in model.history_ or model.history_.sizes["iteration"] < 2:
        return []
    figure = model.plot_convergence()
    return [Section("Certificate", figure=figure, caption="The proven relative gap after each step.")]


def _columns(weights: xr.DataArray) -> list[str]:
    if weights.ndim == 1:
        return ["weight"]
    names = weights.stack(other=weights.dims[1:])["other"].values
    return [" ".join(map(str, np.atleast_1d(np.array(name, dtype=object)))) for name in names]


# --- searches and evaluations --------------------------------------------------------------------------------------


@page_of.register
def _search(found: SearchResult) -> Page:
    scores, attrs = found.scores, found.scores.attrs
    lines = found.summary().splitlines()
    notes = found.notes()
    chosen = [line.strip() for line in lines[1:] if not line.startswith("Time:") and " fits (" not in line]
    chosen = [line for line in chosen if line not in notes]
    facts = {
        "searched": " × ".join(f"{name} = {_range(values)}" for name, values in found.grid.items()),
        "folds": _folds_told(scores),
        "measure": str(attrs["scoring"]),
        "kernels": f"{scores.sizes['kernel']:,}",
        "took": f"{count(found.n_passes_, 'pass')}, {attrs['seconds']:.3g} s, dmkl {attrs['created_by'].split()[-1]}",
    }
    sections = [
        Section(
            "Scores",
            (lines[-2] if lines[-1].startswith("Time:") else lines[-1],),
            found.table(),
            found.plot_scores(),
            "Mean validation scores over the grid; a ring marks the choice.",
        ),
        Section(
            "Weights", figure=found.plot_weights(), caption="Kernel weights of the chosen point, a dot for each fold."
        ),
        *_over_p(found),
        *_baselines(found),
        *_search_again(found),
    ]
    notes = [_TOO_GOOD, _ON_WEIGHTS, *(f"{note}." for note in notes)]
    n_open = int(np.sum(scores["status"].values == 3))
    if n_open:
        gap = float(scores["gap"].max())
        n_fits = int((scores["status"] >= 0).sum())
        notes.append(f"{count(n_open, 'fit')} of {n_fits} ended open, with gaps up to {gap:.2g}.")
    return Page(f"Search of {attrs['estimator']}", _sentences(chosen), facts, tuple(notes), tuple(sections))


def _range(values: list[Any]) -> str:
    told_values = [value_told(value) for value in values]
    return (
        ", ".join(told_values) if len(values) <= 6 else f"{told_values[0]} … {told_values[-1]} ({len(values)} values)"
    )


def _over_p(found: SearchResult) -> list[Section]:
    if len(found.grid.get("p", [])) < 2:
        return []
    return [Section("Weights over p", figure=found.plot_weights_over(), caption="From few kernels to all alike.")]


def _baselines(found: SearchResult) -> list[Section]:
    """The baselines, where the search has fitted them."""
    baselines = found.baselines
    if baselines is None:
        return []
    fitted_at = ("Each with its own best parameters, by the same rows as the choice.",)
    return [Section("Baselines", fitted_at, baselines.to_dataframe().reset_index())]


@page_of.register
def _evaluation(found: EvaluationResult) -> Page:
    scores, attrs = found.scores, found.scores.attrs
    first, *lines = found.summary().splitlines()
    beside = found.beside()
    facts = {
        "evaluated": first.split(": ", 1)[-1],
        "outer folds": _folds_told(scores),
        "measures": ", ".join(found.measures),
        "kernels": f"{scores.sizes['kernel']:,}",
        "took": f"{count(found.n_passes_, 'pass')}, {attrs['seconds']:.3g} s, {attrs['created_by']}",
    }
    weights = scores["weight"].mean([dim for dim in scores["weight"].dims if dim not in ("fold", "kernel")])
    by_kernel = weights.transpose("kernel", "fold")
    from dmkl.pictures import bars

    figure = bars(
        [str(name) for name in scores["kernel"].values],
        by_kernel.mean("fold").values,
        by_kernel.values,
        f"kernel weight: mean of {scores.sizes['fold']} outer folds, a dot each",
    )
    sections = [
        Section("Outer folds", tuple(line for line in lines[1:] if line not in beside + found.notes()), found.table()),
        Section("Choices", ("How many outer folds chose each point.",), found.choices),
        Section("Weights", figure=figure, caption="Kernel weights of the tested models."),
        *_by_class(found),
        *_evaluation_again(found),
    ]
    notes = (_TOO_SMALL, *(f"{note}." for note in found.notes()))
    return Page(f"Evaluation of {attrs['estimator']}", _sentences([lines[0], *beside]), facts, notes, tuple(sections))


def _by_class(found: EvaluationResult) -> list[Section]:
    if "confusion" not in found.scores or "task" in found.scores.dims:
        return []
    matrix = found.confusion
    frame = pd.DataFrame(matrix.values, columns=[str(name) for name in matrix["predicted"].values])
    frame.insert(0, "true", matrix["true"].values.astype(str))
    return [
        Section("Classes", table=found.classes.to_dataframe().reset_index()),
        Section(
            "Which is taken for which",
            ("Test samples of each true class (rows) by the predicted one.",),
            frame,
            found.plot_confusion(),
            "Counts of test samples; recall and precision of each class.",
            named=True,
        ),
    ]


# --- analyses and findings -----------------------------------------------------------------------------------------


@page_of.register
def _analysis(found: Analysis) -> Page:
    first, *lines = found.summary().splitlines()
    attrs = found.data.attrs
    facts = {
        "kernels": f"{len(found.names):,}",
        "samples": f"{attrs['n_samples']:,}",
        "steps before": attrs["steps"] or "none",
        "alignments": attrs["method"],
    }
    sections = [
        Section(
            "Alignments",
            tuple(lines),
            figure=found.plot_alignment(),
            caption="Kernels that are alike lie side by side.",
        ),
        _pairs(found),
    ]
    if "target_alignment" in found.data:
        picture = found.plot_targets()
        sections.append(
            Section("Fit to the labels", figure=picture, caption="How well each kernel alone fits the labels.")
        )
    sections.append(Section("Kernels", table=found.table().reset_index()))
    return Page("Kernels beside one another", f"{first}.", facts, (), tuple(sections))


def _pairs(found: Analysis) -> Section:
    title, pairs = "Pairs that are alike", found.pairs()
    if len(pairs):
        return Section(title, table=pairs)
    return Section(title, (f"No two kernels have an alignment of {found.data.attrs['threshold']:g} or more.",))


@page_of.register
def _finding(found: Finding) -> Page:
    first, *lines, took = found.summary().splitlines()
    shown = {"asked": first, "took": f"{took}, {found.data.attrs['created_by']}"}
    sections = []
    if hasattr(found, "plot"):
        sections.append(Section("Picture", figure=found.plot(), caption=first))
    if hasattr(found, "table"):
        sections.append(Section("Table", table=found.table().reset_index(drop=True)))
    return Page(found.TITLE.capitalize(), _sentences(lines), shown, (), tuple(sections))


def _sentences(lines: list[str]) -> str:
    """Lines of a summary as sentences."""
    return " ".join(f"{line[:1].upper()}{line[1:].removesuffix('.')}." for line in lines)


# --- how to do it again --------------------------------------------------------------------------------------------


class _NotCodeError(ValueError):
    """A value that no Python literal gives back, such as a callable."""


def _again(lines: list[str]) -> Section:
    return Section("To do it again", code="\n".join(["import dmkl", *lines]))


def _model_again(model: KernelLearner) -> list[Section]:
    try:
        call = _call(type(model), {name: encode(value) for name, value in model.get_params(deep=False).items()})
    except _NotCodeError:
        return []
    kernels = f"K = dmkl.open(...)  # {count(len(model.kernel_names_), 'kernel')} of the training samples, with labels"
    return [_again(["", kernels, f"model = {call}.fit(K)"])]


def _search_again(found: SearchResult) -> list[Section]:
    """Code that makes the same search of the same kernels; nothing where it would not be the same."""
    scores, attrs = found.scores, found.scores.attrs
    default = "fold" if scores.sizes["fold"] > 1 and "test_score" in scores else "joint"
    given = {} if found.rule == "best" else {"rule": _literal(found.rule)}
    given |= {} if attrs.get("choice", default) == default else {"choice": _literal(attrs["choice"])}
    folds = {"cv": _splitter_code(scores) or "found.folds"}
    return _called_again("search", scores, found.grid_asked, folds, given)


def _evaluation_again(found: EvaluationResult) -> list[Section]:
    """Code that makes the same evaluation of the same kernels; nothing where it would not be the same."""
    first = next(iter(found.searches.values()))
    folds = {"outer": _splitter_code(found.scores) or "found.folds"}
    inner = _splitter_code(first.scores)
    if inner is None:  # inner folds are made anew, and these cannot be made the same
        return []
    folds |= {} if inner == folds["outer"] == '"splits"' else {"inner": inner}
    given = {} if first.rule == "best" else {"rule": _literal(first.rule)}
    return _called_again("evaluate", found.scores, first.grid_asked, folds, given)


def _called_again(
    function: str, scores: xr.Dataset, grid: dict[str, list[Any] | None], folds: dict[str, str], given: dict[str, str]
) -> list[Section]:
    asked = json.loads(scores.attrs.get("asked", "null"))
    if asked is None or asked["source"] == "changed":  # made before folds were kept, or of kernels changed by steps
        return []
    try:
        learner = _call(models().get(str(scores.attrs["estimator"])), json.loads(scores.attrs["parameters"]))
        points = ", ".join(
            f"{_literal(name)}: {None if values is None else _literal([encode(value) for value in values])}"
            for name, values in grid.items()
        )
        given = {name: _literal(asked[name]) for name in ("scoring", "unknown") if asked[name] is not None} | given
    except _NotCodeError:
        return []
    arguments = [learner, "K", *(["y"] if asked["y"] else []), f"grid={{{points}}}"]
    arguments += [f"{name}={code}" for name, code in folds.items()]
    arguments += ["groups=found.scores.sample_group"] if asked["groups"] else []
    arguments += [f"{name}={code}" for name, code in given.items()]
    splitters = sorted({code.split("(")[0] for code in folds.values() if "(" in code})
    lines = [f"from sklearn.model_selection import {', '.join(splitters)}"] if splitters else []
    lines += ["", f"K = dmkl.open(...)  # {count(scores.sizes['kernel'], 'kernel')}"]
    if asked["source"] == "part" or any("found." in one for one in arguments):
        lines.append("found = dmkl.load(...)  # this result")
    if asked["source"] == "part":
        lines.insert(0, "import pandas as pd")
        lines += [
            "rows = pd.Index(K.samples.astype(str)).get_indexer(found.scores.sample)",
            "K = K[rows, rows].select(found.scores.kernel.values)",
        ]
    lines += ["y = ...  # the labels, in the order of the samples of K"] if asked["y"] else []
    return [_again([*lines, f"dmkl.{function}({', '.join(arguments)})"])]


def _splitter_code(scores: xr.Dataset) -> str | None:
    """Python for the folds of a result; None where only positions tell, which it keeps."""
    text = str(scores.attrs.get("splitter", ""))
    if text == SPLITS:
        return _literal(text)
    try:
        call = ast.parse(text, mode="eval").body
        if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name)):
            return None
        given = {keyword.arg: ast.literal_eval(keyword.value) for keyword in call.keywords}
    except (SyntaxError, ValueError):
        return None
    known = call.func.id in sklearn.model_selection.__all__
    by_chance = given.get("random_state", 0) is None and given.get("shuffle", True)
    return text if known and not by_chance else None


def _folds_told(scores: xr.Dataset) -> str:
    """How many folds, what made them, and by which groups."""
    asked = json.loads(scores.attrs.get("asked", "{}"))
    made_by = {"": "", SPLITS: ", stored splits"}.get(splitter := scores.attrs.get("splitter", ""), f", {splitter}")
    by = asked.get("groups")
    grouped = f", groups {'as given' if by == 'given' else f'from {by}'}" if by else ""
    return f"{scores.sizes['fold']}{made_by}{grouped}"


def _changed(model: KernelLearner) -> dict[str, Any]:
    """Parameters that are not at their defaults."""
    default = type(model)().get_params(deep=False)
    return {
        name: value
        for name, value in model.get_params(deep=False).items()
        if plain_repr(value) != plain_repr(default[name])
    }


def _call(kind: type[KernelLearner] | None, parameters: dict[str, Any]) -> str:
    """The call that makes a learner with these parameters, which are as `encode` writes them."""
    if kind is None or not kind.__module__.startswith("dmkl."):  # of another package
        raise _NotCodeError
    default = {name: encode(value) for name, value in kind().get_params(deep=False).items()}
    given = {name: value for name, value in parameters.items() if value != default.get(name)}
    return f"dmkl.{kind.__name__}({', '.join(f'{name}={_literal(value)}' for name, value in given.items())})"


def _literal(value: Any) -> str:
    """Python for a value that `encode` wrote.

    Raises
    ------
    _NotCodeError
        If there is none, as for a callable.
    """
    if isinstance(value, dict):
        if "mapping" in value:
            return f"{{{', '.join(f'{_literal(key)}: {_literal(item)}' for key, item in value['mapping'])}}}"
        if "float" in value:
            return f'float("{value["float"]}")'
        raise _NotCodeError
    if isinstance(value, list):
        return f"[{', '.join(map(_literal, value))}]"
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else plain_repr(value)
