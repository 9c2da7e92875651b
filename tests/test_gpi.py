"""Generalised policy improvement over heads with ensembles: pessimism, the max over policies, ties, optimism."""

import jax
import jax.numpy as jnp
import numpy as np

from psiphi import gpi, tasks, theory


def linear(w):
    return lambda psi: psi @ jnp.array(w)


def test_pessimism_is_the_smallest_value_not_the_smallest_parts():
    # Two members see psi = (1, 0) and (0, 1). With w = (1, 1) both are worth 1; the componentwise minimum (0, 0) would be worth 0.
    psi = jnp.array([[[[1.0, 0.0]], [[0.0, 1.0]]]])
    np.testing.assert_allclose(gpi.head_values(psi, linear([1.0, 1.0])), [[1.0]])
    # With a negative preference the componentwise minimum would even be optimistic: (0, 0).(-1, -1) = 0 > -1.
    np.testing.assert_allclose(gpi.head_values(psi, linear([-1.0, -1.0])), [[-1.0]])


def test_pessimism_can_change_the_action():
    # Members agree that action 0 is worth 1, and disagree on action 1: (2, 2) or (2, -2), worth 4 or 0.
    psi = jnp.array([[[[1.0, 0.0], [2.0, 2.0]], [[0.0, 1.0], [2.0, -2.0]]]])
    w = jnp.array([1.0, 1.0])
    np.testing.assert_allclose(gpi.values(psi, linear(w)), [1.0, 0.0])
    assert gpi.action(psi, w) == 0
    assert gpi.action(psi[:, :1], w) == 1  # the first member alone


def test_the_best_policy_is_chosen_per_action_and_the_best_action_over_all():
    # heads x actions: values 3 1 | 2 5 | 0 4
    psi = jnp.array([[3.0, 1.0], [2.0, 5.0], [0.0, 4.0]])[:, None, :, None]
    w = jnp.ones(1)
    np.testing.assert_allclose(gpi.values(psi, linear(w)), [3.0, 5.0])
    assert gpi.action(psi, w) == 1
    assert gpi.best_head(psi, w) == 1
    assert gpi.action(psi, -w) == 0  # the opposite task: values 0, -1
    assert gpi.best_head(psi, -w) == 2


def test_the_max_over_policies_comes_after_the_min_over_the_ensemble():
    # Members of the three heads: 4 and 0, 1 and 1, 0 and 4. The best of the worst is 1; the worst of the best would be 4.
    psi = jnp.array([[4.0, 0.0], [1.0, 1.0], [0.0, 4.0]])[:, :, None, None]
    np.testing.assert_allclose(gpi.values(psi, linear([1.0])), [1.0])
    assert gpi.best_head(psi, jnp.ones(1)) == 1


def test_the_first_of_equally_good_actions_and_policies_is_taken():
    psi = jnp.ones((3, 2, 4, 2))
    assert gpi.action(psi, jnp.ones(2)) == 0
    assert gpi.best_head(psi, jnp.ones(2)) == 0
    assert gpi.action(psi.at[:, :, 2:].add(1.0), jnp.ones(2)) == 2


def test_indifference_to_everything_is_a_tie():
    psi = jnp.array(np.random.default_rng(0).normal(size=(2, 2, 3, 4)))
    assert gpi.action(psi, jnp.zeros(4)) == 0


def test_optimism_tries_what_is_uncertain():
    # Action 0 surely brings .5 red; action 1 brings green, of which only the prior is known.
    psi = jnp.array([[[[0.5, 0.0], [0.0, 1.0]]]])
    belief = tasks.Posterior(mean=jnp.array([1.0, 0.0]), covariance=jnp.diag(jnp.array([0.0, 1.0])))
    np.testing.assert_allclose(gpi.values(psi, lambda p: tasks.upper_confidence(p, belief, 2.0)), [0.5, 2.0])
    np.testing.assert_allclose(gpi.values(psi, lambda p: tasks.upper_confidence(p, belief, 0.0)), [0.5, 0.0])


def test_optimism_about_the_task_is_still_pessimism_about_the_ensemble():
    psi = jnp.array([[[[0.0, 1.0]], [[0.0, 0.5]]]])
    belief = tasks.Posterior(mean=jnp.zeros(2), covariance=jnp.eye(2))
    np.testing.assert_allclose(gpi.values(psi, lambda p: tasks.upper_confidence(p, belief, 2.0)), [1.0])


def test_a_worse_policy_more_never_changes_the_values():
    psi, w = jnp.array(np.random.default_rng(0).normal(size=(3, 2, 4, 5))), jnp.arange(5.0)
    worse = psi[:1] - 10.0 * w / jnp.dot(w, w)
    np.testing.assert_allclose(gpi.values(jnp.concatenate([psi, worse]), linear(w)), gpi.values(psi, linear(w)))


def test_in_every_state_of_a_tabular_world_it_is_the_gpi_policy_of_the_theory():
    psi, w = np.random.default_rng(0).normal(size=(3, 6, 4, 5)), np.arange(5.0) - 2.0
    by_state = jnp.array(psi).transpose(1, 0, 2, 3)[:, :, None]
    actions = jax.jit(jax.vmap(gpi.action, in_axes=(0, None)))(by_state, jnp.array(w))
    np.testing.assert_array_equal(actions, theory.gpi_policy(psi, w).argmax(axis=1))
