"""Kinds of agents where ids are missing, or are too many: which episodes (or agents) act alike?

A mixture of policies, fitted by expectation maximisation: each kind has a policy, and each unit (an episode, or all that one agent did)
is of one kind. Networks remember what they were fitted to, and would confirm any sorting; so there are two of them, each fitted to one half
of the units, and a unit is sorted by the network that did not see it. The likelihood of the sorting is then a held-out one, and says how
many kinds there are. To stop is something that an agent does: the last observation of a terminated episode has an action of its own.

Kinds may switch inside an episode: then each step is of a kind, and the kinds of an episode are a hidden Markov chain (`chains.py`).
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
from psiphi.api import chains
from psiphi.api.explore import followed
from psiphi.configs import Count, Seed, Within
from psiphi.demos import Demonstrations
from psiphi.demos.demonstrations import AgentId, Episodes
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
STAY = 0.95
"""Where the probability that a kind stays from step to step begins, if kinds may switch; it is fitted."""
PIECE = 8
"""Kinds that may switch begin with a clustering of pieces of so many steps."""
CHAIN_FITS = 4
"""How often, in each sorting, kinds that may switch are drawn and stay is fitted anew."""
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
    """The same episodes with kinds for agents; where kinds may switch, an episode is cut where its likeliest kind does."""
    shares: np.ndarray
    """``[E, K]``: how likely each episode of `demos` is of each kind."""
    stay: float | None = None
    """Where kinds may switch, how likely a kind stays from one step to the next, if it is not drawn anew."""

    @property
    def number(self) -> int:
        return self.share.shape[1]

    @property
    def label(self) -> np.ndarray:
        """``[U]``: the likeliest kind of each unit, counted from 0."""
        return self.share.argmax(axis=1)

    @property
    def sure(self) -> np.ndarray:
        """``[K]``: how likely units of each kind (or, where kinds may switch, its episodes) are of it, on average; nan if it has none."""
        return _sure(self.share if self.stay is None else self.shares)

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
        if self.stay is not None:
            lines.append(f"kinds stay from step to step by {self.stay:.3f}; the episodes were cut into {self.demos.num_episodes:,}")
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
    switching: bool = False,
    progress: bool = True,
) -> Kinds:
    """Sort episodes (or agents, with all their episodes) into kinds that act by one policy each.

    >>> kinds = psiphi.find_kinds(demos, "auto")
    >>> print(kinds)
    >>> itd = psiphi.ITD(seed=0).fit(kinds.demos)      # an agent for each kind

    "auto" takes the smallest number that no larger one beats, up to 8, by the likelihood of units that were not fitted to; all of its kinds
    must be told apart. Each of the `beginnings` is a clustering of other things: of what changes and is done, of what changes, of both and
    what is seen. The likeliest result is taken.

    With `switching`, kinds may change inside an episode. The episodes of `kinds.demos` are then cut where they do.
    """
    doors.demonstrations(demos, Demonstrations)
    seed = configs.fit(Seed, seed, "seed")
    wanted = None if kinds == "auto" else configs.fit(Count, kinds, "kinds")
    beginnings = configs.fit(Annotated[int, Within(1, 3)], beginnings, "beginnings")
    unit, units = _units(demos, of)
    _check(wanted, len(units), of)
    numbers = range(1, min(MOST_KINDS, len(units) // 2) + 1) if wanted is None else [wanted]
    problem = _problem(demos, unit, len(units), torso, seed, heads=numbers[-1], switching=switching)
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
    if not switching:
        return Kinds(units, share, nats, *relabelled(demos, share[np.repeat(unit, demos.lengths)]))
    steps = share[: len(demos)]
    whose = np.repeat(unit, demos.lengths)
    return Kinds(units, _means(steps, whose, len(units)), nats, *relabelled(demos, steps), stay=best.stay)


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


def relabelled(demos: Demonstrations, share: np.ndarray) -> tuple[Demonstrations, np.ndarray]:
    """The same steps with kinds for agents, by how likely each step is of each kind, and how likely each episode then is.

    Episodes are numbered anew, and cut where the likeliest kind changes. A kind that has no step is left out.
    """
    label, e = share.argmax(axis=1), demos.episodes
    begins = np.zeros(len(demos), bool)
    begins[e.start[:-1]] = True
    start = np.flatnonzero(begins | (np.diff(label, prepend=-1) != 0))
    old = np.cumsum(begins)[start] - 1
    cut = np.append(old[1:] == old[:-1], False)
    final = e.final_obs[old]
    final[cut] = demos.obs[start[1:][cut[:-1]]]
    there, agent = np.unique(label[start], return_inverse=True)
    agents: tuple[AgentId, ...] = tuple(f"kind {k + 1}" for k in there)
    flags = e.terminated[old] & ~cut, e.truncated[old] | cut, final, e.has_final[old] | cut
    parts = Episodes(np.append(start, len(demos)), agent.astype(np.int32), np.arange(len(start)), *flags)
    group = None if demos.group is None else demos.group[old]
    whose = np.repeat(np.arange(len(start)), np.diff(parts.start))
    return replace(demos, agents=agents, episodes=parts, group=group), _means(share, whose, len(start))


def _means(share: np.ndarray, whose: np.ndarray, number: int) -> np.ndarray:
    """``[number, K]``: the mean over the steps of each."""
    total = np.zeros((number, share.shape[1]))
    np.add.at(total, whose, share)
    return total / np.bincount(whose, minlength=number)[:, None]


# --- How many ----------------------------------------------------------------------------------------------------------------------


class Fit(NamedTuple):
    share: np.ndarray
    """[U, K], or [N, K] where kinds may switch"""
    each: np.ndarray
    """[U]: the log-likelihood of each unit, by the network that did not see it."""
    stay: float | None = None


def _sure(share: np.ndarray) -> np.ndarray:
    """``[K]``: the mean share that the units (or steps) which are likeliest of a kind have in it; nan if there are none."""
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
    chain: tuple[Array, Array] | None
    """Where kinds may switch: [N], the steps in order of their episodes, and [N], which of these are the first of one."""


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
    """[P, features]: what each unit (or piece of an episode) did and led to, in several ways."""
    part: np.ndarray
    """[U], or [N] where kinds may switch: of what is sorted, which row of the views it is in."""
    nets: Policies
    """Two untrained networks, stacked."""
    heads: int
    """They have so many kinds; of fewer, the rest is not used, so that all numbers of kinds are one compiled program."""


def _problem(demos: Demonstrations, unit: np.ndarray, units: int, torso_name: TorsoName, seed: int, heads: int, switching: bool) -> Problem:
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
    pair = _rows(seen[: len(demos)]), _rows(after)
    steps = Steps(jnp.asarray(seen), jnp.asarray(action), jnp.asarray(whose), jnp.asarray(half), jnp.asarray(index), None)
    if not switching:
        views = _views(demos, *pair, np.repeat(unit, demos.lengths), np.bincount(unit, minlength=units))
        return Problem(steps, views, np.arange(units), nets, heads)
    episode = np.concatenate([np.repeat(np.arange(demos.num_episodes), demos.lengths), stopped])
    order = np.argsort(episode, kind="stable")
    first = np.diff(episode[order], prepend=-1) != 0
    piece = np.cumsum((np.arange(len(demos)) - np.repeat(e.start[:-1], demos.lengths)) % PIECE == 0) - 1
    views = _views(demos, *pair, piece, np.ones(piece[-1] + 1))
    part = np.concatenate([piece, piece[e.start[1:][stopped] - 1]])
    return Problem(steps._replace(chain=(jnp.asarray(order), jnp.asarray(first))), views, part, nets, heads)


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


def _views(demos: Demonstrations, seen: np.ndarray, after: np.ndarray, whose: np.ndarray, parts: np.ndarray) -> tuple[np.ndarray, ...]:
    """``[P, features]`` in standard deviations: what changes and is done in an episode, what changes, both and what is seen.

    `whose` says of what a step is, and `parts` how many episodes that has.
    """

    def mean(x: np.ndarray, over: np.ndarray) -> np.ndarray:
        total = np.zeros((len(parts), x.shape[1]))
        np.add.at(total, whose, x)
        table = total / over[:, None]
        spread = table.std(axis=0)
        return (table - table.mean(axis=0)) / np.where(spread > 1e-9, spread, 1.0)

    changes, done = mean(after - seen, parts), mean((demos.action[:, None] == np.arange(demos.num_actions)).astype(np.float64), parts)
    return np.hstack([changes, done]), changes, np.hstack([changes, done, mean(seen, np.bincount(whose, minlength=len(parts)))])


def _fitted(problem: Problem, kinds: int, seed: int, beginnings: int) -> Fit:
    """The best of several beginnings."""
    fits = []
    for r, view in enumerate(problem.views[: beginnings if kinds > 1 else 1]):
        label = _beginning(view, kinds, seed + r)[problem.part]
        start = np.zeros((len(label), problem.heads), np.float32)
        start[:, :kinds] = 0.1 / kinds + 0.9 * (label[:, None] == np.arange(kinds))
        share, each, stay = _em(problem.nets, problem.steps, jnp.asarray(start), jax.random.key(seed + r))
        found = np.asarray(share, np.float64)[:, :kinds], np.asarray(each, np.float64)
        fits.append(Fit(*found, None if problem.steps.chain is None else float(stay)))
    return max(fits, key=lambda fit: fit.each.sum())


def _beginning(view: np.ndarray, kinds: int, seed: int) -> np.ndarray:
    """``[U]``: a clustering to begin with; by lot, if there are too few different units for one."""
    centres = k_means(view, kinds, seed=seed)
    return np.random.default_rng(seed).integers(kinds, size=len(view)) if centres is None else nearest(view, centres)


@jax.jit
def _em(nets: Policies, steps: Steps, share: Array, key: Array) -> tuple[Array, Array, Array]:
    """A soft sorting ``[U, K]`` of units, or ``[N, K]`` of steps, log-likelihoods ``[U]`` and how likely a kind stays.

    A kind of which nothing is at the beginning remains empty.
    """
    kinds, updates = share.shape[1], FIRST + (len(COOLING) - 1) * UPDATES
    optimiser = optax.adamw(optax.cosine_decay_schedule(RATE, updates, 0.05), weight_decay=DECAY)
    used, row = jnp.sum(share, axis=0) > 0, steps.unit if steps.chain is None else jnp.arange(steps.unit.shape[0])

    def surprise(net: Policies, some: Array, share: Array) -> Array:
        likely = net.log_likely(steps.obs[some], steps.action[some], kinds)
        return -jnp.mean(jnp.sum(share[row[some]] * likely, axis=1))

    def update(state: tuple[Policies, Any], share: Array, update_key: Array) -> tuple[Policies, Any]:
        places = jax.random.randint(update_key, (2, BATCH), 0, steps.index.shape[1])
        some = jnp.take_along_axis(steps.index, places, axis=1)
        gradients = jax.vmap(jax.grad(surprise), (0, 0, None))(state[0], some, share)
        return jax.vmap(partial(optim.step, optimiser))(gradients, state[1], state[0])

    def sort(carry: Any, now: tuple[Array, Array, Array]) -> tuple[Any, None]:
        share, state, _, stay = carry
        weight, count, round_key = now
        state = jax.lax.fori_loop(0, count, lambda i, s: update(s, share, jax.random.fold_in(round_key, i)), state)
        likely = _per_step(state[0], steps, kinds)
        if steps.chain is not None:
            share, each, stay = _chained(steps, steps.chain, weight * likely, share, stay)
            return (share, state, each, stay), None
        whole = jax.ops.segment_sum(likely, steps.unit, steps.half.shape[0])
        prior = jnp.where(used, jnp.log(jnp.mean(share, axis=0) + 1e-6), -jnp.inf)
        each = jax.nn.logsumexp(whole + jax.nn.log_softmax(prior), axis=1)
        return (jax.nn.softmax(weight * whole + prior), state, each, stay), None

    counts = jnp.asarray([FIRST] + [UPDATES] * (len(COOLING) - 1))
    rounds = jnp.asarray(COOLING), counts, jax.random.split(key, len(COOLING))
    begin = share, (nets, jax.vmap(partial(optim.start, optimiser))(nets)), jnp.zeros(steps.half.shape[0]), jnp.asarray(STAY, jnp.float32)
    (share, _, each, stay), _ = jax.lax.scan(sort, begin, rounds)
    return share, each, stay


def _chained(steps: Steps, chain: tuple[Array, Array], likely: Array, share: Array, stay: Array) -> tuple[Array, Array, Array]:
    """A soft sorting of steps whose kinds are chains, log-likelihoods ``[U]`` and how likely a kind stays."""
    order, first = chain

    def again(_: Any, now: tuple[Array, Array]) -> tuple[Array, Array]:
        return chains.refitted(chains.smoothed(likely[order], first, *now), first)

    drawn, stay = jax.lax.fori_loop(0, CHAIN_FITS, again, (jnp.mean(share, axis=0), stay))
    found = chains.smoothed(likely[order], first, drawn, stay)
    each = jax.ops.segment_sum(found.likely, steps.unit[order], steps.half.shape[0])
    return jnp.zeros_like(share).at[order].set(found.share), each, stay


def _per_step(nets: Policies, steps: Steps, kinds: int, part: int = 4_096) -> Array:
    """``[N, K]``: the log-likelihood of each step, by the network that does not see its unit."""
    total = steps.obs.shape[0]
    size = -(-total // part) * part

    def some(at: Array) -> Array:
        both = jax.vmap(lambda net: net.log_likely(steps.obs[at], steps.action[at], kinds))(nets)  # [2, part, K]
        return jnp.take_along_axis(both, steps.half[steps.unit[at]][None, :, None], axis=0)[0]

    return jax.lax.map(some, jnp.arange(size).reshape(-1, part) % total).reshape(size, kinds)[:total]
