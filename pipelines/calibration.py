"""Log loss and calibration of probabilities by nested folds: logistic regression, discriminants and machines.

    python pipelines/calibration.py                       # all sets
    python pipelines/calibration.py --sets iris wine --repetitions 3

Kernels are Gaussian with three bandwidths and linear, of each part of the features of scikit-learn's small sets. The
inner folds choose p and λ, or C, by the log loss. Probabilities of `MKLogistic` are the model's own, those of `MKFDA`
are calibrated on leave-one-out scores of training rows, those of `MKSVM` on scores of five folds of them. The
calibration error is the mean difference of the probability of the predicted class from its share of right labels, over
ten groups of equal numbers of rows by that probability, without sign.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import dask
import numpy as np
import pandas as pd
import xarray as xr
from sklearn.datasets import load_breast_cancer, load_digits, load_iris, load_wine
from sklearn.model_selection import StratifiedKFold
from sklearn.preprocessing import StandardScaler

import dmkl

DIGITS = ("digits 3 8", "digits 4 9")
PARTS = {"iris": 2, "wine": 3, "breast cancer": 3, **dict.fromkeys(DIGITS, 4)}
"""The number of parts of the features of each set."""
LAMS, COSTS = [1e-3, 1e-2, 0.1, 1.0], [0.1, 1.0, 10.0]
MODELS = {
    "MKLogistic": (dmkl.MKLogistic(), {"lam": LAMS}),
    "MKFDA": (dmkl.MKFDA(), {"lam": LAMS}),
    "MKSVM": (dmkl.MKSVM(decision="means"), {"C": COSTS}),
}
SCORING = ["neg_log_loss", "neg_brier_score", "accuracy"]  # the first chooses


def kernels(name: str) -> dmkl.KernelSet:
    """The kernels of a set: standardized features, or pixels of digits from 0 to 1."""
    if name in DIGITS:
        X, y = load_digits(return_X_y=True)
        chosen = np.isin(y, [int(digit) for digit in name.split()[1:]])
        X, y = X[chosen] / 16.0, y[chosen]
    else:
        load = {"iris": load_iris, "wine": load_wine, "breast cancer": load_breast_cancer}[name]
        X, y = load(return_X_y=True)
        X = StandardScaler().fit_transform(X)  # without labels
    parts = dict(enumerate(np.array_split(X, PARTS[name], axis=1)))
    specs = [{"function": "rbf", "bandwidth": [0.3, 1.0, 3.0]}, {"function": "linear"}]
    return dmkl.build(None, {f"part {k}": part for k, part in parts.items()}, specs, labels=y)


def calibration_error(predictions: xr.Dataset, n_groups: int = 10) -> float:
    """Mean |probability − share of right labels| of the predicted class, over groups of rows by the probability."""
    confidence = predictions["probability"].max("class").values
    is_right = (predictions["predicted_label"] == predictions["true_label"]).values
    groups = np.array_split(np.argsort(confidence, kind="stable"), n_groups)
    return float(np.mean([abs(confidence[rows].mean() - is_right[rows].mean()) for rows in groups]))


def measure(name: str, models: list[str], ps: list[float], seed: int) -> list[dict[str, object]]:
    """A row of the table for each model on a set, with outer folds by this seed."""
    K, rows = kernels(name), []
    for model in models:
        (learner, grid), started = MODELS[model], time.perf_counter()
        outer = StratifiedKFold(5, shuffle=True, random_state=seed)
        options = {"outer": outer, "inner": 3, "scoring": SCORING, "baselines": "none"}
        result = dmkl.evaluate(learner, K, grid={"p": ps, **grid}, **options)
        loss, brier, accuracy = (
            float(result.scores[f"test_score{scorer}"].mean()) for scorer in ("", "_neg_brier_score", "_accuracy")
        )
        row = {"set": name, "samples": K.shape[1], "model": model, "log loss": -loss, "Brier": -brier}
        row |= {"calibration error": calibration_error(result.predictions), "accuracy": accuracy}
        rows.append(row | {"seconds": time.perf_counter() - started})
    return rows


def main() -> None:
    """Measure, print and save the table: means over repetitions."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", nargs="*", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--models", nargs="*", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--ps", nargs="*", type=float, default=[1.0, 2.0])
    parser.add_argument("--repetitions", type=int, default=1, help="of the outer folds")
    parser.add_argument("--output", type=Path, default=Path("out/calibration"))
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, object]] = []
    for name in options.sets:
        with dask.config.set(scheduler="threads"):
            new = [
                row for seed in range(options.repetitions) for row in measure(name, options.models, options.ps, seed)
            ]
        rows += new
        by_model = pd.DataFrame(new).groupby(["set", "samples", "model"], sort=False)
        print(by_model.mean().round(3).to_string(), flush=True)
    table = pd.DataFrame(rows)
    grouped = table.groupby(["set", "samples", "model"], sort=False)
    grouped.mean().assign(error=grouped["log loss"].sem()).to_csv(options.output / "table.csv")


if __name__ == "__main__":
    main()
