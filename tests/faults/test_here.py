"""Faults during a command that computes in threads; `deploy/FAULTS.md` describes the effects on each phase."""

import os
import re
import shutil
import socket

import pytest
from helpers.faults import (
    DAMAGES,
    PHASES,
    READING,
    assert_goes_on,
    assert_same,
    by_signal,
    disk_that_fills,
    disturbed,
    left,
    lock_by,
    result,
    tasks_before,
    told,
)

FEW = ("build", "search", "predict")
"""Phases that cover all mechanisms; the slow tests run the other phases, which use the same mechanisms."""
EACH = [pytest.param(phase, marks=[] if phase in FEW else pytest.mark.slow) for phase in PHASES]
_QUICK = [("search", "exchanged")]


@pytest.mark.parametrize("phase", EACH)
def test_a_signal_ends_it_in_order(run, places, undisturbed, phase):
    own, out = places
    for name, status in (("SIGTERM", 143), ("SIGINT", 130)):
        with disturbed(lambda name=name: by_signal(name), tasks_before(phase)) as acted:
            ended, _, err = run(*PHASES[phase].command(own, out))
        assert acted
        assert ended == status, err
        errors, notes = told(err)
        assert [line.partition("ended by ")[2].partition(",")[0] for line in errors] == [name] * (status == 143)
        assert bool(notes) == left(out, phase)
    assert_goes_on(run, phase, own, out, undisturbed)


@pytest.mark.parametrize("phase", EACH)
def test_a_disk_that_fills(run, places, undisturbed, phase):
    own, out = places
    with disk_that_fills() as fill, disturbed(fill, tasks_before(phase)) as acted:
        status, _, err = run(*PHASES[phase].command(own, out))
    assert acted
    assert status == 1
    ((error,), _) = told(err)
    assert re.search(r"no space left while writing .* MiB free on its disk\).*Free some space|free some space", error)
    left(out, phase)
    assert_goes_on(run, phase, own, out, undisturbed)


@pytest.mark.parametrize(
    ("phase", "damage"),
    [
        pytest.param(phase, damage, marks=[] if (phase, damage) in _QUICK else pytest.mark.slow)
        for phase in READING
        for damage in DAMAGES
        # One pass over a few tiles ends before a fault can occur.
        if phase not in ("predict", "fit machines")
    ],
)
def test_a_set_that_is_damaged_in_the_middle(run, places, undisturbed, phase, damage):
    own, out = places
    shutil.copytree(own / "set.zarr", own / "whole.zarr")
    with disturbed(lambda: DAMAGES[damage](own / "set.zarr", own / "new.zarr")) as acted:
        status, _, err = run(*PHASES[phase].command(own, out))
    assert acted
    assert status == 1
    ((error,), _) = told(err)
    assert str(own / "set.zarr") in error
    assert {
        "deleted": "is gone from",
        "cut": "bytes, expected",
        "flipped": "fails its checksum",
        "missing": "is missing",
        "exchanged": "holds another set now",
    }[damage] in error
    left(out, phase)
    shutil.rmtree(own / "set.zarr", ignore_errors=True)
    shutil.copytree(own / "whole.zarr", own / "set.zarr")
    assert_goes_on(run, phase, own, out, undisturbed)


@pytest.mark.parametrize("phase", EACH)
def test_an_output_that_another_process_writes(run, places, phase):
    own, out = places
    lock_by(out)
    status, _, err = run(*PHASES[phase].command(own, out))
    assert status == 1
    ((error,), notes) = told(err)
    assert f"{out} is being written by process {os.getppid()} on {socket.gethostname()} since 2026" in error
    assert not notes
    assert [entry.name for entry in out.parent.iterdir()] == ["out.lock"]


@pytest.mark.parametrize("phase", PHASES)
def test_an_output_that_cannot_be_written_is_found_first(run, places, phase):
    own, out = places
    out.parent.rmdir()
    out.parent.write_text("")
    with disturbed(lambda: pytest.fail("work was begun"), after=1):
        status, _, err = run(*PHASES[phase].command(own, out))
    assert status == 1
    ((error,), notes) = told(err)
    assert f"{out} cannot be written" in error
    assert "choose another path" in error
    assert not notes


@pytest.mark.slow
@pytest.mark.parametrize("phase", ["fit direct", "predict", "refit", "analyze"])
def test_what_was_there_before_stays_until_the_new_one_is_whole(run, places, files, undisturbed, phase):
    own, out = places
    command = PHASES[phase].command(own, out)
    assert run(*command)[0] == 0
    with disk_that_fills() as fill, disturbed(fill, after=1):
        status, _, err = run(*command, "--overwrite")
    assert status == 1, err
    assert_same(result(out), undisturbed(phase))
    assert os.listdir(out.parent) == ["out"] or PHASES[phase].state
