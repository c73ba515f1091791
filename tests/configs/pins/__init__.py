"""Numbers of the shipped methods that no test in ``tests/methods`` has, a module for each mechanism.

``ELSEWHERE`` of a module: methods whose numbers are neither an advantage nor a loss, each in a test of its mechanism.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

ELSEWHERE = {
    name
    for module in iter_modules(__path__, f"{__name__}.")
    for name in getattr(import_module(module.name), "ELSEWHERE", ())
}
