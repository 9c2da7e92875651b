"""A Gymnasium environment that pays what a model inferred."""

import gymnasium
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import psiphi
import tiny
from psiphi import model as functions
from psiphi.errors import UserError
from psiphi.model import Model

WORLD = {"size": 5, "coins": (1, 1, 0), "max_steps": 8}


@pytest.fixture(scope="module")
def model() -> Model:
    return tiny.model(tiny.run("itd"))


def test_it_pays_what_the_model_says_for_the_step_and_tells_the_truth_beside_it(model):
    env = psiphi.InferredReward(gymnasium.make("psiphi/CoinGrid-v0", **WORLD), model, 1)
    plain = gymnasium.make("psiphi/CoinGrid-v0", **WORLD)
    obs, _ = env.reset(seed=3)
    plain.reset(seed=3)
    for action in (2, 0, 2, 1, 2):
        expected = functions.rewards(model, jnp.asarray(obs)[None], jnp.array([action]))[0, 1]
        obs, reward, *_, info = env.step(action)
        np.testing.assert_allclose(float(reward), expected, rtol=1e-5)
        assert info["true_reward"] == plain.step(action)[1]


def test_it_is_still_an_environment(model):
    check_env(psiphi.InferredReward(gymnasium.make("psiphi/CoinGrid-v0", **WORLD), model, 0), skip_render_check=True)


def test_a_model_that_does_not_fit_is_refused_in_one_sentence(model):
    env = gymnasium.make("psiphi/CoinGrid-v0", **WORLD)
    with pytest.raises(UserError, match="knows demonstrators 0 to 1, but the reward of 2 is asked for"):
        psiphi.InferredReward(env, model, 2)
    with pytest.raises(UserError, match=r"cannot read the environment's observations, which have shape \(7, 7, 5\)"):
        psiphi.InferredReward(gymnasium.make("psiphi/CoinGrid-v0"), model, 0)
    with pytest.raises(UserError, match="The model has 3 actions, but the environment's action space is Discrete"):
        psiphi.InferredReward(gymnasium.make("CartPole-v1"), model, 0)
