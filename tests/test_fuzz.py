"""Whatever bytes a stranger brings: they are read, or refused in one sentence. A thousand of each kind are tried with the slow tests."""

import functools
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import psiphi
from psiphi.demos import Demonstrations
from psiphi.errors import UserError

SMALL = psiphi.ITDConfig(
    torso_hidden=(4,), phi_hidden=(4,), psi_hidden=(4,), batch=4, cross_policy_on="pooled", cross_batch=4, sparsity=0.0
)


def logs() -> Demonstrations:
    random = np.random.default_rng(0)
    seen = [random.normal(size=(5, 2)).astype(np.float32) for _ in range(4)]
    return Demonstrations.from_lists(seen, [random.integers(3, size=4) for _ in range(4)], list("abab"))


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """A model and a log in each format, and room to damage copies of them."""
    path = tmp_path_factory.mktemp("fuzz")
    psiphi.ITD(SMALL, updates=2).fit(logs(), progress=False).save(path / "model")
    for ending in ("csv", "npz", "parquet"):
        logs().write(path / f"log.{ending}")
    return path


def one_sentence(act: Callable[[], Any]) -> Any:
    """What comes out, None where it was refused; anything but a sentence is an error."""
    try:
        return act()
    except UserError as error:
        assert "\n" not in str(error) and str(error).endswith("."), str(error)
        return None


Edits = st.lists(
    st.tuples(st.sampled_from(["flip", "set", "insert", "delete", "cut"]), st.integers(0, 10**6), st.binary(min_size=1, max_size=8)),
    min_size=1,
    max_size=4,
)
"""Changes to bytes: what, where, and with what."""


def edited(data: bytes, edits: list[tuple[str, int, bytes]]) -> bytes:
    for kind, where, new in edits:
        at = where % max(len(data), 1)
        if kind == "flip" and data:
            data = data[:at] + bytes([data[at] ^ (1 << new[0] % 8)]) + data[at + 1 :]
        elif kind == "set":
            data = data[:at] + new + data[at + len(new) :]
        elif kind == "insert":
            data = data[:at] + new + data[at:]
        elif kind == "delete":
            data = data[:at] + data[at + len(new) :]
        elif kind == "cut":
            data = data[:at]
    return data


Values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=20)
    | st.sampled_from(["itd", "a", 10**9, -1, 0, 1e308, [], {}]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=5,
)
"""Any JSON value."""


def paths(value: Any, here: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where every value in a JSON value is."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [here, *(path for key, item in inner for path in paths(item, (*here, key)))]


def with_value(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    if not path:
        return new
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = with_value(copy[path[0]], path[1:], new)
    return copy


def damaged_manifest(place: Path, text: bytes) -> Any:
    copy = place / "copy"
    if not copy.exists():
        shutil.copytree(place / "model", copy)
    (copy / "manifest.json").write_bytes(text)
    return one_sentence(functools.partial(psiphi.load, copy))


def flipped_manifest(place: Path, edits: list[tuple[str, int, bytes]]) -> None:
    data = (place / "model" / "manifest.json").read_bytes()
    changed = edited(data, edits)
    if damaged_manifest(place, changed) is not None:
        assert json.loads(changed) == json.loads(data)  # white space at most


def edited_manifest(place: Path, where: int, value: Any) -> None:
    manifest = json.loads((place / "model" / "manifest.json").read_bytes())
    every = paths(manifest)
    changed = with_value(manifest, every[where % len(every)], value)
    if damaged_manifest(place, json.dumps(changed).encode()) is not None:
        assert changed == manifest


def damaged_file(place: Path, ending: str, edits: list[tuple[str, int, bytes]]) -> None:
    path = place / f"copy.{ending}"
    path.write_bytes(edited((place / f"log.{ending}").read_bytes(), edits))
    got = one_sentence(functools.partial(Demonstrations.read, path))
    assert got is None or (len(got) > 0 and np.isfinite(got.obs).all())


FEW = settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], derandomize=True)
MANY = settings(max_examples=1_000, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])


@FEW
@given(edits=Edits)
def test_flipped_bits_of_a_manifest(place, edits):
    flipped_manifest(place, edits)


@FEW
@given(where=st.integers(0, 10**6), value=Values)
def test_edited_fields_of_a_manifest(place, where, value):
    edited_manifest(place, where, value)


@pytest.mark.parametrize("ending", ["csv", "npz", "parquet"])
@settings(FEW, max_examples=60)
@given(edits=Edits)
def test_damaged_logs(place, ending, edits):
    damaged_file(place, ending, edits)


@FEW
@given(data=st.binary(max_size=300))
def test_bytes_of_no_kind(place, data):
    for ending in ("csv", "npz", "parquet"):
        (place / f"any.{ending}").write_bytes(data)
        one_sentence(functools.partial(Demonstrations.read, place / f"any.{ending}"))


@pytest.mark.slow
@MANY
@given(edits=Edits)
def test_a_thousand_flipped_manifests(place, edits):
    flipped_manifest(place, edits)


@pytest.mark.slow
@MANY
@given(where=st.integers(0, 10**6), value=Values)
def test_a_thousand_edited_manifests(place, where, value):
    edited_manifest(place, where, value)


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["csv", "npz", "parquet"])
@MANY
@given(edits=Edits)
def test_a_thousand_damaged_logs(place, ending, edits):
    damaged_file(place, ending, edits)
