"""One self-contained page about a run: what it was, what it learnt, what it draws now, what it cost.

The page needs no network, no server and no other file: pictures travel in it as base64, curves as inline SVG. Whatever
the run folder lacks is said to be "not recorded"; whatever is left out for size is counted.
"""

from mmgrpo.report.page import write_report
from mmgrpo.report.run_comparison import write_comparison

__all__ = ["write_comparison", "write_report"]
