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
from psiphi.api import coverage, judging
from psiphi.api.known import Known, check_fits, likeness
from psiphi.demos import Demonstrations
from psiphi.errors import UserError
from psiphi.loops import divergence
from psiphi.model import Model
from psiphi.nets import Committee, Net, PsiPhiNet, head_parts, with_head_parts
from psiphi.progress import shown
from psiphi.types import Demos, Pace

CHUNK = 200

HELD_OUT = 0.1
"""The share of the newcomers' episodes that is kept for the verdict on them."""

Heads = tuple[Any, ...]
"""What is learned of the newcomers, of every member of a committee: the parts of `nets.head_parts`, with a leading axis for members."""


class State(NamedTuple):
    heads: Heads
    target: Heads
    optimiser: Any


def joined(known: Known, config: ITDConfig, demos: Demonstrations, *, updates: int, seed: int, progress: bool) -> Known:
    """The same knowledge with the agents of these demonstrations added, and with a verdict on them beside the one that there is."""
    check_new(known, demos)
    demos = demos.named_as(known.actions)
    shown, held = judging.shown_and_held(demos, HELD_OUT, seed)
    steps, old = shown.to_demos(), len(known.agents)
    inner = newcomer_config(config, known.beta)
    heads = learn(inner, known, steps, updates, jax.random.key(seed), progress)
    net = _whole(jax.vmap(with_head_parts)(_members(known.model.net), heads), known.model.net)
    theirs = Model(net, net.w, jax.jit(models.measure_units)(net, net.w, steps))
    everybody = _together(known.model, theirs, old)
    covered = coverage.measure(theirs, steps, demos.agents)
    more = len(demos.agents)
    judged = _judged(known, config, theirs, covered, shown, held, seed)
    lapse = () if net.lapse is None else (*known.lapse, *np.asarray(jax.nn.sigmoid(net.lapse)).tolist())
    return dataclasses.replace(
        known,
        model=everybody,
        agents=(*known.agents, *demos.agents),
        likeness=_extended(known.likeness, likeness(_demonstrators(everybody), steps)),
        coverage=dataclasses.replace(known.coverage, share={**known.coverage.share, **covered.share}),
        caution=(*known.caution, *(judged.caution or (0.0,) * more)) if known.caution else (),
        forms=(*(known.forms or (known.form,) * old), *(judged.forms or (known.form,) * more)),
        lapse=lapse,
        verdict=None if known.verdict is None or judged.verdict is None else known.verdict.joined(judged.verdict),
        likeness_range=None,
    )


def _judged(
    known: Known, config: ITDConfig, theirs: Model, covered: Any, shown: Demonstrations, held: Demonstrations | None, seed: int
) -> Known:
    """What is known of the newcomers alone, with its verdict."""
    lapse = () if theirs.net.lapse is None else tuple(np.asarray(jax.nn.sigmoid(theirs.net.lapse)).tolist())
    alone = dataclasses.replace(
        known, model=theirs, agents=shown.agents, coverage=covered, lapse=lapse, caution=(), forms=(), verdict=None,
        likeness=likeness(theirs, shown.to_demos()), likeness_range=None,
    )  # fmt: skip
    members = [theirs]
    if isinstance(theirs.net, Committee):
        members = [Model(theirs.net.member(r), theirs.net.nets.w[r], theirs.units) for r in range(theirs.net.nets.w.shape[0])]
    return judging.judged(alone, members, shown, held, config.cumulants, {}, seed=seed)


def _members(net: Net) -> PsiPhiNet:
    """Networks with a leading axis, one of them if there is no committee."""
    return net.nets if isinstance(net, Committee) else jax.tree.map(lambda x: x[None], net)


def _whole(nets: PsiPhiNet, like: Net) -> Net:
    return Committee(nets) if isinstance(like, Committee) else jax.tree.map(lambda x: x[0], nets)


def check_new(known: Known, demos: Demonstrations) -> None:
    """Refuse who is known, and who could not be told from the others."""
    doors.demonstrations(demos, Demonstrations)
    familiar = [agent for agent in demos.agents if agent in known.agents]
    if familiar:
        raise UserError(f"Agent {familiar[0]!r} is known already; expected demonstrations of new agents only.")
    if len({type(agent) for agent in (*known.agents, *demos.agents)}) > 1:
        raise UserError(f"The agents' ids would be of two kinds, such as {known.agents[0]!r} and {demos.agents[0]!r}; use one kind.")
    check_fits(demos, known.lens.shape, known.num_actions)


def newcomer_config(config: ITDConfig, beta: float) -> ITDConfig:
    """ITD with preferences of any length. They are multiplied by beta while they are learned: what they are weighed by counts less.

    Where cumulants are given, preferences have any length anyway.
    """
    if itd.has_given(config):
        return config
    return dataclasses.replace(
        config, beta=0.0, axis_preferences=False, alternate=False, sparsity=0.0, nonnegative=0.0, cross_policy_on="pooled",
        anchor=config.anchor / beta**2, l1_weight=config.l1_weight / beta,
    )  # fmt: skip


def learn(config: ITDConfig, known: Known, demos: Demos, updates: int, key: Array, progress: bool) -> Heads:
    """The newcomers' heads on the frozen networks, after so many updates."""
    optimiser = itd.make_optimiser(config, Pace(updates=updates))
    nets = _members(known.model.net)
    state = jax.vmap(lambda net: _start(net, known.model.w, demos.count.shape[0], len(known.agents), optimiser, config))(nets)
    scale = 1.0 if itd.has_given(config) else known.beta
    chunk = jax.jit(jax.vmap(partial(_chunk, config, optimiser, scale), in_axes=(0, 0, None, None, None)))
    done = 0
    with shown("updates", done=0, total=updates, enabled=progress) as display:
        while done < updates:
            length = min(CHUNK, updates - done)
            state, loss = chunk(state, nets, demos, jax.random.fold_in(key, done), length)
            done += length
            divergence.check(done, {"loss": loss}, state)
            display.advance(done, {"loss": float(jnp.mean(loss))})
    return state.target


def _start(net: PsiPhiNet, w: Array, newcomers: int, agents: int, optimiser: Any, config: ITDConfig) -> State:
    """A newcomer starts with the policy of some demonstrator and wants a little of all that the demonstrators want."""
    mixture = jnp.sum(w[:agents], axis=0)
    mixture = mixture / agents if itd.has_given(config) else mixture / (jnp.linalg.norm(mixture) + 1e-6)
    some = eqx.tree_at(lambda n: n.w, net, jnp.broadcast_to(mixture, (agents, mixture.size)))
    heads = jax.tree.map(lambda x: x[jnp.arange(newcomers) % agents], head_parts(some))
    return State(heads, heads, optim.start(optimiser, heads))


def _with_heads(net: PsiPhiNet, heads: Heads, scale: float) -> PsiPhiNet:
    whole = with_head_parts(net, heads)
    return eqx.tree_at(lambda n: n.w, whole, scale * whole.w)


def _chunk(
    config: ITDConfig, optimiser: Any, scale: float, state: State, net: PsiPhiNet, demos: Demos, key: Array, length: Array | int
) -> tuple[State, Array]:
    """So many updates, and the last one's loss."""

    def update(i: Array, so_far: tuple[State, Array]) -> tuple[State, Array]:
        state = so_far[0]
        demo = replay.sample_demonstrations(demos, jax.random.fold_in(key, i), config.batch)
        cross, weight = itd.pooled(demo, config.cross_batch)
        target = _with_heads(net, state.target, scale)

        def loss(heads: Heads) -> tuple[Array, Any]:
            return itd.joint_loss(_with_heads(net, heads, scale), target, demo, cross, weight, jnp.ones(()), config)

        (value, _), gradients = jax.value_and_grad(loss, has_aux=True)(state.heads)
        heads, optimiser_state = optim.step(optimiser, gradients, state.optimiser, state.heads)
        return State(heads, optim.follow(state.target, heads, config.ema or 0.02), optimiser_state), value

    return jax.lax.fori_loop(0, length, update, (state, jnp.zeros(())))


def _together(model: Model, theirs: Model, agents: int) -> Model:
    """The newcomers after the demonstrators and before the ego, if there is one."""

    def inserted(old: Array, new: Array) -> Array:
        return jnp.concatenate([old[:agents], new, old[agents:]])

    def both(old: PsiPhiNet, new: PsiPhiNet) -> PsiPhiNet:
        return with_head_parts(old, jax.tree.map(inserted, head_parts(old), head_parts(new)))

    nets = jax.vmap(both)(_members(model.net), _members(theirs.net))
    return Model(_whole(nets, model.net), inserted(model.w, theirs.w), inserted(model.units, theirs.units))


def _demonstrators(model: Model) -> Model:
    """Without the ego."""
    agents = model.units.shape[0]
    return model._replace(w=model.w[:agents])


def _extended(old: np.ndarray, new: np.ndarray) -> np.ndarray:
    """What was known of the old agents stays; of the others, what the newcomers' steps say."""
    result = new.copy()
    result[: len(old), : len(old)] = old
    return result
