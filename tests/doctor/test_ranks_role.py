"""How ranks are shown, and the exit codes; what hosts answer is by values."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from mpiboot.cli import main as cli
from mpiboot.core.checks import error
from mpiboot.core.model import Finding, Level
from mpiboot.doctor import ranks
from mpiboot.doctor.ranks import HostRanks, Rank, RankState, Replies

if TYPE_CHECKING:
    from mpiboot.core.settings import Resolved

HOST = "w-0.pi.default.svc"
RUNS = Rank(0, HOST, 100, "job", 2, "train", cpu=0.98, cpu_avg=0.5, stack=("#0 main",))
STOPPED = replace(RUNS, number=1, state=RankState.STOPPED, cpu=0.0, function="do_signal_stop")


def answered(*ranks: Rank, **given: Any) -> HostRanks:  # noqa: ANN401
    return HostRanks(HOST, ranks, **given)


@pytest.fixture
def doctor(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Any:  # noqa: ANN401
    """Runs it in a worker with these ranks: the code, stdout and stderr."""

    def run(given: HostRanks, *words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(ranks, "sample", lambda *_, **__: given)
        code = cli.run(["doctor", "ranks", "--role", "worker", *words])
        out, err = capfd.readouterr()
        return code, out, err

    return run


def test_the_ranks_are_rows_with_stacks_below(doctor: Any) -> None:  # noqa: ANN401
    code, out, err = doctor(answered(RUNS, STOPPED))
    assert (code, err) == (1, "")
    _, _, _, _, row, other, _, *stacks = out.splitlines()
    assert " ".join(row.split()) == "1 w-0 100 stopped (T) 0% 50% do_signal_stop train"
    assert other.startswith("0     w-0   100  running      98%")
    assert stacks[:2] == [f"rank 1 on {HOST}:", "#0 main"]
    assert stacks[-1] == "2 ranks on 1 host: 1 stopped (T), 1 running"


def test_json(doctor: Any) -> None:  # noqa: ANN401
    code, out, _ = doctor(answered(RUNS, STOPPED), "--json")
    found = json.loads(out)
    assert code == 1
    assert (found["version"], found["all_hosts"]) == (2, False)
    assert found["findings"][0]["check"] == "rank-stopped"
    rank = found["hosts"][0]["ranks"][1]
    assert (rank["number"], rank["state"], rank["stack"]) == (1, "stopped (T)", ["#0 main"])


@pytest.mark.parametrize("words", [["--seconds", "0"], ["--seconds", "x"], ["more"]])
def test_a_wrong_call_is_2(doctor: Any, words: list[str]) -> None:  # noqa: ANN401
    code, out, err = doctor(answered(), *words)
    assert (code, out) == (2, "")
    assert "doctor ranks" in err
    assert cli.run(["doctor", "--json", "ranks"]) == 2  # its options stand behind ranks


def test_no_rank_and_what_could_not_be_read(doctor: Any) -> None:  # noqa: ANN401
    assert doctor(answered()) == (0, "no rank runs here\n", "")
    code, out, _ = doctor(answered(others=3))
    assert code == 0
    assert out.startswith("?     this pod  not-readable  3 processes of other users on w-0")


def test_a_launcher_that_reaches_nobody_says_why(
    doctor: Any,  # noqa: ANN401
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ranks of its own are shown all the same: then that is no failure."""

    async def job(_resolved: Resolved, *_: object, **__: object) -> Replies:
        raise error("hostfile-missing", "no hostfile")

    monkeypatch.setattr(ranks, "_job", job)
    code, out, _ = doctor(answered(), "--role", "launcher")
    assert code == 1
    assert out.startswith("FAIL  this pod  hostfile-missing  no hostfile\n")
    code, out, _ = doctor(answered(replace(RUNS, size=1)), "--role", "launcher")
    assert code == 0
    assert out.startswith("?     this pod  hostfile-missing  no hostfile\n")


def test_a_terminal_shows_a_screen_of_them() -> None:
    many = [replace(RUNS, number=n, pid=n, stack=()) for n in range(80)]
    many[79] = replace(many[79], state=RankState.SLEEPING)
    hosts = (answered(*many),)
    shown = ranks.as_text(hosts, (), 200)
    assert shown.splitlines()[1].startswith("79 ")
    assert "and 16 more" in shown
    assert ranks.as_text(hosts, (), None).count("running  ") == 79


def test_a_host_that_was_not_reached_is_named() -> None:
    item = Finding("ssh-denied", Level.FAIL, "the key is refused", "w-1", ("line",), "mend it")
    shown = ranks.as_text((), (item,), None)
    assert shown.startswith("FAIL  w-1  ssh-denied  the key is refused\n")
    assert shown.endswith("\nno rank runs here\n")
