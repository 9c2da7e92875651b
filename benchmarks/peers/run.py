"""Our agents beside the libraries people trust: the same worlds, budgets, settings and demonstrations, many seeds, one table.

    python benchmarks/peers/run.py all --seeds 10 --out results/peers [--jobs 1]
    python benchmarks/peers/run.py dqn-CartPole-v1 --seeds 2 --scale 0.05 --out runs/peers-try

DQN and PPO meet stable-baselines3 (the newest), BC, SQIL and GAIL meet imitation (which needs an older one). Each library has an
environment of its own, made here on the first call (about 2 GB each). A run is a process with one thread. Finished ones are lines of
OUT/cells.jsonl: whatever is missing there is run, so an interrupted call is continued by the same call. Then OUT/README.md is written.
"""

import argparse
import dataclasses
import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import demonstrations
import numpy as np
import settings

from psiphi import stats
from psiphi.errors import UserError
from psiphi.experiments import cells

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
VENVS = HERE / ".venvs"

LIBRARIES = {"sb3": "stable-baselines3", "imitation": "imitation", "ours": "psiphi"}
PINS = {
    "sb3": ["torch==2.13.0", "stable-baselines3==2.9.2"],
    "imitation": ["torch==2.13.0", "imitation==1.0.1"],  # brings stable-baselines3 2.2.1 and Gymnasium 0.29.1
}
SCRIPTS = {"sb3": "sb3.py", "imitation": "imitation_peers.py", "ours": "ours.py"}
FIRST_SEED = 100
"""Lower ones were used to find out whether things work."""


# --- The peers' environments ---------------------------------------------------------------------------------------------


def requirements(library: str) -> list[str]:
    """What to tell pip. imitation excludes the Gymnasium that psiphi asks for, so it gets psiphi's other dependencies, not psiphi."""
    if library == "sb3":
        return [*PINS[library], "--constraint", str(ROOT / "constraints.txt"), "--editable", f"{ROOT}[data]"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return [*PINS[library], *(x for x in project["dependencies"] if not x.startswith("gymnasium"))]


def environment(library: str) -> Path:
    """The library's Python, after making its environment if it is missing or made for other requirements."""
    if library == "ours":
        return Path(sys.executable)
    home = VENVS / library
    python, stamp, wanted = home / "bin" / "python", home / "requirements.json", requirements(library)
    if not stamp.exists() or json.loads(stamp.read_text()) != wanted:
        print(f"Making the environment of {LIBRARIES[library]} in {home.relative_to(ROOT)} (some minutes) ...", flush=True)
        subprocess.run([sys.executable, "-m", "venv", str(home)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *wanted], check=True)
        stamp.write_text(json.dumps(wanted))
    return python


# --- The runs ------------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Run:
    """One process: a method of one side in one world from one seed."""

    method: str
    world: str
    side: str
    seed: int
    scale: float

    @property
    def label(self) -> str:
        return f"{self.method} ({LIBRARIES[self.side]})"

    @property
    def task(self) -> str:
        return settings.task(self.method, self.world)

    @property
    def config(self) -> dict[str, Any]:
        """What the side reads of the settings."""
        chosen = settings.settings(self.method, self.world, self.scale)
        return {name: value for name, value in chosen.items() if self.side == "ours" or name != "ours"}

    @property
    def key(self) -> cells.Key:
        return cells.Key(self.world, self.label, self.seed, "return", self.task, None)

    def arguments(self) -> list[str]:
        script = Path("benchmarks") / "peers" / SCRIPTS[self.side]
        return [str(script), self.method, self.world, "--seed", str(self.seed), "--scale", str(self.scale)]


def names() -> dict[str, list[tuple[str, str]]]:
    """What may be asked for: a method in a world, or many of them."""
    pairs = [(method, world) for method, worlds in settings.METHODS.items() for world in worlds]
    groups = {peer: [pair for pair in pairs if settings.PEER[pair[0]] == peer] for peer in ("sb3", "imitation")}
    return {"all": pairs, **groups} | {f"{method}-{world}": [(method, world)] for method, world in pairs}


def plan(pairs: Iterable[tuple[str, str]], seeds: range, scale: float) -> list[Run]:
    """Seed after seed, so that what an interrupted call leaves is balanced."""
    return [Run(method, world, side, seed, scale) for seed in seeds for method, world in pairs for side in (settings.PEER[method], "ours")]


def one_thread(library: str) -> dict[str, str]:
    """The environment variables of a run."""
    variables = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "NPROC": "1", "JAX_PLATFORMS": "cpu"}
    # Compiled programs are kept: they are the same for every seed.
    own = {"imitation": {"PYTHONPATH": str(ROOT / "src")}, "ours": {"JAX_COMPILATION_CACHE_DIR": str(VENVS / "compiled")}, "sb3": {}}
    return variables | own[library]


def execute(run: Run, python: Path) -> cells.Cell:
    """The run as a cell."""
    done = subprocess.run([str(python), *run.arguments()], cwd=ROOT, env=one_thread(run.side), capture_output=True, text=True)
    if done.returncode:
        raise UserError(f"{run.label} on {run.world} with seed {run.seed} failed: {done.stderr.strip().splitlines()[-1:]}.")
    said = json.loads(done.stdout.splitlines()[-1])
    extra = {name: said[name] for name in ("cpu_s", "compile_s", "returns", "agent") if name in said}
    return {
        "experiment": "peers", "env": run.world, "task": run.task, "method": run.label, "seed": run.seed, "metric": "return",
        "value": said["return"], "env_steps": said["steps"], "wall_s": said["wall_s"], "config": run.config, "commit": cells.commit(),
        "versions": said["versions"], "command": " ".join(["python", *run.arguments()]), "extra": extra,
    }  # fmt: skip


def complete(runs: list[Run], out: Path, jobs: int) -> None:
    """Run what is missing; each finished run is written at once."""
    known = cells.read(out)
    for run in runs:
        cells.check_config(out, known, run.world, run.label, run.config)
    there = {cells.key_of(cell) for cell in known}
    missing = [run for run in runs if run.key not in there]
    pythons = {side: environment(side) for side in sorted({run.side for run in missing})}

    def work(numbered: tuple[int, Run]) -> None:
        number, run = numbered
        cell = execute(run, pythons[run.side])
        cells.append(out, [cell])
        print(
            f"{number}/{len(missing)} {run.label} {run.world} seed {run.seed}: {cell['value']:.2f} in {cell['extra']['cpu_s']:.0f} CPU-s",
            flush=True,
        )

    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(work, enumerate(missing, start=1)))


# --- The table -----------------------------------------------------------------------------------------------------------

TEXT = """# Beside the peers

Mean return of {episodes} greedy episodes after training: interquartile mean over seeds with 95 % bootstrap intervals. *better*: our
interval lies above the peer's; *overlap*: they meet; *worse*: ours lies below. Both sides have the same network sizes, batches,
environment steps and updates and one thread. DQN's and PPO's settings on CartPole and Acrobot are those tuned for stable-baselines3;
CoinGrid's, and DQN's budgets on CoinGrid and Acrobot, were chosen by looking at our side only; our SQIL, and our PPO on
Acrobot, have some settings of their own, found with more tries than the peer had (benchmarks/peers/settings.py says what was tried; none of
it on the seeds below). CPU-s: median over seeds, training only; compiling (once per program, then kept) is a column of its own, the
longest seen.

| method | world | budget | peer | peer's return | psiphi's return | | seeds | peer CPU-s | psiphi CPU-s | compile s |
|---|---|---|---|---|---|---|---|---|---|---|
{rows}

Demonstrations (benchmarks/peers/demos): {demonstrators}.

Versions: {versions}. imitation brings a stable-baselines3 and a Gymnasium of its own; every line of cells.jsonl names its versions,
settings, commit and command.
"""


def summary(found: list[cells.Cell]) -> dict[str, Any]:
    values = [cell["value"] for cell in found]
    low, high = stats.bootstrap_interval(values)
    return {
        "iqm": stats.iqm(values), "low": low, "high": high, "seeds": len(values),
        "cpu_s": float(np.median([cell["extra"]["cpu_s"] for cell in found])),
        "compile_s": max((cell["extra"].get("compile_s", 0.0) for cell in found), default=0.0),
    }  # fmt: skip


def row(method: str, world: str, every: list[cells.Cell]) -> str | None:
    """One line of the table, if both sides have been run."""
    sides = [f"{method} ({LIBRARIES[side]})" for side in (settings.PEER[method], "ours")]
    found = [[cell for cell in every if (cell["env"], cell["method"]) == (world, side)] for side in sides]
    if not all(found):
        return None
    peer, ours = (summary(x) for x in found)
    verdict = "better" if ours["low"] > peer["high"] else "overlap" if ours["high"] >= peer["low"] else "worse"
    figures = [f"{x['iqm']:.2f} [{x['low']:.2f}, {x['high']:.2f}]" for x in (peer, ours)]
    task = settings.task(method, world)
    place = f"{world} {task}" if world == "CoinGrid" else world
    budget = found[0][0]["config"].get("steps") or found[0][0]["config"]["updates"]
    unit = "updates" if method == "bc" else "steps"
    seeds = f"{peer['seeds']} / {ours['seeds']}"
    times = f"{peer['cpu_s']:.1f} | {ours['cpu_s']:.1f} | {ours['compile_s']:.0f}"
    library = LIBRARIES[settings.PEER[method]]
    return f"| {method.upper()} | {place} | {budget:,} {unit} | {library} | {figures[0]} | {figures[1]} | {verdict} | {seeds} | {times} |"


def demonstrators() -> str:
    """What the demonstrators themselves reach."""
    loaded = {name: demonstrations.load(HERE / "demos" / file) for name, file in settings.DEMONSTRATIONS.items()}
    return "; ".join(
        f"{name}: {len(x.length)} episodes, {len(x.action):,} steps, mean return {x.returns.mean():g}" for name, x in loaded.items()
    )


def render(out: Path) -> str:
    every = cells.read(out)
    rows = [line for method, world in names()["all"] if (line := row(method, world, every))]
    versions: dict[str, set[str]] = {}
    for name, value in (pair for cell in every for pair in cell["versions"].items() if pair[0] not in ("platform", "threads")):
        versions.setdefault(name, set()).add(value)
    return TEXT.format(
        episodes=settings.EVALUATION_EPISODES,
        rows="\n".join(rows),
        demonstrators=demonstrators(),
        versions=", ".join(f"{name} {' and '.join(sorted(values))}" for name, values in sorted(versions.items())),
    )


def main() -> None:
    known = names()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=tuple(known), metavar="NAME", help=", ".join(known))
    parser.add_argument("--seeds", type=int, default=10, help="runs per method, world and side")
    parser.add_argument("--first-seed", type=int, default=FIRST_SEED)
    parser.add_argument("--out", type=Path, default=Path("results/peers"), help="directory of cells.jsonl and README.md")
    parser.add_argument("--jobs", type=int, default=1, help="processes side by side")
    parser.add_argument("--scale", type=float, default=1.0, help="fraction of the budget, to try things out")
    parser.add_argument("--render", action="store_true", help="run nothing, only write the table anew")
    args = parser.parse_args()
    try:
        if not args.render:
            complete(plan(known[args.name], range(args.first_seed, args.first_seed + args.seeds), args.scale), args.out, args.jobs)
        text = render(args.out)
    except UserError as error:
        sys.exit(f"run.py: {error}")
    target = args.out / "README.md"
    target.with_suffix(".new").write_text(text, encoding="utf-8")
    os.replace(target.with_suffix(".new"), target)
    print(text)


if __name__ == "__main__":
    main()
