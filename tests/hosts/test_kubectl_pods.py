from __future__ import annotations

import json
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from mpiboot.hosts.access import PodAccess, PodError, Trouble, pod_addresses, pod_error, pod_of

ACCESS = PodAccess("/bin/kubectl", "jobs")


@pytest.mark.parametrize(
    ("host", "pod"),
    [
        ("w-0", "w-0"),
        ("w-0.w.jobs.svc", "w-0"),
        ("w-0.w.jobs.svc.cluster.local", "w-0"),
        ("10.0.0.3", ""),
        ("fd00::3", ""),
    ],
)
def test_a_pod_is_a_hosts_first_label(host: str, pod: str) -> None:
    assert pod_of(host) == pod


def test_namespace_and_container_are_said_only_where_they_are_known() -> None:
    whole = PodAccess("/bin/kubectl", "jobs", "main")
    assert whole.run("w-0", "id; x") == (
        *("/bin/kubectl", "--namespace=jobs", "exec", "--container=main", "w-0", "--"),
        *("/bin/sh", "-c", "id; x"),
    )
    assert PodAccess("kubectl").run("w-0", "id")[:4] == ("kubectl", "exec", "w-0", "--")
    assert whole.get("w-0")[:5] == ("/bin/kubectl", "--namespace=jobs", "get", "pod", "w-0")


# What the API server, client-go and kubectl write; the namespaces and names are examples.
FORBIDDEN = (
    'Error from server (Forbidden): pods "w-0" is forbidden: User '
    '"system:serviceaccount:jobs:trainer" cannot get resource "pods" in API group "" in the '
    'namespace "jobs"'
)
WORDS = {
    FORBIDDEN: Trouble.FORBIDDEN,
    "error: You must be logged in to the server (Unauthorized)": Trouble.UNAUTHORIZED,
    'Error from server (NotFound): pods "w-0" not found': Trouble.NO_POD,
    "Error from server (BadRequest): container x is not valid for pod w-0": (
        Trouble.NO_SUCH_CONTAINER
    ),
    'error: unable to upgrade connection: container not found ("main")': Trouble.NOT_RUNNING,
    "error: cannot exec into a container in a completed pod; current phase is Failed": (
        Trouble.NOT_RUNNING
    ),
    "The connection to the server localhost:8080 was refused - did you specify the right host or "
    "port?": Trouble.NO_SERVER,
    "Unable to connect to the server: dial tcp 10.96.0.1:443: i/o timeout": Trouble.NO_SERVER,
    "Unable to connect to the server: net/http: TLS handshake timeout": Trouble.NO_SERVER,
    'error: Internal error occurred: error executing command in container: "/bin/sh"': (
        Trouble.FAILED
    ),
    "": Trouble.FAILED,
}


@pytest.mark.parametrize("words", WORDS)
def test_kubectls_words_tell_what_failed(words: str) -> None:
    found = pod_error(f"E0101 memcache.go:265 noise\n{words}\n" if words else "", ACCESS)
    assert found.trouble is WORDS[words]
    assert found.message == (words or "it said nothing")
    assert found.trouble.hint
    assert "\n" not in found.message


def test_what_does_not_change_by_waiting_is_final() -> None:
    assert {item for item in Trouble if item.final} == {
        Trouble.FORBIDDEN,
        Trouble.UNAUTHORIZED,
        Trouble.NO_SUCH_CONTAINER,
    }


def test_a_missing_right_comes_with_the_role_for_the_account_that_was_refused() -> None:
    role, binding = yaml.safe_load_all("\n".join(pod_error(FORBIDDEN, ACCESS).evidence))
    assert (role["kind"], role["metadata"]["namespace"]) == ("Role", "jobs")
    assert role["rules"] == [
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]},
        {"apiGroups": [""], "resources": ["pods/exec"], "verbs": ["get", "create"]},
    ]
    assert binding["roleRef"]["name"] == role["metadata"]["name"] == binding["metadata"]["name"]
    assert binding["subjects"] == [
        {"kind": "ServiceAccount", "name": "trainer", "namespace": "jobs"}
    ]


def test_the_role_is_for_the_pods_namespace_and_its_binding_for_the_accounts() -> None:
    evidence = pod_error(FORBIDDEN, PodAccess("kubectl", "others")).evidence
    role, binding = yaml.safe_load_all("\n".join(evidence))
    assert role["metadata"]["namespace"] == binding["metadata"]["namespace"] == "others"
    assert binding["subjects"][0]["namespace"] == "jobs"


def pod(phase: str = "Running", **more: Any) -> str:  # noqa: ANN401 - a part of a Pod
    state = more.pop("state", {"running": {"startedAt": "2026-01-01T00:00:00Z"}})
    return json.dumps(
        {
            "metadata": {"name": "w-0", **more.pop("metadata", {})},
            "spec": {"containers": [{"name": "main"}, {"name": "logs"}]},
            "status": {
                "phase": phase,
                "podIPs": [{"ip": "10.0.0.3"}, {"ip": "fd00::3"}],
                "containerStatuses": [
                    {"name": "logs", "state": {"waiting": {"reason": "Other"}}},
                    {"name": "main", "state": state},
                ],
                **more,
            },
        }
    )


def test_a_pod_that_runs_has_its_addresses() -> None:
    assert pod_addresses(pod(), ACCESS) == ("10.0.0.3", "fd00::3")
    assert pod_addresses(pod(), PodAccess("kubectl", "jobs", "main")) == ("10.0.0.3", "fd00::3")


@pytest.mark.parametrize(
    ("text", "trouble", "message"),
    [
        (
            pod("Pending", state={"waiting": {"reason": "ImagePullBackOff"}}),
            Trouble.NOT_RUNNING,
            "it is Pending: ImagePullBackOff",
        ),
        (
            pod("Failed", state={"terminated": {"exitCode": 137}}),
            Trouble.NOT_RUNNING,
            "it is Failed: its container main ended with 137",
        ),
        (
            pod(
                "Pending",
                containerStatuses=[],
                conditions=[{"type": "PodScheduled", "message": "0/3 nodes are available"}],
            ),
            Trouble.NOT_RUNNING,
            "it is Pending: 0/3 nodes are available",
        ),
        (pod("Pending", containerStatuses=[]), Trouble.NOT_RUNNING, "it is Pending"),
        (
            pod(metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"}),
            Trouble.NOT_RUNNING,
            "it is being deleted",
        ),
        (pod(podIPs=[]), Trouble.NOT_RUNNING, "it has no address yet"),
        (
            pod(metadata={"annotations": {"kubectl.kubernetes.io/default-container": "logs"}}),
            Trouble.NOT_RUNNING,
            "it is Running: Other",
        ),
        ("[]", Trouble.FAILED, "its answer is not that of a pod"),
        ("what?", Trouble.FAILED, "its answer is not that of a pod"),
        ('{"spec": {"containers": []}}', Trouble.FAILED, "its answer is not that of a pod"),
    ],
)
def test_a_pod_that_cannot_be_entered_says_why(text: str, trouble: Trouble, message: str) -> None:
    with pytest.raises(PodError) as caught:
        pod_addresses(text, ACCESS)
    assert (caught.value.trouble, caught.value.message) == (trouble, message)


def test_a_container_that_is_not_there_is_told_with_those_that_are() -> None:
    with pytest.raises(PodError, match="it has no container train, but main, logs") as caught:
        pod_addresses(pod(), PodAccess("kubectl", "jobs", "train"))
    assert caught.value.trouble is Trouble.NO_SUCH_CONTAINER
    assert "MPIBOOT_KUBECTL_CONTAINER" in caught.value.trouble.hint
