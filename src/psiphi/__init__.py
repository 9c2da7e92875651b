"""PsiPhi-learning: infer what demonstrators want, without rewards, and reuse their behaviour on new tasks.

Importing the package registers its Gymnasium environments and nothing more: JAX is loaded when a public name is first used.
"""

import importlib
from typing import TYPE_CHECKING

from gymnasium.envs.registration import register

if TYPE_CHECKING:
    from psiphi.agents.bc import BCConfig
    from psiphi.agents.dqn import DQNConfig
    from psiphi.agents.gail import GAILConfig
    from psiphi.agents.itd import ITDConfig
    from psiphi.agents.ppo import PPOConfig
    from psiphi.agents.psiphi import PsiPhiConfig
    from psiphi.agents.sqil import SQILConfig
    from psiphi.api import BC, DQN, GAIL, ITD, PPO, SQIL, PsiPhi, find_kinds, load
    from psiphi.demos import Demonstrations
    from psiphi.envs.inferred_reward import InferredReward
    from psiphi.errors import Diverged, UserError

__version__ = "0.2.0"

__all__ = [
    "BC",
    "DQN",
    "GAIL",
    "ITD",
    "PPO",
    "SQIL",
    "BCConfig",
    "DQNConfig",
    "Demonstrations",
    "Diverged",
    "GAILConfig",
    "ITDConfig",
    "InferredReward",
    "PPOConfig",
    "PsiPhi",
    "PsiPhiConfig",
    "SQILConfig",
    "UserError",
    "__version__",
    "find_kinds",
    "load",
]

_HOME = {
    **{name: "psiphi.api" for name in ("BC", "DQN", "GAIL", "ITD", "PPO", "SQIL")},
    "BCConfig": "psiphi.agents.bc",
    "DQNConfig": "psiphi.agents.dqn",
    "GAILConfig": "psiphi.agents.gail",
    "PPOConfig": "psiphi.agents.ppo",
    "SQILConfig": "psiphi.agents.sqil",
    "ITDConfig": "psiphi.agents.itd",
    "PsiPhi": "psiphi.api",
    "PsiPhiConfig": "psiphi.agents.psiphi",
    "find_kinds": "psiphi.api",
    "load": "psiphi.api",
    "Demonstrations": "psiphi.demos",
    "InferredReward": "psiphi.envs.inferred_reward",
    "Diverged": "psiphi.errors",
    "UserError": "psiphi.errors",
}
"""The module in which each public name lives."""

register(id="psiphi/CoinGrid-v0", entry_point="psiphi.envs.coingrid_gym:CoinGridEnv")
register(id="psiphi/Highway-SingleTask-v0", entry_point="psiphi.envs.traffic_gym:HighwayEnv", kwargs={"scenario": "single-task"})
register(id="psiphi/Highway-Adversarial-v0", entry_point="psiphi.envs.traffic_gym:HighwayEnv", kwargs={"scenario": "adversarial"})
register(id="psiphi/Highway-MultiTask-v0", entry_point="psiphi.envs.traffic_gym:HighwayEnv", kwargs={"scenario": "multi-task"})
register(id="psiphi/Roundabout-v0", entry_point="psiphi.envs.traffic_gym:RoundaboutEnv")
register(id="psiphi/FruitBot-v0", entry_point="psiphi.envs.fruitbot_gym:FruitBotEnv")


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
