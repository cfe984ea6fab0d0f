"""`dmkl importance`: what it prints, keeps and refuses."""

from __future__ import annotations

import numpy as np
import pytest

import dmkl

SMALL = ("--p", "2", "--lam", "1e-2", "--cv", 2)


@pytest.mark.slow
def test_importance(json_of, output_of, tmp_path, store):
    out, picture = tmp_path / "added", tmp_path / "added.png"
    command = ("importance", store, out, *SMALL, "--kernel-group", "good=cle*,fair", "--shapley", 2)
    text = output_of(*command, "--plot", picture)
    K, result = dmkl.open(store), dmkl.load(out)
    train = K.split(0).train
    options = {"cv": 2, "kernel_groups": {"good": ["clear", "fair"]}, "shapley": 2}
    expected = dmkl.importance(dmkl.MKFDA(), K[train, train], grid={"p": [2.0], "lam": [0.01]}, **options)
    np.testing.assert_allclose(result.data.score_without, expected.data.score_without)
    np.testing.assert_allclose(result.data.shapley, expected.data.shapley)
    rows = [line.split()[0] for line in text.splitlines() if line.startswith(result.sources)]
    assert rows == list(result.table().source)
    assert picture.read_bytes()[:4] == b"\x89PNG"
    assert not (tmp_path / "added.partial").exists()
    assert "importance of kernels" in output_of("info", out)
    printed = json_of(*command, "--overwrite")
    assert [row["source"] for row in printed["sources"]] == rows
    assert printed["rows"] == "validation"


@pytest.mark.parametrize(
    ("text", "message"), [("good", "takes a name and kernels"), ("good=gene*", "no kernel is called 'gene*'")]
)
def test_groups_that_are_refused(error_of, tmp_path, store, text, message):
    assert message in error_of("importance", store, tmp_path / "added", *SMALL, "--kernel-group", text)
    assert not list(tmp_path.iterdir())
