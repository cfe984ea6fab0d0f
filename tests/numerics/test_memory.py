"""What becomes of memory that arrays leave."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

FAULTS = """
import resource, sys
import numpy as np
from dmkl.numerics.memory import keep_freed

if sys.argv[1] == "kept":
    keep_freed()
for times in (3, 20):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(times):
        arrays = [np.ones(2**18) for _ in range(6)]
        del arrays
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries decide otherwise")
def test_memory_that_is_kept_is_not_asked_for_again():
    """Six arrays of 2 MiB, 512 pages each, twenty times over."""
    # Dask's nannies leave such variables behind, with which the C library learns nothing.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}

    def faults_of(how):
        told = subprocess.run([sys.executable, "-c", FAULTS, how], capture_output=True, check=True, env=environment)
        return int(told.stdout)

    faults = {how: faults_of(how) for how in ("given", "kept")}
    assert faults["kept"] < 512 < faults["given"]
