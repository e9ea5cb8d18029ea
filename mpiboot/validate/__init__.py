"""``mpiboot validate``: measure the network, and judge whether it is fit."""
