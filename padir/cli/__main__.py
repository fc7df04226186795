"""`python -m padir.cli`, where the `padir` command is not on the path."""

import sys

from padir.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
