"""Tiles damaged after their first, checked read are named; the error does not blame the kernels."""

import os
from pathlib import Path

import numpy as np
import pytest
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


def damage(K, value):
    """Change a diagonal value in the last tile of kernel b, as a bad disk does, without changing the file's time."""
    file = Path(K.view.source.location) / "gram_upper" / "c" / "1" / "2" / "2"
    before = file.stat()
    numbers = np.fromfile(file, dtype="<f8", count=64)
    numbers[::9] = value
    file.write_bytes(numbers.tobytes() + file.read_bytes()[-4:])
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.parametrize(
    ("solver", "value"),
    [("direct", -300.0), ("cg", np.nan), ("subspace", -1e9), ("subspace", np.nan), ("machine", np.nan)],
)
def test_a_tile_damaged_after_it_was_read_is_named(tmp_path, solver, value):
    K = opened(tmp_path / "set", psd(2, M) + np.eye(M))
    damage(K, value)
    learner = dmkl.MKSVM() if solver == "machine" else dmkl.MKFDA(solver=solver)
    with pytest.raises(CorruptTileError, match=r"tile \(2, 2\) of kernel 'b' .* fails its checksum"):
        learner.fit(K, LABELS)


def test_sound_tiles_leave_the_blame_to_the_kernels(tmp_path):
    with pytest.warns(IndefiniteKernelWarning):
        K = opened(tmp_path / "set", psd(2, M) - 200 * np.eye(M))
    with pytest.raises((IndefiniteKernelError, DegenerateKernelError), match="kernel"):
        dmkl.MKFDA(solver="direct").fit(K, LABELS)
