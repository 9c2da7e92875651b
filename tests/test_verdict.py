"""The verdict on inferred rewards: what is measured without labels, by hand, and when it warns. It never praises."""

import json
import math
from typing import Any

import numpy as np
import pytest

from psiphi.api import evidence, replanning, verdict
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


def test_a_plan_is_judged_by_what_the_agent_would_rather_not_do():
    values = np.zeros((4, 2, 2))
    values[:, 0, 1] = values[:, 1, 0] = 1.0  # agent 0 plans action 1, agent 1 action 0
    advantage = np.array([[-2.0, 0.0], [-2.0, 0.0], [0.0, -2.0], [0.0, 0.0]])
    who, chosen = np.array([0, 0, 0, 1]), flags(1, 1, 1, 1)
    found = evidence.avoided(values, advantage, who, chosen)
    assert found[0] == pytest.approx(1 / 3) and np.isnan(found[1]), "agent 1 would as soon do either"


def corridor() -> dict[str, np.ndarray]:
    """Three agents in five cells: 0 leaves at the right-hand end, 1 at the left-hand one, both from the middle, and 2 goes anywhere."""
    random = np.random.default_rng(0)
    rows: list[tuple[int, int, int, float, int, int]] = []
    for episode in range(60):
        who, state, end = episode % 3, 2, False
        while not end:
            action = int(random.integers(2)) if who == 2 or random.random() < 0.1 else 1 - who
            following = state + 2 * action - 1
            end = following in (-1, 5)
            rows.append((state, action, int(np.clip(following, 0, 4)), float(not end), who, episode))
            state = following
    names = ("state", "action", "next_state", "discount", "who", "episode")
    return {name: np.array(column) for name, column in zip(names, zip(*rows, strict=True), strict=True)}


def corridor_world(log: dict[str, np.ndarray]) -> replanning.Seen:
    seen = np.eye(5, dtype=np.float32)
    return replanning.seen_world(seen[log["state"]], log["action"], seen[log["next_state"]], log["discount"])


def test_a_plan_in_the_logs_own_world_tells_right_rewards_from_wrong_ones():
    log = corridor()
    world = corridor_world(log)
    right_end = (log["discount"] == 0) & (log["action"] == 1)
    left_end = (log["discount"] == 0) & (log["action"] == 0)
    true = np.stack([right_end, left_end, np.zeros(len(right_end))], axis=1).astype(float)
    would_not = np.stack([log["action"] == 0, log["action"] == 1, np.zeros(len(right_end))], axis=1).astype(float)
    beyond = np.zeros((world.size, 3))
    starts = np.diff(log["episode"], prepend=-1) != 0
    right, wrong = replanning.kept(world, [true, true[:, [1, 0, 2]]], -would_not, beyond, log["who"], starts, 0.9)
    assert world.known == 1.0
    np.testing.assert_allclose(right[:2], 1.0)
    assert (wrong[:2] < verdict.HANDED).all() and np.isnan(right[2]), "agent 2 minds nothing that it does"


@pytest.mark.parametrize("kind", [np.float32, np.float64, np.uint8, np.int64, bool])
@pytest.mark.parametrize("width", [1, 3, 2_000])
def test_rows_that_are_the_same_have_the_same_number(kind, width):
    rows = np.random.default_rng(0).integers(0, 2, (50, 1)).repeat(width, axis=1).astype(kind)
    rows[1] = -rows[0] if np.issubdtype(kind, np.floating) else rows[0]
    found = replanning.numbered(rows)
    assert (found[:, None] == found).tolist() == (rows[:, None] == rows).all(axis=2).tolist()


def test_a_log_in_which_nothing_repeats_is_no_world_to_plan_in():
    log = corridor()
    rows = np.arange(2.0 * len(log["state"]), dtype=np.float32)[:, None]
    world = replanning.seen_world(rows[::2], log["action"], rows[1::2], log["discount"])
    assert world.known == 0 and corridor_world(log).known > 0.9


def test_ids_that_are_right_tell_what_is_done_and_shuffled_ones_do_not():
    log = corridor()
    random = np.random.default_rng(1)
    told = replanning.ids_tell(log["state"], log["action"], log["who"], log["episode"], 3)
    shuffled = [
        replanning.ids_tell(log["state"], log["action"], random.permutation(np.arange(60) % 3)[log["episode"]], log["episode"], 3)
        for _ in range(20)
    ]
    assert told > 2 * verdict.IDS and max(shuffled) < verdict.IDS
    assert np.isnan(replanning.ids_tell(np.arange(len(log["state"])), log["action"], log["who"], log["episode"], 3)), "nothing repeats"
    assert np.isnan(replanning.ids_tell(log["state"], log["action"], 0 * log["who"], log["episode"], 1))


def test_habits_tell_ids_apart_where_no_state_is_seen_twice():
    log, random = corridor(), np.random.default_rng(2)
    noise = random.normal(size=(len(log["action"]), 2))
    told = replanning.habits_tell(noise, log["action"], log["who"], log["episode"], 3)
    draws = [random.permutation(np.arange(60) % 3)[log["episode"]] for _ in range(200)]
    shuffled = np.array([replanning.habits_tell(noise, log["action"], who, log["episode"], 3) for who in draws])
    assert told > 1.5 * verdict.IDS and shuffled.max() < verdict.IDS
    assert abs(shuffled.mean()) < 0.3 and 0.8 < shuffled.std() < 1.2, "a standard deviation is one"
    changed = noise + log["who"][:, None]
    assert replanning.habits_tell(changed, 0 * log["action"], log["who"], log["episode"], 3) > 1.5 * verdict.IDS, "what changes counts, too"
    assert replanning.habits_tell(0 * noise, 0 * log["action"], log["who"], log["episode"], 3) == 0, "nothing differs"
    alone = np.arange(len(log["action"])) // 20
    assert np.isnan(replanning.habits_tell(noise, log["action"], alone, alone, int(alone.max()) + 1)), "one episode of each"


# --- The judgement -----------------------------------------------------------------------------------------------------------------

FINE = {
    "nll": 0.5, "majority": 1.2, "count": 0.6, "clone": 0.5, "told_apart": 0.4, "one_for_all": 0.3, "outdone": 0.0, "agreement": 0.9,
    "coverage": 0.9, "familiar": 0.9, "avoided": 0.9, "handed": 0.95, "explained": 0.9, "signal": 0.5, "held_out_steps": 200,
    "episodes": 20, "consistency": 20.0, "lapse": 0.1,
}  # fmt: skip
FACTS = {"rank": 2.9, "gamma": 0.95, "median_length": 40.0, "terminated_share": 0.8, "cumulants": "changes, constant", "ids": 9.0}


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
        ("few-episodes", {"episodes": 9, "held_out_steps": 99}, {"episodes": 9, "held_out_steps": 100}),
        ("few-episodes", {"episodes": 2, "held_out_steps": 30}, {"episodes": 10, "held_out_steps": 30}),
        ("untested", {"held_out_steps": 0, "nll": NAN}, {"held_out_steps": 20}),
        ("untested", {"nll": NAN}, {"held_out_steps": NAN}),
        ("untested", {"nll": math.inf}, {"episodes": NAN}),
        ("no-better-than-majority", {"nll": 0.8, "majority": 0.8, "count": 0.8, "clone": 0.8}, {"nll": 0.5, "majority": 0.5}),
        ("no-better-than-majority", {"nll": 1.0, "majority": 1.019, "count": 1, "clone": 1}, {"majority": NAN}),
        ("table-is-better", {"count": 0.44}, {"count": 0.46}),
        ("clone-is-better", {"clone": 0.44}, {"clone": 0.46}),
        ("clone-is-better", {"nll": 1.11, "clone": 1.0, "count": 1.2}, {"nll": 1.09, "clone": 1.0, "count": 1.2}),
        ("same-as-others", {"told_apart": 0.005}, {"told_apart": 0.02}),
        ("outdone", {"outdone": 0.25}, {"outdone": 0.2}),
        ("refits-disagree", {"agreement": 0.4}, {"agreement": 0.5}),
        ("collapsed", {"signal": 0.05}, {"signal": 0.1}),
        ("unexplained", {"explained": -0.2}, {"explained": 0.5}),
        ("turned-round", {"avoided": 0.1}, {"avoided": verdict.AVOIDED}),
        ("unexplained-behaviour", {"handed": 0.5}, {"handed": verdict.HANDED}),
        ("hardly-seen", {"familiar": 0.3, "nll": 0.9, "count": 0.9, "clone": 0.9}, {"familiar": 0.3}),
        ("thin-coverage", {"coverage": 0.7}, {"coverage": 0.75}),
        ("mostly-lapses", {"lapse": 0.6}, {"lapse": 0.5}),
    ],
)
def test_an_agent_is_warned_of_on_one_side_of_a_threshold_only(name, wrong, right):
    found = judge(case(first=wrong))
    assert names(found) == {name} and found.doubtful == (("agent0",) if name in verdict.WARNINGS else ())
    (finding,) = found.of("agent0")
    assert "'agent0'" in finding.sentence and finding.sentence.endswith(".") and finding.advice.endswith(".")
    assert math.isfinite(finding.figure) and math.isfinite(finding.threshold)
    assert finding.sentence in str(found) and finding.advice in "\n".join(found.lines())
    assert judge(case(first=right)).findings == ()


def test_what_nobody_measured_gives_no_finding_but_that_nothing_was_tested():
    assert names(judge(unmeasured(["a", "b"], 4))) == {"untested"}


def test_shuffled_ids_make_everybody_doubtful():
    shuffled = case(ids=1.4)
    shuffled.told_apart[:2] = 0.0
    found = judge(shuffled)
    assert names(found) == {"shuffled-ids"} and found.doubtful == found.agents
    (finding,) = found.of("agent2")
    assert finding.agent is None and finding.figure == pytest.approx(1.4) and finding.grave and finding.warns
    assert finding.sentence.startswith("The ids look shuffled, or the agents want the same: ")
    shuffled.episodes[:] = 5
    assert "the same, or there are too few episodes to tell: " in judge(shuffled).of("agent2")[0].sentence


@pytest.mark.parametrize("ids", [verdict.IDS, 20.0, NAN])
def test_ids_that_tell_something_are_not_shuffled(ids):
    assert judge(case(ids=ids)).findings == ()


def test_notes_make_nobody_doubtful():
    found = judge(case(first={"coverage": 0.1, "agreement": 0.1}))
    assert names(found) == {"thin-coverage", "refits-disagree"} and found.doubtful == ()
    assert "note: thin-coverage" in str(found) and "warning" not in str(found).split("Nothing was found")[1]


def test_a_verdict_on_newcomers_joins_the_one_that_there_is():
    old, new = judge(case(first={"outdone": 0.5})), judge(case(agents=1, first={"signal": 0.0})._replace(agents=("new",)))
    both = old.joined(new)
    assert both.agents == (*old.agents, "new") and both.doubtful == ("agent0", "new")
    assert all(len(row) == 4 for row in both.figures.values()) and "one-agent" not in names(both)


def test_two_percent_of_the_nats_count_as_the_same():
    numbers = {name: np.full(3, value) for name, value in {"nll": 1.0, "count": 1.0, "clone": 1.0, "majority": 1.5}.items()}
    assert names(judge(case()._replace(**numbers, told_apart=np.full(3, 0.019)))) == {"same-as-others"}
    assert not names(judge(case()._replace(**numbers, told_apart=np.full(3, 0.021))))


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
    many.signal[:] = 0.05
    many.signal[7] = 0.01
    found = judge(many)
    assert len(found.findings) == 50 and len(found.doubtful) == 50
    for text in (str(found), "\n".join(found.lines())):
        said = [line for line in text.splitlines() if "collapsed:" in line.replace("*", "")]
        assert len(said) == 1 and "(50 of 50 agents, 'agent7' most)" in said[0] and "its size is 0.01" in said[0]
    assert "and 40 more" in str(found) and "... and 30 more agents" in str(found)


def test_a_table_shows_what_was_measured_and_how_many_warnings():
    e = unmeasured([3, 12], 4)._replace(nll=np.array([0.5, 0.25]), held_out_steps=np.array([200, 30]), coverage=np.array([0.5, NAN]))
    assert str(judge(e)).splitlines()[:3] == [
        "agent   nll  coverage  held out steps  warnings",
        "3      0.50      0.50             200         0",
        "12     0.25         -              30         0",
    ]


def test_agents_with_most_warnings_are_shown_first_where_there_are_many():
    many = case(30)
    many.signal[29] = 0.0
    assert str(judge(many)).splitlines()[1].startswith("agent29 ")


def test_markdown_starts_with_the_doubtful():
    lines = judge(case(first={"signal": 0.0})).lines()
    assert lines[0] == "**Doubtful: the rewards of 1 of 3 agents, 'agent0'.**"
    assert lines[2].startswith("- **warning: collapsed**: The reward of agent 'agent0' has collapsed")


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
    with pytest.raises(UserError, match=rf"^model/manifest: verdict.*, expected {expected}\.$"):
        Verdict.from_json(damaged(path, value), "model/manifest: verdict")


def test_whole_json_is_not_damaged():
    whole = damaged("findings.0.figure", 0.2)
    (finding,) = Verdict.from_json(whole).findings
    assert isinstance(finding, Finding) and finding.figure == 0.2
