"""The commands that train a learner: `fit`, `search`, `evaluate`, `importance`, `stability` and `permute`."""

from __future__ import annotations

import math
import shlex
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

import dmkl
from dmkl.cli import options, output
from dmkl.cli.cluster import Resources
from dmkl.cli.interruption import checkpoint_folder, resuming
from dmkl.cli.learners import AUTO, DEFAULT, make_learner
from dmkl.cli.options import flag, folds_option, option, samples_option
from dmkl.cli.output import say, say_aside
from dmkl.cli.parsing import parse_cv, parse_grid, parse_scoring, sample_names
from dmkl.cli.samples import Samples, read_groups
from dmkl.description import MOST_ROWS, Key, count, number
from dmkl.errors import refuse
from dmkl.files.urls import as_place
from dmkl.progress import ConsoleWatch

if TYPE_CHECKING:
    from dmkl.arrays import Index
    from dmkl.description import Description
    from dmkl.kernelset import KernelSet
    from dmkl.searching.search import SearchResult

_grid_option = partial(option, panel="Grid")
_kernels_option = partial(option, panel="Kernels")
_resamples_option = partial(option, panel="Resamples")
_permutations_option = partial(option, panel="Permutations")
_baselines_option = partial(folds_option, metavar="WHAT", default="sum")

_Predictions = Annotated[str | None, option("Held-out predictions: .csv, .parquet, .zarr.", "FILE")]


# --- option groups and the runner ----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class _SetOptions(Samples, Resources):
    store: options.Store
    kernels: options.Kernels = None
    overwrite: options.Overwrite = False
    as_json: options.Json = False


@dataclass(frozen=True, kw_only=True)
class _ModelOption:
    model: str = DEFAULT


@dataclass(frozen=True, kw_only=True)
class ResultOptions(_SetOptions):
    """The options of all commands that train learners several times and save a result."""

    out: Annotated[str, typer.Argument(metavar="OUT", help="Folder or URL to save the result at.")]
    groups: Path | None = folds_option(
        "Groups that no fold splits, by sample.", "FILE", details="FILE:NAME takes a column, matched by sample names."
    )
    scoring: list[str] | None = folds_option("Measures, as matthews; first chooses.", "NAME,…")
    state: Path | None = option("Checkpoint. [default: OUT.partial]", "DIR")
    restart: bool = flag("Discard the checkpoint.", "--restart")


@dataclass(frozen=True, kw_only=True)
class QuestionOptions(ResultOptions, _ModelOption):
    """The options of all commands that train one learner several times and save a result."""


@dataclass(frozen=True, kw_only=True)
class GridOptions:
    """The options that say which parameters are searched."""

    p: str | None = _grid_option("Norms, as 4/3,1+2^-6. [default: 12 up to inf]", "P,P,…", "--p", "-p")
    lam: str | None = _grid_option("Values of λ. [default: those of the model]", "λ,λ,…")
    C: str | None = _grid_option("Penalties of SVMs. [default: 2^-2 to 2^7]", "C,C,…", "--C", "-C")
    grid: list[str] | None = _grid_option("Values of another parameter; repeatable.", "NAME=V,V,…")

    def values(self, estimator: Any, K: KernelSet, steps: Any) -> Any:
        """The values of each parameter: its default values if its option is missing.

        Those of lam and C are None, unless `steps`, the value of --steps, were chosen: each chain of steps has its own
        values. Where `dmkl.search` tries both chains, so do these values, and a note says so.
        """
        from dmkl.searching.grid import as_grid, with_chains

        texts = [f"{name}={text}" for name in ("p", "lam", "C") if (text := getattr(self, name)) is not None]
        given = parse_grid([*texts, *(self.grid or ())], sample_names(K))
        values: dict[str, Any] = as_grid(None, estimator)
        if steps is None or "steps" in given:
            values |= dict.fromkeys({"lam", "C"} & values.keys())
        several = K.labels is not None and K.labels.ndim == 2
        of_chains, note, _ = with_chains({**values, **given}, estimator, K, several=several)
        if note:
            say_aside("note", note)
        return of_chains


@dataclass
class _Run:
    """A question that is being answered: opens the set, makes the learner, computes, saves and prints."""

    options: ResultOptions
    kind: str  # of its result, in words
    format_name: str
    parameters: Mapping[str, Any]  # those of the learner that are given
    plot: Path | None = None
    predictions: str | None = None
    chosen: Index = field(init=False)  # the samples
    on: str = field(init=False)  # these in words

    def __post_init__(self) -> None:
        from dmkl.outputs import check_table

        given, overwrite = self.options, self.options.overwrite
        self.place = as_place(given.out)
        self.folder = checkpoint_folder(self.place, self.kind, self.format_name, given.state, overwrite=overwrite)
        output.lock_pictures(self.plot, overwrite=overwrite)
        if self.predictions is not None:
            check_table(as_place(self.predictions))
            output.lock_output(as_place(self.predictions), overwrite=overwrite, what="file")
        self.K = given.open(given.store, given.kernels)
        model = getattr(given, "model", AUTO)
        self.learner: Any = None if model == AUTO else make_learner(model, self.parameters, self.K)

    def values(self, grid: GridOptions) -> Any:
        """The values of each parameter of the learner."""
        return grid.values(self.learner, self.K[self.chosen, self.chosen], self.parameters.get("steps"))

    def compute(self, question: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
        """Answer the question on the chosen samples, with a checkpoint and progress, and save the result."""
        from dmkl.outputs import write_table
        from dmkl.solvers.workspace import remove_state

        options, K, chosen = self.options, self.K, self.chosen
        groups = None if options.groups is None else read_groups(options.groups, K.samples, chosen)
        if options.restart:
            remove_state(self.folder)
        with resuming(self.folder), options.computing(reading=K, state=self.folder):
            started = time.monotonic()
            result = question(
                self.learner,
                K[chosen, chosen],
                None,
                *arguments,
                scoring=parse_scoring(options.scoring),
                groups=groups,
                unknown=options.unknown,
                state=self.folder,
                **keywords,
            )
            self.seconds = time.monotonic() - started
            result.save(self.place, overwrite=options.overwrite)
        remove_state(self.folder)
        output.save_figure(lambda: result.plot(), self.plot)
        if self.predictions is not None:
            table = dmkl.prediction_table(result.predictions)
            write_table(as_place(self.predictions), table, result.predictions, overwrite=options.overwrite)
            say_aside("note", f"out-of-fold predictions are in {self.predictions}")
        return result

    def as_mapping(self, result: Any) -> dict[str, Any]:
        """The result for JSON: what all results have, and its own facts and tables."""
        attrs, description = result.data.attrs, result.describe()
        shared = {"path": self.options.out, "samples": len(self.chosen), "summary": description.as_mapping()}
        shared |= {name: attrs[name] for name in ("estimator", "scoring") if name in attrs}
        return {**shared, **description.as_data(), "passes": result.n_passes_, "seconds": attrs["seconds"]}

    def print(self, result: Any) -> None:
        """Print the summary with tables below its first line, or all as JSON."""
        if self.options.as_json:
            output.print_json(self.as_mapping(result))
            return
        self.print_summary(result.describe())
        say(f"Saved in {self.options.out}; dmkl.load reads it.")

    def print_summary(self, description: Description, omit: Collection[str] = (), *in_table: Key) -> None:
        """Print the tables but those to omit, and the sentences but those that tables have.

        Choices and comparisons are printed as sentences.
        """
        say(f"{description.headline}, on {count(len(self.chosen), 'sample')} ({self.on})\n", style="bold")
        output.show_description(description, {"choices", "comparison", *omit}, "losses", *in_table)


def _samples_and_folds(K: KernelSet, cv: str | None, samples: Samples) -> tuple[Index, str, Any]:
    """Positions of the samples that a search may see, their description, and the folds."""
    import numpy as np

    split, default = samples.split, samples.train is None and not samples.every
    folds = parse_cv(cv)
    if folds is None and K.splits is not None and (split is not None or samples.train is not None):
        folds = 5  # stored splits divide the whole set, not a part of it
    if folds == "splits" and split is not None and default:
        everything = Samples(every=True, drop_classes_below=samples.drop_classes_below)
        chosen, _ = everything.choose(K)
        parts = [np.flatnonzero(np.isin(chosen, part)) for part in K.split(split)]
        return chosen, f"split {split}", {str(split): parts}
    by_splits = folds == "splits" or (folds is None and K.splits is not None and bool((K.splits == 1).any()))
    chosen, on = samples.choose(K, all_by_default=by_splits)
    return chosen, on, folds


def _predict_command(model: Any, out: str, K: KernelSet, store: str) -> str:
    """The command that predicts with a saved model: other samples of its set, or else new ones."""
    own = [word for path in output.learner_files.get() for word in ("--learners", str(path))]
    new = ["NEW_SAMPLES"] if isinstance(model.features_, str) else ["--features", "NEW_SAMPLES"]
    others = set(K.samples.astype(str)) - set(model.train_samples_)
    return shlex.join(["dmkl", "predict", out, *([store] if others else new), *own])


def fit(
    learner: _ModelOption,
    learning: _SetOptions,
    model_out: Annotated[str, typer.Argument(metavar="MODEL_OUT", help="Folder or URL to save the model at.")],
    scoring: list[str] | None = samples_option("Measures on held-out samples, as matthews; see above.", "NAME,…"),
    plot: options.Plot = None,
    **parameters: Any,
) -> None:
    """Train a model on a kernel set and save it.

    Trains on the training part of split 0, or on all samples of a set without splits, unless --split, --train or --all
    say so. Prints the weights with the proven gap: an upper bound on the relative distance of their objective from the
    optimum. --scoring scores the model on samples that it was not trained on: the test part of the split (the
    validation part if there is no test part), or all others.

    Examples
    --------
        dmkl fit kernels.zarr model
        dmkl fit kernels.zarr model -p 1 --lam 1e-3 --split 0
        dmkl fit kernels.zarr model --model uniform --all
        dmkl fit kernels.zarr model --model mksvm -p 1.5 -C 4 --multiclass ovo
        dmkl fit kernels.zarr model --model gmkl --sigma prices.csv
    """
    import numpy as np

    output.lock_output(as_place(model_out), overwrite=learning.overwrite)
    output.lock_pictures(plot, overwrite=learning.overwrite)
    K = learning.open(learning.store, learning.kernels)
    estimator = make_learner(learner.model, parameters, K)
    from dmkl.cli import tables  # after `import_base`
    from dmkl.learners.tables import describe_model

    chosen, on = learning.choose(K)
    measures = parse_scoring(scoring)
    held_out, which = _held_out(K, chosen, learning) if measures else (chosen, "")
    if learning.drop_classes_below and K.labels is not None:
        held_out = held_out[np.isin(K.labels[held_out], K.labels[chosen])]
    scores = None
    with ConsoleWatch(), learning.computing(reading=K):
        started = time.monotonic()
        estimator.fit(K[chosen, chosen], unknown=learning.unknown)
        seconds = time.monotonic() - started
        if measures and K.labels is not None:  # without labels there is no fit
            regression = estimator.kind_ == "regression"
            predict = estimator.predict if regression else estimator.decision_function
            decision = predict(K[held_out, chosen]).values
            part = estimator._covariate_part(K.samples[held_out].astype(str)) if regression else None
            sample_text = f"{count(len(held_out), 'sample')} ({which})"
            truth = K.labels[held_out]
            scores = tables.score_model(estimator, decision, truth, measures, learning.unknown, sample_text, part)
    estimator.save(model_out, overwrite=learning.overwrite)
    output.save_figure(estimator.plot_weights, plot)
    agreement = {}
    if not estimator.traits.needs_labels and K.labels is not None and K.labels.ndim == 1:
        agreement = {"agreement": dmkl.cluster_agreement(estimator.labels_, K.labels[chosen])}
    if learning.as_json:
        held_out_scores = {} if scores is None else {"held_out": {"samples": len(held_out), **scores.as_data()}}
        output.print_json({**_model_as_mapping(estimator, model_out, seconds), **held_out_scores, **agreement})
        return
    description = describe_model(estimator, tables.MOST_COLUMNS)
    made = [make() for make in description.tables.values()]
    output.show_tables(*made, tables.models_table({learner.model: estimator}, {learner.model: seconds}))
    for note in description.lines():
        say(note)
    say(f"Trained on {count(len(chosen), 'sample')} ({on}). {estimator.status_}")
    if agreement:
        figures = ", ".join(f"{name} {number(value)}" for name, value in agreement["agreement"].items())
        say(f"Agreement of the clusters with the stored labels, which were not used: {figures}.")
    if scores is not None:
        tables.show_scores(scores)
    say(f"Saved in {model_out}; use it with: {_predict_command(estimator, model_out, K, learning.store)}")


def _held_out(K: KernelSet, chosen: Index, samples: Samples) -> tuple[Index, str]:
    """The samples on which a model that is trained on the chosen ones is scored, and their description."""
    import numpy as np

    if K.splits is not None and samples.train is None and not samples.every:
        number = samples.split or 0
        parts = K.split(number)
        for part, rows in (("test", parts.test), ("validation", parts.validation)):
            if len(rows):
                return rows, f"the {part} part of split {number}"
    rows = np.setdiff1d(np.arange(K.shape[1]), chosen)
    if not len(rows):
        way_out = "train on some with --split K or --train FILE, or estimate with dmkl evaluate"
        refuse(f"--scoring measures samples that the model was not trained on, and there are none; {way_out}")
    return rows, "those that it was not trained on"


_PICTURES = ("scores.png", "weights.png", "weights_over_p.png")


def search(
    question: QuestionOptions,
    grid: GridOptions,
    cv: options.Folds = None,
    rule: options.Rule = "best",
    choice: options.Choice = None,
    refit: bool = folds_option("Train the chosen model.", None, "--refit/--no-refit", default=True, show_default=False),
    baselines: Literal["sum", "rules", "all", "none"] = _baselines_option(
        'Default: "sum" of kernels; or "rules" (largest score too), "all", "none".'
    ),
    plot: Path | None = option("Pictures in a folder, or of scores in a file.", "PATH"),
    predictions: _Predictions = None,
    **parameters: Any,
) -> None:
    """Search a grid of parameters by cross-validation, and train the chosen model.

    Saves the scores in OUT and the model in OUT/best; the same command resumes. With stored splits all samples take
    part, each split chooses and scores its test samples; --cv splits --split K takes one. Otherwise it uses the
    training part of split 0, or all samples, unless --split, --train or --all say so. Without --steps and --lam two
    chains of steps are tried where k(x, x) differs.

    Examples
    --------
        dmkl search kernels.zarr result -p 1,4/3,2 --lam 1e-3,0.1
        dmkl search kernels.zarr result --cv "GroupKFold(5)" --groups subjects.txt
        dmkl search kernels.zarr result --grid steps=center+trace,cosine+center
        dmkl search kernels.zarr result --model mksvm -p 1,2 -C 0.25,1,4
    """
    from dmkl.searching.search import BEST

    run = _Run(question, "a search", "dmkl-search", parameters, predictions=predictions)
    output.lock_pictures(plot, _PICTURES, overwrite=question.overwrite)
    K = run.K
    run.chosen, run.on, folds = _samples_and_folds(K, cv, question)
    if question.model == AUTO:
        others = {"baselines": baselines != "sum", "no-refit": not refit, "choice": choice, **parameters}
        given = [name for name, value in {**others, "p": grid.p, "lam": grid.lam, "C": grid.C}.items() if value]
        if given:
            refuse(
                f"--model auto searches several models, whose values --grid MODEL:NAME=V,… gives; found {given[0]!r}"
            )
        by_model = _grids_by_model(grid.grid, K)

        def auto(_: None, K: KernelSet, y: None, **keywords: Any) -> SearchResult:
            return dmkl.auto(K, y, None, by_model, folds, **keywords)

        result = run.compute(auto, rule=rule.replace("-", "_"))
    else:
        keywords: dict[str, Any] = {"refit": refit, "choice": choice, "baselines": baselines}
        result = run.compute(dmkl.search, run.values(grid), folds, rule=rule.replace("-", "_"), **keywords)
    over_p = result.plot_weights_over if len(result.grid.get("p", [])) > 1 else None
    output.save_pictures(dict(zip(_PICTURES, (result.plot_scores, result.plot_weights, over_p), strict=True)), plot)
    if question.as_json:
        mapping = run.as_mapping(result)
        if best := getattr(result, "best_", None):
            seconds = run.seconds - result.scores.attrs["seconds"]
            mapping["model"] = _model_as_mapping(best, str(run.place / BEST), seconds)
        output.print_json(mapping)
        return
    _print_search(result, run)


def _model_as_mapping(model: Any, path: str, seconds: float) -> dict[str, Any]:
    """A fitted model that was saved at `path`, for JSON."""
    from dmkl.learners.tables import model_facts

    return {**model_facts(model), "path": path, "training_samples": len(model.train_samples_), "seconds": seconds}


def _print_search(result: SearchResult, run: _Run) -> None:
    from dmkl.cli import tables
    from dmkl.learners.tables import describe_model

    out = run.options.out
    many = math.prod(result.scores.sizes[dim] for dim in result.choosers) > MOST_ROWS
    # The table has the choices of folds and tasks already, but not those of classes.
    in_table: tuple[Key, ...] = ("choice", "choices") if result.choosers and not (result.by_class or many) else ()
    run.print_summary(result.describe(), {"points"} if many else (), *in_table)
    if not hasattr(result, "best_"):
        say(f"Saved in {out}, without a model; dmkl.load reads it.")
        return
    model, by_fold = result.best_, "refit_test_score" in result.scores or "fold" in result.choosers
    say()
    output.show_description(describe_model(model, tables.MOST_COLUMNS), (), "choice")
    say()
    which = f"training and validation rows of fold {result.scores.fold.values[0]}" if by_fold else "all of the folds"
    say(f"Refitted on {count(len(model.train_samples_), 'sample')} ({which}). {model.status_}")
    say(f"Saved in {out}; use it with: {_predict_command(model, out, run.K, run.options.store)}")


def evaluate(
    question: QuestionOptions,
    grid: GridOptions,
    outer: str | None = folds_option("Folds that test: a number, a splitter, or splits. [default: 5]", "FOLDS"),
    inner: str | None = folds_option(
        "Folds in training that choose: number, splitter. [default: 3; of splits the validation samples]",
        "FOLDS",
    ),
    rule: options.Rule = "best",
    baselines: Literal["sum", "rules", "none"] = _baselines_option(
        'Default: "sum" of kernels; or "rules" (largest score too), or "none".'
    ),
    plot: options.Plot = None,
    predictions: _Predictions = None,
    **parameters: Any,
) -> None:
    """Estimate how good a learner is on new samples, by nested cross-validation.

    In each outer fold the inner folds choose a point of the grid, and the model trained there is scored on samples that
    no choice has seen. Steps are tried as by dmkl search. All samples take part unless --split or --train say
    otherwise. After an interruption the same command resumes.

    Examples
    --------
        dmkl evaluate kernels.zarr estimate
        dmkl evaluate kernels.zarr estimate --outer 10 --inner 5 --scoring matthews
        dmkl evaluate kernels.zarr estimate --groups subjects.txt
        dmkl evaluate kernels.zarr estimate --outer splits
    """
    run = _Run(question, "an evaluation", "dmkl-evaluation", parameters, plot, predictions)
    run.chosen, run.on = question.choose(run.K, all_by_default=True)
    values, folds = run.values(grid), {"outer": parse_cv(outer, "--outer"), "inner": parse_cv(inner, "--inner")}
    run.print(run.compute(dmkl.evaluate, values, **folds, rule=rule.replace("-", "_"), baselines=baselines))


def compare(
    question: ResultOptions,
    models: str | None = option("Models, sum, single. [default: those that suit the labels]", "NAME,…"),
    competitors: str | None = option(
        "Estimators of scikit-learn on the features: hist-gradient-boosting, random-forest, logistic, ridge.", "NAME,…"
    ),
    grid: list[str] | None = _grid_option("Values of a parameter of a model; repeatable.", "MODEL:NAME=V,V,…"),
    outer: str | None = folds_option("Folds that test, as of dmkl evaluate. [default: 5]", "FOLDS"),
    inner: str | None = folds_option("Folds that choose, as of dmkl evaluate. [default: 3]", "FOLDS"),
    rule: options.Rule = "best",
    plot: options.Plot = None,
) -> None:
    """Compare models on the same nested folds: scores, paired differences to the best, seconds.

    In each outer fold the inner folds choose a point of the grid of each model, as dmkl evaluate does, and all models
    are scored on the same samples, which no choice has seen. "sum" is the plain sum of the kernels, "single" one
    kernel, which the inner folds choose. After an interruption the same command resumes.

    Examples
    --------
        dmkl compare kernels.zarr compared --models mkfda,stack,sum,single
        dmkl compare kernels.zarr compared --models mkfda,mksvm --grid mkfda:p=1,2 --grid mkfda:lam=1e-3,0.1
    """
    run = _Run(question, "a comparison", "dmkl-comparison", {}, plot)
    run.learner = None if models is None else models.split(",")
    run.chosen, run.on = question.choose(run.K, all_by_default=True)
    grids = _grids_by_model(grid, run.K)
    folds = {"outer": parse_cv(outer, "--outer"), "inner": parse_cv(inner, "--inner")}
    others = () if competitors is None else competitors.split(",")
    run.print(run.compute(dmkl.compare, grids, **folds, rule=rule.replace("-", "_"), competitors=others))


def _grids_by_model(grid: list[str] | None, K: KernelSet) -> dict[str, dict[str, Any]]:
    """Values of the parameters of each model, from texts such as mkfda:p=1,2."""
    by_model: dict[str, list[str]] = {}
    for text in grid or ():
        model, colon, values = text.partition(":")
        if not colon:
            refuse(f"--grid of several models takes a model and its values, such as mkfda:p=1,2, got {text!r}")
        by_model.setdefault(model, []).append(values)
    return {model: parse_grid(texts, sample_names(K)) for model, texts in by_model.items()}


def importance(
    question: QuestionOptions,
    grid: GridOptions,
    kernel_group: list[str] | None = _kernels_option(
        "Kernels to leave out together: shape=fou*,zer*; repeatable.",
        "G=A,B*",
        details="They are left out one by one too.",
    ),
    choose: Literal["held", "anew"] = _kernels_option(
        'Parameters are "held" (default), or "anew".',
        "HOW",
        default="held",
        details="Fits without a kernel have those of all kernels, or choose their own.",
    ),
    shapley: int = _kernels_option("Random orders for Shapley values.", "N", default=0, min=0, show_default=False),
    seed: int = _kernels_option("Seed of these. [default: 0]", "N", default=0, min=0),
    cv: options.Folds = None,
    rule: options.Rule = "best",
    choice: options.Choice = None,
    plot: options.Plot = None,
    **parameters: Any,
) -> None:
    """Show what each kernel adds: the score that is lost without it, and its score alone.

    Searches a grid as dmkl search does, on the same samples and folds, and refits without each kernel and with it
    alone. After an interruption the same command resumes.

    Examples
    --------
        dmkl importance kernels.zarr added --cv 3
        dmkl importance kernels.zarr added --kernel-group "shape=fou*,zer*" --shapley 50
        dmkl importance kernels.zarr added -p 1,2 --lam 1e-3,0.1 --choose anew
    """
    run = _Run(question, "an importance of kernels", "dmkl-importance", parameters, plot)
    kernel_groups = _kernel_groups(kernel_group or [], run.K.names)
    run.chosen, run.on, folds = _samples_and_folds(run.K, cv, question)
    result = run.compute(
        dmkl.importance,
        run.values(grid),
        cv=folds,
        kernel_groups=kernel_groups,
        choose=choose,
        shapley=shapley,
        random_state=seed,
        rule=rule.replace("-", "_"),
        choice=choice,
    )
    run.print(result)


def _kernel_groups(texts: Sequence[str], names: Sequence[str]) -> dict[str, list[str]]:
    """Names of kernels by group, from texts such as "shape=fou*,zer*"."""
    groups: dict[str, list[str]] = {}
    for text in texts:
        name, equals, patterns = (part.strip() for part in text.partition("="))
        if not (name and equals and patterns) or name in groups:
            why = "twice" if name in groups else "without a name or kernels"
            refuse(f"--kernel-group takes a name and kernels, such as shape=fou*,zer*, each once, got {text!r} {why}")
        groups[name] = []
        for pattern in map(str.strip, patterns.split(",")):
            matching = [pattern] if pattern in names else [kernel for kernel in names if fnmatchcase(kernel, pattern)]
            if not matching:
                refuse(f"no kernel is called {pattern!r}, of --kernel-group {name}; there are {', '.join(names[:10])}")
            groups[name] += matching
    return groups


def stability(
    question: QuestionOptions,
    how: Literal["half", "bootstrap", "folds"] = _resamples_option(
        '"half" (default): random halves in pairs, "bootstrap": draws with replacement, "folds": all but a fold.',
        "HOW",
        default="half",
    ),
    resamples: int | None = _resamples_option("Number of resamples. [default: 100; 10 folds]", "N"),
    selected: int | None = _resamples_option(
        "Each resample selects Q kernels. [default: those above 1 % of the largest]", "Q"
    ),
    threshold: float = _resamples_option(
        "Share of resamples that select a stable kernel.", "SHARE", default=0.9, details="It is above 0.5."
    ),
    seed: int = _resamples_option("Seed of the draws.", "N", default=0),
    plot: options.Plot = None,
    **parameters: Any,
) -> None:
    """Show how far kernel weights can be trusted, by fits to resamples of the samples.

    Prints the mean weight of each kernel, the interval of 95 % of its weights, how often it is selected, and how many
    kernels chance would select as often. --scoring scores each model on the samples that its resample leaves out. Uses
    the training part of split 0, or all samples of a set without splits, unless --split, --train or --all say so. After
    an interruption the same command resumes.

    Examples
    --------
        dmkl stability kernels.zarr trust -p 1 --selected 3
        dmkl stability kernels.zarr trust -p 1 --lam 1e-3 --resamples 200 --plot trust.png
        dmkl stability kernels.zarr trust --how bootstrap --groups subjects.txt
    """
    run = _Run(question, "a result of resampling", "dmkl-stability", parameters, plot)
    run.chosen, run.on = question.choose(run.K)
    keywords: dict[str, Any] = {"how": how, "n_selected": selected, "threshold": threshold}
    run.print(run.compute(dmkl.stability, resamples, random_state=seed, **keywords))


def permute(
    question: QuestionOptions,
    grid: GridOptions,
    permutations: int = _permutations_option("Number B; p ≥ 1/(B + 1). [default: 199]", "B", default=199),
    choose: Literal["anew", "fixed"] = _permutations_option(
        'Point of the grid: "anew" for each (default), or "fixed" (p too small after a choice).',
        "HOW",
        default="anew",
    ),
    blocks: Path | None = _permutations_option(
        "Block of each sample, within which labels are exchanged. [default: groups]", "FILE"
    ),
    exchange: Literal["samples", "groups"] = _permutations_option(
        '"samples" (default) exchange labels, or "groups" of equal size.', "WHO", default="samples"
    ),
    seed: int = _permutations_option("Seed. [default: 0]", "N", default=0),
    cv: options.Folds = None,
    plot: options.Plot = None,
    **parameters: Any,
) -> None:
    """Test by permuted labels whether labels depend on the kernels, and which kernels' weights show it.

    The cross-validated score at the best point of the grid is compared with the scores of permuted labels, and so is
    each kernel's share of the weight. All samples take part unless --split or --train say otherwise. After an
    interruption the same command resumes.

    Examples
    --------
        dmkl permute kernels.zarr significance
        dmkl permute kernels.zarr significance --permutations 999 --p 1,2 --lam 0.1
        dmkl permute kernels.zarr out --groups subjects.csv --blocks sites.csv
    """
    run = _Run(question, "a permutation test", "dmkl-permutation-test", parameters, plot)
    run.chosen, run.on = question.choose(run.K, all_by_default=True)
    result = run.compute(
        dmkl.permutation_test,
        run.values(grid),
        permutations,
        cv=parse_cv(cv),
        blocks=None if blocks is None else read_groups(blocks, run.K.samples, run.chosen),
        exchange=exchange,
        choose=choose,
        random_state=seed,
    )
    run.print(result)
