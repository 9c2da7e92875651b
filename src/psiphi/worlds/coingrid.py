"""CoinGrid: coins of three colours in an open room, with exactly planned demonstrators and an exactly known truth.

The truth is read only to judge: nothing here reaches a learner but demonstrations (states, actions, who), its own steps and its own reward.
"""

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from psiphi import model as models
from psiphi import stats
from psiphi.agents import gail, itd, psiphi, sqil
from psiphi.agents.bc import BCConfig
from psiphi.agents.dqn import DQNConfig
from psiphi.agents.gail import GAILConfig
from psiphi.agents.guided import GuidedConfig
from psiphi.agents.itd import ITDConfig
from psiphi.agents.ppo import PPOConfig
from psiphi.agents.psiphi import PsiPhiConfig
from psiphi.agents.sqil import SQILConfig
from psiphi.agents.together import TogetherConfig
from psiphi.envs import coingrid, coingrid_exact
from psiphi.envs.coingrid import CoinGridConfig
from psiphi.envs.coingrid_gym import CoinGridEnv
from psiphi.errors import UserError
from psiphi.model import Model
from psiphi.nets import PsiPhiNet
from psiphi.types import Env, Metrics
from psiphi.worlds.world import Boards, Recorded, World

TASKS = ("R+G", "R-G", "-R+G", "-R-G")
"""The tasks of the paper's table 2. They are not demonstrated: the demonstrators want R or G."""

TEMPERATURE, GAMMA = 0.02, 0.9
"""Of the demonstrators' Boltzmann policies: in units of reward, and the discount by which they plan."""

NOTHING = "0"
"""The task that never pays."""


# --- The world -----------------------------------------------------------------------------------------------------------


def weights_of(task: str) -> tuple[float, float, float]:
    """A task as the user gives it: a name such as R-G, or three weights such as 1,-1,0."""
    if task == NOTHING:
        return 0.0, 0.0, 0.0
    if "," not in task:
        return coingrid.task_weights(task)
    try:
        red, green, yellow = (float(part) for part in task.split(","))
    except ValueError as error:
        raise UserError(f"{task!r} is not a task; expected three numbers for red, green and yellow, or a name such as R-G.") from error
    if not all(map(math.isfinite, (red, green, yellow))):
        raise UserError(f"{task!r} is not a task: its weights must be finite numbers.")
    return red, green, yellow


def _task(config: CoinGridConfig, task: str) -> str:
    del config
    return coingrid.task_name(weights_of(task)) if task else TASKS[0]


def _env(config: CoinGridConfig, task: str) -> Env:
    return coingrid.make(config, jnp.asarray(weights_of(task)))


def record(config: CoinGridConfig, demonstrators: tuple[str, ...], episodes: int, seed: int, split: str = "train") -> Recorded:
    """Episodes of demonstrators who want these tasks; "test" are other trajectories of the same demonstrators."""
    key = jax.random.fold_in(jax.random.key(seed), {"train": 1, "test": 2}[split])
    weights = jnp.asarray([weights_of(name) for name in demonstrators])
    got = coingrid_exact.record(config, weights, episodes, TEMPERATURE, GAMMA, key)
    return Recorded(got.demos, got.episode, jnp.max(got.probs, axis=-1))


def _figures(config: CoinGridConfig, task: str, got: Mapping[str, Array]) -> Metrics:
    mean = jnp.mean(coingrid.normalise(config, weights_of(task), got["returns"]))
    return {"normalised_return": mean, "return": jnp.mean(got["returns"])}


def _drawn(config: CoinGridConfig, task: str) -> CoinGridEnv:
    return CoinGridEnv(weights=weights_of(task), render_mode="rgb_array", **dataclasses.asdict(config))


# --- The truth -----------------------------------------------------------------------------------------------------------


class Steps(NamedTuple):
    """Steps on which phi is judged, with the true coins collected in them."""

    obs: Array
    action: Array
    features: Array
    next_obs: Array
    discount: Array


@functools.partial(jax.jit, static_argnames=("config", "episodes"))
def random_steps(config: CoinGridConfig, key: Array, episodes: int = 512) -> Steps:
    """Steps of a random policy."""
    env = coingrid.make(config, jnp.zeros(3))
    reset_key, act_key = jax.random.split(key)

    def step(now: tuple[Any, Array], step_key: Array) -> tuple[tuple[Any, Array], Steps]:
        state, obs = now
        action = jax.random.randint(step_key, (episodes,), 0, env.spec.num_actions)
        state, reached = jax.vmap(env.step, (0, 0, None))(state, action, step_key)
        return (state, reached.obs), Steps(obs, action, reached.extras["features"], reached.obs, reached.discount)

    start = jax.vmap(env.reset)(jax.random.split(reset_key, episodes))
    steps = jax.lax.scan(step, start, jax.random.split(act_key, config.max_steps))[1]
    return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), steps)


def held_out_accuracy(config: CoinGridConfig, demonstrators: tuple[str, ...], model: Model, seed: int, episodes: int) -> dict[str, float]:
    """Share of held-out actions predicted, and the most that is possible: the demonstrators' own probability of their likeliest action."""
    test = record(config, demonstrators, episodes, seed, "test")
    real = np.asarray(test.episode) >= 0
    agents, length = real.shape
    whose = [jnp.full(length, k) for k in range(agents)]
    hits = np.stack([np.asarray(_predicted(model, test.demos.steps.obs[k], whose[k]) == test.demos.steps.action[k]) for k in range(agents)])
    return {"accuracy": float(hits[real].mean()), "ceiling": float(np.asarray(test.best)[real].mean())}


@jax.jit
def _predicted(model: Model, obs: Array, whose: Array) -> Array:
    return jnp.argmax(models.imitate(model, obs, whose), axis=-1)


def explained(config: CoinGridConfig, demonstrators: tuple[str, ...], model: Model, key: Array) -> dict[str, Any]:
    """How much of the true rewards phi explains on random steps, and each cumulant's correlation with each colour.

    `r2[k]`: R^2 of demonstrator k's true reward regressed on phi. `reward_correlation[k]`: of phi.w_k with it.
    `cumulants[i][c]`: correlation of cumulant i with "steps on colour c".
    """
    steps = random_steps(config, key)
    phi = np.asarray(jax.jit(models.phi)(model, steps.obs, steps.action, steps.next_obs, steps.discount))
    truth = np.asarray(steps.features) @ np.asarray([weights_of(name) for name in demonstrators]).T
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


def planned_on_inferred(
    config: CoinGridConfig, demonstrators: tuple[str, ...], model: Model, key: Array, *, gamma: float = GAMMA, boards: int = 64
) -> list[float]:
    """For each demonstrator: the true return of an exact planner that was given phi.w_k, over that of one given the true reward."""
    starts = jax.vmap(functools.partial(coingrid.reset, config))(jax.random.split(key, boards))
    inferred = jnp.stack([_inferred_table(config, model, cells) for cells in starts.cells])
    ratios = []
    for k, name in enumerate(demonstrators):
        w = jnp.asarray(weights_of(name))
        reached = [
            greedy_return(config, starts, coingrid_exact.plan(config, starts.cells, reward, gamma), w)
            for reward in (inferred[..., k], coingrid_exact.reward_table(config, starts.cells, w))
        ]
        ratios.append(float(reached[0] / reached[1]))
    return ratios


def starc(
    config: CoinGridConfig, demonstrators: tuple[str, ...], model: Model, key: Array, gamma: float = GAMMA, *, boards: int = 16
) -> list[float]:
    """For each demonstrator the STARC distance of phi.w_k to its true reward, exact on every board, and the mean over boards.

    Skalse et al. (2023), value-adjusted levelling: 0 if both order all policies alike, 1 if exactly the other way round, about 0.7 if
    they have nothing to do with each other. It does not see scale or shaping.
    """
    cells = jax.vmap(functools.partial(coingrid.reset, config))(jax.random.split(key, boards)).cells
    inferred = jnp.stack([_inferred_table(config, model, board) for board in cells])
    true = jnp.stack([coingrid_exact.reward_table(config, cells, jnp.asarray(weights_of(name))) for name in demonstrators], axis=-1)
    one, other = (_levelled(config, cells, reward[..., : len(demonstrators)], gamma) for reward in (inferred, true))
    return [float(x) for x in np.mean(np.linalg.norm(np.asarray(one - other), axis=1) / 2, axis=0)]


@functools.partial(jax.jit, static_argnames=("config", "gamma"))
def _levelled(config: CoinGridConfig, cells: Array, reward: Array, gamma: float) -> Array:
    """``[boards, states x actions, K]``: a random walk's advantages, of length 1 on every board, or 0 where all are."""
    anything = jnp.full(reward.shape[:-1], 1 / reward.shape[-2])
    q = coingrid_exact.evaluate_table(config, cells, anything, reward, gamma)
    can_be = jax.vmap(functools.partial(coingrid_exact.reachable, config))(cells)
    level = jnp.where(can_be[..., None, None], q - jnp.mean(q, axis=-2, keepdims=True), 0.0).reshape(cells.shape[0], -1, reward.shape[-1])
    size = jnp.linalg.norm(level, axis=1, keepdims=True)
    return jnp.where(size > 1e-6, level / jnp.maximum(size, 1e-6), 0.0)


@functools.partial(jax.jit, static_argnames="config")
def _inferred_table(config: CoinGridConfig, model: Model, cells: Array) -> Array:
    """The demonstrators' inferred rewards of every action in every state of a board."""
    obs = coingrid_exact.all_observations(config, cells)
    if models.needs_next(model):
        led = coingrid_exact.moves(config, cells)
        here, there = jnp.broadcast_to(obs[:, :, None], (*led.mask.shape, *obs.shape[2:])), obs[led.mask, led.pose]
        action = jnp.broadcast_to(jnp.arange(led.mask.shape[2]), led.mask.shape).reshape(-1)
        flat = [x.reshape(-1, *obs.shape[2:]) for x in (here, there)]
        return models.rewards(model, flat[0], action, flat[1], led.discount.reshape(-1)).reshape(*led.mask.shape, -1)
    assert isinstance(model.net, PsiPhiNet)
    rewards = model.net.phi(obs.reshape(-1, *obs.shape[2:])) @ model.prior.basis.T
    return rewards.reshape(*obs.shape[:2], *rewards.shape[1:])


@functools.partial(jax.jit, static_argnames="config")
def greedy_return(config: CoinGridConfig, starts: coingrid.State, q: Array, weights: Array) -> Array:
    """The mean true return of who does what these values say is best."""
    features = jax.vmap(functools.partial(coingrid_exact.evaluate_policy, config))(starts, jnp.argmax(q, axis=-1))
    return jnp.mean(features @ weights)


def ceiling(
    config: CoinGridConfig, demonstrators: tuple[str, ...], key: Array, *, gamma: float = GAMMA, boards: int = 256
) -> dict[str, float]:
    """Normalised returns of GPI with the demonstrators' *exact* successor features and the true phi and w: what GPI alone allows."""
    starts = jax.vmap(functools.partial(coingrid.reset, config))(jax.random.split(key, boards))
    totals = {name: [] for name in coingrid.TASKS}
    for first in range(0, boards, 64):
        some = jax.tree.map(lambda x, f=first: x[f : f + 64], starts)
        psi = jnp.stack([_exact_psi(config, some.cells, jnp.asarray(weights_of(name)), gamma) for name in demonstrators])
        for name, weights in coingrid.TASKS.items():
            best = jnp.max(psi @ jnp.asarray(weights), axis=0)
            totals[name].append(coingrid.normalise(config, weights, greedy_return(config, some, best, jnp.asarray(weights))))
    return {name: float(np.mean(x)) for name, x in totals.items()}


def _exact_psi(config: CoinGridConfig, cells: Array, weights: Array, gamma: float) -> Array:
    policy = coingrid_exact.policy_boltzmann(coingrid_exact.q_values(config, cells, weights, gamma), TEMPERATURE)
    return coingrid_exact.successor_features(config, cells, policy, gamma)


def truth(config: CoinGridConfig, demonstrators: tuple[str, ...], model: Model, seed: int, episodes: int) -> dict[str, Any]:
    """All that judges a model against the truth; the seed draws held-out demonstrations, random steps and boards."""
    phi_key, planner_key = jax.random.split(jax.random.fold_in(jax.random.key(seed), 3))
    accuracy = held_out_accuracy(config, demonstrators, model, seed, episodes)
    return {
        "demonstrators": list(demonstrators),
        "accuracy": accuracy["accuracy"],
        "ceiling_accuracy": accuracy["ceiling"],
        **explained(config, demonstrators, model, phi_key),
        "planner_return": planned_on_inferred(config, demonstrators, model, planner_key),
        "preferences": np.asarray(model.w).tolist(),
        "units": np.asarray(model.units).tolist(),
    }


# --- Boards to walk on in a page -------------------------------------------------------------------------------------------

MOST_STATES, SHOWN_BOARDS = 12_800, 6
ACTIONS = ("turn left", "turn right", "go forward")


def boards(config: CoinGridConfig) -> Boards | None:
    """A few boards with all their states, numbered by the coins that are left and then by pose; None: the board is too large for that."""
    masks, poses = coingrid_exact.num_masks(config), coingrid_exact.num_poses(config)
    if masks * poses > MOST_STATES:
        return None
    board_key, walk_key = jax.random.split(jax.random.key(0))
    starts = jax.vmap(functools.partial(coingrid.reset, config))(jax.random.split(board_key, SHOWN_BOARDS))
    obs, following = [], []
    for cells in starts.cells:
        obs.append(np.asarray(coingrid_exact.all_observations(config, cells)).reshape(masks * poses, config.size, config.size, -1))
        moves = coingrid_exact.moves(config, cells)
        following.append(np.asarray(moves.mask * poses + moves.pose).reshape(masks * poses, -1))
    mask, pose = coingrid_exact.to_index(starts)
    steps = random_steps(config, walk_key)
    drawing = {
        "cells": coingrid.num_cells(config),
        "coins": np.asarray(starts.cells).tolist(),
        "colour": coingrid.coin_colours(config).tolist(),
        "fill": ["#d55e00", "#009e73", "#f0e442"],
        "longest": config.max_steps,
    }
    walk = tuple(np.asarray(x) for x in (steps.obs, steps.action, steps.next_obs, steps.discount, steps.features))
    return Boards(np.stack(obs), np.stack(following), np.asarray(mask * poses + pose), coingrid.COLOURS, ACTIONS, walk, drawing)


# --- What suits it -------------------------------------------------------------------------------------------------------

EPISODES = 3_000
"""Demonstrated episodes of each demonstrator."""


def _recorded(agent: Any, **fields: Any) -> dict[str, Any]:
    return {"agent": agent, "demos": "recorded", "episodes": EPISODES, "num_envs": 8, "prefill_steps": 1_024, **fields}


def beside_demonstrators(steps: int = 8_192) -> dict[str, Any]:
    """PsiPhi-learning in few steps. The sparse prior is whole when the study ends, so that phi means rewards from the first step on. It is
    weaker than ITD's: the ego's rewards ground phi too, and what the ego avoids is rare in its steps: the prior would forget it."""
    prefill, study, num_envs = 512, 250, 8
    ramp = study / (study + -(-(steps - prefill) // num_envs))
    inner = ITDConfig(torso="egocentric", sparsity=0.2, sparsity_ramp=ramp)
    pace = {"steps": steps, "prefill_steps": prefill, "study": study, "updates_per_rollout": 2, "evaluate_every": 256}
    return {"agent": PsiPhiConfig(itd=inner), "num_envs": num_envs, **pace}


PRESETS = {
    "itd": lambda: _recorded(ITDConfig(torso="egocentric"), updates=6_000, prefill_steps=2_048, evaluate_every=0),
    "psiphi": lambda: _recorded(**beside_demonstrators()),
    "dqn": lambda: _recorded(DQNConfig(torso="egocentric"), steps=50_000, updates_per_rollout=2, evaluate_every=2_048),
    "guided-dqn": lambda: _recorded(
        GuidedConfig(dqn=DQNConfig(torso="egocentric"), clone=BCConfig(torso="egocentric")),
        steps=50_000, updates_per_rollout=2, evaluate_every=2_048,
    ),
    "bc": lambda: _recorded(BCConfig(torso="egocentric"), updates=4_000, evaluate_every=2_048),
    "sqil": lambda: _recorded(
        SQILConfig(dqn=dataclasses.replace(sqil.default_dqn(), torso="egocentric")), steps=50_000, evaluate_every=2_048
    ),
    "gail": lambda: _recorded(
        GAILConfig(torso="egocentric", ppo=dataclasses.replace(gail.default_ppo(), torso="egocentric", temperature=1.0)),
        steps=50_000, num_envs=32, evaluate_every=2_048,
    ),
    "ppo": lambda: _recorded(PPOConfig(torso="egocentric", temperature=1.0), steps=50_000, num_envs=16, evaluate_every=2_048),
    "itd-dqn": lambda: _recorded(
        TogetherConfig(itd=ITDConfig(torso="egocentric"), dqn=DQNConfig(torso="egocentric")), steps=50_000, evaluate_every=0
    ),
}  # fmt: skip


def paper_itd() -> dict[str, Any]:
    """The paper's losses and numbers as printed; it prints no number of updates."""
    return PRESETS["itd"]() | {"agent": itd.paper()}


def paper_psiphi() -> dict[str, Any]:
    return PRESETS["itd"]() | {"agent": psiphi.paper()}


def _world(name: str, words: str, config: CoinGridConfig) -> World:
    return World(
        name=name,
        words=words,
        config=config,
        env=_env,
        tasks=lambda config: TASKS,
        task=_task,
        demonstrators=lambda config: ("R", "G"),
        wants=lambda config, name: _task(config, name),
        record=record,
        figures=_figures,
        longest=lambda config: config.max_steps,
        presets=PRESETS,
        paper={"itd": paper_itd, "psiphi": paper_psiphi},
        truth=truth,
        starc=starc,
        drawn=_drawn,
        boards=boards,
    )


COINGRID = _world("coingrid", "CoinGrid, a fresh random layout in every episode", CoinGridConfig())
COINGRID_25 = _world("coingrid-25", "CoinGrid, 25 layouts (the authors' number)", CoinGridConfig(num_layouts=25))
