"""Measure how much weight noise kernels with a flat spectrum get, and whether prices σ_j reduce it.

    python pipelines/flat_spectra.py                          # simulated kernels only
    python pipelines/flat_spectra.py flower17.npz uci_digits.npz

A narrow Gaussian kernel has nearly equal eigenvalues; a wide one has a few large eigenvalues. The simulated data sets
have nine wide noise kernels and a narrow one, without and with an informative kernel. For each ridge λ the script
learns weights with equal prices, and with two kinds of prices that do not depend on the labels:

    dimension   σ_j = tr K_j(K_j + λI)⁻¹, the effective dimension of K_j
    null        σ_j = tr K_j(I + K̄/λ)⁻², the mean gradient with respect to β_j over random labels, at equal weights

each divided by its mean over the kernels. Files hold views, (samples, features) each, `label` and `split` (split,
sample: 0 train, 1 validation, 2 test); without `split`, 800 samples are split at random. Their kernels are χ² kernels
of histograms, else Gaussian kernels, and three noise kernels. The table has the test accuracy of each λ and of the λ
chosen on validation.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pandas as pd
from sklearn.metrics.pairwise import rbf_kernel
from sklearn.model_selection import StratifiedKFold, train_test_split

import dmkl

LAMS = [1e-4, 1e-3, 1e-2, 1e-1, 1.0]
PRICES = ["equal", "dimension", "null"]


def prices(K: np.ndarray, lam: float, kind: str) -> list[float]:
    """Return the prices of kernels (n, m, m) of unit trace."""
    if kind == "equal":
        return [1.0] * len(K)
    if kind == "dimension":
        values = np.clip(np.linalg.eigvalsh(K), 0.0, None)
        result = (values / (values + lam)).sum(axis=1)
    else:
        values, vectors = np.linalg.eigh(K.mean(axis=0))
        damped = (vectors * (1.0 + np.clip(values, 0.0, None) / lam) ** -2.0) @ vectors.T
        result = np.einsum("nij,ji->n", K, damped)
    return [float(price) for price in result / result.mean()]


def simulate(seed: int, informative: bool, m: int = 100) -> tuple[dmkl.KernelSet, np.ndarray]:
    """Simulate ten noise kernels, the first narrow, and optionally one that partly separates the classes."""
    rng, y = np.random.default_rng(seed), np.arange(m) % 2
    kernels = [rbf_kernel(rng.normal(size=(m, 5)), gamma=gamma) for gamma in [5.0] + [0.02] * 9]
    names = ["narrow", *(f"wide {k}" for k in range(1, 10))]
    if informative:
        signal = rng.normal(size=(m, 5)) + 0.9 * y[:, None] * np.eye(5)[0]
        kernels, names = [*kernels, rbf_kernel(signal, gamma=0.05)], [*names, "informative"]
    return dmkl.create(None, kernels, names=names, labels=y), y


def preprocess(K: dmkl.KernelSet) -> np.ndarray:
    """Return the kernels, centered and with unit trace."""
    return np.asarray(K.center().normalize("trace").to_dask().compute(), dtype=np.float64)


def noise_table(n_seeds: int, lams: list[float]) -> pd.DataFrame:
    """Return selection frequencies on noise, and weights and cross-validated accuracy with an informative kernel."""
    rows = []
    for lam in lams:
        for kind in PRICES:
            draws = []
            for seed in range(n_seeds):
                K, _ = simulate(seed, informative=False)
                model = dmkl.MKFDA(p=1, lam=lam, sigma=prices(preprocess(K), lam, kind))
                noise = dmkl.stability(model, K, n_resamples=20).data["selection_frequency"]
                K, y = simulate(seed, informative=True)
                row = [float(noise.sel(kernel="narrow")), float(noise.drop_sel(kernel="narrow").max())]
                for p in (1, 2):
                    sigma = prices(preprocess(K), lam, kind)
                    cv = StratifiedKFold(5, shuffle=True, random_state=seed)
                    result = dmkl.search(
                        dmkl.MKFDA(p=p, sigma=sigma), K, y, {"lam": [lam]}, cv, refit=False, baselines="none"
                    )
                    weight = result.scores["weight"].isel(lam=0).mean("fold")
                    share = weight / weight.sum()
                    row += [*map(float, share.sel(kernel=["narrow", "informative"])), float(result.best_score_)]
                draws.append(row)
            rows.append([lam, kind, *np.mean(draws, axis=0)])
    names = [f"{name}, p = {p}" for p in (1, 2) for name in ("narrow", "informative", "accuracy")]
    return pd.DataFrame(rows, columns=["lam", "prices", "narrow selected", "wide selected at most", *names])


def file_table(path: Path, folder: Path, ps: list[float], lams: list[float]) -> pd.DataFrame:
    """Return the test accuracy on the splits of a file by p, prices and λ, and at the λ chosen on validation."""
    store = folder / f"{path.stem}.zarr"
    if not store.exists():
        with np.load(path) as data:
            views = {k: data[k].astype(np.float32) for k in data.files if data[k].ndim == 2 and k != "split"}
            label, splits = data["label"], data["split"] if "split" in data else None
        if splits is None:
            rows = np.random.default_rng(0).permutation(len(label))[:800]
            views, label = {k: (v[rows] - v.mean(axis=0)) / v.std(axis=0) for k, v in views.items()}, label[rows]
            splits = np.zeros((3, len(rows)), dtype=np.int8)
            for seed, split in enumerate(splits):
                _, held_out = train_test_split(np.arange(len(rows)), stratify=label, random_state=seed, test_size=0.5)
                split[held_out] = 1 + np.arange(len(held_out)) % 2
        histograms = all((view >= 0).all() for view in views.values())
        views = {k: v / v.sum(axis=1, keepdims=True) if histograms else v for k, v in views.items()}
        spec = {"function": "chi2" if histograms else "rbf", "bandwidth": 1.0, "feature": "*"}
        noise = {"function": "random_rbf", "copies": 3}
        dmkl.build(store, views, [spec, noise], labels=label, splits=splits)
    K = dmkl.open(store)
    dense, rows = preprocess(K), []
    for p in ps:
        for kind in PRICES:
            parts = []
            for lam in lams:
                model = dmkl.MKFDA(p=p, sigma=prices(dense, lam, kind))
                scores = dmkl.search(model, K, grid={"lam": [lam]}, cv="splits", refit=False, baselines="none").scores
                parts.append((scores["score"].values[0], scores["test_score"].values[0]))
            validation, test = (np.array(part) for part in zip(*parts, strict=True))
            chosen = test[validation.argmax(axis=0), np.arange(test.shape[1])].mean()
            rows.append([p, kind, *test.mean(axis=1), chosen])
    return pd.DataFrame(rows, columns=["p", "prices", *(f"λ = {lam:g}" for lam in lams), "λ chosen"])


def main() -> None:
    """Measure the weights and accuracies, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, nargs="*")
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--ps", type=float, nargs="+", default=[1.0, 2.0])
    parser.add_argument("--lams", type=float, nargs="+", default=LAMS)
    parser.add_argument("--output", type=Path, default=Path("out/flat_spectra"))
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    form = {"index": False, "float_format": "{:.3g}".format}
    if options.seeds:
        print(f"Noise, mean of {options.seeds} seeds")
        print(noise_table(options.seeds, options.lams).to_string(**form), flush=True)
    for path in options.data:
        print(f"\n{path.name}: test accuracy")
        print(file_table(path, options.output, options.ps, options.lams).to_string(**form), flush=True)


if __name__ == "__main__":
    main()
