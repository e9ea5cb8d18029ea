"""The parent of mpirun: what happens to a started job, what that means, and its honest end."""
