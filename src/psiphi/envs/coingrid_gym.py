"""CoinGrid as a Gymnasium environment, ``psiphi/CoinGrid-v0``: the JAX world one step at a time, for code that expects Gymnasium."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import gymnasium
import jax
import numpy as np

from psiphi.envs import coingrid
from psiphi.envs.coingrid import NUM_ACTIONS, CoinGridConfig, State
from psiphi.errors import UserError
from psiphi.types import TimeStep


@functools.partial(jax.jit, static_argnums=0)
def _reset(config: CoinGridConfig, seed: jax.Array | np.uint32) -> tuple[State, jax.Array]:
    state = coingrid.reset(config, jax.random.key(seed))
    return state, coingrid.observe(config, state)


@functools.partial(jax.jit, static_argnums=0)
def _step(config: CoinGridConfig, weights: jax.Array | np.ndarray, state: State, action: jax.Array | np.int32) -> tuple[State, TimeStep]:
    next_state, features = coingrid.move(config, state, action)
    return next_state, coingrid.timestep(config, next_state, features, weights)


class CoinGridEnv(gymnasium.Env[np.ndarray, np.integer | int]):
    """CoinGrid with the reward of one task.

    An empty board is `terminated`, the time limit is `truncated`; ``info["features"]`` counts the coins just collected by colour.
    `config` are the fields of `CoinGridConfig`. For many steps use the vectorised JAX environment, `psiphi.envs.coingrid.make`.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 8}

    def __init__(self, task: str = "R+G", weights: Sequence[float] | None = None, render_mode: str | None = None, **config: Any):
        """`task` names the colours' weights (see `psiphi.envs.coingrid.task_weights`) unless `weights` gives them."""
        self.config = _config(config)
        self.weights = np.asarray(coingrid.task_weights(task) if weights is None else weights, np.float32)
        if self.weights.shape != (len(coingrid.COLOURS),):
            raise UserError(f"CoinGrid's weights have shape {self.weights.shape}, expected one weight per colour, (3,).")
        if render_mode not in (None, *self.metadata["render_modes"]):
            raise UserError(f"CoinGrid's render_mode is {render_mode!r}, expected None or 'rgb_array'.")
        self.render_mode = render_mode
        shape = coingrid.spec(self.config).obs_shape
        self.observation_space = gymnasium.spaces.Box(0, 2 if self.config.orientation == "half" else 1, shape, np.uint8)
        self.action_space = gymnasium.spaces.Discrete(NUM_ACTIONS)
        self._state: State | None = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        """A new episode; with a seed, always the same ones from here on."""
        super().reset(seed=seed, options=options)
        self._state, obs = _reset(self.config, self.np_random.integers(2**32, dtype=np.uint32))
        return np.array(obs), {"features": np.zeros(len(coingrid.COLOURS), np.float32)}

    def step(self, action: np.integer | int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """One move."""
        if self._state is None:
            raise gymnasium.error.ResetNeeded("Cannot call CoinGrid's step() before reset().")
        if not self.action_space.contains(action):
            raise UserError(f"CoinGrid's action is {action!r}, expected 0 (left), 1 (right) or 2 (forward).")
        self._state, out = _step(self.config, self.weights, self._state, np.int32(action))
        terminated = float(out.discount) == 0
        info = {name: np.array(value) for name, value in out.extras.items()}
        return np.array(out.obs), float(out.reward), terminated, bool(out.last) and not terminated, info

    def render(self) -> np.ndarray | None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """An RGB picture, where the agent is always seen to look somewhere, also under "binary" orientation."""
        if self.render_mode is None:
            gymnasium.logger.warn("CoinGrid was made without a render mode; use render_mode='rgb_array'.")
            return None
        if self._state is None:
            raise gymnasium.error.ResetNeeded("Cannot call CoinGrid's render() before reset().")
        return coingrid.render(coingrid.observe(dataclasses.replace(self.config, orientation="half"), self._state))


def _config(fields: dict[str, Any]) -> CoinGridConfig:
    """A config from keyword arguments; `coins` may be a list."""
    known = [field.name for field in dataclasses.fields(CoinGridConfig)]
    unknown = sorted(set(fields) - set(known))
    if unknown:
        raise UserError(f"CoinGrid has no option {', '.join(unknown)}; expected task, weights, render_mode, {', '.join(known)}.")
    if "coins" in fields:
        fields = {**fields, "coins": tuple(fields["coins"])}
    return CoinGridConfig(**fields)
