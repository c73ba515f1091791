"""``accelerate launch`` without its tracebacks: prints only the output of its processes, exits with their code."""

from __future__ import annotations

import sys
from subprocess import CalledProcessError

from accelerate.commands.launch import main as launched
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError


def main() -> int:
    """Starts the processes of the command line.

    Returns:
        The exit code of the first process that failed, 128 + N if signal N ended it or the launcher, else 0.
    """
    try:
        launched()
    except ChildFailedError as error:
        code = error.get_first_failure()[1].exitcode
    except CalledProcessError as error:  # of a single process
        code = error.returncode
    except SignalException as error:
        code = -error.sigval
    else:
        code = 0
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main())
