"""The image's rows. Pure."""

from __future__ import annotations

from typing import Final

from mpiboot.core.model import Level
from mpiboot.doctor.judge import image
from mpiboot.doctor.rows.pod_check import PodCheck

ROWS: Final = (
    PodCheck(
        "program-missing",
        "mpirun and mpiexec on PATH, and what `mpirun --version` says; ssh on PATH",
        ("image",),
        image.programs,
        {Level.OK: "they are there; a worker needs no ssh", Level.FAIL: "there is no mpirun"},
        at_build=True,
    ),
    PodCheck(
        "mpi-daemon",
        "orted, prted or hydra_pmi_proxy, beside mpirun and on PATH",
        ("image",),
        image.daemon,
        {Level.OK: "it is there", Level.FAIL: "mpirun is there without it: no host can be joined"},
        at_build=True,
    ),
    PodCheck(
        "shared-libraries",
        "what the loader says of mpirun, its daemon, ssh and sshd (`ld.so --list`, as ldd does)",
        ("image",),
        image.libraries,
        {Level.OK: "every library is found", Level.FAIL: "one is not: that program does not start"},
        at_build=True,
    ),
    PodCheck(
        "python-modules",
        "the modules that mpiboot imports",
        ("image",),
        image.python,
        {Level.OK: "all can be found", Level.FAIL: "mpiboot was installed without one"},
        at_build=True,
    ),
    PodCheck(
        "openssh-server",
        "sshd's file, capabilities, /run/sshd, the account and its shell",
        ("sshd", "identity"),
        image.openssh,
        {
            Level.OK: "sshd can serve; or it is not there, and mpiboot's own server is used",
            Level.WARN: "sshd is there, and something keeps it from serving",
        },
        at_build=True,
    ),
    PodCheck(
        "passwd-entry",
        "the passwd entry of the pod's uid",
        ("identity",),
        image.passwd,
        {Level.OK: "there is one", Level.WARN: "there is none, as under OpenShift's random uid"},
    ),
    PodCheck(
        "shims",
        "the first mpirun and mpiexec on PATH, and this container's first process",
        ("shims",),
        image.shims,
        {
            Level.OK: "they start mpiboot",
            Level.WARN: "a shim is there and has no effect, or was passed by",
        },
    ),
)
