"""Add kernels of noise to good ones, and see which norms of the weights, and what else learns weights, can bear it.

    python pipelines/noise_kernels.py digits                                          # scikit-learn's digits
    python pipelines/noise_kernels.py flower17.npz --output out/noise_flower17        # Oxford Flower17 images
    python pipelines/noise_kernels.py flower17.npz --noise 0 5 --lams 1e-3 1e-2       # a small one

The experiments of Yan, Kittler, Mikolajczyk, Tahir (JMLR 13, 2012, sections 3.2 and 3.4) and of Mukherjee, Singh, Peng,
Hinrichs (Learning kernels for variants of normalized cuts, CVPR 2010, section 4.1). A file holds views of L1-normalised
histograms, (samples, bins) each, beside `label` and `split` (split, sample: 0 train, 1 validation, 2 test): their
kernels are exp(−χ²/η), η being the mean χ² between training samples. Of the digits there are ten RBF kernels of a few
random pixels each, and splits at random. The noise are RBF kernels of Gaussian vectors that have nothing to do with
the samples.

For each number of noise kernels one search goes through a grid of (p, λ) on all splits, trained on the training rows
alone. Each split chooses λ for each norm by its validation score; the norm is learnt by choosing it in the same way,
and so is the C of the support vector machines on the weights of NCuts, around the papers' 10.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
from matplotlib.figure import Figure
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.metrics import balanced_accuracy_score
from sklearn.model_selection import train_test_split

import dmkl

NORMS = [1.0, *(1 + 2.0**-k for k in range(6, 0, -1)), 2.0, 3.0, 4.0, 8.0, np.inf]
LAMS = [10.0**k for k in range(-8, 2)]
COSTS = [1.0, 10.0, 100.0]
SHOWN = [1.0, 1 + 2**-4, 1.5, 2.0, np.inf]
LEARNT, NCUTS = "learnt p", "NCuts"
TITLES = {"test": "trained on train", "refitted": "refitted on train and validation"}

# Wong: Points of view: color blindness, Nature Methods 8 (2011).
COLORS = ["#0072b2", "#56b4e9", "#009e73", "#e69f00", "#d55e00"]
SPECIAL = {
    LEARNT: {"color": "#000000", "marker": "*", "linestyle": "--"},
    NCUTS: {"color": "#cc79a7", "marker": "P", "linestyle": ":"},
}
MARKERS = "ov^sD"


# --- the kernels -----------------------------------------------------------------------------------------------------


def histograms(path: Path) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]:
    """The views of a file, their rows summing to one again after half precision; labels and splits."""
    with np.load(path) as data:
        names = [name for name in data.files if data[name].ndim == 2 and name != "split"]
        views = {name: data[name].astype(np.float32) for name in names}
        return {k: v / v.sum(axis=1, keepdims=True) for k, v in views.items()}, data["label"], data["split"]


def digits(
    n_samples: int, n_pixels: int = 4, n_splits: int = 5
) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]:
    """Ten views of some random pixels each; labels; stratified splits into a half, a quarter and a quarter."""
    images, labels = load_digits(return_X_y=True)
    rng = np.random.default_rng(0)
    chosen, _ = train_test_split(np.arange(len(labels)), train_size=n_samples, stratify=labels, random_state=0)
    images, labels = images[chosen] / 16, labels[chosen]
    seen = np.flatnonzero(images.std(axis=0) > 0.1)  # those of the margin are always white
    views = {f"pixels {k}": images[:, rng.choice(seen, n_pixels, replace=False)] for k in range(1, 11)}
    splits = np.zeros((n_splits, n_samples), dtype=np.int8)
    for seed, split in enumerate(splits):
        _, held_out = train_test_split(np.arange(n_samples), test_size=0.5, stratify=labels, random_state=seed)
        _, test = train_test_split(held_out, test_size=0.5, stratify=labels[held_out], random_state=seed)
        split[held_out], split[test] = 1, 2
    return views, labels, splits


def kernel_set(options: argparse.Namespace) -> tuple[dmkl.KernelSet, int]:
    """All kernels, those of noise last, and how many are not noise."""
    n_noise = max(options.noise)
    of_digits = options.data == "digits"
    size = f"-{options.samples}" if of_digits else ""
    store = options.output / f"{Path(options.data).stem}{size}-{n_noise}.zarr"
    if not store.exists():
        views, labels, splits = digits(options.samples) if of_digits else histograms(Path(options.data))
        specs: list[dict[str, Any]] = [{"function": "rbf" if of_digits else "chi2", "feature": "*", "bandwidth": 1}]
        if n_noise:
            specs.append({"function": "random_rbf", "copies": n_noise})
        dmkl.build(store, views, specs, labels=labels, splits=splits, dtype="float32")
    kernels = dmkl.open(store)
    return kernels, len(kernels) - n_noise


# --- the models ------------------------------------------------------------------------------------------------------


def refitted(kernels: dmkl.KernelSet, number: int, estimator: Any) -> float:
    """Mean class accuracy on the test rows of a split, trained on its training and validation rows."""
    train, validation, test = kernels.split(number)
    rows = np.union1d(train, validation)
    model = clone(estimator).fit(kernels[rows, rows])
    return float(balanced_accuracy_score(kernels.labels[test], model.predict(kernels[test, rows])))


def candidates(kernels: dmkl.KernelSet, options: argparse.Namespace) -> dict[str, tuple[Any, dmkl.SearchResult]]:
    """By the name of each curve: what was searched with, and the part of the search that it chooses from."""
    how: dict[str, Any] = {"cv": "splits", "scoring": "mean_class_accuracy", "refit": False}
    found: dict[str, tuple[Any, dmkl.SearchResult]] = {}
    if "mkfda" in options.models:
        model = dmkl.MKFDA()
        scores = dmkl.search(model, kernels, grid={"p": options.ps, "lam": options.lams}, **how).scores
        shown = {f"p = {p:.7g}": [p] for p in SHOWN if p in options.ps}
        found = {
            name: (model, dmkl.SearchResult(scores.sel(p=ps))) for name, ps in (shown | {LEARNT: options.ps}).items()
        }
    if "ncuts" in options.models:
        model = dmkl.NCuts()
        found[NCUTS] = model, dmkl.search(model, kernels, grid={"C": options.costs}, **how)
    return found


def outcomes(kernels: dmkl.KernelSet, options: argparse.Namespace) -> xr.Dataset:
    """Scores over (model, split) in validation, on test, on test after refitting; and what was chosen."""
    refits: dict[tuple[int, str], float] = {}
    rows = []
    searched = candidates(kernels, options)
    for estimator, result in searched.values():
        anew = []
        for number, params in enumerate(result.best_params_.values()):  # each split chooses for itself
            best = clone(estimator).set_params(**params)
            if (number, str(best)) not in refits:
                refits[number, str(best)] = refitted(kernels, number, best)
            anew.append(refits[number, str(best)])
        scores = {"validation": result.chosen["score"], "test": result.chosen["test_score"], "refitted": anew}
        row = xr.Dataset({name: ("split", np.asarray(values)) for name, values in scores.items()})
        row["chosen"] = ", ".join(
            f"{name} = {' '.join(f'{value:.5g}' for value in result.chosen[name].values)}" for name in result.parameters
        )
        rows.append(row)
    return xr.concat(rows, pd.Index(list(searched), name="model"))


# --- the report ------------------------------------------------------------------------------------------------------


def mean_and_error(scores: xr.DataArray) -> tuple[xr.DataArray, xr.DataArray]:
    """Mean over the splits and its standard error."""
    return scores.mean("split"), scores.std("split", ddof=1) / np.sqrt(scores.sizes["split"])


def draw(found: xr.Dataset) -> Figure:
    """Test scores over the number of noise kernels, a curve for each model."""
    figure = Figure(figsize=(9.5, 4), dpi=150, layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    names = list(found["model"].values)
    styles = zip(COLORS, MARKERS, strict=True)
    drawn = {name: SPECIAL.get(name) or dict(zip(("color", "marker"), next(styles), strict=True)) for name in names}
    for axes, (variable, title) in zip(panels, TITLES.items(), strict=True):
        mean, error = mean_and_error(found[variable])
        for k, name in enumerate(names):
            # Beside one another, so that their bars can be told apart.
            places = found["noise"] + 0.03 * max(int(found["noise"].max()), 1) * (k / len(names) - 0.5)
            at, style = {"model": name}, {"capsize": 2, "markersize": 5, "linewidth": 1.2, **drawn[name]}
            axes.errorbar(places, mean.sel(at), error.sel(at), label=name, **style)
        axes.set(title=title, xlabel="noise kernels", xticks=found["noise"])
        axes.grid(alpha=0.3)
    panels[0].set_ylabel("mean class accuracy on test ± standard error")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside right center", frameon=False)
    return figure


def main() -> None:
    """Make the set, search, print and draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", help="a file, or 'digits'")
    parser.add_argument("--noise", type=int, nargs="+", default=list(range(0, 31, 5)), help="numbers of noise kernels")
    parser.add_argument("--ps", type=float, nargs="+", default=NORMS, help="norms to choose from")
    parser.add_argument("--lams", type=float, nargs="+", default=LAMS)
    parser.add_argument("--costs", type=float, nargs="+", default=COSTS, help="values of C, for NCuts")
    parser.add_argument("--models", nargs="+", choices=["mkfda", "ncuts"], default=["mkfda", "ncuts"])
    parser.add_argument("--samples", type=int, default=800, help="how many of the 1,797 digits")
    parser.add_argument("--output", type=Path, default=Path("out/noise_kernels"))
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    kernels, n_views = kernel_set(options)
    print(f"mean class accuracy ± standard error over {len(kernels.splits)} splits, {n_views} kernels and noise\n")
    print(f"{'noise':>5}  {'model':<12}{'validation':>15}{'test':>16}{'test, refitted':>16}   chosen")
    parts = []
    for n_noise in options.noise:
        part = outcomes(kernels.select(slice(n_views + n_noise)), options)
        parts.append(part)
        for name in part["model"].values:
            row = part.sel(model=name)
            cells = [mean_and_error(row[variable]) for variable in ("validation", *TITLES)]
            columns = "".join(f"{float(mean):>8.3f} ± {float(error):.3f}" for mean, error in cells)
            print(f"{n_noise:>5}  {name:<12}{columns}   {row['chosen'].item()}", flush=True)
        print()
    found = xr.concat(parts, pd.Index(options.noise, name="noise"))
    found["noise"].attrs["long_name"] = "noise kernels"
    found.attrs = {"data": Path(options.data).name, "kernels": n_views, "scoring": "mean class accuracy"}
    found.to_netcdf(options.output / "noise_kernels.nc", engine="scipy")
    picture = options.output / "noise_kernels.png"
    draw(found).savefig(picture)
    print(f"drawn in {picture}")


if __name__ == "__main__":
    main()
