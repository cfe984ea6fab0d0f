"""Heritabilities and predictions from relationship matrices and a phenotype file, in four commands; and a benchmark.

    python pipelines/variance_components.py --output out/variance_components
    python pipelines/variance_components.py --samples 10000 --kernels 5                       # exact traces
    python pipelines/variance_components.py --samples 20000 --kernels 5 --traces probes       # out of core

The individuals, the matrices of four chromosomes and the trait are those of `relationship_matrices.py`. The commands
import the matrices, with individuals whose trait is missing (-9); estimate the variance of each chromosome, its share
(heritability) with standard error, and p-values; predict the individuals without phenotype, with standard deviations
and the contribution of each chromosome; and write a report.

With --samples the script measures the time, peak memory and passes of a fit to simulated matrices of that size.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from measuring import measured
from relationship_matrices import SHARES, simulate

import dmkl


def run_commands(folder: Path, n_families: int) -> None:
    """Write the files, and run the commands."""
    folder.mkdir(parents=True, exist_ok=True)
    simulate(folder, n_families)
    (folder / "matrices.txt").write_text("".join(f"{chromosome}\n" for chromosome in SHARES))
    for step in (
        "import kernels.zarr --mgrm matrices.txt --labels height.pheno --join outer",
        "fit kernels.zarr model --model variance-components",
        "predict model kernels.zarr --out predictions.csv --std --contributions components.csv",
        "report model -o report.html",
    ):
        print(f"$ dmkl {step} --overwrite", flush=True)
        command = [sys.executable, "-m", "dmkl", *step.split(), "--overwrite"]
        subprocess.run(command, cwd=folder, check=True)


def time_fit(folder: Path, m: int, n: int, traces: str, n_probes: int, *, tests: bool) -> None:
    """Measure a fit to n simulated relationship matrices of m individuals; each explains an equal part of 60 %."""
    folder.mkdir(parents=True, exist_ok=True)
    store = folder / f"simulated-{m}-{n}.zarr"
    rng = np.random.default_rng(0)
    trait = np.sqrt(0.4) * rng.standard_normal(m)

    def matrices() -> Iterator[np.ndarray]:
        for _ in range(n):
            W = rng.standard_normal((m, 2000), dtype=np.float32)
            effect = W @ rng.standard_normal(2000)
            trait[:] += np.sqrt(0.6 / n) * effect / effect.std()
            yield W @ W.T / np.float32(2000)

    if not store.exists():
        dmkl.create(store, matrices(), dtype="float32")
        np.savetxt(folder / f"trait-{m}-{n}.txt", trait)
    options = ["--traces", traces, "--n-probes", str(n_probes), "--tests" if tests else "--no-tests"]
    measured([sys.executable, __file__, "--fit", str(store), str(folder / f"trait-{m}-{n}.txt"), *options])


def fit(store: Path, trait: Path, traces: str, n_probes: int, *, tests: bool) -> None:
    """Fit, and print the table with the number of steps and passes."""
    learner = dmkl.VarianceComponents(traces=traces, n_probes=n_probes, tests=tests)
    model = learner.fit(dmkl.open(store), np.loadtxt(trait))
    print(model.components_.drop_dims("term_2").to_dataframe().round(4).to_string())
    print(f"{model.n_iter_} steps, {model.n_passes_:g} passes. {model.status_}")


def main() -> None:
    """Run the commands, or the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--families", type=int, default=150)
    parser.add_argument("--output", type=Path, default=Path("out/variance_components"))
    parser.add_argument("--samples", type=int, help="number of simulated individuals of the benchmark")
    parser.add_argument("--kernels", type=int, default=5)
    parser.add_argument("--traces", choices=("auto", "exact", "probes"), default="auto")
    parser.add_argument("--n-probes", type=int, default=50)
    parser.add_argument("--tests", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--fit", type=Path, nargs=2, metavar=("STORE", "TRAIT"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    settings = options.traces, options.n_probes
    if options.fit is not None:
        fit(*options.fit, *settings, tests=options.tests)
    elif options.samples is not None:
        time_fit(options.output, options.samples, options.kernels, *settings, tests=options.tests)
    else:
        run_commands(options.output, options.families)


if __name__ == "__main__":
    main()
