"""Values that differ from host to host or rank to rank: the data network's, and torchrun's. Pure.

What is decided of the data network, and why, is ``network.decision``'s; here it meets the user's
line and environment.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from itertools import pairwise
from typing import Final

from mpiboot.core.checks import failed
from mpiboot.core.facts import Host, NoFacts, Variable, Worker
from mpiboot.core.model import Decision, Source
from mpiboot.core.setting_types import MpiNetwork, ProveTransport
from mpiboot.core.wording import first_few
from mpiboot.job import control_links, job_hosts, mpi_environment
from mpiboot.job.plan_input import Observed, PlanInput
from mpiboot.job.program_words import Rendezvous
from mpiboot.job.resolve import ForAgents, Forced, Item, kept_by, warning
from mpiboot.network import decision, worker_network
from mpiboot.network.decision import DataNetwork
from mpiboot.network.records import RDMA, Transport, values_in_pod


def network(inp: PlanInput) -> DataNetwork:
    """Decide the data network."""
    observed = inp.observed
    read = inp.settings
    taken, values = _taken(inp)
    workers = _hosts(observed)
    networks = [
        observed.networks.get(worker.host.name) or worker_network.choose(worker, read)
        for worker in workers
    ]
    networks = list(decision.with_gids(networks, read, taken))
    mpi = decision.mpi_network(networks, read)
    read = replace(read, mpi_network=mpi[0])
    others = _of_the_mpi(inp, workers) if read.mpi_network is MpiNetwork.CONTROL else ()
    given = inp.given["data_network"]
    found = decision.decide(
        networks,
        read,
        taken,
        values=values,
        others=others,
        given=given,
        blocked=observed.data_blocked,
        asked=observed.asked,
    )
    return replace(inp.implementation.network(inp, found), mpi=mpi)


def decided(found: DataNetwork) -> frozenset[str]:
    """Give the names that the data network decides."""
    return frozenset(found.common).union(*found.per_host.values())


def _of_the_mpi(inp: PlanInput, workers: Iterable[Worker]) -> tuple[Variable, ...]:
    """Return the values that this MPI needs of variables owned by the data network (MPICH: UCX's).

    Open MPI's own are left out: moving them is what MPIBOOT_MPI_NETWORK asks for.
    """
    names = [
        name
        for name in inp.implementation.mpi_link_vars
        if name in decision.VARIABLES and not name.startswith("OMPI_")
    ]
    reason = f"messages of {inp.implementation.title} on the control link"
    return tuple(
        Variable(name, link.name, reason, host=worker.host.name)
        for name in names
        for worker in workers
        if worker.facts
        and (link := worker_network.link_of(worker.address, worker.facts.links))
        and not (name in control_links.OF_LIBFABRIC and control_links.ambiguous(worker))
    )


def is_proved(inp: PlanInput, found: DataNetwork) -> bool:
    """Whether counters are compared after the job; the user may want no RDMA."""
    off = inp.settings.prove_transport is ProveTransport.OFF
    if off or found.transport not in (*RDMA, Transport.TCP):
        return False
    _, values = _taken(inp)
    pods = [values_in_pod(one.facts) for one in found.networks]
    disabled = any(
        own.get("NCCL_IB_DISABLE", "").strip().lstrip("0").isdigit() for own in (values, *pods)
    )
    sockets = values.get("NCCL_NET", "").lower() == "socket"
    return found.transport is Transport.TCP or not (disabled or sockets)


def deliver(
    inp: PlanInput,
    common: Mapping[str, str],
    per_host: Mapping[str, Mapping[str, str]],
    forwarded: Collection[str],
) -> tuple[tuple[Item, ...], dict[str, dict[str, str]]]:
    """Decide how each value reaches its ranks: by mpirun's environment, or by its host's agent.

    A value that mpirun does not hand on goes by the agent, whatever it is; the ranks of this pod
    itself have mpirun's environment, or read theirs back (``plan._own_ranks_words``).

    Returns:
        Items for mpirun's environment, and the variables of each host, by mpirun's name.
    """
    observed, items = inp.observed, list[Item]()
    of_host = {host: {**mine} for host, mine in per_host.items()}
    for name, value in common.items():
        # Open MPI hands its own parameters on, and they rule over the workers' environment.
        if name in forwarded or name.startswith("OMPI_"):
            items.append(Forced(name, value))
        else:
            for mine in of_host.values():
                mine[name] = value
    # What mpirun has would overwrite the values of the other hosts, where it hands on everything.
    here = ForAgents if inp.forwards_all else Forced
    for host in observed.local:
        items += [here(name, value) for name, value in of_host.pop(host.name, {}).items()]
    return tuple(items), {observed.called(host): mine for host, mine in of_host.items() if mine}


_PML: Final = "OMPI_MCA_pml"


def mpi_network(inp: PlanInput, found: DataNetwork) -> Iterator[Decision]:
    """Show which network MPI's own messages use, where there is a choice."""
    name, (carrier, why) = "mpi-network", found.mpi
    mpi = inp.implementation
    names = (_PML, *mpi.mpi_link_vars) if any(item.name == _PML for item in mpi.constants) else ()
    chosen = next(filter(None, (kept_by(item, inp.owned) for item in names)), None)
    if carrier is MpiNetwork.AUTO and not chosen:
        yield Decision(name, f"left to {mpi.title}", Source.DETECTED, why)
    elif not names or found.transport not in (*RDMA, Transport.TCP):
        return
    elif chosen:
        by, own = chosen
        yield Decision(name, "your own choice", own.source, f"{by} is {own.by}")
    elif all(item.name != name for item in found.decisions):  # else `data` is not possible
        given = inp.given["mpi_network"]
        why = f"{why}; a program without NCCL may want MPIBOOT_MPI_NETWORK=data" if why else ""
        yield Decision(name, carrier.value, given.source, why or str(given))


def _hosts(observed: Observed) -> tuple[Worker, ...]:
    """List the hosts in the hostfile's order, this pod itself among them if it runs ranks."""
    known = {worker.host.name: worker for worker in observed.workers}
    own = observed.own
    if own is not None:
        address = own.control_address
        known |= {
            host.name: Worker(host, address, 0, "", address, own, observed.mpi)
            for host in observed.local
        }
    return tuple(known[host.name] for host in observed.hostfile.hosts if host.name in known)


def _taken(inp: PlanInput) -> tuple[dict[str, str], dict[str, str]]:
    """Find the variables that the user sets for all ranks: where each is set, and known values."""
    never = inp.settings.no_forward
    moves = inp.settings.mpi_network is MpiNetwork.DATA
    taken, values = {}, {}
    for name, value in inp.environ.items():
        parameter = name.startswith("OMPI_")
        held_back = not parameter and any(fnmatchcase(name, item) for item in never)
        # An empty parameter is none to Open MPI; an empty NCCL_ variable may be meant.
        of_file = inp.of_files.get(name)
        # The setting comes before a file; but a link left out and one taken end each rank.
        moved = moves and of_file and not name.endswith("_exclude")
        if held_back or moved or (parameter and not value):
            continue
        taken[name] = of_file.path if of_file else "the launcher's environment"
        values[name] = value
    # Without a value, -x passes the launcher's own on.
    taken |= dict.fromkeys(inp.line.exports, "the mpirun line")
    values |= inp.line.export_values
    for name in mpi_environment.listed(inp):
        taken[name] = "the mpirun line"
        values.pop(name, None)
    for name, value in inp.line.mca.items():
        taken[f"OMPI_MCA_{name}"], values[f"OMPI_MCA_{name}"] = "the mpirun line", value
    return taken, values


# By name: each host finds its own, as it finds the program.
_BEFORE: Final = ("mpiboot", "rank", "--")
_ADDRESS: Final = "MASTER_ADDR"
_PORT: Final = "MASTER_PORT"
MASTER_PORT: Final = "29500"  # PyTorch's own default (torch.distributed.run)


@dataclass(frozen=True, slots=True)
class RankEnv:
    """The words that each program is started by, and what mpirun's environment gets for them.

    ``meeting`` is None where rank 0's host or the port isn't known here.
    """

    before: tuple[str, ...] = ()
    items: tuple[Item, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    meeting: Rendezvous | None = None


def rank_env(inp: PlanInput, hosts: Sequence[Host]) -> RankEnv:
    """Decide by what ranks are started, and where they meet.

    Both where the setting says so; where they meet also where the user's line has `mpiboot rank`.
    """
    written = _on_the_line(inp.line.argv)
    asked, given = inp.settings.rank_env and not written, inp.given["rank_env"]
    before, items = _before(inp.observed), list[Item]()
    if asked:
        message, hint = _unfit(inp)
        if message:
            found = failed("settings-conflict", f"{given}: {message}", hint=hint)
            return RankEnv(items=(found,))
        reason = f"{given}: before each program"
        items.append(Decision("rank-env", " ".join(before), given.source, reason))
    elif not written:
        return RankEnv()
    first, left = _first_host(inp, hosts)
    port = Variable(_PORT, MASTER_PORT, "PyTorch's own default", Source.DEFAULT)
    items += left
    # An address that isn't known leaves the user's own to be shown.
    items += (item for item in (_address(inp, first), port) if item.value or inp.owned(item.name))
    set_here = (item for item in items if isinstance(item, Variable))
    variables = {item.name: item.value for item in set_here if not inp.owned(item.name)}
    meeting = _meeting(inp, variables, first)
    return RankEnv(before if asked else (), tuple(items), variables, meeting)


def _before(observed: Observed) -> tuple[str, ...]:
    """Name mpiboot by its path where no host's PATH leads to it, and it is the same on all."""
    programs = {worker.facts.program for worker in _hosts(observed) if worker.facts}
    (program,) = programs if len(programs) == 1 else {""}
    return (program or _BEFORE[0], *_BEFORE[1:])


def _unfit(inp: PlanInput) -> tuple[str, str]:
    """Return why programs can't be started by mpiboot, and a hint; empty where they can."""
    without = [
        worker.host.name
        for worker in inp.observed.workers
        if worker.facts is None and worker.no_facts is NoFacts.NO_MPIBOOT
    ]
    if without:
        message = f"{first_few(without)} {NoFacts.NO_MPIBOOT.value}, and ranks are started by it"
        return (
            message,
            "install it in the workers' image, or set RANK and the others in the program",
        )
    if any(app.program is None for app in inp.line.apps):
        message = "it is not known where on the mpirun line the program begins"
        return message, f"write `{' '.join(_BEFORE)}` there, before the program"
    return "", ""


def _on_the_line(words: Sequence[str]) -> bool:
    first, second, _ = _BEFORE
    return any(a.rsplit("/", 1)[-1] == first and b == second for a, b in pairwise(words))


def _first_host(inp: PlanInput, hosts: Sequence[Host]) -> tuple[str, tuple[Item, ...]]:
    """Find the host of rank 0; empty, with a warning, where the line may choose it."""
    local = inp.observed.local_names
    first, left = job_hosts.first_host(hosts, inp.line, inp.implementation, inp.environ, local)
    if not left or inp.owned(_ADDRESS):
        return first, ()
    message = f"{left}: mpirun alone decides which host gets rank 0, so {_ADDRESS} is not set"
    hint = f"set {_ADDRESS} to that host's name in the launcher's pod"
    return first, (warning("settings-conflict", message, hint),)


def _address(inp: PlanInput, name: str) -> Variable:
    """Give the address of rank 0's host; an empty value where that host isn't known."""
    observed = inp.observed
    called = {observed.called(item.host.name): item for item in observed.workers}
    worker, value = called.get(name), name
    reason = f"rank 0 runs on {name}: its address on the control link"
    if worker:
        value = (worker.facts.control_address if worker.facts else "") or worker.address
    elif observed.own and name in observed.local_names:
        value = observed.own.control_address or name
    else:
        reason = f"rank 0 runs on {name}, of which no address is known"
    return Variable(_ADDRESS, value, reason, Source.DETECTED)


def _meeting(inp: PlanInput, variables: Mapping[str, str], host: str) -> Rendezvous | None:
    """Return rank 0's host and the port it listens on; None where either is not known."""
    line = inp.line.export_values.get(_PORT)
    port = line or variables.get(_PORT) or inp.environ.get(_PORT, "")
    if not host or not port.isascii() or not port.isdigit():
        return None
    return Rendezvous(host, _PORT, int(port))
