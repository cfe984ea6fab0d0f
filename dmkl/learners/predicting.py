"""Prediction by a fitted learner: scores of new samples, contributions of kernels, and the weighted kernel."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import xarray as xr

from dmkl.arrays import Array, Float, Index, Mask
from dmkl.building import Missing, MissingFeatures, TrainingFeatures, cross_tiles
from dmkl.errors import IndefiniteKernelError, InputError, refuse
from dmkl.features.recipes import single
from dmkl.features.tiles import FeatureTiles
from dmkl.inputs.label_tables import matched
from dmkl.kernelset import Kernels, KernelSet, as_kernel_set
from dmkl.learners.plan import ScoreFunction, Statistics, side_by_side
from dmkl.names import Join, places, without
from dmkl.numerics.functions import STATISTIC
from dmkl.numerics.steps import Fitted
from dmkl.passes.blas import one_blas_thread
from dmkl.passes.elements import weighted_blocks
from dmkl.passes.execute import check_memory, machine
from dmkl.passes.statistics import measure
from dmkl.passes.view import Lens, View
from dmkl.solvers.driver import drive
from dmkl.solvers.interface import Solver, spread
from dmkl.variables import describe

if TYPE_CHECKING:
    import dask.array as da

    from dmkl.features.recipes import Recipe
    from dmkl.store.features import FeatureTable

Ask = Callable[[ScoreFunction, KernelSet, Any], Solver[Float]]
"""Makes a solver for new rows from a score function, the kernels of these rows, and the preparation of the fit."""


def solve_through(
    model: Any, K: KernelSet, used: Index, solvers: Sequence[Solver[Any]], covariates: Any = None
) -> list[Any]:
    """Results of solvers on the kernels of new rows, with the statistics of training."""
    lenses, extra = [], 0.0
    for part in model.statistics_:
        kernels = K if part.rows is None else K[np.arange(K.shape[1]), part.rows]
        (lens,), more = measure([kernels.view], model._trained_steps(part, used, K.samples, covariates))
        lenses.append(lens)
        extra += more
    results, passes = drive(list(zip(lenses, solvers, strict=True)))
    model.n_prediction_passes_ = passes + extra
    return results


def match_kernels(model: Any, K: KernelSet, *, any_columns: bool = False) -> tuple[KernelSet, Index]:
    """The kernels that prediction reads, and their positions; columns are the training samples in order."""
    needed = model._kernels_used()
    used = places(model.kernel_names_, needed)
    if missing := without(needed, K.names):
        refuse(
            f"the model gives weight to kernel {missing[0]!r}, which this set does not have; its kernels are "
            f"{', '.join(K.names[:10])}. Kernels are matched by name: give these the names of the model's (names=, "
            "--names at import)"
        )
    samples = K.train_samples.astype(str)
    at = {name: k for k, name in enumerate(samples.tolist())} if K.view.has_names or K.view.source.symmetric else {}
    if not any_columns and len(at) > len(model.train_samples_) and at.keys() >= set(model.train_samples_):
        # Further samples are left out by name, such as those that had weight 0.
        K = K[:, [at[name] for name in model.train_samples_.tolist()]]
    elif not any_columns and not np.array_equal(samples, model.train_samples_):
        same = len(samples) == len(model.train_samples_) and set(samples) == set(model.train_samples_)
        seen = "the same samples in another order" if same else f"{len(samples)} others"
        if not same and set(K.samples.astype(str)) >= set(model.train_samples_):
            seen += ", and these as rows: the kernels are the wrong way round"
        refuse(
            f"the columns must be the {len(model.train_samples_)} training samples in the order of training, found "
            f"{seen}; take K[test, train] with the train of fit"
        )
    return K.select(needed), used


@one_blas_thread
def score(
    model: Any,
    K: Kernels | None = None,
    y: npt.ArrayLike | None = None,
    sample_weight: npt.ArrayLike | None = None,
    *,
    unknown: Any = None,
    **new: Any,
) -> float:
    """Score predictions of the row samples: accuracy, R², or Harrell's concordance index of log hazard ratios.

    Accuracy is the share of samples whose labels are predicted correctly, all known ones of a multilabel problem. R² is
    1 − Σ(y − f)²/Σ(y − ȳ)², the mean over the targets, each on its known values.

    Parameters
    ----------
    K, **new
        As in `KernelClassifier.decision_function`. A TrainingRowsWarning tells if the model was trained on some rows.
    y
        The true labels or values, matched by name if they have names of samples; those of `K` where missing.
    sample_weight
        (samples,) weights, matched by name if they have names of samples; equal where missing.
    unknown
        A code of labels that are unknown, as in `fit`.
    """
    decision, truth, rows = model._scored_rows("score", K, y, unknown, **new)
    if sample_weight is not None:
        sample_weight = matched("sample_weight", sample_weight, rows.samples, named=rows.view.has_names).values
    value: float = model._score(truth, decision.values, sample_weight)
    return value


@one_blas_thread
def contributions(model: Any, K: Kernels | None = None, **new: Any) -> xr.DataArray:
    """Contributions of kernels to the scores of new samples: β_j Σ_i k_j(x, x_i) α_i, after the steps.

    Their sum over kernels is the score less the intercept, which is a coordinate if the learner has one. In a
    regression with covariates the coordinate is the part of each prediction that the covariates give. Prior
    probabilities and decision rules of `predict` apply to scores, and are not part of the contributions.

    Parameters
    ----------
    K, **new
        As in `decision_function`, with its errors. One pass over the kernels that have weight.

    Returns
    -------
    xarray.DataArray
        (sample, kernel, class), pair, task or target; (sample, kernel) for two classes and for one target.
    """
    parts, kernels, used = model._solve_for_new_rows(K, model._shares, **new)
    # (kernels, rows, columns) with rows first, as columns are put in order behind them.
    shares = side_by_side([part.transpose(1, 2, 0) for part in parts], [part.columns for part in model.statistics_])
    (dim, labels), samples = model._score_labels(), kernels.samples.astype(str)
    whole = spread(shares.transpose(2, 0, 1), used, len(model.kernel_names_)).transpose(1, 0, 2)
    coords = [("sample", samples), ("kernel", list(model.kernel_names_)), (dim, labels)]
    attrs = {"long_name": "share of each kernel in the score", "units": "score"}
    result = xr.DataArray(whole, coords, name="contribution", attrs=attrs)
    if hasattr(model, "intercept_"):
        intercept = model._score_function(used).summed(model.intercept_.values)
        constant = intercept + model._offsets(samples, **beside_features(new))
        result = result.assign_coords(intercept=(("sample", dim) if constant.ndim == 2 else (dim,), constant))
    return _drop_single_dim(describe(result), dim, model)


@one_blas_thread
def feature_weights(model: Any, kernel: str) -> xr.DataArray:
    """The weights w of the features of a linear kernel, whose share in a score is w·x and a constant.

    w = β_j Xᵀc with the features X of the training samples, (samples, features), and c the dual variables after the
    transposed steps (centered, and multiplied by the factor of a normalization).

    Parameters
    ----------
    kernel
        The name of a kernel that `dmkl.build` made by the function ``"linear"``.

    Returns
    -------
    xarray.DataArray
        (feature, class) by the names of the features' columns; (feature,) for two classes and for one target.

    Raises
    ------
    InputError
        If the kernel is not known, or not linear in features that are stored with the model; if a step divides each
        sample by its norm ("cosine"), or weights are those of groups of samples.
    """
    model._check_fitted()
    if kernel not in model.kernel_names_:
        refuse(f"there is no kernel {kernel!r}; those of the model are {', '.join(model.kernel_names_[:10])}")
    place = model.kernel_names_.index(kernel)
    _weight_sets(model, np.array([place]))
    recipe, table = _linear_features(model, kernel)
    columns = np.arange(table.shape[1]) if recipe.columns is None else np.array(recipe.columns)
    function = model._score_function(np.array([place]))
    parts, strip = [], max(1, _STRIP_BYTES // (8 * max(1, table.shape[1])))
    for part in model.statistics_:
        part_function = function.of(part.columns, part.rows)
        effective = part_function.dual
        for step in reversed(part.steps):
            if step.needs_row_diagonal:
                refuse(
                    f"the step {step.name!r} divides each sample by its own norm, so that scores of kernel "
                    f"{kernel!r} are not linear in its features; fit without the step, or see contributions"
                )
            effective = step.right(place, effective) * step.scalar(place)
        rows = np.arange(table.shape[0]) if part.rows is None else part.rows
        total = np.zeros((len(columns), effective.shape[1]))
        for at in range(0, len(rows), strip):  # Xᵀc in strips of samples
            values = np.asarray(table.read(rows[at : at + strip], columns), dtype=np.float64)
            total += values.T @ effective[at : at + strip]
        parts.append(part_function.weights[0] * total)
    dim = str(model.dual_coef_.dims[1])
    names = [str(k) if table.columns is None else table.columns[k] for k in columns]
    values = side_by_side(parts, [part.columns for part in model.statistics_])
    coords = [("feature", names), (dim, model.dual_coef_[dim].values)]
    attrs = {"long_name": f"weight of each feature of kernel {kernel}", "units": "score per unit of the feature"}
    weights = xr.DataArray(values, coords, name="feature_weight", attrs=attrs)
    return _drop_single_dim(describe(weights), dim, model)


@one_blas_thread
def combined_kernel(model: Any, K: Kernels, *, covariates: Any = None, chunk: int | None = None) -> xr.DataArray:
    """The weighted kernel Σ_j β_j K_j, each kernel after the steps of the model by its training samples.

    The result is a lazy array: a block is computed when it is needed, from the tiles of the kernels with weight;
    ``.compute()`` returns all of it, ``.to_zarr`` writes it block by block. Statistics of the rows that steps need
    are measured now, in at most one pass for each step.

    Parameters
    ----------
    K
        A square set with the training samples and any others, by name: the weighted kernel of all of them, by the
        statistics of the training samples alone. Or ``K[test, train]``: new rows against the training samples.
    covariates
        As in `decision_function`.
    chunk
        Side of a block in samples; the stored tile by default. Rows in the order of the store read each tile once.

    Returns
    -------
    xarray.DataArray
        (sample, sample_2) of a square set, (sample, train_sample) otherwise, float64; with a first dimension class,
        task, pair or target if each has its own weights. Entries of training samples are NaN where labels are unknown.

    Raises
    ------
    InputError
        If training samples or kernels with weight are missing, or weights are those of groups of samples.
    """
    import dask.array as da

    model._check_fitted()
    given = model._source(as_kernel_set(K, "combined_kernel"))
    trained_at = places_of_training(model, given)
    chosen, used = match_kernels(model, given, any_columns=trained_at is not None)
    weights, dim = _weight_sets(model, used)
    _, n_rows, n_cols = chosen.shape

    def weighted(part: Statistics) -> da.Array:
        trained = np.arange(n_cols) if trained_at is None else trained_at
        trained = trained if part.rows is None else trained[part.rows]
        cross = chosen if trained_at is None and part.rows is None else chosen[np.arange(n_rows), trained]
        # Columns of stacked functions are those of each kernel.
        part_weights = weights if dim is None or len(model.statistics_) == 1 else weights[part.columns]
        steps = model._trained_steps(part, used, chosen.samples, covariates)
        if trained_at is not None and not steps:
            return weighted_blocks(chosen.lens(), part_weights, chunk)
        (lens,), _ = measure([cross.view], steps, elements=True)
        if trained_at is not None:  # the square set, with the statistics of the training samples in it
            before, mirrored = chosen.lens(), [step.mirrored(trained) for step in lens.fitted.steps[-len(steps) :]]
            lens = Lens(before.view, Fitted((*before.fitted.steps, *mirrored)))
        blocks = weighted_blocks(lens, part_weights, chunk)
        if trained_at is not None or part.rows is None:
            return blocks
        # NaN for samples that the problems of the part were not trained on.
        at = np.full(n_cols, len(part.rows))
        at[part.rows] = np.arange(len(part.rows))
        unknown = da.full((len(part_weights), n_rows, 1), np.nan)
        padded: da.Array = da.concatenate([blocks, unknown], axis=2)[:, :, at]
        return padded

    parts = [weighted(part) for part in model.statistics_]
    whole = parts[0]
    if len(parts) > 1:
        order = np.argsort(np.concatenate([part.columns for part in model.statistics_]))
        whole = da.concatenate(parts)[order]
    across = "train_sample" if trained_at is None else "sample_2"
    coords = [("sample", given.samples.astype(str)), (across, given.train_samples.astype(str))]
    if dim is None:
        return describe(xr.DataArray(whole[0], coords, name="combined"))
    return describe(xr.DataArray(whole, [(dim, model.weights_[dim].values), *coords], name="combined"))


@one_blas_thread
def kernel_pca(
    model: Any,
    K: Kernels | None = None,
    n_components: int = 2,
    *,
    training: Kernels | None = None,
    covariates: Any = None,
    **new: Any,
) -> xr.DataArray:
    """Coordinates of samples in the principal directions of the weighted kernel (see `combined_kernel`).

    The directions are those of the training samples, and the others are projected on them: Σ_i k̃(x, x_i)v_i/√λ for
    the eigenvalue λ and the eigenvector v of the kernel centered over the training samples.

    Parameters
    ----------
    K, **new
        A square set with the training samples and any others; or new rows alone, as in `decision_function`.
    n_components
        How many, fewer than training samples.
    training
        The training kernels, ``K[train, train]``, for new rows of kernels; of features they are computed.
    covariates
        As in `decision_function`.

    Returns
    -------
    xarray.DataArray
        (sample, component), and class, task, pair or target before them where each has weights of its own. The
        coordinate ``explained`` is the share of each component in the trace; ``is_training`` marks training samples.

    Raises
    ------
    InputError
        As `combined_kernel`, or if `n_components` is out of range.
    IndefiniteKernelError
        If the weighted kernel is not positive semidefinite.
    MemoryBudgetError
        If the rows against the training samples do not fit in memory.

    References
    ----------
    Schölkopf, Smola, Müller: Nonlinear component analysis as a kernel eigenvalue problem. Neural Comput. 10 (1998).
    """
    model._check_fitted()
    rows = model._rows(K, **new) if new else as_kernel_set(K, "combined_kernel")
    given = model._source(rows)
    if new:
        training = training_kernels(rows)
    sets = [given] if training is None else [model._source(as_kernel_set(training, "kernel_pca")), given]
    trained_at = places_of_training(model, sets[0])
    if trained_at is None:
        refuse(
            "kernel_pca needs a square set with all training samples and the others, got only new rows; give those of "
            "training beside them: training=K[train, train]"
        )
    n, m, n_new = sum(each.shape[1] for each in sets), len(trained_at), given.shape[1]
    if not 1 <= n_components < m:
        refuse(f"n_components must be from 1 to {m - 1}, one less than training samples, got {n_components}")
    n_sets = len(_weight_sets(model, np.arange(len(model.kernel_names_)))[0])
    check_memory(
        "kernel_pca",
        {
            "rows against training samples": 8 * n_sets * n * m,
            "their centered copy": 8 * n * m,
            "training": 16 * m * m,
        },
        machine().task_bytes,
        "Take fewer rows, or write the weighted kernel and decompose it elsewhere",
        "in this process",
    )
    cross = model.combined_kernel(sets[0][np.arange(sets[0].shape[1]), trained_at], covariates=covariates)
    values = cross.values
    if training is not None:
        cross = model.combined_kernel(given, covariates=covariates)
        values = np.concatenate([values, cross.values], axis=-2)
    components = list(_components(values.reshape(-1, n, m), trained_at, n_components))
    dim, shape = cross.dims[:-2], values.shape[:-2]
    coordinates = np.stack([coordinate[n - n_new :] for coordinate, _ in components])
    explained = np.stack([share for _, share in components]).reshape(*shape, n_components)
    coords: dict[str, Any] = {str(name): cross[name].values for name in (*dim, "sample")}
    coords |= {"component": np.arange(1, n_components + 1), "explained": ((*dim, "component"), explained)}
    coords["is_training"] = ("sample", model._is_trained_on(given))
    coordinates, dims = coordinates.reshape(*shape, n_new, n_components), (*dim, "sample", "component")
    return describe(xr.DataArray(coordinates, dims=dims, coords=coords, name="principal"))


def cross_kernels(
    model: Any,
    features: Any,
    *,
    samples: Sequence[Any] | Array | None = None,
    present: Mapping[str, npt.ArrayLike] | None = None,
    join: Join = "exact",
    missing: Missing | None = None,
    missing_features: MissingFeatures = "refuse",
    functions: Mapping[str, Callable[[Any, Any], Any]] | None = None,
) -> KernelSet:
    """The kernels of new samples against the training samples that prediction needs, computed as they are read.

    Parameters
    ----------
    features, samples, present, join, missing, missing_features, functions
        As in `dmkl.build_cross`. Tables and columns that only kernels without weight use may be missing.

    Raises
    ------
    InputError
        If the training kernels were not built from features, or these features lack what the kernels use.
    """
    model._check_fitted()
    needed = model._kernels_needed()
    if isinstance(model.features_, str):
        raise InputError(model.features_)
    if lacking := without(needed, model.features_.recipes):
        refuse(
            f"the model gives weight to kernel {lacking[0]!r}, which was not computed from features; predict from "
            "kernels instead"
        )
    kept = model.features_.select(needed)
    source, _ = cross_tiles(kept, features, samples, present, join, missing, missing_features, functions)
    return KernelSet(View.of(source))


def training_kernels(cross: KernelSet) -> KernelSet:
    """The kernels of training samples with each other, computed from features as `cross_kernels` of new samples."""
    source: Any = cross.view.source
    lacking = next((name for name, fill in source.fills.items() if fill.cols_absent.any()), None)
    given = next((r.name for r in single(source.recipes) if STATISTIC[r.function] == "given"), lacking)
    if given is not None:
        what = "given, or some training samples lack its features"
        refuse(
            f"kernel {given!r} of the training samples was {what}, so it is not computed from features; "
            "give the kernels of training: STORE with all samples, training=K[train, train]"
        )
    square = FeatureTiles(source.recipes, source.axes[1], None, source.dtype, source.tiling.tile)
    return KernelSet(View.of(square))


def beside_features(new: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments for new rows that are neither kernels nor features: covariates, groups of samples, offsets."""
    return {name: new[name] for name in ("covariates", "groups", "offset") if name in new}


def training_note(is_trained: Mask) -> str:
    """A sentence if a model was trained on some of the samples that it predicts, else ""."""
    n = int(np.count_nonzero(is_trained))
    those = f"{n:,} sample{'' if n == 1 else 's'} of these {len(is_trained):,}"
    return f"the model was trained on {those}, by their names: predictions of them fit their labels" if n else ""


_STRIP_BYTES = 2**26  # Bytes of features that are read together.


def _drop_single_dim(values: xr.DataArray, dim: str, model: Any) -> xr.DataArray:
    """Values without the dimension of scores if there is a single column, as for two classes."""
    is_single = model._score_dim() is None and values.sizes[dim] == 1
    return values.isel({dim: 0}).drop_vars(dim) if is_single else values


def _linear_features(model: Any, kernel: str) -> tuple[Recipe, FeatureTable]:
    """The recipe of a linear kernel, and the features of the training samples."""
    features: TrainingFeatures | str = model.features_
    if isinstance(features, str):
        raise InputError(features)
    recipe = features.recipes.get(kernel)
    if recipe is None or recipe.function != "linear" or recipe.feature is None or recipe.exact is not recipe:
        made = "was not computed from features" if recipe is None else f"is of the function {recipe.function!r}"
        made = "is of low rank" if recipe is not None and recipe.exact is not recipe else made
        refuse(f"only linear kernels have weights of features, and {kernel!r} {made}; see contributions")
    table = features.tables[recipe.feature]
    if table.n_missing:
        refuse(
            f"{table.n_missing} training samples lack the feature {recipe.feature!r} of kernel {kernel!r}, whose "
            "entries were filled in; weights of features need all of them"
        )
    return recipe, table


def places_of_training(model: Any, K: KernelSet) -> Index | None:
    """Positions of the training samples in a square set; None for a set of new rows against training samples."""
    if not K.is_square:
        return None
    samples, trained = K.samples.astype(str).tolist(), model.train_samples_.tolist()
    if missing := without(trained, samples):
        refuse(
            f"the weighted kernel has the means and scales of the model's training samples, of which this square set "
            f"lacks {len(missing)}, the first being {missing[0]!r}; give a set with all of them, or K[rows, train]"
        )
    return places(samples, trained)


def _weight_sets(model: Any, used: Index) -> tuple[Float, str | None]:
    """The weights of the kernels used, (sets, kernels), and the dimension of the sets, or None; refused for groups."""
    if model._score_function(used).weights.ndim > 2:
        refuse(
            f"{type(model).__name__} weighs each kernel by groups of samples, so that its scores are not those of one "
            "weighted kernel; see contributions"
        )
    weights = model.weights_.transpose("kernel", ...).values[used].astype(np.float64)
    if weights.ndim == 1:
        return weights[None], None
    (dim,) = (str(name) for name in model.weights_.dims if name != "kernel")
    return weights.T, dim


def _components(sets: Float, trained_at: Index, n_components: int) -> Iterator[tuple[Float, Array]]:
    """Coordinates of the rows in the leading principal directions of the training samples, and the share of each."""
    from sklearn.decomposition import KernelPCA

    for cross in sets:
        is_trained = ~np.isnan(cross).any(axis=0)  # the samples that the problem was trained on
        train = cross[np.ix_(trained_at[is_trained], is_trained)]
        if not train.any():
            refuse("the weighted kernel has no principal directions, as no kernel has weight")
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
        yield pca.transform(cross[:, is_trained]), pca.eigenvalues_ / trace
