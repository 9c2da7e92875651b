"""A DQN that follows clones: they lead it where they would go, and share nothing with it."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import probes
from psiphi.agents import bc, following, guided
from psiphi.agents.bc import BCConfig
from psiphi.agents.dqn import DQNConfig
from psiphi.agents.guided import GuidedConfig
from psiphi.errors import UserError
from psiphi.loops import scan
from psiphi.types import Demonstration, Demos, Env, Pace

WORLD = probes.say_what_you_see()
ENV = probes.make(WORLD)
KEY = jax.random.key(0)
AGENTS, N = 2, 6
NET = {"torso": "mlp", "torso_hidden": (16,), "head_hidden": (), "learning_rate": 0.01, "batch": 16, "mirror": False}
CONFIG = GuidedConfig(
    dqn=DQNConfig(**NET, gamma=0.5, replay_size=240, epsilon_end=0.3, epsilon_steps=100),
    clone=BCConfig(**NET),
    follow=1.0, followed=0.5, follow_on=0.5, stretch=4,
)  # fmt: skip
PACE = Pace(num_envs=N, updates=200)
LOOP = scan.LoopConfig(iterations=PACE.updates, chunk=PACE.updates, num_envs=N, prefill_steps=60, seed=3)
PLACES = jnp.eye(2)


def shown() -> Demos:
    """The first always says 0, the second 1: neither says what it sees, as the world pays for."""
    obs = jnp.broadcast_to(jnp.tile(PLACES, (10, 1)), (AGENTS, 20, 2))
    action = jnp.broadcast_to(jnp.arange(AGENTS, dtype=jnp.int32)[:, None], (AGENTS, 20))
    return Demos(Demonstration(obs, action, jnp.zeros((AGENTS, 20)), obs, action), jnp.full(AGENTS, 20, jnp.int32))


def trained(env: Env) -> guided.State:
    return scan.run(env, guided.make(CONFIG, env.spec, AGENTS, PACE), shown(), LOOP, progress=False).agent()


@pytest.fixture(scope="module")
def state() -> guided.State:
    return trained(ENV)


def test_it_does_what_pays_though_no_demonstrator_does(state):
    agent = guided.make(CONFIG, ENV.spec, AGENTS, PACE)
    assert agent.policy(state, PLACES, KEY).tolist() == [0, 1]


def test_where_it_is_led_it_does_what_the_clone_does_that_was_drawn(state):
    always = guided.make(dataclasses.replace(CONFIG, follow_on=1.0), ENV.spec, AGENTS, PACE)
    obs = jnp.tile(PLACES, (N // 2, 1))
    whose = following.whom(CONFIG, state.clones.count, N, AGENTS)
    assert set(whose.tolist()) == {0, 1}
    assert always.act(state, obs, KEY).tolist() == whose.tolist()  # clone k says k, whatever it sees
    unled = state._replace(clones=state.clones._replace(count=jnp.int32(0)))  # before it has learned from them
    assert not following.led(CONFIG, jnp.int32(0), N, PACE.updates).any()
    seen = jnp.stack([always.act(unled, obs, key) for key in jax.random.split(KEY, 40)])
    assert np.mean(seen == jnp.argmax(obs, axis=1)) > 0.75  # its own greedy actions, and some at random


def test_clones_learn_the_same_whatever_is_paid(state):
    other = trained(probes.make(WORLD._replace(reward=-WORLD.reward)))
    assert guided.make(CONFIG, ENV.spec, AGENTS, PACE).policy(other, PLACES, KEY).tolist() == [1, 0]
    for x, y in zip(jax.tree.leaves(state.clones), jax.tree.leaves(other.clones), strict=True):
        np.testing.assert_array_equal(x, y)
    scores = bc.logits(bc.deployed(CONFIG.clone, state.clones), jnp.stack([PLACES, PLACES]))
    assert jnp.argmax(scores, axis=-1).tolist() == [[0, 0], [1, 1]]


def test_fewer_and_fewer_follow_down_to_those_who_go_on():
    plain = dataclasses.replace(CONFIG, stretch=0, follow_on=0.25)
    shares = [following.led(plain, jnp.int32(n), 100, 200).mean().item() for n in (0, 1, 50, 90, 150)]
    np.testing.assert_allclose(shares, [0.0, 0.99, 0.5, 0.25, 0.25], atol=0.001)
    drawn = dataclasses.replace(CONFIG, follow_on=0.25)
    many = [following.led(drawn, jnp.int32(150 + 4 * n), 100, 200).mean().item() for n in range(20)]
    np.testing.assert_allclose(np.mean(many), 0.25, atol=0.03)


@pytest.mark.parametrize(
    ("config", "agents", "words"),
    [
        (CONFIG, 0, "there are 0 demonstrators; expected at least 1"),
        (dataclasses.replace(CONFIG, dqn=dataclasses.replace(CONFIG.dqn, bc_weight=0.5)), AGENTS, "bc_weight is 0.5, expected 0"),
    ],
)
def test_what_it_cannot_do_is_refused(config, agents, words):
    with pytest.raises(UserError, match=words):
        guided.make(config, ENV.spec, agents, PACE)
