"""Horovod with TensorFlow on CPUs, as its Containerfile in examples/images builds it."""

from __future__ import annotations

import re

import pytest

from tests.pods.cluster import Cluster
from tests.pods.jobs import ranks
from tests.pods.operator import mpijob
from tests.pods.recipes import FOLDER, built, online
from tests.pods.test_frameworks import BY_MPI, LOADING, one_model, source


@pytest.mark.full
@pytest.mark.timeout(2400)  # Horovod is compiled on first use
@pytest.mark.parametrize("run", [("mpirun",), BY_MPI], ids=lambda words: words[0])
def test_the_recipe_ends_with_one_model(cluster: Cluster, rig: None, run: tuple[str, ...]) -> None:
    text = (FOLDER / "horovod.Containerfile").read_text()
    program = {"/train.py": source("horovod_benchmark.py")}
    image = built(text, online("openmpi-4.1")).with_files(program)
    words = [*run, "python3", "/train.py", "--batch_size=8"]
    job = mpijob(cluster, image, workers=2, slots=2, launcher_args=words).start()
    assert job.wait(LOADING) == 0, job.launcher.stderr()
    # horovodrun has mpirun tag each piece of a line.
    output = re.sub(r"\[1,\d+\]<\w+>: ?", "", job.launcher.stdout())
    hosts = [worker.hostname for worker in job.workers for _ in range(2)]
    assert [host for _, _, host in ranks(output)] == hosts
    one_model(output)
    assert re.findall(r"^sum (.*)$", output, re.MULTILINE) == ["10"] * 4
