"""Makes the plan of facts and settings: hosts, placement, variables, argv, files, with reasons.

Pure: ``plan`` prints what ``make`` returns and ``launcher`` carries it out, so that they never
disagree. Nothing here reads or changes the world.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Final

from mpiboot.core.checks import MpibootError, failed
from mpiboot.core.launch_names import NOT_FOR_RANKS, PLACEMENT
from mpiboot.core.model import Decision, Finding, Level, Source
from mpiboot.core.setting_types import AUTO, Switch
from mpiboot.core.settings import Resolved
from mpiboot.core.wording import first_few
from mpiboot.job import (
    agent_variables,
    control_links,
    data,
    mpi_environment,
    placement,
    platforms,
    pods,
)
from mpiboot.job import hostfile as hostfiles
from mpiboot.job.dialects import parameter, row_of
from mpiboot.job.plan_builder import LaunchPaths, Observed, PlanBuilder
from mpiboot.job.program_words import Rendezvous
from mpiboot.network import worker_pairs
from mpiboot.network.cluster_view import WorkerRow
from mpiboot.network.records import Transport, WorkerNetwork
from mpiboot.network.worker_pairs import Dial
from mpiboot.ssh import config as sshconfig


@dataclass(frozen=True, slots=True)
class Plan:
    """What will be done: ``set_env`` and ``unset_env`` change the environment of ``argv``.

    ``remote_hosts`` are those of the job, of which mpirun alone decides where it starts daemons and
    ranks; ``obstacles`` are variables or flags of the user's that could keep it from starting
    launch agents. ``per_host`` has by host what its agent sets
    there; ``rows`` show the data network, a worker each, and ``transport`` carries the data (None:
    it was not looked at) by each host's ``networks``; ``proved`` where counters are to tell whether
    it did. ``more_hostfiles`` are the texts of copies of hostfiles that single
    programs have, by the copies' paths. ``exit_codes`` tells whether mpiboot asks mpirun for them,
    beside the user's own words. ``agent_env`` is what agents need of this pod's environment and
    mpirun must not have, and ``agent_linger`` for how long they wait for its end.
    ``tcp_optional`` tells why MPI may do without TCP between the hosts, empty where it can't.
    ``meeting`` is where ranks with torchrun's variables meet, None where there are none.
    """

    decisions: tuple[Decision, ...]
    findings: tuple[Finding, ...]
    argv: tuple[str, ...]
    set_env: Mapping[str, str] = field(default_factory=dict)
    unset_env: tuple[str, ...] = ()
    hostfile: str = ""
    more_hostfiles: Mapping[str, str] = field(default_factory=dict)
    remote_hosts: tuple[str, ...] = ()
    ranks: int | None = None
    user_agent: str = ""
    user_args: sshconfig.UserArgs = field(default_factory=sshconfig.UserArgs)
    obstacles: tuple[tuple[str, str], ...] = ()
    tolerates_failure: bool = False
    per_host: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    rows: tuple[WorkerRow, ...] = ()
    transport: Transport | None = None
    networks: tuple[WorkerNetwork, ...] = field(default=(), compare=False)
    proved: bool = False
    agent_env: Mapping[str, str] = field(default_factory=dict)
    agent_linger: int = 0
    tcp_optional: str = ""
    exit_codes: bool = False
    meeting: Rendezvous | None = None

    def environment(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Make mpirun's environment of this pod's."""
        kept = {name: value for name, value in environ.items() if name not in self.unset_env}
        return {**kept, **self.set_env}


def _unknown(observed: Observed, resolved: Resolved) -> Plan:
    """Plan an MPI without a row: the user's own line, when the hosts are ready, and no more."""
    mpi, reason = observed.mpi, "this MPI has no row"
    message = (
        f"{mpi.path} says {mpi.banner!r}: mpiboot does not know this MPI, waits for the hosts, and "
        "starts the line as it is. Left out are the hostfile's copy, the launch agent (a host "
        "without ranks is not noticed), links, and all variables for the ranks"
    )
    hint = "MPIBOOT_MPI says which MPI it is, where it is one that mpiboot knows"
    given = resolved.given["mpi"]
    return Plan(
        decisions=(
            _platform(observed),
            Decision("mpi", "unknown", given.source, mpi.banner),
        ),
        findings=(Finding("mpi-versions", Level.WARN, message, hint=hint),),
        argv=observed.line.argv,
        hostfile=hostfiles.render(observed.hostfile.hosts, hostfiles.Syntax.SLOTS),
        tolerates_failure=True,
        tcp_optional=reason,
    )


def make(observed: Observed, resolved: Resolved, paths: LaunchPaths) -> Plan:
    """Decide everything.

    Findings that fail are in the plan, not raised: ``plan`` shows them, ``launcher`` stops.

    Raises:
        MpibootError: this MPI can't be started at all.
    """
    row = row_of(observed.mpi)
    if row is None:
        return _unknown(observed, resolved)
    builder = PlanBuilder(row, observed, resolved, paths)
    observed = builder.observed = placement.with_default_slots(builder)
    builder.decisions.append(_platform(observed))
    pods.tell_launcher(builder)
    _mpi(builder)
    _line(builder)
    hosts = placement.settle_hosts(builder)
    np = placement.settle_ranks(builder, hosts)
    local = observed.local_names
    network = data.decide(builder)
    control_links.pin_control(builder)
    version = control_links.settle_ip_version(builder)
    placement.keep_from_resolving(builder)
    control_links.pin_ports(builder, version)
    mpi_environment.set_constants(builder)
    user_agent, user_args = agent_variables.place(builder, len(hosts))
    if observed.client and not user_agent:
        builder.decisions.append(observed.client)
    ranks = data.decide_rank_env(builder, hosts, network)
    added = {**network.common, **ranks.variables}
    exports = mpi_environment.choose_forwarded(builder, added)
    mpi_environment.offer_debug_files(builder)
    per_host = data.deliver(builder, network)
    mpi_environment.name_unsafe(builder)
    pods.tell_workers(builder)
    builder.findings += pods.findings(observed)
    pods.gpu_memory(builder)
    remote = tuple(host.name for host in hosts if host.name not in local)
    supervised = _stays_as_parent(builder)
    agent_variables.settle_kind_on_the_line(builder, remote)
    tag = _tag_output(builder)
    before = (*_own_ranks_words(builder, remote=bool(remote)), *ranks.before)
    argv = _write_command(builder, np, tag, exports, before, supervised=supervised)
    copies = paths.of_program(observed.hostfile)
    return Plan(
        decisions=tuple(builder.decisions),
        findings=tuple(builder.findings),
        argv=argv,
        set_env=builder.set_env,
        unset_env=tuple(sorted(builder.unset_env)),
        hostfile=hostfiles.render(hosts, row.syntax),
        more_hostfiles={
            copies[file.path]: hostfiles.render(placement.in_copy(file, observed, row), row.syntax)
            for file in observed.hostfile.parts
        },
        remote_hosts=remote,
        ranks=np,
        user_agent=user_agent,
        user_args=user_args,
        obstacles=_obstacles(builder),
        tolerates_failure=_tolerates_failure(builder),
        per_host=per_host,
        rows=network.rows,
        transport=network.transport,
        networks=network.networks,
        proved=data.is_proved(builder, network),
        agent_env=builder.agent_env,
        agent_linger=row.agent_linger,
        tcp_optional=control_links.tcp_optional(builder, network.transport),
        exit_codes=supervised and _asks_exit_codes(builder),
        meeting=ranks.meeting,
    )


def pair_findings(plan: Plan, observed: Observed, dialled: Sequence[Dial]) -> tuple[Finding, ...]:
    """Turn the results of the workers' test connections into findings, by what the plan needs."""
    hosts = [worker.host.name for worker in observed.workers]
    row = row_of(observed.mpi)
    checks_address = row is not None and row.checks_peer_address
    return worker_pairs.findings(dialled, hosts, plan.tcp_optional, checks_address=checks_address)


def stop_on_failure(findings: Sequence[Finding]) -> None:
    """Raise the first failing finding, with the others behind it."""
    bad = [item for item in findings if item.level is Level.FAIL]
    if bad:
        raise MpibootError(bad[0], tuple(bad[1:]))


_STARTS_RANKS: Final = frozenset(
    {"torchrun", "torch.distributed.run", "torch.distributed.launch"}
    | {"accelerate", "accelerate.commands.launch"}
)


def _line(builder: PlanBuilder) -> None:
    """Report words of the line that are rewritten or not read."""
    row, line, mpi = builder.row, builder.line, builder.observed.mpi
    if len(line.apps) > 1 and mpi.version == row.several_programs_fail:
        message = f"the daemons of {mpi.version} die at the start of a line with several programs"
        builder.findings.append(failed("several-programs", message, level=Level.WARN))
    if row.untried:
        message = f"{mpi.banner}: mpiboot was not tried with it, and {row.untried}"
        hint = "the README has the versions that were tried"
        builder.warn("mpi-versions", message, hint)
    if line.rewritten:
        pairs = ", ".join(f"{word} as -{word}" for word in line.rewritten)
        message = f"on the mpirun line {row.title} gets {pairs}: it reads these otherwise"
        builder.warn("usage", message)
    if line.unknown:
        builder.warn("usage", f"{line.reason}: the rest of the line is passed on unread")
    for app in line.apps:
        words = line.argv[app.program :]
        options = [*takewhile(lambda word: word.startswith("-"), words[1:])]
        module = words[len(options) + 1 :][:1] if options[-1:] == ["-m"] else ()
        for name in _STARTS_RANKS.intersection((words[0].rpartition("/")[2], *module)):
            if line.per_node != 1:
                hint = f"run `mpiboot exec -- {words[0]} ...` in each pod"
                builder.warn("usage", f"each rank is {name}, which starts ranks itself", hint)


def _mpi(builder: PlanBuilder) -> None:
    mpi, given = builder.observed.mpi, builder.given["mpi"]
    source, reason = Source.DETECTED, mpi.banner
    if builder.settings.mpi is not AUTO:
        source = given.source
        reason = str(given) if mpi.banner == str(given) else f"{given}; {mpi.path}: {mpi.banner}"
    builder.decide("mpi", f"{builder.row.title}: {mpi.version}", source, reason)
    paths = dict.fromkeys(item.path for item in builder.of_files.values())
    for path in paths:
        names = " ".join(name for name, item in builder.of_files.items() if item.path == path)
        builder.decide("mpi-parameters", names, Source.FILE, path)


def _platform(observed: Observed) -> Decision:
    return platforms.recognise(observed.environ, observed.hostfile.path)[1]


def _asks_exit_codes(builder: PlanBuilder) -> bool:
    """Return whether mpiboot asks mpirun for every rank's exit code, as the user has not."""
    option = builder.row.exit_codes_option
    return bool(option) and option.lstrip("-") not in builder.line.given


def _write_command(
    builder: PlanBuilder,
    np: int | None,
    tag: tuple[str, ...],
    exports: tuple[str, ...],
    before: tuple[str, ...],
    *,
    supervised: bool,
) -> tuple[str, ...]:
    """Write the command line; what is added stands before the user's own words.

    ``tag`` are the words that have ranks named in their output; ``before`` are those that each
    program is started by, beside mpirun.
    """
    line, row, paths = builder.line, builder.row, builder.paths
    added = [*tag]
    if placement.numbers_by_option(builder, builder.observed.hostfile.hosts):
        reason = f"{row.title} passes over the numbers of slots in a hostfile named otherwise"
        builder.decide("slots-option", row.slots_option, Source.DETECTED, reason)
        added += [row.slots_option, paths.hostfile]
    if np is not None and line.np is None:
        added += ["-n", str(np)]
    forwarded = tuple(word for name in exports for word in ("-x", name))
    added += forwarded
    table = f"{paths.launch_dir}/{PLACEMENT}"
    if supervised and placement.can_tell(line, row, builder.environ, table):
        builder.decide(
            "rank-table", table, Source.DEFAULT, "mpirun writes there which rank is where"
        )
        option, value = row.rank_table
        added += [option, f"{value}{table}"]
    if supervised and builder.observed.local and _may_tell_ranks(builder):
        name, _, value = NOT_FOR_RANKS.partition("=")
        builder.decide(name, value, Source.DEFAULT, "mpirun alone writes its own messages apart")
        added += ["-x", NOT_FOR_RANKS]
    if supervised and _asks_exit_codes(builder):
        reason = "mpirun tells why each rank ended; mpiboot takes these lines out of its output"
        builder.decide("exit-codes", row.exit_codes_option, Source.DEFAULT, reason)
        added.append(row.exit_codes_option)
    program = line.argv[0]
    if row.program:
        asked, program = program, row.program
        path = builder.observed.mpi.path
        if path.rpartition("/")[2] == row.program:
            program = path
        builder.decide("mpirun", program, Source.DETECTED, f"what {asked} would start")
    return (program, *added, *_words(builder, before, forwarded))


def _words(
    builder: PlanBuilder, before: tuple[str, ...], forwarded: tuple[str, ...]
) -> tuple[str, ...]:
    """Return the user's own words, with the paths of hostfiles replaced by those of the copies.

    ``before`` stands before each program, and ``forwarded`` (``-x``) before the options of each but
    the first: to 4.1 it is an option of one program.
    """
    line, paths = builder.line, builder.paths
    copies = paths.of_program(builder.observed.hostfile)
    words = [*line.argv]
    for index in line.hostfile_words:
        word = line.argv[index]
        option = word.partition("=")[0] if word.startswith("-") else ""  # --hostfile=PATH
        copy = copies.get(word.partition("=")[2] if option else word, paths.hostfile)
        words[index] = f"{option}={copy}" if option else copy
    programs = {app.program for app in line.apps}
    found: list[str] = []
    for index, kept in enumerate(words):
        found += before if index in programs else ()
        if index and index not in builder.taken_off:
            found.append(kept)
        found += forwarded if index and line.argv[index] == ":" else ()
    return tuple(found)


# Options and parameters with which a job continues without a failed rank, or takes its time to end:
# recovery, restarts, fault tolerance (ULFM), orte_abort_on_non_zero_status (4.1),
# state_base_error_non_zero_exit and runtime options (5.0), the time that ranks get to end; Hydra's
# own word for leaving the other ranks alone.
_GOING_ON: Final = (
    "recover",
    "restart",
    "continuous",
    "with-ft",
    "_ft",
    "non_zero",
    "runtime-options",
    "sigkill_timeout",
    "disable-auto-cleanup",
)


# What mpiboot's parent does for every MPI; more is in the MPI's row.
_LOST_WITHOUT_PARENT: Final = (
    "no notice of a host that gets no daemon",
    "no notice to the workers that the job ended well",
    "no search for the cause of a failure, and no hold after it",
    "no look at what carried the data, and no job record",
)


def _stays_as_parent(builder: PlanBuilder) -> bool:
    """Return whether mpiboot stays as mpirun's parent; if not, report what is lost."""
    if builder.settings.supervise is Switch.ON:
        return True
    given = builder.given["supervise"]
    lost = "; ".join((*_LOST_WITHOUT_PARENT, *builder.row.lost_without_parent))
    builder.decide(
        "supervise",
        "off",
        given.source,
        f"{given}: mpirun runs without mpiboot, and so with {lost}",
    )
    return False


def _obstacles(builder: PlanBuilder) -> tuple[tuple[str, str], ...]:
    """List the user's options and variables that could keep mpirun from starting agents."""
    found = []
    keys = "plm plm_rsh_agent plm_ssh_agent orte_launch_agent prte_launch_agent routed"
    for key in keys.split():
        if builder.line.mca.get(key, "direct") != "direct":
            found.append((f"--mca {key} {builder.line.mca[key]}", "given on the mpirun line"))
        found += [
            (f"{prefix}{key}", f"{prefix}{key}={builder.environ[prefix + key]}")
            for prefix in ("OMPI_MCA_", "PRTE_MCA_")
            if builder.environ.get(prefix + key, "direct") not in ("", "direct")
            and prefix + key not in builder.set_env
        ]
    if builder.line.unknown:
        found.append((builder.line.unknown, "an option that mpiboot does not know"))
    return tuple(found)


def _may_tell_ranks(builder: PlanBuilder) -> bool:
    """Return whether 4.1 can give ranks a value of their own: not beside a list of names."""
    row, line = builder.row, builder.line
    listed = parameter(row.export_var) in line.mca or row.export_var in (
        builder.environ.keys() | builder.set_env.keys()
    )
    return (
        row.messages_var != ""
        and row.messages_var not in builder.environ
        and not line.apps[1:]
        and not line.unknown
        and not listed
    )


def _tolerates_failure(builder: PlanBuilder) -> bool:
    """Return whether the user may have asked mpirun to continue without a failed rank."""
    if builder.line.unknown or builder.line.reads_files:
        return True
    variables = (name for name in builder.environ if "_MCA_" in name)
    named = (*builder.line.given, *builder.line.mca, *variables)
    return any(word in name.lower() for name in named for word in _GOING_ON)


OWN_RANKS: Final = "own-ranks.env"
_READ_OWN: Final = (
    '[ "$1" != "$(read -r name < /proc/sys/kernel/hostname; echo "$name")" ] || [ ! -O "$0" ] '
    '|| . "$0"; shift; exec "$@"'
)


def _own_ranks_words(builder: PlanBuilder, *, remote: bool) -> tuple[str, ...]:
    """Return the words that start programs with the agents' variables, where ranks here need them.

    ``remote`` is whether there are other hosts than this pod.
    """
    own = builder.observed.own
    if not (own and builder.observed.local and remote and builder.agent_env):
        return ()
    names = first_few(builder.agent_env)
    if any(app.program is None for app in builder.line.apps):
        message = (
            f"ranks in this pod lack {names}: it is not known where on the mpirun line the program "
            "begins"
        )
        builder.warn("usage", message)
        return ()
    file = f"{builder.paths.launch_dir}/{OWN_RANKS}"
    reason = f"ranks in this pod get {names} there; {builder.row.title} would leave them out"
    builder.decide("own-ranks", file, Source.DETECTED, reason)
    return ("/bin/sh", "-c", _READ_OWN, file, own.hostname)


RANK_OUTPUT: Final = "rank-output"


def _tag_output(builder: PlanBuilder) -> tuple[str, ...]:
    """Give the option by which each line of output names its rank; the user's own comes first."""
    if builder.settings.tag_output is Switch.OFF:
        return ()
    row, given = builder.row, builder.given["tag_output"]
    theirs = _tagged_by_user(builder)
    if theirs:
        builder.decide(RANK_OUTPUT, theirs, Source.FLAG, "given on the mpirun line")
        return ()
    option, reason = " ".join(row.tag_option), f"{given}: each line names its rank"
    builder.decide(RANK_OUTPUT, option, given.source, reason)
    if row.tag_loses:
        builder.warn("output", f"{row.title}: {row.tag_loses}")
    return row.tag_option


def _tagged_by_user(builder: PlanBuilder) -> str:
    """Find the user's own option; where a line is not read to its end, any word that may be it."""
    line, options = builder.line, builder.row.grammar.options
    names = {name: f"--{name}" for name in line.given}
    for word in line.argv if line.unknown else ():
        option = options.get(word.lstrip("-").partition("=")[0])
        if option and word[:1] == "-":
            names[option.name] = word
    return next((names[name] for name in builder.row.tagged_by if name in names), "")
