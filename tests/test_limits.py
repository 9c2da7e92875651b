"""A small file cannot ask for much: limits are declared once and checked before memory is taken."""

import cProfile
from pathlib import Path

import jax
import numpy as np
import pytest

import probes
from psiphi import limits, training
from psiphi.agents.bc import BCConfig
from psiphi.demos import Demonstrations
from psiphi.errors import UserError
from psiphi.loops import scan


def test_the_free_memory_is_known_and_counts(monkeypatch):
    free = limits.free_memory()
    assert free is None or free > 2**20
    monkeypatch.setattr(limits, "free_memory", lambda: 10 * 2**30)
    limits.check_memory("It", 8 * 2**30)
    with pytest.raises(UserError, match=r"It asks for 8\.1 GiB of memory, expected at most 8\.0 GiB, 80% of what is free\."):
        limits.check_memory("It", int(8.1 * 2**30))


def test_the_least_of_what_machine_container_and_process_allow_counts(monkeypatch):
    for name, size in (("_available", 300), ("_contained", None), ("_granted", 200)):
        monkeypatch.setattr(limits, name, lambda size=size: size)
    assert limits.free_memory() == 200
    monkeypatch.setattr(limits, "_contained", lambda: 100)
    assert limits.free_memory() == 100


def test_a_file_may_grow_but_not_without_end(tmp_path):
    (tmp_path / "file").write_bytes(b"x" * 1000)
    limits.check_growth(tmp_path / "file", limits.SMALL)
    with pytest.raises(UserError, match=r"file claims to hold 1\.0 GiB, expected at most 0\.1 GiB in a file of its size"):
        limits.check_growth(tmp_path / "file", 2**30)


def test_a_run_that_does_not_fit_is_refused_before_it_begins(monkeypatch):
    env = probes.make(probes.one_step())
    monkeypatch.setattr(limits, "free_memory", lambda: 100)
    with pytest.raises(UserError, match="This run asks for .* of memory"):
        scan.run(env, probes.tabular_q(env.spec, num_envs=2), None, scan.LoopConfig(iterations=1, num_envs=2), progress=False)


def test_pieces_of_memory_are_counted():
    assert 0.0 <= limits.mapped() < 1.0
    assert limits.mapped() > 0.0 or not Path("/proc/self/maps").exists()


@pytest.mark.parametrize(("part", "forgotten"), [(0.4, 0), (0.6, 1)])
def test_a_process_that_trains_again_and_again_forgets_programs_before_it_may_map_no_more(monkeypatch, part, forgotten):
    calls = []
    monkeypatch.setattr(limits, "mapped", lambda: part)
    monkeypatch.setattr(jax, "clear_caches", lambda: calls.append(1))
    with pytest.raises(UserError, match="expected exactly one of them"):
        training.train(training.Run("bc", "coingrid", BCConfig()))
    assert len(calls) == forgotten


def test_one_agent_with_many_steps_among_many_agents_is_refused_before_it_is_padded(monkeypatch):
    demos = Demonstrations.from_lists([np.zeros((n + 1, 2)) for n in (1000, 1, 1)], [np.zeros(n, int) for n in (1000, 1, 1)], list("abc"))
    monkeypatch.setattr(limits, "free_memory", lambda: 50_000)
    with pytest.raises(UserError, match="Steps side by side asks for"):
        demos.to_demos()


def test_one_large_action_is_refused_by_its_place():
    with pytest.raises(UserError, match="agent 'a', episode 0, step 1: the action is 2147483647, expected 0 to 65535"):
        Demonstrations.from_lists([np.zeros((3, 2))], [[0, 2**31 - 1]], ["a"])


@pytest.mark.parametrize(("mark", "number"), [(",", "1"), (";", "1,5")])
def test_columns_of_wide_tables_are_looked_up_and_not_searched_for(tmp_path, mark, number):
    """30,000 columns are no 900 million comparisons."""
    names = [f"obs_{i}" for i in range(3_000)]
    rows = [["a", "0", str(t), str(t % 2), *[number] * 3_000] for t in range(3)]
    lines = [mark.join(row) for row in [["agent", "episode", "t", "action", *names], *rows]]
    (tmp_path / "wide.csv").write_text("\n".join(lines) + "\n")
    profile = cProfile.Profile()
    assert profile.runcall(Demonstrations.read, tmp_path / "wide.csv").obs.shape == (3, 3_000)
    searches = [one.callcount for one in profile.getstats() if isinstance(one.code, str) and "'index' of" in one.code]
    assert sum(searches) < 300


def test_numbered_columns_that_claim_a_huge_grid_are_plain_columns(tmp_path):
    (tmp_path / "x.csv").write_text("agent,episode,obs_0_0,obs_99999_99999,action\na,0,1,2,0\na,0,3,4,1\n")
    assert Demonstrations.read(tmp_path / "x.csv").obs.shape == (2, 2)
