"""The public interface: from logs to policies and rewards (`ITD`), and to an agent with a task of its own (`PsiPhi`).

itd = psiphi.ITD().fit(demos)
itd.policy("anna")(obs); itd.reward("anna")(obs, action); print(itd.preferences)
agent = psiphi.PsiPhi("CartPole-v1", demos).learn(100_000)
agent.predict(obs); agent.adapt(transitions); print(agent.explain(obs))
agent.save("model"); psiphi.load("model")
"""

from psiphi.api.answers import Explanation, Policy, Preferences, Reward
from psiphi.api.coverage import Coverage
from psiphi.api.itd import ITD, OFFLINE
from psiphi.api.psiphi import ONLINE, PsiPhi, load

__all__ = ["ITD", "OFFLINE", "ONLINE", "Coverage", "Explanation", "Policy", "Preferences", "PsiPhi", "Reward", "load"]
