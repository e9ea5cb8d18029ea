"""The texts that a kubelet writes for a pod: /etc/hosts, /etc/resolv.conf, its environment."""

from __future__ import annotations

from collections.abc import Sequence

from tests.pods.network import DNS_ADDRESSES, Link
from tests.pods.oci import PodSpec


def fqdn(spec: PodSpec, hostname: str) -> str:
    """A pod's name in the cluster's DNS; one without a subdomain has none there but this form."""
    parts = [hostname, *([spec.subdomain] if spec.subdomain else [])]
    return ".".join([*parts, spec.namespace, "svc", spec.cluster_domain])


def hosts(spec: PodSpec, hostname: str, addresses: Sequence[str]) -> str:
    """/etc/hosts; with hostNetwork that of the node."""
    lines = [
        "# Kubernetes-managed hosts file.",
        "127.0.0.1\tlocalhost",
        "::1\tlocalhost ip6-localhost ip6-loopback",
        "fe00::0\tip6-localnet",
        "fe00::0\tip6-mcastprefix",
        "fe00::1\tip6-allnodes",
        "fe00::2\tip6-allrouters",
    ]
    # That of a Debian node knows its own name alone, and no address that others could use.
    for address in ["127.0.1.1"] if spec.host_network else addresses:
        if spec.subdomain and not spec.host_network:
            lines.append(f"{address}\t{fqdn(spec, hostname)}\t{hostname}")
        else:
            lines.append(f"{address}\t{hostname}")
    if spec.extra_hosts:
        lines += ["", "# Entries added by HostAliases."]
        lines += ["\t".join([address, *names]) for address, names in spec.extra_hosts.items()]
    return "\n".join(lines) + "\n"


def resolv_conf(spec: PodSpec, links: Sequence[Link]) -> str:
    """/etc/resolv.conf: dnsPolicy ClusterFirst, or None with a server and no search list."""
    server = DNS_ADDRESSES[0 if any(link.ipv4 for link in links) else 1]
    if not spec.cluster_dns:
        return f"nameserver {server}\n"
    domain = spec.cluster_domain
    search = [f"{spec.namespace}.svc.{domain}", f"svc.{domain}", domain, *spec.searches]
    return f"search {' '.join(search)}\nnameserver {server}\noptions ndots:5\n"


def environment(spec: PodSpec, hostname: str) -> dict[str, str]:
    """The image's variables, the kubelet's, then the manifest's own."""
    api = "tcp://10.96.0.1:443"
    return {
        **spec.image.env,
        "HOSTNAME": hostname,
        "KUBERNETES_SERVICE_HOST": "10.96.0.1",
        "KUBERNETES_SERVICE_PORT": "443",
        "KUBERNETES_SERVICE_PORT_HTTPS": "443",
        "KUBERNETES_PORT": api,
        "KUBERNETES_PORT_443_TCP": api,
        "KUBERNETES_PORT_443_TCP_ADDR": "10.96.0.1",
        "KUBERNETES_PORT_443_TCP_PORT": "443",
        "KUBERNETES_PORT_443_TCP_PROTO": "tcp",
        **spec.env,
    }
