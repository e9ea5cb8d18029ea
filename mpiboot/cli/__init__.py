"""Command line: commands, entry forms, the one place where errors end."""
