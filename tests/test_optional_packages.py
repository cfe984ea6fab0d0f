"""The packages of the extras: everything else works without them, and messages have the command that installs one."""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
from helpers.matlab import write_v5, write_v73
from helpers.stand_ins import NAMES, cells, gaussian, genotypes, hdf5, table

from dmkl.errors import InputError
from dmkl.inputs import as_features

PROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]
OF_DEVELOPERS = ("test", "docs", "lint")


def packages(requirements):
    return {re.match(r"[\w-]+", requirement)[0] for requirement in requirements}


def test_tests_have_the_packages_of_all_extras():
    for extra in EXTRAS.keys() - set(OF_DEVELOPERS):
        assert set(EXTRAS[extra]) <= set(EXTRAS["test"]), extra
        assert not packages(EXTRAS[extra]) & packages(PROJECT["dependencies"])


@pytest.mark.parametrize(
    ("name", "write", "module", "package", "extra"),
    [
        ("k.h5", hdf5, "h5py", "h5py", "hdf5"),
        ("k.mat", lambda path: write_v73(path, K=gaussian(1)), "h5py", "h5py", "hdf5"),
        ("x.parquet", table("ab").to_parquet, "pyarrow.parquet", "pyarrow", "parquet"),
        ("x.h5ad", cells, "anndata.io", "anndata", "anndata"),
        ("x.bed", genotypes, "bed_reader", "bed-reader", "plink"),
    ],
)
def test_the_file_the_package_and_the_command_are_named(tmp_path, monkeypatch, name, write, module, package, extra):
    write(tmp_path / name)
    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.delitem(sys.modules, "dmkl.inputs.formats.hdf5", raising=False)  # imported by an earlier test
    message = rf"{name}.* read with {package}, which is not installed or too old; pip install 'dmkl\[{extra}\]'$"
    with pytest.raises(InputError, match=message):
        as_features(tmp_path / name)


HIDING = """
import contextlib, io, json, sys

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in MODULES:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Hidden())
from dmkl.cli.main import main

for line in LINES:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as errors:
        status = main(line.split())
    print(json.dumps([status, " ".join(errors.getvalue().split())]))
"""


@pytest.mark.slow
def test_everything_else_works(tmp_path):
    np.save(tmp_path / "k.npy", gaussian(1))
    write_v5(tmp_path / "v5.mat", K=gaussian(2))
    table(["a", "b"]).to_csv(tmp_path / "x.csv")
    (tmp_path / "y.txt").write_text("\n".join("ab"[i % 2] for i in range(len(NAMES))))
    works = (
        "import k.zarr k.npy v5.mat --labels y.txt",
        "build x.zarr x.csv --function rbf --samples x.csv --labels y.txt",
        "fit x.zarr model",
        "predict model x.zarr --rows 0:10 --out p.csv",
        "search k.zarr result --cv 2 --p 1,2 --lam 0.1",
        "report result -o result.html",
    )
    needs = {  # the extra, and the beginning of the message
        "predict model x.zarr --out p.parquet": ("parquet", "p.parquet is written with pyarrow"),
        "fit x.zarr other --cluster slurm": ("slurm", "batch systems such as slurm need dask-jobqueue"),
        "info s3://bucket/k.zarr": ("s3", "k.zarr/zarr.json needs a package that is not installed: Install s3fs"),
    }
    optional = [packages(EXTRAS[extra]) for extra in EXTRAS.keys() - set(OF_DEVELOPERS)]
    modules = {name.replace("-", "_") for name in set().union(*optional)}
    code = f"MODULES, LINES = {modules!r}, {[*works, *needs]!r}\n{HIDING}"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, capture_output=True, text=True)
    results = dict(zip([*works, *needs], map(json.loads, done.stdout.splitlines()), strict=True))
    for line in works:
        assert results[line][0] == 0, results[line]
    for line, (extra, what) in needs.items():
        status, message = results[line]
        assert status == 1, message
        assert what in message
        assert f"pip install 'dmkl[{extra}]'" in message
        assert any(package in what for package in packages(EXTRAS[extra]))
