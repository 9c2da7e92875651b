"""Table 2: few-shot transfer to tasks that were not demonstrated."""

from psiphi.experiments.paper.experiment import FEW, MANY, Experiment, Method, Table
from psiphi.experiments.paper.shared import (
    AUTHORS,
    INFERRED_PANELS,
    K_SHOT,
    PAPER_ITD,
    ROWS,
    TABLE_2,
    TRANSFER_COLUMNS,
    TRUTH,
    UNLIMITED,
    inference_columns,
)

EXPERIMENT = Experiment(
    name="table-2",
    title="Table 2: few-shot transfer to tasks that were not demonstrated",
    story=(
        "Two demonstrators, one collects red coins and one green. The agent is then judged on four tasks that neither of them has."
        f"\n\n{ROWS}\n\n{K_SHOT}\n\n{TRUTH}"
    ),
    variants=(UNLIMITED, AUTHORS),
    methods=(
        Method("psiphi", "psiphi (default)"),
        Method("paper", "paper's losses, ego on R+G", {"task": "R+G"}, preset="paper", algorithm="psiphi"),
        PAPER_ITD,
        Method("sqilv2", "SQILv2, a model per task", {"pooled": True, "steps": 8_000}, how="adapt", algorithm="sqil"),
        Method("exact", "ceiling: GPI with exact ψ, φ, w", trains=False),
    ),
    measures=("few-shot", "many-shot", "phi", "imitation", "planner"),
    tables=(
        *(Table(f"{shots}-shot", TRANSFER_COLUMNS[shots], TABLE_2[shots]) for shots in (0, FEW, MANY)),
        Table("What was inferred", inference_columns(("R", "G"), starc=False)),
    ),
    panels=INFERRED_PANELS,
)
