"""Kinds of agents where ids are missing, or are too many: which episodes (or agents) act alike?

A mixture of policies, fitted by expectation maximisation: each kind has a policy, and each unit (an episode, or all that one agent did)
is of one kind. Networks remember what they were fitted to, and would confirm any sorting; so there are two of them, each fitted to one half
of the units, and a unit is sorted by the network that did not see it. The likelihood of the sorting is then a held-out one, and says how
many kinds there are. To stop is something that an agent does: the last observation of a terminated episode has an action of its own.
"""

from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from psiphi import configs, doors, limits, optim, printable
from psiphi.api.explore import followed
from psiphi.configs import Count, Seed, Within
from psiphi.demos import Demonstrations
from psiphi.demos.demonstrations import AgentId
from psiphi.demos.kmeans import k_means, nearest
from psiphi.errors import UserError
from psiphi.lens import lens_for, look
from psiphi.nets import MLP, Torso, TorsoName, torso
from psiphi.progress import shown as progress_bar

MOST_KINDS = 8
"""Where the number is to be found, up to so many are tried."""
FIRST = 400
"""Updates of the networks on the sorting that is begun with, before they may change it."""
UPDATES = 150
"""Further updates, after each sorting."""
COOLING = (0.25, 0.5, 1.0, 1.0, 1.0)
"""How much the likelihood counts in each sorting: at first little, as the networks have learned little."""
BATCH, RATE, WIDTH, DECAY = 256, 2e-3, 128, 0.3
LAPSE = 0.05
"""Share of steps that are taken for mistakes: a unit is not thrown out of its kind by one step."""
BETTER = 2.0
"""Standard errors by which more kinds must predict better."""
SURE = 0.8
"""A kind whose units are its own by less than this, on average, is hardly told apart. On tuning seeds of CoinGrid, true kinds have 0.98 or
more, and halves of one that is taken for two 0.55 to 0.65."""

Of = Literal["episodes", "agents"]
"""What is sorted."""


@dataclass(frozen=True)
class Kinds:
    """Units sorted into kinds; print it."""

    units: tuple[Any, ...]
    """What was sorted: agents, or pairs of agent and episode."""
    share: np.ndarray
    """``[U, K]``: how likely each unit is of each kind, by a network that did not see the unit."""
    nats: dict[int, float]
    """By number of kinds: nats per step of units that were not fitted to, less is better."""
    demos: Demonstrations
    """The same episodes with kinds for agents."""

    @property
    def number(self) -> int:
        return self.share.shape[1]

    @property
    def label(self) -> np.ndarray:
        """``[U]``: the likeliest kind of each unit, counted from 0."""
        return self.share.argmax(axis=1)

    @property
    def sure(self) -> np.ndarray:
        """``[K]``: how likely the units of each kind are of it, on average; nan of a kind without any."""
        return _sure(self.share)

    @property
    def doubts(self) -> list[str]:
        """Sentences about what speaks against the sorting."""
        if self.number == 1:
            return ["One kind predicts what is done as well as several: no kinds were told apart."] if len(self.nats) > 1 else []
        found = [f"Kind {k + 1} has no unit that is likelier of it than of another." for k in np.flatnonzero(np.isnan(self.sure))]
        found += [
            f"Kind {k + 1} is hardly told apart: its units are its own by {self.sure[k]:.0%} on average, expected at least {SURE:.0%}."
            for k in np.flatnonzero(self.sure < SURE)
        ]
        if max(self.nats) == self.number == MOST_KINDS and len(self.nats) > 1:
            found.append(f"There may be more than {MOST_KINDS} kinds: more were not tried.")
        return found

    def __str__(self) -> str:
        count = np.bincount(self.label, minlength=self.number)
        lines = [f"{len(self.units):,} units, {self.number} kind{'s' if self.number > 1 else ''}"]
        lines += [f"  kind {k + 1}: {n:,} units" + (f", sure to {self.sure[k]:.2f} on average" if n else "") for k, n in enumerate(count)]
        lines.append("nats per step of units that were not fitted to: " + ", ".join(f"{k}: {x:.4f}" for k, x in self.nats.items()))
        return "\n".join([*lines, *map(printable.sentence, self.doubts)])


def find_kinds(
    demos: Demonstrations,
    kinds: int | Literal["auto"] = "auto",
    *,
    of: Of = "episodes",
    seed: int = 0,
    beginnings: Annotated[int, Within(1, 3)] = 3,
    torso: TorsoName = "auto",
    progress: bool = True,
) -> Kinds:
    """Sort episodes (or agents, with all their episodes) into kinds that act by one policy each.

    >>> kinds = psiphi.find_kinds(demos, "auto")
    >>> print(kinds)
    >>> itd = psiphi.ITD(seed=0).fit(kinds.demos)      # an agent for each kind

    "auto" takes the smallest number that no larger one beats, up to 8, by the likelihood of units that were not fitted to; all of its kinds
    must be told apart. Each of the `beginnings` is a clustering of other things: of what changes and is done, of what changes, of both and
    what is seen. The likeliest result is taken.
    """
    doors.demonstrations(demos, Demonstrations)
    seed = configs.fit(Seed, seed, "seed")
    wanted = None if kinds == "auto" else configs.fit(Count, kinds, "kinds")
    beginnings = configs.fit(Annotated[int, Within(1, 3)], beginnings, "beginnings")
    unit, units = _units(demos, of)
    _check(wanted, len(units), of)
    numbers = range(1, min(MOST_KINDS, len(units) // 2) + 1) if wanted is None else [wanted]
    problem = _problem(demos, unit, len(units), torso, seed, heads=numbers[-1])
    fits: dict[int, Fit] = {}
    with progress_bar("kinds", done=0, total=len(numbers), enabled=progress) as display:
        for done, k in enumerate(numbers):
            fits[k] = _fitted(problem, k, seed, beginnings)
            display.advance(done + 1, {"nats": _nats(problem, fits[k])})
            if k - 2 in fits and not any(_beats(fits[j], fits[k - 2]) for j in (k - 1, k)):
                break
    best = fits[_fewest(fits)]
    share = best.share[:, np.argsort(-best.share.sum(axis=0), kind="stable")]
    nats = {k: _nats(problem, fit) for k, fit in fits.items()}
    return Kinds(units, share, nats, relabelled(demos, unit, share.argmax(axis=1), share.shape[1]))


def _units(demos: Demonstrations, of: Of) -> tuple[np.ndarray, tuple[Any, ...]]:
    """Of each episode the number of its unit, and what the units are called."""
    if of not in ("episodes", "agents"):
        raise UserError(f'of is {of!r}, expected "episodes" or "agents".')
    if of == "agents":
        there, unit = np.unique(demos.episodes.agent, return_inverse=True)
        return unit, tuple(demos.agents[k] for k in there.tolist())
    names = tuple((demos.agents[k], e) for k, e in zip(demos.episodes.agent.tolist(), demos.episodes.id.tolist(), strict=True))
    return np.arange(demos.num_episodes), names


def _check(kinds: int | None, units: int, of: Of) -> None:
    if of == "agents" and units < 2:
        raise UserError("There is one agent only, expected several to sort into kinds, or --agent none, which sorts episodes.")
    if units < 2 * (kinds or 2):
        raise UserError(f"There are {units} {of} to sort into {kinds or 'some'} kinds, expected at least {2 * (kinds or 2)}.")
    limits.check_most("There are too many kinds", kinds or 0, 256)


def relabelled(demos: Demonstrations, unit: np.ndarray, label: np.ndarray, kinds: int) -> Demonstrations:
    """The same episodes, numbered anew, with kinds for agents; a kind that has none is left out."""
    whose = label[unit]
    there = [k for k in range(kinds) if (whose == k).any()]
    place = np.full(kinds, -1, np.int32)
    place[there] = np.arange(len(there))
    agents: tuple[AgentId, ...] = tuple(f"kind {k + 1}" for k in there)
    episodes = demos.episodes._replace(agent=place[whose], id=np.arange(demos.num_episodes))
    return replace(demos, agents=agents, episodes=episodes)


# --- How many ----------------------------------------------------------------------------------------------------------------------


class Fit(NamedTuple):
    share: np.ndarray
    """[U, K]"""
    each: np.ndarray
    """[U]: the log-likelihood of each unit, by the network that did not see it."""


def _sure(share: np.ndarray) -> np.ndarray:
    """``[K]``: the mean share that the units which are likeliest of a kind have in it; nan if there are none."""
    label = share.argmax(axis=1)
    mine = [share[label == k, k] for k in range(share.shape[1])]
    return np.array([some.mean() if len(some) else np.nan for some in mine])


def _beats(more: Fit, fewer: Fit) -> bool:
    """Whether units are predicted better, by more than chance."""
    gain = more.each - fewer.each
    return bool(gain.mean() > BETTER * gain.std() / np.sqrt(len(gain)))


def _fewest(fits: dict[int, Fit]) -> int:
    """The smallest number of kinds that no larger one beats, of those whose kinds are all told apart.

    Two policies for one kind may predict it better than one, as any two guesses do; but no unit is then sure to be of either.
    """
    apart = [k for k, fit in fits.items() if k == min(fits) or (_sure(fit.share) >= SURE).all()]  # never true of nan
    return next(k for k in apart if not any(_beats(fits[j], fits[k]) for j in apart if j > k))


def _nats(problem: "Problem", fit: Fit) -> float:
    return float(-fit.each.sum() / len(problem.steps.action))


# --- Sorting and fitting -----------------------------------------------------------------------------------------------------------


class Steps(NamedTuple):
    """What is to be predicted, and by whom."""

    obs: Array
    """[N, ...]: all observations, as a network sees them."""
    action: Array
    """[N]: what was done there; to stop is the last action."""
    unit: Array
    """[N]"""
    half: Array
    """[U]: which network does not see the unit."""
    index: Array
    """[2, M]: the steps that each network is fitted to, the shorter list repeated."""


class Policies(NamedTuple):
    """A torso and, of each kind, logits."""

    torso: Torso
    head: MLP

    def log_likely(self, obs: Array, action: Array, kinds: int) -> Array:
        """[B, K]: the logarithm of how likely each kind does that."""
        logits = self.head(self.torso(obs)).reshape(obs.shape[0], kinds, -1)
        chance = jnp.take_along_axis(jax.nn.softmax(logits), action[:, None, None], axis=2)[..., 0]
        return jnp.log((1 - LAPSE) * chance + LAPSE / logits.shape[2])


class Problem(NamedTuple):
    steps: Steps
    views: tuple[np.ndarray, ...]
    """[U, features]: what each unit did and led to, in several ways."""
    nets: Policies
    """Two untrained networks, stacked."""
    heads: int
    """They have so many kinds; of fewer, the rest is not used, so that all numbers of kinds are one compiled program."""


def _problem(demos: Demonstrations, unit: np.ndarray, units: int, torso_name: TorsoName, seed: int, heads: int) -> Problem:
    lens, e = lens_for(demos.obs, demos.obs.shape[1:], demos.obs.dtype), demos.episodes
    stopped = np.flatnonzero(e.terminated & e.has_final)
    obs = np.concatenate([demos.obs, e.final_obs[stopped]])
    action = np.concatenate([demos.action, np.full(len(stopped), demos.num_actions)])
    whose = np.concatenate([np.repeat(unit, demos.lengths), unit[stopped]])
    seen = look(obs, lens.mean, lens.scale, lens.layout, lens.standardise)
    half = _halves(demos, unit, units, seed)
    shown = [np.flatnonzero(half[whose] != h) for h in (0, 1)]
    index = np.stack([np.resize(some, max(map(len, shown))) for some in shown])
    spec = lens.spec(demos.num_actions + 1)

    def made(key: Array) -> Policies:
        torso_key, head_key = jax.random.split(key)
        reads = torso(torso_name, spec, (WIDTH, WIDTH), key=torso_key)
        return Policies(reads, MLP((WIDTH, heads * spec.num_actions), key=head_key, last_scale=0.1))

    nets = jax.vmap(made)(jax.random.split(jax.random.key(seed), 2))
    after = look(followed(demos), lens.mean, lens.scale, lens.layout, lens.standardise)
    views = _views(demos, _rows(seen[: len(demos)]), _rows(after), unit, units)
    return Problem(Steps(*map(jnp.asarray, (seen, action, whose, half, index))), views, nets, heads)


def _halves(demos: Demonstrations, unit: np.ndarray, units: int, seed: int) -> np.ndarray:
    """``[U]``: 0 or 1, as evenly as can be; units of one group are in the same half."""
    together = np.arange(units)
    if demos.group is not None and len(np.unique(demos.group)) > 1:
        group = demos.group[np.unique(unit, return_index=True)[1]]
        together = np.unique(np.where(group < 0, len(demos.groups) + together, group), return_inverse=True)[1]
    return (np.random.default_rng(seed).permutation(together.max() + 1) % 2)[together]


def _rows(seen: np.ndarray) -> np.ndarray:
    """Of boards and pictures, whose entries mean little one by one, the mean of each channel; else all entries."""
    return seen.reshape(len(seen), -1, seen.shape[-1]).mean(axis=1) if seen.ndim == 4 else seen.reshape(len(seen), -1).astype(np.float64)


def _views(demos: Demonstrations, seen: np.ndarray, after: np.ndarray, unit: np.ndarray, units: int) -> tuple[np.ndarray, ...]:
    """``[U, features]`` in standard deviations: what changes and is done in an episode, what changes, both and what is seen."""
    whose = np.repeat(unit, demos.lengths)

    def mean(x: np.ndarray, of: np.ndarray) -> np.ndarray:
        total = np.zeros((units, x.shape[1]))
        np.add.at(total, whose, x)
        table = total / np.bincount(of, minlength=units)[:, None]
        spread = table.std(axis=0)
        return (table - table.mean(axis=0)) / np.where(spread > 1e-9, spread, 1.0)

    changes, done = mean(after - seen, unit), mean((demos.action[:, None] == np.arange(demos.num_actions)).astype(np.float64), unit)
    return np.hstack([changes, done]), changes, np.hstack([changes, done, mean(seen, whose)])


def _fitted(problem: Problem, kinds: int, seed: int, beginnings: int) -> Fit:
    """The best of several beginnings."""
    fits = []
    for r, view in enumerate(problem.views[: beginnings if kinds > 1 else 1]):
        label = _beginning(view, kinds, seed + r)
        start = np.zeros((len(label), problem.heads), np.float32)
        start[:, :kinds] = 0.1 / kinds + 0.9 * (label[:, None] == np.arange(kinds))
        share, each = _em(problem.nets, problem.steps, jnp.asarray(start), jax.random.key(seed + r))
        fits.append(Fit(np.asarray(share, np.float64)[:, :kinds], np.asarray(each, np.float64)))
    return max(fits, key=lambda fit: fit.each.sum())


def _beginning(view: np.ndarray, kinds: int, seed: int) -> np.ndarray:
    """``[U]``: a clustering to begin with; by lot, if there are too few different units for one."""
    centres = k_means(view, kinds, seed=seed)
    return np.random.default_rng(seed).integers(kinds, size=len(view)) if centres is None else nearest(view, centres)


@jax.jit
def _em(nets: Policies, steps: Steps, share: Array, key: Array) -> tuple[Array, Array]:
    """A soft sorting ``[U, K]`` and log-likelihoods ``[U]``. A kind of which nothing is at the beginning remains empty."""
    kinds, updates = share.shape[1], FIRST + (len(COOLING) - 1) * UPDATES
    optimiser = optax.adamw(optax.cosine_decay_schedule(RATE, updates, 0.05), weight_decay=DECAY)
    used = jnp.sum(share, axis=0) > 0

    def surprise(net: Policies, some: Array, share: Array) -> Array:
        likely = net.log_likely(steps.obs[some], steps.action[some], kinds)
        return -jnp.mean(jnp.sum(share[steps.unit[some]] * likely, axis=1))

    def update(state: tuple[Policies, Any], share: Array, update_key: Array) -> tuple[Policies, Any]:
        places = jax.random.randint(update_key, (2, BATCH), 0, steps.index.shape[1])
        some = jnp.take_along_axis(steps.index, places, axis=1)
        gradients = jax.vmap(jax.grad(surprise), (0, 0, None))(state[0], some, share)
        return jax.vmap(partial(optim.step, optimiser))(gradients, state[1], state[0])

    def sort(carry: Any, now: tuple[Array, Array, Array]) -> tuple[Any, None]:
        share, state, _ = carry
        weight, count, round_key = now
        state = jax.lax.fori_loop(0, count, lambda i, s: update(s, share, jax.random.fold_in(round_key, i)), state)
        likely = _per_unit(state[0], steps, kinds)
        prior = jnp.where(used, jnp.log(jnp.mean(share, axis=0) + 1e-6), -jnp.inf)
        each = jax.nn.logsumexp(likely + jax.nn.log_softmax(prior), axis=1)
        return (jax.nn.softmax(weight * likely + prior), state, each), None

    counts = jnp.asarray([FIRST] + [UPDATES] * (len(COOLING) - 1))
    rounds = jnp.asarray(COOLING), counts, jax.random.split(key, len(COOLING))
    begin = share, (nets, jax.vmap(partial(optim.start, optimiser))(nets)), jnp.zeros(share.shape[0])
    (share, _, each), _ = jax.lax.scan(sort, begin, rounds)
    return share, each


def _per_unit(nets: Policies, steps: Steps, kinds: int, part: int = 4_096) -> Array:
    """``[U, K]``: the log-likelihood of all steps of each unit, by the network that does not see it."""
    total = steps.obs.shape[0]
    size = -(-total // part) * part

    def some(at: Array) -> Array:
        both = jax.vmap(lambda net: net.log_likely(steps.obs[at], steps.action[at], kinds))(nets)  # [2, part, K]
        return jnp.take_along_axis(both, steps.half[steps.unit[at]][None, :, None], axis=0)[0]

    likely = jax.lax.map(some, jnp.arange(size).reshape(-1, part) % total).reshape(size, kinds)[:total]
    return jax.ops.segment_sum(likely, steps.unit, steps.half.shape[0])
