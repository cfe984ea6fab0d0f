"""ℓp-norm multiple kernel learning with support vector machines, and its generalisation by Varma and Ray."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from dmkl.errors import InputError
from dmkl.estimators.margin import MarginProblems, Multiclass, _MarginClassifier
from dmkl.kernelset import KernelSet
from dmkl.numerics.fisher import Targets, as_exponent
from dmkl.solvers.margin.gmkl import Method, gmkl
from dmkl.solvers.margin.gmkl_problem import GeneralizedProblem
from dmkl.solvers.margin.mksvm import MarginProblem, mk_svm
from dmkl.solvers.requests import Solver

__all__ = ["GMKL", "MKSVM"]


def _one_for_each(name: str, value: Any, n_problems: int) -> list[float]:
    values = [float(item) for item in np.atleast_1d(np.asarray(value, dtype=np.float64))]
    if len(values) not in (1, n_problems):
        msg = (
            f"{name} has {len(values)} values and there are {n_problems} problems to solve; give one number, or one "
            "for each"
        )
        raise InputError(msg)
    return values * n_problems if len(values) == 1 else values


class MKSVM(_MarginClassifier):
    """ℓp-norm multiple kernel learning with the hinge loss.

    Learns weights β of the kernels together with a support vector machine on K(β) = Σ_j β_j K_j:

        min over β ≥ 0, ‖β‖_p ≤ 1 of  max over 0 ≤ α ≤ C, αᵀy = 0 of  Σα − ½ Σ_j β_j uᵀK_ju,   u = α∘y.

    Parameters
    ----------
    p
        Norm of the weights, from 1 (few kernels) to ∞ (all alike). For several problems also one for each.
    C
        C > 0, the price of a unit of hinge loss. For several problems also one for each.
    multiclass
        More than two classes: "ovr", one against the rest, the largest score wins; "ovo", one against one, by votes.
        Each binary problem has weights of its own.
    center, normalize
        As in `MKFDA`; unit variance by default, for which the papers' values of C are meant.
    tol
        The relative gap to prove.
    max_iter
        Most weightings tried; beyond it the true gap is reported with a warning.

    Attributes
    ----------
    weights_ : DataArray
        β, over kernel; over kernel and class, pair or task for several problems.
    dual_coef_ : DataArray
        u = α∘y, over sample and class, pair or task.
    intercept_ : DataArray
        The bias of each machine.
    gap_ : float or DataArray
        The proven relative gap (P − D)/|P| of each problem: P = ½Σβ_jv_j + C Σ max(0, 1 − y_if(x_i)) and
        D = Σα − ½‖v‖_p*, v_j = uᵀK_ju, both of the numbers that are returned.
    objective_ : float or DataArray
        Σα − ½ Σ_j β_jv_j
    n_passes_, n_iter_, status_, history_, classes_
        As in `MKFDA`; all problems share the passes.

    Notes
    -----
    Sources: Yan et al., JMLR 13 (2012), Eq. 1; Kloft, Brefeld, Sonnenburg, Zien, JMLR 12 (2011). The weights are found
    by Newton steps over the norm ball (`dmkl.solvers.margin.mksvm`), which reach p = 1 too.

    A machine is trained on the combined kernel in the memory of one task, 32 m² bytes, or where that does not fit on
    the columns of a working set.

    Examples
    --------
    >>> import dmkl
    >>> model = dmkl.MKSVM(p=1.5, C=4.0)
    """

    _WEIGHTS = "beta"
    _STEP = ("objective", "upper", "gap")

    def __init__(
        self,
        p: float | Sequence[float] = 2.0,
        C: float | Sequence[float] = 1.0,
        *,
        multiclass: Multiclass = "ovr",
        center: bool = True,
        normalize: str | None = "multiplicative",
        tol: float = 1e-3,
        max_iter: int = 100,
    ) -> None:
        self.p = p
        self.C = C
        self.multiclass = multiclass
        self.center = center
        self.normalize = normalize
        self.tol = tol
        self.max_iter = max_iter

    def _check_parameters(self) -> None:
        super()._check_parameters()
        for p in np.atleast_1d(np.asarray(self.p, dtype=np.float64)):
            as_exponent(p)
        for C in np.atleast_1d(np.asarray(self.C, dtype=np.float64)):
            if not (np.isfinite(C) and C > 0):
                msg = f"C must be positive and finite, got {C!r}"
                raise InputError(msg)

    def _solvers(self, problems: MarginProblems, K: KernelSet) -> list[Solver[Any]]:
        n = len(problems.names)
        found: list[Solver[Any]] = []
        for name, y, p, C in zip(
            problems.names, problems.signs, _one_for_each("p", self.p, n), _one_for_each("C", self.C, n), strict=True
        ):
            problem = MarginProblem(y, C, p, "" if n == 1 else f"{name}: ")
            found.append(mk_svm(problem, len(K), tol=self.tol, max_iter=self.max_iter, names=K.names))
        return found


class GMKL(_MarginClassifier):
    """Generalised multiple kernel learning of Varma and Ray, with prices and linear constraints on the weights.

    Learns weights d of the kernels together with a support vector machine on K(d) = Σ_j d_j K_j:

        min over d ≥ 0, A d ≥ b of  σᵀd + max over 0 ≤ α ≤ C, αᵀy = 0 of  Σα − ½ Σ_j d_j uᵀK_ju,   u = α∘y.

    Parameters
    ----------
    C
        C > 0, the price of a unit of hinge loss. For several problems also one for each.
    sigma
        (kernels,) or one number: the price of a unit of weight, from prior knowledge. A large one turns a kernel off.
    A, b
        (rows, kernels) and (rows,): linear prior knowledge A d ≥ b, such as d_1 ≥ 2 d_2. None: d ≥ 0 alone.
    multiclass
        "ovo" (1-vs-1): majority vote, the papers' choice for ties being the larger sum of distances; "ovr" (1-vs-All):
        the largest distance. Each binary problem has weights of its own.
    method
        "newton", or the paper's projected "gradient" with Armijo's rule, which takes many more passes.
    center, normalize, tol, max_iter
        As in `MKSVM`.

    Attributes
    ----------
    weights_, dual_coef_, intercept_, gap_, objective_, ...
        As in `MKSVM`; `objective_` is the primal value.

    Notes
    -----
    Source: Varma and Ray, Learning the discriminative power-invariance trade-off, ICCV 2007. The lower bound that
    proves the gap, and what is done about constraints that contradict each other, is in `dmkl.solvers.margin.gmkl`.

    Examples
    --------
    >>> import dmkl
    >>> model = dmkl.GMKL(C=10.0, sigma=0.5, A=[[1.0, -2.0]], b=[0.0])  # the first weighs twice the second at least
    """

    _WEIGHTS = "weights"
    _STEP = ("objective", "lower")

    def __init__(
        self,
        C: float | Sequence[float] = 1.0,
        sigma: float | Sequence[float] = 1.0,
        A: npt.ArrayLike | None = None,
        b: npt.ArrayLike | None = None,
        multiclass: Multiclass = "ovr",
        *,
        method: Method = "newton",
        center: bool = True,
        normalize: str | None = "multiplicative",
        tol: float = 1e-3,
        max_iter: int = 100,
    ) -> None:
        self.C = C
        self.sigma = sigma
        self.A = A
        self.b = b
        self.multiclass = multiclass
        self.method = method
        self.center = center
        self.normalize = normalize
        self.tol = tol
        self.max_iter = max_iter

    def _check_parameters(self) -> None:
        super()._check_parameters()
        if self.method not in ("newton", "gradient"):
            msg = f"method must be 'newton' or 'gradient', got {self.method!r}"
            raise InputError(msg)
        if (self.A is None) != (self.b is None):
            msg = "A and b belong together, A d ≥ b; give both or neither"
            raise InputError(msg)

    def _begin(self, K: KernelSet, y: npt.ArrayLike | None) -> Targets:
        targets = super()._begin(K, y)
        # What prices and constraints break is told before the first pass, whatever the labels.
        for C in np.atleast_1d(np.asarray(self.C, dtype=np.float64)):
            self._problem(np.array([1.0, -1.0]), float(C), K)
        return targets

    def _problem(self, y: npt.NDArray[np.float64], C: float, K: KernelSet, title: str = "") -> GeneralizedProblem:
        n = len(K)
        sigma = np.asarray(self.sigma, dtype=np.float64)
        sigma = np.full(n, float(sigma)) if sigma.ndim == 0 else sigma
        if sigma.shape != (n,):
            msg = f"sigma has shape {sigma.shape}, expected one number, or a price for each of the {n} kernels"
            raise InputError(msg)
        A = np.zeros((0, n)) if self.A is None else np.asarray(self.A, dtype=np.float64)
        b = np.zeros(0) if self.b is None else np.asarray(self.b, dtype=np.float64)
        return GeneralizedProblem(y, C, sigma, A, b, name=title)

    def _solvers(self, problems: MarginProblems, K: KernelSet) -> list[Solver[Any]]:
        n = len(problems.names)
        found: list[Solver[Any]] = []
        for name, y, C in zip(problems.names, problems.signs, _one_for_each("C", self.C, n), strict=True):
            problem = self._problem(y, C, K, "" if n == 1 else f"{name}: ")
            found.append(gmkl(problem, len(K), method=self.method, tol=self.tol, max_iter=self.max_iter, names=K.names))
        return found
