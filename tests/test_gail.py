"""GAIL: the discriminator finds the ratio of what it is shown, the generator is paid by it alone, and what the reward's sign teaches."""

from dataclasses import replace
from typing import Any, get_args

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import probes
from psiphi import optim
from psiphi.agents import bc, dqn, gail, itd, ppo, psiphi, sqil
from psiphi.agents.gail import GAILConfig
from psiphi.agents.ppo import PPOConfig
from psiphi.errors import UserError
from psiphi.loops import scan
from psiphi.losses import AdversarialReward
from psiphi.types import Agent, Demonstration, Demos, Pace, Transition
from tables import drawn, numpy_record, quick_jit

KEY = jax.random.key(0)
T, N = 8, 16
FORMS: tuple[AdversarialReward, ...] = get_args(AdversarialReward)

WORLD = probes.say_what_you_see()
ENV = probes.make(WORLD)
PLACES, ACTIONS = WORLD.reward.shape

CONFIG = GAILConfig(
    ppo=PPOConfig(
        torso="mlp", torso_hidden=(16,), gamma=0.4, rollout_length=T, epochs=2, minibatches=2, learning_rate=1e-2,
        decay="constant",
    ),
    demonstrator=1, reward="-log(1-D)", control=False, torso="mlp", torso_hidden=(16,), head_hidden=(16,), learning_rate=1e-2, clip=1.0,
    steps=4, batch=32, smoothing=0.0, entropy=0.0, weight_decay=0.0, mirror=False,
)  # fmt: skip
"""No number here is a default."""
PACE = Pace(num_envs=N)
LOOP = scan.LoopConfig(iterations=60, chunk=60, num_envs=N, rollout_length=T, seed=5)


def see(place: np.ndarray) -> np.ndarray:
    return np.eye(PLACES, dtype=np.float32)[place]


def shown(*shares: float, steps: int = 512) -> Demos:
    """Demonstrators who take action 1 with these probabilities in place 0, and in place 1 action 0."""
    rng = np.random.default_rng(0)
    place = rng.integers(0, PLACES, (len(shares), steps))
    other = rng.random(place.shape) < np.array(shares)[:, None]
    action = np.where(other, 1 - place, place).astype(np.int32)
    steps_ = numpy_record(Demonstration, see(place), action, np.zeros(place.shape, np.float32), see(place), np.full(place.shape, -1))
    return jax.tree.map(jnp.asarray, numpy_record(Demos, steps_, np.full(len(shares), steps, np.int32)))


def made(share: float, shape: tuple[int, int] = (T * 8, N)) -> Transition:
    """A rollout in which action 1 is taken with this probability in place 0, and action 0 in place 1."""
    rng = np.random.default_rng(1)
    place = rng.integers(0, PLACES, shape)
    action = np.where(rng.random(shape) < share, 1 - place, place).astype(np.int32)
    ones = np.ones(shape, np.float32)
    return jax.tree.map(jnp.asarray, numpy_record(Transition, see(place), action, ones, 0 * ones, see(place), ones > 0))


def equal(a: Any, b: Any) -> bool:
    keys = [jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) for leaf in jax.tree.leaves(a)]
    pairs = zip(keys, jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return all(np.array_equal(np.asarray(x), np.asarray(y)) for key, x, y in pairs if not key)


# --- The discriminator ---------------------------------------------------------------------------------------------------


def logits(net: gail.Discriminator) -> np.ndarray:
    """Of every place and action."""
    place, action = (x.reshape(-1) for x in np.mgrid[:PLACES, :ACTIONS])
    return np.asarray(net(jnp.asarray(see(place)), jnp.asarray(action))).reshape(PLACES, ACTIONS)


@pytest.fixture(scope="module")
def told() -> Any:
    """Trains a discriminator for 400 steps on one demonstrator and one rollout, compiled once for all."""
    config = replace(CONFIG, demonstrator=None, steps=400, batch=512)
    optimiser = gail.make_optimiser(config)

    @jax.jit
    def train(demos: Demos, rollout: Transition) -> tuple[gail.Discriminator, dict[str, jax.Array]]:
        net = gail.initial_discriminator(config, ENV.spec, KEY)
        state = gail.State(
            ppo.make(config.ppo, ENV.spec, 0, PACE).init(KEY, None)._replace(rollout=rollout), net, optim.start(optimiser, net), demos
        )
        after, _ = gail.discriminate(config, ENV.spec, optimiser, state, KEY)
        _, metrics = gail.discriminator_loss(after.discriminator, gail.sample(config, ENV.spec, demos, rollout, KEY), config)
        return after.discriminator, metrics

    return train


def test_the_discriminator_tells_two_who_never_do_the_same(told):
    net, metrics = told(shown(1.0), made(0.0))
    found = logits(net)
    assert np.all(found[[0, 1], [1, 0]] > 3) and np.all(found[[0, 1], [0, 1]] < -3)
    assert metrics["accuracy_demonstrated"] == metrics["accuracy_generated"] == 1
    assert metrics["discriminator_entropy"] < 0.1


def test_between_two_who_do_the_same_the_discriminator_finds_a_half(told):
    net, metrics = told(shown(0.5, steps=4096), made(0.5))
    np.testing.assert_allclose(logits(net), 0, atol=0.25)
    np.testing.assert_allclose([metrics["discriminator_loss"], metrics["discriminator_entropy"]], np.log(2), atol=0.02)


def test_its_optimum_is_the_ratio_of_probabilities(told):
    net, _ = told(shown(0.8, steps=4096), made(0.5))
    np.testing.assert_allclose(logits(net), np.log(np.array([[0.2, 0.8], [0.8, 0.2]]) / 0.5), atol=0.25)


def random_discriminator(seed: int = 0, config: GAILConfig = CONFIG) -> gail.Discriminator:
    return drawn(jax.eval_shape(lambda: gail.initial_discriminator(config, ENV.spec, KEY)), seed)


def test_the_loss_by_plain_loops_with_smoothing_entropy_and_decay():
    config = replace(CONFIG, smoothing=0.1, entropy=0.3, weight_decay=0.01)
    net, rng = random_discriminator(), np.random.default_rng(2)
    halves = [(see(rng.integers(0, PLACES, 6)), rng.integers(0, ACTIONS, 6)) for _ in range(2)]
    d = [1 / (1 + np.exp(-logits(net)[obs.argmax(1), action].astype(float))) for obs, action in halves]
    surprise = -np.mean([label * np.log(x) + (1 - label) * np.log(1 - x) for label, x in zip((0.9, 0.1), d, strict=True)])
    entropy = -np.mean([x * np.log(x) + (1 - x) * np.log(1 - x) for x in d])
    squares = sum(float((np.asarray(leaf) ** 2).sum()) for leaf in jax.tree.leaves(net))
    pair = gail.Pair(*((jnp.asarray(obs), jnp.asarray(action)) for obs, action in halves))
    total, metrics = quick_jit(lambda net, pair: gail.discriminator_loss(net, pair, config))(net, pair)
    np.testing.assert_allclose(total, surprise - 0.3 * entropy + 0.01 * squares, rtol=1e-4)
    np.testing.assert_allclose(metrics["accuracy_demonstrated"], (d[0] > 0.5).mean())
    np.testing.assert_allclose(metrics["accuracy_generated"], (d[1] < 0.5).mean())


def test_halves_are_balanced_and_only_the_imitated_are_shown():
    demos = shown(0.0, 1.0)
    agent = gail.make(CONFIG, ENV.spec, 2, PACE)
    state = quick_jit(agent.init)(KEY, demos)
    assert equal(state.demos, jax.tree.map(lambda x: x[1:2], demos))
    sample = quick_jit(lambda demos, rollout: gail.sample(CONFIG, ENV.spec, demos, rollout, KEY))
    pair = sample(state.demos, made(0.0, (T, N)))
    for half, other in ((pair.shown, True), (pair.made, False)):
        place, action = np.asarray(half[0]).argmax(1), np.asarray(half[1])
        assert len(action) == CONFIG.batch and np.all((action != place) == other)
    pooled = sample(demos, made(0.0, (T, N))).shown
    assert 0 < np.mean(np.asarray(pooled[0]).argmax(1) == np.asarray(pooled[1])) < 1


# --- The reward ----------------------------------------------------------------------------------------------------------


def test_every_form_pays_more_for_what_looks_more_demonstrated_and_has_its_sign():
    net, rollout = random_discriminator(), made(0.5, (T, N))
    net = eqx.tree_at(lambda n: n.head.biases[-1], net, net.head.biases[-1] - logits(net).mean())  # in doubt on average
    logit = logits(net)[np.asarray(rollout.obs).argmax(-1), rollout.action]
    for form, sign in zip(FORMS, ({1}, {-1}, {-1, 1}), strict=True):
        paid = np.asarray(gail.reward(replace(CONFIG, reward=form), net, rollout))
        assert paid.shape == (T, N) and set(np.sign(paid).ravel()) == sign
        order = np.argsort(logit.ravel())
        assert np.all(np.diff(paid.ravel()[order]) >= -1e-6) and paid.max() > paid.min()


@pytest.mark.parametrize(("form", "expected"), [("-log(1-D)", np.log(2)), ("log D", -np.log(2)), ("log D - log(1-D)", 0.0)])
def test_the_control_pays_every_step_what_a_half_pays(form, expected):
    paid = gail.reward(replace(CONFIG, reward=form, control=True), random_discriminator(), made(0.5, (T, N)))
    np.testing.assert_allclose(paid, expected, rtol=1e-6)


# --- Together ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def program() -> tuple[Agent, scan.Program]:
    agent = gail.make(CONFIG, ENV.spec, 2, PACE)
    return agent, scan.compile_run(ENV, agent, LOOP)


def keys(*seeds: int) -> jax.Array:
    return jnp.stack([jax.random.key(seed) for seed in seeds])


def test_it_does_what_was_demonstrated_and_not_what_the_environment_pays(program):
    agent, compiled = program
    carry, metrics = compiled.chunk(compiled.begin(keys(5), shown(0.0, 1.0)), LOOP.iterations)
    state = jax.tree.map(lambda x: x[0], carry.agent)
    obs = jnp.asarray(see(np.arange(PLACES)))
    policy = np.asarray(jax.nn.softmax(gail.deployed(CONFIG, state)(obs)))
    assert np.all(policy[[0, 1], [1, 0]] > 0.8)  # the demonstrator's choice, which costs 1 in this world
    np.testing.assert_array_equal(agent.policy(state, obs, KEY), [1, 0])
    reported = {"discriminator_loss", "discriminator_entropy", "accuracy_demonstrated", "accuracy_generated", "reward", "entropy", "kl"}
    assert reported <= metrics.keys()


def test_an_update_trains_the_discriminator_then_re_rewards_the_rollout_then_is_ppos(program):
    agent, _ = program
    state = quick_jit(agent.init)(KEY, shown(0.0, 1.0))
    seen = quick_jit(agent.observe)(state, made(0.5, (T, N)))
    assert equal(seen.ppo.rollout, made(0.5, (T, N)))
    update = quick_jit(agent.update)
    after, metrics = update(seen, KEY)
    assert not equal(after.discriminator, seen.discriminator)
    paid = gail.reward(CONFIG, after.discriminator, made(0.5, (T, N)))
    np.testing.assert_allclose(after.ppo.rollout.reward, paid, rtol=1e-5)
    np.testing.assert_allclose(metrics["reward"], paid.mean(), rtol=1e-5)
    generator = ppo.make(CONFIG.ppo, ENV.spec, 0, PACE)
    expected, _ = quick_jit(generator.update)(seen.ppo._replace(rollout=after.ppo.rollout), jax.random.split(KEY)[1])
    for x, y in zip(jax.tree.leaves(after.ppo.net), jax.tree.leaves(expected.net), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-3, atol=1e-4)
    # And whatever the environment paid, it makes no difference.
    rich = seen._replace(ppo=seen.ppo._replace(rollout=seen.ppo.rollout._replace(reward=100 * seen.ppo.rollout.reward)))
    assert equal(update(rich, KEY), (after, metrics))


def test_one_seed_gives_the_same_bits_twice_and_two_seeds_differ(program):
    _, compiled = program
    runs = [compiled.chunk(compiled.begin(keys(seed), shown(0.0, 1.0)), 3) for seed in (0, 0, 1)]
    assert equal(runs[0], runs[1]) and not equal(runs[0][0].agent.discriminator, runs[2][0].agent.discriminator)


# --- What an episode's end alone teaches ---------------------------------------------------------------------------------

STAY_OR_LEAVE = probes.Probe((0,), np.array([[0, 0]]), np.zeros((1, 2)), np.array([[False, True]]), (5,), np.zeros((1, 2)))
"""One place; action 0 stays, action 1 ends the task, and the clock stops after five steps."""


@pytest.mark.parametrize(("form", "leaves"), [("-log(1-D)", 0.0), ("log D", 1.0)])
def test_without_demonstrations_the_rewards_sign_decides_whether_to_stay_or_to_leave(form, leaves):
    env = probes.make(STAY_OR_LEAVE)
    agent = gail.make(replace(CONFIG, control=True, reward=form), env.spec, 0, PACE)

    def trained(key: jax.Array) -> gail.State:
        start = scan.begin(env, agent, LOOP, key, None)
        return jax.lax.fori_loop(0, 30, lambda _, carry: scan.iterate(env, agent, LOOP, carry)[0], start).agent

    state = quick_jit(trained)(KEY)
    assert state.demos is None
    policy = jax.nn.softmax(gail.deployed(CONFIG, state)(jnp.ones((1, 1))))[0]
    np.testing.assert_allclose(policy[1], leaves, atol=0.1)


# --- At the door, and the loop -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"head_hidden": ()}, "head_hidden of the discriminator is empty, expected at least one hidden layer"),
        ({"steps": 0}, "steps is 0, expected at least 1"),
        ({"smoothing": 0.5}, "smoothing is 0.5, expected a number from 0 to 0.499"),
        ({"ppo": replace(CONFIG.ppo, bc_weight=0.1)}, "bc_weight is 0.1, expected 0.0"),
    ],
)
def test_a_config_that_cannot_be_is_refused(change, message):
    with pytest.raises(UserError, match=message):
        gail.make(replace(CONFIG, **change), ENV.spec, 2, PACE)


@pytest.mark.parametrize(
    ("demos", "message"), [(None, "There are no demonstrations"), (shown(0.5), "Demonstrator 1 is unknown: there are 1")]
)
def test_it_needs_demonstrations_of_the_one_it_imitates(demos, message):
    with pytest.raises(UserError, match=message):
        jax.eval_shape(gail.make(CONFIG, ENV.spec, 2, PACE).init, KEY, demos)


def every_agent() -> dict[str, Agent]:
    small: dict[str, Any] = {"torso": "mlp", "torso_hidden": (8,)}
    learner = dqn.DQNConfig(**small, head_hidden=(), replay_size=256)
    inner = itd.ITDConfig(**small, phi_hidden=(8,), psi_hidden=(), replay_size=256)
    return {
        "bc": bc.make(bc.BCConfig(**small), ENV.spec, 2, PACE),
        "dqn": dqn.make(learner, ENV.spec, 0, PACE),
        "dqn+bc": dqn.make(replace(learner, bc_weight=1.0), ENV.spec, 2, PACE),
        "sqil": sqil.make(sqil.SQILConfig(dqn=replace(sqil.default_dqn(), **small, head_hidden=(), replay_size=256)), ENV.spec, 2, PACE),
        "ppo": ppo.make(CONFIG.ppo, ENV.spec, 0, PACE),
        "ppo+bc": ppo.make(replace(CONFIG.ppo, bc_weight=1.0), ENV.spec, 2, PACE),
        "gail": gail.make(CONFIG, ENV.spec, 2, PACE),
        "itd": itd.make(inner, ENV.spec, 2, PACE),
        "psiphi": psiphi.make(psiphi.PsiPhiConfig(itd=inner), ENV.spec, 2, PACE),
    }


@pytest.mark.parametrize("name", every_agent())
def test_the_same_loop_runs_every_agent(name):
    """By its shapes: an iteration takes a carry and gives one like it, so that any number of them can follow each other."""
    agent, loop = every_agent()[name], replace(LOOP, prefill_steps=2 * T * N)
    start = jax.eval_shape(lambda key, demos: scan.begin(ENV, agent, loop, key, demos), KEY, shown(0.0, 1.0))
    end, metrics = jax.eval_shape(lambda carry: scan.iterate(ENV, agent, loop, carry), start)
    assert jax.tree.structure(start) == jax.tree.structure(end)
    assert [(x.shape, x.dtype) for x in jax.tree.leaves(start)] == [(x.shape, x.dtype) for x in jax.tree.leaves(end)]
    assert metrics and all(x.shape == () for x in metrics.values())
    actions = jax.eval_shape(agent.policy, start.agent, start.obs, KEY)
    assert actions.shape == (N,) and jnp.issubdtype(actions.dtype, jnp.integer)
