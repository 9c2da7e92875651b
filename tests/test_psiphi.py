"""PsiPhi-learning: the ego's losses against plain loops, who gets gradients from what, and worlds whose values it must find."""

from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import probes
from psiphi import optim, replay, tasks
from psiphi.agents import itd, psiphi
from psiphi.agents.psiphi import PsiPhiConfig
from psiphi.errors import UserError
from psiphi.loops import scan
from psiphi.nets import PsiPhiNet
from psiphi.types import Agent, Demonstration, Demos, Pace, Symmetry, Transition
from tables import blank, drawn, numpy_record, phi_table, psi_table, quick_jit, tabular_net

KEY = jax.random.key(0)
PROBES = {probe.__name__: probe() for probe in (probes.two_steps, probes.say_what_you_see, probes.time_limit, probes.termination)}
MEDLEY = probes.medley(*PROBES.values())
ENV = probes.make(MEDLEY)
PLACES, ACTIONS = MEDLEY.reward.shape
AGENTS, HEADS, CUMULANTS = 2, 3, 3

ITD = replace(
    itd.paper(), num_cumulants=CUMULANTS, gamma=probes.GAMMA, torso="mlp", torso_hidden=(PLACES,), phi_hidden=(PLACES,), psi_hidden=(),
    share_torso=False, learning_rate=0.01, clip=10.0, batch=8, alternate=False, bc_weight=0.1, l1_weight=0.01, itd_weight=1.0,
    beta=3.0, axis_preferences=True, cross_policy=1.0, cross_policy_on="experience", anchor=1.0, sparsity=0.01, ema=0.1,
    replay_size=1024,
)  # fmt: skip
PACE = Pace(num_envs=16, updates=500)
CONFIG = PsiPhiConfig(
    itd=ITD, n_step=3, batch=32, reward_weight=1.0, q_weight=1.0, td_psi_weight=1.0, epsilon=0.2, gpi_bootstrap=True,
    pessimistic_target=True, ego_from_demonstrator=True, task_memory=0.99, task_ridge=1e-4,
)  # fmt: skip
PLAIN = replace(CONFIG, gpi_bootstrap=False, pessimistic_target=False)


def largest(tree: Any) -> float:
    return max(float(np.abs(leaf).max()) for leaf in jax.tree.leaves(tree))


def see(place: np.ndarray) -> np.ndarray:
    return np.eye(PLACES, dtype=np.float32)[place]


def aimless_demos(steps: int = 30) -> Demos:
    """Demonstrators who do anything anywhere: nothing can be learned from them about what is good."""
    rng = np.random.default_rng(0)
    place, action, next_action = rng.integers(0, PLACES, (AGENTS, steps)), *rng.integers(0, ACTIONS, (2, AGENTS, steps))
    discount = 1.0 - MEDLEY.ends[place, action]
    reached, whole = MEDLEY.next_place[place, action], action.astype(np.int32)
    demos = numpy_record(Demonstration, see(place), whole, discount.astype(np.float32), see(reached), next_action.astype(np.int32))
    return jax.tree.map(jnp.asarray, numpy_record(Demos, demos, np.full(AGENTS, steps, np.int32)))


# --- The ego's losses ----------------------------------------------------------------------------------------------------

GOES_ON, TIME_LIMIT, TERMINATION = 0, 1, 2
ROWS = 6
NET, TARGET, OTHER_TARGET = (tabular_net(ENV.spec, heads=HEADS, ensemble=2, num_cumulants=CUMULANTS, seed=seed) for seed in (1, 2, 3))
W = np.asarray(NET.w)[-1]


def sequences(kinds: np.ndarray) -> Transition:
    """Sequences ``[B, 3]`` through random places; `kinds` says how each step ends."""
    rng = np.random.default_rng(1)
    shape = kinds.shape
    return numpy_record(
        Transition,
        see(rng.integers(0, PLACES, shape)),
        rng.integers(0, ACTIONS, shape, np.int32),
        rng.normal(size=shape).astype(np.float32),
        (kinds != TERMINATION).astype(np.float32),
        see(rng.integers(0, PLACES, shape)),
        kinds != GOES_ON,
    )


MIXED = np.array([[0, 0, 0], [0, 1, 0], [1, 0, 0], [0, 2, 0], [2, 0, 0], [0, 0, 2]])


class Found(NamedTuple):
    """The ego's terms, in both ways to bootstrap, and gradients: of each of its terms, and of the demonstrators' whole loss."""

    value: dict[str, float]
    plain: dict[str, float]
    gradient: dict[str, PsiPhiNet]


@pytest.fixture(scope="module")
def find():
    """``find(kinds, target)``"""
    demos = aimless_demos()

    def terms(net: PsiPhiNet, target: PsiPhiNet, sequence: Transition) -> tuple[dict[str, jax.Array], Any]:
        ego = psiphi.ego_batch(CONFIG, sequence)
        value = psiphi.ego_loss(net, target, ego, CONFIG)[1]
        others = itd.demonstrators(net, AGENTS), itd.demonstrators(target, AGENTS)
        demo = jax.tree.map(lambda x: x[:, : ITD.batch], demos.steps)
        theirs = itd.joint_loss(*others, demo, ego.step, jnp.ones(ROWS), optim.progress(jnp.int32(1), itd.ramp_length(ITD, PACE)), ITD)[0]
        return value | {"theirs": theirs}, (value, psiphi.ego_loss(net, target, ego, PLAIN)[1])

    both = quick_jit(jax.jacrev(terms, has_aux=True))

    def at(kinds: np.ndarray, target: PsiPhiNet = TARGET) -> Found:
        gradient, (value, plain) = jax.tree.map(np.asarray, both(NET, target, sequences(kinds)))
        return Found(value, plain, gradient)

    return at


@pytest.fixture(scope="module")
def found(find) -> Found:
    return find(MIXED)


def each_row(kinds: np.ndarray):
    """Place, action, reward, how the step ends, next place, next action; return, discount and place of the n-step bootstrap."""
    s = sequences(kinds)
    for b in range(ROWS):
        stop = next((t for t in range(3) if kinds[b, t] != GOES_ON), 2)
        total = sum(probes.GAMMA**t * s.reward[b, t] for t in range(stop + 1))
        discount = 0.0 if kinds[b, stop] == TERMINATION else probes.GAMMA ** (stop + 1)
        one = s.obs[b, 0].argmax(), s.action[b, 0], s.reward[b, 0], kinds[b, 0], s.next_obs[b, 0].argmax(), s.action[b, 1]
        yield *one, total, discount, s.next_obs[b, stop].argmax()


def terms_by_hand(kinds: np.ndarray, plain: bool) -> dict[str, Any]:
    psi, phi, later = psi_table(NET), phi_table(NET), psi_table(TARGET)
    errors = {"reward": [], "q": [], "td_psi": []}
    for s, a, r, kind, n, next_a, total, discount, stop in each_row(kinds):
        errors["reward"].append((phi[s, a] @ W - r) ** 2)
        worst = min((later[:, e, stop] @ W).max() for e in range(2))
        values = np.min(later[:, :, n] @ W, axis=1)  # [head, action]
        head, action = (HEADS - 1, next_a) if plain else np.unravel_index(values.argmax(), values.shape)
        known = not plain or kind != TIME_LIMIT  # the action after a time limit was never taken
        for e in range(2):
            best = (later[-1, e, stop] @ W).max() if plain else worst
            errors["q"].append((psi[-1, e, s, a] @ W - total - discount * best) ** 2)
            follows = 0.0 if kind == TERMINATION else probes.GAMMA * later[head, e, n, action]
            errors["td_psi"].append(known * np.sum((psi[-1, e, s, a] - phi[s, a] - follows) ** 2) / CUMULANTS)
    return {name: np.mean(error) for name, error in errors.items()}


@pytest.mark.parametrize("name", ["reward", "q", "td_psi"])
def test_the_egos_terms_equal_plain_loops_over_the_tables(found, name):
    np.testing.assert_allclose(found.value[name], terms_by_hand(MIXED, plain=False)[name], rtol=1e-4)
    np.testing.assert_allclose(found.plain[name], terms_by_hand(MIXED, plain=True)[name], rtol=1e-4)


def test_a_termination_does_not_bootstrap(find):
    ends = np.full((ROWS, 3), TERMINATION)
    one, other = find(ends), find(ends, OTHER_TARGET)
    assert (one.value, one.plain) == (other.value, other.plain)


def test_a_time_limit_still_bootstraps(find):
    stops = np.full((ROWS, 3), TIME_LIMIT)
    one, other = find(stops), find(stops, OTHER_TARGET)
    assert all(one.value[name] != other.value[name] for name in ("q", "td_psi"))
    assert one.plain["q"] != other.plain["q"]
    assert one.plain["td_psi"] == other.plain["td_psi"] == 0  # nobody saw the next action, so there is nothing to say


TRAINS = {
    "reward": {"phi_torso", "phi_head"},
    "q": {"torso", "psi_heads"},
    "td_psi": {"torso", "psi_heads"},
}


@pytest.mark.parametrize("name", TRAINS)
def test_each_of_the_egos_terms_trains_its_part_of_the_network_only(found, name):
    gradient = found.gradient[name]
    parts = ("torso", "phi_torso", "phi_head", "psi_heads", "w")
    assert {part for part in parts if largest(getattr(gradient, part)) > 0} == TRAINS[name]
    assert largest(jax.tree.map(lambda x: x[:-1], gradient.psi_heads)) == 0  # never a demonstrator's head


def test_the_demonstrators_do_not_touch_the_egos_head(found):
    gradient = found.gradient["theirs"]
    assert largest(jax.tree.map(lambda x: x[-1], (gradient.psi_heads, gradient.w))) == 0
    assert largest(jax.tree.map(lambda x: x[:-1], gradient.psi_heads)) > 0 and largest(gradient.phi_head) > 0


@pytest.mark.parametrize("share", [0.25, 1.0])
def test_a_shield_keeps_its_share_of_the_demonstrators_gradient_from_the_torso_and_from_nothing_else(share):
    demo = jax.tree.map(lambda x: x[:, : ITD.batch], aimless_demos().steps)
    steps = jax.tree.map(lambda x: jnp.asarray(x[:, 0]), sequences(MIXED))
    target = itd.demonstrators(TARGET, AGENTS)

    def theirs(net: PsiPhiNet, share: float) -> jax.Array:
        mild = itd.demonstrators(psiphi.shielded(net, share), AGENTS)
        return itd.joint_loss(mild, target, demo, steps, jnp.ones(ROWS), jnp.ones(()), ITD)[0]

    (value, whole), (same, less) = (quick_jit(jax.value_and_grad(partial(theirs, share=s)))(NET) for s in (0.0, share))
    np.testing.assert_allclose(value, same, rtol=1e-6)
    assert largest(whole.torso) > 0
    jax.tree.map(lambda a, b: np.testing.assert_allclose(b, (1 - share) * a, atol=1e-6), whole.torso, less.torso)
    for part in ("phi_torso", "phi_head", "psi_heads", "w"):
        jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-7), getattr(whole, part), getattr(less, part))


def test_looking_once_at_what_the_losses_share_changes_none_of_them():
    demo = jax.tree.map(lambda x: x[:, : ITD.batch], aimless_demos().steps)
    ego = psiphi.ego_batch(CONFIG, jax.tree.map(jnp.asarray, sequences(MIXED)))
    theirs = itd.demonstrators(TARGET, AGENTS)

    def total(net: PsiPhiNet, at_once: bool) -> jax.Array:
        own = itd.demonstrators(net, AGENTS)
        predictions, seen = psiphi.look_at_all(net, TARGET, demo, ego.step)
        if not at_once:
            predictions, seen = itd.predict(own, theirs, demo, ego.step), None
        shown = itd.weighed(predictions, own, demo, ego.step, jnp.ones(ROWS), jnp.ones(()), ITD)[0]
        return shown + psiphi.ego_loss(net, TARGET, ego, CONFIG, seen)[0]

    apart, at_once = (quick_jit(jax.value_and_grad(partial(total, at_once=once)))(NET) for once in (False, True))
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6), apart, at_once)


def test_a_shield_is_refused_where_the_losses_take_turns():
    config = replace(CONFIG, shield=0.5, itd=replace(itd.paper(), torso="mlp"))
    with pytest.raises(UserError, match="shield is 0.5, expected 0"):
        psiphi.make(config, ENV.spec, AGENTS, PACE)


def test_the_next_action_is_the_sequences_and_unknown_after_an_end():
    sequence = sequences(MIXED)
    ego = jax.jit(partial(psiphi.ego_batch, CONFIG))(sequence)
    np.testing.assert_array_equal(ego.next_action, sequence.action[:, 1])
    np.testing.assert_array_equal(ego.has_next, MIXED[:, 0] == GOES_ON)


def test_an_offset_is_as_if_the_world_had_paid_less():
    sequence = sequences(MIXED)
    less = sequence._replace(reward=sequence.reward - 0.25)
    got = jax.jit(partial(psiphi.ego_batch, replace(CONFIG, n_step=2, reward_offset=0.25)))(sequence)
    expected = jax.jit(partial(psiphi.ego_batch, replace(CONFIG, n_step=2)))(less)
    jax.tree.map(np.testing.assert_array_equal, got, expected)
    assert np.all(np.asarray(got.step.reward) == np.asarray(sequence.reward)[:, 0] - 0.25)


def test_on_an_axis_of_its_own_the_ego_learns_though_no_cumulant_explains_its_rewards():
    """By least squares its preferences are then near 0, and so is every gradient that could end that."""
    step = psiphi.ego_batch(CONFIG, jax.tree.map(jnp.asarray, sequences(MIXED))).step
    nothing = jnp.zeros((ROWS, CUMULANTS))
    inferred, axis = (
        psiphi.infer_task(replace(CONFIG, ego_axis=own), NET, tasks.no_experience(CUMULANTS), step, nothing)[0] for own in (False, True)
    )
    assert np.allclose(psiphi.w_ego(inferred), 0) and np.asarray(psiphi.w_ego(axis)).tolist() == [0, 0, 1]
    assert (np.asarray(axis.w[:-1]) == np.asarray(NET.w[:-1])).all()


def test_an_axis_of_its_own_is_refused_where_none_is_left():
    config = replace(CONFIG, itd=replace(ITD, num_cumulants=AGENTS), ego_axis=True)
    with pytest.raises(UserError, match="expected learned ones and more of them than demonstrators"):
        psiphi.make(config, ENV.spec, AGENTS, PACE)


def test_in_the_mirror_all_that_belongs_to_a_step_is_turned_together():
    spec = ENV.spec._replace(symmetry=Symmetry(obs=lambda obs: obs[::-1], action=lambda action: ACTIONS - 1 - action))
    ego = psiphi.ego_batch(CONFIG, jax.tree.map(jnp.asarray, sequences(MIXED)))
    seen = psiphi.mirrored(spec, ego, KEY)
    turned = np.asarray((seen.step.obs != ego.step.obs).any(axis=1))
    assert 0 < turned.sum() < ROWS
    for before, after in ((ego.step, seen.step), (ego.fold, seen.fold)):
        for old, new in ((before.obs, after.obs), (before.next_obs, after.next_obs)):
            assert (np.asarray(new) == np.where(turned[:, None], np.asarray(old)[:, ::-1], old)).all()
        assert (np.asarray(after.action) == np.where(turned, ACTIONS - 1 - np.asarray(before.action), before.action)).all()
        assert (np.asarray(after.reward) == np.asarray(before.reward)).all()
    assert (np.asarray(seen.next_action) == np.where(turned, ACTIONS - 1 - np.asarray(ego.next_action), ego.next_action)).all()


def test_the_egos_preferences_are_the_least_squares_of_fading_rewards():
    config = replace(CONFIG, task_memory=0.5, task_ridge=0.01)
    batches = [jax.tree.map(lambda x, t=t: x[:, t], sequences(MIXED)) for t in range(2)]

    @jax.jit
    def infer(first: Transition, second: Transition) -> PsiPhiNet:
        net, task = psiphi.infer_task(config, NET, tasks.no_experience(CUMULANTS), first)
        return psiphi.infer_task(config, net, task, second)[0]

    net = jax.tree.map(np.asarray, infer(*batches))
    phi, reward, weight = [], [], np.repeat([0.5, 1.0], ROWS)
    for batch in batches:
        phi += list(phi_table(NET)[batch.obs.argmax(-1), batch.action])
        reward += list(batch.reward)
    rows, root = np.array(phi, np.float64), np.sqrt(weight)[:, None]
    ridge = np.sqrt(config.task_ridge * weight.sum()) * np.eye(CUMULANTS)
    expected = np.linalg.lstsq(np.vstack([root * rows, ridge]), np.append(root[:, 0] * reward, np.zeros(CUMULANTS)), rcond=None)[0]
    np.testing.assert_allclose(net.w[-1], expected, rtol=1e-3)
    np.testing.assert_array_equal(net.w[:-1], np.asarray(NET.w)[:-1])


# --- Acting --------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def actor():
    """A greedy agent of tables, its state, and its two ways to act on 2000 observations: as a learner, and judged."""
    return table_actor(temperature=0.0)


def table_actor(temperature: float, **changes: Any):
    agent = psiphi.make(replace(CONFIG, temperature=temperature, **changes), ENV.spec, AGENTS, PACE)
    shapes = jax.eval_shape(agent.init, KEY, aimless_demos())
    state = blank(shapes)._replace(net=NET, target=TARGET)
    obs = see(np.arange(2000) % PLACES)
    both = jax.jit(lambda state, obs, key: (agent.act(state, obs, key), agent.policy(state, obs, key)))
    return state, lambda state: tuple(np.asarray(x) for x in both(state, obs, KEY))


def rewarded(state: psiphi.State, square: float) -> psiphi.State:
    return state._replace(task=state.task._replace(reward_square=jnp.asarray(np.float32(square))))


def test_before_the_first_reward_it_acts_at_random(actor):
    state, both = actor
    actions, _ = both(rewarded(state, 0.0))
    for place in range(PLACES):
        np.testing.assert_allclose(np.mean(actions[np.arange(2000) % PLACES == place]), 0.5, atol=0.12)


@pytest.mark.parametrize(("share", "updates", "led"), [(0.5, 0, 0), (0.5, 1, 992), (0.5, 62, 504), (0.5, 125, 0), (0.0, 1, 0)])
def test_it_follows_demonstrators_in_fewer_and_fewer_environments_once_it_has_learned_from_them(share, updates, led):
    state, both = table_actor(temperature=0.0, follow=share, epsilon=0.0)
    actions, greedy = both(rewarded(state._replace(count=jnp.int32(updates)), 1.0))
    place, whose = np.arange(2000) % PLACES, np.arange(2000) % AGENTS
    values = np.mean(psi_table(TARGET)[:AGENTS, :, :, :, :AGENTS], axis=1)  # axis preferences: demonstrator k wants cumulant k
    theirs = np.array([values[k, s, :, k].argmax() for k, s in zip(whose, place, strict=True)])
    assert (actions[:led] == theirs[:led]).all() and (actions[led:] == greedy[led:]).all()
    assert (theirs != greedy).any()


def test_in_stretches_it_follows_one_demonstrator_after_the_other_to_the_end():
    state, both = table_actor(temperature=0.0, follow=1.0, follow_on=0.4, stretch=10, epsilon=0.0)
    values = np.mean(psi_table(TARGET)[:AGENTS, :, :, :, :AGENTS], axis=1)
    theirs = np.stack([values[k, np.arange(2000) % PLACES, :, k].argmax(-1) for k in range(AGENTS)])
    at = {n: both(rewarded(state._replace(count=jnp.int32(n)), 1.0)) for n in (0, 1, 10_000, 10_001, 10_010)}
    assert (at[0][0] == at[0][1]).all()  # nothing was learned from them yet
    assert np.mean((at[1][0] == theirs).any(axis=0)) > 0.98  # nearly all follow somebody at first
    acts, greedy = at[10_000]
    other = theirs != greedy  # [AGENTS, n]: where one sees that a demonstrator is followed
    for many in range(AGENTS + 1):
        seen = other.sum(axis=0) == many
        assert not seen.any() or abs(np.mean(acts[seen] != greedy[seen]) - 0.4 * many / AGENTS) < 0.06
    assert other.any()
    assert np.mean(at[10_001][0] == acts) > 0.9  # a stretch goes on, and one environment in ten begins a new one
    assert np.mean(at[10_010][0] == acts) < 0.9


def test_who_guides_it_is_a_clone_that_no_loss_of_the_egos_reaches():
    agent = psiphi.make(replace(LEARNER, guide="mlp", follow=1.0, followed=1.0, epsilon=0.0), ENV.spec, AGENTS, PACE)
    shown = aimless_demos()
    alike = jax.tree.map(lambda x: jnp.broadcast_to(jnp.arange(AGENTS, dtype=x.dtype)[:, None], x.shape), shown.steps.action)
    state = with_experience(agent, shown._replace(steps=shown.steps._replace(action=alike)))  # demonstrator k always takes action k
    learn = quick_jit(lambda state: jax.lax.scan(agent.update, state, jax.random.split(KEY, 60))[0])
    memory = state.experience
    paid = jax.tree.map(lambda x: -5 * x + 1 if x.dtype == jnp.float32 and x.ndim == 2 else x, memory)
    one, other = learn(state), learn(state._replace(experience=paid))
    assert largest(jax.tree.map(lambda x, y: x - y, one.net.torso, other.net.torso)) > 0  # the ego learned something else
    for x, y in zip(jax.tree.leaves(one.guide), jax.tree.leaves(other.guide), strict=True):
        np.testing.assert_array_equal(x, y)
    seen = see(np.arange(200) % PLACES)
    acts = np.asarray(quick_jit(agent.act)(rewarded(one._replace(count=jnp.int32(1)), 1.0), seen, KEY))
    assert (acts[:190] == np.arange(190) % AGENTS).all()  # every second environment follows the other one


def test_with_a_guide_trust_asks_the_clones_and_the_model_has_none():
    """Demonstrator k always takes action k; who trusts them much never takes another, whatever its values say."""
    config = replace(LEARNER, guide="mlp", trust=1e4, epsilon=0.0, temperature=0.0)
    agent = psiphi.make(config, ENV.spec, AGENTS, PACE)
    shown = aimless_demos()
    alike = jnp.broadcast_to(jnp.arange(AGENTS, dtype=jnp.int32)[:, None], shown.steps.action.shape)
    state = with_experience(agent, shown._replace(steps=shown.steps._replace(action=alike)))
    clones, start = state.guide
    known = jax.tree.map(jnp.zeros_like, clones)
    last = lambda net: jax.tree.leaves(net)[-1]  # noqa: E731 - the biases of the logits
    assert last(known).shape == (AGENTS, ACTIONS)
    leaves, kind = jax.tree.flatten(known)
    known = jax.tree.unflatten(kind, [*leaves[:-1], 5.0 * jnp.eye(AGENTS, ACTIONS)])
    acts = np.asarray(quick_jit(agent.policy)(state._replace(guide=(known, start)), see(np.arange(PLACES)), KEY))
    assert (acts < AGENTS).all()
    assert psiphi.trust(config) is None and psiphi.trust(replace(config, guide="")) is not None
    falls, plain = (psiphi.make(one, ENV.spec, AGENTS, PACE) for one in (replace(config, trusted=0.5), replace(config, trust=0.0)))
    begun, over = (state._replace(guide=(known, start), count=jnp.int32(n)) for n in (0, PACE.updates // 2 + 1))
    chosen = lambda agent, state: np.asarray(quick_jit(agent.policy)(state, see(np.arange(PLACES)), KEY))  # noqa: E731
    np.testing.assert_array_equal(chosen(falls, begun), acts)
    np.testing.assert_array_equal(chosen(falls, over), chosen(plain, over))


def test_only_trust_in_clones_can_fall():
    with pytest.raises(UserError, match="only trust in clones can fall"):
        psiphi.make(replace(LEARNER, trusted=0.5, trust=1.0), ENV.spec, AGENTS, PACE)
    psiphi.make(replace(LEARNER, trusted=0.5), ENV.spec, AGENTS, PACE)


def test_policies_that_are_known_are_those_that_are_evaluated():
    net, target = (tabular_net(ENV.spec, heads=AGENTS, ensemble=1, num_cumulants=CUMULANTS, seed=seed) for seed in (4, 5))
    cross = jax.tree.map(lambda x: jnp.asarray(x[:, 0]), sequences(MIXED))
    demo = jax.tree.map(lambda x: x[:, :ROWS], aimless_demos().steps)
    w, weight = itd.preferences(ITD, net.w), jnp.ones(ROWS)
    seen = itd.predict(net, target, demo, cross)
    soft = jax.nn.softmax(ITD.beta * jnp.einsum("xkad,kd->xka", seen.cross_next_psi[:, :, 0], w))
    by_psi, by_soft, by_chance = (
        float(itd.cross_evaluation(ITD, seen._replace(cross_policies=known), w, cross, weight))
        for known in (None, soft, jnp.full_like(soft, 1 / ACTIONS))
    )
    assert by_soft == pytest.approx(by_psi, rel=1e-5) and by_chance != pytest.approx(by_psi, rel=1e-2)


@pytest.mark.parametrize("inner", [itd.paper(), replace(ITD, cumulants="given")])
def test_a_guide_is_refused_where_nothing_would_be_evaluated_by_it(inner):
    with pytest.raises(UserError, match="guide is 'mlp'"):
        psiphi.make(replace(CONFIG, guide="mlp", itd=inner), ENV.spec, AGENTS, PACE)


def test_after_the_first_reward_it_explores_at_the_rate_asked_for(actor):
    state, both = actor
    actions, greedy = both(rewarded(state, 1e-6))
    np.testing.assert_allclose(np.mean(actions != greedy), CONFIG.epsilon * (1 - 1 / ACTIONS), atol=0.02)


def test_it_is_judged_on_the_best_of_all_heads(actor):
    state, both = actor
    _, greedy = both(state)
    values = np.min(psi_table(TARGET) @ W, axis=1).max(axis=0)  # the moving average's psi, the present preferences
    np.testing.assert_array_equal(greedy, values.argmax(-1)[np.arange(2000) % PLACES])


def test_by_one_member_each_environment_acts_by_its_own_and_judged_is_the_smallest_value():
    state, both = table_actor(temperature=0.0, act_by_member=True, epsilon=0.0)
    actions, greedy = both(rewarded(state, 1.0))
    place, values = np.arange(2000) % PLACES, psi_table(TARGET) @ W  # [heads, ensemble, places, actions]
    for member in range(CONFIG.itd.ensemble):
        mine = np.arange(2000) % CONFIG.itd.ensemble == member
        np.testing.assert_array_equal(actions[mine], values[:, member].max(axis=0).argmax(-1)[place][mine])
    np.testing.assert_array_equal(greedy, np.min(values, axis=1).max(axis=0).argmax(-1)[place])


@pytest.mark.parametrize(("newest", "acts"), [(False, TARGET), (True, NET)])
def test_who_acts_is_the_moving_average_or_the_newest_and_judged_is_the_average(newest, acts):
    state, both = table_actor(temperature=0.0, act_by_newest=newest, epsilon=0.0)
    actions, greedy = both(rewarded(state, 1.0))
    place = np.arange(2000) % PLACES
    for found, net in ((actions, acts), (greedy, TARGET)):
        np.testing.assert_array_equal(found, np.min(psi_table(net) @ W, axis=1).max(axis=0).argmax(-1)[place])
    assert (actions != greedy).any() == newest


def test_softness_draws_from_the_softmax_of_the_values_in_units_of_reward():
    state, both = table_actor(temperature=0.5)
    _, drawn = both(state)
    values = np.min(psi_table(TARGET) @ W, axis=1).max(axis=0) / 0.5
    odds = np.exp(values - values.max(-1, keepdims=True))
    for place, expected in enumerate(odds / odds.sum(-1, keepdims=True)):
        shares = np.bincount(drawn[np.arange(2000) % PLACES == place], minlength=ACTIONS) / (2000 / PLACES)
        np.testing.assert_allclose(shares, expected, atol=0.1)


def reluctance_by_hand(later: np.ndarray, place: Any, trust: float) -> np.ndarray:
    """``[head, action]``: what GPI adds to values; demonstrator k wants cumulant k."""
    own = np.stack([later[k, :, place, :, k].mean(axis=0) for k in range(AGENTS)])
    odds = np.exp(ITD.beta * own)
    cost = trust * np.log(odds / odds.sum(axis=1, keepdims=True))
    worth = (np.min(later[:AGENTS, :, place] @ W, axis=1) + cost).max(axis=1)
    return np.vstack([cost, cost[worth.argmax()]])


@pytest.mark.parametrize("trust", [0.1, 0.5, 1e4])
def test_with_trust_an_action_costs_what_makes_it_unlikely_for_demonstrators(trust):
    state, both = table_actor(temperature=0.0, trust=trust)
    _, greedy = both(state)
    later = psi_table(TARGET)
    for place in range(PLACES):
        scores = np.min(later[:, :, place] @ W, axis=1) + reluctance_by_hand(later, place, trust)
        assert greedy[place] == scores.max(axis=0).argmax()
        if trust > 100:  # then it does what one of them would do
            assert greedy[place] in [later[k, :, place, :, k].mean(axis=0).argmax() for k in range(AGENTS)]


def test_with_trust_it_bootstraps_from_the_action_that_it_would_choose():
    config = replace(CONFIG, trust=0.3)
    later, psi, phi = psi_table(TARGET), psi_table(NET), phi_table(NET)
    ego = psiphi.ego_batch(config, sequences(MIXED))
    found = jax.tree.map(np.asarray, quick_jit(lambda net, target, ego: psiphi.ego_loss(net, target, ego, config)[1])(NET, TARGET, ego))
    q, td = [], []
    for s, a, _, kind, n, _, total, discount, stop in each_row(MIXED):
        chosen = {}
        for place in (n, stop):
            values = np.min(later[:, :, place] @ W, axis=1) + reluctance_by_hand(later, place, 0.3)
            chosen[place] = np.unravel_index(values.argmax(), values.shape)
        worst = min(later[chosen[stop][0], e, stop, chosen[stop][1]] @ W for e in range(2))
        for e in range(2):
            q.append((psi[-1, e, s, a] @ W - total - discount * worst) ** 2)
            follows = 0.0 if kind == TERMINATION else probes.GAMMA * later[chosen[n][0], e, n, chosen[n][1]]
            td.append(np.sum((psi[-1, e, s, a] - phi[s, a] - follows) ** 2) / CUMULANTS)
    np.testing.assert_allclose(found["q"], np.mean(q), rtol=1e-4)
    np.testing.assert_allclose(found["td_psi"], np.mean(td), rtol=1e-4)


# --- Online demonstrations -----------------------------------------------------------------------------------------------


def test_what_a_demonstrator_shows_online_is_sampled(actor):
    demos = aimless_demos(steps=4)
    shown = jax.tree.map(lambda x: np.ones((6, *x.shape[2:]), x.dtype), demos.steps)  # observations that no place gives
    agent = np.array([0, 0, -1, 0, 0, -1], np.int32)

    @quick_jit
    def watch(demos: Demos, agent: jax.Array, shown: Demonstration) -> tuple[Demos, Demonstration]:
        state = itd.append(actor[0]._replace(demos=demos, seen=demos.count), agent, shown)
        return state.demos, replay.sample_demonstrations(state.demos, KEY, 20)

    after, sample = jax.tree.map(np.asarray, watch(demos, agent, shown))
    assert np.all(np.asarray(sample.obs)[0] == 1)  # the first demonstrator's four steps are all new
    np.testing.assert_array_equal(after.steps.obs[1], np.asarray(demos.steps.obs)[1])
    np.testing.assert_array_equal(after.count, demos.count)


# --- Learning ------------------------------------------------------------------------------------------------------------


LEARNER = replace(CONFIG, itd=replace(ITD, torso_hidden=(16,), phi_hidden=(16,), psi_hidden=(16,)), n_step=2)


def with_experience(agent: Agent, demos: Demos | None) -> psiphi.State:
    """A real start, with random experience of the probes in its memory."""

    @quick_jit
    def begin(key: jax.Array, demos: Demos | None) -> psiphi.State:
        init_key, reset_key, act_key = jax.random.split(key, 3)
        state = agent.init(init_key, demos)
        env_state, obs = jax.vmap(ENV.reset)(jax.random.split(reset_key, PACE.num_envs))
        return agent.observe(state, scan.collect(ENV, partial(agent.act, state), env_state, obs, act_key, 64)[2])

    return begin(jax.random.key(0, impl="unsafe_rbg"), demos)


def after_learning(agent: Agent, state: psiphi.State) -> tuple[psiphi.State, dict[str, np.ndarray]]:
    updates = quick_jit(lambda state, key: jax.lax.scan(agent.update, state, jax.random.split(key, PACE.updates)))
    return updates(state, KEY)


def ego_values(state: psiphi.State) -> np.ndarray:
    """The ego's ``[place, ensemble, action]``."""
    values = quick_jit(lambda net, obs: net.psi(net.features(obs))[:, -1] @ net.w[-1])
    return np.asarray(values(state.net, see(np.arange(PLACES))))


def check_values(got: np.ndarray, name: str) -> None:
    first = sum(len(probe.values) for probe in list(PROBES.values())[: list(PROBES).index(name)])
    expected = PROBES[name].values
    for member in (0, 1):
        np.testing.assert_allclose(got[first : first + len(expected), member, : expected.shape[1]], expected, atol=0.15)


@pytest.fixture(scope="module")
def first_state():
    """An agent and its start on aimless demonstrations."""
    agent = psiphi.make(LEARNER, ENV.spec, AGENTS, PACE)
    return agent, with_experience(agent, aimless_demos())


@pytest.fixture(scope="module")
def learned(first_state) -> tuple[psiphi.State, dict[str, np.ndarray]]:
    return after_learning(*first_state)


@pytest.fixture(scope="module")
def learned_values(learned) -> np.ndarray:
    return ego_values(learned[0])


def test_the_ego_starts_without_a_task_as_the_first_demonstrator(first_state):
    state = jax.tree.map(np.asarray, first_state[-1]._replace(experience=None))
    assert largest(state.net.w[-1]) == 0
    for leaf in jax.tree.leaves(state.net.psi_heads):
        np.testing.assert_array_equal(leaf[-1], leaf[0])
        assert leaf.ndim < 4 or not np.array_equal(leaf[1], leaf[0])


@pytest.mark.parametrize("name", PROBES)
def test_the_ego_learns_the_values_of_the_probes(learned_values, name):
    check_values(learned_values, name)


def test_with_nobody_to_watch_it_learns_them_with_one_head():
    agent = psiphi.make(LEARNER, ENV.spec, 0, PACE)
    state, metrics = after_learning(agent, with_experience(agent, None))
    assert set(metrics) == {"reward", "q", "td_psi"} and state.net.w.shape[0] == 1
    values = ego_values(state)
    for name in PROBES:
        check_values(values, name)


def test_taking_turns_needs_somebody_to_take_turns_with():
    with pytest.raises(UserError, match="no demonstrator"):
        psiphi.make(psiphi.paper(CONFIG), ENV.spec, 0, PACE)


def test_learning_shrinks_the_egos_losses_and_the_preferences_stay_inferred(learned):
    state, metrics = learned
    for name in ("reward", "q", "td_psi"):
        trace = np.asarray(metrics[name])
        assert trace[-20:].mean() < 0.1 * trace[:20].mean()
    # Within an update w_ego is inferred first, and no gradient moves it afterwards.
    expected = quick_jit(tasks.solve)(state.task, LEARNER.task_ridge * np.asarray(state.task.count))
    np.testing.assert_allclose(np.asarray(state.net.w)[-1], expected, rtol=1e-4, atol=1e-5)


# --- The paper's algorithm 2 ---------------------------------------------------------------------------------------------


def moment(optimiser: Any) -> PsiPhiNet:
    """Adam's first moment: zero for a parameter that never got a gradient."""
    (found,) = [leaf.mu for leaf in jax.tree.leaves(optimiser, is_leaf=lambda x: hasattr(x, "mu")) if hasattr(leaf, "mu")]
    return found


def test_the_papers_preset_trains_the_ego_and_the_demonstrators_apart():
    small = {"torso": "mlp", "torso_hidden": (8,), "phi_hidden": (8,), "psi_hidden": (8,), "batch": 4}
    preset = psiphi.paper(CONFIG)
    config = replace(preset, itd=replace(preset.itd, **small), batch=8)
    agent, demos = psiphi.make(config, ENV.spec, AGENTS, PACE), aimless_demos()
    shapes = jax.eval_shape(agent.init, KEY, demos)
    net = drawn(shapes.net)
    state = blank(shapes)._replace(net=net, target=net, demos=demos, seen=demos.count)
    rollout = jax.tree.map(lambda x: np.swapaxes(x, 0, 1), sequences(np.zeros((PACE.num_envs, 10), int)))

    @quick_jit
    def update(state: psiphi.State, rollout: Transition, key: jax.Array) -> tuple[psiphi.State, dict[str, jax.Array]]:
        return agent.update(agent.observe(state, rollout), key)

    state, metrics = jax.tree.map(np.asarray, update(state, rollout, KEY))
    assert set(metrics) == {"bc_q", "l1", "itd", "reward", "q", "td_psi", "accuracy", "rank", "signal"}
    assert all(np.isfinite(value) for value in metrics.values())
    imitation, explanation, ego = (moment(optimiser) for optimiser in state.optimiser)
    for theirs in (imitation, explanation):
        assert largest(jax.tree.map(lambda x: x[-1], theirs.psi_heads)) == 0 and largest(theirs.psi_heads) > 0
        assert largest(theirs.w[-1]) == 0
    assert largest(jax.tree.map(lambda x: x[:-1], ego.psi_heads)) == 0 and largest(ego.psi_heads) > 0
    assert largest(ego.w) == 0 and largest(ego.phi_head) > 0
    assert largest(imitation.phi_head) == 0 and largest(explanation.phi_head) > 0
    assert largest(state.net.w[-1]) > 0
