"""Task inference: the paper's least squares, its incremental form, and the Bayesian one that starts from the demonstrators' wants."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from psiphi import tasks

RED, GREEN = 0, 1
RED_AND_GREEN = tasks.Prior(jnp.eye(2))
posterior = jax.jit(tasks.posterior)
unit = jax.jit(tasks.reward_unit)
least_squares = jax.jit(tasks.least_squares)
solve = jax.jit(tasks.solve)


def experience(phi, reward):
    phi, reward = jnp.array(phi, jnp.float32), jnp.array(reward, jnp.float32)
    return tasks.observe_batch(tasks.no_experience(phi.shape[1]), phi, reward)


def deviations(belief):
    return np.sqrt(np.diag(belief.covariance))


# --- the paper's least squares


def test_least_squares_finds_the_preferences_behind_noiseless_rewards():
    phi = jnp.array([[1.0, 0.0], [1.0, 1.0], [0.0, 2.0]])
    np.testing.assert_allclose(least_squares(phi, phi @ jnp.array([3.0, -1.0])), [3.0, -1.0], atol=1e-5)


def test_least_squares_worked_by_hand():
    # One cumulant: w = sum(phi r) / (sum(phi^2) + ridge) = (1*2 + 2*5) / (1 + 4 + ridge).
    phi, reward = jnp.array([[1.0], [2.0]]), jnp.array([2.0, 5.0])
    np.testing.assert_allclose(least_squares(phi, reward), [12 / 5], rtol=1e-6)
    np.testing.assert_allclose(least_squares(phi, reward, ridge=3.0), [12 / 8], rtol=1e-6)


def test_least_squares_takes_the_shortest_of_many_minimisers():
    # Both cumulants are the same thing, so only w_0 + w_1 = 2 is known; the shortest such w shares it out evenly.
    phi = jnp.array([[1.0, 1.0], [2.0, 2.0], [-1.0, -1.0]])
    reward = jnp.array([2.0, 4.0, -2.0])
    np.testing.assert_allclose(least_squares(phi, reward), [1.0, 1.0], atol=1e-5)
    np.testing.assert_allclose(solve(experience(phi, reward)), [1.0, 1.0], atol=1e-5)


@pytest.mark.parametrize("steps", [1, 3, 50])
@pytest.mark.parametrize("ridge", [0.0, 0.5])
def test_solving_the_statistics_equals_least_squares(steps, ridge):
    rng = np.random.default_rng(steps)
    phi, reward = rng.normal(size=(steps, 4)), rng.normal(size=steps)
    expected = least_squares(jnp.array(phi), jnp.array(reward), ridge)
    np.testing.assert_allclose(solve(experience(phi, reward), ridge), expected, atol=2e-4)
    if ridge == 0.0:
        np.testing.assert_allclose(expected, np.linalg.lstsq(phi, reward, rcond=None)[0], atol=2e-4)


@pytest.mark.parametrize("phi", [np.zeros((5, 3)), np.ones((5, 3)) * 1e-30])
def test_cumulants_that_never_move_teach_nothing(phi):
    reward = np.ones(5)
    for w in (least_squares(jnp.array(phi), jnp.array(reward)), solve(tasks.no_experience(3))):
        assert np.all(np.isfinite(w))
    np.testing.assert_array_equal(solve(experience(np.zeros((5, 3)), reward)), np.zeros(3))


def test_least_squares_can_be_vmapped_over_tasks():
    rng = np.random.default_rng(0)
    phi, w = jnp.array(rng.normal(size=(20, 3))), jnp.array(rng.normal(size=(6, 3)))
    found = jax.jit(jax.vmap(tasks.least_squares, in_axes=(None, 0)))(phi, w @ phi.T)
    np.testing.assert_allclose(found, w, atol=1e-4)


# --- statistics


def test_observing_one_by_one_equals_observing_a_batch_and_weight_zero_changes_nothing():
    rng = np.random.default_rng(0)
    phi, reward = jnp.array(rng.normal(size=(6, 3))), jnp.array(rng.normal(size=6))
    weight = jnp.array([1.0, 0.0, 1.0, 1.0, 0.0, 1.0])
    stats = tasks.no_experience(3)
    for step in range(6):
        stats = tasks.observe(stats, phi[step], reward[step], weight[step])
    kept = np.flatnonzero(weight)
    for other in (
        tasks.observe_batch(tasks.no_experience(3), phi, reward, weight),
        tasks.observe_batch(tasks.no_experience(3), phi[kept], reward[kept]),
    ):
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), stats, other)
    assert stats.count == 4


# --- the Bayesian answer


def test_before_any_reward_all_that_demonstrators_want_is_worth_one_and_nobody_is_sure():
    basis = jnp.array([[2.0, 0.0, 1.0], [0.0, -1.0, 1.0]])
    belief = posterior(tasks.no_experience(3), tasks.Prior(basis))
    np.testing.assert_allclose(belief.mean, basis.sum(0), rtol=1e-6)
    spread = np.mean(np.square(tasks.PRIOR_SCALES))
    np.testing.assert_allclose(belief.covariance, spread * basis.T @ basis, rtol=1e-5)


def test_one_pair_of_scales_is_textbook_bayesian_regression():
    rng = np.random.default_rng(0)
    phi, reward, basis = rng.normal(size=(7, 4)), rng.normal(size=7), rng.normal(size=(3, 4))
    prior_scale, noise_scale = 0.7, 0.4
    x = phi @ basis.T
    precision = x.T @ x / noise_scale**2 + np.eye(3) / prior_scale**2
    mean = np.linalg.solve(precision, x.T @ reward / noise_scale**2 + np.ones(3) / prior_scale**2)
    belief = posterior(experience(phi, reward), tasks.Prior(jnp.array(basis)), prior_scales=(prior_scale,), noise_scales=(noise_scale,))
    np.testing.assert_allclose(belief.mean, basis.T @ mean, atol=1e-4)
    np.testing.assert_allclose(belief.covariance, basis.T @ np.linalg.inv(precision) @ basis, atol=1e-4)


def test_the_ridge_posterior_is_textbook_bayesian_regression_in_all_directions():
    rng = np.random.default_rng(3)
    phi, reward = rng.normal(size=(7, 3)), rng.normal(size=7)
    belief = jax.jit(tasks.ridge_posterior)(experience(phi, reward), 2.0, 0.5)
    covariance = np.linalg.inv(phi.T @ phi / 0.25 + np.eye(3) / 4)
    np.testing.assert_allclose(belief.covariance, covariance, rtol=1e-3, atol=1e-6)
    np.testing.assert_allclose(belief.mean, covariance @ phi.T @ reward / 0.25, rtol=1e-3, atol=1e-5)
    nothing = tasks.ridge_posterior(tasks.no_experience(3), 2.0, 0.5)
    np.testing.assert_allclose(nothing.covariance, 4 * np.eye(3), rtol=1e-5)
    np.testing.assert_array_equal(nothing.mean, 0)


def test_the_informed_posterior_starts_from_its_examples_and_ends_with_the_rewards():
    rng = np.random.default_rng(4)
    examples, phi = rng.normal(size=(5, 3)), rng.normal(size=(200, 3))
    nothing = tasks.informed_posterior(tasks.no_experience(3), jnp.array(examples), 0.5)
    np.testing.assert_allclose(nothing.mean, examples.mean(axis=0), atol=1e-5)
    np.testing.assert_allclose(nothing.covariance, np.cov(examples.T, bias=True) + 0.25 * np.eye(3), atol=1e-4)
    w = np.array([3.0, -2.0, 1.0])
    np.testing.assert_allclose(tasks.informed_posterior(experience(phi, phi @ w), jnp.array(examples)).mean, w, atol=0.01)
    alike = tasks.informed_posterior(experience(phi[:7], phi[:7, 0]), jnp.zeros((2, 3)), 2.0, 0.5)
    same = tasks.ridge_posterior(experience(phi[:7], phi[:7, 0]), 2.0, 0.5)
    np.testing.assert_allclose(alike.mean, same.mean, atol=1e-5)


def test_scales_are_weighted_by_the_probability_they_give_to_the_rewards():
    rng = np.random.default_rng(1)
    phi = rng.normal(size=(6, 2))
    reward = phi @ np.array([2.0, -0.5]) + 0.3 * rng.normal(size=6)
    prior_scales, noise_scales = (0.5, 2.0), (0.2, 0.6)
    beliefs, evidence = [], []
    for prior_scale in prior_scales:
        for noise_scale in noise_scales:
            # The rewards themselves are Gaussian: mean phi.1, covariance prior_scale^2 phi phi' + noise_scale^2 I.
            covariance = prior_scale**2 * phi @ phi.T + noise_scale**2 * np.eye(6)
            residual = reward - phi.sum(1)
            evidence.append(np.exp(-0.5 * residual @ np.linalg.solve(covariance, residual)) / np.sqrt(np.linalg.det(covariance)))
            beliefs.append(posterior(experience(phi, reward), RED_AND_GREEN, prior_scales=(prior_scale,), noise_scales=(noise_scale,)))
    weight = np.array(evidence) / np.sum(evidence)
    means = np.array([belief.mean for belief in beliefs])
    second_moment = [np.array(belief.covariance) + np.outer(belief.mean, belief.mean) for belief in beliefs]
    mean = weight @ means
    mixture = posterior(experience(phi, reward), RED_AND_GREEN, prior_scales=prior_scales, noise_scales=noise_scales)
    np.testing.assert_allclose(mixture.mean, mean, atol=1e-4)
    np.testing.assert_allclose(mixture.covariance, np.tensordot(weight, second_moment, 1) - np.outer(mean, mean), atol=1e-4)


def test_one_bad_green_coin_turns_green_bad_and_leaves_red_wanted_but_uncertain():
    phi = np.zeros((11, 2))
    phi[10, GREEN] = 1.0
    belief = posterior(experience(phi, -phi[:, GREEN]), RED_AND_GREEN)
    assert -1.1 < belief.mean[GREEN] < -0.8
    assert belief.mean[RED] == pytest.approx(1.0, abs=0.05)
    deviation = deviations(belief)
    assert deviation[GREEN] < 0.25
    assert deviation[RED] > 1.0
    values = tasks.upper_confidence(jnp.eye(2), belief)
    assert values[RED] > 0 > values[GREEN]


@pytest.mark.parametrize("seed", range(3))
def test_a_bad_green_coin_is_understood_with_imperfect_cumulants(seed):
    rng = np.random.default_rng(seed)
    phi = 0.03 * rng.normal(size=(30, 2))
    phi[12] += np.array([0.1, 0.9])  # a green coin, seen a little as a red one
    reward = np.zeros(30)
    reward[12] = -1.0
    values = tasks.upper_confidence(jnp.eye(2), posterior(experience(phi, reward), RED_AND_GREEN))
    assert values[RED] > 0.3
    assert values[GREEN] < -0.3


def test_uneventful_steps_do_not_prove_that_nothing_is_worth_anything():
    belief = posterior(experience(0.02 * np.random.default_rng(0).normal(size=(40, 2)), np.zeros(40)), RED_AND_GREEN)
    assert np.all(tasks.upper_confidence(jnp.eye(2), belief) > 0.5)


def test_much_experience_overrules_the_prior():
    rng = np.random.default_rng(0)
    phi, w = rng.normal(size=(2000, 2)), np.array([-1.0, 0.25])
    reward = phi @ w + 0.3 * rng.normal(size=2000)
    belief = posterior(experience(phi, reward), RED_AND_GREEN)
    np.testing.assert_allclose(belief.mean, least_squares(jnp.array(phi), jnp.array(reward)), atol=2e-3)
    # The evidence recognises the noise: the deviation of n observations is about .3 / sqrt(n), on a grid of factors of two.
    assert np.all(deviations(belief) < 0.4 / np.sqrt(2000) * 1.1)


@pytest.mark.parametrize(
    "phi",
    [np.zeros((5, 3)), np.ones((5, 3)), np.tile([1.0, -1.0, 0.0], (5, 1)), 1e4 * np.ones((5, 3)), 1e-20 * np.ones((5, 3))],
    ids=["zero", "collinear", "opposed", "huge", "tiny"],
)
@pytest.mark.parametrize("basis", [np.eye(3), np.ones((2, 3)), np.zeros((2, 3)), np.ones((1, 3))], ids=["full", "twins", "empty", "one"])
def test_degenerate_experience_gives_a_proper_belief(phi, basis):
    belief = posterior(experience(phi, np.array([0.0, 1.0, -1.0, 0.0, 1.0])), tasks.Prior(jnp.array(basis)))
    assert np.all(np.abs(belief.mean) < 10) and np.all(np.abs(belief.covariance) < 100)
    assert np.linalg.eigvalsh(belief.covariance).min() > -1e-4


def test_posterior_can_be_vmapped_over_environments():
    rng = np.random.default_rng(0)
    stats = jax.vmap(lambda p, r: tasks.observe_batch(tasks.no_experience(2), p, r))(
        jnp.array(rng.normal(size=(5, 8, 2))), jnp.array(rng.normal(size=(5, 8)))
    )
    together = jax.jit(jax.vmap(tasks.posterior, in_axes=(0, None)))(stats, RED_AND_GREEN)
    for i in range(5):
        alone = posterior(jax.tree.map(lambda leaf, i=i: leaf[i], stats), RED_AND_GREEN)
        jax.tree.map(lambda a, b, i=i: np.testing.assert_allclose(a[i], b, atol=1e-4), together, alone)


def test_upper_confidence_worked_by_hand():
    belief = tasks.Posterior(jnp.array([1.0, -2.0]), jnp.array([[4.0, 1.0], [1.0, 1.0]]))
    # psi = (1, 1): mean -1, variance 4 + 1 + 2*1 = 7.   psi = (2, 0): mean 2, variance 16.
    psi = jnp.array([[[1.0, 1.0]], [[2.0, 0.0]]])
    np.testing.assert_allclose(tasks.upper_confidence(psi, belief, 2.0), [[-1 + 2 * 7**0.5], [2 + 2 * 4]], rtol=1e-6)
    np.testing.assert_allclose(tasks.upper_confidence(psi, belief, 0.0), psi @ belief.mean)


# --- units of reward


@pytest.mark.parametrize("size", [1.0, 0.05, -3.0, 1e4])
@pytest.mark.parametrize("rarity", [1.0, 0.3, 0.05])
@pytest.mark.parametrize("noise", [0.0, 0.15])
def test_the_unit_is_the_size_of_a_sparse_reward_however_rare_it_is(size, rarity, noise):
    rng = np.random.default_rng(0)
    reward = size * ((rng.random(20_000) < rarity) + noise * rng.normal(size=20_000))
    assert unit(jnp.array(reward), jnp.ones(20_000)) == pytest.approx(abs(size), rel=0.1)


def test_the_unit_ignores_what_is_masked_and_is_never_zero():
    reward = jnp.array([0.0, 2.0, 0.0, -100.0])
    assert unit(reward, jnp.array([1.0, 1.0, 1.0, 0.0])) == pytest.approx(2.0)
    assert unit(reward, jnp.array([True, True, True, False])) == pytest.approx(2.0)
    for mask in (jnp.ones(4), jnp.zeros(4)):
        assert unit(jnp.zeros(4), mask) == pytest.approx(1e-6)


def test_preferences_in_reward_units_pay_one_for_what_is_wanted():
    w, phi_of_a_coin = jnp.array([[20.0, 0.0], [0.0, 5.0]]), jnp.eye(2) / 4
    units = jnp.array([5.0, 1.25])
    np.testing.assert_allclose(jnp.sum(phi_of_a_coin * tasks.in_reward_units(w, units), axis=1), [1.0, 1.0])


@given(
    # Few lengths: each is another program.
    rewards=st.sampled_from((1, 2, 7, 20)).flatmap(lambda n: st.lists(st.floats(-100, 100, width=32), min_size=n, max_size=n)),
    w=st.lists(st.integers(-1000, 1000).map(float), min_size=2, max_size=2),
)
def test_units_never_turn_a_reward_round(rewards, w):
    """Whatever an agent's rewards are, costs only too: a step that was worth more before it is measured in units is worth more after."""
    size = unit(jnp.array(rewards, jnp.float32), jnp.ones(len(rewards)))
    assert size > 0
    before, after = jnp.array([w]), tasks.in_reward_units(jnp.array([w]), size[None])
    assert np.array_equal(np.sign(before), np.sign(after)) and np.array_equal(np.argsort(before), np.argsort(after))


def test_an_agent_that_only_has_costs_is_paid_costs():
    assert unit(jnp.full(10, -1.0), jnp.ones(10)) == pytest.approx(1.0)
