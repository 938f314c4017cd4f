"""Started by ``act`` in the place of the user's script: runs it under ``everstep.train.run``."""

from __future__ import annotations

import sys
from importlib import import_module

if __name__ == "__main__":
    import_module("everstep.train.run").main(sys.argv[1:])  # of the library beside the hook, see `act`
