"""A field that its kind lacks, or of another type, is found: in each kind that examples use."""

from __future__ import annotations

import copy

import pytest

from tests.manifests import check
from tests.manifests.examples import FILES

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
