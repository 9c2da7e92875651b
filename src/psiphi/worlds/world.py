"""What a world is to a run: how it is made for a task, who demonstrates in it, what returns mean, and which settings suit it.

A world is one file beside this one and one line in `psiphi.worlds.WORLDS`. Everything that trains, judges or draws asks the record below
and never the world's name.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import gymnasium
import jax.numpy as jnp
import numpy as np
from gymnasium.vector import VectorEnv
from jax import Array

from psiphi.errors import UserError
from psiphi.types import Demos, Env, Kind, Metrics, Symmetry

Makes = Callable[[], gymnasium.Env[Any, Any]]
"""A function that makes a Gymnasium environment."""


class SideBySide(NamedTuple):
    """A world that runs many environments at once by itself."""

    make: Callable[[int], VectorEnv[Any, Any, Any]]
    """``make(num_envs)``"""
    symmetry: Symmetry | None = None
    """A map under which the world is the same world."""
    kind: Kind | None = None
    """What its observations are, if it says so."""


OWN = ""
"""The task of a world that has only one, or the one that its config names."""


class Recorded(NamedTuple):
    """Demonstrations of a world's own demonstrators."""

    demos: Demos
    episode: Array
    """``[K, M]``: the episode of each step; -1 is padding."""
    best: Array | None = None
    """``[K, M]``: how likely the demonstrator's likeliest action was, where that is known."""


class Boards(NamedTuple):
    """Some beginnings of a small world, each with every state that can follow: what a page needs to walk in it."""

    obs: np.ndarray
    """``[boards, S, ...]``: what is seen in each state."""
    next: np.ndarray
    """``[boards, S, A]``: the state that each action leads to."""
    start: np.ndarray
    """``[boards]``: the state in which each begins."""
    names: tuple[str, ...]
    """What can be paid for."""
    actions: tuple[str, ...]
    """What the actions are called."""
    walk: tuple[np.ndarray, ...]
    """A random walk: obs, action, next_obs, discount, and ``[N, names]`` how much of each was met."""
    drawing: dict[str, Any]
    """How the page draws it, as plain values."""


def _none(config: Any) -> tuple[str, ...]:
    del config
    return ()


def _plain(config: Any, task: str, got: Mapping[str, Array]) -> Metrics:
    del config, task
    return {"return": jnp.mean(got["returns"])}


def _same(config: Any, task: str) -> str:
    del config
    return task


def _only_own(config: Any, task: str) -> str:
    del config
    if task not in (OWN, "own"):
        raise UserError(f"{task!r} is not a task of this world, which has only its own; leave --task out.")
    return OWN


@dataclass(frozen=True)
class World:
    """A world as data and functions. `config` below is always the world's own config, a frozen value."""

    name: str
    words: str
    """One sentence for lists."""
    env: Callable[[Any, str], Env | Makes | SideBySide]
    """``env(config, task)``: a JAX environment for the compiled loop, or what makes Gymnasium environments for the other."""
    config: Any = None
    """The world's default config; None: it has none."""
    tasks: Callable[[Any], tuple[str, ...]] = _none
    """Tasks by name, the default first; other names may be allowed, too. Empty: there is only one."""
    task: Callable[[Any, str], str] = _only_own
    """``task(config, name)``: the name in its standard form; refuses what is no task."""
    demonstrators: Callable[[Any], tuple[str, ...]] = _none
    """The names of those who demonstrate in this world by default."""
    wants: Callable[[Any, str], str] | None = None
    """``wants(config, demonstrator)``: the task of a demonstrator; None: no task says what they want."""
    record: Callable[[Any, tuple[str, ...], int, int, str], Recorded] | None = None
    """``record(config, demonstrators, episodes, seed, split)``: so many episodes of each; split "test" are others than "train"."""
    earned: Callable[[Any, tuple[str, ...], int, int], dict[str, float]] | None = None
    """``earned(config, demonstrators, episodes, seed)``: the mean return of each by what it wants; None: it is not counted."""
    watched: Callable[[Any], tuple[str, ...]] = _none
    """The names of those who are seen while one acts, in the order of the numbers that the environment gives them; empty: none are."""
    figures: Callable[[Any, str, Mapping[str, Array]], Metrics] = _plain
    """``figures(config, task, got)``: what episodes (`returns`, `lengths`) come to; "normalised_return" where 1 has a meaning."""
    longest: Callable[[Any], int] = lambda config: 10_000
    """Steps after which an episode is taken as it is when a policy is judged."""
    presets: Mapping[str, Callable[[], dict[str, Any]]] = field(default_factory=dict)
    """By algorithm: fields of a `Run` that suit this world, the algorithm's config ("agent") among them."""
    paper: Mapping[str, Callable[[], dict[str, Any]]] = field(default_factory=dict)
    """The same for the paper's own settings, where it prints some."""
    truth: Callable[..., dict[str, Any]] | None = None
    """``truth(config, demonstrators, model, seed, episodes)``: what a model inferred beside what is true; None: the truth is not known."""
    starc: Callable[[Any, tuple[str, ...], Any, Array, float], list[float]] | None = None
    """``starc(config, demonstrators, model, key, gamma)``: for each the STARC distance of what was inferred to its true reward, exact or
    sampled; None: the truth is not known."""
    lensed: bool = False
    """Whether it is not known how its numbers are scaled: they are then standardised by the demonstrations before a network sees them."""
    entered: bool = True
    """Whether agents can act in it, so that its actions have numbers of their own."""
    drawn: Callable[[Any, str], gymnasium.Env[Any, Any]] | None = None
    """``drawn(config, task)``: a Gymnasium environment that draws itself, ``render_mode="rgb_array"``; None: it cannot be drawn."""

    boards: Callable[[Any], Boards | None] | None = None
    """``boards(config)``: some beginnings with all their states; None: it has too many, or cannot list them."""

    @property
    def own(self) -> str:
        """The task of a run that names none."""
        names = self.tasks(self.config)
        return names[0] if names else OWN
