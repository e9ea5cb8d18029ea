"""SSH: the client, the servers of a worker, ssh_config, the launch agent."""
