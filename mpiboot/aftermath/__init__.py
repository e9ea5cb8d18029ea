"""What follows a job's end: asking the workers why, and telling them that it ended well."""
