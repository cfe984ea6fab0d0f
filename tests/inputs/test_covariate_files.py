"""Covariates from files: the numbers and categories of each sample, for every file format."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from dmkl.cli.parsing import parse_steps
from dmkl.errors import InputError
from dmkl.inputs import read_covariates


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
