"""The start-up shim: has an unmodified training script run under ``everstep.train.run``, wherever it is started.

The agent copies this package into a folder of its own (``everstep.agent.shimming``) and puts that on ``PYTHONPATH`` of
what the user runs. Every Python below then passes by ``startup`` before its first line. Where its ``__main__`` is a
training script of the user's, the process image is replaced by one that runs it so that it is saved and resumed;
everything else (torchrun, pip, tools of the user's) is left alone, and its children are looked at when they start.

These files run in the user's Python: the standard library alone, Python 3.8, relative imports since their folder has
another name there. Nothing here may ever make the user's program fail.
"""
