"""Table 2 on Highway, beyond the paper: a new driving goal after one rewarded episode."""

from psiphi.experiments.paper.experiment import ALL, FEW, SOME, Experiment, Figure, Method, Panel, Table, Variant

NEW = tuple(f"speed={speed},lane={lane}" for lane, speeds in enumerate(((22, 26), (22, 30), (26, 30), (22, 30))) for speed in speeds)
"""Eight goals that no other car has, each with a speed and a lane that some other car has."""
_GIVEN = {"cumulants": "given", "through_psi": True, "sparsity": 0.0}
_WATCHES = {"updates_per_rollout": 2, **{f"agent.{name}": value for name, value in {**_GIVEN, "cross_policy_on": "both"}.items()}}
_ALONE = {"demos": "none", "updates_per_rollout": 4, **{f"agent.itd.{name}": value for name, value in _GIVEN.items()}}
_IMAGINES = {"agent.imagined": 8, "agent.pursue": 0.95}
_ONLY_IMAGINES = {**_IMAGINES, "updates_per_rollout": 2, "agent.bc_weight": 0.0, "agent.itd_weight": 0.0, "agent.cross_batch": 256}
_ONLY_IMAGINES |= {f"agent.{name}": value for name, value in _GIVEN.items()}
_RIDGE = {"inference": "ridge", "temperature": 0.0}
_LIKE_IMAGINED = {"inference": "imagined", "temperature": 0.0}
_LEAST_SQUARES = {"inference": "least-squares", "kappa": 0.0, "temperature": 0.0}

EXPERIMENT = Experiment(
    name="table-2-highway",
    title="Table 2 on Highway: a new driving goal after one episode",
    story=(
        "The ego drives at random among others, sees what they do and is paid nothing, for 32,000 steps. Then it is paid for one of eight "
        "goals, a target speed and a lane, that no other car has. **First episode** is the return of the first paid episode, in which the "
        "goal is inferred after every step; **after n** is the return of a fresh episode after n paid ones. No gradient is taken. "
        "**PsiPhi-learning** is ITD with cumulants that are given: how near each lane is, speed, place, a car close ahead, the end, a "
        "constant. **Learned cumulants** is ITD as on Highway elsewhere. **Watching nothing** has the same given cumulants and one head, "
        "after 32,000 steps that were paid for the ego's own goal. **Imagined goals** adds eight heads for speeds and lanes drawn at "
        "random, learned by Q-learning on psi without a reward of the world; the ego pursues them in turn and does not drive at random. "
        "**Imagined goals, watching nothing** is the same with these heads only and no demonstrations. **DQN, moved** learned the ego's "
        "own goal for 32,000 steps; in its first episode it goes on as before, then it goes on learning. **Best demonstrator** is IDM with "
        "the one of the others' goals that earns most. **Share** is the return over that of a DQN that learned the "
        "very goal for 32,000 paid steps."
    ),
    variants=(Variant("highway-multi-task", "Highway, multi-task", "highway-multi-task"),),
    methods=(
        Method("dqn", "DQN, 32,000 paid steps on the goal", how="goals", algorithm="dqn"),
        Method("psiphi", "PsiPhi-learning", _WATCHES, how="goals", few_shot=_RIDGE),
        Method("psiphi-imagined", "PsiPhi-learning, imagined goals", {**_WATCHES, **_IMAGINES}, how="goals", few_shot=_LIKE_IMAGINED),
        Method("psiphi-learned", "PsiPhi-learning, learned cumulants", how="goals", few_shot=_LEAST_SQUARES),
        Method("psiphi-alone", "PsiPhi-learning, watching nothing", _ALONE, how="goals", algorithm="psiphi", few_shot=_RIDGE),
        Method("imagined-alone", "Imagined goals, watching nothing", _ONLY_IMAGINES, how="goals", few_shot=_LIKE_IMAGINED),
        Method("dqn-moved", "DQN, moved from another goal", how="goals", algorithm="dqn", learner={"agent.epsilon_start": 0.02}),
        Method("demonstrator", "Best demonstrator (IDM)", how="goals", algorithm="idm", trains=False),
    ),
    measures=(),
    tables=(
        Table(
            "Share of the DQN's return, mean over the eight goals",
            (
                ("first episode", Figure("normalised_return", ALL, 0)),
                ("after 1", Figure("normalised_return", ALL, FEW)),
                ("after 10", Figure("normalised_return", ALL, SOME)),
                ("without adapting", Figure("normalised_return", ALL)),
                ("return", Figure("return", ALL)),
            ),
        ),
        Table("Share after one episode, by goal", tuple((goal, Figure("normalised_return", goal, FEW)) for goal in NEW)),
    ),
    panels=(
        Panel("share of the DQN's return\nafter one episode", (Figure("normalised_return", ALL, FEW),)),
        Panel("the same without (30, 3),\nthe control's own goal", tuple(Figure("normalised_return", goal, FEW) for goal in NEW[:-1])),
    ),
    goals=NEW,
    reference="dqn",
)
