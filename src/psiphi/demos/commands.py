"""`psiphi demos`: look at demonstrations, check them, turn one format into another, and record some."""

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import tyro

from psiphi import printable
from psiphi.arguments import parsed
from psiphi.configs import Count, Positive, Seed, Share
from psiphi.demos import files, validate
from psiphi.demos import summary as summaries
from psiphi.demos.columns import Columns, listed
from psiphi.demos.demonstrations import Demonstrations
from psiphi.demos.discretiser import Discretiser, Recipe
from psiphi.demos.problems import DemonstrationsError, Problem, summed
from psiphi.demos.rows import no_action
from psiphi.demos.tracks import Motion, discretised, from_tracks
from psiphi.errors import UserError

Mapped = Annotated[Columns, tyro.conf.arg(name="")]
"""The fields of `Columns` as flags of their own: ``--agent driver --obs x,y,speed``."""

COINGRID = "psiphi/CoinGrid-v0"
SHOWN = 20
"""Agents in a table; JSON has them all."""


@dataclass(frozen=True)
class Inspect:
    """What is in a file of demonstrations: agents, episodes, lengths, actions, coverage, duplicates."""

    file: tyro.conf.Positional[Path]
    """A .parquet, .csv or .npz file, or the directory of a Minari dataset."""
    columns: Mapped = field(default_factory=Columns)
    json: bool = False
    """Print one JSON object instead of tables."""


def inspect(config: Inspect) -> None:
    demos = files.read(config.file, config.columns, progress=not config.json)
    found = summaries.summary(demos)
    if config.json:
        print(json.dumps({"file": str(config.file), **found}))
        return
    for table in _tables(str(config.file), found):
        _console().print(table)
    _say(demos.notes)


@dataclass(frozen=True)
class Validate:
    """Everything that is wrong or doubtful with a file of demonstrations, each with agent, episode and step."""

    file: tyro.conf.Positional[Path]
    """A .parquet, .csv or .npz file, or the directory of a Minari dataset."""
    columns: Mapped = field(default_factory=Columns)
    limits: Annotated[validate.Thresholds, tyro.conf.arg(name="")] = field(default_factory=validate.Thresholds)
    json: bool = False
    """Print one JSON object instead of sentences."""


def check(config: Validate) -> None:
    problems, notes = _problems(config)
    errors = sum(problem.severity == "error" for problem in problems)
    if config.json:
        print(json.dumps({"file": str(config.file), "problems": [problem._asdict() for problem in problems], "notes": list(notes)}))
    else:
        said = summed(problems)
        for sentence in said:
            print(printable.sentence(sentence))
        if len(said) < len(problems):
            print("--json lists each of them.")
        _say(notes)
    if errors:
        raise UserError(f"{config.file} cannot be used: {_counted(errors, 'error')}, {_counted(len(problems) - errors, 'warning')}.")
    if not config.json:
        print(printable.sentence(f"{config.file} can be used: no error, {_counted(len(problems), 'warning')}."))


def _problems(config: Validate) -> tuple[list[Problem], tuple[str, ...]]:
    rows = files.read_rows(config.file, config.columns, progress=not config.json)
    try:
        demos = validate.checked(rows)
    except DemonstrationsError as error:
        return list(error.problems), rows.notes
    return validate.validate(demos, str(config.file), config.limits), demos.notes


@dataclass(frozen=True)
class Convert:
    """Read demonstrations in one format and write them in another; the endings of the names say which."""

    source: tyro.conf.Positional[Path]
    """What to read."""
    out: tyro.conf.Positional[Path]
    """What to write: .parquet, .csv, .npz, or a directory such as drivers-v0 for Minari. What is there is replaced."""
    columns: Mapped = field(default_factory=Columns)


def convert(config: Convert) -> None:
    files.check_name(config.out)
    demos = files.read(config.source, config.columns, progress=True)
    _say(demos.notes)
    files.write(demos, config.out, progress=True)
    print(printable.sentence(f"{config.out}: {_counted(len(demos), 'step')} of {_counted(len(demos.agents), 'agent')}."))


@dataclass(frozen=True)
class Record:
    """Record demonstrations in a Gymnasium environment with discrete actions, an agent for each policy."""

    env: tyro.conf.Positional[str]
    """The id of a registered environment, such as CartPole-v1 or psiphi/CoinGrid-v0."""
    out: tyro.conf.Positional[Path]
    """What to write: .parquet, .csv, .npz, or a directory such as drivers-v0 for Minari."""
    policy: tuple[str, ...] = ("random",)
    """Of each agent: random, constant:ACTION, sticky:PROBABILITY (of repeating the action before); on CoinGrid also exact:TASK, which
    plans for a task such as R or G-R and acts by exp(Q/temperature)."""
    episodes: Count = 100
    """Per agent."""
    seed: Seed = 0
    """Decides everything random."""
    key: str | None = None
    """Which entry of observations that are dictionaries."""
    temperature: Positive = 0.02
    """Of exact policies, in units of reward."""
    gamma: Share = 0.9
    """Discount of exact policies."""


def record(config: Record) -> None:
    if not config.policy or len(set(config.policy)) < len(config.policy):
        raise UserError(f"The policies are {' '.join(config.policy) or 'none'}, expected different ones, as they name the agents.")
    files.check_name(config.out)
    parts = [_recorded(config, name, config.seed + 1_000_003 * i) for i, name in enumerate(config.policy)]
    demos = parts[0].merge(*parts[1:])
    files.write(demos, config.out, progress=True)
    print(printable.sentence(f"{config.out}: {_counted(len(demos), 'step')} of {_counted(len(demos.agents), 'agent')}."))


def _recorded(config: Record, name: str, seed: int) -> Demonstrations:
    """The demonstrations of one policy; its name is the agent's id."""
    import gymnasium

    from psiphi.demos import record as recorder

    kind, _, value = name.partition(":")
    if kind == "exact":
        return _exact(config, name, value, seed)
    if ":" in config.env:
        raise UserError(f"{config.env!r} would import a module; expected the id of an environment that is registered already.")
    try:
        env = gymnasium.make(config.env)
    except (gymnasium.error.Error, ImportError) as error:
        raise UserError(f"The environment {config.env!r} cannot be made: {str(error).splitlines()[0]}") from error
    try:
        num_actions = int(getattr(env.action_space, "n", 1))
        policy = _policy(kind, value, num_actions, seed, name)
        return recorder.record(env, policy, config.episodes, agent=name, seed=seed % 2**31, key=config.key, progress=True)
    finally:
        env.close()


def _policy(kind: str, value: str, num_actions: int, seed: int, name: str) -> Any:
    from psiphi.demos import record as recorder

    if kind == "random" and not value:
        return recorder.random_policy(num_actions, seed)
    try:
        if kind == "constant" and 0 <= (action := int(value)) < num_actions:
            return lambda _: action
        if kind == "sticky" and 0 <= (stay := float(value)) <= 1:
            return recorder.sticky_policy(num_actions, stay, seed)
    except ValueError:
        pass
    raise UserError(
        f"{name!r} is no policy; expected random, constant:0 to constant:{num_actions - 1}, sticky:0 to sticky:1, or exact:TASK."
    )


def _exact(config: Record, name: str, task: str, seed: int) -> Demonstrations:
    """Planned demonstrations on CoinGrid, as the experiments use them."""
    if config.env != COINGRID:
        raise UserError(f"{name!r} plans exactly, which is possible on {COINGRID} only, not on {config.env!r}.")
    import jax

    from psiphi.envs import coingrid, coingrid_exact

    weights = coingrid.task_weights(task)
    world, key = coingrid.CoinGridConfig(), jax.random.key(seed)
    recording = coingrid_exact.record(world, [weights], config.episodes, config.temperature, config.gamma, key)
    return Demonstrations.from_demos(recording.demos, recording.episode, [name], coingrid.NUM_ACTIONS)


@dataclass(frozen=True)
class Discretise:
    """Make continuous actions discrete: cluster them, as in the paper, and write what each action stands for into the file."""

    source: tyro.conf.Positional[Path]
    """What to read."""
    out: tyro.conf.Positional[Path]
    """What to write: .parquet, .csv, .npz, or a directory such as drivers-v0 for Minari. What is there is replaced."""
    columns: Mapped = field(default_factory=Columns)
    recipe: Annotated[Recipe, tyro.conf.arg(name="")] = field(default_factory=Recipe)
    like: Path | None = None
    """A file of demonstrations with discretised actions: use the same ones, instead of clustering anew."""
    json: bool = False
    """Print one JSON object instead of tables."""


def discretise(config: Discretise) -> None:
    files.check_name(config.out)
    cut = config.recipe if config.like is None else _discretiser(config.like)
    rows = files.read_rows(config.source, config.columns, progress=not config.json)
    demos = validate.checked(discretised(rows, cut))
    _say(demos.notes)
    files.write(demos, config.out, progress=not config.json)
    assert demos.discretiser is not None
    _actions_made(config.out, demos, demos.discretiser.variance_kept(rows.action[~no_action(rows.action)]), config.json)


def _discretiser(path: Path) -> Discretiser:
    found = files.read(path, Columns()).discretiser
    if found is None:
        raise UserError(f"{path} does not say what its actions stand for, expected a file that psiphi demos discretise wrote.")
    return found


@dataclass(frozen=True)
class FromTracks:
    """Turn positions of moving agents into demonstrations: what each saw of the others, and how it changed its motion."""

    source: tyro.conf.Positional[Path]
    """A .parquet, .csv or .npz file with a row for each agent and time."""
    out: tyro.conf.Positional[Path]
    """What to write: .parquet, .csv, .npz, or a directory such as drivers-v0 for Minari. What is there is replaced."""
    id: str = "id"
    """The column that says who moves; several columns, separated by commas, are one key."""
    scene: str = "none"
    """The column of the recording, match or arena: who is not in the same one is not seen."""
    t: str = "t"
    """The column of the time."""
    x: str = "x"
    y: str = "y"
    heading: str = ""
    """The column of the heading, in radians; without it, where an agent last went."""
    obs: str = ""
    """Further columns that the agent sees, separated by commas."""
    agent: str = ""
    """The column that says whose wants are asked for, if that is not who moves; "none": one agent for all."""
    group: str = ""
    """Episodes with the same entry in this column are never split between what is shown and what is held out."""
    motion: Annotated[Motion, tyro.conf.arg(name="")] = field(default_factory=Motion)
    recipe: Annotated[Recipe, tyro.conf.arg(name="")] = field(default_factory=Recipe)
    like: Path | None = None
    """A file of demonstrations with discretised actions: use the same ones, instead of clustering anew."""
    json: bool = False
    """Print one JSON object instead of tables."""


def tracks(config: FromTracks) -> None:
    files.check_name(config.out)
    names = {name: getattr(config, name) for name in ("id", "scene", "t", "x", "y", "heading", "obs", "agent", "group")}
    cut = config.recipe if config.like is None else _discretiser(config.like)
    kept: dict[str, float] = {}
    demos = from_tracks(config.source, **names, motion=config.motion, actions=cut, kept=kept, progress=not config.json)
    _say((*demos.notes, f"The observation is {listed(demos.names, most=8)}."))
    files.write(demos, config.out, progress=not config.json)
    _actions_made(config.out, demos, kept, config.json)


def _actions_made(out: Path, demos: Demonstrations, kept: dict[str, float], as_json: bool) -> None:
    """How well discrete actions stand for the continuous ones, and how often each is taken."""
    assert demos.discretiser is not None
    count = np.bincount(demos.action, minlength=demos.num_actions)
    if as_json:
        found = {"file": str(out), "steps": len(demos), "agents": len(demos.agents), "variance_kept": kept, "taken": count.tolist()}
        print(json.dumps(found | {"discretiser": demos.discretiser.to_dict()}))
        return
    print(printable.sentence(f"{out}: {_counted(len(demos), 'step')} of {_counted(len(demos.agents), 'agent')}."))
    shares = ", ".join(f"{name} {share:.1%}" for name, share in kept.items() if name != "total")
    print(printable.sentence(f"Variance kept: {kept['total']:.1%} ({shares})."))
    _console().print(_named_actions(demos.action_names, count, demos.discretiser))


COMMANDS: dict[str, tuple[type, Callable[[Any], None]]] = {
    "inspect": (Inspect, inspect),
    "validate": (Validate, check),
    "convert": (Convert, convert),
    "record": (Record, record),
    "discretise": (Discretise, discretise),
    "from-tracks": (FromTracks, tracks),
}

HELP = """usage: psiphi demos {inspect,validate,convert,record,discretise,from-tracks} [OPTIONS]

  inspect FILE         agents, episodes, lengths, actions, coverage, duplicates
  validate FILE        everything that is wrong or doubtful, with agent, episode and step
  convert IN OUT       from one format to another: .parquet, .csv, .npz, a Minari dataset
  discretise IN OUT    a few discrete actions for continuous ones: --action acc,lat --k 9
  from-tracks IN OUT   positions of moving agents as demonstrations: --id car --scene sc --t t --x x --y y
  record ENV OUT       demonstrations of simple policies in a Gymnasium environment

psiphi demos convert --help lists how columns of other names are found."""


def run(arguments: list[str]) -> None:
    """The command that the arguments after `psiphi demos` name."""
    name, rest = (arguments[0], arguments[1:]) if arguments else ("--help", [])
    if name in ("-h", "--help"):
        print(HELP)
        return
    if name not in COMMANDS:
        raise UserError(f"psiphi demos was given {name!r}; expected {', '.join(COMMANDS)}, see psiphi demos --help.")
    kind, command = COMMANDS[name]
    command(parsed(kind, rest, f"psiphi demos {name}"))


# --- Words and tables ----------------------------------------------------------------------------------------------------


def _console() -> Any:
    from rich.console import Console

    return Console(highlight=False, markup=False)


def _say(notes: tuple[str, ...]) -> None:
    for note in notes:
        print(printable.sentence(note), file=sys.stderr)


def _counted(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _tables(file: str, found: dict[str, Any]) -> list[Any]:
    from rich.table import Table
    from rich.text import Text

    length = found["length"]
    whole = Table("", "", title=Text(printable.terminal(file)), title_justify="left", show_header=False)
    rows = {
        "agents": f"{found['agents']:,}",
        "episodes": f"{found['episodes']:,} ({found['terminated']:,} terminated, {found['truncated']:,} truncated)",
        "steps": f"{found['steps']:,}",
        "steps per episode": f"{length['min']} to {length['max']}, median {length['median']:g}",
        "observations": f"{found['obs_dtype']}{found['obs_shape']}, {found['distinct_observations']:,} different ones",
        "actions": str(found["num_actions"]),
        "copied episodes": f"{found['copied_episodes']:,}",
        **({"groups": f"{found['groups']:,}, never split"} if found["groups"] else {}),
    }
    for name, value in rows.items():
        whole.add_row(name, value)
    tables = [whole, _agents(found), _actions(found)]
    if found["action_names"] is not None:
        count = np.sum([row["actions"] for row in found["by_agent"]], axis=0)
        tables.append(_named_actions(found["action_names"], count, None))
    return [*tables, *([_columns(found)] if found["columns"] else [])]


def _agents(found: dict[str, Any]) -> Any:
    rows = [
        [
            repr(row["agent"]),
            f"{row['episodes']:,}",
            f"{row['steps']:,}",
            f"{row['length']['median']:g}",
            f"{row['terminated']:,}",
            f"{row['distinct_observations']:,}",
            f"{100 * row['shared_with_others']:.0f}%",
        ]
        for row in _largest(found)
    ]
    table = _table("By agent", ["agent", "episodes", "steps", "length", "ended", "distinct", "shared"], rows)
    more = len(found["by_agent"]) - SHOWN
    table.caption = "length: median; ended: terminated episodes; distinct: observations; shared: of its steps, where others have been too"
    table.caption = f"and {more:,} agents with fewer steps, which --json lists\n{table.caption}" if more > 0 else table.caption
    return table


def _largest(found: dict[str, Any]) -> list[dict[str, Any]]:
    """All agents, or those with most steps."""
    every = found["by_agent"]
    return every if len(every) <= SHOWN else sorted(every, key=lambda row: -row["steps"])[:SHOWN]


def _actions(found: dict[str, Any]) -> Any:
    most = 16
    headings = ["agent", *map(str, range(min(found["num_actions"], most))), *(["..."] if found["num_actions"] > most else [])]
    rows = []
    for row in _largest(found):
        shares = [f"{100 * n / max(row['steps'], 1):.0f}%" for n in row["actions"]]
        rows.append([repr(row["agent"]), *shares[:most], *([""] if len(shares) > most else [])])
    table = _table("Actions", headings, rows)
    more = len(found["by_agent"]) - SHOWN
    table.caption = f"and {more:,} agents with fewer steps" if more > 0 else None
    return table


def _named_actions(names: Sequence[str], count: np.ndarray, cut: Discretiser | None) -> Any:
    """The actions by name: how often each is taken and, where it is known, what it stands for."""
    most = 64
    shares = count / max(int(count.sum()), 1)
    values = np.zeros((len(names), 0)) if cut is None else cut.centroids
    rows = []
    for a in range(min(len(names), most)):
        rows.append([f"{a}", printable.terminal(names[a]), f"{shares[a]:.1%}", *(f"{value:.4g}" for value in values[a])])
    table = _table("What the actions are", ["action", "name", "taken", *(() if cut is None else cut.columns)], rows)
    table.caption = f"and {len(names) - most:,} more actions" if len(names) > most else None
    return table


def _columns(found: dict[str, Any]) -> Any:
    rows = [[row["name"], *(f"{row[name]:.4g}" for name in ("min", "mean", "max"))] for row in found["columns"]]
    return _table("Observation", ["entry", "min", "mean", "max"], rows)


def _table(title: str, headings: list[str], rows: list[list[str]]) -> Any:
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title, title_justify="left", caption_justify="left")
    for i, heading in enumerate(headings):
        table.add_column(heading, justify="left" if i == 0 or heading == "name" else "right", overflow="fold")
    for first, *rest in rows:
        table.add_row(Text(printable.terminal(first)), *map(Text, rest))  # a name is never read as markup
    return table
