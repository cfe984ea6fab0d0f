"""The state folder of an interrupted search."""

from __future__ import annotations

from pathlib import Path

import pytest

from dmkl.errors import InputError
from dmkl.solvers.workspace import Workspace, read_state, remove_state

pytestmark = pytest.mark.usefixtures("rounds")


def test_a_refusal_names_the_parameters_that_changed(tmp_path):
    before = {"the grid": '{"p": ["1.0"], "lam": ["0.1", "1.0"]}', "the labels": "a" * 16, "the estimator": "MKFDA"}
    now = {"the grid": '{"p": ["1.0"], "lam": ["0.1"], "mu": ["2"]}', "the labels": "b" * 16, "the estimator": "MKSVM"}
    Workspace(tmp_path / "state", before).commit({})
    with pytest.raises(InputError) as caught:
        Workspace(tmp_path / "state", now)
    text = str(caught.value)
    assert "lam was 0.1, 1.0 and is 0.1 now; mu was not there and is 2 now" in text
    assert "the labels had other content" in text
    assert "the estimator was MKFDA and is MKSVM now" in text
    assert "a" * 16 not in text
    assert "p was" not in text


def test_a_state_that_goes_while_it_is_read_counts_as_none(tmp_path, monkeypatch):
    """A search that ends removes its folder, even during a read."""

    def gone(folder, pattern):
        raise FileNotFoundError(folder)

    remove_state(tmp_path / "nothing")
    monkeypatch.setattr(Path, "rglob", gone)
    assert not read_state(tmp_path)
    assert read_state(tmp_path).n_passes == 0
