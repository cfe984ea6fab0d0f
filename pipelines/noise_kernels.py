"""Accuracy of MK-FDA with several norms, and of NCuts, as noise kernels are added to informative kernels.

    python pipelines/noise_kernels.py digits                                          # scikit-learn's digits
    python pipelines/noise_kernels.py flower17.npz --output out/noise_flower17        # Oxford Flower17 images
    python pipelines/noise_kernels.py flower17.npz --noise 0 5 --lams 1e-3 1e-2       # a small one

The experiments of Yan, Kittler, Mikolajczyk, Tahir (JMLR 13, 2012, sections 3.2 and 3.4) and of Mukherjee, Singh, Peng,
Hinrichs (Learning kernels for variants of normalized cuts, CVPR 2010, section 4.1). A file holds views of L1-normalised
histograms, (samples, bins) each, `label` and `split` (split, sample: 0 train, 1 validation, 2 test): their kernels are
exp(−χ²/η), where η is the mean χ² between training samples. The digits have random splits and ten RBF kernels of a
few random pixels. The noise kernels are RBF kernels of Gaussian vectors that are independent of the samples.

For each number of noise kernels, one search evaluates a grid of (p, λ) on all splits, with models trained on the
training rows only. Each split chooses λ for each norm by its validation score. "learnt p" chooses the norm in the same
way, and NCuts the C of its support vector machines, around the papers' 10.
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
    """Return the views of a file, with rows normalised again after half precision, the labels and the splits."""
    with np.load(path) as data:
        names = [name for name in data.files if data[name].ndim == 2 and name != "split"]
        views = {name: data[name].astype(np.float32) for name in names}
        return {k: v / v.sum(axis=1, keepdims=True) for k, v in views.items()}, data["label"], data["split"]


def digits(
    n_samples: int, n_pixels: int = 4, n_splits: int = 5
) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]:
    """Return ten views of random pixels, labels, and stratified splits into a half, a quarter and a quarter."""
    images, labels = load_digits(return_X_y=True)
    rng = np.random.default_rng(0)
    chosen, _ = train_test_split(np.arange(len(labels)), train_size=n_samples, stratify=labels, random_state=0)
    images, labels = images[chosen] / 16, labels[chosen]
    varying = np.flatnonzero(images.std(axis=0) > 0.1)  # pixels of the margin are always white
    views = {f"pixels {k}": images[:, rng.choice(varying, n_pixels, replace=False)] for k in range(1, 11)}
    splits = np.zeros((n_splits, n_samples), dtype=np.int8)
    for seed, split in enumerate(splits):
        _, held_out = train_test_split(np.arange(n_samples), test_size=0.5, stratify=labels, random_state=seed)
        _, test = train_test_split(held_out, test_size=0.5, stratify=labels[held_out], random_state=seed)
        split[held_out], split[test] = 1, 2
    return views, labels, splits


def kernel_set(options: argparse.Namespace) -> tuple[dmkl.KernelSet, int]:
    """Return all kernels, noise kernels last, and the number of the others."""
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
    """Return mean class accuracy on the test rows of a split, after training on its other rows."""
    train, validation, test = kernels.split(number)
    rows = np.union1d(train, validation)
    model = clone(estimator).fit(kernels[rows, rows])
    return float(balanced_accuracy_score(kernels.labels[test], model.predict(kernels[test, rows])))


def candidates(kernels: dmkl.KernelSet, options: argparse.Namespace) -> dict[str, tuple[Any, dmkl.SearchResult]]:
    """Return, for the name of each curve, the estimator and the part of the search from which it chooses."""
    settings: dict[str, Any] = {"cv": "splits", "scoring": "mean_class_accuracy", "refit": False}
    curves: dict[str, tuple[Any, dmkl.SearchResult]] = {}
    if "mkfda" in options.models:
        model = dmkl.MKFDA()
        scores = dmkl.search(model, kernels, grid={"p": options.ps, "lam": options.lams}, **settings).scores
        shown = {f"p = {p:.7g}": [p] for p in SHOWN if p in options.ps}
        curves = {
            name: (model, dmkl.SearchResult(scores.sel(p=ps))) for name, ps in (shown | {LEARNT: options.ps}).items()
        }
    if "ncuts" in options.models:
        model = dmkl.NCuts()
        curves[NCUTS] = model, dmkl.search(model, kernels, grid={"C": options.costs}, **settings)
    return curves


def outcomes(kernels: dmkl.KernelSet, options: argparse.Namespace) -> xr.Dataset:
    """Return the validation, test and refitted test scores, (model, split), and the chosen parameters."""
    refits: dict[tuple[int, str], float] = {}
    rows = []
    searched = candidates(kernels, options)
    for estimator, result in searched.values():
        refit_scores = []
        for number, params in enumerate(result.best_params_.values()):  # each split has its own choice
            best = clone(estimator).set_params(**params)
            if (number, str(best)) not in refits:
                refits[number, str(best)] = refitted(kernels, number, best)
            refit_scores.append(refits[number, str(best)])
        scores = {"validation": result.chosen["score"], "test": result.chosen["test_score"], "refitted": refit_scores}
        row = xr.Dataset({name: ("split", np.asarray(values)) for name, values in scores.items()})
        row["chosen"] = ", ".join(
            f"{name} = {' '.join(f'{value:.5g}' for value in result.chosen[name].values)}" for name in result.parameters
        )
        rows.append(row)
    return xr.concat(rows, pd.Index(list(searched), name="model"))


# --- the report ------------------------------------------------------------------------------------------------------


def mean_and_error(scores: xr.DataArray) -> tuple[xr.DataArray, xr.DataArray]:
    """Return the mean over the splits and its standard error."""
    return scores.mean("split"), scores.std("split", ddof=1) / np.sqrt(scores.sizes["split"])


def draw(results: xr.Dataset) -> Figure:
    """Plot test scores over the number of noise kernels, one curve for each model."""
    figure = Figure(figsize=(9.5, 4), dpi=150, layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    names = list(results["model"].values)
    styles = zip(COLORS, MARKERS, strict=True)
    drawn = {name: SPECIAL.get(name) or dict(zip(("color", "marker"), next(styles), strict=True)) for name in names}
    for axes, (variable, title) in zip(panels, TITLES.items(), strict=True):
        mean, error = mean_and_error(results[variable])
        for k, name in enumerate(names):
            # Shifted horizontally, so that error bars do not overlap.
            places = results["noise"] + 0.03 * max(int(results["noise"].max()), 1) * (k / len(names) - 0.5)
            at, style = {"model": name}, {"capsize": 2, "markersize": 5, "linewidth": 1.2, **drawn[name]}
            axes.errorbar(places, mean.sel(at), error.sel(at), label=name, **style)
        axes.set(title=title, xlabel="noise kernels", xticks=results["noise"])
        axes.grid(alpha=0.3)
    panels[0].set_ylabel("mean class accuracy on test ± standard error")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside right center", frameon=False)
    return figure


def main() -> None:
    """Build the set, search, print and draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", help="a file, or 'digits'")
    parser.add_argument("--noise", type=int, nargs="+", default=list(range(0, 31, 5)), help="numbers of noise kernels")
    parser.add_argument("--ps", type=float, nargs="+", default=NORMS, help="norms of the grid")
    parser.add_argument("--lams", type=float, nargs="+", default=LAMS)
    parser.add_argument("--costs", type=float, nargs="+", default=COSTS, help="values of C, for NCuts")
    parser.add_argument("--models", nargs="+", choices=["mkfda", "ncuts"], default=["mkfda", "ncuts"])
    parser.add_argument("--samples", type=int, default=800, help="number of samples, of the 1,797 digits")
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
    results = xr.concat(parts, pd.Index(options.noise, name="noise"))
    results["noise"].attrs["long_name"] = "noise kernels"
    results.attrs = {"data": Path(options.data).name, "kernels": n_views, "scoring": "mean class accuracy"}
    results.to_netcdf(options.output / "noise_kernels.nc", engine="scipy")
    picture = options.output / "noise_kernels.png"
    draw(results).savefig(picture)
    print(f"figure saved to {picture}")


if __name__ == "__main__":
    main()
