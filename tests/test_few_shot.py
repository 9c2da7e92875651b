"""Few-shot transfer and what a model can be asked, with a model written by hand.

The world: two levers, pulled twice, then the episode is over (and what happens after it is a trap). Two demonstrators each love one
lever. So phi and psi are "which lever", every lever is worth 1 before any reward, and ties fall to the left.
"""

from dataclasses import replace
from functools import partial

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import probes
from psiphi import gpi, tasks
from psiphi import model as models
from psiphi.loops import few_shot as module
from psiphi.loops.few_shot import FewShotConfig, episode, few_shot, infer
from psiphi.loops.gym import Worlds
from psiphi.model import Model
from psiphi.nets import PsiPhiNet
from psiphi.types import NO_ACTION, Demonstration, Demos, Env
from tables import numpy_record, quick_jit, tabular_net, with_tables

KEY = jax.random.key(0)
LEFT, RIGHT = 0, 1
REPETITIONS, PULLS, TRAP = 3, 2, 50.0
BAYES = FewShotConfig(inference="bayes", kappa=2.0, temperature=0.0)
LEAST_SQUARES = FewShotConfig(inference="least-squares", ridge=1e-4, temperature=0.0)


def lever_probe(left: float, right: float, ends: bool = True) -> probes.Probe:
    """Place 0, then place 1, then the end, be it a true one or the clock's; pulled on, the levers would pay the trap's reward."""
    next_place = np.array([[1, 1], [2, 2], [2, 2]])
    reward = np.array([[left, right], [left, right], [TRAP, TRAP]])
    over = np.array([[False, False], [ends, ends], [False, False]])
    return probes.Probe((0,), next_place, reward, over, (PULLS,), np.zeros((3, 2)))


def levers(left: float, right: float, ends: bool = True) -> Env:
    return probes.make(lever_probe(left, right, ends))


def hand_made_model() -> Model:
    """phi and psi of both heads are one-hot in the lever, in every place; demonstrator k's unit is 2, so that w_k / 2 speaks in rewards."""
    spec = levers(0, 0).spec
    net = tabular_net(spec, heads=2, ensemble=2, num_cumulants=2)
    phi = np.tile(np.eye(2), (3, 1, 1))
    w = 2.0 * jnp.eye(2)
    return Model(with_tables(net, phi, np.tile(phi, (2, 2, 1, 1, 1))), w, jnp.array([2.0, 2.0]))


MODEL = hand_made_model()
assert isinstance(MODEL.net, PsiPhiNet)
NET: PsiPhiNet = MODEL.net


def no_stats() -> tasks.Statistics:
    return jax.tree.map(lambda x: jnp.zeros((REPETITIONS, *x.shape)), tasks.no_experience(2))


def stats_of(pulls: list[tuple[int, float]]) -> tasks.Statistics:
    """What is known after these (lever, reward), the same in every repetition."""
    phi, reward = np.eye(2)[[lever for lever, _ in pulls]], np.array([r for _, r in pulls])
    one = numpy_record(tasks.Statistics, phi.T @ phi, phi.T @ reward, np.sum(reward**2), np.array(float(len(pulls))))
    return jax.tree.map(lambda x: jnp.asarray(np.repeat(x[None], REPETITIONS, axis=0), jnp.float32), one)


# --- Inference -----------------------------------------------------------------------------------------------------------

inferred = {name: jax.jit(partial(infer, config, MODEL)) for name, config in (("bayes", BAYES), ("least-squares", LEAST_SQUARES))}


@pytest.mark.parametrize("name", ["bayes", "least-squares"])
def test_before_any_reward_all_that_is_demonstrated_is_worth_one(name):
    np.testing.assert_allclose(inferred[name](no_stats()).mean, np.ones((REPETITIONS, 2)), rtol=1e-5)


def test_least_squares_waits_for_the_first_reward_that_is_not_zero():
    belief = inferred["least-squares"](stats_of([(LEFT, 0.0), (RIGHT, 0.0)]))
    np.testing.assert_allclose(belief.mean, np.ones((REPETITIONS, 2)), rtol=1e-5)


def test_the_ridge_shrinks_the_least_squares():
    belief = jax.jit(lambda stats: infer(replace(LEAST_SQUARES, ridge=1.0), MODEL, stats))(stats_of([(LEFT, 1.0)]))
    np.testing.assert_allclose(belief.mean[:, LEFT], 0.5, rtol=1e-5)


def test_least_squares_solves_once_there_is_a_reward():
    belief = inferred["least-squares"](stats_of([(LEFT, -1.0), (RIGHT, 3.0)]))
    np.testing.assert_allclose(belief.mean, np.tile([-1.0, 3.0], (REPETITIONS, 1)), rtol=1e-3)
    np.testing.assert_array_equal(belief.covariance, 0)


def test_ridge_knows_nothing_of_demonstrators_and_is_unsure_of_what_it_has_not_tried():
    belief = jax.jit(partial(infer, replace(BAYES, inference="ridge"), MODEL))(stats_of([(LEFT, -1.0)] * 20))
    np.testing.assert_allclose(belief.mean, np.tile([-1.0, 0.0], (REPETITIONS, 1)), atol=0.01)
    assert np.all(belief.covariance[:, LEFT, LEFT] < 0.01) and np.all(belief.covariance[:, RIGHT, RIGHT] == 1)


def test_bayes_is_unsure_of_what_it_has_not_tried():
    belief = inferred["bayes"](stats_of([(LEFT, -1.0)] * 20))
    np.testing.assert_allclose(belief.mean[:, LEFT], -1, atol=0.05)
    assert np.all(belief.covariance[:, LEFT, LEFT] < 0.01) and np.all(belief.covariance[:, RIGHT, RIGHT] > 0.1)


def test_what_the_ego_itself_was_paid_for_is_part_of_what_a_task_may_be():
    """One demonstrator, of the left lever; the ego was paid for the right one. Without the ego that one is out of reach."""
    alone, beside = Model(NET, MODEL.w[:1], MODEL.units[:1]), Model(NET, jnp.array([[2.0, 0.0], [0.0, 1.0]]), MODEL.units[:1])
    stats = stats_of([(LEFT, 0.0), (RIGHT, 3.0)] * 20)
    found = [jax.jit(partial(infer, BAYES, model))(stats).mean for model in (alone, beside)]
    np.testing.assert_allclose(found[0][:, RIGHT], 0, atol=1e-6)
    np.testing.assert_allclose(found[1], np.tile([0.0, 3.0], (REPETITIONS, 1)), atol=0.1)


# --- Episodes ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def played():
    """One episode of at most five steps in a world that pays -1 for the left lever and 1 for the right: returns and statistics."""

    @quick_jit
    def play(key: jax.Array):
        run = partial(episode, max_steps=5, learn_inside=True, kappa=2.0)
        return {
            "inside": run(levers(-1, 1), MODEL, BAYES, no_stats(), key),
            "not inside": run(levers(-1, 1, ends=False), MODEL, BAYES, no_stats(), key, learn_inside=False),
            "continued": run(levers(-1, 1), MODEL, BAYES, stats_of([(LEFT, -1.0), (RIGHT, 1.0)]), key, learn_inside=False),
        }

    return play(KEY)


def test_preferences_are_inferred_inside_the_first_episode(played):
    total, _ = played["inside"]
    np.testing.assert_array_equal(total, [-1 + 1] * REPETITIONS)  # tries the left lever, then knows better


def test_preferences_stay_fixed_inside_the_others(played):
    np.testing.assert_array_equal(played["not inside"][0], [-2] * REPETITIONS)
    np.testing.assert_array_equal(played["continued"][0], [2] * REPETITIONS)


@pytest.mark.parametrize(
    ("name", "pulls"),
    [("inside", [(LEFT, -1.0), (RIGHT, 1.0)]), ("not inside", [(LEFT, -1.0), (LEFT, -1.0)])],
    ids=["a true end", "the clock's end"],
)
def test_nothing_after_the_end_counts(played, name, pulls):
    total, stats = played[name]
    np.testing.assert_array_equal(total, [sum(reward for _, reward in pulls)] * REPETITIONS)  # no trap
    expected = stats_of(pulls)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), stats, expected)


def test_what_was_known_before_an_episode_is_kept(played):
    stats = played["continued"][1]
    np.testing.assert_allclose(stats.count, 2 + PULLS)
    np.testing.assert_allclose(stats.moment, np.tile([-1.0, 1.0 + 2.0], (REPETITIONS, 1)))


# --- Shots ---------------------------------------------------------------------------------------------------------------


SHOTS = (BAYES, 3), (LEAST_SQUARES, 1)


@pytest.fixture(scope="module")
def shots():
    """Few-shot transfer by both ways of inference."""
    return quick_jit(
        lambda key: {
            (config.inference, n): few_shot(levers(-1, 1), MODEL, config, key, shots=n, repetitions=REPETITIONS, max_steps=4)
            for config, n in SHOTS
        }
    )(KEY)


@pytest.mark.parametrize(("config", "n"), SHOTS, ids=["bayes", "least-squares"])
def test_0_shot_is_the_first_episode_and_k_shot_comes_after_k(shots, config, n):
    got = shots[config.inference, n]
    np.testing.assert_array_equal(got.first, [0] * REPETITIONS)  # left, then right
    np.testing.assert_array_equal(got.after, [2] * REPETITIONS)  # right, right
    assert np.all(got.w[:, LEFT] < 0.3) and np.all(got.w[:, RIGHT] > 0.9)


@pytest.mark.parametrize(("config", "n"), SHOTS, ids=["bayes", "least-squares"])
@pytest.mark.parametrize("ends", [True, False], ids=["end", "limit"])
def test_gymnasium_environments_teach_the_same(shots, config, n, ends):
    mode = gymnasium.vector.AutoresetMode.SAME_STEP if ends else gymnasium.vector.AutoresetMode.NEXT_STEP
    envs = gymnasium.vector.SyncVectorEnv([partial(probes.ProbeEnv, lever_probe(-1, 1, ends))] * REPETITIONS, autoreset_mode=mode)
    got = module.few_shot_in(Worlds(envs), MODEL, config, KEY, shots=n, max_steps=4, seed=0)
    for ours, theirs in zip(got[:3], shots[config.inference, n][:3], strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
    assert got.features is None


class Counting(gymnasium.Wrapper):
    """Counts its steps, and those in which it was paid."""

    def step(self, action):
        obs, reward, terminated, truncated, info = super().step(action)
        return obs, reward, terminated, truncated, info | {"features": np.array([1.0, reward], np.float32)}


def test_what_environments_count_is_summed_over_the_first_and_the_last_episode():
    make = [lambda: Counting(probes.ProbeEnv(lever_probe(-1, 1, True)))] * REPETITIONS
    envs = gymnasium.vector.SyncVectorEnv(make, autoreset_mode=gymnasium.vector.AutoresetMode.SAME_STEP)
    got = module.few_shot_in(Worlds(envs), MODEL, BAYES, KEY, shots=2, max_steps=4, seed=0)
    assert got.features is not None
    for counts, returns in zip(got.features, (got.first, got.after), strict=True):
        np.testing.assert_allclose(counts[:, 0], 2)  # an episode is two steps long; what follows its end does not count
        np.testing.assert_allclose(counts[:, 1], returns)


@pytest.mark.parametrize("config", [BAYES, LEAST_SQUARES], ids=lambda config: config.inference)
def test_only_the_first_episode_learns_inside_and_hopes(monkeypatch, config):
    calls = []

    def spy(env, model, config, stats, key, *, max_steps, learn_inside, kappa):
        calls.append((learn_inside, kappa))
        return jnp.zeros(REPETITIONS), stats

    monkeypatch.setattr(module, "episode", spy)
    jax.eval_shape(lambda: few_shot(levers(-1, 1), MODEL, config, KEY, shots=4, repetitions=REPETITIONS, max_steps=4))
    assert calls[0] == (True, config.kappa if config.inference == "bayes" else 0.0)
    assert len(calls) > 2 and set(calls[1:]) == {(False, 0.0)}


# --- What a model can be asked -------------------------------------------------------------------------------------------


def test_rewards_are_in_units_of_reward():
    obs, action = jnp.eye(3)[:2], jnp.array([LEFT, RIGHT])
    np.testing.assert_allclose(jax.jit(models.rewards)(MODEL, obs, action), [[1, 0], [0, 1]])


def test_imitation_averages_the_ensemble_of_the_demonstrator_asked_for():
    psi = np.zeros((2, 2, 3, 2, 2))
    psi[0, 0, :, LEFT, 0], psi[0, 1, :, LEFT, 0], psi[1, :, :, RIGHT, 1] = 1.0, 3.0, 5.0
    model = MODEL._replace(net=with_tables(NET, np.zeros((3, 2, 2)), psi))
    values = jax.jit(models.imitate)(model, jnp.eye(3)[:2], jnp.array([0, 1]))
    np.testing.assert_allclose(values, [[2 * 2.0, 0], [0, 2 * 5.0]])


def test_gpi_acts_for_any_mixture():
    w = jnp.array([[1.0, -1.0], [-1.0, 1.0], [0.1, 0.2]])
    act = quick_jit(lambda w: models.act(MODEL, jnp.eye(3), w, KEY, temperature=0.0))
    np.testing.assert_array_equal(act(w), [LEFT, RIGHT, RIGHT])


def test_soft_actions_have_the_frequencies_of_a_softmax():
    values = jnp.tile(jnp.array([0.0, 0.1, 0.3]), (4000, 1))
    soft, greedy = quick_jit(lambda values, key: (gpi.draw(values, key, 0.2), gpi.draw(values, key, 0.0)))(values, KEY)
    frequency = np.bincount(np.asarray(soft), minlength=3) / 4000
    np.testing.assert_allclose(frequency, np.exp([0, 0.5, 1.5]) / np.exp([0, 0.5, 1.5]).sum(), atol=0.03)
    assert np.all(np.asarray(greedy) == 2)


def test_optimism_tries_what_is_uncertain():
    belief = tasks.Posterior(jnp.array([[0.6, 0.5]] * 3), jnp.array([np.diag([0.0, 1.0])] * 3))
    act = partial(models.act_on_belief, MODEL, jnp.eye(3), belief, KEY, temperature=0.0)
    plain, hopeful = quick_jit(lambda: (act(kappa=0.0), act(kappa=1.0)))()
    np.testing.assert_array_equal(plain, [LEFT] * 3)
    np.testing.assert_array_equal(hopeful, [RIGHT] * 3)


def test_units_are_measured_on_real_steps_only():
    phi = np.zeros((3, 2, 2))
    phi[0, LEFT], phi[1, LEFT], phi[2, LEFT] = (0.5, 0.0), (0.0, -0.25), (9.0, 9.0)
    net = with_tables(NET, phi, np.zeros((2, 2, 3, 2, 2)))
    place = np.array([[0, 0, 2], [1, 1, 2]])  # the third step of each is padding
    whole = jnp.zeros((2, 3), jnp.int32)
    obs = jnp.asarray(np.eye(3, dtype=np.float32)[place])
    demos = Demos(Demonstration(obs, whole, whole.astype(jnp.float32), obs, whole + NO_ACTION), jnp.array([2, 2]))
    np.testing.assert_allclose(jax.jit(models.measure_units)(net, MODEL.w, demos), [2 * 0.5, 2 * 0.25], rtol=1e-5)


def test_a_model_whose_units_were_flipped_is_mended():
    flipped = MODEL._replace(units=MODEL.units * jnp.array([1.0, -1.0]))
    np.testing.assert_array_equal(models.mended(flipped).units, MODEL.units)
