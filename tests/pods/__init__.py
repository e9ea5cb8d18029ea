"""The rig: pods as a kubelet would make them, with runc, on a cluster of network namespaces."""
