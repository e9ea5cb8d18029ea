"""``mpiboot doctor ranks``: what every rank of a running job does, and which one is the odd one."""
