"""What several tables share: worlds, rows, columns, stories, and the numbers that the paper printed."""

from typing import Any

from psiphi.experiments.paper.experiment import ALL, EGO, FEW, MANY, TASKS, Figure, Method, Panel, Printed, Table, Variant

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

TABLE_1_FRUITBOT: dict[str, tuple[Printed | None, ...]] = {
    "BC (the paper's table)": (Printed(0.37, 0.02),),
    "SQIL (the paper's table)": (Printed(0.35, 0.03),),
    "ITD (the paper's table)": (Printed(0.35, 0.04),),
    "GAIL (the paper's table)": (Printed(0.31, 0.02),),
}
"""Table 1 of the paper, FruitBot."""


# --- What is run ---------------------------------------------------------------------------------------------------------

UNLIMITED = Variant("coingrid", "CoinGrid, a fresh random layout in every episode", "coingrid")
AUTHORS = Variant("coingrid-25", "CoinGrid, 25 layouts (the authors' number)", "coingrid-25")
CONTINUOUS = {"world.same_actions": False}
"""Traffic as it was when these were run: the others drive by continuous commands, of which the nearest action is only noted."""
UNRECORDED: dict[str, Any] = {"demos": "online", "demonstrators": (), "study": 0, "prefill_steps": 1_000}
"""PsiPhi-learning on Roundabout without its recorded demonstrators: it has nothing to study before its first step."""
ROUNDABOUT = Variant(
    "roundabout",
    "Roundabout",
    "roundabout",
    CONTINUOUS,
    demonstrators=("exr", "nxr"),
    story=(
        "One demonstrator leaves the roundabout at the first exit (exr) and one at the second (nxr); the true return is that of an ego "
        "which must leave there. ITD goes on inferring while a DQN learns on what it infers, and sees the DQN's steps; half of those that "
        "the DQN replays are the demonstrator's, paid as ITD infers. The RL agent on the true reward is PPO. **IDM** is the rule by "
        "which the demonstrators drive, judged like everybody: it learned nothing."
    ),
)

PAPER_ITD = Method("paper-itd", "paper's losses, no ego", preset="paper")

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
    "the most that is possible: the demonstrators' own probability of their likeliest action."
)

STARC = (
    "**STARC** is the distance between the inferred and the true reward that sees neither scale nor shaping: 0 if both order all policies "
    "alike, about 0.7 if they have nothing to do with each other, 1 if the other way round."
)


def inference_columns(demonstrators: tuple[str, ...], starc: bool = True) -> tuple[tuple[str, Figure], ...]:
    return (
        *((f"r² {who}", Figure("r2", who)) for who in demonstrators),
        *((f"reward correlation {who}", Figure("reward_correlation", who)) for who in demonstrators),
        *((f"planner return {who}", Figure("planner_return", who)) for who in demonstrators),
        *((f"STARC {who}", Figure("starc", who)) for who in demonstrators if starc),
        ("accuracy", Figure("accuracy", ALL)),
        ("ceiling", Figure("ceiling_accuracy", ALL)),
    )


ACCURACY = Panel("held-out accuracy\n(tick: the most there is)", (Figure("accuracy", ALL),), ceiling=(Figure("ceiling_accuracy", ALL),))


def mean_panel(title: str, metric: str, demonstrators: tuple[str, ...]) -> Panel:
    return Panel(title, tuple(Figure(metric, who) for who in demonstrators))


INFERRED_PANELS = (
    mean_panel("r² of the true\nrewards on φ", "r2", ("R", "G")),
    mean_panel("correlation of φ·w\nwith the true reward", "reward_correlation", ("R", "G")),
    mean_panel("planner's return on φ·w\n(share of the optimum)", "planner_return", ("R", "G")),
    ACCURACY,
)

STEPS_TO_BEST = "steps_to_90_of_best"
"""A metric that no cell has: the report reads it off the curves when it knows who was best."""

OVER_CONTROL = "steps_over_control"
"""Another one: those steps over the control's, with the same seed."""

OF_THE_RULE = "share_of_the_rule"
"""A third: returns over those of the rule by which the demonstrators act, with the same seed."""

AT_THE_END = "final_"
"""What the name of a fourth begins with, before that of what the world counts in an episode: the last count on the curve."""

WHILE_IT_LEARNS = Table(
    "While it learns",
    (("auc", Figure("auc", EGO)), ("final return", Figure("final_return", EGO)), ("steps to 90 %", Figure("steps_to_90", EGO))),
)


HIGHWAY_PANELS = {
    "single-task": "what the others want",
    "adversarial": "to pass parked cars",
    "multi-task": "what nobody else wants",
}
"""Of figure 3, and what the ego wants there."""
