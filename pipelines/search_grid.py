"""Search the papers' grid in a shared subspace and with the wrapper method, and compare the two.

    python pipelines/search_grid.py digits                   # 30 kernels of 1,797 handwritten digits
    python pipelines/search_grid.py random                   # 20 kernels of 4,000 samples, 3 classes
    python pipelines/search_grid.py flower17 flower17.npz    # 10 χ² kernels of images, on their stored splits
    python pipelines/search_grid.py digits --only shared     # compares with results of earlier runs
    python pipelines/search_grid.py digits --tol 1e-8 --wrapper-tol 1e-8

The wrapper method runs twice: point by point, with one fit of each (p, λ) after the other, as in the papers, and with
all points together, which share the passes for their combined kernels. Both fit all folds together.

All searches solve every point on 3 folds to the same proven gap of 1e-4, so their objectives may differ by up to 2e-4.
They should differ only in passes and time. The class of a sample with two nearly tied best classes may differ at this
gap; with 1e-8 for both, scores are those of the exact solution. Kernels and results are kept in a folder for each set.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from contextlib import nullcontext
from itertools import product
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits
from sklearn.metrics.pairwise import additive_chi2_kernel, euclidean_distances
from sklearn.model_selection import StratifiedKFold

import dmkl

NORMS = [1.0, *(1 + 2.0**-k for k in range(6, 0, -1)), 2.0, 3.0, 4.0, 8.0, np.inf]
LAMS = [10.0**k for k in range(-8, 2)]
MOST_DIFFERENT = 2e-4
"""Largest relative difference of two objectives that both have a proven gap of 1e-4."""


# --- the sets --------------------------------------------------------------------------------------------------------


def rbf(features: np.ndarray, bandwidth: float = 1.0) -> np.ndarray:
    """Return exp(−γ‖x − y‖²) in float32, where γ is `bandwidth` divided by the mean squared distance."""
    distance = euclidean_distances(features, squared=True)
    return np.exp(-bandwidth * distance / distance.mean()).astype(np.float32)


def digit_kernels(pixels: np.ndarray, n: int) -> Iterator[np.ndarray]:
    """Yield n kernels: two thirds on 16 random pixels each, the last third on Gaussian noise."""
    rng = np.random.default_rng(0)
    for k in range(n):
        informative = k < n - n // 3
        chosen, noise = rng.choice(64, 16, replace=False), rng.standard_normal((len(pixels), 16))
        yield rbf(pixels[:, chosen] if informative else noise, (0.3, 1.0, 3.0, 10.0)[k % 4])


def random_kernels(labels: np.ndarray, n: int) -> Iterator[np.ndarray]:
    """Yield n kernels: every second one of Gaussians with a center for each class, the others of noise."""
    rng = np.random.default_rng(1)
    for k in range(n):
        centers = rng.standard_normal((3, 20))
        yield rbf(rng.standard_normal((len(labels), 20)) + (0.0 if k % 2 else 0.5) * centers[labels])


def chi2_kernels(data: np.lib.npyio.NpzFile, names: list[str], train: np.ndarray) -> Iterator[np.ndarray]:
    """Yield exp(−χ²/η) in float32, where η is the mean over pairs of training samples."""
    for name in names:
        view = data[name].astype(np.float64)
        view /= view.sum(axis=1, keepdims=True)
        distance = -additive_chi2_kernel(view)
        yield np.exp(-distance / distance[np.ix_(train, train)].mean()).astype(np.float32)


def three_folds(labels: np.ndarray) -> np.ndarray:
    """Return splits to store with the kernels, (fold, sample): 0 train, 1 validation."""
    splits = np.zeros((3, len(labels)), dtype=np.int8)
    folds = StratifiedKFold(3, shuffle=True, random_state=0).split(labels, labels)
    for split, (_, validation) in zip(splits, folds, strict=True):
        split[validation] = 1
    return splits


def kernel_set(options: argparse.Namespace) -> tuple[dmkl.KernelSet, Path]:
    """Open or build the requested set; return it and its folder."""
    folder = options.output / "-".join([options.set, *(str(size) for size in (options.n, options.m) if size)])
    store = folder / "kernels.zarr"
    try:
        return dmkl.open(store), folder
    except (dmkl.errors.StoreNotFoundError, dmkl.errors.IncompleteStoreError):
        pass
    if options.set == "flower17":
        with np.load(options.path) as data:
            names = [name for name in data.files if data[name].ndim == 2 and name != "split"][: options.n]
            labels, splits = data["label"], data["split"]
            kernels = chi2_kernels(data, names, np.flatnonzero(splits[0] == 0))
            return dmkl.create(store, kernels, names=names, labels=labels, splits=splits), folder
    if options.set == "digits":
        pixels, labels = (array[: options.m] for array in load_digits(return_X_y=True))
        kernels = digit_kernels(pixels, options.n or 30)
    else:
        labels = np.random.default_rng(0).integers(0, 3, options.m or 4000)
        kernels = random_kernels(labels, options.n or 20)
    return dmkl.create(store, kernels, labels=labels, splits=three_folds(labels)), folder


# --- the searches ----------------------------------------------------------------------------------------------------


def print_search(title: str, result: dmkl.SearchResult) -> None:
    """Print the summary, the passes of a subspace, and the mean validation scores."""
    print(f"\n--- {title} ---\n{result.summary()}\n")
    scores = result.scores
    if scores["round_basis"].any():
        columns = ["kind", "seconds", "bytes", "basis", "certified", "worst_gap"]
        rounds = scores[[f"round_{name}" for name in columns]].to_dataframe()
        print(rounds.set_axis(columns, axis=1).to_string(float_format="{:.3g}".format), end="\n\n")
    mean = scores["score"].mean("fold").transpose("p", "lam")
    table = mean.to_pandas().rename(index="{:.7g}".format, columns="{:g}".format)
    print(f"mean {scores.attrs['scoring']} in validation, p down, lam across")
    print(table.to_string(float_format="{:.4f}".format))


def format_points(result: dmkl.SearchResult) -> list[str]:
    """Format the chosen point, or the choice of each split."""
    places = zip(*(np.atleast_1d(result.chosen[name].values) for name in ("p", "lam")), strict=True)
    return [f"{p:.7g}, {lam:g}" for p, lam in places]


def point_by_point(estimator: dmkl.MKFDA, kernels: dmkl.KernelSet, grid: dict[str, list[float]]) -> tuple[float, float]:
    """Return passes and seconds of a search of one point after the other."""
    n_passes, started = 0.0, time.perf_counter()
    points = list(product(*grid.values()))
    for done, point in enumerate(points, 1):
        single = {name: [value] for name, value in zip(grid, point, strict=True)}
        result = dmkl.search(
            estimator, kernels, grid=single, cv="splits", scoring="accuracy", refit=False, baselines="none"
        )
        n_passes += result.n_passes_
        if done % 12 == 0:
            print(
                f"{done} of {len(points)} points, {n_passes:.0f} passes, {time.perf_counter() - started:.0f} s",
                flush=True,
            )
    return n_passes, time.perf_counter() - started


def compare(shared: dmkl.SearchResult, wrapper: dmkl.SearchResult, splits: np.ndarray) -> None:
    """Print passes, time, choice, scores, objectives and gaps of both searches."""
    print(f"\n{'':<34}{'shared subspace':>18}{'wrapper':>18}{'ratio':>9}")
    both = (shared, wrapper)
    passes, seconds = [r.n_passes_ for r in both], [r.scores.attrs["seconds"] for r in both]
    print(f"{'passes':<34}{passes[0]:>18,}{passes[1]:>18,}{passes[1] / passes[0]:>9.1f}")
    print(f"{'wall seconds':<34}{seconds[0]:>18,.1f}{seconds[1]:>18,.1f}{seconds[1] / seconds[0]:>9.1f}")
    rows = {"chosen p, lam": [" | ".join(format_points(r)) for r in both]}
    rows["mean validation score"] = [f"{float(r.chosen['score'].mean()):.4f}" for r in both]
    if "test_score" in shared.scores:
        rows["mean test score"] = [f"{float(r.chosen['test_score'].mean()):.4f}" for r in both]
    for number, status in enumerate(shared.scores["status"].attrs["flag_meanings"].split()):
        rows[status] = [f"{int((r.scores['status'] == number).sum()):,}" for r in both]
    rows["largest gap"] = [f"{float(r.scores['gap'].max()):.1e}" for r in both]
    for title, (first, second) in rows.items():
        print(f"{title:<34}{first:>18}{second:>18}")
    print()
    for part, name in ((1, "score"), (2, "test_score")):
        if name in shared.scores:
            different = np.abs(shared.scores[name] - wrapper.scores[name]) > 1e-12
            # Accuracy times the rows of each fold is a number of samples.
            measure = f"{name}_accuracy" if f"{name}_accuracy" in shared.scores else name
            samples = np.abs(shared.scores[measure] - wrapper.scores[measure]) * (splits == part).sum(axis=1)
            print(
                f"{'validation' if part == 1 else 'test'} scores differ in {int(different.sum()):,} of "
                f"{different.size:,} fits, by {round(float(samples.max()))} samples at most"
            )
    reference = wrapper.scores["objective"]
    largest = float((np.abs(shared.scores["objective"] - reference) / np.abs(reference)).max())
    fine = "as it must" if largest <= MOST_DIFFERENT else f"ABOVE {MOST_DIFFERENT:g}"
    print(f"objectives differ by {largest:.1e} at most, relative: {fine}")


def main() -> None:
    """Build the set, search with both methods, print and compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("set", choices=["digits", "random", "flower17"])
    parser.add_argument("path", type=Path, nargs="?", help="the file of flower17")
    parser.add_argument("-n", type=int, help="kernels")
    parser.add_argument("-m", type=int, help="samples; not for flower17")
    parser.add_argument("--ps", type=float, nargs="+", default=NORMS)
    parser.add_argument("--lams", type=float, nargs="+", default=LAMS)
    parser.add_argument("--only", choices=["shared", "wrapper", "points", "all"], default="all", help="what to run")
    parser.add_argument("--cluster", choices=["threads", "local"], default="threads")
    parser.add_argument("--tol", type=float, default=1e-4, help="gap to which the shared search solves each point")
    parser.add_argument("--wrapper-tol", type=float, default=1e-4, help="gap to which the wrapper solves each point")
    parser.add_argument("--output", type=Path, default=Path("out/search_grid"))
    options = parser.parse_args()
    if (options.set == "flower17") != (options.path is not None) or (options.path and options.m):
        parser.error("flower17 takes the path of its file and no -m, the other sets take no path")
    kernels, folder = kernel_set(options)
    print(kernels)
    grid = {"p": options.ps, "lam": options.lams}
    scoring = ["mean_class_accuracy", "accuracy"] if options.set == "flower17" else "accuracy"
    results: dict[str, dmkl.SearchResult] = {}
    for way, solver in (("shared", "subspace"), ("wrapper", "direct")):
        saved = folder / f"{way}.zarr"
        if options.only in (way, "all"):
            # Progress lines only on a terminal, which overwrites them, not in a log.
            watch = dmkl.ConsoleWatch() if sys.stderr.isatty() else nullcontext()
            with dmkl.cluster(options.cluster), watch:
                tol = options.wrapper_tol if way == "wrapper" else options.tol
                estimator = dmkl.MKFDA(solver=solver, tol=tol)
                result = dmkl.search(estimator, kernels, grid=grid, cv="splits", scoring=scoring, refit=False)
            result.save(saved, overwrite=True)
        elif saved.exists():
            result = dmkl.load(saved)
        else:
            continue
        results[way] = result
        print_search("shared subspace" if way == "shared" else "wrapper method, all points together", result)
    if options.only in ("points", "all"):
        with dmkl.cluster(options.cluster):
            estimator = dmkl.MKFDA(solver="direct", tol=options.wrapper_tol)
            n_passes, seconds = point_by_point(estimator, kernels, grid)
        print(f"\nwrapper method, point by point: {n_passes:,.0f} passes, {seconds:,.1f} s")
        if "shared" in results:
            shared = results["shared"]
            ratios = n_passes / shared.n_passes_, seconds / shared.scores.attrs["seconds"]
            print(f"ratio to the shared subspace: {ratios[0]:.1f} in passes, {ratios[1]:.1f} in time")
    if len(results) == 2:
        if results["shared"].grid != results["wrapper"].grid:
            parser.error(f"the search saved in {folder} has another grid; search with --only all")
        compare(results["shared"], results["wrapper"], kernels.splits)


if __name__ == "__main__":
    main()
