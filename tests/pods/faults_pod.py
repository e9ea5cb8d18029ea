"""Pods whose image, key or limits are broken."""

from __future__ import annotations

from typing import Final

from tests.pods.fault import Fault

PYTHON: Final = "/opt/mpiboot/bin/python"
_OTHER_KEY: Final = (
    "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIEQUxy4WYEi1LakxiuPSI/56VnA7mxiD+/TxPqEdZaur\n"
)
_HOST_KEY: Final = (
    "mkdir -p /run/sshd; ssh-keygen -qt ed25519 -N '' -f /etc/ssh/ssh_host_ed25519_key"
)
SSHD: Final = ("sh", "-c", f"{_HOST_KEY}; exec /usr/sbin/sshd -De -f /dev/null")


FAULTS: Final = (
    # -- image -------------------------------------------------------------------------------------
    Fault(
        what="an image without mpirun",
        check="program-missing",
        level="fail",
        message="no mpirun or mpiexec on PATH",
        hint="install an MPI in the image, or put its bin folder on PATH",
        without=("/usr/bin/mpirun", "/usr/bin/mpiexec"),
    ),
    Fault(
        what="an MPI without its daemon",
        check="mpi-daemon",
        level="fail",
        message="/usr/bin/mpirun has no orted beside it or on PATH",
        without=("/usr/bin/orted",),
        quick=True,
    ),
    Fault(
        what="a missing library of mpirun",
        check="shared-libraries",
        level="fail",
        message="/usr/bin/mpirun does not find all of its shared libraries",
        without=("/usr/lib/x86_64-linux-gnu/libhwloc.so.15",),
    ),
    Fault(
        what="a uid without a passwd entry",
        check="passwd-entry",
        level="warn",
        message="uid 4711 has no passwd entry",
        pod={"user": 4711, "env": {"MPIBOOT_SSH_KEY": "/etc/mpiboot/ssh"}},
        key_path="/etc/mpiboot/ssh",
    ),
    # -- files and keys ----------------------------------------------------------------------------
    Fault(
        what="no key in the pod",
        check="ssh-key",
        level="fail",
        message="no private SSH key in /etc/mpiboot/ssh, /root/.ssh",
        key=None,
        quick=True,
    ),
    Fault(
        what="a key of another owner that this user can't read",
        check="ssh-key",
        level="fail",
        message="uid 1000 can't reach the key /home/mpi/.ssh/id_rsa: "
        "/home/mpi/.ssh/id_rsa has mode 0600 of uid 0",
        hint="set securityContext.fsGroup in the pod, and defaultMode: 0440 for the key's Secret",
        pod={"user": 1000},
        key_path="/home/mpi/.ssh",
        key_mode=0o600,
    ),
    Fault(
        what="a Secret whose key is no key",
        check="ssh-key",
        level="fail",
        message="the key /root/.ssh/id_rsa is not a private key: Invalid private key",
        key={"id_rsa": "not a key\n"},
    ),
    Fault(
        what="authorized_keys of another key",
        check="ssh-key",
        level="warn",
        message="/root/.ssh/authorized_keys lacks the job's key SHA256:... of /root/.ssh/id_rsa, "
        "the only one that is accepted",
        hint="launcher and workers must mount the same key Secret",
        key={"authorized_keys": _OTHER_KEY},
    ),
    Fault(
        what="a TMPDIR that is read-only",
        check="tmpdir",
        level="fail",
        message="TMPDIR=/sys can't be used: /sys can't be written",
        pod={"env": {"TMPDIR": "/sys"}},
    ),
    Fault(
        what="a runtime folder that can't be written",
        check="runtime-folder",
        level="fail",
        message="the runtime folder /sys/mpiboot can't be used: "
        "/sys/mpiboot can't be written: Read-only file system",
        pod={"env": {"MPIBOOT_RUNTIME_DIR": "/sys/mpiboot"}},
    ),
    # -- limits ------------------------------------------------------------------------------------
    Fault(
        what="a full /dev/shm",
        check="shm-full",
        level="warn",
        message="... of 64 MiB in /dev/shm in use",
        before="head -c 62M /dev/zero >/dev/shm/filled",
        quick=True,
    ),
    Fault(
        what="a rank that was killed as the memory was used up",
        check="memory-limit",
        level="warn",
        message="out of memory: the kernel killed 1 process here; memory: ... of 256 MiB in use",
        pod={"memory": 256 << 20},
        before=f"""{PYTHON} -c 'b"x" * (1 << 30)' || true""",
    ),
    Fault(
        what="a GPU that the kernel has lost",
        check="gpus",
        level="warn",
        message="1 of 1 GPUs in /dev are no longer on the PCI bus",
        before="mknod /dev/nvidia0 c 195 0",
    ),
    Fault(
        what="SSH sessions with fewer open files than the pod",
        check="session-limits",
        level="warn",
        message="SSH sessions get less: open files 1000 (the first process: ...)",
        runs=("sh", "-c", "(ulimit -Sn 1000; exec mpiboot worker) & wait"),
        until="listens on",
    ),
    # -- SSH servers -------------------------------------------------------------------------------
    Fault(
        what="an SSH server that is not mpiboot's",
        check="other-ssh-server",
        level="warn",
        message="port 22: process 1 (sshd) listens, which mpiboot did not start",
        runs=SSHD,
        until="Server listening",
    ),
)
