"""Telling kernels that are not positive semidefinite from the rounding of those that are.

Entries stored to a relative ε change K by E with ‖E‖₂ ≤ ‖E‖_F ≤ ε‖K‖_F ≤ ε tr K, so that αᵀKα may come out as low as
−‖α‖² ε tr K of a kernel that is positive semidefinite: no small multiple of the largest form says so where α is all but
in the null space of every kernel, as it is for small λ and kernels of few columns.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from dmkl.arrays import Array, Float, Index
from dmkl.errors import IndefiniteKernelError, IndefiniteKernelWarning, warn

__all__ = ["UNKNOWN", "KernelFacts", "check_forms", "lowest_on_span", "tell_indefinite"]

_NOTHING = 1e-6
"""Share of a kernel's trace, or of the largest form of all kernels, below which a negative one is let pass."""
_MENDING = "repair='clip', 'flip' or 'shift'"


@dataclass(frozen=True, eq=False)
class KernelFacts:
    """What is known of kernels before they are solved for.

    Parameters
    ----------
    names
        For messages; numbers stand for them where there are none.
    traces
        tr K of each, (n,), before centering took any of it away; not known where None.
    precision
        ε, by the precision in which they are stored.
    """

    names: tuple[str, ...] = ()
    traces: Float | None = None
    precision: float = 0.0

    def select(self, kernels: Index | None) -> KernelFacts:
        """The same of some of the kernels; of all where None."""
        if kernels is None:
            return self
        names = tuple(self.names[j] for j in kernels) if self.names else ()
        return replace(self, names=names, traces=None if self.traces is None else self.traces[kernels])

    @property
    def noise(self) -> Float | float:
        """How far below zero rounding may take xᵀKx of unit vectors x, (n,): ε tr K."""
        return 0.0 if self.traces is None else self.precision * self.traces

    def name(self, j: int) -> str:
        """A kernel as messages call it."""
        return repr(self.names[j]) if self.names else f"number {j}"


UNKNOWN = KernelFacts()
"""Of kernels in memory, of which nothing was said."""


def check_forms(q: Float, facts: KernelFacts, size: float, noise: float = 0.0) -> None:
    """Refuse quadratic forms that prove a kernel not to be positive semidefinite.

    Parameters
    ----------
    q
        (n,), αᵀK_jα or a multiple of it.
    facts
        Of the kernels.
    size
        The same multiple of ‖α‖².
    noise
        How far below zero the arithmetic may take them.

    Raises
    ------
    IndefiniteKernelError
        Naming the kernel.
    """
    least = max(_NOTHING * float(np.abs(q).max()), noise)
    allowed = np.broadcast_to(np.maximum(least, size * facts.noise), q.shape)
    worst = int(np.argmin(q + allowed))
    if q[worst] < -allowed[worst]:
        msg = (
            f"kernel {facts.name(worst)} is not positive semidefinite: αᵀKα is negative ({q[worst]:.3g}, the largest "
            f"of all kernels is {q.max():.3g}, and rounding explains {allowed[worst]:.3g}). Run `dmkl check`; mend it "
            f"with {_MENDING}, or leave it out with select()"
        )
        raise IndefiniteKernelError(msg)


def lowest_on_span(inner: Float, forms: Array) -> Float:
    """The smallest xᵀK_jx of unit vectors x in the span of some vectors V, (n,): an upper bound of its eigenvalues.

    Parameters
    ----------
    inner
        VᵀV, (r, r).
    forms
        VᵀK_jV, (n, r, r).
    """
    values, vectors = np.linalg.eigh(inner)
    kept = values > 1e-10 * values[-1]
    basis = vectors[:, kept] / np.sqrt(values[kept])
    symmetric = 0.5 * (forms + forms.transpose(0, 2, 1))
    return np.asarray(np.linalg.eigvalsh(basis.T @ symmetric @ basis)[:, 0])


def tell_indefinite(lowest: Float, facts: KernelFacts) -> None:
    """Warn of kernels that were fitted though they are not positive semidefinite (IndefiniteKernelWarning).

    Parameters
    ----------
    lowest
        An upper bound of the lowest eigenvalue of each kernel, (n,).
    facts
        Of the kernels; nothing is told where their traces are not known.
    """
    if facts.traces is None:
        return
    share = lowest / np.maximum(facts.traces, np.finfo(np.float64).tiny)
    found = np.flatnonzero(share < -max(2.0 * facts.precision, _NOTHING))
    if len(found):
        worst = sorted(found.tolist(), key=lambda j: float(share[j]))
        shown = ", ".join(f"{facts.name(j)} ({share[j]:.1e} of its trace)" for j in worst[:3])
        msg = (
            f"{len(found)} of {len(lowest)} kernels are not positive semidefinite, by an eigenvalue of at most: {shown}"
            f"{' …' if len(found) > 3 else ''}. Gaps take them to be; `dmkl check` tells how negative they are, and "
            f"importing with {_MENDING} mends them"
        )
        warn(msg, IndefiniteKernelWarning)
