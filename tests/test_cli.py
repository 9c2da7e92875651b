"""The commands as a user gives them. What takes training runs once, in a world that costs nothing, and is asked everything."""

import json
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import psiphi
import tiny
from psiphi import checkpoint, cli, training
from psiphi.agents import ALGORITHMS, itd
from psiphi.agents import psiphi as psiphi_agent
from psiphi.arguments import parsed
from psiphi.cli import ask
from psiphi.cli import train as cli_train
from psiphi.errors import UserError
from psiphi.experiments import demo, paper
from psiphi.training import Run
from psiphi.worlds.coingrid import weights_of

TINY = tiny.flags("itd")


def run(capsys, *arguments: str) -> tuple[int, str, str]:
    """Exit code, and what was said on standard output and standard error."""
    with pytest.raises(SystemExit) as left:
        cli.main(arguments)
    said = capsys.readouterr()
    return int(left.value.code or 0), said.out, said.err


# --- At once -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "env", "line"),
    [
        ("evaluate", "coingrid", "psiphi evaluate runs/a"),
        ("watch", "mine:make", "psiphi watch runs/a --env mine:make"),
        ("adapt", "mine:make", "psiphi adapt runs/a --env mine:make --task ..."),
    ],
)
def test_what_to_ask_a_model_names_a_world_that_no_file_may_run(command, env, line):
    assert cli_train.asked(command, Path("runs/a"), env) == line


def python(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def test_help_loads_nothing_heavy():
    heavy = "{'jax', 'matplotlib', 'equinox', 'scipy'} & set(sys.modules)"
    assert python(f"import sys\nfrom psiphi.cli import run\nrun(['--help'])\nprint({heavy})").splitlines()[-1] == "set()"


def test_help_and_version_are_there(capsys):
    for arguments in ([], ["--help"], ["-h"]):
        code, out, _ = run(capsys, *arguments)
        assert code == 0 and all(re.search(rf"^  {name} ", out, re.M) for name in cli.COMMANDS)
    assert run(capsys, "--version") == (0, f"psiphi {psiphi.__version__}\n", "")
    assert "itd" in run(capsys, "train", "--help")[1]


WITH_FLAGS = [name for name, command in cli.COMMANDS.items() if command.flags is not None] + ["infer"]


@pytest.mark.parametrize("command", [*WITH_FLAGS, *(f"train {name}" for name in ALGORITHMS)])
def test_every_flag_of_every_command_is_explained(capsys, command):
    code, out, _ = run(capsys, *command.split(), "--help")
    assert code == 0 and f"psiphi {command}" in out
    for flag in re.findall(r"^│ (--\S+)", out, re.M):
        text = re.split(r"^│ (?=--|-h)", out, flags=re.M)
        (about,) = [part for part in text if part.startswith(flag)]
        assert re.search(r"[a-z]{3,} [a-z]{2,}", about.split("(default")[0].split("\n", 1)[-1]), f"{flag} has no words"


def test_python_m_psiphi_is_psiphi():
    done = subprocess.run([sys.executable, "-m", "psiphi", "--version"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, f"psiphi {psiphi.__version__}\n")


# --- What is wrong is said in one sentence --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("fly", "'fly' is not a command; expected one of demo, train, tune, demos, infer"),
        ("train a2c", "'a2c' is not an algorithm; expected one of itd, psiphi, dqn"),
        ("train itd --env mars", "'mars' is not a world; expected one of coingrid, coingrid-25, .*CartPole-v1, or module:function"),
        ("train itd --preset best", "preset is 'best', expected default or paper"),
        ("train itd --agent.beta hot", "--agent.beta.*'hot'; see psiphi train itd --help"),
        ("train itd --seed", "--seed"),
        ("train itd --agent.warp 9", "Unrecognized options: --agent.warp"),
        ("train itd --agent.torso eyes", "'eyes'.*egocentric"),
        ("train itd --world.size 1", "size is 1"),
        ("train itd --episodes 0 --out {tmp}/run", "episodes is 0, expected at least 1"),
        ("evaluate {tmp}/nowhere", "nowhere does not exist, expected the directory of a trained model"),
        ("evaluate {tmp}", "not a complete checkpoint: it has no manifest.json, expected one of a run or a model"),
        ("evaluate {tmp} --episodes 0", "episodes is 0, expected at least 1"),
        ("adapt", "Missing from psiphi adapt: PATH"),
        ("adapt {tmp}/nowhere", "needs either --task or --from"),
        ("adapt {tmp}/nowhere --task R --from {tmp}/x.csv", "needs either --task or --from"),
        ("adapt {tmp}/nowhere --task R-G", "does not exist"),
        ("train dqn --task -R+Z", "'-R[+]Z' is not a CoinGrid task"),
        ("train dqn --task 1,2", "'1,2' is not a task; expected three numbers"),
        ("train dqn --task 1,nan,0", "finite"),
        ("watch {tmp}/nowhere", "does not exist"),
        ("adapt {tmp}/nowhere --task R-G --shots many", "--shots.*'many'"),
        ("reproduce", "Missing from psiphi reproduce: STR"),
        ("reproduce table-9", "'table-9' is not something to reproduce; expected one of table-1, table-2"),
        ("reproduce table-2 --seeds 0", "seeds is 0"),
        ("reproduce table-2 --seeds 1.5", "--seeds.*'1.5'"),
        ("reproduce table-2 --first-seed -1", "first_seed is -1"),
        ("reproduce table-2 --jobs 0", "jobs is 0"),
        ("reproduce table-2 --updates 0", "updates is 0"),
        ("reproduce table-2 --methods magic", "no method magic; expected some of psiphi"),
        ("report {tmp}", "nothing to report"),
    ],
)
def test_a_mistake_is_told_in_one_sentence_without_a_traceback(capsys, tmp_path, monkeypatch, arguments, sentence):
    monkeypatch.chdir(tmp_path)
    code, out, err = run(capsys, *arguments.format(tmp=tmp_path).split())
    assert code == 2 and out == ""
    assert err.count("\n") == 1 and err.startswith("psiphi: ") and re.search(sentence, err), err


SLEEPER = """
import time
from psiphi import cli
cli.COMMANDS["demo"] = cli.Command("", lambda _: print("here", flush=True) or time.sleep(60), cli.Demo)
cli.main(["demo"])
"""


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_command_says_so_and_exits_by_convention(signum):
    process = subprocess.Popen([sys.executable, "-c", SLEEPER], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout and process.stdout.readline() == "here\n"
    time.sleep(0.1)
    process.send_signal(signum)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 128 + signum
    assert err == "psiphi: interrupted; the same command continues where it can.\n"


# --- Flags ---------------------------------------------------------------------------------------------------------------


def flags(name: str, *rest: str) -> Run:
    return cli_train.as_run(name, cli_train.parse(name, rest).run)


def test_flags_start_from_the_preset_and_the_environment():
    assert flags("itd") == training.default_run("itd", "coingrid")
    made = ["--preset=paper", "--env", "coingrid-25", "--agent.itd.batch", "7", "--agent.n-step", "3"]
    asked = flags("psiphi", *made)
    assert asked.agent == replace(psiphi_agent.paper(), n_step=3, itd=replace(itd.paper(), batch=7))
    assert asked.world.num_layouts == 25 and asked.env == "coingrid-25"
    assert cli_train.parse("psiphi", made).keeping.out == Path("runs/psiphi-coingrid-25-paper")
    cartpole = cli_train.parse("dqn", ["--env", "CartPole-v1", "--steps", "99"])
    assert cartpole.run.world is None and cartpole.run.steps == 99 and cartpole.keeping.out == Path("runs/dqn-CartPole-v1")


def test_steps_or_updates_whichever_is_given():
    by_updates, by_steps = flags("itd", "--updates", "7"), flags("itd", "--steps", "70")
    assert (by_updates.steps, by_updates.updates) == (0, 7) and (by_steps.steps, by_steps.updates) == (70, 0)


def test_who_no_longer_watches_online_makes_updates():
    online = flags("bc", "--env", "highway-multi-task")
    assert online.steps > 0 and online.updates == 0
    shown = flags("bc", "--env", "highway-multi-task", "--demos", "drivers.npz")
    assert (shown.steps, shown.updates) == (0, training.UPDATES)
    assert flags("dqn", "--env", "highway-multi-task", "--demos", "none").steps == flags("dqn", "--env", "highway-multi-task").steps > 0


def test_every_field_of_the_run_is_a_flag(capsys):
    out = run(capsys, "train", "psiphi", "--help")[1]
    wanted = [f"--agent.itd.{name}" for name in itd.ITDConfig.__dataclass_fields__]
    wanted += [f"--agent.{name}" for name in psiphi_agent.PsiPhiConfig.__dataclass_fields__ if name != "itd"]
    wanted += [f"--{name}" for name in Run.__dataclass_fields__ if name not in ("algorithm", "agent", "world")]
    assert [flag for flag in wanted if flag.replace("_", "-") not in out] == []
    assert "--world.num-layouts" in out and "--algorithm" not in out
    assert "--agent.itd." not in run(capsys, "train", "itd", "--help")[1]


def test_a_dry_run_prints_every_setting_and_writes_nothing(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, _ = run(capsys, "train", "sqil", "--env", "roundabout", "--dry-run")
    found = json.loads(out)
    assert code == 0 and found == cli_train.described(training.completed(training.default_run("sqil", "roundabout")))
    assert found["task"] == "wxr" and found["agent"]["dqn"]["gamma"] == 0.95
    assert list(tmp_path.iterdir()) == []


def test_a_dry_run_of_a_reproduction_lists_every_training_and_what_it_cost(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, _ = run(capsys, "reproduce", "all", "--dry-run", "--json", "--seeds", "2")
    rows = json.loads(out)
    assert code == 0 and {row["experiment"] for row in rows} == set(paper.EXPERIMENTS)
    assert all(row["missing"] == row["trainings"] == 2 and row["config"]["saw"] and row["wall_s"] is None for row in rows)
    assert list(tmp_path.iterdir()) == []
    text = run(capsys, "reproduce", "table-2", "--dry-run")[1]
    assert "trainings are missing" in text and "table-2" in text


def test_what_there_is_is_listed(capsys):
    worlds = json.loads(run(capsys, "worlds", "--json")[1])
    assert worlds["coingrid"]["tasks"] == list(paper.TASKS) and worlds["coingrid"]["demonstrators"] == ["R", "G"]
    assert worlds["highway-multi-task"]["demonstrations"] == ["recorded", "online", "FILE", "none"]
    assert worlds["coingrid"]["demonstrations"] == ["recorded", "FILE", "none"]
    assert "CartPole-v1" in run(capsys, "worlds")[1] and "Behaviour cloning" in run(capsys, "algorithms")[1]


def test_a_task_may_begin_with_a_minus():
    for given in (["--task", "-R+G"], ["--task=-R+G"]):
        assert parsed(ask.Adapt, ["model", *given], "psiphi adapt").task == "-R+G"
    assert flags("dqn", "--task", "-R+G").task == "-R+G"
    assert weights_of("1,-1,0") == (1.0, -1.0, 0.0) == weights_of("R-G")


# --- Train, evaluate, adapt, demo -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    """What `psiphi train itd` leaves."""
    out = tmp_path_factory.mktemp("runs") / "itd"
    with pytest.raises(SystemExit) as left:
        cli.main(["train", "itd", "--out", str(out), *TINY])
    assert not left.value.code
    return out


def test_a_run_leaves_what_was_asked_what_came_out_and_the_model(trained):
    assert {file.name for file in trained.iterdir()} >= {"config.json", "metrics.jsonl", "checkpoint", "model"}
    assert json.loads((trained / "config.json").read_text())["run"]["updates"] == 4
    meta = checkpoint.read_meta(trained / "model")
    assert (meta["algorithm"], meta["run"]["env"], meta["run"]["seed"], meta["run"]["episodes"]) == ("itd", "coingrid", 0, 4)


def test_the_same_command_again_does_nothing_and_another_one_is_refused(trained, capsys):
    before = (trained / "metrics.jsonl").read_bytes()
    assert run(capsys, "train", "itd", "--out", str(trained), *TINY)[0] == 0
    assert (trained / "metrics.jsonl").read_bytes() == before
    code, _, err = run(capsys, "train", "itd", "--out", str(trained), *TINY, "--agent.beta", "3")
    assert code == 2 and "run.agent.beta = 20.0, but 3.0 was asked for" in err


def test_a_model_is_rebuilt_from_its_directory_alone(trained):
    model = psiphi.load(trained)
    assert isinstance(model, psiphi.ITD) and model.agents == ("R", "G") and model.seed == 0
    stored = checkpoint.load_arrays(trained / "model")
    known = model._trained().model
    assert np.array_equal(stored["model/w"], np.asarray(known.w)) and np.array_equal(stored["model/units"], np.asarray(known.units))


def test_evaluate(trained, capsys):
    code, out, _ = run(capsys, "evaluate", str(trained), "--episodes", "4", "--json")
    found = json.loads(out)
    assert code == 0 and {name: row["task"] for name, row in found["policies"].items()} == {"R": "R", "G": "G"}
    truth = found["truth"]
    assert truth["demonstrators"] == ["R", "G"] and np.shape(truth["preferences"]) == (2, 4)
    assert 0 <= truth["accuracy"] <= 1 and truth["ceiling_accuracy"] <= 1 and len(truth["r2"]) == len(truth["planner_return"]) == 2
    out = run(capsys, "evaluate", str(trained / "model"), "--episodes", "4")[1]
    assert f"held-out accuracy {truth['accuracy']:.3f}" in out and "wants R" in out and "φ4" in out


def test_adapt_and_its_moving_picture(trained, capsys, tmp_path):
    arguments = ["adapt", str(trained), "--task", "-R+G", "--shots", "2", "--repetitions", "3"]
    found = json.loads(run(capsys, *arguments, "--json", "--out", str(tmp_path / "re-targeted"))[1])
    assert found["task"] == "-R+G" and len(found["w"]) == 4 and set(found["return"]) == {"0", "2"}
    assert all(abs(value) <= 1 for value in found["normalised_return"].values())
    assert psiphi.load(tmp_path / "re-targeted").w.shape == (4,)
    out = run(capsys, *arguments, "--gif", str(tmp_path / "new" / "a.gif"))[1]
    assert "2-shot" in out and "a.gif" in out
    with Image.open(tmp_path / "new" / "a.gif") as gif:
        assert gif.format == "GIF" and getattr(gif, "n_frames", 1) > 3


def test_the_only_task_of_a_world_has_a_name():
    found = {"task": "", "w": [1.0], "return": {"0": 1.0, "1": 2.0}}
    assert str(ask._adaptation_table(found, ask.Adapt(Path("model"), task="own")).title).startswith("Task own,")


def test_adapt_from_rewarded_steps_of_the_users(trained, capsys, tmp_path):
    """Paid what the model says that G wants, the task is G's."""
    model = psiphi.load(trained)
    obs = np.random.default_rng(0).integers(0, 2, (60, 5, 5, 5)).astype(np.uint8)
    action = np.arange(60) % 3
    reward = model.reward("G", "wants")(obs, action)
    np.savez(tmp_path / "steps.npz", obs=obs, action=action, reward=reward)
    found = json.loads(
        run(capsys, "adapt", str(trained), "--from", str(tmp_path / "steps.npz"), "--inference", "least-squares", "--json")[1]
    )
    assert found["steps"] == 60 and found["explained"] > 0.9
    paid = model.cumulants(obs)[np.arange(60), action] @ np.asarray(found["w"])
    np.testing.assert_allclose(paid, reward, atol=0.1 * np.abs(reward).max())


def test_watch(trained, capsys, tmp_path):
    code, out, _ = run(capsys, "watch", str(trained), "--agent", "G", "--out", str(tmp_path / "g.gif"))
    assert code == 0 and re.search(r"g.gif shows G: \d+ steps, return [+-]", out)
    with Image.open(tmp_path / "g.gif") as gif:
        assert gif.format == "GIF"
    assert "shows these preferences" in run(capsys, "watch", str(trained), "--w", "1", "0", "0", "0", "--out", str(tmp_path / "w.gif"))[1]
    code, _, err = run(capsys, "watch", str(trained), "--agent", "Z")
    assert code == 2 and "There is no 'Z' in this model; expected one of R, G" in err
    assert "expected 4 finite weights" in run(capsys, "watch", str(trained), "--w", "1", "0")[2]


def test_a_model_that_does_not_fit_is_refused_in_a_sentence(trained, tmp_path):
    def with_meta(change) -> Path:
        shutil.copytree(trained / "model", tmp_path / "model", dirs_exist_ok=True)
        manifest = json.loads((tmp_path / "model" / "manifest.json").read_text())
        change(manifest["meta"])
        (tmp_path / "model" / "manifest.json").write_text(json.dumps(manifest))
        return tmp_path / "model"

    for change, complaint in [
        (lambda meta: meta.update(kind="run"), "not a trained model"),
        (lambda meta: meta["run"].pop("env"), "does not say in which world it was trained"),
        (lambda meta: meta["model"].update(seed="x"), "model.seed is 'x'"),
        (lambda meta: meta["config"].update(warp=9), "not a ITDConfig of this version"),
        (lambda meta: meta["config"].update(beta="hot"), "config.beta is 'hot'"),
        (lambda meta: meta["config"].update(num_cumulants=5), "was changed since it was written"),
        (lambda meta: meta.pop("config"), "config is not a ITDConfig"),
        (lambda meta: meta["run"].update(env="roundabout"), "was changed since it was written"),
    ]:
        with pytest.raises(UserError, match=complaint):
            psiphi.load(with_meta(change))
    with pytest.raises(UserError, match="is a checkpoint but not a trained model"):
        psiphi.load(trained / "checkpoint")


def test_the_demo_tells_draws_and_is_not_done_twice(trained, capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(demo, "demo_run", lambda quick, seed: training.completed(tiny.run("itd", seed=seed)))
    code, out, _ = run(capsys, "demo", "--quick", "--out", str(tmp_path / "demo"))
    assert code == 0 and all(f"{number}. " in out for number in range(1, 6))
    assert all(task in out for task in paper.TASKS) and "the paper" in out and "-0.4" in out
    for name in ("cumulants.png", "cumulants.html", "retargeted.gif"):
        assert (tmp_path / "demo" / name).stat().st_size > 1000 and name in out
    assert psiphi.load(tmp_path / "demo").agents == ("R", "G"), "what the demo left can be asked like any model"
    again = run(capsys, "demo", "--quick", "--out", str(tmp_path / "demo"))[1]
    assert "used again" in again and "2. Learning" not in again


def test_a_model_with_an_ego_is_kept_and_rebuilt(capsys, tmp_path):
    arguments = ["train", "psiphi", "--out", str(tmp_path / "run"), *tiny.flags("psiphi"), "--task", "R-G"]
    assert run(capsys, *arguments)[0] == 0
    loaded = psiphi.load(tmp_path / "run")
    assert isinstance(loaded, psiphi.PsiPhi) and loaded._trained().model.w.shape == (3, 4) and loaded.task == "R-G"
    assert loaded.config.batch == 4 and loaded._trained().has_ego


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError(28, "No space left on device", "out/table.csv"), "out/table.csv cannot be read or written: No space left on device."),
        (OSError(30, "Read-only file system"), "A file cannot be read or written: Read-only file system."),
        (MemoryError(), "There is not enough memory for this"),
        (RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 1 bytes."), "There is not enough memory for this"),
    ],
)
def test_a_full_disk_or_memory_is_one_sentence_wherever_it_is_noticed(capsys, monkeypatch, error, said):
    def fail(_):
        raise error

    monkeypatch.setattr(cli, "run", fail)
    code, _, err = run(capsys, "demo")
    assert code == 2 and err.startswith(f"psiphi: {said}") and err.count("\n") == 1


def test_a_mistake_of_ours_is_not_hidden(monkeypatch):
    def fail(_):
        raise RuntimeError("a bug")

    monkeypatch.setattr(cli, "run", fail)
    with pytest.raises(RuntimeError, match="a bug"):
        cli.main(["demo"])
