"""What a trained learner answers with: policies, rewards, tables and explanations that can be called or printed."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np

from psiphi import doors, printable
from psiphi import model as models
from psiphi.demos.demonstrations import AgentId, unnamed_actions
from psiphi.demos.discretiser import Discretiser
from psiphi.envs.inferred_reward import InferredReward
from psiphi.errors import UserError
from psiphi.model import Model
from psiphi.nets import PsiPhiNet, of_heads
from psiphi.types import EnvSpec

EGO = "itself"
"""What the ego's own policy is called among the demonstrators'."""

CHUNK = 1024
"""At most so many observations are computed at once."""

MANY = 64
"""Of more agents, fewer observations are computed at once."""


# --- One observation, or a batch ----------------------------------------------------------------------------------------------


def as_batch(obs: Any, spec: EnvSpec) -> tuple[np.ndarray, bool]:
    """Observations ``[B, ...]``, and whether only one was given."""
    array = doors.numbers(obs, "The observation")
    if array.shape == spec.obs_shape:
        return array[None], True
    if array.shape[1:] == spec.obs_shape and array.ndim == len(spec.obs_shape) + 1:
        return array, False
    raise UserError(f"The observation has shape {array.shape}, expected {spec.obs_shape}, or that with a leading axis for a batch.")


def as_actions(action: Any, count: int, num_actions: int) -> np.ndarray:
    """Actions ``[B]``."""
    array = np.atleast_1d(doors.numbers(action, "The actions"))
    if array.shape != (count,) or not np.issubdtype(array.dtype, np.integer):
        raise UserError(f"The actions are {array.dtype} of shape {array.shape}, expected {count} integers, one per observation.")
    if array.size and not 0 <= array.min() <= array.max() < num_actions:
        raise UserError(f"There is an action {array[(array < 0) | (array >= num_actions)][0]}, but the actions are 0 to {num_actions - 1}.")
    return array.astype(np.int32)


def as_next(next_obs: Any, batch: np.ndarray, spec: EnvSpec) -> np.ndarray:
    """The observations that follow, one for each of the batch."""
    array = np.asarray(next_obs)
    array = array[None] if array.shape == spec.obs_shape else array
    if array.shape != batch.shape:
        raise UserError(f"next_obs has shape {array.shape}, expected {batch.shape}, as obs has.")
    return array


def as_discount(terminated: Any, count: int) -> np.ndarray:
    """[B]: 0 where a step ended the task, else 1."""
    array = np.asarray(terminated)
    if array.shape not in ((), (1,), (count,)) or not (array.dtype == bool or np.isin(array, (0, 1)).all()):
        raise UserError(f"terminated is {array.dtype} of shape {array.shape}, expected one truth value per observation.")
    return np.broadcast_to(1.0 - array.astype(np.float32), (count,)).astype(np.float32)


def in_chunks(function: Any, model: Model, columns: Sequence[np.ndarray], *further: Any) -> np.ndarray:
    """``function(model, *columns, *further)`` on batches of few different sizes, as each is compiled once."""
    total = len(columns[0])
    chunk = max(CHUNK * MANY // max(len(model.units), MANY), 1)
    parts = []
    for first in range(0, max(total, 1), chunk):
        some = [column[first : first + chunk] for column in columns]
        length = len(some[0])
        room = 1 << max(length - 1, 0).bit_length()
        padded = [np.concatenate([x, np.zeros((room - length, *x.shape[1:]), x.dtype)]) if room > length else x for x in some]
        parts.append(np.asarray(function(model, *padded, *further))[:length])
    return np.concatenate(parts)


# --- What is computed ------------------------------------------------------------------------------------------------------------


def only(model: Model, k: Any) -> Model:
    """The model of one demonstrator: it computes the same, to the last bit, whoever else is known."""

    def take(x: Any) -> Any:
        return x[k][None]

    return Model(of_heads(model.net, take), take(model.w), take(model.units))


@jax.jit
def imitation_values(model: Model, obs: Any, k: Any) -> jax.Array:
    """[B, A]: demonstrator k's action values."""
    return models.values(only(model, k), jnp.asarray(obs))[:, 0]


@jax.jit
def inferred_rewards(model: Model, obs: Any, action: Any, next_obs: Any, discount: Any, k: Any, caution: Any) -> jax.Array:
    """[B]: what demonstrator k is paid for steps, and a share of the advantage of what it would have done."""
    one = only(model, k)
    steps = [jnp.asarray(x) for x in (obs, action, next_obs, discount)]
    return (models.rewards(one, *steps) + caution * models.advantages(one, *steps[:2]) / one.units)[:, 0]


@jax.jit
def behaviour_rewards(model: Model, obs: Any, action: Any, next_obs: Any, discount: Any, k: Any, gamma: Any) -> jax.Array:
    """[B]: what demonstrator k does, as a reward of steps."""
    return models.behaviour(only(model, k), jnp.asarray(obs), jnp.asarray(action), jnp.asarray(next_obs), jnp.asarray(discount), gamma)[
        :, 0
    ]


@jax.jit
def advantages(model: Model, obs: Any, action: Any, k: Any) -> jax.Array:
    """[B]: how much less an action is worth to demonstrator k than its best."""
    return models.advantages(only(model, k), jnp.asarray(obs), jnp.asarray(action))[:, 0]


@jax.jit
def cumulants(model: Model, obs: Any, action: Any, next_obs: Any, discount: Any) -> jax.Array:
    """[B, d]"""
    return models.phi(model, *(jnp.asarray(x) for x in (obs, action, next_obs, discount)))


@jax.jit
def state_cumulants(model: Model, obs: Any) -> jax.Array:
    """[B, A, d]: of every action, where cumulants are learned of (s, a)."""
    assert isinstance(model.net, PsiPhiNet)
    return model.net.phi(jnp.asarray(obs))


@jax.jit
def policy_values(model: Model, obs: Any, w: Any) -> jax.Array:
    """[B, policies, A]: what each known policy is worth on the task w, as GPI sees it."""
    return jax.vmap(lambda psi: models.policy_values(model, psi, lambda p: p @ w))(models.psi(model, jnp.asarray(obs)))


@jax.jit
def contributions(model: Model, obs: Any, w: Any) -> jax.Array:
    """[policies, A, d]: what each cumulant adds to these values, for one observation; of the ensemble, the member that is believed."""
    parts = models.psi(model, jnp.asarray(obs)[None])[0] * w  # [policies, ensemble, A, d]
    believed = jnp.argmin(jnp.sum(parts, axis=-1), axis=1)
    return jnp.take_along_axis(parts, believed[:, None, :, None], axis=1)[:, 0]


# --- What is handed out ----------------------------------------------------------------------------------------------------------


class Policy:
    """What one demonstrator does: from an observation, or a batch of them, to actions counted from 0.

    >>> policy = itd.policy("anna")
    >>> policy(obs)                        # the likeliest action
    >>> policy(obs, deterministic=False)   # as often as she does
    >>> policy.action(obs)                 # in the original units, where actions were continuous
    """

    def __init__(
        self,
        model: Model,
        spec: EnvSpec,
        agent: AgentId,
        index: int,
        beta: float,
        lapse: float = 0.0,
        seed: int = 0,
        stands_for: Discretiser | None = None,
    ):
        self.agent, self._stands_for = agent, stands_for
        self.lapse = lapse
        """The share of its steps in which it does anything at all."""
        self._model, self._spec, self._index, self._beta = model, spec, index, beta
        self._random = np.random.default_rng(seed)

    def __call__(self, obs: Any, deterministic: bool = True) -> Any:
        """The likeliest action; or one drawn as the demonstrator would."""
        batch, alone = as_batch(obs, self._spec)
        if deterministic:
            action = self._values(batch).argmax(axis=-1)
        else:
            action = (self._random.random((len(batch), 1)) < self.probabilities(batch).cumsum(axis=-1)).argmax(axis=-1)
        return int(action[0]) if alone else action

    def action(self, obs: Any, deterministic: bool = True) -> np.ndarray:
        """The same in the units that the actions had before they were made discrete: ``[C]``, or ``[B, C]``."""
        if self._stands_for is None:
            raise UserError(
                "The actions of this model were discrete from the beginning, so they have no units: expected demonstrations with a "
                "discretiser (psiphi demos discretise); policy(obs) is the number of the action."
            )
        return self._stands_for.inverse(self(obs, deterministic))

    def values(self, obs: Any) -> np.ndarray:
        """What every action is worth to the demonstrator: ``[A]``, or ``[B, A]``."""
        batch, alone = as_batch(obs, self._spec)
        values = self._values(batch)
        return values[0] if alone else values

    def probabilities(self, obs: Any) -> np.ndarray:
        """How likely every action is: ``[A]``, or ``[B, A]``."""
        logits = self._beta * self.values(obs)
        shares = np.exp(logits - logits.max(axis=-1, keepdims=True))
        return (1 - self.lapse) * shares / shares.sum(axis=-1, keepdims=True) + self.lapse / shares.shape[-1]

    def _values(self, batch: np.ndarray) -> np.ndarray:
        return in_chunks(imitation_values, self._model, [batch], self._index)

    def __repr__(self) -> str:
        return f"Policy({self.agent!r})"


Form = Literal["wants", "behaviour"]
"""Of a reward: what an agent wants (phi.w_k), or what it does, as a reward (a planner on it does what the imitation does)."""


class Reward:
    """What one demonstrator is inferred to be paid for a step, in units of its reward.

    >>> reward = itd.reward("anna")
    >>> reward(obs, action, next_obs, terminated)
    >>> env = reward.wrap(gymnasium.make("CartPole-v1"))   # pays that, for any library's agent

    `form` says what it is. "wants": preferences times cumulants, with a share `caution` of the advantage, which keeps a planner from what
    the agent never does. "behaviour": what the agent does, as a reward; safe to plan on, and it says nothing of why. Without `next_obs`
    that is the advantage of the action. What is wanted cannot be told without unless cumulants were learned of (s, a): who asked for
    "wants" is told so, who did not ask gets the advantage.
    """

    def __init__(
        self, model: Model, spec: EnvSpec, agent: AgentId, index: int, form: Form, gamma: float, caution: float = 0.0, *, asked: bool = True
    ):
        self.agent, self.form, self.caution = agent, form, caution
        self._asked = asked
        self._model, self._spec, self._index, self._gamma = model, spec, index, gamma

    def __call__(self, obs: Any, action: Any, next_obs: Any = None, terminated: Any = False) -> Any:
        """Of one step, or of a batch of steps."""
        batch, alone = as_batch(obs, self._spec)
        columns = [batch, as_actions(action, len(batch), self._spec.num_actions)]
        if next_obs is None:
            paid = self._without_next(columns)
        else:
            columns += [as_next(next_obs, batch, self._spec), as_discount(terminated, len(batch))]
            paid = self._of_steps(columns)
        return float(paid[0]) if alone else paid

    def _of_steps(self, columns: list[np.ndarray]) -> np.ndarray:
        if self.form == "wants":
            return in_chunks(inferred_rewards, self._model, columns, self._index, self.caution)
        return in_chunks(behaviour_rewards, self._model, columns, self._index, self._gamma)

    def _without_next(self, columns: list[np.ndarray]) -> np.ndarray:
        if self.form == "behaviour" or (models.needs_next(self._model) and not self._asked):
            return in_chunks(advantages, self._model, columns, self._index)
        if models.needs_next(self._model):
            raise UserError(
                f"What {self.agent!r} wants depends on where a step leads: expected next_obs (and terminated) beside obs and action; "
                'reward(agent, form="behaviour") can do without.'
            )
        return self._of_steps([*columns, columns[0], np.ones(len(columns[0]), np.float32)])

    def wrap(self, env: gymnasium.Env[Any, Any]) -> InferredReward:
        """The environment with this reward; its own one is then ``info["true_reward"]``."""
        return InferredReward(env, only(self._model, self._index), 0, self)

    def __repr__(self) -> str:
        return f"Reward({self.agent!r}, {self.form})"


@dataclass(frozen=True)
class Preferences:
    """What the demonstrators want: how much each of them is paid per unit of each cumulant, and how alike their rewards are."""

    agents: tuple[AgentId, ...]
    w: np.ndarray
    """[K, d]: ``reward_k = phi @ w[k]``."""
    likeness: np.ndarray
    """[K, K]: correlation of the inferred rewards over the steps of everybody. 1: they want the same; 0: nothing to do with each other."""
    names: tuple[str, ...] = ()
    """What the cumulants are called."""
    spread: np.ndarray | None = None
    """[K, d]: how far refits from other beginnings are from each other in w, as a standard deviation."""
    likeness_range: np.ndarray | None = None
    """[2, K, K]: the least and the most that `likeness` is in any refit."""

    def __getitem__(self, agent: AgentId) -> np.ndarray:
        return self.w[position(self.agents, agent)]

    def to_dict(self) -> dict[AgentId, list[float]]:
        """By agent, as plain numbers."""
        return {agent: self.w[k].tolist() for k, agent in enumerate(self.agents)}

    def __str__(self) -> str:
        names = self.names or tuple(f"cumulant {i}" for i in range(self.w.shape[1]))
        shown = range(self.w.shape[1]) if self.w.shape[1] <= MOST_SHOWN else weightiest(self.w, MOST_SHOWN)
        alike = [f"like {agent}" for agent in self.agents]
        rows = [[*map(_signed, self.w[k, list(shown)]), *map(_signed, self.likeness[k])] for k in range(len(self.agents))]
        text = table(
            ["agent", *(names[i] for i in shown), *alike], [[str(agent), *row] for agent, row in zip(self.agents, rows, strict=True)]
        )
        left = self.w.shape[1] - len(shown)
        return f"{text}\n({left} cumulants that matter less are left out.)" if left else text


MOST_SHOWN = 8
"""Of many cumulants, so many are shown."""


def weightiest(w: np.ndarray, most: int) -> list[int]:
    """The cumulants that matter most to any agent, in their own order."""
    size = np.abs(w / np.maximum(np.abs(w).max(axis=1, keepdims=True), 1e-12)).max(axis=0)
    return sorted(np.argsort(-size, kind="stable")[:most].tolist())


@dataclass(frozen=True)
class Explanation:
    """Why generalised policy improvement does what it does in one state: it follows the policy that promises most on the task."""

    action: int
    """What is done, counted as the environment counts."""
    follows: AgentId
    """Whose policy promises that; "itself" is the agent's own."""
    policies: tuple[AgentId, ...]
    """The known policies, in the order of the arrays."""
    values: np.ndarray
    """[policies, A]: what is to be had on the task by each action and then following the policy."""
    contributions: np.ndarray
    """[policies, d]: what each cumulant adds to that, for the best action of each policy."""
    w: np.ndarray
    """[d]: the task."""
    names: tuple[str, ...] = ()
    """What the cumulants are called."""
    action_names: tuple[str, ...] = ()
    """What the actions are called, counted from 0."""

    def __str__(self) -> str:
        best = self.values.max(axis=1)
        order = np.argsort(-best, kind="stable")
        header = ["policy", "promises", "by action", *(self.names or (f"cumulant {i}" for i in range(len(self.w))))]
        called = self.action_names or unnamed_actions(self.values.shape[1])
        rows = [
            [str(self.policies[k]), _signed(best[k]), called[self.values[k].argmax()], *map(_signed, self.contributions[k])] for k in order
        ]
        does = called[np.unravel_index(self.values.argmax(), self.values.shape)[1]]
        named = "" if does in unnamed_actions(len(called)) else f" ({printable.terminal(does)})"
        whom = printable.terminal(self.follows)
        return f"action {self.action}{named}: follows {whom}, which promises most on this task\n{table(header, rows)}"


def position(agents: Sequence[AgentId], agent: AgentId) -> int:
    """Where an agent is in the list; a sentence that names the known ones if it is not."""
    if not isinstance(agent, str | int | np.integer) or agent not in agents:
        known = ", ".join(map(repr, agents[:20])) + (f" and {len(agents) - 20} more" if len(agents) > 20 else "")
        raise UserError(f"There is no agent {agent!r}; the known agents are {known}.")
    return list(agents).index(agent)


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns side by side, the first to the left, the others to the right."""
    header, *rows = [[printable.terminal(cell) for cell in row] for row in (header, *rows)]
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    lines = [
        "  ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width) for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in (header, *rows)
    ]
    return "\n".join(lines)


def _signed(number: Any) -> str:
    return f"{number:+.2f}"
