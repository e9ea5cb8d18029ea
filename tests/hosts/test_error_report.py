from __future__ import annotations

import errno
import platform

import pytest

from mpiboot import __version__
from mpiboot.core import log
from mpiboot.core.checks import MpibootError
from mpiboot.core.model import Finding, Level
from mpiboot.hosts import error_report


def test_what_is_told_as_evidence_is_not_told_again(capfd: pytest.CaptureFixture[str]) -> None:
    """Thousands of hosts may be missing."""
    log.configure()
    first = Finding("names-unresolved", Level.FAIL, "2 of 9 hosts", evidence=("w-0: NXDOMAIN",))
    known = Finding("names-unresolved", Level.FAIL, "NXDOMAIN", host="w-0")
    other = Finding("slots", Level.FAIL, "too few", host="w-1")
    text = error_report.say(MpibootError(first, (known, other)))
    message = capfd.readouterr().err
    assert message.count("NXDOMAIN") == 1
    assert "2 of 9 hosts" in message
    assert "too few" in message
    assert text.startswith("names-unresolved: 2 of 9 hosts\n")


def test_a_bug_has_what_a_developer_needs() -> None:
    with pytest.raises(KeyError) as caught:
        dict[str, str]()["x"]
    found = error_report.bug(caught.value).finding
    assert (found.check, found.message) == ("bug", "KeyError: 'x'")
    assert found.evidence[0].startswith(
        f"mpiboot {__version__}, Python {platform.python_version()}"
    )
    assert found.evidence[-1] == "KeyError: 'x'"
    assert any("test_error_report.py" in line for line in found.evidence)


@pytest.mark.parametrize(
    ("wrong", "check", "message"),
    [
        (
            OSError(errno.EMFILE, "Too many open files", "/x"),
            "launcher-limits",
            "this process may open no more files (ulimit -n): Too many open files",
        ),
        (
            OSError(errno.EAGAIN, "Resource temporarily unavailable"),
            "launcher-limits",
            (
                "this pod may start no more processes (pids.max, ulimit -u): "
                "Resource temporarily unavailable"
            ),
        ),
        (OSError(errno.ENOENT, "gone"), "bug", "FileNotFoundError: [Errno 2] gone"),
        (OSError("gone"), "bug", "OSError: gone"),
    ],
)
def test_a_limit_that_was_reached_is_no_bug(wrong: Exception, check: str, message: str) -> None:
    found = error_report.bug(wrong).finding
    assert (found.check, found.message) == (check, message)


def test_a_module_that_is_not_installed_is_no_bug() -> None:
    wrong = error_report.bug(ModuleNotFoundError("No module named 'click'", name="click"))
    assert (wrong.finding.check, wrong.code) == ("python-modules", 127)
    assert wrong.finding.message == f"Python {platform.python_version()} does not find click"
    assert "pip install mpiboot" in wrong.finding.hint
    own = error_report.bug(ModuleNotFoundError("no", name="mpiboot.gone"))
    assert own.finding.check == "bug"
