"""Demonstrations of policies at work: in a Gymnasium environment, or of several agents at once in a PettingZoo parallel environment."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from psiphi import progress as display
from psiphi.demos import rows, validate
from psiphi.demos.demonstrations import AgentId, Demonstrations
from psiphi.errors import UserError

Policy = Callable[[np.ndarray], Any]
"""From an observation to an action, counted from 0."""


def record(
    env: Any, policy: Policy, episodes: int, *, agent: AgentId = "agent", seed: int = 0, key: str | None = None, progress: bool = False
) -> Demonstrations:
    """Episodes of one policy in a Gymnasium environment with discrete actions; rewards are not even looked at.

    Observations are arrays; a discrete one becomes a one-hot vector, of a dictionary only the entry `key` is kept. Only the first reset
    is seeded, so that the episodes differ.
    """
    space = _entry(env.observation_space, key)
    log = _Log(_first_action(env.action_space), int(env.action_space.n))
    with display.shown(f"recording {agent}", done=0, total=episodes, enabled=progress) as bar:
        for episode in range(_at_least_one(episodes)):
            seen, _ = env.reset(seed=seed if episode == 0 else None)
            log.begin(agent, episode, _observation(space, seen, key))
            over = False
            while not over:
                action = int(policy(log.latest(agent)))
                seen, _, terminated, truncated, _ = env.step(log.first + action)
                over = log.step(agent, action, _observation(space, seen, key), terminated, truncated)
            bar.advance(episode + 1, {})
    return log.demonstrations(f"the recording of {agent}")


def record_parallel(
    env: Any, policies: Mapping[str, Policy] | Callable[[str], Policy], episodes: int, *, seed: int = 0, progress: bool = False
) -> Demonstrations:
    """Episodes of all agents of a PettingZoo parallel environment, each under the policy of its name; agents may come and go.

    `policies` is a policy by agent, or a function that gives one. The agents' names are their ids.
    """
    choose = policies if callable(policies) else lambda name: policies[name]
    chosen: dict[str, Policy] = {}
    log = _Log(None, None)
    with display.shown("recording", done=0, total=episodes, enabled=progress) as bar:
        for episode in range(_at_least_one(episodes)):
            seen, _ = env.reset(seed=seed if episode == 0 else None)
            _play(env, log, choose, chosen, episode, seen)
            bar.advance(episode + 1, {})
    return log.demonstrations("the recording")


def _play(env: Any, log: "_Log", choose: Callable[[str], Policy], chosen: dict[str, Policy], episode: int, seen: dict[str, Any]) -> None:
    """One episode of everybody."""
    while env.agents:
        for name in env.agents:
            if name not in chosen:
                chosen[name] = _policy(choose, name)
                log.allow(name, env.action_space(name))
            if not log.is_open(name):
                log.begin(name, episode, _observation(env.observation_space(name), seen[name], None))
        acting = list(env.agents)
        actions = {name: int(chosen[name](log.latest(name))) for name in acting}
        seen, _, terminated, truncated, _ = env.step({name: log.first_of[name] + action for name, action in actions.items()})
        for name in acting:
            obs = _observation(env.observation_space(name), seen[name], None)
            log.step(name, actions[name], obs, terminated[name], truncated[name])
    log.cut()


def _policy(choose: Callable[[str], Policy], name: str) -> Policy:
    try:
        return choose(name)
    except KeyError as error:
        raise UserError(f"There is no policy for agent {name!r}; expected one for each agent of the environment.") from error


def random_policy(num_actions: int, seed: int) -> Policy:
    """Every action equally often."""
    rng = np.random.default_rng(seed)
    return lambda _: int(rng.integers(num_actions))


def sticky_policy(num_actions: int, stay: float, seed: int) -> Policy:
    """The action before with probability `stay`, else any."""
    rng = np.random.default_rng(seed)
    last = [int(rng.integers(num_actions))]

    def act(_: np.ndarray) -> int:
        if rng.random() >= stay:
            last[0] = int(rng.integers(num_actions))
        return last[0]

    return act


class _Log:
    """Episodes as they are played."""

    def __init__(self, first: int | None, num_actions: int | None):
        self.first, self.num_actions = first or 0, num_actions
        self.first_of: dict[str, int] = {}
        self.open: dict[AgentId, tuple[int, list[np.ndarray], list[int]]] = {}
        self.done: list[tuple[AgentId, int, list[np.ndarray], list[int], bool, bool]] = []

    def allow(self, name: str, space: Any) -> None:
        """What an agent of a parallel environment may do."""
        self.first_of[name] = _first_action(space)
        self.num_actions = max(self.num_actions or 0, int(space.n))

    def is_open(self, agent: AgentId) -> bool:
        return agent in self.open

    def begin(self, agent: AgentId, episode: int, obs: np.ndarray) -> None:
        self.open[agent] = episode, [obs], []

    def latest(self, agent: AgentId) -> np.ndarray:
        return self.open[agent][1][-1]

    def step(self, agent: AgentId, action: int, obs: np.ndarray, terminated: bool, truncated: bool) -> bool:
        """One step more; whether it was the episode's last."""
        episode, seen, acted = self.open[agent]
        seen.append(obs)
        acted.append(action)
        if terminated or truncated:
            self.done.append((agent, episode, seen, acted, bool(terminated), bool(truncated)))
            del self.open[agent]
        return bool(terminated or truncated)

    def cut(self) -> None:
        """Whoever is still there has been stopped."""
        self.done += [(agent, episode, seen, acted, False, True) for agent, (episode, seen, acted) in self.open.items() if acted]
        self.open.clear()

    def demonstrations(self, what: str) -> Demonstrations:
        if not self.done:
            raise UserError(f"{what} has no step; expected at least one.")
        agents, episodes, seen, acted, terminated, truncated = zip(*self.done, strict=True)
        observed = [np.stack(x) if len({o.shape for o in x}) == 1 else x for x in seen]
        given = rows.from_lists(observed, acted, agents, episodes, terminated, truncated, self.num_actions, (), file=what)
        return validate.checked(given)


def _at_least_one(episodes: int) -> int:
    if episodes < 1:
        raise UserError(f"episodes is {episodes}, expected at least 1.")
    return episodes


def _first_action(space: Any) -> int:
    from gymnasium.spaces import Discrete

    if not isinstance(space, Discrete):
        raise UserError(f"The environment's actions are {space}, expected discrete ones.")
    return int(space.start)


def _entry(space: Any, key: str | None) -> Any:
    """The space of what is recorded."""
    from gymnasium.spaces import Box, Dict, Discrete

    if isinstance(space, Dict):
        if key not in space.spaces:
            raise UserError(f"The environment's observations have the parts {', '.join(map(repr, space.spaces))}; one has to be chosen.")
        space = space.spaces[key]
    if not isinstance(space, Box | Discrete):
        raise UserError(f"The environment's observations are {space}, expected arrays of numbers (Box) or a number (Discrete).")
    return space


def _observation(space: Any, seen: Any, key: str | None) -> np.ndarray:
    from gymnasium.spaces import Discrete

    value = seen[key] if key is not None and isinstance(seen, Mapping) else seen
    if isinstance(space, Discrete):
        return (np.arange(space.n) == int(value) - space.start).astype(np.uint8)
    array = np.array(value)  # environments may reuse theirs
    return array.reshape(1) if array.ndim == 0 else array
