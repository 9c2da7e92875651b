"""How near an inferred reward is to the true one, and two baselines: one that is told almost everything, and one that only counts."""

from typing import NamedTuple

import numpy as np
from demonstrate import Recorded
from planning import policy_values, random_policy
from scipy.optimize import minimize
from scipy.sparse import csr_array
from worlds import World

NOTHING = 1e-6
"""A canonical reward that is smaller than this share of the reward is numerical noise: the reward was nothing but shaping."""


# --- Distances -----------------------------------------------------------------------------------------------------------


def starc(world: World, inferred: np.ndarray, true: np.ndarray, gamma: float | None = None, states: np.ndarray | None = None) -> float:
    """The STARC distance of two rewards ``[S, A, J]``: 0 if every policy is ordered alike, 1 if exactly the other way round.

    Skalse et al., "STARC: A general framework for quantifying differences between reward functions" (2023): both are canonicalised
    (`canonical`), divided by their L2 norms and compared by half the L2 norm of the difference; what is trivial stays 0 and is .5 away
    from all that is not. `states` (bool[S]) are those that count; all in which somebody can act if not given.
    """
    chosen = world.live if states is None else world.live & states
    one, other = (_normalised(world, reward, gamma, chosen) for reward in (inferred, true))
    return float(np.linalg.norm(one - other) / 2)


def canonical(world: World, reward: np.ndarray, gamma: float | None = None) -> np.ndarray:
    """float64[S, A]: the paper's value-adjusted levelling (VAL), E[R(s, a, S') + gamma V(S') - V(s)], V being the uniform policy's value.

    An end leads to a state that is worth 0. VAL is the same for all S', so that axis would only scale the norm and is left out.
    """
    policy = random_policy(world)
    q = policy_values(world, policy, reward, gamma)
    return q - (policy * q).sum(axis=1, keepdims=True)


def _normalised(world: World, reward: np.ndarray, gamma: float | None, states: np.ndarray) -> np.ndarray:
    level = canonical(world, reward, gamma)[states]
    size = float(np.linalg.norm(level))
    trivial = size <= NOTHING * float(np.linalg.norm((world.chance * reward).sum(axis=2)[states]))
    return np.zeros_like(level) if trivial else level / size


class Correlations(NamedTuple):
    """Pearson's r of the inferred with the true reward; nan where either is constant."""

    own: float
    """On the agent's own steps."""
    logged: float
    """On everybody's."""
    random: float
    """On those of a random walk."""


def correlations(world: World, inferred: np.ndarray, true: np.ndarray, recorded: Recorded, agent: str, walk: Recorded) -> Correlations:
    """How the inferred reward ``[S, A, J]`` of an agent goes with its true one on logged and on random steps."""
    if inferred.shape != world.chance.shape or true.shape != world.chance.shape:
        raise ValueError(f"The rewards have shapes {inferred.shape} and {true.shape}, expected {world.chance.shape}.")
    own = recorded.demos.agent == agent
    return Correlations(
        _correlation(inferred, true, recorded, own),
        _correlation(inferred, true, recorded, np.ones_like(own)),
        _correlation(inferred, true, walk, np.ones(len(walk.state), bool)),
    )


def _correlation(inferred: np.ndarray, true: np.ndarray, recorded: Recorded, chosen: np.ndarray) -> float:
    steps = recorded.state[chosen], recorded.action[chosen], recorded.outcome[chosen]
    one, other = inferred[steps], true[steps]
    constant = min(np.ptp(one), np.ptp(other)) <= 1e-9 * max(np.abs(one).max(), np.abs(other).max(), 1e-12)
    return float("nan") if constant else float(np.corrcoef(one, other)[0, 1])


# --- Baselines -----------------------------------------------------------------------------------------------------------


def count_clone(world: World, recorded: Recorded, agent: str) -> np.ndarray:
    """float64[S, A]: an agent's policy by counting what it did in each state; anything where it never was."""
    own = recorded.demos.agent == agent
    A = world.num_actions
    place = recorded.state[own] * A + recorded.action[own]
    counts = np.bincount(place, minlength=world.num_states * A).reshape(-1, A).astype(np.float64)
    total = counts.sum(axis=1, keepdims=True)
    return np.where(total > 0, counts / np.maximum(total, 1), 1 / A)


def maxent(
    world: World,
    recorded: Recorded,
    agent: str,
    features: np.ndarray | None = None,
    gamma: float | None = None,
    *,
    decay: float = 1e-5,
    iterations: int = 200,
) -> np.ndarray:
    """float64[f]: the weights of an agent by maximum causal entropy, told the dynamics and the features ``[S, A, J, f]`` (phi if none).

    Ziebart et al. (2010) with exact soft value iteration, by the causal likelihood sum gamma^t log pi_w(a | s): its gradient is the
    agent's discounted features less those of the model, but a step counts for what it leads to on average and not for the agent's luck,
    and where recording stopped nothing is said of what would have followed. `decay` keeps w finite.

    The model is a soft policy (`soft_policy`), for which to go on is worth something in itself, as it may err: where episodes end, the
    weight of a step makes up for that, and an exact planner takes it at its word.
    """
    gamma = world.gamma if gamma is None else gamma
    given = (world.phi if features is None else features).astype(np.float64)
    expected = np.einsum("saj,sajf->saf", world.chance, given)
    counts = _discounted_counts(world, recorded, agent, gamma)
    seen, left = np.einsum("sa,saf->f", counts, expected), counts.sum(axis=1) - _flow(world, counts, gamma)
    value = visits = np.zeros(world.num_states)

    def loss(w: np.ndarray) -> tuple[float, np.ndarray]:
        nonlocal value, visits
        value, policy = _soft_values(world, expected @ w, gamma, value)
        visits = _visits(world, policy, left, gamma, visits)
        explained = np.einsum("s,sa,saf->f", visits, policy, expected)
        return float(value @ left - w @ seen + decay * w @ w / 2), explained - seen + decay * w

    found = minimize(loss, np.zeros(given.shape[-1]), jac=True, method="L-BFGS-B", options={"maxiter": iterations})
    return found.x


def soft_policy(world: World, reward: np.ndarray, gamma: float | None = None) -> np.ndarray:
    """float64[S, A]: the policy of most entropy and reward ``[S, A, J]``: what `maxent` says its agent does."""
    gamma = world.gamma if gamma is None else gamma
    return _soft_values(world, (world.chance * reward).sum(axis=2), gamma, np.zeros(world.num_states))[1]


def _discounted_counts(world: World, recorded: Recorded, agent: str, gamma: float) -> np.ndarray:
    """float64[S, A]: how often an agent did what where in an episode, a step at t counting gamma^t."""
    demos, S, A = recorded.demos, world.num_states, world.num_actions
    own = demos.agent == agent
    place = recorded.state[own] * A + recorded.action[own]
    episodes = (demos.episodes.agent == demos.agents.index(agent)).sum()
    return np.bincount(place, gamma ** demos.t[own], S * A).reshape(S, A) / episodes


def _flow(world: World, counts: np.ndarray, gamma: float) -> np.ndarray:
    """float64[S]: where so many steps ``[S, A]`` lead, discounted, unless they end."""
    onward = gamma * counts[:, :, None] * world.chance * ~world.ends
    return np.bincount(world.next_state.ravel(), onward.ravel(), world.num_states)


def _soft_values(world: World, paid: np.ndarray, gamma: float, value: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """[S], [S, A]: the value log sum exp q and the policy softmax q of a reward ``[S, A]``, from a first guess of the value."""
    weight = gamma * world.chance * ~world.ends
    enough = 1e-9 * (1 - gamma) * max(float(np.abs(paid).max()), 1.0)
    while True:
        q = paid + np.einsum("saj,saj->sa", weight, value[world.next_state])
        top = q.max(axis=1)
        powers = np.exp(q - top[:, None])
        total = powers.sum(axis=1)
        following = np.where(world.live, top + np.log(total), 0)
        change = np.abs(following - value).max()
        value = following
        if change <= enough:
            return value, powers / total[:, None]


def _visits(world: World, policy: np.ndarray, first: np.ndarray, gamma: float, visits: np.ndarray) -> np.ndarray:
    """float64[S]: discounted visits of a policy that starts as `first` says, from a first guess."""
    S, weight = world.num_states, gamma * policy[:, :, None] * world.chance * ~world.ends
    here = np.broadcast_to(np.arange(S)[:, None, None], weight.shape).ravel()
    arriving = csr_array((weight.ravel(), (world.next_state.ravel(), here)), shape=(S, S))
    while True:
        following = first + arriving @ visits
        change, visits = np.abs(following - visits).sum(), following
        if change <= 1e-9:
            return visits
