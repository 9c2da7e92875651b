"""Kinds: episodes without ids are sorted by what they do, by networks that did not see them."""

import csv
import dataclasses
import itertools

import jax.numpy as jnp
import numpy as np
import pytest

import psiphi
from psiphi.api import chains, kinds
from psiphi.errors import UserError
from psiphi.experiments import infer
from tiny import corners


@pytest.fixture(scope="module", autouse=True)
def quick():
    """Fewer updates of smaller networks, for worlds this small; other widths are other programs."""
    before = kinds.FIRST, kinds.UPDATES, kinds.WIDTH
    kinds.FIRST, kinds.UPDATES, kinds.WIDTH = 100, 30, 32
    yield
    kinds.FIRST, kinds.UPDATES, kinds.WIDTH = before


THREE = [(0, 0), (4, 4), (0, 4)]


def test_episodes_are_sorted_by_where_they_go_and_their_number_is_found():
    demos = corners(THREE, 90)
    found = psiphi.find_kinds(demos, "auto", beginnings=1, progress=False)
    truth = np.arange(90) % 3
    assert found.number == 3 and found.share.shape == (90, 3)
    np.testing.assert_allclose(found.share.sum(axis=1), 1, atol=1e-5)
    for k in range(3):
        assert len(set(found.label[truth == k])) == 1, "all of one kind are sorted alike"
    assert len(set(found.label)) == 3 and found.nats[3] < found.nats[2] < found.nats[1]
    assert found.demos.agents == ("kind 1", "kind 2", "kind 3") and len(found.demos) == len(demos)
    assert np.array_equal(found.demos.episodes.agent, found.label) and "3 kinds" in str(found)


def test_one_kind_is_not_taken_for_several():
    assert psiphi.find_kinds(corners(THREE[:1], 60), "auto", beginnings=1, progress=False).number == 1


def test_agents_are_sorted_with_all_their_episodes():
    demos = corners(THREE[:2], 60)
    agents = tuple(f"a{i}" for i in range(12))
    many = dataclasses.replace(demos, agents=agents, episodes=demos.episodes._replace(agent=(np.arange(60) % 12).astype(np.int32)))
    found = psiphi.find_kinds(many, 2, of="agents", beginnings=1, progress=False)
    assert found.units == agents and sorted(np.bincount(found.label)) == [6, 6]
    assert len(set(found.label[::2])) == 1


def test_a_number_is_the_smallest_that_no_larger_one_beats_whose_kinds_are_told_apart():
    rng = np.random.default_rng(0)
    noise, turn = rng.normal(size=200), np.arange(200)
    gains = {1: 0.0, 2: 1.0, 3: 1.001, 4: 2.0}
    fits = {k: kinds.Fit(np.eye(k)[turn % k], noise + gain + 0.1 * rng.normal(size=200)) for k, gain in gains.items()}
    assert kinds._fewest({k: fits[k] for k in (1, 2, 3)}) == 2 and kinds._fewest(fits) == 4
    blurred = np.full((200, 4), 0.4 / 3)
    blurred[np.arange(200), np.arange(200) % 4] = 0.6
    assert kinds._fewest({**fits, 4: fits[4]._replace(share=blurred)}) == 2


def test_sums_over_chains_are_those_over_all_paths():
    rng, drawn, stay = np.random.default_rng(0), np.array([0.5, 0.3, 0.2]), 0.7
    likely = rng.normal(size=(7, 3))
    first = np.array([True, False, False, True, False, False, False])
    share, anew, total = np.zeros((7, 3)), np.zeros((7, 3)), {}
    for steps in (range(3), range(3, 7)):
        paths = {}
        for path in itertools.product(range(3), repeat=len(steps)):
            for fresh in itertools.product((False, True), repeat=len(steps) - 1):  # whether the kind is drawn anew, at each later step
                fresh = (True, *fresh)
                if all(new or path[t] == path[t - 1] for t, new in enumerate(fresh)):
                    chance = drawn[path[0]] * np.exp(sum(likely[step, k] for step, k in zip(steps, path, strict=True)))
                    for t in range(1, len(steps)):
                        chance *= (1 - stay) * drawn[path[t]] if fresh[t] else stay
                    paths[path, fresh] = chance
        total[steps[-1]] = sum(paths.values())
        for (path, fresh), chance in paths.items():
            for step, k, new in zip(steps, path, fresh, strict=True):
                share[step, k] += chance / total[steps[-1]]
                anew[step, k] += new * chance / total[steps[-1]]
    found = chains.smoothed(*map(jnp.asarray, (likely, first, drawn, stay)))
    np.testing.assert_allclose(found.share, share, atol=1e-5)
    np.testing.assert_allclose(found.anew, anew, atol=1e-5)
    np.testing.assert_allclose([found.likely[:3].sum(), found.likely[3:].sum()], np.log(list(total.values())), atol=1e-5)


def test_how_often_kinds_switch_is_found_and_when():
    rng, stay, drawn = np.random.default_rng(0), 0.9, np.array([0.7, 0.3])
    first = np.arange(4_000) % 40 == 0
    kind = np.zeros(4_000, int)
    for t in range(4_000):
        kind[t] = kind[t - 1] if not first[t] and rng.random() < stay else rng.choice(2, p=drawn)
    chance = np.array([[0.7, 0.2, 0.1], [0.1, 0.2, 0.7]])  # of three actions, by kind
    action = np.array([rng.choice(3, p=chance[k]) for k in kind])
    guess = jnp.full(2, 0.5), jnp.asarray(0.5)
    look = lambda: chains.smoothed(jnp.log(chance[:, action].T), jnp.asarray(first), *guess)  # noqa: E731
    for _ in range(60):
        guess = chains.refitted(look(), jnp.asarray(first))
    assert abs(float(guess[1]) - stay) < 0.02 and abs(float(guess[0][0]) - 0.7) < 0.1
    alone = chance[:, action].argmax(axis=0)
    assert np.mean(np.asarray(look().share).argmax(axis=1) == kind) > 0.88 > 0.86 > np.mean(alone == kind)


def test_episodes_are_cut_where_kinds_switch():
    demos, rng = corners(THREE[:1], 4), np.random.default_rng(0)
    label = rng.integers(3, size=len(demos))
    cut, shares = kinds.relabelled(demos, np.eye(3)[label])
    assert np.array_equal(cut.obs, demos.obs) and np.array_equal(cut.agent_index, label) and cut.agents == ("kind 1", "kind 2", "kind 3")
    assert np.array_equal(shares, np.eye(3)[cut.episodes.agent]) and cut.episodes.terminated.sum() == 4
    inner = np.setdiff1d(cut.episodes.start[1:], demos.episodes.start)
    for at in inner:
        e = np.flatnonzero(cut.episodes.start == at)[0] - 1
        assert cut.episodes.truncated[e] and not cut.episodes.terminated[e] and cut.episodes.has_final[e]
        assert np.array_equal(cut.episodes.final_obs[e], demos.obs[at])


def changing(episodes: int, walks: int = 4) -> tuple[psiphi.Demonstrations, np.ndarray]:
    """Some walks to one corner and then as many to the other, and of each step which of the two was gone to."""
    halves = [list(corners([goal], walks * episodes, seed)) for seed, goal in enumerate([(0, 0), (4, 4)])]
    obs, action, truth = [], [], []
    for e in range(episodes):
        parts = [walk for half in halves for walk in half[walks * e : walks * (e + 1)]]
        last = parts[-1].final_obs
        assert last is not None
        obs.append(np.concatenate([walk.obs for walk in parts] + [last[None]]))
        action.append(np.concatenate([walk.action for walk in parts]))
        truth.append(np.repeat([0, 1], walks).repeat([len(walk.action) for walk in parts]))
    return psiphi.Demonstrations.from_lists(obs, action, ["x"] * episodes, num_actions=4), np.concatenate(truth)


def test_kinds_that_switch_inside_an_episode_are_found():
    demos, truth = changing(30)
    found = psiphi.find_kinds(demos, 2, beginnings=1, switching=True, progress=False)
    same = np.mean(found.demos.agent_index == truth)
    assert max(same, 1 - same) > 0.9 and found.stay is not None and 0.8 < found.stay < 0.99
    np.testing.assert_allclose(found.share.sum(axis=1), 1, atol=1e-5)
    assert found.share.shape == (30, 2) and found.shares.shape == (found.demos.num_episodes, 2) and found.demos.num_episodes >= 60
    assert "kinds stay from step to step" in str(found)


def test_what_cannot_be_sorted_is_one_sentence(tmp_path):
    demos = corners(THREE[:2], 6)
    with pytest.raises(UserError, match="There is one agent only, expected several to sort into kinds, or --agent none"):
        psiphi.find_kinds(demos, 2, of="agents")
    with pytest.raises(UserError, match="There are 6 episodes to sort into 4 kinds, expected at least 8"):
        psiphi.find_kinds(demos, 4)
    demos.write(tmp_path / "log.csv")
    with pytest.raises(UserError, match="kinds is 'many', expected a number above 0, auto or none"):
        infer.run([str(tmp_path / "log.csv"), "--out", str(tmp_path / "out"), "--agent", "none", "--kinds", "many"])
    with pytest.raises(UserError, match="switching is True and kinds is none, expected --kinds auto or a number"):
        infer.run([str(tmp_path / "log.csv"), "--out", str(tmp_path / "out"), "--switching"])
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_log_without_ids_becomes_a_report_on_kinds(tmp_path):
    corners(THREE[:2], 80).write(tmp_path / "log.csv")
    small = ["--updates", "20", "--itd.torso-hidden", "16", "--itd.phi-hidden", "16", "--itd.psi-hidden", "16", "--rewards", "30"]
    infer.run([str(tmp_path / "log.csv"), "--out", str(tmp_path / "out"), "--agent", "none", "--kinds", "2", *small])
    text = (tmp_path / "out" / "report.md").read_text()
    assert "## Kinds" in text and "80 episodes were sorted" in text and "| kind 2 | 40 |" in text
    assert (
        "How likely the episodes of each kind are of every kind" in text and '"kinds":[[' in (tmp_path / "out" / "explore.html").read_text()
    )
    with open(tmp_path / "out" / "kinds.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    kind = [row["kind"] for row in rows]
    assert len(rows) == 80 and len(set(kind[::2])) == len(set(kind[1::2])) == 1 and kind[0] != kind[1]
    assert float(rows[0][f"share of {kind[0]}"]) > 0.9
    assert psiphi.load(tmp_path / "out" / "model").agents == ("kind 1", "kind 2")
