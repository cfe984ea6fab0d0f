"""AnnData and MuData in memory, or backed by a file: their matrices and columns, with the names of their samples."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from dmkl.arrays import Array
from dmkl.inputs.columns import numeric_dtype

__all__ = ["Part", "are_distances", "columns_of", "is_annotated", "parts_of", "values_of_column"]


def is_annotated(values: Any) -> bool:
    """Whether this is AnnData or MuData; who has made one has imported its library."""
    return any(
        isinstance(values, getattr(sys.modules.get(library), kind, ()))
        for library, kind in (("anndata", "AnnData"), ("mudata", "MuData"))
    )


@dataclass(frozen=True)
class Part:
    """AnnData, a modality of MuData, or what all modalities share."""

    data: Any
    title: str  # what the names of its matrices begin with
    hidden: frozenset[str]  # entries of obsm that are no features

    @property
    def samples(self) -> tuple[str, ...]:
        """obs_names."""
        return tuple(map(str, self.data.obs_names))

    @property
    def variables(self) -> tuple[str, ...] | None:
        """var_names, where it has features of its own."""
        return None if hasattr(self.data, "mod") else tuple(map(str, self.data.var_names))

    def features(self) -> Iterator[tuple[str, Any]]:
        """X, layers and obsm, by the names that they have in files."""
        if getattr(self.data, "X", None) is not None:
            yield f"{self.title}X", self.data.X
        for group in ("layers", "obsm"):
            for name, values in (getattr(self.data, group, None) or {}).items():
                if name not in self.hidden or group != "obsm":
                    yield f"{self.title}{group}/{name}", values

    def squares(self) -> Iterator[tuple[str, Any, str]]:
        """What lies in obsp, and whether it is a kernel or distances."""
        for name, values in self.data.obsp.items():
            yield f"{self.title}obsp/{name}", values, "distances" if are_distances(name) else "kernel"


def parts_of(data: Any) -> list[Part]:
    """The whole, and of MuData its modalities."""
    modalities = dict(getattr(data, "mod", {}))
    hidden = frozenset(modalities)  # masks of the samples that a modality has
    return [Part(data, "", hidden), *(Part(own, f"{name}/", frozenset()) for name, own in modalities.items())]


def columns_of(data: Any) -> Iterator[tuple[str, Array, tuple[str, ...]]]:
    """The columns of obs with their values and the names of the samples."""
    names = tuple(map(str, data.obs_names))
    for name in data.obs.columns:
        yield str(name), values_of_column(data.obs[name]), names


def are_distances(name: str) -> bool:
    """Whether an entry of obsp is called as the distances that scanpy's search for neighbors writes beside a kernel."""
    return name.replace("/", "_").split("_")[-1] == "distances"


def values_of_column(values: Any) -> Array:
    """The values of a column of obs as an array: numbers, or words with NaN where one is missing."""
    series = pd.Series(values)
    if pd.api.types.is_bool_dtype(series.dtype) and not series.hasnans:
        return series.to_numpy(np.bool_)
    if numeric_dtype(series.dtype):
        return series.to_numpy(np.float64, na_value=np.nan)
    return series.astype(object).where(series.notna(), np.nan).to_numpy(object)
