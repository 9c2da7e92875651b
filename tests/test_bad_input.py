"""What cannot be run is one sentence, exit code 2, and not a file is left, whether a world, an algorithm, a task or a log does not fit."""

import re
from pathlib import Path

import gymnasium
import numpy as np
import pytest

import psiphi
import tiny
from psiphi import cli, training, worlds
from psiphi.demos import Demonstrations
from psiphi.errors import UserError

STRANGE = """
import gymnasium
import numpy as np
from gymnasium import spaces


class Strange(gymnasium.Env):
    observation_space = spaces.Box(-1, 1, (3,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, **changes):
        for name, value in changes.items():
            setattr(self, name, value)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.observation_space.sample(), {}

    def step(self, action):
        return self.observation_space.sample(), 0.0, False, True, {}


def fine():
    return Strange()


def box():
    return Strange(action_space=spaces.Box(-1, 1, (2,)))


def dictionary():
    return Strange(action_space=spaces.Dict({"steer": spaces.Discrete(3)}))


def several():
    return Strange(action_space=spaces.MultiDiscrete([3, 3]))


def words():
    return Strange(observation_space=spaces.Text(5))


def raises():
    raise RuntimeError("the robot is not plugged in")


def leaves():
    raise SystemExit(3)


def nothing():
    return 7


class Asleep(Strange):
    def reset(self, *, seed=None, options=None):
        raise TimeoutError("the robot does not answer")


class Liar(Strange):
    def reset(self, *, seed=None, options=None):
        return np.zeros(5, np.float32), {}


def asleep():
    return Asleep()


def liar():
    return Liar()


number = 7
"""


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    """A folder with a module of a stranger's and some logs, in which commands are typed."""
    (tmp_path / "strange_worlds.py").write_text(STRANGE)
    (tmp_path / "broken_worlds.py").write_text("1 / 0")
    three = [np.zeros((4, 3), np.float32)] * 2
    Demonstrations.from_lists(three, [np.array([0, 1, 0])] * 2, ["a", "b"], num_actions=2).write(tmp_path / "three.npz")
    four = [np.zeros((4, 4), np.float32)] * 2
    Demonstrations.from_lists(four, [np.array([0, 5, 0])] * 2, ["a", "b"], num_actions=6).write(tmp_path / "actions.npz")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def files_in(path: Path) -> set[str]:
    return {str(file.relative_to(path)) for file in path.rglob("*") if file.is_file() and "__pycache__" not in file.parts}


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        # Worlds
        ("train dqn --env mars", "'mars' is not a world; expected one of coingrid, .* id such as CartPole-v1, or module:function"),
        ("train dqn --env Mars-v3", "'Mars-v3' is neither a world of psiphi nor a Gymnasium environment: .*"),
        ("train dqn --env nobodys/Mars-v3", "'nobodys/Mars-v3' is neither a world of psiphi nor a Gymnasium environment"),
        ("train dqn --env no_such_module:make", "the module 'no_such_module' cannot be imported"),
        ("train dqn --env broken_worlds:make", "its module raised ZeroDivisionError: division by zero"),
        ("train dqn --env strange_worlds:number", "'number' is no function of the module 'strange_worlds'"),
        ("train dqn --env strange_worlds:raises", "cannot be made: RuntimeError: the robot is not plugged in"),
        ("train dqn --env strange_worlds:leaves", "cannot be made: SystemExit: 3"),
        ("train dqn --env strange_worlds:asleep", "cannot be reset: TimeoutError: the robot does not answer"),
        ("train dqn --env strange_worlds:liar", r"'strange_worlds:liar' has shape \(5,\), expected \(3,\), as its space says"),
        ("train dqn --env strange_worlds:mistyped", "the module 'strange_worlds' has no 'mistyped', expected a function or a Gymnasium id"),
        ("train dqn --env strange_worlds:nothing", "made a int, expected a gymnasium.Env"),
        ("train dqn --env strange_worlds:box", r"actions of 'strange_worlds:box' are Box\(.*\), expected a Discrete space"),
        ("train dqn --env strange_worlds:dictionary", r"actions of 'strange_worlds:dictionary' are Dict\(.*\), expected a Discrete space"),
        ("train dqn --env strange_worlds:several", r"'strange_worlds:several' are MultiDiscrete\(.*\), expected a Discrete space"),
        ("train dqn --env strange_worlds:words", r"observations of 'strange_worlds:words' are Text\(.*\), expected arrays of numbers"),
        ("train dqn --env Pendulum-v1", r"actions of 'Pendulum-v1' are Box\(.*\), expected a Discrete space"),
        # Algorithms, tasks, demonstrators
        ("train a2c --env coingrid", "'a2c' is not an algorithm; expected one of itd, psiphi, dqn, guided-dqn, bc"),
        ("train dqn --env coingrid --task Z", "'Z' is not a CoinGrid task"),
        ("train dqn --env highway-multi-task --task fast", "'fast' is not a task of Highway; expected own, or a speed"),
        ("train dqn --env highway-multi-task --task speed=26,lane=9", "A goal's lane is 9, .*expected .*a lane from 0 to 3"),
        ("train dqn --env roundabout --task exit", "'exit' is not a task of Roundabout; expected an exit, one of"),
        ("train dqn --env CartPole-v1 --task left", "'left' is not a task of this world, which has only its own"),
        ("train bc --env coingrid --demonstrators Z", "'Z' is not a CoinGrid task"),
        ("train bc --env coingrid --demonstrators R G R", "The demonstrators are R, G, R, expected each of them once"),
        ("train bc --env highway-multi-task --demos recorded --updates 4 --demonstrators nobody", "'nobody' is not a task"),
        ("train bc --env highway-adversarial --demos recorded --updates 4", "'parked' of Highway cannot be recorded"),
        ("train bc --env roundabout --demos recorded --updates 4 --demonstrators nobody", "'nobody' is not a task of Roundabout"),
        # Demonstrations
        ("train bc --env coingrid --demos online", "coingrid has no demonstrators to watch online, expected recorded or a file"),
        ("train itd --env CartPole-v1 --demos online", "CartPole-v1 has no demonstrators to watch online, expected a file"),
        ("train itd --env CartPole-v1 --demos recorded", "CartPole-v1 has no demonstrators of its own to record, expected a file"),
        ("train bc --env CartPole-v1", "bc learns from demonstrations, expected recorded, online or a file, but found none"),
        ("train bc --env CartPole-v1 --demos nowhere.npz", "nowhere.npz does not exist"),
        ("train bc --env CartPole-v1 --demos three.npz", r"observations have shape \(3,\), but the world's have \(4,\)"),
        ("train sqil --env CartPole-v1 --demos three.npz", r"observations have shape \(3,\), but the world's have \(4,\)"),
        ("train bc --env CartPole-v1 --demos actions.npz", "The demonstrations have 6 actions, but the world has 2"),
        # Models
        ("evaluate nowhere", "nowhere does not exist"),
        ("watch nowhere", "nowhere does not exist"),
        ("adapt nowhere --task R", "nowhere does not exist"),
    ],
)  # fmt: skip
def test_it_is_said_in_one_sentence_and_not_a_file_is_left(here, capsys, arguments, sentence):
    before = files_in(here)
    with pytest.raises(SystemExit) as left:
        cli.main(arguments.split())
    said = capsys.readouterr()
    assert left.value.code == 2 and said.out == "", said.err
    assert said.err.startswith("psiphi: ") and said.err.count("\n") == 1 and re.search(sentence, said.err), said.err
    assert files_in(here) == before


def test_a_function_of_the_users_is_a_world(here):
    world = worlds.find("strange_worlds:fine")
    place = training.place_of(world.env(None, ""), 3)
    assert place.vector is not None and place.vector.num_envs == 3 and place.spec.obs_shape == (3,)
    place.vector.close()


def test_an_id_may_name_its_module_and_leave_its_version_out(here):
    assert [worlds.find(name).name for name in ("strange_worlds:CartPole-v1", "strange_worlds:CartPole")]


def test_the_api_refuses_the_same(here):
    for env, sentence in [
        ("mars", "'mars' is not a world"),
        ("Pendulum-v1", "expected a Discrete space"),
        ("strange_worlds:raises", "the robot is not plugged in"),
        (7, "expected an environment, a function that makes one, or its id"),
        (lambda: 7, "expected a gymnasium.Env"),
        (lambda: gymnasium.make("Pendulum-v1"), "expected discrete ones"),
        (lambda: gymnasium.make("NoSuch-v0"), "cannot be made"),
        (lambda: {}["motor"], "The environment cannot be made: KeyError: 'motor'"),
    ]:
        with pytest.raises(UserError, match=sentence):
            psiphi.DQN(env).learn(8, progress=False)
    demos = Demonstrations.read(here / "three.npz")
    with pytest.raises(UserError, match="sqil learns from demonstrations, expected demos beside the environment"):
        psiphi.SQIL("CartPole-v1")
    with pytest.raises(UserError, match=r"observations have shape \(3,\), but the world's have \(4,\)"):
        psiphi.SQIL("CartPole-v1", demos).learn(8, progress=False)
    with pytest.raises(UserError, match="'Z' is not a CoinGrid task"):
        psiphi.PPO("coingrid", task="Z")


def test_a_run_that_contradicts_itself_is_refused():
    for change, sentence in [
        ({"steps": 8, "updates": 8}, "expected exactly one of them above 0"),
        ({"agent": tiny.run("ppo").agent}, "The config of dqn is a PPOConfig, expected DQNConfig"),
        ({"world": tiny.WORLDS["roundabout"]}, "The config of coingrid is a RoundaboutConfig, expected CoinGridConfig"),
        ({"algorithm": "a2c"}, "'a2c' is not an algorithm"),
        ({"env": "mars"}, "'mars' is not a world"),
    ]:
        with pytest.raises(UserError, match=sentence):
            training.completed(training.changed(tiny.run("dqn"), change))
