"""Supervises mpirun in the launcher's process, and queries its hosts."""
