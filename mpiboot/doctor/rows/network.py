"""The rows of links, routes and the data network. Pure."""

from __future__ import annotations

from typing import Final

from mpiboot.core.doctor_checks import DATA_CHECKS, NEVER_STOP
from mpiboot.core.model import Level
from mpiboot.doctor.judge import counters, hardware, pod
from mpiboot.doctor.rows.pod_check import PodCheck

_REQUIRED: Final = {Level.FAIL: "the same, where MPIBOOT_DATA_NETWORK=require"}

ROWS: Final = (
    PodCheck(
        "service-mesh",
        "listening ports and annotations of Istio and Linkerd",
        ("mesh", "settings"),
        pod.mesh,
        {Level.WARN: "a proxy takes this pod's connections"},
    ),
    PodCheck(
        "rp-filter",
        "net.ipv4.conf.*.rp_filter of a pod with several links",
        ("routing", "facts"),
        pod.rp_filter,
        {
            Level.OK: "no link is strict",
            Level.WARN: "a link drops what its own route would not answer",
        },
    ),
    PodCheck(
        "default-routes",
        "the routes of the main table",
        ("facts",),
        pod.default_routes,
        {Level.OK: "one link has it", Level.WARN: "several links have one"},
    ),
    PodCheck(
        "rdma-counters",
        "errors and retries that this pod's RDMA ports count, twice within a second (`counters` "
        "and `hw_counters` in sysfs); a device that pods share counts for all of them",
        ("counters",),
        counters.counters,
        {Level.OK: "none grows", Level.WARN: "one grows while doctor looks"},
    ),
    *(
        PodCheck(
            row.reference,
            "links, RDMA devices, ports and GIDs as `mpiboot facts` shows them",
            ("facts", "settings"),
            hardware.data_network,
            {
                Level.WARN: "it does not hold",
                **({} if row.reference in NEVER_STOP else _REQUIRED),
            },
        )
        for row in DATA_CHECKS
    ),
)
