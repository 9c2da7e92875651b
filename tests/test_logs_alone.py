"""The benchmark of rewards from logs alone (benchmarks/logs_alone): every cell is there once, and the report says what the cells say."""

import dataclasses
import functools
import json
import sys
import types
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks" / "logs_alone"))

import figures  # pyright: ignore[reportMissingImports]
import learner  # pyright: ignore[reportMissingImports]
import report  # pyright: ignore[reportMissingImports]
import run  # pyright: ignore[reportMissingImports]
import store  # pyright: ignore[reportMissingImports]
import sweeps  # pyright: ignore[reportMissingImports]
import worlds  # pyright: ignore[reportMissingImports]

import psiphi
from psiphi import stats
from psiphi.errors import UserError

ORIGIN = {"command": "python run.py --sweep few", "commit": "abc", "versions": {"psiphi": "0.1.0", "jax": "0.10.2"}}
TINY = sweeps.Setting(episodes=5)
SWEEPS = {
    "few": sweeps.Sweep(("drive", "items_random"), {"five": TINY, "walk": sweeps.Setting(episodes=5, background=200)}),
    "again": sweeps.Sweep(("drive",), {"the same": TINY}),
    "many": sweeps.Sweep(("drive",), {"2 agents": sweeps.Setting(episodes=5, agents=2)}),
    "shuffled": sweeps.Sweep(("drive",), {"ids shuffled": sweeps.Setting(episodes=5, shuffled=True)}),
}


# --- A learner that knows the truth --------------------------------------------------------------------------------------


class Oracle:
    """psiphi.ITD as the benchmark uses it: its rewards are the true ones with some noise, unless it is cautious."""

    fits: list[tuple[int, int, int | None]] = []
    """Of every fit: its seed, the steps of its log and those of its background."""

    def __init__(self, config=None, seed=0):
        self.rng, self.seed = np.random.default_rng(seed), seed

    def fit(self, demos, *, background=None, progress=True):
        assert not progress
        self.fits.append((self.seed, len(demos), None if background is None else len(background)))
        self.world = next(world for world in (small("drive"), small("items_random")) if world.names == demos.names)
        if not set(demos.agents) <= set(self.world.agents):
            self.world = sweeps.with_agents(self.world, len(demos.agents), self.seed)
        self.index = {obs.tobytes(): s for s, obs in enumerate(self.world.obs)}
        found = [types.SimpleNamespace(agent=demos.agents[0], name="thin"), types.SimpleNamespace(agent=None, name="few agents")]
        self.verdict = types.SimpleNamespace(doubtful=(demos.agents[0],), findings=found)
        return self

    def reward(self, agent, **options):
        def paid(obs, action, next_obs, terminated):
            assert obs.shape == next_obs.shape and action.shape == terminated.shape == obs.shape[:1]
            s = self.states(obs)
            leads_there = (self.world.obs[self.world.next_state[s, action]] == next_obs[:, None]).all(axis=2)
            same = leads_there & (self.world.ends[s, action] == terminated[:, None])
            assert same.any(axis=1).all(), "what is paid for can happen"
            true = self.world.reward(agent)[s, action, same.argmax(axis=1)]
            return (-true if options.get("caution") == 0.3 else true) + 1e-6 * self.rng.normal(size=len(true))

        return paid

    def policy(self, agent):
        q = figures.optimal_policy(self.world, self.world.reward(agent))
        return types.SimpleNamespace(values=lambda obs: q[self.states(obs)])

    def states(self, obs):
        return np.array([self.index[row.tobytes()] for row in obs])


@functools.cache
def small(name: str) -> worlds.World:
    """A world with two agents who are soon done with planning."""
    world = worlds.items_random(layouts=1) if name == "items_random" else worlds.drive()
    return dataclasses.replace(world, gamma=0.5, tasks=dict(list(world.tasks.items())[:2]))


@pytest.fixture
def oracle(monkeypatch):
    """Small worlds, small sweeps and a learner that knows the truth."""
    monkeypatch.setitem(vars(psiphi), "ITD", Oracle)  # which leaves the real one unloaded
    monkeypatch.setattr(sweeps, "_world", small)
    monkeypatch.setattr(sweeps, "SWEEPS", SWEEPS)
    monkeypatch.setattr(figures, "WALK", 500)
    monkeypatch.setattr(Oracle, "fits", [])
    return Oracle


def completed(out: Path, names=("few",), seeds=(0,), chosen=("drive",), execute=figures.measured) -> list[store.Cell]:
    run.complete(sweeps.plan(names, chosen, seeds), out, ORIGIN, 1, execute)
    return store.read(out)


class Stub:
    """Instead of fits: counts them, and says the same of every agent."""

    def __init__(self):
        self.fits = []

    def __call__(self, fit):
        self.fits.append(fit)
        return [{"agent": agent, "scores": {"default": 1.0}, "seconds": 100.0, "measuring_s": 5.0} for agent in sweeps.agents_of(fit)]


@pytest.fixture
def stub(oracle):
    return Stub()


# --- Cells ---------------------------------------------------------------------------------------------------------------


def test_cells_are_complete(oracle, tmp_path):
    cells = completed(tmp_path, ("few", "many", "shuffled"), (3,), ("drive", "items_random"))
    own = {"drive": small("drive").agents, "items_random": small("items_random").agents}
    expected = {("few", condition, world, 3, agent) for condition in ("five", "walk") for world in own for agent in own[world]}
    expected |= {("many", "2 agents", "drive", 3, agent) for agent in ("agent 0", "agent 1")}
    expected |= {("shuffled", "ids shuffled", "drive", 3, agent) for agent in own["drive"]}
    assert sorted(map(store.key_of, cells)) == sorted(expected)
    for cell in cells:
        assert {key: cell[key] for key in ORIGIN} == ORIGIN
        assert cell["scores"].keys() == set(report.SCORES) and cell["seconds"] >= 0
        assert cell["scores"]["default"] == pytest.approx(1, abs=1e-3) and cell["scores"]["plain"] == pytest.approx(1, abs=1e-3)
        assert cell["scores"]["cautious"] < 0.5, "caution 0.3 is asked for by that name"
        assert cell["scores"]["imitation"] == pytest.approx(1, abs=1e-3)
        assert cell["starc"] < 1e-3 and cell["starc_plain"] < 1e-3 and cell["r_all"] == pytest.approx(1, abs=1e-3)
        assert (cell["test_scores"] is not None) == (cell["world"] == "items_random")
        assert cell["test_scores"] is None or cell["test_scores"]["default"] == pytest.approx(1, abs=1e-3)
        assert cell["log_findings"] == ["few agents"] and (cell["findings"] == ["thin"]) == cell["doubtful"]
        assert store.fit_of(cell).setting == SWEEPS[cell["sweep"]].conditions[cell["condition"]]
    of_fits: dict[sweeps.Fit, list[bool]] = {}
    for cell in cells:
        of_fits.setdefault(store.fit_of(cell), []).append(cell["doubtful"])
    assert all(sum(doubtful) == 1 for doubtful in of_fits.values())
    assert len(oracle.fits) == len(of_fits) == 6
    assert {walk is not None and walk >= 200 for _, _, walk in oracle.fits} == {True, False}


def test_rewards_are_asked_for_in_batches(oracle, monkeypatch):
    world = small("drive")
    log = figures.demonstrations(world, 2)
    learned = learner.learned(log.demos, None, 0)
    sizes = []

    def counted(agent, caution, steps):
        sizes.append(len(steps.action))
        return learned.reward(agent, caution, steps)

    monkeypatch.setattr(figures, "MOST_ROWS", 700)
    found = figures.everywhere(world, learned._replace(reward=counted), "fast", None)
    possible = (world.chance > 0) & world.live[:, None, None]
    assert sum(sizes) == possible.sum() > 700 and max(sizes) <= 700
    np.testing.assert_allclose(found, np.where(possible, world.reward("fast"), 0), atol=1e-4)
    broken = learned._replace(reward=lambda agent, caution, steps: np.full(len(steps.action), np.nan))
    with pytest.raises(ValueError, match="not finite"):
        figures.everywhere(world, broken, "fast", None)


def test_a_constant_truth_has_no_correlation():
    flat, steep = np.full(5, -1.0), np.arange(5.0)
    assert figures.correlation(steep, flat) is None and figures.correlation(flat, steep) == 0
    assert figures.correlation(2 * steep, steep) == pytest.approx(1)
    assert figures.defined(np.nan, np.nan) is None and figures.defined(np.nan, 1.0) == 0 and figures.defined(0.5, 1.0) == 0.5


def test_minecart(monkeypatch):
    """The trips of the family are paid truly, so that the planner is right; its driver lets the cart stand."""
    pytest.importorskip("mo_gymnasium")
    minecart = figures.minecart
    paid = {
        (obs.tobytes(), int(action)): phi
        for trip in minecart.trips().values()
        for obs, action, phi in zip(trip.obs, trip.action, trip.phi, strict=False)
    }

    def reward(agent, caution, steps):
        nothing = np.zeros(3, np.float32)
        assert len(steps.obs) == len(steps.next_obs) == len(steps.action) == len(steps.terminated)
        phi = [paid.get((obs.tobytes(), int(action)), nothing) for obs, action in zip(steps.obs, steps.action, strict=True)]
        return np.array(phi) @ np.array(minecart.TASKS[agent])

    def values(agent, obs):
        return np.tile(np.eye(6)[minecart.NOTHING], (len(obs), 1))

    monkeypatch.setattr(figures, "WALK", 200)
    monkeypatch.setattr(learner, "learned", lambda demos, background, seed: learner.Learned(reward, values, (), ()))
    found = figures.measured(sweeps.Fit("minecart", sweeps.Setting(episodes=1, noise=0.0), 0))
    assert [figure["agent"] for figure in found] == list(minecart.TASKS)
    for figure in found:
        assert figure["scores"]["default"] == pytest.approx(1) and figure["r_own"] == pytest.approx(1)
        assert figure["scores"]["imitation"] < 0 and figure["scores"]["maxent"] is None
        assert np.isfinite(figure["r_random"])
    best = minecart.trips()[minecart.best_plan(minecart.true_reward("both"))]
    assert figures.trip_score(best, "both") == pytest.approx(1)
    json.dumps(found, allow_nan=False)


def test_steps_of_a_log_lead_on():
    world = small("drive")
    log = figures.demonstrations(world, 3)
    steps = figures._steps_of_log(log.demos)
    np.testing.assert_array_equal(steps.next_obs, world.obs[log.next_state])
    np.testing.assert_array_equal(steps.terminated, log.end)


# --- Sweeps --------------------------------------------------------------------------------------------------------------


def test_the_sweeps_are_those_that_were_asked_for():
    fits = sweeps.plan(sweeps.SWEEPS, sweeps.EVERY, range(2))
    assert len(fits) == 2 * (11 + 11 + 9 + 21 + 4 + 4)
    assert sum(len(places) for places in fits.values()) == 2 * (11 + 11 + 12 + 24 + 4 + 4)
    assert list({fit.seed: None for fit in fits}) == [0, 1]
    assert set(sweeps.SWEEPS["main"].worlds) == {*worlds.WORLDS, "minecart"}
    epsilon = [("epsilon", noise, 0) for noise in (0.0, 0.1, 0.3, 0.5)]
    boltzmann = [("boltzmann", noise, walk) for noise in (0.1, 0.3) for walk in (0, 10_000)]
    assert {(s.kind, s.noise, s.background) for s in sweeps.SWEEPS["noise"].conditions.values()} == {*epsilon, *boltzmann}
    assert all(fit.world == "costs" for fit in sweeps.plan(["main", "noise"], ["costs"], [0]))


def test_random_agents():
    world = worlds.items_fixed()
    few, many, other = (sweeps.with_agents(world, k, seed) for k, seed in ((2, 0), (30, 0), (2, 1)))
    assert len(many.agents) == 30 and set(few.agents) <= set(many.agents)
    own = np.array(list(world.tasks.values()))
    for agent in few.agents:
        np.testing.assert_array_equal(few.tasks[agent], many.tasks[agent])
        assert (few.tasks[agent] != other.tasks[agent]).any()
    drawn = np.array(list(many.tasks.values()))
    assert (drawn >= own.min(axis=0)).all() and (drawn <= own.max(axis=0)).all()
    assert len(np.unique(drawn, axis=0)) == 30


def test_seeds():
    assert run.seeds_of("0-2,5") == [0, 1, 2, 5] and run.seeds_of("1000") == [1000]
    with pytest.raises(run.argparse.ArgumentTypeError, match="expected numbers and ranges"):
        run.seeds_of("0-x")
    assert report.ranges([0, 1, 2, 5]) == "0-2, 5"


# --- Going on ------------------------------------------------------------------------------------------------------------


def test_nothing_is_done_twice(stub, tmp_path):
    completed(tmp_path, execute=stub)
    before = (tmp_path / store.FILE).read_bytes()
    completed(tmp_path, execute=stub)
    assert len(stub.fits) == 2 and (tmp_path / store.FILE).read_bytes() == before
    cells = completed(tmp_path, seeds=(0, 1), execute=stub)
    assert len(stub.fits) == len(set(stub.fits)) == 4 and len({*map(store.key_of, cells)}) == len(cells) == 8


def test_what_two_sweeps_ask_for_is_fitted_once(stub, tmp_path):
    together = completed(tmp_path / "together", ("few", "again"), execute=stub)
    assert len(stub.fits) == 2 and len(together) == 6
    later = completed(tmp_path / "later", ("few",), execute=stub) and completed(tmp_path / "later", ("again",), execute=stub)
    assert len(stub.fits) == 4 and sorted(map(store.key_of, later)) == sorted(map(store.key_of, together))
    shared = [cell for cell in later if cell["condition"] in ("five", "the same")]
    assert len(report.distinct(shared)) == 2 and len(shared) == 4


def test_a_cut_last_line_is_dropped_and_redone(oracle, tmp_path):
    whole = completed(tmp_path)
    path = tmp_path / store.FILE
    path.write_bytes(path.read_bytes()[:-40])
    left = [cell for cell in whole if store.key_of(cell)[:4] != store.key_of(whole[-1])[:4]]  # a line has all agents of a fit
    assert store.read(tmp_path) == left == whole[: len(left)] and left
    again = completed(tmp_path)
    assert len(oracle.fits) == 3 and oracle.fits[2] == oracle.fits[1], "only the fit whose line was cut is made again"
    assert [*map(store.key_of, again)] == [*map(store.key_of, whole)] and again[: len(left)] == left
    for one, other in zip(again[len(left) :], whole[len(left) :], strict=True):
        assert one["scores"] == pytest.approx(other["scores"], abs=1e-6)
    path.write_bytes(b"what?\n" + path.read_bytes())
    with pytest.raises(UserError, match="Line 1 of .* is not a cell"):
        completed(tmp_path)


def test_a_failed_fit_is_tried_again(stub, tmp_path, capsys):
    def failing(fit):
        if fit.setting.background:
            raise UserError("No luck.")
        return stub(fit)

    assert {cell["condition"] for cell in completed(tmp_path, execute=failing)} == {"five"}
    assert "No luck." in capsys.readouterr().err
    assert {cell["condition"] for cell in completed(tmp_path, execute=stub)} == {"five", "walk"} and len(stub.fits) == 2
    with pytest.raises(UserError, match="failed in a row"):
        completed(tmp_path, seeds=range(20), execute=lambda fit: 1 / 0)


def test_what_does_not_belong_together_is_refused(stub, tmp_path, monkeypatch):
    completed(tmp_path, execute=stub)
    with pytest.raises(UserError, match="expected one kind"):
        completed(tmp_path, seeds=(1000,), execute=stub)
    other = SWEEPS["few"]._replace(conditions={"five": dataclasses.replace(TINY, noise=0.3)})
    monkeypatch.setattr(sweeps, "SWEEPS", {"few": other})
    with pytest.raises(UserError, match="expected .*noise=0.3"):
        completed(tmp_path, execute=stub)


def test_forecast(stub, tmp_path):
    wanted = sweeps.plan(("few", "again"), ("drive",), range(3))
    before = run.forecast(wanted, [], 2)
    assert "6 of 6 fits are missing" in before and len(before.splitlines()) == 6
    known = completed(tmp_path, execute=stub)
    assert run.cost(next(iter(wanted)), known) == 110, "a fit and two agents"
    assert run.cost(next(iter(wanted)), []) == run.GUESS_S + 2 * run.GUESS_PER_AGENT_S
    after = run.forecast(wanted, known, 2)
    assert "4 of 6 fits are missing: about 7 min of one core, 4 min with 2 jobs" in after
    row = next(line for line in after.splitlines() if line.startswith("few / five / drive"))
    assert row.split()[-4:] == ["6", "4", "4", "min"]


# --- The report ----------------------------------------------------------------------------------------------------------


def cell(agent="a", seed=0, score=1.0, *, sweep="main", condition="no background", world="costs", **more) -> store.Cell:
    setting = dataclasses.asdict(sweeps.Setting(shuffled=sweep == "shuffled"))
    plain = {"starc": 0.25, "starc_plain": 0.5, "r_own": 0.5, "r_all": None, "r_random": 0.0}
    said = {"doubtful": False, "findings": [], "log_findings": [], "seconds": 80.0, "measuring_s": 1.0, "steps": 100}
    scores = {"scores": {name: score if name == "default" else 0.5 for name in report.SCORES}, "test_scores": None}
    place = {"sweep": sweep, "condition": condition, "world": world, "seed": seed, "agent": agent, "setting": setting}
    return {**place, **scores, **plain, **said, **ORIGIN, **more}


def test_the_numbers_of_the_report(tmp_path):
    scores = {("a", 0): 1.0, ("b", 0): 0.8, ("a", 1): 0.9, ("b", 1): -3.0, ("a", 2): 0.7, ("b", 2): 0.6}
    cells = [cell(agent, seed, score, doubtful=score == 0.8) for (agent, seed), score in scores.items()]
    found = report.estimate(cells, report.score_of("default"))
    assert found is not None and found.seeds == 3
    assert found.value == pytest.approx(np.mean([0.9, 0.8, 0.7, 0.6])), "of six, the least and the most are left out"
    by_seed = np.array([[1.0, 0.8], [0.9, -3.0], [0.7, 0.6]])
    every = [by_seed[list(drawn)].ravel() for drawn in np.ndindex(3, 3, 3)]
    possible = [stats.iqm(drawn) for drawn in every]
    assert found.low == pytest.approx(min(possible)) and found.high == pytest.approx(max(possible)), "each is likelier than 2.5 %"
    store.append(tmp_path, cells)
    text = report.render(tmp_path).read_text()
    rows = [line.split(" | ") for line in text.splitlines() if line.startswith("| no background")]
    assert rows == [
        ["| no background", f"0.75 [{found.low:.2f}, {found.high:.2f}]", *["0.50 [0.50, 0.50]"] * 5]
        + ["0.25 [0.25, 0.25]", "0.50 [0.50, 0.50]", "0.50 [0.50, 0.50]", "–", "0.00 [0.00, 0.00]", "0.17", "3", "80 |"]
    ]
    a, b = (next(line.split(" | ") for line in text.splitlines() if line.startswith(f"| {agent} | no background")) for agent in "ab")
    assert a[2].startswith("0.87 [") and b[2].startswith(f"{np.mean([0.8, -3.0, 0.6]):.2f} [") and (a[-3], b[-3]) == ("0.00", "0.33")
    assert (tmp_path / report.PICTURE).stat().st_size > 5_000
    head = text.split("![")[0]
    assert all(word in head for word in (ORIGIN["command"], "Commit: abc", "Seeds: 0-2", "psiphi 0.1.0, jax 0.10.2"))


def test_what_the_verdict_is_worth():
    cells = [
        cell("a", 0, 0.9),
        cell("a", 1, 0.2, r_own=-0.4),
        cell("a", 2, 0.1, doubtful=True, r_own=-0.1),
        cell("b", 0, 0.7, world="drive", doubtful=True),
        cell("b", 1, -1.5, world="drive"),
        cell("b", 1, -1.5, world="drive", sweep="noise", condition="epsilon 0.1"),
        *(cell(agent, seed, 0.0, sweep="shuffled", r_own=-1.0) for agent in "ab" for seed in range(4)),
    ]
    for shuffled in cells[6:]:
        shuffled["doubtful"] = (shuffled["agent"], shuffled["seed"]) in {("b", 0), ("a", 3), ("b", 3)}
        shuffled["log_findings"] = ["nobody"] if shuffled["seed"] == 1 else []
    text = "\n".join(report.verdict_parts(report.distinct(cells)))
    assert "| costs | 1 | 0.10 | 1.00 | 2 | 0.55 | 0.50 |" in text
    assert "| drive | 1 | 0.70 | 0.00 | 1 | -1.50 | 1.00 |" in text
    assert "| all | 2 | 0.40 | 0.50 | 3 | -0.13 | 0.67 |" in text
    assert "below 0.5: 2 of 5." in text
    assert "| all | 5 | 1 | 0 (0%) | 3 | 2 | 0 | 0 |" in text
    rows = [line for line in text.splitlines() if "main: " in line and not line.startswith("| main: ")]
    assert rows == ["| drive | b | main: no background | 1 | -1.50 |", "| costs | a | main: no background | 1 | 0.20 |"]
    assert "Flipped signs (correlation on own steps below 0): 2 of 5; not warned of: 1." in text
    assert "Logs with shuffled ids: 4; warned of every agent: 1, of some: 1, of nobody: 2." in text


def test_unfinished_seeds_and_missing_figures_are_left_out():
    cells = [cell("a", 0, 0.4), cell("b", 0, 0.6), cell("a", 1, 0.0)]
    found = report.estimate(cells, report.score_of("default"))
    assert found is not None and (found.value, found.seeds) == (0.5, 1) and report.interval(found) == "0.50"
    assert report.estimate(cells, report.figure_of("r_all")) is None
    assert report.estimate(cells, report.score_of("default", "test_scores")) is None
    rng = np.random.default_rng(0)
    x = np.where(rng.random((20, 9)) < 0.4, np.nan, rng.normal(size=(20, 9)))
    x[:, 0] = 1.0
    np.testing.assert_allclose(report.finite_iqm(x), [stats.iqm(row[np.isfinite(row)]) for row in x])


def test_unseen_layouts_have_a_row_of_their_own():
    tested = [cell("a", seed, 0.9, test_scores=dict.fromkeys(report.SCORES, 0.3)) for seed in range(2)]
    seen, unseen = report.rows_of(["100 episodes"], tested)
    assert seen[1] == "0.90 [0.90, 0.90]" and unseen[:2] == ["100 episodes, unseen layouts", "0.30 [0.30, 0.30]"]
    assert len(seen) == len(unseen) == len(report.HEADING) + 1


def test_nothing_to_report(tmp_path):
    with pytest.raises(UserError, match="nothing to report"):
        report.render(tmp_path)
