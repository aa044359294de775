"""`python -m kernelsight`."""

import sys

from kernelsight.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
