"""Benchmarks: ``python -m benchmarks [NAME...]``. Each module here but ``runs`` is one, with a ``main(arguments) -> int``.

Every result is one JSON object a line with ``bench``, ``case``, ``median``, ``spread``, ``unit``, ``n``, ``command`` and ``environment``.
"""
