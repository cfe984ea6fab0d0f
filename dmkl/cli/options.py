"""Options that several commands share, one by one and in groups."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import fields, is_dataclass
from functools import partial, wraps
from inspect import Parameter, signature
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_type_hints

import typer
from typer.models import OptionInfo

from dmkl.files.urls import local_path

_LAST_PANELS = ("Folds and choice", "Samples", "Compute resources")
_SETTINGS = ("duplicates", "unknown")
"""Options that are settings while a command runs, since readers of all files ask them."""
STEPS_HELP = (
    "Steps applied to the kernels, in order: center, trace (unit trace), cosine (unit norm of each sample), "
    "multiplicative (unit variance), residualize=FILE (in place of center, removes covariates); none."
)


def option(
    text: str,
    metavar: str | None = None,
    *names: str,
    default: Any = ...,
    panel: str | None = None,
    details: str = "",
    **more: Any,
) -> Any:
    """Make an option from its help, the placeholder of its value, its names, and the panel of help that shows it.

    It stands as the default value of a parameter, or in an annotated type, which states no `default`. Help adds the
    default value, unless the text says it. `details` are further sentences of its help, which --help-all shows.
    """
    more = {"show_default": "default" not in text, **more}
    made = typer.Option(default, *names, metavar=metavar, help=text, rich_help_panel=panel, **more)
    made.details = details
    return made


def flag(text: str, name: str, **more: Any) -> Any:
    """Make an option without a value, False by default."""
    return option(text, None, name, default=False, **more)


folds_option, samples_option, resources_option = (partial(option, panel=panel) for panel in _LAST_PANELS)
labels_option = partial(option, panel="Labels and names")
storage_option = partial(option, panel="Storage")


Store = Annotated[str, typer.Argument(metavar="STORE", help="Kernel set (folder or URL).")]
SavedModel = Annotated[str, typer.Argument(metavar="MODEL", help="Saved model or search: a folder or a URL.")]
Anything = Annotated[
    str,
    typer.Argument(metavar="PATH", help="Kernel set (a folder or a URL), model, result, or checkpoint of a search."),
]
NewStore = Annotated[str, typer.Argument(metavar="OUT", help="Kernel set to write: a folder or a URL.")]
Json = Annotated[bool, option("Print JSON instead of tables.", None, "--json")]
Overwrite = Annotated[bool, option("Overwrite existing output.", None, "--overwrite")]
Kernels = Annotated[str | None, option("Only these kernels, by name.", "A,B,…")]
Plot = Annotated[Path | None, option("Draw the result: .png, .pdf or .svg.", "FILE.png")]

# --- samples and labels --------------------------------------------------------------------------------------------

Labels = Annotated[
    Path | None,
    labels_option(
        "Class or number of each sample. FILE:NAME takes a column.",
        "FILE",
        details="FILE.h5ad:NAME takes a column of obs, and FILE:TIME,EVENT times of an event.",
    ),
]
Rows = Annotated[
    str | None,
    samples_option("Only these: a file of names, or of 0 and 1 for each sample, or positions, as 0,5,10:20.", "ROWS"),
]
Records = Annotated[Path | None, samples_option("FILE:NAME, the sample of each record.", "FILE")]
Covariates = Annotated[
    Path | None, samples_option("Covariates of new samples.", "FILE", details="As for --steps residualize=FILE.")
]
Offset = Annotated[str | None, samples_option("Offsets of new samples, or one number.", "FILE")]
Strata = Annotated[str | None, samples_option("Strata of new samples, for --times.", "FILE")]
Unknown = Annotated[
    str | None, samples_option("Code of missing values, as -9999; 0, 1, -1: in labels of tasks.", "CODE")
]
Join = Annotated[
    Literal["exact", "inner", "outer"],
    samples_option(
        'Samples: "exact" (default), equal in all files; "inner": in all; "outer": in any.',
        "HOW",
        details="They are matched by name.",
    ),
]
Missing = Annotated[
    Literal["refuse", "zero"] | None,
    samples_option(
        'Samples without a table: "refuse", or "zero" (default of --join outer).',
        "HOW",
        details="They have zeros in the centered kernels of that table.",
    ),
]
MissingFeatures = Annotated[
    Literal["refuse", "zero", "mean"],
    samples_option('Missing columns: "refuse" (default), "zero", or the training "mean".', "HOW"),
]

# --- folds and choice ----------------------------------------------------------------------------------------------

Folds = Annotated[
    str | None,
    folds_option('A number, "splits", or "GroupKFold(5)". [default: validation splits, else 5]', "FOLDS"),
]
Rule = Annotated[
    Literal["best", "one-standard-error"],
    folds_option('The "best" point (default), or the simplest within "one-standard-error".', "RULE"),
]
Choice = Annotated[
    Literal["fold", "joint"] | None,
    folds_option('Each "fold" chooses, or "joint": one for all. [default: fold with test rows]', "WHO"),
]

# --- groups --------------------------------------------------------------------------------------------------------


def expand_groups(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of the groups among its parameters.

    A group is a dataclass whose fields are options; the command gets an instance of it. Values of type Path must be
    paths of this machine: options that may be URLs are texts. Options that are default values become annotated types.
    """
    parameters = signature(command, eval_str=True).parameters
    groups: dict[str, Any] = {
        name: item.annotation for name, item in parameters.items() if is_dataclass(item.annotation)
    }

    @wraps(command)
    def run(**values: Any) -> None:
        import dask

        for value in values.values():
            for path in value if isinstance(value, list) else [value]:
                if isinstance(path, Path):
                    local_path(path, "what stands there")
        chosen = {f"dmkl.{key}": value for key in _SETTINGS if (value := values.get(key)) is not None}
        if unknown := chosen.get("dmkl.unknown"):
            chosen["dmkl.unknown"] = [] if unknown in ("0", "1", "-1") else [unknown]
        backend = {"where": "local", "memory": values.get("memory"), **(values.get("cluster") or {})}
        if backend["where"] in ("threads", "local") and backend["memory"] is not None:
            chosen["dmkl.memory"] = backend["memory"]  # of other files than kernel sets too, which are read here
        for name, group in groups.items():
            values[name] = group(**{field.name: values.pop(field.name) for field in fields(group)})
        with dask.config.set(chosen):
            command(**values)

    expanded: list[Parameter] = []
    for name, parameter in parameters.items():
        items = [parameter]
        if group := groups.get(name):
            hints = get_type_hints(group, include_extras=True)  # those of bases are in the terms of other modules
            items = [item.replace(annotation=hints[item.name]) for item in signature(group).parameters.values()]
        expanded += map(_annotated, items)
    run.__signature__ = signature(command).replace(parameters=sorted(expanded, key=_rank))  # type: ignore[attr-defined]
    return run


def _annotated(item: Parameter) -> Parameter:
    """A parameter by keyword, with the option in its type that may be its default value."""
    if item.kind is item.VAR_KEYWORD:
        return item
    if not isinstance(item.default, OptionInfo):
        return item.replace(kind=item.KEYWORD_ONLY)
    info = copy(item.default)
    default, info.default = None if info.default is ... else info.default, ...
    return item.replace(kind=item.KEYWORD_ONLY, annotation=Annotated[item.annotation, info], default=default)


def add_details(command: Callable[..., None]) -> None:
    """Give the help of a command the details of its options, and those that are hidden."""
    described = []
    for item in signature(command).parameters.values():
        kind, info = get_args(item.annotation)
        info = copy(info)
        text, default, rest = (info.help or "").partition("[default")
        info.help, info.hidden = " ".join([text.strip(), getattr(info, "details", ""), default + rest]).strip(), False
        described.append(item.replace(annotation=Annotated[kind, info]))
    command.__signature__ = signature(command).replace(parameters=described)  # type: ignore[attr-defined]


def _rank(item: Parameter) -> int:
    """The place of an option in help, by its panel; the panels of `_LAST_PANELS` come last."""
    if item.kind is item.VAR_KEYWORD:
        return len(_LAST_PANELS) + 1
    panel = getattr((*get_args(item.annotation), None, None)[1], "rich_help_panel", None)
    return _LAST_PANELS.index(panel) + 1 if panel in _LAST_PANELS else 0
