"""The rows of folders, key, SSH server and limits. Pure."""

from __future__ import annotations

from typing import Final

from mpiboot.core.model import Level
from mpiboot.doctor.judge import pod, private, sshd
from mpiboot.doctor.rows.pod_check import PodCheck

ROWS: Final = (
    PodCheck(
        "runtime-folder",
        "the folder for private files: it is made, written, and taken away",
        ("folder",),
        private.folder,
        {Level.OK: "it can be written", Level.FAIL: "none can"},
    ),
    PodCheck(
        "tmpdir",
        "the folder that TMPDIR names",
        ("folder",),
        private.tmpdir,
        {Level.FAIL: "MPI can't write there"},
    ),
    PodCheck(
        "ssh-key",
        "the job's key: file, type, fingerprint, mode and owner, and authorized_keys beside it",
        ("key",),
        private.key,
        {
            Level.OK: "it can be read; its mode does not count, as roles use a private copy",
            Level.WARN: "authorized_keys beside it has another key",
            Level.FAIL: "there is none, or this user can't read it, or it is no key",
        },
    ),
    PodCheck(
        "other-ssh-server",
        "who listens on the worker's port, or on 22, 2222 and 222, and how it greets",
        ("servers",),
        pod.ssh_servers,
        {
            Level.OK: "the job's port is mpiboot's",
            Level.WARN: "no worker of mpiboot's runs here, and another SSH server does",
            Level.FAIL: "another SSH server has the worker's port",
        },
    ),
    PodCheck(
        "sshd-settings",
        "`sshd -T` with the options of the OpenSSH server that runs, and modes and owners of "
        "authorized_keys and the folders above it",
        ("sshd_settings", "identity"),
        sshd.settings,
        {
            Level.OK: "this user may log in with a key",
            Level.UNKNOWN: "this user may not ask for them",
            Level.FAIL: "a setting keeps this user out",
        },
    ),
    PodCheck(
        "session-limits",
        "/proc/PID/limits of the SSH server and of the pod's first process",
        ("limits",),
        pod.limits,
        {
            Level.OK: "sessions have what the pod has",
            Level.WARN: "ranks get less than the pod was given",
        },
    ),
    PodCheck(
        "processes",
        "pids.current and pids.max of the control group",
        ("limits",),
        pod.processes,
        {
            Level.OK: "there is room",
            Level.WARN: "more than 90% are taken: threads soon can't be started",
        },
    ),
    PodCheck(
        "shm-full",
        "the shared memory: what is in use, and files nccl-* that no process has in memory",
        ("shm",),
        pod.shm,
        {
            Level.OK: "there is room",
            Level.WARN: "it is full to 90%, or ended ranks left files there",
        },
    ),
    PodCheck(
        "memory-limit",
        "memory.max, memory.current and memory.events of the control group",
        ("memory",),
        pod.memory,
        {
            Level.OK: "there is room, and nothing was killed",
            Level.WARN: "more than 90% is in use, or the kernel has killed a process of this "
            "container",
        },
    ),
)
