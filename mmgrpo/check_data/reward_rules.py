"""Rules of the docstrings of rewards, from which their pages are generated."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator

import yaml

from mmgrpo.check_data.data_files import DataFiles, Finding, rule_of
from mmgrpo.config import RewardConfig
from mmgrpo.config.registry import resolve
from mmgrpo.docgen.reward_pages import page_of
from mmgrpo.docgen.signatures import signature_at
from mmgrpo.training.build import build_rewards

LABELS = ("Range", "Source", "Traps")


def reward_docstring(data: DataFiles, name: str) -> Iterator[Finding]:
    """A docstring states that it is a reward or an evaluation, with range, source and traps."""
    page = page_of(name)
    if not (resolve("rewards", name).__doc__ or "").startswith(("Reward: ", "Evaluation")):
        yield "", "its docstring starts with neither 'Reward: ' nor 'Evaluation'"
    for label in LABELS:
        if f"\n* **{label}**: " not in page:
            yield "", f"its docstring has no passage '{label}:'"
    if "``" in page.replace("```", ""):
        yield "", "its docstring has an odd number of double backticks"


def reward_example(data: DataFiles, name: str) -> Iterator[Finding]:
    """The example of a reward builds it."""
    example = yaml.safe_load(page_of(name).partition("```yaml\n")[2].partition("```")[0])
    configs = [RewardConfig.model_validate(settings) for settings in example.get("evaluation", example)["rewards"]]
    if [reward.name for reward in build_rewards(configs)] != [RewardConfig(name=name).logged_name]:
        yield "", f"its example builds {[config.logged_name for config in configs]}"


def reward_settings(data: DataFiles, name: str) -> Iterator[Finding]:
    """The settings of a page, and those read from the source without an import, are the parameters of the reward."""
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \| (.*?) \|$", page_of(name), re.MULTILINE)
    parameters = inspect.signature(resolve("rewards", name)).parameters
    required = [key for key, parameter in parameters.items() if parameter.default is parameter.empty]
    if [row[0] for row in rows] != list(parameters):
        yield "", f"its page has the settings {[row[0] for row in rows]}; it takes {list(parameters)}"
    for key, type_text, default in rows:
        if not type_text:
            yield key, "has no type"
        if (default == "required") != (key in required):
            yield key, f"its page has the default {default}"
    signature = signature_at(data.rewards[name])
    if signature is not None and (list(signature.takes), list(signature.needs)) != (list(parameters), required):
        yield "", f"its source has the settings {signature.takes}; it takes {list(parameters)}"


REWARD_RULES = tuple(
    rule_of(check, items=lambda data: data.rewards) for check in (reward_docstring, reward_example, reward_settings)
)
