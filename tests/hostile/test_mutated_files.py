"""Whatever is in a file, its reader reads it or says in a line what is wrong; `make fuzz` tries many more.

There a process that dies, takes 10 s of processor time for a file, or asks for more than a gibibyte fails its test, and
another process takes its place. The folder of the test then still holds the file.
"""

from __future__ import annotations

import os
import resource
import signal

import psutil
import pytest
from helpers.fuzzing.corpora import FORMATS
from helpers.fuzzing.trial import Lab

EACH = -(-int(os.environ.get("FUZZ_INPUTS", "0")) // len(FORMATS))
"""Mutated files of each format in `make fuzz`; 0 in `make test`, which tries a few."""
SHARE = 500
FEW = {"annotated": 3, "sparse": 8, "HDF5": 12, "Zarr": 12, "MATLAB 5": 15, "kernel sets": 20, "prices": 100}
SECONDS = 10.0
GIBIBYTE = 2**30


@pytest.fixture(params=FORMATS)
def lab(request, tmp_path):
    with Lab(tmp_path, request.param) as lab:
        yield lab


@pytest.fixture
def seconds():
    """Processor time for one file; limits of memory and of time end this process, also inside a library."""
    if not EACH:
        yield 0.0
        return
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (psutil.Process().memory_info().vms + GIBIBYTE, before[1]))
    yield SECONDS
    resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.mark.parametrize("first", range(0, EACH or 1, SHARE))
def test_mutated_files_are_read_or_refused(lab, seconds, first):
    for files in lab.valid:  # whatever is imported or started for the first file is no file's doing
        assert not lab.attempt(files)
    faults = {}
    for seed in range(first, min(first + SHARE, EACH or FEW.get(lab.name, 25))):
        signal.setitimer(signal.ITIMER_PROF, seconds)
        fault = lab.trial(seed)
        signal.setitimer(signal.ITIMER_PROF, 0)
        if fault:
            faults[seed] = fault
    assert not faults
