"""The commands, each imported when it is called."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from keyword import iskeyword

COMMANDS = {
    "demo": ("demo", "Run an example: kernels of handwritten digits, weights with a proven gap, a picture."),
    "import": ("creating", "Import kernel matrices from files into a kernel set."),
    "build": ("creating", "Compute kernels from feature tables, and store the features with them."),
    "info": (
        "inspecting",
        "Describe a kernel set, a model, a result, an exported kernel or table, or a search's checkpoint.",
    ),
    "check": (
        "inspecting",
        "Read all of a kernel set, a model, a result, an export or a search's checkpoint, and report problems.",
    ),
    "preflight": (
        "cluster",
        "Show the memory, the versions and the folders that each host of a cluster has, and which solvers fit.",
    ),
    "analyze": (
        "analyzing",
        "Show which kernels are alike, how well each alone fits the labels, and how many dimensions it has.",
    ),
    "fit": ("learning", "Train a model on a kernel set and save it."),
    "search": ("learning", "Search a grid of parameters by cross-validation, and train the chosen model."),
    "evaluate": (
        "learning",
        "Estimate how good a learner is on new samples, its parameters chosen from a grid, by nested cross-validation.",
    ),
    "importance": ("learning", "Show what each kernel adds: the score that is lost without it, and its score alone."),
    "stability": ("learning", "Show how far kernel weights can be trusted, by fits to resamples of the samples."),
    "permute": (
        "learning",
        "Test by permuted labels whether labels depend on the kernels, and which kernels' weights show it.",
    ),
    "predict": (
        "predicting",
        "Predict labels or numbers with a saved model, and score them if the true ones are known.",
    ),
    "export": (
        "predicting",
        "Write the weighted kernel of a model for other programs, or coordinates of its kernel PCA.",
    ),
    "report": (
        "predicting",
        "Write a report on a model or a result as one HTML page: the answer, its certainty, pictures, code.",
    ),
    "run": (
        "jobs",
        "Run all steps of a job file, from import to predictions; steps that are done already are skipped.",
    ),
    "submit": (
        "jobs",
        "Submit a job file to SLURM as one allocation, continued in further jobs after its walltime.",
    ),
}
"""The module in `dmkl.cli` and the line of help of each, in the order in which help lists them.

The list of all commands needs only these lines, and imports no command.
"""

LEARNING = ("fit", "search", "evaluate", "importance", "stability", "permute")
"""Commands that have the options of the learner that is named by --model."""


def command(name: str) -> Callable[..., None]:
    """Import the function of a command, with the options of its groups."""
    from dmkl.cli.options import expand_groups

    module, _ = COMMANDS[name]
    return expand_groups(getattr(import_module(f"dmkl.cli.{module}"), f"{name}_" if iskeyword(name) else name))


def with_options(name: str, arguments: Sequence[str]) -> Callable[..., None]:
    """Import the function of a command, with the options of the learner that its arguments name."""
    if name not in LEARNING:
        return command(name)
    from dmkl.cli.learners import command_for, learner_in

    return command_for(learner_in(arguments), command(name))
