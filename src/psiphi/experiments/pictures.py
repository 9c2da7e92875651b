"""What the pictures show, as arrays: cumulants over a board, and episodes of an agent that was given a task."""

import functools
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from matplotlib import font_manager
from PIL import Image, ImageDraw, ImageFont

from psiphi import disk
from psiphi import model as models
from psiphi.envs import coingrid
from psiphi.envs.coingrid import FORWARD, NUM_DIRECTIONS, CoinGridConfig
from psiphi.model import Model


class Panels(NamedTuple):
    """A board and the cumulants over it."""

    board: np.ndarray
    """The observation, ``[size, size, 5]``, without the agent."""
    phi: np.ndarray
    """``[d, room, room]``: each cumulant of stepping onto each cell."""


def cumulants_over_board(world: CoinGridConfig, model: Model, key: Array) -> Panels:
    """Stand beside every cell, look at it and go forward: the cumulants of that step, averaged over the sides one can come from.

    No player stands on a coin that is still there, so those sides are left out.
    """
    room = coingrid.room_size(world)
    start = coingrid.reset(world, key)
    onto, direction = np.divmod(np.arange(room * room * NUM_DIRECTIONS), NUM_DIRECTIONS)
    rows = onto // room - np.array([0, 1, 0, -1])[direction]
    columns = onto % room - np.array([1, 0, -1, 0])[direction]
    stand = np.clip(rows, 0, room - 1) * room + np.clip(columns, 0, room - 1)
    valid = (rows >= 0) & (rows < room) & (columns >= 0) & (columns < room) & ~np.isin(stand, np.asarray(start.cells))

    def seen(position: Array, direction: Array) -> Array:
        return coingrid.observe(world, start._replace(position=position, direction=direction))

    obs = jax.vmap(seen)(jnp.asarray(stand, jnp.int32), jnp.asarray(direction, jnp.int32))
    phi = np.asarray(jax.jit(models.phi)(model, obs, jnp.full(len(stand), FORWARD)))
    weight = valid.reshape(-1, NUM_DIRECTIONS, 1).astype(float)
    mean = (phi.reshape(-1, NUM_DIRECTIONS, phi.shape[1]) * weight).sum(1) / np.maximum(weight.sum(1), 1)
    board = np.array(coingrid.observe(world, start))
    board[..., coingrid.AGENT] = 0
    return Panels(board, mean.T.reshape(-1, room, room))


def described(world: CoinGridConfig, demonstrators: Sequence[str], model: Model, matrix: np.ndarray, key: Array) -> dict[str, Any]:
    """What `report` needs to draw the cumulants over a board; `matrix` are their correlations with the colours."""
    panels = cumulants_over_board(world, model, key)
    return {
        "board": panels.board.tolist(),
        "phi": np.round(panels.phi, 5).tolist(),
        "correlation": np.round(matrix, 5).tolist(),
        "demonstrators": list(demonstrators),
        "preferences": np.round(np.asarray(model.w[: len(demonstrators)]), 5).tolist(),
    }


class Episode(NamedTuple):
    """What an agent saw and earned, from the first observation to the last."""

    obs: np.ndarray
    """``[T + 1, size, size, 5]``"""
    earned: np.ndarray
    """``[T + 1]``: the return so far."""


@functools.partial(jax.jit, static_argnames=("world", "temperature"))
def _played(
    world: CoinGridConfig, temperature: float, model: Model, weights: Array, w: Array, board_key: Array, act_key: Array
) -> tuple[Array, Array, Array]:
    env = coingrid.make(world, weights)
    state, obs = env.reset(board_key)

    def step(now: tuple[coingrid.State, Array], step_key: Array) -> tuple[tuple[coingrid.State, Array], tuple[Array, Array, Array]]:
        state, obs = now
        action = models.act(model, obs[None], w[None], step_key, temperature=temperature)[0]
        state, reached = env.step(state, action, step_key)
        return (state, reached.obs), (reached.obs, reached.reward, reached.last)

    _, (seen, reward, last) = jax.lax.scan(step, (state, obs), jax.random.split(act_key, world.max_steps))
    return jnp.concatenate([obs[None], seen]), reward, last


def play(world: CoinGridConfig, temperature: float, model: Model, weights: Sequence[float], w: np.ndarray, key: Array) -> Episode:
    """One episode of the task `weights` by an agent that takes its preferences to be `w`; the key decides the board."""
    board_key, act_key = jax.random.split(key)
    task = jnp.asarray(weights, jnp.float32)
    obs, reward, last = map(np.asarray, _played(world, temperature, model, task, jnp.asarray(w), board_key, act_key))
    steps = int(np.argmax(last)) + 1
    return Episode(obs[: steps + 1], np.concatenate([[0.0], np.cumsum(reward[:steps])]))


# --- Moving pictures -----------------------------------------------------------------------------------------------------

BACKGROUND, INK, FAINT = (255, 255, 255), (34, 34, 34), (120, 120, 120)
MARGIN, HEAD, FOOT = 14, 52, 30
FRAME_MS, PAUSE_MS = 220, 1400
LONGEST = 30
"""Steps shown of an episode: one that only avoids things would go on to the time limit."""


class Strip(NamedTuple):
    """One agent of a moving picture: what it is after, and its episodes one after the other."""

    title: str
    words: str
    episodes: Sequence[Episode]


def write_gif(path: Path, strips: Sequence[Strip], pixels: int = 26) -> None:
    """The agents side by side, episode by episode; whoever is done waits for the others."""
    frames: list[Image.Image] = []
    durations: list[int] = []
    for number in range(len(strips[0].episodes)):
        longest = min(max(len(strip.episodes[number].obs) for strip in strips), LONGEST + 1)
        frames += [_frame(strips, number, t, pixels) for t in range(longest)]
        durations += [FRAME_MS] * (longest - 1) + [PAUSE_MS]
    data = io.BytesIO()
    colours = [frame.quantize(64, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE) for frame in frames]
    colours[0].save(data, format="GIF", save_all=True, append_images=colours[1:], duration=durations, loop=0, optimize=True)
    disk.write(path, data.getvalue())


def _frame(strips: Sequence[Strip], number: int, t: int, pixels: int) -> Image.Image:
    side = strips[0].episodes[number].obs.shape[1] * pixels
    image = Image.new("RGB", (len(strips) * (side + MARGIN) + MARGIN, HEAD + side + FOOT), BACKGROUND)
    pen = ImageDraw.Draw(image)
    for i, strip in enumerate(strips):
        episode = strip.episodes[number]
        now = min(t, len(episode.obs) - 1)
        left = MARGIN + i * (side + MARGIN)
        image.paste(_board(episode.obs[now].tobytes(), episode.obs[now].shape, pixels), (left, HEAD))
        pen.text((left, 10), strip.title, fill=INK, font=_font(17, bold=True))
        pen.text((left, 33), strip.words, fill=FAINT, font=_font(11))
        pen.text((left, HEAD + side + 8), f"return {episode.earned[now]:+.3g}", fill=INK, font=_font(12, bold=True))
        pen.text((left + side, HEAD + side + 8), f"step {now}", fill=FAINT, font=_font(12), anchor="ra")
    return image


@functools.lru_cache(maxsize=1024)
def _board(obs: bytes, shape: tuple[int, ...], pixels: int) -> Image.Image:
    """Drawn once: an agent that waits, or goes back and forth, sees the same board again."""
    return Image.fromarray(coingrid.render(np.frombuffer(obs, np.uint8).reshape(shape), pixels))


@functools.cache
def _font(size: int, bold: bool = False) -> ImageFont.FreeTypeFont:
    return ImageFont.truetype(
        font_manager.findfont(font_manager.FontProperties(family="DejaVu Sans", weight="bold" if bold else "normal")), size
    )
