"""Samples are matched by name, in common files and in memory: the same model or an error."""

import re
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from helpers.reading import kernels_in
from hypothesis import assume, event, given
from hypothesis import strategies as st

import dmkl
from dmkl.cli.samples import read_groups
from dmkl.errors import InputError, SampleOrderWarning
from dmkl.inputs import as_features, open_files

N = 80
RNG = np.random.default_rng(7)
X = RNG.normal(size=(N, 5))
DX = np.where(X[:, 0] + X[:, 1] > 0, "pat", "con")
AGE = (20 + 60 * RNG.random(N)).round(1)
WORDS = [f"P{i:03}" for i in range(N)]
NUMBERS = [str(1000017 + 7 * i) for i in range(N)]
SHUFFLED = RNG.permutation(N)
HERE = ("--cluster", "threads")


def write(path, lines):
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """The kernel with its names and the classes."""
    path = tmp_path_factory.mktemp("set") / "named.zarr"
    return dmkl.create(path, {"k": NAMED}, labels=pd.Series(DX, WORDS)).view.source.location


def same_models(first, second):
    for attribute in ("weights_", "dual_coef_"):
        xr.testing.assert_identical(*(getattr(model, attribute) for model in (first, second)))


# --- the command line ------------------------------------------------------------------------------------------------
def test_groups_that_are_all_different_are_an_error(error_of, tmp_path, store):
    groups = write(tmp_path / "groups.txt", (f"{own} g{own}" for own in WORDS))
    err = error_of("search", store, tmp_path / "out", "--cv", "GroupKFold(5)", "--groups", groups, *HERE)
    assert re.search(r"(?is)\bgroups?\b.*\b(differ|different|own|one sample)\b", err)


def test_build_of_features_in_rows_needs_transpose(output_of, error_of, tmp_path):
    pd.DataFrame(X, WORDS, list("abcde")).T.to_csv(tmp_path / "turned.csv")
    labels = write(tmp_path / "sp.txt", (f"{WORDS[i]} {DX[i]}" for i in SHUFFLED))
    options = ("--function", "linear", "--labels", labels)
    arguments = ("build", tmp_path / "set.zarr", tmp_path / "turned.csv", *options)
    assert "--transpose" in error_of(*arguments, *HERE)
    output_of(*arguments, "--transpose", *HERE)
    K = dmkl.open(tmp_path / "set.zarr")
    assert K.samples.tolist() == WORDS
    assert K.labels.tolist() == DX.tolist()
    np.testing.assert_allclose(np.asarray(K)[0], X @ X.T, rtol=1e-12, atol=1e-12)


def test_build_repairs_what_is_not_positive_semidefinite(output_of, tmp_path):
    indefinite = X @ X.T - 3 * np.eye(N)
    pd.DataFrame(indefinite, WORDS, WORDS).to_csv(tmp_path / "d.csv", index_label="sample")
    arguments = ("build", tmp_path / "set.zarr", tmp_path / "d.csv", "--function", "precomputed", *HERE)
    output_of(*arguments, "--repair", "clip")
    kernel = np.asarray(dmkl.open(tmp_path / "set.zarr"))[0]
    values, vectors = np.linalg.eigh(indefinite)
    np.testing.assert_allclose(kernel, (vectors * values.clip(0)) @ vectors.T, atol=1e-9)


def test_files_of_fid_and_iid_choose_samples(output_of, tmp_path, store):
    kept = [WORDS[i] for i in SHUFFLED[:50]]
    model, file = tmp_path / "model", write(tmp_path / "keep.txt", (f"{own} {own}" for own in kept))
    output_of("fit", store, model, "--train", file, "--p", "1", "--lam", "0.1", *HERE)
    assert dmkl.load(model).dual_coef_.coords["sample"].values.tolist() == kept
    output_of("predict", model, store, "--rows", file, "--out", tmp_path / "p.csv", *HERE)
    assert pd.read_csv(tmp_path / "p.csv").iloc[:, 0].tolist() == kept


# --- contents of a file ----------------------------------------------------------------------------------------------
FEW = [f"s{i}" for i in range(6)]
SMALL = (X[:6] @ X[:6].T).round(3)


def kernel(path, names=FEW, values=SMALL):
    pd.DataFrame(values, names, names).to_csv(path)
    return path


@pytest.mark.parametrize(
    ("values", "known"),
    [
        (["2", "1", "2", "0", "1", "2"], {"s0": 2, "s1": 1, "s2": 2, "s4": 1, "s5": 2}),
        (["0", "1.5", "-9", "2.5", "0", "3.5"], {"s0": 0, "s1": 1.5, "s3": 2.5, "s4": 0, "s5": 3.5}),
    ],
    ids=["diagnosis", "quantity"],
)
def test_zero_is_a_missing_diagnosis_and_a_value_of_a_quantity(values, known, tmp_path):
    lines = [f"{own} {own} 0 0 1 {value}" for own, value in zip(FEW, values, strict=True)]
    fam = write(tmp_path / "y.fam", lines[::-1])
    source, labels = open_files(kernel(tmp_path / "k.csv"), labels=fam, join="inner")
    assert dict(zip(source.samples, np.asarray(labels.labels).tolist(), strict=True)) == known


@pytest.mark.parametrize("mark", ["#", "%"])
def test_names_that_begin_with_a_mark_of_comments_stay(mark, tmp_path):
    names = [f"{mark}{i}" if i in (0, 3) else f"s{i}" for i in range(6)]
    path = kernel(tmp_path / "k.csv", names)
    labels = write(
        tmp_path / "y.csv", ["sample,dx", *(f"{own},{dx}" for own, dx in zip(names[::-1], DX[:6][::-1], strict=True))]
    )
    kernels, source, known = kernels_in(path, labels=labels)
    assert list(source.samples) == names
    np.testing.assert_array_equal(kernels, [SMALL])
    assert known.labels.tolist() == DX[:6].tolist()
    pd.DataFrame(X[:6], names, list("abcde")).to_csv(tmp_path / "x.csv", index_label="sample")
    assert as_features(tmp_path / "x.csv").samples == names


def test_numbers_with_a_comma_are_no_two_targets(tmp_path):
    labels = write(tmp_path / "y.txt", (f"{i},{38 + i}" for i in range(6)))
    with pytest.raises(InputError, match=r"\bcommas?\b|\bnames\b"):
        open_files(kernel(tmp_path / "k.csv"), labels=labels)
    labels = write(tmp_path / "y.txt", (f"{own}\t{i},{38 + i}" for i, own in enumerate(FEW)))
    _, known = open_files(tmp_path / "k.csv", labels=labels)
    assert np.asarray(known.labels).tolist() == [float(f"{i}.{38 + i}") for i in range(6)]


# --- messages --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("first", "second"),
    [
        *(
            ("Zo\N{LATIN SMALL LETTER E WITH DIAERESIS} 1", "Zoe\N{COMBINING DIAERESIS} 1"),
            ("a 1", "a\N{NO-BREAK SPACE}1"),
        ),
        *(("01", "sub-01"), ("sub-1", "sub-01_ses-T1"), ("Genus species", "Genus_species"), ("P1", "P1_P1")),
        *(("10500022", "10500022.0"), ("10500000", "1.05e7"), ("GSM12", "GSM12.1")),
    ],
)
def test_names_that_look_alike_are_said_to(first, second, tmp_path):
    others = [f"x{i}y" for i in range(5)]
    path = kernel(tmp_path / "k.csv", [first, *others])
    labels = write(
        tmp_path / "y.csv", ["sample,dx", *(f"{own},{'ab'[i % 2]}" for i, own in enumerate([second, *others]))]
    )
    with pytest.raises(InputError, match="look alike but differ"):
        open_files(path, labels=labels)


def test_test_kernels_that_do_not_fit_are_named_as_such(output_of, error_of, tmp_path, store):
    dmkl.MKFDA(p=1, lam=0.1).fit(dmkl.open(store)[:60, :60]).save(tmp_path / "model")
    old, new = slice(0, 60), slice(60, N)
    for rows, columns, name, said in (
        (old, new, "k", r"(?i)transpose|way round|new samples .*rows|rows .*new samples"),
        (new, old, "another", "--names"),
    ):
        pd.DataFrame(X[rows] @ X[columns].T, WORDS[rows], WORDS[columns]).to_csv(tmp_path / f"{name}.csv")
        output_of("import", tmp_path / f"{name}.zarr", tmp_path / f"{name}.csv", "--rectangular")
        arguments = ("predict", tmp_path / "model", tmp_path / f"{name}.zarr", "--out", tmp_path / "p.csv")
        assert re.search(said, error_of(*arguments, *HERE))


# --- in memory -------------------------------------------------------------------------------------------------------
FRAME = pd.DataFrame(X @ X.T)
FEATURES = pd.DataFrame(X)
NAMED = pd.DataFrame(X @ X.T, WORDS, WORDS)
NAMED_FEATURES = pd.DataFrame(X, WORDS)


def created(labels, frame=FRAME):
    return dmkl.create(None, {"k": frame}, labels=labels)


def built(labels, frame=FEATURES):
    return dmkl.build(None, {"x": frame}, {"function": "linear"}, labels=labels)


def test_default_indices_that_are_shuffled_are_matched():
    labels, fit = pd.Series(DX), dmkl.MKFDA(p=1, lam=0.1).fit
    for K in (created(labels.iloc[SHUFFLED]), built(labels.iloc[SHUFFLED].to_frame("dx"))):
        assert K.labels.tolist() == DX.tolist()
    same_models(fit(created(None), labels.iloc[SHUFFLED]), fit(created(None), DX))
    shuffled = FRAME.iloc[SHUFFLED, SHUFFLED]
    for K in (created(labels, shuffled), built(labels, FEATURES.iloc[SHUFFLED])):
        order = [int(name) for name in K.samples]
        assert K.labels.tolist() == DX[order].tolist()
        np.testing.assert_allclose(np.asarray(K)[0], (X @ X.T)[np.ix_(order, order)], rtol=1e-12, atol=1e-12)
    same_models(fit(created(None, shuffled), labels), fit(created(labels, shuffled)))


def test_an_index_of_families_and_individuals_is_matched_by_them():
    names = [f"s{i}" for i in range(len(DX))]
    pairs = pd.MultiIndex.from_arrays([[f"f{i // 2}" for i in range(len(DX))], names], names=["FID", "IID"])
    labels = pd.Series(DX, pairs).iloc[SHUFFLED]
    for index in (pairs, names):
        K = built(labels, FEATURES.set_axis(index))
        assert K.labels.tolist() == DX.tolist()
        assert set(K.samples) == set(names)


@pytest.mark.parametrize(("title", "index"), [("code", "shuffled"), ("patient", "counting"), ("sample", "counting")])
def test_names_in_a_later_column_of_a_data_frame(title, index, store):
    labels = pd.DataFrame({"dx": DX, title: WORDS}).iloc[SHUFFLED]
    labels = labels if index == "shuffled" else labels.reset_index(drop=True)
    for K in (created(labels, NAMED), built(labels, NAMED_FEATURES)):
        assert K.labels.tolist() == DX.tolist()
    K = dmkl.open(store)
    same_models(dmkl.MKFDA(p=1, lam=0.1).fit(K, labels), dmkl.MKFDA(p=1, lam=0.1).fit(K))


@pytest.mark.parametrize("labels", [DX, DX.tolist(), pd.Series(DX)], ids=["array", "list", "series"])
def test_one_column_without_names_warns_where_the_set_has_names(labels):
    for make, frame in ((created, NAMED), (built, NAMED_FEATURES)):
        with pytest.warns(SampleOrderWarning):
            K = make(labels, frame)
        assert K.labels.tolist() == DX.tolist()
    K = created(None, NAMED)
    with pytest.warns(SampleOrderWarning):
        model = dmkl.MKFDA(p=1, lam=0.1).fit(K, labels)
    with warnings.catch_warnings():
        warnings.simplefilter("error", SampleOrderWarning)
        stored = created(pd.Series(DX, WORDS), NAMED)
        same_models(model, dmkl.MKFDA(p=1, lam=0.1).fit(stored, labels))  # these are the labels of the set
        same_models(model, dmkl.MKFDA(p=1, lam=0.1).fit(stored))
        created(labels, FRAME)  # no input has names
        built(labels, FEATURES)
    with pytest.warns(SampleOrderWarning):
        dmkl.MKFDA(p=1, lam=0.1).fit(stored, np.where(DX == "pat", "con", "pat"))


def test_arrays_of_several_columns_are_taken_in_order_with_a_warning():
    """Arrays have no names; tables without names are refused."""
    targets = np.column_stack([X[:, 0] + X[:, 1], AGE])
    for make, frame in ((created, NAMED), (built, NAMED_FEATURES)):
        with pytest.warns(SampleOrderWarning, match="row i is taken for sample i"):
            np.testing.assert_array_equal(make(targets, frame).labels, targets)
        with pytest.raises(InputError, match="none of which names the samples"):
            make(pd.DataFrame(targets), frame)
    with pytest.warns(SampleOrderWarning, match="features 'bare' without names"):
        as_features({"x": NAMED_FEATURES, "bare": X})


def test_named_labels_beside_tables_without_names_are_refused_until_the_order_is_given(tmp_path):
    labels = pd.Series(DX, WORDS).iloc[SHUFFLED]
    splits = pd.DataFrame({"one": np.arange(N) % 3}, WORDS).iloc[SHUFFLED]
    for side in ({"labels": labels}, {"labels": DX, "splits": splits}):
        with pytest.raises(
            InputError, match=r"names its samples \('P0.*rows of kernel 0 have no names.*samples=y.index"
        ):
            dmkl.create(None, [X @ X.T], **side)
        with pytest.raises(InputError, match=r"names its samples \('P0.*rows of features 'X' have no names"):
            dmkl.build(None, {"X": X}, {"function": "linear"}, **side)
        for K in (
            dmkl.create(None, [X @ X.T], samples=WORDS, **side),
            dmkl.build(None, {"X": X}, {"function": "linear"}, samples=WORDS, **side),
        ):
            assert K.labels.tolist() == DX.tolist()
            assert K.splits is None or K.splits[0].tolist() == [i % 3 for i in range(N)]
    by_number = dmkl.create(None, [X @ X.T], labels=pd.Series(DX).iloc[SHUFFLED])
    assert by_number.labels.tolist() == DX.tolist()
    named_groups = write(tmp_path / "groups.csv", ["sample,group", *(f"{WORDS[i]},g{i % 4}" for i in SHUFFLED)])
    with pytest.raises(InputError, match="this set has no names of samples, so nothing says which row is 'P0"):
        read_groups(named_groups, np.arange(N).astype(str), np.arange(N))
    # Labels of the same file are in its order.
    np.savez(tmp_path / "same.npz", K=X @ X.T, y=DX)
    assert open_files(tmp_path / "same.npz", labels=f"{tmp_path / 'same.npz'}:y")[1].labels.tolist() == DX.tolist()


# --- any order, any title, any delimiter -----------------------------------------------------------------------------
M = 12
TITLES = st.sampled_from(["sample", "id", "IID", "patient", "code", "", "eid", "Proben-Nr.", "x", "score2", "label"])


@given(data=st.data())
def test_order_titles_and_delimiters_change_nothing(data, tmp_path):
    names = data.draw(st.sampled_from([WORDS[:M], NUMBERS[:M]]), "names")
    orders = [data.draw(st.permutations(range(M)), what) for what in ("labels", "rows", "columns")]
    delimiter = data.draw(st.sampled_from([",", "\t", ";", " "]), "delimiter")
    titles = data.draw(st.lists(TITLES, min_size=3, max_size=3, unique=True), "titles")
    assume(delimiter != " " or "" not in titles)  # a blank after the last title is no title, as in the tables of R
    columns = dict(zip(titles, (names, DX[:M], AGE[:M]), strict=True))
    table = pd.DataFrame(columns)[data.draw(st.permutations(titles), "columns of the labels")].iloc[orders[0]]
    table.to_csv(tmp_path / "y.txt", sep=delimiter, index=False)
    kernel(tmp_path / "a.csv", names, X[:M, :3] @ X[:M, :3].T)
    matrix = pd.DataFrame(X[:M] @ X[:M].T, names, names).iloc[orders[1], orders[2]]
    matrix.to_csv(tmp_path / "b.csv", sep=delimiter, index_label=data.draw(TITLES, "corner"))
    labels = Path(f"{tmp_path / 'y.txt'}:{titles[1]}")
    try:
        kernels, source, known = kernels_in([tmp_path / "a.csv", tmp_path / "b.csv"], labels=labels)
    except InputError:
        if "" in titles or delimiter == " ":  # nothing else is ambiguous
            event("refused")
            return
        raise
    assert list(source.samples) == names
    assert known.labels.tolist() == DX[:M].tolist()
    np.testing.assert_array_equal(kernels, [features @ features.T for features in (X[:M, :3], X[:M])])
