"""``python -m mpiboot`` is the same as the console script ``mpiboot``."""

from mpiboot.cli import main

if __name__ == "__main__":
    main()
