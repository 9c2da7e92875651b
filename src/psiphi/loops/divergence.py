"""Has learning left the finite numbers? Looked at once per chunk, before anything of it is written down."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from psiphi.errors import Diverged


def check(step: int, metrics: Any, state: Any, seeds: Sequence[int] = (0,)) -> None:
    """Refuse metrics or an agent's state (arrays with a leading seed axis) that are not finite: a sentence with the first bad name.

    Evaluations are not looked at: what they measure may be undefined. On the CPU nothing is copied or compiled for this.
    """
    found = first_bad(metrics) or first_bad(state)
    if found is None:
        return
    name, value, row = found
    whose = f" of seed {seeds[row]}" if len(seeds) > 1 else ""
    raise Diverged(
        f"Learning diverged by iteration {step}: {name}{whose} is {value}, expected finite numbers; "
        "a smaller learning rate may help, or rewards and observations of a smaller scale."
    )


def first_bad(tree: Any) -> tuple[str, float, int] | None:
    """Name, value and leading index of the first number that is not finite, None if there is none."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            continue
        array = np.asarray(leaf)
        finite = np.isfinite(array)
        if not finite.all():
            where = np.unravel_index(int(np.argmin(finite)), array.shape)
            return jax.tree_util.keystr(path, simple=True, separator="/") or "value", float(array[where]), int(where[0]) if where else 0
    return None
