"""A command that is no launch: it runs once, as a child of the launcher's loop.

Each mpirun below it has a launcher of its own. This process passes signals on, reaps what is left
to it, and ends with the command's status. Its ``ssh`` has a gate started here (``logins``).
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from mpiboot.core import log
from mpiboot.core.launch_names import (
    BY_SIGNAL,
    EARLIER,
    LAUNCHES,
    LOGINS,
    PASSED_BY,
    POOL,
    WANTED,
)
from mpiboot.core.records_json import read_record
from mpiboot.core.settings import Resolved, resolve
from mpiboot.launcher.run import LauncherProcess
from mpiboot.supervisor.evidence import HostSnapshot
from mpiboot.supervisor.processes import remove_key
from mpiboot.supervisor.signals import ENDING, has_terminal
from mpiboot.supervisor.state import signal_name
from mpiboot.system import children, os_calls

if TYPE_CHECKING:
    from mpiboot.launcher.logins import CommandLogins
    from mpiboot.supervisor.ask_workers import Workers

# Between two checks for what a signalled command has left.
_CHECK_SECONDS: Final = 0.1
# Seconds in which workers are to be notified.
_SECONDS: Final = 5.0
# Seconds for the hostfile, which may be on a volume that hangs.
_HOSTFILE: Final = 1.0
_NOT_STARTED: Final = 127
_PIPE: Final = "(a pipe without `set -o pipefail`?)"
_PASSED_BY: Final = (
    "its mpirun was not mpiboot's (did it set PATH anew?): each host was waited for, and nothing "
    "else was set; `mpiboot mpirun ...` there does the rest"
)


class EndedLaunch(NamedTuple):
    """How a launch below a command ended; ``code`` is 0 also where a signal ended it.

    Its line is mpirun's ``name``, and ``words``, which are the same for the same words.
    """

    name: str
    words: str
    code: int


def failed_launch(text: str) -> EndedLaunch | None:
    """Find the last launch that failed, unless one of the same line went well after it.

    Args:
        text: what the launches have written, a line each.
    """
    latest: dict[tuple[str, str], EndedLaunch] = {}
    for line in text.splitlines():
        ended = EndedLaunch(*json.loads(line))
        latest.pop((ended.name, ended.words), None)
        latest[ended.name, ended.words] = ended
    return next((ended for ended in reversed(latest.values()) if ended.code), None)


def _text(path: str) -> str:
    """Read a file; empty where it isn't there."""
    with suppress(OSError):
        return Path(path).read_text("utf-8", "replace")
    return ""


def launches(folder: str) -> list[str]:
    """Find the folders of the launches below a command, in the order of their starts."""
    with suppress(OSError):
        found = [entry for entry in os.scandir(folder) if entry.name.startswith("launch-")]
        return [entry.path for entry in sorted(found, key=lambda entry: entry.stat().st_mtime)]
    return []


@dataclass(frozen=True, slots=True)
class UserCommand:
    """A command to run.

    ``grace`` is in seconds; ``folder`` its private one; ``launches_folder`` the folder of the
    launches below, whose workers are notified of its end, empty where they aren't.
    ``program_path`` is its file.
    """

    program: tuple[str, ...]
    program_path: str
    environ: Mapping[str, str]
    grace: float = 0.0
    folder: str = ""
    launches_folder: str = ""
    attempt: str = ""


class CommandRun:
    """A command, to the end of all that its process group started."""

    def __init__(
        self,
        launcher: LauncherProcess,
        command: UserCommand,
        as_ranks: Callable[[], Coroutine[Any, Any, str]],
    ) -> None:
        """Get ready; ``as_ranks`` gives its line as ranks.

        That is empty where no hosts are known.
        """
        self._launcher, self._command = launcher, command
        self._find_hint, self._hint = as_ranks, ""
        self._child = 0
        self._code: int | None = None
        self._ended_by, self._deadline = 0, float("inf")
        # A terminal's own signals reach the whole foreground group; else each comes to us alone.
        self._send = os.kill if has_terminal() else os.killpg
        self._logins: CommandLogins | None = None
        self._gate: asyncio.Future[None] | None = None

    async def run(self) -> int:
        """Run the command and report its end; give the exit code.

        That is 128+n where a signal ended it, or it hid one.
        """
        launcher, command = self._launcher, self._command
        settings, what = launcher.settings, command.program[0]
        log_before = log.read_termination(settings.termination_log)
        code = await self._run()
        launcher.receive = launcher.note_signal
        launcher.hurries = bool(self._ended_by)
        logs_in = self._gate is not None
        launched = self._has(LAUNCHES)
        failed = failed_launch(_text(f"{command.folder}/{LAUNCHES}"))
        message, reference, hint = f"{what} ended with {code}", "", ""
        if not launched and self._has(PASSED_BY):
            hint = _PASSED_BY
        elif not launched and not logs_in and self._hint:
            hint = f"it called no mpirun (sudo, su, env -i hide one): {self._hint}"
        if code:
            reference = "signal" if self._ended_by else "program"
        elif failed:
            reference, hint = "launch", ""
            message += f", but its {failed.name} ended with {failed.code} {_PIPE}"
        why = self._explain(f"{reference}: {message}", reference, hint, log_before)
        if command.launches_folder and not launcher.signalled:
            await launcher.in_time(self._notify(why if code else ""), _SECONDS)
        if self._gate:
            self._gate.cancel()
        logins = (f"{command.folder}/{LOGINS}",) if logs_in else ()
        for folder in (*launches(command.launches_folder), *logins):
            remove_key(folder)
        report, mark = log.info, ""
        if reference in ("program", "launch"):
            report, mark = (log.error if code else log.warning), f"[{reference}] "
        report("program", f"{mark}{message}", code=code, hint=hint)
        reason = "; ".join(filter(None, (message, hint)))
        seconds = round(time.monotonic() - launcher.began, 3)
        end = {"exit": code, "reference": reference, "reason": reason, "seconds": seconds}
        launcher.record(end)
        log.ended(code, reference if code else "")
        return code

    def _has(self, file: str) -> bool:
        return Path(self._command.folder, file).exists()

    async def _run(self) -> int:
        launcher, command = self._launcher, self._command
        os_calls.raise_soft_limits()
        with suppress(OSError):
            # Opened for writing too, it has no end.
            flags = os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC
            wanted = os.open(f"{command.folder}/{WANTED}", flags)
            launcher.handles.on(wanted, lambda: self._start_gate(wanted))
        launcher.receive = self._receive
        try:
            child = children.start(
                command.program,
                command.environ,
                mask=launcher.mask,
                path=command.program_path,
                own_group=self._send is os.killpg,
            )
        except OSError as error:
            message = f"[program-missing] {command.program[0]}: {error.strerror}"
            log.error("program-missing", message)
            return _NOT_STARTED
        self._child = child.pid
        child.on_end(self._has_ended)
        self._hint = await launcher.in_time(self._find_hint(), _HOSTFILE) or ""
        known = f"; {self._hint}" if self._hint else ""
        log.info("command", f"{command.program[0]} runs once, in this pod{known}")
        # The launches below may take their grace, also where the command ended at once.
        await launcher.until(lambda: self._code is not None or self._ended_by)
        while self._code is None or (self._ended_by and self._reaches(0)):
            await asyncio.sleep(_CHECK_SECONDS)
            if time.monotonic() >= self._deadline:
                log.warning("killed", f"{command.program[0]} did not end in time and is killed")
                self._reaches(signal.SIGKILL)
                break
        return self._code or (BY_SIGNAL + self._ended_by if self._ended_by else 0)

    def _has_ended(self, status: int) -> None:
        self._code = os_calls.exit_status(status)
        self._launcher.wake()

    def _receive(self, number: int, _by_terminal: bool) -> None:  # noqa: FBT001
        log.info("signal", f"got {signal_name(number)}")
        self._reaches(number)
        if number in ENDING:
            self._ended_by = self._ended_by or number
            self._deadline = time.monotonic() + self._command.grace
            self._launcher.wake()

    def _reaches(self, number: int) -> bool:
        """Signal the program, or its whole group; whether anybody was there."""
        try:
            self._send(self._child, number)
        except ProcessLookupError:
            return False
        return True

    def _start_gate(self, wanted: int) -> None:
        """Start the gate for the command's ssh."""
        self._launcher.handles.off(wanted)
        os.close(wanted)
        self._gate = asyncio.ensure_future(self._serve_logins())

    async def _serve_logins(self) -> None:
        # Loaded late: few commands call ssh for a host of the job.
        from mpiboot.launcher import logins, shims  # noqa: PLC0415

        command = self._command
        path = shims.cleared(command.environ)
        self._logins = logins.CommandLogins(Path(command.folder), path)
        resolved: Resolved = resolve({}, {**command.environ, "PATH": path})
        await logins.serve(resolved, self._logins, command.attempt)

    async def _notify(self, why: str) -> None:
        """Notify the workers how the command ended: ``why`` it failed, empty after a good end."""
        *_, last = "", *launches(self._command.launches_folder)
        workers = (self._logins and self._logins.workers) or workers_of(last)
        if workers:
            await workers.notify(self._command.attempt, 0.0, why)

    def _explain(self, message: str, reference: str, hint: str, before: str) -> str:
        """Write the termination message, unless a launch below has; why it failed, in one line.

        Args:
            message: how the command ended.
            reference: what that stands for; empty after a good end.
            hint: what to do.
            before: the termination message from before the command.
        """
        path = self._launcher.settings.termination_log
        below = log.read_termination(path)
        if below == before:
            below = ""
        if below and reference in ("program", "signal"):
            return f"{message}; {below.splitlines()[0]}"
        lines = [message.removeprefix(": "), hint and f"-> {hint}", *below.splitlines()]
        if not reference:  # a launch that failed went well later
            lines = lines[:2] if hint else []
        lines.append(_text(f"{self._command.folder}/{EARLIER}").strip() if reference else "")
        if any(lines) or below:
            log.write_termination(path, "".join(f"{line}\n" for line in lines if line))
        return message


def workers_of(folder: str) -> Workers | None:
    """Give the workers of a launch that is over, with new logins; None: none is reached by SSH."""
    text = _text(f"{folder}/{POOL}")
    if not text:
        return None
    # Loaded late: as above.
    from mpiboot.ssh.pool import Pool, PoolConfig  # noqa: PLC0415
    from mpiboot.supervisor.ask_workers import Workers  # noqa: PLC0415

    config = read_record(PoolConfig, json.loads(text))
    hosts = [HostSnapshot(host.name, mpiboot=True) for host in config.hosts]
    return Workers(Pool.of(config), hosts, os.environ)
