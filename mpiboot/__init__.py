"""mpiboot: starts MPI jobs on Kubernetes, on the right network, and says why when it can't.

This file must import nothing: every role of the program, also the small worker, loads it.
"""

__version__ = "0.3.0.dev0"
