"""What is known of the folder of a search that broke off."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dmkl.errors import InputError
from dmkl.searching.state import is_empty, read_state, remove_state
from dmkl.solvers.workspace import Workspace


def test_the_passes_of_a_part_are_counted_on_from_those_before(tmp_path):
    Workspace(tmp_path, {}).commit({"statistics": {"n_passes": 1}})
    first = read_state(tmp_path)
    assert (bool(first), first.n_passes, first.has_solutions) == (True, 1, False)
    Workspace(tmp_path / "part-1", {}).commit({"statistics": {"n_passes": 1}, "solver": {"n_passes": 4}})
    both = read_state(tmp_path)
    assert (both.n_passes, both.has_solutions) == (4, True)
    assert both != first
    assert both == read_state(tmp_path)


@pytest.mark.parametrize("text", ["{", "[]", "{}", json.dumps({"format": "another", "state": {}}), "null"])
def test_what_is_no_state_is_left_alone(tmp_path, text):
    file = tmp_path / "state.json"
    file.write_text(text)
    assert not read_state(tmp_path)
    assert not is_empty(tmp_path)
    with pytest.raises(InputError, match="has other files"):
        remove_state(tmp_path)
    assert file.read_text() == text


def test_a_state_is_removed_with_all_its_files(tmp_path):
    folder = tmp_path / "state"
    assert not read_state(folder)
    assert not is_empty(folder)
    remove_state(folder)
    (folder / "deep").mkdir(parents=True)
    assert is_empty(folder)
    remove_state(folder)
    workspace = Workspace(folder, {})
    workspace.commit({"statistics": {"n_passes": 1}})
    (workspace.fold(0) / "basis-0.npy").write_bytes(b"")
    remove_state(folder)
    assert not list(tmp_path.iterdir())


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
    """A search that ends removes its folder, whoever looks at it."""

    def gone(folder, pattern):
        raise FileNotFoundError(folder)

    monkeypatch.setattr(Path, "rglob", gone)
    assert not read_state(tmp_path)
    assert read_state(tmp_path).n_passes == 0
