"""ℓp MK-FDA by its dual, β eliminated: min over α of F(α) (JMLR Section 2.3.2 and Appendix B).

    F(α) = ¼‖α‖² − tr(Hᵀα) + ‖q(α)‖_p*,   q_j = (1/4λ) Σ_k α_kᵀK_jα_k,

is smooth for p > 1; its gradient is ½α − H + (1/2λ)K(β)α = −R(α, β), where β is the maximizer of βᵀq over the ball,
β_j ∝ q_j^(1/(p−1)). The Tikhonov form of the paper is derived in `dmkl.solvers.fisher.descent`.

Each gradient costs one pass, and the paper proposes a quasi-Newton method of limited memory. Here the same memory, the
latest gradients with the products K_j has given for them, is used to the full: instead of a direction from the
recursion of L-BFGS and a step along it, F is minimized over the span of all of them, for all classes together
(`span`). That takes two thirds of the passes of L-BFGS with exact line searches, and half of them where p
is near 1: F then has all but kinks, which a quadratic model built from gradients does not see and the small problem on
the span does.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

from dmkl.arrays import Float
from dmkl.errors import InputError
from dmkl.solvers.fisher.descent import Place, descend_jobs
from dmkl.solvers.fisher.problem import FisherOptions
from dmkl.solvers.fisher.solver import FisherSolver
from dmkl.solvers.jobs import Context, Job
from dmkl.solvers.outcome import Outcome
from dmkl.solvers.requests import EachProduct, Request

__all__ = ["SOLVER", "GradientSource"]


class GradientSource:
    """The gradient of F: one pass.

    Parameters
    ----------
    n_classes
        c, the columns of H.
    """

    def __init__(self, n_classes: int) -> None:
        self.width = n_classes

    def __call__(self, at: Place) -> Generator[Request, Any, tuple[Float, Float, float]]:
        """See `dmkl.solvers.fisher.descent.DirectionSource`."""
        products = yield EachProduct(at.residual)
        return at.residual, products, 1.0


def _check_parameters(options: FisherOptions, exponents: Sequence[float]) -> None:
    if 1.0 in exponents:
        msg = (
            "solver='dual' follows the gradient of the dual, which does not exist at p = 1; take "
            "solver='interleaved', 'subspace', 'cg' or 'direct', or a p above 1, such as 1 + 2**-6"
        )
        raise InputError(msg)


def _solve(jobs: Sequence[Job], options: FisherOptions, context: Context) -> list[Outcome]:
    return descend_jobs(jobs, options, context, "dual", 0, lambda job, *_: GradientSource(job.problem.h.shape[1]))


SOLVER = FisherSolver(
    "dual",
    "the weights eliminated, one gradient a pass, out of core; p above 1",
    _solve,
    check_parameters=_check_parameters,
)
