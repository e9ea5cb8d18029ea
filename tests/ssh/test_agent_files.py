from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpiboot.launcher.launch_folder import assignments, exports

NAMES = st.from_regex(r"[a-z_][a-z0-9_]{0,8}", fullmatch=True)
VALUES = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=60)


def read_back(values: dict[str, str], folder: Path) -> dict[str, str]:
    file = folder / "conf"
    file.write_text(assignments(values), newline="")
    script = f'. "$1"; printf "%s\\0" {" ".join(f"${{{name}}}" for name in values)}'
    script = script.replace("${", '"${').replace("}", '}"')
    done = subprocess.run(
        ["sh", "-c", script, "sh", str(file)], capture_output=True, check=True, env={}
    )
    found = done.stdout.split(b"\0")
    return {name: text.decode() for name, text in zip(values, found, strict=False)}


@given(st.dictionaries(NAMES.map("x".__add__), VALUES, min_size=1, max_size=3))
def test_a_shell_reads_assignments_back_byte_for_byte(
    tmp_path_factory: pytest.TempPathFactory, values: dict[str, str]
) -> None:
    assert read_back(values, tmp_path_factory.getbasetemp()) == values


@pytest.mark.parametrize("value", ["", "it's", "'", "$(touch x) `x`", "a\nb", "\\'", "é €"])
def test_any_remote_shell_reads_exports_back_in_front_of_its_command(value: str) -> None:
    line = f'{exports({"A": value, "B": "2"})} printf \'%s|%s\' "$A" "$B"'
    done = subprocess.run(["sh", "-c", line], capture_output=True, check=True, env={})
    assert done.stdout.decode() == f"{value}|2"
