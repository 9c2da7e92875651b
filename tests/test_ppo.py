"""PPO: its advantages against brute force, who learns from what, and worlds in which it must find the right actions and values."""

from dataclasses import replace
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import probes
from psiphi import losses, optim
from psiphi.agents import bc, ppo
from psiphi.agents.bc import BCConfig
from psiphi.agents.ppo import ActorCritic, Behaviour, PPOConfig
from psiphi.errors import UserError
from psiphi.loops import scan
from psiphi.nets import ActionNet
from psiphi.types import Demonstration, Demos, EnvSpec, Pace, Transition
from tables import drawn, numpy_record, quick_jit

KEY = jax.random.key(0)
PROBES = {
    probe.__name__: probe() for probe in (probes.one_step, probes.two_steps, probes.say_what_you_see, probes.time_limit, probes.termination)
}
MEDLEY = probes.medley(*PROBES.values())
ENV = probes.make(MEDLEY)
PLACES, ACTIONS = MEDLEY.reward.shape
AGENTS, T, N = 2, 8, 16

PLAIN = PPOConfig(
    torso="mlp", torso_hidden=(32,), head_hidden=(), share_torso=False, gamma=probes.GAMMA, lambda_=0.8, rollout_length=T,
    epochs=3, minibatches=2, clip_ratio=0.3, learning_rate=1e-2, decay="cosine", clip=1.0, entropy=0.003, value_weight=0.7,
    value_clip=0.0, normalise=True, bc_weight=0.0, bc_batch=16, mirror=False, temperature=0.0,
)  # fmt: skip
"""No number here is a default."""
AUX = replace(PLAIN, share_torso=True, bc_weight=0.3, value_clip=1.0, decay="linear")
PACE = Pace(num_envs=N, updates=150)
LOOP = scan.LoopConfig(iterations=150, chunk=150, num_envs=N, rollout_length=T, seed=5)


def see(place: np.ndarray) -> np.ndarray:
    return np.eye(PLACES, dtype=np.float32)[place]


def network(seed: int, config: PPOConfig = AUX) -> ActorCritic:
    return drawn(jax.eval_shape(lambda: ppo.initial_net(config, ENV.spec, AGENTS, KEY)), seed)


def demonstrations() -> Demos:
    """The first demonstrator always takes action 0, the second always action 1."""
    place = np.random.default_rng(0).integers(0, PLACES, (AGENTS, 50))
    action = np.repeat(np.arange(AGENTS, dtype=np.int32)[:, None], 50, axis=1)
    steps = numpy_record(Demonstration, see(place), action, np.ones((AGENTS, 50), np.float32), see(place), action)
    return jax.tree.map(jnp.asarray, numpy_record(Demos, steps, np.array([50, 50], np.int32)))


def some_rollout(seed: int = 0, shape: tuple[int, int] = (T, N)) -> Transition:
    rng = np.random.default_rng(seed)
    last = rng.random(shape) < 0.3
    discount = np.where(last & (rng.random(shape) < 0.5), 0, 1).astype(np.float32)
    reward, obs, next_obs = (
        rng.normal(size=shape).astype(np.float32),
        see(rng.integers(0, PLACES, shape)),
        see(rng.integers(0, PLACES, shape)),
    )
    return jax.tree.map(
        jnp.asarray, numpy_record(Transition, obs, rng.integers(0, ACTIONS, shape, np.int32), reward, discount, next_obs, last)
    )


def bits(tree: Any) -> list[np.ndarray]:
    return [np.asarray(leaf) for leaf in jax.tree.leaves(tree) if not jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)]


def equal(a: Any, b: Any) -> bool:
    return all(np.array_equal(x, y) for x, y in zip(bits(a), bits(b), strict=True))


def largest(tree: Any) -> float:
    return max(float(np.abs(leaf).max()) for leaf in jax.tree.leaves(tree))


# --- Advantages ----------------------------------------------------------------------------------------------------------

STEPS = 6
one_step = st.tuples(*[st.floats(-4, 4, width=32)] * 3, st.sampled_from(["goes on", "time limit", "ends"]))


@settings(max_examples=50)
@given(st.lists(one_step, min_size=STEPS, max_size=STEPS), st.floats(0, 1), st.floats(0, 1))
def test_gae_is_the_lambda_weighted_mean_of_all_n_step_advantages(steps, gamma, lambda_):
    reward, value, next_value = (np.array([step[i] for step in steps]) for i in range(3))
    how = np.array([step[3] for step in steps])
    going = how == "goes on"
    value[1:] = np.where(going[:-1], next_value[:-1], value[1:])  # the same state: the next one of this step, and that of the next step
    discount = np.where(how == "ends", 0.0, gamma)
    expected = np.zeros(STEPS)
    for t in range(STEPS):
        horizon = next((n for n in range(t, STEPS) if not going[n]), STEPS - 1) - t + 1
        for n in range(1, horizon + 1):
            earned = sum(np.prod(discount[t : t + i]) * reward[t + i] for i in range(n))
            rest = np.prod(discount[t : t + n]) * next_value[t + n - 1]
            expected[t] += lambda_ ** (n - 1) * (1 - lambda_ if n < horizon else 1) * (earned + rest - value[t])
    reward, value, next_value, discount = (jnp.asarray(x, jnp.float32) for x in (reward, value, next_value, discount))
    np.testing.assert_allclose(losses.gae(reward, value, next_value, discount, jnp.asarray(~going), lambda_), expected, atol=1e-4)


def test_each_environment_has_its_own_advantages_and_its_own_clock():
    rollout = some_rollout()
    rng = np.random.default_rng(1)
    thought = Behaviour(*(jnp.asarray(rng.normal(size=(T, N)), jnp.float32) for _ in range(3)))
    found = ppo.advantages(PLAIN, rollout, thought)
    for env in (0, N - 1):
        step, value, next_value = jax.tree.map(lambda x, env=env: x[:, env], (rollout, thought.value, thought.next_value))
        alone = losses.gae(step.reward, value, next_value, PLAIN.gamma * step.discount, step.last, PLAIN.lambda_)
        np.testing.assert_allclose(found[:, env], alone, rtol=1e-5, atol=1e-6)


def test_the_values_target_is_the_advantage_before_it_is_normalised():
    rollout = some_rollout()
    thought = Behaviour(*(jnp.full((T, N), x) for x in (-1.0, 2.0, 3.0)))
    plain, normalised = (ppo.batch(replace(PLAIN, normalise=on), rollout, thought) for on in (False, True))
    np.testing.assert_allclose(plain.target, plain.advantage + 2.0, rtol=1e-6)
    np.testing.assert_array_equal(normalised.target, plain.target)
    np.testing.assert_allclose([normalised.advantage.mean(), normalised.advantage.std()], [0, 1], atol=1e-5)
    np.testing.assert_array_equal(plain.obs[N + 1], rollout.obs[1, 1])  # all fields are flattened alike
    assert plain.action[N + 1] == rollout.action[1, 1]


# --- The loss ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def gradients() -> dict[str, ActorCritic]:
    """Of the loss without cloning, of the cloning of both demonstrators, and of that of the first alone."""
    demo = jax.tree.map(lambda x: x[:, :16], demonstrations().steps)
    rollout = some_rollout()

    def terms(net: ActorCritic, acted: ActorCritic) -> dict[str, jax.Array]:
        mini = ppo.batch(AUX, rollout, ppo.behaviour(acted, rollout))
        both, first = jnp.array([True, True]), jnp.array([True, False])
        clone, one = ppo.cloning_loss(net, demo, both)[0], ppo.cloning_loss(net, demo, first)[0]
        return {"own": ppo.loss(net, mini, None, AUX)[0], "clone": clone, "first": one}

    return jax.tree.map(np.asarray, quick_jit(jax.jacrev(terms))(network(1), network(2)))


def test_the_cloning_heads_never_learn_from_rewards_and_policy_and_value_never_from_cloning(gradients):
    own, clone = gradients["own"], gradients["clone"]
    assert largest(own.policy.clone_heads) == 0 and largest(own.policy.head) > 0 and largest(own.value_head) > 0
    assert largest(clone.policy.head) == 0 and largest(clone.value_head) == 0 and largest(clone.policy.clone_heads) > 0


def test_the_shared_torso_learns_from_both(gradients):
    assert largest(gradients["own"].policy.torso) > 0 and largest(gradients["clone"].policy.torso) > 0


def test_a_demonstrator_never_touches_anothers_head(gradients):
    heads = gradients["first"].policy.clone_heads
    assert largest(jax.tree.map(lambda x: x[0], heads)) > 0 and largest(jax.tree.map(lambda x: x[1], heads)) == 0


def test_a_value_torso_of_its_own_keeps_the_policys_out_of_the_value():
    net, rollout = network(1, PLAIN), some_rollout()
    mini = ppo.batch(PLAIN, rollout, ppo.behaviour(net, rollout))
    gradient = quick_jit(jax.grad(lambda n: ppo.value_loss(PLAIN, n.value(mini.obs), mini)))(net)
    assert largest(gradient.policy) == 0 and largest(gradient.value_torso) > 0


def test_every_epoch_goes_through_every_step_once_in_another_order():
    index = np.asarray(ppo.minibatch_indices(PLAIN, T * N, KEY))
    assert index.shape == (PLAIN.epochs * PLAIN.minibatches, T * N // PLAIN.minibatches)
    epochs = index.reshape(PLAIN.epochs, -1)
    np.testing.assert_array_equal(np.sort(epochs, axis=1), np.tile(np.arange(T * N), (PLAIN.epochs, 1)))
    assert not np.array_equal(epochs[0], epochs[1])


@pytest.mark.parametrize(("decay", "third"), [("linear", 0.0), ("cosine", 0.0), ("constant", 0.1)])
def test_the_rate_falls_over_all_gradient_steps_of_all_updates(decay, third):
    optimiser = ppo.make_optimiser(replace(PLAIN, decay=decay, learning_rate=0.1, epochs=1, minibatches=1), Pace(updates=2))
    weights, state = jnp.ones(1), optim.start(optimiser, jnp.ones(1))
    moves = []
    for _ in range(3):
        new, state = optim.step(optimiser, jnp.ones(1), state, weights)
        moves.append(float(weights[0] - new[0]))
        weights = new
    np.testing.assert_allclose(moves, [0.1, 0.1 if third else 0.05, third], atol=1e-5)


# --- One rollout, one update ---------------------------------------------------------------------------------------------

ONCE = replace(PLAIN, epochs=1, minibatches=1)


@pytest.fixture(scope="module")
def once() -> tuple[ppo.State, ppo.State, dict[str, jax.Array], dict[str, jax.Array]]:
    """The state that has seen a rollout, that after two updates on it, and the metrics of both."""
    agent = ppo.make(ONCE, ENV.spec, 0, PACE)
    start = quick_jit(agent.init)(KEY, None)._replace(net=network(1, ONCE))
    seen = quick_jit(agent.observe)(start, some_rollout())
    update = quick_jit(agent.update)
    first, metrics = update(seen, KEY)
    second, again = update(first, KEY)
    return seen, second, metrics, again


def test_before_the_first_step_the_policy_is_the_one_that_acted(once):
    _, _, first, second = once
    np.testing.assert_allclose([first["kl"], first["clipped"]], [0, 0], atol=1e-6)
    assert second["kl"] > 1e-5  # a further update on the same rollout still compares with the network that acted


def test_what_the_acting_network_thought_is_noted(once):
    seen, second, _, _ = once
    rollout = seen.rollout
    logits, value = seen.net(rollout.obs[3])
    np.testing.assert_allclose(seen.behaviour.value[3], value, rtol=1e-5)
    np.testing.assert_allclose(seen.behaviour.next_value[3], seen.net.value(rollout.next_obs[3]), rtol=1e-5)
    expected = jax.nn.log_softmax(logits)[np.arange(N), rollout.action[3]]
    np.testing.assert_allclose(seen.behaviour.log_policy[3], expected, rtol=1e-5)
    assert equal(seen.behaviour, second.behaviour) and int(second.count) == 2


# --- Learning ------------------------------------------------------------------------------------------------------------


def values_of(policy: np.ndarray) -> np.ndarray:
    """What each place is worth to who acts by `policy` ``[place, action]``; the clock ends episodes but no task."""
    goes = np.zeros((PLACES, PLACES))
    for place in range(PLACES):
        for action in range(ACTIONS):
            if not MEDLEY.ends[place, action]:
                goes[place, MEDLEY.next_place[place, action]] += policy[place, action]
    return np.linalg.solve(np.eye(PLACES) - probes.GAMMA * goes, (policy * MEDLEY.reward).sum(axis=1))


@pytest.fixture(scope="module", params=["plain", "aux"])
def trained(request) -> tuple[PPOConfig, scan.Program, scan.Result, Demos | None]:
    config, demos = (PLAIN, None) if request.param == "plain" else (AUX, demonstrations())
    agent = ppo.make(config, ENV.spec, 0 if demos is None else AGENTS, PACE)
    program = scan.compile_run(ENV, agent, LOOP)
    with pytest.MonkeyPatch.context() as patch:  # not to compile it twice
        patch.setattr(scan, "compile_run", lambda *_: program)
        return config, program, scan.run(ENV, agent, demos, LOOP, progress=False), demos


def test_the_critic_finds_the_values_of_its_policy_and_the_actor_the_right_actions(trained):
    net = trained[2].agent().net
    logits, value = quick_jit(lambda net, obs: net(obs))(net, see(np.arange(PLACES)))
    policy = np.asarray(jax.nn.softmax(logits))
    np.testing.assert_allclose(value, values_of(policy), atol=0.05)
    np.testing.assert_allclose(value, MEDLEY.values.max(axis=1), atol=0.1)
    contested = MEDLEY.values[:, 0] != MEDLEY.values[:, 1]
    assert contested.sum() == 2
    np.testing.assert_array_equal(policy[contested].argmax(axis=1), MEDLEY.values[contested].argmax(axis=1))
    assert policy[contested].max(axis=1).min() > 0.9


def test_one_seed_gives_the_same_bits_twice_and_two_seeds_differ(trained):
    _, program, _, demos = trained
    runs = [program.chunk(program.begin(jnp.stack([jax.random.key(seed)]), demos), 3) for seed in (0, 0, 1)]
    assert equal(runs[0], runs[1]) and not equal(runs[0][0].agent.net, runs[2][0].agent.net)


def test_the_heads_that_clone_do_not_act(trained):
    config, _, result, demos = trained
    state = result.agent()
    if demos is None:
        assert state.net.policy.clone_heads is None and state.demos is None
        return
    agent = ppo.make(config, ENV.spec, AGENTS, PACE)
    obs = jnp.asarray(see(np.arange(PLACES)))
    both = state.net.policy.clones(jnp.stack([obs, obs]))
    np.testing.assert_array_equal(jnp.argmax(both, axis=-1), np.repeat([[0], [1]], PLACES, axis=1))  # each clones its own demonstrator
    other = state._replace(net=eqx.tree_at(lambda n: n.policy.clone_heads, state.net, network(9).policy.clone_heads))
    for how in (agent.act, agent.policy):
        np.testing.assert_array_equal(how(state, obs, KEY), how(other, obs, KEY))


def test_judged_it_takes_the_likeliest_action_or_draws_at_its_temperature():
    state = quick_jit(ppo.make(PLAIN, ENV.spec, 0, PACE).init)(KEY, None)._replace(net=network(3, PLAIN))
    obs = jnp.tile(see(np.array(2)), (4000, 1))
    probability = np.asarray(jax.nn.softmax(state.net.policy(obs)[0]))
    greedy, drawn_ = (ppo.make(replace(PLAIN, temperature=t), ENV.spec, 0, PACE).policy(state, obs, KEY) for t in (0.0, 1.0))
    assert np.all(greedy == probability.argmax())
    acted = ppo.make(PLAIN, ENV.spec, 0, PACE).act(state, obs, KEY)
    for actions in (drawn_, acted):
        np.testing.assert_allclose(np.bincount(actions, minlength=ACTIONS) / len(obs), probability, atol=0.04)


def test_rollouts_before_the_first_update_are_forgotten_but_the_last():
    agent = ppo.make(ONCE, ENV.spec, 0, PACE)
    loop = replace(LOOP, prefill_steps=2 * T * N)
    agent_state = quick_jit(partial(scan.begin, ENV, agent, loop))(KEY, None).agent
    assert agent_state.rollout.action.shape == (T, N) and int(agent_state.count) == 0
    again = quick_jit(ppo.behaviour)(agent_state.net, agent_state.rollout)
    for noted, now in zip(agent_state.behaviour, again, strict=True):
        np.testing.assert_allclose(noted, now, atol=1e-6)


# --- From a clone --------------------------------------------------------------------------------------------------------


def clones(config: BCConfig) -> ActionNet:
    return drawn(jax.eval_shape(lambda: bc.initial_net(config, ENV.spec, AGENTS, KEY)), 4)


def test_it_can_start_as_a_clone():
    cloned = bc.of_demonstrator(clones(BCConfig(torso="mlp", torso_hidden=(32,), head_hidden=())), 1)
    net = network(1)
    started = ppo.from_cloned(net, cloned)
    obs = jnp.asarray(see(np.arange(PLACES)))
    np.testing.assert_array_equal(started.policy(obs), cloned(obs))
    assert equal(started.value_head, net.value_head) and equal(started.policy.clone_heads, net.policy.clone_heads)


@pytest.mark.parametrize("change", [{"torso_hidden": (16,)}, {"head_hidden": (8,)}])
def test_a_clone_of_another_shape_is_refused(change):
    cloned = bc.of_demonstrator(clones(replace(BCConfig(torso="mlp", torso_hidden=(32,), head_hidden=()), **change)), 0)
    with pytest.raises(UserError, match="cloned policy has layers .* expected this agent's"):
        ppo.from_cloned(network(1), cloned)


# --- At the door ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"epochs": 0}, "epochs is 0, expected at least 1"),
        ({"gamma": 1.5}, "gamma is 1.5, expected a number from 0 to 1"),
        ({"minibatches": 3}, "minibatches is 3, expected a divisor of num_envs \\* rollout_length, 128"),
        ({"bc_weight": 0.1}, "bc_weight is 0.1, but there is no demonstrator to clone"),
    ],
)
def test_a_config_that_cannot_be_is_refused(change, message):
    with pytest.raises(UserError, match=message):
        ppo.make(replace(PLAIN, **change), ENV.spec, 0, PACE)


def test_demonstrations_and_rollouts_must_be_what_was_announced():
    agent = ppo.make(AUX, ENV.spec, 3, PACE)
    with pytest.raises(UserError, match="demonstrations of 2 demonstrators, expected those of 3"):
        jax.eval_shape(agent.init, KEY, demonstrations())
    with pytest.raises(UserError, match="There are no demonstrations"):
        jax.eval_shape(agent.init, KEY, None)
    plain = ppo.make(PLAIN, ENV.spec, 0, PACE)
    state = jax.eval_shape(plain.init, KEY, demonstrations())  # which plain PPO has no use for
    assert state.demos is None
    with pytest.raises(UserError, match=r"rollout of \(steps, environments\) \(3, 16\), expected \(8, 16\), by its config and"):
        jax.eval_shape(plain.observe, state, some_rollout(shape=(3, N)))


def test_pictures_are_thought_of_step_by_step_and_alike():
    spec = EnvSpec((40, 40, 3), np.dtype(np.uint8), 3)
    config = replace(PLAIN, torso="patches", torso_hidden=(8,))
    net = ppo.initial_net(config, spec, 0, jax.random.key(0))
    rng = np.random.default_rng(0)
    obs, next_obs = jnp.asarray(rng.integers(0, 256, (2, 4, 3, *spec.obs_shape)).astype(np.uint8))
    blank = jnp.zeros((4, 3))
    rollout = Transition(obs, jnp.asarray(rng.integers(0, 3, (4, 3)).astype(np.int32)), blank, blank, next_obs, blank.astype(bool))
    found = ppo.behaviour(net, rollout)
    logits, value = net(obs.reshape(12, *spec.obs_shape))
    np.testing.assert_allclose(found.value.reshape(-1), value, rtol=1e-5)
    np.testing.assert_allclose(found.next_value.reshape(-1), net.value(next_obs.reshape(12, *spec.obs_shape)), rtol=1e-5)
    np.testing.assert_allclose(found.log_policy.reshape(-1), ppo.log_likelihood(logits, rollout.action.reshape(-1)), rtol=1e-5)
