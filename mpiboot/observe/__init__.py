"""What is seen of the world: read-only, bounded, without an opinion."""
