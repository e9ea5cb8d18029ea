"""The console script ``mpiboot``, which is the same as ``python -m mpiboot``."""

import contextlib
import gc
import os
import sys
from typing import NoReturn

from mpiboot.system import spawn


def main() -> NoReturn:
    """Run the command line; that of a rank without all that the other commands need."""
    spawn.take_out_locale()
    # What is loaded stays: to look for garbage among it every 700 objects is a tenth of a start.
    gc.set_threshold(10_000)
    name, *words = sys.argv
    program = words[2:] if words[1:2] == ["--"] else words[1:]
    # By another name, a shim's, all words are another program's.
    own = os.path.basename(name) in ("mpiboot", "__main__.py")  # noqa: PTH119
    if own and words[:1] == ["rank"] and program and not program[0].startswith("-"):
        from mpiboot.cli import rank  # noqa: PLC0415

        with contextlib.suppress(OSError, ValueError):  # the command says what is wrong
            spawn.replace(program, {**os.environ, **rank.variables(os.environ)})
    from mpiboot.cli import main as cli  # noqa: PLC0415

    cli.main()


if __name__ == "__main__":
    main()
