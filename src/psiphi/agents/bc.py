"""Behaviour cloning (BC): one policy per demonstrator, by maximum likelihood of what it did. Offline; no dynamics, no rewards.

The K policies are one stacked network whose slices share nothing, trained in one step: demonstrator k's data meet network k only.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int, Shaped

from psiphi import configs, losses, optim, replay
from psiphi.configs import BatchSize, Layers, Positive, Share, Weight, Width
from psiphi.nets import ActionNet, TorsoName
from psiphi.spaces import Range
from psiphi.types import Agent, Demonstration, Demos, EnvSpec, Metrics, Pace, Transition


@dataclass(frozen=True)
class BCConfig:
    """Cross-entropy with early decay of the rate; no more regularisation than that unless asked for."""

    torso: TorsoName = "auto"
    """What reads the observation."""
    torso_hidden: Layers = (256, 256)
    """Dense layers of the torso."""
    head_hidden: tuple[Width, ...] = ()
    """Hidden layers between the torso and the logits."""
    learning_rate: Positive = 1e-3
    """Adam's rate."""
    cosine: bool = True
    """The rate falls along a cosine over the run's updates."""
    clip: Weight = 10.0
    """Clip the gradient's global norm; 0: don't."""
    batch: BatchSize = 64
    """Demonstrated steps per demonstrator and update."""
    entropy: Weight = 0.0
    """Weight of the policies' entropy, which is rewarded."""
    decay: Weight = 0.0
    """Weight of the squared parameters."""
    ema: Share = 0.02
    """The networks that are judged follow by a moving average at this rate; 0: the last ones are judged."""
    mirror: bool = True
    """Show half of each batch through the environment's symmetry, if it declares one."""

    GONE = configs.RUN_FACTS

    def __post_init__(self):
        configs.check(self)


SPACE = {
    "learning_rate": Range(1e-4, 1e-2, log=True),
    "entropy": Range(1e-4, 0.1, log=True),
    "decay": Range(1e-7, 1e-3, log=True),
    "ema": Range(0.005, 0.2, log=True),
}
"""Where `psiphi tune` looks."""


class State(NamedTuple):
    """The K networks, their average, and the demonstrations."""

    net: ActionNet
    average: ActionNet
    optimiser: Any
    demos: Demos
    count: Array


def initial_net(config: BCConfig, spec: EnvSpec, num_demonstrators: int, key: Array) -> ActionNet:
    """K networks as one, stacked along a leading axis."""

    def one(k: Array) -> ActionNet:
        return ActionNet(spec, torso_name=config.torso, torso_hidden=config.torso_hidden, head_hidden=config.head_hidden, key=k)

    return jax.vmap(one)(jax.random.split(key, num_demonstrators))


def deployed(config: BCConfig, state: State) -> ActionNet:
    return state.average if configs.on(config.ema) else state.net


def logits(net: ActionNet, obs: Shaped[Array, "K B *obs"]) -> Float[Array, "K B A"]:
    """Slice k of the observations under network k."""
    return jax.vmap(lambda one, x: one(x))(net, obs)


def of_demonstrator(net: ActionNet, which: int | Array) -> ActionNet:
    """One demonstrator's policy out of the stack."""
    return jax.tree.map(lambda x: x[which], net)


def imitates(config: BCConfig, state: State, k: int) -> Callable[[Array, Array], Array]:
    """Demonstrator k's policy in a training state."""
    net = of_demonstrator(deployed(config, state), k)

    def policy(obs: Array, key: Array) -> Array:
        del key
        return jnp.argmax(net(obs), axis=-1)

    return policy


def over_demonstrators(x: Shaped[Array, "K B"], shown: Bool[Array, " K"]) -> Float[Array, ""]:
    """The mean over the demonstrators who have shown anything; 0 if none has."""
    return jnp.sum(jnp.where(shown[:, None], x, 0)) / (jnp.maximum(jnp.sum(shown), 1) * x.shape[1])


def surprise(scores: Float[Array, "K B A"], action: Int[Array, "K B"], shown: Bool[Array, " K"]) -> Float[Array, ""]:
    """Mean cross-entropy of the demonstrated actions under their demonstrators' logits."""
    return over_demonstrators(jax.vmap(jax.vmap(losses.cross_entropy))(scores, action), shown)


def loss(net: ActionNet, demo: Demonstration, shown: Bool[Array, " K"], config: BCConfig) -> tuple[Array, Metrics]:
    """Mean surprise at the demonstrated actions, less `entropy` times the policies' own."""
    scores = logits(net, demo.obs)
    cloning = surprise(scores, demo.action, shown)
    entropy = over_demonstrators(jax.vmap(jax.vmap(losses.entropy))(scores), shown)
    squares = sum((jnp.sum(jnp.square(x)) for x in jax.tree.leaves(net)), start=jnp.zeros(()))
    hit = over_demonstrators(jnp.argmax(scores, axis=-1) == demo.action, shown)
    metrics = {"loss": cloning, "entropy": entropy, "accuracy": hit}
    return cloning - config.entropy * entropy + config.decay * squares, metrics


def make(config: BCConfig, spec: EnvSpec, num_demonstrators: int, pace: Pace) -> Agent:
    """BC as an agent; it learns nothing from acting. Judged, N environments are given to the demonstrators' policies in turn."""
    optimiser = optim.adam(config.learning_rate, clip=config.clip, cosine_steps=pace.updates if config.cosine else 0)

    def init(key: Array, demos: Demos | None) -> State:
        checked = replay.check_shapes(demos, spec, num_demonstrators=num_demonstrators)
        net = initial_net(config, spec, num_demonstrators, key)
        return State(net, net, optim.start(optimiser, net), checked, jnp.zeros((), jnp.int32))

    def policy(state: State, obs: Array, key: Array) -> Array:
        del key
        every = jax.vmap(lambda one: one(obs))(deployed(config, state))
        whose = jnp.arange(obs.shape[0]) % num_demonstrators
        return jnp.argmax(every[whose, jnp.arange(obs.shape[0])], axis=-1)

    def observe(state: State, rollout: Transition) -> State:
        del rollout
        return state

    def update(state: State, key: Array) -> tuple[State, Metrics]:
        sample_key, mirror_key = jax.random.split(key)
        demo = replay.sample_demonstrations(state.demos, sample_key, config.batch)
        demo = replay.mirror_demonstrations(spec, demo, mirror_key) if config.mirror else demo
        gradients, metrics = jax.grad(loss, has_aux=True)(state.net, demo, replay.has_shown(state.demos), config)
        net, optimiser_state = optim.step(optimiser, gradients, state.optimiser, state.net)
        average = optim.follow(state.average, net, config.ema) if configs.on(config.ema) else net
        return state._replace(net=net, average=average, optimiser=optimiser_state, count=state.count + 1), metrics

    return Agent(init, policy, observe, update, policy)
