"""PsiPhi-learning, the paper's algorithm 2: learn a task of one's own faster by reusing what the demonstrators know.

ITD learns the demonstrators' psi_k, w_k and the shared phi from demonstrations. The ego's rewards ground phi (L_R), its own psi is
learned by L_Q and L_TD-psi, and it acts by generalised policy improvement over everybody's psi under its own preferences w_ego,
which are re-inferred by least squares before every update. The ego is the last head.
"""

from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from psiphi import configs, gpi, losses, optim, replay, spaces, tasks
from psiphi.agents import bc, following, itd
from psiphi.agents.itd import ITDConfig
from psiphi.configs import BatchSize, Few, Number, Share, Weight
from psiphi.errors import UserError
from psiphi.nets import PsiPhiNet, TorsoName, of_heads, taken
from psiphi.spaces import Range
from psiphi.types import Agent, Demonstration, Demos, EnvSpec, Metrics, Pace, Transition


@dataclass(frozen=True)
class PsiPhiConfig:
    """ITD's config and the ego's. The default is what works best; `paper()` is the paper's."""

    itd: ITDConfig = field(default_factory=ITDConfig)
    """The demonstrators' part, the network, the optimiser and the replay."""
    n_step: Few = 1
    """Steps of reward before L_Q bootstraps (paper: 8 on CoinGrid)."""
    batch: BatchSize = 256
    """The ego's transitions per update (paper: 64)."""
    reward_offset: float = 0.0
    """Extension: taken off every reward before anything is learned from it; 0: nothing (paper). Where it is good to go on, rewards that
    are high whatever one does hide those that depend on it. w_ego then explains what is left."""
    reward_weight: Weight = 10.0
    """Weight of L_R (paper: 1)."""
    q_weight: Weight = 10.0
    """Weight of L_Q (paper: 1)."""
    td_psi_weight: Weight = 10.0
    """Weight of L_TD-psi, on top of the paper's 1/d (paper: 1)."""
    epsilon: Share = 0.1
    """Share of random actions while learning; 1 until the first reward that is not zero."""
    temperature: Weight = 0.08
    """Extension: softness of the GPI policy in units of reward, which leads it out of circles; 0: greedy (paper)."""
    act_by_newest: bool = False
    """Whether the newest network acts while it learns, and not the moving average where there is one (paper: there is none). It changes
    with every update, so that it tries more; the policy that is judged stays the moving average."""
    act_by_member: bool = False
    """Extension: while it learns, each environment acts by one member of the ensemble and not by the most pessimistic one, so that what
    the members disagree on is tried (paper: not said)."""
    mirror_ego: bool = False
    """Extension: half of the ego's batch, too, is shown through the environment's symmetry, and the demonstrators' policies are evaluated
    on that very batch, which costs less (paper: not said)."""
    gpi_bootstrap: bool = True
    """Extension: the ego's next action is the GPI action over all heads; off: its own head's (L_Q) and the one it took (L_TD-psi)."""
    pessimistic_target: bool = True
    """Extension: bootstrap from the smaller ensemble value; off: each member from itself (paper)."""
    ego_from_demonstrator: bool = True
    """Extension: the ego's psi starts as a copy of the first demonstrator's."""
    follow: Share = 0.0
    """Extension: the share of the environments in which the ego, while it learns, does what a demonstrator would do there. It falls along a
    line to none over the first part of the run's updates; 0: the ego never does (paper). So it is paid where the demonstrators go."""
    followed: Share = 0.0
    """That part of all updates, those before the first step included; 0: a quarter."""
    follow_on: Share = 0.0
    """Extension: the share of the environments in which it goes on following them to the end (paper: none)."""
    stretch: Number = 0
    """Extension: an environment follows a demonstrator for so many updates, then it is drawn anew whether it follows one and whom; 0: the
    first environments follow one all the time. So the ego also tries what a demonstrator would do from where the ego itself has got to."""
    trust: Weight = 0.0
    """Extension: in GPI an action costs this much reward for every nat by which it would surprise the demonstrator who is followed, and the
    ego's own head pays as for the demonstrator who is worth most to it; 0: nothing (paper). So values that were never seen to be right do
    not lead away from what the demonstrators do. With a `guide` the clones are asked, while it acts and not where it bootstraps; the model
    that is saved has no clones and acts by its values alone."""
    trusted: Share = 0.0
    """Extension: over that part of the run's updates the trust in clones falls along a line to none, so that in the end the ego acts as the
    model that is saved; 0: it stays."""
    guide: TorsoName | Literal[""] = ""
    """Extension: whom the ego follows, and whose policies are evaluated on its steps, are clones of the demonstrators, each with a torso of
    this name, which none of the ego's losses reach; empty: softmax(psi_k.w_k), which shares its torso with the ego (paper)."""
    shield: Share = 0.0
    """Extension: how much of the demonstrators' gradient is kept from the torso that their heads share with the ego's; 0: nothing (paper),
    1: all of it, so that imitation cannot cost the ego anything."""
    task_memory: Share = 0.99
    """How much of the reward statistics survives an update; w_ego is their least-squares solution."""
    task_ridge: Weight = 1e-3
    """Ridge of that least squares."""
    ego_axis: bool = False
    """Extension: w_ego is the axis after the demonstrators' and is not inferred, as theirs are with `axis_preferences`; off: least squares
    (paper). The cumulant on that axis becomes the ego's reward. Inferred preferences are near 0 as long as no cumulant explains the
    rewards, and both L_R and L_Q are then almost silent: where rewards are rare, that does not end."""

    def __post_init__(self):
        configs.check(self)


SPACE = {
    **spaces.inside("itd", itd.SPACE),
    "reward_weight": Range(1.0, 100.0, log=True),
    "q_weight": Range(1.0, 100.0, log=True),
    "td_psi_weight": Range(1.0, 100.0, log=True),
    "epsilon": Range(0.01, 0.3, log=True),
}
"""Where `psiphi tune` looks."""


def paper(config: PsiPhiConfig = PsiPhiConfig()) -> PsiPhiConfig:  # noqa: B008 - a frozen value
    """The paper's CoinGrid column, and nothing it does not print."""
    return replace(
        config, itd=itd.paper(config.itd), n_step=8, batch=64, reward_weight=1.0, q_weight=1.0, td_psi_weight=1.0,
        temperature=0.0, gpi_bootstrap=False, pessimistic_target=False, ego_from_demonstrator=False,
    )  # fmt: skip


class State(NamedTuple):
    """ITD's state and the ego's reward statistics."""

    net: PsiPhiNet
    target: PsiPhiNet
    optimiser: Any
    demos: Demos | None
    seen: Array
    experience: Any
    count: Array
    ramp: Array
    """Updates until the priors count in full."""
    task: tasks.Statistics
    guide: Any = None
    """The clones and their optimiser, where they guide the ego."""


class Ego(NamedTuple):
    """A batch of the ego's experience: first steps, their n-step folds, and the action that followed where the episode went on."""

    step: Transition
    fold: Transition
    next_action: Array
    has_next: Array


class Others(NamedTuple):
    """A batch of what others showed: demonstrations ``[K, B]``, transitions of any agent ``[X]``, and the weights of the latter."""

    demo: Demonstration
    cross: Transition
    weight: Array


def w_ego(net: PsiPhiNet) -> Array:
    return net.w[-1]


def deployed(config: PsiPhiConfig, state: State) -> PsiPhiNet:
    """The network to use: the moving average where there is one, with the ego's preferences as they were inferred last."""
    net = itd.deployed(config.itd, state)
    return eqx.tree_at(lambda n: n.w, net, net.w.at[-1].set(w_ego(state.net)))


def ego_batch(config: PsiPhiConfig, sequence: Transition) -> Ego:
    """Split sequences ``[B, >= max(n, 2)]`` into what the ego's losses need."""
    sequence = sequence._replace(reward=sequence.reward - config.reward_offset)
    first = jax.tree.map(lambda x: x[:, 0], sequence)
    folded = replay.n_step(jax.tree.map(lambda x: x[:, : config.n_step], sequence), config.itd.gamma)
    return Ego(first, folded, sequence.action[:, 1], ~first.last)


def mirrored(spec: EnvSpec, ego: Ego, key: Array) -> Ego:
    """Half of the steps through the environment's symmetry, with all that came of them."""
    step, fold = (replay.mirror(spec, one, key) for one in (ego.step, ego.fold))
    followed = ego.step._replace(action=ego.next_action)
    return Ego(step, fold, replay.mirror(spec, followed, key).action, ego.has_next)


def own_axis(net: PsiPhiNet) -> Float[Array, " d"]:
    """The axis of the ego's cumulant, the one after the demonstrators'."""
    heads, cumulants = net.w.shape
    return jnp.eye(heads, cumulants)[-1]


def infer_task(
    config: PsiPhiConfig, net: PsiPhiNet, task: tasks.Statistics, step: Transition, phi: Array | None = None
) -> tuple[PsiPhiNet, tasks.Statistics]:
    """w_ego <- argmin_w L_R(phi, w): least squares on the recent batches, older ones fading because phi moves. `phi` is that of the
    steps, where it is known already."""
    kept = jax.tree.map(lambda x: config.task_memory * x, task)
    phi = net.cumulants(step.obs, step.action, step.next_obs, step.discount) if phi is None else phi
    task = tasks.observe_batch(kept, phi, step.reward)
    if config.ego_axis:
        return eqx.tree_at(lambda n: n.w, net, net.w.at[-1].set(own_axis(net))), task
    return eqx.tree_at(lambda n: n.w, net, net.w.at[-1].set(tasks.solve(task, config.task_ridge * task.count))), task


class Seen(NamedTuple):
    """The ego's steps through the network and its target."""

    phi: Float[Array, "B d"]
    psi: Float[Array, "B E A d"]
    """The ego's own head."""
    next_psi: Float[Array, "B heads E A d"]


def look(net: PsiPhiNet, target: PsiPhiNet, step: Transition) -> Seen:
    """What the ego's losses compare, by itself."""
    features = net.features(step.obs)
    phi = net.cumulants(step.obs, step.action, step.next_obs, step.discount, features)
    return Seen(phi, of_heads(net, lambda x: x[-1:]).psi(features)[:, 0], target.psi(target.features(step.next_obs)))


def look_at_all(net: PsiPhiNet, target: PsiPhiNet, demo: Demonstration, step: Transition) -> tuple[itd.Predictions, Seen]:
    """What the demonstrators' losses and the ego's compare, where every policy is evaluated on the ego's own steps: all in one pass.

    The losses are the same as apart; the compiler does not find out by itself what they share.
    """
    agents, batch = demo.action.shape
    first = agents * batch
    shown = Demonstration(*(x.reshape(first, *x.shape[2:]) for x in demo))
    join = lambda name: jnp.concatenate([getattr(shown, name), getattr(step, name)])  # noqa: E731
    theirs = lambda x: x[:first].reshape(agents, batch, *x.shape[1:])  # noqa: E731
    obs, next_obs = join("obs"), join("next_obs")
    features, next_features = net.features(obs), target.features(next_obs)
    phi = net.phi_table(obs, join("action"), next_obs, join("discount"), features)
    psi, next_psi = net.psi(features[first:]), target.psi(next_features[first:])
    own, own_target = itd.demonstrators(net, agents), itd.demonstrators(target, agents)
    predictions = itd.Predictions(
        psi=own.own_psi(theirs(features)),
        phi=theirs(phi),
        end_psi=own.own_psi(net.features(shown.next_obs).reshape(agents, batch, -1)),
        next_psi=own_target.own_psi(theirs(next_features)),
        cross_psi=psi[:, :agents],
        cross_phi=phi[first:],
        cross_next_psi=next_psi[:, :agents],
    )
    return predictions, Seen(taken(phi[first:], step.action), psi[:, -1], next_psi)


def ego_loss(net: PsiPhiNet, target: PsiPhiNet, ego: Ego, config: PsiPhiConfig, seen: Seen | None = None) -> tuple[Array, Metrics]:
    """L_R + L_Q + L_TD-psi / d. w_ego gets no gradient: it is inferred."""
    w = jax.lax.stop_gradient(w_ego(net))
    phi, psi, one_next = seen or look(net, target, ego.step)
    mine = jnp.take_along_axis(psi, ego.step.action[:, None, None, None], axis=2)[:, :, 0]
    n_next = one_next if config.n_step == 1 else target.psi(target.features(ego.fold.next_obs))
    value_next = bootstrap_value(config, n_next, w, reluctance(config, target, n_next, w))
    psi_next = bootstrap_psi(config, one_next, w, ego.next_action, reluctance(config, target, one_next, w))
    r = jax.vmap(losses.reward, (0, None, 0))(phi, w, ego.step.reward)
    per_member = jax.vmap(losses.q, (0, None, None, None, 0))
    q = jax.vmap(per_member, (0, None, 0, 0, 0))(mine, w, ego.fold.reward, ego.fold.discount, value_next)
    error = jax.vmap(jax.vmap(losses.td_psi, (0, None, 0, None)))
    td = error(mine, jax.lax.stop_gradient(phi), psi_next, config.itd.gamma * ego.step.discount)
    known = jnp.ones_like(ego.has_next) if config.gpi_bootstrap else ego.has_next | (ego.step.discount == 0)
    terms = {
        "reward": jnp.mean(jax.vmap(losses.squared)(r)),
        "q": jnp.mean(jnp.square(q)),
        "td_psi": jnp.mean(known[:, None] * jax.vmap(jax.vmap(losses.squared))(td)) / phi.shape[-1],
    }
    return config.reward_weight * terms["reward"] + config.q_weight * terms["q"] + config.td_psi_weight * terms["td_psi"], terms


def trust(config: PsiPhiConfig) -> gpi.Trust | None:
    """How much the demonstrators' heads are trusted; None where an action costs nothing, or what clones say."""
    return gpi.Trust(config.trust, itd.inverse_temperature(config.itd)) if config.trust and not config.guide else None


def reluctance(config: PsiPhiConfig, net: PsiPhiNet, psi: Float[Array, "B heads E A d"], w: Float[Array, " d"]) -> Array | None:
    """``[B, heads, A]``: to be added to values when an action is chosen; None where nothing is."""
    demonstrators, trusted = psi.shape[1] - 1, trust(config)
    if trusted is None or not demonstrators:
        return None
    theirs = itd.preferences(config.itd, net.w[:demonstrators])
    return jax.vmap(lambda one: gpi.reluctance(one, theirs, lambda p: p @ w, trusted))(psi)


def bootstrap_value(config: PsiPhiConfig, next_psi: Array, w: Array, cost: Array | None = None) -> Array:
    """``[B, E]``: the target's max over actions of the ego's value, or of the best over all heads."""
    values = next_psi @ w  # [B, heads, E, A]
    if cost is not None:
        best = values if config.gpi_bootstrap else values[:, -1:]
        best = jax.vmap(lambda x, c: x[_chosen(jnp.min(x, axis=2), c)])(jnp.swapaxes(best, 2, 3), cost[:, -best.shape[1] :])
    else:
        values = jnp.max(values, axis=1) if config.gpi_bootstrap else values[:, -1]
        best = jnp.max(values, axis=-1)
    return jnp.broadcast_to(jnp.min(best, axis=1, keepdims=True), best.shape) if config.pessimistic_target else best


def bootstrap_psi(config: PsiPhiConfig, next_psi: Array, w: Array, next_action: Array, cost: Array | None = None) -> Array:
    """``[B, E, d]``: the target's successor features of the best head at the GPI action, or the ego's at the action it took."""
    if not config.gpi_bootstrap:
        return jnp.take_along_axis(next_psi[:, -1], next_action[:, None, None, None], axis=2)[:, :, 0]

    def one(psi: Array, cost: Array | None) -> Array:
        head, action = _chosen(gpi.head_values(psi, lambda p: p @ w), cost)
        return psi[head, :, action]

    return jax.vmap(one)(next_psi, cost)


def _chosen(values: Float[Array, "heads A"], cost: Array | None) -> tuple[Array, Array]:
    """The head and the action of the largest value."""
    values = values if cost is None else values + cost
    head, action = jnp.unravel_index(jnp.argmax(values), values.shape)
    return head, action


def shielded(net: PsiPhiNet, share: float) -> PsiPhiNet:
    """The same network, but its torso lets only the rest of a gradient through."""
    if not share:
        return net
    less = lambda x: (1 - share) * x + share * jax.lax.stop_gradient(x) if eqx.is_inexact_array(x) else x  # noqa: E731
    return eqx.tree_at(lambda n: n.torso, net, jax.tree.map(less, net.torso))


def make(config: PsiPhiConfig, spec: EnvSpec, num_demonstrators: int, pace: Pace, initial: itd.Initial | None = None) -> Agent:
    """PsiPhi-learning as an agent. With no demonstrator it is Q-learning by successor features: no one to watch, one head."""
    inner = config.itd
    itd.check(inner)
    if inner.alternate and config.shield:
        raise UserError(f"alternate=True is algorithm 2 as printed, but shield is {config.shield}, expected 0.")
    if config.guide and (inner.alternate or (itd.has_given(inner) and not inner.through_psi)):
        raise UserError(
            f"guide is {config.guide!r}, but clones are evaluated by their successor features in one joint step; expected alternate=False "
            "and, with given cumulants, through_psi=True."
        )
    if config.trusted and config.trust and not config.guide:
        raise UserError(f"trusted is {config.trusted}, but only trust in clones can fall; expected a guide, or trusted=0.")
    if inner.code:
        raise UserError(f"itd.code is {inner.code}, expected 0: codes are for logs alone, PsiPhi-learning has a head per agent.")
    if inner.imagined:
        raise UserError(f"itd.imagined is {inner.imagined}, expected 0: imagined heads are for ITD, PsiPhi-learning has a task of its own.")
    if inner.alternate and not num_demonstrators:
        raise UserError("alternate=True takes turns with the demonstrators' losses, but there is no demonstrator; set it to False.")
    if config.ego_axis and (itd.has_given(inner) or inner.num_cumulants <= num_demonstrators):
        raise UserError(
            f"ego_axis is True and there are {inner.num_cumulants} cumulants ({inner.cumulants}) beside {num_demonstrators} demonstrators, "
            "expected learned ones and more of them than demonstrators: the ego's own is one more."
        )
    optimiser = itd.make_optimiser(inner, pace)
    cloning = bc.BCConfig(config.guide or inner.torso, inner.torso_hidden, inner.psi_hidden)
    guided = bool(config.guide) and num_demonstrators > 0
    experience = replay.make_experience(
        num_envs=pace.num_envs, size=inner.replay_size, batch=config.batch, n_step=max(config.n_step, 2), spec=spec
    )

    def init(key: Array, demos: Demos | None) -> State:
        assert demos is not None or not num_demonstrators
        net = initial(key, num_demonstrators + 1) if initial else itd.initial_net(inner, spec, num_demonstrators + 1, key)
        if config.ego_from_demonstrator:
            net = eqx.tree_at(lambda n: n.psi_heads, net, jax.tree.map(lambda x: x.at[-1].set(x[0]), net.psi_heads))
        net = eqx.tree_at(lambda n: n.w, net, net.w.at[-1].set(0.0))
        start = optim.start(optimiser, net)
        clones = bc.initial_net(cloning, spec, num_demonstrators, jax.random.fold_in(key, 1)) if guided else None
        return State(
            net=net,
            target=net,
            optimiser=(start, start, start) if inner.alternate else start,
            demos=demos,
            seen=jnp.zeros(0, jnp.int32) if demos is None else demos.count,
            experience=experience.init(replay.blank_transition(spec)),
            count=jnp.zeros((), jnp.int32),
            ramp=itd.ramp_length(inner, pace),
            task=tasks.no_experience(net.w.shape[1]),
            guide=(clones, optim.start(optimiser, clones)) if guided else None,
        )

    def observe(state: State, rollout: Transition) -> State:
        return state._replace(experience=replay.remember(experience, state.experience, rollout))

    def act(state: State, obs: Array, key: Array) -> Array:
        explore_key, action_key, policy_key = jax.random.split(key, 3)
        share = jnp.where(state.task.reward_square > 0, config.epsilon, 1.0)
        random = jax.random.randint(action_key, obs.shape[:1], 0, spec.num_actions)
        chosen = jnp.where(jax.random.bernoulli(explore_key, share, obs.shape[:1]), random, acting(state, obs, policy_key))
        follows = (config.follow or config.follow_on) and num_demonstrators
        if not follows:
            return chosen
        return jnp.where(following.led(config, state.count, obs.shape[0], pace.updates), imitated(state, obs), chosen)

    def imitated(state: State, obs: Array) -> Array:
        """What the demonstrators would do, each in every K-th environment, or in those that drew it."""
        net = itd.deployed(inner, state)
        if guided:
            values = clones_of(state, obs)[:, :, None]
        else:
            values = net.task_values(obs, itd.preferences(inner, net.w[:num_demonstrators]))
        whose = following.whom(config, state.count, obs.shape[0], num_demonstrators)
        return jnp.argmax(jnp.mean(values, axis=2)[jnp.arange(obs.shape[0]), whose], axis=-1)

    def acting(state: State, obs: Array, key: Array) -> Array:
        return improved(state.net if config.act_by_newest else itd.deployed(inner, state), state, obs, key, config.act_by_member)

    def policy(state: State, obs: Array, key: Array) -> Array:
        return improved(itd.deployed(inner, state), state, obs, key)

    def improved(net: PsiPhiNet, state: State, obs: Array, key: Array, by_member: bool = False) -> Array:
        """The GPI action by the values of this network, in each environment by those of one member if asked."""
        psi = net.psi(net.features(obs))
        if by_member:
            psi = jax.vmap(lambda x, i: x[:, i][:, None])(psi, jnp.arange(obs.shape[0]) % inner.ensemble)
        values = jax.vmap(lambda psi: gpi.head_values(psi, lambda p: p @ w_ego(state.net)))(psi)
        cost = surprise(state, obs, psi) if guided and config.trust else reluctance(config, net, psi, w_ego(state.net))
        values = jnp.max(values if cost is None else values + cost, axis=1)
        return gpi.draw(values, key, config.temperature)

    def update(state: State, key: Array) -> tuple[State, Metrics]:
        demo_key, ego_key = jax.random.split(key)
        sequence = experience.sample(state.experience, ego_key).experience
        ego = ego_batch(config, sequence)
        ego = ego._replace(step=replay.look_up(state.experience, ego.step), fold=replay.look_up(state.experience, ego.fold))
        ego = mirrored(spec, ego, jax.random.fold_in(ego_key, 1)) if config.mirror_ego else ego
        others = demonstrations(state, ego, demo_key) if num_demonstrators else None
        after, metrics = (alternating_step if inner.alternate else joint_step)(state, others, ego)
        count = state.count + 1
        after = after._replace(guide=copied(state, others.demo)) if guided and others is not None else after
        return after._replace(target=itd.next_target(inner, state.target, after.net, count), count=count), metrics

    def copied(state: State, demo: Demonstration) -> Any:
        """The clones, after a step on what the demonstrators did."""
        clones, clone_state = state.guide
        gradients, _ = jax.grad(bc.loss, has_aux=True)(clones, demo, state.seen > 0, cloning)
        return optim.step(optimiser, gradients, clone_state, clones)

    def clones_of(state: State, obs: Array) -> Float[Array, "B K A"]:
        """Logits of all clones."""
        return jnp.swapaxes(jax.vmap(lambda one: one(obs))(state.guide[0]), 0, 1)

    def surprise(state: State, obs: Array, psi: Float[Array, "B heads E A d"]) -> Float[Array, "B heads A"]:
        """What an action costs by how much it would surprise the clones."""
        value = lambda p: p @ w_ego(state.net)  # noqa: E731
        passed = optim.progress(state.count, jnp.asarray(max(config.trusted * pace.updates, 1.0))) if config.trusted else 0.0
        left = config.trust * (1.0 - passed)
        return jax.vmap(lambda one, likely: gpi.charged(one, likely, value, left))(psi, jax.nn.log_softmax(clones_of(state, obs)))

    def policies(state: State, cross: Transition) -> Array | None:
        """What the demonstrators would do where steps led to, if clones know."""
        return jax.nn.softmax(clones_of(state, cross.next_obs)) if guided else None

    def demonstrations(state: State, ego: Ego, key: Array) -> Others:
        sample_key, mirror_key = jax.random.split(key)
        demo, cross, weight = itd.sample(configs.replaced(inner, cross_policy_on="pooled"), spec, experience, state, sample_key)
        if itd.uses_any_steps(inner) and inner.cross_policy_on != "pooled":
            mine = replay.mirror(spec, ego.step, mirror_key) if inner.mirror and not config.mirror_ego else ego.step
            if itd.has_given(inner) or inner.cross_policy_on == "both":  # given: no other loss sees the demonstrators' own steps
                mine = jax.tree.map(lambda x, y: jnp.concatenate([x, y]), mine, cross)
            return Others(demo, mine, jnp.ones(mine.action.shape))
        return Others(demo, cross, weight)

    def joint_step(state: State, others: Others | None, ego: Ego) -> tuple[State, Metrics]:
        """One step on the sum of all losses. w_ego is inferred from the very phi that they look at."""

        def total(net: PsiPhiNet) -> tuple[Array, tuple[PsiPhiNet, tasks.Statistics, Metrics]]:
            predictions, seen = looked(net, state.target, others, ego)
            told, task = infer_task(config, net, state.task, ego.step, jax.lax.stop_gradient(seen.phi))
            mine, my_terms = ego_loss(told, state.target, ego, config, seen)
            if others is None:
                return mine, (told, task, my_terms)
            ramp = optim.progress(state.count, state.ramp)
            mild = itd.demonstrators(shielded(net, config.shield), num_demonstrators)
            theirs_before = itd.demonstrators(state.target, num_demonstrators)
            if predictions is None and not guided:
                theirs, their_terms = itd.joint_loss(mild, theirs_before, *others, ramp, inner)
            else:
                predictions = predictions or itd.predict(mild, theirs_before, others.demo, others.cross)
                predictions = predictions._replace(cross_policies=policies(state, others.cross))
                theirs, their_terms = itd.weighed(predictions, mild, *others, ramp, inner)
            return theirs + mine, (told, task, their_terms | my_terms)

        gradients, (told, task, metrics) = jax.grad(total, has_aux=True)(state.net)
        net, optimiser_state = optim.step(optimiser, gradients, state.optimiser, told)
        return state._replace(net=net, optimiser=optimiser_state, task=task), metrics

    def looked(net: PsiPhiNet, target: PsiPhiNet, others: Others | None, ego: Ego) -> tuple[itd.Predictions | None, Seen]:
        """All in one pass where the demonstrators' losses look at the ego's own steps and nothing is kept from the torso they share."""
        if others is None or others.cross is not ego.step or config.shield:
            return None, look(net, target, ego.step)
        return look_at_all(net, target, others.demo, ego.step)

    def alternating_step(state: State, others: Others | None, ego: Ego) -> tuple[State, Metrics]:
        """Algorithm 2 as printed: a step of algorithm 1, then one of the ego's losses."""
        assert others is not None
        net, task = infer_task(config, state.net, state.task, ego.step)
        told = state._replace(net=net, task=task)
        net, theirs, metrics = itd.alternating_step(inner, optimiser, num_demonstrators, told, others.demo, others.cross)
        gradients, terms = jax.grad(ego_loss, has_aux=True)(net, state.target, ego, config)
        net, mine = optim.step(optimiser, gradients, state.optimiser[2], net)
        return told._replace(net=net, optimiser=(*theirs, mine)), metrics | terms

    return Agent(init, act, observe, update, policy)
