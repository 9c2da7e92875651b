"""Every algorithm in every kind of world trains, is saved, loaded and asked, and ends as it would have if it is stopped half way."""

import shutil
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import psiphi
import tiny
from psiphi import checkpoint, playing, training, worlds
from psiphi.agents import ALGORITHMS
from psiphi.api import trained
from psiphi.api.baselines import CLASSES, PolicyOf
from psiphi.loops import runs
from psiphi.training import Run
from psiphi.types import Env

COMPILED = ("coingrid", "highway-multi-task", "roundabout")
CARTPOLE, FETCH = "CartPole-v1", "MiniGrid-Fetch-6x6-N2-v0"
QUICK = {
    ("itd", "coingrid"),
    ("psiphi", "coingrid"),
    ("gail", "coingrid"),
    ("bc", "highway-multi-task"),
    ("dqn", CARTPOLE),
    ("guided-dqn", CARTPOLE),
    ("sqil", CARTPOLE),
    ("ppo", CARTPOLE),
}
"""Among them every algorithm and both loops; the others are as quick to write down but not to compile."""

CASES = [(algorithm, env) for env in (*COMPILED, CARTPOLE) for algorithm in ALGORITHMS] + [
    (name, FETCH) for name in ("dqn", "ppo", "psiphi")
]


@pytest.fixture(scope="module")
def cartpole(tmp_path_factory) -> str:
    return str(tiny.cartpole(tmp_path_factory.mktemp("demos") / "cartpole.npz"))


def run_of(algorithm: str, env: str, cartpole: str) -> Run:
    made = tiny.run(algorithm, env, evaluate_every=0)
    if env == CARTPOLE and ALGORITHMS[algorithm].watches(made.agent):
        return training.changed(made, {"demos": cartpole})
    return made


def training_kept_half_way(run: Run, out: Path, half: Path, monkeypatch: pytest.MonkeyPatch) -> training.Trained:
    """Train in `out`; `half` is what a process that died after its first checkpoint would have left."""
    save, count = runs.save, []

    def keeping(directory: Path, *args: Any, **where: Any) -> None:
        save(directory, *args, **where)
        count.append(where["step"])
        if len(count) == 1:
            shutil.copytree(directory, half)

    with monkeypatch.context() as patch:
        patch.setattr(runs, "save", keeping)
        result = training.train(run, out=out, progress=False, checkpoint_every_s=0.0)
    assert len(count) > 1, "there is something left to do after the first checkpoint"
    return result


def rows_of(directory: Path) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if name != "wall_s"} for row in runs.read_rows(directory)]


def same(left: Path, right: Path) -> bool:
    arrays, others = checkpoint.load_arrays(left), checkpoint.load_arrays(right)
    return arrays.keys() == others.keys() and all(array.tobytes() == others[name].tobytes() for name, array in arrays.items())


@pytest.mark.parametrize(
    ("algorithm", "env"), [pytest.param(*case, marks=[] if case in QUICK else [pytest.mark.slow], id="-in-".join(case)) for case in CASES]
)
def test_it_trains_is_saved_loaded_and_asked_and_continues(algorithm, env, cartpole, tmp_path, monkeypatch):
    monkeypatch.setattr(training, "CHUNK", 2)
    run, out, half = run_of(algorithm, env, cartpole), tmp_path / "run", tmp_path / "half"
    result = training_kept_half_way(run, out, half, monkeypatch)
    assert result.env_steps == (training.loop_of(run).env_steps(training.loop_of(run).iterations) if training.acts(run) else 0)
    trained.save(out / "model", result)

    again = training.train(run, out=half, progress=False, checkpoint_every_s=0.0)
    trained.save(half / "model", again)
    if isinstance(worlds.find(env).env(run.world, result.run.task), Env) or not training.acts(run):
        assert rows_of(half) == rows_of(out) and same(half / "checkpoint", out / "checkpoint") and same(half / "model", out / "model")
    else:  # environments cannot be put down: the episodes are others, but not one step or update is lost or made twice
        assert [row["env_steps"] for row in rows_of(half)] == [row["env_steps"] for row in rows_of(out)]
        first = rows_of(half)[:1]
        assert first == rows_of(out)[:1] and again.env_steps == result.env_steps

    loaded = psiphi.load(out)
    kinds: dict[str, Any] = {"itd": psiphi.ITD, "psiphi": psiphi.PsiPhi, **CLASSES}
    assert isinstance(loaded, kinds.get(algorithm, PolicyOf))
    asked(out, loaded, result)


def asked(out: Path, loaded: Any, result: training.Trained) -> None:
    """All that a model can do is an action of its world, and the API does what `evaluate` and `watch` would play."""
    found = playing.read(out)
    place = playing.where(found)
    assert place.world.name == result.run.env and place.task == result.run.task
    spec = result.spec
    obs = np.asarray(jax.random.uniform(jax.random.key(0), (3, *spec.obs_shape)) * 2).astype(spec.obs_dtype)
    there = playing.players(found)
    assert ("ego" in there) == (not result.algorithm.tells_apart) or result.algorithm.successor_features
    for name, act in there.items():
        action = np.asarray(act(jnp.asarray(obs), jax.random.key(1)))
        assert action.shape == (3,) and action.min() >= 0 and action.max() < spec.num_actions
        if name != "ego" and result.algorithm.successor_features:
            assert loaded.policy(name)(obs).tolist() == action.tolist()
        elif name != "ego":
            assert loaded.predict(obs, agent=name).tolist() == action.tolist()
    if "ego" in there:
        assert set(np.unique(loaded.predict(obs))) <= set(range(spec.num_actions))


def test_every_algorithm_and_both_loops_are_among_the_quick_ones():
    assert {algorithm for algorithm, _ in QUICK} | {"itd-dqn"} >= set(ALGORITHMS)
    assert QUICK <= set(CASES)
