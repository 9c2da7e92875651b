"""How well are others' actions predicted in episodes that the learner was not shown? The paper's figure of imitation, on Roundabout.

Demonstrators are recorded and their episodes split: most are shown, the rest are held out. BC and ITD see nothing else. PsiPhi-learning
also drives and is paid, for one exit after the other, and so learns more about the cumulants that it shares with the demonstrators.
"""

import functools
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from psiphi import configs
from psiphi.agents import algorithm_of, bc, itd
from psiphi.agents.bc import BCConfig
from psiphi.agents.itd import ITDConfig
from psiphi.agents.psiphi import PsiPhiConfig
from psiphi.configs import Count
from psiphi.envs import roundabout
from psiphi.envs.roundabout import RoundaboutConfig
from psiphi.errors import UserError
from psiphi.loops import runs, scan
from psiphi.training import changed
from psiphi.types import Agent, Demos, Env, Pace
from psiphi.worlds.roundabout import record, toward


@dataclass(frozen=True)
class Setting:
    """One line of the figure."""

    agent: Any
    """The learner's config."""
    world: RoundaboutConfig = field(default_factory=RoundaboutConfig)
    """The traffic; a demonstrator is one of its exits."""
    shown: Count = 80
    """Episodes of each demonstrator that are shown."""
    held_out: Count = 20
    """Episodes of each on which the predictions are judged."""
    updates: Count = 3_600
    """Updates."""
    judge_every: Count = 300
    """Updates between two judgements."""
    goals: tuple[str, ...] = ("wxr", "nxr", "exr")
    """The exits that the ego wants, one after the other, for equally many updates; only for a learner that drives."""
    num_envs: Count = 8
    """Cars that it drives side by side, a step between updates."""
    prefill_steps: Count = 2_000
    """Random steps at the beginning of each of its tasks."""

    def __post_init__(self):
        configs.check(self)
        if not self.goals:
            raise UserError("goals is empty, expected at least one exit for the ego.")


def _itd() -> ITDConfig:
    """As on Highway; from logs alone there is no sparse prior, which needs steps that no demonstrator chose."""
    return ITDConfig(
        num_cumulants=8, gamma=0.95, torso="crowd", torso_hidden=(128, 128), phi_hidden=(128, 64), psi_hidden=(64,), learning_rate=3e-3,
        batch=128, cross_batch=128, bc_weight=1.0, sparsity=0.0, cross_policy_on="pooled", ema=0.03, mirror=False, replay_size=80_000,
    )  # fmt: skip


def _psiphi() -> PsiPhiConfig:
    """The ego's losses weigh little: with weights as on Highway its values take the shared torso, and others are predicted less well."""
    inner = replace(_itd(), cross_policy_on="experience")
    return PsiPhiConfig(itd=inner, batch=128, reward_weight=0.1, q_weight=0.1, td_psi_weight=1.0, temperature=0.0)


def _bc() -> BCConfig:
    return BCConfig(torso="crowd", torso_hidden=(128, 128), learning_rate=1e-2, batch=128, mirror=False)


LEARNERS = {"bc": _bc, "itd": _itd, "psiphi": _psiphi}
"""By algorithm."""


def setting_of(algorithm: str, changes: dict[str, Any], updates: int | None = None, episodes: int | None = None) -> Setting:
    """A line, with changes by dotted name, and less of something where that is asked for."""
    given = {name: value for name, value in [("updates", updates), ("shown", episodes)] if value is not None}
    return changed(Setting(LEARNERS[algorithm]()), {**changes, **given})


def saw(setting: Setting) -> list[str]:
    """Demonstrations, steps of its own, rewards: in words, for the report."""
    shown = f"{setting.shown:,} episodes of each of {len(setting.world.exits)}"
    if not drives(setting):
        return [shown, "none", "none"]
    steps = setting.updates * setting.num_envs + len(setting.goals) * setting.prefill_steps
    return [shown, f"{steps:,}", f"of {len(setting.goals)} tasks in turn"]


def drives(setting: Setting) -> bool:
    return isinstance(setting.agent, PsiPhiConfig)


# --- Learning ------------------------------------------------------------------------------------------------------------


def make(setting: Setting) -> Agent:
    """The learner, its schedules as long as the run."""
    pace = Pace(setting.num_envs, setting.updates)
    return algorithm_of(setting.agent).make(setting.agent, roundabout.spec(setting.world), len(setting.world.exits), pace)


def env_of(setting: Setting, goal: Array) -> Env | None:
    """The world with the ego's exit as an argument, so that one program serves all of its tasks."""
    goals = replace(setting.world, exits=setting.goals, exit_weights=(1.0,) * len(setting.goals))
    return toward(goals, goal, others=setting.world) if drives(setting) else None


def loop_of(setting: Setting) -> scan.LoopConfig:
    prefill = setting.prefill_steps if drives(setting) else 0
    return scan.LoopConfig(iterations=setting.updates, num_envs=setting.num_envs, prefill_steps=prefill)


@functools.partial(jax.jit, static_argnames="setting")
def begin(setting: Setting, key: Array, goal: Array, demos: Demos) -> scan.Carry:
    return scan.begin(env_of(setting, goal), make(setting), loop_of(setting), key, demos)


@functools.partial(jax.jit, static_argnames="setting")
def go_on(setting: Setting, carry: scan.Carry, goal: Array, updates: Array) -> scan.Carry:
    """So many updates, with as many steps of one's own between them as there are."""
    env, agent, loop = env_of(setting, goal), make(setting), loop_of(setting)
    return jax.lax.fori_loop(0, updates, lambda _, now: scan.iterate(env, agent, loop, now)[0], carry)


def new_task(carry: scan.Carry, fresh: scan.Carry) -> scan.Carry:
    """What was learned stays; the world, and what is remembered of rewards, are those of a fresh start in another task."""
    kept = carry.agent._replace(experience=fresh.agent.experience, task=fresh.agent.task)
    return carry._replace(agent=kept, env=fresh.env, obs=fresh.obs)


# --- Judging -------------------------------------------------------------------------------------------------------------


def scores(setting: Setting, state: Any, obs: Float[Array, "K B *obs"]) -> Float[Array, "K B A"]:
    """What each demonstrator is thought to do: the larger, the likelier."""
    config = setting.agent
    if isinstance(config, BCConfig):
        return bc.logits(bc.deployed(config, state), obs)
    inner = config if isinstance(config, ITDConfig) else config.itd
    net = itd.demonstrators(itd.deployed(inner, state), obs.shape[0])
    features = net.features(obs.reshape(-1, *obs.shape[2:])).reshape(*obs.shape[:2], -1)
    return jnp.einsum("kbead,kd->kba", net.own_psi(features), itd.preferences(inner, net.w))


@functools.partial(jax.jit, static_argnames="setting")
def accuracy(setting: Setting, state: Any, demos: Demos) -> Array:
    """The share of the actions that are predicted, in the mean over demonstrators."""
    real = jnp.arange(demos.steps.action.shape[1]) < demos.count[:, None]
    right = jnp.argmax(scores(setting, state, demos.steps.obs), axis=-1) == demos.steps.action
    return jnp.mean(jnp.sum(right & real, axis=1) / jnp.sum(real, axis=1))


class Predicted(NamedTuple):
    """Accuracies after so many updates, and the steps that were driven."""

    updates: list[int]
    shown: list[float]
    held_out: list[float]
    env_steps: int
    earlier_s: float = 0.0
    """Seconds that processes before this one had put down."""


def run(setting: Setting, seed: int, **kept: Any) -> Predicted:
    """Learn from what is shown, and be judged on what is not. `kept` says where and how often it is put down, as in `runs.by_stretches`."""
    loop_key = jax.random.fold_in(jax.random.key(seed), 3)
    shown = record(setting.world, setting.world.exits, setting.shown, seed).demos
    held_out = record(setting.world, setting.world.exits, setting.held_out, seed, "test").demos
    phases = len(setting.goals) if drives(setting) else 1
    ends = [setting.updates * (phase + 1) // phases for phase in range(phases)]

    def stretch(carry: scan.Carry, done: int) -> tuple[scan.Carry, int, dict[str, Any]]:
        phase = next(i for i, end in enumerate(ends) if done < end)
        if phase and done == ends[phase - 1]:
            carry = new_task(carry, begin(setting, jax.random.fold_in(loop_key, phase), jnp.asarray(phase), shown))
        length = min(setting.judge_every, ends[phase] - done)
        carry = go_on(setting, carry, jnp.asarray(phase), jnp.asarray(length))
        judged = {name: float(accuracy(setting, carry.agent, demos)) for name, demos in (("shown", shown), ("held_out", held_out))}
        return carry, done + length, judged

    first = functools.partial(begin, setting, loop_key, jnp.asarray(0), shown)
    settings = {"setting": asdict(setting), "seed": seed}
    _, rows, earlier_s = runs.by_stretches(settings, first, stretch, setting.updates, **kept)
    done, on_shown, on_held_out = ([row[name] for row in rows] for name in ("step", "shown", "held_out"))
    steps = (setting.updates + phases * loop_of(setting).prefill_rollouts) * setting.num_envs if drives(setting) else 0
    return Predicted(done, on_shown, on_held_out, steps, earlier_s)
