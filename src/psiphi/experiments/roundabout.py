"""Table 1 on Roundabout: who does best what the demonstrators wanted, having watched them and seen no reward?

A demonstrator is one of the world's exits: a driver in the ego's place that leaves there. What it wants is the world in which the ego must
leave there, and that is how everybody is judged.
"""

import functools
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from psiphi import gpi, training
from psiphi import model as models
from psiphi.agents import bc, dqn, itd
from psiphi.agents.bc import BCConfig
from psiphi.agents.dqn import DQNConfig
from psiphi.agents.gail import GAILConfig
from psiphi.agents.itd import ITDConfig
from psiphi.agents.ppo import PPOConfig
from psiphi.agents.sqil import SQILConfig
from psiphi.agents.together import TogetherConfig, learning, on_both, pay, side_by_side
from psiphi.envs import roundabout
from psiphi.envs.roundabout import RoundaboutConfig
from psiphi.loops import runs, scan
from psiphi.loops.evaluate import Policy, rollout_returns
from psiphi.model import Model
from psiphi.nets import ActionNet
from psiphi.training import Run
from psiphi.types import Agent, Demos, Env, Pace, TimeStep, Transition
from psiphi.worlds.roundabout import record, toward

# --- Rows ----------------------------------------------------------------------------------------------------------------


def _ppo() -> PPOConfig:
    return PPOConfig(torso="crowd", torso_hidden=(128, 128), gamma=0.97, rollout_length=64, epochs=8, minibatches=16, mirror=False)


def _sqil() -> SQILConfig:
    """One step, and no random actions beside the softmax's."""
    inner = DQNConfig(
        torso="crowd", torso_hidden=(128, 128), head_hidden=(128,), gamma=0.97, n_step=1, double=False, learning_rate=1e-3, cosine=True,
        batch=128, replay_size=200_000, epsilon_start=0.0, epsilon_end=0.0, ema=0.01, mirror=False,
    )  # fmt: skip
    return SQILConfig(dqn=inner)


def _dqn() -> DQNConfig:
    """Half of SQIL's batch: it is the half of its own steps."""
    return replace(_sqil().dqn, torso="crowd-norm", double=True, batch=64, epsilon_start=0.3, epsilon_end=0.02, epsilon_steps=100_000)


def _gail() -> GAILConfig:
    return GAILConfig(ppo=_ppo(), torso="crowd", torso_hidden=(128, 128), mirror=False)


def _bc() -> BCConfig:
    return BCConfig(torso="crowd", torso_hidden=(128, 128), learning_rate=1e-2, batch=128, mirror=False)


def _itd() -> ITDConfig:
    """No car demonstrates how to leave the road: without `nonnegative` a learner leaves it at once, as that ends what it is charged. Pay is
    dense here: with the sparse prior too little of it is left to learn from. A cumulant for each of the world's two exits and no more:
    without that prior, with six more that no preference asks for, the successor features diverged."""
    return ITDConfig(
        num_cumulants=2, gamma=0.97, torso="crowd-norm", torso_hidden=(128, 128), phi_hidden=(128, 64), psi_hidden=(64,),
        learning_rate=3e-3, batch=128, cross_batch=128, bc_weight=1.0, sparsity=0.0, nonnegative=1.0, ema=0.03, mirror=False,
        replay_size=80_000,
    )  # fmt: skip


def _fields(agent: Any, **fields: Any) -> dict[str, Any]:
    wide = {
        "demos": "recorded",
        "episodes": 500,
        "num_envs": 32,
        "prefill_steps": 4_000,
        "pooled": False,
        "evaluate_every": 0,
        "updates": 0,
    }
    return {**wide, "agent": agent, **fields}


ROWS: dict[str, tuple[str, Callable[[], dict[str, Any]]]] = {
    "dqn": ("ppo", lambda: _fields(_ppo(), steps=500_000)),
    "itd": (
        "itd-dqn",
        lambda: _fields(TogetherConfig(itd=_itd(), dqn=_dqn(), itd_updates=2), steps=200_000, prefill_steps=0, updates_per_rollout=3),
    ),
    "bc": ("bc", lambda: _fields(_bc(), steps=0, updates=8_000)),
    "sqil": ("sqil", lambda: _fields(_sqil(), steps=100_000, updates_per_rollout=3)),
    "gail": ("gail", lambda: _fields(_gail(), steps=250_000)),
}
"""By the table's names, the algorithm and fields of its run: "dqn" is there the learner on the true reward, which is PPO here; a DQN needs
many more steps without demonstrations to replay."""


# --- IDM, who demonstrates -----------------------------------------------------------------------------------------------


def idm_returns(config: RoundaboutConfig, seed: int, episodes: int) -> dict[str, float]:
    """What the rule by which the demonstrators drive earns, by exit: it learned nothing."""
    return {exit: float(np.mean(_idm(config, jnp.asarray(k), judging_key(seed), episodes))) for k, exit in enumerate(config.exits)}


@functools.partial(jax.jit, static_argnames=("config", "episodes"))
def _idm(config: RoundaboutConfig, k: Array, key: Array, episodes: int) -> Array:
    """What it would do is read from the state, not guessed from the observation."""
    env = toward(config, k)

    def step(state: roundabout.State, action: Array, step_key: Array) -> tuple[roundabout.State, TimeStep]:
        del action
        return env.step(state, roundabout.expert(config, state), step_key)

    def nothing(obs: Array, act_key: Array) -> Array:
        del act_key
        return jnp.zeros(obs.shape[0], jnp.int32)

    return rollout_returns(Env(env.spec, env.reset, step), nothing, key, episodes, config.max_steps)["returns"]


def judging_key(seed: int) -> Array:
    """Of the traffic in which everybody is judged: the same for all methods of a seed."""
    return jax.random.fold_in(jax.random.key(seed), 3)


# --- ITD, and learners on what it infers ---------------------------------------------------------------------------------
# The algorithm `itd-dqn` in a world of each demonstrator's own: its learner drives toward that one's exit. As the N environments of a run
# are of one task, the loop is written out here, in one compiled program for all exits.


class Together(NamedTuple):
    """ITD, and of each demonstrator ``[K]`` the DQN on its inferred reward, with the environments that this one drives in."""

    itd: itd.State
    learners: dqn.State
    env: Any
    obs: Array


def together(run: Run, judged: int, **kept: Any) -> tuple[list[dict[str, float]], int, float, float, Model]:
    """Mean returns of the learners on the inferred rewards and of ITD's own policies, by exit; environment steps; seconds of training, and
    those that processes before this one had put down; what was inferred. `kept` says where and how often that is done, as in
    `runs.by_stretches`."""
    started = time.monotonic()
    exits, rounds = run.demonstrators, training.loop_of(run).iterations
    demos = record(run.world, exits, run.episodes, run.seed).demos
    key = jax.random.key(run.seed)

    def stretch(now: Together, done: int) -> tuple[Together, int, dict[str, Any]]:
        length = min(training.CHUNK, rounds - done)
        return jax.block_until_ready(_go_on(run, key, demos, now, jnp.asarray(done), jnp.asarray(length))), done + length, {}

    end, _, earlier_s = runs.by_stretches({"run": asdict(run)}, functools.partial(_begin, run, key, demos), stretch, rounds, **kept)
    state, nets = end.itd, jax.vmap(functools.partial(dqn.deployed, run.agent.dqn))(end.learners)
    train_s = time.monotonic() - started + earlier_s
    config = run.agent.itd
    net = itd.deployed(config, state)
    w = itd.preferences(config, net.w)
    model = Model(net, w, jax.jit(models.measure_units)(net, w, demos))
    key = judging_key(run.seed)
    returns = [
        {exit: float(np.mean(_net(run.world, bc.of_demonstrator(nets, k), jnp.asarray(k), key, judged))) for k, exit in enumerate(exits)},
        own_returns(run, model, judged),
    ]
    loop = training.loop_of(run)
    return returns, loop.env_steps(loop.iterations) * len(exits), train_s, earlier_s, model


def own_returns(run: Run, model: Model, judged: int) -> dict[str, float]:
    """Mean returns of ITD's own policies in the run's world, by exit."""
    exits, key = run.demonstrators, judging_key(run.seed)
    return {exit: float(np.mean(_own(run.world, model, jnp.asarray(k), key, judged))) for k, exit in enumerate(exits)}


class _Learners(NamedTuple):
    """Who infers, who learns on what it infers, and how; their schedules are as long as the run."""

    inference: Agent
    learner: Agent
    pace: Pace


def _learners(run: Run) -> _Learners:
    config, loop, spec, agents = run.agent, training.loop_of(run), roundabout.spec(run.world), len(run.demonstrators)
    pace = Pace(loop.num_envs, loop.iterations * loop.updates_per_rollout)
    inference = itd.make(config.itd, spec, agents, Pace(loop.num_envs * agents, loop.iterations * config.itd_updates))
    return _Learners(inference, dqn.make(config.dqn, spec, 0, pace), pace)


@functools.partial(jax.jit, static_argnames="run")
def _begin(run: Run, key: Array, demos: Demos) -> Together:
    loop, agents, (inference, learner, _) = training.loop_of(run), jnp.arange(len(run.demonstrators)), _learners(run)
    itd_key, learner_key, reset_key = jax.random.split(jax.random.fold_in(key, loop.iterations), 3)
    learners = jax.vmap(lambda key: learner.init(key, None))(jax.random.split(learner_key, len(agents)))
    reset = lambda k, keys: jax.vmap(toward(run.world, k).reset)(keys)  # noqa: E731
    env, obs = jax.vmap(reset)(agents, jax.random.split(reset_key, (len(agents), loop.num_envs)))
    return Together(inference.init(itd_key, demos), learners, env, obs)


@functools.partial(jax.jit, static_argnames="run", donate_argnames="now")
def _go_on(run: Run, key: Array, demos: Demos, now: Together, done: Array, rounds: Array) -> Together:
    """So many rounds after those that are done."""
    config, world, loop = run.agent, run.world, training.loop_of(run)
    agents, (inference, learner, pace) = jnp.arange(len(run.demonstrators)), _learners(run)
    how = learning(config.dqn, roundabout.spec(world), pace)

    def drive(k: Array, agent: dqn.State, env: Any, obs: Array, key: Array) -> tuple[Any, Array, Transition]:
        return scan.collect(toward(world, k), lambda o, key: learner.act(agent, o, key), env, obs, key, loop.rollout_length)

    def iterate(i: int | Array, now: Together) -> Together:
        drive_key, itd_key, learner_key = jax.random.split(jax.random.fold_in(key, i), 3)
        env, obs, rollout = jax.vmap(drive)(agents, now.learners, now.env, now.obs, jax.random.split(drive_key, len(agents)))
        seen = inference.observe(now.itd, side_by_side(rollout))
        state, _ = jax.lax.scan(inference.update, seen, jax.random.split(itd_key, config.itd_updates))

        def study(k: Array, agent: dqn.State, rollout: Transition, key: Array) -> dqn.State:
            wanted = functools.partial(pay, config.itd, state, k)
            shown = jax.tree.map(lambda x: x[k][None], demos)
            update = lambda agent, key: on_both(how, agent, shown, wanted, key)  # noqa: E731
            return jax.lax.scan(update, learner.observe(agent, rollout), jax.random.split(key, loop.updates_per_rollout))[0]

        learners = jax.vmap(study)(agents, now.learners, rollout, jax.random.split(learner_key, len(agents)))
        return Together(state, learners, env, obs)

    return jax.lax.fori_loop(done, done + rounds, iterate, now)


def _returns(config: RoundaboutConfig, policy: Policy, k: Array, key: Array, episodes: int) -> Array:
    return rollout_returns(toward(config, k), policy, key, episodes, config.max_steps)["returns"]


@functools.partial(jax.jit, static_argnames=("config", "episodes"))
def _net(config: RoundaboutConfig, net: ActionNet, k: Array, key: Array, episodes: int) -> Array:
    return _returns(config, lambda obs, act_key: gpi.draw(net(obs), act_key, 0.0), k, key, episodes)


@functools.partial(jax.jit, static_argnames=("config", "episodes"))
def _own(config: RoundaboutConfig, model: Model, k: Array, key: Array, episodes: int) -> Array:
    def policy(obs: Array, act_key: Array) -> Array:
        del act_key
        return jnp.argmax(models.imitate(model, obs, jnp.full(obs.shape[0], k)), axis=-1)

    return _returns(config, policy, k, key, episodes)
