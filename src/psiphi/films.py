"""An episode as a moving picture: any Gymnasium environment that draws itself, driven by any policy."""

import io
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import jax
import numpy as np
from jax import Array
from PIL import Image, ImageDraw, ImageFont

from psiphi import disk
from psiphi.errors import UserError
from psiphi.loops.evaluate import Policy

INK, PAPER = (34, 34, 34), (255, 255, 255)
FOOT = 22
"""Pixels below the picture, for the words."""
PAUSE_MS = 1_500
"""How long the last picture stays before the film begins again."""


class Film(NamedTuple):
    """What an episode came to."""

    steps: int
    earned: float
    terminated: bool


def film(env: gymnasium.Env[Any, Any], policy: Policy, key: Array, path: Path, *, longest: int = 1_000, speed: float = 1.0) -> Film:
    """Write one episode, at most `longest` steps of it, as an animated GIF; the key decides the episode and the policy's choices.

    `policy(obs[1], key) -> action[1]` is asked once per step. The environment must have been made with ``render_mode="rgb_array"``; its
    ``render_fps`` times `speed` is the film's pace.
    """
    if env.render_mode != "rgb_array":
        raise UserError(f"The environment's render_mode is {env.render_mode!r}, but a film needs 'rgb_array'.")
    if path.suffix.lower() != ".gif":
        raise UserError(f"{path} does not end in .gif, which is what a film is written as.")
    reset_key, act_key = jax.random.split(key)
    obs, _ = env.reset(seed=int(jax.random.bits(reset_key)) % 2**31)
    act = jax.jit(policy)
    frames = [_frame(env, 0, 0.0)]
    steps, earned, terminated, truncated = 0, 0.0, False, False
    while steps < longest and not terminated and not truncated:
        action = int(act(np.asarray(obs)[None], jax.random.fold_in(act_key, steps))[0])
        obs, reward, terminated, truncated, _ = env.step(action)
        steps, earned = steps + 1, earned + float(reward)
        frames.append(_frame(env, steps, earned))
    _write(path, frames, 1000 / (env.metadata.get("render_fps", 5) * speed))
    return Film(steps, earned, terminated)


def _frame(env: gymnasium.Env[Any, Any], step: int, earned: float) -> Image.Image:
    """The environment's picture over a line of words."""
    picture = Image.fromarray(np.asarray(env.render()))
    image = Image.new("RGB", (picture.width, picture.height + FOOT), PAPER)
    image.paste(picture)
    pen = ImageDraw.Draw(image)
    font = ImageFont.load_default(13)
    pen.text((6, picture.height + 3), f"return {earned:+.1f}", fill=INK, font=font)
    pen.text((picture.width - 6, picture.height + 3), f"step {step}", fill=INK, font=font, anchor="ra")
    return image


def _write(path: Path, frames: list[Image.Image], frame_ms: float) -> None:
    """All at once: whoever looks finds the old file or the whole new one."""
    data = io.BytesIO()
    colours = [frame.quantize(64, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE) for frame in frames]
    durations = [round(frame_ms)] * (len(frames) - 1) + [PAUSE_MS]
    colours[0].save(data, format="GIF", save_all=True, append_images=colours[1:], duration=durations, loop=0, optimize=True)
    disk.write(path, data.getvalue())
