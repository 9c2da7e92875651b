"""`psiphi evaluate`, `adapt`, `watch`, `worlds`, `algorithms`: what can be asked of a trained thing, and what there is."""

import json
import webbrowser
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from psiphi import printable
from psiphi.configs import Count, Seed
from psiphi.demos.columns import Columns
from psiphi.demos.commands import Mapped
from psiphi.errors import UserError


def console() -> Any:
    from rich.console import Console

    return Console(highlight=False)


# --- Evaluate ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Evaluate:
    """Judge a trained model or policy: what it earns in its world, what it inferred beside the truth, or how well it predicts logs."""

    model: tyro.conf.Positional[Path]
    """The directory of a model, or the run directory it is in."""
    env: str | None = None
    """Another world than the one it was trained in."""
    task: str | None = None
    """Another task than the one it was trained on."""
    demos: Path | None = None
    """Demonstrations to compare it with instead: likelihood, accuracy and calibration for each agent."""
    seed: Seed | None = None
    """Draws episodes and held-out demonstrations; the seed of the training if not given."""
    episodes: Count = 500
    """Episodes played by each policy; held-out demonstrated episodes of each demonstrator."""
    json: bool = False
    """Print one JSON object instead of tables."""
    columns: Mapped = field(default_factory=Columns)


def evaluate(config: Evaluate) -> None:
    from psiphi import playing
    from psiphi.demos import Demonstrations

    found = playing.read(config.model)
    if config.demos is not None:
        got: dict[str, Any] = {
            "algorithm": found.algorithm,
            "demos": str(config.demos),
            "agents": playing.compared(found, Demonstrations.read(config.demos, config.columns)),
        }
        _print(got, config.json, lambda: [_compared_table(got)])
        return
    place = playing.where(found, config.env, config.task)
    got = playing.judged(found, place, found.seed if config.seed is None else config.seed, config.episodes)
    _print(got, config.json, lambda: [_policies_table(got), *_truth_tables(got.get("truth"))])


def _print(found: dict[str, Any], as_json: bool, tables: Any) -> None:
    if as_json:
        print(json.dumps(found))
        return
    for table in tables():
        console().print(table)


def _table(title: str, headings: list[str], rows: list[list[str]], caption: str = "") -> Any:
    from rich.table import Table

    table = Table(title=title, title_justify="left", caption=caption or None, caption_justify="left")
    for i, heading in enumerate(headings):
        table.add_column(printable.rich(heading), justify="right" if i else "left")
    for row in rows:
        table.add_row(*map(printable.rich, row))
    return table


def _compared_table(found: dict[str, Any]) -> Any:
    names = {
        "steps": "steps",
        "accuracy": "accuracy",
        "commonest": "its commonest action",
        "nll": "nats per step",
        "calibration": "calibration error",
    }
    agents = found["agents"]
    there = [name for name in names if any(name in row for row in agents.values())]
    rows = [[agent, *(f"{row[name]:,}" if name == "steps" else f"{row[name]:.3f}" for name in there)] for agent, row in agents.items()]
    return _table(f"{found['algorithm']} beside {found['demos']}", ["agent", *(names[name] for name in there)], rows)


def _policies_table(found: dict[str, Any]) -> Any:
    rows = found["policies"]
    figures = list(dict.fromkeys(name for row in rows.values() for name in row if name != "task"))
    cells = [
        [name, row["task"] or "its own", *(f"{row[figure]:+.2f}" if figure in row else "" for figure in figures)]
        for name, row in rows.items()
    ]
    title = f"{found['algorithm']} in {found['env']}, mean of {found['episodes']} episodes"
    return _table(title, ["policy", "judged on", *(figure.replace("_", " ") for figure in figures)], cells)


def _truth_tables(truth: dict[str, Any] | None) -> list[Any]:
    if truth is None:
        return []
    names = truth["demonstrators"]
    columns = {
        "r2": "r² of its reward on φ",
        "reward_correlation": "correlation of φ·w with it",
        "planner_return": "planner's return on φ·w",
    }
    there = {name: heading for name, heading in columns.items() if name in truth}
    rows = [[f"{k + 1} (wants {name})", *(f"{truth[column][k]:.2f}" for column in there)] for k, name in enumerate(names)]
    caption = (
        f"held-out accuracy {truth['accuracy']:.3f}, at most {truth['ceiling_accuracy']:.3f} is possible" if "accuracy" in truth else ""
    )
    tables = [_table("What was inferred", ["demonstrator", *there.values()], rows, caption)]
    heads = [*names, *["ego"] * (len(truth["preferences"]) - len(names))]
    width = range(len(truth["preferences"][0]))
    numbers = [[head, *(f"{value:+.2f}" for value in row)] for head, row in zip(heads, truth["preferences"], strict=True)]
    return [*tables, _table("Preferences w", ["head", *(f"φ{i + 1}" for i in width)], numbers)]


# --- Adapt ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Adapt:
    """Re-target a trained model to a new task: infer its preferences from rewards, without training."""

    model: tyro.conf.Positional[Path]
    """A model directory, or the run directory it is in."""
    task: str | None = None
    """The new task by name, in the model's world (psiphi worlds lists some): R-G or 1,-1,0 on CoinGrid, speed=26,lane=1 on Highway."""
    transitions: Annotated[Path | None, tyro.conf.arg(name="from")] = None
    """Rewarded steps of your own instead: .npz, .csv or .parquet with observations, action, reward and, where cumulants are of whole
    steps, next observations (next_obs) and terminated."""
    env: str | None = None
    """Another world than the one it was trained in."""
    shots: Count = 1
    """Episodes of adaptation, k."""
    repetitions: Count = 256
    """How often to start over, to average."""
    inference: Literal["bayes", "least-squares"] = "bayes"
    """Bayesian regression among what the demonstrators want and what the model was itself paid for, or the paper's least squares, which
    assumes nothing."""
    seed: Seed = 0
    """Draws the worlds."""
    gif: Path | None = None
    """Where to put a moving picture of the agent after adapting."""
    out: Path | None = None
    """Where to put the re-targeted model."""
    json: bool = False
    """Print one JSON object instead of a table."""


def adapt(config: Adapt) -> None:
    from psiphi import disk, playing

    if (config.task is None) == (config.transitions is None):
        raise UserError("psiphi adapt needs either --task or --from; see psiphi adapt --help.")
    for path in (config.gif,):
        if path is not None:
            disk.check_file(path)
    if config.out is not None:
        disk.check_directory(config.out)
    found = playing.read(config.model)
    if found.known is None:
        raise UserError(f"{config.model} is a policy of {found.algorithm}, which has no preferences; adapt needs a model of itd or psiphi.")
    got, w = _met(config, found) if config.task is not None else _told(config, found)
    if config.out is not None:
        from psiphi.api import files

        files.save(config.out, found.algorithm, found.known, found.config, found.seed, w, run=found.run)
    if config.gif is not None:
        _film(found, playing.where(found, config.env, config.task), config.gif, config.seed, w=w)
    _print(got, config.json, lambda: [_adaptation_table(got, config)])
    for path, words in ((config.gif, "shows it at work"), (config.out, "is the re-targeted model")):
        if path is not None and not config.json:
            print(printable.sentence(f"{path} {words}."))


def _met(config: Adapt, found: Any) -> tuple[dict[str, Any], Any]:
    """The task is met in the world, k episodes long."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    from psiphi import playing

    place = playing.where(found, config.env, config.task)
    settings = playing.few_shot_of(found, config.inference)
    got = playing.adapted(found, place, settings, config.seed, shots=config.shots, repetitions=config.repetitions)
    episodes = {"lengths": jnp.full(len(got.first), place.world.longest(place.config)), "finished": jnp.ones(len(got.first), bool)}
    counted = ({}, {}) if got.features is None else tuple({"features": x} for x in got.features)

    def figures(some: dict[str, Any]) -> dict[str, float]:
        found = place.world.figures(place.config, place.task, jax.tree.map(jnp.asarray, episodes | some))
        return {name: float(x) for name, x in found.items()}

    plain = figures({"returns": got.first})  # of these only the returns are known
    by_shots = {"0": figures({"returns": got.first, **counted[0]}), str(config.shots): figures({"returns": got.after, **counted[1]})}
    names = [name for name in by_shots["0"] if name in ("return", "normalised_return") or name not in plain]
    result: dict[str, Any] = {"task": place.task, "w": np.mean(got.w, axis=0).tolist()}
    result |= {name: {shots: row[name] for shots, row in by_shots.items()} for name in names}
    return result, got.w[0]


def _told(config: Adapt, found: Any) -> tuple[dict[str, Any], Any]:
    """The task is told by rewarded steps of the user's."""
    from psiphi.api.psiphi import load
    from psiphi.demos.transitions import read

    agent = load(config.model)
    known = found.known
    steps = read(config.transitions, known.spec.obs_shape, known.columns, known.actions)  # pyright: ignore[reportArgumentType]
    agent.adapt(tuple(steps), inference=config.inference)
    return {"steps": len(steps[1]), "w": agent.w.tolist(), "explained": agent.explained}, agent.w


def _adaptation_table(found: dict[str, Any], config: Adapt) -> Any:
    w = f"inferred w: {', '.join(f'{value:+.2f}' for value in found['w'])}"
    if "explained" in found:
        rows = [[f"{found['steps']:,}", f"{found['explained']:.2f}"]]
        return _table(f"The task of {config.transitions}", ["rewarded steps", "share of the rewards' variance explained"], rows, w)
    rows, there = [], [name for name, value in found.items() if isinstance(value, dict)]
    for shots in found[there[0]] if there else ():
        name = "first episode (0-shot)" if shots == "0" else f"after {shots} episode{'s' if shots != '1' else ''} ({shots}-shot)"
        rows.append([name, *(f"{found[figure][shots]:+.2f}" for figure in there)])
    headings = ["", *(name.replace("normalised_return", "normalised").replace("_", " ") for name in there)]
    return _table(f"Task {found['task'] or 'own'}, mean of {config.repetitions} repetitions", headings, rows, w)


# --- Watch ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Watch:
    """A moving picture of a trained policy, of a demonstrator's imitation, or of any preferences, in the model's world."""

    model: tyro.conf.Positional[Path]
    """A model directory, or the run directory it is in."""
    out: Annotated[Path | None, tyro.conf.arg(aliases=("-o",))] = None
    """The GIF; without it, watch.gif beside the model."""
    agent: str | None = None
    """Whom to watch: a demonstrator by name, or ego; the ego if there is one."""
    w: tuple[float, ...] | None = None
    """Preferences to act on instead, a weight per cumulant."""
    env: str | None = None
    """Another world than the one it was trained in."""
    task: str | None = None
    """Another task than the one it was trained on."""
    seed: Seed = 0
    """Draws the episode."""
    steps: Count = 1_000
    """At most so many steps are shown."""
    window: bool = False
    """Also open it, in whatever program shows GIFs on this machine."""


def watch(config: Watch) -> None:
    import numpy as np

    from psiphi import disk, playing

    found = playing.read(config.model)
    place = playing.where(found, config.env, config.task)
    path = config.out or config.model / "watch.gif"
    disk.check_file(path)
    w = None if config.w is None else np.asarray(config.w, np.float32)
    name, film = _film(found, place, path, config.seed, agent=config.agent, w=w, longest=config.steps)
    how = "ended" if film.terminated else "was cut"
    print(printable.sentence(f"{path} shows {name}: {film.steps} steps, return {film.earned:+.2f}; the episode {how}."))
    if config.window and not webbrowser.open(path.absolute().as_uri()):
        raise UserError(f"There is no program here that shows {path}, expected a desktop with a browser or a viewer.")


def _film(
    found: Any, place: Any, path: Path, seed: int, *, agent: str | None = None, w: Any = None, longest: int = 1_000
) -> tuple[str, Any]:
    import jax

    from psiphi import films, playing

    if place.world.drawn is None:
        raise UserError(f"{place.world.name} cannot be drawn.")
    name, act = playing.player(found, agent, w)
    env = place.world.drawn(place.config, place.task)
    try:
        first = getattr(env.action_space, "start", 0)
        film = films.film(env, lambda obs, key: act(obs, key) + int(first), jax.random.key(seed), path, longest=longest)
    finally:
        env.close()
    return name, film


# --- What a reproduction would do ----------------------------------------------------------------------------------------


def print_forecast(found: Any, as_json: bool) -> None:
    if as_json:
        print(json.dumps(found.rows))
        return
    rows = [
        [
            f"{row['experiment']} / {row['env']} / {row['method']}",
            str(row["trainings"]),
            str(row["missing"]),
            _seconds(row["wall_s"]),
            " | ".join(row["config"]["saw"]),
        ]
        for row in found.rows
    ]
    headings = ["experiment / world / method", "trainings", "missing", "seconds each", "demonstrations | steps | rewards"]
    console().print(_table(f"{found.missing:,} trainings are missing; --json prints every setting", headings, rows))


def _seconds(value: float | None) -> str:
    return "?" if value is None else f"{value:,.0f}"


# --- A page --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Explore:
    """A page to see what the agents want: one HTML file that works from a disk, with sliders that re-target the agent live."""

    model: tyro.conf.Positional[Path]
    """A model directory, or the run directory it is in."""
    file: tyro.conf.Positional[Path | None] = None
    """Demonstrations of the agents that the model knows; a model trained on CoinGrid can do without."""
    out: Annotated[Path, tyro.conf.arg(aliases=("-o",))] = Path("explore.html")
    """The page; what is there is replaced."""
    columns: Mapped = field(default_factory=Columns)


def explore(config: Explore) -> None:
    from psiphi import disk, playing
    from psiphi.api.baselines import remembered_world
    from psiphi.api.shown import write
    from psiphi.demos import files

    found = playing.read(config.model)
    if found.known is None:
        raise UserError(
            f"{config.model} is a policy of {found.algorithm}, which has no preferences; explore needs a model of itd or psiphi."
        )
    disk.check_file(config.out)
    demos = None if config.file is None else files.read(config.file, config.columns, progress=True)
    name = config.model.name if config.file is None else config.file.name
    print(printable.sentence(write(config.out, found.known, demos, remembered_world(found), title=f"What the agents of {name} want")))


# --- What there is -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Worlds:
    """The worlds by name: who demonstrates in them, their tasks, and which algorithms have settings of their own there."""

    json: bool = False
    """Print one JSON object instead of a table."""


def list_worlds(config: Worlds) -> None:
    from psiphi.worlds import WORLDS

    found = {
        name: {
            "words": world.words,
            "tasks": list(world.tasks(world.config))[:6],
            "demonstrators": list(world.demonstrators(world.config)),
            "demonstrations": [n for n, there in (("recorded", world.record), ("online", world.watched(world.config))) if there]
            + ["FILE", "none"],
            "presets": list(world.presets),
        }
        for name, world in WORLDS.items()
    }
    lines = [
        f"{name}\n    {row['words']}\n    tasks: {', '.join(row['tasks'])}\n    demonstrators: {', '.join(row['demonstrators'])}\n"
        f"    --demos {', '.join(row['demonstrations'])}"
        for name, row in found.items()
    ]
    lines.append(
        "any Gymnasium id\n    such as CartPole-v1, or module:function of your own; actions must be Discrete\n    --demos FILE, none"
    )
    print(json.dumps(found) if config.json else "\n".join(lines))


@dataclass(frozen=True)
class Algorithms:
    """The algorithms by name, and what each needs."""

    json: bool = False
    """Print one JSON object instead of a table."""


def list_algorithms(config: Algorithms) -> None:
    from psiphi.agents import ALGORITHMS

    found = {
        name: {
            "words": a.words,
            "demonstrations": "always" if a.watches_always else "if asked for",
            "rewards": a.paid(a.config()),
            "steps": a.acts,
            "searched": {field: str(where) for field, where in a.space.items()},
        }
        for name, a in ALGORITHMS.items()
    }  # fmt: skip
    lines = [
        f"{name}\n    {row['words']}\n    demonstrations: {row['demonstrations']}; rewards: {'yes' if row['rewards'] else 'no'}; "
        f"steps of its own: {'yes' if row['steps'] else 'no'}\n"
        f"    psiphi tune looks at {', '.join(f'{field} {where}' for field, where in row['searched'].items())}"
        for name, row in found.items()
    ]
    print(json.dumps(found) if config.json else "\n".join(lines))
