"""`psiphi demos` as a user gives it."""

import csv
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from psiphi.demos import Columns, Demonstrations
from psiphi.demos.commands import COMMANDS, run
from psiphi.errors import UserError


@pytest.fixture
def log(tmp_path) -> Path:
    rng = np.random.default_rng(0)
    seen = [rng.normal(size=(60, 2)).astype(np.float32) for _ in range(4)]
    acted = [np.arange(60) % 3 for _ in seen]
    Demonstrations.from_lists(seen, acted, ["ann", "bob"] * 2, terminated=[True] * 4, names=["x", "speed"]).write(tmp_path / "log.csv")
    return tmp_path / "log.csv"


def test_help_names_every_command_and_loads_no_jax(capsys):
    run(["--help"])
    said = capsys.readouterr().out
    assert all(f"  {name} " in said for name in COMMANDS)
    for name in COMMANDS:
        with pytest.raises(SystemExit):
            run([name, "--help"])
    assert "--num-actions" in capsys.readouterr().out


def test_inspecting_a_file_needs_no_jax(log):
    code = f"import sys\nfrom psiphi.demos.commands import run\nrun(['inspect', {str(log)!r}])\nassert 'jax' not in sys.modules"
    assert "ann" in subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["look"], "psiphi demos was given 'look'; expected inspect, validate, convert, record"),
        (["inspect"], "Missing from psiphi demos inspect"),
        (["inspect", "none.csv"], "none.csv does not exist"),
        (["inspect", "none.csv", "--colour", "red"], "--colour"),
        (["record", "CartPole-v1", "x.npz", "--policy", "wise"], "'wise' is no policy; expected random, constant:0 to constant:1"),
        (["record", "CartPole-v1", "x.npz", "--policy", "constant:2"], "'constant:2' is no policy"),
        (["record", "CartPole-v1", "x.npz", "--policy", "sticky:x"], "'sticky:x' is no policy"),
        (["record", "CartPole-v1", "x.npz", "--policy", "exact:R"], "possible on psiphi/CoinGrid-v0 only, not on 'CartPole-v1'"),
        (["record", "psiphi/CoinGrid-v0", "x.npz", "--policy", "exact:blue"], "'blue' is not a CoinGrid task"),
        (["record", "CartPole-v1", "x.npz", "--policy", "random", "random"], "expected different ones"),
        (["record", "os:system", "x.npz"], "'os:system' would import a module"),
        (["record", "Nowhere-v0", "x.npz"], "The environment 'Nowhere-v0' cannot be made"),
        (["record", "Pendulum-v1", "x.npz"], "actions are Box.* expected discrete ones"),
        (["record", "CartPole-v1", "x.npz", "--episodes", "0"], "episodes is 0, expected at least 1"),
        (["record", "CartPole-v1", "x.docx", "--episodes", "1"], "'x.docx' says no format"),
    ],
)
def test_what_cannot_be_done_is_one_sentence(arguments, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=said) as caught:
        run(arguments)
    assert "\n" not in str(caught.value) and not list(tmp_path.iterdir())


def test_inspect_shows_agents_actions_and_columns(log, capsys):
    run(["inspect", str(log)])
    said = capsys.readouterr().out
    assert all(word in said for word in ("'ann'", "'bob'", "speed", "240", "4 terminated"))
    run(["inspect", str(log), "--json"])
    found = json.loads(capsys.readouterr().out)
    assert found["steps"] == 240 and found["file"] == str(log)
    assert [(row["agent"], row["steps"], row["actions"]) for row in found["by_agent"]] == [(name, 120, [40] * 3) for name in ("ann", "bob")]


def test_validate_says_yes_with_warnings(log, capsys):
    run(["validate", str(log), "--few-steps", "1000"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"warning: {log}: agent 'ann': the agent has 120 steps, fewer than the 1000 from which its wants may be told."
    assert lines[-1] == f"{log} can be used: no error, 2 warnings."


def test_validate_says_no_and_lists_everything(log, capsys):
    with open(log, newline="") as file:
        table = list(csv.reader(file))
    header = table[0]
    table[5][header.index("action")] = "0.5"
    table[70][header.index("obs_x")] = "nan"
    with open(log, "w", newline="") as file:
        csv.writer(file).writerows(table)
    with pytest.raises(UserError, match="log.csv cannot be used: 2 errors, 0 warnings"):
        run(["validate", str(log)])
    assert capsys.readouterr().out.splitlines() == [
        f"error: {log}: agent 'ann', episode 0, step 4: the action is 0.5, expected an integer.",
        f"error: {log}: agent 'bob', episode 0, step 9: the observation's 'x' is nan, expected a finite number.",
    ]
    with pytest.raises(UserError, match="2 errors"):
        run(["validate", str(log), "--json"])
    problems = json.loads(capsys.readouterr().out)["problems"]
    assert [(p["severity"], p["agent"], p["episode"], p["step"]) for p in problems] == [("error", "ann", 0, 4), ("error", "bob", 0, 9)]


def test_convert_maps_columns_and_says_what_it_left_out(tmp_path, capsys):
    path = tmp_path / "trips.csv"
    path.write_text("car,trip,x,turn,reward\n7,0,1.5,1,9\n7,0,2.5,0,9\n")
    run(["convert", str(path), str(tmp_path / "out.npz"), *"--agent car --episode trip --obs x --action turn --ends terminated".split()])
    said = capsys.readouterr()
    assert said.out == f"{tmp_path / 'out.npz'}: 2 steps of 1 agent.\n"
    assert "'reward' is left out: psiphi learns without rewards" in said.err
    demos = Demonstrations.read(tmp_path / "out.npz")
    assert demos.agents == (7,) and demos.obs.tolist() == [[1.5], [2.5]] and demos.terminated.tolist() == [False, True]


def test_record_random_sticky_and_constant_agents(tmp_path):
    out = tmp_path / "demos.csv"
    run(["record", "CartPole-v1", str(out), "--policy", "random", "sticky:0.8", "constant:1", "--episodes", "3", "--seed", "5"])
    demos = Demonstrations.read(out)
    assert demos.agents == ("random", "sticky:0.8", "constant:1") and demos.num_episodes == 9
    assert (demos.filter(agents=["constant:1"]).action == 1).all()
    first = out.read_bytes()
    run(["record", "CartPole-v1", str(out), "--policy", "random", "sticky:0.8", "constant:1", "--episodes", "3", "--seed", "5"])
    assert out.read_bytes() == first


def test_record_exact_demonstrators_of_coingrid(tmp_path):
    out = tmp_path / "demos.npz"
    run(["record", "psiphi/CoinGrid-v0", str(out), "--policy", "exact:R", "exact:G-R", "--episodes", "4"])
    demos = Demonstrations.read(out)
    assert demos.agents == ("exact:R", "exact:G-R") and demos.obs.shape[1:] == (7, 7, 5) and demos.num_actions == 3
    red = demos.filter(agents=["exact:R"])
    assert red.episodes.terminated.all()  # it leaves when it has what it wants:
    assert (red.obs[red.episodes.start[:-1]][..., 0].sum((1, 2)) == 2).all() and (red.episodes.final_obs[..., 0].sum((1, 2)) == 0).all()


def test_parquet_and_minari_by_command(log, tmp_path):
    for module in ("pyarrow", "minari", "h5py"):
        pytest.importorskip(module)
    run(["convert", str(log), str(tmp_path / "log.parquet")])
    run(["convert", str(tmp_path / "log.parquet"), str(tmp_path / "log-v0")])
    run(["convert", str(tmp_path / "log-v0"), str(tmp_path / "again.csv")])
    again = Demonstrations.read(tmp_path / "again.csv", Columns())
    np.testing.assert_array_equal(again.obs, Demonstrations.read(log).obs)
    assert again.agents == ("ann", "bob")
