"""Kills and power cuts at random moments of all commands; the same commands then have to give the same results.

MOMENTS=150 python -m pytest -m slow tests/faults/test_any_moment.py -k kills
MOMENTS=20 python -m pytest -m slow tests/faults/test_any_moment.py -k cuts  # mounts copies of an ext4 image, as root
"""

import os
import random
import subprocess
import time

import pytest
from helpers.faults import PHASES, assert_same, child, result

pytestmark = pytest.mark.slow


@pytest.fixture(scope="session")
def seconds(tmp_path_factory, files):
    """How long the command of a phase takes, measured once."""
    folder, known = tmp_path_factory.mktemp("timed"), {}

    def of(phase):
        if phase not in known:
            process = child(PHASES[phase].command(files, folder / phase.replace(" ", "-")))
            process.stdout.readline()
            began = time.monotonic()
            process.communicate()
            known[phase] = time.monotonic() - began
        return known[phase]

    return of


@pytest.mark.parametrize("number", range(int(os.environ.get("MOMENTS", "1"))))
@pytest.mark.parametrize("kind", ["kills", "cuts"])
def test_what_ends_at_any_moment_goes_on(request, tmp_path, run, files, undisturbed, seconds, kind, number):
    chance, phase = random.Random(number), list(PHASES)[number % len(PHASES)]
    disk = request.getfixturevalue("disk") if kind == "cuts" else None
    folder = (disk.path if disk else tmp_path) / "work"
    folder.mkdir()
    overwrite = ["--overwrite"] * (chance.random() < 0.3)
    command = PHASES[phase].command(files, folder / "out")
    if overwrite:
        assert run(*command)[0] == 0
    os.sync()
    moment = chance.uniform(0.05, 1.0) * seconds(phase)
    process = child([*command, *overwrite])
    process.stdout.readline()
    try:
        process.communicate(timeout=moment)
        pytest.skip("the command was faster")
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
    out = (disk.after_power_cut() if disk else tmp_path) / "work" / "out"
    if overwrite:  # readers see the output that is replaced
        assert_same(result(out), undisturbed(phase))
    status, _, err = run(*PHASES[phase].command(files, out), *overwrite)
    complete = "exists" in err and not overwrite
    assert status == 0 or complete, err
    assert_same(result(out), undisturbed(phase))
    assert complete or [entry.name for entry in out.parent.iterdir()] == ["out"]
