"""When a learner does what a demonstrator would do there, and whose turn it is: PsiPhi-learning and the guided DQN share this."""

from typing import Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int

from psiphi import optim

FOLLOWED = 0.25
"""The part of a run's updates in which demonstrators are followed, unless the config says more."""


@runtime_checkable
class Follows(Protocol):
    """The settings of a learner that follows."""

    @property
    def follow(self) -> float:
        """The share of the environments that follow at first."""
        ...

    @property
    def followed(self) -> float:
        """The part of all updates in which it falls to none; 0: `FOLLOWED`."""
        ...

    @property
    def follow_on(self) -> float:
        """The share that goes on to the end."""
        ...

    @property
    def stretch(self) -> int:
        """Updates after which it is drawn anew who follows whom; 0: the first environments follow all the time."""
        ...


def led(config: Follows, count: Int[Array, ""], envs: int, updates: int) -> Bool[Array, " N"]:
    """In which environments a demonstrator is followed after `count` of all updates: none before something was learned from them."""
    passed = optim.progress(count, jnp.asarray(max((config.followed or FOLLOWED) * updates, 1.0)))
    share = jnp.maximum(config.follow * (1 - passed), config.follow_on)
    chosen = drawn(config.stretch, count, envs)[0] < share if config.stretch else jnp.arange(envs) < jnp.round(share * envs)
    return chosen & (count > 0)


def whom(config: Follows, count: Int[Array, ""], envs: int, demonstrators: int) -> Int[Array, " N"]:
    """Whom each environment would follow: one demonstrator each, or the one that it drew."""
    if config.stretch:
        return (drawn(config.stretch, count, envs)[1] * demonstrators).astype(jnp.int32)
    return jnp.arange(envs) % demonstrators


def drawn(stretch: int, count: Int[Array, ""], envs: int) -> Float[Array, "2 N"]:
    """Two numbers from 0 to 1 for each environment, new ones after every stretch, the same with every seed. Environments take turns."""
    begun = (count + jnp.arange(envs) * stretch // envs) // stretch
    keys = jax.vmap(lambda i, n: jax.random.fold_in(jax.random.fold_in(jax.random.key(0), i), n))(jnp.arange(envs), begun)
    return jax.vmap(lambda key: jax.random.uniform(key, (2,)), out_axes=1)(keys)
