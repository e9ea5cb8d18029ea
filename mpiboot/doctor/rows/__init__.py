"""The rows of the table of checks, a file for each area. Pure."""
