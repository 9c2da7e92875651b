"""What is measured: the sweeps as a table of worlds and logs, and the fits that they ask for."""

import dataclasses
import functools
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import minecart
import numpy as np
import worlds
from demonstrate import Kind
from worlds import World

MINECART = "minecart"
"""The one world that is not finite."""
EVERY = (*worlds.WORLDS, MINECART)
TUNING = 1000
"""Seeds from here on are for tuning; those below are for reporting."""


@dataclasses.dataclass(frozen=True)
class Setting:
    """How a log is made."""

    episodes: int = 100
    """Of each agent."""
    noise: float = 0.1
    kind: Kind = "epsilon"
    background: int = 0
    """Steps of a random walk that are told apart from the log."""
    agents: int | None = None
    """So many agents with random tasks; the world's own if None."""
    shuffled: bool = False
    """Whether ids are permuted over the episodes, so that they mean nothing."""


class Sweep(NamedTuple):
    """Worlds, each in every condition."""

    worlds: tuple[str, ...]
    conditions: dict[str, Setting]


SWEEPS = {
    "main": Sweep(EVERY, {"no background": Setting()}),
    "shuffled": Sweep(("items_fixed", "costs", "four_room", "resource"), {"ids shuffled": Setting(shuffled=True)}),
    "background": Sweep(EVERY, {"10,000 background steps": Setting(background=10_000)}),
    "episodes": Sweep(
        ("items_fixed", "items_random", "costs"), {f"{episodes} episodes": Setting(episodes=episodes) for episodes in (5, 20, 100, 500)}
    ),
    "noise": Sweep(
        ("items_fixed", "costs", "resources"),
        {f"epsilon {noise}": Setting(noise=noise) for noise in (0.0, 0.1, 0.3, 0.5)}
        | {
            f"boltzmann {noise}{', 10,000 background steps' if background else ''}": Setting(
                noise=noise, kind="boltzmann", background=background
            )
            for noise in (0.1, 0.3)
            for background in (0, 10_000)
        },
    ),
    "agents": Sweep(("items_fixed",), {f"{k} agent{'s' if k > 1 else ''}": Setting(agents=k) for k in (1, 2, 6, 30)}),
}


class Fit(NamedTuple):
    """What is learned once, however many sweeps ask for it."""

    world: str
    setting: Setting
    seed: int


class Place(NamedTuple):
    """Where a fit is reported."""

    sweep: str
    condition: str


def plan(sweeps: Iterable[str], chosen: Sequence[str], seeds: Iterable[int]) -> dict[Fit, list[Place]]:
    """Every fit of these sweeps in the chosen worlds and where it belongs; seed after seed, so that what a cut run leaves is balanced."""
    result: dict[Fit, list[Place]] = {}
    names = list(sweeps)
    for seed in seeds:
        for name in names:
            for world in SWEEPS[name].worlds:
                for condition, setting in SWEEPS[name].conditions.items() if world in chosen else ():
                    result.setdefault(Fit(world, setting, seed), []).append(Place(name, condition))
    return result


def agents_of(fit: Fit) -> tuple[str, ...]:
    """Whose rewards are inferred."""
    return tuple(minecart.TASKS) if fit.world == MINECART else world_of(fit).agents


def world_of(fit: Fit) -> World:
    """The finite world of a fit, with the agents that it asks for."""
    world = _world(fit.world)
    return world if fit.setting.agents is None else with_agents(world, fit.setting.agents, fit.seed)


@functools.cache
def _world(name: str) -> World:
    return worlds.WORLDS[name]()


def with_agents(world: World, k: int, seed: int) -> World:
    """The world with k agents of random tasks, each weight drawn evenly between the least and the most that the world's own agents give it.

    Of one seed, the first of many agents are those of few.
    """
    own = np.array(list(world.tasks.values()))
    drawn = np.random.default_rng(seed).uniform(own.min(axis=0), own.max(axis=0), (k, own.shape[1]))
    return dataclasses.replace(world, tasks={f"agent {i}": w for i, w in enumerate(drawn)})
