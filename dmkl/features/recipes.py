"""Recipes: how a kernel is computed from features, with every parameter a number."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Self

from dmkl.errors import StoreError
from dmkl.numerics.functions import STATISTIC

__all__ = ["Recipe"]


@dataclass(frozen=True)
class Recipe:
    """One kernel of features."""

    name: str
    function: str  # of the table of `dmkl.build`
    feature: str | None  # the table it is computed from; None for random kernels
    columns: tuple[int, ...] | None  # positions of the columns it is computed from; None for all
    parameters: dict[str, Any]  # of the function, all of them numbers or tuples of numbers
    made: dict[str, Any] = field(default_factory=dict)
    """How parameters came to be what they are: bandwidth, mean distance, training rows."""

    @property
    def statistic(self) -> tuple[Any, ...]:
        """Key of the pairwise statistic that this kernel is a function of; kernels with equal keys share it."""
        more = tuple(self.parameters.get(key) for key in ("widths", "weights", "seed", "dimensions"))
        return STATISTIC[self.function], self.feature, self.columns, more

    def as_json(self) -> dict[str, Any]:
        """The recipe for the provenance of a store or the attributes of a model."""
        recipe: dict[str, Any] = {"function": self.function}
        if self.feature is not None:
            recipe["feature"] = self.feature
        if self.columns is not None:
            recipe["columns"] = list(self.columns)
        parameters = {key: list(v) if isinstance(v, tuple) else v for key, v in self.parameters.items()}
        return recipe | {"parameters": parameters, **self.made}

    @classmethod
    def from_json(cls, name: str, recipe: dict[str, Any]) -> Self:
        """The inverse of `as_json`; StoreError if it is of no known function."""
        made = dict(recipe)
        function, columns = made.pop("function", None), made.pop("columns", None)
        if not isinstance(function, str) or function not in STATISTIC:
            msg = f"kernel {name!r} was made by {function!r:.80}, which this dmkl does not know; install a newer dmkl"
            raise StoreError(msg)
        given = made.pop("parameters", None)
        if not isinstance(given, dict) or not isinstance(columns, list | None):
            msg = f"the recipe of kernel {name!r} is damaged: its parameters or columns are missing; build it again"
            raise StoreError(msg)
        parameters = {key: tuple(v) if isinstance(v, list) else v for key, v in given.items()}
        feature = made.pop("feature", None)
        return cls(name, function, feature, None if columns is None else tuple(columns), parameters, made)
