"""Table 1 as a curve: how many demonstrated episodes does a reward need, and is it worth more than a policy where the world has changed?"""

from psiphi.experiments.paper.experiment import ALL, Experiment, Figure, Method, Panel, Table, Variant

EPISODES = (1, 3, 10, 30, 100, 500)
"""Demonstrated episodes of each demonstrator."""
_CHANGED = {"world.coins": (1, 1, 4)}
_LEARNER = {"steps": 20_000}


def _rows(episodes: int) -> tuple[Method, ...]:
    shown = {"episodes": episodes}
    word = "episode" if episodes == 1 else "episodes"
    return (
        Method(f"itd-{episodes}", f"ITD, and RL on φ·w, {episodes} {word}", shown, how="imitate", learner=_LEARNER),
        Method(
            f"itd-policy-{episodes}",
            f"ITD's own policy, {episodes} {word}",
            shown,
            how="imitate",
            learner=_LEARNER,
            trained_as=f"itd-{episodes}",
        ),
        Method(f"bc-{episodes}", f"BC, {episodes} {word}", shown, how="imitate", algorithm="bc"),
        Method(f"sqil-{episodes}", f"SQIL, {episodes} {word}", {**shown, "steps": 25_000}, how="imitate", algorithm="sqil"),
        Method(f"gail-{episodes}", f"GAIL, {episodes} {word}", {**shown, "steps": 150_000}, how="imitate", algorithm="gail"),
    )


EXPERIMENT = Experiment(
    name="table-1-curve",
    title="Table 1 as a curve: the return against the number of demonstrated episodes",
    story=(
        "Two demonstrators, one collects red coins and one green, in the world of table 1. Each method is shown so many episodes of "
        "each and is to do what each of them wants. In **the same world** all are judged where they learned. In **a changed world** "
        "there is one red and one green coin and four yellow ones in place of two, two and one: a cloned policy is judged there as it "
        "is, and ITD's reward, inferred in the old world, is learned on anew in the changed one. SQIL and GAIL make their steps in the "
        "old world. **Normalised return** is the true return over that of an RL agent trained on the true reward where all are judged."
    ),
    variants=(
        Variant("coingrid", "CoinGrid, the same world", "coingrid"),
        Variant("coingrid-changed", "CoinGrid, a changed world", "coingrid", moved=_CHANGED),
    ),
    methods=(
        Method("dqn", "RL on the true reward", {"steps": 20_000}, how="imitate", algorithm="dqn"),
        *(method for episodes in EPISODES for method in _rows(episodes)),
    ),
    measures=(),
    tables=(Table("Normalised return, mean of the demonstrators", (("normalised return", Figure("normalised_return", ALL)),)),),
    panels=(Panel("normalised return", (Figure("normalised_return", ALL),)),),
    reference="dqn",
)
