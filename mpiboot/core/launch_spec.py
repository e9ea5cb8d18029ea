"""Names of the files and variables by which a launch's processes find each other."""

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
# A -x of Open MPI 4.1: mpirun's own messages go to a descriptor of mpiboot's, ranks' to stderr.
NOT_FOR_RANKS: Final = "OPAL_OUTPUT_STDERR_FD=2"
LAUNCH_DIR: Final = "MPIBOOT_LAUNCH_DIR"
# In the environment of all that one launch starts, on every host; no two launches share it.
LAUNCH_ID: Final = "MPIBOOT_LAUNCH_ID"
# Of a host's answer (``facts.HostAnswer``); raised when a field changes its meaning.
RECORD_VERSION: Final = 1
# In a daemon's environment, PORT/HOST: where the launcher listens for "this worker is ending", and
# its name for the worker. mpirun itself gets the port alone.
NOTICE: Final = "MPIBOOT_NOTICE"
# Set by `mpiboot validate`, which keeps the time limit: SIGHUP then says "time is up", a good end.
TIMED: Final = "MPIBOOT_TIMED"
# A shell's exit status of signal n is 128 + n.
BY_SIGNAL: Final = 128
# What workers call the launcher; in the environment of a command, whose launches are one attempt.
ATTEMPT: Final = "MPIBOOT_ATTEMPT"
# The private folder of a command that is no launch, in its environment; and the file there in which
# each launch below it writes how it ended.
COMMAND_DIR: Final = "MPIBOOT_COMMAND_DIR"
LAUNCHES: Final = "launches"
# Also there: a file that an agent makes when another mpirun than mpiboot's called it.
PASSED_BY: Final = "passed_by"
# The FIFO by which the command's ssh starts the gate.
WANTED: Final = "wanted"
# The folder of the configuration and key of the command's ssh.
LOGINS: Final = "logins"
# A file that exists once the gate has ended, with the error if it failed.
OVER: Final = "over"


def find_launches(
    environs: Iterable[Mapping[str, str]], own: str, established: Collection[tuple[str, str]]
) -> tuple[tuple[str, ...], tuple[tuple[str, str], ...]]:
    """Find the launches that these processes belong to. Pure.

    Args:
        environs: of processes.
        own: the connection by which the host is queried, as SSH_CONNECTION has it.
        established: the host's connections, near and far port of each.

    Returns:
        All launch IDs; and ID and launcher's address (empty with kubectl) of those whose launcher
        is still connected.
    """

    def ports(connection: str) -> tuple[str, str] | None:
        words = connection.split()  # the client's address and port, the server's
        return (words[3], words[1]) if len(words) == 4 else None  # noqa: PLR2004

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
    """Drop the launch's marks: a process started without them is not ended with the launch."""
    return {name: value for name, value in environ.items() if name not in (LAUNCH_DIR, LAUNCH_ID)}
