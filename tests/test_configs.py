"""What a file says becomes a config only if every word of it fits."""

import dataclasses
import json
from typing import Literal

import pytest

from psiphi.agents.psiphi import PsiPhiConfig
from psiphi.configs import from_json
from psiphi.errors import UserError


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
