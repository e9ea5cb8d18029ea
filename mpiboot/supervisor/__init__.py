"""The launcher's process that stays beside mpirun, and what it asks workers."""
