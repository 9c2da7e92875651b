"""The baselines on CoinGrid: each algorithm by name, trained on a task, on a demonstrator's inferred reward, or on demonstrations alone.

A trained policy is a directory like a trained model's: a checkpoint whose manifest says which algorithm it is and in which setting it was
trained. The true task is what the environment pays, and for imitators, who are not paid, what they are judged by.
"""

import dataclasses
import functools
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from psiphi import checkpoint, configs, gpi, replay
from psiphi.agents import ALGORITHMS, algorithm_of, bc, gail, ppo, rewarded, sqil
from psiphi.agents.bc import BCConfig
from psiphi.agents.dqn import DQNConfig
from psiphi.agents.gail import GAILConfig
from psiphi.agents.ppo import PPOConfig
from psiphi.agents.sqil import SQILConfig
from psiphi.configs import Count, Number, Positive
from psiphi.envs import coingrid
from psiphi.envs.coingrid import CoinGridConfig
from psiphi.errors import UserError
from psiphi.experiments import coingrid as experiment
from psiphi.experiments import models
from psiphi.loops import scan
from psiphi.loops.evaluate import rollout_returns
from psiphi.model import Model
from psiphi.nets import ActionNet
from psiphi.types import Agent, Demonstration, Demos, EnvSpec, Metrics, Pace

Name = Literal["dqn", "bc", "sqil", "gail", "ppo"]
Config = DQNConfig | BCConfig | SQILConfig | GAILConfig | PPOConfig

KIND = "psiphi policy"
"""How a policy's manifest calls itself."""


# --- The algorithms ------------------------------------------------------------------------------------------------------


class Learner(NamedTuple):
    """An algorithm on CoinGrid."""

    default: Callable[[], Any]
    """Its config."""
    num_envs: int = 8
    """Environments side by side that suit it."""


LEARNERS: dict[str, Learner] = {
    "dqn": Learner(lambda: DQNConfig(torso="egocentric")),
    "bc": Learner(lambda: BCConfig(torso="egocentric")),
    "sqil": Learner(lambda: SQILConfig(dqn=dataclasses.replace(sqil.default_dqn(), torso="egocentric"))),
    "gail": Learner(
        lambda: GAILConfig(torso="egocentric", ppo=dataclasses.replace(gail.default_ppo(), torso="egocentric", temperature=1.0)),
        num_envs=32,
    ),
    "ppo": Learner(lambda: PPOConfig(torso="egocentric", temperature=1.0), num_envs=16),
}
"""The baselines by the name they have on the command line."""


# --- A setting -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Setting:
    """A CoinGrid experiment with a baseline, up to the trained policy."""

    agent: Any
    """The algorithm's config."""
    world: CoinGridConfig = field(default_factory=CoinGridConfig)
    """The board."""
    task: str = "R+G"
    """What the environment pays, and what the policy is judged by: signed colours such as R-G, or three weights such as 1,-1,0."""
    steps: Count = 50_000
    """Environment steps, random ones at the start included; rounded up to whole rollouts. The schedules of the rate are as long. BC takes
    none: there `updates` says for how long."""
    updates: Count = 4_000
    """Updates of BC."""
    num_envs: Count = 8
    """Environments side by side."""
    updates_per_rollout: Count = 1
    """Updates after each rollout: of 1 step in each environment for DQN and SQIL, of the config's `rollout_length` for PPO and GAIL."""
    prefill_steps: Number = 1_024
    """Steps before the first update, for those who replay."""
    demonstrators: tuple[tuple[float, float, float], ...] = (experiment.RED, experiment.GREEN)
    """What each demonstrator wants: a weight per colour. The learner is never told."""
    episodes: Count = 3_000
    """Demonstrated episodes per demonstrator."""
    temperature: Positive = 0.02
    """Of the demonstrators' Boltzmann policies, in units of reward."""
    pooled: bool = False
    """Whether the learner is told who demonstrated what, or takes all for one demonstrator."""
    reward_from: str | None = None
    """A trained model: the learner is paid what it inferred for `demonstrator`, and not by the environment."""
    demonstrator: Number = 0
    """Whose inferred reward that is, counted from 0."""
    init_from: str | None = None
    """A policy trained by BC from which PPO or GAIL starts, that of `demonstrator`."""
    evaluate_every: Count = 2_048
    """Environment steps between two evaluations; of BC: updates."""
    evaluate_episodes: Count = 128
    """Episodes of each evaluation."""

    def __post_init__(self):
        configs.check(self)
        models.task(self.task)


class Trained(NamedTuple):
    """A trained policy and what it cost."""

    net: ActionNet
    env_steps: int
    wall_s: float
    rows: list[dict[str, Any]]


def default(name: Name) -> Setting:
    """The algorithm as it works best on CoinGrid."""
    learner = LEARNERS[name]
    return Setting(agent=learner.default(), num_envs=learner.num_envs, updates_per_rollout=2 if name == "dqn" else 1)


def name_of(config: Any) -> str:
    """The algorithm whose config this is."""
    return algorithm_of(config).name


def needs_demonstrations(setting: Setting) -> bool:
    return algorithm_of(setting.agent).watches(setting.agent)


def demonstrations(setting: Setting, seed: int, gamma: float = 0.9) -> Demos:
    """The demonstrations of a seed: those that ITD is given, too."""
    like = experiment.Setting(
        world=setting.world, demonstrators=setting.demonstrators, episodes=setting.episodes, temperature=setting.temperature
    )
    like = models.changed(like, {"itd.gamma": gamma})
    demos = experiment.demonstrations(like, seed).demos
    return pool(demos) if setting.pooled else demos


def pool(demos: Demos) -> Demos:
    """All demonstrators as one, their steps one after the other."""

    def joined(x: Array) -> Array:
        return jnp.concatenate([x[k, :count] for k, count in enumerate(np.asarray(demos.count))])[None]

    return Demos(Demonstration(*map(joined, demos.steps)), jnp.sum(demos.count, keepdims=True))


def loop_of(setting: Setting, seed: int) -> scan.LoopConfig:
    """How many iterations, between which evaluations."""
    algorithm = algorithm_of(setting.agent)
    length, envs = algorithm.rollout_length(setting.agent), setting.num_envs
    if not algorithm.acts:
        return scan.LoopConfig(iterations=setting.updates, chunk=min(setting.evaluate_every, setting.updates), seed=seed)
    per_rollout = length * envs
    prefill = setting.prefill_steps if algorithm.replays else 0
    iterations = max(-(-(setting.steps - prefill) // per_rollout), 1)
    return scan.LoopConfig(
        iterations=iterations,
        chunk=min(max(round(setting.evaluate_every / per_rollout), 1), iterations),
        num_envs=envs,
        rollout_length=length,
        updates_per_rollout=setting.updates_per_rollout,
        prefill_steps=prefill,
        seed=seed,
    )


def pace_of(setting: Setting) -> Pace:
    """Schedules as long as the run, and a replay as wide as the loop."""
    loop = loop_of(setting, 0)
    return Pace(loop.num_envs, loop.iterations * loop.updates_per_rollout)


# --- Training ------------------------------------------------------------------------------------------------------------


def make_agent(setting: Setting, spec: EnvSpec, model: Model | None = None, cloned: ActionNet | None = None) -> Agent:
    """The algorithm, started from a cloned policy and paid by a model, if these are given."""
    agents = 1 if setting.pooled else len(setting.demonstrators)
    agent = algorithm_of(setting.agent).make(setting.agent, spec, agents, pace_of(setting))
    if cloned is not None:
        agent = started_from(name_of(setting.agent), agent, cloned)
    return agent if model is None else rewarded.rewarded(agent, rewarded.inferred(setting.demonstrator), model)


def started_from(name: str, agent: Agent, cloned: ActionNet) -> Agent:
    """The agent with the torso and head of a cloned policy where its own would be untrained."""

    def init(key: Array, demos: Demos | None) -> Any:
        state = agent.init(key, demos)
        if name == "gail":
            return state._replace(ppo=state.ppo._replace(net=ppo.from_cloned(state.ppo.net, cloned)))
        return state._replace(net=ppo.from_cloned(state.net, cloned))

    return agent._replace(init=init)


def evaluation(setting: Setting, agent: Agent) -> Callable[[Any, Array], Metrics]:
    """What is measured between chunks: the normalised return on the task; of BC, of each policy on what its demonstrator wants."""
    if isinstance(setting.agent, BCConfig) and not setting.pooled:
        return functools.partial(_cloned_returns, setting)
    weights = models.task(setting.task)
    env = coingrid.make(setting.world, weights)

    def evaluate(state: Any, key: Array) -> Metrics:
        got = rollout_returns(env, functools.partial(agent.policy, state), key, setting.evaluate_episodes, setting.world.max_steps)
        return {"normalised_return": jnp.mean(coingrid.normalise(setting.world, weights, got["returns"]))}

    return evaluate


def _cloned_returns(setting: Setting, state: bc.State, key: Array) -> Metrics:
    net = bc.deployed(setting.agent, state)
    return {
        f"normalised_return/{coingrid.task_name(weights)}": jnp.mean(
            coingrid.normalise(setting.world, weights, returns(setting, bc.of_demonstrator(net, k), weights, 0.0, key))
        )
        for k, weights in enumerate(setting.demonstrators)
    }


def returns(setting: Setting, net: ActionNet, weights: tuple[float, ...] | Array, temperature: float, key: Array) -> Array:
    """Undiscounted returns of a policy on a task, one per episode."""
    env = coingrid.make(setting.world, jnp.asarray(weights))

    def policy(obs: Array, act_key: Array) -> Array:
        return gpi.draw(net(obs), act_key, temperature)

    return rollout_returns(env, policy, key, setting.evaluate_episodes, setting.world.max_steps)["returns"]


@functools.partial(jax.jit, static_argnames=("world", "episodes", "temperature"))
def _judged(world: CoinGridConfig, net: ActionNet, weights: Array, key: Array, *, episodes: int, temperature: float) -> Array:
    like = Setting(agent=None, world=world, evaluate_episodes=episodes)
    return returns(like, net, weights, temperature, key)


def judged(setting: Setting, net: ActionNet, weights: tuple[float, ...], key: Array, episodes: int) -> np.ndarray:
    """The same, compiled, in the way that the algorithm's policies are judged."""
    temperature = algorithm_of(setting.agent).judged_at(setting.agent)
    return np.asarray(_judged(setting.world, net, jnp.asarray(weights), key, episodes=episodes, temperature=temperature))


def train(
    setting: Setting,
    seed: int,
    *,
    out: Path | None = None,
    progress: bool = True,
    model: Model | None = None,
    demos: Demos | None = None,
    checkpoint_every_s: float = 30.0,
) -> Trained:
    """Train, or continue; `model` and `demos` take the place of those that the setting names, for who has them already."""
    started = time.monotonic()
    check(setting)
    env = coingrid.make(setting.world, models.task(setting.task))
    if demos is None and needs_demonstrations(setting):
        demos = demonstrations(setting, seed)
    if demos is not None:
        replay.check_demos(demos, env.spec, getattr(setting.agent, "demonstrator", None))
    if model is None and setting.reward_from is not None:
        model = paid_by(setting, Path(setting.reward_from))
    cloned = None if setting.init_from is None else cloned_policy(setting, Path(setting.init_from))
    agent = make_agent(setting, env.spec, model, cloned)
    loop = loop_of(setting, seed)
    offline = not algorithm_of(setting.agent).acts
    result = scan.run(
        None if offline else env,
        agent,
        demos,
        loop,
        out=out,
        evaluate=evaluation(setting, agent),
        settings={"algorithm": name_of(setting.agent), "setting": dataclasses.asdict(setting)},
        progress=progress,
        checkpoint_every_s=checkpoint_every_s,
    )
    state = result.agent() if model is None else result.agent().agent
    net = algorithm_of(setting.agent).deployed(setting.agent, state)
    return Trained(net, 0 if offline else loop.env_steps(loop.iterations), time.monotonic() - started, result.rows)


def check(setting: Setting) -> None:
    """Refuse what would silently not be done."""
    name = name_of(setting.agent)
    if setting.reward_from is not None and not algorithm_of(setting.agent).paid(setting.agent):
        raise UserError(f"{name} is not paid, so it has no use for the reward of {setting.reward_from}.")
    if setting.init_from is not None and name not in ("ppo", "gail"):
        raise UserError(f"{name} cannot start from a cloned policy; ppo and gail can.")


def paid_by(setting: Setting, path: Path) -> Model:
    """The model whose inferred reward is to be paid."""
    loaded = models.load(path)
    known = len(loaded.setting.demonstrators)
    if not 0 <= setting.demonstrator < known:
        raise UserError(f"{path} knows demonstrators 0 to {known - 1}, but the reward of {setting.demonstrator} is asked for.")
    found, expected = coingrid.spec(loaded.setting.world).obs_shape, coingrid.spec(setting.world).obs_shape
    if found != expected:
        raise UserError(f"{path} reads observations of shape {found}, but the environment's have shape {expected}.")
    return loaded.model


# --- On disk -------------------------------------------------------------------------------------------------------------


class Policy(NamedTuple):
    """A trained policy and where it comes from."""

    net: ActionNet
    setting: Setting
    algorithm: str
    env: str
    seed: int


def save(directory: Path, trained: Trained, setting: Setting, env: str, seed: int) -> None:
    """Write a policy directory, in place of one that is there."""
    meta = {
        "kind": KIND,
        "algorithm": name_of(setting.agent),
        "env": env,
        "seed": seed,
        "setting": dataclasses.asdict(setting),
        "env_steps": trained.env_steps,
        "wall_s": round(trained.wall_s, 3),
    }
    checkpoint.save(directory, trained.net, meta=meta)


def load(path: Path) -> Policy:
    """Read a policy directory, or the one inside a run directory."""
    directory = models.directory_of(path)
    meta = checkpoint.read_meta(directory)
    if meta.get("kind") != KIND or str(meta.get("algorithm")) not in LEARNERS:
        raise UserError(f"{directory} is a checkpoint but not a policy that `psiphi train {'|'.join(LEARNERS)}` left.")
    algorithm = ALGORITHMS[meta["algorithm"]]
    written = meta.get("setting")
    if not isinstance(written, dict) or not isinstance(meta.get("env"), str) or not isinstance(meta.get("seed"), int):
        raise UserError(f"{directory} is damaged: its manifest does not say how the policy was trained.")
    agent = models.from_json(algorithm.config, written.get("agent"), f"{directory}: setting.agent")
    where = {"sqil": "agent.dqn", "gail": "agent.ppo"}.get(meta["algorithm"], "agent")
    rest = {name: value for name, value in models.with_run_facts(written, where).items() if name != "agent"}
    setting = dataclasses.replace(models.from_json(_Rest, rest, f"{directory}: setting").complete(agent))
    spec, agents = coingrid.spec(setting.world), 1 if setting.pooled else len(setting.demonstrators)
    like = jax.eval_shape(lambda key: algorithm.net(agent, spec, agents, key), jax.random.key(0))
    return Policy(checkpoint.load(directory, like), setting, meta["algorithm"], meta["env"], meta["seed"])


@dataclass(frozen=True)
class _Rest(Setting):
    """A setting whose algorithm's config is read by itself."""

    agent: None = None

    def complete(self, agent: Any) -> Setting:
        return Setting(**{field.name: getattr(self, field.name) for field in dataclasses.fields(Setting)} | {"agent": agent})


def cloned_policy(setting: Setting, path: Path) -> ActionNet:
    """One demonstrator's policy out of what BC left."""
    policy = load(path)
    if policy.algorithm != "bc":
        raise UserError(f"{path} was trained by {policy.algorithm}, but init_from expects what bc left.")
    known = 1 if policy.setting.pooled else len(policy.setting.demonstrators)
    if not 0 <= setting.demonstrator < known:
        raise UserError(f"{path} has cloned demonstrators 0 to {known - 1}, but {setting.demonstrator} is asked for.")
    return bc.of_demonstrator(policy.net, setting.demonstrator)


def evaluate(policy: Policy, seed: int, episodes: int) -> dict[str, Any]:
    """How a policy does: on its task, or, cloned, each on what its demonstrator wants. The seed draws the boards."""
    setting, key = policy.setting, jax.random.fold_in(jax.random.key(seed), 3)
    if policy.algorithm == "bc":
        tasks = {coingrid.task_name(weights): weights for weights in setting.demonstrators}
        nets = [bc.of_demonstrator(policy.net, 0 if setting.pooled else k) for k in range(len(tasks))]
    else:
        tasks, nets = {setting.task: models.task(setting.task)}, [policy.net]
    found = {}
    for (name, weights), net in zip(tasks.items(), nets, strict=True):
        got = judged(setting, net, weights, key, episodes)
        normalised = coingrid.normalise(setting.world, weights, jnp.asarray(got))
        found[name] = {"return": float(got.mean()), "normalised_return": float(jnp.mean(normalised))}
    return {"algorithm": policy.algorithm, "episodes": episodes, "tasks": found}
