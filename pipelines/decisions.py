"""Compare decision rules of Fisher discriminants and support vector machines on classes of unequal size.

    python pipelines/decisions.py --digits uci_digits.npz --scenes scene15.npz

Digits have 160 to 8 training samples per class, scenes 100 to 10; 15 % of the training samples of scikit-learn's breast
cancer data are malignant; 15 % of the simulated samples ("made") are positive and overlap with the rest. The files hold
views, (samples, features) each, and `label`; a set without its file is left out. The models use the uniform sum of one
Gaussian kernel per view; λ or C is chosen by 5-fold cross-validation on the training rows. The measures are accuracy on
test rows weighted to the class shares of training, mean class accuracy, and log loss of the probabilities. "largest
score" predicts the class of the largest regression score, or by its sign for two classes; "SVC" is scikit-learn's, one
against the rest, with sigmoids fitted on five folds.
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
    """Draw the samples, fit the models and print the measures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--digits", type=Path)
    parser.add_argument("--scenes", type=Path)
    parser.add_argument("--repetitions", type=int, default=3)
    options = parser.parse_args()
    print(f"{'set':<10}{'rule':<34}" + "".join(f"{measure:>24}" for measure in MEASURES))
    for index, (name, *_) in enumerate(data_sets(options, 0)):
        results: dict[str, list[list[float]]] = {}
        for seed in range(options.repetitions):
            _, views, labels, sizes = data_sets(options, seed)[index]
            for rule, scores in compare_rules(views, labels, sizes, seed).items():
                results.setdefault(rule, []).append(scores)
        for rule, values in results.items():
            mean, error = np.mean(values, axis=0), np.std(values, axis=0) / np.sqrt(len(values))
            cells = [f"{m:.3f} ± {e:.3f}" if np.isfinite(m) else "" for m, e in zip(mean, error, strict=True)]
            print(f"{name:<10}{rule:<34}" + "".join(f"{text:>24}" for text in cells), flush=True)


Sample = tuple[str, list[np.ndarray], np.ndarray, np.ndarray]


def data_sets(options: argparse.Namespace, seed: int) -> list[Sample]:
    """Return name, views, labels and training samples per class of each data set."""
    samples: list[Sample] = []
    for name, path, most, least in (("digits", options.digits, 160, 8), ("scenes", options.scenes, 100, 10)):
        if path is not None:
            with np.load(path) as data:
                views = [data[key].astype(np.float64) for key in data.files if data[key].ndim == 2 and key != "split"]
                labels = np.unique(data["label"], return_inverse=True)[1]
            sizes = np.geomspace(most, least, len(np.unique(labels))).round().astype(int)
            samples.append((name, views, labels, sizes))
    x, malignant = load_breast_cancer(return_X_y=True)
    samples.append(("cancer", [x[:, start::3] for start in range(3)], 1 - malignant, np.array([150, 26])))
    rng = np.random.default_rng(1000 + seed)
    x = rng.standard_normal((2000, 10))
    hidden = x[:, 0] + 0.5 * x[:, 1] ** 2 + 1.2 * rng.standard_normal(len(x))
    positive = (hidden > np.quantile(hidden, 0.85)).astype(np.int64)
    samples.append(("made", [x[:, :5], x[:, 5:]], positive, np.array([340, 60])))
    return samples


def compare_rules(views: list[np.ndarray], labels: np.ndarray, sizes: np.ndarray, seed: int) -> dict[str, list[float]]:
    """Return the accuracy, mean class accuracy and log loss of each rule on the test rows."""
    rng = np.random.default_rng(seed)
    train = np.concatenate([rng.permutation(np.flatnonzero(labels == k))[:size] for k, size in enumerate(sizes)])
    rows = np.concatenate([train, np.setdiff1d(np.arange(len(labels)), train)])
    train_rows, test_rows = np.arange(len(train)), np.arange(len(train), len(rows))
    scaled = {f"view{k}": StandardScaler().fit(v[train]).transform(v)[rows] for k, v in enumerate(views)}
    y, folds = labels[rows], StratifiedKFold(5, shuffle=True, random_state=seed)
    # The weights give the classes their shares of training in the test rows.
    weight = (sizes / sizes.sum() / np.bincount(y[test_rows]))[y[test_rows]]

    def measure(predicted: np.ndarray, probabilities: np.ndarray | None = None) -> list[float]:
        loss = np.nan if probabilities is None else log_loss(y[test_rows], probabilities, sample_weight=weight)
        accuracy = accuracy_score(y[test_rows], predicted, sample_weight=weight)
        return [accuracy, balanced_accuracy_score(y[test_rows], predicted), loss]

    K = dmkl.build(None, scaled, {"function": "rbf", "bandwidth": 1.0}, labels=y)
    results = {}
    for priors, scoring in (("empirical", "accuracy"), ("uniform", "mean_class_accuracy")):
        learner = dmkl.Uniform(priors=priors)
        model = dmkl.search(learner, K[train_rows, train_rows], grid={"lam": RIDGES}, cv=folds, scoring=scoring).best_
        probabilities = model.predict_proba(K[test_rows, train_rows]).values
        results[f"priors={priors!r}"] = measure(
            model.predict(K[test_rows, train_rows]), probabilities if priors == "empirical" else None
        )
    total = centered_sum(K, len(train))

    def kernel(first: np.ndarray, second: np.ndarray) -> np.ndarray:
        """Return the kernel sum between rows given by their indices."""
        return total[np.ix_(first[:, 0].astype(int), second[:, 0].astype(int))]

    numbers = np.arange(len(rows))[:, None]
    for scoring in ("accuracy", "balanced_accuracy"):
        search = GridSearchCV(LargestScore(kernel), {"lam": RIDGES}, cv=folds, scoring=scoring)
        search.fit(numbers[train_rows], y[train_rows])
        results[f"largest score, by {scoring}"] = measure(search.predict(numbers[test_rows]))
    machines = OneVsRestClassifier(SVC(kernel=kernel))
    search = GridSearchCV(machines, {"estimator__C": PRICES}, cv=folds).fit(numbers[train_rows], y[train_rows])
    calibrated = CalibratedClassifierCV(search.best_estimator_, method="sigmoid", cv=folds, ensemble=False)
    calibrated.fit(numbers[train_rows], y[train_rows])
    results["SVC"] = measure(search.predict(numbers[test_rows]), calibrated.predict_proba(numbers[test_rows]))
    return results


def centered_sum(K: dmkl.KernelSet, m: int) -> np.ndarray:
    """Return m times the sum of the kernels, centered and with unit trace over the first m rows."""
    whole = np.zeros(K.shape[1:])
    for kernel in K.to_xarray().values.astype(np.float64):
        means = kernel[:, :m].mean(axis=1)
        kernel = kernel - means[:, None] - means + means[:m].mean()
        whole += m * kernel / np.trace(kernel[:m, :m])
    return whole


class LargestScore(ClassifierMixin, BaseEstimator):
    """Classifier by the largest regression score of JMLR's targets, or by its sign for two classes."""

    def __init__(self, kernel: Callable[[np.ndarray, np.ndarray], np.ndarray], lam: float = 1.0) -> None:
        self.kernel = kernel
        self.lam = lam

    def fit(self, X: np.ndarray, y: np.ndarray) -> LargestScore:
        """Regress the targets; the kernel has trace m, and the ridge is λ times the number of rows."""
        self.classes_, sizes = np.unique(y, return_counts=True)
        targets = (y[:, None] == self.classes_) * np.sqrt(len(y) / sizes) - np.sqrt(sizes / len(y))
        if len(sizes) == 2:
            targets = np.where(y == self.classes_[1], 1.0 / sizes[1], -1.0 / sizes[0])[:, None]
        self.model_ = KernelRidge(alpha=self.lam * len(y), kernel="precomputed")
        self.rows_ = X
        self.model_.fit(self.kernel(X, X), targets)
        return self

    def predict(self, X: np.ndarray) -> np.ndarray:
        """Return the predicted labels."""
        scores = self.model_.predict(self.kernel(X, self.rows_))
        return self.classes_[np.argmax(scores, axis=1) if scores.shape[1] > 1 else (scores[:, 0] > 0).astype(int)]


if __name__ == "__main__":
    main()
