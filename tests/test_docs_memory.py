"""The examples of docs/how-to/prompt-sampling.md and docs/how-to/schedules.md work."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from mmgrpo.algorithm import Algorithm, schedules_of
from mmgrpo.config import Named
from mmgrpo.config.binding import bound
from mmgrpo.config.loading import load_config, validated
from mmgrpo.data.stream import PromptStream
from mmgrpo.maths.controllers import CONTROLLERS
from mmgrpo.maths.schedules import SCHEDULES
from mmgrpo.system.yamls import parse_yaml
from mmgrpo.training.prompt_stats import PromptStats, update_prompt_stats
from mmgrpo.types import Prompt
from tests.test_docs import DOCS, page_names

PAGES = ("how-to/prompt-sampling.md", "how-to/schedules.md")


def test_the_sampler() -> None:
    sampler = page_names(PAGES[0])["least_visited"]()
    prompts = [Prompt(str(i)) for i in range(4)]
    stream = PromptStream(prompts, num_per_step=3, seed=0, sampler=sampler)
    assert [index for index, _ in stream.take(0)] == [0, 1, 2]
    facts = PromptStats(keys=stream.keys[:3], reward_B=torch.zeros(3), valid_B=torch.ones(3, dtype=torch.bool), step=0)
    assert [index for index, _ in stream.take(1, update_prompt_stats(stream.memory, facts))] == [3, 0, 1]


def test_the_schedule_and_the_controller() -> None:
    names = page_names(PAGES[1])
    schedules = {**SCHEDULES, "triangle": names["triangle_value"]}
    named = Named.model_validate({"name": "triangle", "low": 0, "high": 1, "period": 4})
    assert [bound("schedules.x", schedules, named)(step) for step in range(6)] == [0, 0.5, 1, 0.5, 0, 0.5]
    controllers = {**CONTROLLERS, "halved_above": names["halved_above"]}
    halved = bound("controllers.x", controllers, Named.model_validate({"name": "halved_above", "limit": 1}))
    assert (halved(4.0, 2.0), halved(4.0, 0.5)) == (2.0, 4.0)


BLOCKS = re.findall(r"```yaml\n(.*?)```", "".join((DOCS / page).read_text() for page in PAGES), re.DOTALL)


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_the_configurations(number: int, tmp_path: Path) -> None:
    """Each block of YAML is valid, line by line where its lines are alternatives."""
    text = BLOCKS[number]
    if text.startswith("include:"):
        (tmp_path / "run.yaml").write_text(text.replace("models/your-model", "models/qwen2.5-vl-3b"))
        assert Algorithm.of(load_config(str(tmp_path / "run.yaml"))).strategy.window == 8192
        return
    alternatives = re.split(r"\n(?=[a-z]+: \{)", text) if number not in (3, 4, 5) else [text]
    for settings in alternatives:
        values = parse_yaml(settings)
        if number in (4, 5, 6):
            values |= {"policy": {"name": "language", "model": "m"}}
        if number == 4:
            overlong = {"name": "overlong", "max_length": 4096, "margin": 16}
            rewards = [{**overlong, "label": "short"}, {**overlong, "label": "safe"}]
            values |= {"rewards": rewards}
            near = {"name": "divergence", "label": "near", "weight": 0.1}
            values |= {"objective": {"kl": {"divergence": "k3", "beta": 0.1}, "terms": [near]}}
        schedules_of(validated(values))
