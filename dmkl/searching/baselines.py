"""What a search is compared with: the plain sum of all kernels, the SVM on it, and single kernels.

The sum and the single kernels are further fits in the passes of the search; the SVM is a plan of its own after it.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

import numpy as np
import xarray as xr

from dmkl import settings
from dmkl.arrays import Index
from dmkl.errors import IndefiniteKernelError, InputError, MemoryBudgetError
from dmkl.estimators.engine import run
from dmkl.estimators.plan import Answers, Fit, Plan
from dmkl.files.arrays import load_arrays, save_arrays
from dmkl.passes.execute import check_memory, machine
from dmkl.progress import PHASES
from dmkl.searching.choice import Choice
from dmkl.searching.dataset import as_dataset
from dmkl.searching.fits import GridFits, Question, as_grid_fits, grid_fits, working
from dmkl.searching.grid import points
from dmkl.solvers.workspace import Workspace

__all__ = [
    "ALONE",
    "COSTS",
    "FEW",
    "MACHINE",
    "SUM",
    "TRIED",
    "Baselines",
    "PlainSum",
    "fit_beside_sum",
    "named",
    "search_beside_baselines",
]

Baselines = Literal["sum", "all", "none"]

SUM, MACHINE, ALONE = "sum", "svm", "alone"
"""What the names of their scores begin with: all kernels alike, the SVM on that sum, each kernel alone."""

COSTS = (1.0, 4.0, 16.0)
"""C of the support vector machine on the sum, in units of the inverse mean diagonal of the sum."""

FEW, TRIED = 10, 5
"""Up to so many kernels all are tried alone, in the passes of the search; of more the second number of them, after it.
Each takes directions of its own in the spaces of a search."""


def search_beside_baselines(
    question: Question, choice: Choice, state: str | Path | None, which: Literal["sum", "all"]
) -> tuple[GridFits, xr.Dataset]:
    """Fit a grid on every fold as `fit_grid` does, and beside it the baselines.

    The sum of all kernels, each with weight one, and with "all" each kernel alone, are fitted at every value of the
    parameters that do not concern weights (λ, C, the steps …), by the same solver, on the same folds. All of them ride
    the passes of the search, and come after its own fits: a state goes on with more or fewer of them. Of more than
    `FEW` kernels, the `TRIED` that it gives most weight are tried after it, in its spaces. Kernels alone take few
    passes, but as many solutions as there are kernels, at each λ and fold, that have little in common with those of the
    grid: seconds grow by a multiple.

    Beside a discriminant the support vector machine on the sum is fitted too, at the C of `COSTS`, in three or four
    passes after the search. It is left out, and the attribute "svm_left_out" says why, where the machines need more
    memory or passes than `_check_machines` allows.

    Returns
    -------
    GridFits
        Of the search; passes, rounds and phases are those of everything.
    Dataset
        What is told of the baselines, by names that begin with "sum_", "svm_" (over C) and "alone_" (over kernel, NaN
        where one was not tried), and the attribute n_baseline_passes: those that began after the search. Empty where
        the learner has no plain sum.
    """
    plain, alone = _plain(question), which == "all"
    later = alone and len(question.K) > FEW
    with ExitStack() as stack:
        if state is None and plain is not None and later:
            # What the search has found is gone on from, so that it is kept all the same, to the end.
            state = Path(stack.enter_context(TemporaryDirectory(prefix="dmkl-"))) / "state"
        workspace = stack.enter_context(working(question, state))
        rows = _Rows(question, plain, alone=alone and not later)
        answers = run(Plan(question.K, rows.fits, duals=False), workspace)
        if plain is None:
            return as_grid_fits(question, answers), xr.Dataset()
        n_passes, tried = answers.tally.n_passes, np.ones((len(question.folds), len(question.K)), dtype=bool)
        if later:
            tried = _most_weight(question, as_grid_fits(question, rows.searched(answers)), choice)
            rows.add_alone(np.flatnonzero(tried.any(axis=0)))
            before = answers.tally.phases
            answers = run(Plan(question.K, rows.fits, duals=False), workspace)
            answers.tally.phases = {name: spent + before[name] for name, spent in answers.tally.phases.items()}
        machines, left_out = _machines_on_sum(question, choice, workspace, answers)
    found = as_grid_fits(question, rows.searched(answers))
    told = [named(SUM, as_dataset(plain, as_grid_fits(plain, rows.of_sum(answers)), choice, 0.0))]
    if alone:
        told.append(named(ALONE, _of_kernels(plain, rows.alone(answers), choice, tried)))
    told += [] if machines is None else [machines]
    attrs = {"n_baseline_passes": found.n_passes - n_passes} | ({"svm_left_out": left_out} if left_out else {})
    return found, xr.merge(told, combine_attrs="drop").assign_attrs(attrs)


def _machines_on_sum(
    question: Question, choice: Choice, workspace: Workspace, answers: Answers
) -> tuple[xr.Dataset | None, str]:
    """What is told of the support vector machine on the sum, whose passes are added to `answers`; or why not."""
    m, n = max(len(fold.train) for fold in question.folds), len(question.K)
    # The diagonal of a kernel of unit trace is 1/m on average; other steps leave it near one.
    diagonal = n / m if "trace" in question.estimator._steps() else float(n)
    costs = tuple(float(f"{cost / diagonal:.3g}") for cost in COSTS)
    learner = question.estimator._machine_on_sum(costs[0])
    if learner is None:
        return None, ""
    asked = replace(question, estimator=learner, grid={"C": costs})
    try:
        _check_machines(asked)
        found = _kept_fits(asked, workspace.part(MACHINE))
    except (InputError, IndefiniteKernelError, MemoryBudgetError) as error:  # the search itself is done
        return None, str(error)
    tally = answers.tally
    tally.n_passes += found.n_passes
    tally.rounds += found.rounds
    tally.phases = {name: spent + found.phases[name] for name, spent in tally.phases.items()}
    return named(MACHINE, as_dataset(asked, found, choice, 0.0)), ""


def _kept_fits(question: Question, workspace: Workspace) -> GridFits:
    """Fit a grid on every fold; with a state that has all of it, without a pass.

    The scores of held-out rows are kept, which solvers of machines do not keep by themselves.
    """
    file = workspace.path / "scores-all.npz"
    n_points, n_folds = len(points(question.grid)), len(question.folds)
    if file.exists():
        kept = load_arrays(file)
        decisions = [[kept[f"decision-{f}-{k}"] for k in range(n_points)] for f in range(n_folds)]
        targets = [question.targets_of(fold.train) for fold in question.folds]
        solved = (kept["weights"], kept["gap"], kept["objective"], kept["status"])
        labels_from = [np.stack(some) for some in decisions]  # a machine has no rule but its scores
        n_passes, phases = float(kept["n_passes"]), dict.fromkeys(PHASES, 0.0)
        return GridFits(*solved, decisions, labels_from, targets, n_passes, [], phases, "own")
    found = as_grid_fits(question, run(Plan(question.K, grid_fits(question), duals=False), workspace))
    if not workspace.temporary:
        arrays = {
            name: np.asarray(getattr(found, name)) for name in ("weights", "gap", "objective", "status", "n_passes")
        }
        arrays |= {f"decision-{f}-{k}": one for f, some in enumerate(found.decisions) for k, one in enumerate(some)}
        save_arrays(file, arrays)
    return found


def _check_machines(question: Question) -> None:
    """Refuse machines that need more than a task's memory for their kernel matrix, or many passes.

    Kernels that fit in memory are read once, however many machines there are. Otherwise machines take two passes for
    each `settings.block_width` of them, and hold a sum of the kernels.

    Raises
    ------
    MemoryBudgetError
        If the sum does not fit.
    InputError
        If there would be more passes.
    """
    m, n, allowed = max(len(fold.train) for fold in question.folds), len(question.K), machine().task_bytes
    if 8 * (n + 4) * m**2 <= allowed:
        return
    check_memory("a support vector machine on the sum", {"matrices": 32 * m**2}, allowed, "")
    n_columns = 1 if question.targets.kind == "binary" else max(question.n_tasks, len(question.targets.classes))
    n_machines = len(COSTS) * len(question.folds) * n_columns
    if n_machines > settings.block_width():
        msg = f"its {n_machines:,} machines would take more than two passes over kernels that do not fit in memory"
        raise InputError(msg)


@dataclass(frozen=True, eq=False)
class PlainSum:
    """The question that a search asks of the sum of all kernels, and what became of it."""

    question: Question
    found: GridFits


def fit_beside_sum(question: Question, state: str | Path | None) -> tuple[GridFits, PlainSum | None]:
    """Fit a grid on every fold as `fit_grid` does, and in the same passes the sum of all kernels, each with weight one.

    None where the learner has no plain sum. Where the grid is of weights alone, the grid of the sum is the λ and the C
    that the learner has.
    """
    plain = _plain(question)
    if plain is not None and not plain.grid:
        own = plain.estimator.get_params(deep=False)
        plain = replace(plain, grid={name: (own[name],) for name in ("lam", "C") if name in own})
    with working(question, state, {"the baselines": "none" if plain is None else "sum"}) as workspace:
        rows = _Rows(question, plain, alone=False)
        answers = run(Plan(question.K, rows.fits, duals=False), workspace)
    found = as_grid_fits(question, rows.searched(answers))
    return found, None if plain is None else PlainSum(plain, as_grid_fits(plain, rows.of_sum(answers)))


def _plain(question: Question) -> Question | None:
    """The same question of the sum of all kernels; None where the learner has no such."""
    learner = question.estimator._of_plain_sum()
    if learner is None:
        return None
    known = set(learner.get_params(deep=False)) - set(learner._OF_WEIGHTS)
    return replace(
        question, estimator=learner, grid={name: values for name, values in question.grid.items() if name in known}
    )


class _Rows:
    """The rows of the plan: those of the search, of the sum, of each kernel alone; and which answers are whose."""

    def __init__(self, question: Question, plain: Question | None, *, alone: bool) -> None:
        self._plain = plain
        self.fits: list[Fit] = grid_fits(question)
        self._n_searched = len(self.fits)
        self._alone: dict[int, slice] = {}
        if plain is None:
            return
        self._targets = [fit.targets for fit in self.fits[:: len(question.models)]]
        self._sum = self._known(question, plain)
        if self._sum is None:
            self._sum = list(range(self._n_searched, self._n_searched + self._n_each))
            self.fits += grid_fits(plain, self._targets)
        if alone:
            self.add_alone(np.arange(len(question.K)))

    @property
    def _n_each(self) -> int:
        assert self._plain is not None
        return len(self._plain.models) * len(self._targets)

    def _known(self, question: Question, plain: Question) -> list[int] | None:
        """Rows of the search that are those of the sum already, as where its grid holds p = ∞; None if any is not."""
        texts = [(type(model), model._parameter_texts(question.K.names)) for model in question.models]
        wanted = [(type(model), model._parameter_texts(question.K.names)) for model in plain.models]
        if not all(one in texts for one in wanted):
            return None
        places = [texts.index(one) for one in wanted]
        return [f * len(texts) + place for f in range(len(self._targets)) for place in places]

    def add_alone(self, kernels: Index) -> None:
        """Each of these kernels alone."""
        assert self._plain is not None
        for kernel in kernels:
            self._alone[int(kernel)] = slice(len(self.fits), len(self.fits) + self._n_each)
            self.fits += grid_fits(self._plain, self._targets, np.array([kernel]))

    def searched(self, answers: Answers) -> Answers:
        """Answers to the rows of the search."""
        return replace(answers, fits=answers.fits[: self._n_searched])

    def of_sum(self, answers: Answers) -> Answers:
        """Answers to those of the sum."""
        assert self._sum is not None
        return replace(answers, fits=[answers.fits[place] for place in self._sum])

    def alone(self, answers: Answers) -> dict[int, Answers]:
        """Answers to those of each kernel."""
        return {kernel: replace(answers, fits=answers.fits[some]) for kernel, some in self._alone.items()}


def _most_weight(question: Question, found: GridFits, choice: Choice) -> np.ndarray:
    """Which kernels are tried alone, (fold, kernel): those with the largest share of weight at the smallest p.

    There weights tell most of single kernels. They are learnt from training rows alone, and where folds choose for
    themselves each has kernels of its own, so that nothing of rows that are tested on is known here.
    """
    p = np.array([point.get("p", 1.0) for point in points(question.grid)], dtype=np.float64)
    weights = found.weights[(p == p.min()) & question.fitted]
    total = weights.sum(axis=-1, keepdims=True)
    shares = (weights / np.where(total > 0, total, 1.0)).mean(axis=(0, 2))
    if choice == "joint":
        shares = np.broadcast_to(shares.mean(axis=0), shares.shape)
    places = np.argsort(-shares, axis=1, kind="stable")[:, :TRIED]
    tried = np.zeros(shares.shape, dtype=bool)
    np.put_along_axis(tried, places, True, axis=1)
    return tried


def _of_kernels(plain: Question, answers: dict[int, Answers], choice: Choice, tried: np.ndarray) -> xr.Dataset:
    """What is told of each kernel alone, over kernel."""
    names = list(plain.K.names)
    each = []
    for kernel, some in answers.items():
        scores = as_dataset(plain, as_grid_fits(plain, some), choice, 0.0)
        each.append(scores.where(xr.DataArray(tried[:, kernel], dims="fold"))[_told(scores)])
    coordinate = xr.Variable("kernel", np.array([names[kernel] for kernel in answers], dtype=str))
    found = xr.concat(each, coordinate, combine_attrs="drop")
    return found.reindex(kernel=np.array(names, dtype=str))


def _told(scores: xr.Dataset) -> list[str]:
    return [str(name) for name in scores.data_vars if str(name).startswith(("score", "test_score", "gap", "objective"))]


def named(what: str, scores: xr.Dataset) -> xr.Dataset:
    """Scores, gaps and objectives under names that say of what they are."""
    kept = _told(scores)
    return scores[kept].rename({name: f"{what}_{name}" for name in kept})
