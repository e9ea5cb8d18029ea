"""Control traffic kept to one link, and to one range of ports: daemons and MPI's TCP. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from mpiboot.core.addresses import network
from mpiboot.core.model import Decision, Source
from mpiboot.core.setting_types import MpiNetwork
from mpiboot.core.settings import Resolved, Settings
from mpiboot.core.wording import first_few
from mpiboot.job import named_links
from mpiboot.job.dialect import parameter
from mpiboot.job.dialects import ALSO_DAEMON_LINK
from mpiboot.job.plan_builder import Observed, PlanBuilder
from mpiboot.network import control
from mpiboot.network.records import RDMA, Transport


def pin_control(builder: PlanBuilder, observed: Observed, resolved: Resolved) -> None:
    """Pin daemons and MPI TCP to the control link, or carry over what the user pinned."""
    decision, why_not = control.choose(
        resolved.settings.control_ifname,
        observed.links,
        observed.workers,
        given=resolved.given["control_ifname"],
    )
    if decision and ":" in decision.value:
        # Open MPI reads networks of IPv4 alone there (inet_pton with AF_INET), and ends otherwise.
        link = control.name_in(decision.value, observed.links, observed.workers)
        why_not = f"{builder.row.title} takes no IPv6 network, and no one link name fits all pods"
        if not link and decision.source is not Source.DETECTED:
            said = f"{decision.because}={decision.value}: {why_not}"
            builder.fail("settings-conflict", said, "name a link")
        because = f"the link of {decision.value}, as {builder.row.title} takes no IPv6 network"
        found = Decision("control-link", link, decision.source, f"{decision.because}: {because}")
        decision = found if link else None
    if decision:
        builder.decisions.append(decision)
    else:
        builder.decide("control-link", "", Source.DETECTED, f"not pinned: {why_not}")
    if resolved.settings.control_ifname:
        _refuse_missing_link(builder, observed, resolved)
    _refuse_to_choose(builder, resolved)
    own_link = builder.row.own_link
    _pin_daemons(builder, observed, _own_link(observed, decision) if own_link else decision)
    named_links.judge(builder, observed)
    on_control = resolved.settings.mpi_network is MpiNetwork.CONTROL
    for item in builder.row.on_control_link if on_control else ():
        builder.variable(item.name, item.value, item.because, Source.DEFAULT)
    if own_link and (not on_control or (decision and network(decision.value))):
        return  # no name fits all pods: a worker that tells its links has its own by now
    for name in builder.row.mpi_link_vars:
        if decision and not _excluded(builder, name, (name,)):
            builder.variable(name, decision.value, "MPI's TCP on the control link", decision.source)


def _refuse_missing_link(builder: PlanBuilder, observed: Observed, resolved: Resolved) -> None:
    """Refuse the user's link where a pod has none of that name: mpirun says neither who nor why."""
    wanted = frozenset(resolved.settings.control_ifname.split(","))  # a list is 4.1's own form
    if any(map(network, wanted)):
        return
    links = {"the launcher's pod": observed.links}
    if not builder.row.own_link:  # else each worker's own is taken there
        links |= {item.host.name: item.facts.links for item in observed.workers if item.facts}
    lacking = [
        pod
        for pod, there in links.items()
        if there and wanted.isdisjoint(link.name for link in there)
    ]
    if lacking:
        named = f"{resolved.given['control_ifname']}={resolved.settings.control_ifname}"
        said = f"{named}: no such link in {first_few(lacking)}"
        builder.fail("interface-missing", said)


def _refuse_to_choose(builder: PlanBuilder, resolved: Resolved) -> None:
    """Refuse to move MPI's own messages where this MPI chooses what carries them."""
    row, given = builder.row, resolved.given["mpi_network"]
    if row.own_transports and resolved.settings.mpi_network is MpiNetwork.DATA:
        said = f"{given}=data has no meaning for {row.title}: {row.own_transports}"
        hint = f"leave {given} out"
        builder.fail("settings-conflict", said, hint)


def pin_ports(builder: PlanBuilder, observed: Observed, resolved: Resolved, version: int) -> None:
    """Keep daemons and MPI TCP to the range of ports that the user named, if any.

    ``version`` is the IP version that they speak.
    """
    text = resolved.settings.port_range
    if not text:
        return
    row, given = builder.row, resolved.given["port_range"]
    first, last = map(int, text.split("-"))
    count = last - first + 1
    # A part for the daemons alone: Open MPI 5's first one listens on all ports that it is given.
    share = max(2, count // 4)
    most = max((host.slots for host in observed.hostfile.hosts), default=0)
    if count - share < most:
        said = (
            f"{given} has {count} ports, of which daemons need {share}, and a host has {most} slots"
        )
        builder.fail("settings-conflict", said, "name a wider range")
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
    for address in control.launcher_addresses(observed.workers):
        link = control.link_of(address, observed.links)
        names.add(link.name if link else "")
    if decision and decision.source is not Source.DETECTED:
        names = {control.name_in(decision.value, observed.links, ())}
    (name,) = names if len(names) == 1 else {""}
    because = "the launcher's link to all workers: daemons connect to its address"
    return Decision("daemon-link", name, Source.DETECTED, because) if name else None


def tcp_optional(builder: PlanBuilder, settings: Settings, transport: Transport | None) -> str:
    """Tell why MPI may do without TCP between the workers' control addresses; empty: it can't.

    ``transport`` carries the job's data.
    """
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


def _unfit(builder: PlanBuilder, observed: Observed, name: str) -> str:
    """Say why another MPI's daemon link is not carried over; this one ignores that variable."""
    row, value = builder.row, builder.environ[name]
    why = f"{row.title} takes one link there" if row.one_link and "," in value else ""
    if observed.own and "/" not in value and named_links.lacks(observed.own, value):
        why = "no such link in the launcher's pod"
    if why:
        builder.warn("settings-conflict", f"{name}={value} is not carried over: {why}")
    return why


def _pin_daemons(builder: PlanBuilder, observed: Observed, decision: Decision | None) -> None:
    """Settle the daemons' link; a list that mpiboot's setting has is a failure."""
    row = builder.row
    names = (row.daemon_link_var, *ALSO_DAEMON_LINK)
    flag = next((key for key in map(parameter, names) if key in builder.line.mca), "")
    carried = next((name for name in names if builder.environ.get(name)), "")
    if carried not in ("", row.daemon_link_var) and _unfit(builder, observed, carried):
        carried = ""
    if flag:
        name, value = f"--mca {flag}", builder.line.mca[flag]
        builder.decide(row.daemon_link_var, value, Source.FLAG, "given on the mpirun line")
    elif carried and carried != row.daemon_link_var:
        name, value = carried, builder.environ[carried]
        because = f"carried over from {carried}, which {row.title} does not read"
        builder.force(row.daemon_link_var, value, because, builder.set_by(carried)[0])
    else:
        name, value = row.daemon_link_var, builder.environ.get(row.daemon_link_var, "")
        if decision and not _excluded(builder, name, names):
            builder.variable(name, decision.value, decision.because, decision.source)
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
    """Tell whether the user excludes links instead: including some as well ends mpirun."""
    excludes = [item.replace("_include", "_exclude") for item in includes if "_include" in item]
    for item in excludes:
        if builder.environ.get(item) or parameter(item) in builder.line.mca:
            flagged = parameter(item) in builder.line.mca
            source, by = (Source.FLAG, "on the mpirun line") if flagged else builder.set_by(item)
            said = f"not set: {item} is ({by}), and both can't be"
            builder.decide(name, "", source, said)
            return True
    return False
