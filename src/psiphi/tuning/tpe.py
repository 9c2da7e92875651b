"""Optuna's tree-structured Parzen estimator proposes trials, some at a time; each is trained to the end. Needs the extra `optuna`."""

from pathlib import Path
from typing import Any

from psiphi.errors import UserError
from psiphi.spaces import Choice
from psiphi.tuning import trials
from psiphi.tuning.plan import Plan, Row

AT_ONCE = 8
"""Trials that are proposed and trained together before Optuna is told of them."""
NO_SCORE = -1e30
"""What Optuna is told of a trial that left the finite numbers."""


def search(plan: Plan, out: Path, *, together: bool, progress: bool) -> list[Row]:
    """All trials. The sampler is seeded and asked in order, so a search that continues asks the same again."""
    try:
        import optuna  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise UserError("--search tpe needs Optuna, expected it to be installed: pip install 'psiphi[optuna]'.") from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    sampler = optuna.samplers.TPESampler(seed=plan.run.seed, constant_liar=True, multivariate=False)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    distributions = {name: _distribution(optuna, where) for name, where in plan.space.items()}
    lineage: list[Row] = []
    while len(lineage) < plan.trials:
        asked = [study.ask(distributions) for _ in range(min(AT_ONCE, plan.trials - len(lineage)))]
        values = [{name: float(trial.params[name]) for name in plan.space} for trial in asked]
        rows = trials.plain(plan, values, len(lineage), out, together=together, progress=progress)
        for trial, row in zip(asked, rows, strict=True):
            study.tell(trial, max(row.score, NO_SCORE))
        lineage += rows
    return lineage


def _distribution(optuna: Any, where: Any) -> Any:
    if isinstance(where, Choice):
        return optuna.distributions.CategoricalDistribution(where.values)
    return optuna.distributions.FloatDistribution(where.low, where.high, log=where.log)
