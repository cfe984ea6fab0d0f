"""ℓp-norm multiple kernel Fisher discriminant analysis."""

from __future__ import annotations

import warnings
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt
import xarray as xr

from dmkl.blocks.fisher import as_exponent
from dmkl.errors import ConvergenceWarning, InputError, MemoryBudgetError
from dmkl.estimators.base import KernelClassifier, TrainingSet
from dmkl.kernelset import KernelSet
from dmkl.passes.combine import direct_bytes, fits_in_memory
from dmkl.passes.execute import machine
from dmkl.passes.view import Lens
from dmkl.solvers.requests import drive
from dmkl.solvers.wrapper import AlphaStep, CGStep, DirectStep, Master, Problem, Solution, Status, wrapper

__all__ = ["MKFDA", "Uniform"]

Float = npt.NDArray[np.float64]
SolverName = Literal["auto", "direct", "cg"]


class _FisherClassifier(KernelClassifier):
    """Fisher discriminant analysis on a weighted sum of kernels, the weights learnt in an ℓp ball."""

    def __init__(
        self,
        lam: float = 1e-2,
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

    def _exponent(self) -> float:
        raise NotImplementedError

    def _master(self) -> Master:
        return "newton"

    def _fit(self, K: KernelSet, y: npt.ArrayLike | None) -> Self:
        self._check_parameters()
        training = self._training(K, y)
        check_resolution(training.kernels, float(self.lam))
        solutions, passes, solver = self._solve(training, self._exponent())
        self.solver_ = solver
        self.n_passes_ = training.n_passes + passes
        self._keep(solutions)
        return self

    def _check_parameters(self) -> None:
        self._exponent()
        if not (np.isfinite(self.lam) and self.lam > 0):
            msg = f"lam must be positive and finite, got {self.lam!r}"
            raise InputError(msg)
        if not self.tol > 0:
            msg = f"tol must be positive, got {self.tol!r}"
            raise InputError(msg)
        if not self.max_iter >= 1:
            msg = f"max_iter must be at least 1, got {self.max_iter!r}"
            raise InputError(msg)
        if self.solver not in ("auto", "direct", "cg"):
            msg = f"solver must be 'auto', 'direct' or 'cg', got {self.solver!r}"
            raise InputError(msg)
        if self._master() not in ("newton", "taylor", "exact"):
            msg = f"master must be 'newton', 'taylor' or 'exact', got {self._master()!r}"
            raise InputError(msg)

    def _solve(self, training: TrainingSet, p: float) -> tuple[list[Solution], int, str]:
        K, targets = training.kernels, training.targets
        view, where = K.view, machine()
        solver = self.solver
        if solver == "auto":
            solver = "direct" if fits_in_memory(view, 1, where) else "cg"
        lanes = None
        if solver == "direct":
            if not fits_in_memory(view, 1, where):
                msg = (
                    f"solver='direct' holds the combined kernel in memory, {direct_bytes(view, 1) / 2**30:.3g} "
                    "GiB, and "
                    f"{where.total_bytes / 2**30:.3g} GiB are allowed; use solver='cg', or set dmkl.memory higher"
                )
                raise MemoryBudgetError(msg)
            # Each running problem holds a factor: as many at once as fit.
            lanes = max(1, where.total_bytes // direct_bytes(view, 1))
        lens = Lens(view, K.statistics())
        problems = [
            Problem(h, float(self.lam), p, "" if self.tasks_ is None else f"{self.tasks_[k]}: ")
            for k, h in enumerate(targets.problems)
        ]
        solvers = []
        for problem in problems:
            step: AlphaStep = DirectStep(problem) if solver == "direct" else CGStep(problem, self.tol)
            solvers.append(
                wrapper(
                    problem,
                    len(K),
                    step,
                    master=self._master(),
                    tol=self.tol,
                    max_iter=self.max_iter,
                    names=K.names,
                )
            )
        solutions, passes = drive([(lens, solver) for solver in solvers], lanes=lanes)
        return solutions, passes, solver

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


class MKFDA(_FisherClassifier):
    """ℓp-norm multiple kernel Fisher discriminant analysis.

    Learns weights β of the kernels together with the discriminant on K(β) = Σ_j β_j K_j:

        max over β ≥ 0, ‖β‖_p ≤ 1 of  min over α of  Σ_k [ ¼ α_kᵀα_k + (1/4λ) α_kᵀK(β)α_k − h_kᵀα_k ].

    Parameters
    ----------
    p
        Norm of the weights, from 1 (few kernels) to ∞ (all alike; from 1e6 on every weight is one).
    lam
        λ > 0, the ridge, in units of the normalised kernels' eigenvalues.
    center
        Centre the kernels in feature space; the method assumes it.
    normalize
        "trace" (unit trace), "cosine" (unit norm), "multiplicative" (unit variance), or None to leave scales as
        they are.
    solver
        How the α-step is done: "direct" (the combined kernel in memory, one Cholesky factor for each weighting), "cg"
        (blocked conjugate gradients out of core), "auto" (direct where it fits the memory budget). `solver_` says
        which.
    tol
        The relative gap to prove.
    max_iter
        Most weightings tried; beyond it the true gap is reported with a warning.
    master
        How weights are found: "newton", or the papers' cutting planes under the Taylor form ("taylor") or the exact
        norm ("exact").

    Attributes
    ----------
    weights_ : DataArray
        β, over kernel; over kernel and task for a multilabel problem.
    dual_coef_ : DataArray
        α, over sample and class (one column for two classes), or sample and task.
    gap_ : float or DataArray
        The proven relative gap, (F(α) − S(α, β) + ‖R‖²)/|S|, computed from the returned pair.
    objective_ : float or DataArray
        S(α, β)
    status_ : str
        How the solver ended, and what to do about it.
    solver_ : str
        "direct" or "cg".
    n_passes_ : int
        Passes over the stored kernels.
    n_iter_ : int
        Weightings tried.
    history_ : Dataset
        Objective, upper bound, gap, weights … of every step.
    classes_ : ndarray
        The labels, sorted.
    train_samples_, kernel_names_ : ndarray, tuple
        What the model was fitted on; prediction checks them.

    Notes
    -----
    Yan, Kittler, Mikolajczyk, Tahir: Non-sparse multiple kernel Fisher discriminant analysis. JMLR 13 (2012), Eqs. 10
    to
    22, Algorithms 1 and 2.

    Examples
    --------
    >>> import dmkl
    >>> K = dmkl.open("kernels.zarr")  # doctest: +SKIP
    >>> train, _, test = K.split(0)  # doctest: +SKIP
    >>> model = dmkl.MKFDA(p=1.5, lam=1e-2).fit(K[train, train])  # doctest: +SKIP
    >>> model.score(K[test, train])  # doctest: +SKIP
    """

    def __init__(
        self,
        p: float = 2.0,
        lam: float = 1e-2,
        *,
        center: bool = True,
        normalize: str | None = "trace",
        solver: SolverName = "auto",
        tol: float = 1e-4,
        max_iter: int = 200,
        master: Master = "newton",
    ) -> None:
        super().__init__(lam, center=center, normalize=normalize, solver=solver, tol=tol, max_iter=max_iter)
        self.p = p
        self.master = master

    def _exponent(self) -> float:
        return as_exponent(self.p)

    def _master(self) -> Master:
        return self.master

    def fit(self, K: KernelSet, y: npt.ArrayLike | None = None) -> Self:
        """Learn the weights and the discriminant.

        Parameters
        ----------
        K
            The training kernels, ``K[train, train]``.
        y
            (m,) integers or strings, two classes or more; (m, tasks) of 0 and 1 for independent binary problems that
            share the passes. The labels stored with the kernels where missing.

        Raises
        ------
        InputError
            If a parameter, the labels or the kernels break a rule.
        IndefiniteKernelError
            If a kernel proves not to be positive semidefinite.
        MemoryBudgetError
            If solver="direct" does not fit the budget.
        """
        return self._fit(K, y)


class Uniform(_FisherClassifier):
    """Fisher discriminant analysis on the unweighted sum of all kernels: the ℓ∞ baseline.

    Parameters and attributes are those of `MKFDA` with p = ∞, where the optimal weights are all one.
    """

    def _exponent(self) -> float:
        return float(np.inf)

    def fit(self, K: KernelSet, y: npt.ArrayLike | None = None) -> Self:
        """Learn the discriminant; see `MKFDA.fit`."""
        return self._fit(K, y)


def _plain(value: Any) -> Any:
    return value.values.tolist() if isinstance(value, xr.DataArray) else value


def _history(
    solutions: list[Solution], weights: list[Float], kernels: npt.NDArray[Any], tasks: npt.NDArray[Any] | None
) -> xr.Dataset:
    """One row a weighting; shorter histories of a multilabel problem end in NaN."""
    length = max(len(s.steps) for s in solutions)
    table: dict[str, Float] = {
        name: np.full((len(solutions), length), np.nan)
        for name in ("objective", "upper", "gap", "residual_sq", "products")
    }
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


def check_resolution(K: KernelSet, lam: float) -> None:
    """Refuse a λ that drowns in the rounding of the stored kernels.

    Entries rounded to u relative add a random symmetric matrix whose norm is about u √m times their size: below that,
    I + K/λ may have negative eigenvalues that no kernel has.
    """
    m = K.shape[1]
    unit = 0.5 * float(np.finfo(K.dtype).eps)
    diagonal = K.view.source.diagonal(K.view.kernels)
    if diagonal is None:
        return
    factors = np.array([K.statistics().factor(j) for j in range(len(K))])
    cosine = any(step.kind == "cosine" for step in K.statistics().steps)
    size = 1.0 if cosine else float(np.median(np.abs(diagonal).max(axis=1) * factors))
    noise = unit * np.sqrt(m) * size
    if lam < noise:
        msg = (
            f"lam={lam:g} is below what the stored precision resolves: rounding to {K.dtype} alone perturbs these "
            f"kernels by about {noise:.1e}. Take a larger lam, or store the kernels in float64"
        )
        raise InputError(msg)
