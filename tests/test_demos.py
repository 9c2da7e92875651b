"""Demonstrations in memory: what they hold, what agents get of them, parts and unions, what is worth a warning."""

import dataclasses
from typing import Any

import gymnasium
import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from psiphi.demos import Demonstrations, DemonstrationsError
from psiphi.demos.record import record, record_parallel, sticky_policy
from psiphi.demos.validate import Thresholds, validate
from psiphi.envs import coingrid, coingrid_exact
from psiphi.errors import UserError
from psiphi.types import NO_ACTION


def make(lengths=(3, 2, 2), agents=("a", "b", "a"), **options) -> Demonstrations:
    """Observations are numbered through: episode i begins with 10 i."""
    seen = [10 * i + np.arange(n + 1, dtype=np.float32)[:, None] for i, n in enumerate(lengths)]
    acted = [np.arange(n) % 3 for n in lengths]
    return Demonstrations.from_lists(seen, acted, agents, **{"terminated": [True, False, False], **options})


def trajectories(demos: Demonstrations) -> set:
    return {(x.agent, x.episode, x.obs.tobytes(), x.action.tobytes()) for x in demos}


# --- What there is -------------------------------------------------------------------------------------------------------


def test_flat_columns_say_of_every_step_whose_it_is():
    demos = make()
    assert demos.agents == ("a", "b") and len(demos) == 7 and demos.num_episodes == 3 and demos.num_actions == 3
    assert demos.agent.tolist() == ["a"] * 3 + ["b"] * 2 + ["a"] * 2
    assert demos.episode.tolist() == [0, 0, 0, 0, 0, 1, 1]  # each agent's are numbered from 0
    assert demos.t.tolist() == [0, 1, 2, 0, 1, 0, 1]
    assert demos.terminated.tolist() == [False, False, True, False, False, False, False]
    assert demos.obs[:, 0].tolist() == [0, 1, 2, 10, 11, 20, 21]
    assert demos.spec.obs_shape == (1,) and demos.spec.num_actions == 3
    assert repr(demos) == "Demonstrations(2 agents, 3 episodes, 7 steps, obs float32[1], 3 actions)"


@pytest.mark.parametrize("ids", [("x", "y", "x"), (7, -2, 7)])
def test_ids_are_kept_as_given(ids):
    assert [x.agent for x in make(agents=ids)] == list(ids)


def test_nothing_can_be_changed():
    demos = make()
    for array in (demos.obs, demos.action, *demos.episodes):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0
    with pytest.raises(dataclasses.FrozenInstanceError):
        demos.num_actions = 5  # pyright: ignore[reportAttributeAccessIssue]


def test_the_caller_keeps_writable_arrays():
    seen = np.zeros((3, 1), np.float32)
    demos = Demonstrations.from_lists([seen], [[0, 1]], ["a"])
    seen[:] = 5
    assert demos.obs.max() == 0


# --- What agents learn from ----------------------------------------------------------------------------------------------


def test_a_truncated_episode_bootstraps_and_a_terminated_one_does_not():
    steps, count, *_ = make().to_demos()
    assert count.tolist() == [5, 2]
    assert steps.discount.tolist() == [[1, 1, 0, 1, 1], [1, 1, 0, 0, 0]]
    assert steps.next_action.tolist() == [[1, 2, 0, 1, NO_ACTION], [1, NO_ACTION, NO_ACTION, NO_ACTION, NO_ACTION]]
    assert steps.next_obs[0, :, 0].tolist() == [1, 2, 3, 21, 22] and steps.next_obs[1, :2, 0].tolist() == [11, 12]


def test_without_a_last_observation_only_the_cut_off_step_is_lost():
    whole = make()
    seen, acted = [x.obs for x in whole], [x.action for x in whole]
    demos = Demonstrations.from_lists(seen, acted, ["a", "b", "a"], terminated=[True, False, False])
    steps, count, *_ = demos.to_demos()
    assert count.tolist() == [4, 1]
    assert steps.obs[0, :, 0].tolist() == [0, 1, 2, 20] and steps.discount[0].tolist() == [1, 1, 0, 1]
    assert steps.next_action[0].tolist() == [1, 2, NO_ACTION, 1]  # an end that nobody saw
    assert np.isfinite(steps.next_obs).all()


def test_an_agent_of_whom_nothing_can_be_learned_is_named():
    demos = Demonstrations.from_lists([np.zeros((1, 2)), np.ones((3, 2))], [[0], [1, 2]], ["idle", "busy"])
    with pytest.raises(UserError, match="no step to learn from by agent 'idle'"):
        demos.to_demos()


def test_exact_demonstrators_come_back_unchanged():
    """The semantics of discount, next_obs and next_action are those of the recordings that every experiment uses."""
    config = coingrid.CoinGridConfig(size=5, coins=(1, 1, 0), max_steps=8)
    recording = coingrid_exact.record(config, [(1.0, 0.0, 0.0), (0.0, 1.0, 0.0)], 6, 0.3, 0.9, jax.random.key(1))
    demos = Demonstrations.from_demos(recording.demos, recording.episode, ["R", "G"], coingrid.NUM_ACTIONS)
    assert not demos.episodes.terminated.all() and demos.episodes.terminated.any()
    back = demos.to_demos()
    jax.tree.map(np.testing.assert_array_equal, back, recording.demos)
    assert [x.dtype for x in jax.tree.leaves(back)] == [x.dtype for x in jax.tree.leaves(recording.demos)]


# --- Parts and unions ----------------------------------------------------------------------------------------------------


@given(
    agents=st.lists(st.integers(0, 3), min_size=1, max_size=30),
    held_out=st.floats(0.05, 0.95),
    seed=st.integers(0, 2**32),
)
def test_split_shares_no_episode_and_loses_none(agents, held_out, seed):
    lengths = [1 + i % 3 for i in range(len(agents))]
    demos = make(lengths, agents, terminated=None)
    train, test = demos.split(held_out, seed)
    assert trajectories(train) | trajectories(test) == trajectories(demos)
    assert not trajectories(train) & trajectories(test)
    assert train.agents == test.agents == demos.agents
    for k in range(len(demos.agents)):
        whole, rest, held = (int((part.episodes.agent == k).sum()) for part in (demos, train, test))
        assert rest >= 1 and (held >= 1 or whole == 1)


def test_split_depends_on_the_seed_alone():
    demos = make([2] * 40, ["a", "b"] * 20, terminated=None)
    assert trajectories(demos.split(0.5, 3)[1]) == trajectories(demos.split(0.5, 3)[1]) != trajectories(demos.split(0.5, 4)[1])
    with pytest.raises(UserError, match="held_out is 1.0"):
        demos.split(1.0)


def test_filter_by_agent_length_and_predicate():
    demos = make()
    assert demos.filter(agents=["b"]).agents == ("b",) and len(demos.filter(agents=["b"])) == 2
    assert demos.filter(min_steps=3).lengths.tolist() == [3]
    assert demos.filter(max_steps=2).lengths.tolist() == [2, 2]
    assert [x.episode for x in demos.filter(where=lambda x: x.terminated)] == [0]
    assert [x.agent for x in demos.filter(agents=["b", "a"])] == ["a", "b", "a"] and demos.filter(agents=["b", "a"]).agents == ("b", "a")
    with pytest.raises(UserError, match="no agent 'c'; the agents are 'a', 'b'"):
        demos.filter(agents=["c"])


def test_merge_keeps_ids_and_puts_the_same_agent_together():
    one, other = make(), make(agents=("c", "a", "c"), episodes=["x", "y", "z"], num_actions=9)
    both = one.merge(other)
    assert both.agents == ("a", "b", "c") and both.num_actions == 9 and len(both) == 14
    assert [x.agent for x in both] == ["a", "b", "a", "c", "a", "c"]
    np.testing.assert_array_equal(both.obs, np.concatenate([one.obs, other.obs]))
    assert both.episodes.terminated.tolist() == [True, False, False] * 2
    assert one.filter(agents=["a"]).merge(one.filter(agents=["b"])).episodes.id.tolist() == [0, 1, 0]  # no clash: as they were
    assert [x.episode for x in one.merge(one)] == [0, 0, 1, 2, 1, 3]  # a clash: numbered anew, agent by agent


def test_merge_refuses_what_does_not_fit():
    other = Demonstrations.from_lists([np.zeros((2, 5))], [[0]], ["a"])
    with pytest.raises(UserError, match=r"float64\[5\] cannot be merged with ones of float32\[1\]"):
        make().merge(other)
    with pytest.raises(UserError, match="all strings or all integers"):
        make().merge(make(agents=(1, 2, 1)))


# --- At the door ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("observations", "actions", "options", "place", "said"),
    [
        ([np.zeros((3, 2)), np.zeros((3, 4))], [[0, 1], [0, 1]], {}, ("b", 0, 0), "of shape (4,), expected the shape of the first"),
        ([np.zeros((3, 2)), [[1, 2], [3]]], [[0, 1], [0, 1]], {}, ("b", 0, 0), "not an array of numbers"),
        ([np.zeros((3, 2)), np.zeros((5, 2))], [[0, 1], [0, 1]], {}, ("b", 0, 0), "5 observations and 2 actions"),
        ([np.zeros((3, 2)), np.zeros((1, 2))], [[0, 1], []], {}, ("b", 0, 0), "1 observations and 0 actions"),
        ([np.zeros((3, 2)), np.zeros((3, 2))], [[0, 1], [0, 1.5]], {}, ("b", 0, 1), "the action is 1.5, expected an integer"),
        ([np.zeros((3, 2)), np.zeros((3, 2))], [[0, 1], [-1, 0]], {}, ("b", 0, 0), "the action is -1, expected 0 to 65535"),
        ([np.zeros((3, 2)), np.zeros((3, 2))], [[0, 3], [0, 1]], {"num_actions": 3}, ("a", 0, 1), "is 3, expected 0 to 2"),
        ([np.zeros((3, 2)), np.zeros((3, 2))], [[0, 1], [[0], [1]]], {}, ("b", 0, 0), "the actions are an array of shape (2, 1)"),
        ([np.zeros((3, 2)), np.full((3, 2), np.nan)], [[0, 1], [0, 1]], {}, ("b", 0, 0), "'0' is nan, expected a finite number"),
    ],
)
def test_lists_that_cannot_be_used(observations, actions, options, place, said):
    with pytest.raises(DemonstrationsError) as caught:
        Demonstrations.from_lists(observations, actions, ["a", "b"], **options)
    problem = caught.value.problems[0]
    assert (problem.agent, problem.episode, problem.step) == place and said in problem.text


def test_an_episode_given_twice_is_noticed():
    with pytest.raises(DemonstrationsError, match="agent 'a', episode 1, step 0: the time occurs twice"):
        make(agents=("a", "a", "a"), episodes=[1, 2, 1])


@pytest.mark.parametrize(
    ("agents", "said"),
    [
        (["a"], "2 observations, 2 actions, 1 agents"),
        (["a", 1], "kinds int, str"),
        ([1.5, 2.5], "id is a float, expected a string or an integer"),
        ([True, False], "kinds bool"),
    ],
)
def test_lists_with_wrong_ids(agents, said):
    with pytest.raises(UserError, match=said):
        Demonstrations.from_lists([np.zeros((3, 2))] * 2, [[0, 1]] * 2, agents)


def test_a_missing_agent_is_named_by_its_episode():
    with pytest.raises(DemonstrationsError, match="episode 8, step 0: the agent is missing in row 3"):
        Demonstrations.from_lists([np.zeros((3, 2))] * 2, [[0, 1]] * 2, ["a", None], episodes=[7, 8])


# --- Worth a warning -----------------------------------------------------------------------------------------------------


def warned(demos: Demonstrations, **limits) -> list[tuple]:
    found = validate(demos, "log", Thresholds(**{"few_steps": 1, **limits}))
    assert all(problem.severity == "warning" and problem.file == "log" for problem in found)
    return [(problem.kind, problem.agent, problem.episode, problem.step) for problem in found]


def sound(episodes: int = 4) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    seen = [rng.normal(size=(31, 2)) for _ in range(episodes)]
    return {
        "observations": seen,
        "actions": [rng.integers(0, 3, 30) for _ in range(episodes)],
        "agents": ["a", "b"] * (episodes // 2),
        "terminated": [True] * episodes,
    }


def test_nothing_is_said_of_sound_demonstrations():
    assert warned(Demonstrations.from_lists(**sound())) == []


def test_constant_columns_are_named():
    data = sound()
    for seen in data["observations"]:
        seen[:, 1] = 4
    demos = Demonstrations.from_lists(**data, names=["speed", "limit"])
    assert warned(demos) == [("constant column", None, None, None)]
    assert "'limit' is 4.0 in every step" in demos.validate()[0].text


@pytest.mark.parametrize(("first", "tick", "dtype"), [(0, 1, "float64"), (17, 0.1, "float32"), (1.7e9, 100, "float32"), (3, 2, "int16")])
def test_clocks_are_named(first, tick, dtype):
    data = sound()
    for i, seen in enumerate(data["observations"]):
        seen[:, 1] = first + 1000 * i + tick * np.arange(len(seen))
    data["observations"] = [(100 * seen if dtype == "int16" else seen).astype(dtype) for seen in data["observations"]]
    demos = Demonstrations.from_lists(**data, names=["speed", "time"])
    assert warned(demos) == [("clock", None, None, None)]
    assert "'time' grows by" in demos.validate()[0].text
    data["observations"][1][7:, 1] += 3 * (1000 if first > 1e6 else 1)  # a leap: it is none
    assert warned(Demonstrations.from_lists(**data)) == []


def test_one_step_episodes_and_agents_with_few_steps():
    data = sound()
    data["observations"][2], data["actions"][2] = np.ones((2, 2)), [1]
    demos = Demonstrations.from_lists(**data)
    assert warned(demos) == [("one-step episode", "a", 1, 0)]
    assert warned(demos, few_steps=40) == [("one-step episode", "a", 1, 0), ("agent with few steps", "a", None, None)]


def test_a_copied_episode_is_named_with_its_original():
    data = sound()
    data["observations"][3], data["actions"][3] = data["observations"][0], data["actions"][0]
    demos = Demonstrations.from_lists(**data)
    assert warned(demos) == [("copied episode", "b", 1, 0)]
    assert "a copy of agent 'a', episode 0" in next(problem for problem in demos.validate() if problem.kind == "copied episode").text


def test_actions_nobody_takes_and_episodes_nobody_ends():
    data = sound()
    del data["terminated"]
    assert warned(Demonstrations.from_lists(**data, num_actions=5)) == [
        ("action never taken", None, None, None),
        ("no episode ends", None, None, None),
    ]
    data["observations"] = [seen[:-1] for seen in data["observations"]]
    assert ("unknown last observation", None, None, None) in warned(Demonstrations.from_lists(**data))


def test_standing_still_after_the_goal_is_an_aimless_tail():
    data: dict[str, Any] = sound() | {"terminated": [True, True, True, False]}
    data["observations"][3][12:] = data["observations"][3][11]
    assert warned(Demonstrations.from_lists(**data)) == [("aimless tail", "b", 1, 12)]
    assert warned(Demonstrations.from_lists(**{**data, "terminated": [True] * 4})) == []  # it ended when its task was over


def test_wandering_after_the_goal_is_seen_where_leaving_is_not():
    """The recordings of CoinGrid with `wander` are such tails, by construction."""
    config = coingrid.CoinGridConfig(max_steps=60, coins=(1, 1, 0), ends_when_empty=False)
    shares = {}
    for wander in (False, True):
        recording = coingrid_exact.record(config, [(1.0, 0.0, 0.0)], 40, 0.02, 0.9, jax.random.key(0), wander=wander)
        demos = Demonstrations.from_demos(recording.demos, recording.episode, ["R"], coingrid.NUM_ACTIONS)
        shares[wander] = sum(kind == "aimless tail" for kind, *_ in warned(demos)) / demos.num_episodes
    assert shares[False] == 0 and shares[True] > 0.5


def test_summary_counts():
    demos = make([3, 2, 3], ["a", "b", "a"], terminated=None)
    found = demos.merge(demos.filter(agents=["b"])).summary()
    assert (found["agents"], found["episodes"], found["steps"], found["copied_episodes"]) == (2, 4, 10, 1)
    assert found["length"] == {"min": 2, "median": 2.5, "max": 3} and found["distinct_observations"] == 8
    assert [row["actions"] for row in found["by_agent"]] == [[2, 2, 2], [2, 2, 0]]
    assert found["columns"] == [{"name": "0", "min": 0.0, "max": 22.0, "mean": pytest.approx(10.8)}]


def test_coverage_says_how_much_others_saw_too():
    seen = [np.array([[0], [1], [2], [3]]), np.array([[1], [2], [9], [9]])]
    found = Demonstrations.from_lists(seen, [[0, 0, 0], [0, 0, 0]], ["a", "b"]).summary()
    assert [row["shared_with_others"] for row in found["by_agent"]] == [pytest.approx(2 / 3)] * 2
    assert [row["distinct_observations"] for row in found["by_agent"]] == [3, 3]


# --- Recording -----------------------------------------------------------------------------------------------------------


def test_recording_gives_what_the_environment_gave():
    env = gymnasium.make("CartPole-v1", max_episode_steps=20)
    demos = record(env, lambda obs: int(obs[2] > 0), 5, agent="balance", seed=3)
    assert demos.agents == ("balance",) and demos.num_episodes == 5 and demos.num_actions == 2
    obs, _ = env.reset(seed=3)
    for step in range(demos.lengths[0]):
        np.testing.assert_array_equal(demos.obs[step], obs)
        obs, _, terminated, truncated, _ = env.step(int(demos.action[step]))
    np.testing.assert_array_equal(demos.episodes.final_obs[0], obs)
    assert (demos.episodes.terminated[0], demos.episodes.truncated[0]) == (terminated, truncated)  # pyright: ignore[reportPossiblyUnboundVariable]
    assert demos.obs[demos.episodes.start[1]].tolist() != demos.obs[0].tolist()  # another episode, not the same again


def test_a_discrete_observation_becomes_one_hot_and_actions_count_from_zero():
    class Corridor(gymnasium.Env):
        observation_space, action_space = gymnasium.spaces.Discrete(4, start=1), gymnasium.spaces.Discrete(2, start=5)

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            self.place = 1
            return self.place, {}

        def step(self, action):
            assert action in (5, 6)
            self.place += action - 5
            return self.place, 1.0, self.place == 4, False, {}

    demos = record(Corridor(), lambda obs: 1, 1)
    assert demos.obs.tolist() == [[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0]] and demos.action.tolist() == [1, 1, 1]
    assert demos.episodes.final_obs.tolist() == [[0, 0, 0, 1]]


@pytest.mark.parametrize(
    ("spaces", "said"),
    [
        ((gymnasium.spaces.Box(0, 1, (2,)), gymnasium.spaces.Box(0, 1, (1,))), "actions are Box.* expected discrete"),
        ((gymnasium.spaces.Dict(a=gymnasium.spaces.Box(0, 1, (2,))), gymnasium.spaces.Discrete(2)), "parts 'a'; one has to be chosen"),
        ((gymnasium.spaces.Text(5), gymnasium.spaces.Discrete(2)), "expected arrays of numbers"),
    ],
)
def test_environments_that_cannot_be_recorded(spaces, said):
    env = gymnasium.Env()
    env.observation_space, env.action_space = spaces
    with pytest.raises(UserError, match=said):
        record(env, lambda obs: 0, 1)


def test_a_sticky_policy_mostly_repeats_itself():
    act = sticky_policy(4, 0.9, 0)
    actions = np.array([act(np.zeros(1)) for _ in range(500)])
    assert 0.85 < np.mean(actions[1:] == actions[:-1]) < 0.99 and len(set(actions)) == 4


class Relay:
    """A PettingZoo parallel environment by its interface: the runner of this turn leaves at its turn's end, a newcomer enters at 2."""

    possible_agents = ["one", "two", "late"]

    def observation_space(self, agent):
        return gymnasium.spaces.Box(-1, 99, (2,))

    def action_space(self, agent):
        return gymnasium.spaces.Discrete(3, start=1)

    def reset(self, seed=None, options=None):
        self.t, self.agents = 0, ["one", "two"]
        return self._seen(self.agents), {name: {} for name in self.agents}

    def _seen(self, agents):
        return {name: np.array([self.t, self.possible_agents.index(name)], np.float32) for name in agents}

    def step(self, actions):
        assert set(actions) == set(self.agents) and all(action in (1, 2, 3) for action in actions.values())
        acting = self.agents
        self.t += 1
        ended = {name: (name, self.t) in (("one", 2), ("late", 5)) for name in acting}
        stopped = {name: name == "two" and self.t == 4 for name in acting}
        self.agents = [name for name in acting if not ended[name] and not stopped[name]] + (["late"] if self.t == 2 else [])
        seen = self._seen({*acting, *self.agents})
        return seen, {name: 1.0 for name in acting}, ended, stopped, {name: {} for name in acting}


def test_agents_of_a_parallel_environment_come_and_go():
    demos = record_parallel(Relay(), lambda name: lambda obs: ["one", "two", "late"].index(name), 2)
    by_name: dict[Any, Any] = {x.agent: x for x in demos if x.episode == 1}
    assert set(by_name) == {"one", "two", "late"} and demos.num_episodes == 6 and demos.num_actions == 3
    assert by_name["one"].obs[:, 0].tolist() == [0, 1] and by_name["one"].terminated
    assert by_name["two"].obs[:, 0].tolist() == [0, 1, 2, 3] and by_name["two"].truncated and not by_name["two"].terminated
    assert by_name["late"].obs[:, 0].tolist() == [2, 3, 4] and by_name["late"].final_obs[0] == 5
    assert all((x.action == ["one", "two", "late"].index(str(x.agent))).all() for x in demos)


def test_an_agent_without_a_policy_is_named():
    with pytest.raises(UserError, match="no policy for agent 'two'"):
        record_parallel(Relay(), {"one": lambda obs: 0}, 1)


def test_a_pettingzoo_environment_is_recorded():
    """Rock, paper, scissors as PettingZoo ships it: each sees what the other did, as one of four."""
    rps = pytest.importorskip("pettingzoo.classic.rps_v2")
    demos = record_parallel(rps.parallel_env(max_cycles=6), {"player_0": lambda obs: 2, "player_1": lambda obs: 0}, 2)
    assert demos.agents == ("player_0", "player_1") and demos.lengths.tolist() == [6] * 4 and demos.num_actions == 3
    assert demos.episodes.truncated.all() and not demos.episodes.terminated.any()
    zero = demos.filter(agents=["player_0"])
    assert zero.obs[:3].tolist() == [[0, 0, 0, 1], [1, 0, 0, 0], [1, 0, 0, 0]] and (zero.action == 2).all()
