"""The launcher: gates, plan, private files, then mpirun."""
