"""Others obey the ego's table of actions: what they show are steps of the ego's own world."""

import dataclasses
import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from psiphi import replay, training
from psiphi.envs import highway, roundabout
from psiphi.envs.highway import HighwayConfig, goal
from psiphi.envs.roundabout import Arrival, RoundaboutConfig
from psiphi.errors import UserError
from psiphi.experiments import cells, paper, reproduce
from psiphi.experiments.measures import Unit
from psiphi.experiments.runs import Effort
from psiphi.types import Demonstration, Demos, EnvSpec
from psiphi.worlds import highway as highway_world

WORLDS = {"highway": (highway, HighwayConfig()), "roundabout": (roundabout, RoundaboutConfig())}
STEPS = 12


@functools.cache
def driven(name: str, same: bool):
    """Episodes of IDM in the ego's place: the states before each step, what was shown in it, and the states after it."""
    module, config = WORLDS[name]
    config = dataclasses.replace(config, same_actions=same)
    env = module.make(config)

    def episode(key):
        def step(state, _):
            after, reached = env.step(state, module.expert(config, state), key)
            return after, (state, reached, after)

        return jax.lax.scan(step, env.reset(key)[0], length=STEPS)[1]

    return config, env, jax.jit(jax.vmap(episode))(jax.random.split(jax.random.key(0), 8))


def in_the_egos_seat(state, car):
    """The same moment with a car's and the ego's places in the list exchanged."""
    order = jnp.arange(len(state.kind)).at[0].set(car).at[car].set(0)
    seated = jax.tree.map(lambda x: x[order], (state.cars, state.drivers))
    return state._replace(cars=seated[0], drivers=seated[1])


def replayed(name: str, same: bool):
    """How far what each watched car sees next lies from what the ego would see there, had it done what that car is said to do."""
    _, env, (states, reached, _) = driven(name, same)
    module, config = WORLDS[name]
    road = highway.roads.highway(config.lanes, highway.ROAD_LENGTH) if name == "highway" else roundabout.ROAD

    def one(state, who, shown):
        number = state.kind if config.demonstrator == "goal" else None
        watched = module.drive.watch(road, state.cars, number, config.observed, config.order)

        def each(car, k, action, next_obs):
            _, there = env.step(in_the_egos_seat(state, car), action, jax.random.key(0))
            return jnp.where((k >= 0) & ~there.extras["crashed"], jnp.max(jnp.abs(there.obs - next_obs)), 0.0)

        return jax.vmap(each)(watched.who, who, shown.action, shown.next_obs)

    gaps = jax.jit(jax.vmap(jax.vmap(one)))(states, reached.extras["demonstrator"], reached.extras["demonstration"])
    assert (np.asarray(reached.extras["demonstrator"]) >= 0).sum() > 100
    return np.asarray(gaps)


@pytest.mark.parametrize("name", WORLDS)
def test_a_demonstrated_action_leads_the_ego_to_the_demonstrated_next_state(name):
    assert replayed(name, True).max() < 1e-4


@pytest.mark.parametrize("name", WORLDS)
def test_by_continuous_commands_it_does_not(name):
    assert (replayed(name, False) > 1e-2).mean() > 0.2


@pytest.mark.parametrize("name", WORLDS)
def test_all_that_drive_hold_an_entry_of_the_table_and_parked_cars_stay(name):
    config, _, (states, _, after) = driven(name, True)
    moved = np.asarray(after.cars.speed) - np.asarray(states.cars.speed)
    fine = ~np.asarray(after.cars.crashed)
    allowed = np.array(config.table)[:, 0] * config.frames * config.dt
    assert np.abs(moved[fine][:, None] - allowed).min(axis=1).max() < 1e-3
    parked = highway.adversarial()
    env = highway.make(dataclasses.replace(parked, cars=8, max_steps=10))
    state, _ = jax.jit(env.reset)(jax.random.key(0))
    later, _ = jax.jit(env.step)(state, jnp.asarray(0), jax.random.key(0))
    assert (np.asarray(later.cars.speed[1:]) == 0).all()


@pytest.mark.slow
@pytest.mark.parametrize(("name", "limit"), [("highway", 0.01), ("roundabout", 0.05)])
def test_idm_stays_drivable_and_others_cover_the_speeds_at_which_it_drives(name, limit):
    """Failures of IDM in the ego's place over 512 episodes, and the speeds of all within the middle 98 %."""
    module, config = WORLDS[name]
    env = module.make(config)

    def episode(key):
        def step(now, _):
            state, running = now
            after, reached = env.step(state, module.expert(config, state), key)
            arrived = reached.extras.get("arrived", jnp.zeros((), bool))
            failed = running & (reached.discount == 0) & ~arrived
            return (after, running & ~reached.last), (failed, running, after.cars.speed)

        return jax.lax.scan(step, (env.reset(key)[0], jnp.ones((), bool)), length=config.max_steps)[1]

    failed, running, speed = jax.tree.map(np.asarray, jax.jit(jax.vmap(episode))(jax.random.split(jax.random.key(1000), 512)))
    assert failed.any(axis=1).mean() < limit
    mine, others = speed[..., 0][running], speed[..., 1:][running]
    assert np.percentile(others, 1) < np.percentile(mine, 1) and np.percentile(mine, 99) < np.percentile(others, 99)


# --- What is published stays what it was ---------------------------------------------------------------------------------

PUBLISHED = ("figure-3", "figure-sensitivity", "figure-imitation", "table-1")


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_cells_are_of_the_world_that_their_experiment_asks_for(name, request):
    directory = request.config.rootpath / "results" / name
    what, there = paper.EXPERIMENTS[name], cells.read(directory)
    for env, method in {(cell["env"], cell["method"]) for cell in there}:
        (variant,) = [one for one in what.variants if one.name == env]
        (learner,) = [one for one in what.methods if one.name == method]
        asked = json.loads(json.dumps(reproduce.config_of(what, Unit(variant, learner, 0), Effort())))
        made = [cell["config"] for cell in there if (cell["env"], cell["method"]) == (env, method)]
        assert method == "idm" or all(cells.same(config["world"], asked["world"]) for config in made)


def test_the_learning_worlds_obey_and_highway_envs_do_not():
    assert all(config.same_actions for config in (*highway_world.SCENARIOS.values(), RoundaboutConfig()))
    assert not highway.like_highway_env().same_actions and not roundabout.like_highway_env().same_actions


# --- Bad input -----------------------------------------------------------------------------------------------------------


def test_an_action_that_the_table_does_not_have_gets_one_sentence():
    spec = EnvSpec((2,), jnp.float32, len(HighwayConfig().table))
    step = Demonstration(jnp.zeros((1, 3, 2)), jnp.full((1, 3), 9), jnp.ones((1, 3)), jnp.zeros((1, 3, 2)), jnp.zeros((1, 3), jnp.int32))
    with pytest.raises(UserError, match="9") as caught:
        replay.check_demos(Demos(step, jnp.array([3])), spec)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: HighwayConfig(goals=(goal(26, 4),)), "A goal's lane is 4, expected a lane from 0 to 3."),
        (lambda: HighwayConfig(goals=(goal(41, 1),)), "A goal's speed is .41, 41., expected a range within 0 and 40 m/s."),
        (lambda: HighwayConfig(table=((1.0, float("nan")),)), "Highway's table has the action .1.0, nan., expected an acceleration within"),
        (lambda: HighwayConfig(table=((1.0, 2.0),)), "Highway's table has the action .1.0, 2.0., expected an acceleration within 6"),
        (lambda: RoundaboutConfig(table=((9.0, 0.0),)), "Roundabout's table has the action .9.0, 0.0., expected an acceleration within 6"),
        (lambda: RoundaboutConfig(ego_target_speed=50.0), "Roundabout's ego_target_speed is 50.0, expected a speed from 0 to 40."),
        (lambda: RoundaboutConfig(ego=Arrival("ser", "ses", 0, 80.0, 60.0)), "A car starts at 60.0 m/s, expected a speed from 0 to 40."),
        (lambda: training.completed(training.default_run("dqn", "highway-multi-task", task="speed=26,lane=9")), "A goal's lane is 9"),
    ],
)  # fmt: skip
def test_what_no_car_can_do_gets_one_sentence(make, message):
    with pytest.raises(UserError, match=message) as caught:
        make()
    assert "\n" not in str(caught.value)
