"""Networks: torsos that read observations, and the stacked heads of PsiPhi-learning.

Every module is a frozen pytree whose every leaf is an array, so plain `jax.jit`, `vmap`, `grad` and `scan` apply, and a target
network is an assignment. Modules take a batch of observations ``[B, ...]``.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, Shaped

from psiphi.cumulants import Cumulants
from psiphi.errors import UserError
from psiphi.types import EnvSpec

TorsoName = Literal[
    "auto", "mlp", "tanh", "crowd", "crowd-norm", "ring-norm", "ring-blind", "egocentric", "patches", "patches-half",
    "impala-shallow", "impala-deep",
]  # fmt: skip


class MLP(eqx.Module):
    """Dense layers with ReLU between them (and after the last one if `activate_last`), and layer normalisation before each ReLU if
    `normalise`."""

    weights: tuple[Array, ...]
    biases: tuple[Array, ...]
    activate_last: bool = eqx.field(static=True)
    normalise: bool = eqx.field(static=True)

    def __init__(
        self, sizes: tuple[int, ...], *, key: Array, activate_last: bool = False, last_scale: float = 1.0, normalise: bool = False
    ):
        keys = jax.random.split(key, len(sizes) - 1)
        scales = [1.0] * (len(sizes) - 2) + [last_scale]
        initialise = jax.nn.initializers.he_normal()
        self.weights = tuple(s * initialise(k, (i, o)) for k, i, o, s in zip(keys, sizes[:-1], sizes[1:], scales, strict=True))
        self.biases = tuple(jnp.zeros(o) for o in sizes[1:])
        self.activate_last = activate_last
        self.normalise = normalise

    def __call__(self, x: Float[Array, "... i"]) -> Float[Array, "... o"]:
        for layer, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            x = x @ weight + bias
            if layer < len(self.weights) - 1 or self.activate_last:
                x = jax.nn.relu(_normalised(x) if self.normalise else x)
        return x


def _normalised(x: Float[Array, "... f"]) -> Float[Array, "... f"]:
    """With mean 0 and variance 1 over the features; the variance by differences from the mean, which does not cancel."""
    return jax.nn.standardize(x, variance=jnp.var(x, axis=-1, keepdims=True))


def _rows(x: Array) -> Array:
    """Flatten all but the batch axis, which may be empty."""
    return x.reshape(x.shape[0], math.prod(x.shape[1:]))


class Flat(eqx.Module):
    """An MLP torso on the flattened observation."""

    mlp: MLP

    def __init__(self, obs_shape: tuple[int, ...], hidden: tuple[int, ...], *, key: Array):
        self.mlp = MLP((math.prod(obs_shape), *hidden), key=key, activate_last=True)

    def __call__(self, obs: Array) -> Float[Array, "B f"]:
        return self.mlp(_rows(obs).astype(jnp.float32))


class Tanh(eqx.Module):
    """A torso on the flattened observation of orthogonal layers with tanh after each: what is customary for policy gradients."""

    weights: tuple[Array, ...]
    biases: tuple[Array, ...]

    def __init__(self, obs_shape: tuple[int, ...], hidden: tuple[int, ...], *, key: Array):
        sizes = (math.prod(obs_shape), *hidden)
        initialise = jax.nn.initializers.orthogonal(math.sqrt(2))
        keys = jax.random.split(key, len(hidden))
        self.weights = tuple(initialise(k, (i, o)) for k, i, o in zip(keys, sizes[:-1], sizes[1:], strict=True))
        self.biases = tuple(jnp.zeros(o) for o in hidden)

    def __call__(self, obs: Array) -> Float[Array, "B f"]:
        x = _rows(obs).astype(jnp.float32)
        for weight, bias in zip(self.weights, self.biases, strict=True):
            x = jnp.tanh(x @ weight + bias)
        return x


class Crowd(eqx.Module):
    """One network for each of the others beside oneself, then a maximum and a mean over them: who is listed first does not matter.

    For observations ``[1 + others, f]``, one's own row first. Every entry is shown at several scales, as a car's length decides among
    distances of a hundred metres. With `normalise`, layers are normalised.
    """

    SCALES = (4.0, 16.0)

    each: MLP
    mlp: MLP

    def __init__(self, obs_shape: tuple[int, ...], hidden: tuple[int, ...], *, key: Array, normalise: bool = False):
        if len(obs_shape) != 2 or obs_shape[0] < 2:
            raise UserError(f"the crowd torso reads rows of shape (1 + others, f), but observations have shape {obs_shape}.")
        each_key, all_key = jax.random.split(key)
        row, width = (1 + len(self.SCALES)) * obs_shape[1], hidden[0] // 2
        self.each = MLP((2 * row, width, width), key=each_key, activate_last=True, normalise=normalise)
        self.mlp = MLP((row + 2 * width, *hidden), key=all_key, activate_last=True, normalise=normalise)

    def __call__(self, obs: Array) -> Float[Array, "B f"]:
        rows = jnp.concatenate([obs, *(jnp.tanh(scale * obs) for scale in self.SCALES)], axis=-1)
        own, others = rows[:, :1], rows[:, 1:]
        met = self.each(jnp.concatenate([jnp.broadcast_to(own, others.shape), others], axis=-1))
        return self.mlp(jnp.concatenate([own[:, 0], jnp.max(met, axis=1), jnp.mean(met, axis=1)], axis=-1))


class Ring(eqx.Module):
    """A crowd on a map that looks the same from four sides, as a roundabout's: everything is turned by quarters until one is on the right.

    For observations ``[1 + others, 4]`` of x, y and speeds, one's own row first and on the map, the others' relative to it. What is learned
    at one arm then holds at each. One's own row also says which arm it is; at first that means nothing, so that what was shown at some arms
    only is taken for what is done at all of them. A `blind` ring never learns it.
    """

    crowd: Crowd
    blind: bool = eqx.field(static=True)

    def __init__(self, obs_shape: tuple[int, ...], hidden: tuple[int, ...], *, key: Array, blind: bool = False):
        self.blind = blind
        if len(obs_shape) != 2 or obs_shape[1] != 4:
            raise UserError(f"the ring torso reads rows of shape (1 + others, 4), but observations have shape {obs_shape}.")
        crowd = Crowd((obs_shape[0], 8), hidden, key=key, normalise=True)
        arm = np.concatenate([np.arange(4, 8) + 8 * i for i in range(1 + len(Crowd.SCALES))])
        first = lambda c: (c.each.weights[0], c.mlp.weights[0])  # noqa: E731
        self.crowd = eqx.tree_at(first, crowd, tuple(weight.at[arm].set(0.0) for weight in first(crowd)))

    def __call__(self, obs: Array) -> Float[Array, "B f"]:
        x, y = obs[:, 0, 0], obs[:, 0, 1]
        arm = jnp.where(jnp.abs(x) >= jnp.abs(y), jnp.where(x >= 0, 0, 2), jnp.where(y >= 0, 1, 3))
        cos, sin = jnp.array([1.0, 0.0, -1.0, 0.0])[arm], jnp.array([0.0, 1.0, 0.0, -1.0])[arm]
        turn = jnp.stack([jnp.stack([cos, sin], -1), jnp.stack([-sin, cos], -1)], axis=-2)
        turned = jnp.einsum("bij,brpj->brpi", turn, obs.reshape(*obs.shape[:2], 2, 2)).reshape(obs.shape)
        which = jnp.zeros_like(obs) if self.blind else jnp.zeros_like(obs).at[:, 0].set(jax.nn.one_hot(arm, 4))
        return self.crowd(jnp.concatenate([turned, which], axis=-1))


def _egocentric_cells(height: int, width: int) -> np.ndarray:
    """For each pose (cell, direction): which cell of the board (or height*width: outside) each cell of the turned window shows."""
    reach = max(height, width) - 3
    offsets = np.arange(-reach, reach + 1)
    ahead, right = -offsets[:, None], offsets[None, :]
    steps = np.array([(0, 1), (1, 0), (0, -1), (-1, 0)])
    table = np.empty((height * width, 4, ahead.size, right.size), np.int32)
    for cell in range(height * width):
        for direction, (dy, dx) in enumerate(steps):
            y = cell // width + ahead * dy + right * dx
            x = cell % width + ahead * dx - right * dy
            inside = (y >= 0) & (y < height) & (x >= 0) & (x < width)
            table[cell, direction] = np.where(inside, y * width + x, height * width)
    return table.reshape(height * width * 4, -1)


class Egocentric(eqx.Module):
    """An MLP on the board as the agent sees it: moved and turned so that the agent is at the centre and looks up.

    For grids ``[H, W, C]`` whose last channel shows the agent: its cell has the largest value and the cell in front of it the next
    largest. The window is wide enough to show the whole inner room from anywhere in it; what lies outside the board reads 1 in
    every last-but-one (wall) channel and 0 elsewhere.
    """

    mlp: MLP
    shape: tuple[int, int, int] = eqx.field(static=True)

    def __init__(self, obs_shape: tuple[int, ...], hidden: tuple[int, ...], *, key: Array):
        if len(obs_shape) != 3 or obs_shape[-1] < 2:
            raise UserError(f"the egocentric torso reads grids of shape (H, W, C >= 2), but observations have shape {obs_shape}.")
        self.shape = (obs_shape[0], obs_shape[1], obs_shape[2])
        window = _egocentric_cells(*self.shape[:2]).shape[1]
        self.mlp = MLP((window * (obs_shape[2] - 1), *hidden), key=key, activate_last=True)

    def window(self, obs: Array) -> Float[Array, "B window"]:
        height, width, channels = self.shape
        agent = _rows(obs[..., -1])
        cell = jnp.argmax(agent, axis=1)
        front = jnp.argmax(jnp.where(jax.nn.one_hot(cell, height * width, dtype=bool), 0, agent), axis=1)
        dy, dx = front // width - cell // width, front % width - cell % width
        direction = jnp.where(dy == 0, 1 - dx, 2 - dy)  # right 0, down 1, left 2, up 3, as in MiniGrid
        outside = jnp.zeros(channels - 1, obs.dtype).at[-1].set(1)
        board = obs[..., :-1].reshape(obs.shape[0], height * width, channels - 1)
        board = jnp.concatenate([board, jnp.broadcast_to(outside, (obs.shape[0], 1, channels - 1))], axis=1)
        cells = jnp.asarray(_egocentric_cells(height, width))[cell * 4 + direction]
        return _rows(jnp.take_along_axis(board, cells[:, :, None], axis=1)).astype(jnp.float32)

    def __call__(self, obs: Array) -> Float[Array, "B f"]:
        return self.mlp(self.window(obs))


def _image(obs: Array, picture: bool) -> Float[Array, "B H W C"]:
    """Bytes of a picture become numbers up to 1; the small integers of a board stay as they are."""
    return obs.astype(jnp.float32) / (255.0 if picture and obs.dtype == jnp.uint8 else 1.0)


class Patches(eqx.Module):
    """A torso for pictures that a CPU reads fast: each 8x8 patch by one matrix, then dense layers. The matrix is the same for all patches.

    It is a convolution whose stride is its width, written as one matrix product. Bytes become numbers up to 1. With `half`, four pixels are
    first made one, their mean, and a patch has half as many features: a third of the work.
    """

    SIDE, FEATURES = 8, 32

    each: MLP
    mlp: MLP
    half: bool = eqx.field(static=True)

    def __init__(self, obs_shape: tuple[int, ...], hidden: tuple[int, ...], *, key: Array, half: bool = False):
        each, dense = jax.random.split(key)
        self.half = half
        side, features = (self.SIDE // 2, self.FEATURES // 2) if half else (self.SIDE, self.FEATURES)
        patches = math.prod(math.ceil(n / self.SIDE) for n in obs_shape[:2])
        self.each = MLP((side**2 * obs_shape[2], features), key=each, activate_last=True)
        self.mlp = MLP((patches * features, *hidden), key=dense, activate_last=True)

    def __call__(self, obs: Array) -> Float[Array, "B f"]:
        side = self.SIDE
        if self.half:
            obs, side = _halved(obs), side // 2
        x = jnp.pad(obs, ((0, 0), *((0, -n % side) for n in obs.shape[1:3]), (0, 0)))
        rows, columns = x.shape[1] // side, x.shape[2] // side
        x = x.reshape(x.shape[0], rows, side, columns, side, x.shape[3]).transpose(0, 1, 3, 2, 4, 5)
        x = x.reshape(x.shape[0], rows * columns, side * side * x.shape[5]).astype(jnp.float32)
        return self.mlp(_rows(self.each(x / 255.0 if obs.dtype == jnp.uint8 else x)))


def _halved(obs: Shaped[Array, "B H W C"]) -> Float[Array, "B h w C"]:
    """A picture of half the height and the width: the mean of every four pixels. Bytes become numbers up to 1."""
    x = jnp.pad(obs, ((0, 0), *((0, -n % 2) for n in obs.shape[1:3]), (0, 0))).astype(jnp.float32)
    mean = (x[:, ::2, ::2] + x[:, 1::2, ::2] + x[:, ::2, 1::2] + x[:, 1::2, 1::2]) / 4
    return mean / 255.0 if obs.dtype == jnp.uint8 else mean


class Convolution(eqx.Module):
    """A 2-d convolution, padding "SAME", as one matrix product over shifted copies of the picture.

    XLA's own convolutions are two orders of magnitude slower on a CPU inside a compiled loop.
    """

    weight: Float[Array, "kkc o"]
    bias: Float[Array, " o"]
    kernel: int = eqx.field(static=True)
    stride: int = eqx.field(static=True)

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int = 1, *, key: Array):
        self.weight = jax.nn.initializers.he_normal()(key, (kernel * kernel * inputs, outputs))
        self.bias = jnp.zeros(outputs)
        self.kernel, self.stride = kernel, stride

    def __call__(self, x: Float[Array, "B H W C"]) -> Float[Array, "B h w o"]:
        sides = [math.ceil(n / self.stride) for n in x.shape[1:3]]
        missing = [max((side - 1) * self.stride + self.kernel - n, 0) for side, n in zip(sides, x.shape[1:3], strict=True)]
        x = jnp.pad(x, ((0, 0), *((m // 2, m - m // 2) for m in missing), (0, 0)))
        if self.stride > 1 and self.kernel % self.stride == 0:
            return self._by_blocks(x, sides)
        span = [(side - 1) * self.stride + 1 for side in sides]
        shifts = [(i, j) for i in range(self.kernel) for j in range(self.kernel)]
        patches = [x[:, i : i + span[0] : self.stride, j : j + span[1] : self.stride] for i, j in shifts]
        return jnp.concatenate(patches, axis=-1) @ self.weight + self.bias

    def _by_blocks(self, x: Array, sides: Sequence[int]) -> Array:
        """Blocks of stride x stride pixels are read by one matrix product, which has the outputs of every part of the kernel side by side;
        then these are shifted and added. So that nothing large is copied."""
        stride, shifts, outputs = self.stride, self.kernel // self.stride, self.bias.shape[0]
        rows, columns = (side + shifts - 1 for side in sides)
        x = x[:, : rows * stride, : columns * stride]
        blocks = x.reshape(-1, rows, stride, columns, stride, x.shape[3]).transpose(0, 1, 3, 2, 4, 5).reshape(x.shape[0], rows, columns, -1)
        weight = self.weight.reshape(shifts, stride, shifts, stride, -1, outputs).transpose(0, 2, 1, 3, 4, 5)
        weight = weight.reshape(shifts, shifts, blocks.shape[-1], outputs)
        blocks = blocks.astype(jnp.float32)
        part = lambda i, j: (blocks @ weight[i, j])[:, i : i + sides[0], j : j + sides[1]]  # noqa: E731
        return sum(part(i, j) for i in range(shifts) for j in range(shifts)) + self.bias


class ImpalaShallow(eqx.Module):
    """IMPALA's shallow torso (no LSTM): two convolutions and a dense layer.

    On boards, where every cell counts, and on pictures of which the published 8x8/4 and 4x4/2 kernels would leave a single row or column,
    both are 3x3/1.
    """

    convolutions: tuple[Convolution, Convolution]
    mlp: MLP
    picture: bool = eqx.field(static=True)

    def __init__(self, obs_shape: tuple[int, ...], hidden: tuple[int, ...], *, key: Array, picture: bool = False):
        first, second, dense = jax.random.split(key, 3)
        self.picture = picture
        kernels = ((8, 4), (4, 2)) if picture and min(obs_shape[:2]) > 4 * 2 else ((3, 1), (3, 1))
        self.convolutions = (Convolution(obs_shape[-1], 16, *kernels[0], key=first), Convolution(16, 32, *kernels[1], key=second))
        side = [math.ceil(math.ceil(n / kernels[0][1]) / kernels[1][1]) for n in obs_shape[:2]]
        self.mlp = MLP((32 * side[0] * side[1], *hidden), key=dense, activate_last=True)

    def __call__(self, obs: Array) -> Float[Array, "B f"]:
        x = _image(obs, self.picture)
        for convolution in self.convolutions:
            x = jax.nn.relu(convolution(x))
        return self.mlp(_rows(x))


class _Residual(eqx.Module):
    convolutions: tuple[Convolution, Convolution]

    def __init__(self, channels: int, *, key: Array):
        first, second = jax.random.split(key)
        self.convolutions = (Convolution(channels, channels, 3, key=first), Convolution(channels, channels, 3, key=second))

    def __call__(self, x: Array) -> Array:
        y = x
        for convolution in self.convolutions:
            y = convolution(jax.nn.relu(y))
        return x + y


class ImpalaDeep(eqx.Module):
    """IMPALA's deep torso (no LSTM): three sections of convolution, 3x3/2 max-pooling and two residual blocks, then a dense layer."""

    sections: tuple[tuple[Convolution, _Residual, _Residual], ...]
    mlp: MLP
    picture: bool = eqx.field(static=True)

    def __init__(
        self,
        obs_shape: tuple[int, ...],
        hidden: tuple[int, ...],
        *,
        key: Array,
        channels: tuple[int, ...] = (16, 32, 32),
        picture: bool = False,
    ):
        self.picture = picture
        dense, *keys = jax.random.split(key, 1 + 3 * len(channels))
        sections, inputs = [], obs_shape[-1]
        for section, outputs in enumerate(channels):
            entry, first, second = keys[3 * section : 3 * section + 3]
            sections.append((Convolution(inputs, outputs, 3, key=entry), _Residual(outputs, key=first), _Residual(outputs, key=second)))
            inputs = outputs
        self.sections = tuple(sections)
        side = [math.ceil(n / 2 ** len(channels)) for n in obs_shape[:2]]
        self.mlp = MLP((inputs * side[0] * side[1], *hidden), key=dense, activate_last=True)

    def __call__(self, obs: Array) -> Float[Array, "B f"]:
        x = _image(obs, self.picture)
        for convolution, first, second in self.sections:
            x = jax.lax.reduce_window(convolution(x), -jnp.inf, jax.lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")
            x = second(first(x))
        return self.mlp(jax.nn.relu(_rows(x)))


Torso = Flat | Tanh | Crowd | Ring | Egocentric | Patches | ImpalaShallow | ImpalaDeep


def torso(name: TorsoName, spec: EnvSpec, hidden: tuple[int, ...], *, key: Array) -> Torso:
    """The named torso; "auto" is an MLP for vectors and boards and IMPALA-shallow for pictures."""
    picture = spec.kind == "picture"
    shallow, deep = (functools.partial(kind, picture=picture) for kind in (ImpalaShallow, ImpalaDeep))
    kinds: dict[str, Callable[..., Torso]] = {
        "auto": shallow if picture else Flat,
        "mlp": Flat,
        "tanh": Tanh,
        "crowd": Crowd,
        "crowd-norm": functools.partial(Crowd, normalise=True),
        "ring-norm": Ring,
        "ring-blind": functools.partial(Ring, blind=True),
        "egocentric": Egocentric,
        "patches": Patches,
        "patches-half": functools.partial(Patches, half=True),
        "impala-shallow": shallow,
        "impala-deep": deep,
    }
    if name in ("patches", "patches-half", "impala-shallow", "impala-deep") and len(spec.obs_shape) != 3:
        raise UserError(f"the {name} torso reads pictures of shape (H, W, C), but observations have shape {spec.obs_shape}.")
    return kinds[name](spec.obs_shape, hidden, key=key)


class Coded(eqx.Module):
    """One network in the place of a head per agent: it reads the agent's code z beside the features, and weighs features and hidden units
    by it, so that agents share what a unit means and differ in how much it counts.

    Its size and its cost do not grow with the number of agents. Not in the paper, which names it as future work.
    """

    weigh: tuple[Float[Array, "c _"], ...]
    mlp: MLP

    def __init__(self, features: int, code: int, hidden: tuple[int, ...], outputs: int, *, key: Array):
        weigh_key, mlp_key = jax.random.split(key)
        widths = (features, *hidden)
        keys = jax.random.split(weigh_key, len(widths))
        self.weigh = tuple(jax.random.normal(k, (code, width)) / math.sqrt(code) for k, width in zip(keys, widths, strict=True))
        self.mlp = MLP((features + code, *hidden, outputs), key=mlp_key)

    def __call__(self, x: Float[Array, "B f"], code: Float[Array, " c"]) -> Float[Array, "B o"]:
        first, *rest = (1 + code @ weigh for weigh in self.weigh)
        x = jnp.concatenate([x * first, jnp.broadcast_to(code, (x.shape[0], code.shape[0]))], axis=1)
        *hidden, last = zip(self.mlp.weights, self.mlp.biases, strict=True)
        for (weight, bias), weighed in zip(hidden, rest, strict=True):
            x = jax.nn.relu(x @ weight + bias) * weighed
        return x @ last[0] + last[1]


class PsiPhiNet(eqx.Module):
    """Shared cumulants phi, successor features psi with axes (head, ensemble), and one preference vector w per head.

    With `codes`, there is one network for all heads, psi(s, a, z_k), and a head is its code z_k. Heads 0..K-1 are the demonstrators'; an
    ego, if there is one, is the last. `phi_torso` is None where phi reads the shared torso, as in the paper. Where cumulants are `given`,
    phi is not learned, and each head has values of its own beside psi, unless `own_values` is off: what psi.w would be if all that an agent
    does could be put down to its reward.
    """

    torso: Torso
    phi_torso: Torso | None
    phi_head: MLP | None
    psi_heads: MLP | Coded
    w: Float[Array, "heads d"]
    num_actions: int = eqx.field(static=True)
    of_next: bool = eqx.field(static=True, default=False)
    """Whether learned cumulants are of the state that a step leads to, whatever was done."""
    given: Cumulants | None = None
    value_heads: MLP | Coded | None = None
    lapse: Float[Array, " heads"] | None = None
    """Logits of the share of each head's steps that are uniform mistakes."""
    codes: Float[Array, "heads c"] | None = None
    """What tells the heads apart, where they are one network."""

    def __init__(
        self,
        spec: EnvSpec,
        *,
        heads: int,
        ensemble: int,
        num_cumulants: int,
        torso_name: TorsoName,
        torso_hidden: tuple[int, ...],
        phi_hidden: tuple[int, ...],
        psi_hidden: tuple[int, ...],
        share_torso: bool,
        key: Array,
        of_next: bool = False,
        given: Cumulants | None = None,
        lapse: float = 0.0,
        code: int = 0,
        own_values: bool = True,
    ):
        torso_key, phi_torso_key, phi_key, psi_key, w_key = jax.random.split(key, 5)
        d = num_cumulants if given is None else given.size
        self.num_actions, self.of_next, self.given = spec.num_actions, of_next, given
        self.torso = torso(torso_name, spec, torso_hidden, key=torso_key)
        keys = jax.random.split(psi_key, (heads, ensemble))

        self.codes = 0.3 * jax.random.normal(jax.random.fold_in(psi_key, 2), (heads, code)) if code else None

        def stacked(keys: Array, outputs: int) -> MLP | Coded:
            if code:
                return jax.vmap(lambda key: Coded(torso_hidden[-1], code, psi_hidden, outputs, key=key))(keys[0])

            def one(key: Array) -> MLP:
                return MLP((torso_hidden[-1], *psi_hidden, outputs), key=key)

            if given is None:
                return jax.vmap(jax.vmap(one))(keys)
            # The same numbers one after the other: that many random numbers side by side take long to compile.
            return jax.tree.map(lambda x: x.reshape(*keys.shape, *x.shape[1:]), jax.lax.map(one, keys.reshape(-1)))

        self.psi_heads = stacked(keys, spec.num_actions * d)
        self.lapse = jnp.full(heads, math.log(lapse / (1 - lapse))) if lapse else None
        if given is not None:
            self.phi_torso, self.phi_head, self.value_heads = None, None, None
            if not own_values:
                self.w = jax.random.normal(w_key, (heads, d)) / math.sqrt(d)
                return
            self.value_heads = stacked(jax.random.split(jax.random.fold_in(psi_key, 1), (heads, ensemble)), spec.num_actions)
            self.w = jnp.zeros((heads, d))
            return
        self.value_heads = None
        self.phi_torso = None if share_torso else torso(torso_name, spec, phi_hidden[:1], key=phi_torso_key)
        phi_inputs = torso_hidden[-1:] + phi_hidden if share_torso else phi_hidden
        self.phi_head = MLP((*phi_inputs, d if of_next else spec.num_actions * d), key=phi_key)
        self.w = jax.random.normal(w_key, (heads, d)) / math.sqrt(d)

    def _per_action(self, flat: Array) -> Array:
        return flat.reshape(*flat.shape[:-1], self.num_actions, flat.shape[-1] // self.num_actions)

    def features(self, obs: Array) -> Float[Array, "B f"]:
        return self.torso(obs)

    def phi(self, obs: Array, features: Array | None = None) -> Float[Array, "B A d"]:
        """Learned cumulants of every action; pass the shared torso's `features` where they have been computed already."""
        assert self.phi_head is not None and not self.of_next
        return self._per_action(self._phi(obs, features))

    def _phi(self, obs: Array, features: Array | None = None) -> Array:
        assert self.phi_head is not None
        if self.phi_torso is not None:
            return self.phi_head(self.phi_torso(obs))
        return self.phi_head(self.torso(obs) if features is None else features)

    def phi_table(
        self, obs: Array, action: Array, next_obs: Array, discount: Array, features: Array | None = None
    ) -> Float[Array, "B A_or_1 d"]:
        """Cumulants of steps: of every action where they are learned of the state, else only of what was done."""
        if self.given is not None:
            return jax.lax.stop_gradient(self.given(obs, action, next_obs, discount))[:, None]
        return self._phi(next_obs)[:, None] if self.of_next else self.phi(obs, features)

    def cumulants(self, obs: Array, action: Array, next_obs: Array, discount: Array, features: Array | None = None) -> Float[Array, "B d"]:
        """Cumulants phi(s, a, s') of steps."""
        return taken(self.phi_table(obs, action, next_obs, discount, features), action)

    def psi(self, features: Float[Array, "B f"]) -> Float[Array, "B heads ensemble A d"]:
        """Successor features of every head."""
        return self._per_action(_by_head(self.psi_heads, features, self.codes))

    def own_psi(self, features: Float[Array, "heads B f"]) -> Float[Array, "heads B ensemble A d"]:
        """Successor features where slice k of `features` meets head k only."""
        return self._per_action(_own(self.psi_heads, features, self.codes))

    def values(self, features: Float[Array, "B f"]) -> Float[Array, "B heads ensemble A"]:
        """Values of the heads' own tasks, where cumulants are given."""
        assert self.value_heads is not None
        return _by_head(self.value_heads, features, self.codes)

    def own_values(self, features: Float[Array, "heads B f"]) -> Float[Array, "heads B ensemble A"]:
        """The same where slice k of `features` meets head k only."""
        assert self.value_heads is not None
        return _own(self.value_heads, features, self.codes)

    def task_values(self, obs: Array, w: Float[Array, "heads d"]) -> Float[Array, "B heads ensemble A"]:
        """What every action is worth to each head on its own task w: psi.w, or the values learned beside psi."""
        features = self.features(obs)
        if self.value_heads is not None:
            return self.values(features)
        return jnp.einsum("bkead,kd->bkea", self.psi(features)[:, : w.shape[0]], w)


def _by_head(heads: MLP | Coded, features: Array, codes: Array | None) -> Array:
    if codes is not None:
        return jax.vmap(jax.vmap(lambda head, code: head(features, code), (0, None), 1), (None, 0), 1)(heads, codes)
    return jax.vmap(jax.vmap(lambda head: head(features), out_axes=1), out_axes=1)(heads)


def _own(heads: MLP | Coded, features: Array, codes: Array | None) -> Array:
    if codes is not None:
        return jax.vmap(jax.vmap(lambda head, x, code: head(x, code), (0, None, None), 1), (None, 0, 0))(heads, features, codes)
    return jax.vmap(jax.vmap(lambda head, x: head(x), in_axes=(0, None), out_axes=1))(heads, features)


def taken(per_action: Float[Array, "... A d"], action: Array) -> Float[Array, "... d"]:
    """Of a table with a row for every action, the row of what was done; of one with a single row, that one."""
    if per_action.shape[-2] == 1:
        return per_action[..., 0, :]
    return jnp.take_along_axis(per_action, action[..., None, None], axis=-2)[..., 0, :]


def head_parts(net: PsiPhiNet) -> tuple[Any, ...]:
    """The parts of a network whose arrays have an axis of heads, the first."""
    heads = (net.psi_heads, net.w, net.value_heads, net.lapse) if net.codes is None else (net.w, net.lapse, net.codes)
    return tuple(part for part in heads if part is not None)


def with_head_parts(net: PsiPhiNet, parts: tuple[Any, ...]) -> PsiPhiNet:
    """The network with other heads."""
    return eqx.tree_at(head_parts, net, parts)


def of_heads(net: "Net", change: Callable[[Array], Array]) -> "Net":
    """A network whose arrays with an axis of heads are changed alike: some taken, others left out."""
    if isinstance(net, Committee):
        return Committee(jax.vmap(lambda one: with_head_parts(one, jax.tree.map(change, head_parts(one))))(net.nets))
    return with_head_parts(net, jax.tree.map(change, head_parts(net)))


class Committee(eqx.Module):
    """Several networks, trained alike from different beginnings, as one.

    Preferences and values are the members' medians, so that a single member that went astray is outvoted. Successor features are one
    ensemble.
    """

    nets: PsiPhiNet
    """Every array has a leading axis for the members."""

    @property
    def num_actions(self) -> int:
        return self.nets.num_actions

    @property
    def given(self) -> Cumulants | None:
        return None if self.nets.given is None else jax.tree.map(lambda x: x[0], self.nets.given)

    @property
    def w(self) -> Float[Array, "heads d"]:
        return jnp.median(self.nets.w, axis=0)

    @property
    def lapse(self) -> Float[Array, " heads"] | None:
        return None if self.nets.lapse is None else jnp.median(self.nets.lapse, axis=0)

    def features(self, obs: Array) -> Float[Array, "members B f"]:
        return jax.vmap(lambda net: net.features(obs))(self.nets)

    def cumulants(self, obs: Array, action: Array, next_obs: Array, discount: Array, features: Array | None = None) -> Float[Array, "B d"]:
        return self.member(0).cumulants(obs, action, next_obs, discount)

    def member(self, index: int) -> PsiPhiNet:
        return jax.tree.map(lambda x: x[index], self.nets)

    def psi(self, features: Float[Array, "members B f"]) -> Float[Array, "B heads ensemble A d"]:
        return _one_ensemble(jax.vmap(lambda net, x: net.psi(x))(self.nets, features))

    def task_values(self, obs: Array, w: Float[Array, "heads d"]) -> Float[Array, "B heads ensemble A"]:
        """What a state is worth, and what each action is worth beside the others, are voted on apart: members differ in the former."""
        values = jax.vmap(lambda net: net.task_values(obs, w))(self.nets)
        level = jnp.mean(values, axis=-1, keepdims=True)
        return jnp.median(level, axis=0) + jnp.median(values - level, axis=0)


def _one_ensemble(x: Array) -> Array:
    """``[members, B, heads, E, ...] -> [B, heads, members E, ...]``"""
    x = jnp.moveaxis(x, 0, 2)
    return x.reshape(*x.shape[:2], -1, *x.shape[4:])


Net = PsiPhiNet | Committee


class ActionNet(eqx.Module):
    """A torso, one head with a number per action (Q-values or logits), and a further head per demonstrator to be cloned.

    The cloning heads never act: they shape the torso. There are none where `clones` is 0.
    """

    torso: Torso
    head: MLP
    clone_heads: MLP | None

    def __init__(
        self,
        spec: EnvSpec,
        *,
        torso_name: TorsoName,
        torso_hidden: tuple[int, ...],
        head_hidden: tuple[int, ...] = (),
        clones: int = 0,
        last_scale: float = 1.0,
        key: Array,
    ):
        torso_key, head_key, clone_key = jax.random.split(key, 3)
        sizes = (torso_hidden[-1], *head_hidden, spec.num_actions)
        self.torso = torso(torso_name, spec, torso_hidden, key=torso_key)
        self.head = MLP(sizes, key=head_key, last_scale=last_scale)
        self.clone_heads = jax.vmap(lambda k: MLP(sizes, key=k))(jax.random.split(clone_key, clones)) if clones else None

    def __call__(self, obs: Array) -> Float[Array, "B A"]:
        return self.head(self.torso(obs))

    def clones(self, obs: Shaped[Array, "K B *obs"]) -> Float[Array, "K B A"]:
        """Logits of each demonstrator's own observations under its own head."""
        assert self.clone_heads is not None
        features = self.torso(obs.reshape(-1, *obs.shape[2:]))
        return jax.vmap(lambda head, x: head(x))(self.clone_heads, features.reshape(*obs.shape[:2], -1))
