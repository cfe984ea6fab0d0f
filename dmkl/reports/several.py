"""The page of several results on the same data: question, data, answer, evidence, and how it was computed."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from dmkl.arrays import plain_repr
from dmkl.errors import refuse
from dmkl.estimators.learner import KernelLearner
from dmkl.estimators.saving import decode_parameters, models
from dmkl.inference.importance import Importance
from dmkl.inference.permutation import PermutationTest, p_value_text
from dmkl.inference.stability import Stability
from dmkl.numerics.steps import STEPS, as_steps
from dmkl.reports.page import Page, Section, sentences
from dmkl.searching.evaluation import EvaluationResult
from dmkl.searching.search import GridResult, SearchResult
from dmkl.searching.texts import count, listed

_HEADINGS: dict[type[Any], str] = {
    SearchResult: "Search",
    KernelLearner: "Model",
    EvaluationResult: "Score on new samples",
    PermutationTest: "Permuted labels",
    Stability: "Stability",
    Importance: "Importance",
}
"""The kinds of results in the order of a page: the answer, then the evidence; others follow."""
_MOST_NAMES = 12


@dataclass
class _Part:
    """A result, with what the page says of it."""

    result: Any
    page: Page
    heading: str
    data: xr.Dataset
    kernels: list[str]
    samples: list[str]
    parameters: dict[str, Any]

    @classmethod
    def of(cls, result: Any, page: Page) -> _Part:
        kernels: Any
        samples: Any
        heading = next((name for kind, name in _HEADINGS.items() if isinstance(result, kind)), page.title)
        if isinstance(result, KernelLearner):
            data = xr.Dataset(attrs={"estimator": type(result).__name__, "solver": getattr(result, "solver_", "")})
            kernels, samples, parameters = result.kernel_names_, result.train_samples_, result.get_params(deep=False)
        else:
            data = result.scores if isinstance(result, GridResult) else result.data
            kernels, samples = data["kernel"].values, data["sample"].values if "sample" in data else []
            learner, written = models().get(data.attrs.get("estimator", "")), data.attrs.get("parameters", "{}")
            parameters = {} if learner is None else decode_parameters(learner, json.loads(written))
        return cls(result, page, heading, data, [*map(str, kernels)], [*map(str, samples)], dict(parameters))


def compose(results: Sequence[Any], page_of: Callable[[Any], Page], describe_folds: Callable[..., str]) -> Page:
    """One page of several results, in any order, from the page of each and the description of its folds."""
    if not results:
        refuse("a report of several results needs one at least, got none; give models or results")
    parts = [_Part.of(result, page_of(result)) for result in results]
    order = [*_HEADINGS.values()]
    parts.sort(key=lambda part: order.index(part.heading) if part.heading in order else len(order))
    names = [part.heading for part in parts]
    for k, part in enumerate(parts):
        part.heading += f" {names[: k + 1].count(part.heading)}" if names.count(part.heading) > 1 else ""
    first, *others = parts
    warnings = [text for part in others for text in _differences(first, part)]
    # An evaluation of the same search answers the question that a warning of the search raises.
    evaluated = not warnings and any(isinstance(part.result, EvaluationResult) for part in parts)
    warnings += [text for part in parts for text in part.page.warnings if not (evaluated and "dmkl.evaluate" in text)]
    sections: list[Section] = []
    for part in parts:
        own = [*([] if part.page.lead is None else [part.page.lead]), *part.page.sections]
        own = [replace(section, title=f"{part.heading}: {section.title}") for section in own]
        if part is not first and own:
            own[0] = replace(own[0], texts=(part.page.answer, *own[0].texts))
        sections += own
    facts = {
        "question": "; ".join(f"{part.heading}: {next(iter(part.page.facts.values()))}" for part in parts),
        **_describe_data(parts),
        "folds": "; ".join(f"{p.heading}: {describe_folds(p.data)}" for p in parts if "fold" in p.data.sizes),
    }
    return Page(
        f"{first.data.attrs.get('estimator', first.heading)} on {count(len(first.kernels), 'kernel')} of "
        f"{count(len(first.samples), 'sample')}",
        " ".join([first.page.answer, *(sentence for part in others for sentence in _evidence(part.result))]),
        {name: text for name, text in facts.items() if text},
        tuple(dict.fromkeys(warnings)),
        (
            *(section for section in sections if not section.code),
            Section("How it was computed", table=pd.DataFrame(map(_costs, parts))),
            Section("Parameters", table=_parameters(parts), named=True),
            *(section for section in sections if section.code),
        ),
    )


def _evidence(result: Any) -> list[str]:
    """The sentence that a result adds to the answer."""
    if isinstance(result, EvaluationResult):
        return [sentences(result.summary().splitlines()[1:2])]
    if isinstance(result, PermutationTest) and result.data["p_value"].ndim == 0:
        return [f"Against permuted labels: {p_value_text(result.data)}."]
    return []


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
    first, facts = parts[0], {"samples": f"{len(parts[0].samples):,}"}
    for name, noun in (("sample_group", "group"), ("sample_block", "block")):
        values = next((part.data[name].values for part in parts if name in part.data), None)
        facts["samples"] += "" if values is None else f", in {count(len(np.unique(values)), noun)}"
    tested = next((part.result.confusion for part in parts if "confusion" in part.data), None)
    classes = getattr(getattr(first.result, "best_", first.result), "classes_", ())
    if tested is not None and "task" not in tested.dims:
        sizes = tested.sum("predicted").to_series()
        classes = [f"{name} ({size:,} tested)" for name, size in sizes.items()]
    facts |= {"classes": listed(classes, _MOST_NAMES), "kernels": listed(first.kernels, _MOST_NAMES)}
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


def _parameters(parts: Sequence[_Part]) -> pd.DataFrame:
    """All parameters of the learners, "searched" if a grid has the values; a column for results of equal parameters."""
    columns: dict[str, tuple[list[str], dict[str, str]]] = {}
    for part in parts:
        values = {name: plain_repr(value).strip("\"'") for name, value in part.parameters.items()}
        values |= dict.fromkeys(json.loads(part.data.attrs.get("parameters_searched", "[]")), "searched")
        if part.parameters:
            columns.setdefault(repr(sorted(values.items())), ([], values))[0].append(part.heading)
    frame = pd.DataFrame({", ".join(headings): values for headings, values in columns.values()}).fillna("")
    return frame.rename_axis("parameter").reset_index()
