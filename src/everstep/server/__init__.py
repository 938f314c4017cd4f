"""The server: REST, event stream, what agents call, and the composition root.

Only ``daemon`` puts the parts together.
"""
