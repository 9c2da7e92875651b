"""The baselines as a user trains them: every algorithm by its command, in a world that costs nothing, and what is refused."""

import json
import re
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import psiphi
import tiny
from psiphi import checkpoint, cli, training
from psiphi import model as functions
from psiphi.agents import ALGORITHMS, bc, rewarded
from psiphi.agents.bc import BCConfig
from psiphi.api import files, trained
from psiphi.envs.coingrid import CoinGridConfig
from psiphi.errors import UserError
from psiphi.loops import scan
from psiphi.types import Agent, Demonstration, Demos, Transition

BASELINES = ("bc", "dqn", "sqil", "ppo", "gail")


def command(capsys, *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as left:
        cli.main([part for argument in arguments for part in argument.split()])
    said = capsys.readouterr()
    return int(left.value.code or 0), said.out, said.err


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> dict[str, Path]:
    """A run directory of each algorithm, trained by its command."""
    there = {name: tmp_path_factory.mktemp(name) for name in BASELINES}
    for name, out in there.items():
        with pytest.raises(SystemExit) as left:
            cli.main(["train", name, "--out", str(out), *tiny.flags(name)])
        assert not left.value.code
    return there


def test_the_command_line_knows_every_algorithm(capsys):
    code, out, _ = command(capsys, "train --help")
    assert code == 0 and all(re.search(rf"^  {name} ", out, re.M) for name in ALGORITHMS)
    assert set(json.loads(command(capsys, "algorithms --json")[1])) == set(ALGORITHMS) <= set(tiny.NETS)


@pytest.mark.parametrize("name", BASELINES)
def test_a_run_leaves_metrics_and_a_policy_that_can_be_judged(runs, name, capsys):
    rows = [json.loads(line) for line in (runs[name] / "metrics.jsonl").read_text().splitlines()]
    judged = [value for key, value in rows[-1].items() if key.startswith("eval/normalised_return")]
    assert judged and all(-1 <= value <= 1 for value in judged)
    code, out, _ = command(capsys, f"evaluate {runs[name]} --episodes 4 --json")
    found = json.loads(out)
    assert code == 0 and found["algorithm"] == name
    on = {who: row["task"] for who, row in found["policies"].items()}
    assert on == ({"R": "R", "G": "G"} if name == "bc" else {"ego": "R+G"})
    assert "normalised" in command(capsys, f"evaluate {runs[name]} --episodes 4")[1]


@pytest.mark.parametrize("name", BASELINES)
def test_a_policy_comes_back_as_it_was_saved(runs, name):
    policy = psiphi.load(runs[name])
    assert policy.algorithm == name and type(policy) is getattr(psiphi, name.upper())
    assert isinstance(policy.config, ALGORITHMS[name].config) and policy._run["world"]["size"] == 5
    policy.save(runs[name] / "again")
    before, after = files.read(runs[name]), files.read(runs[name] / "again")
    assert (after.config, after.seed, after.run, after.algorithm) == (before.config, before.seed, before.run, before.algorithm)
    assert before.policies is not None and after.policies is not None
    same = jax.tree.map(lambda x, y: bool(jnp.array_equal(x, y)), before.policies.net, after.policies.net)
    assert all(jax.tree.leaves(same))


def test_a_model_is_not_a_policy_and_a_policy_not_a_model(runs, tmp_path, capsys):
    code, _, err = command(capsys, f"adapt {runs['dqn']} --task R-G")
    assert code == 2 and "is a policy of dqn, which has no preferences; adapt needs a model of itd or psiphi" in err
    with pytest.raises(UserError, match="is a policy of dqn, expected a model that infers rewards, of itd or psiphi"):
        training.train(replace(tiny.run("ppo"), reward_from=str(runs["dqn"])), progress=False)
    with pytest.raises(UserError, match="was trained by dqn, but init_from expects what bc left"):
        training.train(replace(tiny.run("ppo"), init_from=str(runs["dqn"])), progress=False)
    checkpoint.save(tmp_path / "model", jnp.zeros(1), meta={"kind": "run"})
    with pytest.raises(UserError, match="is a checkpoint but not a trained model"):
        psiphi.load(tmp_path)


def test_ppo_and_gail_start_from_a_cloned_policy(runs, monkeypatch):
    cloned = bc.of_demonstrator(psiphi.load(runs["bc"])._policies.net, 1)
    for name in ("ppo", "gail"):
        made = replace(tiny.run(name), init_from=str(runs["bc"]), demonstrator=1)
        begun = []
        monkeypatch.setattr(scan, "run", lambda env, agent, demos, *_, begun=begun, **__: begun.append((agent, demos)) or 1 / 0)
        with pytest.raises(ZeroDivisionError):
            training.train(made, progress=False)
        ((agent, demos),) = begun
        mine = ALGORITHMS[name].deployed(made.agent, agent.init(jax.random.key(0), demos))
        spec = tiny.spec_of(made)
        obs = jax.random.bernoulli(jax.random.key(1), 0.3, (3, *spec.obs_shape)).astype(spec.obs_dtype)
        np.testing.assert_array_equal(mine(obs), cloned(obs))
    with pytest.raises(UserError, match="has cloned demonstrators 0 to 1, but 2 is asked for"):
        training.train(replace(tiny.run("ppo"), init_from=str(runs["bc"]), demonstrator=2), progress=False)


def demos_of(made: training.Run) -> Demos:
    spec = tiny.spec_of(made)
    obs, action = jnp.zeros((2, 4, *spec.obs_shape), spec.obs_dtype), jnp.zeros((2, 4), jnp.int32)
    return Demos(Demonstration(obs, action, jnp.ones((2, 4)), obs, action), jnp.array([4, 2]))


WORLD = "--world.size 5 --world.coins 1 1 0 --world.max-steps 8 --episodes 4 --evaluate-episodes 4 --quiet"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("train dqn --task R+Z", "'R[+]Z' is not a CoinGrid task"),
        ("train dqn --steps 0", "steps is 0 and updates is 0, expected exactly one of them above 0"),
        ("train dqn --steps -1", "steps is -1, expected at least 0"),
        ("train dqn --steps 8 --updates 8", "steps is 8 and updates is 8, expected exactly one of them above 0"),
        ("train bc --steps 8", "bc takes no steps in the world, expected updates instead of steps"),
        ("train dqn --preset paper", "dqn has no preset paper in coingrid; there, itd, psiphi has one"),
        ("train dqn --agent.n-step 0 --out {tmp}/a", "n_step is 0, expected at least 1"),
        ("train dqn --init-from {tmp} --out {tmp}/c", "dqn cannot start from a cloned policy; ppo and gail can"),
        ("train sqil --reward-from {tmp} --out {tmp}/d", "sqil is not paid"),
        ("train sqil --agent.demonstrator 2 --out {tmp}/e " + WORLD, "Demonstrator 2 is unknown: there are 2, counted from 0"),
        ("train dqn --reward-from {tmp}/nowhere --out {tmp}/f", "nowhere does not exist"),
        ("train ppo --init-from {tmp}/nowhere --out {tmp}/g", "nowhere does not exist"),
    ],
)
def test_what_is_wrong_is_said_in_one_sentence_and_nothing_is_written(capsys, tmp_path, monkeypatch, arguments, sentence):
    monkeypatch.chdir(tmp_path)
    code, _, err = command(capsys, arguments.format(tmp=tmp_path))
    assert code == 2 and err.count("\n") == 1 and re.search(sentence, err), err
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


# --- Demonstrations ------------------------------------------------------------------------------------------------------


def test_pooled_demonstrations_are_all_real_steps_of_all():
    action = jnp.array([[0, 1, 2, 9], [2, 2, 9, 9]])
    blank = jnp.zeros((2, 4))
    pooled = training.pool(Demos(Demonstration(blank, action, blank, blank, action), jnp.array([3, 2])))
    assert pooled.steps.action.tolist() == [[0, 1, 2, 2, 2]] and pooled.count.tolist() == [5]


def test_demonstrations_of_another_world_are_refused():
    made = tiny.run("bc")
    demos = demos_of(made)
    too_many = demos._replace(steps=demos.steps._replace(action=demos.steps.action.at[1, 1].set(3)))
    with pytest.raises(UserError, match="Demonstrator 1 took action 3, but the environment's actions are 0 to 2"):
        training.train(made, demos=too_many, progress=False)
    with pytest.raises(UserError, match="Demonstrator 0 has shown 0 steps"):
        training.train(made, demos=demos._replace(count=jnp.array([0, 2])), progress=False)
    assert isinstance(made.agent, BCConfig)


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


def test_dqn_is_trained_on_the_reward_of_a_model(tmp_path, monkeypatch):
    where = tiny.save_model(tmp_path / "model", tiny.run("itd"))
    made = replace(tiny.run("dqn"), demonstrator=1, reward_from=str(where), steps=24, evaluate_every=0)
    seen = []
    make = rewarded.rewarded
    monkeypatch.setattr(rewarded, "rewarded", lambda agent, pay, model: seen.append((pay, model)) or make(agent, pay, model))
    result = training.train(made, progress=False)
    assert result.env_steps == 24
    trained.save(tmp_path / "dqn", result)
    found = files.read(tmp_path / "dqn")  # the learner's own network; of the model that paid it, the name
    assert found.known is None and found.run is not None and found.run["reward_from"] == str(where)
    ((pay, model),) = seen
    obs = jnp.zeros((1, *tiny.spec_of(made).obs_shape), jnp.uint8)
    step = Transition(obs, jnp.array([2]), jnp.zeros(1), jnp.ones(1), obs, jnp.zeros(1, bool))
    np.testing.assert_allclose(pay(model, step), functions.rewards(model, obs, jnp.array([2]))[:, 1], rtol=1e-6)
    with pytest.raises(UserError, match="knows demonstrators 0 to 1, but the reward of 5 is asked for"):
        training.train(replace(made, demonstrator=5), progress=False)
    with pytest.raises(UserError, match="reads observations of shape"):
        training.train(replace(made, world=CoinGridConfig(size=7)), progress=False)


def test_the_loop_of_a_run_counts_steps_and_evaluations():
    ppo = training.default_run("ppo", "coingrid", steps=3_000, evaluate_every=1_024, seed=4)
    loop = training.loop_of(ppo)
    assert isinstance(loop, scan.LoopConfig) and loop.seed == 4 and loop.prefill_steps == 0
    per_rollout = loop.num_envs * loop.rollout_length
    assert 3_000 <= loop.env_steps(loop.iterations) < 3_000 + per_rollout and loop.chunk * per_rollout == 1_024
    dqn = training.loop_of(training.default_run("dqn", "coingrid", steps=3_000, prefill_steps=1_000))
    assert dqn.env_steps(dqn.iterations) == 3_000 and dqn.rollout_length == 1
    longer = training.loop_of(training.default_run("dqn", "coingrid", steps=3_000, prefill_steps=1_000, num_envs=4, rollout_length=2))
    assert longer.prefill_steps == 1_000 and longer.env_steps(longer.iterations) == 3_000, "who replays has random steps at any length"
