"""Runs the `padir` command as `python -m padir.cli`, for environments where `padir` is not on the PATH."""

import sys

from padir.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
