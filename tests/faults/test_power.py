"""The power fails: what was finished is there, and what was not goes on."""

import itertools
from unittest.mock import Mock

import pytest
from helpers.faults import PHASES, assert_same, child, result
from helpers.power import PowerCut, losing_power

import dmkl
from dmkl.files.writing import lock_path
from dmkl.progress import ConsoleWatch

FEW = ("import", "fit direct", "predict")
"""Phases that cover all ways of writing; the slow tests run the others."""
EACH = [pytest.param(phase, marks=[] if phase in FEW else pytest.mark.slow) for phase in PHASES]


@pytest.mark.parametrize("phase", EACH)
def test_a_finished_output_is_on_the_disk(succeed, places, undisturbed, phase):
    with losing_power(places[1].parent):
        succeed(*PHASES[phase].command(*places))
    assert_same(result(places[1]), undisturbed(phase))


@pytest.mark.parametrize(
    ("phase", "moment"),
    [
        ("build", 7),
        ("search", 9),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in [("import", 3), ("import", 7), ("evaluate", 9)]),
    ],
)
def test_what_was_done_goes_on(run, places, goes_on, monkeypatch, phase, moment):
    """The power fails at an end of a task: at most the pass under way is lost."""
    ends = itertools.chain([None] * (moment - 1), [PowerCut], itertools.repeat(None))
    monkeypatch.setattr(ConsoleWatch, "advance", Mock(side_effect=ends))
    with losing_power(places[1].parent), pytest.raises(PowerCut):
        run(*PHASES[phase].command(*places))
    goes_on(phase)


# --- a disk in a file ------------------------------------------------------------------------------------------------
@pytest.mark.slow
@pytest.mark.parametrize("phase", ["import", "build", "search", "fit direct"])
@pytest.mark.parametrize("after", [7, -1])
def test_the_disk_of_a_killed_command_has_its_work(disk, succeed, files, undisturbed, phase, after):
    (disk.path / "outputs").mkdir()
    command = PHASES[phase].command(files, disk.path / "outputs" / "out")
    child(command, after=after).communicate()
    out = disk.after_power_cut() / "outputs" / "out"
    if after == 7:
        lock_path(out).unlink(missing_ok=True)  # of a process that still lives, for all that this one knows
        assert not out.exists()
        succeed(*PHASES[phase].command(files, out))
    assert_same(result(out), undisturbed(phase))


@pytest.mark.slow
def test_a_replaced_output_is_the_old_or_the_new_one(disk, run, files, undisturbed):
    out = disk.path / "out"
    assert run(*PHASES["fit direct"].command(files, out))[0] == 0
    command = ["fit", str(files / "set.zarr"), str(out), "-p", "2", "--lam", "0.3", "--overwrite"]
    child(command, after=-1).communicate()
    new = dmkl.load(disk.after_power_cut() / "out")
    assert new.lam == 0.3
    assert new.weights_.shape == (4,)
