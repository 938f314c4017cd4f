"""State tables of job, gang and instance.

Each table maps (phase, event type) to a move; an unlisted pair raises ``UnlistedTransition``. The state diagrams of the
documentation are generated from these tables (``diagrams``).
"""

from everstep.brain.lifecycle.job import JOB_TABLE, accepts, submitted, transition
from everstep.brain.lifecycle.orders import Briefing, orders, same_orders

__all__ = ["JOB_TABLE", "Briefing", "accepts", "orders", "same_orders", "submitted", "transition"]
