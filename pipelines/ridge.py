"""Multiple kernel ridge regression of many targets, compared with himalaya and scikit-learn.

    python pipelines/ridge.py                                        # 40 targets, a small grid, all three
    python pipelines/ridge.py --targets 1000 --ps 2 --lams 1e-3      # time of a thousand targets
    python pipelines/ridge.py --targets 4000 --candidates 20         # weights shared by thousands of targets

Each simulated target depends on three of the kernels and on noise. Three quarters of the samples are for training, the
rest for testing. If the grid has several points, each target chooses one on a quarter of the training samples, and is
refitted on all of them. himalaya's MultipleKernelRidgeCV chooses by random search on the same rows, with the same λ
values, on kernels centered and scaled as in dmkl; it runs if it is installed (pip install himalaya).

With --candidates, dmkl and himalaya evaluate the same weight vectors, drawn by himalaya's method, in five folds of the
training samples, and each target chooses a weight vector and λ. With --refine, dmkl then refines the weights of each
target.
"""

from __future__ import annotations

import argparse
import time
import warnings
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from sklearn.kernel_ridge import KernelRidge
from sklearn.metrics import r2_score
from sklearn.metrics.pairwise import rbf_kernel
from sklearn.model_selection import KFold, PredefinedSplit

import dmkl


def simulate(n: int, m: int, n_targets: int, noise: float) -> tuple[np.ndarray, np.ndarray]:
    """Return RBF kernels (n, m, m) of independent features, and targets (m, n_targets)."""
    rng = np.random.default_rng(0)
    features = rng.standard_normal((n, m, 5))
    kernels = np.stack([rbf_kernel(x, gamma=0.1) for x in features])
    # Random Fourier features approximate functions of the kernel's space.
    waves = [
        np.sqrt(2 / 100) * np.cos(np.sqrt(0.2) * x @ rng.standard_normal((5, 100)) + 6 * rng.random(100))
        for x in features
    ]
    targets = np.empty((m, n_targets))
    for column in targets.T:
        chosen = rng.choice(n, min(3, n), replace=False)
        signal = sum(waves[j] @ rng.standard_normal(100) for j in chosen)
        column[:] = signal / signal.std() + noise * rng.standard_normal(m)
    return kernels, targets


def report(name: str, seconds: float, truth: np.ndarray, predicted: np.ndarray, note: str) -> None:
    """Print a row of the table."""
    scores = r2_score(truth, predicted, multioutput="raw_values")
    print(f"{name:12} {seconds:8.1f} s   R² {scores.mean():.4f} ± {scores.std():.4f} over targets   {note}", flush=True)


def with_dmkl(K: dmkl.KernelSet, y: np.ndarray, rows: dict[str, np.ndarray], grid: dict[str, list[float]]) -> None:
    """Search if the grid has several points, and fit."""
    train, test = rows["train"], rows["test"]
    started = time.monotonic()
    if max(map(len, grid.values())) > 1:
        result = dmkl.search(dmkl.MKRidge(), K, y, grid, cv=(rows["learn"], rows["choose"]), refit=False)
        points = result.best_params_.values()
        chosen = {name: tuple(point[name] for point in points) for name in grid}
        passes, solver = result.n_passes_, result.scores.attrs["solver"]
    else:
        chosen, passes, solver = {name: values[0] for name, values in grid.items()}, 0.0, ""
    model = dmkl.MKRidge(**chosen).fit(K[train, train], y[train])
    seconds = time.monotonic() - started
    solvers = model.solver_ if solver in ("", model.solver_) else f"{solver}, {model.solver_}"
    gap = float(np.max(model.gap_))
    note = f"{passes + model.n_passes_:g} passes ({solvers}), largest gap {gap:.0e}"
    report("dmkl", seconds, y[test], model.predict(K[test, train]).values, note)


def center_and_scale(kernels: np.ndarray, rows: np.ndarray, train: np.ndarray) -> np.ndarray:
    """Return kernels centered and scaled to unit trace by the training rows."""
    selected = kernels[:, rows][:, :, train]
    own = kernels[:, train][:, :, train]
    means = own.mean(axis=1)
    grand = means.mean(axis=1)[:, None, None]
    traces = np.trace(own, axis1=1, axis2=2) - len(train) * grand[:, 0, 0]
    centered = selected - selected.mean(axis=2)[:, :, None] - means[:, None, :] + grand
    return centered / traces[:, None, None]


def with_himalaya(
    kernels: np.ndarray, y: np.ndarray, rows: dict[str, np.ndarray], lams: list[float], n_iter: int
) -> None:
    """Run himalaya's random search over weight vectors shared by all targets, with λ for each target."""
    if find_spec("himalaya") is None:
        print("himalaya     is not installed; pip install himalaya")
        return
    from himalaya.kernel_ridge import MultipleKernelRidgeCV

    train, test = rows["train"], rows["test"]
    means = y[train].mean(axis=0)
    started = time.monotonic()
    cv = PredefinedSplit(np.where(np.isin(train, rows["choose"]), 0, -1))
    # Weights of himalaya sum to one, those of dmkl have norm one: more values of λ compensate for this.
    alphas = np.unique([lam / 2.0**k for lam in lams for k in range(4)])
    options = {"n_iter": n_iter, "alphas": alphas, "progress_bar": False}
    model = MultipleKernelRidgeCV(
        kernels="precomputed", solver="random_search", solver_params=options, cv=cv, random_state=0
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(center_and_scale(kernels, train, train), y[train] - means)
    seconds = time.monotonic() - started
    predicted = model.predict(center_and_scale(kernels, test, train)) + means
    report("himalaya", seconds, y[test], predicted, f"{n_iter} weight vectors")


def with_candidates(
    K: dmkl.KernelSet,
    kernels: np.ndarray,
    y: np.ndarray,
    rows: dict[str, np.ndarray],
    lams: list[float],
    n: int,
    refine: int,
) -> None:
    """Choose one of n weight vectors and λ for each target, with dmkl and himalaya; refine them with dmkl."""
    train, test = rows["train"], rows["test"]
    ridges = [lam * len(train) for lam in lams]  # in units of the traces: k(x, x) = 1, and no kernel is scaled
    learner = dmkl.MKRidge(weights="shared", n_candidates=n, random_state=0, steps=("center",))
    started = time.monotonic()
    result = dmkl.search(learner, K[train, train], y[train], {"lam": ridges}, cv=KFold(5))
    report("dmkl", time.monotonic() - started, y[test], result.best_.predict(K[test, train]).values, f"{n} candidates")
    if refine:
        started = time.monotonic()
        refined = dmkl.search(
            learner.set_params(refine=refine), K[train, train], y[train], {"lam": ridges}, cv=KFold(5)
        )
        predicted = refined.best_.predict(K[test, train]).values
        report("dmkl, refined", time.monotonic() - started, y[test], predicted, f"{refine} steps")
        print(*(line for line in refined.summary().splitlines() if line.startswith("Refined")))
    if find_spec("himalaya") is None:
        print("himalaya     is not installed; pip install himalaya")
        return
    from himalaya.kernel_ridge import generate_dirichlet_samples, solve_multiple_kernel_ridge_random_search
    from himalaya.scoring import r2_score as r2_scores

    candidates = np.asarray(generate_dirichlet_samples(n, len(kernels), [0.1, 1.0], random_state=0))
    candidates[0] = 1.0 / len(kernels)
    started = time.monotonic()
    log_weights, dual, scores, intercept = solve_multiple_kernel_ridge_random_search(
        kernels[:, train][:, :, train],
        y[train],
        n_iter=candidates,
        alphas=np.array(ridges),
        score_func=r2_scores,
        cv=KFold(5),
        return_weights="dual",
        fit_intercept=True,
        progress_bar=False,
    )
    seconds = time.monotonic() - started
    images = kernels[:, test][:, :, train] @ dual
    report("himalaya", seconds, y[test], (np.exp(log_weights)[:, None] * images).sum(axis=0) + intercept, "the same")
    difference = np.abs(result.chosen["mean_score"].values - scores.max(axis=0)).max()
    weights = result.best_.weights_.values / result.chosen["lam"].values
    n_equal = np.isclose(weights, np.exp(log_weights)).all(axis=0).sum()
    print(f"weights and λ are equal for {n_equal} of {y.shape[1]} targets, R² in validation to {difference:.1e}")


def main() -> None:
    """Simulate the data, run and compare the libraries."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--targets", type=int, default=40)
    parser.add_argument("--samples", type=int, default=800)
    parser.add_argument("--kernels", type=int, default=10)
    parser.add_argument("--noise", type=float, default=0.5, help="standard deviation; that of the signal is 1")
    parser.add_argument("--ps", type=float, nargs="+", default=[1.0, 1.5, 2.0])
    parser.add_argument("--lams", type=float, nargs="+", default=[1e-4, 1e-3, 1e-2])
    parser.add_argument("--n-iter", type=int, default=100, help="number of weight vectors that himalaya tries")
    parser.add_argument("--candidates", type=int, help="number of weight vectors that all targets share")
    parser.add_argument("--refine", type=int, default=0, help="steps that refine the weights of each target after that")
    parser.add_argument("--output", type=Path, default=Path("out"), help="folder for the kernels")
    chosen = parser.parse_args()
    kernels, y = simulate(chosen.kernels, chosen.samples, chosen.targets, chosen.noise)
    shuffled = np.random.default_rng(1).permutation(chosen.samples)
    train, test = (np.sort(part) for part in np.split(shuffled, [3 * chosen.samples // 4]))
    learn, choose = train[np.arange(len(train)) % 4 > 0], train[::4]
    rows = {"train": train, "test": test, "learn": learn, "choose": choose}
    K = dmkl.create(chosen.output / "ridge.zarr", kernels, overwrite=True).persist()
    if chosen.candidates is not None:
        with_candidates(K, kernels, y, rows, chosen.lams, chosen.candidates, chosen.refine)
        return

    single = K.select([K.names[0]])
    own_predictions = dmkl.MKRidge(lam=0.1, steps=()).fit(single[train, train], y[train]).predict(single[test, train])
    reference = KernelRidge(alpha=0.1, kernel="precomputed").fit(kernels[0][np.ix_(train, train)], y[train])
    difference = np.abs(own_predictions.values - reference.predict(kernels[0][np.ix_(test, train)])).max()
    print(f"one kernel: predictions differ from scikit-learn's KernelRidge by {difference:.1e} at most", flush=True)

    with_dmkl(K, y, rows, {"p": chosen.ps, "lam": chosen.lams})
    with_himalaya(kernels, y, rows, chosen.lams, chosen.n_iter)


if __name__ == "__main__":
    main()
