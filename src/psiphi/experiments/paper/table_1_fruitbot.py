"""Table 1's column for FruitBot. It needs psiphi[fruitbot], so it is not among those that `all` runs."""

from psiphi.experiments.paper.experiment import ALL, Experiment, Figure, Method, Table, Variant
from psiphi.experiments.paper.shared import OF_THE_RULE, TABLE_1_FRUITBOT

_WHO = ("fruits-and-objects", "objects-only")
_STEPS = {"steps": 1_000_000}

EXPERIMENT = Experiment(
    name="table-1-fruitbot",
    title="Table 1: how well is the reward inferred from FruitBot's pixels?",
    story=(
        "Two demonstrators, one collects fruits and objects and one objects only. Each method is to do what each of them wants. "
        "**BC**, **SQIL** and **GAIL** train one model per demonstrator; **ITD** infers both rewards with one model, and a PPO is "
        "trained on each. **Normalised return** is the true return, by the demonstrator's own taste, over that of a PPO trained on it "
        "with the same seed (the first row). **The script** is who demonstrates, judged like everybody. The view is centred on the "
        "robot, without backgrounds, on the easy levels; the paper's is not, and its demonstrators were trained."
    ),
    variants=(Variant("fruitbot", "FruitBot", "fruitbot"),),
    methods=(
        Method("ppo", "PPO on the true reward", _STEPS, how="imitate", algorithm="ppo"),
        Method("itd", "ITD, and PPO on φ·w", how="imitate", algorithm="itd", learner=_STEPS),
        Method("itd-policy", "ITD's own policy", how="imitate", algorithm="itd", learner=_STEPS, trained_as="itd"),
        Method("bc", "BC", how="imitate", algorithm="bc"),
        Method("sqil", "SQIL", how="imitate", algorithm="sqil"),
        Method("gail", "GAIL", _STEPS, how="imitate", algorithm="gail"),
        Method("script", "the script, which demonstrates", how="rule", algorithm="script"),
    ),
    measures=(),
    tables=(
        Table("Normalised return, mean of the demonstrators", (("normalised return", Figure("normalised_return", ALL)),), TABLE_1_FRUITBOT),
        Table("Over the script's return", (("mean", Figure(OF_THE_RULE, ALL)), *((who, Figure(OF_THE_RULE, who)) for who in _WHO))),
        Table(
            "Return by demonstrator",
            tuple((f"{metric} {who}", Figure(metric.replace(" ", "_"), who)) for metric in ("return", "normalised return") for who in _WHO),
        ),
    ),
    demonstrators=_WHO,
    reference="ppo",
)
