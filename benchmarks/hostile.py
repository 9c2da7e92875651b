# pyright: reportArgumentType=false
# What does not fit is the point here.
"""A corpus of hostile and broken inputs: files, run and model directories, flags, names, and misuse of the Python interface.

    python benchmarks/hostile.py [--only GROUP]

Every case says which sentence it must end in (or that it must go well). Each is given ten seconds of computing.
Counted are tracebacks, hangs, silent acceptances and wrong sentences, all of which should be 0, and the most memory that a case took.
"""

import argparse
import contextlib
import io
import json
import os
import re
import select
import shutil
import stat
import subprocess
import sys
import tempfile
import time
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import psiphi
from psiphi import checkpoint, cli, printable
from psiphi.demos import Columns, Demonstrations
from psiphi.errors import UserError

SECONDS = 10.0
MOST_MEMORY = 2**30
"""Of a case beyond what the program takes by itself."""


class Case(NamedTuple):
    group: str
    name: str
    act: Callable[[Path, Path], Any]
    """``act(here, kit)``: in an empty directory, with what `prepare` made."""
    said: str | None
    """What the sentence must match; None: no error."""


CASES: list[Case] = []


def add(group: str, name: str, said: str | None, act: Callable[[Path, Path], Any]) -> None:
    CASES.append(Case(group, name, act, said))


# --- What cases are made of ----------------------------------------------------------------------------------------------

SMALL = dict(torso_hidden=(8,), phi_hidden=(8,), psi_hidden=(8,), batch=8, cross_policy_on="pooled", cross_batch=8, sparsity=0.0)
TINY = (
    "--world.size 5 --world.coins 1 1 0 --world.max-steps 8 --agent.torso-hidden 8 --agent.phi-hidden 8 --agent.psi-hidden 8 "
    "--agent.batch 4 --agent.cross-batch 4 --num-envs 2 --agent.replay-size 64 --prefill-steps 8 --updates 2 --episodes 4 --quiet"
).split()


def logs(agents: str = "abab", steps: int = 6) -> Demonstrations:
    random = np.random.default_rng(0)
    seen = [random.normal(size=(steps + 1, 2)).astype(np.float32) for _ in agents]
    return Demonstrations.from_lists(seen, [random.integers(2, size=steps) for _ in agents], list(agents), num_actions=2)


def prepare(kit: Path) -> None:
    """A model, a run directory and a finished table, as psiphi leaves them."""
    itd = psiphi.ITD(psiphi.ITDConfig(**SMALL), updates=4).fit(logs(), progress=False)  # pyright: ignore[reportArgumentType]
    itd.save(kit / "model")
    command("train", "itd", *TINY, "--out", str(kit / "run"))
    logs().write(kit / "log.csv")
    logs().write(kit / "log.npz")
    logs().write(kit / "log.parquet")
    logs().write(kit / "log-v0")


def command(*arguments: str) -> str:
    """A command of the command line: what it prints; what ends with code 2 is a UserError again."""
    out, err = io.StringIO(), io.StringIO()
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            cli.main(list(arguments))
    except SystemExit as left:
        if left.code == 2:
            lines = err.getvalue().splitlines()
            raise UserError(lines[-1].removeprefix("psiphi: ")) from left
        if left.code not in (0, None):
            raise RuntimeError(f"exit {left.code}: {err.getvalue()}") from left
    return out.getvalue()


HEADER = "agent,episode,t,obs_x,obs_y,action"
ROWS = ["ann,0,0,1,2,0", "ann,0,1,2,3,1", "ann,0,2,3,4,0", "bob,0,0,1,2,1", "bob,0,1,5,6,0"]


def csv_case(name: str, said: str | None, text: str | bytes | Callable[[], str | bytes], **columns: Any) -> None:
    def act(here: Path, kit: Path) -> Any:
        data = text() if callable(text) else text
        path = here / "log.csv"
        path.write_bytes(data if isinstance(data, bytes) else data.encode("utf-8", "surrogatepass"))
        return Demonstrations.read(path, Columns(**columns))

    add("csv", name, said, act)


def table(*rows: str, header: str = HEADER) -> str:
    return "\n".join([header, *rows]) + "\n"


def changed(row: int, text: str) -> str:
    return table(*[text if i == row else line for i, line in enumerate(ROWS)])


ARRAYS: dict[str, Any] = {
    "agent": np.array(["ann", "ann", "bob", "bob"]),
    "episode": np.zeros(4, int),
    "obs": np.arange(8, dtype=np.float32).reshape(4, 2),
    "action": np.array([0, 1, 1, 0]),
}


def npz_case(name: str, said: str | None, change: dict[str, Any] | Callable[[Path], Any], drop: str = "") -> None:
    def act(here: Path, kit: Path) -> Any:
        path = here / "log.npz"
        if callable(change):
            change(path)
        else:
            arrays = {key: value for key, value in (ARRAYS | change).items() if key != drop}
            np.savez(path, **arrays)
        return Demonstrations.read(path)

    add("npz", name, said, act)


def zipped(members: dict[str, bytes], method: int = zipfile.ZIP_STORED) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        with zipfile.ZipFile(path, "w", method) as archive:
            for name, data in members.items():
                archive.writestr(name, data)

    return make


def npy(header: str, data: bytes = b"", version: tuple[int, int] = (1, 0)) -> bytes:
    text = header.encode("latin1", "replace")
    size = len(text).to_bytes(2 if version[0] == 1 else 4, "little")
    return b"\x93NUMPY" + bytes(version) + size + text + data


def npz_with(name: str, data: bytes, method: int = zipfile.ZIP_STORED) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        buffer = io.BytesIO()
        np.savez(buffer, **{key: value for key, value in ARRAYS.items() if key != name})
        with zipfile.ZipFile(buffer, "a", method) as archive:
            archive.writestr(f"{name}.npy", data)
        path.write_bytes(buffer.getvalue())

    return make


def parquet_case(
    name: str, said: str | None, columns: Callable[[Any], dict[str, Any]] | bytes, metadata: dict[bytes, bytes] | None = None
) -> None:
    def act(here: Path, kit: Path) -> Any:
        import pyarrow
        import pyarrow.parquet

        path = here / "log.parquet"
        if isinstance(columns, bytes):
            path.write_bytes(columns)
        else:
            base = {"agent": ["a"] * 3, "episode": [0] * 3, "obs_x": [1.0, 2.0, 3.0], "action": [0, 1, 0]}
            made = pyarrow.table({key: value for key, value in (base | columns(pyarrow)).items() if value is not None})
            pyarrow.parquet.write_table(made.replace_schema_metadata(metadata) if metadata else made, path)
        return Demonstrations.read(path)

    add("parquet", name, said, act)


def minari_case(name: str, said: str | None, change: Callable[[Any, Path], None]) -> None:
    """`change(h5py file, dataset)` on a dataset that psiphi wrote."""

    def act(here: Path, kit: Path) -> Any:
        import h5py

        path = here / "log-v0"
        shutil.copytree(kit / "log-v0", path)
        with h5py.File(path / "data" / "main_data.hdf5", "r+") as file:
            change(file, path)
        return Demonstrations.read(path)

    add("minari", name, said, act)


def replaced(file: Any, name: str, value: Any) -> None:
    for group in file.values():
        del group[name]
        group.create_dataset(name, data=value)


def described(path: Path, **fields: Any) -> None:
    where = path / "data" / "metadata.json"
    where.write_text(json.dumps(json.loads(where.read_text()) | fields))


def model_case(name: str, said: str | None, damage: Callable[[Path], Any], ask: Callable[[Path], Any] = psiphi.load) -> None:
    def act(here: Path, kit: Path) -> Any:
        shutil.copytree(kit / "model", here / "model")
        damage(here / "model")
        return ask(here / "model")

    add("model", name, said, act)


def edit(path: Path, where: str, value: Any) -> None:
    """One field of a manifest."""
    manifest = json.loads((path / "manifest.json").read_text())
    place = manifest
    *outer, last = where.split(".")
    for key in outer:
        place = place[key]
    place[last] = value
    (path / "manifest.json").write_text(json.dumps(manifest))


def arrays_of(path: Path) -> Path:
    (file,) = path.glob("arrays-*.safetensors")
    return file


def resealed(path: Path, where: str, value: Any) -> None:
    """One field of a manifest, and the hashes to match: what somebody who knows the format can do."""
    import safetensors.numpy

    edit(path, where, value)
    manifest = json.loads((path / "manifest.json").read_text())
    arrays = safetensors.numpy.load(arrays_of(path).read_bytes())
    data = safetensors.numpy.save(arrays, {checkpoint._BOUND: checkpoint._hash_of(manifest)})
    arrays_of(path).unlink()
    import hashlib

    manifest |= {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}
    (path / f"arrays-{manifest['sha256'][:16]}.safetensors").write_bytes(data)
    (path / "manifest.json").write_text(json.dumps(manifest))


def run_case(name: str, said: str | None, damage: Callable[[Path, Path], Any], *flags: str) -> None:
    """The command that made the run directory, on a directory that was changed; `damage(run, elsewhere)`."""

    def act(here: Path, kit: Path) -> Any:
        shutil.copytree(kit / "run", here / "run")
        (here / "elsewhere").mkdir()
        (here / "elsewhere" / "precious").write_text("precious")
        damage(here / "run", here / "elsewhere")
        try:
            return command("train", "itd", *TINY, *flags, "--out", str(here / "run"))
        finally:
            assert (here / "elsewhere" / "precious").read_text() == "precious", "a file elsewhere was changed"
            assert sorted(path.name for path in (here / "elsewhere").iterdir()) == ["precious"], "a file elsewhere was made"

    add("run", name, said, act)


def flag(arguments: str, said: str | None) -> None:
    add("flags", arguments, said, lambda here, kit: command(*arguments.format(here=here, kit=kit).split()))


def api(name: str, said: str | None, act: Callable[[Path, Path], Any]) -> None:
    add("api", name, said, act)


def fitted(kit: Path) -> Any:
    return psiphi.load(kit / "model")


# --- CSV -----------------------------------------------------------------------------------------------------------------

csv_case("empty", "no column 'agent'", b"")
csv_case("only a header", "there is no step", table())
csv_case("one line end", "no column 'agent'", b"\n")
csv_case("zero bytes", "is not a table in CSV|no column|not text|no step|missing", b"\0" * 1000)
csv_case("zero byte in a cell", "not a table in CSV|is damaged|'1\\\\\\\\x002'|is '1", changed(1, "ann,0,1,1\0002,3,1"))
csv_case("not UTF-8", "not text in UTF-8", HEADER.encode() + b"\nann,0,0,\xff,2,0\n")
csv_case("UTF-16", "not text in UTF-8|no column", table(*ROWS).encode("utf-16"))
csv_case("binary", "not text in UTF-8|no column", bytes(range(256)) * 10)
csv_case(
    "a million columns",
    "too many columns: found 1,000,001, expected at most 65,536|too long a first line",
    lambda: "agent" + ",x" * 10**6 + "\n",
)
csv_case("nine megabytes of header", "too long a first line", lambda: "a" * 9 * 2**20)
csv_case(
    "wide header, short rows",
    "rows without the 60,004 fields",
    lambda: "agent,episode,t,action," + ",".join(f"obs_{i}" for i in range(60_000)) + "\n" + "x\n" * 100_000,
)
csv_case("many empty lines", "too many empty lines: found 1,|no step", lambda: table() + "\n" * 5_000_000)
csv_case("a cell of 200 kB", "not a table in CSV: field larger", changed(1, f"{'a' * 200_000},0,1,1,3,1"))
csv_case("column twice", "two columns called 'obs_x'", table("ann,0,0,1,2,0", header="agent,episode,t,obs_x,obs_x,action"))
csv_case("no agent column", "no column 'agent' for the agent", table("0,0,1,2,0", header="episode,t,obs_x,obs_y,action"))
csv_case("no action column", "no column 'action' for the action", table("ann,0,0,1,2", header="agent,episode,t,obs_x,obs_y"))
csv_case("no observation", "no column of observations", table("ann,0,0,0", header="agent,episode,t,action"))
csv_case("row too short", "the row has 5 fields, but the header has 6", changed(2, "ann,0,2,3,4"))
csv_case("row too long", "the row has 7 fields, but the header has 6", changed(2, "ann,0,2,3,4,0,9"))
csv_case("only short rows", "rows without the 6 fields of its header: found 1,001", lambda: table(*["x"] * 5000))
csv_case("underscore in a number", "'1_0', expected a number", changed(1, "ann,0,1,1_0,3,1"))
csv_case("underscore in an action", "the action is '1_0'", changed(1, "ann,0,1,1,3,1_0"))
csv_case("digits of another script", "'１２', expected a number", changed(1, "ann,0,1,１２,3,1"))
csv_case("hexadecimal", "'0x10', expected a number", changed(1, "ann,0,1,0x10,3,1"))
csv_case("a word", "'fast', expected a number", changed(1, "ann,0,1,fast,3,1"))
csv_case("a formula", "'=1\\+1', expected a number", changed(1, "ann,0,1,=1+1,3,1"))
csv_case("NaN", "is nan, expected a finite number", changed(1, "ann,0,1,nan,3,1"))
csv_case("infinity", "is inf, expected a finite number", changed(1, "ann,0,1,inf,3,1"))
csv_case("more than a float holds", "is inf, expected a finite number", changed(1, "ann,0,1,1e999,3,1"))
csv_case("more than a float32 holds", "is inf, expected a finite number", changed(1, "ann,0,1,1e39,3,1"))
csv_case("missing number", "is missing, expected a number", changed(1, "ann,0,1,,3,1"))
csv_case("action of half", "the action is 0.5, expected an integer", changed(1, "ann,0,1,1,3,0.5"))
csv_case("action below 0", "the action is -1, expected 0 to 65535", changed(1, "ann,0,1,1,3,-1"))
csv_case("action of 2^31 - 1", "the action is 2147483647, expected 0 to 65535", changed(1, "ann,0,1,1,3,2147483647"))
csv_case("action of 1e300", "expected 0 to 65535|integer", changed(1, "ann,0,1,1,3,1e300"))
csv_case("action of infinity", "the action is inf, expected an integer", changed(1, "ann,0,1,1,3,inf"))
csv_case("missing action in the middle", "the action is missing in row 1", changed(1, "ann,0,1,1,3,"))
csv_case("missing agent", "the agent is missing in row 1", changed(1, ",0,1,1,3,1"))
csv_case("missing episode", "the episode is missing in row 1", changed(1, "ann,,1,1,3,1"))
csv_case("time twice", "the time occurs twice", changed(1, "ann,0,0,1,3,1"))
csv_case("gap in time", "the time goes from 2 to 200", lambda: table(*ROWS, "ann,0,200,1,1,1", "ann,0,201,1,1,1"))
csv_case("time of NaN", "the time is missing", changed(1, "ann,0,nan,1,3,1"))
csv_case("time of infinity", "the time", changed(1, "ann,0,inf,1,3,1"))
csv_case("a flag that is none", "terminated is 'perhaps'", table("ann,0,0,1,2,0,perhaps", "ann,0,1,1,2,0,1", header=HEADER + ",terminated"))
csv_case(
    "steps after the end",
    "more steps follow",
    table("ann,0,0,1,2,0,1", "ann,0,1,1,2,0,0", "ann,0,2,1,2,0,0", header=HEADER + ",terminated"),
)
csv_case("an open quote", "not a table in CSV|the episode is missing", changed(1, '"ann,0,1,1,3,1'))
csv_case(
    "more agents than heads",
    "too many agents: found 5,000, expected at most 4,096",
    lambda: table(*[f"a{i},0,{t},1,2,0" for i in range(5_000) for t in (0, 1)]),
)
csv_case(
    "column indices that claim a huge grid",
    None,
    table("ann,0,1,2,0", "ann,0,1,2,1", "ann,0,1,2,1", header="agent,episode,obs_0_0,obs_999999_999999,action"),
)
csv_case(
    "column index of 5,000 digits",
    None,
    lambda: table("ann,0,1,0", "ann,0,1,1", "ann,0,2,1", header=f"agent,episode,obs_{'9' * 5000},action"),
)
csv_case("a pattern that matches nothing", "no column that 'z\\*' could mean", table(*ROWS), obs="z*")
csv_case("a pattern made to be slow", "no column that", table(*ROWS), obs="*a*a*a*a*a*a*a*a*a*a*b")
csv_case("a dtype that does not hold", "does not fit|type uint8", changed(1, "ann,0,1,300,3,1"), dtype="uint8")
csv_case("a million one-character rows", "rows without|no step|fields", lambda: table() + "x\n" * 10**6)
csv_case("agents of 100 kB each", None, lambda: table(*[f"{'a' * 100_000},0,{t},1,2,0" for t in range(3)]))


def file_case(name: str, said: str | None, make: Callable[[Path], Path]) -> None:
    add("files", name, said, lambda here, kit: Demonstrations.read(make(here)))


def named_pipe(here: Path) -> Path:
    os.mkfifo(here / "log.csv")
    return here / "log.csv"


def linked(here: Path, target: str, name: str = "log.csv") -> Path:
    (here / name).symlink_to(target)
    return here / name


def made(path: Path, data: bytes = b"") -> Path:
    path.write_bytes(data)
    return path


def directory(path: Path) -> Path:
    path.mkdir()
    return path


file_case("nowhere", "does not exist", lambda here: here / "log.csv")
file_case("a pipe", "neither a regular file nor a directory", named_pipe)
file_case("a device without an end", "neither a regular file nor a directory", lambda here: linked(here, "/dev/zero"))
file_case("a link to nowhere", "neither a regular file nor a directory", lambda here: linked(here, "nowhere"))
file_case("a link to itself", "neither a regular file|cannot be read|[Ss]ymbolic", lambda here: linked(here, "log.csv"))
file_case("a directory called .csv", "is a directory|cannot be read", lambda here: directory(here / "log.csv"))
file_case("an empty directory", "no Minari dataset", lambda here: directory(here / "log-v0"))
file_case("a name without a format", "says no format", lambda here: made(here / "log.xyz"))
file_case("an empty .hdf5", "not an HDF5 file", lambda here: made(here / "log.hdf5"))
file_case("a long name", "cannot be|does not exist|[Nn]ame", lambda here: here / ("x" * 300 + ".csv"))

# --- npz -----------------------------------------------------------------------------------------------------------------

for missing in ("agent", "episode", "obs", "action"):
    npz_case(f"no {missing}", f"has no array '{missing}'", {}, drop=missing)
npz_case("empty", "not an npz file", lambda path: path.write_bytes(b""))
npz_case("text", "not an npz file", lambda path: path.write_bytes(b"agent,episode\n"))
npz_case("no members", "has no array 'agent'", zipped({}))
npz_case("cut off", "not an npz file|is damaged", lambda path: (np.savez(path, **ARRAYS), path.write_bytes(path.read_bytes()[:-30])))
npz_case("a pickle", "holds pickled Python objects", {"agent": np.array(["a", 1, None, 2], object)})
npz_case("ragged pickle", "holds pickled Python objects", {"obs": np.array([[1], [1, 2], [3], [4]], object)})
npz_case("observations of words", "expected numbers", {"obs": np.array([["a", "b"]] * 4)})
npz_case("complex observations", "expected numbers", {"obs": np.ones((4, 2), complex)})
npz_case("dates", "expected numbers", {"obs": np.zeros((4, 2), "M8[s]")})
npz_case("records", "expected numbers", {"obs": np.zeros((4, 2), [("x", "f4"), ("y", "f4")])})
npz_case("one axis", None, {"obs": np.ones(4)})
npz_case("no axis", "expected numbers with the axes", {"obs": np.array(1.0)})
npz_case("lengths that differ", "has shape \\(3,\\), expected \\(4,\\)", {"action": np.zeros(3, int)})
npz_case("actions of two axes", "'action_0' is said to be continuous, expected one whole number", {"action": np.zeros((4, 1), int)})
npz_case("compound actions", "'action' is of type", {"action": np.zeros(4, [("x", "i4")])})
npz_case("actions of bytes", "'action' is of type", {"action": np.array([b"a", b"b", b"c", b"d"])})
npz_case("agents of half", "expected a name or a whole number", {"agent": np.array([0, 0.5, 1, 1])})
npz_case("agents of truth", "expected names or whole numbers", {"agent": np.array([True, False, True, False])})
npz_case("agents of bytes", "expected names or whole numbers", {"agent": np.array([b"a"] * 4)})
npz_case("NaN", "is nan, expected a finite number", {"obs": np.full((4, 2), np.nan, np.float32)})
npz_case("no rows", "no step", {key: value[:0] for key, value in ARRAYS.items()})
npz_case("observations without entries", "no|damaged|expected", {"obs": np.zeros((4, 0), np.float32)})
npz_case("huge num_actions", "too many actions: found 9,999,999", {"num_actions": np.array(9_999_999)})
npz_case("num_actions of -1", "'num_actions' is not a positive integer", {"num_actions": np.array(-1)})
npz_case("names that are no JSON", "'agent_names' is not a list in JSON", {"agent": np.zeros(4, int), "agent_names": np.array("[")})
npz_case("names of deep JSON", "'agent_names' is not a list in JSON", {"agent": np.zeros(4, int), "agent_names": np.array("[" * 100_000)})
npz_case("names of both kinds", "'agent_names' is not a list in JSON", {"agent": np.zeros(4, int), "agent_names": np.array('["a", 1]')})
npz_case("names that are too large", "too large|is not a list", {"agent": np.zeros(4, int), "agent_names": np.array(f"[{2**70}]")})
npz_case("places beyond the names", "'agent' does not fit 'agent_names'", {"agent": np.full(4, 7), "agent_names": np.array('["a"]')})
npz_case(
    "final rows that are not there",
    "names rows that are not there",
    {"final_obs": np.ones((1, 2), np.float32), "final_row": np.array([99])},
)
npz_case("final observations of another shape", "do not fit", {"final_obs": np.ones((1, 3), np.float32), "final_row": np.array([1])})
npz_case("flags that are none", "holds other numbers than 0 and 1", {"terminated": np.array([0, 2, 0, 1])})
HUGE = "{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000, 2), }\n"
npz_case("an array that claims 8 TB", "does not hold as many numbers", npz_with("obs", npy(HUGE)))
npz_case(
    "a negative shape",
    "none of negative length|not an array",
    npz_with("obs", npy("{'descr': '<f4', 'fortran_order': False, 'shape': (-1, 2), }\n")),
)
npz_case(
    "a shape of 40 axes",
    "axes|not an array|does not hold",
    npz_with("obs", npy(f"{{'descr': '<f4', 'fortran_order': False, 'shape': {(1,) * 40}, }}\n", b"\0" * 4)),
)
npz_case("a header of version 9", "not an array|version \\(9, 0\\)", npz_with("obs", npy(HUGE, version=(9, 0))))
npz_case("a header that is code", "not an array", npz_with("obs", npy("__import__('os').system('touch executed')\n")))
npz_case("a header without an end", "not an array|is damaged", npz_with("obs", b"\x93NUMPY\x01\x00\xff\xff{"))
npz_case("no header", "not an array", npz_with("obs", b"hello"))
npz_case(
    "an object dtype in the header",
    "holds pickled|not an array",
    npz_with("obs", npy("{'descr': '|O', 'fortran_order': False, 'shape': (4, 2), }\n", b"\x80\x04K\x01.")),
)
npz_case("deflate bomb of 4 GiB", "claims to hold 4.0 GiB|is damaged|not an npz", lambda path: path.write_bytes(bomb(2**32)))
npz_case("deflate bomb of 300 MiB", "claims to hold 0.3 GiB, expected at most 0.1 GiB", lambda path: path.write_bytes(bomb(300 * 2**20)))
npz_case("locked member", "not an npz file", lambda path: path.write_bytes(locked()))
npz_case(
    "70,000 members",
    "too many arrays",
    lambda path: zipped({**{f"{key}.npy": b"" for key in ARRAYS}, **{f"m{i}.npy": b"" for i in range(70_000)}})(path),
)


def bomb(size: int) -> bytes:
    """An npz whose observations are `size` bytes of zeros, written without ever holding them."""
    header = npy(f"{{'descr': '|u1', 'fortran_order': False, 'shape': ({size // 8}, 8), }}\n")
    packer, packed, crc = zlib.compressobj(9, zlib.DEFLATED, -15), [], zlib.crc32(header)
    packed.append(packer.compress(header))
    block = b"\0" * 2**20
    for _ in range(min(size, 2**29) >> 20):  # of a larger one only the beginning: what it claims decides
        packed.append(packer.compress(block))
        crc = zlib.crc32(block, crc)
    packed.append(packer.flush())
    data = b"".join(packed)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, array in ARRAYS.items():
            member = io.BytesIO()
            np.save(member, array)
            archive.writestr(f"{name if name != 'obs' else 'other'}.npy", member.getvalue())
        info = zipfile.ZipInfo("obs.npy")
        archive.writestr(info, data)
        info.compress_type, info.file_size, info.CRC = zipfile.ZIP_DEFLATED, min(size + len(header), 2**32 - 2), crc
    return buffer.getvalue()


def locked() -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, **ARRAYS)
    data = bytearray(buffer.getvalue())
    for mark, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        start = -1
        while (start := data.find(mark, start + 1)) >= 0:
            data[start + offset] |= 1
    return bytes(data)


# --- Parquet -------------------------------------------------------------------------------------------------------------

parquet_case("empty", "not a Parquet file", b"")
parquet_case("text", "not a Parquet file", b"agent,episode\n" * 10)
parquet_case("magic only", "not a Parquet file", b"PAR1PAR1")
parquet_case("a footer that claims much", "not a Parquet file", b"PAR1" + b"\0" * 20 + b"\xff\xff\xff\x7fPAR1")
parquet_case("nested lists", "'obs' holds list<.*list<.*expected numbers in lists", lambda pa: {"obs_x": None, "obs": [[[1.0], [2.0]]] * 3})
parquet_case("lists of words", "expected numbers in lists", lambda pa: {"obs_x": None, "obs": [["a", "b"]] * 3})
parquet_case("lists of records", "expected numbers in lists", lambda pa: {"obs_x": None, "obs": [[{"x": 1}]] * 3})
parquet_case("empty lists", "empty or missing", lambda pa: {"obs_x": None, "obs": pa.array([[], [], []], pa.list_(pa.float32()))})
parquet_case("null lists", "empty or missing", lambda pa: {"obs_x": None, "obs": pa.array([None] * 3, pa.list_(pa.float32()))})
parquet_case(
    "nulls in lists",
    "is missing, expected a number",
    lambda pa: {"obs_x": None, "obs": pa.array([[1.0, None]] * 3, pa.list_(pa.float32()))},
)
parquet_case(
    "lists of different lengths",
    "entries, expected 2 as in the first row",
    lambda pa: {"obs_x": None, "obs": [[1.0, 2.0], [1.0], [1.0, 2.0]]},
)
parquet_case(
    "fixed lists of length 0",
    "empty or missing|not a Parquet|damaged",
    lambda pa: {"obs_x": None, "obs": pa.array([[], [], []], pa.list_(pa.float32(), 0))},
)
parquet_case("a column of nulls", "holds null, expected numbers", lambda pa: {"obs_x": pa.nulls(3)})
parquet_case("a column of words", "holds string, expected numbers", lambda pa: {"obs_x": ["a", "b", "c"]})
parquet_case("a column of records", "expected numbers", lambda pa: {"obs_x": [{"a": 1}] * 3})
parquet_case("a column of bytes", "holds binary, expected numbers", lambda pa: {"obs_x": [b"a", b"b", b"c"]})
parquet_case("a column of dates", "expected numbers", lambda pa: {"obs_x": pa.array([1, 2, 3], pa.timestamp("s"))})
parquet_case("a column of decimals", "expected numbers", lambda pa: {"obs_x": pa.array([1, 2, 3], pa.decimal128(5))})
parquet_case("actions in lists", "'action' holds lists, expected one number", lambda pa: {"action": [[0], [1], [0]]})
parquet_case("actions of bytes", "'action' holds binary", lambda pa: {"action": [b"left", b"right", b"left"]})
parquet_case("an action of 2^31 - 1", "expected 0 to 65535", lambda pa: {"action": [0, 2**31 - 1, 0]})
parquet_case("times in lists", "'t' holds lists", lambda pa: {"t": [[0], [1], [2]]})
parquet_case("agents in lists", "the agent is of type list", lambda pa: {"agent": [["a"]] * 3})
parquet_case("agents of truth", "the agent is of type bool", lambda pa: {"agent": [True, False, True]})
parquet_case("agents of nothing", "the agent is of type null|missing", lambda pa: {"agent": pa.nulls(3)})
parquet_case("episodes of half", "expected a name or a whole number", lambda pa: {"episode": [0.5, 0.5, 0.5]})
parquet_case("flags of words", "holds string, expected numbers", lambda pa: {"terminated": ["a", "b", "c"]})
parquet_case("a schema that says too much", "too many actions", lambda pa: {}, {b"psiphi": b'{"shape": [1], "num_actions": 2147483647}'})
parquet_case("a schema of deep JSON", "cannot be understood", lambda pa: {}, {b"psiphi": b"[" * 100_000})
parquet_case("a schema of a list", "cannot be understood", lambda pa: {}, {b"psiphi": b"[1]"})
parquet_case("a schema with a negative shape", "cannot be understood", lambda pa: {}, {b"psiphi": b'{"shape": [-1]}'})
parquet_case(
    "a hundred million equal rows",
    "claims to hold|asks for",
    lambda pa: {
        key: pa.DictionaryArray.from_arrays(pa.array(np.zeros(10**7, np.int8)), pa.array([value]))
        for key, value in (("agent", "a"), ("episode", 0), ("obs_x", 1.0), ("action", 0))
    },
)
parquet_case(
    "no rows",
    "no step",
    lambda pa: {
        "agent": pa.array([], pa.string()),
        "episode": pa.array([], pa.int64()),
        "obs_x": pa.array([], pa.float32()),
        "action": pa.array([], pa.int64()),
    },
)

# --- Minari --------------------------------------------------------------------------------------------------------------

minari_case(
    "compound actions",
    "the actions are|holds .*expected numbers",
    lambda file, path: replaced(file, "actions", np.zeros(6, [("a", "i4"), ("b", "f4")])),
)
minari_case(
    "actions of words",
    "expected one integer per step|expected numbers|the actions are",
    lambda file, path: replaced(file, "actions", np.array([b"left"] * 6)),
)
minari_case("actions of two axes", "the actions have shape \\(6, 1\\)", lambda file, path: replaced(file, "actions", np.zeros((6, 1), int)))
minari_case("no actions", "has no 'actions'", lambda file, path: [group.__delitem__("actions") for group in file.values()])
minari_case("no observations", "has no 'observations'", lambda file, path: [group.__delitem__("observations") for group in file.values()])
minari_case("observations of words", "expected", lambda file, path: replaced(file, "observations", np.array([b"x"] * 7)))
minari_case("observations of nothing", "expected", lambda file, path: replaced(file, "observations", __import__("h5py").Empty("f4")))
minari_case(
    "too few observations",
    "there are 3 observations and 6 actions",
    lambda file, path: replaced(file, "observations", np.zeros((3, 2), np.float32)),
)
minari_case("NaN", "expected a finite number", lambda file, path: replaced(file, "observations", np.full((7, 2), np.nan, np.float32)))
minari_case(
    "an array that was never written",
    "claims to hold",
    lambda file, path: [
        (group.__delitem__("observations"), group.create_dataset("observations", (10**9, 2), "f4", chunks=(1024, 2)))
        for group in file.values()
    ],
)
minari_case(
    "a soft link",
    "links are never followed",
    lambda file, path: (file.__delitem__("episode_1"), file.__setitem__("episode_1", __import__("h5py").SoftLink("/episode_0"))),
)
minari_case(
    "an external link",
    "links are never followed",
    lambda file, path: (file.__delitem__("episode_1"), file.__setitem__("episode_1", __import__("h5py").ExternalLink("/etc/passwd", "/"))),
)
minari_case(
    "numbers in another file",
    "keeps its numbers in another file",
    lambda file, path: (
        file["episode_0"].__delitem__("observations"),
        file["episode_0"].create_dataset("observations", (7, 2), "f4", external=[("/etc/passwd", 0, 56)]),
    ),
)
minari_case(
    "an episode that is an array",
    "has no|not an array|damaged|not an HDF5|expected",
    lambda file, path: (file.__delitem__("episode_1"), file.create_dataset("episode_1", data=np.zeros(3))),
)
minari_case("metadata of 10^9 steps", None, lambda file, path: described(path, total_steps=10**9, total_episodes=10**9))
minari_case("metadata of -10^9 steps", None, lambda file, path: described(path, total_steps=-(10**9), total_episodes=1))
minari_case("metadata of deep JSON", "not JSON", lambda file, path: (path / "data" / "metadata.json").write_text("[" * 100_000))
minari_case("metadata of a list", "not an object", lambda file, path: (path / "data" / "metadata.json").write_text("[]"))
minari_case("a space of deep JSON", "is not JSON", lambda file, path: described(path, action_space="[" * 100_000))
minari_case(
    "an action space of boxes",
    "is said to be continuous, expected one whole number from 0",
    lambda file, path: described(path, action_space=json.dumps({"type": "Box"})),
)
minari_case(
    "an action space of 10^9",
    "too many actions",
    lambda file, path: described(path, action_space=json.dumps({"type": "Discrete", "n": 10**9})),
)
minari_case(
    "an action space that starts nowhere",
    "expected discrete ones",
    lambda file, path: described(path, action_space=json.dumps({"type": "Discrete", "n": 2, "start": "x"})),
)
minari_case("agents of both kinds", "ids are of the kinds|kinds", lambda file, path: file["episode_1"].attrs.__setitem__("agent", 7))
minari_case(
    "an agent that is an array", "kinds", lambda file, path: [group.attrs.__setitem__("agent", np.arange(3)) for group in file.values()]
)
minari_case(
    "metadata that is a pipe",
    "not a regular file",
    lambda file, path: ((path / "data" / "metadata.json").unlink(), os.mkfifo(path / "data" / "metadata.json")),
)
minari_case(
    "metadata that is a link",
    "symbolic link",
    lambda file, path: ((path / "data" / "metadata.json").unlink(), (path / "data" / "metadata.json").symlink_to("/etc/passwd")),
)

# --- Model directories ---------------------------------------------------------------------------------------------------

model_case("as it was saved", None, lambda path: None)
for where, value, words in [
    ("meta.version", 99, "version 99, but this psiphi reads versions? .*; update psiphi"),
    ("format", 2, "has format 2, but psiphi .* reads format 1; if a newer psiphi wrote it"),
    ("meta.algorithm", "__import__", "its algorithm is '__import__'"),
    ("meta.kind", "else", "is a checkpoint but not a trained model"),
    ("meta.algorithm", ["itd"], "its algorithm is"),
    ("meta.agents", ["a", "a"], "not different ids"),
    ("meta.agents", [], "not different ids"),
    ("meta.agents", [1.5], "not different ids"),
    ("meta.config.gamma", 7, "gamma is 7.0, expected a number from 0 to 1"),
    ("meta.config.num_cumulants", 10**9, "num_cumulants is 1000000000, expected at most 4,096"),
    ("meta.config.torso", "eyes", "torso is 'eyes', expected one of"),
    ("meta.config.batch", "many", "batch is 'many', which is not a int"),
    ("meta.config", {"strange": 1}, "is not a ITDConfig of this version"),
    ("meta.config", None, "is not a ITDConfig of this version"),
    ("meta.model.seed", -1, "seed is -1, expected at least 0"),
    ("meta.model.obs_shape", [10**9, 10**9], "too large observations|expected at most"),
    ("meta.model.obs_shape", [], "does not fit|damaged"),
    ("meta.model.obs_dtype", "object", "are none that psiphi knows"),
    ("meta.model.num_actions", 2**31 - 1, "num_actions is 2147483647, expected at most 65,536"),
    ("meta.model.beta", 0, "beta is 0.0, expected a number above 0"),
    ("meta.model.likeness", [[1.0]], "does not fit together"),
    ("meta.model.coverage", [0.5], "does not fit together"),
    ("bytes", 10**15, "is damaged"),
    ("bytes", -1, "is damaged"),
    ("sha256", "../../etc/passwd", "lacks a field or has one of the wrong kind"),
    ("arrays", {}, "does not describe the arrays"),
]:  # fmt: skip
    model_case(f"manifest: {where} = {value!r}"[:60], words, lambda path, where=where, value=value: edit(path, where, value))
for where, value, words in [
    ("meta.model.temperature", 3.0, "its manifest.json was changed since it was written"),
    ("meta.config.learning_rate", 0.5, "its manifest.json was changed since it was written"),
    ("meta.agents", ["x", "y"], "its manifest.json was changed since it was written"),
    ("psiphi", "9.9", "its manifest.json was changed since it was written"),
]:
    model_case(f"edited: {where} = {value!r}"[:60], words, lambda path, where=where, value=value: edit(path, where, value))
model_case("forged whole: other layers", "does not fit", lambda path: resealed(path, "meta.config.torso_hidden", [16]))
model_case("forged whole: a newcomer", "does not fit|damaged", lambda path: resealed(path, "meta.agents", ["a", "b", "c"]))
model_case("no manifest", "has no manifest.json", lambda path: (path / "manifest.json").unlink())
model_case("an empty manifest", "not JSON", lambda path: (path / "manifest.json").write_bytes(b""))
model_case("a manifest of deep JSON", "not JSON", lambda path: (path / "manifest.json").write_bytes(b"[" * 10**6))
model_case("a manifest of 100 MB", "expected at most 67,108,864", lambda path: os.truncate(path / "manifest.json", 100 * 2**20))
model_case(
    "a manifest that is a pipe", "not a regular file", lambda path: ((path / "manifest.json").unlink(), os.mkfifo(path / "manifest.json"))
)
model_case(
    "a manifest that is a link",
    "symbolic link",
    lambda path: ((path / "manifest.json").unlink(), (path / "manifest.json").symlink_to("/etc/passwd")),
)
model_case(
    "a manifest that is a directory",
    "not a regular file",
    lambda path: ((path / "manifest.json").unlink(), (path / "manifest.json").mkdir()),
)
model_case("no arrays", "lacks its arrays file", lambda path: arrays_of(path).unlink())
model_case("arrays cut off", "bytes", lambda path: os.truncate(arrays_of(path), 100))
model_case("arrays of 1 TB of nothing", "is damaged", lambda path: os.truncate(arrays_of(path), 2**40))
model_case("a flipped bit", "sha256", lambda path: flip(arrays_of(path), 1000))
model_case(
    "arrays that are a link",
    "symbolic link",
    lambda path: (
        arrays_of(path).rename(path / "x"),
        (path / json.loads((path / "manifest.json").read_text())["sha256"].join(["arrays-", ""])[:23])
        .with_suffix(".safetensors")
        .symlink_to("x"),
    ),
)
model_case("arrays that are a pipe", "not a regular file|damaged", lambda path: (name := arrays_of(path), name.unlink(), os.mkfifo(name)))
model_case(
    "arrays that are a pickle",
    "bytes|sha256|safetensors",
    lambda path: arrays_of(path).write_bytes(b"\x80\x04cos\nsystem\n(S'touch executed'\ntR."),
)
model_case("a file", "is a file, expected the directory of a trained model", lambda path: (shutil.rmtree(path), path.write_text("x")))
model_case(
    "saved over somebody's manifest.json",
    "has a manifest.json that is not psiphi's",
    lambda path: (path / "manifest.json").write_text('{"name": "my web app"}'),
    lambda path: fitted_and_saved(path),
)
model_case(
    "saved into a link",
    "is a symbolic link, expected a directory",
    lambda path: (path.rename(path.with_name("real")), path.symlink_to("real")),
    lambda path: fitted_and_saved(path),
)
model_case(
    "saved over a file",
    "is a file, expected a directory",
    lambda path: (shutil.rmtree(path), path.write_text("x")),
    lambda path: fitted_and_saved(path),
)


def flip(path: Path, bit: int) -> None:
    data = bytearray(path.read_bytes())
    data[bit // 8 % len(data)] ^= 1 << bit % 8
    path.write_bytes(data)


def fitted_and_saved(path: Path) -> None:
    """Save the kit's model there."""
    fitted(path.parents[1] / "kit").save(path)


def keeps_their_arrays(here: Path, kit: Path) -> None:
    """A save deletes nothing that is not ours."""
    theirs = here / "model" / "arrays-mine.safetensors"
    theirs.parent.mkdir()
    theirs.write_text("theirs")
    fitted(kit).save(here / "model")
    assert theirs.read_text() == "theirs"
    psiphi.load(here / "model")


add("model", "somebody's arrays-*.safetensors stay", None, keeps_their_arrays)

# --- Run directories -----------------------------------------------------------------------------------------------------


def link(path: Path, target: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    path.symlink_to(target)


def meta_of(run: Path) -> dict[str, Any]:
    return json.loads((run / "checkpoint" / "manifest.json").read_text())["meta"]


def append(path: Path, text: str) -> None:
    with open(path, "a") as file:
        file.write(text)


run_case("as it was left", None, lambda run, elsewhere: None)
for name in (".lock", "metrics.jsonl", "config.json"):
    run_case(
        f"{name} is a link to a file", "is a symbolic link", lambda run, elsewhere, name=name: link(run / name, elsewhere / "precious")
    )
    run_case(
        f"{name} is a pipe",
        "regular file|cannot be opened|cannot be",
        lambda run, elsewhere, name=name: ((run / name).unlink(), os.mkfifo(run / name)),
    )
    run_case(
        f"{name} is a directory",
        "is a directory|not a regular file|cannot be",
        lambda run, elsewhere, name=name: ((run / name).unlink(), (run / name).mkdir()),
    )
run_case("checkpoint is a link", "is a symbolic link", lambda run, elsewhere: link(run / "checkpoint", elsewhere))
run_case(
    "checkpoint is a link to a copy",
    "is a symbolic link",
    lambda run, elsewhere: ((run / "checkpoint").rename(run / "c"), (run / "checkpoint").symlink_to("c")),
)
run_case("model is a link", "is a symbolic link|is a file", lambda run, elsewhere: link(run / "model", elsewhere))
run_case("an old draft is a link", None, lambda run, elsewhere: (run / ".config.json.draft").symlink_to(elsewhere / "precious"))
run_case(
    "a draft in checkpoint is a link",
    None,
    lambda run, elsewhere: (run / "checkpoint" / "manifest.json.partial").symlink_to(elsewhere / "precious"),
)
run_case("config.json is not JSON", "not readable as JSON", lambda run, elsewhere: (run / "config.json").write_text("{"))
run_case("config.json of deep JSON", "not readable as JSON", lambda run, elsewhere: (run / "config.json").write_text("[" * 10**6))
run_case("config.json of another run", "holds a run with", lambda run, elsewhere: None, "--seed", "3")
run_case("config.json is gone", "holds a run but no config.json", lambda run, elsewhere: (run / "config.json").unlink())
run_case("metrics.jsonl is gone", "has 0 bytes, but its checkpoint covers", lambda run, elsewhere: (run / "metrics.jsonl").unlink())
run_case("metrics.jsonl was changed", "is not the file that its checkpoint covers", lambda run, elsewhere: flip(run / "metrics.jsonl", 300))
run_case(
    "metrics.jsonl has somebody's notes",
    "lines after its checkpoint of step 2 that this run did not write",
    lambda run, elsewhere: append(run / "metrics.jsonl", "my notes\n"),
)
run_case(
    "metrics.jsonl has rows of the past",
    "that this run did not write",
    lambda run, elsewhere: append(run / "metrics.jsonl", '{"step": 1}\n'),
)
run_case("metrics.jsonl has an unfinished row", None, lambda run, elsewhere: append(run / "metrics.jsonl", '{"step": 3, "se'))
run_case(
    "the checkpoint is gone", "had a checkpoint of step 2, but now there is none", lambda run, elsewhere: shutil.rmtree(run / "checkpoint")
)
run_case("the manifest was edited", "its manifest.json was changed", lambda run, elsewhere: edit(run / "checkpoint", "meta.step", 1))
run_case(
    "the step was forged to 10^9", "its manifest.json was changed", lambda run, elsewhere: edit(run / "checkpoint", "meta.step", 10**9)
)
run_case(
    "a checkpoint of an API model",
    "does not say where a run stands",
    lambda run, elsewhere: (shutil.rmtree(run / "checkpoint"), shutil.copytree(run.parents[1] / "kit" / "model", run / "checkpoint")),
)
run_case(
    "a checkpoint of another run",
    "is of a run with another config.json",
    lambda run, elsewhere: resealed(run / "checkpoint", "meta.config_sha256", "0" * 64),
)
run_case("a checkpoint without words", "does not say where a run stands", lambda run, elsewhere: resealed(run / "checkpoint", "meta", {}))
run_case(
    "a negative metrics length",
    "does not say where a run stands",
    lambda run, elsewhere: resealed(run / "checkpoint", "meta.metrics_bytes", -5),
)
run_case("the arrays are damaged", "sha256", lambda run, elsewhere: flip(arrays_of(run / "checkpoint"), 5000))
run_case("the arrays are gone", "lacks its arrays file", lambda run, elsewhere: arrays_of(run / "checkpoint").unlink())
run_case("model has somebody's manifest", "is not psiphi's", lambda run, elsewhere: (run / "model" / "manifest.json").write_text("[]"))
run_case("another process is there", "Another process is running", lambda run, elsewhere: hold(run / ".lock"))

HELD: list[Any] = []


def hold(path: Path) -> None:
    import fcntl

    HELD.append(open(path, "r+b"))
    fcntl.flock(HELD[-1], fcntl.LOCK_EX)


# --- Flags ---------------------------------------------------------------------------------------------------------------

for arguments, said in [
    ("fly", "'fly' is not a command"),
    ("train", None),
    ("train nothing", "'nothing' is not an algorithm"),
    ("train dqn --env mars", "'mars' is not a world"),
    ("train dqn --env no_such_module:make", "cannot be imported"),
    ("train itd --seed -1", "seed is -1, expected at least 0"),
    ("train itd --seed 100000000000000000000", "seed is 100000000000000000000, expected at most"),
    ("train itd --seed 1.5", "--seed"),
    ("train itd --agent.gamma 7", "gamma is 7.0, expected a number from 0 to 1"),
    ("train itd --agent.gamma nan", "gamma is nan, expected a finite number"),
    ("train itd --agent.learning-rate -1", "learning_rate is -1.0, expected a number above 0"),
    ("train itd --agent.learning-rate nan", "learning_rate is nan, expected a finite number"),
    ("train itd --agent.learning-rate 1e400", "learning_rate is inf, expected a finite number"),
    ("train itd --agent.batch 0", "batch is 0, expected at least 1"),
    ("train itd --agent.ensemble 0", "ensemble is 0, expected at least 1"),
    ("train itd --agent.ema 5", "ema is 5.0, expected a number from 0 to 1"),
    ("train itd --agent.num-cumulants 0", "num_cumulants is 0, expected at least 1"),
    ("train itd --agent.num-cumulants 1000000000", "num_cumulants is 1000000000, expected at most 4,096"),
    ("train itd --agent.torso-hidden 0", "torso_hidden is 0, expected at least 1"),
    ("train itd --num-envs 0", "num_envs is 0, expected at least 1"),
    ("train itd --updates 0", "steps is 0 and updates is 0, expected exactly one of them above 0"),
    ("train itd --episodes -1", "episodes is -1, expected at least 1"),
    ("train itd --evaluate-episodes 0", "evaluate_episodes is 0, expected at least 1"),
    ("train itd --world.size 100000", "size is 100000"),
    ("train itd --world.coins -1 0 0", "coins is -1, expected at least 0|coins"),
    ("train itd --checkpoint-every-s -1", "checkpoint_every_s is -1.0, expected at least 0"),
    ("train psiphi --agent.temperature -1", "temperature is -1.0, expected at least 0"),
    ("train psiphi --agent.epsilon 2", "epsilon is 2.0, expected a number from 0 to 1"),
    ("train dqn --agent.batch 0", "batch is 0, expected at least 1"),
    ("train dqn --task Q+Z", "'Q\\+Z' is not a CoinGrid task"),
    ("train bc --agent.ema 2", "ema is 2.0, expected a number from 0 to 1"),
    ("train gail --agent.smoothing 0.7", "smoothing is 0.7, expected a number from 0 to 0.499"),
    ("train ppo --agent.minibatches 0", "minibatches is 0, expected at least 1"),
    ("train sqil --agent.temperature 0", "temperature is 0.0, expected a number above 0"),
    ("train itd --out {kit}/log.csv", "is a file, expected a directory"),
    ("train itd --out {kit}/log.csv/run", "cannot be made: Not a directory|is a file"),
    ("train itd --out /proc/psiphi/run", "cannot be made"),
    ("infer {kit}/log.csv --out {kit}/log.npz", "is a file, expected a directory"),
    ("infer {kit}/log.csv --out /proc/psiphi", "cannot be made"),
    ("infer {kit}/log.csv --seed -1", "seed is -1, expected at least 0"),
    ("infer {kit}/log.csv --held-out 0", "held_out is 0.0, expected a number above 0"),
    ("infer {kit}/log.csv --rewards -1", "rewards is -1, expected at least 0"),
    ("infer {kit}/log.csv --num-actions 1000000000", "num_actions is 1000000000, expected at most 65,536"),
    ("infer {kit}/log.csv --dtype object", "dtype is 'object'"),
    ("demos convert {kit}/log.csv {here}/x.zip", "says no format"),
    ("demos convert {kit}/log.csv {kit}/run", "says no format|is a directory|is no Minari"),
    ("demos convert {kit}/log.csv /proc/psiphi/x.csv", "cannot be made"),
    ("demos record CartPole-v1 {here}/x.csv --episodes 0", "episodes is 0, expected at least 1"),
    ("demos record os:system {here}/x.csv", "would import a module"),
    ("demos record CartPole-v1 {here}/x.csv --policy constant:9", "is no policy"),
    ("evaluate {kit}/log.csv", "is a file|not a directory"),
    ("evaluate {kit}/model", "was not trained in a world: expected --env WORLD"),
    ("watch {kit}/model", "was not trained in a world: expected --env WORLD"),
    ("watch {kit}/run --agent zoe", "There is no 'zoe' in this model"),
    ("evaluate {kit}/model --env CartPole-v1", "but CartPole-v1 has"),
    ("adapt {kit}/run", "needs either --task or --from"),
    ("adapt {kit}/run --task R --gif /proc/psiphi/x.gif", "cannot be made"),
    ("adapt {kit}/run --task R --gif {kit}/run", "is a directory, expected the name of a file"),
    ("reproduce table-2 --out {kit}/log.csv", "is a file, expected a directory|cannot be made"),
    ("reproduce table-9", "not something to reproduce"),
    ("reproduce table-2 --seeds 0", "seeds is 0, expected at least 1"),
    ("report {kit}", "nothing to report"),
    ("report {kit}/log.csv", "nothing to report|cannot be read|Not a directory"),
]:
    flag(arguments, said)

# --- Cells ---------------------------------------------------------------------------------------------------------------

CELL: dict[str, Any] = {
    "experiment": "table-2", "env": "coingrid", "task": "R+G", "method": "psiphi", "seed": 0, "metric": "normalised_return", "value": 0.5,
    "shots": 0, "env_steps": 10, "wall_s": 1.0, "train_s": 1.0, "config": {"saw": ["a", "b", "c"]}, "commit": None,
    "versions": {"psiphi": "0.1.0"}, "command": "psiphi reproduce table-2",
}  # fmt: skip


def cell_case(name: str, said: str | None, *lines: Any, check: Callable[[str], None] = lambda text: None) -> None:
    def act(here: Path, kit: Path) -> None:
        text = "\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines) + "\n"
        (here / "cells.jsonl").write_text(text)
        command("report", str(here))
        check((here / "README.md").read_text())

    add("cells", name, said, act)


cell_case("as it should be", None, CELL)
cell_case("not JSON", "Line 2 of .* is not JSON", CELL, "{")
cell_case("deep JSON", "is not JSON", "[" * 100_000)
cell_case("a list", "it lacks experiment", "[]")
cell_case("a field is missing", "it lacks command", {key: value for key, value in CELL.items() if key != "command"})
cell_case("a value of words", "its value is", CELL | {"value": "high"})
cell_case("a seed of words", "its seed is", CELL | {"seed": "0"})
cell_case("a config of words", "its config is", CELL | {"config": "x"})
cell_case("versions of numbers", "its versions is", CELL | {"versions": {"x": 1}})
cell_case("a method with HTML", "its method is", CELL | {"method": "<script>alert(1)</script>"})
cell_case("an environment with an escape", "its env is", CELL | {"env": "\x1b[2J"})
cell_case("an environment that is a path", None, CELL | {"env": "../../etc"})
cell_case("a curve of words", "cannot be drawn", CELL | {"extra": {"curve": {"env_steps": ["a"], "normalised_return": ["b"]}}})
cell_case("a curve of nothing", "cannot be drawn", CELL | {"extra": {"curve": 3}})
cell_case("a picture of nothing", "cannot be drawn", CELL | {"extra": {"phi": []}})
cell_case("another experiment", "holds cells of table-9, expected those of one of table-1", CELL | {"experiment": "table-9"})
cell_case(
    "a command that ends its block", None, CELL | {"command": "psiphi ```\n# owned <script>"},
    check=lambda text: _assert("\n# owned" not in text and text.count("```") == 2),
)  # fmt: skip


def _assert(fact: bool) -> None:
    assert fact, "shown unsafely"


# --- Names ---------------------------------------------------------------------------------------------------------------

NAMES = {
    "terminal escape": "\x1b[31mred\x1b]0;title\x07",
    "script": "<script>alert(1)</script>",
    "newline": "ann\n# heading\r\nbob",
    "formula": '=HYPERLINK("http://x","y")',
    "at formula": "@SUM(A1)",
    "minus formula": "-2+3+cmd|' /C calc'!A0",
    "tex": r"$\frac{1}{0}$ \write18{rm}",
    "one dollar": "cost $",
    "rich markup": "[bold red]x[/bold red][/nonsense]",
    "markdown": "![x](javascript:alert(1)) | **b** | `c`",
    "table bar": "a|b",
    "direction": "\u202egnp.exe\u2066",
    "zero byte": "a\0b",
    "half a character": "a\udcffb",
    "underscore": "_hidden",
    "long": "x" * 5_000,
    "braces": "{0} {task.description} %s",
}
UNSEEN = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def named(name: str) -> Demonstrations:
    return Demonstrations.from_lists(
        [np.eye(4, 2, dtype=np.float32) * (i + 1) for i in range(4)],
        [np.array([0, 1, 0])] * 4,
        [name, "bob", name, "bob"],
        names=(name, "y"),
    )


for kind, strange in NAMES.items():

    def terminal(here: Path, kit: Path, strange: str = strange) -> None:
        """What is printed about it."""
        demos = named(strange)
        try:
            demos.filter(agents=["nobody"])
        except UserError as error:
            assert not UNSEEN.search(str(error)) and "\n" not in str(error)
        problems = [printable.sentence(str(problem)) for problem in demos.validate()]
        assert not any(UNSEEN.search(text) or "\n" in text for text in problems)
        if "\0" not in strange and "\udcff" not in strange:
            demos.write(here / "log.npz")
            text = command("demos", "inspect", str(here / "log.npz")) + command("demos", "validate", str(here / "log.npz"))
            assert not UNSEEN.search(text)

    def media(here: Path, kit: Path, strange: str = strange) -> None:
        """Each medium by its own rules."""
        assert not UNSEEN.search(printable.terminal(strange)) and "\n" not in printable.terminal(strange)
        assert not re.search(r"(?<!\\)[|`*_\[\]<>$]", printable.markdown(strange).replace("&lt;", "").replace("&gt;", ""))
        assert not re.search('[<>"]', printable.html(strange)) and not UNSEEN.search(printable.html(strange))
        cell = str(printable.csv(strange))
        assert cell[0] not in "=+-@\t\r" and printable.from_csv(cell) == strange
        import matplotlib

        matplotlib.use("Agg")
        from xml.dom import minidom

        import matplotlib.pyplot as plt

        drawing, ax = plt.subplots(figsize=(1, 1))
        ax.plot([0, 1], label=printable.picture(strange))
        ax.set_title(printable.picture(strange))
        assert len(ax.get_legend_handles_labels()[1]) == 1
        for form in ("svg", "png"):
            data = io.BytesIO()
            drawing.savefig(data, format=form)
        drawing.savefig(here / "x.svg")
        plt.close(drawing)
        minidom.parse(str(here / "x.svg"))
        assert "<script" not in (here / "x.svg").read_text()

    def round_trip(here: Path, kit: Path, strange: str = strange) -> None:
        """A name that was written is the name that is read."""
        demos = named(strange.strip())
        for ending in ("npz", "csv"):
            demos.write(here / f"log.{ending}")
            assert Demonstrations.read(here / f"log.{ending}").agents[0] == strange.strip()

    add("names", f"{kind}: terminal", None, terminal)
    add("names", f"{kind}: media", None, media)
    if kind not in ("zero byte", "half a character", "newline", "terminal escape"):
        add("names", f"{kind}: round trip", None, round_trip)


def file_name(here: Path, kit: Path) -> None:
    name = here / "\x1b[31m[red]\n<script>.csv"
    name.write_text("agent\n")
    command("demos", "validate", str(name))


add("names", "a file's name", r"\\x1b\[31m\[red\]\\n<script>.csv has no column", file_name)

# --- The Python interface ------------------------------------------------------------------------------------------------

ENV = "CartPole-v1"
for name, given, words in [
    ("a file's name", "drivers.csv", "read it with psiphi.Demonstrations.read"),
    ("a path", Path("drivers.csv"), "read it with psiphi.Demonstrations.read"),
    ("None", None, "The demonstrations are None, expected a psiphi.Demonstrations"),
    ("a list", [1, 2], "The demonstrations are a list, expected a psiphi.Demonstrations"),
    ("a dict", {"obs": 1}, "The demonstrations are a dict"),
    ("an array", np.zeros(3), "The demonstrations are a numpy ndarray"),
    ("a number", 3, "The demonstrations are a int"),
]:
    api(f"fit: {name}", words, lambda here, kit, given=given: psiphi.ITD().fit(given))
    api(f"fit_new_demonstrator: {name}", words, lambda here, kit, given=given: fitted(kit).fit_new_demonstrator(given))
    api(f"accuracy: {name}", words, lambda here, kit, given=given: fitted(kit).accuracy(given))
    api(f"PsiPhi: {name}", None if given is None else words, lambda here, kit, given=given: psiphi.PsiPhi(ENV, given))


for name in ("DQN", "SQIL", "GAIL", "PPO"):
    kind = getattr(psiphi, name)
    api(f"{name}: a file's name", "read it with psiphi.Demonstrations.read", lambda here, kit, kind=kind: kind(ENV, "drivers.csv"))
    api(f"{name}: a dict as config", "expected a psiphi", lambda here, kit, kind=kind: kind(ENV, logs(), {"gamma": 0.5}))
    api(f"{name}: an unknown id", "neither a world of psiphi nor a Gymnasium", lambda here, kit, kind=kind: kind("NoSuchEnv-v0", logs()))
api("BC: a file's name", "read it with psiphi.Demonstrations.read", lambda here, kit: psiphi.BC().fit("drivers.csv"))


def environment() -> Any:
    import gymnasium

    return gymnasium.make(ENV)


api("fit: an environment", "an environment, expected what others did in it", lambda here, kit: psiphi.ITD().fit(environment()))
for name, given, words in [
    ("None", None, "The environment is None, expected an environment"),
    ("a number", 7, "The environment is a int"),
    ("an unknown id", "NoSuchEnv-v0", "neither a world of psiphi nor a Gymnasium environment"),
    ("a module that is none", "nomodule:Env-v0", "cannot be imported"),
    ("a function that makes nothing", lambda: None, "made None, expected a gymnasium.Env"),
    ("a world with other observations", ENV, "observations have shape \\(2,\\), but the world's have \\(4,\\)"),
    ("continuous actions", "Pendulum-v1", "expected a Discrete space"),
]:
    api(f"PsiPhi: environment is {name}", words, lambda here, kit, given=given: psiphi.PsiPhi(given, logs()))
for name, config, words in [
    ("a dict", {"gamma": 0.5}, "psiphi.ITDConfig\\(\\*\\*config\\) makes one"),
    ("a word", "paper", "The config is 'paper', expected a psiphi.ITDConfig or None"),
    ("another config", psiphi.PsiPhiConfig(), "expected a psiphi.ITDConfig or None"),
]:
    api(f"ITD: config is {name}", words, lambda here, kit, config=config: psiphi.ITD(config))
for name, seed, words in [
    ("-1", -1, "seed is -1"),
    ("1e20", 10**20, "expected at most"),
    ("a word", "x", "seed is 'x'"),
    ("None", None, "seed is None"),
    ("half", 0.5, "seed is 0.5"),
]:
    api(f"ITD: seed is {name}", words, lambda here, kit, seed=seed: psiphi.ITD(seed=seed))
for name, change, words in [
    ("gamma 7", {"gamma": 7}, "gamma is 7.0, expected a number from 0 to 1"),
    ("rate -1", {"learning_rate": -1}, "learning_rate is -1.0, expected a number above 0"),
    ("rate nan", {"learning_rate": float("nan")}, "expected a finite number"),
    ("batch 0", {"batch": 0}, "batch is 0, expected at least 1"),
    ("batch of words", {"batch": "many"}, "batch is 'many'"),
    ("ensemble 0", {"ensemble": 0}, "ensemble is 0, expected at least 1"),
    ("ema 5", {"ema": 5}, "ema is 5.0, expected a number from 0 to 1"),
    ("unknown torso", {"torso": "eyes"}, "torso is 'eyes', expected one of 'auto'"),
    ("layers of words", {"torso_hidden": "big"}, "torso_hidden is 'big'"),
    ("-1 cumulants", {"num_cumulants": -1}, "num_cumulants is -1, expected at least 0"),
    ("10^9 cumulants", {"num_cumulants": 10**9}, "expected at most 4,096"),
]:
    api(f"ITDConfig: {name}", words, lambda here, kit, change=change: psiphi.ITDConfig(**change))
for name, obs, words in [
    ("None", None, "The observation is None|expected an array of numbers"),
    ("words", ["a", "b"], "expected an array of numbers"),
    ("ragged", [[1.0, 2.0], [1.0]], "cannot be made an array"),
    ("a dict", {"x": 1.0}, "expected an array of numbers"),
    ("too long", np.zeros(3), "has shape \\(3,\\), (but )?expected (was )?\\(2,\\)"),
    ("NaN", [np.nan, 0.0], "has nan in it, expected finite numbers"),
    ("infinite", [np.inf, 0.0], "has inf in it, expected finite numbers"),
    ("complex", np.zeros(2, complex), "expected an array of numbers"),
]:
    api(f"policy: {name}", words, lambda here, kit, obs=obs: fitted(kit).policy("a")(obs))
    api(f"reward: {name}", words, lambda here, kit, obs=obs: fitted(kit).reward("a")(obs, 0))
    api(f"explain: {name}", words, lambda here, kit, obs=obs: fitted(kit).set_preferences("a").explain(obs))
for name, action, words in [
    ("too large", 9, "There is an action 9"),
    ("below 0", -1, "There is an action -1"),
    ("half", 0.5, "expected (were )?1 integers"),
    ("words", "left", "expected an array of numbers"),
    ("two", [0, 1], "expected (were )?1 integers"),
    ("None", None, "expected an array of numbers"),
]:
    api(f"reward: action is {name}", words, lambda here, kit, action=action: fitted(kit).reward("a")(np.zeros(2), action))
for name, who, words in [
    ("unknown", "zoe", "There is no agent 'zoe'; the known agents are 'a', 'b'"),
    ("None", None, "There is no agent None"),
    ("a list", ["a"], "There is no agent \\['a'\\]"),
    ("an array", np.array(["a", "b"]), "There is no agent"),
    ("a number", 0, "There is no agent 0"),
]:
    api(f"policy: agent is {name}", words, lambda here, kit, who=who: fitted(kit).policy(who))
OBS = np.zeros((3, 2), np.float32)
for name, steps, words in [
    ("None", None, "The transitions are None, expected three arrays"),
    ("a word", "steps", "The transitions are 'steps', expected three arrays"),
    ("a dict", {"obs": OBS}, "The transitions are a dict, expected three arrays"),
    ("a number", 3, "The transitions are a int, expected three arrays"),
    ("empty", [], "not steps \\(observation, action, reward\\)"),
    ("two columns", (OBS, np.zeros(3, int)), "The transitions are 2 columns"),
    ("four columns", (OBS, np.zeros(3, int), np.zeros(3), np.zeros(3)), "The transitions are 4 columns"),
    ("pairs", [(OBS[0], 0)], "not steps"),
    ("rewards of NaN", (OBS, [0, 0, 0], [0, np.nan, 0]), "has nan in it, expected finite numbers"),
    ("rewards of words", (OBS, [0, 0, 0], list("abc")), "The rewards are a list, expected an array of numbers"),
    ("too few rewards", (OBS, [0, 0, 0], [1.0]), "expected (were )?3 finite numbers"),
    ("ragged observations", ([[1.0], [1.0, 2.0]], [0, 0], [0.0, 0.0]), "cannot be made an array"),
    ("observations of NaN", (OBS * np.nan, [0, 0, 0], [0, 0, 0]), "has nan in it"),
    ("unknown action", (OBS, [0, 0, 9], [0, 0, 0]), "There is an action 9"),
]:
    api(f"adapt: {name}", words, lambda here, kit, steps=steps: fitted(kit).adapt(steps))
api("adapt: unknown inference", "inference is 'magic'", lambda here, kit: fitted(kit).adapt((OBS, [0, 0, 0], [0, 0, 0]), inference="magic"))
for name, w, words in [
    ("too few", [1.0], "expected (were )?4 finite weights"),
    ("NaN", [np.nan] * 4, "finite"),
    ("words", ["a"], "expected an array of numbers"),
    ("unknown agent", "zoe", "There is no agent 'zoe'"),
    ("a dict", {}, "expected an array of numbers"),
    ("ragged", [[1.0], [1.0, 2.0]], "cannot be made an array"),
]:
    api(f"set_preferences: {name}", words, lambda here, kit, w=w: fitted(kit).set_preferences(w))
api("predict without a task", "There is no task to act on yet", lambda here, kit: fitted(kit).predict(np.zeros(2)))
api("untrained", "has learned nothing yet; call fit", lambda here, kit: psiphi.ITD().policy("a"))
api("untrained save", "has learned nothing yet; call fit", lambda here, kit: psiphi.ITD().save(here / "x"))
for name, path, words in [
    ("None", None, "The model is None, expected the name"),
    ("a number", 3, "The model is a int"),
    ("bytes", b"x", "The model is a bytes"),
    ("nowhere", "/nowhere/at/all", "does not exist"),
    ("empty", "", "expected the name"),
    ("zero byte", "a\0b", "character that no file name has"),
]:
    api(f"load: {name}", words, lambda here, kit, path=path: psiphi.load(path))
    api(f"read: {name}", words.replace("The model", "The file"), lambda here, kit, path=path: Demonstrations.read(path))
api(
    "read: columns is a dict",
    "The columns are a dict, expected a psiphi.demos.Columns",
    lambda here, kit: Demonstrations.read(kit / "log.csv", {"agent": "x"}),
)
api("save: None", "The path is None", lambda here, kit: fitted(kit).save(None))
api("write: no format", "says no format", lambda here, kit: logs().write(here / "x.doc"))
api("learn: half a step", "total_timesteps is 0.5", lambda here, kit: psiphi.PsiPhi(street, logs()).learn(0.5))
api("learn: no step", "total_timesteps is 0, expected at least 1", lambda here, kit: psiphi.PsiPhi(street, logs()).learn(0))
api("learn: negative study", "study is -1, expected at least 0", lambda here, kit: psiphi.PsiPhi(street, logs()).learn(10, study=-1))
api("from_lists: None", "The observations are None, expected a list", lambda here, kit: Demonstrations.from_lists(None, None, None))
api("from_lists: a dict", "The observations are a dict, expected a list", lambda here, kit: Demonstrations.from_lists({}, [], []))
api("from_lists: nothing", "at least one", lambda here, kit: Demonstrations.from_lists([], [], []))
api("from_lists: words", "array of numbers", lambda here, kit: Demonstrations.from_lists([["a"]], [[0]], ["a"]))
api("from_lists: ragged", "none is|not an array of numbers", lambda here, kit: Demonstrations.from_lists([[[1], [1, 2]]], [[0]], ["a"]))
api("from_lists: agents of lists", "An agent's id is a list", lambda here, kit: Demonstrations.from_lists([OBS], [[0, 0]], [["a"]]))
api("from_lists: 10^9 actions", "too many actions", lambda here, kit: Demonstrations.from_lists([OBS], [[0, 0]], ["a"], num_actions=10**9))
api("split: half of nothing", "held_out is 0.0", lambda here, kit: logs().split(0.0))
api("split: a word", "held_out is 'x'", lambda here, kit: logs().split("x"))
api("merge: a file's name", "read it with psiphi.Demonstrations.read", lambda here, kit: logs().merge("x.csv"))
api("filter: unknown agent", "There is no agent 'zoe'", lambda here, kit: logs().filter(agents=["zoe"]))
api("InferredReward: None", "expected an environment and a model", lambda here, kit: psiphi.InferredReward(None, None, 0))
api(
    "accuracy: other observations",
    "observations have shape",
    lambda here, kit: fitted(kit).accuracy(Demonstrations.from_lists([np.zeros((3, 5))], [[0, 0]], ["a"])),
)
api("newcomer who is known", "is known already", lambda here, kit: fitted(kit).fit_new_demonstrator(logs()))


def street() -> Any:
    """A world with the observations of the logs."""
    import gymnasium

    class Street(gymnasium.Env):
        observation_space, action_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32), gymnasium.spaces.Discrete(2)

        def reset(self, *, seed=None, options=None):
            return np.zeros(2, np.float32), {}

        def step(self, action):
            return np.zeros(2, np.float32), 0.0, False, True, {}

    return Street()


# --- One after the other -------------------------------------------------------------------------------------------------


class Outcome(NamedTuple):
    verdict: str
    """fine, traceback, accepted, another sentence, hang, memory or leftover."""
    text: str
    seconds: float
    memory: int


def judged(case: Case, here: Path, kit: Path) -> tuple[str, str]:
    """Run a case in this process."""
    before = {path: stat.S_IFMT(path.lstat().st_mode) for path in kit.rglob("*")}
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            case.act(here, kit)
    except UserError as error:
        text = str(error)
        if case.said is None or not re.search(case.said, text) or "\n" in text or not text.endswith(".") or UNSEEN.search(text):
            return "another sentence", text
        left = [path.name for path in here.rglob("*") if path.name.endswith((".draft", ".partial")) and not path.is_symlink()]
        return ("leftover", ", ".join(left)) if left else ("fine", text)
    except BaseException as error:
        return "traceback", f"{type(error).__name__}: {error}"
    changed = {path: stat.S_IFMT(path.lstat().st_mode) for path in kit.rglob("*")} != before
    return ("accepted", "") if case.said is not None else ("leftover", "the kit was changed") if changed else ("fine", "")


def serve(kit: Path) -> None:
    """Run the cases whose numbers come in, one after the other; of each, the seconds it computed and the most memory it took."""
    replies = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        here = Path(tempfile.mkdtemp(prefix="hostile-"))
        (here / "kit").symlink_to(kit)
        (here / "work").mkdir()
        with contextlib.suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")
        started = time.process_time()
        verdict, text = judged(CASES[int(line)], here / "work", kit)
        seconds = time.process_time() - started
        shutil.rmtree(here, ignore_errors=True)
        json.dump([verdict, text[:2_000], seconds, _peak()], replies)
        replies.write("\n")
        replies.flush()


def _peak() -> int:
    """The most memory of this process since it was last reset."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM"):
                return int(line.split()[1]) * 1024
    return 0


class Server:
    """A process that runs cases; one that hangs is ended, and another takes its place."""

    def __init__(self, kit: Path):
        self.kit = kit
        self._start()

    def _start(self) -> None:
        words = [sys.executable, __file__, "--serve", str(self.kit)]
        self.process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        self.warm = False

    def run(self, number: int) -> Outcome:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(f"{number}\n".encode())
        self.process.stdin.flush()
        patience = 3 * SECONDS if self.warm else 120  # other programs may run beside it, and the first case waits for the imports
        self.warm = True
        ready = select.select([self.process.stdout], [], [], patience)[0]
        line = self.process.stdout.readline() if ready else b""
        if not line:
            self.close()
            self._start()
            return Outcome("traceback" if ready else "hang", "it died", patience, 0)
        verdict, text, seconds, memory = json.loads(line)
        verdict = "hang" if seconds > SECONDS else "memory" if verdict == "fine" and memory > MOST_MEMORY else verdict
        return Outcome(verdict, text, seconds, memory)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="only this group")
    parser.add_argument("--prepare", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.prepare:
        prepare(given.prepare)
        return
    if given.serve:
        serve(given.serve)
        return
    kit = Path(tempfile.mkdtemp(prefix="hostile-kit-"))
    subprocess.run([sys.executable, __file__, "--prepare", str(kit)], check=True)
    server = Server(kit)
    cases = [case for case in CASES if given.only in ("", case.group)]
    numbers = {id(case): number for number, case in enumerate(CASES)}
    counts: dict[str, dict[str, int]] = {}
    slowest, largest = (0.0, ""), (0, "")
    for case in cases:
        got = server.run(numbers[id(case)])
        by_verdict = counts.setdefault(case.group, {})
        by_verdict[got.verdict] = by_verdict.get(got.verdict, 0) + 1
        slowest, largest = max(slowest, (got.seconds, case.name)), max(largest, (got.memory, case.name))
        if got.verdict != "fine":
            print(
                f"{got.verdict}: {case.group}: {printable.terminal(case.name)}: {printable.sentence(got.text)[:300]} (wanted {case.said})"
            )
    server.close()
    shutil.rmtree(kit)
    print(f"\n{'group':10}{'cases':>7}{'fine':>7}")
    for group, found in counts.items():
        print(f"{group:10}{sum(found.values()):7}{found.get('fine', 0):7}   {dict((k, v) for k, v in found.items() if k != 'fine') or ''}")
    fine = sum(found.get("fine", 0) for found in counts.values())
    print(f"{'all':10}{len(cases):7}{fine:7}   slowest {slowest[0]:.1f} s ({slowest[1]})")
    print(f"most memory {largest[0] / 2**20:.0f} MiB ({largest[1]})")
    sys.exit(fine != len(cases))


if __name__ == "__main__":
    main()
