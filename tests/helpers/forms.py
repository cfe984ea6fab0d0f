"""Tables and kernels in the forms that other programs write; docs/formats.md says what each use of a form gives."""

from __future__ import annotations

import csv
import gzip
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from helpers.containers import write_hdf5, write_mat, write_zarr

# --- the data that all files hold ------------------------------------------------------------------------------------
N = 12
RNG = np.random.default_rng(3)
WORDS = [f"P{i:02}" for i in range(N)]
NUMBERS = [str(1000017 + 7 * i) for i in range(N)]
DASHED = [f"{i + 1}-{own}" for i, own in enumerate(WORDS)]
"""Names that R changes if they are titles."""
DATA = pd.DataFrame(
    {
        "site": np.where(np.arange(N) % 2, "Tromsø", "Bergen"),
        "dx": np.where(RNG.permutation(N) < 6, "pat", "con"),
        "score": RNG.normal(size=N).round(4),
        "age": (20 + 60 * RNG.random(N)).round(2),
        "part": np.where(RNG.permutation(N) < 8, "train", "test"),
    }
)
DATA["fold"] = np.where(DATA["part"] == "train", 0, 2)
X = RNG.normal(size=(N, 4)).round(4)
GENES = ["g0", "g1", "g2", "g3"]
K = (X @ X.T).round(6)
DISTANCES = (np.diag(K)[:, None] + np.diag(K) - 2 * K).round(6)
ROWS, COLUMNS = RNG.permutation(N), RNG.permutation(N)
"""The order of the samples in the files, and that of the columns of kernels."""
CODES = {"con": 1, "pat": 2, "Bergen": 1, "Tromsø": 2, "train": 0, "test": 2}
"""Codes of words in forms that contain numbers only."""


def symmetric(names, values=K):
    """The kernel of the given samples, in their order."""
    known = next(known for known in (WORDS, NUMBERS, DASHED) if names[0] in known)
    return pd.DataFrame(values, known, known).loc[list(names), list(names)]


# --- writing a form --------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Form:
    """A form for writing a table whose index holds the names of the samples."""

    write: Callable[[Path, pd.DataFrame, str], Path]
    """(folder, table, use) -> the argument of the reader; the table of a kernel is square."""
    names: list[str] = field(default_factory=lambda: WORDS)
    titles: str = "all"  # "all": a table or FILE:NAME; "named": FILE:NAME alone; "none": one column without a title
    coded: bool = False  # whether it contains numbers only
    shuffled: bool = True  # whether its rows are in another order
    title: Callable[[str], str] = str  # the title of a column as the form writes it
    square: np.ndarray | None = None  # the content of a form that contains only matrices of samples
    vector: str = ""  # the vector of names in a container


def text(path, content, encoding="utf-8"):
    data = content.encode(encoding)
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def delimited(name, before="", encoding="utf-8", change=lambda frame: frame, **how):
    """A table as pandas writes it, after `change`."""

    def write(folder, frame, use):
        written = change(frame).to_csv(**{"index_label": "sample", "lineterminator": "\n", **how})
        return text(folder / name, before + written, encoding)

    return write


def names_later(frame):
    """The names in the second column, under an uninformative title."""
    moved = frame.copy()
    moved.insert(1, "code", frame.index)
    return moved


def counted(frame):
    """Names in a column, after an index of consecutive numbers."""
    return frame.rename_axis("name").reset_index()


def numbered_titles(frame):
    same = [str(title) for title in frame.columns]
    return frame if set(same) <= set(NUMBERS) else frame.set_axis([TITLES[title] for title in same], axis=1)


TITLES = {title: str(101 + i) for i, title in enumerate([*DATA.columns, *GENES])}
"""Numeric titles, such as identifiers of genes."""


def made_names(frame):
    """Titles as R's make.names changes them where a name begins with a digit or holds a dash."""
    return frame.set_axis([re.sub(r"^(\d)", r"X\1", re.sub(r"\W", ".", str(title))) for title in frame.columns], axis=1)


def without_dimnames(frame):
    """Rows and columns of a matrix without names, as R writes them."""
    titles = [f"V{k + 1}" for k in range(frame.shape[1])]
    return pd.DataFrame(frame.to_numpy(), [str(i + 1) for i in range(len(frame))], titles)


def emptied(folder, frame, use):
    """Rows within and at the end that a spreadsheet has emptied: delimiters alone."""
    titles, *rows = frame.to_csv(sep=";", decimal=",", index_label="sample", lineterminator="\n").splitlines()
    empty = ";" * len(frame.columns)
    return text(folder / "table.csv", "\n".join([titles, *rows[:4], empty, *rows[4:], empty, empty, ""]))


def individuals(name, titles=("FID", "IID"), header=True, families=None, sep=" ", more=None):
    """Lines of FID, IID and values; `families` gives the FID of a name, by default the name itself."""

    def write(folder, frame, use):
        lines = frame.copy()
        for title, values in (more or {}).items():
            lines.insert(0, title, values)
        lines.insert(0, titles[-1], frame.index)
        if len(titles) == 2:
            lines.insert(0, titles[0], [own if families is None else families(own) for own in frame.index])
        return text(folder / name, lines.to_csv(sep=sep, index=False, header=header, lineterminator="\n"))

    return write


def parquet(folder, frame, use):
    frame.to_parquet(folder / "table.parquet")
    return folder / "table.parquet"


def vectors(folder, frame, use):
    """Arrays without names; features and kernels also have a file of names."""
    inside = folder / "arrays"
    inside.mkdir(exist_ok=True)
    if use not in ("kernels", "features"):
        column = frame.iloc[:, 0].to_numpy()
        np.save(inside / "column.npy", column.astype(str) if column.dtype.kind in "OT" else column)
        return inside / "column.npy"
    np.save(inside / "table.npy", frame.loc[:, frame.index].to_numpy() if use == "kernels" else frame.to_numpy())
    np.save(inside / "samples.npy", np.array(list(frame.index)))
    return inside


def arrays_of(frame, use):
    """A matrix called "table", or a vector for each column."""
    if use == "kernels":
        return {"table": frame.loc[:, frame.index].to_numpy()}
    if use == "features":
        return {"table": frame.to_numpy()}
    return {title: np.array(frame[title].tolist()) for title in frame.columns}


def container(name, title, write):
    """A form of the arrays of a table, and their sample names under this title."""

    def written(folder, frame, use):
        columns = {"gene": np.array(list(frame.columns))} if use in ("features", "new samples") else {}
        write(folder / name, **arrays_of(frame, use), **columns, **{title: np.array(list(frame.index))})
        return folder / name

    return Form(written, titles="named", vector=title)


def companion(folder, frame, use):
    """A matrix or vector without names and the list of individuals beside it, as PLINK and GCTA write them."""
    np.save(folder / "table.npy", next(iter(arrays_of(frame, use).values())))
    write_ids(folder / "table.npy.id", frame.index)
    return folder / "table.npy"


def annotated(folder, frame, use):
    anndata = pytest.importorskip("anndata")

    plain = use not in ("kernels", "features")
    data = anndata.AnnData(
        X=frame.to_numpy() if use == "features" else None,
        obs=frame.astype({title: object for title in frame if frame[title].dtype.kind not in "if"})
        if plain
        else pd.DataFrame(index=list(frame.index)),
        var=pd.DataFrame(index=list(frame.columns)) if use == "features" else None,
        obsp={"connectivities": frame.loc[:, frame.index].to_numpy()} if use == "kernels" else None,
    )
    data.write_h5ad(folder / "table.h5ad")
    return folder / "table.h5ad"


def objects(folder, frame, use):
    """A list of matrices, or words, which NumPy pickles."""
    values = np.empty(2, dtype=object)
    values[:] = [frame.to_numpy(), frame.to_numpy()]
    np.save(folder / "table.npy", values, allow_pickle=True)
    return folder / "table.npy"


def of_pairs(name, line, titles="", diagonal=True, values=K):
    """A line for each pair of samples, by a function of both names and the value; the lines are mixed."""

    def write(folder, frame, use):
        matrix = symmetric(frame.index, values)
        lines = [line(a, b, matrix.loc[a, b]) for i, a in enumerate(matrix) for b in list(matrix)[: i + diagonal]]
        mixed = [lines[at] for at in np.random.default_rng(0).permutation(len(lines))]
        return text(folder / name, titles + "".join(mixed))

    return write


pairs = of_pairs("table.txt", lambda a, b, value: f"{a} {b} {value}\n")
titled_pairs = of_pairs("table.txt", lambda a, b, value: f"{a}\t{b}\t{value}\n", "id1\tid2\tkinship\n")
kin0 = of_pairs(
    "king.kin0",
    lambda a, b, value: f"{a}\t{a}\t{b}\t{b}\t5000\t0.1\t0.02\t{value}\n",
    "#FID1\tIID1\tFID2\tIID2\tNSNP\tHETHET\tIBS0\tKINSHIP\n",
)
genome = of_pairs(  # with a column that is NA throughout
    "a.genome",
    lambda a, b, value: f"  1  {a}  1  {b} UN    NA  1.0000  {value}\n",
    "  FID1  IID1  FID2  IID2 RT    EZ      Z0  PI_HAT\n",
)
blast = of_pairs("hits.tsv", lambda a, b, v: f"{a}\t{b}\t98.2\t300\t5\t0\t1\t300\t1\t300\t1e-20\t{v}\n")
mash = of_pairs("mash.tab", lambda a, b, v: f"{a}\t{b}\t{v}\t0\t991/1000\n", diagonal=False, values=DISTANCES)


def grm_sparse(folder, frame, use):
    """Lines of two individuals, counted from 0, and the value."""
    matrix = symmetric(frame.index).to_numpy()
    write_ids(folder / "table.grm.id", frame.index)
    lines = [f"{i}\t{k}\t{matrix[i, k]}\n" for i in range(N) for k in range(i + 1)]
    return text(folder / "table.grm.sp", "".join(lines))


def phylip(name, triangle=None, values=K, width=N):
    """The number of samples, their names in ten columns, and lines of so many values; or one of both triangles."""

    def write(folder, frame, use):
        matrix, lines = symmetric(frame.index, values), [f"    {N}"]
        ends = {None: [N] * N, "with": range(1, N + 1), "without": range(N)}[triangle]
        for own, row, end in zip(matrix, matrix.to_numpy(), ends, strict=True):
            parts = [" ".join(map(str, row[:end][at : at + width])) for at in range(0, N, width)]
            lines.append(f"{own:<10} " + "\n           ".join(parts))
        return text(folder / name, "".join(f"{line.rstrip()}\n" for line in lines))

    return write


def tassel(folder, frame, use):
    """The number of samples, and lines of a name and its values, separated by tabs."""
    body = symmetric(frame.index).to_csv(sep="\t", header=False, lineterminator="\n")
    return text(folder / "table.txt", f"{N}\n{body}")


def write_ids(path, names):
    return text(path, "".join(f"{own}\t{own}\n" for own in names))


def grm_binary(folder, frame, use):
    matrix = symmetric(frame.index).to_numpy()
    (folder / "table.grm.bin").write_bytes(matrix[np.tril_indices(N)].astype("<f4").tobytes())
    (folder / "table.grm.N.bin").write_bytes(np.full(N * (N + 1) // 2, 1000, "<f4").tobytes())
    write_ids(folder / "table.grm.id", frame.index)
    return folder / "table.grm.bin"


def grm_prefix(folder, frame, use):
    return grm_binary(folder, frame, use).with_name("table")


def grm_list(folder, frame, use):
    return text(folder / "parts.txt", f"{grm_prefix(folder, frame, use)}\n")


def grm_part(folder, frame, use):
    """The second of three parts: the rows of its individuals up to the diagonal."""
    matrix, own = symmetric(frame.index).to_numpy(), range(4, 8)
    values = np.concatenate([matrix[i, : i + 1] for i in own])
    (folder / "table.part_3_2.grm.bin").write_bytes(values.astype("<f4").tobytes())
    write_ids(folder / "table.part_3_2.grm.id", [frame.index[i] for i in own])
    return folder / "table.part_3_2.grm.bin"


def grm_text(folder, frame, use):
    """Lines of two individuals, counted from 1, the number of variants and the value."""
    matrix = symmetric(frame.index).to_numpy()
    lines = [f"{i + 1}\t{k + 1}\t{1000 - i}\t{matrix[i, k]}\n" for i in range(N) for k in range(i + 1)]
    write_ids(folder / "table.grm.id", frame.index)
    return text(folder / "table.grm.gz", "".join(lines))


def rel_text(folder, frame, use):
    """Rows up to the diagonal."""
    matrix = symmetric(frame.index).to_numpy()
    write_ids(folder / "table.rel.id", frame.index)
    return text(folder / "table.rel.gz", "".join("\t".join(map(str, matrix[i, : i + 1])) + "\n" for i in range(N)))


R_QUOTES = {"index_label": "", "quoting": csv.QUOTE_NONNUMERIC}
R_TABLE = {"index_label": False, "sep": " "}  # no title above the names of the rows

FORMS: dict[str, Form] = {
    # Text with titles
    "CSV, names first": Form(delimited("table.csv")),
    "CSV, names in a later column": Form(delimited("table.csv", change=names_later, index=False)),
    "CSV, numeric names titled `eid`": Form(delimited("table.csv", index_label="eid"), names=NUMBERS),
    "CSV, index that counts, then names": Form(delimited("table.csv", change=counted, index_label="")),
    "CSV, titles that are numbers": Form(
        delimited("table.csv", change=numbered_titles, index_label=""), names=NUMBERS, title=TITLES.get
    ),
    "CSV, CRLF": Form(delimited("table.csv", lineterminator="\r\n")),
    "CSV, UTF-8 with BOM": Form(delimited("table.csv", encoding="utf-8-sig")),
    "CSV, gzip": Form(delimited("table.csv.gz")),
    "semicolons, decimal commas": Form(delimited("table.csv", sep=";", decimal=",")),
    "semicolons, emptied rows": Form(emptied),
    "`sep=;` first": Form(delimited("table.csv", "sep=;\r\n", sep=";", decimal=",", lineterminator="\r\n")),
    "UTF-16 with BOM, tabs": Form(delimited("table.txt", encoding="utf-16", sep="\t", lineterminator="\r\n")),
    "tabs, `.tsv`": Form(delimited("table.tsv", sep="\t")),
    "tabs, `.txt`": Form(delimited("table.txt", sep="\t")),
    "bars, `.txt`": Form(delimited("table.txt", sep="|")),
    "bars, decimal commas": Form(delimited("table.txt", sep="|", decimal=",")),
    "commas, no extension": Form(delimited("table")),
    "R `write.csv`": Form(delimited("table.csv", **R_QUOTES)),
    "R `write.csv`, titles by make.names": Form(delimited("table.csv", change=made_names, **R_QUOTES), names=DASHED),
    "R `write.csv` of a matrix without names": Form(
        delimited("table.csv", change=without_dimnames, **R_QUOTES), titles="none", shuffled=False
    ),
    "R `write.table`": Form(delimited("table.txt", quoting=csv.QUOTE_NONNUMERIC, **R_TABLE)),
    "R `write.table`, `quote=FALSE`": Form(delimited("table.txt", quoting=csv.QUOTE_NONE, **R_TABLE)),
    # Text without titles
    "blanks, names first, no titles": Form(delimited("table.txt", sep=" ", header=False), titles="none"),
    "tabs, decimal commas, no titles": Form(delimited("table.txt", sep="\t", decimal=",", header=False), titles="none"),
    "CSV, names first, no titles (GAPIT)": Form(delimited("table.csv", header=False), titles="none"),
    "CSV, numeric names first, no titles": Form(delimited("table.csv", header=False), NUMBERS, "none"),
    # Geneticists' tables
    "`FID IID` and numbers": Form(individuals("table.txt"), coded=True),
    "`FID IID`, FID 0": Form(individuals("table.csv", families=lambda own: "0", sep=","), coded=True),
    "`FID IID`, no titles, numbers (GCTA)": Form(individuals("table.txt", header=False), NUMBERS, "none", coded=True),
    "`FID IID`, no titles, FID of families": Form(
        individuals("table.txt", header=False, families=lambda own: str(int(own) % 5)), NUMBERS, "none", coded=True
    ),
    "`FID IID` and a column of words": Form(
        individuals("table.txt", more={"pop": ["CEU", "YRI"] * (N // 2)}), titles="named"
    ),
    "PLINK 2 `#FID IID`": Form(individuals("table.txt", ("#FID", "IID"), sep="\t")),
    "PLINK 2 `#IID`": Form(individuals("table.txt", ("#IID",), sep="\t")),
    "`.pheno` of other tools": Form(delimited("table.pheno", sep="\t")),
    "`.fam`": Form(
        individuals("table.fam", header=False, more={"sex": 1, "mother": 0, "father": 0}), titles="none", coded=True
    ),
    # Containers
    "`.parquet`": Form(parquet),
    "`.npz` with `samples`": container("table.npz", "samples", np.savez),
    "HDF5 with `subject`": container("table.h5", "subject", write_hdf5),
    "MATLAB with `participant_id`": container("table.mat", "participant_id", write_mat),
    "Zarr with `barcodes`": container("table.zarr", "barcodes", write_zarr),
    "`.npy`, a list `.npy.id` beside it": Form(companion, titles="none"),
    "`.npy`, names beside kernels and features": Form(vectors, titles="none", shuffled=False),
    "`.h5ad`": Form(annotated, titles="named"),
    "`.npy` of Python objects": Form(objects, titles="none"),
    # Transposed
    "features × samples": Form(delimited("table.csv", change=lambda frame: frame.T, index_label="")),
    # Kernels
    "pairs `id id value`": Form(pairs, titles="none", square=K),
    "pairs with titles": Form(titled_pairs, titles="none", square=K),
    "pairs, KING and PLINK 2 `.kin0`": Form(kin0, titles="none", square=K),
    "pairs, PLINK `.genome`": Form(genome, titles="none", square=K),
    "pairs, BLAST outfmt 6": Form(blast, titles="none", square=K),
    "pairs, Mash distances": Form(mash, titles="none", square=DISTANCES),
    "PHYLIP, square": Form(phylip("table.phy"), titles="none", square=K),
    "PHYLIP, square, rows of two lines": Form(phylip("outfile", width=9), titles="none", square=K),
    "PHYLIP, triangle with diagonal": Form(phylip("table.phy", "with"), titles="none", square=K),
    "PHYLIP, triangle without diagonal": Form(
        phylip("table.dist", "without", DISTANCES), titles="none", square=DISTANCES
    ),
    "TASSEL kinship": Form(tassel, titles="none", square=K),
    "GCTA `.grm.bin`": Form(grm_binary),
    "GCTA prefix": Form(grm_prefix),
    "GCTA list of prefixes (`--mgrm`)": Form(grm_list),
    "GCTA `.grm.gz`": Form(grm_text),
    "GCTA `x.part_3_2.grm.bin`": Form(grm_part),
    "fastGWA `.grm.sp`": Form(grm_sparse),
    "PLINK `.rel.gz`": Form(rel_text),
}


# --- what a file of a form holds -------------------------------------------------------------------------------------
def columns_of(form, columns):
    """Columns of the data as a form has them, under its names."""
    frame = DATA[columns].set_axis(form.names)
    return frame.apply(lambda column: column.map(lambda value: CODES.get(value, value))) if form.coded else frame


def table_for(form, use):
    """A kernel, features, or the column that a file for this use holds."""
    if use in ("kernels", "features"):
        return pd.DataFrame(K if use == "kernels" else X, form.names, form.names if use == "kernels" else GENES)
    return columns_of(form, [{"groups": "site", "covariates": "age"}.get(use, "dx")])
