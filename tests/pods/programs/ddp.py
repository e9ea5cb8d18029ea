"""Data-parallel training over Gloo: each rank has data of its own, and all end with one model."""

import hashlib
import socket

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(rank)  # other weights and other data on each rank: DDP starts with rank 0's
model = DistributedDataParallel(torch.nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(5):
    optimizer.zero_grad()
    model(torch.randn(16, 64)).square().mean().backward()
    optimizer.step()
weights = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
digest = hashlib.sha256(weights.numpy().tobytes()).hexdigest()[:16]
print(f"\nrank {rank} of {size} on {socket.gethostname()}\nmodel {digest}", flush=True)
dist.destroy_process_group()
