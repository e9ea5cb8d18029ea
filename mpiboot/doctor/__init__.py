"""``mpiboot doctor``: what is looked at in a pod, what it means, and how it is told."""
