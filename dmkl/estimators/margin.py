"""What learners with support vector machines share: binary problems, solving them side by side, votes."""

from __future__ import annotations

import itertools
import warnings
from abc import abstractmethod
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Protocol, Self, TypeVar

import numpy as np
import numpy.typing as npt
import xarray as xr

from dmkl import settings
from dmkl.errors import ConvergenceWarning, InputError
from dmkl.estimators.base import KernelClassifier, TrainingSet
from dmkl.kernelset import KernelSet
from dmkl.numerics.fisher import Targets
from dmkl.passes.view import Lens
from dmkl.solvers.driver import drive
from dmkl.solvers.outcome import Status
from dmkl.solvers.requests import SVM, EachProduct, Solver

__all__ = ["MarginProblems", "Multiclass", "_MarginClassifier", "fit_side_by_side", "on_rows"]

Array = npt.NDArray[Any]
Float = npt.NDArray[np.float64]
Index = npt.NDArray[np.int64]
Multiclass = Literal["ovr", "ovo"]
Result = TypeVar("Result")


class MarginResult(Protocol):
    """What the solver of a binary problem returns."""

    u: Float
    bias: float
    status: Status
    steps: list[Any]

    @property
    def objective(self) -> float:
        """Of the pair that is returned."""

    @property
    def gap(self) -> float:
        """The proven relative gap."""


@dataclass(frozen=True)
class MarginProblems:
    """A classification problem as binary ones.

    Parameters
    ----------
    dim
        "class" (one class against the rest, or the second of two), "pair" (one class against another) or "task".
    names
        Of the problems, along that dimension.
    signs
        y of each, 1 and −1.
    rows
        The samples of each; all where None.
    """

    dim: str
    names: Array
    signs: tuple[Float, ...]
    rows: tuple[Index | None, ...]

    @classmethod
    def of(cls, targets: Targets, tasks: Array | None, multiclass: Multiclass) -> Self:
        """Cut targets into binary problems."""
        columns = [column for h in targets.problems for column in h.T]
        signs = tuple(np.where(column > 0, 1.0, -1.0) for column in columns)
        everything = (None,) * len(signs)
        if targets.kind == "multilabel":
            assert tasks is not None
            return cls("task", tasks, signs, everything)
        if targets.kind == "binary":
            return cls("class", targets.classes[1:], signs, everything)
        if multiclass == "ovr":
            return cls("class", targets.classes, signs, everything)
        pairs = list(itertools.combinations(range(len(targets.classes)), 2))
        names = np.array([f"{targets.classes[a]} or {targets.classes[b]}" for a, b in pairs])
        rows = tuple(np.flatnonzero((signs[a] > 0) | (signs[b] > 0)) for a, b in pairs)
        # The first of the two is the positive one, as the machine's sign is read below.
        return cls("pair", names, tuple(signs[a][r] for (a, _), r in zip(pairs, rows, strict=True)), rows)


def on_rows(solver: Solver[Result], rows: Index, n_samples: int) -> Generator[Any, Any, Result]:
    """A solver of a problem over some samples, as one over all: what it asks for is about those alone."""
    answer: Any = None
    while True:
        try:
            request = solver.send(answer)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]
        if isinstance(request, SVM):
            answer = yield replace(request, rows=rows)
        else:
            assert isinstance(request, EachProduct)
            block = np.zeros((n_samples, request.block.shape[1]))
            block[rows] = request.block
            answer = (yield EachProduct(block))[:, rows]


class _MarginClassifier(KernelClassifier):
    """Support vector machines on weighted sums of kernels, one for each binary problem, with weights of its own."""

    multiclass: Multiclass
    tol: float
    max_iter: int

    _WEIGHTS: ClassVar[str]
    """The attribute of a solution that holds the weights."""

    # --- what a subclass says ------------------------------------------------------------------------------------

    @abstractmethod
    def _solvers(self, problems: MarginProblems, K: KernelSet) -> list[Solver[Any]]:
        """A solver for each problem.

        Raises
        ------
        InputError
            If a parameter breaks a rule.
        """

    def _own_passes(self) -> int:
        """Passes that making the solvers took, which no other fit shares."""
        return 0

    # --- fitting -------------------------------------------------------------------------------------------------

    def fit(self, K: KernelSet, y: npt.ArrayLike | None = None) -> Self:
        """Learn weights and machines.

        Parameters
        ----------
        K
            The training kernels, ``K[train, train]``.
        y
            (m,) integers or strings, two classes or more; (m, tasks) of 0 and 1 for independent binary problems. The
            labels stored with the kernels where missing.

        Raises
        ------
        InputError
            If a parameter, the labels or the kernels break a rule.
        IndefiniteKernelError
            If a kernel proves not to be positive semidefinite.
        """
        fit_side_by_side([self], [K], [y])
        return self

    def _check_parameters(self) -> None:
        if self.multiclass not in ("ovr", "ovo"):
            msg = f"multiclass must be 'ovr' (one against the rest) or 'ovo' (one against one), got {self.multiclass!r}"
            raise InputError(msg)
        if not self.tol > 0:
            msg = f"tol must be positive, got {self.tol!r}"
            raise InputError(msg)
        if not self.max_iter >= 1:
            msg = f"max_iter must be at least 1, got {self.max_iter!r}"
            raise InputError(msg)

    def _keep(self, problems: MarginProblems, solutions: Sequence[MarginResult], n_passes: int) -> None:
        """Set the fitted attributes, and warn where the gap is open."""
        names, samples = np.array(self.kernel_names_, dtype=str), self.train_samples_
        dim = problems.dim
        labels = problems.names.astype(str) if problems.names.dtype.kind in "OU" else problems.names
        u = np.zeros((len(samples), len(solutions)))
        for k, (solution, rows) in enumerate(zip(solutions, problems.rows, strict=True)):
            u[slice(None) if rows is None else rows, k] = solution.u
        weights = np.stack([getattr(solution, self._WEIGHTS) for solution in solutions], axis=1)
        single = self.kind_ == "binary"
        self.weights_ = xr.DataArray(
            weights[:, 0] if single else weights,
            dims=("kernel",) if single else ("kernel", dim),
            coords={"kernel": names} | ({} if single else {dim: labels}),
            name="weight",
        )
        self.dual_coef_ = xr.DataArray(
            u, dims=("sample", dim), coords={"sample": samples, dim: labels}, name="dual_coef"
        )

        def labelled(values: Float, name: str) -> xr.DataArray:
            return xr.DataArray(values, dims=(dim,), coords={dim: labels}, name=name)

        self.intercept_ = labelled(np.array([solution.bias for solution in solutions]), "intercept")
        gaps = np.array([solution.gap for solution in solutions])
        objectives = np.array([solution.objective for solution in solutions])
        self.gap_ = float(gaps[0]) if single else labelled(gaps, "gap")
        self.objective_ = float(objectives[0]) if single else labelled(objectives, "objective")
        worst = int(np.argmax(gaps))
        self.status_ = solutions[worst].status.advice
        self.n_iter_ = max(len(solution.steps) for solution in solutions)
        self.n_passes_ = n_passes
        history = self._history(solutions, names, dim)
        self.history_ = history.isel({dim: 0}) if single else history.assign_coords({dim: labels})
        if solutions[worst].status is not Status.CERTIFIED:
            where = "" if single else f" ({dim} {labels[worst]})"
            warnings.warn(
                f"{type(self).__name__} ended with a relative gap of {gaps[worst]:.2e}{where}, above tol={self.tol:g}. "
                f"{self.status_}",
                ConvergenceWarning,
                stacklevel=4,
            )

    _STEP: ClassVar[tuple[str, ...]]
    """What history notes of a step, beside its weights."""

    def _history(self, solutions: Sequence[MarginResult], kernels: Array, dim: str) -> xr.Dataset:
        """One row a weighting; shorter histories end in NaN."""
        length = max(len(solution.steps) for solution in solutions)
        table = {name: np.full((len(solutions), length), np.nan) for name in self._STEP}
        weights = np.full((len(solutions), length, len(kernels)), np.nan)
        for k, solution in enumerate(solutions):
            for r, step in enumerate(solution.steps):
                for name, values in table.items():
                    values[k, r] = getattr(step, name)
                weights[k, r] = getattr(step, self._WEIGHTS)
        return xr.Dataset(
            {name: ((dim, "iteration"), values) for name, values in table.items()}
            | {"weight": ((dim, "iteration", "kernel"), weights)},
            coords={"iteration": np.arange(1, length + 1), "kernel": kernels},
        )

    # --- predicting ----------------------------------------------------------------------------------------------

    def _class_scores(self, scores: xr.DataArray) -> xr.DataArray:
        """Of pairs, the votes of each class; a fraction of a vote, by the sum of its distances, breaks ties."""
        if scores.dims[-1] != "pair":
            return scores
        pairs = np.array(list(itertools.combinations(range(len(self.classes_)), 2)))
        values = scores.values
        votes, sums = np.zeros((2, len(values), len(self.classes_)))
        for column, (a, b) in zip(values.T, pairs, strict=True):
            votes[:, a] += column > 0
            votes[:, b] += column <= 0
            sums[:, a] += column
            sums[:, b] -= column
        return xr.DataArray(
            votes + sums / (3.0 * (np.abs(sums) + 1.0)),
            dims=("sample", "class"),
            coords={"sample": scores.sample.values, "class": self.classes_},
            name="score",
        )

    # --- saving --------------------------------------------------------------------------------------------------

    def _more_state(self) -> dict[str, Any]:
        plain = {name: np.asarray(getattr(self, name)).tolist() for name in ("gap_", "objective_")}
        return {**plain, "status_": self.status_, "n_iter_": self.n_iter_, "n_passes_": self.n_passes_}

    def _set_more_state(self, state: dict[str, Any]) -> Self:
        dim = self.dual_coef_.dims[1]
        for name in ("gap_", "objective_"):
            if isinstance(state[name], list):
                state[name] = xr.DataArray(
                    np.array(state[name]), dims=(dim,), coords={dim: self.dual_coef_[dim].values}, name=name.rstrip("_")
                )
        return super()._set_more_state(state)


def fit_side_by_side(
    models: Sequence[_MarginClassifier], sets: Sequence[KernelSet], labels: Sequence[npt.ArrayLike | None]
) -> int:
    """Fit estimators on sets of rows of the same kernels: every pass serves all of their problems.

    Parameters
    ----------
    models
        Fitted in place, as by `fit`.
    sets, labels
        What each is fitted on.

    Returns
    -------
    int
        The passes that all took together.
    """
    for model in models:
        model._check_parameters()
    trainings = KernelClassifier._trainings(models, sets, labels)
    jobs: list[tuple[Lens, Solver[Any]]] = []
    cut: list[MarginProblems] = []
    for model, training in zip(models, trainings, strict=True):
        problems = MarginProblems.of(training.targets, model.tasks_, model.multiclass)
        cut.append(problems)
        jobs += _jobs(model, training, problems)
    # Each has a column in a pass: no more of them at once than ride one.
    found, passes = drive(jobs, lanes=settings.block_width())
    first = 0
    for model, training, problems in zip(models, trainings, cut, strict=True):
        solutions = found[first : first + len(problems.names)]
        first += len(problems.names)
        model._keep(problems, solutions, training.n_passes + passes + model._own_passes())
    return trainings[0].n_passes + passes + sum(model._own_passes() for model in models)


def _jobs(model: _MarginClassifier, training: TrainingSet, problems: MarginProblems) -> list[tuple[Lens, Solver[Any]]]:
    K = training.kernels
    lens, n_samples = K.lens(), K.shape[1]
    return [
        (lens, solver if rows is None else on_rows(solver, rows, n_samples))
        for solver, rows in zip(model._solvers(problems, K), problems.rows, strict=True)
    ]
