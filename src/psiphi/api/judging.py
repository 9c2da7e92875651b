"""From a fit to its verdict: the evidence is measured on the logs, shown and held out, without any label."""

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from psiphi import model as models
from psiphi.api import evidence, replanning, verdict
from psiphi.api.answers import in_chunks
from psiphi.api.known import Known, all_rewards
from psiphi.demos import Demonstrations
from psiphi.demos.demonstrations import Episodes
from psiphi.model import Model
from psiphi.types import Demonstration

MOST_COMPARED = 64
"""Of observations with more numbers, only actions are compared to see whether ids are shuffled."""
MOST_STEPS = 20_000
"""Steps, of whole episodes, from which the evidence is measured."""

CAUTIONS = (0.1, 0.3, 1.0, 4.0)
"""Weights of the advantage in a reward: where an imitation does not generalise, where it does, where an agent is nearly at home, and where
it is, or where a plan on less leaves what the agent does."""

GAP = 0.2
"""An imitation generalises if held-out actions surprise it by less than this share of log A nats more than those that it learned from, and
by less than log A: in new layouts it is two to five times as much."""

FAMILIAR, NEARLY = 0.95, 0.9
"""An agent is at home, or nearly, if at least this share of its steps is in states in which another of its episodes was."""

REPEATS = 0.5
"""With less, states do not repeat, and held-out episodes are new places: an imitation that generalises knows what to do in those."""

KEPT = 0.98
"""A plan that avoids less of what its agent avoids is given more caution."""

ROUGHLY = 0.0
"""Where observations do not repeat, a network plans, and much less well: there, only a plan that is worse than chance says something."""

MOST_ANSWERS = 5_000_000
"""Every agent is asked about every step; of more agents, fewer steps are looked at."""

FEWEST_EPISODES = 5
"""Of agents with fewer episodes no whole one is held out: it is dearer to learn without than to judge by."""

FEWEST_STEPS = 40
"""Of these agents, the end of the longest episode is held out if it has as many steps."""


def shown_and_held(demos: Demonstrations, held_out: float, seed: int) -> tuple[Demonstrations, Demonstrations | None]:
    """What to learn from, and `held_out` of each agent to judge by: whole episodes or, of who has few, the end of a long one; or None.

    Where episodes belong to groups, whole groups are held out and no episode is cut.
    """
    episodes = np.bincount(demos.episodes.agent, minlength=len(demos.agents))
    rich = [agent for k, agent in enumerate(demos.agents) if episodes[k] >= FEWEST_EPISODES]
    if not held_out:
        return demos, None
    if demos.group is not None:  # what belongs together stays together, however few episodes an agent has
        return demos.split(held_out, seed) if rich else (demos, None)
    cut, tails = with_tails(demos, held_out, episodes < FEWEST_EPISODES)
    if not rich and not tails.any():
        return demos, None
    some = demos.split(held_out, seed)[1]
    names = {(demos.agents[k], name) for k, name in zip(some.episodes.agent.tolist(), some.episodes.id.tolist(), strict=True)}
    whose = zip(cut.episodes.agent.tolist(), cut.episodes.id.tolist(), strict=True)
    held = np.array([demos.agents[k] in rich and (demos.agents[k], name) in names for k, name in whose]) | tails
    return cut._chosen(~held), cut._chosen(held)


def with_tails(demos: Demonstrations, share: float, whose: np.ndarray) -> tuple[Demonstrations, np.ndarray]:
    """The longest episode of each of these agents in two, if it has enough steps; and which episodes are ends of others."""
    e, lengths = demos.episodes, demos.lengths
    longest = [max(np.flatnonzero(e.agent == k).tolist(), key=lambda i: lengths[i]) for k in np.flatnonzero(whose) if (e.agent == k).any()]
    cut = np.zeros(demos.num_episodes, bool)
    cut[[i for i in longest if lengths[i] >= FEWEST_STEPS]] = True
    order = np.repeat(np.arange(demos.num_episodes), 1 + cut)
    tail = np.append(False, order[1:] == order[:-1])
    head = np.append(tail[1:], False)
    at = e.start[order + 1] - np.maximum(np.round(share * lengths[order]), 1).astype(np.int64)
    start = np.append(np.where(tail, at, e.start[order]), e.start[-1])
    final, known = e.final_obs[order], e.has_final[order] | head
    final[head] = demos.obs[at[head]]
    ids = e.id[order]
    if ids.dtype.kind in "iu":
        ids = np.where(tail, ids.max(initial=0) + np.cumsum(tail), ids)
    else:  # names, of one width or, from tables, as objects
        ends = [f"{name} (end)" if end else name for name, end in zip(ids.tolist(), tail.tolist(), strict=True)]
        ids = np.array(ends, object if ids.dtype.kind == "O" else str)
    parts = Episodes(start, e.agent[order], ids, e.terminated[order] & ~head, e.truncated[order] | head, final, known)
    return dataclasses.replace(demos, episodes=parts), tail


def judged(
    known: Known,
    members: Sequence[Model],
    shown: Demonstrations,
    held: Demonstrations | None,
    kind: str,
    last: dict[str, Any],
    *,
    seed: int,
    background: Demonstration | None = None,
) -> Known:
    """The same knowledge with its verdict, and with as much caution as what was held out, and planning anew, ask for."""
    steps = _steps(shown, held, seed)
    asked = _asked(known, steps)
    log_prob = _likely(known, steps, asked)
    nll = evidence.by_agent(-log_prob[steps.who, np.arange(len(steps.who))], steps.who, steps.held, len(known.agents))
    familiar = evidence.by_agent(
        replanning.again(steps.state, steps.who, steps.episode).astype(float), steps.who, np.ones(len(steps.who), bool), len(known.agents)
    )
    gap = nll - evidence.by_agent(-log_prob[steps.who, np.arange(len(steps.who))], steps.who, ~steps.held, len(known.agents))
    least, most = _cautions(known, kind, nll, gap, familiar, np.bincount(steps.who[steps.held], minlength=len(known.agents)))
    levels = np.unique(np.clip(np.array(CAUTIONS)[:, None], least, most), axis=0)
    avoided, exact = _avoided(known, steps, asked, [np.zeros(len(least)), *levels], background, seed)
    chosen = _enough(avoided[1:], exact), np.arange(len(least))
    caution = levels[chosen]
    knows = caution > CAUTIONS[0]  # where the imitation does not generalise, it is no better to plan on
    handed = np.where(knows, np.stack(avoided[1:])[chosen], np.nan)
    plain, handed = (x if exact else np.where(x < ROUGHLY, x, np.nan) for x in (avoided[0], handed))
    found = measured(known, members, steps, asked, log_prob, seed)._replace(
        nll=nll,
        familiar=familiar,
        avoided=plain,
        handed=handed,
        cumulants=kind,
        gamma=known.gamma,
        rank=float(last.get("train/rank") or math.nan) if kind.startswith("learned") else math.nan,
        **_facts(shown, held),
    )
    said = verdict.judge(found)  # what is wanted of a board may be no count of what is on it
    doubtful = np.array([kind.startswith("counts") and agent in said.doubtful for agent in known.agents])
    forms = tuple("behaviour" if lost else "wants" for lost in (handed < verdict.HANDED) | doubtful)
    table = None
    if len(members) > 1:
        rewards = np.stack([in_chunks(all_rewards, member, steps.columns) for member in members])
        spread = evidence.interval(rewards)
        table = np.stack([np.minimum(spread.low, known.likeness), np.maximum(spread.high, known.likeness)])
    return dataclasses.replace(
        known,
        caution=tuple(caution.tolist()),
        forms=forms if known.form == "wants" else (),
        verdict=said,
        likeness_range=table,
    )


def _cautions(
    known: Known, kind: str, nll: np.ndarray, gap: np.ndarray, familiar: np.ndarray, held: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Of each agent, how much a plan should stay with what it does, at least and at most: the better its behaviour is known, the more.

    Features that the user gave, and counts of what is on a board, say what matters in new places, and a clone does not: there caution is
    for who is at home.
    """
    if known.form != "wants":
        return np.zeros(len(nll)), np.zeros(len(nll))
    nats = math.log(max(known.num_actions, 2))
    least, some, more, most = CAUTIONS
    generalises = (nll < nats) & (gap < GAP * nats) & (held >= verdict.FEW_HELD_OUT)
    home, nearly, repeats = familiar >= FAMILIAR, familiar >= NEARLY, familiar >= REPEATS
    if kind.startswith(("given", "counts")):
        return np.select([home, nearly], [most, more], 0.0), np.where(nearly, most, 0.0)
    knows = [home | (generalises & ~repeats), nearly, generalises]
    return np.select(knows, [most, more, some], least), np.select(knows, [most, most, more], least)


def _enough(avoided: Sequence[np.ndarray], exact: bool) -> np.ndarray:
    """Of each agent, the first caution at which a plan keeps to what it does; the last where none does, or where plans are rough."""
    kept = (np.stack(avoided) >= KEPT) & exact
    kept[-1] = True
    return kept.argmax(axis=0)


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

    @functools.cached_property
    def state(self) -> np.ndarray:
        """The same number for the same observation."""
        return replanning.numbered(self.obs.reshape(len(self.obs), -1))

    @property
    def columns(self) -> list[np.ndarray]:
        return [self.obs, self.action, self.next_obs, self.discount]


def _steps(shown: Demonstrations, held: Demonstrations | None, seed: int) -> Steps:
    most = min(MOST_STEPS, MOST_ANSWERS // len(shown.agents))
    parts = [_part(shown, False, most, seed)]
    if held is not None and len(held):
        parts.append(_part(held, True, most // 2, seed))
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


class Asked(NamedTuple):
    """What a model says of steps, in units of each agent's reward but for `values`."""

    values: np.ndarray
    """[N, K, A], as they are."""
    paid: np.ndarray
    """[N, K]: what is wanted, without caution."""
    advantage: np.ndarray
    """[N, K]: of what was done."""
    following: np.ndarray
    """[N, K]: what the next state is worth."""


def _asked(known: Known, steps: Steps) -> Asked:
    return _answers(known, steps.obs, steps.action, steps.next_obs, steps.discount)


def _answers(known: Known, obs: Any, action: Any, next_obs: Any, discount: Any) -> Asked:
    units = np.asarray(known.model.units)
    values = in_chunks(all_values, known.model, [obs])
    done = np.take_along_axis(values, np.asarray(action)[:, None, None].astype(np.int64), axis=2)[..., 0]
    paid = in_chunks(all_rewards, known.model, [obs, action, next_obs, discount])
    following = in_chunks(all_values, known.model, [next_obs]).max(axis=2)
    return Asked(values, paid, (done - values.max(axis=2)) / units, following / units)


def _likely(known: Known, steps: Steps, asked: Asked) -> np.ndarray:
    """``[K, N]``: how likely every agent makes what was done, in the logarithm."""
    logits = known.beta * (asked.values - asked.values.max(axis=2, keepdims=True))
    likely = np.exp(logits) / np.exp(logits).sum(axis=2, keepdims=True)
    lapse = np.asarray(known.lapse or [0.0] * len(known.agents))[:, None]
    shares = (1 - lapse) * likely + lapse / likely.shape[2]
    return np.log(np.maximum(np.take_along_axis(shares, steps.action[:, None, None].astype(np.int64), axis=2)[..., 0], 1e-8)).T


def _avoided(
    known: Known, steps: Steps, asked: Asked, cautions: Sequence[np.ndarray], background: Demonstration | None, seed: int
) -> tuple[list[np.ndarray], bool]:
    """For each choice of cautions, how much of what an agent would rather not do a plan on its reward avoids; and if plans are exact."""
    K = len(known.agents)
    if known.form != "wants":
        return [np.full(K, np.nan) for _ in cautions], True
    columns, paid, advantage, following = steps.columns, asked.paid, asked.advantage, asked.following
    who, starts = steps.who, np.diff(steps.episode, prepend=-1) != 0
    if background is not None:
        more = [np.asarray(x)[:MOST_STEPS] for x in (background.obs, background.action, background.next_obs, background.discount)]
        theirs = _answers(known, *more)
        columns = [np.concatenate([x, y.astype(x.dtype)]) for x, y in zip(columns, more, strict=True)]
        paid, advantage, following = (
            np.concatenate([getattr(asked, name), getattr(theirs, name)]) for name in ("paid", "advantage", "following")
        )
        who, starts = np.pad(who, (0, len(more[0])), constant_values=-1), np.pad(starts, (0, len(more[0])))
    obs, action, next_obs, discount = columns
    flat = [x.reshape(len(x), -1) for x in (obs, next_obs)]
    world = replanning.seen_world(flat[0], action.astype(np.int64), flat[1], discount)
    rewards = [paid + caution * advantage for caution in cautions]
    if world.known >= replanning.KNOWN:
        beyond = np.zeros((world.size, K))
        beyond[world.led] = following
        return replanning.kept(world, rewards, advantage, beyond, who, starts, known.gamma), True
    mine = np.flatnonzero(who >= 0)
    some = mine[_some(len(mine), seed)]
    seen, next_seen, done = _as_seen(known, obs[mine]), _as_seen(known, next_obs[some]), action.astype(np.int32)
    own = asked.values[np.arange(len(steps.who)), steps.who]
    at_home = np.ones(len(steps.who), bool)
    found = []
    for reward in rewards:
        steps_of = seen[some], done[some], next_seen, discount[some], reward[some].astype(np.float32)
        plan = evidence.replanned(*steps_of, known.gamma, known.num_actions, seed=seed)
        found.append(evidence.avoided(plan(seen), own - own.max(axis=1, keepdims=True), steps.who, at_home))
    return found, False


@jax.jit
def all_values(model: Model, obs: Any) -> jax.Array:
    """[B, K, A]"""
    return models.values(model, jnp.asarray(obs))


def measured(known: Known, members: Sequence[Model], steps: Steps, answer: Asked, log_prob: np.ndarray, seed: int) -> verdict.Evidence:
    """All of the evidence that asks the model or a rival."""
    K, A = len(known.agents), known.num_actions
    rewards = np.stack([in_chunks(all_rewards, member, steps.columns) for member in members])
    paid, values = answer.paid, answer.values
    target = answer.advantage + values.max(axis=2) / np.asarray(known.model.units)
    target -= known.gamma * steps.discount[:, None] * answer.following
    spread = values.std(axis=(0, 2)) / np.asarray(known.model.units)
    own = steps.who[:, None] == np.arange(K)
    asked = steps.held if steps.held.any() else np.ones(len(steps.held), bool)
    facts: dict[str, Any] = dict(agents=K, num_actions=A)
    seen = _as_seen(known, steps.obs)
    action, some = steps.action.astype(np.int32), _some(len(steps.action), seed)
    tells = (  # counting needs states that repeat, policies held-out episodes, habits differences on the whole: whatever tells more
        replanning.habits_tell(_changes(steps), steps.action.astype(np.int64), steps.who, steps.episode, K),
        replanning.ids_tell(steps.state, steps.action.astype(np.int64), steps.who, steps.episode, K),
        evidence.ids_tell(log_prob, steps.who, steps.episode, steps.held),
    )
    return verdict.unmeasured(known.agents, A)._replace(
        majority=evidence.majority_nll(action, steps.who, steps.held, **facts),
        count=evidence.count_nll(seen, action, steps.who, steps.held, **facts),
        clone=evidence.clone_nll(seen[some], action[some], steps.who[some], steps.held[some], **facts, seed=seed),
        told_apart=evidence.told_apart(log_prob, steps.who, steps.held),
        one_for_all=evidence.one_for_all(log_prob, steps.who, steps.held),
        outdone=evidence.outdone(paid, steps.who, steps.episode, known.gamma),
        agreement=evidence.agreement(rewards, steps.who),
        coverage=np.array([known.coverage.share[agent] for agent in known.agents]),
        explained=np.array([_explained(paid[asked, k], target[asked, k]) for k in range(K)]),
        signal=np.array([paid[own[:, k], k].std() / max(spread[k], 1e-8) for k in range(K)]),
        held_out_steps=np.bincount(steps.who[steps.held], minlength=K).astype(float),
        consistency=known.beta * np.asarray(known.model.units),
        lapse=np.asarray(known.lapse or [math.nan] * K),
        ids=float(np.fmax.reduce(tells)),
    )


def _changes(steps: Steps) -> np.ndarray:
    """[N, n]: how the observed numbers change in each step; of pictures, nothing."""
    if math.prod(steps.obs.shape[1:]) > MOST_COMPARED:
        return np.zeros((len(steps.obs), 0))
    before, after = (x.reshape(len(x), -1).astype(np.float64) for x in (steps.obs, steps.next_obs))
    return after - before


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
