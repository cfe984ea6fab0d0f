"""Genotypes of PLINK as features: dosages by name, missing ones imputed from training, a kernel for each chromosome."""

import numpy as np
import pandas as pd
import pytest
from helpers.conformance import problems

import dmkl
from dmkl.errors import InputError
from dmkl.inputs import as_features, open_files

pytest.importorskip("bed_reader")

N, P = 13, 9
VARIANTS = [f"rs{k}" for k in range(P)]
CHROMOSOMES = ["1"] * 4 + ["2"] * 3 + ["X"] * 2


def frame(values):
    return pd.DataFrame(values, columns=VARIANTS)


RAW = {"function": "linear", "transform": "none"}


def relationships(X, train, method="grm"):
    """GCTA's and VanRaden's matrices by loops over individuals, with the frequencies of the training rows.

    A missing genotype adds nothing to the sums.
    """
    p = np.nanmean(X[train], axis=0) / 2
    kept = (p > 0) & (p < 1)
    X, p = X[:, kept], p[kept]
    own = 2 * p * (1 - p)
    A = np.empty((len(X), len(X)))
    for i, x in enumerate(X):
        for k, other in enumerate(X):
            terms = np.nan_to_num((x - 2 * p) * (other - 2 * p))
            A[i, k] = np.mean(terms / own) if method == "grm" else terms.sum() / own.sum()
    return A


def dosages(seed=0):
    values = np.random.default_rng(seed).integers(0, 3, (N, P)).astype(float)
    values[[1, 5, 7], [0, 0, 8]] = np.nan
    return values


def written(path, values, ids=VARIANTS, chromosomes=CHROMOSOMES):
    """PLINK's three files, written by hand: a byte holds four individuals, two bits each, the first lowest."""
    codes = np.select([values == 2, values == 1, values == 0], [0b00, 0b10, 0b11], 0b01).astype(np.uint8)
    padded = np.zeros((-(-len(values) // 4) * 4, values.shape[1]), np.uint8)
    padded[: len(values)] = codes
    packed = sum(padded[k::4] << (2 * k) for k in range(4)).astype(np.uint8)
    path.write_bytes(bytes([0x6C, 0x1B, 0x01]) + packed.T.tobytes())
    rows = [f"f{i} i{i} 0 0 1 {i % 2 + 1}" for i in range(len(values))]
    path.with_suffix(".fam").write_text("\n".join(rows) + "\n")
    lines = [f"{c}\t{name}\t0\t{k}\tA\tG" for k, (name, c) in enumerate(zip(ids, chromosomes, strict=True))]
    path.with_suffix(".bim").write_text("\n".join(lines) + "\n")
    return path


def test_dosages_and_names(tmp_path):
    values = dosages()
    features = as_features(written(tmp_path / "a.bed", values))
    block = features.blocks["dosages"]
    assert (block.dtype, block.columns) == (np.dtype("f4"), tuple(VARIANTS))
    for rows in (slice(0, N), slice(3, 8), slice(N, N)):
        np.testing.assert_array_equal(block.read(rows), values[rows])
    assert features.samples == [f"i{i}" for i in range(N)]
    assert features.labels.labels is None  # the phenotype is used only on request
    assert len(features.notes) == 1
    assert "a.bed: dosages count allele A1 of the .bim; new samples are predicted from" in features.notes[0]
    moved = as_features(tmp_path / "a.bed", samples=["i7", "i2"]).blocks["dosages"]
    np.testing.assert_array_equal(moved.read(slice(0, 2)), values[[7, 2]])


def test_individuals_without_phenotype_stay_in_the_set_if_asked(succeed, tmp_path):
    bed, out = written(tmp_path / "a.bed", dosages()), tmp_path / "set.zarr"
    (tmp_path / "height.phen").write_text("".join(f"f{i} i{i} {-9 if i == 4 else i + 0.5}\n" for i in range(2, N)))
    succeed("build", out, bed, "--function", "linear", "--labels", tmp_path / "height.phen", "--join", "outer")
    K = dmkl.open(out)
    assert list(K.samples) == [f"i{i}" for i in range(N)]
    known = [i not in (0, 1, 4) for i in range(N)]
    assert np.isnan(K.labels[:, 0]).tolist() == [not own for own in known]
    assert K.labels[known, 0].tolist() == [i + 0.5 for i in range(N) if known[i]]


def test_new_individuals_have_standard_deviations_and_reliabilities(succeed, tmp_path):
    rng = np.random.default_rng(3)
    X, y = rng.integers(0, 3, (40, P)).astype(float), rng.normal(size=30)
    y += X[:30] @ rng.normal(size=P)
    old, new = written(tmp_path / "old.bed", X[:30]), written(tmp_path / "new.bed", X[30:])
    (tmp_path / "new.fam").write_text("".join(f"g{i} j{i} 0 0 1 -9\n" for i in range(10)))
    K = dmkl.build(None, old, {"function": "linear"}, labels=pd.Series(y, [f"i{i}" for i in range(30)]))
    dmkl.VarianceComponents().fit(K).save(tmp_path / "model")
    succeed("predict", tmp_path / "model", "--features", new, "--std", "--out", tmp_path / "p.csv")
    table = pd.read_csv(tmp_path / "p.csv", index_col="sample")
    kernel = relationships(X, range(30))
    np.testing.assert_allclose(np.asarray(K)[0], kernel[:30, :30], rtol=1e-5, atol=1e-6)
    dense = dmkl.create(None, [kernel])
    expected = dmkl.VarianceComponents().fit(dense[:30, :30], y)
    _, deviation = expected.predict(dense[30:, :30], return_std=True, training=dense[:30, :30])
    assert list(table.index) == [f"j{i}" for i in range(10)]
    np.testing.assert_allclose(table["reliability"], deviation.reliability, rtol=1e-4)
    np.testing.assert_allclose(table["standard deviation"], deviation, rtol=1e-4)


def test_a_kernel_for_each_chromosome_and_new_samples(succeed, tmp_path):
    bed, out = written(tmp_path / "old.bed", dosages()), tmp_path / "set.zarr"
    options = ["--columns", bed.with_suffix(".bim"), "--labels", bed.with_suffix(".fam")]
    succeed("build", out, bed, "--function", "linear", "--transform", "none", *options)
    K = dmkl.open(out)
    assert K.names == ("dosages-linear-chr1", "dosages-linear-chr2", "dosages-linear-chrX")
    assert K.labels.tolist() == [i % 2 + 1 for i in range(N)]
    X = np.where(np.isnan(dosages()), np.nanmean(dosages(), axis=0), dosages())
    for kernel, c in zip(np.asarray(K), "12X", strict=True):
        part = X[:, np.array(CHROMOSOMES) == c]
        np.testing.assert_allclose(kernel, part @ part.T, rtol=1e-6)
    (tmp_path / "pathways.gmt").write_text("one\t-\trs7\trs0\ntwo\t-\trs3\n")
    by_annotation = dmkl.build(None, bed, {**RAW, "columns": tmp_path / "pathways.gmt"})
    np.testing.assert_allclose(np.asarray(by_annotation)[0], X[:, [7, 0]] @ X[:, [7, 0]].T, rtol=1e-6)
    # New individuals with the variants in another order, and one variant missing.
    values, order = np.nan_to_num(dosages(1)), np.random.default_rng(1).permutation(P)
    new = written(tmp_path / "new.bed", values[:, order], np.array(VARIANTS)[order], ["1"] * P)
    cross = dmkl.build_cross(K, new)
    np.testing.assert_allclose(np.asarray(cross)[0], values[:, :4] @ X[:, :4].T, rtol=1e-6)
    kept = order[order != 8]
    new = written(new, values[:, kept], np.array(VARIANTS)[kept], ["1"] * (P - 1))
    with pytest.raises(InputError, match=r"lack 1 of the 9 columns of 'dosages' .* rs8; used by dosages-linear-chrX"):
        dmkl.build_cross(K, new)


@pytest.mark.parametrize("method", ["grm", "grm=vanraden"])
@pytest.mark.parametrize("storage", ["tiles", "factors"])
def test_linear_kernels_are_relationship_matrices(tmp_path, method, storage):
    values = dosages()
    values[:10, 4] = 2.0  # does not vary in training
    values[[2, 11, 12], [6, 2, 0]] = np.nan
    bed, train, X = written(tmp_path / "a.bed", values), np.arange(10), values
    expected = relationships(X, train, method)
    spec = {"function": "linear"} if method == "grm" else {"function": "linear", "transform": method}
    K = dmkl.build(tmp_path / "k", bed, spec, train=train, storage=storage)
    np.testing.assert_allclose(np.asarray(K)[0], expected, atol=1e-5)
    assert K.provenance[0]["training_rows"] == 10
    assert not problems(tmp_path / "k")
    parts = dmkl.build(None, bed, {**spec, "columns": bed.with_suffix(".bim")}, train=train)
    np.testing.assert_allclose(np.asarray(parts).sum(axis=0), expected, atol=1e-5)
    # New individuals take the frequencies of training, in any order of the variants.
    known = dmkl.build(tmp_path / "t", {"dosages": frame(X[:10])}, {**spec, "transform": method})
    new = dmkl.build_cross(known, {"dosages": frame(X[10:])[VARIANTS[::-1]]})
    np.testing.assert_allclose(np.asarray(new)[0], expected[10:, :10], atol=1e-5)
    with pytest.raises(InputError, match=r"grm is for dosages from 0 to 2, but 'dosages' has 7"):
        dmkl.build(None, {"dosages": frame(X + 5)}, {**spec, "transform": method})
    with pytest.raises(InputError, match="is taken alone, got grm, log1p"):
        dmkl.build(None, bed, {"function": "linear", "transform": ["grm", "log1p"]})
    assert "Linear kernels standardize them (transform grm)" in as_features(bed).notes[0]


@pytest.mark.parametrize("spec", [{"function": "linear"}, RAW, {"function": "rbf", "gamma": 0.1}])
def test_missing_genotypes_take_the_means_of_training(tmp_path, spec):
    """Kernels of training samples and of each held-out one do not depend on genotypes of other held-out ones."""
    rng = np.random.default_rng(3)
    values = rng.integers(0, 3, (N, P)).astype(float)
    values[rng.random((N, P)) < 0.25] = np.nan
    train, test = np.arange(8), np.arange(8, N)
    X = np.where(np.isnan(values), np.nanmean(values[train], axis=0), values)
    squares = ((X[:, None] - X) ** 2).sum(axis=2)
    dense = {"none": X @ X.T, None: relationships(values, train)}[spec.get("transform")]
    expected = dense if spec["function"] == "linear" else np.exp(-0.1 * squares)
    whole = np.asarray(dmkl.build(None, written(tmp_path / "a.bed", values), spec, train=train))[0]
    np.testing.assert_allclose(whole, expected, atol=2e-5)
    others = values.copy()
    others[9:] = rng.integers(0, 3, (N - 9, P))
    changed = np.asarray(dmkl.build(None, written(tmp_path / "b.bed", others), spec, train=train))[0]
    np.testing.assert_array_equal(changed[:9, :9], whole[:9, :9])
    # As new samples of a file of their own.
    known = dmkl.build(tmp_path / "t", written(tmp_path / "t.bed", values[train]), spec)
    assert not problems(tmp_path / "t")
    new = written(tmp_path / "n.bed", values[test])
    np.testing.assert_allclose(np.asarray(dmkl.build_cross(known, new))[0], expected[8:, :8], atol=2e-5)


def test_what_is_refused(tmp_path):
    values = dosages()
    bed = written(tmp_path / "a.bed", values, ["rs0", ".", *VARIANTS[2:-1], "."])
    with pytest.raises(InputError, match=r"ids of variants must be unique, but these repeat: \.; plink2 --set-all"):
        as_features(bed)
    values[:, 3] = np.nan
    with pytest.raises(InputError, match="has no value in 1 of its 9 columns in the training samples: rs3; leave"):
        dmkl.build(None, written(bed, values), RAW)
    values = dosages()
    values[4] = np.nan
    with pytest.raises(InputError, match="samples lack features: 'dosages: impute' is missing for 1 of 13"):
        dmkl.build(None, written(bed, values), RAW)
    with pytest.raises(InputError, match=r"no kernel.* 'dosages'|dosages .*kernel"):
        open_files(bed)
    bed.write_bytes(bed.read_bytes()[:-4])
    with pytest.raises(InputError, match=r"a\.bed cannot be read with the \.bim and \.fam beside it: "):
        as_features(bed).blocks["dosages"].read(slice(0, N))
