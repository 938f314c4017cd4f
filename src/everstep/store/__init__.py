"""The journal, the only source of truth: ``open_store(url)`` and what it opens.

Importing this package costs nothing; a store's own module, with whatever it needs, is imported when it is opened.
"""

from __future__ import annotations

from everstep.store.registry import open_store
from everstep.store.scan import scan

__all__ = ["open_store", "scan"]
