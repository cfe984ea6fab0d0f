"""A new file format needs one file and one line in the registry."""

from __future__ import annotations

import numpy as np
import pytest

from dmkl.errors import InputError
from dmkl.inputs import as_features, open_files, read_file
from dmkl.inputs.formats import registry
from dmkl.inputs.formats.file_arrays import FileArray
from dmkl.inputs.formats.registry import FORMATS, Format, format_of


def binary_arrays(path):
    """Three lengths, then the numbers."""

    def values():
        return np.fromfile(path, "<f8")[3:].reshape(shape)

    shape = tuple(int(length) for length in np.fromfile(path, "<f8", count=3) if length)
    return [FileArray(path, "", shape, np.dtype("<f8"), values)]


@pytest.fixture
def with_binary(monkeypatch):
    monkeypatch.setattr(registry, "FORMATS", (*FORMATS, Format((".bin",), binary_arrays)))


def write(path, values):
    np.concatenate([np.resize([*values.shape, 0, 0], 3), values.ravel()]).astype("<f8").tofile(path)


@pytest.mark.usefixtures("with_binary")
def test_a_new_format_is_read_everywhere(tmp_path):
    rng = np.random.default_rng(0)
    K, X, y = rng.random((2, 5, 5)), rng.random((5, 3)), np.arange(5) % 2
    (tmp_path / "kernels").mkdir()
    (tmp_path / "features").mkdir()
    write(tmp_path / "kernels" / "k.bin", K)
    write(tmp_path / "kernels" / "labels.bin", y)
    write(tmp_path / "features" / "x.bin", X)
    source, labels = open_files(tmp_path / "kernels")
    np.testing.assert_array_equal([matrix[0:5, 0:5] for matrix in source.matrices()], K)
    np.testing.assert_array_equal(labels.labels, y)
    np.testing.assert_array_equal(read_file(tmp_path / "kernels" / "labels.bin").values, y)
    features = as_features(tmp_path / "features")
    assert list(features.blocks) == ["x"]
    np.testing.assert_array_equal(features.blocks["x"].read(slice(1, 4)), X[1:4])
    binary = tmp_path / "k.other"
    binary.write_bytes(bytes(range(9)))
    with pytest.raises(InputError, match=r"\.bin or a Zarr folder"):
        open_files(binary)


@pytest.mark.parametrize("suffix", [suffix for known in FORMATS for suffix in known.suffixes])
def test_extensions_in_capitals_are_known_too(tmp_path, suffix):
    path = tmp_path / f"DATA{suffix.upper()}"
    path.touch()
    assert format_of(path) is format_of(tmp_path / f"data{suffix}")
