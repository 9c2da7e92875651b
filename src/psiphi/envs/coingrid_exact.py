"""Exact answers for CoinGrid: planning, successor features and soft-optimal demonstrators, by enumerating a layout's states.

A layout of n coins has ``2^n`` sets of coins still there (the mask: bit j is coin j) and ``cells x 4`` poses
(``pose = 4 * cell + direction``). Tables have the axes ``[mask, pose, ...]``. Everything here takes one layout, the coins' cells
``int[n]``, and is meant to be vmapped; time is not part of the state, so the answers are those of the endless episode.
"""

import functools
import math
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float, Int, UInt8

from psiphi.envs import coingrid
from psiphi.envs.coingrid import COLOURS, NUM_ACTIONS, NUM_DIRECTIONS, CoinGridConfig, State
from psiphi.errors import UserError
from psiphi.types import NO_ACTION, Demonstration, Demos

TOLERANCE = 1e-6
"""Planning stops when the discounted rest of an endless sum is this small relative to the rewards."""


# --- States by number ----------------------------------------------------------------------------------------------------


def num_masks(config: CoinGridConfig) -> int:
    """Sets of coins that may still be there."""
    return 2 ** coingrid.num_coins(config)


def num_poses(config: CoinGridConfig) -> int:
    """Cells times directions."""
    return coingrid.num_cells(config) * NUM_DIRECTIONS


def to_state(config: CoinGridConfig, layout: Int[Array, "n"], mask: Array | int, pose: Array | int, t: Array | int = 0) -> State:
    """The state with this number."""
    alive = (jnp.asarray(mask) >> np.arange(coingrid.num_coins(config))) & 1 == 1
    position, direction = jnp.asarray(pose) // NUM_DIRECTIONS, jnp.asarray(pose) % NUM_DIRECTIONS
    return State(jnp.asarray(layout, jnp.int32), alive, position.astype(jnp.int32), direction.astype(jnp.int32), jnp.asarray(t, jnp.int32))


def to_index(state: State) -> tuple[Array, Array]:
    """The number of a state: mask and pose."""
    mask = (state.alive << np.arange(state.alive.shape[-1])).sum(-1)
    return mask, state.position * NUM_DIRECTIONS + state.direction


def all_states(config: CoinGridConfig, layout: Int[Array, "n"]) -> State:
    """Every state of a layout, with the axes ``[mask, pose]``."""
    at_pose = jax.vmap(lambda mask, pose: to_state(config, layout, mask, pose), in_axes=(None, 0))
    return jax.vmap(at_pose, in_axes=(0, None))(jnp.arange(num_masks(config)), jnp.arange(num_poses(config)))


@functools.partial(jax.jit, static_argnames="config")
def all_observations(config: CoinGridConfig, layout: Int[Array, "n"]) -> UInt8[Array, "masks poses size size 5"]:
    """What is seen in every state of a layout."""
    return jax.vmap(jax.vmap(functools.partial(coingrid.observe, config)))(all_states(config, layout))


@functools.partial(jax.jit, static_argnames="config")
def reachable(config: CoinGridConfig, layout: Int[Array, "n"]) -> Bool[Array, "masks poses"]:
    """Whether a state can occur: no agent stands on a coin that is still there."""
    state = all_states(config, layout)
    return ~(state.alive & (state.cells == state.position[..., None])).any(-1)


class Moves(NamedTuple):
    """What every action does in every state, with the axes ``[mask, pose, action]``."""

    mask: Int[Array, "masks poses 3"]
    pose: Int[Array, "masks poses 3"]
    features: Float[Array, "masks poses 3 3"]
    """Coins collected, by colour."""
    discount: Float[Array, "masks poses 3"]
    """0 where the board is empty afterwards and the config ends there."""


@functools.partial(jax.jit, static_argnames="config")
def moves(config: CoinGridConfig, layout: Int[Array, "n"]) -> Moves:
    """The layout's whole dynamics, made by the environment's own step."""

    def one(state: State, action: Array) -> Moves:
        next_state, features = coingrid.move(config, state, action)
        mask, pose = to_index(next_state)
        return Moves(mask, pose, features, jnp.where((mask == 0) & config.ends_when_empty, 0.0, 1.0))

    each_action = jax.vmap(one, in_axes=(None, 0))
    return jax.vmap(jax.vmap(each_action, in_axes=(0, None)), in_axes=(0, None))(all_states(config, layout), jnp.arange(NUM_ACTIONS))


# --- Planning ------------------------------------------------------------------------------------------------------------
#
# The inner loops work on "lanes": ``[mask, direction, row, column, item, layout]``, layouts innermost, because then each action is a
# shift of long contiguous rows instead of a table look-up, several times faster on a CPU.


def _sweeps(gamma: float) -> int:
    """Sweeps after which an endless discounted sum is known to `TOLERANCE`."""
    if not 0 <= gamma < 1:
        raise UserError(f"gamma is {gamma}, but exact planning on CoinGrid needs 0 <= gamma < 1.")
    return max(1, math.ceil(math.log(TOLERANCE * (1 - gamma)) / math.log(gamma))) if gamma else 1


def _actions_to_lanes(config: CoinGridConfig, table: Float[Array, "*b masks poses 3 d"]) -> list[Array]:
    """A table as lanes, one array per action."""
    room = coingrid.room_size(config)
    rows = table.reshape(-1, num_masks(config), room, room, NUM_DIRECTIONS, NUM_ACTIONS, table.shape[-1])
    return [rows[..., a, :].transpose(1, 4, 2, 3, 5, 0) for a in range(NUM_ACTIONS)]


def _actions_from_lanes(config: CoinGridConfig, lanes: list[Array], batch: tuple[int, ...]) -> Float[Array, "*b masks poses 3 d"]:
    """The inverse of `_actions_to_lanes`."""
    table = jnp.stack([x.transpose(5, 0, 2, 3, 1, 4) for x in lanes], -2)
    return table.reshape(*batch, num_masks(config), num_poses(config), NUM_ACTIONS, table.shape[-1])


def _ahead(config: CoinGridConfig, layouts: Int[Array, "b n"], value: Array) -> tuple[Array, Array, Array]:
    """The value, in lanes, of the state that each action leads to."""
    room = coingrid.room_size(config)
    cells = np.arange(room * room).reshape(room, room, 1, 1)
    entered = value.at[0].set(0.0) if config.ends_when_empty else value
    for j in range(coingrid.num_coins(config)):
        # Coming to coin j's cell with the coin still there leads to the mask without bit j.
        pairs = entered.reshape(-1, 2, 2**j, *value.shape[1:])
        there = jnp.where(cells == layouts[:, j], pairs[:, 0], pairs[:, 1])
        entered = jnp.stack([pairs[:, 0], there], 1).reshape(value.shape)
    east, south, west, north = (entered[:, d] for d in range(NUM_DIRECTIONS))
    forward = [
        jnp.concatenate([east[:, :, 1:], east[:, :, -1:]], 2),
        jnp.concatenate([south[:, 1:], south[:, -1:]], 1),
        jnp.concatenate([west[:, :, :1], west[:, :, :-1]], 2),
        jnp.concatenate([north[:, :1], north[:, :-1]], 1),
    ]
    return jnp.roll(entered, 1, 1), jnp.roll(entered, -1, 1), jnp.stack(forward, 1)


@functools.partial(jax.jit, static_argnames=("config", "gamma"))
def plan(
    config: CoinGridConfig,
    layout: Int[Array, "*b n"],
    reward: Float[Array, "*b masks poses 3"],
    gamma: float,
    discount: Array | None = None,
) -> Float[Array, "*b masks poses 3"]:
    """Optimal values Q of any reward table, by value iteration; leading axes are layouts, planned side by side.

    `discount`, a table like the reward, may end the task elsewhere than the config does (0 = the task ends with this action).
    """
    batch, layouts = layout.shape[:-1], layout.reshape(-1, layout.shape[-1])
    rewards = _actions_to_lanes(config, reward[..., None])
    gammas = [gamma] * NUM_ACTIONS if discount is None else [gamma * lanes for lanes in _actions_to_lanes(config, discount[..., None])]
    tolerance = TOLERANCE * (1 - gamma) * jnp.maximum(jnp.abs(reward).max(), 1e-30)

    def backup(value: Array) -> list[Array]:
        return [r + g * ahead for r, g, ahead in zip(rewards, gammas, _ahead(config, layouts, value), strict=True)]

    def sweep(value: Array) -> Array:
        return functools.reduce(jnp.maximum, backup(value))

    def improve(carry):
        i, value, _ = carry
        # Looking at the residual costs a pass over the table: only every few sweeps.
        value = jax.lax.fori_loop(0, 7, lambda _, v: sweep(v), value)
        better = sweep(value)
        return i + 8, better, jnp.abs(better - value).max()

    def unfinished(carry):
        i, _, residual = carry
        return (i < _sweeps(gamma)) & (residual > tolerance)

    _, value, _ = jax.lax.while_loop(unfinished, improve, (0, jnp.zeros_like(rewards[0]), jnp.inf))
    return _actions_from_lanes(config, backup(value), batch)[..., 0]


@functools.partial(jax.jit, static_argnames="config")
def reward_table(config: CoinGridConfig, layout: Int[Array, "*b n"], weights: Float[Array, "3"]) -> Float[Array, "*b masks poses 3"]:
    """The true reward ``weights . features`` of every action in every state; leading axes are layouts."""
    tables = jax.vmap(lambda cells: moves(config, cells).features @ weights)(layout.reshape(-1, layout.shape[-1]))
    return tables.reshape(*layout.shape[:-1], *tables.shape[1:])


@functools.partial(jax.jit, static_argnames=("config", "gamma"))
def q_values(
    config: CoinGridConfig, layout: Int[Array, "*b n"], weights: Float[Array, "3"], gamma: float
) -> Float[Array, "*b masks poses 3"]:
    """Optimal values Q of a colour task; leading axes are layouts."""
    return plan(config, layout, reward_table(config, layout, jnp.asarray(weights, jnp.float32)), gamma)


def policy_boltzmann(q: Float[Array, "*b 3"], temperature: float | Array) -> Float[Array, "*b 3"]:
    """Action probabilities proportional to exp(Q / temperature): the paper's demonstrators."""
    return jax.nn.softmax(q / temperature)


def policy_greedy(q: Float[Array, "*b 3"]) -> Float[Array, "*b 3"]:
    """All probability on the best action (the first of equals)."""
    return jax.nn.one_hot(q.argmax(-1), q.shape[-1])


@functools.partial(jax.jit, static_argnames=("config", "gamma"))
def evaluate_table(
    config: CoinGridConfig,
    layout: Int[Array, "*b n"],
    policy: Float[Array, "*b masks poses 3"],
    cumulants: Float[Array, "*b masks poses 3 d"],
    gamma: float,
) -> Float[Array, "*b masks poses 3 d"]:
    """Discounted sums of any cumulants from every state and action when `policy` acts afterwards; leading axes are layouts."""
    batch, layouts = layout.shape[:-1], layout.reshape(-1, layout.shape[-1])
    phi, pi = _actions_to_lanes(config, cumulants), _actions_to_lanes(config, policy[..., None])

    def backup(value: Array) -> list[Array]:
        return [cumulant + gamma * ahead for cumulant, ahead in zip(phi, _ahead(config, layouts, value), strict=True)]

    def sweep(_, value: Array) -> Array:
        return functools.reduce(jnp.add, [p * q for p, q in zip(pi, backup(value), strict=True)])

    value = jax.lax.fori_loop(0, _sweeps(gamma), sweep, jnp.zeros_like(phi[0]))
    return _actions_from_lanes(config, backup(value), batch)


def successor_features(
    config: CoinGridConfig, layout: Int[Array, "*b n"], policy: Float[Array, "*b masks poses 3"], gamma: float
) -> Float[Array, "*b masks poses 3 3"]:
    """Exact successor features psi of a policy for the true features, the coins collected by colour; leading axes are layouts."""
    tables = jax.vmap(lambda cells: moves(config, cells).features)(layout.reshape(-1, layout.shape[-1]))
    return evaluate_table(config, layout, policy, tables.reshape(*layout.shape[:-1], *tables.shape[1:]), gamma)


def evaluate_policy(config: CoinGridConfig, start: State, actions: Int[Array, "masks poses"]) -> Float[Array, "3"]:
    """Coins by colour that a deterministic policy table collects in one episode from `start`; its dot product with a task's weights
    is the undiscounted return. One episode: vmap over starts and tables."""

    def step(state: State, _) -> tuple[State, Array]:
        return coingrid.move(config, state, actions[to_index(state)])

    _, features = jax.lax.scan(step, start, None, length=config.max_steps)
    return features.sum(0)


# --- Demonstrators -------------------------------------------------------------------------------------------------------


class Recording(NamedTuple):
    """Demonstrations and, for evaluation only, the truth about them; K agents, padded to M steps each."""

    demos: Demos
    episode: Int[Array, "k m"]
    """Which of its agent's episodes a step belongs to: split by this, never by step. -1 in the padding."""
    features: Float[Array, "k m 3"]
    """Coins collected in each step, by colour."""
    probs: Float[Array, "k m 3"]
    """The demonstrator's action probabilities in each step."""


class _Trace(NamedTuple):
    obs: Array
    action: Array
    discount: Array
    next_obs: Array
    next_action: Array
    features: Array
    probs: Array
    real: Array


@functools.partial(jax.jit, static_argnames=("config", "gamma", "wander"))
def _episodes(
    config: CoinGridConfig, weights: Float[Array, "3"], temperature: float | Array, gamma: float, wander: bool, keys: Array
) -> _Trace:
    """One demonstrator's episodes, one per key, with the axes ``[episode, time]``; steps after it has left are not `real`."""
    reset_keys, act_keys = jnp.moveaxis(jax.vmap(jax.random.split)(keys), 1, 0)
    starts = jax.vmap(functools.partial(coingrid.reset, config))(reset_keys)
    policies = policy_boltzmann(q_values(config, starts.cells, weights, gamma), temperature)
    wanted = weights[coingrid.coin_colours(config)] > 0

    def step(carry: tuple[State, Array], noise: Array, policy: Array):
        state, real = carry
        probs = policy[to_index(state)]
        action = jnp.argmax(jnp.log(probs) + noise)
        next_state, features = coingrid.move(config, state, action)
        # It leaves when it has what it came for; one that never wanted anything has nothing to leave for.
        content = ~(next_state.alive & wanted).any() & wanted.any() & (not wander)
        left = content | (config.ends_when_empty & ~next_state.alive.any())
        obs, next_obs = coingrid.observe(config, state), coingrid.observe(config, next_state)
        seen = _Trace(obs, action, 1.0 - left, next_obs, action, features, probs, real)
        return (next_state, real & ~left), seen

    def episode(start: State, policy: Array, key: Array) -> _Trace:
        noise = jax.random.gumbel(key, (config.max_steps, NUM_ACTIONS))
        _, trace = jax.lax.scan(lambda carry, z: step(carry, z, policy), (start, jnp.ones((), bool)), noise)
        following = jnp.append(trace.action[1:], NO_ACTION)
        return trace._replace(next_action=jnp.where(trace.discount == 0, 0, following))

    return jax.vmap(episode)(starts, policies, act_keys)


def record(
    config: CoinGridConfig,
    weights: Float[Array, "k 3"] | Sequence[Sequence[float]],
    episodes: int,
    temperature: float,
    gamma: float,
    key: Array,
    wander: bool = False,
    chunk: int = 64,
) -> Recording:
    """Demonstrations of K soft-optimal agents, `episodes` each, every episode on a layout and from a pose drawn by the environment's reset.

    Agent k acts by exp(Q / temperature) where Q is optimal for `weights[k]`, and leaves (discount 0, next_action then means nothing and
    is 0) when no coin of positive weight is left. The time limit cuts an episode with discount 1 and next_action NO_ACTION. An agent
    that wants nothing runs to the time limit; so does any agent with `wander`, at random once its values are flat. Episode i of agent k
    depends on the key, k and i alone. `chunk` episodes are planned at once, which bounds memory.
    """
    table = np.asarray(weights, np.float32)
    if table.ndim != 2 or table.shape[1] != len(COLOURS):
        raise UserError(f"The demonstrators' weights have shape {table.shape}, expected a row of {len(COLOURS)} for each of them.")
    if episodes < 1 or temperature <= 0:
        raise UserError(f"Demonstrations need at least 1 episode and a positive temperature, but found {episodes} and {temperature}.")
    traces = [_record_one(config, w, episodes, temperature, gamma, jax.random.fold_in(key, k), wander, chunk) for k, w in enumerate(table)]
    count = np.array([len(index) for _, index in traces], np.int32)

    def pad(rows: list[np.ndarray], fill: int = 0) -> Array:
        result = np.full((len(rows), count.max(), *rows[0].shape[1:]), fill, rows[0].dtype)
        for k, row in enumerate(rows):
            result[k, : len(row)] = row
        return jnp.asarray(result)

    obs, action, discount, next_obs, next_action, features, probs, _ = (
        pad([getattr(trace, name) for trace, _ in traces], NO_ACTION if name == "next_action" else 0) for name in _Trace._fields
    )
    demos = Demos(Demonstration(obs, action, discount, next_obs, next_action), jnp.asarray(count))
    return Recording(demos, pad([index for _, index in traces], -1), features, probs)


def _record_one(config, weights, episodes, temperature, gamma, key, wander, chunk) -> tuple[_Trace, np.ndarray]:
    """The real steps of one demonstrator, one after the other, and the episode of each."""
    traces, index = [], []
    for first in range(0, episodes, chunk):
        number = np.arange(first, first + chunk)
        keys = jax.vmap(functools.partial(jax.random.fold_in, key))(number)
        trace = jax.tree.map(np.asarray, _episodes(config, weights, temperature, gamma, wander, keys))
        real = trace.real & (number < episodes)[:, None]
        traces.append(jax.tree.map(lambda x, real=real: x[real], trace))
        index.append(np.broadcast_to(number[:, None], real.shape)[real].astype(np.int32))
    return jax.tree.map(lambda *x: np.concatenate(x), *traces), np.concatenate(index)
