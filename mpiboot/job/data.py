"""The data network's part of a plan: what the user has set, and how each value travels. Pure.

What is decided, and why, is ``network.split``'s; here it meets the user's line and environment.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

from mpiboot.data_network import interfaces, owners, split
from mpiboot.data_network.cluster_view import Row
from mpiboot.data_network.owners import Wish
from mpiboot.data_network.records import DataSettings, Kind
from mpiboot.job import mpi_environment
from mpiboot.job.plan_builder import Making, Observed
from mpiboot.model import Decision, Source, Worker
from mpiboot.network import control
from mpiboot.settings import Resolved, Settings


@dataclass(frozen=True, slots=True)
class Data:
    """What the plan says of the data network.

    ``per_host`` has the variables of one host alone, by the name that mpirun has for it; ``rows``
    are empty where there is nothing but the control network.
    """

    per_host: Mapping[str, Mapping[str, str]]
    rows: tuple[Row, ...]


def settings_of(settings: Settings) -> DataSettings:
    """Pick the settings that the decision reads."""
    return DataSettings(
        data_network=settings.data_network,
        data_ifname=settings.data_ifname,
        rdma_device=settings.rdma_device,
        nccl_socket=settings.nccl_socket,
        mpi_network=settings.mpi_network,
        nccl_version=settings.nccl_version,
        control_ifname=settings.control_ifname,
    )


def pending(workers: Iterable[Worker], settings: Settings) -> dict[str, tuple[str, ...]]:
    """Tell by host what its data network still waits for: a port, an address."""
    if settings.data_network == "off":
        return {}
    read = settings_of(settings)
    found = {worker.host.name: interfaces.choose(worker, read).pending for worker in workers}
    return {name: waiting for name, waiting in found.items() if waiting}


def decide(making: Making, observed: Observed, resolved: Resolved) -> split.Split:
    """Decide the data network and show it; nothing is set yet."""
    read = settings_of(resolved.settings)
    taken, values = _taken(making, resolved)
    workers = _hosts(observed)
    others = _of_the_mpi(making, workers)
    found = split.decide(workers, read, taken, values=values, others=others)
    making.findings += found.findings
    making.decisions += _short(found) if _plain(found, read) else _whole(found)
    making.settled = {*found.common, *(name for mine in found.per_host.values() for name in mine)}
    return found


def _of_the_mpi(making: Making, workers: Iterable[Worker]) -> tuple[Wish, ...]:
    """Give what this MPI would have of variables that the data network owns, as UCX's of MPICH.

    Open MPI's own are left out: moving them is what MPIBOOT_MPI_NETWORK asks for.
    """
    names = [
        name
        for name in making.row.mpi_link_vars
        if owners.owner(name) and not name.startswith("OMPI_")
    ]
    because = f"messages of {making.row.title} on the control link"
    return tuple(
        Wish(name, link.name, "mpi-link", because, worker.host.name)
        for name in names
        for worker in workers
        if worker.facts and (link := control.link_of(worker.address, worker.facts.links))
    )


def deliver(making: Making, observed: Observed, resolved: Resolved, found: split.Split) -> Data:
    """Settle how each value reaches its ranks: from mpirun's environment, or by its host's agent.

    A value that mpirun does not hand on goes by the agent, whatever it is; the ranks of this pod
    itself have mpirun's environment.
    """
    per_host = {host: dict(mine) for host, mine in found.per_host.items()}
    for name, value in found.common.items():
        # Open MPI hands its own parameters on, and they rule over the workers' environment.
        if name in making.forwarded or name.startswith("OMPI_"):
            making.set_env[name] = value
        else:
            for mine in per_host.values():
                mine[name] = value
    for host in observed.local:
        making.set_env.update(per_host.pop(host.name, {}))
    plain = _plain(found, settings_of(resolved.settings))
    return Data(
        {observed.called(host): mine for host, mine in per_host.items() if mine},
        () if plain else found.rows,
    )


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


def _taken(making: Making, resolved: Resolved) -> tuple[dict[str, str], dict[str, str]]:
    """Find what the user has set for all ranks: where, and the values that are known."""
    never = resolved.settings.no_forward
    taken, values = {}, {}
    for name, value in making.environ.items():
        parameter = name.startswith("OMPI_")
        held_back = not parameter and any(fnmatchcase(name, item) for item in never)
        # An empty parameter is none to Open MPI; an empty NCCL_ variable may be meant.
        if held_back or (parameter and not value):
            continue
        taken[name], values[name] = "the launcher's environment", value
    for name in (*making.line.exports, *mpi_environment.listed(making)):
        taken[name] = "the mpirun line"
        values.pop(name, None)
    for name, value in making.line.mca.items():
        taken[f"OMPI_MCA_{name}"], values[f"OMPI_MCA_{name}"] = "the mpirun line", value
    return taken, values


def _plain(found: split.Split, settings: DataSettings) -> bool:
    """Tell whether there is nothing but the control network, and nobody asked for more."""
    networks = [view.network for view in found.views]
    return settings.mpi_network == "control" and all(
        one.kind in (Kind.NONE, Kind.UNKNOWN) and not one.data and not one.rails for one in networks
    )


def _short(found: split.Split) -> list[Decision]:
    """Show a job without a data network in one line, and what the user has set beside it."""
    shown = [f"{name}={value}" for name, value in found.common.items()]
    shown += [f"{name} per worker" for name in _differing(found)]
    kept = []
    for item in found.decisions:
        if item.name == "data-network":
            because = item.because + (f"; set: {', '.join(shown)}" if shown else "")
            kept.append(Decision(item.name, item.value, item.source, because))
        elif owners.owner(item.name) and item.source is Source.ENVIRONMENT:
            kept.append(item)
    return kept


def _differing(found: split.Split) -> list[str]:
    return list(dict.fromkeys(name for mine in found.per_host.values() for name in mine))


def _whole(found: split.Split) -> list[Decision]:
    """Show everything but the workers' control links, which the table of workers has."""
    return [item for item in found.decisions if item.name != "control-link"]
