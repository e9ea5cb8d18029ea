"""A whole job: launcher and workers of mpiboot, mpirun, and ranks that use RDMA as they are told.

Its own run of the machine: under emulation it takes minutes. The workers are two loopback
addresses of one machine, so both ends are on its one device, whose GID index is not the usual.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.validate.test_nccl_tests import HEAD, ROW
from tests.vm.inside.machine import devinfo, has_gid, others_gid, rail, run

# Short: Open MPI's sockets lie below it, and a socket's path has 107 characters at most.
FOLDER = Path("/run/job")
ADDRESSES = ("127.0.0.11", "127.0.0.12")
COUNTER = Path("/sys/class/infiniband/rxe0/ports/1/hw_counters/sent_pkts")
# Each rank takes device, port and index from mpiboot's variables, and from nowhere else.
RANK = """
device=$UCX_NET_DEVICES
set -- -d ${device%:*} -i ${device#*:} -g $NCCL_IB_GID_INDEX -s 65536 -n 20 -p 18515
[ $OMPI_COMM_WORLD_RANK = 0 ] && exec ibv_rc_pingpong --chk "$@"
for try in 1 2 3 4 5 6 7 8 9 10; do
    sleep 1
    ibv_rc_pingpong --chk "$@" 127.0.0.1 && exit
done
exit 1
"""

# What a rank sends past the device: more than could be anything but data, to nobody.
NOBODY = "10.9.0.9"
SENDS = f"""
import socket
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as past:
    for _ in range(20000):
        past.sendto(bytes(4000), ("{NOBODY}", 9))
"""
# A measurement whose data goes by sockets, as NCCL's does where it can't use the device.
TOOL = f"""#!/bin/sh
[ $OMPI_COMM_WORLD_RANK = 0 ] || exit 0
{sys.executable} {FOLDER}/sends.py
cat <<'END'
{HEAD + ROW}END
"""
DATA = {
    "MPIBOOT_DATA_IFNAME": "rail0",
    "MPIBOOT_PROVE_TRANSPORT": "fail",
    # It would take index 0, so that the right one must be in a variable.
    "MPIBOOT_NCCL_VERSION": "2.20.5",
    # These "hosts" share one /dev/shm, where ranks would read each other's segments.
    "OMPI_MCA_btl": "self,tcp",
}


def start(name: str, *words: str, **more: str) -> subprocess.Popen[str]:
    home = FOLDER / name
    home.mkdir()
    own = {
        "HOME": str(home),
        "TMPDIR": str(home),
        "MPIBOOT_RUNTIME_DIR": str(home / "run"),
        "MPIBOOT_TERMINATION_LOG": str(home / "log"),
        "MPIBOOT_SSH_KEY": str(FOLDER / "key"),
        "MPIBOOT_SSH_PORT": "2299",
    }
    return subprocess.Popen(
        [sys.executable, "-m", "mpiboot", *words],
        env={**os.environ, **own, **more},
        stdout=subprocess.PIPE,
        text=True,
    )


def launched(name: str, *program: str) -> tuple[int, str, dict[str, Any]]:
    """Run a launcher to its end; give its exit code, what it printed, and the job's record."""
    launcher = start(
        name,
        *("launcher", "--hostfile", str(FOLDER / "hostfile"), "--", *program),
        MPIBOOT_JOB_RECORD=str(FOLDER / f"{name}.json"),
        **DATA,
    )
    message = ended(launcher)
    return launcher.returncode, message, json.loads((FOLDER / f"{name}.json").read_text())


def ended(launcher: subprocess.Popen[str]) -> str:
    try:
        return launcher.communicate(timeout=500)[0]
    finally:
        launcher.kill()


def test_ranks_use_the_device_and_the_index_that_were_delivered() -> None:
    rail(0, mtu=4200)
    others_gid()
    run("ip address add 10.9.0.1/24 dev rail0")
    has_gid("rxe0", "::ffff:10.9.0.1")
    (index,) = [index for index, gid, _ in devinfo("rxe0").gids if gid == "::ffff:10.9.0.1"]
    before = int(COUNTER.read_text())
    FOLDER.mkdir()
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", FOLDER / "key"], check=True
    )
    (FOLDER / "hostfile").write_text("".join(f"{address} slots=1\n" for address in ADDRESSES))
    (FOLDER / "rank.sh").write_text(RANK)
    (FOLDER / "sends.py").write_text(SENDS)
    run(f"ip neighbour add {NOBODY} lladdr 02:00:00:00:00:09 dev rail0")
    workers = [
        start(address, "worker", "--control-ifname", address, MPIBOOT_SSHD="embedded")
        for address in ADDRESSES
    ]
    try:
        code, message, record = launched("launcher", "mpirun", "sh", f"{FOLDER}/rank.sh")
        moved = int(COUNTER.read_text()) - before
        tcp, _, fallen_back = launched("tcp", "mpirun", sys.executable, f"{FOLDER}/sends.py")
        tool = FOLDER / "all_reduce_perf"
        tool.write_text(TOOL)
        tool.chmod(0o755)
        words = ("--hostfile", str(FOLDER / "hostfile"), "--tool", str(tool), "--time", "400")
        validate = start("validate", "validate", "job", *words, "--json", **DATA)
        judged = json.loads(ended(validate))
    finally:
        for worker in workers:
            worker.kill()
            worker.communicate()
    assert code == 0
    carried = record["transport"]
    assert (carried["planned"], carried["verdict"]) == ("RoCE", "ok")
    for ports in carried["hosts"].values():
        port = ports["rxe0:1"]
        assert (port["unit"], port["link"], port["rdma"]) == ("packets", "rail0", True)
        assert port["sent"] == moved
    # Ranks that leave the device alone: the job ends well, and fails for that.
    assert (tcp, fallen_back["reference"]) == (76, "transport")
    assert "but no packet went through rxe0 on rail0 on 2 of 2 workers" in fallen_back["reason"]
    # The same is what a measurement is judged by.
    assert validate.returncode == judged["exit"] == 76
    assert judged["verdict"]["check"] == "transport"
    assert "but no packet went through rxe0 on rail0 on 2 of 2" in judged["verdict"]["message"]
    assert index not in (0, 1)
    assert message.count("GID ::ffff:10.9.0.1\n") == 4, (
        message
    )  # each end says its own and the peer's
    assert moved > 2 * 20 * 65536 // 4096
