"""The command line. Each command group is a module here; nothing imports this package."""

import sys

from ..forkserver import prepare_workers


def main() -> None:
    """Run the command line; what a run's workers are forked from gets ready while this process imports torch."""
    try:
        if sys.argv[1:2] in (["run"], ["resume"]):
            prepare_workers()
        from .commands import main

        main()
    except KeyboardInterrupt:  # while torch was being imported: nothing has begun
        sys.exit(130)
