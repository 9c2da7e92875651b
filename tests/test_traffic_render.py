"""Pictures of traffic: everybody is where the simulator says, in the right colour, and the road lies under them."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from psiphi.envs.highway import ROAD_LENGTH
from psiphi.envs.traffic import render, roads
from psiphi.envs.traffic.vehicles import cars_at

HIGHWAY, ROUNDABOUT = roads.highway(4, ROAD_LENGTH), roads.roundabout()


@functools.cache
def cars(x: tuple[float, ...] = (500.0, 520.0, 480.0), lanes: tuple[int, ...] = (1, 3, 0)):
    """Cars on the highway, the ego first."""
    return jax.device_get(cars_at(HIGHWAY, jnp.array(lanes, jnp.int32), jnp.array(x), jnp.full(len(x), 20.0)))


def colour_at(picture: np.ndarray, view: render.View, x: float, y: float) -> tuple[int, ...]:
    """The colour of a point of the world."""
    return tuple(picture[int((y - view.top) * view.pixels), int((x - view.left) * view.pixels)].tolist())


def test_cars_are_where_they_are_and_the_ego_is_green():
    picture, view = render.picture(HIGHWAY, cars()), render.view_of(HIGHWAY, cars())
    assert picture.shape == (120, 720, 3) and picture.dtype == np.uint8
    for x, lane, colour in [(500.0, 1, render.EGO), (520.0, 3, render.OTHER), (480.0, 0, render.OTHER)]:
        assert colour_at(picture, view, x - 1, 4.0 * lane) == colour
    assert colour_at(picture, view, 500.0, 8.0) == render.ASPHALT and colour_at(picture, view, 500.0, -3.0) == render.GRASS


def test_lanes_are_divided_by_dashes_that_stay_in_place():
    """Between two lanes some is painted and some not, and the same place looks the same from wherever the ego is."""
    a, b = (render.picture(HIGHWAY, cars((x, 300.0), (3, 3))) for x in (500.0, 503.0))
    views = [render.view_of(HIGHWAY, cars((x, 300.0), (3, 3))) for x in (500.0, 503.0)]
    line = [colour_at(a, views[0], x, 2.0) for x in np.arange(465, 575, 1.0)]
    assert {render.PAINT, render.ASPHALT} <= set(line)
    assert line == [colour_at(b, views[1], x, 2.0) for x in np.arange(465, 575, 1.0)]


def test_a_turned_car_is_drawn_turned_and_a_crash_in_red():
    across = cars()._replace(heading=np.array([np.pi / 2, 0, 0], np.float32), crashed=np.array([False, True, False]))
    picture, view = render.picture(HIGHWAY, across), render.view_of(HIGHWAY, across)
    assert colour_at(picture, view, 500.0, 2.5) == render.EGO and colour_at(picture, view, 502.0, 4.0) == render.ASPHALT
    red = (picture == render.CRASH).all(axis=-1)
    assert red.any() and not (render.picture(HIGHWAY, cars()) == render.CRASH).all(axis=-1).any()


@pytest.mark.parametrize("lanes", [1, 6])
def test_the_picture_is_as_high_as_the_road(lanes):
    road = roads.highway(lanes, ROAD_LENGTH)
    on_it = cars((500.0,), (0,))
    picture = render.picture(road, on_it)
    assert picture.shape[0] == 24 * (lanes + 1)
    assert colour_at(picture, render.view_of(road, on_it), 520.0, 4.0 * (lanes - 1)) == render.ASPHALT


def test_the_roundabout_is_drawn_as_a_whole():
    starts = [("ser", "ses", 0, 80.0), ("se", "ex", 1, 5.0), ("ex", "ee", 0, 15.0)]
    lanes = jnp.array([ROUNDABOUT.lane_of(start, end, rank) for start, end, rank, _ in starts], jnp.int32)
    there = jax.device_get(cars_at(ROUNDABOUT, lanes, jnp.array([s for *_, s in starts]), jnp.full(3, 10.0)))
    picture, view = render.picture(ROUNDABOUT, there), render.view_of(ROUNDABOUT, there)
    assert colour_at(picture, view, 0.0, 0.0) == render.GRASS and colour_at(picture, view, -24.0, 1.0) == render.ASPHALT
    for i, colour in enumerate([render.EGO, render.OTHER, render.OTHER]):
        assert colour_at(picture, view, float(there.x[i]), float(there.y[i])) == colour
    again = there._replace(x=there.x + 50)
    assert not np.array_equal(render.picture(ROUNDABOUT, again), picture)
    assert np.array_equal(render.picture(ROUNDABOUT, there), picture)  # the ground that is kept was not drawn over
