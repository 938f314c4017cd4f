"""Resume without code changes: the automatic mode."""
