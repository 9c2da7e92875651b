"""Continuous actions as a few discrete ones: known clusters are found, their meaning travels in every file, bad input is one sentence."""

import csv
import dataclasses
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from psiphi.demos import Columns, Demonstrations, DemonstrationsError, Discretiser, Recipe
from psiphi.demos.commands import run
from psiphi.demos.kmeans import k_means, nearest
from psiphi.errors import UserError

FORMATS = ["demos.csv", "demos.tsv", "demos.npz", "demos.parquet", "demos-v0"]
CENTRES = np.array([[-2.0, 0.0], [0.0, -0.5], [0.0, 0.5], [0.0, 0.0], [1.5, 0.0]])


def clusters(rows: int = 2_000, seed: int = 0, noise: float = 0.02) -> tuple[np.ndarray, np.ndarray]:
    """Actions around `CENTRES`, and which of them each is around."""
    rng = np.random.default_rng(seed)
    which = rng.integers(len(CENTRES), size=rows)
    return CENTRES[which] + noise * rng.normal(size=(rows, 2)), which


def need(name: str) -> None:
    for module in {"demos.parquet": ["pyarrow"], "demos-v0": ["minari", "h5py"]}.get(name, ()):
        pytest.importorskip(module)


# --- K-means -------------------------------------------------------------------------------------------------------------


def test_separated_clusters_are_found():
    x, which = clusters()
    cut = Discretiser.fit(x, ["acc", "lat"], k=5)
    assert cut.names == ("acc -2.0, lat 0.0", "acc 0.0, lat -0.5", "acc 0.0, lat 0.0", "acc 0.0, lat 0.5", "acc 1.5, lat 0.0")
    found = cut.centroids[cut.transform(x)]
    np.testing.assert_allclose(found, CENTRES[which], atol=0.01)
    assert cut.variance_kept(x)["total"] > 0.99


def test_columns_are_standardised_so_that_units_do_not_matter():
    x, which = clusters()
    scaled = x * [1.0, 1e4]  # as if lat were in other units
    one, other = (Discretiser.fit(values, ["acc", "lat"], k=5) for values in (x, scaled))
    np.testing.assert_allclose(other.centroids / [1.0, 1e4], one.centroids, atol=1e-9)
    np.testing.assert_array_equal(one.transform(x), other.transform(scaled))


def test_numbers_far_from_zero_are_told_apart():
    x, which = clusters()
    far = x + [5e6, -3e6]
    cut = Discretiser.fit(far, ["acc", "lat"], k=5)
    np.testing.assert_allclose(cut.inverse(cut.transform(far)) - [5e6, -3e6], CENTRES[which], atol=0.01)


def test_the_same_seed_gives_the_same_clusters():
    x = np.random.default_rng(0).normal(size=(500, 2))
    assert Discretiser.fit(x, k=7, seed=3) == Discretiser.fit(x, k=7, seed=3)


def test_more_rows_than_the_sample_are_fitted_too(monkeypatch):
    monkeypatch.setattr("psiphi.demos.kmeans.SAMPLE", 200)
    x, which = clusters()
    cut = Discretiser.fit(x, ["acc", "lat"], k=5)
    np.testing.assert_allclose(cut.centroids[cut.transform(x)], CENTRES[which], atol=0.01)


@given(st.integers(2, 9), st.integers(0, 2**31))
@settings(max_examples=20, deadline=None)
def test_every_row_gets_its_nearest_centroid_and_centroids_are_means(k, seed):
    x = np.random.default_rng(seed).normal(size=(300, 2))
    centroids = k_means(x, k, seed=seed)
    assert centroids is not None
    label = nearest(x, centroids)
    distance = ((x[:, None] - centroids) ** 2).sum(-1)
    np.testing.assert_allclose(distance[np.arange(300), label], distance.min(1))
    np.testing.assert_allclose(centroids, [x[label == i].mean(0) for i in range(k)], atol=1e-4)


@pytest.mark.parametrize("k", [1, 2, 3, 4, 5, 6, 9])
def test_mirrored_centroids_come_in_pairs_or_lie_on_the_mirror(k):
    x = np.random.default_rng(1).normal(size=(800, 2)) + [0, 0.4]  # not symmetric by itself
    found = Discretiser.fit(x, ["acc", "lat"], k=k, mirror=["lat"]).centroids
    image = found * [1, -1]
    assert len(found) == k
    assert {tuple(row) for row in np.round(found, 9) + 0.0} == {tuple(row) for row in np.round(image, 9) + 0.0}


def test_mirroring_finds_what_is_symmetric():
    x, _ = clusters()
    found = Discretiser.fit(x, ["acc", "lat"], k=5, mirror=["lat"]).centroids
    np.testing.assert_allclose(sorted(np.round(found, 1).tolist()), sorted(CENTRES.tolist()), atol=1e-9)


# --- Products ------------------------------------------------------------------------------------------------------------


def test_columns_apart_are_multiplied():
    x, _ = clusters()
    cut = Discretiser.fit(x, ["acc", "lat"], k=3, apart=True)
    assert cut.num_actions == 9 and cut.names[0] == "acc -2.0, lat -0.5" and cut.names[8] == "acc 1.5, lat 0.5"
    cut = Discretiser.fit(x, ["acc", "lat"], k=[3, 2], apart=True)
    assert cut.num_actions == 6
    np.testing.assert_array_equal(cut.transform(cut.inverse(np.arange(6))), np.arange(6))


def test_edges_cut_at_fixed_places():
    x = np.array([-3.0, -1.0, -0.5, 0.5, 2.0, 4.0])
    cut = Discretiser.fit(x, ["acc"], edges={"acc": [-1, 1, 10]})
    assert cut.transform(x).tolist() == [0, 1, 1, 1, 2, 2]  # an edge belongs to the choice above it
    np.testing.assert_allclose(cut.centroids[:, 0], [-3, -1 / 3, 3, 10])  # means, and the edge where nothing is
    assert cut.names == ("acc -3.0", "acc -0.3", "acc 3.0", "acc 10.0")


def test_multi_discrete_actions_are_a_product_of_values():
    x = np.array([[0, 5], [1, 5], [2, 7], [0, 7]])
    cut = Discretiser.fit(x, ["gear", "light"], values=["gear", "light"])
    assert cut.num_actions == 6 and cut.names[:2] == ("gear 0, light 5", "gear 0, light 7")
    np.testing.assert_array_equal(cut.inverse(cut.transform(x)), x)
    assert cut.variance_kept(x) == {"gear": 1.0, "light": 1.0, "total": 1.0}


def test_values_edges_and_clusters_together():
    x, _ = clusters()
    gear = np.arange(len(x)) % 3
    cut = Discretiser.fit(np.column_stack([x, gear]), ["acc", "lat", "gear"], k=3, values=["gear"], edges={"lat": [0.25]})
    assert cut.num_actions == 3 * 2 * 3
    np.testing.assert_array_equal(cut.inverse(cut.transform(np.column_stack([x, gear])))[:, 2], gear)


def test_names_have_as_many_digits_as_it_takes():
    names = Discretiser.fit([0.001, 0.002, -0.0001], ["x"], values=["x"]).names
    assert names == ("x 0.000", "x 0.001", "x 0.002")
    assert Discretiser.fit([1.0, 2.0], ["x"], values=["x"], names=["slow", "fast"]).names == ("slow", "fast")


def test_a_dictionary_holds_all_of_it():
    x, _ = clusters()
    every: list[dict[str, Any]] = [{"k": 4}, {"k": 3, "apart": True}, {"k": 2, "edges": {"lat": [-0.1, 0.1]}}, {"k": 5, "mirror": ["lat"]}]
    for options in every:
        cut = Discretiser.fit(x, ["acc", "lat"], **options)
        again = Discretiser.from_dict(json.loads(json.dumps(cut.to_dict())))
        assert again == cut and again.names == cut.names
        np.testing.assert_array_equal(again.transform(x), cut.transform(x))


# --- Wrong input ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("actions", "options", "said"),
    [
        ([[0, 1], [1, 1]], {"k": 3}, "k is 3, but the action's 'acc', 'lat' has 2 different values, expected at most 2"),
        ([[0, 1], [1, 1]], {"k": 0}, "k is 0, expected at least 1"),
        ([[0, 1], [1, 1]], {"k": [1, 2, 3], "apart": True}, "k is 1, 2, 3, expected one number, or 2"),
        ([[0, 1], [1, 1]], {"k": 1, "mirror": ["side"]}, "mirror names 'side', expected columns of the action: acc, lat"),
        ([[0, 1], [1, 1]], {"edges": {"lat": [2, 1]}}, "The edges of 'lat' are 2, 1, expected rising numbers"),
        ([[0, 1], [1, 1]], {"edges": {"lat": [1]}, "values": ["lat"]}, "'lat' has edges and is in values, expected one of the two"),
        ([[0, 1], [1, 1]], {"k": 1, "edges": {"lat": [1]}, "mirror": ["lat"]}, "expected mirror to name columns that are clustered"),
        ([[0, 1], [1, 1]], {"k": 2, "names": ["a"]}, "There are 1 different names for the actions, expected 2"),
        ([[0, 1], [1, 1]], {"k": 2, "names": ["a", "a"]}, "There are 1 different names for the actions, expected 2"),
        ([[0, np.nan], [1, 1]], {"k": 1}, "has nan in it, expected finite numbers"),
        ([[0, 1, 2]], {"k": 1}, r"shape \(1, 3\), expected \(N, 2\)"),
        (np.zeros((0, 2)), {"k": 1}, "with at least one row"),
    ],
)
def test_what_cannot_be_fitted_is_one_sentence(actions, options, said):
    with pytest.raises(UserError, match=said) as caught:
        Discretiser.fit(actions, ["acc", "lat"], **options)
    assert "\n" not in str(caught.value) and "expected was" not in str(caught.value)


@pytest.mark.parametrize("damage", [{"names": []}, {"parts": []}, {"columns": ["x", "y"]}, {"parts": [{"columns": ["x"]}]}, {"format": 9}])
def test_a_damaged_dictionary_is_refused(damage):
    cut = Discretiser.fit([1.0, 2.0], ["x"], k=2)
    with pytest.raises(UserError, match="The discretiser (is damaged|has the format 9, expected 1)"):
        Discretiser.from_dict(cut.to_dict() | damage)


def test_actions_that_are_not_there_have_no_meaning():
    cut = Discretiser.fit([1.0, 2.0], ["x"], k=2)
    with pytest.raises(UserError, match="expected whole numbers from 0 to 1"):
        cut.inverse([2])


# --- In demonstrations and files -----------------------------------------------------------------------------------------


def made(groups: bool = False, **options: Any) -> Demonstrations:
    x, _ = clusters(60)
    cut = Discretiser.fit(x, ["acc", "lat"], k=5)
    rng = np.random.default_rng(0)
    seen = [rng.normal(size=(21, 2)).astype(np.float32) for _ in range(3)]
    given: dict[str, Any] = {"discretiser": cut, "groups": ["west", "east", None] if groups else None} | options
    return Demonstrations.from_lists(seen, np.split(x, 3), ["a", "b", "a"], **given)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("groups", [False, True])
def test_every_format_keeps_names_centroids_and_groups(name, groups, tmp_path):
    need(name)
    demos = made(groups)
    demos.write(tmp_path / name)
    again = Demonstrations.read(tmp_path / name)
    assert again.discretiser == demos.discretiser and again.action_names == demos.action_names and again.num_actions == 5
    np.testing.assert_array_equal(again.action, demos.action)
    kept = None if again.group is None else [None if g < 0 else again.groups[g] for g in again.group]
    assert kept == (["west", "east", None] if groups else None)


@pytest.mark.parametrize("name", FORMATS)
def test_names_without_a_discretiser_are_kept(name, tmp_path):
    need(name)
    demos = Demonstrations.from_lists([np.zeros((3, 1))], [[0, 1]], ["a"], action_names=["=left", "rîght"])
    demos.write(tmp_path / name)
    again = Demonstrations.read(tmp_path / name)
    assert again.action_names == ("=left", "rîght") and again.discretiser is None and again.num_actions == 2


@pytest.mark.parametrize("name", FORMATS)
def test_files_without_names_are_as_they_were(name, tmp_path):
    need(name)
    Demonstrations.from_lists([np.zeros((3, 1))], [[0, 1]], ["a"]).write(tmp_path / name)
    again = Demonstrations.read(tmp_path / name)
    assert again.action_names == ("action 0", "action 1") and again.discretiser is None and again.group is None
    if name.endswith(".csv"):
        assert (tmp_path / name).read_text().startswith("agent,episode,t,obs_0,action,terminated,truncated\n")


def test_other_programs_read_the_table_below_the_first_line(tmp_path):
    pandas = pytest.importorskip("pandas")
    made().write(tmp_path / "a.csv")
    frame = pandas.read_csv(tmp_path / "a.csv", skiprows=1)
    assert list(frame.columns[:3]) == ["agent", "episode", "t"] and frame["action"].notna().sum() == 60


def test_parts_and_unions_keep_the_meaning():
    demos = made(groups=True)
    for part in (*demos.split(0.5), demos.filter(agents=["a"]), demos.merge(demos), dataclasses.replace(demos)):
        assert part.discretiser == demos.discretiser and part.action_names == demos.action_names


def test_merging_different_meanings_is_refused():
    demos = made()
    with pytest.raises(UserError, match="stand for different things cannot be merged, expected the same discretiser"):
        demos.merge(made(discretiser=Discretiser.fit(clusters(60, seed=1)[0], ["acc", "lat"], k=5)))
    lists: list[Any] = [[np.zeros((3, 1))], [[0, 1]], ["a"]]
    left, up, bare = (Demonstrations.from_lists(*lists, action_names=names) for names in (["left", "right"], ["up", "down"], ()))
    with pytest.raises(UserError, match="'left' is in one of them only|'up' is in one of them only"):
        left.merge(up)
    assert left.merge(bare).action_names == ("left", "right") == bare.merge(left).action_names


def test_names_that_do_not_fit_are_refused():
    with pytest.raises(UserError, match="There are 3 different names for the actions, expected 2"):
        Demonstrations.from_lists([np.zeros((3, 1))], [[0, 1]], ["a"], action_names=["a", "b", "c"])


@pytest.mark.parametrize("seed", range(5))
def test_split_never_parts_a_group(seed):
    rng = np.random.default_rng(seed)
    agents, groups = rng.integers(4, size=60).tolist(), [None if g == 0 else f"scene {g}" for g in rng.integers(9, size=60)]
    seen = [np.zeros((3, 1)) + i for i in range(60)]
    demos = Demonstrations.from_lists(seen, [[0, 1]] * 60, agents, groups=groups)
    train, test = demos.split(0.25, seed)
    assert len(train) + len(test) == len(demos) and test.num_episodes > 5

    def names(part: Demonstrations) -> set:
        assert part.group is not None
        return {part.groups[g] for g in part.group if g >= 0}

    assert not names(train) & names(test) and names(train) | names(test) == names(demos)
    assert set(train.episodes.agent) == set(range(4))  # nobody loses everything


def test_an_episode_of_two_groups_is_an_error(tmp_path):
    path = tmp_path / "log.csv"
    path.write_text("agent,episode,obs_x,action,scene\na,0,1,0,s\na,0,2,1,s\na,0,3,1,u\n")
    with pytest.raises(DemonstrationsError, match="agent 'a', episode 0, step 2: the episode has steps of two groups, expected one"):
        Demonstrations.read(path, Columns(group="scene"))


# --- The command ---------------------------------------------------------------------------------------------------------


def log(path: Path, rows: int = 600) -> Path:
    """A table of continuous driving: 103 episodes, no column called obs."""
    x, _ = clusters(rows)
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["sc", "car", "t", "x", "y", "lane", "acc", "lat", "reward"])
        for i, (acc, lat) in enumerate(x):
            writer.writerow(["north" if i % 2 else "south", i % 103, i // 206, i * 0.1, -i, "fast", acc, lat, 1.0])
    return path


READ = ["--agent", "car", "--episode", "sc,car"]


def test_continuous_actions_are_one_sentence_that_names_the_command(tmp_path):
    path = log(tmp_path / "log.csv")
    with pytest.raises(DemonstrationsError) as caught:
        Demonstrations.read(path, Columns(agent="car", episode="sc,car", action="acc"))
    assert len(caught.value.problems) == 1
    said = str(caught.value)
    assert f"expected whole numbers from 0, which psiphi demos discretise {path} OUT --action acc makes." in said
    assert "in 600 of 600 steps" in said and "\n" not in said
    with pytest.raises(
        DemonstrationsError, match="the action is 'acc', 'lat', expected one whole number from 0, which psiphi demos discret"
    ):
        Demonstrations.read(path, Columns(agent="car", episode="sc,car", action="acc,lat"))


def test_the_command_writes_names_and_says_what_is_kept(tmp_path, capsys):
    path, out = log(tmp_path / "log.csv"), tmp_path / "out.npz"
    run(["discretise", str(path), str(out), *READ, "--action", "acc,lat", "--k", "5"])
    said = capsys.readouterr()
    assert "600 steps of 103 agents" in said.out and "Variance kept: 99" in said.out and "acc -2.0, lat 0.0" in said.out
    assert "the observation is 'x', 'y', the columns of numbers without another role; --obs chooses others" in said.err
    assert "'reward' is left out" in said.err and "'lane' is not used" in said.err
    demos = Demonstrations.read(out)
    assert demos.num_actions == 5 and demos.names == ("x", "y") and demos.discretiser is not None
    assert demos.episodes.id[0] == "south/0" and demos.agents[:2] == (0, 1)
    x, _ = clusters(600)
    assert demos.discretiser.inverse(demos.action).shape == x.shape
    run(["inspect", str(out)])
    shown = capsys.readouterr().out
    assert "acc -2.0, lat 0.0" in shown and "and 83 agents with fewer steps" in shown and len(shown.splitlines()) < 90
    for name in ("again.csv", "again.npz"):
        run(["convert", str(out), str(tmp_path / name)])
        assert Demonstrations.read(tmp_path / name).discretiser == demos.discretiser


def test_json_has_the_centroids(tmp_path, capsys):
    run(["discretise", str(log(tmp_path / "log.csv")), str(tmp_path / "out.csv"), *READ, "--action", "acc,lat", "--k", "5", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert sum(found["taken"]) == 600 and set(found["variance_kept"]) == {"acc", "lat", "total"}
    assert Discretiser.from_dict(found["discretiser"]) == Demonstrations.read(tmp_path / "out.csv").discretiser


def test_another_log_gets_the_same_actions(tmp_path):
    first, second = log(tmp_path / "first.csv"), log(tmp_path / "second.csv", rows=300)
    run(["discretise", str(first), str(tmp_path / "a.npz"), *READ, "--action", "acc,lat", "--k", "5", "--mirror", "lat"])
    run(["discretise", str(second), str(tmp_path / "b.npz"), *READ, "--action", "acc,lat", "--like", str(tmp_path / "a.npz")])
    a, b = (Demonstrations.read(tmp_path / name) for name in ("a.npz", "b.npz"))
    assert a.discretiser == b.discretiser and len(a.merge(b)) == 900


def test_a_discretiser_of_other_columns_is_refused(tmp_path):
    made().write(tmp_path / "a.npz")
    path = log(tmp_path / "log.csv")
    with pytest.raises(UserError, match="the action is 'lat', 'acc', expected 'acc', 'lat' as the discretiser knows it"):
        run(["discretise", str(path), str(tmp_path / "b.npz"), *READ, "--action", "lat,acc", "--like", str(tmp_path / "a.npz")])


def test_npz_columns_are_found_by_name(tmp_path):
    x, _ = clusters(40)
    arrays = {"sc": np.array(["n", "s"] * 20), "car": np.arange(40) % 4, "px": np.arange(40.0), "vel": np.ones((40, 2)), "act": x}
    np.savez(tmp_path / "log.npz", **arrays, kind=np.array(["bus"] * 40))
    run(["discretise", str(tmp_path / "log.npz"), str(tmp_path / "out.npz"), "--agent", "none", "--episode", "sc,car", "--action", "act",
         "--obs", "px,vel", "--k", "3"])  # fmt: skip
    demos = Demonstrations.read(tmp_path / "out.npz")
    assert demos.agents == ("all",) and demos.names == ("px", "vel_0", "vel_1") and demos.discretiser is not None
    assert demos.discretiser.columns == ("act_0", "act_1") and set(demos.episodes.id) == {"n/0", "s/1", "n/2", "s/3"}
    bare = Demonstrations.read(npz_without_obs(tmp_path / "bare.npz"))
    assert bare.names == ("speed", "gap") and "the observation is 'speed', 'gap', the arrays of numbers" in bare.notes[0]


def npz_without_obs(path: Path) -> Path:
    np.savez(path, agent=["a"] * 4, episode=[0] * 4, action=[0, 1, 1, 0], speed=np.arange(4.0), gap=np.ones(4), colour=["red"] * 4)
    return path


def test_parquet_columns_without_a_role_are_the_observation(tmp_path):
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    frame = {
        "agent": ["a"] * 3,
        "episode": [0] * 3,
        "action": [0, 1, 0],
        "speed": [1.0, 2.0, 3.0],
        "colour": ["red"] * 3,
        "lane": [1, 1, 2],
    }
    pandas.DataFrame(frame).to_parquet(tmp_path / "log.parquet")
    assert Demonstrations.read(tmp_path / "log.parquet").names == ("speed", "lane")


def test_a_minari_dataset_with_a_box_is_discretised(tmp_path):
    minari = pytest.importorskip("minari")
    pytest.importorskip("h5py")
    from gymnasium.spaces import Box

    x, _ = clusters(30)
    path = tmp_path / "box-v0"
    path.mkdir()
    storage = minari.dataset.minari_storage.MinariStorage.new(path / "data", Box(-9, 9, (2,)), Box(-9, 9, (2,)))
    storage.update_metadata({"dataset_id": "box-v0", "minari_version": minari.__version__})
    observations = np.random.default_rng(0).normal(size=(31, 2)).astype(np.float32)
    episode = {"observations": observations, "actions": x.astype(np.float32), "rewards": np.ones(30)}
    storage.update_episodes(
        [minari.data_collector.EpisodeBuffer(**episode, terminations=np.arange(30) == 29, truncations=np.zeros(30, bool))]
    )
    with pytest.raises(UserError, match="the action is 'action_0', 'action_1', expected one whole number from 0"):
        Demonstrations.read(path)
    run(["discretise", str(path), str(tmp_path / "out-v0"), "--action", "acc,lat", "--k", "5"])
    demos = Demonstrations.read(tmp_path / "out-v0")
    assert demos.action_names[0].startswith("acc ") and len(demos) == 30 and demos.episodes.has_final.all()


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--action", "acc,lat", "--k", "601"], "k is 601, but the action's 'acc', 'lat' has 600 different values, expected at most 600"),
        (["--action", "acc,up"], "has no column 'up' for the action"),
        (["--action", "acc", "--edges", "acc"], "edges has 'acc', expected a column and rising numbers, such as acc=-1,1"),
        (["--action", "acc", "--k", "0"], "k is 0, expected at least 1"),
        (["--action", "acc", "--like", "log.csv"], "has no column"),
        (["--action", "acc", "--names", "one", "two"], "There are 2 different names for the actions, expected 9"),
    ],
)
def test_what_cannot_be_discretised_is_one_sentence_and_nothing_is_written(flags, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = log(tmp_path / "log.csv")
    with pytest.raises(UserError, match=said) as caught:
        run(["discretise", str(path), "out.csv", *READ, *flags])
    assert "\n" not in str(caught.value) and [file.name for file in tmp_path.iterdir()] == ["log.csv"]


def test_what_is_discrete_already_is_not_discretised_again(tmp_path):
    made().write(tmp_path / "a.npz")
    with pytest.raises(UserError, match="the actions are discrete already, they stand for acc, lat"):
        run(["discretise", str(tmp_path / "a.npz"), str(tmp_path / "b.npz"), "--k", "2"])


def test_a_recipe_is_checked_at_the_door():
    with pytest.raises(UserError, match="k is 0, expected at least 1"):
        Recipe(k=(0,))


def test_many_warnings_of_a_kind_are_one_line(tmp_path, capsys):
    seen = [np.random.default_rng(i).normal(size=(4, 2)) for i in range(50)]
    Demonstrations.from_lists(seen, [[0, 1, 0]] * 50, [f"agent {i}" for i in range(50)]).write(tmp_path / "log.npz")
    run(["validate", str(tmp_path / "log.npz")])
    said = capsys.readouterr().out.splitlines()
    assert len(said) == 4 and said[0].startswith("warning: agent with few steps, 50 times; the first: ") and "'agent 0'" in said[0]
    run(["validate", str(tmp_path / "log.npz"), "--json"])
    assert len(json.loads(capsys.readouterr().out)["problems"]) == 51


@pytest.mark.parametrize("damage", ["not json", "[]", '{"action_names": 3}', '{"discretiser": {"format": 1}}'])
def test_a_damaged_meaning_is_named(damage, tmp_path):
    made().write(tmp_path / "a.csv")
    lines = (tmp_path / "a.csv").read_text().splitlines(keepends=True)
    (tmp_path / "a.csv").write_text(f"# psiphi {damage}\n" + "".join(lines[1:]))
    with pytest.raises(UserError, match="a.csv.* is damaged"):
        Demonstrations.read(tmp_path / "a.csv")
    made().write(tmp_path / "a.npz")
    with np.load(tmp_path / "a.npz") as arrays:
        changed: dict[str, Any] = dict(arrays) | {"meaning": np.array(damage)}
    np.savez(tmp_path / "a.npz", **changed)
    with pytest.raises(UserError, match="a.npz.* is damaged"):
        Demonstrations.read(tmp_path / "a.npz")


@pytest.mark.parametrize("name", ["a.csv", "a.npz", "a.parquet"])
@given(st.lists(st.tuples(st.floats(0, 1), st.integers(0, 255)), min_size=1, max_size=4))
@settings(max_examples=40, deadline=None)
def test_damaged_files_are_read_or_refused_in_one_sentence(name, edits):
    need(f"demos.{name.split('.')[1]}")
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / name
        made(groups=True).write(path)
        data = bytearray(path.read_bytes())
        for place, value in edits:
            data[int(place * (len(data) - 1))] = value
        path.write_bytes(data)
        try:
            Demonstrations.read(path)
        except UserError as error:
            assert "\n" not in str(error)


@pytest.mark.parametrize(
    "words",
    [
        "inspect log.csv --agent car --episode sc,car --action acc",
        "discretise log.csv out.npz --agent car --episode sc,car --action acc,lat --k 5000",
        "from-tracks log.csv out.npz --id sc",
    ],
)
def test_the_command_line_says_one_line_and_exits_with_two(words, tmp_path):
    log(tmp_path / "log.csv")
    done = subprocess.run([sys.executable, "-m", "psiphi", "demos", *words.split()], cwd=tmp_path, capture_output=True, text=True)
    said = [line for line in done.stderr.splitlines() if not line.startswith("reading ")]
    assert done.returncode == 2 and len(said) == 1 and said[0].startswith("psiphi: ") and not done.stdout
    assert [file.name for file in tmp_path.iterdir()] == ["log.csv"]
