"""What a stranger is offered by a worker's two servers, as ssh-audit sees it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from mpiboot.ssh import login
from tests.fakes.worker import HAVE_SSH, HAVE_SSHD, Worker, make_key

# NIST's curves, which ssh-audit doesn't trust: builds in FIPS mode have no others.
ALLOWED = ("ecdh-sha2-nistp", "ecdsa-sha2-nistp")
# What OpenSSH 8.0 chooses, Debian 12's own choice, and a list as of a system in FIPS mode.
FIPS = ("-o", "KexAlgorithms=ecdh-sha2-nistp384", "-o", "Ciphers=aes256-ctr")
OLD = ("-o", "KexAlgorithms=curve25519-sha256", "-o", "Ciphers=chacha20-poly1305@openssh.com")
DH = ("-o", "KexAlgorithms=diffie-hellman-group14-sha256", "-o", "MACs=hmac-sha2-256")


@pytest.fixture(scope="module")
def audit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """ssh-audit from PyPI, in a folder of its own."""
    folder = tmp_path_factory.mktemp("audit")
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--retries=20"]
    subprocess.run([*install, "--target", folder, "ssh-audit==3.9.0"], check=True)
    return folder


@pytest.mark.full
@pytest.mark.skipif(not (HAVE_SSH and HAVE_SSHD), reason="no OpenSSH")
@pytest.mark.parametrize("key", ["rsa", "ecdsa", "ed25519"])
@pytest.mark.parametrize("kind", ["openssh", "embedded"])
def test_nothing_broken_is_offered_to_a_stranger(
    kind: str, key: str, audit: Path, tmp_path: Path
) -> None:
    worker = Worker(tmp_path, kind, with_key=False)
    make_key(worker.key, "-t", key, *(("-b", "3072") if key == "rsa" else ()))
    worker.start().listens()
    try:
        command = [sys.executable, "-m", "ssh_audit", "-jj", "--skip-rate-test"]
        done = subprocess.run(
            [*command, f"127.0.0.1:{worker.port}"],
            env={**os.environ, "PYTHONPATH": str(audit)},
            capture_output=True,
            text=True,
            check=False,
        )
        found = json.loads(done.stdout)
        failing = [
            (kind, item["algorithm"], item["notes"]["fail"])
            for kind in ("kex", "key", "enc", "mac")
            for item in found[kind]
            if item.get("notes", {}).get("fail") and not item["algorithm"].startswith(ALLOWED)
        ]
        assert failing == []
        assert (found["kex"], found["enc"], found["mac"]) != ([], [], [])
        for options in ((), FIPS, OLD, DH):
            assert worker.ssh("exit 9", options=options).returncode == 9, options
    finally:
        assert worker.stop() == 0, worker.log


def test_a_name_that_this_asyncssh_lacks_is_left_out() -> None:
    assert login.available("ed449-of-nobody", "rsa-sha2-256") == ["rsa-sha2-256"]
