"""Covariates from files: the numbers and categories of each sample, for every file format."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from dmkl.cli.parsing import parse_steps
from dmkl.errors import InputError
from dmkl.inputs import read_covariates

NAMES = ["007", "12", "3"]
TABLE = pd.DataFrame({"age": [50.25, 61.1, 0.1 + 0.2], "site": ["n", "s", "n"]}, NAMES)


def test_a_table_one_of_its_columns_and_geneticists_lines(tmp_path):
    TABLE.to_csv(tmp_path / "c.txt", index_label="sample", sep=";")
    pd.testing.assert_frame_equal(read_covariates(tmp_path / "c.txt"), TABLE, check_exact=True)
    pd.testing.assert_frame_equal(read_covariates(tmp_path / "c.txt:site"), TABLE[["site"]])
    lines = ["FID IID PC1 PC2", "f1 a 0.5 1", "f1 b -9 2", "f2 c 1.5 3"]
    (tmp_path / "pcs.pheno").write_text("\n".join(lines))
    expected = pd.DataFrame({"PC1": [0.5, np.nan, 1.5], "PC2": [1.0, 2.0, 3.0]}, ["a", "b", "c"])
    pd.testing.assert_frame_equal(read_covariates(tmp_path / "pcs.pheno"), expected)


def test_what_is_unknown_is_no_category(tmp_path):
    (tmp_path / "c.csv").write_text("sample,site,age\na,n,1\nb,NA,2\nc,s,\n")
    table = read_covariates(tmp_path / "c.csv")
    assert table["site"].isna().tolist() == [False, True, False]
    np.testing.assert_array_equal(table["age"], [1, 2, np.nan])
    with pytest.raises(InputError, match="every covariate of every sample, but 'site' of sample 'b'"):
        parse_steps(f"residualize={tmp_path / 'c.csv'}")


@pytest.mark.parametrize(("text", "missing"), [("a,n,2\nb,s,3\n", "columns"), ("visit,age\n1,50\n1,61\n", "samples")])
def test_a_table_that_does_not_name_its_samples_or_columns_is_refused(text, missing, tmp_path):
    (tmp_path / "c.csv").write_text(text)
    with pytest.raises(InputError, match=f"c.csv cannot be read: .*c.csv does not name its {missing}, .*'sample'"):
        parse_steps(f"residualize={tmp_path / 'c.csv'}")
