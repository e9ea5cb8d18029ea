"""A pod is what a kubelet makes of a manifest: its files, its rights, its life."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from tests.pods.cluster import Cluster
from tests.pods.images import Image
from tests.pods.oci import CONTAINERD, CRIO, NO_CAPABILITIES, PodSpec
from tests.pods.pod import Pod, PodError
from tests.pods.probe import reaches
from tests.pods.volumes import EmptyDir, Files, SubPath, Tmpfs, Volume
from tests.waiting import until

SLEEP = ("sleep", "1000")


# --- files ---


def test_a_secret_has_links_and_volumes_have_modes(cluster: Cluster, plain: Image) -> None:
    secret = Files("/etc/keys", {"key": "one", "other": "x"}, mode=0o600)
    volumes: list[Volume] = [
        secret,
        Files(
            "/a", {"key": "x", "script": "y"}, mode=0o600, modes={"script": 0o555}, fs_group=1000
        ),
        SubPath("/b/key", "z", mode=0o400),
        EmptyDir("/c"),
        Tmpfs("/d", size=1 << 20),
    ]
    pod = cluster.pod(PodSpec(name="a", image=plain, command=SLEEP, volumes=volumes)).start()
    assert pod.shell("readlink /etc/keys/key") == "..data/key"
    assert pod.shell("readlink /etc/keys/..data").startswith("..20")
    assert pod.shell("stat -L -c %a:%u:%g /etc/keys/key") == "600:0:0"
    secret.update({"key": "two", "new": "y"})
    assert pod.shell("cat /etc/keys/key; ls /etc/keys") == "twokey\nnew"
    assert pod.exec("touch", "/etc/keys/file").returncode != 0
    assert pod.shell("stat -L -c %a:%g /a/key /a/script").split() == ["640:1000", "555:1000"]
    assert pod.shell("stat -c '%F %a' /b/key") == "regular file 400"
    assert pod.shell("touch /c/x; stat -c %a /c") == "777"
    assert pod.shell("stat -f -c %T /d") == "tmpfs"
    assert pod.exec("sh", "-c", "head -c 2M /dev/zero >/d/x").returncode != 0


def test_kubelets_files_and_what_is_guarded(cluster: Cluster, plain: Image) -> None:
    spec = PodSpec(
        name="pod",
        image=plain,
        command=SLEEP,
        hostname="w-0",
        subdomain="job",
        namespace="team",
        searches=["job.team.svc.cluster.local"],
        extra_hosts={"10.9.9.9": ["db", "db.example"]},
    )
    pod = cluster.pod(spec).start()
    assert pod.shell("head -n1 /etc/resolv.conf") == (
        "search team.svc.cluster.local svc.cluster.local cluster.local job.team.svc.cluster.local"
    )
    assert "options ndots:5" in pod.shell("cat /etc/resolv.conf")
    assert pod.shell("getent hosts w-0").split() == [
        pod.address,
        "w-0.job.team.svc.cluster.local",
        "w-0",
    ]
    assert pod.shell("getent hosts db").split()[0] == "10.9.9.9"
    assert pod.shell("echo $HOSTNAME $KUBERNETES_SERVICE_HOST; cat /etc/hostname").split() == [
        "w-0",
        "10.96.0.1",
        "w-0",
    ]
    pod.shell("echo because >/dev/termination-log")
    assert pod.termination_log() == "because\n"
    assert pod.exec("sh", "-c", "echo 1 >/proc/sys/net/ipv4/ip_forward").returncode != 0
    assert pod.exec("sh", "-c", "mkdir /sys/fs/cgroup/memory/x /sys/fs/cgroup/x").returncode != 0
    assert pod.shell("df -k /dev/shm | awk 'NR==2 {print $2}'") == "65536"


# --- rights ---


def test_rights(cluster: Cluster, plain: Image) -> None:
    """Capabilities, users and groups, and what the profile of seccomp refuses."""

    def pod_of(**details: Any) -> Pod:
        name = f"p{len(cluster.pods)}"
        return cluster.pod(PodSpec(name=name, image=plain, command=SLEEP, **details)).start()

    for capabilities, expected in ((CONTAINERD, 0xA80425FB), (CRIO, 0x5FB), (NO_CAPABILITIES, 0)):
        pod = pod_of(capabilities=capabilities)
        status = Path(f"/proc/{pod.pid}/status").read_text()
        sets = dict(line.split(":\t") for line in status.splitlines() if line.startswith("Cap"))
        assert int(sets["CapBnd"], 16) == int(sets["CapEff"], 16) == expected
        assert int(sets["CapInh"], 16) == int(sets["CapAmb"], 16) == 0
    pod = pod_of(user=12345, groups=[77], no_new_privileges=True)
    assert pod.shell("id -u; id -g; id -G").split() == ["12345", "0", "0", "77"]
    status = Path(f"/proc/{pod.pid}/status").read_text()
    assert "NoNewPrivs:\t1" in status
    assert "CapEff:\t0000000000000000" in status
    known = pod_of(user=1000)
    assert known.shell("id -un; id -g; echo $HOME").split() == ["mpiuser", "1000", "/home/mpiuser"]
    for refused in (False, True):
        pod = pod_of(seccomp=refused, capabilities=("CAP_SYS_ADMIN",))
        assert (pod.exec("unshare", "--uts", "true").returncode != 0) == refused


# --- life ---


def test_exit_codes_signals_and_streams(cluster: Cluster, plain: Image) -> None:
    spec = PodSpec(name="a", image=plain, command=["sh", "-c", "echo out; echo err >&2; exit 7"])
    pod = cluster.pod(spec).start()
    assert (pod.wait(), pod.stdout(), pod.stderr()) == (7, "out\n", "err\n")
    pod = cluster.pod(PodSpec(name="b", image=plain, command=SLEEP)).start()
    pod.kill()
    assert pod.wait() == 128 + signal.SIGKILL
    script = "trap 'exit 5' TERM; echo ready; while :; do sleep 0.05; done"
    pod = cluster.pod(PodSpec(name="c", image=plain, command=["sh", "-c", script])).start()
    until(lambda: "ready" in pod.stdout())
    assert pod.stop() == 5
    with pytest.raises(PodError, match="no-such-program"):
        cluster.pod(PodSpec(name="d", image=plain, command=["no-such-program"])).start()


def test_a_restart_keeps_the_pod_and_not_the_root(cluster: Cluster, plain: Image) -> None:
    kept = EmptyDir("/kept")
    spec = PodSpec(name="a", image=plain, command=SLEEP, volumes=[kept])
    pod = cluster.pod(spec).start()
    address, netns = pod.address, Path(f"/proc/{pod.pid}/ns/net").readlink()
    pod.shell("touch /kept/x /tmp/x")
    pod.restart()
    assert (pod.address, Path(f"/proc/{pod.pid}/ns/net").readlink()) == (address, netns)
    assert pod.shell("ls /kept; ls /tmp") == "x"
    assert pod.restarts == 1
    other = cluster.pod(PodSpec(name="b", image=plain, command=SLEEP)).start()
    assert reaches(other, address)
    pod.delete()
    assert not reaches(other, address)
