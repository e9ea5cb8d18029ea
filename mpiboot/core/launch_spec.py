"""A launch: the names of its files and variables."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final

EVENTS: Final = "events"
# The FIFO on which agents ask for a session.
REQUESTS: Final = "requests"
# The folder of their FIFOs.
SESSIONS: Final = "sessions"
# What mpirun writes on request: which rank is where.
PLACEMENT: Final = "placement"
# The launch's copy of the job's key, in its folder.
KEY: Final = "key"
# A word of 4.1's line: mpirun's own messages have a handle (``mpirun_messages``), ranks have 2.
NOT_FOR_RANKS: Final = "OPAL_OUTPUT_STDERR_FD=2"
LAUNCH_DIR: Final = "MPIBOOT_LAUNCH_DIR"
# In the environment of all that one launch starts, on every host; no two launches share it.
LAUNCH_ID: Final = "MPIBOOT_LAUNCH_ID"
# Of a host's answer (``facts.HostAnswer``); raised when a field changes its meaning.
RECORD_VERSION: Final = 1
# In the environment of its daemons: the port on which the launcher hears of a worker's end, and
# what it calls that worker.
NOTICE: Final = "MPIBOOT_NOTICE"
# In the environment of a launcher whose time another process keeps: SIGHUP is the job's good end.
TIMED: Final = "MPIBOOT_TIMED"
# A shell's exit status of signal n is 128 + n.
BY_SIGNAL: Final = 128
# What workers call the launcher; in the environment of a command, whose launches are one attempt.
ATTEMPT: Final = "MPIBOOT_ATTEMPT"
# The private folder of a command that is no launch, in its environment; and the file there in which
# each launch below it writes how it ended.
COMMAND_DIR: Final = "MPIBOOT_COMMAND_DIR"
LAUNCHES: Final = "launches"
# The file there by which an agent reports that it was called by another mpirun than mpiboot's.
PASSED_BY: Final = "passed_by"
# The FIFO there by which its ssh asks for the gate, and the file that is there once the gate is
# over, with the reason where it failed.
WANTED: Final = "wanted"
# The folder there of what its ssh reads once a host is ready.
LOGINS: Final = "logins"
OVER: Final = "over"


_ENDS: Final = 4  # words of SSH_CONNECTION: the client's address and port, the server's


def find_launches(
    environs: Iterable[Mapping[str, str]], own: str, established: Collection[tuple[str, str]]
) -> tuple[tuple[str, ...], tuple[tuple[str, str], ...]]:
    """Find the launches that these processes are of, and those whose launcher is connected. Pure.

    Args:
        environs: of processes.
        own: the connection by which the host is queried, as SSH_CONNECTION has it.
        established: the host's connections, near and far port of each.
    """

    def ports(connection: str) -> tuple[str, str] | None:
        words = connection.split()
        return (words[3], words[1]) if len(words) == _ENDS else None

    # A table without this very connection is incomplete: then no launcher counts as gone.
    blind = ports(own) not in established
    launches, held = set[str](), set[tuple[str, str]]()
    for environ in environs:
        if not (launch := environ.get(LAUNCH_ID, "")):
            continue
        launches.add(launch)
        came = environ.get("SSH_CONNECTION", "")
        if "MPIBOOT_POD_SESSION" in environ:  # it lives as long as its launcher's kubectl
            held.add((launch, ""))
        elif ports(came) and (blind or ports(came) in established):
            held.add((launch, came.split()[0]))
    return tuple(sorted(launches)), tuple(sorted(held))


def outside_launch(environ: Mapping[str, str]) -> dict[str, str]:
    """Drop what marks a launch's processes: without it none is ended with them."""
    return {name: value for name, value in environ.items() if name not in (LAUNCH_DIR, LAUNCH_ID)}
