"""`dmkl importance`: what it prints, keeps and refuses."""

from __future__ import annotations

import json

import numpy as np
import pytest

import dmkl

pytest_plugins = ["helpers.command_line"]

SMALL = ("--p", "2", "--lam", "1e-2,1", "--cluster", "threads", "--cv", 2)


def test_importance(run, tmp_path, store):
    out, picture = tmp_path / "added", tmp_path / "added.png"
    arguments = ("--kernel-group", "good=cle*,fair", "--shapley", 2, "--plot", picture)
    status, text, err = run("importance", store, out, *SMALL, *arguments)
    assert status == 0, err
    K, found = dmkl.open(store), dmkl.load(out)
    train = K.split(0).train
    expected = dmkl.importance(
        dmkl.MKFDA(),
        K[train, train],
        grid={"p": [2.0], "lam": [0.01, 1.0]},
        cv=2,
        kernel_groups={"good": ["clear", "fair"]},
        shapley=2,
    )
    np.testing.assert_allclose(found.data.score_without, expected.data.score_without)
    np.testing.assert_allclose(found.data.shapley, expected.data.shapley)
    rows = [line.split()[0] for line in text.splitlines() if line.startswith(found.sources)]
    assert rows == list(found.table().source)
    assert picture.read_bytes()[:4] == b"\x89PNG"
    assert not (tmp_path / "added.partial").exists()
    assert "importance of kernels" in run("info", out)[1]


def test_as_json(run, tmp_path, store):
    status, text, err = run("importance", store, tmp_path / "added", *SMALL, "--json")
    assert status == 0, err
    told = json.loads(text)
    assert [row["source"] for row in told["sources"]] == list(dmkl.load(tmp_path / "added").table().source)
    assert told["rows"] == "validation"


@pytest.mark.parametrize(
    ("text", "message"), [("good", "takes a name and kernels"), ("good=gene*", "no kernel is called 'gene*'")]
)
def test_groups_that_are_refused(run, tmp_path, store, text, message):
    status, _, err = run("importance", store, tmp_path / "added", *SMALL, "--kernel-group", text)
    assert status == 1
    assert message in err
    assert not list(tmp_path.iterdir())
