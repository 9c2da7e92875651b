"""How networks see a stranger's observations: numbers of any scale, pictures of any layout.

What an observation is, a vector, a board or a picture, its values tell, whatever its size, where the world does not say it. Vectors are
standardised by the mean and spread of the demonstrations. Pictures ``[H, W, C]`` of bytes stay bytes, as the networks scale them
themselves, and so do boards of bytes; other numbers are standardised, a channel at a time. Pictures with their channels first, or without a
channel axis, are turned round.
"""

from dataclasses import dataclass
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from psiphi.cumulants import BRIGHTEST
from psiphi.nets import PsiPhiNet
from psiphi.types import EnvSpec, Kind

Layout = Literal["as it is", "channels first", "grey"]

FARTHEST = 10.0
"""Standardised numbers are kept within this distance of 0: a column that hardly varied in the demonstrations may vary elsewhere."""


def kind_of(obs: Any, shape: tuple[int, ...], dtype: Any) -> Kind:
    """What observations of this shape are, by examples of them: a board's numbers are whole, and none is large."""
    if not has_cells(shape, dtype):
        return "vector"
    numbers = np.asarray(obs)
    whole = np.issubdtype(numbers.dtype, np.integer) or numbers.dtype == bool or bool(np.all(numbers == np.round(numbers)))
    if whole and (not numbers.size or int(np.max(numbers)) <= BRIGHTEST):
        return "board" if len(shape) == 3 else "vector"
    return "picture"


def has_cells(shape: tuple[int, ...], dtype: Any) -> bool:
    """Whether observations have rows and columns of cells or pixels: of three axes, or bytes of two. What they are their values tell."""
    return len(shape) == 3 or (len(shape) == 2 and np.dtype(dtype) == np.uint8)


def layout_of(shape: tuple[int, ...], kind: Kind) -> Layout:
    """Where the channels of a picture are: there are fewer of them than rows and columns."""
    if kind == "picture" and len(shape) == 2:
        return "grey"
    if kind == "picture" and len(shape) == 3 and shape[0] < min(shape[1:]):
        return "channels first"
    return "as it is"


def arranged_shape(shape: tuple[int, ...], layout: Layout) -> tuple[int, ...]:
    return {"as it is": shape, "channels first": (*shape[1:], shape[0]), "grey": (*shape, 1)}[layout]


def look(obs: Any, mean: Any, scale: Any, layout: Layout, standardise: bool) -> Any:
    """Observations ``[B, ...]`` as a network sees them; NumPy's stay NumPy's."""
    library = np if isinstance(obs, np.ndarray) else jnp
    if layout == "channels first":
        obs = library.moveaxis(obs, 1, -1)
    elif layout == "grey":
        obs = obs[..., None]
    if not standardise:
        return obs
    return library.clip((obs.astype(np.float32) - mean) / scale, -FARTHEST, FARTHEST)


@dataclass(frozen=True, eq=False)
class Lens:
    """What is done to a world's observations before a network sees them."""

    shape: tuple[int, ...]
    """Of an observation, as the environment gives it."""
    dtype: np.dtype
    kind: Kind
    standardise: bool
    mean: np.ndarray | jax.Array
    scale: np.ndarray | jax.Array

    @property
    def layout(self) -> Layout:
        return layout_of(self.shape, self.kind)

    @property
    def seen_shape(self) -> tuple[int, ...]:
        return arranged_shape(self.shape, self.layout)

    def spec(self, num_actions: int) -> EnvSpec:
        """What a network must know: the observations as it sees them."""
        return EnvSpec(self.seen_shape, np.float32 if self.standardise else self.dtype, num_actions, kind=self.kind)

    def on(self, net: PsiPhiNet) -> PsiPhiNet:
        """A network that sees through the lens by itself, so that it reads what the environment gives."""
        parts = [lambda n: n.torso] if net.phi_torso is None else [lambda n: n.torso, lambda n: n.phi_torso]
        for part in parts:
            net = eqx.tree_at(part, net, Seeing(part(net), jnp.asarray(self.mean), jnp.asarray(self.scale), self.layout, self.standardise))
        return net


def lens_for(obs: np.ndarray, shape: tuple[int, ...], dtype: Any, kind: Kind | None = None) -> Lens:
    """The lens for observations of this shape and type, of which `obs` ``[M, ...]`` are examples; they tell the kind if it is not said."""
    kind = kind or kind_of(obs, shape, dtype)
    if kind != "vector" and np.dtype(dtype) == np.uint8:
        return blank(shape, dtype, False, kind)
    arranged = look(np.asarray(obs), 0.0, 1.0, layout_of(shape, kind), False)
    axes = tuple(range(arranged.ndim - 1)) if arranged.ndim == 4 else (0,)  # of cells and pixels, one mean and spread per channel
    numbers = arranged.astype(np.float32)
    mean, spread = numbers.mean(axis=axes, dtype=np.float64), numbers.std(axis=axes, dtype=np.float64)
    rounding = 4 * np.finfo(np.float32).eps * np.abs(mean)
    scale = np.where(spread > rounding, spread, 1.0)
    return Lens(shape, np.dtype(dtype), kind, True, mean.astype(np.float32), scale.astype(np.float32))


def blank(shape: tuple[int, ...], dtype: Any, standardise: bool, kind: Kind) -> Lens:
    """A lens whose numbers are yet to be read from a file, or that has none."""
    arranged = arranged_shape(shape, layout_of(shape, kind))
    numbers = () if not standardise else arranged[-1:] if len(arranged) == 3 else arranged
    return Lens(shape, np.dtype(dtype), kind, standardise, np.zeros(numbers, np.float32), np.ones(numbers, np.float32))


class Seeing(eqx.Module):
    """A torso behind a lens."""

    torso: Any
    mean: jax.Array
    scale: jax.Array
    layout: Layout = eqx.field(static=True)
    standardise: bool = eqx.field(static=True)

    def __call__(self, obs: jax.Array) -> jax.Array:
        mean, scale = jax.lax.stop_gradient((self.mean, self.scale))
        return self.torso(look(obs, mean, scale, self.layout, self.standardise))
