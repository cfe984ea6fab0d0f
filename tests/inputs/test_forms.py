"""Tables and kernels in the forms that other programs write, in every use that the table of docs/formats.md lists."""

import re
import warnings
from itertools import combinations, permutations
from pathlib import Path

import dask
import numpy as np
import pandas as pd
import pytest
from helpers.forms import (
    COLUMNS,
    DASHED,
    DATA,
    DISTANCES,
    FORMS,
    GENES,
    NUMBERS,
    ROWS,
    WORDS,
    Form,
    K,
    N,
    X,
    columns_of,
    delimited,
    kin0,
    pairs,
    symmetric,
    table_for,
    text,
    write_ids,
)
from helpers.reading import kernels_in

import dmkl
from dmkl.cli.samples import read_groups
from dmkl.errors import InputError
from dmkl.inputs import as_features, open_files, read_covariates

# --- what each use of a form gives -----------------------------------------------------------------------------------
PAGE = (Path(__file__).parents[2] / "docs" / "formats.md").read_text(encoding="utf-8")
(_, *TITLES), _, *LINES = [
    [cell.strip() for cell in line.strip("|").split("|")] for line in PAGE.splitlines() if line.startswith("|")
]
GIVEN = {name: dict(zip(TITLES, cells, strict=True)) for name, *cells in LINES}
"""What each use of a form gives, by the documentation: it is read, read with a note, or refused with a way out."""

BY_ORDER = "by order, with a note"
"""One column without names: its values are taken in the order of the samples, with a note."""
NO_TITLES = "one column"
"""Read; covariates in several columns without titles are refused."""

REFUSED = {
    "a kernel": r"(?i)kernel|kinship|relationship|matrix|pairs|expected|occurs|no sample|in training",
    "no file": r"no file|kernel|matrix",
    "the vector of names": r"expected one for each|must be unique",
    "the columns of training": r"in training|add a line of titles",
    "`dmkl import`": r"dmkl import|kernel",
    "names are needed": r"(?i)names? (of|its|the) (the )?samples|does not name|name .*samples",
    "save numbers, never unpickled": r"never unpickled.*(save|np\.)",
    "join all parts": r"(?is)\bparts?\b.*(\bcat\b|concatenate|\bjoin|all parts)",
    "`--transpose`": r"(?i)transpose",
    "a row for each sample": r"(?i)transpose|(row|line) for each sample",
    "`dmkl build --function distance`": r"distances.*dmkl build.*--function distance",
    "columns of words": r"'pop'",
    "a word is no number": "is not a number",
    "`--order FILE`": r"have no names.*--order",
    "0 is missing there": r"(?i)missing|expected",
}
"""What the message says, by the way out that the documentation names."""


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


def written(form, folder, frame, use):
    return form.write(folder, frame.iloc[ROWS] if form.shuffled else frame, use)


def tables(form, folder, use, *wanted):
    """(path, values in the order of the data) of each wanted column: alone in its file, and with another column."""
    for column in wanted:
        other = "dx" if column == "site" else "site"
        if form.titles != "named":
            frame = columns_of(form, [column])
            yield written(form, folder, frame, use), frame[column].tolist()
        if form.titles != "none":
            frame = columns_of(form, [other, column])
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
        frame = columns_of(form, ["age", "site"])
        table = read_covariates(written(form, folder, frame, "covariates"), form.names).loc[form.names]
        assert list(table) == [form.title("age"), form.title("site")]
        for position, column in enumerate(frame):
            assert table.iloc[:, position].tolist() == frame[column].tolist()


def check_kernels(form, folder, beside):
    frame = table_for(form, "kernels")
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
    path = written(form, folder, table_for(form, "features"), "features")
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
    frame = table_for(form, "features")
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


def test_the_documentation_lists_every_form_and_every_use():
    assert TITLES == list(USES)
    assert list(GIVEN) == list(FORMS)


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("name", FORMS)
def test_every_use_of_a_form_is_read_rightly_or_refused(name, use, tmp_path, beside, capsys):
    form, (outcome, _, way_out) = FORMS[name], GIVEN[name][use].partition(": ")
    assert outcome in ("read", BY_ORDER, NO_TITLES, "refused")
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        if way_out:
            with pytest.raises(InputError, match=REFUSED[way_out]):
                notes_when_used(use, form, tmp_path, beside(form))
            return
        notes = notes_when_used(use, form, tmp_path, beside(form))
    if outcome == BY_ORDER:
        messages = " ".join([*notes, *(str(warning.message) for warning in warned), *capsys.readouterr()])
        assert re.search(r"row i|by position", messages)
    if outcome == NO_TITLES:
        path = written(form, tmp_path, columns_of(form, ["age", "score"]), use)
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


@pytest.mark.parametrize(("titles", "order"), [("", permutations), ("sample1 sample2 distance\n", combinations)])
def test_all_pairs_of_four_numbers_are_distances(titles, order, tmp_path):
    lines = [f"{NUMBERS[i]} {NUMBERS[k]} {DISTANCES[i, k]}\n" for i, k in order(range(4), 2)]
    features = as_features(text(tmp_path / "pairs.txt", "".join([titles, *lines])))
    (block,) = features.blocks.values()
    at = [NUMBERS.index(name) for name in features.samples]
    np.testing.assert_array_equal(block.read(slice(0, 4)), DISTANCES[np.ix_(at, at)])


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
