"""What is held out to judge by: whole episodes, or the end of a long one where an agent has few."""

import numpy as np

from psiphi.api.judging import FEWEST_STEPS, shown_and_held
from psiphi.demos import Demonstrations


def tracks(lengths: dict[str, list[int]], terminated: bool = False) -> Demonstrations:
    obs, action, agents = [], [], []
    for agent, episodes in lengths.items():
        for n in episodes:
            obs.append(np.arange(n + 1, dtype=np.float32)[:, None])
            action.append(np.arange(n) % 2)
            agents.append(agent)
    return Demonstrations.from_lists(obs, action, agents, terminated=[terminated] * len(agents), num_actions=2)


def test_the_end_of_an_only_track_is_held_out_and_the_rest_leads_there():
    demos = tracks({"ann": [100], "bob": [60]}, terminated=True)
    shown, held = shown_and_held(demos, 0.1, seed=0)
    assert held is not None and shown.lengths.tolist() == [90, 54] and held.lengths.tolist() == [10, 6]
    first, last = shown.trajectory(0), held.trajectory(0)
    assert first.final_obs is not None and first.final_obs[0] == 90 and (first.terminated, first.truncated) == (False, True)
    assert last.obs[0, 0] == 90 and last.terminated and last.agent == "ann" and last.final_obs is not None and last.final_obs[0] == 100
    assert len(shown) + len(held) == len(demos) and shown.agents == held.agents == demos.agents


def test_a_short_track_is_not_cut_and_who_has_many_loses_whole_ones():
    short = tracks({"ann": [FEWEST_STEPS - 1]})
    shown, held = shown_and_held(short, 0.1, seed=0)
    assert held is None and shown is short
    both = tracks({"ann": [100], "bob": [20] * 10})
    shown, held = shown_and_held(both, 0.1, seed=0)
    assert held is not None and sorted(held.lengths.tolist()) == [10, 20] and shown.num_episodes == 10
    expected = both.split(0.1, 0)[1]
    assert held.episodes.id[held.episodes.agent == 1].tolist() == expected.episodes.id[expected.episodes.agent == 1].tolist()


def test_episodes_of_a_table_may_have_names(tmp_path):
    lines = ["agent,episode,t,obs_x,action"]
    for agent, episodes, steps in (("ann", 6, 10), ("bob", 1, 60)):
        lines += [f"{agent},{agent} on day {e},{t},{t % 7},{t % 2}" for e in range(episodes) for t in range(steps)]
    (tmp_path / "log.csv").write_text("\n".join(lines))
    demos = Demonstrations.read(tmp_path / "log.csv")
    shown, held = shown_and_held(demos, 0.1, 0)
    assert held is not None and len(shown) + len(held) == len(demos)
    assert "bob on day 0" in shown.episodes.id.tolist() and "bob on day 0 (end)" in held.episodes.id.tolist()
