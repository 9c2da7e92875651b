"""A new driving goal after one episode: table 2 on Highway. What is a learner worth on goals that were not rewarded before?

A goal is a target speed and a lane; all goals have the same traffic and the same starts. One compiled program serves all goals, as a goal
is a number in it.
"""

import dataclasses
import functools
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from psiphi import training
from psiphi.agents import dqn, itd
from psiphi.agents import psiphi as psiphi_agent
from psiphi.api import trained as answers
from psiphi.cumulants import Given
from psiphi.envs import highway
from psiphi.envs.highway import HighwayConfig
from psiphi.envs.traffic import lanes as lane
from psiphi.envs.traffic import roads
from psiphi.experiments.paper import FEW, SOME
from psiphi.loops import scan
from psiphi.loops.evaluate import Policy, rollout_returns
from psiphi.loops.few_shot import FewShotConfig, episode
from psiphi.model import Model
from psiphi.tasks import Statistics, no_experience
from psiphi.training import Run, Trained
from psiphi.types import Env, EnvSpec, Pace, TimeStep
from psiphi.worlds.highway import goal_of

SPEEDS = 20.0, 32.0
"""Target speeds of imagined goals, in m/s."""
OFFSET = 0.4
"""What they are paid less in each step, as learners on Highway take off their rewards."""
SHOTS = (0, FEW, SOME)
"""Rewarded episodes of a new goal before it is judged; 0 is the first episode itself, or no reward at all."""
JUDGED = 256
"""Episodes on which a policy is judged on each goal."""
REPETITIONS = 16
"""How often a model meets each goal."""

Returns = dict[int | None, list[float]]
"""Mean return on each goal, by the number of rewarded episodes; None where nothing is adapted."""


class Met(NamedTuple):
    """What a row found, and what it cost."""

    returns: Returns
    env_steps: int = 0
    train_s: float = 0.0
    earlier_s: float = 0.0
    """Of the seconds of training, those of processes before this one."""


def wishes(config: HighwayConfig, goals: tuple[str, ...]) -> Float[Array, "G 2"]:
    """Speeds and lanes of goals by their names, such as speed=26,lane=1."""
    found = [goal_of(config, name) for name in goals]
    return jnp.array([(goal.speed[0], goal.lane) for goal in found], jnp.float32)


# --- Cumulants that span speed and lane ----------------------------------------------------------------------------------


def features(lanes: int) -> Callable[[Array, Array, Array, Array], Array]:
    """What can matter to a driver, read off the state that a step leads to: how near each lane is, the speed and its square, the place and
    its square, whether a car is close ahead, whether the drive ended, and a constant."""

    def told(obs: Array, action: Array, next_obs: Array, terminated: Array) -> Array:
        del obs, action
        own, others = next_obs[:, 0], next_obs[:, 1:]
        place, speed = own[:, 1] * 2 / lane.WIDTH, own[:, 2]  # in lanes from the middle of the road; in 10 m/s from 25
        near = jnp.maximum(1 - jnp.abs(place[:, None] - (jnp.arange(lanes) - (lanes - 1) / 2)), 0)
        ahead = (others[..., 0] > 0) & (jnp.abs(others[..., 1]) < lane.WIDTH / 4)
        close = jnp.any(ahead & (others[..., 0] * 50 < 20), axis=1)
        across = place / lanes
        rest = jnp.stack([speed, speed**2, across, across**2, close, terminated, jnp.ones_like(place)], axis=1)
        return jnp.concatenate([near, rest], axis=1).astype(jnp.float32)

    return told


def given(config: HighwayConfig) -> Given:
    return Given(jnp.ones(config.lanes + 7), features(config.lanes), True)


def imagined(config: HighwayConfig, count: int, key: Array) -> Float[Array, "M d"]:
    """Preferences over the cumulants above for goals drawn at random: a speed out of each of as many parts of `SPEEDS` as there are goals
    for a lane. The best is paid 1 a step, less what learners of driving take off every reward."""
    rank, part = jnp.arange(count) % config.lanes, jnp.arange(count) // config.lanes
    low, high = SPEEDS
    speed = low + (high - low) * (part + jax.random.uniform(key, (count,))) / (part[-1] + 1)
    target = (speed - 25) / 10  # as the observation has it
    near = 0.5 * jnp.exp(-jnp.abs(jnp.arange(config.lanes) - rank[:, None]))
    none = jnp.zeros(count)
    rest = [1.5 * target, none - 0.75, none, none, none - 0.3, none - 1, 0.5 - OFFSET - 0.75 * target**2]
    return jnp.concatenate([near, jnp.stack(rest, axis=1)], axis=1)


def trained_on(run: Run, **kept: Any) -> Trained:
    """A training, with the cumulants above where the run's are given; `kept` says where and how often it is put down."""
    inner = getattr(run.agent, "itd", run.agent)
    if not (isinstance(inner, itd.ITDConfig) and itd.has_given(inner)):
        return training.train(run, progress=False, **kept)

    def make(spec: EnvSpec, agents: int, pace: Pace) -> Any:
        def initial(key: Array, heads: int) -> Any:
            net = itd.initial_net(inner, spec, heads, key, given(run.world))
            wanted = imagined(run.world, inner.imagined, jax.random.fold_in(key, 1))
            return eqx.tree_at(lambda n: n.w, net, net.w.at[heads - inner.imagined :].set(wanted)) if inner.imagined else net

        return (itd.make if run.agent is inner else psiphi_agent.make)(run.agent, spec, agents, pace, initial)

    return training.train(run, make=make, progress=False, **kept)


# --- Rows ----------------------------------------------------------------------------------------------------------------


def meet(
    run: Run, goals: tuple[str, ...], few: FewShotConfig, changes: Mapping[str, Any], episodes: int, repetitions: int, **kept: Any
) -> Met:
    """The row of a run: of a model, of a DQN on each goal, or, with `changes`, of a DQN that moves to each goal from its own.

    `kept` says where and how often a model is put down; a DQN's row is one compiled program, which starts over.
    """
    if run.algorithm == "dqn":
        return moved(run, goals, changes, episodes) if changes else on_each(run, goals, episodes)
    left = trained_on(run, **kept)
    key = jax.random.fold_in(jax.random.key(run.seed), 3)
    returns = adapted(left.run.world, answers.model_of(left), goals, few, key, repetitions)
    return Met(returns, left.env_steps, left.wall_s, left.earlier_s)


def adapted(config: HighwayConfig, model: Model, goals: tuple[str, ...], few: FewShotConfig, key: Array, repetitions: int) -> Returns:
    """Infer each goal from the rewards of some episodes, without a gradient."""
    keys = jax.random.split(key, len(goals))
    found = _adapted(model, wishes(config, goals), keys, world=config, few=few, repetitions=repetitions)
    return {shots: np.asarray(returns).tolist() for shots, returns in zip(SHOTS, found, strict=True)}


@functools.partial(jax.jit, static_argnames=("world", "few", "repetitions"))
def _adapted(
    model: Model, goals: Array, keys: Array, *, world: HighwayConfig, few: FewShotConfig, repetitions: int
) -> tuple[Array, Array, Array]:
    """The first episode, in which the goal is inferred after every step, the one after it, and the one after `SOME` episodes."""
    hope = 0.0 if few.inference == "least-squares" else few.kappa

    def one(wish: Array, key: Array) -> tuple[Array, Array, Array]:
        first_key, more_key = jax.random.split(key)
        drive = functools.partial(episode, highway.make(world, wish), model, few, max_steps=world.max_steps)
        nothing = jax.vmap(lambda _: no_experience(model.w.shape[1]))(jnp.arange(repetitions))
        first, known = drive(nothing, first_key, learn_inside=True, kappa=hope)

        def another(known: Statistics, episode_key: Array) -> tuple[Statistics, Array]:
            returns, after = drive(known, episode_key, learn_inside=False, kappa=0.0)
            return after, returns.mean()

        _, later = jax.lax.scan(another, known, jax.random.split(more_key, SOME))
        return first.mean(), later[FEW - 1], later[SOME - 1]

    return jax.vmap(one)(goals, keys)


def on_each(run: Run, goals: tuple[str, ...], episodes: int) -> Met:
    """A DQN on each goal, from scratch, with the rewards of all of its steps."""
    started, run = time.monotonic(), training.completed(run)
    loop = training.loop_of(run)
    key = jax.random.key(run.seed)
    returns = jax.jit(lambda w: jax.lax.map(lambda wish: _learned(run, wish, key, episodes)[1], w))(wishes(run.world, goals))
    return Met({None: np.asarray(returns).tolist()}, len(goals) * loop.env_steps(loop.iterations), time.monotonic() - started)


def moved(run: Run, goals: tuple[str, ...], changes: Mapping[str, Any], episodes: int) -> Met:
    """A DQN that learned its own goal, on each new one: as it is, and after it went on learning there for some episodes."""
    started, run = time.monotonic(), training.completed(run)
    own = jnp.array([sum(run.world.ego.speed) / 2, run.world.ego.lane], jnp.float32)
    key, loop = jax.random.key(run.seed), training.loop_of(run)
    net = jax.jit(lambda: _learned(run, own, key, episodes)[0])()
    found: Returns = {}
    for shots in SHOTS:
        few = {"prefill_steps": 4 * run.num_envs, "steps": shots * run.world.max_steps}
        there = dataclasses.replace(training.changed(run, changes), **few) if shots else run

        def one(wish: Array, net: Any = net, there: Run = there, shots: int = shots) -> Array:
            if not shots:
                return _judged(run, wish, lambda obs, _: jnp.argmax(net(obs), axis=-1), key, episodes)
            return _learned(there, wish, key, episodes, net)[1]

        found[shots] = np.asarray(jax.jit(lambda w, one=one: jax.lax.map(one, w))(wishes(run.world, goals))).tolist()
    return Met(found, loop.env_steps(loop.iterations), time.monotonic() - started)


def _learned(run: Run, wish: Array, key: Array, episodes: int, net: Any = None) -> tuple[Any, Array]:
    """A DQN after its steps on one goal, from scratch or from `net`, and its mean return there."""
    env, loop = highway.make(run.world, wish), training.loop_of(run)
    agent = dqn.make(run.agent, env.spec, 0, Pace(run.num_envs, loop.iterations * loop.updates_per_rollout))
    if net is not None:
        blank = agent.init
        agent = agent._replace(init=lambda key, demos: blank(key, demos)._replace(net=net, target=net))
    carry = scan.begin(env, agent, loop, key, None)
    carry = jax.lax.fori_loop(0, loop.iterations, lambda _, now: scan.iterate(env, agent, loop, now)[0], carry)
    state = carry.agent
    return dqn.deployed(run.agent, state), _judged(run, wish, functools.partial(agent.policy, state), key, episodes)


def _judged(run: Run, wish: Array, policy: Policy, key: Array, episodes: int) -> Array:
    got = rollout_returns(highway.make(run.world, wish), policy, judging_key(key), episodes, run.world.max_steps)
    return jnp.mean(got["returns"])


def judging_key(key: Array) -> Array:
    return jax.random.fold_in(key, 3)


def best_demonstrator(config: HighwayConfig, goals: tuple[str, ...], seed: int, episodes: int) -> Met:
    """IDM in the ego's place with the one of the others' goals that earns most on each new goal."""
    shown = jnp.array([(goal.speed[0], goal.lane) for goal in config.goals], jnp.float32)
    returns = _driven(shown, wishes(config, goals), jax.random.key(seed), config=config, episodes=episodes)
    return Met({None: np.asarray(returns).max(axis=0).tolist()})


@functools.partial(jax.jit, static_argnames=("config", "episodes"))
def _driven(shown: Array, goals: Array, key: Array, *, config: HighwayConfig, episodes: int) -> Float[Array, "K G"]:
    """What IDM on the way to each of `shown` earns on each of `goals`."""
    road = roads.highway(config.lanes, highway.ROAD_LENGTH)

    def one(wish: Array) -> Array:
        env = highway.make(config, wish)

        def step(state: tuple[Any, Array], action: Array, step_key: Array) -> tuple[Any, TimeStep]:
            del action  # what IDM would do is part of the state
            after, reached = env.step(*state, step_key)
            paid = jax.vmap(lambda goal: highway.reward(config, road, after.cars, reached.discount == 0, goal))(goals)
            return (after, highway.expert(config, after)), reached._replace(extras={"features": paid})

        def reset(reset_key: Array) -> tuple[Any, Array]:
            state, obs = env.reset(reset_key)
            return (state, highway.expert(config, state)), obs

        driven = Env(env.spec, reset, step)
        got = rollout_returns(driven, lambda obs, _: jnp.zeros(obs.shape[0], jnp.int32), judging_key(key), episodes, config.max_steps)
        return jnp.mean(got["features"], axis=0)

    return jax.lax.map(one, shown)
