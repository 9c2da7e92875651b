"""ITD and learners on what it infers: each learner does what its demonstrator wants, and what the world pays is never looked at."""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import probes
from psiphi.agents import bc, itd, together
from psiphi.agents.dqn import DQNConfig
from psiphi.agents.itd import ITDConfig
from psiphi.agents.together import TogetherConfig
from psiphi.errors import UserError
from psiphi.loops import scan
from psiphi.types import Agent, Demonstration, Demos, Pace, Transition

ENV = probes.make(probes.say_what_you_see())
KEY = jax.random.key(0)
AGENTS, N = 2, 6
CONFIG = TogetherConfig(
    itd=ITDConfig(
        num_cumulants=2, gamma=0.5, torso="mlp", torso_hidden=(16,), phi_hidden=(16,), psi_hidden=(), learning_rate=0.01, batch=16,
        cross_batch=16, sparsity=0.0, nonnegative=0.1, replay_size=240, mirror=False,
    ),
    dqn=DQNConfig(
        torso="mlp", torso_hidden=(16,), head_hidden=(), gamma=0.5, learning_rate=0.01, cosine=True, batch=16, replay_size=240,
        epsilon_end=0.3, epsilon_steps=100, mirror=False,
    ),
    itd_updates=2, dqn_updates=1,
)  # fmt: skip
PACE = Pace(num_envs=N, updates=300)
LOOP = scan.LoopConfig(iterations=PACE.updates, chunk=PACE.updates, num_envs=N, prefill_steps=60, seed=3)
PLACES = jnp.eye(2)


def shown() -> Demos:
    """The first says what it sees, as the world pays for; the second says the other thing, which the world punishes."""
    place = np.tile(np.arange(2), (AGENTS, 10))
    action = np.stack([place[0], 1 - place[1]]).astype(np.int32)
    obs = np.eye(2, dtype=np.float32)[place]
    steps = Demonstration(*map(jnp.asarray, (obs, action, np.zeros(place.shape, np.float32), obs, action)))
    return Demos(steps, jnp.full(AGENTS, place.shape[1], jnp.int32))


@pytest.fixture(scope="module")
def agent() -> Agent:
    return together.make(CONFIG, ENV.spec, AGENTS, PACE)


@pytest.fixture(scope="module")
def trained(agent) -> together.State:
    return scan.run(ENV, agent, shown(), LOOP, progress=False).agent()


def test_each_learner_does_what_its_demonstrator_wants(agent, trained):
    _, nets = together.deployed(CONFIG, trained)
    found = [jnp.argmax(bc.of_demonstrator(nets, k)(PLACES), axis=-1).tolist() for k in range(AGENTS)]
    assert found == [[0, 1], [1, 0]]
    judged = agent.policy(trained, jnp.concatenate([PLACES, PLACES])[jnp.array([0, 0, 1, 1, 0])], KEY)  # in turn, any number of them
    assert judged.tolist() == [0, 1, 1, 0, 0]


def test_the_learners_were_paid_what_itd_infers(trained):
    steps = Transition(PLACES, jnp.arange(2), jnp.zeros(2), jnp.zeros(2), PLACES, jnp.ones(2, bool))
    others, nets = steps._replace(action=1 - steps.action), together.deployed(CONFIG, trained)[1]
    for k, (better, worse) in enumerate([(steps, others), (others, steps)]):
        gap = together.pay(CONFIG.itd, trained.itd, k, better) - together.pay(CONFIG.itd, trained.itd, k, worse)
        assert float(gap.min()) > 0.1
        q = jnp.take_along_axis(bc.of_demonstrator(nets, k)(PLACES), better.action[:, None], axis=1)[
            :, 0
        ]  # the episode ends: a value is a reward
        np.testing.assert_allclose(q, together.pay(CONFIG.itd, trained.itd, k, better), atol=0.1)


def rollout(reward: float) -> Transition:
    place = np.arange(8 * N).reshape(8, N) % 2
    obs = jnp.asarray(np.eye(2, dtype=np.float32)[place])
    action = jnp.asarray(np.arange(8 * N).reshape(8, N) % 3 % 2, jnp.int32)
    return Transition(obs, action, jnp.full((8, N), reward), jnp.zeros((8, N)), obs, jnp.ones((8, N), bool))


def test_the_worlds_rewards_are_never_read(agent):
    learn = jax.jit(lambda rollout: agent.update(agent.observe(agent.init(KEY, shown()), rollout), KEY)[0])
    first, second = (jax.tree.leaves(learn(rollout(reward))) for reward in (0.0, float("nan")))
    for x, y in zip(first, second, strict=True):
        np.testing.assert_array_equal(np.asarray(x), np.asarray(y))


def test_environments_are_dealt_in_blocks(agent):
    state = jax.jit(lambda: agent.observe(agent.init(KEY, shown()), rollout(1.0)))()
    seen = rollout(1.0)
    mine = state.learners.experience.experience
    for k in range(AGENTS):
        np.testing.assert_array_equal(mine.action[k][:, :8], seen.action[:, 3 * k : 3 * k + 3].T)
    np.testing.assert_array_equal(state.itd.experience.experience.action[:, :8], seen.action.T)
    again = together.side_by_side(together.dealt(seen, AGENTS))
    np.testing.assert_array_equal(again.obs, seen.obs)
    # The first learner always prefers action 0, the second action 1; nobody acts at random any more.
    heads = [jnp.array([1.0, 0.0]), jnp.array([0.0, 1.0])]
    biases = jnp.stack(heads)
    net = jax.tree.map(jnp.zeros_like, state.learners.net)
    net = eqx.tree_at(lambda net: net.head.biases[-1], net, biases)
    quiet = together.make(
        dataclasses.replace(CONFIG, dqn=dataclasses.replace(CONFIG.dqn, epsilon_start=0.0, epsilon_end=0.0)), ENV.spec, 2, PACE
    )
    found = quiet.act(state._replace(learners=state.learners._replace(net=net)), jnp.ones((N, 2)), KEY)
    assert found.tolist() == [0, 0, 0, 1, 1, 1]


def test_schedules_count_each_parts_own_updates(agent):
    state: Any = jax.eval_shape(agent.init, KEY, shown())
    made = jax.jit(agent.init)(KEY, shown())
    assert state.itd.demos is None and made.demos.count.tolist() == [20, 20]
    lengths = [int(x.length) for x in jax.tree.leaves(made.itd.optimiser, is_leaf=lambda x: hasattr(x, "length")) if hasattr(x, "length")]
    assert lengths == [PACE.updates * CONFIG.itd_updates]
    assert float(made.itd.ramp) == CONFIG.itd.sparsity_ramp * lengths[0]


@pytest.mark.parametrize(
    ("change", "agents", "envs", "message"),
    [
        ({}, 4, 6, "num_envs is 6, expected a multiple of 4"),
        ({}, 0, 6, "there are 0 demonstrators; expected at least 1"),
        ({"n_step": 3}, 2, 6, "The learners' n_step is 3, expected 1"),
        ({"bc_weight": 0.1}, 2, 6, "The learners' bc_weight is 0.1, expected 0.0"),
    ],
)
def test_what_cannot_be_is_refused(change, agents, envs, message):
    config = dataclasses.replace(CONFIG, dqn=dataclasses.replace(CONFIG.dqn, **change))
    with pytest.raises(UserError, match=message):
        together.make(config, ENV.spec, agents, Pace(num_envs=envs))


def test_demonstrations_must_be_of_as_many(agent):
    with pytest.raises(UserError, match="There are no demonstrations"):
        jax.eval_shape(agent.init, KEY, None)
    with pytest.raises(UserError, match="of 2 demonstrators, expected those of 3"):
        jax.eval_shape(together.make(CONFIG, ENV.spec, 3, PACE).init, KEY, shown())


def test_its_networks_have_the_shapes_of_what_is_deployed(agent):
    state = jax.eval_shape(agent.init, KEY, shown())
    found = jax.eval_shape(lambda state: together.deployed(CONFIG, state), state)
    expected = jax.eval_shape(lambda key: together.initial_nets(CONFIG, ENV.spec, AGENTS, key), KEY)
    assert jax.tree.map(lambda x: (x.shape, x.dtype), found) == jax.tree.map(lambda x: (x.shape, x.dtype), expected)
    assert isinstance(found[0], itd.PsiPhiNet)
