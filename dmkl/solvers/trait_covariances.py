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

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from typing import Any

import numpy as np
from scipy.special import chdtrc

from dmkl.arrays import Float, Index, Mask
from dmkl.numerics.alignment import sign_probes
from dmkl.passes.execute import machine
from dmkl.solvers.interface import CombinedProduct, EachProduct, Request, Status

Steps = Generator[Request | tuple[Request, ...], Any, Any]

DEPENDENT = 1e-10
"""Eigenvalue of the correlations between matrices at and below which the matrices are linearly dependent."""
FEW_SAMPLES = 1000  # Samples up to which traces, and so the covariance of estimates, are exact

PAIRS = ((0, 0), (0, 1), (1, 1))
"""Traits of the columns of the estimates: the variance of the first, the covariance, the variance of the second."""

_ESTIMATES = ("trait_covariance", "trait_covariance_se", "trait_correlation", "trait_correlation_se")
TRAIT_VARIABLES = (*_ESTIMATES, "trait_p_value")


@dataclass(frozen=True, eq=False)
class Traits:
    """Two traits, or one, with their residuals on fixed effects, (m, traits), zero where a trait is unknown.

    `known` is 1 where a trait is known, (m, traits); `bases` are orthonormal bases of the fixed effects of each trait,
    (m, r), zero where it is unknown; `kernels` are the positions of those that have an estimate, of `n_kernels` in all.
    """

    residuals: Float
    known: Float
    bases: Sequence[Float]
    kernels: Index
    n_kernels: int
    n_probes: int
    seed: int

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
    that are known for no common sample, and none if matrices are linearly dependent. The others are zero. Without an
    error the covariance is NaN. `ratios` (n + 1,) are the likelihood ratio statistics of a covariance of zero.
    """

    values: Float
    covariance: Float
    estimable: Mask
    status: Status = Status.CONVERGED
    ratios: Float | None = None

    def by_term(self) -> Float:
        """`TRAIT_VARIABLES` (5, n + 2, 3) over kernels, residual and the sum of all kernels, NaN without an estimate.

        Errors of the correlations, of which those of a trait with itself are 1, are from the delta method. p-values are
        those of the `ratios`, and of Wald's quotients where there are none, by χ² of one degree of freedom.
        """
        sums = np.vstack([np.eye(len(self.values)), np.append(np.ones(len(self.values) - 1), 0.0)])
        values = np.where((sums @ self.estimable > 0)[:, None], sums @ self.values, np.nan)
        covariance = np.einsum("ki,ipjq,kj->kpq", sums, np.nan_to_num(self.covariance), sums)
        first, shared, second = values.T
        root = np.sqrt(np.where((first > 0) & (second > 0), first * second, np.nan))
        correlation, itself = shared / root, root / root
        slopes = np.stack([-0.5 * correlation / first, 1 / root, -0.5 * correlation / second], axis=1)
        variances = np.einsum("kp,kpq,kq->k", slopes, covariance, slopes)
        squares = np.stack([covariance.diagonal(axis1=1, axis2=2) + 0 * values, variances[:, None] * [0, 1, 0]])
        errors = np.sqrt(np.maximum(squares, 0.0))
        errors[:, :-1][:, np.isnan(np.einsum("ipip->ip", self.covariance)).any(axis=1)] = np.nan
        error, nothing = errors[0, :, 1], np.full(len(values), np.nan)
        quotients = np.divide(shared, error, out=nothing.copy(), where=error > 0)
        ratios = nothing if self.ratios is None else np.append(self.ratios, np.nan)
        p = chdtrc(1.0, np.where(np.isnan(ratios), quotients**2, ratios))
        correlations = np.stack([itself, correlation, itself], axis=1)
        return np.stack([values, errors[0], correlations, errors[1], np.stack([nothing, p, nothing], axis=1)])


def trait_covariances(pair: Traits) -> Steps:
    """Estimate the (co)variances of two traits by regression; returns `TraitCovariances`."""
    values, inverses = yield from moment_estimates(pair)
    n_terms = len(values)
    traces = yield from moment_traces(pair, values)
    covariance = np.zeros((n_terms, 3, n_terms, 3))
    for (p, (s, t)), (q, (u, v)) in product(enumerate(PAIRS), repeat=2):
        both = traces[s, t, u, v] + traces[s, t, v, u]
        covariance[:, p, :, q] = inverses[s, t] @ both @ inverses[u, v]
    estimates = np.stack([values[:, s, t] for s, t in PAIRS], axis=1)
    return TraitCovariances(estimates, covariance, inverses[0, 1].diagonal() > 0)


def term_products(block: Float) -> Steps:
    """K_iB of a block (m, b) with K_e last, (n + 1, m, b)."""
    return np.concatenate([(yield EachProduct(block)), block[None]])


def moment_estimates(pair: Traits) -> Steps:
    """The σ_j,st of two traits, (n + 1, 2, 2), and inverses of their normal equations, (2, 2, n + 1, n + 1)."""
    n = pair.n_kernels
    grams = np.zeros((2, 2, n + 1, n + 1))
    for chunk in pair.probes():
        block = np.hstack([pair.residuals, *(pair.project(t, chunk) for t in (0, 1))])
        of_residuals, *images = np.split((yield from term_products(block)), [2, 2 + chunk.shape[1]], axis=2)
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
    return values, inverses


def moment_traces(traits: Traits, values: Float) -> Steps:
    """The tr K_iΣ_tuK_jΣ_vs of traits s, t, u and v, (s, t, u, v, n + 1, n + 1), for σ_j,st (n + 1, traits, traits)."""
    n_terms, n_traits, _ = values.shape
    pairs, triples = [*product(range(n_traits), repeat=2)], [*product(range(n_traits), repeat=3)]
    is_alike = all(np.array_equal(a, b) for of_each in (traits.known.T, traits.bases) for a, b in pairwise(of_each))
    # Σ_utK_iP_sz of each s, t and u; of traits with the same samples and fixed effects it depends on u and t alone.
    key_of = {(s, t, u): (0, min(t, u), max(t, u)) if is_alike else (s, t, u) for s, t, u in triples}
    keys = sorted({*key_of.values()})
    traces = np.zeros((*[n_traits] * 4, n_terms, n_terms))
    for chunk in traits.probes():
        images = yield from term_products(np.hstack([traits.project(t, chunk) for t in range(n_traits)]))
        images = np.split(images, n_traits, axis=2)
        covered = np.hstack([traits.project(v, np.tensordot(values[:, v, s], images[s], 1)) for v, s in pairs])
        columns = [np.concatenate(traits.project(t, images[s]), axis=1) for s, t, _ in keys]
        weights = [values[:, u, t] for _, t, u in keys]
        sums = [CombinedProduct(V, w[:-1], exact=True) for V, w in zip(columns, weights, strict=True)]
        products, *combined = yield EachProduct(covered), *sums
        middle = np.split(np.concatenate([products, covered[None]]), len(pairs), axis=2)
        for (s, t, u), v in product(triples, range(n_traits)):
            k = keys.index(key_of[s, t, u])
            left = (combined[k] + weights[k][-1] * columns[k]).reshape(len(chunk), n_terms, -1).transpose(1, 0, 2)
            right = middle[pairs.index((v, s))]
            traces[s, t, u, v] += np.tensordot(traits.project(u, left), right, ((1, 2), (1, 2)))
    return traces
