"""One page of several results: the order of answer and evidence, what it describes, and what it warns of."""

from __future__ import annotations

import html
import re

import numpy as np
import pytest

import dmkl
from dmkl.cli.main import main
from dmkl.errors import InputError


def text_of(page):
    """The text of a page, without pictures."""
    without = re.sub(r"<(svg|style).*?</\1>", " ", page, flags=re.DOTALL)
    return " ".join(html.unescape(re.sub(r"<(?!wbr)[^>]+>", " ", without).replace("<wbr>", "")).split())


def headings(page):
    """The results that the sections are about, in the order of a page of one column."""
    sections = re.findall(r'<section style="order: (\d+)[^>]*>\s*<h2>(.*?)</h2>', page)
    return [html.unescape(title).partition(":")[0] for _, title in sorted((int(k), title) for k, title in sections)]


def test_the_answer_comes_first_and_everything_is_described(K):
    rows = np.arange(45)
    model = dmkl.MKFDA(p=2).fit(K[rows, rows].select([0, 1]))
    trust = dmkl.stability(dmkl.MKFDA(p=2, lam=0.1, class_weight="balanced"), K, n_resamples=2)
    page = dmkl.report([trust, model])
    text = text_of(page)
    assert "MKFDA on 2 kernels of 45 samples" in text
    assert list(dict.fromkeys(headings(page))) == ["Model", "Stability", "How it was computed", "Parameters"]
    assert headings(page)[-1] == "Model"  # code is the last section
    assert len(set(re.findall(r"<h2>.*?</h2>", page))) == len(headings(page))
    for words in (
        "samples 45",
        "classes <apple>, pear, plum",
        "kernels clear, fair & poor",
        "center (center in feature space, by the means over the training samples)",
        "class_weight None balanced",
        "Stability has other kernels than Model: 3 and 2, 2 of them in both.",
        "Stability has other samples than Model: 60 and 45, 45 of them in both.",
        *dmkl.MKFDA().get_params(),
    ):
        assert words in text
    with pytest.raises(InputError, match="needs one at least"):
        dmkl.report([])
    with pytest.raises(InputError, match="there is no report of a KernelSet"):
        dmkl.report([K])


@pytest.mark.slow
def test_evidence_of_every_kind(K, tmp_path):
    sites, grid = np.repeat(["north", "south", "west"], 20), {"lam": [1e-2, 1]}
    made = {
        "added": dmkl.importance(dmkl.MKFDA(), K, grid=grid, cv=3),
        "significance": dmkl.permutation_test(dmkl.MKFDA(), K, None, grid, 9, cv=3, groups=sites),
        "estimate": dmkl.evaluate(dmkl.MKFDA(), K, grid=grid, outer=3, inner=2, groups=sites),
        "found": dmkl.search(dmkl.MKFDA(), K, grid=grid, cv=3, groups=sites),
    }
    for name, one in made.items():
        one.save(tmp_path / name)
    assert main(["report", *(str(tmp_path / name) for name in made), "-o", str(tmp_path / "page.html")]) == 0
    page = (tmp_path / "page.html").read_text()
    text = text_of(page)
    kinds = ["Search", "Score on new samples", "Permuted labels", "Importance"]
    assert list(dict.fromkeys(headings(page)))[:4] == kinds
    assert f"{made['estimate'].mean_score_:.4g} ± {made['estimate'].standard_error_:.2g} in test" in text
    assert "Against permuted labels: p = 0.1 (no permutation of 9 scored as high)." in text
    assert "60, in 3 groups" in text
    assert "Search: 3, StratifiedGroupKFold(n_splits=3" in text
    assert "lam searched" in text
    assert "<apple> (20 tested), pear (20 tested), plum (20 tested)" in text
    assert "dmkl.evaluate estimates the score" not in text
    other = dmkl.evaluate(dmkl.MKFDA(), K, grid={"lam": [1]}, outer=3, inner=2, groups=sites)
    text = text_of(dmkl.report([made["found"], other]))
    assert "is of a search of another grid" in text
    assert "dmkl.evaluate estimates the score" in text
