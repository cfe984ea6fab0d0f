"""Every command that pages and help show runs, on small files of the names that it uses; whole jobs find the truth."""

import glob
import json
import re
import shlex
import shutil
import sys
import textwrap
from pathlib import Path

import dask
import numpy as np
import pandas as pd
import pytest
import yaml
from helpers.stand_ins import LABELS, LEARNT, NAMES, NEW, ROOT, STAND_INS, new_rows, numbers

import dmkl
from dmkl.cli.commands import COMMANDS, LEARNING

# The command shows these as notes.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::UserWarning")]

PAGES = ["README.md", "ARCHITECTURE.md", *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))]
PAGES.append("deploy/README.md")

OUTPUTS = {"import": 0, "build": 0, **dict.fromkeys((*LEARNING, "compare", "compact"), 1), "export": 2, "combine": 2}
"""The positional argument that a command writes to."""

JOBQUEUE = ROOT / "deploy/jobqueue.yaml"
"""The configuration that users of SLURM copy."""

OF_RUN = ("new.zarr", "s3://bucket/new.zarr", "scheduler.json")
"""Names of what is made from the set at hand, and from the scheduler that runs."""

CHANGED = {
    r'--cluster ("slurm[^"]*"|slurm)': "--cluster threads",  # tests/slurm runs commands and job files on a SLURM
    r"^(dmkl submit \S+)$": r"\1 --dry-run",  # tests/slurm submits job files
    r"^(dmkl run (?!.*--dry-run).*)$": r"\1 --cluster threads",  # job.toml names a SLURM
    r"~/dmkl-scheduler.json": "scheduler.json",
    r"--cluster BACKEND": "--cluster threads",
    r"--output /tmp/demo": "--output demo",  # nothing outside of the test's folder
    r"^(dmkl compare .*)$": r"\1 --outer 2 --inner 2",  # of the default grids, 15 searches
    r"^(dmkl permute .*?)( --permutations \d+|$)": r"\1 --permutations 3",  # 199 of the default grid take minutes
}
"""What is changed in commands before they run."""


# --- what jobs have to find, where the truth of the files is known -------------------------------------------------
SICK_OF_NEW = LABELS[: len(NEW)].set_axis(NEW)
"""Labels of new samples, of which two in turn are healthy and sick, as those of training."""


def predicted(truth, least, path="predictions.csv"):
    """A table predicts this share of known labels at least."""
    table = pd.read_csv(path, index_col="sample")["predicted"]
    assert sorted(table.index) == sorted(truth.index)
    assert (table == truth[table.index]).mean() >= least


def cells():
    predicted(SICK_OF_NEW.replace({"healthy": "B", "sick": "T"}), 0.75)
    assert dmkl.load("result").best_score_ > 0.8


def matrices():
    """The trait comes from the markers of chromosome 1; six individuals have no phenotype."""
    table = pd.read_csv("height.hsq", sep="\t", index_col="Source")["Variance"]
    assert table["V(G1)/Vp"] > 0.6 > table["V(G2)/Vp"]
    rows = pd.read_csv("predictions.csv", index_col="sample")
    assert rows.index.tolist() == [f"i{i}" for i in range(6)]
    assert (rows["standard deviation"] > 0).all()


def brains():
    """Diagnoses of subjects at sites that were not trained on."""
    assert dmkl.load("estimate").scores["test_score"].mean() > 0.65


def encoding():
    """The first twenty voxels respond to motion, the others to the semantic space."""
    table = pd.read_csv("r2.csv")
    parts = table.pivot(index="target", columns="kernel", values="kernel_r2")
    winners = parts.idxmax(axis=1).to_numpy()
    assert np.mean(winners[:20] == parts.columns[0]) > 0.9
    assert np.mean(winners[20:] == parts.columns[1]) > 0.9
    assert table["total_r2"].mean() > 0.2


def from_r():
    predicted(SICK_OF_NEW, 0.75)
    weighted(NAMES)


def weighted(names):
    """The weighted kernel, as another program reads it."""
    table = pd.read_csv("weighted.csv", index_col=0)
    assert table.index.astype(str).tolist() == table.columns.tolist() == names
    np.testing.assert_allclose(table, table.T, atol=1e-6)


def colleague():
    """The model in one file predicts as the result from which it was written."""
    predicted(SICK_OF_NEW, 0.75)
    scores = dmkl.load("result").best_.decision_function(features="new.npz")
    np.testing.assert_allclose(dmkl.load("model.zip").decision_function(features="new.npz"), scores, rtol=1e-6)


def one_more():
    assert dmkl.load("with_more").best_.kernel_names_[-1] == "more"


RESULTS = {
    "Cells": cells,
    "Genotypes and relationship matrices": matrices,
    "Brain measures of several modalities": brains,
    "Pictures and their descriptors": lambda: predicted(LABELS[36:], 0.75),
    "Encoding models": encoding,
    "From R and back": from_r,
    "From MATLAB and back": lambda: weighted([str(i) for i in range(len(NAMES))]),
    "A model for a colleague, who predicts in a month": colleague,
    "One kernel more, or one less": one_more,
    "Object stores": lambda: predicted(SICK_OF_NEW, 0.75, "s3://bucket/predictions.csv"),
}
"""The check after the first block of commands under a heading. Jobs on SLURM are checked in `tests/slurm`."""


def of_pages():
    """Blocks of commands of the pages, and commands of one paragraph, with the files that are shown, and a check."""
    checks = dict(RESULTS)
    for page in PAGES:
        heading = ""
        text = (ROOT / page).read_text(encoding="utf-8")
        blocks = re.findall(r"^```toml\n(.*?)^```$", text, flags=re.DOTALL | re.MULTILINE)
        shown = [("specs.toml", block) for block in blocks]
        text = re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)
        for paragraph in re.split(r"\n(?=[-|])|\n\s*\n", text):
            heading = (re.findall(r"^#+ (.*)$", paragraph, flags=re.MULTILINE) or [heading])[-1]
            block = re.findall(r"^ {4,}(dmkl .*)$", paragraph, flags=re.MULTILINE)
            spans = [" ".join(span.split()) for span in re.findall(r"`(dmkl [^`]*)`", paragraph)]
            if commands := block or [span for span in spans if is_whole(span)]:
                typed = re.findall(r"cat > (\S+) <<END\n(.*?)^ *END$", paragraph, flags=re.DOTALL | re.MULTILINE)
                check = checks.pop(heading, None)
                yield pytest.param(commands, dict(shown + typed), check, id=f"{page}: {commands[0][5:]}")


def is_whole(command):
    """Whether a command in a sentence has its arguments; others name a command or an option of which it speaks."""
    words = command.split()
    return len(words) > 2 and "…" not in command and (not words[2].startswith("-") or words[2] == "--help")


def of_help():
    """The examples in the help of each command; each is one of its own."""
    texts = [path.read_text(encoding="utf-8") for path in (ROOT / "dmkl/cli").glob("*.py")]
    return sorted({line for text in texts for line in re.findall(r"^ {8}(dmkl .*)$", text, flags=re.MULTILINE)})


@pytest.fixture(scope="session")
def made(tmp_path_factory):
    """Make a stand-in, and what belongs to it, once; return its folder."""
    folder = tmp_path_factory.mktemp("stand-ins")

    def make(name):
        own = folder / re.sub(r"\W", "-", name)
        if not own.exists():
            (own / name).parent.mkdir(parents=True)
            STAND_INS[name](own / name)
        return own

    return make


@pytest.fixture
def execute(request, succeed, made, tmp_path, monkeypatch):
    """Run commands one after another in a folder where the files that they read are made before."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])  # --learners adds the folder of a file,
    monkeypatch.delitem(sys.modules, "mine", raising=False)  # which another test may have imported from its own
    monkeypatch.setitem(dask.config.config, "jobqueue", yaml.safe_load(JOBQUEUE.read_text())["jobqueue"])
    store = "kernels.zarr"

    def provide(text, names):
        """Make what the text mentions, and what those files mention that users write."""
        for name in sorted(set(re.split(r"[\s=&,\"']|:(?!//)", text)) & names.keys()):
            if "*" in name or not Path(name).exists():
                make(name)
            if name.endswith(".toml"):
                provide(Path(name).read_text(), STAND_INS)

    def make(name):
        if name in LEARNT:
            call(LEARNT[name].format(set=store))
        elif name.endswith("new.zarr"):
            provide(store, STAND_INS)
            new_rows(name, store)
        elif name == "scheduler.json":
            address = request.getfixturevalue("cluster").scheduler_address
            Path(name).write_text(json.dumps({"type": "Scheduler", "address": address}))
        else:
            shutil.copytree(made(name), tmp_path, dirs_exist_ok=True)

    def call(command):
        nonlocal store
        _, name, *arguments = shlex.split(command.partition(" > ")[0], comments=True)
        written = arguments.pop(OUTPUTS[name]) if name in OUTPUTS and not {"--help", "--add"} & {*arguments} else None
        provide(re.sub(r"--state \S+", "", " ".join(arguments)), {**STAND_INS, **LEARNT, **dict.fromkeys(OF_RUN)})
        if written is not None:
            arguments.insert(OUTPUTS[name], written)
        if written and name in ("import", "build") and not {"--against", "--train-samples"} & {*arguments}:
            store = written
        succeed(name, *(path for argument in arguments for path in sorted(glob.glob(argument)) or [argument]))

    def run(commands, files=()):
        if any("s3://" in command for command in commands):
            request.getfixturevalue("object_store")
            from s3fs import S3FileSystem

            S3FileSystem(use_listings_cache=False).makedirs("bucket", exist_ok=True)
        if any("--kernel-scores" in command for command in commands):
            numbers("set.zarr")
            call("dmkl fit set.zarr model --model mkridge")
        if len(commands) == 1 and commands[0].endswith(".hsq"):
            numbers("kernels.zarr")
            call("dmkl fit kernels.zarr model --model variance-components")
        for name, text in dict(files).items():
            Path(name).write_text(textwrap.dedent(text))
        if "query.h5ad" in commands[0]:
            call("dmkl build cells.zarr cells.h5ad --function linear --labels cells.h5ad:cell_type")
        for command in commands:
            for pattern, replacement in CHANGED.items():
                command = re.sub(pattern, replacement, command)
            call(command)

    return run


@pytest.mark.parametrize(("commands", "files", "check"), list(of_pages()))
def test_commands_of_a_page_run_one_after_another(execute, commands, files, check):
    execute(commands, files)
    if check is not None:
        check()


def test_every_job_whose_truth_is_known_is_in_a_page():
    assert {block.values[2] for block in of_pages()} == {None, *RESULTS.values()}


@pytest.mark.parametrize("command", of_help(), ids=lambda command: command[5:])
def test_examples_of_the_help_run(execute, command):
    execute([command])


def test_every_command_has_examples():
    in_pages = {command.split()[1] for block in of_pages() for command in block.values[0]}
    assert in_pages == {command.split()[1] for command in of_help()} == set(COMMANDS)
