"""How ranks are told, and the exit codes; what hosts answer is by values."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from mpiboot.cli import main as cli
from mpiboot.core.checks import error
from mpiboot.core.model import Finding, Level
from mpiboot.doctor import ranks_role as role
from mpiboot.doctor.ranks_answer import Activity, HostRanks, LinkRates, MpiStage, Rank
from mpiboot.doctor.ranks_role import Replies

if TYPE_CHECKING:
    from mpiboot.core.settings import Resolved

BUSY = Rank(
    *(0, "w-0.pi.default.svc", 100, "job", 2, 1, "train", "./train --token (hidden)"),
    stage=MpiStage.INSIDE,
    cpu=0.98,
    memory=1 << 30,
    threads=3,
    running=1,
    devices=("mlx5_0", "nvidia0"),
)
IDLE = replace(BUSY, number=1, activity=Activity.STOPPED, cpu=0.0, devices=())


def answers(*ranks: Rank, **given: Any) -> Replies:  # noqa: ANN401
    host = HostRanks(
        "w-0.pi.default.svc", ranks, (LinkRates("eth0", 2e6, 1e3, "up"),), 1.0, **given
    )
    return Replies((host,))


@pytest.fixture
def doctor(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Any:  # noqa: ANN401
    """Asks for the ranks of a worker that answers as told: the code, stdout and stderr."""

    def run(given: Replies, *words: str) -> tuple[int, str, str]:
        def there(_seconds: int) -> Replies:
            return given

        monkeypatch.setattr(role, "this_pod", there)
        code = cli.run(["doctor", "ranks", "--role", "worker", *words])
        out, err = capfd.readouterr()
        return code, out, err

    return run


def test_one_line_says_what_is_wrong(doctor: Any) -> None:  # noqa: ANN401
    code, out, err = doctor(answers(BUSY, IDLE))
    assert (code, err) == (1, "")
    first, hint, *_ = out.splitlines()
    message = "is stopped by a signal; the other one is busy, as a rank waiting in MPI is"
    assert first == f"FAIL  rank 1 on w-0.pi.default.svc (pid 100) {message}"
    assert hint.startswith("      -> `kill -CONT 100` in that pod")
    assert "holds mlx5_0, nvidia0" in out
    assert "eth0" in out
    assert "2.000 MB/s" in out
    assert out.splitlines()[-1] == "2 ranks on 1 host: 1 busy, 1 stopped; 1 odd"


def test_nothing_odd_is_0(doctor: Any) -> None:  # noqa: ANN401
    code, out, _ = doctor(answers(BUSY, replace(BUSY, number=1)))
    assert code == 0
    message = "2 ranks on 1 host: 2 busy; none stands out; look again a minute later"
    assert out.splitlines()[-1] == message


def test_json(doctor: Any) -> None:  # noqa: ANN401
    code, out, _ = doctor(answers(BUSY, IDLE), "--json")
    found = json.loads(out)
    assert code == 1
    assert (found["version"], found["all_hosts"], found["not_asked"]) == (1, False, [])
    assert found["findings"][0]["check"] == "rank-stopped"
    rank = found["hosts"][0]["ranks"][1]
    assert (rank["number"], rank["activity"], rank["stage"]) == (1, "stopped", "in MPI")


def test_no_rank(doctor: Any) -> None:  # noqa: ANN401
    assert doctor(answers()) == (0, "no rank runs in this pod\n", "")


@pytest.mark.parametrize("words", [["--seconds", "0"], ["--seconds", "x"], ["more"]])
def test_a_wrong_call_is_2(doctor: Any, words: list[str]) -> None:  # noqa: ANN401
    code, out, err = doctor(answers(), *words)
    assert (code, out) == (2, "")
    assert "doctor ranks" in err


def test_options_of_doctor_stand_behind_ranks(capfd: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["doctor", "--json", "ranks"]) == 2
    assert "mpiboot doctor ranks OPTIONS" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (answers(closed=frozenset({"fd"})), "what ranks have open can't be read on w-0"),
        (
            answers(replace(IDLE, activity=Activity.WAITS), closed=frozenset({"syscall"})),
            "in which system call ranks wait can't be read on w-0",
        ),
        (answers(others=3), "3 processes of other users on w-0"),
        (answers(replace(BUSY, program="python3 a.py")), "no stack of 1 Python rank"),
    ],
)
def test_what_could_not_be_read_is_told(given: Replies, message: str) -> None:
    (found,) = role._not_readable(given.hosts)
    assert found.level is Level.UNKNOWN
    assert found.message.startswith(message)
    assert found.hint


def test_what_this_user_can_read_is_not_told() -> None:
    seen = replace(BUSY, program="python3 a.py", stack=("main",))
    assert [*role._not_readable(answers(seen, others=3).hosts)] == []


def test_a_launcher_that_can_ask_nobody_says_why(
    doctor: Any,  # noqa: ANN401
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A job's ranks of its own are shown all the same: then that is no failure."""

    def job(_resolved: Resolved, _environ: object, _seconds: int) -> Replies:
        raise error("hostfile-missing", "no hostfile")

    monkeypatch.setattr(role, "job", job)
    code, out, _ = doctor(answers(), "--role", "launcher")
    assert code == 1
    assert out.startswith("FAIL  no hostfile\n")
    code, out, _ = doctor(answers(BUSY), "--role", "launcher")
    assert code == 0
    assert out.startswith("?     no hostfile\n")


def test_a_terminal_shows_what_is_not_busy_first() -> None:
    many = [replace(BUSY, number=n, pid=n) for n in range(80)]
    many[79] = replace(many[79], activity=Activity.WAITS)
    shown = role.as_text(answers(*many), (), 200)
    assert shown.splitlines()[1].startswith("79 ")
    assert "and 16 more" in shown
    assert role.as_text(answers(*many), (), None).count("in   ") == 80


def test_a_row_tells_in_what_a_rank_waits() -> None:
    waits = replace(BUSY, activity=Activity.WAITS, place="here")
    in_a_call = replace(waits, number=1, call="read", file="/data/x", devices=("mlx5_0",))
    shown = role.as_text(answers(waits, in_a_call), (), None).splitlines()
    assert any("  here  " in line for line in shown)
    assert any("  read /data/x  train; holds mlx5_0" in line for line in shown)


def test_a_host_is_named_once() -> None:
    item = Finding("ssh-denied", Level.FAIL, "the key is refused", "w-1", ("line",), "mend it")
    shown = role.as_text(replace(answers(), all_hosts=True), (item,), None)
    message = "FAIL  w-1: the key is refused\n        line\n      -> mend it\n\n"
    assert shown == f"{message}no rank runs on these hosts\n"
