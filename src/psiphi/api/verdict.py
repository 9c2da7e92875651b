"""Can an inferred reward be believed? A judgement per agent that needs no labels: it warns, and never praises.

No score without labels is known that predicts how well a planner does on an inferred reward. What is known are ways to fail that leave
traces in the logs: policies that predict nothing, ids that mean nothing, refits that disagree. So every measure has a threshold below (or
above) which there is a sentence and what to do about it; on the other side of it nothing is said, as nothing is known.
"""

import dataclasses
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from psiphi import printable
from psiphi.demos.demonstrations import AgentId
from psiphi.errors import UserError

# --- Thresholds -------------------------------------------------------------------------------------------------------------------

MARGIN = 0.01
"""Nats per step by which a policy has to be better than a simpler one, at least: a rule of thumb, a little above what refits differ by."""
HABIT = 0.5
"""An agent whose habits alone predict it to this share of log A nats has next to one action: no policy is better. A rule of thumb."""
MARGIN_SHARE = 0.02
"""The same as a share of the policy's own nats; the larger of the two counts. A rule of thumb."""
CLONE_MARGIN = 0.05
"""Nats per step by which a plain clone may be better before that is worth a sentence: a rule of thumb."""
CLONE_MARGIN_SHARE = 0.1
"""The same as a share of the clone's nats; the larger of the two counts. A rule of thumb."""
AGREE = 0.5
"""Refits whose rewards correlate less than this disagree. A rule of thumb, and a weak one: agreement of two seeds correlated by .22 with
how well a planner did, and trusted an agent with .20 of the optimum."""
OUTDONE = 0.2
"""A larger share of others may not earn more on an agent's reward than itself. Measured in five small worlds with known truth: 3 of 132
logs of an agent are above on its true reward, all are on another agent's and on its own turned round. There are other ways to be wrong."""
THIN = 0.75
"""Coverage below this rests on guesses to a good part: a rule of thumb, the one of `psiphi.api.coverage`."""
AVOIDED = 0.4
"""A plan on a reward, without caution, that avoids less than this share of what the agent would rather not do hardly leads where the agent
goes: the reward is another's, or turned round. Rewards that are right have .5 to 1 on tuning seeds; chance has 0."""
HANDED = 0.9
"""The same of what would be handed out, with caution. Below, the behaviour is handed out instead (`psiphi.api.judging`). On tuning seeds
rewards with which plans succeed have .93 to 1, and one with which a plan failed had .82."""
IDS = 4.0
"""Standard deviations by which ids must predict actions better than ids drawn by lot, over all agents. In small worlds, shuffled ones have
more than 3 in one log of a hundred; right ones have 5 to 54 with 60 episodes of each agent, and -0 to 13 with 10: too few to tell."""
FAMILIAR, THIN_NATS = 0.5, 0.6
"""An agent that is seldom twice in the same state, and whose held-out actions surprise by more than this share of log A, is not known."""
EXPLAINED = 0.5
"""Share of the values' variance that a simple reward should explain on held-out steps, at least: a rule of thumb."""
SIGNAL = 0.1
"""Size of the reward over the spread of the values, below which a reward has collapsed. Measured with ITD on CoinGrid, where healthy fits
have more than .4 and collapsed ones about 0."""
LAPSES = 0.5
"""An agent that acts at random in a larger share of its steps tells more of chance than of what it wants: a rule of thumb."""
FEW_HELD_OUT = 20
"""Fewer held-out steps than this test nothing: a rule of thumb."""
EPISODES = 2
"""With fewer there is no episode to hold out and nothing to compare."""
FEW_EPISODES, FEW_STEPS = 10, 100
"""With fewer episodes and fewer held-out steps, plans fail that nothing else warns of: with 5 episodes one in four in a small world."""
HORIZON = 0.25
"""The share of a median episode that the discount should look ahead, at least: a rule of thumb."""
DIRECTIONS = 1.5
"""Two agents or more whose cumulants have fewer effective directions than this share a single one: a rule of thumb."""

MOST_ROWS = 20
"""A table shows so many agents; those with most doubts first, if there are more."""
MOST_NAMED = 10
"""A sentence names so many agents."""

NOTES = (
    "What everybody walks around leaves no trace: a dislike that all agents share and never have to pay for is not found.",
    "A reward for reaching an end and a cost for every step before it lead to the same logs: which of the two it is remains open.",
    "Sizes are known only where mistakes are graded, small ones made more often than large ones; else logs tell what is preferred, "
    "not by how much.",
)
"""What can never be known from logs alone."""

GRAVE = frozenset({"shuffled-ids"})
"""Findings about the whole log that make every agent's reward doubtful."""

WARNINGS = frozenset(
    {
        "one-episode",
        "few-episodes",
        "no-better-than-majority",
        "outdone",
        "collapsed",
        "unexplained-behaviour",
        "turned-round",
        "hardly-seen",
    }
)
"""Findings about an agent that make its reward doubtful: those that go with plans that fail, in worlds with known truth. All others are
notes: worth knowing for who reads the reward, and about as frequent where plans succeed."""


# --- What is judged ----------------------------------------------------------------------------------------------------------------


class Evidence(NamedTuple):
    """All that a verdict rests on. Fields up to `lapse` have an entry per agent; nan means not measured. See `psiphi.api.evidence`."""

    agents: tuple[AgentId, ...]
    nll: np.ndarray
    """Nats per held-out step of the agent's own policy."""
    majority: np.ndarray
    """The same of always predicting how often it does what."""
    count: np.ndarray
    """The same of a table of its actions by observation."""
    clone: np.ndarray
    """The same of a plain behaviour clone."""
    told_apart: np.ndarray
    """By how many nats its own policy predicts it better than the best of the others'."""
    one_for_all: np.ndarray
    """The same against the average of all policies."""
    outdone: np.ndarray
    """Share of other agents who earn more on its reward than itself."""
    agreement: np.ndarray
    """Mean correlation of refits of its reward, on the others' steps."""
    coverage: np.ndarray
    """Share of the others' states in which some agent was seen to do what it would do."""
    familiar: np.ndarray
    """Share of its steps in states in which another of its episodes was."""
    avoided: np.ndarray
    """Share of what it would rather not do that a plan on its reward avoids, planned anew in the logs' own world; 0 is chance."""
    handed: np.ndarray
    """The same of what is handed out, with its caution."""
    explained: np.ndarray
    """R^2 of the simple reward for the values, on held-out steps."""
    signal: np.ndarray
    """Size of the reward over the spread of the values."""
    held_out_steps: np.ndarray
    episodes: np.ndarray
    consistency: np.ndarray
    """Inverse temperature of its policy. Shown but not judged: its size depends on the unit of the reward."""
    lapse: np.ndarray
    """Share of steps in which it acts at random."""
    rank: float
    """Effective number of directions of the cumulants."""
    gamma: float
    median_length: float
    """Of the episodes, in steps."""
    terminated_share: float
    """Of the episodes, those with a true end."""
    cumulants: str
    """Their kinds, with commas between them: "changes, end, constant", or "learned", say."""
    num_actions: int
    ids: float = math.nan
    """By how many standard deviations ids tell more of what is done than ids drawn by lot."""


FIGURES = Evidence._fields[1 : Evidence._fields.index("lapse") + 1]
"""The fields with an entry per agent."""


def unmeasured(agents: Sequence[AgentId], num_actions: int) -> Evidence:
    """Evidence of nothing yet; ``unmeasured(...)._replace(nll=...)`` is evidence of something."""
    nothing = {name: np.full(len(agents), np.nan) for name in FIGURES}
    facts: dict[str, Any] = dict(rank=math.nan, gamma=math.nan, median_length=math.nan, terminated_share=math.nan, cumulants="")
    return Evidence(agents=tuple(agents), **nothing, **facts, num_actions=num_actions)


# --- What is found -----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Finding:
    """One reason for doubt."""

    agent: AgentId | None
    """Whose reward is in doubt; None: it is about the whole log."""
    name: str
    """Short, in kebab-case; the same for every agent."""
    figure: float
    """What was measured."""
    threshold: float
    """On the other side of which nothing would be said."""
    sentence: str
    """What is the matter."""
    advice: str
    """What to do about it."""

    @property
    def grave(self) -> bool:
        """Whether it makes every agent doubtful."""
        return self.agent is None and self.name in GRAVE

    @property
    def warns(self) -> bool:
        """Whether it makes its agent, or every agent, doubtful; what does not is a note."""
        return self.grave or (self.agent is not None and self.name in WARNINGS)


@dataclass(frozen=True)
class Verdict:
    """What there is to be doubted about inferred rewards, by agent; print it. That nothing was found does not make a reward right."""

    agents: tuple[AgentId, ...]
    findings: tuple[Finding, ...]
    figures: Mapping[str, list[float]]
    """All the evidence by name, an entry per agent; nan where it was not measured."""

    @property
    def notes(self) -> tuple[str, ...]:
        """What can never be known from logs alone, whatever was found."""
        return NOTES

    @property
    def doubtful(self) -> tuple[AgentId, ...]:
        """The agents with a warning of their own; all of them if there is a grave one about the whole log."""
        everybody = any(finding.grave for finding in self.findings)
        own = {finding.agent for finding in self.findings if finding.agent is not None and finding.warns}
        return tuple(agent for agent in self.agents if everybody or agent in own)

    def of(self, agent: AgentId) -> tuple[Finding, ...]:
        """All that was found about an agent, warnings and notes, and what is grave about the whole log."""
        if agent not in self.agents:
            raise UserError(f"There is no agent {agent!r}; expected one of {_named(self.agents)}.")
        return tuple(finding for finding in self.findings if finding.grave or (finding.agent is not None and finding.agent == agent))

    def lines(self) -> list[str]:
        """For the top of a report, in Markdown."""
        return [
            f"**{printable.markdown(self.headline, 1_000)}**",
            "",
            *(f"- {line}" for line in self._aggregated("**")),
            *([""] if self.findings else []),
            "What logs alone never tell:",
            "",
            *(f"- {note}" for note in self.notes),
        ]

    def __str__(self) -> str:
        return "\n".join(
            [
                self._table(),
                "",
                printable.sentence(self.headline),
                *(f"- {line}" for line in self._aggregated("")),
                "What logs alone never tell:",
            ]
            + [f"- {note}" for note in self.notes]
        )

    @property
    def headline(self) -> str:
        """The verdict in one sentence."""
        if self.doubtful:
            return f"Doubtful: the rewards of {len(self.doubtful)} of {len(self.agents)} agents, {_named(self.doubtful)}."
        if self.findings:
            return "Nothing was found to warn of, which does not show that the rewards are right; what is worth knowing:"
        return "Nothing was found to warn of, which does not show that the rewards are right."

    def _aggregated(self, mark: str) -> list[str]:
        """A line for each name; where several agents share one, their number and the one that is farthest on the wrong side."""
        groups: dict[tuple[str, bool], list[Finding]] = {}
        for finding in self.findings:
            groups.setdefault((finding.name, finding.agent is None), []).append(finding)
        lines = []
        for (name, _), group in sorted(groups.items(), key=lambda item: not item[1][0].warns):
            example = max(group, key=lambda finding: abs(finding.figure - finding.threshold))
            several = f" ({len(group)} of {len(self.agents)} agents, {example.agent!r} most)" if len(group) > 1 else ""
            said = f"{several}: {example.sentence} {example.advice}"
            grade = "warning" if example.warns else "note"
            lines.append(f"{mark}{grade}: {name}{mark}{printable.markdown(said, 1_000) if mark else printable.sentence(said)}")
        return lines

    def _table(self) -> str:
        own, grave = Counter(finding.agent for finding in self.findings if finding.warns), sum(finding.grave for finding in self.findings)
        doubts = [own[agent] + grave for agent in self.agents]
        measured = [name for name in FIGURES if name in self.figures and not all(map(math.isnan, self.figures[name]))]
        order = range(len(self.agents))
        if len(self.agents) > MOST_ROWS:
            order = sorted(order, key=lambda k: -doubts[k])[:MOST_ROWS]
        header = ["agent", *(name.replace("_", " ") for name in measured), "warnings"]
        rows = [[printable.terminal(self.agents[k]), *(_number(self.figures[name][k]) for name in measured), str(doubts[k])] for k in order]
        left_out = len(self.agents) - len(rows)
        return _columns(header, rows) + (f"\n... and {left_out} more agents" if left_out else "")

    def joined(self, newcomers: "Verdict") -> "Verdict":
        """With what was found about further agents; what was found about their log as a whole is not about the log before."""
        of_agents = tuple(finding for finding in newcomers.findings if finding.agent is not None)
        unknown = [math.nan] * len(self.agents)
        figures = {name: [*self.figures.get(name, unknown), *row] for name, row in newcomers.figures.items()}
        return Verdict((*self.agents, *newcomers.agents), self.findings + of_agents, figures)

    # --- As JSON ----------------------------------------------------------------------------------------------------------

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values; null where a number is not known."""
        return {
            "agents": list(self.agents),
            "findings": [
                {**vars(finding), "figure": _plain(finding.figure), "threshold": _plain(finding.threshold)} for finding in self.findings
            ],
            "figures": {name: [_plain(x) for x in row] for name, row in self.figures.items()},
        }

    @classmethod
    def from_json(cls, value: Any, name: str = "the verdict") -> "Verdict":
        """What `to_json` gave, all of it checked; `name` is what errors call it."""
        if not (isinstance(value, dict) and set(value) == {"agents", "findings", "figures"}):
            raise _unfit(name, value, "an object of agents, findings and figures")
        agents, findings, figures = value["agents"], value["findings"], value["figures"]
        one_type = isinstance(agents, list) and set(map(type, agents)) in ({str}, {int})
        if not (one_type and len(set(agents)) == len(agents)):
            raise _unfit(f"{name}: agents", agents, "a list of different ids, all strings or all integers")
        if not isinstance(findings, list):
            raise _unfit(f"{name}: findings", findings, "a list")
        if not isinstance(figures, dict):
            raise _unfit(f"{name}: figures", figures, "an object of lists")
        for key, row in figures.items():
            if not (isinstance(key, str) and isinstance(row, list) and len(row) == len(agents) and all(map(_is_number, row))):
                raise _unfit(f"{name}: figures.{key}", row, f"a list of {len(agents)} numbers or nulls, one per agent")
        read = tuple(_finding(item, agents, f"{name}: finding {i}") for i, item in enumerate(findings))
        return cls(tuple(agents), read, {key: [_float(x) for x in row] for key, row in figures.items()})


# --- The judgement -----------------------------------------------------------------------------------------------------------------


def judge(evidence: Evidence) -> Verdict:
    """Compare all evidence with its thresholds. Numbers that are not finite count as not measured."""
    K = len(evidence.agents)
    figures = {name: np.asarray(getattr(evidence, name), np.float64) for name in FIGURES}
    wrong = [name for name, row in figures.items() if row.shape != (K,)]
    if not K or wrong:
        raise ValueError(f"Evidence of {K} agents needs as many entries, at least one, in each of: {', '.join(wrong or FIGURES)}.")
    clean = evidence._replace(**{name: np.where(np.isfinite(row), row, np.nan) for name, row in figures.items()})
    log = tuple(_of_the_log(clean))
    shuffled = any(finding.name == "shuffled-ids" for finding in log)
    own = tuple(_of_agents(clean, [rule for rule in RULES if not (shuffled and rule.name == "same-as-others")]))
    return Verdict(evidence.agents, log + own, {name: [_float(x) for x in getattr(clean, name)] for name in FIGURES})


@dataclass(frozen=True)
class Rule:
    """When there is something to say about an agent."""

    name: str
    figure: Callable[[Evidence], np.ndarray]
    threshold: Callable[[Evidence], np.ndarray | float]
    warns: Literal["below", "above"]
    sentence: str
    """With {agent}, {figure} and {threshold}."""
    advice: str


def _margin(evidence: Evidence) -> np.ndarray:
    """By how much a policy has to be better than a simpler one."""
    return np.fmax(MARGIN, MARGIN_SHARE * evidence.nll)


def _clone_margin(rival: np.ndarray) -> np.ndarray:
    return np.fmax(CLONE_MARGIN, CLONE_MARGIN_SHARE * rival)


def _few_episodes(e: Evidence) -> np.ndarray:
    """Episodes of agents with few held-out steps; of those with one episode there is another finding."""
    return np.where((e.episodes < EPISODES) | (e.held_out_steps >= FEW_STEPS), np.nan, e.episodes)


def _scored(evidence: Evidence) -> np.ndarray:
    """Held-out steps on which the policy was scored; not known of agents with one episode, of whom there is another finding."""
    steps = np.where(np.isnan(evidence.nll), 0.0, evidence.held_out_steps)
    return np.where(evidence.episodes < EPISODES, np.nan, steps)


def _above_majority(evidence: Evidence) -> np.ndarray:
    """By how much a policy is better than habit; nothing is said of who always does the same, or was scored on a few steps."""
    told = (evidence.majority > HABIT * math.log(max(evidence.num_actions, 2))) & ~(evidence.held_out_steps < FEW_HELD_OUT)
    return np.where(told, evidence.majority - evidence.nll, np.nan)


def _strange(evidence: Evidence) -> np.ndarray:
    """The share of an agent's steps in states that were seen once; not held against an agent who is predicted well there."""
    predicted = (evidence.nll < THIN_NATS * math.log(max(evidence.num_actions, 2))) & (evidence.held_out_steps >= FEW_HELD_OUT)
    return np.where(predicted, np.nan, 1 - evidence.familiar)


RULES = (
    Rule(
        "one-episode", lambda e: e.episodes, lambda e: EPISODES, "below",
        "The log has {figure:.0f} episode(s) of agent {agent!r}, so nothing of it could be held out and judged.",
        "Record more episodes of it, or cut the log where one task ends and the next begins.",
    ),
    Rule(
        "few-episodes", _few_episodes, lambda e: FEW_EPISODES, "below",
        "The log has only {figure:.0f} episodes of agent {agent!r}, and they are short: what it wants may be chance.",
        "Record more episodes of it.",
    ),
    Rule(
        "untested", _scored, lambda e: FEW_HELD_OUT, "below",
        "The policy of agent {agent!r} was scored on {figure:.0f} held-out steps, so how well it predicts is not known.",
        "Record more episodes of it, or hold out a larger share.",
    ),
    Rule(
        "no-better-than-majority", _above_majority, _margin, "below",
        "The policy of agent {agent!r} predicts held-out actions no better than always guessing how often it does what "
        "({figure:+.3f} nats per step).",
        "Log what it decides by, or more of its steps; until then its reward explains nothing that it does.",
    ),
    Rule(
        "table-is-better", lambda e: e.nll - e.count, lambda e: _clone_margin(e.count), "above",
        "The policy of agent {agent!r} is {figure:.3f} nats per step worse than a mere table of what it did in each observation.",
        "Train for longer or with another torso: the network does not tell states apart that the agent tells apart.",
    ),
    Rule(
        "clone-is-better", lambda e: e.nll - e.clone, lambda e: _clone_margin(e.clone), "above",
        "The policy of agent {agent!r} is {figure:.3f} nats per step worse than a plain behaviour clone.",
        "Train for longer or with a larger weight on imitation, and use the clone where only its actions matter.",
    ),
    Rule(
        "same-as-others", lambda e: e.told_apart, _margin, "below",
        "The policy of another agent predicts what agent {agent!r} does about as well as its own ({figure:+.3f} nats per step).",
        "Treat the two as one, or check their ids; nothing is known of what they want differently.",
    ),
    Rule(
        "outdone", lambda e: e.outdone, lambda e: OUTDONE, "above",
        "The reward of agent {agent!r} pays others more than itself: {figure:.0%} of the others earn more on it.",
        "Do not act on it before a person who knows the agent has looked at it; compare with a refit under another seed.",
    ),
    Rule(
        "refits-disagree", lambda e: e.agreement, lambda e: AGREE, "below",
        "The reward of agent {agent!r} changes from fit to fit: on the others' steps two fits correlate by {figure:.2f}.",
        "Use the mean over several fits, or add logs of states that the agent seldom sees.",
    ),
    Rule(
        "collapsed", lambda e: e.signal, lambda e: SIGNAL, "below",
        "The reward of agent {agent!r} has collapsed: its size is {figure:.2f} of the spread of the values that it should explain.",
        "Use a smaller weight of the sparse prior, or more varied logs.",
    ),
    Rule(
        "unexplained", lambda e: e.explained, lambda e: EXPLAINED, "below",
        "The reward of agent {agent!r} explains little of what its policy values: R^2 is {figure:.2f} on held-out steps.",
        "Log what it wants as a column that changes when it gets it: a count, a flag or a distance.",
    ),
    Rule(
        "turned-round", lambda e: e.avoided, lambda e: AVOIDED, "below",
        "The reward of agent {agent!r} leads elsewhere: a plan on it, made anew in the logs' own world, avoids {figure:.0%} of what "
        "the agent would rather not do (0 % is chance).",
        "Do not read it as what the agent wants; imitate the agent instead.",
    ),
    Rule(
        "unexplained-behaviour", lambda e: e.handed, lambda e: HANDED, "below",
        "No reward of what is observed was found to explain agent {agent!r}: even with caution, a plan on it avoids only {figure:.0%} of "
        "what the agent would rather not do. What is handed out is its behaviour, as a reward.",
        "Log what it wants as a column that changes when it gets it; a planner on what is handed out does what the imitation does.",
    ),
    Rule(
        "hardly-seen", _strange, lambda e: 1 - FAMILIAR, "above",
        "Agent {agent!r} was hardly seen: {figure:.0%} of its steps are in states in which no other episode of it was, and what it does "
        "there is not predicted well.",
        "Record more episodes of it.",
    ),
    Rule(
        "thin-coverage", lambda e: e.coverage, lambda e: THIN, "below",
        "The reward of agent {agent!r} rests on guesses: in only {figure:.0%} of the others' states was it seen what it would do.",
        "Add logs of others, or of chance, in the same states.",
    ),
    Rule(
        "mostly-lapses", lambda e: e.lapse, lambda e: LAPSES, "above",
        "The actions of agent {agent!r} are mostly chance: {figure:.0%} of them fit no preference.",
        "Log what it decides by, or leave out the part of the log in which it was distracted.",
    ),
)  # fmt: skip


def _of_agents(evidence: Evidence, rules: Sequence[Rule]) -> Iterator[Finding]:
    for rule in rules:
        figure = rule.figure(evidence)
        threshold = np.broadcast_to(np.asarray(rule.threshold(evidence), np.float64), figure.shape)
        for k in np.flatnonzero(figure < threshold if rule.warns == "below" else figure > threshold):  # never true of nan
            agent, found = evidence.agents[k], float(figure[k])
            sentence = rule.sentence.format(agent=agent, figure=found, threshold=float(threshold[k]))
            yield Finding(agent, rule.name, found, float(threshold[k]), sentence, rule.advice)


def _of_the_log(e: Evidence) -> Iterator[Finding]:
    K = len(e.agents)
    few = ", or there are too few episodes to tell" if 2 * np.sum(e.episodes < FEW_EPISODES) > K else ""
    if K > 1 and e.ids < IDS:
        yield Finding(
            None, "shuffled-ids", float(e.ids), IDS,
            f"The ids look shuffled, or the agents want the same{few}: who is said to have acted tells nothing of what was done "
            f"({e.ids:.1f} standard deviations above ids drawn by lot).",
            "Check where the ids come from; if they are right, record more episodes, or fit one agent and speak of one reward.",
        )  # fmt: skip
    if K == 1:
        yield Finding(
            None, "one-agent", 1.0, 2.0,
            "The log has one agent, so its reward can be compared with no other's and rests on states that it chose itself.",
            "Add logs of others in the same world, even of chance.",
        )  # fmt: skip
    if K > 1 and e.rank < DIRECTIONS:
        yield Finding(
            None, "one-direction", float(e.rank), DIRECTIONS,
            f"The rewards of {K} agents lie along about one direction ({e.rank:.1f}): they want the same or the opposite, or were not told "
            "apart.",
            "Read them as more or less of one thing, and allow for more cumulants if that is too little.",
        )  # fmt: skip
    if e.gamma < 1 and 1 / (1 - e.gamma) < HORIZON * e.median_length:
        yield Finding(
            None, "short-horizon", float(1 / (1 - e.gamma)), float(HORIZON * e.median_length),
            f"A gamma of {e.gamma:g} looks {1 / (1 - e.gamma):.0f} steps ahead, but the median episode has {e.median_length:.0f}: what is "
            "wanted later than that is not found.",
            f"Use a gamma of {1 - 1 / (HORIZON * e.median_length):.6g} or more, or log fewer and longer steps.",
        )  # fmt: skip
    if e.terminated_share <= 0:
        yield Finding(
            None, "no-ends", float(e.terminated_share), 0.0,
            "No episode of the log truly ends, so what an end is worth to an agent is not known.",
            "Mark true ends as terminated if there are any; else read nothing into what the reward says of them.",
        )  # fmt: skip
    if e.terminated_share > 0 and {"end", "constant"} <= set(re.split(r"[,\s]+", e.cumulants)):
        yield Finding(
            None, "costs-and-ends", float(e.terminated_share), 0.0,
            "The rewards have a part for the end and one for every step, and in a log with true ends the two mean nothing apart.",
            "Read them together, or set the part for the end to 0 before the reward is used.",
        )  # fmt: skip


# --- Small things ---------------------------------------------------------------------------------------------------------------------


def _finding(value: Any, agents: list[Any], name: str) -> Finding:
    """A finding from JSON values, checked."""
    fields = [field.name for field in dataclasses.fields(Finding)]
    if not (isinstance(value, dict) and set(value) == set(fields)):
        raise _unfit(name, value, f"an object of {', '.join(fields)}")
    agent, short = value["agent"], value["name"]
    if not (agent is None or (type(agent) is type(agents[0]) and agent in agents)):
        raise _unfit(f"{name}: agent", agent, "one of the agents, or null")
    if not (isinstance(short, str) and re.fullmatch("[a-z0-9]+(-[a-z0-9]+)*", short)):
        raise _unfit(f"{name}: name", short, "words in kebab-case")
    for field in ("figure", "threshold"):
        if not _is_number(value[field]):
            raise _unfit(f"{name}: {field}", value[field], "a number or null")
    for field in ("sentence", "advice"):
        if not (isinstance(value[field], str) and len(value[field].splitlines()) == 1):
            raise _unfit(f"{name}: {field}", value[field], "text on one line")
    return Finding(**{**value, "figure": _float(value["figure"]), "threshold": _float(value["threshold"])})


def _unfit(name: str, found: Any, expected: str) -> UserError:
    shown = repr(found)
    return UserError(f"{name} is {shown if len(shown) <= 60 else shown[:57] + '...'}, expected {expected}.")


def _is_number(value: Any) -> bool:
    return value is None or (type(value) in (int, float) and abs(value) < 1e300)  # which nan is not


def _float(value: Any) -> float:
    """A number, or the one nan that equals itself in a comparison of lists."""
    return math.nan if value is None or math.isnan(value) else float(value)


def _plain(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def _number(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.0f}" if value == round(value) and abs(value) >= 2 else f"{value:.2f}"


def _named(agents: Sequence[AgentId]) -> str:
    more = f" and {len(agents) - MOST_NAMED} more" if len(agents) > MOST_NAMED else ""
    return ", ".join(map(repr, agents[:MOST_NAMED])) + more


def _columns(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Side by side, the first to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    aligned = [
        [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))] for row in (header, *rows)
    ]
    return "\n".join("  ".join(row).rstrip() for row in aligned)
