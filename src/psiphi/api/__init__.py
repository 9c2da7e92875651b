"""The public interface: from logs to policies and rewards (`ITD`), and to an agent with a task of its own (`PsiPhi`).

itd = psiphi.ITD().fit(demos)
print(itd.verdict); print(itd.preferences)
itd.policy("anna")(obs); itd.reward("anna")(obs, action, next_obs, terminated)
agent = psiphi.PsiPhi("CartPole-v1", demos).learn(100_000)
agent.predict(obs); agent.adapt(transitions); print(agent.explain(obs))
agent.save("model"); psiphi.load("model")
"""

from psiphi.api.answers import Explanation, Policy, Preferences, Reward
from psiphi.api.baselines import BC, DQN, GAIL, PPO, SQIL
from psiphi.api.coverage import Coverage
from psiphi.api.itd import ITD, LEARNED, OFFLINE
from psiphi.api.kinds import Kinds, find_kinds
from psiphi.api.psiphi import ONLINE, PsiPhi, load
from psiphi.api.verdict import Finding, Verdict

__all__ = [
    "BC",
    "DQN",
    "GAIL",
    "ITD",
    "LEARNED",
    "OFFLINE",
    "ONLINE",
    "PPO",
    "SQIL",
    "Coverage",
    "Explanation",
    "Finding",
    "Kinds",
    "Policy",
    "Preferences",
    "PsiPhi",
    "Reward",
    "Verdict",
    "find_kinds",
    "load",
]
