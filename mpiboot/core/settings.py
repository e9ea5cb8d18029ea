"""Every setting, once: type, default, flag, variable, older names, help and roles.

A field of ``Settings`` is a row of the table; its flag is ``--the-name`` and its variable
``MPIBOOT_THE_NAME``. ``resolve`` is pure: it takes flags and environment as mappings, and returns
each value with its source.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields
from enum import Enum
from functools import partial
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeVar

from mpiboot.core import checks
from mpiboot.core.model import (
    AUTO,
    BY_INDEX,
    Auto,
    ByIndex,
    DataNetworkUse,
    Finding,
    HostKeys,
    LaunchAgent,
    Level,
    LogFormat,
    LogLevel,
    MpiFamily,
    MpiNetwork,
    NcclSocket,
    ProveTransport,
    Role,
    Source,
    SshKind,
    Switch,
    WorkerExit,
)

PREFIX: Final = "MPIBOOT_"

T = TypeVar("T")
_LAUNCHER: Final = (Role.LAUNCHER,)
_WORKER: Final = (Role.WORKER,)
_BOTH: Final = (*_LAUNCHER, *_WORKER)


class Parse(NamedTuple):
    """A parser of a setting's text; ``kind`` names the value in help and pages."""

    kind: str
    read: Callable[[str], Any]


# Variables that Kubernetes sets in every pod for each Service, such as one named "mpiboot-ssh".
_SERVICE: Final = re.compile(r".*_(SERVICE_(HOST|PORT(_.+)?)|PORT_\d+_(TCP|UDP|SCTP)(_.+)?)")
_SERVICE_PORT: Final = re.compile(r"(?:tcp|udp|sctp)://")


@partial(Parse, "true|false")
def boolean(text: str) -> bool:
    """Read yes or no in the spellings that manifests use."""
    word = text.strip().lower()
    if word in ("1", "true", "yes", "on"):
        return True
    if word in ("0", "false", "no", "off", ""):
        return False
    raise ValueError("true or false")


_MAX_INT: Final = 2**31 - 1  # programs read numbers into a C int
# Limit of one Kubernetes cluster (kubernetes.io, "Considerations for large clusters").
_MAX_PODS: Final = 150_000


_UNITS: Final = {"d": 86400, "h": 3600, "m": 60, "s": 1}  # seconds


@partial(Parse, "time")
def seconds(text: str) -> float:
    """Read a length of time: seconds, or a number with s, m, h or d."""
    word = text.strip().lower()
    scale = _UNITS.get(word[-1:], 0)
    try:
        value = float(word[:-1]) * scale if scale else float(word)
    except ValueError:
        value = -1.0
    if _MAX_INT < value < float("inf"):
        raise ValueError(f"at most {_MAX_INT} seconds")
    if not 0 <= value <= _MAX_INT:
        raise ValueError("a number of seconds, such as 600, 90s or 10m")
    return value


@partial(Parse, "time")
def some_seconds(text: str) -> float:
    """Read a length of time that must not be 0."""
    value: float = seconds.read(text)
    if not value:
        raise ValueError("more than 0 seconds, such as 600, 90s or 10m")
    return value


def _whole(text: str, maximum: int) -> int:
    """Read a whole number from 1."""
    word = text.strip()
    digits = word.lstrip("0") if word.isascii() and word.isdigit() else ""
    # int() rejects very long ones.
    if not digits or len(digits) > len(str(maximum)) or int(digits) > maximum:
        raise ValueError(f"a whole number from 1 to {maximum}")
    return int(digits)


count: Final = Parse("number", partial(_whole, maximum=_MAX_INT))
pods: Final = Parse("number", partial(_whole, maximum=_MAX_PODS))
port: Final = Parse("port", partial(_whole, maximum=65535))


@partial(Parse, "first-last")
def ports(text: str) -> str:
    """Read a range of TCP ports; none below 1024, which MPI itself refuses."""
    first, dash, last = (part.strip() for part in text.partition("-"))
    try:
        low, high = port.read(first), port.read(last if dash else first)
    except ValueError:
        low, high = 0, 0
    if not 1024 <= low <= high:  # noqa: PLR2004 - the first port that needs no privilege
        raise ValueError("a range within 1024-65535, such as 40000-40099")
    return f"{low}-{high}"


@partial(Parse, "words")
def words(text: str) -> tuple[str, ...]:
    """Read a list of words, split at commas and blanks."""
    return tuple(text.replace(",", " ").split())


# Checked once the job's tasks are known: ``platforms.named_task``.
tasks: Final = Parse("task[:slots],...", words.read)


def _plain(text: str) -> str:
    """Read text, stripped of outer blanks; control characters are rejected."""
    if any(ord(char) < ord(" ") for char in text):
        raise ValueError("a value without control characters")
    return text.strip()


plain: Final = Parse("text", _plain)
path: Final = Parse("path", _plain)


@partial(Parse, "path")
def key_path(text: str) -> str:
    """Read the path of a private key; the key itself is never echoed."""
    if is_key(text):
        raise ValueError("the path of the key, not the key itself")
    return _plain(text)


def is_key(text: str) -> bool:
    """Whether a text is a private key itself, which no message may show."""
    return "PRIVATE KEY" in text


def one_of(*choices: Enum, hint: str = "") -> Parse:
    """Make a parser of enum members by value; true and false mean on and off, if these exist."""
    found = {str(item.value): item for item in choices}

    def read(text: str) -> Enum:
        word = text.strip().lower()
        if {"on", "off"} <= found.keys() - {word}:
            with suppress(ValueError):
                word = "on" if boolean.read(word) else "off"
        if word not in found:
            raise ValueError(f"one of {', '.join(found)}{hint}")
        return found[word]

    return Parse("|".join(found), read)


_SAVED_ON: Final = ("TERM", "INT", "HUP", "QUIT", "USR1", "USR2")


@partial(Parse, "|".join(_SAVED_ON))
def signal_word(text: str) -> str:
    """Read the name of a signal on which programs can checkpoint."""
    word = text.strip().upper().removeprefix("SIG")
    if word not in _SAVED_ON:
        raise ValueError("one of " + ", ".join(_SAVED_ON))
    return word


def shown(value: object) -> str:
    """Format a setting's value as a user would write it; empty if it has none."""
    match value:
        case None | "" | ():
            return ""
        case bool():
            return "true" if value else "false"
        case tuple():
            return ",".join(str(item) for item in value)
        case float():  # all are times
            units = (unit for unit, scale in _UNITS.items() if value and not value % scale)
            unit = next(units, "s")
            return f"{value / _UNITS[unit]:.15g}{unit}"
        case Enum():
            return str(value.value)
        case _:
            return str(value)


def of_service(name: str, value: str) -> bool:
    """Whether Kubernetes set the variable for a Service (X_SERVICE_HOST, X_PORT=tcp://...)."""
    if _SERVICE.fullmatch(name):
        return True
    return name.endswith("_PORT") and _SERVICE_PORT.match(value) is not None


class Section(str, Enum):
    """The heading of a setting in help and pages."""

    POD = "This pod"
    HOSTS = "Hosts and waiting"
    SSH = "SSH"
    MPI = "MPI and ranks"
    NETWORK = "Network"
    END = "End of the job"
    LOG = "Logging and files"


_COMMON: Final = (
    "hostfile timeout sshd ssh_port ssh_key forward rank_env env_profile control_ifname "
    "port_range data_network mpi_network grace hold_on_failure worker_exit"
)


class Setting(NamedTuple):
    """One setting, for tables and command line options."""

    default: object
    help: str
    parse: Parse
    roles: tuple[Role, ...]
    older: tuple[str, ...]
    section: Section
    name: str = ""

    @property
    def flag(self) -> str:
        """Its flag on command lines."""
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        """Its environment variable."""
        return PREFIX + self.name.upper()

    @property
    def common(self) -> bool:
        """Whether `--help` shows it, as commonly used; `--help-all` shows all."""
        return self.name in _COMMON.split()


def row(
    default: T,
    help_: str,
    parse: Parse | None = None,
    *,
    roles: tuple[Role, ...] = _LAUNCHER,
    older: tuple[str, ...] = (),
    begins: Section | None = None,
) -> T:
    """Declare a setting; its name and type are the attribute's.

    Without ``parse`` the default's type chooses the parser. ``begins`` starts a section, for this
    row and those below it.
    """
    if parse is None:
        kinds = {bool: boolean, float: seconds, tuple: words, str: plain}
        parse = one_of(*type(default)) if isinstance(default, Enum) else kinds[type(default)]
    made = Setting(default, help_, parse, roles, older, begins or Section.POD)
    value: T = field(default=default, metadata={"row": made, "begins": begins})
    return value


def both(default: T, help_: str, parse: Parse | None = None, **more: Any) -> T:  # noqa: ANN401
    """Declare a setting of launchers and workers."""
    return row(default, help_, parse, roles=_BOTH, **more)


@dataclass(frozen=True, repr=False)
class Settings:
    """The table, and one resolved set of values."""

    role: Role | Auto | ByIndex = both(
        AUTO,
        "Role of this pod; auto: by the platform's variables; by-index: pod 0 of an "
        "indexed Job or StatefulSet is the launcher, and a host too, the others are workers.",
        one_of(AUTO, *Role, BY_INDEX),
        begins=Section.POD,
    )
    start_sshd: bool = row(
        default=False, help_="Run as a worker.", roles=_WORKER, older=("START_SSHD",)
    )
    hostfile: str = row(
        "",
        "The job's hostfile; where not given, the one that the platform or MPI names.",
        path,
        older=("MPI_HOSTFILE",),
        begins=Section.HOSTS,
    )
    worker_task: tuple[str, ...] = row(
        (),
        "Tasks of a Volcano job whose pods get the ranks, in this order (gpu:8,cpu:2); where not "
        "given, the mpi plugin's, else all without this pod, by name.",
        tasks,
    )
    replicas: int | None = row(
        None,
        "Number of StatefulSet pods that are the hosts, instead of a mounted hostfile; needs "
        "service and name.",
        pods,
    )
    service: str = row("", "That StatefulSet's headless Service (serviceName).")
    name: str = row("", "That StatefulSet's name.")
    slots: int | None = row(
        None, "Slots of each host for which the hostfile or platform gives no number.", count
    )
    timeout: float = both(600.0, "Deadline for all hosts to resolve and answer, and for the key.")
    dns_wait: float | None = row(
        None,
        "Shorter deadline for all host names to resolve.",
        seconds,
        older=("MPI_DNS_WAIT_SECONDS",),
    )
    rewrite_fqdn: Switch | Auto = row(
        AUTO,
        "Append the cluster's domain to host names that end in .svc.",
        one_of(*Switch, AUTO),
        older=("REWRITE_MPI_HOSTFILE_FQDN",),
    )
    cluster_domain: str = row("", "The cluster's domain; found in resolv.conf where not given.")
    sshd: SshKind | Auto = row(
        AUTO,
        "Which SSH server a worker runs; auto: OpenSSH's, where it is there and can run.",
        one_of(AUTO, *SshKind),
        roles=_WORKER,
        begins=Section.SSH,
    )
    launch_agent: LaunchAgent | Auto = row(
        AUTO,
        "How hosts are reached; auto: ssh, unless there is no key but kubectl and a token.",
        one_of(AUTO, *LaunchAgent),
    )
    ssh_port: int | None = both(None, "Port of the workers' SSH server.", port)
    ssh_key: str = both("", "The job's private SSH key, or the folder that holds it.", key_path)
    ssh_user: str = row(
        "", "User to log in as on workers; where not given, the hostfile's, else this pod's."
    )
    host_keys: HostKeys = row(
        HostKeys.JOB,
        "Host keys to accept from workers: the job's own, any at first contact, or unchecked.",
    )
    ssh_keepalive: float = both(
        300.0,
        "How long a worker or launcher may give no answer before it counts as lost; 0: forever.",
    )
    mpi: MpiFamily | Auto = row(
        AUTO,
        "Override MPI detection.",
        one_of(AUTO, *(family for family in MpiFamily if family)),
        begins=Section.MPI,
    )
    forward: tuple[str, ...] = row((), "More variables to forward to the ranks: names or patterns.")
    no_forward: tuple[str, ...] = row((), "Variables never to forward: names or patterns.")
    rank_env: bool = row(
        default=False,
        help_="Start PROGRAM by `mpiboot rank`, which gives it the variables that torchrun would.",
    )
    env_profile: str = row(
        "",
        "Shell script evaluated once on each worker; what it exports reaches that worker's ranks.",
        path,
        roles=_WORKER,
    )
    control_ifname: str = both(
        "",
        "Network link for SSH and mpirun's daemons (name, address or network); found by route "
        "where not given.",
        begins=Section.NETWORK,
    )
    port_range: str = row(
        "",
        "TCP ports for MPI's daemons and messages, where a NetworkPolicy allows only these.",
        ports,
    )
    data_network: DataNetworkUse = row(
        DataNetworkUse.PREFER,
        "If the data network has a problem: stop (require), warn (prefer); set nothing (report); "
        "don't check (off).",
        one_of(*DataNetworkUse, hint="; MPIBOOT_DATA_IFNAME names links"),
    )
    data_ifname: tuple[str, ...] = row(
        (), "Network links of the data network; found automatically where not given."
    )
    rdma_device: tuple[str, ...] = row(
        (), "RDMA devices (NAME or NAME:PORT); those of this pod's links where not given."
    )
    nccl_socket: NcclSocket = row(
        NcclSocket.AUTO,
        "Which network NCCL's sockets use; auto: data where all workers reach each other on it.",
    )
    mpi_network: MpiNetwork = row(
        MpiNetwork.AUTO,
        "Which network MPI's own messages use (its daemons stay on control); auto: control beside "
        "GPUs or without RDMA, else the MPI's choice.",
    )
    nccl_version: str = row("", "NCCL's version, such as 2.21.5, where a rule depends on it.")
    pair_check: float = row(
        2.0,
        "Timeout of the TCP check between workers, and to the launcher, before mpirun starts; "
        "0 disables it.",
    )
    supervise: Switch = row(
        Switch.ON,
        "Supervise mpirun until the job ends; off: exec mpirun once the hosts are ready.",
        one_of(Switch.ON, Switch.OFF),
        begins=Section.END,
    )
    launch_timeout: float = row(
        120.0,
        "Deadline for a daemon on every host, from mpirun's start; the default only warns, your "
        "own ends the job.",
        some_seconds,
    )
    grace: float = both(
        20.0,
        "Time for ranks to save after a stop signal, before mpirun ends them; 0: mpirun gets the "
        "signal at once.",
    )
    stop_signal: str = both(
        "TERM",
        "Signal on which ranks save and end; USR1 for programs that save on that.",
        signal_word,
    )
    hold_on_failure: float = row(
        0.0, "How long to keep a failed launcher's pod for debugging; its exit code stays the same."
    )
    prove_transport: ProveTransport = row(
        ProveTransport.WARN,
        "Report what carried a job's data, by byte counters of workers' RDMA ports and links. If "
        "RDMA was planned and a worker sent no byte over it: warn if much went elsewhere, or fail "
        "a job that ended well (76).",
    )
    job_record: str = row(
        "",
        "File that gets the job's end as one JSON object, for programs: exit code, reason, hosts, "
        "seconds of each phase, transport (-: a line of the log); with supervise=off none.",
        path,
    )
    worker_exit: WorkerExit | Auto = both(
        AUTO,
        "When a worker exits: with the job's success, after any end of the job, or "
        "never; auto: after the job under the MPI Operator, with the job in an indexed Job.",
        one_of(AUTO, *WorkerExit),
    )
    launcher_away: float = row(
        1800.0,
        "With worker_exit=after-job: how long to wait for a launcher after a failed one.",
        roles=_WORKER,
    )
    log_format: LogFormat = both(
        LogFormat.HUMAN,
        "Log plain lines for people, or JSON lines.",
        begins=Section.LOG,
    )
    log_level: LogLevel = both(LogLevel.INFO, "Lowest level that is logged.")
    termination_log: str = both(
        "/dev/termination-log",
        "File for the reason of a failure, which Kubernetes shows; written only where it exists.",
        path,
    )
    runtime_dir: str = both("", "Private folder for mpiboot's own files.", path)


def _rows() -> tuple[Setting, ...]:
    found, section = [], Section.POD
    for item in fields(Settings):
        section = item.metadata["begins"] or section
        found.append(item.metadata["row"]._replace(name=item.name, section=section))
    return tuple(found)


ROWS: Final = _rows()


# Variables between mpiboot's processes; not for users, so not settings.
_INTERNAL: Final = "SESSION WORKER_DIR LAUNCH_DIR LAUNCH_ID NOTICE ATTEMPT COMMAND_DIR TIMED"
INTERNAL: Final = tuple(PREFIX + name for name in _INTERNAL.split())
_RANKS: Final = "ranks are started by mpirun, on all slots or with -n: `mpirun -n 4 ./train`"
_ONCE: Final = "a command other than mpirun runs once, unchanged; `mpirun ./train` starts ranks"
_AT_ONCE: Final = (
    "the command starts at once, its mpirun and ssh wait for hosts; start a script that looks up "
    "workers itself with `mpiboot wait`"
)
_SESSIONS: Final = (
    "mpirun's agents use the connections that mpiboot has opened; with MPIBOOT_SUPERVISE=off, ssh"
)
_RANKS_THAT_WAIT: Final = "see `mpiboot doctor ranks`: mpiboot ends no job whose ranks wait"
# Settings and options that were removed, with what takes their place.
REMOVED: Final = {
    "--bundle": "see `kubectl logs`, `kubectl describe pod`, `mpiboot doctor` and `mpiboot plan`",
    "--env": "see `mpiboot plan` and `mpiboot facts`",
    "--facts": "run `mpiboot plan` in the launcher's pod",
    "--network": "`mpiboot validate pairs` measures the paths between workers",
    "-n": _RANKS,
    "MPIBOOT_CONNECT_CHECK": _RANKS_THAT_WAIT,
    "MPIBOOT_DNS_INTERVAL": "mpiboot paces its DNS lookups: remove it",
    "MPIBOOT_KUBECTL_CONTAINER": "set the annotation `kubectl.kubernetes.io/default-container` of "
    "the workers' pods",
    "MPIBOOT_KUBECTL_NAMESPACE": "run the launcher in the workers' namespace",
    "MPIBOOT_MASTER_NETWORK": "set MASTER_ADDR in the launcher's pod",
    "MPIBOOT_MASTER_PORT": "set MASTER_PORT in the launcher's pod",
    "MPIBOOT_NP": _RANKS,
    "MPIBOOT_OUTPUT_DIR": "write on the mpirun line `--output-filename DIR` (Open MPI 4.1), "
    "`--output file=FILE` (5.0) or `-outfile-pattern FILE.%r` (MPICH, Intel MPI)",
    "MPIBOOT_OVERSUBSCRIBE": "write `--oversubscribe` on Open MPI's mpirun line; MPICH and Intel "
    "MPI always allow it",
    "MPIBOOT_SCRIPT": _ONCE,
    "MPIBOOT_SCRIPT_GATE": _AT_ONCE,
    "MPIBOOT_SSH_CLIENT": _SESSIONS,
    "MPIBOOT_STUCK": _RANKS_THAT_WAIT,
    "MPIBOOT_TAG_OUTPUT": "write on the mpirun line `--tag-output` (Open MPI 4.1), `--output tag` "
    "(5.0) or `-prepend-rank` (MPICH, Intel MPI)",
    "MPIBOOT_VALIDATE": "let an init container of the launcher run `mpiboot validate pairs`",
}


class Given(NamedTuple):
    """The source of one value: ``name`` is the flag or variable, empty for a default."""

    source: Source
    name: str = ""

    def __str__(self) -> str:
        return self.name or self.source.value


class Resolved(NamedTuple):
    """The settings of this run, the source of each, and warnings about them.

    ``flags`` are the command line's texts, by setting; ``removed`` reports variables of removed
    settings: an error in a launcher, a warning elsewhere, since pods share an env block.
    """

    settings: Settings
    given: Mapping[str, Given]
    warnings: tuple[Finding, ...]
    flags: Mapping[str, str] = MappingProxyType({})
    removed: tuple[Finding, ...] = ()


def _warn(message: str, hint: str = "") -> Finding:
    return Finding("usage", Level.WARN, message, hint=hint)


def _unknown(environ: Mapping[str, str]) -> Iterator[Finding]:
    known = {item.variable[len(PREFIX) :] for item in ROWS}
    names = {name for name in environ if name.startswith(PREFIX)}
    names -= {*(item.variable for item in ROWS), *INTERNAL, *REMOVED}
    for name in sorted(names):
        if not of_service(name, environ[name]):
            import difflib  # noqa: PLC0415 - only for typos

            # Without the prefix, which all names share.
            near = difflib.get_close_matches(name[len(PREFIX) :], known, n=1, cutoff=0.6)
            hint = f"did you mean {PREFIX}{near[0]}?" if near else "see `mpiboot settings`"
            yield _warn(f"{name} is not a setting of mpiboot and is ignored", hint)


def _readable(text: str) -> str:
    """Return a value for a message; a private key is hidden."""
    return "(hidden)" if is_key(text) else text


def resolve(flags: Mapping[str, str], environ: Mapping[str, str]) -> Resolved:
    """Resolve every setting: flag, then ``MPIBOOT_`` variable, then older names, then default.

    Args:
        flags: setting name -> text, only those given on the command line.
        environ: the process environment. An empty value counts as not given.

    Raises:
        MpibootError: ``usage``; a value can't be read. The line names the flag or variable,
            the value (never a key's) and what was expected.
    """
    values: dict[str, Any] = {}
    given: dict[str, Given] = {}
    warnings: list[Finding] = []
    for item in ROWS:
        texts = {Given(Source.FLAG, item.flag): flags[item.name]} if item.name in flags else {}
        texts |= {
            Given(Source.ENVIRONMENT, name): environ[name]
            for name in (item.variable, *item.older)
            if environ.get(name) and not of_service(name, environ[name])
        }
        chosen = given[item.name] = next(iter(texts), Given(Source.DEFAULT))
        if not texts:
            continue
        text = texts.pop(chosen)
        try:
            values[item.name] = item.parse.read(text)
        except ValueError as error:
            message = f"{chosen} is {_readable(repr(text))}: expected {error}"
            raise checks.error("usage", message) from None
        first = f"{chosen}={_readable(text)} comes first"
        unused = (f"{name}={_readable(other)}" for name, other in texts.items() if other != text)
        warnings += [_warn(f"{name} is not used: {first}") for name in unused]
    removed = ((name, way) for name, way in REMOVED.items() if environ.get(name))
    gone = (_warn(f"{name} was removed from mpiboot", way) for name, way in removed)
    found = (*warnings, *_unknown(environ))
    return Resolved(Settings(**values), given, found, dict(flags), tuple(gone))
