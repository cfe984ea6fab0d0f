"""Faults during a command that computes in threads; `deploy/FAULTS.md` describes the effects on each phase."""

import os
import re
import shutil
import signal
import socket

import pytest
from helpers.faults import (
    DAMAGES,
    PHASES,
    assert_same,
    disk_that_fills,
    disturbed,
    left,
    lock_by,
    result,
    told,
)

FEW = ("build", "search", "predict")
"""Phases that cover all mechanisms; the slow tests run the other phases, which use the same mechanisms."""
EACH = [pytest.param(phase, marks=[] if phase in FEW else pytest.mark.slow) for phase in PHASES]
_QUICK = [("search", "exchanged")]


@pytest.mark.parametrize("phase", EACH)
def test_a_signal_ends_it_in_order(places, disturb, goes_on, phase):
    for name, expected in (("SIGTERM", 143), ("SIGINT", 130)):
        status, errors, notes = disturb(phase, lambda name=name: os.kill(os.getpid(), getattr(signal, name)))
        assert status == expected, errors
        assert [line.partition("ended by ")[2].partition(",")[0] for line in errors] == [name] * (status == 143)
        assert bool(notes) == left(places[1], phase)
    goes_on(phase)


@pytest.mark.parametrize("phase", EACH)
def test_a_disk_that_fills(places, disturb, goes_on, phase):
    with disk_that_fills() as fill:
        status, (error,), _ = disturb(phase, fill)
    assert status == 1
    assert re.search(r"no space left while writing .* MiB free on its disk\).*Free some space|free some space", error)
    left(places[1], phase)
    goes_on(phase)


@pytest.mark.parametrize(
    ("phase", "damage"),
    [
        pytest.param(phase, damage, marks=[] if (phase, damage) in _QUICK else pytest.mark.slow)
        for phase in PHASES
        for damage in DAMAGES
        # The first two read no set, and one pass over a few tiles ends before a fault can occur.
        if phase not in ("import", "build", "predict", "fit machines")
    ],
)
def test_a_set_that_is_damaged_in_the_middle(places, disturb, goes_on, phase, damage):
    own, out = places
    shutil.copytree(own / "set.zarr", own / "whole.zarr")
    status, (error,), _ = disturb(phase, lambda: DAMAGES[damage](own / "set.zarr", own / "new.zarr"))
    assert status == 1
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
    goes_on(phase)


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
def test_what_was_there_before_stays_until_the_new_one_is_whole(places, disturb, goes_on, undisturbed, phase):
    out = places[1]
    goes_on(phase)
    with disk_that_fills() as fill:
        status, errors, _ = disturb(phase, fill, "--overwrite", after=1)
    assert status == 1, errors
    assert_same(result(out), undisturbed(phase))
    assert os.listdir(out.parent) == ["out"] or PHASES[phase].state
