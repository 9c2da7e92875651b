"""DQN: its loss against plain loops, who gets gradients from what, and worlds whose values it must find."""

from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import probes
from psiphi import replay
from psiphi.agents import dqn
from psiphi.agents.dqn import DQNConfig
from psiphi.errors import UserError
from psiphi.loops import scan
from psiphi.nets import ActionNet
from psiphi.types import Demonstration, Demos, Pace, Transition
from tables import blank, drawn, numpy_record, quick_jit

KEY = jax.random.key(0)
PROBES = {
    probe.__name__: probe() for probe in (probes.one_step, probes.two_steps, probes.say_what_you_see, probes.time_limit, probes.termination)
}
MEDLEY = probes.medley(*PROBES.values())
ENV = probes.make(MEDLEY)
PLACES, ACTIONS = MEDLEY.reward.shape
AGENTS = 2

PLAIN = DQNConfig(
    torso="mlp", torso_hidden=(32,), head_hidden=(), gamma=probes.GAMMA, n_step=1, double=False, huber=0.0, learning_rate=5e-3, cosine=True,
    clip=10.0, batch=32, replay_size=4096, epsilon_start=1.0, epsilon_end=0.5, epsilon_steps=1000, ema=0.1,
    target_period=7, mirror=False, bc_weight=0.0, bc_batch=16,
)  # fmt: skip
"""No number here is a default."""
AUX = replace(PLAIN, n_step=3, double=True, bc_weight=0.3)
PACE = Pace(num_envs=16, updates=600)
LOOP = scan.LoopConfig(iterations=600, chunk=600, num_envs=16, prefill_steps=256, seed=5)


def see(place: np.ndarray) -> np.ndarray:
    return np.eye(PLACES, dtype=np.float32)[place]


def q_table(net: ActionNet) -> np.ndarray:
    return np.asarray(quick_jit(lambda net, obs: net(obs))(net, see(np.arange(PLACES))))


def network(seed: int, clones: int = AGENTS) -> ActionNet:
    return drawn(jax.eval_shape(lambda: dqn.initial_net(AUX, ENV.spec, clones, KEY)), seed)


NET, TARGET = network(1), network(2)

SHARES = np.random.default_rng(3).dirichlet(np.ones(ACTIONS), (AGENTS, PLACES))
"""What each demonstrator does where, as probabilities."""


def demonstrations(count: tuple[int, ...] = (400, 400)) -> Demos:
    rng = np.random.default_rng(0)
    place = rng.integers(0, PLACES, (AGENTS, max(count)))
    action = (rng.random(place.shape) > SHARES[np.arange(AGENTS)[:, None], place, 0]).astype(np.int32)
    discount = (1.0 - MEDLEY.ends[place, action]).astype(np.float32)
    steps = numpy_record(Demonstration, see(place), action, discount, see(MEDLEY.next_place[place, action]), action)
    return jax.tree.map(jnp.asarray, numpy_record(Demos, steps, np.array(count, np.int32)))


# --- The loss ------------------------------------------------------------------------------------------------------------

ROWS = 6


def batch() -> Transition:
    """Folded transitions: `discount` holds gamma^n, and 0 where the task ended; every other field is random."""
    rng = np.random.default_rng(1)
    discount = np.array([0.5, 0.25, 0.125, 0.0, 0.5, 0.0], np.float32)
    reward = 3 * rng.normal(size=ROWS).astype(np.float32)
    obs, next_obs = see(rng.integers(0, PLACES, ROWS)), see(rng.integers(0, PLACES, ROWS))
    return numpy_record(Transition, obs, rng.integers(0, ACTIONS, ROWS, np.int32), reward, discount, next_obs, discount == 0)


@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("knee", [0.0, 0.5])
def test_the_loss_is_the_mean_squared_or_hubers_bellman_error(double, knee):
    backup = dqn.double_backup if double else dqn.hard_backup
    found = quick_jit(lambda net, target, batch: dqn.td_loss(net, target, batch, backup, knee))(NET, TARGET, batch())[0]
    q, target_q, b = q_table(NET), q_table(TARGET), batch()
    assert np.any(q.argmax(1) != target_q.argmax(1))  # else the two backups are one
    total = 0.0
    for here, action, reward, discount, there in zip(b.obs.argmax(1), b.action, b.reward, b.discount, b.next_obs.argmax(1), strict=True):
        best = target_q[there, q[there].argmax()] if double else target_q[there].max()
        error = abs(q[here, action] - reward - discount * best)
        total += error**2 if not knee or error <= knee else 2 * knee * error - knee**2
    np.testing.assert_allclose(found, total / ROWS, rtol=1e-5)


def largest(tree: Any) -> float:
    return max(float(np.abs(leaf).max()) for leaf in jax.tree.leaves(tree))


@pytest.fixture(scope="module")
def gradients() -> dict[str, ActionNet]:
    """Of the TD loss, of the cloning loss, and of the latter on the first demonstrator's steps alone."""
    demo = jax.tree.map(lambda x: x[:, :16], demonstrations().steps)

    def terms(net: ActionNet, batch: Transition) -> dict[str, jax.Array]:
        both, first = jnp.array([True, True]), jnp.array([True, False])
        clone, one = dqn.cloning_loss(net, demo, both)[0], dqn.cloning_loss(net, demo, first)[0]
        return {"td": dqn.td_loss(net, TARGET, batch, dqn.double_backup)[0], "clone": clone, "first": one}

    return jax.tree.map(np.asarray, quick_jit(jax.jacrev(terms))(NET, batch()))


def test_the_cloning_heads_never_learn_from_rewards_and_the_values_never_from_cloning(gradients):
    assert largest(gradients["td"].clone_heads) == 0 and largest(gradients["td"].head) > 0
    assert largest(gradients["clone"].head) == 0 and largest(gradients["clone"].clone_heads) > 0


def test_the_torso_learns_from_both(gradients):
    assert largest(gradients["td"].torso) > 0 and largest(gradients["clone"].torso) > 0


def test_a_demonstrator_never_touches_anothers_head(gradients):
    for leaf in jax.tree.leaves(gradients["first"].clone_heads):
        assert largest(leaf[0]) > 0 and largest(leaf[1]) == 0
    # Nobody's weight is lost on those who have shown nothing: the mean is over those who have.
    for one, both in zip(*(jax.tree.leaves(gradients[name].clone_heads) for name in ("first", "clone")), strict=True):
        np.testing.assert_allclose(one[0], 2 * both[0], rtol=1e-4, atol=1e-7)


# --- Acting --------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def actor():
    """A state of random networks, and what it does on 2000 observations: as a learner, and judged."""
    agent = dqn.make(AUX, ENV.spec, AGENTS, PACE)
    state = blank(jax.eval_shape(agent.init, KEY, demonstrations()))._replace(net=NET, target=TARGET)
    obs = see(np.arange(2000) % PLACES)
    both = jax.jit(lambda state, obs, key: (agent.act(state, obs, key), agent.policy(state, obs, key)))
    return state, lambda state: tuple(np.asarray(x) for x in both(state, obs, KEY))


def test_it_acts_epsilon_greedily_by_its_network_and_is_judged_greedily_by_the_average(actor):
    state, both = actor
    for env_steps, share in ((0, 1.0), (500, 0.75), (1000, 0.5), (10_000, 0.5)):
        acted, judged = both(state._replace(env_steps=jnp.int32(env_steps)))
        greedy = q_table(NET).argmax(1)[np.arange(2000) % PLACES]
        np.testing.assert_allclose(np.mean(acted != greedy), share * (1 - 1 / ACTIONS), atol=0.03)
        np.testing.assert_array_equal(judged, q_table(TARGET).argmax(1)[np.arange(2000) % PLACES])


def test_the_cloning_heads_do_not_act(actor):
    state, both = actor
    turned = [eqx.tree_at(lambda n: n.clone_heads, net, jax.tree.map(lambda x: 9 - x, net.clone_heads)) for net in (NET, TARGET)]
    for before, after in zip(both(state), both(state._replace(net=turned[0], target=turned[1])), strict=True):
        np.testing.assert_array_equal(before, after)


def test_without_a_moving_average_the_last_network_is_judged():
    agent = dqn.make(PLAIN, ENV.spec, 0, PACE)
    state = blank(jax.eval_shape(agent.init, KEY, None))._replace(net=NET, target=TARGET)
    assert dqn.deployed(PLAIN, state) is TARGET and dqn.deployed(replace(PLAIN, ema=0.0), state) is NET


def test_an_offset_is_taken_off_every_reward_that_is_folded():
    steps = 4
    config = replace(PLAIN, n_step=3, batch=64, reward_offset=0.25)
    experience = dqn.make_experience(config, Pace(num_envs=1))
    nothing = replay.blank_transition(ENV.spec)
    row = jax.tree.map(lambda x: jnp.broadcast_to(x, (1, steps, *x.shape)), nothing)
    rewards, last = jnp.array([1.0, 2.0, 4.0, 8.0]), jnp.array([False, True, False, False])
    memory = experience.add(experience.init(nothing), row._replace(reward=rewards[None], discount=1.0 - last[None], last=last[None]))
    state = blank(jax.eval_shape(dqn.make(config, ENV.spec, 0, Pace(num_envs=1)).init, KEY, None))._replace(experience=memory)
    batch = dqn.sample(config, ENV.spec, experience, state, KEY)
    # From the first step the end cuts the fold short; the second is that end.
    assert set(np.asarray(batch.reward).tolist()) == {0.75 + 0.5 * 1.75, 1.75}


# --- Learning ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=["plain", "aux"])
def trained(request) -> tuple[DQNConfig, scan.Program, Demos | None, scan.Result]:
    """One step and the hard backup without demonstrations; three steps and the double backup with cloning heads."""
    config, demos = {"plain": (PLAIN, None), "aux": (AUX, demonstrations())}[request.param]
    agent = dqn.make(config, ENV.spec, 0 if demos is None else AGENTS, PACE)
    program = scan.compile_run(ENV, agent, LOOP)
    with pytest.MonkeyPatch.context() as patch:  # not to compile it twice
        patch.setattr(scan, "compile_run", lambda *_: program)
        return config, program, demos, scan.run(ENV, agent, demos, LOOP, progress=False)


@pytest.mark.parametrize("name", PROBES)
def test_it_learns_the_values_of_the_probes(trained, name):
    """In the loop that runs every agent. Those of `time_limit` are found only if a time limit bootstraps, those of `termination` only
    if an end does not."""
    config, _, _, result = trained
    offset = sum(len(probe.reward) for probe in list(PROBES.values())[: list(PROBES).index(name)])
    expected = PROBES[name].values
    found = q_table(dqn.deployed(config, result.agent()))[offset : offset + len(expected), : expected.shape[1]]
    np.testing.assert_allclose(found, expected, atol=0.05)


def test_the_loss_falls_and_steps_are_counted(trained):
    config, _, _, result = trained
    state = result.agent()
    assert int(state.env_steps) == result.rows[-1]["env_steps"] == 256 + 600 * 16
    assert int(state.count) == 600 and ("train/clone_loss" in result.rows[-1]) == bool(config.bc_weight)


def test_the_cloning_heads_learn_the_demonstrators_probabilities(trained):
    config, _, demos, result = trained
    if demos is None:
        assert result.agent().net.clone_heads is None and result.agent().demos is None
        return
    every = np.broadcast_to(see(np.arange(PLACES)), (AGENTS, PLACES, PLACES))
    found = jax.nn.softmax(quick_jit(ActionNet.clones)(dqn.deployed(config, result.agent()), every))
    np.testing.assert_allclose(found, shares(demos), atol=0.1)


def shares(demos: Demos) -> np.ndarray:
    """How often each demonstrator did what where, ``[K, place, action]``."""
    place, action = np.asarray(demos.steps.obs).argmax(-1), np.asarray(demos.steps.action)
    times = np.zeros((AGENTS, PLACES, ACTIONS))
    np.add.at(times, (np.arange(AGENTS)[:, None], place, action), 1)
    return times / times.sum(-1, keepdims=True)


def test_one_seed_gives_the_same_bits_twice(trained):
    _, program, demos, _ = trained
    seed = jnp.stack([jax.random.key(7)])
    first, second = (program.chunk(program.begin(seed, demos), 20)[0].agent for _ in range(2))
    for x, y in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True):
        np.testing.assert_array_equal(np.asarray(x), np.asarray(y))


def test_periodic_copies_come_every_so_many_updates():
    config = replace(PLAIN, ema=0.0, target_period=3)
    optimiser = dqn.make_optimiser(config, PACE)
    agent = dqn.make(config, ENV.spec, 0, PACE)
    learn = quick_jit(lambda state: dqn.learn(config, optimiser, state, jax.tree.map(jnp.asarray, batch()), dqn.hard_backup)[0])
    state = quick_jit(agent.init)(KEY, None)
    nets, targets = [np.asarray(state.net.head.biases[0])], []
    for _ in range(6):
        state = learn(state)
        nets.append(np.asarray(state.net.head.biases[0]))
        targets.append(np.asarray(state.target.head.biases[0]))
    np.testing.assert_array_equal(targets, [nets[i] for i in (0, 0, 3, 3, 3, 6)])
    assert not np.array_equal(nets[3], nets[2])


# --- Bad input -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"n_step": 0}, "n_step is 0, expected at least 1"),
        ({"batch": 0}, "batch is 0, expected at least 1"),
        ({"target_period": 0}, "target_period is 0, expected at least 1"),
        ({"gamma": 1.5}, "gamma is 1.5, expected a number from 0 to 1"),
        ({"epsilon_end": -0.1}, "epsilon_end is -0.1, expected a number from 0 to 1"),
        ({"bc_weight": 0.1}, "bc_weight is 0.1, but there is no demonstrator to clone"),
    ],
)
def test_what_cannot_be_done_is_refused(changes, sentence):
    with pytest.raises(UserError, match=sentence):
        dqn.make(replace(PLAIN, **changes), ENV.spec, 0, PACE)


def test_cloning_without_demonstrations_or_with_anothers_is_refused():
    agent = dqn.make(AUX, ENV.spec, 3, PACE)
    with pytest.raises(UserError, match="There are no demonstrations"):
        jax.eval_shape(agent.init, KEY, None)
    with pytest.raises(UserError, match="demonstrations of 2 demonstrators, expected those of 3"):
        jax.eval_shape(agent.init, KEY, demonstrations())


def test_the_papers_preset_keeps_what_the_paper_does_not_print():
    assert dqn.paper(replace(PLAIN, epsilon_end=0.25)).epsilon_end == 0.25 and dqn.paper().target_period == 1000
