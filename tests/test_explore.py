"""The page: one file, nothing in it but data, numbers that are the model's; and in a real browser, where there is one."""

import base64
import dataclasses
import html.parser
import json
import re
from pathlib import Path

import numpy as np
import pytest

import psiphi
import tiny
from psiphi import cli, worlds
from psiphi.api import OFFLINE, Kinds, explore, files
from psiphi.api.shown import write
from psiphi.demos import Columns
from psiphi.errors import UserError
from test_infer import write_walks

HOSTILE = "</script><img src=x onerror=document.title='run'>"
SMALL = dataclasses.replace(OFFLINE, torso_hidden=(16,), phi_hidden=(16,), psi_hidden=(16,))


@pytest.fixture(scope="module")
def demos(tmp_path_factory) -> psiphi.Demonstrations:
    file = tmp_path_factory.mktemp("walks") / "walks.csv"
    write_walks(file, episodes=20)
    columns = Columns(agent="who", episode="walk", obs="x,y", action="way", num_actions=4)
    read = psiphi.Demonstrations.read(file, columns)
    return dataclasses.replace(read, agents=(HOSTILE, "bob"), names=("x <b>", "y"), action_names=("east", "north", "west", "south"))


@pytest.fixture(scope="module")
def itd(demos) -> psiphi.ITD:
    return psiphi.ITD(SMALL, seed=0, updates=20).fit(demos, progress=False)


def sorted_by(demos: psiphi.Demonstrations) -> Kinds:
    """As if the agents were kinds, of which episodes are by nine parts in ten."""
    shares = 0.1 + 0.8 * np.eye(2)[demos.episodes.agent]
    return Kinds(tuple(range(demos.num_episodes)), shares, {2: 0.0}, demos, shares)


@pytest.fixture(scope="module")
def pages(itd, demos, tmp_path_factory) -> Path:
    """A page of a log that was sorted into kinds, and one of a world."""
    directory = tmp_path_factory.mktemp("pages")
    itd.explore(sorted_by(demos), directory / "log.html", title=HOSTILE)
    made = tiny.run("itd")
    tiny.save_model(directory / "model", made)
    known = files.read(directory / "model").known
    assert known is not None
    write(directory / "board.html", known, None, dataclasses.replace(worlds.find("coingrid"), config=made.world))
    return directory


class Tags(html.parser.HTMLParser):
    """Every tag of a page, and what is written in its scripts."""

    def __init__(self):
        super().__init__()
        self.tags: list[str] = []
        self.outside: list[str] = []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.outside += [value for name, value in attrs if name in ("src", "href") and value]


def test_it_is_one_file_without_anything_from_outside_and_without_markup_of_strangers(pages):
    for name in ("log.html", "board.html"):
        text = (pages / name).read_text()
        found = Tags()
        found.feed(text)
        assert found.tags.count("script") == 2 and "img" not in found.tags and not found.outside
        assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", text) and len(text.encode()) < 5_000_000
    script = text.split("<script>")[1].split("</script>")[0]
    assert script.count("innerHTML") == 0 and "default-src 'none'" in text


def data_of(page: Path) -> dict:
    text = page.read_text().split('id="data">')[1].split("</script>")[0]
    return json.loads(text)


def test_names_travel_as_they_are(pages):
    found = data_of(pages / "log.html")
    assert found["policies"][0]["name"] == HOSTILE and found["columns"][0] == "x <b>" and found["title"] == HOSTILE
    assert found["actions"] == ["east", "north", "west", "south"]
    assert data_of(pages / "board.html")["actions"][2] == "go forward"


def unpacked(packed: dict) -> np.ndarray:
    """As the page reads it."""
    raw = np.frombuffer(base64.b64decode(packed["data"]), "<u2" if packed["bytes"] == 2 else "u1").astype(float)
    table = raw.reshape(-1, len(packed["low"])) * packed["step"] + packed["low"]
    return table.reshape(packed["shape"])


def test_what_is_read_back_is_off_by_half_a_step():
    rng = np.random.default_rng(0)
    array = rng.normal(size=(7, 3, 2)) * [1, 100]
    found = unpacked(explore.packed(array))
    assert found.shape == array.shape
    for i in range(2):
        assert np.abs(found[..., i] - array[..., i]).max() <= 0.51 * np.ptp(array[..., i].ravel().tolist() + [0.0]) / 65_535
    whole = np.array([0, 4, 65_535.0])
    assert (unpacked(explore.packed(whole, whole=True)) == whole).all()


def test_the_numbers_on_the_page_are_the_models(itd, demos, pages):
    found = data_of(pages / "log.html")
    log, steps = found["log"], found["log"]["steps"]
    assert steps == len(demos) and len(log["episodes"]) == demos.num_episodes
    led = explore.followed(demos)
    paid = np.asarray(itd.reward("bob")(demos.obs, demos.action, led, demos.terminated))
    np.testing.assert_allclose(unpacked(log["rewards"])[:, 1], paid, atol=1e-3)
    np.testing.assert_allclose(unpacked(log["chance"])[:, 0], itd.policy(HOSTILE).probabilities(demos.obs), atol=0.003)
    assert (unpacked(log["action"]) == demos.action).all()
    np.testing.assert_allclose(log["kinds"], sorted_by(demos).shares)
    np.testing.assert_allclose(unpacked(log["obs"])[:, :2], led, atol=1e-3)
    psi = unpacked(log["psi"])  # [S, P, E, A, sliders]; the first two sliders are the agents
    for k, agent in enumerate(itd.agents):
        chosen = psi[..., k].min(axis=2).max(axis=1).argmax(axis=1)
        assert np.mean(chosen == itd.set_preferences(agent).predict(demos.obs)) > 0.99


def test_the_verdict_greys_out_whom_it_warns_of(itd, pages):
    assert [p["doubtful"] for p in data_of(pages / "log.html")["policies"]] == [agent in itd.verdict.doubtful for agent in itd.agents]


def test_agents_that_are_alike_are_close_and_those_that_differ_most_are_shown():
    angle = np.linspace(0, 3, 40)
    likeness = np.cos(angle[:, None] - angle)
    at = explore.placed(likeness, range(40))
    np.testing.assert_allclose(np.linalg.norm(at[:, None] - at, axis=2) ** 2, 2 - 2 * likeness, atol=1e-6)
    assert explore.placed(np.ones((1, 1)), [0, 1]).tolist() == [[0, 0], [0, 0]]


def test_a_model_without_states_and_a_log_of_strangers_are_one_sentence_each(itd, demos, tmp_path, capsys):
    with pytest.raises(UserError, match="has no stored states to show: expected demonstrations beside it"):
        itd.explore(None, tmp_path / "page.html")
    with pytest.raises(UserError, match="have the agent 'eve', expected agents that the model knows"):
        itd.explore(dataclasses.replace(demos, agents=(HOSTILE, "eve")), tmp_path / "page.html")
    itd.save(tmp_path / "model")
    with pytest.raises(SystemExit) as left:
        cli.main(["explore", str(tmp_path / "model"), "-o", str(tmp_path / "page.html")])
    assert left.value.code == 2 and capsys.readouterr().err.count("\n") == 1 and not (tmp_path / "page.html").exists()


def test_the_command_writes_the_page(itd, demos, tmp_path):
    itd.save(tmp_path / "model")
    demos.write(tmp_path / "walks.npz")
    with pytest.raises(SystemExit) as left:
        cli.main(["explore", str(tmp_path / "model"), str(tmp_path / "walks.npz"), "-o", str(tmp_path / "page.html")])
    assert left.value.code == 0 and data_of(tmp_path / "page.html")["log"]["steps"] == len(demos)


def test_it_is_a_widget_in_a_notebook_and_a_figure(itd, demos):
    figure = itd.plot()
    assert len(figure.axes) >= 2
    pytest.importorskip("anywidget")
    widget = itd.explore(demos)
    assert widget.weights[0] == 1.0 and widget.data["actions"][0] == "east" and "export default" in str(widget._esm)


# --- In a browser --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def browser():
    found = tiny.chromium(2400)
    yield found
    found.quit()


MOVE = "const s = document.querySelectorAll('[data-slider]')[arguments[0]]; s.value = arguments[1]; s.dispatchEvent(new Event('input'));"


@pytest.mark.browser
def test_in_a_browser_sliders_move_the_agent_and_no_name_runs(browser, pages, itd, demos):
    browser.get((pages / "log.html").as_uri())
    told = browser.find_element("css selector", "[data-told=log]")
    for k, agent in enumerate(itd.agents):
        for i in range(len(itd.agents)):
            browser.execute_script(MOVE, i, 1 if i == k else 0)
        itd.set_preferences(agent)
        action = demos.action_names[itd.predict(demos.obs[0])]
        assert told.text.startswith(f"In the step that is replayed above: {action}, as ") and "networks would do the same" in told.text
    browser.execute_script(MOVE, 1, 0)
    assert told.text == "Nothing is wanted: move a slider."
    assert browser.find_element("css selector", "[data-sorted]").text == "Sorted by what is done: kind 1 90 %, kind 2 10 %."
    assert browser.find_element("tag name", "h1").text == HOSTILE and browser.title != "run"
    assert not browser.find_elements("tag name", "img") and not browser.get_log("browser")


@pytest.mark.browser
def test_in_a_browser_all_is_done_by_keys(browser, pages):
    browser.get((pages / "log.html").as_uri())
    bob = browser.find_element("css selector", '[data-agent="1"]')
    browser.execute_script("arguments[0].focus()", bob)
    bob.send_keys(" ")
    assert browser.execute_script("return document.querySelectorAll('select')[0].value") == "1"
    step = browser.find_element("css selector", "[aria-label='Step of the episode']")
    before = browser.find_element("css selector", "p.said").text
    step.send_keys("\ue014")  # the right arrow
    assert browser.find_element("css selector", "p.said").text != before and not browser.get_log("browser")


@pytest.mark.browser
def test_in_a_browser_the_agent_walks_on_a_board(browser, pages):
    browser.get((pages / "board.html").as_uri())
    slider = browser.find_element("css selector", "[data-slider]:not([disabled])")
    slider.send_keys("\ue014")
    collected = browser.find_element("css selector", "[data-collected]")
    assert collected.text.endswith("step 0.")
    button = next(b for b in browser.find_elements("tag name", "button") if b.text == "One step")
    button.click()
    button.click()
    assert collected.text.endswith("step 2.") and not browser.get_log("browser")
