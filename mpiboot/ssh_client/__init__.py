"""mpiboot's own SSH client, and the configuration that any SSH client of a launch gets."""
