"""Horovod's elastic mode: a rank that goes on alone until another host has joined."""

import socket
import time

import horovod.tensorflow as hvd
import tensorflow as tf
from horovod.common.elastic import ObjectState

hvd.init()


@hvd.elastic.run
def train(state: ObjectState) -> None:
    """It starts anew, from the state, whenever hosts have come or gone."""
    print(f"\n{hvd.size()} of 2 ranks are here", flush=True)
    while hvd.size() < 2:
        time.sleep(0.1)
        state.commit()
    total = hvd.allreduce(tf.constant([hvd.rank() + 1.0]), op=hvd.Sum).numpy()[0]
    print(f"\nsum {total:g} on {socket.gethostname()}", flush=True)


train(ObjectState(hvd.broadcast_object, hvd.rank, epoch=0))
