"""Hosts beside each other, and the paths between them: what a launcher saw, judged. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Final

from mpiboot.core.facts import Worker
from mpiboot.core.model import Finding, Level
from mpiboot.core.wording import counted, first_few, grouped, majority
from mpiboot.doctor.checks import BY_REFERENCE, check, finding, launcher_check, ok
from mpiboot.network.worker_network import link_of
from mpiboot.network.worker_pairs import WHY, Dial, Reached


@dataclass(frozen=True, slots=True)
class NameLook:
    """What was said of a host's name when it was asked for several times.

    ``answers`` are the addresses of each time that had any; ``seconds`` is how long the first one
    took; ``found_as`` the absolute name that had them, empty where no nameserver was asked;
    ``unknown``: the nameservers know no such name, or no address of it.
    """

    answers: tuple[tuple[str, ...], ...] = ()
    seconds: float = 0.0
    found_as: str = ""
    unknown: bool = False


@dataclass(frozen=True, slots=True)
class HostReport:
    """One host of the hostfile; ``worker`` is None where it was not reached.

    ``values`` are what hosts are compared by, by their names in ``libexec/doctor_questions``;
    ``dials`` is how it went to connect to the launcher, by address or name and port; ``shown`` the
    fingerprint of the host key; ``checks`` are its own doctor's findings, None where it has none.
    """

    host: str
    worker: Worker | None = None
    name: NameLook | None = None
    values: Mapping[str, str] = field(default_factory=dict)
    dials: Mapping[tuple[str, int], Reached] = field(default_factory=dict)
    shown: str = ""
    checks: tuple[Finding, ...] | None = None


@dataclass(frozen=True, slots=True)
class LauncherPlace:
    """Where hosts try to reach the launcher while they are looked at, and with which key it came.

    ``name`` is its host name; ``port`` one that the kernel chose, ``range_port`` one of
    ``port_range`` (0: no range is set, or none of it is free). A try takes ``seconds`` at most.
    """

    name: str = ""
    address: str = ""
    port: int = 0
    range_port: int = 0
    port_range: str = ""
    seconds: int = 4
    key: str = ""


SLOW: Final = 2.5  # seconds for a name: a packet was lost, or a nameserver is silent
_MANY: Final = 16  # hosts that are shown one by one where each has another message
# What hosts are compared by, the message, and whether the plan compares it for hosts with facts.
_VALUES: Final = (
    ("mpiboot", "its version of mpiboot is {}", False),
    ("uid", "sessions have the uid {}", False),
    ("mpirun", "mpirun on PATH of a session is {}", False),
    ("daemon", "MPI's daemon on PATH of a session is {}", False),
    ("memlock", "memlock of a session is {}", False),
    ("nofile", "the limit of open files of a session is {}", False),
    ("nproc", "the limit of processes of a session is {}", False),
    ("gpus", "{} GPUs in /dev", True),
    ("hcas", "{} devices in /dev/infiniband", True),
)


@launcher_check(
    "hosts-missing",
    title="every host of the job was scheduled",
    hint="`kubectl get pods -o wide` shows which pods are Pending, `kubectl describe pod` why; "
    "with a gang scheduler (Volcano, Kueue, coscheduling) all pods of a job start, or none",
)
def missing(hosts: Sequence[HostReport]) -> Iterable[Finding]:
    """Find hosts whose names never had an address while others have one.

    Looks at which names have an address, and which never had one.
    """
    unknown = [one.host for one in hosts if one.name and one.name.unknown]
    found = [one.host for one in hosts if one.name and one.name.answers]
    if unknown and found:
        message = (
            f"{len(unknown)} of {len(hosts)} hosts have no address in DNS, the others have: their "
            "pods were never scheduled, or are not of the job's Service"
        )
        yield finding(Level.FAIL, "hosts-missing", message, hosts=unknown)


@launcher_check(
    "name-answers",
    title="every lookup of a host's name gives one answer, quickly",
    hint="several pods have that name, or a nameserver is behind: look at the job's headless "
    "Service and its EndpointSlices",
)
def names(hosts: Sequence[HostReport]) -> Iterable[Finding]:
    """Judge the answers for names: do they stay, how long do they take, of which IP version.

    Looks at three answers for each name: addresses, IP versions, search name, time.
    """
    looked = [(one.host, one.name) for one in hosts if one.name and one.name.answers]
    differ = False
    for host, name in looked:
        kinds = list(dict.fromkeys(tuple(sorted(item)) for item in name.answers))
        if len(kinds) > 1:
            differ = True
            message = f"its name leads elsewhere each time: {' or '.join(map(first_few, kinds))}"
            yield finding(Level.WARN, "name-answers", message, hosts=[host])
    slow = {host: name.seconds for host, name in looked if name.seconds > SLOW}
    if slow:
        message = f"an answer for a name took {max(slow.values()):.1f} s"
        hint = "a nameserver of /etc/resolv.conf does not answer, or not at once: ask each of them"
        yield finding(Level.WARN, "name-answers", message, (), hint, list(slow))
    versions = {host: _version(name.answers[0]) for host, name in looked}
    outliers = majority(versions)
    if outliers:
        hint = "give all pods the same IP versions (ipFamilies of the Service, dual stack)"
        message = f"their IP versions differ: {outliers.message}"
        yield finding(Level.WARN, "name-answers", message, (), hint, outliers.hosts)
    if looked and not (differ or slow or outliers):
        longest = 1000 * max(name.seconds for _, name in looked)
        domains = (name.found_as.partition(".")[2] for _, name in looked if name.found_as)
        via = first_few(dict.fromkeys(domains), 2)
        kinds_of_all = ", ".join(dict.fromkeys(versions.values()))
        message = f"{counted(len(looked), 'name')}: {kinds_of_all}{f', in {via}' if via else ''}"
        yield ok("name-answers", f"{message}, at most {longest:.0f} ms, the same each time")


def _version(addresses: Sequence[str]) -> str:
    kinds = {":" in item for item in addresses}
    return "IPv4 and IPv6" if len(kinds) > 1 else "IPv6" if True in kinds else "IPv4"


@launcher_check(
    "launcher-unreached",
    title="hosts reach the launcher's ports",
    hint="let the workers in: the policy of the launcher's pod needs an ingress rule for them "
    "(`ingress: [{from: [{podSelector: ...}]}]`) without `ports:`, or with the range of "
    "MPIBOOT_PORT_RANGE",
)
def launcher(hosts: Sequence[HostReport], place: LauncherPlace) -> Iterable[Finding]:
    """Judge whether hosts can connect to the launcher, as MPI's daemons do.

    Looks at a TCP connection from each host to the launcher's control address, at a port that the
    kernel chose and at one of MPIBOOT_PORT_RANGE; the launcher's name there.
    """
    answers = grouped((_way_back(one.dials, place), one.host) for one in hosts if one.dials)
    for (level, message), which in answers.items():
        yield finding(level, "launcher-unreached", message, hosts=which)


def _way_back(dials: Mapping[tuple[str, int], Reached], place: LauncherPlace) -> tuple[Level, str]:
    port = place.range_port or place.port
    how = dials.get((place.address, port), Reached.UNKNOWN)
    free = dials.get((place.address, place.port), Reached.UNKNOWN)
    whose = f", of MPIBOOT_PORT_RANGE={place.port_range}" if place.range_port else ""
    at = f"the launcher at {place.address} port {port}{whose}"
    if how is Reached.UNKNOWN:
        message = f"not known whether it reaches {at}: it has neither bash with timeout nor python3"
        return Level.UNKNOWN, message
    if how is not Reached.CONNECTED:
        why = WHY.get(how, f"no answer in {place.seconds} s")
        return Level.FAIL, f"can't connect to {at}: {why}; MPI's daemons must"
    message = f"reaches {at}"
    if place.range_port and free is not Reached.CONNECTED:
        message += "; ports outside that range it does not reach, which MPI does not need"
    if dials.get((place.name, port)) is Reached.UNRESOLVED:
        message += f"; the name {place.name} does not resolve there, and MPI goes by the address"
    return Level.OK, message


def _values(one: HostReport) -> dict[str, str]:
    """Give what a host is compared by; what isn't known is left out."""
    found = {name: value or "none" for name, value in one.values.items()}
    worker = one.worker
    if worker is not None:
        known = worker.facts.mpiboot if worker.facts else "another"
        found["mpiboot"] = known if worker.runs_mpiboot else "none"
        control = link_of(worker.address, worker.facts.links) if worker.facts else None
        if control:
            found.pop(f"mtu:{control.name}", None)  # control-mtu has it
    return found


@launcher_check(
    "hosts-differ",
    title="hosts have the same MPI, limits, devices and links",
    hint="use one image and one pod template for all workers, on nodes of one kind (nodeSelector)",
)
def differ(hosts: Sequence[HostReport]) -> Iterable[Finding]:
    """Find hosts whose value of something differs from that of most others.

    Looks at of each host, in a session without a terminal: mpiboot, uid, mpirun, MPI's daemon,
    memlock, open files, processes, GPUs, RDMA devices, MTU of each link.
    """
    every = {one.host: _values(one) for one in hosts if one.worker is not None}
    planned = {one.host for one in hosts if one.worker is not None and one.worker.facts}
    links = sorted({name for values in every.values() for name in values if ":" in name})
    rows = [*_VALUES, *((name, f"the MTU of {name[4:]} is {{}}", False) for name in links)]
    same = True
    for name, words, by_plan in rows:
        # A link that a host lacks is a value; of any other value that means it was not asked.
        lacks = "none" if ":" in name else None
        seen = {host: values.get(name, lacks) for host, values in every.items() if values}
        found = majority({host: value for host, value in seen.items() if value is not None})
        if found is None or (found.usual == "none" and ":" in name):
            continue
        usual = f"of the others ({found.alike}): {_shown(name, found.usual)}"
        for value, which in found.outliers.items():
            unplanned = [host for host in which if not by_plan or host not in planned]
            if unplanned:
                same = False
                message = f"{words.format(_shown(name, value))}, {usual}"
                yield finding(Level.WARN, "hosts-differ", message, hosts=unplanned)
    if len(every) > 1 and same:
        alike = counted(len(every), "host")
        yield ok("hosts-differ", f"{alike} have the same MPI, limits and links")


def _shown(name: str, value: str) -> str:
    return f"{value} bytes" if name == "memlock" and value.isdigit() else value


@launcher_check(
    "worker-checks",
    title="each worker's own checks are known",
    hint="run mpiboot on the workers (`args: [worker]`), of the launcher's version",
)
def own_checks(hosts: Sequence[HostReport]) -> Iterable[Finding]:
    """Name the hosts whose own checks are unknown, or of another version.

    Looks at what each worker's own `mpiboot doctor` says, over the same session.
    """
    unknown = grouped(
        (one.worker.runs_mpiboot, one.host) for one in hosts if one.worker and one.checks is None
    )
    for runs_mpiboot, which in unknown.items():
        why = "its mpiboot has no checks for a launcher, or they took too long"
        why = why if runs_mpiboot else "it does not run mpiboot"
        message = f"its limits, files and devices were not checked from within: {why}"
        yield finding(Level.UNKNOWN, "worker-checks", message, hosts=which)


@check("mpi-daemon")
def daemons(hosts: Sequence[HostReport]) -> Iterable[Finding]:
    """Find hosts without MPI's daemon whose own checks don't say so."""
    without = [one.host for one in hosts if one.checks is None and one.values.get("daemon") == ""]
    if without:
        message = "none of orted, prted and hydra_pmi_proxy is on PATH of a session"
        yield finding(Level.WARN, "mpi-daemon", message, hosts=without)


@check("ssh-denied")
def keys(hosts: Sequence[HostReport], place: LauncherPlace) -> Iterable[Finding]:
    """Report the keys of the logins that succeeded.

    Looks at the key that was let in, and the host key that was shown.
    """
    shown = grouped((one.shown, one.host) for one in hosts if one.shown)
    for fingerprint, which in shown.items():
        message = f"lets the key {place.key} in, and shows the host key {fingerprint}"
        yield finding(Level.OK, "ssh-denied", message, hosts=which)


def merged(found: Iterable[Finding]) -> list[Finding]:
    """Report once what several hosts have in common.

    A check that holds, but reads differently on each of very many hosts, is reported by its title.
    """
    listed = list(found)
    alike = grouped((replace(item, host=""), item.host) for item in listed)
    well = grouped((item.check, item.host) for item in listed if item.level is Level.OK)
    joined: dict[Finding, list[str]] = {}
    for item, which in alike.items():
        many = item.level is Level.OK and len(which) < len(set(well[item.check])) > _MANY
        same = ok(item.check, BY_REFERENCE[item.check].title) if many else item
        joined.setdefault(same, []).extend(which)
    return [
        finding(
            *(item.level, item.check, item.message, item.evidence, item.hint),
            hosts=list(dict.fromkeys(which)),
        )
        for item, which in joined.items()
    ]


_SHOWN: Final = 4
_WHY: Final = {
    Reached.SILENT: "no answer",
    Reached.REFUSED: "refused",
    Reached.NO_ROUTE: "no route",
}
# So much slower than the middle one is worth a look.
_TIMES: Final = 4
_LEAST: Final = 2000  # microseconds; what is quicker is never called slow
_FEW: Final = 4  # paths of which there is a middle one


def _where(one: Dial) -> str:
    kind = "control" if one.control else "data"
    return f"{one.source} to {one.target} ({one.address} by the {kind} link {one.link})"


def _of_paths(check: str, level: Level, bad: Sequence[tuple[Dial, str]]) -> Finding:
    """Report what is wrong with some paths, for the host that all of them begin or end at."""
    lines = [f"{_where(one)}: {what}" for one, what in bad]
    more = f"; {len(bad) - 1} more" if len(bad) > 1 else ""
    ends = [{one.source, one.target} for one, _ in bad]
    common = sorted(set.intersection(*ends))
    return finding(level, check, lines[0] + more, lines[1:_SHOWN], hosts=common)


@launcher_check(
    "network-reach",
    title="workers reach each other on every link, measured by --network",
    hint="a NetworkPolicy, firewall or missing route between these pods drops it; on a data link "
    "look at the network's definition (VLAN, subnet) and the switch",
)
def reach(paths: Sequence[Dial]) -> Iterable[Finding]:
    """Judge who reaches whom.

    Looks at TCP connections between workers on the control link and on every data link.
    """
    cut = [(one, _WHY[one.reached]) for one in paths if one.reached in _WHY]
    late = [_where(one) for one in paths if one.reached is Reached.UNKNOWN]
    if cut:
        yield _of_paths("network-reach", Level.FAIL, cut)
    if late:
        message = (
            f"not measured in time: {counted(len(late), 'path')} of {len(paths)}, such as {late[0]}"
        )
        yield finding(Level.UNKNOWN, "network-reach", message)
    if paths and not cut and not late:
        links = ", ".join(dict.fromkeys(one.link for one in paths))
        yield ok("network-reach", f"{counted(len(paths), 'path')} on {links}: all come through")


@launcher_check(
    "path-mtu",
    title="packets as large as the links' MTU come through, measured by --network",
    hint="give the links the MTU of the path (`mtu` in the network's definition, or in the CNI's "
    "configuration), or the switches and tunnels between them that of the links",
)
def path_mtu(paths: Sequence[Dial]) -> Iterable[Finding]:
    """Judge whether packets as large as the links' MTU come through unbroken.

    Looks at the largest UDP packet that comes through unbroken (DF), up to the links' MTU; without
    UDP, whether large TCP packets come through.
    """
    small = [
        (
            one,
            (
                f"packets of {one.mtu} bytes come through, larger ones are lost; the links have "
                f"{one.wanted}"
            ),
        )
        for one in paths
        if one.mtu is not None and one.mtu < one.wanted
    ]
    small += [
        (one, "small packets come through, large ones are lost")
        for one in paths
        if one.reached is Reached.STALLED and (one.mtu is None or one.mtu >= one.wanted)
    ]
    measured = [one for one in paths if one.mtu is not None]
    unknown = [one for one in paths if one.reached is Reached.ANSWERED and one.mtu is None]
    if small:
        yield _of_paths("path-mtu", Level.FAIL, small)
    elif measured:
        sizes = sorted({(one.link, one.wanted) for one in measured})
        message = ", ".join(f"{size} on {link}" for link, size in sizes)
        yield ok("path-mtu", f"packets as large as the links' MTU come through: {message}")
    if unknown:
        message = (
            f"no answer by UDP on {counted(len(unknown), 'path')}, such as {_where(unknown[0])}"
        )
        yield finding(Level.UNKNOWN, "path-mtu", f"{message}; TCP's large packets come through")


@launcher_check(
    "path-speed",
    title="no path between workers is much slower than the others, measured by --network",
    hint="look at that node's link (speed, errors, cable), and at what else runs on the node",
)
def speed(paths: Sequence[Dial]) -> Iterable[Finding]:
    """Judge a network's round trips and rates against their median.

    Looks at the quickest of five round trips, and one TCP stream of half a second and 64 MiB at
    most between neighbours; no other measurement runs on these two hosts meanwhile.
    """
    for link in dict.fromkeys(one.link for one in paths):
        on_link = [one for one in paths if one.link == link]
        trips = {one: one.microseconds for one in on_link if one.microseconds is not None}
        rates = {one: one.rate for one in on_link if one.rate is not None}
        if not trips:
            continue
        middle = median(trips.values())
        longest = _time(max(trips.values()))
        message = f"on {link} a round trip takes {_time(middle)} (median), {longest} at most"
        slow = [
            (one, f"a round trip takes {_time(trip)}, of the others {_time(middle)}")
            for one, trip in trips.items()
            if len(trips) >= _FEW and trip > max(_LEAST, _TIMES * middle)
        ]
        if rates:
            usual, least = median(rates.values()), _rate(min(rates.values()))
            message += f"; one TCP stream carries {_rate(usual)}, {least} at least"
            slow += [
                (one, f"one TCP stream carries {_rate(rate)}, the others {_rate(usual)}")
                for one, rate in rates.items()
                if len(rates) >= _FEW and rate * _TIMES < usual
            ]
        if slow:
            yield _of_paths("path-speed", Level.WARN, slow)
        yield ok("path-speed", message)


def _time(microseconds: float) -> str:
    return f"{microseconds / 1000:.3g} ms" if microseconds >= 1000 else f"{microseconds:.0f} us"  # noqa: PLR2004 - units


def _rate(rate: float) -> str:
    bits = rate * 8
    return f"{bits / 1e9:.3g} Gb/s" if bits >= 1e9 else f"{bits / 1e6:.3g} Mb/s"  # noqa: PLR2004 - units
