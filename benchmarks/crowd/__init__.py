"""Simulated agents, the cloud they live in, and the real server between them (see ``benchmarks.controller``).

One machine is one object with two sockets, so that a thousand of them fit on one core.
"""
