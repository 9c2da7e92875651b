"""Predicting what others will do."""

from psiphi.experiments.paper.experiment import ALL, Experiment, Figure, Method, Printed, Table, Variant
from psiphi.experiments.paper.shared import CONTINUOUS

ACCURACIES = (
    ("held out", Figure("accuracy", ALL)),
    ("held out, best", Figure("best_accuracy", ALL)),
    ("shown", Figure("shown_accuracy", ALL)),
)

EXPERIMENT = Experiment(
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
    variants=(Variant("roundabout", "Roundabout", "roundabout", CONTINUOUS),),
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
            ACCURACIES,
            {
                "PsiPhi-learning (the paper's figure, about)": (Printed(0.95), None, None),
                "BC (the paper's figure, about)": (Printed(0.8), None, None),
            },
        ),
    ),
    axes=("updates", "accuracy"),
)
