"""`psiphi.ITD`: from logs alone to what each agent wants."""

import dataclasses
import math
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np

from psiphi import configs, cumulants, doors, training
from psiphi import model as models
from psiphi.agents import itd
from psiphi.agents.itd import ITDConfig
from psiphi.api import files, judging, newcomers
from psiphi.api.judging import shown_and_held
from psiphi.api.known import Known, known_from
from psiphi.api.shown import Shown
from psiphi.configs import Count, Few
from psiphi.cumulants import MOST_COLUMNS, Changes, Counted, Cumulants, FeatureFunction
from psiphi.demos import Demonstrations
from psiphi.demos.demonstrations import called
from psiphi.demos.record import record
from psiphi.errors import UserError
from psiphi.lens import Lens, lens_for
from psiphi.loops.few_shot import FewShotConfig
from psiphi.model import Model
from psiphi.nets import Committee, Net, PsiPhiNet
from psiphi.training import Run
from psiphi.types import Agent, Demonstration, Demos, EnvSpec, Pace
from psiphi.worlds.gym import never_entered

OFFLINE = ITDConfig(
    cumulants="changes", num_cumulants=0, gamma=0.0, lapse=0.1, cross_policy_on="pooled", cross_batch=128, batch=48, cross_policy=1.0,
    sparsity=0.05, sparsity_scale=10.0, sparsity_ramp=0.3, torso_hidden=(128, 128), psi_hidden=(64,),
)  # fmt: skip
"""ITD from logs alone, for observations that are rows of numbers or boards: rewards are linear in what changes in a step."""

LEARNED = ITDConfig(num_cumulants=0, gamma=0.0, cross_policy_on="pooled", cross_batch=128, sparsity=0.0)
"""ITD from logs alone for pictures and long rows: cumulants are learned, and rewards are handed out as behaviour."""

OFFLINE_UPDATES = 1_500
"""Updates of a fit whose cumulants are not learned, unless the user says otherwise."""

LEARNED_UPDATES = 4_000
"""The same where they are learned."""

MOST_HEADS, CODE = 100, 16
"""More agents share one network, and each has a code of so many numbers, unless the config says otherwise. At as many updates codes were
seen to imitate less well than heads, so they are for those whom heads would cost too much."""

CODED_IMITATION = 3.0
"""The weight of imitation where agents share a network and cumulants are learned: there the terms that make psi consistent outweigh the
usual one, and the agents are long not told apart."""

MOST_OWN_CUMULANTS = 16
"""Up to so many agents have a learned cumulant each, unless the config says otherwise."""

LEAST_CUMULANTS = 4

REFITS = 3
"""So many fits from different beginnings are made of logs; what is handed out is their median, and where they differ is said."""

LEARNED_REFITS = 2
"""The same where cumulants are learned: no two fits learn the same ones, so the first is handed out."""

SOFTNESS = FewShotConfig().temperature
"""Of the policy on a task where it is not deterministic, in units of reward."""

CHUNK = 200
"""Updates between two looks at the clock and at what was held out."""

PATIENCE = 4
"""Fitting stops after so many looks without a better likelihood of what was held out, but not before the priors count in full."""

HORIZONS = 0.9, 0.97
"""The smallest and the largest discount factor that is chosen by the length of episodes."""

BACKGROUND_STEPS = 10_000
"""Random steps that are made in an environment given as background."""

Background = Demonstrations | gymnasium.Env[Any, Any] | str | Callable[[], gymnasium.Env[Any, Any]]
"""Steps of no particular agent: logs whose ids do not count, or an environment (its id, a function that makes it) to walk in at random."""


def offline(config: ITDConfig | None, demos: Demonstrations, features: Any = None) -> ITDConfig:
    """The config that logs alone allow; what it leaves open (0) is chosen by the logs.

    The default has cumulants of what changes where observations are rows of numbers or boards, and learned ones else. In a config for use
    with an environment, cross-policy evaluation moves to the pool of all demonstrations, and the sparse-reward prior on learned cumulants,
    which must not see demonstrators' own steps, is left out.
    """
    own = config is None
    if config is None:
        config = OFFLINE if math.prod(demos.obs.shape[1:]) <= MOST_COLUMNS or counted_in(demos) else LEARNED
        config = dataclasses.replace(config, cumulants="given") if features is not None and config is OFFLINE else config
    if config.imagined:
        raise UserError(
            f"imagined is {config.imagined}, expected 0: psiphi.ITD learns from logs alone and imagines nothing; psiphi train does."
        )
    if (features is not None) != (config.cumulants == "given"):
        raise UserError(
            'cumulants is "given", but there are no features: expected psiphi.ITD(config, features=...), a function or names of columns.'
            if features is None
            else f'There are features, but cumulants is {config.cumulants!r}: expected "given".'
        )
    if config.cumulants == "changes" and math.prod(demos.obs.shape[1:]) > 4 * MOST_COLUMNS and not counted_in(demos):
        raise UserError(
            f'cumulants is "changes", but observations have {math.prod(demos.obs.shape[1:])} numbers, expected at most {4 * MOST_COLUMNS}; '
            'use "learned(s\')" or give features.'
        )
    if config.cross_policy_on == "experience":
        batch = min(config.cross_batch, config.batch * len(demos.agents))
        sparsity = config.sparsity if itd.has_given(config) else 0.0
        config = dataclasses.replace(config, cross_policy_on="pooled", sparsity=sparsity, cross_batch=batch)
    if own and len(demos.agents) > MOST_HEADS:
        imitation = config.bc_weight if itd.has_given(config) else CODED_IMITATION
        config = dataclasses.replace(config, code=CODE, axis_preferences=False, bc_weight=imitation)
    enough = max(LEAST_CUMULANTS, min(len(demos.agents), MOST_OWN_CUMULANTS))
    return dataclasses.replace(config, num_cumulants=config.num_cumulants or enough, gamma=config.gamma or chosen_gamma(demos))


def updates_for(config: ITDConfig, updates: int | None) -> int:
    """As many as were asked for, or as that kind of cumulants needs."""
    return updates or (OFFLINE_UPDATES if itd.has_given(config) else LEARNED_UPDATES)


def chosen_gamma(demos: Demonstrations) -> float:
    """A discount that looks as far ahead as a median episode is long, within reason; one of few, as each is compiled once."""
    return round(float(np.clip(1 - 1 / max(float(np.median(demos.lengths)), 1.0), *HORIZONS)), 2)


def cumulants_for(config: ITDConfig, demos: Demonstrations, features: Any) -> Cumulants | None:
    """The cumulants that the config does not learn, or None; `demos` are all that they will be asked of."""
    if not itd.has_given(config):
        return None
    obs, action, discount, next_obs, _ = flat_steps(demos)
    steps = (obs, action, next_obs, discount)
    if config.cumulants == "given":
        return cumulants.given(feature_function(features, demos), steps)
    counted = counted_in(demos)
    if counted and config.levels != ("all",):
        raise UserError(f"levels is {config.levels}, but observations are boards, expected all: what is on them is counted.")
    width = len(counted or demos.names)
    levels = range(width) if config.levels == ("all",) else [column(demos, name) for name in config.levels]
    return cumulants.changes(steps, levels=tuple(levels), ends=config.ends, counted=counted)


def counted_in(demos: Demonstrations) -> Counted:
    """What is counted on the boards of these logs; () if they are no boards, or so small that every cell is a number."""
    return cumulants.countable(demos.obs) if math.prod(demos.obs.shape[1:]) > MOST_COLUMNS else ()


def column(demos: Demonstrations, name: str) -> int:
    """Where an observed column is."""
    if name not in demos.names:
        raise UserError(f"There is no column {name!r}; the observed columns are {', '.join(map(repr, demos.names[:20]))}.")
    return demos.names.index(name)


def feature_function(features: Any, demos: Demonstrations) -> FeatureFunction:
    """A function of steps, or names of columns: their values where a step leads."""
    if callable(features):
        return features
    if isinstance(features, str) or not all(isinstance(name, str) for name in features):
        raise UserError(f"features is {features!r}, expected a function of (obs, action, next_obs, terminated), or a list of column names.")
    columns = np.array([column(demos, name) for name in features])
    return lambda obs, action, next_obs, terminated: next_obs.reshape(len(next_obs), -1)[:, columns]


def flat_steps(demos: Demonstrations) -> tuple[np.ndarray, ...]:
    """obs, action, discount, next_obs, next_action of all steps that teach something, agent after agent."""
    parts = [demos._steps_of(k, -1) for k in range(len(demos.agents))]
    return tuple(np.concatenate(columns) for columns in zip(*parts, strict=True))


def background_steps(background: Background | None, demos: Demonstrations, seed: int) -> Demonstration | None:
    """Steps that are evaluated on and never imitated; an environment is walked in at random."""
    if background is None:
        return None
    walked = background.named_as(demos.action_names) if isinstance(background, Demonstrations) else _walked(background, seed)
    if walked.obs.shape[1:] != demos.obs.shape[1:]:
        raise UserError(f"The background's observations have shape {walked.obs.shape[1:]}, expected {demos.obs.shape[1:]}, as there.")
    if walked.num_actions > demos.num_actions:
        raise UserError(
            f"The background has {walked.num_actions} actions, expected at most {demos.num_actions}, as the demonstrations have."
        )
    whole = flat_steps(walked)
    part = max(1 << max(len(whole[0]).bit_length() - 4, 0), 1)  # few sizes, as each is compiled once
    obs, action, discount, next_obs, next_action = (x[: len(x) // part * part] for x in whole)
    kind = demos.obs.dtype
    return Demonstration(*map(jnp.asarray, (obs.astype(kind), action, discount, next_obs.astype(kind), next_action)))


def _walked(world: Any, seed: int) -> Demonstrations:
    """A random walk in an environment, which is closed only if it was made here."""
    made = gymnasium.make(world) if isinstance(world, str) else world if isinstance(world, gymnasium.Env) else None
    if made is None and callable(world):
        made = world()
    if not isinstance(made, gymnasium.Env) or not isinstance(made.action_space, gymnasium.spaces.Discrete):
        raise UserError(f"The background is {world!r}, expected demonstrations, or an environment with discrete actions.")
    random, actions = np.random.default_rng(seed), made.action_space
    walks: list[Demonstrations] = []
    while sum(map(len, walks)) < BACKGROUND_STEPS:
        walks.append(
            record(made, lambda _: int(actions.start + random.integers(actions.n)), 20, agent="background", seed=seed + len(walks))
        )
    return walks[0].merge(*walks[1:])


# --- Fitting ---------------------------------------------------------------------------------------------------------------------


def initial(config: ITDConfig, lens: Lens, num_actions: int, given: Cumulants | None) -> itd.Initial:
    """A network that reads what the logs show, through the lens."""
    return lambda key, heads: lens.on(itd.initial_net(config, lens.spec(num_actions), heads, key, given))


def trained_model(config: ITDConfig, net: Net, demos: Demos, agents: int, ego: Any = None) -> Model:
    """What is kept of a training: a network, the demonstrators' preferences and the ego's, if there is one, last."""
    w = itd.preferences(config, net.w[:agents])
    every = w if ego is None else jnp.concatenate([w, ego])
    return Model(net, every, _units(net, w, demos._replace(background=None, aside=None)))


_units = jax.jit(models.measure_units)


def held_out_nll(config: ITDConfig) -> Callable[[Any, jax.Array], dict[str, jax.Array]]:
    """How surprising what was held out is to a training state, in nats per step, averaged over agents."""

    def look(state: Any, key: jax.Array) -> dict[str, jax.Array]:
        net, held = itd.deployed(config, state), state.demos.aside.held
        w = itd.preferences(config, net.w)

        def one(steps: Demonstration, count: jax.Array, k: jax.Array) -> jax.Array:
            values = jnp.mean(itd.some_heads(net, k[None]).task_values(steps.obs, w[k][None])[:, 0], axis=1)
            likely = jax.nn.softmax(itd.inverse_temperature(config) * values)
            lapse = 0.0 if net.lapse is None else jax.nn.sigmoid(net.lapse[k])
            chance = (1 - lapse) * jnp.take_along_axis(likely, steps.action[:, None], axis=1)[:, 0] + lapse / values.shape[1]
            real = jnp.arange(steps.action.shape[0]) < count
            return -jnp.sum(real * jnp.log(chance + 1e-8)) / jnp.maximum(count, 1)

        return {"nll": jnp.mean(jax.vmap(one)(held.steps, held.count, jnp.arange(held.count.shape[0])))}

    return look


def nothing_held_out(state: Any, key: jax.Array) -> dict[str, jax.Array]:
    """There is nothing to look at while fitting, and no world to play in."""
    del state, key
    return {}


def enough(config: ITDConfig, updates: int, rows: list[dict[str, Any]]) -> bool:
    """Whether the likelihood of what was held out has not got better for a while, after the priors count in full."""
    by_step: dict[int, list[float]] = {}
    for row in rows:
        by_step.setdefault(row["step"], []).append(row["eval/nll"])
    means = [float(np.mean(values)) for step, values in sorted(by_step.items()) if step > config.sparsity_ramp * updates]
    return len(means) > PATIENCE and min(means[:-PATIENCE]) < min(means[-PATIENCE:]) - 1e-3


HELD_STEPS = 256
"""Of each agent, so many held-out steps are looked at while it is fitted."""


class Aside(NamedTuple):
    """What a fit needs besides the steps that are learned from: no constants, so that the program is the same for other logs."""

    held: Demos | None
    """What was held out, to look at."""
    given: Cumulants | None
    mean: jax.Array
    scale: jax.Array


class ITD(Shown):
    """Inverse temporal-difference learning from logs: what each agent wants, does and would be paid.

    >>> demos = psiphi.Demonstrations.read("drivers.csv")
    >>> itd = psiphi.ITD(seed=0).fit(demos)
    >>> print(itd.verdict)                                          # first: what speaks against believing it
    >>> print(itd.preferences)
    >>> itd.policy("anna")(obs)                                     # what she would do
    >>> itd.reward("anna")(obs, action, next_obs, terminated)       # what she gets for it
    >>> itd.save("drivers-model")

    `config` None is `psiphi.api.OFFLINE` for rows of numbers and `psiphi.api.LEARNED` for pictures. `features` are cumulants of the
    user's: a function ``(obs, action, next_obs, terminated) -> [B, d]``, or names of columns. `refits` fits are made from different
    beginnings (None: 3, or 2 of learned cumulants); their median is handed out. Each takes at most `updates` (None: 1,500, or 4,000 of
    learned cumulants). The same seed and data give the same model.
    """

    def __init__(
        self,
        config: ITDConfig | None = None,
        seed: int = 0,
        *,
        updates: int | None = None,
        features: Any = None,
        refits: int | None = None,
    ):
        self.config, self.seed = doors.config(config, ITDConfig), doors.seed(seed)
        self.features, self.refits = features, None if refits is None else configs.fit(Few, refits, "refits")
        self.updates = None if updates is None else configs.fit(Count, updates, "updates")
        self._used: ITDConfig = config or OFFLINE
        self.run_dir: Path | None = None
        """Where the last fit left its rows and checkpoints."""

    def fit(
        self,
        demos: Demonstrations,
        *,
        background: Background | None = None,
        held_out: float = 0.1,
        out: str | Path | None = None,
        progress: bool = True,
        checkpoint_every_s: float = 30.0,
    ) -> "ITD":
        """Learn from demonstrations, anew; shows a progress bar.

        `held_out` of each agent's episodes is kept for the verdict, and to stop when enough is learned. `background` are steps of no agent
        in particular, of other logs or of a random walk in an environment: they tell how the world answers, and are never imitated.
        With `out`, rows and checkpoints go to that directory, an interrupted call continues there, and the model goes to its `model`.
        """
        demos = doors.demonstrations(demos, Demonstrations)
        directory = None if out is None else doors.path(out)
        config = offline(self.config, demos, self.features)
        given = cumulants_for(config, demos, self.features)
        shown, held = shown_and_held(demos, held_out, self.seed)
        lens = lens_for(demos.obs, demos.obs.shape[1:], demos.obs.dtype)
        aside = Aside(_some(held), given, jnp.asarray(lens.mean), jnp.asarray(lens.scale))
        steps = roomy(shown.to_demos())._replace(background=background_steps(background, demos, self.seed), aside=aside)
        refits = self.refits or (LEARNED_REFITS if given is None else REFITS)
        warn_of_length(config, initial(config, lens, demos.num_actions, given), steps, updates_for(config, self.updates), refits)
        how: dict[str, Any] = {"out": directory, "progress": progress, "checkpoint_every_s": checkpoint_every_s}
        nets, rows = self._fitted(config, refits, lens, demos.spec, steps, **how)
        members = [trained_model(config, jax.tree.map(lambda x, r=r: x[r], nets), steps, len(demos.agents)) for r in range(refits)]
        model = trained_model(config, Committee(nets), steps, len(demos.agents)) if given is not None and refits > 1 else members[0]
        lapse = () if model.net.lapse is None else tuple(np.asarray(jax.nn.sigmoid(model.net.lapse)).tolist())
        known = known_from(
            model, lens, steps, demos.agents,
            beta=itd.inverse_temperature(config), temperature=SOFTNESS, gamma=config.gamma, lapse=lapse,
            form="wants" if given is not None else "behaviour",
            names=() if given is None else cumulants.names(given, demos.names),
            **called(demos),
        )  # fmt: skip
        self._used, self._task = config, None
        what = "counts" if isinstance(given, Changes) and given.counted else config.cumulants
        kinds = f"{what}, end, constant" if "end" in known.names else what
        self._known = judging.judged(known, members, shown, held, kinds, rows[-1], seed=self.seed, background=steps.background)
        self.run_dir = directory
        if directory is not None:
            self.save(directory / files.DIRECTORY)
        return self

    def _fitted(
        self, config: ITDConfig, refits: int, lens: Lens, spec: EnvSpec, steps: Demos, **how: Any
    ) -> tuple[PsiPhiNet, list[dict[str, Any]]]:
        """The networks of all refits, stacked, and what was written down meanwhile."""
        updates = updates_for(config, self.updates)

        def make(spec: EnvSpec, agents: int, pace: Pace) -> Agent:
            def made(aside: Aside) -> Agent:
                seen = dataclasses.replace(lens, mean=aside.mean, scale=aside.scale)
                return itd.make(config, spec, agents, pace, initial(config, seen, spec.num_actions, aside.given))

            return made(steps.aside)._replace(init=lambda key, demos: made(demos.aside).init(key, demos))

        world = dataclasses.replace(never_entered(spec), lensed=False)  # the network looks through the lens by itself
        run = Run("itd", world.name, config, offline=True, updates=updates, evaluate_every=CHUNK, seed=refits * self.seed)
        look = nothing_held_out if steps.aside.held is None else held_out_nll(config)
        until = None if steps.aside.held is None else partial(enough, config, updates)
        result = training.train(run, demos=steps, world=world, make=make, seeds=refits, evaluate=look, until=until, **how)
        state = result.state if refits > 1 else jax.tree.map(lambda x: x[None], result.state)
        return itd.deployed(config, state), result.rows

    def fit_new_demonstrator(self, demos: Demonstrations, *, progress: bool = True) -> "ITD":
        """Get to know further agents: phi stays as it is, and so does all that is known of the others, to the last bit.

        Learned are the newcomers' policies and their preferences, in terms of the cumulants that there are.
        """
        self._known = newcomers.joined(
            self._trained(), self._used, demos, updates=updates_for(self._used, self.updates), seed=self.seed, progress=progress
        )
        return self

    def save(self, path: str | Path) -> None:
        """Write the model to a directory, in place of a model that is there; `psiphi.load` reads it."""
        files.save(doors.path(path), "itd", self._trained(), self._used, self.seed, self._task)

    def _trained(self) -> Known:
        if self._known is None:
            raise UserError("This ITD has learned nothing yet; call fit with demonstrations first.")
        return self._known

    def __repr__(self) -> str:
        return f"ITD({len(self._known.agents)} agents)" if self._known else "ITD(untrained)"


SPEED = 8e10
"""Operations of a fit in a second, on one core: a rule of thumb, by fits of 4 and of 30 agents, which took 25 and 166 seconds."""

LONG = 300.0
"""A fit of more seconds is said to be long before it begins."""


class Forecast(NamedTuple):
    seconds: float
    bytes: float


def forecast(config: ITDConfig, made: itd.Initial, demos: Demos, updates: int, refits: int) -> Forecast:
    """About what a fit costs: matrix products forward and backward, and networks with their targets and Adam's moments."""
    agents = demos.count.shape[0]
    net = jax.eval_shape(lambda key: made(key, agents), jax.random.key(0))

    def size(tree: Any) -> int:
        return sum(math.prod(x.shape) for x in jax.tree.leaves(tree))

    heads = size((net.psi_heads, net.value_heads)) / (1 if config.code else agents)
    drawn = config.agents_per_update if config.code else agents
    own, cross = drawn * config.batch, config.cross_batch
    work = size((net.torso, net.phi_torso, net.phi_head)) * (own + 3 * cross) + heads * (own + 2 * cross * drawn)
    data = sum(x.nbytes for x in jax.tree.leaves(demos))
    return Forecast(6 * work * updates * refits / SPEED, 16 * size(net) * refits + data)


def warn_of_length(config: ITDConfig, made: itd.Initial, demos: Demos, updates: int, refits: int) -> None:
    """One sentence before a long fit, with advice."""
    found = forecast(config, made, demos, updates, refits)
    if found.seconds < LONG:
        return
    many = "" if config.code or demos.count.shape[0] <= MOST_OWN_CUMULANTS else f", a code for each agent (code={CODE})"
    print(
        f"psiphi: this fit of {demos.count.shape[0]} agents takes about {found.seconds / 60:.0f} minutes on one core and "
        f"{found.bytes / 2**30:.1f} GiB; fewer updates or refits{many} or groups of agents make it shorter.",
        file=sys.stderr,
    )


def roomy(demos: Demos) -> Demos:
    """The same with room for a power of two of steps each: logs of about the same size are then one compiled program."""
    size = demos.steps.action.shape[1]
    room = (1 << max(size - 1, 0).bit_length()) - size
    padded = jax.tree.map(lambda x: np.pad(np.asarray(x), ((0, 0), (0, room), *((0, 0),) * (x.ndim - 2))), demos.steps)
    return demos._replace(steps=jax.tree.map(jnp.asarray, padded))


def _some(held: Demonstrations | None) -> Demos | None:
    """Of each agent, some of the held-out steps; None if any agent has none."""
    if held is None or len(np.unique(held.episodes.agent)) < len(held.agents):
        return None
    try:
        every = held.to_demos()
    except UserError:  # an agent's only held-out step is one of which it was not seen where it led
        return None
    return roomy(Demos(jax.tree.map(lambda x: x[:, :HELD_STEPS], every.steps), jnp.minimum(every.count, HELD_STEPS)))
