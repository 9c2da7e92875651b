"""How well does it behave: one whole episode in each of many environments, in one compiled call."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from psiphi.types import Env, TimeStep

Policy = Callable[[Array, Array], Array]
"""``policy(obs[N], key) -> action[N]``"""


class _Episodes(NamedTuple):
    """N episodes under way. `running` falls once and for ever: what a world does after its last step counts for nothing."""

    env: Any
    obs: Array
    step: Array
    running: Array
    returns: Array
    lengths: Array
    features: Array | None


def rollout_returns(env: Env, policy: Policy, key: Array, num_episodes: int, max_steps: int | Array) -> dict[str, Array]:
    """The first episode of each of `num_episodes` environments, played side by side until all have ended or `max_steps` is reached.

    Gives `returns` (undiscounted) and `lengths` per episode, `finished` (whether the episode ended by itself), and, if the
    environment's `extras` have "features", `features`: their sum over the episode. Pure: jit it, vmap it over seeds.
    """
    reset_key, play_key = jax.random.split(key)
    start = _start(env, reset_key, num_episodes)

    def unfinished(episodes: _Episodes) -> Array:
        return (episodes.step < max_steps) & jnp.any(episodes.running)

    def play(episodes: _Episodes) -> _Episodes:
        act_key, step_key = jax.random.split(jax.random.fold_in(play_key, episodes.step))
        action = policy(episodes.obs, act_key)
        state, timestep = jax.vmap(env.step)(episodes.env, action, jax.random.split(step_key, num_episodes))
        return _count(episodes, state, timestep)

    end = jax.lax.while_loop(unfinished, play, start)
    result = {"returns": end.returns, "lengths": end.lengths, "finished": ~end.running}
    return result if end.features is None else result | {"features": end.features}


def _start(env: Env, key: Array, num_episodes: int) -> _Episodes:
    keys = jax.random.split(key, num_episodes)
    state, obs = jax.vmap(env.reset)(keys)
    actions = jnp.zeros(num_episodes, jnp.int32)
    extras = jax.eval_shape(jax.vmap(env.step), state, actions, keys)[1].extras
    features = jnp.zeros(extras["features"].shape, jnp.float32) if "features" in extras else None
    return _Episodes(
        env=state,
        obs=obs,
        step=jnp.zeros((), jnp.int32),
        running=jnp.ones(num_episodes, bool),
        returns=jnp.zeros(num_episodes, jnp.float32),
        lengths=jnp.zeros(num_episodes, jnp.int32),
        features=features,
    )


def _count(episodes: _Episodes, state: Any, timestep: TimeStep) -> _Episodes:
    running = episodes.running
    features = episodes.features
    if features is not None:
        mask = running.reshape(running.shape + (1,) * (features.ndim - 1))
        features = features + jnp.where(mask, timestep.extras["features"], 0.0)
    return _Episodes(
        env=state,
        obs=timestep.obs,
        step=episodes.step + 1,
        running=running & ~timestep.last,
        returns=episodes.returns + jnp.where(running, timestep.reward, 0.0),
        lengths=episodes.lengths + running,
        features=features,
    )
