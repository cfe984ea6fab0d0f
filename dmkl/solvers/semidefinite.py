"""Tests that distinguish indefinite kernels from positive semidefinite ones with rounding errors.

Entries stored to a relative ε change K by E with ‖E‖₂ ≤ ‖E‖_F ≤ ε‖K‖_F ≤ ε tr K, so that αᵀKα of a positive
semidefinite kernel may be as low as −‖α‖² ε tr K after rounding. A tolerance relative to the largest form would not
cover this where α is almost in the null space of every kernel, as for small λ and kernels of low rank.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from dmkl.arrays import Array, Float, Index
from dmkl.errors import IndefiniteKernelError, IndefiniteKernelWarning, warn

# Fraction of a kernel's trace, or of the largest form of all kernels, below which a negative form is accepted.
_NOTHING = 1e-6
_REPAIR = "repair='clip', 'flip' or 'shift'"


@dataclass(frozen=True, eq=False)
class KernelFacts:
    """The properties of kernels that are known before solving.

    Without names, kernels are numbered in messages. `traces` are tr K of each kernel, (n,), before centering removed
    any of it, and `precision` is ε of the precision in which the kernels are stored.
    """

    names: tuple[str, ...] = ()
    traces: Float | None = None
    precision: float = 0.0

    def select(self, kernels: Index | None) -> KernelFacts:
        """The properties of some of the kernels; of all for None."""
        if kernels is None:
            return self
        names = tuple(self.names[j] for j in kernels) if self.names else ()
        return replace(self, names=names, traces=None if self.traces is None else self.traces[kernels])

    @property
    def noise(self) -> Float | float:
        """How far below zero rounding may bring xᵀKx for unit vectors x, (n,): ε tr K."""
        return 0.0 if self.traces is None else self.precision * self.traces

    def name(self, j: int) -> str:
        """The name of a kernel in messages."""
        return repr(self.names[j]) if self.names else f"number {j}"


UNKNOWN = KernelFacts()
"""For kernels in memory without further information."""


def check_forms(q: Float, facts: KernelFacts, size: float, noise: float = 0.0) -> None:
    """Raise IndefiniteKernelError for quadratic forms that prove that a kernel is not positive semidefinite.

    q (n,) are αᵀK_jα or a multiple of it, and `size` is the same multiple of ‖α‖². `noise` is how far below zero the
    arithmetic may bring the forms.
    """
    least = max(_NOTHING * float(np.abs(q).max()), noise)
    # A form counts as negative only beyond both tolerances: that of the arithmetic, and that of the stored entries.
    allowed = np.broadcast_to(np.maximum(least, size * facts.noise), q.shape)
    worst = int(np.argmin(q + allowed))
    if q[worst] < -allowed[worst]:
        msg = (
            f"kernel {facts.name(worst)} is not positive semidefinite: αᵀKα is negative ({q[worst]:.3g}, the largest "
            f"of all kernels is {q.max():.3g}, and rounding explains {allowed[worst]:.3g}). Run `dmkl check`; repair "
            f"it with {_REPAIR}, or leave it out with select()"
        )
        raise IndefiniteKernelError(msg)


def lowest_on_span(inner: Float, forms: Array) -> Float:
    """Upper bounds of the lowest eigenvalues, (n,): min xᵀK_jx over unit x in the span of V, from VᵀV and VᵀK_jV."""
    values, vectors = np.linalg.eigh(inner)
    # V may be nearly dependent: directions with a tiny eigenvalue of VᵀV have lost their digits and are left out. With
    # VᵀV = QΛQᵀ the columns of VQΛ^{−½} are orthonormal, and the restricted form is a small symmetric eigenproblem.
    kept = values > 1e-10 * values[-1]
    basis = vectors[:, kept] / np.sqrt(values[kept])
    # Rounding makes VᵀK_jV slightly asymmetric, and `eigvalsh` would read one triangle alone.
    symmetric = 0.5 * (forms + forms.transpose(0, 2, 1))
    return np.asarray(np.linalg.eigvalsh(basis.T @ symmetric @ basis)[:, 0])


def tell_indefinite(lowest: Float, facts: KernelFacts) -> None:
    """Warn of kernels that were fitted although they are not positive semidefinite (IndefiniteKernelWarning).

    `lowest` are upper bounds of the lowest eigenvalue of each kernel, (n,). There is no warning if traces are unknown.
    """
    if facts.traces is None:
        return
    # Relative to the trace, since the unit of a kernel is arbitrary.
    share = lowest / np.maximum(facts.traces, np.finfo(np.float64).tiny)
    # The bound proves a negative eigenvalue; it is reported beyond twice the error of the stored entries.
    indefinite = np.flatnonzero(share < -max(2.0 * facts.precision, _NOTHING))
    if len(indefinite):
        worst = sorted(indefinite.tolist(), key=lambda j: float(share[j]))
        shown = ", ".join(f"{facts.name(j)} ({share[j]:.1e} of its trace)" for j in worst[:3])
        msg = (
            f"{len(indefinite)} of {len(lowest)} kernels are not positive semidefinite, by an eigenvalue of at most: "
            f"{shown}{' …' if len(indefinite) > 3 else ''}. Gaps assume that they are; `dmkl check` shows how negative "
            f"they are, and importing with {_REPAIR} repairs them"
        )
        warn(msg, IndefiniteKernelWarning)
