"""Demonstrations on disk: what goes out comes back, whatever is wrong is said with its place, and no file runs or reaches anything."""

import csv
import io
import json
import os
import pickle
import struct
import tempfile
import warnings
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from psiphi import limits
from psiphi.demos import Columns, Demonstrations, DemonstrationsError, csv_file, files
from psiphi.errors import UserError

FORMATS = ["demos.csv", "demos.tsv", "demos.npz", "demos.parquet", "demos-v0"]
NEEDS = {"demos.parquet": ["pyarrow"], "demos-v0": ["minari", "h5py"]}


def need(name: str) -> None:
    for module in NEEDS.get(name, ()):
        pytest.importorskip(module)


def same(found: Demonstrations, expected: Demonstrations) -> None:
    assert (found.agents, found.num_actions, found.names) == (expected.agents, expected.num_actions, expected.names)
    assert found.obs.dtype == expected.obs.dtype and found.action.dtype == np.int32
    np.testing.assert_array_equal(found.obs, expected.obs)
    np.testing.assert_array_equal(found.action, expected.action)
    for name, one, other in zip(found.episodes._fields, found.episodes, expected.episodes, strict=True):
        np.testing.assert_array_equal(one, other, err_msg=name)
        assert one.dtype == other.dtype, name


# --- Round trips ---------------------------------------------------------------------------------------------------------

# In CSV a name that looks like a number is one, and spaces around a name are not part of it.
NAMES = st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc", "Zl", "Zp"]), min_size=1, max_size=6).filter(
    lambda name: name.strip() == name and not any(c.isdigit() for c in name)
)


@st.composite
def arguments(draw) -> dict:
    """Of `Demonstrations.from_lists`."""
    dtype = draw(st.sampled_from(["float32", "uint8", "int16", "bool", "float16", "float64"]))
    shape = draw(st.sampled_from([(1,), (3,), (2, 2), (2, 3, 2)]))
    lengths = draw(st.lists(st.integers(1, 4), min_size=1, max_size=6))
    ids = draw(st.sampled_from([st.integers(-5, 2**40), NAMES]))
    agents = [draw(st.sampled_from(draw(st.lists(ids, min_size=1, max_size=3)))) for _ in lengths]
    if len({type(agent) for agent in agents}) > 1:
        agents = [str(agent) for agent in agents]
    named = draw(st.sampled_from([st.integers(0, 2**40), NAMES]))
    episodes = draw(st.lists(named, min_size=len(lengths), max_size=len(lengths), unique=True))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    with_final = [draw(st.booleans()) for _ in lengths]
    big = 100 if dtype != "bool" else 1
    seen = [np.round(rng.normal(size=(n + f, *shape)) * big, 3) for n, f in zip(lengths, with_final, strict=True)]
    return {
        "observations": [(np.abs(x) > 0.5 if dtype == "bool" else np.clip(np.abs(x), 0, 255)).astype(dtype) for x in seen],
        "actions": [rng.integers(0, 5, n) for n in lengths],
        "agents": agents,
        "episodes": episodes,
        "terminated": rng.random(len(lengths)) < 0.5,
        "truncated": rng.random(len(lengths)) < 0.5,
        "num_actions": 7,
        "names": ["speed", "é y", "ß"] if shape == (3,) else (),
    }


@pytest.mark.parametrize("name", FORMATS)
@given(arguments=arguments())
@settings(max_examples=25)
def test_every_format_gives_back_what_it_was_given(name, arguments):
    need(name)
    if name == "demos-v0":  # Minari has no place for the names of an observation's entries
        arguments["names"] = ()
    demos = Demonstrations.from_lists(**arguments)
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / name
        demos.write(path)
        same(Demonstrations.read(path, Columns(dtype=demos.obs.dtype.name, num_actions=7)), demos)
        assert [entry.name for entry in Path(directory).iterdir()] == [name]  # no draft is left


def small(**options) -> Demonstrations:
    rng = np.random.default_rng(0)
    lengths = [5, 4, 6]
    seen = [rng.normal(size=(n + 1, 2)).astype(np.float32) for n in lengths]
    given: dict[str, Any] = {"terminated": [True, False, True], "truncated": [False, True, False]} | options
    return Demonstrations.from_lists(seen, [np.arange(n) % 3 for n in lengths], ["a", "b", "a"], **given)


@pytest.mark.parametrize("name", ["demos.npz", "demos.parquet", "demos-v0"])
def test_what_a_format_can_say_need_not_be_said_again(name, tmp_path):
    need(name)
    demos = Demonstrations.from_lists([np.zeros((3, 40, 40, 3), np.uint8)], [[0, 1]], ["a"], num_actions=9)
    demos.write(tmp_path / name)
    same(Demonstrations.read(tmp_path / name), demos)


def test_pictures_reach_minari_as_they_are_and_are_read_by_minari(tmp_path):
    minari = pytest.importorskip("minari")
    pytest.importorskip("h5py")
    rng = np.random.default_rng(0)
    seen = [rng.integers(0, 256, (n + 1, 40, 40, 3), dtype=np.uint8) for n in (3, 2)]
    Demonstrations.from_lists(seen, [[0, 1, 1], [1, 0]], ["a", "b"], terminated=[True, False], truncated=[False, True]).write(
        tmp_path / "pictures-v0"
    )
    dataset = minari.MinariDataset(tmp_path / "pictures-v0" / "data")
    assert dataset.id == "pictures-v0" and dataset.total_episodes == 2 and dataset.total_steps == 5
    for episode, expected in zip(dataset.iterate_episodes(), seen, strict=True):
        np.testing.assert_array_equal(episode.observations, expected)
        assert np.isnan(episode.rewards).all()
    assert [data["agent"] for data in dataset.storage.get_episode_metadata([0, 1])] == ["a", "b"]
    assert dataset[0].terminations.tolist() == [False, False, True] and dataset[1].truncations.tolist() == [False, True]


def foreign(tmp_path, **options):
    """A dataset that Minari made of its own accord: no agent in it, rewards, JPEG unless said otherwise."""
    minari = pytest.importorskip("minari")
    pytest.importorskip("h5py")
    from gymnasium.spaces import Box, Discrete

    space = options.pop("space", Box(0, 255, (32, 32, 3), np.uint8))
    observations = options.pop("observations", np.full((4, 32, 32, 3), 77, np.uint8))
    path = tmp_path / "foreign-v3"
    path.mkdir()
    storage = minari.dataset.minari_storage.MinariStorage.new(path / "data", space, options.pop("actions", Discrete(4, start=2)), **options)
    storage.update_metadata({"dataset_id": "foreign-v3", "minari_version": minari.__version__})
    storage.update_episodes(
        [
            minari.data_collector.EpisodeBuffer(
                observations=observations,
                actions=np.array([2, 5, 3]),
                rewards=np.ones(3),
                terminations=np.array([False, False, True]),
                truncations=np.zeros(3, bool),
            )
        ]
    )
    return path


def test_a_foreign_minari_dataset_is_read(tmp_path):
    path = foreign(tmp_path)
    metadata = path / "data" / "metadata.json"
    # An environment that cannot be made, and had better not be.
    metadata.write_text(json.dumps(json.loads(metadata.read_text()) | {"env_spec": '{"id": "os:system", "entry_point": "os:system"}'}))
    demos = Demonstrations.read(path)
    assert demos.agents == ("foreign-v3",) and demos.action.tolist() == [0, 3, 1] and demos.num_actions == 4
    assert demos.obs.shape == (3, 32, 32, 3) and abs(demos.obs.astype(int) - 77).max() <= 2  # as JPEG has it
    assert demos.episodes.terminated.tolist() == [True] and demos.episodes.has_final.all()
    assert "'rewards' is left out: psiphi learns without rewards" in demos.notes[0] and "who acts" in demos.notes[1]


def test_one_part_of_dictionaries_is_chosen_by_name(tmp_path):
    from gymnasium.spaces import Box, Dict

    space = Dict(image=Box(0, 9, (3, 3), np.uint8), place=Box(0, 9, (2,), np.float32))
    parts = {"image": np.ones((4, 3, 3), np.uint8), "place": np.arange(8, dtype=np.float32).reshape(4, 2)}
    path = foreign(tmp_path, space=space, observations=parts)
    with pytest.raises(UserError, match="observations have the parts 'image', 'place'; --obs chooses one"):
        Demonstrations.read(path)
    assert Demonstrations.read(path, Columns(obs="place")).obs.tolist() == [[0, 1], [2, 3], [4, 5]]


def test_continuous_actions_are_refused(tmp_path):
    from gymnasium.spaces import Box

    with pytest.raises(
        UserError, match="continuous, expected one whole number from 0, which psiphi demos discretise .*foreign-v3 OUT --action"
    ):
        Demonstrations.read(foreign(tmp_path, actions=Box(0, 9, (), np.float32)))


# --- Tables of other people ----------------------------------------------------------------------------------------------


def table(path: Path, rows: list[dict], delimiter: str = ",") -> Path:
    """A CSV file, or a Parquet file by pandas' own way of writing missing numbers (as NaN)."""
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(dict.fromkeys(name for row in rows for name in row)), delimiter=delimiter)
        writer.writeheader()
        writer.writerows(rows)
    return path


def test_columns_of_other_names_are_mapped_and_what_is_not_used_is_said(tmp_path):
    rows = [
        {"frame": 10 * t, "car": car, "trip": 4, "x": t + 0.5, "vx": car, "turn": t % 2, "done": t == 2, "reward": 1.0, "colour": "red"}
        for t in range(3)  # interleaved, as a simulator logs
        for car in (12, 7)
    ]
    path = table(tmp_path / "log.csv", rows, delimiter=";")
    demos = Demonstrations.read(path, Columns(agent="car", episode="trip", t="frame", obs="x,vx", action="turn", terminated="done"))
    assert demos.agents == (12, 7) and demos.names == ("x", "vx") and demos.obs.dtype == np.float32
    assert demos.obs.tolist() == [[0.5, 12], [1.5, 12], [2.5, 12], [0.5, 7], [1.5, 7], [2.5, 7]]
    assert demos.action.tolist() == [0, 1, 0] * 2 and demos.episodes.terminated.all()
    assert demos.notes == (
        f"{path}: 'reward' is left out: psiphi learns without rewards.",
        f"{path}: 'colour' is not used.",
    )


@pytest.mark.parametrize("delimiter", [";", "\t"])
def test_decimal_commas_are_read_where_commas_separate_nothing(tmp_path, delimiter):
    rows = [{"agent": "1,5", "episode": e, "speed": f"-{e},{t}5", "gap": t, "action": "wait"} for e in range(2) for t in range(3)]
    path = table(tmp_path / "log.csv", rows, delimiter=delimiter)
    demos = Demonstrations.read(path)
    assert demos.agents == ("1,5",) and demos.action_names == ("wait",)
    np.testing.assert_array_equal(demos.obs, np.array([[float(f"-{e}.{t}5"), t] for e in range(2) for t in range(3)], np.float32))
    assert demos.notes[-2:] == (f"{path}: numbers of 'speed' are read with a decimal comma.", demos.notes[-1])


def test_what_may_be_thousands_is_no_number(tmp_path):
    rows = [{"agent": 0, "episode": 0, "obs_x": x, "action": 0} for x in ("1,234", "2,500")]
    with pytest.raises(UserError, match="'obs_x' is '1,234', expected a number"):
        Demonstrations.read(table(tmp_path / "log.csv", rows, delimiter=";"))


def test_patterns_choose_columns_and_numbers_put_them_in_order(tmp_path):
    row = (
        {"agent": "a", "episode": 0, "action": 1}
        | {f"obs_{i}": float(i) for i in (0, 10, 11, *range(1, 10))}
        | {"lidar_b": 3.0, "lidar_a": 4.0}
    )
    path = table(tmp_path / "log.csv", [row])
    assert Demonstrations.read(path).obs.tolist() == [[float(i) for i in range(12)]]
    assert Demonstrations.read(path, Columns(obs="lidar_*")).names == ("lidar_b", "lidar_a")
    assert Demonstrations.read(path, Columns(obs="obs_3,lidar_a")).obs.tolist() == [[3.0, 4.0]]


def test_without_flags_the_end_means_what_is_asked_for(tmp_path):
    path = table(tmp_path / "log.csv", [{"agent": "a", "episode": 0, "obs": t, "action": 0} for t in range(3)])
    assert Demonstrations.read(path).episodes.truncated.all() and not Demonstrations.read(path).episodes.terminated.any()
    assert Demonstrations.read(path, Columns(ends="terminated")).episodes.terminated.all()


def test_a_last_row_without_an_action_is_the_observation_after_the_last_step(tmp_path):
    rows = [{"agent": "a", "episode": 0, "obs": t, "action": "" if t == 3 else 1} for t in range(4)]
    demos = Demonstrations.read(table(tmp_path / "log.csv", rows))
    assert len(demos) == 3 and demos.episodes.final_obs.tolist() == [[3.0]] and demos.to_demos().count.tolist() == [3]


def test_pandas_tables_are_read(tmp_path):
    """As pandas writes them: double precision, 64-bit integers, missing integers as NaN, text and categories."""
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    frame = pandas.DataFrame(
        {
            "agent": pandas.Categorical(["x", "x", "y", "y"]),
            "episode": [0, 0, 0, 0],
            "obs_speed": [0.1, 0.2, 0.3, 0.4],
            "obs_lane": [1, 2, 3, 1],
            "action": [1.0, np.nan, 0.0, 1.0],
            "terminated": [False, False, False, True],
        }
    )
    frame.to_parquet(tmp_path / "log.parquet")
    demos = Demonstrations.read(tmp_path / "log.parquet")
    assert demos.agents == ("x", "y") and demos.obs.dtype == np.float32 and demos.names == ("speed", "lane")
    np.testing.assert_array_equal(demos.obs, np.array([[0.1, 1], [0.3, 3], [0.4, 1]], np.float32))
    frame["agent"] = [3.0, 3.0, 5.0, 5.0]
    frame.to_parquet(tmp_path / "log.parquet")
    assert Demonstrations.read(tmp_path / "log.parquet").agents == (3, 5)


def test_parquet_is_read_batch_by_batch(tmp_path):
    """Episodes and dictionaries of names that go over the borders of batches and row groups."""
    pytest.importorskip("pyarrow")
    from psiphi.demos import parquet_file

    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 40, 200)
    seen = [rng.normal(size=(n, 3)) for n in lengths]
    demos = Demonstrations.from_lists(seen, [rng.integers(0, 4, n) for n in lengths], [f"agent {i % 7}" for i in range(200)])
    demos.write(tmp_path / "log.parquet")
    before, parquet_file.BATCH = parquet_file.BATCH, 97
    try:
        same(Demonstrations.read(tmp_path / "log.parquet", Columns(dtype="float64")), demos)
    finally:
        parquet_file.BATCH = before


# --- What is wrong, and where --------------------------------------------------------------------------------------------


def rows() -> list[dict]:
    """Two agents, two episodes each, five steps."""
    return [
        {"agent": agent, "episode": episode, "t": t, "obs_x": 0.1 * t, "obs_y": -t, "action": t % 3, "terminated": t == 4}
        for agent in ("ann", "bob")
        for episode in (0, 1)
        for t in range(5)
    ]


def change(place: int, **cells):
    def apply(data: list[dict]) -> list[dict]:
        return [row | cells if i == place else row for i, row in enumerate(data)]

    return apply


def drop(*places: int):
    return lambda data: [row for i, row in enumerate(data) if i not in places]


BAD = {
    # name: (what is done to the table, agent, episode, step, kind, text)
    "a gap in time": (drop(7), "ann", 1, 3, "gap in time", "the time goes from 1 to 3, but a step usually takes 1"),
    "a time twice": (change(17, t=1), "bob", 1, 1, "repeated time", "the time occurs twice, in rows 16 and 17"),
    "no time": (change(17, t=""), "bob", 1, 2, "missing time", "the time is missing in row 17"),
    "no agent": (change(3, agent=""), None, 0, 3, "missing agent", "the agent is missing in row 3"),
    "no episode": (change(12, episode=""), "bob", None, 2, "missing episode", "the episode is missing in row 12"),
    "half an action": (change(6, action=1.5), "ann", 1, 1, "action that is no integer", "the action is 1.5, expected an integer"),
    "an endless action": (change(6, action="inf"), "ann", 1, 1, "action that is no integer", "the action is inf"),
    "a negative action": (change(6, action=-1), "ann", 1, 1, "action out of range", "the action is -1, expected 0 to 65535"),
    "a huge action": (change(6, action=3e9), "ann", 1, 1, "action out of range", "the action is 3000000000"),
    "an action in words": (change(6, action="left"), "ann", 1, 1, "not a number", "the action is 'left', expected a number"),
    "no action": (change(6, action=""), "ann", 1, 1, "missing action", "the action is missing in row 6"),
    "NaN": (change(11, obs_y="nan"), "bob", 0, 1, "NaN or infinity", "'y' is nan, expected a finite number"),
    "infinity": (change(11, obs_x="-inf"), "bob", 0, 1, "NaN or infinity", "'x' is -inf, expected a finite number"),
    "an observation in words": (change(11, obs_x="fast"), "bob", 0, 1, "not a number", "'obs_x' is 'fast', expected a number"),
    "no observation": (change(11, obs_x=""), "bob", 0, 1, "not a number", "'obs_x' is missing, expected a number"),
    "a doubtful flag": (change(11, terminated="perhaps"), "bob", 0, 1, "neither true nor false", "terminated is 'perhaps'"),
    "an early end": (change(11, terminated=True), "bob", 0, 1, "steps after the end", "3 more steps follow, expected none"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_table_is_refused_with_the_place(name, tmp_path):
    damage, agent, episode, step, kind, text = BAD[name]
    path = table(tmp_path / "log.csv", damage(rows()))
    with pytest.raises(DemonstrationsError) as caught:
        Demonstrations.read(path)
    problem = caught.value.problems[0]
    assert (problem.severity, problem.kind, problem.file) == ("error", kind, str(path))
    assert (problem.agent, problem.episode, problem.step) == (agent, episode, step) and text in problem.text
    sentence = str(caught.value)
    assert str(path) in sentence and all(
        f"{what} {value!r}" in sentence for what, value in (("agent", agent), ("episode", episode)) if value
    )


def test_an_action_outside_of_a_given_range(tmp_path):
    path = table(tmp_path / "log.csv", rows())
    with pytest.raises(DemonstrationsError, match="agent 'ann', episode 0, step 2: the action is 2, expected 0 to 1"):
        Demonstrations.read(path, Columns(num_actions=2))


def test_a_row_of_another_length(tmp_path):
    path = table(tmp_path / "log.csv", rows())
    lines = path.read_text().splitlines()
    lines[8] = lines[8].rsplit(",", 1)[0]
    path.write_text("\n".join(lines))
    with pytest.raises(DemonstrationsError, match="agent 'ann', episode 1, step 2: the row has 6 fields, but the header has 7"):
        Demonstrations.read(path)


def test_all_problems_are_found_in_one_pass_and_counted_by_episode(tmp_path):
    data = rows()
    for damage in (change(2, action=0.5), change(3, action=0.5), change(6, obs_x="nan"), change(12, agent=""), drop(17)):
        data = damage(data)
    with pytest.raises(DemonstrationsError) as caught:
        Demonstrations.read(table(tmp_path / "log.csv", data))
    found = {(problem.kind, problem.agent, problem.episode, problem.step, problem.count) for problem in caught.value.problems}
    assert found == {
        ("missing agent", None, 0, 2, 1),
        ("gap in time", "bob", 0, 3, 1),  # what the row without an agent left behind
        ("gap in time", "bob", 1, 3, 1),
        ("action that is no integer", "ann", 0, 2, 2),
        ("NaN or infinity", "ann", 1, 1, 1),
    }
    assert "This is the first of 5 errors" in str(caught.value)
    assert "(and at 1 further step of the episode)" in str(next(p for p in caught.value.problems if p.count == 2))


def test_a_thousand_bad_episodes_do_not_make_a_thousand_sentences(tmp_path):
    data = [{"agent": "a", "episode": i, "obs": float(i), "action": -1} for i in range(1000)]
    with pytest.raises(DemonstrationsError) as caught:
        Demonstrations.read(table(tmp_path / "log.csv", data))
    assert len(caught.value.problems) == 101 and "900 further episodes" in caught.value.problems[-1].text


@pytest.mark.parametrize(
    ("content", "columns", "said"),
    [
        (b"", {}, "has no column 'agent' for the agent; its columns are nothing"),
        (b"agent,episode,obs\n", {}, "has no column 'action' for the action; its columns are 'agent', 'episode', 'obs'; --action names it"),
        (b"agent,episode,x,action\n", {}, "has no column of observations called obs or obs_...; it has 'x'; --obs says which"),
        (b"agent,episode,obs,action\n", {"obs": "x,obs"}, "has no column that 'x' could mean"),
        (b"agent,episode,obs,action\n", {"t": "frame"}, "has no column 'frame' for t"),
        (b"agent,episode,obs,obs,action\n", {}, "has two columns called 'obs'"),
        (b"agent,episode,obs,action\n", {}, "there is no step in it"),
        (b"agent,episode,obs,action\n\xff\xfe,0,1,1\n", {}, "is not text in UTF-8"),
        (b'agent,episode,obs,action\n"a,0,1,1\n' + b"x" * 200_000, {}, "is not a table in CSV"),
        (b"agent,episode,obs,action\na,0,300,1\n", {"dtype": "uint8"}, "'obs' is 300.0, expected a number of type uint8"),
        (b"agent,episode,obs,action\na,0,0.5,1\n", {"dtype": "int16"}, "'obs' is 0.5, expected a number of type int16"),
    ],
)
def test_files_that_are_no_such_table(content, columns, said, tmp_path):
    path = tmp_path / "log.csv"
    path.write_bytes(content)
    with warnings.catch_warnings(), pytest.raises(UserError) as caught:
        warnings.simplefilter("error")
        Demonstrations.read(path, Columns(**columns))
    assert str(path) in str(caught.value) and said in str(caught.value)


def test_settings_that_make_no_sense():
    with pytest.raises(UserError, match="num_actions is 0"):
        Columns(num_actions=0)
    with pytest.raises(UserError, match="dtype is 'object'"):
        Columns(dtype="object")


@pytest.mark.parametrize("damage", ["NaN", "a gap in time", "half an action", "a negative action", "no action", "an early end", "no agent"])
def test_parquet_is_checked_as_csv_is(damage, tmp_path):
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    bad, agent, episode, step, kind, _ = BAD[damage]
    data = bad(rows())
    columns = {name: [row[name] for row in data] for name in data[0]}
    columns["action"] = [None if value == "" else float(value) for value in columns["action"]]
    columns["obs_y"] = [float(value) for value in columns["obs_y"]]
    columns["agent"] = [value or None for value in columns["agent"]]
    parquet.write_table(pyarrow.table(columns), tmp_path / "log.parquet")
    with pytest.raises(DemonstrationsError) as caught:
        Demonstrations.read(tmp_path / "log.parquet")
    problem = caught.value.problems[0]
    assert (problem.kind, problem.agent, problem.episode, problem.step) == (kind, agent, episode, step)


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"obs": [[1.0, 2.0], [3.0], [4.0, 5.0]]}, "step 1: the observation has 1 entries, expected 2 as in the first row"),
        ({"obs": [[1.0, 2.0], None, [4.0, 5.0]]}, "step 1: the observation has 0 entries"),
        ({"obs": [[1, 2], [3, None], [4, 5]]}, "step 1: an entry of the observation is missing"),
        ({"obs": [1.0, None, 3.0]}, "step 1: the observation's 'obs' is missing"),
        ({"obs": ["x", "y", "z"]}, "the column 'obs' holds string, expected numbers"),
        ({"obs": [1.0, 2.0, 3.0], "action": [b"l", b"r", b"l"]}, "the column 'action' holds binary, expected numbers"),
        ({"obs": [1.0, 2.0, 3.0], "agent": [0.5, 1.0, 1.0]}, "the agent of row 0 is 0.5, expected a name or a whole number"),
        ({"obs": [1.0, 2.0, 3.0], "agent": [True, True, True]}, "the agent is of type bool, expected names or whole numbers"),
        ({"obs": [1.0, 2.0, 3.0], "terminated": [0, 2, 1]}, "step 1: terminated is neither true nor false"),
        ({"obs": [[1.0]] * 3, "obs_x": [1.0, 2.0, 3.0]}, "'obs' is a column of lists, so it has to be the only one"),
    ],
)
def test_parquet_columns_that_cannot_be_used(columns, said, tmp_path):
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    data = {"agent": ["a"] * 3, "episode": [0] * 3, "action": [0, 1, 0]} | columns
    parquet.write_table(pyarrow.table(data), tmp_path / "log.parquet")
    with pytest.raises(UserError) as caught:
        Demonstrations.read(tmp_path / "log.parquet")
    assert said in str(caught.value)


def npz(path: Path, **changes) -> Path:
    arrays = {"agent": np.array(["a", "a", "b"]), "episode": [0, 0, 0], "obs": np.zeros((3, 2), np.float32), "action": [0, 1, 0]} | changes
    np.savez(path, **{name: array for name, array in arrays.items() if array is not None})
    return path


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"agent": None}, "has no array 'agent' for the agent; its arrays are 'episode', 'obs', 'action'"),
        ({"obs": np.zeros(())}, r"'obs' is float64[], expected numbers with the axes [row, ...]"),
        ({"obs": np.array([["x"]] * 3)}, "expected numbers"),
        ({"action": [0, 1]}, "'action' has shape (2,), expected (3,)"),
        ({"action": [b"l", b"r", b"l"]}, "'action' is of type |S1, expected numbers"),
        ({"agent": np.array([1j, 1j, 1j])}, "'agent' is of type complex128"),
        ({"terminated": [0, 5, 0]}, "'terminated' holds other numbers than 0 and 1"),
        ({"num_actions": [3, 3]}, "'num_actions' is not a positive integer"),
        ({"agent": [0, 1, 2], "agent_names": '["a", "b"]'}, "'agent' does not fit 'agent_names'"),
        ({"agent": [0, 1, 1], "agent_names": '["a", 2]'}, "'agent_names' is not a list in JSON"),
        ({"final_obs": np.zeros((1, 9)), "final_row": [1]}, "'final_obs' and 'final_row' do not fit"),
        ({"final_obs": np.zeros((1, 2)), "final_row": [7]}, "'final_row' names rows that are not there"),
        (
            {"final_obs": np.full((1, 2), np.nan, np.float32), "final_row": [1]},
            "agent 'a', episode 0, step 1: the observation after this step",
        ),
    ],
)
def test_npz_files_that_cannot_be_used(changes, said, tmp_path):
    with pytest.raises(UserError) as caught:
        Demonstrations.read(npz(tmp_path / "log.npz", **changes))
    assert said in str(caught.value)


def test_npz_made_by_hand_is_read(tmp_path):
    demos = Demonstrations.read(npz(tmp_path / "log.npz", reward=np.ones(3)))
    assert demos.agents == ("a", "b") and "'reward' is left out" in demos.notes[0]


# --- Hostile files -------------------------------------------------------------------------------------------------------


class Bomb:
    def __init__(self, mark: str):
        self.mark = mark

    def __reduce__(self):
        return os.mkdir, (self.mark,)


def test_a_pickle_in_npz_is_refused_and_never_run(tmp_path):
    mark = tmp_path / "executed"
    trap = np.empty(3, object)
    trap[:] = [Bomb(str(mark))] * 3
    for role in ("agent", "obs", "action"):
        path = npz(tmp_path / "log.npz", **{role: trap})
        with pytest.raises(UserError, match=f"'{role}' holds pickled Python objects, which could run anything and are never loaded"):
            Demonstrations.read(path)
    (tmp_path / "log.npz").write_bytes(pickle.dumps(Bomb(str(mark))))
    with pytest.raises(UserError, match="is not an npz file"):
        Demonstrations.read(tmp_path / "log.npz")
    assert not mark.exists()


def test_an_array_that_claims_more_than_is_there_is_refused(tmp_path):
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f4", "fortran_order": False, "shape": (2**40, 2**10)})
    path = npz(tmp_path / "log.npz")
    with zipfile.ZipFile(path) as old:
        members = {name: old.read(name) for name in old.namelist()}
    with zipfile.ZipFile(path, "w") as new:
        for name, data in (members | {"obs.npy": header.getvalue() + b"\0" * 64}).items():
            new.writestr(name, data)
    with pytest.raises(UserError, match="'obs' does not hold as many numbers as it says"):
        Demonstrations.read(path)


def test_a_zip_bomb_is_refused_before_memory_is_asked_for(tmp_path, monkeypatch):
    path = tmp_path / "log.npz"
    arrays = {"agent": np.zeros(10**6, int), "episode": np.zeros(10**6, int), "obs": np.zeros((10**6, 8)), "action": np.zeros(10**6, int)}
    np.savez_compressed(path, **arrays)
    assert path.stat().st_size < 200_000
    with pytest.raises(UserError, match="claims to hold 0.1 GiB, expected at most 0.1 GiB in a file of its size"):
        Demonstrations.read(path)
    np.savez(path, **arrays)
    monkeypatch.setattr(limits, "free_memory", lambda: 2**22)
    with pytest.raises(UserError, match="asks for 0.1 GiB of memory, expected at most 0.0 GiB, 80% of what is free"):
        Demonstrations.read(path)


def test_members_that_point_elsewhere_are_not_extracted(tmp_path):
    path = npz(tmp_path / "log.npz")
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("../outside.npy", b"x")
        archive.writestr("/absolute.npy", b"x")
    inside = set(tmp_path.rglob("*"))
    assert len(Demonstrations.read(path)) == 3
    assert set(tmp_path.rglob("*")) == inside and not (tmp_path.parent / "outside.npy").exists()


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 not really", struct.pack("<I", 7) * 40])
@pytest.mark.parametrize("name", ["log.npz", "log.parquet", "log.hdf5"])
def test_damaged_files_are_named(content, name, tmp_path):
    need("demos.parquet" if name.endswith("parquet") else "demos-v0" if name.endswith("hdf5") else "")
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=str(tmp_path / name)):
        Demonstrations.read(tmp_path / name)


def dataset(tmp_path) -> Path:
    need("demos-v0")
    small().write(tmp_path / "log-v0")
    return tmp_path / "log-v0"


@pytest.mark.parametrize("where", ["episode_1", "episode_1/observations", "episode_1/actions", "episode_1/terminations"])
@pytest.mark.parametrize("kind", ["external", "soft", "dangling"])
def test_links_in_hdf5_are_refused(where, kind, tmp_path):
    path = dataset(tmp_path)
    h5py = pytest.importorskip("h5py")
    other = tmp_path / "secret.hdf5"
    with h5py.File(other, "w") as file:
        file["numbers"] = np.full((5, 2), 42.0)
    links = {
        "external": h5py.ExternalLink(str(other), "/numbers"),
        "soft": h5py.SoftLink(f"/{where.replace('episode_1', 'episode_0')}"),
        "dangling": h5py.ExternalLink(str(tmp_path / "nowhere.hdf5"), "/numbers"),
    }
    with h5py.File(path / "data" / "main_data.hdf5", "a") as file:
        del file[where]
        file[where] = links[kind]
    with pytest.raises(UserError, match=f"/{where} is a link to .*; links are never followed"):
        Demonstrations.read(path)


def test_hdf5_storage_in_another_file_is_refused(tmp_path):
    path = dataset(tmp_path)
    h5py = pytest.importorskip("h5py")
    secret = tmp_path / "secret.bin"
    secret.write_bytes(b"\1" * 4096)
    main = path / "data" / "main_data.hdf5"
    with h5py.File(main, "a") as file:
        del file["episode_1/observations"]
        file["episode_1"].create_dataset("observations", (5, 2), "f4", external=[(str(secret), 0, 40)])
    with pytest.raises(UserError, match="/episode_1/observations keeps its numbers in another file"):
        Demonstrations.read(path)
    with h5py.File(main, "a") as file:
        del file["episode_1/observations"]
        layout = h5py.VirtualLayout((5, 2), "f4")
        layout[:] = h5py.VirtualSource(str(tmp_path / "other.hdf5"), "x", (5, 2), "f4")
        file["episode_1"].create_virtual_dataset("observations", layout)
    with pytest.raises(UserError, match="/episode_1/observations keeps its numbers in another file"):
        Demonstrations.read(path)


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda group: group.attrs.__delitem__("agent"), "episode 0, step 0: the agent is missing in row 6"),
        (lambda group: group.attrs.__setitem__("agent", 3), "the agent ids are of the kinds int, str"),
        (lambda group: group.__delitem__("actions"), "/episode_1 has no 'actions'"),
        (lambda group: replace(group, "actions", [0, 1, 2.5, 1]), "agent 'b', episode 0, step 2: the action is 2.5"),
        (lambda group: replace(group, "observations", np.zeros((5, 7))), "agent 'b', episode 0, step 0: an observation is of shape (7,)"),
        (lambda group: replace(group, "observations", np.zeros((9, 2))), "agent 'b', episode 0, step 0: there are 9 observations and 4"),
        (
            lambda group: replace(group, "observations", np.full((5, 2), np.inf)),
            "agent 'b', episode 0, step 0: the observation's '0' is inf",
        ),
        (lambda group: replace(group, "actions", np.zeros((4, 2))), "agent 'b', episode 0, step 0: the actions have shape (4, 2)"),
    ],
)
def test_a_bad_episode_in_hdf5_is_named(damage, said, tmp_path):
    path = dataset(tmp_path)
    h5py = pytest.importorskip("h5py")
    with h5py.File(path / "data" / "main_data.hdf5", "a") as file:
        damage(file["episode_1"])
    with pytest.raises(UserError) as caught:
        Demonstrations.read(path)
    assert said in str(caught.value)


def replace(group, name, values) -> None:
    del group[name]
    group[name] = values


@pytest.mark.parametrize("metadata", ["[]", "{", '{"action_space": "{"}', '{"action_space": 3}'])
def test_damaged_metadata_is_named(metadata, tmp_path):
    path = dataset(tmp_path)
    (path / "data" / "metadata.json").write_text(metadata)
    with pytest.raises(UserError, match=r"log-v0 is damaged: .*metadata.json"):
        Demonstrations.read(path)


# --- Whole files or none -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FORMATS)
def test_an_interrupted_write_leaves_the_old_file(name, tmp_path, monkeypatch):
    need(name)
    old, new = small(), small(num_actions=8)
    old.write(tmp_path / name)
    stop = {
        "demos.npz": (np, "savez"),
        "demos-v0": (Demonstrations, "trajectory"),
    }.get(name, (files, "_block"))

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(*stop, interrupted)
        new.write(tmp_path / name)
    assert [entry.name for entry in tmp_path.iterdir()] == [name]
    same(Demonstrations.read(tmp_path / name, Columns(num_actions=3)), old)
    new.write(tmp_path / name)
    assert Demonstrations.read(tmp_path / name).num_actions == (3 if name.endswith("sv") else 8)


def test_a_minari_dataset_may_have_a_relative_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    demos = Demonstrations.from_lists([np.zeros((3, 2), np.float32)], [[0, 1]], ["a"])
    demos.write("drivers-v0")
    assert Demonstrations.read("drivers-v0").agents == ("a",)


def test_minari_does_not_replace_what_is_no_dataset(tmp_path):
    need("demos-v0")
    (tmp_path / "photos-v0").mkdir()
    (tmp_path / "photos-v0" / "holiday.txt").write_text("dear")
    with pytest.raises(UserError, match="photos-v0 is there and is no Minari dataset, so it is not replaced"):
        small().write(tmp_path / "photos-v0")
    assert (tmp_path / "photos-v0" / "holiday.txt").read_text() == "dear"


@pytest.mark.parametrize(("name", "said"), [("demos.xlsx", "'demos.xlsx' says no format"), ("none.csv", "none.csv does not exist")])
def test_paths_that_say_nothing(name, said, tmp_path):
    with pytest.raises(UserError, match=said):
        Demonstrations.read(tmp_path / name) if "none" in name else small().write(tmp_path / name)


@pytest.mark.parametrize(("name", "package"), [("demos.parquet", "pyarrow"), ("demos-v0", "minari")])
def test_a_missing_extra_is_one_sentence(name, package, tmp_path, monkeypatch):
    def absent(module):
        raise ImportError(module)

    whole = files.importlib.import_module
    optional = ("pyarrow", "minari", "h5py")
    monkeypatch.setattr(files.importlib, "import_module", lambda m, *rest: absent(m) if m.startswith(optional) else whole(m, *rest))
    with pytest.raises(UserError, match=rf"needs {package}, which is not installed; pip install 'psiphi\[data\]' brings it"):
        small().write(tmp_path / name)


def test_csv_reads_more_lines_than_it_reads_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(csv_file, "LINES", 3)
    small().write(tmp_path / "log.csv")
    same(Demonstrations.read(tmp_path / "log.csv"), small())


def test_a_parquet_file_with_another_number_of_rows_than_it_says_is_refused(tmp_path, monkeypatch):
    """Arrays have their full size from the start: what is not there would be whatever was in memory."""
    import pyarrow.parquet

    small().write(tmp_path / "log.parquet")
    real = pyarrow.parquet.ParquetFile.iter_batches
    monkeypatch.setattr(pyarrow.parquet.ParquetFile, "iter_batches", lambda *given, **named: list(real(*given, **named))[:0])
    with pytest.raises(UserError, match="is damaged: it says that it has .* rows, but 0 were found"):
        Demonstrations.read(tmp_path / "log.parquet")


# --- Actions that are names ----------------------------------------------------------------------------------------------

WORDS = {"robot": ["a", "a", "a", "b", "b"], "action": ["left", "stay", "", "right", "left"], "loaded": [True, False, True, True, False]}
"""A table of two agents; the third row is only an observation."""


def worded(tmp_path: Path, name: str) -> Path:
    path = tmp_path / name
    columns: dict[str, Any] = {
        "agent": WORDS["robot"],
        "episode": [0, 0, 0, 0, 0],
        "obs_x": [1.0, 2.0, 3.0, 4.0, 5.0],
        "loaded": WORDS["loaded"],
    }
    columns["action"] = WORDS["action"]
    if path.suffix == ".csv":
        lines = [",".join(columns), *(",".join(map(str, row)) for row in zip(*columns.values(), strict=True))]
        path.write_text("\n".join(lines))
    elif path.suffix == ".npz":
        np.savez(path, allow_pickle=False, **{key: np.array(column) for key, column in columns.items()})
    else:
        pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        columns["action"] = [name or None for name in columns["action"]]
        parquet.write_table(pyarrow.table(columns), path)
    return path


@pytest.mark.parametrize("name", ["words.csv", "words.npz", "words.parquet"])
def test_actions_may_be_names(tmp_path, name):
    demos = Demonstrations.read(worded(tmp_path, name), Columns(obs="obs_x,loaded"))
    assert demos.action_names == ("left", "right", "stay") and demos.num_actions == 3 and not demos.numbered
    assert demos.action.tolist() == [0, 2, 1, 0] and demos.episodes.has_final.tolist() == [True, False]
    assert demos.obs.tolist() == [[1, 1], [2, 0], [4, 1], [5, 0]]
    assert any("'left' 0, 'right' 1, 'stay' 2" in note for note in demos.notes)


@pytest.mark.parametrize("name", ["again.csv", "again.npz", "again.parquet"])
def test_what_was_a_name_is_known_to_have_been_one(tmp_path, name):
    need(f"demos{Path(name).suffix}")
    demos = Demonstrations.read(worded(tmp_path, "words.csv"), Columns(obs="obs_x"))
    demos.write(tmp_path / name)
    again = Demonstrations.read(tmp_path / name)
    same(again, demos)
    assert again.action_names == demos.action_names and not again.numbered


def test_names_in_lists_are_numbered_by_the_alphabet_or_as_told():
    obs, actions = [np.zeros((2, 1)), np.ones((1, 1))], [["up", "down"], ["up"]]
    found = Demonstrations.from_lists(obs, actions, ["a", "b"])
    assert found.action.tolist() == [1, 0, 1] and found.action_names == ("down", "up") and not found.numbered
    told = Demonstrations.from_lists(obs, actions, ["a", "b"], action_names=("up", "stay", "down"))
    assert told.action.tolist() == [0, 2, 0] and told.numbered
    with pytest.raises(UserError, match="An action is 'down', expected one of 'up', 'stay'"):
        Demonstrations.from_lists(obs, actions, ["a", "b"], action_names=("up", "stay"))


def test_names_are_matched_with_those_of_another_log():
    some = Demonstrations.from_lists([np.zeros((3, 1))], [["up", "down", "up"]], ["a"])
    as_there = some.named_as(("down", "left", "up"))
    assert as_there.action.tolist() == [2, 0, 2] and as_there.num_actions == 3 and as_there.action_names == ("down", "left", "up")
    assert some.named_as(some.action_names) is some and some.named_as(("action 0", "action 1")) is some
    with pytest.raises(UserError, match="have an action 'up', expected one of 'down', 'left'"):
        some.named_as(("down", "left"))


def test_too_many_names_and_other_numbers_of_them_are_refused(tmp_path, monkeypatch):
    path = worded(tmp_path, "words.csv")
    with pytest.raises(UserError, match="names 3 different actions, but num_actions is 5"):
        Demonstrations.read(path, Columns(obs="obs_x", num_actions=5))
    monkeypatch.setattr(limits, "MOST_NAMED_ACTIONS", 2)
    with pytest.raises(UserError, match="too many different names of actions"):
        Demonstrations.read(path, Columns(obs="obs_x"))
