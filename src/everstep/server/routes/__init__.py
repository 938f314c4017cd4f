"""The user API, a router per noun."""
