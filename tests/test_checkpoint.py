import hashlib
import json
import os
import pickle
import re
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy

from psiphi import checkpoint, disk
from psiphi.errors import UserError


class Net(NamedTuple):
    weight: Any
    layers: tuple[Any, ...]


def example(seed: int = 0) -> dict[str, Any]:
    net = Net(jnp.arange(6, dtype=jnp.float32).reshape(2, 3) + seed, (jnp.array([True, False]), jnp.array(7, jnp.int32)))
    return {"agent": {"net": net}, "pixels": jnp.arange(4, dtype=jnp.uint8), "key": jax.random.key(seed), "step": seed}


def leaves(tree: Any) -> list[tuple[str, tuple[int, ...], bytes]]:
    """Every leaf as type, shape and bits."""
    raw = [jax.random.key_data(x) if checkpoint._is_key(x) else x for x in jax.tree.leaves(tree)]
    return [(str(np.asarray(x).dtype), np.shape(x), np.asarray(x).tobytes()) for x in raw]


def saved(tmp_path: Path) -> Path:
    path = tmp_path / "checkpoint"
    checkpoint.save(path, example(), meta={"step": 3})
    return path


def arrays_file(path: Path) -> Path:
    (file,) = path.glob("arrays-*")
    return file


def edit_manifest(path: Path, **fields: Any) -> None:
    manifest = json.loads((path / "manifest.json").read_text())
    (path / "manifest.json").write_text(json.dumps(manifest | fields))


def one_sentence(path: Path, *words: str, like: Any = None) -> None:
    """Loading must fail, naming the checkpoint and the trouble in one sentence."""
    with pytest.raises(UserError) as caught:
        checkpoint.load(path, example() if like is None else like)
    message = str(caught.value)
    assert str(path) in message and "\n" not in message and message.endswith(".")
    assert all(word in message for word in words), message


def test_round_trip_is_exact_and_keeps_the_structure(tmp_path):
    path = saved(tmp_path)
    tree = checkpoint.load(path, example(seed=1))
    assert jax.tree.structure(tree) == jax.tree.structure(example())
    assert leaves(tree) == leaves(example())
    assert checkpoint.read_meta(path) == {"step": 3}


def test_abstract_shapes_are_enough_to_load(tmp_path):
    tree = {name: value for name, value in example().items() if name != "step"}
    checkpoint.save(tmp_path / "c", tree, meta={})
    loaded = checkpoint.load(tmp_path / "c", jax.eval_shape(lambda: tree))
    assert leaves(loaded) == leaves(tree)
    assert jax.random.uniform(loaded["key"]) == jax.random.uniform(tree["key"])


@pytest.mark.parametrize("dtype", sorted(checkpoint.DTYPES))
@pytest.mark.parametrize("shape", [(), (0, 3), (3,), (2, 3)])
def test_every_dtype_and_shape_round_trips_bit_for_bit(tmp_path, dtype, shape):
    bits = np.random.default_rng(0).integers(0, 2 if dtype == "bool" else 256, size=(*shape, np.dtype(dtype).itemsize), dtype=np.uint8)
    array = bits.view(dtype).reshape(shape)
    checkpoint.save(tmp_path / "c", array, meta={})
    loaded = checkpoint.load(tmp_path / "c", np.zeros_like(array))
    assert (loaded.shape, loaded.dtype, loaded.tobytes()) == (array.shape, array.dtype, array.tobytes())


def test_nan_payloads_infinities_and_negative_zero_survive_jax_too(tmp_path):
    odd = jnp.array(np.array([0x7FC00001, 0xFFC12345, 0x7F800000, 0x80000000, 1], np.uint32).view(np.float32))
    checkpoint.save(tmp_path / "c", odd, meta={})
    assert leaves(checkpoint.load(tmp_path / "c", odd)) == leaves(odd)


@pytest.mark.parametrize("array", [np.arange(6).reshape(2, 3).T, np.arange(8)[::2], np.broadcast_to(np.arange(3), (2, 3))])
def test_arrays_that_do_not_lie_straight_in_memory_are_not_permuted(tmp_path, array):
    checkpoint.save(tmp_path / "c", array, meta={})
    np.testing.assert_array_equal(checkpoint.load(tmp_path / "c", array), array)


def test_numbers_come_back_as_the_kind_they_were(tmp_path):
    tree = {"bool": True, "int": 2**40, "float": 0.1, "numpy": np.float64(0.2), "array": np.ones(2), "jax": jnp.ones(2)}
    checkpoint.save(tmp_path / "c", tree, meta={})
    loaded = checkpoint.load(tmp_path / "c", tree)
    assert {name: type(value) for name, value in loaded.items()} == {name: type(value) for name, value in tree.items()}
    assert leaves(loaded) == leaves(tree)


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg"])
def test_batches_of_random_keys_continue_where_they_were(tmp_path, impl):
    keys = jax.random.split(jax.random.key(5, impl=impl), 3)
    checkpoint.save(tmp_path / "c", {"keys": keys}, meta={})
    loaded = checkpoint.load(tmp_path / "c", {"keys": jax.eval_shape(lambda: keys)})["keys"]
    assert loaded.dtype == keys.dtype and loaded.shape == (3,)
    np.testing.assert_array_equal(jax.vmap(jax.random.bits)(loaded), jax.vmap(jax.random.bits)(keys))


def test_names_are_readable_and_the_file_is_plain_safetensors(tmp_path):
    path = saved(tmp_path)
    names = {"agent/net/weight", "agent/net/layers/0", "agent/net/layers/1", "pixels", "key", "step"}
    assert set(checkpoint.load_arrays(path)) == names
    assert set(safetensors.numpy.load_file(arrays_file(path))) == names
    entries = json.loads((path / "manifest.json").read_text())["arrays"]
    assert entries["agent/net/weight"] == {"shape": [2, 3], "dtype": "float32"}
    assert entries["key"] == {"shape": [2], "dtype": "uint32", "key": "threefry2x32"}


def test_reordered_fields_of_equal_shape_are_told_apart_by_name(tmp_path):
    checkpoint.save(tmp_path / "c", {"a": jnp.zeros(2), "b": jnp.ones(2)}, meta={})

    class Reordered(NamedTuple):
        b: Any
        a: Any

    loaded = checkpoint.load(tmp_path / "c", Reordered(b=jnp.zeros(2), a=jnp.zeros(2)))
    assert loaded.a.sum() == 0 and loaded.b.sum() == 2


@pytest.mark.parametrize("tree", [{"a/b": 1, "a": {"b": 2}}, {"__metadata__": 1}])
def test_a_tree_whose_names_clash_is_refused(tmp_path, tree):
    with pytest.raises(ValueError, match="cannot be saved"):
        checkpoint.save(tmp_path / "c", tree, meta={})


@pytest.mark.parametrize("leaf", ["text", object(), jnp.ones(2, jnp.bfloat16), 1j])
def test_a_leaf_that_would_not_come_back_is_refused_by_name(tmp_path, leaf):
    with pytest.raises(TypeError, match="'odd'"):
        checkpoint.save(tmp_path / "c", {"odd": leaf}, meta={})
    assert not (tmp_path / "c").exists()


class Killed(BaseException):
    """Stands for the end of the process."""


def die_before(monkeypatch: pytest.MonkeyPatch, operation: int) -> None:
    """Make the process die just before its n-th operation that changes the disk."""
    done = 0

    def dying(real):
        def call(*args, **kwargs):
            nonlocal done
            if done == operation:
                raise Killed
            done += 1
            return real(*args, **kwargs)

        return call

    for owner, name in [(os, "fsync"), (os, "replace"), (Path, "unlink"), (Path, "mkdir")]:
        monkeypatch.setattr(owner, name, dying(getattr(owner, name)))


def test_a_save_killed_at_any_moment_leaves_the_old_or_the_new(tmp_path):
    seen = []
    for operation in range(100):
        path = tmp_path / str(operation)
        checkpoint.save(path, example(1), meta={"step": 1})
        try:
            with pytest.MonkeyPatch.context() as patch:
                die_before(patch, operation)
                checkpoint.save(path, example(2), meta={"step": 2})
            break
        except Killed:
            step = checkpoint.read_meta(path)["step"]
            assert leaves(checkpoint.load(path, example())) == leaves(example(step))
            seen.append(step)
            checkpoint.save(path, example(3), meta={"step": 3})
            assert leaves(checkpoint.load(path, example())) == leaves(example(3))
            assert sorted(file.name for file in path.iterdir()) == [arrays_file(path).name, "manifest.json"]
    assert seen == sorted(seen) and set(seen) == {1, 2} and len(seen) >= 6  # both sides of the swap were met


def test_the_first_save_killed_at_any_moment_is_no_checkpoint_or_a_whole_one(tmp_path):
    for operation in range(100):
        path = tmp_path / str(operation)
        try:
            with pytest.MonkeyPatch.context() as patch:
                die_before(patch, operation)
                checkpoint.save(path, example(), meta={})
            break
        except Killed:
            if (path / "manifest.json").exists():
                assert leaves(checkpoint.load(path, example())) == leaves(example())
            else:
                one_sentence(path)
    assert operation >= 6  # pyright: ignore[reportPossiblyUnboundVariable]


def test_meta_that_is_not_json_leaves_the_old_checkpoint(tmp_path):
    path = saved(tmp_path)
    with pytest.raises(TypeError):
        checkpoint.save(path, example(9), meta={"bad": object()})
    assert leaves(checkpoint.load(path, example())) == leaves(example())


def test_a_reader_overtaken_by_a_save_gets_the_new_checkpoint(tmp_path, monkeypatch):
    path = saved(tmp_path)
    real, calls = disk.read, []

    def read(file: Path, most: int) -> bytes:
        data = real(file, most)
        calls.append(file.name)
        if len(calls) == 1:
            checkpoint.save(path, example(4), meta={})
        return data

    monkeypatch.setattr(disk, "read", read)
    assert leaves(checkpoint.load(path, example())) == leaves(example(4))


def test_missing_and_incomplete_directories(tmp_path):
    one_sentence(tmp_path / "nowhere", "does not exist")
    one_sentence(tmp_path, "manifest.json")
    (tmp_path / "file").write_text("x")
    one_sentence(tmp_path / "file", "not a directory")
    with pytest.raises(UserError, match="does not exist"):
        checkpoint.read_meta(tmp_path / "nowhere")
    with pytest.raises(UserError, match="cannot be written"):
        checkpoint.save(tmp_path / "file", example(), meta={})


def test_truncated_arrays(tmp_path):
    path = saved(tmp_path)
    arrays_file(path).write_bytes(arrays_file(path).read_bytes()[:-1])
    one_sentence(path, "bytes")


def test_missing_arrays(tmp_path):
    path = saved(tmp_path)
    arrays_file(path).unlink()
    one_sentence(path, "arrays-")


def test_every_flipped_bit_of_the_arrays_is_noticed(tmp_path):
    path = saved(tmp_path)
    data = arrays_file(path).read_bytes()
    for position in range(0, len(data), 7):
        flipped = bytearray(data)
        flipped[position] ^= 1 << (position % 8)
        arrays_file(path).write_bytes(flipped)
        one_sentence(path, "sha256")


@pytest.mark.parametrize("vouched_for", [False, True])
def test_a_pickle_in_place_of_the_arrays_is_not_executed(tmp_path, vouched_for):
    path, trap = saved(tmp_path), tmp_path / "executed"

    class Trap:
        def __reduce__(self):
            return (os.mkdir, (str(trap),))

    poison = pickle.dumps(Trap())
    arrays_file(path).write_bytes(poison)
    if vouched_for:  # a manifest forged to match
        sha256 = hashlib.sha256(poison).hexdigest()
        arrays_file(path).rename(path / f"arrays-{sha256[:16]}.safetensors")
        edit_manifest(path, sha256=sha256, bytes=len(poison))
    one_sentence(path, "safetensors")
    with pytest.raises(UserError):
        checkpoint.load_arrays(path)
    assert not trap.exists()
    pickle.loads(poison)
    assert trap.exists()  # it was a live one


@pytest.mark.parametrize("text", [b"", b"{", b"\x80\x04K\x01.", b"[" * 100_000])
def test_a_manifest_that_is_not_json(tmp_path, text):
    path = saved(tmp_path)
    (path / "manifest.json").write_bytes(text)
    one_sentence(path, "manifest.json", "not JSON")


@pytest.mark.parametrize("text", ["[]", "3", "{}"])
def test_a_manifest_of_something_else(tmp_path, text):
    path = saved(tmp_path)
    (path / "manifest.json").write_text(text)
    one_sentence(path, "manifest.json")


def test_another_format_version_is_named(tmp_path):
    path = saved(tmp_path)
    edit_manifest(path, format=99)
    one_sentence(path, "99", "format 1")


@pytest.mark.parametrize(
    "fields", [{"sha256": "../../../../tmp/x"}, {"sha256": 3}, {"bytes": "many"}, {"meta": 1}, {"arrays": []}, {"arrays": {"step": 1}}]
)
def test_a_manifest_with_a_broken_field(tmp_path, fields):
    path = saved(tmp_path)
    edit_manifest(path, **fields)
    one_sentence(path, "manifest.json")


@pytest.mark.parametrize("arrays", [{}, {"step": {"shape": [], "dtype": "int64"}}])
def test_a_manifest_that_describes_other_arrays(tmp_path, arrays):
    path = saved(tmp_path)
    edit_manifest(path, arrays=arrays)
    one_sentence(path, "manifest.json")


def test_wrong_shape_dtype_and_kind_are_named(tmp_path):
    path = saved(tmp_path)
    one_sentence(path, "pixels", "(4,)", "(5,)", like=example() | {"pixels": jnp.zeros(5, jnp.uint8)})
    one_sentence(path, "pixels", "uint8", "int32", like=example() | {"pixels": jnp.zeros(4, jnp.int32)})
    one_sentence(path, "key", "random key", "plain array", like=example() | {"key": jnp.zeros(2, jnp.uint32)})
    one_sentence(path, "key", "threefry2x32", "rbg", like=example() | {"key": jax.random.key(0, impl="rbg")})


def test_missing_and_extra_names_are_told(tmp_path):
    path = saved(tmp_path)
    one_sentence(path, "lacks new", like=example() | {"new": jnp.zeros(2)})
    less = {name: value for name, value in example().items() if name != "pixels"}
    one_sentence(path, "unexpected pixels", like=less)
    one_sentence(path, "lacks n0, n1, n2 and 2 more", like=example() | {f"n{i}": 0 for i in range(5)})
    one_sentence(path, "lacks other", "unexpected pixels", like=less | {"other": 0})


def test_the_manifest_says_what_is_documented(tmp_path):
    path = saved(tmp_path)
    manifest = json.loads((path / "manifest.json").read_text())
    assert set(manifest) == {"format", "psiphi", "meta", "sha256", "bytes", "arrays"}
    assert re.fullmatch(r"\d+\.\d+\.\d+", manifest["psiphi"])
    assert manifest["sha256"] == hashlib.sha256(arrays_file(path).read_bytes()).hexdigest()


# --- Large arrays, beside the others -------------------------------------------------------------------------------------


def pictures(changed: int | None = None) -> dict[str, Any]:
    """A ring of 40 small pictures for each of two environments, with one seed's axis; one of them may be another."""
    frames = np.random.default_rng(0).integers(0, 256, (1, 2, 40, 8, 8, 3)).astype(np.uint8)
    if changed is not None:
        frames[0, 1, changed] += 1
    return {"frames": jnp.asarray(frames), "net": jnp.arange(3.0)}


@pytest.fixture
def small_rows(monkeypatch):
    monkeypatch.setattr(checkpoint, "LARGE", 1_000)


def test_large_arrays_of_bytes_come_back_bit_for_bit_and_lie_beside_the_others(tmp_path, small_rows):
    path = tmp_path / "c"
    checkpoint.save(path, pictures(), meta={"step": 1})
    assert arrays_file(path).stat().st_size < 1_000 < sum(file.stat().st_size for file in path.glob("rows-*"))
    for like in (pictures(3), jax.eval_shape(pictures), jax.tree.map(np.asarray, pictures(3))):
        assert leaves(checkpoint.load(path, like)) == leaves(pictures())
    assert checkpoint.verified_meta(path) == {"step": 1}
    np.testing.assert_array_equal(checkpoint.load_arrays(path)["frames"], pictures()["frames"])


def test_only_rows_that_changed_are_written_again(tmp_path, small_rows):
    path = tmp_path / "c"
    checkpoint.save(path, pictures(), meta={})
    before = {file.name: file.stat().st_mtime_ns for file in path.glob("rows-*")}
    checkpoint.save(path, pictures(changed=7), meta={})
    after = {file.name: file.stat().st_mtime_ns for file in path.glob("rows-*")}
    assert len(before) == len(after) and len(before.items() & after.items()) == len(before) - 1
    assert leaves(checkpoint.load(path, pictures())) == leaves(pictures(changed=7))


def test_damaged_and_missing_rows_are_named(tmp_path, small_rows):
    path = tmp_path / "c"
    checkpoint.save(path, pictures(), meta={})
    file = sorted(path.glob("rows-*"))[0]
    data = file.read_bytes()
    file.write_bytes(bytes([data[0] ^ 1]) + data[1:])
    one_sentence(path, file.name, "damaged", like=pictures())
    with pytest.raises(UserError, match="damaged"):
        checkpoint.verified_meta(path)
    file.unlink()
    one_sentence(path, file.name, "lacks", like=pictures())
    checkpoint.save(path, pictures(), meta={})
    one_sentence(path, "frames has shape", "uint8", like={**pictures(), "frames": jnp.zeros((2, 3))})


@pytest.mark.parametrize(
    "entry",
    [
        {},
        {"shape": [4], "dtype": "uint8", "rows": ["../x"]},
        {"shape": [-4], "dtype": "uint8", "rows": []},
        {"shape": [4], "rows": []},
    ],
)
def test_a_manifest_with_a_broken_large_array(tmp_path, entry):
    path = saved(tmp_path)
    edit_manifest(path, large={"frames": entry})
    one_sentence(path, "manifest.json")
