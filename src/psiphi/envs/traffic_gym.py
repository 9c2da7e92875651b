"""Highway and Roundabout as Gymnasium environments: the JAX worlds one step at a time, for code that expects Gymnasium.

``psiphi/Highway-SingleTask-v0``, ``psiphi/Highway-Adversarial-v0``, ``psiphi/Highway-MultiTask-v0`` and ``psiphi/Roundabout-v0``.
"""

import dataclasses
import functools
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from psiphi.envs import highway, roundabout
from psiphi.envs.highway import HighwayConfig
from psiphi.envs.roundabout import RoundaboutConfig
from psiphi.envs.traffic import drive, render, roads
from psiphi.envs.traffic.roads import Road
from psiphi.errors import UserError
from psiphi.types import Env, TimeStep

Config = HighwayConfig | RoundaboutConfig


@functools.lru_cache(maxsize=32)
def _env(config: Config) -> Env:
    return highway.make(config) if isinstance(config, HighwayConfig) else roundabout.make(config)


@functools.partial(jax.jit, static_argnums=0)
def _reset(config: Config, seed: Array | np.uint32) -> tuple[Any, Array]:
    return _env(config).reset(jax.random.key(seed))


@functools.partial(jax.jit, static_argnums=0)
def _step(config: Config, state: Any, action: Array | np.int32) -> tuple[Any, TimeStep]:
    return _env(config).step(state, jnp.asarray(action), jax.random.key(0))  # all that is random was drawn at the start


class TrafficEnv(gymnasium.Env[np.ndarray, np.int64 | int]):
    """A world of traffic. Crashing, leaving the road and arriving are `terminated`, the time limit is `truncated`.

    ``info["demonstrator"]`` are the numbers of the demonstrators in sight, nearest first (-1: an empty place), and
    ``info["demonstration"]`` what each of them saw (`obs`), did (`action`), then saw (`next_obs`) and is about to do (`next_action`), from
    its own seat; the rest of `info` says how the ego fares. For many steps use the vectorised JAX environments.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 5}

    def __init__(self, name: str, config: Config, road: Road, bound: float, render_mode: str | None):
        if render_mode not in (None, *self.metadata["render_modes"]):
            raise UserError(f"{name}'s render_mode is {render_mode!r}, expected None or 'rgb_array'.")
        self.name, self.config, self.road, self.render_mode = name, config, road, render_mode
        self.metadata = {**type(self).metadata, "render_fps": config.policy_frequency}
        spec = _env(config).spec
        self.observation_space = gymnasium.spaces.Box(-bound, bound, spec.obs_shape, np.float32)
        self.action_space = gymnasium.spaces.Discrete(spec.num_actions)
        self._state: Any = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        """A new episode; with a seed, always the same ones from here on. Nothing has been demonstrated yet."""
        super().reset(seed=seed, options=options)
        self._state, obs = _reset(self.config, self.np_random.integers(2**32, dtype=np.uint32))
        return np.array(obs), _nothing_shown(self.config)

    def step(self, action: np.int64 | int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """One action."""
        if self._state is None:
            raise gymnasium.error.ResetNeeded(f"Cannot call {self.name}'s step() before reset().")
        if not self.action_space.contains(action):
            raise UserError(f"{self.name}'s action is {action!r}, expected a whole number from 0 to {len(self.config.table) - 1}.")
        self._state, out = _step(self.config, self._state, np.int32(action))
        out = jax.device_get(out)
        terminated = float(out.discount) == 0
        return np.array(out.obs), float(out.reward), terminated, bool(out.last) and not terminated, _info(out.extras)

    def render(self) -> np.ndarray | None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """An RGB picture from above: the ego green, the others blue."""
        if self.render_mode is None:
            gymnasium.logger.warn(f"{self.name} was made without a render mode; use render_mode='rgb_array'.")
            return None
        if self._state is None:
            raise gymnasium.error.ResetNeeded(f"Cannot call {self.name}'s render() before reset().")
        return render.picture(self.road, self._state.cars)


class HighwayEnv(TrafficEnv):
    """Highway. `scenario` is "single-task", "adversarial" or "multi-task"; `config` are fields of `HighwayConfig` to change in it."""

    def __init__(self, scenario: str = "multi-task", render_mode: str | None = None, **config: Any):
        if scenario not in highway.SCENARIOS:
            raise UserError(f"Highway has no scenario {scenario!r}; expected one of {', '.join(highway.SCENARIOS)}.")
        chosen = _changed("Highway", highway.SCENARIOS[scenario](), config)
        super().__init__("Highway", chosen, roads.highway(chosen.lanes, highway.ROAD_LENGTH), highway.CLIP, render_mode)


class RoundaboutEnv(TrafficEnv):
    """Roundabout. `config` are fields of `RoundaboutConfig`."""

    def __init__(self, render_mode: str | None = None, **config: Any):
        super().__init__("Roundabout", _changed("Roundabout", RoundaboutConfig(), config), roundabout.ROAD, roundabout.CLIP, render_mode)


def _changed(name: str, config: Any, fields: dict[str, Any]) -> Any:
    """A config with other values from keyword arguments, where lists will do for tuples."""
    known = [field.name for field in dataclasses.fields(config)]
    unknown = sorted(set(fields) - set(known))
    if unknown:
        raise UserError(f"{name} has no option {', '.join(unknown)}; expected render_mode, {', '.join(known)}.")
    return dataclasses.replace(config, **{field: _frozen(value) for field, value in fields.items()})


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if isinstance(value, list | tuple) else value


def _info(extras: dict[str, Any]) -> dict[str, Any]:
    """The extras of a step, with dictionaries in place of records, which Gymnasium's vector environments know how to stack."""
    return {**extras, "demonstration": extras["demonstration"]._asdict()}


@functools.lru_cache(maxsize=32)
def _shapes(config: Config) -> dict[str, Any]:
    state, _ = jax.eval_shape(functools.partial(_reset, config), np.uint32(0))
    return jax.eval_shape(functools.partial(_step, config), state, np.int32(0))[1].extras


def _nothing_shown(config: Config) -> dict[str, Any]:
    """The info of a step in which no car was seen and nothing has happened."""
    blank = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), _shapes(config))
    return {**_info(blank), "demonstrator": np.full_like(blank["demonstrator"], drive.NO_DEMONSTRATOR)}
