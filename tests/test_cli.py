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

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

import psiphi
from psiphi import checkpoint, cli
from psiphi.agents import itd
from psiphi.agents import psiphi as psiphi_agent
from psiphi.arguments import parsed
from psiphi.errors import UserError
from psiphi.experiments import coingrid as experiment
from psiphi.experiments import demo, models, paper, train
from psiphi.experiments.coingrid import Setting

TINY = (
    "--world.size 5 --world.coins 1 1 0 --world.max-steps 8 --itd.torso-hidden 8 --itd.phi-hidden 8 --itd.psi-hidden 8 --itd.batch 4 "
    "--itd.cross-batch 4 --num-envs 2 --itd.replay-size 64 --prefill-steps 8 --updates 2 --episodes 4 --quiet"
).split()


def run(capsys, *arguments: str) -> tuple[int, str, str]:
    """Exit code, and what was said on standard output and standard error."""
    with pytest.raises(SystemExit) as left:
        cli.main(arguments)
    said = capsys.readouterr()
    return int(left.value.code or 0), said.out, said.err


# --- At once -------------------------------------------------------------------------------------------------------------


def python(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def test_help_loads_nothing_heavy_and_takes_well_under_a_second():
    heavy = "{'jax', 'matplotlib', 'equinox'} & set(sys.modules)"
    code = f"import sys, time\nfrom psiphi.cli import run\nrun(['--help'])\nprint({heavy}, time.process_time())"
    heavy, seconds = python(code).splitlines()[-1].rsplit(" ", 1)
    assert heavy == "set()" and float(seconds) < 1


def test_help_and_version_are_there(capsys):
    for arguments in ([], ["--help"], ["-h"]):
        code, out, _ = run(capsys, *arguments)
        assert code == 0 and all(re.search(rf"^  {name} ", out, re.M) for name in [*cli.COMMANDS, "train", "demos"])
    assert run(capsys, "--version") == (0, f"psiphi {psiphi.__version__}\n", "")
    assert "itd" in run(capsys, "train", "--help")[1]


@pytest.mark.parametrize("command", [*cli.COMMANDS, *(f"train {name}" for name in cli.ALGORITHMS)])
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
        ("fly", "'fly' is not a command; expected was train, demos, infer, demo"),
        ("train", "given 'nothing'; expected was one of itd, psiphi, dqn"),
        ("train a2c", "given 'a2c'; expected was one of itd, psiphi, dqn"),
        ("train itd --env mars", "'mars' is not an environment; expected was one of coingrid, coingrid-25"),
        ("train itd --preset best", "preset is 'best'; expected was default or paper"),
        ("train itd --itd.beta hot", "--itd.beta.*'hot'; see psiphi train itd --help"),
        ("train itd --seed", "--seed"),
        ("train itd --itd.warp 9", "Unrecognized options: --itd.warp"),
        ("train itd --itd.torso eyes", "'eyes'.*egocentric"),
        ("train itd --world.size 1", "size is 1"),
        ("train itd --episodes 0 --out {tmp}/run", "episodes is 0, expected at least 1"),
        ("evaluate {tmp}/nowhere", "nowhere does not exist; expected was the directory of a trained model"),
        ("evaluate {tmp}", "not a complete checkpoint"),
        ("evaluate {tmp} --episodes 0", "episodes is 0, expected at least 1"),
        ("adapt", "Missing from psiphi adapt: PATH --task"),
        ("adapt {tmp}/nowhere --task R-G", "does not exist"),
        ("adapt {tmp}/nowhere --task -R+Z", "'-R[+]Z' is not a CoinGrid task"),
        ("adapt {tmp}/nowhere --task 1,2", "'1,2' is not a task; expected were three numbers"),
        ("adapt {tmp}/nowhere --task 1,nan,0", "finite"),
        ("adapt {tmp}/nowhere --task R-G --shots many", "--shots.*'many'"),
        ("reproduce", "Missing from psiphi reproduce: STR"),
        ("reproduce table-9", "'table-9' is not something to reproduce; expected was one of table-1, table-2"),
        ("reproduce table-2 --seeds 0", "seeds is 0"),
        ("reproduce table-2 --seeds 1.5", "--seeds.*'1.5'"),
        ("reproduce table-2 --first-seed -1", "first_seed is -1"),
        ("reproduce table-2 --jobs 0", "jobs is 0"),
        ("reproduce table-2 --updates 0", "updates is 0"),
        ("reproduce table-2 --methods magic", "no method magic; expected were some of psiphi"),
        ("report {tmp}", "nothing to report"),
    ],
)
def test_a_mistake_is_told_in_one_sentence_without_a_traceback(capsys, tmp_path, arguments, sentence):
    code, out, err = run(capsys, *arguments.format(tmp=tmp_path).split())
    assert code == 2 and out == ""
    assert err.count("\n") == 1 and err.startswith("psiphi: ") and re.search(sentence, err), err


SLEEPER = """
import time
from psiphi import cli
cli.COMMANDS["demo"] = (cli.Demo, lambda _: print("here", flush=True) or time.sleep(60))
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


def flags(*arguments: str):
    algorithm, *rest = arguments
    default = train.defaults(algorithm, cli._given(rest, "--preset", "default"), cli._given(rest, "--env", "coingrid"))  # type: ignore[arg-type]
    return parsed(type(default), rest, "psiphi train", default=default)


def test_flags_start_from_the_preset_and_the_environment():
    assert flags("itd").setting == train._as(train.ITDSetting, Setting())
    paper_flags = flags("psiphi", "--preset=paper", "--env", "coingrid-25", "--itd.batch", "7", "--ego.n-step", "3")
    assert paper_flags.setting.itd == replace(itd.paper(), batch=7)
    assert paper_flags.setting.world.num_layouts == 25
    assert train._as(psiphi_agent.PsiPhiConfig, paper_flags.setting.ego) == replace(psiphi_agent.paper(), n_step=3)
    assert paper_flags.run.out == Path("runs/psiphi-coingrid-25-paper")


def test_every_field_of_the_settings_is_a_flag(capsys):
    out = run(capsys, "train", "psiphi", "--help")[1]
    wanted = [f"--itd.{name}" for name in itd.ITDConfig.__dataclass_fields__]
    wanted += [f"--ego.{name}" for name in psiphi_agent.PsiPhiConfig.__dataclass_fields__ if name != "itd"]
    wanted += [f"--{name}" for name in Setting.__dataclass_fields__ if name not in ("itd", "ego", "world", "few_shot")]
    assert [flag for flag in wanted if flag.replace("_", "-") not in out] == []
    assert "--ego.itd" not in out, "ITD's settings are there once"
    assert "--ego" not in run(capsys, "train", "itd", "--help")[1]


def test_a_task_may_begin_with_a_minus():
    for given in (["--task", "-R+G"], ["--task=-R+G"]):
        assert parsed(cli.Adapt, ["model", *given], "psiphi adapt").task == "-R+G"
    assert models.task("1,-1,0") == (1.0, -1.0, 0.0) == models.task("R-G")


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
    assert json.loads((trained / "config.json").read_text())["setting"]["updates"] == 2
    meta = checkpoint.read_meta(trained / "model")
    assert (meta["env"], meta["seed"], meta["setting"]["episodes"]) == ("coingrid", 0, 4)


def test_the_same_command_again_does_nothing_and_another_one_is_refused(trained, capsys):
    before = (trained / "metrics.jsonl").read_bytes()
    assert run(capsys, "train", "itd", "--out", str(trained), *TINY)[0] == 0
    assert (trained / "metrics.jsonl").read_bytes() == before
    code, _, err = run(capsys, "train", "itd", "--out", str(trained), *TINY, "--itd.beta", "3")
    assert code == 2 and "setting.itd.beta = 20.0, but 3.0 was asked for" in err


def test_a_model_is_rebuilt_from_its_directory_alone(trained):
    model, setting, env, seed = models.load(trained)
    assert (env, seed, setting.world.size, setting.episodes, setting.ego) == ("coingrid", 0, 5, 4, None)
    stored = checkpoint.load_arrays(trained / "model")
    assert np.array_equal(stored["w"], np.asarray(model.w)) and np.array_equal(stored["units"], np.asarray(model.units))


def test_a_model_from_before_keeps_what_its_agents_config_said_of_the_run(trained, tmp_path):
    shutil.copytree(trained / "model", tmp_path / "model")
    manifest = json.loads((tmp_path / "model" / "manifest.json").read_text())
    setting = manifest["meta"]["setting"]
    setting["itd"] |= {"updates": setting.pop("updates"), "num_envs": setting.pop("num_envs")}
    (tmp_path / "model" / "manifest.json").write_text(json.dumps(manifest))
    assert models.load(tmp_path).setting == models.load(trained).setting


def test_evaluate(trained, capsys):
    code, out, _ = run(capsys, "evaluate", str(trained), "--episodes", "4", "--json")
    found = json.loads(out)
    assert code == 0 and found["demonstrators"] == ["R", "G"] and np.shape(found["preferences"]) == (2, 4)
    assert 0 <= found["accuracy"] <= 1 and found["ceiling_accuracy"] <= 1 and len(found["r2"]) == len(found["planner_return"]) == 2
    out = run(capsys, "evaluate", str(trained / "model"), "--episodes", "4")[1]
    assert f"held-out accuracy {found['accuracy']:.3f}" in out and "wants R" in out and "φ4" in out


def test_adapt_and_its_moving_picture(trained, capsys, tmp_path):
    arguments = ["adapt", str(trained), "--task", "-R+G", "--shots", "2", "--repetitions", "3"]
    found = json.loads(run(capsys, *arguments, "--json")[1])
    assert found["task"] == "-R+G" and len(found["w"]) == 4 and set(found["return"]) == {"0", "2"}
    assert all(abs(value) <= 1 for value in found["normalised_return"].values())
    out = run(capsys, *arguments, "--gif", str(tmp_path / "new" / "a.gif"))[1]
    assert "2-shot" in out and "a.gif" in out
    with Image.open(tmp_path / "new" / "a.gif") as gif:
        assert gif.format == "GIF" and getattr(gif, "n_frames", 1) > 3


def test_a_model_that_does_not_fit_is_refused_in_a_sentence(trained, tmp_path):
    def with_meta(change) -> Path:
        shutil.copytree(trained / "model", tmp_path / "model", dirs_exist_ok=True)
        manifest = json.loads((tmp_path / "model" / "manifest.json").read_text())
        change(manifest["meta"])
        (tmp_path / "model" / "manifest.json").write_text(json.dumps(manifest))
        return tmp_path / "model"

    for change, complaint in [
        (lambda meta: meta.update(kind="run"), "not a trained model"),
        (lambda meta: meta.update(env="mars"), "'mars' is not an environment"),
        (lambda meta: meta.update(seed="x"), "does not say which environment and seed"),
        (lambda meta: meta["setting"].update(warp=9), "not a Setting of this version"),
        (lambda meta: meta["setting"]["itd"].update(beta="hot"), "setting.itd.beta is 'hot'"),
        (lambda meta: meta["setting"]["world"].update(coins=[1, 1]), "setting.world.coins"),
        (lambda meta: meta["setting"]["itd"].update(num_cumulants=5), "manifest.json was changed since it was written"),
        (lambda meta: meta.pop("setting"), "setting is not a Setting"),
    ]:
        with pytest.raises(UserError, match=complaint):
            models.load(with_meta(change))
    with pytest.raises(UserError, match="is a checkpoint but not a trained model"):
        models.load(trained / "checkpoint")


def test_the_demo_tells_draws_and_is_not_done_twice(trained, capsys, tmp_path, monkeypatch):
    setting = models.load(trained).setting
    monkeypatch.setattr(demo, "demo_setting", lambda _: setting)
    code, out, _ = run(capsys, "demo", "--quick", "--out", str(tmp_path / "demo"))
    assert code == 0 and all(f"{number}. " in out for number in range(1, 6))
    assert all(task in out for task in paper.TASKS) and "the paper" in out and "-0.4" in out
    for name in ("cumulants.png", "cumulants.html", "retargeted.gif"):
        assert (tmp_path / "demo" / name).stat().st_size > 1000 and name in out
    again = run(capsys, "demo", "--quick", "--out", str(tmp_path / "demo"))[1]
    assert "used again" in again and "2. Learning" not in again


def test_a_model_with_an_ego_is_kept_and_rebuilt(capsys, tmp_path, monkeypatch):
    def untrained(setting: Setting, seed: int, **_) -> experiment.Trained:
        return experiment.Trained(jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), models.like(setting)), 24, 1.0, [])

    monkeypatch.setattr(experiment, "train", untrained)
    arguments = ["train", "psiphi", "--out", str(tmp_path / "run"), *TINY, "--ego.batch", "4", "--ego-task", "1", "-1", "0"]
    assert run(capsys, *arguments)[0] == 0
    loaded = models.load(tmp_path / "run")
    assert loaded.model.w.shape == (3, 4) and loaded.setting.ego_task == (1.0, -1.0, 0.0)
    assert loaded.setting.ego and loaded.setting.ego.batch == 4


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
