"""The fields of a manifest: which are left out here and why, which are missing or unknown."""

from __future__ import annotations

from typing import Any

Fields = dict[str, Any]
_CONTROLLER = "there is no controller to restart pods or clean up"
_NODE = "there is one machine and no scheduler"
_API = "there is no API server"
# Fields that say nothing to a pod here, wherever they stand, and why.
LEFT_OUT = {
    **dict.fromkeys(("backoffLimit", "cleanPodPolicy", "failurePolicy", "maxRetry"), _CONTROLLER),
    **dict.fromkeys(("podFailurePolicy", "policies", "restartPolicy"), _CONTROLLER),
    **dict.fromkeys(("activeDeadlineSeconds", "ttlSecondsAfterFinished"), _CONTROLLER),
    **dict.fromkeys(("affinity", "nodeSelector", "tolerations", "priorityClassName"), _NODE),
    **dict.fromkeys(("automountServiceAccountToken", "serviceAccountName"), _API),
    "resources": "every pod has all of this machine, and no devices",
    "resourceClaims": "no device is claimed",
    "k8s.v1.cni.cncf.io/networks": "pods have the one network of all pods",
    "readinessProbe": "readiness is not probed",
    **dict.fromkeys(("imagePullPolicy", "imagePullSecrets"), "the image is built here"),
    **dict.fromkeys(
        ("lifecycle", "livenessProbe", "startupProbe"), "there is no kubelet to run them"
    ),
    "ports": "pods reach each other at every port",
    "terminationGracePeriodSeconds": "nobody ends a pod but you",
    "envFrom": "there is no object to take variables from",
    "runAsNonRoot": "runAsUser is used as it is",
}


class NotPlayedError(Exception):
    """A manifest that can't be played, or makes no job; the text is one line for its user."""


def only(fields: Fields, *known: str) -> Fields:
    """The same fields; one that is not played here is an error."""
    unknown = set(fields) - set(known)
    if unknown:
        raise NotPlayedError(f"{', '.join(sorted(unknown))} can't be played without a cluster")
    return fields


def needed(fields: Fields, *path: str) -> Any:
    """What stands at a path; an error names the first field that is missing."""
    found: Any = fields
    for depth, name in enumerate(path, 1):
        if not isinstance(found, dict) or found.get(name) in (None, {}, []):
            raise NotPlayedError(f"{fields.get('kind', '')}: {'.'.join(path[:depth])} is missing")
        found = found[name]
    return found


def merged(fields: Fields, more: Fields) -> Fields:
    """A manifest with the fields that a page has the reader add."""
    both = {**fields, **more}
    for name in fields.keys() & more.keys():
        if isinstance(fields[name], dict):
            both[name] = merged(fields[name], more[name])
    return both


def left_out(made: Any) -> tuple[Any, list[tuple[str, str]]]:
    """A document without what is not played; and each such field, with the reason."""
    told: list[tuple[str, str]] = []
    return _kept(made, told), told


def _kept(made: Any, told: list[tuple[str, str]]) -> Any:
    if isinstance(made, list):
        return [_kept(item, told) for item in made]
    if not isinstance(made, dict):
        return made
    if "containers" in made:
        made = {**made, "volumes": [_known(item, told) for item in made.get("volumes", ())]}
    kept = {}
    for name, value in made.items():
        if name in LEFT_OUT:
            told.append((name, LEFT_OUT[name]))
        elif name == "env" and isinstance(value, list):
            kept[name] = [item for item in value if "value" in item]
            elsewhere = [item["name"] for item in value if "value" not in item]
            told += [(item, "its value stands in another object") for item in elsewhere]
        else:
            kept[name] = _kept(value, told)
    return kept


def _known(volume: Fields, told: list[tuple[str, str]]) -> Fields:
    """A volume that can be made here, or an empty folder in its place."""
    kind = next((name for name in volume if name != "name"), "")
    if kind in {"emptyDir", "secret", "configMap"}:
        return volume
    told.append((f"{kind} of the volume {volume['name']}", "an empty folder is in its place"))
    return {"name": volume["name"], "emptyDir": {}}
