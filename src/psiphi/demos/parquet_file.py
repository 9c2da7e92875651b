"""Long tables in Parquet: a column for each entry of the observation, or one column of lists for pictures."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from psiphi import limits
from psiphi import progress as display
from psiphi.demos import files
from psiphi.demos.columns import Columns, Found, entry_names, find, kept_dtype, misfits
from psiphi.demos.demonstrations import Demonstrations, flattened
from psiphi.demos.rows import Coder, Flaw, Ids, Rows, coded, combined, together, whole_numbers
from psiphi.errors import UserError

BATCH = 16_384
"""Rows decoded together: small enough to stay in the processor's cache while columns become rows."""
KEY = b"psiphi"
"""What Parquet's columns cannot say, in the schema's metadata: the shape of a picture and the number of actions."""


def _pyarrow() -> tuple[Any, Any]:
    pyarrow = files.extra("pyarrow", "data", "A Parquet file")
    return pyarrow, files.extra("pyarrow.parquet", "data", "A Parquet file")


# --- Reading -------------------------------------------------------------------------------------------------------------


def read(path: Path, columns: Columns, progress: bool) -> Rows:
    """Batch by batch into arrays that have their full size from the start, so that nothing is in memory twice."""
    pyarrow, parquet = _pyarrow()
    try:
        with parquet.ParquetFile(path, pre_buffer=False) as file:
            schema = file.schema_arrow
            found = find(
                str(path), schema.names, columns, lambda names: [n for n in names if _is_number(pyarrow.types, schema.field(n).type)]
            )
            names = [n for n in (*found.ids, *found.action) if _is_text(pyarrow.types, schema.field(n).type)]
        with parquet.ParquetFile(path, pre_buffer=False, read_dictionary=names) as file:
            return _read(path, file, found, columns, progress)
    except (pyarrow.ArrowInvalid, pyarrow.ArrowNotImplementedError, pyarrow.ArrowTypeError) as error:
        raise UserError(f"{path} is not a Parquet file that can be read: {str(error).splitlines()[0].rstrip('.')}.") from error


def _read(path: Path, file: Any, found: Found, columns: Columns, progress: bool) -> Rows:
    table = _Table(path, file, found, columns)
    done = 0
    with display.shown(f"reading {path.name}", done=0, total=max(table.size, 1), enabled=progress) as bar:
        for batch in file.iter_batches(batch_size=BATCH, columns=found.read):
            if done + len(batch) > table.size:
                raise UserError(f"{path} is damaged: it says that it has {table.size:,} rows, but there are more.")
            table.add(done, batch)
            done += len(batch)
            bar.advance(done, {})
    if done != table.size:
        raise UserError(f"{path} is damaged: it says that it has {table.size:,} rows, but {done:,} were found.")
    return table.result(columns)


class _Table:
    """The columns, filled batch by batch."""

    def __init__(self, path: Path, file: Any, found: Found, columns: Columns):
        self.file, self.found, self.size = str(path), found, file.metadata.num_rows
        limits.check_growth(path, 16 * self.size)
        self.said = _said(path, file.schema_arrow.metadata)
        text = len(found.action) == 1 and _is_text(_pyarrow()[0].types, file.schema_arrow.field(found.action[0]).type)
        self.named = found.action if text else ()
        kinds = {name: self._kind(file.schema_arrow.field(name).type, name) for name in found.read}
        self.shape, self.names = found.shape, found.names
        lists = [name for name in found.obs if isinstance(kinds[name], tuple)]
        if lists and len(found.obs) > 1:
            raise UserError(f"{path}: {lists[0]!r} is a column of lists, so it has to be the only one of the observation.")
        dtypes = [kind[0] if isinstance(kind, tuple) else kind for kind in (kinds[name] for name in found.obs)]
        self.dtype = kept_dtype(np.result_type(*dtypes), columns.dtype)
        self.obs: np.ndarray | None = None
        self.path = path
        self.lists = bool(lists)
        if not lists:
            self._reserve(self.shape)
        self.ids = {name: _IdColumn(str(path), role, self.size) for name, role in self._roles().items()}
        self.numbers = {name: np.empty(self.size) for name in (*found.action, found.t) if name is not None and name not in self.named}
        self.flags = {name: np.empty(self.size, bool) for name in (found.terminated, found.truncated) if name is not None}
        self.flaws: list[Flaw] = []

    def _roles(self) -> dict[str, str]:
        """What each column of names says."""
        found = self.found
        return {name: "action" for name in self.named} | {
            name: role for role in ("group", "episode", "agent") for name in getattr(found, role)
        }

    def _kind(self, arrow: Any, name: str) -> Any:
        """The NumPy type of a column; for a column of lists, that and a length (None where lists differ)."""
        types = _pyarrow()[0].types
        if name in self.found.ids or name in self.named:
            return None
        lists = types.is_fixed_size_list(arrow) or types.is_list(arrow) or types.is_large_list(arrow)
        value = arrow.value_type if lists else arrow
        if not (types.is_integer(value) or types.is_floating(value) or types.is_boolean(value)):
            raise UserError(f"{self.file}: the column {name!r} holds {arrow}, expected numbers{' in lists' if lists else ''}.")
        dtype = np.dtype(value.to_pandas_dtype())
        if not lists:
            return dtype
        if name not in self.found.obs:
            raise UserError(f"{self.file}: the column {name!r} holds lists, expected one number in each row.")
        return dtype, arrow.list_size if types.is_fixed_size_list(arrow) else None

    def _reserve(self, shape: tuple[int, ...]) -> None:
        limits.check_growth(self.path, self.size * math.prod(shape) * self.dtype.itemsize)
        self.shape, self.obs = shape, np.empty((self.size, *shape), self.dtype)

    def add(self, start: int, batch: Any) -> None:
        """The rows from `start`."""
        here = slice(start, start + len(batch))
        found = self.found
        if self.lists:
            self._add_lists(start, batch.column(found.obs[0]))
        else:
            flat = self._flat()[here]
            for j, name in enumerate(found.obs):
                flat[:, j] = self._numbers(np.arange(start, here.stop), batch.column(name), f"the observation's {name!r}")
        for name, column in self.numbers.items():
            column[here] = batch.column(name).to_numpy(zero_copy_only=False)
        for name, column in self.flags.items():
            column[here] = self._truths(start, batch.column(name), name)
        for name, column in self.ids.items():
            column.add(start, batch.column(name))

    def _flat(self) -> np.ndarray:
        assert self.obs is not None
        return flattened(self.obs)

    def _numbers(self, rows: np.ndarray, column: Any, what: str) -> np.ndarray:
        """A column's numbers, as many for each of the rows; what is missing or does not fit is a flaw."""
        values = column.to_numpy(zero_copy_only=False)
        if not column.null_count and (self.dtype.kind == "f" or values.dtype == self.dtype):
            return values
        missing = column.is_null().to_numpy(zero_copy_only=False)
        wrong = misfits(np.where(missing, 0, values), self.dtype)
        each = np.repeat(rows, len(values) // max(len(rows), 1))
        self._flaw(each[missing], "not a number", f"{what} is missing, expected a number")
        self._flaw(each[wrong], "does not fit its type", f"{what} does not fit into {self.dtype.name}")
        return np.where(missing | wrong, 0, values)

    def _add_lists(self, start: int, column: Any) -> None:
        """Observations that are lists, all of one length: that of the first, or what psiphi wrote into the schema."""
        lengths = np.diff(column.offsets.to_numpy()) if hasattr(column, "offsets") else np.full(len(column), column.type.list_size)
        missing = column.is_null().to_numpy(zero_copy_only=False)
        lengths = np.where(missing, 0, lengths)
        if self.obs is None:
            if not (lengths > 0).any():
                raise UserError(f"{self.file}: the first observations are empty or missing, expected lists of numbers.")
            width = int(lengths[np.argmax(lengths > 0)])
            shape = tuple(self.said.get("shape", ())) or (width,)
            self._reserve(shape if int(np.prod(shape)) == width else (width,))
            self.names = entry_names(self.shape)
        flat = self._flat()[start : start + len(column)]
        width = flat.shape[1]
        good = lengths == width
        values = column.filter(_pyarrow()[0].array(good)).flatten()
        text = f"the observation has {{}} entries, expected {width} as in the first row"
        for i in np.flatnonzero(~good):
            self.flaws.append(Flaw(start + int(i), "mixed observation shapes", text.format(lengths[i])))
        flat[~good] = 0
        flat[good] = self._numbers(start + np.flatnonzero(good), values, "an entry of the observation").reshape(-1, width)

    def _truths(self, start: int, column: Any, name: str) -> np.ndarray:
        values = column.to_numpy(zero_copy_only=False)
        missing = column.is_null().to_numpy(zero_copy_only=False)
        numbers = np.where(missing, 0, values).astype(np.float64)
        self._flaw(start + np.flatnonzero((numbers != 0) & (numbers != 1)), "neither true nor false", f"{name} is neither true nor false")
        return numbers == 1

    def _flaw(self, rows: np.ndarray, kind: str, text: str) -> None:
        self.flaws += [Flaw(row, kind, text) for row in np.unique(rows).tolist()]

    def result(self, columns: Columns) -> Rows:
        found = self.found
        if self.obs is None:
            self._reserve((1,))
        assert self.obs is not None
        ids, n = {name: column.result() for name, column in self.ids.items()}, self.size
        meant = files.meant(self.file, self.said, columns)
        action = ids[self.named[0]] if self.named else together([self.numbers[name] for name in found.action], n)
        return Rows(
            file=self.file,
            obs=self.obs,
            names=self.names,
            agent=combined([ids[name] for name in found.agent], n, "all"),
            episode=combined([ids[name] for name in found.episode], n, 0),
            group=combined([ids[name] for name in found.group], n, 0) if found.group else None,
            t=None if found.t is None else self.numbers[found.t],
            terminated=None if found.terminated is None else self.flags[found.terminated],
            truncated=None if found.truncated is None else self.flags[found.truncated],
            flaws=tuple(self.flaws),
            notes=found.notes,
            ends=columns.ends,
            action_columns=found.action,
            **files.acted(self.file, columns, self.said.get("num_actions"), meant, action),
        )


class _IdColumn:
    """Names as they come: numbered as text, or kept as numbers until the end."""

    def __init__(self, file: str, role: str, size: int):
        self.file, self.role, self.size = file, role, size
        self.coder = Coder()
        self.codes: np.ndarray | None = None
        self.values: np.ndarray | None = None

    def add(self, start: int, column: Any) -> None:
        types = _pyarrow()[0].types
        here = slice(start, start + len(column))
        if types.is_dictionary(column.type) and not _is_text(types, column.type):
            column = column.dictionary_decode()
        if types.is_dictionary(column.type):
            if self.codes is None:
                self.codes = np.empty(self.size, np.int32)
            table = np.append(self.coder.codes(column.dictionary.to_pylist()), np.int32(-1))
            self.codes[here] = table[column.indices.fill_null(len(table) - 1).to_numpy(zero_copy_only=False)]
        elif types.is_integer(column.type) or types.is_floating(column.type):
            self._keep(here, column)
        else:
            raise UserError(f"{self.file}: the {self.role} is of type {column.type}, expected names or whole numbers.")

    def _keep(self, here: slice, column: Any) -> None:
        if self.values is None:
            self.values, self.missing = np.empty(self.size, column.type.to_pandas_dtype()), np.zeros(self.size, bool)
        self.missing[here] = column.is_null().to_numpy(zero_copy_only=False)
        self.values[here] = column.fill_null(0).to_numpy(zero_copy_only=False)

    def result(self) -> Ids:
        if self.codes is not None:
            return self.coder.ids(self.codes)
        if self.values is None:
            return Ids(np.zeros(0, np.int32), np.zeros(0, object))
        if self.values.dtype.kind == "f":
            return whole_numbers(self.file, self.role, np.where(self.missing, np.nan, self.values))
        return coded(self.values.astype(np.int64, copy=False), self.missing)


def _is_text(types: Any, kind: Any) -> bool:
    value = kind.value_type if types.is_dictionary(kind) else kind
    return types.is_string(value) or types.is_large_string(value)


def _is_number(types: Any, kind: Any) -> bool:
    return types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)


def _said(path: Path, metadata: dict[bytes, bytes] | None) -> dict[str, Any]:
    """What psiphi wrote about the table: sizes, and what actions mean, which `files.meant` looks at."""
    try:
        said = json.loads((metadata or {}).get(KEY, b"{}"))
        shape, actions = said.get("shape", []), said.get("num_actions")
        sound = all(isinstance(n, int) and n > 0 for n in [*shape, 1 if actions is None else actions])
    except (ValueError, AttributeError, TypeError, RecursionError):
        sound, said = False, {}
    if not sound:
        raise UserError(f"{path} is damaged: what psiphi wrote into its schema cannot be understood.")
    return said


# --- Writing -------------------------------------------------------------------------------------------------------------


def write(demos: Demonstrations, path: Path, progress: bool) -> None:
    """A row per step; a picture is one column, a list of fixed length."""
    pyarrow, parquet = _pyarrow()
    schema = _schema(pyarrow, demos)
    with (
        display.shown(f"writing {path.name}", done=0, total=len(demos), enabled=progress) as bar,
        files.replacing(path) as draft,
        parquet.ParquetWriter(draft, schema, compression="zstd", use_dictionary=["agent", "episode", Columns.group]) as writer,
    ):
        done = 0
        for block in files.blocks(demos):
            writer.write_batch(_batch(pyarrow, demos, block, schema))
            done += int(block.has_action.sum())
            bar.advance(done, {})


def _schema(pyarrow: Any, demos: Demonstrations) -> Any:
    kind = pyarrow.from_numpy_dtype(demos.obs.dtype)
    if demos.obs.ndim == 2:
        obs = [(f"obs_{name}", kind) for name in demos.names]
    else:
        obs = [("obs", pyarrow.list_(kind, int(np.prod(demos.obs.shape[1:]))))]
    who = pyarrow.string() if demos.agents and isinstance(demos.agents[0], str) else pyarrow.int64()
    which = pyarrow.int64() if demos.episodes.id.dtype == np.int64 else pyarrow.string()
    flags = [("action", pyarrow.int32()), ("terminated", pyarrow.bool_()), ("truncated", pyarrow.bool_())]
    if demos.group is not None:
        flags.append((Columns.group, pyarrow.string() if demos.groups and isinstance(demos.groups[0], str) else pyarrow.int64()))
    said = json.dumps({"shape": list(demos.obs.shape[1:]), "num_actions": demos.num_actions, **files.meaning(demos)})
    return pyarrow.schema([("agent", who), ("episode", which), ("t", pyarrow.int64()), *obs, *flags], metadata={KEY: said.encode()})


def _batch(pyarrow: Any, demos: Demonstrations, block: files.Block, schema: Any) -> Any:
    agents = pyarrow.array(list(demos.agents), schema.field("agent").type)
    flat = flattened(block.obs)
    if demos.obs.ndim == 2:
        obs = [pyarrow.array(np.ascontiguousarray(column)) for column in flat.T]
    else:
        obs = [pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(flat.reshape(-1)), flat.shape[1])]
    columns = [
        agents.take(pyarrow.array(block.agent)),
        pyarrow.array(block.episode, schema.field("episode").type),
        pyarrow.array(block.t),
        *obs,
        pyarrow.array(block.action, mask=~block.has_action),
        pyarrow.array(block.terminated),
        pyarrow.array(block.truncated),
    ]
    if demos.group is not None:
        groups = pyarrow.array(list(demos.groups), schema.field(Columns.group).type)
        columns.append(groups.take(pyarrow.array(block.group, mask=block.group < 0)))
    return pyarrow.RecordBatch.from_arrays(columns, schema=schema)
