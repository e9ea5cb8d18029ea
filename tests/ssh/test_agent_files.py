from __future__ import annotations

import stat
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpiboot.launcher import launch_folder as files
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


@pytest.mark.parametrize(
    "value", ["", "it's", "$(touch x)", "`x`", "a\nb\n", '"', "\\", "x;y", "é €", "-n", "~", "*"]
)
def test_shell_characters_are_not_read_by_the_shell(tmp_path: Path, value: str) -> None:
    assert read_back({"user_agent": value}, tmp_path) == {"user_agent": value}


@pytest.mark.parametrize("value", ["", "it's", "'", "$(touch x) `x`", "a\nb", "\\'", "é €"])
def test_any_remote_shell_reads_exports_back_in_front_of_its_command(value: str) -> None:
    line = f'{exports({"A": value, "B": "2"})} printf \'%s|%s\' "$A" "$B"'
    done = subprocess.run(["sh", "-c", line], capture_output=True, check=True, env={})
    assert done.stdout.decode() == f"{value}|2"


def test_the_agent_finds_its_words_and_each_hosts_own_exports(tmp_path: Path) -> None:
    (tmp_path / "hosts").mkdir()
    environ = {"w-0": {"UCX_NET_DEVICES": "mlx5_0:1"}, "w-1": {"A": "it's"}}
    files.write_agent_files(
        tmp_path, ssh="ssh -4", user_agent="", client="nc -U", per_host=environ, environ={}
    )
    found = {
        str(path.relative_to(tmp_path)): (stat.S_IMODE(path.stat().st_mode), path.read_text())
        for path in tmp_path.rglob("*.*")
    }
    assert found == {
        "agent.conf": (0o600, "ssh='ssh -4'\nuser_agent=''\nclient='nc -U'\n"),
        "hosts/w-0.env": (0o600, assignments({"exports": "export UCX_NET_DEVICES='mlx5_0:1';"})),
        "hosts/w-1.env": (0o600, assignments({"exports": "export A='it'\\''s';"})),
    }
