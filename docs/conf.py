"""Sphinx's settings; `pages` writes the pages on methods, commands, families and benchmarks before each build."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE)]  # pardec as it stands in this checkout, and the generators

import pages  # noqa: E402

import pardec  # noqa: E402

project = "pardec"
copyright = "the pardec authors; Apache-2.0"
version = release = pardec.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["pages", "drawings"]
myst_enable_extensions = ["colon_fence", "deflist", "fieldlist"]
myst_heading_anchors = 3
default_role = "code"  # docstrings quote code by single backticks
autodoc_typehints = "none"
autodoc_member_order = "bysource"
napoleon_google_docstring = True
napoleon_use_ivar = True  # an attribute is described once, in its class

html_theme = "furo"
html_title = f"pardec {release}"
html_static_path = ["static"]
html_css_files = ["pardec.css"]
html_copy_source = False
pygments_style = "friendly"
pygments_dark_style = "github-dark"
nitpicky = False


def _literal(app: Any, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    """Escapes docstrings, which are plain text: a star before a name stays a star, a doctest is a block."""
    for number, line in enumerate(lines):
        if not line.lstrip().startswith((">>>", "...", ":")):
            lines[number] = line.replace("**", r"\*\*").replace("|", r"\|")


def setup(app: Any) -> None:
    app.connect("builder-inited", lambda app: pages.write(HERE))
    app.connect("autodoc-process-docstring", _literal)
