"""Does an inferred reward explain what its agent does? Plan on it anew, in the world as far as the logs show it, and compare.

Where observations repeat, the logs are a small world of their own: the states that some agent saw, what was done there and where it led.
In it a plan is exact. A plan on a reward that explains its agent does nothing, where the agent was seen, that the agent would rather not
do; how much it does of that, over how much a random walk does, is measured here. Labels are not needed, and a reward that is right where
the imitation knows nothing (in layouts that were not demonstrated) is not held against it: only states that the agent itself saw count.
"""

import hashlib
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int, Shaped
from scipy.sparse import csr_array

TOLERANCE = 1e-4
"""Planning stops when no value changes by more, relative to the largest."""
MOST_ITERATIONS = 1_000
KNOWN = 0.5
"""The share of steps in states with a choice that it takes to plan in the logs' own world; with less, a network plans."""
PRIOR = 1.0
"""The weight, in steps, of how often anything is done when actions in a state are counted."""
OWN_PRIOR = 3.0
"""The weight, in steps, of what everybody does in a state when an agent's own actions there are counted."""
LOTS = 30
"""So often ids are drawn by lot, to know how well they predict if they mean nothing."""
EPISODE_LOTS = 300
"""The same where only whole episodes are compared, which costs little."""
LONG = 1_024
"""Rows of more bytes, pictures say, are compared by a hash of 64 bits."""
COMPARED = 0.2
"""The share of steps in states in which another episode was too, below which counting says nothing of ids."""


class Seen(NamedTuple):
    """The world as far as logs show it: S states, and the P pairs of a state and an action that were seen."""

    state: Int[np.ndarray, " N"]
    """Of each step, where it began."""
    pair: Int[np.ndarray, " N"]
    """Of each step, what was done where."""
    count: Int[np.ndarray, " P"]
    """How often."""
    where: Int[np.ndarray, " P"]
    """The state of each pair; in order."""
    first: Int[np.ndarray, " states"]
    """The first pair of each state in which something was done."""
    acting: Int[np.ndarray, " states"]
    """Those states."""
    onward: csr_array
    """[P, S]: how likely a pair leads on to each state; an end leads nowhere."""
    led: Int[np.ndarray, " N"]
    """Of each step, the state to which it led."""
    size: int
    """S."""
    known: float
    """The share of steps in states in which something else was done too: with few of them, a plan has nothing to choose from."""


def seen_world(
    obs: Shaped[np.ndarray, "N n"], action: Int[np.ndarray, " N"], next_obs: Shaped[np.ndarray, "N n"], discount: Float[np.ndarray, " N"]
) -> Seen:
    """The states, pairs and transitions of the logged steps of all agents."""
    N = len(action)
    state = numbered(np.concatenate([obs, next_obs]))
    here, there, S = state[:N], state[N:], int(state.max(initial=-1)) + 1
    A = int(action.max(initial=0)) + 1
    pairs, pair, count = np.unique(here * A + action, return_inverse=True, return_counts=True)
    goes_on = discount > 0
    share = goes_on / count[pair]
    onward = csr_array((share, (pair, there)), shape=(len(pairs), S))
    where = pairs // A
    acting, first = np.unique(where, return_index=True)
    choices = np.bincount(where, minlength=S)
    known = float(np.mean(choices[here] > 1)) if N else 0.0
    return Seen(here, pair, count, where, first, acting, onward, there, S, known)


def numbered(rows: Shaped[np.ndarray, "N n"]) -> Int[np.ndarray, " N"]:
    """The same number for the same row."""
    if not rows.shape[1]:
        return np.zeros(len(rows), np.int64)
    whole = (
        rows + rows.dtype.type(0) if np.issubdtype(rows.dtype, np.floating) else rows
    )  # turns -0 into 0: rows are compared by their bytes
    plain = np.ascontiguousarray(whole)
    if plain[:1].nbytes > LONG:
        keys = np.array([int.from_bytes(hashlib.blake2b(row.tobytes(), digest_size=8).digest(), "little") for row in plain], np.uint64)
    else:
        keys = plain.view(np.dtype((np.void, plain.dtype.itemsize * plain.shape[1])))[:, 0]
    return np.unique(keys, return_inverse=True)[1].astype(np.int64)


def planned(world: Seen, reward: Float[np.ndarray, "N K"], beyond: Float[np.ndarray, "S K"], gamma: float) -> Int[np.ndarray, "states K"]:
    """The best pair in every state in which something was done, for each of K rewards of the steps; other states are worth `beyond`."""
    paid = np.stack([np.bincount(world.pair, column, len(world.count)) for column in reward.T], axis=1) / world.count[:, None]
    value = beyond.astype(np.float64)
    value[world.acting] = 0.0
    q, best = paid, paid[world.first]
    for _ in range(MOST_ITERATIONS):
        q = paid + gamma * (world.onward @ value)
        best = np.maximum.reduceat(q, world.first, axis=0)
        change, value[world.acting] = np.abs(best - value[world.acting]).max(), best
        if change <= TOLERANCE * max(float(np.abs(best).max()), 1e-9):
            break
    place = np.repeat(np.arange(len(world.first)), np.diff([*world.first, len(world.count)]))
    is_best = q >= best[place]
    order = np.where(is_best, np.arange(len(q))[:, None], len(q))
    return np.minimum.reduceat(order, world.first, axis=0)


def lost(
    world: Seen, choice: Int[np.ndarray, "states K"] | None, loss: Float[np.ndarray, "P K"], start: Float[np.ndarray, "S K"], gamma: float
) -> Float[np.ndarray, " K"]:
    """What a plan loses, discounted and expected, from where each agent starts; None is who does whatever was done there, evenly."""
    S, K = start.shape
    value = np.zeros((S, K))
    pairs = np.diff([*world.first, len(world.count)])[:, None]
    for _ in range(MOST_ITERATIONS):
        total = loss + gamma * (world.onward @ value)
        new = np.add.reduceat(total, world.first, axis=0) / pairs if choice is None else np.take_along_axis(total, choice, axis=0)
        change, value[world.acting] = np.abs(new - value[world.acting]).max(), new
        if change <= TOLERANCE * max(float(np.abs(new).max()), 1e-9):
            break
    return (start * value).sum(axis=0)


def kept(
    world: Seen,
    rewards: list[Float[np.ndarray, "N K"]],
    advantage: Float[np.ndarray, "N K"],
    beyond: Float[np.ndarray, "S K"],
    who: Int[np.ndarray, " N"],
    starts: Bool[np.ndarray, " N"],
    gamma: float,
) -> list[Float[np.ndarray, " K"]]:
    """For each of some rewards, how much of what an agent would rather not do a plan on it avoids: 1 is all, 0 as a random walk.

    `advantage` is of the logged steps, by the agents' own values: 0 for what an agent would do and below 0 for the rest. It counts only in
    states that the agent saw, where it is known. `who` is -1 for steps of the background.
    """
    N, K = advantage.shape
    S = world.size
    own = np.zeros((S, K), bool)
    mine = who >= 0
    own[world.state[mine], who[mine]] = True
    per_pair = np.stack([np.bincount(world.pair, column, len(world.count)) for column in advantage.T], axis=1) / world.count[:, None]
    choices = np.diff([*world.first, len(world.count)])
    loss = -per_pair * own[world.where] * (np.repeat(choices, choices) > 1)[:, None]  # who has no choice loses nothing by a plan
    start = np.zeros((S, K))
    np.add.at(start, (world.state[starts & mine], who[starts & mine]), 1.0)
    start /= np.maximum(start.sum(axis=0), 1.0)
    by_chance = lost(world, None, loss, start, gamma)
    found = []
    for reward in rewards:
        by_plan = lost(world, planned(world, reward, beyond, gamma), loss, start, gamma)
        found.append(1.0 - np.divide(by_plan, by_chance, out=np.full(K, np.nan), where=by_chance > 1e-9))
    return found


def again(state: Int[np.ndarray, " N"], who: Int[np.ndarray, " N"], episode: Int[np.ndarray, " N"]) -> Bool[np.ndarray, " N"]:
    """Whether another episode of the same agent was in the state of each step."""
    return _without_own_episode(state * (int(who.max(initial=0)) + 1) + who, episode) > 0


# --- Do ids mean anything? -----------------------------------------------------------------------------------------------------------


def ids_tell(
    state: Int[np.ndarray, " N"],
    action: Int[np.ndarray, " N"],
    who: Int[np.ndarray, " N"],
    episode: Int[np.ndarray, " N"],
    agents: int,
    seed: int = 0,
) -> float:
    """By how many standard deviations ids predict actions better than ids drawn by lot, over all agents; about 0 if they are shuffled.

    Predicted is what was done in each state, by counting: each episode by all others of its agent, over how well by all others of
    any agent. The same is done with the episodes' ids permuted. nan where states do not repeat.
    """
    episodes, first, number = np.unique(episode, return_index=True, return_inverse=True)
    if agents < 2 or len(episodes) < 2 or again(state, 0 * who, episode).mean() < COMPARED:
        return float("nan")
    A, length = int(action.max(initial=0)) + 1, np.bincount(number)
    habit = (np.bincount(action, minlength=A) + 1.0) / (len(action) + A)
    others = _without_own_episode(state * A + action, episode), _without_own_episode(state, episode)
    pooled = (others[0] + PRIOR * habit[action]) / (others[1] + PRIOR)

    def gain(ids: np.ndarray) -> float:
        place = state * agents + ids[number]
        done, been = _without_own_episode(place * A + action, episode), _without_own_episode(place, episode)
        told = np.log((done + OWN_PRIOR * pooled) / (been + OWN_PRIOR) / pooled)
        return float(np.mean(np.bincount(number, told) / length))  # every episode counts alike, however long an agent wanders

    random = np.random.default_rng(seed)
    by_lot = np.array([gain(random.permutation(who[first])) for _ in range(LOTS)])
    return float((gain(who[first]) - by_lot.mean()) / max(by_lot.std(ddof=1), 1e-9))


def habits_tell(
    what: Float[np.ndarray, "N n"],
    action: Int[np.ndarray, " N"],
    who: Int[np.ndarray, " N"],
    episode: Int[np.ndarray, " N"],
    agents: int,
    seed: int = 0,
) -> float:
    """By how many standard deviations episodes of one agent are more alike than episodes drawn by lot, over all agents.

    Episodes are alike in how often each action is taken and in the mean of `what` over their steps, what changes say. States need not
    repeat. nan where no agent has two episodes.
    """
    episodes, first, number = np.unique(episode, return_index=True, return_inverse=True)
    ids, length = who[first], np.bincount(number)
    if agents < 2 or len(episodes) <= len(np.unique(ids)):
        return float("nan")
    done = np.eye(int(action.max(initial=0)) + 1)[action]
    numbers = np.concatenate([done, what.reshape(len(action), -1)], axis=1).astype(np.float64)
    mean = np.stack([np.bincount(number, column) / length for column in numbers.T], axis=1)
    varies = mean.std(axis=0) > 1e-9 * (1 + np.abs(mean).max(axis=0))
    if not varies.any():
        return 0.0
    mean = (mean[:, varies] - mean[:, varies].mean(axis=0)) / mean[:, varies].std(axis=0)

    def apart(ids: np.ndarray) -> float:
        total = np.stack([np.bincount(ids, column, agents) for column in mean.T], axis=1)
        return float(np.cbrt(np.sum(np.square(total) / np.maximum(np.bincount(ids, minlength=agents), 1)[:, None])))  # nearly normal

    random = np.random.default_rng(seed)
    by_lot = np.array([apart(random.permutation(ids)) for _ in range(EPISODE_LOTS)])
    return float((apart(ids) - by_lot.mean()) / max(by_lot.std(ddof=1), 1e-9))


def _without_own_episode(key: Int[np.ndarray, " N"], episode: Int[np.ndarray, " N"]) -> Float[np.ndarray, " N"]:
    """Of each step, how many steps of other episodes have the same key."""
    _, number, count = np.unique(key, return_inverse=True, return_counts=True)
    both = number.astype(np.int64) * (int(episode.max(initial=0)) + 1) + episode
    _, inside, within = np.unique(both, return_inverse=True, return_counts=True)
    return (count[number] - within[inside]).astype(np.float64)
