"""A world and an algorithm are one object each: made here and put into the tables, they work with all that psiphi does."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array
from PIL import Image

import psiphi
from psiphi import cli
from psiphi.agents import ALGORITHMS, Algorithm
from psiphi.configs import Count, Share
from psiphi.errors import UserError
from psiphi.experiments import cells
from psiphi.types import Agent, Demonstration, Demos, Env, EnvSpec, Pace, TimeStep, Transition
from psiphi.worlds import WORLDS, Recorded, World

# --- A world -------------------------------------------------------------------------------------------------------------

SIDES = ("left", "right")


@dataclass(frozen=True)
class CorridorConfig:
    """A corridor with a door on either side of every place."""

    length: Count = 4
    """Places, and steps of an episode."""


def corridor(config: CorridorConfig, task: str) -> Env:
    """A step on: whoever takes the door of the task is paid 1. Somebody walks ahead, who takes the left door and the right one in turn."""
    spec = EnvSpec((config.length,), jnp.float32, 2)

    def see(place: Array) -> Array:
        return jax.nn.one_hot(place, config.length)

    def reset(key: Array) -> tuple[Array, Array]:
        del key
        return jnp.zeros((), jnp.int32), see(jnp.zeros((), jnp.int32))

    def step(place: Array, action: Array, key: Array) -> tuple[Array, TimeStep]:
        del key
        last = place + 1 >= config.length
        reward = (action == SIDES.index(task)).astype(jnp.float32)
        ahead = Demonstration(see(place)[None], (place % 2)[None], jnp.ones(1), see(place + 1)[None], ((place + 1) % 2)[None])
        extras = {"demonstrator": (place % 2)[None], "demonstration": ahead}
        return place + 1, TimeStep(see(place + 1), reward, 1.0 - last.astype(jnp.float32), last, extras)

    return Env(spec, reset, step)


def record(config: CorridorConfig, demonstrators: tuple[str, ...], episodes: int, seed: int, split: str) -> Recorded:
    """Each takes the door of its name, everywhere."""
    del seed, split
    places = jnp.tile(jnp.arange(config.length), episodes)
    obs, after = jax.nn.one_hot(places, config.length), jax.nn.one_hot(places + 1, config.length)
    shown = []
    for name in demonstrators:
        door = jnp.full(places.shape, SIDES.index(name), jnp.int32)
        shown.append(Demonstration(obs, door, (places + 1 < config.length).astype(jnp.float32), after, door))
    steps = jax.tree.map(lambda *x: jnp.stack(x), *shown)
    count = jnp.full(len(demonstrators), len(places), jnp.int32)
    return Recorded(Demos(steps, count), jnp.tile(jnp.repeat(jnp.arange(episodes), config.length), (len(demonstrators), 1)))


def task(config: CorridorConfig, name: str) -> str:
    del config
    if name not in SIDES:
        raise UserError(f"{name!r} is not a task of the corridor; expected left or right.")
    return name


class Drawn(gymnasium.Env[np.ndarray, Any]):
    """The same for pictures."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 4}

    def __init__(self, config: CorridorConfig, task: str):
        self.config, self.task, self.render_mode, self.place = config, task, "rgb_array", 0
        self.observation_space = gymnasium.spaces.Box(0, 1, (config.length,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(2)

    def see(self) -> np.ndarray:
        return np.eye(self.config.length + 1, self.config.length, dtype=np.float32)[self.place]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.place = 0
        return self.see(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.place += 1
        return self.see(), float(action == SIDES.index(self.task)), self.place == self.config.length, False, {}

    def render(self) -> np.ndarray:  # pyright: ignore[reportIncompatibleMethodOverride]
        return np.full((20, 20, 3), 40 * self.place, np.uint8)


CORRIDOR = World(
    name="corridor",
    words="a corridor with doors on both sides",
    env=corridor,
    config=CorridorConfig(),
    tasks=lambda config: ("right", "left"),
    task=task,
    demonstrators=lambda config: SIDES,
    wants=task,
    record=record,
    watched=lambda config: SIDES,
    figures=lambda config, task, got: {"normalised_return": jnp.mean(got["returns"]) / config.length},
    longest=lambda config: config.length,
    drawn=Drawn,
)


# --- An algorithm --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class HabitConfig:
    """Do what has paid most so far, wherever that was."""

    epsilon: Share = 0.5
    """How often something is tried."""


class Habit(eqx.Module):
    """How much each action has paid in the mean."""

    worth: Array

    def __call__(self, obs: Array) -> Array:
        return jnp.broadcast_to(self.worth, (obs.shape[0], *self.worth.shape))


class HabitState(NamedTuple):
    paid: Array
    count: Array


def habit(config: HabitConfig, state: HabitState) -> Habit:
    del config
    return Habit(state.paid / jnp.maximum(state.count, 1))


def make(config: HabitConfig, spec: EnvSpec, num_demonstrators: int, pace: Pace) -> Agent:
    del num_demonstrators, pace

    def init(key: Array, demos: Demos | None) -> HabitState:
        del key, demos
        return HabitState(jnp.zeros(spec.num_actions), jnp.zeros(spec.num_actions))

    def policy(state: HabitState, obs: Array, key: Array) -> Array:
        del key
        return jnp.argmax(habit(config, state)(obs), axis=-1)

    def act(state: HabitState, obs: Array, key: Array) -> Array:
        try_key, what_key = jax.random.split(key)
        tried = jax.random.randint(what_key, (obs.shape[0],), 0, spec.num_actions)
        return jnp.where(jax.random.bernoulli(try_key, config.epsilon, (obs.shape[0],)), tried, policy(state, obs, key))

    def observe(state: HabitState, rollout: Transition) -> HabitState:
        done = jax.nn.one_hot(rollout.action.reshape(-1), spec.num_actions)
        return HabitState(state.paid + rollout.reward.reshape(-1) @ done, state.count + done.sum(axis=0))

    def update(state: HabitState, key: Array) -> tuple[HabitState, dict[str, Array]]:
        del key
        return state, {"steps": state.count.sum()}

    return Agent(init, act, observe, update, policy)


HABIT = Algorithm(
    "habit",
    "Do what has paid most.",
    HabitConfig,
    make,
    net=lambda config, spec, agents, key: Habit(jnp.zeros(spec.num_actions)),
    deployed=habit,
    watches=lambda config: False,
    paid=lambda config: True,
    replays=False,
)


# --- Everything with both ------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _known(monkeypatch):
    monkeypatch.setitem(WORLDS, "corridor", CORRIDOR)
    monkeypatch.setitem(ALGORITHMS, "habit", HABIT)


def run(capsys, *arguments: str) -> str:
    with pytest.raises(SystemExit) as left:
        cli.main([part for argument in arguments for part in argument.split()])
    said = capsys.readouterr()
    assert not left.value.code, said.err
    return said.out


SHORT = "--steps 64 --prefill-steps 0 --num-envs 2 --evaluate-every 32 --evaluate-episodes 4 --quiet"


def test_they_are_listed(capsys):
    assert "corridor" in run(capsys, "worlds") and "habit" in run(capsys, "algorithms")
    assert "--world.length" in run(capsys, "train habit --env corridor --help")


@pytest.mark.parametrize("task", ["right", "left"])
def test_both_together_train_are_judged_and_filmed(capsys, tmp_path, task):
    out = tmp_path / "run"
    run(capsys, f"train habit --env corridor --task {task} --world.length 5 --out {out} {SHORT}")
    found = json.loads(run(capsys, f"evaluate {out} --episodes 4 --json"))
    assert found["policies"] == {"ego": {"task": task, "normalised_return": 1.0}}, "five doors of five"
    other = {"right": "left", "left": "right"}[task]
    assert json.loads(run(capsys, f"evaluate {out} --episodes 4 --json --task {other}"))["policies"]["ego"]["normalised_return"] == 0.0
    assert "5 steps, return +5.00; the episode ended" in run(capsys, f"watch {out}")
    with Image.open(out / "watch.gif") as gif:
        assert gif.n_frames == 6  # pyright: ignore[reportAttributeAccessIssue]
    loaded = psiphi.load(out)
    assert loaded.predict(np.zeros(5, np.float32)) == SIDES.index(task) and loaded.algorithm == "habit"


def test_the_algorithm_works_in_another_world(capsys, tmp_path):
    world = "--world.size 5 --world.coins 1 1 0 --world.max-steps 8"
    run(capsys, f"train habit --env coingrid {world} --out {tmp_path / 'run'} {SHORT}")
    found = json.loads(run(capsys, f"evaluate {tmp_path / 'run'} --episodes 4 --json"))
    assert list(found["policies"]) == ["ego"] and found["env"] == "coingrid"


@pytest.mark.parametrize("demos", ["recorded", "online"])
def test_other_algorithms_work_in_the_world(capsys, tmp_path, demos):
    """Who is shown what each demonstrator does learns it, whether that was recorded or is seen on the way."""
    out = tmp_path / "run"
    how = "--updates 200" if demos == "recorded" else f"--steps 400 {SHORT.removeprefix('--steps 64')}"
    run(capsys, f"train bc --env corridor --demos {demos} --agent.torso-hidden 8 --agent.learning-rate 0.03 --out {out} --quiet {how}")
    bc = psiphi.load(out)
    assert bc.agents == SIDES
    obs = np.eye(4, dtype=np.float32)
    if demos == "recorded":
        assert [bc.predict(obs, agent=name).tolist() for name in SIDES] == [[0] * 4, [1] * 4]
        found = json.loads(run(capsys, f"evaluate {out} --episodes 4 --json"))["policies"]
        assert found == {name: {"task": name, "normalised_return": 1.0} for name in SIDES}
    else:  # one walks ahead and is "left" where it takes that door
        assert bc.predict(obs[[0, 2]], agent="left").tolist() == [0, 0] and bc.predict(obs[[1, 3]], agent="right").tolist() == [1, 1]


EXPERIMENT = """
from psiphi.experiments.paper import EGO, Experiment, Figure, Method, Table, Variant

PACE = {"steps": 64, "prefill_steps": 0, "num_envs": 2, "evaluate_every": 16, "evaluate_episodes": 4}
EXPERIMENT = Experiment(
    name="corridors",
    title="Who learns the doors fastest?",
    story="Two learners in a corridor.",
    variants=(
        Variant("right", "the right door pays", "corridor", task="right", ego="right"),
        Variant("long", "a long corridor", "corridor", {"world.length": 6}, task="left", ego="left"),
    ),
    methods=(
        Method("habit", "Habit", PACE, how="curve", algorithm="habit"),
        Method("random", "Habit, always trying", {**PACE, "agent.epsilon": 1.0}, how="curve", algorithm="habit"),
    ),
    measures=(),
    tables=(Table("While it learns", (("auc", Figure("auc", EGO)), ("final return", Figure("final_return", EGO)))),),
)
"""


def test_an_experiment_of_ones_own_is_reproduced_and_reported(capsys, tmp_path):
    file, out = tmp_path / "corridors.py", tmp_path / "results"
    file.write_text(EXPERIMENT)
    forecast = json.loads(run(capsys, f"reproduce {file} --out {out} --seeds 2 --dry-run --json"))
    assert [(row["env"], row["method"], row["missing"]) for row in forecast] == [
        (env, method, 2) for env in ("right", "long") for method in ("habit", "random")
    ]
    assert not out.exists()
    run(capsys, f"reproduce {file} --out {out} --seeds 2")
    there = cells.read(out / "corridors")
    assert {(cell["env"], cell["method"], cell["seed"]) for cell in there} == {
        (env, method, seed) for env in ("right", "long") for method in ("habit", "random") for seed in (0, 1)
    }
    assert all(cell["value"] == 1.0 for cell in there if cell["metric"] == "final_return"), "one action is all there is to learn"
    assert {cell["config"]["world"]["length"] for cell in there if cell["env"] == "long"} == {6}
    before = (out / "corridors" / "cells.jsonl").read_bytes()
    run(capsys, f"reproduce {file} --out {out} --seeds 2")
    assert (out / "corridors" / "cells.jsonl").read_bytes() == before, "there was nothing left to do"
    page = (out / "corridors" / "README.md").read_text()
    assert "Who learns the doors fastest?" in page and "| Habit |" in page and "| Habit, always trying |" in page
    (out / "corridors" / "README.md").unlink()
    run(capsys, f"report {out / 'corridors'} --experiment {file}")
    assert (out / "corridors" / "README.md").read_text() == page


def test_who_watches_in_it_says_so(capsys, tmp_path):
    """Recorded where nothing else is said, as nobody tuned anything here; online where that is."""
    methods = {"bc": {"evaluate_every": 16}, "on": {"demos": "online"}}
    watching = "".join(f'Method("{name}", "BC", {changes}, how="curve", algorithm="bc"),' for name, changes in methods.items())
    file = tmp_path / "corridors.py"
    file.write_text(EXPERIMENT.replace("    methods=(\n", f"    methods=(\n{watching}\n"))
    rows = json.loads(run(capsys, f"reproduce {file} --out {tmp_path} --env right --methods bc,on --dry-run --json"))
    assert [(row["config"]["demos"], row["config"]["saw"][0]) for row in rows] == [
        ("recorded", "100 episodes of each of 2"),
        ("online", "what others do, at every step"),
    ]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("x = 1", "defines no EXPERIMENT"),
        ("1 / 0", "cannot be run: ZeroDivisionError"),
        ("from psiphi.experiments.paper import EXPERIMENTS\nEXPERIMENT = EXPERIMENTS['table-1']", "which is one of psiphi's own"),
        (EXPERIMENT.replace('"corridor"', '"maze"'), "'maze' is not a world"),
        (EXPERIMENT.replace('algorithm="habit"', 'algorithm="instinct"'), "'instinct' is not an algorithm"),
    ],
)
def test_a_bad_experiment_is_one_sentence_and_nothing_is_written(capsys, tmp_path, text, sentence):
    file = tmp_path / "mine.py"
    file.write_text(text)
    for more in (["--dry-run"], []):
        with pytest.raises(SystemExit) as left:
            cli.main(["reproduce", str(file), "--out", str(tmp_path / "out"), *more])
        err = capsys.readouterr().err
        assert left.value.code == 2 and err.count("\n") == 1 and sentence in err, err
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and path != file and "__pycache__" not in str(path)]


def test_a_file_that_is_not_there(capsys):
    with pytest.raises(SystemExit):
        cli.main(["reproduce", "nowhere.py"])
    assert "nowhere.py does not exist, expected a Python file that defines EXPERIMENT" in capsys.readouterr().err
    assert not Path("results/nowhere").exists()
