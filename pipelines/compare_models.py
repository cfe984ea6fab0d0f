"""Compare models with learned and with fixed kernel weights on predefined splits of real data.

    python pipelines/compare_models.py flower17.npz                   # χ² kernels of histograms, on the stored splits
    python pipelines/compare_models.py scene15.npz --function rbf --bandwidth 0.3,1,3 --train 60 --validation 40
    python pipelines/compare_models.py flower17.npz --models mksvm gmkl --output out/some   # no model: only kernels
    python pipelines/compare_models.py flower17.npz --models gsmkl --groups 1,2,3 --steps multiplicative

Each split has its own kernels: their bandwidths (and the means and deviations of the features, for RBF kernels) are
those of the training part. Every parameter (p, λ, C, groups) is chosen on the validation part. Support vector machines
train on the training part alone; Fisher's decision rule is fitted to the validation rows. The table has the mean class
accuracy on test over the splits, the passes over the kernels of all searches, and their time.
If each class chooses its number of groups, "one for all" is the accuracy with one number for all classes.
If the file has no splits, the script draws random ones with fixed seeds and the requested samples of each class.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pandas as pd
from sklearn.base import clone
from sklearn.preprocessing import StandardScaler

import dmkl

NORMS = [1.0, 1 + 2**-6, 1.125, 1.5, 2.0, 4.0, np.inf]
LAMS = [10.0**k for k in range(-7, 1)]
COSTS = [2.0**k for k in range(-2, 8)]
MODELS: dict[str, tuple[Any, dict[str, list[Any]]]] = {
    "single best": (dmkl.SingleBest(), {"lam": LAMS[1::2]}),
    "uniform": (dmkl.Uniform(), {"lam": LAMS}),
    "product": (dmkl.Product(), {"lam": LAMS[1::2]}),
    "mkfda": (dmkl.MKFDA(), {"p": NORMS, "lam": LAMS}),
    "svm": (dmkl.MKSVM(p=np.inf), {"C": COSTS}),
    "mksvm": (dmkl.MKSVM(), {"p": NORMS, "C": COSTS[::2]}),
    "gmkl": (dmkl.GMKL(), {"C": [1.0, 10.0, 100.0], "sigma": [1.0, 10.0, 100.0]}),
    "ncuts": (dmkl.NCuts(), {"C": COSTS}),
    "gsmkl": (dmkl.GSMKL(C=4.0, tol=3e-3, max_iter=30), {"n_groups": [1, 2, 3, 4, 5]}),
    "gsmkl, across": (dmkl.GSMKL(C=4.0, across=True, tol=3e-3, max_iter=30), {"n_groups": [1, 2, 3, 4, 5]}),
}


def make_splits(labels: np.ndarray, n_splits: int, n_train: int, n_validation: int) -> np.ndarray:
    """Draw splits (split, sample): `n_train` and `n_validation` samples of each class, the rest for testing."""
    splits = np.full((n_splits, len(labels)), 2, dtype=np.int8)
    for number, split in enumerate(splits):
        rng = np.random.default_rng(number)
        for label in np.unique(labels):
            shuffled = rng.permutation(np.flatnonzero(labels == label))
            split[shuffled[:n_train]] = 0
            split[shuffled[n_train : n_train + n_validation]] = 1
    return splits


def kernels(options: argparse.Namespace) -> list[dmkl.KernelSet]:
    """Return a kernel set for each split, its only one; build the sets that do not exist."""
    with np.load(options.data) as data:
        labels = data["label"]
        splits = (
            data["split"] if "split" in data else make_splits(labels, options.splits, options.train, options.validation)
        )
        names = [name for name in data.files if data[name].ndim == 2 and name != "split"]
        views = {name: data[name].astype(np.float32) for name in names}
    widths = [float(width) for width in options.bandwidth.split(",")]
    specs = {"function": options.function, "bandwidth": widths}
    sets = []
    for number, split in enumerate(splits):
        store = options.output / f"kernels-{number}.zarr"
        if not store.exists():
            scaled = {name: scale(view, split == 0, options.function) for name, view in views.items()}
            dmkl.build(store, scaled, specs, train=split == 0, labels=labels, splits=split[None])
        sets.append(dmkl.open(store))
    return sets


def scale(view: np.ndarray, train: np.ndarray, function: str) -> np.ndarray:
    """Return histograms that sum to one for χ² kernels, else columns standardized over the training rows."""
    if function == "chi2":
        return np.asarray(view / view.sum(axis=1, keepdims=True))
    return np.asarray(StandardScaler().fit(view[train]).transform(view))


def test_scores(result: dmkl.SearchResult, model: Any, K: dmkl.KernelSet) -> np.ndarray:
    """Mean class accuracy on the test part of each split, of models trained on its training part."""
    if not result.by_class:
        return np.atleast_1d(result.chosen["test_score"].values)
    scores = []
    for number, params in choices(result).items():
        split = K.split(int(number))
        fitted = clone(model).set_params(**params).fit(K[split.train, split.train])
        measured = dmkl.assess(fitted, K[split.test, split.train], scoring="mean_class_accuracy")
        scores.append(float(measured["score"].item()))
    return np.array(scores)


def choices(result: dmkl.SearchResult) -> dict[Any, dict[str, Any]]:
    """The chosen parameters by split; a search with one choice for all splits has the key 0."""
    return result.best_params_ if "fold" in result.choosers else {0: result.best_params_}


def format_choices(results: list[dmkl.SearchResult]) -> str:
    """Format the choice of each split; if classes choose separately, the mean over the classes."""
    chosen = [params for result in results for params in choices(result).values()]
    values = {name: [params[name] for params in chosen] for name in results[0].parameters}
    means = {
        name: [np.mean(list(value.values())) if isinstance(value, dict) else value for value in split_values]
        for name, split_values in values.items()
    }
    return ", ".join(f"{name} = {' '.join(f'{value:.4g}' for value in choice)}" for name, choice in means.items())


def main() -> None:
    """Build the kernels, search with each model, print and save the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--function", choices=["chi2", "rbf"], default="chi2")
    parser.add_argument("--bandwidth", default="1", help="multiples of the mean distance")
    parser.add_argument("--splits", type=int, default=3, help="random splits, if the file has none")
    parser.add_argument(
        "--train", type=int, default=60, help="training samples of each class, if the file has no splits"
    )
    parser.add_argument("--validation", type=int, default=40, help="validation samples of each class")
    parser.add_argument("--models", nargs="*", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--groups", default="1,2,3,4,5", help="numbers of groups that GS-MKL chooses from")
    parser.add_argument("--steps", help="preprocessing instead of each model's default, such as center,trace")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    options.output = options.output or Path("out/compare_models") / options.data.stem
    sets = kernels(options)
    print(*sets, sep="\n", flush=True)
    rows = []
    for name in options.models:
        model, grid = MODELS[name]
        model = clone(model) if options.steps is None else clone(model).set_params(steps=options.steps.split(","))
        if "n_groups" in grid:
            grid = {"n_groups": [int(number) for number in options.groups.split(",")]}
        started = time.perf_counter()
        with dask.config.set(scheduler="threads"):
            results = [
                dmkl.search(model, K, grid=grid, cv="splits", scoring="mean_class_accuracy", refit=False) for K in sets
            ]
            test = np.concatenate([test_scores(result, model, K) for result, K in zip(results, sets, strict=True)])
        rows.append(
            {
                "model": name,
                "validation": float(np.mean([result.chosen["score"].mean() for result in results])),
                "test": float(test.mean()),
                "±": float(test.std(ddof=1)),
                "passes": sum(result.n_passes_ for result in results),
                "seconds": time.perf_counter() - started,
                "one for all": float(np.mean([result.chosen["test_score"].mean() for result in results])),
                "chosen": format_choices(results),
            }
        )
        print(pd.DataFrame(rows[-1:]).to_string(index=False, header=len(rows) == 1, float_format="%.3f"), flush=True)
    table = pd.DataFrame(rows)
    table.to_csv(options.output / "table.csv", index=False)
    print("\n" + table.to_string(index=False, float_format="%.3f"))


if __name__ == "__main__":
    main()
