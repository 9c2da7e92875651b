"""Do the logs say enough for each agent's policy to be evaluated on the others' steps?

From logs alone, agent k's successor features are evaluated on everybody's steps: a step that leads another agent to s' bootstraps from
what k would do in s'. That is knowledge only where some agent was seen to do it: if in all similar states of the logs none ever took the
action that k would take, its consequences there are a guess. The share of the other agents' states in which k's action *was* seen is
k's coverage. States are similar if they are among the nearest in the features by which the network tells states apart.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from psiphi.api.answers import imitation_values, in_chunks, table
from psiphi.demos.demonstrations import AgentId
from psiphi.model import Model
from psiphi.nets import Committee
from psiphi.types import Demos

NEIGHBOURS = 10
"""So many of the logged states, the nearest, count as similar."""
POOL = 8_192
"""So many logged states are searched, drawn at random."""
ASKED = 2_048
"""In so many states of others it is asked what an agent would do, summed over the agents."""
THIN = 0.75
"""Below this share, an agent's reward and its value to others rest on guesses to a good part: a rule of thumb."""

VARIED = 2.0
"""Below this number of actions per state, a potential can be added to a reward without anything in the logs speaking against it."""


@dataclass(frozen=True)
class Coverage:
    """For each agent, how much of what it would do in the others' states some agent was seen to do in similar ones."""

    share: Mapping[AgentId, float]
    """By agent, between 0 and 1; 1 where there are no others."""
    actions: float
    """How many different actions the logs show in the states similar to a typical one."""
    num_actions: int

    @property
    def thin(self) -> tuple[AgentId, ...]:
        """The agents whose coverage is too thin to rely on."""
        return tuple(agent for agent, share in self.share.items() if share < THIN)

    def __str__(self) -> str:
        rows = [[str(agent), f"{share:.2f}", "thin" if share < THIN else "good"] for agent, share in self.share.items()]
        verdict = (
            f"Coverage is thin for {', '.join(map(str, self.thin))}: what they would do in the others' states was seldom seen there."
            if self.thin
            else "What every agent would do in the others' states was seen there."
        )
        variety = f"Around a typical state, {self.actions:.1f} of {self.num_actions} actions were seen."
        shaping = " With so few, rewards are known up to shaping: what they lead to is right, their size at a single step need not be."
        return f"{table(['agent', 'coverage', ''], rows)}\n{verdict} {variety}{shaping if self.actions < VARIED else ''}"


def measure(model: Model, demos: Demos, agents: tuple[AgentId, ...], seed: int = 0) -> Coverage:
    """The coverage of logs, for a model that was learned from them; both see the same observations."""
    random = np.random.default_rng(seed)
    count = np.asarray(demos.count)
    K, num_actions = len(agents), model.net.num_actions
    k, step = _drawn(random, count, POOL)
    every_obs, every_next = np.asarray(demos.steps.obs), np.asarray(demos.steps.next_obs)
    pool_obs, pool_action = every_obs[k, step], np.asarray(demos.steps.action)[k, step]
    pool = in_chunks(_features, model, [pool_obs])
    share, seen = {}, []
    for j, agent in enumerate(agents):
        others = count.copy()
        others[j] = 0
        if K == 1 or not others.any():
            share[agent] = 1.0
            others = count
        k, step = _drawn(random, others, max(ASKED // K, 64))
        obs = every_next[k, step]
        near = pool_action[_nearest(in_chunks(_features, model, [obs]), pool, NEIGHBOURS)]  # [asked, neighbours]
        would = in_chunks(imitation_values, model, [obs], j).argmax(axis=-1)
        share.setdefault(agent, float((near == would[:, None]).any(axis=1).mean()))
        seen.append(np.mean([len(np.unique(row)) for row in near]))
    return Coverage(share, float(np.mean(seen)), num_actions)


def _drawn(random: np.random.Generator, count: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Steps drawn without replacement from those of all agents: whose, and which."""
    ends = np.cumsum(count)
    flat = random.choice(ends[-1], min(size, int(ends[-1])), replace=False)
    k = np.searchsorted(ends, flat, side="right")
    return k, flat - (ends - count)[k]


def _nearest(asked: np.ndarray, pool: np.ndarray, neighbours: int) -> np.ndarray:
    """[asked, neighbours]: the nearest of the pool by Euclidean distance."""
    distance = np.sum(pool**2, axis=1) - 2 * asked @ pool.T
    kept = min(neighbours, len(pool))
    return np.argpartition(distance, kept - 1, axis=1)[:, :kept]


@jax.jit
def _features(model: Model, obs: jax.Array | np.ndarray) -> jax.Array:
    features = model.net.features(jnp.asarray(obs))
    return features[0] if isinstance(model.net, Committee) else features  # the first member's: any tells states apart
