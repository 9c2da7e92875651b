"""The baselines as a user trains them: every algorithm by its command, in a world that costs nothing, and what is refused."""

import json
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from psiphi import checkpoint, cli, replay
from psiphi.agents import ALGORITHMS, rewarded
from psiphi.agents.bc import BCConfig
from psiphi.envs import coingrid
from psiphi.errors import UserError
from psiphi.experiments import baselines, models, train
from psiphi.experiments import coingrid as experiment
from psiphi.loops import scan
from psiphi.types import Agent, Demonstration, Demos, Transition

WORLD = "--world.size 5 --world.coins 1 1 0 --world.max-steps 8 --episodes 4 --evaluate-episodes 4 --quiet"
NET = "--agent.torso-hidden 8"
REPLAYED = "--steps 32 --prefill-steps 16 --evaluate-every 16"
FLAGS = {
    "bc": f"{NET} --updates 2 --agent.batch 4",
    "dqn": f"{NET} --agent.head-hidden 8 --agent.batch 4 --num-envs 2 --agent.replay-size 64 {REPLAYED}",
    "sqil": f"--agent.dqn.torso-hidden 8 --agent.dqn.head-hidden 8 --agent.dqn.batch 4 --num-envs 2 {REPLAYED}",
    "ppo": f"{NET} --num-envs 2 --agent.rollout-length 4 --agent.minibatches 2 --agent.epochs 1 --steps 16 --evaluate-every 8",
    "gail": (
        f"{NET} --agent.head-hidden 8 --agent.ppo.torso-hidden 8 --num-envs 2 --agent.ppo.rollout-length 4 --agent.batch 4 "
        "--agent.ppo.minibatches 2 --agent.ppo.epochs 1 --agent.steps 1 --steps 16 --evaluate-every 8"
    ),
}


def command(capsys, *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as left:
        cli.main([part for argument in arguments for part in argument.split()])
    said = capsys.readouterr()
    return int(left.value.code or 0), said.out, said.err


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> dict[str, Path]:
    """A run directory of each algorithm, trained by its command."""
    there = {name: tmp_path_factory.mktemp(name) for name in FLAGS}
    for name, out in there.items():
        with pytest.raises(SystemExit) as left:
            cli.main(f"train {name} --out {out} {WORLD} {FLAGS[name]}".split())
        assert not left.value.code
    return there


def test_the_command_line_knows_every_algorithm():
    assert set(baselines.LEARNERS) == set(train.BASELINES) == set(train.SETTINGS) == set(FLAGS)
    assert cli.ALGORITHMS == train.ALGORITHMS


@pytest.mark.parametrize("name", FLAGS)
def test_a_run_leaves_metrics_and_a_policy_that_can_be_judged(runs, name, capsys):
    rows = [json.loads(line) for line in (runs[name] / "metrics.jsonl").read_text().splitlines()]
    judged = [value for key, value in rows[-1].items() if key.startswith("eval/normalised_return")]
    assert judged and all(-1 <= value <= 1 for value in judged)
    code, out, _ = command(capsys, f"evaluate {runs[name]} --episodes 4 --json")
    found = json.loads(out)
    assert code == 0 and found["algorithm"] == name
    assert list(found["tasks"]) == (["R", "G"] if name == "bc" else ["R+G"])
    assert "normalised" in command(capsys, f"evaluate {runs[name]} --episodes 4")[1]


@pytest.mark.parametrize("name", FLAGS)
def test_a_policy_comes_back_as_it_was_saved(runs, name):
    policy = baselines.load(runs[name])
    assert policy.algorithm == name and baselines.name_of(policy.setting.agent) == name and policy.setting.world.size == 5
    meta = checkpoint.read_meta(runs[name] / "model")
    again = baselines.Trained(policy.net, meta["env_steps"], meta["wall_s"], [])
    baselines.save(runs[name] / "again", again, policy.setting, policy.env, policy.seed)
    assert baselines.load(runs[name] / "again").setting == policy.setting
    same = jax.tree.map(lambda x, y: bool(jnp.array_equal(x, y)), policy.net, baselines.load(runs[name] / "again").net)
    assert all(jax.tree.leaves(same))


def test_a_model_is_not_a_policy_and_a_policy_not_a_model(runs, tmp_path):
    with pytest.raises(UserError, match="is a checkpoint but not a trained model"):
        models.load(runs["dqn"])
    checkpoint.save(tmp_path / "model", jnp.zeros(1), meta={"kind": "psiphi model"})
    with pytest.raises(UserError, match="not a policy that `psiphi train dqn"):
        baselines.load(tmp_path)
    with pytest.raises(UserError, match="was trained by dqn, but init_from expects what bc left"):
        baselines.cloned_policy(baselines.default("ppo"), runs["dqn"])


def test_ppo_and_gail_start_from_a_cloned_policy(runs):
    for name in ("ppo", "gail"):
        policy = baselines.load(runs[name])
        setting = replace(policy.setting, init_from=str(runs["bc"]), demonstrator=1)
        cloned = baselines.cloned_policy(setting, runs["bc"])
        spec = coingrid.spec(setting.world)
        state = baselines.make_agent(setting, spec, cloned=cloned).init(jax.random.key(0), demos_of(setting))
        mine = ALGORITHMS[name].deployed(setting.agent, state)
        obs = jax.random.bernoulli(jax.random.key(1), 0.3, (3, *spec.obs_shape)).astype(spec.obs_dtype)
        np.testing.assert_array_equal(mine(obs), cloned(obs))
    with pytest.raises(UserError, match="has cloned demonstrators 0 to 1, but 2 is asked for"):
        baselines.cloned_policy(replace(baselines.default("ppo"), demonstrator=2), runs["bc"])


def demos_of(setting: baselines.Setting) -> Demos:
    spec = coingrid.spec(setting.world)
    obs, action = jnp.zeros((2, 4, *spec.obs_shape), spec.obs_dtype), jnp.zeros((2, 4), jnp.int32)
    return Demos(Demonstration(obs, action, jnp.ones((2, 4)), obs, action), jnp.array([4, 2]))


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("train dqn --task R+Z", "'R[+]Z' is not a CoinGrid task"),
        ("train dqn --steps 0", "steps is 0, expected at least 1"),
        ("train dqn --preset paper", "dqn has no preset 'paper'"),
        ("train dqn --agent.n-step 0 --out {tmp}/a", "n_step is 0, expected at least 1"),
        ("train dqn --init-from {tmp} --out {tmp}/c", "dqn cannot start from a cloned policy; ppo and gail can"),
        ("train sqil --reward-from {tmp} --out {tmp}/d", "sqil is not paid"),
        ("train sqil --agent.demonstrator 2 --out {tmp}/e " + WORLD, "Demonstrator 2 is unknown: there are 2, counted from 0"),
        ("train dqn --reward-from {tmp}/nowhere --out {tmp}/f", "nowhere does not exist"),
        ("train ppo --init-from {tmp}/nowhere --out {tmp}/g", "nowhere does not exist"),
    ],
)
def test_what_is_wrong_is_said_in_one_sentence(capsys, tmp_path, arguments, sentence):
    import re

    code, _, err = command(capsys, arguments.format(tmp=tmp_path))
    assert code == 2 and err.count("\n") == 1 and re.search(sentence, err), err


# --- Demonstrations ------------------------------------------------------------------------------------------------------


def test_pooled_demonstrations_are_all_real_steps_of_all():
    action = jnp.array([[0, 1, 2, 9], [2, 2, 9, 9]])
    blank = jnp.zeros((2, 4))
    pooled = baselines.pool(Demos(Demonstration(blank, action, blank, blank, action), jnp.array([3, 2])))
    assert pooled.steps.action.tolist() == [[0, 1, 2, 2, 2]] and pooled.count.tolist() == [5]


def test_demonstrations_of_another_world_are_refused():
    setting = baselines.default("bc")
    demos = demos_of(setting)
    too_many = demos._replace(steps=demos.steps._replace(action=demos.steps.action.at[1, 1].set(3)))
    with pytest.raises(UserError, match="Demonstrator 1 took action 3, but the environment's actions are 0 to 2"):
        baselines.train(setting, 0, demos=too_many, progress=False)
    with pytest.raises(UserError, match="Demonstrator 0 has shown 0 steps"):
        baselines.train(setting, 0, demos=demos._replace(count=jnp.array([0, 2])), progress=False)
    assert isinstance(setting.agent, BCConfig)


# --- Paid by a model -----------------------------------------------------------------------------------------------------


def purse() -> Agent:
    """Remembers what it was paid."""

    def update(state: jax.Array, key: jax.Array) -> tuple[jax.Array, dict[str, jax.Array]]:
        return state, {"paid": state}

    def act(state: jax.Array, obs: jax.Array, key: jax.Array) -> jax.Array:
        return jnp.zeros(obs.shape[0], jnp.int32)

    return Agent(lambda key, demos: jnp.zeros(()), act, lambda state, rollout: state + jnp.sum(rollout.reward), update, act)


def test_a_rewarded_agent_is_paid_by_the_function_and_not_by_the_environment():
    def pay(price: jax.Array, steps: Transition) -> jax.Array:
        return price * steps.obs[:, 0] + steps.action

    agent = rewarded.rewarded(purse(), pay, jnp.asarray(10.0))
    obs = jnp.arange(6.0).reshape(3, 2, 1)
    step = Transition(obs, jnp.ones((3, 2), jnp.int32), jnp.full((3, 2), 99.0), jnp.ones((3, 2)), obs, jnp.zeros((3, 2), bool))
    state = agent.observe(agent.init(jax.random.key(0), None), step)
    state, metrics = agent.update(state, jax.random.key(0))
    assert float(metrics["paid"]) == 10 * 15 + 6 and float(state.parameters) == 10.0
    assert agent.policy(state, obs[0], jax.random.key(0)).tolist() == [0, 0]


def small_model(tmp_path: Path) -> Path:
    """A model of random numbers, saved as a training leaves it."""
    setting = experiment.Setting(world=coingrid.CoinGridConfig(size=5, coins=(1, 1, 0), max_steps=8))
    setting = models.changed(setting, {"itd.torso_hidden": (8,), "itd.phi_hidden": (8,), "itd.psi_hidden": (8,)})
    draw = np.random.default_rng(0)
    model = jax.tree.map(lambda x: jnp.asarray(draw.normal(size=x.shape), x.dtype), models.like(setting))
    models.save(tmp_path / "model", experiment.Trained(model, 0, 0.0, []), setting, "coingrid", 0)
    return tmp_path


def test_dqn_is_trained_on_the_reward_of_a_model(tmp_path, monkeypatch):
    where = small_model(tmp_path)
    setting = replace(baselines.default("dqn"), world=coingrid.CoinGridConfig(size=5, coins=(1, 1, 0), max_steps=8), demonstrator=1)
    setting = models.changed(setting, {"reward_from": str(where), "steps": 24, "prefill_steps": 16, "evaluate_episodes": 4})
    seen = []
    make = rewarded.rewarded
    monkeypatch.setattr(rewarded, "rewarded", lambda agent, pay, model: seen.append((pay, model)) or make(agent, pay, model))
    small = {"agent.torso_hidden": (8,), "agent.head_hidden": (8,), "num_envs": 2, "agent.batch": 4, "agent.replay_size": 64}
    trained = baselines.train(models.changed(setting, small), 0, progress=False)
    assert trained.env_steps == 24
    ((pay, model),) = seen
    obs = jnp.zeros((1, *coingrid.spec(setting.world).obs_shape), jnp.uint8)
    from psiphi import model as functions

    step = Transition(obs, jnp.array([2]), jnp.zeros(1), jnp.ones(1), obs, jnp.zeros(1, bool))
    np.testing.assert_allclose(pay(model, step), functions.rewards(model, obs, jnp.array([2]))[:, 1], rtol=1e-6)
    with pytest.raises(UserError, match="knows demonstrators 0 to 1, but the reward of 5 is asked for"):
        baselines.paid_by(replace(setting, demonstrator=5), where)
    with pytest.raises(UserError, match="reads observations of shape"):
        baselines.paid_by(replace(setting, world=coingrid.CoinGridConfig(size=7)), where)


def test_the_loop_of_a_setting_counts_steps_and_evaluations():
    ppo = replace(baselines.default("ppo"), steps=3_000, evaluate_every=1_024)
    loop = baselines.loop_of(ppo, 4)
    assert isinstance(loop, scan.LoopConfig) and loop.seed == 4 and loop.prefill_steps == 0
    per_rollout = loop.num_envs * loop.rollout_length
    assert 3_000 <= loop.env_steps(loop.iterations) < 3_000 + per_rollout and loop.chunk * per_rollout == 1_024
    dqn = baselines.loop_of(replace(baselines.default("dqn"), steps=3_000, prefill_steps=1_000), 0)
    assert dqn.env_steps(dqn.iterations) == 3_000 and dqn.rollout_length == 1
    assert replay.has_shown(demos_of(ppo)).tolist() == [True, True]
