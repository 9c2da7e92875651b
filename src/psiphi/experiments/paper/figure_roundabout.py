"""A fifth panel of figure 3: the third exit of the roundabout, while others show the first and the second."""

from dataclasses import replace
from typing import Any

from psiphi.experiments.paper.experiment import EGO, SOLVED, Experiment, Figure, Method, Variant
from psiphi.experiments.paper.shared import STEPS_TO_BEST, UNRECORDED, WHILE_IT_LEARNS

_PACE: dict[str, Any] = {"steps": 64_000, "evaluate_every": 2_000}
_RECORDED = {"demonstrators": ("exr", "nxr")}
_SHORT = ("roundabout",)
"""Twice the steps are for those who come near 0.95, and for the control."""

EXPERIMENT = Experiment(
    name="figure-roundabout",
    title="The third exit of the roundabout, while others show the first and the second",
    story=(
        "An ego that must leave the roundabout at the third exit, among four others who leave at the first or the second and drive by "
        "the ego's own actions. **Online**, a method sees at every step what the three nearest cars saw and did; **recorded**, it has "
        "100 episodes of each of the two demonstrators, driven in the ego's place, before its first step. **Watching nothing**, "
        "PsiPhi-learning is the same learner without demonstrations. Its torso turns the map by quarters, so that all arms look alike, and "
        "it follows clones of the demonstrators now and then. DQN has the torso that it was tuned with, and a second row with that one. A "
        "third row follows the same clones: what is left of the lead beside it is owed to successor features and generalised policy "
        "improvement. BC "
        "and SQIL see no reward. **Normalised return** "
        "is the return over that of IDM in the ego's place. **auc** is its mean over the steps, **final return** the mean of the last "
        f"tenth of the evaluations, **steps to 90 %** the first evaluation at which it is at least {SOLVED} (all of the steps if it never "
        f"was), **steps to 90 % of the best final return** the first at which it is at least {SOLVED} of the largest final return of "
        "any method."
    ),
    variants=(
        Variant("roundabout", "Roundabout", "roundabout", _PACE, task="the third exit"),
        Variant("roundabout-long", "Roundabout, 128,000 steps", "roundabout", {**_PACE, "steps": 128_000}, task="the third exit"),
    ),
    methods=(
        Method("psiphi-recorded", "PsiPhi-learning, recorded", _RECORDED, how="curve", algorithm="psiphi"),
        Method("psiphi", "PsiPhi-learning, online", UNRECORDED, how="curve", algorithm="psiphi", only_in=_SHORT),
        Method("psiphi-alone", "PsiPhi-learning, watching nothing", {**UNRECORDED, "demos": "none"}, how="curve", algorithm="psiphi"),
        Method("dqn", "DQN", how="curve", algorithm="dqn"),
        Method("dqn-ring", "DQN, PsiPhi-learning's torso", {"agent.torso": "ring-norm"}, how="curve", algorithm="dqn", only_in=_SHORT),
        Method("dqn-guided", "DQN, PsiPhi-learning's torso and clones", _RECORDED, how="curve", algorithm="guided-dqn"),
        Method("dqn-bc", "DQN+BC-aux, online", {"agent.bc_weight": 0.1}, how="curve", algorithm="dqn", only_in=_SHORT),
        Method("bc", "BC, online", how="curve", algorithm="bc", only_in=_SHORT),
        Method("sqil", "SQIL, online", how="curve", algorithm="sqil", only_in=_SHORT),
    ),
    measures=(),
    tables=(
        replace(
            WHILE_IT_LEARNS, columns=(*WHILE_IT_LEARNS.columns, ("steps to 90 % of the best final return", Figure(STEPS_TO_BEST, EGO)))
        ),
    ),
)
