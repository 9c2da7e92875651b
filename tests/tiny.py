"""Runs that cost next to nothing: small worlds, small networks, few steps. Tests that share these share their compiled programs."""

import dataclasses
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from psiphi import lens, training, worlds
from psiphi.agents import itd
from psiphi.api import files
from psiphi.api.coverage import Coverage
from psiphi.api.known import Known
from psiphi.demos import Demonstrations
from psiphi.envs.coingrid import CoinGridConfig
from psiphi.envs.highway import HighwayConfig, goal
from psiphi.envs.roundabout import RoundaboutConfig
from psiphi.model import Model
from psiphi.training import Run, Trained
from psiphi.types import EnvSpec
from psiphi.worlds import World

_ITD = {"torso_hidden": (8,), "phi_hidden": (8,), "psi_hidden": (8,), "batch": 4, "cross_batch": 4, "replay_size": 64}
_DQN = {"torso_hidden": (8,), "head_hidden": (8,), "batch": 4, "replay_size": 64}
_PPO = {"torso_hidden": (8,), "rollout_length": 4, "minibatches": 2, "epochs": 1}


def _inside(name: str, changes: dict[str, Any]) -> dict[str, Any]:
    return {f"{name}.{key}": value for key, value in changes.items()}


NETS: dict[str, dict[str, Any]] = {
    "itd": _ITD,
    "psiphi": {**_inside("itd", _ITD), "batch": 4},
    "dqn": _DQN,
    "guided-dqn": {**_inside("dqn", _DQN), "clone.torso_hidden": (8,), "clone.batch": 4},
    "bc": {"torso_hidden": (8,), "batch": 4},
    "sqil": _inside("dqn", _DQN),
    "gail": {"torso_hidden": (8,), "head_hidden": (8,), "batch": 4, "steps": 1, **_inside("ppo", _PPO)},
    "ppo": _PPO,
    "itd-dqn": {**_inside("itd", _ITD), **_inside("dqn", _DQN)},
}
"""By algorithm: changes to its config that make it small."""

WORLDS: dict[str, Any] = {
    "coingrid": CoinGridConfig(size=5, coins=(1, 1, 0), max_steps=8),
    "highway-multi-task": HighwayConfig(
        cars=7, observed=2, lanes=2, ego_rank=2, goals=(goal(25, 0), goal(28, 1)), ego=goal(28, 0), max_steps=20
    ),
    "roundabout": RoundaboutConfig(max_steps=30),
}
"""By name: a config that makes a world small."""


def world(name: str) -> World:
    """A world of psiphi's with that config, for those who are given the world and not a run; few episodes are recorded in it."""
    found = worlds.find(name)
    presets = {algorithm: partial(_briefly, preset) for algorithm, preset in found.presets.items()}
    return dataclasses.replace(found, config=WORLDS[name], presets=presets)


def _briefly(preset: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    return {**preset(), "episodes": 4}


def run(algorithm: str, env: str = "coingrid", **fields: Any) -> Run:
    """The run that a user would get there, with small everything; `fields` are of the run."""
    usual = training.default_run(algorithm, env)
    usual = training.changed(usual, _inside("agent", NETS[algorithm]))
    few = {
        "world": WORLDS.get(env),
        "num_envs": 2,
        "prefill_steps": 16 if usual.prefill_steps else 0,
        "study": min(usual.study, 2),
        "episodes": 4,
        "room": 64,
        "evaluate_episodes": 4,
        "evaluate_every": 16 if usual.evaluate_every else 0,
        "steps": 48 if usual.steps else 0,
        "updates": 4 if usual.updates else 0,
    }
    return dataclasses.replace(usual, **{**few, **fields})


def flags(algorithm: str) -> list[str]:
    """The same on CoinGrid, as flags of `psiphi train`."""
    made = run(algorithm)
    said = {f"agent.{name}": value for name, value in NETS[algorithm].items()}
    said |= {f"world.{name}": getattr(made.world, name) for name in ("size", "coins", "max_steps")}
    said |= {
        name: getattr(made, name) for name in ("num_envs", "prefill_steps", "study", "episodes", "evaluate_episodes", "evaluate_every")
    }
    said |= {name: getattr(made, name) for name in ("steps", "updates") if getattr(made, name)}
    words = [[f"--{name.replace('_', '-')}", *map(str, value if isinstance(value, tuple) else (value,))] for name, value in said.items()]
    return [word for some in words for word in some] + ["--quiet"]


def model(made: Run, seed: int = 0) -> Model:
    """A model of random numbers, as ITD would leave it after that run."""
    spec = spec_of(made)
    agents = len(made.demonstrators or worlds.find(made.env).demonstrators(made.world))
    net = jax.eval_shape(lambda key: itd.initial_net(made.agent, spec, agents, key), jax.random.key(0))
    like = Model(net, jax.ShapeDtypeStruct((agents, made.agent.num_cumulants), jnp.float32), jax.ShapeDtypeStruct((agents,), jnp.float32))  # pyright: ignore[reportArgumentType]
    draw = np.random.default_rng(seed)
    return jax.tree.map(lambda x: jnp.asarray(draw.normal(size=x.shape), x.dtype), like)


def as_trained(made: Run, rows: list[dict[str, Any]], env_steps: int) -> Trained:
    """What a training leaves, but for what was learned: for those who only look at rows."""
    made = training.completed(made)
    nothing: Any = None
    return Trained(made, nothing, nothing, spec_of(made), nothing, made.demonstrators, nothing, 0, (), env_steps, 1.0, rows)


def spec_of(made: Run) -> EnvSpec:
    place = worlds.find(made.env)
    return training.place_of(place.env(made.world, place.task(made.world, made.task or place.own)), 1).spec


def save_model(path: Path, made: Run) -> Path:
    """A directory of such a model."""
    from psiphi.api import trained

    made = training.completed(made)
    spec, found = spec_of(made), model(made)
    agents = made.demonstrators
    covered = Coverage(dict.fromkeys(agents, 1.0), 1.0, spec.num_actions)
    glass = lens.blank(tuple(spec.obs_shape), spec.obs_dtype, False, spec.kind or "vector")
    positive = found._replace(units=jnp.abs(found.units))
    known = Known(positive, glass, agents, spec.num_actions, 20.0, 0.05, np.eye(len(agents)), covered)
    files.save(path, "itd", known, made.agent, made.seed, None, run=trained.run_of(made))
    return path


def cartpole(path: Path) -> Path:
    """Two who balance a pole badly, as a file: one pushes to where it falls, one always to the right."""
    import gymnasium

    env = gymnasium.make("CartPole-v1")
    obs, action, agent = [], [], []
    for episode in range(6):
        now, _ = env.reset(seed=episode)
        seen, done, over = [now], [], False
        while not over and len(done) < 30:
            done.append(int(now[2] > 0) if episode % 2 else 1)
            now, _, terminated, truncated, _ = env.step(done[-1])
            seen.append(now)
            over = terminated or truncated
        obs, action, agent = [*obs, np.array(seen)], [*action, np.array(done)], [*agent, "careful" if episode % 2 else "stubborn"]
    env.close()
    Demonstrations.from_lists(obs, action, agent, num_actions=2).write(path)
    return path


def corners(wanted: list[tuple[int, int]], episodes: int, seed: int = 0) -> Demonstrations:
    """Walks on a board of 5 by 5, each to one corner; each of `wanted` is one kind, in turn, and all have the same id."""
    rng = np.random.default_rng(seed)
    ways = np.array([(1, 0), (0, 1), (-1, 0), (0, -1)])
    obs, action = [], []
    for e in range(episodes):
        goal, at = np.array(wanted[e % len(wanted)]), rng.integers(1, 4, 2)
        seen, done = [at], []
        while (at != goal).any():
            good = np.flatnonzero((ways * (goal - at) > 0).any(axis=1))
            done.append(int(rng.choice(good)) if rng.random() < 0.9 else int(rng.integers(4)))
            at = np.clip(at + ways[done[-1]], 0, 4)
            seen.append(at)
        obs.append(np.array(seen, np.float32))
        action.append(np.array(done))
    return Demonstrations.from_lists(obs, action, ["x"] * episodes, terminated=[True] * episodes, num_actions=4)


def chromium(height: int) -> Any:
    """A browser without a window, which keeps what the console says; skips where there is none."""
    import pytest  # benchmarks use this file, too, and need no tests

    webdriver = pytest.importorskip("selenium.webdriver")
    binary, driver = shutil.which("chromium") or shutil.which("google-chrome"), shutil.which("chromedriver")
    if binary is None or driver is None:
        pytest.skip("there is no Chromium with its driver")
    options = webdriver.ChromeOptions()
    options.binary_location = binary
    for flag in ("--headless=new", "--no-sandbox", f"--window-size=1150,{height}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    return webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
