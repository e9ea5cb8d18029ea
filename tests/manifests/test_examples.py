"""Every example: its fields, its settings, its commands; how much it may do; who explains it."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from mpiboot.cli.commands import cli
from mpiboot.core import settings
from mpiboot.core.settings import ROWS
from tests.manifests import check
from tests.manifests.examples import FILES, FOLDER, RECIPES, name_of
from tests.pages import OWNER, PAGES, blocks
from tests.test_docs import refused

EACH = pytest.mark.parametrize("path", FILES, ids=name_of)
# What a container of an example may have beyond nothing: sshd's for root, and RDMA's.
_ADDED = {"IPC_LOCK", "SETGID", "SETUID", "SYS_CHROOT"}
_IMAGES = {"my-image", f"{OWNER['registry']}/mpiboot", "my-worker-image"}


def containers(path: Path) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Each with its pod."""
    for pod in (item for item in check.below(check.read(path)) if "containers" in item):
        for container in [*pod.get("initContainers", ()), *pod["containers"]]:
            yield pod, container


@EACH
@pytest.mark.parametrize("version", [check.OLDEST, check.NEWEST])
def test_nothing_is_wrong_with_an_example(path: Path, version: str) -> None:
    assert [line for made in check.read(path) for line in check.wrong(made, version)] == []


def test_pods_that_pages_show_in_parts_have_only_fields_that_there_are() -> None:
    """An MPIJob's part, a pod's, a container's: each pod is held against the schema of its own."""
    found = 0
    for block in blocks("yaml"):
        for made in yaml.safe_load_all(block.text):
            for pod in check.below(made):
                parts = {"containers", "initContainers"} & set(pod)
                if parts:
                    # What a part leaves out stands in the whole.
                    whole = {
                        part: [{"name": "other"} | item for item in pod[part]] for part in parts
                    }
                    template = {"spec": {"containers": [{"name": "other"}], **pod, **whole}}
                    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "a"}}
                    assert check.wrong({**job, "spec": {"template": template}}) == [], block.message
                    found += 1
    assert found >= 4


@EACH
@pytest.mark.filterwarnings("ignore:.*protected_args.*:DeprecationWarning")
def test_an_examples_settings_and_commands_are_mpiboots(path: Path) -> None:
    """Their values can be read; a command line of mpiboot's is one that it takes."""
    known = {row.variable for row in ROWS}
    for _, container in containers(path):
        assert container["image"] in _IMAGES
        env = {item["name"]: item["value"] for item in container.get("env", ())}
        assert {name for name in env if name.startswith("MPIBOOT_")} <= known
        settings.resolve({}, env)
        command, args = container.get("command"), container.get("args", [])
        if command == ["/mpiboot/bin/mpiboot"]:  # as an ENTRYPOINT would
            command = None
        if command is None and not args:  # a Trainer's launcher: the TrainJob has its args
            assert path.parent.name == "trainer"
        elif command is None and args[0] in cli.commands:
            assert refused(args) == ""
        elif command is None:
            assert args[0] == "mpirun"
        elif command[0] == "mpiboot":
            assert refused([*command[1:], *args]) == ""
        else:
            assert command[:2] == ["sh", "-c"]


@EACH
def test_an_example_may_do_no_more_than_it_needs(path: Path) -> None:
    for pod, container in containers(path):
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod)
        everybody = pod["securityContext"]
        assert everybody["seccompProfile"] == {"type": "RuntimeDefault"}
        own = container["securityContext"]
        assert own["allowPrivilegeEscalation"] is False
        assert own["readOnlyRootFilesystem"] is True
        assert "privileged" not in own
        assert own["capabilities"]["drop"] == ["ALL"]
        added = set(own["capabilities"].get("add", ()))
        assert added <= _ADDED
        # A capability is of use to root alone; who isn't root is restricted in every way.
        assert everybody["runAsUser"] == 0 if added else True
        assert everybody.get("runAsNonRoot", False) == (everybody["runAsUser"] != 0)
        paths = {mount["mountPath"] for mount in container["volumeMounts"]}
        assert "/tmp" in paths or container["args"] == ["copy-to", "/mpiboot"]
        token = pod.get("automountServiceAccountToken")
        uses_api = any(item["name"] == "MPIBOOT_LAUNCH_AGENT" for item in container.get("env", ()))
        assert token is (None if uses_api else False)


@EACH
def test_a_probe_asks_the_port_that_the_worker_is_told(path: Path) -> None:
    for _, container in containers(path):
        if "readinessProbe" in container:
            env = {item["name"]: item["value"] for item in container["env"]}
            port = container["readinessProbe"]["tcpSocket"]["port"]
            assert env["MPIBOOT_SSH_PORT"] == str(port)


@pytest.mark.parametrize("path", [*FILES, *RECIPES], ids=name_of)
def test_an_example_is_explained_and_stands_in_the_table(path: Path) -> None:
    assert path.read_text().startswith("# ")
    link = f"examples/{name_of(path)})"
    assert any(link in page.read_text() for page in PAGES if page.parent.name in ("how-to", "docs"))
    assert (name_of(path), name_of(path)) in rows()


def test_the_table_names_no_file_that_is_not_there() -> None:
    there = [name_of(path) for path in (*FILES, *RECIPES)]
    assert sorted(target for _, target in rows()) == sorted(there)


def rows() -> list[tuple[str, str]]:
    """The links of the table's first column."""
    text = (FOLDER / "README.md").read_text()
    return re.findall(r"^\| \[([^]]+)\]\(([^)]+)\)", text, re.MULTILINE)


DOCUMENTS = {
    (made["apiVersion"], made["kind"]): made for path in FILES for made in check.read(path)
}


@pytest.mark.parametrize("key", sorted(DOCUMENTS), ids="/".join)
def test_a_misspelt_field_deep_inside(key: tuple[str, str]) -> None:
    """Each of its mappings in turn, but those whose keys are the user's own."""
    own = {"nodeSelector", "labels", "annotations", "matchLabels", "data", "requests", "limits"}
    own |= {"selector"} if key[1] == "Service" else {"plugins"}
    whole = copy.deepcopy(DOCUMENTS[key])
    free = [id(item[name]) for item in check.below(whole) for name in own & set(item)]
    for item in check.below(whole):
        if item is not whole and item and id(item) not in free:
            item["mispelt"] = "x"
            assert any("mispelt" in line for line in check.wrong(whole)), item
            del item["mispelt"]
    assert check.wrong(whole) == []


def test_a_value_of_another_type() -> None:
    made = copy.deepcopy(DOCUMENTS["kubeflow.org/v2beta1", "MPIJob"])
    wrong = {"slotsPerWorker": "2", "runLauncherAsWorker": "yes", "mpiImplementation": "OMPI"}
    made["spec"] |= {**wrong, "runPolicy": ["Running"]}
    assert {line.rpartition(": ")[2] for line in check.wrong(made)} == {
        *("'2' is not a whole number", "'OMPI' is none of Intel, MPICH, OpenMPI"),
        *("['Running'] is no mapping of fields", "'yes' is not true or false"),
    }
