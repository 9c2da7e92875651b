"""The verdict on inferred rewards: what is measured without labels, by hand, and when it warns. It never praises."""

import json
import math
from typing import Any

import numpy as np
import pytest

from psiphi.api import evidence, verdict
from psiphi.api.verdict import Finding, Verdict, judge, unmeasured
from psiphi.errors import UserError

NAN = math.nan


def flags(*numbers: int) -> np.ndarray:
    return np.array(numbers, bool)


# --- Are the actions predicted? --------------------------------------------------------------------------------------------------


def test_majority_is_the_smoothed_share_of_shown_actions():
    action, who = np.array([0, 0, 1, 0, 1, 1]), np.array([0, 0, 0, 0, 1, 1])
    held = flags(0, 0, 0, 1, 0, 0)
    found = evidence.majority_nll(action, who, held, agents=3, num_actions=2)
    assert found[0] == pytest.approx(-math.log((2 + 1) / (3 + 2)))
    assert np.isnan(found[1:]).all(), "nothing of them is held out"


def test_counts_go_by_the_very_same_observation_and_fall_back_to_habit():
    obs = np.array([[0.0], [0.0], [1.0], [-0.0], [2.0]], np.float32)
    action, who, held = np.array([0, 0, 1, 0, 1]), np.zeros(5, int), flags(0, 0, 0, 1, 1)
    habit = np.array([3, 2]) / 5  # two and one of three shown steps, smoothed
    seen, unseen = (2 + habit[0]) / 3, habit[1]
    found = evidence.count_nll(obs, action, who, held, agents=1, num_actions=2)
    np.testing.assert_allclose(found, [-(math.log(seen) + math.log(unseen)) / 2])


def test_counts_of_one_agent_say_nothing_of_another():
    obs, held = np.zeros((4, 1), np.float32), flags(0, 0, 1, 1)
    action, who = np.array([0, 1, 0, 1]), np.array([0, 1, 0, 1])
    np.testing.assert_allclose(evidence.count_nll(obs, action, who, held, agents=2, num_actions=2), [-math.log(5 / 6)] * 2)


def test_clone_learns_what_habits_do_not_tell():
    rng = np.random.default_rng(0)
    obs, who = rng.normal(size=(3_000, 3)).astype(np.float32), rng.integers(0, 2, 3_000)
    action = (obs[np.arange(3_000), who] > 0).astype(int)  # each agent looks at an entry of its own
    held = (np.arange(3_000) % 10 == 0) & (np.arange(3_000) > 9)
    found = evidence.clone_nll(obs, action, who, held, agents=3, num_actions=2)
    habits = evidence.majority_nll(action, who, held, agents=3, num_actions=2)
    assert (found[:2] < 0.2).all() and (habits[:2] > 0.65).all() and np.isnan(found[2])


def test_clone_of_noise_is_stopped_before_it_believes_it():
    rng = np.random.default_rng(0)
    obs, action = rng.normal(size=(400, 8)).astype(np.float32), rng.integers(0, 4, 400)
    held = np.arange(400) < 200
    (found,) = evidence.clone_nll(obs, action, np.zeros(400, int), held, agents=1, num_actions=4)
    assert found < math.log(4) + 0.1


# --- Are the agents told apart? ----------------------------------------------------------------------------------------------------


def test_told_apart_is_own_against_the_best_other():
    log_prob = np.log(np.array([[0.8, 0.8, 0.1], [0.4, 0.4, 0.9], [0.2, 0.2, 0.9]]))
    who, held = np.array([0, 0, 1]), flags(1, 0, 1)
    found = evidence.told_apart(log_prob, who, held)
    np.testing.assert_allclose(found[:2], [math.log(0.8 / 0.4), 0.0])
    assert np.isnan(found[2]), "nothing of it is held out"
    mixed = evidence.one_for_all(log_prob, who, held)
    np.testing.assert_allclose(mixed[:2], [math.log(0.8 / (1.4 / 3)), math.log(0.9 / (1.9 / 3))])
    assert np.isnan(mixed[2])


def test_one_agent_is_not_told_apart_from_anybody():
    log_prob, who, held = np.log(np.full((1, 3), 0.5)), np.zeros(3, int), flags(1, 1, 0)
    assert np.isnan([*evidence.told_apart(log_prob, who, held), *evidence.one_for_all(log_prob, who, held)]).all()


def test_one_impossible_action_does_not_decide():
    log_prob = np.array([[0.0, -np.inf], [-np.inf, -np.inf]])
    found = evidence.told_apart(log_prob, np.array([0, 0]), flags(1, 1))
    assert found[0] == pytest.approx(-evidence.LEAST_LOG_PROB / 2)


# --- Does an agent earn most on its own reward? --------------------------------------------------------------------------------------

WHO, EPISODE = np.array([0, 0, 0, 1, 1, 1]), np.array([0, 0, 1, 0, 1, 1])


def test_returns_are_discounted_within_an_episode():
    reward = np.array([[1.0, 0.0], [2.0, 0.0], [4.0, 1.0], [3.0, 2.0], [0.0, 1.0], [8.0, 0.0]])
    found = evidence.own_against_others(reward, WHO, EPISODE, 0.5)
    np.testing.assert_allclose(found, [[(2 + 4) / 2, (3 + 4) / 2], [(0 + 1) / 2, (2 + 1) / 2]])


def test_outdone_needs_two_standard_errors():
    who, episode = np.repeat([0, 1, 2], 4), np.arange(12)
    own, wide = [0.0, 1.0, 0.0, 1.0], [1.0, 5.0, -1.0, 1.0]  # means .5 and 1.5, errors .29 and 1.26
    reward = np.zeros((12, 3))
    reward[:, 0] = [*own, *np.add(own, 1.0), *wide]
    np.testing.assert_allclose(evidence.outdone(reward, who, episode, 0.9), [0.5, 0.0, 0.0])


def test_nobody_is_outdone_by_rounding_or_without_an_error():
    reward = np.array([[0.1 + 0.2], [0.1 + 0.2], [0.3], [0.3]]) * np.ones((1, 2))
    who = np.array([1, 1, 0, 0])
    np.testing.assert_array_equal(evidence.outdone(reward, who, np.arange(4), 0.9), [0.0, 0.0])
    assert np.isnan(evidence.outdone(reward, who, np.array([0, 0, 1, 1]), 0.9)).all(), "one episode has no standard error"


# --- Do refits agree? --------------------------------------------------------------------------------------------------------------


def test_agreement_is_asked_on_the_steps_of_others():
    who = np.array([0, 0, 0, 1, 1, 1])
    one = np.array([[1.0, 1.0], [2.0, 2.0], [3.0, 3.0], [1.0, 1.0], [2.0, 2.0], [3.0, 3.0]])
    other = one.copy()
    other[3:, 0] *= -1  # agent 0's reward is turned round, but not where it was itself
    np.testing.assert_allclose(evidence.agreement(np.stack([one, other]), who), [-1.0, 1.0])
    np.testing.assert_allclose(evidence.agreement(np.stack([one, other, one]), who), [-1 / 3, 1.0])
    assert np.isnan(evidence.agreement(one[None], who)).all(), "there is nothing to compare"
    np.testing.assert_allclose(evidence.agreement(np.stack([one, other])[:, :, :1], np.zeros(6, int)), [0.0], atol=1e-12)


def test_a_reward_that_never_changes_agrees_with_none():
    rewards = np.stack([np.full((4, 1), 0.1), np.arange(4.0)[:, None]])
    assert evidence.agreement(rewards, np.zeros(4, int)) == 0.0


def test_interval_goes_from_the_smallest_to_the_largest_likeness():
    x, y = np.array([1.0, -1.0, 1.0, -1.0]), np.array([1.0, 1.0, -1.0, -1.0])
    found = evidence.interval(np.stack([np.stack([x, x], 1), np.stack([x, y], 1)]))
    np.testing.assert_allclose([found.low[0, 1], found.mean[0, 1], found.high[0, 1]], [0.0, 0.5, 1.0], atol=1e-12)
    np.testing.assert_allclose(found.low[0, 0], 1.0)


# --- Does planning on the reward lead where the agent went? ------------------------------------------------------------------------


def chain(seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Five states in a row, left and right. Agent 0 wants out on the right; agent 1 wants to stay on the left; agent 2 both, by place."""
    rng = np.random.default_rng(seed)
    state, action = rng.integers(0, 5, 2_000), rng.integers(0, 2, 2_000)
    end, stay = (state == 4) & (action == 1), (state == 0) & (action == 0)
    reward = np.stack([end, 0.3 * stay, 0.5 * end + 0.045 * stay], axis=1).astype(np.float32)
    seen = np.eye(5, dtype=np.float32)
    return seen[state], action, seen[np.clip(state + 2 * action - 1, 0, 4)], (~end).astype(np.float32), reward


def test_replanning_finds_the_best_actions_of_a_chain():
    values = evidence.replanned(*chain(), 0.9, 2, seed=0)(np.eye(5, dtype=np.float32))
    assert values.shape == (5, 3, 2)
    # Agent 2 earns .45 by staying, and .5 by leaving; seen from state 1, .41 against .36, and from state 2, .36 against .41.
    np.testing.assert_array_equal(values.argmax(-1).T, [[1, 1, 1, 1, 1], [0, 0, 0, 0, 0], [0, 0, 1, 1, 1]])
    np.testing.assert_allclose(values[:, 0, 1], 0.9 ** np.arange(4, -1, -1), atol=0.05)


def test_replanning_takes_no_action_that_nobody_takes():
    obs, action, next_obs, discount, reward = chain()
    tempting = np.where(action[:, None] == 1, reward, reward - 1)  # whatever else there is must seem better
    values = evidence.replanned(obs, action, next_obs, discount, tempting, 0.9, 3, seed=0, updates=200)(obs[:10])
    assert np.isneginf(values[:, :, 2]).all() and np.isfinite(values[:, :, :2]).all()


def test_replanning_agrees_in_proportion_to_imitation():
    values = np.zeros((4, 2, 2))
    values[:, 0, 1] = values[:, 1, 0] = 1.0  # agent 0 plans action 1, agent 1 action 0
    who, held = np.array([0, 0, 0, 1]), flags(1, 1, 0, 1)
    found = evidence.replan_agreement(values, np.array([1, 0, 0, 1]), who, np.array([1, 0, 1, 0]), held)
    assert found[0] == pytest.approx(0.5) and np.isnan(found[1]), "imitation is right twice, planning once"


# --- The judgement -----------------------------------------------------------------------------------------------------------------

FINE = {
    "nll": 0.5, "majority": 1.2, "count": 0.6, "clone": 0.5, "told_apart": 0.4, "one_for_all": 0.3, "outdone": 0.0, "agreement": 0.9,
    "coverage": 0.9, "replan": 0.9, "explained": 0.9, "signal": 0.5, "held_out_steps": 200, "episodes": 20, "consistency": 20.0,
    "lapse": 0.1,
}  # fmt: skip
FACTS = {"rank": 2.9, "gamma": 0.95, "median_length": 40.0, "terminated_share": 0.8, "cumulants": "changes, constant"}


def case(agents: int = 3, first: dict[str, float] | None = None, **facts: object) -> verdict.Evidence:
    """Nothing to find, but for what is said of the first agent or of the whole log."""
    e = unmeasured([f"agent{k}" for k in range(agents)], 4)._replace(**{**FACTS, **facts})
    e = e._replace(**{name: np.full(agents, value, float) for name, value in FINE.items()})
    for name, value in (first or {}).items():
        getattr(e, name)[0] = value
    return e


def names(found: Verdict) -> set[str]:
    return {finding.name for finding in found.findings}


def test_nothing_found_is_no_praise():
    found = judge(case())
    assert found.findings == () and found.doubtful == () and found.of("agent1") == ()
    assert "does not show that the rewards are right" in str(found)
    assert all(note in str(found) and f"- {note}" in found.lines() for note in found.notes) and len(found.notes) == 3


@pytest.mark.parametrize(
    ("name", "wrong", "right"),
    [
        ("one-episode", {"episodes": 1, "held_out_steps": 0, "nll": NAN}, {"episodes": 2}),
        ("untested", {"held_out_steps": 0, "nll": NAN}, {"held_out_steps": 20}),
        ("untested", {"nll": NAN}, {"held_out_steps": NAN}),
        ("untested", {"nll": math.inf}, {"episodes": NAN}),
        ("no-better-than-majority", {"nll": 0.5, "majority": 0.5}, {"nll": 0.5, "majority": 0.52}),
        ("no-better-than-majority", {"nll": 1.0, "majority": 1.019, "count": 1, "clone": 1}, {"majority": NAN}),
        ("table-is-better", {"count": 0.44}, {"count": 0.46}),
        ("clone-is-better", {"clone": 0.44}, {"clone": 0.46}),
        ("clone-is-better", {"nll": 1.11, "clone": 1.0, "count": 1.2}, {"nll": 1.09, "clone": 1.0, "count": 1.2}),
        ("same-as-others", {"told_apart": 0.005}, {"told_apart": 0.02}),
        ("outdone", {"outdone": 0.25}, {"outdone": 0.2}),
        ("refits-disagree", {"agreement": 0.4}, {"agreement": 0.5}),
        ("collapsed", {"signal": 0.05}, {"signal": 0.1}),
        ("unexplained", {"explained": -0.2}, {"explained": 0.5}),
        ("replanned-elsewhere", {"replan": 0.3}, {"replan": verdict.REPLANNED}),
        ("thin-coverage", {"coverage": 0.7}, {"coverage": 0.75}),
        ("mostly-lapses", {"lapse": 0.6}, {"lapse": 0.5}),
    ],
)
def test_an_agent_is_warned_of_on_one_side_of_a_threshold_only(name, wrong, right):
    found = judge(case(first=wrong))
    assert names(found) == {name} and found.doubtful == ("agent0",)
    (finding,) = found.of("agent0")
    assert "'agent0'" in finding.sentence and finding.sentence.endswith(".") and finding.advice.endswith(".")
    assert math.isfinite(finding.figure) and math.isfinite(finding.threshold)
    assert finding.sentence in str(found) and finding.advice in "\n".join(found.lines())
    assert judge(case(first=right)).findings == ()


def test_what_nobody_measured_gives_no_finding_but_that_nothing_was_tested():
    assert names(judge(unmeasured(["a", "b"], 4))) == {"untested"}


def test_shuffled_ids_make_everybody_doubtful():
    shuffled = case()
    shuffled.one_for_all[:2] = [0.0, -0.1]
    shuffled.told_apart[:2] = 0.0
    found = judge(shuffled)
    assert names(found) == {"shuffled-ids"} and found.doubtful == found.agents
    (finding,) = found.of("agent2")
    assert finding.agent is None and finding.figure == pytest.approx(2 / 3)
    assert finding.sentence.startswith("The ids look shuffled, or the agents want the same: 2 of 3 agents")


@pytest.mark.parametrize("gains", [[0.0, 0.3, 0.3], [0.0, 0.3, NAN], [0.011, 0.011, 0.011], [NAN, NAN, NAN]])
def test_ids_are_not_shuffled_if_most_agents_are_told_apart(gains):
    assert judge(case()._replace(one_for_all=np.array(gains))).findings == ()


def test_two_percent_of_the_nats_count_as_the_same():
    numbers = {name: np.full(3, value) for name, value in {"nll": 1.0, "count": 1.0, "clone": 1.0, "majority": 1.5}.items()}
    assert names(judge(case()._replace(**numbers, one_for_all=np.full(3, 0.019)))) == {"shuffled-ids"}
    assert not names(judge(case()._replace(**numbers, one_for_all=np.full(3, 0.021))))


def test_one_agent_can_be_compared_with_nobody():
    alone = case(1, {"told_apart": NAN, "one_for_all": NAN, "outdone": NAN}, rank=1.0)
    found = judge(alone)
    assert names(found) == {"one-agent"} and found.doubtful == ()
    assert "one agent" not in str(judge(case(2)))


@pytest.mark.parametrize(
    ("name", "wrong", "right"),
    [
        ("short-horizon", {"gamma": 0.9, "median_length": 41.0}, {"gamma": 0.9, "median_length": 39.0}),
        ("short-horizon", {"gamma": 0.5, "median_length": 10.0}, {"gamma": 1.0, "median_length": 1e6}),
        ("no-ends", {"terminated_share": 0.0}, {"terminated_share": NAN}),
        ("one-direction", {"rank": 1.1}, {"rank": 1.6}),
        ("costs-and-ends", {"cumulants": "changes, end, constant"}, {"cumulants": "changes, ending, constant"}),
        ("costs-and-ends", {"cumulants": "end,constant"}, {"cumulants": "learned"}),
    ],
)
def test_a_log_is_warned_of_on_one_side_of_a_threshold_only(name, wrong, right):
    found = judge(case(**wrong))
    assert names(found) == {name} and found.doubtful == () and found.findings[0].agent is None
    assert found.findings[0].sentence in str(found) and "does not show" in str(found)
    assert judge(case(**right)).findings == ()


def test_without_ends_costs_and_ends_are_not_confused():
    assert names(judge(case(terminated_share=0.0, cumulants="end, constant"))) == {"no-ends"}


def test_gamma_that_is_advised_is_long_enough():
    (finding,) = judge(case(gamma=0.9, median_length=100.0)).findings
    assert "a gamma of 0.96 or more" in finding.advice and (finding.figure, finding.threshold) == (pytest.approx(10), 25.0)
    assert judge(case(gamma=0.9601, median_length=100.0)).findings == ()


def test_evidence_has_an_entry_per_agent():
    with pytest.raises(ValueError, match=r"Evidence of 3 agents.*: clone, lapse\.$"):
        judge(case()._replace(clone=np.zeros(2), lapse=np.zeros((3, 1))))


# --- How it is told ----------------------------------------------------------------------------------------------------------------


def test_fifty_alike_findings_are_one_line():
    many = case(50)
    many.agreement[:] = 0.3
    many.agreement[7] = 0.1
    found = judge(many)
    assert len(found.findings) == 50 and len(found.doubtful) == 50
    for text in (str(found), "\n".join(found.lines())):
        said = [line for line in text.splitlines() if "refits-disagree" in line]
        assert len(said) == 1 and "(50 of 50 agents, 'agent7' most)" in said[0] and "correlate by 0.10" in said[0]
    assert "and 40 more" in str(found) and "... and 30 more agents" in str(found)


def test_a_table_shows_what_was_measured_and_how_many_doubts():
    e = unmeasured([3, 12], 4)._replace(nll=np.array([0.5, 0.25]), held_out_steps=np.array([200, 30]), coverage=np.array([0.5, NAN]))
    assert str(judge(e)).splitlines()[:3] == [
        "agent   nll  coverage  held out steps  doubts",
        "3      0.50      0.50             200       1",
        "12     0.25         -              30       0",
    ]


def test_agents_with_most_doubts_are_shown_first_where_there_are_many():
    many = case(30)
    many.signal[29] = 0.0
    assert str(judge(many)).splitlines()[1].startswith("agent29 ")


def test_markdown_starts_with_the_doubtful():
    lines = judge(case(first={"signal": 0.0})).lines()
    assert lines[0] == "**Doubtful: the rewards of 1 of 3 agents, 'agent0'.**"
    assert lines[2].startswith("- **collapsed**: The reward of agent 'agent0' has collapsed")


def test_an_unknown_agent_is_named():
    with pytest.raises(UserError, match="There is no agent 'nobody'; expected one of 'agent0', 'agent1', 'agent2'"):
        judge(case()).of("nobody")


# --- As JSON -------------------------------------------------------------------------------------------------------------------------


def test_json_round_trip_keeps_everything():
    found = judge(case(first={"nll": NAN, "agreement": 0.1}, terminated_share=0.0))
    text = json.dumps(found.to_json(), allow_nan=False)
    again = Verdict.from_json(json.loads(text))
    assert again == found and str(again) == str(found)
    assert json.loads(text)["figures"]["nll"][0] is None and math.isnan(again.figures["nll"][0])


def test_json_of_integer_ids():
    found = judge(unmeasured([0, 1], 2))
    assert Verdict.from_json(json.loads(json.dumps(found.to_json()))).of(1)[0].agent == 1


def damaged(path: str, value: object) -> Any:
    """A verdict's JSON with another value at one place."""
    whole: list[Any] = [judge(case(first={"agreement": 0.1})).to_json()]
    place: Any = whole
    *way, last = [0, *(int(step) if step.isdigit() else step for step in path.split(".") if step)]
    for step in way:
        place = place[step]
    place[last] = value
    return whole[0]


@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        ("", [], "an object of agents, findings and figures"),
        ("more", 1, "an object of agents, findings and figures"),
        ("agents", [], "a list of different ids, all strings or all integers"),
        ("agents", ["agent0", 1, 2], "a list of different ids, all strings or all integers"),
        ("agents", [True, False], "a list of different ids, all strings or all integers"),
        ("agents", ["agent0", "agent0", "agent1"], "a list of different ids, all strings or all integers"),
        ("findings", {}, "a list"),
        ("findings.0", [], "an object of agent, name, figure, threshold, sentence, advice"),
        ("findings.0.more", 1, "an object of agent, name, figure, threshold, sentence, advice"),
        ("findings.0.agent", "nobody", "one of the agents, or null"),
        ("findings.0.agent", ["agent0"], "one of the agents, or null"),
        ("findings.0.name", "Refits Disagree", "words in kebab-case"),
        ("findings.0.figure", "0.1", "a number or null"),
        ("findings.0.figure", True, "a number or null"),
        ("findings.0.threshold", NAN, "a number or null"),
        ("findings.0.threshold", 10**400, "a number or null"),
        ("findings.0.sentence", "two\nlines", "text on one line"),
        ("findings.0.advice", None, "text on one line"),
        ("figures", [], "an object of lists"),
        ("figures.nll", [0.5, 0.5], "a list of 3 numbers or nulls, one per agent"),
        ("figures.nll", [0.5, 0.5, "0.5"], "a list of 3 numbers or nulls, one per agent"),
    ],
)
def test_damaged_json_is_refused_in_a_sentence(path, value, expected):
    with pytest.raises(UserError, match=rf"^model/manifest: verdict.* but expected {expected}\.$"):
        Verdict.from_json(damaged(path, value), "model/manifest: verdict")


def test_whole_json_is_not_damaged():
    whole = damaged("findings.0.figure", 0.2)
    (finding,) = Verdict.from_json(whole).findings
    assert isinstance(finding, Finding) and finding.figure == 0.2
