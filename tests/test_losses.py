"""Every equation worked by hand, and its gradients: against finite differences, and who gets how much."""

import inspect
from typing import get_args

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.test_util import check_grads

from psiphi import losses

# --- by hand


def test_squared_is_the_sum_of_squares():
    assert losses.squared(jnp.array([1.0, -2.0, 3.0])) == 14.0
    assert losses.squared(jnp.array(-3.0)) == 9.0


def test_bc_q_is_the_surprise_at_the_demonstrated_action():
    # psi.w = (ln 1, ln 2, ln 5), so the softmax is (1/8, 2/8, 5/8).
    psi = jnp.stack([jnp.log(jnp.array([1.0, 2.0, 5.0])), jnp.array([7.0, 8.0, 9.0])], axis=1)
    w = jnp.array([1.0, 0.0])
    for action, probability in enumerate((1 / 8, 2 / 8, 5 / 8)):
        np.testing.assert_allclose(losses.bc_q(psi, w, jnp.array(action)), -np.log(probability), rtol=1e-5)
    # beta = 2 squares the odds: 1 : 4 : 25.
    np.testing.assert_allclose(losses.bc_q(psi, w, jnp.array(1), beta=2.0), -np.log(4 / 30), rtol=1e-5)


def test_a_lapse_is_a_share_of_uniform_mistakes():
    values = jnp.log(jnp.array([0.5, 0.3, 0.2]))
    for action, chance in enumerate((0.5, 0.3, 0.2)):
        lapsed = losses.lapsed_bc_q(values, jnp.array(action), 0.4, 1.0)
        np.testing.assert_allclose(lapsed, -np.log(0.6 * chance + 0.4 / 3), rtol=1e-5)
    never = losses.lapsed_bc_q(jnp.array([1e4, -1e4]), jnp.array(1), 0.1, 1.0)
    np.testing.assert_allclose(never, -np.log(0.05), rtol=1e-5)  # what is never wanted still happens


def test_bc_q_does_not_see_what_all_actions_have_in_common():
    """Hence the shaping in Theorem 1."""
    psi, w = jnp.array([[1.0, 2.0], [0.0, -1.0]]), jnp.array([0.5, 2.0])
    np.testing.assert_allclose(losses.bc_q(psi + jnp.array([3.0, -4.0]), w, jnp.array(0)), losses.bc_q(psi, w, jnp.array(0)), rtol=1e-3)


def test_bc_q_is_finite_for_a_demonstrator_that_is_never_in_doubt():
    assert losses.bc_q(jnp.array([[1e4], [-1e4]]), jnp.ones(1), jnp.array(1)) == 2e4


def test_l1():
    assert losses.l1(jnp.array([1.0, -2.0, 0.0])) == 3.0


@pytest.mark.parametrize("loss", [losses.itd, losses.td_psi])
def test_inverse_td_error(loss):
    psi, phi, next_psi = jnp.array([5.0, 1.0]), jnp.array([1.0, -1.0]), jnp.array([4.0, 2.0])
    np.testing.assert_allclose(loss(psi, phi, next_psi, jnp.array(0.5)), [5 - 1 - 2, 1 + 1 - 1])


@pytest.mark.parametrize("loss", [losses.itd, losses.td_psi])
def test_after_a_true_end_the_successor_features_are_the_cumulants(loss):
    psi, phi = jnp.array([5.0, 1.0]), jnp.array([1.0, -1.0])
    np.testing.assert_allclose(loss(psi, phi, jnp.array([1e9, -1e9]), jnp.array(0.0)), psi - phi)


def test_reward_error():
    assert losses.reward(jnp.array([1.0, 2.0]), jnp.array([3.0, -1.0]), jnp.array(0.25)) == 3 - 2 - 0.25


def test_bellman_error():
    # Three rewards 1, 0, 2 discounted by .5 make 1.5; then .5^3 = .125 of the next value.
    error = losses.q(jnp.array([2.0, 1.0]), jnp.array([1.0, 3.0]), jnp.array(1.5), jnp.array(0.125), jnp.array(8.0))
    assert error == 2 + 3 - 1.5 - 1


def test_cross_policy_expects_over_the_policys_next_action():
    next_psi, next_policy = jnp.array([[4.0, 0.0], [0.0, 8.0]]), jnp.array([0.25, 0.75])
    error = losses.cross_policy(jnp.array([1.0, 1.0]), jnp.array([0.5, 0.0]), next_psi, next_policy, jnp.array(0.5))
    np.testing.assert_allclose(error, [1 - 0.5 - 0.5 * 1, 1 - 0 - 0.5 * 6])


def test_cross_policy_with_a_policy_that_never_doubts_is_itd():
    psi, phi, next_psi = jnp.array([1.0, 1.0]), jnp.array([0.5, 0.0]), jnp.array([[4.0, 0.0], [0.0, 8.0]])
    np.testing.assert_allclose(
        losses.cross_policy(psi, phi, next_psi, jnp.array([0.0, 1.0]), jnp.array(0.9)), losses.itd(psi, phi, next_psi[1], jnp.array(0.9))
    )


def test_only_what_is_less_than_nothing_is_negative():
    assert [float(losses.negative(jnp.array(reward))) for reward in (-1.5, 0.0, 2.0)] == [1.5, 0.0, 0.0]


def test_sparse_costs_nothing_at_zero_and_prefers_one_large_reward_to_many_small_ones():
    def cost(reward):
        return float(losses.sparse(jnp.array(reward), 5.0))

    assert cost(0.0) == 0.0
    assert cost(-0.2) == pytest.approx(np.log(2))
    assert cost(1.0) < 10 * cost(0.1)


def test_terminal_anchor_is_the_value_of_every_action():
    np.testing.assert_allclose(losses.terminal_anchor(jnp.array([[1.0, 2.0], [0.0, 1.0]]), jnp.array([1.0, -1.0])), [-1.0, -1.0])


def test_a_single_task_is_the_special_case_of_one_cumulant_with_preference_one():
    # Then psi is Q and phi is the reward: Q - r - gamma Q'.
    q, r, next_q = jnp.array([3.0]), jnp.array([1.0]), jnp.array([4.0])
    assert losses.itd(q, r, next_q, jnp.array(0.5))[0] == losses.q(q, jnp.ones(1), r[0], jnp.array(0.5), next_q[0]) == 0.0


# --- the baselines by hand: Q-learning and cloning


def test_cross_entropy_and_entropy_of_an_eighth_two_eighths_five_eighths():
    logits = jnp.log(jnp.array([1.0, 2.0, 5.0]))
    for action, probability in enumerate((1 / 8, 2 / 8, 5 / 8)):
        np.testing.assert_allclose(losses.cross_entropy(logits, jnp.array(action)), -np.log(probability), rtol=1e-5)
    np.testing.assert_allclose(losses.entropy(logits), np.log(8) / 8 + np.log(4) * 2 / 8 + np.log(8 / 5) * 5 / 8, rtol=1e-5)
    np.testing.assert_allclose(losses.entropy(jnp.zeros(4)), np.log(4), rtol=1e-6)


def test_bellman_error_of_a_value():
    # Three rewards 1, 0, 2 discounted by .5 make 1.5; then .5^3 = .125 of the next value.
    assert losses.bellman(jnp.array(5.0), jnp.array(1.5), jnp.array(0.125), jnp.array(8.0)) == 5 - 1.5 - 1
    assert losses.bellman(jnp.array(5.0), jnp.array(1.5), jnp.array(0.0), jnp.array(1e9)) == 3.5  # after a true end


def test_the_hard_backup_is_the_best_and_the_double_one_what_the_other_network_thinks_of_the_chosen():
    chooser, teller = jnp.array([1.0, 3.0, 2.0]), jnp.array([9.0, 4.0, 7.0])
    assert losses.hard_value(teller) == 9.0
    assert losses.double_value(chooser, teller) == 4.0
    assert losses.double_value(teller, teller) == losses.hard_value(teller)


def test_the_soft_backup():
    # exp(Q) = (1, 2, 5) sum to 8; at temperature 2, exp(Q / 2) with Q = 2 log(1, 2, 5) do.
    logs = jnp.log(jnp.array([1.0, 2.0, 5.0]))
    np.testing.assert_allclose(losses.soft_value(logs, 1.0), np.log(8), rtol=1e-6)
    np.testing.assert_allclose(losses.soft_value(2 * logs, 2.0), 2 * np.log(8), rtol=1e-6)
    # Equal values are worth temperature * log A more than one of them, and with the temperature the rest fades.
    np.testing.assert_allclose(losses.soft_value(jnp.full(3, 0.5), 0.1), 0.5 + 0.1 * np.log(3), rtol=1e-6)
    np.testing.assert_allclose(losses.soft_value(jnp.array([1e4, -1e4]), 1e-3), losses.hard_value(jnp.array([1e4, -1e4])))


def test_huber_is_twice_optaxs_and_the_square_up_to_its_knee():
    errors = jnp.array([-3.0, -0.5, 0.0, 0.4, 0.5, 2.0])
    found = jax.vmap(losses.huber, (0, None))(errors, 0.5)
    np.testing.assert_allclose(found, [0.5 * (6 - 0.5), 0.25, 0, 0.16, 0.25, 0.5 * (4 - 0.5)], rtol=1e-6)
    np.testing.assert_allclose(found, 2 * optax.losses.huber_loss(errors, delta=0.5), rtol=1e-6)


# --- the baselines by hand: policy gradients and adversarial imitation


def gae(reward, value, next_value, discount, last, lambda_):
    reward, value, next_value, discount = (jnp.array(x, jnp.float32) for x in (reward, value, next_value, discount))
    return losses.gae(reward, value, next_value, discount, jnp.array(last), lambda_)


def test_gae_by_hand_at_a_time_limit_a_termination_and_the_rollouts_end():
    # Errors r + discount * next_value - value:
    # 1 + .5 * 4 - 2 = 1 (time limit), 2 + 0 - 1 = 1 (the end), 0 + .5 * 2 - 3 = -2, 1 + .5 * 6 - 2 = 2.
    steps = ([1, 2, 0, 1], [2, 1, 3, 2], [4, 100, 2, 6], [0.5, 0, 0.5, 0.5], [True, True, False, False])
    # Only the third step is followed by another of its episode: -2 + .5 * .5 * 2.
    np.testing.assert_allclose(gae(*steps, 0.5), [1, 1, -1.5, 2])
    np.testing.assert_allclose(gae(*steps, 0.0), [1, 1, -2, 2])
    np.testing.assert_allclose(gae(*steps, 1.0), [1, 1, -1, 2])


def test_a_time_limit_is_worth_the_next_value_and_a_termination_is_not():
    limit = gae([1, 5], [0, 0], [8, 0], [0.5, 0.5], [True, False], 0.9)
    end = gae([1, 5], [0, 0], [8, 0], [0.0, 0.5], [True, False], 0.9)
    assert limit[0] == 1 + 0.5 * 8 and end[0] == 1


def test_the_clipped_surrogate_by_hand():
    def surrogate(ratio, advantage):
        return float(losses.clipped_surrogate(jnp.log(ratio) - 1.0, jnp.array(-1.0), jnp.array(advantage), 0.2))

    # Within the clip: minus ratio times advantage.
    assert surrogate(1.1, 2.0) == pytest.approx(-2.2, rel=1e-5) and surrogate(0.9, -2.0) == pytest.approx(1.8, rel=1e-5)
    # What has gone too far in the right direction gains no more; what has gone wrong is held against it in full.
    assert surrogate(3.0, 2.0) == pytest.approx(-2.4, rel=1e-5) and surrogate(0.1, -2.0) == pytest.approx(1.6, rel=1e-5)
    assert surrogate(0.1, 2.0) == pytest.approx(-0.2, rel=1e-5) and surrogate(3.0, -2.0) == pytest.approx(6.0, rel=1e-5)


def test_the_gradient_of_the_surrogate_is_minus_the_advantage_at_first_and_zero_once_clipped():
    slope = jax.grad(losses.clipped_surrogate)
    assert slope(jnp.array(-1.0), jnp.array(-1.0), jnp.array(3.0), 0.2) == -3.0
    assert slope(jnp.array(-0.5), jnp.array(-1.0), jnp.array(3.0), 0.2) == 0.0
    assert slope(jnp.array(-0.5), jnp.array(-1.0), jnp.array(-3.0), 0.2) == pytest.approx(3 * np.exp(0.5))


def test_the_clipped_value_by_hand():
    def value(new, target):
        return float(losses.clipped_value(jnp.array(new), jnp.array(1.0), jnp.array(target), 0.5))

    assert value(1.25, 2.25) == 1.0  # within the clip: the squared error
    assert value(2.0, 2.0) == 0.25  # too far, though right: as if at 1.5
    assert value(3.0, 1.0) == 4.0  # too far and wrong: the larger error


@pytest.mark.parametrize(("d", "logit"), [(0.5, 0.0), (0.75, np.log(3)), (0.2, -np.log(4))])
def test_the_discriminators_cross_entropy_entropy_and_rewards(d, logit):
    logit = jnp.array(logit, jnp.float32)
    np.testing.assert_allclose(losses.discrimination(logit, jnp.array(1.0)), -np.log(d), rtol=1e-5)
    np.testing.assert_allclose(losses.discrimination(logit, jnp.array(0.0)), -np.log(1 - d), rtol=1e-5)
    np.testing.assert_allclose(losses.discriminator_entropy(logit), -d * np.log(d) - (1 - d) * np.log(1 - d), rtol=1e-5)
    np.testing.assert_allclose(losses.adversarial_reward(logit, "-log(1-D)"), -np.log(1 - d), rtol=1e-5)
    np.testing.assert_allclose(losses.adversarial_reward(logit, "log D"), np.log(d), rtol=1e-5)
    np.testing.assert_allclose(losses.adversarial_reward(logit, "log D - log(1-D)"), np.log(d / (1 - d)), rtol=1e-5, atol=1e-7)


def test_the_discriminator_is_finite_when_it_never_doubts():
    sure = jnp.array([-1e4, 1e4], jnp.float32)
    for label in (0.0, 1.0):
        np.testing.assert_allclose(jax.vmap(losses.discrimination, (0, None))(sure, jnp.array(label)), np.abs([0 - label, 1 - label]) * 1e4)
    np.testing.assert_allclose(jax.vmap(losses.discriminator_entropy)(sure), 0, atol=1e-6)
    for form, expected in zip(get_args(losses.AdversarialReward), ([0, 1e4], [-1e4, 0], [-1e4, 1e4]), strict=True):
        np.testing.assert_allclose([losses.adversarial_reward(x, form) for x in sure], expected)


# --- gradients


def differentiable():
    """Every loss as a scalar function of its real-valued arguments, at a point away from kinks."""
    rng = np.random.default_rng(0)

    def vector(*shape):
        return jnp.array(rng.normal(size=shape))

    psi, phi, next_psi, w, discount = vector(3), vector(3), vector(3), vector(3), jnp.array(0.9)
    squared = losses.squared
    return {
        "bc_q": (lambda psi, w: losses.bc_q(psi, w, jnp.array(1), 2.0), (vector(4, 3), w)),
        "lapsed_bc_q": (lambda q, lapse: losses.lapsed_bc_q(q, jnp.array(1), lapse, 2.0), (vector(4), jnp.array(0.2))),
        "l1": (losses.l1, (w,)),
        "itd": (lambda *x: squared(losses.itd(*x)), (psi, phi, next_psi, discount)),
        "td_psi": (lambda *x: squared(losses.td_psi(*x)), (psi, phi, next_psi, discount)),
        "reward": (lambda *x: squared(losses.reward(*x)), (phi, w, vector())),
        "q": (lambda *x: squared(losses.q(*x)), (psi, w, vector(), discount, vector())),
        "cross_policy": (
            lambda *x: squared(losses.cross_policy(*x)),
            (psi, phi, vector(4, 3), jax.nn.softmax(vector(4)), discount),
        ),
        "sparse": (lambda r: losses.sparse(r, 5.0), (jnp.array(0.7),)),
        "negative": (losses.negative, (jnp.array(-0.7),)),
        "terminal_anchor": (lambda *x: squared(losses.terminal_anchor(*x)), (vector(4, 3), w)),
        "gae": (
            lambda r, v, next_v, g: squared(losses.gae(r, v, next_v, g, jnp.array([False, True, False, False]), 0.8)),
            (vector(4), vector(4), vector(4), jnp.array([0.9, 0.9, 0.9, 0.0])),
        ),
        "clipped_surrogate": (
            lambda x, old, advantage: sum(losses.clipped_surrogate(x[i], old, advantage, 0.2) for i in range(3)),
            (jnp.array([-1.0, -0.5, -1.5]), jnp.array(-0.95), jnp.array(1.3)),
        ),
        "clipped_value": (
            lambda x, old, target: sum(losses.clipped_value(x[i], old, target, 0.5) for i in range(2)),
            (jnp.array([1.3, 3.0]), jnp.array(1.0), jnp.array(1.4)),
        ),
        "discrimination": (losses.discrimination, (vector(), jnp.array(0.9))),
        "discriminator_entropy": (losses.discriminator_entropy, (vector(),)),
        "adversarial_reward": (
            lambda x: sum(losses.adversarial_reward(x[i], form) for i, form in enumerate(get_args(losses.AdversarialReward))),
            (vector(3),),
        ),
        "cross_entropy": (lambda logits: losses.cross_entropy(logits, jnp.array(1)), (vector(4),)),
        "entropy": (losses.entropy, (vector(4),)),
        "bellman": (lambda *x: squared(losses.bellman(*x)), (vector(), vector(), discount, vector())),
        "hard_value": (losses.hard_value, (vector(4),)),
        "double_value": (lambda q: losses.double_value(jnp.array([1.0, 3.0, 2.0, 0.0]), q), (vector(4),)),
        "soft_value": (lambda q: losses.soft_value(q, 0.5), (vector(4),)),
        "huber": (lambda error: losses.huber(error[0], 1.0) + losses.huber(error[1], 1.0), (jnp.array([0.7, -1.9]),)),
    }


@pytest.mark.parametrize("name", differentiable())
def test_gradients_agree_with_finite_differences(name):
    with jax.enable_x64(True):  # finite differences need the digits
        loss, arguments = differentiable()[name]
        check_grads(jax.jit(loss), arguments, order=1, modes=["rev"], atol=1e-6, rtol=1e-6, eps=1e-5)


def test_every_loss_is_in_the_list_above():
    public = {name for name, f in inspect.getmembers(losses, inspect.isfunction) if f.__module__ == losses.__name__}
    assert public - {"squared"} == differentiable().keys()


def test_the_gradient_of_bc_q_is_the_probability_less_the_choice():
    # psi.w = (0, ln 3): probabilities 1/4, 3/4; action 0 was taken; d/d(psi.w) = (1/4 - 1, 3/4), times beta w in psi, times beta psi in w.
    psi, w = jnp.array([[0.0, 0.0], [np.log(3.0), 1.0]], jnp.float32), jnp.array([0.5, 0.0])
    in_psi, in_w = jax.grad(losses.bc_q, argnums=(0, 1))(psi, w, jnp.array(0), 2.0)
    np.testing.assert_allclose(in_psi, [[2 * 0.5 * -0.75, 0.0], [2 * 0.5 * 0.75, 0.0]], rtol=1e-5)
    np.testing.assert_allclose(in_w, [2 * 0.75 * np.log(3), 2 * 0.75 * 1], rtol=1e-5)


def test_bc_q_cannot_touch_the_cumulants():
    assert "phi" not in inspect.signature(losses.bc_q).parameters


def test_itd_pulls_psi_and_phi_with_equal_and_opposite_force():
    psi, phi, next_psi, discount = jnp.array([5.0, 1.0]), jnp.array([1.0, -1.0]), jnp.array([4.0, 2.0]), jnp.array(0.5)
    in_psi, in_phi = jax.grad(lambda *x: losses.squared(losses.itd(*x)), argnums=(0, 1))(psi, phi, next_psi, discount)
    np.testing.assert_allclose(in_psi, [4.0, 2.0])  # twice the error (2, 1)
    np.testing.assert_allclose(in_phi, [-4.0, -2.0])


# What one step of each loss trains, when everything is a function of one network's parameters and the caller passes the target's
# values for what is to be held fixed. This is how the agents call them.
PARAMETERS = {"psi": jnp.array([[1.0, 2.0], [3.0, -1.0]]), "phi": jnp.array([0.5, 1.0]), "w": jnp.array([1.0, -2.0])}
TARGET = {name: leaf + 0.3 for name, leaf in PARAMETERS.items()}
ROUTES = {
    "bc_q": (lambda p, target: losses.bc_q(p["psi"], p["w"], jnp.array(0)), {"psi", "w"}),
    "itd": (lambda p, target: losses.squared(losses.itd(p["psi"][0], p["phi"], target["psi"][1], jnp.array(0.9))), {"psi", "phi"}),
    "reward": (lambda p, target: losses.squared(losses.reward(p["phi"], p["w"], jnp.array(1.0))), {"phi", "w"}),
    "q": (
        lambda p, target: losses.squared(
            losses.q(p["psi"][0], target["w"], jnp.array(1.0), jnp.array(0.9), jnp.max(target["psi"] @ target["w"]))
        ),
        {"psi"},
    ),
    "td_psi": (lambda p, target: losses.squared(losses.td_psi(p["psi"][0], target["phi"], target["psi"][1], jnp.array(0.9))), {"psi"}),
}


@pytest.mark.parametrize("name", ROUTES)
def test_each_loss_trains_what_the_paper_says_and_nothing_else(name):
    loss, trained = ROUTES[name]
    moved = {leaf for leaf, gradient in jax.grad(loss)(PARAMETERS, TARGET).items() if np.any(np.asarray(gradient) != 0)}
    assert moved == trained


def test_the_losses_of_one_step_vmap_to_a_batch_and_to_demonstrators():
    rng = np.random.default_rng(0)
    psi, w = jnp.array(rng.normal(size=(3, 5, 4, 2))), jnp.array(rng.normal(size=(3, 2)))
    action = jnp.array(rng.integers(4, size=(3, 5)))
    batched = jax.vmap(jax.vmap(losses.bc_q, in_axes=(0, None, 0)))(psi, w, action)
    assert batched.shape == (3, 5)
    np.testing.assert_allclose(batched[2, 3], losses.bc_q(psi[2, 3], w[2], action[2, 3]), rtol=1e-5)
    # A demonstrator's loss moves its own preferences only.
    in_w = jax.grad(lambda w: jnp.sum(jax.vmap(jax.vmap(losses.bc_q, in_axes=(0, None, 0)))(psi, w, action)[1]))(w)
    assert np.all(in_w[1] != 0) and np.all(in_w[np.array([0, 2])] == 0)
