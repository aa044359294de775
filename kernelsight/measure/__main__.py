"""`python -m kernelsight.measure`: the verb on a machine with only numpy, pyarrow and CuPy."""

import sys

from kernelsight.cli.calibrate.measure import main

if __name__ == "__main__":
    sys.exit(main())
