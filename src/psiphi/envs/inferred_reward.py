"""Any Gymnasium environment with the reward that was inferred for a demonstrator, so that any library's agent can learn its task."""

from collections.abc import Callable
from typing import Any, SupportsFloat

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np

from psiphi import doors
from psiphi import model as models
from psiphi.errors import UserError
from psiphi.model import Model

Pay = Callable[[Any, Any, Any, bool], float]
"""``pay(obs, action, next_obs, terminated) -> reward`` of one step."""


@jax.jit
def _rewards(model: Model, obs: Any, action: Any, next_obs: Any, discount: Any) -> jax.Array:
    return models.rewards(model, jnp.asarray(obs), jnp.asarray(action), jnp.asarray(next_obs), jnp.asarray(discount))[0]


class InferredReward(gymnasium.Wrapper[Any, Any, Any, Any], gymnasium.utils.RecordConstructorArgs):
    """Pays what the model says demonstrator k is paid for a step, in units of reward; the true reward is ``info["true_reward"]``.

    `pay` is another reward of the step than phi.w_k.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], model: Model, demonstrator: int, pay: Pay | None = None):
        if not isinstance(env, gymnasium.Env) or not isinstance(model, Model):
            raise UserError(f"InferredReward was given {doors.called(env)} and {doors.called(model)}, expected an environment and a model.")
        gymnasium.utils.RecordConstructorArgs.__init__(self, _disable_deepcopy=True, model=model, demonstrator=demonstrator, pay=pay)
        gymnasium.Wrapper.__init__(self, env)
        known = model.units.shape[0]
        if not 0 <= demonstrator < known:
            raise UserError(f"The model knows demonstrators 0 to {known - 1}, but the reward of {demonstrator} is asked for.")
        _check_fits(env, model)
        self.model, self.demonstrator = model, demonstrator
        self._pay: Pay = pay or self._inferred
        self._obs: Any = None

    def _inferred(self, obs: Any, action: Any, next_obs: Any, terminated: bool) -> float:
        step = np.asarray(obs)[None], np.asarray(action, np.int32)[None], np.asarray(next_obs)[None], np.array([not terminated], np.float32)
        return float(_rewards(self.model, *step)[self.demonstrator])

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self._obs, info = self.env.reset(seed=seed, options=options)
        return self._obs, info

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        obs, true_reward, terminated, truncated, info = self.env.step(action)
        paid = self._pay(self._obs, action, obs, bool(terminated))
        if not np.isfinite(paid):
            raise UserError(f"The inferred reward is {paid}, expected a finite number; is the observation finite?")
        self._obs = obs
        return obs, paid, terminated, truncated, {**info, "true_reward": true_reward}


def _check_fits(env: gymnasium.Env[Any, Any], model: Model) -> None:
    """One sentence for a model of another world, before anything is computed with it."""
    actions = getattr(env.action_space, "n", None)
    if actions != model.net.num_actions:
        raise UserError(f"The model has {model.net.num_actions} actions, but the environment's action space is {env.action_space}.")
    shape = env.observation_space.shape
    try:
        jax.eval_shape(models.psi, model, jax.ShapeDtypeStruct((1, *(shape or ())), env.observation_space.dtype or np.float32))
    except (TypeError, ValueError, IndexError, AssertionError) as error:
        raise UserError(f"The model cannot read the environment's observations, which have shape {shape}.") from error
