"""What ARCHITECTURE.md says how to add takes as little: a format of 20 lines, and a request of one class."""

from dataclasses import dataclass

import numpy as np
from helpers.references import in_memory, psd

import dmkl
from dmkl.inputs.formats import registry
from dmkl.solvers import driver
from dmkl.solvers.interface import EachProduct, Request, ask

FORMAT = '''
"""Kernels in JSON: a mapping from names to lists of rows."""

import json
from pathlib import Path

import numpy as np

from dmkl.errors import damaged_as
from dmkl.inputs.formats.file_arrays import FileArray


def json_arrays(path: Path) -> list[FileArray]:
    """Return the matrices of a file."""
    with damaged_as(f"{path} is no mapping of matrices", ValueError, AttributeError):
        matrices = {name: np.array(rows, dtype=float) for name, rows in json.loads(path.read_text()).items()}
    return [
        FileArray(path, name, matrix.shape, matrix.dtype, lambda matrix=matrix: matrix)
        for name, matrix in matrices.items()
    ]
'''
"""A file of `inputs/formats/`."""


def test_a_format_is_a_file_and_a_line(run, error_of, tmp_path, monkeypatch):
    assert sum(bool(line.strip()) for line in FORMAT.splitlines()) <= 20
    names = {}
    exec(FORMAT, names)
    line = registry.Format((".json",), names["json_arrays"], holds=("kernels", "features"))
    monkeypatch.setattr(registry, "FORMATS", (*registry.FORMATS, line))
    kernels = psd(2, 6)
    (tmp_path / "k.json").write_text(str(dict(zip("ab", kernels.tolist(), strict=True))).replace("'", '"'))
    (tmp_path / "wrong.json").write_text("[1]")
    assert run("import", tmp_path / "set.zarr", tmp_path / "k.json")[0] == 0
    K = dmkl.open(tmp_path / "set.zarr")
    np.testing.assert_allclose(K[:, :], kernels, rtol=1e-6)
    assert list(K.names) == ["a", "b"]
    assert "wrong.json is no mapping of matrices" in error_of("import", tmp_path / "no", tmp_path / "wrong.json")
    assert run("build", tmp_path / "built.zarr", tmp_path / "k.json", "--function", "linear")[0] == 0


@dataclass(frozen=True, eq=False)
class Traces(Request):
    """Traces of all kernels, answered by (n,)."""

    n_samples: int

    def on_kernels(self, kernels, n_kernels):
        return self, lambda traces: traces[kernels]


def answer(requests):
    lenses, wanted = zip(*requests, strict=True)
    products = [ask(EachProduct(np.eye(request.n_samples))) for request in wanted]
    whole, passes = driver.drive(list(zip(lenses, products, strict=True)))
    return [np.trace(product, axis1=1, axis2=2) for product in whole], passes


def test_a_request_is_a_class_and_a_line(monkeypatch):
    monkeypatch.setattr(driver, "ANSWERS", [(Traces, "traces of the page", answer), *driver.ANSWERS])

    kernels = psd(3, 12)
    (traces,), passes = driver.drive([(in_memory(kernels, 5).lens(), ask(Traces(12)))])
    np.testing.assert_allclose(traces, np.trace(kernels, axis1=1, axis2=2))
    assert passes == 1.0
    some, restricted = Traces(12).on_kernels(np.array([2, 0]), 3)
    assert isinstance(some, Traces)
    np.testing.assert_array_equal(restricted(traces), traces[[2, 0]])
