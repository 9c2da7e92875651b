"""Learning that leaves the finite numbers is seen before anything of it is written, and harms nothing that was there."""

import dataclasses
from typing import Any

import gymnasium
import jax.numpy as jnp
import numpy as np
import pytest

import probes
import psiphi
from psiphi import checkpoint
from psiphi.errors import Diverged, UserError
from psiphi.loops import divergence, gym, runs, scan
from psiphi.types import Agent

ENV = probes.make(probes.say_what_you_see())
CONFIG = scan.LoopConfig(iterations=20, chunk=5, num_envs=2)


def exploding(at: int, what: str) -> Agent:
    """The tabular learner until its update number `at`; then its values, or only its metrics, are no numbers."""
    agent = probes.tabular_q(ENV.spec, num_envs=2, noise=0.1)

    def init(key: Any, demos: Any) -> Any:
        return {"table": agent.init(key, demos), "count": jnp.zeros((), jnp.int32)}

    def update(state: Any, key: Any) -> Any:
        table, _ = agent.update(state["table"], key)
        bad = jnp.where(state["count"] >= at, jnp.nan, 0.0)
        table = table._replace(q=table.q + bad) if what == "parameters" else table
        return {"table": table, "count": state["count"] + 1}, {"loss": bad if what == "metrics" else jnp.zeros(())}

    act, observe, policy = agent.act, agent.observe, agent.policy
    return Agent(
        init,
        lambda state, obs, key: act(state["table"], obs, key),
        lambda state, rollout: {**state, "table": observe(state["table"], rollout)},
        update,
        lambda state, obs, key: policy(state["table"], obs, key),
    )


@pytest.mark.parametrize(("what", "name"), [("parameters", "table/q"), ("metrics", "loss")])
def test_the_last_good_checkpoint_and_its_rows_stay(tmp_path, what, name):
    with pytest.raises(Diverged, match=rf"diverged by iteration 15: {name} is nan, expected finite numbers; a smaller learning rate"):
        scan.run(ENV, exploding(12, what), None, CONFIG, out=tmp_path, checkpoint_every_s=0.0, progress=False)
    assert checkpoint.read_meta(tmp_path / "checkpoint")["step"] == 10
    assert [row["step"] for row in runs.read_rows(tmp_path)] == [5, 10]
    assert all(np.isfinite(x).all() for x in checkpoint.load_arrays(tmp_path / "checkpoint").values())


def test_of_several_seeds_the_bad_one_is_named():
    state = {"q": jnp.array([[0.0, 1.0], [jnp.inf, 1.0]])}
    with pytest.raises(Diverged, match="q of seed 8 is inf"):
        divergence.check(3, {}, state, range(7, 9))


def test_a_checkpoint_that_is_not_finite_already_is_not_continued(tmp_path):
    config = dataclasses.replace(CONFIG, iterations=5)
    scan.run(ENV, probes.tabular_q(ENV.spec, num_envs=2, noise=0.1), None, config, out=tmp_path, progress=False)
    meta = checkpoint.read_meta(tmp_path / "checkpoint")
    arrays = checkpoint.load_arrays(tmp_path / "checkpoint")
    assert "agent/q" in arrays and meta["step"] == 5
    agent = exploding(0, "parameters")
    with pytest.raises(Diverged, match="iteration 5"):
        scan.run(ENV, agent, None, config, progress=False)


# --- The command line and the API ----------------------------------------------------------------------------------------


def test_a_rate_that_explodes_ends_the_command_with_one_sentence(tmp_path, capsys):
    from psiphi import cli
    from tiny import flags

    arguments = [*flags("itd"), "--agent.learning-rate", "1e30", "--agent.clip", "0", "--updates", "600", "--out", str(tmp_path / "run")]
    with pytest.raises(SystemExit) as left:
        cli.main(["train", "itd", *arguments])
    said = capsys.readouterr()
    assert left.value.code == 2 and said.err.count("\n") == 1 and "Learning diverged by iteration 500" in said.err
    assert "model is in" not in said.out and not (tmp_path / "run" / "model").exists()


def logs() -> psiphi.Demonstrations:
    rng = np.random.default_rng(0)
    return psiphi.Demonstrations.from_lists(
        [rng.normal(size=(9, 2)).astype(np.float32) for _ in range(8)], [rng.integers(3, size=8) for _ in range(8)], list("abababab")
    )


SMALL = psiphi.ITDConfig(
    torso_hidden=(8,), phi_hidden=(8,), psi_hidden=(8,), batch=8, cross_policy_on="pooled", cross_batch=8, sparsity=0.0
)


@pytest.fixture(scope="module")
def fitted() -> psiphi.ITD:
    return psiphi.ITD(SMALL, updates=20).fit(logs(), progress=False)


def test_a_fit_that_explodes_leaves_what_was_fitted(fitted):
    learner = psiphi.ITD(SMALL, updates=20).fit(logs(), progress=False)
    before = learner.preferences.w
    learner.config = dataclasses.replace(SMALL, learning_rate=1e30, clip=0.0)
    with pytest.raises(psiphi.Diverged, match="diverged by iteration 20"):
        learner.fit(logs(), progress=False)
    np.testing.assert_array_equal(learner.preferences.w, before)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_an_agent_is_asked_with_finite_numbers_only(fitted, bad):
    obs = np.array([0.0, bad], np.float32)
    good = np.zeros(2, np.float32)
    fitted.adapt((good[None], [0], [1.0]))
    before = fitted.w.copy()
    for ask in (
        lambda: fitted.policy("a")(obs),
        lambda: fitted.policy("a").probabilities(obs),
        lambda: fitted.reward("a")(obs, 0),
        lambda: fitted.predict(obs),
        lambda: fitted.explain(obs),
        lambda: fitted.cumulants(obs),
        lambda: fitted.adapt((obs[None], [0], [1.0])),
        lambda: fitted.adapt((good[None], [0], [bad])),
        lambda: fitted.set_preferences(np.full(4, bad)),
    ):
        with pytest.raises(UserError, match="finite"):
            ask()
    np.testing.assert_array_equal(fitted.w, before)


class Broken(gymnasium.Env):
    """Gives something that is no number after a while."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(3)

    def __init__(self, reward: float = 0.0, obs: float = 0.0, after: int = 5):
        self.bad, self.after, self.t = (reward, obs), after, 0

    def reset(self, *, seed=None, options=None):
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.t += 1
        late = self.t > self.after
        return np.full(2, self.bad[1] if late else 0.0, np.float32), self.bad[0] if late else 1.0, False, self.t % 4 == 0, {}


@pytest.mark.parametrize(("broken", "said"), [({"reward": np.nan}, "a reward of nan"), ({"obs": np.inf}, "an observation of inf")])
def test_an_environment_that_gives_no_number_is_refused_at_that_step(broken, said):
    worlds = gym.Worlds(gymnasium.vector.SyncVectorEnv([lambda: Broken(**broken)], autoreset_mode="SameStep"))
    worlds.reset(0)
    for _ in range(5):
        worlds.step(np.zeros(1, int))
    with pytest.raises(UserError, match=f"The environment gave {said}, expected finite numbers"):
        worlds.step(np.zeros(1, int))


def test_an_agent_survives_an_environment_that_breaks():
    config = psiphi.PsiPhiConfig(itd=dataclasses.replace(SMALL, replay_size=128, cross_policy_on="experience"), batch=8)
    agent = psiphi.PsiPhi(Broken(reward=np.nan, after=100), logs(), config).learn(40, study=2, progress=False)
    before = agent.predict(np.zeros(2, np.float32)), agent.w.copy(), agent.steps
    with pytest.raises(UserError, match="a reward of nan"):
        agent.learn(200, progress=False)
    assert (agent.predict(np.zeros(2, np.float32)), agent.steps) == (before[0], before[2])
    np.testing.assert_array_equal(agent.w, before[1])
