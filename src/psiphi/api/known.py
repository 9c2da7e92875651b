"""What was learned about the demonstrators, and all that it can be asked: shared by ITD and PsiPhi-learning."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from psiphi import doors, tasks
from psiphi import model as models
from psiphi.api import answers
from psiphi.api.answers import (
    EGO,
    Explanation,
    Form,
    Policy,
    Preferences,
    Reward,
    as_actions,
    as_batch,
    as_discount,
    as_next,
    in_chunks,
    position,
)
from psiphi.api.coverage import Coverage
from psiphi.api.verdict import Verdict
from psiphi.demos import Demonstrations
from psiphi.demos.demonstrations import AgentId, unnamed_actions
from psiphi.demos.discretiser import Discretiser
from psiphi.errors import UserError
from psiphi.lens import Lens
from psiphi.model import Model
from psiphi.nets import Committee
from psiphi.types import Demos, EnvSpec

Inference = Literal["bayes", "least-squares"]
Me = TypeVar("Me", bound="Learned")

MOST_CAUTION = 10.0
"""More caution than this is as good as asking for the behaviour."""

RIDGE = 1e-3
"""Of the least squares by which a task is inferred."""


@dataclass(frozen=True, eq=False)
class Known:
    """A trained model and what its numbers are called."""

    model: Model
    """Reads observations as the environment gives them."""
    lens: Lens
    agents: tuple[AgentId, ...]
    num_actions: int
    beta: float
    """Inverse temperature of the demonstrators' policies."""
    temperature: float
    """Softness of the agent's own policy where it is not deterministic, in units of reward."""
    likeness: np.ndarray
    coverage: Coverage
    first_action: int = 0
    """What the environment calls action 0."""
    gamma: float = 0.9
    form: Form = "wants"
    """The reward that is handed out unless another one is asked for."""
    forms: tuple[Form, ...] = ()
    """The same of each agent, where some agents' rewards do not explain them; () is `form` of all."""
    caution: tuple[float, ...] = ()
    """Of each agent, the share of the advantage that its reward is given; () is none."""
    lapse: tuple[float, ...] = ()
    """Of each agent, the share of its steps that are uniform mistakes; () is none."""
    names: tuple[str, ...] = ()
    """What the cumulants are called; () for learned ones, which have no names."""
    verdict: Verdict | None = None
    likeness_range: np.ndarray | None = None
    """[2, K, K]: the least and the most that `likeness` is in any refit; None where there is one fit."""
    columns: tuple[str, ...] = ()
    """What the entries of an observation are called; () where that is not known, or there are too many."""
    action_names: tuple[str, ...] = ()
    """What the actions are called; () where they have no names."""
    discretiser: Discretiser | None = None
    """What the actions stand for, where they were continuous."""

    def form_of(self, k: int) -> Form:
        """What is handed out of agent k unless another reward is asked for."""
        return self.forms[k] if self.forms else self.form

    @property
    def spec(self) -> EnvSpec:
        return EnvSpec(self.lens.shape, self.lens.dtype, self.num_actions, kind=self.lens.kind)

    @property
    def has_ego(self) -> bool:
        return self.model.w.shape[0] > len(self.agents)

    @property
    def actions(self) -> tuple[str, ...]:
        """A name for each action."""
        return self.action_names or unnamed_actions(self.num_actions)

    @property
    def policies(self) -> tuple[AgentId, ...]:
        return (*self.agents, EGO) if self.has_ego else self.agents


class Experience(NamedTuple):
    """Steps on a task whose rewards were seen."""

    obs: np.ndarray
    action: np.ndarray
    next_obs: np.ndarray
    discount: np.ndarray
    reward: np.ndarray


class Learned:
    """What ITD and PsiPhi-learning have in common once they are trained.

    Policies and rewards of the demonstrators, and acting on any task by generalised policy improvement (GPI) over all known policies.
    """

    _known: Known | None = None
    _task: np.ndarray | None = None

    def _trained(self) -> Known:
        raise NotImplementedError

    # --- The demonstrators -----------------------------------------------------------------------------------------------

    @property
    def agents(self) -> tuple[AgentId, ...]:
        """The demonstrators' ids, in the order of everything that has an axis for them."""
        return self._trained().agents

    def policy(self, agent: AgentId) -> Policy:
        """What a demonstrator does: ``policy(obs, deterministic=True) -> action``, for one observation or a batch."""
        known = self._trained()
        k = position(known.agents, agent)
        return Policy(known.model, known.spec, agent, k, known.beta, _of(known.lapse, k), stands_for=known.discretiser)

    def reward(self, agent: AgentId, form: Form | None = None, caution: float | None = None) -> Reward:
        """What a demonstrator is inferred to be paid: ``reward(obs, action, next_obs, terminated)``; ``reward.wrap(env)`` pays it.

        `form` "wants" is preferences times cumulants, "behaviour" what the agent does, as a reward: a planner on it is as good as the
        imitation and learns nothing of why. None: what can be vouched for more, "wants" where cumulants are simple or the model has steps
        of its own, unless a plan on it leaves what the agent was seen to do; else "behaviour". `caution` is the weight of the advantage in
        "wants"; None: as was found fit when the model was made. Who asks for a caution and no form gets what is wanted.
        """
        return reward_of(self._trained(), agent, form, caution)

    @property
    def preferences(self) -> Preferences:
        """What the demonstrators want, by cumulant, and how alike they are; print it."""
        known = self._trained()
        net = known.model.net
        spread = np.asarray(net.nets.w.std(axis=0)) / np.asarray(known.model.units)[:, None] if isinstance(net, Committee) else None
        return Preferences(known.agents, np.asarray(known.model.prior.basis), known.likeness, known.names, spread, known.likeness_range)

    @property
    def verdict(self) -> Verdict:
        """What speaks against believing the rewards, for each agent; print it. It warns and never praises."""
        verdict = self._trained().verdict
        if verdict is None:
            raise UserError("There is no verdict on this model: it was not fitted on logs alone, or by a psiphi before 0.2.")
        return verdict

    def consistency(self) -> dict[AgentId, dict[str, float]]:
        """How consistent each demonstrator is.

        "decided": its inverse temperature, how many times likelier it makes an action (in the logarithm) that is worth one unit of its
        reward more. "lapses": the share of its steps that are uniform mistakes.
        """
        known = self._trained()
        return {
            agent: {"decided": known.beta * float(known.model.units[k]), "lapses": _of(known.lapse, k)}
            for k, agent in enumerate(known.agents)
        }

    def cumulants(self, obs: Any, action: Any = None, next_obs: Any = None, terminated: Any = False) -> np.ndarray:
        """The cumulants of steps: ``[d]``, or ``[B, d]`` for a batch; whatever an agent wants is a weighted sum of these.

        Those learned of (s, a) can be asked with `obs` alone: of every action then, ``[A, d]`` or ``[B, A, d]``.
        """
        known = self._trained()
        batch, alone = as_batch(obs, known.spec)
        if action is None:
            if models.needs_next(known.model):
                raise UserError("This model's cumulants are of whole steps: expected action and next_obs beside obs.")
            phi = in_chunks(answers.state_cumulants, known.model, [batch])
        else:
            phi = in_chunks(answers.cumulants, known.model, self._steps(batch, action, next_obs, terminated))
        return phi[0] if alone else phi

    def _steps(self, batch: np.ndarray, action: Any, next_obs: Any, terminated: Any) -> list[np.ndarray]:
        """Steps as the model asks for them; where they led may be left out if it does not matter."""
        known = self._trained()
        actions = as_actions(action, len(batch), known.num_actions)
        if next_obs is None and models.needs_next(known.model):
            raise UserError("This model's cumulants are of whole steps: expected next_obs beside observations and actions.")
        following = batch if next_obs is None else as_next(next_obs, batch, known.spec)
        return [batch, actions, following, as_discount(terminated, len(batch))]

    def accuracy(self, demos: Demonstrations) -> float:
        """The share of the demonstrated actions that are predicted; held-out demonstrations tell more than those learned from."""
        by_agent = self.accuracies(demos)
        steps = [int((demos.agent_index == k).sum()) for k in range(len(demos.agents))]
        return sum(by_agent[agent] * n for agent, n in zip(demos.agents, steps, strict=True) if n) / max(sum(steps), 1)

    def accuracies(self, demos: Demonstrations) -> dict[AgentId, float]:
        """The same for each agent; agents without a step are left out."""
        known = self._trained()
        demos = doors.demonstrations(demos, Demonstrations).named_as(known.actions)
        check_fits(demos, known.lens.shape, known.num_actions)
        mine = {agent: demos.agent_index == k for k, agent in enumerate(demos.agents)}
        return {
            agent: float(np.mean(self.policy(agent)(demos.obs[steps]) == demos.action[steps]))
            for agent, steps in mine.items()
            if steps.any()
        }

    @property
    def coverage(self) -> Coverage:
        """Where the logs say too little for pooled cross-policy evaluation; print it. See `psiphi.api.coverage`."""
        return self._trained().coverage

    # --- Acting on a task --------------------------------------------------------------------------------------------------

    @property
    def w(self) -> np.ndarray:
        """The task acted on: ``reward(s, a) = phi(s, a) @ w``."""
        known = self._trained()
        if self._task is not None:
            return self._task
        if not known.has_ego:
            raise UserError("There is no task to act on yet; call adapt with rewarded steps, or set_preferences with weights or an agent.")
        return np.asarray(known.model.w[-1])

    def set_preferences(self: Me, w: Any) -> Me:
        """Act on another task: a weight per cumulant, or the id of a demonstrator who wants just that; None: the task it was trained on."""
        known = self._trained()
        if w is None:
            self._task = None
            return self
        if isinstance(w, str | int | np.integer) and not isinstance(w, bool):
            self._task = self.preferences[w if isinstance(w, str) else int(w)]
            return self
        array, d = np.asarray(doors.numbers(w, "The weights"), np.float32), known.model.w.shape[1]
        if array.shape != (d,) or not np.isfinite(array).all():
            raise UserError(f"The preferences have shape {array.shape}, expected {d} finite weights, one per cumulant.")
        self._task = array
        return self

    def adapt(self: Me, transitions: Any, inference: Inference = "bayes") -> Me:
        """Act on the task that these rewarded steps are of; nothing is trained, so it takes milliseconds.

        `transitions` are arrays (observations, actions, rewards), or (observations, actions, rewards, next observations, terminated)
        where cumulants are of whole steps; or a sequence of such tuples. "bayes" assumes that the task is some mixture of what the
        demonstrators want, and of what the agent itself was paid for, and does with few steps; "least-squares" assumes nothing. What is
        inferred is `w`; `explained` says how much of the rewards it explains, and if that is little, so does a sentence.

        >>> agent.adapt((obs, actions, rewards)).predict(obs[0])
        """
        known = self._trained()
        steps = self._experience(transitions)
        if inference not in ("bayes", "least-squares"):
            raise UserError(f"inference is {inference!r}, expected 'bayes' or 'least-squares'.")
        phi = in_chunks(answers.cumulants, known.model, list(steps[:4]))
        room = (0, (1 << max(len(phi) - 1, 0).bit_length()) - len(phi))  # few sizes, as each is compiled once
        self._task = np.asarray(_inferred(models.span(known.model), np.pad(phi, (room, (0, 0))), np.pad(steps.reward, room), inference))
        self.explained = explained(phi @ self._task, steps.reward)
        if not self.explained >= LITTLE:
            print(f"psiphi: {little_explained(self.explained, len(phi), inference)}", file=sys.stderr)
        return self

    explained: float = float("nan")
    """Of the rewards that `adapt` was given last, the share of their variance that the inferred task explains; nan: they never vary."""

    def _experience(self, transitions: Any) -> Experience:
        known = self._trained()
        obs, action, reward, *following = doors.steps(transitions)
        batch, _ = as_batch(obs, known.spec)
        rewards = np.atleast_1d(np.asarray(doors.numbers(reward, "The rewards"), np.float32))
        if rewards.shape != (len(batch),) or not np.isfinite(rewards).all():
            raise UserError(f"The rewards have shape {rewards.shape}, expected {len(batch)} finite numbers, one per observation.")
        next_obs, terminated = following or (None, False)
        shifted = doors.numbers(action, "The actions") - known.first_action
        return Experience(*self._steps(batch, shifted, next_obs, terminated), reward=rewards)  # pyright: ignore[reportCallIssue]

    def predict(self, obs: Any, deterministic: bool = True) -> Any:
        """The action on the task, by GPI over all known policies: one for an observation, an array for a batch."""
        known = self._trained()
        batch, alone = as_batch(obs, known.spec)
        values = in_chunks(answers.policy_values, known.model, [batch], self.w).max(axis=1)
        if not deterministic:
            values = values + known.temperature * self._random().gumbel(size=values.shape)
        action = known.first_action + values.argmax(axis=-1)
        return int(action[0]) if alone else action

    def _random(self) -> np.random.Generator:
        if not hasattr(self, "_generator"):
            self._generator = np.random.default_rng(getattr(self, "seed", 0))
        return self._generator

    def explain(self, obs: Any) -> Explanation:
        """Whom GPI follows in one state, and why: what every known policy promises on the task, by action and by cumulant; print it."""
        known = self._trained()
        batch, alone = as_batch(obs, known.spec)
        if not alone:
            raise UserError(f"explain takes one observation, of shape {known.spec.obs_shape}, but a batch of {len(batch)} was given.")
        values = np.asarray(answers.policy_values(known.model, batch, self.w))[0]
        parts = np.asarray(answers.contributions(known.model, batch[0], self.w))
        head, action = np.unravel_index(values.argmax(), values.shape)
        best = parts[np.arange(len(values)), values.argmax(axis=1)]
        names = (known.names, known.actions)
        return Explanation(known.first_action + int(action), known.policies[head], known.policies, values, best, self.w, *names)


def reward_of(known: Known, agent: AgentId, form: Form | None = None, caution: float | None = None) -> Reward:
    """What an agent is inferred to be paid, as `Learned.reward` hands it out."""
    k = position(known.agents, agent)
    if form not in (None, "wants", "behaviour"):
        raise UserError(f'form is {form!r}, expected "wants" or "behaviour".')
    share = _of(known.caution, k) if caution is None else caution
    if not 0 <= share <= MOST_CAUTION:
        raise UserError(f"caution is {share}, expected a number from 0 to {MOST_CAUTION:g}.")
    usual = known.form_of(k) if caution is None else known.form
    return Reward(known.model, known.spec, agent, k, form or usual, known.gamma, share, asked=form is not None)


def _of(numbers: Sequence[float], k: int) -> float:
    return float(numbers[k]) if len(numbers) else 0.0


LITTLE = 0.5
"""A task that explains less of the variance of the rewards it was inferred from is not known well enough to act on."""


def explained(predicted: np.ndarray, reward: np.ndarray) -> float:
    """R^2; nan where the rewards never vary."""
    spread = float(np.var(reward))
    return 1.0 - float(np.mean(np.square(reward - predicted))) / spread if spread > 0 else float("nan")


def little_explained(share: float, steps: int, inference: str) -> str:
    """What to say of a task that is not known well enough."""
    if np.isnan(share):
        return f"the rewards of these {steps} steps are all the same, so they do not say what the task is."
    other = " or inference='least-squares', which assumes nothing of the demonstrators," if inference == "bayes" else ""
    return (
        f"the task inferred explains {max(share, 0.0):.2f} of the variance of these {steps} rewards (expected at least {LITTLE}), "
        f"so acting on it is a guess; more steps,{other} may help, or the cumulants do not show what is paid here."
    )


@partial(jax.jit, static_argnames="inference")
def _inferred(prior: tasks.Prior, phi: Any, reward: Any, inference: Inference) -> jax.Array:
    """The task's preferences; rows of zeros say nothing."""
    if inference == "least-squares":
        return tasks.least_squares(phi, reward, RIDGE)
    stats = tasks.observe_batch(tasks.no_experience(phi.shape[1]), phi, reward, jnp.any(phi != 0, axis=1).astype(jnp.float32))
    return tasks.posterior(stats, prior).mean


def check_fits(demos: Demonstrations, shape: tuple[int, ...], num_actions: int) -> None:
    """One sentence for demonstrations of another world."""
    if demos.obs.shape[1:] != shape:
        raise UserError(f"The demonstrations' observations have shape {demos.obs.shape[1:]}, expected {shape}.")
    if demos.num_actions > num_actions:
        raise UserError(f"The demonstrations have {demos.num_actions} actions, expected at most {num_actions}.")


def known_from(model: Model, lens: Lens, demos: Demos | None, agents: tuple[AgentId, ...], **facts: Any) -> Known:
    """A model together with what it says about the demonstrations ``[K, M]``; `facts` are further fields of `Known`."""
    from psiphi.api import coverage

    if demos is None or not agents:  # no demonstrator was watched
        nothing = coverage.Coverage({}, 1.0, model.net.num_actions)
        return Known(
            model=model, lens=lens, agents=(), num_actions=model.net.num_actions, likeness=np.zeros((0, 0)), coverage=nothing, **facts
        )
    seen = coverage.measure(model, demos, agents)
    return Known(
        model=model, lens=lens, agents=agents, num_actions=model.net.num_actions, likeness=likeness(model, demos), coverage=seen, **facts
    )


def likeness(model: Model, demos: Demos, steps: int = 4_096) -> np.ndarray:
    """[K, K]: correlation of the inferred rewards over everybody's steps, as many of each; 0 where one never changes."""
    each = max(steps // len(demos.count), 1)
    columns = [np.asarray(x) for x in (demos.steps.obs, demos.steps.action, demos.steps.next_obs, demos.steps.discount)]
    chosen = [np.linspace(0, count - 1, min(each, count)).astype(int) for count in np.asarray(demos.count)]
    some = [np.concatenate([x[k, index] for k, index in enumerate(chosen)]) for x in columns]
    table = in_chunks(all_rewards, model, some)
    moving = table.std(axis=0) > 0
    result = np.eye(table.shape[1])
    if moving.sum() > 1:
        result[np.ix_(moving, moving)] = np.corrcoef(table[:, moving].T)
    return result


@jax.jit
def all_rewards(model: Model, obs: Any, action: Any, next_obs: Any, discount: Any) -> jax.Array:
    """[B, K]: what every demonstrator would be paid for steps."""
    return models.rewards(model, *(jnp.asarray(x) for x in (obs, action, next_obs, discount)))
