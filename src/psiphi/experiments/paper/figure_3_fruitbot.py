"""Figure 3d: learning FruitBot from pixels beside demonstrators. It needs psiphi[fruitbot], so it is not among those that `all` runs."""

from psiphi.experiments.paper.experiment import EGO, Experiment, Figure, Method, Table, Variant
from psiphi.experiments.paper.shared import AT_THE_END, WHILE_IT_LEARNS

_ALONE = {f"agent.itd.{name}": 0.0 for name in ("bc_weight", "itd_weight", "l1_weight", "cross_policy", "sparsity", "anchor")}
_STEADY = {"agent.trusted": 0.0}
"""Trust did not fall when the short runs were made."""
_MILD = "fruit=1,object=-1,finish=10"
_COUNTED = ("fruits", "objects", "completion")
_SHORT, _LONG = ("fruitbot-mild",), ("fruitbot-mild-million", "fruitbot")

EXPERIMENT = Experiment(
    name="figure-3-fruitbot",
    title="Figure 3d: learning FruitBot beside demonstrators",
    story=(
        "Three demonstrators were recorded: one collects fruits and objects, one collects objects and avoids fruits, one acts at random. "
        "The game pays 1 for a fruit, -4 for an object and 10 for each present at the end of a level. In **objects at -1** an object costs "
        "1. PsiPhi-learning and PPO+BC-aux are told who did what, BC and SQIL take all for one. BC and SQIL see no reward. **Normalised "
        "return** is the return over that of a script that plays the game as it pays, from pixels. The view is centred on the robot, "
        "without backgrounds, on the easy levels; the paper's is not, and its demonstrators were trained."
    ),
    variants=(
        Variant("fruitbot-mild-million", "FruitBot, objects at -1, a million steps", "fruitbot", task="objects at -1", ego=_MILD),
        Variant("fruitbot", "FruitBot, as the game pays, a million steps", "fruitbot", task="the game's"),
        Variant("fruitbot-mild", "FruitBot, objects at -1, 200,000 steps", "fruitbot", task="objects at -1", ego=_MILD),
    ),
    methods=(
        Method("psiphi-falling", "PsiPhi-learning", how="curve", algorithm="psiphi", only_in=_LONG),
        Method("psiphi", "PsiPhi-learning, trust that does not fall", _STEADY, how="curve", algorithm="psiphi", only_in=_SHORT),
        Method(
            "psiphi-alone", "PsiPhi-learning, without demonstrations", {**_ALONE, **_STEADY, "study": 0}, how="curve", algorithm="psiphi"
        ),
        Method("ppo", "PPO", how="curve", algorithm="ppo"),
        Method("ppo-bc", "PPO+BC-aux", {"agent.bc_weight": 0.1}, how="curve", algorithm="ppo"),
        Method("sqil", "SQIL", {"pooled": True}, how="curve", algorithm="sqil"),
        Method("bc", "BC", {"pooled": True, "evaluate_every": 1_000}, how="curve", algorithm="bc"),
    ),
    measures=(),
    tables=(WHILE_IT_LEARNS, Table("In an episode, at the end", tuple((name, Figure(AT_THE_END + name, EGO)) for name in _COUNTED))),
    counted=_COUNTED,
    demonstrators=("fruits-and-objects", "objects-only", "random"),
)
