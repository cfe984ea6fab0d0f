"""Diagnosis from brain measures of several sites, with a permutation test and a report, in five commands.

    python pipelines/neuroimaging.py --output out/neuroimaging

The subjects are simulated: patients and controls of six sites, with gray matter, white matter and connectivity (the
correlations of 20 regions), which is missing for some subjects. Sites differ in their scanners and in their shares of
patients; age changes all measures. Gray and white matter differ in patients, connectivity does not. Age and site are
removed from every kernel by a regression on training subjects. No fold splits a site, so the score measures prediction
on new sites; labels are permuted within sites, so that differences between sites do not affect the p-value.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd


def write_subjects(folder: Path, n: int, n_sites: int = 6, seed: int = 0) -> None:
    """Write one table for each modality, and tables of diagnoses, covariates and sites."""
    rng = np.random.default_rng(seed)
    subjects = pd.Index([f"sub-{i:03}" for i in range(n)], name="subject")
    site = np.arange(n) % n_sites
    patient = rng.random(n) < np.linspace(0.35, 0.6, n_sites)[site]
    age = rng.uniform(20, 60, n)
    for name, n_measures, difference in [("gray", 60, 0.5), ("white", 40, 0.35)]:
        values = difference * patient[:, None] * rng.normal(size=n_measures) + rng.normal(size=(n, n_measures))
        values += rng.normal(size=(n_sites, n_measures))[site] + 0.03 * np.outer(age - 40, rng.normal(size=n_measures))
        pd.DataFrame(values, subjects).add_prefix("region").to_csv(folder / f"{name}.csv")
    mixing = rng.normal(size=(n_sites, 20, 20))[site] + rng.normal(size=(n, 20, 20))
    series = mixing @ rng.normal(size=(n, 20, 80))
    edges = np.array([np.corrcoef(regions)[np.triu_indices(20, 1)] for regions in series])
    pd.DataFrame(edges, subjects).add_prefix("edge").drop(subjects[::12]).to_csv(folder / "connectivity.csv")
    pd.DataFrame({"diagnosis": np.where(patient, "patient", "control")}, subjects).to_csv(folder / "diagnosis.csv")
    pd.DataFrame({"age": age, "site": [f"site{k}" for k in site]}, subjects).to_csv(folder / "covariates.csv")
    pd.DataFrame({"site": [f"site{k}" for k in site]}, subjects).to_csv(folder / "sites.csv")


def main() -> None:
    """Write the files, and run the commands."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--subjects", type=int, default=240)
    parser.add_argument("--permutations", type=int, default=199)
    parser.add_argument("--output", type=Path, default=Path("out/neuroimaging"))
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    write_subjects(options.output, options.subjects)
    learning = "-p 1,2 --lam 1e-2,1e-1,1 --steps residualize=covariates.csv,trace --scoring balanced_accuracy"
    for step in (
        "build kernels.zarr gray.csv white.csv connectivity.csv --function linear --labels diagnosis.csv --join outer",
        f"evaluate kernels.zarr estimate {learning} --groups sites.csv --outer 3 --inner 2 --plot scores.png",
        f"importance kernels.zarr added {learning} --groups sites.csv --cv 3",
        f"permute kernels.zarr significance {learning} --groups sites.csv --blocks sites.csv --cv 3 "
        f"--permutations {options.permutations}",
        "report estimate significance added -o report.html",
    ):
        print(f"$ dmkl {step} --overwrite", flush=True)
        command = [sys.executable, "-m", "dmkl", *step.split(), "--overwrite"]
        subprocess.run(command, cwd=options.output, check=True)


if __name__ == "__main__":
    main()
