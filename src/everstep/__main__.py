"""``python -m everstep``: the command line."""

from everstep.cli.main import main

if __name__ == "__main__":
    main()
