"""Exact plans in a world, and what a policy is truly worth there."""

import numpy as np
from scipy.sparse import csr_array
from worlds import World

TOLERANCE = 1e-8
"""How far a value may be from the exact one, relative to the largest reward."""
TIE = 1e-6
"""Actions count as equally good if their values differ by less, relative to the largest value or reward."""


def value_iteration(world: World, reward: np.ndarray, gamma: float | None = None) -> np.ndarray:
    """float64[S, A]: the optimal action values of a reward ``[S, A, J]``; nothing follows an end."""
    gamma = world.gamma if gamma is None else gamma
    paid, weight = _paid(world, reward), gamma * world.chance * ~world.ends
    enough, value = _enough(paid, gamma), np.zeros(world.num_states)
    while True:
        q = paid + np.einsum("saj,saj->sa", weight, value[world.next_state])
        following = q.max(axis=1)
        change, value = np.abs(following - value).max(), following
        if change <= enough:
            return q


def policy_values(world: World, policy: np.ndarray, reward: np.ndarray, gamma: float | None = None) -> np.ndarray:
    """float64[S, A]: the action values of a policy ``[S, A]`` under a reward ``[S, A, J]``."""
    gamma = world.gamma if gamma is None else gamma
    S, paid, weight = world.num_states, _paid(world, reward), gamma * world.chance * ~world.ends
    rows = np.broadcast_to(np.arange(S)[:, None, None], weight.shape).ravel()
    onward = csr_array(((policy[:, :, None] * weight).ravel(), (rows, world.next_state.ravel())), shape=(S, S))
    own, enough, value = (policy * paid).sum(axis=1), _enough(paid, gamma), np.zeros(S)
    while True:
        following = own + onward @ value
        change, value = np.abs(following - value).max(), following
        if change <= enough:
            return paid + np.einsum("saj,saj->sa", weight, value[world.next_state])


def _paid(world: World, reward: np.ndarray) -> np.ndarray:
    """float64[S, A]: what a step earns on average."""
    return (world.chance * reward).sum(axis=2)


def _enough(paid: np.ndarray, gamma: float) -> float:
    """The change of values in one iteration that leaves them less than `TOLERANCE` from exact ones."""
    return TOLERANCE * max(float(np.abs(paid).max()), 1e-12) * (1 - gamma)


def greedy_policy(q: np.ndarray) -> np.ndarray:
    """float64[S, A]: the best action; if several are as good, each as often."""
    scale = max(np.abs(q).max(), 1e-12)
    best = q >= q.max(axis=1, keepdims=True) - TIE * scale
    return best / best.sum(axis=1, keepdims=True)


def random_policy(world: World) -> np.ndarray:
    """float64[S, A]: every action as often."""
    return np.full((world.num_states, world.num_actions), 1 / world.num_actions)


def optimal_policy(world: World, reward: np.ndarray, gamma: float | None = None) -> np.ndarray:
    """float64[S, A]: a planner's answer to a reward ``[S, A, J]``."""
    return greedy_policy(value_iteration(world, reward, gamma))


def evaluate_policy(
    world: World, policy: np.ndarray, reward: np.ndarray, gamma: float | None = None, start: np.ndarray | None = None
) -> float:
    """The expected discounted return of a policy, averaged over the start states."""
    values = (policy * policy_values(world, policy, reward, gamma)).sum(axis=1)
    return float(values[world.start if start is None else start].mean())


def score(world: World, policy: np.ndarray, w: str | np.ndarray, start: np.ndarray | None = None) -> float:
    """What a policy truly earns, for an agent's name or its w: 0 is the uniform policy, 1 the optimum."""
    reward = world.reward(w)
    worst, best, own = (
        evaluate_policy(world, one, reward, start=start) for one in (random_policy(world), optimal_policy(world, reward), policy)
    )
    return (own - worst) / (best - worst)
