"""README.md and the pages of docs/: their blocks of Python run, and the names in them exist."""

import importlib
import re
import runpy
import textwrap
import warnings
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pytest
from helpers.stand_ins import STAND_INS

import dmkl
from dmkl._version import RELEASE

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = {path.name: path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs").glob("*.md"))}


def blocks_of(page):
    return re.findall(r"^```python\n(.*?)^```$", page, flags=re.MULTILINE | re.DOTALL)


def run(block, result):
    exec(compile(block, "page", "exec"), result)


def without_numbers(line):
    """Leave out measured values and times; counts of fits and passes stay."""
    return re.sub(r"\d*\.\d[\d.e-]*|\d+(?= s\b)", "#", line)


@pytest.mark.slow
def test_the_lines_of_the_readme_run_in_an_empty_folder_and_print_and_draw_what_it_shows(tmp_path, monkeypatch, capsys):
    (block,) = blocks_of(README)
    assert sum(bool(line.strip()) for line in block.splitlines()) <= 10
    monkeypatch.chdir(tmp_path)
    run(block, {})
    printed = without_numbers(capsys.readouterr().out)
    (shown,) = re.findall(r"^```text\n(.*?)^```$", README, flags=re.MULTILINE | re.DOTALL)
    assert [line for line in shown.splitlines() if without_numbers(line) not in printed] == []
    picture = ROOT / re.search(r"^!\[.*\]\((.*\.png)\)$", README, flags=re.MULTILINE)[1]
    same_picture(tmp_path / picture.name, picture)


def same_picture(drawn, kept):
    drawn, kept = plt.imread(drawn), plt.imread(kept)
    assert drawn.shape == kept.shape
    assert np.mean(np.abs(drawn - kept)) < 0.02  # tolerates other fonts, but no other map


@pytest.mark.slow
def test_the_kept_figures_are_those_that_the_script_draws(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "docs")
    importlib.import_module("figures").draw_all(tmp_path)
    kept = {path.name: path for path in (ROOT / "docs" / "_static" / "figures").iterdir()}
    assert sorted(kept) == sorted(path.name for path in tmp_path.iterdir())
    for name, path in kept.items():
        same_picture(tmp_path / name, path)


def without_code(page):
    return re.sub(r"^```\w+$.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


def anchors(page):
    headings = re.findall(r"^#+ (.*)$", without_code(page), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading).lower().replace(" ", "-") for heading in headings}


def test_links_of_pages_lead_to_files_and_sections_of_the_repository():
    for page in [ROOT / "README.md", *ROOT.glob("[A-Z]*.md"), *ROOT.glob("[dps]*/**/*.md")]:
        text = without_code(page)
        linked = re.findall(r"\]\((?!https?:|mailto:)([^)\s#]*)#?([^)\s]*)\)", text)
        linked += [(name, "") for name in re.findall(r"^```{\w+} (\S+\.png)", text, flags=re.MULTILINE)]
        for path, anchor in linked:
            target = page.parent / path if path else page
            assert not path.startswith("_tutorials"), page
            assert target.exists(), (page, path)
            assert not anchor or anchor in anchors(target), (page, path, anchor)


@pytest.mark.parametrize("page", ["README.md", "pipelines/README.md"])
def test_the_readmes_are_short(page):
    assert len((ROOT / page).read_text(encoding="utf-8").splitlines()) <= 120


def test_tutorials_on_public_data_bring_them_with_their_licence_and_end_in_a_page_and_a_table():
    folder = ROOT / "docs" / "tutorials"
    pages = {path: path.read_text(encoding="utf-8") for path in folder.glob("plot_*.py")}
    data = [path for path in folder.iterdir() if path.suffix in {".bed", ".bim", ".csv", ".fam", ".h5ad"}]
    for path in data:
        licence = path.with_suffix(".LICENSE")
        assert path.stat().st_size < 300_000
        assert licence.exists()
        assert any(path.name in page and licence.name in page for page in pages.values())
    on_public_data = [page for page in pages.values() if re.search(r"^# .*\bSource: ", page, flags=re.MULTILINE)]
    assert len(on_public_data) >= 4
    assert len({path.stem for path in data}) >= 4
    for page in pages.values():
        assert (page in on_public_data) != ("simulated" in page)
        last = page.split("# One page to share, one table to paste\n")[1]
        assert "dmkl.report(" in last
        assert "print(" in last
    for page in on_public_data:
        assert re.search("licence", page)
        assert re.search(r"\b(dis)?agree", page)


def test_the_version_to_cite_is_that_of_the_package():
    assert f"version: {RELEASE}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"## {RELEASE} " in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_the_reference_has_every_public_name():
    listed = re.findall(r"^   dmkl\.(\w+)$", PAGES["reference.md"], re.MULTILINE)
    assert sorted(listed) == sorted(set(dmkl.__all__) - {"__version__"})


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, page in PAGES.items() if blocks_of(page)])
def test_the_blocks_of_a_page_run_one_after_another(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    result = {}
    blocks = blocks_of(PAGES[name])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for block in blocks:
            run(block, result)
    assert capsys.readouterr().out.count("\n") >= sum(block.count("print(") for block in blocks) > 0


@pytest.mark.slow
def test_the_lines_with_a_client_run_on_workers(cluster, tmp_path, monkeypatch):
    (block,) = re.findall(r"^ {4}from distributed .*?(?=\n\n\S)", PAGES["clusters.md"], flags=re.DOTALL | re.MULTILINE)
    monkeypatch.chdir(tmp_path)
    STAND_INS["kernels.zarr"](tmp_path / "kernels.zarr")
    result = {"dmkl": dmkl}
    run(textwrap.dedent(block).replace("tcp://host:8786", cluster.scheduler_address), result)
    result["client"].close()
    assert np.isfinite(result["search"].best_score_)


def test_paths_named_in_commands_are_there():
    named = r"(?:python(?: -m pytest)?) ((?:pipelines|tests|storage)[\w/.]*)"
    pages = "\n".join([*(path.read_text(encoding="utf-8") for path in ROOT.glob("[A-Z]*.md")), *PAGES.values()])
    paths = re.findall(named, pages)
    assert len(paths) > 5
    assert [path for path in paths if not (ROOT / path).exists()] == []
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE)
    made = set(re.findall(r"(?:^ {4}|`)make ([\w-]+)", pages, flags=re.MULTILINE))
    assert len(made) > 10
    assert made <= {*targets}


def test_sections_of_pipelines_that_pages_name_are_there():
    pages = "\n".join(page.read_text(encoding="utf-8") for page in (ROOT / "pipelines" / "results").glob("*.md"))
    titles = re.findall(r"^#+ (.*)$", pages, flags=re.MULTILINE)
    measured = PAGES["comparison.md"].split("## Measured")[1]
    named = re.findall(r'"([A-Z][^"]+)"', measured)
    assert len(named) > 5
    assert [title for title in named if title not in titles] == []


def test_messages_that_are_explained_are_those_of_the_code():
    source = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "dmkl").rglob("*.py"))
    source = re.sub(r'"\s*\n\s*f?"', "", source)  # join literals of several lines
    terms = [line for line in PAGES["troubleshooting.md"].splitlines() if line.startswith('"')]
    quoted = [text for line in terms for text in re.findall(r'"([^"]+)"', line)]
    assert len(quoted) > 8
    assert [text for text in quoted if text not in source] == []


def test_the_floors_of_the_architecture_are_those_that_imports_are_checked_by():
    drawn = runpy.run_path(ROOT / "docs" / "floors.py")["floors"]()
    assert drawn in (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
