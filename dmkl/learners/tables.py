"""Tables and figures of a fitted model: weights of kernels, variances, effects of covariates."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from dmkl.arrays import weight_shares
from dmkl.description import Column, Description, Figure, Table, count
from dmkl.pictures import bars

ON_WEIGHTS = (
    "Weights depend on p, on λ or C, and on the spectra of the kernels: a kernel of noise with many equal eigenvalues "
    "gets more weight at a small λ. dmkl permute (dmkl.permutation_test) has p-values, and dmkl stability the spread."
)
"""A caution about weights that are learned."""
_MOST_MAPPED = 40  # Most classes, tasks or targets with a column of a map of weights.
_VARIANCES = {"variance": "", "variance_share": "share", "liability_share": "share of liability"}
"""Variables of variance components with standard errors, and their titles."""


def describe_model(model: Any, most_columns: int) -> Description:
    """The tables, figures and data of a fitted model; see `weights_table`."""
    weights = model.weights_.transpose("kernel", ...)
    tables = {"weights": lambda: weights_table(weights, most_columns)}
    figures = {"Weights": Figure("Weight of each kernel.", model.plot_weights)}
    several = [str(dim) for dim in weights.dims[1:] if weights.sizes[dim] > 1]
    if several and max(weights.sizes[dim] for dim in several) <= _MOST_MAPPED:
        figures[f"Weights by {several[0]}"] = Figure("Weight of each kernel.", model.plot_weight_map)
    if "components_" in model.traits.fitted:
        tables |= {"variance_components": lambda: _variances(model), "fixed_effects": lambda: _fixed_effects(model)}
        if hasattr(model, "trait_covariances_"):
            tables["trait_covariances"] = lambda: _trait_covariances(model)
        if "target" not in model.components_.dims:
            figures["Variance components"] = Figure("Share of the variance of each kernel.", lambda: _bars(model))
    elif hasattr(model, "covariate_effects_"):
        tables["effects"] = lambda: _covariate_effects(model)
    if "gap" in model.history_ and model.history_.sizes["iteration"] >= 2:
        figures["Certificate"] = Figure("The proven relative gap after each step.", model.plot_convergence)
    price, notes = model._default_price(), [ON_WEIGHTS] if model._learns_weights() else []
    if "compact" in model.history_.attrs:
        notes.append(
            "This model is compact: the model that it was written from may have more kernels, and has a history."
        )
    return Description(
        type(model).__name__,
        "",
        {"notes": notes, "choice": [price] if price else []},
        lambda: model_facts(model),
        tables,
        figures,
    )


# --- weights -------------------------------------------------------------------------------------------------------


def weights_table(weights: xr.DataArray, most_columns: int) -> Table:
    """A row for each kernel, the largest weight first, with a column for each class, pair, task or model.

    Of more than `most_columns` the weights of each are divided by their sum, with columns for the mean of these shares,
    their standard deviation, the smallest and the largest, the class that has the largest, and how many classes the
    kernel wins.
    """
    flat, kernels = columns_of(weights), weights["kernel"].values
    values = flat.values.reshape(len(kernels), -1)
    shares, note = weight_shares(values, 0), ""
    if values.shape[1] <= most_columns:
        titles = ["weight"] if flat.ndim == 1 else flat[flat.dims[1]].values.astype(str).tolist()
        of_columns = {f"weight {name}": (name, values[:, k]) for k, name in enumerate(titles)}
        columns = [Column(name, heading, bar=0.0) for name, (heading, _) in of_columns.items()]
        frame = pd.DataFrame({name: column for name, (_, column) in of_columns.items()})
    else:
        dim = str(flat.dims[1])
        frame = pd.DataFrame(shares).agg(["mean", "std", "min", "max"], axis=1)
        frame[dim] = flat[dim].values[shares.argmax(axis=1)].astype(str)
        single = np.sum(shares >= (1 - 1e-9) * shares.max(axis=0), axis=0) == 1
        frame["wins"] = np.bincount(shares.argmax(axis=0)[single], minlength=len(kernels))
        over = " × ".join(count(size, str(name)) for name, size in weights.sizes.items() if name != "kernel")
        columns = [Column("mean", f"share, mean of {over}", bar=0.0), Column("std", "standard deviation")]
        columns += [Column("min", "smallest"), Column("max", "largest"), Column(dim, f"{dim} of the largest")]
        columns.append(Column("wins"))
        note = "Shares are weights divided by their sum; all weights are in weights_ of the model. A kernel wins where "
        note += "its share is the largest."
    frame.insert(0, "kernel", kernels.astype(str))
    frame = frame.iloc[np.argsort(-np.abs(shares).mean(axis=1), kind="stable")]
    return Table(frame, [Column("kernel", form="kernel"), *columns], "Weights", kernels=kernels, note=note)


def columns_of(weights: xr.DataArray) -> xr.DataArray:
    """Weights (kernel, group, class) as (kernel, class), with a column for each group and class; others unchanged."""
    if weights.ndim < 3:
        return weights
    group, dim = (str(name) for name in weights.dims[1:])
    names = [f"{label}, group {g}" for g in weights[group].values for label in weights[dim].values]
    coords = {"kernel": weights.kernel.values, dim: names}
    return xr.DataArray(weights.values.reshape(len(weights), -1), coords, name=weights.name)


# --- variances and effects -----------------------------------------------------------------------------------------


def _variances(model: Any) -> Table:
    """A row for each kernel, the residual and the total, of each target."""
    components, note = model.components_, ""
    frame = components.drop_dims("term_2").to_dataframe(dim_order=["target", "term"][-components.variance.ndim :])
    frame = frame.reset_index()
    columns = [Column(name, title or None, error=f"{name}_se") for name, title in _VARIANCES.items() if name in frame]
    if "share_unit" in frame and (frame.loc[frame["term"] != "total", "share_unit"] != 1).any():
        columns.append(Column("share_unit", "mean diagonal"))
        note = "Shares are of σ² times the mean diagonal of each kernel, since not all of these are near one."
    columns += [Column("p_value", "p")] if "p_value" in frame else []
    columns.append(Column("boundary", "on the boundary", form="mark"))
    of_target = [Column("target", form="text")] if "target" in frame else []
    named = Column("term", "variance of", form="kernel")
    return Table(frame, [*of_target, named, *columns], "Variance components", kernels=model.kernel_names_, note=note)


def _trait_covariances(model: Any) -> Table:
    """A row for each pair of targets and each kernel, the residual and the total."""
    frame = model.trait_covariances_.to_dataframe(dim_order=["target", "target_2", "term"]).reset_index()
    place = frame[["target", "target_2"]].apply(pd.Index(model.trait_covariances_["target"].values).get_indexer)
    columns = [Column("target", form="text"), Column("target_2", "and", form="text"), Column("term", form="kernel")]
    columns += [Column(f"trait_{name}", name, error=f"trait_{name}_se") for name in ("covariance", "correlation")]
    columns.append(Column("trait_p_value", "p"))
    rows = frame[place["target"] < place["target_2"]].reset_index(drop=True)
    return Table(rows, columns, "Covariances of targets", kernels=model.kernel_names_)


def _fixed_effects(model: Any) -> Table:
    frame = model.fixed_effects_.to_dataframe().reset_index()
    names = [str(name) for name in frame if name not in ("effect", "effect_se")]
    columns = [*(Column(name, form="text") for name in names), Column("effect", error="effect_se")]
    return Table(frame, columns, "Fixed effects")


def _covariate_effects(model: Any) -> Table:
    """The change of the prediction by one unit of each covariate, a column for each target."""
    effects = model.covariate_effects_
    names = ["effect"] if effects.shape[1] == 1 else effects[effects.dims[1]].values.astype(str).tolist()
    frame = pd.DataFrame(effects.values, columns=[f"effect {name}" for name in names])
    frame.insert(0, "covariate", effects["covariate"].values.astype(str))
    columns = [Column("covariate"), *(Column(f"effect {name}", name) for name in names)]
    return Table(frame, columns, "Effects of covariates")


def _bars(model: Any) -> Any:
    parts = model.components_.drop_sel(term="total")
    shares, errors = parts.variance_share.values[:, None], parts.variance_share_se.values
    title = "Shares of the variance (± one standard error)"
    return bars(parts.term.values, shares, "", title, label="share of the variance", error=errors)


# --- data ----------------------------------------------------------------------------------------------------------


def model_facts(model: Any) -> dict[str, Any]:
    """Facts on a fitted model by key, for JSON."""
    return {
        "model": type(model).__name__,
        "parameters": model.get_params(deep=False),
        "weights": columns_of(model.weights_).to_pandas().T.to_dict(),
        **effects_as_mapping(model),
        "gap": np.asarray(model.gap_),
        "objective": np.asarray(model.objective_),
        "passes": model.n_passes_,
        "solver": getattr(model, "solver_", None),  # SVMs have one solver only
        "status": model.status_,
    }


def effects_as_mapping(model: Any) -> dict[str, Any]:
    """The intercept and the effects of covariates, by target if there are several; empty for other models.

    Of a model of variance components, the tables of these and of its fixed effects.
    """
    if hasattr(model, "components_"):
        parts = {"variance_components": model.components_.drop_dims("term_2"), "fixed_effects": model.fixed_effects_}

        def of(**at: Any) -> dict[str, Any]:
            return {name: part.sel(at, drop=True).to_dataframe().T.to_dict() for name, part in parts.items()}

        if "target" not in model.components_.dims:
            return of()
        of_pairs = {}
        if hasattr(model, "trait_covariances_"):
            of_pairs = {"trait_covariances": _trait_covariances(model).frame.to_dict("records")}
        return {"targets": {str(name): of(target=name) for name in model.components_["target"].values}, **of_pairs}
    if not hasattr(model, "covariate_effects_"):
        return {}

    def by_target(values: xr.DataArray) -> Any:
        return values.item() if values.size == 1 else values.to_series().to_dict()

    by_name = {str(values.covariate.item()): by_target(values) for values in model.covariate_effects_}
    return {"intercept": by_target(model.intercept_), "covariate_effects": by_name}
