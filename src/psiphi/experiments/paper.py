"""The tables and figures as data: what is run, what is measured, and what the paper printed beside it.

There is no JAX and no agent here, so that `report` can read it: a method is named by what it changes in the default setting.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

TASKS = ("R+G", "R-G", "-R+G", "-R-G")
"""The transfer tasks of table 2. Nobody demonstrates them: the demonstrators want R or G."""

ALL = "all"
"""The task of a cell that is about all demonstrators together."""

WORST = "worst"
"""The task of a cell that is the least over the colours."""

EGO = "ego"
"""In a table: the task that the ego has in the variant."""

FEW, MANY = 1, 100
"""Episodes of adaptation."""

SOLVED = 0.9
"""The normalised return at which a task counts as solved."""


class Figure(NamedTuple):
    """What a cell measures, apart from who and where: `shots` is None where nothing is adapted to."""

    metric: str
    task: str
    shots: int | None = None


@dataclass(frozen=True)
class Variant:
    """A world."""

    name: str
    label: str
    changes: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """What it changes in the default setting, by dotted name."""
    task: str | None = None
    """The ego's own task, where it has one."""
    demonstrators: tuple[str, ...] = ()
    """What the demonstrators want there, where it is not what the experiment says."""
    story: str = ""
    """What a reader has to know of it besides."""


@dataclass(frozen=True)
class Method:
    """A learner."""

    name: str
    label: str
    changes: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """What it changes in its preset, by dotted name."""
    preset: Literal["default", "paper"] = "default"
    """Where it starts from."""
    trains: bool = True
    """Whether there is anything to train: the exact planner knows already."""
    trained_as: str | None = None
    """The method whose training it shares, where it differs only in how a new task is met."""
    how: Literal["model", "adapt", "imitate", "curve", "predict"] = "model"
    """What is done with it: a model is trained and asked all that the experiment measures; a policy is trained on and judged few-shot;
    a policy imitates each demonstrator and is judged by what that one wants; a policy is judged while it learns; or
    predictions of what the demonstrators do are judged while they are learned."""
    algorithm: str = ""
    """The learner, where it is not a model's."""
    only_in: tuple[str, ...] = ()
    """The variants that have it, by name; empty: all."""
    cumulants: int | None = None
    """d, where that is what it is about."""


class Printed(NamedTuple):
    """A number of the paper, with its standard error if there is one."""

    value: float
    error: float | None = None


@dataclass(frozen=True)
class Table:
    """A table of a report: a row per method, a column per figure, the paper's rows below."""

    title: str
    columns: tuple[tuple[str, Figure], ...]
    """Headings and what stands under them."""
    paper: Mapping[str, tuple[Printed | None, ...]] = field(default_factory=dict)
    """The paper's rows, by name."""
    only_in: tuple[str, ...] = ()
    """The variants of which it is, by name; empty: all."""


class Panel(NamedTuple):
    """A panel of a figure with a line per method: the mean of some figures."""

    title: str
    figures: tuple[Figure, ...]
    ceiling: tuple[Figure, ...] = ()
    """The most there could be, drawn as a mark, if it was measured."""
    only_in: tuple[str, ...] = ()
    """The variants that it shows, by name; empty: all."""


@dataclass(frozen=True)
class Experiment:
    """A table or figure: every method in every variant, measured alike."""

    name: str
    title: str
    story: str
    """What a reader has to know before the numbers."""
    variants: tuple[Variant, ...]
    methods: tuple[Method, ...]
    measures: tuple[str, ...]
    """What is measured of a trained model: names of `FIGURES_OF`."""
    tables: tuple[Table, ...]
    panels: tuple[Panel, ...] = ()
    """Of the figure that compares the methods."""
    demonstrators: tuple[str, ...] = ("R", "G")
    """What the demonstrators want, as task names."""
    axes: tuple[str, str] = ("env_steps", "normalised_return")
    """What its curves are drawn over, and of what, where it has any."""
    reference: str | None = None
    """The method by whose return the others' are divided."""

    def figures(self, method: Method, variant: Variant) -> list[Figure]:
        """All that one training of a method is to yield."""
        match method.how:
            case "curve":
                return [Figure(metric, variant.task or EGO) for metric in ("auc", "final_return", "steps_to_90")]
            case "imitate":
                metrics = ("return",) if method.name == self.reference else ("return", "normalised_return")
                return [Figure(metric, who) for metric in metrics for who in (*(variant.demonstrators or self.demonstrators), ALL)]
            case "predict":
                return [Figure(metric, ALL) for metric in ("accuracy", "best_accuracy", "shown_accuracy")]
            case "adapt":
                measures = ("few-shot", "many-shot")
            case "model":
                measures = self.measures if method.trains else ("gpi-ceiling",)
        return [figure for measure in measures for figure in figures_of(measure, self.demonstrators)]


def has(variant: Variant, thing: Method | Table | Panel) -> bool:
    """Whether a method, table or panel is one of the variant's."""
    return not thing.only_in or variant.name in thing.only_in


def figures_of(measure: str, demonstrators: tuple[str, ...]) -> list[Figure]:
    """The cells that a measure fills."""
    match measure:
        case "few-shot":
            return [Figure("normalised_return", task, shots) for shots in (0, FEW) for task in TASKS]
        case "many-shot":
            return [Figure("normalised_return", task, MANY) for task in TASKS]
        case "phi":
            return [Figure("r2", ALL)] + [Figure(metric, who) for metric in ("r2", "reward_correlation") for who in demonstrators]
        case "imitation":
            return [Figure("accuracy", ALL), Figure("ceiling_accuracy", ALL)]
        case "planner":
            return [Figure("planner_return", who) for who in demonstrators]
        case "cumulants":
            return [Figure("correlation", colour) for colour in (*demonstrators, WORST)]
        case "gpi-ceiling":
            return [Figure("gpi_ceiling", task) for task in TASKS]
        case _:
            raise ValueError(f"{measure!r} is not a measure.")


# --- What the paper printed ----------------------------------------------------------------------------------------------


def _printed(values: tuple[float, ...], errors: tuple[float, ...]) -> tuple[Printed, ...]:
    return tuple(Printed(*pair) for pair in zip(values, errors, strict=True))


_OPTIMAL = _printed((1.0,) * 4, (0.0,) * 4)
_SQIL = _printed((1.0, 0.0, 0.0, -1.0), (0.0,) * 4)

PSIPHI, SQIL = "ΨΦ-learning (the paper's table)", "SQILv2 (the paper's table; a model per task)"

TABLE_2: dict[int, dict[str, tuple[Printed, ...]]] = {
    0: {PSIPHI: _printed((1.0, 0.2, 0.2, -0.4), (0.0, 0.1, 0.1, 0.2)), SQIL: _SQIL},
    FEW: {PSIPHI: _OPTIMAL, SQIL: _SQIL},
    MANY: {PSIPHI: _OPTIMAL, SQIL: _OPTIMAL},
}
"""Table 2 of the paper by shots: mean and standard error over 3 runs on R+G, R-G, -R+G, -R-G."""

ITD_COINGRID = Printed(0.77, 0.03)
"""The paper's table 1, CoinGrid: normalised return of a DQN trained on the rewards that ITD inferred."""

TABLE_1: dict[str, tuple[Printed | None, ...]] = {
    "ITD (the paper's table)": (ITD_COINGRID,),
    "GAIL (the paper's table)": (Printed(0.73, 0.02),),
    "BC (the paper's table)": (Printed(0.69, 0.06),),
    "SQIL (the paper's table)": (Printed(0.64, 0.05),),
}
"""Table 1 of the paper, CoinGrid: mean and standard error over 3 runs."""

TABLE_1_ROUNDABOUT: dict[str, tuple[Printed | None, ...]] = {
    "ITD (the paper's table)": (Printed(0.92, 0.01),),
    "SQIL (the paper's table)": (Printed(0.85, 0.02),),
    "BC (the paper's table)": (Printed(0.81, 0.02),),
    "GAIL (the paper's table)": (Printed(0.77, 0.07),),
}
"""Table 1 of the paper, Roundabout."""


# --- What is run ---------------------------------------------------------------------------------------------------------

UNLIMITED = Variant("coingrid", "CoinGrid, a fresh random layout in every episode")
AUTHORS = Variant("coingrid-25", "CoinGrid, 25 layouts (the authors' number)", {"world.num_layouts": 25})
ROUNDABOUT = Variant(
    "roundabout",
    "Roundabout",
    demonstrators=("exr", "nxr"),
    story=(
        "One demonstrator leaves the roundabout at the first exit (exr) and one at the second (nxr); the true return is that of an ego "
        "which must leave there. ITD goes on inferring while a DQN learns on what it infers, and sees the DQN's steps; half of those that "
        "the DQN replays are the demonstrator's, paid as ITD infers. The RL agent on the true reward is PPO. **IDM** is the rule by "
        "which the demonstrators drive, judged like everybody: it learned nothing."
    ),
)
VARIANTS = {variant.name: variant for variant in (UNLIMITED, AUTHORS)}
"""Worlds by the name they have on the command line."""

_PAPER_ITD = Method("paper-itd", "paper's losses, no ego", preset="paper")

TRANSFER_COLUMNS = {shots: tuple((task, Figure("normalised_return", task, shots)) for task in TASKS) for shots in (0, FEW, MANY)}

ROWS = (
    "**psiphi (default)** is ITD with this library's extensions. **Paper's losses, ego on R+G** is algorithm 2, **paper's losses, no ego** "
    "algorithm 1, with the losses, the alternation and the hyperparameters that the paper prints and nothing else. **Ceiling** is "
    "greedy generalised policy improvement over the demonstrators' exact successor features with the true φ and w; a soft policy, such as "
    "psiphi's, can do better by leaving circles."
)

K_SHOT = (
    "**0-shot** is the return of the first episode in a task, the preferences w being inferred inside it, after every step. **k-shot** is "
    "the return of a fresh episode, on another draw of the world, after k episodes in the task; w is fixed by then. Adapting means "
    "inferring w from the rewards met: no gradient is taken, and one model serves all tasks. Returns are normalised: -1 is the least and 1 "
    "the most that a task allows."
)

TRUTH = (
    "**r²** is the share of the true reward's variance, over the steps of a random policy, that a linear function of φ explains; **reward "
    "correlation** is that of φ·w with it; **planner return** is what an exact planner that was given φ·w earns of the true reward, as a "
    "share of what it earns when given the truth; **accuracy** is the share of actions predicted in held-out trajectories, and **ceiling** "
    "the most that anybody could: the demonstrators' own probability of their likeliest action."
)


def _inference_columns(demonstrators: tuple[str, ...]) -> tuple[tuple[str, Figure], ...]:
    return (
        *((f"r² {who}", Figure("r2", who)) for who in demonstrators),
        *((f"reward correlation {who}", Figure("reward_correlation", who)) for who in demonstrators),
        *((f"planner return {who}", Figure("planner_return", who)) for who in demonstrators),
        ("accuracy", Figure("accuracy", ALL)),
        ("ceiling", Figure("ceiling_accuracy", ALL)),
    )


_ACCURACY = Panel("held-out accuracy\n(tick: the most there is)", (Figure("accuracy", ALL),), ceiling=(Figure("ceiling_accuracy", ALL),))


def _mean_panel(title: str, metric: str, demonstrators: tuple[str, ...]) -> Panel:
    return Panel(title, tuple(Figure(metric, who) for who in demonstrators))


_INFERRED_PANELS = (
    _mean_panel("r² of the true\nrewards on φ", "r2", ("R", "G")),
    _mean_panel("correlation of φ·w\nwith the true reward", "reward_correlation", ("R", "G")),
    _mean_panel("planner's return on φ·w\n(share of the optimum)", "planner_return", ("R", "G")),
    _ACCURACY,
)

_TABLE_2 = Experiment(
    name="table-2",
    title="Table 2: few-shot transfer to tasks nobody demonstrated",
    story=(
        "Two demonstrators, one collects red coins and one green. The agent is then judged on four tasks that neither of them has."
        f"\n\n{ROWS}\n\n{K_SHOT}\n\n{TRUTH}"
    ),
    variants=(UNLIMITED, AUTHORS),
    methods=(
        Method("psiphi", "psiphi (default)"),
        Method("paper", "paper's losses, ego on R+G", {"ego_task": (1.0, 1.0, 0.0)}, preset="paper"),
        _PAPER_ITD,
        Method("sqilv2", "SQILv2, a model per task", how="adapt", algorithm="sqil"),
        Method("exact", "ceiling: GPI with exact ψ, φ, w", trains=False),
    ),
    measures=("few-shot", "many-shot", "phi", "imitation", "planner"),
    tables=(
        *(Table(f"{shots}-shot", TRANSFER_COLUMNS[shots], TABLE_2[shots]) for shots in (0, FEW, MANY)),
        Table("What was inferred", _inference_columns(("R", "G"))),
    ),
    panels=_INFERRED_PANELS,
)

_ITD = Experiment(
    name="itd-coingrid",
    title="ITD alone: what do two demonstrators want?",
    story=(
        f"Two demonstrators, one collects red coins and one green.\n\n{TRUTH}\n\n"
        "The paper (its table 1) trained a DQN on the inferred reward instead of planning."
    ),
    variants=(UNLIMITED,),
    methods=(
        Method("itd", "ITD (default)"),
        Method("itd-offline", "ITD from logs alone", {"itd.cross_policy_on": "pooled", "itd.cross_batch": 128, "itd.sparsity": 0.0}),
        _PAPER_ITD,
    ),
    measures=("phi", "imitation", "planner"),
    tables=(
        Table(
            "What was inferred",
            _inference_columns(("R", "G")),
            {"ITD (the paper's table 1, DQN on φ·w)": (None,) * 4 + (ITD_COINGRID,) * 2 + (None,) * 2},
        ),
    ),
    panels=_INFERRED_PANELS,
)

_ABLATION = Experiment(
    name="ablation",
    title="Ablation: one extension off at a time",
    story=f"The setting of table 2, and every row differs from the first in one thing.\n\n{K_SHOT}\n\n{TRUTH}",
    variants=(UNLIMITED,),
    methods=(
        Method("default", "the default"),
        Method("no-cross-policy", "without cross-policy evaluation", {"itd.cross_policy": 0.0}),
        Method("free-temperature", "no fixed inverse temperature", {"itd.beta": 0.0}),
        Method("no-sparsity", "without the sparse-reward prior", {"itd.sparsity": 0.0}),
        Method("no-anchor", "without the terminal anchor", {"itd.anchor": 0.0}),
        Method("no-ema", "periodic copies, no moving average", {"itd.ema": 0.0, "itd.target_period": 100}),
        Method("no-mirror", "without the mirror", {"itd.mirror": False}),
        Method("absolute-torso", "absolute torso, not egocentric", {"itd.torso": "mlp"}),
        Method("shared-torso", "φ on ψ's torso", {"itd.share_torso": True}),
        Method("no-axis", "w_k not started on axes", {"itd.axis_preferences": False}),
        Method("no-optimism", "no optimism in the first episode", {"few_shot.kappa": 0.0}, trained_as="default"),
        Method("greedy", "greedy GPI, not soft", {"few_shot.temperature": 0.0}, trained_as="default"),
        Method("least-squares", "the paper's least squares for w", {"few_shot.inference": "least-squares"}, trained_as="default"),
        Method("binary-orientation", "the paper's ambiguous orientation", {"world.orientation": "binary"}),
        Method("constant-rate", "constant learning rate", {"itd.cosine": False}),
    ),
    measures=("few-shot", "phi", "imitation"),
    tables=(
        Table(f"{FEW}-shot", TRANSFER_COLUMNS[FEW]),
        Table("0-shot", TRANSFER_COLUMNS[0]),
        Table(
            "What was inferred",
            (("r²", Figure("r2", ALL)), ("accuracy", Figure("accuracy", ALL)), ("ceiling", Figure("ceiling_accuracy", ALL))),
        ),
    ),
    panels=(
        Panel("1-shot return,\nmean of the four tasks", tuple(figure for _, figure in TRANSFER_COLUMNS[FEW])),
        Panel("0-shot return,\nmean of the four tasks", tuple(figure for _, figure in TRANSFER_COLUMNS[0])),
        _mean_panel("r² of the true\nrewards on φ", "r2", ("R", "G")),
        _ACCURACY,
    ),
)

_CUMULANTS = Experiment(
    name="figure-cumulants",
    title="The learned cumulants over a board",
    story=(
        "Three demonstrators, one for each colour. **Correlation** is, for each colour, the largest |correlation| over the learned "
        'cumulants between the cumulant and "steps on a coin of that colour", on the steps of a random policy. A panel shows a cumulant of '
        "stepping onto each cell of the room, averaged over the directions from which one can come."
    ),
    variants=(UNLIMITED,),
    methods=(Method("psiphi", "psiphi (default)"),),
    measures=("cumulants", "phi"),
    tables=(
        Table("Correlation", tuple((name, Figure("correlation", name)) for name in ("R", "G", "Y", WORST))),
        Table("r² of the true rewards on φ", tuple((name, Figure("r2", name)) for name in ("R", "G", "Y"))),
    ),
    demonstrators=("R", "G", "Y"),
)

_MEAN_TITLE = "Normalised return, mean of the demonstrators"
_MEAN_COLUMN = (("normalised return", Figure("normalised_return", ALL)),)


def _by_demonstrator(demonstrators: tuple[str, ...]) -> tuple[tuple[str, Figure], ...]:
    metrics = ("return", "normalised return")
    return tuple((f"{metric} {who}", Figure(metric.replace(" ", "_"), who)) for metric in metrics for who in demonstrators)


_TABLE_1 = Experiment(
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
        Method("itd", "ITD, and RL on φ·w", {"dqn.steps": 20_000}, how="imitate", algorithm="itd"),
        Method("itd-policy", "ITD's own policy", {"dqn.steps": 20_000}, how="imitate", algorithm="itd", trained_as="itd"),
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
            {"demonstrators": ((0.0, 0.0, 0.0),) * 2, "steps": 25_000},
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
        Method("idm", "IDM, who demonstrates", how="imitate", algorithm="idm", only_in=("roundabout",)),
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

_EGO_TASKS = {
    "aligned": ("R+G", "aligned: the ego wants all that the demonstrators want, R+G"),
    "partly": ("R-G", "partly aligned: the ego wants what one demonstrator wants and shuns what the other wants, R-G"),
    "misaligned": ("Y", "misaligned: the ego wants yellow coins, which no demonstrator looks at"),
}

STEPS_TO_BEST = "steps_to_90_of_best"
"""A metric that no cell has: the report reads it off the curves when it knows who was best."""

_WHILE_IT_LEARNS = Table(
    "While it learns",
    (("auc", Figure("auc", EGO)), ("final return", Figure("final_return", EGO)), ("steps to 90 %", Figure("steps_to_90", EGO))),
)


def _often(inner: str) -> dict[str, Any]:
    """PPO's settings where steps are few: it looks at short rollouts many times."""
    return {"num_envs": 8, f"agent.{inner}rollout_length": 16, f"agent.{inner}epochs": 8}


_CURVES = Experiment(
    name="figure-coingrid",
    title="Learning one's own task beside demonstrators (hypotheses H1 and H2 on CoinGrid)",
    story=(
        "Two demonstrators, one collects red coins and one green, and an ego with a task of its own, whose rewards it sees. Every method "
        "begins with the same number of random steps, which count. **auc** is the mean normalised return over the steps, **final return** "
        "the mean of the last tenth of the evaluations, **steps to 90 %** the first evaluation, in environment steps, at which "
        f"the normalised return is at least {SOLVED} (all of the steps if it never was). BC, SQIL and GAIL take all demonstrations for one "
        "demonstrator's; BC and GAIL never see a reward. DQN+BC-aux and PPO+BC-aux clone the demonstrators on a shared torso. "
        "All were tuned for few steps, on other seeds."
    ),
    variants=tuple(Variant(f"coingrid-{name}", f"CoinGrid, {label}", task=task) for name, (task, label) in _EGO_TASKS.items()),
    methods=(
        Method("psiphi", "PsiPhi-learning", how="curve", algorithm="psiphi"),
        Method("dqn", "DQN", how="curve", algorithm="dqn"),
        Method("dqn-bc", "DQN+BC-aux", {"agent.bc_weight": 0.1}, how="curve", algorithm="dqn"),
        Method("ppo", "PPO", _often(""), how="curve", algorithm="ppo"),
        Method("ppo-bc", "PPO+BC-aux", {**_often(""), "agent.bc_weight": 0.5}, how="curve", algorithm="ppo"),
        Method(
            "sqilv2",
            "SQILv2 (sees rewards)",
            {"agent.env_reward": True, "agent.fade_updates": 150, "updates_per_rollout": 2, "pooled": True},
            how="curve",
            algorithm="sqil",
        ),
        Method("gail", "GAIL", {**_often("ppo."), "pooled": True}, how="curve", algorithm="gail"),
        Method("bc", "BC", {"pooled": True}, how="curve", algorithm="bc"),
    ),
    measures=(),
    tables=(_WHILE_IT_LEARNS,),
)

_WHILE_IT_DRIVES = replace(
    _WHILE_IT_LEARNS, columns=(*_WHILE_IT_LEARNS.columns, ("steps to 90 % of the best final return", Figure(STEPS_TO_BEST, EGO)))
)

HIGHWAY_PANELS = {
    "single-task": "what the others want",
    "adversarial": "to pass parked cars",
    "multi-task": "what nobody else wants",
}
"""Of figure 3, and what the ego wants there."""

_FIGURE_3 = Experiment(
    name="figure-3",
    title="Figure 3: learning to drive beside demonstrators",
    story=(
        "An ego among 20 cars. In **single-task** the others want what the ego wants, in **adversarial** they are parked, in "
        "**multi-task** four kinds of drivers want other speeds and lanes. At every step each method sees what the five nearest cars "
        "saw and did, nothing having been recorded before; PsiPhi-learning and DQN+BC-aux are told which kind of driver it was, BC and "
        "SQIL take all for one. BC and SQIL see no reward. **Normalised return** is the return over that of IDM, the rule by which the "
        "others drive, in the ego's place and with the ego's actions; it is no upper bound. **auc** is its mean over the steps, **final "
        "return** the mean of the last tenth of the evaluations, **steps to 90 %** the first evaluation at which it is at least "
        f"{SOLVED} (all of the steps if it never was), **steps to 90 % of the best final return** the first at which it is at least "
        f"{SOLVED} of the largest final return of any method in the panel. PsiPhi-learning makes four updates after eight steps, the "
        "others one, as more did not help the DQN on the tuning seeds; those who learn from rewards take .4 off each. "
        "**Watching nobody**, PsiPhi-learning is Q-learning by successor features on cumulants that rewards alone ground: what it lacks to "
        "the first row is what the demonstrations were worth. All were tuned on other seeds, PsiPhi-learning and DQN the most."
    ),
    variants=tuple(Variant(f"highway-{name}", f"Highway, {name}", task=wants) for name, wants in HIGHWAY_PANELS.items()),
    methods=(
        Method("psiphi", "PsiPhi-learning", how="curve", algorithm="psiphi"),
        Method("dqn", "DQN", how="curve", algorithm="dqn"),
        Method("dqn-bc", "DQN+BC-aux", {"agent.bc_weight": 0.1}, how="curve", algorithm="dqn"),
        Method("bc", "BC", how="curve", algorithm="bc"),
        Method("sqil", "SQIL", how="curve", algorithm="sqil"),
        Method("dqn-mlp", "DQN, MLP torso", {"agent.torso": "mlp"}, how="curve", algorithm="dqn", only_in=("highway-multi-task",)),
        Method(
            "psiphi-alone",
            "PsiPhi-learning, watching nobody",
            {f"agent.itd.{name}": 0.0 for name in ("bc_weight", "itd_weight", "l1_weight", "cross_policy", "sparsity")},
            how="curve",
            algorithm="psiphi",
            only_in=("highway-multi-task",),
        ),
    ),
    measures=(),
    tables=(_WHILE_IT_DRIVES,),
)

_IMITATION = Experiment(
    name="figure-imitation",
    title="Predicting what others will do (hypothesis H4 on Roundabout)",
    story=(
        "Two demonstrators, one leaves the roundabout at the first exit and one at the second. Of their recorded episodes four fifths are "
        "shown and one fifth is held out. **BC** and **ITD** see what is shown and nothing else; **PsiPhi-learning** also drives among "
        "others and is paid for leaving at the third, then the second, then the first exit. **Accuracy** is the share of the "
        "demonstrators' actions that is predicted in the held-out episodes after the last update, **best** the most that it ever was, "
        "**shown** the share in the episodes that were shown. **BC, 25 times as much** was shown 2,000 episodes of each: about the most "
        "that can be predicted from what there is to see."
    ),
    variants=(Variant("roundabout", "Roundabout"),),
    methods=(
        Method("psiphi", "PsiPhi-learning", how="predict", algorithm="psiphi"),
        Method("itd", "ITD", how="predict", algorithm="itd"),
        Method("bc", "BC", how="predict", algorithm="bc"),
        Method("bc-many", "BC, 25 times as much", {"shown": 2_000}, how="predict", algorithm="bc"),
    ),
    measures=(),
    tables=(
        Table(
            "Accuracy",
            (
                ("held out", Figure("accuracy", ALL)),
                ("held out, best", Figure("best_accuracy", ALL)),
                ("shown", Figure("shown_accuracy", ALL)),
            ),
            {
                "PsiPhi-learning (the paper's figure, about)": (Printed(0.95), None, None),
                "BC (the paper's figure, about)": (Printed(0.8), None, None),
            },
        ),
    ),
    axes=("updates", "accuracy"),
)

_SENSITIVITY = Experiment(
    name="figure-sensitivity",
    title="How many cumulants? (the paper's appendix)",
    story=(
        "PsiPhi-learning with d cumulants, all else as in the figures: on CoinGrid the ego wants both of what two demonstrators want, on "
        "Highway what nobody else wants, on Roundabout the third exit, while others take the first or the second. On Highway and "
        "Roundabout a normalised return of 1 is what IDM earns in the ego's place. With fewer cumulants than demonstrators their "
        "preferences are learned, else each has an axis of its own."
    ),
    variants=(
        Variant("coingrid-aligned", "CoinGrid, the ego wants R+G", task="R+G"),
        Variant("highway-multi-task", "Highway, multi-task", task=HIGHWAY_PANELS["multi-task"]),
        Variant("roundabout-online", "Roundabout", task="the third exit"),
    ),
    methods=tuple(Method(f"d{d}", f"d = {d}", how="curve", algorithm="psiphi", cumulants=d) for d in (2, 4, 8, 16)),
    measures=(),
    tables=(_WHILE_IT_LEARNS,),
)

EXPERIMENTS = {
    experiment.name: experiment
    for experiment in (_TABLE_1, _TABLE_2, _FIGURE_3, _CURVES, _ITD, _ABLATION, _CUMULANTS, _IMITATION, _SENSITIVITY)
}
"""What `psiphi reproduce` knows, by name."""
