"""The documentation is true as far as a machine can tell: its examples run, and its links lead somewhere."""

import doctest
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.glob("*.md"))
ALL = [*PAGES, *sorted(ROOT.glob("*.md"))]
LINK = re.compile(r"\]\(([^)\s]+)\)")


def words(heading: str) -> str:
    """A heading as the anchor that a git host and the site give it."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def anchors(page: Path) -> set[str]:
    return {words(line.lstrip("#")) for line in page.read_text(encoding="utf-8").splitlines() if re.match(r"#{1,3} ", line)}


@pytest.mark.parametrize("page", [page for page in PAGES if ">>> " in page.read_text(encoding="utf-8")], ids=lambda page: page.stem)
def test_examples_do_what_the_page_says(page, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    with capfd.disabled():
        failed, tried = doctest.testfile(str(page), module_relative=False, optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    assert tried > 0
    assert not failed


@pytest.mark.parametrize("page", ALL, ids=lambda page: page.stem)
def test_links_lead_somewhere(page):
    for link in LINK.findall(page.read_text(encoding="utf-8")):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{page.name} links to {link}"
        if anchor:
            assert anchor in anchors(target), f"{page.name} links to {link}"


def test_the_index_leads_to_every_page():
    listed = set(re.findall(r"^([a-z_-]+)$", (DOCS / "index.md").read_text(encoding="utf-8"), re.MULTILINE))
    assert {page.stem for page in PAGES} - {"index"} <= listed


@pytest.mark.parametrize("page", ALL, ids=lambda page: page.stem)
def test_python_blocks_can_be_parsed(page):
    for block in re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL):
        compile(block, page.name, "exec")


TERMS = re.compile(r"expected (was|were)\b|\b(nobody|somebody)\b|\bwho is paid\b|(?<![\w.\]\[:])\.\d", re.IGNORECASE)
PLAIN = [page for page in ALL if page.stem != "CHANGELOG"]


MODULES = sorted((ROOT / "src").rglob("*.py"))


@pytest.mark.parametrize("page", PLAIN, ids=lambda page: page.stem)
def test_words_are_plain(page):
    """No "nobody" or "somebody" for what has a name, no "expected was", and 0.97 with its zero."""
    prose = re.sub(r"```.*?```|`[^`]*`|<!-- numbers.*?/numbers -->|\]\([^)]*\)", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert not [found[0] for found in TERMS.finditer(prose)]


def test_words_of_the_code_are_plain():
    """The same for docstrings and messages. One task's name has been in published cells since before."""
    words = re.compile(r"\b(nobody|somebody|anybody)\b|\bbut expected\b|expected (was|were)\b", re.IGNORECASE)
    found = [f"{page.name}: {line}" for page in MODULES for line in page.read_text(encoding="utf-8").splitlines() if words.search(line)]
    assert found == ['shared.py:     "multi-task": "what nobody else wants",']
