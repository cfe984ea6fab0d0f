"""Checks of images and manifests without builds: copied files and run commands exist."""

import re
import tomllib
from itertools import chain
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from dmkl._version import RELEASE
from dmkl.cli.main import COMMANDS, main

ROOT = Path(__file__).parents[1]
DEPLOY = ROOT / "deploy"
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]
KUBERNETES = {part["kind"]: part for part in yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text())}


def containers():
    """The containers of the manifest by name."""
    worker, scheduler = (KUBERNETES["DaskCluster"]["spec"][name]["spec"] for name in ("worker", "scheduler"))
    pods = [worker, scheduler, KUBERNETES["Job"]["spec"]["template"]["spec"]]
    return {pod["containers"][0]["name"]: (pod, pod["containers"][0]) for pod in pods}


def copied():
    """The files that each image copies from the repository."""
    docker = re.findall(r"^COPY (?!--from)(.*) \S+$", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE)
    section = re.search(r"^%files\n((?: +.*\n)+)", (DEPLOY / "dmkl.def").read_text(), re.MULTILINE)
    return {
        "Dockerfile": {name for line in docker for name in line.split()},
        "dmkl.def": {line.split()[0] for line in section[1].splitlines()},
    }


@pytest.mark.parametrize("image", ["Dockerfile", "dmkl.def"])
def test_images_copy_what_a_build_needs_and_ask_for_extras_that_there_are(image):
    names = copied()[image]
    assert all((ROOT / name).exists() for name in names)
    needed = {PROJECT["readme"], *PROJECT["license-files"], "pyproject.toml"}
    assert names == {*needed, *PYPROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]}
    extras = re.search(r"(?:EXTRAS=|/source\[)([a-z0-9,]+)", (DEPLOY / image).read_text())[1].split(",")
    assert set(extras) <= set(PROJECT["optional-dependencies"])


def test_the_recipe_for_conda_has_the_dependencies_and_the_version_of_the_package():
    recipe = yaml.safe_load((DEPLOY / "conda" / "recipe.yaml").read_text())
    other_names = {"dask[array]": "dask-core", "matplotlib": "matplotlib-base"}
    named = [re.match(r"([^>]+)(>=.*)", text).groups() for text in PROJECT["dependencies"]]
    expected = {f"{other_names.get(name, name)} {versions}" for name, versions in named}
    assert set(recipe["requirements"]["run"]) == {*expected, f"python {PROJECT['requires-python']}"}
    assert recipe["package"] == {"name": PROJECT["name"], "version": RELEASE}
    assert recipe["build"]["python"]["entry_points"] == [f"dmkl = {PROJECT['scripts']['dmkl']}"]


def test_the_lock_file_has_hashes_of_all_dependencies_in_versions_that_are_allowed():
    entries = re.split(r"\n(?=\S)", (DEPLOY / "lock.txt").read_text())
    assert all("--hash=sha256:" in entry for entry in entries)
    locked = {entry.partition("==")[0]: re.match(r"\S+==(\S+)", entry)[1] for entry in entries}
    for line in [*PROJECT["dependencies"], *chain.from_iterable(PROJECT["optional-dependencies"].values())]:
        required = Requirement(line)
        assert required.specifier.contains(locked[canonicalize_name(required.name)]), line


@pytest.mark.parametrize("file", ["Dockerfile", "dmkl.def", "README.md"])
def test_commands_that_are_told_exist(file):
    words = re.findall(r"(?: run .*dmkl(?:\.sif)?|^ +dmkl) ([a-z]+)", (DEPLOY / file).read_text(), re.MULTILINE)
    assert words
    assert set(words) <= set(COMMANDS)


def test_the_job_is_a_command_with_options_that_there_are(capsys):
    command, *given = containers()["client"][1]["args"]
    assert main([command, "--help"]) == 0
    shown = capsys.readouterr().out
    assert all(option in shown for option in given if option.startswith("--"))


def test_the_job_finds_the_scheduler_and_the_state_is_where_all_see_it():
    cluster, result = KUBERNETES["DaskCluster"], containers()
    args = result["client"][1]["args"]
    port = cluster["spec"]["scheduler"]["service"]["ports"][0]["port"]
    assert args[args.index("--cluster") + 1] == f"tcp://{cluster['metadata']['name']}-scheduler:{port}"
    claim = KUBERNETES["PersistentVolumeClaim"]
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]
    for name in ("client", "worker"):
        pod, container = result[name]
        assert args[args.index("--state") + 1].startswith(container["volumeMounts"][0]["mountPath"])
        assert pod["volumes"][0]["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
