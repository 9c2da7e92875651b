"""Generative adversarial imitation learning (GAIL, Ho & Ermon 2016): PPO whose reward is how demonstrated its steps look.

A discriminator D(s, a) learns to tell demonstrated steps from the generator's; the generator, PPO with nothing changed, is paid for steps
that D takes for demonstrated. D is the probability of *demonstrated*: GAIL's paper has it the other way round, so its D is 1 - D here.
"""

from dataclasses import dataclass, field
from typing import Annotated, Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax import Array
from jaxtyping import Float

from psiphi import configs, losses, optim, replay, spaces
from psiphi.agents import ppo
from psiphi.agents.ppo import PPOConfig
from psiphi.configs import BatchSize, Count, Layers, Number, Positive, Weight, Width, Within
from psiphi.errors import UserError
from psiphi.losses import AdversarialReward
from psiphi.nets import MLP, ActionNet, Torso, TorsoName, torso
from psiphi.spaces import Range
from psiphi.types import Agent, Demos, EnvSpec, Metrics, Pace, Transition


def default_ppo() -> PPOConfig:
    """Short-sighted. Demonstrators who have what they want leave, but the world goes on, and there nothing looks demonstrated, so that a
    generator that looks far ahead learns not to finish."""
    return PPOConfig(gamma=0.5)


@dataclass(frozen=True)
class GAILConfig:
    """The generator's config and the discriminator's. The default is what works best on CoinGrid."""

    ppo: PPOConfig = field(default_factory=default_ppo)
    """The generator."""
    demonstrator: Number | None = None
    """Whom to imitate, counted from 0; None: all of them, as one pool of steps."""
    reward: AdversarialReward = "-log(1-D)"
    """What a step pays. The first form is never negative, so it pays to stay alive, the second never positive, so it pays to end the
    episode; the third (AIRL's) is both."""
    control: bool = False
    """Control without demonstrations: D is 1/2 everywhere and is not trained, so every step pays the same. What is learned then, an
    episode's end has taught."""
    torso: TorsoName = "auto"
    """What reads the observation for the discriminator, which shares nothing with the generator."""
    torso_hidden: Layers = (256, 256)
    """Dense layers of its torso."""
    head_hidden: tuple[Width, ...] = (128,)
    """Its hidden layers between torso and one-hot action and the logit; at least one, or no action could suit one state and not another."""
    learning_rate: Positive = 1e-3
    """Adam's rate for the discriminator."""
    clip: Weight = 10.0
    """Clip its gradient's global norm; 0: don't."""
    steps: Count = 16
    """Its gradient steps per rollout."""
    batch: BatchSize = 256
    """Demonstrated steps in each; of the generator's steps there are as many."""
    smoothing: Annotated[float, Within(0, 0.499)] = 0.0
    """Demonstrated steps are labelled 1 less this and the generator's this, so that D need not be certain."""
    entropy: Weight = 1e-3
    """Weight of the discriminator's entropy, which is rewarded."""
    weight_decay: Weight = 0.0
    """Weight of its squared parameters."""
    mirror: bool = True
    """Show half of the demonstrated steps, and half of the generator's, through the environment's symmetry, if it declares one."""

    def __post_init__(self):
        configs.check(self)


SPACE = {
    "learning_rate": Range(1e-4, 1e-2, log=True),
    "entropy": Range(1e-4, 0.1, log=True),
    **spaces.inside("ppo", {name: ppo.SPACE[name] for name in ("learning_rate", "clip_ratio", "entropy")}),
}
"""Where `psiphi tune` looks."""


class Discriminator(eqx.Module):
    """Torso, then observation's features and one-hot action together to one logit: log D/(1-D)."""

    torso: Torso
    head: MLP
    num_actions: int = eqx.field(static=True)

    def __call__(self, obs: Array, action: Array) -> Float[Array, " B"]:
        return self.head(jnp.concatenate([self.torso(obs), jax.nn.one_hot(action, self.num_actions)], axis=-1))[:, 0]


class State(NamedTuple):
    """PPO's state, whose rollout is the generator's, and the discriminator's; `demos` is None for the control."""

    ppo: ppo.State
    discriminator: Discriminator
    optimiser: Any
    demos: Demos | None


class Pair(NamedTuple):
    """A balanced batch: as many demonstrated steps as the generator's, each with observation and action."""

    shown: tuple[Array, Array]
    made: tuple[Array, Array]


def initial_discriminator(config: GAILConfig, spec: EnvSpec, key: Array) -> Discriminator:
    torso_key, head_key = jax.random.split(key)
    sizes = (config.torso_hidden[-1] + spec.num_actions, *config.head_hidden, 1)
    return Discriminator(torso(config.torso, spec, config.torso_hidden, key=torso_key), MLP(sizes, key=head_key), spec.num_actions)


def deployed(config: GAILConfig, state: State) -> ActionNet:
    """The generator's policy."""
    return ppo.deployed(config.ppo, state.ppo)


def sample(config: GAILConfig, spec: EnvSpec, demos: Demos, rollout: Transition, key: Array) -> Pair:
    """A balanced batch; the generator's half is drawn from its last rollout."""
    demo_key, made_key, mirror_shown_key, mirror_made_key = jax.random.split(key, 4)
    shown = replay.sample_pool(demos, demo_key, config.batch)
    steps = ppo.flat(rollout)
    index = jax.random.randint(made_key, (config.batch,), 0, steps.action.shape[0])
    made = jax.tree.map(lambda x: x[index], steps)
    if config.mirror:
        shown, made = replay.mirror(spec, shown, mirror_shown_key), replay.mirror(spec, made, mirror_made_key)
    return Pair((shown.obs, shown.action), (made.obs, made.action))


def discriminator_loss(net: Discriminator, pair: Pair, config: GAILConfig) -> tuple[Array, Metrics]:
    """Cross-entropy, each half weighing the same, less `entropy` times the discriminator's entropy; and how often each half is told."""
    shown, made = net(*pair.shown), net(*pair.made)
    cross_entropy = jax.vmap(losses.discrimination, (0, None))
    surprise = jnp.mean(cross_entropy(shown, jnp.asarray(1 - config.smoothing)) + cross_entropy(made, jnp.asarray(config.smoothing))) / 2
    entropy = jnp.mean(jax.vmap(losses.discriminator_entropy)(jnp.concatenate([shown, made])))
    squares = sum((jnp.sum(jnp.square(x)) for x in jax.tree.leaves(net)), start=jnp.zeros(()))
    metrics = {
        "discriminator_loss": surprise,
        "discriminator_entropy": entropy,
        "accuracy_demonstrated": jnp.mean(shown > 0),
        "accuracy_generated": jnp.mean(made < 0),
    }
    return surprise - config.entropy * entropy + config.weight_decay * squares, metrics


def reward(config: GAILConfig, net: Discriminator, rollout: Transition) -> Float[Array, "T N"]:
    """What the discriminator pays for each step of a rollout; for the control, what D = 1/2 pays."""
    steps = ppo.flat(rollout)
    logit = jnp.zeros(steps.action.shape) if config.control else net(steps.obs, steps.action)
    return jax.vmap(lambda x: losses.adversarial_reward(x, config.reward))(logit).reshape(rollout.action.shape)


def make_optimiser(config: GAILConfig) -> optax.GradientTransformation:
    return optim.adam(config.learning_rate, clip=config.clip)


def discriminate(
    config: GAILConfig, spec: EnvSpec, optimiser: optax.GradientTransformation, state: State, key: Array
) -> tuple[State, Metrics]:
    """Train the discriminator on the demonstrations and the generator's last rollout."""
    demos = state.demos
    assert demos is not None

    def descend(now: tuple[Discriminator, Any], step_key: Array) -> tuple[tuple[Discriminator, Any], Metrics]:
        net, optimiser_state = now
        pair = sample(config, spec, demos, state.ppo.rollout, step_key)
        gradients, metrics = jax.grad(discriminator_loss, has_aux=True)(net, pair, config)
        return optim.step(optimiser, gradients, optimiser_state, net), metrics

    start = (state.discriminator, state.optimiser)
    (net, optimiser_state), metrics = jax.lax.scan(descend, start, jax.random.split(key, config.steps))
    return state._replace(discriminator=net, optimiser=optimiser_state), jax.tree.map(jnp.mean, metrics)


def check(config: GAILConfig) -> None:
    """Refuse what GAIL has no use for, and what it cannot do."""
    if not config.head_hidden:
        raise UserError("head_hidden of the discriminator is empty, expected at least one hidden layer.")
    if config.ppo.bc_weight:
        raise UserError(f"GAIL's bc_weight is {config.ppo.bc_weight}, expected 0.0: its generator learns from the discriminator only.")


def make(config: GAILConfig, spec: EnvSpec, num_demonstrators: int, pace: Pace) -> Agent:
    """GAIL as an agent: PPO over a re-rewarded rollout. The environment's own reward is never looked at.

    The demonstrations given to `init` become part of its state, of the imitated demonstrator only, however many there are; the control
    needs none.
    """
    del num_demonstrators
    check(config)
    generator = ppo.make(config.ppo, spec, 0, pace)
    optimiser = make_optimiser(config)

    def init(key: Array, demos: Demos | None) -> State:
        generator_key, discriminator_key = jax.random.split(key)
        shown = None if config.control else replay.only(replay.check_shapes(demos, spec, config.demonstrator), config.demonstrator)
        net = initial_discriminator(config, spec, discriminator_key)
        return State(generator.init(generator_key, None), net, optim.start(optimiser, net), shown)

    def update(state: State, key: Array) -> tuple[State, Metrics]:
        discriminator_key, generator_key = jax.random.split(key)
        state, told = (state, {}) if config.control else discriminate(config, spec, optimiser, state, discriminator_key)
        paid = reward(config, state.discriminator, state.ppo.rollout)
        re_rewarded = state.ppo._replace(rollout=state.ppo.rollout._replace(reward=paid))
        learned, metrics = generator.update(re_rewarded, generator_key)
        return state._replace(ppo=learned), metrics | told | {"reward": jnp.mean(paid)}

    def act(state: State, obs: Array, key: Array) -> Array:
        return generator.act(state.ppo, obs, key)

    def observe(state: State, rollout: Transition) -> State:
        return state._replace(ppo=generator.observe(state.ppo, rollout))

    def policy(state: State, obs: Array, key: Array) -> Array:
        return generator.policy(state.ppo, obs, key)

    return Agent(init, act, observe, update, policy)
