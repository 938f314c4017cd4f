"""Whole runs of a server over a fake cloud on which everything fails now and then, in virtual time, by seed.

The real controller and the real provider run, with the vendor's own SDK over HTTP; agents and ranks are scripted, and
so is time: a run of half an hour takes seconds, and the same seed gives the same run. What is left in the end is told
by a client that shares no code with the provider, and by the fake's meter.
"""

from everstep.testing.fault_runs.gangs import play_gangs
from everstep.testing.fault_runs.run import Bill, Run, Scene, Seen, Vendor, play, scene_of
from everstep.testing.fault_runs.weather import Weather

__all__ = ["Bill", "Run", "Scene", "Seen", "Vendor", "Weather", "play", "play_gangs", "scene_of"]
