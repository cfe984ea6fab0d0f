"""Covariances of two traits by kernel: Haseman-Elston regression of the products of two residuals.

The traits y_t = X_tb_t + Σ_j u_jt + e_t have Cov(u_js, u_jt) = σ_j,stK_j and Cov(e_s, e_t) = σ_e,stI. Each is known for
some of the samples. P_t sets the entries of the others to zero and takes the fixed effects X_t out, so that
r_t = P_ty_t is zero where y_t is unknown. With K_e = I the expected moments are

    E r_sᵀK_i r_t = Σ_j σ_j,st tr K_iP_sK_jP_t

which are linear equations for the σ_j,st. Their solution has no bias, whatever the distribution. Its errors follow from

    Cov(r_sᵀK_i r_t, r_uᵀK_j r_v) = tr K_iΣ_tuK_jΣ_vs + tr K_iΣ_tvK_jΣ_us,  Σ_st = P_s(Σ_j σ_j,stK_j)P_t

for normal traits, at the estimates. Traces are sums of zᵀAz over unit vectors z where samples are few, and otherwise
means over random vectors of signs. One pass gives moments and estimates, two more give the errors; where the products
do not fit in memory together, some of the vectors take these passes at a time.

Haseman, Elston: Behavior Genetics 2 (1972). Wu, Sankararaman: A scalable estimator of SNP heritability for
biobank-scale data. Bioinformatics 34 (2018).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from dmkl.arrays import Float, Index, Mask
from dmkl.numerics.alignment import sign_probes
from dmkl.passes.execute import machine
from dmkl.solvers.interface import CombinedProduct, EachProduct
from dmkl.solvers.variance import DEPENDENT, FEW_SAMPLES, Steps

PAIRS = ((0, 0), (0, 1), (1, 1))
"""Traits of the columns of the estimates: the variance of the first, the covariance, the variance of the second."""

TRAIT_VARIABLES = ("trait_covariance", "trait_covariance_se", "trait_correlation", "trait_correlation_se")


@dataclass(frozen=True, eq=False)
class TraitPair:
    """Two traits with their residuals on fixed effects, (m, 2), zero where a trait is unknown.

    `known` is 1 where a trait is known, (m, 2); `bases` are orthonormal bases of the fixed effects of each trait,
    (m, r), zero where it is unknown; `kernels` are the positions of those that have an estimate, of `n_kernels` in all.
    """

    residuals: Float
    known: Float
    bases: Sequence[Float]
    kernels: Index
    n_kernels: int
    n_probes: int
    seed: int

    @property
    def is_alike(self) -> bool:
        """Whether both traits have the same samples and fixed effects."""
        return np.array_equal(*self.known.T) and np.array_equal(self.bases[0], self.bases[1])

    def project(self, t: int, blocks: Float) -> Float:
        """P_tB of blocks (..., m, b)."""
        Q = self.bases[t]
        return np.asarray(self.known[:, [t]] * blocks - Q @ (Q.T @ blocks))

    def probes(self) -> list[Float]:
        """Vectors z whose sums of zᵀAz are the trace of A, in blocks that the passes take together."""
        m, n = len(self.known), self.n_kernels
        few = m <= FEW_SAMPLES
        vectors = np.eye(m) if few else sign_probes(m, self.n_probes, self.seed) / np.sqrt(self.n_probes)
        width = max(1, machine().total_bytes // 4 // (8 * m * 8 * (n + 1)))
        return np.array_split(vectors, -(-vectors.shape[1] // width), axis=1)


@dataclass(frozen=True, eq=False)
class TraitCovariances:
    """Estimates over the kernels and the residual, (n + 1, 3), for `PAIRS`, and their covariance, (n + 1, 3, n + 1, 3).

    `estimable` (n + 1,) says which have an estimate: not kernels that fixed effects explain, nor the residual of traits
    that are known for no common sample, and none if matrices are linearly dependent. The others are zero.
    """

    values: Float
    covariance: Float
    estimable: Mask

    def by_term(self) -> Float:
        """`TRAIT_VARIABLES` (4, n + 2, 3) over kernels, residual and the sum of all kernels, NaN without an estimate.

        Errors of the correlations, of which those of a trait with itself are 1, are from the delta method.
        """
        sums = np.vstack([np.eye(len(self.values)), np.append(np.ones(len(self.values) - 1), 0.0)])
        values = np.where((sums @ self.estimable > 0)[:, None], sums @ self.values, np.nan)
        covariance = np.einsum("ki,ipjq,kj->kpq", sums, self.covariance, sums)
        first, shared, second = values.T
        root = np.sqrt(np.where((first > 0) & (second > 0), first * second, np.nan))
        correlation, itself = shared / root, root / root
        slopes = np.stack([-0.5 * correlation / first, 1 / root, -0.5 * correlation / second], axis=1)
        variances = np.einsum("kp,kpq,kq->k", slopes, covariance, slopes)
        squares = np.stack([covariance.diagonal(axis1=1, axis2=2) + 0 * values, variances[:, None] * [0, 1, 0]])
        errors = np.sqrt(np.maximum(squares, 0.0))
        return np.stack([values, errors[0], np.stack([itself, correlation, itself], axis=1), errors[1]])


def trait_covariances(pair: TraitPair) -> Steps:
    """Estimate the (co)variances of two traits; returns `TraitCovariances`."""
    n, chunks = pair.n_kernels, pair.probes()

    def images_of(chunk: Float) -> Steps:
        """K_i of the residuals, of P_0z and of P_1z, each (n + 1, m, b)."""
        block = np.hstack([pair.residuals, *(pair.project(t, chunk) for t in (0, 1))])
        images = np.concatenate([(yield EachProduct(block)), block[None]])
        return np.split(images, [2, 2 + chunk.shape[1]], axis=2)

    grams = np.zeros((2, 2, n + 1, n + 1))
    for chunk in chunks:
        of_residuals, *images = yield from images_of(chunk)
        for s, t in product((0, 1), repeat=2):
            grams[s, t] += np.tensordot(images[t], pair.project(s, images[t]), ((1, 2), (1, 2)))
    moments = np.einsum("ms,jmt->jst", pair.residuals, of_residuals)
    inverses, values = np.zeros_like(grams), np.zeros((n + 1, 2, 2))
    for s, t in PAIRS:
        gram = 0.5 * (grams[s, t] + grams[t, s].T)
        some = np.array([k for k in (*pair.kernels, n) if gram[k, k] > 0], dtype=np.int64)
        size = np.sqrt(gram.diagonal()[some])
        correlations = gram[np.ix_(some, some)] / np.outer(size, size)
        if np.linalg.eigvalsh(correlations).min(initial=1.0) > DEPENDENT:
            inverses[s, t][np.ix_(some, some)] = np.linalg.inv(correlations) / np.outer(size, size)
        values[:, s, t] = values[:, t, s] = inverses[s, t] @ moments[:, s, t]
    # traces[s, t, u, v] are tr K_iΣ_tuK_jΣ_vs, from zᵀP_sK_iΣ_tu and K_jΣ_vsz.
    traces = np.zeros((2, 2, 2, 2, n + 1, n + 1))
    # Σ_utK_iP_sz of each s, t and u; of traits with the same samples and fixed effects it depends on u and t alone.
    every, pairs = [*product((0, 1), repeat=3)], [*product((0, 1), repeat=2)]
    key_of = {(s, t, u): (0, min(t, u), max(t, u)) if pair.is_alike else (s, t, u) for s, t, u in every}
    keys = sorted({*key_of.values()})
    for chunk in chunks:
        width = chunk.shape[1]
        _, *images = yield from images_of(chunk)
        covered = [pair.project(v, np.tensordot(values[:, v, s], images[s], 1)) for v, s in pairs]
        columns = np.concatenate([pair.project(t, images[s]) for s, t, _ in keys])
        weights = np.repeat(np.stack([values[:, u, t] for _, t, u in keys], axis=1), (n + 1) * width, axis=1)
        flat = np.ascontiguousarray(columns.transpose(1, 0, 2).reshape(len(chunk), -1))
        request = CombinedProduct(flat, weights[:-1], exact=True)
        products, combined = yield EachProduct(np.hstack(covered)), request
        combined = (combined + weights[-1] * flat).reshape(len(chunk), len(keys), n + 1, width)
        middle = np.concatenate([products, np.hstack(covered)[None]])
        middle = middle.reshape(n + 1, len(chunk), len(pairs), width)
        for (s, t, u), v in product(every, (0, 1)):
            left = pair.project(u, combined[:, keys.index(key_of[s, t, u])].transpose(1, 0, 2))
            traces[s, t, u, v] += np.tensordot(left, middle[:, :, pairs.index((v, s))], ((1, 2), (1, 2)))
    covariance = np.zeros((n + 1, 3, n + 1, 3))
    for (p, (s, t)), (q, (u, v)) in product(enumerate(PAIRS), repeat=2):
        both = traces[s, t, u, v] + traces[s, t, v, u]
        covariance[:, p, :, q] = inverses[s, t] @ both @ inverses[u, v]
    estimates = np.stack([values[:, s, t] for s, t in PAIRS], axis=1)
    return TraitCovariances(estimates, covariance, inverses[0, 1].diagonal() > 0)
