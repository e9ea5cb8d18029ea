"""What the operator's tensorflow-benchmarks does, anew: synthetic images, and images per second."""

import argparse
import hashlib
import socket
import time

import horovod.tensorflow as hvd
import tensorflow as tf

parser = argparse.ArgumentParser()
parser.add_argument("--batch_size", type=int, default=8)
given, _ = parser.parse_known_args()
hvd.init()
rank, size = hvd.rank(), hvd.size()
total = hvd.allreduce(tf.constant([rank + 1.0]), op=hvd.Sum).numpy()[0]
tf.random.set_seed(rank)
layers = [tf.keras.layers.Conv2D(4, 3), tf.keras.layers.Flatten(), tf.keras.layers.Dense(10)]
model = tf.keras.Sequential(layers)
optimizer = tf.keras.optimizers.legacy.SGD(0.01)
began, steps = time.monotonic(), 5
for step in range(steps):
    images = tf.random.normal([given.batch_size, 32, 32, 3])
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(model(images) ** 2)
    tape = hvd.DistributedGradientTape(tape)
    gradients = tape.gradient(loss, model.variables)
    optimizer.apply_gradients(zip(gradients, model.variables, strict=True))
    if step == 0:
        hvd.broadcast_variables(model.variables, root_rank=0)
speed = steps * given.batch_size * size / (time.monotonic() - began)
digest = hashlib.sha256(b"".join(one.numpy().tobytes() for one in model.variables)).hexdigest()
print(f"\nrank {rank} of {size} on {socket.gethostname()}", flush=True)
print(f"sum {total:g}\nmodel {digest[:16]}\ntotal images/sec: {speed:.2f}", flush=True)
hvd.shutdown()
