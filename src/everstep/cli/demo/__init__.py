"""``everstep demo``: a two-node job that survives what kills jobs elsewhere, and the evidence that it did.

Parts, in the order of a run: ``scenario`` (what will happen), ``reference`` (the undisturbed run), ``stage`` (a private
installation on a cloud in a box), ``driver`` (watches the job, breaks things), ``live`` (the view), ``evidence`` (the
files of the report), ``figures`` (what they say), ``timeline``, ``picture`` and ``page`` (what it looks like) and
``verify`` (all of it again, from the files alone).
"""
