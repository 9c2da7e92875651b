"""Any Gymnasium environment with discrete actions as a world: by its id, or by a function of the user's (``module:function``).

Nothing was tuned for such a world, so its settings are general ones. Observations that are dictionaries are flattened to their numbers.
"""

import importlib
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from psiphi.agents import sqil
from psiphi.agents.bc import BCConfig
from psiphi.agents.dqn import DQNConfig
from psiphi.agents.gail import GAILConfig
from psiphi.agents.guided import GuidedConfig
from psiphi.agents.itd import ITDConfig
from psiphi.agents.ppo import PPOConfig
from psiphi.agents.psiphi import PsiPhiConfig
from psiphi.agents.sqil import SQILConfig
from psiphi.agents.together import TogetherConfig
from psiphi.errors import UserError
from psiphi.types import Env, EnvSpec
from psiphi.worlds.world import Makes, World

# --- Making one ----------------------------------------------------------------------------------------------------------


def world(name: str) -> World:
    """The world of a Gymnasium id, or of a ``module:function`` that makes an environment. It is made once, to see that it can be."""
    made = with_numbers(factory(name), name)
    _check_first(made(), name)
    return World(name, "a Gymnasium environment", lambda config, task: made, presets=PRESETS, lensed=True, drawn=partial(_drawn, name))


def _check_first(env: gymnasium.Env[Any, Any], name: str) -> None:
    """That it begins, and shows what its space says: before anything is written."""
    try:
        first = env.reset(seed=0)[0]
    except (Exception, SystemExit) as error:  # whatever a stranger's environment does
        raise UserError(f"The environment {name!r} cannot be reset: {_told(error)}.") from error
    finally:
        env.close()
    if np.shape(first) != env.observation_space.shape:
        raise UserError(
            f"The first observation of {name!r} has shape {np.shape(first)}, expected {env.observation_space.shape}, as its space says."
        )


def _told(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).rstrip('.')}"


def world_of(env: Any) -> World:
    """The world of an environment that is there already: JAX's, Gymnasium's, a vector of them, or a function that makes one."""
    name = getattr(getattr(env, "spec", None), "id", None) or type(env).__name__
    return World(str(name), "an environment of the user's", lambda config, task: env, presets=PRESETS, lensed=True)


def never_entered(spec: EnvSpec) -> World:
    """A world for those who learn from logs alone: it only says what observations and actions are."""

    def unreachable(*_: Any) -> Any:
        raise AssertionError("no agent acts here")

    return replace(world_of(Env(spec, unreachable, unreachable)), entered=False)


def factory(name: str) -> Callable[..., gymnasium.Env[Any, Any]]:
    """What makes the environment. A function's module is imported, which runs it: only names that the user typed come here."""
    if ":" not in name:
        _registered(name)
        return partial(gymnasium.make, name)
    module, _, function = name.partition(":")
    if module not in sys.modules and "" not in sys.path:
        sys.path.insert(0, "")  # a module in the folder where the command was typed
    try:
        found = getattr(importlib.import_module(module), function, None)
    except ImportError as error:
        raise UserError(f"{name!r} is not an environment: the module {module!r} cannot be imported ({error}).") from error
    except (Exception, SystemExit) as error:  # whatever a stranger's module does
        raise UserError(f"{name!r} is not an environment: its module raised {type(error).__name__}: {error}") from error
    if found is None and not any(function in (known, known.rpartition("-v")[0]) for known in gymnasium.registry):
        raise UserError(
            f"{name!r} is not an environment: the module {module!r} has no {function!r}, expected a function or a Gymnasium id."
        )
    if found is None:  # Gymnasium's own way to write an id whose module must be imported first
        return partial(gymnasium.make, name)
    if not callable(found):
        raise UserError(f"{name!r} is not an environment: {function!r} is no function of the module {module!r}.")
    return found  # pyright: ignore[reportReturnType] - what it makes is looked at when it is made


REGISTERED_BY = {"MiniGrid-": "minigrid", "BabyAI-": "minigrid", "ALE/": "ale_py"}
"""Ids that Gymnasium knows once a package is imported, by how they begin."""


def _registered(name: str) -> None:
    """Import the package that an id belongs to, if it is one of those that are known here."""
    for beginning, package in REGISTERED_BY.items():
        if name.startswith(beginning) and name not in gymnasium.registry:
            try:
                importlib.import_module(package)
            except ImportError as error:
                raise UserError(f"The environment {name!r} belongs to the package {package}, which is not installed here.") from error
            if package == "ale_py":
                gymnasium.register_envs(sys.modules[package])


def with_numbers(maker: Callable[..., gymnasium.Env[Any, Any]], name: str) -> Makes:
    """A function that makes the environment with observations that are arrays, and refuses what no algorithm here can act in."""

    def make() -> gymnasium.Env[Any, Any]:
        return _as_numbers(_made(maker, name), name)

    return make


def _made(maker: Callable[..., gymnasium.Env[Any, Any]], name: str, **options: Any) -> gymnasium.Env[Any, Any]:
    try:
        env = maker(**options)
    except (gymnasium.error.NameNotFound, gymnasium.error.NamespaceNotFound, gymnasium.error.VersionNotFound) as error:
        raise UserError(f"{name!r} is neither a world of psiphi nor a Gymnasium environment: {str(error).rstrip('.')}.") from error
    except (Exception, SystemExit) as error:  # whatever a stranger's function does
        raise UserError(f"The environment {name!r} cannot be made: {_told(error)}.") from error
    if not isinstance(env, gymnasium.Env):
        raise UserError(f"{name!r} made a {type(env).__name__}, expected a gymnasium.Env.")
    return env


def _as_numbers(env: gymnasium.Env[Any, Any], name: str) -> gymnasium.Env[Any, Any]:
    if not isinstance(env.action_space, spaces.Discrete):
        raise UserError(
            f"The actions of {name!r} are {env.action_space}, expected a Discrete space; psiphi demos discretise makes some of logs."
        )
    seen = env.observation_space
    if isinstance(seen, spaces.Dict):
        env = Numbers(env)
        seen = env.observation_space
    elif isinstance(seen, spaces.Discrete | spaces.MultiDiscrete | spaces.Tuple):
        env = gymnasium.wrappers.FlattenObservation(env)
        seen = env.observation_space
    if not isinstance(seen, spaces.Box | spaces.MultiBinary) or not seen.shape:
        raise UserError(f"The observations of {name!r} are {seen}, expected arrays of numbers.")
    return env


class Numbers(gymnasium.ObservationWrapper[Any, Any, Any], gymnasium.utils.RecordConstructorArgs):
    """Of a dictionary, the entries that are numbers, one after the other; a single one keeps its shape. Text is left out."""

    def __init__(self, env: gymnasium.Env[Any, Any]):
        gymnasium.utils.RecordConstructorArgs.__init__(self)
        gymnasium.ObservationWrapper.__init__(self, env)
        seen = env.observation_space
        assert isinstance(seen, spaces.Dict)
        numbers = (spaces.Box, spaces.Discrete, spaces.MultiBinary, spaces.MultiDiscrete)
        self._part = spaces.Dict({key: space for key, space in seen.spaces.items() if isinstance(space, numbers)})
        self.left_out = tuple(key for key in seen.spaces if key not in self._part.spaces)
        if not self._part.spaces:
            raise UserError(f"The observations are {seen}, expected at least one entry that is numbers.")
        key, only = next(iter(self._part.spaces.items()))
        self._only = key if len(self._part.spaces) == 1 and isinstance(only, spaces.Box) else None
        flat = spaces.flatten_space(self._part)
        assert isinstance(flat, spaces.Box)
        self.observation_space = only if self._only else spaces.Box(-np.inf, np.inf, flat.shape, np.float32)

    def observation(self, observation: Any) -> np.ndarray:
        if self._only:
            return observation[self._only]
        return np.asarray(spaces.flatten(self._part, {key: observation[key] for key in self._part.spaces}), np.float32)


def _drawn(name: str, config: Any, task: str) -> gymnasium.Env[Any, Any]:
    """The environment, drawing itself, seen as the learner sees it."""
    del config, task
    maker = factory(name)
    try:
        env = _made(maker, name, render_mode="rgb_array")
    except UserError:
        env = _made(maker, name)
    if env.render_mode != "rgb_array":
        raise UserError(f"{name!r} cannot be drawn: its render_mode is {env.render_mode!r}, expected 'rgb_array' to be possible.")
    return _as_numbers(env, name)


# --- What suits anything -------------------------------------------------------------------------------------------------


def _dqn() -> DQNConfig:
    """Close to what is customary for small control tasks: a longer horizon than CoinGrid's and a slower fall of the random actions."""
    return DQNConfig(gamma=0.99, learning_rate=1e-3, replay_size=100_000, epsilon_end=0.05, epsilon_steps=10_000, ema=0.01, mirror=False)


def _ppo() -> PPOConfig:
    return PPOConfig(
        torso_hidden=(64, 64), gamma=0.99, rollout_length=64, epochs=10, minibatches=8, learning_rate=1e-3, entropy=0.005, mirror=False
    )


def _soft() -> DQNConfig:
    """SQIL's learner; values there are so large that the softmax explores little, so some actions are random."""
    usual = sqil.default_dqn()
    return replace(_dqn(), double=usual.double, n_step=usual.n_step, epsilon_end=0.1)


def _itd() -> ITDConfig:
    """A step's end may come in any way, and rewards need not be sparse: the priors are weak."""
    return ITDConfig(gamma=0.97, sparsity=0.05, mirror=False)


PACE: dict[str, Any] = {
    "demos": "none",
    "steps": 50_000,
    "prefill_steps": 1_000,
    "num_envs": 8,
    "evaluate_every": 5_000,
    "evaluate_episodes": 16,
}

PRESETS: dict[str, Callable[[], dict[str, Any]]] = {
    "itd": lambda: PACE | {"agent": _itd(), "evaluate_every": 0},
    "psiphi": lambda: PACE | {"agent": PsiPhiConfig(itd=_itd(), temperature=0.0), "study": 500},
    "dqn": lambda: PACE | {"agent": _dqn(), "updates_per_rollout": 2},
    "guided-dqn": lambda: PACE | {"agent": GuidedConfig(dqn=_dqn(), clone=BCConfig(mirror=False)), "updates_per_rollout": 2},
    "bc": lambda: PACE | {"agent": BCConfig(mirror=False), "steps": 0, "updates": 4_000, "evaluate_every": 1_000},
    "sqil": lambda: PACE | {"agent": SQILConfig(dqn=_soft()), "updates_per_rollout": 2},
    "gail": lambda: PACE | {"agent": GAILConfig(ppo=replace(_ppo(), gamma=0.95), mirror=False)},
    "ppo": lambda: PACE | {"agent": _ppo()},
    "itd-dqn": lambda: PACE | {"agent": TogetherConfig(itd=_itd(), dqn=_dqn()), "evaluate_every": 0},
}  # fmt: skip
"""General settings, for worlds without tuned ones."""
