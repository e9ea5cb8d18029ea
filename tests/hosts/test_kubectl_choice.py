from __future__ import annotations

from pathlib import Path

import pytest

from mpiboot.core.checks import MpibootError
from mpiboot.core.model import Source
from mpiboot.core.settings import resolve
from mpiboot.hosts.access import ACCOUNT, choose_access, own_namespace
from mpiboot.ssh.kubectl import PodAccess


@pytest.fixture
def account(tmp_path: Path) -> Path:
    folder = tmp_path / "account"
    folder.mkdir()
    (folder / "token").write_text("t")
    (folder / "namespace").write_text("jobs\n")
    return folder


@pytest.fixture
def path(tmp_path: Path) -> str:
    program = tmp_path / "bin" / "kubectl"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    return str(program.parent)


def chosen(
    account: Path, environ: dict[str, str], *, key: bool = False
) -> tuple[PodAccess, str, Source, str] | None:
    found = choose_access(resolve({}, environ), environ, lambda: key, account)
    return found and (found[0], found[1].value, found[1].source, found[1].reason)


def test_ssh_is_chosen_wherever_the_job_has_a_key(account: Path, path: str) -> None:
    assert chosen(account, {"PATH": path}, key=True) is None


def test_without_a_key_kubectl_is_chosen_where_it_can_ask(account: Path, path: str) -> None:
    assert chosen(account, {"PATH": path}) == (
        PodAccess(f"{path}/kubectl", "jobs"),
        "kubectl",
        Source.DETECTED,
        "there is no SSH key of the job, but kubectl and a service account's token",
    )


def test_without_kubectl_or_a_token_the_key_is_waited_for(account: Path, path: str) -> None:
    def asked() -> bool:
        raise AssertionError("who can't use kubectl has nothing to choose")

    resolved = resolve({}, {})
    assert choose_access(resolved, {"PATH": ""}, asked, account) is None
    (account / "token").unlink()
    assert choose_access(resolved, {"PATH": path}, asked, account) is None


def test_the_settings_win(account: Path, path: str) -> None:
    environ = {
        "PATH": path,
        "MPIBOOT_LAUNCH_AGENT": "kubectl",
    }
    found = chosen(account, environ, key=True)
    assert found is not None
    assert found[0] == PodAccess(f"{path}/kubectl", "jobs")
    assert found[2] is Source.ENVIRONMENT
    assert chosen(account, environ | {"MPIBOOT_LAUNCH_AGENT": "ssh"}) is None


def test_kubectl_that_is_asked_for_and_missing_is_told(account: Path) -> None:
    with pytest.raises(MpibootError, match="no kubectl on PATH") as told:
        chosen(account, {"PATH": "/nowhere", "MPIBOOT_LAUNCH_AGENT": "kubectl"})
    assert told.value.code == 127
    assert "MPIBOOT_LAUNCH_AGENT" in str(told.value)


def test_a_pod_without_a_service_account_has_no_namespace_of_its_own(tmp_path: Path) -> None:
    assert own_namespace(tmp_path) == ""


def test_the_account_is_looked_for_where_a_kubelet_mounts_it() -> None:
    """As Kubernetes' own documentation has it: tasks/run-application/access-api-from-pod."""
    assert str(ACCOUNT) == "/var/run/secrets/kubernetes.io/serviceaccount"
