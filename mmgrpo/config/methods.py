"""The section ``about``, the metadata of a configuration: name, note, paper, sources and method."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, get_args

from pydantic import Field

from mmgrpo.config.rewards import RewardConfig
from mmgrpo.config.sections import Section

MethodKind = Literal[
    "advantages",
    "credit",
    "surrogates",
    "ratios",
    "group_losses",
    "selection",
    "sampling",
    "strategies",
    "memory",
    "views",
    "off_policy",
    "updates",
    "environments",
]

Need = Literal[
    "verifier",
    "judge",
    "step_rewards",
    "critic",
    "images",
    "videos",
    "turns",
    "environment_reward",
    "engine",
    "segments",
]
"""Kinds of needs.

``verifier``: a reward of the run that scores answers (see ``is_verifier``); ``judge``: a reward by a model that judges
or was trained to score; ``step_rewards``: the reward that an estimator reads by its label; ``critic``: the section
``advantage.critic``; ``images`` and ``videos``: rows that have one; ``turns``: ``rollout.environment``;
``environment_reward``: an environment that rewards its turns, or an estimator of turns that names a reward of the run;
``engine``: ``rollout.engine``; ``segments``: ``policy.segment_end``.
"""

Use = Literal[
    "baseline",
    "sparse-reward",
    "length",
    "diversity",
    "off-policy",
    "token-credit",
    "curriculum",
    "rollout-cost",
    "no-labels",
    "teacher",
    "several-rewards",
    "preferences",
    "reward-hacking",
    "agents",
    "images",
    "video",
]
"""Words for the problem that a method solves; ``USES`` describes them."""

USES: Mapping[str, str] = dict(
    zip(
        get_args(Use),
        (
            "a simple objective, to start from or to compare with",
            "groups that are all wrong, or all equal, give no signal",
            "answers grow too long, or are too long for the context",
            "entropy collapses, or pass@k falls while pass@1 rises",
            "several updates a rollout, replay, or an engine with other numerics",
            "tokens, steps, segments or turns need separate credit",
            "some prompts are too easy or too hard at a time",
            "samples or updates cost too much",
            "prompts have no right answers",
            "a stronger model, demonstrations, solutions or hints are available",
            "several rewards are combined",
            "pairs, judges, rubrics or reward models instead of a verifier",
            "the reward is noisy, or can be gamed",
            "several turns, with tools or an environment",
            "images are generated, edited or read",
            "videos are generated or read",
        ),
        strict=True,
    )
)
"""Words of ``use_for`` -> the problem, in a phrase."""

Provenance = Literal["code-run", "code-read", "paper", "abstract"]

PROVENANCES: Mapping[Provenance, str] = {
    "code-run": "published code and this file ran on the same inputs",
    "code-read": "the published code was read",
    "paper": "the paper was read",
    "abstract": "the abstract, notes or reviews were read",
}
"""Values of ``provenance`` -> the origin of the formulas, in a phrase."""

Against = Annotated[
    str | None,
    Field(max_length=160, pattern=r"\.$", description="the difference from plain GRPO, in one sentence"),
]
UseFor = Annotated[tuple[Use, ...], Field(description="problems that it solves; mmgrpo methods --for lists by them")]
Holds = Annotated[
    str | None,
    Field(
        pattern="^(all|(part|your reward), .+)$",
        description="how much of the paper it holds: all; 'part, ..' with the part; 'your reward, ..' with the reward "
        "that you bring",
    ),
]
Origin = Annotated[Provenance | None, Field(description="origin of its formulas")]


AppliesTo = Literal["tokens", "denoising", "masked", "both"]

POLICIES = {
    "tokens": "for tokens",
    "denoising": "for denoising policies",
    "masked": "for masked policies",
    "both": "for tokens and denoising policies",
}


def takes(kind: str, applies_to: str) -> bool:
    """Whether a policy of this kind supports a method: masked policies decide on tokens too."""
    return applies_to in ("both", kind) or (kind, applies_to) == ("masked", "tokens")


class MethodRewardsConfig(Section):
    """Rewards that a method adds to those of any run: see ``docs/how-to/methods.md``.

    In such a reward ``verifiers`` is replaced by each verifier of the run: as the value of a setting, for the verifier
    with its settings; as that of ``extract``, for the verifier's own; as ``gate.reward``, for its label; as ``name``,
    for the verifier itself, under another label or times a weight.
    """

    fallback: tuple[RewardConfig, ...] = Field(
        default=(), description="rewards of a run that states none: those of the paper"
    )
    substitutes: tuple[RewardConfig, ...] = Field(
        default=(),
        description="rewards that replace the run's verifiers; a verifier that none of them uses is reported only",
    )
    added: tuple[RewardConfig, ...] = Field(default=(), description="rewards added to those of the run")


class MethodConfig(Section):
    """The block ``about.method``: the description of a method and the sources of its values."""

    name: str
    title: str
    use_when: str | None = Field(
        default=None, description="when to use it, in one sentence; mmgrpo methods WORDS searches it"
    )
    against: Against = None
    use_for: UseFor = ()
    holds: Holds = None
    provenance: Origin = None
    paper_title: str | None = Field(default=None, description="title of the paper; null: as title")
    paper: str | None = Field(default=None, description="its number on arXiv; null: it is not published")
    kind: MethodKind | None = Field(
        default=None, description="part of the algorithm that it changes; of a shipped method the folder of its file"
    )
    applies_to: AppliesTo = "both"
    published_on: str | None = Field(
        default=None, description="model of the run that the values under paper_hparams come from"
    )
    needs: tuple[Need, ...] = Field(
        default=(), description="requirements of the method; a run that lacks one is an error before the first step"
    )
    rewards: MethodRewardsConfig = Field(
        default_factory=MethodRewardsConfig, description="added to the rewards of the run, which do not replace them"
    )
    sources: dict[str, str] = Field(
        default_factory=dict, description="config key -> section, table or file that its value comes from"
    )
    deviations: tuple[str, ...] = ()
    evidence: tuple[str, ...] = Field(
        default=(), description="checks and their references: a number, the authors' code, a run that trained"
    )
    trl: dict[str, Any] = Field(
        default_factory=dict, description="options of TRL's GRPOConfig with the same loss; trainer, if not GRPO's"
    )
    model_overrides: tuple[str, ...] = Field(
        default=(),
        description="keys, SECTION.KEY, whose value in the file of a model or a run below the method applies",
    )
    paper_hparams: dict[str, Any] = Field(
        default_factory=dict,
        description="the hyperparameters of the paper's run, as keys of a configuration, not applied by default; "
        "use_paper_hparams: true in a file that includes the method, or use_paper_hparams=true as an override, applies "
        "them on top of the method, below the file",
    )
    over: tuple[MethodConfig, ...] = Field(
        default=(), description="methods that it is merged on top of; written by the loader"
    )
    replaced: dict[str, Any] = Field(
        default_factory=dict, description="values that a method included after it overrides; written by the loader"
    )


class AboutConfig(Section):
    """The metadata of a configuration: the name of the run, a note for readers and its method; for a published run over
    its own data also the paper and the sources of the run's values, in addition to those of the method's file."""

    name: str = Field(default="run", description="of the run folder; load_config sets that of the file")
    note: str | None = Field(default=None, description="note for readers of the report")
    title: str | None = Field(default=None, description="title of the paper that the run reproduces; null: none")
    paper: str | None = Field(default=None, description="its number on arXiv; null: it is not published")
    against: Against = None
    use_for: UseFor = ()
    holds: Holds = None
    provenance: Origin = None
    sources: dict[str, str] = Field(
        default_factory=dict, description="config key -> section, table or file that its value comes from"
    )
    deviations: tuple[str, ...] = ()
    evidence: tuple[str, ...] = Field(
        default=(), description="checks and their references: a number, the authors' code, a run that trained"
    )
    method: MethodConfig | None = Field(
        default=None, description="the method, from the file that configs/methods has for it; null: none"
    )

    @property
    def methods(self) -> tuple[MethodConfig, ...]:
        """The methods of the run, the lowest first."""
        return () if self.method is None else (*self.method.over, self.method)
