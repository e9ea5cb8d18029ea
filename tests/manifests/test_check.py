"""A field that its kind lacks, or of another type, is found: in each kind that examples use."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from tests.manifests import check, shapes
from tests.manifests.examples import FILES

DOCUMENTS = {
    (made["apiVersion"], made["kind"]): made for path in FILES for made in check.read(path)
}
KINDS = pytest.mark.parametrize("key", sorted(DOCUMENTS), ids="/".join)


def changed(key: tuple[str, str]) -> dict[str, Any]:
    made: dict[str, Any] = copy.deepcopy(DOCUMENTS[key])
    return made


def test_every_row_of_the_table_is_of_a_kind_that_an_example_uses() -> None:
    assert set(shapes.CUSTOM) <= set(DOCUMENTS)


@KINDS
def test_a_misspelt_field_deep_inside(key: tuple[str, str]) -> None:
    """Each of its mappings in turn; where keys are the user's own, none is misspelt."""
    own = {"nodeSelector", "labels", "annotations", "matchLabels", "data", "requests", "limits"}
    if key[1] == "Service":
        own.add("selector")
    whole = changed(key)
    places = [item for item in check.below(whole) if item is not whole]
    free = [id(item[name]) for item in check.below(whole) for name in own & set(item)]
    tried = 0
    for item in places:
        if id(item) in free or not item or any(isinstance(name, int) for name in item):
            continue
        if set(item) & {"mpi", "svc", "ssh"}:  # Volcano's plugins, by their names
            continue
        item["mispelt"] = "x"
        assert any("mispelt" in line for line in check.wrong(whole)), item
        del item["mispelt"]
        tried += 1
    assert tried or not places or key[1] in {"ServiceAccount", "ConfigMap"}
    assert check.wrong(whole) == []


def mpijob(**spec: object) -> dict[str, Any]:
    made = changed(("kubeflow.org/v2beta1", "MPIJob"))
    made["spec"] |= spec
    return made


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"slotPerWorker": 2}, "spec.slotPerWorker: there is no such field; slotsPerWorker is one"),
        ({"slotsPerWorker": "2"}, "spec.slotsPerWorker: '2' is not a whole number"),
        ({"runLauncherAsWorker": "yes"}, "spec.runLauncherAsWorker: 'yes' is not true or false"),
        (
            {"mpiImplementation": "OMPI"},
            "spec.mpiImplementation: 'OMPI' is none of Intel, MPICH, O",
        ),
        ({"runPolicy": ["Running"]}, "spec.runPolicy: ['Running'] is no mapping of fields"),
        ({"mpiReplicaSpecs": {"Workers": {}}}, "spec.mpiReplicaSpecs.Workers: there is no such fi"),
    ],
)
def test_what_is_wrong_is_said_in_a_line(spec: dict[str, Any], message: str) -> None:
    (line,) = check.wrong(mpijob(**spec))
    assert line.startswith(f"MPIJob: {message}")


def test_a_list_and_a_pod_template_of_another_type() -> None:
    volcano = {"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "metadata": {"name": "a"}}
    (line,) = check.wrong({**volcano, "spec": {"tasks": {"name": "x"}}})
    assert line == "Job: spec.tasks: {'name': 'x'} is no list"
    (line,) = check.wrong(mpijob(mpiReplicaSpecs={"Worker": {"template": {"spek": {}}}}))
    assert "spek" in line
    assert line.startswith("MPIJob: spec.mpiReplicaSpecs.Worker.template")


def test_a_built_in_kind_of_an_older_release() -> None:
    """ResourceClaimTemplate is in resource.k8s.io/v1 since 1.34."""
    made = changed(("resource.k8s.io/v1", "ResourceClaimTemplate"))
    assert check.wrong(made, check.OLDEST) == []
    (line,) = check.wrong(made, "1.33")
    assert line == "ResourceClaimTemplate: resource.k8s.io/v1 has no schema here"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [1", "is not YAML: while parsing"),
        ("", "holds no manifest"),
        ("apiVersion: v1\nkind: Pod\n---\nkind: Pod\n", "document 2 has no apiVersion and kind"),
    ],
)
def test_a_file_that_holds_no_manifests(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(text)
    with pytest.raises(check.ManifestError, match=message) as raised:
        check.read(path)
    assert str(raised.value).startswith(str(path))
    assert "\n" not in str(raised.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(check.ManifestError, match=r"none\.yaml can't be read: No such file"):
        check.read(tmp_path / "none.yaml")
