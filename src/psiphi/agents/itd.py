"""Inverse temporal-difference learning (ITD), the paper's algorithm 1: what does each demonstrator want, and what follows from it?

Given demonstrations of K agents without rewards, ITD finds cumulants phi(s, a) that all share, successor features psi_k(s, a) and
preferences w_k, such that softmax(psi_k.w_k) imitates agent k (BC-Q) and psi_k is the discounted sum of phi along its behaviour
(inverse TD). phi.w_k is then agent k's reward. Everything that is not in the paper is a config field that says so and can be switched off.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int

from psiphi import configs, gpi, losses, optim, replay
from psiphi.agents import wants
from psiphi.configs import BatchSize, Count, Few, Layers, Positive, Share, Weight, Width, Within
from psiphi.cumulants import CumulantKind, Cumulants, Ends
from psiphi.errors import UserError
from psiphi.nets import PsiPhiNet, TorsoName, of_heads, taken
from psiphi.spaces import Range
from psiphi.types import NO_ACTION, Agent, Demonstration, Demos, EnvSpec, Metrics, Pace, Transition


@dataclass(frozen=True)
class ITDConfig:
    """The default is what works best on CoinGrid; `paper()` is the paper's losses, alternation and table of hyperparameters."""

    cumulants: CumulantKind = "learned(s,a)"
    """What phi is: a network of (s, a) (paper), a network of the state that a step leads to, what *changes* in the step, or features that
    are *given*. The last two leave nothing to extrapolate: what they lead to stands in `psiphi.agents.wants`."""
    levels: tuple[str, ...] = ("all",)
    """Of *changes*: the columns whose level may be wanted, not only their change; ("all",): every one."""
    ends: Ends = "state"
    """Of *changes*: what a true end shows, the state in which it came (to plan on) or only that it came (to read)."""
    through_psi: bool = False
    """Of *changes* and *given*: imitation goes through psi.w and trains psi, as where cumulants are learned, and the losses are the same as
    there; off: through values beside psi, for logs alone."""
    w_only: bool = False
    """Of these, with `through_psi`: imitation trains w alone, and psi is what follows from the cumulants on any agent's steps. Few
    demonstrations are enough to tell w, and they cannot be learned by heart."""
    num_cumulants: Annotated[int, Within(0, 4_096)] = 4
    """d, the number of learned cumulants (paper: 4 on CoinGrid, 8 on Highway, 64 on FruitBot); 0, from logs: one per agent, up to 16."""
    gamma: Share = 0.9
    """Discount factor (paper: 0.9 on CoinGrid); 0, from logs: chosen by how long the episodes are."""
    ensemble: Few = 2
    """Successor features per head (paper: 2)."""
    torso: TorsoName = "auto"
    """What reads the observation."""
    torso_hidden: Layers = (256, 256)
    """Dense layers of the torso."""
    phi_hidden: Layers = (128, 128)
    """Hidden layers of the cumulants."""
    psi_hidden: tuple[Width, ...] = (128,)
    """Hidden layers of each successor-feature head."""
    code: Annotated[int, Within(0, 256)] = 0
    """Extension: numbers in each agent's code z_k, for one network psi(s, a, z_k) in the place of a head per agent, so that size and cost
    do not grow with the agents; 0: heads (paper)."""
    agents_per_update: Annotated[int, Within(1, 4_096)] = 16
    """With codes: an update is of so many agents, drawn at random."""
    share_torso: bool = False
    """Whether phi reads the successor features' torso (paper) or has one of its own."""
    learning_rate: Positive = 2e-3
    """Adam's rate (paper: 1e-4 on CoinGrid)."""
    cosine: bool = True
    """Extension: the rate falls along a cosine over the run's updates; off: constant (paper)."""
    clip: Weight = 10.0
    """Extension: clip the gradient's global norm; 0: don't (paper)."""
    batch: BatchSize = 64
    """Demonstrated steps per demonstrator and update (paper: 64)."""
    alternate: bool = False
    """Two steps per update, BC-Q then ITD, each with its own Adam (paper), or one step on the weighted sum."""
    bc_weight: Weight = 0.3
    """Weight of BC-Q (paper: 1)."""
    l1_weight: Weight = 0.01
    """Weight of |w|_1 (paper: 0.05)."""
    itd_weight: Weight = 10.0
    """Weight of inverse TD (paper: 1)."""
    beta: Weight = 20.0
    """Extension: fixed inverse temperature of the demonstrators, with |w_k| = 1; 0: |w_k| is learned and plays that part (paper)."""
    lapse: Annotated[float, Within(0, 0.9)] = 0.0
    """Extension: the share of a demonstrator's steps that are uniform mistakes, where it starts; it is fitted for each. 0: none (paper).
    Without it, noise is read as indifference."""
    axis_preferences: bool = True
    """Extension: wherever d >= K, w_k is the k-th axis and is not learned; off: learned (paper). Transforming (phi, psi, w) together
    changes nothing else, so this only fixes the frame: cumulant k is what demonstrator k wants, and no two can share a dimension."""
    cross_policy: Weight = 10.0
    """Extension: weight of expected-SARSA TD of *every* policy on transitions of any agent; 0: off (paper)."""
    cross_policy_on: Literal["experience", "pooled", "both"] = "experience"
    """Whose transitions: the ego's reward-free experience, or, offline with logs alone, the pool of all demonstrations, or as many of
    both."""
    cross_batch: BatchSize = 256
    """Transitions per update for the above."""
    imagined: Annotated[int, Within(0, 256)] = 0
    """Extension: heads for preferences that no agent has, beside the demonstrators'. Each keeps the preferences that the network starts
    with and learns the best policy for them by Q-learning on psi, on the transitions of cross-policy evaluation and with its weight. GPI
    then has more policies to choose from; 0: none (paper)."""
    pursue: Share = 0.0
    """Extension: the share of the ego's steps in which it pursues the imagined preferences in turn, by GPI over all heads, and
    does not act at random; 0: always at random (paper: not said). No reward is read."""
    anchor: Weight = 10.0
    """Extension: weight of psi_k.w_k = 0 where a demonstration truly ends; 0: off (paper)."""
    sparsity: Weight = 0.6
    """Extension: weight of the sparse-reward prior that picks one among rewards equal up to shaping; 0: off (paper)."""
    sparsity_scale: Weight = 5.0
    """Its scale: log(1 + scale |phi_i|)."""
    sparsity_ramp: Weight = 0.5
    """It grows from 0 to its full weight over this part of the run's updates."""
    nonnegative: Weight = 0.0
    """Extension: weight of the prior that no agent is paid less than nothing, which grows along the same ramp; 0: off (paper). Where an
    episode can end in ways that were not demonstrated, a learner that is paid to go on does not look for them."""
    ema: Share = 0.02
    """Extension: targets, and the network that is deployed, follow by a moving average at this rate; 0: periodic copies (paper)."""
    target_period: Count = 1_000
    """Updates between copies where `ema` is 0 (paper: 1000 on CoinGrid)."""
    mirror: bool = True
    """Extension: show half of each batch through the environment's symmetry, if it declares one."""
    replay_size: Count = 40_000
    """How many of the ego's steps are remembered."""

    GONE = configs.RUN_FACTS

    def __post_init__(self):
        configs.check(self)


SPACE = {
    "learning_rate": Range(2e-4, 1e-2, log=True),
    "bc_weight": Range(0.1, 3.0, log=True),
    "itd_weight": Range(1.0, 100.0, log=True),
    "cross_policy": Range(1.0, 100.0, log=True),
    "sparsity": Range(0.01, 2.0, log=True),
    "ema": Range(0.005, 0.2, log=True),
}
"""Where `psiphi tune` looks."""


def paper(config: ITDConfig = ITDConfig()) -> ITDConfig:  # noqa: B008 - a frozen value
    """The paper's CoinGrid column, and nothing it does not print."""
    return replace(
        config,
        num_cumulants=4, gamma=0.9, ensemble=2, torso="impala-shallow", torso_hidden=(256,), phi_hidden=(256, 128), psi_hidden=(512, 256),
        share_torso=True, learning_rate=1e-4, cosine=False, clip=0.0, batch=64, alternate=True, bc_weight=1.0, l1_weight=0.05,
        itd_weight=1.0, beta=0.0, cumulants="learned(s,a)", lapse=0.0, axis_preferences=False, cross_policy=0.0, anchor=0.0, sparsity=0.0,
        nonnegative=0.0, ema=0.0, target_period=1_000, mirror=False,
    )  # fmt: skip


STRETCH = 128
"""Updates for which an environment pursues one imagined preference before it takes the next."""


class State(NamedTuple):
    """All that ITD knows: the two networks, its optimisers, and what it remembers."""

    net: PsiPhiNet
    target: PsiPhiNet
    optimiser: Any
    demos: Demos | None
    seen: Array
    """Steps of each demonstrator ever added; the ring of demonstrations overwrites its oldest."""
    experience: Any
    count: Array
    ramp: Array
    """Updates until the priors count in full."""


class Predictions(NamedTuple):
    """One forward pass over a batch of demonstrations ``[K, B]`` and, where cross-policy evaluation is on, of transitions ``[X]``."""

    psi: Float[Array, "K B E A d"]
    phi: Float[Array, "K B A_or_1 d"]
    end_psi: Float[Array, "K B E A d"]
    next_psi: Float[Array, "K B E A d"]
    cross_psi: Float[Array, "X K E A d"]
    cross_phi: Float[Array, "X A_or_1 d"]
    cross_next_psi: Float[Array, "X K E A d"]
    cross_policies: Float[Array, "X K A"] | None = None
    """What each demonstrator would do where a transition leads to, where that is known better than by its psi."""


def preferences(config: ITDConfig, w: Float[Array, "heads d"]) -> Float[Array, "heads d"]:
    """The preferences in use: of unit length where the inverse temperature is fixed; 1 in the paper's single-task setting, K = d = 1."""
    if has_given(config):
        return w
    if w.shape == (1, 1):
        return jnp.ones_like(w)
    if config.axis_preferences and w.shape[0] <= w.shape[1]:
        return jnp.eye(w.shape[0], w.shape[1])
    return w / jnp.linalg.norm(w, axis=-1, keepdims=True) if config.beta else w


def has_given(config: ITDConfig) -> bool:
    """Whether the cumulants are not learned."""
    return config.cumulants in ("changes", "given")


def watches(config: ITDConfig) -> bool:
    """Whether it learns from demonstrations: always, unless only imagined preferences are left."""
    return config.bc_weight > 0 or config.itd_weight > 0 or not config.imagined


def inverse_temperature(config: ITDConfig) -> float:
    return config.beta or 1.0


def demonstrators(net: PsiPhiNet, agents: int) -> PsiPhiNet:
    """The network with the demonstrators' heads only."""
    return of_heads(net, lambda x: x[:agents])  # pyright: ignore[reportReturnType]


def some_heads(net: PsiPhiNet, whose: Int[Array, " n"] | None) -> PsiPhiNet:
    """The network with these heads only, of all if None."""
    return net if whose is None else of_heads(net, lambda x: x[whose])  # pyright: ignore[reportReturnType]


def drawn_agents(config: ITDConfig, agents: int, key: Array) -> Int[Array, " n"] | None:
    """Whom an update with codes is of; None, with heads: everybody. An agent may be drawn twice, so that few cost as much as many."""
    return jax.random.randint(jax.random.fold_in(key, 1), (config.agents_per_update,), 0, agents) if config.code else None


def predict(net: PsiPhiNet, target: PsiPhiNet, demo: Demonstration, cross: Transition) -> Predictions:
    """Everything the losses compare; what a set of losses does not use, the compiler leaves out."""
    agents, batch = demo.action.shape
    flat = lambda x: x.reshape(agents * batch, *x.shape[2:])  # noqa: E731
    fold = lambda x: x.reshape(agents, batch, *x.shape[1:])  # noqa: E731
    now, here = net.features(flat(demo.obs)), net.features(cross.obs)
    step = Demonstration(*map(flat, demo))
    return Predictions(
        psi=net.own_psi(fold(now)),
        phi=fold(net.phi_table(step.obs, step.action, step.next_obs, step.discount, now)),
        end_psi=net.own_psi(fold(net.features(flat(demo.next_obs)))),
        next_psi=target.own_psi(fold(target.features(flat(demo.next_obs)))),
        cross_psi=net.psi(here),
        cross_phi=net.phi_table(cross.obs, cross.action, cross.next_obs, cross.discount, here),
        cross_next_psi=target.psi(target.features(cross.next_obs)),
    )


def imitation(config: ITDConfig, p: Predictions, w: Array, demo: Demonstration, lapse: Array | None = None) -> Array:
    """L_BC-Q, averaged over demonstrators, steps and ensemble."""
    psi = jax.lax.stop_gradient(p.psi) if config.w_only else p.psi
    if lapse is not None:
        return wants.imitation(jnp.einsum("kbead,kd->kbea", psi, w), demo.action, lapse, inverse_temperature(config))
    per_member = jax.vmap(losses.bc_q, (0, None, None, None))
    per_step = jax.vmap(per_member, (0, None, 0, None))
    return jnp.mean(jax.vmap(per_step, (0, 0, 0, None))(psi, w, demo.action, inverse_temperature(config)))


def consistency(config: ITDConfig, p: Predictions, demo: Demonstration) -> Array:
    """L_ITD. A step whose next action was not seen says nothing, unless the demonstration truly ended there."""

    def one(psi: Array, phi: Array, next_psi: Array, d: Demonstration) -> Array:
        error = jax.vmap(losses.itd, (0, None, 0, None))
        return jnp.mean(jax.vmap(losses.squared)(error(psi[:, d.action], phi, next_psi[:, d.next_action], config.gamma * d.discount)))

    known = (demo.next_action != NO_ACTION) | (demo.discount == 0)
    return jnp.mean(known * jax.vmap(jax.vmap(one))(p.psi, taken(p.phi, demo.action), p.next_psi, demo))


def cross_evaluation(config: ITDConfig, p: Predictions, w: Array, cross: Transition, weight: Array) -> Array:
    """Every demonstrator's psi on a transition of any agent; each ensemble member is evaluated under the policy of its neighbour, or under
    `cross_policies`."""

    def one(psi: Array, phi: Array, next_psi: Array, w_k: Array, c: Transition, known: Array | None) -> Array:
        soft = jax.nn.softmax(inverse_temperature(config) * jnp.roll(next_psi, 1, axis=0) @ jax.lax.stop_gradient(w_k))
        policy = soft if known is None else jnp.broadcast_to(known, soft.shape)
        error = jax.vmap(losses.cross_policy, (0, None, 0, 0, None))
        return jnp.mean(jax.vmap(losses.squared)(error(psi[:, c.action], phi, next_psi, policy, config.gamma * c.discount)))

    per_step = jax.vmap(jax.vmap(one, (0, None, 0, 0, None, 0)), (0, 0, 0, None, 0, 0))
    phi = taken(p.cross_phi, cross.action)
    return jnp.mean(weight[:, None] * per_step(p.cross_psi, phi, p.cross_next_psi, w, cross, p.cross_policies))


def imagination(config: ITDConfig, net: PsiPhiNet, target: PsiPhiNet, cross: Transition) -> Array:
    """Q-learning on the psi of the imagined heads, the last, on transitions of any agent: what follows is the best that any head knows, as
    in GPI. The error counts as a whole and by what it comes to under the head's own preferences."""
    mine = of_heads(net, lambda x: x[-config.imagined :])
    w = jax.lax.stop_gradient(mine.w)
    psi, next_psi = mine.psi(mine.features(cross.obs)), target.psi(target.features(cross.next_obs))
    phi = net.cumulants(cross.obs, cross.action, cross.next_obs, cross.discount)

    def one(psi: Array, w_m: Array, phi: Array, next_psi: Array, c: Transition) -> Array:
        head, action = gpi.best(next_psi, lambda p: p @ w_m)
        error = jax.vmap(losses.itd, (0, None, 0, None))(psi[:, c.action], phi, next_psi[head, :, action], config.gamma * c.discount)
        return jnp.mean(jax.vmap(losses.squared)(error)) / w_m.size + jnp.mean(jnp.square(error @ w_m))

    return jnp.mean(jax.vmap(jax.vmap(one, (0, 0, None, None, None)), (0, None, 0, 0, 0))(psi, w, phi, next_psi, cross))


def anchoring(p: Predictions, w: Array, demo: Demonstration) -> Array:
    """Nothing is left to gain where a demonstration truly ends; an end that was not seen (no observation of it) says nothing."""
    per_step = jax.vmap(jax.vmap(losses.terminal_anchor, (0, None)), (0, None))
    left = jax.vmap(per_step)(p.end_psi, w)
    seen = (demo.discount == 0) & (demo.next_action != NO_ACTION)
    return jnp.mean(seen[..., None, None] * jnp.square(left))


def sparseness(config: ITDConfig, p: Predictions, cross: Transition) -> Array:
    """The sparse-reward prior on every cumulant, at transitions of any agent; cumulants that no agent needs fall silent.

    Not at the demonstrators' own steps: there the shaping that hides a reward (minus the value) looks sparser than the reward itself.
    Per demonstrator, as the losses that it must balance are means over demonstrators.
    """
    per_cumulant = jax.vmap(jax.vmap(losses.sparse, (0, None)), (0, None))
    total = jnp.sum(per_cumulant(taken(p.cross_phi, cross.action), config.sparsity_scale), axis=1)
    return jnp.mean(total) / p.phi.shape[0]


def costs(p: Predictions, w: Array, cross: Transition) -> Array:
    """How far every demonstrator's reward is below nothing, at transitions of any agent."""
    reward = jnp.einsum("xd,kd->xk", taken(p.cross_phi, cross.action), jax.lax.stop_gradient(w))
    return jnp.mean(jax.vmap(jax.vmap(losses.negative))(reward))


def joint_loss(
    net: PsiPhiNet, target: PsiPhiNet, demo: Demonstration, cross: Transition, weight: Array, ramp: Array, config: ITDConfig
) -> tuple[Array, Metrics]:
    """The weighted sum of all terms, and each of them; `ramp` is the share in which the priors count by now."""
    if net.value_heads is not None:
        return wants.joint_loss(net, target, demo, cross, ramp, config)
    return weighed(predict(net, target, demo, cross), net, demo, cross, weight, ramp, config)


def weighed(
    p: Predictions, net: PsiPhiNet, demo: Demonstration, cross: Transition, weight: Array, ramp: Array, config: ITDConfig
) -> tuple[Array, Metrics]:
    """The same of what was predicted already."""
    w = preferences(config, net.w)
    terms = {
        "bc_q": (config.bc_weight, lambda: imitation(config, p, w, demo, net.lapse)),
        "l1": (config.l1_weight, lambda: jnp.mean(jax.vmap(losses.l1)(w))),
        "itd": (config.itd_weight, lambda: consistency(config, p, demo)),
        "cross_policy": (config.cross_policy, lambda: cross_evaluation(config, p, w, cross, weight)),
        "anchor": (config.anchor, lambda: anchoring(p, w, demo)),
        "sparsity": (config.sparsity, lambda: ramp * sparseness(config, p, cross)),
        "nonnegative": (config.nonnegative, lambda: ramp * costs(p, w, cross)),
    }
    values = {name: (weight, term()) for name, (weight, term) in terms.items() if configs.on(weight)}
    total = sum((weight * value for weight, value in values.values()), start=jnp.zeros(()))
    return total, {name: value for name, (_, value) in values.items()} | diagnostics(p, w, demo)


def diagnostics(p: Predictions, w: Array, demo: Demonstration) -> Metrics:
    """What tells, without labels, whether phi means anything.

    `rank` is the effective number of directions phi uses. `signal` is the inferred reward's root mean square on each demonstrator's own
    steps over the spread of its values: shaping that cancels the reward along its own paths brings it to zero.
    """
    values = jnp.einsum("kbead,kd->kbea", p.psi, w)
    reward = jnp.einsum("kbd,kd->kb", taken(p.phi, demo.action), w)
    spread = jnp.std(values.reshape(values.shape[0], -1), axis=1)
    signal = jnp.sqrt(jnp.mean(jnp.square(reward), axis=1)) / (spread + 1e-8)
    flat = p.phi.reshape(-1, p.phi.shape[-1])
    power = jnp.linalg.eigvalsh(jnp.cov(flat.T, bias=True).reshape(flat.shape[1], -1))
    share = jnp.maximum(power, 0) / (jnp.sum(jnp.maximum(power, 0)) + 1e-12)
    rank = jnp.exp(-jnp.sum(share * jnp.log(share + 1e-12)))
    hit = jnp.argmax(values, axis=-1) == demo.action[..., None]
    return {"accuracy": jnp.mean(hit), "rank": rank, "signal": jnp.min(signal)}


def collapse(signal: float, rank: float, agents: int) -> str | None:
    """A sentence if the diagnostics say that phi means little, else None. Healthy runs have a signal above 0.4 and a rank near K."""
    if not signal >= 0.1:
        return (
            f"the cumulants have collapsed: the inferred rewards are {signal:.2f} of the spread of the values they should explain "
            "(expected at least 0.1); more updates, fewer cumulants, a smaller sparsity weight, or cross-policy evaluation on more varied "
            "transitions may help."
        )
    if rank < 0.75 * agents:
        return (
            f"the cumulants use about {rank:.1f} directions for {agents} demonstrators: some share one, "
            "because they want the same or because they were not told apart."
        )
    return None


def pooled(demo: Demonstration, batch: int) -> tuple[Transition, Array]:
    """The demonstrators' own steps as transitions of any agent, for cross-policy evaluation from logs alone, and the weight of each.

    A step that ends the task does so for everybody: it counts as much as any other.
    """
    flat = lambda x: jnp.swapaxes(x, 0, 1).reshape(-1, *x.shape[2:])[:batch]  # noqa: E731 - takes of every demonstrator alike
    action = flat(demo.action)
    blank = jnp.zeros(action.shape)
    return Transition(flat(demo.obs), action, blank, flat(demo.discount), flat(demo.next_obs), blank.astype(bool)), jnp.ones(action.shape)


def check(config: ITDConfig) -> None:
    """Refuse what would silently not be done."""
    _check_cumulants(config)
    extensions = ("cross_policy", "anchor", "sparsity", "nonnegative")
    ignored = [name for name in extensions if configs.on(getattr(config, name))]
    if config.alternate and ignored:
        raise UserError(
            f"alternate=True is algorithm 1 as printed and has no {', '.join(ignored)}; set their weights to 0 or alternate to False."
        )


def _check_cumulants(config: ITDConfig) -> None:
    if config.code and config.axis_preferences and not has_given(config):
        raise UserError("code is above 0 and axis_preferences is True, expected one of the two: axes are for few agents with a head each.")
    if config.through_psi and not has_given(config):
        raise UserError(
            f"through_psi is True and cumulants is {config.cumulants!r}, expected 'changes' or 'given': learned ones always are."
        )
    if config.imagined and (
        config.code or config.alternate or not configs.on(config.cross_policy) or (has_given(config) and not config.through_psi)
    ):
        raise UserError(
            f"imagined is {config.imagined}, expected 0 with code, with alternate, without cross_policy, and for given cumulants without "
            "through_psi: imagined heads learn their psi in the same step and on the same transitions as the demonstrators'."
        )
    if config.pursue and not config.imagined:
        raise UserError(f"pursue is {config.pursue} and imagined is 0, expected imagined preferences to pursue.")
    if config.w_only and not config.through_psi:
        raise UserError("w_only is True and through_psi is False, expected both: else imitation is of values beside psi.")
    if config.code and config.alternate:
        raise UserError("code is above 0 and alternate is True, expected one of the two: algorithm 1 as printed has a head per agent.")
    if not config.num_cumulants and not has_given(config):
        raise UserError("num_cumulants is 0, expected at least 1: how many there are is chosen only where psiphi.ITD learns from logs.")


def initial_net(config: ITDConfig, spec: EnvSpec, heads: int, key: Array, given: Cumulants | None = None) -> PsiPhiNet:
    """The network before anything is learned; `given` are the cumulants that `config` does not learn."""
    _check_cumulants(config)
    if has_given(config) != (given is not None):
        raise UserError(f"cumulants is {config.cumulants!r}, but {'none are' if given is None else 'some are'} given to the network.")
    return PsiPhiNet(
        spec,
        heads=heads,
        ensemble=config.ensemble,
        num_cumulants=config.num_cumulants,
        torso_name=config.torso,
        torso_hidden=config.torso_hidden,
        phi_hidden=config.phi_hidden,
        psi_hidden=config.psi_hidden,
        share_torso=config.share_torso,
        key=key,
        of_next=config.cumulants == "learned(s')",
        given=given,
        lapse=config.lapse,
        code=config.code,
        own_values=not config.through_psi,
    )


Initial = Callable[[Array, int], PsiPhiNet]
"""``initial(key, heads)``: a network before anything is learned."""


def make_optimiser(config: ITDConfig, pace: Pace):
    return optim.adam(config.learning_rate, clip=config.clip, cosine_steps=pace.updates if config.cosine else 0)


def ramp_length(config: ITDConfig, pace: Pace) -> Array:
    """Updates until the priors count in full, at least one."""
    return jnp.asarray(max(config.sparsity_ramp * pace.updates, 1), jnp.float32)


def next_target(config: ITDConfig, target: PsiPhiNet, net: PsiPhiNet, count: Array) -> PsiPhiNet:
    return optim.follow(target, net, config.ema) if configs.on(config.ema) else optim.refresh(target, net, count, config.target_period)


def deployed(config: ITDConfig, state: Any) -> PsiPhiNet:
    """The network to use: the moving average where there is one."""
    return state.target if configs.on(config.ema) else state.net


def imitates(config: ITDConfig, state: Any, k: int) -> Callable[[Array, Array], Array]:
    """Demonstrator k's policy in a training state."""
    net = deployed(config, state)
    w = preferences(config, net.w)

    def policy(obs: Array, key: Array) -> Array:
        del key
        return jnp.argmax(jnp.mean(net.task_values(obs, w)[:, k], axis=1), axis=-1)

    return policy


def uses_any_steps(config: ITDConfig) -> bool:
    return any(map(configs.on, (config.cross_policy, config.sparsity, config.nonnegative)))


def sample(
    config: ITDConfig, spec: EnvSpec, experience: Any, state: Any, key: Array, agents: Int[Array, " n"] | None = None
) -> tuple[Demonstration, Transition, Array]:
    """A batch of demonstrations ``[K, B]`` (of `agents` only, if some are named), one of any agent's transitions ``[X]``, and weights."""
    demo_key, cross_key, mirror_demo_key, mirror_cross_key = jax.random.split(key, 4)
    demo = replay.sample_demonstrations(state.demos, demo_key, config.batch, agents)
    demo = replay.mirror_demonstrations(spec, demo, mirror_demo_key) if config.mirror else demo
    if has_given(config) and config.cross_policy_on == "pooled":
        cross = replay.sample_anybody(state.demos, cross_key, config.cross_batch)
        return demo, cross, jnp.ones(cross.action.shape)
    if not uses_any_steps(config) or config.cross_policy_on == "pooled":
        return demo, *pooled(demo, config.cross_batch if uses_any_steps(config) else 0)
    cross = experienced(config, spec, experience, state, cross_key, mirror_cross_key)
    if config.cross_policy_on == "both":
        shown = replay.sample_anybody(state.demos, jax.random.fold_in(cross_key, 1), config.cross_batch)
        cross = jax.tree.map(lambda x, y: jnp.concatenate([x, y]), cross, shown)
    return demo, cross, jnp.ones(cross.action.shape)


def experienced(config: ITDConfig, spec: EnvSpec, experience: Any, state: Any, key: Array, mirror_key: Array) -> Transition:
    """A batch of the ego's own transitions."""
    steps = experience.sample(state.experience, key).experience
    cross = replay.look_up(state.experience, jax.tree.map(lambda x: x[:, 0], steps))
    return replay.mirror(spec, cross, mirror_key) if config.mirror else cross


def append(state: Any, agent: Int[Array, " n"], steps: Demonstration) -> Any:
    """Online demonstrations: add `steps[i]` of demonstrator `agent[i]` (-1: an empty slot) to what the state remembers."""
    demos, seen = replay.add_demonstrations(state.demos, agent, steps, state.seen)
    return state._replace(demos=demos, seen=seen)


def alternating_step(
    config: ITDConfig, optimiser: Any, agents: int, state: Any, demo: Demonstration, cross: Transition
) -> tuple[PsiPhiNet, Any, Metrics]:
    """Algorithm 1 as printed: BC-Q (with L1 on w) for psi and w, then ITD for phi and psi, each with its own Adam."""

    def imitate(net: PsiPhiNet) -> tuple[Array, Metrics]:
        p = predict(demonstrators(net, agents), target, demo, cross)
        w = preferences(config, net.w[:agents])
        bc, l1 = imitation(config, p, w, demo, None if net.lapse is None else net.lapse[:agents]), jnp.mean(jax.vmap(losses.l1)(w))
        return config.bc_weight * bc + config.l1_weight * l1, {"bc_q": bc, "l1": l1} | diagnostics(p, w, demo)

    def explain(net: PsiPhiNet) -> tuple[Array, Metrics]:
        itd = consistency(config, predict(demonstrators(net, agents), target, demo, cross), demo)
        return config.itd_weight * itd, {"itd": itd}

    target = demonstrators(state.target, agents)
    first, second = state.optimiser[:2]
    gradients, bc_metrics = jax.grad(imitate, has_aux=True)(state.net)
    net, first = optim.step(optimiser, gradients, first, state.net)
    gradients, itd_metrics = jax.grad(explain, has_aux=True)(net)
    net, second = optim.step(optimiser, gradients, second, net)
    return net, (first, second), bc_metrics | itd_metrics


def make(config: ITDConfig, spec: EnvSpec, num_demonstrators: int, pace: Pace, initial: Initial | None = None) -> Agent:
    """ITD as an agent. While it learns it explores at random and ignores rewards; judged, it imitates demonstrators in turn.

    `initial` makes another network than `initial_net` does: one whose cumulants are given, say.
    """
    check(config)
    optimiser = make_optimiser(config, pace)
    experience = replay.make_experience(num_envs=pace.num_envs, size=config.replay_size, batch=config.cross_batch, n_step=1, spec=spec)

    def init(key: Array, demos: Demos | None) -> State:
        assert demos is not None or not num_demonstrators
        heads = num_demonstrators + config.imagined
        net = initial(key, heads) if initial else initial_net(config, spec, heads, key)
        optimiser_state = optim.start(optimiser, net)
        return State(
            net=net,
            target=net,
            optimiser=(optimiser_state, optimiser_state) if config.alternate else optimiser_state,
            demos=demos,
            seen=jnp.zeros(0, jnp.int32) if demos is None else demos.count,
            experience=experience.init(replay.blank_transition(spec)),
            count=jnp.zeros((), jnp.int32),
            ramp=ramp_length(config, pace),
        )

    def act(state: State, obs: Array, key: Array) -> Array:
        random = jax.random.randint(key, obs.shape[:1], 0, spec.num_actions)
        if not config.pursue:
            return random
        pursues = jax.random.bernoulli(jax.random.fold_in(key, 1), config.pursue, obs.shape[:1]) & (state.count > 0)
        return jnp.where(pursues, pursued(state, obs), random)

    def pursued(state: State, obs: Array) -> Array:
        """In each environment the GPI action for one of the imagined preferences; they take turns."""
        net = deployed(config, state)
        turn = (jnp.arange(obs.shape[0]) + state.count // STRETCH) % config.imagined
        return jax.vmap(gpi.action)(net.psi(net.features(obs)), net.w[num_demonstrators:][turn])

    def observe(state: State, rollout: Transition) -> State:
        return state._replace(experience=replay.remember(experience, state.experience, rollout))

    def update(state: State, key: Array) -> tuple[State, Metrics]:
        net, optimiser_state, metrics = (watched if num_demonstrators else alone)(state, key)
        count = state.count + 1
        target = next_target(config, state.target, net, count)
        return state._replace(net=net, target=target, optimiser=optimiser_state, count=count), metrics

    def watched(state: State, key: Array) -> tuple[PsiPhiNet, Any, Metrics]:
        whose = drawn_agents(config, num_demonstrators, key)
        demo, cross, weight = sample(config, spec, experience, state, key, whose)
        if config.alternate:
            return alternating_step(config, optimiser, num_demonstrators, state, demo, cross)
        ramp = optim.progress(state.count, state.ramp)

        def loss(net: PsiPhiNet) -> tuple[Array, Metrics]:
            if not config.imagined:
                return joint_loss(some_heads(net, whose), some_heads(state.target, whose), demo, cross, weight, ramp, config)
            theirs, target = (demonstrators(one, num_demonstrators) for one in (net, state.target))
            total, metrics = joint_loss(theirs, target, demo, cross, weight, ramp, config)
            more = imagination(config, net, state.target, cross)
            return total + config.cross_policy * more, metrics | {"imagined": more}

        return stepped(loss, state)

    def alone(state: State, key: Array) -> tuple[PsiPhiNet, Any, Metrics]:
        cross = experienced(config, spec, experience, state, *jax.random.split(key))

        def loss(net: PsiPhiNet) -> tuple[Array, Metrics]:
            more = imagination(config, net, state.target, cross)
            return config.cross_policy * more, {"imagined": more}

        return stepped(loss, state)

    def stepped(loss: Callable[[PsiPhiNet], tuple[Array, Metrics]], state: State) -> tuple[PsiPhiNet, Any, Metrics]:
        gradients, metrics = jax.grad(loss, has_aux=True)(state.net)
        return *optim.step(optimiser, gradients, state.optimiser, state.net), metrics

    def policy(state: State, obs: Array, key: Array) -> Array:
        net = deployed(config, state)
        heads = num_demonstrators or config.imagined
        values = net.task_values(obs, preferences(config, net.w[:heads]) if num_demonstrators else net.w)
        whose = jnp.arange(obs.shape[0]) % heads
        return jnp.argmax(jnp.mean(values, axis=2)[jnp.arange(obs.shape[0]), whose], axis=-1)

    return Agent(init, act, observe, update, policy)
