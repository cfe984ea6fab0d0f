"""The weighted kernel Σ_j β_j K_j of a fitted learner, after its steps, and its principal directions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import dask.array as da
import numpy as np
import xarray as xr

from dmkl.arrays import Array, Float, Index
from dmkl.errors import IndefiniteKernelError, InputError
from dmkl.estimators.problems import Statistics
from dmkl.kernelset import KernelSet
from dmkl.passes.elements import weighted_blocks
from dmkl.passes.execute import check_memory, machine
from dmkl.passes.statistics import measure_new
from dmkl.passes.view import Lens
from dmkl.stores import as_kernel_set
from dmkl.variables import describe

if TYPE_CHECKING:
    from dmkl.estimators.predicting import Predicting
    from dmkl.stores import Kernels

__all__ = ["combined_kernel", "kernel_pca"]


def combined_kernel(model: Predicting, K: Kernels, covariates: Any, chunk: int | None) -> xr.DataArray:
    """See `KernelLearner.combined_kernel`."""
    given = _source(model, K)
    places = _places(model, given)
    chosen, used = (model._matching if places is None else model._selecting)(given)
    weights, dim = _weight_sets(model, used)
    parts = []
    for part in model.statistics_:
        own = weights if dim is None else weights[part.columns]
        if places is None:
            parts.append(_against_training(model, chosen, used, part, own, covariates, chunk))
        else:
            parts.append(weighted_blocks(_among(model, chosen, used, part, places, covariates), own, chunk))
    whole = parts[0]
    if len(parts) > 1:
        order = np.argsort(np.concatenate([part.columns for part in model.statistics_]))
        whole = da.concatenate(parts)[order]
    across = "train_sample" if places is None else "sample_2"
    coords: dict[str, Any] = {"sample": given.samples.astype(str), across: given.train_samples.astype(str)}
    if dim is None:
        return describe(xr.DataArray(whole[0], dims=("sample", across), coords=coords, name="combined"))
    coords[dim] = model.weights_[dim].values
    return describe(xr.DataArray(whole, dims=(dim, "sample", across), coords=coords, name="combined"))


def _source(model: Predicting, K: Kernels) -> KernelSet:
    """The kernels as a set; matrices in memory are square where they have a column for each row."""
    model._check_fitted()
    return model._new_source(as_kernel_set(K, "combined_kernel"))


def _places(model: Predicting, K: KernelSet) -> Index | None:
    """Where the training samples are among those of a square set; None where rows are new samples, columns training."""
    if not K.is_square:
        return None
    at = {str(name): position for position, name in enumerate(K.samples)}
    missing = [name for name in model.train_samples_.tolist() if name not in at]
    if missing:
        msg = (
            f"the weighted kernel has the means and scales of the model's training samples, of which this square set "
            f"lacks {len(missing)}, the first being {missing[0]!r}; give a set with all of them, or K[rows, train]"
        )
        raise InputError(msg)
    return np.array([at[name] for name in model.train_samples_.tolist()], dtype=np.int64)


def _weight_sets(model: Predicting, used: Index) -> tuple[Float, str | None]:
    """The weights of the kernels used, (sets, kernels), and the dimension that labels the sets where there are some."""
    weights = model.weights_.transpose("kernel", ...).values[used].astype(np.float64)
    if weights.ndim == 1:
        return weights[None], None
    if weights.ndim > 2:
        msg = (
            f"{type(model).__name__} weighs each kernel by groups of samples, so that its scores have no one weighted "
            "kernel behind them; see contributions"
        )
        raise InputError(msg)
    (dim,) = (str(name) for name in model.weights_.dims if name != "kernel")
    return weights.T, dim


def _against_training(
    model: Predicting, K: KernelSet, used: Index, part: Statistics, weights: Float, covariates: Any, chunk: int | None
) -> da.Array:
    """Rows against the training samples; NaN against those that the problems of the part were not trained on."""
    _, n_rows, n_cols = K.shape
    some = K if part.rows is None else K[np.arange(n_rows), part.rows]
    lens, _ = measure_new(some.view, model._trained_steps(part, used, K.samples, covariates), elements=True)
    found = weighted_blocks(lens, weights, chunk)
    if part.rows is None:
        return found
    at = np.full(n_cols, len(part.rows))
    at[part.rows] = np.arange(len(part.rows))
    unknown = da.full((len(weights), n_rows, 1), np.nan)
    padded: da.Array = da.concatenate([found, unknown], axis=2)[:, :, at]
    return padded


def _among(model: Predicting, K: KernelSet, used: Index, part: Statistics, places: Index, covariates: Any) -> Lens:
    """The lens of a square set by the statistics of the training samples that are in it."""
    mine = places if part.rows is None else places[part.rows]
    cross = K[np.arange(K.shape[1]), mine]
    steps = model._trained_steps(part, used, K.samples, covariates)
    fitted = measure_new(cross.view, steps, elements=True)[0].fitted.steps if steps else ()
    before = K.lens()
    own = tuple(step.mirrored(mine) for step in fitted[len(fitted) - len(steps) :])
    return Lens(before.view, type(before.fitted)((*before.fitted.steps, *own)))


# --- principal directions ------------------------------------------------------------------------------------------


def kernel_pca(model: Predicting, K: Kernels, n_components: int, covariates: Any) -> xr.DataArray:
    """See `KernelLearner.kernel_pca`."""
    given = _source(model, K)
    places = _places(model, given)
    if places is None:
        msg = "kernel_pca needs the training samples beside the others: a square set with all of them, got new rows"
        raise InputError(msg)
    if not 1 <= n_components < len(places):
        msg = f"n_components must be from 1 to {len(places) - 1}, one less than training samples, got {n_components}"
        raise InputError(msg)
    n, m = given.shape[1], len(places)
    n_sets = len(_weight_sets(model, np.arange(len(model.kernel_names_)))[0])
    check_memory(
        "kernel_pca",
        {"rows against training samples": 8 * n_sets * n * m, "their centered copy": 8 * n * m, "training": 16 * m * m},
        machine().task_bytes,
        "Take fewer rows, or write the weighted kernel and decompose it elsewhere",
        "in this process",
    )
    cross = model.combined_kernel(given[np.arange(n), places], covariates=covariates)
    values, training = cross.values, given.samples[places].astype(str)
    found = list(_components(values.reshape(-1, n, m), places, n_components))
    dim = cross.dims[:-2]
    shape = values.shape[:-2]
    coordinates = np.stack([one for one, _ in found]).reshape(*shape, n, n_components)
    explained = np.stack([share for _, share in found]).reshape(*shape, n_components)
    coords: dict[str, Any] = {str(name): cross[name].values for name in (*dim, "sample")}
    coords |= {"component": np.arange(1, n_components + 1), "explained": ((*dim, "component"), explained)}
    coords["is_training"] = ("sample", np.isin(coords["sample"], training))
    return describe(xr.DataArray(coordinates, dims=(*dim, "sample", "component"), coords=coords, name="principal"))


def _components(sets: Float, places: Index, n_components: int) -> Iterator[tuple[Float, Array]]:
    """Coordinates of the rows in the leading principal directions of the training samples, and the share of each."""
    from sklearn.decomposition import KernelPCA

    for cross in sets:
        known = ~np.isnan(cross).any(axis=0)  # the samples that the problem was trained on
        train = cross[np.ix_(places[known], known)]
        pca = KernelPCA(n_components, kernel="precomputed", eigen_solver="dense")
        try:
            pca.fit(train)
        except ValueError as error:
            msg = (
                f"the weighted kernel has no principal directions, as it is not positive semidefinite: {error}; "
                "dmkl check names the kernels that are not"
            )
            raise IndefiniteKernelError(msg) from error
        trace = np.trace(train) - train.mean(axis=0).sum()
        yield pca.transform(cross[:, known]), pca.eigenvalues_ / trace
