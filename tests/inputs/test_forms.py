"""Tables and kernels in the forms that other programs write, in every use that the table of docs/formats.md lists."""

from __future__ import annotations

import csv
import gzip
import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import dask
import numpy as np
import pandas as pd
import pytest
from helpers.containers import write_hdf5, write_mat, write_zarr
from helpers.reading import kernels_in

import dmkl
from dmkl.cli.samples import read_groups
from dmkl.errors import InputError
from dmkl.inputs import as_features, open_files, read_covariates

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
    uses: dict[str, Refused | str] = field(default_factory=dict)  # what a use gives, unless it is read
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


# --- results of each use of a form -----------------------------------------------------------------------------------
@dataclass(frozen=True)
class Refused:
    """A refused use: the alternative according to the documentation, and a pattern of the message."""

    way_out: str
    pattern: str


READ = "read"
BY_ORDER = "by order, with a note"
"""One column without names: its values are taken in the order of the samples, with a note."""

NO_TITLES = "one column"
"""Read; covariates in several columns without titles are refused."""
KERNEL = Refused("a kernel", r"(?i)kernel|kinship|relationship|matrix|pairs|expected|occurs|no sample|in training")
NO_ORDER = Refused("the vector of names", r"expected one for each|must be unique")
OTHER_COLUMNS = Refused("the columns of training", r"in training|add a line of titles")
GENETIC = Refused("`dmkl import`", r"dmkl import|kernel")
SEVERAL = Refused("names are needed", r"(?i)names? (of|its|the) (the )?samples|does not name|name .*samples")
OBJECTS = Refused("save numbers, never unpickled", r"never unpickled.*(save|np\.)")
NO_FILE = Refused("a kernel", r"no file|kernel|matrix")
PART = Refused("join all parts", r"(?is)\bparts?\b.*(\bcat\b|concatenate|\bjoin|all parts)")
TURNED = Refused("`--transpose`", r"(?i)transpose")
IN_A_ROW = Refused("a row for each sample", r"(?i)transpose|(row|line) for each sample")
DISTANCE = Refused("`dmkl build --function distance`", r"distances.*dmkl build.*--function distance")
WORDS_BESIDE = Refused("columns of words", r"'pop'")
ONLY_KERNELS = dict.fromkeys(("labels", "groups", "splits", "covariates", "order", "new samples"), KERNEL)
ONLY_DISTANCES = {**ONLY_KERNELS, "kernels": DISTANCE}
OF_GENETICISTS = {**ONLY_KERNELS, "features": GENETIC}
NO_MATRIX = dict.fromkeys(("kernels", "features", "new samples"), KERNEL)
ONE_COLUMN = {"covariates": NO_TITLES, "new samples": BY_ORDER}
NO_NAMES = {**dict.fromkeys(("labels", "groups", "splits"), BY_ORDER), "covariates": SEVERAL, "order": NO_ORDER}

NO_DIMNAMES = {**NO_NAMES, "new samples": OTHER_COLUMNS, "features": SEVERAL}
NO_DIMNAMES["kernels"] = Refused("`--order FILE`", r"have no names.*--order")
WITH_WORDS = {"kernels": Refused("columns of words", "is not a number")}
WITH_WORDS |= dict.fromkeys(("features", "new samples"), WORDS_BESIDE)

R_QUOTES = {"index_label": "", "quoting": csv.QUOTE_NONNUMERIC}
R_TABLE = {"index_label": False, "sep": " "}  # no title above the names of the rows

FORMS: dict[str, Form] = {
    # Text with titles
    "CSV, names first": Form(delimited("table.csv")),
    "CSV, names in a later column": Form(delimited("table.csv", change=names_later, index=False), {"order": NO_ORDER}),
    "CSV, numeric names titled `eid`": Form(delimited("table.csv", index_label="eid"), names=NUMBERS),
    "CSV, index that counts, then names": Form(delimited("table.csv", change=counted, index_label="")),
    "CSV, titles that are numbers": Form(
        delimited("table.csv", change=numbered_titles, index_label=""), names=NUMBERS, title=TITLES.get
    ),
    "CSV, CRLF": Form(delimited("table.csv", lineterminator="\r\n")),
    "CSV, UTF-8 with BOM": Form(delimited("table.csv", encoding="utf-8-sig")),
    "CSV, gzip": Form(delimited("table.csv.gz")),
    "semicolons, decimal commas": Form(delimited("table.csv", sep=";", decimal=",")),
    "`sep=;` first": Form(delimited("table.csv", "sep=;\r\n", sep=";", decimal=",", lineterminator="\r\n")),
    "UTF-16 with BOM, tabs": Form(delimited("table.txt", encoding="utf-16", sep="\t", lineterminator="\r\n")),
    "tabs, `.tsv`": Form(delimited("table.tsv", sep="\t")),
    "tabs, `.txt`": Form(delimited("table.txt", sep="\t")),
    "bars, `.txt`": Form(delimited("table.txt", sep="|")),
    "commas, no extension": Form(delimited("table")),
    "R `write.csv`": Form(delimited("table.csv", **R_QUOTES)),
    "R `write.csv`, titles by make.names": Form(delimited("table.csv", change=made_names, **R_QUOTES), names=DASHED),
    "R `write.csv` of a matrix without names": Form(
        delimited("table.csv", change=without_dimnames, **R_QUOTES), NO_DIMNAMES, titles="none", shuffled=False
    ),
    "R `write.table`": Form(delimited("table.txt", quoting=csv.QUOTE_NONNUMERIC, **R_TABLE)),
    "R `write.table`, `quote=FALSE`": Form(delimited("table.txt", quoting=csv.QUOTE_NONE, **R_TABLE)),
    # Text without titles
    "blanks, names first, no titles": Form(delimited("table.txt", sep=" ", header=False), ONE_COLUMN, titles="none"),
    "CSV, names first, no titles (GAPIT)": Form(delimited("table.csv", header=False), ONE_COLUMN, titles="none"),
    "CSV, numeric names first, no titles": Form(
        delimited("table.csv", header=False), {**ONE_COLUMN, "new samples": OTHER_COLUMNS}, NUMBERS, "none"
    ),
    # Geneticists' tables
    "`FID IID` and numbers": Form(individuals("table.txt"), coded=True),
    "`FID IID`, FID 0": Form(individuals("table.csv", families=lambda own: "0", sep=","), coded=True),
    "`FID IID`, no titles, numbers (GCTA)": Form(
        individuals("table.txt", header=False), ONE_COLUMN, NUMBERS, "none", coded=True
    ),
    "`FID IID`, no titles, FID of families": Form(
        individuals("table.txt", header=False, families=lambda own: str(int(own) % 5)),
        {**ONE_COLUMN, "order": NO_ORDER, "new samples": OTHER_COLUMNS},
        NUMBERS,
        "none",
        coded=True,
    ),
    "`FID IID` and a column of words": Form(
        individuals("table.txt", more={"pop": ["CEU", "YRI"] * (N // 2)}), WITH_WORDS, titles="named"
    ),
    "PLINK 2 `#FID IID`": Form(individuals("table.txt", ("#FID", "IID"), sep="\t")),
    "PLINK 2 `#IID`": Form(individuals("table.txt", ("#IID",), sep="\t")),
    "`.pheno` of other tools": Form(delimited("table.pheno", sep="\t"), NO_MATRIX),
    "`.fam`": Form(
        individuals("table.fam", header=False, more={"sex": 1, "mother": 0, "father": 0}),
        {"splits": Refused("0 is missing there", r"(?i)missing|expected"), "covariates": NO_TITLES, **NO_MATRIX},
        titles="none",
        coded=True,
    ),
    # Containers
    "`.parquet`": Form(parquet),
    "`.npz` with `samples`": container("table.npz", "samples", np.savez),
    "HDF5 with `subject`": container("table.h5", "subject", write_hdf5),
    "MATLAB with `participant_id`": container("table.mat", "participant_id", write_mat),
    "Zarr with `barcodes`": container("table.zarr", "barcodes", write_zarr),
    "`.npy`, a list `.npy.id` beside it": Form(companion, {"order": NO_ORDER, "new samples": BY_ORDER}, titles="none"),
    "`.npy`, names beside kernels and features": Form(
        vectors, {**NO_NAMES, "new samples": BY_ORDER}, titles="none", shuffled=False
    ),
    "`.h5ad`": Form(annotated, titles="named"),
    "`.npy` of Python objects": Form(
        objects, dict.fromkeys((*ONLY_KERNELS, "kernels", "features"), OBJECTS), titles="none"
    ),
    # Transposed
    "features × samples": Form(
        delimited("table.csv", change=lambda frame: frame.T, index_label=""),
        {**dict.fromkeys(ONLY_KERNELS, IN_A_ROW), "features": TURNED, "order": NO_ORDER, "new samples": OTHER_COLUMNS},
    ),
    # Kernels
    "pairs `id id value`": Form(pairs, ONLY_KERNELS, titles="none", square=K),
    "pairs with titles": Form(titled_pairs, ONLY_KERNELS, titles="none", square=K),
    "pairs, KING and PLINK 2 `.kin0`": Form(kin0, ONLY_KERNELS, titles="none", square=K),
    "pairs, PLINK `.genome`": Form(genome, ONLY_KERNELS, titles="none", square=K),
    "pairs, BLAST outfmt 6": Form(blast, ONLY_KERNELS, titles="none", square=K),
    "pairs, Mash distances": Form(mash, ONLY_DISTANCES, titles="none", square=DISTANCES),
    "PHYLIP, square": Form(phylip("table.phy"), ONLY_KERNELS, titles="none", square=K),
    "PHYLIP, square, rows of two lines": Form(phylip("outfile", width=9), ONLY_KERNELS, titles="none", square=K),
    "PHYLIP, triangle with diagonal": Form(phylip("table.phy", "with"), ONLY_KERNELS, titles="none", square=K),
    "PHYLIP, triangle without diagonal": Form(
        phylip("table.dist", "without", DISTANCES), ONLY_DISTANCES, titles="none", square=DISTANCES
    ),
    "TASSEL kinship": Form(tassel, ONLY_KERNELS, titles="none", square=K),
    "GCTA `.grm.bin`": Form(grm_binary, OF_GENETICISTS),
    "GCTA prefix": Form(grm_prefix, {**dict.fromkeys(ONLY_KERNELS, NO_FILE), "features": GENETIC}),
    "GCTA list of prefixes (`--mgrm`)": Form(grm_list, OF_GENETICISTS),
    "GCTA `.grm.gz`": Form(grm_text, OF_GENETICISTS),
    "GCTA `x.part_3_2.grm.bin`": Form(grm_part, {**OF_GENETICISTS, "kernels": PART}),
    "fastGWA `.grm.sp`": Form(grm_sparse, OF_GENETICISTS),
    "PLINK `.rel.gz`": Form(rel_text, OF_GENETICISTS),
}


# --- the uses --------------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def beside(tmp_path_factory):
    """Plain files with names, in the order of the data: kernels, features and labels, of words and of numbers."""
    folder = tmp_path_factory.mktemp("beside")
    made = {}
    for names in (WORDS, NUMBERS, DASHED):
        place = folder / names[0]
        place.mkdir()
        symmetric(names).to_csv(place / "first.csv")
        pd.DataFrame({"h0": DATA["age"].to_numpy()}, names).to_csv(place / "block.csv", index_label="sample")
        pd.DataFrame({"dx": DATA["dx"].to_numpy()}, names).to_csv(place / "y.csv", index_label="sample")
        made[names[0]] = place
    return lambda form: made[form.names[0]]


def frame_of(form, columns):
    frame = DATA[columns].set_axis(form.names)
    return frame.apply(lambda column: column.map(lambda value: CODES.get(value, value))) if form.coded else frame


def written(form, folder, frame, use):
    return form.write(folder, frame.iloc[ROWS] if form.shuffled else frame, use)


def tables(form, folder, use, *wanted):
    """(path, values in the order of the data) of each wanted column: alone in its file, and with another column."""
    for column in wanted:
        other = "dx" if column == "site" else "site"
        if form.titles != "named":
            frame = frame_of(form, [column])
            yield written(form, folder, frame, use), frame[column].tolist()
        if form.titles != "none":
            frame = frame_of(form, [other, column])
            path = written(form, folder, frame, use)
            yield Path(f"{path}:{form.title(column)}"), frame[column].tolist()


def check_labels(form, folder, beside):
    for path, expected in tables(form, folder, "labels", "dx", "score"):
        source, known = open_files(beside / "first.csv", labels=path)
        assert np.asarray(known.labels).tolist() == expected
        assert list(source.samples) == form.names
        yield from source.notes


def check_splits(form, folder, beside):
    for path, _ in tables(form, folder, "splits", *([] if form.coded else ["part"]), "fold"):
        source, known = open_files(beside / "first.csv", splits=path)
        assert np.asarray(known.splits).tolist() == [DATA["fold"].tolist()]
        yield from source.notes


CHOSEN = np.array([5, 0, 7, 2, 11])


def check_groups(form, folder, beside):
    for path, expected in tables(form, folder, "groups", "site"):
        groups = read_groups(path, np.array(form.names), CHOSEN)
        assert groups.values.tolist() == [expected[at] for at in CHOSEN]
        assert groups["sample"].values.tolist() == [form.names[at] for at in CHOSEN]


def check_covariates(form, folder, beside):
    for path, expected in tables(form, folder, "covariates", "age"):
        table = read_covariates(path, form.names).loc[form.names]
        assert table.shape == (N, 1)
        assert table.iloc[:, 0].tolist() == expected
        if ":" in str(path):
            assert list(table) == [form.title("age")]
    if form.titles == "all":
        frame = frame_of(form, ["age", "site"])
        table = read_covariates(written(form, folder, frame, "covariates"), form.names).loc[form.names]
        assert list(table) == [form.title("age"), form.title("site")]
        for position, column in enumerate(frame):
            assert table.iloc[:, position].tolist() == frame[column].tolist()


def check_kernels(form, folder, beside):
    frame = pd.DataFrame(K, form.names, form.names)
    frame = frame if not form.shuffled else frame.iloc[:, ROWS if form.titles == "none" else COLUMNS]
    path = written(form, folder, frame, "kernels")
    if not form.shuffled and not path.is_dir():
        (matrix,), source, known = kernels_in(path, labels=beside / "y.csv")
        assert list(known.samples) == form.names
        assert known.labels.tolist() == DATA["dx"].tolist()
        np.testing.assert_array_equal(matrix, K)
        yield from source.notes
        return
    (matrix,), source, _ = kernels_in(path)
    computed = pd.DataFrame(matrix, source.samples, source.samples).loc[form.names, form.names].to_numpy()
    np.testing.assert_array_equal(computed, K.astype(computed.dtype))
    if not path.is_dir():
        matrices, source, _ = kernels_in([beside / "first.csv", path])
        assert list(source.samples) == form.names
        for matrix in matrices:
            np.testing.assert_array_equal(matrix, K.astype(matrix.dtype))


def check_features(form, folder, beside):
    path = written(form, folder, pd.DataFrame(X, form.names, GENES), "features")
    for paths, samples in ((path, form.names), ([beside / "block.csv", path], None)):
        if (samples is None and path.is_dir()) or (samples is not None and not form.shuffled and not path.is_dir()):
            continue  # rows without names take the given names
        features = as_features(paths, samples=samples)
        assert features.samples == form.names
        *_, block = (block for block in features.blocks.values() if not block.by_name)
        values = block.read(slice(0, N))
        if form.square is not None:
            columns = [form.names[at] for at in ROWS] if block.columns is None else list(block.columns)
            computed = pd.DataFrame(values, form.names, columns).loc[:, form.names].to_numpy()
            np.testing.assert_array_equal(computed, form.square)
            continue
        np.testing.assert_array_equal(values, X)
        if form.titles == "all":
            assert list(block.columns) == [form.title(title) for title in GENES]


def check_order(form, folder, beside):
    """The names of the rows of a matrix without names, in their order."""
    at = ROWS if form.shuffled else np.arange(N)
    np.save(folder / "nameless.npy", K[np.ix_(at, at)])
    for path, _ in tables(form, folder, "order", "dx"):
        order = Path(f"{path}".rpartition(":")[0] + f":{form.vector}") if form.vector else path
        source, known = open_files(folder / "nameless.npy", order=order, labels=beside / "y.csv")
        assert list(source.samples) == [form.names[k] for k in at]
        assert known.labels.tolist() == DATA["dx"].iloc[at].tolist()


def check_new_samples(form, folder, beside):
    """Features of new samples against stored ones; columns that have names are in another order."""
    frame = pd.DataFrame(X, form.names, GENES)
    path = written(form, folder, frame if form.titles == "none" else frame.iloc[:, ::-1], "features")
    names = [name for name, block in as_features(path).blocks.items() if not block.by_name]
    titles = [form.title(title) for title in GENES]
    stored = dmkl.build(None, dict.fromkeys(names, frame.set_axis(titles, axis=1)), {"function": "linear"})
    new = dmkl.build_cross(stored, path)
    computed = pd.DataFrame(np.asarray(new)[0], new.samples, new.train_samples).loc[form.names, form.names]
    np.testing.assert_allclose(computed.to_numpy(), X @ X.T, atol=1e-6)


USES = {
    "labels": check_labels,
    "groups": check_groups,
    "splits": check_splits,
    "covariates": check_covariates,
    "kernels": check_kernels,
    "features": check_features,
    "order": check_order,
    "new samples": check_new_samples,
}


def notes_when_used(use, form, folder, beside):
    return list(USES[use](form, folder, beside) or ())


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("name", FORMS)
def test_every_use_of_a_form_is_read_rightly_or_refused(name, use, tmp_path, beside, capsys):
    form = FORMS[name]
    cell = form.uses.get(use, READ)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        if isinstance(cell, Refused):
            with pytest.raises(InputError, match=cell.pattern):
                notes_when_used(use, form, tmp_path, beside(form))
            return
        notes = notes_when_used(use, form, tmp_path, beside(form))
    if cell is BY_ORDER:
        messages = " ".join([*notes, *(str(warning.message) for warning in warned), *capsys.readouterr()])
        assert re.search(r"row i|by position", messages)
    if cell is NO_TITLES:
        path = written(form, tmp_path, frame_of(form, ["age", "score"]), use)
        with pytest.raises(InputError, match=r"(?i)columns|titles"):
            read_covariates(path, form.names)


# --- more of single forms --------------------------------------------------------------------------------------------
NAME_TITLES = (
    "eid ID IID subject subject_id participant_id patient PatientID subjid USUBJID ptid record_id sample.id SampleID "
    "taxa strain accession barcode animal id_1"
).split()


@pytest.mark.parametrize("title", NAME_TITLES)
def test_numeric_names_are_found_under_every_common_title(title, tmp_path, beside):
    """The table is the only one, without known names: the title shows where they are."""
    frame = pd.DataFrame({title: NUMBERS, "score": DATA["score"]}).iloc[ROWS]
    path = tmp_path / "table.csv"
    frame.iloc[:, :: (-1) ** NAME_TITLES.index(title)].to_csv(path, index=False)
    features = as_features(path)
    (block,) = features.blocks.values()
    assert list(block.columns) == ["score"]
    assert features.samples == [NUMBERS[at] for at in ROWS]
    assert block.read(slice(0, N)).ravel().tolist() == DATA["score"].iloc[ROWS].tolist()
    _, known = open_files(beside(Form(delimited("table.csv"), names=NUMBERS)) / "first.csv", labels=path)
    assert known.labels.tolist() == DATA["score"].tolist()


def test_a_pair_has_one_value(tmp_path):
    path = pairs(tmp_path, symmetric(WORDS), "kernels")
    lines = path.read_text().splitlines(keepends=True)
    first, second, value = lines[0].split()
    text(path, "".join([*lines, lines[0]]))  # the same value again
    np.testing.assert_array_equal(np.sort(kernels_in(path)[0], axis=None), np.sort(K, axis=None))
    text(path, "".join([*lines, f"{second} {first} {float(value) + 1}\n"] + [lines[0]] * 2))
    values = {"first": float(value), "max": float(value) + 1, "mean": float(value) + 0.25}
    for rule, expected in values.items():
        with dask.config.set({"dmkl.duplicates": rule}):
            (matrix,), source, _ = kernels_in(path)
        at = [list(source.samples).index(own) for own in (first, second)]
        assert matrix[tuple(at)] == matrix[tuple(at[::-1])] == pytest.approx(expected)
    text(path, "".join([*lines, f"{first} {second} {float(value) + 1}\n"]))
    with pytest.raises(InputError, match=r"lists the pair of rows \d+ and \d+ twice, .*--duplicates first"):
        kernels_in(path)
    text(path, "".join(lines[1:]))  # a pair that is missing is no zero
    with pytest.raises(InputError, match=r"(?i)\bpairs?\b"):
        kernels_in(path)


def test_each_column_of_pairs_is_a_kernel_by_its_title(tmp_path):
    path = kin0(tmp_path, symmetric(WORDS), "kernels")
    (matrix,), *_ = kernels_in(path, variables=["IBS0"])
    assert (matrix == 0.02).all()
    lines = path.read_text().splitlines(keepends=True)
    text(path, "".join(line for line in lines if line.split()[1] != line.split()[3]))
    with pytest.raises(InputError, match=r"none with itself, which a kernel needs; .*0\.5 is the kinship"):
        kernels_in(path)


def test_columns_of_two_samples_are_no_pairs(tmp_path):
    lines = [f"g{k},{100 + k},{k % 7}.5,{k % 5}.25\n" for k in range(30)]
    path = text(tmp_path / "counts.csv", "gene,length,sample1,sample2\n" + "".join(lines))
    (block,) = as_features(path).blocks.values()
    assert block.columns == ("length", "sample1", "sample2")


def test_the_lower_half_beside_zeros_is_the_kernel(tmp_path, notes_of):
    """As PLINK's --make-rel square0 writes it."""
    write_ids(tmp_path / "a.rel.id", WORDS)
    path = text(tmp_path / "a.rel", "".join(" ".join(map(str, row)) + "\n" for row in np.tril(K)))
    assert "kernel 'a' was mirrored" in notes_of("import", tmp_path / "k.zarr", path)
    np.testing.assert_array_equal(np.asarray(dmkl.open(tmp_path / "k.zarr"))[0], K)


def test_shares_of_identity_are_kernels_and_distances(tmp_path):
    """As FastANI lists them, in both orders: percent, and the numbers of fragments."""
    share = 100 * np.exp(-DISTANCES / DISTANCES.max())
    lines = [f"{a}\t{b}\t{share[i, k]:.4f}\t90\t100\n" for i, a in enumerate(WORDS) for k, b in enumerate(WORDS)]
    path = text(tmp_path / "ani.txt", "".join(lines))
    np.testing.assert_allclose(kernels_in(path)[0], [share], atol=1e-4)
    K = dmkl.build(None, path, {"function": "distance"})
    expected = np.exp(-(1 - share / 100) / np.mean(1 - share / 100))
    assert K.samples.tolist() == WORDS
    np.testing.assert_allclose(np.corrcoef(np.asarray(K)[0].ravel(), expected.ravel())[0, 1], 1, atol=1e-3)


@pytest.mark.parametrize("first", ["1", "0"])
def test_a_triangle_may_begin_with_a_whole_number(first, tmp_path):
    values = np.corrcoef(X) if first == "1" else np.sqrt(DISTANCES)
    rows = [" ".join(map(str, values[i, : i + 1].round(6))) for i in range(N)]
    path = text(tmp_path / "triangle.txt", "\n".join([first, *rows[1:]]) + "\n")
    if first == "0":
        (block,) = as_features(path).blocks.values()
        np.testing.assert_allclose(block.read(slice(0, N)), values, atol=1e-6)
        return
    np.testing.assert_allclose(kernels_in(path)[0], [values], atol=1e-6)


# --- the documentation -----------------------------------------------------------------------------------------------
def documented():
    """The table of docs/formats.md."""
    yield f"| form | {' | '.join(USES)} |"
    yield f"| --- |{' --- |' * len(USES)}"
    for name, form in FORMS.items():
        texts = [form.uses.get(use, READ) for use in USES]
        yield f"| {name} | {' | '.join(f'refused: {c.way_out}' if isinstance(c, Refused) else c for c in texts)} |"


def test_the_documentation_says_what_each_use_of_a_form_gives():
    page = (Path(__file__).parents[2] / "docs" / "formats.md").read_text(encoding="utf-8")
    assert "\n".join(documented()) in page
