"""When do demonstrations pay? Steps with them over steps without, by reward, by distance of goals and by number of episodes."""

from psiphi.experiments.paper.experiment import EGO, Experiment, Figure, Method, Panel, Table, Variant
from psiphi.experiments.paper.shared import OVER_CONTROL, STEPS_TO_BEST, UNRECORDED

EPISODES = (1, 10, 100, 1_000)
"""Demonstrated episodes of each demonstrator, on CoinGrid."""
_TASKS = {"R+G": "what both want", "R-G": "what one wants and the other does not", "Y": "what neither wants"}
_COINGRID = tuple(
    Variant(f"coingrid-{task}", f"CoinGrid, the ego wants {words}", "coingrid", task=task, ego=task) for task, words in _TASKS.items()
)
_NARROW = {"world.speed_width": 3.0, "world.lane_width": 2.0}
_AT_THE_EXIT = {**UNRECORDED, "world.progress_weight": 0.0}
_TRAFFIC = (
    Variant("highway-dense", "Highway, paid for every m/s and metre nearer", "highway-multi-task", task="own"),
    Variant("highway-narrow", "Highway, paid only near the goal", "highway-multi-task", _NARROW, task="own"),
    Variant("roundabout-progress", "Roundabout, paid per metre of the way", "roundabout", UNRECORDED, task="the third exit"),
    Variant("roundabout-exit", "Roundabout, paid at the exit only", "roundabout", _AT_THE_EXIT, task="the third exit"),
)
_ON_GRID, _ON_ROADS = (tuple(variant.name for variant in some) for some in (_COINGRID, _TRAFFIC))

EXPERIMENT = Experiment(
    name="figure-pays",
    title="When do demonstrations pay?",
    story=(
        "The same PsiPhi-learning with and without demonstrations. What they are worth is the ratio of the steps to 90 % of the best final "
        "return of any method: below 1, demonstrations pay. Three things vary: how the reward is paid (at a coin; for every metre; at the "
        "exit only), how far the demonstrators' goals are from the ego's, and how many demonstrated episodes there are. Where the world "
        "has no normalised return, returns are the world's."
    ),
    variants=(*_COINGRID, *_TRAFFIC),
    methods=(
        Method("psiphi-alone", "PsiPhi-learning, watching nothing", {"demos": "none"}, how="curve", algorithm="psiphi"),
        *(
            Method(f"psiphi-{n}", f"PsiPhi-learning, {words}", {"episodes": n}, how="curve", algorithm="psiphi", only_in=_ON_GRID)
            for n, words in ((n, f"{n:,} episode{'s' if n > 1 else ''}") for n in EPISODES)
        ),
        Method("psiphi", "PsiPhi-learning, online", how="curve", algorithm="psiphi", only_in=_ON_ROADS),
        Method("dqn", "DQN", how="curve", algorithm="dqn"),
    ),
    measures=(),
    tables=(
        Table(
            "What demonstrations are worth",
            (
                ("steps over those without demonstrations", Figure(OVER_CONTROL, EGO)),
                ("steps to 90 % of the best final return", Figure(STEPS_TO_BEST, EGO)),
                ("auc", Figure("auc", EGO)),
                ("final return", Figure("final_return", EGO)),
            ),
        ),
    ),
    panels=(Panel("steps over\nthe control's", (Figure(OVER_CONTROL, EGO),)),),
    control="psiphi-alone",
)
