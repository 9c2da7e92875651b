"""The optimiser's steps, and how targets follow. Adam on a constant gradient steps by exactly its rate, so rates can be read off."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from psiphi import optim

RATE = 0.1


def steps(optimiser, gradients: list[tuple[float, float]]) -> np.ndarray:
    """How far two parameters move at each step."""

    def step(carry, gradient):
        parameters, state = carry
        new, state = optim.step(optimiser, {"a": gradient[0], "b": gradient[1]}, state, parameters)
        return (new, state), jnp.stack([new["a"] - parameters["a"], new["b"] - parameters["b"]])

    def run(gradients):
        start = {"a": jnp.zeros(()), "b": jnp.zeros(())}
        return jax.lax.scan(step, (start, optimiser.init(start)), gradients)[1]

    return np.asarray(jax.jit(run)(jnp.array(gradients)))


def test_adam_goes_down_at_its_rate():
    np.testing.assert_allclose(steps(optim.adam(RATE), [(2.0, -3.0)] * 4), [[-RATE, RATE]] * 4, rtol=1e-4)


def test_the_rate_falls_along_a_cosine_to_its_final_fraction():
    moved = steps(optim.adam(RATE, cosine_steps=2, final_fraction=0.5), [(1.0, 1.0)] * 5)
    np.testing.assert_allclose(-moved[:, 0] / RATE, [1.0, 0.75, 0.5, 0.5, 0.5], rtol=1e-4)


def test_a_clipped_gradient_has_the_norm_asked_for():
    # After a huge gradient Adam's second moment would make the next step tiny, unless the huge one was clipped.
    gradients = [(300.0, 400.0), (0.6, 0.8)]
    np.testing.assert_allclose(steps(optim.adam(RATE, clip=1.0), gradients), [[-RATE, -RATE]] * 2, rtol=1e-3)
    unclipped = steps(optim.adam(RATE), gradients)
    assert abs(unclipped[1, 0]) < 0.8 * RATE


def test_a_clip_leaves_small_gradients_alone():
    gradients = [(0.1, 0.2), (0.3, 0.1)]
    np.testing.assert_array_equal(steps(optim.adam(RATE, clip=1.0), gradients), steps(optim.adam(RATE), gradients))


def test_nothing_moves_without_a_gradient():
    np.testing.assert_array_equal(steps(optim.adam(RATE, clip=1.0), [(0.0, 1.0)] * 3)[:, 0], 0)


def test_a_target_follows_part_of_the_way():
    moved = optim.follow({"x": jnp.array([0.0, 2.0])}, {"x": jnp.array([1.0, 4.0])}, 0.25)
    np.testing.assert_array_equal(moved["x"], [0.25, 2.5])


@pytest.mark.parametrize(("count", "copied"), [(1, False), (2, False), (3, True), (4, False), (6, True)])
def test_a_target_is_refreshed_every_period(count, copied):
    moved = jax.jit(optim.refresh, static_argnums=3)({"x": jnp.array([0.0, 2.0])}, {"x": jnp.array([1.0, 4.0])}, count, 3)
    np.testing.assert_array_equal(moved["x"], [1.0, 4.0] if copied else [0.0, 2.0])
