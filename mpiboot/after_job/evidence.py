"""What a worker is asked after a job failed, and what its answer means. Pure; asks nobody.

The commands are for any POSIX shell, without single quotes: they reach it as one word.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from mpiboot.model import Worker

FILE: Final = "after.json"
_MARK: Final = "mpiboot-evidence"
# Facts of a container that was started again; a clock's own rounding is less.
_RESTARTED: Final = 1.0
_FULL: Final = 0.01
_UNLIMITED: Final = 1 << 60  # cgroup v1 writes "no limit" as a number near 2^63

# Which files count out-of-memory kills, by the version of the control groups.
MEMORY: Final = (
    "c=/sys/fs/cgroup; if [ -r $c/memory.events ]; then "
    "e=$c/memory.events m=$c/memory.max p=$c/memory.peak; else c=$c/memory; "
    "e=$c/memory.oom_control m=$c/memory.limit_in_bytes p=$c/memory.max_usage_in_bytes; fi; "
)
_ASK: Final = (
    f"echo {_MARK}; {MEMORY}"
    'if [ -r $e ]; then while read k v; do if [ "$k" = oom_kill ]; then echo oom $v; fi; '
    "done <$e; fi; "
    "if [ -r $m ]; then echo limit $(cat $m); fi; if [ -r $p ]; then echo peak $(cat $p); fi; "
    "d=$MPIBOOT_WORKER_DIR; "
    'if [ -r "$d/facts.json" ]; then '
    'sed -n "s/.*\\"started\\": *\\([0-9.]*\\).*/began \\1/p" "$d/facts.json"; echo; '
    # A worker that was started again has none for a moment.
    'elif [ -n "$d" ]; then echo began 0; fi; '
    "df -P /dev/shm /tmp 2>/dev/null | while read f s u a c n; do echo disk $s $a $n; done; "
    "for s in /sys/class/infiniband/*/ports/*/state; do "
    "if [ -r $s ]; then echo port $s $(cat $s); fi; done; "
)
# Words that stay one word, and themselves, in any shell.
_PLAIN: Final = re.compile(r"[A-Za-z0-9_./:+@%=,-]*")
# What comes after it says which way a program can't be run; ``ways`` below.
_RUNS: Final = 't() { [ -f "$1" ] && [ -x "$1" ]; }; '


def ask(program: str = "", path: str = "", folder: str = "") -> str:
    """Write the command that asks a host.

    Args:
        program: what ranks were to run, to ask whether it can be run there; empty: not asked.
        path: the launcher's PATH, which ranks may have; a name is looked for in both.
        folder: the launcher's folder, in which ranks begin where the host has it.
    """
    return f"exec /bin/sh -c '{_ASK}{_lacks(program, path, folder)}exit 0'"


def _lacks(program: str, path: str, folder: str) -> str:
    if not program or not _PLAIN.fullmatch(program + path + folder):
        return ""
    if "/" in program:
        return (
            f'{_RUNS}cd "{folder}" 2>/dev/null || cd; if t {program}; then :; '
            f"elif [ -e {program} ]; then echo lacks right {program}; "
            f"else echo lacks file {program}; fi; "
        )
    return (
        f"{_RUNS}f=; p=$PATH:{path}; IFS=:; "
        f'for d in $p; do if t "$d/{program}"; then f=1; fi; done; unset IFS; '
        f'if [ -z "$f" ]; then echo lacks name {program}; fi; '
    )


ASK: Final = ask()
# The worker's parent reads this pipe; opened for reading too, nobody is ever waited for.
LET_GO: Final = (
    'exec /bin/sh -c \'d=$MPIBOOT_WORKER_DIR; if [ -p "$d/sessions" ]; '
    'then echo over 1<>"$d/sessions"; fi; exit 0\''
)


@dataclass(frozen=True, slots=True)
class Before:
    """What the gate saw of a host, to compare with.

    ``name`` is what the launch agent is called with; ``dns`` the name to resolve, empty where the
    hostfile has an address, and ``address`` what it led to; ``pod`` is the pod's name, empty where
    it isn't known; ``ooms`` the count of out-of-memory kills, None where it isn't known;
    ``began`` the start of its mpiboot, 0 where it runs none; ``ports`` the RDMA ports that were
    active; ``ends`` whether it wants to end with the job.
    """

    name: str
    dns: str
    address: str
    pod: str
    ooms: int | None = None
    began: float = 0.0
    ports: tuple[str, ...] = ()
    ends: bool = False


def before(worker: Worker, called: str, dns: str) -> Before:
    """Note what is compared with after a failure.

    Args:
        worker: a host as the gate saw it.
        called: the name that mpirun and the launch agent have for it.
        dns: its name in DNS; empty where the hostfile has its address.
    """
    facts = worker.facts
    return Before(
        name=called,
        dns=dns,
        address=worker.address,
        pod=facts.hostname if facts else dns.partition(".")[0],
        ooms=worker.ooms,
        began=facts.started if facts else 0.0,
        ports=tuple(
            port(device.name, one.number)
            for device in (facts.fabric.devices if facts else ())
            for one in device.ports
            if "ACTIVE" in one.state.upper()
        ),
        ends=worker.ends,
    )


def to_json(hosts: tuple[Before, ...]) -> str:
    """Write what the gate saw."""
    return json.dumps([asdict(host) for host in hosts])


def from_json(text: str) -> tuple[Before, ...]:
    """Read what ``to_json`` wrote."""
    return tuple(Before(**{**item, "ports": tuple(item["ports"])}) for item in json.loads(text))


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that explains a failure; the lowest ``rank`` explains the most.

    With a ``reference``, a row of checks, it is the failure itself.
    """

    rank: int
    said: str
    reference: str = ""

    def line(self, host: str) -> str:
        """Write it for the parent of mpirun."""
        return (
            f"{self.reference}\t{host}\t{self.said}" if self.reference else f"{host}: {self.said}"
        )


def _size(number: int) -> str:
    for unit, scale in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if number >= scale:
            return f"{number / scale:.4g} {unit}"
    return f"{number} bytes"


def _namespace(dns: str) -> str:
    """Read the namespace of ``pod.service.namespace.svc...``."""
    labels = dns.split(".")
    return labels[2] if len(labels) > 3 and labels[3] == "svc" else ""  # noqa: PLR2004


def kubectl(before: Before) -> str:
    """Write the line that shows why a pod's container ended: before this one, or for good."""
    ended = "status.containerStatuses[*]%s.terminated}"
    if not before.pod:  # a list of pods, with those of this address
        paths = "".join("{.items[*]." + ended % state for state in (".lastState", ".state"))
        by = f"-A --field-selector status.podIP={before.address}"
        return f"kubectl get pods {by} -o jsonpath='{paths}'"
    space = _namespace(before.dns)
    where = f" -n {space}" if space else ""
    path = "".join("{." + ended % state for state in (".lastState", ".state"))
    return f"kubectl get pod {before.pod}{where} -o jsonpath='{path}'"


def _events(before: Before) -> str:
    """Write the line that shows what happened to a pod."""
    if not before.pod:
        return "kubectl get events -A"
    space = _namespace(before.dns)
    where = f" -n {space}" if space else ""
    return f"kubectl get events{where} --field-selector involvedObject.name={before.pod}"


def silent(before: Before) -> tuple[Finding, ...]:
    """Judge the lost host, where it can't be asked and its name says nothing."""
    said = "it could not be asked; what became of its container this line tells: "
    return (Finding(4, said + kubectl(before)),)


def unreachable(before: Before, addresses: tuple[str, ...] | None) -> tuple[Finding, ...]:
    """Judge a host that can't be asked; ``addresses`` of its name are None where unknown."""
    if addresses is None:
        return ()
    if not addresses:
        said = f"its name does not resolve any more, so its pod is gone: {_events(before)}"
        return (Finding(2, said),)
    if before.address not in addresses:
        said = f"its name leads to {addresses[0]} now, not {before.address}: the pod was made anew"
        return (Finding(2, f"{said}: {_events(before)}"),)
    return ()


def judge(before: Before, answer: str, signal: str = "") -> tuple[Finding, ...]:
    """Judge what a host answered to ``ask``; ``signal`` ended the first rank, if it was there."""
    lines = answer.splitlines()
    if _MARK not in lines:
        return ()
    said = [line.split() for line in lines[lines.index(_MARK) + 1 :]]
    found = [*_programs(said), *_memory(before, said, signal), *_disks(said), *_ports(before, said)]
    return tuple(sorted(found, key=lambda item: item.rank))


def _numbers(said: list[list[str]], word: str) -> list[int]:
    return [int(row[1]) for row in said if len(row) > 1 and row[0] == word and row[1].isdigit()]


def _memory(before: Before, said: list[list[str]], signal: str) -> list[Finding]:
    began = [
        row[1]
        for row in said
        if len(row) > 1 and row[0] == "began" and row[1].replace(".", "", 1).isdigit()
    ]
    if before.began and began and abs(float(began[0]) - before.began) > _RESTARTED:
        said_ = "its container was restarted, probably out of memory; this line tells: "
        return [Finding(1, said_ + kubectl(before))]
    ooms, limit, peak = (_numbers(said, word) for word in ("oom", "limit", "peak"))
    if before.ooms is None or not ooms:
        return []
    if ooms[0] <= before.ooms:
        # Neither the kubelet nor anybody else leaves a count, but only the kernel leaves this one.
        text = f"the kernel killed nothing of this pod for memory, so somebody else sent {signal}"
        return [Finding(5, f"{text}: {_events(before)}")] if signal == "SIGKILL" else []
    count = ooms[0] - before.ooms
    what = "a process" if count == 1 else f"{count} processes"
    sizes = [f"limit {_size(number)}" for number in limit[:1] if number < _UNLIMITED]
    sizes += [f"peak {_size(number)}" for number in peak[:1]]
    shown = f" ({', '.join(sizes)})" if sizes else ""
    return [Finding(0, f"out of memory: the kernel killed {what} of this pod{shown}")]


def _programs(said: list[list[str]]) -> list[Finding]:
    ways = {
        "file": "{} is not there",
        "right": "{} is there, but is no file that this user may execute",
        "name": "{} is in no folder of PATH",
    }
    return [
        Finding(0, f"the program {ways[row[1]].format(row[2])}", "program-missing")
        for row in said
        if len(row) == 3 and row[0] == "lacks" and row[1] in ways  # noqa: PLR2004
    ]


def _disks(said: list[list[str]]) -> list[Finding]:
    found = []
    for row in said:
        if len(row) == 4 and row[0] == "disk" and row[1].isdigit() and row[2].isdigit():  # noqa: PLR2004
            size, free = int(row[1]), int(row[2])
            if size and free < size * _FULL:
                text = f"{row[3]} is full ({_size(free << 10)} of {_size(size << 10)} free)"
                found.append(Finding(3, text))
    return found


def port(device: str, number: int) -> str:
    """Write a port as its file names it."""
    return f"{device}/{number}"


def _ports(before: Before, said: list[list[str]]) -> list[Finding]:
    found = []
    for row in said:
        if len(row) > 2 and row[0] == "port":  # noqa: PLR2004
            folders = row[1].split("/")
            name = f"{folders[4]}/{folders[6]}"
            if name in before.ports and "ACTIVE" not in row[2:]:
                text = f"the RDMA port {name} is {row[-1]}; it was active when the job began"
                found.append(Finding(4, text))
    return found
