"""Tables and records that all else is built of: settings, checks, exit codes, log."""
