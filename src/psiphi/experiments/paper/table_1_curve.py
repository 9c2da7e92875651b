"""Table 1 as a curve: how many demonstrated episodes does a reward need, and is it worth more than a policy where the world has changed?"""

from typing import Any

from psiphi.experiments.paper.experiment import ALL, CHANGED, Experiment, Figure, Method, Panel, Table, Variant

EPISODES = (1, 3, 10, 30, 100, 500)
"""Demonstrated episodes of each demonstrator."""
LEARNED_EPISODES = (10, 100)
"""The same for ITD with learned cumulants, which costs most."""
_CHANGED = {"world.coins": (1, 1, 4)}
_UNWATCHED = {"evaluate_every": 0}
_LEARNER = {"steps": 8_000, **_UNWATCHED}

COUNTED: dict[str, Any] = {
    "agent.cumulants": "changes",
    "agent.levels": (),
    "agent.ends": "flag",
    "agent.through_psi": True,
    "agent.w_only": True,
    "agent.lapse": 0.1,
    "agent.bc_weight": 1.0,
    "agent.l1_weight": 0.03,
    "agent.itd_weight": 0.0,
    "agent.anchor": 0.0,
    "agent.sparsity": 0.0,
    "agent.torso_hidden": (128, 128),
    "agent.psi_hidden": (64,),
    "updates": 1_500,
}
"""ITD whose cumulants are counts: by how much the number of cells with a kind of thing, or with two at once, changes in a step. Successor
features are of ITD's own random steps, and the demonstrations decide nothing but the preferences."""


def _both(
    name: str, label: str, changes: dict[str, Any], shown: str, episodes: int, only_in: tuple[str, ...] = ()
) -> tuple[Method, Method]:
    """RL on what ITD infers, and ITD's own policy, of one training."""
    how: dict[str, Any] = {"how": "imitate", "learner": _LEARNER, "only_in": only_in}
    changes = {**changes, "episodes": episodes}
    return (
        Method(f"{name}-{episodes}", f"{label}, and RL on φ·w, {shown}", changes, **how),
        Method(f"{name}-policy-{episodes}", f"{label}, its own policy, {shown}", changes, **how, trained_as=f"{name}-{episodes}"),
    )


def _rows(episodes: int) -> tuple[Method, ...]:
    shown = f"{episodes} {'episode' if episodes == 1 else 'episodes'}"
    changes = {**_UNWATCHED, "episodes": episodes}
    where = ("coingrid",) if episodes > 100 else ()
    return (
        *_both("itd-counts", "ITD, counts", COUNTED, shown, episodes, ("coingrid",)),
        *(_both("itd", "ITD, learned cumulants", {}, shown, episodes) if episodes in LEARNED_EPISODES else ()),
        Method(f"bc-{episodes}", f"BC, {shown}", {**changes, "updates": 1_000}, how="imitate", algorithm="bc", only_in=where),
        Method(f"sqil-{episodes}", f"SQIL, {shown}", {**changes, "steps": 4_000}, how="imitate", algorithm="sqil", only_in=where),
        Method(f"gail-{episodes}", f"GAIL, {shown}", {**changes, "steps": 20_000}, how="imitate", algorithm="gail", only_in=where),
    )


_EXITS = ("exr", "nxr")
_WORLDS = (("same world", ""), ("changed world", CHANGED))


def _inferred(metric: str, words: str, demonstrators: tuple[str, ...] = ("R", "G")) -> tuple[tuple[str, Figure], ...]:
    return tuple((f"{words} {who}, {world}", Figure(metric, who + end)) for world, end in _WORLDS for who in demonstrators)


EXPERIMENT = Experiment(
    name="table-1-curve",
    title="Table 1 as a curve: the return against the number of demonstrated episodes",
    story=(
        "Two demonstrators, one collects red coins and one green, in the world of table 1. Each method is shown so many episodes of "
        "each and is to do what each of them wants. In **the same world** all are judged where they learned. In **the changed world** "
        "there is one red and one green coin and four yellow ones in place of two, two and one: a policy is judged there as it "
        "is, and ITD's reward, inferred in the old world, is learned on anew in the changed one. **ITD, counts** has cumulants that are "
        "not learned: by how much the number of cells with a kind of thing changes in a step. **ITD, learned cumulants** is table 1's "
        "ITD. Both make random steps in the old world, SQIL and GAIL their own; all read the board by the same torso. **Normalised "
        "return** is the true return over that of a DQN trained on the true reward where all are judged, with as many steps as the DQN on "
        "the inferred reward. The inferred reward is also judged by itself: its **correlation** with the true one on random steps, what "
        "an exact **planner** on it earns over one on the true reward, and its **STARC** distance to that (0: both order all policies "
        "alike, about 0.7: they have nothing to do with each other), which does not see scale or shaping."
    ),
    variants=(
        Variant("coingrid", "CoinGrid", "coingrid", moved=_CHANGED),
        Variant(
            "roundabout",
            "Roundabout",
            "roundabout",
            moved={"world.ego.s": 125.0},
            known=("starc",),
            demonstrators=_EXITS,
            story=(
                "One demonstrator leaves the roundabout at the first exit (exr) and one at the second (nxr), in the ego's place. In the "
                "changed world the ego starts 19 m before the ring, in place of 64 m. ITD's learners learn together with it, as in table "
                "1; in the changed world PPO learns on what it inferred, with the steps that it has on the true reward. **STARC** "
                "is sampled: on 64 states and 16 random walks after each action in them."
            ),
        ),
    ),
    methods=(
        Method("dqn", "RL on the true reward", _LEARNER, how="imitate", algorithm="dqn"),
        *(method for episodes in EPISODES for method in _rows(episodes)),
    ),
    measures=("phi", "planner", "starc"),
    tables=(
        Table(
            "Normalised return, mean of the demonstrators",
            tuple((world, Figure("normalised_return", ALL + end)) for world, end in _WORLDS),
        ),
        Table("The inferred reward: planner's return", _inferred("planner_return", "planner"), only_in=("coingrid",)),
        Table("The inferred reward: STARC", _inferred("starc", "STARC"), only_in=("coingrid",)),
        Table("The inferred reward: STARC, sampled", _inferred("starc", "STARC", _EXITS), only_in=("roundabout",)),
        Table("The inferred reward: correlation on random steps", _inferred("reward_correlation", "correlation"), only_in=("coingrid",)),
    ),
    panels=tuple(Panel(f"normalised return,\n{world}", (Figure("normalised_return", ALL + end),)) for world, end in _WORLDS),
    reference="dqn",
)
