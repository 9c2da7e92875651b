"""The tables and figures of the paper as data, one file each: what is run, what is measured, and what the paper printed beside it."""

from psiphi.experiments.paper import (
    ablation,
    figure_3,
    figure_3_again,
    figure_3_fruitbot,
    figure_coingrid,
    figure_cumulants,
    figure_few,
    figure_few_coins,
    figure_imitation,
    figure_pays,
    figure_roundabout,
    figure_sensitivity,
    figure_sizes,
    itd_coingrid,
    table_1,
    table_1_curve,
    table_1_fruitbot,
    table_2,
    table_2_highway,
)
from psiphi.experiments.paper.experiment import (
    ALL,
    CHANGED,
    EGO,
    FEW,
    MANY,
    SOLVED,
    SOME,
    TASKS,
    WORST,
    Experiment,
    Figure,
    Method,
    Panel,
    Printed,
    Table,
    Variant,
    ends_of,
    figures_of,
    has,
    known,
)
from psiphi.experiments.paper.shared import AT_THE_END, OF_THE_RULE, OVER_CONTROL, PSIPHI, STEPS_TO_BEST, TABLE_2

EXPERIMENTS: dict[str, Experiment] = {
    module.EXPERIMENT.name: module.EXPERIMENT
    for module in (
        table_1,
        table_2,
        figure_3,
        figure_coingrid,
        itd_coingrid,
        ablation,
        figure_cumulants,
        figure_imitation,
        figure_sensitivity,
        figure_roundabout,
        figure_few,
        figure_few_coins,
        table_1_curve,
        figure_sizes,
        figure_3_again,
        figure_pays,
        table_2_highway,
    )
}
"""What `psiphi reproduce` knows, by name."""

WITH_EXTRAS: dict[str, Experiment] = {module.EXPERIMENT.name: module.EXPERIMENT for module in (figure_3_fruitbot, table_1_fruitbot)}
"""What needs more than psiphi's own dependencies; `psiphi reproduce all` leaves it out."""

__all__ = [
    "ALL", "AT_THE_END", "CHANGED", "EGO", "EXPERIMENTS", "FEW", "MANY", "OF_THE_RULE", "OVER_CONTROL", "PSIPHI", "SOLVED", "SOME",
    "STEPS_TO_BEST", "TABLE_2", "TASKS", "WITH_EXTRAS", "WORST",
    "Experiment", "Figure", "Method", "Panel", "Printed", "Table", "Variant", "ends_of", "figures_of", "has", "known",
]  # fmt: skip
