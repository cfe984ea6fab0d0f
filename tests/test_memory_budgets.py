"""Peak memory of searches under a small budget, above that of the interpreter and the libraries."""

import json
import os
import platform
import subprocess
import sys

import pytest

SEARCH = """
import ctypes, gc, json, re, sys, threading
from pathlib import Path
import dask, numpy as np, scipy.linalg
import dmkl

folder, learner, grid, m, n, budget = json.loads(sys.argv[1])

def kernels(name, m):
    rng = np.random.default_rng(0)
    views = {f"v{j}": rng.normal(size=(m, 6)) for j in range(n)}
    y = views["v0"][:, 0] + views["v1"][:, 1] + 0.5 * rng.normal(size=m) > 0
    return dmkl.build(f"{folder}/{name}", views, {"function": "rbf"}, labels=y.astype(int))

def search(K):
    dmkl.search(eval(learner, {"dmkl": dmkl}), K, grid=grid, cv=3)

def use_blas():  # which keeps work space for each thread
    for dtype in (np.float32, np.float64):
        A = np.random.default_rng(0).normal(size=(1500, 1500)).astype(dtype)
        scipy.linalg.cho_solve(scipy.linalg.cho_factor(A @ A.T + 1500 * np.eye(1500, dtype=dtype), lower=True), A)

def allocate_from(n_bytes):  # arrays that come from the system one by one; smaller ones from heaps, which keep two
    for option, value in ((-3, n_bytes), (-1, 2 * n_bytes)):
        ctypes.CDLL(None).mallopt(option, value)

def status(name):
    return 1024 * int(re.search(rf"{name}:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])

allocate_from(2**16)
thread = threading.Thread(target=use_blas)
thread.start()
use_blas()
thread.join()
search(kernels("small", 600))
K = kernels("large", m)
gc.collect()
ctypes.CDLL(None).malloc_trim(0)
allocate_from(2**25)  # up to which glibc raises both by itself
Path("/proc/self/clear_refs").write_text("5")  # resets the peak
before = status("VmRSS")
with dask.config.set({"dmkl.memory": budget}):
    search(K)
print((status("VmHWM") - before) / budget)
"""


GRID = {"p": [1, 1.5, 2], "lam": [1e-4, 1e-2, 1e-1]}


@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="sets options of glibc's allocator")
@pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="needs Linux, which tells the peak memory")
@pytest.mark.parametrize(
    ("learner", "grid", "m", "n"),
    [
        *(("dmkl.MKFDA(solver='subspace')", GRID, m, n) for m, n in ((2400, 5), (1400, 10), (800, 40))),
        ("dmkl.GSMKL(n_groups=3, max_iter=5)", {"C": [0.1, 1, 10]}, 1000, 6),
    ],
    ids=["subspace-2400-5", "subspace-1400-10", "subspace-800-40", "gsmkl"],
)
def test_a_search_takes_its_budget(tmp_path, learner, grid, m, n):
    asked = json.dumps([str(tmp_path), learner, grid, m, n, 96 * 2**20])
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", SEARCH, asked], check=True, capture_output=True, text=True, env=environment
    )
    assert float(done.stdout.split()[-1]) < 1.2
