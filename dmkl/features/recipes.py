"""Recipes: how each kernel is computed from features. `dmkl.features.specs` makes them of specifications."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

from dmkl.numerics.functions import STATISTIC

GENETIC = ("grm", "grm=vanraden")
"""Transforms of genotypes."""
IMPUTING = ("impute", *GENETIC)
"""Transforms that replace missing values; the others refuse them."""
# A list of these is not a grid.
LOW_RANK = ("rank", "approximation", "landmarks", "share", "random_state")
"""Keys of kernels of low rank."""


@dataclass(frozen=True)
class Recipe:
    """How one kernel is computed from features."""

    name: str  # unique among all that are planned together
    function: str  # A key of `FUNCTIONS`, or "own" of a function that the user gives
    feature: str | None  # the feature table; None for random kernels, which need none, and for products
    columns: tuple[int, ...] | None
    """Positions of the columns of the table that the function sees, in their order; None for all."""
    parameters: dict[str, Any]
    """Parameters of the function, each a number or a tuple of numbers (of "own" the `import_path`, of "product" the
    names of its factors); `plan` leaves `bandwidth` to be replaced by
    `gamma` (`dmkl.features.tasks.resolve_bandwidths`)."""
    made: dict[str, Any] = field(default_factory=dict)
    """How `gamma` was computed: bandwidth, mean distance, number of training rows; what a kernel of low rank
    approximates (`dmkl.features.approximation`); and how its features are transformed (`dmkl.features.transforms`)."""
    own: Callable[[Any, Any], Any] | None = field(default=None, repr=False)
    """The user's function, from rows X (n, d) and Y (m, d) to (n, m); None until he gives it: files name it alone."""
    factors: tuple[Recipe, ...] = ()  # the kernels that a product multiplies, none of them a product

    @property
    def statistic(self) -> tuple[Any, ...]:
        """Key of the pairwise statistic that this kernel is a function of; kernels with equal keys share it."""
        keys, own = ("widths", "weights", "scale", "seed", "dimensions"), self.name if self.function == "own" else ""
        more = (*(self.parameters.get(key) for key in keys), own)
        return STATISTIC[self.function], self.feature, self.columns, more

    @property
    def parts(self) -> tuple[Recipe, ...]:
        """The kernels that are multiplied, or this one alone."""
        return self.factors or (self,)

    def of_parts(self, parts: Mapping[str, Recipe]) -> Recipe:
        """The recipe with these parts, by name, in place of its own."""
        return replace(self, factors=tuple(parts[f.name] for f in self.factors)) if self.factors else parts[self.name]

    @property
    def tables(self) -> tuple[str, ...]:
        """Names of the tables that it needs: its features, and those that map new samples to these."""
        if self.factors:
            return tuple(dict.fromkeys(name for factor in self.factors for name in factor.tables))
        made, steps = self.made.get("approximation", {}), self.exact.made.get("transform", {}).get("steps", ())
        names = (self.feature, made.get("points"), made.get("map"), *(step.get("factors") for step in steps))
        return tuple(name for name in names if name is not None)

    @property
    def source(self) -> str | None:
        """The feature table as it was given, before a transform."""
        source: str | None = self.made.get("transform", {}).get("of", self.feature)
        return source

    @property
    def exact(self) -> Self:
        """The recipe that a kernel of low rank approximates; itself for any other kernel."""
        exact = tuple(factor.exact for factor in self.factors)
        if exact != self.factors:
            return replace(self, factors=exact)
        made = self.made.get("approximation")
        return self if made is None else self.from_json(self.name, made["of"])

    def as_json(self) -> dict[str, Any]:
        """The recipe for the provenance of a store or the attributes of a model."""
        recipe: dict[str, Any] = {"function": self.function}
        if self.feature is not None:
            recipe["feature"] = self.feature
        if self.columns is not None:
            recipe["columns"] = list(self.columns)
        parameters = {key: list(v) if isinstance(v, tuple) else v for key, v in self.parameters.items()}
        factors = {"factors": [{"name": factor.name, **factor.as_json()} for factor in self.factors]}
        return recipe | {"parameters": parameters, **self.made} | (factors if self.factors else {})

    @classmethod
    def from_json(cls, name: str, recipe: dict[str, Any]) -> Self:
        """The inverse of `as_json`; StoreError if the function is unknown or something is missing."""
        from dmkl.features.specs import check_stored  # pydantic, which fits of given kernels do without

        check_stored(name, recipe)
        made = dict(recipe)
        function, columns = made.pop("function", None), made.pop("columns", None)
        parameters = {key: tuple(v) if isinstance(v, list) else v for key, v in made.pop("parameters").items()}
        feature, own = made.pop("feature", None), OWN.get(str(parameters.get("path")))
        given = [cls.from_json(entry.pop("name"), entry) for entry in map(dict, made.pop("factors", ()))]
        columns = None if columns is None else tuple(columns)
        factors = tuple(part for factor in given for part in factor.parts)
        return cls(name, function, feature, columns, parameters, made, own, factors)


def single(recipes: Iterable[Recipe]) -> list[Recipe]:
    """The recipes without products, and the factors of products, each once."""
    return list({part.name: part for recipe in recipes for part in recipe.parts}.values())


OWN: dict[str, Callable[[Any, Any], Any]] = {}
"""Functions that were given to `dmkl.build` in this process, by their import path.

Nothing is imported, nor taken from a loaded module, because a file says so: that would run what its writer chose.
"""
