"""Finite worlds whose true rewards are known: each a Markov decision process made explicit, with several agents who want different things.

    world = items_fixed()
    world.reward("zero")     # [S, A, J]: what agent "zero" truly earns

Our own worlds are written as rules and enumerated from their start states. Those of MO-Gymnasium are enumerated by stepping the real
environments, so that their truth is not ours. `WORLDS` names all of them.
"""

import dataclasses
import itertools
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

State = Hashable
Outcome = tuple[float, State, Sequence[float], bool]
"""Chance, next state, true features, and whether the episode then ends."""
Cell = tuple[int, int]

MOVES: tuple[Cell, ...] = ((0, 1), (0, -1), (-1, 0), (1, 0))
"""Up, down, left and right, as (dx, dy)."""


@dataclasses.dataclass(frozen=True, eq=False)
class World:
    """A Markov decision process with S states, A actions and at most J outcomes of each, and agents whose rewards are phi @ w."""

    name: str
    gamma: float
    obs: np.ndarray
    """float32[S, n]: what is seen, and logged, in each state."""
    names: tuple[str, ...]
    """What the n columns of an observation are called."""
    next_state: np.ndarray
    """int64[S, A, J]: where a step leads; where it ends the episode, the state in which it ended."""
    ends: np.ndarray
    """bool[S, A, J]: whether that step ends the episode."""
    chance: np.ndarray
    """float64[S, A, J]: how likely that outcome is; sums to 1 over J."""
    phi: np.ndarray
    """float32[S, A, J, d]: the true features, which nobody logs."""
    phi_names: tuple[str, ...]
    tasks: dict[str, np.ndarray]
    """Of each agent, by its name: float64[d], what it truly wants."""
    start: np.ndarray
    """int64[...]: the states in which episodes start, all equally likely."""
    limit: int
    """Steps after which an episode is cut off."""
    test_start: np.ndarray
    """int64[...]: start states in layouts that nobody demonstrates; empty where there are none."""
    live: np.ndarray
    """bool[S]: the states in which somebody can act. In the others an episode is over: their steps stay there, pay 0 and end."""

    @property
    def num_states(self) -> int:
        return self.next_state.shape[0]

    @property
    def num_actions(self) -> int:
        return self.next_state.shape[1]

    @property
    def agents(self) -> tuple[str, ...]:
        return tuple(self.tasks)

    def reward(self, task: str | np.ndarray) -> np.ndarray:
        """float64[S, A, J]: the true reward of an agent, by its name, or of any weights of phi."""
        w = self.tasks[task] if isinstance(task, str) else task
        return self.phi.astype(np.float64) @ np.asarray(w, np.float64)


# --- From rules to arrays ------------------------------------------------------------------------------------------------


def enumerated(
    *,
    num_actions: int,
    start: Iterable[State],
    test_start: Iterable[State] = (),
    step: Callable[[Any, int], list[Outcome]],
    see: Callable[[Any], Sequence[float]],
    tasks: Mapping[str, Sequence[float]],
    phi_names: tuple[str, ...],
    **told: Any,
) -> World:
    """A world from its rules: every state that can be reached from the start states, in the order in which they are found."""
    start, test_start = list(start), list(test_start)
    index = {state: i for i, state in enumerate(dict.fromkeys([*start, *test_start]))}
    todo, live = list(index), set(index)
    rules: dict[State, list[list[Outcome]]] = {}
    while todo:
        state = todo.pop()
        rules[state] = [step(state, action) for action in range(num_actions)]
        for _, following, _, end in (outcome for outcomes in rules[state] for outcome in outcomes):
            index.setdefault(following, len(index))
            if not end and following not in live:
                live.add(following)
                todo.append(following)
    return World(
        obs=np.array([see(state) for state in index], np.float32),
        tasks={agent: np.array(w, np.float64) for agent, w in tasks.items()},
        phi_names=phi_names,
        start=np.array([index[state] for state in start], np.int64),
        test_start=np.array([index[state] for state in test_start], np.int64),
        **_arrays(index, rules, num_actions, len(phi_names)),
        **told,
    )


def _arrays(index: dict[State, int], rules: dict[State, list[list[Outcome]]], A: int, d: int) -> dict[str, np.ndarray]:
    """The dynamics as arrays. States without rules are where episodes ended: they stay, pay 0 and end."""
    S, J = len(index), max(len(outcomes) for actions in rules.values() for outcomes in actions)
    next_state = np.broadcast_to(np.arange(S)[:, None, None], (S, A, J)).copy()
    ends, chance, phi = np.ones((S, A, J), bool), np.zeros((S, A, J)), np.zeros((S, A, J, d), np.float32)
    chance[:, :, 0] = 1
    live = np.zeros(S, bool)
    for state, actions in rules.items():
        s = index[state]
        live[s] = True
        for a, outcomes in enumerate(actions):
            for j, (likely, following, features, end) in enumerate(outcomes):
                next_state[s, a, j], ends[s, a, j], chance[s, a, j], phi[s, a, j] = index[following], end, likely, features
    return {"next_state": next_state, "ends": ends, "chance": chance, "phi": phi, "live": live}


def moved(cell: Cell, action: int, size: int) -> Cell:
    """The cell to which a move leads in a square room; who walks into a wall stays."""
    x, y = cell[0] + MOVES[action][0], cell[1] + MOVES[action][1]
    return (x, y) if 0 <= x < size and 0 <= y < size else cell


# --- Our own -------------------------------------------------------------------------------------------------------------


def items_fixed() -> World:
    """A room of 7 x 7 cells with two items each of three kinds, always at the same places, and an exit."""
    size, leave = 7, (6, 6)
    items: tuple[tuple[Cell, int], ...] = (((1, 5), 0), ((5, 2), 0), ((0, 3), 1), ((6, 0), 1), ((3, 6), 2), ((3, 1), 2))

    def step(state: tuple[Cell, tuple[int, ...]], action: int) -> list[Outcome]:
        cell, there = moved(state[0], action, size), list(state[1])
        phi = [0.0] * 3 + [1.0]
        for i, (place, kind) in enumerate(items):
            if there[i] and place == cell:
                there[i], phi[kind] = 0, 1.0
        return [(1.0, (cell, tuple(there)), phi, cell == leave)]

    return enumerated(
        name="items_fixed",
        gamma=0.95,
        limit=60,
        num_actions=4,
        start=[(cell, (1,) * 6) for cell in ((0, 0), (3, 3), (6, 3), (0, 6))],
        step=step,
        see=lambda state: (*state[0], *state[1]),
        names=("x", "y", "zero a", "zero b", "one a", "one b", "two a", "two b"),
        phi_names=("zero", "one", "two", "step"),
        tasks={"zero": (1, 0, 0, 0), "one": (0, 1, 0, -0.02), "two": (0, 0, 1, -0.05), "picky": (1, -1, 0, -0.02)},
    )


def items_random(seed: int = 0, layouts: int = 24) -> World:
    """A room of 5 x 5 cells with one item each of three kinds, at other places in every layout, and an exit in a corner.

    Half of the 2 x `layouts` layouts are demonstrated; in the others (`test_start`) nobody was ever seen.
    """
    size, leave = 5, (4, 4)
    cells = [(x, y) for x in range(size) for y in range(size) if (x, y) != leave]
    places = _different_layouts(np.random.default_rng(seed), cells, 3, 2 * layouts)

    def step(state: tuple[int, Cell, tuple[int, ...]], action: int) -> list[Outcome]:
        layout, cell, there = state[0], moved(state[1], action, size), list(state[2])
        phi = [0.0] * 3 + [float(cell == leave), 1.0]
        for kind, place in enumerate(places[layout]):
            if there[kind] and place == cell:
                there[kind], phi[kind] = 0, 1.0
        return [(1.0, (layout, cell, tuple(there)), phi, cell == leave)]

    def see(state: tuple[int, Cell, tuple[int, ...]]) -> tuple[float, ...]:
        layout, (x, y), there = state
        ways = ((px - x, py - y, 1) if still else (0, 0, 0) for (px, py), still in zip(places[layout], there, strict=True))
        return (x, y, *(number for way in ways for number in way))

    def free(which: range) -> list[State]:
        return [(layout, cell, (1, 1, 1)) for layout in which for cell in cells if cell not in places[layout]]

    return enumerated(
        name="items_random",
        gamma=0.95,
        limit=50,
        num_actions=4,
        start=free(range(layouts)),
        test_start=free(range(layouts, 2 * layouts)),
        step=step,
        see=see,
        names=("x", "y", *(f"{kind} {what}" for kind in ("zero", "one", "two") for what in ("dx", "dy", "there"))),
        phi_names=("zero", "one", "two", "exit", "step"),
        tasks={
            "zero": (1, 0, 0, 0.5, 0),
            "one": (0, 1, 0, 0.5, 0),
            "two": (0, 0, 1, 0.5, -0.02),
            "zero and one": (1, 1, 0, 0.5, 0),
            "one and two": (0, 1, 1, 0.5, -0.02),
        },
    )


def _different_layouts(rng: np.random.Generator, cells: list[Cell], items: int, count: int) -> list[tuple[Cell, ...]]:
    """Places of so many items, in that order, of which no two are the same."""
    found: dict[tuple[Cell, ...], None] = {}
    while len(found) < count:
        found[tuple(cells[i] for i in rng.choice(len(cells), items, replace=False))] = None
    return list(found)


GROUND = (
    ".mmmmmm.",
    ".mmmmmm.",
    ".mmgmmm.",
    ".gggggg.",
    ".gggmgg.",
    ".wwwwww.",
    ".wwwgww.",
    ".wwwwww.",
)
"""Of `costs`, its top row first: m is mud, g gravel, w grass. The exit is the right-hand column."""


def costs() -> World:
    """A room of 8 x 8 cells with mud, gravel and grass, which agents cross to its right-hand side: there are only costs.

    A battery falls by one with every step until it is empty, and nothing comes of it.
    """
    size, full = 8, 20
    surfaces = {(x, size - 1 - row): "mgw".find(letter) for row, line in enumerate(GROUND) for x, letter in enumerate(line)}

    def flags(cell: Cell) -> list[float]:
        return [float(surfaces[cell] == surface) for surface in range(3)]

    def step(state: tuple[Cell, int], action: int) -> list[Outcome]:
        cell = moved(state[0], action, size) if action < 4 else state[0]
        return [(1.0, (cell, max(state[1] - 1, 0)), [1.0, *flags(cell)], cell[0] == size - 1)]

    return enumerated(
        name="costs",
        gamma=0.97,
        limit=200,
        num_actions=5,
        start=[((0, y), full) for y in range(size)],
        step=step,
        see=lambda state: (*state[0], *flags(state[0]), state[1]),
        names=("x", "y", "mud", "gravel", "grass", "battery"),
        phi_names=("step", "mud", "gravel", "grass"),
        tasks={
            "hasty": (-1, 0, 0, 0),
            "no mud": (-1, -3, 0, 0),
            "no gravel": (-1, 0, -3, 0),
            "no grass": (-1, 0, 0, -3),
            "only grass": (-1, -3, -3, 0),
        },
    )


def resources() -> World:
    """A place of 6 x 6 cells where agents chop wood, dig stone and carry it home, one piece at a time; there is no end.

    The fifth action takes what there is where the agent stands, or puts down at home what it carries. The store is full with two of each.
    """
    size, home, most = 6, (0, 0), 2
    sources = {(1, 4): 1, (0, 5): 1, (4, 1): 2, (5, 0): 2}
    wet = {(0, 2), (1, 2), (2, 2), (3, 0)}

    def step(state: tuple[Cell, int, int, int], action: int) -> list[Outcome]:
        cell, carried, wood, stone = state
        delivered = [0.0, 0.0]
        if action < 4:
            cell = moved(cell, action, size)
        elif carried and cell == home:
            delivered[carried - 1] = float((wood, stone)[carried - 1] < most)
            wood, stone = min(wood + (carried == 1), most), min(stone + (carried == 2), most)
            carried = 0
        elif not carried:
            carried = sources.get(cell, 0)
        return [(1.0, (cell, carried, wood, stone), [*delivered, float(cell in wet), float(cell == home)], False)]

    return enumerated(
        name="resources",
        gamma=0.95,
        limit=50,
        num_actions=5,
        start=[(cell, 0, 0, 0) for cell in ((0, 0), (5, 5), (3, 3))],
        step=step,
        see=lambda state: (*state[0], state[0] in wet, state[1] == 1, state[1] == 2, state[2], state[3]),
        names=("x", "y", "wet", "carries wood", "carries stone", "wood stored", "stone stored"),
        phi_names=("wood", "stone", "wet", "home"),
        tasks={"wood": (1, 0, 0, 0.02), "stone": (0, 1, 0, 0.02), "both": (1, 0.9, 0, 0.02), "dry wood": (1, 0, -0.3, 0.02)},
    )


def drive() -> World:
    """A road of two lanes with a car ahead, whose speed changes by chance; there is no end.

    Who changes lanes finds another car ahead, near or far; the left lane's are faster. Who runs into the car ahead is stopped.
    Actions: keep, faster, slower, change lanes.
    """
    far, fastest = 6, 4
    speeds = ((1, 2), (2, 3))
    """Of the cars in the right and in the left lane."""

    def step(state: tuple[int, int, int, int], action: int) -> list[Outcome]:
        lane, gap, speed, leader = state
        if action == 3:
            lane = 1 - lane
            ahead = [(0.25, near, other) for near in (2, 5) for other in speeds[lane]]
        else:
            speed = min(max(speed + (0, 1, -1)[action], 0), fastest)
            ahead = [(0.8 if other == leader else 0.2, gap, other) for other in speeds[lane]]
        return [(chance, *driven(lane, near, speed, other), False) for chance, near, other in ahead]

    def driven(lane: int, gap: int, speed: int, leader: int) -> tuple[tuple[int, int, int, int], list[float]]:
        gap = gap + leader - speed
        crash = gap < 0
        speed, gap = (0, 0) if crash else (speed, min(gap, far))
        return (lane, gap, speed, leader), [speed / fastest, float(gap >= 4), float(lane == 0), float(crash)]

    return enumerated(
        name="drive",
        gamma=0.95,
        limit=100,
        num_actions=4,
        start=[(lane, gap, speed, leader) for lane in (0, 1) for gap in (2, 5) for speed in (1, 2) for leader in speeds[lane]],
        step=step,
        see=lambda state: state,
        names=("lane", "gap", "speed", "leader's speed"),
        phi_names=("speed", "distance", "right", "crash"),
        tasks={"fast": (1, 0, 0, -2), "careful": (0.3, 1, 0, -5), "right": (0.5, 0, 0.5, -2), "crawler": (-0.5, 0.5, 0.5, -2)},
    )


# --- MO-Gymnasium's ------------------------------------------------------------------------------------------------------

TIME = "time"
"""The one feature that is ours: -1 in every step, where the environment's own reward vector has no such entry."""


def treasure() -> World:
    """MO-Gymnasium's deep-sea-treasure-concave-v0: the deeper, the richer, and -1 in every step.

    Its front is concave: whatever treasure is worth beside time, the best is the nearest or the farthest, and no agent wants another.
    """
    return _treasure("treasure", "deep-sea-treasure-concave-v0", {"hasty": (0.1, 1), "rich": (1, 0.05), "lingering": (0, -1)})


def treasure_convex() -> World:
    """MO-Gymnasium's deep-sea-treasure-v0, whose front is convex: agents want different treasures by how they mind time."""
    tasks = {"hasty": (0.1, 1), "second": (0.4, 1), "middling": (0.8, 1), "rich": (1, 0.05)}
    return _treasure("treasure_convex", "deep-sea-treasure-v0", tasks)


def _treasure(name: str, id: str, tasks: Mapping[str, Sequence[float]]) -> World:
    def put(env: Any, state: tuple[int, ...]) -> None:
        env.current_state = np.array(state, np.int32)

    return _real(name, id, put, gamma=0.98, names=("row", "column"), phi_names=("treasure", "time"), tasks=tasks)


def four_room(per_kind: int = 2) -> World:
    """MO-Gymnasium's four-room-v0 with `per_kind` of the four items of each kind: all 12 make 600,000 states.

    Its goal, where the episode ends, pays 1 of every kind.
    """

    def put(env: Any, state: tuple[int, ...]) -> None:
        env.state = (state[:2], state[2:])

    return _real(
        "four_room",
        "four-room-v0",
        put,
        maze=thinned_maze(per_kind),
        gamma=0.97,
        names=("row", "column", *(f"item {i}" for i in range(3 * per_kind))),
        phi_names=("blue", "green", "red"),
        tasks={"blue": (1, 0, 0, 0.01), "green": (0, 1, 0, 0), "red": (0, 0, 1, 0.03), "blue, not green": (1, -0.5, 0.5, 0.01)},
    )


def thinned_maze(per_kind: int) -> np.ndarray:
    """The maze of four-room-v0 with only the first so many items of each kind."""
    from mo_gymnasium.envs.four_room.four_room import MAZE

    maze = MAZE.copy()
    for kind in "123":
        for row, column in np.argwhere(MAZE == kind)[per_kind:]:
            maze[row, column] = " "
    return maze


def resource() -> World:
    """MO-Gymnasium's resource-gathering-v0: gold and a diamond, enemies who kill one time in ten, and home."""

    def put(env: Any, state: tuple[int, ...]) -> None:
        env.current_pos = np.array(state[:2], np.int32)
        env.has_gold, env.has_gem = state[2:]

    return _real(
        "resource",
        "resource-gathering-v0",
        put,
        gamma=0.9,
        names=("row", "column", "gold", "diamond"),
        phi_names=("killed", "gold", "diamond"),
        tasks={"gold": (0.1, 1, 0, 0), "careful gold": (10, 1, 0, 0), "diamond": (1, 0, 1, 0.02), "both": (1, 1, 1, 0)},
    )


def fruit_tree() -> World:
    """MO-Gymnasium's fruit-tree-v0: six decisions down a tree, and the nutrients of the fruit at its end."""

    def put(env: Any, state: tuple[int, ...]) -> None:
        env.current_state, env.terminal = np.array(state, np.int32), False

    nutrients = ("protein", "carbs", "fats", "vitamins", "minerals", "water")
    return _real(
        "fruit_tree",
        "fruit-tree-v0",
        put,
        gamma=0.95,
        names=("row", "place"),
        phi_names=nutrients,
        tasks={what: tuple(float(what == other) for other in nutrients) for what in nutrients[:4]} | {"all": (1, 1, 1, 1, 1, 1)},
    )


class _Dice:
    """Random numbers that we choose, and whether anybody asked for one."""

    def __init__(self):
        self.number, self.asked = 0.0, False

    def random(self) -> float:
        self.asked = True
        return self.number


def _real(
    name: str,
    id: str,
    put: Callable[[Any, tuple[int, ...]], None],
    *,
    phi_names: tuple[str, ...],
    tasks: Mapping[str, Sequence[float]],
    gamma: float,
    names: tuple[str, ...],
    **options: Any,
) -> World:
    """A world by stepping the real environment from every state, whose observation says all of it; `put` sets it to a state.

    The true features are its reward vector, and `TIME` where weights are given for one more.
    """
    import mo_gymnasium

    wrapped = mo_gymnasium.make(id, **options)  # pyright: ignore[reportPrivateImportUsage]
    env, dice = wrapped.unwrapped, _Dice()
    first = _numbers(wrapped.reset(seed=0)[0])
    env.np_random = dice  # type: ignore[assignment]
    more = len(next(iter(tasks.values()))) - len(phi_names)

    def rolled(state: tuple[int, ...], action: int, number: float) -> tuple[tuple[int, ...], tuple[float, ...], bool]:
        put(env, state)
        dice.number, dice.asked = number, False
        obs, reward, end, _, _ = env.step(action)
        return _numbers(obs), (*map(float, np.asarray(reward)), *[-1.0] * more), bool(end)

    def step(state: tuple[int, ...], action: int) -> list[Outcome]:
        only = rolled(state, action, 0.0)
        if not dice.asked:
            return [(1.0, *only)]
        every = [rolled(state, action, (i + 0.5) / 100) for i in range(100)]
        return [(len(list(same)) / 100, *outcome) for outcome, same in itertools.groupby(every)]

    spec = wrapped.spec
    return enumerated(
        name=name,
        gamma=gamma,
        limit=(spec and spec.max_episode_steps) or 100,
        num_actions=int(env.action_space.n),  # type: ignore[attr-defined]
        start=[first],
        step=step,
        see=lambda state: state,
        names=names,
        phi_names=phi_names + (TIME,) * more,
        tasks=tasks,
    )


def _numbers(obs: np.ndarray) -> tuple[int, ...]:
    return tuple(int(number) for number in obs)


WORLDS: dict[str, Callable[[], World]] = {
    world.__name__: world
    for world in (items_fixed, items_random, costs, resources, drive, treasure, treasure_convex, four_room, resource, fruit_tree)
}
"""Every world by its name; the last five need mo-gymnasium."""
