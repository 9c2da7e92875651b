"""The corpus of benchmarks/hostile.py: what needs no process of its own here, all of it with the slow tests."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

FILE = Path(__file__).parents[1] / "benchmarks" / "hostile.py"
SPEC = importlib.util.spec_from_file_location("hostile", FILE)
assert SPEC is not None and SPEC.loader is not None
hostile = importlib.util.module_from_spec(SPEC)
sys.modules["hostile"] = hostile
SPEC.loader.exec_module(hostile)

HERE = ("csv", "files", "npz", "parquet", "minari", "names", "cells")
"""Groups that neither train nor are kept from their sentence by the types that are checked at every call in tests."""
HEAVY = {"deflate bomb of 4 GiB", "a hundred million equal rows", "70,000 members", "a million one-character rows", "many empty lines"}


@pytest.fixture(scope="session")
def kit(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("kit")
    for name in ("log.csv", "log.npz", "log.parquet", "log-v0"):
        hostile.logs().write(path / name)
    return path


def test_the_corpus_is_large_and_names_are_different():
    names = [(case.group, case.name) for case in hostile.CASES]
    assert len(names) >= 250 and len(set(names)) == len(names)


@pytest.mark.parametrize("group", HERE)
def test_every_case_ends_as_it_should(group, tmp_path, kit):
    wrong = []
    for i, case in enumerate(case for case in hostile.CASES if case.group == group and case.name not in HEAVY):
        here = tmp_path / str(i)
        here.mkdir()
        verdict, text = hostile.judged(case, here, kit)
        if verdict != "fine":
            wrong.append((case.name, verdict, text))
    assert not wrong


@pytest.mark.slow
def test_the_whole_corpus():
    done = subprocess.run([sys.executable, str(FILE)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
