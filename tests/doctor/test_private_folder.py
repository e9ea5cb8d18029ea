"""A doctor that logs in makes a private folder, without the key; it is gone at the end."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path

import asyncssh
import pytest

from mpiboot.core.checks import ShownError
from mpiboot.core.settings import Settings, resolve
from mpiboot.doctor import checks, role


def test_nothing_is_left_of_doctors_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key, listed, run = (tmp_path / name for name in ("key", "hosts", "run"))
    asyncssh.generate_private_key("ssh-ed25519").write_private_key(key)
    key.chmod(0o600)
    listed.write_text("127.0.0.1 slots=1\n")
    environ = {
        "MPIBOOT_ROLE": "launcher",
        "MPIBOOT_SSH_KEY": str(key),
        "MPIBOOT_SSH_PORT": "1",  # where nobody listens
        "MPIBOOT_HOSTFILE": str(listed),
        "MPIBOOT_RUNTIME_DIR": str(run),
        "HOME": str(tmp_path),
    }
    there: list[Path] = []
    remove = checks.remove_folder

    def look_and_remove(settings: Settings, environ: Mapping[str, str]) -> None:
        there.extend(run.rglob("*"))
        assert key.read_bytes() not in [path.read_bytes() for path in there if path.is_file()]
        remove(settings, environ)

    monkeypatch.setattr(os, "environ", {**os.environ})  # who has no passwd entry gets names there
    monkeypatch.setattr(checks, "remove_folder", look_and_remove)
    with contextlib.suppress(ShownError):  # no host answers
        role.run_ranks(resolve({}, environ), environ, seconds=1)
    assert checks.role_name() in [path.name for path in there]
    assert not list(run.iterdir())
