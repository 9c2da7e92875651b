"""Shared directions: what agents are made of is found, whatever basis the rewards came in."""

import numpy as np

from psiphi.api.factors import factors, varimax


def test_what_agents_are_made_of_is_found_with_its_sign():
    rng = np.random.default_rng(0)
    things = rng.laplace(size=(5_000, 3))
    wants = np.array([[1, 0, 0], [2, 0, 0], [0, 1, 0], [0, 3, 0], [0, 0, 1], [0, 0, 0.5], [-1, 0, 0]])
    found = factors(things @ wants.T + 0.02 * rng.normal(size=(5_000, 7)))
    assert found.loading.shape == (7, 3) and found.kept > 0.99
    assert ((np.abs(found.loading) > 0.9).sum(axis=1) == 1).all() and ((np.abs(found.loading) < 0.1).sum(axis=1) == 2).all()
    alike = np.corrcoef(found.score.T, things.T)[:3, 3:]
    assert (np.abs(alike).max(axis=1) > 0.99).all()
    of_first = int(np.abs(found.loading[0]).argmax())
    assert found.loading[0, of_first] > 0 > found.loading[6, of_first], "wanted by two and avoided by one: the sign is theirs"


def test_a_rotation_keeps_lengths_and_a_reward_that_never_changes_is_nothing():
    rng = np.random.default_rng(1)
    turn = varimax(rng.normal(size=(9, 4)))
    np.testing.assert_allclose(turn @ turn.T, np.eye(4), atol=1e-9)
    rewards = np.column_stack([rng.normal(size=100), np.full(100, 3.0)])
    found = factors(rewards)
    assert found.loading.shape == (2, 1) and abs(found.loading[0, 0]) > 0.999 and found.loading[1, 0] == 0
