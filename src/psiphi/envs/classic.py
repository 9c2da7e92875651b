"""CartPole-v1 and Acrobot-v1 in pure JAX, by the rules of Gymnasium's: where other libraries' agents are compared with ours.

The state is kept in whatever precision JAX is set to (Gymnasium keeps float64), observations are float32 as there. A fall of the
pole and a swung-up Acrobot are terminations (discount 0); the time limit is none.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int

from psiphi.types import Env, EnvSpec, TimeStep

MAX_STEPS = 500
"""Time limit of an episode in both."""

GRAVITY = 9.8


class State(NamedTuple):
    """Positions and velocities, and the steps taken in this episode."""

    physics: Float[Array, "4"]
    t: Int[Array, ""]


class _Rules(NamedTuple):
    """What makes one of these worlds that world."""

    obs_size: int
    num_actions: int
    spread: float
    """An episode starts uniformly within this distance of zero in each of the four numbers."""
    move: Callable[[Array, Array], Array]
    """``move(physics, action) -> physics``"""
    observe: Callable[[Array], Array]
    over: Callable[[Array], Array]
    """Whether the task truly ends in a state."""
    reward: Callable[[Array], Array]
    """Of a step, by whether the task ended with it."""


def _make(rules: _Rules, max_steps: int) -> Env:
    def reset(key: Array) -> tuple[State, Array]:
        physics = jax.random.uniform(key, (4,), minval=-rules.spread, maxval=rules.spread)
        return State(physics, jnp.zeros((), jnp.int32)), rules.observe(physics).astype(jnp.float32)

    def step(state: State, action: Array, key: Array) -> tuple[State, TimeStep]:
        del key  # the worlds are deterministic between resets
        next_state = State(rules.move(state.physics, action), state.t + 1)
        over = rules.over(next_state.physics)
        return next_state, TimeStep(
            obs=rules.observe(next_state.physics).astype(jnp.float32),
            reward=rules.reward(over).astype(jnp.float32),
            discount=1.0 - over.astype(jnp.float32),
            last=over | (next_state.t >= max_steps),
            extras={},
        )

    return Env(EnvSpec((rules.obs_size,), jnp.float32, rules.num_actions, kind="vector"), reset, step)


# --- CartPole ------------------------------------------------------------------------------------------------------------

CART_MASS, POLE_MASS, HALF_POLE = 1.0, 0.1, 0.5
PUSH, CARTPOLE_DT = 10.0, 0.02
CART_LIMIT, POLE_LIMIT = 2.4, math.radians(12)


def cartpole(max_steps: int = MAX_STEPS) -> Env:
    """Balance a pole on a cart by pushing it left (0) or right (1): 1 for every step, the one that fails included.

    The observation is the state: the cart's position and velocity, the pole's angle and angular velocity.
    """
    return _make(_Rules(4, 2, 0.05, _push, lambda physics: physics, _fallen, jnp.ones_like), max_steps)


def _push(physics: Float[Array, "4"], action: Array) -> Float[Array, "4"]:
    """One explicit Euler step of the cart and its pole, without friction."""
    velocity, angle, spin = physics[1], physics[2], physics[3]
    mass, sin, cos = CART_MASS + POLE_MASS, jnp.sin(angle), jnp.cos(angle)
    thrust = (jnp.where(action == 1, PUSH, -PUSH) + POLE_MASS * HALF_POLE * spin**2 * sin) / mass
    spin_rate = (GRAVITY * sin - cos * thrust) / (HALF_POLE * (4 / 3 - POLE_MASS * cos**2 / mass))
    acceleration = thrust - POLE_MASS * HALF_POLE * spin_rate * cos / mass
    return physics + CARTPOLE_DT * jnp.stack([velocity, acceleration, spin, spin_rate])


def _fallen(physics: Float[Array, "4"]) -> Bool[Array, ""]:
    return (jnp.abs(physics[0]) > CART_LIMIT) | (jnp.abs(physics[2]) > POLE_LIMIT)


# --- Acrobot -------------------------------------------------------------------------------------------------------------

# Both links: mass 1, length 1, centre of mass half-way, moment of inertia 1 (Gymnasium's numbers, and the book's).
CENTRE, INERTIA, ACROBOT_DT = 0.5, 1.0, 0.2
MAX_SPIN = (4 * math.pi, 9 * math.pi)


def acrobot(max_steps: int = MAX_STEPS) -> Env:
    """Swing the end of a two-link pendulum up to one link's length above the joint: -1 for every step, 0 for the one that does it.

    Actions 0, 1, 2 are the torques -1, 0, 1 on the middle joint. Seen are cosine and sine of both angles and the angular velocities.
    """
    return _make(_Rules(6, 3, 0.1, _swing, _show_angles, _swung_up, lambda over: jnp.where(over, 0.0, -1.0)), max_steps)


def _swing(physics: Float[Array, "4"], action: Array) -> Float[Array, "4"]:
    """One fourth-order Runge-Kutta step; then angles are wrapped to [-pi, pi] and velocities clipped."""
    torque = action - 1.0
    k1 = _acrobot_rates(physics, torque)
    k2 = _acrobot_rates(physics + ACROBOT_DT / 2 * k1, torque)
    k3 = _acrobot_rates(physics + ACROBOT_DT / 2 * k2, torque)
    k4 = _acrobot_rates(physics + ACROBOT_DT * k3, torque)
    moved = physics + ACROBOT_DT / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
    angles = moved[:2] - 2 * math.pi * jnp.round(moved[:2] / (2 * math.pi))
    fastest = jnp.array(MAX_SPIN, physics.dtype)
    return jnp.concatenate([angles, jnp.clip(moved[2:], -fastest, fastest)])


def _acrobot_rates(physics: Float[Array, "4"], torque: Array) -> Float[Array, "4"]:
    """Time derivatives of both angles and both angular velocities; Sutton and Barto's equations with unit masses and lengths."""
    angle1, angle2, spin1, spin2 = physics
    sin2, cos2 = CENTRE * jnp.sin(angle2), CENTRE * jnp.cos(angle2)
    d1 = 2 * CENTRE**2 + 1 + 2 * cos2 + 2 * INERTIA
    d2 = CENTRE**2 + cos2 + INERTIA
    phi2 = CENTRE * GRAVITY * jnp.sin(angle1 + angle2)
    phi1 = -sin2 * spin2 * (spin2 + 2 * spin1) + (CENTRE + 1) * GRAVITY * jnp.sin(angle1) + phi2
    rate2 = (torque + d2 / d1 * phi1 - sin2 * spin1**2 - phi2) / (CENTRE**2 + INERTIA - d2**2 / d1)
    rate1 = -(d2 * rate2 + phi1) / d1
    return jnp.stack([spin1, spin2, rate1, rate2])


def _show_angles(physics: Float[Array, "4"]) -> Float[Array, "6"]:
    cos, sin = jnp.cos(physics[:2]), jnp.sin(physics[:2])
    return jnp.stack([cos[0], sin[0], cos[1], sin[1], physics[2], physics[3]])


def _swung_up(physics: Float[Array, "4"]) -> Bool[Array, ""]:
    return -jnp.cos(physics[0]) - jnp.cos(physics[0] + physics[1]) > 1.0
