"""A FAKE API server and a FAKE kubectl: no Kubernetes is behind them.

The program that pods get as ``kubectl`` hands its words and streams to the test's process, which
answers as an API server and a kubelet would: it looks for the token, the right, the namespace and
the pod, and enters a real container by ``runc exec``. Its words are those of kubectl and the API
server. As there, a process that was started by ``exec`` is not ended with its kubectl; only its
standard input is.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import subprocess
import threading
from pathlib import Path
from typing import Any

from tests.pods.cluster import Cluster
from tests.pods.pod import Pod
from tests.pods.volumes import Files, HostPath, SubPath, Volume

TOKEN = "the-token-of-the-launchers-service-account"
ALL = frozenset({"get pods", "create pods/exec"})
_ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
_SOCKET = "/run/fake-api-server"
_WHERE = "/usr/local/bin/kubectl"

# The part that is in the pod. It knows only the words that mpiboot uses: others are an error.
_KUBECTL = f"""#!/usr/bin/env python3
import json, os, socket, sys

def read(name):
    try:
        return open("{_ACCOUNT}/" + name).read()
    except OSError:
        return ""

if not os.environ.get("KUBERNETES_SERVICE_HOST"):
    sys.exit("The connection to the server localhost:8080 was refused - did you specify the right "
             "host or port?")
server = socket.socket(socket.AF_UNIX)
try:
    server.connect("{_SOCKET}/socket")
except OSError:
    sys.exit("Unable to connect to the server: dial tcp 10.96.0.1:443: i/o timeout")
asked = json.dumps({{"words": sys.argv[1:], "token": read("token"), "own": read("namespace")}})
socket.send_fds(server, [asked.encode() + b"\\n"], [0, 1, 2])
reply = json.loads(server.makefile().readline() or "null")
if reply is None:
    sys.exit("error: error reading from error stream: EOF")
sys.stderr.write(reply["message"])
sys.exit(reply["status"])
"""


class ApiServer:
    """Serves the pods of a cluster to those that have ``volumes``, as a context manager."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.rights = ALL
        self.asked: list[list[str]] = []
        self._cluster = cluster
        self._folder = folder
        folder.chmod(0o755)
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(folder / "socket"))
        (folder / "socket").chmod(0o777)
        self._listener.listen(64)
        self._sessions: list[tuple[threading.Thread, socket.socket]] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> ApiServer:  # noqa: PYI034 # Self needs Python 3.11
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread, connection in self._sessions:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            thread.join(60)

    def volumes(self, *, token: str = TOKEN, namespace: str = "default") -> list[Volume]:
        """What a launcher gets: kubectl, the way to the server, and its service account."""
        return [
            SubPath(_WHERE, _KUBECTL, 0o755),
            HostPath(_SOCKET, self._folder),
            Files(_ACCOUNT, {"token": token, "namespace": namespace}),
        ]

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._serve, args=(connection,), daemon=True)
            self._sessions.append((thread, connection))
            thread.start()

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            data, streams, _, _ = socket.recv_fds(connection, 1 << 20, 3)
            try:
                while not data.endswith(b"\n"):
                    data += connection.recv(1 << 20)
                status, message = self._answer(json.loads(data), streams, connection)
                with contextlib.suppress(OSError):
                    connection.sendall(
                        json.dumps({"status": status, "message": message}).encode() + b"\n"
                    )
            finally:
                for stream in streams:
                    os.close(stream)

    def _answer(  # noqa: PLR0911 - one for each refusal
        self, asked: dict[str, Any], streams: list[int], connection: socket.socket
    ) -> tuple[int, str]:
        words = list(asked["words"])
        self.asked.append(words)
        command = words[words.index("--") + 1 :] if "--" in words else []
        words = words[: words.index("--")] if "--" in words else words
        flags = dict(word.partition("=")[::2] for word in words if word.startswith("-"))
        plain = [word for word in words if not word.startswith("-")]
        known = {"--namespace", "--container", "--output", "-i"}
        if unknown := sorted(set(flags) - known):
            return 1, f"error: unknown flag: {unknown[0]}\n"
        namespace = flags.get("--namespace") or asked["own"]
        verb, name = plain[0], plain[-1]
        what = {"get": "get pods", "exec": "create pods/exec"}[verb]
        if asked["token"] != TOKEN:
            return 1, "error: You must be logged in to the server (Unauthorized)\n"
        # A Role is of one namespace: the account's own.
        if what not in self.rights or namespace != asked["own"]:
            do, resource = what.split()
            return 1, (
                f'Error from server (Forbidden): pods "{name}" is forbidden: User '
                f'"system:serviceaccount:{asked["own"]}:default" cannot {do} resource '
                f'"{resource}" in API group "" in the namespace "{namespace}"\n'
            )
        found = [
            pod
            for pod in self._cluster.pods
            if (pod.spec.name, pod.spec.namespace) == (name, namespace)
        ]
        if not found:
            return 1, f'Error from server (NotFound): pods "{name}" not found\n'
        if verb == "get":
            with contextlib.suppress(OSError):
                os.write(streams[1], found[0].address.encode() if found[0].restarts >= 0 else b"")
            return 0, ""
        if not found[0].running:
            return 1, "error: unable to upgrade connection: container not found\n"
        status = _enter(found[0], command, streams, connection, stdin="-i" in flags)
        ended = f"command terminated with exit code {status}\n" if status else ""
        return status, ended


def _enter(
    pod: Pod, command: list[str], streams: list[int], connection: socket.socket, *, stdin: bool
) -> int:
    """Run a command in a container; its streams are the caller's as long as that is there."""
    with pod.popen(*command) as process:
        assert process.stdin
        assert process.stdout
        assert process.stderr
        out, err = process.stdout.fileno(), process.stderr.fileno()
        source = streams[0] if stdin else -1
        copies = [
            threading.Thread(target=_copy, args=(out, streams[1]), daemon=True),
            threading.Thread(target=_copy, args=(err, streams[2]), daemon=True),
            threading.Thread(target=_feed, args=(process, source, connection), daemon=True),
        ]
        for copy in copies:
            copy.start()
        status = process.wait()
        for copy in copies:
            copy.join()
    return status


def _copy(source: int, target: int) -> None:
    while data := os.read(source, 1 << 16):
        with contextlib.suppress(OSError):  # who read it has gone
            os.write(target, data)


def _feed(process: subprocess.Popen[bytes], stdin: int, connection: socket.socket) -> None:
    """Hand on what the caller writes, and its end; the end of the caller is one, too."""
    assert process.stdin
    ended = os.pidfd_open(process.pid)
    watched = [ended, connection.fileno(), *([stdin] if stdin >= 0 else [])]
    with contextlib.suppress(OSError):  # nobody reads there any more
        while ready := select.select(watched, [], [])[0]:
            if ended in ready or connection.fileno() in ready:
                break
            if not (data := os.read(stdin, 1 << 16)):
                break
            os.write(process.stdin.fileno(), data)
    os.close(ended)
    with contextlib.suppress(OSError):
        process.stdin.close()
