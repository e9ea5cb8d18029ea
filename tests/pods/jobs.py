"""Helpers for tests of jobs: the images to run on; start a job, wait for its end, read it."""

from __future__ import annotations

import contextlib
import os
import re
import signal
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.pods.cluster import Cluster
from tests.pods.images import NAMES, Image
from tests.pods.operator import Job, Launched, mpijob
from tests.pods.pod import GUARD, TINI, Pod, Process
from tests.pods.volumes import Files
from tests.waiting import until

# A program that is no MPI program and ends within milliseconds now and then hangs Open MPI 5.0's
# mpirun, with mpiboot or without (openpmix/prrte#2711, #2713): those of the tests stay a moment.
MOMENT = "sleep 0.3; "

OLD, NEW = NAMES


def _one(quick: str) -> pytest.MarkDecorator:
    rows = [pytest.param(name, marks=() if name == quick else pytest.mark.full) for name in NAMES]
    return pytest.mark.parametrize("image", rows, indirect=True)


# For a test in which MPI has no part: gates, SSH, names, users, what a worker does.
NO_MPI = pytest.mark.parametrize("image", [NEW], indirect=True)
# For one whose differences between MPIs are rows of tables that other tests hold, too. The quick
# gate runs it on one image, the whole matrix on each.
ONE_IMAGE, OLD_IMAGE = _one(NEW), _one(OLD)


def each(quick: str, *others: str) -> pytest.MarkDecorator:
    """Each of these images; the quick gate has the first alone."""
    more = [pytest.param(name, marks=pytest.mark.full) for name in others]
    return pytest.mark.parametrize("image", [quick, *more], indirect=True)


def crossed(name: str, values: Sequence[object], ids: Sequence[str] = ()) -> pytest.MarkDecorator:
    """Each image with each value; the quick gate has each value once, on the images in turn."""
    return pytest.mark.parametrize(
        ("image", name),
        [
            pytest.param(
                image,
                value,
                marks=() if at % 2 == NAMES.index(image) else pytest.mark.full,
                id=f"{image}-{ids[at] if ids else value}",
            )
            for image in NAMES
            for at, value in enumerate(values)
        ],
        indirect=["image"],
    )


RING = "/opt/programs/ring"
DAEMONS = ("orted", "prted", "hydra_pmi_proxy")
PATIENCE = GUARD
# That of images for the MPI Operator which lack mpiboot: the mounted key is the host key, too.
SSHD_CONFIG = (
    "HostKey /root/.ssh/id_rsa\nStrictModes no\nUsePAM no\nPermitRootLogin yes\n"
    "AuthorizedKeysFile /root/.ssh/authorized_keys\n"
)
# Guards too: daemons and ranks outlive their launcher by 15 s at most, one that hangs and takes no
# SIGTERM by the worker's grace of 20 s (a prted 5.0 in its own abort).
PROMISED = 60
FOREVER = ("mpirun", RING, "--sleep", "1000")


def own_ssh(*hydras: str) -> pytest.MarkDecorator:
    """Which sides have mpiboot's own SSH: none, the server, or (without OpenSSH) both.

    Each with one MPI, which has no part in it, and OpenSSH with these, too. `own` are fields of the
    workers' pods.
    """
    server = {"env": {"MPIBOOT_SSHD": "embedded"}}
    more = [(OLD, server), (f"{NEW}-nossh", {}), *((name, {}) for name in hydras)]
    rows = [pytest.param(*row, marks=pytest.mark.full) for row in more]
    return pytest.mark.parametrize(("image", "own"), [(NEW, {}), *rows], indirect=["image"])


def ranks(output: str) -> list[tuple[int, int, str]]:
    """Rank, number of ranks and host of each line that the program printed."""
    found = re.findall(r"^rank (\d+) of (\d+) on (\S+)$", output, re.MULTILINE)
    return sorted((int(rank), int(of), host) for rank, of, host in found)


def hosts(job: Job) -> list[str]:
    return [host for _, _, host in ranks(job.output)]


def spans(job: Launched, slots: int = 1, code: int = 0) -> None:
    """Assert that every worker ran its ranks, in the hostfile's order, and no other host did."""
    assert job.wait() == code, job.log[-3000:]
    total = len(job.workers) * slots
    names = [worker.hostname for worker in job.workers for _ in range(slots)]
    expected = [(rank, total, name) for rank, name in enumerate(names)]
    assert ranks(job.output) == expected, job.log[-3000:]


def under_tini(image: Image) -> Image:
    made = image.with_files({"/usr/bin/tini": Path(TINI).read_bytes()}, 0o755)
    return replace(made, entrypoint=("/usr/bin/tini", "--", *image.entrypoint))


def ended(cluster: Cluster, image: Image, *program: str, code: int = 0, **details: Any) -> Job:
    """Run a job of two workers to its end with that exit code; without a program it runs RING."""
    job = mpijob(cluster, image, launcher_args=program or None, **details).start()
    assert job.wait() == code, job.log[-3000:]
    return job


def spanned(cluster: Cluster, image: Image, *program: str, **details: Any) -> Job:
    """Run a job to exit code 0, and assert that RING ran on every slot of every worker."""
    job = ended(cluster, image, *program, **details)
    spans(job, details.get("slots", 1))
    return job


def refused(cluster: Cluster, image: Image, code: int, *message: str, **details: Any) -> Job:
    """Run a job that ends before mpirun starts, with these words in its termination message."""
    job = ended(cluster, image, code=code, **details)
    text = " ".join(job.message.split())
    assert text.startswith(message[0]), text
    assert [part for part in message if part not in text] == [], text
    errors = [line for line in job.log.splitlines() if "error: [" in line]
    assert len(errors) == 1, errors
    assert "Traceback" not in job.log
    assert job.output == ""
    return job


def with_facts(job: Job, *workers: Pod) -> Job:
    """The job, once every worker has its facts, or these have theirs."""
    for worker in workers or job.workers:
        worker.shell("until [ -e /run/mpiboot/*/worker/facts.json ]; do sleep 0.1; done")
    return job


def mpiboot(job: Job, *words: str) -> tuple[int, str]:
    """What somebody with `kubectl exec` in the launcher sees on stdout."""
    done = job.launcher.exec("mpiboot", *words)
    assert "Traceback" not in done.stderr
    return done.returncode, done.stdout


def alive(pod: Pod, *names: str) -> list[Process]:
    """Processes of a pod whose program has one of these names; zombies don't count."""
    return [
        item
        for item in pod.processes()
        if item.state != "Z" and item.args[0].strip().rsplit("/", 1)[-1] in names
    ]


def rank_processes(pod: Pod) -> list[Process]:
    return alive(pod, "ring")


def left(pods: Iterable[Pod]) -> list[Process]:
    return [item for pod in pods for item in alive(pod, "ring", *DAEMONS)]


def agents(pod: Pod, host: str) -> list[Process]:
    return [
        item
        for item in pod.processes()
        if any(word.endswith("libexec/agent") for word in item.args[:3])
        and any(word.startswith(host) for word in item.args)
    ]


def kill(processes: Iterable[Process], number: int = signal.SIGKILL) -> None:
    found = list(processes)
    assert found, "nobody to end"
    for item in found:
        with contextlib.suppress(ProcessLookupError):  # one may end with another
            os.kill(item.host_pid, number)


def python(launcher: Pod) -> list[Process]:
    """The launcher's own process: the only one of Python in its pod."""
    return [item for item in launcher.processes() if "python" in item.args[0]]


def running(cluster: Cluster, image: Image, *program: str, **details: Any) -> Job:
    job = mpijob(cluster, image, launcher_args=program or FOREVER, **details).start()
    launched(job)
    return job


def launched(job: Job) -> None:
    def runs() -> bool:
        assert job.launcher.running, job.log[-3000:]
        return "daemons started" in job.log and all(map(rank_processes, job.workers))

    until(runs)


def held(cluster: Cluster, image: Image, **details: Any) -> Job:
    """Start a job whose ranks run until `let_go`, and then succeed."""
    script = f"until [ -e /tmp/go ]; do sleep 0.2; done; exec {RING}"
    line = ["mpirun", "sh", "-c", script]
    job = mpijob(cluster, image, launcher_args=line, **details).start()

    def waits(pod: Pod) -> bool:
        return any(script in item.args for item in pod.processes())

    until(lambda: "daemons started" in job.log and all(map(waits, job.workers)))
    return job


def let_go(job: Job) -> None:
    for worker in job.workers:
        worker.shell("touch /tmp/go")


def launches(
    cluster: Cluster, image: Image, lines: Sequence[str], **details: Any
) -> list[tuple[int, str]]:
    """Run one launch after another on the same workers; the exit code and log of each."""
    calls = (f"mpiboot launcher -- {line}; echo next=$? >&2\n" for line in lines)
    script = "".join(calls).replace("RING", RING)
    job = mpijob(cluster, image, launcher_command=["sh", "-c", script], **details)
    assert job.start().wait(GUARD * len(lines)) == 0
    parts = re.split(r"^next=(\d+)$", job.log, flags=re.MULTILINE)
    return [(int(code), message) for message, code in zip(parts[::2], parts[1::2], strict=False)]


def end_line(text: str) -> str:
    return next(line for line in reversed(text.splitlines()) if "job ended" in line)


def slow_to_launch(
    cluster: Cluster, image: Image, script: str = "exec sleep 1000", *program: str
) -> Job:
    """Start a job whose launch agent (the user's) hangs, or waits before it calls ssh."""
    text = f'#!/bin/sh\n{script}\nexec ssh -o StrictHostKeyChecking=no -o BatchMode=yes "$@"\n'
    name = "PRTE_MCA_plm_ssh_agent" if image.name == NEW else "OMPI_MCA_plm_rsh_agent"
    launcher = {
        "volumes": [Files("/opt/agent", {"agent": text}, 0o755)],
        "env": {name: "/opt/agent/agent"},
    }
    job = mpijob(cluster, image, launcher_args=program or FOREVER, launcher=launcher).start()
    until(lambda: any("sleep" in item.args for item in job.launcher.processes()))
    return job
