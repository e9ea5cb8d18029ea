"""The data network of a job: what is proposed for its ranks, and what is wrong with it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from mpiboot.core.facts import Variable
from mpiboot.core.model import Decision, Finding, Source
from mpiboot.core.setting_types import DataNetworkUse, MpiNetwork
from mpiboot.core.settings import Given, Settings
from mpiboot.core.wording import first_few, grouped
from mpiboot.network import cluster_view, nccl, proposals
from mpiboot.network.records import (
    NOT_CHOSEN,
    GidChoice,
    RdmaState,
    Transport,
    WorkerNetwork,
    set_in_pod,
)

_NOTHING: Final[Mapping[str, str]] = {}
_GIVEN: Final = Given(Source.ENVIRONMENT, "MPIBOOT_DATA_NETWORK")


@dataclass(frozen=True, slots=True)
class DataNetwork:
    """The data network as it is decided for a job.

    ``proposals`` are what ranks should get, unless the user has chosen; what becomes of them is
    ``common``, which goes to every rank, and ``per_host``, to those of one worker (every worker has
    an entry, which may be empty; no name is in both).
    ``transport`` carries the data; None where it is left alone. ``mpi`` is what carries MPI's own
    messages, by ``mpi_network``, and why.
    """

    networks: tuple[WorkerNetwork, ...]
    decisions: tuple[Decision, ...]
    proposals: tuple[Variable, ...] = ()
    per_host: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    common: Mapping[str, str] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    transport: Transport | None = None
    mpi: tuple[MpiNetwork, str] = (MpiNetwork.CONTROL, "")


def mpi_network(networks: Sequence[WorkerNetwork], settings: Settings) -> tuple[MpiNetwork, str]:
    """Decide what ``auto`` means for MPI's own messages, and why.

    Beside GPUs NCCL carries the data, and MPI has its network for itself. Where no worker has one
    and all have RDMA, MPI's messages are the data, and each MPI's choice is right: Open MPI's pml
    ucx comes before ob1 where there are mlx5 devices (open-mpi/ompi#8549); set, it would end an
    Open MPI that is built without UCX.

    Returns:
        ``auto`` where the choice is left to the MPI.
    """
    facts = [network.facts for network in networks]
    gpus = [one.host for one in networks if one.facts and one.facts.gpus.count]
    states = {network.rdma for network in networks}
    if settings.mpi_network is not MpiNetwork.AUTO:
        return settings.mpi_network, ""
    if not networks:
        return MpiNetwork.AUTO, "no worker's GPUs and RDMA are known"
    if gpus:
        return MpiNetwork.CONTROL, f"{first_few(gpus)}: GPUs, so NCCL carries the data"
    if settings.data_network is DataNetworkUse.OFF or RdmaState.UNKNOWN not in states:
        if states != {RdmaState.KNOWN}:
            return MpiNetwork.CONTROL, "not every worker has RDMA"
        return MpiNetwork.AUTO, "no worker has a GPU, and all have RDMA: MPI carries the data"
    unknown = "RDMA" if all(facts) else "GPUs and RDMA"
    hosts = first_few(one.host for one in networks if one.rdma is RdmaState.UNKNOWN)
    return MpiNetwork.AUTO, f"{unknown} of {hosts} are not known"


def decide(
    workers: Sequence[WorkerNetwork],
    settings: Settings,
    taken: Mapping[str, str],
    *,
    values: Mapping[str, str] = _NOTHING,
    others: Sequence[Variable] = (),
    given: Given = _GIVEN,
    blocked: str = "",
    asked: bool = True,
) -> DataNetwork:
    """Decide the data network of a job from what every worker has.

    Args:
        workers: the networks of the hosts that passed the gate.
        settings: the user's settings.
        taken: names that the user has set for all ranks, each with where (``-x``, the launcher's
            environment). What a worker's own pod sets is in its facts.
        values: the values of those names where they are known here; they are checked and shown.
        others: what the MPI wants of the same variables, which comes first.
        given: the flag or variable that chose the data network, or left it out.
        blocked: where TCP does not pass between data addresses, as workers have tried.
        asked: whether hosts were queried at all.

    Returns:
        The same for the same facts, whatever the order of the mappings.
    """
    networks = with_gids(workers, settings, taken)
    if settings.data_network is DataNetworkUse.OFF:
        reason = f"{given}=off: nothing is set"
        nothing = Decision("data-network", "off", given.source, reason)
        return DataNetwork(networks, (nothing,))
    if not networks:
        reason = f"no worker was {'reached' if asked else 'asked'}: nothing is set"
        nothing = Decision("data-network", Transport.UNKNOWN.value, Source.DETECTED, reason)
        return DataNetwork(networks, (nothing,), transport=Transport.UNKNOWN)
    plugin = proposals.plugin_of(networks, taken, values)
    owned_by_mpi = {proposal.name for proposal in others}
    made = proposals.Proposals(networks, settings, plugin, owned_by_mpi, blocked)
    proposals.collect(made)
    decisions = [*made.decisions, *_workers(networks)]
    if settings.data_network is DataNetworkUse.REPORT:
        reason = f"{given}=report: nothing is set"
        decisions.append(Decision("data-network-use", "report", given.source, reason))
    return DataNetwork(
        networks,
        tuple(decisions),
        proposals=(*made.proposals, *others),
        findings=(*cluster_view.findings(networks, settings, taken, values), *made.findings),
        transport=made.transport,
    )


def with_gids(
    workers: Sequence[WorkerNetwork], settings: Settings, taken: Mapping[str, str]
) -> tuple[WorkerNetwork, ...]:
    """Add each worker's GID choice, unless it is there; ``taken`` as ``decide`` has it."""

    def chosen(one: WorkerNetwork) -> GidChoice:
        return nccl.choose(one.rails, {*taken, *set_in_pod(one.facts)}, settings.nccl_version)

    return tuple(
        replace(one, gids=chosen(one)) if one.gids is NOT_CHOSEN else one for one in workers
    )


def _workers(networks: Sequence[WorkerNetwork]) -> list[Decision]:
    """Gather the workers' own decisions: one line for each that is the same."""
    hosts = grouped((decision, one.host) for one in networks for decision in one.decisions)
    return [
        decision
        if len(names) == len(networks)
        else replace(decision, reason=f"{first_few(names)}: {decision.reason}")
        for decision, names in hosts.items()
    ]
