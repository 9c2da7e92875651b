"""The paper's claims in worlds small enough to solve exactly: tabular MDPs in double precision, by linear algebra alone.

Arrays are indexed by state, action and (where there is one) next state; a policy is a table of probabilities ``[S, A]``. There are no
episodes: an end is a state that leads to itself and pays nothing. The algorithms never import this module; tests and figures do.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from numpy import ndarray


class TabularMDP(NamedTuple):
    """A controlled Markov process with finitely many states and actions; rewards and the discount are given where they are needed."""

    transition: Float[ndarray, "S A S"]
    """``transition[s, a, next_s]``: probabilities, each row sums to 1"""


def successor_features(
    mdp: TabularMDP, policy: Float[ndarray, "S A"], phi: Float[ndarray, "S A d"], gamma: float
) -> Float[ndarray, "S A d"]:
    """The paper's eq. sf-definition, exactly: the solution of ``psi(s,a) = phi(s,a) + gamma E[psi(s',a')]`` with ``a' ~ policy``."""
    num_states, num_actions, d = phi.shape
    size = num_states * num_actions
    step = np.einsum("san,nb->sanb", mdp.transition, policy).reshape(size, size)
    psi = np.linalg.solve(np.eye(size) - gamma * step, np.asarray(phi, np.float64).reshape(size, d))
    return psi.reshape(phi.shape)


def q_values(mdp: TabularMDP, policy: Float[ndarray, "S A"], reward: Float[ndarray, "S A"], gamma: float) -> Float[ndarray, "S A"]:
    """The value of taking an action and following the policy thereafter: successor features of the reward itself."""
    return successor_features(mdp, policy, reward[..., None], gamma)[..., 0]


def greedy(q: Float[ndarray, "S A"]) -> Float[ndarray, "S A"]:
    """The policy that takes the best action in every state, the first of them in a tie."""
    return np.eye(q.shape[1])[np.argmax(q, axis=1)]


def optimal_q(mdp: TabularMDP, reward: Float[ndarray, "S A"], gamma: float, tolerance: float = 1e-10) -> Float[ndarray, "S A"]:
    """The optimal values, by policy iteration: exact after finitely many rounds.

    An action is replaced only by one better by more than `tolerance`, else rounding could go round in circles among ties.
    """
    policy = greedy(reward)
    while True:
        q = q_values(mdp, policy, reward, gamma)
        improvable = q.max(axis=1) > np.sum(policy * q, axis=1) + tolerance
        if not improvable.any():
            return q
        policy = np.where(improvable[:, None], greedy(q), policy)


def optimal_actions(q: Float[ndarray, "S A"], tolerance: float = 1e-8) -> ndarray:
    """Which actions are best, ``[S, A]`` booleans: more than one in a tie."""
    return q >= q.max(axis=1, keepdims=True) - tolerance


def boltzmann(q: Float[ndarray, "S A"], temperature: float) -> Float[ndarray, "S A"]:
    """The paper's model of a demonstrator: probabilities proportional to ``exp(q / temperature)``."""
    weight = np.exp((q - q.max(axis=1, keepdims=True)) / temperature)
    return weight / weight.sum(axis=1, keepdims=True)


def gpi_policy(psi: Float[ndarray, "K S A d"], w: Float[ndarray, " d"]) -> Float[ndarray, "S A"]:
    """Eq. gpi-with-sf: in every state the action that is best by the best of the K policies' values on the task `w`."""
    return greedy((psi @ w).max(axis=0))


def gpi_bound(
    w_ego: Float[ndarray, " d"],
    w_demonstrators: Float[ndarray, "K d"],
    phi_max: float,
    delta_r: float,
    delta_psi: float,
    gamma: float,
) -> float:
    """Theorem 2: by how much GPI with approximate successor features can fall short of the optimal values, at any state and action.

    - `phi_max`: the largest 2-norm of ``phi(s, a)``
    - `delta_r`: the largest ``|phi.w - r|`` over states, actions and tasks, the ego's included (its policy is judged by the true reward)
    - `delta_psi`: the largest 2-norm of an error ``psi(s, a)`` of any demonstrator, whose policies are optimal for their rewards
    """
    nearest = np.linalg.norm(w_demonstrators - w_ego, axis=1).min()
    value_error = np.linalg.norm(w_ego) * delta_psi + delta_r / (1 - gamma)
    return float(2 / (1 - gamma) * (phi_max * nearest + 2 * delta_r + value_error))


def shape(reward: Float[ndarray, "S A"], potential: Float[ndarray, " S"], mdp: TabularMDP, gamma: float) -> Float[ndarray, "S A"]:
    """Potential-based shaping with the sign of the paper's appendix: ``r + F(s) - gamma E[F(s')]``. Optimal policies stay optimal."""
    return reward + potential[:, None] - gamma * mdp.transition @ potential


def itd_reward(q: Float[ndarray, "S A"], mdp: TabularMDP, policy: Float[ndarray, "S A"], gamma: float) -> Float[ndarray, "S A"]:
    """The reward that minimises the ITD loss on demonstrations by `policy`: ``q(s,a) - gamma E[q(s',a')]`` with ``a' ~ policy``.

    Theorem 1 takes ``q = Q/temperature + F(s)``, BC-Q's minimiser for a demonstrator with Boltzmann policy in Q. Let V be what that
    demonstrator believes a state to be worth, ``Q = r + gamma E[V(s')]``. Then this reward is, exactly,

        ``r / temperature  +  F(s) - gamma E[F(s')]  +  gamma / temperature * E[V(s') - sum_a' policy(a'|s') Q(s',a')]``

    The last term is absent, as in the paper's proof, if the demonstrator knows itself (Q is its own policy's value). If Q is the optimal
    value, as the theorem's text has it, the term is a bonus for states in which the demonstrator errs; it vanishes with the
    temperature, but at a finite one it can change the optimal policy.
    """
    return q - gamma * mdp.transition @ np.sum(policy * q, axis=1)


def self_consistent_q(
    mdp: TabularMDP, reward: Float[ndarray, "S A"], temperature: float, gamma: float, iterations: int = 1000
) -> Float[ndarray, "S A"]:
    """A demonstrator that knows itself: ``Q`` is the value of the very policy ``boltzmann(Q, temperature)``. See `itd_reward`.

    A damped fixed-point iteration; callers check the residual, since at low temperatures it need not converge.
    """
    q = optimal_q(mdp, reward, gamma)
    for _ in range(iterations):
        q = 0.5 * q + 0.5 * q_values(mdp, boltzmann(q, temperature), reward, gamma)
    return q


def canonical(
    reward: Float[ndarray, "S A S"],
    gamma: float,
    states: Float[ndarray, " S"] | None = None,
    actions: Float[ndarray, " A"] | None = None,
) -> Float[ndarray, "S A S"]:
    """The same for all rewards that differ by shaping only: EPIC's canonical form (Gleave et al. 2021) of ``reward[s, a, next_s]``.

    ``R(s,a,s') + E[gamma R(s',A,S') - R(s,A,S') - gamma R(S,A,S')]`` with S, S' drawn from `states` and A from `actions` (uniform unless
    given), whatever the dynamics. So it asks for rewards of impossible transitions too; where those are unknown, use `levelled`.
    """
    num_states, num_actions, _ = reward.shape
    states = np.full(num_states, 1 / num_states) if states is None else states
    actions = np.full(num_actions, 1 / num_actions) if actions is None else actions
    mean = np.einsum("san,a,n->s", reward, actions, states)
    return reward + gamma * mean - mean[:, None, None] - gamma * states @ mean


def levelled(
    mdp: TabularMDP, reward: Float[ndarray, "S A"], gamma: float, policy: Float[ndarray, "S A"] | None = None
) -> Float[ndarray, "S A"]:
    """The same for all rewards that differ by shaping only, for ``reward[s, a]`` in a known world.

    It is the advantage of a fixed policy (uniform unless given), "value-adjusted levelling" of Skalse et al. 2024: shaping adds F(s) to
    values and action values alike. It is itself a shaped version of the reward, so it has the same optimal policies.
    """
    policy = np.full(reward.shape, 1 / reward.shape[1]) if policy is None else policy
    q = q_values(mdp, policy, reward, gamma)
    return q - np.sum(policy * q, axis=1, keepdims=True)
