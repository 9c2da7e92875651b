"""Traffic from above: lanes grey, the ego green, the others blue, in plain Pillow.

A straight road is seen through a window that drives along with the ego; a road with bends is seen as a whole.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from PIL import Image, ImageDraw

from psiphi.envs.traffic import lanes as lane
from psiphi.envs.traffic.roads import Road, roundabout
from psiphi.envs.traffic.vehicles import LENGTH, WIDTH, Cars

GRASS, ASPHALT, PAINT = (214, 222, 205), (96, 98, 104), (236, 236, 236)
EGO, OTHER, GLASS, CRASH = (44, 160, 44), (31, 119, 180), (20, 30, 40), (214, 39, 40)
SMOOTH = 2
"""Everything is drawn so many times larger and then averaged, since Pillow's edges are hard."""
DASH, PERIOD = 3.0, 9.0
"""Metres of a dash between two lanes, and from its start to that of the next."""


class View(NamedTuple):
    """A rectangle of the world, in metres."""

    left: float
    top: float
    width: float
    height: float
    pixels: float
    """Per metre."""

    @property
    def size(self) -> tuple[int, int]:
        """Pixels of the picture, width and height."""
        return round(self.width * self.pixels), round(self.height * self.pixels)

    def place(self, points: np.ndarray) -> list[tuple[float, float]]:
        """Where points ``[p, 2]`` of the world lie in the enlarged picture."""
        scale = self.pixels * SMOOTH
        return [((x - self.left) * scale, (y - self.top) * scale) for x, y in np.asarray(points, float).tolist()]


def view_of(road: Road, cars: Cars) -> View:
    """Along a straight road, 120 m with the ego in the left third; of any other, all within 105 m of the middle."""
    if not road.parallel:
        return View(-105.0, -105.0, 210.0, 210.0, 3.0)
    across = lane.WIDTH * (len(road.edge) + 1)
    return View(float(cars.x[0]) - 40.0, -lane.WIDTH, 120.0, across, 6.0)


def picture(road: Road, cars: Cars) -> np.ndarray:
    """The moment as RGB, ``uint8[height, width, 3]``; a car that has crashed is framed in red."""
    seen = jax.device_get(cars)
    view = view_of(road, seen)
    image = _straight_ground(road, view) if road.parallel else _roundabout_ground(view).copy()
    pen = ImageDraw.Draw(image)
    for i in reversed(range(len(seen.x))):  # the ego last, above everybody
        _car(pen, view, seen, i)
    return np.asarray(image.reduce(SMOOTH))


def _straight_ground(road: Road, view: View) -> Image.Image:
    """What is in the window of lanes along x; dashes stay where they are while it moves."""
    ends = np.clip([view.left, view.left + view.width], 0.0, road.lanes.length[0])
    return _ground(road, view, np.broadcast_to(ends[:, None], (2, len(road.edge))))


@functools.lru_cache(maxsize=1)
def _roundabout_ground(view: View) -> Image.Image:
    """All of it, drawn once: it never changes."""
    road = roundabout()
    return _ground(road, view, np.linspace(0.0, road.lanes.length, 24))


def _ground(road: Road, view: View, s: np.ndarray) -> Image.Image:
    """Grass, asphalt along the lanes at distances `s` ``[p, m]``, and dashes between the lanes of an edge."""
    image = Image.new("RGB", (SMOOTH * view.size[0], SMOOTH * view.size[1]), GRASS)
    pen = ImageDraw.Draw(image)
    left, right = (_points(road.lanes, s, side * lane.WIDTH / 2) for side in (-1, 1))
    for m in range(s.shape[1]):
        pen.polygon(view.place(np.concatenate([left[:, m], right[::-1, m]])), fill=ASPHALT)
    starts = np.arange(np.ceil(s.min() / PERIOD), s.max() / PERIOD) * PERIOD
    dashes = _points(road.lanes, np.stack([starts, starts + DASH])[..., None], -lane.WIDTH / 2)
    for m in np.flatnonzero(road.rank > 0):
        for i in np.flatnonzero(starts + DASH <= road.lanes.length[m]):
            pen.line(view.place(dashes[:, i, m]), fill=PAINT, width=round(0.3 * view.pixels * SMOOTH))
    return image


def _points(lanes: lane.Lanes, s: np.ndarray, lateral: float) -> np.ndarray:
    """Points ``[..., m, 2]`` at distances ``[..., m or 1]`` along the lanes."""
    return np.stack([np.asarray(part) for part in lane.position(lanes, jnp.asarray(s), lateral)], axis=-1)


def _car(pen: ImageDraw.ImageDraw, view: View, cars: Cars, i: int) -> None:
    """A box, and a windscreen that tells where the front is."""
    cos, sin = np.cos(float(cars.heading[i])), np.sin(float(cars.heading[i]))

    def box(back: float, front: float, half: float) -> list[tuple[float, float]]:
        corners = np.array([(back, -half), (front, -half), (front, half), (back, half)])
        turned = corners @ np.array([(cos, sin), (-sin, cos)])
        return view.place(turned + (float(cars.x[i]), float(cars.y[i])))

    frame = CRASH if cars.crashed[i] else None
    pen.polygon(box(-LENGTH / 2, LENGTH / 2, WIDTH / 2), fill=EGO if i == 0 else OTHER, outline=frame, width=SMOOTH)
    pen.polygon(box(LENGTH / 8, LENGTH / 4, 0.4 * WIDTH), fill=GLASS)
