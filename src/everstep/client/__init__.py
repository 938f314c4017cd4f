"""The client: the Python SDK, and what turns a user's files into a task. Light to import; the server is not needed."""
