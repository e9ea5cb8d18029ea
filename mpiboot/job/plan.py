"""Makes the plan of facts and settings: hosts, placement, variables, argv, files, with reasons.

Pure: ``plan`` prints what ``make`` returns and ``launcher`` carries it out, so that they never
disagree. Nothing here reads or changes the world.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Final

from mpiboot.core.checks import MpibootError
from mpiboot.core.model import AUTO, Decision, Finding, Level, MpiNetwork, Source
from mpiboot.core.settings import Resolved
from mpiboot.core.wording import first_few
from mpiboot.job import (
    control_links,
    job_hosts,
    mpi_environment,
    platforms,
)
from mpiboot.job import hostfile as hostfiles
from mpiboot.job.mpis import EXIT_CODES, implementation_of
from mpiboot.job.parameter_files import parameter
from mpiboot.job.plan_input import (
    Item,
    LaunchPaths,
    Observed,
    PlanInput,
    Resolution,
    Words,
    warning,
)
from mpiboot.network import cluster_view, worker_pairs
from mpiboot.network.records import Transport, WorkerNetwork
from mpiboot.network.worker_pairs import Dial
from mpiboot.ssh import config as sshconfig


@dataclass(frozen=True, slots=True)
class Plan:
    """What will be done: ``set_env`` and ``unset_env`` change the environment of ``argv``.

    ``remote_hosts`` are those of the job, of which mpirun alone decides where it starts daemons and
    ranks; ``obstacles`` are variables or flags of the user's that could keep it from starting
    launch agents. ``per_host`` has by host what its agent sets there; ``transport`` carries the
    data (None: it was not observed) by each host's ``networks``; ``named_devices`` where the user
    names the devices, and ``proved`` where counters are compared after the job. ``more_hostfiles``
    are the texts of copies of hostfiles that single programs have, by the copies' paths.
    ``exit_codes`` is whether mpiboot wants them of mpirun, beside the user's own words.
    ``agent_env`` is what agents need of this pod's environment and mpirun must not have, and
    ``agent_linger`` for how long they wait for its end.
    ``tcp_optional`` is why MPI may do without TCP between the hosts, empty where it can't, and
    ``daemons_elsewhere`` why the launcher may be reached otherwise than workers have tried.
    ``mpi_link`` is the link on which mpiboot keeps MPI's own messages, empty where it doesn't.
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
    transport: Transport | None = None
    networks: tuple[WorkerNetwork, ...] = field(default=(), compare=False)
    named_devices: bool = False
    proved: bool = False
    agent_env: Mapping[str, str] = field(default_factory=dict)
    agent_linger: int = 0
    tcp_optional: str = ""
    daemons_elsewhere: str = ""
    exit_codes: bool = False
    mpi_link: str = ""

    @property
    def rows(self) -> tuple[cluster_view.WorkerRow, ...]:
        """What shows the data network, a worker each."""
        return tuple(map(cluster_view.row, self.networks))

    def environment(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Make mpirun's environment of this pod's."""
        kept = {name: value for name, value in environ.items() if name not in self.unset_env}
        return {**kept, **self.set_env}


def _unknown(observed: Observed, resolved: Resolved) -> Plan:
    """Plan an MPI that isn't known: the user's own line, when the hosts are ready, and no more."""
    mpi, reason = observed.mpi, "this MPI is not known"
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
        hostfile=hostfiles.render(observed.hostfile.hosts),
        tolerates_failure=True,
        tcp_optional=reason,
        daemons_elsewhere=reason,
    )


def make(observed: Observed, resolved: Resolved, paths: LaunchPaths) -> Plan:
    """Decide everything.

    Findings that fail are in the plan, not raised: ``plan`` shows them, ``launcher`` stops.

    Raises:
        MpibootError: this MPI can't be started at all.
    """
    mpi = implementation_of(observed.mpi)
    if mpi is None:
        return _unknown(observed, resolved)
    inp = PlanInput(mpi, observed, resolved.settings, resolved.given, paths)
    observed, sized = job_hosts.default_slots(inp)
    inp = replace(inp, observed=observed)
    hosts = job_hosts.in_copy(observed.hostfile, observed, mpi)
    remote = tuple(host.name for host in hosts if host.name not in observed.local_names)
    np, ranks = job_hosts.ranks(inp, hosts)
    network = mpi_environment.data_network(inp)
    inp = replace(inp, settings=replace(inp.settings, mpi_network=network.mpi[0]))
    link, control = control_links.control(inp)
    agent = control_links.place(inp, len(hosts), remote)
    rank_env = mpi_environment.rank_env(inp, hosts)
    outcome = Resolution(inp.owned, {*network.common}.union(*network.per_host.values()))
    outcome.add(
        (*sized, _platform(observed)),
        *(_mpi(inp), _line(inp), mpi.findings(inp)),
        (*job_hosts.hosts(inp, hosts), ranks, *network.findings, *network.decisions),
        mpi_environment.mpi_network(inp, network),
        (link, *control, *mpi_environment.constants(inp), *agent.items),
        (observed.client,) if observed.client and not agent.user_agent else (),
        rank_env.items,
    )
    common = {**network.common, **rank_env.variables}
    shown_names, names = mpi_environment.forwarding(inp, outcome.removed, common)
    delivery, per_host = mpi_environment.deliver(inp, common, network.per_host, names)
    outcome.add(shown_names, delivery)
    mca = {name: value for name, value in inp.line.mca.items() if name not in outcome.dropped}
    own_ranks, shown = _local_ranks_words(inp, outcome.for_agents, remote=bool(remote))
    by_flag = () if mpi.hands_on_all else names
    forwarded = tuple(word for name in by_flag for word in ("-x", name))
    counted = (Words(("-n", str(np))),) if np is not None and inp.line.np is None else ()
    outcome.add(job_hosts.findings(observed), shown, counted, (Words(forwarded),), mpi.words(inp))
    before = (*own_ranks, *rank_env.before)
    copies = paths.of_program(observed.hostfile)
    of_mpi = not outcome.values.keys().isdisjoint(mpi.mpi_link_vars)
    on_control = of_mpi and network.mpi[0] is MpiNetwork.CONTROL
    return Plan(
        decisions=tuple(outcome.decisions),
        findings=tuple(outcome.findings),
        argv=(
            *(mpi.program(inp), *outcome.words),
            *_words(inp, before, () if mpi.exports_and_list else forwarded, outcome.dropped),
        ),
        set_env=outcome.values,
        unset_env=tuple(sorted(outcome.removed)),
        hostfile=job_hosts.copy_of(observed.hostfile, observed, mpi),
        more_hostfiles={
            copies[file.path]: job_hosts.copy_of(file, observed, mpi)
            for file in observed.hostfile.parts
        },
        remote_hosts=remote,
        ranks=np,
        user_agent=agent.user_agent,
        user_args=agent.user_args,
        obstacles=_obstacles(inp, mca, outcome),
        tolerates_failure=_tolerates_failure(inp, mca),
        per_host=per_host,
        transport=network.transport,
        networks=network.networks,
        named_devices=any(map(inp.owned, ("NCCL_IB_HCA", "UCX_NET_DEVICES"))),
        proved=mpi_environment.is_proved(inp, network),
        agent_env=outcome.for_agents,
        agent_linger=mpi.agent_linger,
        tcp_optional=control_links.tcp_optional(inp, link.value, network.transport),
        daemons_elsewhere=control_links.elsewhere(inp, link.value, daemons=True),
        exit_codes=EXIT_CODES in outcome.words,
        mpi_link=link.value if on_control else "",
    )


def pair_findings(plan: Plan, observed: Observed, dialled: Sequence[Dial]) -> tuple[Finding, ...]:
    """Turn the results of the workers' dials into findings, by what the plan needs."""
    hosts = [worker.host.name for worker in observed.workers]
    mpi = implementation_of(observed.mpi)
    checks_address = mpi is not None and mpi.checks_peer_address
    return worker_pairs.findings(
        dialled,
        hosts,
        plan.tcp_optional,
        daemons_optional=plan.daemons_elsewhere,
        checks_address=checks_address,
    )


def stop_on_failure(findings: Sequence[Finding]) -> None:
    """Raise the first failing finding, with the others behind it."""
    bad = [item for item in findings if item.level is Level.FAIL]
    if bad:
        raise MpibootError(bad[0], tuple(bad[1:]))


_STARTS_RANKS: Final = frozenset(
    {"torchrun", "torch.distributed.run", "torch.distributed.launch"}
    | {"accelerate", "accelerate.commands.launch"}
)


def _line(inp: PlanInput) -> Iterator[Item]:
    """Report words of the line that are rewritten or not read."""
    mpi, line = inp.implementation, inp.line
    if mpi.untried:
        message = f"{inp.observed.mpi.banner}: mpiboot was not tried with it, and {mpi.untried}"
        yield warning("mpi-versions", message, "the README has the versions that were tried")
    if line.rewritten:
        pairs = ", ".join(f"{word} as -{word}" for word in line.rewritten)
        message = f"on the mpirun line {mpi.title} gets {pairs}: it reads these otherwise"
        yield warning("usage", message)
    if line.unknown:
        yield warning("usage", f"{line.reason}: the rest of the line is passed on unread")
    for app in line.apps:
        words = line.argv[app.program :]
        options = [*takewhile(lambda word: word.startswith("-"), words[1:])]
        module = words[len(options) + 1 :][:1] if options[-1:] == ["-m"] else ()
        for name in _STARTS_RANKS.intersection((words[0].rpartition("/")[2], *module)):
            if line.per_node != 1:
                hint = f"run `mpiboot exec -- {words[0]} ...` in each pod"
                yield warning("usage", f"each rank is {name}, which starts ranks itself", hint)


def _mpi(inp: PlanInput) -> Iterator[Item]:
    mpi, given = inp.observed.mpi, inp.given["mpi"]
    source, reason = Source.DETECTED, mpi.banner
    if inp.settings.mpi is not AUTO:
        source = given.source
        reason = str(given) if mpi.banner == str(given) else f"{given}; {mpi.path}: {mpi.banner}"
    yield Decision("mpi", f"{inp.implementation.title}: {mpi.version}", source, reason)
    program, written = inp.implementation.program(inp), inp.line.argv[0]
    if program != written:
        yield Decision("mpirun", program, Source.DETECTED, f"what {written} would start")
    for path in dict.fromkeys(item.path for item in inp.of_files.values()):
        names = " ".join(name for name, item in inp.of_files.items() if item.path == path)
        yield Decision("mpi-parameters", names, Source.FILE, path)


def _platform(observed: Observed) -> Decision:
    return platforms.recognise(observed.environ, observed.hostfile.path)[1]


def _words(
    inp: PlanInput, before: tuple[str, ...], forwarded: tuple[str, ...], options: Iterable[str]
) -> tuple[str, ...]:
    """Return the user's own words, with the paths of hostfiles replaced by those of the copies.

    Args:
        inp: what the plan is made of.
        before: what stands before each program.
        forwarded: ``-x`` words, where this MPI takes them for one program's: before the options of
            each but the first.
        options: those that mpirun does not get.
    """
    line, paths = inp.line, inp.paths
    dropped = {at for option in options for at in line.places.get(option, ())}
    copies = paths.of_program(inp.observed.hostfile)
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
        if index and index not in dropped:
            found.append(kept)
        # A line may end with a colon, behind which is no program.
        found += forwarded if index and kept == ":" and index + 1 < len(words) else ()
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


# Parameters that choose how daemons are started, and by which way they are reached.
_STARTS_DAEMONS: Final = (
    *("plm", "plm_rsh_agent", "plm_ssh_agent", "orte_launch_agent", "prte_launch_agent", "routed"),
)


def _obstacles(
    inp: PlanInput, mca: Mapping[str, str], outcome: Resolution
) -> tuple[tuple[str, str], ...]:
    """List the user's options and variables that could keep mpirun from starting agents."""
    given = {f"--mca {name} {value}": (name, value) for name, value in mca.items()}
    found = [(by, "given on the mpirun line") for by, item in given.items() if _is_obstacle(*item)]
    found += [
        (name, f"{name}={value}")
        for name, value in inp.environ.items()
        if name not in outcome.values and _is_obstacle(parameter(name), value)
    ]
    if inp.line.unknown:
        found.append((inp.line.unknown, "an option that mpiboot does not know"))
    return tuple(found)


def _is_obstacle(name: str, value: str) -> bool:
    return name in _STARTS_DAEMONS and value not in ("", "direct")


def _tolerates_failure(inp: PlanInput, mca: Mapping[str, str]) -> bool:
    """Return whether the user may want mpirun to continue without a failed rank."""
    if inp.line.unknown or inp.line.reads_files:
        return True
    variables = (name for name in inp.environ if "_MCA_" in name)
    named = (*inp.line.given, *mca, *variables)
    return any(word in name.lower() for name in named for word in _GOING_ON)


OWN_RANKS: Final = "own-ranks.env"
_READ_FILE: Final = (
    '[ "$1" != "$(read -r name < /proc/sys/kernel/hostname; echo "$name")" ] || [ ! -O "$0" ] '
    '|| . "$0"; shift; exec "$@"'
)


def _local_ranks_words(
    inp: PlanInput, agent_env: Mapping[str, str], *, remote: bool
) -> tuple[tuple[str, ...], tuple[Item, ...]]:
    """Return the words that start programs with the agents' variables, where ranks here need them.

    ``remote`` is whether there are other hosts than this pod.
    """
    own = inp.observed.own
    if not (own and inp.observed.local and remote and agent_env):
        return (), ()
    names = first_few(agent_env)
    if any(app.program is None for app in inp.line.apps):
        message = (
            f"ranks in this pod lack {names}: it is not known where on the mpirun line the program "
            "begins"
        )
        return (), (warning("usage", message),)
    file = f"{inp.paths.launch_dir}/{OWN_RANKS}"
    title = inp.implementation.title
    reason = f"ranks in this pod get {names} there; {title} would leave them out"
    shown = Decision("own-ranks", file, Source.DETECTED, reason)
    return ("/bin/sh", "-c", _READ_FILE, file, own.hostname), (shown,)
