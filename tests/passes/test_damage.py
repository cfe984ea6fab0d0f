"""Tiles damaged after their first, checked read are named; the error does not blame the kernels."""

import os

import numpy as np
import pytest
from helpers.damage import tile_file
from helpers.references import psd

import dmkl
from dmkl.errors import CorruptTileError, DegenerateKernelError, IndefiniteKernelError, IndefiniteKernelWarning

M = 24
LABELS = np.arange(M) % 2


def opened(path, kernels):
    """A set of which all tiles were read and checked."""
    K = dmkl.create(path, kernels, names=["a", "b"], tile=8)
    np.asarray(K)
    return K


@pytest.mark.parametrize(
    ("solver", "value"),
    [("direct", -300.0), ("cg", np.nan), ("subspace", -1e9), ("subspace", np.nan), ("machine", np.nan)],
)
def test_a_tile_damaged_after_it_was_read_is_named(tmp_path, solver, value):
    """The diagonal of the last tile of kernel b changes, as by a bad disk, without the file's time."""
    K, file = opened(tmp_path / "set", psd(2, M) + np.eye(M)), tile_file(tmp_path / "set", 1, 2, 2)
    before = file.stat()
    numbers = np.fromfile(file, dtype="<f8", count=64)
    numbers[::9] = value
    file.write_bytes(numbers.tobytes() + file.read_bytes()[-4:])
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    learner = dmkl.MKSVM() if solver == "machine" else dmkl.MKFDA(solver=solver)
    with pytest.raises(CorruptTileError, match=r"tile \(2, 2\) of kernel 'b' .* fails its checksum"):
        learner.fit(K, LABELS)


def test_sound_tiles_leave_the_blame_to_the_kernels(tmp_path):
    with pytest.warns(IndefiniteKernelWarning):
        K = opened(tmp_path / "set", psd(2, M) - 200 * np.eye(M))
    with pytest.raises((IndefiniteKernelError, DegenerateKernelError), match="kernel"):
        dmkl.MKFDA(solver="direct").fit(K, LABELS)
