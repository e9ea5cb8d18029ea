"""What only doctor looks at, an area each: read-only, bounded in time."""
