"""One table of everything that can be found wrong: the gates' errors and doctor's checks alike.

A row says what is checked, which exit code it has when it ends a job, whether a new try can
help, and what to do. The reference pages are generated from it. Pure: no I/O.
"""

from __future__ import annotations

from typing import Final

from mpiboot.core.data_checks import DATA_CHECKS, NEVER_STOP
from mpiboot.core.exit_codes import Check, ExitCode
from mpiboot.core.model import Finding, Level, Role

__all__ = ["BY_REFERENCE", "CHECKS", "WARNINGS", "Check", "ExitCode", "failed"]


_WORKER: Final = (Role.WORKER,)


def _launcher(reference: str, title: str, code: ExitCode, hint: str) -> Check:
    """Make a row that only a launcher can meet."""
    return Check(reference, title, code, hint, (Role.LAUNCHER,))


CHECKS: Final = (
    Check(
        "usage",
        "the command line and the settings can be read",
        ExitCode.USAGE,
        hint="see `mpiboot --help` and `mpiboot settings`",
    ),
    Check(
        "role",
        "the pod's role is known",
        ExitCode.USAGE,
        hint="set MPIBOOT_ROLE=launcher, worker or none",
    ),
    _launcher(
        "hostfile-invalid",
        "the hostfile can be read and names hosts",
        ExitCode.HOSTFILE_INVALID,
        "write one `host slots=N` or `host:N` a line",
    ),
    _launcher(
        "hostfile-missing",
        "the hostfile is there",
        ExitCode.HOSTFILE_MISSING,
        "mount the hostfile, or name it with --hostfile or MPIBOOT_HOSTFILE",
    ),
    _launcher(
        "names-unresolved",
        "every host name resolves",
        ExitCode.NAMES_UNRESOLVED,
        "look at the workers' pods and the job's headless Service; "
        "raise --timeout when images are still being pulled",
    ),
    _launcher(
        "workers-unreachable",
        "every worker answers over SSH",
        ExitCode.WORKERS_UNREACHABLE,
        "look at the worker's log: is its container running, and sshd in it?",
    ),
    _launcher(
        "worker-facts",
        "every worker that runs mpiboot reports its links, devices and MPI",
        ExitCode.NOT_READY,
        "run `mpiboot facts` on that worker and see what is slow or fails; with "
        "MPIBOOT_DATA_NETWORK=off the job starts without these reports",
    ),
    _launcher(
        "workers-held",
        "no other launcher uses the job's workers",
        ExitCode.NOT_READY,
        "one launcher at a time: wait until that one has ended, or end it",
    ),
    _launcher(
        "shims",
        "calling mpirun starts mpiboot",
        ExitCode.CONFLICT,
        "call mpirun by its name alone with `mpiboot shims install` in the image, "
        "by absolute path with `mpiboot shims install --replace`, or use `args:` for `command:`",
    ),
    _launcher(
        "offline",
        "hosts and keys were looked at",
        ExitCode.USAGE,
        "run `mpiboot plan` without --offline in the launcher's pod",
    ),
    Check(
        "bug",
        "mpiboot itself works",
        ExitCode.BUG,
        hint="please report this with the lines above",
    ),
    Check(
        "interface-missing",
        "the network link is there",
        ExitCode.DEVICE_MISSING,
        hint="name a link that launcher and workers have with MPIBOOT_CONTROL_IFNAME",
    ),
    Check(
        "runtime-folder",
        "the private runtime folder can be written",
        ExitCode.CANNOT_WRITE,
        hint="mount an emptyDir and name it with MPIBOOT_RUNTIME_DIR",
    ),
    Check(
        "output",
        "what a command prints can be written",
        ExitCode.CANNOT_WRITE,
        hint="make room where standard output goes, or send it to another place",
    ),
    Check(
        "tmpdir",
        "MPI can write its session files to TMPDIR",
        ExitCode.CANNOT_WRITE,
        hint="mount an emptyDir there, or unset TMPDIR",
    ),
    Check(
        "ssh-key",
        "the job's SSH key is there and can be read",
        ExitCode.DENIED,
        hint="mount the job's key Secret in launcher and workers, "
        "or name it with --ssh-key or MPIBOOT_SSH_KEY",
    ),
    _launcher(
        "ssh-denied",
        "workers accept the job's key",
        ExitCode.DENIED,
        "launcher and workers must mount the same key Secret, and log in as the same user",
    ),
    _launcher(
        "kubectl-denied",
        "kubectl may enter every host's pod",
        ExitCode.DENIED,
        "the launcher's service account needs a Role for its workers' pods",
    ),
    _launcher(
        "host-key-differs",
        "the host key of every worker is the job's key",
        ExitCode.DENIED,
        "run mpiboot on the workers (`args: [worker]`), or set MPIBOOT_HOST_KEYS=accept-new",
    ),
    Check(
        "settings-conflict",
        "the settings fit each other and the hosts",
        ExitCode.CONFLICT,
        hint="",
    ),
    _launcher(
        "slots",
        "the ranks fit the slots, and every host gets one",
        ExitCode.CONFLICT,
        "",
    ),
    _launcher(
        "unsafe-value",
        "no variable holds text that a worker's shell would run",
        ExitCode.CONFLICT,
        "remove the quote, dollar, backslash or backquote from that variable",
    ),
    _launcher(
        "mpi-versions",
        "launcher and workers have the same MPI",
        ExitCode.CONFLICT,
        "use one image, or images with the same MPI, for launcher and workers",
    ),
    _launcher(
        "gpus",
        "all workers have the same number and kind of GPUs",
        ExitCode.DEVICE_MISSING,
        "look at that node's GPUs (`nvidia-smi`, `dmesg`), or keep the job away from it; put "
        "all workers on nodes of one kind (nodeSelector), with the same resources",
    ),
    _launcher(
        "several-programs",
        "this MPI can start several programs with one line",
        ExitCode.CONFLICT,
        "if the start fails, use one program that does different work by its rank",
    ),
    _launcher(
        "ip-version",
        "the MPI speaks the IP version of the pods",
        ExitCode.CONFLICT,
        "take an Open MPI that was configured with --enable-ipv6, "
        "or give the pods IPv4 addresses too (dual stack)",
    ),
    _launcher(
        "agent-not-started",
        "mpirun starts a daemon on every host of its line",
        ExitCode.CONFLICT,
        "remove the variable or flag that hides the hostfile or the launch agent from mpirun",
    ),
    _launcher(
        "host-lost",
        "every host stays reachable while the job runs",
        ExitCode.WORKERS_UNREACHABLE,
        "find out why that pod went away: deleted, evicted, restarted, or out of memory "
        "(`kubectl describe pod POD`, `kubectl get events`)",
    ),
    _launcher(
        "launcher-limits",
        "the launcher's limits have room for every host",
        ExitCode.WORKERS_UNREACHABLE,
        "raise the limit that is named; docs/how-to/launcher-size.md has a table",
    ),
    _launcher(
        "launcher-memory",
        "the launcher's own processes fit its memory limit",
        ExitCode.WORKERS_UNREACHABLE,
        "raise resources.limits.memory of the launcher's container, which also holds an ssh "
        "for each host",
    ),
    _launcher(
        "ssh-client-lost",
        "mpiboot's own SSH client, where it is used, lives as long as the job",
        ExitCode.WORKERS_UNREACHABLE,
        "if SIGKILL ended it, raise resources.limits.memory of the launcher's container; "
        "MPIBOOT_SSH_CLIENT=openssh starts an ssh for each host instead",
    ),
    _launcher(
        "daemon-failed",
        "mpirun's daemon starts on every host and ends with the job",
        ExitCode.WORKERS_UNREACHABLE,
        "the lines of mpirun and of that worker above say why",
    ),
    _launcher(
        "launch-timeout",
        "every host's daemon joins in time",
        ExitCode.WORKERS_UNREACHABLE,
        "let the workers connect to the launcher's ports (NetworkPolicy, sidecar); "
        "MPIBOOT_LAUNCH_TIMEOUT gives them more time",
    ),
    _launcher(
        "worker-pairs",
        "workers reach each other over TCP",
        ExitCode.WORKERS_UNREACHABLE,
        "a NetworkPolicy or firewall between the workers drops it (`kubectl get networkpolicy`): "
        "it must allow the job's pods all ports among each other, or those of MPIBOOT_PORT_RANGE; "
        "MPIBOOT_PAIR_CHECK=0 starts the job without this check",
    ),
    _launcher(
        "ranks-unanswered",
        "ranks get an answer from the hosts that they connect to",
        ExitCode.WORKERS_UNREACHABLE,
        "a NetworkPolicy or firewall between the workers drops it (`kubectl get networkpolicy`): "
        "it must allow the job's pods all ports among each other, or those of MPIBOOT_PORT_RANGE; "
        "without MPIBOOT_STUCK=end such a job is warned of and goes on",
    ),
    _launcher(
        "worker-address",
        "workers see each other at their own addresses",
        ExitCode.CONFLICT,
        "keep traffic between pods out of source NAT (masquerade rules of the CNI or of the "
        "node); MPIBOOT_PAIR_CHECK=0 starts the job without this check",
    ),
    Check(
        "service-mesh",
        "no service mesh proxies the job's pods",
        ExitCode.CONFLICT,
        hint="keep launcher and workers out of the mesh, or the job's ports",
    ),
    _launcher(
        "master-port",
        "the port at which ranks for torchrun meet is free on rank 0's host",
        ExitCode.CONFLICT,
        "choose another port with MPIBOOT_MASTER_PORT, or end what listens there",
    ),
    _launcher(
        "control-mtu",
        "the control links of all pods have the same MTU",
        ExitCode.CONFLICT,
        "give the pod network one MTU, that of its smallest link, in the CNI's configuration; "
        "where the path carries less than a link says, large messages hang",
    ),
    Check(
        "sshd",
        "the worker's SSH server runs",
        ExitCode.WORKERS_UNREACHABLE,
        roles=_WORKER,
        hint="try MPIBOOT_SSHD=embedded",
    ),
    Check(
        "env-profile",
        "the script of MPIBOOT_ENV_PROFILE runs without an error",
        ExitCode.CONFLICT,
        roles=_WORKER,
        hint="nothing of it reaches the ranks; run it by hand in the worker: sh -c '. SCRIPT; env'",
    ),
    Check(
        "program-missing",
        "the programs that are needed are installed",
        ExitCode.PROGRAM_MISSING,
        hint="install it in the image, or put its folder on PATH",
    ),
    Check(
        "python-modules",
        "mpiboot's own Python modules are installed",
        ExitCode.FOUND,
        "install the wheel with what it needs: `pip install mpiboot-*.whl`, without --no-deps",
    ),
    *DATA_CHECKS,
)

# Warnings that never end a job.
WARNINGS: Final = NEVER_STOP | {
    *("control-mtu", "env-profile", "gpus", "offline", "several-programs"),
    *("shims", "slots"),
}

BY_REFERENCE: Final = {check.reference: check for check in CHECKS}


def failed(
    reference: str,
    message: str,
    *,
    host: str = "",
    evidence: tuple[str, ...] = (),
    hint: str | None = None,
) -> Finding:
    """A failing finding of a row; the row's own hint where none is given.

    Raises:
        KeyError: no row has that reference.
    """
    row = BY_REFERENCE[reference]
    return Finding(
        reference, Level.FAIL, message, host, evidence, row.hint if hint is None else hint
    )
