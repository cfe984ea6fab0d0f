"""Compare kernel combinations on the distance matrices of Oxford Flower17, as their authors distribute them.

    python pipelines/published_flowers.py FOLDER               # all .mat files of the set's page, in one folder
    python pipelines/published_flowers.py FOLDER --ps 1 2 inf --lams 1e-3 1e-2

Table 3 of Yan et al. (CVPR 2010), Table 2 of Yan et al. (JMLR 13, 2012): p and λ, or C, chosen on validation.

What is read of the MATLAB files, whatever they are called:

- square matrices whose names begin with D: the distances, one matrix a feature, all of one size (the published ones:
  colour, shape, texture, hog, hsv and two of sift, over 17 classes of 80 images, in the order of the classes);
- trnN, valN and tstN: the samples of split N, counted from one;
- `labels`, where the samples do not stand class after class, 80 of each.

Kernels are exp(−D/η) with η the mean over all pairs of samples. With 1/η from all samples, as published, test samples
have a say in a scale, and in nothing else.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.io import loadmat

import dmkl

NORMS = [1.0, *(1 + 2.0**-k for k in range(6, 0, -1)), 2.0, 3.0, 4.0, 8.0, np.inf]
LAMS = [10.0**k for k in range(-8, 2)]
COSTS = [2.0**k for k in range(-2, 8)]
PER_CLASS = 80
PARTS = ("trn", "val", "tst")


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


def models(ps: Sequence[float], lams: Sequence[float], costs: Sequence[float]) -> Mapping[str, tuple[Any, Any]]:
    """What is compared, with what is chosen on validation."""
    return {
        "product, Fisher": (dmkl.Product(), {"lam": lams}),
        "sum, Fisher": (dmkl.Uniform(), {"lam": lams}),
        "sum, SVM": (dmkl.MKSVM(np.inf), {"C": costs}),
        "ℓ1 MK-SVM": (dmkl.MKSVM(1.0), {"C": costs}),
        "ℓp MK-SVM": (dmkl.MKSVM(), {"p": ps, "C": costs}),
        "ℓ1 MK-FDA": (dmkl.MKFDA(1.0), {"lam": lams}),
        "ℓp MK-FDA": (dmkl.MKFDA(), {"p": ps, "lam": lams}),
    }


def compare(K: dmkl.KernelSet, compared: Mapping[str, tuple[Any, Any]]) -> pd.DataFrame:
    """Accuracy on test in percent, mean and standard deviation over splits, and the p that each split has chosen."""
    rows = []
    for name, (model, grid) in compared.items():
        found = dmkl.search(model, K, grid=grid, cv="splits", scoring="mean_class_accuracy", refit=False)
        test = 100 * found.chosen["test_score"].values
        ps = [f"{params['p']:.4g}" for params in found.best_params_.values() if "p" in params]
        row = {"method": name, "accuracy": test.mean(), "deviation": test.std(ddof=1), "p": ", ".join(ps)}
        rows.append(row | {"passes": found.n_passes_})
        print(pd.DataFrame([row]).to_string(index=False, header=False, float_format="%.1f"), flush=True)
    return pd.DataFrame(rows)


def main() -> None:
    """Read, compare, keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--ps", type=float, nargs="+", default=NORMS)
    parser.add_argument("--lams", type=float, nargs="+", default=LAMS)
    parser.add_argument("--costs", type=float, nargs="+", default=COSTS)
    parser.add_argument("--output", type=Path, default=Path("out/published_flowers"))
    options = parser.parse_args()
    K = kernel_set(options.folder)
    print(K)
    options.output.mkdir(parents=True, exist_ok=True)
    table = compare(K, models(options.ps, options.lams, options.costs))
    table.to_csv(options.output / "table.csv", index=False)


if __name__ == "__main__":
    main()
