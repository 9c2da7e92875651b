"""From a fit to its verdict: the evidence is measured on the logs, shown and held out, without any label."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from psiphi import model as models
from psiphi.api import evidence, verdict
from psiphi.api.answers import in_chunks
from psiphi.api.known import Known, all_rewards
from psiphi.demos import Demonstrations
from psiphi.model import Model

MOST_STEPS = 20_000
"""Steps, of whole episodes, from which the evidence is measured."""

CAUTION = 0.3
"""The share of the advantage in a reward whose agent is imitated well where nothing was shown."""

GENERALISES = 0.6
"""An imitation generalises if held-out actions surprise it by less than this share of log A nats: measured in worlds with known truth."""


def judged(
    known: Known,
    members: Sequence[Model],
    shown: Demonstrations,
    held: Demonstrations | None,
    kind: str,
    last: dict[str, Any],
    *,
    seed: int,
) -> Known:
    """The same knowledge with its verdict, and with as much caution as what was held out allows."""
    steps = _steps(shown, held, seed)
    log_prob, imitated = _policies(known, steps)
    nll = evidence.by_agent(-log_prob[steps.who, np.arange(len(steps.who))], steps.who, steps.held, len(known.agents))
    found = measured(known, members, steps, log_prob, imitated, seed)._replace(
        nll=nll,
        cumulants=kind,
        gamma=known.gamma,
        rank=float(last.get("train/rank") or math.nan) if kind.startswith("learned") else math.nan,
        **_facts(shown, held),
    )
    wanted = known.form == "wants"
    caution = tuple(CAUTION if wanted and n < GENERALISES * math.log(max(known.num_actions, 2)) else 0.0 for n in nll)
    return dataclasses.replace(known, caution=caution, verdict=verdict.judge(found))


@dataclasses.dataclass(frozen=True)
class Steps:
    """Flat columns of some episodes of everybody; every step leads somewhere that was seen, or to an end."""

    obs: np.ndarray
    action: np.ndarray
    next_obs: np.ndarray
    discount: np.ndarray
    who: np.ndarray
    episode: np.ndarray
    held: np.ndarray

    @property
    def columns(self) -> list[np.ndarray]:
        return [self.obs, self.action, self.next_obs, self.discount]


def _steps(shown: Demonstrations, held: Demonstrations | None, seed: int) -> Steps:
    parts = [_part(shown, False, MOST_STEPS, seed)]
    if held is not None and len(held):
        parts.append(_part(held, True, MOST_STEPS // 2, seed))
    first = parts[0].episode.max(initial=-1) + 1
    if len(parts) > 1:
        parts[1] = dataclasses.replace(parts[1], episode=parts[1].episode + first)
    return Steps(*(np.concatenate([getattr(part, field.name) for part in parts]) for field in dataclasses.fields(Steps)))


def _part(demos: Demonstrations, held: bool, most: int, seed: int) -> Steps:
    """Whole episodes, drawn at random and as many of each agent as of any other, of about `most` steps."""
    order = np.random.default_rng(seed).permutation(demos.num_episodes)
    room = np.full(len(demos.agents), max(most // len(demos.agents), 1))
    chosen = []
    for e in order.tolist():
        k = int(demos.episodes.agent[e])
        if room[k] > 0:
            chosen.append(e)
            room[k] -= int(demos.lengths[e])
    columns: list[list[np.ndarray]] = [[] for _ in range(6)]
    for number, e in enumerate(sorted(chosen)):
        one = demos.trajectory(e)
        ended = one.final_obs is None
        length = len(one.action) - (ended and not one.terminated)
        following = np.concatenate([one.obs[1:], one.obs[-1:] if one.final_obs is None else one.final_obs[None]])
        discount = np.ones(len(one.action), np.float32)
        discount[-1] = 0.0 if one.terminated else 1.0
        k = int(demos.episodes.agent[e])
        row = (one.obs, one.action, following, discount, np.full(len(one.action), k), np.full(len(one.action), number))
        for column, values in zip(columns, row, strict=True):
            column.append(values[:length])
    obs, action, next_obs, discount, who, episode = (np.concatenate(column) for column in columns)
    return Steps(obs, action, next_obs, discount, who.astype(np.int64), episode.astype(np.int64), np.full(len(action), held))


def _policies(known: Known, steps: Steps) -> tuple[np.ndarray, np.ndarray]:
    """``[K, N]``: how likely every agent makes what was done, in the logarithm; and what the agent whose step it is does most likely."""
    values = in_chunks(all_values, known.model, [steps.obs])  # [N, K, A]
    logits = known.beta * (values - values.max(axis=2, keepdims=True))
    likely = np.exp(logits) / np.exp(logits).sum(axis=2, keepdims=True)
    lapse = np.asarray(known.lapse or [0.0] * len(known.agents))[:, None]
    chance = np.take_along_axis((1 - lapse) * likely + lapse / values.shape[2], steps.action[:, None, None].astype(np.int64), axis=2)[
        ..., 0
    ]
    return np.log(np.maximum(chance, 1e-8)).T, values[np.arange(len(steps.who)), steps.who].argmax(axis=1)


@jax.jit
def all_values(model: Model, obs: Any) -> jax.Array:
    """[B, K, A]"""
    return models.values(model, jnp.asarray(obs))


def measured(
    known: Known, members: Sequence[Model], steps: Steps, log_prob: np.ndarray, imitated: np.ndarray, seed: int
) -> verdict.Evidence:
    """All of the evidence that asks the model or a rival."""
    K, A = len(known.agents), known.num_actions
    rewards = np.stack([in_chunks(all_rewards, member, steps.columns) for member in members])
    paid = in_chunks(all_rewards, known.model, steps.columns)
    values = in_chunks(all_values, known.model, [steps.obs])
    q = np.take_along_axis(values, steps.action[:, None, None].astype(np.int64), axis=2)[..., 0]
    following = in_chunks(all_values, known.model, [steps.next_obs]).max(axis=2)
    target = (q - known.gamma * steps.discount[:, None] * following) / np.asarray(known.model.units)
    spread = values.std(axis=(0, 2)) / np.asarray(known.model.units)
    own = steps.who[:, None] == np.arange(K)
    asked = steps.held if steps.held.any() else np.ones(len(steps.held), bool)
    facts: dict[str, Any] = dict(agents=K, num_actions=A)
    seen = _as_seen(known, steps.obs)
    action, next_seen = steps.action.astype(np.int32), _as_seen(known, steps.next_obs)
    some = _some(len(action), seed)
    planned_on = seen[some], action[some], next_seen[some], steps.discount[some], paid[some].astype(np.float32)
    plan = evidence.replanned(*planned_on, known.gamma, A, seed=seed)
    return verdict.unmeasured(known.agents, A)._replace(
        majority=evidence.majority_nll(action, steps.who, steps.held, **facts),
        count=evidence.count_nll(seen, action, steps.who, steps.held, **facts),
        clone=evidence.clone_nll(seen[some], action[some], steps.who[some], steps.held[some], **facts, seed=seed),
        told_apart=evidence.told_apart(log_prob, steps.who, steps.held),
        one_for_all=evidence.one_for_all(log_prob, steps.who, steps.held),
        outdone=evidence.outdone(paid, steps.who, steps.episode, known.gamma),
        agreement=evidence.agreement(rewards, steps.who),
        coverage=np.array([known.coverage.share[agent] for agent in known.agents]),
        replan=evidence.replan_agreement(plan(seen), imitated, steps.who, action, steps.held),
        explained=np.array([_explained(paid[asked, k], target[asked, k]) for k in range(K)]),
        signal=np.array([paid[own[:, k], k].std() / max(spread[k], 1e-8) for k in range(K)]),
        held_out_steps=np.bincount(steps.who[steps.held], minlength=K).astype(float),
        consistency=known.beta * np.asarray(known.model.units),
        lapse=np.asarray(known.lapse or [math.nan] * K),
    )


def _some(steps: int, seed: int) -> np.ndarray:
    """As many of the steps as the largest power of two: rivals that learn are compiled once for many sizes of logs."""
    return np.sort(np.random.default_rng(seed).permutation(steps)[: 1 << (steps.bit_length() - 1)])


def _as_seen(known: Known, obs: np.ndarray) -> np.ndarray:
    """Observations as rows of standardised numbers."""
    from psiphi.lens import look

    lens = known.lens
    seen = look(obs, lens.mean, lens.scale, lens.layout, lens.standardise)
    return np.ascontiguousarray(seen.reshape(len(seen), -1), np.float32)


def _explained(paid: np.ndarray, target: np.ndarray) -> float:
    """The share of what the values ask for that the reward gives."""
    return 1.0 - float(np.mean(np.square(target - paid)) / max(float(np.var(target)), 1e-12))


def _facts(shown: Demonstrations, held: Demonstrations | None) -> dict[str, Any]:
    every = [shown] if held is None else [shown, held]
    lengths = np.concatenate([part.lengths for part in every])
    ended = np.concatenate([part.episodes.terminated for part in every])
    whose = np.concatenate([part.episodes.agent for part in every])
    episodes = np.bincount(whose, minlength=len(shown.agents)).astype(float)
    return {"median_length": float(np.median(lengths)), "terminated_share": float(ended.mean()), "episodes": episodes}
