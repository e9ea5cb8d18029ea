"""Data-parallel training over Horovod: a sum over all ranks, and one model at the end."""

import hashlib
import socket

import horovod.torch as hvd
import torch

hvd.init()
rank, size = hvd.rank(), hvd.size()
total = hvd.allreduce(torch.tensor([rank + 1.0]), op=hvd.Sum).item()
torch.manual_seed(rank)
model = torch.nn.Linear(64, 1)
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
for _ in range(5):
    optimizer.zero_grad()
    model(torch.randn(16, 64)).square().mean().backward()
    optimizer.step()
weights = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
digest = hashlib.sha256(weights.numpy().tobytes()).hexdigest()[:16]
host = socket.gethostname()
print(f"\nrank {rank} of {size} on {host}\nsum {total:g}\nmodel {digest}", flush=True)
hvd.shutdown()
