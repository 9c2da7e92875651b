"""The documentation as a site: ``make docs`` builds it into docs/_build/html, and a warning is an error.

The pages are written for a git host first. There, ``../results/...`` leads to the results; here, the results are copied in beside the
pages and the links are turned to the copies.
"""

import shutil
from pathlib import Path
from typing import Any

import psiphi

project = "psiphi"
author = "The psiphi authors"
version = release = psiphi.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.viewcode"]
exclude_patterns = ["_build", ".*"]

html_theme = "furo"
html_title = f"psiphi {release}"
html_copy_source = False

myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3
highlight_language = "none"  # a block that names no language is output or a formula

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
default_role = "code"  # docstrings write names in single backticks

HERE = Path(__file__).parent
RESULTS = HERE / "_results"


def copy_results(_app: Any) -> None:
    """The reports of all results and what they link to."""
    shutil.rmtree(RESULTS, ignore_errors=True)
    shutil.copytree(HERE.parent / "results", RESULTS)


def turn_links(_app: Any, _name: str, source: list[str]) -> None:
    """From the results in the repository to their copies in the site."""
    source[0] = source[0].replace("](../results/", "](_results/").replace("](../results)", "](results.md)")


def quote_bars(_app: Any, _what: str, _name: str, _obj: Any, _options: Any, lines: list[str]) -> None:
    """In docstrings a bar is an absolute value, never a substitution."""
    lines[:] = [line.replace("|", r"\|") for line in lines]


def setup(app: Any) -> None:
    app.connect("autodoc-process-docstring", quote_bars)
    app.connect("builder-inited", copy_results)
    app.connect("source-read", turn_links)
