"""One way to train anything: a `Run` says what, `train` does it. The command line, the API and the experiments all come through here.

A run is an algorithm in a world, on a task, beside demonstrations, for so many steps. JAX worlds run in the compiled loop, Gymnasium's in
the other; both leave the same rows and checkpoints, and with a directory both continue what was interrupted.
"""

import dataclasses
import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from jax import Array

from psiphi import configs, cumulants, doors, limits, replay, worlds
from psiphi import lens as lenses
from psiphi.agents import ALGORITHMS, Algorithm, bc, itd, rewarded, tunable, watching
from psiphi.configs import Count, Number, Seed
from psiphi.demos import Demonstrations
from psiphi.demos.demonstrations import called
from psiphi.errors import UserError
from psiphi.lens import Lens
from psiphi.loops import gym, scan
from psiphi.loops.evaluate import rollout_returns
from psiphi.model import Model
from psiphi.nets import ActionNet
from psiphi.types import Agent, Demonstration, Demos, Env, EnvSpec, Metrics, Pace
from psiphi.worlds import OWN, SideBySide, World

RECORDED, ONLINE, NONE = "recorded", "online", "none"
"""Where demonstrations come from, if not from a file: the world's own demonstrators beforehand, others while one acts, nowhere."""

EVERYBODY = "everybody"
"""The demonstrator whom a learner sees that is not told who did what."""

UPDATES = 1_000
"""Of a learner that takes no steps, where no number suits the world."""

CHUNK = 500
"""Iterations between two looks at the clock where nothing is evaluated."""


@dataclass(frozen=True)
class Run:
    """All that decides what a training comes to."""

    algorithm: str
    """Its name in `psiphi.agents.ALGORITHMS`."""
    env: str
    """The world's name in `psiphi.worlds.WORLDS`, a Gymnasium id, or module:function."""
    agent: Any
    """The algorithm's config."""
    world: Any = None
    """The world's config; None where it has none."""
    task: str = OWN
    """What the world pays, and what a policy is judged by; empty: the world's own."""
    demos: str = NONE
    """Demonstrations: "recorded" beforehand by the world's own demonstrators, "online", "none", or a file."""
    demonstrators: tuple[str, ...] = ()
    """Who is recorded, by name; empty: those that the world names."""
    episodes: Count = 100
    """Recorded episodes of each demonstrator."""
    pooled: bool = False
    """Whether the learner takes all demonstrators for one, or is told who did what."""
    room: Count = 20_000
    """Steps that are kept of each demonstrator that is watched online."""
    steps: Number = 0
    """Environment steps, the random ones at the start included; rounded up to whole rollouts. 0: `updates` decide."""
    updates: Number = 0
    """Updates, where `steps` is 0."""
    offline: bool = False
    """Whether a learner that could act learns from demonstrations alone, without a step in the world."""
    num_envs: Count = 8
    """Environments side by side."""
    rollout_length: Number = 0
    """Steps of each environment between updates; 0: the algorithm's own number, 1 for those who replay."""
    updates_per_rollout: Count = 1
    """Updates after each rollout."""
    prefill_steps: Number = 0
    """Steps before the first update, for those who replay."""
    study: Number = 0
    """Rounds of updates after those and before the next step: what demonstrations teach needs no steps."""
    evaluate_every: Number = 0
    """Environment steps (offline: updates) between two evaluations; 0: none."""
    evaluate_episodes: Count = 128
    """Episodes of each evaluation."""
    reward_from: str | None = None
    """A trained model: the learner is paid what that inferred for `demonstrator`, and not by the world."""
    demonstrator: Number = 0
    """Whose inferred reward, or whose cloned policy, counted from 0."""
    init_from: str | None = None
    """A policy trained by bc from which ppo or gail starts, that of `demonstrator`."""
    seed: Seed = 0
    """Decides the demonstrations, the world and everything random."""

    def __post_init__(self):
        configs.check(self)


class Trained(NamedTuple):
    """What a run left, and what it cost."""

    run: Run
    """As it was carried out: names, tasks and configs filled in."""
    agent: Agent
    state: Any
    """The algorithm's own state; what pays or watches has been taken off. Of several seeds, its arrays have a leading axis."""
    spec: EnvSpec
    """Of the observations and actions as the world gives them."""
    demos: Demos | None
    agents: tuple[Any, ...]
    """The demonstrators, by id."""
    lens: Lens | None
    """What is done to observations before the networks see them; None: nothing."""
    first_action: int
    """What the world calls action 0."""
    names: tuple[str, ...]
    """What the cumulants are called; () for learned ones."""
    env_steps: int
    wall_s: float
    """Seconds in all, with what processes before this one spent and put down."""
    rows: list[dict[str, Any]]
    called: Mapping[str, Any] = MappingProxyType({})
    """What the demonstrations' file calls observations and actions, by the names of a model's fields."""
    earlier_s: float = 0.0
    """Of `wall_s`, the part of processes before this one."""

    @property
    def algorithm(self) -> Algorithm:
        return ALGORITHMS[self.run.algorithm]

    @property
    def net(self) -> Any:
        """The network that is deployed."""
        return self.algorithm.deployed(self.run.agent, self.state)


# --- A run by default ----------------------------------------------------------------------------------------------------


def algorithm_of(name: str) -> Algorithm:
    if not isinstance(name, str) or name not in ALGORITHMS:
        raise UserError(f"{name!r} is not an algorithm; expected one of {', '.join(ALGORITHMS)}.")
    return ALGORITHMS[name]


def default_run(algorithm: str, env: str, preset: str = "default", *, world: World | None = None, **changes: Any) -> Run:
    """An algorithm in a world with the settings that suit it there, or general ones where none were tuned; `changes` are of fields."""
    known, place = algorithm_of(algorithm), world or worlds.find(env)
    tables = {"default": place.presets, "paper": place.paper}
    if preset not in tables:
        raise UserError(f"The preset is {preset!r}, expected default or paper.")
    found = tables[preset].get(algorithm)
    if found is None and preset == "paper":
        having = ", ".join(place.paper) or "no algorithm"
        raise UserError(f"{algorithm} has no preset paper in {place.name}; there, {having} has one.")
    fields = (
        found()
        if found
        else {**worlds.gym.PACE, "agent": known.config(), "steps": 20_000 if known.acts else 0, "updates": 0 if known.acts else UPDATES}
    )
    if found is None and place.record is not None:
        fields["demos"] = RECORDED
    if fields.get("demos") == RECORDED and not known.watches(fields["agent"]):
        fields["demos"] = NONE
    return Run(algorithm=algorithm, env=place.name, **{"world": place.config, **fields, **changes})


def changed(value: Any, changes: Mapping[str, Any]) -> Any:
    """A config with some fields replaced, by dotted names such as ``agent.itd.beta``."""
    for name, new in changes.items():
        value = _replaced(value, name.split("."), new)
    return value


def number(config: Any, name: str) -> Any:
    """A field of a config by its dotted name."""
    return reduce(getattr, name.split("."), config)


def _replaced(value: Any, path: list[str], new: Any) -> Any:
    first, *rest = path
    return dataclasses.replace(value, **{first: _replaced(getattr(value, first), rest, new) if rest else new})


def run_from_json(value: Any, name: str) -> Run:
    """A run out of JSON values, as `psiphi train --dry-run` prints it; what does not fit is refused, and nothing in it is executed."""
    if not isinstance(value, dict) or not isinstance(value.get("algorithm"), str) or not isinstance(value.get("env"), str):
        raise UserError(f"{name} is not a run, expected what psiphi train --dry-run prints.")
    algorithm, world = algorithm_of(value["algorithm"]), worlds.find(value["env"])
    inside = {"agent": algorithm.config, "world": type(world.config)}
    unknown = set(value) - {field.name for field in dataclasses.fields(Run)}
    if unknown or "agent" not in value:
        raise UserError(f"{name} {f'has {min(unknown)!r}' if unknown else 'lacks agent'}, which is no run of this version of psiphi.")
    made = {field: configs.from_json(kind, value[field], f"{name}.{field}") for field, kind in inside.items() if field in value}
    plain = {field: tuple(item) if isinstance(item, list) else item for field, item in value.items() if field not in inside}
    return Run(**plain, **made)


def is_compiled(run: Run) -> bool:
    """Whether the whole run is one compiled program, so that several seeds can be trained in it."""
    place = worlds.find(run.env)
    config = place.config if run.world is None else run.world
    return not acts(run) or isinstance(place.env(config, place.task(config, run.task or place.own)), Env)


def one_by_one(trained: Trained) -> list[Trained]:
    """A training of several seeds as one of each."""
    seeds = sorted({row["seed"] for row in trained.rows})

    def alone(i: int, seed: int) -> Trained:
        rows = [row for row in trained.rows if row["seed"] == seed]
        state = jax.tree.map(lambda x: x[i], trained.state)
        return trained._replace(run=dataclasses.replace(trained.run, seed=seed), state=state, rows=rows)

    return [alone(i, seed) for i, seed in enumerate(seeds)]


def completed(run: Run, world: World | None = None) -> Run:
    """The run with the world's own task, config and demonstrators where it names none; refuses what would silently not be done."""
    algorithm, place = algorithm_of(run.algorithm), world or worlds.find(run.env)
    if not isinstance(run.agent, algorithm.config):
        raise UserError(f"The config of {run.algorithm} is a {type(run.agent).__name__}, expected {algorithm.config.__name__}.")
    if bool(run.steps) == bool(run.updates):
        raise UserError(f"steps is {run.steps} and updates is {run.updates}, expected exactly one of them above 0.")
    if run.steps and not acts(run):
        raise UserError(f"{run.algorithm} takes no steps in the world, expected updates instead of steps.")
    if run.offline and algorithm.acts and not algorithm.offline(run.agent):
        raise UserError(
            f"offline is true, but {run.algorithm} with this config learns from its own steps; itd with cross_policy_on = pooled does not."
        )
    paid = algorithm.paid(run.agent)
    if run.reward_from is not None and not paid:
        raise UserError(f"{run.algorithm} is not paid, so it has no use for the reward of {run.reward_from}.")
    if run.init_from is not None and (algorithm.replays or not algorithm.acts):
        raise UserError(f"{run.algorithm} cannot start from a cloned policy; ppo and gail can.")
    config = place.config if run.world is None else run.world
    if place.config is not None and not isinstance(config, type(place.config)):
        raise UserError(f"The config of {place.name} is a {type(config).__name__}, expected {type(place.config).__name__}.")
    names = run.demonstrators or (place.demonstrators(config) if run.demos == RECORDED else ())
    return dataclasses.replace(run, env=place.name, world=config, task=place.task(config, run.task or place.own), demonstrators=names)


def acts(run: Run) -> bool:
    """Whether the learner takes steps of its own: to learn from them, or only to meet others."""
    return (ALGORITHMS[run.algorithm].acts and not run.offline) or run.demos == ONLINE


def loop_of(run: Run) -> scan.LoopConfig:
    """How many iterations, how wide, and between which evaluations."""
    algorithm = ALGORITHMS[run.algorithm]
    if not acts(run):
        return scan.LoopConfig(iterations=run.updates, chunk=min(run.evaluate_every or CHUNK, run.updates), seed=run.seed)
    length = run.rollout_length or algorithm.rollout_length(run.agent)
    rollout = length * run.num_envs
    prefill = run.prefill_steps if algorithm.replays or length == 1 else 0
    by_steps = run.study + max(-(-(run.steps - prefill) // rollout), 1)
    iterations = max(-(-run.updates // run.updates_per_rollout), 1) if run.updates else by_steps
    return scan.LoopConfig(
        iterations=iterations,
        chunk=min(max(round(run.evaluate_every / rollout), 1) if run.evaluate_every else CHUNK, iterations),
        num_envs=run.num_envs,
        rollout_length=length,
        updates_per_rollout=run.updates_per_rollout,
        prefill_steps=prefill,
        study=min(run.study, iterations),
        seed=run.seed,
    )


# --- Where it is run -----------------------------------------------------------------------------------------------------


class Place(NamedTuple):
    """A world as a loop needs it: a JAX environment, or Gymnasium's side by side."""

    env: Env | None
    vector: VectorEnv[Any, Any, Any] | None
    spec: EnvSpec
    first_action: int


def place_of(made: Any, num_envs: int) -> Place:
    """What an environment shows and allows; Gymnasium's are made a vector of `num_envs`, or of one if one is given."""
    if isinstance(made, Env):
        return Place(made, None, made.spec, 0)
    vector = _vector(made, num_envs)
    seen, done = vector.single_observation_space, vector.single_action_space
    if not isinstance(done, gymnasium.spaces.Discrete):
        raise UserError(f"The environment's actions are {done}, expected discrete ones.")
    if not isinstance(seen, gymnasium.spaces.Box | gymnasium.spaces.MultiBinary) or not seen.shape:
        raise UserError(f"The environment's observations are {seen}, expected arrays; gymnasium.wrappers.FlattenObservation makes some.")
    symmetry, said = (made.symmetry, made.kind) if isinstance(made, SideBySide) else (None, None)
    return Place(None, vector, EnvSpec(seen.shape, seen.dtype, int(done.n), symmetry, said), int(done.start))


def _vector(made: Any, num_envs: int) -> VectorEnv[Any, Any, Any]:
    if isinstance(made, VectorEnv):
        return made
    if isinstance(made, SideBySide):
        return made.make(num_envs)
    if isinstance(made, gymnasium.Env):
        return SyncVectorEnv([lambda: made], autoreset_mode=AutoresetMode.SAME_STEP)
    if not callable(made):
        raise UserError(f"The environment is {doors.called(made)}, expected an environment, a function that makes one, or its id.")

    def factory() -> gymnasium.Env[Any, Any]:
        env = made()
        if not isinstance(env, gymnasium.Env):
            raise UserError(f"What should make an environment made {doors.called(env)}, expected a gymnasium.Env.")
        return env

    try:
        return SyncVectorEnv([factory] * num_envs, autoreset_mode=AutoresetMode.SAME_STEP)
    except UserError:
        raise
    except Exception as error:  # whatever a stranger's function does
        raise UserError(f"The environment cannot be made: {type(error).__name__}: {str(error).rstrip('.')}.") from error


# --- What was demonstrated -----------------------------------------------------------------------------------------------


class Shown(NamedTuple):
    """Demonstrations as a learner gets them."""

    demos: Demos | None
    agents: tuple[Any, ...]
    watch: scan.Watch | None = None
    """Where they are seen while one acts."""
    columns: tuple[str, ...] = ()
    """What the numbers of an observation are called."""
    called: Mapping[str, Any] = MappingProxyType({})
    """What a model keeps of such names; nothing, if the world has actions that the demonstrations do not have."""


def shown_to(run: Run, world: World, spec: EnvSpec, given: Demonstrations | Demos | None) -> Shown:
    """What the learner is shown: what is given, or what the run names."""
    algorithm = ALGORITHMS[run.algorithm]
    if not algorithm.watches(run.agent):
        return Shown(None, ())
    if given is None and run.demos == NONE:
        if algorithm.watches_always:
            raise UserError(f"{run.algorithm} learns from demonstrations, expected recorded, online or a file, but found none.")
        return Shown(None, ())
    if given is None and run.demos == ONLINE:
        names = world.watched(run.world)
        if not names:
            raise UserError(f"{world.name} has no demonstrators to watch online, expected {_sources(world)} as demonstrations.")
        names = (EVERYBODY,) if run.pooled else names
        watch = watching.watch_all_as_one if run.pooled else watching.watch
        return Shown(replay.no_demonstrations(spec, len(names), run.room), names, watch)
    if given is None and run.demos == RECORDED:
        if world.record is None:
            raise UserError(f"{world.name} has no demonstrators of its own to record, expected {_sources(world)} as demonstrations.")
        demos = world.record(run.world, run.demonstrators, run.episodes, run.seed, "train").demos
        return _pooled(run, Shown(demos, run.demonstrators))
    logs = _read(run.demos) if given is None else given
    if isinstance(logs, Demos):  # who they are of, only the run can say
        count = logs.count.shape[0]
        return _pooled(run, Shown(logs, run.demonstrators if len(run.demonstrators) == count else tuple(range(count))))
    if world.entered:
        check_numbered(logs, spec)
    check_fits(logs, spec)
    kept = called(logs) if logs.num_actions == spec.num_actions else {}
    return _pooled(run, Shown(logs.to_demos(), logs.agents, None, logs.names, kept))


def _read(path: str) -> Demonstrations:
    try:
        return Demonstrations.read(path)
    except UserError as error:
        if "; --" not in str(error):  # flags that name columns are those of psiphi demos
            raise
        said = str(error).rpartition("; --")[0]
        raise UserError(f"{said}; psiphi demos convert FILE OUT says which column is what, and writes a file to train from.") from None


def _sources(world: World) -> str:
    sources = [name for name, there in ((RECORDED, world.record), (ONLINE, world.watched(world.config))) if there]
    return " or ".join([*sources, "a file"])


def _pooled(run: Run, shown: Shown) -> Shown:
    if not run.pooled or shown.demos is None:
        return shown
    return shown._replace(demos=pool(shown.demos), agents=(EVERYBODY,))


def pool(demos: Demos) -> Demos:
    """All demonstrators as one, their steps one after the other."""

    def joined(x: Array) -> Array:
        return jnp.concatenate([x[k, :count] for k, count in enumerate(np.asarray(demos.count))])[None]

    if demos.frames is not None:
        room = demos.frames.shape[1]
        places = [x + room * jnp.arange(x.shape[0], dtype=x.dtype)[:, None] for x in (demos.steps.obs, demos.steps.next_obs)]
        demos = demos._replace(steps=demos.steps._replace(obs=places[0], next_obs=places[1]))
    frames = None if demos.frames is None else demos.frames.reshape(1, -1, *demos.frames.shape[2:])
    return Demos(Demonstration(*map(joined, demos.steps)), jnp.sum(demos.count, keepdims=True), frames=frames)


def check_numbered(demos: Demonstrations, spec: EnvSpec) -> None:
    """One sentence for demonstrations whose actions are names: which of the world's numbers each of them is, is not known."""
    if not demos.numbered:
        some = ", ".join(map(repr, demos.action_names[:6])) + (" ..." if demos.num_actions > 6 else "")
        raise UserError(f"The demonstrations name their actions ({some}), expected the world's numbers, 0 to {spec.num_actions - 1}.")


def check_fits(demos: Demonstrations, spec: EnvSpec) -> None:
    """One sentence for demonstrations of another world."""
    if demos.obs.shape[1:] != spec.obs_shape:
        raise UserError(f"The demonstrations' observations have shape {demos.obs.shape[1:]}, but the world's have {spec.obs_shape}.")
    if demos.num_actions > spec.num_actions:
        raise UserError(f"The demonstrations have {demos.num_actions} actions, but the world has {spec.num_actions}.")
    if not demos.numbered and demos.num_actions < spec.num_actions:
        raise UserError(f"The demonstrations name {demos.num_actions} actions, expected all {spec.num_actions}, as names are numbered.")


# --- Training ------------------------------------------------------------------------------------------------------------

Evaluate = Callable[[Any, Array], Metrics]

Make = Callable[[EnvSpec, int, Pace], Agent]
"""``make(spec, demonstrators, pace)``: the agent of a run."""


def make_room() -> None:
    """Forget compiled programs before the process may map no more memory: after some dozens of trainings it would end."""
    if limits.mapped() > limits.CROWDED:
        jax.clear_caches()


def train(
    run: Run,
    *,
    out: Path | None = None,
    demos: Demonstrations | Demos | None = None,
    world: World | None = None,
    model: Model | None = None,
    net: Any = None,
    state: Any = None,
    features: Any = None,
    make: Make | None = None,
    seeds: int = 1,
    evaluate: Evaluate | None = None,
    until: scan.Until | None = None,
    rates: Sequence[str] = (),
    between: scan.Between | None = None,
    progress: bool = True,
    checkpoint_every_s: float = 30.0,
) -> Trained:
    """Train to the end, or continue what `out` holds.

    What the run names by a file or a name can be given as a thing: `demos`, `world`, the `model` whose inferred reward is paid, the trained
    `net` to start from. `state` is the algorithm's state to go on from. `features` are cumulants of the user's. `make` takes the place of
    the algorithm's own way to be made. With several `seeds`, `run.seed` and the following are trained at once. `evaluate(state, key)` takes
    the place of the world's own evaluation, and `until(rows)` may end the run before its time, after any chunk. `rates` are numbers of the
    agent's config, by name, that are part of the state (`agents.tunable`), where `between(carry, rows)` may change them between chunks.
    """
    started = time.monotonic()
    make_room()
    place_world = world or worlds.find(run.env)
    run = completed(run, place_world)
    algorithm = ALGORITHMS[run.algorithm]
    place = place_of(place_world.env(run.world, run.task), run.num_envs)
    if place.vector is not None and place.vector.num_envs != run.num_envs:
        run = dataclasses.replace(run, num_envs=place.vector.num_envs)
    loop = dataclasses.replace(loop_of(run), num_seeds=seeds)
    pace = Pace(num_envs=run.num_envs, updates=loop.iterations * loop.updates_per_rollout)
    agents = _count(run, place_world, demos)
    if not place_world.lensed and run.demos in (RECORDED, ONLINE):
        algorithm.make(run.agent, place.spec, agents, pace)  # before anything is recorded: it refuses at once what cannot be
    shown = shown_to(run, place_world, place.spec, demos)
    inside = _seen_inside(run, place_world, place, shown, features)
    paying = model if model is not None or run.reward_from is None else _paid_by(run, place.spec)
    net = net if net is not None or run.init_from is None else _cloned_by(run)

    def made(config: Any) -> tuple[Agent, Agent]:
        """The algorithm's agent, and the same with what starts it, pays it and shows it others."""
        inner = (make or partial(algorithm.make, config, **inside.options))(inside.spec, len(shown.agents), pace)
        agent = inner if net is None else started_from(algorithm, inner, net)
        agent = agent if paying is None else rewarded.rewarded(agent, rewarded.inferred(run.demonstrator), paying)
        return inner, agent if shown.watch is None else watching.watching(agent)

    inner, agent = made(run.agent)
    watch = inside.watch
    judge = evaluate or _evaluation(run, place_world, place, agent, algorithm, shown, inside)
    if rates:
        agent = tunable.tunable(
            lambda values: made(tunable.with_rates(run.agent, values))[1], {name: number(run.agent, name) for name in rates}
        )
        watch = None if watch is None else tunable.watched(watch)
        judge = None if judge is None else _judged_inside(judge)
    if shown.watch is None and shown.demos is not None:
        replay.check_demos(inside.demos, inside.spec, getattr(run.agent, "demonstrator", None))
    common = {
        "out": out,
        "settings": {"run": dataclasses.asdict(run), **_shown_in(out, run, shown)},
        "until": until,
        "between": between,
        "progress": progress,
        "checkpoint_every_s": checkpoint_every_s,
    }
    if state is not None:
        state = _anew(agent, state, inside.demos, run)
    if place.env is not None or not acts(run):
        result = scan.run(
            inside.env if acts(run) else None, agent, inside.demos, loop, evaluate=judge, watch=watch, state=state,
            hosted=place.env is None and evaluate is None, **common,
        )  # fmt: skip
    else:
        assert place.vector is not None
        hosts = gym.Worlds(place.vector, see=inside.see, first_action=place.first_action, watched=shown.watch is not None)
        result = gym.run(hosts, agent, inside.demos, loop, evaluate=judge, watch=watch, state=state, **common)
    left = result.agent() if seeds == 1 else result.carry.agent
    for wraps in (bool(rates), shown.watch is not None, paying is not None):
        left = left.agent if wraps else left
    steps = loop.env_steps(loop.iterations) if acts(run) else 0
    return Trained(
        run, inner, left, place.spec, inside.demos, shown.agents, inside.lens, place.first_action, inside.names, steps,
        time.monotonic() - started + result.earlier_s, result.rows, shown.called, result.earlier_s,
    )  # fmt: skip


def _shown_in(out: Path | None, run: Run, shown: Shown) -> dict[str, str]:
    """What tells the demonstrations of a run directory from others: the run names only those that the world itself shows."""
    if out is None or shown.demos is None or run.demos in (RECORDED, ONLINE):
        return {}
    seen = hashlib.sha256()
    for column in jax.tree.leaves(shown.demos):
        seen.update(np.ascontiguousarray(column).tobytes())
    return {"demonstrations_sha256": seen.hexdigest()}


def _count(run: Run, world: World, given: Demonstrations | Demos | None) -> int:
    """How many demonstrators there will be, before any is recorded."""
    if not ALGORITHMS[run.algorithm].watches(run.agent) or (given is None and run.demos == NONE):
        return 0
    return 1 if run.pooled else len(world.watched(run.world) if run.demos == ONLINE else run.demonstrators)


def _anew(agent: Agent, state: Any, demos: Demos | None, run: Run) -> Any:
    """A state to go on from: what was learned stays, the optimiser and its schedule begin anew."""
    fresh = jax.jit(agent.init)(jax.random.key(run.seed), demos)
    kept = {name: getattr(fresh, name) for name in ("optimiser", "ramp") if hasattr(fresh, name)}
    return state._replace(**kept)


class _Inside(NamedTuple):
    """The world as the networks see it."""

    spec: EnvSpec
    env: Env | None
    demos: Demos | None
    lens: Lens | None
    see: Callable[[Any], np.ndarray]
    options: dict[str, Any]
    names: tuple[str, ...]
    watch: scan.Watch | None


def _seen_inside(run: Run, world: World, place: Place, shown: Shown, features: Any) -> _Inside:
    """JAX worlds are seen as they are. Of a stranger's observations, numbers are standardised by the demonstrations, and pictures turned
    round; networks with successor features do that by themselves, for the others it is done before."""
    algorithm, spec = ALGORITHMS[run.algorithm], place.spec
    if not world.lensed:
        given = _given(run, shown, features) if algorithm.successor_features and run.demos == RECORDED else None
        config = run.agent.itd if hasattr(run.agent, "itd") else run.agent
        options = {} if given is None else {"initial": lambda key, heads: itd.initial_net(config, spec, heads, key, given)}
        return _Inside(spec, place.env, shown.demos, None, np.asarray, options, _named(given, shown, spec), shown.watch)
    lens = lens_of(place, shown.demos, run.seed)
    if algorithm.successor_features:
        given = _given(run, shown, features)
        config = run.agent.itd if hasattr(run.agent, "itd") else run.agent

        def initial(key: Array, heads: int) -> Any:
            return lens.on(itd.initial_net(config, lens.spec(spec.num_actions), heads, key, given))

        return _Inside(spec, place.env, shown.demos, lens, np.asarray, {"initial": initial}, _named(given, shown, spec), shown.watch)
    look = partial(lenses.look, mean=lens.mean, scale=lens.scale, layout=lens.layout, standardise=lens.standardise)
    inside = lens.spec(spec.num_actions)._replace(symmetry=None)
    env = None if place.env is None else _looked_through(place.env, inside, look)
    watch = None if shown.watch is None else _watched_through(shown.watch, look)
    return _Inside(inside, env, _looked_at(shown.demos, look), lens, lambda obs: look(np.asarray(obs)), {}, (), watch)


def _watched_through(watch: scan.Watch, look: Callable[[Any], Any]) -> scan.Watch:
    """What others are seen to do, as the networks are to see it."""
    return lambda state, who, steps: watch(state, who, steps._replace(obs=look(steps.obs), next_obs=look(steps.next_obs)))


def _looked_through(env: Env, spec: EnvSpec, look: Callable[[Any], Any]) -> Env:
    """A JAX environment whose observations are what the networks are to see."""

    def reset(key: Array) -> tuple[Any, Array]:
        state, obs = env.reset(key)
        return state, look(obs[None])[0]

    def step(state: Any, action: Array, key: Array) -> tuple[Any, Any]:
        after, reached = env.step(state, action, key)
        return after, reached._replace(obs=look(reached.obs[None])[0])

    return Env(spec, reset, step)


def lens_of(place: Place, demos: Demos | None, seed: int) -> Lens:
    """What is done to observations: by the demonstrations' mean and spread. Without any, first observations tell boards from pictures
    where the world does not, and of other numbers nothing is known."""
    spec = place.spec
    if demos is not None and np.asarray(demos.count).any():
        examples = np.concatenate([np.asarray(demos.steps.obs[k, :count]) for k, count in enumerate(np.asarray(demos.count))])
        return lenses.lens_for(examples, spec.obs_shape, spec.obs_dtype, spec.kind)
    if spec.kind or not lenses.has_cells(spec.obs_shape, spec.obs_dtype):
        return lenses.blank(spec.obs_shape, spec.obs_dtype, False, spec.kind or "vector")
    first = _first_seen(place, seed)
    if not first.any() and place.vector is not None:  # a dark screen tells nothing; how bright it may be is in its space
        first = np.asarray(getattr(place.vector.single_observation_space, "high", first))
    kind = lenses.kind_of(first, spec.obs_shape, spec.obs_dtype)
    return lenses.blank(spec.obs_shape, spec.obs_dtype, False, kind)


def _first_seen(place: Place, seed: int) -> np.ndarray:
    """What an environment shows first."""
    if place.vector is not None:
        return np.asarray(place.vector.reset(seed=seed)[0])
    assert place.env is not None
    return np.asarray(place.env.reset(jax.random.key(seed))[1])


def _looked_at(demos: Demos | None, look: Callable[[np.ndarray], np.ndarray]) -> Demos | None:
    if demos is None:
        return None

    def each(x: Array) -> Array:
        flat = look(np.asarray(x).reshape(-1, *x.shape[2:]))
        return jnp.asarray(flat.reshape(*x.shape[:2], *flat.shape[1:]))

    return demos._replace(steps=demos.steps._replace(obs=each(demos.steps.obs), next_obs=each(demos.steps.next_obs)))


def _given(run: Run, shown: Shown, features: Any) -> Any:
    """Cumulants that are not learned."""
    config = run.agent.itd if hasattr(run.agent, "itd") else run.agent
    if not itd.has_given(config):
        return None
    assert shown.demos is not None
    s, count = shown.demos.steps, np.asarray(shown.demos.count)
    steps = [np.concatenate([np.asarray(x[k, :n]) for k, n in enumerate(count)]) for x in (s.obs, s.action, s.next_obs, s.discount)]
    if config.cumulants == "given":
        if not callable(features):
            raise UserError('cumulants is "given", but there are no features, expected a function of (obs, action, next_obs, terminated).')
        return cumulants.given(features, steps)
    width = int(np.prod(steps[0].shape[1:]))
    counted = cumulants.countable(steps[0]) if width > cumulants.MOST_COLUMNS else ()
    names = list(shown.columns or (str(i) for i in range(width)))
    levels = range(len(counted) or width) if config.levels == ("all",) else [names.index(name) for name in config.levels if name in names]
    return cumulants.changes(steps, levels=tuple(levels), ends=config.ends, counted=counted)


def _named(given: Any, shown: Shown, spec: EnvSpec) -> tuple[str, ...]:
    return () if given is None else cumulants.names(given, shown.columns or _columns(spec))


def _columns(spec: EnvSpec) -> tuple[str, ...]:
    return tuple(f"obs_{i}" for i in range(int(np.prod(spec.obs_shape))))


# --- What pays, and what is begun with -----------------------------------------------------------------------------------


def _paid_by(run: Run, spec: EnvSpec) -> Model:
    """The model whose inferred reward is to be paid."""
    from psiphi.api import files

    found = files.read(Path(str(run.reward_from)))
    if found.known is None:
        raise UserError(f"{run.reward_from} is a policy of {found.algorithm}, expected a model that infers rewards, of itd or psiphi.")
    if not 0 <= run.demonstrator < len(found.known.agents):
        raise UserError(
            f"{run.reward_from} knows demonstrators 0 to {len(found.known.agents) - 1}, but the reward of {run.demonstrator} is asked for."
        )
    if found.known.lens.shape != spec.obs_shape or found.known.num_actions != spec.num_actions:
        raise UserError(
            f"{run.reward_from} reads observations of shape {found.known.lens.shape} and knows {found.known.num_actions} actions, "
            f"but the world has {spec.obs_shape} and {spec.num_actions}."
        )
    return found.known.model


def _cloned_by(run: Run) -> ActionNet:
    """One demonstrator's policy out of what bc left."""
    from psiphi.api import files

    found = files.read(Path(str(run.init_from)))
    if not ALGORITHMS[found.algorithm].likelihoods:
        raise UserError(f"{run.init_from} was trained by {found.algorithm}, but init_from expects what bc left.")
    if not 0 <= run.demonstrator < len(found.agents):
        raise UserError(f"{run.init_from} has cloned demonstrators 0 to {len(found.agents) - 1}, but {run.demonstrator} is asked for.")
    assert found.policies is not None
    return bc.of_demonstrator(found.policies.net, run.demonstrator)


def started_from(algorithm: Algorithm, agent: Agent, net: Any) -> Agent:
    """The agent with a trained network where its own would be untrained."""
    return agent._replace(init=lambda key, demos: algorithm.started(agent.init(key, demos), net))


# --- Judging -------------------------------------------------------------------------------------------------------------


def _evaluation(run: Run, world: World, place: Place, agent: Agent, algorithm: Algorithm, shown: Shown, inside: _Inside) -> Evaluate | None:
    """What is measured between chunks: what episodes come to on the task; where demonstrators are told apart, each on what it wants."""
    if not run.evaluate_every or (place.env is None and place.vector is None):
        return None
    tasks = wanted_tasks(run, world, shown.agents) if algorithm.tells_apart and not run.pooled else None
    if tasks is not None:
        return _apart(run, world, place, algorithm, tasks, watches=shown.watch is not None)
    if place.env is not None:
        assert inside.env is not None
        return partial(_judged, run, world, inside.env, agent)
    return _HostJudge(run, world, agent.policy, inside.see, place.first_action) if run.pooled or not algorithm.tells_apart else None


def _judged_inside(judge: Evaluate) -> Evaluate:
    """The same for an agent with rates in its state: how it is judged does not depend on them."""
    return lambda state, key: judge(state.agent, key)


def wanted_tasks(run: Run, world: World, agents: tuple[Any, ...]) -> dict[Any, str] | None:
    """The task of each demonstrator, if the world can say; None if not."""
    if world.wants is None or run.demos not in (RECORDED, ONLINE) or not all(isinstance(name, str) for name in agents):
        return None
    return {name: world.wants(run.world, name) for name in agents}


def _judged(run: Run, world: World, env: Env, agent: Agent, state: Any, key: Array) -> Metrics:
    got = rollout_returns(env, partial(agent.policy, state), key, run.evaluate_episodes, world.longest(run.world))
    return world.figures(run.world, run.task, got)


def _apart(run: Run, world: World, place: Place, algorithm: Algorithm, tasks: dict[Any, str], *, watches: bool) -> Evaluate:
    assert algorithm.imitates is not None
    imitates = algorithm.imitates

    def policy(state: Any, k: int) -> Callable[[Array, Array], Array]:
        return imitates(run.agent, state.agent if watches else state, k)

    def evaluate(state: Any, key: Array) -> Metrics:
        found: Metrics = {}
        for k, (name, task) in enumerate(tasks.items()):
            env = world.env(run.world, task)
            assert isinstance(env, Env)
            got = rollout_returns(env, policy(state, k), key, run.evaluate_episodes, world.longest(run.world))
            found |= {f"{figure}/{name}": x for figure, x in world.figures(run.world, task, got).items()}
        return found

    if place.env is not None:
        return evaluate
    hosts = [
        _HostJudge(dataclasses.replace(run, task=task), world, lambda state, obs, key, k=k: policy(state, k)(obs, key), np.asarray, 0)
        for k, task in enumerate(tasks.values())
    ]

    def evaluate_hosts(state: Any, key: Array) -> Metrics:
        return {f"{figure}/{name}": x for name, judge in zip(tasks, hosts, strict=True) for figure, x in judge(state, key).items()}

    return evaluate_hosts


class _HostJudge:
    """Plays a Gymnasium world between chunks, in environments of its own, which are made at the first call."""

    def __init__(
        self,
        run: Run,
        world: World,
        policy: Callable[[Any, Array, Array], Array],
        see: Callable[[Any], np.ndarray],
        first_action: int,
    ):
        self._run, self._world, self._see, self._first = run, world, see, first_action
        self._policy = jax.jit(policy)
        self._hosts: gym.Worlds | None = None

    def __call__(self, state: Any, key: Array) -> Metrics:
        run, made = self._run, self._world.env(self._run.world, self._run.task)
        if isinstance(made, gymnasium.Env | VectorEnv):
            return {}  # the one that learns is in it; its episodes are not to be disturbed
        if self._hosts is None:
            self._hosts = gym.Worlds(_vector(made, min(run.num_envs, run.evaluate_episodes)), see=self._see, first_action=self._first)
        got = gym.rollout_returns(
            self._hosts, partial(self._policy, state), key, run.evaluate_episodes, self._world.longest(run.world), run.seed
        )
        return self._world.figures(run.world, run.task, jax.tree.map(jnp.asarray, got))
