"""BC: its loss by hand, K networks that share nothing, and a stochastic policy whose probabilities it must find."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from psiphi.agents import bc
from psiphi.agents.bc import BCConfig
from psiphi.demos import Demonstrations
from psiphi.errors import UserError
from psiphi.loops import scan
from psiphi.nets import ActionNet
from psiphi.types import Demonstration, Demos, EnvSpec, Pace, Symmetry
from tables import drawn, numpy_record, quick_jit

KEY = jax.random.key(0)
PLACES, ACTIONS, AGENTS = 5, 3, 3
SPEC = EnvSpec((PLACES,), jnp.float32, ACTIONS)
CONFIG = BCConfig(
    torso="mlp", torso_hidden=(16,), head_hidden=(), learning_rate=0.02, cosine=True, clip=5.0, batch=128, entropy=0.0,
    decay=0.0, ema=0.05, mirror=False,
)  # fmt: skip
"""No number here is a default, but those that switch something off."""
STEPS = 600
PACE = Pace(updates=400)


def see(place: np.ndarray) -> np.ndarray:
    return np.eye(PLACES, dtype=np.float32)[place]


def demonstrations(count: tuple[int, ...] = (STEPS, STEPS, STEPS)) -> Demos:
    """Demonstrators who draw their actions; what is not real shows action 2 everywhere."""
    rng = np.random.default_rng(0)
    shares = rng.dirichlet(np.ones(ACTIONS), (AGENTS, PLACES)).cumsum(-1)
    place = np.tile(np.arange(PLACES).repeat(STEPS // PLACES), (AGENTS, 1))
    place = rng.permuted(place, axis=1)
    action = (rng.random(place.shape)[..., None] > shares[np.arange(AGENTS)[:, None], place]).sum(-1).astype(np.int32)
    action = np.where(np.arange(STEPS) < np.array(count)[:, None], action, 2).astype(np.int32)
    steps = numpy_record(Demonstration, see(place), action, np.ones(place.shape, np.float32), see(place), action)
    return jax.tree.map(jnp.asarray, numpy_record(Demos, steps, np.array(count, np.int32)))


def frequencies(demos: Demos) -> np.ndarray:
    """How often each demonstrator did what where, ``[K, place, action]``."""
    times = np.zeros((AGENTS, PLACES, ACTIONS))
    for k in range(AGENTS):
        real = slice(int(demos.count[k]))
        np.add.at(times[k], (np.asarray(demos.steps.obs)[k, real].argmax(-1), np.asarray(demos.steps.action)[k, real]), 1)
    return times / np.maximum(times.sum(-1, keepdims=True), 1)


def network(seed: int) -> ActionNet:
    return drawn(jax.eval_shape(lambda: bc.initial_net(CONFIG, SPEC, AGENTS, KEY)), seed)


def scores_of(net: ActionNet) -> np.ndarray:
    """Everybody's logits everywhere, ``[K, place, action]``."""
    obs = np.broadcast_to(see(np.arange(PLACES)), (AGENTS, PLACES, PLACES))
    return np.asarray(quick_jit(bc.logits)(net, obs))


def softmax(scores: np.ndarray) -> np.ndarray:
    odds = np.exp(scores - scores.max(-1, keepdims=True))
    return odds / odds.sum(-1, keepdims=True)


NET = network(1)


# --- The loss ------------------------------------------------------------------------------------------------------------

REGULARISED = replace(CONFIG, entropy=0.3, decay=0.01)


@pytest.fixture(scope="module")
def found() -> Any:
    """The steps, ``loss(shown)`` with both regularisers, and ``gradient(shown)`` of the surprise alone."""
    demo = jax.tree.map(lambda x: x[:, :20], demonstrations().steps)
    loss = quick_jit(lambda net, shown: bc.loss(net, demo, shown, REGULARISED))
    gradient = quick_jit(lambda net, shown: jax.grad(lambda net: bc.surprise(bc.logits(net, demo.obs), demo.action, shown))(net))
    return demo, lambda shown: loss(NET, shown), lambda shown: jax.tree.map(np.asarray, gradient(NET, shown))


@pytest.mark.parametrize("shown", [(True, True, True), (True, False, True), (False, False, False)])
def test_the_loss_is_the_mean_surprise_of_those_who_have_shown_anything(found, shown):
    demo, loss, _ = found
    policy = softmax(scores_of(NET))
    place, action = np.asarray(demo.obs).argmax(-1), np.asarray(demo.action)
    surprise, entropy = [], []
    for k in np.flatnonzero(shown):
        surprise += [-np.log(policy[k, s, a]) for s, a in zip(place[k], action[k], strict=True)]
        entropy += [-np.sum(policy[k, s] * np.log(policy[k, s])) for s in place[k]]
    squares = sum(np.square(leaf).sum() for leaf in jax.tree.leaves(jax.tree.map(np.asarray, NET)))
    total, metrics = loss(np.array(shown))
    means = [float(np.mean(x)) if x else 0.0 for x in (surprise, entropy)]
    np.testing.assert_allclose([metrics["loss"], metrics["entropy"]], means, rtol=1e-5)
    np.testing.assert_allclose(total, means[0] - 0.3 * means[1] + 0.01 * squares, rtol=1e-5)


def test_a_demonstrator_never_touches_anothers_network(found):
    _, _, gradient = found
    for leaf in jax.tree.leaves(gradient(np.array([False, True, False]))):
        assert np.abs(leaf[1]).max() > 0 and np.abs(leaf[[0, 2]]).max() == 0


def test_networks_start_unlike_each_other_and_one_can_be_taken_out():
    net = quick_jit(lambda key: bc.initial_net(CONFIG, SPEC, AGENTS, key))(KEY)
    weight = np.asarray(net.head.weights[0])
    assert not np.array_equal(weight[0], weight[1])
    alone = bc.of_demonstrator(NET, 2)
    np.testing.assert_allclose(quick_jit(lambda net, obs: net(obs))(alone, see(np.arange(PLACES))), scores_of(NET)[2], rtol=1e-5)


# --- Learning ------------------------------------------------------------------------------------------------------------

LOOP = scan.LoopConfig(iterations=400, chunk=400, seed=3)


@pytest.fixture(scope="module")
def program() -> scan.Program:
    return scan.compile_run(None, bc.make(CONFIG, SPEC, AGENTS, PACE), LOOP)


@pytest.fixture(scope="module")
def run(program):
    """``run(demos)``: offline, in the loop that runs every agent."""

    def run(demos: Demos) -> scan.Result:
        with pytest.MonkeyPatch.context() as patch:  # not to compile it twice
            patch.setattr(scan, "compile_run", lambda *_: program)
            return scan.run(None, bc.make(CONFIG, SPEC, AGENTS, PACE), demos, LOOP, progress=False)

    return run


def test_it_finds_the_probabilities_of_stochastic_demonstrators(run):
    demos = demonstrations()
    state = run(demos).agent()
    np.testing.assert_allclose(softmax(scores_of(bc.deployed(CONFIG, state))), frequencies(demos), atol=0.03)


def test_who_has_shown_nothing_is_left_alone_and_disturbs_nobody(run):
    demos = demonstrations((STEPS, 0, STEPS))
    result = run(demos)
    found, expected = softmax(scores_of(bc.deployed(CONFIG, result.agent()))), frequencies(demos)
    np.testing.assert_allclose(found[[0, 2]], expected[[0, 2]], atol=0.03)
    init_key = jax.random.split(jax.random.key(LOOP.seed), 4)[0]  # as the loop draws it
    start = quick_jit(lambda key: bc.initial_net(CONFIG, SPEC, AGENTS, key))(init_key)
    for before, after in zip(jax.tree.leaves(start), jax.tree.leaves(result.agent().net), strict=True):
        np.testing.assert_allclose(before[1], after[1], rtol=1e-5, atol=1e-7)
        assert not np.allclose(before[0], after[0])


def test_one_seed_gives_the_same_bits_twice(program):
    seed = jnp.stack([jax.random.key(7)])
    first, second = (program.chunk(program.begin(seed, demonstrations()), 20)[0].agent for _ in range(2))
    for x, y in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True):
        np.testing.assert_array_equal(np.asarray(x), np.asarray(y))


def test_the_mirror_teaches_what_was_never_shown():
    """The world is symmetric under reversing places and swapping actions 0 and 1; only places 0 to 2 are shown."""
    symmetry = Symmetry(lambda obs: obs[..., ::-1], lambda action: jnp.where(action == 2, action, 1 - action))
    spec = SPEC._replace(symmetry=symmetry)
    place = np.tile(np.arange(2), (1, 30))
    action = place.astype(np.int32)  # action 0 at place 0, 1 at place 1
    steps = numpy_record(Demonstration, see(place), action, np.ones(place.shape, np.float32), see(place), action)
    agent = bc.make(replace(CONFIG, mirror=True), spec, 1, Pace(updates=150))

    @quick_jit
    def learn(key: jax.Array, demos: Demos) -> jax.Array:
        state = agent.init(key, demos)
        state = jax.lax.scan(agent.update, state, jax.random.split(key, 150))[0]
        return agent.policy(state, jnp.eye(PLACES), key)

    found = learn(KEY, jax.tree.map(jnp.asarray, numpy_record(Demos, steps, np.array([60], np.int32))))
    assert np.asarray(found)[[0, 1, 3, 4]].tolist() == [0, 1, 0, 1]


def test_environments_are_given_to_the_demonstrators_in_turn():
    agent = bc.make(CONFIG, SPEC, AGENTS, PACE)
    place = np.arange(40) % PLACES

    def judge(net: ActionNet, obs: jax.Array) -> jax.Array:
        state = agent.init(KEY, demonstrations())._replace(net=network(2), average=net)
        return agent.policy(state, obs, KEY)

    found = np.asarray(quick_jit(judge)(NET, see(place)))
    best = scores_of(NET).argmax(-1)
    np.testing.assert_array_equal(found, [best[i % AGENTS, place[i]] for i in range(40)])
    assert bc.deployed(replace(CONFIG, ema=0.0), bc.State(NET, network(2), None, demonstrations(), jnp.zeros(()))) is NET


# --- Bad input -----------------------------------------------------------------------------------------------------------


def test_demonstrations_that_do_not_fit_are_refused():
    agent = bc.make(CONFIG, SPEC, 2, PACE)
    with pytest.raises(UserError, match="There are no demonstrations"):
        jax.eval_shape(agent.init, KEY, None)
    with pytest.raises(UserError, match="demonstrations of 3 demonstrators, expected those of 2"):
        jax.eval_shape(agent.init, KEY, demonstrations())
    with pytest.raises(UserError, match=r"obs has shape \(5,\), but the environment's observations have shape \(4,\)"):
        jax.eval_shape(bc.make(CONFIG, SPEC._replace(obs_shape=(4,)), 3, PACE).init, KEY, demonstrations())


def test_it_learns_from_a_users_logs_alone():
    """As docs/bc.md says: no environment, the user's own table."""
    seen = np.tile(np.arange(-2.0, 3.0, dtype=np.float32), 4)[:, None]
    to_the_right = (seen[:, 0] < 0).astype(int)
    demos = Demonstrations.from_lists([seen, seen], [to_the_right, 1 - to_the_right], ["ann", "bob"])
    spec = EnvSpec(demos.obs.shape[1:], demos.obs.dtype, demos.num_actions)
    config = BCConfig(torso="mlp", torso_hidden=(16,), head_hidden=(), ema=0.0)
    agent = bc.make(config, spec, 2, Pace(updates=200))
    result = scan.run(None, agent, demos.to_demos(), scan.LoopConfig(iterations=200, chunk=200), progress=False)
    net = bc.deployed(config, result.agent())
    for k, wanted in enumerate((to_the_right, 1 - to_the_right)):
        assert (np.asarray(bc.of_demonstrator(net, k)(jnp.asarray(seen))).argmax(axis=-1) == wanted).all()
