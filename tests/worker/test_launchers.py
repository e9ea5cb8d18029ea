"""When a worker may end for want of a launcher, and what it remembers of those that were there."""

from __future__ import annotations

from pathlib import Path

import pytest

from mpiboot.worker.role import Launchers

AWAY, WAITS = 30.0, 600.0
CAME, STAYS = b"launcher a@1@x 0", b"launcher a@1@x 1"
FAILED, HELD = b"ended a@1@x 0 host-lost%3A%20w-1", b"ended a@1@x 120 host-lost"

WENT_ON, OTHER = b"ended a@1@x - names-unresolved", b"launcher b@2@y 0"


def after(path: Path, *lines: bytes) -> Launchers:
    """What is known after these lines."""
    seen = Launchers(path, AWAY, WAITS)
    for line in lines:
        seen.read_line(line, 1000.0)
    return seen


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "attempts"


@pytest.mark.parametrize(
    ("lines", "due"),
    [
        ((), None),  # its launcher may still be pulling its image
        ((CAME,), WAITS),  # it may wait for other hosts, without a word to this one
        ((CAME, FAILED), AWAY),
        ((CAME, HELD), AWAY + 120),
        ((CAME, FAILED, OTHER), WAITS),
        ((STAYS,), None),  # a script between two launches
        ((STAYS, FAILED), AWAY),
        ((STAYS, WENT_ON), None),  # a script whose launch failed may go on
        ((STAYS, WENT_ON, FAILED), AWAY),
        ((CAME, FAILED, WENT_ON), WAITS),
        ((FAILED, STAYS), None),
    ],
)
def test_how_long_the_next_launcher_is_waited_for(
    path: Path, lines: tuple[bytes, ...], due: float | None
) -> None:
    assert after(path, *lines).due == (None if due is None else 1000 + due)


def test_the_time_begins_when_the_last_connection_ends(path: Path) -> None:
    seen = Launchers(path, AWAY, WAITS)
    seen.connected(500.0)
    assert seen.due is None
    seen.read_line(CAME, 1000.0)
    seen.read_line(FAILED, 2000.0)
    seen.connected(2001.0)
    assert seen.due == 2001 + AWAY
    seen.forget()  # after a good end the next launcher is a first one
    assert (path.read_text(), seen.due) == ("", None)
    seen = Launchers(path, 9000.0, WAITS)  # longer than it may wait for hosts
    seen.read_line(CAME, 0.0)
    assert seen.due == 9000


@pytest.mark.parametrize(
    "line",
    [
        b"launcher a",
        b"launcher a 2",
        b"launcher \xff 0",
        b"launcher %b 0" % (b"a" * 201),
        b"ended a@1@x -1 x",
        b"ended a@1@x 1e9 x",
        b"ended a@1@x 0 a b",
        b"ended a@1@x 9999999999 a",
    ],
)
def test_a_line_that_is_none_changes_nothing(path: Path, line: bytes) -> None:
    assert after(path, line).due is None
    assert not path.exists()


@pytest.mark.parametrize(
    ("lines", "kept"),
    [
        ((CAME, FAILED, OTHER), "a@1@x host-lost%3A%20w-1\nb@2@y \n"),
        ((CAME, CAME, FAILED), "a@1@x host-lost%3A%20w-1\n"),  # one launcher is one attempt
        ((STAYS, WENT_ON), "a@1@x names-unresolved\n"),
        ((STAYS, WENT_ON, STAYS), "a@1@x \n"),  # a script that went on did not end by that
        ((CAME, OTHER, STAYS), "b@2@y \na@1@x \n"),
    ],
)
def test_a_container_that_starts_again_remembers(
    path: Path, lines: tuple[bytes, ...], kept: str
) -> None:
    after(path, *lines)
    assert path.read_text() == kept
    assert path.stat().st_mode & 0o777 == 0o600
    assert Launchers(path, AWAY, WAITS).due is None
    after(path, b"launcher c@3@z 0")
    assert path.read_text() == f"{kept}c@3@z \n"
