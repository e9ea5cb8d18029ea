"""The values of settings that are words."""

from __future__ import annotations

from enum import Enum
from typing import Final


class HostKeys(str, Enum):
    """Which host keys are accepted: the job's, any at first contact, or all."""

    JOB = "job"
    ACCEPT_NEW = "accept-new"
    OFF = "off"


class DataNetworkUse(str, Enum):
    """Whether a job requires its data network, prefers or only reports it, or has none."""

    REQUIRE = "require"
    PREFER = "prefer"
    REPORT = "report"
    OFF = "off"


class NcclSocket(str, Enum):
    """Over which link NCCL's sockets go; ``AUTO``: the data link where every worker reaches it."""

    AUTO = "auto"
    DATA = "data"
    CONTROL = "control"


class MpiNetwork(str, Enum):
    """Over which network MPI's own messages go; a decision of ``auto`` leaves that to the MPI."""

    AUTO = "auto"
    CONTROL = "control"
    DATA = "data"


class Auto(str, Enum):
    """The value of a setting that leaves the choice to mpiboot."""

    AUTO = "auto"


AUTO: Final = Auto.AUTO


class ByIndex(str, Enum):
    """The role of a pod that is one of several alike: number 0 is the launcher, others workers."""

    BY_INDEX = "by-index"


BY_INDEX: Final = ByIndex.BY_INDEX


class LaunchAgent(str, Enum):
    """How a launcher reaches the job's hosts."""

    SSH = "ssh"
    KUBECTL = "kubectl"


class Switch(str, Enum):
    """Whether something is done."""

    OFF = "off"
    ON = "on"


class ValidateFirst(str, Enum):
    """Whether the paths between the workers are measured before a job."""

    QUICK = "quick"
    OFF = "off"


class ProveTransport(str, Enum):
    """What follows where RDMA was planned and carried nothing: a warning, or a failed job."""

    WARN = "warn"
    FAIL = "fail"
    OFF = "off"


class WorkerExit(str, Enum):
    """After which end of the job a worker exits: a good one, any, or none."""

    WITH_JOB = "with-job"
    AFTER_JOB = "after-job"
    NEVER = "never"


class LogFormat(str, Enum):
    """In which form lines are logged."""

    HUMAN = "human"
    JSON = "json"


class LogLevel(str, Enum):
    """The level of a log line, the lowest first."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"
