"""The pure core of a job: hosts, names, the mpirun line, the plan."""
