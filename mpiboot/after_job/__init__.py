"""After the job: workers are asked why it failed, or told that it ended well."""
