"""Labels and covariates that are missing, alone or new: clear messages, no silent conversion."""

import numpy as np
import pandas as pd
import pytest
from helpers.reading import kernels_in
from helpers.references import psd

import dmkl
from dmkl.cli.parsing import parse_steps
from dmkl.errors import InputError, LabelWarning
from dmkl.inputs import open_files, read_covariates, read_names

M = 6
K = psd(1, M).round(3)
NAMES = [*"uvwxyz"]
Y = [*"ababab"]


@pytest.fixture
def kernel(tmp_path):
    np.save(tmp_path / "k.npy", K[0])
    return tmp_path / "k.npy"


def written(path, *lines):
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def with_class(word):
    return [*Y[:2], word, *Y[3:]]


@pytest.mark.parametrize(
    "labels",
    [
        with_class(None),
        with_class(np.nan),
        pd.Series(with_class(None)),
        pd.Series(with_class(pd.NA), dtype="string"),
        pd.Series([0, 1, pd.NA, 1, 0, 1], dtype="Int64"),
        pd.Categorical(with_class(None)),
        [0, 1, None, 1, 0, 1],
        np.array([0, 1, np.nan, 1, 0, 1]),
    ],
)
def test_a_missing_label_is_said_to_be_missing(labels):
    with pytest.raises(
        InputError, match=r"the labels of 1 of the 6 samples are missing \('w'; written as '.*--join inner"
    ):
        dmkl.create(None, K, samples=NAMES, labels=labels)
    with pytest.raises(InputError, match="y holds 1 labels that are missing"):
        dmkl.MKFDA().fit(dmkl.create(None, K), labels)


def test_names_of_a_word_and_a_number_are_whole(tmp_path):
    names = [f"P {k}" for k in (3, 1, 2)]
    assert read_names(written(tmp_path / "names.txt", *names), names) == tuple(names)
    ages = written(tmp_path / "ages.csv", "sample,age", *(f"{name},2{k}" for k, name in enumerate(names)))
    assert read_covariates(ages, names).to_dict() == {"age": dict(zip(names, (20.0, 21.0, 22.0), strict=True))}


@pytest.mark.parametrize(
    "classes", [["may be", "no", "yes", "may be", "no", "may be"], ["x", "g 1", "g 2", "x", "x", "x"]]
)
def test_classes_of_one_word_and_of_several_are_single_cells(tmp_path, classes):
    K = dmkl.create(None, [np.eye(6)])
    assert K.with_labels(written(tmp_path / "y.txt", "class", *classes)).labels.tolist() == classes


@pytest.mark.parametrize("kind", ["M8[ns]", "m8[ns]"])
def test_dates_and_durations_are_no_labels(tmp_path, kind):
    """They were numbers of nanoseconds."""
    days = pd.Series(np.arange(M).astype(kind), NAMES, name="day")
    days.rename_axis("sample").reset_index().to_parquet(tmp_path / "y.parquet")
    for labels in (days, days.to_numpy(), f"{tmp_path / 'y.parquet'}:day"):
        with pytest.raises(InputError, match=r"dates or durations .*; give numbers in a unit of yours"):
            dmkl.create(None, K, samples=NAMES, labels=labels)
    for learner in (dmkl.MKFDA(), dmkl.MKRidge()):
        with pytest.raises(InputError, match="dates or durations"):
            learner.fit(dmkl.create(None, K, samples=NAMES), days)


@pytest.mark.parametrize("word", ["NA", "nan", "None", "", "<NA>", "NULL"])
def test_a_missing_label_in_a_file(tmp_path, word):
    pd.DataFrame(K[0], NAMES, NAMES).to_csv(tmp_path / "named.csv")
    rows = [f"{name},{label}" for name, label in zip(NAMES, with_class(word), strict=True)]
    file = written(tmp_path / "y.csv", "patient,diagnosis", *rows)
    source, labels = open_files(tmp_path / "named.csv", labels=file)
    with pytest.raises(InputError, match=rf"are missing \('w'; written as '{word}'\)"):
        labels.checked(M, M, rectangular=False)
    source, labels = open_files(tmp_path / "named.csv", labels=file, join="inner")
    assert source.samples == tuple(name for name in NAMES if name != "w")
    assert any("1 of 6 samples left out ('w') by join=inner: " in note for note in source.notes)
    assert labels.checked(5, 5, rectangular=False)["label"].tolist() == ["a", "b", "b", "a", "b"]


def test_order_names_the_rows_as_they_stand(tmp_path, kernel):
    labels = written(tmp_path / "y.csv", *(f"{name},{label}" for name, label in zip(NAMES, Y, strict=True)))
    with pytest.raises(InputError, match=rf"y.csv names its samples \('{NAMES[0]}', .* --order .*y.csv, if row i"):
        open_files(kernel, labels=labels)
    order = written(tmp_path / "order.txt", *NAMES[::-1])
    source, known = open_files(kernel, labels=labels, order=order)
    assert source.samples == tuple(NAMES[::-1])
    assert list(known.labels) == Y[::-1]
    assert not any("row i" in note for note in source.notes)
    samples = written(tmp_path / "s.txt", *NAMES)
    kernels, _, known = kernels_in(kernel, labels=labels, order=order, samples=samples)
    assert list(known.labels) == Y
    np.testing.assert_array_equal(kernels, [K[0][::-1, ::-1]])
    with pytest.raises(InputError, match=r"order.txt: found 2 names of samples, expected one for each of the 6 rows"):
        open_files(kernel, order=written(tmp_path / "order.txt", "a", "b"))


def test_a_class_of_one_sample_is_told(tmp_path, kernel):
    source, _ = open_files(kernel, labels=written(tmp_path / "y.txt", *with_class("c")))
    assert source.notes[-1].endswith(
        "y.txt: the class 'c' has one sample (number 2), too few to learn from and to test on"
    )
    with pytest.warns(LabelWarning, match=r"fit: the class 'c' has one sample \(sample '2'\).*a line of a file"):
        dmkl.MKFDA().fit(dmkl.create(None, K), with_class("c"))


def test_a_class_that_the_model_does_not_know_is_told():
    made = dmkl.create(None, K, labels=Y)
    model = dmkl.MKFDA().fit(made[:4, :4])
    with pytest.warns(LabelWarning, match=r"1 of the 2 samples have a class that .* 'c' \(1\), .*it knows 'a', 'b'"):
        assert model.score(made[4:, :4], ["a", "c"]) <= 0.5


# --- covariates ------------------------------------------------------------------------------------------------------
def test_what_is_unknown_is_no_category(tmp_path):
    (tmp_path / "c.csv").write_text("sample,site,age\na,n,1\nb,NA,2\nc,s,\n")
    expected = pd.DataFrame({"site": ["n", None, "s"], "age": [1, 2, np.nan]}, list("abc"))
    pd.testing.assert_frame_equal(read_covariates(tmp_path / "c.csv"), expected)
    pd.testing.assert_frame_equal(read_covariates(tmp_path / "c.csv:age"), expected[["age"]])
    (tmp_path / "pcs.pheno").write_text("FID IID PC1 PC2\nf1 a 0.5 1\nf1 b -9 2\n")
    expected = pd.DataFrame({"PC1": [0.5, np.nan], "PC2": [1.0, 2.0]}, ["a", "b"])
    pd.testing.assert_frame_equal(read_covariates(tmp_path / "pcs.pheno"), expected)
    with pytest.raises(InputError, match="every covariate of every sample, but 'site' of sample 'b'"):
        parse_steps(f"residualize={tmp_path / 'c.csv'}")


@pytest.mark.parametrize(("text", "missing"), [("a,n,2\nb,s,3\n", "columns"), ("visit,age\n1,50\n1,61\n", "samples")])
def test_a_table_that_does_not_name_its_samples_or_columns_is_refused(text, missing, tmp_path):
    (tmp_path / "c.csv").write_text(text)
    with pytest.raises(InputError, match=f"c.csv cannot be read: .*c.csv does not name its {missing}, .*'sample'"):
        parse_steps(f"residualize={tmp_path / 'c.csv'}")


# --- kernels that are not symmetric ----------------------------------------------------------------------------------
@pytest.mark.parametrize(("tile", "full"), [(2, False), (4, True), (8, False)])
def test_symmetrize_takes_the_mean_and_says_how_far_apart(tile, full):
    skewed = K[0].copy()
    skewed[1, 4] += 0.07
    skewed[5, 0] -= 0.03
    with pytest.raises(InputError, match=r"not symmetric: entry .*symmetrize=True, --symmetrize"):
        dmkl.create(None, [skewed], tile=tile)
    made = dmkl.create(None, [skewed], tile=tile, full=full, symmetrize=True)
    expected = (skewed + skewed.T) / 2
    np.testing.assert_array_equal(np.asarray(made)[0], expected)
    assert made.provenance[0]["symmetrized"]["largest_asymmetry"] == pytest.approx(0.07)
    np.testing.assert_allclose(made.view.source.row_sum(np.arange(1))[0], expected.sum(axis=1))
    with pytest.raises(InputError, match="is for symmetric kernels; these are rectangular"):
        dmkl.create(None, [skewed[:3]], symmetrize=True)


@pytest.mark.parametrize(("lower", "empty"), [(True, 0.0), (False, np.nan)])
@pytest.mark.parametrize(
    ("tile", "full", "repair", "symmetrize"),
    [(2, False, None, True), (4, True, None, False), (8, False, "clip", False)],
)
def test_a_triangle_is_mirrored(notes_of, tmp_path, lower, empty, tile, full, repair, symmetrize):
    given = np.tril(np.ones(K[0].shape, dtype=bool)) if lower else np.triu(np.ones(K[0].shape, dtype=bool))
    triangle = np.where(given, K[0], empty)
    made = dmkl.create(None, [triangle], tile=tile, full=full, repair=repair, symmetrize=symmetrize)
    np.testing.assert_allclose(np.asarray(made)[0], K[0], atol=1e-12)
    assert made.provenance[0]["mirrored"] == ("lower" if lower else "upper")
    np.save(tmp_path / "k.npy", triangle)
    told = notes_of("import", tmp_path / "k.zarr", tmp_path / "k.npy", *["--symmetrize"] * symmetrize)
    assert f"was mirrored: all entries outside its {'lower' if lower else 'upper'} triangle were 0 or NaN" in told
