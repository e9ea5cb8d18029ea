"""`mpiboot validate job` and `node` in pods.

all_reduce_perf is a stand-in, as there are no GPUs here: a script that prints what nccl-tests 2.17
prints, and writes NCCL's lines where NCCL would. mpirun, the launcher and the pods are real.
"""

from __future__ import annotations

import json
import signal
from typing import Any

import pytest

from tests.pods.cluster import Cluster
from tests.pods.images import Image
from tests.pods.jobs import PATIENCE, alive, ended
from tests.pods.marks import OLD_IMAGE, ONE_IMAGE
from tests.pods.operator import Job, mpijob
from tests.pods.volumes import Files
from tests.waiting import until

PERF = "/opt/nccl-tests/build/all_reduce_perf"
HEAD = """\
# nccl-tests version 2.17.6 nccl-headers=22809 nccl-library=22809
# Collective test starting: all_reduce_perf
# nThread 1 nGpus 1 minBytes 1024 maxBytes 8589934592 step: 4(factor) warmup iters: 3 iters: 20 \
agg iters: 1 validation: 1 graph: 0
#
# Using devices
#  Rank  0 Group  0 Pid    912 on pi-worker-0 device  0 [0000:18:00] NVIDIA H100 80GB HBM3
#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)  (GB/s)  (GB/s)
"""  # noqa: E501 - as it is printed
SMALL = "       16384          4096     float     sum      -1    31.21    0.52    0.98       0    30.11    0.54    1.02       0\n"  # noqa: E501
LARGE = "  1073741824     268435456     float     sum      -1  5530.40  194.15  364.03       0  5528.11  194.23  364.18       %s\\n"  # noqa: E501
FOOT = r"# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 182.1\n#\n"
NCCL = (
    r"%s:912:930 [0] NCCL INFO NET/Socket : Using [0]eth0:10.244.0.7<0>\n"
    r"%s:912:930 [0] NCCL INFO Using network Socket\n"
)
STAND_IN = f"""#!/bin/sh
if [ -n "$NCCL_DEBUG_FILE" ]; then printf '{NCCL}' a a >"$NCCL_DEBUG_FILE"; fi
sleep 0.3  # a program that is no MPI program and ends at once now and then hangs 5.0's mpirun
if [ "${{OMPI_COMM_WORLD_RANK:-${{PMI_RANK:-0}}}}" != 0 ]; then
  case $STAND_IN in hang | stop) exec sleep 1000 ;; *) exit ;; esac
fi
case $STAND_IN in format) printf 'Size Bandwidth\\n 8 fast\\n'; exit ;; esac
cat <<'END'
{HEAD}{SMALL}END
case $STAND_IN in
hang | stop) exec sleep 1000 ;;
signal) kill -SEGV $$ ;;
wrong) printf '{LARGE}' 12; exit 1 ;;
*) printf '{LARGE}' 0 ;;
esac
printf '{FOOT}'
"""


def validated(cluster: Cluster, image: Image, *words: str, kind: str = "", **details: Any) -> Job:
    """A job of two workers that `validate job` measures by the stand-in."""
    whole = image.with_files({PERF: STAND_IN}, 0o755)
    args = ["validate", "job", "--tool", "nccl-tests", *words]
    given = {"workers": 2, "launcher_args": args, "worker": {"env": {"STAND_IN": kind}}}
    return mpijob(cluster, whole, **{**given, **details}).start()


@OLD_IMAGE
def test_a_job_is_measured_and_judged(cluster: Cluster, image: Image) -> None:
    job = validated(cluster, image, data_link="net1")
    assert job.wait(PATIENCE) == 0, job.launcher.stderr()
    out = job.launcher.stdout()
    assert out.startswith(HEAD + SMALL)
    assert "\nall_reduce_perf on 2 hosts, 2 ranks\n" in out
    assert "\n- NCCL's network: Socket\n" in out
    assert out.splitlines()[-1].startswith("verdict: fit: 364.1 GB/s average bus bandwidth")
    assert job.launcher.termination_log() == ""
    assert "LC_CTYPE" not in job.launcher.stderr()  # Python's own, and no variable of the pod
    # The workers were told, and end with the job.
    for worker in job.workers:
        assert worker.wait(PATIENCE) == 0
    # NCCL's lines and what ranks tell are not shown as they came.
    assert "NCCL INFO" not in out + job.launcher.stderr()
    assert "mpiboot-validate|" not in out + job.launcher.stderr()


@OLD_IMAGE
def test_a_tool_that_hangs_is_ended_and_judged(cluster: Cluster, image: Image) -> None:
    words = ("--time", "3", "--min-busbw", "9", "--json")
    job = validated(cluster, image, *words, kind="hang", data_link="net1")
    assert job.wait(PATIENCE) == 1, job.launcher.stderr()
    found = json.loads(job.launcher.stdout())
    assert [item["size"] for item in found["samples"]] == [16384]
    assert found["verdict"]["check"] == "bandwidth"
    assert found["verdict"]["message"].startswith(
        "1 GB/s average bus bandwidth at 16 KiB; 9 GB/s are"
    )
    assert [line for line in found["notes"] if line.startswith("time was up (3s) after 16 KiB")]
    assert set(found["programs"].values()) == {"all_reduce_perf"}
    assert job.launcher.termination_log().startswith("bandwidth: 1 GB/s")
    # As at any end the ports were read, and the workers told.
    assert len(found["transport"]["hosts"]) == 2
    for worker in job.workers:
        assert worker.wait(PATIENCE) == 0


ENDS: dict[str, tuple[int, str, str]] = {
    "wrong": (1, "wrong-results: 12 wrong values in messages of 1 GiB", "1073741824"),
    "format": (
        1,
        "not-measured: all_reduce_perf ended without a result that could be read",
        "8 fast",
    ),
    "signal": (139, "", "16384"),
}


@pytest.mark.full
@ONE_IMAGE
@pytest.mark.parametrize("kind", ENDS)
def test_other_ends(cluster: Cluster, image: Image, kind: str) -> None:
    code, reason, shown = ENDS[kind]
    job = validated(cluster, image, kind=kind)
    assert job.wait(PATIENCE) == code, job.launcher.stdout() + job.launcher.stderr()
    assert job.launcher.termination_log().startswith(reason)
    assert shown in job.launcher.stdout()


@pytest.mark.full
@ONE_IMAGE
def test_a_signal_ends_it_with_what_was_measured(cluster: Cluster, image: Image) -> None:
    job = validated(cluster, image, kind="stop")
    until(lambda: "16384" in job.launcher.stdout())
    job.launcher.signal(signal.SIGTERM)
    assert job.wait(PATIENCE) == 143, job.launcher.stderr()
    assert "interrupted" in job.launcher.stdout()
    until(lambda: not [pod for pod in job.workers if pod.running and alive(pod, "sleep")])


@pytest.mark.full
@ONE_IMAGE
def test_one_worker_without_the_tool_is_named(cluster: Cluster, image: Image) -> None:
    """The image has none; one worker gets it by a mount."""
    tool = {"volumes": [Files("/opt/nccl-tests/build", {"all_reduce_perf": STAND_IN}, 0o755)]}
    args = ["validate", "job", "--tool", "nccl-tests"]
    job = ended(cluster, image, *args, code=127, each_worker={0: tool}, launcher=tool)
    message = job.launcher.termination_log()
    assert message.startswith(
        "program-missing: no nccl-tests on pi-worker-1: looked for all_reduce"
    )
    assert "/opt/nccl-tests/build" in message
