"""Figure 3: learning to drive beside demonstrators."""

from dataclasses import replace

from psiphi.experiments.paper.experiment import EGO, SOLVED, Experiment, Figure, Method, Variant
from psiphi.experiments.paper.shared import CONTINUOUS, HIGHWAY_PANELS, STEPS_TO_BEST, WHILE_IT_LEARNS

_WHILE_IT_DRIVES = replace(
    WHILE_IT_LEARNS, columns=(*WHILE_IT_LEARNS.columns, ("steps to 90 % of the best final return", Figure(STEPS_TO_BEST, EGO)))
)

_FOUR = {"updates_per_rollout": 4}
"""As many as it was published with; two are the default now."""

EXPERIMENT = Experiment(
    name="figure-3",
    title="Figure 3: learning to drive beside demonstrators",
    story=(
        "An ego among 20 cars. In **single-task** the others want what the ego wants, in **adversarial** they are parked, in "
        "**multi-task** four kinds of drivers want other speeds and lanes. At every step each method sees what the five nearest cars "
        "saw and did, nothing having been recorded before; PsiPhi-learning and DQN+BC-aux are told which kind of driver it was, BC and "
        "SQIL take all for one. BC and SQIL see no reward. **Normalised return** is the return over that of IDM, the rule by which the "
        "others drive, in the ego's place and with the ego's actions; it is no upper bound. **auc** is its mean over the steps, **final "
        "return** the mean of the last tenth of the evaluations, **steps to 90 %** the first evaluation at which it is at least "
        f"{SOLVED} (all of the steps if it never was), **steps to 90 % of the best final return** the first at which it is at least "
        f"{SOLVED} of the largest final return of any method in the panel. PsiPhi-learning makes four updates after eight steps, the "
        "others one, as more did not help the DQN on the tuning seeds; those who learn from rewards take 0.4 off each. "
        "**Without demonstrators**, PsiPhi-learning is Q-learning by successor features on cumulants that rewards alone ground: what "
        "it lacks to the first row is what the demonstrations were worth. All were tuned on other seeds, PsiPhi-learning and DQN the most."
    ),
    variants=tuple(
        Variant(f"highway-{name}", f"Highway, {name}", f"highway-{name}", CONTINUOUS, task=wants) for name, wants in HIGHWAY_PANELS.items()
    ),
    methods=(
        Method("psiphi", "PsiPhi-learning", _FOUR, how="curve", algorithm="psiphi"),
        Method("dqn", "DQN", how="curve", algorithm="dqn"),
        Method("dqn-bc", "DQN+BC-aux", {"agent.bc_weight": 0.1}, how="curve", algorithm="dqn"),
        Method("bc", "BC", how="curve", algorithm="bc"),
        Method("sqil", "SQIL", how="curve", algorithm="sqil"),
        Method("dqn-mlp", "DQN, MLP torso", {"agent.torso": "mlp"}, how="curve", algorithm="dqn", only_in=("highway-multi-task",)),
        Method(
            "psiphi-alone",
            "PsiPhi-learning without demonstrators",
            {**_FOUR, **{f"agent.itd.{name}": 0.0 for name in ("bc_weight", "itd_weight", "l1_weight", "cross_policy", "sparsity")}},
            how="curve",
            algorithm="psiphi",
            only_in=("highway-multi-task",),
        ),
    ),
    measures=(),
    tables=(_WHILE_IT_DRIVES,),
)
