"""``python -m everstep.server``: the server in the foreground."""

from __future__ import annotations

import sys

from everstep.server.daemon import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
