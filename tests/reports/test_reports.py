"""Pages of models and results, one or several: their content, without other files."""

import ast
import base64
import datetime
import html
import io
import json
import re
import shlex
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from sklearn.metrics import balanced_accuracy_score, make_scorer
from sklearn.model_selection import GroupKFold, KFold

import dmkl
from dmkl.cli.main import main
from dmkl.description import Table
from dmkl.reports.page import FIRST_ROWS, MOST_ROWS, Page, Section, render

VOID = {"meta", "link", "br", "img", "path", "use", "rect", "circle", "stop", "wbr"}


class Reader(HTMLParser):
    """Text and tags of a page, by name; refuses tags that are not closed in order."""

    def __init__(self, text):
        super().__init__()
        self.opened, self.texts, self.attributes = [], [], []
        # Tables that are parted elsewhere are read as a screen shows them.
        text = re.sub(r'<div class="wide at (?!screen)[a-z ]+">.*?</div>', "", text, flags=re.DOTALL)
        self.feed(text.replace("<wbr>", ""))
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
        return [text for opened, text in self.texts if opened == tag]

    def __contains__(self, words):
        return words in " ".join(text for _, text in self.texts)


def test_a_page_stands_alone_and_nothing_of_it_is_empty(kind, report):
    text = report(kind)
    page = Reader(text)
    (title,) = page.of("h1")
    assert title in page.of("title")
    assert len(page.of("h2")) > 1
    assert len(page.of("dt")) == len(page.of("dd")) > 1
    answer = page.of("p")[0]
    assert answer[0] == answer[0].upper()
    assert answer.endswith(".")
    wanted = [value for name, value in page.attributes if name in ("src", "href")]
    assert all(value.startswith(("#", "data:text/csv;base64,")) for value in wanted)  # no other file
    assert "<svg" in text
    assert "<script" not in text
    for section in re.findall(r"<section>.*?</section>", text, flags=re.DOTALL):
        assert re.search(r"<p>|<figure|<table|<pre>", section)
    assert "fair &amp; poor" in text or kind == "analysis"
    assert "<apple>" not in text


def test_a_page_of_a_search_answers_at_once(result, report):
    page = Reader(report("search"))
    answer = page.of("p")[0]
    assert f"p={result.best_params_['p']:g}, λ={result.best_params_['lam']:g}." in answer
    assert f"{result.best_score_:#.3g} ± " in answer
    weights = result.chosen["weight"].mean("fold")
    assert f"the largest: {weights.idxmax().item()} (" in answer
    assert "best of many" in page
    # The choice and each baseline with the paired difference; then the first ten points of the grid.
    assert page.of("th")[:4] == ["model", "parameters", "accuracy in validation", "difference"]
    scores = result.chosen["score"].values
    assert page.of("td")[:2] == ["MKFDA", f"{scores.mean():#.3g} ± {scores.std(ddof=1) / 3**0.5:.2g}"]
    for row in result.comparison()[1:].to_dict("records"):
        higher = row["difference"] > row["margin"] > 0
        assert ("higher" in re.search(rf"([^.;]+) {row['model']}", answer)[1]) == higher
        assert row["model"] in page
    assert page.of("th")[4:10] == ["p", "λ", "accuracy", "worst gap", "status", "chosen"]


def code_of(text):
    """The code and the commands on a page, in its order."""
    sections = re.findall(r'<section style="order: (\d+)">(.*?)</section>', text, flags=re.DOTALL)
    ordered = "".join(section for _, section in sorted(sections, key=lambda pair: int(pair[0])))
    return list(map(html.unescape, re.findall(r"<pre>(.*?)</pre>", ordered, flags=re.DOTALL)))


def run_again(text, **given):
    """Run the first code on a page as it is, but for labels in memory."""
    *lines, last = code_of(text)[0].replace("y = ...", "y = y_").splitlines()
    names = {f"{name}_": value for name, value in given.items()}
    exec("\n".join(lines), names)
    return eval(last, names), last


SITES = pd.Series(np.arange(60) % 12 // 2, [str(i) for i in range(60)], name="site")
SOME = np.arange(59, 6, -1)
SEARCH = {"grid": {"p": [np.inf], "lam": [1e-2]}, "scoring": ["balanced_accuracy", "accuracy"]}
LAMS = {"grid": {"lam": [1e-2, 1.0]}}
OTHER_LABELS = np.array(["a", "b", "c"])[np.arange(60) % 3]
PERMUTED = {"grid": {"p": [1, np.inf]}, "n_permutations": 4, "groups": SITES, "blocks": SITES // 3, "random_state": 1}
AGAIN = {
    "groups": ("search", {**SEARCH, "cv": 3, "groups": SITES}, "cv=StratifiedGroupKFold(n_splits=3"),
    "a seed": ("search", {**SEARCH, "cv": KFold(3, shuffle=True, random_state=4)}, "random_state=4, shuffle=True"),
    "no seed": ("search", {**SEARCH, "cv": KFold(3, shuffle=True), "rule": "one_standard_error"}, "cv=result.folds"),
    "a part": ("search", {**SEARCH, "cv": 2}, "n_splits=2"),
    "nested": ("evaluate", {**LAMS, "outer": GroupKFold(3), "groups": SITES, "scoring": "matthews"}, "GroupKFold("),
    "labels": ("evaluate", {**LAMS, "outer": 2, "y": OTHER_LABELS}, ", y, "),
    "importance": ("importance", {**LAMS, "cv": 3, "kernel_groups": {"two": ["clear", "noise"]}, "shapley": 2}, "two"),
    "stability": ("stability", {"n_resamples": 4, "n_selected": 1, "groups": SITES, "random_state": 3}, "n_selected=1"),
    "permuted": (
        "permutation_test",
        {**PERMUTED, "cv": 3, "exchange": "groups", "choose": "fixed", "scoring": ["matthews"]},
        "blocks=result.data.sample_block",
    ),
}


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=[pytest.mark.slow] * (of[0] == "evaluate")) for case, of in AGAIN.items()]
)
def test_what_a_page_says_to_run_gives_the_same_answer(case, K, tmp_path):
    (function, arguments, words), path = AGAIN[case], str(tmp_path / "result")
    learner = dmkl.MKFDA(p=2, lam=0.1, tol=1e-3, steps=("cosine", "center"))
    part = K.select(["noise", "clear"])[SOME, SOME] if case == "a part" else K
    result = getattr(dmkl, function)(learner, part, **arguments)
    result.save(path)
    again, line = run_again(dmkl.report(dmkl.load(path), source=path), y=arguments.get("y"))
    assert "tol=0.001" in line
    assert words in line
    data = (of.data.drop_vars([name for name in of.data if name.endswith("_seconds")]) for of in (again, result))
    xr.testing.assert_allclose(*data)


@pytest.mark.slow
def test_what_cannot_be_done_again_as_it_was_is_not_told(K):
    grid = {"lam": [1e-2]}
    for result in (
        dmkl.search(dmkl.Uniform(), K.center(), grid=grid, cv=2),
        dmkl.search(dmkl.Uniform(), K, grid=grid, cv=2, scoring=make_scorer(balanced_accuracy_score)),
        dmkl.evaluate(dmkl.Uniform(), K, grid=grid, outer=2, inner=KFold(2, shuffle=True)),
    ):
        assert "Code that repeats this" not in dmkl.report(result)
    older = result.searches["0"].scores.drop_vars("part")
    older.attrs = {name: value for name, value in older.attrs.items() if name not in ("asked", "splitter")}
    assert "Code that repeats this" not in dmkl.report(dmkl.SearchResult(older))


CALL = "__import__('os').system('id')"
ATTACKS = {
    "a float": {"asked": {"scoring": {"float": f'1"), {CALL}, float("1'}}},
    "an option of a solver": {"asked": {"scoring": {"solver": {"name": "direct", f"master={CALL}, x": "taylor"}}}},
    "a parameter": {"parameters": {f"tol={CALL} or 1, p": 1}},
    "an argument of a splitter": {"splitter": f"KFold(n_splits={CALL})"},
    "a name as an argument": {"splitter": "KFold(n_splits=K.view)"},
    "a comment": {"splitter": "KFold(n_splits=3, random_state=1 #\n, shuffle=True)"},
    "a direction": {"splitter": "KFold(n_splits=3, shuffle='\u202e')"},
    "a place": {"asked": {"set": f'x"), {CALL}, ("\u202e'}},
    "a text": {"asked": {"scoring": f'accuracy"), {CALL}, ("\u202e'}},
}


@pytest.mark.parametrize("case", ATTACKS)
def test_code_of_a_page_has_no_calls_that_a_file_asks_for(case, K):
    scores = dmkl.search(dmkl.MKFDA(), K, grid={"lam": [1e-2]}, cv=2).scores.copy()
    for name, change in ATTACKS[case].items():
        changed = change if isinstance(change, str) else json.dumps(json.loads(scores.attrs[name]) | change)
        scores.attrs[name] = changed
    page = dmkl.report(dmkl.SearchResult(scores))
    for code in code_of(page):
        assert all(line.isprintable() for line in code.split("\n"))
        called = [ast.unparse(node.func) for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Call)]
        assert set(called) <= {"dmkl.open", "dmkl.load", "dmkl.search", "dmkl.MKFDA", "KFold", "StratifiedKFold"}
        assert "#" not in re.sub(r"# \d kernels|# this result", "", code)
        assert "K.view" not in code


@pytest.fixture
def stored(tmp_path, monkeypatch):
    """A set of 60 samples in the current folder."""
    monkeypatch.chdir(tmp_path)
    rng, y = np.random.default_rng(0), np.arange(60) % 2
    X = rng.normal(size=(60, 4)) + y[:, None]
    kernels = {f"X-linear-HALLMARK_{name}": X[:, [k]] @ X[:, [k]].T for k, name in enumerate(("B_CELL", "DNA_REPAIR"))}
    names = [f"s{i}" for i in range(60)]
    return dmkl.create(tmp_path / "kernels.zarr", kernels, labels=np.array(["no", "yes"])[y], samples=names)


def test_a_page_begins_with_set_trait_samples_and_day(stored):
    y = pd.Series(stored.labels, stored.samples, name="disease")
    result = dmkl.search(dmkl.MKFDA(p=2), stored, y, grid={"lam": [1.0]}, cv=2, baselines="none")
    page = Reader(dmkl.report(result))
    assert page.of("dt")[:4] == ["set", "trait", "samples", "date"]
    day = datetime.date.fromisoformat(result.data.attrs["created_on"])
    assert page.of("dd")[:4] == ["kernels.zarr", "disease: no (30), yes (30)", "60", str(day)]
    assert abs(day - datetime.date.today()) <= datetime.timedelta(days=1)
    assert re.search(r"the largest: (B cell|DNA repair) \(", page.of("p")[0])
    Path("pheno.csv").write_text("".join(f"{name},{label}\n" for name, label in y.items()))
    result = dmkl.search(
        dmkl.MKFDA(p=2), dmkl.open("kernels.zarr").with_labels("pheno.csv"), grid={"lam": [1.0]}, cv=2, baselines="none"
    )
    assert Reader(dmkl.report(result)).of("dd")[1] == "pheno.csv: no (30), yes (30)"
    again, _ = run_again(dmkl.report(result))
    np.testing.assert_allclose(again.scores["score"], result.scores["score"])


@pytest.mark.parametrize(("rows", "searched"), [(slice(0, 40), False), (slice(None), False), (slice(0, 40), True)])
def test_code_and_command_of_what_is_saved_are_run_as_they_are(rows, searched, stored):
    learner, part = dmkl.MKFDA(p=2), stored[rows, rows]
    options = {"grid": {"lam": [1.0]}, "cv": 2, "baselines": "none"}
    saved = dmkl.search(learner, part, **options) if searched else learner.fit(part)
    saved.save("saved")
    code, python, command = code_of(dmkl.report(saved, source="saved"))
    model, names = saved.best_ if searched else saved, {}
    if not searched:
        exec(code, names)
        np.testing.assert_allclose(names["model"].weights_, model.weights_, rtol=1e-6)
    *lines, last = python.splitlines()
    exec("\n".join(lines), names)
    new = slice(40, 60) if rows.stop else slice(0, 60)
    np.testing.assert_array_equal(eval(last, names), model.predict(stored[new, rows]))
    assert main(shlex.split(f"{command} --out predicted.csv")[1:]) == 0
    assert len(pd.read_csv("predicted.csv")) == new.stop - new.start


def test_variance_components_have_the_likelihood_and_no_word_of_proofs(K, report):
    page = Reader(report("variance components"))
    table = dmkl.VarianceComponents().fit(K, np.arange(60) % 3 + np.sin(np.arange(60))).hsq_table()
    assert "Nothing is proven" not in page
    assert "their standard errors and p-values say how sure they are" in page
    cells = page.of("td")
    for source, value in zip(table["Source"], table["Variance"], strict=True):
        assert cells[cells.index(source) + 1] == f"{value:g}"
    assert {"V(G1)", "V(G1)/Vp", "logL", "Pval"} <= {*table["Source"]}


def test_names_put_no_tags_into_a_page_or_its_pictures(K):
    name = "--><script>alert(1)</script><!-- \" onload='alert(1)"
    named = dmkl.create(None, np.asarray(K), names=[name, "b", "c"], labels=K.labels)
    page = dmkl.report(dmkl.search(dmkl.Uniform(), named, grid={"lam": [1e-2]}, cv=2))
    assert "<script" not in page
    assert not [value for name, value in Reader(page).attributes if name.startswith("on")]


def test_the_command_writes_the_page_and_replaces_nothing_unasked(output_of, error_of, result, tmp_path):
    result.save(tmp_path / "found")
    arguments = ["report", tmp_path / "found", "-o", tmp_path / "page.html"]
    output_of(*arguments)
    assert (tmp_path / "page.html").read_text() == dmkl.report(result, source=str(tmp_path / "found"))
    assert "exists already" in error_of(*arguments)
    output_of(*arguments, "--overwrite")


def test_a_gap_of_machines_is_not_that_of_the_answer(K):
    for learner, bounded in ((dmkl.LPBoost(cv=2), "machine"), (dmkl.NCuts(2, steps="cosine"), "classifier")):
        page = dmkl.report(learner.fit(K), None)
        assert f"Proven: the objective of each {bounded} is within" in page
        assert f"The gap is that of the objective of each {bounded}, and says nothing about the weights." in page


def test_what_has_no_report_is_refused(K):
    for given, words in ((K, "no report of a KernelSet"), (dmkl.MKFDA(), "not fitted"), ([], "needs one at least")):
        with pytest.raises(Exception, match=words):
            dmkl.report(given)


def page_of(frame):
    return render(Page("t", "a.", {"x": "y"}, (), (Section("s", table=Table(frame)),), source="found.zarr"))


def test_tables_unfold_and_columns_where_nothing_stands_are_left_out():
    frame = pd.DataFrame({"name": [str(k) for k in range(2000)], "nothing": "", "value_of": np.arange(2000) / 7})
    page = Reader(page_of(frame))
    assert page.of("th")[:2] == ["name", "value of"]
    assert len(page.of("td")) == 2 * MOST_ROWS
    assert page.of("summary") == [f"{MOST_ROWS - FIRST_ROWS} more rows"]
    assert f"… and {2000 - MOST_ROWS} more rows in found.zarr." in page.of("p")
    assert "There are no rows." in Reader(page_of(frame[:0])).of("p")
    whole = dict(page.attributes)["href"].removeprefix("data:text/csv;base64,")
    pd.testing.assert_frame_equal(
        pd.read_csv(io.BytesIO(base64.b64decode(whole))), frame.astype({"name": int}).assign(nothing=np.nan)
    )
    assert "href" not in dict(Reader(page_of(frame.loc[np.arange(40_000) % 2000])).attributes)


def test_broad_tables_are_parted_where_they_do_not_fit_and_keep_their_first_column():
    frame = pd.DataFrame({"name": ["a", "b"], **{f"column {k}": [k, k / 7] for k in range(20)}})
    places = re.findall(r'<div class="wide at ([a-z ]+)">(.*?)</div>', page_of(frame), flags=re.DOTALL)
    assert " ".join(place for place, _ in places).split() == ["screen", "tablet", "phone", "paper"]
    for _, text in places:
        heads = [Reader(part).of("th") for part in re.findall(r"<table>.*?</table>", text, flags=re.DOTALL)]
        assert len(heads) > 1
        assert all(names[0] == "name" for names in heads)
        assert [name for names in heads for name in names[1:]] == [*frame][1:]
    assert "wide at" not in page_of(frame[["name", "column 0"]])


def test_thousands_of_targets_have_their_distribution():
    rng = np.random.default_rng(0)
    K = dmkl.create(None, [np.cov(rng.normal(size=(20, 30))) for _ in range(3)], names=["a", "b", "c"])
    model = dmkl.MKRidge(p=2).fit(K, pd.DataFrame(rng.normal(size=(20, 300)), K.samples))
    text = dmkl.report(model)
    assert len(text) < 200_000
    page, weights = Reader(text), model.weights_.transpose("kernel", ...).values
    shares = weights / weights.sum(axis=0)
    over = ["share, mean of 300 targets", "standard deviation", "smallest", "largest", "target of the largest", "wins"]
    assert page.of("th") == ["kernel", *over]
    shown = []
    for k in np.argsort(-shares.mean(axis=1)):
        figures = [shares[k].mean(), shares[k].std(ddof=1), shares[k].min(), shares[k].max()]
        n_wins = np.count_nonzero(shares.argmax(axis=0) == k)
        shown += ["abc"[k], *(f"{value:#.3g}" for value in figures), str(shares[k].argmax()), str(n_wins)]
    assert page.of("td") == shown


def test_names_that_somebody_gave_are_shown_as_they_are(unwieldy_report):
    text = unwieldy_report("evaluation").replace("<wbr>", "")
    assert text.count(">Actinobacteria_from_soil</t") >= 3  # two tables of classes, one of which has it as a heading
    assert "Actinobacteria from soil" not in text


def headings(page):
    """The results of the sections, in the order of a page of one column."""
    sections = re.findall(r'<section style="order: (\d+)[^>]*>\s*<h2>(.*?)</h2>', page)
    return [html.unescape(title).partition(":")[0] for _, title in sorted((int(k), title) for k, title in sections)]


def test_the_answer_comes_first_and_everything_is_described(K):
    rows = np.arange(45)
    model = dmkl.MKFDA(p=2).fit(K[rows, rows].select([0, 1]))
    trust = dmkl.stability(dmkl.MKFDA(p=2, lam=0.1, class_weight="balanced"), K, n_resamples=2)
    page = dmkl.report([trust, model])
    assert list(dict.fromkeys(headings(page))) == ["Model", "Stability", "How it was computed", "Parameters"]
    assert headings(page)[-1] == "Stability"  # code is in the last sections
    for words in (
        "MKFDA on 2 kernels of 45 samples",
        "classes <apple>, pear, plum",
        "center (center in feature space, by the means over the training samples)",
        "class_weight None balanced",
        "Stability has other kernels than Model: 3 and 2, 2 of them in both.",
        "Stability has other samples than Model: 60 and 45, 45 of them in both.",
        *dmkl.MKFDA().get_params(),
    ):
        assert words in Reader(page)


@pytest.mark.slow
def test_evidence_of_every_kind(output_of, K, tmp_path):
    sites, grid = np.repeat(["north", "south", "west"], 20), {"lam": [1e-2, 1]}
    made = {
        "added": dmkl.importance(dmkl.MKFDA(), K, grid=grid, cv=3),
        "significance": dmkl.permutation_test(dmkl.MKFDA(), K, None, grid, 9, cv=3, groups=sites),
        "estimate": dmkl.evaluate(dmkl.MKFDA(), K, grid=grid, outer=3, inner=2, groups=sites),
        "found": dmkl.search(dmkl.MKFDA(), K, grid=grid, cv=3, groups=sites),
    }
    for name, one in made.items():
        one.save(tmp_path / name)
    output_of("report", *(tmp_path / name for name in made), "-o", tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    text = Reader(page)
    kinds = ["Search", "Score on new samples", "Permuted labels", "Importance"]
    assert list(dict.fromkeys(headings(page)))[:4] == kinds
    assert f"{made['estimate'].mean_score_:#.3g} ± {made['estimate'].standard_error_:.2g} in test" in text
    assert "Against permuted labels: p = 0.1 (no permutation of 9 scored as high)." in text
    assert "<apple> (20 tested), pear (20 tested), plum (20 tested)" in text
    assert "dmkl.evaluate estimates the score" not in text
    other = dmkl.evaluate(dmkl.MKFDA(), K, grid={"lam": [1]}, outer=3, inner=2, groups=sites)
    text = Reader(dmkl.report([made["found"], other]))
    assert "is of a search of another grid" in text
    assert "dmkl.evaluate estimates the score" in text


@pytest.mark.slow
def test_the_page_of_a_prediction_has_the_least_sure_samples_and_drift(tmp_path, output_of):
    rng, y = np.random.default_rng(0), np.arange(60) % 2
    X = rng.normal(size=(60, 4)) + y[:, None]
    X[40:] *= 4.0  # new samples lie beyond those of training, whose probabilities are less sure
    names, classes = [f"s{i}" for i in range(60)], np.array(["no", "yes"])[y]
    K = dmkl.create(tmp_path / "k", {"a": X @ X.T}, labels=classes, samples=names)
    model = dmkl.MKFDA(p=2).fit(K[:40, :40])
    model.save(tmp_path / "m")
    output_of("predict", tmp_path / "m", tmp_path / "k", "--report", tmp_path / "p.html")
    page = Reader((tmp_path / "p.html").read_text(encoding="utf-8"))
    assert {"Calibration", "Confusion matrix", "Least sure samples", "Classes here and in training"} <= {*page.of("h2")}
    probability = model.predict_proba(K[40:, :40])
    accuracy = f"{100 * (model.predict(K[40:, :40]) == classes[40:]).mean():#.3g}".rstrip(".")
    assert f"Accuracy {accuracy} % on 20 samples" in page
    expected = float((probability**2).sum("class").mean())
    (warning,) = [text for text in page.of("p") if text.startswith("The probability of the true class")]
    assert f" is {expected:#.3g} ± " in warning
    assert warning.endswith("these samples are unlike those of training.")
    assert code_of((tmp_path / "p.html").read_text(encoding="utf-8")) == [
        f"dmkl predict {tmp_path / 'm'} {tmp_path / 'k'} --report {tmp_path / 'p.html'}"
    ]
    order, cells = probability.max("class").argsort().values, page.of("td")
    assert [name for name in cells if name in names] == [names[40 + k] for k in order]
