"""Whatever is in a file, its reader reads it or says in a line what is wrong; `make fuzz` tries many more."""

from __future__ import annotations

import pytest
from helpers.fuzzing.corpora import FORMATS
from helpers.fuzzing.trial import Lab

INPUTS = {
    "annotated": 8,
    "HDF5": 50,
    "Zarr": 50,
    "kernel sets": 50,
    "npz": 80,
    "text": 80,
    "splits": 80,
    "labels": 300,
    "prices": 300,
}


@pytest.fixture(params=FORMATS)
def lab(request, tmp_path):
    with Lab(tmp_path, request.param) as lab:
        yield lab


def test_valid_files_are_read(lab):
    for files in lab.valid:
        assert not lab.attempt(files)


def test_mutated_files_are_read_or_refused(lab):
    found = {seed: lab.trial(seed) for seed in range(INPUTS.get(lab.name, 100))}
    assert not {seed: fault for seed, fault in found.items() if fault}
