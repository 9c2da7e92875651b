"""Positions of moving agents as demonstrations: motions with known answers, what is seen of others, gaps and mistakes."""

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from psiphi.demos import Demonstrations, Discretiser, Motion, Recipe, from_tracks
from psiphi.demos.commands import run
from psiphi.errors import UserError

ONE = Recipe(k=(1,))
"""A single action: its centroid is the mean of the continuous ones."""


def table(*tracks: tuple[Any, np.ndarray], start: float = 0.0, dt: float = 1.0, **columns: Any) -> dict[str, Any]:
    """Columns of tracks ``(id, [n, 2])`` that begin at the same time."""
    ids = np.concatenate([[name] * len(places) for name, places in tracks])
    t = np.concatenate([start + dt * np.arange(len(places)) for _, places in tracks])
    x, y = np.concatenate([places for _, places in tracks]).T
    return {"id": ids, "t": t, "x": x, "y": y, **{name: np.full(len(t), value) for name, value in columns.items()}}


def line(n: int, start=(0.0, 0.0), velocity=(1.0, 0.0), acceleration=(0.0, 0.0), dt: float = 1.0) -> np.ndarray:
    t = dt * np.arange(n)[:, None]
    return np.array(start) + t * velocity + 0.5 * t**2 * np.array(acceleration)


def column(demos: Demonstrations, name: str) -> np.ndarray:
    return demos.obs[:, demos.names.index(name)]


def meant(demos: Demonstrations) -> np.ndarray:
    """``[actions, C]``: what the actions stand for."""
    assert demos.discretiser is not None
    return demos.discretiser.centroids


# --- Motion --------------------------------------------------------------------------------------------------------------


def test_a_circle_is_a_constant_acceleration_to_the_left():
    """Speed 10 on a radius of 50, ten times a second: v^2/r = 2 to the left, and next to nothing along the way."""
    angle = np.arange(200) * 0.1 * 10 / 50
    demos = from_tracks(table(("car", 50 * np.stack([np.cos(angle), np.sin(angle)], 1)), dt=0.1), motion=Motion(nearest=0), actions=ONE)
    step = 0.1 * 10 / 50
    chord = 2 * 50 * np.sin(step / 2) / 0.1
    np.testing.assert_allclose(meant(demos)[0], [chord * (np.cos(step) - 1) / 0.1, chord * np.sin(step) / 0.1], rtol=1e-6)
    np.testing.assert_allclose(meant(demos)[0], [0.0, 2.0], atol=0.03)
    np.testing.assert_allclose(column(demos, "speed"), chord, rtol=1e-5)
    assert len(demos) == 198 and demos.episodes.has_final.all()
    clockwise = table(("car", 50 * np.stack([np.cos(-angle), np.sin(-angle)], 1)), dt=0.1)
    assert meant(from_tracks(clockwise, motion=Motion(nearest=0), actions=ONE))[0, 1] == pytest.approx(-chord * np.sin(step) / 0.1)


def test_turning_is_measured_in_radians_per_second():
    angle = np.arange(50) * 0.1 * 10 / 50
    places = 50 * np.stack([np.cos(angle), np.sin(angle)], 1)
    demos = from_tracks(table(("car", places), dt=0.1), motion=Motion(nearest=0, moves="turn,speed"), actions=ONE)
    assert meant(demos)[0, 0] == pytest.approx(10 / 50) and demos.action_names[0].startswith("turn 0.2, speed 10.0")


def test_accelerating_and_braking():
    faster, slower = line(20, velocity=(3, 4), acceleration=(0.6, 0.8)), line(20, velocity=(60, 80), acceleration=(-0.6, -0.8))
    demos = from_tracks(table(("faster", faster), ("slower", slower), dt=1.0), motion=Motion(nearest=0), actions=Recipe(k=(2,)))
    np.testing.assert_allclose(meant(demos), [[-1, 0], [1, 0]], atol=1e-9)
    assert demos.action_names == ("acc -1.0, lat 0.0", "acc 1.0, lat 0.0")
    assert [set(x.action.tolist()) for x in demos] == [{1}, {0}]


def test_state_and_action_give_the_next_place():
    rng = np.random.default_rng(0)
    places = rng.normal(size=(30, 2)).cumsum(0)
    motion = Motion(frame="world", nearest=0, hz=4, moves="ax,ay")
    demos = from_tracks(table(("mouse", places), dt=0.25), motion=motion, actions=Recipe(values="ax,ay"))
    now, velocity = demos.obs[:, :2], demos.obs[:, 2:4]
    assert demos.names == ("x", "y", "vx", "vy") and demos.discretiser is not None
    reached = now + velocity * 0.25 + demos.discretiser.inverse(demos.action) * 0.25**2
    np.testing.assert_allclose(reached, places[2:], atol=1e-4)


@given(st.integers(0, 2**31), st.floats(0, 6.28), st.floats(-100, 100), st.floats(-100, 100))
@settings(max_examples=15, deadline=None)
def test_an_egocentric_view_does_not_depend_on_north(seed, angle, dx, dy):
    rng = np.random.default_rng(seed)
    tracks = [(name, rng.normal(size=2) * 9 + (rng.normal(size=(12, 2)) + [2, 1]).cumsum(0)) for name in "abc"]
    turn = np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])
    turned = [(name, places @ turn + [dx, dy]) for name, places in tracks]
    motion = Motion(before=True, lane=1e-9)  # who leads may hang on the last digit
    one, other = (from_tracks(table(*some), motion=motion, actions=Recipe(values="acc,lat")) for some in (tracks, turned))
    np.testing.assert_allclose(other.obs, one.obs, atol=2e-3)
    assert one.discretiser is not None and other.discretiser is not None
    np.testing.assert_allclose(other.discretiser.inverse(other.action), one.discretiser.inverse(one.action), atol=1e-6)


def test_an_observation_knows_nothing_of_what_comes():
    rng = np.random.default_rng(1)
    tracks = [(name, (rng.normal(size=(20, 2)) + [3, 0]).cumsum(0)) for name in "ab"]
    whole = from_tracks(table(*tracks), motion=Motion(before=True), actions=ONE)
    half = from_tracks(table(*((name, places[:10]) for name, places in tracks)), motion=Motion(before=True), actions=ONE)
    for x, y in zip(whole, half, strict=True):
        np.testing.assert_array_equal(x.obs[: len(y.obs)], y.obs)
        assert y.final_obs is not None
        np.testing.assert_array_equal(x.obs[len(y.obs)], y.final_obs)


def test_who_stands_looks_where_it_last_went():
    places = np.concatenate([line(5, velocity=(0, 2)), np.repeat([[0.0, 8.0]], 5, 0)])
    other = np.repeat([[0.0, 20.0]], 10, 0)
    demos = from_tracks(table(("walker", places), ("post", other)), motion=Motion(nearest=1, reach=100), actions=ONE)
    walker = demos.filter(agents=["walker"])
    np.testing.assert_allclose(column(walker, "near1_ahead"), [18, 16, 14, 12, 12, 12, 12, 12], atol=1e-5)
    np.testing.assert_allclose(column(walker, "near1_left"), 0, atol=1e-5)
    np.testing.assert_allclose(column(walker, "speed"), [2, 2, 2, 2, 0, 0, 0, 0], atol=1e-5)


def test_a_given_heading_counts_and_is_read_round_the_corner():
    data = table(("car", line(6, velocity=(-1, 0))), ("post", np.repeat([[-9.0, 3.0]], 6, 0)))
    data["h"] = np.where(data["id"] == "car", np.where(data["t"] % 2 == 0, np.pi - 0.1, -np.pi + 0.1), 0.0)  # about west, either way
    demos = from_tracks(data, heading="h", motion=Motion(nearest=1, hz=2), actions=ONE).filter(agents=["car"])
    half = demos.obs[0]  # between two rows: straight west, not east
    assert half[demos.names.index("near1_ahead")] == pytest.approx(8.5) and half[demos.names.index("near1_left")] == pytest.approx(-3)


# --- The others ----------------------------------------------------------------------------------------------------------


def test_leader_and_neighbours_by_hand():
    """Three cars that go east at 10, 8 and 12; the third is one lane to the left and behind."""
    cars = [("me", line(4, (0, 0), (10, 0))), ("slow", line(4, (30, 1), (8, 0))), ("fast", line(4, (-12, 4), (12, 0)))]
    demos = from_tracks(table(*cars), motion=Motion(nearest=3, reach=60), actions=ONE)
    me = demos.filter(agents=["me"])
    seen = dict(zip(me.names, me.obs[0].tolist(), strict=True))  # at t = 1
    assert seen["speed"] == 10 and seen["leader_gap"] == 28 and seen["leader_v"] == -2
    assert (seen["near1_ahead"], seen["near1_left"], seen["near1_v_ahead"], seen["near1_v_left"]) == (-10, 4, 2, 0)
    assert seen["near1_distance"] == pytest.approx(np.hypot(10, 4)) and seen["near2_ahead"] == 28
    assert (seen["near3_distance"], seen["near3_ahead"], seen["near3_v_ahead"]) == (60, 0, 0)  # nobody
    fast = demos.filter(agents=["fast"])
    assert column(fast, "leader_gap")[0] == 60 and column(fast, "leader_v")[0] == 0  # both others are in another lane


def test_only_who_is_there_is_seen():
    """Others of another scene, of another time, or beyond reach are not."""
    here = table(("me", line(5)), ("far", line(5, (51, 0))), scene="here")
    there, later = table(("other", line(5, (1, 1))), scene="there"), table(("late", line(5, (1, 1))), start=100.0, scene="here")
    data = {name: np.concatenate([part[name] for part in (here, there, later)]) for name in here}
    me = from_tracks(data, scene="scene", motion=Motion(nearest=2), actions=ONE).filter(agents=["me"])
    assert (column(me, "near1_distance") == 50).all() and (column(me, "leader_gap") == 50).all() and (column(me, "near2_ahead") == 0).all()


def test_neighbours_are_those_that_a_loop_finds():
    rng = np.random.default_rng(2)
    tracks = [(i, rng.normal(size=2) * 20 + (rng.normal(size=(int(n), 2))).cumsum(0)) for i, n in enumerate(rng.integers(3, 15, size=12))]
    demos = from_tracks(table(*tracks), motion=Motion(frame="world", nearest=3, reach=25), actions=ONE)
    for x in demos:
        for i in range(len(x.obs)):
            t, place = i + 1, tracks[x.agent][1][i + 1]  # pyright: ignore[reportArgumentType, reportCallIssue]
            away = sorted(np.hypot(*(places[t] - place)) for name, places in tracks if name != x.agent and t < len(places))
            expected = [min(distance, 25) for distance in [*away, 25, 25, 25][:3]]
            found = [x.obs[i, demos.names.index(f"near{k}_distance")] for k in (1, 2, 3)]
            np.testing.assert_allclose(found, expected, rtol=1e-5)


# --- Resampling, gaps and keys -------------------------------------------------------------------------------------------


def test_ten_hertz_become_two():
    data = table(("car", line(101, velocity=(10, 0), acceleration=(2, 0), dt=0.1)))  # t counts frames
    demos = from_tracks(data, motion=Motion(unit=0.1, hz=2, nearest=0), actions=ONE)
    assert len(demos) == 19  # 21 points half a second apart: 19 have one before and one after
    np.testing.assert_allclose(meant(demos)[0], [2, 0], atol=1e-9)
    np.testing.assert_allclose(column(demos, "speed")[0], 10.5, rtol=1e-6)


def test_agents_who_were_recorded_at_different_moments_share_the_beat():
    one, other = table(("a", line(50, velocity=(1, 0), dt=0.1)), dt=0.1), table(("b", line(50, (0, 5), (1, 0), dt=0.1)), start=0.03, dt=0.1)
    other["x"] = other["x"] + 0.03
    data = {name: np.concatenate([one[name], other[name]]) for name in one}
    demos = from_tracks(data, motion=Motion(hz=5, nearest=1), actions=ONE)
    np.testing.assert_allclose(column(demos, "near1_distance"), 5, atol=1e-5)


def test_a_gap_makes_two_episodes_and_is_said():
    data = table(("a", line(20)), ("b", line(20, (0, 3))))
    keep = ~((data["id"] == "a") & (data["t"] >= 8) & (data["t"] < 11))
    cut = {name: values[keep] for name, values in data.items()}
    demos = from_tracks(cut, actions=ONE)
    assert [(x.agent, x.episode, len(x.action)) for x in demos] == [("a", 0, 6), ("a", 1, 7), ("b", 0, 18)]
    assert "1 tracks have 1 gaps in time, at which they become several episodes" in demos.notes[0]
    bridged = from_tracks(cut, motion=Motion(bridge=5), actions=ONE)
    assert [len(x.action) for x in bridged] == [18, 18] and bridged.notes == ()


def test_rows_without_a_place_are_a_gap():
    data = table(("a", line(20)))
    data["x"][10] = np.nan
    demos = from_tracks(data, actions=ONE)
    assert demos.num_episodes == 2 and "1 rows without a time or a place are left out" in demos.notes[0]


def test_short_tracks_are_counted_and_left_out():
    data = table(("a", line(20)), ("b", line(1)), ("c", line(2)), ("d", line(3)))
    demos = from_tracks(data, actions=ONE)
    assert demos.agents == ("a", "d") and "2 of 4 tracks have fewer than 3 points and are left out" in demos.notes[0]


def test_keys_of_several_columns_agents_and_groups():
    parts = [table((7, line(6)), (8, line(6, (0, 3))), sc=scene, kind="car", length=4.5) for scene in ("north", "south")]
    data = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    by_car = from_tracks(data, id="id", scene="sc", actions=ONE)
    assert by_car.agents == (7, 8) and by_car.episodes.id.tolist() == ["north", "north", "south", "south"]
    both = from_tracks(data, id="sc,id", scene="sc", group="sc", actions=ONE)
    assert both.agents == ("north/7", "north/8", "south/7", "south/8") and both.groups == ("north", "south")
    assert both.group is not None and both.group.tolist() == [0, 0, 1, 1]
    nobody = from_tracks(data, id="id", scene="sc", agent="none", group="sc", actions=ONE)
    assert nobody.agents == ("all",) and set(nobody.episodes.id) == {"north/7", "north/8", "south/7", "south/8"}
    train, test = nobody.split(0.5)
    assert {x.episode.split("/")[0] for x in train} != {x.episode.split("/")[0] for x in test}  # pyright: ignore[reportAttributeAccessIssue]
    kinds = from_tracks(data, id="id", scene="sc", agent="kind", obs="length", actions=ONE)
    assert kinds.agents == ("car",) and set(column(kinds, "length")) == {4.5}


def test_the_order_of_rows_does_not_matter():
    rng = np.random.default_rng(3)
    data = table(*((i, rng.normal(size=(10, 2)).cumsum(0)) for i in range(5)))
    mixed = rng.permutation(len(data["t"]))
    one, other = (from_tracks({name: values[order] for name, values in data.items()}, actions=ONE) for order in (np.arange(50), mixed))
    assert {(x.agent, x.obs.tobytes()) for x in one} == {(x.agent, x.obs.tobytes()) for x in other}


def test_a_given_discretiser_is_used():
    cut = Discretiser.fit([[0.0, 0.0], [9.0, 0.0]], ["acc", "lat"], k=2)
    demos = from_tracks(table(("a", line(9))), actions=cut)
    assert demos.discretiser == cut and (demos.action == 0).all() and demos.num_actions == 2


# --- Files and the command -----------------------------------------------------------------------------------------------


def written(directory: Path, name: str) -> Path:
    rng = np.random.default_rng(0)
    data = table(*((f"car {i}", (rng.normal(size=(40, 2)) + [2, 0]).cumsum(0)) for i in range(6)), sc="A")
    path = directory / name
    if name.endswith(".npz"):
        np.savez(path, **data)
    elif name.endswith(".parquet"):
        pytest.importorskip("pyarrow")
        pytest.importorskip("pandas").DataFrame(data).to_parquet(path)
    else:
        with open(path, "w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(data)
            writer.writerows(zip(*(values.tolist() for values in data.values()), strict=True))
    return path


@pytest.mark.parametrize("name", ["tracks.npz", "tracks.csv", "tracks.parquet"])
def test_every_format_of_tracks_gives_the_same(name, tmp_path, capsys):
    path, out = written(tmp_path, name), tmp_path / "out.npz"
    run(["from-tracks", str(path), str(out), "--scene", "sc", "--k", "4", "--nearest", "2", "--mirror", "lat"])
    said = capsys.readouterr()
    assert "228 steps of 6 agents" in said.out and "Variance kept: " in said.out and "The observation is 'speed', 'leader_gap'" in said.err
    demos = Demonstrations.read(out)
    expected = from_tracks(written(tmp_path, "tracks.npz"), scene="sc", motion=Motion(nearest=2), actions=Recipe(k=(4,), mirror="lat"))
    np.testing.assert_array_equal(demos.obs, expected.obs)
    np.testing.assert_array_equal(demos.action, expected.action)
    assert demos.discretiser == expected.discretiser and demos.names == expected.names


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--id", "who"], "has no column 'who' for the agent|has no array 'who' for the agent"),
        (["--x", "east"], "'east' could mean"),
        (["--t", "frame"], "has no column 'frame' for"),
        (["--hz", "0"], "hz is 0.0, expected a number above 0"),
        (["--hz", "0.001"], "has no track of 3 points 1000 s apart, expected at least one"),
        (["--moves", "acc,up"], "moves is 'acc,up', expected some of acc, lat, .* not 'up'"),
        (["--nearest", "-1"], "nearest|unrecognized"),
        (["--frame", "moon"], "frame"),
        (["--k", "999"], "k is 999, but the action's 'acc', 'lat' has 228 different values, expected at most 228"),
        (["--id", "sc"], "agent 'A' has two rows for the time 0, .* expected one; --scene or further columns in --id tell them apart"),
    ],
)
def test_what_cannot_be_made_is_one_sentence_and_nothing_is_written(flags, said, tmp_path):
    path = written(tmp_path, "tracks.csv")
    with pytest.raises(UserError, match=said) as caught:
        run(["from-tracks", str(path), str(tmp_path / "out.npz"), *flags])
    assert "\n" not in str(caught.value) and "expected was" not in str(caught.value)
    assert [file.name for file in tmp_path.iterdir()] == ["tracks.csv"]


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (3, "The tracks are a int, expected a file, or columns by name"),
        (table(("a", line(1)), ("b", line(1))), "has one point of each track, expected at least three"),
        (table(("a", line(2))), "has no track of 3 points 1 s apart, expected at least one"),
        (table(("a", line(5))) | {"x": np.full(5, np.nan)}, "has no row with a time and a place, expected at least three"),
        (table(("a", line(5))) | {"x": np.array(["w"] * 5)}, "'x' is of type <U1, expected numbers"),
        (table(("a", line(5))) | {"y": np.zeros(4)}, r"'y' has the shape \(4,\), expected \(5,\)"),
        (table(("a", line(5))) | {"id": np.array(["a", "a", "", "a", "a"])}, "row 2 does not say which agent it is of, expected a name"),
        (table(("a", line(5))) | {"t": np.array([0, 1, 1, 2, 2])}, r"two rows for the time 1, 1 and 2 \(and so at 1 further points\)"),
        (Path("nowhere.csv"), "nowhere.csv does not exist"),
        (Path(__file__), "is no table of tracks, expected a .csv, .parquet or .npz file"),
    ],
)
def test_tracks_that_cannot_be_used(data, said):
    with pytest.raises(UserError, match=said) as caught:
        from_tracks(data)
    assert "\n" not in str(caught.value)


def test_a_cell_in_words_is_named(tmp_path):
    path = written(tmp_path, "tracks.csv")
    lines = path.read_text().splitlines()
    lines[3] = lines[3].replace(lines[3].split(",")[2], "far")
    path.write_text("\n".join(lines))
    with pytest.raises(UserError, match="in row 2, the observation's 'x' is 'far', expected a number"):
        from_tracks(path)
