"""How a run ends: exit code, output, JSON and termination message.

The launcher is a script that prints and writes a record: RDMA can't be planned on this machine, nor
missed. A real launcher's runs are in tests/pods, with RDMA in tests/vm/inside/job.py.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mpiboot.cli import main as cli
from mpiboot.system import process
from tests.validate.test_nccl_tests import HEAD, ROW

START = "mpiboot-validate|w-0|start|all_reduce_perf\nmpiboot-validate|w-1|start|all_reduce_perf\n"
RATE = {"mlx5_0:1": {"rdma": True, "data": True, "rate": 1e12, "mtu": 0}}


def record(verdict: str = "ok") -> dict[str, Any]:
    """What the supervisor writes where RDMA was planned on two hosts."""
    hosts = {"w-0": RATE, "w-1": RATE}
    transport = {"planned": "RoCE", "verdict": verdict, "message": "no byte by mlx5_0"}
    return {"version": 1, "ranks": 2, "transport": {**transport, "hosts": hosts}}


@pytest.fixture
def validate(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> Any:  # noqa: ANN401
    """Runs `validate job` with a launcher that does as told: code, stdout, termination message."""
    monkeypatch.setenv("MPIBOOT_RUNTIME_DIR", str(tmp_path / "run"))
    monkeypatch.setenv("MPIBOOT_TERMINATION_LOG", str(tmp_path / "log"))
    monkeypatch.setattr(process, "is_containers_own", lambda: True)  # as in a Job of its own

    def run(does: str, found: dict[str, Any], *words: str) -> tuple[int, str, str]:
        (tmp_path / "found").write_text(json.dumps(found))
        (tmp_path / "log").write_text("")
        text = f'cp {tmp_path}/found "$MPIBOOT_JOB_RECORD"\n{does}'

        def launcher(_statement: str, *_given: str) -> list[str]:
            return ["sh", "-c", text]

        monkeypatch.setattr(process, "python", launcher)
        code = cli.run(["validate", "job", *words])
        assert not (tmp_path / "run").exists() or not list((tmp_path / "run").rglob("record*"))
        return code, capfd.readouterr().out, (tmp_path / "log").read_text()

    return run


def prints(text: str, then: str = "") -> str:
    return f"cat <<'END'\n{START}{text}END\n{then}"


TABLE = HEAD + ROW


SLOW = "95.28 GB/s average bus bandwidth at 128 MiB, 76% of the 125 GB/s"
MISSING = "cat <<'END'\nmpiboot-validate|w-1|missing|all_reduce_perf in /bin\nEND\nexit 127"
ENDS: dict[str, tuple[str, dict[str, Any], str, int, str, str]] = {
    "fit": (prints(TABLE), record(), "--min-fraction=0.7", 0, f"verdict: fit: {SLOW}", ""),
    "too slow": (prints(TABLE), record(), "", 1, f"verdict: {SLOW}", f"bandwidth: {SLOW}"),
    "no tool": (
        *(MISSING, {"version": 1, "hosts": ["w"] * 2}, "", 127),
        "`mpiboot validate pairs` measures the network without it",
        "program-missing: no nccl-tests on w-1: looked for all_reduce_perf",
    ),
    "another network": (
        *(prints(TABLE), record("unused"), "--json", 76),
        '"exit": 76',
        "transport: no byte by mlx5_0\n-> ",
    ),
    "the launcher's own": ("exit 69", {}, "", 69, "", ""),
    "the launcher's own signal": (
        *(prints(TABLE, "kill -9 $$\n"), record(), "--min-fraction=0.1"),
        *(137, "ended with 137", ""),
    ),
}


@pytest.mark.parametrize(
    ("does", "found", "word", "code", "out", "reason"), ENDS.values(), ids=ENDS
)
def test_ends(
    validate: Any,  # noqa: ANN401
    does: str,
    found: dict[str, Any],
    word: str,
    code: int,
    out: str,
    reason: str,
) -> None:
    ended, shown, message = validate(does, found, *filter(None, (word,)))
    assert ended == code
    assert out in shown
    assert shown.startswith(TABLE) == ("verdict:" in out or "ended" in out)
    assert message.startswith(reason)
    assert bool(message) == bool(reason)


def test_a_terminal_that_is_closed_is_no_end_of_its_time(
    validate: Any,  # noqa: ANN401
    tmp_path: Path,
) -> None:
    traps = "".join(
        f"trap 'echo {name} > {tmp_path}/got; exit 1' {name}\n" for name in ("HUP", "TERM")
    )
    does = traps + prints(TABLE, "kill -HUP $PPID\nwhile :; do sleep 0.1; done\n")
    code, out, _ = validate(does, record())
    assert code == 129
    assert "interrupted by SIGHUP: no verdict" in out
    assert (tmp_path / "got").read_text() == "TERM\n"


def test_the_json_has_its_fields(validate: Any) -> None:  # noqa: ANN401
    found = json.loads(validate(prints(TABLE), record(), "--json")[1])
    assert found["samples"] == [{"size": 134217728, "busbw": 95.275, "wrong": 0}]
    assert (found["version"], found["fraction"], found["limit"]) == (2, 0.7622, 125.0)
    assert found["verdict"]["level"] == "fail"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--min-fraction", "80"), "80.0 is not in the range 0<x<=1"),
        (("--time", "0"), "'0': expected more than 0 seconds"),
        (("--tool", "osu"), "--tool is 'osu': expected nccl-tests"),
    ],
)
def test_a_bad_value_is_one_line(
    words: tuple[str, ...], message: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(["validate", "job", *words]) == 2
    assert message in capfd.readouterr().err.splitlines()[0]
