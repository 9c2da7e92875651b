"""Learning beside others: what is shown online is what is learned from, runs continue, and the settings of figure 3 are complete."""

import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image, ImageSequence

import tiny
from psiphi import films, playing, replay, training, worlds
from psiphi.agents import ALGORITHMS, bc, watching
from psiphi.agents.bc import BCConfig
from psiphi.errors import UserError
from psiphi.experiments import highway as new_goals
from psiphi.experiments import paper, reproduce
from psiphi.experiments.reproduce import Effort
from psiphi.experiments.runs import run_of, saw
from psiphi.films import film
from psiphi.loops import runs, scan
from psiphi.training import NONE, Run, completed
from psiphi.types import Demonstration, Env, EnvSpec, Pace, TimeStep
from psiphi.worlds import highway, roundabout

FIGURE_3 = paper.EXPERIMENTS["figure-3"]

KINDS = 2


def parade() -> Env:
    """A world in which at time t two are to be seen: demonstrator t mod 2, who sees [t, 0] and does t mod 3, and nobody."""
    spec = EnvSpec((2,), jnp.float32, 3)

    def obs(t):
        return jnp.stack([t, 0 * t]).astype(jnp.float32)

    def reset(key):
        return jnp.zeros((), jnp.int32), obs(jnp.zeros((), jnp.int32))

    def step(t, action, key):
        both = lambda x: jnp.stack([x, x])  # noqa: E731
        shown = Demonstration(both(obs(t)), both(t % 3), jnp.ones(2), both(obs(t + 1)), both((t + 1) % 3))
        extras = {"demonstrator": jnp.stack([t % KINDS, jnp.int32(-1)]), "demonstration": shown}
        return t + 1, TimeStep(obs(t + 1), jnp.zeros(()), jnp.ones(()), jnp.zeros((), bool), extras)

    return Env(spec, reset, step)


def learner(agents: int = KINDS):
    return watching.watching(bc.make(BCConfig(torso_hidden=(8,), batch=4), parade().spec, agents, Pace(updates=10)))


def run(iterations: int, room: int = 10, agents: int = KINDS, watch=watching.watch, **options):
    loop = scan.LoopConfig(iterations=iterations, chunk=3, num_envs=1, prefill_steps=2)
    return scan.run(
        parade(), learner(agents), replay.no_demonstrations(parade().spec, agents, room), loop, watch=watch, progress=False, **options
    )


# --- Online demonstrations -----------------------------------------------------------------------------------------------


def test_what_is_shown_goes_to_the_ring_of_its_demonstrator():
    """8 steps, those before the first update included: times 0, 2, 4, 6 of one and 1, 3, 5, 7 of the other, nobody's nowhere."""
    state = run(6).agent()
    demos = state.agent.demos
    assert state.seen.tolist() == demos.count.tolist() == [4, 4]
    for k in range(KINDS):
        times = np.arange(k, 8, 2)
        assert demos.steps.obs[k, :4, 0].tolist() == times.tolist() and demos.steps.next_obs[k, :4, 0].tolist() == (times + 1).tolist()
        assert demos.steps.action[k, :4].tolist() == (times % 3).tolist()
        assert demos.steps.next_action[k, :4].tolist() == ((times + 1) % 3).tolist()


def test_a_full_ring_keeps_the_latest():
    demos = run(10, room=4).agent().agent.demos
    assert demos.count.tolist() == [4, 4]
    assert sorted(demos.steps.obs[0, :, 0].tolist()) == [4, 6, 8, 10] and sorted(demos.steps.obs[1, :, 0].tolist()) == [5, 7, 9, 11]


def test_who_is_not_told_apart_is_one():
    state = run(6, agents=1, watch=watching.watch_all_as_one).agent()
    assert state.seen.tolist() == [8] and state.agent.demos.steps.obs[0, :8, 0].tolist() == list(range(8))


def test_what_is_shown_is_learned():
    """Each demonstrator's policy knows what that one does at the times it was seen."""
    loop = scan.LoopConfig(iterations=400, chunk=400, num_envs=1, prefill_steps=6)
    agent = watching.watching(bc.make(BCConfig(torso_hidden=(32,), batch=16, learning_rate=1e-2), parade().spec, KINDS, Pace(updates=400)))
    world = parade()
    short = world._replace(step=lambda t, a, key: world.step(t % 6, a, key))
    result = scan.run(short, agent, replay.no_demonstrations(world.spec, KINDS, 64), loop, watch=watching.watch, progress=False)
    net = result.agent().agent.average
    for k in range(KINDS):
        times = jnp.arange(k, 6, 2)
        scores = bc.of_demonstrator(net, k)(jnp.stack([times, 0 * times], axis=1).astype(jnp.float32))
        assert jnp.argmax(scores, axis=1).tolist() == (times % 3).tolist()


def test_an_interrupted_run_continues_with_what_it_was_shown(tmp_path, monkeypatch):
    whole = run(9)
    saves = []

    def die(directory, carry, **where):
        save(directory, carry, **where)
        saves.append(where["step"])
        if len(saves) == 1:
            raise KeyboardInterrupt

    save = runs.save
    monkeypatch.setattr(runs, "save", die)
    with pytest.raises(KeyboardInterrupt):
        run(9, out=tmp_path, checkpoint_every_s=0.0)
    continued = run(9, out=tmp_path, checkpoint_every_s=0.0)
    assert saves == [3, 6, 9] and whole.agent().seen.tolist() == [6, 5]
    pairs = zip(jax.tree.leaves(whole.agent()), jax.tree.leaves(continued.agent()), strict=True)
    assert all(np.array_equal(a, b) for a, b in pairs)


# --- Settings ------------------------------------------------------------------------------------------------------------

MULTI = next(variant for variant in FIGURE_3.variants if variant.name == "highway-multi-task")


def of(name: str, variant: paper.Variant = MULTI, **effort) -> Run:
    """A method's run in a panel."""
    (method,) = [method for method in FIGURE_3.methods if method.name == name]
    return completed(run_of(FIGURE_3, variant, method, Effort(**effort)))


def num_demonstrators(run: Run) -> int:
    """How many a run tells apart."""
    world = worlds.find(run.env)
    shown = training.shown_to(run, world, tiny.spec_of(run), None)
    assert (shown.watch is None) == (shown.demos is None), "on the road, all that is shown is shown online"
    return len(shown.agents)


@pytest.mark.parametrize("variant", FIGURE_3.variants, ids=lambda variant: variant.name)
@pytest.mark.parametrize("method", FIGURE_3.methods, ids=lambda method: method.name)
def test_every_method_has_a_run_in_every_panel(variant, method):
    run = of(method.name, variant, steps=10_000)
    loop = training.loop_of(run)
    assert loop.env_steps(loop.iterations) == run.steps == 10_000 and run.env == variant.world
    spec, agents = tiny.spec_of(run), num_demonstrators(run)
    agent = ALGORITHMS[run.algorithm].make(run.agent, spec, agents, Pace(run.num_envs, loop.iterations * loop.updates_per_rollout))
    demos = replay.no_demonstrations(spec, agents, 3) if agents else None
    jax.eval_shape(agent.init, jax.random.key(0), demos)  # the config is one that the agent takes
    assert json.loads(json.dumps(dataclasses.asdict(run)))["steps"] == 10_000
    assert all(isinstance(words, str) for words in saw(run))


def test_who_watches_whom():
    assert [num_demonstrators(of(name)) for name in ("psiphi", "dqn", "bc", "sqil")] == [4, 0, 1, 1]
    assert of("dqn").demos == NONE and all(of(name).demos == training.ONLINE for name in ("psiphi", "bc", "sqil", "dqn-bc"))
    assert num_demonstrators(of("dqn-bc")) == 4
    assert num_demonstrators(of("psiphi-alone")) == 0
    assert saw(of("dqn"))[0] == "none" and saw(of("bc"))[2] == "none"


def test_what_can_matter_to_a_driver_explains_every_goal():
    """The cumulants of table-2-highway are linear in what every goal pays for speed and lane, up to a small rest."""
    config = highway.MULTI_TASK.config
    rng = np.random.default_rng(0)
    lane, speed = np.clip(rng.integers(0, 4, 2_000) + 0.2 * rng.normal(size=2_000), -0.5, 3.5), rng.uniform(16, 32, 2_000)
    obs = np.zeros((2_000, 6, 4), np.float32)
    obs[:, 0, 1], obs[:, 0, 2], obs[:, 1:, 0] = (4 * lane - 6) / 2, (speed - 25) / 10, 6.0
    phi = np.asarray(new_goals.features(config.lanes)(jnp.asarray(obs), jnp.zeros(2_000), jnp.asarray(obs), jnp.zeros(2_000, bool)))
    assert phi.shape[1] == new_goals.given(config).size
    for target, rank in np.asarray(new_goals.wishes(config, paper.EXPERIMENTS["table-2-highway"].goals)):
        paid = 0.5 * np.clip(1 - np.abs(speed - target) / 10, 0, 1) + 0.5 * np.clip(1 - np.abs(4 * lane - 4 * rank) / 6, 0, 1)
        rest = paid - phi @ np.linalg.lstsq(phi, paid, rcond=None)[0]
        assert 1 - rest.var() / paid.var() > 0.95


def test_imagined_goals_are_a_lane_and_a_speed_that_their_preferences_pay_most():
    """Twice every lane, once with a slow and once with a fast speed; no goal that is judged is asked for."""
    config, (low, high) = highway.MULTI_TASK.config, new_goals.SPEEDS
    lane, speed = (x.ravel() for x in np.meshgrid(np.arange(4), np.linspace(15, 37, 221), indexing="ij"))
    obs = np.zeros((lane.size, 6, 4), np.float32)
    obs[:, 0, 1], obs[:, 0, 2], obs[:, 1:, 0] = (4 * lane - 6) / 2, (speed - 25) / 10, 6.0
    phi = new_goals.features(config.lanes)(jnp.asarray(obs), jnp.zeros(lane.size), jnp.asarray(obs), jnp.zeros(lane.size, bool))
    paid = np.asarray(phi @ new_goals.imagined(config, 8, jax.random.key(0)).T)
    best = paid.argmax(axis=0)
    np.testing.assert_allclose(paid.max(axis=0), 1 - new_goals.OFFSET, atol=0.01)
    assert lane[best].tolist() == [0, 1, 2, 3] * 2
    middle = (low + high) / 2
    assert (low <= speed[best[:4]]).all() and (speed[best[:4]] <= middle).all()
    assert (middle <= speed[best[4:]]).all() and (speed[best[4:]] <= high).all()


def test_schedules_are_as_long_as_the_run(monkeypatch):
    made = []
    monkeypatch.setattr(scan, "run", lambda *_, **__: 1 / 0)
    known = ALGORITHMS["psiphi"]
    spied = known._replace(make=lambda config, spec, agents, pace, **_: made.append(pace) or known.make(config, spec, agents, pace))
    monkeypatch.setitem(ALGORITHMS, "psiphi", spied)
    with pytest.raises(ZeroDivisionError):
        training.train(dataclasses.replace(of("psiphi", steps=6_000), num_envs=4), progress=False)
    assert made[-1] == Pace(num_envs=4, updates=4 * 1_250)  # four after each of the steps that are not random


def test_the_figure_is_one_that_reports_can_draw():
    for method in FIGURE_3.methods:
        for variant in FIGURE_3.variants:
            figures = FIGURE_3.figures(method, variant)
            assert [figure.metric for figure in figures] == ["auc", "final_return", "steps_to_90"]
    assert all(isinstance(method, paper.Method) and method.how == "curve" for method in FIGURE_3.methods)
    assert {variant.world for variant in FIGURE_3.variants} < set(worlds.WORLDS)


def test_a_bad_run_gets_one_sentence():
    for change, message in [({"steps": 0}, "steps is 0 and updates is 0"), ({"room": 0}, "room is 0"), ({"steps": -1}, "steps is -1")]:
        with pytest.raises(UserError, match=message):
            completed(dataclasses.replace(of("dqn"), **change))


# --- On the road ---------------------------------------------------------------------------------------------------------

TINY = {"steps": 400, "prefill_steps": 80, "evaluate_every": 160, "room": 100, "num_envs": 4}


@pytest.mark.parametrize(
    ("algorithm", "changes"),
    [
        ("bc", {"prefill_steps": 0}),  # without random steps there is less to compile
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in [("psiphi", {}), ("dqn", {}), ("dqn", {"agent.bc_weight": 0.1, "demos": "online"}), ("sqil", {})]
        ),
    ],
)
def test_a_short_drive(algorithm, changes, monkeypatch):
    own = tiny.WORLDS["highway-multi-task"]
    monkeypatch.setitem(highway.SCENARIOS, "multi-task", own)  # so that IDM's return there counts as known
    left = []
    run_loop = scan.run
    monkeypatch.setattr(scan, "run", lambda *args, **options: left.append(run_loop(*args, **options)) or left[-1])
    trained = training.train(training.changed(tiny.run(algorithm, "highway-multi-task", **TINY, seed=3), changes), progress=False)
    start = changes.get("prefill_steps", 80)
    assert [row["env_steps"] for row in trained.rows] == sorted({start, start + 160, start + 320, 400}) and trained.env_steps == 400
    for row in trained.rows:
        assert np.isfinite(row["eval/normalised_return"]) and 0 <= row["eval/failed"] <= 1
        assert row["eval/normalised_return"] == pytest.approx(row["eval/return"] / highway.REFERENCE["multi-task"], rel=1e-4)
    state = left[0].agent()
    assert isinstance(state, watching.State) == (trained.demos is not None)
    if isinstance(state, watching.State):
        assert state.seen.sum() > 400  # two cars are near at most steps
        counts = np.minimum(state.seen, 100)
        assert trained.state.demos.count.tolist() == counts.tolist()


REFERENCES = {
    **{(f"highway-{name}", True): value for name, value in highway.REFERENCE.items()},
    **{(f"highway-{name}", False): value for name, value in highway.CONTINUOUS_REFERENCE.items()},
    ("roundabout", True): roundabout.REFERENCE,
    ("roundabout", False): roundabout.CONTINUOUS_REFERENCE,
}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "same"), REFERENCES)
def test_the_references_are_what_idm_earns(name, same):
    world = worlds.find(name)
    module, config = roundabout if name == "roundabout" else highway, dataclasses.replace(world.config, same_actions=same)
    got = jax.jit(lambda key: module.expert_returns(config, key, 512))(jax.random.key(1000))
    assert float(got["returns"].mean()) == pytest.approx(REFERENCES[name, same], abs=0.1)
    share = world.figures(config, world.own, got)["normalised_return"]
    assert float(share) == pytest.approx(1, abs=0.01), "IDM's own return, told as a share of IDM's"


def test_a_film_is_of_the_seeds_own_training_and_stands_in_the_report(tmp_path, monkeypatch):
    published = Path(__file__).parents[1] / "results" / "figure-3" / "cells.jsonl"
    some = [line for line in published.read_text().splitlines() if '"highway-multi-task"' in line and '"method": "dqn"' in line]
    (tmp_path / "cells.jsonl").write_text("\n".join(some) + "\n")
    trained = []

    def train(run):
        trained.append(run)
        return SimpleNamespace(run=completed(run), agent=SimpleNamespace(policy=policy), state=None)

    monkeypatch.setattr(training, "train", train)
    monkeypatch.setattr(films, "film", lambda env, policy, key, path: path.write_bytes(b"GIF"))
    (path,) = reproduce.film("figure-3", tmp_path, 7, ["highway-multi-task"])
    assert path == tmp_path / "highway-multi-task.gif"
    assert [completed(run) for run in trained] == [dataclasses.replace(of("psiphi"), seed=7)]
    assert "](highway-multi-task.gif)" in (tmp_path / "README.md").read_text()
    (tmp_path / "models" / "highway-multi-task-psiphi-7").mkdir(parents=True)
    monkeypatch.setattr(playing, "read", lambda place: place.name)
    monkeypatch.setattr(playing, "player", lambda found: (filmed.append(found), policy))
    filmed: list[str] = []
    reproduce.film("figure-3", tmp_path, 7, ["highway-multi-task"])
    assert filmed == ["highway-multi-task-psiphi-7"] and len(trained) == 1, "a model that was kept needs no training"
    with pytest.raises(UserError, match="table-2 on coingrid has no film"):
        reproduce.film("table-2", tmp_path, 0)


# --- Films ---------------------------------------------------------------------------------------------------------------


class Countdown(gymnasium.Env):
    """Four steps, each paying its action; the picture is as red as the step."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}
    observation_space = gymnasium.spaces.Box(0, 4, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(3)

    def __init__(self, render_mode: str | None = "rgb_array"):
        self.render_mode = render_mode
        self.t = 0

    def reset(self, *, seed=None, options=None):
        self.t, self.seed = 0, seed
        return np.array([0], np.float32), {}

    def step(self, action):
        self.t += 1
        return np.array([self.t], np.float32), float(action), self.t == 4, False, {}

    def render(self):
        return np.full((40, 120, 3), (60 * self.t, 0, 0), np.uint8)


def policy(obs, key):
    return jnp.where(obs[:, 0] < 2, 1, 2)


def test_a_film_has_a_picture_of_every_state_and_says_what_was_earned(tmp_path):
    path = tmp_path / "deep" / "drive.gif"
    got = film(Countdown(), policy, jax.random.key(0), path)
    assert got == (4, 1 + 1 + 2 + 2, True)
    with Image.open(path) as gif:
        frames = [np.asarray(frame.convert("RGB")) for frame in ImageSequence.Iterator(gif)]
        assert [frame[20, 60, 0] for frame in frames] == [0, 60, 120, 180, 240]
        gif.seek(0)
        assert gif.info["duration"] == 100
    assert [file.name for file in path.parent.iterdir()] == ["drive.gif"]
    assert film(Countdown(), policy, jax.random.key(0), path, longest=2).steps == 2


@pytest.mark.parametrize(
    ("env", "name", "message"),
    [(Countdown(None), "x.gif", "render_mode is None, but a film needs 'rgb_array'"), (Countdown(), "x.mp4", "does not end in .gif")],
)
def test_what_cannot_be_filmed(tmp_path, env, name, message):
    with pytest.raises(UserError, match=message):
        film(env, policy, jax.random.key(0), tmp_path / name)
    assert not list(tmp_path.iterdir())
