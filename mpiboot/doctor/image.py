"""The image: programs of MPI and SSH, their libraries, the user, mpiboot's names. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from mpiboot.core.model import Finding, Identity, Mpi, Role
from mpiboot.doctor.checks import check, failed, ok, warned


@dataclass(frozen=True, slots=True)
class Program:
    """A program of the image; ``path`` is empty where there is none.

    ``lacks`` are the lines in which the loader tells of libraries that it does not find.
    """

    name: str
    path: str
    lacks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ImagePart:
    """The image: its MPI, the programs that a job needs, and this Python.

    ``daemon`` is the program that mpirun starts on every host, None where that isn't known;
    ``modules`` are those that mpiboot needs and that can't be found.
    """

    mpi: Mpi | None
    programs: tuple[Program, ...]
    daemon: Program | None
    python: str
    modules: tuple[str, ...]
    search: str = ""


@dataclass(frozen=True, slots=True)
class SshdPart:
    """OpenSSH's sshd: its file (empty: none), and why it can't serve this pod (empty: it can)."""

    path: str
    against: str


@dataclass(frozen=True, slots=True)
class ShimsPart:
    """Which calls by the usual names start mpiboot, and what has passed it by."""

    good: str
    bad: tuple[str, ...]


@check(
    "program-missing",
    "mpirun and mpiexec on PATH, and what `mpirun --version` says; ssh on PATH",
    ok="they are there; a worker needs no ssh",
    fail="there is no mpirun",
    at_build=True,
)
def programs(image: ImagePart) -> Iterable[Finding]:
    """Judge whether mpirun and ssh are there; a worker needs no ssh."""
    if image.mpi is None:
        yield failed(
            "program-missing",
            "no mpirun or mpiexec in a folder of PATH",
            evidence=(f"PATH={image.search}",),
            hint="install an MPI in the image, or put its bin folder on PATH",
        )
    else:
        yield ok("program-missing", f"mpirun is {image.mpi.path}, {image.mpi.banner}")
    ssh = next((item.path for item in image.programs if item.name == "ssh"), "")
    message = f"ssh is {ssh}" if ssh else "no ssh on PATH; only a launcher needs one"
    yield ok("program-missing", message)


@check(
    "mpi-daemon",
    "orted, prted or hydra_pmi_proxy, beside mpirun and on PATH",
    title="the program that mpirun starts on every host is installed",
    hint="install the whole MPI in the image of launcher and workers (Debian: openmpi-bin, mpich)",
    ok="it is there",
    fail="mpirun is there without it: no host can be joined",
    at_build=True,
)
def daemon(image: ImagePart) -> Iterable[Finding]:
    """Judge whether the daemon of the MPI is there."""
    if image.mpi is None or image.daemon is None:
        return  # said already; or an MPI whose daemon is not known
    name = image.daemon.name
    if image.daemon.path:
        yield ok("mpi-daemon", f"{name} is {image.daemon.path}")
    else:
        yield failed("mpi-daemon", f"{image.mpi.path} has no {name} beside it or on PATH")


@check(
    "shared-libraries",
    "what the loader says of mpirun, its daemon, ssh and sshd (`ld.so --list`, as ldd does)",
    title="the programs of MPI and SSH find their shared libraries",
    hint="install the library in the image, or put its folder into LD_LIBRARY_PATH of the pod "
    "(`env:` of the container), from where every session gets it",
    ok="every library is found",
    fail="one is not: that program does not start",
    at_build=True,
)
def libraries(image: ImagePart) -> Iterable[Finding]:
    """Judge whether the programs find their libraries."""
    daemon = (image.daemon,) if image.daemon else ()
    listed = [item for item in (*image.programs, *daemon) if item.path]
    for item in listed:
        if item.lacks:
            message = f"{item.path} does not find all of its shared libraries"
            yield failed("shared-libraries", message, evidence=item.lacks)
    if listed and not any(item.lacks for item in listed):
        names = ", ".join(item.name for item in listed)
        yield ok("shared-libraries", f"shared libraries: all are found for {names}")


@check(
    "python-modules",
    "the modules that mpiboot imports",
    title="mpiboot's own Python modules are installed",
    hint="install the wheel with what it needs: `pip install mpiboot-*.whl`, without --no-deps",
    ok="all can be found",
    fail="mpiboot was installed without one",
    at_build=True,
)
def python(image: ImagePart) -> Iterable[Finding]:
    """Judge mpiboot's own modules."""
    if image.modules:
        message = f"Python {image.python} does not find {', '.join(image.modules)}"
        yield failed("python-modules", message)
    else:
        yield ok("python-modules", f"Python {image.python} has what mpiboot needs")


@check(
    "passwd-entry",
    "the passwd entry of the pod's uid",
    title="the pod's user has a passwd entry",
    hint="runAsUser: a uid that the image has, or add a line for this one to /etc/passwd in the "
    "image; ssh, sshd and the user's own programs may ask for it, mpiboot goes without",
    ok="there is one",
    warn="there is none, as under OpenShift's random uid",
)
def passwd(identity: Identity) -> Iterable[Finding]:
    """Judge the user's entry."""
    if identity.known:
        yield ok(
            "passwd-entry", f"uid {identity.uid} is {identity.user}, at home in {identity.home}"
        )
    else:
        yield warned("passwd-entry", f"uid {identity.uid} has no passwd entry")


@check(
    "openssh-server",
    "sshd's file, capabilities, /run/sshd, the account and its shell",
    title="OpenSSH's server can serve this pod",
    hint="securityContext: {capabilities: {add: [SETUID, SETGID, SYS_CHROOT]}} for a pod that "
    "runs as root; or leave it: mpiboot's own server takes its place",
    role=Role.WORKER,
    ok="sshd can serve; or it is not there, and mpiboot's own server is used",
    warn="sshd is there, and something keeps it from serving",
    at_build=True,
)
def openssh(sshd: SshdPart, identity: Identity) -> Iterable[Finding]:
    """Judge whether sshd can serve; what mpiboot's own server is made for is no trouble."""
    if not sshd.path or not identity.known:
        yield ok("openssh-server", f"mpiboot's own SSH server serves: {sshd.against}")
    elif sshd.against:
        message = f"{sshd.path} can't serve, so mpiboot's own server does: {sshd.against}"
        yield warned("openssh-server", message)
    else:
        yield ok("openssh-server", f"{sshd.path} can serve")


@check(
    "shims",
    "the first mpirun and mpiexec on PATH, and this container's first process",
    ok="they start mpiboot",
    warn="a shim is there and has no effect, or was passed by",
)
def shims(shims: ShimsPart) -> Iterable[Finding]:
    """Tell what enters mpiboot by its name, and what has passed it by; nothing without shims."""
    if shims.good:
        yield ok("shims", shims.good)
    for message in shims.bad:
        yield warned("shims", message)
