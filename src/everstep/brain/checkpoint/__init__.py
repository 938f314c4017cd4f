"""When to save, what to keep."""
