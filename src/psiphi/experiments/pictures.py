"""What the pictures show, as arrays: cumulants over a board, and episodes of an agent that was given a task."""

import functools
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from psiphi import model as models
from psiphi.envs import coingrid
from psiphi.envs.coingrid import FORWARD, NUM_DIRECTIONS, CoinGridConfig
from psiphi.model import Model


class Panels(NamedTuple):
    """A board and the cumulants over it."""

    board: np.ndarray
    """The observation, ``[size, size, 5]``, without the agent."""
    phi: np.ndarray
    """``[d, room, room]``: each cumulant of stepping onto each cell."""


def cumulants_over_board(world: CoinGridConfig, model: Model, key: Array) -> Panels:
    """Stand beside every cell, look at it and go forward: the cumulants of that step, averaged over the sides one can come from.

    Nobody stands on a coin that is still there, so those sides are left out.
    """
    room = coingrid.room_size(world)
    start = coingrid.reset(world, key)
    onto, direction = np.divmod(np.arange(room * room * NUM_DIRECTIONS), NUM_DIRECTIONS)
    rows = onto // room - np.array([0, 1, 0, -1])[direction]
    columns = onto % room - np.array([1, 0, -1, 0])[direction]
    stand = np.clip(rows, 0, room - 1) * room + np.clip(columns, 0, room - 1)
    valid = (rows >= 0) & (rows < room) & (columns >= 0) & (columns < room) & ~np.isin(stand, np.asarray(start.cells))

    def seen(position: Array, direction: Array) -> Array:
        return coingrid.observe(world, start._replace(position=position, direction=direction))

    obs = jax.vmap(seen)(jnp.asarray(stand, jnp.int32), jnp.asarray(direction, jnp.int32))
    phi = np.asarray(jax.jit(models.phi)(model, obs, jnp.full(len(stand), FORWARD)))
    weight = valid.reshape(-1, NUM_DIRECTIONS, 1).astype(float)
    mean = (phi.reshape(-1, NUM_DIRECTIONS, phi.shape[1]) * weight).sum(1) / np.maximum(weight.sum(1), 1)
    board = np.array(coingrid.observe(world, start))
    board[..., coingrid.AGENT] = 0
    return Panels(board, mean.T.reshape(-1, room, room))


class Episode(NamedTuple):
    """What an agent saw and earned, from the first observation to the last."""

    obs: np.ndarray
    """``[T + 1, size, size, 5]``"""
    earned: np.ndarray
    """``[T + 1]``: the return so far."""


@functools.partial(jax.jit, static_argnames="world")
def _played(world: CoinGridConfig, model: Model, weights: Array, w: Array, key: Array) -> tuple[Array, Array, Array]:
    env = coingrid.make(world, weights)
    state, obs = env.reset(key)

    def step(now: tuple[coingrid.State, Array], _: None) -> tuple[tuple[coingrid.State, Array], tuple[Array, Array, Array]]:
        state, obs = now
        state, reached = env.step(state, models.act(model, obs[None], w[None])[0], key)
        return (state, reached.obs), (reached.obs, reached.reward, reached.last)

    _, (seen, reward, last) = jax.lax.scan(step, (state, obs), None, length=world.max_steps)
    return jnp.concatenate([obs[None], seen]), reward, last


def play(world: CoinGridConfig, model: Model, weights: Sequence[float], w: np.ndarray, key: Array) -> Episode:
    """One episode of the task `weights` by an agent that takes its preferences to be `w`; the key decides the board."""
    obs, reward, last = map(np.asarray, _played(world, model, jnp.asarray(weights, jnp.float32), jnp.asarray(w), key))
    steps = int(np.argmax(last)) + 1
    return Episode(obs[: steps + 1], np.concatenate([[0.0], np.cumsum(reward[:steps])]))
