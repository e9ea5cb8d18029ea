"""Horovod's elastic mode: a rank that goes on alone until another host has joined."""

import socket
import time

import horovod.torch as hvd
import torch

hvd.init()


@hvd.elastic.run
def train(state: hvd.elastic.TorchState) -> None:
    """It starts anew, from the state, whenever hosts have come or gone."""
    print(f"\n{hvd.size()} of 2 ranks are here", flush=True)
    while hvd.size() < 2:
        time.sleep(0.1)
        state.commit()
    total = hvd.allreduce(torch.tensor([hvd.rank() + 1.0]), op=hvd.Sum).item()
    print(f"\nsum {total:g} on {socket.gethostname()}", flush=True)


train(hvd.elastic.TorchState(model=torch.nn.Linear(4, 1)))
