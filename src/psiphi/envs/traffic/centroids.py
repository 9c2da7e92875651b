"""The script behind `actions`: what IDM drivers do, clustered into the ego's actions.

    python -m psiphi.envs.traffic.centroids

Commands are taken from episodes without a crash in which IDM drives everybody, the ego too. K-means on (acceleration, angle) would spend
its centroids on accelerations, as angles are small numbers and most cars go straight, or, standardised, on the rare cars that turn the
wheel to its end. So the accelerations of those who go straight and the angles of those who do not are clustered apart. On Highway left and
right are mirror images; on Roundabout, where traffic turns one way, they are not, and cars far from the ring, who all do the same, are left
out.
"""

from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from psiphi.envs import highway, roundabout
from psiphi.envs.traffic import roads
from psiphi.envs.traffic.actions import Table
from psiphi.envs.traffic.simulate import substep
from psiphi.envs.traffic.vehicles import Cars

STRAIGHT = {"highway": 0.02, "roundabout": 0.05}
"""Who steers less than this goes straight."""
STEEPEST = {"highway": 0.2, "roundabout": 0.4}
"""Angles beyond this count as this: slow cars that turn the wheel to its end would take a centroid for themselves."""
NEAR = 45.0
"""Metres from the roundabout's middle within which commands count."""
DIGITS = 3


def kmeans(values: np.ndarray, k: int, rounds: int = 1_000) -> np.ndarray:
    """Lloyd's algorithm on numbers, from evenly spaced quantiles; centroids in rising order."""
    centroids = np.quantile(values, (np.arange(k) + 0.5) / k)
    for _ in range(rounds):
        nearest = np.abs(values[:, None] - centroids).argmin(1)
        moved = np.array([values[nearest == i].mean() if (nearest == i).any() else centroids[i] for i in range(k)])
        if np.allclose(moved, centroids, rtol=0, atol=1e-6):
            break
        centroids = moved
    return np.sort(centroids)


def highway_commands(config: highway.HighwayConfig, episodes: int, seed: int) -> np.ndarray:
    """(acceleration, steering) of all drivers in episodes without a crash, ``[n, 2]``."""
    road = roads.highway(config.lanes, highway.ROAD_LENGTH)
    return _commands(config, road, lambda key: highway.reset(config, road, key), episodes, seed, within=np.inf)


def roundabout_commands(config: roundabout.RoundaboutConfig, episodes: int, seed: int) -> np.ndarray:
    """The same, of those in or near the ring."""
    return _commands(config, roundabout.ROAD, lambda key: roundabout.make(config).reset(key)[0], episodes, seed, within=NEAR)


def _commands(config: Any, road: roads.Road, reset: Callable[[Array], Any], episodes: int, seed: int, within: float) -> np.ndarray:
    def episode(key: Array) -> tuple[Array, Array, Array]:
        state = reset(key)

        def advance(cars: Cars, _: None) -> tuple[Cars, tuple[Array, Array, Array]]:
            after = substep(road, state.drivers, cars, config.dt)
            commands = jnp.stack([after.acceleration, after.steering], axis=-1)
            return after, (commands, jnp.hypot(cars.x, cars.y) < within, after.crashed.any())

        return jax.lax.scan(advance, state.cars, None, length=config.max_steps * config.frames)[1]

    every = jax.jit(jax.vmap(episode))(jax.random.split(jax.random.key(seed), episodes))
    commands, counts, crashed = (np.asarray(x) for x in every)
    fine = ~crashed.any(axis=1)
    return commands[fine][counts[fine]].astype(np.float64)


def highway_table(episodes: int = 32, seed: int = 0) -> Table:
    """Five accelerations straight on, then two angles to either side, small before large, from the single- and the multi-task scenario."""
    commands = np.concatenate([highway_commands(config, episodes, seed) for config in (highway.single_task(), highway.multi_task())])
    turns = np.abs(commands[:, 1]) >= STRAIGHT["highway"]
    accelerations = kmeans(commands[~turns, 0], 5)
    angles = kmeans(np.minimum(np.abs(commands[turns, 1]), STEEPEST["highway"]), 2)
    return _rounded([(a, 0.0) for a in accelerations] + [(0.0, side * angle) for angle in angles for side in (1, -1)])


def roundabout_table(episodes: int = 32, seed: int = 0) -> Table:
    """Three accelerations straight on, one angle to the left, two to the right.

    Nearly every left turn is the ring's bend, so that the mean left turn just holds the ring and could never lead back to it: the angle to
    the left is the larger centroid of all turns, left and right alike.
    """
    commands = roundabout_commands(roundabout.RoundaboutConfig(), episodes, seed)
    turns = np.abs(commands[:, 1]) >= STRAIGHT["roundabout"]
    steepest = STEEPEST["roundabout"]
    angles = np.clip(commands[turns, 1], -steepest, steepest)
    left, right = kmeans(np.abs(angles), 2)[1], kmeans(angles[angles > 0], 2)
    return _rounded([(a, 0.0) for a in kmeans(commands[~turns, 0], 3)] + [(0.0, angle) for angle in (-left, *right)])


def _rounded(rows: Iterable[tuple[float, float]]) -> Table:
    return tuple((round(float(a), DIGITS) + 0.0, round(float(s), DIGITS) + 0.0) for a, s in rows)


def main() -> None:
    for name, table in (("HIGHWAY", highway_table()), ("ROUNDABOUT", roundabout_table())):
        print(f"{name}: Table = (")
        print(*(f"    {row}," for row in table), ")", sep="\n")


if __name__ == "__main__":
    main()
