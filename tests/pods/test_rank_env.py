"""Programs that torchrun would start: their ranks learn who they are, and meet."""

from __future__ import annotations

import yaml  # type: ignore[import-untyped]

from tests import pages
from tests.pods import images
from tests.pods.cluster import Cluster
from tests.pods.jobs import ended
from tests.pods.marks import each

# What torch.distributed does with its variables: ranks connect to where rank 0 listens.
MEET = """
import os, socket, sys, time
names = "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_PORT"
rank, size, local, here, port = (int(os.environ[name]) for name in names)
place = os.environ["MASTER_ADDR"], port
if rank:
    end = time.monotonic() + 60
    while True:
        try:
            meeting = socket.create_connection(place, timeout=60)
            break
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.05)
    meeting.sendall(f"{rank} of {size}, {local} of {here} on {socket.gethostname()}\\n".encode())
    meeting.shutdown(socket.SHUT_WR)
    meeting.recv(1)
else:
    server = socket.create_server(place)
    server.settimeout(60)
    peers = [server.accept()[0] for _ in range(size - 1)]
    print(f"0 of {size}, {local} of {here} on {socket.gethostname()} {sys.argv[1:]}")
    for peer in peers:
        print(peer.makefile().read(), end="")
    for peer in peers:
        peer.close()
"""


@each("openmpi-5.0", "openmpi-4.1", "mpich-4.0", "intel-mpi")
def test_ranks_know_who_they_are_and_meet(cluster: Cluster, rig: None, name: str) -> None:
    """As the page has it; each MPI really sets the variables that the table names."""
    (container,) = yaml.safe_load(pages.named("torchrun"))
    job = ended(
        cluster,
        images.image(name).with_files({"/train.py": MEET}),
        *container["args"],
        slots=2,
        launcher={"env": {item["name"]: item["value"] for item in container["env"]}},
    )
    first, *others = job.launcher.stdout().splitlines()
    assert first == "0 of 4, 0 of 2 on pi-worker-0 ['--epochs', '3']"
    assert sorted(others) == [
        "1 of 4, 1 of 2 on pi-worker-0",
        "2 of 4, 0 of 2 on pi-worker-1",
        "3 of 4, 1 of 2 on pi-worker-1",
    ]
