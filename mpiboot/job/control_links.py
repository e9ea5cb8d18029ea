"""Control traffic: link, IP version, ports, links that the user names, the launch agent. Pure.

What MPI needs for each IP version was measured on Debian's Open MPI 4.1.4 and 5.0.7, and on 5.0.8
to 5.0.11 of PyPI. Pods that have IPv4 alone need nothing of it and get nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Final

from mpiboot.core.addresses import IPV4, IPV6, inside, network
from mpiboot.core.checks import failed
from mpiboot.core.facts import Link, PodFacts, Variable, Worker
from mpiboot.core.model import Decision, Level, MpiNetwork, Source
from mpiboot.core.wording import first_few
from mpiboot.job.mpirun_line import UserLine
from mpiboot.job.mpis import IMPLEMENTATIONS
from mpiboot.job.parameter_files import parameter
from mpiboot.job.plan_input import (
    Drop,
    Forced,
    Implementation,
    Item,
    Observed,
    PlanInput,
    Removal,
    users_choice,
    warning,
)
from mpiboot.network import worker_network
from mpiboot.network.records import RDMA, Transport, usable
from mpiboot.ssh import config as sshconfig

# Variables that name links in a list (for Open MPI networks too, for UCX also RDMA devices).
NAME_LINKS: Final = (
    *("OMPI_MCA_btl_tcp_if_include", "OMPI_MCA_oob_tcp_if_include", "PRTE_MCA_prte_if_include"),
    *("HYDRA_IFACE", "I_MPI_HYDRA_IFACE", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME"),
    *("UCX_NET_DEVICES", "FI_TCP_IFACE", "FI_SOCKETS_IFACE"),
)
# Who reads a variable: one MPI alone, or the ranks of any.
_OF_ONE_MPI: Final = ("OMPI_", "PRTE_", "HYDRA_", "I_MPI_")


def judge_named_links(inp: PlanInput) -> Iterator[Item]:
    """Warn of pods that have none of the links that are named; refuse what mpirun would.

    It would name neither pod nor reason. Its daemons end where the launcher has no such link; of a
    network in which nothing has an address Open MPI takes all links, silently.
    """
    observed, mpi, wanted = inp.observed, inp.implementation, inp.settings.control_ifname
    launcher = {"the launcher's pod": observed.own} if observed.own else {}
    workers = {item.host.name: item.facts for item in observed.workers if item.facts}
    with_daemons = launcher if mpi.local_link else launcher | workers
    if not any(map(network, wanted.split(","))) and (lacking := _lacking(with_daemons, wanted)):
        yield failed("interface-missing", f"{inp.given['control_ifname']}={wanted}: {lacking}")
    for name in NAME_LINKS:
        of_daemons = name == mpi.daemon_link_vars[0]
        if name.startswith(_OF_ONE_MPI) and not of_daemons and name not in mpi.mpi_link_vars:
            continue
        by, value = _of_user(inp, mpi.daemon_link_vars if of_daemons else (name,))
        lacking = _lacking(with_daemons if of_daemons else workers, value)
        fails = of_daemons and "/" not in value and "iface" not in inp.line.given
        ends = fails and _lacking(launcher, value)
        if lacking:
            message = f"{by}={value}: " + (f"{ends}, and mpirun ends" if ends else lacking)
            hint = f"remove {by}, or name a link that launcher and workers have"
            level = Level.FAIL if ends else Level.WARN
            yield failed("interface-missing", message, hint=hint, level=level)


def _lacking(pods: Mapping[str, PodFacts], value: str) -> str:
    """Name the pods that have none of the links of a value, and what they have; empty: none."""
    lacking = [
        pod for pod, facts in pods.items() if [] != links_gone(facts, value) == _words(value)
    ]
    there = first_few(link_names(pods[lacking[0]])) if lacking else ""
    return f"no such link in {first_few(lacking)} (there are {there})" if lacking else ""


def links_gone(facts: PodFacts, value: str) -> list[str]:
    """List what a value names and a pod lacks: links, networks, devices; none if all is meant."""
    words = _words(value)
    seen = facts.links and not facts.fabric.refused and all(x.ports for x in facts.fabric.devices)
    if not seen or "all" in words or {*value} & {*"^*?["}:
        return []
    addresses = [text for link in facts.links for text in link.addresses]
    networks = {word: where for word in words if (where := network(word))}
    there = {word for word, where in networks.items() if any(inside(x, where) for x in addresses)}
    return [word for word in words if word not in there.union(link_names(facts))]


def _words(value: str) -> list[str]:
    return [word for word in map(str.strip, value.split(",")) if word]


def _of_user(inp: PlanInput, names: Iterable[str]) -> tuple[str, str]:
    """Find the first of some names that the user has set, and its value.

    What is in the file of a worker alone holds there alone.
    """
    there = {name for name, item in inp.of_files.items() if item not in inp.observed.parameters}
    found = {name: inp.owned(name) for name in names if name not in there}
    return next(((name, own.value) for name, own in found.items() if own and own.value), ("", ""))


def link_names(facts: PodFacts) -> list[str]:
    """Name a pod's links, and its RDMA ports as UCX does."""
    ports = (f"{item.name}:{port.number}" for item in facts.fabric.devices for port in item.ports)
    return [*(link.name for link in facts.links), *ports]


_IP_VERSION: Final = "ip-version"
_CONTROL: Final = "control-link"


def control(inp: PlanInput) -> tuple[Decision, tuple[Item, ...]]:
    """Decide the control network: its link, IP version and ports.

    Returns:
        The link, whose value is empty where no one value names it in all pods; and what daemons and
        MPI get, with what is wrong.
    """
    mpi, link, (version, shown) = inp.implementation, _link(inp), _ip_version(inp)
    of_daemons = _launchers_link(inp.observed, link) if mpi.local_link else link
    items = [*judge_named_links(inp), *_pin_daemons(inp, of_daemons)]
    # Workers with facts have theirs from the data network, where links are known by name alone.
    if not mpi.local_link or inp.settings.mpi_network is MpiNetwork.CONTROL:
        items += mpi.on_control_link
        items += () if mpi.local_link and network(link.value) else _pin_messages(inp, link)
    return link, (*items, *shown, *(mpi.ipv6 if version == IPV6 else ()), *_ports(inp, version))


def _launchers_link(observed: Observed, link: Decision) -> Decision:
    """Name the launcher's link whose address the daemons get; none of its names must resolve."""
    if link.value and network(link.value) is None:
        return link
    addresses = worker_network.launcher_addresses(observed.workers)
    links = (worker_network.link_of(address, observed.links) for address in addresses)
    names = {found.name if found else "" for found in links}
    if link.value and link.source is not Source.DETECTED:
        names = {worker_network.name_in(link.value, observed.links, ())}
    (name,) = names if len(names) == 1 else {""}
    reason = "the launcher's link to all workers: daemons connect to its address"
    return Decision("daemon-link", name, Source.DETECTED, reason)


def _keep_to(mpi: Implementation, version: int, reason: str) -> Iterator[Item]:
    """Keep MPI and its daemons to one IP version, where pods have both."""
    yield Decision(_IP_VERSION, f"IPv{version}", Source.DETECTED, reason)
    reason = f"TCP keeps to IPv{version}; it would try addresses of both"
    for name, value in mpi.not_version:
        other = IPV4 + IPV6 - version
        yield Variable(name.format(other=other), value.format(other=other), reason, Source.DETECTED)


def _pods(observed: Observed) -> Sequence[tuple[str, str, Sequence[Link]]]:
    """List each pod's control address and its links; none where they are unknown."""
    workers = [
        (item.host.name, item.address, item.facts.links if item.facts else ())
        for item in observed.workers
    ]
    addresses = worker_network.launcher_addresses(observed.workers)
    return workers + [("the launcher", address, observed.links) for address in addresses or ("",)]


def _ip_version(inp: PlanInput) -> tuple[int, Iterable[Item]]:
    """Decide the IP version (4 or 6) by the control addresses; fail where MPI can't use them."""
    observed, mpi, pods = inp.observed, inp.implementation, _pods(inp.observed)
    spoken = {IPV6 if ":" in item.address else IPV4 for item in observed.workers}
    if spoken != {IPV6}:
        links = ((name, worker_network.link_of(address, there)) for name, address, there in pods)
        both = next((pod for pod, link in links if link and len(_versions([link])) > 1), "")
        if not both or len(spoken) > 1:
            return IPV4, ()
        return IPV4, _keep_to(
            mpi, IPV4, f"the control addresses are IPv4, though {both} has IPv6 too"
        )
    # A pod without facts counts as one without.
    lacking = dict.fromkeys(name for name, _, there in pods if IPV4 not in _versions(there))
    alone = f"pods without a known IPv4 address: {first_few(lacking)}"
    if mpi.ipv4_only or observed.mpi_ipv6 is False:
        if lacking:
            message = f"{mpi.title} {observed.mpi.version} uses IPv4 alone, and {alone}"
            level = Level.FAIL if all(there for *_, there in pods) else Level.WARN
            return IPV6, (failed(_IP_VERSION, message, level=level),)
        reason = "this MPI uses IPv4 alone, and every pod has an IPv4 address too"
        return IPV4, (Decision(_IP_VERSION, "IPv4", Source.DETECTED, reason),)
    if not lacking:
        return IPV6, _keep_to(mpi, IPV6, "the control addresses are IPv6")
    shown = Decision(_IP_VERSION, "IPv6", Source.DETECTED, alone)
    return IPV6, (shown, *mpi.without_ipv4(observed.mpi.version))


def _versions(links: Iterable[Link]) -> set[int]:
    return {item.version for link in links for item in usable(link)}


def _link(inp: PlanInput) -> Decision:
    """Decide the control link; its value is empty where no one fits all pods."""
    observed, title = inp.observed, inp.implementation.title
    found, why_not = worker_network.control_link(
        inp.settings.control_ifname,
        observed.links,
        observed.workers,
        given=inp.given["control_ifname"],
    )
    if found and ":" in found.value:
        # Open MPI reads networks of IPv4 alone there (inet_pton with AF_INET), and ends otherwise.
        link = worker_network.name_in(found.value, observed.links, observed.workers)
        why_not = f"{title} takes no IPv6 network, and no one link name fits all pods"
        reason = f"{found.reason}: the link of {found.value}, as {title} takes no IPv6 network"
        found = replace(found, value=link, reason=reason) if link else None
    return found or Decision(_CONTROL, "", Source.DETECTED, f"not pinned: {why_not}")


def _pin_messages(inp: PlanInput, link: Decision) -> Iterator[Item]:
    """Keep MPI's own messages on the control link."""
    several = [item.host.name for item in inp.observed.workers if ambiguous(item)]
    for name in inp.implementation.mpi_link_vars:
        if name in OF_LIBFABRIC and several:
            reason = f"not set: the control link of {first_few(several)} has several addresses"
            yield Decision(name, "", Source.DETECTED, reason)
        elif link.value:
            yield Variable(name, link.value, "MPI's TCP on the control link", link.source)


# Of a link with several addresses libfabric may take one that no other pod reaches; without these
# it takes the one that leads there.
OF_LIBFABRIC: Final = ("FI_TCP_IFACE", "FI_SOCKETS_IFACE")


def ambiguous(worker: Worker) -> bool:
    """Whether a worker's control link has several addresses of its control address's kind."""
    link = worker_network.link_of(worker.address, worker.facts.links) if worker.facts else None
    version = IPV6 if ":" in worker.address else IPV4
    return link is not None and sum(item.version == version for item in usable(link)) > 1


def _ports(inp: PlanInput, version: int) -> Iterator[Item]:
    """Divide the range of ports that the user named, if any, between daemons and MPI's TCP."""
    text, given = inp.settings.port_range, inp.given["port_range"]
    if not text:
        return
    first, last = map(int, text.split("-"))
    count = last - first + 1
    # A part for the daemons alone: Open MPI 5's first one listens on all ports that it is given.
    share = max(2, count // 4)
    slots = max((host.slots for host in inp.observed.hostfile.hosts), default=0)
    if count - share < slots:
        message = f"{given} has {count} ports, of which daemons need {share}, "
        message += f"and a host has {slots} slots"
        yield failed("settings-conflict", message, hint="name a wider range")
        return
    for pattern, value, daemons in inp.implementation.ports:
        # For both versions, the sockets of IPv4 would take the ports that those of IPv6 wait for.
        low, high = (first, first + share - 1) if daemons else (first + share, last)
        name, part = pattern.format(version=version), "the daemons'" if daemons else "MPI's"
        text = value.format(first=low, last=high, count=high - low + 1)
        yield Variable(name, text, f"{part} part of {given}", given.source)


def tcp_optional(inp: PlanInput, link: str, transport: Transport | None) -> str:
    """Return why MPI may not need TCP between the workers' control addresses; empty: it does.

    Args:
        inp: what the plan is made of.
        link: the control link.
        transport: what carries the job's data.
    """
    if inp.settings.mpi_network is MpiNetwork.DATA:
        return "MPI's messages use the data network"
    if transport in RDMA:
        return f"the data network is {transport.value}"
    return elsewhere(inp, link, daemons=False)


def elsewhere(inp: PlanInput, link: str, *, daemons: bool) -> str:
    """Return why connections may go otherwise than workers' dials; empty: they don't.

    Args:
        inp: what the plan is made of.
        link: the control link.
        daemons: whether those to the launcher are meant, and not MPI's messages.
    """
    if inp.line.unknown:
        return f"the mpirun line is not read from {inp.line.unknown} on"
    if inp.line.moves_hosts:
        return "mpirun alone decides which hosts it uses"
    if daemons and not {"iface", "localhost"}.isdisjoint(inp.line.given):
        return "the mpirun line has the daemons' address"
    mpi = inp.implementation
    links = mpi.daemon_link_vars if daemons else mpi.mpi_link_vars
    ports = (item.name for item in mpi.ports if item.daemons is daemons)
    spelled = (name.format(version=version) for name in ports for version in (IPV4, IPV6))
    for name in (*links, *spelled):
        by, own = users_choice(name, inp.owned) or (name, None)
        if own and own.value != link:
            subject = "the daemons' connections" if daemons else "MPI's messages"
            return f"{subject} go as {by} says, which is {own.by}"
    return ""


def _pin_daemons(inp: PlanInput, link: Decision) -> Iterator[Item]:
    """Pin the daemons' link; a list in mpiboot's own setting is a failure."""
    mpi = inp.implementation
    name = mpi.daemon_link_vars[0]
    chosen = users_choice(name, inp.owned)
    if link.value or chosen:
        yield Variable(name, link.value, link.reason, link.source)
    if mpi.one_link and "," in link.value and not chosen:
        message = f"{name}={link.value} is a list, and {mpi.title} takes one name or one network "
        message += "there (some releases crash)"
        hint = "name one link or one CIDR that launcher and workers all have"
        yield failed("settings-conflict", message, hint=hint)


# Hydra's option for its agent.
_EXEC: Final = "launcher-exec"
# The same intent under the name of another version: read where the MPI's own name isn't set.
_ALSO: Final = ("OMPI_MCA_plm_rsh", "OMPI_MCA_plm_ssh", "PRTE_MCA_plm_ssh", "PRTE_MCA_plm_rsh")


@dataclass(frozen=True, slots=True)
class Agent:
    """The user's own launch agent, empty for ssh; and ssh arguments for the private ssh_config."""

    items: tuple[Item, ...]
    user_agent: str = ""
    user_args: sshconfig.UserArgs = field(default_factory=sshconfig.UserArgs)


def place(inp: PlanInput, hosts: int) -> Agent:
    """Put mpiboot's launch agent in front of ssh or of the user's own agent, for so many hosts."""
    mpi = inp.implementation
    agents, arguments = _names(mpi)
    agent_by, agent = _first(inp.environ, inp.line, agents, _EXEC)
    args_by, given = _first(inp.environ, inp.line, arguments)
    options = dict.fromkeys((_EXEC, *map(parameter, (*agents, *arguments))))
    items: list[Item] = [*map(Drop, options), *mpi.agent(inp, hosts)]
    args_var = mpi.agent_args_vars[0]
    more = "" if agent == inp.paths.agent else _ssh_words(agent)
    if more is None:
        agent = agent.partition(":")[0].strip()
        reason = (
            f"{agent_by}, kept behind mpiboot's: mpiboot does not see whether it is connected, and "
            "can't end what it leaves on a host"
        )
        items.append(Decision("launch-agent", agent, _source(inp, agent_by), reason))
        items += [Forced(args_var, given)] if given else []
        return Agent(tuple(items), agent)
    text, by = f"{more} {given}".strip(), args_by if given else agent_by
    args = sshconfig.read_args(text)
    if text:
        items.append(Decision("ssh-arguments", text, _source(inp, by), by))
    lost = args.without_effect
    if inp.observed.by_kubectl:
        lost += (*args.lines, *args.words)
    if lost:
        message = f"{by} has {', '.join(lost)}, which has no effect: mpiboot sets it itself, or "
        items.append(warning("settings-conflict", f"{message}does not pass it on"))
    # Without a value of its own the file's would count; ssh forwards no X11 by default either.
    words = " ".join(args.words) or ("-x" if args_var in inp.of_files else "")
    items.append(Forced(args_var, words) if words else Removal(args_var))
    return Agent(tuple(items), "", args)


def given_by_user(
    environ: Mapping[str, str],
    line: UserLine | None = None,
    mpi: Implementation | None = None,
) -> sshconfig.UserArgs:
    """Read the user's own ssh arguments, of the line first.

    Args:
        environ: mpirun's environment, with what the MPI's own files set.
        line: the user's.
        mpi: the MPI, if known.
    """
    agents, arguments = _names(mpi)
    line = line or UserLine()
    words = _ssh_words(_first(environ, line, agents, _EXEC)[1])
    if words is None:  # they are another program's
        return sshconfig.UserArgs()
    return sshconfig.read_args(f"{words} {_first(environ, line, arguments)[1]}")


def all_arguments(environ: Mapping[str, str]) -> str:
    """Join the user's own ssh arguments for each MPI, where it isn't known which one will run."""
    names = dict.fromkeys(chain(*(_names(mpi)[1] for mpi in IMPLEMENTATIONS.values())))
    return " ".join(environ.get(name, "") for name in names)


def _names(mpi: Implementation | None) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Give the variables of an agent, and those of ssh arguments, the strongest first."""
    agents, arguments = (mpi.agent_vars, mpi.agent_args_vars) if mpi else ((), ())
    agents += tuple(f"{name}_agent" for name in _ALSO)
    return agents, (*arguments, *(f"{name}_args" for name in _ALSO))


def _first(
    environ: Mapping[str, str], line: UserLine, names: Sequence[str], option: str = ""
) -> tuple[str, str]:
    """Find the user's own value, of the line first; returns what names it, and the value."""
    found = [
        (f"-{option}", line.given.get(option, "")),
        *((f"--mca {name}", line.mca.get(name, "")) for name in map(parameter, names)),
        *((name, environ.get(name, "")) for name in names),
    ]
    return next(((by, text.strip()) for by, text in found if text.strip()), ("", ""))


def _source(inp: PlanInput, name: str) -> Source:
    return Source.FLAG if name.startswith("-") else inp.set_by(name)[0]


def _ssh_words(agent: str) -> str | None:
    """Return the arguments of an agent that is ssh itself; None where it is another program."""
    program, *words = agent.partition(":")[0].split() or ["ssh"]
    return " ".join(words) if program.rsplit("/", 1)[-1] in ("ssh", "rsh") else None
