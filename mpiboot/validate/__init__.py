"""``mpiboot validate``: a tool measures the network, and one line says whether it is fit."""
