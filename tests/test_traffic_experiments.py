"""Learning beside others: what is shown online is what is learned from, runs continue, and the settings of figure 3 are complete."""

import dataclasses
import json
from pathlib import Path

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image, ImageSequence

from psiphi import replay
from psiphi.agents import algorithm_of, bc, watching
from psiphi.agents.bc import BCConfig
from psiphi.envs import highway
from psiphi.envs.highway import goal
from psiphi.errors import UserError
from psiphi.experiments import paper, reproduce, traffic
from psiphi.experiments.films import film
from psiphi.loops import runs, scan
from psiphi.types import Demonstration, Env, EnvSpec, Pace, TimeStep

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


@pytest.mark.parametrize("variant", FIGURE_3.variants, ids=lambda variant: variant.name)
@pytest.mark.parametrize("method", FIGURE_3.methods, ids=lambda method: method.name)
def test_every_method_has_a_setting_in_every_panel(variant, method):
    setting = traffic.setting_of(variant.name, method.algorithm, method.changes, steps=10_000)
    loop = traffic.loop_of(setting, 1)
    assert loop.env_steps(loop.iterations) == setting.steps == 10_000
    spec, agents = traffic.make_env(setting.world).spec, traffic.num_demonstrators(setting)
    agent = algorithm_of(setting.agent).make(setting.agent, spec, agents, traffic.pace_of(setting))
    demos = replay.no_demonstrations(spec, agents, 3) if agents else None
    jax.eval_shape(agent.init, jax.random.key(0), demos)  # the config is one that the agent takes
    assert json.loads(json.dumps(dataclasses.asdict(setting)))["steps"] == 10_000
    assert all(isinstance(words, str) for words in traffic.saw(setting))


def test_who_watches_whom():
    multi = {name: traffic.setting_of("highway-multi-task", name, {}) for name in traffic.DEFAULT}
    assert [traffic.num_demonstrators(multi[name]) for name in ("psiphi", "dqn", "bc", "sqil")] == [4, 0, 1, 1]
    assert not traffic.watches(multi["dqn"]) and all(traffic.watches(multi[name]) for name in ("psiphi", "bc", "sqil"))
    assert traffic.watches(traffic.setting_of("highway-multi-task", "dqn", {"agent.bc_weight": 0.1}))
    alone = next(method for method in FIGURE_3.methods if method.name == "psiphi-alone")
    assert traffic.num_demonstrators(traffic.setting_of("highway-multi-task", "psiphi", alone.changes)) == 0
    assert traffic.saw(multi["dqn"])[0] == "none" and traffic.saw(multi["bc"])[2] == "none"


def test_schedules_are_as_long_as_the_run():
    psiphi = traffic.pace_of(traffic.setting_of("highway-multi-task", "psiphi", {"num_envs": 4}, steps=6_000))
    assert psiphi == Pace(num_envs=4, updates=4 * 1_250)  # four after each of the steps that are not random


def test_the_figure_is_one_that_reports_can_draw():
    for method in FIGURE_3.methods:
        for variant in FIGURE_3.variants:
            figures = FIGURE_3.figures(method, variant)
            assert [figure.metric for figure in figures] == ["auc", "final_return", "steps_to_90"]
    assert all(isinstance(method, paper.Method) and method.how == "curve" for method in FIGURE_3.methods)
    assert {variant.name for variant in FIGURE_3.variants} < set(traffic.PANELS)


def test_a_bad_setting_gets_one_sentence():
    setting = traffic.setting_of("highway-multi-task", "dqn", {})
    for change, message in [({"steps": 0}, "steps is 0"), ({"room": 0}, "room is 0"), ({"reference": 0.0}, "reference is 0")]:
        with pytest.raises(UserError, match=message):
            dataclasses.replace(setting, **change)


# --- On the road ---------------------------------------------------------------------------------------------------------

SMALL = highway.HighwayConfig(cars=7, observed=2, lanes=2, ego_rank=2, goals=(goal(25, 0), goal(28, 1)), ego=goal(28, 0), max_steps=20)
TINY = {"world": SMALL, "steps": 400, "prefill_steps": 80, "evaluate_every": 160, "evaluate_episodes": 4, "room": 100, "num_envs": 4}


@pytest.mark.parametrize(
    ("algorithm", "changes"),
    [
        ("bc", {"prefill_steps": 0}),  # without random steps there is less to compile
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in [("psiphi", {}), ("dqn", {}), ("dqn", {"agent.bc_weight": 0.1}), ("sqil", {})]
        ),
    ],
)
def test_a_short_drive(algorithm, changes):
    trained = traffic.train(traffic.setting_of("highway-multi-task", algorithm, {**TINY, **changes}), seed=3, progress=False)
    start = changes.get("prefill_steps", 80)
    assert [row["env_steps"] for row in trained.rows] == sorted({start, start + 160, start + 320, 400}) and trained.env_steps == 400
    for row in trained.rows:
        assert np.isfinite(row["eval/normalised_return"]) and 0 <= row["eval/failed"] <= 1
        assert row["eval/normalised_return"] == pytest.approx(row["eval/return"] / 71.7, rel=1e-4)
    if isinstance(trained.state, watching.State):
        assert trained.state.seen.sum() > 400  # two cars are near at most steps
        counts = np.minimum(trained.state.seen, 100)
        assert trained.state.agent.demos.count.tolist() == counts.tolist()


@pytest.mark.slow
@pytest.mark.parametrize("name", traffic.PANELS)
def test_the_references_are_what_idm_earns(name):
    panel = traffic.PANELS[name]
    got = jax.jit(lambda key: traffic.expert_returns(panel.world(), key, 512))(jax.random.key(1000))
    assert float(got["returns"].mean()) == pytest.approx(panel.reference, abs=0.1)


def test_a_film_is_of_the_seeds_own_training_and_stands_in_the_report(tmp_path, monkeypatch):
    published = Path(__file__).parents[1] / "results" / "figure-3" / "cells.jsonl"
    some = [line for line in published.read_text().splitlines() if '"highway-multi-task"' in line and '"method": "dqn"' in line]
    (tmp_path / "cells.jsonl").write_text("\n".join(some) + "\n")
    trained = []
    monkeypatch.setattr(traffic, "train", lambda setting, seed: trained.append((setting, seed)))
    monkeypatch.setattr(traffic, "film", lambda setting, trained, key, path: path.write_bytes(b"GIF"))
    (path,) = reproduce.film("figure-3", tmp_path, 7, ["highway-multi-task"])
    assert path == tmp_path / "highway-multi-task.gif" and trained == [(traffic.setting_of("highway-multi-task", "psiphi", {}), 7)]
    assert "](highway-multi-task.gif)" in (tmp_path / "README.md").read_text()
    with pytest.raises(UserError, match="figure-coingrid on coingrid-aligned has no film"):
        reproduce.film("figure-coingrid", tmp_path, 0)


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
