"""Names are data: whatever somebody is called, nothing but the name is seen."""

import io
from xml.dom import minidom

import pytest
from hypothesis import given
from hypothesis import strategies as st

from psiphi import printable
from psiphi.errors import UserError

PLAIN = ["ann", "driver 7", "Zoë", "ψ_φ-learning", "R+G", "北京", "a.b@c"]


@pytest.mark.parametrize("name", PLAIN)
def test_ordinary_names_stay_as_they_are(name):
    assert (
        printable.terminal(name)
        == printable.sentence(name)
        == printable.html(name)
        == printable.csv(name)
        == printable.picture(name)
        == name
    )
    assert printable.markdown(name).replace("\\", "") == name


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("\x1b[31m", "\\x1b[31m"),
        ("a\nb", "a\\nb"),
        ("\u202eexe", "\\u202eexe"),
        ("\udcff", "\\udcff"),
        ("\0", "\\x00"),
        ("\x9b2J", "\\x9b2J"),
    ],
)
def test_what_steers_a_terminal_is_shown_as_an_escape(name, shown):
    assert printable.terminal(name) == printable.sentence(name) == shown
    assert str(UserError(f"{name} is there.")) == f"{shown} is there."
    shown.encode()


@pytest.mark.parametrize("name", ["=1+1", "@x", "-2+3", "+1", "\tx", "'=1", "''@x", "|x", "%x"])
def test_formulas_are_guarded_and_come_back(name):
    guarded = printable.csv(name)
    assert isinstance(guarded, str) and guarded.startswith("'") and printable.from_csv(guarded) == name
    assert printable.csv(-3) == -3 and printable.csv(-0.5) == -0.5


@given(st.text(max_size=60))
def test_any_name_is_safe_in_every_medium(name):
    for text in (
        printable.terminal(name),
        printable.sentence(name),
        printable.markdown(name),
        printable.html(name),
        printable.picture(name),
    ):
        assert text.encode() is not None and not any(ord(c) < 32 or 127 <= ord(c) < 160 for c in text)
    assert "<" not in printable.html(name) + printable.markdown(name) and '"' not in printable.html(name)
    assert printable.from_csv(str(printable.csv(name))) == name or name.startswith("'")
    minidom.parseString(f"<text>{printable.html(name)}</text>")


def test_long_names_are_shortened_and_long_sentences_end():
    assert len(printable.terminal("x" * 10**6)) == 80
    assert len(str(UserError("x" * 10**6))) <= 4_000 and str(UserError("x" * 10**6)).endswith("….")


@pytest.mark.parametrize("name", ["$x", "$\\frac{1}{0}$", "$$", "\\$", "_hidden", "a\x1bb", "<script>"])
def test_pictures_draw_a_name_as_it_is(name):
    import matplotlib.pyplot as plt

    drawing, ax = plt.subplots(figsize=(1, 1))
    ax.plot([0, 1], label=printable.picture(name))
    ax.set_title(printable.picture(name))
    ax.legend()
    assert len(ax.get_legend_handles_labels()[1]) == 1
    data = io.BytesIO()
    drawing.savefig(data, format="svg")
    plt.close(drawing)
    minidom.parseString(data.getvalue())
    assert b"<script" not in data.getvalue()


def test_a_progress_bar_reads_no_markup_from_a_label(capsys, monkeypatch):
    from psiphi import progress

    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    bar = progress.Bar(printable.terminal("reading [/nonsense] \x1b[2J"), 0, 3)
    bar.advance(1, {"loss[/x]": 1.0})
    bar.say("done [/nonsense]")
    bar.close()
    assert "[/nonsense]" in capsys.readouterr().err
