"""Learning to drive beside others who demonstrate: PsiPhi-learning and the baselines on Highway and Roundabout.

Nothing is recorded beforehand. At every step of its own the learner sees what the nearest cars saw and did, told apart by what they want
(a demonstrator is a goal), and keeps the last of it in a ring per demonstrator. Everybody sees the same kind of traffic.
"""

import dataclasses
import functools
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array

from psiphi import configs, replay
from psiphi.agents import algorithm_of, watching
from psiphi.agents.bc import BCConfig
from psiphi.agents.dqn import DQNConfig
from psiphi.agents.itd import ITDConfig
from psiphi.agents.psiphi import PsiPhiConfig
from psiphi.agents.sqil import SQILConfig
from psiphi.configs import Count, Number, Positive
from psiphi.envs import highway, roundabout
from psiphi.envs.highway import HighwayConfig
from psiphi.envs.roundabout import RoundaboutConfig
from psiphi.envs.traffic import roads
from psiphi.envs.traffic_gym import TrafficEnv
from psiphi.experiments import films
from psiphi.experiments.models import changed
from psiphi.loops import scan
from psiphi.loops.evaluate import rollout_returns
from psiphi.types import Agent, Env, Metrics, Pace

World = HighwayConfig | RoundaboutConfig
Config = PsiPhiConfig | DQNConfig | BCConfig | SQILConfig


@dataclass(frozen=True)
class Setting:
    """One learner in one world."""

    agent: Any
    """The algorithm's config."""
    world: World
    """The traffic, and what the ego is paid."""
    reference: Positive
    """What counts as a normalised return of 1: IDM's mean return in the ego's place (`expert_returns`)."""
    steps: Count = 32_000
    """Environment steps, the random ones at the start included."""
    prefill_steps: Number = 1_000
    """Steps before the first update."""
    num_envs: Count = 8
    """Environments side by side; each takes one step between updates."""
    updates_per_rollout: Count = 1
    """Updates after those steps."""
    room: Count = 20_000
    """Steps that are kept of each demonstrator."""
    pooled: bool = False
    """Whether the learner is told who did what, or takes all for one demonstrator."""
    evaluate_every: Count = 2_000
    """Environment steps between two evaluations."""
    evaluate_episodes: Count = 128
    """Episodes of each evaluation."""

    def __post_init__(self):
        configs.check(self)


def make_env(world: World) -> Env:
    return highway.make(world) if isinstance(world, HighwayConfig) else roundabout.make(world)


def num_demonstrators(setting: Setting) -> int:
    """As the learner counts them: none if it watches nobody, one if all are one to it."""
    if not watches(setting):
        return 0
    if setting.pooled:
        return 1
    world = setting.world
    return highway.num_demonstrators(world) if isinstance(world, HighwayConfig) else roundabout.num_demonstrators(world)


def expert_returns(world: World, key: Array, episodes: int) -> dict[str, Array]:
    """What IDM and MOBIL earn in the ego's place, by the ego's own actions: the return that all others are divided by."""
    env = make_env(world)
    command = highway.expert if isinstance(world, HighwayConfig) else roundabout.expert

    def reset(reset_key: Array) -> tuple[Any, Array]:
        state, obs = env.reset(reset_key)
        return (state, command(world, state)), obs  # pyright: ignore[reportArgumentType]

    def step(state: tuple[Any, Array], action: Array, step_key: Array) -> tuple[Any, Any]:
        del action  # what it would do is part of the state: no policy need guess it from the observation
        after, reached = env.step(state[0], state[1], step_key)
        return (after, command(world, after)), reached  # pyright: ignore[reportArgumentType]

    driven = Env(env.spec, reset, step)
    return rollout_returns(driven, lambda obs, _: jnp.zeros(obs.shape[0], jnp.int32), key, episodes, world.max_steps)


# --- Learners ------------------------------------------------------------------------------------------------------------


def watches(setting: Setting) -> bool:
    """Whether the learner has any use for demonstrations."""
    return algorithm_of(setting.agent).watches(setting.agent)


def pace_of(setting: Setting) -> Pace:
    """Schedules as long as the run, and a replay as wide as the loop."""
    loop = loop_of(setting, 0)
    return Pace(loop.num_envs, loop.iterations * loop.updates_per_rollout)


def loop_of(setting: Setting, seed: int) -> scan.LoopConfig:
    """How many iterations, between which evaluations."""
    iterations = max(-(-(setting.steps - setting.prefill_steps) // setting.num_envs), 1)
    return scan.LoopConfig(
        iterations=iterations,
        chunk=min(max(setting.evaluate_every // setting.num_envs, 1), iterations),
        num_envs=setting.num_envs,
        updates_per_rollout=setting.updates_per_rollout,
        prefill_steps=setting.prefill_steps,
        seed=seed,
    )


# --- A run ---------------------------------------------------------------------------------------------------------------


class Trained(NamedTuple):
    """A learner after its run, and what it cost."""

    agent: Agent
    state: Any
    env_steps: int
    wall_s: float
    rows: list[dict[str, Any]]


def evaluation(setting: Setting, agent: Agent) -> Callable[[Any, Array], Metrics]:
    """What is measured between chunks: the mean return over IDM's, and the share of episodes that did not last."""
    env = make_env(setting.world)

    def evaluate(state: Any, key: Array) -> Metrics:
        policy = functools.partial(agent.policy, state)
        got = rollout_returns(env, policy, key, setting.evaluate_episodes, setting.world.max_steps)
        mean = jnp.mean(got["returns"])
        return {
            "normalised_return": mean / setting.reference,
            "return": mean,
            "failed": jnp.mean(got["lengths"] < setting.world.max_steps),
        }

    return evaluate


def train(setting: Setting, seed: int, *, out: Path | None = None, progress: bool = True) -> Trained:
    """Learn while driving, or continue."""
    started = time.monotonic()
    env = make_env(setting.world)
    agents = num_demonstrators(setting)
    agent = algorithm_of(setting.agent).make(setting.agent, env.spec, agents, pace_of(setting))
    demos = watch = None
    if watches(setting):
        agent = watching.watching(agent)
        demos = replay.no_demonstrations(env.spec, agents, setting.room)
        watch = watching.watch_all_as_one if setting.pooled else watching.watch
    loop = loop_of(setting, seed)
    result = scan.run(
        env,
        agent,
        demos,
        loop,
        out=out,
        evaluate=evaluation(setting, agent),
        watch=watch,
        settings={"setting": dataclasses.asdict(setting)},
        progress=progress,
    )
    return Trained(agent, result.agent(), loop.env_steps(loop.iterations), time.monotonic() - started, result.rows)


def film(setting: Setting, trained: Trained, key: Array, path: Path) -> films.Film:
    """An episode of the trained ego as a moving picture: the ego green, the others blue."""
    world = setting.world
    where = ("Highway", world, roads.highway(world.lanes, highway.ROAD_LENGTH), highway.CLIP) if isinstance(world, HighwayConfig) else (
        "Roundabout", world, roundabout.ROAD, roundabout.CLIP
    )  # fmt: skip
    return films.film(TrafficEnv(*where, "rgb_array"), functools.partial(trained.agent.policy, trained.state), key, path)


# --- Figure 3 ------------------------------------------------------------------------------------------------------------


class Panel(NamedTuple):
    """A scenario and what IDM earns there in the ego's place."""

    world: Callable[[], World]
    reference: float
    """Mean of 512 episodes of `expert_returns` with key 1000."""
    reward_offset: float
    """What those who learn from rewards take off each of them. On Highway every step is paid, so that to go on at all is worth more than to
    go on well; on Roundabout, the way and the arrival."""
    psiphi_updates: int
    """Updates that PsiPhi-learning makes after each rollout; all others make one, as a DQN was not better with more."""


PANELS = {
    "highway-single-task": Panel(highway.single_task, 59.8, 0.4, 4),
    "highway-adversarial": Panel(highway.adversarial, 65.1, 0.4, 4),
    "highway-multi-task": Panel(highway.multi_task, 71.7, 0.4, 4),
    "roundabout-online": Panel(RoundaboutConfig, 44.7, 0.0, 2),
}
"""By the name of the variant."""


def default_dqn() -> DQNConfig:
    """Smaller networks and batches than in the paper's column for Highway, as a CPU wants, and a shorter horizon (paper: gamma 1)."""
    return DQNConfig(
        torso="crowd-norm", torso_hidden=(128, 128), head_hidden=(128,), gamma=0.95, n_step=3, learning_rate=2e-3, cosine=True, batch=128,
        replay_size=80_000, epsilon_end=0.02, epsilon_steps=1_000, ema=0.02, mirror=False,
    )  # fmt: skip


def default_sqil() -> SQILConfig:
    inner = dataclasses.replace(
        default_dqn(), torso="crowd", n_step=1, double=False, epsilon_start=0.0, epsilon_end=0.0, epsilon_steps=5_000
    )
    return SQILConfig(dqn=inner, temperature=0.03)


def default_bc() -> BCConfig:
    return BCConfig(torso="crowd", torso_hidden=(128, 128), mirror=False)


def default_psiphi() -> PsiPhiConfig:
    """Demonstrators never arrive anywhere (no anchor), and rewards are dense (little sparsity)."""
    inner = ITDConfig(
        num_cumulants=8, gamma=0.95, torso="crowd-norm", torso_hidden=(128, 128), phi_hidden=(128, 64), psi_hidden=(64,),
        learning_rate=2e-3, batch=32, cross_batch=128, bc_weight=1.0, anchor=0.0, sparsity=0.05, ema=0.03, mirror=False,
        replay_size=80_000,
    )  # fmt: skip
    return PsiPhiConfig(itd=inner, batch=128, reward_weight=30.0, epsilon=0.03, temperature=0.0)


DEFAULT: dict[str, Callable[[], Config]] = {"psiphi": default_psiphi, "dqn": default_dqn, "bc": default_bc, "sqil": default_sqil}
"""Configs for traffic, by algorithm."""


def setting_of(variant: str, algorithm: str, changes: Mapping[str, Any], steps: int | None = None) -> Setting:
    """A method in a panel; BC and SQIL take all demonstrators for one. `changes` are by dotted name."""
    panel = PANELS[variant]
    pace = panel.psiphi_updates if algorithm == "psiphi" else 1
    agent = DEFAULT[algorithm]()
    if isinstance(agent, DQNConfig | PsiPhiConfig):
        agent = dataclasses.replace(agent, reward_offset=panel.reward_offset)
    setting = Setting(agent, panel.world(), panel.reference, updates_per_rollout=pace, pooled=algorithm in ("bc", "sqil"))
    return changed(setting, {**changes, **({} if steps is None else {"steps": steps})})


def saw(setting: Setting) -> list[str]:
    """Demonstrations, steps of its own, rewards: in words, for the report."""
    world = setting.world
    shown = f"those of the {world.observed} nearest cars, at every step" if watches(setting) else "none"
    paid = algorithm_of(setting.agent).paid(setting.agent)
    return [shown, f"{setting.steps:,}", "of its own task" if paid else "none"]
