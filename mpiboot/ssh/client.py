"""Programs that reach a host: the image's own ssh, and kubectl.

What ssh would do for a host, and logins by it where asyncssh gets none. OpenSSH reads its own
files (``ssh -G``): for Include, Match and tokens there is one reader. That of asyncssh takes
seconds for a file with a block for each of a thousand pods, runs ``Match exec`` in the event loop,
and takes a block that does not match for one that does behind an Include.
"""

from __future__ import annotations

import asyncio
import functools
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from mpiboot.core import log
from mpiboot.core.addresses import is_address
from mpiboot.ssh.attempt import BY_LOGIN, SHELL, Attempt, CommandEnd, Outcome, Target, with_end
from mpiboot.ssh.config import KNOWN_HOSTS, SSH_CONFIG, UserArgs, only_by_ssh, quoted
from mpiboot.system import processes, programs

_DEFAULT_PORT: Final = "22"
_READS: Final = re.compile(r"^debug1: Reading configuration data (.+?)\r?$", re.MULTILINE)
_DEBUG: Final = re.compile(r"^(?:debug\d: |OpenSSH_).*\n?", re.MULTILINE)
# A block that is not for every host.
_BLOCK: Final = re.compile(
    r"^\s*(?:host[\s=]+(?![\s=]*\*\s*$)|match\s+(?!\s*(?:(?:final\s+)?all|!?localuser\s+\S+)\s*$))",
    re.IGNORECASE | re.MULTILINE,
)
# ssh's own failures, by the words of sshconnect.c and sshconnect2.c.
_FAILURES: Final = {
    "Host key verification failed": Outcome.HOST_KEY_DIFFERS,
    "Permission denied (": Outcome.KEY_REFUSED,
    "no matching ": Outcome.PROTOCOL,
}
_SSH_FAILED: Final = 255
_SHOWN: Final = 400  # characters


@dataclass(frozen=True, slots=True)
class HostSettings:
    """What ssh is set to do for a host; ``port`` is 0, and ``user`` empty, for its own defaults.

    ``proxied`` tells that it connects by another host or a program, ``only_ssh`` that asyncssh
    can't do what it is told. ``proxy`` is ProxyJump as a ProxyCommand, whose ssh reads the user's
    own configuration. ``keys`` are paths; ``send`` are patterns of variables that it sends,
    ``variables`` those that it sets, as NAME=value.
    """

    host_name: str
    port: int = 0
    user: str = ""
    proxied: bool = False
    proxy: str = ""
    only_ssh: bool = False
    keys: tuple[str, ...] = ()
    send: tuple[str, ...] = ()
    variables: tuple[str, ...] = ()


def read_settings(text: str, user: str) -> HostSettings:
    """Read what ``ssh -G`` printed; ``user`` is this pod's. Pure.

    Raises:
        KeyError, ValueError: it is not from OpenSSH.
    """
    found: dict[str, tuple[str, ...]] = {}
    for line in text.splitlines():
        keyword, _, value = line.partition(" ")
        found[keyword] = (*found.get(keyword, ()), value)
    port, login = found["port"][0], found["user"][0]
    proxied = not found.keys().isdisjoint(("proxyjump", "proxycommand"))
    *before, last = found.get("proxyjump", ("",))[0].split(",")
    through = f"-J {','.join(before)} " if before else ""
    bound = not found.keys().isdisjoint(("bindaddress", "bindinterface"))
    return HostSettings(
        found["hostname"][0],
        port=int(port) if port != _DEFAULT_PORT else 0,
        user=login if login != user else "",
        proxied=proxied,
        proxy=f"ssh {through}-W [%h]:%p ssh://{last}" if last else "",
        only_ssh=proxied or bound,
        keys=found.get("identityfile", ()),
        send=found.get("sendenv", ()),
        variables=found.get("setenv", ()),
    )


class OpensshClient:
    """The image's ssh, with the user's own arguments.

    ``carried`` are the hosts that it has logged in to; it is not ``usable`` where it is no OpenSSH,
    or can't read its configuration.
    """

    def __init__(
        self,
        program: str,
        args: UserArgs = UserArgs(),  # noqa: B008 - it is frozen
        user: str = "",
        *,
        folder: Callable[[], Path],
    ) -> None:
        """Run nothing yet.

        Args:
            program: its path.
            args: the user's own arguments.
            user: this pod's.
            folder: makes one with ``ssh_config``, ``known_hosts`` and the key for its logins.
        """
        self.program, self.usable = program, True
        self.carried: set[str] = set()
        self._args, self._user, self._folder = args, user, functools.cache(folder)
        self._known: dict[str, HostSettings] = {}
        self._same: HostSettings | None = None
        self._free = asyncio.Semaphore(1)

    async def settings(self, host: str) -> HostSettings:
        """Give what is set for a host; the defaults where it can't be read."""
        async with self._free:
            if host not in self._known:
                more, same = 0 if self._known else 3, self._same
                self._known[host] = replace(same, host_name=host) if same else await self._ask(host)
                for _ in range(more):  # after the first host's, four at once
                    self._free.release()
        return self._known[host]

    def known(self, host: str) -> HostSettings:
        """Give what ``settings`` has given for a host."""
        return self._known.get(host) or HostSettings(host)

    async def _ask(self, host: str) -> HostSettings:
        argv = (self.program, *self._args.text.split(), "-vG", "--", host)
        done, first = None, not self._known
        try:
            done = await programs.in_thread(programs.run, argv, programs.LONG)
            found = read_settings(done.stdout if done else "", self._user)
            if only_by_ssh(self._args):
                found = replace(found, only_ssh=True)
            if first and done and found.host_name == host and not _by_host(done.stderr):
                self._same = found
        except (KeyError, ValueError, OSError):
            why = _words(done.stderr) if done else "it can't be run, or does not end"
            # Where it fails at once it says the same of every host.
            if first:
                self.usable, self._same = False, HostSettings(host)
            log.warning("ssh", f"{self.program} -G {host} fails, its settings are not used: {why}")
            return HostSettings(host)
        return found

    def attempt(self, target: Target, end: CommandEnd, why: str = "") -> Attempt:
        """Read how a login with a command ended; ``why`` as for the pool."""
        message = _words(end.error)
        if end.status is None:
            return Attempt(target, Outcome.SLOW if end.timed_out else Outcome.NO_SOCKET, message)
        if end.status == _SSH_FAILED:
            kinds = (outcome for words, outcome in _FAILURES.items() if words in message)
            return Attempt(target, next(kinds, Outcome.SSH_FAILED), message)
        found = with_end(Attempt(target, Outcome.OK), replace(end, error=message), 0.0)
        if end.status:
            return found
        if not self.carried:
            why = why or "its settings require it"
            log.info("ssh", f"{target.host} is logged in to by {self.program}: {why}")
        self.carried.add(target.host)
        # Under whatever name, as the user may have set a HostKeyAlias; empty where it is the job's.
        noted = processes.text(self._known_hosts(target.host))
        return replace(found, host_key=noted.rpartition("\n")[2].partition(" ")[2])

    def words(self, target: Target) -> tuple[str, ...]:
        """Build the command line that runs the script on a host that ssh reads.

        Raises:
            MpibootError: ``runtime-folder``; what ssh reads can't be written.
        """
        folder = self._folder()
        to = self.known(target.host)
        # ssh notes a new host key in the first file.
        known = quoted(str(self._known_hosts(target.host)))
        options = [f"UserKnownHostsFile={known} {quoted(str(folder / KNOWN_HOSTS))}"]
        if target.address and not to.proxied:
            options.append(f"HostName={quoted(target.address)}")
        elif to.proxy:
            options.append(f"ProxyCommand={to.proxy}")
        return (
            # The configuration's LocalCommand reports an agent's connection.
            *(self.program, "-F", f"{folder}/{SSH_CONFIG}", "-S", "none"),
            *(word for option in (*options, "PermitLocalCommand=no") for word in ("-o", option)),
            *("-p", str(target.port), "-l", target.user, "--", target.host, BY_LOGIN),
        )

    def _known_hosts(self, host: str) -> Path:
        return self._folder() / f"{KNOWN_HOSTS}-{host}"


def _by_host(debug: str) -> bool:
    """Tell whether a file that ssh has read has a block for some hosts alone."""
    files = [Path(name) for name in _READS.findall(debug)]
    return not files or any(_BLOCK.search(file.read_text("utf-8", "replace")) for file in files)


def _words(stderr: str) -> str:
    return " ".join(_DEBUG.sub("", stderr).split())[-_SHOWN:]


# The variables by which kubectl finds the API server; mpirun's environment may lack them.
KUBECTL_ENVIRONMENT: Final = (
    "KUBERNETES_SERVICE_HOST",
    "KUBERNETES_SERVICE_PORT",
    "KUBECONFIG",
    "HTTPS_PROXY",
    "NO_PROXY",
)
# How kubectl says that this pod's service account may not (apimachinery's api/errors, client-go).
_DENIED: Final = re.compile(r"\(Forbidden\)|is forbidden:|Unauthorized|must be logged in")


@dataclass(frozen=True, slots=True)
class PodAccess:
    """How a job's pods are entered.

    ``kubectl`` is the program's path; ``namespace`` the pods' (empty: that of kubectl's own
    configuration). Of a pod's containers kubectl enters the one that an annotation names, else the
    first.
    """

    kubectl: str
    namespace: str = ""

    def addresses(self, pod: str) -> tuple[str, ...]:
        """Build the line that prints a pod's addresses.

        The caller limits its time: with --request-timeout kubectl ignores its service account and
        tries localhost:8080 (kubernetes/kubernetes 93474).
        """
        return (*self._words(), "get", "pod", pod, "--output=jsonpath={.status.podIPs[*].ip}")

    def run(self, pod: str) -> tuple[str, ...]:
        """Build the line that runs the script in a pod that kubectl reads."""
        return (*self._words(), "exec", "-i", pod, "--", *SHELL)

    def _words(self) -> tuple[str, ...]:
        namespace = (f"--namespace={self.namespace}",) if self.namespace else ()
        return (self.kubectl, *namespace)


def pod_of(host: str) -> str:
    """Give the name of a host's pod, its first label; empty for an address."""
    return "" if is_address(host) else host.partition(".")[0]


def is_denied(message: str) -> bool:
    """Whether the API server refuses this pod's service account."""
    return bool(_DENIED.search(message))
