"""What every test run shares: JAX on the CPU, compiled code kept between runs, and types and shapes checked at every call."""

import gc
import os
import platform
import signal
from importlib import metadata
from pathlib import Path

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell starts its background jobs deaf to Ctrl-C, and so would be the programs whose answer to it is tested.
    signal.signal(signal.SIGINT, signal.default_int_handler)

os.environ["JAX_PLATFORMS"] = "cpu"
_caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
# By machine, as compiled code may use instructions that another machine with the same home folder lacks.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(_caches / "psiphi" / "jax-tests" / (platform.node() or "here")))
# All of them: most programs here compile in less than 0.2 s, but there are thousands, and to read one is several times as fast.
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_TRACEBACK_IN_LOCATIONS_LIMIT", "0")  # where each operation was written costs time at every lowering
if metadata.version("jaxlib").startswith("0.10."):  # a flag that XLA does not know ends the process
    # Most programs here run once, for milliseconds, after seconds of compiling: plain code will do, made in about half of the time.
    # Processes that tests start inherit it, but for what is pinned to the bit: golden.py sets flags of its own.
    _quickly = "--xla_cpu_use_fusion_emitters=false --xla_backend_optimization_level=1"
    _given = os.environ.get("XLA_FLAGS", "")
    if _quickly not in _given:  # workers inherit what the first process set; other flags would be other compiled programs
        os.environ["XLA_FLAGS"] = f"{_given} {_quickly}".strip()
gc.set_threshold(200_000, 20, 100)  # tracing makes many small objects that stay: to look through them often takes long

from beartype import BeartypeConf, beartype  # noqa: E402
from hypothesis import settings  # noqa: E402
from jaxtyping import install_import_hook  # noqa: E402

checked = beartype(conf=BeartypeConf(is_pep484_tower=True))  # an int will do for a float, as type checkers have it
install_import_hook("psiphi", "conftest.checked")  # before anything imports psiphi

settings.register_profile("psiphi", deadline=None)  # the first example of a property pays for compiling it
settings.load_profile("psiphi")

LONGEST_FIRST = (
    "api", "wants", "matrix", "report", "reproduce", "cli", "known_worlds", "tune", "baselines", "pace", "same_actions", "gym_loop",
    "training", "resume", "itd", "psiphi", "golden", "tasks", "toys", "traffic_experiments", "divergence", "ppo", "traffic_parity",
    "tutorial", "gail", "infer", "kinds", "hostile", "roundabout_table", "api_baselines", "codes", "explore", "docs", "imitation",
    "together", "algorithms", "model_files", "highway", "roundabout", "fuzz",
)  # fmt: skip
"""Files of tests that take long. Workers take whole files: one that begins its longest at the end lets the others wait for it."""


def pytest_collection_modifyitems(items):
    places = {f"test_{name}.py": place for place, name in enumerate(LONGEST_FIRST)}
    items.sort(key=lambda item: places.get(item.path.name, len(places)))
