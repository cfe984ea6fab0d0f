"""Compare a search of the default grid, kernels in memory, with some lines of NumPy that fit one point after another.

    python pipelines/plain_numpy.py                        # 16 kernels of 2,400 samples; a quarter of an hour
    python pipelines/plain_numpy.py -n 8 -m 600 --lams 10  # smaller, and all λ

The NumPy lines alternate two steps until the duality gap is at most 1e-4 of the objective: α = A⁻¹H by a Cholesky
factor of A = ½(I + K(β)/λ), and the weights β_j ∝ ‖w_j‖^(2/(p+1)), ‖w_j‖² = β_j² Σ_k α_kᵀK_jα_k, which are optimal for
these norms (Kloft, Brefeld, Sonnenburg, Zien, JMLR 12, 2011). Each point starts from the weights of the next larger λ.
The lines run on the first fold and on some λ of the grid, and a point ends after `--iterations` in any case; the time
for the whole grid is the mean time of a fit times the number of fits. All fits of the search are certified to the same
gap, and the objectives of fits that converge are compared.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import scipy.linalg
from sklearn.metrics.pairwise import rbf_kernel
from sklearn.model_selection import StratifiedKFold

import dmkl

TOL, FOLDS, CLASSES = 1e-4, 3, 3


def make_kernels(n: int, m: int) -> tuple[np.ndarray, np.ndarray]:
    """Return Gaussian kernels, (n, m, m), every second one of noise, and labels."""
    rng, labels = np.random.default_rng(0), np.arange(m) % CLASSES
    centers = 0.5 * rng.standard_normal((CLASSES, 20))
    features = (rng.standard_normal((m, 20)) + (centers[labels] if j % 2 else 0.0) for j in range(n))
    return np.stack([rbf_kernel(x, gamma=1 / 40).astype(np.float32) for x in features]), labels


def prepare(kernels: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Center the kernels and divide them by their traces; return them with the targets of JMLR Eq. 18."""
    K = kernels.astype(np.float64)
    means = K.mean(axis=1)
    K += means.mean(axis=1)[:, None, None] - means[:, :, None] - means[:, None, :]
    K /= np.trace(K, axis1=1, axis2=2)[:, None, None]
    member = np.eye(CLASSES)[labels]
    sizes = member.sum(axis=0)
    return K, member * np.sqrt(len(labels) / sizes) - np.sqrt(sizes / len(labels))


def fit(
    K: np.ndarray, H: np.ndarray, p: float, lam: float, beta: np.ndarray, most: int
) -> tuple[np.ndarray, float, bool]:
    """Return the weights, the objective, and whether the gap is at most the tolerance."""
    gap = np.inf
    for _ in range(most):
        A = np.tensordot(beta, K, axes=1)
        A *= 0.5 / lam
        A[np.diag_indices_from(A)] += 0.5
        alpha = scipy.linalg.cho_solve(scipy.linalg.cho_factor(A, overwrite_a=True, check_finite=False), H)
        forms = np.einsum("mk,nmk->n", alpha, K @ alpha)
        q, objective = forms / (4 * lam), -0.5 * np.sum(H * alpha)
        dual = np.inf if p == 1 else 1.0 if p == np.inf else p / (p - 1)
        gap = (np.linalg.norm(q, dual) - beta @ q) / abs(objective)
        if gap <= TOL:
            break
        beta = (beta**2 * forms) ** (1 / (p + 1))
        beta /= np.linalg.norm(beta, p)
    return beta, float(objective), gap <= TOL


def main() -> None:
    """Run the search and the NumPy lines, and print both times."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-n", type=int, default=16, help="kernels")
    parser.add_argument("-m", type=int, default=2400, help="samples")
    parser.add_argument("--lams", type=int, default=4, help="values of λ at which the NumPy lines run")
    parser.add_argument("--iterations", type=int, default=500, help="most iterations of a point of the NumPy lines")
    options = parser.parse_args()
    kernels, labels = make_kernels(options.n, options.m)
    cv = StratifiedKFold(FOLDS)
    dmkl.search(dmkl.MKFDA(), kernels[:, :60, :60], labels[:60], cv=cv, refit=False)  # imports and compiled loops
    started = time.perf_counter()
    result = dmkl.search(dmkl.MKFDA(tol=TOL, decision="largest"), kernels, labels, cv=cv, refit=False, baselines="none")
    search = time.perf_counter() - started
    scores = result.scores
    print(result.summary().splitlines()[-2])

    train, _ = next(cv.split(labels, labels))
    K, H = prepare(kernels[:, train][:, :, train], labels[train])
    norms, lams = scores["p"].values.astype(float), np.sort(scores["lam"].values)[::-1]
    lams = lams[np.unique(np.linspace(0, len(lams) - 1, options.lams).round().astype(int))]
    seconds, converged, differences = [], 0, []
    for p in norms:
        beta = np.full(options.n, options.n ** (-1 / p))
        for lam in lams:
            started = time.perf_counter()
            beta, objective, done = fit(K, H, p, lam, beta, options.iterations)
            seconds.append(time.perf_counter() - started)
            if done:
                converged += 1
                other = float(scores["objective"].sel(p=p, lam=lam).isel(fold=0))
                differences.append(abs(objective - other) / abs(other))
        print(f"p = {p:<8g} {sum(seconds[-len(lams) :]):8.1f} s for {len(lams)} points of one fold", flush=True)
    whole = float(np.mean(seconds)) * norms.size * scores["lam"].size * FOLDS
    largest = max(differences, default=np.nan)
    print(f"{converged} of {len(seconds)} points converge; objectives differ by {largest:.1e} at most")
    print(f"search {search:.1f} s, NumPy {whole:,.0f} s for the whole grid: {whole / search:.0f} times")


if __name__ == "__main__":
    main()
