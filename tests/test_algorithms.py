"""The table of algorithms says of each what is so."""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest

import probes
from psiphi import gpi
from psiphi.agents import ALGORITHMS, algorithm_of
from psiphi.agents.dqn import DQNConfig
from psiphi.agents.gail import GAILConfig
from psiphi.agents.itd import ITDConfig
from psiphi.agents.ppo import PPOConfig
from psiphi.agents.psiphi import PsiPhiConfig
from psiphi.agents.sqil import SQILConfig
from psiphi.errors import UserError
from psiphi.loops import scan
from psiphi.nets import ActionNet
from psiphi.types import Demonstration, Demos, Pace

ENV = probes.make(probes.say_what_you_see())
KEY = jax.random.key(0)
PACE = Pace(num_envs=4, updates=10)
AGENTS = 2


def shown() -> Demos:
    obs, action = jnp.ones((AGENTS, 6, 2)), jnp.zeros((AGENTS, 6), jnp.int32)
    return Demos(Demonstration(obs, action, jnp.ones((AGENTS, 6)), obs, action), jnp.full(AGENTS, 6, jnp.int32))


def shapes(tree: Any) -> Any:
    return jax.tree.structure(tree), [(x.shape, x.dtype) for x in jax.tree.leaves(tree)]


def presets(name: str) -> list[Any]:
    """The default config, and the paper's where there is one; its torso, which reads pictures, exchanged."""
    algorithm = ALGORITHMS[name]
    found = [algorithm.config()]
    if algorithm.paper is not None:
        paper = algorithm.paper()
        changes = {"torso": "mlp"}
        inner = next((field for field in ("itd", "dqn") if hasattr(paper, field)), None)
        found.append(dataclasses.replace(paper, **({inner: dataclasses.replace(getattr(paper, inner), **changes)} if inner else changes)))
    return found


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_loop_runs_it_and_what_is_deployed_has_the_shapes_of_its_net(name):
    algorithm = ALGORITHMS[name]
    assert algorithm.name == name and algorithm.words.endswith(".")
    for config in presets(name):
        assert algorithm_of(config) is algorithm
        agent = algorithm.make(config, ENV.spec, AGENTS, PACE)
        length = algorithm.rollout_length(config)
        loop = scan.LoopConfig(num_envs=4, rollout_length=length, prefill_steps=64 if algorithm.replays else 0)
        env = ENV if algorithm.acts else None
        start = jax.eval_shape(lambda key, demos: scan.begin(env, agent, loop, key, demos), KEY, shown())  # noqa: B023
        end, metrics = jax.eval_shape(lambda carry: scan.iterate(env, agent, loop, carry), start)  # noqa: B023
        assert metrics
        deployed = jax.eval_shape(lambda state: algorithm.deployed(config, state), end.agent)  # noqa: B023
        net = jax.eval_shape(lambda key: algorithm.net(config, ENV.spec, AGENTS, key), KEY)  # noqa: B023
        assert shapes(deployed) == shapes(net)


@pytest.mark.parametrize("name", ["dqn", "guided-dqn", "sqil", "gail", "ppo"])
def test_drawing_from_the_deployed_network_is_the_judged_policy(name):
    algorithm = ALGORITHMS[name]
    config = algorithm.config()
    agent, obs = algorithm.make(config, ENV.spec, AGENTS, PACE), jax.random.normal(KEY, (20, 2))
    state = agent.init(KEY, shown())
    net = algorithm.deployed(config, state)
    assert isinstance(net, ActionNet)
    drawn = gpi.draw(net(obs), jax.random.key(1), algorithm.judged_at(config))
    assert drawn.tolist() == agent.policy(state, obs, jax.random.key(1)).tolist()


SEES: list[tuple[Any, bool, bool]] = [
    (ITDConfig(), True, False),
    (PsiPhiConfig(), True, True),
    (PsiPhiConfig(itd=ITDConfig(bc_weight=0.0, itd_weight=0.0)), False, True),
    (DQNConfig(), False, True),
    (DQNConfig(bc_weight=0.1), True, True),
    (ALGORITHMS["guided-dqn"].config(), True, True),
    (PPOConfig(), False, True),
    (PPOConfig(bc_weight=0.1), True, True),
    (ALGORITHMS["bc"].config(), True, False),
    (SQILConfig(), True, False),
    (SQILConfig(env_reward=True), True, True),
    (GAILConfig(), True, False),
    (GAILConfig(control=True), False, False),
    (ALGORITHMS["itd-dqn"].config(), True, False),
]


@pytest.mark.parametrize(("config", "watches", "paid"), SEES)
def test_what_it_learns_from_depends_on_the_config(config, watches, paid):
    algorithm = algorithm_of(config)
    assert (algorithm.watches(config), algorithm.paid(config)) == (watches, paid)


def test_an_ego_is_deployed_with_the_preferences_that_it_acts_on():
    algorithm = ALGORITHMS["psiphi"]
    config = PsiPhiConfig(itd=ITDConfig(torso_hidden=(4,), phi_hidden=(4,), psi_hidden=()))
    state = algorithm.make(config, ENV.spec, AGENTS, PACE).init(KEY, shown())
    wanted = jnp.arange(4.0)
    state = state._replace(net=eqx.tree_at(lambda net: net.w, state.net, state.net.w.at[-1].set(wanted)))
    found = algorithm.deployed(config, state)
    assert found.w[-1].tolist() == wanted.tolist()
    assert found.w[:-1].tolist() == state.target.w[:-1].tolist()


def test_a_config_of_nobody_is_refused():
    with pytest.raises(UserError, match="int is no algorithm's config; expected the config of one of itd, psiphi, dqn"):
        algorithm_of(3)
