"""Where the time of one PsiPhi-learning update goes, on Highway and on CoinGrid, and what share of the processor's peak it uses.

    python benchmarks/update_profile.py [--worlds highway-multi-task coingrid] [--updates 400] [--out profile.json]
    PYTHONPATH=/tmp/before/src python benchmarks/update_profile.py --out before.json        (of another checkout)
    python benchmarks/update_profile.py --attempts [--turns 2] --worlds highway-multi-task --out attempts.json

One thread. Demonstrations and experience are random numbers of the right shapes: the arithmetic is that of a real run. Three numbers are
measured in turn, round after round, and their medians are printed, so that a busy machine disturbs them alike: the time of an update (many
in one compiled scan, as the library runs them), the time of a large matrix product (the peak), and, once, what each kind of operation
takes, from JAX's own profiler. An update's operations are counted by XLA; most of them are matrix products.

`--attempts` times the same update under each of `ATTEMPTS`, a process for each, in turn: what a compiler's flag or another way of
calling it would gain.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROUNDS = 8
SIDE = 1_024
"""Of the square matrices whose product is the peak."""
ATTEMPTS: dict[str, tuple[dict[str, str], list[str]]] = {
    "as it is": ({}, []),
    "vectors of 512 bits": ({"XLA_FLAGS": "--xla_cpu_prefer_vector_width=512"}, []),
    "products of bfloat16": ({"JAX_DEFAULT_MATMUL_PRECISION": "bfloat16"}, []),
    "four updates unrolled": ({}, ["--unroll", "4"]),
}
"""By name: what is in the environment, and which flags this script gets."""


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--worlds", nargs="+", default=["highway-multi-task", "coingrid"], metavar="WORLD")
    parser.add_argument("--updates", type=int, default=400, help="updates to time, in all rounds together")
    parser.add_argument("--learn", type=int, default=0, metavar="STEPS", help="instead, train three seeds for so many steps")
    parser.add_argument("--unroll", type=int, default=1, help="updates that are one piece of the compiled loop")
    parser.add_argument("--attempts", action="store_true", help="instead, time an update under each of some settings")
    parser.add_argument("--turns", type=int, default=2, help="of attempts: how often each is timed")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    return parser.parse_args()


def one_thread() -> None:
    """Before JAX is imported."""
    os.environ["NPROC"] = "1"
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"


def prepared(world: str) -> tuple[Any, Any]:
    """A learner with the world's own settings, and its state after it has seen random steps."""
    import jax

    from psiphi import training, worlds
    from psiphi.agents import psiphi
    from psiphi.types import Pace

    run = training.completed(training.default_run("psiphi", world))
    place = worlds.find(world)
    spec = training.place_of(place.env(run.world, run.task), run.num_envs).spec
    demonstrators = len(run.demonstrators or place.demonstrators(run.world))
    pace = Pace(num_envs=run.num_envs, updates=10_000)
    agent = psiphi.make(run.agent, spec, demonstrators, pace)
    rollout, demos = random_data(spec, demonstrators, pace.num_envs)
    return agent, jax.jit(lambda key: agent.observe(agent.init(key, demos), rollout))(jax.random.key(0))


def random_data(spec: Any, demonstrators: int, num_envs: int, steps: int = 2_000) -> tuple[Any, Any]:
    """A rollout and demonstrations of random observations and actions."""
    import jax.numpy as jnp
    import numpy as np

    from psiphi.types import Demonstration, Demos, Transition

    rng = np.random.default_rng(0)

    def some(*shape: int) -> tuple[Any, Any, Any]:
        whole = jnp.issubdtype(spec.obs_dtype, jnp.integer)
        draw = (lambda: rng.integers(0, 2, (*shape, *spec.obs_shape))) if whole else (lambda: rng.uniform(-1, 1, (*shape, *spec.obs_shape)))
        obs, next_obs = (jnp.asarray(draw(), spec.obs_dtype) for _ in range(2))
        return obs, jnp.asarray(rng.integers(0, spec.num_actions, shape), jnp.int32), next_obs

    obs, action, next_obs = some(steps // num_envs, num_envs)
    reward = jnp.asarray(rng.random(action.shape), jnp.float32)
    rollout = Transition(obs, action, reward, jnp.ones(action.shape), next_obs, reward < 0)
    obs, action, next_obs = some(demonstrators, steps)
    shown = Demonstration(obs, action, jnp.ones(action.shape), next_obs, action)
    return rollout, Demos(shown, jnp.full(demonstrators, steps, jnp.int32))


def peak() -> tuple[Callable[[], Any], float]:
    """A large matrix product, and how many operations it is."""
    import jax

    left, right = (jax.random.normal(jax.random.key(i), (SIDE, SIDE)) for i in range(2))
    product = jax.jit(lambda a, b: a @ b)
    return lambda: product(left, right), 2.0 * SIDE**3


def seconds(run: Callable[[], Any]) -> float:
    """Of processor time, which other processes do not lengthen as much as the clock's."""
    import jax

    started = time.process_time()
    jax.block_until_ready(run())
    return time.process_time() - started


def profiled(world: str, updates: int, unroll: int) -> dict[str, Any]:
    """All figures of one world."""
    import jax

    agent, state = prepared(world)
    chunk = max(updates // ROUNDS, 1)
    many = jax.jit(lambda state, key: jax.lax.scan(agent.update, state, jax.random.split(key, chunk), unroll=unroll), donate_argnums=0)
    once = jax.jit(agent.update).lower(state, jax.random.key(0)).compile()
    operations = float(cost(once)["flops"])
    carry = [state]

    def some() -> Any:
        carry[0], metrics = many(carry[0], jax.random.key(1))
        return metrics

    product, size = peak()
    jax.block_until_ready((some(), product()))
    took = [(seconds(some) / chunk, seconds(product)) for _ in range(ROUNDS)]
    update, matrix = (statistics.median(column) for column in zip(*took, strict=True))
    reached, most = operations / update / 1e9, size / matrix / 1e9
    return {
        "ms_per_update": round(update * 1e3, 3),
        "updates_per_s": round(1 / update, 1),
        "megaflop_per_update": round(operations / 1e6, 1),
        "gflops": round(reached, 1),
        "peak_gflops": round(most, 1),
        "share_of_peak": round(reached / most, 3),
        "where": where(some, chunk),
    }


def attempted(world: str, updates: int, turns: int) -> dict[str, Any]:
    """Milliseconds of an update under each setting, in every turn, and the ratio of the medians to that of the update as it is."""
    took: dict[str, list[float]] = {name: [] for name in ATTEMPTS}
    for _ in range(turns):
        for name, (env, flags) in ATTEMPTS.items():
            words = [sys.executable, __file__, "--worlds", world, "--updates", str(updates), *flags]
            with tempfile.TemporaryDirectory() as folder:
                subprocess.run([*words, "--out", f"{folder}/got.json"], env={**os.environ, **env}, check=True, stdout=subprocess.DEVNULL)
                took[name].append(json.loads(Path(folder, "got.json").read_text())[world]["ms_per_update"])
            print(f"{world}, {name}: {took[name][-1]} ms", flush=True)
    usual = statistics.median(took["as it is"])
    return {name: {"ms_per_update": ms, "times as fast": round(usual / statistics.median(ms), 3)} for name, ms in took.items()}


def curves(world: str, steps: int) -> dict[str, Any]:
    """Returns of seeds 0 to 2, trained at once, by steps: what shows that a faster program learns as well."""
    from psiphi import training

    rows = training.train(training.default_run("psiphi", world, steps=steps, evaluate_every=steps // 6), seeds=3, progress=False).rows
    judged = [row for row in rows if "eval/normalised_return" in row]
    found: dict[str, Any] = {"env_steps": sorted({row["env_steps"] for row in judged})}
    for seed in range(3):
        found[f"seed {seed}"] = [round(row["eval/normalised_return"], 4) for row in judged if row["seed"] == seed]
    return found


def cost(program: Any) -> dict[str, float]:
    found = program.cost_analysis()
    return found[0] if isinstance(found, list) else found


def where(run: Callable[[], Any], updates: int) -> dict[str, float]:
    """Milliseconds of an update by kind of operation, by the clock, as JAX's profiler saw them: "ynn_fusion" and "dot" are mostly matrix
    products, all else moves numbers or takes them one by one. Other work on the machine lengthens them alike."""
    import jax

    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            jax.block_until_ready(run())
        (trace,) = Path(folder).rglob("*.xplane.pb")
        data = jax.profiler.ProfileData.from_file(str(trace))
    total: Counter[str] = Counter()
    for plane in data.planes:
        for line in plane.lines:
            for event in line.events:
                if any(name == "hlo_op" for name, _ in event.stats):
                    total[kind(event.name)] += event.duration_ns
    return {name: round(ns / updates / 1e6, 3) for name, ns in total.most_common(16)}


def kind(name: str) -> str:
    """An operation's name without its number."""
    return name.rstrip("0123456789").rstrip(".")


def main() -> None:
    args = arguments()
    one_thread()
    found = {}
    for world in args.worlds:
        if args.attempts:
            found[world] = got = attempted(world, args.updates, args.turns)
        else:
            found[world] = got = curves(world, args.learn) if args.learn else profiled(world, args.updates, args.unroll)
        print(f"{world}: {json.dumps(got, indent=1)}", flush=True)
    if args.attempts:
        from psiphi.experiments import cells

        found |= {"command": cells.command(), "commit": cells.commit(), "versions": cells.versions()}
    if args.out:
        args.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
