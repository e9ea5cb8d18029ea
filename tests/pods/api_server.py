"""A FAKE API server and a FAKE kubectl: no Kubernetes is behind them.

The program that pods get as ``kubectl`` hands its words and streams to the test's process, which
answers as an API server and a kubelet would: it looks for the token, the namespace and the pod,
and enters a real container by ``runc exec``. Its words are those of kubectl and the API
server.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import socketserver
import subprocess
import threading
from pathlib import Path
from typing import Any

from tests.pods.cluster import Cluster
from tests.pods.volumes import Files, HostPath, SubPath, Volume

TOKEN = "the-token-of-the-launchers-service-account"
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
        self._cluster = cluster
        self._folder = folder
        folder.chmod(0o755)
        serve = self._serve

        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                serve(self.request)

        self._server = socketserver.ThreadingUnixStreamServer(str(folder / "socket"), Handler)
        self._server.daemon_threads = True  # what was started in a pod ends with the pod
        (folder / "socket").chmod(0o777)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def __enter__(self) -> ApiServer:  # noqa: PYI034 # Self needs Python 3.11
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def volumes(self) -> list[Volume]:
        """What a launcher gets: kubectl, the way to the server, and its service account."""
        return [
            SubPath(_WHERE, _KUBECTL, 0o755),
            HostPath(_SOCKET, self._folder),
            Files(_ACCOUNT, {"token": TOKEN, "namespace": "default"}),
        ]

    def _serve(self, connection: socket.socket) -> None:
        data, streams, _, _ = socket.recv_fds(connection, 1 << 20, 3)
        try:
            while not data.endswith(b"\n"):
                data += connection.recv(1 << 20)
            status, message = self._answer(json.loads(data), streams, connection)
            reply = json.dumps({"status": status, "message": message}).encode() + b"\n"
            with contextlib.suppress(OSError):
                connection.sendall(reply)
        finally:
            for stream in streams:
                os.close(stream)

    def _answer(
        self, asked: dict[str, Any], streams: list[int], connection: socket.socket
    ) -> tuple[int, str]:
        words = list(asked["words"])
        command = words[words.index("--") + 1 :] if "--" in words else []
        words = words[: words.index("--")] if "--" in words else words
        flags = dict(word.partition("=")[::2] for word in words if word.startswith("-"))
        plain = [word for word in words if not word.startswith("-")]
        known = {"--namespace", "--container", "--output", "-i"}
        if unknown := sorted(set(flags) - known):
            return 1, f"error: unknown flag: {unknown[0]}\n"
        verb, name = plain[0], plain[-1]
        assert asked["token"] == TOKEN
        assert flags.get("--namespace", asked["own"]) == asked["own"]
        of_name = [pod for pod in self._cluster.pods if pod.spec.name == name]
        if not of_name:
            return 1, f'Error from server (NotFound): pods "{name}" not found\n'
        (pod,) = of_name
        if verb == "get":
            with contextlib.suppress(OSError):
                os.write(streams[1], pod.address.encode() if pod.restarts >= 0 else b"")
            return 0, ""
        if not pod.running:
            return 1, "error: unable to upgrade connection: container not found\n"
        with pod.popen(*command, out=streams[1], err=streams[2]) as process:
            if "-i" in flags:
                _feed(process, streams[0], connection)
            status = process.wait()
        return status, f"command terminated with exit code {status}\n" if status else ""


def _feed(process: subprocess.Popen[bytes], stdin: int, connection: socket.socket) -> None:
    """Hand on what the caller writes, and its end; the end of the caller is one, too."""
    assert process.stdin
    ended, gone = os.pidfd_open(process.pid), connection.fileno()
    with process.stdin, contextlib.suppress(OSError):  # nobody reads there any more
        while select.select([ended, gone, stdin], [], [])[0] == [stdin]:
            if not (data := os.read(stdin, 1 << 16)):
                break
            os.write(process.stdin.fileno(), data)
    os.close(ended)
