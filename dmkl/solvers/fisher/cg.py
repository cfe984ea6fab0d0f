"""MK-FDA by the wrapper method with blocked conjugate gradients, out of core: solver "cg".

The block method shares one Krylov space among all right-hand sides, which saves passes over the data. This is the form
with a QR factorization of the residual block at each step (BCGrQ: A. A. Dubrulle, Retooling the method of block
conjugate gradients, ETNA 12, 2001):

    Q φ = B − A X                       (thin QR)
    S = Q
    repeat  T = A S                     one pass over the kernels
            ξ = (SᵀT)⁻¹
            X = X + S ξ φ
            Q ζ = Q − T ξ               (thin QR)
            φ = ζ φ                     the residual is Q φ
            S = Q + S ζᵀ

It guards against what the textbook method does not. (1) Breakdown: residuals of different right-hand sides become
dependent as they converge, and the plain block method divides by a singular matrix; here Q keeps orthonormal columns
whatever the rank of the residual. (2) Indefinite operators: A = ½(I + K/λ) has no eigenvalue below ½, so a Rayleigh
quotient of the directions clearly below that proves that a kernel is not positive semidefinite, which raises an error.
(3) Drift: the products may be in single precision, so the residual of the recurrence is never used as a certificate;
the caller computes the true one and calls again.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import scipy.linalg

from dmkl import settings
from dmkl.arrays import Array, Float
from dmkl.errors import IndefiniteKernelError
from dmkl.passes.execute import check_memory, keeping, machine
from dmkl.solvers.fisher.mkfda import Evaluation
from dmkl.solvers.fisher.problem import FisherOptions, FisherSolver
from dmkl.solvers.fisher.wrapper import AlphaStep, side_by_side, wrapper
from dmkl.solvers.interface import CombinedProduct, Outcome, Request, Solver
from dmkl.solvers.jobs import Context, Job


@dataclass
class InverseModel:
    """A model of A⁻¹ from blocks S of the Krylov space of an iteration, and T = A S.

    On the span of S the model is the Galerkin approximation S (SᵀAS)⁻¹Sᵀ of A⁻¹; on its complement it is I/θ,
    where θ is the median Rayleigh quotient of the last block. (The bound A ⪰ ½I would give 2I there, which makes
    curvatures 7 to 22 times too large for λ = 1e-4.)

    If there are more columns than `capacity`, the first are kept: they span a block Krylov space of lower order, in
    which the Galerkin approximation is as good as that many steps of the iteration.
    """

    s: list[Float] = field(default_factory=list)
    t: list[Float] = field(default_factory=list)
    capacity: float = np.inf

    def add(self, s: Float, t: Float) -> None:
        """Add a block S and A S, as many columns as there is room for."""
        room = self.capacity - sum(block.shape[1] for block in self.s)
        if s.shape[1] > room:
            kept = slice(max(0, int(room)))
            s, t = s[:, kept].copy(), t[:, kept].copy()  # views would keep the whole block
        if s.shape[1]:
            self.s.append(s)
            self.t.append(t)

    def outside(self, w: Float, width: int) -> Float:
        """The dominant directions, at most `width` and orthonormal, of the part of W, (m, k), outside the span."""
        basis, _, _ = self._galerkin(len(w))
        # A W inside the span leaves only rounding, which is no direction and would cost a product.
        floor = 1e-20 * float(np.max(np.sum(w * w, axis=0), initial=0.0))
        rest = w - basis @ (basis.T @ w)
        width = min(width, *rest.shape)
        # The left singular vectors, from a Gram matrix.
        values, vectors = np.linalg.eigh(rest.T @ rest)
        keep = values[-width:] > max(1e-12 * float(values[-1]), floor)
        leading: Float = (rest @ vectors[:, -width:][:, keep]) / np.sqrt(values[-width:][keep])
        return leading

    def curvature(self, products: Array) -> Float:
        """Σ_k W_ikᵀA⁻¹W_jk under the model, (n, n), for W = K_jα_k, (n, m, c)."""
        n = products.shape[0]
        w = side_by_side(products)
        basis, values, vectors = self._galerkin(len(w))
        inner = basis.T @ w
        rest = w - basis @ inner
        coordinates = vectors.T @ inner
        inside = _gram(coordinates / np.maximum(values, 0.5)[:, None], coordinates, n)
        floor = 0.5
        if self.s:
            quotients = np.sum(self.s[-1] * self.t[-1], axis=0) / np.sum(self.s[-1] ** 2, axis=0)
            floor = max(floor, float(np.median(quotients)))
        return inside + _gram(rest, rest, n) / floor

    def _galerkin(self, m: int) -> tuple[Float, Float, Float]:
        """An orthonormal basis of the span, and the eigendecomposition of A on it."""
        if not self.s:
            return np.zeros((m, 0)), np.zeros(0), np.zeros((0, 0))
        s, t = np.concatenate(self.s, axis=1), np.concatenate(self.t, axis=1)
        basis, upper, pivots = scipy.linalg.qr(s, mode="economic", pivoting=True)
        diagonal = np.abs(np.diag(upper))
        rank = int(np.count_nonzero(diagonal > 1e-8 * diagonal[0]))
        basis = basis[:, :rank]
        # A on the basis, from S = basis · upper: A basis = T upper⁻¹.
        galerkin = basis.T @ scipy.linalg.solve_triangular(upper[:rank, :rank], t[:, pivots[:rank]].T, trans="T").T
        values, vectors = np.linalg.eigh(0.5 * (galerkin + galerkin.T))
        return np.asarray(basis, dtype=np.float64), np.asarray(values), np.asarray(vectors)


def _gram(a: Float, b: Float, n: int) -> Float:
    """Σ_k a_ikᵀb_jk for a, b (m, n·c) as `side_by_side` lays them out."""
    shape = len(a), n, a.shape[1] // n
    left, right = (x.reshape(shape).transpose(1, 0, 2).reshape(n, x.size // n) for x in (a, b))
    return left @ right.T


def block_cg(
    multiply: Callable[[Float], Generator[Any, Any, Float]],
    b: Float,
    target: float,
    max_iter: int,
    directions: InverseModel | None = None,
    n_wanted: int | None = None,
) -> Generator[Any, Any, tuple[Float, int]]:
    """Solve A X = B from X = 0 by requests that `multiply` makes for A S; returns X and the number of products.

    The iteration stops when ‖B − A X‖_F² of the recurrence, over the first `n_wanted` columns, is at most `target`, or
    after `max_iter` products; the other columns only enlarge the common space. `directions` collects S and A S.
    """
    x = np.zeros_like(b)
    q, phi = np.linalg.qr(b)
    s, done = q, 0
    carried = np.zeros_like(q)
    while done < max_iter and float(np.sum(phi[:, :n_wanted] ** 2)) > target:
        t = np.asarray((yield from multiply(s)), dtype=np.float64)
        done += 1
        gram = s.T @ t
        gram = 0.5 * (gram + gram.T)
        lowest = float(scipy.linalg.eigh(gram, s.T @ s, eigvals_only=True, subset_by_index=[0, 0])[0])
        # The limit is ½ minus the rounding of single-precision products, which grows with the largest eigenvalue.
        if lowest < 0.5 - 1e-4 * max(1.0, float(np.abs(gram).max())):
            msg = (
                "a kernel is not positive semidefinite: a direction has the Rayleigh quotient "
                f"{2 * lowest:.3g} of I + K(β)/λ, and positive semidefinite kernels give no less than 1. Run `dmkl "
                "check`; repair such kernels with repair='clip', 'flip' or 'shift', leave them out with select(), or "
                "take a larger λ"
            )
            raise IndefiniteKernelError(msg)
        if directions is not None:
            # The Q generate the same space as the S and are better conditioned: A Q = T − T_before ζᵀ.
            directions.add(q, t - carried)
        xi = np.linalg.solve(gram, np.eye(len(gram)))
        x += s @ (xi @ phi)
        q, zeta = np.linalg.qr(q - t @ xi)
        phi = zeta @ phi
        s = q + s @ zeta.T
        carried = t @ zeta.T
    return x, done


_COMPANIONS, _MOST_PRODUCTS = 54, 500  # Most companions, and most products of an iteration
_BLOCKS = 4  # Blocks that the model of A⁻¹ of each problem has room for if several problems run side by side
_WORKING, _OF_PRODUCTS, _OF_MODEL = 14, 6, 9
"""Arrays at the peak of a step: blocks of the width of an iteration, products with each kernel, and copies of the
directions (S and A S twice, their QR factorization and the images of its basis)."""


def _bytes_of(m: int, c: int, n: int, n_companions: int, n_directions: int) -> int:
    """Memory at the peak of a step for targets (m, c) and n kernels."""
    return 8 * m * (_WORKING * (c + n_companions) + _OF_PRODUCTS * n * c + _OF_MODEL * n_directions)


class _CGStep(AlphaStep):
    """The α-step by blocked conjugate gradients, with companions of H: one pass a product, and no matrix in memory."""

    def __init__(self, job: Job, tol: float, n_companions: int, n_directions: int) -> None:
        super().__init__(job.problem, job.facts)
        self._tol, self._n_companions, self._n_directions = tol, n_companions, n_directions
        self._directions = InverseModel()
        self._scale = float(np.sum(self.problem.h**2))
        self._beta: Float = np.empty(0)
        self._companions = np.zeros((len(self.problem.h), 0))

    def begin(self, beta: Float) -> Generator[Request, Any, Float]:
        self._beta = beta
        # Always from zero: the directions of a warm start would span too small a space to model A⁻¹ for the master.
        # Some room is left for directions that the master finds missing.
        self._directions = InverseModel(capacity=self._n_directions - self._n_companions)
        # |S| = ½ tr(Hᵀα) at the solution is not known yet. This residual suffices if λ is not tiny; otherwise the
        # certificate demands a refinement.
        h = self.problem.h
        # Companions: the directions that the model of A⁻¹ lacked in the last step. Up to some 64 columns they hardly
        # make a pass longer, and they add to the common space what the master needs.
        size = np.sqrt(self._scale / h.shape[1])
        together = np.concatenate([h, size * self._companions], axis=1)
        x = yield from self.correct(together, 0.01 * self._tol * self._scale)
        return x[:, : h.shape[1]]

    def correct(self, residual: Float, target: float) -> Generator[Request, Any, Float]:
        n_wanted = self.problem.h.shape[1]
        x, done = yield from block_cg(self._system, residual, target, _MOST_PRODUCTS, self._directions, n_wanted)
        self.products += done
        return x

    def curvature(self, evaluation: Evaluation) -> Generator[Request, Any, Float]:
        directions, products = self._directions, self.each_product
        missing = directions.outside(side_by_side(products), self._n_companions)
        directions.capacity = self._n_directions
        if missing.shape[1]:
            directions.add(missing, (yield from self._system(missing)))
        self._companions = missing
        return directions.curvature(products) / (4.0 * self.problem.lam**2)

    def _system(self, block: Float) -> Generator[Request, Any, Float]:
        """A S at the last weights."""
        product: Array = yield CombinedProduct(block, self._beta)
        return 0.5 * block + product.astype(np.float64, copy=False) / (2.0 * self.problem.lam)


def _solve(jobs: Sequence[Job], options: FisherOptions, context: Context) -> list[Outcome]:
    # Half of the memory budget is for the problems that run, at most as many as share one pass; passes use the rest.
    widest = max((job.problem.h for job in jobs), key=lambda h: h.size)
    (m, c), n, budget = widest.shape, max(job.n_kernels for job in jobs), machine().total_bytes // 2
    least_bytes = _bytes_of(m, c, n, 0, c)
    way_out = "Set dmkl.memory higher, or take solver='subspace', which keeps its vectors on disk"
    check_memory("solver='cg'", {"the least number of vectors": least_bytes}, budget, way_out, "at once")
    # Fewer problems side by side are better than models of too few directions, which cost more steps.
    ample_bytes = _bytes_of(m, c, n, _COMPANIONS, _BLOCKS * (c + _COMPANIONS))
    at_once = max(1, min(len(jobs), settings.block_width() // c, budget // ample_bytes))
    # At most a quarter of the memory is for the blocks of the iteration, and m directions span everything.
    columns = budget // at_once // (8 * m) - _OF_PRODUCTS * n * c
    n_companions = min(_COMPANIONS, max(0, columns // 4 // _WORKING - c))
    n_directions = min(m + n_companions, (columns - _WORKING * (c + n_companions)) // _OF_MODEL)

    def solver_of(job: Job) -> Solver[Outcome]:
        return wrapper(job.n_kernels, _CGStep(job, options.tol, n_companions, n_directions), options)

    with keeping(at_once * _bytes_of(m, c, n, n_companions, n_directions)):
        return context.drive(jobs, solver_of, at_once=at_once)


SOLVER = FisherSolver("cg", "wrapper method with blocked conjugate gradients, out of core", _solve)
