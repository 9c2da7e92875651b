"""Units on clusters: each once, whoever is killed; what a reproduction still takes; and one sentence for what cannot be."""

import importlib.util
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import tiny
from psiphi import cli
from psiphi.errors import UserError
from psiphi.experiments import cells, clusters, paper, reproduce
from psiphi.experiments.ledger import Ledger
from psiphi.experiments.reproduce import Effort, Work

ITD = paper.EXPERIMENTS["itd-coingrid"]
ORIGIN = {"commit": None, "versions": {"threads": "2"}, "command": "psiphi reproduce"}

DYING = """
import json, os, signal, sys
from pathlib import Path
task = json.loads(sys.argv[1])
env, method, seed = task["unit"]
died = Path(task["where"][0]).with_suffix(".died")
died.parent.mkdir(parents=True, exist_ok=True)
with open(died, "a") as file: file.write("x")
if len(died.read_text()) <= seed: os.kill(os.getpid(), signal.SIGKILL)
if seed == 3: sys.exit("this seed is cursed")
row = dict(env=env, method=method, seed=seed, metric="r2", task="R", wall_s=2, config={}, env_steps=0, experiment=task["experiment"])
json.dump([{**row, **task["origin"], "value": len(died.read_text())}], sys.stdout)
"""
"""A worker that is killed as often as its seed says."""


@pytest.fixture
def work(tmp_path, monkeypatch) -> Work:
    monkeypatch.setattr(reproduce, "WORKER", DYING)
    return Work(ITD, tmp_path, Effort(), ORIGIN, {})


def check(outcomes: clusters.Outcomes) -> None:
    found = {unit.seed: got for unit, got in outcomes}
    assert {seed: got[0]["value"] for seed, got in found.items() if seed != 3} == {0: 1, 1: 2, 2: 3}  # pyright: ignore[reportArgumentType]
    assert found[3] == "this seed is cursed", "a mistake is told and not tried again"


def test_a_unit_whose_process_is_killed_is_begun_again(work):
    check(reproduce.side_by_side(work, reproduce.units(ITD, range(4), only=["itd"]), jobs=2))
    check(
        (unit, reproduce.alone(work._replace(directory=work.directory / "alone").task(unit)))
        for unit in reproduce.units(ITD, range(4), only=["itd"])
    )


def test_a_unit_that_is_killed_again_and_again_is_given_up(work, monkeypatch):
    monkeypatch.setattr(reproduce, "MOST_DEATHS", 2)
    (unit,) = reproduce.units(ITD, [9], only=["itd"])
    ((_, said),) = reproduce.side_by_side(work, [unit], jobs=1)
    assert isinstance(said, str) and "code -9" in said
    assert reproduce.alone(work.task(unit)) == "its process was killed 2 times."


class Executor:
    """In the place of submitit's: jobs are processes, and one that is not killed leaves its file."""

    def __init__(self, **_: Any):
        pass

    def update_parameters(self, **given: Any) -> None:
        assert given["slurm_partition"] == "cpu" and given["timeout_min"] == 9

    def submit(self, job: Any, task: dict[str, Any], path: str) -> Any:
        process = subprocess.Popen(
            [sys.executable, "-c", DYING, json.dumps(task)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

        def done() -> bool:
            said, complained = process.communicate()
            if process.returncode >= 0:
                Path(path).parent.mkdir(parents=True, exist_ok=True)
                Path(path).write_text(json.dumps(json.loads(said) if process.returncode == 0 else complained.strip()))
            return True

        return SimpleNamespace(done=done, cancel=process.kill)


def test_a_job_of_slurm_that_is_killed_is_submitted_again_and_one_that_left_its_cells_is_not(work, monkeypatch):
    monkeypatch.setattr(clusters, "_imported", lambda *_: SimpleNamespace(AutoExecutor=Executor))
    monkeypatch.setattr(time, "sleep", lambda _: None)
    units = reproduce.units(ITD, range(4), only=["itd"])
    options = clusters.parsed("partition=cpu, timeout_min=9")
    check(clusters.on_slurm(work, units, jobs=2, options=options))
    monkeypatch.setattr(Executor, "submit", lambda *_: pytest.fail("its cells were there"))
    ((_, got),) = clusters.on_slurm(work, units[:1], jobs=2, options=options)
    assert isinstance(got, list)


def test_what_is_left_is_what_others_of_its_kind_took():
    wanted = reproduce.units(ITD, range(4), only=["itd", "paper-itd"])
    there = [
        dict(env=u.variant.name, method=u.method.name, seed=u.seed, wall_s=10.0) for u in wanted if u.seed == 0 and u.method.name == "itd"
    ]
    book = Ledger(wanted, [u for u in wanted if u.seed or u.method.name != "itd"], there, side_by_side=2)
    assert book.to_go_s == 7 * 10 and book.left_s == 35 and book.sentence() == "1/8 trainings, 0:35 left; 0.00 core-hours spent, 0.02 to go"
    slow = next(u for u in wanted if u.method.name == "paper-itd")
    book.finished(slow, 1000.0)
    assert book.to_go_s == 3 * 10 + 3 * 1000 and book.left_s == 1515
    assert [row[2:] for row in book.rows()] == [["1/4", "10", "0:30"], ["1/4", "1,000", "50:00"]]
    book.finished(next(u for u in wanted if u.seed == 1), None)
    assert book.spent_s == 1000 and len(book.left) == 5
    assert Ledger(wanted, wanted, [], 1).sentence() == "0/8 trainings, ? left; 0.00 core-hours spent, ? to go"


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"on": "local", "address": "auto"}, "--address is 'auto', expected it only with --on ray."),
        ({"on": "ray", "slurm": "partition=cpu"}, "--slurm is 'partition=cpu', expected it only with --on slurm."),
        ({"on": "ray", "address": "somewhere"}, "--address is 'somewhere', expected HOST:PORT, ray://HOST:PORT or auto."),
        ({"on": "slurm", "slurm": "cpu"}, "--slurm has 'cpu', expected NAME=VALUE, such as partition=cpu,timeout_min=600."),
    ],
)
def test_what_cannot_be_is_refused_at_once(given, sentence, monkeypatch):
    monkeypatch.setattr(clusters, "_imported", lambda module, extra: None)
    with pytest.raises(UserError) as raised:
        clusters.runner(**given)
    assert str(raised.value) == sentence


def test_a_cluster_that_does_not_answer_gets_one_sentence(monkeypatch):
    monkeypatch.setattr(clusters, "_imported", lambda module, extra: None)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
        with pytest.raises(UserError, match=f"No Ray cluster answers at {address}"):
            clusters.runner("ray", address=address)


def test_an_unknown_place_is_refused(capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main(["reproduce", "table-2", "--on", "moon"])
    assert ended.value.code == 2 and "invalid choice 'moon' for argument '--on'" in capsys.readouterr().err


@pytest.mark.parametrize(("on", "module"), [("ray", "ray"), ("slurm", "submitit")])
def test_a_missing_extra_is_named_with_its_command(on, module, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(UserError, match=rf"--on {on} needs {module}, .* pip install 'psiphi\[{on}\]'"):
        clusters.runner(on)


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs ray: pip install 'psiphi[ray]'")
def test_units_on_ray_whose_workers_are_killed_yield_what_undisturbed_ones_do(tmp_path):
    """As benchmarks/kills.py, with few kills."""
    kills = Path(__file__).parents[1] / "benchmarks" / "kills.py"
    subprocess.run([sys.executable, str(kills), "--on", "ray", "--kills", "3", "--seeds", "1", "--out", str(tmp_path)], check=True)
    (found,) = [json.loads(line) for line in (tmp_path / "kills.jsonl").read_text().splitlines()]
    assert found["equal"] and found["kills"] >= 3 and found["lost"] == found["doubled"] == 0
    assert cells.FILE in found["compared"]


EXPERIMENT = '''"""A DQN, small."""
from psiphi.experiments.paper import EGO, Experiment, Figure, Method, Table, Variant

SMALL = {"agent.torso_hidden": (8,), "agent.head_hidden": (8,), "agent.batch": 4, "agent.replay_size": 64, "num_envs": 2}
SMALL |= {"prefill_steps": 16, "evaluate_every": 16, "evaluate_episodes": 4}
EXPERIMENT = Experiment(
    name="small", title="Small", story="A small training.",
    variants=(Variant("coingrid", "CoinGrid", world="coingrid", ego="R+G", changes={"world.size": 5, "world.max_steps": 8}),),
    methods=(Method("dqn", "DQN", SMALL, how="curve", algorithm="dqn"),),
    measures=(), tables=(Table("While it learns", (("area", Figure("auc", EGO)),)),),
)
'''


@pytest.fixture
def foreign():
    """The address of a Ray cluster that another process started and that asks for a token, and the environment of who may use it."""
    env = {**os.environ, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(16), "RAY_USAGE_STATS_ENABLED": "0"}
    env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(Path(cells.__file__).parents[2]), os.environ.get("PYTHONPATH")]))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    home = tempfile.mkdtemp(prefix="ray-")  # Ray's sockets need a short path
    words = ["start", "--head", "--block", f"--port={port}", "--num-cpus=2", "--include-dashboard=false", f"--temp-dir={home}"]
    start = [sys.executable, "-c", "from ray.scripts.scripts import main; main()", *words]
    with subprocess.Popen(start, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True) as head:
        try:
            assert head.stdout is not None and any("Ray runtime started" in line for line in head.stdout)
            yield f"127.0.0.1:{port}", env
        finally:
            os.killpg(head.pid, signal.SIGTERM)
            head.communicate(timeout=60)
            shutil.rmtree(home, ignore_errors=True)


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs ray: pip install 'psiphi[ray]'")
def test_a_cluster_that_another_process_started_is_used_by_its_address(tmp_path, foreign):
    address, env = foreign

    def psiphi(*words: str) -> None:
        done = subprocess.run([sys.executable, "-m", "psiphi", *words], env=env, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr

    there = ["--on", "ray", "--address", address]
    tune = ["tune", "dqn", *tiny.flags("dqn"), "--space", "learning_rate", "--trials", "4", "--rounds", "2", "--factor", "2"]
    for search in ("pbt", "asha"):
        psiphi(*tune, "--search", search, *there, "--workers", "2", "--out", f"{search}-there")
        assert (tmp_path / f"{search}-there" / "best.json").exists()
    cli.run([*tune, "--out", str(tmp_path / "pbt-here")])
    assert (tmp_path / "pbt-there" / "lineage.csv").read_bytes() == (tmp_path / "pbt-here" / "lineage.csv").read_bytes()
    rounds = [line.split(",")[0] for line in (tmp_path / "asha-there" / "lineage.csv").read_text().splitlines()[1:]]
    assert rounds.count("1") == 4 and rounds.count("2") >= 2 and "4" in rounds

    (tmp_path / "small.py").write_text(EXPERIMENT)
    psiphi("reproduce", "small.py", "--seeds", "2", "--steps", "48", *there, "--out", "there")
    cli.run(["reproduce", str(tmp_path / "small.py"), "--seeds", "2", "--steps", "48", "--out", str(tmp_path / "here")])
    assert measured(tmp_path / "there") == measured(tmp_path / "here")


def measured(out: Path) -> set[tuple[Any, ...]]:
    """What the cells of a reproduction say, each once."""
    trainings = [json.loads(line) for line in (out / "small" / cells.FILE).read_text().splitlines()]
    rows = [training | figure for training in trainings for figure in training["figures"]]
    assert len(rows) == len({(row["metric"], row["task"], row["seed"]) for row in rows})
    return {(row["metric"], row["task"], row["seed"], row["value"]) for row in rows}
