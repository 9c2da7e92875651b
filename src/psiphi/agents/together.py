"""ITD and learners on what it infers, learning together: one DQN per demonstrator, paid what ITD thinks now that this one is paid.

ITD makes no steps of its own but sees all of the learners'. That matters: where ITD has looked, none can earn more by its reward than by
doing as the demonstrators do; elsewhere its reward means nothing, and learners find where that is. The world's rewards are never read.
The paper's table 1 trains the two one after the other; this is our way.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array
from jaxtyping import Float

from psiphi import configs, replay, spaces
from psiphi.agents import dqn, itd, sqil
from psiphi.agents.dqn import DQNConfig
from psiphi.agents.itd import ITDConfig
from psiphi.configs import Count
from psiphi.errors import UserError
from psiphi.nets import ActionNet, PsiPhiNet
from psiphi.replay import Experience
from psiphi.types import Agent, Demos, EnvSpec, Metrics, Pace, Transition

Wanted = Callable[[Transition], Array]
"""``wanted(steps[B]) -> reward[B]``"""


@dataclass(frozen=True)
class TogetherConfig:
    """ITD's config and that of every learner."""

    itd: ITDConfig = field(default_factory=ITDConfig)
    """What infers. With `nonnegative` no learner is paid for ending an episode in a way that was not demonstrated."""
    dqn: DQNConfig = field(default_factory=DQNConfig)
    """The learners. Their `batch` is the half of own steps; as many demonstrated steps join it."""
    itd_updates: Count = 2
    """ITD's steps of learning in an update."""
    dqn_updates: Count = 1
    """The learners' steps of learning in an update, after ITD's."""

    def __post_init__(self):
        configs.check(self)


SPACE = {
    **spaces.inside("itd", {name: itd.SPACE[name] for name in ("learning_rate", "bc_weight", "itd_weight", "cross_policy")}),
    **spaces.inside("dqn", {name: dqn.SPACE[name] for name in ("learning_rate", "ema")}),
}
"""Where `psiphi tune` looks."""


class State(NamedTuple):
    """ITD's state without its demonstrations, the learners' states ``[K]``, and the demonstrations, which all of them learn from."""

    itd: itd.State
    learners: dqn.State
    demos: Demos | None


# --- What the learners are paid ------------------------------------------------------------------------------------------


def pay(config: ITDConfig, state: Any, k: Array | int, steps: Transition) -> Float[Array, " B"]:
    """What ITD thinks now that demonstrator k is paid for steps ``[B]``."""
    net = itd.deployed(config, state)
    goes_on = (steps.discount > 0).astype(jnp.float32)
    phi = net.cumulants(steps.obs, steps.action, steps.next_obs, goes_on, net.features(steps.obs))
    return phi @ itd.preferences(config, net.w)[k]


class Learning(NamedTuple):
    """How a learner learns: its config, its optimiser and its memory."""

    config: DQNConfig
    spec: EnvSpec
    optimiser: optax.GradientTransformation
    experience: Experience


def learning(config: DQNConfig, spec: EnvSpec, pace: Pace) -> Learning:
    return Learning(config, spec, dqn.make_optimiser(config, pace), dqn.make_experience(config, pace, spec))


def on_both(how: Learning, state: dqn.State, demos: Demos, wanted: Wanted, key: Array) -> tuple[dqn.State, Metrics]:
    """One update of a DQN on as many demonstrated steps as own ones, all of them paid what is `wanted` now."""
    own_key, demo_key = jax.random.split(key)
    config = how.config
    own = dqn.sample(config, how.spec, how.experience, state, own_key)
    demo = replay.sample_pool(demos, demo_key, config.batch)
    demo = replay.mirror(how.spec, demo, jax.random.fold_in(demo_key, 1)) if config.mirror else demo
    shown = sqil.as_transitions(demo, config.gamma)
    batch = jax.tree.map(lambda x, y: jnp.concatenate([x, y.astype(x.dtype)]), own, shown)
    paid = batch._replace(reward=wanted(batch))
    return dqn.learn(config, how.optimiser, state, paid, dqn.double_backup if config.double else dqn.hard_backup)


# --- Environments dealt to the learners ----------------------------------------------------------------------------------


def dealt(rollout: Any, learners: int) -> Any:
    """A rollout of all environments ``[T, K * N]`` as one of each learner's ``[K, T, N]``, in blocks."""
    return jax.tree.map(lambda x: jnp.moveaxis(x.reshape(x.shape[0], learners, -1, *x.shape[2:]), 1, 0), rollout)


def side_by_side(rollout: Any) -> Any:
    """The other way round: ``[K, T, N]`` to ``[T, K * N]``."""
    return jax.tree.map(lambda x: jnp.moveaxis(x, 0, 1).reshape(x.shape[1], -1, *x.shape[3:]), rollout)


def check(config: TogetherConfig, num_demonstrators: int, pace: Pace) -> None:
    """Refuse what cannot be done."""
    if not num_demonstrators:
        raise UserError("There is a learner for each demonstrator, but there are 0 demonstrators; expected at least 1.")
    if pace.num_envs % num_demonstrators:
        raise UserError(
            f"num_envs is {pace.num_envs}, expected a multiple of {num_demonstrators}: every demonstrator's learner gets as many."
        )
    if config.itd.imagined:
        raise UserError(f"itd.imagined is {config.itd.imagined}, expected 0: there is a learner for each demonstrator and for no one else.")
    unused = {"n_step": (config.dqn.n_step, 1), "bc_weight": (config.dqn.bc_weight, 0.0)}
    for name, (found, expected) in unused.items():
        if found != expected:
            raise UserError(f"The learners' {name} is {found}, expected {expected}: inferred rewards are paid step by step.")


# --- The agent -----------------------------------------------------------------------------------------------------------


def initial_nets(config: TogetherConfig, spec: EnvSpec, num_demonstrators: int, key: Array) -> tuple[PsiPhiNet, ActionNet]:
    """What is deployed, untrained."""
    itd_key, dqn_key = jax.random.split(key)
    learners = jax.vmap(lambda k: dqn.initial_net(config.dqn, spec, 0, k))(jax.random.split(dqn_key, num_demonstrators))
    return itd.initial_net(config.itd, spec, num_demonstrators, itd_key), learners


def deployed(config: TogetherConfig, state: State) -> tuple[PsiPhiNet, ActionNet]:
    """ITD's network, and the learners' networks, stacked: `bc.of_demonstrator` gives one."""
    return itd.deployed(config.itd, state.itd), jax.vmap(partial(dqn.deployed, config.dqn))(state.learners)


def imitates(config: TogetherConfig, state: State, k: int) -> Callable[[Array, Array], Array]:
    """The policy of demonstrator k's learner in a training state."""
    net = jax.tree.map(lambda x: x[k], deployed(config, state)[1])

    def policy(obs: Array, key: Array) -> Array:
        del key
        return jnp.argmax(net(obs), axis=-1)

    return policy


def make(config: TogetherConfig, spec: EnvSpec, num_demonstrators: int, pace: Pace) -> Agent:
    """ITD with a DQN per demonstrator as one agent. The environments are dealt to the learners in equal blocks; judged, in turn."""
    check(config, num_demonstrators, pace)
    whose = jnp.arange(num_demonstrators)
    inner = Pace(pace.num_envs // num_demonstrators, pace.updates * config.dqn_updates)
    inference = itd.make(config.itd, spec, num_demonstrators, pace._replace(updates=pace.updates * config.itd_updates))
    learner, how = dqn.make(config.dqn, spec, 0, inner), learning(config.dqn, spec, inner)

    def init(key: Array, demos: Demos | None) -> State:
        itd_key, dqn_key = jax.random.split(key)
        checked = replay.check_shapes(demos, spec, num_demonstrators=num_demonstrators)
        learners = jax.vmap(lambda k: learner.init(k, None))(jax.random.split(dqn_key, num_demonstrators))
        return State(_without_demos(inference.init(itd_key, checked)), learners, checked)

    def act(state: State, obs: Array, key: Array) -> Array:
        blocks = obs.reshape(num_demonstrators, -1, *obs.shape[1:])
        return jax.vmap(learner.act)(state.learners, blocks, jax.random.split(key, num_demonstrators)).reshape(-1)

    def observe(state: State, rollout: Transition) -> State:
        unpaid = rollout._replace(reward=jnp.zeros_like(rollout.reward))
        learners = jax.vmap(learner.observe)(state.learners, dealt(unpaid, num_demonstrators))
        return state._replace(itd=inference.observe(state.itd, unpaid), learners=learners)

    def update(state: State, key: Array) -> tuple[State, Metrics]:
        itd_key, dqn_key = jax.random.split(key)
        assert state.demos is not None
        before = state.itd._replace(demos=state.demos)
        after, inferred = jax.lax.scan(inference.update, before, jax.random.split(itd_key, config.itd_updates))

        def study(k: Array, agent: dqn.State, demos: Demos, study_key: Array) -> tuple[dqn.State, Metrics]:
            def once(agent: dqn.State, once_key: Array) -> tuple[dqn.State, Metrics]:
                return on_both(how, agent, demos, partial(pay, config.itd, after, k), once_key)

            return jax.lax.scan(once, agent, jax.random.split(study_key, config.dqn_updates))

        shown = jax.tree.map(lambda x: x[:, None], state.demos._replace(background=None))
        learners, learned = jax.vmap(study)(whose, state.learners, shown, jax.random.split(dqn_key, num_demonstrators))
        metrics = inferred | {f"learner_{name}": value for name, value in learned.items()}
        return State(_without_demos(after), learners, state.demos), jax.tree.map(jnp.mean, metrics)

    def policy(state: State, obs: Array, key: Array) -> Array:
        del key
        every = jax.vmap(lambda net: net(obs))(deployed(config, state)[1])  # [K, N, A]
        place = jnp.arange(obs.shape[0])
        return jnp.argmax(every[place % num_demonstrators, place], axis=-1)

    return Agent(init, act, observe, update, policy)


def _without_demos(state: itd.State) -> itd.State:
    """The demonstrations are kept once, where `watching` finds them."""
    return state._replace(demos=None)  # pyright: ignore[reportArgumentType]
