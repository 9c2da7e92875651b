"""One extension off at a time."""

from psiphi.experiments.paper.experiment import ALL, FEW, Experiment, Figure, Method, Panel, Table
from psiphi.experiments.paper.shared import ACCURACY, K_SHOT, TRANSFER_COLUMNS, TRUTH, UNLIMITED, mean_panel

EXPERIMENT = Experiment(
    name="ablation",
    title="Ablation: one extension off at a time",
    story=f"The setting of table 2, and every row differs from the first in one thing.\n\n{K_SHOT}\n\n{TRUTH}",
    variants=(UNLIMITED,),
    methods=(
        Method("default", "the default"),
        Method("no-cross-policy", "without cross-policy evaluation", {"agent.cross_policy": 0.0}),
        Method("free-temperature", "no fixed inverse temperature", {"agent.beta": 0.0}),
        Method("no-sparsity", "without the sparse-reward prior", {"agent.sparsity": 0.0}),
        Method("no-anchor", "without the terminal anchor", {"agent.anchor": 0.0}),
        Method("no-ema", "periodic copies, no moving average", {"agent.ema": 0.0, "agent.target_period": 100}),
        Method("no-mirror", "without the mirror", {"agent.mirror": False}),
        Method("absolute-torso", "absolute torso, not egocentric", {"agent.torso": "mlp"}),
        Method("shared-torso", "φ on ψ's torso", {"agent.share_torso": True}),
        Method("no-axis", "w_k not started on axes", {"agent.axis_preferences": False}),
        Method("no-optimism", "no optimism in the first episode", few_shot={"kappa": 0.0}, trained_as="default"),
        Method("greedy", "greedy GPI, not soft", few_shot={"temperature": 0.0}, trained_as="default"),
        Method("least-squares", "the paper's least squares for w", few_shot={"inference": "least-squares"}, trained_as="default"),
        Method("binary-orientation", "the paper's ambiguous orientation", {"world.orientation": "binary"}),
        Method("constant-rate", "constant learning rate", {"agent.cosine": False}),
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
        mean_panel("r² of the true\nrewards on φ", "r2", ("R", "G")),
        ACCURACY,
    ),
)
