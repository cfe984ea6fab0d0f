"""Linear kernels of few features over many samples: no kernel is formed, and a grid follows from sums over the samples.

    python pipelines/thin_kernels.py --samples 100000

Simulated: half of the kernels, of standard normal features, carry means that differ between the classes. The script
fits one model and searches the default grid, and prints seconds, passes, certified fits and the memory of the process.
"""

from __future__ import annotations

import argparse
import sys
import time

import numpy as np
from measuring import measured

import dmkl


def simulate(m: int, n: int, d: int, n_classes: int) -> dmkl.KernelSet:
    """The set of n linear kernels of d features over m samples."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, n_classes, m)
    tables = {}
    for j in range(n):
        table = rng.standard_normal((m, d), dtype=np.float32)
        if j < n // 2:
            table += (0.3 * rng.standard_normal((n_classes, d)))[y].astype(np.float32)
        tables[f"table{j}"] = table
    return dmkl.build(None, tables, {"function": "linear"}, labels=y)


def run(m: int, n: int, d: int, n_classes: int) -> None:
    """Fit and search."""
    K = simulate(m, n, d, n_classes)
    started = time.monotonic()
    model = dmkl.MKFDA(p=1.5, lam=1e-2).fit(K)
    print(f"fit: {time.monotonic() - started:.1f} s, {model.n_passes_:g} passes, gap {model.gap_:.1e}, {model.solver_}")
    started = time.monotonic()
    result = dmkl.search(dmkl.MKFDA(), K, cv=3, baselines="none", refit=False)
    print(result.summary())
    print(f"search: {time.monotonic() - started:.1f} s")


def main() -> None:
    """Measure it in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("samples", 20_000), ("kernels", 6), ("features", 40), ("classes", 3)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--run", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.run:
        run(options.samples, options.kernels, options.features, options.classes)
    else:
        measured([sys.executable, *sys.argv, "--run"])


if __name__ == "__main__":
    main()
