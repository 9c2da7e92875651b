"""`psiphi.BC`, `DQN`, `SQIL`, `GAIL` and `PPO`: one manner for all of them, in whatever a user calls an environment."""

from pathlib import Path
from typing import Any

import gymnasium
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import probes
import psiphi
import tiny
from psiphi import training
from psiphi.errors import UserError
from psiphi.loops import runs


class Corner(gymnasium.Env[np.ndarray, Any]):
    """One step: whoever says the number that it sees, counted from 5, is paid."""

    observation_space = gymnasium.spaces.Box(0, 1, (3,), np.float32)

    def __init__(self, first: int = 5):
        self.first, self.action_space = first, gymnasium.spaces.Discrete(3, start=first)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.place = int(self.np_random.integers(3))
        return np.eye(3, dtype=np.float32)[self.place], {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action)
        return np.eye(3, dtype=np.float32)[self.place], float(action - self.first == self.place), True, False, {}


def config(algorithm: str, **changes: Any) -> Any:
    return training.changed(tiny.run(algorithm, "CartPole-v1").agent, changes)


PLACES = np.eye(3, dtype=np.float32)


def demos() -> psiphi.Demonstrations:
    """One who says what it sees and one who says the next number, of one step each."""
    obs, actions, who = [], [], []
    for k in range(60):
        obs.append(np.stack([PLACES[k % 3], PLACES[0]]))
        actions.append(np.array([k % 3 if k < 30 else (k + 1) % 3]))
        who.append("honest" if k < 30 else "contrary")
    return psiphi.Demonstrations.from_lists(obs, actions, who, num_actions=3, terminated=[True] * 60)


# --- Acting --------------------------------------------------------------------------------------------------------------


def test_dqn_learns_saves_loads_and_goes_on(tmp_path):
    learner = psiphi.DQN(Corner, config=config("dqn", batch=32, learning_rate=0.01, epsilon_steps=200), seed=1, num_envs=4)
    with pytest.raises(UserError, match="This DQN has learned nothing yet; call learn or fit first"):
        learner.predict(PLACES)
    assert learner.learn(1_200, progress=False) is learner and learner.steps >= 1_200
    assert learner.predict(PLACES).tolist() == [5, 6, 7], "the environment's own numbers"
    assert learner.predict(PLACES[1]) == 6 and isinstance(learner.predict(PLACES[1]), int)
    assert set(learner.predict(np.repeat(PLACES, 50, axis=0), deterministic=False)) == {5, 6, 7}
    learner.save(tmp_path)
    loaded = psiphi.load(tmp_path)
    assert type(loaded) is psiphi.DQN and loaded.predict(PLACES).tolist() == [5, 6, 7] and loaded.config == learner.config
    np.testing.assert_array_equal(loaded.values(PLACES), learner.values(PLACES))
    with pytest.raises(UserError, match="was loaded and its file names no world; set agent.world"):
        loaded.learn(8)
    loaded.world, loaded.num_envs = training.worlds.gym.world_of(Corner), 4
    loaded.learn(40, progress=False)
    assert loaded.steps >= 40 and loaded.predict(PLACES).tolist() == [5, 6, 7], "it began with what it knew"
    before = learner.steps
    learner.learn(40, progress=False)
    assert learner.steps >= before + 40


def test_learning_leaves_a_directory_that_continues_and_calls_back(tmp_path):
    asked = []

    def evaluate(state: Any, key: Any) -> dict[str, Any]:
        asked.append(1)
        return {"mine": jnp.zeros(())}

    made = dict(config=config("ppo"), num_envs=2)
    first = psiphi.PPO("CartPole-v1", **made).learn(32, out=tmp_path / "run", evaluate=evaluate, progress=False)
    assert first.run_dir == tmp_path / "run" and asked and runs.read_rows(tmp_path / "run")[-1]["eval/mine"] == 0.0
    before = (tmp_path / "run" / "metrics.jsonl").read_bytes()
    again = psiphi.PPO("CartPole-v1", **made).learn(32, out=tmp_path / "run", evaluate=evaluate, progress=False)
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == before
    obs = np.zeros((2, 4), np.float32)
    np.testing.assert_array_equal(again.values(obs), first.values(obs))
    loaded = psiphi.load(tmp_path / "run")
    assert loaded.world is not None and loaded.world.name == "CartPole-v1"
    assert "untrained" in repr(psiphi.PPO("CartPole-v1", **made)) and "32 steps" in repr(first)


@pytest.mark.parametrize(
    ("env", "number"),
    [(Corner(), 1), (SyncVectorEnv([Corner] * 2, autoreset_mode=AutoresetMode.NEXT_STEP), 2), (lambda: Corner(0), 3)],
    ids=["environment", "vector", "function"],
)
def test_any_kind_of_environment_will_do(env, number):
    agent = psiphi.PPO(env, config=config("ppo", minibatches=1), num_envs=3).learn(16, progress=False)
    assert agent.steps % (4 * number) == 0 and agent.steps >= 16
    first = 0 if number == 3 else 5
    assert set(agent.predict(PLACES)) <= {first, first + 1, first + 2}


def test_a_jax_environment_and_a_world_of_psiphi_will_do(tmp_path):
    probe = probes.make(probes.say_what_you_see())
    agent = psiphi.DQN(probe, config=config("dqn"), num_envs=2).learn(32, progress=False)
    assert agent.predict(np.zeros(probe.spec.obs_shape, np.float32)) in range(probe.spec.num_actions)
    world = tiny.world("coingrid")
    in_coins = psiphi.DQN(world, config=tiny.run("dqn").agent, num_envs=2, task="R-G").learn(32, progress=False)
    assert in_coins._run is not None and in_coins._run["task"] == "R-G" and in_coins.predict(np.zeros((5, 5, 5), np.uint8)) in range(3)
    in_coins.save(tmp_path)
    loaded = psiphi.load(tmp_path)
    assert (loaded.task, loaded.num_envs, loaded.world.config) == ("R-G", 2, tiny.WORLDS["coingrid"]), "it would go on with its own task"


@pytest.mark.slow
@pytest.mark.parametrize("kind", [psiphi.SQIL, psiphi.GAIL], ids=lambda kind: kind.__name__)
def test_imitators_learn_from_demonstrations_beside_the_environment(kind):
    agent = kind(lambda: Corner(0), demos(), config(kind.algorithm, demonstrator=0), num_envs=4).learn(64, progress=False)
    assert agent.agents == () and agent.predict(PLACES).shape == (3,)
    assert set(agent.accuracies(demos())) == {"honest", "contrary"}


# --- Cloning -------------------------------------------------------------------------------------------------------------


def test_bc_clones_every_agent_and_is_asked_by_name(tmp_path):
    bc = psiphi.BC(config("bc", batch=32, learning_rate=0.03), seed=2).fit(demos(), 300, out=tmp_path / "run", progress=False)
    assert bc.agents == ("honest", "contrary") and bc.run_dir == tmp_path / "run"
    assert bc.predict(PLACES, agent="honest").tolist() == [0, 1, 2] and bc.predict(PLACES, agent="contrary").tolist() == [1, 2, 0]
    assert bc.accuracies(demos()) == {"honest": 1.0, "contrary": 1.0}
    with pytest.raises(UserError, match=r"There is a policy for each of 'honest', 'contrary', expected predict\(obs, agent=...\)"):
        bc.predict(PLACES)
    with pytest.raises(UserError, match="There is no agent 'zoe'"):
        bc.predict(PLACES, agent="zoe")
    loaded = psiphi.load(tmp_path / "run")
    assert type(loaded) is psiphi.BC and loaded.accuracies(demos()) == {"honest": 1.0, "contrary": 1.0}
    assert (Path(tmp_path) / "run" / "checkpoint").is_dir()


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: psiphi.DQN("CartPole-v1", config=psiphi.PPOConfig()), "expected a psiphi.DQNConfig or None"),
        (lambda: psiphi.DQN("CartPole-v1", seed=-1), "seed is -1"),
        (lambda: psiphi.DQN("CartPole-v1", num_envs=0), "num_envs is 0, expected at least 1"),
        (lambda: psiphi.SQIL("CartPole-v1"), "sqil learns from demonstrations, expected demos beside the environment"),
        (lambda: psiphi.BC().fit(demos(), 0), "updates is 0, expected at least 1"),
        (lambda: psiphi.DQN("CartPole-v1").learn(0), "total_timesteps is 0, expected at least 1"),
        (lambda: psiphi.BC().predict(PLACES), "This BC has learned nothing yet"),
        (lambda: psiphi.BC().save("nowhere"), "This BC has learned nothing yet"),
    ],
)
def test_what_is_wrong_is_one_sentence(make, sentence):
    with pytest.raises(UserError, match=sentence):
        make()
