"""Benchmarks: ``python -m benchmarks [NAME...]``. Each module but ``runs`` is one, with a ``main(arguments) -> int``.

Every result is one JSON object a line: bench, case, median, spread, unit, n, command, environment (see ``runs.report``).
"""
