"""A plan while it is being made: variables with one owner each, decisions, findings. Pure.

A value that the user gave, by flag or by environment, is kept and shown; only what mpiboot must
settle itself (the hostfile's copy, the launch agent) is set whatever the environment has.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from mpiboot.core import masking
from mpiboot.core.checks import failed
from mpiboot.core.facts import Host, Hostfile, Link, MpiParameter, PodFacts, Variable, Worker
from mpiboot.core.model import Decision, Finding, Identity, Level, Mpi, Source
from mpiboot.core.setting_types import LaunchAgent
from mpiboot.core.settings import Given, Resolved, Settings
from mpiboot.job import parameter_files, platforms, resolve
from mpiboot.job.dialects import Dialect, parameter
from mpiboot.job.mpirun_line import UserLine
from mpiboot.job.platforms import Platform
from mpiboot.job.resolve import Owned
from mpiboot.network.records import WorkerNetwork

_SETTINGS: Final = (Source.FLAG, Source.ENVIRONMENT)


@dataclass(frozen=True, slots=True)
class Observed:
    """What the plan is decided on.

    ``line`` is what is to be started. ``renamed`` maps a name of the hostfile to the longer one
    that is to be used; ``own`` are this pod's facts, which count where the hostfile names it too,
    ``own_oom_kills`` its out-of-memory kills so far, None where it isn't known, and
    ``own_counters`` those of its RDMA ports and links;
    ``client`` is what the agents use; ``mpi_ipv6`` tells whether the MPI is
    built with IPv6, None where it was not asked; ``networks`` are those of workers that are
    decided already, by host; ``data_blocked`` says where TCP does not pass on the data network;
    ``parameters`` are those of the files that mpirun reads, the strongest first.
    """

    hostfile: Hostfile
    mpi: Mpi
    identity: Identity
    environ: Mapping[str, str]
    line: UserLine
    local: tuple[Host, ...] = ()
    workers: tuple[Worker, ...] = ()
    renamed: Mapping[str, str] = field(default_factory=dict)
    links: tuple[Link, ...] = ()
    own: PodFacts | None = None
    own_oom_kills: int | None = None
    own_counters: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    client: Decision | None = None
    mpi_ipv6: bool | None = None
    networks: Mapping[str, WorkerNetwork] = field(default_factory=dict)
    data_blocked: str = ""
    parameters: tuple[MpiParameter, ...] = ()

    @property
    def platform(self) -> Platform:
        """The platform that made this pod."""
        return platforms.recognise(self.environ, self.hostfile.path)[0]

    @property
    def local_names(self) -> frozenset[str]:
        """The names by which mpirun gets this pod, where it runs ranks."""
        return frozenset(self.called(host.name) for host in self.local)

    @property
    def by_kubectl(self) -> bool:
        """Whether the launch agents enter pods by kubectl."""
        return self.client is not None and self.client.value == LaunchAgent.KUBECTL

    def called(self, name: str) -> str:
        """Give the name by which mpirun gets a host of the hostfile."""
        return self.renamed.get(name, name)


@dataclass(frozen=True, slots=True)
class LaunchPaths:
    """Where the launcher's private files will be; all in one folder without blanks."""

    launch_dir: str
    agent: str

    @property
    def hostfile(self) -> str:
        """The normalised hostfile that mpirun reads."""
        return f"{self.launch_dir}/hostfile"

    def of_program(self, hostfile: Hostfile) -> Mapping[str, str]:
        """The copies of hostfiles that single programs of a line have, by the files' paths."""
        return {file.path: f"{self.hostfile}-{at}" for at, file in enumerate(hostfile.parts)}


@dataclass(eq=False)
class PlanBuilder:
    """A plan while it is being made.

    ``settled`` are variables that another rule has decided and reported already; ``forwarded`` are
    those that ranks get from mpirun's environment; ``agent_env`` is what only mpirun's agents get.
    ``of_files`` are parameters of files that this MPI reads; ``environ`` has them as the variables
    that would mean the same, as they are the user's word as much as these are. ``taken_off`` are
    the indexes of words of the line that mpirun does not get.
    """

    row: Dialect
    observed: Observed
    resolved: Resolved
    paths: LaunchPaths
    decisions: list[Decision] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    set_env: dict[str, str] = field(default_factory=dict)
    unset_env: set[str] = field(default_factory=set)
    agent_env: dict[str, str] = field(default_factory=dict)
    settled: set[str] = field(default_factory=set)
    forwarded: set[str] = field(default_factory=set)
    taken_off: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        """Take in what files settle, and the names by which mpirun gets the hosts."""
        self.line = self.observed.line.with_names(self.observed.renamed)
        self.platform = self.observed.platform
        self.of_files = parameter_files.settled(self.observed, self.row)
        values = {name: item.value for name, item in self.of_files.items()}
        self.environ = {**self.observed.environ, **values}

    @property
    def settings(self) -> Settings:
        """The settings of this run."""
        return self.resolved.settings

    @property
    def given(self) -> Mapping[str, Given]:
        """Where each setting's value came from."""
        return self.resolved.given

    def set_by(self, name: str) -> tuple[Source, str]:
        """Return who set a variable of this pod: the platform, the user or a file; and in words."""
        if name in self.of_files:
            return Source.FILE, f"set in {self.of_files[name].path}"
        if self.platform.has_set(name, self.environ.get(name, "")):
            return Source.PLATFORM, f"set by {self.platform.name}"
        return Source.ENVIRONMENT, "set in this pod"

    def take_off(self, name: str) -> None:
        """Take an option, or an MCA parameter, off the line that mpirun gets."""
        self.taken_off.update(self.line.places.get(name, ()))
        mca = {key: value for key, value in self.line.mca.items() if key != name}
        self.line = replace(self.line, mca=mca)

    def decide(self, name: str, value: str, source: Source, reason: str) -> None:
        """Note a decision."""
        self.decisions.append(Decision(name, value, source, reason))

    def remove(self, name: str, reason: str) -> None:
        """Take a variable of this pod out of mpirun's environment."""
        self.unset_env.add(name)
        self.decide(name, "(removed)", Source.DETECTED, reason)

    def warn(self, check: str, message: str, hint: str = "") -> None:
        """Note what looks wrong, though the job may start."""
        self.findings.append(Finding(check, Level.WARN, message, hint=hint))

    def fail(self, check: str, message: str, hint: str | None = None) -> None:
        """Note what keeps the job from starting; the default hint is that of the check."""
        self.findings.append(failed(check, message, hint=hint))

    def owned(self, name: str) -> Owned | None:
        """Find the user's own value of a variable, wherever it stands; the strongest first."""
        flagged = self.line.mca.get(parameter(name), self.line.export_values.get(name))
        if flagged is not None:
            return Owned(flagged, Source.FLAG, "given on the mpirun line")
        if self.environ.get(name):
            return Owned(self.environ[name], *self.set_by(name))
        if name in resolve.READ_BY_RANKS:
            for worker in self.observed.workers:
                if worker.facts and name in worker.facts.environment:
                    return Owned(None, Source.ENVIRONMENT, f"set in {worker.host.name}'s pod")
        return None

    def variable(self, name: str, value: str, reason: str, source: Source) -> None:
        """Set a variable unless the user has chosen it (``resolve``), or another rule does.

        A file gives way to a setting of the user's, which is a flag or a variable itself.
        """
        if name in self.settled:
            return
        by, own = resolve.kept_by(name, self.owned) or ("", None)
        if own is None or (own.source is Source.FILE and source in _SETTINGS):
            self.force(name, value, reason, source)
        elif by == name:
            kept = "" if own.source is Source.FLAG else ", and kept"
            shown = masking.mask(name, own.value or "")
            self.decide(name, shown, own.source, f"{own.by}{kept}")
        else:
            self.decide(name, "", Source.DETECTED, f"not set: {by} is {own.by}")

    def add(self, *variables: Variable) -> None:
        """Set variables of the MPI's row, as ``variable`` does."""
        for item in variables:
            self.variable(item.name, item.value, item.reason, item.source)

    def force(self, name: str, value: str, reason: str, source: Source) -> None:
        """Set a variable whatever the environment has."""
        self.set_env[name] = value
        self.decide(name, masking.mask(name, value), source, reason)
