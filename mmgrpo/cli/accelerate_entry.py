"""``accelerate launch``, of which nothing is said but what its processes say, and that ends with their exit code."""

from __future__ import annotations

import sys
from subprocess import CalledProcessError

from accelerate.commands.launch import main as launched
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError


def main() -> int:
    """Starts the processes that the command line asks for.

    Returns:
        The exit code of the first that failed, 128 + N where a signal N ended it or the launcher; 0 if none did.
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
