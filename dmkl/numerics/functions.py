"""Kernel functions of features, tile by tile.

Every function is computed in two steps, so that kernels that differ in a parameter share the first, the expensive one:

1. a *statistic* of all pairs of samples, a sum over columns that can be added up in panels of columns,

       dot          Σ_k x_k y_k
       sqeuclidean  Σ_k (x_k − y_k)², as ‖x‖² + ‖y‖² − 2x·y
       differences  Σ_k (x_k − y_k)², summed as it stands, so that its root has all digits
       l1           Σ_k |x_k − y_k|
       chi2         Σ_k (x_k − y_k)²/(x_k + y_k), 0/0 = 0
       minimum      Σ_k w_k min(x_k, y_k)
       given        the entries of a square matrix, of distances or of a kernel
       own          k(x, y) itself, of a function that the user gives

2. the *entries*, an elementwise function of it.

Sources: Schölkopf and Smola, Learning with Kernels (2002); chi2 and minimum: Zhang, Marszałek, Lazebnik, Schmid, IJCV
73 (2007), and Barla, Odone, Verri, ICIP (2003); tanimoto: Ralaivola, Swamidass, Saigo, Baldi, Neural Networks 18
(2005); jaccard: Ioffe, ICDM (2010); matern: Rasmussen and Williams, Gaussian Processes (2006), Eq. 4.17; pyramid:
Lazebnik, Schmid, Ponce, CVPR (2006), Eq. 3; proximity: Ling and Soatto, ICCV (2007).

Sums that BLAS does not have (chi2, minimum, l1, differences) are compiled on the first call, for each precision, and
cached on disk.
Neighboring j lie in one vector register, with k in the loop around, so that no sum has to be reordered for
vectorization; `_COLUMNS` columns of the result fit in the first-level cache. Zeros of x, which are most entries of a
histogram, need no division.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.special

from dmkl.arrays import Array, Float
from dmkl.numerics.compiling import compiled

_COLUMNS = 1024

# The sign of zeros may be lost, but no operation is reordered or contracted: each rounds as IEEE 754 says, on every
# machine. `compiled` leaves out the test for a division by zero, which would prevent vectorization.
_compiled = compiled({"nsz"})


@_compiled
def _add_pairs(l1: bool, squares: bool, chi2: bool, X: Array, YT: Array, out: Array) -> None:
    """Add Σ_k |x_ik − y_jk| or Σ_k (x_ik − y_jk)² for X (r, d) and Yᵀ (d, c) to out (r, c), or a sum of histograms.

    For X, Y ≥ 0 it is Σ_k (x_ik − y_jk)²/(x_ik + y_jk), 0/0 being 0, or Σ_k min(x_ik, y_jk).
    """
    for start in range(0, YT.shape[1], _COLUMNS):
        stop = min(YT.shape[1], start + _COLUMNS)
        for i in range(X.shape[0]):
            total = out[i, start:stop]
            for k in range(X.shape[1]):
                x = X[i, k]
                y = YT[k, start:stop]
                if l1:
                    for j in range(stop - start):
                        total[j] += abs(x - y[j])
                elif squares:
                    for j in range(stop - start):
                        apart = x - y[j]
                        total[j] += apart * apart
                elif x == 0:
                    # (0 − y)²/(0 + y) = y, and 0 for y = 0: no division. min(0, y) = 0 for y ≥ 0: nothing to add.
                    if chi2:
                        for j in range(stop - start):
                            total[j] += y[j]
                elif chi2:
                    for j in range(stop - start):
                        apart = x - y[j]
                        total[j] += apart * apart / (x + y[j])
                else:
                    for j in range(stop - start):
                        total[j] += min(x, y[j])


STATISTIC = dict.fromkeys(("linear", "polynomial", "cosine", "tanimoto"), "dot")
STATISTIC |= dict.fromkeys(("rbf", "random_rbf"), "sqeuclidean")
STATISTIC |= dict.fromkeys(("jaccard", "intersection", "pyramid", "proximity"), "minimum")
STATISTIC |= dict.fromkeys(("distance", "precomputed", "mean-given"), "given")
STATISTIC |= {"matern": "differences", "laplacian": "l1", "mean-l1": "l1", "chi2": "chi2", "mean-chi2": "chi2"}
STATISTIC |= {"own": "own", "product": "product"}
"""The statistic of each function. Those with "mean-" are the statistics themselves, for the means of bandwidths."""

BANDED = frozenset({"rbf", "laplacian", "matern", "chi2", "distance", "random_rbf"})
"""exp(−γs), and Matérn's functions of √(γs): functions with a bandwidth."""

UNIT = BANDED | {"tanimoto", "jaccard"}
"""Functions with k(x, x) = 1."""

NONNEGATIVE = frozenset({"chi2", "minimum"})
"""Statistics of histograms, which negative values make meaningless."""

PANEL = 2048
"""Columns that are added up at a time; this bounds the memory of a task for any number of features."""

_STRIP = 32


def precision(statistic: str, dtype: npt.DTypeLike) -> np.dtype[Any]:
    """The precision in which a statistic is added up, for kernels stored in `dtype`.

    ‖x‖² + ‖y‖² − 2x·y loses digits if samples are close to one another and far from the origin, so it is in float64.
    """
    return np.dtype(np.float64) if statistic == "sqeuclidean" else np.dtype(dtype)


@dataclass
class PairSum:
    """A statistic of all pairs of rows of X and Y, added up panel by panel of columns."""

    statistic: str  # one of dot, sqeuclidean, differences, l1, chi2, minimum
    total: Array  # the sum so far, (rows of X, rows of Y); overwritten

    def __post_init__(self) -> None:
        self._empty = True
        self.row_sizes = np.zeros(self.total.shape[0])
        self.col_sizes = np.zeros(self.total.shape[1])

    def add(self, X: Array, Y: Array) -> None:
        """Add some columns of X (r, d) and Y (c, d), both in the precision of the total."""
        self.row_sizes += sizes(self.statistic, X)
        self.col_sizes += sizes(self.statistic, Y)
        if self.statistic in ("dot", "sqeuclidean"):
            if self._empty:
                # In place: the total need not be zeroed, and no second matrix of its size is made.
                np.matmul(X, Y.T, out=self.total)
            else:
                self.total += X @ Y.T
        else:
            if self._empty:
                self.total[:] = 0
            both = np.ascontiguousarray(X), np.ascontiguousarray(Y.T)
            l1, squares, chi2 = (self.statistic == which for which in ("l1", "differences", "chi2"))
            _add_pairs(l1, squares, chi2, *both, self.total)
        self._empty = False

    def finish(self, *, same: bool) -> None:
        """Turn the sum into the statistic; `same` means that X and Y are the same rows."""
        if self.statistic != "sqeuclidean":
            return
        for start in range(0, len(self.total), _STRIP):  # a strip stays in the cache for all three steps
            strip = self.total[start : start + _STRIP]
            strip *= -2.0
            strip += self.row_sizes[start : start + _STRIP, None]
            strip += self.col_sizes[None, :]
            # Rounding can make the squared distance of close samples negative.
            np.maximum(strip, 0.0, out=strip)
        if same:
            np.fill_diagonal(self.total, 0.0)


def sizes(statistic: str, X: Array) -> Float:
    """The contribution of each row to s(x, x) or to its norm: Σx² for products, Σx for minima, (rows,) in float64."""
    if statistic in ("dot", "sqeuclidean"):
        return np.asarray(np.einsum("rd,rd->r", X, X, dtype=np.float64))
    if statistic == "minimum":
        return np.asarray(X.sum(axis=1, dtype=np.float64))
    return np.zeros(len(X))


def entries(
    function: str, parameters: Mapping[str, Any], pairs: Array, row_sizes: Float, col_sizes: Float, out: Array
) -> None:
    """Write the kernel's entries of a tile into `out`, (r, c), in the kernel's precision; `pairs` (r, c) is unchanged.

    Function and parameters are those of the table of `dmkl.build`, with a value for every number; the statistic `pairs`
    and the sizes are those of a `PairSum`.
    """
    if function == "matern":
        distances = np.sqrt(parameters["gamma"] * pairs) * np.sqrt(2 * parameters["nu"])
        np.copyto(out, np.exp(-distances) * (1 + _MATERN[parameters["nu"]](distances)), casting="same_kind")
    elif function in BANDED:
        # A strip stays in the cache between the multiplication and the exponential.
        for start in range(0, len(out), _STRIP):
            strip = out[start : start + _STRIP]
            np.multiply(pairs[start : start + _STRIP], -parameters["gamma"], out=strip, casting="same_kind")
            np.exp(strip, out=strip)
    elif function == "polynomial":
        base = parameters["gamma"] * pairs.astype(out.dtype, copy=False)
        base += parameters["coef0"]
        np.copyto(out, base)
        # A small integer power by products: faster than `power`, and the same on every machine.
        for _ in range(parameters["degree"] - 1):
            out *= base
    elif function == "cosine":
        # A sample of zeros has no direction: its row of the kernel is zero, and so is its k(x, x).
        np.multiply(pairs, _inverse_norms(row_sizes)[:, None], out=out, casting="same_kind")
        out *= _inverse_norms(col_sizes)[None, :]
    elif function in ("tanimoto", "jaccard"):
        union = row_sizes[:, None] + col_sizes[None, :] - pairs
        out[:] = 1.0  # of two samples of zeros
        np.divide(pairs, union, out=out, where=union > 0, casting="same_kind")
    else:
        np.copyto(out, pairs, casting="same_kind")


def diagonal(function: str, parameters: Mapping[str, Any], row_sizes: Float) -> Float:
    """k(x, x) of samples with these sizes, (rows,); for a square matrix only that of `distance`."""
    if function in UNIT:
        return np.ones_like(row_sizes)
    if function == "polynomial":
        power = (parameters["gamma"] * row_sizes + parameters["coef0"]) ** parameters["degree"]
        return np.asarray(power, dtype=np.float64)
    if function == "cosine":
        return (row_sizes > 0).astype(np.float64)
    return row_sizes


_MATERN: dict[float, Callable[[Array], Any]] = {
    0.5: lambda d: 0.0,
    1.5: lambda d: d,
    2.5: lambda d: d + d * d / 3,
}
"""The polynomials of d = √(2ν) r, less their constant 1, before exp(−d)."""


def _inverse_norms(squares: Float) -> Float:
    return np.divide(1.0, np.sqrt(squares), out=np.zeros_like(squares), where=squares > 0)


def sample_keys(names: Array, seed: int) -> npt.NDArray[np.uint64]:
    """64 pseudorandom bits for each sample, from its name alone: the same in every set that contains the sample."""
    prefix = f"{seed}\0".encode()
    digests = (hashlib.blake2b(prefix + str(name).encode(), digest_size=8).digest() for name in names)
    return np.frombuffer(b"".join(digests), dtype="<u8").astype(np.uint64)


def gaussians(keys: npt.NDArray[np.uint64], n_columns: int) -> Float:
    """A standard Gaussian vector for each key, (keys, n_columns)."""
    with np.errstate(over="ignore"):
        counter = np.arange(1, n_columns + 1, dtype=np.uint64) * np.uint64(0xD1342543DE82EF95)
        mixed = _scrambled(_scrambled(keys[:, None] + counter[None, :]))
    # The midpoints of 2⁵² equal intervals: never 0 or 1, where the quantile function is infinite.
    return np.asarray(scipy.special.ndtri((mixed >> np.uint64(12)) * 2.0**-52 + 2.0**-53))


def _scrambled(x: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
