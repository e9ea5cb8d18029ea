"""Images that lack something, and workers that are somebody else's: whole jobs all the same."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Final

import asyncssh
import pytest

from tests.pages import named
from tests.pods import images, jobs
from tests.pods.cache import CACHE
from tests.pods.cluster import Cluster
from tests.pods.images import Image
from tests.pods.jobs import RING
from tests.pods.oci import PodSpec
from tests.pods.operator import Job, KeyPair, mpijob
from tests.pods.recipes import built

FULL = pytest.mark.full


# An mpirun that says it is another; what it starts is the image's own.
SAYS = """#!/bin/sh
[ "$1" != --version ] || { echo 'mpirun 1.0 by someone'; exit; }
exec /usr/bin/mpirun "$@"
"""


@FULL
def test_an_mpi_that_nobody_knows_gets_the_users_own_line(cluster: Cluster) -> None:
    """The operator's hostfile and keys are there for it; its ssh is the image's own."""
    wrapper = {
        "/usr/local/bin/mpirun": SAYS,
        "/etc/ssh/ssh_config.d/job.conf": "StrictHostKeyChecking accept-new\n",
    }
    image = images.image("openmpi-4.1").with_files(wrapper, 0o755)
    line = ["mpirun", "--allow-run-as-root", "-n", "2", "sh", "-c", "hostname; exit 3"]
    late = {1: {"command": ["sh", "-c", "sleep 2; exec mpiboot worker"]}}
    job = jobs.ended(cluster, image, *line, code=3, each_worker=late)
    assert "is an unknown MPI" in job.log


def plain_worker(name: str) -> Image:
    """An MPI's image for root without any file of mpiboot; it serves with the operator's keys."""
    whole = images.image(name)
    code = [layer for layer in whole.layers if layer.parent == CACHE / "code"]
    below = replace(whole, layers=tuple(layer for layer in whole.layers if layer not in code))
    return below.without(
        "/opt/mpiboot", "/usr/local/bin/mpiboot", "/usr/local/share/mpiboot"
    ).with_files({"/etc/ssh/sshd_config": jobs.SSHD_CONFIG, "/run/sshd/.keep": ""})


HYDRAS = ("mpich-5.0", "mpich-4.0", "intel-mpi")


@jobs.each(*images.NAMES, *HYDRAS)
def test_workers_of_an_image_without_mpiboot(cluster: Cluster, image: Image) -> None:
    """The MPI Operator's own command is all that a worker runs."""
    plain = {"image": plain_worker(image.name)}
    job = jobs.spanned(cluster, image, *("mpirun", "-np", "2", RING), worker_args=(), worker=plain)
    for worker in job.workers:
        assert not worker.shell("find / -xdev -iname '*mpiboot*'")


# What lets workers start each other's daemons; mpirun itself starts the first 64.
TREES = {
    "openmpi-4.1": ("OMPI_MCA_plm_rsh_agent", {"OMPI_MCA_routed": "radix"}),
    "openmpi-5.0": ("PRTE_MCA_plm_ssh_agent", {"PRTE_MCA_plm_ssh_no_tree_spawn": "0"}),
}
AGENT = '#!/bin/sh\necho own agent >&2\nexec ssh -o StrictHostKeyChecking=no "$@"\n'


@FULL
@pytest.mark.parametrize("name", TREES)
def test_an_agent_of_the_launchers_image_and_a_tree(cluster: Cluster, name: str) -> None:
    image, (variable, tree) = images.image(name), TREES[name]
    job = jobs.spanned(
        cluster,
        image.with_files({"/opt/agent": AGENT}, 0o755),
        worker_args=(),
        launcher={"env": {variable: "/opt/agent", **tree}},
        worker={"image": plain_worker(name)},
    )
    assert job.log.count("own agent") == len(job.workers)


@jobs.ONE_IMAGE
def test_host_network_beside_the_nodes_own_sshd(cluster: Cluster, image: Image) -> None:
    nodes = ["node-1", "node-2"]
    script = "mkdir -p /run/sshd; ssh-keygen -A; exec /usr/sbin/sshd -De -p 22"
    for node in nodes:
        command, name = ["sh", "-c", script], f"sshd-{node}"
        own = PodSpec(name=name, image=image, command=command, host_network=node)
        cluster.pod(own).start().logs("Server listening")
    each = {index: {"host_network": node} for index, node in enumerate(nodes)}
    job = jobs.spanned(cluster, image, each_worker=each)
    assert ":2222 as root" in job.workers[0].stderr()


@FULL
def test_a_launcher_that_shares_a_workers_network(cluster: Cluster) -> None:
    """By itself Open MPI runs the worker's ranks in the launcher's pod."""
    node = {"host_network": "node-1"}
    message = "pi-worker-0.pi.default.svc: this worker's name leads to the launcher's own address"
    more: dict[str, Any] = {"launcher": node, "each_worker": {0: node}}
    image = images.image(images.NAMES[0])
    jobs.refused(cluster, image, 78, f"settings-conflict: {message}", **more)


OTHER: Final = KeyPair.make()
RSA: Final = asyncssh.generate_private_key("ssh-rsa", key_size=2048)
RSA_PRIVATE: Final = RSA.export_private_key().decode()
ED25519: Final = asyncssh.generate_private_key("ssh-ed25519")
PUBLIC: Final = ED25519.export_public_key().decode().strip()
# tinysshd has no other kind of key, in files of NaCl's own form: seed and public half, public half.
TINYSSHD: Final = f"""umask 077; mkdir -p /root/.ssh /run/key; cd /run/key
echo {PUBLIC} > /root/.ssh/authorized_keys
echo {ED25519.encode_ssh_private()[-64:].hex()} | xxd -r -p > .ed25519.sk
tail -c 32 .ed25519.sk > ed25519.pk
exec tcpserver -HRDl0 0 22 /usr/sbin/tinysshd -v /run/key"""
# What the MPI Operator's own images have.
TRUST: Final = "StrictHostKeyChecking no\nUserKnownHostsFile /dev/null\nLogLevel ERROR\n"
KEYS: Final = {"/opt/keys/other": OTHER.private}
# sshd asks it twice.
SLOW: Final = "#!/bin/sh\nsleep 11\ncat /root/.ssh/authorized_keys\n"
READ_AS_ROOT: Final = (
    "AuthorizedKeysCommand /usr/bin/{} /root/.ssh/authorized_keys\nAuthorizedKeysCommandUser root\n"
)
WORKER: Final = "useradd -m -p '*' worker"


@dataclass(frozen=True)
class Condition:
    """What a launcher's ssh is told, and what its workers' sshd is.

    `client` is a file of /etc/ssh/ssh_config.d, `args` are words for `mpirun`'s ssh, `server` are
    lines of sshd_config; `files` are the launcher's, by path. In the workers' image `after` has
    run, it has the packages `debian`, and `serve` runs there in place of sshd. `mount` is where the
    job's key lies. `fails` are MPIs that don't run there by themselves, and need not with mpiboot.
    With `each_mpi` the MPI has a part in it.
    """

    client: str = ""
    args: str = ""
    server: str = ""
    files: dict[str, str] = field(default_factory=dict)
    after: str = ""
    before: str = ""
    hostfile: str | None = None
    mount: str = "/root/.ssh"
    fails: tuple[str, ...] = ()
    program: str = RING
    says: str = ""
    debian: tuple[str, ...] = ()
    serve: str = ""
    each_mpi: bool = False


LISTED: Final = "pi-worker-{}.pi.default.svc"
CONDITIONS: Final = {
    "a port among the arguments": Condition(args="-p 2022", server="Port 2022\n", each_mpi=True),
    "a port and a user of ssh_config": Condition(
        "Host pi-worker-*\n  Port 2022\n  User worker\n",
        server="Port 2022\n" + READ_AS_ROOT.format("cat"),
        after=WORKER,
    ),
    # Empty lines: MPICH lets the ranks' first lines begin within another text.
    "2 MB from .bashrc": Condition(after="sed -i '1i yes \"\" | head -n 2000000' /root/.bashrc"),
    "names that only ssh_config knows": Condition(
        "".join(f"Host node{i}\n  HostName {LISTED.format(i)}\n" for i in range(2)),
        hostfile="node0{slots}\nnode1{slots}\n",
        each_mpi=True,
    ),
    "another key": Condition(
        "IdentityFile /opt/keys/other\n",
        server="AuthorizedKeysFile /etc/ssh/other.pub\n",
        files=KEYS,
        says="is logged in to by /usr/bin/ssh",
    ),
    "a key exchange that asyncssh lacks": Condition(
        server="KexAlgorithms sntrup761x25519-sha512@openssh.com\n",
        says="is logged in to by /usr/bin/ssh",
    ),
    "a key that only an agent has": Condition(
        server="AuthorizedKeysFile /etc/ssh/other.pub\n",
        files=KEYS,
        before="eval $(ssh-agent) > /dev/null; ssh-add -q /opt/keys/other",
        says="is logged in to by /usr/bin/ssh",
    ),
    "a certificate": Condition(
        "CertificateFile /tmp/job-cert.pub\n",
        server="TrustedUserCAKeys /etc/ssh/other.pub\nAuthorizedKeysFile none\n",
        files=KEYS,
        before="cp /root/.ssh/id_rsa.pub /tmp/job.pub; "
        "ssh-keygen -q -s /opt/keys/other -I me -n root /tmp/job.pub",
        says="is logged in to by /usr/bin/ssh",
    ),
    "one algorithm of the job's key": Condition(
        "IdentityFile /opt/keys/rsa\n",
        server="PubkeyAcceptedAlgorithms rsa-sha2-512\nHostKey /etc/ssh/rsa\n"
        "AuthorizedKeysFile /etc/ssh/rsa.pub\n",
        files={"/opt/keys/rsa": RSA_PRIVATE},
        before="export MPIBOOT_SSH_KEY=/opt/keys/rsa",
    ),
    "another host in between": Condition(
        f"Host pi-worker-1.*\n  ProxyJump {LISTED.format(0)}\n", says="its settings require it"
    ),
    "a login that takes 22 s": Condition(
        server=READ_AS_ROOT.format("slow") + "AuthorizedKeysFile none\n"
    ),
    "the job's key where only ssh is told": Condition(
        args="-i /opt/keys/job",
        server="HostKey /etc/ssh/rsa\nAuthorizedKeysFile /etc/ssh/rsa.pub\n",
        files={"/opt/keys/job": RSA_PRIVATE},
        mount="/opt/unused",
        each_mpi=True,
    ),
    "one session at a time": Condition(server="MaxSessions 1\n", each_mpi=True),
    # The others' daemons have a path.
    "a restricted shell": Condition(
        after="usermod -s /bin/rbash root", fails=("openmpi-5.0", "mpich-5.0"), each_mpi=True
    ),
    "variables that ssh sends and sets": Condition(
        "SendEnv SENT\nSetEnv SET=2\n",
        server="AcceptEnv SENT SET\n",
        before="export SENT=1",
        program="sh -c 'test $SENT$SET = 12 && exec " + RING + "'",
    ),
    "tinysshd": Condition(
        "IdentityFile /opt/keys/ed25519\n",
        files={"/opt/keys/ed25519": ED25519.export_private_key().decode()},
        mount="/opt/unused",
        debian=("tinysshd", "ucspi-tcp", "xxd"),
        serve=TINYSSHD,
        says="its server has one session for each connection",
    ),
    "Dropbear's server": Condition(
        debian=("dropbear-bin",),
        serve="dropbearconvert openssh dropbear /root/.ssh/id_rsa /run/key && "
        "exec dropbear -F -E -r /run/key",
    ),
}


def job_of(cluster: Cluster, name: str, one: Condition) -> Job:
    """Two workers and a launcher that waits to be entered."""
    files = {"/etc/ssh/ssh_config.d/job.conf": TRUST + one.client, **one.files}
    launcher = images.image(name).with_files(files, 0o600)
    worker = plain_worker(name)
    config = one.server + jobs.SSHD_CONFIG
    keys = {
        "/etc/ssh/other.pub": OTHER.public,
        "/etc/ssh/rsa.pub": RSA.export_public_key().decode(),
    }
    worker = worker.with_files({"/etc/ssh/sshd_config": config, **keys})
    worker = worker.with_files({"/etc/ssh/rsa": RSA_PRIVATE}, 0o600)
    worker = worker.with_files({"/usr/bin/slow": SLOW}, 0o755)
    if one.after:
        worker = worker.after("sh", "-c", one.after)
    if one.debian:
        worker = worker.with_debian(*one.debian)
    job = mpijob(
        cluster,
        launcher,
        hostfile=one.hostfile and one.hostfile.format(slots="" if name in HYDRAS else " slots=1"),
        ssh_mount=one.mount,
        launcher_command=["sleep", "99999"],
        worker={"image": worker},
        worker_command=["sh", "-c", one.serve] if one.serve else None,
        worker_args=(),
    )
    job.start()
    for pod in job.workers:
        pod.publish()
    return job


AS_ROOT: Final = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
# What the MPI needs without mpiboot: 5.0 reads no variable of the operator's, and Hydra's own name
# of this pod is not in DNS.
ALONE: Final = {
    "openmpi-4.1": "",
    "openmpi-5.0": "--hostfile /etc/mpi/hostfile",
    "mpich-5.0": "-localhost $(hostname -i)",
    "intel-mpi": "-iface eth0",
}
ARGS: Final = {
    "openmpi-4.1": "OMPI_MCA_plm_rsh_args",
    "openmpi-5.0": "PRTE_MCA_plm_ssh_args",
    "mpich-5.0": "HYDRA_LAUNCHER_EXTRA_ARGS",
    "intel-mpi": "I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS",
}
ONE: Final = images.NAMES[0]
# Its own key exchanges and servers, which asyncssh has to speak or to leave to the image's ssh.
QUICK: Final = (
    *("a port and a user of ssh_config", "names that only ssh_config knows", "another key"),
    *("another host in between", "one session at a time", "variables that ssh sends and sets"),
    *("tinysshd", "2 MB from .bashrc"),
)


@pytest.mark.parametrize(
    ("name", "condition"),
    [
        pytest.param(name, key, marks=[FULL] * (name != ONE or key not in QUICK))
        for key, one in CONDITIONS.items()
        for name in (ALONE if one.each_mpi else [ONE])
        if name not in one.fails and (one.args or name != "intel-mpi")
    ],
)
def test_what_ssh_gets_in_to(cluster: Cluster, name: str, condition: str) -> None:
    """In the same pods plain mpirun runs, behind an `until ssh` loop, and then mpiboot."""
    one = CONDITIONS[condition]
    job = job_of(cluster, name, one)
    hosts = [line.split()[0].partition(":")[0] for line in job.hostfile.splitlines()]
    args = {ARGS[name]: one.args} if one.args else {}
    loops = "; ".join(f"until ssh {one.args} {host} true; do sleep 0.2; done" for host in hosts)
    for start in (f"{loops}; exec mpirun {ALONE[name]}", "exec mpiboot mpirun"):
        script = f"{one.before or ':'}; {start} -np 2 {one.program}"
        done = job.launcher.exec("sh", "-c", script, env=AS_ROOT | args)
        assert done.returncode == 0, f"{start}: {done.stderr[-3000:]}"
        expected = [(rank, 2, worker.hostname) for rank, worker in enumerate(job.workers)]
        assert jobs.ranks(done.stdout) == expected, done.stderr[-3000:]
        said = " ".join(done.stderr.split())
        assert "waiting for it again" not in said
        assert one.says in said or "mpiboot" not in start


# Lines of sshd_config, and options of the key's line in authorized_keys.
SERVERS: Final = (
    *("MaxStartups 2", "MaxAuthTries 1", "MaxSessions 2", "ClientAliveInterval 1", "RekeyLimit 1M"),
    *("PermitTTY no", "Banner /etc/passwd", "UseDNS yes", "LoginGraceTime 5", "AllowUsers root"),
    *("DisableForwarding yes", 'ForceCommand sh -c "$SSH_ORIGINAL_COMMAND"'),
)
KEY_OPTIONS: Final = (
    *("restrict", 'from="10.244.0.0/16"'),
    r'command="exec /bin/bash -c \"$SSH_ORIGINAL_COMMAND\""',
)


@FULL
def test_servers_that_let_ssh_in(cluster: Cluster) -> None:
    job = job_of(cluster, images.NAMES[0], Condition())
    port = 3000

    def runs(lines: str) -> None:
        nonlocal port
        port += 1
        config = f"Port {port}\nHostKey /root/.ssh/id_rsa\nStrictModes no\nPermitRootLogin yes\n"
        for worker in job.workers:
            text = f"{lines}\n{config}PidFile none\nUsePAM no\n"
            worker.shell(f"cat > /run/{port} << 'END'\n{text}END\n/usr/sbin/sshd -f /run/{port}")
        environ = AS_ROOT | {"MPIBOOT_SSH_PORT": str(port)}
        done = job.launcher.exec("mpiboot", "mpirun", "-np", "2", RING, env=environ)
        assert done.returncode == 0, f"{lines}: {done.stderr[-2000:]}"
        assert len(jobs.ranks(done.stdout)) == 2, lines

    keys = "AuthorizedKeysFile /run/authorized_keys"
    for worker in job.workers:
        worker.shell("cp /root/.ssh/authorized_keys /run; chmod 644 /run/authorized_keys")
    for line in SERVERS:
        runs(f"{line}\n{keys}")
    for number, options in enumerate(KEY_OPTIONS):
        for worker in job.workers:
            line = f"{options} {worker.shell('cat /run/authorized_keys')}\n"
            worker.shell(f"cat > /run/keys{number} << 'END'\n{line}END")
        runs(f"AuthorizedKeysFile /run/keys{number}")


# Where each MPI's mpirun is, and its words: 5.0 doesn't read the operator's name of the hostfile.
OPENMPI = ("--allow-run-as-root", "--hostfile", "/etc/mpi/hostfile", RING)
LINES = {
    "openmpi-4.1": ("/usr/bin", OPENMPI),
    "openmpi-5.0": ("/usr/bin", OPENMPI),
    # Debian's MPICH 4.0 hangs in MPI_Finalize now and then, with nothing but sshd in the workers.
    "mpich-4.0": ("/usr/bin", ("sh", "-c", "echo rank $PMI_RANK of 2 on $(hostname)")),
    "mpich-5.0": ("/opt/mpi/bin", (RING,)),
    "intel-mpi": ("/opt/mpi/bin", ("-n", "2", RING)),
}

FILES = (
    *("/etc/ssh/ssh_config.d/mpi.conf", "/etc/ssh/sshd_config.d/mpi.conf"),
    "/home/mpiuser/.sshd_config",
)


def test_the_lines_of_the_page_are_those_of_the_images(rig: None) -> None:
    whole = images.image("openmpi-5.0", programs=False)
    stock = whole.without(*FILES[:2], "/run/sshd").after("userdel", "--remove", "mpiuser")
    made = built(named("way-out"), stock)
    assert [made.read_text(path) for path in FILES] == [whole.read_text(path) for path in FILES]


@jobs.each(images.NAMES[1], images.NAMES[0], *HYDRAS)
def test_mpirun_and_sshd_without_mpiboot(cluster: Cluster, image: Image) -> None:
    """The image has shims as well, so that the manifest names the real one's path."""
    folder, words = LINES[image.name]
    job = mpijob(
        cluster,
        image.after("mpiboot", "shims", "install"),
        launcher_command=(f"{folder}/mpirun", *words),
        each_worker={1: {"command": ["/usr/sbin/sshd", "-De"], "args": ()}},
        user=1000,
    )
    for worker in job.workers:
        worker.start().publish()
    job.workers[0].logs("listens")
    job.workers[1].logs("Server listening")
    job.launcher.publish()
    job.launcher.start()
    assert job.wait() == 0
    assert "mpiboot" not in job.log
    jobs.spans(job)
