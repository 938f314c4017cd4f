"""What to expect of capacity: time to preemption, availability, how long a failed pool stays away.

A model of lifetimes states its cumulative hazard; everything else follows from that (`hazard`).
"""
