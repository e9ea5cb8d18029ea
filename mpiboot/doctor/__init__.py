"""``mpiboot doctor``: what is looked at in a pod, how it is judged, and how it is shown."""
