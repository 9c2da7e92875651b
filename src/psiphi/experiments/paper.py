"""The tables and figures as data: what is run, what is measured, and what the paper printed beside it.

There is no JAX and no agent here, so that `report` can read it: a method is named by what it changes in the default setting.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

TASKS = ("R+G", "R-G", "-R+G", "-R-G")
"""The transfer tasks of table 2. Nobody demonstrates them: the demonstrators want R or G."""

ALL = "all"
"""The task of a cell that is about all demonstrators together."""

WORST = "worst"
"""The task of a cell that is the least over the colours."""

FEW, MANY = 1, 100
"""Episodes of adaptation."""


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


class Panel(NamedTuple):
    """A panel of a figure with a line per method: the mean of some figures."""

    title: str
    figures: tuple[Figure, ...]
    ceiling: tuple[Figure, ...] = ()
    """The most there could be, drawn as a mark, if it was measured."""


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

    def figures(self, method: Method) -> list[Figure]:
        """All that one training of a method is to yield."""
        measures = self.measures if method.trains else ("gpi-ceiling",)
        return [figure for measure in measures for figure in figures_of(measure, self.demonstrators)]


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


# --- What is run ---------------------------------------------------------------------------------------------------------

UNLIMITED = Variant("coingrid", "CoinGrid, a fresh random layout in every episode")
AUTHORS = Variant("coingrid-25", "CoinGrid, 25 layouts (the authors' number)", {"world.num_layouts": 25})
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
        Method("itd-offline", "ITD from logs alone", {"itd.cross_policy_on": "pooled", "itd.cross_batch": 128}),
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

EXPERIMENTS = {experiment.name: experiment for experiment in (_TABLE_2, _ITD, _ABLATION, _CUMULANTS)}
"""What `psiphi reproduce` knows, by name."""
