"""ITD alone on CoinGrid."""

from psiphi.experiments.paper.experiment import Experiment, Method, Table
from psiphi.experiments.paper.shared import INFERRED_PANELS, ITD_COINGRID, PAPER_ITD, STARC, TRUTH, UNLIMITED, inference_columns

EXPERIMENT = Experiment(
    name="itd-coingrid",
    title="ITD alone: what do two demonstrators want?",
    story=(
        f"Two demonstrators, one collects red coins and one green.\n\n{TRUTH}\n\n{STARC}\n\n"
        "The paper (its table 1) trained a DQN on the inferred reward instead of planning."
    ),
    variants=(UNLIMITED,),
    methods=(
        Method("itd", "ITD (default)"),
        Method("itd-offline", "ITD from logs alone", {"agent.cross_policy_on": "pooled", "agent.cross_batch": 128, "agent.sparsity": 0.0}),
        PAPER_ITD,
    ),
    measures=("phi", "imitation", "planner", "starc"),
    tables=(
        Table(
            "What was inferred",
            inference_columns(("R", "G")),
            {"ITD (the paper's table 1, DQN on φ·w)": (None,) * 4 + (ITD_COINGRID,) * 2 + (None,) * 4},
        ),
    ),
    panels=INFERRED_PANELS,
)
