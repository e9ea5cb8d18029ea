"""JAX on several hosts: processes find each other by mpi4py or by variables, and add up."""

import os
import socket

import jax
import numpy as np

if "MASTER_ADDR" in os.environ:
    jax.distributed.initialize(
        f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}",
        num_processes=int(os.environ["WORLD_SIZE"]),
        process_id=int(os.environ["RANK"]),
    )
else:
    jax.distributed.initialize(cluster_detection_method="mpi4py")

from jax.experimental.multihost_utils import process_allgather

rank, size = jax.process_index(), jax.process_count()
numbers = process_allgather(np.array([rank + 1]))
print(f"\nrank {rank} of {size} on {socket.gethostname()}\nsum {numbers.sum()}", flush=True)
