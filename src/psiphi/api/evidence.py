"""What can be measured without labels of whether an inferred reward can be believed: numbers per agent, which `verdict` judges.

Everything here takes the N steps of everybody as flat arrays, episode after episode and in the order of time: observations ``[N, n]`` as a
network sees them, the action, whose step it is (an index of an agent) and whether the step was held out of all learning. An answer has an
entry per agent; nan says that it could not be measured.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int

from psiphi import optim
from psiphi.nets import MLP

PRIOR = 1.0
"""The weight, in steps, of how often an agent does what in general when its actions in one observation are counted."""
LEAST_LOG_PROB = -20.0
"""No action is taken to be less likely than this: a single one must not decide for a whole agent."""
CHUNK = 1_024
"""So many observations are computed at once."""

CLONE_HIDDEN = (64, 64)
CLONE_RATE = 1e-3
CLONE_UPDATES = 600
CLONE_BATCH = 64
CLONE_LOOKS = 12
"""So often during its training a clone is looked at; the best is kept."""
CLONE_CHECK = 0.1
"""Of the shown steps, this share is kept to choose the best by."""
CLONE_CHECKED = 512
"""At most so many steps of an agent."""

PLAN_HIDDEN = (128, 128)
PLAN_RATE = 1e-3
PLAN_UPDATES = 1_500
PLAN_BATCH = 256
PLAN_FOLLOW = 0.02
"""The target network goes this part of the way in each update: `PLAN_UPDATES` then look about 30 steps ahead. With half of it, and as many
updates, what is paid again and again is worth too little; faster ones told true from wrong rewards less well in small worlds."""
PLAUSIBLE = 0.05
"""Re-planning takes an action only if it is at least this share as likely as the likeliest in the pool of all logs (BCQ)."""


# --- Are the actions predicted? ------------------------------------------------------------------------------------------------


def majority_nll(
    action: Int[np.ndarray, " N"], who: Int[np.ndarray, " N"], held: Bool[np.ndarray, " N"], *, agents: int, num_actions: int
) -> Float[np.ndarray, " K"]:
    """Nats per held-out step of always predicting how often the agent did what on its shown steps."""
    share = _habits(action, who, held, agents, num_actions)
    return by_agent(-np.log(share[who, action]), who, held, agents)


def count_nll(
    obs: Float[np.ndarray, "N n"],
    action: Int[np.ndarray, " N"],
    who: Int[np.ndarray, " N"],
    held: Bool[np.ndarray, " N"],
    *,
    agents: int,
    num_actions: int,
) -> Float[np.ndarray, " K"]:
    """Nats per held-out step of predicting what the agent did in the very same observation; where it never was, what it does in general."""
    share = _habits(action, who, held, agents, num_actions)
    _, place = np.unique(_distinct(obs) * agents + who, return_inverse=True)  # one for each agent and observation
    counts = np.zeros((place.max(initial=-1) + 1, num_actions))
    np.add.at(counts, (place[~held], action[~held]), 1.0)
    probability = (counts[place, action] + PRIOR * share[who, action]) / (counts[place].sum(axis=1) + PRIOR)
    return by_agent(-np.log(probability), who, held, agents)


def clone_nll(
    obs: Float[np.ndarray, "N n"],
    action: Int[np.ndarray, " N"],
    who: Int[np.ndarray, " N"],
    held: Bool[np.ndarray, " N"],
    *,
    agents: int,
    num_actions: int,
    seed: int = 0,
) -> Float[np.ndarray, " K"]:
    """Nats per held-out step of a plain behaviour clone: a small network per agent, learned from its shown steps alone."""
    shown = [np.flatnonzero((who == k) & ~held) for k in range(agents)]
    clones = _fitted(obs, action, shown, num_actions, seed, batch=CLONE_BATCH)
    nll = np.full(agents, np.nan)
    for k in range(agents):
        asked = np.flatnonzero((who == k) & held)
        if len(asked) and len(shown[k]):
            log_policy = _in_chunks(partial(_log_policy, clones, k), obs[asked])
            nll[k] = -np.mean(np.maximum(log_policy[np.arange(len(asked)), action[asked]], LEAST_LOG_PROB))
    return nll


def by_agent(
    value: Float[np.ndarray, " N"], who: Int[np.ndarray, " N"], chosen: Bool[np.ndarray, " N"], agents: int
) -> Float[np.ndarray, " K"]:
    """The mean over each agent's chosen steps; nan where there are none."""
    count = np.bincount(who[chosen], minlength=agents)
    total = np.bincount(who[chosen], value[chosen], minlength=agents)
    return np.divide(total, count, out=np.full(agents, np.nan), where=count > 0)


def _habits(action: np.ndarray, who: np.ndarray, held: np.ndarray, agents: int, num_actions: int) -> np.ndarray:
    """[K, A]: how often each agent did what on its shown steps, as if every action had been seen once more (Laplace)."""
    counts = np.ones((agents, num_actions))
    np.add.at(counts, (who[~held], action[~held]), 1.0)
    return counts / counts.sum(axis=1, keepdims=True)


def _distinct(obs: np.ndarray) -> np.ndarray:
    """int64[N]: the same number for the same observation."""
    rows = np.ascontiguousarray(obs + 0.0)  # turns -0 into 0, as rows are compared by their bytes
    if not rows.shape[1]:
        return np.zeros(len(rows), np.int64)
    _, number = np.unique(rows.view(np.dtype((np.void, rows.dtype.itemsize * rows.shape[1])))[:, 0], return_inverse=True)
    return number


# --- Are the agents told apart? -----------------------------------------------------------------------------------------------------


def told_apart(log_prob: Float[np.ndarray, "K N"], who: Int[np.ndarray, " N"], held: Bool[np.ndarray, " N"]) -> Float[np.ndarray, " K"]:
    """By how many nats per held-out step an agent's own policy predicts it better than the best of the others'.

    `log_prob` is of the logged actions, under every agent's policy. nan for a single agent.
    """
    K = len(log_prob)
    mean = np.stack([by_agent(row, who, held, K) for row in np.maximum(log_prob, LEAST_LOG_PROB).astype(np.float64)])  # [policy, agent]
    if K == 1:
        return np.full(K, np.nan)
    own = np.diag(mean)
    return own - np.where(np.eye(K, dtype=bool), -np.inf, mean).max(axis=0)


def one_for_all(log_prob: Float[np.ndarray, "K N"], who: Int[np.ndarray, " N"], held: Bool[np.ndarray, " N"]) -> Float[np.ndarray, " K"]:
    """The same against one policy for everybody, the average of all: about 0 if the ids mean nothing, at most log K."""
    K = len(log_prob)
    if K == 1:
        return np.full(K, np.nan)
    bounded = np.maximum(log_prob, LEAST_LOG_PROB).astype(np.float64)
    mixture = np.logaddexp.reduce(bounded, axis=0) - np.log(K)
    return by_agent(bounded[who, np.arange(len(who))] - mixture, who, held, K)


def ids_tell(
    log_prob: Float[np.ndarray, "K N"], who: Int[np.ndarray, " N"], episode: Int[np.ndarray, " N"], held: Bool[np.ndarray, " N"]
) -> float:
    """By how many standard errors held-out episodes are better predicted by their agent's policy than by the average of all.

    nan for a single agent, and for fewer than two held-out episodes.
    """
    if len(log_prob) == 1 or len(np.unique(episode[held])) < 2:
        return float("nan")
    bounded = np.maximum(log_prob[:, held], LEAST_LOG_PROB).astype(np.float64)
    gain = bounded[who[held], np.arange(bounded.shape[1])] - (np.logaddexp.reduce(bounded, axis=0) - np.log(len(bounded)))
    _, number = np.unique(episode[held], return_inverse=True)
    total = np.bincount(number, gain)
    return float(total.mean() / max(total.std(ddof=1) / np.sqrt(len(total)), 1e-9))


# --- Does an agent earn most on its own reward? -----------------------------------------------------------------------------------------


def own_against_others(
    reward: Float[np.ndarray, "N K"], who: Int[np.ndarray, " N"], episode: Int[np.ndarray, " N"], gamma: float
) -> Float[np.ndarray, "K K"]:
    """[k, j]: the mean discounted return of agent j's episodes on agent k's reward; k should earn most on its own.

    Discounted, as what shaping adds then cancels but for where an episode starts and ends.
    """
    return _earned(reward, who, episode, gamma).mean


def outdone(
    reward: Float[np.ndarray, "N K"], who: Int[np.ndarray, " N"], episode: Int[np.ndarray, " N"], gamma: float
) -> Float[np.ndarray, " K"]:
    """The share of the other agents who earn more on k's reward than k, by more than two standard errors.

    Agents with a single episode have no standard error and are left out; nan where that leaves none.
    """
    earned = _earned(reward, who, episode, gamma)
    gap = earned.mean - np.diag(earned.mean)[:, None]
    error = np.sqrt(earned.squared_error + np.diag(earned.squared_error)[:, None])
    compared = np.isfinite(error) & ~np.eye(len(gap), dtype=bool)
    rounding = 1e-6 * (np.abs(earned.mean) + np.abs(np.diag(earned.mean))[:, None])
    better = compared & (gap > 2 * error + rounding)
    count = compared.sum(axis=1)
    return np.divide(better.sum(axis=1), count, out=np.full(len(gap), np.nan), where=count > 0)


class _Earned(NamedTuple):
    """Of agent j's episodes on agent k's reward, both ``[k, j]``."""

    mean: np.ndarray
    """nan where j has no episode."""
    squared_error: np.ndarray
    """Of the mean; nan where j has fewer than two."""


def _earned(reward: np.ndarray, who: np.ndarray, episode: np.ndarray, gamma: float) -> _Earned:
    order = np.lexsort((episode, who))  # keeps the order within an episode
    first = np.ones(len(who), bool)
    first[1:] = (np.diff(who[order]) != 0) | (np.diff(episode[order]) != 0)
    start = np.flatnonzero(first)
    t = np.arange(len(who)) - start[np.cumsum(first) - 1]
    paid = np.power(gamma, t)[:, None] * reward[order].astype(np.float64)
    total = np.add.reduceat(paid, start, axis=0) if len(start) else paid
    whose, K = who[order][start], reward.shape[1]
    every = np.ones(len(start), bool)
    count = np.bincount(whose, minlength=K)
    mean = np.stack([by_agent(column, whose, every, K) for column in total.T])
    spread = np.stack([by_agent(column, whose, every, K) for column in np.square(total - mean[:, whose].T).T])
    return _Earned(mean, np.divide(spread, count - 1, out=np.full((K, K), np.nan), where=count > 1))


# --- Do refits agree? --------------------------------------------------------------------------------------------------------------


def agreement(rewards: Float[np.ndarray, "R N K"], who: Int[np.ndarray, " N"]) -> Float[np.ndarray, " K"]:
    """How alike R fits of an agent's reward are on the steps of the others (of everybody, if there is one agent): their mean correlation.

    On its own steps they agree too easily. nan for a single fit, and where the others have no steps.
    """
    R, _, K = rewards.shape
    found = np.full(K, np.nan)
    for k in range(K):
        asked = who != k if K > 1 else np.ones(len(who), bool)
        if R > 1 and asked.any():
            found[k] = np.mean(_correlations(rewards[:, asked, k])[np.triu_indices(R, 1)])
    return found


class Likeness(NamedTuple):
    """How alike the agents' rewards are over the steps of everybody, all ``[K, K]``: the mean over the refits, and from where to where."""

    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray


def interval(rewards: Float[np.ndarray, "R N K"]) -> Likeness:
    """The correlation between every two agents' rewards, and its smallest and largest value over R refits."""
    each = np.stack([_correlations(reward.T) for reward in rewards])
    return Likeness(each.mean(axis=0), each.min(axis=0), each.max(axis=0))


def _correlations(rows: np.ndarray) -> np.ndarray:
    """Pearson's, of every row with every row; 0 where one never changes."""
    centred = rows - rows.mean(axis=1, keepdims=True, dtype=np.float64)
    size = np.linalg.norm(centred, axis=1, keepdims=True)
    scale = 1e-6 * np.abs(rows).max(axis=1, keepdims=True, initial=1e-12) * np.sqrt(rows.shape[1])
    standard = np.divide(centred, size, out=np.zeros_like(centred), where=size > scale)
    return np.clip(standard @ standard.T, -1.0, 1.0)


# --- Does planning on the reward lead where the agent went? --------------------------------------------------------------------------


def replanned(
    obs: Float[np.ndarray, "N n"],
    action: Int[np.ndarray, " N"],
    next_obs: Float[np.ndarray, "N n"],
    discount: Float[np.ndarray, " N"],
    reward: Float[np.ndarray, "N K"],
    gamma: float,
    num_actions: int,
    *,
    seed: int,
    updates: int = PLAN_UPDATES,
) -> Callable[[np.ndarray], np.ndarray]:
    """Action values of the best policy on every agent's reward that the logs allow to plan, as a function: ``[B, n] -> [B, K, A]``.

    Fitted Q-iteration on everybody's steps, for all rewards at once. A value that no log contradicts is easily too high, so only
    actions are taken, here and in the next state, that some agent is likely to take there; the others are worth -inf. Where an agent is
    alone and always does the same, nothing else can be planned, and the plan agrees for that reason only. All steps given are used; a step
    is to be left out if it was not seen where it led.
    """
    pool = [np.arange(len(action))]
    habit = _fitted(obs, action, pool, num_actions, seed, batch=PLAN_BATCH)
    plausible = lambda x: _in_chunks(partial(_plausible, habit), x)  # noqa: E731
    unit = np.maximum(np.sqrt(np.mean(np.square(reward), axis=0, dtype=np.float64)), 1e-6).astype(np.float32)
    steps = _Steps(*map(jnp.asarray, (obs, action, next_obs, discount, reward / unit, plausible(next_obs))))
    net = _planned(steps, jnp.float32(gamma), jax.random.key(seed), num_actions, updates)

    def values(asked: np.ndarray) -> np.ndarray:
        flat = _in_chunks(partial(_apply, net), asked)
        by_head = flat.reshape(len(asked), len(unit), num_actions) * unit[:, None]
        return np.where(plausible(asked)[:, None], by_head, -np.inf)

    return values


def avoided(
    values: Float[np.ndarray, "N K A"], advantage: Float[np.ndarray, "N A"], who: Int[np.ndarray, " N"], chosen: Bool[np.ndarray, " N"]
) -> Float[np.ndarray, " K"]:
    """How much of what an agent would rather not do the best action by re-planned values avoids: 1 is all, 0 as much as chance does.

    `advantage` is of every action, by the values of the agent whose step it is: 0 for what it would do, below 0 for the rest. For worlds in
    which observations do not repeat; where they do, `psiphi.api.replanning` plans exactly.
    """
    K = values.shape[1]
    best = values[np.arange(len(who)), who].argmax(axis=-1)
    plan = by_agent(-advantage[np.arange(len(who)), best].astype(np.float64), who, chosen, K)
    chance = by_agent(-advantage.mean(axis=1, dtype=np.float64), who, chosen, K)
    return 1.0 - np.divide(plan, chance, out=np.full(K, np.nan), where=chance > 1e-9)


class _Steps(NamedTuple):
    """What re-planning learns from."""

    obs: jax.Array
    action: jax.Array
    next_obs: jax.Array
    discount: jax.Array
    reward: jax.Array
    """[N, K], of size 1."""
    plausible: jax.Array
    """[N, A]: what may be done next."""


@partial(jax.jit, static_argnames=("num_actions", "updates"))
def _planned(steps: _Steps, gamma: jax.Array, key: jax.Array, num_actions: int, updates: int) -> MLP:
    """Double Q-learning on logged steps: the network chooses among plausible actions, a slower copy says what they are worth."""
    net_key, batch_key = jax.random.split(key)
    N, K = steps.reward.shape
    first = MLP((steps.obs.shape[1], *PLAN_HIDDEN, K * num_actions), key=net_key, last_scale=0.1)
    optimiser = optim.adam(PLAN_RATE, clip=10.0, cosine_steps=updates)
    horizon = 1 / jnp.maximum(1 - gamma, 1e-3)
    least, most = horizon * jnp.minimum(steps.reward.min(axis=0), 0), horizon * jnp.maximum(steps.reward.max(axis=0), 0)
    heads = lambda net, x: net(x).reshape(-1, K, num_actions)  # noqa: E731

    def loss(net: MLP, slow: MLP, batch: _Steps) -> jax.Array:
        choice = jnp.argmax(jnp.where(batch.plausible[:, None], heads(net, batch.next_obs), -jnp.inf), axis=-1)
        then = jnp.take_along_axis(heads(slow, batch.next_obs), choice[..., None], axis=-1)[..., 0]
        goal = jnp.clip(batch.reward + gamma * batch.discount[:, None] * then, least, most)  # no reward allows for more, or less
        now = jnp.take_along_axis(heads(net, batch.obs), batch.action[:, None, None], axis=-1)[..., 0]
        return jnp.mean(jnp.square(now - jax.lax.stop_gradient(goal)))

    def update(carry: tuple[MLP, MLP, Any], step_key: jax.Array) -> tuple[tuple[MLP, MLP, Any], None]:
        net, slow, memory = carry
        drawn = jax.random.randint(step_key, (PLAN_BATCH,), 0, N)
        gradient = jax.grad(loss)(net, slow, jax.tree.map(lambda x: x[drawn], steps))
        new, new_memory = optim.step(optimiser, gradient, memory, net)
        return (new, optim.follow(slow, new, PLAN_FOLLOW), new_memory), None

    (_, slow, _), _ = jax.lax.scan(update, (first, first, optim.start(optimiser, first)), jax.random.split(batch_key, updates))
    return slow


@jax.jit
def _plausible(habit: MLP, obs: jax.Array | np.ndarray) -> jax.Array:
    log_policy = _log_policy(habit, 0, obs)
    return log_policy >= jnp.max(log_policy, axis=-1, keepdims=True) + jnp.log(PLAUSIBLE)


@jax.jit
def _apply(net: MLP, obs: jax.Array | np.ndarray) -> jax.Array:
    return net(jnp.asarray(obs))


# --- Plain classifiers of actions -----------------------------------------------------------------------------------------------------


def _fitted(obs: np.ndarray, action: np.ndarray, groups: list[np.ndarray], num_actions: int, seed: int, *, batch: int) -> MLP:
    """A network per group of steps that says what is done in them, side by side; what it makes of an empty group means nothing."""
    random = np.random.default_rng(seed)
    learned, checked = [], []
    for group in groups:
        mixed = random.permutation(group)
        kept = max(round(CLONE_CHECK * len(mixed)), 1)
        checked.append(mixed[: min(kept, CLONE_CHECKED)])
        learned.append(mixed[kept:] if len(mixed) > 1 else mixed)
    data = jnp.asarray(obs, jnp.float32), jnp.asarray(action)
    return _cloned(*data, _side_by_side(learned), _side_by_side(checked), jax.random.key(seed), num_actions, batch)


class _Rows(NamedTuple):
    """Lists of step numbers of different lengths, side by side."""

    row: jax.Array
    """[groups, longest]"""
    count: jax.Array
    """[groups]: so many of them are real."""


def _side_by_side(groups: list[np.ndarray]) -> _Rows:
    longest = 1 << (max([1, *map(len, groups)]) - 1).bit_length()  # few sizes, as each is compiled once
    padded = [np.pad(group, (0, longest - len(group))) for group in groups]
    return _Rows(jnp.asarray(np.stack(padded), jnp.int32), jnp.asarray([len(group) for group in groups], jnp.int32))


@partial(jax.jit, static_argnames=("num_actions", "batch"))
def _cloned(obs: jax.Array, action: jax.Array, learned: _Rows, checked: _Rows, key: jax.Array, num_actions: int, batch: int) -> MLP:
    net_key, batch_key = jax.random.split(key)
    sizes, groups = (obs.shape[1], *CLONE_HIDDEN, num_actions), len(learned.count)
    first = jax.vmap(lambda k: MLP(sizes, key=k, last_scale=0.1))(jax.random.split(net_key, groups))
    optimiser = optim.adam(CLONE_RATE)

    def surprise(net: MLP, rows: jax.Array) -> jax.Array:
        log_policy = jax.nn.log_softmax(net(obs[rows]))
        return -jnp.take_along_axis(log_policy, action[rows][:, None], axis=-1)[:, 0]

    def loss(nets: MLP, rows: jax.Array) -> jax.Array:
        return jnp.sum(jnp.mean(jax.vmap(surprise)(nets, rows), axis=1))  # a sum, as the networks have nothing to do with each other

    def update(carry: tuple[MLP, Any], step_key: jax.Array) -> tuple[tuple[MLP, Any], None]:
        nets, memory = carry
        place = jax.random.randint(step_key, (groups, batch), 0, jnp.maximum(learned.count, 1)[:, None])
        gradient = jax.grad(loss)(nets, jnp.take_along_axis(learned.row, place, axis=1))
        return optim.step(optimiser, gradient, memory, nets), None

    def look(nets: MLP) -> jax.Array:
        real = jnp.arange(checked.row.shape[1]) < checked.count[:, None]
        return jnp.sum(jnp.where(real, jax.vmap(surprise)(nets, checked.row), 0), axis=1)

    def between(carry: tuple[MLP, Any, MLP, jax.Array], keys: jax.Array) -> tuple[tuple[MLP, Any, MLP, jax.Array], None]:
        nets, memory, best, least = carry
        (nets, memory), _ = jax.lax.scan(update, (nets, memory), keys)
        seen = look(nets)
        better = lambda new, old: jnp.where((seen < least).reshape(-1, *[1] * (new.ndim - 1)), new, old)  # noqa: E731
        return (nets, memory, jax.tree.map(better, nets, best), jnp.minimum(seen, least)), None

    keys = jax.random.split(batch_key, (CLONE_LOOKS, CLONE_UPDATES // CLONE_LOOKS))
    (_, _, best, _), _ = jax.lax.scan(between, (first, optim.start(optimiser, first), first, look(first)), keys)
    return best


@jax.jit
def _log_policy(nets: MLP, k: Any, obs: jax.Array | np.ndarray) -> jax.Array:
    return jax.nn.log_softmax(jax.tree.map(lambda x: x[k], nets)(jnp.asarray(obs)))


def _in_chunks(function: Callable[[np.ndarray], jax.Array], obs: np.ndarray) -> np.ndarray:
    """The function of all observations, computed on chunks of one size, as each size is compiled once."""
    room = np.pad(obs.astype(np.float32), ((0, -len(obs) % CHUNK if len(obs) else CHUNK), (0, 0)))
    return np.concatenate([np.asarray(function(room[i : i + CHUNK])) for i in range(0, len(room), CHUNK)])[: len(obs)]
