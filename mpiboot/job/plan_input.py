"""What a plan is made of. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from mpiboot.core.facts import Host, Hostfile, Link, MpiParameter, PodFacts, Worker
from mpiboot.core.model import Decision, Identity, Mpi, Source
from mpiboot.core.setting_types import LaunchAgent
from mpiboot.core.settings import Given, Resolved, Settings
from mpiboot.job import parameter_files, platforms, resolve
from mpiboot.job.implementation import Implementation
from mpiboot.job.mpirun_line import UserLine
from mpiboot.job.parameter_files import parameter
from mpiboot.job.platforms import Platform
from mpiboot.job.resolve import Owned
from mpiboot.network.records import WorkerNetwork


@dataclass(frozen=True, slots=True)
class Observed:
    """What the plan is decided on.

    ``line`` is what is to be started. ``renamed`` maps a name of the hostfile to the longer one
    that is to be used; ``own`` are this pod's facts, which count where the hostfile names it too,
    ``own_oom_kills`` its out-of-memory kills so far, None where it isn't known, and
    ``own_counters`` those of its RDMA ports and links;
    ``client`` is what the agents use; ``mpi_ipv6`` is whether the MPI is
    built with IPv6, None where that is unknown; ``networks`` are those of workers that are
    decided already, by host; ``data_blocked`` is where TCP does not pass on the data network;
    ``parameters`` are those of the files that mpirun reads, the strongest first; ``workdir`` is
    where ranks start, empty where it isn't known; ``asked`` is whether hosts were queried at all.
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
    workdir: str = ""
    asked: bool = True

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


@dataclass(frozen=True)
class PlanInput:
    """All that a plan is made of: the MPI, what was observed, the settings, the paths."""

    implementation: Implementation
    observed: Observed
    resolved: Resolved
    paths: LaunchPaths

    @cached_property
    def line(self) -> UserLine:
        """The user's line, with the names by which mpirun gets the hosts."""
        return self.observed.line.with_names(self.observed.renamed)

    @cached_property
    def of_files(self) -> Mapping[str, MpiParameter]:
        """Parameters of files that this MPI reads, by the variables that would mean the same."""
        return parameter_files.settled(self.observed, self.implementation)

    @cached_property
    def environ(self) -> Mapping[str, str]:
        """This pod's environment with those of files, as they count as much as variables."""
        values = {name: item.value for name, item in self.of_files.items()}
        return {**self.observed.environ, **values}

    @property
    def settings(self) -> Settings:
        """The settings of this run."""
        return self.resolved.settings

    @property
    def given(self) -> Mapping[str, Given]:
        """Where each setting's value came from."""
        return self.resolved.given

    @property
    def forwards_all(self) -> bool:
        """Whether mpirun's environment would overwrite that of the ranks' own pods."""
        return self.implementation.hands_on_all and bool(self.observed.workers)

    def set_by(self, name: str) -> tuple[Source, str]:
        """Return who set a variable of this pod: the platform, the user or a file; and in words."""
        if name in self.of_files:
            return Source.FILE, f"set in {self.of_files[name].path}"
        platform = self.observed.platform
        if platform.has_set(name, self.environ.get(name, "")):
            return Source.PLATFORM, f"set by {platform.name}"
        return Source.ENVIRONMENT, "set in this pod"

    def given_parameter(self, name: str) -> tuple[str, str]:
        """Find what the user gave a parameter, by its variable: on the line, and as that."""
        return self.line.mca.get(parameter(name), ""), self.environ.get(name, "")

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
