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


def test_a_value_of_another_type() -> None:
    made = changed(("kubeflow.org/v2beta1", "MPIJob"))
    wrong = {"slotsPerWorker": "2", "runLauncherAsWorker": "yes", "mpiImplementation": "OMPI"}
    made["spec"] |= {**wrong, "runPolicy": ["Running"]}
    assert {line.rpartition(": ")[2] for line in check.wrong(made)} == {
        *("'2' is not a whole number", "'OMPI' is none of Intel, MPICH, OpenMPI"),
        *("['Running'] is no mapping of fields", "'yes' is not true or false"),
    }


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
