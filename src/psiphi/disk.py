"""Files as psiphi reads and writes them: whole or not at all, only where it was told, and one sentence for what a disk may do.

Inside of a run or model directory nothing is followed: a symbolic link in the place of a file or directory of ours is refused, as a
stranger's directory may point anywhere. Drafts have names that cannot be guessed, in the directory of the file that they become.
"""

import contextlib
import json
import os
import re
import secrets
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from psiphi import limits
from psiphi.errors import UserError

_NOFOLLOW = getattr(os, "O_NOFOLLOW", 0)
_CLOEXEC = getattr(os, "O_CLOEXEC", 0)
_NONBLOCK = getattr(os, "O_NONBLOCK", 0)  # so that opening a pipe does not wait for a process at its other end
_BINARY = getattr(os, "O_BINARY", 0)

DRAFT = re.compile(r"\.(?P<name>.+)\.[0-9a-f]{16}\.draft")
"""The name of a draft, and of the file that it is to become."""


# --- Reading -------------------------------------------------------------------------------------------------------------


def read(path: Path, most: int) -> bytes:
    """All of a regular file of at most so many bytes. Raises FileNotFoundError as it is, everything else as a sentence."""
    with sentences(path, "read"), _opened(path, os.O_RDONLY | _NONBLOCK) as file:
        size = os.fstat(file.fileno()).st_size
        if size > most:
            raise UserError(f"{path} has {size:,} bytes, expected at most {most:,}.")
        return file.read(most + 1)


def read_json(path: Path, most: int = limits.MOST_JSON_BYTES) -> Any:
    """JSON out of such a file."""
    return parsed(read(path, most), path)


def parsed(data: bytes, name: object) -> Any:
    """JSON out of bytes; nesting beyond all reason is none."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{name} is damaged: it is not JSON.") from error


# --- Writing -------------------------------------------------------------------------------------------------------------


def write(path: Path, data: bytes | memoryview) -> None:
    """Put a file in place of what has its name, in one step, down to the disk."""
    with drafted(path) as draft, sentences(path, "written"), open(draft, "wb") as file:
        file.write(data)


@contextlib.contextmanager
def drafted(path: Path) -> Iterator[Path]:
    """A draft to write, a file or (after `mkdir`) a directory, that takes the place of `path` if all goes well and vanishes if not."""
    draft = path.with_name(f".{path.name[:100]}.{secrets.token_hex(8)}.draft")
    with sentences(path, "written"):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            yield draft
            if draft.is_dir():
                _replace_directory(draft, path)
            else:
                _synced(draft)
                os.replace(draft, path)
            _synced(path.parent)
        finally:
            remove(draft)


def remove(path: Path) -> None:
    """A file, a link or a directory of ours, if it is there."""
    with contextlib.suppress(OSError):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def remove_drafts(directory: Path, names: re.Pattern[str]) -> None:
    """What a process that was killed while writing left of files of these names."""
    for entry in _entries(directory):
        found = DRAFT.fullmatch(entry.name)
        if found and names.fullmatch(found["name"]) and entry.is_file(follow_symlinks=False):
            remove(Path(entry.path))


def remove_files(directory: Path, names: re.Pattern[str], keep: set[str]) -> None:
    """Regular files of these exact names, but for some."""
    for entry in _entries(directory):
        if names.fullmatch(entry.name) and entry.name not in keep and entry.is_file(follow_symlinks=False):
            remove(Path(entry.path))


def append(path: Path, data: bytes) -> int:
    """Add to the end of a regular file, down to the disk, and give its new length; what fails leaves it as it was."""
    with sentences(path, "written"), _opened(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, "r+b") as file:
        before = file.seek(0, os.SEEK_END)
        try:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        except BaseException:
            with contextlib.suppress(OSError):
                os.ftruncate(file.fileno(), before)
            raise
        return before + len(data)


def cut(path: Path, length: int) -> None:
    """Leave only the beginning of a regular file."""
    with sentences(path, "written"), _opened(path, os.O_RDWR, "r+b") as file:
        os.ftruncate(file.fileno(), length)


def length(path: Path) -> int:
    """Bytes of a regular file; 0 if there is none."""
    try:
        with sentences(path, "read"), _opened(path, os.O_RDONLY | _NONBLOCK) as file:
            return os.fstat(file.fileno()).st_size
    except FileNotFoundError:
        return 0


def lock_file(path: Path) -> Any:
    """A file of ours, opened to be locked; what is in it stays."""
    with sentences(path, "opened"):
        return _opened(path, os.O_RDWR | os.O_CREAT, "r+b")


def make_directory(path: Path, *, ours: bool = False) -> None:
    """Make a directory unless it is there. One inside of a directory of `ours` must not be a link."""
    if ours:
        refuse_link(path)
    if path.exists() and not path.is_dir():
        raise UserError(f"{path} is a file, expected a directory.")
    with sentences(path, "made"):
        path.mkdir(parents=True, exist_ok=True)


def refuse_link(path: Path) -> None:
    """Refuse a link in the place of a directory of ours."""
    if path.is_symlink():
        raise UserError(f"{path} is a symbolic link, expected a directory: links inside of psiphi's directories are not followed.")


@contextlib.contextmanager
def left_alone(path: Path) -> Iterator[None]:
    """Within the block a directory may be made; if what is done there is refused before anything stands in it, it is gone again, with
    those above it that were made for it."""
    made = [place for place in (path, *path.parents) if not place.exists()]
    try:
        yield
    except UserError:
        with contextlib.suppress(OSError):  # the first that is not empty stays, and so do all above it
            for place in made:
                place.rmdir()
        raise


def check_directory(path: Path) -> None:
    """Make a directory and see that something can be written there: asked before work is done that would be lost."""
    make_directory(path)
    probe = path / f".probe.{secrets.token_hex(8)}.draft"
    with sentences(path, "written to"):
        try:
            probe.write_bytes(b"psiphi")
        finally:
            remove(probe)


def check_file(path: Path) -> None:
    """The same for a file that is to be written in the end."""
    if path.is_dir():
        raise UserError(f"{path} is a directory, expected the name of a file.")
    check_directory(path.parent)


@contextlib.contextmanager
def sentences(path: Path, verb: str) -> Iterator[None]:
    """One sentence for whatever the system refuses; FileNotFoundError of reading is left to who knows what is missing."""
    try:
        yield
    except FileNotFoundError as error:
        if verb == "read":
            raise
        raise UserError(f"{path} cannot be {verb}: {error.strerror or error}.") from error
    except IsADirectoryError as error:
        raise UserError(f"{path} is a directory, expected a file.") from error
    except OSError as error:
        raise UserError(f"{path} cannot be {verb}: {error.strerror or error}.") from error


def _opened(path: Path, flags: int, mode: str = "rb") -> Any:
    """A regular file, no link followed."""
    if path.is_symlink():
        raise UserError(f"{path} is a symbolic link, expected a file: links inside of psiphi's directories are not followed.")
    handle = os.open(path, flags | _NOFOLLOW | _CLOEXEC | _BINARY, 0o666)
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise UserError(f"{path} is not a regular file, expected one.")
        return os.fdopen(handle, mode)
    except BaseException:
        os.close(handle)
        raise


def _entries(directory: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(directory) as found:
            return list(found)
    except OSError:
        return []


def _synced(path: Path) -> None:
    """Down to the disk; where directories cannot be synced, they are not."""
    if path.is_dir() and os.name != "posix":
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _replace_directory(draft: Path, path: Path) -> None:
    """A directory cannot take another's place in one step: the old one is renamed away first and removed last."""
    old = path.with_name(f".{path.name[:100]}.{secrets.token_hex(8)}.draft")
    there = os.path.lexists(path)
    if there:
        os.rename(path, old)
    try:
        os.rename(draft, path)
    except BaseException:
        if there:
            os.rename(old, path)
        raise
    remove(old)
