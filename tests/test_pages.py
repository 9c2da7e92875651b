"""One page of any runs: what it shows are the files' numbers, and no name in them does anything; in a real browser, where there is one."""

import html.parser
import json
import re
from pathlib import Path

import numpy as np
import pytest

import tiny
from psiphi import cli, pages, stats
from psiphi.errors import UserError
from psiphi.experiments import cells

pytest.importorskip("jinja2", reason="pages need Jinja2: pip install 'psiphi[report]'")

HOSTILE = "</script><img src=x onerror=document.title='run'>\u202e{{7*7}}"
PNG = b"\x89PNG\r\n\x1a\n" + bytes.fromhex("0000000d49484452000000010000000108060000001f15c489")


def write_run(directory: Path, seed: int, gamma: float = 0.9, returns=(0.0, 0.5, 1.0), algorithm: str = "dqn") -> None:
    directory.mkdir(parents=True)
    run = {"algorithm": algorithm, "env": "coingrid", "task": "R+G", "agent": {"gamma": gamma, "hidden": [8]}, "seed": seed}
    (directory / "config.json").write_text(json.dumps({"run": run, "loop": {"seed": seed}}))
    rows = [
        {
            "step": 10 * i,
            "env_steps": 100 * i,
            "seed": seed,
            "wall_s": 2.0 * i,
            "eval/normalised_return": x + 0.1 * seed,
            "train/loss": None,
        }
        for i, x in enumerate(returns)
    ]
    (directory / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture(scope="module")
def directories(tmp_path_factory) -> Path:
    """Three seeds, another setting, a stranger's names, and the results of an experiment."""
    root = tmp_path_factory.mktemp("runs")
    for seed in range(3):
        write_run(root / f"dqn-{seed}", seed)
    write_run(root / "other", 0, gamma=0.5)
    write_run(root / HOSTILE.replace("/", "|"), 0, algorithm=HOSTILE)
    (root / "dqn-0" / "board.png").write_bytes(PNG)
    (root / "dqn-0" / "large.gif").write_bytes(b"GIF8" + bytes(pages.MOST_PICTURE_BYTES))
    (root / "dqn-0" / "page.png").write_bytes(b"<script>document.title='run'</script>")
    fixed = {"experiment": "mine", "env": "coingrid", "task": "ego", "config": {"agent": {"gamma": 0.9}}, "env_steps": 8, "train_s": 2.0}
    fixed |= {"wall_s": 4.0, "commit": None, "versions": {"jax": "1"}, "command": "psiphi reproduce mine.py"}
    curve = {"curve": {"env_steps": [0, 8], "normalised_return": [0.0, 1.0]}}
    found = [
        {**fixed, "method": method, "seed": seed, "metric": metric, "value": base + seed, "extra": curve}
        for base, method in ((5.0, "a"), (0.0, "b"))
        for seed in range(3)
        for metric in ("auc", "steps_to_90")
    ]
    cells.append(root / "mine", found)
    return root


@pytest.fixture(scope="module")
def page(directories) -> str:
    return pages.page([directories])


def test_runs_of_the_same_settings_are_one_line_and_others_say_what_is_different(page):
    data = json.loads(re.search(r'id="data">(.*?)</script>', page, re.S)[1])  # pyright: ignore[reportOptionalSubscript]
    lines = {line["label"]: line for panel in data for line in panel["lines"]}
    ours, other = lines["dqn · gamma = 0.9"], lines["dqn · gamma = 0.5"]
    assert ours["x"] == [0, 100, 200] and ours["each"] == {"0": [0, 0.5, 1.0], "1": [0.1, 0.6, 1.1], "2": [0.2, 0.7, 1.2]}
    assert ours["middle"] == pytest.approx([0.1, 0.6, 1.1]) and 1.0 <= ours["low"][2] < 1.05 and 1.15 < ours["high"][2] <= 1.2
    assert list(other["each"]) == ["0"] and other["low"] == other["middle"] == other["high"]
    (row,) = re.findall(r"<tr><th>agent.gamma</th>(.*?)</tr>", page)
    assert re.findall("<td>(.*?)</td>", row).count("0.5") == 1 and "<th>env</th>" not in page, "worlds are in other panels"


def test_cost_is_told(page):
    assert re.search(r"gamma = 0.9</th><td>3</td><td>200 steps</td><td>4.0</td><td>50</td><td>12</td>", page)
    assert "<td>8 steps</td><td>2.0</td><td>4</td>" in page


def test_methods_are_compared_and_fewer_steps_are_better(page):
    assert "P(a is better)" in page
    (row,) = re.findall(r"<tr><th>b</th>(.*?)</tr>", page)
    assert re.findall("<td>(.*?)</td>", row)[-1] == "0.50 [0.50, 0.50]", "more return and more steps: even"


def test_the_probability_of_improvement_counts_ties_half_and_tasks_alike():
    assert stats.probability_of_improvement([([2, 3], [1, 1])])[0] == 1.0
    assert stats.probability_of_improvement([([1, 1], [1, 1]), ([0.0], [1.0, 2.0, 3.0])]) == (0.25, 0.25, 0.25)
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=30), rng.normal(size=20) + 0.3
    value, low, high = stats.probability_of_improvement([(x, y)])
    assert value == pytest.approx(np.mean(x[:, None] > y)) and low < value < high


def test_the_papers_table_stands_beside_ours():
    text = pages.page([Path(__file__).parents[1] / "results" / "table-2"])
    (first,) = set(re.findall(r"<th>P\((.*?) is better\)</th>", text))
    rows = re.findall(r"<tr><th>(.*?)</th>(.*?)</tr>", text)
    assert first == "psiphi (default)" and any("paper" in name for name, _ in rows)
    better = [found[-1] for name, row in rows if name.startswith("SQIL") and (found := re.findall("<td>(.*?)</td>", row))]
    assert any(re.fullmatch(r"[01]\.\d\d \[[01]\.\d\d, [01]\.\d\d\]", x) for x in better)


class Tags(html.parser.HTMLParser):
    def __init__(self):
        super().__init__()
        self.seen, self.sources = [], []

    def handle_starttag(self, tag, attrs):
        self.seen.append(tag)
        self.sources += [value for name, value in attrs if name in ("src", "href")]


def test_no_name_is_markup_and_nothing_is_loaded(page):
    tags = Tags()
    tags.feed(page)
    assert tags.seen.count("img") == 1 and tags.seen.count("script") == 2
    assert all(source.startswith(("data:image/png;", "#")) for source in tags.sources)
    assert "49" not in re.findall(r"<h3>(.*?)</h3>", page) and "\u202e" not in page
    assert page.count("is too large or not a picture") == 2 and "http" not in page.replace("http-equiv", "")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("report {tmp}/none -o {tmp}/page.html", "none is not a directory, expected one with metrics.jsonl or cells.jsonl"),
        ("report {tmp} -o {tmp}/page.html", "has nothing to report, expected metrics.jsonl or cells.jsonl"),
        ("report -o {tmp}/page.html", "There is nothing to report, expected directories"),
        ("report {tmp} {tmp}", "2 directories are given, expected one"),
        ("report {tmp}/run -o {tmp}/page.html", "has metrics.jsonl but no config.json, expected both."),
    ],
)
def test_bad_input_gets_one_sentence_and_leaves_no_page(tmp_path, capsys, arguments, sentence):
    (tmp_path / "run").mkdir()
    if "/run" in arguments:
        (tmp_path / "run" / "metrics.jsonl").write_text("{}\n")
    with pytest.raises(SystemExit) as ended:
        cli.main(arguments.format(tmp=tmp_path).split())
    said = capsys.readouterr().err
    assert ended.value.code == 2 and sentence in said and said.count("\n") == 1 and not (tmp_path / "page.html").exists()


def test_ticks_are_round_and_hold_all():
    assert pages.ticks(0, 1) == [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    for low, high in ((-3.2, 17), (5, 5), (0, 1e-6), (-1e6, 4e6)):
        found = pages.ticks(low, high)
        assert found[0] <= low and found[-1] >= high and len(found) < 10


def test_without_jinja_the_command_is_named(monkeypatch, directories):
    monkeypatch.setitem(__import__("sys").modules, "jinja2", None)
    with pytest.raises(UserError, match=r"pip install 'psiphi\[report\]'"):
        pages.page([directories])


@pytest.mark.browser
def test_in_a_browser_values_are_read_by_pointer_and_keys_and_no_name_runs(directories, tmp_path):
    webdriver = pytest.importorskip("selenium.webdriver")
    path = pages.write([directories], tmp_path / "report.html")
    browser = tiny.chromium(1600)
    try:
        browser.get(path.as_uri())
        picture = browser.find_element("css selector", "[data-panel]")
        webdriver.ActionChains(browser).move_to_element(picture).perform()
        told = browser.find_element("css selector", "[data-values]").text
        assert re.search(r"dqn · gamma = 0.9 at 100: 0.6 \[0.5\d*, 0.[67]\d*\] \(seed 0: 0.5, seed 1: 0.6, seed 2: 0.7\)", told), told
        picture.send_keys("\ue014")  # the right arrow
        assert "dqn · gamma = 0.9 at 200: 1.1" in browser.find_element("css selector", "[data-values]").text
        assert browser.title == "6 directories of runs and results" and not browser.get_log("browser")
    finally:
        browser.quit()
