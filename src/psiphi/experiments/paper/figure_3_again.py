"""Figure 3 again, among others who drive by the ego's actions: with MLP torsos for all (set A) and with the crowd's (set B)."""

from dataclasses import replace
from typing import Any

from psiphi.experiments.paper.experiment import EGO, SOLVED, Experiment, Figure, Method, Variant
from psiphi.experiments.paper.shared import HIGHWAY_PANELS, STEPS_TO_BEST, WHILE_IT_LEARNS

_SETS: dict[str, dict[str, Any]] = {"mlp": {"torso": "mlp", "torso_hidden": (512, 256)}, "crowd": {}}
"""By the end of a variant's name: what its torsos change. The paper's torso on Highway has 512 and 256 units."""
_PACE = {"steps": 16_000}
_WHERE = {"psiphi": ("itd.",), "dqn": ("",), "bc": ("",), "sqil": ("dqn.",), "gail": ("", "ppo.")}
"""Where the configs keep their torsos."""


def _rows(set_name: str) -> tuple[Method, ...]:
    def row(name: str, label: str, algorithm: str, changes: dict[str, Any]) -> Method:
        torso = {f"agent.{where}{field}": value for where in _WHERE[algorithm] for field, value in _SETS[set_name].items()}
        variants = tuple(f"highway-{scenario}-{set_name}" for scenario in HIGHWAY_PANELS)
        return Method(f"{name}-{set_name}", label, {**torso, **changes}, how="curve", algorithm=algorithm, only_in=variants)

    return (
        row("psiphi", "PsiPhi-learning", "psiphi", {}),
        row("psiphi-shield", "PsiPhi-learning, the ego's torso shielded", "psiphi", {"agent.shield": 1.0}),
        row("psiphi-own", "PsiPhi-learning, bootstraps from its own head", "psiphi", {"agent.gpi_bootstrap": False}),
        row("psiphi-alone", "PsiPhi-learning, watching nothing", "psiphi", {"demos": "none"}),
        row("dqn", "DQN", "dqn", {}),
        row("dqn-bc", "DQN+BC-aux", "dqn", {"agent.bc_weight": 0.1}),
        row("bc", "BC", "bc", {}),
        row("sqil", "SQIL", "sqil", {}),
        row("gail", "GAIL", "gail", {"demos": "online", "evaluate_every": 2_048}),
    )


EXPERIMENT = Experiment(
    name="figure-3-again",
    title="Figure 3 again, among others who drive by the ego's actions",
    story=(
        "As figure-3, but the other cars obey the ego's table of actions. **Set A** has MLP torsos of 512 and 256 units for all methods, "
        "**set B** those that were tuned for figure-3. **Watching nothing**, PsiPhi-learning is the same learner without demonstrations; "
        "**shielded**, no gradient of the demonstrators' losses reaches the torso that they share with the ego; "
        "where it **bootstraps from its own head**, what it learns does not look at the demonstrators' policies. "
        "PsiPhi-learning makes two updates after eight steps, and each method has 16,000 steps. **Steps to 90 % of the best final return** "
        f"are those to {SOLVED} of the largest final return of any method in the panel."
    ),
    variants=tuple(
        Variant(f"highway-{scenario}-{name}", f"Highway, {scenario}, set {letter}", f"highway-{scenario}", _PACE, task=wants)
        for letter, name in zip("AB", _SETS, strict=True)
        for scenario, wants in HIGHWAY_PANELS.items()
    ),
    methods=tuple(method for name in _SETS for method in _rows(name)),
    measures=(),
    tables=(
        replace(
            WHILE_IT_LEARNS, columns=(*WHILE_IT_LEARNS.columns, ("steps to 90 % of the best final return", Figure(STEPS_TO_BEST, EGO)))
        ),
    ),
)
