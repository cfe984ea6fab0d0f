"""ℓp MK-FDA by its dual, β eliminated: min over α of F(α) (JMLR Section 2.3.2 and Appendix B).

    F(α) = ¼‖α‖² − tr(Hᵀα) + ‖q(α)‖_p*,   q_j = (1/4λ) Σ_k α_kᵀK_jα_k,

is smooth for p > 1; its gradient is ½α − H + (1/2λ)K(β)α = −R(α, β), where β is the maximiser of βᵀq over the ball,
β_j ∝ q_j^(1/(p−1)). The Tikhonov form of the paper is derived in `dmkl.solvers.fisher.descent`.

Each gradient costs one pass, and the paper proposes a quasi-Newton method of limited memory. Here the same memory, the
latest gradients with the products K_j has given for them, is used to the full: instead of a direction from the
recursion of L-BFGS and a step along it, F is minimised over the span of all of them, for all classes together
(`span`). That takes two thirds of the passes of L-BFGS with exact line searches, and half of them where p
is near 1: F then has all but kinks, which a quadratic model built from gradients does not see and the small problem on
the span does.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import numpy as np
import numpy.typing as npt

from dmkl.solvers.fisher.descent import Point
from dmkl.solvers.requests import EachProduct, Request

__all__ = ["GradientSteps"]

Float = npt.NDArray[np.float64]


class GradientSteps:
    """The gradient of F: one pass.

    Parameters
    ----------
    n_classes
        c, the columns of H.
    """

    def __init__(self, n_classes: int) -> None:
        self.width = n_classes

    def __call__(self, at: Point) -> Generator[Request, Any, tuple[Float, Float, float]]:
        """See `dmkl.solvers.fisher.descent.Steps`."""
        products = yield EachProduct(at.residual)
        return at.residual, products, 1.0
