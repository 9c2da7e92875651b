"""What a table or figure is, as data: methods in variants, measured alike. No JAX and no agent here, so that `report` can read it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

TASKS = ("R+G", "R-G", "-R+G", "-R-G")
"""The transfer tasks of table 2. They are not demonstrated: the demonstrators want R or G."""

ALL = "all"
"""The task of a cell that is about all demonstrators together."""

CHANGED = ", changed"
"""What the name of a task ends with where it is judged in a changed world."""

WORST = "worst"
"""The task of a cell that is the least over the colours."""

EGO = "ego"
"""In a table: the task that the ego has in the variant."""

FEW, SOME, MANY = 1, 10, 100
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
    """A world, and what the ego wants in it."""

    name: str
    label: str
    world: str
    """Its name in `psiphi.worlds`."""
    changes: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """What it changes in a run there, by dotted name such as world.num_layouts."""
    moved: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """What changes in a second world, by dotted name such as world.coins. All are judged there, too: RL learns there anew, on the true
    reward or on what was inferred in the first world; imitators are judged as they are. Empty: there is no second world."""
    known: tuple[str, ...] | None = None
    """What is measured of the rewards that are inferred there; None: all that the experiment measures."""
    task: str | None = None
    """The ego's own task, in words, where it has one."""
    ego: str = ""
    """The same by the world's name for it; empty: the world's own."""
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
    """What it changes in its run, by dotted name such as agent.gamma."""
    preset: Literal["default", "paper"] = "default"
    """Where it starts from."""
    trains: bool = True
    """Whether there is anything to train: the exact planner knows already."""
    trained_as: str | None = None
    """The method whose training it shares, where it differs only in how a new task is met."""
    how: Literal["model", "adapt", "imitate", "rule", "curve", "predict", "foresee", "goals"] = "model"
    """What is done with it: a model is trained and asked all that the experiment measures; a policy is trained on and judged few-shot;
    a policy imitates each demonstrator and is judged by what that one wants; a policy is judged while it learns; predictions of what the
    demonstrators do are judged while they are learned, or at the end, in a world's own recordings; or a learner meets new driving goals."""
    algorithm: str = "itd"
    """The learner, by its name in `psiphi.agents.ALGORITHMS`."""
    few_shot: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """What it changes in how a new task is met."""
    learner: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """What it changes in the run of an RL agent on the rewards that were inferred, or on a new goal."""
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
    goals: tuple[str, ...] = ()
    """New goals, as task names."""
    axes: tuple[str, str] = ("env_steps", "normalised_return")
    """What its curves are drawn over, and of what, where it has any."""
    counted: tuple[str, ...] = ()
    """What else is drawn over the same steps: names of what the world counts in an episode."""
    reference: str | None = None
    """The method by whose return the others' are divided."""
    control: str | None = None
    """The method whose steps to the best final return the others' are divided by."""
    source: str = ""
    """The file that defines it, where it is the user's own."""

    def figures(self, method: Method, variant: Variant) -> list[Figure]:
        """All that one training of a method is to yield."""
        match method.how:
            case "curve":
                return [Figure(metric, variant.task or EGO) for metric in ("auc", "final_return", "steps_to_90")]
            case "imitate" | "rule":
                metrics = ("return",) if method.name == self.reference else ("return", "normalised_return")
                who, ends = variant.demonstrators or self.demonstrators, ends_of(variant)
                earned = [Figure(metric, name + end) for metric in metrics for end in ends for name in (*who, ALL)]
                inferred = known(self, variant) if method.algorithm == "itd" and method.trained_as is None else ()
                judged = [figure for measure in inferred for figure in figures_of(measure, who)]
                return earned + [figure._replace(task=figure.task + end) for end in ends for figure in judged]
            case "predict":
                return [Figure(metric, ALL) for metric in ("accuracy", "best_accuracy", "shown_accuracy")]
            case "foresee":
                return [Figure(metric, ALL) for metric in ("accuracy", "shown_accuracy", "ceiling_accuracy")]
            case "goals":
                metrics = ("return",) if method.name == self.reference else ("return", "normalised_return")
                adapts = method.learner or method.algorithm in ("itd", "psiphi")
                shots = (0, FEW, SOME) if adapts else (None,)
                return [Figure(metric, goal, n) for n in shots for metric in metrics for goal in (*self.goals, ALL)]
            case "adapt":
                measures = ("few-shot", "many-shot")
            case "model":
                measures = self.measures if method.trains else ("gpi-ceiling",)
        return [figure for measure in measures for figure in figures_of(measure, self.demonstrators)]


def known(what: Experiment, variant: Variant) -> tuple[str, ...]:
    """What is measured of the rewards that are inferred in a variant."""
    return what.measures if variant.known is None else variant.known


def ends_of(variant: Variant) -> tuple[str, ...]:
    """What the names of tasks end with, by the worlds in which a variant judges."""
    return ("", CHANGED) if variant.moved else ("",)


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
        case "starc":
            return [Figure("starc", who) for who in demonstrators]
        case "cumulants":
            return [Figure("correlation", colour) for colour in (*demonstrators, WORST)]
        case "gpi-ceiling":
            return [Figure("gpi_ceiling", task) for task in TASKS]
        case _:
            raise ValueError(f"{measure!r} is not a measure.")
