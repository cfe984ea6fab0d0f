"""Compare kernel combinations on the published distance matrices of Oxford Flower17.

    python pipelines/published_flowers.py FOLDER               # all .mat files of the set's page, in one folder
    python pipelines/published_flowers.py FOLDER --protocol jmlr --decisions largest means
    python pipelines/published_flowers.py out/compare_models/flower17/kernels-*.zarr --protocol jmlr --ps 1 2 inf
    python pipelines/published_flowers.py FOLDER --protocol jmlr --figures out/figures

The third line uses existing kernel sets, here those of `compare_models.py`, one for each split. The last line draws
the weights of each norm on the first split (JMLR Figures 1 to 3) and, for all splits, the convergence of the published
stopping rule and the accuracy at its last step (Figure 9).

Table 3 of Yan et al. (CVPR 2010), whose kernels are centered and of unit trace, with λ from 1e-8 to 10; or Table 2 of
Yan et al. (JMLR 13, 2012), whose kernels have unit norm in feature space and are then centered, with λ and C from 4⁻⁵
to 4⁴. p and λ, or C, are chosen on validation, once for each rule that turns scores into labels: the largest score, and
class means of out-of-sample scores. The papers do not specify the rule.

The script reads these arrays from the MATLAB files, whatever the names of the files:

- square matrices whose names begin with D: the distances, one matrix for each feature, all of the same size (published:
  colour, shape, texture, hog, hsv and two of sift, over 17 classes of 80 images, in the order of the classes);
- trnN, valN and tstN: the samples of split N, counted from one;
- `labels`, unless the samples are sorted by class, with 80 samples in each.

Kernels are exp(−D/η), where η is the mean over all pairs of samples, as published; test samples thus affect the scale η
and nothing else. The product is the entrywise geometric mean. Methods that the papers do not include are weights by
alignments, EasyMKL, MK-FDA with weights of each class, GMKL, NCuts and GS-MKL.
"""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd
import xarray as xr
from matplotlib.figure import Figure
from scipy.io import loadmat
from sklearn.base import clone

import dmkl

NORMS = [1.0, *(1 + 2.0**-k for k in range(6, 0, -1)), 2.0, 3.0, 4.0, 8.0, np.inf]
NUS = [0.1, 0.3, 0.6]
SHARES = [0.02, 0.1, 0.3, 0.6, 0.9]
EPSILONS = [*(2.0**-k for k in range(7)), *(10.0**-k for k in range(2, 6))]
NORMS_OF_FIGURE_9 = [1 + 2.0**-6, 2.0]
PER_CLASS = 80
PARTS = ("trn", "val", "tst")
RULES: tuple[Literal["largest", "means"], ...] = ("largest", "means")


class Protocol(NamedTuple):
    """Kernel steps of Fisher discriminants and of SVMs, and the values of λ and C."""

    steps: tuple[str, ...]
    machine_steps: tuple[str, ...]
    lams: Sequence[float]
    costs: Sequence[float]


PROTOCOLS = {
    "cvpr": Protocol(
        ("center", "trace"),
        ("center", "multiplicative"),
        [10.0**k for k in range(-8, 2)],
        [2.0**k for k in range(-2, 8)],
    ),
    "jmlr": Protocol(("cosine", "center"), ("cosine", "center"), *[[4.0**k for k in range(-5, 5)]] * 2),
}


class Method(NamedTuple):
    """A learner, its validation grid, and its kernels: all, their product, the best one, or weighted by alignment."""

    learner: Any
    grid: dict[str, Sequence[float]]
    kernels: str = "all"


def read(folder: Path) -> dict[str, np.ndarray]:
    """Return all arrays of the MATLAB files of a folder."""
    files = sorted(folder.glob("*.mat"))
    if not files:
        msg = f"{folder} holds no .mat file; copy the distance matrices and datasplits.mat there"
        raise SystemExit(msg)
    arrays: dict[str, np.ndarray] = {}
    for file in files:
        for name, array in loadmat(file).items():
            if not name.startswith("__") and not np.array_equal(arrays.setdefault(name, array), array):
                msg = f"{file} holds another {name} than a file before it; array names must be unique, so rename one"
                raise SystemExit(msg)
    return arrays


def kernel_set(folder: Path) -> dmkl.KernelSet:
    """Return the kernel set of a folder, in memory, with labels and splits."""
    arrays = read(folder)
    distances = {k: v for k, v in arrays.items() if k.startswith("D") and v.ndim == 2 and v.shape[0] == v.shape[1] > 1}
    sizes = {matrix.shape for matrix in distances.values()}
    if len(sizes) != 1:
        sizes_by_name = ", ".join(f"{name} {matrix.shape}" for name, matrix in distances.items()) or "none"
        msg = f"{folder} must hold square matrices D… of one size, found {sizes_by_name}"
        raise SystemExit(msg)
    ((m, _),) = sizes
    labels = arrays["labels"].ravel() if "labels" in arrays else np.arange(m) // PER_CLASS
    numbers = sorted({match[1] for name in arrays if (match := re.fullmatch(r"trn(\d+)", name))})
    if not numbers:
        msg = f"{folder} has no splits (trn1, val1, tst1, …), which datasplits.mat holds"
        raise SystemExit(msg)
    splits = np.full((len(numbers), m), -1, dtype=np.int8)
    for split, number in zip(splits, numbers, strict=True):
        for code, part in enumerate(PARTS):
            split[arrays[f"{part}{number}"].ravel().astype(np.int64) - 1] = code
    off = ~np.eye(m, dtype=bool)
    kernels = {name: np.exp(-matrix / matrix[off].mean()) for name, matrix in distances.items()}
    return dmkl.create(None, kernels, labels=labels, splits=splits, symmetrize=True)


def models(protocol: Protocol, ps: Sequence[float]) -> dict[str, Method]:
    """Return the compared methods by name."""
    steps, machine_steps, lams, costs = protocol
    fisher, machine = {"steps": steps}, {"steps": machine_steps}
    return {
        "product, Fisher": Method(dmkl.Uniform(**fisher), {"lam": lams}, "product"),
        "product, SVM": Method(dmkl.MKSVM(np.inf, **machine), {"C": costs}, "product"),
        "sum, Fisher": Method(dmkl.Uniform(**fisher), {"lam": lams}),
        "sum, SVM": Method(dmkl.MKSVM(np.inf, **machine), {"C": costs}),
        "best kernel, Fisher": Method(dmkl.MKFDA(np.inf, **fisher), {"lam": lams}, "alone"),
        "best kernel, SVM": Method(dmkl.MKSVM(np.inf, **machine), {"C": costs}, "alone"),
        "LP-β": Method(dmkl.LPBoost(costs, **machine), {"nu": NUS}),
        "LP-B": Method(dmkl.LPBoost(costs, sharing="none", **machine), {"nu": NUS}),
        "ℓ1 MK-SVM": Method(dmkl.MKSVM(1.0, **machine), {"C": costs}),
        "ℓp MK-SVM": Method(dmkl.MKSVM(**machine), {"p": ps, "C": costs}),
        "ℓ1 MK-SVM, one β": Method(dmkl.MKSVM(1.0, sharing="classes", **machine), {"C": costs}),
        "ℓp MK-SVM, one β": Method(dmkl.MKSVM(sharing="classes", **machine), {"p": ps, "C": costs}),
        "ℓ1 MK-FDA": Method(dmkl.MKFDA(1.0, **fisher), {"lam": lams}),
        "ℓp MK-FDA": Method(dmkl.MKFDA(**fisher), {"p": ps, "lam": lams}),
        "ℓ1 MK-FDA, β of each class": Method(dmkl.MKFDA(1.0, sharing="none", **fisher), {"lam": lams}),
        "ℓp MK-FDA, β of each class": Method(dmkl.MKFDA(sharing="none", **fisher), {"p": ps, "lam": lams}),
        "align, Fisher": Method(dmkl.MKFDA(**fisher), {"lam": lams}, "align"),
        "align, SVM": Method(dmkl.MKSVM(**machine), {"C": costs}, "align"),
        "alignf, Fisher": Method(dmkl.MKFDA(**fisher), {"lam": lams}, "alignf"),
        "alignf, SVM": Method(dmkl.MKSVM(**machine), {"C": costs}, "alignf"),
        "EasyMKL": Method(dmkl.EasyMKL(**machine), {"lam": SHARES}),
        "GMKL": Method(dmkl.GMKL(**machine), {"C": costs, "sigma": [1.0, 10.0, 100.0]}),
        "NCuts": Method(dmkl.NCuts(), {"C": costs}),
        "GS-MKL, two groups": Method(dmkl.GSMKL(tol=3e-3, max_iter=30, **machine), {"C": costs}),
    }


def compare(
    sets: Sequence[dmkl.KernelSet],
    compared: Mapping[str, Method],
    decisions: Sequence[Literal["largest", "means"] | None] = RULES,
    n_splits: int | None = None,
) -> pd.DataFrame:
    """Return test accuracy in percent by each rule (None: the learner's own), its deviation over splits, and p."""
    splits = [(K, number) for K in sets for number in range(len(K.splits))][:n_splits]
    rows: list[dict[str, Any]] = []
    for name, method in compared.items():
        row: dict[str, Any] = {"method": name}
        row["passes"], started, cpu_started = 0.0, time.perf_counter(), time.process_time()
        has_rules = "decision" in method.learner.get_params()  # LP-β and LP-B always use the largest score
        for decision in decisions if has_rules else [d for d in decisions if d != "means"]:
            chosen = []
            for K, number in splits:
                points, n_passes = choose(K, number, method, {"decision": decision} if has_rules else {})
                chosen.append(points)
                row["passes"] += n_passes
            test, column = pd.Series([100 * points["test_score"].item() for points in chosen]), decision or "accuracy"
            row |= {column: test.mean(), f"± {column}": test.std()}
            row[f"{column}, splits"] = " ".join(test.map("{:.1f}".format))
            if "p" in method.grid:
                row[f"p, {column}"] = ", ".join(f"{points['p'].item():.4g}" for points in chosen)
        rows.append(row | {"seconds": time.perf_counter() - started, "CPU seconds": time.process_time() - cpu_started})
        print(pd.DataFrame(rows[-1:]).to_string(index=False, float_format="%.1f"), flush=True)
    return pd.DataFrame(rows)


def choose(K: dmkl.KernelSet, number: int, method: Method, parameters: Mapping[str, Any]) -> tuple[xr.Dataset, float]:
    """Return the point chosen on the validation part of one split, and the passes of its search."""
    learner, train = clone(method.learner).set_params(**parameters), K.split(number).train
    if method.kernels in ("align", "alignf"):
        weights = dmkl.aligned_weights(K[train, train], method=method.kernels, steps=learner.steps)
        learner = dmkl.Weighted(weights, learner)
    result = dmkl.search(
        learner,
        K.product() if method.kernels == "product" else K,
        K.labels,
        method.grid,
        {str(number): K.split(number)},
        scoring="mean_class_accuracy",
        refit=False,
        choice="fold",
        baselines="all" if method.kernels == "alone" else "none",
    )
    chosen = result.chosen if method.kernels != "alone" else result.baselines.sel(baseline="best single kernel")
    return chosen, result.n_passes_ + 2 * ("weights" in learner.get_params() and learner.weights is not None)


# --- the figures of JMLR ---------------------------------------------------------------------------------------------


def draw_weights(result: dmkl.SearchResult) -> Figure:
    """Plot the weights learned on the training rows, each norm at its best λ (JMLR Figures 1 (b), 2 (a) and 3)."""
    ps = result.grid["p"]
    rows, columns = -(-len(ps) // 3), min(3, len(ps))
    height = 1.0 + 0.24 * min(20, result.scores.sizes["kernel"])
    figure = Figure(figsize=(5.4 * columns, height * rows), dpi=110, layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False).ravel()
    for axes, p in zip(panels, ps, strict=False):
        dmkl.SearchResult(result.scores.sel(p=[p])).plot_weights(ax=axes)
    for unused in panels[len(ps) :]:
        unused.remove()
    return figure


def draw_convergence(splits: Sequence[tuple[dmkl.KernelSet, int]], result: dmkl.SearchResult, steps: Any) -> Figure:
    """Plot the published stopping rule and the accuracy at its last step (JMLR Figure 9, steps for seconds)."""
    ps = [p for p in NORMS_OF_FIGURE_9 if p in result.grid["p"]] or result.grid["p"][:1]
    figure = Figure(figsize=(5.2 * len(ps), 6.4), dpi=110, layout="constrained")
    for (above, below), p in zip(figure.subplots(2, len(ps), squeeze=False, sharex="col").T, ps, strict=True):
        lam = dmkl.SearchResult(result.scores.sel(p=[p])).best_params_["lam"]
        for place, (K, number) in enumerate(splits):
            (train, _, test), fisher = K.split(number), dmkl.MKFDA(p, lam, steps=steps)
            model = clone(fisher).set_params(solver=dmkl.Direct("taylor"), tol=1e-6).fit(K[train, train])
            violation, scores = model.history_["violation"].values, {}
            for epsilon in EPSILONS:
                end = int(np.argmax(violation <= epsilon)) if violation.min() <= epsilon else len(violation) - 1
                if end not in scores:
                    weights = model.history_["weight"].isel(iteration=end).values
                    weighted = dmkl.Weighted(weights, fisher).fit(K[train, train])
                    test_set = K[test, train], K.labels[test]
                    scores[end] = 100 * dmkl.assess(weighted, *test_set, scoring="mean_class_accuracy")["score"].item()
            iteration = model.history_["iteration"].values
            below.plot(iteration[list(scores)], list(scores.values()), marker="o", label=f"split {place}")
            if place == 0:
                model.plot_convergence(ax=above)
                above.semilogy(iteration, violation, color="#d55e00", marker="s", markersize=3)
        above.legend(above.lines[::2], ["proven gap", "|1 − S/θ|, the published rule"], frameon=False, fontsize=8)
        above.set_title(f"p = {p:.7g}, λ = {lam:.3g}; steps on the first split", fontsize=10, loc="left")
        above.set(xlabel="", ylabel="gap, and |1 − S/θ|")
        below.set(xlabel="step at which the published rule ends, for ε from 1 to 1e-5", ylabel="test accuracy, %")
    below.legend(frameon=False)
    return figure


def draw_figures(splits: Sequence[tuple[dmkl.KernelSet, int]], protocol: Protocol, ps: Any, folder: Path) -> None:
    """Search on the first split, and save weights.png and convergence.png."""
    (K, number), grid = splits[0], {"p": ps, "lam": protocol.lams}
    common: dict[str, Any] = {"scoring": "mean_class_accuracy", "refit": False, "baselines": "none"}
    result = dmkl.search(dmkl.MKFDA(steps=protocol.steps), K, K.labels, grid, {str(number): K.split(number)}, **common)
    folder.mkdir(parents=True, exist_ok=True)
    draw_weights(result).savefig(folder / "weights.png")
    draw_convergence(splits, result, protocol.steps).savefig(folder / "convergence.png")


def main() -> None:
    """Read, compare, and save the table or the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, nargs="+", help="the folder of the MATLAB files, or kernel sets")
    parser.add_argument("--protocol", choices=list(PROTOCOLS), default="cvpr")
    parser.add_argument("--decisions", choices=RULES, nargs="+", default=RULES)
    parser.add_argument("--splits", type=int, help="number of splits, from the first; default: all")
    parser.add_argument("--methods", nargs="+", help="prefixes of the names of methods; default: all")
    parser.add_argument("--ps", type=float, nargs="+", default=NORMS)
    parser.add_argument("--lams", type=float, nargs="+")
    parser.add_argument("--costs", type=float, nargs="+")
    parser.add_argument("--output", type=Path, default=Path("out/published_flowers"))
    parser.add_argument("--figures", type=Path, help="only save the figures of JMLR, with MK-FDA, to this folder")
    options = parser.parse_args()
    sets = [dmkl.open(data) if (data / "zarr.json").exists() else kernel_set(data) for data in options.data]
    print(*sets, sep="\n")
    protocol = PROTOCOLS[options.protocol]
    protocol = protocol._replace(lams=options.lams or protocol.lams, costs=options.costs or protocol.costs)
    if options.figures:
        splits = [(K, number) for K in sets for number in range(len(K.splits))][: options.splits]
        draw_figures(splits, protocol, options.ps, options.figures)
        return
    compared = models(protocol, options.ps)
    prefixes = tuple(options.methods or [""])
    compared = {name: method for name, method in compared.items() if name.startswith(prefixes)}
    options.output.mkdir(parents=True, exist_ok=True)
    table = compare(sets, compared, options.decisions, options.splits)
    table.to_csv(options.output / f"table-{options.protocol}.csv", index=False)


if __name__ == "__main__":
    main()
