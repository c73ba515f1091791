"""``python -m mmgrpo``: the command line."""

import os
import sys

if not sys.flags.safe_path and sys.path[0] in ("", os.getcwd()):
    del sys.path[0]  # python -m puts the working directory first, which may contain a foreign peft.py

from mmgrpo.cli import app

if __name__ == "__main__":
    app(prog_name="mmgrpo")
