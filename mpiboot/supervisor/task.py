"""What the launcher's process is started for. It is loaded before anything else: nothing heavy."""

from __future__ import annotations

from enum import Enum


class ParentTask(str, Enum):
    """The first word of the process's arguments; what it starts stands behind its options."""

    LAUNCH = "launch"  # the child that waits for the hosts, then what that hands over
    SCRIPT = "script"  # a program that calls mpirun itself
    STAY = "stay"  # nothing
