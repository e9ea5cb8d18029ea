"""DeepSpeed's ZeRO over Gloo: each rank has data and a part of the optimizer of its own."""

import hashlib
import socket

import deepspeed
import torch

# No compiler is in the image, and DeepSpeed would build this of its own where one could be.
deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
deepspeed.init_distributed(dist_backend="gloo")
rank, size = torch.distributed.get_rank(), torch.distributed.get_world_size()
torch.manual_seed(rank)
model = torch.nn.Linear(64, 1)
settings = {"train_batch_size": 16 * size, "zero_optimization": {"stage": 1}}
settings["zero_allow_untested_optimizer"] = True
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=settings)
for _ in range(5):
    engine.backward(engine(torch.randn(16, 64)).square().mean())
    engine.step()
weights = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
digest = hashlib.sha256(weights.float().numpy().tobytes()).hexdigest()[:16]
print(f"\nrank {rank} of {size} on {socket.gethostname()}\nmodel {digest}", flush=True)
torch.distributed.destroy_process_group()
