"""Names are data: text of strangers made safe for each medium in which it is shown.

Agents, columns and files may be called anything: terminal escapes, line ends, markup, formulas, TeX. One function for each medium;
all of them keep ordinary names as they are.
"""

import html as _html
import json as _json
import re
import unicodedata
from typing import Any

LONGEST_NAME = 80
"""Characters of a name that tables and pictures show."""
LONGEST_SENTENCE = 4_000
"""Characters of a sentence."""

_UNSEEN = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
"""Unicode's categories of what is not seen but does something: controls, directions of writing, halves of characters, line ends."""

_FORMULA = re.compile(r"'*[=+\-@\t\r|%]")
_GUARDED = re.compile(r"'+[=+\-@\t\r|%]")


def visible(text: str) -> str:
    """Whatever would not be seen, as the escape that Python writes for it."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(_escaped(c) if unicodedata.category(c) in _UNSEEN else c for c in text)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape", "surrogatepass").decode()


def short(text: str, most: int = LONGEST_NAME) -> str:
    """At most so many characters."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def sentence(text: object) -> str:
    """A sentence for people, on one line, wherever it is printed."""
    whole = visible(str(text)[: LONGEST_SENTENCE + 1])
    return whole if len(whole) <= LONGEST_SENTENCE else f"{whole[: LONGEST_SENTENCE - 2]}…."


def terminal(name: object) -> str:
    """For a terminal, to be printed as it is (no markup is read from it)."""
    return visible(short(str(name)))


def markdown(name: object, most: int = LONGEST_NAME) -> str:
    """For running text and tables in Markdown: nothing in it is a mark, a link, HTML or a formula."""
    marked = re.sub(r"([\\`*_{}\[\]#!|~$])", r"\\\1", visible(short(str(name), most)))
    return _html.escape(marked, quote=False).replace("://", ":&#47;/")


def html(name: object) -> str:
    """For HTML, between tags and in attributes."""
    return _html.escape(visible(short(str(name))))


def json(value: Any) -> str:
    """JSON that can stand in a page: no character of it opens or closes a tag."""
    text = _json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text.replace("&", r"\u0026").replace("<", r"\u003c").replace(">", r"\u003e")


def picture(name: object) -> str:
    """For matplotlib, whose SVG is XML: no TeX, no control character, and no leading underscore, which would hide it from a legend."""
    text = visible(short(str(name))).replace("$", r"\$")
    return f"\u200a{text}" if text.startswith("_") else text


def csv(cell: object) -> object:
    """For a table that a spreadsheet may open: text that would be a formula gets an apostrophe in front. Numbers stay numbers."""
    return f"'{cell}" if isinstance(cell, str) and _FORMULA.match(cell) else cell


def from_csv(cell: str) -> str:
    """What `csv` was given."""
    return cell[1:] if _GUARDED.match(cell) else cell


def rich(name: object) -> str:
    """In a table on the terminal: no control characters, and no mark-up of rich's."""
    return terminal(name).replace("[", "\\[")


def file_name(name: str) -> str:
    """A name as a part of a path."""
    return re.sub(r"[^A-Za-z0-9.]+", "-", name).strip("-.") or "run"
