"""Classify three cell types from two layers and a neighborhood kernel of an .h5ad file, in four commands.

    python pipelines/single_cell.py --output out/single_cell

The cells are simulated: gene counts, with marker genes of each type and differences between donors, and positions in a
tissue, in coordinates common to all donors, where types cluster. The file holds the layers `counts` and `log`, the
kernel exp(−‖x − y‖²) of positions in `obsp`, and types and donors in `obs`. Folds keep the cells of a donor together,
since they are similar.

Needs `pip install 'dmkl[anndata]'`.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

import anndata
import numpy as np
import pandas as pd

TYPES = np.array(["B", "NK", "T"])


def cells(n: int, n_genes: int = 40, n_donors: int = 6, seed: int = 0) -> anndata.AnnData:
    """Simulate cells, (n, n_genes)."""
    rng = np.random.default_rng(seed)
    kind, donor = rng.integers(len(TYPES), size=n), rng.integers(n_donors, size=n)
    rates = rng.gamma(2.0, size=n_genes) * np.where(rng.random((len(TYPES), n_genes)) < 0.15, 1.6, 1.0)
    shifts = rng.lognormal(sigma=0.3, size=(n_donors, n_genes))
    counts = rng.poisson(rates[kind] * shifts[donor]).astype(np.float32)
    centers = rng.normal(size=(len(TYPES), 2)) + rng.normal(scale=0.3, size=(n_donors, 1, 2))
    places = centers[donor, kind] + rng.normal(scale=0.8, size=(n, 2))
    obs = pd.DataFrame({"cell_type": pd.Categorical(TYPES[kind]), "donor": pd.Categorical([f"d{k}" for k in donor])})
    obs.index = pd.Index([f"cell{i}" for i in range(n)])
    data = anndata.AnnData(obs=obs, var=pd.DataFrame(index=[f"gene{k}" for k in range(n_genes)]))
    data.layers["counts"], data.layers["log"] = counts, np.log1p(counts)
    data.obsp["neighborhood"] = np.exp(-((places[:, None] - places) ** 2).sum(axis=2))
    return data


def main() -> None:
    """Write the file, and run the commands."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", type=int, default=600)
    parser.add_argument("--output", type=Path, default=Path("out/single_cell"))
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    # anndata writes the string type of pandas 3 only with this setting.
    with anndata.settings.override(allow_write_nullable_strings=True):
        cells(options.cells).write_h5ad(options.output / "cells.h5ad")
    for step in (
        "build kernels.zarr cells.h5ad --function linear --function precomputed --labels cells.h5ad:cell_type",
        "info kernels.zarr",
        "search kernels.zarr found -p 1,2 --lam 1e-3,1e-1 --cv GroupKFold(3) --groups cells.h5ad:donor",
        "report found -o report.html",
    ):
        command = f"{step} --overwrite" if step != "info kernels.zarr" else step
        print(f"$ dmkl {command}", flush=True)
        subprocess.run([sys.executable, "-m", "dmkl", *command.split()], cwd=options.output, check=True)


if __name__ == "__main__":
    main()
