"""The worker: its folder, key and port, its SSH server, and the pod's environment for the ranks."""
