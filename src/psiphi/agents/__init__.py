"""The algorithms by name: each is one file here and one line of `ALGORITHMS`, which is all that the rest of the library knows of it."""

from collections.abc import Callable
from typing import Any, NamedTuple

from jax import Array

from psiphi.agents import bc, dqn, gail, guided, itd, ppo, psiphi, sqil, together
from psiphi.errors import UserError
from psiphi.spaces import Space
from psiphi.types import Agent, EnvSpec


def _always(config: Any) -> bool:
    del config
    return True


def _never(config: Any) -> bool:
    del config
    return False


def _one_step(config: Any) -> int:
    del config
    return 1


def _best(config: Any) -> float:
    del config
    return 0.0


def _clones(config: Any) -> bool:
    return config.bc_weight > 0


def _from_network(state: Any, net: Any) -> Any:
    """The network, and the copy that follows it."""
    copy = "average" if hasattr(state, "average") else "target"
    return state._replace(**{"net": net, copy: net})


class Algorithm(NamedTuple):
    """What a run must know of an algorithm."""

    name: str
    """As users call it."""
    words: str
    """One plain sentence for help texts."""
    config: type
    """Its config; the defaults need no arguments."""
    make: Callable[..., Agent]
    """``make(config, spec, num_demonstrators, pace)``"""
    net: Callable[[Any, EnvSpec, int, Array], Any]
    """``net(config, spec, num_demonstrators, key)``: what is deployed, untrained; for shapes when a file is read."""
    deployed: Callable[[Any, Any], Any]
    """``deployed(config, state)``: what is kept of a training: ITD's and PsiPhi's network, an `ActionNet` (of BC, one per demonstrator,
    stacked), or both."""
    watches: Callable[[Any], bool]
    """Whether, with this config, it learns from demonstrations."""
    paid: Callable[[Any], bool]
    """Whether, with this config, it learns from rewards."""
    acts: bool = True
    """Whether it makes steps of its own; if not, it learns offline."""
    offline: Callable[[Any], bool] = _never
    """Whether, with this config, it can do without them: ITD's are random, and it needs none with `cross_policy_on="pooled"`."""
    rollout_length: Callable[[Any], int] = _one_step
    """Steps of each environment before an update."""
    replays: bool = True
    """Whether it remembers its steps, so that some may be made before the first update."""
    judged_at: Callable[[Any], float] = _best
    """The temperature at which actions are drawn from the deployed network (`gpi.draw`) when it is judged; 0: the best is taken."""
    tells_apart: bool = False
    """Whether it has a policy for each demonstrator, or one policy in all."""
    imitates: Callable[[Any, Any, int], Callable[[Array, Array], Array]] | None = None
    """``imitates(config, state, k)``: demonstrator k's policy in a training state, where they are told apart."""
    likelihoods: bool = False
    """Whether the softmax of what its networks say is how likely each action is."""
    started: Callable[[Any, Any], Any] = _from_network
    """``started(state, net)``: a state before training with a trained network in it."""
    watches_always: bool = False
    """Whether it can do nothing without demonstrations."""
    successor_features: bool = False
    """Whether what is deployed has successor features: then it infers rewards and can act on any task."""
    space: Space = {}
    """Where `psiphi tune` looks for the numbers of its config, by name; all of them can be changed while a program runs."""
    paper: Callable[[], Any] | None = None
    """The paper's losses and numbers as printed, if there are any."""


ALGORITHMS: dict[str, Algorithm] = {
    algorithm.name: algorithm
    for algorithm in (
        Algorithm(
            "itd",
            "Inverse temporal-difference learning: what does each demonstrator want? It sees no rewards.",
            itd.ITDConfig,
            itd.make,
            space=itd.SPACE,
            net=lambda config, spec, agents, key: itd.initial_net(config, spec, agents + config.imagined, key),
            deployed=itd.deployed,
            watches=itd.watches,
            paid=_never,
            offline=lambda config: config.cross_policy_on == "pooled" or not itd.uses_any_steps(config),
            tells_apart=True,
            imitates=itd.imitates,
            watches_always=True,
            successor_features=True,
            paper=itd.paper,
        ),
        Algorithm(
            "psiphi",
            "PsiPhi-learning: ITD, and a task of one's own with rewards.",
            psiphi.PsiPhiConfig,
            psiphi.make,
            space=psiphi.SPACE,
            net=lambda config, spec, agents, key: itd.initial_net(config.itd, spec, agents + 1, key),
            deployed=psiphi.deployed,
            watches=lambda config: config.itd.bc_weight > 0 or config.itd.itd_weight > 0,
            paid=_always,
            judged_at=lambda config: config.temperature,
            successor_features=True,
            paper=psiphi.paper,
        ),
        Algorithm(
            "dqn",
            "Deep Q-learning; with bc_weight above 0 it also clones demonstrators on a shared torso.",
            dqn.DQNConfig,
            dqn.make,
            space=dqn.SPACE,
            net=dqn.initial_net,
            deployed=dqn.deployed,
            watches=_clones,
            paid=_always,
            paper=dqn.paper,
        ),
        Algorithm(
            "guided-dqn",
            "Deep Q-learning that now and then follows clones of the demonstrators, which share nothing with it.",
            guided.GuidedConfig,
            guided.make,
            space=guided.SPACE,
            net=lambda config, spec, agents, key: dqn.initial_net(config.dqn, spec, 0, key),
            deployed=lambda config, state: dqn.deployed(config.dqn, state.learner),
            watches=_always,
            paid=_always,
            started=lambda state, net: state._replace(learner=_from_network(state.learner, net)),
            watches_always=True,
        ),
        Algorithm(
            "bc",
            "Behaviour cloning: one policy per demonstrator, offline.",
            bc.BCConfig,
            bc.make,
            space=bc.SPACE,
            net=bc.initial_net,
            deployed=bc.deployed,
            watches=_always,
            paid=_never,
            acts=False,
            replays=False,
            tells_apart=True,
            imitates=bc.imitates,
            likelihoods=True,
            watches_always=True,
        ),
        Algorithm(
            "sqil",
            "Soft Q imitation learning: one policy, of one demonstrator or of all of them.",
            sqil.SQILConfig,
            sqil.make,
            space=sqil.SPACE,
            net=lambda config, spec, agents, key: dqn.initial_net(config.dqn, spec, 0, key),
            deployed=lambda config, state: dqn.deployed(config.dqn, state),
            watches=_always,
            paid=lambda config: config.env_reward,
            judged_at=lambda config: 0.0 if config.greedy else config.temperature,
            watches_always=True,
            paper=sqil.paper,
        ),
        Algorithm(
            "gail",
            "Generative adversarial imitation learning with PPO: one policy, of one demonstrator or of all of them.",
            gail.GAILConfig,
            gail.make,
            space=gail.SPACE,
            net=lambda config, spec, agents, key: ppo.initial_net(config.ppo, spec, 0, key).policy,
            deployed=gail.deployed,
            watches=lambda config: not config.control,
            paid=_never,
            rollout_length=lambda config: config.ppo.rollout_length,
            replays=False,
            judged_at=lambda config: config.ppo.temperature,
            started=lambda state, net: state._replace(ppo=state.ppo._replace(net=ppo.from_cloned(state.ppo.net, net))),
            watches_always=True,
        ),
        Algorithm(
            "ppo",
            "Proximal policy optimisation; with bc_weight above 0 it also clones demonstrators on a shared torso.",
            ppo.PPOConfig,
            ppo.make,
            space=ppo.SPACE,
            net=lambda config, spec, agents, key: ppo.initial_net(config, spec, agents, key).policy,
            deployed=ppo.deployed,
            watches=_clones,
            paid=_always,
            rollout_length=lambda config: config.rollout_length,
            replays=False,
            judged_at=lambda config: config.temperature,
            started=lambda state, net: state._replace(net=ppo.from_cloned(state.net, net)),
        ),
        Algorithm(
            "itd-dqn",
            "ITD and a DQN per demonstrator, which is paid what ITD infers, learning together; the world's rewards are not read.",
            together.TogetherConfig,
            together.make,
            space=together.SPACE,
            net=together.initial_nets,
            deployed=together.deployed,
            watches=_always,
            paid=_never,
            tells_apart=True,
            imitates=together.imitates,
            watches_always=True,
        ),
    )
}
"""Every algorithm by its name."""


def algorithm_of(config: Any) -> Algorithm:
    """The algorithm whose config this is."""
    for algorithm in ALGORITHMS.values():
        if type(config) is algorithm.config:
            return algorithm
    raise UserError(f"{type(config).__name__} is no algorithm's config; expected the config of one of {', '.join(ALGORITHMS)}.")
