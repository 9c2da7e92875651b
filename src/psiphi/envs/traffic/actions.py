"""The ego's actions: a table of (acceleration, steering) for each world, and the entry nearest to a command.

The tables are the centroids of what IDM drivers do (`python -m psiphi.envs.traffic.centroids` computes them again).
"""

import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, Int

from psiphi.envs.traffic.control import MAX_STEERING
from psiphi.envs.traffic.idm import MAX_ACCELERATION
from psiphi.errors import UserError

Table = tuple[tuple[float, float], ...]

HIGHWAY: Table = (
    (-4.982, 0.0),
    (-1.159, 0.0),
    (0.031, 0.0),
    (0.529, 0.0),
    (1.636, 0.0),
    (0.0, 0.063),
    (0.0, -0.063),
    (0.0, 0.185),
    (0.0, -0.185),
)
"""The nine actions of Highway: five accelerations straight on, then two angles, to the right and to the left each."""

ROUNDABOUT: Table = (
    (-1.124, 0.0),
    (0.058, 0.0),
    (1.46, 0.0),
    (0.0, -0.223),
    (0.0, 0.127),
    (0.0, 0.318),
)
"""The six actions of Roundabout: three accelerations straight on, then one angle to the left (round the ring) and two to the right."""

SCALE = (1.5, 0.06)
"""The acceleration error that is as bad as the steering error, when a command is compared with a table: a car that brakes a little late
is still on the road, one that does not turn is not."""


def check(world: str, table: Table) -> None:
    """One sentence for a table by which no car could be driven."""
    if not table:
        raise UserError(f"{world}'s table of actions is empty, expected at least one (acceleration, steering).")
    for row in table:
        if len(row) != 2 or not (abs(row[0]) <= MAX_ACCELERATION and abs(row[1]) <= MAX_STEERING):
            raise UserError(
                f"{world}'s table has the action {row}, expected an acceleration within {MAX_ACCELERATION:g} m/s^2 and a steering angle "
                f"within {MAX_STEERING:.2f}."
            )


def snap(table: Table, acceleration: Float[Array, "k"], steering: Float[Array, "k"]) -> Int[Array, "k"]:
    """The action nearest to each command, by `SCALE`."""
    entries = np.array(table, acceleration.dtype)
    gap_a = (acceleration[:, None] - entries[:, 0]) / SCALE[0]
    gap_s = (steering[:, None] - entries[:, 1]) / SCALE[1]
    return jnp.argmin(gap_a * gap_a + gap_s * gap_s, axis=1).astype(jnp.int32)


def command(table: Table, action: Int[Array, "k"]) -> tuple[Float[Array, "k"], Float[Array, "k"]]:
    """The acceleration and the steering angle of each action."""
    entries = jnp.asarray(np.array(table))[action]
    return entries[:, 0], entries[:, 1]
