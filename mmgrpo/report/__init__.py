"""One self-contained HTML page about a run: its configuration, curves, samples and cost.

The page needs no network, no server and no other file: images are embedded as base64, curves as inline SVG. Missing
files of the run folder are shown as "not recorded"; content that is left out for size is counted.
"""

from mmgrpo.report.contact_sheet import write_gif, write_png
from mmgrpo.report.page import write_report
from mmgrpo.report.run_comparison import write_comparison

__all__ = ["write_comparison", "write_gif", "write_png", "write_report"]
