"""Futures of an estimate in step: a few array operations per tick for all of them instead of a run each.

For policies that decide so often, or so slowly, that a thousand runs one by one take minutes. ``runs.py`` is the world,
with billing, changeovers and safety net as in ``reference/drive.py``, to the tick; a policy is told a second time, in
arrays, in a module of its own. ``tests/sim/test_lockstep.py`` holds both against the policies themselves.
"""
