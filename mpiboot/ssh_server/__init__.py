"""The worker's SSH server: OpenSSH's or the embedded one, and the sessions of either."""
