from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

from mpiboot.core import log
from mpiboot.core.model import Json, LogLevel

# The machines are shared: how long an example takes says nothing of the code.
settings.register_profile("shared", deadline=None, suppress_health_check=(HealthCheck.too_slow,))

# Set by the gate where everything that the tests need is here: nothing is skipped there.
REQUIRED = os.environ.get("MPIBOOT_RIG") == "required"
# Whether the phase of a test that has just ended failed: its pods are shown then.
FAILED = pytest.StashKey[bool]()
# What such a file's tests share is costly to make: all of them run in one process.
TOGETHER = {"tests/vm/test_rdma_vm.py", "tests/ssh/test_pool.py", "tests/ssh/test_embedded.py"}


def pytest_configure() -> None:
    settings.load_profile("shared")
    # A gate that a shell runs in the background, or under nohup, inherits these as ignored, and
    # so would every process that a test starts and then signals.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)


@pytest.fixture(autouse=True)
def _no_variable_of_the_gate(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that a test runs would tell of it as of an unknown setting."""
    monkeypatch.delenv("MPIBOOT_RIG", raising=False)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling:
    """With `-n`: the largest group goes first, then one test at a time to whoever has time."""
    return _OneByOne(config, log)


class _OneByOne(LoadScopeScheduling):  # type: ignore[misc] # it has no types
    def _split_scope(self, nodeid: str) -> str:
        path = nodeid.partition("::")[0]
        return path if path in TOGETHER else nodeid


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    item.stash[FAILED] = report.failed
    if REQUIRED and report.skipped and not hasattr(report, "wasxfail"):
        why = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = f"{item.nodeid} may not be skipped with MPIBOOT_RIG=required: {why}"
    return report


# The grep of a busybox that was built for musl: it knows no -z, and a line ends for it with NUL.
MUSL_GREP = """#!/bin/sh
for word do
    case $word in
        -*z*) echo "grep: unrecognized option: z" >&2; exit 2 ;;
        */environ) set -- -F "$@" ;;
    esac
done
exec busybox grep "$@"
"""


@pytest.fixture
def musl(tmp_path: Path) -> str:
    path = tmp_path / "musl"
    path.mkdir()
    for name in ("tr", "sed", "sleep", "cat", "busybox"):
        (path / name).symlink_to(str(shutil.which("busybox")))
    (path / "grep").write_text(MUSL_GREP)
    (path / "grep").chmod(0o755)
    return str(path)


@pytest.fixture(autouse=True)
def _lines_have_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test passes over a line of the log without its event's name or its sentence."""
    write = log.write

    def checked(level: LogLevel, event: object, message: object, **fields: Json) -> None:
        assert isinstance(event, str), f"an event {event!r}: {message}"
        assert event, message
        assert isinstance(message, str), f"{event} says {message!r}"
        write(level, event, message, **fields)

    monkeypatch.setattr(log, "write", checked)


def pytest_runtest_teardown() -> None:
    """Give the next test the log as it is at first: people's lines, from info on."""
    log.configure()
    log.ends_container(True)
