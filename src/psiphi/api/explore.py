"""A page to see what the agents want: one HTML file with everything in it, that works from a disk.

The page gets arrays, not networks: of logged states (and of whole small worlds, where a world can list its states) the successor features
of every known policy, projected on the preferences that it has sliders for. Q = psi.w and the choice among policies is then arithmetic.
"""

import base64
import hashlib
from collections.abc import Sequence
from importlib import resources
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from psiphi import model as models
from psiphi import printable, tasks
from psiphi.api.answers import in_chunks, weightiest
from psiphi.api.known import LITTLE, RIDGE, Known, check_fits, explained, reward_of
from psiphi.demos import Demonstrations
from psiphi.demos.demonstrations import flattened
from psiphi.errors import UserError
from psiphi.model import Model
from psiphi.nets import of_heads
from psiphi.worlds import World
from psiphi.worlds.world import Boards

ROOM = 3_300_000
"""Bytes of arrays; as text in the page they are a third more."""
MOST_STEPS = 4_000
"""Logged steps on the page."""
FEWEST_STEPS = 1_000
"""Where fewer would fit, the members of an ensemble are averaged."""
LONGEST = 400
"""Steps of one episode; of a longer one, its beginning."""
MOST_POLICIES = 24
"""Of more agents, those that differ most."""
MOST_SLIDERS = 8
"""Of agents, and of quantities."""
MOST_COLUMNS = 64
"""Observations with more entries are pictures: there is nothing to plot them over."""


class Slider(NamedTuple):
    """A direction in which preferences can be moved."""

    name: str
    group: str
    w: np.ndarray
    """``[d]``: what one unit of it adds to the preferences."""
    off: str = ""
    """Why it cannot be moved."""


def html(found: dict[str, Any]) -> str:
    """A page of these data: nothing in them is read as markup or as a program."""
    script = f'{part("explore.js")}\nexplore(document.getElementById("psiphi"), JSON.parse(document.getElementById("data").textContent));\n'
    text = part("explore.html").replace("%HASH%", base64.b64encode(hashlib.sha256(script.encode()).digest()).decode())
    text = text.replace("%TITLE%", printable.html(found["title"])).replace("%CSS%", part("explore.css")).replace("%JS%", script)
    return text.replace("%DATA%", printable.json(found))


def part(name: str) -> str:
    """A file of the page."""
    return (resources.files("psiphi") / "page" / name).read_text(encoding="utf-8")


def data(
    known: Known, demos: Demonstrations | None, world: World | None = None, *, title: str = "", shares: np.ndarray | None = None
) -> dict[str, Any]:
    """All that the page shows, as plain values.

    `world` is where the model was trained, with the config that it had; `shares` ``[E, K]`` how likely each episode is of which kind.
    """
    listed = None if world is None or world.boards is None else world.boards(world.config)
    if demos is None and listed is None:
        raise UserError(
            "This model has no stored states to show: expected demonstrations beside it, as in psiphi explore MODEL FILE, "
            "or a model trained on CoinGrid."
        )
    if demos is not None:
        demos = demos.named_as(known.actions)
        check_fits(demos, known.lens.shape, known.num_actions)
        strangers = [agent for agent in demos.agents if agent not in known.agents]
        if strangers:
            raise UserError(f"The demonstrations have the agent {strangers[0]!r}, expected agents that the model knows.")
    shown = representatives(known)
    sliders = [*([] if listed is None else world_sliders(known, listed)), *agent_sliders(known, shown), *quantity_sliders(known)]
    room = ROOM if listed is None or demos is None else ROOM // 2
    log = None if demos is None else logged(known, demos, shown, sliders, room, shares)
    on_board = None if listed is None else boards(known, listed, shown, sliders, room)
    names = () if demos is None else quantity_names(demos)
    notes = [f"{len(shown)} of {len(known.policies)} agents are shown, those that differ most."] if len(shown) < len(known.policies) else []
    return {
        "title": _shown(title or "What the agents want"),
        "headline": "There is no verdict on this model: it was trained in a world." if known.verdict is None else known.verdict.headline,
        "notes": notes + ([] if log is None else log.pop("notes")),
        "actions": [_shown(name) for name in (known.actions if listed is None or known.action_names else listed.actions)],
        "columns": [_shown(name) for name in names],
        "pair": None if log is None else log.pop("pair"),
        "policies": [described(known, k) for k in shown],
        "map": placed(known.likeness, shown).tolist(),
        "likeness": _square(known.likeness, shown),
        "range": None if known.likeness_range is None else [_square(table, shown) for table in known.likeness_range],
        "temperature": float(known.temperature),
        "sliders": [{"name": _shown(s.name), "group": s.group, "off": s.off, "start": start(s, i, sliders)} for i, s in enumerate(sliders)],
        "log": log,
        "boards": on_board,
    }


def start(slider: Slider, i: int, sliders: Sequence[Slider]) -> float:
    """At first the first slider that can be moved is at 1: something is wanted."""
    return 1.0 if i == next((j for j, s in enumerate(sliders) if not s.off), -1) else 0.0


def _shown(name: object) -> str:
    return printable.terminal(name)


def described(known: Known, k: int) -> dict[str, Any]:
    """What is said of a policy."""
    if k >= len(known.agents):
        return {"name": "itself", "ego": True, "doubtful": False, "findings": [], "wants": []}
    agent, w = known.agents[k], np.asarray(known.model.prior.basis)
    named = known.names or tuple(f"cumulant {i + 1}" for i in range(w.shape[1]))
    findings = () if known.verdict is None else known.verdict.of(agent)
    return {
        "name": _shown(agent),
        "ego": False,
        "doubtful": known.verdict is not None and agent in known.verdict.doubtful,
        "findings": [printable.sentence(f"{'Warning' if f.warns else 'Note'}: {f.sentence}") for f in findings],
        "wants": [[_shown(named[i]), float(w[k, i])] for i in weightiest(w, MOST_SLIDERS)],
    }


def representatives(known: Known) -> list[int]:
    """The policies on the page: all, or the agents that differ most, each next one farthest from those before; an ego is always there."""
    agents = len(known.agents)
    chosen = list(range(agents))
    if agents > MOST_POLICIES:
        away = 1 - known.likeness
        chosen = [0]
        while len(chosen) < MOST_POLICIES:
            rest = away[:, chosen].min(axis=1)
            rest[chosen] = -np.inf
            chosen.append(int(rest.argmax()))
    return sorted(chosen) + ([agents] if known.has_ego else [])


def placed(likeness: np.ndarray, shown: Sequence[int]) -> np.ndarray:
    """``[P, 2]``: places whose distances are about ``sqrt(2 - 2 likeness)``, by classical scaling; an ego is in the middle."""
    agents = [k for k in shown if k < len(likeness)]
    result = np.zeros((len(shown), 2))
    if len(agents) < 2:
        return result
    inner = np.nan_to_num(likeness[np.ix_(agents, agents)])
    middle = np.eye(len(agents)) - 1 / len(agents)
    size, axes = np.linalg.eigh(middle @ inner @ middle)
    axes = axes[:, ::-1][:, :2] * np.sqrt(np.maximum(size[::-1][:2], 0))
    sign = np.sign(axes[np.abs(axes).argmax(axis=0), np.arange(axes.shape[1])])
    result[: len(agents), : axes.shape[1]] = axes * np.where(sign == 0, 1, sign)
    return result


def _square(table: np.ndarray, shown: Sequence[int]) -> list[list[float]]:
    agents = [k for k in shown if k < len(table)]
    rows = np.zeros((len(shown), len(shown)))
    rows[: len(agents), : len(agents)] = np.nan_to_num(table[np.ix_(agents, agents)])
    return np.round(rows, 3).tolist()


# --- What can be moved -------------------------------------------------------------------------------------------------------------


def agent_sliders(known: Known, shown: Sequence[int]) -> list[Slider]:
    """As much of what an agent wants as one likes; of many agents, the first ones on the page."""
    basis = np.asarray(known.model.prior.basis)
    return [Slider(str(known.agents[k]), "As much of what an agent wants", basis[k]) for k in shown[:MOST_SLIDERS] if k < len(known.agents)]


def quantity_sliders(known: Known) -> list[Slider]:
    """Cumulants that have names, those that matter most, in the size that matters most to any agent."""
    if not known.names:
        return []
    basis = np.asarray(known.model.prior.basis)
    size = np.abs(basis).max(axis=0)
    return [Slider(known.names[i], "A quantity", size[i] * np.eye(len(size))[i]) for i in weightiest(basis, MOST_SLIDERS) if size[i] > 0]


def world_sliders(known: Known, listed: Boards) -> list[Slider]:
    """What a world pays for: the preferences that least squares finds if one unit is paid for it on a random walk."""
    obs, action, next_obs, discount, features = listed.walk
    phi = in_chunks(_phi, known.model, [np.asarray(x) for x in (obs, action, next_obs, discount)])
    found = []
    for i, name in enumerate(listed.names):
        w = np.asarray(tasks.least_squares(jnp.asarray(phi), jnp.asarray(features[:, i], jnp.float32), RIDGE))
        share = explained(phi @ w, features[:, i])
        little = f"The cumulants explain {max(np.nan_to_num(share), 0.0):.2f} of {name}, expected at least {LITTLE}."
        found.append(Slider(name, "What it is paid for", w, "" if share >= LITTLE else little))
    return found


@jax.jit
def _phi(model: Model, obs: Any, action: Any, next_obs: Any, discount: Any) -> jax.Array:
    return models.phi(model, *(jnp.asarray(x) for x in (obs, action, next_obs, discount)))


@jax.jit
def _projected(model: Model, obs: Any, basis: Any) -> jax.Array:
    """[B, policies, ensemble, A, sliders]"""
    return models.psi(model, jnp.asarray(obs)) @ basis.T


def ensemble_of(known: Known) -> int:
    """Successor features of each policy."""
    one = jax.ShapeDtypeStruct((1, *known.lens.shape), known.lens.dtype)
    return jax.eval_shape(models.psi, known.model, one).shape[2]


def projected(known: Known, obs: np.ndarray, shown: Sequence[int], sliders: Sequence[Slider], *, members: bool) -> np.ndarray:
    """``[S, P, E, A, I]``: the successor features of the policies on the page, along the sliders; E is 1 where members are averaged."""
    index = np.asarray(shown)
    some = known.model._replace(net=of_heads(known.model.net, lambda x: x[index]))
    psi = in_chunks(_projected, some, [obs], np.stack([s.w for s in sliders]).astype(np.float32))
    return psi if members else psi.mean(axis=2, keepdims=True)


# --- What was logged -----------------------------------------------------------------------------------------------------------------


def logged(
    known: Known, demos: Demonstrations, shown: Sequence[int], sliders: Sequence[Slider], room: int, shares: np.ndarray | None = None
) -> dict[str, Any]:
    """Some episodes of every agent on the page: what was seen and done, what everybody would do and be paid, and psi."""
    agents, names = [k for k in shown if k < len(known.agents)], quantity_names(demos)
    each = 2 * len(names) + len(shown) * (2 + known.num_actions) + 2
    psi = 2 * len(shown) * known.num_actions * len(sliders)
    members = room // (each + psi * ensemble_of(known)) >= min(FEWEST_STEPS, len(demos))
    most = room // (each + psi * (ensemble_of(known) if members else 1))
    episodes, steps = chosen_episodes(demos, [known.agents[k] for k in agents], most)
    led = followed(demos)[steps]
    obs, action, over = demos.obs[steps], demos.action[steps], demos.terminated[steps]
    paid, chance = np.zeros((len(steps), len(shown))), np.zeros((len(steps), len(shown), known.num_actions))
    for place, k in enumerate(agents):
        paid[:, place] = reward_of(known, known.agents[k])(obs, action, led, over)
    paid[~(led_on(demos) | demos.terminated)[steps]] = 0.0
    few = np.asarray(agents)
    some = Model(of_heads(known.model.net, lambda x: x[few]), known.model.w[few], known.model.units[few])
    chance[:, : len(agents)] = likely(known, in_chunks(_values, some, [obs]), agents)
    table = quantities(demos, led, action, demos.t[steps])
    cut = demos.lengths[episodes] > LONGEST
    notes = ["Of long episodes, the page has the beginning."] if cut.any() else []
    if len(episodes) < demos.num_episodes:
        notes.append(f"The page has {len(episodes):,} of {demos.num_episodes:,} episodes, {len(steps):,} of {len(demos):,} steps.")
    place = {known.agents[k]: i for i, k in enumerate(agents)}
    ends = np.cumsum(np.minimum(demos.lengths[episodes], LONGEST)).tolist()
    return {
        "steps": len(steps),
        "kinds": None if shares is None else np.round(shares[episodes], 3).tolist(),
        "episodes": [
            {"agent": place[demos.trajectory(e).agent], "name": _shown(demos.episodes.id[e]), "start": first, "end": end, "cut": c}
            for e, first, end, c in zip(episodes, [0, *ends[:-1]], ends, cut.tolist(), strict=True)
        ],
        "obs": packed(table),
        "action": packed(action.astype(float), bits=16, whole=True),
        "rewards": packed(paid),
        "chance": packed(chance, bits=8),
        "psi": packed(projected(known, obs, shown, sliders, members=members)),
        "pair": telling(table, paid),
        "notes": notes,
    }


@jax.jit
def _values(model: Model, obs: Any) -> jax.Array:
    return models.values(model, jnp.asarray(obs))


def likely(known: Known, values: np.ndarray, agents: Sequence[int]) -> np.ndarray:
    """``[S, K, A]``: how likely each agent does what."""
    logits = known.beta * (values - values.max(axis=2, keepdims=True))
    shares = np.exp(logits) / np.exp(logits).sum(axis=2, keepdims=True)
    lapse = np.asarray([known.lapse[k] if known.lapse else 0.0 for k in agents])[:, None]
    return (1 - lapse) * shares + lapse / known.num_actions


def chosen_episodes(demos: Demonstrations, agents: Sequence[Any], most: int) -> tuple[list[int], np.ndarray]:
    """Episodes in turn of each agent until there is no more room, and their steps."""
    length = np.minimum(demos.lengths, LONGEST)
    mine = [np.flatnonzero(demos.episodes.agent == demos.agents.index(agent)).tolist() for agent in agents if agent in demos.agents]
    left, found = min(most, MOST_STEPS), []
    for turn in range(max(map(len, mine), default=0)):
        for own in mine:
            if turn < len(own) and (length[own[turn]] <= left or not found):
                found.append(own[turn])
                left -= int(length[own[turn]])
    if not found:
        raise UserError("The demonstrations have no episode of an agent that the model knows, expected at least one.")
    found.sort()
    steps = np.concatenate([np.arange(int(length[e])) + demos.episodes.start[e] for e in found])
    return found, steps


def followed(demos: Demonstrations) -> np.ndarray:
    """``[M, ...]``: the observation after each step; where no step of the log shows it, the one before."""
    last = demos.episodes.start[1:] - 1
    led = demos.obs[np.minimum(np.arange(len(demos)) + 1, len(demos) - 1)].copy()
    flags = demos.episodes.has_final.reshape(-1, *[1] * (led.ndim - 1))
    led[last] = np.where(flags, demos.episodes.final_obs, demos.obs[last])
    return led


def led_on(demos: Demonstrations) -> np.ndarray:
    """bool[M]: whether the log shows where a step led."""
    seen = np.ones(len(demos), bool)
    seen[demos.episodes.start[1:] - 1] = demos.episodes.has_final
    return seen


def quantity_names(demos: Demonstrations) -> tuple[str, ...]:
    """What can be plotted over: entries of the observation, the action and the number of the step."""
    entries = demos.names if len(demos.names) <= MOST_COLUMNS else ()
    return (*entries, "action", "step of the episode")


def quantities(demos: Demonstrations, led: np.ndarray, action: np.ndarray, t: np.ndarray) -> np.ndarray:
    rows = flattened(led).astype(np.float64)
    return np.column_stack([rows if rows.shape[1] <= MOST_COLUMNS else rows[:, :0], action, t])


def telling(table: np.ndarray, paid: np.ndarray) -> list[int]:
    """The two quantities that go most with the rewards, each alone: the picture with which the page opens."""
    centred = table - table.mean(axis=0)
    size = np.linalg.norm(centred, axis=0)
    rewards = paid - paid.mean(axis=0)
    spread = np.linalg.norm(rewards, axis=0)
    alike = np.abs(centred.T @ rewards) / np.maximum(size[:, None] * spread, 1e-12)
    order = np.argsort(-alike.mean(axis=1)[: max(table.shape[1] - 2, 2)], kind="stable")
    return order[:2].tolist()


# --- Whole small worlds ----------------------------------------------------------------------------------------------------------------


def boards(known: Known, listed: Boards, shown: Sequence[int], sliders: Sequence[Slider], room: int) -> dict[str, Any]:
    """As many boards of a world as fit, with all their states."""
    states, ensemble = listed.obs.shape[1], ensemble_of(known)
    each = states * (2 * len(shown) * ensemble * known.num_actions * len(sliders) + 2 * known.num_actions)
    count = min(room // each, len(listed.obs))
    members = count > 0
    if not count:
        count = max(min(room // (each // ensemble), len(listed.obs)), 1)
    flat = listed.obs[:count].reshape(count * states, *listed.obs.shape[2:])
    psi = projected(known, flat, shown, sliders, members=members)
    return {
        **listed.drawing,
        "names": list(listed.names),
        "coins": listed.drawing["coins"][:count],
        "start": listed.start[:count].tolist(),
        "next": packed(listed.next[:count].astype(float), bits=16, whole=True),
        "psi": packed(psi.reshape(count, states, *psi.shape[1:])),
    }


# --- Arrays as text ----------------------------------------------------------------------------------------------------------------------


def packed(array: np.ndarray, *, bits: int = 16, whole: bool = False) -> dict[str, Any]:
    """An array as whole numbers of one or two bytes, with the smallest and the step of each entry of the last axis.

    What is read back is off by half a step at most; `whole` numbers are read back as they are.
    """
    rows = array.reshape(-1, 1 if array.ndim < 2 or whole else array.shape[-1]).astype(np.float64)
    low, high = (np.zeros(1), np.full(1, 2.0**bits - 1)) if whole else (rows.min(axis=0, initial=0.0), rows.max(axis=0, initial=0.0))
    step = np.where(high > low, (high - low) / (2.0**bits - 1), 1.0)
    numbers = np.round((rows - low) / step).astype("<u2" if bits == 16 else "u1")
    text = base64.b64encode(numbers.tobytes()).decode()
    return {"shape": list(array.shape), "low": low.tolist(), "step": step.tolist(), "bytes": bits // 8, "data": text}
