"""Checks of the shipped data: configurations, the ledger of papers and the docstrings of rewards.

``python -m mmgrpo.check_data`` applies every rule. A rule is a function that checks one item, such as a file, and
yields its faults.
"""

from __future__ import annotations

from mmgrpo.check_data.config_rules import CONFIG_RULES
from mmgrpo.check_data.data_files import DataFiles, Fault, Report, Rule, apply_rules
from mmgrpo.check_data.ledger_rules import LEDGER_RULES
from mmgrpo.check_data.method_rules import METHOD_RULES
from mmgrpo.check_data.reward_rules import REWARD_RULES
from mmgrpo.check_data.run_rules import RUN_RULES

__all__ = ["RULES", "DataFiles", "Fault", "Report", "Rule", "apply_rules"]

RULES: dict[str, Rule] = {
    rule.name: rule for rule in (*CONFIG_RULES, *METHOD_RULES, *RUN_RULES, *LEDGER_RULES, *REWARD_RULES)
}
"""Every rule by its name."""
