"""Hosts judged beside each other: names, the way back to the launcher, values that differ. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from mpiboot.core.checks import BY_REFERENCE
from mpiboot.core.model import Finding, Level
from mpiboot.core.wording import counted, first_few, majority
from mpiboot.doctor.host_report import HostReport, LauncherPlace
from mpiboot.doctor.judge.image import ok
from mpiboot.network.control import link_of
from mpiboot.network.worker_pairs import WHY, Reached

SLOW: Final = 2.5  # seconds for a name: a packet was lost, or a nameserver is silent
_MANY: Final = 16  # hosts that are told one by one where each says something else
# What hosts are compared by, the words for it, and whether the plan tells it of hosts with facts.
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


def about(
    names: Sequence[str],
    check: str,
    level: Level,
    said: str,
    hint: str = "",
    evidence: tuple[str, ...] = (),
) -> Finding:
    """Make a finding of one host or of several."""
    several = len(names) > 1
    host, hosts = ("", tuple(names)) if several else (names[0], ())
    return Finding(check, level, said, host, evidence, hint, hosts)


def _bad(
    names: Sequence[str], check: str, said: str, hint: str = "", level: Level = Level.FAIL
) -> Finding:
    return about(names, check, level, said, hint or BY_REFERENCE[check].hint)


def _alike(values: Iterable[tuple[str, str]]) -> Mapping[str, list[str]]:
    """Sort hosts by what is said of them."""
    by_value: dict[str, list[str]] = {}
    for host, value in values:
        by_value.setdefault(value, []).append(host)
    return by_value


def missing(hosts: Sequence[HostReport], _: LauncherPlace) -> Iterable[Finding]:
    """Find hosts whose names never had an address while others have one."""
    unknown = [one.host for one in hosts if one.name and one.name.unknown]
    found = [one.host for one in hosts if one.name and one.name.answers]
    if unknown and found:
        said = (
            f"{len(unknown)} of {len(hosts)} hosts have no address in DNS, the others have: their "
            "pods were never scheduled, or are not of the job's Service"
        )
        yield _bad(unknown, "hosts-missing", said)


def names(hosts: Sequence[HostReport], _: LauncherPlace) -> Iterable[Finding]:
    """Judge the answers for names: do they stay, how long do they take, of which IP version."""
    looked = [(one.host, one.name) for one in hosts if one.name and one.name.answers]
    odd = set()
    for host, name in looked:
        kinds = list(dict.fromkeys(tuple(sorted(item)) for item in name.answers))
        if len(kinds) > 1:
            odd.add(host)
            said = f"its name leads elsewhere each time: {' or '.join(map(first_few, kinds))}"
            yield _bad([host], "name-answers", said, level=Level.WARN)
    slow = {host: name.seconds for host, name in looked if name.seconds > SLOW}
    if slow:
        worst = max(slow, key=lambda host: slow[host])
        said = f"an answer for a name took {slow[worst]:.1f} s"
        hint = "a nameserver of /etc/resolv.conf does not answer, or not at once: ask each of them"
        yield _bad(list(slow), "name-answers", said, hint, Level.WARN)
    versions = {host: _version(name.answers[0]) for host, name in looked}
    differing = majority(versions)
    if differing:
        hint = "give all pods the same IP versions (ipFamilies of the Service, dual stack)"
        odd |= set(differing.hosts)
        said = f"their IP versions differ: {differing.said}"
        yield _bad(differing.hosts, "name-answers", said, hint, Level.WARN)
    if looked and not slow and not odd:
        longest = max(name.seconds for _, name in looked)
        via = first_few(
            dict.fromkeys(name.found_as.partition(".")[2] for _, name in looked if name.found_as), 2
        )
        where = f", in {via}" if via else ""
        said = (
            f"{counted(len(looked), 'name')}: {', '.join(dict.fromkeys(versions.values()))}{where}"
        )
        yield ok("name-answers", f"{said}, at most {1000 * longest:.0f} ms, the same each time")


def _version(addresses: Sequence[str]) -> str:
    kinds = {":" in item for item in addresses}
    return "IPv4 and IPv6" if len(kinds) > 1 else "IPv6" if True in kinds else "IPv4"


def launcher(hosts: Sequence[HostReport], place: LauncherPlace) -> Iterable[Finding]:
    """Judge whether hosts can connect to the launcher, as MPI's daemons do."""
    ways: dict[tuple[Level, str], list[str]] = {}
    for one in hosts:
        if one.dials:
            ways.setdefault(_way_back(one.dials, place), []).append(one.host)
    for (level, said), which in ways.items():
        hint = BY_REFERENCE["launcher-unreached"].hint if level is Level.FAIL else ""
        yield about(which, "launcher-unreached", level, said, hint)


def _way_back(dials: Mapping[tuple[str, int], Reached], place: LauncherPlace) -> tuple[Level, str]:
    port = place.range_port or place.port
    how = dials.get((place.address, port), Reached.UNKNOWN)
    free = dials.get((place.address, place.port), Reached.UNKNOWN)
    whose = f", of MPIBOOT_PORT_RANGE={place.port_range}" if place.range_port else ""
    at = f"the launcher at {place.address} port {port}{whose}"
    if how is Reached.UNKNOWN:
        said = f"not known whether it reaches {at}: it has neither bash with timeout nor python3"
        return Level.UNKNOWN, said
    if how is not Reached.CONNECTED:
        why = WHY.get(how, f"no answer in {place.seconds} s")
        return Level.FAIL, f"can't connect to {at}: {why}; MPI's daemons must"
    said = f"reaches {at}"
    if place.range_port and free is not Reached.CONNECTED:
        said += "; ports outside that range it does not reach, which MPI does not need"
    if dials.get((place.name, port)) is Reached.UNRESOLVED:
        said += f"; the name {place.name} does not resolve there, and MPI goes by the address"
    return Level.OK, said


def _values(one: HostReport) -> dict[str, str]:
    """Give what a host is compared by; what isn't known is left out."""
    found = {name: value or "none" for name, value in one.values.items()}
    worker = one.worker
    if worker is not None:
        known = worker.facts.mpiboot if worker.facts else "another"
        found["mpiboot"] = known if worker.runs_mpiboot else "none"
        control = link_of(worker.address, worker.facts.links) if worker.facts else None
        if control:
            found.pop(f"mtu:{control.name}", None)  # control-mtu tells it
    return found


def differ(hosts: Sequence[HostReport], _: LauncherPlace) -> Iterable[Finding]:
    """Find hosts whose value of something differs from that of most others."""
    every = {one.host: _values(one) for one in hosts if one.worker is not None}
    planned = {one.host for one in hosts if one.worker is not None and one.worker.facts}
    links = sorted({name for values in every.values() for name in values if ":" in name})
    rows = [*_VALUES, *((name, f"the MTU of {name[4:]} is {{}}", False) for name in links)]
    found = []
    for name, words, by_plan in rows:
        # A link that a host lacks is a value; of any other value that means it was not asked.
        lacks = "none" if ":" in name else None
        seen = {host: values.get(name, lacks) for host, values in every.items() if values}
        odd = majority({host: value for host, value in seen.items() if value is not None})
        if odd is None or (odd.usual == "none" and ":" in name):
            continue
        for value, which in odd.odd.items():
            told = [host for host in which if not by_plan or host not in planned]
            if told:
                said = f"{words.format(_shown(name, value))}, of the others ({odd.count}): "
                found.append(
                    _bad(told, "hosts-differ", said + _shown(name, odd.usual), level=Level.WARN)
                )
    yield from found
    if len(every) > 1 and not found:
        yield ok(
            "hosts-differ", f"{counted(len(every), 'host')} have the same MPI, limits and links"
        )


def _shown(name: str, value: str) -> str:
    return f"{value} bytes" if name == "memlock" and value.isdigit() else value


def own_checks(hosts: Sequence[HostReport], _: LauncherPlace) -> Iterable[Finding]:
    """Say of whom the checks within the pod are not known, or are those of another version."""
    told = []
    for one in hosts:
        if one.worker is None or one.checks is not None:
            continue
        why = "its mpiboot has no checks for a launcher, or they took too long"
        why = why if one.worker.runs_mpiboot else "it does not run mpiboot"
        told.append((one.host, why))
    for why, which in _alike(told).items():
        said = f"its limits, files and devices were not checked from within: {why}"
        yield about(which, "worker-checks", Level.UNKNOWN, said)


def daemons(hosts: Sequence[HostReport], _: LauncherPlace) -> Iterable[Finding]:
    """Find hosts without MPI's daemon, of which no checks of their own tell it."""
    without = [one.host for one in hosts if one.checks is None and one.values.get("daemon") == ""]
    if without:
        said = "none of orted, prted and hydra_pmi_proxy is on PATH of a session"
        yield _bad(without, "mpi-daemon", said, level=Level.WARN)


def keys(hosts: Sequence[HostReport], place: LauncherPlace) -> Iterable[Finding]:
    """Say with which keys logins went well."""
    shown = _alike((one.host, one.shown) for one in hosts if one.shown)
    for fingerprint, which in shown.items():
        said = f"lets the key {place.key} in, and shows the host key {fingerprint}"
        yield about(which, "ssh-denied", Level.OK, said)


def merged(found: Iterable[Finding]) -> list[Finding]:
    """Say once what several hosts have in common.

    What is well, and differs a little on each of very many hosts, is told by the check's title.
    """
    alike: dict[Finding, list[str]] = {}
    of_check: dict[str, set[str]] = {}
    for item in found:
        alike.setdefault(replace(item, host=""), []).append(item.host)
        if item.level is Level.OK:
            of_check.setdefault(item.check, set()).add(item.host)
    told: dict[Finding, list[str]] = {}
    for item, which in alike.items():
        many = item.level is Level.OK and len(which) < len(of_check[item.check]) > _MANY
        same = ok(item.check, BY_REFERENCE[item.check].title) if many else item
        told.setdefault(same, []).extend(which)
    return [
        about(
            list(dict.fromkeys(which)), item.check, item.level, item.said, item.hint, item.evidence
        )
        for item, which in told.items()
    ]


Judge = Callable[[Sequence[HostReport], LauncherPlace], Iterable[Finding]]
