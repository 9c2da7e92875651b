"""One directory for models and policies; what was written before is read or refused in a sentence, and no file can run code."""

import dataclasses
import json
import shutil
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import psiphi
import tiny
from psiphi import checkpoint, cli, lens, playing, training
from psiphi.agents import ALGORITHMS
from psiphi.api import files
from psiphi.api import trained as api_trained
from psiphi.errors import UserError
from psiphi.types import Pace

OLD = Path(__file__).parent / "data" / "model-0.1"
"""Written by psiphi 0.1.0 (`psiphi.ITD.save`, version 2 of "psiphi api model"), and what it answered."""


def test_a_model_that_psiphi_0_1_saved_answers_as_it_did():
    found = psiphi.load(OLD / "itd")
    assert isinstance(found, psiphi.ITD) and found.agents == ("a", "b") and found.seed == 3
    with np.load(OLD / "answers.npz") as then:
        np.testing.assert_allclose(found.policy("a").values(then["obs"]), then["a"], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(found.policy("b").values(then["obs"]), then["b"], rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(found.w, then["w"])
        np.testing.assert_allclose(found.reward("a", "wants")(then["obs"], np.zeros(6, int)), then["reward"], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("side", "kind", "before"), [(20, "picture", "picture"), (20, "board", "picture"), (7, "picture", "board")])
def test_a_file_says_what_observations_are_and_before_that_their_size_did(side, kind, before):
    glass = lens.blank((side, side, 3), np.uint8, False, kind)
    described = files.DescribedPolicy((side, side, 3), "uint8", False, 2, 0, 0, True, kind)
    assert files._glass(described).spec(2) == glass.spec(2)
    assert files._glass(dataclasses.replace(described, kind=None)).kind == before


def test_it_is_saved_as_a_model_of_now(tmp_path):
    psiphi.load(OLD / "itd").save(tmp_path)
    assert checkpoint.read_meta(tmp_path)["kind"] == files.KIND and checkpoint.read_meta(tmp_path)["version"] == files.VERSION
    before, after = files.read(OLD / "itd"), files.read(tmp_path)
    assert (after.config, after.seed, after.agents) == (before.config, before.seed, before.agents)


@pytest.mark.parametrize(
    ("meta", "sentence"),
    [
        ({"kind": "psiphi model"}, "was trained by psiphi 0.1, whose models cannot be read any more; train it again with this version."),
        ({"kind": "psiphi policy", "algorithm": "dqn"}, "was trained by psiphi 0.1, whose models cannot be read any more; train it again"),
        ({"kind": "psiphi model", "version": 99}, "is a model of version 99, but this psiphi reads version 3; update psiphi."),
        ({"kind": "psiphi api model", "version": 7}, "is a model of version 7, but this psiphi reads version 3; update psiphi."),
        ({"kind": "run"}, "is a checkpoint but not a trained model; a training leaves one in its run directory when it is done."),
    ],
)
def test_what_cannot_be_read_says_what_to_do(tmp_path, capsys, meta, sentence):
    checkpoint.save(tmp_path / "model", jnp.zeros(1), meta=meta)
    with pytest.raises(UserError) as raised:
        psiphi.load(tmp_path)
    assert sentence in str(raised.value)
    for command in ("evaluate", "watch", "adapt --task R"):
        name, *more = command.split()
        with pytest.raises(SystemExit) as left:
            cli.main([name, str(tmp_path), *more])
        err = capsys.readouterr().err
        assert left.value.code == 2 and err.count("\n") == 1 and sentence in err


@pytest.fixture
def stranger(tmp_path, monkeypatch) -> Path:
    """A model whose manifest says that its world is made by a function of a module that lies beside it."""
    (tmp_path / "stranger_danger.py").write_text("raise SystemExit('this module was run')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    tiny.save_model(tmp_path / "model", tiny.run("itd"))
    loaded = files.read(tmp_path / "model")
    assert loaded.known is not None and loaded.run is not None
    shutil.rmtree(tmp_path / "model")
    run = {**loaded.run, "env": "stranger_danger:make"}
    files.save(tmp_path / "model", "itd", loaded.known, loaded.config, 0, None, run=run)
    return tmp_path / "model"


def test_a_model_that_names_code_as_its_world_does_not_run_it(stranger, capsys):
    loaded = psiphi.load(stranger)
    assert loaded.agents == ("R", "G") and "stranger_danger" not in sys.modules
    with pytest.raises(UserError, match="is code of the user's, which a file must not run; name it: --env stranger_danger:make"):
        playing.where(files.read(stranger))
    for command in (["evaluate", str(stranger)], ["watch", str(stranger)], ["adapt", str(stranger), "--task", "R-G"]):
        with pytest.raises(SystemExit) as left:
            cli.main(command)
        assert left.value.code == 2 and "a file must not run" in capsys.readouterr().err
    assert "stranger_danger" not in sys.modules


@pytest.mark.parametrize("env", ["stranger_danger:make", "stranger_danger:Thing-v0"])
def test_a_loaded_policy_has_no_world_that_a_file_would_have_to_import(stranger, env):
    with pytest.raises(UserError, match="a file must not run"):
        from psiphi import worlds

        worlds.find(env, trusted=False)
    assert "stranger_danger" not in sys.modules


def test_the_world_of_a_file_is_checked_like_any_config(tmp_path):
    tiny.save_model(tmp_path / "model", tiny.run("itd"))
    found = files.read(tmp_path / "model")
    assert found.run is not None
    with pytest.raises(UserError, match="The model's world.size is 'big'"):
        playing.where(found._replace(run={**found.run, "world": {**found.run["world"], "size": "big"}}))
    with pytest.raises(UserError, match=r"reads observations of shape \(5, 5, 5\).* but coingrid has \(7, 7, 5\)"):
        playing.where(found._replace(run={**found.run, "world": {**found.run["world"], "size": 7}}))
    with pytest.raises(UserError, match="was not trained in a world: expected --env WORLD"):
        playing.where(found._replace(run=None))


def test_a_model_is_asked_beside_logs(tmp_path, capsys):
    """Likelihood, accuracy and calibration of each agent, by hand for one that is always right and sure of it."""
    tiny.save_model(tmp_path / "model", tiny.run("itd"))
    itd = psiphi.load(tmp_path / "model")
    obs = np.random.default_rng(0).integers(0, 2, (40, 5, 5, 5)).astype(np.uint8)
    policy = itd.policy("R")
    said, chances = policy(obs[:-1]), policy.probabilities(obs[:-1])
    psiphi.Demonstrations.from_lists([obs], [said], ["R"], num_actions=3).write(tmp_path / "log.npz")
    with pytest.raises(SystemExit):
        cli.main(["evaluate", str(tmp_path / "model"), "--demos", str(tmp_path / "log.npz"), "--json"])
    got = json.loads(capsys.readouterr().out)["agents"]["R"]
    assert got["steps"] == 39 and got["accuracy"] == 1.0
    assert got["commonest"] == pytest.approx(np.bincount(said).max() / 39)
    assert got["nll"] == pytest.approx(-np.log(chances.max(axis=1)).mean(), rel=1e-3)
    assert got["calibration"] == pytest.approx(1 - chances.max(axis=1).mean(), abs=1e-4), "as unsure as it was, it was right"


def test_trust_in_the_demonstrators_is_kept_with_the_model(tmp_path):
    run = training.changed(tiny.run("psiphi"), {"agent.trust": 5.0, "agent.temperature": 0.0})
    trained = training.train(run, progress=False)
    api_trained.save(tmp_path, trained)
    obs = np.random.default_rng(0).integers(0, 2, (200, 5, 5, 5)).astype(np.uint8)
    agent = ALGORITHMS["psiphi"].make(trained.run.agent, trained.spec, len(trained.agents), Pace(2, 1))
    expected = np.asarray(jax.jit(agent.policy)(trained.state, obs, jax.random.key(0)))
    found = playing.read(tmp_path)
    np.testing.assert_array_equal(psiphi.load(tmp_path).predict(obs), expected)
    np.testing.assert_array_equal(playing.player(found)[1](jnp.asarray(obs), jax.random.key(0)), expected)
    assert found.known is not None
    free = dataclasses.replace(found.known, model=found.known.model._replace(trust=None))
    assert (np.asarray(playing.player(found._replace(known=free))[1](jnp.asarray(obs), jax.random.key(0))) != expected).any()


def test_a_model_that_watched_no_one_has_no_trust_to_keep(tmp_path):
    """It was trained with trust set, as a control is; its file has none."""
    weights = ("bc_weight", "itd_weight", "l1_weight", "cross_policy", "sparsity", "anchor")
    run = training.changed(tiny.run("psiphi"), {"agent.trust": 5.0, **{f"agent.itd.{name}": 0.0 for name in weights}})
    trained = training.train(run, progress=False)
    assert not trained.agents
    api_trained.save(tmp_path, trained)
    found = playing.read(tmp_path)
    assert found.known is not None and found.known.model.trust is None


def test_calibration_by_hand():
    sure, right = np.array([0.95, 0.95, 0.55, 0.55]), np.array([True, False, True, True])
    assert playing.calibration_error(sure, right) == pytest.approx(0.5 * 0.45 + 0.5 * 0.45)
