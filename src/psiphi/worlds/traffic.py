"""What Highway and Roundabout share as worlds: IDM recorded in the ego's seat, returns as shares of IDM's, and settings that suit both."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from psiphi.agents.bc import BCConfig
from psiphi.agents.dqn import DQNConfig
from psiphi.agents.gail import GAILConfig
from psiphi.agents.guided import GuidedConfig
from psiphi.agents.itd import ITDConfig
from psiphi.agents.ppo import PPOConfig
from psiphi.agents.psiphi import PsiPhiConfig
from psiphi.agents.sqil import SQILConfig
from psiphi.agents.together import TogetherConfig
from psiphi.loops.evaluate import rollout_returns
from psiphi.types import Demonstration, Demos, Env, Metrics
from psiphi.worlds.world import Recorded

Expert = Callable[[Any], Array]
"""``expert(state) -> action``: what IDM and MOBIL would do in the ego's place."""


# --- Demonstrations ------------------------------------------------------------------------------------------------------


class _Driving(NamedTuple):
    """An episode under way; `running` falls once and for ever."""

    state: Any
    obs: Array
    running: Array


def driven(
    env: Env, expert: Expert, arrived: Callable[[Any], Array], key: Array, episodes: int, longest: int
) -> tuple[Array, Demonstration]:
    """All steps, episode after episode, and which of them are real: those until the end, without a crash, which no driver intends."""

    def step(now: _Driving, _: None) -> tuple[_Driving, tuple[Array, Demonstration]]:
        state, obs, running = now
        action = expert(state)
        after, reached = env.step(state, action, key)  # nothing in a step is random
        shown = Demonstration(obs, action, reached.discount, reached.obs, expert(after))
        real = running & ((reached.discount > 0) | arrived(reached))
        return _Driving(after, reached.obs, running & ~reached.last), (real, shown)

    def episode(reset_key: Array) -> tuple[Array, Demonstration]:
        return jax.lax.scan(step, _Driving(*env.reset(reset_key), jnp.ones((), bool)), length=longest)[1]

    shown = jax.vmap(episode)(jax.random.split(key, episodes))
    return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), shown)


def side_by_side(shown: list[tuple[Any, Demonstration]], episodes: int, longest: int) -> Recorded:
    """The real steps of each demonstrator, padded to a common length."""
    counts = [int(real.sum()) for real, _ in shown]
    room = max(counts)
    steps = [jax.tree.map(lambda x, real=real: np.resize(x[real], (room, *x.shape[1:])), some) for real, some in shown]
    number = np.repeat(np.arange(episodes), longest)
    episode = np.full((len(shown), room), -1)
    for k, (real, _) in enumerate(shown):
        episode[k, : counts[k]] = number[real]
    demos = Demos(jax.tree.map(lambda *x: jnp.asarray(np.stack(x)), *steps), jnp.array(counts, jnp.int32))
    return Recorded(demos, jnp.asarray(episode))


def recording_key(seed: int, split: str) -> Array:
    return jax.random.fold_in(jax.random.key(seed), {"train": 1, "test": 2}[split])


# --- Returns -------------------------------------------------------------------------------------------------------------


def expert_returns(env: Env, expert: Expert, key: Array, episodes: int, longest: int) -> dict[str, Array]:
    """What IDM and MOBIL earn in the ego's place, by the ego's own actions: the return that all others are divided by."""

    def reset(reset_key: Array) -> tuple[Any, Array]:
        state, obs = env.reset(reset_key)
        return (state, expert(state)), obs

    def step(state: tuple[Any, Array], action: Array, step_key: Array) -> tuple[Any, Any]:
        del action  # what it would do is part of the state: no policy need guess it from the observation
        after, reached = env.step(state[0], state[1], step_key)
        return (after, expert(after)), reached

    return rollout_returns(Env(env.spec, reset, step), lambda obs, _: jnp.zeros(obs.shape[0], jnp.int32), key, episodes, longest)


def figures(reference: float | None, got: Mapping[str, Array]) -> Metrics:
    """The mean return, over IDM's where that is known."""
    mean = jnp.mean(got["returns"])
    return {"return": mean} if reference is None else {"normalised_return": mean / reference, "return": mean}


# --- Rewards that were inferred ------------------------------------------------------------------------------------------

STATES, WALKS, HORIZON, ROAMED = 64, 16, 64, 0.3
"""Of the sampled STARC distance: states, random walks after each action there, their longest, and the share of random actions of those who
met the states."""


def starc(
    env: Env, expert: Expert, inferred: Callable[[Array, Array, Array, Array], Array], key: Array, gamma: float, longest: int
) -> Array:
    """The STARC distance of an inferred reward to the world's own, sampled: as CoinGrid's, but of some states and some random walks.

    ``inferred(obs, action, next_obs, discount)`` is of a batch. The states are those that IDM meets when a third of its actions is random.
    After each action there, the same random actions follow under both rewards, so that what shaping adds cancels in every walk, but for
    what is left of it after the longest.
    """
    meet_key, walk_key = jax.random.split(key)
    actions = jnp.arange(env.spec.num_actions)
    states, obs = _met(env, expert, meet_key, longest)
    each = lambda x: jnp.broadcast_to(x[:, None, None], (STATES, WALKS, actions.shape[0], *x.shape[1:])).reshape(-1, *x.shape[1:])  # noqa: E731
    later = jax.random.randint(walk_key, (HORIZON, STATES, WALKS, 1), 0, actions.shape[0])
    later = (
        jnp.broadcast_to(later, (*later.shape[:-1], actions.shape[0]))
        .at[0]
        .set(jnp.broadcast_to(actions, (STATES, WALKS, actions.shape[0])))
    )
    walked = _walked(env, inferred, jax.tree.map(each, states), each(obs), later.reshape(HORIZON, -1), gamma)
    q = jnp.mean(walked.reshape(STATES, WALKS, actions.shape[0], 2), axis=1)
    level = (q - jnp.mean(q, axis=1, keepdims=True)).reshape(-1, 2)
    size = jnp.linalg.norm(level, axis=0)
    level = jnp.where(size > 1e-6, level / jnp.maximum(size, 1e-6), 0.0)
    return jnp.linalg.norm(level[:, 0] - level[:, 1]) / 2


def _met(env: Env, expert: Expert, key: Array, longest: int) -> tuple[Any, Array]:
    """A state of each of some episodes, at a time that is as likely as any other before it ends, and what is seen there."""
    reset_key, action_key, roam_key, when_key = jax.random.split(key, 4)

    def step(now: _Driving, keys: tuple[Array, Array]) -> tuple[_Driving, _Driving]:
        random = jax.random.randint(keys[0], (), 0, env.spec.num_actions)
        action = jnp.where(jax.random.bernoulli(keys[1], ROAMED), random, expert(now.state))
        after, reached = env.step(now.state, action, keys[0])
        return _Driving(after, reached.obs, now.running & ~reached.last), now

    def episode(reset_key: Array, action_key: Array, roam_key: Array, when_key: Array) -> tuple[Any, Array]:
        start = _Driving(*env.reset(reset_key), jnp.ones((), bool))
        _, passed = jax.lax.scan(step, start, (jax.random.split(action_key, longest), jax.random.split(roam_key, longest)))
        when = jax.random.randint(when_key, (), 0, jnp.sum(passed.running))
        return jax.tree.map(lambda x: x[when], (passed.state, passed.obs))

    return jax.vmap(episode)(*(jax.random.split(one, STATES) for one in (reset_key, action_key, roam_key, when_key)))


def _walked(env: Env, inferred: Callable[..., Array], states: Any, obs: Array, actions: Array, gamma: float) -> Array:
    """``[N, 2]``: what walks by these actions ``[HORIZON, N]`` earn by the inferred and by the true reward, discounted."""
    keys = jax.random.split(jax.random.key(0), obs.shape[0])  # nothing in a step is random

    def step(now: tuple[Any, Array, Array, Array], action: Array) -> tuple[tuple[Any, Array, Array, Array], None]:
        state, obs, weight, earned = now
        after, reached = jax.vmap(env.step)(state, action, keys)
        paid = jnp.stack([inferred(obs, action, reached.obs, reached.discount), reached.reward], axis=-1)
        return (after, reached.obs, weight * gamma * reached.discount * ~reached.last, earned + weight[:, None] * paid), None

    start = (states, obs, jnp.ones(obs.shape[0]), jnp.zeros((obs.shape[0], 2)))
    return jax.lax.scan(step, start, actions)[0][3]


# --- What suits them -----------------------------------------------------------------------------------------------------


def dqn() -> DQNConfig:
    """Smaller networks and batches than in the paper's column for Highway, as a CPU wants, and a shorter horizon (paper: gamma 1)."""
    return DQNConfig(
        torso="crowd-norm", torso_hidden=(128, 128), head_hidden=(128,), gamma=0.95, n_step=3, learning_rate=2e-3, cosine=True, batch=128,
        replay_size=80_000, epsilon_end=0.02, epsilon_steps=1_000, ema=0.02, mirror=False,
    )  # fmt: skip


def sqil() -> SQILConfig:
    inner = replace(dqn(), torso="crowd", n_step=1, double=False, epsilon_start=0.0, epsilon_end=0.0, epsilon_steps=5_000)
    return SQILConfig(dqn=inner, temperature=0.03)


def bc() -> BCConfig:
    return BCConfig(torso="crowd", torso_hidden=(128, 128), mirror=False)


def ppo() -> PPOConfig:
    return PPOConfig(torso="crowd", torso_hidden=(128, 128), gamma=0.97, rollout_length=64, epochs=8, minibatches=16, mirror=False)


def gail() -> GAILConfig:
    return GAILConfig(ppo=ppo(), torso="crowd", torso_hidden=(128, 128), mirror=False)


def itd() -> ITDConfig:
    """Demonstrators never arrive anywhere (no anchor), and rewards are dense (little sparsity)."""
    return ITDConfig(
        num_cumulants=8, gamma=0.95, torso="crowd-norm", torso_hidden=(128, 128), phi_hidden=(128, 64), psi_hidden=(64,),
        learning_rate=2e-3, batch=32, cross_batch=128, bc_weight=1.0, anchor=0.0, sparsity=0.05, ema=0.03, mirror=False,
        replay_size=80_000,
    )  # fmt: skip


def psiphi() -> PsiPhiConfig:
    return PsiPhiConfig(itd=itd(), batch=128, reward_weight=30.0, epsilon=0.03, temperature=0.0)


def together() -> TogetherConfig:
    return TogetherConfig(itd=itd(), dqn=replace(dqn(), n_step=1))


def presets(*, reward_offset: float, psiphi_updates: int) -> dict[str, Callable[[], dict[str, Any]]]:
    """By algorithm. Those who learn from rewards take `reward_offset` off each of them: on Highway every step is paid, so that to go on at
    all is worth more than to go on well. PsiPhi-learning makes `psiphi_updates` after each rollout; a DQN was not better with more."""
    pace = {"demos": "online", "steps": 32_000, "prefill_steps": 1_000, "num_envs": 8, "evaluate_every": 2_000}
    wide = pace | {"num_envs": 32, "steps": 250_000, "evaluate_every": 20_480}
    return {
        "psiphi": lambda: pace | {"agent": replace(psiphi(), reward_offset=reward_offset), "updates_per_rollout": psiphi_updates},
        "itd": lambda: pace | {"agent": itd(), "evaluate_every": 0},
        "dqn": lambda: pace | {"agent": replace(dqn(), reward_offset=reward_offset)},
        "guided-dqn": lambda: pace | {"agent": GuidedConfig(dqn=replace(dqn(), reward_offset=reward_offset), clone=bc())},
        "bc": lambda: pace | {"agent": bc(), "pooled": True},
        "sqil": lambda: pace | {"agent": sqil(), "pooled": True},
        "gail": lambda: wide | {"agent": gail(), "pooled": True, "demos": "recorded", "episodes": 100},
        "ppo": lambda: wide | {"agent": ppo()},
        "itd-dqn": lambda: pace | {"agent": together(), "evaluate_every": 0, "demos": "recorded", "episodes": 100},
    }  # fmt: skip
