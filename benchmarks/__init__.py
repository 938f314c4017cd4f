"""Benchmarks: ``python -m benchmarks [NAME...]``. Each module but ``runs`` is one, with a ``main(arguments) -> int``.

Every result is one JSON object a line; ``runs.report`` says what is in it.
"""
