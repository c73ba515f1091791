"""Views: the same decisions under other weights, with another prompt, or under another policy.

Axes: B rows, T decisions.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor
from torch.nn.functional import pad

from mmgrpo.data.history import History, PromptTemplate
from mmgrpo.errors import ConfigError
from mmgrpo.maths.seeds import derive_seed
from mmgrpo.policy import Critic, Policy, SupportsPromptOverride, SupportsTextOffsets, SupportsTokenLogits
from mmgrpo.training.concat_rollouts import RolloutParts
from mmgrpo.training.streaming import cells, evaluations, index_of
from mmgrpo.types import LogitsPart, Prompt, Rollout
from mmgrpo.values import OF_DISTRIBUTION, OF_TWO_DISTRIBUTIONS, Value, mask_of_view, of_view

OF_VIEWS = frozenset(("logprob", "view_mask")) | OF_DISTRIBUTION
"""Names of the values of a view for a decision."""


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """Whose log-probabilities, and of which prompt.

    Attributes:
        name: by which terms, estimators and filters know it.
        policy: another one than is trained, frozen; None: the one that is trained.
        using: a context in which the policy has the view's weights.
        moves: whether they change with every update; otherwise it is looked at once, before the first.
        trained: whether they are those that are trained, so that gradients may go through it.
        prompt_template: the prompt of each member; None: the rows with their prompts, by another policy
            the prompt itself.
        retokenizes: whether another policy reads the texts of the decisions in the tokens of its tokenizer.
    """

    name: str
    policy: Policy | None = None
    using: Callable[[], AbstractContextManager[None]] = nullcontext
    moves: bool = False
    trained: bool = False
    prompt_template: PromptTemplate | None = None
    retokenizes: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewRows:
    """The rows of a batch as a view sees them.

    Attributes:
        view: the view.
        policy: the policy that scores them.
        rollout: the same rows and columns, for it to evaluate.
        has_view_BT: bool, the decisions that have the view.
    """

    view: View
    policy: Policy
    rollout: Rollout
    has_view_BT: Tensor


@dataclass(frozen=True, slots=True)
class ViewLogits:
    """The logits of a view at the decisions of a rollout, as ``mmgrpo.policy.RowLogits``.

    Attributes:
        view: the view.
        policy: the policy that scores its rows.
        rollout: the rows as it sees them.
    """

    view: View
    policy: SupportsTokenLogits
    rollout: Rollout

    def __call__(self, rows: Sequence[int], mask_NT: Tensor) -> LogitsPart:
        """The states under the view's weights; the weights are active again for each part of the logits."""
        with torch.no_grad(), self.view.using():
            logits_of = self.policy.token_logits(self.rollout, rows, mask_NT)

        def part(start: int, stop: int) -> Tensor:
            with torch.no_grad(), self.view.using():
                return logits_of(start, stop)

        return part

    def of_part(self, part: int) -> ViewLogits:
        """Those of one rollout of several that were joined."""
        assert isinstance(self.rollout.trace, RolloutParts)
        return replace(self, rollout=self.rollout.trace.rollouts[part])


@dataclass(frozen=True, slots=True)
class ViewValues:
    """The values of views for decisions.

    Attributes:
        values: (B, T) log-probabilities, their validity, and other requested values, by view; 0 where there is none.
        num_forwards: number of forwards.
    """

    values: Mapping[Value, Tensor]
    num_forwards: float = 0


@final
class Views(Mapping[str, ViewRows]):
    """The rows of a batch in every view of a run, each made when it is first looked at."""

    def __init__(
        self,
        views: Mapping[str, View],
        policy: Policy,
        rollout: Rollout,
        *,
        reward_B: Tensor,
        scored_B: Tensor,
        seed: int,
    ) -> None:
        """Looks at nothing yet.

        Args:
            views: those of the run.
            policy: that is trained.
            rollout: its rows, in complete groups.
            reward_B: the combined reward of each row.
            scored_B: bool, whether any applied.
            seed: of the step; keys the random numbers of prompt templates.
        """
        self._views, self._policy, self._rollout = views, policy, rollout
        self._rewards = [
            reward if scored else None for reward, scored in zip(reward_B.tolist(), scored_B.tolist(), strict=True)
        ]
        self._seed = seed
        self._rows_of_view: dict[str, ViewRows] = {}

    def __getitem__(self, name: str) -> ViewRows:
        if name not in self._rows_of_view:
            self._rows_of_view[name] = self._view_rows(self._views[name])
        return self._rows_of_view[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._views)

    def __len__(self) -> int:
        return len(self._views)

    def _view_rows(self, view: View) -> ViewRows:
        policy, rollout = view.policy or self._policy, self._rollout
        if view.policy is None and view.prompt_template is None:
            every_BT = torch.ones(rollout.shape, dtype=torch.bool)
            return ViewRows(view=view, policy=policy, rollout=rollout, has_view_BT=every_BT)
        if not isinstance(policy, SupportsPromptOverride):
            raise ConfigError(
                f"objective.views.{view.name}: {type(policy).__name__} does not score decisions with other prompts "
                "(mmgrpo.policy.SupportsPromptOverride): leave the view out"
            )
        prompts = self._view_prompts(view)
        overrides = [
            sample.prompt if prompt is None else prompt for prompt, sample in zip(prompts, rollout.samples, strict=True)
        ]
        has_view_BT = torch.tensor([prompt is not None for prompt in prompts])[:, None].expand(rollout.shape)
        if view.retokenizes:
            view_rollout = retokenize(token_logits_of(policy, view.name), self._policy, rollout, overrides)
            has_view_BT = has_view_BT & view_rollout.mask_BT
        else:
            view_rollout = override_prompts(policy, rollout, overrides)
        return ViewRows(view=view, policy=policy, rollout=view_rollout, has_view_BT=has_view_BT)

    def _view_prompts(self, view: View) -> list[Prompt | None]:
        """The prompt of each row; rows of a group with the same prompt have the same object."""
        samples = self._rollout.samples
        if view.prompt_template is None:
            return [sample.prompt for sample in samples]
        histories = {group: self._history(group) for group in {sample.group for sample in samples}}
        prompts: list[Prompt | None] = []
        shared_prompts: dict[tuple[object, ...], Prompt] = {}
        for sample in samples:
            prompt = view.prompt_template(sample.prompt, sample.member, histories[sample.group])
            if prompt is not None and prompt.prefix != sample.prompt.prefix:
                raise ConfigError(
                    f"objective.views.{view.name}: answers are there already, so a view gives them no beginning"
                )
            prompts.append(
                prompt if prompt is None else shared_prompts.setdefault((sample.group, *_content(prompt)), prompt)
            )
        return prompts

    def _history(self, group: int) -> History:
        rows = [row for row, sample in enumerate(self._rollout.samples) if sample.group == group]
        return History(
            seed=derive_seed(self._seed, group),
            samples=[self._rollout.samples[row] for row in rows],
            rewards=[self._rewards[row] for row in rows],
        )


def policy_values(values: Collection[Value], views: Mapping[str, ViewRows]) -> tuple[Value, ...]:
    """The values that the policy itself gives, in their order: those without a view, and those of two distributions."""
    return tuple(value for value in values if value.view not in views or value.name in OF_TWO_DISTRIBUTIONS)


def with_view_logits(rollout: Rollout, values: Collection[Value], views: Mapping[str, ViewRows]) -> Rollout:
    """The rollout with the logits of the views that its values of two distributions are of.

    Raises ConfigError if the policy of a view has no such logits.
    """
    names = {value.view for value in values if value.name in OF_TWO_DISTRIBUTIONS and value.view in views}
    if not names:
        return rollout
    view_logits = {}
    for name in sorted(map(str, names)):
        view_rows = views[name]
        policy = token_logits_of(view_rows.policy, name)
        view_logits[name] = ViewLogits(view_rows.view, policy, view_rows.rollout)
    return replace(rollout, view_logits=view_logits)


def token_logits_of(policy: Policy, view: str) -> SupportsTokenLogits:
    """The policy of a view as one that gives logits. Raises ConfigError for others."""
    if not isinstance(policy, SupportsTokenLogits):
        raise ConfigError(
            f"objective.views.{view}: a divergence of the distributions of all tokens needs a language policy, not "
            f"{type(policy).__name__}: use distillation, which reads the sampled token"
        )
    return policy


def evaluate_views(rollout: Rollout, values: Collection[Value], views: Mapping[str, ViewRows]) -> ViewValues:
    """The values of views for the decisions that a rollout keeps, without grad.

    Args:
        rollout: its values of a view are reused, unless the view's weights have changed.
        values: the requested values; those of the policy itself are not returned.
        views: the rows as they see them.

    Returns:
        The values of every requested view.

    Raises:
        ConfigError: a value that views do not have.
    """
    of_views = [value for value in values if value.view in views]
    requested = [value for value in of_views if value.name not in OF_TWO_DISTRIBUTIONS]
    if wrong := [str(value) for value in requested if value.name not in OF_VIEWS]:
        raise ConfigError(
            "views have log-probabilities, estimates from them, and values of the distribution "
            f"({', '.join(sorted(OF_DISTRIBUTION))}), and no {', '.join(wrong)}"
        )
    values_of_views = {
        mask_of_view(name): views[name].has_view_BT.float() for name in {str(value.view) for value in of_views}
    }
    num_forwards = 0
    for name in sorted({str(value.view) for value in requested}):
        further = [value for value in requested if value.view == name and value.name in OF_DISTRIBUTION]
        stored_values = (of_view(name), mask_of_view(name), *further)
        view_rows, stored = views[name], {value: rollout.values.get(value) for value in stored_values}
        computed = {value: matrix_BT for value, matrix_BT in stored.items() if matrix_BT is not None}
        if len(computed) < len(stored) or (view_rows.view.moves and not rollout.on_policy):
            view_values = _evaluate_view(view_rows, rollout.mask_BT, further)
            computed, num_forwards = view_values.values, num_forwards + view_values.num_forwards
        values_of_views |= computed
    return ViewValues(values_of_views, num_forwards)


@torch.no_grad()
def _evaluate_view(view_rows: ViewRows, mask_BT: Tensor, further: Sequence[Value]) -> ViewValues:
    policy_value = {value: replace(value, view=None) for value in further}
    computed = {value: torch.zeros(mask_BT.shape) for value in (of_view(view_rows.view.name), *further)}
    read_BT, num_forwards = mask_BT & view_rows.has_view_BT, 0
    with view_rows.view.using():
        for evaluation in evaluations(view_rows.policy, view_rows.rollout.keep(read_BT), tuple(policy_value.values())):
            part_mask_BT = cells(read_BT, evaluation)
            for value, computed_BT in computed.items():
                part_value_BT = (
                    evaluation.values[policy_value[value]] if value in policy_value else evaluation.logprob_BT
                )
                computed_BT[index_of(evaluation)] = part_value_BT.float().cpu().where(part_mask_BT, 0.0)
            num_forwards += evaluation.num_forwards
    return ViewValues({**computed, mask_of_view(view_rows.view.name): view_rows.has_view_BT.float()}, num_forwards)


def override_prompts(policy: SupportsPromptOverride | Critic, rollout: Rollout, prompts: Sequence[Prompt]) -> Rollout:
    """``SupportsPromptOverride.override_prompts`` of every part of a rollout that was joined."""
    if not isinstance(rollout.trace, RolloutParts):
        return policy.override_prompts(rollout, prompts)
    parts = [override_prompts(policy, *part) for part in _parts_with_prompts(rollout.trace, prompts)]
    return replace(rollout, trace=RolloutParts(parts))


def retokenize(policy: SupportsTokenLogits, trained: Policy, rollout: Rollout, prompts: Sequence[Prompt]) -> Rollout:
    """``SupportsTokenLogits.retokenize`` of every part of a rollout of the trained policy.

    Raises ConfigError if the trained policy does not state which decisions wrote which characters.
    """
    if not isinstance(trained, SupportsTextOffsets):
        raise ConfigError(
            f"{type(trained).__name__} does not state which decisions wrote which characters "
            "(mmgrpo.policy.SupportsTextOffsets), which a view with another tokenizer needs: leave the view out"
        )
    if not isinstance(rollout.trace, RolloutParts):
        return policy.retokenize(rollout, prompts, [trained.text_offsets(sample) for sample in rollout.samples])
    parts = [retokenize(policy, trained, *part) for part in _parts_with_prompts(rollout.trace, prompts)]
    mask_BT = torch.cat([pad(part.mask_BT, (0, rollout.shape[1] - part.shape[1])) for part in parts])
    return replace(rollout, trace=RolloutParts(parts), mask_BT=mask_BT)


def _parts_with_prompts(trace: RolloutParts, prompts: Sequence[Prompt]) -> Iterator[tuple[Rollout, Sequence[Prompt]]]:
    start = 0
    for part in trace.rollouts:
        yield part, prompts[start : start + len(part.samples)]
        start += len(part.samples)


def _content(prompt: Prompt) -> tuple[object, ...]:
    """The prompt of a policy, media by their identity."""
    media = (prompt.images, prompt.videos, prompt.audios)
    return prompt.text, repr(prompt.messages), prompt.negative, *map(id, media)
