"""PsiPhi-learning: what demonstrators want, learned without rewards, and put to use on tasks nobody demonstrated.

Importing the package registers its Gymnasium environments and nothing more: JAX is loaded when a public name is first used.
"""

import importlib
from typing import TYPE_CHECKING

from gymnasium.envs.registration import register

if TYPE_CHECKING:
    from psiphi.demos import Demonstrations
    from psiphi.envs.inferred_reward import InferredReward
    from psiphi.errors import UserError

__version__ = "0.1.0"

__all__ = ["Demonstrations", "InferredReward", "UserError", "__version__"]

_HOME = {
    "Demonstrations": "psiphi.demos",
    "InferredReward": "psiphi.envs.inferred_reward",
    "UserError": "psiphi.errors",
}
"""The module in which each public name lives."""

register(id="psiphi/CoinGrid-v0", entry_point="psiphi.envs.coingrid_gym:CoinGridEnv")


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
