"""Table 1 on Roundabout: who does best what the demonstrators wanted, having watched them and seen no reward?

A demonstrator is one of the world's exits: a driver in the ego's place that leaves there. What it wants is the world in which the ego must
leave there, and that is how everybody is judged. Which exit it is, is an argument of the compiled programs and no constant in them, so that
one program serves all demonstrators.
"""

import functools
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from psiphi import configs, gpi
from psiphi import model as models
from psiphi.agents import algorithm_of, bc, dqn, itd, together
from psiphi.agents.bc import BCConfig
from psiphi.agents.dqn import DQNConfig
from psiphi.agents.gail import GAILConfig
from psiphi.agents.itd import ITDConfig
from psiphi.agents.ppo import PPOConfig
from psiphi.agents.sqil import SQILConfig
from psiphi.configs import Count, Number
from psiphi.envs import roundabout
from psiphi.envs.roundabout import EXITS, RoundaboutConfig
from psiphi.errors import UserError
from psiphi.experiments import coingrid as experiment
from psiphi.experiments.models import changed
from psiphi.loops import scan
from psiphi.loops.evaluate import Policy, rollout_returns
from psiphi.model import Model
from psiphi.nets import ActionNet
from psiphi.types import Demonstration, Demos, Env, Pace, TimeStep, Transition

# --- The world of each demonstrator --------------------------------------------------------------------------------------


def toward(world: RoundaboutConfig, k: Array | int, *, others: RoundaboutConfig | None = None) -> Env:
    """The world in which the ego must leave where demonstrator k does: the same traffic, another route, another reward.

    With `others`, that is the traffic, and the ego must leave at exit k of `world`.
    """
    return roundabout.make(others or world, jnp.array([EXITS.index(exit) for exit in world.exits])[k])


# --- What was demonstrated -----------------------------------------------------------------------------------------------


def record(world: RoundaboutConfig, key: Array, episodes: int) -> Demos:
    """So many episodes of each demonstrator: IDM in the ego's place, on its way to that one's exit, by the ego's actions."""
    shown = [jax.device_get(_driven(world, jnp.asarray(k), jax.random.fold_in(key, k), episodes)) for k in range(len(world.exits))]
    counts = [int(real.sum()) for real, _ in shown]
    room = max(counts)
    steps = [jax.tree.map(lambda x, real=real: np.resize(x[real], (room, *x.shape[1:])), some) for real, some in shown]
    return Demos(jax.tree.map(lambda *x: jnp.asarray(np.stack(x)), *steps), jnp.array(counts, jnp.int32))


class _Driving(NamedTuple):
    """An episode under way; `running` falls once and for ever."""

    state: roundabout.State
    obs: Array
    running: Array


@functools.partial(jax.jit, static_argnames=("world", "episodes"))
def _driven(world: RoundaboutConfig, k: Array, key: Array, episodes: int) -> tuple[Array, Demonstration]:
    """All steps, episode after episode, and which of them are real: those until the end, without a crash, which is nobody's intention."""
    env = toward(world, k)

    def step(now: _Driving, _: None) -> tuple[_Driving, tuple[Array, Demonstration]]:
        state, obs, running = now
        action = roundabout.expert(world, state)
        after, reached = env.step(state, action, key)  # nothing in a step is random
        shown = Demonstration(obs, action, reached.discount, reached.obs, roundabout.expert(world, after))
        real = running & ((reached.discount > 0) | reached.extras["arrived"])
        return _Driving(after, reached.obs, running & ~reached.last), (real, shown)

    def episode(reset_key: Array) -> tuple[Array, Demonstration]:
        return jax.lax.scan(step, _Driving(*env.reset(reset_key), jnp.ones((), bool)), length=world.max_steps)[1]

    shown = jax.vmap(episode)(jax.random.split(key, episodes))
    return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), shown)


# --- Settings ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Inference:
    """ITD beside the learners on what it infers. It makes no steps of its own, but looks at all of theirs: where ITD has looked, nobody can
    earn more by its reward than who does as the demonstrators do; elsewhere its reward means nothing, and learners find where that is."""

    itd: ITDConfig
    """What infers."""
    updates_per_rollout: Count = 2
    """Its updates after each step of the learners."""

    def __post_init__(self):
        configs.check(self)


@dataclass(frozen=True)
class Setting:
    """One row of the table."""

    agent: Any = None
    """The learner's config; None: nobody learns, IDM drives."""
    inference: Inference | None = None
    """What infers the reward by which the learner is paid; None: the learner is paid by the world, if it is paid at all."""
    world: RoundaboutConfig = field(default_factory=RoundaboutConfig)
    """The traffic, and what the ego is paid."""
    episodes: Count = 500
    """Demonstrated episodes of each demonstrator."""
    steps: Count = 500_000
    """Environment steps of the learner for each demonstrator, random ones at the start included."""
    prefill_steps: Number = 4_000
    """Steps before the first update, for those who replay."""
    updates_per_rollout: Count = 1
    """Updates after each rollout."""
    updates: Count = 8_000
    """Updates of BC, which takes no steps."""
    num_envs: Count = 32
    """Environments side by side."""
    judged: Count = 512
    """Episodes on which a policy is judged."""

    def __post_init__(self):
        configs.check(self)


def loop_of(setting: Setting) -> scan.LoopConfig:
    """How long to learn, and from how many environments."""
    algorithm = algorithm_of(setting.agent)
    length, envs = algorithm.rollout_length(setting.agent), setting.num_envs
    prefill = setting.prefill_steps if algorithm.replays else 0
    iterations = max(-(-(setting.steps - prefill) // (length * envs)), 1)
    return scan.LoopConfig(
        iterations=iterations,
        num_envs=envs,
        rollout_length=length,
        updates_per_rollout=setting.updates_per_rollout,
        prefill_steps=prefill,
    )


def pace_of(setting: Setting) -> Pace:
    """The learner's schedules are as long as the run."""
    loop = loop_of(setting)
    return Pace(loop.num_envs, loop.iterations * loop.updates_per_rollout)


def inference_pace(setting: Setting) -> Pace:
    """So are ITD's, which looks at the steps of all learners."""
    assert setting.inference is not None
    loop = loop_of(setting)
    return Pace(loop.num_envs * len(setting.world.exits), loop.iterations * setting.inference.updates_per_rollout)


def _ppo() -> PPOConfig:
    return PPOConfig(
        torso="crowd", torso_hidden=(128, 128), gamma=0.97, rollout_length=64, epochs=8, minibatches=16, mirror=False
    )  # fmt: skip


def _dqn() -> DQNConfig:
    """Half of SQIL's batch: it is the half of its own steps."""
    return replace(_sqil().dqn, torso="crowd-norm", double=True, batch=64, epsilon_start=0.3, epsilon_end=0.02, epsilon_steps=100_000)


def _sqil() -> SQILConfig:
    """One step, and no random actions beside the softmax's."""
    inner = DQNConfig(
        torso="crowd", torso_hidden=(128, 128), head_hidden=(128,), gamma=0.97, n_step=1, double=False, learning_rate=1e-3, cosine=True,
        batch=128, replay_size=200_000, epsilon_start=0.0, epsilon_end=0.0, ema=0.01, mirror=False,
    )  # fmt: skip
    return SQILConfig(dqn=inner)


def _gail() -> GAILConfig:
    return GAILConfig(ppo=_ppo(), torso="crowd", torso_hidden=(128, 128), mirror=False)


def _bc() -> BCConfig:
    return BCConfig(torso="crowd", torso_hidden=(128, 128), learning_rate=1e-2, batch=128, mirror=False)


def _itd() -> ITDConfig:
    """Nobody demonstrates how to leave the road: without `nonnegative` a learner leaves it at once, as that ends what it is charged. Pay is
    dense here: with the sparse prior too little of it is left to learn from. A cumulant for each of the world's two exits and no more:
    without that prior, with six more that no preference asks for, the successor features diverged."""
    return ITDConfig(
        num_cumulants=2, gamma=0.97, torso="crowd-norm", torso_hidden=(128, 128), phi_hidden=(128, 64), psi_hidden=(64,),
        learning_rate=3e-3, batch=128, cross_batch=128, bc_weight=1.0, sparsity=0.0, nonnegative=1.0, ema=0.03, mirror=False,
        replay_size=80_000,
    )  # fmt: skip


ROWS: dict[str, Callable[[], Setting]] = {
    "dqn": lambda: Setting(_ppo()),
    "itd": lambda: Setting(_dqn(), Inference(_itd()), steps=200_000, prefill_steps=0, updates_per_rollout=3),
    "bc": lambda: Setting(_bc()),
    "sqil": lambda: Setting(_sqil(), steps=100_000, updates_per_rollout=3),
    "gail": lambda: Setting(_gail(), steps=250_000),
    "idm": Setting,
}
"""By the table's names: "dqn" is there the learner on the true reward, which is PPO here; a DQN needs many more steps without
demonstrations to replay."""


def setting_of(algorithm: str, *, steps: int | None = None, episodes: int | None = None, updates: int | None = None) -> Setting:
    """A row, with less of something where that is asked for."""
    if algorithm not in ROWS:
        raise UserError(f"Roundabout has no row for {algorithm!r}; expected was one of {', '.join(ROWS)}.")
    setting = ROWS[algorithm]()
    given = {"steps": steps, "episodes": episodes} | ({"updates": updates} if algorithm == "bc" else {})
    return changed(setting, {name: value for name, value in given.items() if value is not None})


def saw(setting: Setting) -> list[str]:
    """Demonstrations, steps of its own, rewards: in words, for the report."""
    if setting.agent is None:
        return ["none: it is who demonstrates", "none", "none"]
    shown = f"{setting.episodes:,} episodes of each of {len(setting.world.exits)}" if needs_demonstrations(setting) else "none"
    if setting.inference is not None:
        return [shown, f"{setting.steps:,} for each reward, which ITD sees", "what ITD inferred"]
    if isinstance(setting.agent, BCConfig):
        return [shown, "none", "none"]
    return [shown, f"{setting.steps:,}", "none" if needs_demonstrations(setting) else "of its own task"]


# --- One policy for each demonstrator ------------------------------------------------------------------------------------


class Done(NamedTuple):
    """Mean returns by method and exit, and what they cost."""

    returns: dict[str, dict[str, float]]
    env_steps: int
    train_s: float


def imitate(setting: Setting, method: str, seed: int) -> Done:
    """One policy for what each demonstrator wants, judged by that."""
    started = time.monotonic()
    if setting.agent is None:
        return Done({method: _by_exit(setting, lambda k: _idm_returns(setting.world, k, judging_key(seed), setting.judged))}, 0, 0.0)
    demos = record(setting.world, demonstrations_key(seed), setting.episodes) if needs_demonstrations(setting) else None
    if setting.inference is not None:
        assert demos is not None
        return on_inferred(setting, demos, seed, started)
    if isinstance(setting.agent, BCConfig):
        assert demos is not None
        nets = clone(setting, demos, seed)
        train_s = time.monotonic() - started
        return Done({method: _by_exit(setting, lambda k: judge(setting, bc.of_demonstrator(nets, k), k, seed))}, 0, train_s)
    nets = [learn(setting, k, seed, demos) for k in range(len(setting.world.exits))]
    train_s = time.monotonic() - started
    return Done({method: _by_exit(setting, lambda k: judge(setting, nets[k], k, seed))}, steps_of(setting) * len(nets), train_s)


def on_inferred(setting: Setting, demos: Demos, seed: int, started: float) -> Done:
    """The learners on the inferred rewards, and ITD's own policies."""
    model, nets = infer(setting, demos, seed)
    train_s = time.monotonic() - started
    returns = {
        "itd": _by_exit(setting, lambda k: judge(setting, bc.of_demonstrator(nets, k), k, seed)),
        "itd-policy": _by_exit(setting, lambda k: _own_returns(setting.world, model, jnp.asarray(k), judging_key(seed), setting.judged)),
    }
    return Done(returns, steps_of(setting) * len(setting.world.exits), train_s)


def needs_demonstrations(setting: Setting) -> bool:
    return setting.inference is not None or algorithm_of(setting.agent).watches(setting.agent)


def steps_of(setting: Setting) -> int:
    """Environment steps of one training."""
    loop = loop_of(setting)
    return loop.env_steps(loop.iterations)


def demonstrations_key(seed: int) -> Array:
    return jax.random.fold_in(jax.random.key(seed), 1)


def judging_key(seed: int) -> Array:
    """Of the traffic in which everybody is judged: the same for all methods of a seed."""
    return jax.random.fold_in(jax.random.key(seed), 3)


def _by_exit(setting: Setting, returns: Callable[[int], Array]) -> dict[str, float]:
    return {exit: float(np.mean(returns(k))) for k, exit in enumerate(setting.world.exits)}


def learn(setting: Setting, k: int, seed: int, demos: Demos | None) -> ActionNet:
    """A policy for demonstrator k: from its demonstrations, or from what the world pays."""
    # An imitator of one demonstrator is given that one's steps and no number, so that one program serves all.
    mine = None if demos is None else jax.tree.map(lambda x: x[k : k + 1], demos)
    return jax.block_until_ready(_learn(setting, jnp.asarray(k), jax.random.key(seed), mine))


@functools.partial(jax.jit, static_argnames="setting")
def _learn(setting: Setting, k: Array, key: Array, demos: Demos | None) -> ActionNet:
    learner = algorithm_of(setting.agent)
    env, loop = toward(setting.world, k), loop_of(setting)
    agent = learner.make(setting.agent, env.spec, 1, pace_of(setting))

    def iterate(_: int | Array, carry: scan.Carry) -> scan.Carry:
        return scan.iterate(env, agent, loop, carry)[0]

    end = jax.lax.fori_loop(0, loop.iterations, iterate, scan.begin(env, agent, loop, key, demos)).agent
    return learner.deployed(setting.agent, end)


def clone(setting: Setting, demos: Demos, seed: int) -> ActionNet:
    """BC: a policy for each demonstrator, stacked."""
    loop = scan.LoopConfig(iterations=setting.updates, chunk=setting.updates, seed=seed)
    pace, world = Pace(updates=setting.updates), setting.world
    result = scan.run(None, bc.make(setting.agent, roundabout.spec(world), len(world.exits), pace), demos, loop, progress=False)
    return bc.deployed(setting.agent, result.agent())


# --- ITD, and learners on what it infers ---------------------------------------------------------------------------------


class Together(NamedTuple):
    """ITD, and of each demonstrator ``[K]`` the DQN on its inferred reward, with the environments that this one drives in."""

    itd: itd.State
    learners: dqn.State
    env: Any
    obs: Array


def infer(setting: Setting, demos: Demos, seed: int) -> tuple[Model, ActionNet]:
    """What each demonstrator wants, and a policy for each of them that has learned to get it, stacked."""
    assert setting.inference is not None
    state, nets = jax.block_until_ready(_infer(setting, jax.random.key(seed), demos))
    return experiment.to_model(setting.inference.itd, state, demos, len(setting.world.exits)), nets


@functools.partial(jax.jit, static_argnames="setting")
def _infer(setting: Setting, key: Array, demos: Demos) -> tuple[itd.State, ActionNet]:
    assert setting.inference is not None
    spec, loop, agents = roundabout.spec(setting.world), loop_of(setting), jnp.arange(len(setting.world.exits))
    config, updates = setting.inference.itd, setting.inference.updates_per_rollout
    pace = pace_of(setting)
    inference, learner = itd.make(config, spec, len(agents), inference_pace(setting)), dqn.make(setting.agent, spec, 0, pace)
    how = together.learning(setting.agent, spec, pace)

    def begin(key: Array) -> Together:
        itd_key, learner_key, reset_key = jax.random.split(key, 3)
        learners = jax.vmap(lambda key: learner.init(key, None))(jax.random.split(learner_key, len(agents)))
        reset = lambda k, keys: jax.vmap(toward(setting.world, k).reset)(keys)  # noqa: E731
        env, obs = jax.vmap(reset)(agents, jax.random.split(reset_key, (len(agents), loop.num_envs)))
        return Together(inference.init(itd_key, demos), learners, env, obs)

    def drive(k: Array, agent: dqn.State, env: Any, obs: Array, key: Array) -> tuple[Any, Array, Transition]:
        return scan.collect(toward(setting.world, k), lambda o, key: learner.act(agent, o, key), env, obs, key, loop.rollout_length)

    def iterate(i: int | Array, now: Together) -> Together:
        drive_key, itd_key, learner_key = jax.random.split(jax.random.fold_in(key, i), 3)
        env, obs, rollout = jax.vmap(drive)(agents, now.learners, now.env, now.obs, jax.random.split(drive_key, len(agents)))
        seen = inference.observe(now.itd, together.side_by_side(rollout))
        state, _ = jax.lax.scan(inference.update, seen, jax.random.split(itd_key, updates))

        def study(k: Array, agent: dqn.State, rollout: Transition, key: Array) -> dqn.State:
            wanted = functools.partial(together.pay, config, state, k)
            shown = jax.tree.map(lambda x: x[k][None], demos)
            update = lambda agent, key: (together.on_both(how, agent, shown, wanted, key)[0], None)  # noqa: E731
            return jax.lax.scan(update, learner.observe(agent, rollout), jax.random.split(key, loop.updates_per_rollout))[0]

        learners = jax.vmap(study)(agents, now.learners, rollout, jax.random.split(learner_key, len(agents)))
        return Together(state, learners, env, obs)

    end = jax.lax.fori_loop(0, loop.iterations, iterate, begin(jax.random.fold_in(key, loop.iterations)))
    return end.itd, jax.vmap(lambda state: dqn.deployed(setting.agent, state))(end.learners)


# --- How they are judged -------------------------------------------------------------------------------------------------


def judge(setting: Setting, net: ActionNet, k: int, seed: int) -> Array:
    """True returns of a policy in the world of demonstrator k, in the way that the algorithm's policies are judged."""
    temperature = algorithm_of(setting.agent).judged_at(setting.agent)
    return _net_returns(setting.world, net, jnp.asarray(k), judging_key(seed), setting.judged, temperature)


def _returns(world: RoundaboutConfig, policy: Policy, k: Array, key: Array, episodes: int) -> Array:
    return rollout_returns(toward(world, k), policy, key, episodes, world.max_steps)["returns"]


@functools.partial(jax.jit, static_argnames=("world", "episodes", "temperature"))
def _net_returns(world: RoundaboutConfig, net: ActionNet, k: Array, key: Array, episodes: int, temperature: float) -> Array:
    return _returns(world, lambda obs, act_key: gpi.draw(net(obs), act_key, temperature), k, key, episodes)


@functools.partial(jax.jit, static_argnames=("world", "episodes"))
def _own_returns(world: RoundaboutConfig, model: Model, k: Array, key: Array, episodes: int) -> Array:
    def policy(obs: Array, act_key: Array) -> Array:
        del act_key
        return jnp.argmax(models.imitate(model, obs, jnp.full(obs.shape[0], k)), axis=-1)

    return _returns(world, policy, k, key, episodes)


@functools.partial(jax.jit, static_argnames=("world", "episodes"))
def _idm_returns(world: RoundaboutConfig, k: Array, key: Array, episodes: int) -> Array:
    """What IDM earns: what it would do is read from the state, not guessed from the observation."""
    env = toward(world, k)

    def step(state: roundabout.State, action: Array, step_key: Array) -> tuple[roundabout.State, TimeStep]:
        del action
        return env.step(state, roundabout.expert(world, state), step_key)

    def nothing(obs: Array, act_key: Array) -> Array:
        del act_key
        return jnp.zeros(obs.shape[0], jnp.int32)

    return rollout_returns(Env(env.spec, env.reset, step), nothing, key, episodes, world.max_steps)["returns"]
