"""Tuning: the core decides by scores alone, a population in one program is its members trained alone, and a search continues to the bit."""

import csv
import json
import math

import jax
import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given
from hypothesis import strategies as st

import tiny
from psiphi import cli, spaces, training
from psiphi.agents import ALGORITHMS, tunable
from psiphi.errors import UserError
from psiphi.spaces import Choice, Range
from psiphi.tuning import core, plan, results, tpe, trials
from psiphi.tuning.plan import Plan

SPACE = {"learning_rate": Range(1e-4, 1e-2, log=True), "gamma": Range(0.8, 0.99), "clip": Choice((1.0, 10.0, 100.0))}

# --- The core ------------------------------------------------------------------------------------------------------------


@given(st.lists(st.one_of(st.floats(-1, 1), st.just(math.nan)), min_size=2, max_size=40), st.integers(0, 2**32 - 1), st.integers(1, 99))
def test_only_the_worst_copy_and_only_the_best_are_copied(scores, seed, round_):
    values = core.first(SPACE, len(scores), (seed,)).values
    decision = core.evolve(scores, values, SPACE, (seed,), round_)
    assert decision == core.evolve(scores, values, SPACE, (seed,), round_)
    order, cut = core.ranking(scores), max(len(scores) // 4, 1)
    for member, (parent, mine) in enumerate(zip(decision.parents, decision.values, strict=True)):
        assert 1e-4 <= mine["learning_rate"] <= 1e-2 and 0.8 <= mine["gamma"] <= 0.99 and mine["clip"] in (1.0, 10.0, 100.0)
        if parent == member:
            assert mine == values[member]
        else:
            assert parent in order[:cut] and member in order[-cut:]
            assert not scores[member] >= scores[parent] and math.isfinite(scores[parent])


def test_first_values_cover_every_range_evenly():
    values = core.first(SPACE, 8, (3,)).values
    places = sorted(math.log(mine["learning_rate"] / 1e-4) / math.log(100) for mine in values)
    assert all(i / 8 <= place <= (i + 1) / 8 for i, place in enumerate(places))
    assert core.first(SPACE, 8, (4,)).values != values


def test_rungs_spend_alike_and_end_with_few():
    assert core.rungs(32, 4) == ((32, 1), (8, 4), (2, 16))
    assert core.rungs(3, 4) == ((3, 1),)
    assert core.survivors([0.1, math.nan, 0.3, 0.3], 2) == (2, 3)


def asynchronously(scores: list[list[float]], factor: int, workers: int, first_in_first_out: bool = True):
    """The jobs of asynchronous halving in the order in which they were given out, where `scores[k][i]` is what trial i has at rung k."""
    done: list[dict[int, float]] = [{} for _ in scores]
    running, given_out = list[tuple[int, int]](), list[tuple[int, int]]()
    while True:
        sent = [{*done[k], *(trial for trial, rung in running if rung == k)} for k in range(len(done))]
        job = core.promoted(done, sent, len(scores[0]), factor) if len(running) < workers else None
        if job is not None:
            running.append(job)
            given_out.append(job)
        elif running:
            trial, rung = running.pop(0 if first_in_first_out else -1)
            done[rung][trial] = scores[rung][trial]
        else:
            return given_out


def test_asynchronous_halving_promotes_as_soon_as_it_can_and_without_waiting_ends_as_halving_does():
    scores = [[0.1, 0.4, 0.2, math.nan, 0.9, 0.3, 0.8, 0.0]] * 3
    jobs = asynchronously(scores, 2, workers=1)
    assert jobs[:4] == [(0, 0), (1, 0), (1, 1), (2, 0)], "of two that have ended the better one goes on before a third begins"
    assert jobs[4:10] == [(3, 0), (2, 1), (1, 2), (4, 0), (4, 1), (4, 2)]
    assert jobs[10:] == [(5, 0), (5, 1), (6, 0), (6, 1), (6, 2), (7, 0)], "the last is among no best half"
    # With a worker for each trial a rung is reached at once, and whoever survives it is who survives in the form that waits.
    at_once = asynchronously(scores, 2, workers=8)
    assert {trial for trial, rung in at_once if rung == 1} >= set(core.survivors(scores[0], 4))


@given(st.lists(st.floats(-1, 1), min_size=2, max_size=24), st.integers(2, 4), st.integers(1, 8), st.booleans())
def test_asynchronous_halving_trains_every_trial_and_no_rung_twice(scores, factor, workers, order):
    rungs = core.rungs(len(scores), factor)
    jobs = asynchronously([scores] * len(rungs), factor, workers, order)
    assert len(set(jobs)) == len(jobs) and {trial for trial, rung in jobs if rung == 0} == set(range(len(scores)))
    for k, rung in enumerate(rungs):
        reached = {trial for trial, at in jobs if at == k}
        assert len(reached) >= rung.trials and (k == 0 or reached <= {trial for trial, at in jobs if at == k - 1})
        assert max(range(len(scores)), key=lambda i: (scores[i], -i)) in reached, "the best of all goes all the way"


def test_a_space_is_read_as_it_is_written():
    words = [f"{name}={where}" for name, where in SPACE.items()]
    assert spaces.of_words(words, {}) == SPACE
    assert list(spaces.of_words(["learning-rate"], SPACE)) == ["learning_rate"]
    for wrong in ("learning_rate=1", "gamma=a:b", "gamma=0.9:0.8", "clip=0:1:log", "torso"):
        with pytest.raises(UserError, match="expected"):
            spaces.of_words([wrong], SPACE)


# --- A population in one program -----------------------------------------------------------------------------------------


def small(**fields) -> Plan:
    space = {"learning_rate": Range(1e-4, 1e-2, log=True), "ema": Range(0.01, 0.5, log=True)}
    return Plan(**{"run": tiny.run("dqn"), "space": space, "trials": 4, "rounds": 4} | fields)


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    out = tmp_path_factory.mktemp("unbroken")
    return out, trials.population(small(), out, progress=False)


def test_a_population_copies_and_explores(unbroken):
    _, lineage = unbroken
    assert [row.round for row in lineage] == [r for r in (1, 2, 3, 4) for _ in range(4)]
    copies = [row for row in lineage if row.parent != row.trial]
    assert copies and all(row.round > 1 for row in copies)
    scores = {(row.round, row.trial): row.score for row in lineage}
    assert all(scores[row.round - 1, row.parent] > scores[row.round - 1, row.trial] for row in copies)


def test_a_search_that_was_interrupted_is_the_unbroken_one(unbroken, tmp_path):
    out, lineage = unbroken

    asked = []
    whole = core.evolve

    def dying(*arguments):
        asked.append(arguments)
        if len(asked) == 5:  # in the third round
            raise KeyboardInterrupt
        return whole(*arguments)

    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(core, "evolve", dying)
        trials.population(small(), tmp_path, progress=False, checkpoint_every_s=0)
    assert trials.population(small(), tmp_path, progress=False) == lineage
    assert _arrays(tmp_path) == _arrays(out)


def _arrays(out):
    (file,) = (out / "population" / "checkpoint").glob("arrays-*.safetensors")
    return {name: x.tobytes() for name, x in safetensors.numpy.load(file.read_bytes()).items()}


def test_rounds_compile_nothing(tmp_path):
    compiled: list[str] = []
    marks: list[int] = []

    def listen(event: str, duration_secs: float, **_):
        if "backend_compile" in event:
            compiled.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    whole = trials.lineage

    def counted(*arguments):
        marks.append(len(compiled))
        return whole(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trials, "lineage", counted)
        trials.population(small(rounds=8), tmp_path, progress=False)
    # Asked before each of eight rounds and at the end. Copying compiles at the first copy, which is after round 1 or 2.
    assert marks[3] == marks[-1] > 0, marks


def test_numbers_in_the_state_train_as_constants_do():
    """Up to rounding: XLA folds constants."""
    run = plan.in_rounds(training.completed(tiny.run("dqn")), 4)
    plain = training.train(run, seeds=4, progress=False)
    rated = training.train(run, seeds=4, rates=tuple(ALGORITHMS["dqn"].space), progress=False)
    for x, y in zip(jax.tree.leaves(plain.state), jax.tree.leaves(rated.state), strict=True):
        np.testing.assert_allclose(np.asarray(x, np.float64), np.asarray(y, np.float64), rtol=2e-4, atol=1e-6)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_space_is_of_numbers_that_can_change_while_a_program_runs(name):
    made = tiny.run(name)
    space = ALGORITHMS[name].space
    plan.check_space(made, space)
    world = training.worlds.find("coingrid")
    assert world.record is not None
    demos = world.record(made.world, world.demonstrators(made.world), 2, 0, "train").demos if made.demos != "none" else None
    spec = tiny.spec_of(made)

    def updated(rates):
        agent = ALGORITHMS[name].make(tunable.with_rates(made.agent, rates), spec, 0 if demos is None else demos.count.shape[0], PACE)
        state = agent.init(jax.random.key(0), demos)
        return agent.update(state, jax.random.key(1))[1]

    jax.eval_shape(updated, {field: jax.ShapeDtypeStruct((), np.float32) for field in space})


PACE = training.Pace(num_envs=2 * 3, updates=4)


# --- Groups, halving, plain search ---------------------------------------------------------------------------------------


@pytest.mark.slow
def test_groups_come_to_the_lineage_of_the_population(unbroken, tmp_path):
    _, lineage = unbroken
    groups = trials.dealt(small(), tmp_path, 2)
    assert [group.members for group in groups] == [(0, 1), (2, 3)]
    said: list[int] = []
    assert trials.grouped(small(), groups, trials.here, said.append) == lineage
    assert said == [1, 2, 3, 4]
    assert trials.grouped(small(), groups, _refused, said.append) == lineage  # all of it stands on the disk


def _refused(*_):
    raise AssertionError("nothing is left to train")


@pytest.mark.slow
def test_halving_keeps_the_best(tmp_path):
    how = small(search="halving", factor=2)
    lineage = trials.halving(how, tmp_path, progress=False)
    assert [sum(row.round == r for row in lineage) for r in (1, 2, 3, 4)] == [4, 2, 1, 1]
    first = {row.trial: row.score for row in lineage if row.round == 1}
    assert {row.trial for row in lineage if row.round == 2} == set(sorted(first, key=lambda i: (-first[i], i))[:2])
    assert trials.halving(how, tmp_path, progress=False) == lineage


@pytest.mark.slow
def test_asynchronous_halving_continues_as_the_unbroken_one(tmp_path):
    how = small(search="asha", factor=2)

    class Dying(trials.Here):
        left = 3

        def start(self, plan, task):
            if not self.left:
                raise KeyboardInterrupt
            self.left -= 1
            super().start(plan, task)

    whole = trials.asynchronous(how, trials.alone(how, tmp_path / "whole"), trials.Here(), 1, lambda _: None)
    assert {row.trial for row in whole if row.round == 1} == {0, 1, 2, 3} and max(row.round for row in whole) == 4
    groups = trials.alone(how, tmp_path / "broken")
    with pytest.raises(KeyboardInterrupt):
        trials.asynchronous(how, groups, Dying(), 1, lambda _: None)
    assert trials.asynchronous(how, groups, trials.Here(), 1, lambda _: None) == whole
    assert plan.found_run(how, how.run, whole).agent.learning_rate == pytest.approx(plan.best(whole).values["learning_rate"], rel=1e-3)


# --- The command ---------------------------------------------------------------------------------------------------------


def told(*flags: str) -> None:
    cli.run(["tune", "dqn", *tiny.flags("dqn"), "--trials", "4", "--rounds", "2", *flags])


def test_the_command_leaves_a_config_that_train_takes(tmp_path, capsys):
    told("--space", "learning_rate", "ema=0.01:0.2:log", "--out", str(tmp_path / "a"))
    said = capsys.readouterr().out
    assert "psiphi train dqn --config" in said and "Found: learning_rate" in said
    with open(tmp_path / "a" / results.LINEAGE, newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 8 and {row["trial"] for row in rows} == {"0", "1", "2", "3"}
    assert (tmp_path / "a" / results.PICTURE).read_bytes().startswith(b"\x89PNG")
    found = json.loads((tmp_path / "a" / results.FOUND).read_text())
    cli.run(["train", "dqn", "--config", str(tmp_path / "a" / results.FOUND), "--dry-run"])
    assert json.loads(capsys.readouterr().out) == found
    assert 0.01 <= found["agent"]["ema"] <= 0.2 and found["agent"]["torso_hidden"] == [8]
    with pytest.raises(UserError, match="is a run of dqn, but ppo is asked for"):
        cli.run(["train", "ppo", "--config", str(tmp_path / "a" / results.FOUND), "--dry-run"])
    with pytest.raises(UserError, match="holds a run with"):
        told("--space", "learning_rate", "--out", str(tmp_path / "a"))


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--trials", "1"], "expected"),
        (["--search", "luck"], "expected one of pbt"),
        (["--space", "torso_hidden=1:2"], "expected a real number"),
        (["--space", "fantasy=1:2"], "has no setting 'fantasy'"),
        (["--space", "gamma=0.9:1.5"], "gamma is 1.5"),
        (["--space", "bc_weight=0.1:1"], "decides what program"),
        (["--on", "ray", "--search", "random"], "expected pbt, halving or asha"),
        (["--address", "10.0.0.1:6379"], "expected it only with --on ray"),
        (["--on", "ray", "--address", "somewhere"], "expected HOST:PORT"),
    ],
)
def test_what_cannot_be_searched_is_refused_in_one_sentence(tmp_path, flags, sentence):
    with pytest.raises(UserError, match=sentence):
        told(*flags, "--out", str(tmp_path / "out"))


@pytest.mark.slow
def test_a_gymnasium_world_is_tuned_one_trial_after_the_other(tmp_path, capsys):
    made = tiny.flags("dqn")
    flags = made[: made.index("--world.size")] + made[made.index("--num-envs") :]
    cli.run(["tune", "dqn", "--env", "CartPole-v1", *flags, "--trials", "2", "--rounds", "2", "--out", str(tmp_path)])
    assert len((tmp_path / results.LINEAGE).read_text().splitlines()) == 5
    before = (tmp_path / results.LINEAGE).read_bytes()
    cli.run(["tune", "dqn", "--env", "CartPole-v1", *flags, "--trials", "2", "--rounds", "2", "--out", str(tmp_path)])
    assert (tmp_path / results.LINEAGE).read_bytes() == before


def test_optuna_proposes_the_same_again(tmp_path):
    pytest.importorskip("optuna", reason="pip install 'psiphi[optuna]'")
    how = small(search="tpe", trials=3)
    lineage = tpe.search(how, tmp_path, together=True, progress=False)
    assert len(lineage) == 3 and tpe.search(how, tmp_path, together=True, progress=False) == lineage


@pytest.mark.slow
def test_ray_comes_to_the_lineage_of_the_population(unbroken, tmp_path):
    pytest.importorskip("ray", reason="pip install 'psiphi[ray]'")
    from psiphi.tuning import on_ray

    with on_ray.cluster("", 2):
        assert trials.grouped(small(), trials.dealt(small(), tmp_path, 2), on_ray.place(2), lambda _: None) == unbroken[1]


# --- Many seeds ----------------------------------------------------------------------------------------------------------


def test_seeds_in_one_program_leave_a_model_each(tmp_path, capsys):
    cli.run(["train", "dqn", *tiny.flags("dqn"), "--seeds", "2", "--seed", "5", "--out", str(tmp_path)])
    assert "2 seeds: one vmapped program" in capsys.readouterr().out
    assert sorted(path.name for path in (tmp_path / "models").iterdir()) == ["seed-5", "seed-6"]
