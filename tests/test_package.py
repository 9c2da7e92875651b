import ast
import re
import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

import gymnasium
import pytest

import psiphi

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def python(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def test_import_is_light_and_registers_the_environment():
    heavy = "{'jax', 'jaxlib', 'equinox', 'matplotlib', 'optax', 'flashbax', 'scipy'}"
    assert python(f"import psiphi, sys; print({heavy} & set(sys.modules))").strip() == "set()"
    assert "psiphi/CoinGrid-v0" in python("import psiphi, gymnasium; print(*gymnasium.registry)").split()


def test_the_environment_is_named_by_a_string_so_that_jax_stays_asleep():
    assert isinstance(gymnasium.registry["psiphi/CoinGrid-v0"].entry_point, str)


def test_every_public_name_is_there_and_no_other():
    for name in psiphi.__all__:
        assert getattr(psiphi, name) is not None and name in dir(psiphi)
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = psiphi.nonsense  # pyright: ignore[reportAttributeAccessIssue]


def test_public_names_are_the_same_for_readers_type_checkers_and_python():
    tree = ast.parse((ROOT / "src" / "psiphi" / "__init__.py").read_text())
    (block,) = [node for node in tree.body if isinstance(node, ast.If)]
    seen = {alias.asname or alias.name: line.module for line in block.body if isinstance(line, ast.ImportFrom) for alias in line.names}
    assert seen == psiphi._HOME
    assert set(psiphi.__all__) == {*seen, "__version__"}


def test_the_version_has_one_home():
    assert version("psiphi") == psiphi.__version__


def names(requirements: list[str]) -> set[str]:
    return {re.split(r"[<>=!~\[; ]", line, maxsplit=1)[0].lower().replace("_", "-") for line in requirements}


def test_constraints_are_plain_and_cover_what_is_required():
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    assert [line for line in lines if not re.fullmatch(r"[A-Za-z0-9._-]+==[0-9][0-9A-Za-z.+!]*", line)] == []
    required = [*PROJECT["dependencies"], *(line for extra in PROJECT["optional-dependencies"].values() for line in extra)]
    assert names(required) - {"psiphi"} <= names(lines)


@pytest.mark.parametrize("file", sorted((ROOT / "src").rglob("*.py")), ids=lambda file: str(file.relative_to(ROOT)))
def test_no_module_can_execute_what_it_loads(file):
    for node in ast.walk(ast.parse(file.read_text())):
        imported = {alias.name for alias in node.names} if isinstance(node, ast.Import) else set()
        imported |= {str(node.module)} if isinstance(node, ast.ImportFrom) else set()
        assert not {module.split(".")[0] for module in imported} & {"pickle", "cloudpickle", "dill", "joblib", "shelve", "marshal"}
        if isinstance(node, ast.keyword) and node.arg == "allow_pickle":
            assert isinstance(node.value, ast.Constant) and node.value.value is False
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id not in {"eval", "exec"}
