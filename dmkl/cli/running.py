"""Job files: `dmkl run` and `dmkl submit`.

The keys of a job file are parameters of commands, and their values are converted and checked as those of the options
are, before anything runs.
"""

from __future__ import annotations

import glob
import hashlib
import inspect
import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, get_args

import typer

import dmkl
from dmkl.cli.cluster import Resources
from dmkl.cli.commands import LEARNING, command
from dmkl.cli.interruption import Ended
from dmkl.cli.learners import DEFAULT, Names, learners, make_learner
from dmkl.cli.options import Overwrite, flag, option
from dmkl.cli.output import learner_files, logging_to, say, say_aside
from dmkl.cli.parsing import parse_cv, parse_grid, parse_names, parse_scoring
from dmkl.cli.samples import open_kernels
from dmkl.errors import DmklError, refuse
from dmkl.files.urls import as_place, file_and_name
from dmkl.progress import LOGGER

if TYPE_CHECKING:
    from dmkl.job_files import JobFile

UNFINISHED = 75
"""Exit status of a job that SIGTERM ended and that goes on when run again: a temporary failure in sysexits.h."""

_Job = Annotated[Path, typer.Argument(metavar="JOB.toml", help="Job file.")]


def run(
    job: _Job,
    resources: Resources,
    into: Path | None = option("Write the outputs into this folder instead.", "DIR"),
    dry_run: bool = flag("Check the job, print it with its defaults, and do nothing.", "--dry-run"),
    overwrite: Overwrite = False,
) -> None:
    """Run all steps of a job file, from import to predictions; steps that are done already are skipped.

    The keys of [outputs] say which: evaluation, search, model, importance, stability, permute and predictions. Each
    table has the options of the commands under their names (`dmkl search --help`) or under those of arguments in
    Python, and all are checked before anything runs. Paths are relative to the job file. --cluster, --workers and
    --memory override the table [cluster]. OUT.log has passes, phases and gaps with their times. OUT.job.toml next to
    each output OUT records the job with its defaults, versions, and identifiers of its inputs; `dmkl run` on it repeats
    the job, and warns of changes. A job that SIGTERM ended has the exit status 75, and continues after the last pass
    when it is run again.

    Examples
    --------
        dmkl run job.toml
        dmkl run job.toml --dry-run
        dmkl run result.job.toml --into again

    A job file:

        [data]
        store = "kernels.zarr"          # exists, or is made from inputs = [...] or features = [...]

        [model]
        name = "mkfda"
        tol = 1e-4                      # kernels = ["rna", "shape"] takes only these

        [grid]
        p = [1, 1.5, 2]
        lam = [1e-3, 1e-1]

        [folds]
        cv = 5
        scoring = "balanced_accuracy"

        [cluster]
        place = "local"

        [permute]                       # keys that [importance], [stability] and [permute] lack are in [folds]
        permutations = 199

        [outputs]
        search = "result"
        permute = "significance"
    """
    from dmkl.job_files import as_toml, cluster_keywords, differences, path_beside, read_job

    file = read_job(job.expanduser(), SECTIONS)
    if into is not None:
        moved = {key: str(into.absolute() / Path(str(to)).name) for key, to in file.sections.get("outputs", {}).items()}
        file = replace(file, sections={**file.sections, "outputs": moved})
    steps = _steps_of(file)
    computing = {name: value for name, value in asdict(resources).items() if value is not None}
    if resources.cluster is None:
        computing = {"cluster": {**cluster_keywords(file), **computing}}
    if dry_run:
        say(as_toml(_resolved(steps), {}, f"{file.path.name}, resolved").rstrip())
        return
    for difference in differences(file.sections.get("recorded", {})):
        say_aside("warning", difference)
    done = [step for step in steps if not overwrite and step.is_done()]
    for step in steps:
        if step not in done and not overwrite and as_place(step.out).exists() and not step.makes_store:
            key = next(key for key in step.key_of.values() if key[0] == "outputs")
            why = "exists already, and is of another job; choose another path, --into DIR or --overwrite"
            file.refuse(f"{step.out} {why}", *key)
    before = [step.progress() for step in steps]
    try:
        for step in steps:
            if step in done:
                say_aside("note", f"{step.out} is there already")
                continue
            with logging_to(path_beside(step.out, file.path, "log")):
                LOGGER.info("dmkl %s: %s", dmkl.__version__, shlex.join(["dmkl", step.name, *step.line]))
                try:
                    step.run(computing, overwrite=overwrite)
                except BaseException as error:  # it is printed after this log is closed
                    LOGGER.error("dmkl %s did not finish: %s", step.name, str(error) or type(error).__name__)
                    raise
            if not step.makes_store:
                _record(step, steps)
    except Ended as ended:
        if [step.progress() for step in steps] != before:
            say_aside("note", ended.message)
            raise SystemExit(UNFINISHED) from ended
        msg = (
            "this job was ended before it had done anything that is kept: its next piece of work, such as one pass "
            "over the kernels, takes longer than its time. Give it a longer walltime, more cores or more nodes"
        )
        raise DmklError(msg) from ended


def submit(
    job: _Job,
    dry_run: bool = flag("Check the job, print the script, and send nothing.", "--dry-run"),
) -> None:
    """Submit a job file to SLURM as one allocation, continued in further jobs after its walltime.

    Scheduler, workers and `dmkl run JOB.toml` run inside the allocation. Its nodes, cores, memory and walltime are in
    the table [cluster] (place = "slurm", jobs = number of nodes, cores and memory of each), or in the configuration of
    dask-jobqueue. The job runs a copy of the file, JOB-HASH.toml in its folder, and so do the jobs that go on: edit
    JOB.toml and submit it again for other work. Some time before the walltime (notice = "2 m") the work is saved and
    the next job is sent, until all is done. An error, scancel, or a job that saved nothing ends this.

    Examples
    --------
        dmkl submit job.toml
        dmkl submit job.toml --dry-run
    """
    from dmkl.files.writing import write_whole
    from dmkl.job_files import batch_script, read_job, send

    file = read_job(job.expanduser(), SECTIONS)
    _steps_of(file)
    backend = str(file.sections.get("cluster", {}).get("place", "slurm"))
    if backend != "slurm":
        file.refuse(
            f'dmkl submit writes scripts of SLURM only, got {backend!r}; say place = "slurm", or compute there with '
            f"dmkl run {file.path.name}. In a script of another batch system it ends with status 75 after SIGTERM, and "
            "continues when it is run again",
            "cluster",
            "place",
        )
    content = file.path.read_bytes()
    # The names contain a hash of the contents: jobs in the queue keep their files when the job file is edited.
    draft = batch_script(file, file.path, file.path, learner_files.get())
    stem = f"{file.path.stem}-{hashlib.sha256(content + draft.encode()).hexdigest()[:12]}"
    copy, script = (file.path.with_name(f"{stem}{ending}") for ending in (".toml", ".sbatch"))
    text = batch_script(file, copy, script, learner_files.get())
    if dry_run:
        say(text.rstrip())
        return
    write_whole(copy, content)
    write_whole(script, text.encode())
    number = send(script)
    say(f"Sent as job {number}, by the script {script}, which runs the copy {copy.name} of the job file.")
    say(f"It prints to {file.path.stem}-{number}.out; scancel ends it.")


# --- steps: the commands of a job ----------------------------------------------------------------------------------

_QUESTIONS = ("importance", "stability", "permute")
SECTIONS = ("data", "model", "grid", "folds", *_QUESTIONS, "predict", "cluster", "outputs", "recorded")
"""The tables of a job file, in the order in which they are written."""

Key = tuple[str, str]
"""A table and a key in it."""


class _Form(NamedTuple):
    command: str
    asked_by: Key
    keys: Mapping[str, tuple[Key, ...]]  # those that may have the value of a parameter; the first that is given has it
    section: str  # the table of its other options


_STORE, _SEARCH, _MODEL = ("data", "store"), ("outputs", "search"), ("outputs", "model")
_EVALUATION, _PREDICTIONS = ("outputs", "evaluation"), ("outputs", "predictions")
_PLOTS = ("outputs", "evaluation_plot"), ("outputs", "model_plot")
_FORMS = (
    _Form("import", ("data", "inputs"), {"out": (_STORE,)}, "data"),
    _Form("build", ("data", "features"), {"out": (_STORE,)}, "data"),
    _Form("evaluate", _EVALUATION, {"store": (_STORE,), "out": (_EVALUATION,), "plot": (_PLOTS[0],)}, "folds"),
    _Form("search", _SEARCH, {"store": (_STORE,), "out": (_SEARCH,), "plot": (("outputs", "pictures"),)}, "folds"),
    _Form("fit", _MODEL, {"store": (_STORE,), "model_out": (_MODEL,), "plot": (_PLOTS[1],)}, "folds"),
    *(_Form(name, ("outputs", name), {"store": (_STORE,), "out": (("outputs", name),)}, name) for name in _QUESTIONS),
    _Form("predict", _PREDICTIONS, {"model": (_SEARCH, _MODEL), "out": (_PREDICTIONS,)}, "predict"),
)
"""In the order in which they run."""

_GRID = ("p", "lam", "C", "grid")
_FOLDS = ("cv", "groups", "scoring", "rule", "choice", "split", "train", "every", "unknown", "drop_classes_below")
"""Options that [importance], [stability] and [permute] take from [folds] if they lack them."""
_KEYWORDS = {name: f"n_{name}" for name in ("resamples", "selected", "permutations")}
_KEYWORDS |= {"seed": "random_state", "kernel_group": "kernel_groups"}
"""Arguments of `dmkl.stability` … that are called otherwise than the options, and are keys too."""
_NOT_IN_FILES = ("overwrite", "as_json", "restart", "cluster", "workers", "memory", "help", "grid")
"""Options of a command that are no keys of its table."""
_WRITTEN = ("state", "plot", "report", "predictions", "contributions", "kernel_scores")
"""Options that name what a command writes, besides its result."""
_PARSERS: Mapping[str, Any] = {"cv": parse_cv, "outer": parse_cv, "inner": parse_cv, "scoring": parse_scoring}

_UsageError: Any = typer.BadParameter.__mro__[1]  # the error for a wrong command line, in the click that Typer uses


class _Step:
    """A command that a job asks for, with the keys of the job file that give its parameters, and their values."""

    out: str  # the path or the URL of its result
    texts: dict[str, Any]  # the values that the job file gives, as those of options
    values: dict[str, Any]  # of all its parameters, including defaults

    def __init__(self, job: JobFile, form: _Form) -> None:
        self.job, self.form, self.name = job, form, form.command
        self.makes_store = form.section == "data"
        self.learns = form.command in LEARNING
        name = str(job.sections.get("model", {}).get("name", DEFAULT))
        if self.learns and name not in learners():
            job.refuse(f"must be one of {', '.join(learners())}, got {name!r}", "model", "name")
        self.learner = learners()[name].parameters if self.learns else {}
        self.own = inspect.signature(command(form.command)).parameters
        app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
        app.command(form.command)(command(form.command, ("--model", name)))
        self.parser: Any = typer.main.get_command(app)  # click's
        self.items = {item.name: item for item in self.parser.params}
        self.keys = {name: self._keys_of(item) for name, item in self.items.items()}
        self.given = {name: key for name, keys in self.keys.items() for key in reversed(keys) if self._is_given(key)}

    def _keys_of(self, item: Any) -> tuple[Key, ...]:
        """The keys that may have the value of a parameter, in the order in which they are tried."""
        name, section = item.name, self.form.section
        key = max(item.opts, key=len).lstrip("-").replace("-", "_")
        # In a job with a search or an evaluation, the measures are those of its folds, not of the model.
        scored_elsewhere = self.name == "fit" and any(map(self._is_given, (_SEARCH, _EVALUATION)))
        if name in self.form.keys:
            return self.form.keys[name]
        if name in _NOT_IN_FILES or (key == "scoring" and scored_elsewhere):
            return ()
        if self.name == "evaluate" and key == "baselines" and self._is_given(_SEARCH):  # its own may be others
            return ()
        if self.learns and name == "model":
            return (("model", "name"),)
        if self.learns and name not in self.own:
            return (("model", key),) if name in self.learner else ()
        if self.learns and name in _GRID:
            return (("grid", key), ("model", key)) if name in self.learner else ()
        if self.learns and name == "kernels":
            return (("model", key),)
        if section in _QUESTIONS and name in _FOLDS:
            return ((section, key), ("folds", key))
        if self.name == "predict" and key == "store" and "features" not in self.job.sections.get("predict", {}):
            return (("predict", "store"), _STORE)
        return tuple((section, each) for each in (key, _KEYWORDS.get(key)) if each)

    def _is_given(self, key: Key) -> bool:
        return key[1] in self.job.sections.get(key[0], {})

    @property
    def key_of(self) -> dict[str, Key]:
        """The key of each parameter that a job file may give: the given one, or the first that is tried."""
        return {**{name: keys[0] for name, keys in self.keys.items() if keys}, **self.given}

    # --- reading ---

    def read(self, *, makes_store: bool) -> None:
        """Convert the values and check them; `makes_store`: whether the job makes its kernel set."""
        for name, keyword in _KEYWORDS.items():
            if {name, keyword} <= self.job.sections.get(self.form.section, {}).keys():
                self.job.refuse(f"says the same as {name}; leave one of them out", self.form.section, keyword)
        self.texts = {name: self._text(self.items[name], key) for name, key in self.given.items()}
        if "grid" in self.keys:  # the values of parameters that have no option
            own = {key for keys in self.keys.values() for section, key in keys if section == "grid"}
            others = {key: value for key, value in self.job.sections.get("grid", {}).items() if key not in own}
            grid = [f"{key}={','.join(_texts(value))}" for key, value in others.items()]
            self.texts["grid"] = [self._located_covariates(text, ("grid", "steps")) for text in grid]
        try:
            self.values = self._context().params
        except _UsageError as error:
            name = str(getattr(getattr(error, "param", None), "name", None))
            why = " ".join(str(error.message).split()) if name in self.given else f"dmkl {self.name} needs it"
            self.job.refuse(why, *self.key_of.get(name, self.form.asked_by), cause=error)
        self._check(makes_store=makes_store)
        self.out = str(next(self.values[name] for name in ("model_out", "out") if name in self.values))

    def _context(self, **more: Any) -> Any:
        """The call of the command with the values of the job file, and more."""
        return self.parser.make_context(f"dmkl {self.name}", [], default_map={**self.texts, **more})

    def _text(self, item: Any, key: Key) -> Any:
        """The value of a key as that of an option: a truth value of a flag, else a text, or several."""
        value = self.job.sections[key[0]][key[1]]
        if getattr(item, "is_flag", False):
            if not isinstance(value, bool):
                self.job.refuse(f"must be true or false, got {value!r}", *key)
            return value
        if isinstance(value, bool):
            self.job.refuse(f"takes a value, got {str(value).lower()}", *key)
        texts, folder = _texts(value), self.job.path.parent
        if item.name == "rule":
            texts = [text.replace("_", "-") for text in texts]  # the word in Python
        is_path = item.name in self.own and "Path" in str(get_args(self.own[item.name].annotation)[:1])
        if key[0] == "outputs" or key == _STORE or item.name in _WRITTEN:
            texts = [text if "://" in text else str(folder / Path(text).expanduser()) for text in texts]
        elif is_path or item.name == "store":  # a text, which may be a URL
            texts = [self._located(text, key, missing=False) for text in texts]
        elif item.name == "steps":
            texts = [self._located_covariates(text, key) for text in texts]
        elif item.name == "rows" or re.search("FILE|STORE", getattr(item, "metavar", "") or ""):
            texts = [self._located(text, key) for text in texts]
        return texts if getattr(item, "multiple", False) or item.nargs != 1 else ",".join(texts)

    def _located(self, text: str, key: Key, *, missing: bool = True) -> str:
        """A text with the paths of its files: FILE, FILE:NAME, FILE&FILE, log(FILE:NAME); some may be `missing`."""
        folder = self.job.path.parent

        def path_of(part: re.Match[str]) -> str:
            path = folder / Path(part[0]).expanduser()
            beside = path.parent.glob(f"{glob.escape(path.name)}.*")  # it may be the prefix of a relationship matrix
            if file_and_name(path)[0].exists() or any(beside):
                return str(path)
            if not missing:
                self.job.refuse(f"{path} is not there; paths are relative to the folder of the job file", *key)
            return part[0]

        if "://" in text:
            return text
        whole = folder / Path(text).expanduser()
        return str(whole) if whole.exists() else re.sub("[^&()]+", path_of, text)

    def _located_covariates(self, steps: str, key: Key) -> str:
        """Chains of steps with the paths of the files of covariates."""
        return re.sub("(?<=residualize=)[^,+]+", lambda files: self._located(files[0], key), steps)

    def _check(self, *, makes_store: bool) -> None:
        """Refuse now what the command would refuse when it runs."""
        names: Sequence[str] = ()  # of the kernels, if these are known
        if "store" in self.given and not (makes_store and self.given["store"] == _STORE):
            with self.job.blaming(*self.given["store"]):
                K = dmkl.open(self.values["store"])
            with self.job.blaming(*self.given.get("kernels", _STORE)):
                names = K.names if "kernels" not in self.given else parse_names(self.values["kernels"]) or ()
                K.select(names)
        for name, key in self.given.items():
            value = self.values[name]
            with self.job.blaming(*key):
                if name in _PARSERS:
                    _PARSERS[name](value)
                elif name in _GRID and "grid" in self.values:
                    parse_grid([f"{name}={value}"])
                elif name in self.learner and name not in self.own and (names or name not in ("sigma", "A")):
                    self.learner[name].read(value, Names(names))
        for text in self.values.get("grid") or ():
            with self.job.blaming("grid", text.partition("=")[0]):
                parse_grid([text])

    # --- running ---

    @cached_property
    def line(self) -> list[str]:
        """The words of a command line that does the same."""
        options, words = list[str](), list[str]()
        for name, value in self.texts.items():
            item, texts = self.items[name], value if isinstance(value, list) else [value]
            if item.param_type_name == "argument":
                words += texts
            elif isinstance(value, bool):
                options += [item.opts[0]] if value else item.secondary_opts[:1]
            else:
                options += [f"{max(item.opts, key=len)}={text}" for text in texts]
        return [*options, "--", *words]

    @property
    def digest(self) -> str:
        """A hash of the command with all its values."""
        return hashlib.sha256(json.dumps([self.name, self.line]).encode()).hexdigest()

    def run(self, computing: Mapping[str, Any], *, overwrite: bool) -> None:
        """Run it, with values of further parameters."""
        self.parser.invoke(self._context(overwrite=overwrite, **computing))

    def is_done(self) -> bool:
        """Whether this job has made the result already."""
        from dmkl.job_files import path_beside, read_job

        with suppress(DmklError):
            if self.makes_store:
                dmkl.open(self.out)
                return True
            record = path_beside(self.out, self.job.path, "job.toml")
            if as_place(self.out).exists() and record.exists():
                recorded = read_job(record, SECTIONS).sections.get("recorded", {})
                return bool(recorded.get("step", {}).get("digest") == self.digest)
        return False

    def progress(self) -> tuple[int, ...]:
        """Numbers that change when the step makes progress: passes and solved problems, or files of a kernel set."""
        from dmkl.solvers.workspace import SearchState, read_state

        out, given = as_place(self.out), self.values.get("state")
        folder = out.with_name(f"{out.name}.partial") if given is None else Path(given)
        state = read_state(folder) if isinstance(folder, Path) else SearchState(())
        n_files = 0
        if self.makes_store and isinstance(out, Path):
            n_files = len(list(out.parent.glob(f"{out.name}*/**/*")))
        return int(out.exists()), state.n_passes, state.n_outcomes, n_files

    def inputs(self) -> Iterator[Any]:
        """The files and the kernel sets that it reads."""
        key_of = self.key_of
        for name, value in self.values.items():
            section, key = key_of.get(name, ("", ""))
            if section == "outputs" or value is None:
                continue
            for item in value if isinstance(value, list | tuple) else [value]:
                if isinstance(item, Path):
                    yield file_and_name(item)[0]
                elif key == "store" or (isinstance(item, str) and Path(item).is_file()):
                    yield item


def _steps_of(job: JobFile) -> list[_Step]:
    """The commands that a job asks for, in their order, checked without running them: InputError with line and key."""
    steps = [_Step(job, form) for form in _FORMS if form.asked_by[1] in job.sections.get(form.asked_by[0], {})]
    if not steps:
        expected = ", ".join(".".join(form.asked_by) for form in _FORMS)
        refuse(f"{job.path.name} asks for nothing: it takes one of {expected}")
    expected_keys = {"outputs": {form.asked_by[1]: None for form in _FORMS if "outputs" in form.asked_by}}
    for step in steps:
        of_grid = [("grid", name) for name in step.learner if "grid" in step.keys]
        for section, key in (*chain.from_iterable(step.keys.values()), *of_grid):
            expected_keys.setdefault(section, {})[key] = None
    for section in [name for name in SECTIONS if name not in ("cluster", "recorded")]:
        for key in job.sections.get(section, {}):
            if not expected_keys.get(section):
                commands = ", ".join(step.name for step in steps)
                job.refuse(f"nothing that this job asks for takes [{section}]; it asks for {commands}", section)
            if key not in expected_keys[section]:
                job.refuse_unknown(section, key, expected_keys[section])
    by_place: dict[str, _Step] = {}
    for step in steps:
        step.read(makes_store=steps[0].makes_store)
        if (other := by_place.setdefault(step.out, step)) is not step:
            job.refuse(f"{step.out} is what {other.name} writes too; give each its own path", *step.form.asked_by)
    return steps


def _texts(value: Any) -> list[str]:
    """The texts of a value, or of each in a list or a table; the steps of a grid are joined by +."""
    if isinstance(value, Mapping):
        return [f"{key}={','.join(_texts(item))}" for key, item in value.items()]
    values = value if isinstance(value, list) else [value]
    return [
        "+".join(_texts(item)) if isinstance(item, list) else repr(item) if isinstance(item, float) else str(item)
        for item in values
    ]


# --- records -------------------------------------------------------------------------------------------------------


def _record(step: _Step, steps: Sequence[_Step]) -> None:
    """Write the job with all defaults, next to a result of it."""
    from dmkl.clusters.preflight import versions_of
    from dmkl.files.writing import write_whole
    from dmkl.job_files import PACKAGES, as_toml, contents_of, path_beside

    inputs = dict.fromkeys(str(path) for other in steps for path in other.inputs())
    recorded = {
        "step": {"command": step.name, "digest": step.digest},
        "versions": versions_of(PACKAGES),
        "contents": contents_of(inputs),
    }
    title = f"The job that made {Path(step.out).name}."
    path = path_beside(step.out, step.job.path, "job.toml")
    if path.is_symlink():
        path.unlink()  # nobody has asked to write where it leads
    write_whole(path, as_toml(_resolved(steps), recorded, title).encode())
    say(f"The job that made it, with defaults and versions, is in {path}.")


def _resolved(steps: Sequence[_Step]) -> dict[str, Mapping[str, Any]]:
    tables: dict[str, dict[str, Any]] = {name: {} for name in SECTIONS}
    for step in steps:
        defaults = {name: item.default for name, item in step.learner.items()} | _default_grid(step)
        for name, (section, key) in step.key_of.items():
            value = step.values.get(name)
            if value in (None, (), []):
                value = defaults.get(name)
            if value is not None:
                tables[section].setdefault(key, value)
        texts = list(step.values.get("grid") or ())
        if "grid_steps" in defaults and not any(text.startswith("steps=") for text in texts):
            texts.append(f"steps={defaults['grid_steps']}")
        for text in texts:
            name, _, values = text.partition("=")
            tables["grid"].setdefault(name, values)
    return {**tables, "cluster": steps[0].job.sections.get("cluster", {})}


def _default_grid(step: _Step) -> dict[str, Any]:
    """The values of the grid and the folds that a step takes by default."""
    if "grid" not in step.values:
        return {}
    from dmkl.cli.learning import GridOptions
    from dmkl.searching.grid import as_grid

    try:
        of_set = (step.values.get(name) for name in ("kernels", "records", "labels"))
        K = open_kernels(step.values["store"], *of_set)
    except DmklError:  # an earlier step makes it
        return {}
    given = {name: value for name, value in step.values.items() if name in step.learner and name not in _GRID}
    learner = make_learner(step.values["model"], given, K)
    grid = GridOptions(**{name: step.values[name] for name in _GRID})
    values: Any = grid.values(learner, K, given.get("steps"))
    asked = as_grid(values, learner)
    defaults: dict[str, Any] = {name: asked[name] for name in ("p", "lam", "C") if name in asked}
    if "steps" in values and values.get("lam", ...) is None:
        defaults["lam"] = None
    if "steps" in values:
        defaults["grid_steps"] = ",".join("+".join(map(str, chain)) or "none" for chain in values["steps"])
    if step.name == "search":
        whole = step.values["split"] is None and step.values["train"] is None
        by_splits = whole and K.splits is not None and bool((K.splits == 1).any())
        defaults["cv"] = "splits" if by_splits else 5
    return defaults
