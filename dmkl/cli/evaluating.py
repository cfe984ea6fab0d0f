"""`dmkl evaluate`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from rich.table import Table

import dmkl
from dmkl.cli.cluster import computing_on
from dmkl.cli.grids import (
    FOLDS,
    Costs,
    Grid,
    Groups,
    Norms,
    Ridges,
    RuleName,
    Scoring,
    chains_to_try,
    grid_values,
    rule_of,
)
from dmkl.cli.learners import DEFAULT, make_learner
from dmkl.cli.options import (
    Cluster,
    DropClasses,
    Json,
    Kernels,
    Memory,
    Overwrite,
    Restart,
    Result,
    Split,
    State,
    Store,
    Train,
    Unknown,
    Workers,
    option,
)
from dmkl.cli.output import console, print_json, say, say_aside, show
from dmkl.cli.parsing import parse_cv, parse_scoring
from dmkl.cli.resuming import resuming, state_of
from dmkl.cli.samples import open_kernels, read_groups, training_samples
from dmkl.cli.tables import choices_table, classes_table, confusion_table, evaluation_as_mapping
from dmkl.files.urls import as_place
from dmkl.searching.texts import count

if TYPE_CHECKING:
    from dmkl.searching.evaluation import EvaluationResult

__all__ = ["evaluate"]


def evaluate(
    store: Store,
    out: Result,
    model: str = DEFAULT,
    kernels: Kernels = None,
    p: Norms = None,
    lam: Ridges = None,
    C: Costs = None,
    grid: Grid = None,
    outer: Annotated[
        str | None,
        option(
            'Folds that test: a number, a splitter of scikit-learn such as "GroupKFold(5)", or "splits" (the test '
            "samples of the stored ones). [default: 5]",
            "FOLDS",
            panel=FOLDS,
        ),
    ] = None,
    inner: Annotated[
        str | None,
        option(
            "Folds that choose, in the training samples of each outer fold: a number or a splitter. [default: 3; of "
            "splits their validation samples]",
            "FOLDS",
            panel=FOLDS,
        ),
    ] = None,
    groups: Groups = None,
    scoring: Scoring = None,
    rule: RuleName = "best",
    baselines: Annotated[
        Literal["sum", "none"],
        option(
            "What to evaluate beside it, to compare with: the plain *sum* of the kernels, or *none*.",
            panel=FOLDS,
        ),
    ] = "sum",
    split: Split = None,
    train: Train = None,
    unknown: Unknown = None,
    drop_classes_below: DropClasses = 0,
    state: State = None,
    restart: Restart = False,
    overwrite: Overwrite = False,
    as_json: Json = False,
    cluster: Cluster = None,
    workers: Workers = None,
    memory: Memory = None,
    **parameters: Any,
) -> None:
    """Estimate how good a learner is on new samples, its parameters chosen from a grid, by nested cross-validation.

    In each outer fold the inner folds choose a point of the grid, and the model trained there is scored on samples that
    no choice has seen. Steps are tried as by dmkl search. All samples take part unless --split or --train say
    otherwise. After an interruption the same command goes on with what it keeps in OUT.partial, or in --state.

    Examples
    --------
        dmkl evaluate kernels.zarr estimate
        dmkl evaluate kernels.zarr estimate --outer 10 --inner 5 --scoring balanced_accuracy,matthews
        dmkl evaluate kernels.zarr estimate --groups subjects.txt
        dmkl evaluate kernels.zarr estimate --outer splits
    """
    from dmkl.searching.evaluation import FORMAT
    from dmkl.searching.state import remove_state

    place = as_place(out)
    folder = state_of(place, "an evaluation", FORMAT, state, overwrite=overwrite)
    K = open_kernels(store, kernels)
    estimator = make_learner(model, parameters, K)
    values, note = chains_to_try(estimator, K, grid_values(estimator, K, p, lam, C, grid), parameters.get("steps"))
    chosen, on = training_samples(K, split, train, split is None and train is None, drop_classes_below)
    known_groups = None if groups is None else read_groups(groups, K.samples, chosen)
    if note:
        say_aside("note", note)
    if restart:
        remove_state(folder)
    with resuming(folder), computing_on(cluster, reading=K, state=folder, workers=workers, memory=memory):
        result = dmkl.evaluate(
            estimator,
            K[chosen, chosen],
            None,
            values,
            outer=None if outer is None else parse_cv(outer, "--outer"),
            inner=None if inner is None else parse_cv(inner, "--inner"),
            scoring=parse_scoring(scoring),
            groups=known_groups,
            unknown=unknown,
            rule=rule_of(rule),
            baselines=baselines,
            state=folder,
        )
        result.save(place, overwrite=overwrite)
    remove_state(folder)
    if as_json:
        print_json({"path": out, "samples": len(chosen), **evaluation_as_mapping(result)})
        return
    first, *more = result.summary().splitlines()
    say(f"{first}, on {count(len(chosen), 'sample')} ({on})", style="bold")
    console().print()
    show(choices_table(result), *_by_class(result))
    console().print()
    for line in more:
        say(line)
    say(f"Saved in {out}; dmkl.load reads it.")


def _by_class(result: EvaluationResult) -> list[Table]:
    """Measures of each class, and which is taken for which, where there are classes."""
    if "confusion" not in result.scores:
        return []
    matrix = confusion_table(result.confusion)
    return [classes_table(result.classes), *([] if matrix is None else [matrix])]
