"""Every decision, pure: no clock, no IO, no global chance.

Now and chance are arguments; effects are returned, not done.
"""
