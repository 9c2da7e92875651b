"""The paper's two theorems, and the exact tools they stand on, in random worlds of a few states."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from psiphi import losses, theory

GAMMA = 0.9


def random_mdp(rng, num_states, num_actions):
    return theory.TabularMDP(rng.dirichlet(np.full(num_states, 0.5), size=(num_states, num_actions)))


def random_policies(rng, count, num_states, num_actions):
    return rng.dirichlet(np.ones(num_actions), size=(count, num_states))


def sphere(rng, *shape):
    """Vectors of length 1 in random directions."""
    x = rng.normal(size=shape)
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


worlds = st.fixed_dictionaries(
    {
        "rng": st.integers(0, 2**32 - 1).map(np.random.default_rng),
        "num_states": st.integers(1, 6),
        "num_actions": st.integers(1, 4),
        "num_policies": st.integers(1, 4),
        "gamma": st.sampled_from([0.0, 0.5, 0.9, 0.99]),
    }
)

# --- exact successor features


def test_successor_features_worked_by_hand():
    # Two states; action 0 stays, action 1 crosses over; phi marks the state one is in. The policy always crosses.
    mdp = theory.TabularMDP(np.array([[[1.0, 0.0], [0.0, 1.0]], [[0.0, 1.0], [1.0, 0.0]]]))
    phi = np.array([[[1.0, 0.0]] * 2, [[0.0, 1.0]] * 2])
    cross = np.array([[0.0, 1.0], [0.0, 1.0]])
    # Crossing at once: in state 0 at times 0, 2, 4 ...: 1 / (1 - 1/4), in state 1 at times 1, 3 ...: half of it. Staying once: 1 + half
    # of that in state 0, and half of that in state 1.
    psi = theory.successor_features(mdp, cross, phi, 0.5)
    np.testing.assert_allclose(psi[0, 1], [4 / 3, 2 / 3])
    np.testing.assert_allclose(psi[0, 0], [1 + 2 / 3, 1 / 3])


def test_successor_features_equal_the_sum_over_many_steps():
    rng = np.random.default_rng(0)
    mdp, policy, phi = random_mdp(rng, 5, 3), random_policies(rng, 1, 5, 3)[0], rng.normal(size=(5, 3, 4))
    step = np.einsum("sa,san->sn", policy, mdp.transition)
    mean_phi = np.einsum("sa,sad->sd", policy, phi)
    total, occupied = phi.copy(), mdp.transition
    for t in range(1, 300):
        total += GAMMA**t * occupied @ mean_phi
        occupied = occupied @ step
    np.testing.assert_allclose(theory.successor_features(mdp, policy, phi, GAMMA), total, atol=1e-5)


@given(worlds)
def test_values_are_successor_features_times_preferences(world):
    rng, size, gamma = world["rng"], (world["num_states"], world["num_actions"]), world["gamma"]
    mdp, policy = random_mdp(rng, *size), random_policies(rng, 1, *size)[0]
    phi, w = rng.normal(size=(*size, 3)), rng.normal(size=3)
    psi = theory.successor_features(mdp, policy, phi, gamma)
    np.testing.assert_allclose(psi @ w, theory.q_values(mdp, policy, phi @ w, gamma), atol=1e-8)
    following = np.einsum("sa,sad->sd", policy, psi)
    np.testing.assert_allclose(psi, phi + gamma * mdp.transition @ following, atol=1e-8)


@given(worlds)
def test_optimal_values_satisfy_the_bellman_equation_and_no_policy_beats_them(world):
    rng, size, gamma = world["rng"], (world["num_states"], world["num_actions"]), world["gamma"]
    mdp, reward = random_mdp(rng, *size), rng.normal(size=size)
    q = theory.optimal_q(mdp, reward, gamma)
    np.testing.assert_allclose(q, reward + gamma * mdp.transition @ q.max(axis=1), atol=1e-7)
    for policy in random_policies(rng, 3, *size):
        assert np.all(theory.q_values(mdp, policy, reward, gamma) <= q + 1e-7)


# --- shaping and its removal


@given(worlds)
def test_shaping_shifts_values_by_the_potential_and_keeps_the_optimal_actions(world):
    rng, size, gamma = world["rng"], (world["num_states"], world["num_actions"]), world["gamma"]
    mdp, reward, potential = random_mdp(rng, *size), rng.normal(size=size), rng.normal(size=size[0])
    shaped = theory.shape(reward, potential, mdp, gamma)
    q, shaped_q = theory.optimal_q(mdp, reward, gamma), theory.optimal_q(mdp, shaped, gamma)
    np.testing.assert_allclose(shaped_q, q + potential[:, None], atol=1e-6)
    np.testing.assert_array_equal(theory.optimal_actions(shaped_q, 1e-5), theory.optimal_actions(q, 1e-5))


@given(worlds)
def test_canonical_forms_do_not_see_shaping(world):
    rng, (num_states, num_actions), gamma = world["rng"], (world["num_states"], world["num_actions"]), world["gamma"]
    mdp, potential = random_mdp(rng, num_states, num_actions), rng.normal(size=num_states)
    reward = rng.normal(size=(num_states, num_actions))
    shaped = theory.shape(reward, potential, mdp, gamma)
    np.testing.assert_allclose(theory.levelled(mdp, shaped, gamma), theory.levelled(mdp, reward, gamma), atol=1e-8)

    by_transition = rng.normal(size=(num_states, num_actions, num_states))
    shaped_by_transition = by_transition + potential[:, None, None] - gamma * potential
    states, actions = rng.dirichlet(np.ones(num_states)), rng.dirichlet(np.ones(num_actions))
    for weights in ((None, None), (states, actions)):
        np.testing.assert_allclose(
            theory.canonical(shaped_by_transition, gamma, *weights), theory.canonical(by_transition, gamma, *weights), atol=1e-10
        )


def test_canonical_forms_differ_where_rewards_differ_by_more_than_shaping():
    rng = np.random.default_rng(0)
    mdp, one, other = random_mdp(rng, 4, 2), rng.normal(size=(4, 2)), rng.normal(size=(4, 2))
    assert np.abs(theory.levelled(mdp, one, GAMMA) - theory.levelled(mdp, other, GAMMA)).max() > 0.1
    one, other = (np.repeat(reward[..., None], 4, axis=-1) for reward in (one, other))
    assert np.abs(theory.canonical(one, GAMMA) - theory.canonical(other, GAMMA)).max() > 0.1


def test_the_levelled_reward_is_a_shaped_version_of_the_reward():
    rng = np.random.default_rng(1)
    mdp, reward = random_mdp(rng, 5, 3), rng.normal(size=(5, 3))
    q, levelled_q = (theory.optimal_q(mdp, r, GAMMA) for r in (reward, theory.levelled(mdp, reward, GAMMA)))
    np.testing.assert_allclose(np.ptp(levelled_q - q, axis=1), 0.0, atol=1e-9)


# --- Theorem 1: what BC-Q and ITD recover


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("temperature", [0.3, 1.0, 5.0])
def test_theorem_1_for_a_demonstrator_that_knows_itself(seed, temperature):
    """The theorem as its proof has it: the policy is Boltzmann in its own value. The reward comes back, scaled and shaped."""
    rng = np.random.default_rng(seed)
    mdp, reward = random_mdp(rng, 5, 3), rng.normal(size=(5, 3))
    q = theory.self_consistent_q(mdp, reward, temperature, GAMMA)
    policy = theory.boltzmann(q, temperature)
    np.testing.assert_allclose(q, theory.q_values(mdp, policy, reward, GAMMA), atol=1e-9)  # the fixed point was reached

    potential = 10 * rng.normal(size=5)
    bc_minimiser = np.log(policy) + potential[:, None]  # every minimiser of BC-Q has this form
    inferred = theory.itd_reward(bc_minimiser, mdp, policy, GAMMA)
    true_potential = (bc_minimiser - q / temperature)[:, 0]
    np.testing.assert_allclose(inferred, theory.shape(reward / temperature, true_potential, mdp, GAMMA), atol=1e-7)

    best, inferred_best = (theory.optimal_actions(theory.optimal_q(mdp, r, GAMMA), 1e-6) for r in (reward / temperature, inferred))
    np.testing.assert_array_equal(inferred_best, best)
    np.testing.assert_allclose(theory.levelled(mdp, inferred, GAMMA), theory.levelled(mdp, reward, GAMMA) / temperature, atol=1e-7)


def inferred_from_boltzmann_in_optimal_values(mdp, reward, temperature):
    """What ITD makes of a demonstrator that believes it will act optimally and does not; and the exact surplus over the theorem."""
    q = theory.optimal_q(mdp, reward, GAMMA)
    policy = theory.boltzmann(q, temperature)
    inferred = theory.itd_reward(q / temperature, mdp, policy, GAMMA)
    regret = q.max(axis=1) - np.sum(policy * q, axis=1)
    return inferred, GAMMA / temperature * mdp.transition @ regret


def test_theorem_1_for_boltzmann_in_optimal_values_holds_as_the_temperature_vanishes():
    """The theorem as its text has it: exact up to a bonus, gamma/temperature times the regret at the next state, that goes to 0."""
    rng = np.random.default_rng(0)
    mdp, reward = random_mdp(rng, 5, 3), rng.normal(size=(5, 3))
    surpluses = []
    for temperature in (1.0, 0.1, 0.01, 0.001):
        inferred, surplus = inferred_from_boltzmann_in_optimal_values(mdp, reward, temperature)
        np.testing.assert_allclose(inferred, reward / temperature + surplus, atol=1e-9 / temperature)
        assert np.all(surplus <= GAMMA * np.log(3) + 1e-9)  # Boltzmann regret is at most temperature x entropy
        surpluses.append(surplus.max())
    assert surpluses[0] > 0.1
    assert surpluses[-1] < 1e-6
    actions = theory.optimal_actions(theory.optimal_q(mdp, reward / temperature, GAMMA), 1e-6)
    np.testing.assert_array_equal(theory.optimal_actions(theory.optimal_q(mdp, inferred, GAMMA), 1e-6), actions)


def test_theorem_1_for_boltzmann_in_optimal_values_can_fail_at_a_finite_temperature():
    """A choice between a room where mistakes are dear, worth 1.01, and one where they are cheap and so frequent, worth 1.

    The demonstrator prefers the former, if barely. The inferred reward pays a bonus for frequent mistakes, and prefers the latter.
    """
    start, dear, cheap, end = range(4)
    transition = np.zeros((4, 2, 4))
    transition[start, 0, dear] = transition[start, 1, cheap] = 1.0
    transition[[dear, cheap, end], :, end] = 1.0
    mdp = theory.TabularMDP(transition)
    reward = np.array([[0.01, 0.0], [1.0, -10.0], [1.0, 0.9], [0.0, 0.0]])
    for temperature, preferred in ((0.5, cheap), (0.01, dear)):
        inferred, _ = inferred_from_boltzmann_in_optimal_values(mdp, reward, temperature)
        q, inferred_q = theory.optimal_q(mdp, reward, GAMMA), theory.optimal_q(mdp, inferred, GAMMA)
        assert transition[start, np.argmax(q[start])].argmax() == dear
        assert transition[start, np.argmax(inferred_q[start])].argmax() == preferred


def test_alternating_bc_q_and_itd_infers_rewards_that_make_each_demonstrator_optimal():
    """Algorithm 1 by gradient descent, in a table, with expectations in place of samples: shared phi, two demonstrators."""
    rng = np.random.default_rng(3)
    num_states, num_actions, d, temperature = 4, 2, 3, 0.5
    mdp = random_mdp(rng, num_states, num_actions)
    rewards = rng.normal(size=(2, num_states, num_actions))
    policies = np.stack([theory.boltzmann(theory.self_consistent_q(mdp, r, temperature, GAMMA), temperature) for r in rewards])
    psi, phi, w = infer_by_gradient_descent(mdp, jnp.array(policies, jnp.float32), d, seed=0)

    for k, (reward, policy) in enumerate(zip(rewards, policies, strict=True)):
        np.testing.assert_allclose(theory.boltzmann(psi[k] @ w[k], 1.0), policy, atol=0.005)
        inferred = phi @ w[k]
        best = theory.optimal_actions(theory.optimal_q(mdp, reward, GAMMA))
        np.testing.assert_array_equal(theory.optimal_actions(theory.optimal_q(mdp, inferred, GAMMA)), best)
        levelled, inferred_levelled = (theory.levelled(mdp, r, GAMMA) for r in (reward / temperature, inferred))
        np.testing.assert_allclose(inferred_levelled, levelled, atol=0.02 * np.abs(levelled).max())


def infer_by_gradient_descent(mdp, policies, d, seed, steps=3000):
    """Algorithm 1, where every (s, a, s', a') occurs as often as its probability says (states evenly)."""
    num_demonstrators, num_states, num_actions = policies.shape
    s, a, next_s, next_a = (i.ravel() for i in np.indices((num_states, num_actions, num_states, num_actions)))
    probability = policies[:, s, a] * mdp.transition[s, a, next_s] * policies[:, next_s, next_a] / num_states
    psi_key, phi_key, w_key = jax.random.split(jax.random.key(seed), 3)
    psi = 0.1 * jax.random.normal(psi_key, (num_demonstrators, num_states, num_actions, d))
    phi = 0.1 * jax.random.normal(phi_key, (num_states, num_actions, d))
    w = jax.random.normal(w_key, (num_demonstrators, d))

    def bc_q_loss(psi_and_w):
        psi, w = psi_and_w
        nll = jax.vmap(lambda psi, w: jax.vmap(losses.bc_q, in_axes=(0, None, 0))(psi[s], w, jnp.array(a)))(psi, w)
        return jnp.sum(probability * nll)

    def itd_loss(psi_and_phi, target_psi):
        psi, phi = psi_and_phi
        error = jax.vmap(jax.vmap(losses.itd, in_axes=(0, 0, 0, None)), in_axes=(0, None, 0, None))(
            psi[:, s, a], phi[s, a], target_psi[:, next_s, next_a], jnp.float32(GAMMA)
        )
        return jnp.sum(probability * jax.vmap(jax.vmap(losses.squared))(error))

    optimiser = optax.adam(optax.cosine_decay_schedule(0.03, steps))

    def alternate(carry, _):
        psi, phi, w, bc_state, itd_state = carry
        updates, bc_state = optimiser.update(jax.grad(bc_q_loss)((psi, w)), bc_state)
        psi, w = jax.tree.map(jnp.add, (psi, w), updates)
        updates, itd_state = optimiser.update(jax.grad(itd_loss)((psi, phi), psi), itd_state)
        psi, phi = jax.tree.map(jnp.add, (psi, phi), updates)
        return (psi, phi, w, bc_state, itd_state), None

    start = (psi, phi, w, optimiser.init((psi, w)), optimiser.init((psi, phi)))
    (psi, phi, w, *_), _ = jax.jit(lambda carry: jax.lax.scan(alternate, carry, None, length=steps))(start)
    return tuple(np.array(x, np.float64) for x in (psi, phi, w))


# --- GPI, and Theorem 2


@given(worlds)
def test_gpi_is_at_least_as_good_as_every_policy_it_knows(world):
    rng, size, gamma = world["rng"], (world["num_states"], world["num_actions"]), world["gamma"]
    mdp, phi, w = random_mdp(rng, *size), rng.normal(size=(*size, 3)), rng.normal(size=3)
    policies = random_policies(rng, world["num_policies"], *size)
    psi = np.stack([theory.successor_features(mdp, policy, phi, gamma) for policy in policies])
    improved = theory.q_values(mdp, theory.gpi_policy(psi, w), phi @ w, gamma)
    assert np.all(improved >= (psi @ w).max(axis=0) - 1e-7)


def test_gpi_can_be_better_than_every_policy_it_knows():
    # In a corridor 0 - 1 - 2, one policy always goes left, one always right; each end pays. From the middle GPI takes the richer end.
    transition = np.zeros((3, 2, 3))
    transition[[0, 1, 2], 0, [0, 0, 1]] = transition[[0, 1, 2], 1, [1, 2, 2]] = 1.0
    mdp = theory.TabularMDP(transition)
    phi = np.zeros((3, 2, 2))
    phi[0, 0, 0] = phi[2, 1, 1] = 1.0
    left, right = np.tile([1.0, 0.0], (3, 1)), np.tile([0.0, 1.0], (3, 1))
    psi = np.stack([theory.successor_features(mdp, policy, phi, GAMMA) for policy in (left, right)])
    w = np.array([1.0, 0.95])  # walking from one end to the other does not pay, so each end keeps its own
    q = theory.q_values(mdp, theory.gpi_policy(psi, w), phi @ w, GAMMA)
    np.testing.assert_allclose(q, theory.optimal_q(mdp, phi @ w, GAMMA), atol=1e-9)
    values, known = q.max(axis=1), (psi @ w)
    assert values[0] > known[1, 0, 1] + 1 and values[2] > known[0, 2, 0] + 0.5


@settings(max_examples=200)
@given(worlds, st.sampled_from([0.0, 0.1, 1.0]), st.sampled_from([0.0, 0.1, 3.0]), st.sampled_from([0.0, 0.1, 2.0]))
def test_theorem_2_bounds_what_gpi_loses(world, delta_r, delta_psi, distance):
    rng, size, gamma = world["rng"], (world["num_states"], world["num_actions"]), world["gamma"]
    mdp, phi = random_mdp(rng, *size), rng.normal(size=(*size, 3))
    w_ego = rng.normal(size=3)
    w_demonstrators = w_ego + distance * rng.normal(size=(world["num_policies"], 3))

    def perturbed(w):
        return phi @ w + delta_r * rng.choice([-1.0, 1.0], size=size)

    policies = [theory.greedy(theory.optimal_q(mdp, perturbed(w), gamma)) for w in w_demonstrators]
    psi = np.stack([theory.successor_features(mdp, policy, phi, gamma) for policy in policies])
    psi_with_errors = psi + delta_psi * sphere(rng, *psi.shape)

    reward = perturbed(w_ego)
    values = theory.q_values(mdp, theory.gpi_policy(psi_with_errors, w_ego), reward, gamma)
    loss = (theory.optimal_q(mdp, reward, gamma) - values).max()
    phi_max = np.linalg.norm(phi, axis=-1).max()
    assert loss <= theory.gpi_bound(w_ego, w_demonstrators, phi_max, delta_r, delta_psi, gamma) + 1e-6


def test_the_bound_worked_by_hand():
    # 2 / (1 - 1/2) * [3 * min(|(3,4)|, |(0,2)|) + 2 * .1 + |(1,0)| * .2 + .1 / (1 - 1/2)] = 4 * [6 + .2 + .2 + .2]
    w_demonstrators = np.array([[4.0, 4.0], [1.0, 2.0]])
    assert theory.gpi_bound(np.array([1.0, 0.0]), w_demonstrators, 3.0, 0.1, 0.2, 0.5) == pytest.approx(26.4)


def test_the_bounds_term_for_errors_of_psi_is_needed():
    # One state, two actions; the first pays 1. An error of .5 in each psi swaps the actions, for ever: the loss is gamma / (1 - gamma).
    mdp, phi, w = theory.TabularMDP(np.ones((1, 2, 1))), np.array([[[1.0], [0.0]]]), np.ones(1)
    psi = theory.successor_features(mdp, np.array([[1.0, 0.0]]), phi, GAMMA)
    swapped = psi + np.array([[[-0.51], [0.51]]])
    values = theory.q_values(mdp, theory.gpi_policy(swapped[None], w), phi @ w, GAMMA)
    loss = (theory.optimal_q(mdp, phi @ w, GAMMA) - values).max()
    assert loss == pytest.approx(9.0)
    assert theory.gpi_bound(w, w[None], 1.0, 0.0, 0.0, GAMMA) == 0.0
    assert loss <= theory.gpi_bound(w, w[None], 1.0, 0.0, 0.51, GAMMA) < 11.0
