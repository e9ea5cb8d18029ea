"""Turns facts and settings into the plan: hosts, placement, variables, argv, files, with reasons.

Pure, without I/O: ``plan`` prints what ``make`` returns and ``launcher`` carries it out, so the two
never disagree.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from mpiboot.core.checks import MpibootError
from mpiboot.core.model import AUTO, Decision, Finding, Level, Source
from mpiboot.core.settings import Resolved
from mpiboot.core.wording import first_few, grouped
from mpiboot.job import control_links, job_hosts, mpi_environment, platforms
from mpiboot.job.mpirun_line import FILE_OPTIONS, UserLine
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
    """What will be done, with the reason for each decision."""

    decisions: tuple[Decision, ...]
    findings: tuple[Finding, ...]
    # mpirun's command line; set_env and unset_env change its environment.
    argv: tuple[str, ...]
    set_env: Mapping[str, str] = field(default_factory=dict)
    unset_env: tuple[str, ...] = ()
    # Text of mpiboot's copy of the job's hostfile, and of those of single app contexts, by path.
    hostfile: str = ""
    app_hostfiles: Mapping[str, str] = field(default_factory=dict)
    # The job's hosts without this pod; mpirun alone decides where daemons and ranks start.
    remote_hosts: tuple[str, ...] = ()
    ranks: int | None = None
    # The user's launch agent (empty: mpiboot's), and ssh arguments set for the MPI.
    user_agent: str = ""
    user_args: sshconfig.UserArgs = field(default_factory=sshconfig.UserArgs)
    # The user's variables and options that may keep mpirun from starting launch agents, and why.
    obstacles: tuple[tuple[str, str], ...] = ()
    # The user may want mpirun to continue after a rank failed.
    tolerates_failure: bool = False
    # Variables that a host's launch agent sets, by host.
    per_host: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    # What carries the data (None: not observed), and each host's rails and links for it.
    transport: Transport | None = None
    networks: tuple[WorkerNetwork, ...] = field(default=(), compare=False)
    # The user chose the RDMA devices.
    user_devices: bool = False
    # Compare the byte counters of ports and links after the job.
    prove_transport: bool = False
    # Variables of this pod for launch agents only, not for mpirun.
    agent_env: Mapping[str, str] = field(default_factory=dict)
    # Seconds that an agent whose daemon succeeded waits for mpirun to exit first.
    agent_linger: int = 0
    # Why MPI may work without TCP between hosts (empty: it can't).
    tcp_optional: str = ""
    # Why daemons may connect to the launcher by a path that workers' dials did not test (empty:
    # they don't).
    daemons_optional: str = ""
    # mpiboot, not the user, has mpirun print ranks' exit codes.
    exit_codes: bool = False

    @property
    def rows(self) -> tuple[cluster_view.Row, ...]:
        """The table of the data network, one row per worker."""
        return tuple(map(cluster_view.row, self.networks))

    def environment(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Derive mpirun's environment from this pod's."""
        rest = {name: value for name, value in environ.items() if name not in self.unset_env}
        return {**rest, **self.set_env}


def _unknown(observed: Observed, resolved: Resolved) -> Plan:
    """Plan an unknown MPI: run the user's command line once the hosts are ready, and no more."""
    mpi, reason = observed.mpi, "this MPI is unknown"
    message = f"{mpi.path} is an unknown MPI ({mpi.banner!r}): its line runs unchanged once hosts "
    message += "are ready; mpiboot sets no hostfile, launch agent, links or variables"
    shown = Decision("mpi", "unknown", resolved.given["mpi"].source, mpi.banner)
    return Plan(
        (_platform(observed), shown),
        (warning("mpi-versions", message, "if it is a supported MPI, set MPIBOOT_MPI"),),
        observed.line.argv,
        tolerates_failure=True,
        tcp_optional=reason,
        daemons_optional=reason,
    )


def make(observed: Observed, resolved: Resolved, paths: LaunchPaths) -> Plan:
    """Decide everything.

    Failing findings are returned, not raised: ``plan`` shows them, ``launcher`` stops.

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
    agent = control_links.place(inp, len(hosts))
    rank_env = mpi_environment.rank_env(inp, hosts)
    outcome = Resolution(inp.owned, {*network.common}.union(*network.per_host.values()))
    outcome.add(
        (*sized, _platform(observed)),
        *(_mpi(inp), _line(inp)),
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
    wrapper, shown = _local_rank_wrapper(inp, outcome.for_agents, remote=bool(remote))
    by_flag = () if mpi.exports_all else names
    forwarded = tuple(word for name in by_flag for word in ("-x", name))
    counted = (Words(("-n", str(np))),) if np is not None and inp.line.np is None else ()
    outcome.add(job_hosts.findings(observed), shown, counted, (Words(forwarded),), mpi.words(inp))
    before = (*wrapper, *rank_env.before)
    copies = paths.of_program(observed.hostfile)
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
        app_hostfiles={
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
        user_devices=any(map(inp.owned, ("NCCL_IB_HCA", "UCX_NET_DEVICES"))),
        prove_transport=mpi_environment.proves_transport(inp, network),
        agent_env=outcome.for_agents,
        agent_linger=mpi.agent_linger,
        tcp_optional=control_links.tcp_optional(inp, link.value, network.transport),
        daemons_optional=control_links.elsewhere(inp, link.value, daemons=True),
        exit_codes=EXIT_CODES in outcome.words,
    )


def pair_findings(plan: Plan, observed: Observed, dialled: Sequence[Dial]) -> tuple[Finding, ...]:
    """Turn the results of the workers' dials into findings, by what the plan needs."""
    mpi = implementation_of(observed.mpi)
    return worker_pairs.findings(
        dialled,
        [worker.host.name for worker in observed.workers],
        plan.tcp_optional,
        daemons_optional=plan.daemons_optional,
        checks_address=mpi is not None and mpi.checks_peer_address,
    )


def stop_on_failure(findings: Sequence[Finding]) -> None:
    """Raise the first failing finding, with the others attached."""
    bad = [item for item in findings if item.level is Level.FAIL]
    if bad:
        raise MpibootError(bad[0], tuple(bad[1:]))


def _line(inp: PlanInput) -> Iterator[Item]:
    """Report an untested MPI, and options rewritten or not parsed."""
    mpi, line = inp.implementation, inp.line
    if mpi.untried:
        message = f"mpiboot is not tested with {inp.observed.mpi.banner} and {mpi.untried}"
        yield warning("mpi-versions", message, "the README lists the tested versions")
    if line.rewritten:
        pairs = ", ".join(f"{word} as -{word}" for word in line.rewritten)
        message = f"mpirun line: passing {pairs}; {mpi.title} misreads a single dash"
        yield warning("usage", message)
    if line.unknown:
        yield unknown_option(line)


def unknown_option(line: UserLine) -> Finding:
    """Warn that parsing stopped at an option. It needs only the line: it may precede the gate."""
    return warning("usage", f"{line.reason}: passing the rest of the line through unparsed")


def _mpi(inp: PlanInput) -> Iterator[Item]:
    mpi, given = inp.observed.mpi, inp.given["mpi"]
    source, reason = Source.DETECTED, mpi.banner
    if inp.settings.mpi is not AUTO:
        source, reason = given.source, f"{given}; {mpi.banner}"
    yield Decision("mpi", f"{inp.implementation.title}: {mpi.version}", source, reason)
    program, written = inp.implementation.program(inp), inp.line.argv[0]
    if program != written:
        yield Decision("mpirun", program, Source.DETECTED, f"what {written} would start")
    files = grouped((item.path, name) for name, item in inp.of_files.items())
    for path, names in files.items():
        yield Decision("mpi-parameters", " ".join(names), Source.FILE, path)


def _platform(observed: Observed) -> Decision:
    return platforms.recognise(observed.environ, observed.hostfile.path)[1]


def _words(
    inp: PlanInput, before: tuple[str, ...], forwarded: tuple[str, ...], options: Iterable[str]
) -> tuple[str, ...]:
    """Return the user's arguments, with hostfile paths replaced by those of mpiboot's copies.

    Args:
        inp: the plan's input.
        before: words to insert before each program.
        forwarded: ``-x`` words, if this MPI applies them to a single app context: inserted before
            the options of each app context but the first.
        options: those to drop.
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
    for index, word in enumerate(words):
        found += before if index in programs else ()
        if index and index not in dropped:
            found.append(word)
        # No program follows a trailing colon.
        found += forwarded if index and word == ":" and index + 1 < len(words) else ()
    return tuple(found)


# Parts of options and parameters that let a job continue after a rank failed, or delay its end:
# recovery, restarts, fault tolerance (ULFM), orte_abort_on_non_zero_status (4.1),
# state_base_error_non_zero_exit and runtime options (5.0), the delay before SIGKILL; Hydra's
# -disable-auto-cleanup.
_FAULT_TOLERANT: Final = (
    *("recover", "restart", "continuous", "with-ft", "_ft", "non_zero", "runtime-options"),
    *("sigkill_timeout", "disable-auto-cleanup"),
)


# Parameters that choose how daemons are started, and how messages to them are routed.
_DAEMON_PARAMS: Final = (
    *("plm", "plm_rsh_agent", "plm_ssh_agent", "orte_launch_agent", "prte_launch_agent", "routed"),
)


def _obstacles(
    inp: PlanInput, mca: Mapping[str, str], outcome: Resolution
) -> tuple[tuple[str, str], ...]:
    """List the user's options and variables that could keep mpirun from starting agents."""
    found = [
        (f"--mca {name} {value}", "given on the mpirun line")
        for name, value in mca.items()
        if _is_obstacle(name, value)
    ]
    found += [
        (name, f"{name}={value}")
        for name, value in inp.environ.items()
        if name not in outcome.values and _is_obstacle(parameter(name), value)
    ]
    if inp.line.unknown:
        found.append((inp.line.unknown, "an option unknown to mpiboot"))
    return tuple(found)


def _is_obstacle(name: str, value: str) -> bool:
    return name in _DAEMON_PARAMS and value not in ("", "direct")


def _tolerates_failure(inp: PlanInput, mca: Mapping[str, str]) -> bool:
    """Return whether the user may want mpirun to continue after a rank failed."""
    line, variables = inp.line, (name for name in inp.environ if "_MCA_" in name)
    if line.unknown or not FILE_OPTIONS.isdisjoint(line.given):
        return True
    named = (*line.given, *mca, *variables)
    return any(word in name.lower() for name in named for word in _FAULT_TOLERANT)


LOCAL_RANKS: Final = "local-ranks.env"
# Sources local-ranks.env if this pod runs the program and owns the file; then execs the program.
_READ_FILE: Final = (
    '[ "$1" != "$(read -r name < /proc/sys/kernel/hostname; echo "$name")" ] || [ ! -O "$0" ] '
    '|| . "$0"; shift; exec "$@"'
)


def _local_rank_wrapper(
    inp: PlanInput, agent_env: Mapping[str, str], *, remote: bool
) -> tuple[tuple[str, ...], tuple[Item, ...]]:
    """Return a wrapper that gives local ranks the agents' variables, if they need it.

    ``remote``: the job has hosts other than this pod.
    """
    own = inp.observed.own
    if not (own and inp.observed.local and remote and agent_env):
        return (), ()
    names = first_few(agent_env)
    if any(app.program is None for app in inp.line.apps):
        message = (
            f"ranks in this pod lack {names}: mpiboot can't find where the program starts on the "
            "mpirun line"
        )
        return (), (warning("usage", message),)
    file = f"{inp.paths.launch_dir}/{LOCAL_RANKS}"
    reason = f"gives ranks in this pod {names}, kept out of mpirun's environment"
    shown = Decision("local-ranks", file, Source.DETECTED, reason)
    return ("/bin/sh", "-c", _READ_FILE, file, own.hostname), (shown,)
