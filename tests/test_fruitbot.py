"""FruitBot: rewards say what happened, steps that did not happen are masked, seeds decide, and demonstrators do what they are for."""

import importlib.util

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from psiphi import replay, training, worlds
from psiphi.envs import fruitbot, fruitbot_gym, fruitbot_scripts
from psiphi.envs.fruitbot import Counts, FruitBotConfig
from psiphi.errors import UserError
from psiphi.loops import gym
from psiphi.worlds import fruitbot as world_file

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("envpool") is None,  # not imported: Qt must be loaded before it
    reason="FruitBot needs psiphi[fruitbot]; make test-fruitbot runs these tests with it",
)

STILL = np.full(4, FruitBotConfig().stay, np.int32)


# --- Rewards and tasks ---------------------------------------------------------------------------------------------------


def test_rewards_say_what_was_collected():
    reward = np.array([0, 1, 2, -4, -3, -8, -7, 10, 20, 11, 6])
    completed = np.array([0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1], bool)
    got = fruitbot.decoded(reward, completed)
    assert got.fruits.tolist() == [0, 1, 2, 0, 1, 0, 1, 0, 0, 1, 0]
    assert got.objects.tolist() == [0, 0, 0, 1, 1, 2, 2, 0, 0, 0, 1]
    assert got.presents.tolist() == [0, 0, 0, 0, 0, 0, 0, 1, 2, 1, 1]
    assert np.allclose(fruitbot.paid(fruitbot.GAME, got), reward)


def test_counts_of_real_steps_pay_what_the_game_pays():
    games = fruitbot.pool(FruitBotConfig(), 16, 3)
    frames, _ = games.reset()
    script = fruitbot_scripts.Script("fruits-and-objects", 16, 0)
    fresh, total, ends = np.ones(16, bool), Counts(0, 0, 0), 0
    for _ in range(450):
        frames, reward, terminated, truncated, info = games.step(script.act(frames, fresh))
        counts = fruitbot.decoded(reward, terminated & (info["prev_level_complete"] > 0))
        assert np.allclose(fruitbot.paid(fruitbot.GAME, counts), reward)
        total = Counts(*(a + b.sum() for a, b in zip(total, counts, strict=True)))
        fresh, ends = terminated | truncated, ends + terminated.sum()
    assert ends >= 16 and min(total) > 0


@pytest.mark.parametrize("task", ["fruit=1,object=-4,finish=10", "object=2.5", "fruit=0"])
def test_a_task_is_weights_by_name(task):
    weights = fruitbot.weights_of(task)
    assert fruitbot.weights_of(fruitbot.task_name(weights)) == weights


@pytest.mark.parametrize("task", ["R+G", "fruit", "fruit=x", "fruit=nan", "apple=1", "fruit=1,fruit=2", ""])
def test_what_is_no_task_is_refused_by_what_is_one(task):
    with pytest.raises(UserError, match="expected weights of fruit, object, finish"):
        fruitbot.weights_of(task)


# --- Environments --------------------------------------------------------------------------------------------------------


def test_gymnasium_accepts_it():
    env = gymnasium.make("psiphi/FruitBot-v0", view="paper")
    check_env(env.unwrapped, skip_render_check=True)
    env.close()


@pytest.mark.parametrize(("view", "columns"), [("paper", 64), ("centred", 96)])
def test_views_have_their_shapes_and_the_robot_in_its_place(view, columns):
    env = fruitbot_gym.FruitBotEnv(view=view, actions="all")
    env.reset(seed=4)
    for action in (fruitbot.LEFT, fruitbot.LEFT, fruitbot.STAY):
        obs, *_ = env.step(action)
    assert obs.shape == (64, columns, 3) and obs.dtype == np.uint8
    where = np.flatnonzero((obs[fruitbot.ROBOT_ROWS] == fruitbot.ROBOT).all(axis=-1).any(axis=0))
    assert (abs(where.mean() - 48) <= 1) == (view == "centred")
    env.close()


@pytest.mark.parametrize("backgrounds", [False, True])
def test_a_seed_decides_everything_and_another_something(backgrounds):
    def rollout(seed: int) -> tuple[np.ndarray, np.ndarray]:
        vector = fruitbot_gym.FruitBotVector(FruitBotConfig(backgrounds=backgrounds, actions="all"), fruitbot.GAME, 4)
        vector.reset(seed=seed)
        steps = [vector.step(np.full(4, a))[:2] for a in np.random.default_rng(0).integers(0, 15, 60)]
        vector.close()
        return np.stack([obs for obs, _ in steps]), np.stack([reward for _, reward in steps])

    (obs, reward), (again, reward_again), (other, _) = rollout(1), rollout(1), rollout(2)
    assert (obs == again).all() and (reward == reward_again).all() and not (obs == other).all()


def test_the_step_after_an_end_did_not_happen():
    """Whoever stands still dies at the first wall; what the pool then spends on beginning anew is not handed out."""
    hosts = gym.Worlds(fruitbot_gym.FruitBotVector(FruitBotConfig(), fruitbot.GAME, 4))
    hosts.reset(0)
    ended_before, phantoms = np.zeros(4, bool), 0
    for _ in range(250):
        step = hosts.step(STILL)
        assert (step.real == ~ended_before).all()
        assert not np.asarray(step.transition.reward)[~step.real].any() and not step.info["features"][~step.real].any()
        ended_before, phantoms = np.asarray(step.transition.last), phantoms + int((~step.real).sum())
    assert phantoms > 0


def test_backgrounds_change_the_picture_and_nothing_else():
    plain, painted = (fruitbot_gym.Games(FruitBotConfig(backgrounds=b, actions="all"), 4, 7) for b in (False, True))
    for action in np.random.default_rng(1).integers(0, 15, (80, 4)):
        (ended, _, counts, _), (ended_too, _, counts_too, _) = plain.step(action), painted.step(action)
        assert (ended == ended_too).all() and all((a == b).all() for a, b in zip(counts, counts_too, strict=True))
    assert not (plain.frames == painted.frames).all()


def test_the_mirror_turns_left_and_right():
    mirror = world_file.mirror(FruitBotConfig(actions="all"))
    obs = jnp.arange(64 * 96 * 3).reshape(64, 96, 3) % 251
    assert (np.asarray(mirror.obs(mirror.obs(obs))) == obs).all()
    assert np.asarray(mirror.action(jnp.array([1, 4, 7, 9]))).tolist() == [7, 4, 1, 9]
    assert np.asarray(world_file.mirror(FruitBotConfig(actions="distinct")).action(jnp.arange(4))).tolist() == [2, 1, 0, 3]


def test_each_action_does_what_the_distinct_one_does_that_stands_for_it():
    """The 15 actions lead to the same frames as the 4 that they are counted as; the 4 lead to different ones."""
    every, few = (fruitbot_gym.Games(FruitBotConfig(actions=kind), 15, 3) for kind in ("all", "distinct"))
    first = every.frames.copy()
    for _ in range(12):
        every.step(np.arange(15))
        few.step(fruitbot.AS_DISTINCT)
    assert (every.frames == few.frames).all() and not (every.frames == first).all()
    assert (fruitbot.AS_DISTINCT[fruitbot.DISTINCT] == np.arange(4)).all()
    assert FruitBotConfig(actions="all").stay == fruitbot.STAY and FruitBotConfig(actions="distinct").stay == 1


def test_demonstrators_are_recorded_in_the_actions_of_the_world():
    every, few = (world_file.played(FruitBotConfig(actions=kind), "random", 2, 5) for kind in ("all", "distinct"))
    for one, same in zip(every, few, strict=True):
        assert (fruitbot.AS_DISTINCT[one["action"]] == same["action"]).all() and (one["frames"] == same["frames"]).all()
    assert fruitbot_gym.FruitBotEnv(actions="distinct").action_space.n == 4  # pyright: ignore[reportAttributeAccessIssue]


# --- Demonstrators -------------------------------------------------------------------------------------------------------


def test_demonstrators_finish_and_have_their_tastes():
    collected = {
        name: np.array([one["features"].sum(axis=0) for one in world_file.played(FruitBotConfig(), name, 8, 5)]).mean(axis=0)
        for name in fruitbot_scripts.TASTES
    }
    for name in ("fruits-and-objects", "objects-only", "expert"):
        assert collected[name][3] >= 0.75
    assert collected["random"][3] == 0
    assert collected["fruits-and-objects"][0] > 2 * collected["objects-only"][0]
    assert collected["objects-only"][1] > 3 * collected["expert"][1]


def test_recorded_demonstrations_are_whole_episodes():
    got = world_file.record(FruitBotConfig(), ("fruits-and-objects", "random"), 3, 0, "train")
    count, demos = np.asarray(got.demos.count), got.demos
    assert demos.frames is not None and demos.frames.dtype == np.uint8
    assert demos.frames.nbytes < 1.02 * count.max() * 2 * 64 * 96 * 3  # once
    for k, number in enumerate(count):
        episode = np.asarray(got.episode[k])
        assert (episode[:number] >= 0).all() and (episode[number:] == -1).all() and set(episode[:number]) == {0, 1, 2}
        steps = jax.tree.map(np.asarray, replay.steps_at(demos, jnp.full(number, k), jnp.arange(number)))
        ends = np.flatnonzero(np.diff(episode[:number]))
        assert (steps.discount[ends] == 0).all()
        inside = np.setdiff1d(np.arange(number - 1), ends)
        assert (steps.next_obs[inside] == steps.obs[inside + 1]).all()
        assert (steps.next_action[inside] == steps.action[inside + 1]).all()
        assert not (steps.next_obs[ends] == steps.obs[ends + 1]).all()


def test_demonstrations_stored_once_are_pooled_and_spread():
    demos = world_file.record(FruitBotConfig(), ("random", "random"), 2, 0, "train").demos
    count = np.asarray(demos.count)
    pooled = training.pool(demos)
    assert pooled.count.tolist() == [count.sum()]
    for k, start in ((0, 0), (1, count[0])):
        mine = replay.steps_at(demos, jnp.full(5, k), jnp.arange(5))
        same = replay.steps_at(pooled, jnp.zeros(5, int), start + jnp.arange(5))
        assert all((np.asarray(a) == np.asarray(b)).all() for a, b in zip(mine, same, strict=True))
    some = replay.spread(demos, 7)
    assert some.frames is None and some.steps.obs.shape == (2, 7, 64, 96, 3) and some.count.tolist() == [7, 7]


def test_the_hard_levels_have_no_demonstrators():
    hard = FruitBotConfig(difficulty="hard")
    assert worlds.WORLDS["fruitbot"].demonstrators(hard) == ()
    with pytest.raises(UserError, match="know the easy levels"):
        fruitbot_gym.Player(hard, "random", 1, 0)


def test_demonstrators_are_watched_while_one_acts():
    vector = fruitbot_gym.FruitBotVector(FruitBotConfig(companions=2), fruitbot.GAME, 3)
    hosts = gym.Worlds(vector, watched=True)
    hosts.reset(0)
    for _ in range(4):
        hosts.step(STILL[:3])
    who, shown = gym.others_seen(hosts.step(STILL[:3]))
    assert sorted(who) == [0] * 6 + [1] * 6 + [2] * 6
    assert shown.obs.shape == (18, 64, 96, 3) and shown.next_action.shape == (18,)
    vector.close()


# --- Training ------------------------------------------------------------------------------------------------------------

SMALL = {
    "episodes": 2, "num_envs": 4, "evaluate_every": 0, "evaluate_episodes": 4, "demonstrators": ("fruits-and-objects", "random"),
}  # fmt: skip


@pytest.mark.parametrize("algorithm", ["bc", "psiphi", "ppo"])
def test_it_trains(algorithm):
    changes = {"updates": 3} if algorithm == "bc" else {"steps": 600 if algorithm == "ppo" else 80}
    run = training.default_run(algorithm, "fruitbot", **{**SMALL, **changes})
    run = training.changed(run, {"prefill_steps": 40, "study": 1} if algorithm == "psiphi" else {})
    run = training.changed(run, {"agent.itd.replay_size": 2_000} if algorithm == "psiphi" else {})
    trained = training.train(run, progress=False)
    assert all(np.isfinite(np.asarray(x)).all() for x in jax.tree.leaves(trained.net))


def test_it_is_watched_online():
    run = training.default_run("psiphi", "fruitbot", **{**SMALL, "demos": "online", "steps": 80, "demonstrators": (), "room": 200})
    run = training.changed(run, {"prefill_steps": 40, "study": 1, "agent.itd.replay_size": 2_000})
    trained = training.train(run, progress=False)
    assert trained.agents == fruitbot_scripts.PAPER
    assert (np.asarray(trained.state.demos.count) > 0).all()
