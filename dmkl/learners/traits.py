"""Traits of classes of learners, and the fitted attributes that their models keep."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, Self

import xarray as xr


@dataclass(frozen=True)
class Form:
    """Values that something saved may have: in words for messages, and as the test of a value."""

    words: str
    accepts: Callable[[Any], bool]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _are_numbers(value: Any) -> bool:
    return all(map(_are_numbers, value)) if isinstance(value, tuple) else _is_number(value)


NUMBERS = Form("numbers", _are_numbers)
COUNT = Form("a count", lambda value: _is_number(value) and 0 <= value < float("inf"))
TRUTH = Form("true or false", lambda value: isinstance(value, bool))
TEXT = Form("a text", lambda value: isinstance(value, str))
TEXT_OR_NONE = Form("null or a text", lambda value: value is None or isinstance(value, str))
TEXTS = Form("a list of names", lambda value: isinstance(value, tuple) and all(map(TEXT.accepts, value)))
ANYTHING = Form("anything", lambda value: True)


Kept = Literal["root", "array", "table", "state", "class"]


@dataclass(frozen=True)
class FittedAttribute:
    """A fitted attribute of a class of learners: where `save` writes it, and what it must be when it is read.

    `kept` says where: "root" and "array" for labeled arrays, among the arrays of the model or in a group of their own;
    "table" for a Dataset, in a group; "state" for a plain JSON value; "class" for an attribute that methods of the
    class write and read. `name` is that of an array in memory. A file without a `needed` one is damaged.
    """

    form: Form
    kept: Kept
    name: str | None = None
    needed: bool = False


def json_value(form: Form, *, needed: bool = False) -> FittedAttribute:
    """A fitted attribute that is a plain JSON value, such as a count, a text, or numbers for each problem."""
    return FittedAttribute(form, "state", needed=needed)


def labeled_array(*dims: str, root: str | None = None, needed: bool = False) -> FittedAttribute:
    """A fitted attribute that is a labeled array of numbers over these dimensions, or over any where none are given.

    `root` is the name of an array that is written among those of all models.
    """

    def accepts(found: Any) -> bool:
        return isinstance(found, xr.DataArray) and found.dtype.kind in "biuf" and (not dims or found.dims == dims)

    words = f"a DataArray of numbers over {' and '.join(dims)}" if dims else "a DataArray of numbers"
    return FittedAttribute(Form(words, accepts), "array" if root is None else "root", root, needed)


def labeled_table(*variables: str, needed: bool = True) -> FittedAttribute:
    """A fitted attribute that is a Dataset with these variables, among others."""

    def accepts(found: Any) -> bool:
        return isinstance(found, xr.Dataset) and {*variables} <= {*map(str, found.data_vars)}

    return FittedAttribute(Form(f"a Dataset with {', '.join(variables)}", accepts), "table", needed=needed)


WRITTEN_BY_CLASS = FittedAttribute(ANYTHING, "class")
"""A fitted attribute that `_state` and `_set_state` of the class write and read."""

Check = Callable[[str, Any], Any]
"""A check of a parameter by its name and its value, which raises InputError; see `dmkl.learners.checks`."""


FITTED = {
    "weights_": labeled_array(root="weight", needed=True),
    "dual_coef_": labeled_array(root="dual_coef", needed=True),
    "intercept_": labeled_array(root="intercept"),
    "covariate_effects_": labeled_array(root="covariate_effect"),
    **dict.fromkeys(("gap_", "objective_"), json_value(NUMBERS, needed=True)),
    "weights_error_": json_value(NUMBERS),
    "n_iter_": json_value(COUNT, needed=True),
    "n_passes_": json_value(COUNT),
    "status_": json_value(TEXT, needed=True),
    "solver_": json_value(TEXT),
    "calibrated_on_": json_value(TEXT_OR_NONE),
    "nonconformity_": labeled_table("nonconformity", "problem", "true_class", "row_group", needed=False),
    **dict.fromkeys(("classes_", "kind_", "tasks_", "kernel_names_", "train_samples_"), WRITTEN_BY_CLASS),
    **dict.fromkeys(("n_features_in_", "features_", "statistics_", "history_"), WRITTEN_BY_CLASS),
    **dict.fromkeys(("priors_", "decider_", "n_prediction_passes_"), WRITTEN_BY_CLASS),
}
"""Fitted attributes of all learners."""


@dataclass(frozen=True, kw_only=True)
class Traits:
    """Facts about a class of learners that its methods do not say, in its attribute `traits`.

    A class states what differs from its base: ``traits = KernelClassifier.traits.but(takes_sample_weight=True)``.
    """

    takes_sample_weight: bool = False
    """Whether samples may have weights; `TrainingSet.problems` and `_prices` have them."""
    weights_are_copies: bool = True
    """Whether a sample of weight 2 is the same as two copies of it, in a learner without steps."""
    takes_unknown_labels: bool = True  # Whether labels of a task may be unknown for some samples.
    takes_subsets: bool = True  # Whether a fit can be restricted to some of the kernels.
    needs_labels: bool = True  # Whether `fit` needs labels, as all learners but clusterings do.
    learns_weights: bool = True
    """Whether weights depend on the labels and on parameters such as p, λ and C, unless they are given."""
    weight_set: bool = False
    """Whether weights lie in a set that `p`, `kernel_groups`, `sigma`, `constraints` and `weights` describe."""
    covariate_effects: bool = False
    """Whether effects of covariates, which one step at most takes out, are fitted, and added to predictions."""
    leaves_one_out: bool = False
    """Whether labels follow by default from class means of leave-one-out scores, which takes dual variables."""
    scorer: str | None = None  # The scorer where none is named; None for that of the kind of the problem.
    bounded: str = "the objective"  # The function whose relative gap `gap_` is, in texts.
    by_problem: tuple[str, ...] = ("p", "lam", "C")
    """Parameters of which several values are one for each problem (task, class, target)."""
    prepared_by: tuple[str, ...] = ()
    """Parameters that `_prepare` depends on; without any there is nothing to prepare."""
    of_rows: tuple[str, ...] = ("covariates",)
    """Facts about new rows that predictions take in addition to kernels or features."""
    plain_sum: Mapping[str, Any] = field(default_factory=dict)
    """Parameters of the set of weights, each with its value for the plain sum of all kernels."""
    grid: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """Default grids of parameters whose meaning is that of this class alone."""
    rules: Mapping[str, Check] = field(default_factory=dict)
    """Checks of parameters by name, for those that the class has."""
    fitted: Mapping[str, FittedAttribute] = field(default_factory=lambda: FITTED)
    """Fitted attributes that models of the class may have, which `save` writes and `load` checks."""

    def but(self, **changes: Any) -> Self:
        """The same traits with some changes; entries of mappings are added to those that are there."""
        mappings = {each.name for each in fields(self) if isinstance(getattr(self, each.name), Mapping)}
        added = {name: {**getattr(self, name), **changes[name]} for name in mappings & changes.keys()}
        return replace(self, **(changes | added))
