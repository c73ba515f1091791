"""A model that generates texts and images as one policy."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mmgrpo.errors import ConfigError
from mmgrpo.policy import (
    Policy,
    SupportsExport,
    SupportsNamedWeights,
    SupportsOffPolicyScoring,
    SupportsPromptCheck,
    SupportsPromptOverride,
    SupportsSupervisedLoss,
)
from mmgrpo.system.targets import import_attribute
from mmgrpo.types import Evaluation, Example, OffPolicySample, Plan, Prompt, Rollout, SupervisedLoss
from mmgrpo.values import Value

from ..weights import Weights
from .mixed_rollouts import MixedTrace, PolicyRows, merge_rollouts
from .settings import DRAWS, WRITES, UnifiedSettings

WRITER, DRAWER = "mmgrpo.policies.language:LanguagePolicy", "mmgrpo.policies.image_tokens:ImageTokensPolicy"

LOADER = "mmgrpo.policies.image_tokens.image_token_loading:load"


class UnifiedPolicy(
    SupportsNamedWeights,
    SupportsSupervisedLoss,
    SupportsOffPolicyScoring,
    SupportsPromptOverride,
    SupportsExport,
    SupportsPromptCheck,
):
    """One model that generates texts or images as the prompts request: two policies over the same weights.

    A rollout has rows of both kinds, padded to the longest; each row is the same as under its own policy.

    Attributes:
        write: the language policy, for prompts that ask for a text.
        draw: the image-token policy, for prompts that ask for an image.
        weights: the weights of both.
        settings: the settings of both.
    """

    settings_type = UnifiedSettings

    def __init__(
        self, model: Any, processor: Any, settings: UnifiedSettings | Mapping[str, Any] | None = None, **parts: Any
    ) -> None:
        """Wraps a loaded model.

        Args:
            model: a transformers model such as Janus, Emu3 or Chameleon.
            processor: its ``AutoProcessor``.
            settings: ``UnifiedSettings`` or a mapping of its fields.
            **parts: ``autoencoder``, as for ``ImageTokensPolicy``.
        """
        if settings is None or isinstance(settings, Mapping):
            settings = UnifiedSettings(**(settings or {}))
        self.settings = settings
        self.draw: Any = import_attribute(DRAWER)(model, processor, settings.of(DRAWS), alone=False, **parts)
        self.write: Any = import_attribute(WRITER)(model, processor, settings.of(WRITES), weights=self.draw.weights)
        self.weights: Weights = self.draw.weights

    @classmethod
    def from_config(
        cls, settings: UnifiedSettings | Mapping[str, Any], *, device: str | torch.device = "cpu"
    ) -> UnifiedPolicy:
        """Loads the model (or calls ``python:module:function``) and wraps it."""
        if isinstance(settings, Mapping):
            settings = UnifiedSettings(**settings)
        model, processor, autoencoder = import_attribute(LOADER)(settings.of(DRAWS))
        model.to(device)
        return cls(model, processor, settings, autoencoder=autoencoder)

    def save(self, directory: Path) -> None:
        """As ``LanguagePolicy.save``."""
        self.write.save(directory)

    def export(self, directory: Path, *, dtype: str | None = None) -> None:
        """As ``LanguagePolicy.export``."""
        self.write.export(directory, dtype=dtype)

    def check_prompt(self, prompt: Prompt) -> None:
        """Raises DataError for a prompt that its policy does not support."""
        self._policy(self._draws(prompt)).check_prompt(prompt)

    def rollout(self, prompts: Sequence[Prompt], *, group_size: int, seed: int, plan: Plan | None = None) -> Rollout:
        """Generates texts and images as the prompts request, in prompt order."""
        plan = plan or Plan()
        ids = plan.prompt_ids or tuple(range(len(prompts)))
        members = plan.members_of(len(prompts), group_size)
        ends = torch.tensor([len(numbers) for numbers in members]).cumsum(0).tolist()

        def generate(policy: Policy, chosen: Sequence[int]) -> tuple[Rollout, list[int]]:
            part = replace(
                plan,
                prompt_ids=tuple(ids[p] for p in chosen),
                members=tuple(members[p] for p in chosen),
                continues=None if plan.continues is None else tuple(plan.continues[p] for p in chosen),
                settings=self._settings_of(policy, plan.settings),
            )
            rollout = policy.rollout([prompts[p] for p in chosen], group_size=group_size, seed=seed, plan=part)
            return rollout, [row for p in chosen for row in range(ends[p] - len(members[p]), ends[p])]

        return self._parted(prompts, generate)

    def read(self, samples: Sequence[OffPolicySample], *, seed: int, plan: Plan | None = None) -> Rollout:
        """Scores texts as texts and images as images, as the prompts of the samples request."""
        plan = plan or Plan()

        def read(policy: Any, chosen: Sequence[int]) -> tuple[Rollout, Sequence[int]]:
            part = replace(plan, settings=self._settings_of(policy, plan.settings))
            return policy.read([samples[n] for n in chosen], seed=seed, plan=part), chosen

        return self._parted([sample.sample.prompt for sample in samples], read)

    def override_prompts(self, rollout: Rollout, prompts: Sequence[Prompt]) -> Rollout:
        """The same decisions under other prompts, which request the same kind."""
        parts = []
        for part in rollout.trace.parts:
            part_prompts = [prompts[row] for row in part.row_N.tolist()]
            parts.append(replace(part, rollout=self._policy(part.draws).override_prompts(part.rollout, part_prompts)))
        return replace(rollout, trace=MixedTrace(parts))

    def evaluate(
        self,
        rollout: Rollout,
        rows: Sequence[int] | Tensor | None = None,
        *,
        values: Collection[Value] = (),
    ) -> Iterator[Evaluation]:
        """The slices of both policies, one after the other; supported values are those of both."""
        requested = set(range(len(rollout.samples)) if rows is None else map(int, rows))
        for part in rollout.trace.parts:
            yield from part.evaluated(self._policy(part.draws), rollout.mask_BT, requested, values)

    def supervised_loss(self, examples: Sequence[Example], *, seeds: Sequence[int]) -> SupervisedLoss:
        """Cross-entropy of texts and of codes, mean over the tokens of both."""
        losses = [
            self._policy(draws).supervised_loss([examples[n] for n in chosen], seeds=[seeds[n] for n in chosen])
            for draws, chosen in self._kinds([example.prompt for example in examples])
        ]
        num_terms = sum(loss.num_terms for loss in losses)
        mean = torch.stack([loss.mean * (loss.num_terms / num_terms) for loss in losses]).sum()
        return SupervisedLoss(mean=mean, num_terms=num_terms)

    def _parted(
        self, prompts: Sequence[Prompt], make_rollout: Callable[[Any, Sequence[int]], tuple[Rollout, Sequence[int]]]
    ) -> Rollout:
        parts = []
        for draws, chosen in self._kinds(prompts):
            rollout, rows = make_rollout(self._policy(draws), chosen)
            parts.append(PolicyRows(draws, rollout, torch.tensor(rows)))
        return merge_rollouts(parts)

    def _kinds(self, prompts: Sequence[Prompt]) -> Iterator[tuple[bool, list[int]]]:
        """Whether to generate images, with the indices of the prompts that request it, for each kind with prompts."""
        for draws in (False, True):
            chosen = [n for n, prompt in enumerate(prompts) if self._draws(prompt) == draws]
            if chosen:
                yield draws, chosen

    def _policy(self, draws: bool) -> Any:
        return self.draw if draws else self.write

    def _draws(self, prompt: Prompt) -> bool:
        flag = prompt.columns.get(self.settings.column)
        if flag not in (None, True, False, 0, 1):
            raise ConfigError(
                f"column {self.settings.column!r} must be true (generate an image) or false, got {flag!r:.40}"
            )
        return bool(flag)

    def _settings_of(self, policy: Any, settings: Mapping[str, Any]) -> dict[str, Any]:
        """The rollout settings that a policy has; a setting that neither has goes to both, which raise an error."""
        member_names = {name for member in (self.write, self.draw) for name in member.settings.of_a_rollout}
        allowed = policy.settings.of_a_rollout
        return {name: value for name, value in settings.items() if name in allowed or name not in member_names}
