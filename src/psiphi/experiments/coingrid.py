"""CoinGrid from demonstrations to figures: record, train, and measure against the exact planner.

Nothing here reaches the learner but demonstrations (states, actions, who) and reward-free steps; the true coins are read only to judge.
"""

import functools
import sys
import time
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from psiphi import configs, stats
from psiphi import model as models
from psiphi.agents import itd, psiphi
from psiphi.agents.itd import ITDConfig
from psiphi.configs import Count, Number, Positive
from psiphi.envs import coingrid, coingrid_exact
from psiphi.envs.coingrid import CoinGridConfig
from psiphi.loops import scan
from psiphi.loops.few_shot import FewShotConfig, few_shot
from psiphi.model import Model
from psiphi.nets import PsiPhiNet
from psiphi.types import Agent, Demos, EnvSpec, Pace

RED, GREEN, YELLOW = (1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)


def default_itd() -> ITDConfig:
    return ITDConfig(torso="egocentric")


@dataclass(frozen=True)
class Setting:
    """A CoinGrid experiment up to the trained model."""

    world: CoinGridConfig = field(default_factory=CoinGridConfig)
    """The board."""
    demonstrators: tuple[tuple[float, float, float], ...] = (RED, GREEN)
    """What each demonstrator wants: a weight per colour. The learner is never told."""
    episodes: Count = 3_000
    """Demonstrated episodes per demonstrator."""
    temperature: Positive = 0.02
    """Of the demonstrators' Boltzmann policies, in units of reward."""
    ego_task: tuple[float, float, float] | None = None
    """The ego's own task while it trains; None: it never sees a reward (ITD)."""
    itd: ITDConfig = field(default_factory=default_itd)
    """The learner."""
    ego: psiphi.PsiPhiConfig | None = None
    """The ego's part, where it has a task; its `itd` is replaced by the above."""
    prefill_steps: Number = 2_048
    """Random steps before the first update."""
    updates: Count = 6_000
    """Updates, and the length of the schedules."""
    num_envs: Count = 8
    """Environments side by side; each takes one step between updates."""
    few_shot: FewShotConfig = field(default_factory=FewShotConfig)
    """How a new task is inferred."""

    def __post_init__(self):
        configs.check(self)


class Trained(NamedTuple):
    """A trained model and what it cost."""

    model: Model
    env_steps: int
    wall_s: float
    rows: list[dict[str, Any]]


Split = Literal["train", "test"]


def demonstrations(setting: Setting, seed: int, split: Split = "train", episodes: int | None = None) -> coingrid_exact.Recording:
    """The demonstrations of a seed; "test" are other trajectories of the same demonstrators."""
    key = jax.random.fold_in(jax.random.key(seed), {"train": 1, "test": 2}[split])
    weights = jnp.asarray(setting.demonstrators)
    return coingrid_exact.record(setting.world, weights, episodes or setting.episodes, setting.temperature, setting.itd.gamma, key)


def make_agent(setting: Setting, spec: EnvSpec) -> Agent:
    """ITD, or PsiPhi-learning where the ego has a task of its own."""
    agents, pace = len(setting.demonstrators), Pace(setting.num_envs, setting.updates)
    if setting.ego_task is None:
        return itd.make(setting.itd, spec, agents, pace)
    return psiphi.make(replace(setting.ego or psiphi.PsiPhiConfig(), itd=setting.itd), spec, agents, pace)


def train(setting: Setting, seed: int, *, out: Path | None = None, progress: bool = True, checkpoint_every_s: float = 30.0) -> Trained:
    """Record the demonstrations and run ITD on them (or PsiPhi-learning, where the ego has a task of its own)."""
    started = time.monotonic()
    agents = len(setting.demonstrators)
    env = coingrid.make(setting.world, jnp.asarray(setting.ego_task or (0.0, 0.0, 0.0)))
    config = setting.itd
    agent = make_agent(setting, env.spec)
    demos = demonstrations(setting, seed).demos  # after the agent was made: it refuses at once what cannot be
    loop = scan.LoopConfig(
        iterations=setting.updates,
        chunk=min(500, setting.updates),
        num_envs=setting.num_envs,
        prefill_steps=setting.prefill_steps,
        seed=seed,
    )
    settings = {"setting": asdict(setting)}
    result = scan.run(env, agent, demos, loop, out=out, settings=settings, progress=progress, checkpoint_every_s=checkpoint_every_s)
    model = to_model(config, result.agent(), demos, agents)
    warning = itd.collapse(result.rows[-1]["train/signal"] or 0.0, result.rows[-1]["train/rank"] or 0.0, agents)
    if warning:
        print(f"psiphi: {warning}", file=sys.stderr)
    return Trained(model, loop.env_steps(setting.updates), time.monotonic() - started, result.rows)


def to_model(config: ITDConfig, state: Any, demos: Demos, agents: int) -> Model:
    """What is kept of a training state."""
    net = itd.deployed(config, state)
    w = itd.preferences(config, net.w[:agents])
    return Model(net, jnp.concatenate([w, net.w[agents:]]), jax.jit(models.measure_units)(net, w, demos))


class Steps(NamedTuple):
    """Steps on which phi is judged, with the true coins collected in them."""

    obs: Array
    action: Array
    features: Array


@functools.partial(jax.jit, static_argnames=("world", "episodes"))
def random_steps(world: CoinGridConfig, key: Array, episodes: int = 512) -> Steps:
    """Steps of a random policy."""
    env = coingrid.make(world, jnp.zeros(3))
    reset_key, act_key = jax.random.split(key)

    def step(now: tuple[Any, Array], step_key: Array) -> tuple[tuple[Any, Array], Steps]:
        state, obs = now
        action = jax.random.randint(step_key, (episodes,), 0, env.spec.num_actions)
        state, reached = jax.vmap(env.step, (0, 0, None))(state, action, step_key)
        return (state, reached.obs), Steps(obs, action, reached.extras["features"])

    start = jax.vmap(env.reset)(jax.random.split(reset_key, episodes))
    steps = jax.lax.scan(step, start, jax.random.split(act_key, world.max_steps))[1]
    return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), steps)


def held_out_accuracy(setting: Setting, model: Model, seed: int, episodes: int = 500) -> dict[str, float]:
    """Share of held-out actions predicted, and the most anybody could: the demonstrators' own probability of their likeliest action."""
    test = demonstrations(setting, seed, "test", episodes)
    real = np.asarray(test.episode) >= 0
    agents, length = real.shape
    whose = [jnp.full(length, k) for k in range(agents)]
    hits = np.stack([np.asarray(_predicted(model, test.demos.steps.obs[k], whose[k]) == test.demos.steps.action[k]) for k in range(agents)])
    ceiling = np.max(np.asarray(test.probs), axis=-1)
    return {"accuracy": float(hits[real].mean()), "ceiling": float(ceiling[real].mean())}


@jax.jit
def _predicted(model: Model, obs: Array, whose: Array) -> Array:
    return jnp.argmax(models.imitate(model, obs, whose), axis=-1)


def explained(setting: Setting, model: Model, key: Array) -> dict[str, Any]:
    """How much of the true rewards phi explains on random steps, and each cumulant's correlation with each colour.

    `r2[k]`: R^2 of demonstrator k's true reward regressed on phi. `reward_correlation[k]`: of phi.w_k with it.
    `cumulants[i][c]`: correlation of cumulant i with "steps on colour c".
    """
    steps = random_steps(setting.world, key)
    phi = np.asarray(jax.jit(models.phi)(model, steps.obs, steps.action))
    truth = np.asarray(steps.features) @ np.asarray(setting.demonstrators).T
    inferred = phi @ np.asarray(model.prior.basis).T
    agents = range(truth.shape[1])
    colours = np.asarray(steps.features)
    return {
        "r2": [float(stats.r_squared(phi, truth[:, k])) for k in agents],
        "reward_correlation": [correlation(inferred[:, k], truth[:, k]) for k in agents],
        "cumulants": [[correlation(phi[:, i], colours[:, c]) for c in range(3)] for i in range(phi.shape[1])],
    }


def correlation(x: np.ndarray, y: np.ndarray) -> float:
    """Pearson's; 0 where one of them never changes: a board without yellow coins, say."""
    return float(np.corrcoef(x, y)[0, 1]) if x.std() > 0 and y.std() > 0 else 0.0


def planned_on_inferred(setting: Setting, model: Model, key: Array, boards: int = 64) -> list[float]:
    """For each demonstrator: the true return of an exact planner that was given phi.w_k, over that of one given the true reward."""
    starts = jax.vmap(functools.partial(coingrid.reset, setting.world))(jax.random.split(key, boards))
    gamma = setting.itd.gamma
    inferred = jnp.stack([_inferred_table(setting.world, model, cells) for cells in starts.cells])
    ratios = []
    for k, weights in enumerate(setting.demonstrators):
        w = jnp.asarray(weights)
        reached = [
            _greedy_return(setting.world, starts, coingrid_exact.plan(setting.world, starts.cells, reward, gamma), w)
            for reward in (inferred[..., k], coingrid_exact.reward_table(setting.world, starts.cells, w))
        ]
        ratios.append(float(reached[0] / reached[1]))
    return ratios


@functools.partial(jax.jit, static_argnames="world")
def _inferred_table(world: CoinGridConfig, model: Model, cells: Array) -> Array:
    """The demonstrators' inferred rewards of every action in every state of a board."""
    obs = coingrid_exact.all_observations(world, cells)
    assert isinstance(model.net, PsiPhiNet)
    rewards = model.net.phi(obs.reshape(-1, *obs.shape[2:])) @ model.prior.basis.T
    return rewards.reshape(*obs.shape[:2], *rewards.shape[1:])


@functools.partial(jax.jit, static_argnames="world")
def _greedy_return(world: CoinGridConfig, starts: coingrid.State, q: Array, weights: Array) -> Array:
    features = jax.vmap(functools.partial(coingrid_exact.evaluate_policy, world))(starts, jnp.argmax(q, axis=-1))
    return jnp.mean(features @ weights)


def transfer(setting: Setting, model: Model, key: Array, *, shots: int, repetitions: int) -> dict[str, dict[str, float]]:
    """Normalised returns of the four tasks: in the first episode, and after `shots` episodes. Means over the repetitions."""
    tasks = jnp.asarray(list(coingrid.TASKS.values()))
    first, after = _transfer(
        model, tasks, jax.random.split(key, len(tasks)), world=setting.world, config=setting.few_shot, shots=shots, repetitions=repetitions
    )
    return {
        "first": {name: float(x) for name, x in zip(coingrid.TASKS, first, strict=True)},
        "after": {name: float(x) for name, x in zip(coingrid.TASKS, after, strict=True)},
    }


@functools.partial(jax.jit, static_argnames=("world", "config", "shots", "repetitions"))
def _transfer(
    model: Model, tasks: Array, keys: Array, *, world: CoinGridConfig, config: FewShotConfig, shots: int, repetitions: int
) -> tuple[Array, Array]:
    def one(w: Array, key: Array) -> tuple[Array, Array]:
        env = coingrid.make(world, w)
        got = few_shot(env, model, config, key, shots=shots, repetitions=repetitions, max_steps=world.max_steps)
        return coingrid.normalise(world, w, got.first).mean(), coingrid.normalise(world, w, got.after).mean()

    return jax.vmap(one)(tasks, keys)


def ceiling(setting: Setting, key: Array, boards: int = 256) -> dict[str, float]:
    """Normalised returns of GPI with the demonstrators' *exact* successor features and the true phi and w: what GPI alone allows."""
    world, gamma = setting.world, setting.itd.gamma
    starts = jax.vmap(functools.partial(coingrid.reset, world))(jax.random.split(key, boards))
    totals = {name: [] for name in coingrid.TASKS}
    for first in range(0, boards, 64):
        some = jax.tree.map(lambda x, f=first: x[f : f + 64], starts)
        psi = jnp.stack([_exact_psi(world, some.cells, jnp.asarray(w), setting.temperature, gamma) for w in setting.demonstrators])
        for name, weights in coingrid.TASKS.items():
            best = jnp.max(psi @ jnp.asarray(weights), axis=0)
            totals[name].append(coingrid.normalise(world, weights, _greedy_return(world, some, best, jnp.asarray(weights))))
    return {name: float(np.mean(x)) for name, x in totals.items()}


def _exact_psi(world: CoinGridConfig, cells: Array, weights: Array, temperature: float, gamma: float) -> Array:
    policy = coingrid_exact.policy_boltzmann(coingrid_exact.q_values(world, cells, weights, gamma), temperature)
    return coingrid_exact.successor_features(world, cells, policy, gamma)
