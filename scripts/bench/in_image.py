"""A benchmark in namespaces of its own, on request in an image of container/ with its MPI."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

from common import ROOT

_INSIDE = "BENCH_INSIDE"  # environment variable: the namespaces are there
_HOSTNAME = "bench-launcher"
LINK = "bench0"  # in an image there is one more link than loopback, as a pod has it
# An overlay over the image's layers, with this repository at its own path.
_SCRIPT = """
scratch=$1 layers=$2 repository=$3; shift 3
ip link set lo up
ip link add "$LINK" type veth peer name peer
ip link set peer up
ip addr add 10.77.0.1/16 dev "$LINK"
ip link set "$LINK" up
hostname "$HOSTNAME"
mkdir "$scratch/upper" "$scratch/work" "$scratch/root"
root=$scratch/root
mount -t overlay -o "lowerdir=$layers,upperdir=$scratch/upper,workdir=$scratch/work" image "$root"
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
mount -t sysfs sysfs "$root/sys"
mkdir -p "$root$repository"
mount --bind "$repository" "$root$repository"
echo "127.0.0.1 localhost $HOSTNAME" >"$root/etc/hosts"
exec chroot "$root" "$@"
"""


def inside(image: str | None) -> None:
    """Return where this process is where it is to measure; else begin again there, as root.

    What is left ends with the namespaces. Without root, and without an image, it stays where it is.
    """
    if os.environ.get(_INSIDE):
        _loopback()
        return
    if os.getuid() or not shutil.which("unshare"):
        if image:
            sys.exit("--image needs root and unshare")
        return
    words = ["unshare", "--net", "--pid", "--uts", "--mount", "--fork", "--kill-child"]
    os.environ[_INSIDE] = "1"
    # What is told to end ends the namespaces: unshare itself ignores this signal.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    if not image:
        argv = [*words, "--mount-proc", sys.executable, *sys.argv]
        sys.exit(subprocess.run(argv, check=False).returncode)
    # Not in an image, which lacks what the rig takes.
    from tests.pods import images  # noqa: PLC0415
    from tests.pods.cache import CACHE  # noqa: PLC0415

    made = images.image(image, programs=False)
    with tempfile.TemporaryDirectory(dir=CACHE, prefix="bench-") as scratch:
        lower = ":".join(map(str, made.layers))
        python = "/opt/mpiboot/bin/python3"
        program = str(Path(sys.argv[0]).resolve())
        argv = [*words, "sh", "-ec", _SCRIPT, "sh", scratch, lower, str(ROOT)]
        env = {**os.environ, **made.env, "HOSTNAME": _HOSTNAME, "LINK": LINK}
        done = subprocess.run([*argv, python, program, *sys.argv[1:]], env=env, check=False)
    sys.exit(done.returncode)


def _loopback() -> None:
    """Bring the namespace's loopback up (SIOCSIFFLAGS, netdevice(7))."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        fcntl.ioctl(sock, 0x8914, struct.pack("16sh14x", b"lo", 0x1 | 0x40))
