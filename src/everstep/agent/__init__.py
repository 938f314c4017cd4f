"""The process on the instance: joins the server, prepares, starts and watches ranks, sees notices coming, streams logs.

Python 3.9 and the standard library alone; shipped as one ``.pyz`` (see :mod:`everstep.agent.bundle`). Linux only:
process control needs ``/proc`` and child subreapers.

Shape: one main thread owns all state and runs a mailbox (:mod:`everstep.agent.mailbox`); threads only do input and
output and post what they found. Everything below the folder ``BOOT_ROOT``:

===================  =================================================================================================
``agent/``           credential (0600), outbox, what was prepared, which attempts were started, records of keepers
``attempts/N/``      control file and reports of attempt N
``logs/N/R.log``     output of rank R of attempt N, secrets already masked
``workdir/``         the user's working folder, where set-up and ranks run
===================  =================================================================================================
"""
