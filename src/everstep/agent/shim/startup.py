"""Copied as ``sitecustomize.py`` into a folder of ``PYTHONPATH``: looks at what starts, then runs the site's own."""

from __future__ import annotations

import os
import sys
from importlib import import_module


def _look() -> None:
    """Whatever goes wrong in here is told, and the program goes on as if we were not there."""
    try:
        import_module("everstep_shim.act").act()  # lies beside the copy of this file
    except Exception as error:
        print(f"everstep: not resumed automatically ({type(error).__name__}: {error})", file=sys.stderr, flush=True)
    for name in [name for name in sys.modules if name.partition(".")[0] == "everstep_shim"]:
        del sys.modules[name]


def _step_aside() -> None:
    own = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [entry for entry in sys.path if entry != own]
    sys.path_importer_cache.pop(own, None)


def _real_sitecustomize() -> None:
    """Run the one that we hide, if there is one. As in ``standby_hook``: each is copied without the other."""
    from importlib import machinery, util

    spec = machinery.PathFinder.find_spec("sitecustomize")
    if spec is not None and spec.loader is not None:
        own = sys.modules["sitecustomize"]
        module = util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        try:
            spec.loader.exec_module(module)
        except ImportError as error:
            if error.name != "sitecustomize":
                raise
            sys.modules["sitecustomize"] = own  # another hook of ours, and there is no real one behind it


if __name__ == "sitecustomize":
    # A standby waits with what it will become: it looks again when its time has come.
    if "EVERSTEP_SHIM" in os.environ and "EVERSTEP_STANDBY" not in os.environ:
        _look()
    _step_aside()
    _real_sitecustomize()
    if sys.modules["sitecustomize"].__dict__ is globals():
        # As if there were none; `site` takes this for that.
        raise ImportError("there is no sitecustomize", name="sitecustomize")
