"""Genetic correlations of two traits by three relationship matrices, beside the simulated truth.

    python pipelines/genetic_correlations.py --output out/genetic_correlations

Each matrix is WWᵀ/v of v standard normal markers, and the two traits are sums of marker effects whose covariance is
known, and of correlated residuals. In each repetition one tenth of the individuals lacks the first trait, and another
tenth the second. The table has the true covariance and correlation of each term, the mean estimate, its mean standard
error, the standard deviation over the repetitions, and the share of the intervals ± 1.96 standard errors that hold the
truth.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
import xarray as xr

import dmkl

COVARIANCES = np.array(
    [[[0.30, 0.20], [0.20, 0.25]], [[0.20, -0.10], [-0.10, 0.20]], [[0.10, 0.0], [0.0, 0.15]], [[0.4, 0.1], [0.1, 0.4]]]
)
"""Covariances of the traits by each matrix, and of the residuals."""


def estimates(K: dmkl.KernelSet, markers: np.ndarray, rng: np.random.Generator, method: str) -> xr.Dataset:
    """Simulate two traits, and estimate their covariances."""
    m = markers.shape[1]
    traits = np.zeros((m, 2))
    for root, covariance in zip([*markers, None], COVARIANCES, strict=True):
        effects = rng.standard_normal((m if root is None else root.shape[1], 2)) @ np.linalg.cholesky(covariance).T
        traits += effects if root is None else root @ effects
    missing = rng.permutation(m)[: m // 5]
    traits[missing[: m // 10], 0] = traits[missing[m // 10 :], 1] = np.nan
    return dmkl.VarianceComponents(method, tests=False, genetic_correlation=True).fit(K, traits).trait_covariances_


def main() -> None:
    """Simulate the matrices once and the traits several times, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=5000)
    parser.add_argument("--markers", type=int, default=2000, help="markers of each matrix")
    parser.add_argument("--repetitions", type=int, default=20)
    parser.add_argument("--method", choices=["he", "reml"], default="he")
    parser.add_argument("--output", type=Path, default=Path("out/genetic_correlations"))
    args = parser.parse_args()
    args.output.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    markers = rng.standard_normal((len(COVARIANCES) - 1, args.samples, args.markers), dtype=np.float32)
    markers /= np.float32(np.sqrt(args.markers))
    store = args.output / "kernels.zarr"
    K = dmkl.create(store, (W @ W.T for W in markers), names=["chr1", "chr2", "chr3"], dtype="float32", overwrite=True)
    started = time.monotonic()
    tables = [estimates(K, markers, rng, args.method) for _ in range(args.repetitions)]
    seconds = (time.monotonic() - started) / args.repetitions
    pairs = xr.concat(tables, "repetition", data_vars="all").isel(target=0, target_2=1)
    truth = np.concatenate([COVARIANCES, COVARIANCES[:-1].sum(axis=0, keepdims=True)])
    roots = np.sqrt(truth[:, 0, 0] * truth[:, 1, 1])
    print(f"{'':24} truth  estimate  standard error  deviation  covered")
    for name, expected in (("covariance", truth[:, 0, 1]), ("correlation", truth[:, 0, 1] / roots)):
        values, errors = pairs[f"trait_{name}"], pairs[f"trait_{name}_se"]
        covered = (np.abs(values - xr.DataArray(expected, dims="term")) <= 1.96 * errors).where(values.notnull())
        for k, term in enumerate(pairs.term.values):
            found, error = values[:, k], errors[:, k].mean()
            print(
                f"{name:12} {term:10} {expected[k]:6.3f} {found.mean():9.3f} {error:15.3f} {found.std():10.3f} "
                f"{covered[:, k].mean():8.2f}"
            )
    print(f"{args.samples:,} individuals, {args.repetitions} repetitions, {seconds:.1f} seconds each")


if __name__ == "__main__":
    main()
