"""The learned cumulants over a board."""

from psiphi.experiments.paper.experiment import WORST, Experiment, Figure, Method, Table
from psiphi.experiments.paper.shared import UNLIMITED

EXPERIMENT = Experiment(
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
