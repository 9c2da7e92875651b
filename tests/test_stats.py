import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import trim_mean

from psiphi.errors import UserError
from psiphi.stats import bootstrap_interval, iqm, r_squared, steps_to, stratified_interval

numbers = st.floats(-1e6, 1e6)


@given(st.lists(numbers, min_size=1, max_size=40))
def test_iqm_is_scipys_trimmed_mean(x):
    assert iqm(x) == pytest.approx(trim_mean(x, 0.25), abs=1e-9)


def test_iqm_worked_by_hand():
    assert iqm([100, 1, 2, -50]) == 1.5
    assert iqm([3, 1, 2]) == 2  # too few to drop any
    assert iqm([0, 1, 2, 3, 400]) == 2  # one of five at each end
    assert iqm([[-9, 1, 1, 99], [-9, 3, 3, 99]]) == 2  # a matrix counts as its entries
    np.testing.assert_array_equal(iqm([[-9, 1, 1, 99], [-9, 3, 3, 99]], axis=1), [1, 3])
    np.testing.assert_array_equal(iqm([[-9, 0], [1, 1], [2, 1], [99, 5]], axis=0), [1.5, 1])


def test_interval_of_the_mean_approaches_the_closed_form():
    x = np.random.default_rng(1).normal(size=200)
    low, high = bootstrap_interval(x, statistic=np.mean)
    half = 1.96 * x.std() / np.sqrt(len(x))
    assert (low, high) == pytest.approx((x.mean() - half, x.mean() + half), abs=0.02)


def test_interval_covers_the_truth_about_as_often_as_it_says():
    rng = np.random.default_rng(2)
    covered = 0
    for seed in range(100):
        low, high = bootstrap_interval(rng.normal(size=40), confidence=0.9, resamples=300, seed=seed)
        covered += low <= 0 <= high
    assert 78 <= covered <= 98


def test_interval_is_a_function_of_its_arguments():
    x = np.random.default_rng(3).normal(size=10)
    first = bootstrap_interval(x, resamples=200)
    assert first == bootstrap_interval(x, resamples=200)
    assert first != bootstrap_interval(x, resamples=200, seed=1)
    narrow = bootstrap_interval(x, confidence=0.5, resamples=200)
    assert first[0] < narrow[0] <= narrow[1] < first[1]


def test_interval_of_equal_runs_is_a_point():
    assert bootstrap_interval([0.25] * 5, resamples=50) == (0.25, 0.25)


def test_stratified_runs_stay_in_their_task():
    x = np.tile([0.0, 10.0], (6, 1))  # no spread within a task, much between tasks
    assert stratified_interval(x, np.mean, resamples=100) == (5.0, 5.0)
    assert bootstrap_interval(x.ravel(), np.mean, resamples=100) != (5.0, 5.0)


def test_stratified_tasks_are_resampled_independently():
    x = np.stack([np.arange(20.0), -np.arange(20.0)], axis=1)  # the same run in both would always give mean 0
    low, high = stratified_interval(x, np.mean, resamples=500)
    expected = 1.96 * x[:, 0].std() / np.sqrt(2 * len(x))
    assert (low, high) == pytest.approx((-expected, expected), abs=0.3)


def test_r_squared_of_exact_and_of_unrelated_targets():
    rng = np.random.default_rng(4)
    x = rng.normal(size=(5000, 3))
    assert r_squared(x, x @ [1, -2, 0.5] + 7) == pytest.approx(1)
    assert r_squared(x, rng.normal(size=5000)) < 0.01
    signal, noise = x[:, 0], rng.normal(size=5000)
    assert r_squared(x, signal + noise) == pytest.approx(0.5, abs=0.03)


@given(st.lists(st.tuples(numbers, numbers), min_size=3, max_size=30))
def test_r_squared_of_one_feature_is_the_squared_correlation(pairs):
    x, y = np.array(pairs).T
    if min(np.ptp(x), np.ptp(y)) < 1:
        return
    assert r_squared(x[:, None], y) == pytest.approx(np.corrcoef(x, y)[0, 1] ** 2, abs=1e-6)


def test_collapsed_features_explain_nothing_and_constant_targets_are_nan():
    y = np.random.default_rng(5).normal(size=50)
    assert r_squared(np.full((50, 2), 0.1), y) == pytest.approx(0, abs=1e-9)
    assert np.isnan(r_squared(np.random.default_rng(6).normal(size=(50, 2)), np.full(50, 0.1)))


@pytest.mark.parametrize(
    "call",
    [
        lambda: iqm([]),
        lambda: iqm([1.0, float("nan")]),
        lambda: bootstrap_interval([1.0, 2.0], confidence=95.0),
        lambda: stratified_interval([1.0, 2.0]),
        lambda: r_squared([[1.0], [2.0]], [1.0, 2.0, 3.0]),
    ],
)
def test_nonsense_is_refused_in_one_sentence(call):
    with pytest.raises(UserError, match=r"^[^\n]+\.$"):
        call()


def test_steps_to_a_level_is_the_first_evaluation_there_or_all_steps():
    assert steps_to([10, 20, 40], [0.5, 0.9, 1.0], 0.9) == 20
    assert steps_to([10, 20, 40], [0.5, 0.6, 0.7], 0.9) == 40
