"""ℓp-norm multiple kernel Fisher discriminant analysis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import numpy as np
import numpy.typing as npt

from dmkl.estimators.fisher import SolverName, _FisherClassifier
from dmkl.kernelset import KernelSet
from dmkl.numerics.fisher import as_exponent
from dmkl.solvers.fisher.subspace.problem import Finish
from dmkl.solvers.fisher.wrapper import Master

__all__ = ["MKFDA", "Uniform"]


class MKFDA(_FisherClassifier):
    """ℓp-norm multiple kernel Fisher discriminant analysis.

    Learns weights β of the kernels together with the discriminant on K(β) = Σ_j β_j K_j:

        max over β ≥ 0, ‖β‖_p ≤ 1 of  min over α of  Σ_k [ ¼ α_kᵀα_k + (1/4λ) α_kᵀK(β)α_k − h_kᵀα_k ].

    Parameters
    ----------
    p
        Norm of the weights, from 1 (few kernels) to ∞ (all alike; from 1e6 on every weight is one). For a multilabel
        problem also one for each task.
    lam
        λ > 0, the ridge, in units of the normalised kernels' eigenvalues. For a multilabel problem also one for each
        task.
    center
        Centre the kernels in feature space; the method assumes it.
    normalize
        "trace" (unit trace), "cosine" (unit norm), "multiplicative" (unit variance), or None to leave scales as
        they are.
    solver
        "direct" (wrapper method, the combined kernel in memory, one Cholesky factor for each weighting), "cg" (wrapper
        method with blocked conjugate gradients, out of core), "subspace" (a basis that all tasks share, out of core;
        see Notes), "interleaved" (subsets of α and the weights in turn, a few tile columns at a time), "dual" (the
        weights eliminated, a gradient a pass, p above 1), "auto". `solver_` says which.
        Auto takes direct where it fits the memory budget; otherwise dual (interleaved for p = 1) for one problem whose
        λ is 1/1,000 of tr K(β) or more, and subspace for several problems and for smaller λ.
    tol
        The relative gap to prove.
    max_iter
        Most weightings tried, or of the solvers "interleaved" and "dual" most passes; beyond it the true gap is
        reported with a warning.
    master
        How weights are found: "newton", or the papers' cutting planes under the Taylor form ("taylor") or the exact
        norm ("exact").
    finish
        Of the subspace solver, what becomes of a problem that its basis does not certify: "direct" or "cg" go on with
        the wrapper method, "auto" with the first of them that fits, "report" leaves it with its true gap.
    basis
        Of the subspace solver, the most bytes ("8GiB") that the basis and its products may take on disk, in the
        folder for temporary files; half of what is free there by default.
    mu
        Of the dual solver, μ > 0 of the Tikhonov form: the objective is S(α, β) − λμ‖β‖_p² over all β ≥ 0, and the
        norm of `weights_` is what comes out, ‖β‖_p = ‖q‖_p*/(2λμ). None for ‖β‖_p ≤ 1. A solution of the one form
        is one of the other: with weights divided by their norm ρ it is that of mu=None and λ/ρ.

    Attributes
    ----------
    weights_ : DataArray
        β, over kernel; over kernel and task for a multilabel problem.
    dual_coef_ : DataArray
        α, over sample and class (one column for two classes), or sample and task.
    gap_ : float or DataArray
        The proven relative gap, (F(α) − S(α, β) + ‖R‖²)/|S|, computed from the returned pair. With `mu` it holds
        for the Tikhonov form and for the bound ‖β‖_p ≤ ‖weights_‖_p alike.
    objective_ : float or DataArray
        S(α, β); with `mu`, without the penalty.
    status_ : str
        How the solver ended, and what to do about it.
    solver_ : str
        "direct", "cg", "subspace", "interleaved" or "dual".
    n_passes_ : int or float
        Passes over the stored kernels; of the interleaved solver the tiles that were read by those of a pass.
    n_iter_ : int
        Weightings tried.
    history_ : Dataset
        Objective, upper bound, gap, weights … of every step; `passes` read up to it of the solvers "interleaved" and
        "dual".
    classes_ : ndarray
        The labels, sorted.
    train_samples_, kernel_names_ : ndarray, tuple
        What the model was fitted on; prediction checks them.

    Notes
    -----
    Yan, Kittler, Mikolajczyk, Tahir: Non-sparse multiple kernel Fisher discriminant analysis. JMLR 13 (2012), Eqs. 10
    to
    22, Algorithms 1 and 2; Section 2.3 for the interleaved and the dual solver, Eqs. 25 and 26 for `mu`.

    Examples
    --------
    >>> import dmkl
    >>> K = dmkl.open("kernels.zarr")
    >>> train, _, test = K.split(0)
    >>> model = dmkl.MKFDA(p=1.5, lam=1e-2).fit(K[train, train])
    >>> model.gap_ <= 1e-4
    True
    >>> model.score(K[test, train]) > 0.9
    True
    """

    def __init__(
        self,
        p: float | Sequence[float] = 2.0,
        lam: float | Sequence[float] = 1e-2,
        *,
        center: bool = True,
        normalize: str | None = "trace",
        solver: SolverName = "auto",
        tol: float = 1e-4,
        max_iter: int = 200,
        master: Master = "newton",
        finish: Finish = "auto",
        basis: int | str | None = None,
        mu: float | None = None,
    ) -> None:
        super().__init__(lam, center=center, normalize=normalize, solver=solver, tol=tol, max_iter=max_iter)
        self.p = p
        self.master = master
        self.finish = finish
        self.basis = basis
        self.mu = mu

    def _exponents(self) -> list[float]:
        return [as_exponent(float(p)) for p in np.atleast_1d(np.asarray(self.p, dtype=np.float64))]

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
            If solver="direct", "interleaved" or "dual" does not fit the budget.
        """
        return self._fit(K, y)


class Uniform(_FisherClassifier):
    """Fisher discriminant analysis on the unweighted sum of all kernels: the ℓ∞ baseline.

    Parameters and attributes are those of `MKFDA` with p = ∞, where the optimal weights are all one.
    """

    def _exponents(self) -> list[float]:
        return [float(np.inf)]

    def fit(self, K: KernelSet, y: npt.ArrayLike | None = None) -> Self:
        """Learn the discriminant; see `MKFDA.fit`."""
        return self._fit(K, y)
