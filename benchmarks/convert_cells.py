"""Convert published cells of psiphi 0.1 to the settings and the file format of 0.2, once; no number is touched.

    python benchmarks/convert_cells.py results            what would change, and what is left out or did not exist then
    python benchmarks/convert_cells.py results --write

A 0.1 cell had one of eight kinds of settings; a 0.2 cell has its run. Every value that a cell was made with is carried over to where it
stands now. What 0.1 did not know yet has the value that it had in effect, which the default of today still is.
"""

import argparse
import collections
import json
import re
from pathlib import Path
from typing import Any

from psiphi import disk
from psiphi.envs.coingrid import task_name
from psiphi.experiments import cells, reproduce
from psiphi.experiments.measures import Unit
from psiphi.experiments.runs import Effort

Config = dict[str, Any]
GONE = {"updates", "num_envs"}
"""What left the agents' configs."""

ABSENT = {"reward_offset": 0.0}
"""What 0.1 had in effect before it had a name, where a preset of today has something else."""


def converted(cell: dict[str, Any], notes: "collections.Counter[str]") -> Config:
    """The config of a cell as 0.2 writes it."""
    what = reproduce.find(cell["experiment"])
    method = next(method for method in what.methods if method.name == cell["method"])
    variant = next(variant for variant in what.variants if variant.name == cell["env"])
    old = cell["config"]
    now = json.loads(json.dumps(reproduce.config_of(what, Unit(variant, method, cell["seed"]), Effort())))
    new = laid_over(now, in_place(old), notes, "")
    if method.how == "model" and method.trains:  # it did not say then what it saw; with fewer updates it took fewer steps
        new["saw"][1] = re.sub(r"[\d,]*\d", f"{cell['env_steps']:,}", new["saw"][1], count=1)
    return new


def in_place(old: Config) -> Config:
    """The old values where they stand now; which kind of setting it is, its keys tell."""
    if "itd" in old and "few_shot" in old:
        return of_model(old)
    if "setting" in old:  # PsiPhi-learning while it acts
        model = of_model(old["setting"])
        rest = {**{name: value for name, value in old.items() if name != "setting"}, "task": task_name(old["setting"]["ego_task"])}
        return {
            **{name: value for name, value in model.items() if name not in ("updates", "few_shot")},
            **rest,
            "task": task_name(old["setting"]["ego_task"]),
        }
    if "dqn" in old and "model" in old:
        model = {name: value for name, value in of_model(old["model"]).items() if name != "few_shot"}
        return {**model, "learner": {"steps": old["dqn"]["steps"]}, "saw": old["saw"]}
    if "before" in old:
        return of_policy({**old["before"], "saw": old["saw"]})
    if "shown" in old:  # predictions
        return {**old, "agent": without(old["agent"])}
    if "inference" in old and "agent" in old:  # Roundabout's table
        return of_row(old)
    return of_policy(old)


def without(agent: Any) -> Any:
    """An agent's config without what the run decides now."""
    if not isinstance(agent, dict):
        return agent
    return {name: without(value) for name, value in agent.items() if name not in GONE}


def found(agent: Config, name: str) -> Any:
    """A number that an agent's config, or the one inside it, had."""
    return next((part[name] for part in (agent, *(x for x in agent.values() if isinstance(x, dict))) if name in part), None)


def names(weights: Any) -> list[str]:
    return [task_name(row) for row in weights]


def of_model(old: Config) -> Config:
    assert old["temperature"] == 0.02
    agent = without(old["itd"])
    new = {name: old[name] for name in ("world", "episodes", "prefill_steps", "few_shot", "repetitions", "saw") if name in old}
    new |= {"demonstrators": names(old["demonstrators"]), "updates": old["itd"]["updates"], "num_envs": old["itd"]["num_envs"]}
    return {**new, "agent": {**without(old["ego"]), "itd": agent} if old["ego"] else agent}


def of_policy(old: Config) -> Config:
    new = {name: value for name, value in old.items() if name not in ("agent", "demonstrators", "temperature", "reference")}
    new["agent"] = without(old["agent"])
    width = found(old["agent"], "num_envs")
    new |= {} if "num_envs" in old or width is None else {"num_envs": width}
    if "demonstrators" in old and old["saw"][0] != "none":
        new["demonstrators"] = names(old["demonstrators"])
    if old["saw"][1] == "none":  # it took no steps
        new |= {"steps": 0, "updates": old["agent"]["updates"]}
    if "world" in old and "goals" in old["world"] or "exits" in old.get("world", {}):
        new.pop("task", None)
    return new


def of_row(old: Config) -> Config:
    if old["agent"] is None:
        return {"saw": old["saw"]}
    new = of_policy({name: value for name, value in old.items() if name not in ("inference", "judged")})
    if old["inference"]:
        inner = {"itd": without(old["inference"]["itd"]), "dqn": new["agent"], "itd_updates": old["inference"]["updates_per_rollout"]}
        new["agent"] = inner
    return new


def laid_over(now: Any, old: Any, notes: "collections.Counter[str]", where: str) -> Any:
    """Today's config with the old values in it; says what has no place any more, and what did not exist then."""
    if not isinstance(now, dict) or not isinstance(old, dict):
        if old != now:
            notes[f"differs from today: {where}: {json.dumps(old)[:60]} then, {json.dumps(now)[:60]} now"] += 1
        return old
    for name in old.keys() - now.keys():
        notes[f"has no place: {where}{name} = {json.dumps(old[name])[:60]}"] += 1
    old = {**old, **{name: value for name, value in ABSENT.items() if name in now and name not in old}}
    if where == "" and now.get("demos") == "none":  # a control that never looks at demonstrations is said to see none
        old = {name: value for name, value in old.items() if name not in ("demonstrators", "saw")}
    for name in now.keys() - old.keys():
        notes[f"did not exist: {where}{name} = {json.dumps(now[name])[:60]}"] += 1
    return {name: laid_over(value, old[name], notes, f"{where}{name}.") if name in old else value for name, value in now.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    for name in reproduce.paper.EXPERIMENTS:
        there = cells.read(args.results / name)
        if not there or "algorithm" in there[0]["config"]:
            continue
        notes: collections.Counter[str] = collections.Counter()
        known: dict[str, Config] = {}
        new = []
        for cell in there:
            key = json.dumps([cell["env"], cell["method"], cell["config"]], sort_keys=True)
            known.setdefault(key, converted(cell, notes) if key not in known else {})
            new.append({**cell, "config": known[key]})
        print(f"{name}: {len(there)} cells, {len(known)} settings")
        for note, count in sorted(notes.items()):
            print(f"  {count:>4} {note}")
        if args.write:
            lines = [json.dumps(line, allow_nan=False, ensure_ascii=False).encode() + b"\n" for line in cells.trainings(new)]
            disk.write(args.results / name / cells.FILE, b"".join(lines))


if __name__ == "__main__":
    main()
