"""How many cumulants, and does the prior on them matter? The paper's figure 9 on three worlds."""

from typing import Any

from psiphi.experiments.paper.experiment import ALL, EGO, Experiment, Figure, Method, Panel, Table, Variant
from psiphi.experiments.paper.shared import HIGHWAY_PANELS, STARC, TRUTH, WHILE_IT_LEARNS, inference_columns

SIZES = (1, 2, 4, 8, 16, 32)
_PRIORS = {"": "", "-plain": ", no L1 and no sparse prior"}


_WEIGHED = {"roundabout": {"agent.sparsity": 0.05}}
"""From logs alone there is no sparse prior on Roundabout by default; this is that of ITD in traffic."""


def _changes(world: str, inner: str, d: int, prior: str) -> dict[str, Any]:
    off = {f"agent.{inner}l1_weight": 0.0, f"agent.{inner}sparsity": 0.0}
    return {f"agent.{inner}num_cumulants": d, **(off if prior else _WEIGHED.get(world, {}))}


_LONG = ("coingrid-d8", "coingrid-d16", "coingrid-d32")
"""With the prior these take all of table 2's updates."""


def _rows(world: str, inner: str, **method: Any) -> tuple[Method, ...]:
    return tuple(
        Method(
            name := f"{world}-d{d}{prior}",
            f"d = {d}{words}",
            _changes(world, inner, d, prior),
            only_in=(world, f"{world}-long") if name in _LONG else (world,),
            **method,
        )
        for prior, words in _PRIORS.items()
        for d in SIZES
    )


_ON_COINGRID = ("coingrid", "coingrid-long")


def _of_both(metric: str) -> tuple[Figure, ...]:
    return tuple(Figure(metric, who) for who in ("R", "G"))


EXPERIMENT = Experiment(
    name="figure-sizes",
    title="How many cumulants? ITD on CoinGrid and Roundabout, PsiPhi-learning on Highway",
    story=(
        "All else as in the tables and figures of these worlds, among others who drive by the ego's own actions, with 2,000 updates on "
        "CoinGrid, 1,200 on Roundabout and 16,000 steps on Highway. With fewer cumulants than "
        f"demonstrators their preferences are learned, else each has an axis of its own. {STARC} {TRUTH}"
    ),
    variants=(
        Variant("coingrid", "CoinGrid, ITD", "coingrid", {"updates": 2_000}),
        Variant("coingrid-long", "CoinGrid, ITD, with table 2's 6,000 updates", "coingrid"),
        Variant("roundabout", "Roundabout, ITD", "roundabout", {"updates": 1_200}),
        Variant(
            "highway-multi-task",
            "Highway, multi-task, PsiPhi-learning",
            "highway-multi-task",
            {"steps": 16_000},
            task=HIGHWAY_PANELS["multi-task"],
        ),
    ),
    methods=(
        *_rows("coingrid", ""),
        *_rows("roundabout", "", how="predict", algorithm="itd"),
        *_rows("highway-multi-task", "itd.", how="curve", algorithm="psiphi"),
    ),
    measures=("phi", "imitation", "planner", "starc"),
    tables=(
        Table(
            "What was inferred",
            inference_columns(("R", "G")),
            only_in=_ON_COINGRID,
        ),
        Table("Accuracy", (("held out", Figure("accuracy", ALL)), ("shown", Figure("shown_accuracy", ALL))), only_in=("roundabout",)),
        Table(WHILE_IT_LEARNS.title, WHILE_IT_LEARNS.columns, only_in=("highway-multi-task",)),
    ),
    panels=(
        Panel("STARC\n(0: the true reward)", _of_both("starc"), only_in=_ON_COINGRID),
        Panel("planner's return on φ·w\n(share of the optimum)", _of_both("planner_return"), only_in=_ON_COINGRID),
        Panel("held-out\naccuracy", (Figure("accuracy", ALL),), only_in=(*_ON_COINGRID, "roundabout")),
        Panel("final return\n(1: IDM)", (Figure("final_return", EGO),), only_in=("highway-multi-task",)),
    ),
)
