"""`dmkl run`."""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import dmkl
from dmkl.cli.ending import Ended
from dmkl.cli.logs import logging_to
from dmkl.cli.options import Cluster, Memory, Overwrite, Workers, option
from dmkl.cli.output import say, say_aside
from dmkl.errors import DmklError, InputError
from dmkl.files.urls import as_place
from dmkl.progress import LOGGER

if TYPE_CHECKING:
    from dmkl.jobs.job_file import JobFile

__all__ = ["UNFINISHED", "Job", "run"]

UNFINISHED = 75
"""Exit status of a job that SIGTERM ended and that goes on when run again: a temporary failure, says sysexits.h."""

Job = Annotated[Path, typer.Argument(metavar="JOB.toml", help="Job file.")]


def run(
    job: Job,
    into: Annotated[Path | None, option("Write the outputs into this folder instead.", "DIR")] = None,
    dry_run: Annotated[
        bool, option("Check the job, print it with its defaults, and do nothing.", None, "--dry-run")
    ] = False,
    overwrite: Overwrite = False,
    cluster: Cluster = None,
    workers: Workers = None,
    memory: Memory = None,
) -> None:
    """Do all that a job file asks for, from import to predictions; what is done already is not done again.

    It asks by the keys of [outputs]: evaluation, search, model, importance, stability, permute and predictions. Each
    table has the options of the commands under their names (`dmkl search --help`), and all is checked before anything
    runs. Beside each output OUT lies OUT.job.toml: the job with its defaults, versions, and what identifies the
    contents of its inputs; run on that it does the same again, and says what is not as it was. OUT.log tells with times
    what was done: passes, phases, how much is certified. Paths are relative to the job file. --cluster, --workers and
    --memory come before the table [cluster]. Ended by SIGTERM, with status 75, it goes on after the last pass when it
    is run again.

    Examples
    --------
        dmkl run job.toml
        dmkl run job.toml --dry-run
        dmkl run found.job.toml --into again

    A job file:

        [data]
        store = "kernels.zarr"          # there already, or made of inputs = [...] or features = [...]

        [model]
        name = "mkfda"
        tol = 1e-4                      # kernels = ["rna", "shape"] takes these alone

        [grid]
        p = [1, 1.5, 2]
        lam = [1e-3, 1e-1]

        [folds]
        cv = 5
        scoring = "balanced_accuracy"

        [cluster]
        place = "local"

        [permute]                       # of [importance], [stability] and [permute] what they leave open is in [folds]
        permutations = 199

        [outputs]
        search = "found"
        permute = "significance"
    """
    from dmkl.cli.job_steps import SECTIONS, steps_of
    from dmkl.jobs.cluster import cluster_text
    from dmkl.jobs.job_file import read_job
    from dmkl.jobs.record import differences, log_path

    read = read_job(job.expanduser(), SECTIONS)
    if into is not None:
        moved = {key: str(into.absolute() / Path(str(to)).name) for key, to in read.sections.get("outputs", {}).items()}
        read = replace(read, sections={**read.sections, "outputs": moved})
    steps = steps_of(read)
    place = cluster_text(read) if cluster is None else cluster
    given = {"workers": workers, "memory": memory}
    own = read.sections.get("cluster", {})
    given = {key: own.get(key) if value is None and cluster is None else value for key, value in given.items()}
    if dry_run:
        from dmkl.jobs.record import as_toml

        resolved = {**_resolved(steps), "cluster": own}
        say(as_toml({name: resolved.get(name, {}) for name in SECTIONS}, {}, f"{read.path.name}, resolved").rstrip())
        return
    for difference in differences(read.sections.get("recorded", {})):
        say_aside("warning", difference)
    done = [not overwrite and _is_done(step, read) for step in steps]
    for step, whole in zip(steps, done, strict=True):
        if not whole and not overwrite and as_place(step.out).exists() and step.name not in ("import", "build"):
            key = next(place for place in step.places.values() if place[0] == "outputs")
            msg = f"{step.out} exists already, and is of another job; choose another path, --into DIR or --overwrite"
            raise read.problem(msg, *key)
    before = [_mark(step) for step in steps]
    try:
        for step, whole in zip(steps, done, strict=True):
            if whole:
                say_aside("note", f"{step.out} is there already")
                continue
            with logging_to(log_path(step.out, read.path)):
                LOGGER.info("dmkl %s: %s", dmkl.__version__, shlex.join(["dmkl", step.name, *step.arguments]))
                try:
                    step.run(*_more(step, place, given, overwrite=overwrite))
                except BaseException as error:  # which is told where this log is closed already
                    LOGGER.error("dmkl %s did not finish: %s", step.name, str(error) or type(error).__name__)
                    raise
            if step.name not in ("import", "build"):
                _note(step, steps, read)
    except Ended as ended:
        if [_mark(step) for step in steps] != before:
            say_aside("note", ended.told)
            raise SystemExit(UNFINISHED) from ended
        msg = (
            "this job was ended before it had done anything that is kept: what comes next, such as one pass over the "
            "kernels, takes longer than its time. Give it a longer walltime, more cores or more nodes"
        )
        raise DmklError(msg) from ended


def _more(step: Any, place: str | None, given: Mapping[str, Any], *, overwrite: bool) -> Iterator[str]:
    """Options that the job does not say for each command."""
    if overwrite:
        yield "--overwrite"
    for name, value in {"cluster": place, **given}.items():
        if value is not None and name in step.values:
            yield f"--{name}={value}"


def _is_done(step: Any, job: JobFile) -> bool:
    """Whether this job has made the result of a step already."""
    from dmkl.cli.job_steps import SECTIONS
    from dmkl.jobs.job_file import read_job
    from dmkl.jobs.record import record_path

    if step.name in ("import", "build"):
        try:
            dmkl.open(step.out)
        except DmklError:
            return False
        return True
    beside = record_path(step.out, job.path)
    if not (as_place(step.out).exists() and beside.exists()):
        return False
    try:
        recorded = read_job(beside, SECTIONS)
    except InputError:
        return False
    return bool(recorded.sections.get("recorded", {}).get("step", {}).get("digest") == _digest(step))


def _digest(step: Any) -> str:
    """What identifies a command of a job, with all its values."""
    return hashlib.sha256(json.dumps([step.name, step.arguments]).encode()).hexdigest()


def _mark(step: Any) -> tuple[int, ...]:
    """What changes when a step moves on: passes and solved problems of a search, files of anything else."""
    from dmkl.searching.state import read_state

    out, given = as_place(step.out), step.values.get("state")
    kept = out.with_name(f"{out.name}.partial") if given is None else Path(given)
    state = read_state(kept) if isinstance(kept, Path) else None
    files = 0
    if step.name in ("import", "build") and isinstance(out, Path):
        files = sum(1 for path in out.parent.glob(f"{out.name}*") for _ in path.rglob("*"))
    return int(out.exists()), state.n_passes if state else 0, state.n_outcomes if state else 0, files


def _note(step: Any, steps: Sequence[Any], job: JobFile) -> None:
    """Write beside a result what made it."""
    from dmkl.cli.job_steps import SECTIONS
    from dmkl.files.writing import write_whole
    from dmkl.jobs.record import as_toml, contents_of, record_path, versions

    resolved = {**_resolved(steps), "cluster": job.sections.get("cluster", {})}
    paths = [str(path) for one in steps for path in _inputs(one)]
    recorded = {"step": {"command": step.name, "digest": _digest(step)}, "versions": versions()}
    recorded["contents"] = contents_of(dict.fromkeys(paths))
    text = as_toml({name: resolved.get(name, {}) for name in SECTIONS}, recorded, f"What made {Path(step.out).name}.")
    place = record_path(step.out, job.path)
    write_whole(place, text.encode())
    say(f"The job that made it, with defaults and versions, is in {place}.")


def _inputs(step: Any) -> Iterator[Any]:
    for name, value in step.values.items():
        place = step.places.get(name, ("", ""))
        if place[0] == "outputs" or value is None:
            continue
        for each in value if isinstance(value, list | tuple) else [value]:
            if isinstance(each, Path) or place[1] == "store" or (isinstance(each, str) and Path(each).is_file()):
                yield each


def _resolved(steps: Sequence[Any]) -> dict[str, dict[str, Any]]:
    """The tables of the job with all values that hold without being said."""
    found: dict[str, dict[str, Any]] = {}
    for step in steps:
        for (section, key), value in _values(step):
            found.setdefault(section, {}).setdefault(key, value)
    return found


def _values(step: Any) -> Iterator[tuple[tuple[str, str], Any]]:
    from dmkl.cli.commands import LEARNING
    from dmkl.cli.learners import learners

    learner = learners()[step.values["model"]] if step.name in LEARNING else None
    defaults = {} if learner is None else {name: item.default for name, item in learner.parameters.items()}
    defaults |= _default_grid(step)
    for name, place in step.places.items():
        value = step.values.get(name)
        if value is None or value == () or value == []:
            value = defaults.get(name)
        if isinstance(value, tuple | list):
            yield place, [str(one) if isinstance(one, Path) else one for one in value]
        elif isinstance(value, Path | str | int | float):
            yield place, str(value) if isinstance(value, Path) else value
    lines = list(step.values.get("grid") or ())
    if "grid_steps" in defaults and not any(line.startswith("steps=") for line in lines):
        lines.append(f"steps={defaults['grid_steps']}")
    for line in lines:
        key, _, text = line.partition("=")
        yield ("grid", key), text


def _default_grid(step: Any) -> dict[str, Any]:
    """The values of the grid and of folds that a search takes where it is told none."""
    if "grid" not in step.values:
        return {}
    from dmkl.cli.grids import chains_to_try, grid_values
    from dmkl.cli.learners import learners, make_learner
    from dmkl.cli.samples import open_kernels

    try:
        K = open_kernels(step.values["store"], step.values["kernels"])
    except DmklError:  # still to be made
        return {}
    own = learners()[step.values["model"]].parameters
    given = {name: value for name, value in step.values.items() if name in own and name not in ("p", "lam", "C")}
    p, lam, C = (step.values[name] for name in ("p", "lam", "C"))
    values = grid_values(make_learner(step.values["model"], given, K), K, p, lam, C, step.values["grid"])
    if step.name in ("search", "evaluate"):
        values, _ = chains_to_try(make_learner(step.values["model"], given, K), K, values, given.get("steps"))
    found: dict[str, Any] = {name: values[name] for name in ("p", "lam", "C") if name in values}
    if "steps" in values:
        found["grid_steps"] = ",".join("+".join(map(str, chain)) or "none" for chain in values["steps"])
    if step.name == "search":
        whole = step.values["split"] is None and step.values["train"] is None
        by_splits = whole and K.splits is not None and bool((K.splits == 1).any())
        found["cv"] = "splits" if by_splits else 5
    return found
