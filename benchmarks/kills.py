"""Do the cells of a reproduction whose workers are killed equal those of an undisturbed one? On Ray, and by submitit's stand-in for SLURM.

    python benchmarks/kills.py [--on ray slurm local] [--kills 12] [--seeds 2] [--out results/survival]

A small experiment of both loops (a DQN on a small CoinGrid, compiled, and on CartPole, Gymnasium's) is reproduced undisturbed, then again
on each place while processes are killed with SIGKILL at random moments: those that train, Ray's workers around them, the jobs. The Ray
cluster is a head without cores and two worker nodes, each with processes of its own; in the middle of it one node is lost as a whole and
another one joins. Then every line of cells.jsonl is compared, but for times and the command. A line of kills.jsonl says what was found.
Needs psiphi[ray,slurm] and psutil.
"""

import argparse
import contextlib
import json
import os
import random
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import psutil

from psiphi.experiments import cells, clusters, reproduce
from psiphi.experiments.reproduce import Effort

EXPERIMENT = '''"""A DQN in the compiled loop and in Gymnasium's, small."""
from psiphi.experiments.paper import EGO, Experiment, Figure, Method, Table, Variant

SMALL = {"agent.torso_hidden": (8,), "agent.head_hidden": (8,), "agent.batch": 4, "agent.replay_size": 64, "num_envs": 2}
SMALL |= {"prefill_steps": 16, "evaluate_every": 400, "evaluate_episodes": 4}
EXPERIMENT = Experiment(
    name="killed", title="Killed", story="Small trainings in both loops.",
    variants=(
        Variant("coingrid", "CoinGrid", world="coingrid", ego="R+G", changes={"world.size": 5, "world.max_steps": 8}),
        Variant("cartpole", "CartPole", world="CartPole-v1"),
    ),
    methods=(Method("dqn", "DQN", SMALL, how="curve", algorithm="dqn"),),
    measures=(), tables=(Table("While it learns", (("area", Figure("auc", EGO)),)),),
)
'''
STEPS = 12_000
OURS = ("reproduce.worker()", "ray::alone", "submitit.core._submit")
"""What the processes that may be killed have in their command lines."""


class Killer(threading.Thread):
    """Kills one process of ours after the other, each some seconds after the last, until it has killed so many."""

    def __init__(self, kills: int, seed: int, pause_s: float):
        super().__init__(daemon=True)
        self.left, self.draw, self.pause_s, self.over = kills, random.Random(seed), pause_s, threading.Event()
        self.killed: list[str] = []

    def run(self) -> None:
        while self.left and not self.over.wait(self.draw.uniform(0.5, 1.5) * self.pause_s):
            victims = [(process, kind) for process in psutil.Process().children(recursive=True) if (kind := self._kind(process))]
            if victims:
                process, kind = self.draw.choice(victims)
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.send_signal(signal.SIGKILL)
                    self.killed.append(kind)
                    self.left -= 1

    def _kind(self, process: psutil.Process) -> str | None:
        try:
            words = " ".join(process.cmdline())
        except psutil.Error:
            return None
        return next((kind for kind in OURS if kind in words), None)


def comparable(directory: Path) -> list[str]:
    """The lines of a file of cells without times and commands, in an order of their own."""
    lines = [json.loads(line) for line in (directory / cells.FILE).read_text().splitlines()]
    return sorted(json.dumps({k: x for k, x in line.items() if not k.endswith("_s") and k != "command"}, sort_keys=True) for line in lines)


def reproduced(source: Path, out: Path, seeds: int, runner: Any, jobs: int) -> Path:
    return reproduce.reproduce(str(source), out, range(seeds), effort=Effort(steps=STEPS), jobs=jobs, runner=runner, checkpoint_every_s=0.5)


@contextlib.contextmanager
def ray_cluster(killer: Killer) -> Any:
    """A head and two nodes of one core each; half-way through the kills one of the nodes is lost and another joins."""
    from ray.cluster_utils import Cluster  # pyright: ignore[reportMissingImports]

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    nodes = [cluster.add_node(num_cpus=1) for _ in range(2)]
    half, lost = killer.left // 2, []

    def lose() -> None:
        while killer.left > half and not killer.over.wait(0.5):
            pass
        if not killer.over.is_set():
            cluster.remove_node(nodes[0], allow_graceful=False)
            lost.append(1)
            cluster.add_node(num_cpus=1)

    thread = threading.Thread(target=lose, daemon=True)
    thread.start()
    try:
        yield cluster.address, lost
    finally:
        killer.over.set()
        thread.join()
        cluster.shutdown()


def disturbed(on: str, source: Path, out: Path, seeds: int, kills: int) -> dict[str, Any]:
    killer, started, lost = Killer(kills, seed=0, pause_s=7.0), time.monotonic(), []
    if on == "ray":
        with ray_cluster(killer) as (address, lost):
            killer.start()
            directory = reproduced(source, out, seeds, clusters.runner("ray", address=address), 2)
    else:
        killer.start()
        runner = clusters.runner("slurm", jobs=2, slurm="cluster=local") if on == "slurm" else clusters.runner("local", jobs=2)
        directory = reproduced(source, out, seeds, runner, 2)
    killer.over.set()
    return {"directory": directory, "killed": killer.killed, "nodes_lost": len(lost), "seconds": round(time.monotonic() - started, 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--on", nargs="+", default=["ray", "slurm"], choices=["ray", "slurm", "local"])
    parser.add_argument("--kills", type=int, default=12)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("results/survival"))
    parser.add_argument("--scratch", type=Path, help="where the reproductions go; a directory that is removed, if not given")
    given = parser.parse_args()
    # Ray's workers find psiphi where this process does.
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(cells.__file__).parents[2]), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    with tempfile.TemporaryDirectory() as made:
        scratch = (given.scratch or Path(made)).absolute()
        scratch.mkdir(parents=True, exist_ok=True)
        source = scratch / "killed.py"
        source.write_text(EXPERIMENT)
        started = time.monotonic()
        whole = comparable(reproduced(source, scratch / "undisturbed", given.seeds, clusters.runner("local", jobs=2), 2))
        undisturbed_s = round(time.monotonic() - started, 1)
        given.out.mkdir(parents=True, exist_ok=True)
        all_equal = True
        for on in given.on:
            found = disturbed(on, source, scratch / on, given.seeds, given.kills)
            lines = comparable(found["directory"])
            row = {
                "on": on,
                "kills": len(found["killed"]),
                "killed": {kind: found["killed"].count(kind) for kind in dict.fromkeys(found["killed"])},
                "nodes_lost": found["nodes_lost"],
                "trainings": len(whole),
                "compared": cells.FILE,
                "equal": lines == whole,
                "lost": len(set(whole) - set(lines)),
                "doubled": len(lines) - len(set(lines)),
                "seconds": found["seconds"],
                "undisturbed_s": undisturbed_s,
                "steps": STEPS,
                "seeds": list(range(given.seeds)),
                "command": " ".join(["python", "benchmarks/kills.py", *sys.argv[1:]]),
                "commit": cells.commit(),
                "versions": cells.versions(),
            }
            with open(given.out / "kills.jsonl", "a") as file:
                file.write(json.dumps(row) + "\n")
            print(json.dumps({name: row[name] for name in ("on", "kills", "killed", "nodes_lost", "trainings", "equal", "seconds")}))
            all_equal &= row["equal"]
    sys.exit(0 if all_equal else 1)


if __name__ == "__main__":
    main()
