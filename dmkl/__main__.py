"""``python -m dmkl`` is the program ``dmkl``."""

import sys

from dmkl.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
