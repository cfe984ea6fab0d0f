"""Annotated data of cells for tests, and a writer for all supported versions of anndata and pandas."""

from __future__ import annotations

import warnings
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import scipy.sparse

anndata, mudata = pytest.importorskip("anndata"), pytest.importorskip("mudata")

quietly = partial(warnings.catch_warnings, action="ignore")
"""Suppress warnings of anndata and mudata about future versions."""


def cells(names, seed=0):
    """AnnData of some cells with all fields that dmkl reads."""
    rng = np.random.default_rng(seed)
    n = len(names)
    kinds = np.array(["B", "NK", "T"])[np.arange(n) % 3]
    obs = pd.DataFrame(
        {
            "cell_type": pd.Categorical(kinds),
            "sample": [f"donor {i // 3}" for i in range(n)],  # three cells of each donor
            "split": np.array(["train", "train", "test"])[np.arange(n) % 3],
            "counts": np.arange(n) + 0.5,
            "doublet": np.arange(n) % 2 == 0,
        },
        index=list(names),
    )
    counts = rng.poisson(1.0, (n, 6)).astype(np.float32)
    with quietly():
        data = anndata.AnnData(scipy.sparse.csr_matrix(counts), obs, pd.DataFrame(index=[f"gene{k}" for k in range(6)]))
        data.layers["scaled"] = rng.normal(size=(n, 6))
        data.layers["by_columns"] = scipy.sparse.csc_matrix(counts)
        data.obsm["X_pca"] = rng.normal(size=(n, 2))
        data.obsm["scores"] = pd.DataFrame(rng.normal(size=(n, 2)), list(names), ["up", "down"])
        values = rng.normal(size=(n, n))
        data.obsp["dense"] = values @ values.T
        data.obsp["sparse"] = scipy.sparse.csr_matrix(np.diag(np.arange(1.0, n + 1)))
        data.obsp["knn_distances"] = scipy.sparse.csr_matrix(np.ones((n, n)) - np.eye(n))
    return data


def modalities(first, second):
    """MuData of two modalities with different cells."""
    # Since mudata 0.4 columns stay with their modalities by default, and there is no such option.
    options = mudata.set_options(pull_on_update=False) if hasattr(mudata, "set_options") else nullcontext()
    with quietly(), options:
        return mudata.MuData({"rna": cells(first), "protein": cells(second, seed=1)})


def write(data, path: Path, zarr_format: int = 3):
    """Write AnnData or MuData in the format of the file extension."""
    with quietly(), anndata.settings.override(allow_write_nullable_strings=True, zarr_write_format=zarr_format):
        data.write_zarr(path) if path.suffix == ".zarr" else data.write(path)
    return path
