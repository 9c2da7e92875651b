"""CoinGrid's rules: movement, coins, ends, what is seen, layouts, the mirror, and the Gymnasium environment."""

import dataclasses
import warnings
from collections.abc import Iterator
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from minigrid.envs.empty import EmptyEnv

from psiphi.envs import coingrid, coingrid_exact
from psiphi.envs.coingrid import (
    AGENT,
    EAST,
    FORWARD,
    GREEN,
    LEFT,
    NORTH,
    RED,
    RIGHT,
    SOUTH,
    TASKS,
    WALL,
    WEST,
    YELLOW,
    CoinGridConfig,
    State,
)
from psiphi.envs.coingrid_gym import CoinGridEnv
from psiphi.errors import UserError

CONFIG = CoinGridConfig()
CORNERS = (0, 4, 20, 24, 12)
"""Red in the two upper corners, green in the two lower ones, yellow in the middle of the room."""

move = jax.jit(coingrid.move, static_argnums=0)
observe = jax.jit(coingrid.observe, static_argnums=0)
see_all = jax.jit(jax.vmap(lambda state: coingrid.observe(CONFIG, state)))


def walk(state: State, actions, config: CoinGridConfig = CONFIG, weights=(1.0, 1.0, 0.0)):
    """All timesteps of a walk, stacked, and the last state."""
    env = coingrid.make(config, weights)
    key = jax.random.key(0)
    return jax.jit(lambda s, a: jax.lax.scan(lambda s, a: env.step(s, a, key), s, a))(state, jnp.asarray(actions, jnp.int32))


def pose(state: State) -> tuple[int, int, int]:
    return int(state.position) // 5, int(state.position) % 5, int(state.direction)


def random_states(config: CoinGridConfig, count: int) -> State:
    return jax.jit(jax.vmap(lambda key: coingrid.reset(config, key)))(jax.random.split(jax.random.key(7), count))


# --- Movement ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("direction", "action", "expected"),
    [
        (EAST, FORWARD, (1, 2, EAST)),
        (SOUTH, FORWARD, (2, 1, SOUTH)),
        (WEST, FORWARD, (1, 0, WEST)),
        (NORTH, FORWARD, (0, 1, NORTH)),
        (EAST, LEFT, (1, 1, NORTH)),
        (EAST, RIGHT, (1, 1, SOUTH)),
        (NORTH, RIGHT, (1, 1, EAST)),
        (WEST, LEFT, (1, 1, SOUTH)),
    ],
)
def test_moves_by_hand(direction, action, expected):
    start = coingrid.reset_to(CONFIG, CORNERS, 6, direction)
    assert pose(move(CONFIG, start, action)[0]) == expected


def test_forward_into_a_wall_does_nothing():
    start = coingrid.reset_to(CONFIG, CORNERS, 5, WEST)
    after, features = move(CONFIG, start, FORWARD)
    assert pose(after) == pose(start)
    assert not features.any()
    # The wall to the east: cell 9 must not wrap round to cell 10 of the next row.
    assert pose(move(CONFIG, coingrid.reset_to(CONFIG, CORNERS, 9, EAST), FORWARD)[0]) == (1, 4, EAST)


def test_moves_as_minigrid_does():
    minigrid = EmptyEnv(size=7, max_steps=10_000)
    minigrid.reset(seed=0)
    minigrid.grid.set(5, 5, None)  # the goal square would end the episode
    actions = np.random.default_rng(0).choice(3, 300, p=[0.2, 0.2, 0.6])
    x, y = minigrid.agent_pos
    state = coingrid.reset_to(CONFIG, CORNERS, (y - 1) * 5 + (x - 1), minigrid.agent_dir)
    visited = set()
    for action in actions:
        minigrid.step(int(action))
        state, _ = move(CONFIG, state, jnp.int32(action))
        x, y = minigrid.agent_pos
        assert pose(state) == (y - 1, x - 1, minigrid.agent_dir)
        visited.add(pose(state))
    assert len(visited) > 50


# --- Coins, rewards, ends ------------------------------------------------------------------------------------------------


def test_collects_a_coin_once_and_is_paid_its_weight():
    start = coingrid.reset_to(CONFIG, CORNERS, 1, WEST)
    end, steps = walk(start, [FORWARD, RIGHT, RIGHT, FORWARD, RIGHT, RIGHT, FORWARD], weights=(2.0, -1.0, 0.5))
    assert steps.reward.tolist() == [2, 0, 0, 0, 0, 0, 0]
    assert steps.extras["features"][0].tolist() == [1, 0, 0]
    assert end.alive.tolist() == [False, True, True, True, True]
    assert int(steps.obs[0, 1, 1, RED]) == 0


def test_each_colour_is_counted_and_paid_apart():
    config = dataclasses.replace(CONFIG, coins=(1, 1, 1))
    end, steps = walk(coingrid.reset_to(config, (1, 2, 3), 0, EAST), [FORWARD] * 3, config, weights=(1.0, -2.0, 0.5))
    assert steps.extras["features"].tolist() == [[1, 0, 0], [0, 1, 0], [0, 0, 1]]
    assert steps.reward.tolist() == [1, -2, 0.5]
    assert not end.alive.any()


def test_the_last_coin_terminates_and_the_time_limit_does_not():
    config = dataclasses.replace(CONFIG, coins=(1, 0, 0), max_steps=3)
    _, emptied = walk(coingrid.reset_to(config, (2,), 0, EAST), [FORWARD, FORWARD], config)
    assert emptied.discount.tolist() == [1, 0]
    assert emptied.last.tolist() == [False, True]
    _, timed_out = walk(coingrid.reset_to(config, (2,), 0, EAST), [LEFT, LEFT, LEFT], config)
    assert timed_out.discount.tolist() == [1, 1, 1]
    assert timed_out.last.tolist() == [False, False, True]


def test_an_empty_board_may_go_on():
    config = dataclasses.replace(CONFIG, coins=(1, 0, 0), max_steps=3, ends_when_empty=False)
    _, steps = walk(coingrid.reset_to(config, (1,), 0, EAST), [FORWARD, FORWARD, FORWARD], config)
    assert steps.discount.tolist() == [1, 1, 1]
    assert steps.last.tolist() == [False, False, True]


def test_weights_may_be_traced():
    start = coingrid.reset_to(CONFIG, CORNERS, 1, WEST)

    def reward(weights):
        return coingrid.make(CONFIG, weights).step(start, jnp.int32(FORWARD), jax.random.key(0))[1].reward

    assert jax.jit(jax.vmap(reward))(jnp.array([[1.0, 0, 0], [-3.0, 1, 1]])).tolist() == [1, -3]


# --- What is seen --------------------------------------------------------------------------------------------------------


def test_observation_by_hand():
    obs = np.asarray(observe(CONFIG, coingrid.reset_to(CONFIG, CORNERS, 6, WEST)))
    assert obs.shape == (7, 7, 5)
    assert obs.dtype == np.uint8
    assert np.argwhere(obs[..., RED]).tolist() == [[1, 1], [1, 5]]
    assert np.argwhere(obs[..., GREEN]).tolist() == [[5, 1], [5, 5]]
    assert np.argwhere(obs[..., YELLOW]).tolist() == [[3, 3]]
    assert obs[..., WALL].sum() == 24
    assert not obs[1:-1, 1:-1, WALL].any()
    assert np.argwhere(obs[..., AGENT]).tolist() == [[2, 1], [2, 2]]
    assert obs[2, 2, AGENT] == 2
    assert obs[2, 1, AGENT] == 1


def test_a_wall_in_front_is_painted_too():
    obs = np.asarray(observe(CONFIG, coingrid.reset_to(CONFIG, CORNERS, 5, WEST)))
    assert obs[2, 0, AGENT] == 1
    assert obs[2, 0, WALL] == 1


def test_binary_orientation_aliases_states_and_half_does_not():
    layout = jnp.array(CORNERS)
    binary = dataclasses.replace(CONFIG, orientation="binary")
    there, back = coingrid.reset_to(CONFIG, CORNERS, 6, EAST), coingrid.reset_to(CONFIG, CORNERS, 7, WEST)
    assert (observe(binary, there) == observe(binary, back)).all()
    assert int(observe(binary, there).max()) == 1

    def distinct(config) -> int:
        boards = np.asarray(coingrid_exact.all_observations(config, layout))
        return len({board.tobytes() for board in boards.reshape(-1, 245)})

    assert distinct(CONFIG) == 32 * 100
    # A pair of neighbouring cells is seen alike from both ends: 2 * 4 * 5 pairs of inner cells in each of the 32 boards.
    assert distinct(binary) == 32 * (100 - 40)


def test_large_boards_are_seen_whole():
    config = CoinGridConfig(size=20, coins=(1, 1, 1))
    obs = np.asarray(observe(config, coingrid.reset_to(config, (0, 100, 323), 322, EAST)))
    assert [np.argwhere(obs[..., c]).tolist() for c in range(3)] == [[[1, 1]], [[6, 11]], [[18, 18]]]
    assert obs[18, 17, AGENT] == 2
    assert obs[18, 18, AGENT] == 1


# --- Layouts -------------------------------------------------------------------------------------------------------------


def test_resets_put_everything_on_cells_of_its_own():
    state = random_states(CONFIG, 2000)
    cells = np.sort(np.concatenate([state.cells, state.position[:, None]], 1), 1)
    assert (np.diff(cells) > 0).all()
    assert cells.min() == 0
    assert cells.max() == 24
    assert state.alive.all()
    assert not state.t.any()
    for item in (*np.asarray(state.cells).T, np.asarray(state.position)):
        assert np.bincount(item, minlength=25).min() > 40  # 80 expected in each cell, standard deviation 9
    assert np.bincount(state.direction, minlength=4).min() > 400
    assert len(np.unique(state.cells, axis=0)) > 1900


def test_twenty_five_layouts_are_twenty_five_and_known_in_advance():
    config = dataclasses.replace(CONFIG, num_layouts=25)
    seen = {tuple(cells) for cells in np.asarray(random_states(config, 2000).cells).tolist()}
    known = {tuple(cells) for cells in jax.vmap(lambda i: coingrid.layout(config, i))(jnp.arange(25)).tolist()}
    assert seen == known
    assert len(known) == 25
    positions = np.asarray(random_states(config, 2000).position)
    assert len(np.unique(positions)) == 25  # the pose is drawn afresh
    other = dataclasses.replace(config, layout_seed=1)
    assert tuple(np.asarray(coingrid.layout(other, 0)).tolist()) not in known


def test_agent_never_starts_on_a_coin_of_a_fixed_layout():
    config = CoinGridConfig(size=4, coins=(1, 1, 1), num_layouts=3)  # one free cell
    state = random_states(config, 200)
    assert not (state.cells == state.position[:, None]).any()
    assert (np.asarray(state.cells).sum(1) + np.asarray(state.position) == 6).all()


def test_many_layouts_and_large_rooms_are_drawn_evenly():
    config = CoinGridConfig(size=40, coins=(1, 0, 0), num_layouts=60_000)
    state = random_states(config, 4000)
    cells = np.asarray(state.cells)[:, 0]
    assert cells.min() < 20
    assert cells.max() > 38 * 38 - 20
    for item in (cells, np.asarray(state.position)):
        assert np.abs(np.histogram(item, bins=4, range=(0, 38 * 38))[0] - 1000).max() < 140  # five standard deviations


@pytest.mark.parametrize(
    "fields",
    [
        {"size": 2},
        {"coins": (-1, 2, 2)},
        {"coins": (0, 0, 0)},
        {"size": 4, "coins": (2, 1, 1)},
        {"size": 1000},
        {"num_layouts": -1},
        {"num_layouts": 70_000},
        {"max_steps": 0},
    ],
)
def test_impossible_worlds_are_refused_in_one_sentence(fields):
    with pytest.raises(UserError, match="CoinGrid") as error:
        CoinGridConfig(**fields)
    assert str(error.value).endswith(".")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("fields", [{"coins": (1, 1)}, {"orientation": "compass"}])
def test_ill_typed_worlds_are_refused_also_where_no_types_are_checked(fields):
    config = object.__new__(CoinGridConfig)
    for name, value in {**dataclasses.asdict(CONFIG), **fields}.items():
        object.__setattr__(config, name, value)
    with pytest.raises(UserError, match="CoinGrid"):
        config.__post_init__()


# --- Symmetry ------------------------------------------------------------------------------------------------------------


def test_the_mirror_commutes_with_every_step():
    def mirrored(state: State) -> State:
        def flip(cell):
            return cell // 5 * 5 + 4 - cell % 5

        return state._replace(cells=flip(state.cells), position=flip(state.position), direction=(2 - state.direction) % 4)

    symmetry = coingrid.spec(CONFIG).symmetry
    assert symmetry is not None
    states = jax.jit(coingrid_exact.all_states, static_argnums=0)(CONFIG, jnp.array([3, 7, 11, 20, 24]))
    states = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), states)
    move_all = jax.jit(jax.vmap(lambda s, a: coingrid.move(CONFIG, s, a), in_axes=(0, None)))
    assert (see_all(mirrored(states)) == symmetry.obs(see_all(states))).all()
    for action in range(3):
        after, features = move_all(states, action)
        mirror_after, mirror_features = move_all(mirrored(states), int(symmetry.action(jnp.int32(action))))
        assert (see_all(mirror_after) == jax.vmap(symmetry.obs)(see_all(after))).all()
        assert (features == mirror_features).all()
    assert symmetry.action(jnp.array([0, 1, 2])).tolist() == [1, 0, 2]


# --- Tasks ---------------------------------------------------------------------------------------------------------------


def test_collecting_everything_scores_as_in_the_papers_table():
    everything = np.array(CONFIG.coins)
    scores = [float(coingrid.normalise(CONFIG, w, float(everything @ np.array(w)))) for w in TASKS.values()]
    assert scores == [1, 0, 0, -1]


def test_return_range_and_its_ends():
    assert [tuple(float(x) for x in coingrid.return_range(CONFIG, w)) for w in TASKS.values()] == [(0, 4), (-2, 2), (-2, 2), (-4, 0)]
    assert float(coingrid.normalise(CONFIG, TASKS["-R-G"], 0.0)) == 1
    assert float(coingrid.normalise(CONFIG, TASKS["R-G"], -2.0)) == -1
    assert float(coingrid.normalise(CONFIG, (0.0, 0.0, 0.0), 0.0)) == 0


def test_tasks_have_names():
    for name, weights in TASKS.items():
        assert coingrid.task_weights(name) == weights
        assert coingrid.task_name(weights) == name
    assert coingrid.task_weights("Y-0.5R") == (-0.5, 0, 1)
    assert coingrid.task_name((-0.5, 0, 1)) == "-0.5R+Y"
    for bad in ("", "B", "R+", "R G", "1"):
        with pytest.raises(UserError):
            coingrid.task_weights(bad)


# --- Pictures and Gymnasium ----------------------------------------------------------------------------------------------


def test_render_shows_coins_walls_and_where_the_agent_looks():
    picture = coingrid.render(observe(CONFIG, coingrid.reset_to(CONFIG, CORNERS, 6, NORTH)))
    assert picture.shape == (224, 224, 3)
    assert picture.dtype == np.uint8
    red, green, wall = picture[48, 48].tolist(), picture[176, 48].tolist(), picture[16, 16].tolist()
    assert red[0] > 2 * red[1]
    assert green[1] > 2 * green[0]
    assert len({*wall}) <= 3
    agent = picture[64:96, 64:96].astype(int)
    body = agent[..., 2] > 200
    assert body[16:].sum() > 2 * body[:16].sum() > 0  # a triangle that points up is wide at the bottom
    assert np.abs(body.sum(0) - body.sum(0)[::-1]).max() <= 2


@pytest.fixture(scope="module")
def registered() -> Iterator[str]:
    name = "psiphi-test/CoinGrid-v0"
    gymnasium.register(name, entry_point=CoinGridEnv)
    yield name
    del gymnasium.registry[name]


@pytest.mark.parametrize("orientation", ["half", "binary"])
def test_gymnasium_has_nothing_to_complain_of(registered, orientation):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        env = gymnasium.make(registered, orientation=orientation, coins=[2, 2, 1], render_mode="rgb_array")
        check_env(env.unwrapped)


def test_gymnasium_and_jax_agree_step_by_step():
    env = CoinGridEnv(task="R-G", max_steps=25)
    pure = coingrid.make(env.config, TASKS["R-G"])
    pure_step = jax.jit(pure.step)
    rng, ends, rewards = np.random.default_rng(0), [], set()
    for episode in range(4):
        obs, info = env.reset(seed=episode)
        state = env._state
        assert (obs == observe(env.config, state)).all()
        assert info["features"].tolist() == [0, 0, 0]
        over = False
        while not over:
            action = rng.choice(3, p=[0.2, 0.2, 0.6])
            obs, reward, terminated, truncated, info = env.step(action)
            state, expected = pure_step(state, jnp.int32(action), jax.random.key(0))
            assert (obs == expected.obs).all()
            assert (reward, terminated) == (float(expected.reward), float(expected.discount) == 0)
            assert (terminated or truncated) == bool(expected.last)
            assert (info["features"] == expected.extras["features"]).all()
            over = terminated or truncated
            rewards.add(reward)
        ends.append((terminated, truncated))  # pyright: ignore[reportPossiblyUnboundVariable]
    assert (False, True) in ends
    assert rewards == {-1.0, 0.0, 1.0}


def test_gymnasium_seeds_are_deterministic_and_differ():
    env, twin = CoinGridEnv(), CoinGridEnv()
    first = [env.reset(seed=3)[0], env.reset()[0]]
    second = [twin.reset(seed=3)[0], twin.reset()[0]]
    assert all((a == b).all() for a, b in zip(first, second, strict=True))
    assert (first[0] != first[1]).any()
    assert (env.reset(seed=4)[0] != first[0]).any()


def test_gymnasium_refuses_nonsense():
    nonsense: list[dict[str, Any]] = [{"task": "purple"}, {"weights": (1.0, 2.0)}, {"colour": 3}, {"render_mode": "human"}]
    for kwargs in nonsense:
        with pytest.raises(UserError):
            CoinGridEnv(**kwargs)
    env = CoinGridEnv()
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step(np.int64(0))
    env.reset(seed=0)
    with pytest.raises(UserError, match="action"):
        env.step(np.int64(3))
