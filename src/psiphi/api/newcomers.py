"""Getting to know a further demonstrator while phi, and all that is known of the others, stays as it is.

Only a head of successor features and a preference vector are learned for each newcomer, by ITD's own losses. The length of its
preferences is learned too: a newcomer may be more or less decided than the others.
"""

import dataclasses
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from psiphi import doors, optim, replay
from psiphi import model as models
from psiphi.agents import itd
from psiphi.agents.itd import ITDConfig
from psiphi.api import coverage
from psiphi.api.known import Known, check_fits, likeness
from psiphi.demos import Demonstrations
from psiphi.errors import UserError
from psiphi.loops import divergence
from psiphi.model import Model
from psiphi.nets import MLP, PsiPhiNet
from psiphi.progress import shown
from psiphi.types import Demos

CHUNK = 200


class Heads(NamedTuple):
    """What is learned of the newcomers."""

    psi: MLP
    w: Array


class State(NamedTuple):
    heads: Heads
    target: Heads
    optimiser: Any


def joined(known: Known, config: ITDConfig, demos: Demonstrations, *, seed: int, progress: bool) -> Known:
    """The same knowledge with the agents of these demonstrations added."""
    check_new(known, demos)
    steps, old = demos.to_demos(), len(known.agents)
    heads = learn(newcomer_config(config, known.beta), known, steps, jax.random.key(seed), progress)
    net = _with_heads(known.model.net, heads)
    theirs = Model(net, heads.w, jax.jit(models.measure_units)(net, heads.w, steps))
    everybody = _together(known.model, theirs, old)
    covered = coverage.measure(theirs, steps, demos.agents)
    return dataclasses.replace(
        known,
        model=everybody,
        agents=(*known.agents, *demos.agents),
        likeness=_extended(known.likeness, likeness(_demonstrators(everybody), steps)),
        coverage=dataclasses.replace(known.coverage, share={**known.coverage.share, **covered.share}),
    )


def check_new(known: Known, demos: Demonstrations) -> None:
    """Refuse who is known, and who could not be told from the others."""
    doors.demonstrations(demos, Demonstrations)
    familiar = [agent for agent in demos.agents if agent in known.agents]
    if familiar:
        raise UserError(f"Agent {familiar[0]!r} is known already; expected were demonstrations of new agents only.")
    if len({type(agent) for agent in (*known.agents, *demos.agents)}) > 1:
        raise UserError(f"The agents' ids would be of two kinds, such as {known.agents[0]!r} and {demos.agents[0]!r}; use one kind.")
    check_fits(demos, known.lens.shape, known.num_actions)


def newcomer_config(config: ITDConfig, beta: float) -> ITDConfig:
    """ITD with preferences of any length. They are multiplied by beta while they are learned: what they are weighed by counts less."""
    return dataclasses.replace(
        config, beta=0.0, axis_preferences=False, alternate=False, sparsity=0.0, nonnegative=0.0, cross_policy_on="pooled",
        anchor=config.anchor / beta**2, l1_weight=config.l1_weight / beta,
    )  # fmt: skip


def learn(config: ITDConfig, known: Known, demos: Demos, key: Array, progress: bool) -> Heads:
    """The newcomers' heads on the frozen network."""
    optimiser = itd.make_optimiser(config)
    newcomers = demos.count.shape[0]
    state = _start(known, newcomers, optimiser)
    chunk = jax.jit(partial(_chunk, config, optimiser, known.beta))
    done = 0
    with shown("updates", done=0, total=config.updates, enabled=progress) as display:
        while done < config.updates:
            length = min(CHUNK, config.updates - done)
            state, loss = chunk(state, known.model.net, demos, jax.random.fold_in(key, done), length)
            done += length
            divergence.check(done, {"loss": loss[None]}, state)
            display.advance(done, {"loss": float(loss)})
    return state.target


def _start(known: Known, newcomers: int, optimiser: Any) -> State:
    """A newcomer starts with the policy of some demonstrator and wants a little of all that the demonstrators want."""
    agents = len(known.agents)
    psi = jax.tree.map(lambda x: x[jnp.arange(newcomers) % agents], known.model.net.psi_heads)
    mixture = jnp.sum(known.model.w[:agents], axis=0)
    heads = Heads(psi, jnp.broadcast_to(mixture / (jnp.linalg.norm(mixture) + 1e-6), (newcomers, mixture.size)))
    return State(heads, heads, optim.start(optimiser, heads))


def _with_heads(net: PsiPhiNet, heads: Heads, beta: float = 1.0) -> PsiPhiNet:
    return eqx.tree_at(lambda n: (n.psi_heads, n.w), net, (heads.psi, beta * heads.w))


def _chunk(
    config: ITDConfig, optimiser: Any, beta: float, state: State, net: PsiPhiNet, demos: Demos, key: Array, length: Array | int
) -> tuple[State, Array]:
    """So many updates, and the last one's loss."""

    def update(i: Array, so_far: tuple[State, Array]) -> tuple[State, Array]:
        state = so_far[0]
        demo = replay.sample_demonstrations(demos, jax.random.fold_in(key, i), config.batch)
        cross, weight = itd.pooled(demo, config.cross_batch)
        target = _with_heads(net, state.target, beta)

        def loss(heads: Heads) -> tuple[Array, Any]:
            return itd.joint_loss(_with_heads(net, heads, beta), target, demo, cross, weight, jnp.zeros((), jnp.int32), config)

        (value, _), gradients = jax.value_and_grad(loss, has_aux=True)(state.heads)
        heads, optimiser_state = optim.step(optimiser, gradients, state.optimiser, state.heads)
        return State(heads, optim.follow(state.target, heads, config.ema or 0.02), optimiser_state), value

    return jax.lax.fori_loop(0, length, update, (state, jnp.zeros(())))


def _together(model: Model, theirs: Model, agents: int) -> Model:
    """The newcomers after the demonstrators and before the ego, if there is one."""

    def inserted(old: Array, new: Array) -> Array:
        return jnp.concatenate([old[:agents], new, old[agents:]])

    heads = jax.tree.map(inserted, (model.net.psi_heads, model.net.w), (theirs.net.psi_heads, theirs.net.w))
    net = eqx.tree_at(lambda n: (n.psi_heads, n.w), model.net, heads)
    return Model(net, inserted(model.w, theirs.w), inserted(model.units, theirs.units))


def _demonstrators(model: Model) -> Model:
    """Without the ego."""
    agents = model.units.shape[0]
    return model._replace(w=model.w[:agents])


def _extended(old: np.ndarray, new: np.ndarray) -> np.ndarray:
    """What was known of the old agents stays; of the others, what the newcomers' steps say."""
    result = new.copy()
    result[: len(old), : len(old)] = old
    return result
