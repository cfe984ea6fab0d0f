"""What decides best where classes differ in size: rules of Fisher discriminants, and machines, on unbalanced data.

    python pipelines/decisions.py --digits uci_digits.npz --scenes scene15.npz

Digits are thinned to 160 … 8 training samples a class, scenes to 100 … 10, breast cancer (of scikit-learn) to 15 % that
are malignant; made data have 15 % positives that overlap with the rest. The files hold views, (samples, features) each,
and `label`; without them these sets are left out. Kernels are Gaussian, one a view, the uniform sum is learnt on, and λ
or C is chosen by five folds of the training rows in the measure that is shown: accuracy on test rows that have the
shares of training, mean class accuracy, log loss of the probabilities. "largest score" is the class of the largest
regression score, its sign for two classes; the machine is scikit-learn's SVC, one against the rest, its sigmoids fitted
on five folds.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import load_breast_cancer
from sklearn.kernel_ridge import KernelRidge
from sklearn.metrics import accuracy_score, balanced_accuracy_score, log_loss
from sklearn.model_selection import GridSearchCV, StratifiedKFold
from sklearn.multiclass import OneVsRestClassifier
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

import dmkl

RIDGES = [10.0**k for k in range(-5, 1)]
PRICES = [10.0**k for k in range(0, 4)]
MEASURES = ("accuracy", "mean class accuracy", "log loss")


def main() -> None:
    """Draw, fit, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--digits", type=Path)
    parser.add_argument("--scenes", type=Path)
    parser.add_argument("--repetitions", type=int, default=3)
    options = parser.parse_args()
    print(f"{'set':<10}{'rule':<34}" + "".join(f"{measure:>24}" for measure in MEASURES))
    for place, (name, *_) in enumerate(data_sets(options, 0)):
        found: dict[str, list[list[float]]] = {}
        for seed in range(options.repetitions):
            _, views, labels, sizes = data_sets(options, seed)[place]
            for rule, measured in compared(views, labels, sizes, seed).items():
                found.setdefault(rule, []).append(measured)
        for rule, values in found.items():
            mean, error = np.mean(values, axis=0), np.std(values, axis=0) / np.sqrt(len(values))
            told = [f"{m:.3f} ± {e:.3f}" if np.isfinite(m) else "" for m, e in zip(mean, error, strict=True)]
            print(f"{name:<10}{rule:<34}" + "".join(f"{text:>24}" for text in told), flush=True)


Sample = tuple[str, list[np.ndarray], np.ndarray, np.ndarray]


def data_sets(options: argparse.Namespace, seed: int) -> list[Sample]:
    """Name, views, labels, and the training samples of each class."""
    found: list[Sample] = []
    for name, path, most, least in (("digits", options.digits, 160, 8), ("scenes", options.scenes, 100, 10)):
        if path is not None:
            with np.load(path) as data:
                views = [data[key].astype(np.float64) for key in data.files if data[key].ndim == 2 and key != "split"]
                labels = np.unique(data["label"], return_inverse=True)[1]
            sizes = np.geomspace(most, least, len(np.unique(labels))).round().astype(int)
            found.append((name, views, labels, sizes))
    x, malignant = load_breast_cancer(return_X_y=True)
    found.append(("cancer", [x[:, start::3] for start in range(3)], 1 - malignant, np.array([150, 26])))
    rng = np.random.default_rng(1000 + seed)
    x = rng.standard_normal((2000, 10))
    hidden = x[:, 0] + 0.5 * x[:, 1] ** 2 + 1.2 * rng.standard_normal(len(x))
    positive = (hidden > np.quantile(hidden, 0.85)).astype(np.int64)
    found.append(("made", [x[:, :5], x[:, 5:]], positive, np.array([340, 60])))
    return found


def compared(views: list[np.ndarray], labels: np.ndarray, sizes: np.ndarray, seed: int) -> dict[str, list[float]]:
    """Accuracy, mean class accuracy and log loss of each rule on the rows that are left over."""
    rng = np.random.default_rng(seed)
    train = np.concatenate([rng.permutation(np.flatnonzero(labels == k))[:size] for k, size in enumerate(sizes)])
    rows = np.concatenate([train, np.setdiff1d(np.arange(len(labels)), train)])
    learnt, new = np.arange(len(train)), np.arange(len(train), len(rows))
    scaled = {f"view{k}": StandardScaler().fit(v[train]).transform(v)[rows] for k, v in enumerate(views)}
    y, folds = labels[rows], StratifiedKFold(5, shuffle=True, random_state=seed)
    # Test rows weigh so much that the classes have their shares of training.
    weight = (sizes / sizes.sum() / np.bincount(y[new]))[y[new]]

    def measured(found: np.ndarray, probabilities: np.ndarray | None = None) -> list[float]:
        loss = np.nan if probabilities is None else log_loss(y[new], probabilities, sample_weight=weight)
        return [accuracy_score(y[new], found, sample_weight=weight), balanced_accuracy_score(y[new], found), loss]

    K = dmkl.build(None, scaled, {"function": "rbf", "bandwidth": 1.0}, labels=y)
    found = {}
    for priors, scoring in (("empirical", "accuracy"), ("uniform", "mean_class_accuracy")):
        learner = dmkl.Uniform(priors=priors)
        model = dmkl.search(learner, K[learnt, learnt], grid={"lam": RIDGES}, cv=folds, scoring=scoring).best_
        probabilities = model.predict_proba(K[new, learnt]).values
        found[f"priors={priors!r}"] = measured(
            model.predict(K[new, learnt]), probabilities if priors == "empirical" else None
        )
    total = centered_sum(K, len(train))

    def kernel(first: np.ndarray, second: np.ndarray) -> np.ndarray:
        """Of rows that are told by their numbers."""
        return total[np.ix_(first[:, 0].astype(int), second[:, 0].astype(int))]

    numbers = np.arange(len(rows))[:, None]
    for scoring in ("accuracy", "balanced_accuracy"):
        search = GridSearchCV(LargestScore(kernel), {"lam": RIDGES}, cv=folds, scoring=scoring)
        search.fit(numbers[learnt], y[learnt])
        found[f"largest score, by {scoring}"] = measured(search.predict(numbers[new]))
    machines = OneVsRestClassifier(SVC(kernel=kernel))
    search = GridSearchCV(machines, {"estimator__C": PRICES}, cv=folds).fit(numbers[learnt], y[learnt])
    calibrated = CalibratedClassifierCV(search.best_estimator_, method="sigmoid", cv=folds, ensemble=False)
    calibrated.fit(numbers[learnt], y[learnt])
    found["SVC"] = measured(search.predict(numbers[new]), calibrated.predict_proba(numbers[new]))
    return found


def centered_sum(K: dmkl.KernelSet, m: int) -> np.ndarray:
    """The sum of the kernels, centered by the first m rows and of unit trace among them, times m."""
    whole = np.zeros(K.shape[1:])
    for kernel in K.to_xarray().values.astype(np.float64):
        means = kernel[:, :m].mean(axis=1)
        kernel = kernel - means[:, None] - means + means[:m].mean()
        whole += m * kernel / np.trace(kernel[:m, :m])
    return whole


class LargestScore(ClassifierMixin, BaseEstimator):
    """The class of the largest regression score of JMLR's targets, or the sign for two classes."""

    def __init__(self, kernel: Callable[[np.ndarray, np.ndarray], np.ndarray], lam: float = 1.0) -> None:
        self.kernel = kernel
        self.lam = lam

    def fit(self, X: np.ndarray, y: np.ndarray) -> LargestScore:
        """Regress the targets; the kernel is the m-fold of one of unit trace, and so is the ridge."""
        self.classes_, sizes = np.unique(y, return_counts=True)
        targets = (y[:, None] == self.classes_) * np.sqrt(len(y) / sizes) - np.sqrt(sizes / len(y))
        if len(sizes) == 2:
            targets = np.where(y == self.classes_[1], 1.0 / sizes[1], -1.0 / sizes[0])[:, None]
        self.model_ = KernelRidge(alpha=self.lam * len(y), kernel="precomputed")
        self.rows_ = X
        self.model_.fit(self.kernel(X, X), targets)
        return self

    def predict(self, X: np.ndarray) -> np.ndarray:
        """Labels."""
        scores = self.model_.predict(self.kernel(X, self.rows_))
        return self.classes_[np.argmax(scores, axis=1) if scores.shape[1] > 1 else (scores[:, 0] > 0).astype(int)]


if __name__ == "__main__":
    main()
