"""What a run takes up at its steps, and what of it changes as it goes on."""

from __future__ import annotations

from collections.abc import Iterator

from mmgrpo.config import PromptsConfig
from mmgrpo.data.samplers import SAMPLERS, build_sampler
from mmgrpo.explain.formulas import formula_of, numbers_text, with_defaults


def prompt_rows(prompts: PromptsConfig, held_out: str) -> Iterator[tuple[str, str]]:
    """Where prompts come from, and how a step's are chosen where that is not the shuffled order of every run."""
    yield "prompts", f"{_sources(prompts)}{held_out}"
    if prompts.sampler is not None:
        build_sampler(prompts.sampler)
        function = SAMPLERS[prompts.sampler.name]
        numbers = numbers_text(with_defaults(function, prompts.sampler.numbers))
        yield "", f"{prompts.sampler.name}: {formula_of(function)}{numbers}"


def _sources(prompts: PromptsConfig) -> str:
    if prompts.source is not None:
        return prompts.source
    if not prompts.sources:
        return "live ones"
    whole = sum(part.weight for part in prompts.sources)
    return " + ".join(f"{part.weight / whole:.3g} of {part.known_as}" for part in prompts.sources)
