"""What a file says becomes a config only if every word of it fits."""

import dataclasses
import json
import re
import typing
from typing import Literal

import numpy as np
import pytest

from psiphi import cli, training
from psiphi.agents.bc import BCConfig
from psiphi.agents.dqn import DQNConfig
from psiphi.agents.gail import GAILConfig
from psiphi.agents.itd import ITDConfig
from psiphi.agents.ppo import PPOConfig
from psiphi.agents.psiphi import PsiPhiConfig
from psiphi.agents.sqil import SQILConfig
from psiphi.configs import from_json
from psiphi.envs.coingrid import CoinGridConfig
from psiphi.errors import UserError
from psiphi.loops.few_shot import FewShotConfig
from psiphi.loops.scan import LoopConfig
from psiphi.training import Run


@dataclasses.dataclass(frozen=True)
class Inner:
    rate: float


@dataclasses.dataclass(frozen=True)
class Outer:
    name: str
    inner: Inner
    sizes: tuple[int, ...] = (1,)
    pair: tuple[int, float] = (1, 2.0)
    kind: Literal["a", "b"] = "a"
    perhaps: int | None = None


GOOD = {"name": "x", "inner": {"rate": 1}, "sizes": [1, 2], "pair": [3, 4], "kind": "b", "perhaps": None}


def test_what_was_written_is_read():
    assert from_json(Outer, GOOD, "it") == Outer("x", Inner(1.0), (1, 2), (3, 4.0), "b")
    config = PsiPhiConfig(n_step=3)
    assert from_json(PsiPhiConfig, json.loads(json.dumps(dataclasses.asdict(config))), "it") == config


def test_what_has_a_default_may_be_missing():
    assert from_json(Outer, {"name": "x", "inner": {"rate": 1.0}}, "it") == Outer("x", Inner(1.0))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"more": 1}, "it is not a Outer of this version"),
        ({"name": 3}, "it.name is 3, which is not a str"),
        ({"inner": {}}, "it.inner is not a Inner of this version"),
        ({"inner": {"rate": float("nan")}}, "it.inner.rate is nan"),
        ({"inner": {"rate": True}}, "it.inner.rate is True"),
        ({"sizes": [1.5]}, "it.sizes is 1.5, which is not a int"),
        ({"pair": [1]}, r"it.pair is \[1\]"),
        ({"kind": "c"}, "it.kind is 'c'"),
        ({"perhaps": "no"}, "it.perhaps is 'no'"),
    ],
)
def test_what_does_not_fit_is_refused(change, said):
    with pytest.raises(UserError, match=said):
        from_json(Outer, GOOD | change, "it")


# --- Ranges ---------------------------------------------------------------------------------------------------------------

OUT_OF_RANGE = [
    (ITDConfig, {"gamma": 7}, "gamma is 7.0, expected a number from 0 to 1"),
    (ITDConfig, {"gamma": float("nan")}, "gamma is nan, expected a finite number"),
    (ITDConfig, {"learning_rate": -1}, "learning_rate is -1.0, expected a number above 0"),
    (ITDConfig, {"learning_rate": float("nan")}, "learning_rate is nan, expected a finite number"),
    (ITDConfig, {"learning_rate": float("inf")}, "learning_rate is inf, expected a finite number"),
    (ITDConfig, {"batch": 0}, "batch is 0, expected at least 1"),
    (ITDConfig, {"batch": 10**9}, "batch is 1000000000, expected at most 1,048,576"),
    (ITDConfig, {"ensemble": 0}, "ensemble is 0, expected at least 1"),
    (ITDConfig, {"ema": 5}, "ema is 5.0, expected a number from 0 to 1"),
    (ITDConfig, {"num_cumulants": -1}, "num_cumulants is -1, expected at least 0"),
    (ITDConfig, {"num_cumulants": 10**9}, "num_cumulants is 1000000000, expected at most 4,096"),
    (ITDConfig, {"torso_hidden": (8, 0)}, "torso_hidden is 0, expected at least 1"),
    (ITDConfig, {"torso_hidden": ()}, "torso_hidden is (), expected at least 1 entries"),
    (ITDConfig, {"torso_hidden": 8}, "torso_hidden is 8, which is not a tuple"),
    (ITDConfig, {"torso": "eyes"}, "torso is 'eyes', expected one of 'auto', 'mlp'"),
    (ITDConfig, {"batch": None}, "batch is None, which is not a int"),
    (ITDConfig, {"batch": 2.5}, "batch is 2.5, which is not a int"),
    (ITDConfig, {"cosine": "yes"}, "cosine is 'yes', which is not a bool"),
    (ITDConfig, {"beta": 10**400}, "beta is inf, expected a finite number"),
    (PsiPhiConfig, {"temperature": -1}, "temperature is -1.0, expected at least 0"),
    (PsiPhiConfig, {"itd": {}}, "itd is {}, which is not a ITDConfig"),
    (PsiPhiConfig, {"n_step": 0}, "n_step is 0, expected at least 1"),
    (FewShotConfig, {"inference": "guess"}, "inference is 'guess', expected one of 'bayes', 'ridge', 'imagined', 'least-squares'"),
    (LoopConfig, {"seed": -1}, "seed is -1, expected at least 0"),
    (LoopConfig, {"seed": 10**20}, "seed is 100000000000000000000, expected at most 4,294,967,295"),
    (BCConfig, {"batch": 0}, "batch is 0, expected at least 1"),
    (Run, {"updates": -1}, "updates is -1, expected at least 0"),
    (Run, {"num_envs": 0}, "num_envs is 0, expected at least 1"),
    (Run, {"episodes": 0}, "episodes is 0, expected at least 1"),
    (Run, {"seed": -1}, "seed is -1, expected at least 0"),
    (GAILConfig, {"demonstrator": -1}, "demonstrator is -1, expected at least 0"),
    (CoinGridConfig, {"max_steps": 0}, "CoinGrid's max_steps is 0, expected at least 1"),
]


def usual(kind: type) -> typing.Any:
    return training.default_run("dqn", "coingrid") if kind is Run else kind()


def made(kind: type, change: dict[str, typing.Any]) -> typing.Any:
    """A config as it is made where nobody checks types at every call, as the tests do."""
    config = object.__new__(kind)
    for field in dataclasses.fields(kind):
        object.__setattr__(config, field.name, change.get(field.name, getattr(usual(kind), field.name)))
    config.__post_init__()
    return config


def test_the_gate_is_where_configs_are_made():
    with pytest.raises(UserError, match="gamma is 7.0"):
        ITDConfig(gamma=7.0)
    with pytest.raises(UserError, match="ema is 5.0"):
        dataclasses.replace(ITDConfig(), ema=5.0)


@pytest.mark.parametrize(("kind", "change", "said"), OUT_OF_RANGE)
def test_a_config_out_of_range_cannot_be_made_nor_changed_nor_read(kind, change, said):
    with pytest.raises(UserError, match=re.escape(said)):
        made(kind, change)
    if "itd" not in change:
        words = "|".join([re.escape(said.split("'s ")[-1]), "finite", "which is not a", "expected one of"])
        with pytest.raises(UserError, match=words):
            from_json(kind, json.loads(json.dumps(dataclasses.asdict(usual(kind)) | change)), "it")


def test_numbers_of_numpy_and_lists_become_plain_values():
    config = made(ITDConfig, {"batch": np.int64(8), "gamma": np.float32(0.5), "torso_hidden": [8, np.int32(4)], "cosine": np.bool_(True)})
    assert config == ITDConfig(batch=8, gamma=0.5, torso_hidden=(8, 4), cosine=True)
    assert json.loads(json.dumps(dataclasses.asdict(config)))["torso_hidden"] == [8, 4] and hash(config)


def test_every_number_of_every_config_has_a_range():
    """A new field without one is seen here: what may be any number says so by standing in this list."""
    free = {"reward_offset", "demo_reward", "size"}
    for kind in (
        ITDConfig,
        PsiPhiConfig,
        DQNConfig,
        BCConfig,
        SQILConfig,
        GAILConfig,
        PPOConfig,
        FewShotConfig,
        LoopConfig,
        CoinGridConfig,
        Run,
    ):
        hints = typing.get_type_hints(kind, include_extras=True)
        bare = [field.name for field in dataclasses.fields(kind) if hints[field.name] in (int, float, int | None, float | None)]
        assert set(bare) <= free, f"{kind.__name__}: {bare}"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("train itd --seed -1", "seed is -1, expected at least 0"),
        ("train itd --seed 100000000000000000000", "expected at most 4,294,967,295"),
        ("train itd --agent.num-cumulants 0", "num_cumulants is 0, expected at least 1"),
        ("train itd --agent.gamma 7", "gamma is 7.0, expected a number from 0 to 1"),
        ("train psiphi --agent.temperature -1", "temperature is -1.0, expected at least 0"),
        ("train dqn --agent.batch 0", "batch is 0, expected at least 1"),
        ("train ppo --agent.learning-rate nan", "learning_rate is nan, expected a finite number"),
        ("infer {tmp}/x.csv --seed -1", "seed is -1, expected at least 0"),
        ("infer {tmp}/x.csv --held-out 1", "held_out is 1.0, expected a number above 0 and at most 0.9"),
        ("infer {tmp}/x.csv --itd.ema 5", "ema is 5.0, expected a number from 0 to 1"),
        ("adapt {tmp} --task R --shots 0", "shots is 0, expected at least 1"),
        ("reproduce table-2 --jobs 0", "jobs is 0, expected at least 1"),
        ("reproduce table-2 --first-seed -1", "first_seed is -1, expected at least 0"),
        ("demos record CartPole-v1 {tmp}/x.csv --episodes 0", "episodes is 0, expected at least 1"),
        ("demos validate {tmp}/x.csv --tail-share 2", "tail_share is 2.0, expected a number from 0 to 1"),
        ("demos inspect {tmp}/x.csv --num-actions 0", "num_actions is 0, expected at least 1"),
    ],
)
def test_the_command_line_goes_through_the_same_door(capsys, tmp_path, monkeypatch, arguments, said):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as left:
        cli.main(arguments.format(tmp=tmp_path).split())
    found = capsys.readouterr().err
    assert left.value.code == 2 and found.startswith("psiphi: ") and found.count("\n") == 1 and said in found
