"""Does experience improve imitation where there is little to imitate? On CoinGrid, where what can be predicted at all is known."""

from typing import Any

from psiphi.experiments.paper.experiment import ALL, Experiment, Figure, Method, Panel, Table, Variant
from psiphi.experiments.paper.table_1_curve import COUNTED

SHOWN = (1, 3, 10, 30, 100)
"""Demonstrated episodes of each demonstrator."""
_COUNTED = {name: value for name, value in COUNTED.items() if name != "updates"}
_UNWATCHED = {"evaluate_every": 0}

LEARNERS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "psiphi": (
        "PsiPhi-learning, paid for yellow",
        "psiphi",
        {**{name.replace("agent.", "agent.itd."): value for name, value in _COUNTED.items()}, "task": "Y", **_UNWATCHED},
    ),
    "itd": ("ITD, random steps of its own", "itd", COUNTED),
    "itd-logs": ("ITD, logs alone", "itd", {**COUNTED, "agent.w_only": False, "agent.cross_policy_on": "pooled", "offline": True}),
    "bc": ("BC", "bc", {"updates": 1_000, **_UNWATCHED}),
}
"""By name: what it is called, the algorithm, and what it changes there."""

FIGURES = (
    ("held out", Figure("accuracy", ALL)),
    ("shown", Figure("shown_accuracy", ALL)),
    ("most that is possible", Figure("ceiling_accuracy", ALL)),
)

EXPERIMENT = Experiment(
    name="figure-few-coins",
    title="Predicting what others will do, from few episodes (hypothesis H4 on CoinGrid)",
    story=(
        "Two demonstrators, one collects red coins and one green; 1 to 100 episodes of each are shown. **Accuracy** is the share of their "
        "actions that is predicted in 200 other episodes of each, on other boards. **BC** and **ITD, logs alone** see what "
        "is shown and nothing else. **ITD, random steps of its own** also makes 14,048 random steps, without rewards. **PsiPhi-learning** "
        "makes 8,192 steps and is paid for yellow coins, which no demonstrator wants. All three that have successor features count what is "
        "on a board: their cumulants are by how much these counts change in a step. Where they have steps of their own, demonstrations "
        "decide the preferences and nothing else. All read the board by the same torso. **The most that is possible** is how likely the "
        "demonstrators' own likeliest actions are."
    ),
    variants=(Variant("coingrid", "CoinGrid", "coingrid"),),
    methods=tuple(
        Method(
            f"{name}-{shown}",
            f"{label}, {shown} {'episode' if shown == 1 else 'episodes'}",
            {**changes, "episodes": shown},
            how="foresee",
            algorithm=algorithm,
        )
        for shown in SHOWN
        for name, (label, algorithm, changes) in LEARNERS.items()
    ),
    measures=(),
    tables=(Table("Accuracy", FIGURES),),
    panels=(Panel("held-out accuracy", (Figure("accuracy", ALL),), (Figure("ceiling_accuracy", ALL),)),),
)
