"""What the Python interface is handed is what was meant, or one sentence says what to do."""

from pathlib import Path

import gymnasium
import numpy as np
import pytest

import psiphi
from psiphi import doors
from psiphi.demos import Demonstrations
from psiphi.errors import UserError


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("drivers.csv", "The demonstrations are 'drivers.csv', .* read it with psiphi.Demonstrations.read"),
        (Path("drivers.csv"), "read it with psiphi.Demonstrations.read"),
        (None, "The demonstrations are None, expected a psiphi.Demonstrations: psiphi.Demonstrations.read makes one"),
        ([1], "are a list, expected"),
        ({}, "are a dict, expected"),
        (np.zeros(3), "are a numpy ndarray, expected"),
    ],
)
def test_demonstrations_are_asked_for_by_name(given, said):
    with pytest.raises(UserError, match=said):
        doors.demonstrations(given, Demonstrations)


def test_an_environment_is_no_demonstrations():
    with pytest.raises(UserError, match=r"an environment, expected what others did in it: .* psiphi.PsiPhi\(env, demos\) takes both"):
        doors.demonstrations(gymnasium.make("CartPole-v1"), Demonstrations)


@pytest.mark.parametrize(
    ("given", "said"), [({"gamma": 1}, r"ITDConfig\(\*\*config\) makes one"), ("paper", "expected a psiphi.ITDConfig or None")]
)
def test_a_config_is_a_config(given, said):
    with pytest.raises(UserError, match=said):
        doors.config(given, psiphi.ITDConfig)
    assert doors.config(None, psiphi.ITDConfig) is None


@pytest.mark.parametrize("given", [None, 3, b"x", "", ["a"]])
def test_a_path_is_a_name(given):
    with pytest.raises(UserError, match="expected the name of a file or directory"):
        doors.path(given)
    with pytest.raises(UserError, match="a character that no file name has"):
        doors.path("a\0b")
    assert doors.path("a") == doors.path(Path("a")) == Path("a")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (None, "expected an array of numbers"),
        ("ab", "expected an array of numbers"),
        ({"x": 1}, "expected an array of numbers"),
        ([[1.0], [1.0, 2.0]], "cannot be made an array, expected numbers in rows of equal length"),
        ([1.0, np.nan], "has nan in it, expected finite numbers"),
        ([-np.inf], "has -inf in it, expected finite numbers"),
        (np.zeros(2, complex), "expected an array of numbers"),
    ],
)
def test_numbers_are_numbers_and_finite(given, said):
    with pytest.raises(UserError, match=said):
        doors.numbers(given, "The observation")


@pytest.mark.parametrize(
    "given", [None, "steps", 3, {"obs": 1}, [], [(1, 2)], [3], (np.zeros(3), np.zeros(3)), (np.zeros(3),) * 4, ["abc"]]
)
def test_steps_are_triples_or_three_columns(given):
    with pytest.raises(UserError, match=r"expected three arrays \(observations, actions, rewards\)"):
        doors.steps(given)


def test_steps_as_columns_and_as_triples_are_the_same():
    obs = np.zeros((2, 3))
    assert doors.steps((obs, [0, 1], [0.0, 1.0]))[0] is obs
    assert doors.steps(iter([(obs[0], 0, 0.0), (obs[1], 1, 1.0)]))[1:] == ((0, 1), (0.0, 1.0))
