"""The data network's part of a plan: what the user has set, and how each value travels. Pure.

What is decided, and why, is ``network.decision``'s; here it meets the user's line and
environment.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from fnmatch import fnmatchcase

from mpiboot.core.model import Decision, Source, Worker
from mpiboot.core.setting_types import MpiNetwork
from mpiboot.core.settings import Resolved, Settings
from mpiboot.job import mpi_environment
from mpiboot.job.dialect import Export
from mpiboot.job.plan_builder import Observed, PlanBuilder
from mpiboot.network import control, decision, worker_network
from mpiboot.network.decision import DataNetwork
from mpiboot.network.records import Proposal, Transport, WorkerNetwork


def network_of(worker: Worker, settings: Settings) -> WorkerNetwork:
    """Decide what one worker's own networks are, and what is still to come there."""
    return worker_network.choose(worker, settings)


def decide(builder: PlanBuilder, observed: Observed, resolved: Resolved) -> DataNetwork:
    """Decide the data network and show it; nothing is set yet.

    ``rows`` are empty where there is nothing but the control network, and nobody asked for more.
    """
    read = resolved.settings
    taken, values = _taken(builder, resolved)
    workers = _hosts(observed)
    networks = [
        observed.networks.get(worker.host.name) or worker_network.choose(worker, read)
        for worker in workers
    ]
    others = _of_the_mpi(builder, workers) if read.mpi_network is MpiNetwork.CONTROL else ()
    given = resolved.given["data_network"]
    found = decision.decide(
        networks,
        read,
        taken,
        values=values,
        others=others,
        given=given,
        blocked=observed.data_blocked,
    )
    if _plain(found, read):
        found = replace(found, rows=(), decisions=_short(found))
    builder.findings += found.findings
    builder.decisions += found.decisions
    builder.settled = {*found.common, *_differing(found)}
    return found


def _of_the_mpi(builder: PlanBuilder, workers: Iterable[Worker]) -> tuple[Proposal, ...]:
    """Give what this MPI would have of variables that the data network owns, as UCX's of MPICH.

    Open MPI's own are left out: moving them is what MPIBOOT_MPI_NETWORK asks for.
    """
    names = [
        name
        for name in builder.row.mpi_link_vars
        if decision.owner(name) and not name.startswith("OMPI_")
    ]
    because = f"messages of {builder.row.title} on the control link"
    return tuple(
        Proposal(name, link.name, "mpi-link", because, worker.host.name)
        for name in names
        for worker in workers
        if worker.facts and (link := control.link_of(worker.address, worker.facts.links))
    )


def deliver(
    builder: PlanBuilder, observed: Observed, found: DataNetwork
) -> dict[str, Mapping[str, str]]:
    """Settle how each value reaches its ranks: from mpirun's environment, or by its host's agent.

    A value that mpirun does not hand on goes by the agent, whatever it is; the ranks of this pod
    itself have mpirun's environment, or read theirs back (``own_ranks``).

    Returns:
        The variables of one host alone, by the name that mpirun has for it.
    """
    per_host = {host: dict(mine) for host, mine in found.per_host.items()}
    for name, value in found.common.items():
        # Open MPI hands its own parameters on, and they rule over the workers' environment.
        if name in builder.forwarded or name.startswith("OMPI_"):
            builder.set_env[name] = value
        else:
            for mine in per_host.values():
                mine[name] = value
    # What mpirun has would overwrite the values of the other hosts, where it hands on everything.
    apart = builder.row.export is Export.ALL and observed.workers
    for host in observed.local:
        own = builder.agent_env if apart else builder.set_env
        own.update(per_host.pop(host.name, {}))
    return {observed.called(host): mine for host, mine in per_host.items() if mine}


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


def _taken(builder: PlanBuilder, resolved: Resolved) -> tuple[dict[str, str], dict[str, str]]:
    """Find what the user has set for all ranks: where, and the values that are known."""
    never = resolved.settings.no_forward
    moves = resolved.settings.mpi_network is MpiNetwork.DATA
    taken, values = {}, {}
    for name, value in builder.environ.items():
        parameter = name.startswith("OMPI_")
        held_back = not parameter and any(fnmatchcase(name, item) for item in never)
        # An empty parameter is none to Open MPI; an empty NCCL_ variable may be meant.
        of_file = builder.of_files.get(name)
        # The setting comes before a file; but a link left out and one taken end each rank.
        moved = moves and of_file and not name.endswith("_exclude")
        if held_back or moved or (parameter and not value):
            continue
        taken[name] = of_file.path if of_file else "the launcher's environment"
        values[name] = value
    # Without a value, -x passes the launcher's own on.
    taken |= dict.fromkeys(builder.line.exports, "the mpirun line")
    values |= builder.line.export_values
    for name in mpi_environment.listed(builder):
        taken[name] = "the mpirun line"
        values.pop(name, None)
    for name, value in builder.line.mca.items():
        taken[f"OMPI_MCA_{name}"], values[f"OMPI_MCA_{name}"] = "the mpirun line", value
    return taken, values


def _plain(found: DataNetwork, settings: Settings) -> bool:
    """Tell whether there is nothing but the control network, and nobody asked for more."""
    return settings.mpi_network is MpiNetwork.CONTROL and all(
        one.transport in (Transport.NONE, Transport.UNKNOWN) and not one.data and not one.rails
        for one in found.networks
    )


def _short(found: DataNetwork) -> tuple[Decision, ...]:
    """Show a job without a data network in one line, and what the user has set beside it."""
    whole, *others = found.decisions
    shown = [f"{name}={value}" for name, value in found.common.items()]
    shown += [f"{name} per worker" for name in _differing(found)]
    because = whole.because + (f"; set: {', '.join(shown)}" if shown else "")
    kept = [
        item for item in others if decision.owner(item.name) and item.source is Source.ENVIRONMENT
    ]
    return (replace(whole, because=because), *kept)


def _differing(found: DataNetwork) -> list[str]:
    return list(dict.fromkeys(name for mine in found.per_host.values() for name in mine))
