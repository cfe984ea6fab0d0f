"""Cholesky factors, also of symmetric matrices with only their lower triangle stored.

SciPy's functions hold the interpreter's lock (GIL), so that tasks that factorize in threads would wait for one another.
Here the same routines of the same library are called through the addresses in `scipy.linalg.cython_lapack` and
`cython_blas`, which releases the lock. Matrices are column-major, and are overwritten if the docstring says so.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.linalg
import scipy.linalg.cython_blas
import scipy.linalg.cython_lapack
from scipy.linalg.lapack import dpstrf

from dmkl.arrays import Array, Float, Index
from dmkl.errors import DegenerateKernelError, IndefiniteKernelError

Argument = Array | bytes | int | float


def call(name: str, *arguments: Argument) -> None:
    """Call a routine without a status, such as "dsymm"; a Python float is passed in double precision."""
    _routine(name, len(arguments))(*map(_pointer, arguments))


def status(name: str, *arguments: Argument) -> int:
    """Call a routine such as "dpotrf", and return its status, the last argument, left out here; 0 is success."""
    info = ctypes.c_int(0)
    _routine(name, len(arguments) + 1)(*map(_pointer, arguments), ctypes.byref(info))
    if info.value < 0:
        msg = f"argument {-info.value} of LAPACK's {name} is wrong"
        raise ValueError(msg)
    return info.value


def add_gram(total: Float, rows: Float) -> None:
    """Add XᵀX, X (n, d), to the upper triangle of a column-major (d, d) array, in place.

    A new (d, d) array for each strip of rows would take as long as its product.
    """
    (n, d), rows = rows.shape, np.ascontiguousarray(rows)
    call("dsyrk", b"U", b"N", d, n, 1.0, rows, d, 1.0, total, d)


def _pointer(value: Argument) -> Any:
    if isinstance(value, np.ndarray):
        return ctypes.c_void_p(value.ctypes.data)
    if isinstance(value, bytes):
        return ctypes.c_char_p(value)
    return ctypes.byref(ctypes.c_int(value) if isinstance(value, int) else ctypes.c_double(value))


@cache
def _routine(name: str, n_arguments: int) -> Callable[..., None]:
    """A routine by its address; ctypes releases the interpreter's lock while it runs."""
    lapack, blas = (vars(module)["__pyx_capi__"] for module in (scipy.linalg.cython_lapack, scipy.linalg.cython_blas))
    capsule = lapack[name] if name in lapack else blas[name]
    get_name = ctypes.pythonapi.PyCapsule_GetName
    get_name.restype, get_name.argtypes = ctypes.c_char_p, [ctypes.py_object]
    get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
    get_pointer.restype, get_pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    # Fortran takes every argument by reference, so all are declared as pointers: byref, c_char_p and c_void_p pass.
    return ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * n_arguments)(get_pointer(capsule, get_name(capsule)))


# --- Cholesky factors ----------------------------------------------------------------------------------------------

# Rows or columns that are processed at once.
_BLOCK = 64
_PREFIX = {np.dtype(np.float32): "s", np.dtype(np.float64): "d"}


@dataclass(frozen=True, eq=False)
class Cholesky:
    """The factor L of A = LLᵀ, a positive definite matrix, in single or double precision."""

    lower: Array  # L, (m, m), column-major; the part above the diagonal is undefined

    @classmethod
    def of(cls, matrix: Array) -> Cholesky:
        """Factorize a symmetric matrix, of which only the lower triangle is read; a column-major one is overwritten.

        LinAlgError is raised if it is not positive definite.
        """
        # A factor of one triangle needs half the operations and memory traffic; the upper triangle is never touched.
        lower = np.asfortranarray(matrix)
        info = status(_PREFIX[lower.dtype] + "potrf", b"L", len(lower), lower, len(lower))
        if info:
            msg = f"the leading minor of order {info} is not positive"
            raise np.linalg.LinAlgError(msg)
        return cls(lower)

    def solve(self, b: Array) -> Array:
        """A⁻¹B for B (m,) or (m, c)."""
        m = len(self.lower)
        solved = np.array(b, dtype=self.lower.dtype, order="F")
        status(_PREFIX[self.lower.dtype] + "potrs", b"L", m, solved.size // max(m, 1), self.lower, m, solved, m)
        return solved

    def half_solve(self, b: Array, *, transposed: bool = False) -> Array:
        """L⁻¹B, or L⁻ᵀB, for B (m, c); a column-major B is overwritten.

        (L⁻¹B)ᵀL⁻¹B = BᵀA⁻¹B, by half the operations of A⁻¹B.
        """
        m, how = len(self.lower), b"T" if transposed else b"N"
        solved = np.asfortranarray(b, dtype=self.lower.dtype)
        status(_PREFIX[self.lower.dtype] + "trtrs", b"L", how, b"N", m, solved.shape[1], self.lower, m, solved, m)
        return solved

    def half_product_transposed(self, b: Array) -> Array:
        """LᵀB for B (m, c)."""
        m = len(self.lower)
        product = np.array(b, dtype=self.lower.dtype, order="F")
        unit, name = np.ones(1, dtype=self.lower.dtype), _PREFIX[self.lower.dtype] + "trmm"
        call(name, b"L", b"L", b"T", b"N", m, product.shape[1], unit, self.lower, m, product, max(m, 1))
        return product

    def inverse(self) -> Array:
        """A⁻¹, (m, m)."""
        m = len(self.lower)
        inverse = self.lower.copy(order="F")
        status(_PREFIX[self.lower.dtype] + "potri", b"L", m, inverse, m)
        return mirrored(inverse)

    def congruent(self, matrix: Array) -> Array:
        """L⁻¹BL⁻ᵀ for a symmetric B, (m, m): half the operations of two products with L⁻¹."""
        m = len(self.lower)
        product = np.array(matrix, dtype=self.lower.dtype, order="F")
        status(_PREFIX[self.lower.dtype] + "sygst", 1, b"L", m, product, m, self.lower, m)
        return mirrored(product)

    def inverse_diagonal(self) -> Array:
        """The diagonal of A⁻¹, (m,): the squared lengths of the columns of L⁻¹, which overwrites L."""
        m, inverse = len(self.lower), self.lower
        diagonal = np.empty(m, inverse.dtype)
        status(_PREFIX[self.lower.dtype] + "trtri", b"L", b"N", m, inverse, m)
        # (A⁻¹)_jj = Σ_i (L⁻¹)_ij²: L⁻¹ costs m³/3 operations, and A⁻¹ itself need not be formed.
        for start in range(0, m, _BLOCK):
            stop = min(start + _BLOCK, m)
            square, below = np.tril(inverse[start:stop, start:stop]), inverse[stop:, start:stop]
            diagonal[start:stop] = np.einsum("ij,ij->j", square, square) + np.einsum("ij,ij->j", below, below)
        return diagonal


def mirrored(lower: Array) -> Array:
    """Copy the lower triangle of a column-major matrix to its upper triangle, in place."""
    for i in range(0, len(lower), _BLOCK):
        j = min(i + _BLOCK, len(lower))
        # Blocks keep both the rows read and the columns written in the cache.
        square = lower[i:j, i:j]
        square[:] = np.tril(square) + np.tril(square, -1).T
        lower[i:j, j:] = lower[j:, i:j].T
    return lower


# --- triangles of symmetric matrices -------------------------------------------------------------------------------

_PANEL = 256


class LowerTriangle:
    """A symmetric matrix with a correct lower triangle only, assembled from parts of its upper triangle."""

    def __init__(self, order: Index, dtype: npt.DTypeLike = np.float64) -> None:
        self.order: Index | None = order  # The position of each row among the samples; None if equal
        # Column-major, as LAPACK expects. A row-major part above the diagonal is, read column-major, its transpose
        # below the diagonal: each part is copied without a transposition, and the upper triangle is never touched.
        self.entries: Array = np.zeros((len(order), len(order)), dtype=dtype, order="F")
        self._sums: Float = np.zeros(len(order))

    def put(self, rows: slice, cols: slice, part: Float) -> None:
        """Set a part on or above the diagonal; a part on the diagonal is itself symmetric."""
        self.entries.T[rows, cols] = part
        # The row sums are collected while the part is in the cache: centering without weights then needs no product.
        self._sums[rows] += part.sum(axis=1)
        if rows != cols:
            self._sums[cols] += part.sum(axis=0)

    def center(self, weights: Array | None = None) -> None:
        """Center over the samples, with weights that sum to one if given, after all parts are put."""
        if weights is None:
            means = self._sums / len(self._sums)
            grand = means.mean()
        else:
            weights = weights if self.order is None else weights[self.order]
            means = self._product(weights)
            grand = means @ weights
        # K_ij − u_i − u_j + c in the lower triangle, with u the means and c their mean.
        for start in range(0, len(means), _PANEL):
            panel = self.entries[start:, start : start + _PANEL]
            panel -= means[start:, None]
            panel -= (means[start : start + _PANEL] - grand)[None, :]
        self._sums = np.zeros_like(means) if weights is None else self._product(np.ones_like(means))

    def scale(self, factor: Array) -> None:
        """Multiply rows and columns by numbers."""
        factor = factor if self.order is None else factor[self.order]
        self.entries *= factor[:, None]
        self.entries *= factor[None, :]
        self._sums = self._product(np.ones_like(factor))

    def _product(self, v: Array) -> Float:
        """K v, from the lower triangle."""
        symv = scipy.linalg.blas.dsymv if self.entries.dtype == np.float64 else scipy.linalg.blas.ssymv
        return np.asarray(symv(1.0, self.entries, v.astype(self.entries.dtype, copy=False), lower=1))

    def take(self, positions: Index) -> None:
        """Keep the samples at these positions, in this order."""
        if self.order is not None:
            positions = np.argsort(self.order)[positions]
        # Rows in a new order mix the two triangles, so that both are needed here.
        self.entries = np.asfortranarray(mirrored(self.entries)[np.ix_(positions, positions)])
        self._sums, self.order = self.entries.sum(axis=1), None

    def whole(self) -> Float:
        """Both triangles, (m, m), with rows in the order of the samples; `entries` are overwritten."""
        whole = mirrored(self.entries).T  # symmetric, and row-major this way
        if self.order is None or np.array_equal(self.order, np.arange(len(whole))):
            return whole
        back = np.argsort(self.order)
        return np.ascontiguousarray(whole[np.ix_(back, back)])


# --- factors of I + K/λ --------------------------------------------------------------------------------------------


class OrderedFactor:
    """A factor of a matrix over samples; `order` is the position of each of its rows among them, None for the same."""

    def __init__(self, factor: Cholesky, order: Index | None = None) -> None:
        self.factor, self.order = factor, order
        self.size = len(factor.lower)  # m
        self._samples: Any = slice(None) if order is None else order

    def solve(self, b: Array) -> Float:
        """A⁻¹B for B (m, c), in double precision."""
        solved = np.empty(b.shape)
        solved[self._samples] = self.factor.solve(b[self._samples])
        return solved

    def root_of_forms(self, products: Array) -> Float:
        """R, (n, min(n, c·m)), in double precision, with (RRᵀ)_ij = Σ_k W_ikᵀA⁻¹W_jk for W (n, m, c)."""
        n, m, c = products.shape
        # (L⁻¹W_i)ᵀL⁻¹W_j takes half the solves of W_iᵀA⁻¹W_j. `half_solve` overwrites this copy.
        rows = np.empty((n, c, m), dtype=self.factor.lower.dtype)
        rows[:] = products.transpose(0, 2, 1)[:, :, self._samples]
        halves = self.factor.half_solve(rows.reshape(n * c, m).T).T.reshape(n, c * m)
        return compressed(halves.astype(np.float64, copy=False))

    def inverse_diagonal(self) -> Float:
        """The diagonal of A⁻¹, (m,), in double precision; L is overwritten."""
        diagonal = np.empty(self.size)
        diagonal[self._samples] = self.factor.inverse_diagonal()
        return diagonal


def compressed(rows: Float) -> Float:
    """R, (n, min(n, r)), with the inner products of these rows (n, r): RRᵀ is the same matrix."""
    return rows if rows.shape[1] <= len(rows) else np.asarray(np.linalg.qr(rows.T, mode="r")).T


def pivoted_root(matrix: Float) -> Float:
    """R, (m, rank), with RRᵀ = A up to rounding for a positive semidefinite A (m, m): a pivoted Cholesky factor."""
    lower, pivots, rank, _ = dpstrf(matrix, lower=1)
    root = np.empty((len(matrix), rank))
    root[pivots - 1] = np.tril(lower[:, :rank])
    return root


def not_positive_definite(lam: float) -> IndefiniteKernelError:
    """The error where I + K(β)/λ has no Cholesky factor."""
    msg = (
        f"I + K(β)/λ is not positive definite at λ = {lam:g}: a kernel has an eigenvalue below −λ over these samples. "
        "Run `dmkl check`; repair such kernels with repair='clip', 'flip' or 'shift', leave them out with select(), or "
        "take a larger λ"
    )
    return IndefiniteKernelError(msg)


def definite_factor(system: Array, lam: float) -> Cholesky:
    """`Cholesky.of` a system A = ½(I + K(β)/λ); IndefiniteKernelError if it is not positive definite."""
    try:
        return Cholesky.of(system)
    except np.linalg.LinAlgError as error:
        raise not_positive_definite(lam) from error


class Factor(OrderedFactor):
    """The Cholesky factor of A = ½(I + K(β)/λ); IndefiniteKernelError if A is not positive definite.

    Only the lower triangle of `combined`, K(β) (m, m), is read; it is overwritten.
    """

    def __init__(self, combined: Float, lam: float, order: Index | None = None) -> None:
        # A is formed in place of K(β): one matrix of 8·m² bytes in all. A ⪰ ½I for positive semidefinite kernels, so a
        # failed factorization proves an eigenvalue of K(β) below −λ (up to rounding).
        combined *= 0.5 / lam
        combined[np.diag_indices_from(combined)] += 0.5
        super().__init__(definite_factor(combined, lam), order)

    def log_determinant(self) -> Float:
        """log|A|, (1,)."""
        return np.array([2.0 * np.log(np.diagonal(self.factor.lower)).sum()])

    def inverse(self, order: Index | None = None) -> Float:
        """A⁻¹ of the samples at these positions, in this order; of all samples in their order where None."""
        inverse, have = self.factor.inverse(), np.arange(self.size) if self.order is None else self.order
        wanted = np.arange(self.size) if order is None else order
        if np.array_equal(have, wanted):
            return inverse
        places = np.argsort(have)[wanted]
        return inverse[np.ix_(places, places)]


# --- factors that need not be trusted ------------------------------------------------------------------------------

Solve = Callable[[Float], Float]
"""Maps B to an approximate solution X of MX = B."""
# Largest share of the bound that the error of the solution may contribute.
_SHARP = 0.02
_REFINEMENTS = 8


class RoughFactor(OrderedFactor):
    """An approximate solver of MX = B, M = ½(I + K/ρ), by a Cholesky factor in single precision: 4·m² bytes.

    Its solutions have no guarantee by themselves: see `refined_and_bounded`.
    """

    @classmethod
    def of(cls, matrix: Callable[[], tuple[Array, Index | None]], ridge: float) -> RoughFactor:
        """Factorize M for a ridge ρ; if rounding makes it indefinite, a multiple of the identity is added to it.

        `matrix` makes K anew, column-major, with a correct lower triangle, which is overwritten, and the order of its
        rows. DegenerateKernelError is raised if K is not finite.
        """
        shift = 0.0
        while True:
            lower, order = matrix()
            lower *= lower.dtype.type(0.5 / ridge)
            # Every (m + 1)-th entry of the flat matrix, as a view: the diagonal of a contiguous matrix.
            diagonal = lower.reshape(-1, order="A")[:: len(lower) + 1]
            diagonal += lower.dtype.type(0.5 + shift)
            largest = float(np.abs(diagonal).max())
            if not np.isfinite(largest):
                msg = "a sum of the kernels is not finite, though stored kernels are; run `dmkl check`"
                raise DegenerateKernelError(msg)
            try:
                return cls(Cholesky.of(lower), order)
            except np.linalg.LinAlgError:
                # Rounding of the factorization moves eigenvalues by a few ε‖M‖. The first shift is of that size, and
                # further ones grow tenfold. A failed attempt destroys the matrix, so it is made anew.
                shift = max(10.0 * shift, 8.0 * float(np.finfo(lower.dtype).eps) * largest)


def refined_and_bounded(
    x: Float,
    solve: Solve,
    product: Callable[[Float], Float],
    ridge: Float | float,
    b: Float,
    bounded: Array | bool = True,
) -> tuple[Float, Float]:
    """An approximate solution X of MX = B, and an upper bound of bᵀM⁻¹b for each column, for M = ½(I + K/ρ), K ⪰ 0.

    For any x and r = b − Mx, since M ⪰ ½I,

        bᵀM⁻¹b = xᵀ(b + r) + rᵀM⁻¹r ≤ xᵀ(b + r) + 2‖r‖²,

    so the bound holds for any factor. Conjugate gradients with the factor refine the solution until the last term is
    small, or only its estimate by the factor where the bound of a column is not wanted (`bounded`, (c,)). `x` is what
    `solve` returns for B, (m, c); the factor may be that of another ridge, which takes more steps, two to four for a
    ratio of ten. `product` maps X to KX in double precision, and `ridge` is ρ of all columns or of each, (c,).
    """
    r, direction, x = b, x, np.zeros_like(b)
    live, gain, bounds = np.arange(b.shape[1]), np.sum(r * direction, axis=0), np.full(b.shape[1], np.inf)
    ridges, bounded = np.broadcast_to(ridge, len(live)), np.broadcast_to(bounded, len(live))
    for step in range(_REFINEMENTS):
        image = 0.5 * (direction + product(direction) / ridges[live])
        bend = np.sum(direction * image, axis=0)
        # Where rounding hides the curvature, the first step is that of an exact factor.
        length = np.divide(gain, bend, out=np.full(len(live), float(step == 0)), where=bend > 0)
        # r is b − Mx up to rounding in double precision: the proof above uses nothing else.
        x[:, live] += length * direction
        r = r - length * image
        left, form = 2.0 * np.sum(r * r, axis=0), np.sum(x[:, live] * (b[:, live] + r), axis=0)
        # A shifted factor may let the solution diverge in some columns; each bound holds.
        bounds[live] = np.minimum(bounds[live], form + left)
        if np.all(left <= _SHARP * form):
            break
        z = solve(r)
        before, gain = gain, np.sum(r * z, axis=0)
        rough = np.where(bounded[live], left, gain) > _SHARP * form
        slopes = (gain / np.maximum(before, np.finfo(float).tiny))[rough]
        live, r, gain, direction = live[rough], r[:, rough], gain[rough], z[:, rough] + slopes * direction[:, rough]
        if not len(live):
            break
    return x, bounds
