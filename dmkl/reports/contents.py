"""`dmkl.report`: the page of each kind of model and result."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import singledispatch
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import sklearn.model_selection
import xarray as xr

import dmkl
from dmkl.arrays import parse_call, plain_repr, weight_shares
from dmkl.description import Column, Description, Table, count, listed, number, short_names, with_error
from dmkl.errors import refuse
from dmkl.files.writing import write_whole
from dmkl.inference.importance import Importance
from dmkl.inference.permutation import PermutationTest
from dmkl.inference.stability import Stability
from dmkl.learners.checks import decode, encode
from dmkl.learners.learner import KernelLearner
from dmkl.learners.saving import decode_parameters, model_class
from dmkl.learners.tables import ON_WEIGHTS, describe_model
from dmkl.numerics.covariates import Covariates
from dmkl.numerics.steps import STEPS, as_steps
from dmkl.pictures import widest
from dmkl.progress import inside
from dmkl.reports.page import LEADS, WIDTH, Page, Section, render, sentences
from dmkl.reports.predictions import lines_that_predict
from dmkl.searching.evaluation import EvaluationResult
from dmkl.searching.folds import SPLITS
from dmkl.searching.search import GridResult, SearchResult
from dmkl.searching.texts import p_value_text, point_text, value_text
from dmkl.store.saved import Result, task_dim

_TOO_GOOD = (
    "The best score of a search is too optimistic: it is the best of many, on the rows that chose it. dmkl.evaluate "
    "estimates the score of the same search on new samples."
)

_AGAIN, _USED, _TYPED = "Code that repeats this", "Code that predicts", "Command that predicts"
_MOST_COLUMNS = 12  # Most classes, tasks or targets with a column of weights; more have their distribution.
_TOO_SMALL = (
    "The standard error assumes that outer folds are independent; they share training samples, so it is too small."
)


def report(result: Any, path: str | Path | None = None, *, source: str | Sequence[str] = "") -> str:
    """Write a report on a model or a result as one page of HTML.

    It has the question and the data, the answer in a sentence, warnings, tables, figures, certificates, and the code
    that repeats the work. Figures are part of the page; it needs no other file.

    Parameters
    ----------
    result
        A fitted model, a `SearchResult`, an `EvaluationResult`, an `Analysis`, or the result of an importance, a
        resampling or a permutation test; or a list of them on the same data, for one page with the answer of the search
        and the evidence of the others.
    path
        The file to write, which is replaced if it exists; None writes no file.
    source
        Where the result is saved, or each of several: the code of the page loads it from there, and the page names it
        for the rows of long tables that it leaves out.

    Returns
    -------
    str
        The page.

    Raises
    ------
    InputError
        If there is no report of such an object, or a model is not fitted.
    """
    with inside(widest, WIDTH):
        page = page_of(result, source)
    text = render(replace(page, source=source if isinstance(source, str) else ", ".join(source)))
    if path is not None:
        write_whole(Path(path), text.encode())
    return text


@singledispatch
def page_of(result: Any, source: Any = "") -> Page:
    """The page of a model or a result, which is saved at `source` if that is not empty."""
    refuse(
        f"there is no report of a {type(result).__name__}; give a fitted model, or a result of dmkl.search, "
        "dmkl.evaluate, dmkl.analyze and so on"
    )


@page_of.register
def _model(model: KernelLearner, source: str = "") -> Page:
    model._check_fitted()
    gap = float(np.max(np.asarray(model.gap_)))
    answer = _largest_weights(model.weights_)
    if "components_" in model.traits.fitted and "target" not in model.components_.dims:
        components = model.components_
        pairs = zip(components.variance_share.values, components.variance_share_se.values, strict=True)
        *shares, _, total = (with_error(share, error) for share, error in pairs)
        named = zip(short_names(model.kernel_names_).values(), shares, strict=False)
        each = listed([f"{name} {share}" for name, share in named], _MOST_COLUMNS)
        answer = f"The kernels explain {total} of the variance: {each} (shares ± one standard error)."
    if np.isfinite(gap):
        percent = f"{100 * gap:.2g} %" if gap >= 1e-10 else "1e-8 %"
        answer += f" Proven: {model.traits.bounded} is within {percent} of the best possible."
    default, params = type(model)().get_params(deep=False), model.get_params(deep=False)
    changed = {name: value for name, value in params.items() if plain_repr(value) != plain_repr(default[name])}
    shapes = {name: np.shape(changed[name]) for name in {"weights", "candidates"} & changed.keys()}
    changed |= {name: f"({' × '.join(map(str, of))} numbers)" for name, of in shapes.items() if len(of) == 2}
    origin = model.history_.attrs
    facts = {
        "set": str(origin.get("set", "")),
        "learns": model.kind_ + (f": {listed(model.classes_, _MOST_COLUMNS)}" if len(model.classes_) else ""),
        "training samples": f"{model.n_features_in_:,}",
        "date": str(origin.get("created_on", "")),
        "model": type(model).__name__,
        "parameters": point_text(changed) or "all at their defaults",
        "status": model.status_,
        "passes": f"{model.n_passes_:g}" if hasattr(model, "n_passes_") else "as part of a search",
    }
    description = describe_model(model, _MOST_COLUMNS)
    sections = _sections(description)
    warnings = [] if np.isfinite(gap) else ["Nothing is proven about these weights: the problem has no certificate."]
    if "components_" in model.traits.fitted:
        warnings = ["Variances are estimates: their standard errors and p-values say how sure they are."]
        sections.insert(1, _hsq(model))  # below the variance components, which lead
    with suppress(_NotCodeError):
        call = _call(type(model), {name: encode(value) for name, value in params.items()})
        part = f"dmkl.load({_literal(source) if source else '...'})  # this model", "train_samples_", "kernel_names_"
        lines = _opening(origin, len(model.kernel_names_), *part)
        given = "".join(f", {name}=..." for name in str(origin.get("given", "")).split(",") if name)
        sections.append(Section(_AGAIN, code="\n".join([*lines, f"model = {call}.fit(K{given})"])))
    sections += _predicting(model, source, origin)
    if np.isfinite(gap) and model.traits.bounded != KernelLearner.traits.bounded:
        warnings.append(f"The gap is that of {model.traits.bounded}, and says nothing about the weights.")
    warnings += description.lines()
    if np.isfinite(gap) and gap > getattr(model, "tol", np.inf):
        warnings.append(model.status_)
    title = f"{type(model).__name__} on {count(len(model.kernel_names_), 'kernel')}"
    return Page(title, answer, facts, warnings, sections)


def _hsq(model: Any) -> Section:
    """The table that GCTA writes of variance components, of each target if there are several."""
    several = "target" in model.components_.dims
    targets = model.components_["target"].values.astype(str).tolist() if several else [None]
    tables = [model.hsq_table(target).assign(target=target or "") for target in targets]
    numbers = (Column(name, form="exact") for name in ("Variance", "SE"))
    shown = [Column("target", form="text"), Column("Source"), *numbers]
    note = "In the form of GCTA's file .hsq, which dmkl export writes."
    return Section("Variances and likelihood", (note,), Table(pd.concat(tables, ignore_index=True), shown))


@page_of.register(GridResult)
def _of_grid(result: SearchResult | EvaluationResult, source: str = "") -> Page:
    scores, description, is_search = result.scores, result.describe(), isinstance(result, SearchResult)
    search = result if isinstance(result, SearchResult) else next(iter(result.searches.values()))
    searched = []
    for name, values in search.grid.items():
        texts = [value_text(value) for value in values]
        short = len(texts) <= 6
        searched.append(f"{name} = {', '.join(texts) if short else f'{texts[0]} … {texts[-1]} ({len(texts)} values)'}")
    facts = {
        **_top(scores),
        "searched": " × ".join(searched),
        "folds" if is_search else "outer folds": _describe_folds(scores),
        "measures": ", ".join(json.loads(scores.attrs.get("measures", "[]")) or [str(scores.attrs["scoring"])]),
        "kernels": f"{scores.sizes['kernel']:,}",
        "took": _took(result, description),
    }
    sections = [*_sections(description), *_called_again(result, source)]
    if is_search and hasattr(result, "best_"):
        sections += _predicting(result.best_, source, json.loads(scores.attrs.get("asked", "{}")), "best_")
    too_good = [] if "test_score" in scores else [_TOO_GOOD]
    notes = [*too_good, ON_WEIGHTS] if is_search else [_TOO_SMALL]
    notes += [f"{note.removesuffix('.')}." for note in description.lines("notes")]
    if n_open := int(np.sum(scores["status"].values == 3)):
        n_all, gap = int((scores["status"] >= 0).sum()), float(scores["gap"].max())
        notes.append(f"{count(n_open, 'fit')} of {n_all} ended open, with gaps up to {gap:.2g}.")
    lines = description.lines("choice", "scores", "coverage", "chance", "kernels_part", "inner_scores")
    # Whether the choice is better than the baselines, by the 95 % intervals of the paired differences.
    compared = result.comparison()
    sure = (compared["margin"] > 0) & (compared["difference"].abs() > compared["margin"])
    words = np.where(compared["difference"] > 0, "scores higher than", "scores lower than")
    words = np.where(sure, words, "is not shown to differ from")
    groups = compared[1:].groupby(words[1:], sort=False)["model"]
    lines += [f"it {verdict} the {' and the '.join(models)}" for verdict, models in groups]
    at_choice = result.chosen if isinstance(result, SearchResult) else result.scores
    answer = f"{sentences(lines)} {_largest_weights(at_choice['weight'])}"
    return Page(description.title, answer, facts, notes, sections)


def _sections(description: Description) -> list[Section]:
    """A section for each figure and table of a result; the one that leads is the first."""
    tables = {made.title: made for made in (make() for make in description.tables.values())}
    sections = []
    for title in dict.fromkeys([*description.figures, *tables]):
        table, figure = tables.get(title), description.figures.get(title)
        texts = (table.note,) if table is not None and table.note else ()
        axes, caption = (None, "") if figure is None else (figure.draw(), figure.caption)
        sections.append(Section(title, texts, table, axes, caption))
    return sorted(sections, key=lambda section: section.title not in LEADS)


def _largest_weights(weights: xr.DataArray) -> str:
    """The kernels of the largest weights with their shares, means over classes and folds, as a sentence."""
    weights = weights.transpose("kernel", ...)
    means = np.abs(weight_shares(weights.values.reshape(len(weights), -1), 0)).mean(axis=1)
    shares = 100 * means / (means.sum() or 1.0)
    order, n_used = np.argsort(-shares, kind="stable"), int(np.count_nonzero(shares))
    names = list(short_names(weights["kernel"].values).values())
    if n_used == len(shares) > 1 and np.ptp(shares) < 1e-9:
        return f"All {n_used} kernels have the same weight."
    largest = listed([f"{names[j]} ({number(shares[j])} %)" for j in order[: min(3, n_used)]], 3)
    return f"{n_used} of {count(len(shares), 'kernel')} have weight; the largest: {largest}."


@page_of.register
def _result(result: Result, source: str = "") -> Page:
    description = result.describe()
    facts = {**_top(result.data), "question": description.headline, "took": _took(result, description)}
    facts |= {"steps before": steps} if (steps := result.data.attrs.get("steps")) else {}
    answer = sentences(description.lines(without={"costs"}))
    sections = [*_sections(description), *_called_again(result, source)]
    return Page(result.TITLE.capitalize(), answer, facts, (), sections)


def _top(data: xr.Dataset) -> dict[str, str]:
    """The set, the trait, the number of samples and the day of a result, as far as it knows them."""
    asked = json.loads(data.attrs.get("asked", "{}"))
    n_samples = data.sizes.get("sample", int(data.attrs.get("n_samples", 0)))
    outputs: Any = data[dim].values if (dim := task_dim(data)) else []
    sizes = asked.get("classes")
    classes = [f"{name} ({size})" for name, size in sizes.items()] if isinstance(sizes, dict) else []
    named = asked.get("trait") or asked.get("labels")
    of = [str(named or "") if named != "..." else "", listed(classes or outputs, _MOST_COLUMNS)]
    return {
        "set": str(asked.get("set") or data.attrs.get("set", "")),
        "trait": ": ".join(text for text in of if text),
        "samples": f"{n_samples:,}" if n_samples else "",
        "date": str(data.attrs.get("created_on", "")),
    }


def _took(result: Result, description: Description) -> str:
    """The costs of the result, its proof, and the version that made it."""
    costs = description.lines("costs") or [count(result.n_passes_, "pass")]
    return f"{' '.join(costs)}; {result.data.attrs['created_by']}"


@page_of.register
def _described(description: Description, source: str = "") -> Page:
    codes = (Section(title, code=code) for title, code in description.code.items())
    answer, notes = sentences(description.lines(without={"notes"})), description.lines("notes")
    return Page(description.headline, answer, description.facts(), notes, [*_sections(description), *codes])


# --- several results on the same data ---------------------------------------------------------------------------------

_HEADINGS: dict[type[Any], str] = {
    SearchResult: "Search",
    KernelLearner: "Model",
    EvaluationResult: "Score on new samples",
    PermutationTest: "Permuted labels",
    Stability: "Stability",
    Importance: "Importance",
}
"""The kinds of results in the order of a page: the answer, then the evidence; others follow."""


_ASKED = ("searched", "question", "model")  # The fact of a page that says what was asked.


class _Part:
    """A result, with what the page says of it."""

    def __init__(self, result: Any, source: str) -> None:
        kernels: Any
        samples: Any
        self.result, self.page = result, page_of(result, source)
        self.heading = next((name for kind, name in _HEADINGS.items() if isinstance(result, kind)), self.page.title)
        if isinstance(result, KernelLearner):
            attrs = {"estimator": type(result).__name__, "solver": getattr(result, "solver_", "")}
            kernels, samples, parameters = result.kernel_names_, result.train_samples_, result.get_params(deep=False)
            self.data = xr.Dataset(attrs=dict(result.history_.attrs) | attrs)
        else:
            self.data = result.data
            kernels, samples = self.data["kernel"].values, self.data["sample"].values if "sample" in self.data else []
            learner = model_class(self.data.attrs.get("estimator", ""))
            written = json.loads(self.data.attrs.get("parameters", "{}"))
            parameters = {} if learner is None else decode_parameters(learner, written)
        self.kernels, self.samples, self.parameters = [*map(str, kernels)], [*map(str, samples)], dict(parameters)


@page_of.register(list)
@page_of.register(tuple)
def _several(results: Sequence[Any], source: str | Sequence[str] = "") -> Page:
    """One page of results in any order, from the page of each."""
    if not results:
        refuse("a report of several results needs one at least, got none; give models or results")
    sources = [""] * len(results) if isinstance(source, str) else source
    parts = list(map(_Part, results, sources))
    order = [*_HEADINGS.values()]
    parts.sort(key=lambda part: order.index(part.heading) if part.heading in order else len(order))
    names = [part.heading for part in parts]
    for k, part in enumerate(parts):
        part.heading += f" {names[: k + 1].count(part.heading)}" if names.count(part.heading) > 1 else ""
    first, *others = parts
    warnings = [text for part in others for text in _differences(first, part)]
    # An evaluation of the same search answers the question that a warning of the search raises.
    evaluated = not warnings and any(isinstance(part.result, EvaluationResult) for part in parts)
    warnings += [text for part in parts for text in part.page.warnings if not (evaluated and text == _TOO_GOOD)]
    sections: list[Section] = []
    for part in parts:
        own = [replace(section, title=f"{part.heading}: {section.title}") for section in part.page.sections]
        if part is not first and own:
            own[0] = replace(own[0], texts=(part.page.answer, *own[0].texts))
        sections += own
    evidence = []
    for result in (part.result for part in others):
        if isinstance(result, EvaluationResult):
            evidence.append(sentences(result.describe().lines("scores")[:1]))
        elif isinstance(result, PermutationTest) and result.data["p_value"].ndim == 0:
            evidence.append(f"Against permuted labels: {p_value_text(result.data)}.")
    asked = [next(part.page.facts[name] for name in _ASKED if name in part.page.facts) for part in parts]
    facts = {
        **_describe_data(parts),
        "question": "; ".join(f"{part.heading}: {text}" for part, text in zip(parts, asked, strict=True)),
        "folds": "; ".join(f"{p.heading}: {_describe_folds(p.data)}" for p in parts if "fold" in p.data.sizes),
    }
    return Page(
        f"{first.data.attrs.get('estimator', first.heading)} on {count(len(first.kernels), 'kernel')} of "
        f"{count(len(first.samples), 'sample')}",
        " ".join([first.page.answer, *evidence]),
        facts,
        list(dict.fromkeys(warnings)),
        [
            *(section for section in sections if not section.code),
            Section("How it was computed", table=Table(pd.DataFrame(map(_costs, parts)))),
            Section("Parameters", table=_parameters(parts)),
            *(section for section in sections if section.code),
        ],
    )


def _differences(first: _Part, part: _Part) -> list[str]:
    """Warnings if a result is on other kernels, samples or points than the first: it answers another question."""
    warnings = []
    for noun in ("kernels", "samples"):
        expected, names = getattr(first, noun), getattr(part, noun)
        if expected and names and set(expected) != set(names):
            warnings.append(
                f"{part.heading} has other {noun} than {first.heading}: {len(names):,} and {len(expected):,}, "
                f"{len(set(names) & set(expected)):,} of them in both."
            )
    if isinstance(part.result, EvaluationResult) and isinstance(first.result, SearchResult):
        if next(iter(part.result.searches.values())).grid != first.result.grid:
            warnings.append(
                f"{part.heading} is of a search of another grid: it does not estimate the score of this one."
            )
    return warnings


def _describe_data(parts: Sequence[_Part]) -> dict[str, str]:
    """Samples, classes, kernels and steps, as far as results know them."""
    first = parts[0]
    facts = _top(first.data) | {"samples": f"{len(first.samples):,}"}
    for name, noun in (("sample_group", "group"), ("sample_block", "block")):
        values = next((part.data[name].values for part in parts if name in part.data), None)
        facts["samples"] += "" if values is None else f", in {count(len(np.unique(values)), noun)}"
    tested = next((part.result.confusion for part in parts if "confusion" in part.data), None)
    classes = getattr(getattr(first.result, "best_", first.result), "classes_", ())
    if tested is not None and "task" not in tested.dims:
        sizes = tested.sum("predicted").to_series()
        classes = [f"{name} ({size:,} tested)" for name, size in sizes.items()]
    kernels = short_names(first.kernels).values()
    facts |= {"classes": listed(classes, _MOST_COLUMNS), "kernels": listed(kernels, _MOST_COLUMNS)}
    steps = as_steps(first.parameters.get("steps"))
    titles = {name: (type(step).__doc__ or "").split(".\n")[0].rstrip(".").lower() for name, step in STEPS.items()}
    titles = {name: title.replace("column samples", "training samples") for name, title in titles.items()}
    texts = [f"{step} ({titles[step]})" if step in titles else "residualize (remove covariates)" for step in steps]
    return facts | {"steps": ", ".join(texts) or "none"}


def _costs(part: _Part) -> dict[str, str]:
    attrs, passes = part.data.attrs, getattr(part.result, "n_passes_", None)
    return {
        "result": part.heading,
        "learner": attrs.get("estimator", ""),
        "measure": attrs.get("scoring", ""),
        "solver": attrs.get("solver", ""),
        "passes": "" if passes is None else f"{passes:g}",
        "seconds": f"{attrs['seconds']:.3g}" if "seconds" in attrs else "",
        "made by": attrs.get("created_by", ""),
    }


def _parameters(parts: Sequence[_Part]) -> Table:
    """All parameters of the learners, "searched" if a grid has the values; a column for results of equal parameters."""
    columns: dict[str, tuple[list[str], dict[str, str]]] = {}
    for part in parts:
        values = {name: plain_repr(value).strip("\"'") for name, value in part.parameters.items()}
        values |= dict.fromkeys(json.loads(part.data.attrs.get("parameters_searched", "[]")), "searched")
        if part.parameters:
            columns.setdefault(repr(sorted(values.items())), ([], values))[0].append(part.heading)
    frame = pd.DataFrame({", ".join(headings): values for headings, values in columns.values()}).fillna("")
    return Table(frame.rename_axis("parameter").reset_index())


# --- code that repeats the work ------------------------------------------------------------------------------------


class _NotCodeError(ValueError):
    """A value that no Python literal gives, such as a callable."""


def _opening(
    origin: Mapping[str, Any], n_kernels: int, saved: str, samples: str, kernels: str, further: Sequence[str] = ()
) -> list[str]:
    """Code that opens the set of a result as K; `samples` and `kernels` of a part are attributes of what is `saved`."""
    place, labels = (str(origin.get(name, "")) for name in ("set", "labels"))
    if origin.get("source") == "changed":
        raise _NotCodeError
    opened = f"dmkl.open({_literal(place) if place else '...'})"
    opened += f".with_labels({'...' if labels == '...' else _literal(labels)})" if labels else ""
    lines = ["import dmkl", *further, "", f"K = {opened}  # {count(n_kernels, 'kernel')}"]
    if origin.get("source") != "part":
        return lines
    return [
        *["import dmkl", "import pandas as pd", *lines[1:], f"result = {saved}"],
        f"rows = pd.Index(K.samples.astype(str)).get_indexer(result.{samples})",
        f"K = K[rows, rows].select(list(result.{kernels}))",
    ]


def _predicting(model: KernelLearner, source: str, origin: Mapping[str, Any], best: str = "") -> list[Section]:
    """Code and a command that predict by a saved model: further samples of its set, or else those of training.

    `best` is the attribute of what is saved at `source` that is the model. Models that take covariates or offsets of
    new samples have none, nor those of sets in memory.
    """
    further = any(isinstance(step, Covariates) for step in as_steps(getattr(model, "steps", ())))
    further |= getattr(model, "offset", None) is not None
    if origin.get("source") not in ("whole", "part") or not origin.get("set") or further:
        return []
    path, place, n = source or "model", str(origin["set"]), model.n_features_in_
    every = origin.get("n_samples", n) == n
    note = "" if source else f"The model is there after {best or 'model'}.save({path!r}). "
    note += f"New samples are in a set of their own, instead of {place}, whose columns are the samples of training."
    command = ["dmkl", "predict", path, place, *(["--rows", f"0:{n}"] if every else [])]
    loaded = f"dmkl.load({_literal(path)}){f'.{best}' if source and best else ''}"
    lines = lines_that_predict(loaded, f"dmkl.open({_literal(place)})", every=every)
    return [Section(_USED, (note,), code=lines), Section(_TYPED, code=shlex.join(command))]


def _called_again(result: Result, source: str) -> list[Section]:
    """Code that repeats a result; empty if there is none, or its result would differ."""
    data = result.data
    call = json.loads(data.attrs.get("asked", "null"))
    if call is None or call["source"] == "changed":  # an old result without folds, or kernels changed by steps
        return []
    try:
        function, codes, given = _question_of(result, call)
        learner = _call(model_class(str(data.attrs["estimator"])), json.loads(data.attrs["parameters"]))
        given |= {name: call[name] for name in ("scoring", "unknown")}
        defaults = {name: item.default for name, item in signature(getattr(dmkl, function)).parameters.items()}
        codes |= {name: _literal(value) for name, value in given.items() if value != defaults[name]}
    except (ValueError, TypeError, KeyError):  # _NotCodeError, a value that `encode` has not written, an old result
        return []
    codes |= {"groups": "result.data.sample_group"} if call["groups"] else {}
    arguments = [learner, "K", *(["y"] if call["y"] else []), *(f"{name}={code}" for name, code in codes.items())]
    splitters = sorted({code.split("(")[0] for code in codes.values()}.intersection(sklearn.model_selection.__all__))
    further = [f"from sklearn.model_selection import {', '.join(splitters)}"] if splitters else []
    saved = f"dmkl.load({_literal(source) if source else '...'})  # this result"
    lines = _opening(call, data.sizes["kernel"], saved, "data.sample", "data.kernel.values", further)
    if call["source"] == "whole" and any(code.startswith("result.") for code in codes.values()):
        lines.append(f"result = {saved}")
    lines += ["y = ...  # the labels, in the order of the samples of K"] if call["y"] else []
    return [Section(_AGAIN, code="\n".join([*lines, f"dmkl.{function}({', '.join(arguments)})"]))]


def _question_of(result: Result, call: Mapping[str, Any]) -> tuple[str, dict[str, str], dict[str, Any]]:
    """The function that made a result, its folds and blocks as code, and other arguments as `encode` writes them."""
    data, folds = result.data, _splitter_code(result.data)
    if isinstance(result, SearchResult):
        given = {"grid": encode(result.grid_asked), "rule": result.rule}
        default = "fold" if data.sizes["fold"] > 1 and "test_score" in data else "joint"
        given |= {"choice": choice} if (choice := data.attrs.get("choice", default)) != default else {}
        return "search", {"cv": folds or "result.folds"}, given
    if isinstance(result, EvaluationResult):
        search = next(iter(result.searches.values()))
        inner = _splitter_code(search.scores)
        if inner is None:
            raise _NotCodeError
        nested = {"outer": folds or "result.folds"} | ({} if inner == folds == _literal(SPLITS) else {"inner": inner})
        return "evaluate", nested, {"grid": encode(search.grid_asked), "rule": search.rule}
    if isinstance(result, Stability):
        return "stability", {}, call["options"]
    if folds is None or not isinstance(result, Importance | PermutationTest):
        raise _NotCodeError
    codes = {"cv": folds} | ({"blocks": "result.data.sample_block"} if "sample_block" in data else {})
    function = "importance" if isinstance(result, Importance) else "permutation_test"
    return function, codes, {"grid": call["grid"], **call["options"]}


def _splitter_code(scores: xr.Dataset) -> str | None:
    """Python code for the folds of a result; None if there is none, and its stored positions are needed."""
    text = str(scores.attrs.get("splitter", ""))
    if text == SPLITS:
        return _literal(text)
    name, positional, values = parse_call(text)  # of a file: only values are taken from it
    if positional or name not in sklearn.model_selection.__all__:
        return None
    is_random = values.get("random_state", 0) is None and values.get("shuffle", True)
    return None if is_random else f"{name}({', '.join(f'{key}={plain_repr(value)}' for key, value in values.items())})"


def _describe_folds(scores: xr.Dataset) -> str:
    """The number of folds, the splitter that made them, and the groups."""
    call = json.loads(scores.attrs.get("asked", "{}"))
    made_by = {"": "", SPLITS: ", stored splits"}.get(splitter := scores.attrs.get("splitter", ""), f", {splitter}")
    by = call.get("groups")
    grouped = f", groups {'as given' if by == 'given' else f'from {by}'}" if by else ""
    return f"{scores.sizes['fold']}{made_by}{grouped}"


def _call(kind: type[KernelLearner] | None, parameters: dict[str, Any]) -> str:
    """The call that makes a learner from parameters that `encode` wrote."""
    if kind is None or not kind.__module__.startswith("dmkl."):  # of another package
        raise _NotCodeError
    parameters = {name: encode(value) for name, value in decode_parameters(kind, parameters).items()}
    default = {name: encode(value) for name, value in kind().get_params(deep=False).items()}
    given = {name: value for name, value in parameters.items() if value != default.get(name)}
    if given.keys() - default.keys():  # of a newer dmkl, or no names at all
        raise _NotCodeError
    return f"dmkl.{kind.__name__}({', '.join(f'{name}={_literal(value)}' for name, value in given.items())})"


def _literal(value: Any) -> str:
    """Python code for a value that `encode` wrote; _NotCodeError if there is none, as for a callable."""
    if isinstance(value, dict):
        if "mapping" in value:
            return f"{{{', '.join(f'{_literal(key)}: {_literal(item)}' for key, item in value['mapping'])}}}"
        if "solver" in value:
            solver = decode(value)  # which has no other options than those of its class
            options = [f"{name}={_literal(encode(option))}" for name, option in vars(solver).items()]
            return f"dmkl.{type(solver).__name__}({', '.join(options)})"
        if "float" in value:
            return f'float("{float(value["float"])}")'
        raise _NotCodeError
    if isinstance(value, list):
        return f"[{', '.join(map(_literal, value))}]"
    return plain_repr(value)
