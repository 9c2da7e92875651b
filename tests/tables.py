"""Networks made without compiling anything: of random numbers, or of tables written by hand.

A `PsiPhiNet` on one-hot observations whose torso is the identity and whose heads are linear is a set of tables over (place, action),
so that what it should do can be worked out with plain loops.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from psiphi.nets import Coded, Flat, PsiPhiNet
from psiphi.types import EnvSpec

quick_jit = partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})
"""`jax.jit` for what runs a few times only: compiles in half the time."""

Record = TypeVar("Record")


def numpy_record(kind: Callable[..., Record], *fields: Any) -> Record:
    """A `Transition` or the like of NumPy arrays (its fields are declared as JAX's): looking into it compiles nothing."""
    return kind(*fields)


def drawn(shapes: Any, seed: int = 0, scale: float = 0.5) -> Any:
    """Random numbers in the shapes that `jax.eval_shape` found."""
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda x: jnp.asarray((scale * rng.normal(size=x.shape)).astype(x.dtype)), shapes)


def blank(shapes: Any) -> Any:
    """Zeros in the shapes that `jax.eval_shape` found."""
    return jax.tree.map(lambda x: jnp.asarray(np.zeros(x.shape, x.dtype)), shapes)


def tabular_net(spec: EnvSpec, *, heads: int, ensemble: int, num_cumulants: int, seed: int = 0) -> PsiPhiNet:
    """A network that is a set of (random) tables; phi and psi each have a torso of their own, both the identity."""
    places = spec.obs_shape[0]

    def make(key: Array) -> PsiPhiNet:
        return PsiPhiNet(
            spec, heads=heads, ensemble=ensemble, num_cumulants=num_cumulants, torso_name="mlp", torso_hidden=(places,),
            phi_hidden=(places,), psi_hidden=(), share_torso=False, key=key,
        )  # fmt: skip

    net = drawn(jax.eval_shape(make, jax.random.key(0)), seed)
    eye = (jnp.asarray(np.eye(places, dtype=np.float32)),), (jnp.asarray(np.zeros(places, np.float32)),)
    net = eqx.tree_at(_torso_arrays, net, (*eye, *eye))
    heads_of = lambda n: [h.biases for h in (n.phi_head, n.psi_heads)]  # noqa: E731
    return eqx.tree_at(heads_of, net, blank(heads_of(net)))


def _torso_arrays(net: PsiPhiNet) -> tuple[Any, ...]:
    assert isinstance(net.torso, Flat) and isinstance(net.phi_torso, Flat)
    return net.torso.mlp.weights, net.torso.mlp.biases, net.phi_torso.mlp.weights, net.phi_torso.mlp.biases


def phi_table(net: PsiPhiNet) -> np.ndarray:
    """``[place, action, d]``"""
    assert net.phi_head is not None
    weight = np.asarray(net.phi_head.weights[0])
    return weight.reshape(weight.shape[0], net.num_actions, -1)


def psi_table(net: PsiPhiNet) -> np.ndarray:
    """``[head, ensemble, place, action, d]``"""
    assert not isinstance(net.psi_heads, Coded)
    weight = np.asarray(net.psi_heads.weights[0])
    return weight.reshape(*weight.shape[:3], net.num_actions, -1)


def with_tables(net: PsiPhiNet, phi: np.ndarray, psi: np.ndarray) -> PsiPhiNet:
    """The network whose `phi_table` and `psi_table` are these."""
    weights = tuple(jnp.asarray(table.reshape(*table.shape[:-2], -1).astype(np.float32)) for table in (phi, psi))
    return eqx.tree_at(lambda n: (n.phi_head.weights[0], n.psi_heads.weights[0]), net, weights)
