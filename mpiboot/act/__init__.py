"""What changes the world: private files, processes, servers."""
