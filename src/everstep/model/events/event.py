"""The base of all events."""

from __future__ import annotations


class Event:
    """Base of all events of a job."""

    __slots__ = ()
