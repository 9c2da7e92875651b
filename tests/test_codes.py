"""Codes: one network for all agents. What an update costs and a network weighs does not grow with them, and they are told apart."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import psiphi
from psiphi.agents import itd
from psiphi.agents.itd import ITDConfig
from psiphi.api import LEARNED, OFFLINE
from psiphi.api.itd import CODED_IMITATION, offline
from psiphi.errors import UserError
from psiphi.nets import of_heads
from psiphi.types import EnvSpec
from tiny import corners

SPEC = EnvSpec((3,), np.float32, 2)
CONFIG = ITDConfig(torso_hidden=(8,), phi_hidden=(8,), psi_hidden=(8,), code=4, axis_preferences=False)


def size(net) -> int:
    return sum(x.size for x in jax.tree.leaves(net))


def test_an_agent_costs_a_code_its_preferences_and_nothing_else():
    few, many = (itd.initial_net(CONFIG, SPEC, heads, jax.random.key(0)) for heads in (2, 102))
    assert size(many) - size(few) == 100 * (CONFIG.code + CONFIG.num_cumulants)


def test_a_head_computes_the_same_alone_and_among_others():
    net = itd.initial_net(CONFIG, SPEC, 5, jax.random.key(0))
    features = net.features(jnp.ones((7, 3)))
    every = net.psi(features)
    assert every.shape == (7, 5, CONFIG.ensemble, 2, CONFIG.num_cumulants)
    own = net.own_psi(jnp.broadcast_to(features, (5, *features.shape)))
    np.testing.assert_allclose(own, jnp.swapaxes(every, 0, 1), rtol=1e-5, atol=1e-6)
    alone = of_heads(net, lambda x: x[3:4])
    np.testing.assert_allclose(alone.psi(features)[:, 0], every[:, 3], rtol=1e-5, atol=1e-6)
    assert not np.allclose(every[:, 3], every[:, 2]), "codes tell the heads apart"


def test_an_update_is_of_as_many_agents_for_few_as_for_many():
    for agents in (2, 1_000):
        whose = itd.drawn_agents(CONFIG, agents, jax.random.key(0))
        assert whose is not None and whose.shape == (CONFIG.agents_per_update,) and 0 <= int(whose.min()) <= int(whose.max()) < agents
    assert itd.drawn_agents(dataclasses.replace(CONFIG, code=0), 2, jax.random.key(0)) is None


@pytest.fixture(scope="module")
def walks() -> psiphi.Demonstrations:
    """Four agents, each to a corner of its own."""
    demos = corners([(0, 0), (4, 4), (0, 4), (4, 0)], 120)
    agents = ("sw", "ne", "nw", "se")
    return dataclasses.replace(demos, agents=agents, episodes=demos.episodes._replace(agent=(np.arange(120) % 4).astype(np.int32)))


SMALL = dataclasses.replace(OFFLINE, torso_hidden=(32,), psi_hidden=(32,), code=8, agents_per_update=8)


@pytest.fixture(scope="module")
def fitted(walks) -> psiphi.ITD:
    return psiphi.ITD(SMALL, seed=0, updates=300, refits=1).fit(walks.filter(agents=["sw", "ne", "nw"]), progress=False)


def test_agents_are_told_apart_by_their_codes(fitted, walks):
    middle = np.full(2, 2, np.float32)
    chances = np.stack([fitted.policy(agent).probabilities(middle) for agent in fitted.agents])
    toward = {"sw": (2, 3), "ne": (0, 1), "nw": (2, 1)}
    for k, agent in enumerate(fitted.agents):
        assert chances[k, list(toward[agent])].sum() > 0.7, agent


def test_a_new_agent_is_a_new_code_and_no_other_changes(fitted, walks, tmp_path):
    before = {agent: fitted.policy(agent).values(walks.obs[:20]) for agent in fitted.agents}
    fitted.save(tmp_path / "before")
    known = psiphi.load(tmp_path / "before")
    shared = known._trained().model.net.psi_heads
    known.fit_new_demonstrator(walks.filter(agents=["se"]), progress=False)
    net = known._trained().model.net
    assert net.codes.shape == (4, 8) and jax.tree.all(jax.tree.map(lambda x, y: bool((x == y).all()), net.psi_heads, shared))
    for agent, values in before.items():
        np.testing.assert_array_equal(known.policy(agent).values(walks.obs[:20]), values)
    known.save(tmp_path / "after")
    assert psiphi.load(tmp_path / "after").agents == ("sw", "ne", "nw", "se")


def test_many_agents_get_codes_unless_the_config_says_otherwise(walks):
    many = dataclasses.replace(
        walks, agents=tuple(range(110)), episodes=walks.episodes._replace(agent=(np.arange(120) % 110).astype(np.int32))
    )
    assert offline(None, many).code > 0 and offline(None, walks).code == 0 and offline(OFFLINE, many).code == 0


def test_imitation_weighs_more_where_many_agents_share_a_network_and_cumulants_are_learned():
    wide = np.random.default_rng(0).normal(size=(3, 65)).astype(np.float32)  # too many columns for cumulants of what changes
    many, few = (psiphi.Demonstrations.from_lists([wide] * k, [np.array([0, 1])] * k, list(range(k))) for k in (101, 2))
    assert offline(None, many).cumulants == "learned(s,a)" and offline(None, many).bc_weight == CODED_IMITATION > LEARNED.bc_weight
    assert offline(None, few).bc_weight == LEARNED.bc_weight == offline(LEARNED, many).bc_weight


def test_codes_and_axes_exclude_each_other():
    with pytest.raises(UserError, match="code is above 0 and axis_preferences is True, expected one of the two"):
        itd.initial_net(dataclasses.replace(CONFIG, axis_preferences=True), SPEC, 2, jax.random.key(0))
