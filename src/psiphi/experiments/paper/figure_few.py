"""Does experience improve imitation where there is little to imitate?"""

from psiphi.experiments.paper.experiment import Experiment, Method, Table, Variant
from psiphi.experiments.paper.figure_imitation import ACCURACIES

SHOWN = (2, 5, 10, 20, 80)
"""Demonstrated episodes of each demonstrator."""
_LEARNERS = {"psiphi": "PsiPhi-learning", "itd": "ITD", "bc": "BC"}

EXPERIMENT = Experiment(
    name="figure-few",
    title="Predicting what others will do, from few episodes (hypothesis H4 on Roundabout)",
    story=(
        "As figure-imitation, among others who drive by the ego's own actions, and with 2 to 80 episodes of each of the two demonstrators. "
        "**BC** and **ITD** see these and nothing else; **PsiPhi-learning** also drives, and is paid for leaving at the third, then the "
        "second, then the first exit. **Accuracy** is the share of the demonstrators' actions that is predicted in 20 held-out episodes of "
        "each after the last update, **best** the most that it ever was, **shown** the share in the episodes that were shown. All make "
        "1,200 updates with the settings of figure-imitation, none of which was tuned for few episodes."
    ),
    variants=(Variant("roundabout", "Roundabout", "roundabout", {"updates": 1_200}),),
    methods=tuple(
        Method(f"{name}-{shown}", f"{label}, {shown} episodes", {"shown": shown}, how="predict", algorithm=name)
        for shown in SHOWN
        for name, label in _LEARNERS.items()
    ),
    measures=(),
    tables=(Table("Accuracy", ACCURACIES),),
    axes=("updates", "accuracy"),
)
