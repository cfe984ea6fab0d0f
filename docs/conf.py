"""The documentation: `make docs` builds it, and fails at a warning or a broken link."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import figures

import dmkl

logging.getLogger("dmkl").propagate = False  # Sphinx prints what the figures' fits tell of their progress

project = "dmkl"
author = copyright = "The dmkl developers"
release = version = dmkl.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx.ext.mathjax",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
]
myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3
html_theme = "furo"
html_title = f"dmkl {release}"
html_static_path = ["_static"]
html_css_files = ["custom.css"]
templates_path = ["_templates"]
exclude_patterns = ["_build", "_templates"]
default_role = "literal"  # single backticks of docstrings name code
autosummary_generate = True
autosummary_ignore_module_all = False
autodoc_default_options = {"members": True, "inherited-members": True, "show-inheritance": False}
autodoc_typehints = "none"  # shapes and units are in the docstrings
autodoc_class_signature = "mixed"
napoleon_google_docstring = False
napoleon_use_rtype = False


def _of_others(app, what, name, obj, skip, options):
    """Leave out what scikit-learn adds to every estimator, which is documented there."""
    return skip or str(getattr(obj, "__module__", "")).startswith("sklearn")


def setup(app):
    """Draw the figures before pages ask for them."""
    app.connect("autodoc-skip-member", _of_others)
    app.connect("builder-inited", lambda app: figures.draw_all(Path(app.srcdir) / "_figures"))
