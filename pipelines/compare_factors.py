"""Compare MK-FDA on gene-set kernels stored as factors with scikit-learn's linear models, Nystroem, and scMKL.

    python pipelines/compare_factors.py --cells 5000 20000 --scmkl-python scmkl-env/bin/python

The data are simulated counts of cells of two kinds. In two of 20 gene sets the means differ between the kinds. In a
third set the genes rise or fall together in half of the cells of one kind; the means are about equal, so a linear model
hardly detects it. Counts become log counts per cell, standardized by the training cells. Every method trains on the
same two thirds of the cells and chooses its penalty by 3-fold cross-validation. "Fourier" denotes 40 random Fourier
features of each set, with one bandwidth. Each method runs in a separate process with one BLAS thread, which reports
seconds and CPU seconds, both without the preparation of the data, and peak memory. scMKL (pip install scmkl) may run in
another environment.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np

N_SETS, SIZE, RANK = 20, 30, 40
SIGNAL = (0, 1, 2)
GAMMA = 1.0 / (2 * SIZE)
NAMES = [f"SET_{k}" for k in range(N_SETS)]
SELECTED = 1e-3
"""A set counts as chosen if its weight exceeds this share of the largest weight."""

Rows = tuple[np.ndarray, np.ndarray, np.ndarray]
Answer = tuple[np.ndarray, list[int] | None]


def counts(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Simulate the counts (n, genes) and the types (n,) of cells."""
    rng = np.random.default_rng(seed)
    kind = rng.integers(0, 2, n)
    log_rate = rng.normal(-0.5, 0.7, N_SETS * SIZE) + 0.3 * rng.standard_normal((n, 1))
    log_rate[:, : 2 * SIZE] += 0.15 * np.sign(rng.standard_normal(2 * SIZE)) * (2 * kind[:, None] - 1)
    program = np.sign(rng.standard_normal(SIZE)) * rng.choice([-1.0, 0.0, 1.0], (n, 1), p=[0.25, 0.5, 0.25])
    log_rate[:, 2 * SIZE : 3 * SIZE] += 0.8 * program * kind[:, None]
    return rng.poisson(np.exp(log_rate)), kind


def standardized(table: np.ndarray, train: np.ndarray) -> np.ndarray:
    """Log counts per cell, with mean zero and variance one over the training cells; float32."""
    logs = np.log1p(table * (np.median(table.sum(axis=1)) / table.sum(axis=1))[:, None])
    scale = logs[train].std(axis=0)
    return np.asarray((logs - logs[train].mean(axis=0)) / np.where(scale > 0, scale, 1.0), dtype=np.float32)


def of_set(X: np.ndarray, k: int) -> np.ndarray:
    """The columns of gene set k."""
    return X[:, k * SIZE : (k + 1) * SIZE]


# --- methods: return the labels of the test cells and the sets with weight -------------------------------------------


def mkfda(spec: dict[str, object], X: np.ndarray, y: np.ndarray, train: np.ndarray, test: np.ndarray) -> Answer:
    """Fit MK-FDA with one kernel for each set, p = 1, and λ chosen by a search."""
    import dmkl.errors

    # The comparison concerns linear models on these features, not their approximation of the kernel.
    warnings.filterwarnings("ignore", category=dmkl.errors.ApproximationWarning)
    tables = {name: of_set(X[train], k) for k, name in enumerate(NAMES)}
    K = dmkl.build(None, tables, spec, labels=y[train])
    search = dmkl.search(dmkl.MKFDA(), K, grid={"p": [1.0], "lam": [1e-4, 1e-3, 1e-2, 1e-1]}, cv=3, baselines="none")
    weights = search.best_.weights_.values
    labels = search.best_.predict(features={name: of_set(X[test], k) for k, name in enumerate(NAMES)})
    return np.asarray(labels), np.flatnonzero(weights > SELECTED * weights.max()).tolist()


def fourier(X: np.ndarray) -> np.ndarray:
    """The random Fourier features of all sets, concatenated."""
    from sklearn.kernel_approximation import RBFSampler

    samplers = [RBFSampler(gamma=GAMMA, n_components=RANK, random_state=k) for k in range(N_SETS)]
    return np.hstack([s.fit_transform(of_set(X, k)) for k, s in enumerate(samplers)]).astype(np.float32)


def by_scikit_learn(model: str, X: np.ndarray, y: np.ndarray, train: np.ndarray, test: np.ndarray) -> Answer:
    """Fit a scikit-learn model on all features; choose its penalty by a grid search."""
    from sklearn.kernel_approximation import Nystroem
    from sklearn.linear_model import LogisticRegression, RidgeClassifier
    from sklearn.model_selection import GridSearchCV
    from sklearn.pipeline import make_pipeline

    costs = [1e-3, 1e-2, 1e-1, 1.0]
    if model == "ridge":
        search = GridSearchCV(RidgeClassifier(), {"alpha": [1.0, 1e2, 1e3, 1e4]}, cv=3)
    elif model == "logistic":
        search = GridSearchCV(LogisticRegression(max_iter=500), {"C": costs}, cv=3)
    else:
        points = Nystroem(gamma=1.0 / (2 * X.shape[1]), n_components=500, random_state=0)
        pipeline = make_pipeline(points, LogisticRegression(max_iter=500))
        search = GridSearchCV(pipeline, {"logisticregression__C": [*costs, 10.0, 100.0]}, cv=3)
    return search.fit(X[train], y[train]).predict(X[test]), None


def scmkl(X: np.ndarray, y: np.ndarray, train: np.ndarray, test: np.ndarray) -> Answer:
    """Fit a group lasso on as many Fourier features of each set; choose its penalty by the package's search."""
    import scmkl as package

    rows = np.concatenate([train, test])  # training cells first, as the package needs them
    genes = np.array([f"G{g}" for g in range(X.shape[1])])
    groups = {name: of_set(genes[None], k)[0] for k, name in enumerate(NAMES)}
    parts = np.repeat(["train", "test"], [len(train), len(test)])
    kinds = np.where(y[rows] == 1, "1", "0")
    data = package.create_adata(X[rows], genes, kinds, groups, split_data=parts, D=RANK // 2, scale_data=False)
    data = package.calculate_z(data)
    alpha = package.optimize_alpha(data, k=3, metric="Accuracy")
    data = package.train_model(data, alpha=alpha)
    labels, _ = package.predict(data, metrics=["Accuracy"])
    return np.asarray(labels).astype(int), [NAMES.index(name) for name in package.find_selected_groups(data)]


METHODS: dict[str, Callable[..., Answer]] = {
    "MKFDA, Fourier": lambda *data: mkfda(
        {"function": "rbf", "gamma": GAMMA, "rank": RANK, "approximation": "fourier"}, *data
    ),
    "MKFDA, genes": lambda *data: mkfda({"function": "linear"}, *data),
    "RidgeClassifier, Fourier": lambda X, *data: by_scikit_learn("ridge", fourier(X), *data),
    "RidgeClassifier, genes": lambda *data: by_scikit_learn("ridge", *data),
    "LogisticRegression, Fourier": lambda X, *data: by_scikit_learn("logistic", fourier(X), *data),
    "LogisticRegression, genes": lambda *data: by_scikit_learn("logistic", *data),
    "Nystroem, LogisticRegression": lambda *data: by_scikit_learn("nystroem", *data),
    "scMKL": scmkl,
}


# --- running ---------------------------------------------------------------------------------------------------------


def run(method: str, n: int) -> None:
    """Print accuracy, chosen sets, seconds and memory of a method as JSON."""
    table, y = counts(n)
    order = np.random.default_rng(1).permutation(n)
    train, test = np.sort(order[: 2 * n // 3]), np.sort(order[2 * n // 3 :])
    X = standardized(table, train)
    del table
    started, cpu = time.monotonic(), time.process_time()
    labels, chosen = METHODS[method](X, y, train, test)
    figures = {
        "accuracy": float(np.mean(labels == y[test])),
        "chosen": chosen,
        "seconds": time.monotonic() - started,
        "cpu": time.process_time() - cpu,
        "gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
    }
    print(json.dumps(figures))


def main() -> None:
    """Print a table with a row for each method and number of cells."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", type=int, nargs="+", default=[5000])
    parser.add_argument("--methods", nargs="+", choices=[*METHODS], default=[*METHODS])
    parser.add_argument("--scmkl-python", type=Path, help="the interpreter of an environment with scMKL")
    parser.add_argument("--run", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.run:
        run(options.run, options.cells[0])
        return
    print("| cells | method | accuracy | sets with signal, others | seconds | CPU | GiB |\n" + 7 * "| --- " + "|")
    for n in options.cells:
        for method in options.methods:
            python = options.scmkl_python if method == "scMKL" else sys.executable
            if python is None:
                continue
            command = [str(python), __file__, "--cells", str(n), "--run", method]
            environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
            process = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True, env=environment)
            figures = json.loads(process.stdout.splitlines()[-1])
            chosen = figures["chosen"]
            selection = "" if chosen is None else f"{len({*chosen} & {*SIGNAL})}, {len({*chosen} - {*SIGNAL})}"
            row = (
                f"{n:,}",
                method,
                f"{figures['accuracy']:.4f}",
                selection,
                f"{figures['seconds']:.0f}",
                f"{figures['cpu']:.0f}",
            )
            print("|", " | ".join(row), "|", f"{figures['gib']:.2f} |", flush=True)


if __name__ == "__main__":
    main()
