"""What the Fisher discriminants share: solving several fits together, the certificate, the history."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

import numpy as np
import numpy.typing as npt
import xarray as xr
from dask.utils import parse_bytes

from dmkl.blocks.fisher import Certificate
from dmkl.errors import ConvergenceWarning, InputError, MemoryBudgetError
from dmkl.estimators.base import KernelClassifier, TrainingSet
from dmkl.kernelset import KernelSet
from dmkl.passes.combine import direct_bytes, fits_in_memory
from dmkl.passes.execute import Machine, check_memory, machine
from dmkl.passes.view import Lens, View
from dmkl.solvers.descent import PartStep, Steps, descend, least_columns
from dmkl.solvers.dual import GradientSteps
from dmkl.solvers.interleaved import BlockSteps
from dmkl.solvers.requests import Solver, drive, drive_in_parts
from dmkl.solvers.subspace.engine import SubspaceSolver
from dmkl.solvers.subspace.problem import Finish, Point, SubspaceOptions, Training
from dmkl.solvers.subspace.workspace import Workspace
from dmkl.solvers.working_sets import working_sets
from dmkl.solvers.wrapper import AlphaStep, CGStep, DirectStep, Master, Problem, Solution, Status, wrapper

__all__ = ["Fit", "SolverName", "basis_bytes", "check_resolution", "fit_together", "solve_together"]

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
            return _out_of_core(fits, where) if "subspace" in self._SOLVERS else "cg"
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
        self.status_ = worst.status.value
        self.n_iter_ = max(len(s.steps) for s in solutions)
        names = np.array(self.kernel_names_, dtype=str)
        self.history_ = _history(solutions, weights, names, tasks)
        if worst.status is not Status.CERTIFIED:
            where = "" if single else f" (task {tasks[int(np.argmax(gaps))]!r})"  # type: ignore[index]
            warnings.warn(
                f"{type(self).__name__} ended with a relative gap of {worst.certificate.gap:.2e}{where}, above "
                f"tol={self.tol:g}. {worst.status.value}",
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


_AMPLE = 1e-3
"""λ by tr K(β) from which descent on the dual takes no more passes than the subspace solver, and half of its time."""
_ROOM = 100
"""Directions that it should have room for."""


def _out_of_core(fits: Sequence[Fit], where: Machine) -> str:
    """The solver for kernels whose sum does not fit in memory, as `pipelines/compare_solvers.py` has measured them."""
    if len(fits) > 1 or len(fits[0].pairs) > 1:
        return "subspace"  # one for all problems, where descent keeps directions for each
    (fit,), ((p, lam),) = fits, fits[0].pairs
    view, fitted = fit.lens.view, fit.lens.fitted
    n, m, _ = view.shape
    diagonal = view.source.diagonal(view.kernels)
    if diagonal is None or 8 * (n + 1) * m * _ROOM > where.total_bytes // 2:
        return "subspace"
    trace = float(np.median(fitted.diagonal(diagonal[:, view.rows]).sum(axis=1)))
    # Uniform weights of norm one are n^(−1/p).
    if lam < _AMPLE * trace * n ** (1.0 - 1.0 / p):
        return "subspace"
    return "dual" if p > 1 else "interleaved"


@dataclass(frozen=True)
class Fit:
    """One fit of several that are solved together: an estimator, its training set, and (p, λ) of its problems."""

    model: _FisherClassifier
    training: TrainingSet
    pairs: list[tuple[float, float]]

    @property
    def lens(self) -> Lens:
        """What it sees the kernels through."""
        return Lens(self.training.kernels.view, self.training.kernels.statistics())


def solve_together(
    fits: Sequence[Fit], solver: str, starts: Sequence[Float] | None = None
) -> tuple[list[list[Solution]], float]:
    """Solve several fits on the same kernels, which share every pass.

    Parameters
    ----------
    fits
        With equal parameters but for p and λ.
    solver
        "direct", "cg", "subspace", "interleaved" or "dual".
    starts
        β to begin with, one for every problem of every fit in turn.

    Returns
    -------
    tuple
        The solutions of each fit, and the passes that all took together, parts of a pass as parts.
    """
    lenses = [fit.lens for fit in fits]
    for fit, lens in zip(fits, lenses, strict=True):
        check_resolution(lens, min(lam for _, lam in fit.pairs))
    solve = {"subspace": _by_subspace, "interleaved": _by_descent, "dual": _by_descent}.get(solver, _by_wrapper)
    solutions, passes = solve(fits, lenses, solver, starts)
    found, first = [], 0
    for fit in fits:
        found.append(solutions[first : first + len(fit.pairs)])
        first += len(fit.pairs)
    return found, passes


def _by_wrapper(
    fits: Sequence[Fit], lenses: Sequence[Lens], solver: str, starts: Sequence[Float] | None
) -> tuple[list[Solution], float]:
    jobs: list[tuple[Lens, Solver[Solution]]] = []
    for fit, lens in zip(fits, lenses, strict=True):
        model, training = fit.model, fit.training
        for k, (h, (p, lam)) in enumerate(zip(training.targets.problems, fit.pairs, strict=True)):
            problem = Problem(h, lam, p, "" if model.tasks_ is None else f"{model.tasks_[k]}: ")
            step: AlphaStep = DirectStep(problem) if solver == "direct" else CGStep(problem, model.tol)
            job = wrapper(
                problem,
                len(training.kernels),
                step,
                master=model._master(),
                tol=model.tol,
                max_iter=model.max_iter,
                names=training.kernels.names,
                start=None if starts is None else starts[len(jobs)],
            )
            jobs.append((lens, job))
    lanes = None
    if solver == "direct":
        # Each running problem holds a factor: as many at once as fit.
        lanes = max(1, machine().total_bytes // max(direct_bytes(lens.view, 1) for lens in lenses))
    return drive(jobs, lanes=lanes)


def _by_subspace(
    fits: Sequence[Fit], lenses: Sequence[Lens], solver: str, starts: Sequence[Float] | None
) -> tuple[list[Solution], float]:
    """See `dmkl.solvers.subspace.engine`."""
    model = fits[0].model
    options = SubspaceOptions(
        tol=model.tol,
        basis_bytes=basis_bytes(model.basis),
        max_passes=model.max_iter,
        finish=model.finish,
        alphas=True,
    )
    folds = [Training("", lens, lens, fit.training.targets.problems) for fit, lens in zip(fits, lenses, strict=True)]
    points = [Point(f, k, p, lam) for f, fit in enumerate(fits) for k, (p, lam) in enumerate(fit.pairs)]
    workspace = Workspace(None, {})
    try:
        engine = SubspaceSolver(folds, points, workspace, options, model.kernel_names_)
        results = engine.run()
    finally:
        workspace.close()
    solutions = []
    for result in results:
        assert result.alpha is not None
        assert result.beta is not None
        bound = max(result.gap * abs(result.objective) - max(result.upper - result.objective, 0.0), 0.0)
        certificate = Certificate(result.objective, result.upper, bound, result.beta)
        status = Status.CERTIFIED if result.gap <= model.tol else Status.BASIS
        solutions.append(Solution(result.alpha, result.beta, certificate, status, result.steps))
    return solutions, engine.n_passes


_COLUMNS = 400
"""More directions than this make the small problem slower, and the convergence hardly faster."""


def _by_descent(
    fits: Sequence[Fit], lenses: Sequence[Lens], solver: str, starts: Sequence[Float] | None
) -> tuple[list[Solution], float]:
    """See `dmkl.solvers.descent`.

    Half of the memory is for the directions and their products; the interleaved solver's factors may take a quarter.
    """
    problems = [
        (fit, lens, k, h, *pair)
        for fit, lens in zip(fits, lenses, strict=True)
        for k, (h, pair) in enumerate(zip(fit.training.targets.problems, fit.pairs, strict=True))
    ]
    widest = max((h for _, _, _, h, _, _ in problems), key=lambda h: h.size)
    n, (m, c) = len(fits[0].training.kernels), widest.shape
    column_bytes, budget = 8 * (n + 1) * m, machine().total_bytes
    steps: Steps = GradientSteps(c) if solver == "dual" else BlockSteps([], 1.0, c, 1)
    least_bytes = column_bytes * least_columns(c, steps.width)
    check_memory(
        f"solver={solver!r}",
        {"the least number of directions and their products": least_bytes},
        budget // 2,
        "Set dmkl.memory higher, or take solver='subspace', which keeps them on disk, or 'cg'",
    )
    lanes = min(len(problems), budget // 2 // least_bytes)
    capacity = min(_COLUMNS + c, budget // 2 // lanes // column_bytes)
    jobs: list[tuple[Lens, Solver[Solution]]] = []
    for fit, lens, k, h, p, lam in problems:
        model = fit.model
        c = h.shape[1]
        if solver == "interleaved":
            sets = working_sets(lens, largest=int(np.sqrt(budget / 256)))
            factor_bytes = 8 * max(len(one.index) for one in sets) ** 2
            steps = BlockSteps(sets, lam, c, max(1, budget // 4 // lanes // factor_bytes))
        else:
            steps = GradientSteps(c)
        job = descend(
            Problem(h, lam, p, "" if model.tasks_ is None else f"{model.tasks_[k]}: "),
            n,
            steps,
            capacity=capacity,
            tol=model.tol,
            max_passes=model.max_iter,
            mu=model.mu,
            names=fit.training.kernels.names,
            start=None if starts is None else starts[len(jobs)],
        )
        jobs.append((lens, job))
    return drive_in_parts(jobs, lanes=lanes) if solver == "interleaved" else drive(jobs, lanes=lanes)


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


def basis_bytes(value: int | str | None) -> int | None:
    """The parameter `basis` in bytes.

    Raises
    ------
    InputError
        If it is no size.
    """
    if value is None:
        return None
    try:
        size = int(parse_bytes(value))
    except (ValueError, TypeError) as error:
        msg = f"basis must be a size such as '8GiB' or a number of bytes, got {value!r}"
        raise InputError(msg) from error
    if size <= 0:
        msg = f"basis must be positive, got {value!r}"
        raise InputError(msg)
    return size


def check_resolution(lens: Lens, lam: float) -> None:
    """Refuse a λ that drowns in the rounding of the stored kernels.

    Entries rounded to u relative add a random symmetric matrix whose norm is about u √m times their size: below that,
    I + K/λ may have negative eigenvalues that no kernel has.

    Raises
    ------
    InputError
        If λ is that small.
    """
    view, fitted = lens.view, lens.fitted
    unit = 0.5 * float(np.finfo(view.source.dtype).eps)
    diagonal = view.source.diagonal(view.kernels)
    if diagonal is None:
        return
    factors = np.array([fitted.factor(j) for j in range(len(view.kernels))])
    cosine = any(step.kind == "cosine" for step in fitted.steps)
    size = 1.0 if cosine else float(np.median(np.abs(diagonal).max(axis=1) * factors))
    noise = unit * np.sqrt(view.shape[1]) * size
    if lam < noise:
        msg = (
            f"lam={lam:g} is below what the stored precision resolves: rounding to {view.source.dtype} alone perturbs "
            f"these kernels by about {noise:.1e}. Take a larger lam, or store the kernels in float64"
        )
        raise InputError(msg)
