"""The environment that a vendor's profile leaves."""

from __future__ import annotations

import os
import tracemalloc
from pathlib import Path

import pytest

from mpiboot.core.model import Level
from mpiboot.worker import server
from tests.waiting import until

POD = {"PATH": os.environ["PATH"], "KEPT": "old value", "GONE": "1", "with.dot": "2"}


def script(tmp_path: Path, text: str) -> str:
    path = tmp_path / "profile with blank.sh"
    path.write_text(text)
    return str(path)


def test_what_a_script_sets_changes_and_unsets_is_taken(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """What it prints goes nowhere, and what it leaves running is not waited for."""
    text = """
        export NEW='a b;"c"
        é$x' KEPT="$KEPT and more" BYTES="$(printf '\\377')"
        NOT_EXPORTED=1
        unset GONE
        head -c 300000 /dev/urandom; head -c 9000000 /dev/urandom >&2
        sleep 1000 &
        export SLEEP=$!
        cd /
    """
    tracemalloc.start()
    found, wrong = server.evaluate_profile(script(tmp_path, text), POD, limit=60)
    assert tracemalloc.get_traced_memory()[1] < 8_000_000
    tracemalloc.stop()
    assert wrong is None
    os.kill(int(found.pop("SLEEP")), 9)
    assert found["NEW"] == 'a b;"c"\n        é$x'
    assert found["KEPT"] == "old value and more"
    assert found["BYTES"] == "\udcff"
    assert found.keys() == {"PATH", "KEPT", "NEW", "BYTES", "with.dot"}
    assert capfdbinary.readouterr() == (b"", b"")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("export NEW=1\necho no such card >&2\nreturn 3\n", "ended with 3: no such card"),
        ("export NEW=1\nprintf 'bad\\377\\001' >&2\nfalse\n", "ended with 1: bad??"),
        ("export NEW=1\nexit 0\n", "ended before its environment could be read"),
        ("kill -9 $$\n", "ended with 137"),
        ("if\n", "ended with "),
    ],
)
def test_a_script_that_fails_is_one_warning_and_changes_nothing(
    tmp_path: Path, text: str, message: str
) -> None:
    found, wrong = server.evaluate_profile(script(tmp_path, text), POD)
    assert found == POD
    assert wrong is not None
    assert (wrong.check, wrong.level) == ("env-profile", Level.WARN)
    assert message in wrong.message
    assert "\n" not in wrong.message


def test_a_script_that_hangs_is_ended_with_what_it_started(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    text = f"sleep 1000 &\necho $! > {pids}\nexport NEW=1\nwait\n"
    for limit in (2, 20, 200):  # a busy machine may not have come to it within the limit
        found, wrong = server.evaluate_profile(script(tmp_path, text), POD, limit=limit)
        assert found == POD
        assert wrong is not None
        assert f"took longer than {limit} s" in wrong.message
        if pids.exists():
            break
    stat = Path(f"/proc/{pids.read_text().strip()}/stat")
    until(lambda: not stat.exists() or ") Z " in stat.read_text())
