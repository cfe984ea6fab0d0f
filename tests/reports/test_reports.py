"""Pages of models and results: what they tell, and that they stand alone."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics.pairwise import rbf_kernel

import dmkl
from dmkl.cli.main import main
from dmkl.errors import InputError
from dmkl.reports.page import MOST_ROWS, Page, Section, render

VOID = {"meta", "link", "br", "img", "path", "use", "rect", "circle", "stop"}


class Reader(HTMLParser):
    """Text and tags of a page, by name; refuses tags that are not closed in order."""

    def __init__(self, text):
        super().__init__()
        self.opened, self.texts, self.attributes = [], [], []
        self.feed(text)
        assert self.opened == []

    def handle_starttag(self, tag, attrs):
        self.attributes += attrs
        if tag not in VOID:
            self.opened.append(tag)

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.opened.pop() == tag

    def handle_data(self, data):
        if data.strip() and not {"style", "svg"} & set(self.opened):
            self.texts.append((self.opened[-1], " ".join(data.split())))

    def of(self, tag):
        return [text for one, text in self.texts if one == tag]


@pytest.fixture(scope="module")
def K(tmp_path_factory):
    rng = np.random.default_rng(0)
    y = np.array(["<apple>", "pear", "plum"])[np.arange(60) % 3]
    views = [rng.normal(size=(60, 4)) + shift * (np.arange(60)[:, None] % 3) for shift in (1.5, 0.5, 0.0)]
    path = tmp_path_factory.mktemp("reports") / "set.zarr"
    return dmkl.create(path, [rbf_kernel(view) for view in views], names=["clear", "fair & poor", "noise"], labels=y)


@pytest.fixture(scope="module")
def found(K):
    return dmkl.search(dmkl.MKFDA(tol=1e-3), K, grid={"p": [1, 2, np.inf], "lam": [1e-4, 1e-2, 1]}, cv=3)


MADE = {
    "search": lambda K, found: found,
    "model": lambda K, found: found.best_,
    "machine": lambda K, found: dmkl.MKSVM().fit(K),
    "groups": lambda K, found: dmkl.GSMKL(n_groups=2).fit(K),
    "evaluation": lambda K, found: dmkl.evaluate(dmkl.MKFDA(), K, grid={"lam": [1e-2, 1]}, outer=2, inner=2),
    "analysis": lambda K, found: dmkl.analyze(K),
    "permutation test": lambda K, found: permuted(K),
}


def permuted(K):
    return dmkl.permutation_test(dmkl.MKFDA(p=2), K, grid={"lam": [1e-2]}, n_permutations=9, cv=3)


@pytest.mark.parametrize("kind", MADE)
@pytest.mark.filterwarnings("ignore::dmkl.errors.ConvergenceWarning")
def test_a_page_stands_alone_and_nothing_of_it_is_empty(kind, K, found):
    text = dmkl.report(MADE[kind](K, found))
    page = Reader(text)
    (title,) = page.of("h1")
    assert title in page.of("title")
    assert len(page.of("h2")) > 1
    assert len(page.of("dt")) == len(page.of("dd")) > 1
    answer = page.of("p")[0]
    assert answer[0] == answer[0].upper()
    assert answer.endswith(".")
    wanted = [value for name, value in page.attributes if name in ("src", "href") and not value.startswith("#")]
    assert wanted == []  # no other file
    assert "<svg" in text
    assert "<script" not in text
    for section in re.findall(r"<section>.*?</section>", text, flags=re.DOTALL):
        assert re.search(r"<p>|<figure|<table|<pre>", section)
    assert "fair &amp; poor" in text or kind == "analysis"
    assert "<apple>" not in text


def test_a_page_of_a_search_says_what_was_chosen_and_how_the_sum_does(found):
    page = Reader(dmkl.report(found))
    answer = page.of("p")[0]
    assert f"p={found.best_params_['p']:g}" in answer
    best_sum = float(found.scores["mean_score"].sel(p=np.inf).max())
    assert all(line in answer for line in found.beside())
    assert ("as well as the choice" in found.beside()[0]) == np.isclose(found.best_score_, best_sum, rtol=1e-9)
    assert f"{best_sum:.4g}" in answer
    assert any("best of many" in text for text in page.of("p"))
    # p, λ, mean, error, gap, status of nine points; then the baselines, of which the sum names no kernel
    assert page.of("th")[:6] == ["p", "lam", "mean score", "standard error", "gap", "status"]
    assert "best kernel" not in page.of("th")
    baselines = found.baselines.to_dataframe().reset_index()
    assert len(page.of("td")) == 9 * 6 + int((baselines != "").to_numpy().sum())


def test_a_page_of_a_permutation_test_answers_in_sentences(K):
    found = permuted(K)
    page = Reader(dmkl.report(found))
    score = f"Accuracy {float(found.data['score']):.4g} at "
    assert page.of("p")[0].startswith(score)
    assert ". The point was chosen anew for each permutation." in page.of("p")[0]
    assert page.of("dd")[1].startswith(found.summary().splitlines()[-1])


@pytest.mark.slow
def test_what_a_page_says_to_run_gives_the_same(found, K):
    code = re.search(r"<pre>(.*?)</pre>", dmkl.report(found), flags=re.DOTALL).group(1)
    line = code.replace("&#34;", '"').splitlines()[-1]
    assert "tol=0.001" in line
    again = eval(line, {"dmkl": dmkl, "K": K})
    np.testing.assert_allclose(again.scores["score"], found.scores["score"])


@pytest.mark.slow
def test_a_choice_at_the_end_of_the_grid_is_told(K):
    found = dmkl.search(dmkl.MKFDA(p=1), K, grid={"lam": [1e3, 1e4, 1e5]}, cv=3)
    texts = Reader(dmkl.report(found)).of("p")
    assert any("is at the end of those searched" in text for text in texts)


def test_the_command_writes_the_page_and_replaces_nothing_unasked(found, tmp_path, capsys):
    found.save(tmp_path / "found")
    arguments = ["report", str(tmp_path / "found"), "-o", str(tmp_path / "page.html")]
    assert main(arguments) == 0
    assert (tmp_path / "page.html").read_text() == dmkl.report(found)
    assert main(arguments) == 1
    assert "exists already" in capsys.readouterr().err
    assert main([*arguments, "--overwrite"]) == 0


def test_what_has_no_report_is_refused(K):
    with pytest.raises(InputError, match="there is no report of a KernelSet"):
        dmkl.report(K)
    with pytest.raises(Exception, match="not fitted"):
        dmkl.report(dmkl.MKFDA())


def test_long_tables_are_cut_and_say_so():
    frame = pd.DataFrame({"name": [str(k) for k in range(100)], "value": np.arange(100) / 7})
    page = Reader(render(Page("t", "a.", {"x": "y"}, (), (Section("s", table=frame),))))
    assert len(page.of("td")) == 2 * MOST_ROWS
    assert f"… and {100 - MOST_ROWS} more rows in the data." in page.of("p")
