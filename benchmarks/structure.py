"""What an addition costs, counted: lines, branches on a world or an algorithm, and hops from a command to its result.

    python benchmarks/structure.py                     of this tree
    python benchmarks/structure.py --hops              the same with hops: two runs are begun
    PYTHONPATH=OLD/src python benchmarks/structure.py  of another one (the commit before the rebuild: 1c15dda)

*Lines* are those of experiments, cli, report and api. *Branches* are the conditions in what runs, judges or draws (those, training and
playing) that ask for a world or an algorithm: a comparison with its name, or `isinstance` of its config. *Hops* are the functions of
psiphi, outside of the mathematics (agents, networks, losses, environments) and of small helpers (configs, disk, progress and so on), that a
command calls until the loop begins to train: of `psiphi infer FILE.csv`, which demonstrated rows pass, and of one cell of figure 3.
"""

import argparse
import ast
import contextlib
import csv
import random
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import psiphi

SOURCE = Path(psiphi.__file__).parent
COUNTED = ("experiments", "cli", "cli.py", "report.py", "api")
RUNS = (*COUNTED, "training.py", "playing.py")
MATHEMATICS = (
    "agents",
    "envs",
    "nets.py",
    "losses.py",
    "optim.py",
    "replay.py",
    "gpi.py",
    "tasks.py",
    "model.py",
    "configs.py",
    "types.py",
)
HELPERS = (
    *("configs.py", "disk.py", "checkpoint.py", "printable.py", "limits.py"),
    *("arguments.py", "errors.py", "doors.py", "progress.py"),
)
NAMES = {
    *("itd", "psiphi", "dqn", "dqn-bc", "bc", "sqil", "gail", "ppo", "ppo-bc", "itd-dqn"),
    *("coingrid", "coingrid-25", "highway", "highway-single-task", "highway-adversarial", "highway-multi-task", "roundabout"),
}
CONFIGS = {
    f"{name}Config" for name in ("ITD", "PsiPhi", "DQN", "BC", "SQIL", "GAIL", "PPO", "Together", "CoinGrid", "Highway", "Roundabout")
}


def files(parts: tuple[str, ...]) -> Iterator[Path]:
    for part in parts:
        path = SOURCE / part
        yield from sorted(path.rglob("*.py")) if path.is_dir() else [path] if path.is_file() else []


def lines() -> int:
    return sum(len(file.read_text(encoding="utf-8").splitlines()) for file in files(COUNTED))


def conditions(tree: ast.AST) -> Iterator[ast.AST]:
    """Whatever decides what is done next."""
    for node in ast.walk(tree):
        if isinstance(node, ast.If | ast.IfExp | ast.While | ast.Assert):
            yield node.test
        elif isinstance(node, ast.comprehension):
            yield from node.ifs
        elif isinstance(node, ast.match_case):
            yield node.pattern


def asks_for_a_name(condition: ast.AST) -> bool:
    for node in ast.walk(condition):
        if isinstance(node, ast.Compare | ast.MatchValue):
            said = {one.value for one in ast.walk(node) if isinstance(one, ast.Constant) and isinstance(one.value, str)}
            if said & NAMES:
                return True
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("isinstance", "issubclass"):
            kinds = {
                one.id if isinstance(one, ast.Name) else one.attr for one in ast.walk(node) if isinstance(one, ast.Name | ast.Attribute)
            }
            if kinds & CONFIGS:
                return True
    return False


def branches() -> list[str]:
    found = []
    for file in files(RUNS):
        for condition in conditions(ast.parse(file.read_text(encoding="utf-8"))):
            if asks_for_a_name(condition):
                line = getattr(condition, "lineno", 0)
                found.append(f"{file.relative_to(SOURCE)}:{line}: {ast.unparse(condition)}")
    return found


# --- Hops ----------------------------------------------------------------------------------------------------------------


def called(run: Callable[[], Any]) -> set[tuple[str, str]]:
    """The functions of psiphi that a run calls before the loop begins, each once, but for mathematics and helpers."""
    seen: set[tuple[str, str]] = set()

    class Begun(BaseException):
        """Enough is known."""

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(str(SOURCE)):
            seen.add((frame.f_code.co_filename, frame.f_code.co_qualname))
            if (Path(frame.f_code.co_filename).name, frame.f_code.co_name) == ("scan.py", "_train"):
                raise Begun

    sys.setprofile(note)
    with contextlib.suppress(Begun):
        run()
    sys.setprofile(None)
    left_out = MATHEMATICS + HELPERS
    places = {(str(Path(file).relative_to(SOURCE)), name) for file, name in seen}
    return {(file, name) for file, name in places if Path(file).parts[0] not in left_out and "<" not in name.rsplit(".", 1)[-1]}


def of_a_row() -> set[tuple[str, str]]:
    from psiphi.experiments import infer

    with tempfile.TemporaryDirectory() as folder:
        path, draw = Path(folder) / "rows.csv", random.Random(0)
        with open(path, "w", newline="", encoding="utf-8") as file:
            rows = csv.writer(file)
            rows.writerow(["agent", "episode", "obs_x", "obs_y", "action", "terminated"])
            for agent in ("ann", "bob"):
                for episode in range(6):
                    rows.writerows([agent, episode, draw.random(), draw.random(), draw.randrange(2), int(t == 5)] for t in range(6))
        flag = "--updates" if "updates" in infer.Infer.__dataclass_fields__ else "--itd.updates"
        small = [flag, "4", "--itd.torso-hidden", "4", "--itd.phi-hidden", "4", "--itd.psi-hidden", "4"]
        return called(lambda: infer.run([str(path), "--out", str(Path(folder) / "out"), *small]))


def of_a_cell() -> set[tuple[str, str]]:
    from psiphi.experiments import paper, reproduce

    what = reproduce.find("figure-3") if hasattr(reproduce, "find") else paper.EXPERIMENTS["figure-3"]
    (unit,) = [one for one in reproduce.units(what, [7]) if (one.variant.name, one.method.name) == ("highway-multi-task", "dqn")]
    effort = reproduce.Effort(updates=8, episodes=16, repetitions=2, steps=1_160)
    origin = {"commit": None, "versions": {}, "command": ""}
    return called(lambda: reproduce.run_unit(what, unit, effort, origin, {f"{unit.variant.name} 7": {}}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hops", action="store_true")
    asked = parser.parse_args()
    found = branches()
    print(f"lines of experiments, cli, report and api: {lines():,}")
    print(f"branches on a world or an algorithm: {len(found)}", *found, sep="\n  ")
    if asked.hops:
        for name, run in {"one demonstrated CSV row (psiphi infer)": of_a_row, "one cell of figure 3": of_a_cell}.items():
            print(f"hops of {name}: {len(run())}")


if __name__ == "__main__":
    main()
