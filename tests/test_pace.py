"""What a run decides reaches the agents as data: runs of any length are the same compiled program, and the schedules still know it."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import probes
from psiphi import optim
from psiphi.agents import bc, dqn, gail, itd, ppo, psiphi, sqil
from psiphi.configs import from_json
from psiphi.errors import UserError
from psiphi.loops import scan
from psiphi.types import Agent, Demonstration, Demos, Pace

ENV = probes.make(probes.medley(probes.say_what_you_see(), probes.time_limit()))
PLACES = ENV.spec.obs_shape[0]
KEY = jax.random.key(0)
SHORT, LONG = 20, 4_000
NET: dict[str, Any] = {"torso": "mlp", "torso_hidden": (8,)}
DQN = dqn.DQNConfig(**NET, head_hidden=(), batch=8, replay_size=64, cosine=True)
PPO = ppo.PPOConfig(**NET, rollout_length=4, epochs=2, minibatches=2)
ITD = itd.ITDConfig(**NET, phi_hidden=(8,), psi_hidden=(), batch=4, cross_batch=8, replay_size=64, nonnegative=0.1)
AGENTS: dict[str, tuple[Any, Any, int]] = {
    "itd": (itd, ITD, 1),
    "psiphi": (psiphi, psiphi.PsiPhiConfig(itd=ITD, batch=8), 1),
    "dqn": (dqn, DQN, 1),
    "bc": (bc, bc.BCConfig(**NET, batch=8), 1),
    "sqil": (sqil, sqil.SQILConfig(dqn=dataclasses.replace(DQN, double=False)), 1),
    "gail": (gail, gail.GAILConfig(**NET, ppo=PPO, steps=2, batch=8), 4),
    "ppo": (ppo, PPO, 4),
    "ppo, cosine": (ppo, dataclasses.replace(PPO, decay="cosine"), 4),
}
"""Every agent with every schedule on; and the length of its rollouts."""


def shown() -> Demos:
    obs = jnp.eye(PLACES)[jnp.arange(12).reshape(2, 6) % PLACES]
    action = jnp.arange(12, dtype=jnp.int32).reshape(2, 6) % 2
    return Demos(Demonstration(obs, action, jnp.ones((2, 6)), obs, action), jnp.array([6, 6], jnp.int32))


def made(name: str, updates: int) -> Agent:
    module, config, _ = AGENTS[name]
    return module.make(config, ENV.spec, 2, Pace(num_envs=4, updates=updates))


def program(name: str, updates: int) -> str:
    """A stretch of training of a run of so many updates, as it goes to the compiler."""
    agent = made(name, updates)
    loop = scan.LoopConfig(iterations=updates, chunk=5, num_envs=4, rollout_length=AGENTS[name][2], prefill_steps=32)
    compiled = scan.compile_run(ENV, agent, loop)
    carry = jax.eval_shape(compiled.begin, jnp.stack([KEY]), shown())
    return compiled.chunk.lower(carry, 5).as_text()  # pyright: ignore[reportFunctionMemberAccess]


@pytest.mark.parametrize("name", AGENTS)
def test_runs_of_any_length_are_the_same_program(name):
    assert program(name, SHORT) == program(name, LONG)


@pytest.mark.parametrize("name", ["itd", "bc", "ppo"])
def test_the_first_update_does_not_depend_on_the_length_and_a_later_one_does(name):
    short, long = (jax.jit(made(name, updates).init)(KEY, shown()) for updates in (SHORT, LONG))
    update = jax.jit(made(name, SHORT).update)
    if name != "bc":
        rollout = some_rollout(4)
        observe = jax.jit(made(name, SHORT).observe)
        short, long = observe(short, rollout), observe(long, rollout)
    once = [update(state, KEY)[0] for state in (short, long)]
    later = [update(state, jax.random.key(1))[0] for state in once]
    # PPO's first update is several gradient steps, between which its rate falls.
    same(once, expected=name != "ppo")
    same(later, expected=False)


def same(states: list[Any], *, expected: bool) -> None:
    leaves = [[np.asarray(x) for x in jax.tree.leaves(state.net)] for state in states]
    assert all(np.array_equal(x, y) for x, y in zip(*leaves, strict=True)) is expected


def some_rollout(length: int) -> Any:
    state, obs = jax.vmap(ENV.reset)(jax.random.split(KEY, 4))
    return scan.collect(ENV, lambda obs, key: jax.random.randint(key, obs.shape[:1], 0, 2), state, obs, KEY, length)[2]


# --- The schedules -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [1, 7, 37, 600, 4_000])
@pytest.mark.parametrize("fraction", [0.0, 0.02])
def test_the_rates_are_those_of_optax_to_the_bit(length, fraction):
    """As an update computes them: compiled, one count after the other."""

    def counted(rates: Any) -> Any:
        return jax.lax.scan(lambda count, _: (count + 1, rates(count)), jnp.zeros((), jnp.int32), length=5_000)[1]

    def ours(count: jax.Array, length: jax.Array) -> Any:
        at = optim.Schedule(count, length)
        return 3e-3 * optim.cosine(at, fraction), 3e-3 * optim.linear(at)

    cosine, linear = optax.cosine_decay_schedule(3e-3, length, fraction), optax.linear_schedule(3e-3, 0.0, length)
    expected = jax.jit(lambda: counted(lambda count: (cosine(count), linear(count))))()
    found = jax.jit(lambda length: counted(lambda count: ours(count, length)))(jnp.asarray(length, jnp.int32))
    np.testing.assert_array_equal(np.stack(found), np.stack(expected))


@pytest.mark.parametrize("kind", ["cosine", "linear"])
def test_the_rate_falls_over_the_length_that_is_in_the_state(kind):
    """One program; the states alone know how long their runs are."""
    optimisers = {n: optim.adam(0.1, **{f"{kind}_steps": n}, final_fraction=0.0) for n in (SHORT, LONG)}
    step = jax.jit(lambda state, x: optim.step(optimisers[SHORT], jnp.ones(()), state, x))

    def moves(length: int) -> list[float]:
        state, x, found = optim.start(optimisers[length], jnp.zeros(())), jnp.zeros(()), []
        for _ in range(SHORT + 2):
            new, state = step(state, x)
            found.append(float(x - new))
            x = new
        return found

    short, long = moves(SHORT), moves(LONG)
    np.testing.assert_allclose([short[0], long[0]], 0.1, rtol=1e-4)
    np.testing.assert_allclose(short[SHORT // 2], 0.05, rtol=1e-3)
    np.testing.assert_allclose(short[SHORT:], 0.0, atol=1e-6)
    np.testing.assert_allclose(long, 0.1, rtol=0.01)


def test_the_priors_count_in_full_after_their_part_of_the_run():
    ramp = itd.ramp_length(dataclasses.replace(ITD, sparsity_ramp=0.5), Pace(updates=LONG))
    found = [float(optim.progress(jnp.int32(count), ramp)) for count in (0, LONG // 4, LONG // 2, LONG)]
    assert found == [0.0, 0.5, 1.0, 1.0]
    assert float(itd.ramp_length(dataclasses.replace(ITD, sparsity_ramp=0.0), Pace(updates=LONG))) == 1.0


# --- Files of earlier versions -------------------------------------------------------------------------------------------

OLD = {"updates": 7, "num_envs": 3}


@pytest.mark.parametrize("kind", [itd.ITDConfig, dqn.DQNConfig, ppo.PPOConfig, bc.BCConfig], ids=lambda kind: kind.__name__)
def test_what_configs_said_of_the_run_before_is_left_out(kind):
    written = dataclasses.asdict(kind())
    assert not set(OLD) & set(written)
    assert from_json(kind, {**written, **OLD}, "it") == kind()
    with pytest.raises(UserError, match=f"it is not a {kind.__name__} of this version"):
        from_json(kind, {**written, "unheard": 1}, "it")
    with pytest.raises(TypeError):
        kind(updates=7)


def test_so_it_is_in_configs_within_configs():
    for config, inner in ((psiphi.PsiPhiConfig(), "itd"), (sqil.SQILConfig(), "dqn"), (gail.GAILConfig(), "ppo")):
        written = dataclasses.asdict(config)
        assert from_json(type(config), {**written, inner: {**written[inner], **OLD}}, "it") == config
