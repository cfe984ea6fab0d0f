"""Which kernels of noise win weight because their spectrum is flat, and whether prices against that help.

    python pipelines/flat_spectra.py                          # made-up kernels alone
    python pipelines/flat_spectra.py flower17.npz uci_digits.npz

A Gaussian kernel that is narrow has nearly equal eigenvalues, a wide one a few large ones. The data sets that are made
up have nine wide kernels and a narrow one, all of noise; then the same with an informative kernel. For each ridge λ
weights are learnt at p = 1 with equal prices, and with two kinds of prices that are found without labels:

    dimension   σ_j = tr K_j(K_j + λI)⁻¹, the effective dimension of K_j
    null        σ_j = tr K_j(I + K̄/λ)⁻², the mean gradient with respect to β_j over random labels, at equal weights

each divided by its mean over the kernels. Files hold views, (samples, features) each, beside `label` and `split`
(split, sample: 0 train, 1 validation, 2 test); where there are none, 800 samples are split at random. Their kernels are
χ² ones of histograms, or Gaussian ones, and three of noise. The test accuracy of each λ is shown, and that of the λ
that validation chooses.
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


def prices(K: np.ndarray, lam: float, how: str) -> list[float]:
    """Prices of kernels (n, m, m) of unit trace."""
    if how == "equal":
        return [1.0] * len(K)
    if how == "dimension":
        values = np.clip(np.linalg.eigvalsh(K), 0.0, None)
        found = (values / (values + lam)).sum(axis=1)
    else:
        values, vectors = np.linalg.eigh(K.mean(axis=0))
        damped = (vectors * (1.0 + np.clip(values, 0.0, None) / lam) ** -2.0) @ vectors.T
        found = np.einsum("nij,ji->n", K, damped)
    return [float(price) for price in found / found.mean()]


def made_up(seed: int, informative: bool, m: int = 100) -> tuple[dmkl.KernelSet, np.ndarray]:
    """Ten kernels of noise, the first narrow; and, if asked, one that tells the classes apart to some extent."""
    rng, y = np.random.default_rng(seed), np.arange(m) % 2
    kernels = [rbf_kernel(rng.normal(size=(m, 5)), gamma=gamma) for gamma in [5.0] + [0.02] * 9]
    names = ["narrow", *(f"wide {k}" for k in range(1, 10))]
    if informative:
        signal = rng.normal(size=(m, 5)) + 0.9 * y[:, None] * np.eye(5)[0]
        kernels, names = [*kernels, rbf_kernel(signal, gamma=0.05)], [*names, "informative"]
    return dmkl.create(None, kernels, names=names, labels=y), y


def stepped(K: dmkl.KernelSet) -> np.ndarray:
    """The kernels centered and of unit trace."""
    return np.asarray(K.center().normalize("trace").to_dask().compute(), dtype=np.float64)


def of_noise(n_seeds: int, lams: list[float]) -> pd.DataFrame:
    """Frequencies of selection on noise; weights and cross-validated accuracy beside an informative kernel."""
    rows = []
    for lam in lams:
        for how in PRICES:
            found = []
            for seed in range(n_seeds):
                K, _ = made_up(seed, informative=False)
                model = dmkl.MKFDA(p=1, lam=lam, sigma=prices(stepped(K), lam, how))
                noise = dmkl.stability(model, K, n_resamples=20).data["selection_frequency"]
                K, y = made_up(seed, informative=True)
                row = [float(noise.sel(kernel="narrow")), float(noise.drop_sel(kernel="narrow").max())]
                for p in (1, 2):
                    sigma = prices(stepped(K), lam, how)
                    cv = StratifiedKFold(5, shuffle=True, random_state=seed)
                    one = dmkl.search(
                        dmkl.MKFDA(p=p, sigma=sigma), K, y, {"lam": [lam]}, cv, refit=False, baselines="none"
                    )
                    weight = one.scores["weight"].isel(lam=0).mean("fold")
                    share = weight / weight.sum()
                    row += [*map(float, share.sel(kernel=["narrow", "informative"])), float(one.best_score_)]
                found.append(row)
            rows.append([lam, how, *np.mean(found, axis=0)])
    names = [f"{name}, p = {p}" for p in (1, 2) for name in ("narrow", "informative", "accuracy")]
    return pd.DataFrame(rows, columns=["lam", "prices", "narrow selected", "wide selected at most", *names])


def of_file(path: Path, folder: Path, ps: list[float], lams: list[float]) -> pd.DataFrame:
    """Test accuracy on the splits of a file, by p, prices and λ, and at the λ that validation chooses."""
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
    dense, rows = stepped(K), []
    for p in ps:
        for how in PRICES:
            parts = []
            for lam in lams:
                model = dmkl.MKFDA(p=p, sigma=prices(dense, lam, how))
                one = dmkl.search(model, K, grid={"lam": [lam]}, cv="splits", refit=False, baselines="none").scores
                parts.append((one["score"].values[0], one["test_score"].values[0]))
            validation, test = (np.array(part) for part in zip(*parts, strict=True))
            chosen = test[validation.argmax(axis=0), np.arange(test.shape[1])].mean()
            rows.append([p, how, *test.mean(axis=1), chosen])
    return pd.DataFrame(rows, columns=["p", "prices", *(f"λ = {lam:g}" for lam in lams), "λ chosen"])


def main() -> None:
    """Measure and print."""
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
        print(of_noise(options.seeds, options.lams).to_string(**form), flush=True)
    for path in options.data:
        print(f"\n{path.name}: test accuracy")
        print(of_file(path, options.output, options.ps, options.lams).to_string(**form), flush=True)


if __name__ == "__main__":
    main()
