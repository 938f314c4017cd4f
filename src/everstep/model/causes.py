"""Why things end and what warns of it."""

from __future__ import annotations

from enum import StrEnum


class Cause(StrEnum):
    """Why an attempt ended. Recovery starts with UNKNOWN; the settled cause decides which budget is charged."""

    UNKNOWN = "unknown"
    SUCCESS = "success"
    PREEMPTION = "preemption"
    """A machine of the gang was taken back by the vendor, or reached its maximum life."""
    NODE_LOSS = "node_loss"
    """A machine died or fell silent and no vendor says that it took it back."""
    USER_ERROR = "user_error"
    """The user's program failed on healthy machines: the only cause that charges ``max_restarts``."""
    SETUP_FAILED = "setup_failed"
    OWNER = "owner"
    """We stopped it: cancel, pause, switch to another machine, spent budget."""
    UNREACHABLE_PEER = "unreachable_peer"


class InstanceEnd(StrEnum):
    """Why an instance ended, as the statistics see it.

    Only PREEMPTED and LOST are events of the hazard; the rest is censored.
    """

    PREEMPTED = "preempted"
    MAX_LIFE = "max_life"
    LOST = "lost"
    OWNER = "owner"
    BOOT_FAILED = "boot_failed"


class NoticeKind(StrEnum):
    """A warning about an instance."""

    REBALANCE = "rebalance"
    TERMINATE = "terminate"
    MAINTENANCE = "maintenance"
    MAX_LIFE = "max_life"
