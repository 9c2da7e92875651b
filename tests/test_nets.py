"""Networks: what they show, what they compute, and along which axes."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from psiphi import nets
from psiphi.errors import UserError
from psiphi.nets import Convolution, Egocentric, ImpalaDeep, PsiPhiNet
from psiphi.types import EnvSpec
from tables import drawn, quick_jit

KEY = jax.random.key(0)
COIN, WALL, AGENT = 0, 1, 2
SIDE = 6
STEPS = ((0, 1), (1, 0), (0, -1), (-1, 0))  # east, south, west, north


# --- The egocentric window -----------------------------------------------------------------------------------------------


def shapes_of(make, *args):
    """The module that `make` would make, without making it."""
    return jax.eval_shape(lambda key: make(*args, key=key), KEY)


def board(cell: tuple[int, int], direction: int, coins: np.ndarray, side: int = SIDE) -> np.ndarray:
    """A walled board with an agent; `coins` may be any numbers."""
    obs = np.zeros((side, side, 3), np.uint8)
    obs[[0, -1], :, WALL] = obs[:, [0, -1], WALL] = 1
    obs[..., COIN] = coins
    obs[(*cell, AGENT)] = 2
    obs[(cell[0] + STEPS[direction][0], cell[1] + STEPS[direction][1], AGENT)] = 1
    return obs


@pytest.fixture(scope="module")
def window():
    """Boards ``[B, 6, 6, 3]`` -> what the agent sees, ``[B, ahead, right, channel]``; always 64 boards, so that it is compiled once."""
    torso = drawn(shapes_of(Egocentric, (SIDE, SIDE, 3), (4,)))
    seen = jax.jit(lambda boards: torso.window(boards))

    def see(boards: np.ndarray) -> np.ndarray:
        padded = np.concatenate([boards, np.repeat(boards[-1:], 64 - len(boards), axis=0)])
        views = np.asarray(seen(padded))[: len(boards)]
        side = 2 * (SIDE - 3) + 1
        return views.reshape(len(boards), side, side, 2)

    return see


@pytest.fixture(scope="module")
def random_boards() -> np.ndarray:
    """Boards with random coins in the room, the agent anywhere, looking anywhere."""
    rng = np.random.default_rng(0)
    boards = []
    for _ in range(16):
        coins = np.pad(rng.integers(0, 2, (SIDE - 2, SIDE - 2)), 1)
        boards.append(board(tuple(rng.integers(1, SIDE - 1, 2)), int(rng.integers(4)), coins))
    return np.stack(boards)


def test_egocentric_window_worked_by_hand():
    # A 2x2 room; the agent in its upper left corner looks east, at the coin 5; the coin 7 is behind that one's right.
    coins = np.zeros((4, 4), int)
    coins[1, 2], coins[2, 2] = 5, 7
    torso = drawn(shapes_of(Egocentric, (4, 4, 3), (4,)))
    view = np.asarray(jax.jit(lambda boards: torso.window(boards))(board((1, 1), 0, coins, side=4)[None])).reshape(3, 3, 2)
    np.testing.assert_array_equal(view[..., COIN], [[0, 5, 7], [0, 0, 0], [0, 0, 0]])
    np.testing.assert_array_equal(view[..., WALL], [[1, 0, 0], [1, 0, 0], [1, 1, 1]])


def test_what_lies_outside_the_board_is_wall(window):
    view = window(board((1, 1), 3, np.zeros((SIDE, SIDE)))[None])[0]  # looks north from the upper left corner
    np.testing.assert_array_equal(view[:3, :, WALL], 1)  # the wall ahead and the two rows behind it
    np.testing.assert_array_equal(view[:, :3, WALL], 1)
    np.testing.assert_array_equal(view[3:, 3:, WALL], 0)


@pytest.mark.parametrize("turns", [1, 2, 3])
def test_turning_the_world_with_the_agent_changes_nothing(window, random_boards, turns):
    turned = np.rot90(random_boards, turns, axes=(1, 2))
    np.testing.assert_array_equal(window(turned), window(random_boards))


def test_looking_another_way_turns_the_view(window):
    coins = np.pad(np.arange(1, 17).reshape(4, 4), 1)
    views = window(np.stack([board((2, 3), direction, coins) for direction in range(4)]))
    for east, south in zip(views, np.roll(views, -1, axis=0), strict=True):
        np.testing.assert_array_equal(south, np.rot90(east))  # a turn to the right moves what is ahead to the left


@pytest.mark.parametrize("shift", [(0, 1), (1, 0), (1, 1)])
def test_moving_the_coins_with_the_agent_changes_only_the_walls(window, shift):
    rng = np.random.default_rng(1)
    coins = np.pad(rng.integers(0, 9, (3, 3)), ((1, 2), (1, 2)))
    poses = [(cell, direction) for cell in ((1, 1), (2, 3), (3, 2)) for direction in range(4)]
    here = window(np.stack([board(cell, direction, coins) for cell, direction in poses]))
    moved = np.roll(coins, shift, axis=(0, 1))
    there = window(np.stack([board((y + shift[0], x + shift[1]), direction, moved) for (y, x), direction in poses]))
    np.testing.assert_array_equal(here[..., COIN], there[..., COIN])
    assert not np.array_equal(here[..., WALL], there[..., WALL])


def test_a_mirrored_board_gives_the_mirrored_view(window, random_boards):
    np.testing.assert_array_equal(window(random_boards[:, :, ::-1]), window(random_boards)[:, :, ::-1])


def test_the_whole_room_is_seen_from_anywhere(window):
    numbers = np.pad(np.arange(1, 17).reshape(4, 4), 1)
    poses = [((y, x), direction) for y in range(1, 5) for x in range(1, 5) for direction in range(4)]
    views = window(np.stack([board(cell, direction, numbers) for cell, direction in poses]))
    for view in views:
        assert sorted(view[..., COIN][view[..., COIN] > 0]) == list(range(1, 17))


# --- Convolutions and torsos ---------------------------------------------------------------------------------------------

CONVOLUTIONS = ((3, 1, 7, 4), (8, 4, 13, 10), (4, 2, 9, 6), (4, 2, 3, 1))
"""Kernel, stride, height, width."""


@pytest.fixture(scope="module")
def convolved():
    """For each case: our and XLA's values, and gradients of a random sum of them with respect to the weights and the picture."""
    cases = {}
    for case in CONVOLUTIONS:
        kernel, stride, height, width = case
        make = lambda key, k=kernel, s=stride: Convolution(2, 3, k, s, key=key)  # noqa: E731
        picture = drawn(jax.ShapeDtypeStruct((2, height, width, 2), jnp.float32), seed=1)
        cases[case] = drawn(jax.eval_shape(make, KEY)), picture

    def xla(convolution: Convolution, picture: jax.Array) -> jax.Array:
        kernel = convolution.weight.reshape(convolution.kernel, convolution.kernel, 2, 3)
        strides = (convolution.stride, convolution.stride)
        out = jax.lax.conv_general_dilated(picture, kernel, strides, "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        return out + convolution.bias

    @quick_jit
    def both(cases):
        def one(function, convolution, picture):
            out, pull = jax.vjp(function, convolution, picture)
            return out, pull(jnp.cos(jnp.arange(out.size, dtype=jnp.float32)).reshape(out.shape))

        return {case: (one(lambda c, x: c(x), *inputs), one(xla, *inputs)) for case, inputs in cases.items()}

    return both(cases)


@pytest.mark.parametrize("case", CONVOLUTIONS, ids=str)
def test_convolution_is_xlas_with_same_padding(convolved, case):
    ours, theirs = convolved[case]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4), ours, theirs)


@pytest.mark.parametrize(
    ("name", "obs_shape"),
    [
        ("auto", (5,)), ("auto", (7, 7, 5)), ("auto", (64, 64, 3)), ("mlp", (4, 3, 2)), ("tanh", (4, 3, 2)), ("egocentric", (7, 7, 5)),
        ("egocentric", (5, 8, 2)), ("crowd", (6, 4)), ("crowd", (2, 1)), ("crowd-norm", (6, 4)), ("ring-norm", (6, 4)),
        ("ring-blind", (6, 4)),
        ("impala-shallow", (7, 7, 5)), ("impala-shallow", (20, 33, 3)), ("patches", (20, 33, 3)),
        ("patches-half", (20, 33, 3)), ("impala-deep", (64, 64, 3)), ("impala-deep", (7, 9, 1)),
    ],
)  # fmt: skip
def test_torsos_give_as_many_features_as_asked(name, obs_shape):
    spec = EnvSpec(obs_shape, jnp.uint8, 3)
    obs = jax.ShapeDtypeStruct((4, *obs_shape), jnp.uint8)
    out = jax.eval_shape(lambda key, obs: nets.torso(name, spec, (12, 6), key=key)(obs), KEY, obs)
    assert (out.shape, out.dtype) == ((4, 6), jnp.float32)


@pytest.mark.parametrize("torso_name", ["mlp", "egocentric"])
def test_torsos_take_an_empty_batch(torso_name):
    spec = EnvSpec((4, 4, 3), jnp.uint8, 3)
    obs = jax.ShapeDtypeStruct((0, 4, 4, 3), jnp.uint8)
    assert jax.eval_shape(lambda key, obs: nets.torso(torso_name, spec, (6,), key=key)(obs), KEY, obs).shape == (0, 6)


def test_a_tanh_torso_starts_orthogonal_and_stays_within_one():
    torso = nets.Tanh((4, 4), (8, 8), key=KEY)
    for weight in torso.weights:  # tall or square: the columns are orthogonal, of squared length 2
        np.testing.assert_allclose(weight.T @ weight, 2 * np.eye(8), atol=1e-5)
    assert np.abs(torso(jnp.full((1, 4, 4), 100.0))).max() <= 1


@pytest.fixture(scope="module")
def crowd() -> tuple[Any, np.ndarray, Any]:
    """A crowd torso, three observations of oneself and four others, and what it makes of observations."""
    torso = drawn(shapes_of(nets.torso, "crowd", EnvSpec((5, 4), jnp.float32, 3), (8, 6)))
    return torso, np.random.default_rng(1).normal(size=(3, 5, 4)).astype(np.float32), quick_jit(lambda torso, obs: torso(obs))


def test_a_crowd_is_the_same_in_any_order(crowd):
    torso, obs, read = crowd
    np.testing.assert_allclose(read(torso, obs[:, [0, 3, 1, 4, 2]]), read(torso, obs), rtol=1e-5, atol=1e-6)
    assert not np.allclose(read(torso, obs[:, [1, 0, 2, 3, 4]]), read(torso, obs), atol=1e-2)  # oneself is not one of the others


def test_a_crowd_shows_small_distances_as_clearly_as_large_ones(crowd):
    torso, obs, read = crowd
    shift = np.zeros((1, 5, 4), np.float32)
    shift[:, 1:, 0] = 0.05
    near = np.concatenate([obs[:1, :1], np.zeros((1, 4, 4), np.float32)], axis=1)
    beside, ahead = (np.abs(read(torso, at + shift) - read(torso, at)).max() for at in (near, near + 60 * shift))
    assert beside > 3 * ahead


def test_a_ring_looks_the_same_from_each_arm_but_for_which_arm_it_is():
    torso = drawn(shapes_of(nets.torso, "ring-norm", EnvSpec((5, 4), jnp.float32, 3), (8, 6)))
    obs = jnp.asarray(np.random.default_rng(1).normal(size=(3, 5, 4)), jnp.float32)
    quarter = jnp.array([[0.0, -1.0], [1.0, 0.0]])
    turned = [obs]
    for _ in range(3):
        turned.append((turned[-1].reshape(3, 5, 2, 2) @ quarter.T).reshape(3, 5, 4))
    rows = [i for scale in range(3) for i in range(8 * scale + 4, 8 * scale + 8)]  # where a row of the crowd says which arm it is
    unseen = lambda weight, rows: weight.at[jnp.array(rows)].set(0.0)  # noqa: E731
    blind = eqx.tree_at(
        lambda t: (t.crowd.each.weights[0], t.crowd.mlp.weights[0]),
        torso,
        (unseen(torso.crowd.each.weights[0], rows), unseen(torso.crowd.mlp.weights[0], rows)),
    )
    never = drawn(shapes_of(nets.torso, "ring-blind", EnvSpec((5, 4), jnp.float32, 3), (8, 6)))
    for one in turned[1:]:
        np.testing.assert_allclose(blind(one), blind(obs), rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(never(one), never(obs), rtol=1e-4, atol=1e-5)
        assert not np.allclose(torso(one), torso(obs), atol=1e-2)
    with pytest.raises(UserError, match="ring torso"):
        nets.torso("ring-norm", EnvSpec((5, 3), jnp.float32, 3), (8, 6), key=KEY)


def test_layers_are_normalised_as_equinox_does():
    mlp = nets.MLP((3, 8, 5, 2), key=KEY, normalise=True)
    x, norm = jnp.array([[1.0, -2.0, 300.0]]), lambda x: eqx.nn.LayerNorm(x.shape[0], use_weight=False, use_bias=False)(x)
    hidden = x[0]
    for weight in mlp.weights[:-1]:  # the biases are zero at first
        hidden = jax.nn.relu(norm(hidden @ weight))
    np.testing.assert_allclose(mlp(x)[0], hidden @ mlp.weights[-1], rtol=1e-4, atol=1e-5)


def test_only_a_normalised_crowd_does_not_mind_how_large_its_weights_are():
    def change(name):
        torso = drawn(shapes_of(nets.torso, name, EnvSpec((5, 4), jnp.float32, 3), (8, 6)))
        larger = jax.tree.map(lambda x: 10 * x, torso)
        obs = jnp.asarray(np.random.default_rng(1).normal(size=(3, 5, 4)), jnp.float32)
        return float(jnp.abs(larger(obs) - torso(obs)).max() / jnp.abs(torso(obs)).max())

    assert change("crowd-norm") < 0.01 and change("crowd") > 1


def test_impala_deep_uses_all_of_its_weights():
    torso = drawn(shapes_of(lambda key: ImpalaDeep((5, 6, 2), (5,), key=key, channels=(2,))))
    obs = np.random.default_rng(0).integers(0, 3, (4, 5, 6, 2)).astype(np.uint8)
    gradients = quick_jit(jax.grad(lambda torso, obs: jnp.sum(jnp.square(torso(obs)))))(torso, obs)
    for leaf in jax.tree.leaves(gradients):
        assert np.isfinite(leaf).all() and np.any(leaf != 0)


def test_half_a_picture_is_the_means_of_four_pixels():
    """So which of the four is bright does not matter to the torso, and how bright they are does."""
    read = nets.torso("patches-half", EnvSpec((16, 16, 3), np.uint8, 4), (8,), key=KEY)
    one, other, brighter = (np.zeros((1, 16, 16, 3), np.uint8) for _ in range(3))
    one[0, 6, 4], other[0, 7, 5], brighter[0, 6, 4] = 100, 100, 200
    assert np.allclose(read(jnp.asarray(one)), read(jnp.asarray(other)))
    assert not np.allclose(read(jnp.asarray(one)), read(jnp.asarray(brighter)))


def test_bytes_of_a_picture_are_scaled_and_those_of_a_board_are_not():
    obs = jnp.asarray(np.full((1, 7, 7, 1), 255, np.uint8))
    np.testing.assert_array_equal(nets._image(obs, picture=True), 1)
    np.testing.assert_array_equal(nets._image(obs, picture=False), 255)


@pytest.mark.parametrize(
    ("side", "kind", "kernel"), [(7, "board", 3), (40, "board", 3), (64, "picture", 8), (9, "picture", 8), (8, "picture", 3)]
)
def test_kernels_suit_what_is_seen_and_not_its_size(side, kind, kernel):
    made = shapes_of(nets.torso, "impala-shallow", EnvSpec((side, side, 3), np.uint8, 2, kind=kind), (4,))
    assert made.convolutions[0].kernel == kernel and made.picture == (kind == "picture")


@pytest.mark.parametrize(
    ("kind", "expected"), [("vector", nets.Flat), ("board", nets.Flat), ("picture", nets.ImpalaShallow), (None, nets.Flat)]
)
def test_auto_is_for_what_the_world_shows(kind, expected):
    assert isinstance(shapes_of(nets.torso, "auto", EnvSpec((12, 12, 3), np.uint8, 2, kind=kind), (4,)), expected)


@pytest.mark.parametrize(
    ("name", "obs_shape", "expected"),
    [
        ("egocentric", (5,), "(H, W, C >= 2)"), ("egocentric", (5, 5, 1), "(H, W, C >= 2)"),
        ("crowd", (5,), "(1 + others, f)"), ("crowd", (1, 4), "(1 + others, f)"),
        ("impala-shallow", (5,), "(H, W, C)"), ("impala-deep", (5, 5), "(H, W, C)"),
    ],
)  # fmt: skip
def test_a_torso_that_cannot_read_the_observations_says_so(name, obs_shape, expected):
    with pytest.raises(UserError) as error:
        nets.torso(name, EnvSpec(obs_shape, jnp.float32, 2), (4,), key=KEY)
    assert all(part in str(error.value) for part in (name, expected, str(obs_shape)))


# --- PsiPhiNet -----------------------------------------------------------------------------------------------------------

HEADS, ENSEMBLE, ACTIONS, CUMULANTS, FEATURES, BATCH = 3, 2, 4, 5, 6, 7


def psiphi_net(key: jax.Array, torso_name: nets.TorsoName = "mlp", share_torso: bool = False) -> PsiPhiNet:
    spec = EnvSpec((4, 4, 3), jnp.float32, ACTIONS)
    return PsiPhiNet(
        spec, heads=HEADS, ensemble=ENSEMBLE, num_cumulants=CUMULANTS, torso_name=torso_name, torso_hidden=(8, FEATURES), phi_hidden=(9, 5),
        psi_hidden=(7,), share_torso=share_torso, key=key,
    )  # fmt: skip


@pytest.mark.parametrize("torso_name", ["mlp", "egocentric", "impala-shallow", "impala-deep"])
@pytest.mark.parametrize("share_torso", [True, False], ids=["shared torso", "own torso"])
def test_every_leaf_is_an_array(torso_name, share_torso):
    # Nothing but arrays can leave a traced function.
    leaves = jax.tree.leaves(jax.eval_shape(lambda key: psiphi_net(key, torso_name, share_torso), KEY))
    assert leaves and all(isinstance(leaf, jax.ShapeDtypeStruct) and leaf.dtype == jnp.float32 for leaf in leaves)


class Answers:
    """All that one network answers, computed in one go."""

    def __init__(self):
        self.net = drawn(jax.eval_shape(psiphi_net, KEY))
        self.shared = drawn(jax.eval_shape(lambda key: psiphi_net(key, share_torso=True), KEY))
        self.obs = drawn(jax.ShapeDtypeStruct((BATCH, 4, 4, 3), jnp.float32), seed=2)
        self.theirs = drawn(jax.ShapeDtypeStruct((HEADS, BATCH, FEATURES), jnp.float32), seed=3)
        self.values = quick_jit(self._ask)(self.net, self.shared)

    def _ask(self, net: PsiPhiNet, shared: PsiPhiNet) -> dict[str, jax.Array]:
        features = net.features(self.obs)
        return {
            "features": features,
            "psi": net.psi(features),
            "psi of theirs": jax.vmap(net.psi)(self.theirs),
            "own_psi": net.own_psi(self.theirs),
            "phi": net.phi(self.obs),
            "phi, features ignored": net.phi(self.obs, 0 * features),
            "shared phi": shared.phi(self.obs),
            "shared phi, features given": shared.phi(self.obs, shared.features(self.obs)),
            "shared phi, other features": shared.phi(self.obs, 0 * features),
        }

    def __getitem__(self, name: str) -> np.ndarray:
        return np.asarray(self.values[name])


@pytest.fixture(scope="module")
def answers() -> Answers:
    return Answers()


def dense(mlp: nets.MLP, index: tuple[int, ...], x: np.ndarray) -> np.ndarray:
    """One MLP out of a stack, in NumPy."""
    *hidden, (weight, bias) = [(np.asarray(w)[index], np.asarray(b)[index]) for w, b in zip(mlp.weights, mlp.biases, strict=True)]
    for w, b in hidden:
        x = np.maximum(x @ w + b, 0)
    return x @ weight + bias


def test_psi_has_axes_head_ensemble_action_cumulant(answers):
    psi = answers["psi"]
    assert psi.shape == (BATCH, HEADS, ENSEMBLE, ACTIONS, CUMULANTS)
    for k in range(HEADS):
        for e in range(ENSEMBLE):
            expected = dense(answers.net.psi_heads, (k, e), answers["features"]).reshape(BATCH, ACTIONS, CUMULANTS)
            np.testing.assert_allclose(psi[:, k, e], expected, rtol=1e-4, atol=1e-5)


def test_own_psi_shows_each_head_its_own_slice_only(answers):
    for k in range(HEADS):
        np.testing.assert_allclose(answers["own_psi"][k], answers["psi of theirs"][k][:, k], rtol=1e-4, atol=1e-5)


def test_phi_reads_a_torso_of_its_own_or_the_shared_one(answers):
    assert answers["phi"].shape == (BATCH, ACTIONS, CUMULANTS)
    np.testing.assert_array_equal(answers["phi"], answers["phi, features ignored"])
    np.testing.assert_allclose(answers["shared phi"], answers["shared phi, features given"], rtol=1e-5, atol=1e-6)
    assert not np.allclose(answers["shared phi"], answers["shared phi, other features"])
