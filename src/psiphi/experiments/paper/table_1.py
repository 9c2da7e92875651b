"""Table 1: how well is the reward inferred?"""

from psiphi.experiments.paper.experiment import ALL, Experiment, Figure, Method, Panel, Table
from psiphi.experiments.paper.shared import ROUNDABOUT, TABLE_1, TABLE_1_ROUNDABOUT, UNLIMITED

_MEAN_TITLE = "Normalised return, mean of the demonstrators"
_MEAN_COLUMN = (("normalised return", Figure("normalised_return", ALL)),)


def _by_demonstrator(demonstrators: tuple[str, ...]) -> tuple[tuple[str, Figure], ...]:
    metrics = ("return", "normalised return")
    return tuple((f"{metric} {who}", Figure(metric.replace(" ", "_"), who)) for metric in metrics for who in demonstrators)


EXPERIMENT = Experiment(
    name="table-1",
    title="Table 1: how well is the reward inferred?",
    story=(
        "Two demonstrators, one collects red coins and one green. Each method is to do what each of them wants. **BC**, **SQIL** and "
        "**GAIL** train one model per demonstrator, and are told who is who; **ITD** infers both rewards with one model, and an RL agent "
        "is trained on each. SQIL's default goes on paying after the end; as printed, who is paid for every step does not finish. "
        "**Normalised return** is the true return over that of an RL agent trained on the true reward with the same seed (the first "
        "row): the same DQN on CoinGrid, PPO on Roundabout. **ITD's own policy** is ITD's imitation of the demonstrator, without "
        "RL. **Controls** saw no demonstration of a want: SQIL is shown demonstrators who act at random, and GAIL's discriminator pays the "
        "same for every step; what they reach above a random policy, the end of an episode has told them."
    ),
    variants=(UNLIMITED, ROUNDABOUT),
    methods=(
        Method("dqn", "RL on the true reward", {"steps": 20_000}, how="imitate", algorithm="dqn"),
        Method("itd", "ITD, and RL on φ·w", how="imitate", algorithm="itd", learner={"steps": 20_000}),
        Method("itd-policy", "ITD's own policy", how="imitate", algorithm="itd", learner={"steps": 20_000}, trained_as="itd"),
        Method("bc", "BC", how="imitate", algorithm="bc"),
        Method("sqil", "SQIL", {"steps": 25_000}, how="imitate", algorithm="sqil"),
        Method(
            "sqil-paper",
            "SQIL as printed",
            {"agent.absorbing": False, "agent.temperature": 1.0, "steps": 25_000},
            how="imitate",
            algorithm="sqil",
            only_in=("coingrid",),
        ),
        Method("gail", "GAIL", {"steps": 150_000}, how="imitate", algorithm="gail"),
        Method(
            "sqil-control",
            "control: SQIL, demonstrators at random",
            {"demonstrators": ("0", "0"), "steps": 25_000},
            how="imitate",
            algorithm="sqil",
            only_in=("coingrid",),
        ),
        Method(
            "gail-control",
            "control: GAIL, constant reward",
            {"agent.control": True, "steps": 150_000},
            how="imitate",
            algorithm="gail",
            only_in=("coingrid",),
        ),
        Method("idm", "IDM, who demonstrates", how="rule", algorithm="idm", only_in=("roundabout",)),
    ),
    measures=(),
    tables=(
        Table(_MEAN_TITLE, _MEAN_COLUMN, TABLE_1, only_in=("coingrid",)),
        Table(_MEAN_TITLE, _MEAN_COLUMN, TABLE_1_ROUNDABOUT, only_in=("roundabout",)),
        Table("Return by demonstrator", _by_demonstrator(("R", "G")), only_in=("coingrid",)),
        Table("Return by demonstrator", _by_demonstrator(ROUNDABOUT.demonstrators), only_in=("roundabout",)),
    ),
    panels=(
        Panel("normalised return", (Figure("normalised_return", ALL),)),
        Panel("return\n(two coins are the most)", (Figure("return", ALL),), only_in=("coingrid",)),
    ),
    reference="dqn",
)
