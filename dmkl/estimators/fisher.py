"""What the Fisher discriminants share: parameters, fitting several together, the certificate, the history."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, ClassVar, Literal, Self

import numpy as np
import numpy.typing as npt
import xarray as xr

from dmkl.errors import ConvergenceWarning, InputError, MemoryBudgetError
from dmkl.estimators.base import KernelClassifier, TrainingSet
from dmkl.estimators.solving import Fit, basis_bytes, out_of_core, solve_together
from dmkl.kernelset import KernelSet
from dmkl.passes.combine import direct_bytes, fits_in_memory
from dmkl.passes.execute import machine
from dmkl.passes.view import View
from dmkl.solvers.fisher.descent import PartStep
from dmkl.solvers.fisher.subspace.problem import Finish
from dmkl.solvers.fisher.wrapper import Master, Solution
from dmkl.solvers.outcome import Status

__all__ = ["SolverName", "fit_together"]

Float = npt.NDArray[np.float64]
SolverName = Literal["auto", "direct", "cg", "subspace", "interleaved", "dual"]


class _FisherClassifier(KernelClassifier):
    """Fisher discriminant analysis on a weighted sum of kernels, the weights learnt in an ℓp ball."""

    finish: Finish = "auto"
    basis: int | str | None = None
    mu: float | None = None

    def __init__(
        self,
        lam: float | Sequence[float] = 1e-2,
        *,
        center: bool = True,
        normalize: str | None = "trace",
        solver: SolverName = "auto",
        tol: float = 1e-4,
        max_iter: int = 200,
    ) -> None:
        self.lam = lam
        self.center = center
        self.normalize = normalize
        self.solver = solver
        self.tol = tol
        self.max_iter = max_iter

    def _exponents(self) -> list[float]:
        """The norm, or one for each task."""
        raise NotImplementedError

    def _ridges(self) -> list[float]:
        """λ, or one for each task.

        Raises
        ------
        InputError
            If one is not positive and finite.
        """
        values = [float(value) for value in np.atleast_1d(np.asarray(self.lam, dtype=np.float64))]
        for value in values:
            if not (np.isfinite(value) and value > 0):
                msg = f"lam must be positive and finite, got {value!r}"
                raise InputError(msg)
        return values

    def _settings(self, n_problems: int) -> list[tuple[float, float]]:
        """(p, λ) of each problem.

        Raises
        ------
        InputError
            If there are several, and not one for each task.
        """
        found = []
        for name, values in (("p", self._exponents()), ("lam", self._ridges())):
            if len(values) not in (1, n_problems):
                msg = (
                    f"{name} has {len(values)} values and there are {n_problems} problems to solve; give one number, "
                    "or for a multilabel set one for each task"
                )
                raise InputError(msg)
            found.append(values * n_problems if len(values) == 1 else values)
        return list(zip(*found, strict=True))

    def _master(self) -> Master:
        return "newton"

    def _fit(self, K: KernelSet, y: npt.ArrayLike | None) -> Self:
        fit_together([self], [K], [y])
        return self

    def _check_parameters(self) -> None:
        self._exponents()
        self._ridges()
        if not self.tol > 0:
            msg = f"tol must be positive, got {self.tol!r}"
            raise InputError(msg)
        if not self.max_iter >= 1:
            msg = f"max_iter must be at least 1, got {self.max_iter!r}"
            raise InputError(msg)
        if self.solver not in self._SOLVERS:
            *others, last = map(repr, self._SOLVERS)
            msg = f"solver must be {', '.join(others)} or {last}, got {self.solver!r}"
            raise InputError(msg)
        if self.solver == "dual" and 1.0 in self._exponents():
            msg = (
                "solver='dual' follows the gradient of the dual, which does not exist at p = 1; take "
                "solver='interleaved', 'subspace', 'cg' or 'direct', or a p above 1, such as 1 + 2**-6"
            )
            raise InputError(msg)
        if self.mu is not None:
            if not (np.isfinite(self.mu) and self.mu > 0):
                msg = f"mu must be positive and finite, or None for weights of norm one, got {self.mu!r}"
                raise InputError(msg)
            if self.solver != "dual":
                msg = (
                    f"mu, a penalty on the weights instead of their norm, needs solver='dual', got {self.solver!r}; "
                    "take solver='dual', or mu=None"
                )
                raise InputError(msg)
        if self._master() not in ("newton", "taylor", "exact"):
            msg = f"master must be 'newton', 'taylor' or 'exact', got {self._master()!r}"
            raise InputError(msg)
        if self.finish not in ("auto", "direct", "cg", "report"):
            msg = f"finish must be 'auto', 'direct', 'cg' or 'report', got {self.finish!r}"
            raise InputError(msg)
        basis_bytes(self.basis)

    def _solve(
        self, training: TrainingSet, pairs: list[tuple[float, float]] | None = None
    ) -> tuple[list[Solution], float, str]:
        pairs = self._settings(len(training.targets.problems)) if pairs is None else pairs
        fit = Fit(self, training, pairs)
        solver = self._chosen_solver(training.kernels.view, [fit])
        found, passes = solve_together([fit], solver)
        return found[0], passes, solver

    def _chosen_solver(self, view: View, fits: Sequence[Fit]) -> str:
        """What "auto" means here, for fits on views of which this is the largest.

        Raises
        ------
        MemoryBudgetError
            If "direct" was asked for and does not fit.
        """
        where = machine()
        if self.solver == "auto":
            if fits_in_memory(view, 1, where):
                return "direct"
            return out_of_core(fits, where) if "subspace" in self._SOLVERS else "cg"
        if self.solver == "direct" and not fits_in_memory(view, 1, where):
            msg = (
                f"solver='direct' holds the combined kernel in memory, {direct_bytes(view, 1) / 2**30:.3g} "
                "GiB, and "
                f"{where.total_bytes / 2**30:.3g} GiB are allowed; use solver='cg', or set dmkl.memory higher"
            )
            raise MemoryBudgetError(msg)
        return self.solver

    def _keep(self, solutions: list[Solution], betas: list[Float] | None = None, *, depth: int = 4) -> None:
        """Set the fitted attributes, and warn where the gap is open.

        Parameters
        ----------
        betas
            Stand in for the solutions' weights where those are over other kernels.
        depth
            How many calls up the user's line is.
        """
        weights = [s.beta for s in solutions] if betas is None else betas
        self._label_results([s.alpha for s in solutions], weights)
        tasks = self.tasks_
        single = tasks is None
        gaps = np.array([s.certificate.gap for s in solutions])
        objectives = np.array([s.certificate.objective for s in solutions])
        self.gap_ = float(gaps[0]) if single else xr.DataArray(gaps, dims=("task",), coords={"task": tasks}, name="gap")
        self.objective_ = (
            float(objectives[0])
            if single
            else xr.DataArray(objectives, dims=("task",), coords={"task": tasks}, name="objective")
        )
        worst = max(solutions, key=lambda s: s.certificate.gap)
        self.status_ = worst.status.advice
        self.n_iter_ = max(len(s.steps) for s in solutions)
        names = np.array(self.kernel_names_, dtype=str)
        self.history_ = _history(solutions, weights, names, tasks)
        if worst.status is not Status.CERTIFIED:
            where = "" if single else f" (task {tasks[int(np.argmax(gaps))]!r})"  # type: ignore[index]
            warnings.warn(
                f"{type(self).__name__} ended with a relative gap of {worst.certificate.gap:.2e}{where}, above "
                f"tol={self.tol:g}. {worst.status.advice}",
                ConvergenceWarning,
                stacklevel=depth,
            )

    _SOLVERS: ClassVar[tuple[str, ...]] = ("auto", "direct", "cg", "subspace", "interleaved", "dual")

    def _more_state(self) -> dict[str, Any]:
        return {
            "gap_": _plain(self.gap_),
            "objective_": _plain(self.objective_),
            "status_": self.status_,
            "n_iter_": self.n_iter_,
            "n_passes_": self.n_passes_,
            "solver_": self.solver_,
        }

    def _set_more_state(self, state: dict[str, Any]) -> Self:
        for name in ("gap_", "objective_"):
            if isinstance(state[name], list):
                state[name] = xr.DataArray(
                    np.array(state[name]), dims=("task",), coords={"task": self.tasks_}, name=name.rstrip("_")
                )
        return super()._set_more_state(state)


def _plain(value: Any) -> Any:
    return value.values.tolist() if isinstance(value, xr.DataArray) else value


def _history(
    solutions: list[Solution], weights: list[Float], kernels: npt.NDArray[Any], tasks: npt.NDArray[Any] | None
) -> xr.Dataset:
    """One row a weighting; shorter histories of a multilabel problem end in NaN."""
    length = max(len(s.steps) for s in solutions)
    in_parts = isinstance(solutions[0].steps[0], PartStep)
    names = ("objective", "upper", "gap", "residual_sq", "products", *(("passes",) if in_parts else ()))
    table: dict[str, Float] = {name: np.full((len(solutions), length), np.nan) for name in names}
    betas = np.full((len(solutions), length, len(kernels)), np.nan)
    for k, solution in enumerate(solutions):
        for r, step in enumerate(solution.steps):
            for name, values in table.items():
                values[k, r] = getattr(step, name)
            betas[k, r] = weights[k] if len(step.beta) != len(kernels) else step.beta
    history = xr.Dataset(
        {name: (("task", "iteration"), values) for name, values in table.items()}
        | {"weight": (("task", "iteration", "kernel"), betas)},
        coords={"iteration": np.arange(1, length + 1), "kernel": kernels},
    )
    return history.isel(task=0) if tasks is None else history.assign_coords(task=tasks)


def fit_together(
    models: Sequence[_FisherClassifier],
    sets: Sequence[KernelSet],
    labels: Sequence[npt.ArrayLike | None],
    starts: Sequence[Float] | None = None,
) -> None:
    """Fit estimators that differ in p and λ alone on sets of rows of the same kernels: every pass serves all.

    Parameters
    ----------
    models
        Fitted in place, as by `fit`.
    sets, labels
        What each is fitted on.
    starts
        As in `solve_together`.
    """
    for model in models:
        model._check_parameters()
    trainings = KernelClassifier._trainings(models, sets, labels)
    fits = [
        Fit(model, training, model._settings(len(training.targets.problems)))
        for model, training in zip(models, trainings, strict=True)
    ]
    largest = max((training.kernels.view for training in trainings), key=lambda view: view.shape[1])
    solver = models[0]._chosen_solver(largest, fits)
    solutions, passes = solve_together(fits, solver, starts)
    for fit, found in zip(fits, solutions, strict=True):
        fit.model.solver_ = solver
        fit.model.n_passes_ = fit.training.n_passes + passes
        fit.model._keep(found, depth=5)
