"""Rules of recipes, tasks and runs of papers."""

from __future__ import annotations

import re
from collections.abc import Iterator

from mmgrpo.algorithm import Algorithm
from mmgrpo.check_data.data_files import DataFiles, Finding, is_under, leaves, rule_of
from mmgrpo.check_data.method_rules import differences, stated_settings
from mmgrpo.config import AboutConfig
from mmgrpo.config.composing import method_of
from mmgrpo.config.sections import has
from mmgrpo.runs.alerts import watchdog_inputs
from mmgrpo.training.build import build_rewards

PIXEL_REWARDS = {"jpeg_size", "brightness"}
"""Rewards that any picture can be made to have."""

TASK_SECTIONS = {"prompts", "rewards", "evaluation"}
WITHOUT_SOURCE = ("include", "about", "policy.name", "prompts.source")
"""Keys of a paper's run that have no source in the paper."""

ONE_GPU = "-one-gpu"
"""End of the names of recipes that include another recipe."""


def recipe_values(data: DataFiles, name: str) -> Iterator[Finding]:
    """A recipe has the values of its model, method and task, and a source for each value of the method it changes."""
    if name.endswith(ONE_GPU):
        return
    model, method, *tasks = data.stated(name)["include"]
    stated, of_method = data.stated(name), data.stated(method)
    published = list(leaves(method_of(of_method).get("paper_hparams", {}))) if stated.get("use_paper_hparams") else []
    layers = [stated_settings(data, layer) for layer in (model, method)]
    layers += [published, *(stated_settings(data, task) for task in tasks), stated_settings(data, name)]
    expected = {key: value for layer in layers for key, value in layer if key != "evaluation.rewards"}
    yield from differences(expected, data.config(name), "in the recipe")
    sources = method_of(stated).get("sources", {})
    for key, _ in stated_settings(data, name):
        if is_under(key, method_of(of_method)["sources"]) and not is_under(key, sources):
            yield key, f"differs from {method} and has no source; add it to about.method.sources"
    is_denoising = data.stated(model)["policy"]["name"] == "denoising"
    if is_denoising != (len(tasks) == 1):
        yield "include", f"{len(tasks)} tasks; a recipe of a denoising model includes one, another none"


def held_out_rewards(data: DataFiles, name: str) -> Iterator[Finding]:
    """A recipe evaluates rewards and prompts that it does not train on, and its watchdog compares the two."""
    if name.endswith(ONE_GPU):
        return
    config = data.config(name)
    if config.evaluation is None or config.evaluation.prompts is None or config.prompts is None:
        yield "evaluation", "a recipe has the sections prompts and evaluation"
        return
    trained = [reward.name for reward in build_rewards(config.rewards)]
    evaluated = [reward.name for reward in build_rewards(config.evaluation.rewards)]
    if of_pixels := PIXEL_REWARDS & set(trained):
        yield "rewards", f"{', '.join(of_pixels)} is no goal of a recipe"
    inputs = watchdog_inputs(config, trained, evaluated)
    if inputs is None or not inputs.held_out or set(inputs.held_out) & set(trained):
        yield "evaluation.watchdog.held_out", "name a reward of the evaluation that is not trained on"
    if (config.prompts.source, config.prompts.split) == (
        config.evaluation.prompts.source,
        config.evaluation.prompts.split,
    ):
        yield "evaluation.prompts", "has the source and the split of the training prompts"


def task_sections(data: DataFiles, name: str) -> Iterator[Finding]:
    """A task has prompts, rewards and an evaluation with a watchdog, the last three with their sources."""
    stated = data.stated(name)
    sections = {key for key in stated if key != "about"}
    if sections != TASK_SECTIONS:
        yield "", f"has the sections {', '.join(sorted(sections))}; a task has {', '.join(sorted(TASK_SECTIONS))}"
    if "watchdog" not in stated.get("evaluation", {}):
        yield "evaluation.watchdog", "is missing; a task has a watchdog"
    for key in {"rewards", "evaluation", "evaluation.watchdog"} - set(method_of(stated).get("sources", {})):
        yield key, "has no source; add it to about.method.sources"


def paper_sources(data: DataFiles, name: str) -> Iterator[Finding]:
    """Every value of a paper's run has a source, and every source a value; the paper and its data are named."""
    stated, config = data.stated(name), data.config(name)
    about = config.about
    if about.title is None:
        yield "about.title", "is missing; a run of a paper has its title"
        return
    for key, _ in leaves(stated):
        if not is_under(key, (*WITHOUT_SOURCE, *about.sources)):
            yield key, "has no source; add it to about.sources"
    for key in about.sources:
        if not has(data.merged(name), key):
            yield f"about.sources.{key}", "is the source of a key that the run does not set"
    yield from _missing_descriptions(about)


def paper_name(data: DataFiles, name: str) -> Iterator[Finding]:
    """A paper's run is named by its file alone, and every function that it names exists."""
    Algorithm.of(data.config(name))
    if has(data.stated(name), "about.name"):
        yield "about.name", "is that of the file: leave it out"


def _missing_descriptions(about: AboutConfig) -> Iterator[Finding]:
    if not re.fullmatch(r"\d{4}\.\d{5}", about.paper or ""):
        yield "about.paper", f"is {about.paper!r}; state the arXiv number, such as '2402.03300'"
    for key in ("deviations", "evidence"):
        if not getattr(about, key):
            yield f"about.{key}", "is empty"
    if not re.search(r"\b[Rr]ows?\b", about.note or ""):
        yield "about.note", "describes no rows; state the columns of the data"


RUN_RULES = (
    rule_of(recipe_values, "recipes"),
    rule_of(held_out_rewards, "recipes"),
    rule_of(task_sections, "tasks"),
    rule_of(paper_sources, "papers"),
    rule_of(paper_name, "papers"),
)
