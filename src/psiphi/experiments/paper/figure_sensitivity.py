"""How many cumulants?"""

from psiphi.experiments.paper.experiment import Experiment, Method, Variant
from psiphi.experiments.paper.shared import CONTINUOUS, HIGHWAY_PANELS, UNRECORDED, WHILE_IT_LEARNS

_AS_ON_HIGHWAY = {
    **CONTINUOUS, **UNRECORDED, "steps": 32_000, "agent.n_step": 1, "agent.follow": 0.0, "agent.followed": 0.0, "agent.follow_on": 0.0,
    "agent.stretch": 0, "agent.guide": "", "agent.act_by_newest": False, "agent.act_by_member": False, "agent.task_memory": 0.99,
    "agent.task_ridge": 1e-3, "agent.itd.torso": "crowd-norm", "agent.itd.clip": 10.0,
}  # fmt: skip
"""Roundabout had no settings of its own when this was run."""

EXPERIMENT = Experiment(
    name="figure-sensitivity",
    title="How many cumulants? (the paper's appendix)",
    story=(
        "PsiPhi-learning with d cumulants, all else as in the figures: on CoinGrid the ego wants both of what two demonstrators want, on "
        "Highway what no one else wants, on Roundabout the third exit, while others take the first or the second. On Highway and "
        "Roundabout a normalised return of 1 is what IDM earns in the ego's place. With fewer cumulants than demonstrators their "
        "preferences are learned, else each has an axis of its own."
    ),
    variants=(
        Variant("coingrid-aligned", "CoinGrid, the ego wants R+G", "coingrid", task="R+G", ego="R+G"),
        Variant("highway-multi-task", "Highway, multi-task", "highway-multi-task", CONTINUOUS, task=HIGHWAY_PANELS["multi-task"]),
        Variant("roundabout-online", "Roundabout", "roundabout", _AS_ON_HIGHWAY, task="the third exit"),
    ),
    methods=tuple(Method(f"d{d}", f"d = {d}", how="curve", algorithm="psiphi", cumulants=d) for d in (2, 4, 8, 16)),
    measures=(),
    tables=(WHILE_IT_LEARNS,),
)
