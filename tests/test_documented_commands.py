"""Every command that pages and help show runs, on small files of the names that it uses; whole jobs find the truth."""

import glob
import json
import re
import shlex
import shutil
import textwrap
from pathlib import Path

import dask
import pytest
import yaml
from helpers.results_of_jobs import RESULTS
from helpers.stand_ins import LEARNT, ROOT, STAND_INS, new_rows, numbers

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
