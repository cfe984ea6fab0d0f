"""Labels given as a table or a kernel under another name are refused, and reported in sets that contain them."""

import numpy as np
import pandas as pd
import pytest
from sklearn.preprocessing import KernelCenterer

import dmkl
from dmkl.errors import InputError
from dmkl.health import check

M = 60
RNG = np.random.default_rng(0)
Y = RNG.permutation(np.arange(M) % 2)
NOISE = RNG.normal(size=(M, 4))
INFORMATIVE = Y[:, None] * 4 + RNG.normal(size=(M, 4))


def test_a_column_of_labels_is_refused_where_a_kernel_sees_it(tmp_path):
    table = pd.DataFrame(np.column_stack([NOISE, 3 - Y]), columns=[*"abcd", "e"])
    spec = {"function": "linear", "feature": "X"}
    with pytest.raises(InputError, match=r"kernel 'X-linear' .* of features 'X', column 'e' is equal to the labels"):
        dmkl.build(tmp_path / "set.zarr", {"X": table}, spec, labels=Y)
    assert not list(tmp_path.iterdir())
    assert len(dmkl.build(None, {"X": table}, spec | {"columns": {"rest": list("abcd")}}, labels=Y)) == 1
    assert len(dmkl.build(None, {"X": INFORMATIVE}, spec, labels=Y)) == 1
    with pytest.raises(InputError, match=r"of features 'X', they are equal to the labels"):
        dmkl.build(None, {"X": np.eye(3)[np.arange(M) % 3]}, spec, labels=np.arange(M) % 3)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_kernel_of_labels_is_refused(tmp_path, dtype):
    K = (NOISE @ NOISE.T).astype(dtype)
    of_labels = np.exp(-0.3 * np.subtract.outer(Y, Y) ** 2).astype(dtype)
    dmkl.create(tmp_path / "set.zarr", {"noise": K, "separated": (INFORMATIVE @ INFORMATIVE.T).astype(dtype)}, labels=Y)
    before = dmkl.open(tmp_path / "set.zarr").content_id
    for labels in (Y, np.array(["sick", "well"])[Y], np.column_stack([RNG.permutation(Y), Y])):
        with pytest.raises(InputError, match=r"kernel 'truth' is the labels under another name: .* import without"):
            dmkl.create(tmp_path / "set.zarr", {"truth": of_labels, "noise": K}, labels=labels, tile=16, overwrite=True)
    assert dmkl.open(tmp_path / "set.zarr").content_id == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["set.zarr"]


@pytest.fixture
def written_before(tmp_path, monkeypatch):
    """A set with a kernel of the labels, as older versions wrote it."""
    monkeypatch.setattr("dmkl.store.ingest.label_codes", lambda labels: [], raising=False)
    kernels = {
        "noise": NOISE @ NOISE.T,
        "separated": INFORMATIVE @ INFORMATIVE.T,
        "truth": 0.3 + 2.0 * np.equal.outer(Y, Y),
        "site": np.equal.outer(np.arange(M) // 20, np.arange(M) // 20) * 1.0,
    }
    return dmkl.create(tmp_path / "set.zarr", kernels, labels=Y, tile=16)


def test_check_tells_of_kernels_that_are_the_labels(written_before):
    report = check(written_before)
    flagged = ["labels under another name" in text for text in report.message.values.tolist()]
    assert report.subject.values[flagged].tolist() == ["truth"]
    assert report.severity.values[flagged].tolist() == ["warning"]


@pytest.mark.parametrize(("steps", "probes"), [("center", None), ("cosine,center", 10)])
def test_analyze_tells_of_kernels_that_are_the_labels(written_before, steps, probes):
    K = written_before
    analysis = dmkl.analyze(K, steps=steps.split(","), probes=probes)
    assert analysis.data["is_labels"].values.tolist() == [False, False, True, False]
    assert "the labels under another name, to be left out: truth" in analysis.summary()
    indicators = np.eye(2)[Y] / np.sqrt(np.bincount(Y))
    for j, share in enumerate(analysis.data["class_share"].values):
        k = np.asarray(K)[j]
        k = k / np.sqrt(np.outer(k.diagonal(), k.diagonal())) if "cosine" in steps else k
        k = KernelCenterer().fit_transform(k)
        assert share == pytest.approx(np.trace(indicators.T @ k @ indicators) / np.trace(k), rel=1e-6)
