"""`dmkl submit`."""

from __future__ import annotations

import hashlib
from typing import Annotated

from dmkl.cli.options import option
from dmkl.cli.output import say
from dmkl.cli.running import Job

__all__ = ["submit"]


def submit(
    job: Job,
    dry_run: Annotated[bool, option("Check the job, print the script, and send nothing.", None, "--dry-run")] = False,
) -> None:
    """Send a job file to SLURM as one allocation, and go on in further jobs when the walltime ends one.

    Scheduler, workers and `dmkl run JOB.toml` run inside the allocation, whose nodes, cores, memory and walltime the
    table [cluster] says (place = "slurm", jobs = number of nodes, cores and memory of each), and dask-jobqueue's
    configuration where it does not. The job runs a copy of the file, JOB-HASH.toml beside it, and so do the jobs that
    go on: edit JOB.toml and submit it again for other work. Some time before the walltime (notice = "2 m") the work is
    kept and the next job is sent, until all is done; a job that could do nothing ends that with an error, and so does
    scancel.

    Examples
    --------
        dmkl submit job.toml
        dmkl submit job.toml --dry-run
    """
    from dmkl.cli.job_steps import SECTIONS, steps_of
    from dmkl.clusters.batch_systems import SYSTEMS
    from dmkl.files.writing import write_whole
    from dmkl.jobs.job_file import read_job
    from dmkl.jobs.script import batch_script
    from dmkl.jobs.sending import send

    read = read_job(job.expanduser(), SECTIONS)
    steps_of(read)
    place = str(read.sections.get("cluster", {}).get("place", "slurm"))
    if place != "slurm":
        other = (
            f"put `dmkl run {read.path.name}` in a script of yours for {SYSTEMS[place].title} (it exits with 75 where "
            "SIGTERM ended it, and goes on when run again), or let dmkl run submit the workers"
            if place in SYSTEMS
            else f'say place = "slurm", or compute there with dmkl run {read.path.name}'
        )
        msg = f"dmkl submit writes scripts of SLURM alone, got {place!r}; {other}"
        raise read.problem(msg, "cluster", "place")
    content = read.path.read_bytes()
    # Named by what they hold: a job that waits, and those that go on with it, keep theirs when the job file is edited.
    draft = batch_script(read, read.path, read.path)
    stem = f"{read.path.stem}-{hashlib.sha256(content + draft.encode()).hexdigest()[:12]}"
    copy, script = (read.path.with_name(f"{stem}{ending}") for ending in (".toml", ".sbatch"))
    text = batch_script(read, copy, script)
    if dry_run:
        say(text.rstrip())
        return
    write_whole(copy, content)
    write_whole(script, text.encode())
    number = send(script)
    say(f"Sent as job {number}, by the script {script}, which runs the copy {copy.name} of the job file.")
    say(f"It prints to {read.path.stem}-{number}.out; scancel ends it.")
