"""Links and devices that the user names and a pod does not have: said before the start. Pure."""

from __future__ import annotations

from typing import Final

from mpiboot.core.addresses import interface, network
from mpiboot.core.model import PodFacts
from mpiboot.core.wording import first_few
from mpiboot.job.dialect import parameter
from mpiboot.job.dialects import ALSO_DAEMON_LINK
from mpiboot.job.plan_builder import Observed, PlanBuilder

# Each names links whole, in a list; Open MPI takes networks, UCX names of RDMA devices too. What
# follows where a pod has none of them: seen with Open MPI 4.1.4 and 5.0.7; of the rest, the words
# of their own errors.
_DAEMONS: Final = "mpirun's daemon ends there"
NAME_LINKS: Final = {
    "OMPI_MCA_btl_tcp_if_include": "ranks there have no TCP to other hosts",
    "OMPI_MCA_oob_tcp_if_include": _DAEMONS,
    "PRTE_MCA_prte_if_include": _DAEMONS,
    "HYDRA_IFACE": "mpirun has no address for its proxies",
    "I_MPI_HYDRA_IFACE": "mpirun has no address for its proxies",
    "GLOO_SOCKET_IFNAME": "PyTorch's Gloo does not start there",
    "TP_SOCKET_IFNAME": "PyTorch's TensorPipe does not start there",
    "UCX_NET_DEVICES": "UCX has no network there",
    "FI_TCP_IFACE": "libfabric's TCP takes another link without a word",
    "FI_SOCKETS_IFACE": "libfabric's sockets take another link without a word",
}
# Who reads a variable: one MPI alone, or the ranks of any.
_OF_ONE_MPI: Final = ("OMPI_", "PRTE_", "HYDRA_", "I_MPI_")


def judge(builder: PlanBuilder, observed: Observed) -> None:
    """Name the pods that have none of the links of a variable; refuse what mpirun itself would."""
    row = builder.row
    own = (row.daemon_link_var, *row.mpi_link_vars)
    for name, then in NAME_LINKS.items():
        if name.startswith(_OF_ONE_MPI) and name not in own:
            continue
        daemons = name == row.daemon_link_var
        # mpiboot hands on what another version reads.
        carried = daemons and "_MCA_" in name
        older = [item for item in ALSO_DAEMON_LINK if carried and item != name]
        by, value = next(
            filter(None, (_given(builder, observed, item) for item in (name, *older))), ("", "")
        )
        if by.partition("=")[0] in older and builder.set_env.get(name) != value:
            continue  # not carried over
        # Of a network in which nothing has an address Open MPI says nothing, and takes all links.
        if daemons and observed.own and "/" not in value and lacks(observed.own, value):
            there = _links(observed.own)
            said = f"{by}: no such link in the launcher's pod (there are {there}), and mpirun ends"
            builder.fail("interface-missing", said, "name a link that launcher and workers have")
            continue
        lacking = {
            worker.host.name: worker.facts
            for worker in observed.workers
            if worker.facts and lacks(worker.facts, value) and not (daemons and row.own_link)
        }
        if lacking:
            there = _links(next(iter(lacking.values())))
            said = f"{by}: {first_few(lacking)} has no such link (there are {there}): {then}"
            hint = f"take {name} out, or name a link that every worker has"
            builder.warn("settings-conflict", said, hint)


def gone(facts: PodFacts, value: str) -> list[str]:
    """List what a value names and a pod lacks: links, networks, devices; none if all is meant."""
    words = _words(value)
    if not facts.links or facts.fabric.unreadable or value.startswith("^") or "all" in words:
        return []
    names = {link.name for link in facts.links} | {item.name for item in facts.fabric.devices}
    return [
        word for word in words if word.partition(":")[0] not in names and not _inside(facts, word)
    ]


def lacks(facts: PodFacts, value: str) -> bool:
    """Tell whether a value names links, and a pod has none of them."""
    return bool(_words(value)) and gone(facts, value) == _words(value)


def _words(value: str) -> list[str]:
    return [word for word in map(str.strip, value.split(",")) if word]


def _given(builder: PlanBuilder, observed: Observed, name: str) -> tuple[str, str] | None:
    """Find the user's own value, by the line or else by a variable or a file; and how it stands.

    What is in the file of a worker alone holds there alone.
    """
    flagged = builder.line.mca.get(parameter(name), "") if "_MCA_" in name else ""
    if flagged:
        return f"--mca {parameter(name)} {flagged}", flagged
    of_file = builder.of_files.get(name)
    there = of_file is not None and of_file not in observed.parameters
    value = builder.line.export_values.get(name) or builder.environ.get(name, "") * (not there)
    return (f"{name}={value}", value) if value else None


def _inside(facts: PodFacts, word: str) -> bool:
    """Whether a word is a network in which a pod has an address."""
    where = network(word)
    found = (interface(text) for link in facts.links for text in link.addresses)
    return where is not None and any(own.ip in where for own in found if own)


def _links(facts: PodFacts) -> str:
    return first_few(link.name for link in facts.links)
