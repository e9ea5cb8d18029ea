"""The launch agent, ``libexec/agent``: how mpirun calls it, and the files that it reads."""
