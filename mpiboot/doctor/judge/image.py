"""Whether an image has what a job needs. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from mpiboot.core.checks import BY_REFERENCE, failed
from mpiboot.core.model import Finding, Identity, Level
from mpiboot.doctor.report import ImagePart, ShimsPart, SshdPart


def warned(check: str, said: str, *evidence: str, hint: str | None = None) -> Finding:
    """Build a warning of a row, with the row's own hint where none is given."""
    mend = BY_REFERENCE[check].hint if hint is None else hint
    return Finding(check, Level.WARN, said, evidence=evidence, hint=mend)


def ok(check: str, said: str) -> Finding:
    """Build a finding of a row that holds."""
    return Finding(check, Level.OK, said)


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
        yield ok("program-missing", f"mpirun is {image.mpi.path}, {image.mpi.said}")
    ssh = next((item.path for item in image.programs if item.name == "ssh"), "")
    said = f"ssh is {ssh}" if ssh else "no ssh on PATH; only a launcher needs one"
    yield ok("program-missing", said)


def daemon(image: ImagePart) -> Iterable[Finding]:
    """Judge whether the daemon of the MPI is there."""
    if image.mpi is None or image.daemon is None:
        return  # said already; or an MPI whose daemon is not known
    name = image.daemon.name
    if image.daemon.path:
        yield ok("mpi-daemon", f"{name} is {image.daemon.path}")
    else:
        yield failed("mpi-daemon", f"{image.mpi.path} has no {name} beside it or on PATH")


def libraries(image: ImagePart) -> Iterable[Finding]:
    """Judge whether the programs find their libraries."""
    daemon = (image.daemon,) if image.daemon else ()
    listed = [item for item in (*image.programs, *daemon) if item.path]
    for item in listed:
        if item.lacks:
            said = f"{item.path} does not find all of its shared libraries"
            yield failed("shared-libraries", said, evidence=item.lacks)
    if listed and not any(item.lacks for item in listed):
        names = ", ".join(item.name for item in listed)
        yield ok("shared-libraries", f"shared libraries: all are found for {names}")


def python(image: ImagePart) -> Iterable[Finding]:
    """Judge mpiboot's own modules."""
    if image.modules:
        said = f"Python {image.python} does not find {', '.join(image.modules)}"
        yield failed("python-modules", said)
    else:
        yield ok("python-modules", f"Python {image.python} has what mpiboot needs")


def passwd(who: Identity) -> Iterable[Finding]:
    """Judge the user's entry."""
    if who.known:
        yield ok("passwd-entry", f"uid {who.uid} is {who.user}, at home in {who.home}")
    else:
        yield warned("passwd-entry", f"uid {who.uid} has no passwd entry")


def openssh(sshd: SshdPart, who: Identity) -> Iterable[Finding]:
    """Judge whether sshd can serve; what mpiboot's own server is made for is no trouble."""
    if not sshd.path or not who.known:
        yield ok("openssh-server", f"mpiboot's own SSH server serves: {sshd.against}")
    elif sshd.against:
        said = f"{sshd.path} can't serve, so mpiboot's own server does: {sshd.against}"
        yield warned("openssh-server", said)
    else:
        yield ok("openssh-server", f"{sshd.path} can serve")


def shims(seen: ShimsPart) -> Iterable[Finding]:
    """Tell what enters mpiboot by its name, and what has passed it by; nothing without shims."""
    if seen.good:
        yield ok("shims", seen.good)
    for said in seen.bad:
        yield warned("shims", said)
