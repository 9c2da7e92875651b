"""Learning one's own task beside demonstrators, on CoinGrid."""

from typing import Any

from psiphi.experiments.paper.experiment import SOLVED, Experiment, Method, Variant
from psiphi.experiments.paper.shared import WHILE_IT_LEARNS

_EGO_TASKS = {
    "aligned": ("R+G", "aligned: the ego wants all that the demonstrators want, R+G"),
    "partly": ("R-G", "partly aligned: the ego wants what one demonstrator wants and shuns what the other wants, R-G"),
    "misaligned": ("Y", "misaligned: the ego wants yellow coins, which no demonstrator looks at"),
}


_SHORT: dict[str, Any] = {"steps": 8_192, "evaluate_every": 256, "prefill_steps": 512}
"""Environment steps of a curve, between two of its points, and before its first update; PsiPhi-learning's own are the same."""


def _often(inner: str) -> dict[str, Any]:
    """PPO's settings where steps are few: it looks at short rollouts many times."""
    return {**_SHORT, "num_envs": 8, f"agent.{inner}rollout_length": 16, f"agent.{inner}epochs": 8}


EXPERIMENT = Experiment(
    name="figure-coingrid",
    title="Learning one's own task beside demonstrators (hypotheses H1 and H2 on CoinGrid)",
    story=(
        "Two demonstrators, one collects red coins and one green, and an ego with a task of its own, whose rewards it sees. Every method "
        "begins with the same number of random steps, which count. **auc** is the mean normalised return over the steps, **final return** "
        "the mean of the last tenth of the evaluations, **steps to 90 %** the first evaluation, in environment steps, at which "
        f"the normalised return is at least {SOLVED} (all of the steps if it never was). BC, SQIL and GAIL take all demonstrations for one "
        "demonstrator's; BC and GAIL never see a reward. DQN+BC-aux and PPO+BC-aux clone the demonstrators on a shared torso. "
        "All were tuned for few steps, on other seeds."
    ),
    variants=tuple(
        Variant(f"coingrid-{name}", f"CoinGrid, {label}", "coingrid", task=task, ego=task) for name, (task, label) in _EGO_TASKS.items()
    ),
    methods=(
        Method("psiphi", "PsiPhi-learning", how="curve", algorithm="psiphi"),
        Method("dqn", "DQN", _SHORT, how="curve", algorithm="dqn"),
        Method("dqn-bc", "DQN+BC-aux", {**_SHORT, "agent.bc_weight": 0.1}, how="curve", algorithm="dqn"),
        Method("ppo", "PPO", _often(""), how="curve", algorithm="ppo"),
        Method("ppo-bc", "PPO+BC-aux", {**_often(""), "agent.bc_weight": 0.5}, how="curve", algorithm="ppo"),
        Method(
            "sqilv2",
            "SQILv2 (sees rewards)",
            {**_SHORT, "agent.env_reward": True, "agent.fade_updates": 150, "updates_per_rollout": 2, "pooled": True},
            how="curve",
            algorithm="sqil",
        ),
        Method("gail", "GAIL", {**_often("ppo."), "pooled": True}, how="curve", algorithm="gail"),
        Method("bc", "BC", {"pooled": True, "evaluate_every": 256, "prefill_steps": 512}, how="curve", algorithm="bc"),
    ),
    measures=(),
    tables=(WHILE_IT_LEARNS,),
)
