"""What a configuration says of the method and of the paper that it is of."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from mmgrpo.config.sections import Section

MethodKind = Literal[
    "advantages",
    "credit",
    "surrogates",
    "ratios",
    "groups",
    "selection",
    "sampling",
    "rounds",
    "memory",
    "views",
    "reading",
    "updates",
    "environments",
]

AppliesTo = Literal["tokens", "denoising", "masked", "both"]

POLICIES = {
    "tokens": "for tokens",
    "denoising": "for denoising policies",
    "masked": "for masked policies",
    "both": "for tokens and denoising policies",
}


def takes(kind: str, applies_to: str) -> bool:
    """Whether a policy that decides on this takes a method: a masked one decides on tokens too."""
    return applies_to in ("both", kind) or (kind, applies_to) == ("masked", "tokens")


class MethodConfig(Section):
    """A method: what it is, and where its values come from."""

    name: str
    title: str
    paper: str | None = Field(default=None, description="its number on arXiv; null: it is not published")
    kind: MethodKind | None = Field(default=None, description="what it changes: see docs/methods.md; null: not said")
    applies_to: AppliesTo = "both"
    published_on: str | None = Field(
        default=None, description="model of the run that the values under published are of"
    )
    sources: dict[str, str] = Field(default_factory=dict, description="config key -> section, table or file it is from")
    deviations: tuple[str, ...] = ()
    evidence: tuple[str, ...] = Field(
        default=(), description="what was checked, and against what: a number, the authors' code, a run that trained"
    )
    trl: dict[str, Any] = Field(
        default_factory=dict, description="options of TRL's GRPOConfig with the same loss; trainer, if not GRPO's"
    )
    over: tuple[MethodConfig, ...] = Field(
        default=(), description="methods that it was laid over; written by the loader"
    )
    replaced: dict[str, Any] = Field(
        default_factory=dict, description="what it has no more, as another is included after it; written by the loader"
    )
    renamed: str | None = Field(
        default=None, description="what the name stood for before, told to whoever includes the file"
    )


class RecipeConfig(Section):
    """A published run over data of its own: where its values come from, beside what the method's file says of its."""

    title: str
    paper: str | None = Field(default=None, description="its number on arXiv; null: it is not published")
    sources: dict[str, str] = Field(default_factory=dict, description="config key -> section, table or file it is from")
    deviations: tuple[str, ...] = ()
    evidence: tuple[str, ...] = Field(
        default=(), description="what was checked, and against what: a number, the authors' code, a run that trained"
    )
