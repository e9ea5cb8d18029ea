"""What the launcher hands to the parent of mpirun: one frozen record, as a JSON file.

Stdlib only, for the parent imports it. Nothing secret belongs in it: it is a file.
"""

from __future__ import annotations

import json
import signal
from dataclasses import asdict, dataclass
from typing import Final, NamedTuple

FILE: Final = "spec.json"
EVENTS: Final = "events"
# What mpirun writes on request: which rank is where.
PLACEMENT: Final = "placement"
# A word of 4.1's line: mpirun's own messages have a handle (see parent.own_words), ranks have 2.
NOT_FOR_RANKS: Final = "OPAL_OUTPUT_STDERR_FD=2"
MARK: Final = "MPIBOOT_LAUNCH_DIR"
# In the environment of all that one launch starts, on every host; no two launches share it.
JOB_MARK: Final = "MPIBOOT_JOB_MARK"
# Signals that end a launcher, in whatever phase it is.
ENDING: Final = frozenset((signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT))
# What the parent takes in. Who execs it as PID 1 blocks these before: a signal that comes while
# the new interpreter starts then waits for it, where else the kernel would drop it.
SIGNALS: Final = ENDING | {signal.SIGUSR1, signal.SIGUSR2, signal.SIGCHLD}


class Started(NamedTuple):
    """An mpirun that was started before its parent's program.

    ``events`` is the descriptor on which the agents' FIFO is kept open, ``words`` that on which
    mpirun's own messages come; -1 where they can't be told from the program's.
    """

    pid: int
    events: int
    words: int = -1


@dataclass(frozen=True, slots=True)
class Remote:
    """A remote host that must get a launch agent.

    ``name`` is what the agent is called with, as in the hostfile that mpirun gets; ``address``
    and ``port`` are those of its SSH server; ``others`` are further addresses of that pod, from
    which its daemon may connect.
    """

    name: str
    address: str
    port: int
    others: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LaunchSpec:
    """One start of mpirun.

    ``hosts`` counts the launcher too where it runs ranks; ``suspects`` are variables or flags
    that could hide the hostfile or the launch agent from mpirun, each with the reason;
    ``started`` is the monotonic clock's second at which mpiboot began; ``let_go`` tells that
    workers are to be told of a good end; ``program`` is what ranks run, empty where that isn't
    known; ``goes_on`` tells that the job may be meant to go on without a rank that ended badly.
    """

    argv: tuple[str, ...]
    family: str
    daemons: tuple[Remote, ...]
    hosts: int
    ranks: int | None
    launch_timeout: float
    grace: float
    started: float
    termination_log: str = ""
    hold_on_failure: float = 0.0
    log_format: str = "human"
    log_level: str = "info"
    suspects: tuple[tuple[str, str], ...] = ()
    let_go: bool = False
    program: str = ""
    goes_on: bool = False

    @property
    def local(self) -> bool:
        """Whether ranks on the launcher would get what only mpirun is to be told."""
        return self.hosts > len(self.daemons) and NOT_FOR_RANKS not in self.argv

    def to_json(self) -> str:
        """Write the record as JSON."""
        return json.dumps(asdict(self), indent=1)

    @classmethod
    def from_json(cls, text: str) -> LaunchSpec:
        """Read what ``to_json`` wrote.

        Raises:
            TypeError: a field is missing or not known.
            ValueError: it isn't JSON.
        """
        values = json.loads(text)
        values["argv"] = tuple(values["argv"])
        values["suspects"] = tuple((name, why) for name, why in values.get("suspects", ()))
        values["daemons"] = tuple(
            Remote(item["name"], item["address"], item["port"], tuple(item["others"]))
            for item in values["daemons"]
        )
        return cls(**values)
