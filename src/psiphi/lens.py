"""How networks see a stranger's observations: numbers of any scale, pictures of any layout.

Vectors are standardised by the mean and spread of the demonstrations. Pictures ``[H, W, C]`` of bytes stay bytes, as the networks scale
them themselves, and so do small boards of small numbers; large boards and small pictures are standardised. Pictures with their channels
first, or without a channel axis, are turned round.
"""

from dataclasses import dataclass
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from psiphi.cumulants import BRIGHTEST
from psiphi.nets import PsiPhiNet
from psiphi.types import EnvSpec

Layout = Literal["as it is", "channels first", "grey"]

FARTHEST = 10.0
"""Standardised numbers are kept within this distance of 0: a column that hardly varied in the demonstrations may vary elsewhere."""

SMALLEST_PICTURE = 17
"""What is lower than this is a board, not a picture; the torsos draw the same line."""


def layout_of(shape: tuple[int, ...], dtype: Any) -> Layout:
    """Where the channels of a picture are."""
    if len(shape) == 2 and np.dtype(dtype) == np.uint8 and min(shape) >= SMALLEST_PICTURE:
        return "grey"
    if len(shape) == 3 and shape[0] < SMALLEST_PICTURE <= min(shape[1:]):
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
    """What is done to observations of one kind before a network sees them."""

    shape: tuple[int, ...]
    """Of an observation, as the environment gives it."""
    dtype: np.dtype
    layout: Layout
    standardise: bool
    mean: np.ndarray | jax.Array
    scale: np.ndarray | jax.Array

    @property
    def seen_shape(self) -> tuple[int, ...]:
        return arranged_shape(self.shape, self.layout)

    def spec(self, num_actions: int) -> EnvSpec:
        """What a network must know: the observations as it sees them."""
        return EnvSpec(self.seen_shape, np.float32 if self.standardise else self.dtype, num_actions)

    def on(self, net: PsiPhiNet) -> PsiPhiNet:
        """A network that sees through the lens by itself, so that it reads what the environment gives."""
        parts = [lambda n: n.torso] if net.phi_torso is None else [lambda n: n.torso, lambda n: n.phi_torso]
        for part in parts:
            net = eqx.tree_at(part, net, Seeing(part(net), jnp.asarray(self.mean), jnp.asarray(self.scale), self.layout, self.standardise))
        return net


def lens_for(obs: np.ndarray, shape: tuple[int, ...], dtype: Any) -> Lens:
    """The lens for observations of this shape and kind, of which `obs` ``[M, ...]`` are examples."""
    kind = np.dtype(dtype)
    layout = layout_of(shape, kind)
    standardise = not (maybe_picture(shape, kind) and _as_networks_take_it(obs, shape, layout))
    if not standardise:
        return Lens(shape, kind, layout, False, np.zeros((), np.float32), np.ones((), np.float32))
    arranged = look(np.asarray(obs), 0.0, 1.0, layout, False)
    axes = tuple(range(arranged.ndim - 1)) if arranged.ndim == 4 else (0,)  # of a picture, one mean and spread per channel
    numbers = arranged.astype(np.float32)
    mean, spread = numbers.mean(axis=axes, dtype=np.float64), numbers.std(axis=axes, dtype=np.float64)
    rounding = 4 * np.finfo(np.float32).eps * np.abs(mean)
    scale = np.where(spread > rounding, spread, 1.0)
    return Lens(shape, kind, layout, True, mean.astype(np.float32), scale.astype(np.float32))


def maybe_picture(shape: tuple[int, ...], dtype: Any) -> bool:
    """Whether observations are bytes in rows and columns: of a picture or of a board, which only their values tell."""
    return np.dtype(dtype) == np.uint8 and len(arranged_shape(shape, layout_of(shape, dtype))) == 3


def _as_networks_take_it(obs: np.ndarray, shape: tuple[int, ...], layout: Layout) -> bool:
    """Whether bytes are what the networks take them for by their size: pictures, which they scale, or boards, which they do not."""
    return not len(obs) or (arranged_shape(shape, layout)[0] >= SMALLEST_PICTURE) == (int(np.max(obs)) > BRIGHTEST)


def blank(shape: tuple[int, ...], dtype: Any, standardise: bool) -> Lens:
    """A lens whose numbers are yet to be read from a file."""
    layout = layout_of(shape, dtype)
    arranged = arranged_shape(shape, layout)
    numbers = () if not standardise else arranged[-1:] if len(arranged) == 3 else arranged
    return Lens(shape, np.dtype(dtype), layout, standardise, np.zeros(numbers, np.float32), np.ones(numbers, np.float32))


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
