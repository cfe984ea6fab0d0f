r"""Compare decision rules on the same scores: the largest score, Fisher's discriminant, and dmkl's combination of both.

    python pipelines/rules.py out/compare_models/flower17/kernels-0.zarr --groups flower17.npz --train 40 \
        --validation 20
    python pipelines/rules.py out/compare_models/scene15/kernels-0.zarr --train 60 --validation 40

The script reads the kernel set built by `compare_models.py` and splits it at random: a fixed number of samples of each
class for training and validation, at most 100 more for testing. The uniform sum is fitted to the training rows for each
λ. Rules are learnt from the scores of validation rows (Fisher's rule is scikit-learn's discriminant), or, as in
`predict` by default, from leave-one-out scores of the training rows. `group` in the file of --groups holds the group of
each sample; no split separates a group. The table shows test accuracy and log loss, and the difference in accuracy to
the largest score ± its standard error over splits.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.metrics import accuracy_score, log_loss

import dmkl


def split(labels: np.ndarray, groups: np.ndarray, sizes: list[int], seed: int) -> list[np.ndarray]:
    """Return rows of the parts: whole groups, until each class has the number of samples of the part."""
    rng = np.random.default_rng(seed)
    parts: list[list[int]] = [[] for _ in sizes]
    for label in np.unique(labels):
        chosen: list[list[int]] = [[] for _ in sizes]
        for group in rng.permutation(np.unique(groups[labels == label])):
            place = next((k for k, size in enumerate(sizes) if len(chosen[k]) < size), None)
            if place is not None:
                chosen[place] += np.flatnonzero((groups == group) & (labels == label)).tolist()
        for part, rows in zip(parts, chosen, strict=True):
            part += rows
    return [np.array(part) for part in parts]


def compare_rules(K: dmkl.KernelSet, lam: float, parts: list[np.ndarray]) -> dict[str, tuple[float, float]]:
    """Return accuracy and log loss of each rule on the test rows."""
    train, validation, test = parts
    y, model = np.asarray(K.labels), dmkl.Uniform(lam).fit(K[train, train])
    scores = model.decision_function(K[test, train]).values
    fisher = LinearDiscriminantAnalysis().fit(model.decision_function(K[validation, train]).values, y[validation])
    results = {
        "largest score": (accuracy_score(y[test], model.classes_[scores.argmax(axis=1)]), np.nan),
        "Fisher's, validation": (
            accuracy_score(y[test], fisher.predict(scores)),
            log_loss(y[test], fisher.predict_proba(scores)),
        ),
    }
    for name in ("both, leave-one-out", "both, validation"):
        if name == "both, validation":
            model.calibrate(K[validation, train])
        probabilities = model.predict_proba(K[test, train]).values
        results[name] = (accuracy_score(y[test], model.predict(K[test, train])), log_loss(y[test], probabilities))
    return results


def main() -> None:
    """Split, fit, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kernels", type=Path)
    parser.add_argument("--groups", type=Path)
    parser.add_argument("--train", type=int, default=60, help="training samples of each class")
    parser.add_argument("--validation", type=int, default=40, help="validation samples of each class")
    parser.add_argument("--splits", type=int, default=10)
    parser.add_argument("--lam", default="1e-4,1e-3,1e-2")
    options = parser.parse_args()
    K = dmkl.open(options.kernels)
    labels = np.asarray(K.labels)
    groups = np.arange(len(labels))
    if options.groups is not None:
        with np.load(options.groups) as data:
            groups = data["group"]
    print(f"{'lam':<8}{'rule':<24}{'accuracy':>10}{'log loss':>10}   points from the largest score")
    for lam in (float(value) for value in options.lam.split(",")):
        runs = [
            compare_rules(K, lam, split(labels, groups, [options.train, options.validation, 100], seed))
            for seed in range(options.splits)
        ]
        for name in runs[0]:
            values = np.array([run[name] for run in runs])
            gain = 100 * (values[:, 0] - [run["largest score"][0] for run in runs])
            error = gain.std(ddof=1) / np.sqrt(len(gain))
            accuracy, loss = values.mean(axis=0)
            loss_column = f"{loss:10.3f}" if np.isfinite(loss) else " " * 10
            print(f"{lam:<8g}{name:<24}{accuracy:10.3f}{loss_column}   {gain.mean():+.2f} ± {error:.2f}", flush=True)


if __name__ == "__main__":
    main()
