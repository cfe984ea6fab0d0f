"""Errors of ℓp MK-FDA and ℓp MK-SVM over the splits of a protein set, from kernel matrices in MATLAB files.

    python pipelines/published_proteins.py FOLDER              # e.g. the 69 kernels of psortPos, in one folder
    python pipelines/published_proteins.py FOLDER --ps 1 2 inf --splits 5

Section 3.6 and Table 3 of Yan et al. (JMLR 13, 2012): 1 − MCC averaged over classes, mean over splits ± its standard
error. For each p, λ and C minimize the mean over the splits, as published; the errors are thus slightly optimistic.
Both learners decide by the largest score, so that they differ in their scores only; by default MK-FDA decides by class
means.

The script identifies the arrays of the MATLAB files by shape; names of variables and files only name the kernels:

- every square matrix is a kernel, all (m, m). Its name is that of its variable, or that of its file if the file has no
  other array or another file has a variable of the same name;
- a vector of m numbers, or a matrix (m, 1): the classes; several files may hold the same ones;
- a matrix (splits, m) or (m, splits) of integers: for each split an order of the samples, counted from one, whose first
  fifth is the test part. Without such a matrix, the script draws random orders and prints a note.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.io import loadmat

import dmkl

NORMS = [1.0, 32 / 31, 16 / 15, 8 / 7, 4 / 3, 2.0, 4.0, 8.0, 16.0, np.inf]
LAMS = [10.0**k for k in range(-8, 1)]
COSTS = [1 / 32, 1 / 8, 1 / 2, 1.0, 2.0, 4.0, 8.0, 32.0, 128.0]
TESTED = 0.2
Fold = tuple[np.ndarray, np.ndarray]


def read(folder: Path, n_splits: int = 30) -> tuple[dmkl.KernelSet, list[Fold]]:
    """Return the kernel set with its labels, in memory, and (training rows, test rows) of each split."""
    files = sorted(folder.glob("*.mat"))
    contents = {f: {k: np.asarray(v) for k, v in loadmat(f).items() if not k.startswith("__")} for f in files}
    square = {f: {k: v for k, v in arrays.items() if _is_square(v)} for f, arrays in contents.items()}
    n_uses = Counter(name for arrays in square.values() for name in arrays)
    kernels = {}
    for file, arrays in square.items():
        for name, array in arrays.items():
            by_file = len(contents[file]) == 1 or (n_uses[name] > 1 and len(arrays) == 1)
            kernels[file.stem if by_file else name if n_uses[name] == 1 else f"{file.stem}/{name}"] = array
    print(f"found {len(kernels)} kernels in {len(files)} files")
    others = [array for file, arrays in contents.items() for name, array in arrays.items() if name not in square[file]]
    sizes = {kernel.shape for kernel in kernels.values()}
    if len(sizes) != 1:
        msg = f"{folder} must hold square matrices of one size in .mat files, found {sorted(sizes)}"
        raise SystemExit(msg)
    ((m, _),) = sizes
    labels = _unique([array.ravel() for array in others if array.size == m])
    orders = _unique([array if array.shape[1] == m else array.T for array in others if _is_orders(array, m)])
    if len(labels) != 1 or len(orders) > 1:
        msg = (
            f"{folder} must hold one vector of {m} classes and at most one matrix of orders, found "
            f"{len(labels)} and {len(orders)}"
        )
        raise SystemExit(msg)
    if orders:
        permutations = orders[0].astype(np.int64) - 1
    else:
        print("no matrix of orders: the splits are drawn at random")
        rng = np.random.default_rng(0)
        permutations = np.stack([rng.permutation(m) for _ in range(n_splits)])
    cut = round(TESTED * m)
    folds = [(np.sort(order[cut:]), np.sort(order[:cut])) for order in permutations[:n_splits]]
    return dmkl.create(None, kernels, labels=labels[0], symmetrize=True), folds


def _is_square(array: np.ndarray) -> bool:
    return array.ndim == 2 and array.shape[0] == array.shape[1] > 1


def _unique(arrays: list[np.ndarray]) -> list[np.ndarray]:
    """Return the arrays without duplicates."""
    return [a for k, a in enumerate(arrays) if not any(np.array_equal(a, earlier) for earlier in arrays[:k])]


def _is_orders(array: np.ndarray, m: int) -> bool:
    """Return whether every row, or every column, is a permutation of 1 … m."""
    if array.ndim != 2 or m not in array.shape or array.size <= m:
        return False
    rows = array if array.shape[1] == m else array.T
    return bool((np.sort(rows, axis=1) == np.arange(1, m + 1)).all())


def errors(K: dmkl.KernelSet, folds: Sequence[Fold], model: Any, grid: dict[str, Sequence[float]]) -> pd.DataFrame:
    """Return 100 (1 − MCC) for each p: the mean over splits at the best λ or C, and its standard error."""
    result = dmkl.search(model, K, grid=grid, cv=folds, scoring="matthews", refit=False)
    (other,) = (name for name in grid if name != "p")
    loss = 100 * (1 - result.scores["score"])
    best = loss.mean("fold").idxmin(other)
    chosen = loss.sel({other: best})
    error = chosen.std("fold", ddof=1) / np.sqrt(len(folds))
    return pd.DataFrame(
        {
            "p": chosen["p"].values,
            "1 − MCC, %": chosen.mean("fold").values,
            "± s.e.": error.values,
            other: best.values,
            "largest gap": result.scores["gap"].max([other, "fold"]).values,
        }
    )


def main() -> None:
    """Read, fit, print and save the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--ps", type=float, nargs="+", default=NORMS)
    parser.add_argument("--lams", type=float, nargs="+", default=LAMS)
    parser.add_argument("--costs", type=float, nargs="+", default=COSTS)
    parser.add_argument("--splits", type=int, default=30)
    parser.add_argument("--models", nargs="+", choices=["mkfda", "mksvm"], default=["mkfda", "mksvm"])
    parser.add_argument("--output", type=Path, default=Path("out/published_proteins"))
    options = parser.parse_args()
    K, folds = read(options.folder, options.splits)
    print(f"{K}, {len(folds)} splits")
    options.output.mkdir(parents=True, exist_ok=True)
    fisher = dmkl.MKFDA(steps="center,multiplicative", decision="largest")
    learners: dict[str, tuple[Any, dict[str, Sequence[float]]]] = {
        "mkfda": (fisher, {"p": options.ps, "lam": options.lams}),
        "mksvm": (dmkl.MKSVM(), {"p": options.ps, "C": options.costs}),
    }
    for name in options.models:
        table = errors(K, folds, *learners[name])
        table.to_csv(options.output / f"{name}.csv", index=False)
        print(f"\n{name}\n{table.to_string(index=False, float_format='%.3g')}", flush=True)


if __name__ == "__main__":
    main()
