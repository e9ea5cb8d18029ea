"""The gate: each host of the job resolved, dialled and logged in to, within one deadline."""
