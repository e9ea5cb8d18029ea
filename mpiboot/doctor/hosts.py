"""A launcher's hosts beside each other: what the launcher saw of them, judged. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from mpiboot.core.facts import Worker
from mpiboot.core.model import Finding, Level
from mpiboot.core.wording import counted, grouped, majority
from mpiboot.doctor.checks import BY_REFERENCE, finding, launcher_check, ok
from mpiboot.network.worker_network import link_of
from mpiboot.network.worker_pairs import WHY, Reached


@dataclass(frozen=True, slots=True)
class HostReport:
    """One host of the hostfile; ``worker`` is None where it was not reached.

    ``values`` are what hosts are compared by, by their names in ``libexec/doctor_questions``;
    ``dial`` is how it went to connect to the launcher (None: not tried); ``checks`` are its own
    doctor's findings, None where it has none.
    """

    host: str
    worker: Worker | None = None
    values: Mapping[str, str] = field(default_factory=dict)
    dial: Reached | None = None
    checks: tuple[Finding, ...] | None = None


@dataclass(frozen=True, slots=True)
class LauncherPlace:
    """Where hosts try to reach the launcher: an address, and a port (0: none is free).

    The port is one of ``port_range`` where that is set. A try takes ``seconds`` at most.
    """

    address: str = ""
    port: int = 0
    port_range: str = ""
    seconds: int = 4


_MANY: Final = 16  # hosts that are shown one by one where each has another message
_LINK: Final = "mtu:"
# What hosts are compared by, the message, and whether the plan compares it for hosts with facts.
_VALUES: Final = (
    ("mpiboot", "its version of mpiboot is {}", False),
    ("uid", "sessions have the uid {}", False),
    ("mpirun", "mpirun on PATH of a session is {}", True),
    ("daemon", "MPI's daemon on PATH of a session is {}", True),
    ("memlock", "memlock of a session is {}", False),
    ("nofile", "the limit of open files of a session is {}", False),
    ("nproc", "the limit of processes of a session is {}", False),
    ("gpus", "{} GPUs in /dev", True),
    ("hcas", "{} devices in /dev/infiniband", True),
)


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
    kernel chose, or one of MPIBOOT_PORT_RANGE.
    """
    which = f", of MPIBOOT_PORT_RANGE={place.port_range}" if place.port_range else ""
    at = f"the launcher at {place.address} port {place.port}{which}"
    for how, names in grouped((one.dial, one.host) for one in hosts if one.dial).items():
        if how is Reached.CONNECTED:
            yield finding(Level.OK, "launcher-unreached", f"reaches {at}", hosts=names)
        elif how is Reached.UNKNOWN:
            message = f"not known whether it reaches {at}: neither bash with timeout nor python3"
            yield finding(Level.UNKNOWN, "launcher-unreached", message, hosts=names)
        else:
            why = WHY.get(how, f"no answer in {place.seconds} s")
            message = f"can't connect to {at}: {why}; MPI's daemons must"
            yield finding(Level.FAIL, "launcher-unreached", message, hosts=names)


def _values(one: HostReport) -> dict[str, str]:
    """Give what a host is compared by; what isn't known is left out."""
    found = {name: value or "none" for name, value in one.values.items()}
    worker = one.worker
    if worker is not None:
        known = worker.facts.mpiboot if worker.facts else "another"
        found["mpiboot"] = known if worker.runs_mpiboot else "none"
        control = link_of(worker.address, worker.facts.links) if worker.facts else None
        if control:
            found.pop(f"{_LINK}{control.name}", None)  # workers-differ has it
    return found


@launcher_check(
    "hosts-differ",
    title="hosts have the same MPI, limits, devices and links",
    hint="use one image and one pod template for all workers, on nodes of one kind (nodeSelector)",
)
def differ(hosts: Sequence[HostReport]) -> Iterable[Finding]:
    """Find hosts whose value of something differs from that of most others.

    Looks at of each host, in a session without a terminal: mpiboot, uid, mpirun, MPI's daemon,
    memlock, open files, processes, GPUs, RDMA devices, each link and its MTU.
    """
    every = {one.host: _values(one) for one in hosts if one.worker is not None}
    planned = {one.host for one in hosts if one.worker is not None and one.worker.facts}
    links = sorted({name for values in every.values() for name in values if _LINK in name})
    rows = [*_VALUES, *((name, f"the MTU of {name[4:]} is {{}}", False) for name in links)]
    same = True
    for name, words, by_plan in rows:
        # A link that a host lacks is a value; of any other value that means it was not asked.
        lacks = "none" if _LINK in name else None
        seen = {host: values.get(name, lacks) for host, values in every.items() if values}
        found = majority({host: value for host, value in seen.items() if value is not None})
        if found is None or (found.usual == "none" and _LINK in name):
            continue
        usual = f"of the others ({found.alike}): {_shown(name, found.usual)}"
        for value, which in found.outliers.items():
            unplanned = [host for host in which if not by_plan or host not in planned]
            if unplanned:
                same = False
                message = f"{words.format(_shown(name, value))}, {usual}"
                yield finding(Level.WARN, "hosts-differ", message, hosts=unplanned)
    if len(every) > 1 and same:
        yield ok(
            "hosts-differ", f"{counted(len(every), 'host')} have the same MPI, limits and links"
        )


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
