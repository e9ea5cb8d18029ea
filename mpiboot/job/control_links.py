"""Control traffic: its link, its IP version, its ports, and links that the user names. Pure.

What MPI is told of IP versions was measured on Debian's Open MPI 4.1.4 and 5.0.7, and on 5.0.8 to
5.0.11 of PyPI. Pods that have IPv4 alone need nothing of it and get nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from mpiboot.core.addresses import IPV4, IPV6, interface, network
from mpiboot.core.facts import Link, PodFacts, Worker
from mpiboot.core.model import Decision, MpiFamily, Source
from mpiboot.core.setting_types import MpiNetwork
from mpiboot.core.wording import first_few
from mpiboot.job.dialects import ALSO_DAEMON_LINK, parameter, version_number
from mpiboot.job.plan_builder import Observed, PlanBuilder
from mpiboot.network import worker_network
from mpiboot.network.records import RDMA, Transport, usable

_DAEMONS: Final = "mpirun's daemon ends there"
# Variables that name links in a list (for Open MPI networks too, for UCX also RDMA devices), and
# what follows where a pod has none of them: seen with Open MPI 4.1.4 and 5.0.7; of the rest, the
# words of their own errors.
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


def judge_named_links(builder: PlanBuilder) -> None:
    """Warn of pods that have none of the links a variable names; refuse what mpirun would."""
    observed = builder.observed
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
            filter(None, (_named(builder, item) for item in (name, *older))),
            ("", ""),
        )
        if by.partition("=")[0] in older and builder.set_env.get(name) != value:
            continue  # not carried over
        # Of a network in which nothing has an address Open MPI says nothing, and takes all links.
        if daemons and observed.own and "/" not in value and lacks_links(observed.own, value):
            there = _link_names(observed.own)
            message = (
                f"{by}: no such link in the launcher's pod (there are {there}), and mpirun ends"
            )
            builder.fail("interface-missing", message, "name a link that launcher and workers have")
            continue
        lacking = {
            worker.host.name: worker.facts
            for worker in observed.workers
            if worker.facts and lacks_links(worker.facts, value) and not (daemons and row.own_link)
        }
        if lacking:
            there = _link_names(next(iter(lacking.values())))
            message = f"{by}: {first_few(lacking)} has no such link (there are {there}): {then}"
            hint = f"remove {name}, or name a link that every worker has"
            builder.warn("settings-conflict", message, hint)


def links_gone(facts: PodFacts, value: str) -> list[str]:
    """List what a value names and a pod lacks: links, networks, devices; none if all is meant."""
    words = _link_words(value)
    if not facts.links or facts.fabric.unreadable or value.startswith("^") or "all" in words:
        return []
    names = {link.name for link in facts.links} | {item.name for item in facts.fabric.devices}
    return [
        word for word in words if word.partition(":")[0] not in names and not _inside(facts, word)
    ]


def lacks_links(facts: PodFacts, value: str) -> bool:
    """Tell whether a value names links, and a pod has none of them."""
    return bool(_link_words(value)) and links_gone(facts, value) == _link_words(value)


def _link_words(value: str) -> list[str]:
    return [word for word in map(str.strip, value.split(",")) if word]


def _named(builder: PlanBuilder, name: str) -> tuple[str, str] | None:
    """Find the user's own value, by the line or else by a variable or a file; and how it stands.

    What is in the file of a worker alone holds there alone.
    """
    flagged = builder.line.mca.get(parameter(name), "") if "_MCA_" in name else ""
    if flagged:
        return f"--mca {parameter(name)} {flagged}", flagged
    of_file = builder.of_files.get(name)
    there = of_file is not None and of_file not in builder.observed.parameters
    value = builder.line.export_values.get(name) or builder.environ.get(name, "") * (not there)
    return (f"{name}={value}", value) if value else None


def _inside(facts: PodFacts, word: str) -> bool:
    """Whether a word is a network in which a pod has an address."""
    where = network(word)
    found = (interface(text) for link in facts.links for text in link.addresses)
    return where is not None and any(own.ip in where for own in found if own)


def _link_names(facts: PodFacts) -> str:
    return first_few(link.name for link in facts.links)


# PRRTE before 3.0.12, as a distribution builds it with a PMIx without IPv6, reads past the end of
# a pod's list of aliases, which is empty without IPv4 (prte_check_host_is_local): SIGSEGV on every
# host. In 5.0.3 to 5.0.5 PMIx sees no IPv6 address at all (open-mpi/ompi#12771).
_IPV6_ALONE_SINCE: Final = (5, 0, 9)
_IP_VERSION: Final = "ip-version"


def settle_ip_version(builder: PlanBuilder) -> int:
    """Keep MPI to the IP version of the control addresses; fail where it can't use that.

    Returns:
        The version that MPI and its daemons speak: 4 or 6.
    """
    observed = builder.observed
    spoken = {IPV6 if ":" in worker.address else IPV4 for worker in observed.workers}
    if spoken != {IPV6}:
        mixed = _has_both(observed)
        if mixed and spoken == {IPV4}:
            _keep_to(builder, IPV4, f"the control addresses are IPv4, though {mixed} has IPv6 too")
        return IPV4
    alone = _without_ipv4(observed)
    ipv4_only = builder.row.ipv4_only
    if not alone:
        if ipv4_only or observed.mpi_ipv6 is False:
            what = "speaks IPv4 alone" if ipv4_only else "is built without IPv6"
            reason = f"this MPI {what}, and every pod has an IPv4 address too"
            builder.decide(_IP_VERSION, "IPv4", Source.DETECTED, reason)
            return IPV4
        _keep_to(builder, IPV6, "the control addresses are IPv6")
    elif observed.mpi_ipv6 is False:
        message = (
            f"{observed.mpi.banner or builder.row.title} is built without IPv6 (ompi_info says so)"
        )
        builder.fail(_IP_VERSION, f"{message}, and {_some_pods(alone)} no IPv4 address")
        return IPV6
    elif ipv4_only:
        message = f"the daemons of {builder.row.title} speak IPv4 alone"
        hint = "give the pods IPv4 addresses too (dual stack), or take Open MPI"
        builder.fail(_IP_VERSION, f"{message}, and {_some_pods(alone)} no IPv4 address", hint)
        return IPV6
    else:
        builder.decide(_IP_VERSION, "IPv6", Source.DETECTED, f"{_some_pods(alone)} no IPv4 address")
    builder.add(*builder.row.ipv6)
    of_five = builder.row.family is MpiFamily.OPENMPI5
    if alone and of_five and () < version_number(observed.mpi.version) < _IPV6_ALONE_SINCE:
        message = f"Open MPI {observed.mpi.version} may crash in pods without an IPv4 address"
        hint = "use 5.0.9 or newer, or give the pods IPv4 addresses too (dual stack)"
        builder.warn(_IP_VERSION, message, hint)
    return IPV6


def _keep_to(builder: PlanBuilder, version: int, reason: str) -> None:
    builder.decide(_IP_VERSION, f"IPv{version}", Source.DETECTED, reason)
    other = IPV6 if version == IPV4 else IPV4
    message = f"keeps to IPv{version}; it would try addresses of both"
    if builder.row.not_version_var:
        value = str(other)
        builder.variable(
            builder.row.not_version_var, value, f"MPI's TCP {message}", Source.DETECTED
        )
    for name in (item for item in builder.row.not_daemons_vars if f"_ipv{other}_" in item):
        builder.variable(name, "1", f"the daemons' TCP {message}", Source.DETECTED)


def _ip_versions(links: Iterable[Link]) -> set[int]:
    return {item.version for link in links for item in usable(link)}


def _has_both(observed: Observed) -> str:
    """Name the first pod whose control link has addresses of both versions."""
    pods = [(worker.host.name, worker.address, worker.facts) for worker in observed.workers]
    for name, address, facts in pods:
        link = worker_network.link_of(address, facts.links) if facts else None
        if link and len(_ip_versions([link])) > 1:
            return name
    addresses = worker_network.launcher_addresses(observed.workers)
    links = [worker_network.link_of(item, observed.links) for item in addresses]
    return "the launcher" if any(link and len(_ip_versions([link])) > 1 for link in links) else ""


def _without_ipv4(observed: Observed) -> list[str]:
    """List the pods without an IPv4 address; those without facts count as such."""
    found = [] if IPV4 in _ip_versions(observed.links) else ["the launcher"]
    found += [
        worker.host.name
        for worker in observed.workers
        if worker.facts is None or IPV4 not in _ip_versions(worker.facts.links)
    ]
    return found


def _some_pods(names: Sequence[str]) -> str:
    more = f" and {len(names) - 1} more have" if len(names) > 1 else " has"
    return f"{names[0]}{more}"


def pin_control(builder: PlanBuilder) -> None:
    """Pin daemons and MPI TCP to the control link, or carry over what the user pinned."""
    observed = builder.observed
    decision, why_not = worker_network.control_link(
        builder.settings.control_ifname,
        observed.links,
        observed.workers,
        given=builder.given["control_ifname"],
    )
    if not observed.workers and len(observed.local) == len(observed.hostfile.hosts):
        why_not = "every host is this pod"
    if decision and ":" in decision.value:
        # Open MPI reads networks of IPv4 alone there (inet_pton with AF_INET), and ends otherwise.
        link = worker_network.name_in(decision.value, observed.links, observed.workers)
        why_not = f"{builder.row.title} takes no IPv6 network, and no one link name fits all pods"
        if not link and decision.source is not Source.DETECTED:
            message = f"{decision.reason}={decision.value}: {why_not}"
            builder.fail("settings-conflict", message, "name a link")
        reason = f"the link of {decision.value}, as {builder.row.title} takes no IPv6 network"
        found = Decision("control-link", link, decision.source, f"{decision.reason}: {reason}")
        decision = found if link else None
    if decision:
        builder.decisions.append(decision)
    else:
        builder.decide("control-link", "", Source.DETECTED, f"not pinned: {why_not}")
    if builder.settings.control_ifname:
        _refuse_missing_link(builder)
    _refuse_to_choose(builder)
    own_link = builder.row.own_link
    _pin_daemons(builder, _own_link(observed, decision) if own_link else decision)
    judge_named_links(builder)
    on_control = builder.settings.mpi_network is MpiNetwork.CONTROL
    if on_control:
        builder.add(*builder.row.on_control_link)
    if own_link and (not on_control or (decision and network(decision.value))):
        return  # no name fits all pods: a worker that tells its links has its own by now
    several = [item.host.name for item in observed.workers if ambiguous(item)]
    for name in builder.row.mpi_link_vars:
        if name in OF_LIBFABRIC and several:
            reason = f"not set: the control link of {first_few(several)} has several addresses"
            builder.decide(name, "", Source.DETECTED, reason)
        elif decision and not _excluded(builder, name, (name,)):
            builder.variable(name, decision.value, "MPI's TCP on the control link", decision.source)


# Of a link with several addresses libfabric may take one that no other pod reaches; without these
# it takes the one that leads there.
OF_LIBFABRIC: Final = ("FI_TCP_IFACE", "FI_SOCKETS_IFACE")


def ambiguous(worker: Worker) -> bool:
    """Tell whether a worker's control link has several addresses of its control address's kind."""
    link = worker_network.link_of(worker.address, worker.facts.links) if worker.facts else None
    version = IPV6 if ":" in worker.address else IPV4
    return link is not None and sum(item.version == version for item in usable(link)) > 1


def _refuse_missing_link(builder: PlanBuilder) -> None:
    """Refuse the user's link where a pod lacks it: mpirun would name neither pod nor reason."""
    wanted = frozenset(builder.settings.control_ifname.split(","))  # a list is 4.1's own form
    if any(map(network, wanted)):
        return
    links = {"the launcher's pod": builder.observed.links}
    if not builder.row.own_link:  # else each worker's own is taken there
        links |= {
            item.host.name: item.facts.links for item in builder.observed.workers if item.facts
        }
    lacking = [
        pod
        for pod, there in links.items()
        if there and wanted.isdisjoint(link.name for link in there)
    ]
    if lacking:
        named = f"{builder.given['control_ifname']}={builder.settings.control_ifname}"
        message = f"{named}: no such link in {first_few(lacking)}"
        builder.fail("interface-missing", message)


def _refuse_to_choose(builder: PlanBuilder) -> None:
    """Refuse to move MPI's own messages where this MPI chooses what carries them."""
    row, given = builder.row, builder.given["mpi_network"]
    if row.own_transports and builder.settings.mpi_network is MpiNetwork.DATA:
        message = f"{given}=data has no meaning for {row.title}: {row.own_transports}"
        hint = f"remove {given}"
        builder.fail("settings-conflict", message, hint)


def pin_ports(builder: PlanBuilder, version: int) -> None:
    """Keep daemons and MPI TCP to the range of ports that the user named, if any.

    ``version`` is the IP version that they speak.
    """
    text = builder.settings.port_range
    if not text:
        return
    row, given = builder.row, builder.given["port_range"]
    first, last = map(int, text.split("-"))
    count = last - first + 1
    # A part for the daemons alone: Open MPI 5's first one listens on all ports that it is given.
    share = max(2, count // 4)
    most = max((host.slots for host in builder.observed.hostfile.hosts), default=0)
    if count - share < most:
        message = (
            f"{given} has {count} ports, of which daemons need {share}, and a host has {most} slots"
        )
        builder.fail("settings-conflict", message, "name a wider range")
        return
    # For both versions, the sockets of IPv4 would take the ports that those of IPv6 wait for.
    for name in (item for item in row.daemon_ports_vars if f"_ipv{version}_" in item):
        value = f"{first}-{first + share - 1}"
        builder.variable(name, value, f"the daemons' part of {given}", given.source)
    ranges = (
        (row.daemon_range_vars, first, first + share - 1, "the daemons'"),
        (row.range_vars, first + share, last, "MPI's"),
    )
    for names, low, high, whose in ranges:
        # One name is enough, and beside the user's own another would be one of two.
        for name in [name for name in names if builder.environ.get(name)] or names[:1]:
            builder.variable(name, f"{low}:{high}", f"{whose} part of {given}", given.source)
    for name in row.first_port_vars:
        builder.variable(name, str(first + share), f"MPI's part of {given}", given.source)
    for name in row.port_count_vars:
        builder.variable(name, str(count - share), f"MPI's part of {given}", given.source)


def _own_link(observed: Observed, decision: Decision | None) -> Decision | None:
    """Name the launcher's link whose address the daemons get; none of its names must resolve."""
    if decision and network(decision.value) is None:
        return decision
    names = set()
    for address in worker_network.launcher_addresses(observed.workers):
        link = worker_network.link_of(address, observed.links)
        names.add(link.name if link else "")
    if decision and decision.source is not Source.DETECTED:
        names = {worker_network.name_in(decision.value, observed.links, ())}
    (name,) = names if len(names) == 1 else {""}
    reason = "the launcher's link to all workers: daemons connect to its address"
    return Decision("daemon-link", name, Source.DETECTED, reason) if name else None


def tcp_optional(builder: PlanBuilder, transport: Transport | None) -> str:
    """Return why MPI may not need TCP between the workers' control addresses; empty: it does.

    ``transport`` carries the job's data.
    """
    settings = builder.settings
    if settings.mpi_network is MpiNetwork.DATA:
        return "MPI's messages use the data network"
    if transport in RDMA:
        return f"the data network is {transport.value}"
    if builder.line.unknown:
        return f"the mpirun line is not read from {builder.line.unknown} on"
    if builder.line.moves_hosts or builder.line.may_hide_hosts:
        return "mpirun alone decides which hosts it uses"
    row = builder.row
    control = {item.value for item in builder.decisions if item.name == "control-link"}
    ports = () if settings.port_range else (*row.first_port_vars, *row.range_vars)
    excludes = [name.replace("_include", "_exclude") for name in row.mpi_link_vars]
    for name in (*row.mpi_link_vars, *excludes, *ports):
        value = builder.line.mca.get(parameter(name)) or builder.environ.get(name)
        if value and value not in control:
            return f"MPI's messages go as {name}={value} says"
    return ""


def _unfit(builder: PlanBuilder, name: str) -> str:
    """Return why another MPI's daemon link is not carried over, and warn of it; else empty."""
    row, value = builder.row, builder.environ[name]
    why = f"{row.title} takes one link there" if row.one_link and "," in value else ""
    if builder.observed.own and "/" not in value and lacks_links(builder.observed.own, value):
        why = "no such link in the launcher's pod"
    if why:
        builder.warn("settings-conflict", f"{name}={value} is not carried over: {why}")
    return why


def _pin_daemons(builder: PlanBuilder, decision: Decision | None) -> None:
    """Settle the daemons' link; a list that mpiboot's setting has is a failure."""
    row = builder.row
    names = (row.daemon_link_var, *ALSO_DAEMON_LINK)
    flag = next((key for key in map(parameter, names) if key in builder.line.mca), "")
    carried = next((name for name in names if builder.environ.get(name)), "")
    if carried not in ("", row.daemon_link_var) and _unfit(builder, carried):
        carried = ""
    if flag:
        name, value = f"--mca {flag}", builder.line.mca[flag]
        builder.decide(row.daemon_link_var, value, Source.FLAG, "given on the mpirun line")
    elif carried and carried != row.daemon_link_var:
        name, value = carried, builder.environ[carried]
        reason = f"carried over from {carried}, which {row.title} does not read"
        builder.force(row.daemon_link_var, value, reason, builder.set_by(carried)[0])
    else:
        name, value = row.daemon_link_var, builder.environ.get(row.daemon_link_var, "")
        if decision and not _excluded(builder, name, names):
            builder.variable(name, decision.value, decision.reason, decision.source)
            value = value or decision.value
    if row.one_link and "," in value:
        note = builder.warn if flag or carried else builder.fail
        note(
            "settings-conflict",
            f"{name}={value} is a list, and {row.title} takes one name or one network "
            "there (some releases crash)",
            "name one link or one CIDR that launcher and workers all have",
        )


def _excluded(builder: PlanBuilder, name: str, includes: Iterable[str]) -> bool:
    """Return whether the user excludes links: mpirun ends if some are included as well."""
    excludes = [item.replace("_include", "_exclude") for item in includes if "_include" in item]
    for item in excludes:
        if builder.environ.get(item) or parameter(item) in builder.line.mca:
            flagged = parameter(item) in builder.line.mca
            source, by = (Source.FLAG, "on the mpirun line") if flagged else builder.set_by(item)
            message = f"not set: {item} is ({by}), and both can't be"
            builder.decide(name, "", source, message)
            return True
    return False
