"""The public interface, on a street so short that everybody's wishes are plain."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import equinox as eqx
import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import probes
import psiphi
import tiny
from psiphi import api, checkpoint, lens, training
from psiphi.api import coverage, files
from psiphi.api import itd as api_itd
from psiphi.demos.record import record
from psiphi.errors import UserError
from psiphi.loops import gym, runs

SIZE = 4
SMALL = {"torso_hidden": (32,), "phi_hidden": (16, 16), "psi_hidden": (16,)}
ITD = dataclasses.replace(api.LEARNED, gamma=0.9, **SMALL)
UPDATES = 1_000
EGO = dataclasses.replace(api.ONLINE, itd=psiphi.ITDConfig(replay_size=2_000, cross_batch=32, batch=32, **SMALL), batch=32)


class Street(gymnasium.Env[np.ndarray, Any]):
    """Houses from -SIZE to SIZE, told in metres far from anywhere beside a number that means nothing; the episode ends at either end.

    Action `first` goes left, `first` + 1 right; the right end pays.
    """

    def __init__(self, first: int = 0, limit: int = 20):
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (3,), np.float64)
        self.action_space = gymnasium.spaces.Discrete(2, start=first)
        self.first, self.limit = first, limit

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.x, self.left = int(self.np_random.integers(-SIZE + 1, SIZE)), self.limit
        return self.see(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action)
        self.x, self.left = self.x + (1 if action > self.first else -1), self.left - 1
        return self.see(), float(self.x == SIZE), abs(self.x) == SIZE, self.left == 0, {}

    def see(self) -> np.ndarray:
        return np.array([5000.0 + 100 * self.x, self.np_random.normal(), 7.0])


def look(glass: lens.Lens, obs: np.ndarray) -> np.ndarray:
    return lens.look(obs, glass.mean, glass.scale, glass.layout, glass.standardise)


def houses() -> np.ndarray:
    return np.array([[5000.0 + 100 * x, 0.0, 7.0] for x in range(-SIZE + 1, SIZE)])


def walks(agent: Any, goes: int, episodes: int = 120, seed: int = 0) -> psiphi.Demonstrations:
    random = np.random.default_rng(seed)
    return record(Street(), lambda _: goes if random.random() < 0.9 else 1 - goes, episodes, agent=agent, seed=seed)


@pytest.fixture(scope="module")
def demos() -> psiphi.Demonstrations:
    return walks("west", 0).merge(walks("east", 1, seed=1))


@pytest.fixture(scope="module")
def itd(demos) -> psiphi.ITD:
    return psiphi.ITD(ITD, seed=0, updates=UPDATES, refits=1).fit(demos, progress=False)


@pytest.fixture(scope="module")
def agent(demos) -> psiphi.PsiPhi:
    return psiphi.PsiPhi(Street, demos, EGO, seed=0, num_envs=4).learn(3_000, study=200, progress=False)


class Crash(BaseException):
    """Stands for a process that ends at this very place."""


def test_a_fit_that_was_interrupted_ends_as_the_unbroken_one_does(demos, tmp_path, monkeypatch):
    """Two refits at once, early stopping and all: rows, checkpoint and model, bit for bit."""
    monkeypatch.setattr(api_itd, "CHUNK", 10)
    monkeypatch.setattr(api_itd.judging, "judged", lambda known, *_args, **_options: known)  # what is asked of it later
    monkeypatch.setattr(api_itd, "enough", lambda config, updates, rows: max(row["step"] for row in rows) >= 50)
    small = dataclasses.replace(ITD, torso_hidden=(4,), phi_hidden=(4,), psi_hidden=(4,), batch=4, cross_batch=4)
    few = walks("west", 0, episodes=20).merge(walks("east", 1, episodes=20, seed=1))

    def fit(out: Path) -> psiphi.ITD:
        return psiphi.ITD(small, seed=3, updates=UPDATES, refits=2).fit(few, out=out, progress=False, checkpoint_every_s=0.0)

    whole = fit(tmp_path / "whole")
    assert [row["step"] for row in runs.read_rows(tmp_path / "whole")][::2] == [
        0,
        10,
        20,
        30,
        40,
        50,
    ] and whole.run_dir == tmp_path / "whole"
    append = runs.append_rows

    def crashes(directory: Path, rows: list) -> None:
        append(directory, rows)
        if rows[0]["step"] == 30:
            raise Crash

    with monkeypatch.context() as patch, pytest.raises(Crash):
        patch.setattr(runs, "append_rows", crashes)
        fit(tmp_path / "broken")
    fit(tmp_path / "broken")
    clocks = {name: [row | {"wall_s": 0} for row in runs.read_rows(tmp_path / name)] for name in ("whole", "broken")}
    assert clocks["broken"] == clocks["whole"]
    for part in ("checkpoint", "model"):
        kept, again = (checkpoint.load_arrays(tmp_path / name / part) for name in ("whole", "broken"))
        assert {name: x.tobytes() for name, x in again.items()} == {name: x.tobytes() for name, x in kept.items()}
    with pytest.raises(UserError, match="holds a run with demonstrations_sha256"):
        psiphi.ITD(small, seed=3, updates=UPDATES, refits=2).fit(demos, out=tmp_path / "whole", progress=False)


# --- The demonstrators -------------------------------------------------------------------------------------------------------


def test_policies_go_where_their_agents_go(itd, demos):
    assert itd.agents == ("west", "east")
    assert itd.policy("west")(houses()).tolist() == [0] * 7 and itd.policy("east")(houses()).tolist() == [1] * 7
    alone = itd.policy("east")(houses()[3])
    assert alone == 1 and isinstance(alone, int)
    assert itd.accuracy(demos) == pytest.approx(np.mean(demos.action == (demos.agent == "east")), abs=0.02)
    assert itd.accuracies(demos.filter(agents=["east"])).keys() == {"east"}


def test_a_policy_that_is_not_deterministic_strays_as_often_as_its_agent(itd):
    policy = itd.policy("west")
    chances = policy.probabilities(houses())
    np.testing.assert_allclose(chances.sum(axis=1), 1, rtol=1e-5)
    drawn = policy(np.repeat(houses()[2:3], 2_000, axis=0), deterministic=False)
    assert np.mean(drawn == 1) == pytest.approx(chances[2, 1], abs=0.03) and 0.02 < chances[2, 1] < 0.3


def test_rewards_are_cumulants_times_preferences(itd):
    action = np.array([0, 1, 0, 1, 0, 1, 0])
    for who in itd.agents:
        expected = itd.cumulants(houses())[np.arange(7), action] @ itd.preferences[who]
        np.testing.assert_allclose(itd.reward(who, "wants")(houses(), action), expected, rtol=1e-4, atol=1e-5)
        assert itd.reward(who, "wants")(houses()[1], 1) == pytest.approx(expected[1], rel=1e-4, abs=1e-5)
    assert itd.cumulants(houses()[0]).shape == (2, 4)


def test_the_wrapper_pays_what_the_reward_says(itd):
    env = itd.reward("east").wrap(Street())
    assert isinstance(env, psiphi.InferredReward)
    obs, _ = env.reset(seed=2)
    after, paid, _, _, info = env.step(1)
    assert paid == pytest.approx(itd.reward("east")(obs, 1, after), rel=1e-4, abs=1e-6) and info["true_reward"] in (0.0, 1.0)


def test_tables_can_be_read(itd):
    text = str(itd.preferences)
    assert text.splitlines()[0].split() == "agent cumulant 0 cumulant 1 cumulant 2 cumulant 3 like west like east".split()
    assert [line.split()[0] for line in text.splitlines()[1:]] == ["west", "east"]
    assert itd.preferences.to_dict().keys() == {"west", "east"} and itd.preferences.likeness[0, 1] < 0
    assert "was seen there" in str(itd.coverage) and not itd.coverage.thin


def test_the_same_seed_gives_the_same_model_and_progress_can_be_shown(demos, itd, capsys):
    again = psiphi.ITD(ITD, seed=0, updates=UPDATES, refits=1).fit(demos, progress=True)
    assert np.array_equal(again.policy("west").values(houses()), itd.policy("west").values(houses()))
    assert "iterations 1000/1000" in capsys.readouterr().err


def test_ids_may_be_integers(demos):
    itd = psiphi.ITD(ITD, updates=UPDATES).fit(dataclasses.replace(demos, agents=(7, 3)), progress=False)
    assert itd.agents == (7, 3) and itd.policy(3).agent == 3
    with pytest.raises(UserError, match="There is no agent '3'; the known agents are 7, 3"):
        itd.policy("3")


# --- Coverage -----------------------------------------------------------------------------------------------------------------


def test_coverage_is_thin_where_nobody_does_what_an_agent_would_do(itd, demos):
    """Each agent keeps to its own side of the street: what it would do on the other side, nobody was seen to do there."""
    west, east = ([houses()[:3][[2, 1, 0]]] * 40, 0), ([houses()[4:]] * 40, 1)
    obs = west[0] + east[0]
    apart = psiphi.Demonstrations.from_lists(obs, [np.zeros(2, int)] * 40 + [np.ones(2, int)] * 40, ["west"] * 40 + ["east"] * 40)
    report = coverage.measure(itd._known.model, apart.to_demos(), apart.agents)
    assert report.share == {"west": 0.0, "east": 0.0} and report.thin == ("west", "east") and report.actions == 1.0
    together = coverage.measure(itd._known.model, demos.to_demos(), demos.agents)
    assert min(together.share.values()) > 0.9 and together.actions > 1.5


def test_a_thin_report_names_the_agents():
    report = coverage.Coverage({"a": 0.2, "b": 0.9}, 1.3, 4)
    assert report.thin == ("a",) and "thin for a:" in str(report) and "1.3 of 4 actions" in str(report)
    assert "up to shaping" in str(report) and "up to shaping" not in str(dataclasses.replace(report, actions=2.0))


# --- Tasks ---------------------------------------------------------------------------------------------------------------------


def test_a_task_is_inferred_from_rewards_and_acted_on(itd, demos):
    rewards = 3.0 * itd.reward("east", "wants")(demos.obs, demos.action)
    for inference in ("bayes", "least-squares"):
        itd.adapt((demos.obs, demos.action, rewards), inference)
        paid = itd.cumulants(demos.obs)[np.arange(len(demos)), demos.action] @ itd.w
        np.testing.assert_allclose(paid, rewards, atol=0.15 * np.abs(rewards).max())
    np.testing.assert_allclose(itd.w, 3.0 * itd.preferences["east"], rtol=0.2, atol=0.1)
    few = [(demos.obs[i], demos.action[i], rewards[i]) for i in range(0, len(demos), 10)]
    assert itd.adapt(few).predict(houses()).tolist() == itd.set_preferences("east").predict(houses()).tolist()


def test_preferences_can_be_set(itd):
    assert itd.set_preferences("west").predict(houses()[3]) == 0
    same = itd.set_preferences(itd.preferences["west"].tolist()).predict(houses()).tolist()
    assert same == itd.set_preferences("west").predict(houses()).tolist()
    drawn = {itd.predict(houses()[3], deterministic=False) for _ in range(200)}
    assert drawn <= {0, 1}
    with pytest.raises(UserError, match=r"The preferences have shape \(3,\), expected 4 finite weights"):
        itd.set_preferences([1, 2, 3])


def test_an_explanation_adds_up_and_can_be_read(itd):
    itd.set_preferences("west")
    for house in houses():
        why = itd.explain(house)
        assert why.action == itd.predict(house) and why.policies == ("west", "east")
        np.testing.assert_allclose(why.contributions.sum(axis=1), why.values.max(axis=1), rtol=1e-4, atol=1e-6)
        assert why.values[why.policies.index(why.follows)].max() == why.values.max()
        assert str(why).startswith(f"action {why.action}: follows {why.follows}, which promises most on this task\npolicy ")


# --- Newcomers -----------------------------------------------------------------------------------------------------------------


def answers(learner: Any) -> list[np.ndarray]:
    action = np.array([0, 1, 0, 1, 0, 1, 0])
    whose = learner.agents[:2]
    return [
        learner.cumulants(houses()),
        *(learner.policy(who).values(houses()) for who in whose),
        *(learner.reward(who)(houses(), action) for who in whose),
        *(learner.preferences[who] for who in whose),
    ]


@pytest.mark.parametrize("learner", ["itd", "agent"])
def test_a_newcomer_changes_nothing_that_is_known(learner, request, tmp_path):
    request.getfixturevalue(learner).save(tmp_path / "before")
    known = psiphi.load(tmp_path / "before")
    before = answers(known)
    assert known.fit_new_demonstrator(walks("eastward", 1, 40, seed=5), progress=False) is known
    for old, new in zip(before, answers(known), strict=True):
        assert np.array_equal(old, new)
    assert known.agents == ("west", "east", "eastward")
    assert known.policy("eastward")(houses()).tolist() == [1] * 7
    assert np.isfinite(known.preferences["eastward"]).all() and known.preferences.likeness.shape == (3, 3)
    known.save(tmp_path / "after")
    again = psiphi.load(tmp_path / "after")
    assert np.array_equal(again.policy("eastward").values(houses()), known.policy("eastward").values(houses()))
    assert (
        again.set_preferences("eastward").explain(houses()[0]).policies == known.set_preferences("eastward").explain(houses()[0]).policies
    )


def test_who_is_known_is_no_newcomer(itd):
    with pytest.raises(UserError, match="Agent 'west' is known already; expected demonstrations of new agents only"):
        itd.fit_new_demonstrator(walks("west", 1, 2))
    with pytest.raises(UserError, match="ids would be of two kinds, such as 'west' and 5; use one kind"):
        itd.fit_new_demonstrator(walks(5, 1, 2))


# --- An ego --------------------------------------------------------------------------------------------------------------------


def test_the_ego_learns_its_task_and_tells_whom_it_follows(agent):
    assert agent.predict(houses()).tolist() == [1] * 7
    why = agent.explain(houses()[2])
    assert why.policies == ("west", "east", "itself") and why.follows in ("east", "itself")
    assert 3_000 <= agent.steps <= 3_010 and "2 demonstrators" in repr(agent)
    own = agent.w
    assert agent.set_preferences("west").predict(houses()).tolist() == [0] * 7
    np.testing.assert_array_equal(agent.set_preferences(None).w, own)


def test_learning_goes_on_where_it_stopped(demos):
    agent = psiphi.PsiPhi(lambda: Street(first=5), demos, EGO, num_envs=4).learn(40, study=2, progress=False)
    assert agent.predict(houses()[0]) in (5, 6) and agent.explain(houses()[0]).action == agent.predict(houses()[0])
    first = agent._state
    agent.learn(40, progress=False)
    assert int(agent._state.count) > int(first.count) and agent.steps >= 80
    assert not np.array_equal(agent._state.net.w, first.net.w)


def vector(mode: AutoresetMode) -> SyncVectorEnv:
    return SyncVectorEnv([Street] * 2, autoreset_mode=mode)


@pytest.mark.parametrize(
    ("world", "number"),
    [(Street(), 1), ("Street-v0", 4), (Street, 4), (vector(AutoresetMode.SAME_STEP), 2), (vector(AutoresetMode.NEXT_STEP), 2)],
    ids=["environment", "id", "factory", "vector", "vector that resets in a step of its own"],
)
def test_any_kind_of_environment_will_do(world, number, demos):
    if "Street-v0" not in gymnasium.registry:
        gymnasium.register("Street-v0", lambda **_: Street())
    agent = psiphi.PsiPhi(world, demos, EGO, num_envs=4)
    assert agent.num_envs == number and agent.world is not None
    place = training.place_of(agent.world.env(None, ""), agent.num_envs)
    assert place.vector is not None
    assert (place.vector.num_envs, place.spec.obs_shape, place.spec.num_actions, place.first_action) == (number, (3,), 2, 0)
    hosts = gym.Worlds(place.vector, first_action=place.first_action)
    hosts.reset(0)
    step = hosts.step(np.zeros(number, np.int32))
    np.testing.assert_allclose(step.transition.next_obs[:, 0], step.transition.obs[:, 0] - 100)


def test_a_jax_environment_will_do():
    probe = probes.time_limit()
    env = probes.make(
        probe._replace(next_place=np.array([[1, 0], [1, 1]]), reward=np.array([[0.0, 0.1], [1.0, 0.5]]), ends=np.zeros((2, 2), bool))
    )
    demos = psiphi.Demonstrations.from_lists(
        [np.eye(2, dtype=np.float32)[[0, 1, 1, 1]]] * 3, [np.zeros(3, int)] * 3, ["a", "a", "b"], num_actions=2
    )
    agent = psiphi.PsiPhi(env, demos, EGO, num_envs=4).learn(60, study=1, progress=False).learn(20, progress=False)
    assert agent.predict(np.eye(2)).shape == (2,)


# --- Files ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("learner", ["itd", "agent"])
def test_a_saved_model_answers_as_before(learner, request, tmp_path):
    known = request.getfixturevalue(learner).set_preferences("east")
    known.save(tmp_path)
    again = psiphi.load(tmp_path)
    assert type(again) is type(known) and again.agents == known.agents and again.coverage == known.coverage
    for old, new in zip(answers(known), answers(again), strict=True):
        assert np.array_equal(old, new)
    assert np.array_equal(again.w, known.w) and str(again.explain(houses()[1])) == str(known.explain(houses()[1]))
    assert {file.suffix for file in tmp_path.iterdir()} == {".json", ".safetensors"}


def test_a_model_from_before_whose_rewards_were_turned_round_is_mended_at_load(itd, tmp_path):
    known = itd._known
    turned = dataclasses.replace(known, model=known.model._replace(units=-known.model.units))
    files.save(tmp_path, "itd", turned, itd._used, 0, None)
    action = np.zeros(7, int)
    np.testing.assert_array_equal(psiphi.load(tmp_path).reward("east")(houses(), action), itd.reward("east")(houses(), action))


def test_a_loaded_ego_learns_on_where_its_file_names_a_world_or_it_is_given_one(agent, demos, tmp_path, monkeypatch):
    agent.save(tmp_path)
    loaded = psiphi.load(tmp_path)
    with pytest.raises(UserError, match="This PsiPhi was loaded and its file names no world: set agent.world"):
        loaded.learn(10)
    loaded.world, loaded.demos, loaded.num_envs = training.worlds.gym.world_of(Street), demos, 4
    begun = []
    train = training.train
    monkeypatch.setattr(training, "train", lambda run, **given: begun.append(given["net"]) or train(run, **given))
    known = loaded._trained().model
    loaded.learn(40, study=0, progress=False)
    assert loaded.steps >= 40 and int(loaded._state.count) < 20
    kept = eqx.tree_at(lambda net: net.w, known.net, known.w)
    assert eqx.tree_equal(begun[0], kept), "it began with the networks and preferences that were loaded"


def test_what_was_trained_in_a_world_of_psiphi_goes_on_there(tmp_path):
    config = tiny.run("psiphi").agent
    world = tiny.world("coingrid")
    first = psiphi.PsiPhi(world, config=config, num_envs=2, task="R-G")
    first.learn(32, study=1, out=tmp_path / "run", progress=False)
    assert first.run_dir == tmp_path / "run" and (tmp_path / "run" / "metrics.jsonl").exists()
    again = psiphi.load(tmp_path / "run")
    assert (again.task, again.num_envs, again.world.config) == ("R-G", 2, tiny.WORLDS["coingrid"])
    obs = np.zeros((1, 5, 5, 5), np.uint8)
    assert again.predict(obs).tolist() == first.predict(obs).tolist()
    again.learn(32, study=0, progress=False)
    assert again.steps >= 32


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"kind": "run"}, "is a checkpoint but not a trained model"),
        ({"version": 99}, "is a model of version 99, but this psiphi reads version"),
        ({"algorithm": "os.system"}, "its algorithm is 'os.system', expected one of itd, psiphi"),
        ({"agents": ["a", "a"]}, "its agents are not different ids"),
        ({"agents": ["a", 1]}, "its agents are not different ids"),
        ({"agents": ["a", "b", "c"]}, "what its manifest says of agents, actions and observations does not fit together"),
        ({"config.gamma": "0.9"}, "config.gamma is '0.9', which is not a float"),
        ({"config.torso": "elsewhere"}, "config.torso is 'elsewhere', expected one of"),
        ({"config.unheard": 1}, "config is not a ITDConfig of this version of psiphi"),
        ({"config.torso_hidden": [10**9]}, "torso_hidden is 1000000000, expected at most 65,536"),
        ({"model.obs_dtype": "object"}, "observations of type 'object' are none that psiphi knows"),
        ({"model.obs_shape": [-1]}, "model.obs_shape is -1, expected at least 1"),
        ({"model.num_actions": 3}, "was changed since it was written"),
        ({"model.standardised": False}, "was changed since it was written"),
    ],
    ids=str,
)
def test_a_strange_manifest_is_refused_in_one_sentence(itd, tmp_path, change, sentence):
    itd.save(tmp_path)
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    for name, value in change.items():
        *parents, last = name.split(".")
        inner = manifest["meta"]
        for parent in parents:
            inner = inner[parent]
        inner[last] = value
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(UserError) as raised:
        psiphi.load(tmp_path)
    assert sentence in str(raised.value) and str(raised.value).endswith(".")


def test_what_is_written_is_what_the_manifest_is_read_as(itd, tmp_path):
    itd.save(tmp_path)
    got = files.read(tmp_path)
    assert got.known is not None and got.config == itd._used and got.known.lens.standardise and got.seed == 0


# --- Errors --------------------------------------------------------------------------------------------------------------------


def test_nothing_can_be_asked_before_it_is_learned(demos):
    with pytest.raises(UserError, match="This ITD has learned nothing yet; call fit with demonstrations first"):
        psiphi.ITD().policy("west")
    with pytest.raises(UserError, match="This PsiPhi has learned nothing yet; call learn with a number of steps first"):
        psiphi.PsiPhi(Street, demos).predict(houses()[0])
    with pytest.raises(UserError, match="total_timesteps is 0, expected at least 1"):
        psiphi.PsiPhi(Street, demos).learn(0)


def test_unknown_names_and_strange_arrays_are_refused_in_one_sentence(itd):
    with pytest.raises(UserError, match="There is no agent 'north'; the known agents are 'west', 'east'"):
        itd.reward("north")
    with pytest.raises(UserError, match=r"The observation has shape \(2,\), expected \(3,\), or that with a leading axis"):
        itd.policy("west")(np.zeros(2))
    with pytest.raises(UserError, match="There is an action 2, but the actions are 0 to 1"):
        itd.reward("west")(houses()[0], 2)
    with pytest.raises(UserError, match="The actions are float64 of shape"):
        itd.reward("west")(houses()[0], 0.5)
    with pytest.raises(UserError, match="The rewards have shape"):
        itd.adapt((houses(), np.zeros(7, int), np.zeros(3)))
    with pytest.raises(UserError, match="The transitions are not steps"):
        itd.adapt([])
    with pytest.raises(UserError, match="explain takes one observation"):
        itd.set_preferences("west").explain(houses())


def test_an_itd_without_a_task_says_so(itd, tmp_path):
    itd.set_preferences(None)
    with pytest.raises(UserError, match="There is no task to act on yet; call adapt with rewarded steps, or set_preferences"):
        itd.predict(houses()[0])


@pytest.mark.parametrize(
    ("world", "sentence"),
    [
        ("CartPole-v1", r"observations have shape \(3,\), but the world's have \(4,\)"),
        ("Pendulum-v1", "actions of 'Pendulum-v1' are Box.*, expected a Discrete space"),
        ("NoSuchWorld-v7", "'NoSuchWorld-v7' is neither a world of psiphi nor a Gymnasium environment"),
        ("Blackjack-v1", r"observations have shape \(3,\), but the world's have \(45,\)"),
    ],
    ids=str,
)
def test_an_environment_that_does_not_fit_is_refused(world, sentence, demos):
    with pytest.raises(UserError, match=sentence):
        psiphi.PsiPhi(world, demos)


def test_more_actions_than_the_environment_has_are_refused(demos):
    with pytest.raises(UserError, match="The demonstrations have 3 actions, but the world has 2"):
        psiphi.PsiPhi(Street, dataclasses.replace(demos, num_actions=3))


# --- What the network sees ------------------------------------------------------------------------------------------------------


def test_numbers_of_any_scale_are_standardised():
    obs = np.random.default_rng(0).normal(size=(500, 3)) * [1e-3, 1.0, 1e5] + [1e3, 0.0, -1e6]
    obs[:, 1] = 4.0
    glass = lens.lens_for(obs, (3,), np.float64)
    seen = look(glass, obs)
    np.testing.assert_allclose(seen.mean(axis=0), 0, atol=1e-2)
    np.testing.assert_allclose(seen.std(axis=0), [1, 0, 1], atol=0.05)
    assert np.abs(look(glass, obs + 1e9)).max() == lens.FARTHEST and seen.dtype == np.float32


@pytest.mark.parametrize(
    ("shape", "dtype", "top", "kind", "seen", "kept"),
    [
        ((84, 84, 3), np.uint8, 255, "picture", (84, 84, 3), True),
        ((4, 84, 84), np.uint8, 255, "picture", (84, 84, 4), True),
        ((84, 84), np.uint8, 255, "picture", (84, 84, 1), True),
        ((7, 7, 5), np.uint8, 11, "board", (7, 7, 5), True),
        ((7, 7, 3), np.uint8, 255, "picture", (7, 7, 3), True),
        ((3, 10, 10), np.uint8, 255, "picture", (10, 10, 3), True),
        ((20, 20, 3), np.uint8, 2, "board", (20, 20, 3), True),
        ((3, 20, 20), np.uint8, 2, "board", (3, 20, 20), True),
        ((20, 20), np.uint8, 2, "vector", (20, 20), False),
        ((10, 10, 4), np.float32, 2, "board", (10, 10, 4), False),
        ((5, 5), np.float32, 255, "vector", (5, 5), False),
        ((3, 20, 20), np.float32, 255, "picture", (20, 20, 3), False),
        ((128,), np.uint8, 255, "vector", (128,), False),
    ],
    ids=str,
)
def test_what_is_seen_is_told_by_its_values_and_not_by_its_size(shape, dtype, top, kind, seen, kept):
    obs = np.random.default_rng(0).integers(0, top, (6, *shape)).astype(dtype)
    glass = lens.lens_for(obs, shape, dtype)
    assert glass.kind == glass.spec(2).kind == kind
    got = look(glass, obs)
    assert got.shape[1:] == seen == glass.seen_shape and (got.dtype == np.uint8) == kept == (not glass.standardise)
    if shape == (4, 84, 84):
        np.testing.assert_array_equal(got[2, :, :, 3], obs[2, 3])
    if not kept:
        assert abs(got.mean()) < 1e-2
    blank = lens.blank(shape, dtype, glass.standardise, kind)
    assert (blank.mean.shape, blank.layout, blank.spec(2)) == (glass.mean.shape, glass.layout, glass.spec(2))


@pytest.fixture(scope="module")
def dark_or_bright() -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    dark, bright = (random.integers(low, low + 40, (20, 1, 20, 20)).astype(np.uint8) for low in (0, 200))
    return dark, bright


def shown_by_brightness(dark: np.ndarray, bright: np.ndarray) -> psiphi.Demonstrations:
    """One agent, who does 0 where it is dark and 1 where it is bright."""
    obs = [np.concatenate([dark[:10], bright[:1]]), np.concatenate([bright[:10], dark[:1]])]
    return psiphi.Demonstrations.from_lists(obs, [np.zeros(10, int), np.ones(10, int)], ["a", "a"], num_actions=2)


def test_pictures_can_be_learned_from(dark_or_bright):
    dark, bright = dark_or_bright
    config = dataclasses.replace(ITD, ema=0.3, num_cumulants=1, torso_hidden=(8,), phi_hidden=(8,), psi_hidden=())
    itd = psiphi.ITD(config, updates=40).fit(shown_by_brightness(dark, bright), progress=False)
    assert itd.policy("a")(dark[10:]).tolist() == [0] * 10 and itd.policy("a")(bright[10:]).tolist() == [1] * 10


@pytest.mark.slow  # half a minute of compiling
def test_the_deep_torso_learns_from_pictures(dark_or_bright):
    dark, bright = dark_or_bright
    config = psiphi.BCConfig(torso="impala-deep", torso_hidden=(8,), batch=8, learning_rate=3e-3)
    bc = psiphi.BC(config).fit(shown_by_brightness(dark, bright), updates=20, progress=False)
    assert bc.predict(dark[10:], agent="a").tolist() == [0] * 10 and bc.predict(bright[10:], agent="a").tolist() == [1] * 10
