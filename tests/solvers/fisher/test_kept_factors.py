"""Factors on disk equal those that were saved, and fit into the free space."""

import os
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
from helpers.damage import flip

from dmkl.numerics.cholesky import Cholesky, RoughFactor
from dmkl.solvers.fisher.subspace import preconditioners as factors
from dmkl.solvers.fisher.subspace import tasks
from dmkl.solvers.fisher.subspace.tasks import Strips


def made(m, *, ordered=False, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((m, m + 5)).astype(np.float32)
    matrix = np.asfortranarray(X @ X.T + np.eye(m, dtype=np.float32))
    return RoughFactor(Cholesky.of(matrix), rng.permutation(m) if ordered else None)


@pytest.mark.parametrize(("m", "panel", "ordered"), [(1, 4, True), (7, 3, False), (12, 4, True), (13, 100, True)])
def test_a_factor_comes_back_to_the_last_bit(tmp_path, monkeypatch, m, panel, ordered):
    monkeypatch.setattr(factors, "_PANEL", panel)
    factor, stem = made(m, ordered=ordered), factors.factor_stem(tmp_path, 3, 1e-5)
    assert not factors.is_kept(stem)
    factors.save_factor(stem, factor)
    assert factors.is_kept(stem)
    scratch = np.full((m, m), np.nan, np.float32, order="F")
    again = factors.read_factor(stem, scratch)
    np.testing.assert_array_equal(np.tril(again.factor.lower), np.tril(factor.factor.lower))
    b = np.random.default_rng(1).standard_normal((m, 3))
    np.testing.assert_array_equal(again.solve(b), factor.solve(b))
    assert factors.kept_bytes([tmp_path]) <= factors.factor_bytes(m) + 400 * (m // panel + 2)


def test_a_factor_of_which_only_a_part_was_written_is_not_there(tmp_path, monkeypatch):
    def full(path, array):
        raise OSError(28, "No space left on device")

    stem = factors.factor_stem(tmp_path, 0, 1.0)
    factors.save_factor(stem, made(5))
    os.unlink(f"{stem}-order.npy")
    assert not factors.is_kept(stem)
    monkeypatch.setattr(factors, "save_array", full)
    with pytest.raises(OSError, match="No space"):
        factors.save_factor(stem, made(5))
    assert not factors.is_kept(stem)


@pytest.mark.parametrize("damage", ["flipped", "missing"])
def test_a_damaged_factor_is_made_again(tmp_path, damage):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((30, 40))
    K = np.asfortranarray(X @ X.T, dtype=np.float32)
    total = SimpleNamespace(matrix=lambda dtype: (K.copy(order="F"), None))
    stem, b = factors.factor_stem(tmp_path, 0, 1.0), rng.standard_normal((30, 2))
    asked = tasks.FactorRequest(1.0, (Strips.of(b),), None, np.full(2, -1.0), np.ones(2), stem)
    first, _ = tasks.apply_factor(total, 1, asked)
    (file,) = tmp_path.glob("*-0.npy")
    if damage == "missing":
        file.unlink()
    else:
        flip(file, -100, 8)
    second, _ = tasks.apply_factor(total, 1, asked)
    np.testing.assert_array_equal(first, second)
    third, _ = tasks.apply_factor(None, 1, asked)  # not recomputed, but written again
    np.testing.assert_array_equal(first, third)


def test_those_not_used_for_longest_give_way(tmp_path, monkeypatch):
    """On a simulated disk, on which factors are the only files."""
    disk = 10**12
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=disk - factors.kept_bytes([tmp_path])))
    stems = [factors.factor_stem(tmp_path, 0, 10.0**-k) for k in range(4)]
    for age, stem in enumerate(stems):
        factors.save_factor(stem, made(40))
        for path in tmp_path.glob("*.npy"):
            if str(path).startswith(stem + "-"):
                os.utime(path, (1000 + age, 1000 + age))
    size = factors.kept_bytes([tmp_path]) // 4
    factors.read_factor(stems[0], np.empty((40, 40), np.float32, order="F"))  # it is now the most recently used one
    disk = 5 * size
    factors.make_room([tmp_path], 2 * size)
    assert [factors.is_kept(stem) for stem in stems] == [True, False, True, True]
    disk = 6 * size
    new = factors.factor_stem(tmp_path, 1, 1.0)
    assert factors.choose_kept([tmp_path], {stems[0]: size, new: size}) == {new}
    assert [factors.is_kept(stem) for stem in stems] == [True, False, False, True]
