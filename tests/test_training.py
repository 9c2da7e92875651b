"""One way to train: what is watched in Gymnasium's loop is what is watched in the compiled one, and a run's words mean what they say."""

import dataclasses
import json
from functools import partial
from typing import Any, NamedTuple

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import psiphi
import tiny
from psiphi import cli, training, worlds
from psiphi.agents import watching
from psiphi.api import trained
from psiphi.errors import UserError
from psiphi.types import Demonstration, Env, EnvSpec, TimeStep
from psiphi.worlds import World, gym, highway

# --- Online demonstrations -----------------------------------------------------------------------------------------------

LENGTH = 3
NAMES = ("even", "odd")


def seen(t: Any, lane: int) -> Any:
    return jnp.stack([t + 10 * lane, 0 * t]).astype(jnp.float32)


def parade() -> Env:
    """Episodes of three steps; at time t one sees [t, 0] oneself and, ahead, demonstrator t mod 2, who does t mod 3, and nobody."""

    def reset(key):
        return jnp.zeros((), jnp.int32), seen(jnp.zeros((), jnp.int32), 0)

    def step(t, action, key):
        both = lambda x: jnp.stack([x, x])  # noqa: E731
        shown = Demonstration(both(seen(t, 1)), both(t % 3), jnp.ones(2), both(seen(t + 1, 1)), both((t + 1) % 3))
        extras = {"demonstrator": jnp.stack([t % 2, jnp.int32(-1)]), "demonstration": shown}
        return t + 1, TimeStep(seen(t + 1, 0), jnp.zeros(()), (t + 1 < LENGTH).astype(jnp.float32), t + 1 == LENGTH, extras)

    return Env(EnvSpec((2,), jnp.float32, 3), reset, step)


class Parade(gymnasium.Env[np.ndarray, Any]):
    """The same as Gymnasium has it."""

    observation_space = gymnasium.spaces.Box(-100, 100, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.t = 0
        return np.asarray(seen(jnp.asarray(0), 0)), self._shows(-1, 0)

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        info = self._shows(self.t % 2, self.t)
        self.t += 1
        return np.array([self.t, 0], np.float32), 0.0, self.t == LENGTH, False, info

    def _shows(self, who: int, t: int) -> dict[str, Any]:
        obs = np.array([[t + 10, 0], [t + 10, 0]], np.float32)
        one = np.ones(2, np.int32)
        shown = {
            "obs": obs,
            "action": one * (t % 3),
            "discount": np.ones(2, np.float32),
            "next_obs": obs + np.array([1, 0], np.float32),
            "next_action": one * ((t + 1) % 3),
        }
        return {"demonstrator": np.array([who, -1], np.int32), "demonstration": shown}


def watched_in(world: World, **fields: Any) -> training.Trained:
    run = training.changed(
        training.default_run("bc", world.name, world=world, demos=training.ONLINE, num_envs=2, room=64, evaluate_every=0),
        {"steps": 20, "updates": 0, "prefill_steps": 4, "agent.torso_hidden": (8,), "agent.batch": 4, **fields},
    )
    return training.train(run, world=world, progress=False)


def vector(mode: AutoresetMode) -> SyncVectorEnv:
    return SyncVectorEnv([Parade] * 2, autoreset_mode=mode)


@pytest.fixture(scope="module")
def compiled() -> training.Trained:
    return watched_in(World("parade", "", lambda config, task: parade(), watched=lambda config: NAMES))


def test_who_is_seen_in_the_compiled_loop(compiled):
    """Ten steps in each of two environments: three whole episodes, t = 0, 1, 2, and one step more."""
    demos = compiled.state.demos
    assert compiled.agents == NAMES and demos.count.tolist() == [2 * 7, 2 * 3]
    assert demos.steps.obs[0, :14, 0].tolist() == np.repeat([10, 12, 10, 12, 10, 12, 10], 2).tolist()
    assert demos.steps.obs[1, :6, 0].tolist() == [11] * 6


@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP], ids=lambda mode: mode.name)
def test_gymnasium_loop_fills_the_same_rings(compiled, mode):
    """With SAME_STEP the last step's info is the final one; with NEXT_STEP the step that resets shows nobody."""
    world = dataclasses.replace(gym.world_of(vector(mode)), watched=lambda config: NAMES, lensed=False)
    found = watched_in(world)
    assert found.agents == NAMES and found.env_steps == compiled.env_steps == 20
    jax.tree.map(np.testing.assert_array_equal, found.state.demos, compiled.state.demos)


def test_observations_that_nobody_has_seen_yet_are_not_standardised_by_nothing():
    """Of a stranger's world, numbers are standardised by the demonstrations; online there are none at the start."""
    world = dataclasses.replace(gym.world_of(vector(AutoresetMode.SAME_STEP)), watched=lambda config: NAMES)
    found = watched_in(world)
    assert found.lens is not None and np.isfinite(found.lens.mean).all() and np.isfinite(found.lens.scale).all()
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(found.net))
    assert found.state.demos.steps.obs[1, :6, 0].tolist() == [11] * 6


def test_pictures_that_are_watched_pass_through_the_lens():
    """Their channels come first: what is remembered of others is turned round, as what the learner sees itself is."""
    spec = EnvSpec((3, 20, 20), np.uint8, 2, kind="picture")
    made = Env(spec, lambda *_: pytest.fail("entered"), lambda *_: pytest.fail("entered"))
    world = World("gallery", "", lambda config, task: made, watched=lambda config: NAMES, lensed=True)
    run = training.default_run("bc", "gallery", world=world, demos=training.ONLINE, room=4)
    shown = training.shown_to(run, world, spec, None)
    inside = training._seen_inside(run, world, training.place_of(made, 1), shown, None)
    assert inside.watch is not None and inside.demos is not None and inside.spec.obs_shape == (20, 20, 3)
    picture = jnp.arange(1200, dtype=jnp.uint8).reshape(1, 3, 20, 20)
    steps = Demonstration(picture, jnp.ones(1, jnp.int32), jnp.ones(1), picture + 1, jnp.zeros(1, jnp.int32))

    class Remembers(NamedTuple):
        demos: Any

    state = inside.watch(watching.State(Remembers(inside.demos), inside.demos.count), jnp.array([1]), steps)
    kept = state.agent.demos
    assert kept.count.tolist() == [0, 1]
    np.testing.assert_array_equal(kept.steps.obs[1, 0], np.moveaxis(np.asarray(picture[0]), 0, -1))
    np.testing.assert_array_equal(kept.steps.next_obs[1, 0], np.moveaxis(np.asarray(picture[0] + 1), 0, -1))


@pytest.mark.parametrize(
    ("brightest", "high", "kind"), [(9, 255, "board"), (250, 255, "picture"), (0, 255, "picture"), (0, 3, "board")], ids=str
)
def test_without_demonstrations_first_observations_tell_a_board_from_a_picture(brightest, high, kind):
    """A dark screen tells nothing; then how bright it may be does."""

    class Showing(gymnasium.Env):
        observation_space = gymnasium.spaces.Box(0, high, (20, 20, 3), np.uint8)
        action_space = gymnasium.spaces.Discrete(2)

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            return self.np_random.integers(0, brightest + 1, (20, 20, 3)).astype(np.uint8), {}

    place = training.place_of(Showing, 2)
    lens = training.lens_of(place, None, seed=3)
    assert (lens.kind, lens.seen_shape, lens.standardise) == (kind, (20, 20, 3), False)


def test_a_world_says_what_its_observations_are_or_its_first_one_does():
    told = [EnvSpec((4, 4, 2), np.uint8, 2, kind=kind) for kind in ("board", None)]
    for spec, expected in zip(told, ("board", "picture"), strict=True):
        made = Env(spec, lambda key: (0, jnp.full((4, 4, 2), 200, jnp.uint8)), lambda *_: pytest.fail("no step is needed"))
        assert training.lens_of(training.place_of(made, 1), None, seed=0).kind == expected


def test_demonstrators_of_a_world_without_settings_are_recorded_for_those_who_watch():
    world = World("untuned", "", lambda config, task: parade(), record=lambda *_: pytest.fail("too early"))
    found = {name: training.default_run(name, "untuned", world=world).demos for name in ("bc", "itd", "psiphi", "dqn", "ppo")}
    assert found == {"bc": "recorded", "itd": "recorded", "psiphi": "recorded", "dqn": "none", "ppo": "none"}


def test_who_needs_steps_cannot_learn_without():
    for name in ("dqn", "itd"):
        run = training.default_run(name, "coingrid", offline=True, steps=0, updates=4)
        with pytest.raises(UserError, match=f"offline is true, but {name} with this config learns from its own steps"):
            training.completed(run)
    pooled = training.changed(run, {"agent.cross_policy_on": "pooled"})  # pyright: ignore[reportPossiblyUnboundVariable]
    assert not training.acts(training.completed(pooled)) and training.loop_of(pooled).iterations == 4


def test_a_world_that_shows_nobody_says_so():
    class Alone(Parade):
        def _shows(self, who: int, t: int) -> dict[str, Any]:
            return {}

    alone = SyncVectorEnv([Alone] * 2, autoreset_mode=AutoresetMode.SAME_STEP)
    world = dataclasses.replace(gym.world_of(alone), watched=lambda config: NAMES, lensed=False)
    with pytest.raises(UserError, match='The environment shows no demonstrators, expected "demonstrator" and "demonstration" in the info'):
        watched_in(world)


class Logged(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Writes down what each step's own info says of others, before any vector has seen it."""

    def __init__(self, env: gymnasium.Env[Any, Any]):
        super().__init__(env)
        self.log: list[dict[str, Any]] = []

    def step(self, action: Any) -> Any:
        result = self.env.step(action)
        self.log.append(result[-1])
        return result


@pytest.mark.slow
def test_highway_through_gymnasium_shows_what_each_car_showed():
    config = tiny.WORLDS["highway-multi-task"]
    envs: list[Logged] = []

    def make() -> Logged:
        made = gymnasium.make("psiphi/Highway-MultiTask-v0", **{f.name: getattr(config, f.name) for f in dataclasses.fields(config)})
        envs.append(Logged(made))
        return envs[-1]

    cars = SyncVectorEnv([make] * 2, autoreset_mode=AutoresetMode.SAME_STEP)
    world = dataclasses.replace(gym.world_of(cars), watched=lambda _: highway.watched(config), lensed=False)
    run = training.changed(
        training.default_run("bc", world.name, world=world, demos=training.ONLINE, num_envs=2, room=300, evaluate_every=0),
        {"steps": 60, "updates": 0, "prefill_steps": 4, "agent.torso_hidden": (8,), "agent.batch": 4},
    )
    found = training.train(run, world=world, progress=False)
    logs = [env.log for env in envs if env.log]
    assert [len(log) for log in logs] == [30, 30], "a reset is no step"
    for k, name in enumerate(highway.watched(config)):
        expected = [
            (one["demonstration"]["obs"][i], one["demonstration"]["action"][i], one["demonstration"]["discount"][i])
            for step in zip(*logs, strict=True)
            for one in step
            for i in np.flatnonzero(np.asarray(one["demonstrator"]) == k)
        ]
        demos = found.state.demos
        assert found.agents[k] == name and int(demos.count[k]) == len(expected) > 0
        np.testing.assert_array_equal(demos.steps.obs[k, : len(expected)], np.stack([obs for obs, _, _ in expected]))
        np.testing.assert_array_equal(demos.steps.action[k, : len(expected)], [action for _, action, _ in expected])
        np.testing.assert_array_equal(demos.steps.discount[k, : len(expected)], [discount for _, _, discount in expected])


# --- Judging -------------------------------------------------------------------------------------------------------------


def test_a_gymnasium_world_is_judged_between_chunks_and_after(tmp_path, capsys):
    """In environments of its own: the one that learns is not disturbed."""
    run = tiny.run("ppo", "CartPole-v1")
    found = training.train(run, progress=False)
    judged = [row["eval/return"] for row in found.rows]
    assert len(judged) == 1 + 48 // 16 and all(value >= 8 for value in judged), "a pole falls after eight steps at the earliest"
    trained.save(tmp_path, found)
    with pytest.raises(SystemExit):
        cli.main(["evaluate", str(tmp_path), "--episodes", "4", "--json"])
    policies = json.loads(capsys.readouterr().out)["policies"]
    assert policies["ego"]["return"] >= 8 and policies["ego"]["task"] == ""


# --- What is asked for is what is done -----------------------------------------------------------------------------------


def many(agents: int) -> psiphi.Demonstrations:
    random = np.random.default_rng(0)
    obs = [random.normal(size=(6, 4)).astype(np.float32) for _ in range(agents)]
    actions = [random.integers(2, size=5) for _ in range(agents)]
    named = {"names": ["x", "v", "angle", "spin"], "action_names": ("left", "right")}
    return psiphi.Demonstrations.from_lists(obs, actions, [f"agent {k}" for k in range(agents)], num_actions=2, **named)


@pytest.mark.parametrize("asked", [4, pytest.param(5, marks=pytest.mark.slow)])
def test_as_many_cumulants_as_are_asked_for_with_ten_agents(asked):
    """By the run, as the command line has it, and by the API: nothing is made ten because there are ten."""
    small = {**tiny.NETS["psiphi"], "itd.num_cumulants": asked}
    config = training.changed(psiphi.PsiPhiConfig(), small)
    agent = psiphi.PsiPhi("CartPole-v1", many(10), config, num_envs=2)
    assert agent.config.itd.num_cumulants == asked
    run = training.changed(tiny.run("itd", "CartPole-v1"), {"agent.num_cumulants": asked, "updates": 0, "steps": 20})
    found = training.train(run, demos=many(10), progress=False)
    assert found.net.w.shape == (10, asked) and trained.model_of(found).w.shape == (10, asked)
    known = trained.known_of(found)
    assert known.columns == ("x", "v", "angle", "spin") and known.action_names == ("left", "right"), "names travel from the file"


def test_the_api_and_the_command_line_keep_the_same_ego_preferences(tmp_path):
    """Those that it acts by, not their moving average; whoever kept the one and the other kept two models of one training."""
    run = tiny.run("psiphi", evaluate_every=0)
    found = training.train(run, progress=False)
    trained.save(tmp_path / "command", found)
    command = psiphi.load(tmp_path / "command")
    world = tiny.world("coingrid")
    agent = psiphi.PsiPhi(world, config=run.agent, num_envs=2, seed=run.seed)
    agent._run = lambda *_: run  # pyright: ignore[reportAttributeAccessIssue] - the same training
    agent.learn(48, progress=False)
    acted_by = np.asarray(found.state.itd.net.w[-1] if hasattr(found.state, "itd") else found.state.net.w[-1])
    np.testing.assert_array_equal(command._trained().model.w[-1], acted_by)
    np.testing.assert_array_equal(agent._trained().model.w[-1], acted_by)
    np.testing.assert_array_equal(agent._trained().model.w, command._trained().model.w)
    agent.save(tmp_path / "api")
    obs = np.random.default_rng(0).integers(0, 2, (5, 5, 5, 5)).astype(np.uint8)
    values = [partial(psiphi.load(tmp_path / name).explain, obs[0])() for name in ("command", "api")]
    np.testing.assert_array_equal(values[0].values, values[1].values)


def test_names_of_actions_are_not_taken_for_a_worlds_numbers():
    demos = psiphi.Demonstrations.from_lists([np.zeros((2, 4))], [["left", "right"]], ["a"])
    with pytest.raises(UserError, match="name their actions \\('left', 'right'\\), expected the world's numbers, 0 to 1"):
        psiphi.PsiPhi("CartPole-v1", demos)
    spec = training.place_of(gymnasium.make("CartPole-v1"), 1).spec
    run = training.default_run("bc", "CartPole-v1", steps=0, updates=2)
    with pytest.raises(UserError, match="expected the world's numbers"):
        training.shown_to(run, worlds.find("CartPole-v1"), spec, demos)
