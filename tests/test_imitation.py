"""Predicting what others will do: what counts as right, what a learner keeps when its task changes, and the figure from small trainings."""

from collections import namedtuple
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from psiphi.agents import bc
from psiphi.errors import UserError
from psiphi.experiments import imitation, paper, reproduce
from psiphi.experiments.imitation import Setting
from psiphi.loops import scan
from psiphi.types import NO_ACTION, Demonstration, Demos

FIGURE = paper.EXPERIMENTS["figure-imitation"]
SMALL = {"agent.torso_hidden": (8,), "shown": 2, "held_out": 1, "judge_every": 30}


def demos_of(actions: list[list[int]], count: list[int]) -> Demos:
    """Demonstrators who do as listed wherever they are."""
    action = jnp.array(actions, jnp.int32)
    obs = jnp.zeros((*action.shape, 4, 4))
    steps = Demonstration(obs, action, jnp.ones(action.shape), obs, jnp.full_like(action, NO_ACTION))
    return Demos(steps, jnp.array(count, jnp.int32))


def test_accuracy_is_the_mean_over_demonstrators_of_what_is_real(monkeypatch):
    """The first is right in one of two, the second in three of four; what lies behind its count is not looked at."""
    guesses = jnp.array([[2, 2, 2, 2], [0, 1, 0, 1]])
    monkeypatch.setattr(imitation, "scores", lambda setting, state, obs: jnp.eye(6)[guesses])
    setting = imitation.setting_of("bc", {"shown": 3})
    found = imitation.accuracy(setting, (), demos_of([[2, 3, 2, 2], [0, 1, 1, 1]], [2, 4]))
    assert float(found) == pytest.approx((0.5 + 0.75) / 2)


def test_a_new_task_keeps_what_was_learned_and_forgets_what_was_paid():
    agent = namedtuple("agent", "net experience task")
    made: Any = scan.Carry

    def carry(who: str) -> Any:
        return made(agent(*(f"{who} {name}" for name in agent._fields)), f"{who} env", f"{who} obs", who, who)

    after = imitation.new_task(carry("old"), carry("new"))
    assert after == made(agent("old net", "new experience", "new task"), "new env", "new obs", "old", "old")


def test_bc_learns_the_shown_episodes_and_is_judged_on_others(tmp_path, monkeypatch):
    setting = imitation.setting_of("bc", {**SMALL, "agent.learning_rate": 0.03}, updates=120)
    found = imitation.run(setting, 1000)
    assert found.updates == [30, 60, 90, 120] and found.env_steps == 0
    assert found.shown[-1] > 0.6 and all(0 <= x <= 1 for x in found.held_out)
    assert found.shown != found.held_out
    # Killed in its third stretch, with a checkpoint after every one, it continues and comes to the same.
    kept = {"out": tmp_path, "checkpoint_every_s": 0.0}
    go_on, left = imitation.go_on, iter(range(2))
    with pytest.raises(KeyboardInterrupt), monkeypatch.context() as patch:
        patch.setattr(imitation, "go_on", lambda *given: go_on(*given) if next(left, None) is not None else interrupt())
        imitation.run(setting, 1000, **kept)
    again = imitation.run(setting, 1000, **kept)
    assert again.earlier_s > 0 and again._replace(earlier_s=0.0) == found


def interrupt() -> Any:
    raise KeyboardInterrupt


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["itd", "psiphi"])
def test_itd_and_psiphi_run_through_their_tasks(algorithm):
    changes = {"agent.torso_hidden": (8,)} if algorithm == "itd" else {"agent.itd.torso_hidden": (8,), "num_envs": 2, "prefill_steps": 200}
    setting = imitation.setting_of(algorithm, {**changes, "shown": 2, "held_out": 1, "judge_every": 30}, updates=90)
    found = imitation.run(setting, 1000)
    assert found.updates == [30, 60, 90] and found.shown[-1] > 0.4
    assert found.env_steps == (0 if algorithm == "itd" else 90 * 2 + 3 * 200)


def test_every_line_of_the_figure_has_a_setting_and_says_what_it_saw():
    (variant,) = FIGURE.variants
    settings = {method.name: imitation.setting_of(method.algorithm, dict(method.changes)) for method in FIGURE.methods}
    assert all(isinstance(setting, Setting) for setting in settings.values())
    assert settings["bc-many"].shown == 25 * settings["bc"].shown
    saw = {
        method.name: reproduce.config_of(FIGURE, reproduce.Unit(variant, method, 0), reproduce.Effort())["saw"] for method in FIGURE.methods
    }
    assert {name: saw[name][1] for name, setting in settings.items() if not imitation.drives(setting)} == dict.fromkeys(
        ("itd", "bc", "bc-many"), "none"
    )
    assert saw["psiphi"][1:] == ["34,800", "of 3 tasks in turn"]


def test_scores_of_bc_are_those_of_its_policies():
    setting = imitation.setting_of("bc", {"agent.torso_hidden": (8,)}, updates=10)
    demos = demos_of([[0, 1], [2, 3]], [2, 2])
    state = imitation.make(setting).init(jax.random.key(0), demos)
    expected = bc.logits(bc.deployed(setting.agent, state), demos.steps.obs)
    np.testing.assert_array_equal(imitation.scores(setting, state, demos.steps.obs), expected)


@pytest.mark.parametrize(
    ("change", "message"), [({"shown": 0}, "shown is 0"), ({"updates": 0}, "updates is 0"), ({"goals": ()}, "goals is empty")]
)
def test_a_bad_setting_gets_one_sentence(change, message):
    with pytest.raises(UserError, match=message):
        imitation.setting_of("bc", change)
