"""Whether kernels are positive semidefinite, apart from rounding: tests of forms, ends of spectra, and repair.

Entries stored to a relative ε change K by E with ‖E‖₂ ≤ ‖E‖_F ≤ ε‖K‖_F ≤ ε tr K, so that αᵀKα of a positive
semidefinite kernel may be as low as −‖α‖² ε tr K after rounding. A tolerance relative to the largest form would not
cover this where α is almost in the null space of every kernel, as for small λ and kernels of low rank.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from dmkl.arrays import Array, Float, Index
from dmkl.errors import IndefiniteKernelError, IndefiniteKernelWarning, warn

# Fraction of a kernel's trace, or of the largest form of all kernels, below which a negative form is accepted.
_NOTHING = 1e-6
_REPAIR = "repair='clip', 'flip' or 'shift'"
WAY_OUT = f"Run `dmkl check`; repair it with {_REPAIR}, or leave it out with select()"
"""Advice about a kernel that is not positive semidefinite."""


@dataclass(frozen=True, eq=False)
class KernelFacts:
    """The properties of kernels that are known before solving."""

    names: tuple[str, ...] = ()  # Without them kernels are numbered in messages
    traces: Float | None = None  # tr K of each kernel, (n,), before centering removed any of it
    precision: float = 0.0  # ε of the precision in which the kernels are stored

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

    @property
    def allowed(self) -> Float | None:
        """How far below zero an eigenvalue may be before it is reported, (n,): twice the error of stored entries."""
        return None if self.traces is None else np.asarray(max(2.0 * self.precision, _NOTHING) * self.traces)

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
            f"of all kernels is {q.max():.3g}, and rounding explains {allowed[worst]:.3g}). {WAY_OUT}"
        )
        raise IndefiniteKernelError(msg)


def lowest_on_span(inner: Float, forms: Array, facts: KernelFacts) -> Float:
    """Upper bounds of the lowest eigenvalues, (n,): min xᵀK_jx over unit x in the span of V, from VᵀV and VᵀK_jV.

    They are zero for kernels without an eigenvalue below −`facts.allowed` in the span.
    """
    lowest = np.zeros(len(forms))
    if facts.allowed is None:
        return lowest
    values, vectors = np.linalg.eigh(inner)
    # V may be nearly dependent: directions with a tiny eigenvalue of VᵀV have lost their digits and are left out. With
    # VᵀV = QΛQᵀ the columns of VQΛ^{−½} are orthonormal, and the restricted form is a small symmetric eigenproblem.
    kept = values > 1e-10 * values[-1]
    basis = vectors[:, kept] / np.sqrt(values[kept])
    for j, (form, allowed) in enumerate(zip(forms, facts.allowed, strict=True)):
        # VᵀK_jV + aVᵀV has a Cholesky factor where no eigenvalue is below −a; it takes a tenth of the time of these.
        try:
            np.linalg.cholesky(form + allowed * inner)
        except np.linalg.LinAlgError:
            restricted = basis.T @ form @ basis
            # Rounding makes VᵀK_jV slightly asymmetric, and `eigvalsh` would read one triangle alone.
            lowest[j] = np.linalg.eigvalsh(0.5 * (restricted + restricted.T))[0]
    return lowest


def tell_indefinite(lowest: Float, facts: KernelFacts) -> None:
    """Warn of kernels that were fitted although they are not positive semidefinite (IndefiniteKernelWarning).

    `lowest` are upper bounds of the lowest eigenvalue of each kernel, (n,). There is no warning if traces are unknown.
    """
    if facts.traces is None or facts.allowed is None:
        return
    indefinite = np.flatnonzero(lowest < -facts.allowed)
    if len(indefinite):
        # Relative to the trace, since the unit of a kernel is arbitrary.
        share = lowest / np.maximum(facts.traces, np.finfo(np.float64).tiny)
        worst = sorted(indefinite.tolist(), key=lambda j: float(share[j]))
        shown = ", ".join(f"{facts.name(j)} ({share[j]:.1e} of its trace)" for j in worst[:3])
        msg = (
            f"{len(indefinite)} of {len(lowest)} kernels are not positive semidefinite, by an eigenvalue of at most: "
            f"{shown}{' …' if len(indefinite) > 3 else ''}. Gaps assume that they are; `dmkl check` shows how negative "
            f"they are, and importing with {_REPAIR} repairs them"
        )
        warn(msg, IndefiniteKernelWarning)


@dataclass(frozen=True)
class Extremes:
    """Ritz values at both ends of a spectrum."""

    lowest: float
    lowest_bound: float
    highest: float
    """Rayleigh quotients of the computed vectors, so these are proven: the matrix has an eigenvalue of at most
    `lowest`, and one of at least `highest`."""
    highest_bound: float
    """Residual norms ‖Kx − θx‖: an eigenvalue (not always the extreme one) is this close to the Ritz value."""
    steps: int  # number of products

    def scaled(self, factor: float) -> Extremes:
        """The values for the matrix times a positive factor."""
        lowest, lowest_bound = self.lowest * factor, self.lowest_bound * factor
        return Extremes(lowest, lowest_bound, self.highest * factor, self.highest_bound * factor, self.steps)


def extreme_eigenvalues(
    matvec: Callable[[Array], Array], size: int, *, n_steps: int, rng: np.random.Generator
) -> Extremes:
    """Estimate the lowest and the highest eigenvalue by Lanczos' method with full re-orthogonalization.

    From a random start q_1 build an orthonormal basis of the Krylov space in which K is tridiagonal,

        K q_k = β_{k−1} q_{k−1} + α_k q_k + β_k q_{k+1},

    and take the extreme eigenvalues θ of that matrix; the residual is β_k |s|, s the last entry of θ's eigenvector.

    `matvec` maps v to Kv, of length `size` in float64, at most n_steps times; the basis takes n_steps × size × 8 bytes.
    """
    basis = np.empty((min(n_steps, size), size))
    diagonal: list[float] = []
    off_diagonal: list[float] = []
    vector = rng.standard_normal(size)
    vector /= np.linalg.norm(vector)
    for k in range(len(basis)):
        basis[k] = vector
        # A copy, since the product may be in a buffer of the caller.
        product = np.array(matvec(vector), dtype=np.float64)
        diagonal.append(float(vector @ product))
        # Orthogonalize against the whole basis, not the last two vectors alone: converged eigenvalues would reappear;
        # twice, since one pass loses the digits of a product that was nearly parallel to the basis.
        for _ in range(2):
            product -= basis[: k + 1].T @ (basis[: k + 1] @ product)
        off_diagonal.append(float(np.linalg.norm(product)))
        # The space is invariant: this start vector shows no further eigenvalues, and what remains is rounding.
        if off_diagonal[-1] <= 1e-13 * max(*map(abs, diagonal), *off_diagonal[:-1], 0.0):
            break
        vector = product / off_diagonal[-1]
    import scipy.linalg

    values, vectors = scipy.linalg.eigh_tridiagonal(np.array(diagonal), np.array(off_diagonal[:-1]))
    # ‖Kx − θx‖ = β_k |s|, with s the last entry of the eigenvector of the tridiagonal matrix: no further product.
    residuals = off_diagonal[-1] * np.abs(vectors[-1])
    return Extremes(float(values[0]), float(residuals[0]), float(values[-1]), float(residuals[-1]), steps=len(diagonal))


Repair = Literal["clip", "flip", "shift"]


def repair_psd(kernel: Array, method: Repair) -> tuple[Float, float]:
    """Replace the negative part of the spectrum of a symmetric matrix (m, m); also returns its lowest eigenvalue or 0.

    With the eigendecomposition K = U diag(w) Uᵀ: "clip" sets negative w to zero (the nearest positive semidefinite
    matrix in Frobenius norm), "flip" takes |w|, "shift" adds −min(w) to every eigenvalue when min(w) < 0.
    """
    import scipy.linalg

    symmetric = np.array(kernel, dtype=np.float64)
    symmetric += symmetric.T
    symmetric *= 0.5
    # A shift needs the lowest eigenvalue alone, without eigenvectors: a fraction of the time of the other two.
    if method == "shift":
        lowest = float(scipy.linalg.eigh(symmetric, eigvals_only=True, subset_by_index=[0, 0])[0])
        if lowest < 0:
            symmetric[np.diag_indices_from(symmetric)] -= lowest
        return symmetric, min(lowest, 0.0)
    values, vectors = scipy.linalg.eigh(symmetric)
    lowest = float(values[0])
    if lowest >= 0:
        return symmetric, 0.0
    mended = np.abs(values) if method == "flip" else np.maximum(values, 0.0)
    repaired = (vectors * mended) @ vectors.T
    return 0.5 * (repaired + repaired.T), lowest


def worst_minor(block: Array, diag_rows: Array, diag_cols: Array, tolerance: float) -> tuple[float, int, int] | None:
    """Search for a 2 × 2 principal minor that proves a matrix indefinite: K_ij² > K_ii K_jj for i ≠ j.

    A negative K_ii is a proof by itself and is left to the caller. In a block on the diagonal, its diagonal entries are
    compared as pairs of equal samples, and are reported only if K_ii < 0.

    The block (r, c) holds the entries K_ij of rows and columns with the given diagonal entries; `tolerance` is the
    relative excess that rounding explains. Returns the lower eigenvalue of the worst minor, an upper bound of the
    matrix's lowest eigenvalue, with its row and column in the block.
    """
    # √a·√b and not √(ab), which could overflow or underflow.
    limit = np.sqrt(np.maximum(diag_rows, 0.0))[:, None] * np.sqrt(np.maximum(diag_cols, 0.0))[None, :]
    excess = np.abs(block) - (1.0 + tolerance) * limit
    i, j = np.unravel_index(int(np.argmax(excess)), excess.shape)
    if not excess[i, j] > tolerance * max(float(np.abs(diag_rows).max()), float(np.abs(diag_cols).max())):
        return None
    a, b, k = float(diag_rows[i]), float(diag_cols[j]), float(block[i, j])
    # The lower eigenvalue of [[a, k], [k, b]]; by Cauchy's interlacing theorem it is at least that of the whole matrix.
    return 0.5 * (a + b) - float(np.hypot(0.5 * (a - b), k)), int(i), int(j)
