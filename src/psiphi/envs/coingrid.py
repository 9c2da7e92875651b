"""CoinGrid: a walled room with coins of three colours, after the paper's appendix, in pure JAX.

The agent moves as in MiniGrid (turn left, turn right, go forward) and collects the coins it steps on. A task is a weight per
colour. The board is seen whole, ``[row, column, channel]``; see `CoinGridConfig.orientation` for the one place where the
default differs from the paper.
"""

import dataclasses
import re
from collections.abc import Sequence
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float, Int, UInt8

from psiphi import configs
from psiphi.configs import Count, Number, Seed
from psiphi.errors import UserError
from psiphi.types import Env, EnvSpec, Symmetry, TimeStep

LEFT, RIGHT, FORWARD = 0, 1, 2
NUM_ACTIONS = 3
EAST, SOUTH, WEST, NORTH = 0, 1, 2, 3
NUM_DIRECTIONS = 4
COLOURS = ("red", "green", "yellow")
RED, GREEN, YELLOW, WALL, AGENT = 0, 1, 2, 3, 4
NUM_CHANNELS = 5

TASKS: dict[str, tuple[float, float, float]] = {
    "R+G": (1.0, 1.0, 0.0),
    "R-G": (1.0, -1.0, 0.0),
    "-R+G": (-1.0, 1.0, 0.0),
    "-R-G": (-1.0, -1.0, 0.0),
}
"""The paper's four transfer tasks: weights of red, green and yellow."""


@dataclasses.dataclass(frozen=True)
class CoinGridConfig:
    """The world's shape. Rewards are not part of it: they are the weights given to `make`."""

    size: int = 7
    """Side of the board in cells, border walls included (the paper's 7)."""
    coins: tuple[Number, Number, Number] = (2, 2, 1)
    """Number of red, green and yellow coins."""
    num_layouts: Number = 0
    """Number of layouts of the coins, drawn independently of each other; 0 draws a fresh one at each reset, 25 is the authors' number."""
    layout_seed: Seed = 0
    """Which layouts those are: layout i comes from this seed and i alone."""
    max_steps: Count = 40
    """Time limit of an episode; reaching it ends the episode but is not a termination (discount 1)."""
    orientation: Literal["half", "binary"] = "half"
    """How the agent's channel shows where it looks. "half": agent's cell 2, cell in front 1, unambiguous. "binary": both 1, as in
    the paper; an agent at A that looks at B is then indistinguishable from one at B that looks at A."""
    ends_when_empty: bool = True
    """Whether collecting the last coin terminates the episode (discount 0)."""

    def __post_init__(self):
        configs.check(self, "CoinGrid's ")
        if not 3 <= self.size <= 250:
            raise UserError(f"CoinGrid's size is {self.size}, expected a number from 3 (walls and one free cell) to 250.")
        if len(self.coins) != len(COLOURS) or min(self.coins) < 0 or sum(self.coins) == 0:
            raise UserError(f"CoinGrid's coins are {self.coins}, expected counts of red, green, yellow, not negative, not all 0.")
        most = num_cells(self) - 1
        if sum(self.coins) > most:
            raise UserError(f"CoinGrid has {sum(self.coins)} coins, but a room of size {self.size} holds at most {most} beside the agent.")
        if not 0 <= self.num_layouts < 2**16:
            raise UserError(f"CoinGrid's num_layouts is {self.num_layouts}, expected 0 (unlimited) or a number below {2**16}.")


class State(NamedTuple):
    """Where everything is. Cells are numbered row by row through the room inside the walls."""

    cells: Int[Array, "n"]
    """The coins' cells, red ones first, then green, then yellow."""
    alive: Bool[Array, "n"]
    """Whether each coin is still there."""
    position: Int[Array, ""]
    """The agent's cell."""
    direction: Int[Array, ""]
    """Where it looks, in MiniGrid's numbering: 0 east, 1 south, 2 west, 3 north."""
    t: Int[Array, ""]
    """Steps taken in this episode."""


def room_size(config: CoinGridConfig) -> int:
    """Side of the room inside the walls."""
    return config.size - 2


def num_cells(config: CoinGridConfig) -> int:
    """Cells inside the walls."""
    return room_size(config) ** 2


def num_coins(config: CoinGridConfig) -> int:
    """Coins of all colours."""
    return sum(config.coins)


def coin_colours(config: CoinGridConfig) -> np.ndarray:
    """The colour (0 red, 1 green, 2 yellow) of each coin, ``int[n]``."""
    return np.repeat(np.arange(len(COLOURS)), config.coins)


# --- Tasks ---------------------------------------------------------------------------------------------------------------


def task_weights(name: str) -> tuple[float, float, float]:
    """Weights of a task by its name: "R+G", "-R+G", "Y", "R-0.5G" ..."""
    weights = dict.fromkeys("RGY", 0.0)
    if not name or not re.fullmatch(r"([+-]?(\d+(\.\d*)?|\.\d+)?[RGY])+", name):
        raise UserError(f"{name!r} is not a CoinGrid task; expected signed colours such as {', '.join(TASKS)} or 'Y-0.5R'.")
    for sign, size, letter in re.findall(r"([+-]?)([\d.]*)([RGY])", name):
        weights[letter] += float(size or 1) * (-1 if sign == "-" else 1)
    return weights["R"], weights["G"], weights["Y"]


def task_name(weights: Sequence[float]) -> str:
    """The name of a task, the inverse of `task_weights`; colours of weight 0 are left out."""
    terms = [(w, "" if abs(w) == 1 else f"{abs(w):g}", letter) for w, letter in zip(weights, "RGY", strict=True) if w]
    return "".join(f"{'-' if w < 0 else '+'}{size}{letter}" for w, size, letter in terms).removeprefix("+") or "0"


def return_range(config: CoinGridConfig, weights: Float[Array, "3"] | Sequence[float]) -> tuple[Array, Array]:
    """The smallest and the largest return a task allows: every unwanted coin and no other, every wanted coin and no other."""
    totals = jnp.asarray(weights, jnp.float32) * jnp.asarray(config.coins)
    return jnp.minimum(totals, 0).sum(), jnp.maximum(totals, 0).sum()


def normalise(config: CoinGridConfig, weights: Float[Array, "3"] | Sequence[float], ret: Array | float) -> Array:
    """A return on the scale on which the task's minimum is -1 and its maximum +1 (0 for a task without rewards).

    Collecting everything scores 1, 0, 0, -1 on R+G, R-G, -R+G, -R-G when red and green coins are equally many.
    """
    low, high = return_range(config, weights)
    width = high - low
    return jnp.where(width > 0, 2 * (ret - low) / jnp.where(width > 0, width, 1) - 1, 0.0)


# --- Where things are put ------------------------------------------------------------------------------------------------


def _uniform(key: Array, counts: np.ndarray) -> Int[Array, "m"]:
    """Uniform integers, the i-th below ``counts[i]``, by scaling random words.

    Small ones take half a word each (a relative bias below 2^-8, for the room of 25 cells below 2^-11): drawing words is most of what a
    reset costs.
    """
    if counts.max() <= 256:
        words = jax.random.bits(key, (-(-len(counts) // 2),))
        words = jnp.concatenate([words >> 16 << 16, words << 16])[: len(counts)]
    else:
        words = jax.random.bits(key, counts.shape)
    counts = counts.astype(np.uint32)
    return (((words >> 16) * counts + ((words & 0xFFFF) * counts >> 16)) >> 16).astype(jnp.int32)


def _distinct(ranks: Int[Array, "n"]) -> Int[Array, "n"]:
    """Distinct cells from a Lehmer code: `ranks[i]` counts among the cells which items 0..i-1 leave free."""
    order = np.arange(len(ranks))
    for i in reversed(order[:-1]):
        ranks = ranks + ((ranks >= ranks[i]) & (order > i))
    return ranks


def _free_cell(config: CoinGridConfig, cells: Int[Array, "n"], rank: Array) -> Array:
    """The rank-th cell without a coin."""
    every = np.arange(num_cells(config))
    free_before = every - (cells[:, None] < every).sum(0)
    is_free = (cells[:, None] != every).all(0)
    return jnp.where(is_free & (free_before == rank), every, 0).sum(dtype=jnp.int32)


def _choices(config: CoinGridConfig, items: int) -> np.ndarray:
    """How many cells remain for each of some items put down one after the other."""
    return num_cells(config) - np.arange(items)


def sample_layout(config: CoinGridConfig, key: Array) -> Int[Array, "n"]:
    """Distinct cells for the coins, all arrangements equally likely."""
    return _distinct(_uniform(key, _choices(config, num_coins(config))))


def layout(config: CoinGridConfig, index: Array | int) -> Int[Array, "n"]:
    """The coins' cells in one of the config's `num_layouts` layouts."""
    return sample_layout(config, jax.random.fold_in(jax.random.key(config.layout_seed), index))


def reset(config: CoinGridConfig, key: Array) -> State:
    """The start of an episode: a layout, and the agent on a random cell without a coin, looking anywhere."""
    n = num_coins(config)
    if config.num_layouts:
        index, rank, direction = _uniform(key, np.array([config.num_layouts, num_cells(config) - n, NUM_DIRECTIONS]))
        cells = layout(config, index)
        return reset_to(config, cells, _free_cell(config, cells, rank), direction)
    *ranks, direction = _uniform(key, np.append(_choices(config, n + 1), NUM_DIRECTIONS))
    cells = _distinct(jnp.stack(ranks))
    return reset_to(config, cells[:n], cells[n], direction)


def reset_to(config: CoinGridConfig, cells: Int[Array, "n"] | Sequence[int], position: Array | int, direction: Array | int) -> State:
    """The start of an episode with everything put where the caller says."""
    return State(
        cells=jnp.asarray(cells, jnp.int32),
        alive=jnp.ones(num_coins(config), bool),
        position=jnp.asarray(position, jnp.int32),
        direction=jnp.asarray(direction, jnp.int32),
        t=jnp.zeros((), jnp.int32),
    )


# --- What is seen and what happens ---------------------------------------------------------------------------------------


def _offset(direction: Array) -> tuple[Array, Array]:
    """Rows and columns of one step ahead."""
    rows = (direction == SOUTH).astype(jnp.int32) - (direction == NORTH)
    columns = (direction == EAST).astype(jnp.int32) - (direction == WEST)
    return rows, columns


def observe(config: CoinGridConfig, state: State) -> UInt8[Array, "size size 5"]:
    """The board: one channel per colour, walls, and the agent with the cell in front of it painted (a wall cell too)."""
    size = config.size
    walls = np.zeros((size, size, NUM_CHANNELS), np.uint8)
    walls[[0, -1], :, WALL] = walls[:, [0, -1], WALL] = 1
    coins = _board_cell(config, state.cells) * NUM_CHANNELS + coin_colours(config)
    here = _board_cell(config, state.position) * NUM_CHANNELS + AGENT
    rows, columns = _offset(state.direction)
    front = here + (rows * size + columns) * NUM_CHANNELS
    # A coin that is gone is written outside of the board, that is nowhere.
    lit = jnp.append(jnp.where(state.alive, coins, walls.size), jnp.stack([here, front]))
    values = np.ones(num_coins(config) + 2, np.uint8)
    values[-2] = 2 if config.orientation == "half" else 1
    return jnp.asarray(walls).reshape(-1).at[lit].set(values, mode="drop").reshape(walls.shape)


def _board_cell(config: CoinGridConfig, cell: Array) -> Array:
    """A cell of the room as a cell of the board, walls included, numbered row by row."""
    return (cell // room_size(config) + 1) * config.size + cell % room_size(config) + 1


def move(config: CoinGridConfig, state: State, action: Array | np.integer | int) -> tuple[State, Float[Array, "3"]]:
    """One step: the state reached and the number of coins of each colour collected. Forward into a wall does nothing."""
    room = room_size(config)
    direction = (state.direction + (action == RIGHT) - (action == LEFT)) % NUM_DIRECTIONS
    rows, columns = _offset(state.direction)
    forward = jnp.asarray(action == FORWARD, jnp.int32)
    row = jnp.clip(state.position // room + forward * rows, 0, room - 1)
    column = jnp.clip(state.position % room + forward * columns, 0, room - 1)
    position = row * room + column
    collected = state.alive & (state.cells == position)
    features = jnp.stack([collected[np.flatnonzero(coin_colours(config) == c)].sum(dtype=jnp.float32) for c in range(len(COLOURS))])
    return State(state.cells, state.alive & ~collected, position, direction.astype(jnp.int32), state.t + 1), features


def timestep(config: CoinGridConfig, state: State, features: Float[Array, "3"], weights: Array | np.ndarray) -> TimeStep:
    """What the environment says after a move: only an empty board is a termination, a time limit is not."""
    over = ~state.alive.any() if config.ends_when_empty else jnp.zeros((), bool)
    return TimeStep(
        obs=observe(config, state),
        reward=features @ weights,
        discount=1.0 - over.astype(jnp.float32),
        last=over | (state.t >= config.max_steps),
        extras={"features": features},
    )


def mirror_obs(obs: Array) -> Array:
    """The board seen in a mirror that swaps left and right (columns reversed)."""
    return obs[..., :, ::-1, :]


def mirror_action(action: Array) -> Array:
    """The action in the mirror: LEFT and RIGHT swapped."""
    return jnp.where(action == FORWARD, action, 1 - action)


def spec(config: CoinGridConfig) -> EnvSpec:
    """Observation ``uint8[size, size, 5]``, three actions, the left-right mirror."""
    return EnvSpec((config.size, config.size, NUM_CHANNELS), jnp.uint8, NUM_ACTIONS, Symmetry(mirror_obs, mirror_action), "board")


def make(config: CoinGridConfig, weights: Float[Array, "3"] | Sequence[float]) -> Env:
    """CoinGrid with the reward ``weights . features``; `TimeStep.extras["features"]` counts the coins just collected by colour."""
    weights = jnp.asarray(weights, jnp.float32)
    if weights.shape != (len(COLOURS),):
        raise UserError(f"CoinGrid's weights have shape {weights.shape}, expected one weight per colour, ({len(COLOURS)},).")

    def start(key: Array) -> tuple[State, Array]:
        state = reset(config, key)
        return state, observe(config, state)

    def step(state: State, action: Array, key: Array) -> tuple[State, TimeStep]:
        del key  # the world is deterministic between resets
        next_state, features = move(config, state, action)
        return next_state, timestep(config, next_state, features, weights)

    return Env(spec(config), start, step)


# --- Pictures ------------------------------------------------------------------------------------------------------------

_FLOOR, _LINE, _WALL, _PAINT, _AGENT = (38, 40, 48), (58, 61, 72), (112, 116, 128), (60, 70, 92), (120, 180, 255)
_COINS = ((226, 62, 54), (70, 180, 84), (244, 200, 48))


def render(obs: np.ndarray | Array, pixels: int = 32) -> UInt8[np.ndarray, "height width 3"]:
    """An RGB picture of an observation: walls, coins as discs, the agent as a triangle that points where it looks.

    A "binary" observation does not say which of its two painted cells is the agent, so both are only painted.
    """
    board = np.asarray(obs)
    smooth = 3  # drawn larger, then averaged: smooth edges
    side = pixels * smooth
    y, x = (np.mgrid[:side, :side] + 0.5) / side - 0.5
    frame = np.concatenate([np.concatenate([_tile(board, r, c, x, y) for c in range(board.shape[1])], 1) for r in range(board.shape[0])], 0)
    height, width = board.shape[0] * pixels, board.shape[1] * pixels
    return frame.reshape(height, smooth, width, smooth, 3).mean((1, 3)).round().astype(np.uint8)


def _tile(board: np.ndarray, row: int, column: int, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """One cell of the picture; x and y run from -.5 to .5."""
    cell = board[row, column]
    tile = np.empty((*x.shape, 3))
    tile[:] = _WALL if cell[WALL] else _PAINT if cell[AGENT] else _FLOOR
    tile[(x < -0.47) | (y < -0.47)] = _LINE
    for colour, rgb in enumerate(_COINS):
        if cell[colour]:
            tile[np.hypot(x, y) < 0.32] = rgb
    if cell[AGENT] == 2:
        front_row, front_column = np.argwhere(board[..., AGENT] == 1)[0]
        ahead = x * (front_column - column) + y * (front_row - row)
        across = x * (front_row - row) - y * (front_column - column)
        tile[(ahead > -0.32) & (np.abs(across) < 0.3 * (0.38 - ahead) / 0.7)] = _AGENT
    return tile
