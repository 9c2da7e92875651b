"""From what a run left to what can be asked of it, and to its directory: the one way from training to models."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from psiphi import lens as lenses
from psiphi import model as models
from psiphi import replay
from psiphi.agents import itd, psiphi
from psiphi.api import files
from psiphi.api.files import Policies
from psiphi.api.known import Known, known_from
from psiphi.loops.few_shot import FewShotConfig
from psiphi.model import Model
from psiphi.training import Run, Trained

SOFTNESS = FewShotConfig().temperature
"""Of the policy on a task where it is not deterministic, in units of reward."""


def inferring(trained: Trained) -> tuple[Any, Any]:
    """ITD's part of a run: its config and its state."""
    config = trained.run.agent.itd if hasattr(trained.run.agent, "itd") else trained.run.agent
    return config, getattr(trained.state, "itd", trained.state)


def model_of(trained: Trained) -> Model:
    """The network, the preferences in use and the units. The ego's preferences are those that it acts by, not their moving average."""
    config, state = inferring(trained)
    agents = len(trained.agents)
    net = itd.deployed(config, state)
    if trained.lens is not None and not trained.algorithm.successor_features:  # what looked through the lens for it stays behind
        net = trained.lens.on(net)
    w = itd.preferences(config, net.w[:agents]) if agents else net.w[:0]
    every = jnp.concatenate([w, state.net.w[agents:]])
    if trained.demos is None:
        return Model(net, every, jnp.zeros(0))
    shown = replay.spread(state.demos if getattr(state, "demos", None) is not None else trained.demos)
    trust = psiphi.trust(trained.run.agent) if isinstance(trained.run.agent, psiphi.PsiPhiConfig) else None
    units = jax.jit(models.measure_units)(net, w, shown._replace(background=None))
    return Model(net, every, units, None if trust is None else jax.tree.map(jnp.asarray, trust))


def known_of(trained: Trained) -> Known:
    """All that can be asked of a run that learned successor features."""
    config, state = inferring(trained)
    model, agents = model_of(trained), trained.agents
    glass = trained.lens or lenses.blank(tuple(trained.spec.obs_shape), trained.spec.obs_dtype, False, trained.spec.kind or "vector")
    lapse = () if model.net.lapse is None else tuple(np.asarray(jax.nn.sigmoid(model.net.lapse[: len(agents)])).tolist())
    softness = getattr(trained.run.agent, "temperature", SOFTNESS)
    shown = getattr(state, "demos", None)
    shown = trained.demos if shown is None else shown
    return known_from(
        model, glass, shown if shown is None else replay.spread(shown), agents,
        beta=itd.inverse_temperature(config), temperature=softness, first_action=trained.first_action, gamma=config.gamma, lapse=lapse,
        names=trained.names, **trained.called,
    )  # fmt: skip


def policies_of(trained: Trained) -> Policies:
    """The policies of a run that learned no successor features, or of learners on the rewards that it inferred."""
    net = trained.net
    mine = net[1] if isinstance(net, tuple) else net
    return Policies(mine, trained.lens, trained.spec, trained.first_action, trained.agents)


def run_of(run: Run) -> dict[str, Any]:
    """A run as a model's file remembers it: as JSON values, without the algorithm's config, which is the manifest's own."""
    fields = dataclasses.asdict(run)
    del fields["agent"]
    return json.loads(json.dumps(fields))


def save(path: Path, trained: Trained) -> None:
    """Write the model directory of a run."""
    run = run_of(trained.run)
    algorithm = trained.algorithm
    if algorithm.successor_features:
        files.save(path, algorithm.name, known_of(trained), trained.run.agent, trained.run.seed, None, run=run)
    elif isinstance(trained.net, tuple):
        files.save(
            path, algorithm.name, known_of(trained), trained.run.agent, trained.run.seed, None, run=run, policies=policies_of(trained).net
        )
    else:
        files.save_policy(path, algorithm.name, policies_of(trained), trained.run.agent, trained.run.seed, run)
