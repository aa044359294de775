"""Entry point of `python -m kernelsight`: the command line."""

import sys

from kernelsight.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
