"""`psiphi.ITD`: from logs alone to what each agent wants."""

import dataclasses
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from psiphi import doors
from psiphi import model as models
from psiphi.agents import itd
from psiphi.agents.itd import ITDConfig
from psiphi.api import files, newcomers
from psiphi.api.known import Known, Learned, known_from
from psiphi.api.lens import lens_for
from psiphi.demos import Demonstrations
from psiphi.errors import UserError
from psiphi.loops import scan
from psiphi.loops.few_shot import FewShotConfig
from psiphi.model import Model
from psiphi.types import Demos

OFFLINE = ITDConfig(cross_policy_on="pooled", cross_batch=128, sparsity=0.0, updates=4_000)
"""ITD from logs alone, for data of any kind. What differs from ITD's own default is what needs steps that nobody demonstrated."""

MOST_OWN_CUMULANTS = 16
"""Up to so many agents have a cumulant each, unless the config says otherwise."""

SOFTNESS = FewShotConfig().temperature
"""Of the policy on a task where it is not deterministic, in units of reward."""

CHUNK = 200
"""Updates between two looks at the clock."""


def offline(config: ITDConfig | None, agents: int) -> ITDConfig:
    """The config that logs alone allow.

    The default has a cumulant per agent, as far as that is reasonable. In a config for use with an environment, cross-policy evaluation
    moves to the pool of all demonstrations, and the sparse-reward prior, which must not see demonstrators' own steps, is left out.
    """
    if config is None or config == OFFLINE:
        return dataclasses.replace(OFFLINE, num_cumulants=max(OFFLINE.num_cumulants, min(agents, MOST_OWN_CUMULANTS)))
    if config.cross_policy_on == "experience":
        pooled = dataclasses.replace(config, cross_policy_on="pooled", sparsity=0.0)
        return dataclasses.replace(pooled, cross_batch=min(config.cross_batch, config.batch * agents))
    return config


def trained_model(config: ITDConfig, state: Any, demos: Demos, agents: int) -> Model:
    """What is kept of a training state: ITD's, or PsiPhi-learning's with the ego last."""
    net = itd.deployed(config, state)
    w = itd.preferences(config, net.w[:agents])
    return Model(net, jnp.concatenate([w, state.net.w[agents:]]), jax.jit(models.measure_units)(net, w, demos))


class ITD(Learned):
    """Inverse temporal-difference learning from logs: cumulants that all agents share, and each one's preferences, reward and policy.

    >>> demos = psiphi.Demonstrations.read("drivers.csv")
    >>> itd = psiphi.ITD(seed=0).fit(demos)
    >>> print(itd.preferences)
    >>> itd.policy("anna")(obs)            # what she would do
    >>> itd.reward("anna")(obs, action)    # what she gets for it
    >>> itd.save("drivers-model")

    `config` None is `psiphi.api.OFFLINE`, with a cumulant per agent; the same seed and data give the same model.
    """

    def __init__(self, config: ITDConfig | None = None, seed: int = 0):
        self.config, self.seed = doors.config(config, ITDConfig), doors.seed(seed)
        self._used: ITDConfig = config or OFFLINE

    def fit(self, demos: Demonstrations, *, progress: bool = True) -> "ITD":
        """Learn from demonstrations, anew; shows a progress bar and says so if what was learned means little."""
        demos = doors.demonstrations(demos, Demonstrations)
        config = offline(self.config, len(demos.agents))
        lens = lens_for(demos.obs, demos.obs.shape[1:], demos.obs.dtype)
        seen = lens.demonstrations(demos).to_demos()
        agent = itd.make(config, lens.spec(demos.num_actions), len(demos.agents))
        loop = scan.LoopConfig(iterations=config.updates, chunk=min(CHUNK, config.updates), seed=self.seed)
        result = scan.run(None, agent, seen, loop, progress=progress)
        model = trained_model(config, result.agent(), seen, len(demos.agents))
        warn(result.rows[-1], len(demos.agents))
        self._used, self._task = config, None
        self._known = known_from(model, lens, seen, demos.agents, beta=itd.inverse_temperature(config), temperature=SOFTNESS)
        return self

    def fit_new_demonstrator(self, demos: Demonstrations, *, progress: bool = True) -> "ITD":
        """Get to know further agents: phi stays as it is, and so does all that is known of the others, to the last bit.

        Learned are the newcomers' policies and their preferences, in terms of the cumulants that there are.
        """
        self._known = newcomers.joined(self._trained(), self._used, demos, seed=self.seed, progress=progress)
        return self

    def save(self, path: str | Path) -> None:
        """Write the model to a directory, in place of a model that is there; `psiphi.load` reads it."""
        files.save(doors.path(path), "itd", self._trained(), self._used, self.seed, self._task)

    def _trained(self) -> Known:
        if self._known is None:
            raise UserError("This ITD has learned nothing yet; call fit with demonstrations first.")
        return self._known

    def __repr__(self) -> str:
        return f"ITD({len(self._known.agents)} agents)" if self._known else "ITD(untrained)"


def warn(row: dict[str, Any], agents: int) -> None:
    """Tell whoever watches if the cumulants mean little."""
    sentence = itd.collapse(row.get("train/signal") or 0.0, row.get("train/rank") or 0.0, agents)
    if sentence:
        print(f"psiphi: {sentence}", file=sys.stderr)
