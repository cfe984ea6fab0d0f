"""Survival on the data sets of scikit-survival: MKCox beside ridge Cox regression and a random survival forest.

    python pipelines/survival.py

Nested folds with equal shares of events: five test, three on the training rows of each choose. All methods see the same
rows, tables and folds. Columns are standardized over all rows, without labels. MKCox has a Gaussian kernel of each
variable (of each table where there are genes), and a linear and two Gaussian kernels of each whole table; it chooses p
and λ. The sum is the same learner with equal weights. Printed are means over the test folds, with their standard error:
Harrell's concordance index, and the integrated Brier score of the curves between the deciles of the training times.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
from sklearn.metrics.pairwise import euclidean_distances
from sklearn.model_selection import GridSearchCV, StratifiedKFold

import dmkl

try:
    from sksurv import datasets
    from sksurv.ensemble import RandomSurvivalForest
    from sksurv.linear_model import CoxPHSurvivalAnalysis
    from sksurv.metrics import concordance_index_censored
    from sksurv.util import Surv
except ImportError:
    sys.exit("this job needs scikit-survival, which has the data sets: pip install scikit-survival")

SETS = {
    "veterans": datasets.load_veterans_lung_cancer,
    "GBSG2": datasets.load_gbsg2,
    "WHAS500": datasets.load_whas500,
    "breast cancer": datasets.load_breast_cancer,
}
Curves = Callable[[np.ndarray], np.ndarray]
"""P(T > t) of the test rows, (rows, times), at some times."""


def main() -> None:
    """Evaluate all methods on each set, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", nargs="+", choices=SETS, default=list(SETS))
    parser.add_argument("--norms", type=float, nargs="+", default=[1.0, 2.0])
    parser.add_argument("--ridges", type=float, nargs="+", default=[0.1, 1.0, 10.0, 100.0])
    parser.add_argument("--trees", type=int, default=100)
    options = parser.parse_args()
    print("set (samples, events)       method                    concordance      Brier score      seconds")
    for name in options.sets:
        tables, y = load(name)
        title = f"{name} ({len(y)}, {int((y > 0).sum())})"
        for method, scores, seconds in compare(tables, y, options):
            means, errors = scores.mean(axis=0), scores.std(axis=0, ddof=1) / np.sqrt(len(scores))
            values = "   ".join(f"{mean:.3f} ± {error:.3f}" for mean, error in zip(means, errors, strict=True))
            print(f"{title:<28}{method:<26}{values}{seconds:>9.0f}", flush=True)


def load(name: str) -> tuple[dict[str, pd.DataFrame], np.ndarray]:
    """Standardized tables of a set, categories as indicators, and signed times; rows in random order."""
    X, labels = SETS[name]()
    event, times = (labels[field] for field in labels.dtype.names)
    order = np.random.default_rng(0).permutation(len(X))
    X = pd.get_dummies(X, dtype=float).iloc[order]
    X = (X - X.mean()) / X.std(ddof=0)
    y = dmkl.signed_times(np.maximum(times[order], 0.5), event[order])  # deaths on the day of diagnosis
    is_gene = X.columns.str.endswith("_at")
    tables = {"genes": X.loc[:, is_gene]} if is_gene.any() else {}
    return {**tables, "clinical": X.loc[:, ~is_gene]}, y


def kernels_of(tables: dict[str, pd.DataFrame]) -> dict[str, np.ndarray]:
    """A linear and two Gaussian kernels of each table, and Gaussian ones of single clinical variables."""
    kernels = {}
    for table, X in tables.items():
        kernels[f"{table} linear"] = X.values @ X.values.T
        for factor in (0.5, 2.0):
            kernels[f"{table} gaussian {factor}"] = gaussian(X.values, factor)
    columns = tables["clinical"].columns.str.replace("=", "_").str.split("_").str[0]  # indicators of a category
    for variable in dict.fromkeys(columns):
        kernels[f"{variable} gaussian"] = gaussian(tables["clinical"].loc[:, columns == variable].values, 1.0)
    return kernels


def gaussian(X: np.ndarray, factor: float) -> np.ndarray:
    """exp(−‖x − x'‖²/(factor · mean squared distance))."""
    squares = euclidean_distances(X, squared=True)
    return np.exp(-squares / (factor * squares.mean()))


def compare(tables: dict[str, pd.DataFrame], y: np.ndarray, options: Any) -> Any:
    """Yield each method, its scores of the test folds, (fold, 2), and the seconds that it took."""
    started = time.perf_counter()
    K = dmkl.create(None, kernels_of(tables), dtype="float64")
    grid = {"p": options.norms, "lam": options.ridges}
    result = dmkl.evaluate(dmkl.MKCox(), K, y, grid, outer=5, inner=3)
    folds = list(result.folds.values())
    scores, of_sum = [], []
    for (train, test), model in zip(folds, result.models_.values(), strict=True):
        scores.append(score(y, train, test, model.predict(K[test, train]).values, survival_of(model, K[test, train])))
    yield "MKCox", np.array(scores), time.perf_counter() - started
    started = time.perf_counter()
    for k, (train, test) in enumerate(folds):
        lam = float(result.baselines["lam"].isel(baseline=0, fold=k))
        model = dmkl.MKCox(np.inf, lam).fit(K[train, train], y[train])
        of_sum.append(score(y, train, test, model.predict(K[test, train]).values, survival_of(model, K[test, train])))
    yield "the sum of the kernels", np.array(of_sum), time.perf_counter() - started
    X, labels = pd.concat(tables.values(), axis=1).values, Surv.from_arrays(y > 0, np.abs(y))
    forest = RandomSurvivalForest(options.trees, random_state=0)
    learners = {
        "ridge Cox": (CoxPHSurvivalAnalysis(ties="efron"), {"alpha": [0.1, 1.0, 10.0, 100.0, 1000.0]}),
        "random survival forest": (forest, {"min_samples_leaf": [3, 10, 30]}),
    }
    for name, (learner, values) in learners.items():
        started, scores = time.perf_counter(), []
        for train, test in folds:
            inner = list(StratifiedKFold(3).split(X[train], y[train] > 0))
            model = GridSearchCV(learner, values, cv=inner).fit(X[train], labels[train]).best_estimator_
            functions = model.predict_survival_function(X[test])
            curves = lambda times, of=functions: np.array([curve(times) for curve in of])  # noqa: E731
            scores.append(score(y, train, test, model.predict(X[test]), curves))
        yield name, np.array(scores), time.perf_counter() - started


def survival_of(model: Any, K: Any) -> Curves:
    """The curves of a model of dmkl."""
    return lambda times: model.predict_survival(K, times).values


def score(y: np.ndarray, train: np.ndarray, test: np.ndarray, risk: np.ndarray, curves: Curves) -> tuple[float, float]:
    """The concordance index, and the integrated Brier score of 19 times between deciles of the training times."""
    times = np.quantile(np.abs(y[train]), np.linspace(0.1, 0.9, 19))
    brier = dmkl.survival_scores(curves(times), y[test], y[train], times)["integrated_brier_score"]
    return concordance_index_censored(y[test] > 0, np.abs(y[test]), risk)[0], float(brier)


if __name__ == "__main__":
    main()
