"""Names of a launch: its descriptors, files, environment variables and statuses.

Nothing else is here, as every process loads this.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

EVENTS: Final = "events"
# The FIFO on which agents ask for a session.
REQUESTS: Final = "requests"
# The folder of their FIFOs.
SESSIONS: Final = "sessions"
# What mpirun writes on request: which rank is where.
PLACEMENT: Final = "placement"
# The launch's copy of the job's key, in its folder, and the variable by which a command that
# notifies workers of its end keeps it until then.
KEY: Final = "key"
KEEP_KEY: Final = "MPIBOOT_KEEP_KEY"
# What the process reads that notifies the workers of a command's end.
POOL: Final = "pool.json"
# A word of 4.1's line: mpirun's own messages have a handle (``mpirun_messages``), ranks have 2.
NOT_FOR_RANKS: Final = "OPAL_OUTPUT_STDERR_FD=2"
LAUNCH_DIR: Final = "MPIBOOT_LAUNCH_DIR"
# In the environment of all that one launch starts, on every host; no two launches share it.
LAUNCH_ID: Final = "MPIBOOT_LAUNCH_ID"
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
# The FIFO there by which its ssh asks for the gate; what the gate has reported of the attempt
# before; and the file that is there once the gate is over, with the reason where it failed.
WANTED: Final = "wanted"
EARLIER: Final = "earlier"
# The folder there of what its ssh reads once a host is ready.
LOGINS: Final = "logins"
OVER: Final = "over"


def outside_launch(environ: Mapping[str, str]) -> dict[str, str]:
    """Drop what marks a launch's processes: without it none is ended with them."""
    return {name: value for name, value in environ.items() if name not in (LAUNCH_DIR, LAUNCH_ID)}
