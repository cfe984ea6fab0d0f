"""Add noise to the χ² kernels of the Oxford Flower17 images, and see which norms of the weights can bear it.

    python pipelines/noise_kernels.py flower17.npz --output out/noise_kernels
    python pipelines/noise_kernels.py flower17.npz --noise 0 5 --lams 1e-3 1e-2    # a small one

The file holds views of L1-normalised histograms, (samples, bins) each, beside `label` and `split` (split, sample: 0
train, 1 validation, 2 test). To their kernels (see flower17.py) come RBF kernels of Gaussian noise. For each number of
them one search goes through the papers' grid on all splits, trained on the training rows alone. λ is chosen for each
norm by the mean over the splits of the validation score; the norm is learnt by choosing it in the same way.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from sklearn.metrics import balanced_accuracy_score
from sklearn.metrics.pairwise import additive_chi2_kernel, euclidean_distances

import dmkl

NORMS = [1.0, *(1 + 2.0**-k for k in range(6, 0, -1)), 2.0, 3.0, 4.0, 8.0, np.inf]
LAMS = [10.0**k for k in range(-8, 2)]
SHOWN = [1.0, 1 + 2**-6, 1.5, 2.0, 8.0, np.inf]
LEARNT = "learnt"

# Wong: Points of view: color blindness, Nature Methods 8 (2011).
COLORS = ["#0072b2", "#56b4e9", "#009e73", "#e69f00", "#d55e00", "#cc79a7", "#000000"]
MARKERS = "ov^sDP*"


def all_kernels(data: np.lib.npyio.NpzFile, names: list[str], train: np.ndarray, n_noise: int) -> Iterator[np.ndarray]:
    """exp(−χ²/η) of the views, η being the mean over training pairs; then the RBF kernels of noise; float32."""
    for name in names:
        view = data[name].astype(np.float64)
        view /= view.sum(axis=1, keepdims=True)
        distance = -additive_chi2_kernel(view)
        yield np.exp(-distance / distance[np.ix_(train, train)].mean()).astype(np.float32)
    rng = np.random.default_rng(0)
    for _ in range(n_noise):
        distance = euclidean_distances(rng.standard_normal((len(data["label"]), 20)), squared=True)
        yield np.exp(-distance / distance.mean()).astype(np.float32)


def kernel_set(path: Path, folder: Path, n_noise: int) -> tuple[dmkl.KernelSet, int]:
    """All kernels, and how many of them are not noise."""
    with np.load(path) as data:
        names = [name for name in data.files if data[name].ndim == 2 and name != "split"]
        store = folder / f"kernels-{n_noise}.zarr"
        try:
            return dmkl.open(store), len(names)
        except (dmkl.errors.StoreNotFoundError, dmkl.errors.IncompleteStoreError):
            kernels = all_kernels(data, names, np.flatnonzero(data["split"][0] == 0), n_noise)
            titles = [*names, *(f"noise {k}" for k in range(1, n_noise + 1))]
            stored = dmkl.create(store, kernels, names=titles, labels=data["label"], splits=data["split"])
            return stored, len(names)


def refitted(kernels: dmkl.KernelSet, p: float, lam: float) -> np.ndarray:
    """Mean class accuracy on the test rows of each split, trained on its training and validation rows."""
    scores = []
    for number in range(len(kernels.splits)):
        train, validation, test = kernels.split(number)
        rows = np.union1d(train, validation)
        model = dmkl.MKFDA(p, lam).fit(kernels[rows, rows])
        scores.append(balanced_accuracy_score(kernels.labels[test], model.predict(kernels[test, rows])))
    return np.array(scores)


def mean_and_error(scores: np.ndarray) -> tuple[float, float]:
    """Mean over the splits and its standard error."""
    return float(scores.mean()), float(scores.std(ddof=1) / np.sqrt(len(scores)))


def draw(counts: list[int], found: dict[str, np.ndarray]) -> Figure:
    """Test scores over the number of noise kernels, a curve for each norm; `found` is (counts, 2, 2) of each."""
    figure = Figure(figsize=(9, 4), dpi=150, layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    for side, (axes, title) in enumerate(
        zip(panels, ("trained on train", "refitted on train and validation"), strict=True)
    ):
        for k, (name, values) in enumerate(found.items()):
            # Beside one another, so that their bars can be told apart.
            places = np.array(counts) + 0.03 * max(*counts, 1) * (k / len(found) - 0.5)
            mean, error = values[:, side].T
            style = {"color": COLORS[k], "marker": MARKERS[k]}
            style |= {"color": "#000000", "linestyle": "--"} if name == LEARNT else {}
            axes.errorbar(places, mean, error, label=name, capsize=2, markersize=5, linewidth=1.2, **style)
        axes.set(title=title, xlabel="noise kernels", xticks=counts)
        axes.grid(alpha=0.3)
    panels[0].set_ylabel("mean class accuracy on test ± standard error")
    panels[1].legend(frameon=False, fontsize="small")
    return figure


def main() -> None:
    """Make the set, search, print and draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--noise", type=int, nargs="+", default=[0, 10, 20, 30], help="numbers of noise kernels")
    parser.add_argument("--ps", type=float, nargs="+", default=NORMS, help="norms to choose from")
    parser.add_argument("--lams", type=float, nargs="+", default=LAMS)
    parser.add_argument("--output", type=Path, default=Path("out/noise_kernels"))
    options = parser.parse_args()
    kernels, n_views = kernel_set(options.data, options.output, max(options.noise))
    grid = {"p": options.ps, "lam": options.lams}
    shown = [p for p in SHOWN if p in options.ps]
    titles = [*(f"p = {p:.7g}" for p in shown), LEARNT]
    found = {title: np.full((len(options.noise), 2, 2), np.nan) for title in titles}
    print(f"mean class accuracy ± standard error over {len(kernels.splits)} splits, {n_views} kernels and noise\n")
    print(f"{'noise':>5}  {'norm':<14}{'lam':>8}{'validation':>16}{'test':>16}{'test, refitted':>17}")
    for row, n_noise in enumerate(options.noise):
        chosen = kernels.select(slice(n_views + n_noise))
        result = dmkl.search(dmkl.MKFDA(), chosen, grid=grid, cv="splits", scoring="mean_class_accuracy", refit=False)
        refits: dict[tuple[float, float], np.ndarray] = {}
        result.save(options.output / f"search-{n_noise}.zarr", overwrite=True)
        for title, norms in zip(titles, [*([p] for p in shown), options.ps], strict=True):
            part = dmkl.SearchResult(result.scores.sel(p=norms))
            point = part.scores.isel(part.best_index_)
            p, lam = part.best_params_["p"], part.best_params_["lam"]
            if (p, lam) not in refits:
                refits[p, lam] = refitted(chosen, p, lam)
            both = [mean_and_error(point["test_score"].values), mean_and_error(refits[p, lam])]
            found[title][row] = both
            columns = [f"{mean:.3f} ± {error:.3f}" for mean, error in (mean_and_error(point["score"].values), *both)]
            name = f"{title}: {p:.7g}" if title == LEARNT else title
            print(f"{n_noise:>5}  {name:<16}{lam:>6g}{columns[0]:>16}{columns[1]:>16}{columns[2]:>17}", flush=True)
        print(f"       {result.summary().splitlines()[-1]}\n", flush=True)
    picture = options.output / "noise_kernels.png"
    draw(options.noise, found).savefig(picture)
    print(f"drawn in {picture}")


if __name__ == "__main__":
    main()
