"""The keys that each kernel function takes, and what their values must be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Annotated, Any, ClassVar, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from dmkl.errors import InputError
from dmkl.features.functions import WORDS
from dmkl.features.spec_files import did_you_mean, read_columns, shown, some
from dmkl.inputs.features import FeatureMatrix

__all__ = ["MODELS", "NO_GRID", "OnColumns", "Random", "Spec", "listed"]


MOST_COPIES = 1_000_000
"""Random kernels of one specification, each a matrix of its own."""


def listed(value: Any) -> Any:
    """Make a list of a single value."""
    return value if isinstance(value, tuple) else (value,)


def _not_all_zero(weights: tuple[float, ...]) -> tuple[float, ...]:
    if any(weights):
        return weights
    msg = f"weights must hold at least one number > 0, got {list(weights)}"
    raise ValueError(msg)


_Count = Annotated[int, Field(ge=1)]
_Column = Annotated[int, Field(ge=0)] | str
_Sets = dict[Annotated[str, Field(min_length=1)], tuple[_Column, ...]]
_Grid = (BeforeValidator(listed), Field(min_length=1))
_Names = Annotated[tuple[Annotated[str, Field(min_length=1)], ...], *_Grid]
_Counts = Annotated[tuple[_Count, ...], *_Grid]
_Seeds = Annotated[tuple[Annotated[int, Field(ge=0)], ...], *_Grid]
_Positive = Annotated[tuple[Annotated[float, Field(gt=0, allow_inf_nan=False)], ...], *_Grid]
_NonNegative = Annotated[tuple[Annotated[float, Field(ge=0, allow_inf_nan=False)], ...], *_Grid]
_Levels = Annotated[int, Field(ge=1, le=20)] | Annotated[tuple[_Count, ...], Field(min_length=1)]
_Scales = _Count | Annotated[tuple[_Count, ...], Field(min_length=1)]
_Weights = Annotated[
    tuple[Annotated[float, Field(ge=0, allow_inf_nan=False)], ...], Field(min_length=1), AfterValidator(_not_all_zero)
]


class Spec(BaseModel):
    """The keys of all functions; each field's description completes "KEY must be …"."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    name: Annotated[str, Field(min_length=1)] = Field(default="", description="a name or a template of names")

    def features(self, tables: Mapping[str, FeatureMatrix], where: str) -> Sequence[str | None]:
        """Names of the feature tables that are meant; ``[None]`` for kernels without one."""
        return [None]

    def derived(self, n_columns: int, where: str) -> dict[str, Any]:
        """Parameters that follow from others or from the number of columns."""
        return {}


class _OnFeatures(Spec):
    feature: _Names = Field(
        default=(), description="the name of a feature, a pattern such as 'dsift*', or a list of them"
    )

    def features(self, tables: Mapping[str, FeatureMatrix], where: str) -> Sequence[str | None]:
        found: dict[str, None] = {}
        if not self.feature and tables:
            meant = [name for name, table in tables.items() if not table.holds]
            if not meant:
                msg = (
                    f"{where}: there are no tables of features, but {some(tables) or 'nothing'}; kernels are taken by "
                    "the function precomputed, distances by distance"
                )
                raise InputError(msg)
            return [*meant]
        for asked in self.feature or ("*",):
            matching = [asked] if asked in tables else [name for name in tables if fnmatchcase(name, asked)]
            if not matching:
                msg = (
                    f"{where}: no feature is named {asked!r}{did_you_mean(asked, tables)}; "
                    f"the features are: {some(tables) or 'none'}"
                )
                raise InputError(msg)
            found.update(dict.fromkeys(matching))
        return list(found)


class OnColumns(_OnFeatures):
    """A function of some columns of a feature table."""

    columns: Annotated[
        Annotated[tuple[_Column, ...], Field(min_length=1)] | Annotated[_Sets, Field(min_length=1)],
        BeforeValidator(read_columns),
    ] = Field(
        default=(),
        description="a list of column names or positions ≥ 0, a mapping from names to such lists, or the path of a "
        ".json, .toml or .gmt file that holds such a mapping",
    )
    min_columns: _Count = Field(default=1, description="an integer ≥ 1")


class _Polynomial(OnColumns):
    degree: _Counts = Field(default=(3,), description="an integer ≥ 1 or a list of them")
    gamma: _Positive = Field(default=(), description="a number > 0 or a list of them")
    coef0: _NonNegative = Field(
        default=(1.0,),
        description="a number ≥ 0 or a list of them (a negative one makes kernels that are not positive semidefinite)",
    )

    def derived(self, n_columns: int, where: str) -> dict[str, Any]:
        return {} if self.gamma else {"gamma": 1 / n_columns}


class _Exponential(Spec):
    gamma: _Positive = Field(default=(), description="a number > 0 or a list of them")
    bandwidth: _Positive = Field(default=(), description="a number > 0 or a list of them")

    @model_validator(mode="after")
    def _one_scale(self) -> _Exponential:
        if self.gamma and self.bandwidth:
            msg = (
                f"gamma and bandwidth exclude each other, got gamma={shown(self.gamma)} and "
                f"bandwidth={shown(self.bandwidth)}; bandwidth b means gamma = 1/(b · mean distance): leave out one"
            )
            raise ValueError(msg)
        return self

    def derived(self, n_columns: int, where: str) -> dict[str, Any]:
        return {} if self.gamma or self.bandwidth else {"bandwidth": 1.0}


class _ExponentialOnColumns(_Exponential, OnColumns):
    pass


class _OnSquare(_OnFeatures):
    """A function of a square matrix (samples × samples)."""

    _function: ClassVar[str]
    _holds: ClassVar[str]
    """What a matrix holds that is meant for it (`FeatureMatrix.holds`)."""

    def features(self, tables: Mapping[str, FeatureMatrix], where: str) -> Sequence[str | None]:
        square = {name: table for name, table in tables.items() if table.shape[0] == table.shape[1]}
        needed = f"{where}: {self._function} needs a square matrix of {WORDS[self._function]} (samples × samples)"
        if not self.feature:
            meant = {name: table for name, table in square.items() if table.holds in ("", self._holds)}
            told = {name: table for name, table in meant.items() if table.holds}
            if not meant:
                shapes = some(f"{name} {table.shape}" for name, table in tables.items())
                msg = f"{needed}, got {shapes or 'none'}"
                raise InputError(msg)
            return list(told or meant)
        found = super().features(tables, where)
        for name in found:
            if name not in square:
                msg = (
                    f"{needed}, but feature {name!r} has the shape {tables[str(name)].shape}; for a table of columns "
                    "take rbf, laplacian or chi2"
                )
                raise InputError(msg)
        return found


class _Distance(_Exponential, _OnSquare):
    _function = "distance"
    _holds = "distances"


class _Precomputed(_OnSquare):
    _function = "precomputed"
    _holds = "kernel"


class _Parts(OnColumns):
    """A function of parts of the columns, one after another: the levels or scales that the field `_key` tells."""

    _key: ClassVar[str]
    _growth: ClassVar[int]
    """How many times as many columns as the part before a part has, where only their number is told."""

    @model_validator(mode="after")
    def _lengths(self) -> Self:
        _, count, weights = self._told()
        if weights and len(weights) != count:
            msg = (
                f"weights must hold one number for each of the {count} {self._key}, got {len(weights)}: "
                f"{shown(weights)}"
            )
            raise ValueError(msg)
        return self

    def _told(self) -> tuple[int | tuple[int, ...], int, tuple[float, ...]]:
        """The parts, their number and their weights."""
        parts, weights = (getattr(self, key) for key in (self._key, "weights"))
        return parts, parts if isinstance(parts, int) else len(parts), weights

    def derived(self, n_columns: int, where: str) -> dict[str, Any]:
        _, count, weights = self._told()
        widths = self._widths(n_columns, where)  # before anything is made of their number, which may be absurd
        if not weights:
            weights = tuple(1.0 if self._growth == 1 else 2.0 ** (max(part, 1) - count) for part in range(count))
        return {"widths": widths, "weights": weights}

    def _widths(self, n_columns: int, where: str) -> tuple[int, ...]:
        """Numbers of columns of the parts: as listed, or each `_growth` times as many as the part before."""
        (parts, _, _), key, growth = self._told(), self._key, self._growth
        if isinstance(parts, int):
            total = parts if growth == 1 else (growth**parts - 1) // (growth - 1)
            share, rest = divmod(n_columns, total)
            if share and not rest:
                return tuple(share * growth**part for part in range(parts))
            msg = (
                f"{where}: {key}={parts} needs a multiple of {total} columns, got {n_columns}; "
                f"list the number of columns of each part, {key}=[…], or give another number"
            )
            raise InputError(msg)
        if sum(parts) != n_columns:
            msg = f"{where}: {key}={shown(parts)} must add up to the {n_columns} columns, got {sum(parts)}"
            raise InputError(msg)
        return parts


class _Pyramid(_Parts):
    _key, _growth = "levels", 4
    levels: _Levels = Field(
        description="a number of levels from 1 to 20, or the list of the levels' numbers of columns, coarse to fine"
    )
    weights: _Weights = Field(default=(), description="a list of numbers ≥ 0, one for each level")


class _Proximity(_Parts):
    _key, _growth = "scales", 1
    scales: _Scales = Field(description="a number of scales ≥ 1, or the list of the scales' numbers of columns")
    weights: _Weights = Field(default=(), description="a list of numbers ≥ 0, one for each scale")


class Random(Spec):
    """A function of no features."""

    seed: _Seeds = Field(default=(0,), description="an integer ≥ 0 or a list of them")
    copies: Annotated[int, Field(ge=1, le=MOST_COPIES)] = Field(
        default=1, description=f"an integer from 1 to {MOST_COPIES:,}"
    )

    @model_validator(mode="after")
    def _one_seed(self) -> Random:
        if self.copies > 1 and len(self.seed) > 1:
            msg = (
                f"copies={self.copies} counts up from one seed, got seed={shown(self.seed)}; "
                "give one seed, or a list of seeds without copies"
            )
            raise ValueError(msg)
        return self


class _Noise(Random):
    mean: _Positive = Field(default=(0.5,), description="a number > 0 or a list of them")


class _RandomRBF(_Exponential, Random):
    dimensions: _Counts = Field(default=(16,), description="an integer ≥ 1 or a list of them")


MODELS: dict[str, type[Spec]] = {
    "linear": OnColumns,
    "polynomial": _Polynomial,
    "cosine": OnColumns,
    "rbf": _ExponentialOnColumns,
    "laplacian": _ExponentialOnColumns,
    "chi2": _ExponentialOnColumns,
    "distance": _Distance,
    "precomputed": _Precomputed,
    "intersection": OnColumns,
    "pyramid": _Pyramid,
    "proximity": _Proximity,
    "random_rbf": _RandomRBF,
    "random": _Noise,
}
# A list of these is no grid: `derived` and `plan` know what they mean.
NO_GRID = {"name", "feature", "columns", "min_columns", "levels", "scales", "weights", "copies"}
