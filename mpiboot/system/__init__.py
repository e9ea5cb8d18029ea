"""What changes this machine: private files, keys, processes."""
