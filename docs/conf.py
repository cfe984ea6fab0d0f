"""The documentation: `make docs` builds it, executes the tutorials, and fails at a warning or a broken link."""

from __future__ import annotations

import logging
import re
import shutil
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # sphinx_gallery imports save_returned_figure from this file

from sphinx_gallery.scrapers import figure_rst

import dmkl
from dmkl.pictures import figure_of

logging.getLogger("dmkl").propagate = False  # otherwise Sphinx prints the progress of fits

project = "dmkl"
author = copyright = "The dmkl developers"
release = version = dmkl.__version__.partition("+")[0]

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx.ext.mathjax",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "sphinx_gallery.gen_gallery",
]
myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3
html_theme = "furo"
html_title = f"dmkl {release}"
html_static_path = ["_static"]
html_css_files = ["custom.css"]
templates_path = ["_templates"]
exclude_patterns = ["_build", "_templates", "tutorials", "**/sg_execution_times.rst", "sg_execution_times.rst"]
default_role = "literal"  # single backticks of docstrings name code
autosummary_generate = True
autosummary_ignore_module_all = False
autodoc_default_options = {"members": True, "inherited-members": True, "show-inheritance": False}
autodoc_typehints = "none"  # shapes and units are in the docstrings
autodoc_class_signature = "mixed"
napoleon_google_docstring = False
napoleon_use_rtype = False
sphinx_gallery_conf = {
    "examples_dirs": "tutorials",
    "gallery_dirs": "_tutorials",
    "within_subsection_order": "FileNameSortKey",
    "abort_on_example_error": True,
    "run_stale_examples": True,  # dmkl may have changed
    "download_all_examples": False,
    "show_signature": False,
    "image_scrapers": ("matplotlib", "conf.save_returned_figure"),
}


def save_returned_figure(block, block_vars, gallery_conf):
    """Show the figure of the axes that end a block of a tutorial: dmkl's figures are unknown to pyplot."""
    values = block_vars["example_globals"]
    if not hasattr(values.get("___"), "_repr_png_"):  # sphinx-gallery's name of the last expression
        return ""
    path = next(block_vars["image_path_iterator"])
    figure_of(values["___"]).savefig(path, dpi=130, bbox_inches="tight")
    values["___"] = None
    return figure_rst([path], gallery_conf["src_dir"])


def _of_others(app, what, name, obj, skip, options):
    """Leave out what scikit-learn adds to every estimator, which is documented there."""
    return skip or str(getattr(obj, "__module__", "")).startswith("sklearn")


def _link_executed_tutorials(app, name, source):
    """Lead to the pages of executed tutorials, where the same pages on a code host lead to their files."""
    source[0] = re.sub(r"\]\(tutorials/(\w+)\.py\)", r"](_tutorials/\1.rst)", source[0])
    source[0] = source[0].replace("](tutorials)", "](_tutorials/index.rst)")


def _copy_reports(app, exception):
    """Copy the report pages that tutorials write into the folder of the tutorials."""
    for page in Path(app.srcdir, "tutorials").glob("*.html"):
        shutil.copy(page, Path(app.outdir, "_tutorials"))


def setup(app):
    app.connect("autodoc-skip-member", _of_others)
    app.connect("source-read", _link_executed_tutorials)
    app.connect("build-finished", _copy_reports)
