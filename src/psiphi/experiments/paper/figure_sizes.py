"""How many cumulants, and does the prior on them matter? The paper's figure 9 on three worlds."""

from typing import Any

from psiphi.experiments.paper.experiment import ALL, Experiment, Figure, Method, Table, Variant
from psiphi.experiments.paper.shared import HIGHWAY_PANELS, TRUTH, WHILE_IT_LEARNS, inference_columns

SIZES = (1, 2, 4, 8, 16, 32)
_PRIORS = {"": "", "-plain": ", no L1 and no sparse prior"}


def _changes(inner: str, d: int, prior: str) -> dict[str, Any]:
    off = {f"agent.{inner}l1_weight": 0.0, f"agent.{inner}sparsity": 0.0} if prior else {}
    return {f"agent.{inner}num_cumulants": d, **off}


def _rows(world: str, inner: str, **method: Any) -> tuple[Method, ...]:
    return tuple(
        Method(f"{world}-d{d}{prior}", f"d = {d}{words}", _changes(inner, d, prior), only_in=(world,), **method)
        for prior, words in _PRIORS.items()
        for d in SIZES
    )


EXPERIMENT = Experiment(
    name="figure-sizes",
    title="How many cumulants? ITD on CoinGrid and Roundabout, PsiPhi-learning on Highway",
    story=(
        "All else as in the tables and figures of these worlds, among others who drive by the ego's own actions. With fewer cumulants than "
        f"demonstrators their preferences are learned, else each has an axis of its own. {TRUTH}"
    ),
    variants=(
        Variant("coingrid", "CoinGrid, ITD", "coingrid"),
        Variant("roundabout", "Roundabout, ITD", "roundabout"),
        Variant("highway-multi-task", "Highway, multi-task, PsiPhi-learning", "highway-multi-task", task=HIGHWAY_PANELS["multi-task"]),
    ),
    methods=(
        *_rows("coingrid", ""),
        *_rows("roundabout", "", how="predict", algorithm="itd"),
        *_rows("highway-multi-task", "itd.", how="curve", algorithm="psiphi"),
    ),
    measures=("phi", "imitation", "planner"),
    tables=(
        Table("What was inferred", inference_columns(("R", "G")), only_in=("coingrid",)),
        Table("Accuracy", (("held out", Figure("accuracy", ALL)), ("shown", Figure("shown_accuracy", ALL))), only_in=("roundabout",)),
        Table(WHILE_IT_LEARNS.title, WHILE_IT_LEARNS.columns, only_in=("highway-multi-task",)),
    ),
)
