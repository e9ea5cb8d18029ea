"""Facts and settings to one plan: hosts, placement, variables, argv, files; each with its reason.

Pure: ``plan`` prints what ``make`` returns and ``launcher`` carries it out, so that they never
disagree. Nothing here reads or changes the world.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from mpiboot.core.errors import MpibootError, error
from mpiboot.core.model import Decision, Finding, Level, Mpi, Source
from mpiboot.core.setting_types import AUTO
from mpiboot.core.settings import Resolved
from mpiboot.core.wording import first_few
from mpiboot.job import (
    agent_variables,
    command_line,
    data,
    ip_version,
    mpi_environment,
    own_ranks,
    parameter_files,
    pinning,
    placement,
    platforms,
    pod_checks,
    pod_conditions,
    rank_env,
    supervision,
    unread_parameters,
)
from mpiboot.job import hostfile as hostfiles
from mpiboot.job import hosts as hosts_of
from mpiboot.job.dialects import DIALECTS, row_of
from mpiboot.job.plan_builder import LaunchPaths, Observed, PlanBuilder
from mpiboot.job.user_line import UserLine
from mpiboot.network import worker_pairs
from mpiboot.network.cluster_view import WorkerRow
from mpiboot.network.records import Transport
from mpiboot.network.worker_pairs import Dialled
from mpiboot.ssh import config as sshconfig

__all__ = ["LaunchPaths", "Observed", "Plan", "make", "refuse_unknown", "stop_on_failure"]


@dataclass(frozen=True, slots=True)
class Plan:
    """What will be done: ``set_env`` and ``unset_env`` change the environment of ``argv``.

    ``daemons`` are the remote hosts for which a launch agent must be started, ``left_to_mpirun``
    those of which mpirun alone decides whether they get ranks; ``obstacles`` are variables or flags
    of the user's that could keep mpirun from doing so. ``per_host`` has by host what its agent sets
    there; ``rows`` show the data network, a worker each, and ``transport`` carries the data (None:
    nobody is to look). ``more_hostfiles`` are the texts of copies of hostfiles that single programs
    have, by the copies' paths. ``exit_codes`` tells whether mpiboot asks mpirun for them, beside
    the user's own words. ``agent_env`` is what agents need of this pod's environment and mpirun
    must not have. ``with_ranks`` are the remote hosts that may get a rank, and ``tcp_optional``
    tells why MPI may do without TCP between them, empty where it can't; ``checks_peer_address``
    whether MPI drops a connection from an address that is not the peer's. ``meeting`` is where
    ranks with torchrun's variables meet, None where there are none. ``open_files`` is the soft
    limit with which mpirun starts, 0 for this pod's own. ``forwarded`` are the variables that ranks
    get from mpirun's environment, and ``stays`` those that a rule keeps from them, each with its
    reason.
    """

    decisions: tuple[Decision, ...]
    findings: tuple[Finding, ...]
    argv: tuple[str, ...]
    set_env: Mapping[str, str] = field(default_factory=dict)
    unset_env: tuple[str, ...] = ()
    hostfile: str = ""
    more_hostfiles: Mapping[str, str] = field(default_factory=dict)
    daemons: tuple[str, ...] = ()
    left_to_mpirun: tuple[str, ...] = ()
    ranks: int | None = None
    program: str = ""
    user_agent: str = ""
    user_args: sshconfig.UserArgs = field(default_factory=sshconfig.UserArgs)
    obstacles: tuple[tuple[str, str], ...] = ()
    goes_on: bool = False
    per_host: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    rows: tuple[WorkerRow, ...] = ()
    transport: Transport | None = None
    agent_env: Mapping[str, str] = field(default_factory=dict)
    with_ranks: tuple[str, ...] = ()
    tcp_optional: str = ""
    checks_peer_address: bool = False
    exit_codes: bool = False
    meeting: rank_env.Meeting | None = None
    open_files: int = 0
    forwarded: Mapping[str, str] = field(default_factory=dict)
    stays: Mapping[str, str] = field(default_factory=dict)

    def environment(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Make mpirun's environment of this pod's."""
        kept = {name: value for name, value in environ.items() if name not in self.unset_env}
        return {**kept, **self.set_env}


def refuse_unknown(mpi: Mpi, line: UserLine) -> None:
    """Refuse an MPI without a row, unless the user's own line says all that it needs.

    Raises:
        MpibootError: ``settings-conflict``; nobody would tell it of the hosts.
    """
    if row_of(mpi) is None and not line.mpirun:
        known = ", ".join(item.title for item in DIALECTS.values())
        what = f"{mpi.path} says {mpi.said!r}" if mpi.said else f"{mpi.path} is not recognised"
        raise error(
            "settings-conflict",
            f"{what}; this version of mpiboot starts {known}",
            hint="put one of these first on PATH, say which one it is with MPIBOOT_MPI, or give "
            "the whole mpirun line with its hosts: it is started as it is",
        )


def _unknown(observed: Observed, resolved: Resolved) -> Plan:
    """Plan an MPI without a row: the user's own line, when the hosts are ready, and no more."""
    mpi, because = observed.mpi, "this MPI has no row"
    said = (
        f"{mpi.path} says {mpi.said!r}: mpiboot does not know this MPI, waits for the hosts, and "
        "starts the line as it is. Left out are the hostfile's copy, the launch agent (a host "
        "without ranks is not noticed), links, and all variables for the ranks"
    )
    hint = "MPIBOOT_MPI says which MPI it is, where it is one that mpiboot knows"
    given = resolved.given["mpi"]
    return Plan(
        decisions=(
            _platform(observed),
            Decision("mpi", "unknown", given.source, mpi.said),
            Decision("daemons", "", Source.DETECTED, because),
        ),
        findings=(Finding("mpi-versions", Level.WARN, said, hint=hint),),
        argv=observed.line.argv,
        hostfile=hostfiles.render(observed.hostfile.hosts, hostfiles.Syntax.SLOTS),
        goes_on=True,
        tcp_optional=because,
    )


def make(observed: Observed, resolved: Resolved, paths: LaunchPaths) -> Plan:
    """Decide everything.

    Findings that fail are in the plan, not raised: ``plan`` shows them, ``launcher`` stops.

    Raises:
        MpibootError: this MPI can't be started at all.
    """
    line = observed.line.with_names(observed.renamed)
    refuse_unknown(observed.mpi, line)
    row = row_of(observed.mpi)
    if row is None:
        return _unknown(observed, resolved)
    builder = PlanBuilder(
        row,
        line,
        observed.environ,
        platform=observed.platform,
        of_files=parameter_files.settled(observed, row),
    )
    observed = hosts_of.with_default_slots(builder, observed, resolved)
    builder.decisions.append(_platform(observed))
    pod_conditions.launcher(builder, observed, resolved, paths)
    _mpi(builder, observed.mpi, resolved)
    _line(builder, observed.mpi)
    unread_parameters.name_them(builder)
    hosts = hosts_of.settle(builder, observed, resolved, paths)
    np = hosts_of.ranks(builder, hosts, resolved)
    oversubscribe = hosts_of.oversubscribe(builder, resolved)
    local = {observed.called(host.name) for host in observed.local}
    placed = placement.place(
        hosts,
        line,
        row,
        np=np,
        oversubscribe=oversubscribe is not None,
        local=local,
        policy=builder.environ.get(row.map_var, "") if row.map_var else "",
    )
    builder.findings += placed.findings
    if placed.left:
        because = f"{placed.left}: mpirun alone decides which hosts get how many ranks"
        builder.decide("rank-placement", "left to mpirun", Source.FLAG, because)
    network = data.decide(builder, observed, resolved)
    pinning.pin_control(builder, observed, resolved)
    version = ip_version.settle(builder, observed)
    hosts_of.keep_from_resolving(builder, observed)
    pinning.pin_ports(builder, observed, resolved, version)
    mpi_environment.set_constants(builder, observed, oversubscribe=oversubscribe)
    client = observed.client
    user_agent, user_args = agent_variables.place(
        builder,
        paths,
        len(hosts),
        instead_of_ssh=_instead_of_ssh(observed),
    )
    if client and not user_agent:
        builder.decisions.append(client)
    ranks = rank_env.decide(builder, observed, resolved, placed, network)
    added = {**network.common, **ranks.variables}
    exports = mpi_environment.choose_forwarded(builder, observed, resolved, added)
    mpi_environment.offer_debug_files(builder)
    per_host = data.deliver(builder, observed, network)
    mpi_environment.name_unsafe(builder)
    pod_conditions.workers(builder, observed)
    builder.findings += pod_checks.findings(observed, resolved)
    pod_checks.gpu_memory(builder, observed.workers)
    daemons = placement.daemons(hosts, line, row, placed, local)
    remote = tuple(host.name for host in hosts if host.name not in local)
    idle = frozenset(placed.idle)
    supervised = supervision.supervised(builder, resolved)
    agent_variables.settle_kind_on_the_line(builder, daemons)
    argv = command_line.write(
        builder,
        observed.mpi,
        np=np,
        exports=exports,
        paths=paths,
        copies=(copies := paths.of_program(observed.hostfile)),
        supervised=supervised,
        local=bool(local),
        before=(
            *own_ranks.before(builder, paths, observed.own, local=bool(local), remote=bool(remote)),
            *ranks.before,
        ),
    )
    builder.decide("daemons", str(len(daemons)), Source.DETECTED, first_few(daemons))
    opened = pod_conditions.room(builder, observed, user_agent, len(daemons))
    return Plan(
        decisions=tuple(builder.decisions),
        findings=tuple(builder.findings),
        argv=argv,
        set_env=builder.set_env,
        unset_env=tuple(sorted(builder.unset_env)),
        hostfile=hostfiles.render(command_line.slots_to_write(hosts, builder), row.syntax),
        more_hostfiles={
            copies[file.path]: hostfiles.render(hosts_of.in_copy(file, observed, row), row.syntax)
            for file in observed.hostfile.parts
        },
        daemons=daemons,
        left_to_mpirun=remote if placed.left else (),
        ranks=placed.total,
        program=line.program,
        user_agent=user_agent,
        user_args=user_args,
        obstacles=supervision.obstacles(builder),
        goes_on=supervision.goes_on(builder),
        per_host=per_host,
        rows=network.rows,
        transport=network.transport,
        agent_env=builder.agent_env,
        with_ranks=tuple(name for name in daemons or remote if name not in idle),
        tcp_optional=pinning.tcp_optional(builder, resolved.settings, network.transport),
        checks_peer_address=row.checks_peer_address,
        exit_codes=supervised and command_line.asks_exit_codes(builder),
        meeting=ranks.meeting,
        open_files=opened,
        forwarded=builder.forwarded,
        stays=builder.stays,
    )


def pair_findings(
    plan: Plan, observed: Observed, dialled: Sequence[Dialled]
) -> tuple[Finding, ...]:
    """Judge what workers found when they dialled each other, by what the plan needs of them."""
    listed = observed.hostfile.hosts
    with_ranks = frozenset(plan.with_ranks)
    hosts = [host.name for host in listed if observed.called(host.name) in with_ranks]
    return worker_pairs.findings(
        dialled, hosts, plan.tcp_optional, checks_address=plan.checks_peer_address
    )


def stop_on_failure(findings: Sequence[Finding]) -> None:
    """Raise the first failing finding, with the others behind it."""
    bad = [item for item in findings if item.level is Level.FAIL]
    if bad:
        raise MpibootError(bad[0], tuple(bad[1:]))


def _line(builder: PlanBuilder, mpi: Mpi) -> None:
    """Say what of the line, and of this MPI, is read otherwise or not at all."""
    row, line = builder.row, builder.line
    if row.untried:
        said = f"{mpi.said}: mpiboot was not tried with it, and {row.untried}"
        hint = "the README has the versions that were tried"
        builder.warn("mpi-versions", said, hint)
    if line.rewritten:
        pairs = ", ".join(f"{old} as {new or 'nothing'}" for old, new in line.rewritten)
        said = f"on the mpirun line {row.title} gets {pairs}: it reads these otherwise"
        builder.warn("usage", said)
    if line.refused and not row.untried:
        said = f"the mpirun line: {line.because}, and mpirun would end over it"
        option = line.unknown.lstrip("-").partition("=")[0]
        new = row.grammar.instead.get(option, f"what {mpi.said} has for it (`mpirun --help`)")
        hint = f"take it out, or write {new}"
        builder.fail("usage", said, hint)
    elif line.unknown:
        builder.warn("usage", f"{line.because}: the rest of the line is passed on unread")


def _mpi(builder: PlanBuilder, mpi: Mpi, resolved: Resolved) -> None:
    given, source, because = resolved.given["mpi"], Source.DETECTED, mpi.said
    if resolved.settings.mpi is not AUTO:
        source = given.source
        because = str(given) if mpi.said == str(given) else f"{given}; {mpi.path}: {mpi.said}"
    builder.decide("mpi", f"{builder.row.title}: {mpi.version}", source, because)
    paths = dict.fromkeys(item.path for item in builder.of_files.values())
    for path in paths:
        names = " ".join(name for name, item in builder.of_files.items() if item.path == path)
        builder.decide("mpi-parameters", names, Source.FILE, path)


def _platform(observed: Observed) -> Decision:
    return platforms.recognise(observed.environ, observed.hostfile.path)[1]


def _instead_of_ssh(observed: Observed) -> str:
    """Name what the agents use where it isn't ssh."""
    if observed.by_kubectl:
        return "kubectl exec"
    return "mpiboot's own SSH client" if observed.own_client else ""
