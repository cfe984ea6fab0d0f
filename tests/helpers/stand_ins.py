"""Small files with the names that commands of the documentation use."""

from __future__ import annotations

import contextlib
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import anndata
import h5py
import numpy as np
import pandas as pd
import scipy.io
import xarray as xr
from sklearn.datasets import dump_svmlight_file

import dmkl
from helpers.annotated import quietly, write
from helpers.containers import write_10x
from helpers.matlab import write_v5

ROOT = Path(__file__).parents[2]
M = 48
NAMES = [f"s{i:02}" for i in range(M)]
NEW = [f"n{i}" for i in range(8)]
# Two scans of each subject, and four subjects of each of six sites, half of them sick.
SICK = np.arange(M) // 2 % 2 == 1
LABELS = pd.Series(np.where(SICK, "sick", "healthy"), NAMES, name="label")
SUBJECTS = pd.Series([f"subject{i // 2}" for i in range(M)], NAMES, name="subject")
SITES = pd.Series([f"site{i // 8}" for i in range(M)], NAMES, name="site")
TRAINING = NAMES[:36]
SPLITS = pd.DataFrame({"first": np.where(np.arange(M) < 36, "train", "test"), "second": "train"}, NAMES)
SPLITS.iloc[:12, 1] = "test"
COLUMNS = {"fou": 6, "zer": 5, "pix": 4}
GENES = [f"gene{k}" for k in range(8)]
VARIANTS = [f"rs{k}" for k in range(12)]


def table(columns, names=NAMES, seed=0):
    """Numbers of which the first column is larger in sick samples."""
    values = np.random.default_rng(seed).normal(size=(len(names), len(columns)))
    values[:, 0] += 1.5 * (np.arange(len(names)) // 2 % 2)
    return pd.DataFrame(values, list(names), list(columns))


def views(names=NAMES):
    """A table for each of `COLUMNS`, by name."""
    return {
        name: table([f"{name}{k}" for k in range(n)], names, seed)
        for seed, (name, n) in enumerate(COLUMNS.items(), start=len(names))
    }


def gaussian(seed, names=NAMES):
    """The matrix of a Gaussian kernel, without names."""
    X = table("abcd", names, seed).to_numpy()
    squares = ((X[:, None] - X[None]) ** 2).sum(axis=2)
    return np.exp(-squares / squares.mean())


# --- one file each ---------------------------------------------------------------------------------------------------
def lines(values) -> Callable[[Path], object]:
    """A text file with a line for each value."""
    return lambda path: path.write_text("".join(f"{value}\n" for value in values))


def csv(frame) -> Callable[[Path], object]:
    """A table with a column of names."""
    return lambda path: frame.to_csv(path, index_label="sample")


def npz(names) -> Callable[[Path], object]:
    """The views of samples, with their names."""
    return lambda path: np.savez(path, samples=names, **{name: of.to_numpy() for name, of in views(names).items()})


def kernels(path, labels=LABELS):
    """A set with features, classes and two splits."""
    dmkl.build(path, views(), {"function": "rbf"}, labels=labels, splits=SPLITS)


def numbers(path):
    """The same with numbers in place of classes."""
    kernels(path, table("y", seed=9)["y"])


def hdf5(path):
    """Two kernels, or those of new samples and 36 training samples."""
    with h5py.File(path, "w") as file:
        values = np.stack([gaussian(1), gaussian(2)])
        file["kernels"] = values[:, : len(NEW), : len(TRAINING)] if path.stem == "new_samples" else values


def cells(path, names=NAMES, genes=GENES):
    """Counts of cells of two types and twelve donors, raw counts, layers, a graph of neighbors."""
    rng = np.random.default_rng(len(names))
    kind = np.arange(len(names)) // 2 % 2
    counts = rng.poisson(2.0 + 4.0 * np.equal.outer(kind, pd.Index(GENES).get_indexer(genes) % 4)).astype(np.float32)
    obs = {"cell_type": np.array(["B", "T"])[kind], "donor": [f"donor {i // 4}" for i in range(len(names))]}
    with quietly():
        data = anndata.AnnData(counts, pd.DataFrame(obs, list(names)), pd.DataFrame(index=list(genes)))
        data.obs["n_counts"] = counts.sum(axis=1)
        data.raw = data.copy()
        data.layers["spliced"] = counts + rng.poisson(1.0, counts.shape)
        data.obsp["connectivities"] = gaussian(2, names)
    write(data, path)


def cells_of_10x(path):
    """Counts of genes by cells, and the lists of both."""
    write_10x(path, np.random.default_rng(6).poisson(3.0, (len(GENES), M)), NAMES, GENES)


def of_matlab(path):
    """Cells of views, (columns, samples), and labels."""
    write_v5(path, X=[view.to_numpy().T for view in views().values()], Y=SICK[:, None] + 1.0)


def python_blocks(page) -> list[str]:
    """The blocks of Python of a page."""
    return re.findall(r"^```python\n(.*?)^```$", (ROOT / page).read_text("utf-8"), re.DOTALL | re.MULTILINE)


def of_block(page) -> Callable[[Path], object]:
    """What the first block of Python of a page writes into its folder."""

    def write(path):
        with contextlib.chdir(path.parent):
            exec(compile(python_blocks(page)[0], page, "exec"), {})

    return write


def own_learner(path):
    sys.modules.pop("mine", None)  # that of another folder, which an earlier test imported
    path.write_text(python_blocks("ARCHITECTURE.md")[1], encoding="utf-8")


def libsvm(path):
    """Labels and sparse features, or with numbers of rows at 0 a precomputed kernel."""
    kernel = path.suffix == ".svm"
    values = np.column_stack([np.arange(1, M + 1), gaussian(3)]) if kernel else table("abcd").to_numpy()
    dump_svmlight_file(values, SICK.astype(int), str(path), zero_based=kernel)


def connectomes(path):
    """Symmetric matrices of four regions."""
    values = np.random.default_rng(7).normal(size=(M, 4, 4))
    np.save(path, values + values.transpose(0, 2, 1))


def netcdf(path):
    """Two kernels with names."""
    dims = ("kernel", "sample", "sample_2")
    coords = {"kernel": ["a", "b"], "sample": NAMES, "sample_2": NAMES}
    kernel = xr.DataArray(np.stack([gaussian(1), gaussian(2)]), coords, dims, name="kernels")
    kernel.to_netcdf(path, engine="scipy")


def relationships(path):
    """GCTA's files of chromosome 1 and 2: the lower triangle in single precision, and families and individuals."""
    for seed in (1, 2):
        W = np.random.default_rng(seed).normal(size=(M, 100))
        file = path.parent / f"chr{seed}.grm.bin"
        file.write_bytes((W @ W.T / 100)[np.tril_indices(M)].astype("<f4").tobytes())
        individuals(file.with_suffix(".id"), [])
    lines(["chr1", "chr2"])(path.parent / "list.txt")


def individuals(path, values, missing=0):
    """A file of geneticists: family, individual, values; −9 for the phenotypes that are missing."""
    rows = [[f"f{i // 2}", f"i{i}", *(column[i] for column in values)] for i in range(M)]
    for row in rows[:missing]:
        row[2:] = [-9] * len(values)
    path.write_text("".join("\t".join(map(str, row)) + "\n" for row in rows))


def phenotypes(path):
    """Heights, six of them unknown."""
    W = np.random.default_rng(1).normal(size=(M, 100))
    height = 170 + W @ np.random.default_rng(3).normal(size=100) + np.random.default_rng(4).normal(size=M)
    individuals(path, [height.round(1)], missing=6)


def heights_and_weights(path):
    """Two traits with titles, each of which is missing for some individuals."""
    rng = np.random.default_rng(5)
    traits = rng.normal(size=(M, 2)) @ [[9.0, 6.0], [0.0, 8.0]] + [170.0, 70.0]
    traits[:4, 0] = traits[-5:, 1] = np.nan
    frame = pd.DataFrame(traits.round(1), columns=["height", "weight"])
    frame.insert(0, "FID", [f"f{i // 2}" for i in range(M)])
    frame.insert(1, "IID", [f"i{i}" for i in range(M)])
    frame.to_csv(path, sep="\t", index=False, na_rep="NA")


def genotypes(path):
    """PLINK's three files: a byte holds four individuals, two bits each, the first lowest."""
    n = len(NEW) if path.stem == "new" else M
    codes = np.random.default_rng(n).choice(np.array([0b00, 0b10, 0b11], np.uint8), size=(n, len(VARIANTS)))
    packed = sum(codes[k::4] << (2 * k) for k in range(4)).astype(np.uint8)
    path.with_suffix(".bed").write_bytes(bytes([0x6C, 0x1B, 0x01]) + packed.T.tobytes())
    prefix = "n" if n < M else "s"
    rows = [f"f{i} {prefix}{i:02} 0 0 1 {1 + i // 2 % 2}" for i in range(n)]
    lines(rows)(path.with_suffix(".fam"))
    lines(f"{1 + k // 6}\t{name}\t0\t{k}\tA\tG" for k, name in enumerate(VARIANTS))(path.with_suffix(".bim"))


def gene_sets(path):
    """Two sets in MSigDB's format."""
    lines(f"{name}\tabout\t" + "\t".join(GENES[first::2]) for first, name in enumerate(["CYCLE", "STRESS"]))(path)


def checkpoint(path):
    """The folder of a search that is not complete."""
    kernels(path.parent / "kernels.zarr")
    grid = {"p": [1.0, 2.0], "lam": [0.1]}
    dmkl.search(dmkl.MKFDA(), dmkl.open(path.parent / "kernels.zarr"), grid=grid, cv=2, state=path)


specs = lines(['[[kernel]]\nfunction = "rbf"\nbandwidth = [0.3, 1]\n', '[[kernel]]\nfunction = "linear"'])
TRIALS = table("y", [f"record{k}" for k in range(2 * M)]).rename(columns={"y": "yield"}).assign(line=NAMES * 2)
AGES = pd.DataFrame({"age": np.random.default_rng(5).uniform(20, 60, M)}, NAMES)

RISK = views()["fou"].iloc[:, 0]
CLINICAL = pd.DataFrame({"time": 1.0 + np.exp(-RISK), "event": (np.arange(M) % 3 > 0).astype(int)})
CLINICAL = CLINICAL.assign(years=1.0 + np.arange(M) % 4, pressure=RISK + np.sin(np.arange(M)))
CLINICAL["stage"] = RISK.clip(-1, 2).round().astype(int)
CLINICAL["center"] = np.where(np.arange(M) % 3, "north", "south")
CLINICAL["visits"] = np.round(CLINICAL["years"] * np.exp(RISK / 2)).astype(int)

STAND_INS: dict[str, Callable[[Path], object]] = {
    **dict.fromkeys(["kernels.zarr", "set.zarr", "SET"], kernels),
    **dict.fromkeys(
        ["first.zarr", "second.zarr"], lambda path: dmkl.create(path, {path.stem: gaussian(1)}, samples=NAMES)
    ),
    **dict.fromkeys(["features.npz", "tables.npz", "views.npz"], npz(NAMES)),
    **dict.fromkeys(["new.npz", "new_views.npz"], npz(NEW)),
    **dict.fromkeys(["specs.toml", "kernels.toml"], specs),
    **dict.fromkeys(["y.txt", "classes.txt"], lines(LABELS)),
    **dict.fromkeys(["y.csv", "labels.csv", "diagnosis.csv"], csv(LABELS)),
    **{
        f"{name}.npy": lambda path, seed=seed: np.save(path, gaussian(seed))
        for seed, name in enumerate("rbf chi2 whole upper lower noise a more".split())
    },
    **dict.fromkeys(["b.h5", "new_samples.h5"], hdf5),
    "kernels.mat": lambda path: scipy.io.savemat(path, {"K": np.stack([gaussian(1), gaussian(2)], axis=2)}),
    "k.csv": csv(pd.DataFrame(gaussian(1), NAMES, NAMES)),
    "k_new.csv": csv(pd.DataFrame(gaussian(1)[: len(NEW)], NEW, NAMES)),
    "views.mat": of_matlab,
    **dict.fromkeys(["runs.txt", "train_spaces.npz", "train_voxels.npy"], of_block("docs/encoding.md")),
    **dict.fromkeys(["test_spaces.npz", "test_voxels.npy"], of_block("docs/encoding.md")),
    "mine.py": own_learner,
    "rows.txt": lines(NAMES),
    "new.txt": lines(NEW),
    "new.csv": csv(LABELS[: len(NEW)].set_axis(NEW)),
    "train.txt": lines(TRAINING),
    "subjects.txt": lines(SUBJECTS),
    "sites.txt": lines(SITES),
    "subjects.csv": csv(SUBJECTS),
    "sites.csv": csv(SITES),
    "covariates.csv": csv(AGES),
    "clinical.csv": csv(CLINICAL),
    "new_clinical.csv": csv(CLINICAL.iloc[: len(NEW)].set_axis(NEW)),
    "trials.csv": csv(TRIALS),
    "first.txt": lines(TRIALS.index[:60]),
    "folds.csv": csv(SPLITS),
    "gray.csv": csv(table(["g1", "g2", "g3"])),
    "white.csv": csv(table(["w1", "w2"], seed=1).iloc[6:]),
    "expression.csv": csv(table(GENES)),
    "images.csv": csv(table(["i1", "i2", "i3"], seed=2)),
    "new/expression.csv": csv(table(GENES, NEW)),
    "new/images.csv": csv(table(["i1", "i2", "i3"], NEW)),
    "methylation.csv": csv(table(["cg1", "cg2", "cg3"], seed=1)),
    "prices.csv": lines(["kernel,price", *(f"{name}-rbf,2" for name in COLUMNS)]),
    **dict.fromkeys(["cells.h5ad", "data.h5ad"], cells),
    "query.h5ad": lambda path: cells(path, NEW, [*GENES[::-1], "another gene"]),
    **dict.fromkeys(["sets.gmt", "hallmark.gmt", "pathways.gmt"], gene_sets),
    **dict.fromkeys(["chr*.grm.bin", "chr1.grm.bin", "chr2.grm.bin", "list.txt"], relationships),
    **dict.fromkeys(["height.pheno", "height.phen", "pheno.txt"], phenotypes),
    "traits.txt": heights_and_weights,
    "sex.covar": lambda path: individuals(path, [np.arange(M) % 2]),
    "age.qcovar": lambda path: individuals(path, [AGES["age"].round(1).to_numpy()]),
    **{f"{name}{end}": genotypes for name in ("study", "variants", "new") for end in (".bed", ".bim", ".fam")},
    "filtered_feature_bc_matrix": cells_of_10x,
    **dict.fromkeys(["a9a", "kernel.svm"], libsvm),
    "connectomes.npy": connectomes,
    "kernels.nc": netcdf,
    "job.toml": lambda path: shutil.copy(ROOT / "docs/job.toml", path),
    "result.partial": checkpoint,
}
"""What makes a file or folder, and those that belong to it, at a path of this name."""

LEARNT = {
    "model": "dmkl fit {set} model",
    "model.zarr": "dmkl fit {set} model.zarr",
    "result": "dmkl search {set} result -p 1,2 --lam 1e-2,0.1 --cv 3",
    "estimate": "dmkl evaluate {set} estimate -p 1,2 --lam 1e-2,0.1 --outer 3 --inner 2",
    "significance": "dmkl permute {set} significance -p 1 --lam 0.1 --cv 3 --permutations 19",
    "trust": "dmkl stability {set} trust -p 1 --lam 0.1 --resamples 10",
    "found": "dmkl search {set} found -p 1,2 --lam 1e-2,0.1 --cv 3",
    "added": "dmkl importance {set} added -p 1 --lam 0.1 --cv 3",
    "result.job.toml": "dmkl run job.toml --cluster threads",
}
"""The command that makes what a reader of the examples has learnt before, from the set at hand."""


def new_rows(path, store):
    """Kernels between new samples and those of a set, as they were of its first samples."""
    K = dmkl.open(store)
    values = np.asarray(K[: len(NEW), :])
    own = np.diagonal(values, axis1=1, axis2=2)
    dmkl.create(path, values, names=K.names, samples=NEW, train_samples=K.samples, symmetric=False, diagonal=own)
