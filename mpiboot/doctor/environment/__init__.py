"""``mpiboot doctor --env``: a pod's environment, that of an SSH session there, and a rank's."""
