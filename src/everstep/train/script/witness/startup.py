"""Copied as ``sitecustomize.py`` into a folder of ``PYTHONPATH``: starts the witness, then the site's own hook."""

import importlib
import os
import sys
from importlib import machinery, util


def _go_on() -> None:
    """Run the ``sitecustomize`` that this one hides, if there is one."""
    here = os.path.dirname(os.path.abspath(__file__))
    rest = [folder for folder in sys.path if os.path.abspath(folder or ".") != here]
    spec = machinery.PathFinder.find_spec("sitecustomize", rest)
    if spec is not None and spec.loader is not None:
        module = util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


# The copy of the package that lies beside the copy of this file.
importlib.import_module("everstep_witness").start()
_go_on()
