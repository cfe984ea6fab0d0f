"""The commands that there are, each imported when it is called."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from keyword import iskeyword

__all__ = ["COMMANDS", "LEARNING", "command", "with_options"]

COMMANDS = {
    "demo": (
        "demo",
        "Show everything once: kernels of handwritten digits, weights with a proven gap, a picture.",
    ),
    "import": (
        "stores",
        "Import kernel matrices from files into a kernel set.",
    ),
    "build": (
        "building",
        "Compute kernels from feature tables, and keep the features beside them.",
    ),
    "info": (
        "stores",
        "Show what a kernel set, a model, a result, an exported kernel or table, or a search's state is and holds.",
    ),
    "check": (
        "checking",
        "Read all of a kernel set, a model, a result, an export or a search's state, and report damage and problems.",
    ),
    "preflight": (
        "preflighting",
        "Show what each host of a cluster sees, has and runs, and what fits there, before anything long.",
    ),
    "analyze": (
        "analyzing",
        "Show which kernels are alike, how well each alone fits the labels, and how many dimensions it has.",
    ),
    "fit": (
        "fitting",
        "Train a model on a kernel set and save it.",
    ),
    "search": (
        "searching",
        "Search a grid of parameters by cross-validation, and train a model at the chosen point.",
    ),
    "evaluate": (
        "evaluating",
        "Estimate how good a learner is on new samples, its parameters chosen from a grid, by nested cross-validation.",
    ),
    "importance": (
        "leaving_out",
        "Show what each kernel adds: the score that is lost without it, and what it reaches alone.",
    ),
    "stability": (
        "resampling",
        "Show how far kernel weights can be trusted, by fits to resamples of the samples that share their passes.",
    ),
    "permute": (
        "permuting",
        "Test by permuted labels whether labels depend on the kernels, and which kernels' weights show it.",
    ),
    "predict": (
        "predicting",
        "Predict labels or numbers with a saved model, and score them if the true ones are known.",
    ),
    "export": (
        "exporting",
        "Write the weighted kernel of a model for other programs, or coordinates of its kernel PCA.",
    ),
    "report": (
        "reporting",
        "Tell of a model or a result on one page of HTML: the answer, how sure it is, pictures, how to do it again.",
    ),
    "run": (
        "running",
        "Do all that a job file asks for, from import to predictions; what is done already is not done again.",
    ),
    "submit": (
        "submitting",
        "Send a job file to SLURM as one allocation, and go on in further jobs when the walltime ends one.",
    ),
    "certificates": (
        "certifying",
        "Make certificates by which a scheduler, its workers and their client know one another.",
    ),
}
"""The module in `dmkl.cli` and the line of help of each, in the order in which help lists them.

A command is imported when it is called: help of all is a matter of these lines.
"""

LEARNING = ("fit", "search", "evaluate", "importance", "stability", "permute")
"""Commands that have the options of the learner that is named by --model."""


def command(name: str) -> Callable[..., None]:
    """The function of a command."""
    module, _ = COMMANDS[name]
    found: Callable[..., None] = getattr(import_module(f"dmkl.cli.{module}"), f"{name}_" if iskeyword(name) else name)
    return found


def with_options(name: str, arguments: Sequence[str]) -> Callable[..., None]:
    """The function of a command, with the options of the learner that its arguments name."""
    if name not in LEARNING:
        return command(name)
    from dmkl.cli.learners import command_for, learner_in

    return command_for(learner_in(arguments), command(name))
