"""What doctor looks at in a pod, a function for each part: bounded in time, nothing is changed.

One folder is made, as every role makes its own, and taken away at doctor's end. No program of the
image is run but the loader (``ld.so --list PROGRAM``, which glibc and musl both have, as ldd does),
``sshd -T``, ``nvidia-smi -q`` and ``mpirun --version``.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import platform
import re
import shutil
import socket
import stat
import struct
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from mpiboot.core.checks import MpibootError
from mpiboot.core.facts import PodFacts
from mpiboot.core.model import Finding, Identity, Mpi, MpiFamily
from mpiboot.core.settings import Settings
from mpiboot.doctor.checks import ok, warned
from mpiboot.doctor.network import CountersPart, NvidiaPart, PciPart
from mpiboot.doctor.pod import (
    ImagePart,
    LimitsPart,
    MemoryPart,
    Program,
    ServersPart,
    ShmPart,
    SshdPart,
    SshdSettings,
    SshListener,
)
from mpiboot.launcher import shims as names
from mpiboot.network import pod
from mpiboot.network.counters import EXPLAINING
from mpiboot.network.sysfs import nvidia_smi, pci_functions, text
from mpiboot.ssh import openssh
from mpiboot.supervisor.state import FAMILIES
from mpiboot.system import control_groups, files, keys, processes, programs

_FOLDER_ROLE: Final = "doctor-"


def role() -> str:
    """Name the folder of this run: two people may ask at once in one pod."""
    return f"{_FOLDER_ROLE}{os.getpid()}"


def folder(settings: Settings, environ: Mapping[str, str]) -> list[Finding]:
    """Make the private folder of this role."""
    named = environ.get("TMPDIR", "")
    found = []
    try:
        made = files.runtime_dir(settings.runtime_dir, os.getuid(), role(), tmpdir=named)
        found.append(ok("runtime-folder", f"the private folder is {made}"))
    except MpibootError as problem:
        found.append(problem.finding)
    try:
        files.check_tmpdir(named)
    except MpibootError as problem:
        found.append(problem.finding)
    return found


def remove_folder(settings: Settings, environ: Mapping[str, str]) -> None:
    """Leave nothing behind: neither this run's folder nor that of a run that was killed."""
    made = files.find_role(settings.runtime_dir, os.getuid(), role(), environ.get("TMPDIR", ""))
    if made:
        for folder in made.parent.glob(f"{_FOLDER_ROLE}*"):
            if folder == made or not os.path.exists(f"/proc/{folder.name[len(_FOLDER_ROLE) :]}"):  # noqa: PTH110
                files.remove_role(folder)


def key(settings: Settings, environ: Mapping[str, str]) -> list[Finding]:
    """Find the job's key as a launcher or worker finds it."""
    who = pod.identity(environ)
    homes = (who.home, environ.get("HOME", ""))
    mounted = keys.find(settings.ssh_key, homes, who.uid)
    if mounted is None:
        return [keys.missing(settings.ssh_key, homes, who.uid).finding]
    try:
        found = keys.load(mounted)
    except MpibootError as problem:
        return [problem.finding]
    about = mounted.stat()
    mode = f"mode {stat.S_IMODE(about.st_mode):04o} of uid {about.st_uid}"
    # The folder's own: each file of a Secret is a link into a folder beside it.
    read_only = ", read-only" if os.statvfs(mounted).f_flag & os.ST_RDONLY else ""
    kind = found.public.partition(" ")[0]
    message = f"the key is {mounted}, {kind} {found.fingerprint}, {mode}{read_only}"
    other = keys.check_authorized_keys(found, mounted)
    return [ok("ssh-key", message), *([other] if other else [])]


def shims(environ: Mapping[str, str]) -> list[Finding]:
    """Look for mpirun's shims, and for calls that bypass them."""
    try:
        good, bad = names.effects(environ)
    except MpibootError:  # started from a folder of sources, where no shim can lead to it
        good, bad = "", ""
    past = [warned("shims", message) for message in (bad, names.passed_by()) if message]
    return [*([ok("shims", good)] if good else []), *past]


PROC: Final = Path("/proc")
SHM: Final = Path("/dev/shm")  # noqa: S108 - looked at only
# Names of /proc/PID/limits that a job meets.
LIMITS: Final = {
    "locked memory": "Max locked memory",
    "open files": "Max open files",
    "processes": "Max processes",
}
_LIMIT: Final = re.compile(r"^(Max [a-z ]+?) {2,}(\S+)", re.MULTILINE)
_NCCL: Final = "nccl-"
# Files of NCCL that are looked at; a job of 8 ranks a pod has some hundreds.
_MOST: Final = 4096


def limits(server: str, proc: Path = PROC, groups: Path = control_groups.GROUPS) -> LimitsPart:
    """Read the limits of sessions and of the pod's first process.

    Args:
        server: the process whose limits SSH sessions have, as /proc names it; empty where none is.
        proc: where /proc is.
        groups: where control groups are mounted.
    """
    sessions = _limits(proc / server / "limits") if server else {}
    tasks = control_groups.processes(groups, proc)
    return LimitsPart(sessions, _limits(proc / "1/limits"), tasks.used, tasks.limit or 0)


def _limits(path: Path) -> dict[str, int]:
    rows = {match[1]: match[2] for match in _LIMIT.finditer(text(path))}
    known = {name: rows.get(row, "") for name, row in LIMITS.items()}
    return {
        name: -1 if value == "unlimited" else int(value)
        for name, value in known.items()
        if value == "unlimited" or value.isdigit()
    }


def shm(folder: Path = SHM, proc: Path = PROC) -> ShmPart:
    """Measure /dev/shm, and find NCCL's files that no process of this pod holds."""
    room = os.statvfs(folder)
    size = room.f_blocks * room.f_frsize
    used = size - room.f_bfree * room.f_frsize
    files: dict[str, int] = {}
    names = [name for name in os.listdir(folder) if name.startswith(_NCCL)]  # noqa: PTH208
    for path in (folder / name for name in names[:_MOST]):
        with contextlib.suppress(FileNotFoundError):
            files[str(path)] = path.lstat().st_blocks * 512
    if not files:
        return ShmPart(size, used)
    held, all_seen = _held(str(folder), proc)
    stale = tuple((Path(path).name, size) for path, size in files.items() if path not in held)
    return ShmPart(size, used, stale, all_seen)


def _held(folder: str, proc: Path) -> tuple[set[str], bool]:
    """Give the files of a folder that processes have in memory, and whether all could be asked."""
    held, all_seen = set(), True
    for process in (item for item in proc.iterdir() if item.name.isdigit()):
        try:
            lines = (process / "maps").read_text("utf-8", "replace").splitlines()
        except (FileNotFoundError, ProcessLookupError):
            continue
        except OSError:
            all_seen = False
            continue
        held |= {line.split(None, 5)[5] for line in lines if f" {folder}/{_NCCL}" in line}
    return held, all_seen


def memory(groups: Path = control_groups.GROUPS, proc: Path = PROC) -> MemoryPart:
    """Read the container's control group.

    Raises:
        OSError: it can't be read.
    """
    seen = control_groups.memory(groups, proc)
    if not seen.seen:
        raise OSError(0, "no control group of this container can be read")
    return MemoryPart(seen.limit or 0, seen.used, control_groups.kills(groups, proc))


def rp_filters(proc: Path = PROC) -> dict[str, int]:
    """Read rp_filter of each link; of a link's own value and that of all the larger one counts."""
    base = proc / "sys/net/ipv4/conf"
    named = {item.name: text(item / "rp_filter") for item in base.iterdir()}
    numbers = {name: int(value) for name, value in named.items() if value.isdigit()}
    everywhere = numbers.get("all", 0)
    links = {name: value for name, value in numbers.items() if name not in ("all", "default")}
    return {name: max(value, everywhere) for name, value in links.items()}


_MPIBOOT: Final = "mpiboot"  # what its SSH servers say of themselves
_GREETS_WITHIN: Final = 2.0  # seconds; a server greets at once, a proxy never
_GREETING: Final = 255  # RFC 4253, 4.2
# A socket that listens on every address is reached by loopback.
_ANY: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - read, not bound


def servers(own: int, ports: Iterable[int]) -> ServersPart:
    """Ask what listens on these ports for its greeting; what does not speak SSH is left out.

    Args:
        own: the port of this pod's worker, 0 where none runs.
        ports: where else to look.
    """
    found = []
    for port, listening in _listening(own, *ports).items():
        greeting = next(filter(None, (_greeting(item.address, port) for item in listening)), "")
        if greeting:
            pid = _process_of(listening)
            name = text(PROC / str(pid) / "comm") if pid else ""
            found.append(SshListener(port, greeting, pid, name, _MPIBOOT in greeting))
    return ServersPart(own, tuple(found))


def process_of(port: int) -> int:
    """Give the process that listens on a port; 0 where none of this user's does."""
    return _process_of(_listening(port)[port])


def _process_of(listening: Iterable[processes.Listener]) -> int:
    return next((item.pid for item in listening if item.pid), 0)


def _listening(*ports: int) -> dict[int, list[processes.Listener]]:
    """List by its port what listens there, in one look at the sockets."""
    every = processes.listeners()
    return {port: [item for item in every if item.port == port] for port in ports if port}


def _greeting(address: str, port: int) -> str:
    where = (_ANY.get(address, address), port)
    try:
        with socket.create_connection(where, _GREETS_WITHIN) as connection:
            data = connection.recv(_GREETING)
    except OSError:
        return ""
    line = data.partition(b"\n")[0].decode("utf-8", "replace").strip()
    return line if line.startswith("SSH-") else ""


# Before its command line, which it writes anew as it starts to listen: setproctitle() of sshd.c.
_TITLE: Final = "sshd: "
_LISTENER: Final = " [listener]"
# Options of sshd(8) that change its settings, each with a value.
_OPTIONS: Final = ("-f", "-o", "-p", "-h")
_PATIENCE: Final = 5.0  # seconds that a program has


def sshd_settings(
    ports: Iterable[int], who: Identity, proc: Path = PROC
) -> tuple[SshdSettings, ...]:
    """Ask each server that listens on one of these ports and is a process of this user's."""
    found = []
    for port, listening in _listening(*ports).items():
        pid = _process_of(listening)
        argv = arguments(text(proc / str(pid) / "cmdline")) if pid else ()
        if argv:
            found.append(_asked(port, argv, who))
    return tuple(found)


def arguments(cmdline: str) -> tuple[str, ...]:
    """Give the command line of a server out of its process's; empty where it is no sshd."""
    if cmdline.startswith(_TITLE):
        words = cmdline.removeprefix(_TITLE).partition(_LISTENER)[0].split()
    else:
        words = cmdline.rstrip("\0").split("\0")
    return tuple(words) if os.path.basename(words[0] if words else "") == "sshd" else ()  # noqa: PTH119 - of a text


def _asked(port: int, argv: Sequence[str], who: Identity) -> SshdSettings:
    program = argv[0]
    whose = f"user={who.user},host=localhost,addr=127.0.0.1"
    try:
        done = programs.run((program, "-T", "-C", whose, *_kept(argv[1:])), _PATIENCE)
    except OSError as wrong:
        return SshdSettings(port, program, {}, wrong=f"{type(wrong).__name__}: {wrong}")
    if done is None:
        return SshdSettings(port, program, {}, wrong=f"it took longer than {_PATIENCE:g} s")
    values = parsed(done.stdout)
    if done.status or not values:
        message = done.stderr.strip().rpartition("\n")[2]
        return SshdSettings(port, program, {}, wrong=message or f"it ended with {done.status}")
    return SshdSettings(port, program, values, tuple(_keys(values, who)))


def _kept(words: Sequence[str]) -> Iterator[str]:
    """Leave the options that count, also those that are written in one word with their value."""
    rest = iter(words)
    for word in rest:
        if word in _OPTIONS:
            yield from (word, next(rest, ""))
        elif word[:2] in _OPTIONS:
            yield word


def parsed(output: str) -> dict[str, tuple[str, ...]]:
    """Read what ``sshd -T`` prints: a name and its value a line, some of them several times."""
    found: dict[str, tuple[str, ...]] = {}
    for line in output.splitlines():
        name, _, value = line.partition(" ")
        found[name.lower()] = (*found.get(name.lower(), ()), value.strip())
    return found


def _keys(values: dict[str, tuple[str, ...]], who: Identity) -> Iterator[tuple[str, int, int]]:
    """Give what StrictModes looks at: safe_path() of misc.c, up to the home or the root."""
    for name in " ".join(values.get("authorizedkeysfile", ())).split():
        place = name.replace("%h", who.home).replace("%u", who.user).replace("%U", str(who.uid))
        path = os.path.realpath(Path(who.home, place))
        if not os.path.exists(path):  # noqa: PTH110
            continue
        home = os.path.realpath(who.home)
        while path != "/":
            about = os.stat(path)  # noqa: PTH116
            yield path, about.st_mode & 0o7777, about.st_uid
            if path == home:
                return
            path = os.path.dirname(path)  # noqa: PTH120
        return


MODULES: Final = ("asyncssh", "click", "dns", "psutil", "pyroute2")
# glibc's loader and musl's, in their own words.
_NOT_FOUND: Final = ("=> not found", "Error loading shared library", "cannot open shared object")
_WHO: Final = "error while loading shared libraries: "
_MAGIC: Final = b"\x7fELF\x02"  # 64 bits
_PT_INTERP: Final = 3
_LONGEST: Final = 4096


def image(environ: Mapping[str, str]) -> ImagePart:
    """Look for what a job needs of the image."""
    search = programs.search_path(environ)
    mpi = programs.detect_mpi(environ)
    found = [Program("mpirun", mpi.path, _lacks(mpi.path, environ))] if mpi else []
    ssh = shutil.which("ssh", path=search) or ""
    found.append(Program("ssh", ssh, _lacks(ssh, environ)))
    sshd = openssh.find(search)
    if sshd:
        found.append(Program("sshd", sshd, _lacks(sshd, environ)))
    return ImagePart(
        mpi,
        tuple(found),
        _daemon(mpi, search, environ) if mpi else None,
        platform.python_version(),
        tuple(name for name in MODULES if importlib.util.find_spec(name) is None),
        search,
    )


def _daemon(mpi: Mpi, search: str, environ: Mapping[str, str]) -> Program | None:
    if mpi.family is MpiFamily.UNKNOWN or mpi.family.value not in FAMILIES:
        return None
    name = FAMILIES[mpi.family.value].daemon
    beside = (str(Path(mpi.path).parent), os.path.dirname(os.path.realpath(mpi.path)))  # noqa: PTH120
    path = shutil.which(name, path=os.pathsep.join((*beside, search))) or ""
    return Program(name, path, _lacks(path, environ))


def sshd(environ: Mapping[str, str]) -> SshdPart:
    """Ask what the worker asks before it starts a server; nothing is made."""
    who = pod.identity(environ)
    seen = openssh.conditions(who, programs.search_path(environ), make=False)
    return SshdPart(seen.path, openssh.reason_against(seen, who, "/run/mpiboot"))


def loader_of(path: str) -> str:
    """Give the loader that a program names; empty for a script, and for what needs none."""
    try:
        with open(path, "rb") as file:  # noqa: PTH123 - a few bytes
            head = file.read(64)
            if not head.startswith(_MAGIC):
                return ""
            (table,) = struct.unpack_from("<Q", head, 32)
            size, count = struct.unpack_from("<HH", head, 54)
            for place in range(count):
                file.seek(table + place * size)
                row = file.read(size)
                kind, offset, length = *struct.unpack_from("<I4xQ", row), row[32:40]
                if kind == _PT_INTERP:
                    file.seek(offset)
                    name = file.read(min(int.from_bytes(length, "little"), _LONGEST))
                    return name.rstrip(b"\0").decode("utf-8", "replace")
    except (OSError, struct.error):
        pass
    return ""


def _lacks(path: str, environ: Mapping[str, str]) -> tuple[str, ...]:
    loader = loader_of(path) if path else ""
    if not loader:
        return ()
    try:
        done = programs.run((loader, "--list", path), _PATIENCE, environ)
    except FileNotFoundError:
        return (f"its loader {loader} does not exist",)
    except OSError:
        return ()
    lines = (done.stdout + done.stderr).splitlines() if done else []
    bad = (line for line in lines if any(word in line for word in _NOT_FOUND))
    return tuple(dict.fromkeys(line.rpartition(_WHO)[2].strip() for line in bad))


LIBRARY: Final = "libcuda.so.1"
_VERSION: Final = re.compile(r"Kernel Module(?: +for \S+)? +([0-9]+(?:\.[0-9]+)+)")
_CLUSTER: Final = re.compile(r"^ +ClusterUUID +: ([0-9a-f-]{36})$", re.MULTILINE)
_CHANNEL: Final = re.compile(r"channel[0-9]+")
# Where the loader and NVIDIA's container toolkit have it, on Debian, Red Hat and GKE.
_FOLDERS: Final = (
    *("usr/local/nvidia/lib64", "usr/local/nvidia/lib", "lib64", "usr/lib64"),
    *("usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu", "lib", "usr/lib"),
)


def nvidia(environ: Mapping[str, str], root: Path = Path("/")) -> NvidiaPart:
    """Look; without a driver or without a GPU in this pod nothing more is asked."""
    driver = version(text(root / "proc/driver/nvidia/version"))
    dev = root / "dev"
    if not driver or not any(dev.glob("nvidia[0-9]*")):
        return NvidiaPart(driver)
    found = next((item for item in _folders(environ, root) if (item / LIBRARY).exists()), None)
    library = str((found / LIBRARY).resolve()) if found else ""
    channels = dev / "nvidia-caps-imex-channels"
    listed = os.listdir(channels) if channels.is_dir() else []  # noqa: PTH208 - names only
    count = sum(bool(_CHANNEL.fullmatch(name)) for name in listed)
    fabric = cluster(nvidia_smi(environ.get("PATH", "")))
    return NvidiaPart(driver, library, str(found or ""), fabric, count)


def version(content: str) -> str:
    """Read the driver's version out of /proc/driver/nvidia/version; empty where it has none."""
    found = _VERSION.search(content)
    return found[1] if found else ""


def cluster(output: str) -> str:
    """Read a fabric's UUID out of ``nvidia-smi -q``; one that ends at the node has zeros."""
    listed = _CLUSTER.findall(output)
    return next((item for item in listed if item.strip("0-")), "")


def _folders(environ: Mapping[str, str], root: Path) -> Iterator[Path]:
    """Give the loader's folders in its order; of its cache, those by which that is made."""
    named = environ.get("LD_LIBRARY_PATH", "").split(":")
    yield from (root / item.lstrip("/") for item in named if item.startswith("/"))
    lists = root / "etc/ld.so.conf.d"
    for path in sorted(lists.glob("*.conf")) if lists.is_dir() else ():
        lines = map(str.strip, text(path).splitlines())
        yield from (root / line.lstrip("/") for line in lines if line.startswith("/"))
    yield from (root / item for item in _FOLDERS)


_VENDORS: Final = ("0x10de", "0x1002")
_CLASSES: Final = ("0x0300", "0x0302", "0x0380", "0x1200")


def pci(facts: PodFacts, sys_root: Path = Path("/sys")) -> PciPart:
    """Read the paths of the functions; a GPU of another pod on the node is left out by its count.

    Which of the node's GPUs are this pod's only the driver knows: where the pod has fewer than
    sysfs shows, none is named.
    """
    folder = sys_root / "bus/pci/devices"
    gpus = [
        one.name
        for one in pci_functions(sys_root)
        if text(one / "vendor") in _VENDORS and text(one / "class").startswith(_CLASSES)
    ]
    if len(gpus) != facts.gpus.count:
        gpus = []
    devices = {item.name: item.pci for item in facts.fabric.devices if item.opens and item.pci}
    places = {**{name: name for name in gpus}, **devices}
    base = str((sys_root / "devices").resolve())
    paths = {
        name: str((folder / function).resolve()).removeprefix(base).lstrip("/")
        for name, function in places.items()
    }
    numa = {name: text(folder / function / "numa_node") for name, function in places.items()}
    return PciPart(
        {name: paths[name] for name in gpus},
        {name: paths[name] for name in devices},
        {name: int(value) for name, value in numa.items() if value.lstrip("-").isdigit()},
    )


SPAN: Final = 1.0  # seconds between the two readings; the looks of the others take as long


def counters(
    facts: PodFacts, sys_root: Path = Path("/sys"), wait: Callable[[float], None] = time.sleep
) -> CountersPart:
    """Read the counters of the devices that this pod may open, and by how much they grow."""
    names = [device.name for device in facts.fabric.devices if device.opens]
    first = _counted(names, sys_root)
    if not first:
        return CountersPart({})
    began = time.monotonic()
    wait(SPAN)
    sums = _counted(names, sys_root)
    grown = {
        port: {name: value - first.get(port, {}).get(name, value) for name, value in now.items()}
        for port, now in sums.items()
    }
    return CountersPart(sums, grown, time.monotonic() - began)


def _counted(names: list[str], sys_root: Path) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for name in names:
        ports = sys_root / "class/infiniband" / name / "ports"
        for port in sorted(ports.iterdir()) if ports.is_dir() else ():
            files = (path for path in port.glob("*counters/*") if path.name in EXPLAINING)
            values = {path.name: text(path) for path in sorted(files)}
            known = {counter: int(value) for counter, value in values.items() if value.isdigit()}
            if known:
                found[f"{name}:{port.name}"] = known
    return found
