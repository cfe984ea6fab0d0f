"""`dmkl export`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import dmkl
from dmkl.cli.cluster import computing_on
from dmkl.cli.options import Cluster, Json, Memory, NewCovariates, Overwrite, Rows, Store, Workers, option
from dmkl.cli.output import claim_output, print_json, say
from dmkl.cli.parsing import known_names, read_covariates
from dmkl.cli.samples import chosen_rows, columns_of_model
from dmkl.errors import InputError
from dmkl.files.urls import as_place
from dmkl.progress import ConsoleWatch
from dmkl.searching.texts import count

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["export"]

_ANNDATA = "AnnData"


def export(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="Model that dmkl fit or dmkl search saved: a folder or a URL.")
    ],
    store: Store,
    out: Annotated[str, typer.Argument(metavar="OUT", help="What to write: .npy, .zarr, .grm.bin or .h5ad.")],
    coordinates: Annotated[
        int | None,
        option(
            "Write so many coordinates of kernel PCA instead of the kernel, as .csv, .parquet or .zarr.",
            "N",
            "--coordinates",
            min=1,
        ),
    ] = None,
    of: Annotated[
        str | None, option("The class, task or pair whose weights are taken, where each has its own.", "NAME", "--of")
    ] = None,
    rows: Rows = None,
    covariates: NewCovariates = None,
    anndata: Annotated[
        Path | None,
        option("Take along the contents of this .h5ad file, whose obs_names have the samples.", "FILE", panel=_ANNDATA),
    ] = None,
    key: Annotated[str, option("Name of the kernel in obsp.", "NAME", panel=_ANNDATA)] = "dmkl",
    overwrite: Overwrite = False,
    as_json: Json = False,
    cluster: Cluster = None,
    workers: Workers = None,
    memory: Memory = None,
) -> None:
    """Write the weighted kernel of a model for other programs, or coordinates of its kernel PCA.

    The kernel is that of all samples of STORE after the steps of the model, by the statistics of its training samples;
    of a rectangular set, and with --rows, it is that of the rows against the training samples. The name of OUT says
    what is written: .npy, .zarr (with names, for xarray), .grm.bin (for GCTA, with .grm.id and .grm.N.bin) or .h5ad
    (AnnData, in obsp). Principal directions are found on the training samples; the others are projected on them.

    Examples
    --------
        dmkl export model kernels.zarr weighted.npy
        dmkl export model kernels.zarr weighted.grm.bin
        dmkl export model kernels.zarr cells.h5ad --anndata data.h5ad --key weighted
        dmkl export model kernels.zarr coordinates.csv --coordinates 10
    """
    from dmkl.outputs import as_frame, check_kernel_file, check_table, write_kernel, write_table

    place = as_place(out)
    if coordinates is not None:
        check_table(place)
    else:
        check_kernel_file(place, overwrite=overwrite)
    claim_output(place, overwrite=overwrite, what="file")
    if anndata is not None and (coordinates is not None or not out.lower().endswith(".h5ad")):
        msg = f"--anndata is for a kernel in a file that ends in .h5ad, got {out}; leave it out, or name OUT so"
        raise InputError(msg)
    loaded = dmkl.load(model)
    estimator = loaded.best_ if isinstance(loaded, dmkl.SearchResult) else loaded
    K = dmkl.open(store)
    chosen = None if rows is None else chosen_rows(K, rows)
    known = None if covariates is None else read_covariates(f"--covariates={covariates}", known_names(K))
    with ConsoleWatch(), computing_on(cluster, reading=K, workers=workers, memory=memory):
        if coordinates is not None:
            found = estimator.kernel_pca(K, coordinates, covariates=known)
            found = _chosen_of(found if chosen is None else found.isel(sample=chosen), of)
            write_table(place, as_frame(found, "component", "component "), found.to_dataset(), overwrite=overwrite)
            what = f"{count(coordinates, 'coordinate')} of {count(found.sizes['sample'], 'sample')}"
        else:
            if chosen is not None:
                K = K[chosen, columns_of_model(K, estimator, model)]
            found = _chosen_of(estimator.combined_kernel(K, covariates=known), of)
            more: dict[str, Any] = {"key": key, "source": anndata} if out.lower().endswith(".h5ad") else {}
            write_kernel(place, found, overwrite=overwrite, **more)
            *_, n_rows, n_cols = found.shape
            what = f"The weighted kernel of {n_rows:,} × {n_cols:,} samples"
    if as_json:
        print_json({"model": model, "store": store, "out": out, "dims": list(found.dims), "shape": list(found.shape)})
        return
    say(f"{what}: {out}.")


def _chosen_of(found: xr.DataArray, of: str | None) -> xr.DataArray:
    """The part of one class, task or pair, where there is one for each."""
    dim = next((str(dim) for dim in found.dims if dim in ("class", "task", "pair", "target")), None)
    if of is None:
        return found
    names = [] if dim is None else found[dim].values.astype(str).tolist()
    if of not in names:
        told = f"one of {', '.join(names)}" if names else "nothing, as this model has one set of weights"
        msg = f"--of takes {told}; got {of!r}"
        raise InputError(msg)
    return found.isel({dim: names.index(of)})
