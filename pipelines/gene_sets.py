"""Weights of 30 gene sets for each cell type, predictions and a report from 100,000 cells, in five commands.

    python pipelines/gene_sets.py --cells 100000 --output out/gene_sets

The cells are simulated: log(1 + count) of genes, where three gene sets differ between four cell types. The linear
kernel of each set of `sets.gmt` is stored as factors, the values of its genes, not as a matrix. `stability` measures
how stable the weights are. The model predicts the cells of a second file, which has the genes in another order and five
additional genes.

Needs `pip install 'dmkl[anndata]'`.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import anndata
import numpy as np
import pandas as pd
from measuring import measured

TYPES = np.array(["B", "Mono", "NK", "T"])
N_GENES, N_SETS, SET_SIZE = 1500, 30, 50


def cells(n: int, seed: int) -> anndata.AnnData:
    """Simulate cells; the genes of set k mark cells of type k, for k = 0, 1, 2."""
    rng = np.random.default_rng(seed)
    kind = rng.integers(len(TYPES), size=n)
    # The genes have the same rates in all files.
    gene_log_rates = np.random.default_rng(0).normal(1.0, 0.5, N_GENES).astype(np.float32)
    log_rates = np.repeat(gene_log_rates[None], n, axis=0)
    for k in range(3):
        log_rates[:, k * SET_SIZE : (k + 1) * SET_SIZE] += 0.25 * (kind == k)[:, None]
    values = np.log1p(rng.poisson(np.exp(log_rates))).astype(np.float32)
    obs = pd.DataFrame({"cell_type": pd.Categorical(TYPES[kind])}, index=pd.Index([f"{seed}-{i}" for i in range(n)]))
    return anndata.AnnData(values, obs=obs, var=pd.DataFrame(index=pd.Index([f"G{k}" for k in range(N_GENES)])))


def write(options: argparse.Namespace) -> None:
    """Write the cells, the gene sets, and the cells to predict."""
    lines = (
        "\t".join([f"SET_{k}", "simulated", *(f"G{g}" for g in range(k * SET_SIZE, (k + 1) * SET_SIZE))])
        for k in range(N_SETS)
    )
    (options.output / "sets.gmt").write_text("\n".join(lines) + "\n")
    query = cells(max(50, options.cells // 100), seed=2)
    extra = anndata.AnnData(query.X[:, :5] + 1.0, obs=query.obs, var=pd.DataFrame(index=[f"more{k}" for k in range(5)]))
    query = anndata.concat([query, extra], axis=1, merge="same")
    # anndata writes the string type of pandas 3 only with this setting.
    with anndata.settings.override(allow_write_nullable_strings=True):
        cells(options.cells, seed=1).write_h5ad(options.output / "cells.h5ad")
        query[:, np.random.default_rng(3).permutation(query.n_vars)].write_h5ad(options.output / "query.h5ad")


def main() -> None:
    """Write the files, and run the commands."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", type=int, default=5000)
    parser.add_argument("--resamples", type=int, default=20)
    parser.add_argument("--output", type=Path, default=Path("out/gene_sets"))
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    write(options)
    for step in (
        "build {0}/set.zarr {0}/cells.h5ad --function linear --columns {0}/sets.gmt --labels {0}/cells.h5ad:cell_type",
        "fit {0}/set.zarr {0}/model -p 1 --lam 1e-2 --sharing none",
        f"stability {{0}}/set.zarr {{0}}/trust -p 1 --lam 1e-2 --sharing none --resamples {options.resamples}",
        "predict {0}/model --features {0}/query.h5ad --out {0}/predicted.csv",
        "report {0}/model {0}/trust -o {0}/report.html",
    ):
        measured([sys.executable, "-m", "dmkl", *step.format(options.output).split(), "--overwrite"])


if __name__ == "__main__":
    main()
