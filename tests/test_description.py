"""Descriptions of results: human names of kernels, digits and intervals of tables, and the renderings of one table."""

import math

import numpy as np
import pandas as pd
import pytest
from helpers.references import few_columns

import dmkl
from dmkl.cli.output import show_tables
from dmkl.description import Column, Table, human_names, number
from dmkl.reports.page import Page, Section, render

GENES = ["X-linear-HALLMARK_B_CELL", "X-linear-HALLMARK_DNA_REPAIR", "X-linear-HALLMARK_NFKB_IL6_UP"]


@pytest.mark.parametrize(
    ("names", "labels", "ends"),
    [
        (GENES, ["B cell", "DNA repair", "NFKB IL6 up"], ("X-linear-HALLMARK_", "")),
        (["layers/a-rbf", "layers/b-rbf"], ["a", "b"], ("layers/", "-rbf")),
        (["rbf-1e-3", "rbf-1e-2"], ["1e-3", "1e-2"], ("rbf-", "")),  # numbers stay whole
        (["noise_1", "noise_2"], ["noise_1", "noise_2"], ("", "")),
        (["A_B", "A B"], ["A_B", "A B"], ("", "")),  # labels differ as names do
        (["alone-rbf"], ["alone-rbf"], ("", "")),
        (["a_1, sum", "a_2, sum", "b_1, sum"], ["a_1", "a_2", "b_1"], ("", ", sum")),
        (["x/y", "x/", "x/yy", "x/yz"], ["x/y", "x/", "x/yy", "x/yz"], ("", "")),
    ],
)
def test_names_of_kernels_without_what_they_share(names, labels, ends):
    assert human_names(names) == (labels, *ends)


def test_numbers_have_three_digits():
    texts = {0.44: "0.440", 0.09391: "0.0939", 123.4: "123", 1234.5: "1,234", 3.0: "3.00", 1.2e-5: "1.20e-05"}
    assert {value: number(value) for value in texts} == texts
    assert [number(value) for value in (3, math.nan, math.inf)] == ["3", "–", "inf"]


def test_a_table_has_intervals_and_the_name_in_full():
    values = {"mean": [0.5, 0.98, np.nan], "margin": [0.25, 0.1, np.nan], "low": [0.2, 0, 1]}
    frame = pd.DataFrame({"kernel": GENES, **values})
    columns = [Column("kernel", form="kernel"), Column("mean", error="margin", limits=(0, 1))]
    table = Table(frame, [*columns, Column("low", upper="mean")], kernels=GENES)
    assert [[cell.text for cell in row] for row in table.cells(frame)] == [
        ["B cell", "0.500 ± 0.25", "0.200 to 0.500"],
        ["DNA repair", "0.980 (0.88 to 1)", "0.00 to 0.980"],
        ["NFKB IL6 up", "", "≥ 1.00"],
    ]
    assert table.names == "Names of kernels: X-linear-HALLMARK_…, in capitals, with _ for spaces"


def test_one_table_in_the_terminal_the_page_the_notebook_and_json(capsys):
    tables, y = few_columns()
    K = dmkl.build(None, dict(zip(GENES, tables.values(), strict=True)), {"function": "linear"}, labels=y)
    description = dmkl.stability(dmkl.MKFDA(p=2, lam=0.1), K, n_resamples=2).describe()
    assert [row["kernel"] for row in description.as_data()["kernels"]] == list(K.names)
    table = description.tables["kernels"]()
    show_tables(table)
    out, notebook = " ".join(capsys.readouterr().out.split()), description._repr_html_()
    page = render(Page("t", "a.", {"x": "y"}, (), (Section("s", table=table),))).replace("<wbr>", "")
    for row, name in zip(table.cells(table.frame), K.names, strict=True):
        assert row[0].text != row[0].full == name
        assert all(cell.text in out for cell in row)
        for text in (page, notebook):
            assert f'title="{name}"' in text
            assert all(f">{cell.text}<" in text for cell in row)
