"""Rewarded steps of the user's, from a file: what `psiphi adapt --from` reads, and what it refuses."""

import numpy as np
import pytest

from psiphi.demos.transitions import Transitions, read
from psiphi.errors import UserError

OBS, ACTION, REWARD = np.arange(6, dtype=np.float32).reshape(3, 2), np.array([0, 1, 0]), np.array([0.5, 1.0, -1.0])
TABLE = "obs_0,obs_1,action,reward\n0,1,0,0.5\n2,3,1,1\n4,5,0,-1\n"
WHOLE = "obs_0,obs_1,action,reward,next_obs_0,next_obs_1,terminated\n0,1,0,0.5,2,3,false\n2,3,1,1,4,5,true\n"


def write(path, what):
    if isinstance(what, dict) and path.suffix == ".npz":
        np.savez(path, **what)
    elif isinstance(what, dict):
        import pyarrow
        import pyarrow.parquet

        pyarrow.parquet.write_table(pyarrow.table(what), path)
    else:
        path.write_bytes(what.encode() if isinstance(what, str) else what)
    return path


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("steps.npz", {"obs": OBS, "action": ACTION, "reward": REWARD}),
        ("steps.csv", TABLE),
        ("steps.parquet", {"obs_0": OBS[:, 0], "obs_1": OBS[:, 1], "action": ACTION, "reward": REWARD}),
    ],
)
def test_steps_are_read_from_any_kind_of_file(tmp_path, name, what):
    obs, action, reward, *_ = read(write(tmp_path / name, what), (2,))
    np.testing.assert_array_equal(obs, OBS)
    assert action.tolist() == ACTION.tolist() and reward.tolist() == REWARD.tolist()


def test_where_a_step_led_is_read_if_it_is_there(tmp_path):
    steps = read(write(tmp_path / "steps.csv", WHOLE), (2,))
    assert isinstance(steps, Transitions)
    assert steps.next_obs.tolist() == [[2, 3], [4, 5]] and steps.terminated.tolist() == [False, True]


def test_columns_are_in_the_order_of_their_numbers_and_flat_pictures_get_their_shape(tmp_path):
    names = [f"obs_{i}" for i in (11, *range(11))]
    line = ",".join(["11", *map(str, range(11)), "2", "1"])
    obs, *_ = read(write(tmp_path / "steps.csv", f"{','.join(names)},action,reward\n{line}\n"), (3, 4))
    np.testing.assert_array_equal(obs[0], np.arange(12).reshape(3, 4))


NAMED = "who,obs_speed,x,action,reward,next_x,next_obs_speed\nann,1,0,go,0.5,2,3\nbob,3,2,stop,1,4,5\n"


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_columns_and_actions_are_found_by_the_models_names_in_any_order(tmp_path, kind):
    rows = [line.split(",") for line in NAMED.split()]
    words = {name: [row[i] for row in rows[1:]] for i, name in enumerate(rows[0])}
    table = {name: column if name in ("who", "action") else list(map(float, column)) for name, column in words.items()}
    path = write(tmp_path / f"steps.{kind}", NAMED if kind == "csv" else table)
    steps = read(path, (2,), ("x", "speed"), ("go", "left", "stop"))
    assert isinstance(steps, Transitions)
    assert steps.obs.tolist() == [[0, 1], [2, 3]] and steps.next_obs.tolist() == [[2, 3], [4, 5]] and steps.action.tolist() == [0, 2]
    with pytest.raises(UserError, match="has no column 'obs_y', expected the model's, 'x', 'y'"):
        read(path, (2,), ("x", "y"), ("go", "left", "stop"))
    with pytest.raises(UserError, match="has an action 'stop', expected one of 'go', 'left'"):
        read(path, (2,), ("x", "speed"), ("go", "left"))


FINE = {"obs": OBS, "action": ACTION, "reward": REWARD}


@pytest.mark.parametrize(
    ("name", "what", "sentence"),
    [
        ("steps.npz", {**FINE, "reward": REWARD[:2]}, "has 2 rows of reward, expected 3, as of action"),
        ("steps.npz", {**FINE, "obs": np.zeros((3, 5))}, r"has obs of 5 numbers, but the model reads \(2,\)"),
        ("steps.npz", {"obs": OBS, "action": ACTION}, "has no reward, expected obs .*, action and reward; it has obs, action"),
        ("steps.npz", {key: value[:0] for key, value in FINE.items()}, "has no step, expected at least one"),
        ("steps.npz", {**FINE, "action": np.array(0)}, "has action of type int64, expected numbers, one row of them for each step"),
        ("steps.npz", {**FINE, "reward": np.array(list("abc"))}, "has 'a' as reward, expected numbers"),
        ("steps.npz", {**FINE, "obs": np.array([{}, 1, 2], object)}, "is not an .npz file of arrays of numbers"),
        ("steps.npz", "hello", "is not an .npz file of arrays of numbers"),
        ("steps.npz", b"PK\x03\x04", "is not an .npz file of arrays of numbers"),
        ("steps.csv", "", "is not a table"),
        ("steps.csv", TABLE.splitlines()[0] + "\n", "is not a table"),
        ("steps.csv", TABLE + "1,2\n", "is not a table"),
        ("steps.csv", TABLE + "1,x,0,1\n", "has 'x' in the column 'obs_1', expected numbers"),
        ("steps.csv", TABLE + "1,2,,1\n", "has an empty field as action, expected numbers"),
        ("steps.csv", b"\xff\xfe\x00", "is not a table"),
        ("steps.parquet", "x", "cannot be read as a table"),
    ],
)
def test_what_does_not_fit_is_one_sentence(tmp_path, name, what, sentence):
    path = write(tmp_path / name, what)
    with pytest.raises(UserError, match=sentence) as raised:
        read(path, (2,))
    assert "\n" not in str(raised.value) and "pickle" not in str(raised.value)


def test_a_file_that_is_not_there(tmp_path):
    for name in ("steps.npz", "steps.csv", "steps.parquet"):
        with pytest.raises(UserError, match="does not exist, expected a file of rewarded steps"):
            read(tmp_path / name, (2,))
