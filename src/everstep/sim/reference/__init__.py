"""The reference driver: the tick semantics of published comparisons, from flip to flip and wake to wake."""
