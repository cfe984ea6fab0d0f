"""A reader reads a mutated file or reports the fault in one line; `make fuzz` tries many more.

There a process that dies, uses 10 CPU seconds for a file, or requests more than a gibibyte fails its test, and another
process replaces it. The folder of the test then still contains the file.
"""

import os
import resource
import signal
from contextlib import nullcontext

import pytest
from helpers.faults import one_gib_more
from helpers.fuzzing.corpora import FORMATS
from helpers.fuzzing.trial import Lab

EACH = -(-int(os.environ.get("FUZZ_INPUTS", "0")) // len(FORMATS))
"""The number of mutated files of each format in `make fuzz`; 0 in `make test`, which tries a few."""
SHARE = 500
FEW = {
    "annotated": 3,
    "10x": 6,
    "compressed": 8,
    "sparse": 8,
    "HDF5": 12,
    "Zarr": 12,
    "MATLAB 5": 15,
    "kernel sets": 20,
    "prices": 100,
}
SECONDS = 10.0
"""CPU time for one file."""


@pytest.mark.parametrize("first", range(0, EACH or 1, SHARE))
@pytest.mark.parametrize("name", FORMATS)
def test_mutated_files_are_read_or_refused(tmp_path, name, first):
    faults = {}
    if EACH:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # Limits of memory and of time end this process, also inside a library.
    with one_gib_more() if EACH else nullcontext(), Lab(tmp_path, name) as lab:
        for files in lab.valid:  # imports and start-up for the first file do not count
            assert not lab.attempt(files)
        for seed in range(first, min(first + SHARE, EACH or FEW.get(name, 25))):
            signal.setitimer(signal.ITIMER_PROF, SECONDS if EACH else 0.0)
            fault = lab.trial(seed)
            signal.setitimer(signal.ITIMER_PROF, 0)
            if fault:
                faults[seed] = fault
    assert not faults
