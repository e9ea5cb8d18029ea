"""Custom resources: the fields that examples use, with their types, each kind from its source.

A field that is not here is not used by any example: whoever uses one adds its row.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any, Final


class Embedded(Enum):
    """A built-in type inside a custom resource."""

    POD_TEMPLATE = "PodTemplateSpec"
    JOB = "JobSpec"


@dataclass(frozen=True)
class Each:
    """A mapping whose keys are the user's own."""

    value: Shape


# int, str, bool; words that are allowed; a list's one item; fields by name; or one of the above.
Shape = type | frozenset[str] | list[Any] | dict[str, Any] | Each | Embedded
ANYTHING: Final = object
POD: Final = Embedded.POD_TEMPLATE


def words(text: str) -> frozenset[str]:
    """The values that a field may have."""
    return frozenset(text.split())


_REPLICAS: Final = {
    "replicas": int,
    "restartPolicy": words("Always OnFailure Never ExitCode"),
    "template": POD,
}
_REPLICATED_JOB: Final = {
    "name": str,
    "replicas": int,
    "dependsOn": [{"name": str, "status": words("Ready Complete")}],
    "template": {"metadata": {"labels": Each(str)}, "spec": Embedded.JOB},
}
# JobSet's own, which stands in a Trainer's runtime too.
_JOBSET: Final = {
    "network": {"publishNotReadyAddresses": bool},
    "successPolicy": {"operator": words("All Any"), "targetReplicatedJobs": [str]},
    "failurePolicy": {
        "maxRestarts": int,
        "rules": [
            {
                "name": str,
                "action": words("FailJobSet RestartJobSet RestartJobSetAndIgnoreMaxRestarts"),
                "onJobFailureReasons": [str],
                "targetReplicatedJobs": [str],
            }
        ],
    },
    "replicatedJobs": [_REPLICATED_JOB],
}
_POLICIES: Final = [
    {
        "event": words("* PodPending PodRunning PodFailed PodEvicted Unknown TaskCompleted"),
        "action": words("AbortJob RestartJob RestartTask TerminateJob CompleteJob ResumeJob"),
        "exitCode": int,
    }
]
_STRATEGY: Final = {"type": words("MustRunAs MustRunAsRange MustRunAsNonRoot RunAsAny")}

# By apiVersion and kind: what stands beside apiVersion, kind and metadata.
CUSTOM: Final[dict[tuple[str, str], dict[str, Any]]] = {
    # kubeflow/mpi-operator, manifests/base/kubeflow.org_mpijobs.yaml, after v0.8.2 (2026-07)
    ("kubeflow.org/v2beta1", "MPIJob"): {
        "spec": {
            "slotsPerWorker": int,
            "mpiImplementation": words("OpenMPI Intel MPICH"),
            "sshAuthMountPath": str,
            "launcherCreationPolicy": words("AtStartup WaitForWorkersReady"),
            "runLauncherAsWorker": bool,
            "runPolicy": {
                "cleanPodPolicy": words("None Running All"),
                "backoffLimit": int,
                "activeDeadlineSeconds": int,
                "ttlSecondsAfterFinished": int,
            },
            "mpiReplicaSpecs": {"Launcher": _REPLICAS, "Worker": _REPLICAS},
        }
    },
    # kubeflow/trainer, manifests/base/crds/trainer.kubeflow.org_*.yaml, after v2.3.0 (2026-08)
    ("trainer.kubeflow.org/v1alpha1", "ClusterTrainingRuntime"): {
        "spec": {
            "mlPolicy": {
                "numNodes": int,
                "mpi": {
                    "numProcPerNode": int,
                    "mpiImplementation": words("OpenMPI"),
                    "sshAuthMountPath": str,
                    "runLauncherAsNode": bool,
                },
            },
            "template": {"spec": _JOBSET},
        }
    },
    ("trainer.kubeflow.org/v1alpha1", "TrainJob"): {
        "spec": {
            "runtimeRef": {"name": str, "kind": str, "apiGroup": str},
            "trainer": {
                "image": str,
                "command": [str],
                "args": [str],
                "numNodes": int,
                "numProcPerNode": int,
            },
        }
    },
    # kubernetes-sigs/jobset, config/components/crd/bases/jobset.x-k8s.io_jobsets.yaml, v0.12
    ("jobset.x-k8s.io/v1alpha2", "JobSet"): {"spec": _JOBSET},
    # volcano-sh/volcano, config/crd/volcano/bases/batch.volcano.sh_jobs.yaml, v1.15
    ("batch.volcano.sh/v1alpha1", "Job"): {
        "spec": {
            "minAvailable": int,
            "maxRetry": int,
            "schedulerName": str,
            "queue": str,
            "plugins": Each([str]),
            "policies": _POLICIES,
            "tasks": [{"name": str, "replicas": int, "policies": _POLICIES, "template": POD}],
        }
    },
    # k8snetworkplumbingwg/sriov-network-operator, sriovnetwork.openshift.io_*.yaml
    ("sriovnetwork.openshift.io/v1", "SriovNetworkNodePolicy"): {
        "spec": {
            "resourceName": str,
            "nodeSelector": Each(str),
            "nicSelector": {"vendor": str, "deviceID": str, "pfNames": [str]},
            "numVfs": int,
            "isRdma": bool,
            "deviceType": words("netdevice vfio-pci"),
            "linkType": words("eth ETH ib IB"),
            "mtu": int,
            "priority": int,
        }
    },
    ("sriovnetwork.openshift.io/v1", "SriovNetwork"): {
        "spec": {"resourceName": str, "networkNamespace": str, "ipam": str, "metaPlugins": str}
    },
    # Mellanox/network-operator, config/crd/bases/mellanox.com_{macvlan,ipoib}networks.yaml
    ("mellanox.com/v1alpha1", "MacvlanNetwork"): {
        "spec": {
            "networkNamespace": str,
            "master": str,
            "mode": words("bridge private vepa passthru"),
            "mtu": int,
            "ipam": str,
        }
    },
    ("mellanox.com/v1alpha1", "IPoIBNetwork"): {
        "spec": {"networkNamespace": str, "master": str, "ipam": str}
    },
    # openshift/api, security/v1/types.go: this kind has its fields at the top
    ("security.openshift.io/v1", "SecurityContextConstraints"): {
        **dict.fromkeys(
            (
                *("allowHostDirVolumePlugin", "allowHostIPC", "allowHostNetwork", "allowHostPID"),
                *("allowHostPorts", "allowPrivilegedContainer", "allowPrivilegeEscalation"),
                "readOnlyRootFilesystem",
            ),
            bool,
        ),
        "allowedCapabilities": [str],
        "defaultAddCapabilities": [str],
        "requiredDropCapabilities": [str],
        "seccompProfiles": [str],
        "volumes": [str],
        "fsGroup": _STRATEGY,
        "runAsUser": _STRATEGY,
        "seLinuxContext": _STRATEGY,
        "supplementalGroups": _STRATEGY,
        "priority": ANYTHING,  # a number or null
    },
}
