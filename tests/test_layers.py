from __future__ import annotations

import configparser
import os
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import mpiboot

ROOT = Path(__file__).parent.parent
# Where third parties may stand.
EDGES = {"mpiboot.cli", "mpiboot.core", "mpiboot.network", "mpiboot.ssh", "mpiboot.system"}


def sources(contract: str) -> set[str]:
    read = configparser.ConfigParser()
    read.read(ROOT / ".importlinter")
    return set(read[f"importlinter:contract:{contract}"]["source_modules"].split())


def test_no_module_escapes_the_contracts() -> None:
    # A new module is pure, or it is told in .importlinter that it is not.
    pure, orchestration = sources("pure"), sources("third-party")
    found = {item.name for item in pkgutil.iter_modules(mpiboot.__path__, "mpiboot.")}
    assert pure & orchestration == set()
    assert {name for name in pure | orchestration if name.count(".") == 1} | EDGES == found


def test_every_package_is_found_by_the_contracts_and_is_installed() -> None:
    folders = {path.parent for path in (ROOT / "mpiboot").rglob("*.py")}
    packages = {".".join(path.relative_to(ROOT).parts) for path in folders}
    assert all((path / "__init__.py").exists() for path in folders)
    text = (ROOT / "pyproject.toml").read_text()
    assert [name for name in packages if f'"{name}"' not in text] == []


def test_a_class_name_has_one_meaning() -> None:
    names: dict[str, list[str]] = {}
    for path in (ROOT / "mpiboot").rglob("*.py"):
        for name in re.findall(r"^class (\w+)", path.read_text(), re.MULTILINE):
            names.setdefault(name, []).append(str(path.relative_to(ROOT)))
    assert {name: paths for name, paths in names.items() if len(paths) > 1} == {}


def test_nothing_is_skipped_where_all_that_tests_need_is_here(tmp_path: Path) -> None:
    test = tmp_path / "test_skip.py"
    test.write_text("import pytest\ndef test_a():\n    pytest.skip('no such tool')\n")
    argv = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-c", "/dev/null"]
    argv += ["-p", "tests.conftest", "--rootdir", str(tmp_path), str(test)]
    for value, code in (("", 0), ("required", 1)):
        environ = {**os.environ, "MPIBOOT_RIG": value, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(argv, env=environ, capture_output=True, text=True, check=False)
        assert done.returncode == code
        assert "no such tool" in done.stdout or not value
