import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

import tiny
from psiphi import DQN, load, training
from psiphi.agents import itd, psiphi
from psiphi.api import trained as answers
from psiphi.configs import from_json
from psiphi.errors import UserError
from psiphi.experiments import cells, highway, imitation, measures, paper, pictures, reproduce
from psiphi.experiments.paper import shared
from psiphi.experiments.reproduce import Effort, Unit
from psiphi.experiments.runs import few_shot_of, run_of
from psiphi.loops.few_shot import FewShotConfig
from psiphi.model import Model
from psiphi.training import Run
from psiphi.worlds import coingrid as world

NOBODY = Model(None, jnp.zeros((2, 4)), jnp.zeros(2))  # pyright: ignore[reportArgumentType] - a model that nobody looks into
ORIGIN = {"commit": None, "versions": {"threads": "2"}, "command": "psiphi reproduce"}
EVERY = [
    (e, variant, method)
    for e in paper.EXPERIMENTS.values()
    for variant in e.variants
    for method in e.methods
    if method.how == "model" and paper.has(variant, method)
]


def identify(value) -> str | None:
    return getattr(value, "name", None)


# --- Data ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", [*paper.EXPERIMENTS.values(), *paper.WITH_EXTRAS.values()], ids=identify)
def test_every_unit_can_say_what_it_saw(what):
    for variant in what.variants:
        for method in (method for method in what.methods if paper.has(variant, method)):
            assert len(reproduce.config_of(what, Unit(variant, method, 0), Effort())["saw"]) == 3, (variant.name, method.name)


@pytest.mark.parametrize(("what", "variant", "method"), EVERY, ids=identify)
def test_every_method_is_a_run_of_its_own(what, variant, method):
    run = training.completed(run_of(what, variant, method, Effort()))
    assert len(run.demonstrators) == len(what.demonstrators) and run.task == "R+G"
    said = reproduce.config_of(what, Unit(variant, method, 0), Effort())
    assert "seed" not in said and json.loads(json.dumps(said, allow_nan=False))["few_shot"]
    # Rebuilding it checks every value against its field's type.
    assert from_json(type(run.agent), said["agent"], "agent") == run.agent
    default = training.completed(run_of(what, variant, paper.Method("default", ""), Effort()))
    same = (run, few_shot_of(method)) == (default, FewShotConfig())
    assert same == (method.name in ("default", "psiphi", "itd", "exact", "coingrid-d4"))


def test_the_papers_rows_are_the_papers_losses():
    what = paper.EXPERIMENTS["table-2"]
    rows = [method for method in what.methods if method.name.startswith("paper")]
    with_ego, without = (training.completed(run_of(what, shared.UNLIMITED, method, Effort())) for method in rows)
    assert with_ego.agent == psiphi.paper() and with_ego.agent.itd == without.agent == itd.paper()
    assert with_ego.algorithm == "psiphi" and world.weights_of(with_ego.task) == (1.0, 1.0, 0.0)
    assert without.algorithm == "itd", "nobody is paid there"
    assert {few_shot_of(method) for method in rows} == {FewShotConfig(inference="least-squares", kappa=0.0, temperature=0.0)}


def test_the_papers_numbers_are_those_of_its_table():
    assert [number.value for number in paper.TABLE_2[0][paper.PSIPHI]] == [1.0, 0.2, 0.2, -0.4]
    assert all(number.value == 1.0 for shots in (1, 100) for number in paper.TABLE_2[shots][paper.PSIPHI])
    assert [number.value for number in paper.TABLE_2[1][shared.SQIL]] == [1.0, 0.0, 0.0, -1.0]


def test_effort_replaces_what_it_names():
    what = paper.EXPERIMENTS["ablation"]
    run = run_of(what, shared.AUTHORS, what.methods[1], Effort(updates=7, episodes=5))
    assert (run.updates, run.episodes, run.world.num_layouts, run.agent.cross_policy) == (7, 5, 25, 0.0)
    with pytest.raises(UserError, match="updates is 0"):
        Effort(updates=0)


# --- The file of cells ---------------------------------------------------------------------------------------------------


def cell(task: str = "R", seed: int = 0, **more) -> cells.Cell:
    blank = {**dict.fromkeys(cells.FIELDS), "experiment": "table-2", "env_steps": 0, "wall_s": 0.0, "versions": {}, "command": "psiphi"}
    return {
        **blank,
        "env": "coingrid",
        "method": "psiphi",
        "seed": seed,
        "metric": "r2",
        "task": task,
        "config": {"itd": {"beta": 1}},
        **more,
    }


def test_cells_are_added_once(tmp_path):
    assert cells.read(tmp_path) == []
    assert cells.append(tmp_path / "new", [cell("R"), cell("G")]) == 2
    assert cells.append(tmp_path / "new", [cell("R", value=9.0), cell("G", shots=1), cell("R", seed=1)]) == 2
    there = cells.read(tmp_path / "new")
    assert len(there) == 4 and there[0]["value"] is None


@pytest.mark.parametrize("torn", [b'{"experiment": "table-2", "en', b"{", b"\xce"])
def test_a_line_that_a_kill_left_unfinished_is_dropped_and_written_again(tmp_path, torn):
    cells.append(tmp_path / "unbroken", [cell("R")])
    cells.append(tmp_path / "unbroken", [cell("G")])
    cells.append(tmp_path, [cell("R")])
    whole = (tmp_path / cells.FILE).read_bytes()
    (tmp_path / cells.FILE).write_bytes(whole + torn)
    assert cells.read(tmp_path) == [cell("R")]
    cells.append(tmp_path, [cell("G")])
    assert cells.read(tmp_path) == [cell("R"), cell("G")]
    assert (tmp_path / cells.FILE).read_bytes() == (tmp_path / "unbroken" / cells.FILE).read_bytes()


def test_a_whole_last_line_without_its_end_is_kept(tmp_path):
    cells.append(tmp_path, [cell("R")])
    path = tmp_path / cells.FILE
    path.write_bytes(path.read_bytes().rstrip())
    cells.append(tmp_path, [cell("G")])
    assert cells.read(tmp_path) == [cell("R"), cell("G")]


@pytest.mark.parametrize(
    ("line", "complaint"), [("no json", "Line 1 .* is not JSON"), ('{"env": 1}', "Line 1 .* lacks experiment"), ("[]", "lacks")]
)
def test_a_damaged_file_is_named(tmp_path, line, complaint):
    (tmp_path / cells.FILE).write_text(line + "\n")
    with pytest.raises(UserError, match=complaint):
        cells.read(tmp_path)


def test_cells_of_other_settings_are_not_mixed(tmp_path):
    there = [cell("R")]
    cells.check_config(tmp_path, there, "coingrid", "psiphi", {"itd": {"beta": 1}})
    cells.check_config(tmp_path, there, "coingrid", "other", {"itd": {"beta": 2}})
    with pytest.raises(UserError, match=r"made with itd.beta = 1, but 2 is asked for"):
        cells.check_config(tmp_path, there, "coingrid", "psiphi", {"itd": {"beta": 2}})
    with pytest.raises(UserError, match=r'made with itd.new = "nothing", but 2 is asked for'):
        cells.check_config(tmp_path, there, "coingrid", "psiphi", {"itd": {"beta": 1, "new": 2}})
    cells.check_config(tmp_path, there, "coingrid", "psiphi", {"itd": {"beta": 1, "new": 0.0}})  # what was not there yet, and is off
    with pytest.raises(UserError, match=r'made with itd.beta = 1, but "nothing" is asked for'):
        cells.check_config(tmp_path, there, "coingrid", "psiphi", {"itd": {"new": 0.0}})


def test_where_numbers_come_from_is_known():
    commit = cells.commit()
    assert commit is None or re.fullmatch("[0-9a-f]{40}(-dirty)?", commit)
    assert {"psiphi", "jax", "python", "numpy", "platform"} <= set(cells.versions())
    assert str(Path.home()) not in cells.command().split(" ")[0]


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="no process can be held to some cores here")
def test_a_process_that_is_held_to_one_core_says_so(monkeypatch):
    for name in ("NPROC", "XLA_FLAGS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {1})
    assert cells.versions()["threads"] == "1"


# --- Units ---------------------------------------------------------------------------------------------------------------


@pytest.fixture
def instant(monkeypatch):
    """Training and measuring in no time; gives the list of the runs that were trained."""
    trained = []
    rows = [{"env_steps": n, "eval/normalised_return": 0.5, "train/signal": 1.0, "train/rank": 2.0} for n in (0, 8)]

    def train(run: Run, **_):
        trained.append(run)
        return tiny.as_trained(run, rows, 100)

    tasks = dict.fromkeys(paper.TASKS, 0.5)
    board = {"board": np.zeros((7, 7, 5)).tolist(), "phi": np.eye(4)[:, :, None].tolist(), "correlation": np.eye(4, 3).tolist()}
    board |= {"demonstrators": ["R", "G", "Y"], "preferences": np.eye(3, 4).tolist()}

    def explained(config, who, *_):
        return {"r2": [0.5] * len(who), "reward_correlation": [float("nan")] * len(who), "cumulants": np.eye(4, 3).tolist()}

    monkeypatch.setattr(measures, "train", train)
    monkeypatch.setattr(answers, "model_of", lambda _: NOBODY)
    monkeypatch.setattr(measures, "transfer", lambda *_, **__: {"first": tasks, "after": tasks})
    monkeypatch.setattr(world, "ceiling", lambda *_, **__: tasks)
    monkeypatch.setattr(world, "held_out_accuracy", lambda *_: {"accuracy": 0.9, "ceiling": 0.95})
    monkeypatch.setattr(world, "planned_on_inferred", lambda config, who, *_, **__: [1.0] * len(who))
    distances = lambda asked, *_: [(paper.Figure("starc", who), 0.5, None) for who in asked.demonstrators]  # noqa: E731
    monkeypatch.setitem(measures.ASKED, "starc", distances)
    monkeypatch.setattr(world, "explained", explained)
    monkeypatch.setattr(pictures, "described", lambda *_: board)
    monkeypatch.setattr(measures, "imitation_of", lambda *_: lambda obs: np.zeros(len(obs)))
    adapted = [(paper.Figure("normalised_return", task, shots), 0.5, None) for task in paper.TASKS for shots in (0, 1, 100)]
    monkeypatch.setitem(measures.HOW, "adapt", lambda what, unit, *_: measures.Done({unit.method.name: adapted}, 7, 1.0))

    def imitated(what, unit, *_):
        ends = paper.ends_of(unit.variant)
        returns = {who + end: 1.0 for who in unit.variant.demonstrators or what.demonstrators for end in ends}
        inferred = [NOBODY] if unit.method.algorithm == "itd" and what.measures else []
        return [returns] * 2, 7, 1.0, 0.0, *inferred

    monkeypatch.setattr(measures, "_imitated", imitated)
    monkeypatch.setattr(measures, "_together", imitated)
    monkeypatch.setattr(imitation, "run", lambda *_, **__: imitation.Predicted([4, 8], [0.5, 0.9], [0.4, 0.8], 8))

    def met(*shots):
        return lambda _, goals, *__: highway.Met({n: [1.0] * len(goals) for n in shots}, 7, 1.0)

    for row, shots in (("on_each", (None,)), ("best_demonstrator", (None,)), ("moved", highway.SHOTS)):
        monkeypatch.setattr(highway, row, met(*shots))
    monkeypatch.setattr(highway, "adapted", lambda config, model, goals, *_: {n: [1.0] * len(goals) for n in highway.SHOTS})
    monkeypatch.setattr(highway, "trained_on", train)
    return trained


@pytest.mark.parametrize("name", paper.EXPERIMENTS)
def test_a_unit_yields_the_cells_that_the_data_promise(instant, name):
    what = paper.EXPERIMENTS[name]
    for unit in reproduce.units(what, [3], envs=[what.variants[0].name]):
        by = {who + end: 2.0 for who in (*what.demonstrators, *what.goals) for end in paper.ends_of(unit.variant)}
        got = reproduce.run_unit(what, unit, Effort(), ORIGIN, {f"{unit.variant.name} 3": by})
        figures = [(row["method"], paper.Figure(row["metric"], row["task"], row.get("shots"))) for row in got]
        promised = [(one.method.name, figure) for one in reproduce.judged(what, unit) for figure in what.figures(one.method, one.variant)]
        assert sorted(figures, key=str) == sorted(promised, key=str)
        assert all(set(cells.FIELDS) <= set(row) and row["seed"] == 3 for row in got)
        json.dumps(got, allow_nan=False)


def test_rows_that_differ_only_in_how_a_task_is_met_share_a_training():
    what = paper.EXPERIMENTS["ablation"]
    (unit,) = reproduce.units(what, [0], only=["greedy"])
    assert unit.method.name == "default"
    assert "greedy" in [one.method.name for one in reproduce.judged(what, unit)]
    assert len({run_of(what, one.variant, one.method, Effort()) for one in reproduce.judged(what, unit)}) == 1


def test_only_what_is_missing_is_run(instant, tmp_path, monkeypatch):
    monkeypatch.setattr(cells, "commit", lambda: "0" * 40)  # a checkout may become dirty while it is tested
    reproduce.reproduce("itd-coingrid", tmp_path, [0, 1], methods=["itd", "paper-itd"])
    assert [run.seed for run in instant] == [0, 0, 1, 1]
    path = tmp_path / "itd-coingrid" / cells.FILE
    whole = path.read_bytes()
    # A kill left the last unit's cells half written.
    path.write_bytes(whole[:-40])
    instant.clear()
    reproduce.reproduce("itd-coingrid", tmp_path, [0, 1], methods=["itd", "paper-itd"])
    assert [(run.agent == itd.paper(), run.seed) for run in instant] == [(True, 1)]
    volatile = re.compile(rb'"(train_s|wall_s|command)": [^,]*,?')
    assert volatile.sub(b"", path.read_bytes()) == volatile.sub(b"", whole)
    instant.clear()
    reproduce.reproduce("itd-coingrid", tmp_path, [0, 1, 2], methods=["itd"])
    assert [run.seed for run in instant] == [2]
    assert "| ITD (default) |" in (tmp_path / "itd-coingrid" / "README.md").read_text()


def test_another_effort_in_the_same_directory_is_refused_before_anything_is_run(instant, tmp_path):
    reproduce.reproduce("itd-coingrid", tmp_path, [0], methods=["itd"], effort=Effort(updates=5))
    instant.clear()
    with pytest.raises(UserError, match=r" updates = 5, but \d+ is asked for"):
        reproduce.reproduce("itd-coingrid", tmp_path, [1], methods=["itd"])
    assert not instant


def test_names_are_checked(tmp_path):
    with pytest.raises(UserError, match="'table-9' is not something to reproduce; expected one of table-1, table-2"):
        reproduce.reproduce("table-9", tmp_path, [0])
    with pytest.raises(UserError, match="table-2 has no method magic; expected some of psiphi"):
        reproduce.reproduce("table-2", tmp_path, [0], methods=["psiphi", "magic"])


# --- Workers -------------------------------------------------------------------------------------------------------------

FAKE = """
import json, os, sys
task = json.loads(sys.argv[1])
env, method, seed = task["unit"]
if seed == 1: sys.exit("this seed is cursed")
row = dict(env=env, method=method, seed=seed, metric="r2", task="R", wall_s=0, config={}, env_steps=0, experiment=task["experiment"])
json.dump([{**row, **task["origin"], "value": os.environ["XLA_FLAGS"].count("threads=1")}], sys.stdout)
"""


def test_workers_run_side_by_side_and_a_failure_is_told_but_stops_nobody(tmp_path, monkeypatch):
    monkeypatch.setattr(reproduce, "WORKER", FAKE)
    monkeypatch.setattr(reproduce.report, "render", lambda *_: None)
    monkeypatch.setenv("XLA_FLAGS", "")
    with pytest.raises(UserError, match=r"1 of 3 trainings failed; the first \(coingrid, itd, seed 1\) said: this seed is cursed"):
        reproduce.reproduce("itd-coingrid", tmp_path, [0, 1, 2], methods=["itd"], jobs=2)
    there = cells.read(tmp_path / "itd-coingrid")
    assert sorted(row["seed"] for row in there) == [0, 2]
    assert all(row["value"] == 1 and row["versions"]["threads"] == "1" for row in there)


def test_workers_keep_compiled_programs_in_the_users_cache_or_where_the_user_says(tmp_path, monkeypatch):
    monkeypatch.setattr(
        reproduce, "WORKER", "import json, os, sys; json.dump([dict(where=os.environ['JAX_COMPILATION_CACHE_DIR'])], sys.stdout)"
    )
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    what = paper.EXPERIMENTS["itd-coingrid"]
    unit = reproduce.units(what, [0])[0]

    def where() -> Path:
        work = reproduce.Work(what, tmp_path, Effort(), ORIGIN, {})
        ((_, found),) = reproduce.side_by_side(work, [unit], jobs=1)
        assert isinstance(found, list)
        return Path(found[0]["where"])

    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)
    assert where().is_relative_to(tmp_path / "psiphi")
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path / "elsewhere"))
    assert where() == tmp_path / "elsewhere"


def test_leaving_ends_the_workers(tmp_path, monkeypatch):
    monkeypatch.setattr(reproduce, "WORKER", "import time; time.sleep(100)")
    what = paper.EXPERIMENTS["itd-coingrid"]
    started = []
    start = reproduce._start
    monkeypatch.setattr(reproduce, "_start", lambda *args: started.append(start(*args)) or started[-1])
    monkeypatch.setattr(time, "sleep", lambda _: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        list(reproduce.side_by_side(reproduce.Work(what, tmp_path, Effort(), ORIGIN, {}), reproduce.units(what, [0, 1]), jobs=2))
    assert [worker.process.returncode for worker in started] == [-signal.SIGTERM] * 2


def test_a_worker_does_its_unit_and_prints_its_cells_and_nothing_else(instant, monkeypatch, capsys, tmp_path):
    what = paper.EXPERIMENTS["table-2"]
    (unit,) = reproduce.units(what, [4], ["exact"], ["coingrid-25"])
    task = reproduce.Work(what, tmp_path, Effort(repetitions=8), ORIGIN, {}).task(unit)
    monkeypatch.setattr(sys, "argv", ["-c", json.dumps(task)])
    monkeypatch.setattr(world, "ceiling", lambda *_, **__: print("chatter") or dict.fromkeys(paper.TASKS, 1.0))
    reproduce.worker()
    got = json.loads(capsys.readouterr().out)
    assert [(row["env"], row["task"], row["seed"]) for row in got] == [("coingrid-25", task, 4) for task in paper.TASKS]


# --- Killed --------------------------------------------------------------------------------------------------------------


def test_what_is_unfinished_is_of_these_settings_and_this_program_and_goes_with_its_cells(instant, tmp_path, monkeypatch):
    what = paper.EXPERIMENTS["itd-coingrid"]
    unit = reproduce.units(what, [0], only=["itd"])[0]
    places = {
        reproduce.place_of(tmp_path, what, one, effort, origin)
        for one in (unit, unit._replace(seed=1))
        for effort in (Effort(), Effort(updates=3))
        for origin in (ORIGIN, {**ORIGIN, "commit": "1" * 40}, {**ORIGIN, "command": "typed otherwise"})
    }
    assert len(places) == 2 * 2 * 2, "the command alone makes no difference"
    seen = []
    train = measures.train
    monkeypatch.setattr(measures, "train", lambda run, out, **_: (seen.append(out), out.mkdir(parents=True), train(run))[-1])
    directory = reproduce.reproduce("itd-coingrid", tmp_path, [0], methods=["itd"])
    assert seen[0].is_relative_to(reproduce.unfinished(directory, unit)) and not (directory / reproduce.UNFINISHED).exists()


KILLED = """
from psiphi.experiments.paper import EGO, Experiment, Figure, Method, Table, Variant

small = {"agent.torso_hidden": (8,), "agent.head_hidden": (8,), "agent.batch": 4, "agent.replay_size": 64, "num_envs": 2}
small |= {"prefill_steps": 16, "evaluate_every": 80, "evaluate_episodes": 4}
EXPERIMENT = Experiment(
    name="killed", title="Killed", story="Small trainings in both loops.",
    variants=(
        Variant("coingrid", "CoinGrid", world="coingrid", ego="R+G", changes={"world.size": 5, "world.max_steps": 8}),
        Variant("CartPole", "CartPole", world="CartPole-v1"),
    ),
    methods=(Method("dqn", "DQN", small, how="curve", algorithm="dqn"),),
    measures=(), tables=(Table("While it learns", (("area", Figure("auc", EGO)),)),),
)
"""
"""An experiment of a user's, in the compiled loop and in Gymnasium's."""


def test_the_models_of_learning_curves_can_be_kept(tmp_path):
    (tmp_path / "killed.py").write_text(KILLED)
    asked = {"seeds": [3], "envs": ["coingrid"], "effort": Effort(steps=96)}
    directory = reproduce.reproduce(str(tmp_path / "killed.py"), tmp_path, keep_models=True, **asked)
    assert isinstance(load(directory / "models" / "coingrid-dqn-3"), DQN)
    assert not (directory / "unfinished").exists()
    (unit,) = reproduce.units(reproduce.find(str(tmp_path / "killed.py")), [3], envs=["coingrid"])
    work = reproduce.Work(reproduce.find("figure-3"), tmp_path, Effort(), ORIGIN, {}, 5, keep_models=True)
    assert work.task(unit)["where"][1:] == [5, str(tmp_path / "models" / "coingrid-dqn-3")]


@pytest.mark.slow
def test_a_unit_whose_worker_is_killed_continues_and_comes_to_the_same_cells(tmp_path):
    (tmp_path / "killed.py").write_text(KILLED)
    what, effort = reproduce.find(str(tmp_path / "killed.py")), Effort(steps=6_000)
    comparable = lambda got: [{k: x for k, x in cell.items() if not k.endswith("_s")} for cell in got]  # noqa: E731
    for unit in reproduce.units(what, [3]):
        found = []
        for name in ("broken", "unbroken"):
            work = reproduce.Work(what, tmp_path / name, effort, ORIGIN, {}, 0.0).of_one_thread()
            for rows in (3, 30) if name == "broken" else ():
                worker = reproduce._start(work.task(unit))
                file = work.where(unit).directory / "training" / "metrics.jsonl"
                while (file.read_text().count("\n") if file.exists() else 0) < rows and worker.process.poll() is None:
                    time.sleep(0.01)
                worker.process.kill()
                assert worker.process.wait() == -signal.SIGKILL, "it was over before it could be killed"
                worker.process.communicate()
            ((_, got),) = reproduce.side_by_side(work, [unit], jobs=1)
            assert isinstance(got, list), got
            found.append(comparable(got))
        assert found[0] == found[1] and found[0][0]["extra"]["curve"]["env_steps"][-1] == 6_000


# --- For real ------------------------------------------------------------------------------------------------------------


def test_the_cumulants_of_a_real_model_are_measured_and_drawn(tmp_path, monkeypatch):
    """The network is of random numbers: training it would only add the time to compile the training."""

    def small(*args) -> Run:
        made = run_of(*args)
        return replace(
            tiny.run("itd", demonstrators=made.demonstrators, seed=made.seed), world=replace(tiny.WORLDS["coingrid"], coins=(1, 1, 1))
        )

    def untrained(run: Run, **_):
        return tiny.as_trained(run, [{"train/signal": 1.0, "train/rank": 4.0}], 24)

    monkeypatch.setattr(measures, "run_of", small)
    monkeypatch.setattr(measures, "train", untrained)
    monkeypatch.setattr(answers, "model_of", lambda trained: tiny.model(trained.run))
    directory = reproduce.reproduce("figure-cumulants", tmp_path, [0], effort=Effort(updates=2, episodes=4))
    there = {(row["metric"], row["task"]): row for row in cells.read(directory)}
    best = [there["correlation", colour]["value"] for colour in "RGY"]
    assert all(0 <= value <= 1 for value in best) and there["correlation", "worst"]["value"] == min(best)
    extra = there["correlation", "worst"]["extra"]
    assert np.shape(extra["phi"]) == (4, 3, 3) and np.shape(extra["correlation"]) == (4, 3) and np.shape(extra["preferences"]) == (3, 4)
    assert np.abs(extra["correlation"]).max(axis=0) == pytest.approx(best, abs=1e-4)
    assert (directory / "cumulants.html").exists()


def test_git_is_not_needed(monkeypatch):
    def absent(*_, **__):
        raise FileNotFoundError("git")

    monkeypatch.setattr(subprocess, "run", absent)
    assert cells.commit() is None
