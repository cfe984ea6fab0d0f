"""Effects of chromosomes on a trait, from relationship matrices of GCTA and a phenotype file, in four commands.

    python pipelines/relationship_matrices.py --output out/relationship_matrices

The individuals are simulated: families of full siblings with random parents. Each chromosome has a relationship matrix
A = WWᵀ/v of v variants, with W standardized by the allele frequencies, in `chrK.grm.bin`, `.grm.N.bin` and `.grm.id`.
The trait in `height.pheno` (FID IID value) depends only on variants of the first two chromosomes, which explain 60 % of
its variance; for some individuals it is missing (-9). Folds are random, so most test individuals have siblings in the
training part: the score measures prediction within families, not of unrelated individuals.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

import numpy as np

HERITABILITY = 0.6
SHARES = {"chr1": 2 / 3, "chr2": 1 / 3, "chr3": 0.0, "chr4": 0.0}
"""Share of the genetic variance of each chromosome."""


def genotypes(n_families: int, n_children: int, n_variants: int, rng: np.random.Generator) -> np.ndarray:
    """Return allele counts of all children, (families · children, variants), with independent variants."""
    frequency = rng.uniform(0.1, 0.5, n_variants)
    parents = rng.random((n_families, 1, 2, 2, n_variants)) < frequency  # two alleles for each of two parents
    inherited = rng.integers(2, size=(n_families, n_children, 2, 1, n_variants))
    alleles = np.take_along_axis(np.broadcast_to(parents, (n_families, n_children, 2, 2, n_variants)), inherited, 3)
    return alleles.sum(axis=(2, 3)).reshape(-1, n_variants)


def write_relationships(path: Path, relationship: np.ndarray, n_variants: int, names: list[tuple[str, str]]) -> None:
    """Write the three files of GCTA: the lower triangle as float32, row by row; variant counts; FID and IID."""
    lower = relationship[np.tril_indices(len(relationship))].astype("<f4")
    lower.tofile(f"{path}.grm.bin")
    np.full(lower.shape, n_variants, "<f4").tofile(f"{path}.grm.N.bin")
    Path(f"{path}.grm.id").write_text("".join(f"{family}\t{individual}\n" for family, individual in names))


def simulate(folder: Path, n_families: int, n_children: int = 4, n_variants: int = 300, seed: int = 0) -> None:
    """Write the relationship matrices and the phenotype file."""
    rng = np.random.default_rng(seed)
    names = [(f"f{i}", f"f{i}c{k}") for i in range(n_families) for k in range(n_children)]
    trait = np.sqrt(1 - HERITABILITY) * rng.normal(size=len(names))
    for chromosome, share in SHARES.items():
        counts = genotypes(n_families, n_children, n_variants, rng)
        counts = counts[:, counts.std(axis=0) > 0]
        frequency = counts.mean(axis=0) / 2
        W = (counts - 2 * frequency) / np.sqrt(2 * frequency * (1 - frequency))
        write_relationships(folder / chromosome, W @ W.T / W.shape[1], W.shape[1], names)
        effect = W @ rng.normal(size=W.shape[1])
        trait += np.sqrt(HERITABILITY * share) * effect / effect.std()
    values = [f"{170 + 8 * value:.1f}" for value in trait]
    for k in rng.choice(len(names), len(names) // 50, replace=False):
        values[k] = "-9"
    lines = [f"{family} {individual} {value}\n" for (family, individual), value in zip(names, values, strict=True)]
    (folder / "height.pheno").write_text("".join(lines))


def main() -> None:
    """Write the files, and run the commands."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--families", type=int, default=150)
    parser.add_argument("--output", type=Path, default=Path("out/relationship_matrices"))
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    simulate(options.output, options.families)
    matrices = " ".join(f"{chromosome}.grm.bin" for chromosome in SHARES)
    for step in (
        f"import kernels.zarr {matrices} --labels height.pheno --join inner",
        "search kernels.zarr found --model mkridge -p 1,4/3,2 --lam 1e-4,1e-3,1e-2,1e-1 --cv KFold(3,shuffle=True)",
        "report found -o report.html",
        "export found kernels.zarr weighted.grm.bin",
    ):
        print(f"$ dmkl {step} --overwrite", flush=True)
        command = [sys.executable, "-m", "dmkl", *step.split(), "--overwrite"]
        subprocess.run(command, cwd=options.output, check=True)


if __name__ == "__main__":
    main()
