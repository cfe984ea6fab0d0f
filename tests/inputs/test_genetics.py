"""Relationship matrices of GCTA and PLINK, and phenotypes by family and individual."""

import gzip
import os

import numpy as np
import pytest
from helpers.reading import imported, kernels_in
from helpers.references import psd

import dmkl
from dmkl.errors import InputError
from dmkl.inputs import as_features, open_files, read_file

M = 7
K = psd(1, M)[0].round(3)
LOWER = K[np.tril_indices(M)]
PAIRS = [(f"f{i // 2}", f"i{i}") for i in range(M)]


def write_ids(path, pairs=PAIRS, header=""):
    path.write_text(header + "".join(f"{family}\t{own}\n" for family, own in pairs))


def rows_of(kernel):
    return "".join("\t".join(map(str, row)) + "\n" for row in kernel)


FORMS = {
    "a.grm.bin": lambda: LOWER.astype("<f4").tobytes(),
    "triangle.rel.bin": lambda: LOWER.astype("<f8").tobytes(),
    "triangle4.rel.bin": lambda: LOWER.astype("<f4").tobytes(),
    "square.rel.bin": lambda: K.astype("<f8").tobytes(),
    "square4.rel.bin": lambda: K.astype("<f4").tobytes(),
    "triangle.rel": lambda: rows_of(row[: i + 1] for i, row in enumerate(K)).encode(),
    "square.rel": lambda: rows_of(K).encode(),
}


def written(tmp_path, name, pairs=PAIRS, header=""):
    (tmp_path / name).write_bytes(FORMS[name]())
    write_ids(tmp_path / (name.removesuffix(".bin") + ".id"), pairs, header)
    return tmp_path / name


@pytest.mark.parametrize("name", FORMS)
def test_every_form_gives_the_matrix_and_its_names(tmp_path, name):
    made, _ = imported(written(tmp_path, name, header="#FID\tIID\n"), tmp_path / "set.zarr")
    np.testing.assert_allclose(made, [K], rtol=1e-6)
    assert made.samples.tolist() == [own for _, own in PAIRS]


def test_families_tell_individuals_of_one_number_apart(tmp_path):
    pairs = [(family, str(i)) for family, n in (("A", 4), ("B", 3)) for i in range(n)]
    both = written(tmp_path, "a.grm.bin", pairs)
    first, second = tmp_path / "first.grm.bin", tmp_path / "second.grm.bin"
    for path, own in ((first, pairs[:4]), (second, pairs[4:])):
        path.write_bytes(LOWER[: len(own) * (len(own) + 1) // 2].astype("<f4").tobytes())
        write_ids(path.with_suffix(".id"), own)
    with pytest.raises(InputError, match=r"A_|B_"):
        open_files([first, second])
    every = [f"{family}_{own}" for family, own in pairs]
    for paths in ([first, second], [both, first]):
        source, _ = open_files(paths, join="outer")
        assert list(source.samples) == every
    kernels, source, _ = kernels_in([both, first], join="inner")
    assert list(source.samples) == every[:4]
    np.testing.assert_array_equal(*kernels)
    lines = [f"{family} {own} {at / 4}\n" for at, (family, own) in enumerate(pairs)]
    (tmp_path / "y.txt").write_text("".join(["FID IID u\n", *lines[::-1]]))
    source, known = open_files(both, labels=tmp_path / "y.txt")
    assert list(source.samples) == every
    assert known.labels.tolist() == [at / 4 for at in range(M)]
    assert as_features(tmp_path / "y.txt").samples == every[::-1]


@pytest.mark.parametrize(
    ("name", "text", "column", "values"),
    [
        ("y.txt", "FID IID bmi ill\n1 1 20.5 0\n2 2 -9 1\n", None, [[20.5, 0], [np.nan, 1]]),
        ("y.txt", "FID IID pop bmi\nf a CEU 20.5\nf b -9 -9\nf c YRI 22\n", "bmi", [20.5, np.nan, 22]),
        ("y.txt", "FID IID pop bmi\nf a CEU 20.5\nf b -9 -9\nf c YRI 22\n", "pop", ["CEU", "NA", "YRI"]),
        ("y.pheno", "1 7 1\n1 8 2\n", None, [1, 2]),
        ("y.phen", "f a low\nf b high\n", None, ["low", "high"]),
        ("y.txt", "a x7 1\na x8 2\n", None, [1, 2]),
        ("y.txt", "cell line 1\ncell line 2\n", None, ["cell line 1", "cell line 2"]),
    ],
)
def test_phenotypes_are_told_by_header_extension_or_pairs_of_words(tmp_path, name, text, column, values):
    (tmp_path / name).write_text(text)
    np.testing.assert_array_equal(read_file(tmp_path / name, column).values, values)


@pytest.mark.parametrize(
    ("name", "spoil", "message"),
    [
        ("a.grm.bin", lambda p: os.truncate(p, 108), r"has 108 bytes, expected 112 for the 7 individuals"),
        ("square.rel.bin", lambda p: p.write_bytes(b""), r"has 0 bytes, expected 112 or 196 or 224 or 392"),
        ("triangle.rel", lambda p: p.write_text("1\n2\t3\n"), r"has 2 lines, expected 7: one for each individual"),
        ("triangle.rel", lambda p: p.write_text("1\n" * 7), r"row 2: found 1 numbers, expected 2, to the diagonal"),
        ("triangle.rel", lambda p: p.write_text("1\nx\t3\n" + "1\n" * 5), r"expected numbers in .*, row 2: could not"),
        ("a.grm.bin", lambda p: p.with_name("a.grm.id").unlink(), r"needs a.grm.id beside it"),
        ("a.grm.bin", lambda p: write_ids(p.with_name("a.grm.id"), []), r"a.grm.id names no individuals"),
    ],
)
def test_what_is_wrong_is_said(tmp_path, name, spoil, message):
    path = written(tmp_path, name)
    spoil(path)
    with pytest.raises(InputError, match=message):
        kernels_in(path)


@pytest.mark.parametrize(("name", "first", "more"), [("a.grm.sp", 0, ""), ("a.grm.gz", 1, "\t100")])
def test_a_pair_of_gcta_in_both_orders_is_refused(tmp_path, name, first, more):
    places = [(i, k) for i in range(M) for k in range(i + 1)]
    places[places.index((3, 1))] = (1, 2)  # beside (2, 1)
    lines = "".join(f"{i + first}\t{k + first}{more}\t{1 + (i == k)}\n" for i, k in places).encode()
    path = written(tmp_path, "a.grm.bin").with_name(name)
    path.write_bytes(gzip.compress(lines) if more else lines)
    with pytest.raises(InputError, match="lists a pair more than once"):
        kernels_in(path)


def test_individuals_without_phenotype_stay_in_the_set_if_asked(error_of, notes_of, tmp_path):
    for name in ("chr1", "chr2"):
        (tmp_path / f"{name}.grm.bin").write_bytes(FORMS["a.grm.bin"]())
        write_ids(tmp_path / f"{name}.grm.id")
    (tmp_path / "list.txt").write_text("chr1\nchr2\n")
    # One value is missing, and one individual has no line.
    lines = [f"{f} {i} {v}\n" for (f, i), v in zip(PAIRS[:-1], [1.5, -9, 2, 3, "NA", 0], strict=True)]
    (tmp_path / "height.phen").write_text("".join(lines))
    labels = ["--labels", tmp_path / "height.phen", "--join", "outer"]
    notes = notes_of("import", tmp_path / "out.zarr", "--mgrm", tmp_path / "list.txt", *labels)
    assert "height.phen: -9 was taken for missing" in notes
    made = dmkl.open(tmp_path / "out.zarr")
    assert made.names == ("chr1", "chr2")
    assert made.samples.tolist() == [own for _, own in PAIRS]
    assert made.tasks.tolist() == ["height"]
    np.testing.assert_array_equal(made.labels[:, 0], [1.5, np.nan, 2, 3, np.nan, 0, np.nan])
    (tmp_path / "chr2.grm.bin").unlink()
    words = "lists relationship matrices, and there is none of the prefix chr2"
    assert words in error_of("import", tmp_path / "other.zarr", "--mgrm", tmp_path / "list.txt")
    words = "needs files of kernels; give them after the set, or a list of them by --mgrm"
    assert words in error_of("import", tmp_path / "other.zarr")
    assert not (tmp_path / "other.zarr").exists()


def test_covariates_of_gcta_are_categories_and_numbers(tmp_path):
    from dmkl.cli.parsing import parse_steps

    (tmp_path / "sex.covar").write_text("".join(f"{f} {i} {k % 3} {'ab'[k % 2]}\n" for k, (f, i) in enumerate(PAIRS)))
    (tmp_path / "age.qcovar").write_text("".join(f"{f} {i} {20 + k}\n" for k, (f, i) in enumerate(PAIRS)))
    files = f"{tmp_path / 'sex.covar'}&{tmp_path / 'age.qcovar'}"
    (step,) = parse_steps(f"residualize={files}")
    assert step.columns == ("sex_1=0", "sex_1=1", "sex_1=2", "sex_2=a", "sex_2=b", "age")
    assert step.samples == tuple(own for _, own in PAIRS)
    np.testing.assert_array_equal(step.design[:, 5], 20 + np.arange(M))
    np.testing.assert_array_equal(step.design[:, 0], np.arange(M) % 3 == 0)
