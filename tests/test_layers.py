"""Imports point one way. The table below is the architecture; a new module is given its place here."""

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "psiphi"

WORDS = {"types", "errors", "printable", "configs", "spaces", "limits", "disk", "doors"}
CORE = {"losses", "gpi", "tasks", "theory", "nets", "optim", "replay", "cumulants"}

ASKED = WORDS | CORE | {"model", "demos", "envs"}

# What a module or package may import of psiphi. An entry covers everything under it; the longest one that fits counts.
MAY_IMPORT: dict[str, set[str]] = {
    "types": set(),
    "printable": set(),
    "errors": {"printable"},
    "configs": {"errors"},
    "limits": {"errors"},
    "spaces": {"errors"},
    "doors": {"errors", "configs"},
    "disk": {"errors", "limits"},
    **{module: WORDS for module in CORE},
    "nets": WORDS | {"cumulants"},
    "model": WORDS | {"gpi", "tasks", "nets"},
    "stats": {"errors"},
    "checkpoint": {"errors", "limits", "disk", "doors"},
    "progress": WORDS,
    "arguments": {"errors", "configs"},
    "demos": WORDS | {"progress", "demos"},
    "demos.commands": WORDS | {"demos", "envs", "arguments"},
    "agents": WORDS | CORE | {"model", "agents"},
    "envs": WORDS | {"demos", "envs"},
    "envs.inferred_reward": WORDS | {"model"},
    "loops": WORDS | CORE | {"model", "checkpoint", "progress", "loops"},
    "lens": WORDS | {"nets", "cumulants"},
    "films": WORDS | {"loops"},
    "worlds": WORDS | CORE | {"model", "stats", "agents", "envs", "loops", "worlds"},
    # What is known of a trained thing, and its files: below training, which reads the models that pay or are begun with.
    "api.answers": ASKED,
    "api.verdict": ASKED,
    "api.coverage": ASKED | {"api.answers"},
    "api.known": ASKED | {"lens", "api.answers", "api.coverage", "api.verdict"},
    "api.files": ASKED | {"lens", "checkpoint", "agents", "api.answers", "api.coverage", "api.known", "api.verdict"},
    "training": WORDS | CORE | {"model", "lens", "demos", "agents", "loops", "worlds", "api.files"},
    "tuning": WORDS | {"checkpoint", "progress", "agents", "loops", "training", "tuning"},
    "api": ASKED | {"lens", "progress", "agents", "loops", "worlds", "training", "api"},
    "playing": WORDS | CORE | {"model", "lens", "demos", "agents", "loops", "worlds", "training", "api"},
    "tracking": WORDS | {"checkpoint", "loops"},
    "pages": WORDS | {"stats", "report", "loops", "experiments.paper", "experiments.cells"},
    "report": WORDS | {"stats", "experiments.paper", "experiments.cells"},
    "experiments.paper": WORDS | {"experiments.paper"},
    "experiments.cells": WORDS,
    "experiments.infer": WORDS | {"agents", "checkpoint", "api", "arguments", "demos", "report", "experiments.cells"},
    "experiments": WORDS
    | CORE
    | {"model", "stats", "progress", "films", "agents", "envs", "loops", "worlds", "training", "api", "playing", "report", "experiments"},
    "__main__": {"cli"},
    "cli": WORDS
    | {
        "arguments",
        "progress",
        "checkpoint",
        "films",
        "demos",
        "agents",
        "loops",
        "worlds",
        "training",
        "tuning",
        "api",
        "playing",
        "report",
        "pages",
        "tracking",
        "experiments",
    }
    | {"cli"},
}


def modules(source: Path) -> dict[str, Path]:
    """Every module below `source` by its dotted name without the leading ``psiphi.``, the package itself left out."""
    files = {".".join(file.relative_to(source).with_suffix("").parts).removesuffix(".__init__"): file for file in source.rglob("*.py")}
    return {name: file for name, file in files.items() if name != "__init__"}


def imports(name: str, file: Path, known: set[str]) -> set[str]:
    """The psiphi modules that a file imports anywhere in it, inside functions and for type checking too."""
    package = name.split(".") if file.name == "__init__.py" else name.split(".")[:-1]
    found = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = ["psiphi", *package[: len(package) + 1 - node.level]] if node.level else []
            origin = ".".join([*above, *([node.module] if node.module else [])])
            # `from psiphi import losses` names a module, `from psiphi.losses import itd` something in one.
            found |= {full if (full := f"{origin}.{alias.name}").removeprefix("psiphi.") in known else origin for alias in node.names}
    return {target.removeprefix("psiphi.") for target in found if target.startswith("psiphi.")}


def place(name: str) -> str | None:
    """The longest entry of the table that covers a module."""
    return max((entry for entry in MAY_IMPORT if covers(entry, name)), key=len, default=None)


def covers(entry: str, name: str) -> bool:
    return name == entry or name.startswith(entry + ".")


def violations(source: Path) -> list[str]:
    found = []
    known = modules(source)
    for name, file in known.items():
        entry = place(name)
        if entry is None:
            found.append(f"{name} has no place in MAY_IMPORT")
            continue
        for target in imports(name, file, set(known)):
            if target not in known:
                found.append(f"{name} imports {target}, which is not there")
            elif not any(covers(allowed, target) for allowed in MAY_IMPORT[entry]):
                found.append(f"{name} imports {target}")
    return sorted(found)


def test_imports_point_one_way():
    assert violations(SOURCE) == []


PIECES = {
    "experiments.highway": {"begin", "iterate"},
    "experiments.imitation": {"LoopConfig", "Carry", "begin", "iterate"},
    "experiments.measures": {"collect"},
    "experiments.roundabout": {"collect"},
    "playing": {"Worlds", "rollout_returns"},
    "tuning.trials": {"Between", "Carry"},
}
"""Who uses a part of a loop without a run: measures that are one compiled program with random streams of their own, and who only plays."""


def test_train_is_the_only_one_who_runs_the_loops():
    found: dict[str, set[str]] = {}
    known = modules(SOURCE)
    for name, file in known.items():
        text = file.read_text(encoding="utf-8")
        imported = imports(name, file, set(known))
        looped = {loop for loop in ("scan", "gym") if f"loops.{loop}" in imported}
        if not looped or covers("loops", name) or name == "training":
            continue
        tree = ast.parse(text)
        used = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute) and getattr(node.value, "id", None) in looped}
        used |= {
            alias.name
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and node.module in ("psiphi.loops.scan", "psiphi.loops.gym")
            for alias in node.names
        }
        found[name] = used
    assert found == PIECES


def test_the_table_itself_has_no_cycle_between_layers():
    def reaches(start: str, seen: set[str]) -> set[str]:
        for target in MAY_IMPORT[start] - seen:
            seen.add(target)
            reaches(target, seen)
        return seen

    for entry, allowed in MAY_IMPORT.items():
        for target in allowed - {entry}:
            if not covers(target, entry):  # a module may use its own package
                assert entry not in reaches(target, set()), f"{entry} and {target} may import each other"


@pytest.mark.parametrize(
    ("module", "line", "expected"),
    [
        ("agents/itd.py", "from psiphi.envs import coingrid", "agents.itd imports envs.coingrid"),
        ("agents/itd.py", "import psiphi.loops.scan as s", "agents.itd imports loops.scan"),
        ("agents/itd.py", "from ..envs.coingrid import make", "agents.itd imports envs.coingrid"),
        ("agents/itd.py", "def f():\n    from psiphi import cli", "agents.itd imports cli"),
        ("losses.py", "from psiphi import gpi", "losses imports gpi"),
        ("losses.py", "from .agents import itd", "losses imports agents.itd"),
        ("loops/scan.py", "from psiphi.agents.itd import Config", "loops.scan imports agents.itd"),
        ("loops/scan.py", "from psiphi.envs.coingrid import make", "loops.scan imports envs.coingrid"),
        ("loops/scan.py", "from psiphi.agents import ALGORITHMS", "loops.scan imports agents"),
        ("report.py", "from psiphi.agents import itd", "report imports agents.itd"),
        ("types.py", "import psiphi.errors", "types imports errors"),
        ("loops/scan.py", "def f():\n    from psiphi.loops.gone import run", "loops.scan imports loops.gone, which is not there"),
        ("odds.py", "", "odds has no place in MAY_IMPORT"),
    ],
)
def test_a_wrong_import_is_seen(tmp_path, module, line, expected):
    for name in ["__init__", "losses", "gpi", "types", "errors", "cli", "report"]:
        (tmp_path / f"{name}.py").touch()
    for package, name in [("agents", "itd"), ("envs", "coingrid"), ("loops", "scan")]:
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").touch()
        (tmp_path / package / f"{name}.py").write_text("import numpy\nfrom psiphi import types\nfrom psiphi.types import Transition\n")
    assert violations(tmp_path) == []
    (tmp_path / module).write_text(line)
    assert violations(tmp_path) == [expected]
