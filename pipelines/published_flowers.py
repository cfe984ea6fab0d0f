"""Compare kernel combinations on the distance matrices of Oxford Flower17, as their authors distribute them.

    python pipelines/published_flowers.py FOLDER               # all .mat files of the set's page, in one folder
    python pipelines/published_flowers.py FOLDER --protocol jmlr --decisions largest means
    python pipelines/published_flowers.py out/flower17/kernels.zarr --splits 1 --ps 1 2 inf   # a set made elsewhere

Table 3 of Yan et al. (CVPR 2010), whose kernels are centered and of unit trace, with λ from 1e-8 to 10; or Table 2 of
Yan et al. (JMLR 13, 2012), whose kernels have unit norm in feature space and are then centered, with λ and C from 4⁻⁵
to 4⁴. p and λ, or C, are chosen on validation, once for each rule that turns scores into labels: the largest score, and
class means of out-of-sample scores. The papers do not say which one they use.

What is read of the MATLAB files, whatever they are called:

- square matrices whose names begin with D: the distances, one matrix a feature, all of one size (the published ones:
  colour, shape, texture, hog, hsv and two of sift, over 17 classes of 80 images, in the order of the classes);
- trnN, valN and tstN: the samples of split N, counted from one;
- `labels`, where the samples do not stand class after class, 80 of each.

Kernels are exp(−D/η) with η the mean over all pairs of samples. With 1/η from all samples, as published, test samples
have a say in a scale, and in nothing else. The product is the entrywise geometric mean.
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
from scipy.io import loadmat
from sklearn.base import clone

import dmkl

NORMS = [1.0, *(1 + 2.0**-k for k in range(6, 0, -1)), 2.0, 3.0, 4.0, 8.0, np.inf]
NUS = [0.1, 0.3, 0.6]
PER_CLASS = 80
PARTS = ("trn", "val", "tst")
RULES: tuple[Literal["largest", "means"], ...] = ("largest", "means")


class Protocol(NamedTuple):
    """Steps of discriminants and of machines, and the values of λ and C."""

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
    """A learner, what is chosen on validation, and the kernels: all, their product, or the best one alone."""

    learner: Any
    grid: dict[str, Sequence[float]]
    kernels: str = "all"


def read(folder: Path) -> dict[str, np.ndarray]:
    """All arrays of the MATLAB files of a folder."""
    files = sorted(folder.glob("*.mat"))
    if not files:
        msg = f"{folder} holds no .mat file; put there the distance matrices and datasplits.mat"
        raise SystemExit(msg)
    arrays: dict[str, np.ndarray] = {}
    for file in files:
        for name, array in loadmat(file).items():
            if not name.startswith("__") and not np.array_equal(arrays.setdefault(name, array), array):
                msg = f"{file} holds another {name} than a file before it; its name tells what it is, so rename one"
                raise SystemExit(msg)
    return arrays


def kernel_set(folder: Path) -> dmkl.KernelSet:
    """The kernels, labels and splits of a folder, in memory."""
    arrays = read(folder)
    distances = {k: v for k, v in arrays.items() if k.startswith("D") and v.ndim == 2 and v.shape[0] == v.shape[1] > 1}
    sizes = {matrix.shape for matrix in distances.values()}
    if len(sizes) != 1:
        found = ", ".join(f"{name} {matrix.shape}" for name, matrix in distances.items()) or "none"
        msg = f"{folder} must hold square matrices D… of one size, found {found}"
        raise SystemExit(msg)
    ((m, _),) = sizes
    labels = arrays["labels"].ravel() if "labels" in arrays else np.arange(m) // PER_CLASS
    numbers = sorted({found[1] for name in arrays if (found := re.fullmatch(r"trn(\d+)", name))})
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
    """What is compared."""
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
    }


def compare(
    K: dmkl.KernelSet,
    compared: Mapping[str, Method],
    decisions: Sequence[Literal["largest", "means"] | None] = RULES,
    n_splits: int | None = None,
) -> pd.DataFrame:
    """Accuracy on test in percent by each rule (None: the learner's own), its deviation over splits, and their p."""
    cv = {str(k): K.split(k) for k in range(len(K.splits) if n_splits is None else n_splits)}
    rows: list[dict[str, Any]] = []
    for name, (learner, grid, kernels) in compared.items():
        row: dict[str, Any] = {"method": name}
        started, n_passes = time.perf_counter(), 0.0
        has_rules = "decision" in learner.get_params()  # LP-β and LP-B learn scores of which the largest decides
        for decision in decisions if has_rules else [d for d in decisions if d != "means"]:
            result = dmkl.search(
                clone(learner).set_params(**{"decision": decision} if has_rules else {}),
                K.product() if kernels == "product" else K,
                K.labels,
                grid,
                cv,
                scoring="mean_class_accuracy",
                refit=False,
                choice="fold",
                baselines="all" if kernels == "alone" else "none",
            )
            chosen = result.chosen if kernels != "alone" else result.baselines.sel(baseline="best single kernel")
            test, column = pd.Series(100 * chosen["test_score"].values), decision or "accuracy"
            row |= {column: test.mean(), f"± {column}": test.std()}
            if "p" in grid:
                row[f"p, {column}"] = ", ".join(f"{p:.4g}" for p in chosen["p"].values)
            n_passes += result.n_passes_
        rows.append(row | {"passes": n_passes, "seconds": time.perf_counter() - started})
        print(pd.DataFrame(rows[-1:]).to_string(index=False, header=False, float_format="%.1f"), flush=True)
    return pd.DataFrame(rows)


def main() -> None:
    """Read, compare, keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="the folder of the MATLAB files, or a kernel set")
    parser.add_argument("--protocol", choices=list(PROTOCOLS), default="cvpr")
    parser.add_argument("--decisions", choices=RULES, nargs="+", default=RULES)
    parser.add_argument("--splits", type=int, help="so many splits, the first ones; all if missing")
    parser.add_argument("--methods", nargs="+", help="beginnings of the names of methods; all if missing")
    parser.add_argument("--ps", type=float, nargs="+", default=NORMS)
    parser.add_argument("--lams", type=float, nargs="+")
    parser.add_argument("--costs", type=float, nargs="+")
    parser.add_argument("--output", type=Path, default=Path("out/published_flowers"))
    options = parser.parse_args()
    K = dmkl.open(options.data) if (options.data / "zarr.json").exists() else kernel_set(options.data)
    print(K)
    protocol = PROTOCOLS[options.protocol]
    protocol = protocol._replace(lams=options.lams or protocol.lams, costs=options.costs or protocol.costs)
    compared = models(protocol, options.ps)
    beginnings = tuple(options.methods or [""])
    compared = {name: method for name, method in compared.items() if name.startswith(beginnings)}
    options.output.mkdir(parents=True, exist_ok=True)
    table = compare(K, compared, options.decisions, options.splits)
    table.to_csv(options.output / f"table-{options.protocol}.csv", index=False)


if __name__ == "__main__":
    main()
