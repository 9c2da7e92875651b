"""ITD: each term against plain loops over tables, who gets gradients from what, and a crossing where it must find out who wants what."""

from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from psiphi import gpi, optim, replay
from psiphi import model as models
from psiphi.agents import itd, psiphi, together
from psiphi.agents.itd import ITDConfig
from psiphi.cumulants import Given
from psiphi.errors import UserError
from psiphi.model import Model
from psiphi.nets import PsiPhiNet
from psiphi.types import NO_ACTION, Demonstration, Demos, EnvSpec, Pace, Transition
from tables import blank, drawn, numpy_record, phi_table, psi_table, quick_jit, tabular_net

PLACES, ACTIONS, AGENTS, CUMULANTS = 7, 3, 2, 2
SPEC = EnvSpec((PLACES,), jnp.float32, ACTIONS)
KEY = jax.random.key(0)

TABLES = replace(
    itd.paper(), num_cumulants=CUMULANTS, gamma=0.9, ensemble=2, torso="mlp", torso_hidden=(PLACES,), phi_hidden=(PLACES,), psi_hidden=(),
    share_torso=False, learning_rate=0.01, batch=4, alternate=False, bc_weight=1.0, l1_weight=1.0, itd_weight=1.0, beta=3.0,
    cross_policy=1.0, cross_policy_on="experience", cross_batch=6, anchor=1.0, sparsity=1.0, sparsity_scale=5.0,
    sparsity_ramp=0.5, nonnegative=1.0, ema=0.1, mirror=True, replay_size=PLACES * ACTIONS,
)  # fmt: skip
"""The paper's, in tables and with every term on; no number here is a default."""
PACE = Pace(num_envs=ACTIONS, updates=100)

TERMS = {
    "bc_q": "bc_weight", "l1": "l1_weight", "itd": "itd_weight", "cross_policy": "cross_policy",
    "anchor": "anchor", "sparsity": "sparsity", "nonnegative": "nonnegative",
}  # fmt: skip
"""Each term's name among the metrics, and the field of the config that is its weight."""


# --- One batch, all terms, all their gradients ---------------------------------------------------------------------------


class Batch(NamedTuple):
    """What `joint_loss` compares: demonstrations ``[K, B]`` and anybody's transitions ``[X]``."""

    demo: Demonstration
    cross: Transition
    weight: Any


class Found(NamedTuple):
    """The value of every term and its gradient with respect to the network."""

    value: dict[str, float]
    gradient: dict[str, PsiPhiNet]


def see(place: np.ndarray) -> np.ndarray:
    return np.eye(PLACES, dtype=np.float32)[place]


def random_batch(seed: int, places: tuple[int, ...] = tuple(range(PLACES)), next_places: tuple[int, ...] = tuple(range(PLACES))) -> Batch:
    """Steps from some of `places` to some of `next_places`; some of the demonstrations end, some next actions were not seen."""
    rng = np.random.default_rng(seed)
    two, six = (AGENTS, TABLES.batch), TABLES.cross_batch
    discount = np.tile(np.array([1, 0, 1, 1], np.float32), (AGENTS, 1))
    next_action = np.where([False, False, True, False], NO_ACTION, rng.integers(0, ACTIONS, two))  # where it was cut off
    demo = numpy_record(
        Demonstration, see(rng.choice(places, two)), rng.integers(0, ACTIONS, two), discount, see(rng.choice(next_places, two)), next_action
    )
    cross = numpy_record(
        Transition,
        see(rng.choice(places, six)), rng.integers(0, ACTIONS, six), np.zeros(six, np.float32), np.array([1, 1, 0, 1, 1, 1], np.float32),
        see(rng.choice(next_places, six)), np.zeros(six, bool),
    )  # fmt: skip
    return Batch(demo, cross, np.array([1, 1, 1, 0, 1, 0.5], np.float32))


NET = tabular_net(SPEC, heads=AGENTS, ensemble=2, num_cumulants=CUMULANTS, seed=1)
TARGET = tabular_net(SPEC, heads=AGENTS, ensemble=2, num_cumulants=CUMULANTS, seed=2)
COUNT = 25
"""Half way up the ramp of the sparsity."""


def ramp_at(count: int) -> jax.Array:
    """The share in which the priors count after so many updates, as the agent works it out."""
    return optim.progress(jnp.int32(count), itd.ramp_length(TABLES, PACE))


@pytest.fixture(scope="module")
def find():
    """``find(batch)``: all terms at `NET` and `TARGET`."""

    def terms(net: PsiPhiNet, batch: Batch) -> tuple[dict[str, jax.Array], dict[str, jax.Array]]:
        metrics = itd.joint_loss(net, TARGET, *batch, ramp_at(COUNT), TABLES)[1]
        values = {name: metrics[name] for name in TERMS}
        return values, values

    both = quick_jit(jax.jacrev(terms, has_aux=True))

    def at(batch: Batch) -> Found:
        gradient, value = jax.tree.map(np.asarray, both(NET, batch))
        return Found(value, gradient)

    return at


@pytest.fixture(scope="module")
def found(find) -> Found:
    return find(random_batch(0))


def largest(tree: Any) -> float:
    return max(float(np.abs(leaf).max()) for leaf in jax.tree.leaves(tree))


def assert_same(a: Any, b: Any) -> None:
    jax.tree.map(np.testing.assert_array_equal, a, b)


def log_softmax(x: np.ndarray) -> np.ndarray:
    return x - np.log(np.sum(np.exp(x)))


def w_table() -> np.ndarray:
    w = np.asarray(NET.w)
    return w / np.linalg.norm(w, axis=1, keepdims=True)


def each_demonstrated(batch: Batch):
    """k, place, action, discount, next place, next action: one demonstrated step after another."""
    d = batch.demo
    for k in range(AGENTS):
        for s, a, c, n, m in zip(d.obs[k].argmax(-1), d.action[k], d.discount[k], d.next_obs[k].argmax(-1), d.next_action[k], strict=True):
            yield k, s, a, c, n, m


def bc_q_by_hand(batch: Batch) -> Any:
    psi, w = psi_table(NET), w_table()
    return np.mean([-log_softmax(TABLES.beta * psi[k, e, s] @ w[k])[a] for k, s, a, *_ in each_demonstrated(batch) for e in range(2)])


def itd_by_hand(batch: Batch) -> Any:
    psi, phi, later = psi_table(NET), phi_table(NET), psi_table(TARGET)
    errors = []
    for k, s, a, discount, n, m in each_demonstrated(batch):
        for e in range(2):
            follows = TABLES.gamma * later[k, e, n, m] if discount else 0.0
            unseen = m == NO_ACTION and discount
            errors.append(0.0 if unseen else np.sum((psi[k, e, s, a] - phi[s, a] - follows) ** 2))
    return np.mean(errors)


def cross_policy_by_hand(batch: Batch) -> Any:
    psi, phi, later, w, c = psi_table(NET), phi_table(NET), psi_table(TARGET), w_table(), batch.cross
    errors = []
    for s, a, discount, n, weight in zip(c.obs.argmax(-1), c.action, c.discount, c.next_obs.argmax(-1), batch.weight, strict=True):
        for k in range(AGENTS):
            for e in range(2):
                policy = np.exp(log_softmax(TABLES.beta * later[k, 1 - e, n] @ w[k]))  # the neighbour's
                error = psi[k, e, s, a] - phi[s, a] - TABLES.gamma * discount * policy @ later[k, e, n]
                errors.append(weight * np.sum(error**2))
    return np.mean(errors)


def anchor_by_hand(batch: Batch) -> Any:
    psi, w = psi_table(NET), w_table()
    left = [np.mean((psi[k, e, n] @ w[k]) ** 2) * (discount == 0) for k, _, _, discount, n, _ in each_demonstrated(batch) for e in range(2)]
    return np.mean(left)


def sparsity_by_hand(batch: Batch) -> Any:
    phi = phi_table(NET)[batch.cross.obs.argmax(-1), batch.cross.action]
    ramp = COUNT / (TABLES.sparsity_ramp * PACE.updates)
    return ramp * np.mean(np.sum(np.log(1 + TABLES.sparsity_scale * np.abs(phi)), axis=1)) / AGENTS


def nonnegative_by_hand(batch: Batch) -> Any:
    reward = phi_table(NET)[batch.cross.obs.argmax(-1), batch.cross.action] @ w_table().T
    assert (reward < 0).any() and (reward > 0).any()
    return COUNT / (TABLES.sparsity_ramp * PACE.updates) * np.mean(np.where(reward < 0, -reward, 0))


def l1_by_hand(batch: Batch) -> Any:
    del batch
    return np.mean(np.sum(np.abs(w_table()), axis=1))


@pytest.mark.parametrize(
    ("name", "by_hand"),
    [
        ("bc_q", bc_q_by_hand), ("itd", itd_by_hand), ("cross_policy", cross_policy_by_hand), ("anchor", anchor_by_hand),
        ("sparsity", sparsity_by_hand), ("nonnegative", nonnegative_by_hand), ("l1", l1_by_hand),
    ],
)  # fmt: skip
def test_terms_equal_plain_loops_over_the_tables(find, found, name, by_hand):
    np.testing.assert_allclose(found.value[name], by_hand(random_batch(0)), rtol=1e-4)
    np.testing.assert_allclose(find(random_batch(5)).value[name], by_hand(random_batch(5)), rtol=1e-4)


TRAINS = {
    "bc_q": {"torso", "psi_heads", "w"},
    "l1": {"w"},
    "itd": {"torso", "psi_heads", "phi_torso", "phi_head"},
    "cross_policy": {"torso", "psi_heads", "phi_torso", "phi_head"},
    "anchor": {"torso", "psi_heads", "w"},
    "sparsity": {"phi_torso", "phi_head"},
    "nonnegative": {"phi_torso", "phi_head"},
}
"""Which part of the network each term trains, and no other: BC-Q does not touch phi, nor does what is only imagined."""


@pytest.mark.parametrize("name", TRAINS)
def test_each_term_trains_its_part_of_the_network_only(found, name):
    parts = ("torso", "phi_torso", "phi_head", "psi_heads", "w")
    assert {part for part in parts if largest(getattr(found.gradient[name], part)) > 0} == TRAINS[name]


def test_a_demonstrator_never_touches_anothers_head(find, found):
    batch, other = random_batch(0), random_batch(7)
    mixed = jax.tree.map(lambda a, b: np.stack([a[0], b[1]]), batch.demo, other.demo)  # the second demonstrator's are others
    changed = find(batch._replace(demo=mixed)).gradient
    for name in TERMS:
        before, after = found.gradient[name], changed[name]
        assert_same(jax.tree.map(lambda x: x[0], (before.psi_heads, before.w)), jax.tree.map(lambda x: x[0], (after.psi_heads, after.w)))
    for name in ("bc_q", "itd", "anchor"):  # and the second's own did change
        assert not np.array_equal(found.gradient[name].psi_heads.weights[0][1], changed[name].psi_heads.weights[0][1])


@pytest.mark.parametrize("name", ["itd", "cross_policy"])
def test_what_follows_is_held_fixed(find, name):
    # From the places 0 and 1 to the others: a temporal difference must not move what it is compared with.
    gradient = find(random_batch(3, places=(0, 1), next_places=(2, 3, 4, 5, 6))).gradient[name].psi_heads.weights[0]
    assert largest(gradient[..., :2, :]) > 0
    assert largest(gradient[..., 2:, :]) == 0


def test_the_anchor_holds_where_a_demonstration_ends(find):
    gradient = find(random_batch(3, places=(0, 1), next_places=(2, 3, 4, 5, 6))).gradient["anchor"].psi_heads.weights[0]
    assert largest(gradient[..., :2, :]) == 0
    assert largest(gradient[..., 2:, :]) > 0


def test_an_unseen_next_action_says_nothing_but_a_true_end_does(find):
    batch = random_batch(0)
    nobody_saw = batch.demo._replace(next_action=np.full_like(batch.demo.next_action, NO_ACTION))
    cut_off = find(batch._replace(demo=nobody_saw._replace(discount=np.ones_like(batch.demo.discount))))
    assert cut_off.value["itd"] == 0 and largest(cut_off.gradient["itd"]) == 0
    ended = find(batch._replace(demo=nobody_saw._replace(discount=np.zeros_like(batch.demo.discount))))
    assert ended.value["itd"] > 0 and largest(ended.gradient["itd"].phi_head) > 0
    assert ended.value["anchor"] == 0  # nobody saw the state in which nothing is left to gain


def test_transitions_of_weight_zero_contribute_nothing(find, found):
    batch, other = random_batch(0), random_batch(9)
    unweighted = batch.weight == 0
    assert unweighted.any()
    pick = lambda a, b: np.where(unweighted.reshape(-1, *[1] * (a.ndim - 1)), b, a)  # noqa: E731
    changed = find(batch._replace(cross=jax.tree.map(pick, batch.cross, other.cross)))
    assert changed.value["cross_policy"] == found.value["cross_policy"]
    assert_same(changed.gradient["cross_policy"], found.gradient["cross_policy"])


def test_pooled_demonstrations_take_of_everybody_and_count_the_ends():
    number = np.arange(8).reshape(AGENTS, 4)
    discount = np.array([[1, 1, 0, 1], [0, 1, 1, 1]], np.float32)
    demo = numpy_record(Demonstration, see(number % PLACES), number, discount, see((number + 1) % PLACES), number)
    cross, weight = jax.jit(partial(itd.pooled, batch=6))(demo)
    np.testing.assert_array_equal(cross.action, [0, 4, 1, 5, 2, 6])
    np.testing.assert_array_equal(weight, [1, 1, 1, 1, 1, 1])  # who ends the task ends it for all
    np.testing.assert_array_equal(cross.discount, [1, 0, 1, 1, 0, 1])
    np.testing.assert_array_equal(np.asarray(cross.obs).argmax(-1), np.array([0, 4, 1, 5, 2, 6]) % PLACES)
    np.testing.assert_array_equal(np.asarray(cross.next_obs).argmax(-1), np.array([1, 5, 2, 6, 3, 7]) % PLACES)


@pytest.mark.parametrize("beta", [0.0, 3.0])
def test_preferences_have_unit_length_where_the_temperature_is_fixed(beta):
    w = np.asarray(itd.preferences(replace(TABLES, beta=beta), NET.w))
    np.testing.assert_allclose(w, w_table() if beta else NET.w, rtol=1e-6)


def test_preferences_are_axes_where_there_are_enough_of_them():
    config = replace(TABLES, axis_preferences=True)
    np.testing.assert_array_equal(itd.preferences(config, jnp.ones((2, 3))), [[1, 0, 0], [0, 1, 0]])
    np.testing.assert_allclose(itd.preferences(config, jnp.ones((3, 2))), 1 / np.sqrt(2))


def test_one_demonstrator_with_one_cumulant_can_only_want_it():
    assert itd.preferences(replace(TABLES, beta=0.0), jnp.array([[-0.3]])) == 1  # its sign is phi's business


# --- Diagnostics ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def diagnose():
    """``diagnose(phi[K, B, A, d])``: the diagnostics of a hand-made phi, and the successor features beside it."""
    batch = random_batch(0)
    random = drawn(jax.eval_shape(itd.predict, NET, TARGET, batch.demo, batch.cross), seed=4)
    compiled = jax.jit(itd.diagnostics)

    def at(phi: np.ndarray) -> dict[str, float]:
        metrics = compiled(random._replace(phi=phi), w_table(), batch.demo)
        return {name: float(value) for name, value in metrics.items()}

    return at, np.asarray(random.psi), batch.demo


PHI_SHAPE = (AGENTS, TABLES.batch, ACTIONS, CUMULANTS)


def test_a_phi_of_nothing_has_no_signal(diagnose):
    assert diagnose[0](np.zeros(PHI_SHAPE, np.float32))["signal"] == 0


def test_a_phi_that_means_nothing_to_one_demonstrator_has_no_signal(diagnose):
    phi = np.random.default_rng(0).normal(size=PHI_SHAPE).astype(np.float32)
    assert diagnose[0](phi)["signal"] > 0.1
    phi[1] -= (phi[1] @ w_table()[1])[..., None] * w_table()[1]  # the second's wishes taken out of its own steps
    assert diagnose[0](phi)["signal"] < 1e-5


def test_signal_is_the_rewards_size_over_the_values_spread(diagnose):
    at, psi, demo = diagnose
    phi = np.random.default_rng(1).normal(size=PHI_SHAPE).astype(np.float32)
    ratios = []
    for k in range(AGENTS):
        reward = phi[k, np.arange(TABLES.batch), demo.action[k]] @ w_table()[k]
        ratios.append(np.sqrt(np.mean(reward**2)) / np.std(psi[k] @ w_table()[k]))
    np.testing.assert_allclose(at(phi)["signal"], min(ratios), rtol=1e-4)


def test_rank_counts_the_directions_phi_uses(diagnose):
    rng = np.random.default_rng(2)
    line = rng.normal(size=PHI_SHAPE[:-1])[..., None] * np.array([1.0, -2.0])
    np.testing.assert_allclose(diagnose[0](line.astype(np.float32))["rank"], 1, atol=0.01)
    flat = rng.normal(size=(int(np.prod(PHI_SHAPE[:-1])), CUMULANTS))
    flat = np.linalg.qr(flat - flat.mean(axis=0))[0]  # centred columns of equal length, at right angles
    np.testing.assert_allclose(diagnose[0](flat.reshape(PHI_SHAPE).astype(np.float32))["rank"], CUMULANTS, rtol=1e-3)


def test_accuracy_is_the_share_of_demonstrated_actions_with_the_highest_value(diagnose):
    at, psi, demo = diagnose
    best = np.einsum("kbead,kd->kbea", psi, w_table()).argmax(-1)
    np.testing.assert_allclose(at(np.zeros(PHI_SHAPE, np.float32))["accuracy"], np.mean(best == demo.action[..., None]), rtol=1e-5)


# --- A crossing ----------------------------------------------------------------------------------------------------------
# Three arms of two places each meet at place 0. In an arm, the action of its number leads outwards, the others back. The first
# demonstrator wants to the end of the first arm and leaves there, the second to the end of the second; nobody wants into the third.

GOALS = (2, 4)
ARRIVALS = ((1, 0), (3, 1))
"""Place and action of the last step to each goal."""
NEXT_PLACE = np.array([[1, 3, 5], [2, 0, 0], [2, 1, 1], [0, 4, 0], [3, 4, 3], [0, 0, 6], [5, 5, 6]])
GAMMA, BETA = 0.8, 10.0


def boltzmann(goal: int) -> np.ndarray:
    """The policy of a demonstrator who is paid 1 on arrival: ``[place, action]``."""
    arrives = NEXT_PLACE == goal
    value = np.zeros(PLACES)
    for _ in range(100):
        q = arrives + GAMMA * ~arrives * value[NEXT_PLACE]
        policy = np.exp(BETA * q) / np.exp(BETA * q).sum(axis=1, keepdims=True)
        value = np.sum(policy * q, axis=1)
    return policy  # pyright: ignore[reportPossiblyUnboundVariable]


def walks(goal: int, steps: int = 400) -> np.ndarray:
    """Place, action, next place, next action: walks from anywhere to the goal."""
    rng = np.random.default_rng(goal)
    policy, rows, reached, action = boltzmann(goal), [], goal, 0
    while len(rows) < steps:
        place = reached
        if place == goal:
            place = rng.choice([p for p in range(PLACES) if p != goal])
            action = rng.choice(ACTIONS, p=policy[place])
        reached = NEXT_PLACE[place, action]
        next_action = NO_ACTION if reached == goal else rng.choice(ACTIONS, p=policy[reached])
        rows.append((place, action, reached, next_action))
        action = next_action
    return np.array(rows)


def crossing_demos(goals: tuple[int, ...] = GOALS) -> Demos:
    place, action, reached, next_action = np.moveaxis(np.array([walks(goal) for goal in goals], np.int32), -1, 0)
    discount = (reached != np.array(goals)[:, None]).astype(np.float32)
    steps = numpy_record(Demonstration, see(place), action, discount, see(reached), next_action)
    return jax.tree.map(jnp.asarray, numpy_record(Demos, steps, np.full(len(goals), place.shape[1], np.int32)))


def crossing_experience() -> Transition:
    """Every action in every place, once, ``[T, N] = [places, actions]``."""
    place, action = np.meshgrid(np.arange(PLACES), np.arange(ACTIONS), indexing="ij")
    zero = np.zeros(place.shape, np.float32)
    steps = numpy_record(Transition, see(place), action.astype(np.int32), zero, zero + 1, see(NEXT_PLACE), zero > 0)
    return jax.tree.map(jnp.asarray, steps)


LEARN = replace(
    TABLES, torso_hidden=(16,), phi_hidden=(16,), psi_hidden=(16,), learning_rate=0.01, cosine=True, clip=10.0,
    batch=32, cross_batch=42, gamma=GAMMA, bc_weight=1.0, l1_weight=0.01, itd_weight=10.0, beta=BETA, cross_policy=10.0, anchor=10.0,
    sparsity=0.3, axis_preferences=True, ema=0.05, replay_size=PLACES * ACTIONS,
)  # fmt: skip
LONG = PACE._replace(updates=600)


def start(config: ITDConfig, goals: tuple[int, ...]) -> tuple[Any, itd.State]:
    """The agent and a first state with the crossing's demonstrations and experience in it."""
    agent, demos = itd.make(config, SPEC, len(goals), LONG), crossing_demos(goals)
    shapes = jax.eval_shape(agent.init, KEY, demos)
    net = drawn(shapes.net, scale=0.3)
    schedules = {"optimiser": optim.start(itd.make_optimiser(config, LONG), net), "ramp": itd.ramp_length(config, LONG)}
    state = blank(shapes)._replace(net=net, target=net, demos=demos, seen=demos.count, **schedules)
    return agent, jax.jit(agent.observe)(state, crossing_experience())


def hundred_updates(agent: Any):
    return quick_jit(lambda state, key: jax.lax.scan(agent.update, state, jax.random.split(key, 100)))


@pytest.fixture(scope="module")
def crossing():
    """The agent, its first state, and a function that makes a hundred updates."""
    agent, state = start(LEARN, GOALS)
    return agent, state, hundred_updates(agent)


def learn(state: itd.State, hundred, parts: int) -> tuple[itd.State, dict[str, np.ndarray]]:
    metrics = {}
    for part in range(parts):
        state, metrics = hundred(state, jax.random.key(part))
    return state, jax.tree.map(lambda x: np.asarray(x).mean(), metrics)


@pytest.fixture(scope="module")
def learned(crossing) -> tuple[itd.State, dict[str, np.ndarray]]:
    """The state after all updates, and the means of the last hundred's metrics."""
    _, state, hundred = crossing
    return learn(state, hundred, LONG.updates // 100)


def inferred_rewards(config: ITDConfig, state: itd.State) -> np.ndarray:
    """``[K, place, action]``, in units of reward."""

    @quick_jit
    def judge(state: itd.State, obs: jax.Array, action: jax.Array) -> jax.Array:
        assert state.demos is not None
        net = itd.deployed(config, state)
        w = itd.preferences(config, net.w)
        return models.rewards(Model(net, w, models.measure_units(net, w, state.demos)), obs, action)

    steps = crossing_experience()
    rewards = judge(state, np.asarray(steps.obs).reshape(-1, PLACES), np.asarray(steps.action).ravel())
    return np.asarray(rewards).T.reshape(-1, PLACES, ACTIONS)


def assert_paid_on_arrival(reward: np.ndarray, arrival: tuple[int, int]) -> None:
    assert np.unravel_index(reward.argmax(), reward.shape) == arrival
    assert reward[arrival] > 1.25 * np.sort(reward, axis=None)[-2]


def test_itd_imitates_both_demonstrators(crossing, learned):
    agent, (state, metrics) = crossing[0], learned
    everywhere = jnp.asarray(np.repeat(see(np.arange(PLACES)), AGENTS, axis=0))  # the demonstrators in turn
    actions = np.asarray(quick_jit(agent.policy)(state, everywhere, KEY)).reshape(PLACES, AGENTS)
    for k, goal in enumerate(GOALS):
        policy = boltzmann(goal)
        elsewhere = [place for place in range(PLACES) if place != goal]
        np.testing.assert_allclose(policy[elsewhere, actions[elsewhere, k]], policy[elsewhere].max(axis=1))  # a likeliest action
    assert metrics["accuracy"] > 0.7  # what remains are ties and the demonstrators' own noise


def test_itd_finds_out_what_each_demonstrator_wants(learned):
    for reward, arrival in zip(inferred_rewards(LEARN, learned[0]), ARRIVALS, strict=True):
        assert_paid_on_arrival(reward, arrival)


def test_a_learned_phi_has_rank_and_signal(learned):
    assert learned[1]["rank"] > 1.5 and learned[1]["signal"] > 0.5


def test_the_same_key_gives_the_same_bits_and_another_does_not(crossing):
    _, state, hundred = crossing
    runs = [jax.tree.leaves(jax.tree.map(np.asarray, hundred(state, jax.random.key(seed)))) for seed in (0, 0, 1)]
    assert all(np.array_equal(a, b) for a, b in zip(runs[0], runs[1], strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(runs[0], runs[2], strict=True))


def test_while_it_learns_it_acts_at_random(crossing):
    agent, state, _ = crossing
    actions = np.asarray(quick_jit(agent.act)(state, np.zeros((600, PLACES)), KEY))
    np.testing.assert_allclose(np.bincount(actions) / 600, 1 / ACTIONS, atol=0.06)


def test_the_target_follows_by_a_moving_average_and_is_what_is_deployed(crossing):
    _, state, _ = crossing
    moved = quick_jit(partial(itd.next_target, LEARN))(TARGET, NET, np.int32(1))
    expected = jax.tree.map(lambda t, n: np.asarray(t) + LEARN.ema * (np.asarray(n) - np.asarray(t)), TARGET, NET)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-6), moved, expected)
    assert itd.deployed(LEARN, state) is state.target
    assert itd.deployed(replace(LEARN, ema=0.0), state) is state.net


def test_one_demonstrator_and_one_cumulant_will_do():
    config = replace(LEARN, num_cumulants=1)
    agent, state = start(config, GOALS[:1])
    state, metrics = learn(state, hundred_updates(agent), LONG.updates // 100)
    assert metrics["accuracy"] > 0.7
    assert_paid_on_arrival(inferred_rewards(config, state)[0], ARRIVALS[0])


# --- Imagined preferences ------------------------------------------------------------------------------------------------

ENDS = (2, 4, 6)
"""The ends of the three arms: nobody goes to the third."""
IMAGINES = replace(LEARN, cumulants="given", through_psi=True, sparsity=0.0, nonnegative=0.0, axis_preferences=False, imagined=len(ENDS))
WHERE = Given(jnp.ones(PLACES), lambda obs, action, next_obs, terminated: next_obs, True)
"""Cumulants of the crossing: where a step leads."""


def imagining(config: ITDConfig, agents: int) -> tuple[Any, itd.State]:
    """The agent, and a first state with heads for those who want to be at the ends of the arms."""

    def initial(key: jax.Array, heads: int) -> PsiPhiNet:
        net = itd.initial_net(config, SPEC, heads, key, WHERE)
        return eqx.tree_at(lambda n: n.w, net, net.w.at[agents:].set(see(np.array(ENDS))))

    agent = itd.make(config, SPEC, agents, LONG, initial)
    state = quick_jit(agent.init)(KEY, crossing_demos() if agents else None)
    return agent, jax.jit(agent.observe)(state, crossing_experience())


def best_actions(place: int) -> np.ndarray:
    """``[place, action]``: what leads soonest to `place`, by value iteration."""
    arrives, q = NEXT_PLACE == place, np.zeros(NEXT_PLACE.shape)
    for _ in range(100):
        q = arrives + GAMMA * q.max(axis=1)[NEXT_PLACE]
    return q > q.max(axis=1, keepdims=True) - 1e-6


@pytest.mark.parametrize("agents", [0, AGENTS], ids=["alone", "beside demonstrators"])
def test_an_imagined_head_finds_the_best_policy_for_its_preferences(agents):
    config = IMAGINES if agents else replace(IMAGINES, bc_weight=0.0, itd_weight=0.0)
    assert itd.watches(config) == bool(agents)
    agent, state = imagining(config, agents)
    state, metrics = learn(state, hundred_updates(agent), LONG.updates // 100)
    net = itd.deployed(config, state)
    np.testing.assert_array_equal(net.w[agents:], see(np.array(ENDS)))  # what is imagined is not learned
    values = quick_jit(lambda obs: net.task_values(obs, net.w).mean(axis=2))(see(np.arange(PLACES)))
    for head, place in enumerate(ENDS):
        chosen = np.asarray(values[:, agents + head]).argmax(axis=1)
        assert best_actions(place)[np.arange(PLACES), chosen].all()
    assert ("accuracy" in metrics) == bool(agents) and "imagined" in metrics


def test_what_is_imagined_trains_no_demonstrators_head():
    _, state = imagining(IMAGINES, AGENTS)
    cross = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), crossing_experience())
    gradient = quick_jit(jax.grad(lambda net: itd.imagination(IMAGINES, net, state.target, cross)))(state.net)
    assert largest([x[:AGENTS] for x in jax.tree.leaves(gradient.psi_heads)]) == largest(gradient.w) == 0
    assert all(largest(x[AGENTS:]) > 0 for x in jax.tree.leaves(gradient.psi_heads))


def test_what_is_imagined_is_pursued_in_turn():
    agent, state = imagining(replace(IMAGINES, pursue=1.0), AGENTS)
    obs = see(np.zeros(len(ENDS), int))
    act = quick_jit(agent.act)
    for count in (1, itd.STRETCH):
        now = state._replace(count=jnp.int32(count))
        psi = state.target.psi(state.target.features(jnp.asarray(obs)))
        turns = [(i + count // itd.STRETCH) % len(ENDS) for i in range(len(ENDS))]
        expected = [int(gpi.action(psi[i], state.target.w[AGENTS + turn])) for i, turn in enumerate(turns)]
        assert act(now, obs, KEY).tolist() == expected
    many = np.asarray(act(state, np.zeros((600, PLACES), np.float32), KEY))  # before the first update
    np.testing.assert_allclose(np.bincount(many) / 600, 1 / ACTIONS, atol=0.06)


@pytest.mark.parametrize(
    "changes", [{"code": 2}, {"cross_policy": 0.0}, {"through_psi": False}, {"imagined": 0, "pursue": 0.5}], ids=lambda c: "+".join(c)
)
def test_what_cannot_be_imagined_is_refused(changes):
    with pytest.raises(UserError, match="imagined is"):
        itd.make(replace(IMAGINES, **changes), SPEC, AGENTS, PACE)


def test_who_cannot_imagine_says_so():
    psiphi_config = psiphi.PsiPhiConfig(itd=replace(IMAGINES, alternate=False))
    with pytest.raises(UserError, match="itd.imagined is 3"):
        psiphi.make(psiphi_config, SPEC, AGENTS, PACE)
    with pytest.raises(UserError, match="itd.imagined is 3"):
        together.check(together.TogetherConfig(itd=IMAGINES), AGENTS, PACE._replace(num_envs=AGENTS))


# --- Switches ------------------------------------------------------------------------------------------------------------


def off(*terms: str, on: str = "experience") -> ITDConfig:
    return replace(TABLES, cross_policy_on=on, **{TERMS[term]: 0.0 for term in terms})


@pytest.mark.parametrize("terms", [*((term,) for term in TERMS), ("cross_policy", "sparsity")], ids="+".join)
def test_terms_can_be_switched_off(terms):
    agent = itd.make(off(*terms), SPEC, AGENTS, PACE)
    before = jax.eval_shape(agent.init, KEY, crossing_demos())
    after, metrics = jax.eval_shape(agent.update, before, KEY)
    assert set(metrics) == set(TERMS) - set(terms) | {"accuracy", "rank", "signal"}
    assert jax.tree.map(lambda x: (x.shape, x.dtype), after) == jax.tree.map(lambda x: (x.shape, x.dtype), before)


def test_both_are_as_many_steps_of_the_ego_as_of_the_demonstrators():
    demos, agent = crossing_demos(), itd.make(TABLES, SPEC, AGENTS, PACE)
    state = jax.eval_shape(agent.init, KEY, demos)
    ring = replay.make_experience(num_envs=PACE.num_envs, size=TABLES.replay_size, batch=TABLES.cross_batch, n_step=1)
    filled = state._replace(demos=demos, experience=replay.remember(ring, blank(state.experience), crossing_experience()))
    draw = quick_jit(lambda key: itd.sample(replace(TABLES, cross_policy_on="both", mirror=False), SPEC, ring, filled, key))
    _, cross, weight = draw(KEY)
    half = TABLES.cross_batch
    assert cross.action.shape == weight.shape == (2 * half,)

    def steps(*columns) -> set[bytes]:
        rows = [np.asarray(x, np.float32).reshape(-1, SPEC.obs_shape[0]) for x in columns]
        return {row.tobytes() for row in np.concatenate(rows, axis=1)}

    shown = steps(demos.steps.obs, demos.steps.next_obs)
    driven = steps(crossing_experience().obs, crossing_experience().next_obs)
    assert steps(cross.obs[:half], cross.next_obs[:half]) <= driven and steps(cross.obs[half:], cross.next_obs[half:]) <= shown


ANYBODYS_STEPS = {
    "no cross-policy": off("cross_policy"),
    "no cross-policy, pooled": off("cross_policy", on="pooled"),
}


@pytest.fixture(scope="module")
def judged():
    """The total and the metrics of a batch that is drawn and judged without cross-policy evaluation: the prior still needs steps."""
    demos, agent = crossing_demos(), itd.make(TABLES, SPEC, AGENTS, PACE)
    shapes = jax.eval_shape(agent.init, KEY, demos)
    empty = blank(shapes.experience)
    ring = replay.make_experience(num_envs=PACE.num_envs, size=TABLES.replay_size, batch=TABLES.cross_batch, n_step=1)

    @quick_jit
    def judge(key: jax.Array) -> dict[str, tuple[jax.Array, dict[str, jax.Array]]]:
        state = shapes._replace(demos=demos, experience=replay.remember(ring, empty, crossing_experience()))
        draw = partial(itd.sample, spec=SPEC, experience=ring, state=state, key=key)
        return {
            name: itd.joint_loss(NET, TARGET, *draw(config), ramp_at(COUNT), config)  # pyright: ignore[reportCallIssue]
            for name, config in ANYBODYS_STEPS.items()
        }

    return judge(KEY)


@pytest.mark.parametrize("name", ANYBODYS_STEPS)
def test_no_term_is_lost_for_want_of_steps(judged, name):
    total, metrics = judged[name]
    assert np.isfinite(total) and all(np.isfinite(value) for value in metrics.values())
    assert float(metrics["sparsity"]) > 0


# --- The paper's algorithm 1 ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def papers():
    """Two updates of the paper's preset, with small layers; states before, between and after, and the last metrics."""
    small = {"torso": "mlp", "torso_hidden": (8,), "phi_hidden": (8,), "psi_hidden": (8,), "batch": 3}
    config, demos = replace(itd.paper(TABLES), **small, target_period=2), crossing_demos()
    agent = itd.make(config, SPEC, AGENTS, PACE)
    shapes = jax.eval_shape(agent.init, KEY, demos)
    net = drawn(shapes.net)
    state = blank(shapes)._replace(net=net, target=net, demos=demos, seen=demos.count)
    states, metrics, update = [state], {}, quick_jit(agent.update)
    for seed in range(2):
        state, metrics = update(states[-1], jax.random.key(seed))
        states.append(state)
    return states, metrics


def moment(optimiser: Any) -> PsiPhiNet:
    """Adam's first moment: zero for a parameter that never got a gradient."""
    (found,) = [leaf.mu for leaf in jax.tree.leaves(optimiser, is_leaf=lambda x: hasattr(x, "mu")) if hasattr(leaf, "mu")]
    return found


def test_the_papers_preset_has_the_papers_terms_and_no_other(papers):
    metrics = papers[1]
    assert set(metrics) == {"bc_q", "l1", "itd", "accuracy", "rank", "signal"}
    assert all(np.isfinite(value) for value in metrics.values())


def test_the_papers_two_steps_have_an_optimiser_each(papers):
    imitation, explanation = (moment(optimiser) for optimiser in papers[0][-1].optimiser)
    assert largest(imitation.phi_head) == 0 and min(map(largest, (imitation.torso, imitation.psi_heads, imitation.w))) > 0
    assert largest(explanation.w) == 0 and min(map(largest, (explanation.torso, explanation.psi_heads, explanation.phi_head))) > 0


def test_the_papers_target_is_a_copy_every_period(papers):
    before, between, after = papers[0]
    assert_same(between.target, before.target)
    assert not np.array_equal(between.net.phi_head.weights[0], before.net.phi_head.weights[0])
    assert_same(after.target, after.net)


def test_the_papers_preset_fits_the_papers_board():
    agent = itd.make(itd.paper(), EnvSpec((7, 7, 5), jnp.uint8, 3), AGENTS, PACE)
    obs, whole = jax.ShapeDtypeStruct((AGENTS, 9, 7, 7, 5), jnp.uint8), jax.ShapeDtypeStruct((AGENTS, 9), jnp.int32)
    discount, count = jax.ShapeDtypeStruct((AGENTS, 9), jnp.float32), jax.ShapeDtypeStruct((AGENTS,), jnp.int32)
    demos = numpy_record(Demos, numpy_record(Demonstration, obs, whole, discount, obs, whole), count)
    before = jax.eval_shape(agent.init, KEY, demos)
    after, _ = jax.eval_shape(agent.update, before, KEY)
    assert jax.tree.map(lambda x: (x.shape, x.dtype), after) == jax.tree.map(lambda x: (x.shape, x.dtype), before)
