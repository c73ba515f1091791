"""Auxiliary supervised losses: further gradients of an update, from examples or from its groups' answers.

Axes: B rows, P groups of an update on this process.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import final

import torch
from torch import Tensor

from mmgrpo.algorithm import Algorithm, answer_source_of
from mmgrpo.config import AuxiliaryConfig
from mmgrpo.data.history import History
from mmgrpo.data.prompt_loading import load_prompts
from mmgrpo.data.stored_answers import answer_of
from mmgrpo.distributed.job import Job
from mmgrpo.errors import ConfigError
from mmgrpo.maths.answer_sources import AnswerSource
from mmgrpo.maths.diagnostics import Diagnostics
from mmgrpo.maths.seeds import derive_seed
from mmgrpo.policy import Policy, SupportsTextOffsets
from mmgrpo.training.compute_advantages import Advantages
from mmgrpo.training.gradients import Gradient
from mmgrpo.training.supervision import (
    EXAMPLES_SEED,
    ExampleBatches,
    SupervisedBatch,
    SupervisedResult,
    accumulate_supervised,
    accumulate_weighted,
    load_examples,
    require_supervised,
)
from mmgrpo.types import Example, Prompt, Sample, Source

Part = tuple[int, str | None]
"""A group, and the prompt template that some of its rows were sampled in; None: the complete group."""

ExtraGradient = Callable[[int, Sequence[int]], Gradient]
"""(number of the update, this process's rows of it) -> the metrics of the gradient that it added; a collective."""


@final
class Auxiliaries:
    """The section ``objective.auxiliary`` of a run."""

    def __init__(self, policy: Policy, configs: Sequence[AuxiliaryConfig], *, seed: int, job: Job) -> None:
        """Loads the examples.

        Args:
            policy: must also be ``SupportsSupervisedLoss``, if there is any.
            configs: the section.
            seed: the run's.
            job: the processes.

        Raises:
            ConfigError: the policy has no supervised loss.
        """
        self._seed, self._job = seed, job
        self._supervised = require_supervised(policy, "objective.auxiliary") if configs else None
        self._parameters = policy.trainable
        self._answers: dict[
            tuple[int, str], tuple[Prompt, Example]
        ] = {}  # the prompt is kept, so that its id stays its own
        self._batches: dict[str, ExampleBatches] = {}
        self._sources = {config.label: answer_source_of(config) for config in configs}
        for config in configs:
            if self._sources[config.label] is None:
                examples = load_examples(config, f"objective.auxiliary ({config.label})")
                self._batches[config.label] = ExampleBatches(examples, config.batch_size or 64, seed)

    def extra_gradient(self, algorithm: Algorithm, advantages: Advantages, first: int) -> ExtraGradient | None:
        """The auxiliary losses of the updates of a step.

        Args:
            algorithm: at the step, with the section and its prompt templates.
            advantages: the training data of the step's updates.
            first: how many updates the run has had.

        Returns:
            For ``update_policy``; None where nothing joins.
        """
        is_active = any(config.weight != 0 for config in algorithm.config.objective.auxiliary)
        return partial(self._accumulate, algorithm, advantages, first) if is_active else None

    def _accumulate(
        self, algorithm: Algorithm, advantages: Advantages, first: int, number: int, rows: Sequence[int]
    ) -> Gradient:
        losses, sums, num_forwards = {}, {}, 0
        for config in algorithm.config.objective.auxiliary:
            if config.weight == 0:
                continue
            source = self._sources[config.label]
            if source is None:
                result, num = self._from_examples(config, first + number)
            elif source.column is None:
                result, num = self._from_beginnings(config, advantages, first + number, rows)
            else:
                result, num = self._from_answers(config, source, algorithm, advantages, first + number, rows)
            losses[config.label], sums[config.label] = result.local_loss, result.local_sum
            num_forwards += num
        return Gradient(Diagnostics(loss_sums=losses, value_sums=sums), None, num_forwards)

    def _from_examples(self, config: AuxiliaryConfig, number: int) -> tuple[SupervisedResult, int]:
        assert self._supervised is not None
        batch = self._batches[config.label].at(number, self._job, f"objective.auxiliary ({config.label}): batch_size")
        result = accumulate_supervised(
            self._supervised, batch, parameters=self._parameters, job=self._job, scale=config.weight
        )
        return result, len(batch.examples)

    def _from_answers(
        self,
        config: AuxiliaryConfig,
        source: AnswerSource,
        algorithm: Algorithm,
        advantages: Advantages,
        number: int,
        rows: Sequence[int],
    ) -> tuple[SupervisedResult, int]:
        samples = [advantages.rollout.samples[row] for row in rows]
        parts: list[Part] = [
            (sample.group, sample.prompt_template if source.per_prompt_template else None) for sample in samples
        ]
        sample_of = dict(zip(parts, samples, strict=True))
        rate_P = success_rates(advantages, rows, parts, right=source.right)
        weight_P = algorithm.answer_weights[config.label](rate_P).tolist()
        part_weights = {part: weight for part, weight in zip(sample_of, weight_P, strict=True) if weight != 0}

        def answers() -> Iterator[Example]:
            for part in part_weights:
                answer = self._answer(sample_of[part], source.column or "")
                template = algorithm.prompt_templates.get(part[1] or "")
                prompt = template(answer.prompt, sample_of[part].member, History()) if template else None
                yield answer if prompt is None else replace(answer, prompt=prompt)

        groups = [group for group, _ in part_weights]
        return self._weighed(
            config, number, groups, lambda: list(answers()), list(part_weights.values()), len(sample_of)
        )

    def _from_beginnings(
        self, config: AuxiliaryConfig, advantages: Advantages, number: int, rows: Sequence[int]
    ) -> tuple[SupervisedResult, int]:
        samples = [advantages.rollout.samples[row] for row in rows]
        sample_of = {(sample.group, sample.num_forced): sample for sample in samples if sample.num_forced}
        counts = Counter((sample.group, sample.num_forced) for sample in samples)

        def prefix_examples() -> list[Example]:
            return [
                Example(sample.prompt, text=self._forced_prefix(sample), finished=False)
                for sample in sample_of.values()
            ]

        groups, weights = [group for group, _ in sample_of], [float(counts[key]) for key in sample_of]
        return self._weighed(config, number, groups, prefix_examples, weights, len(rows))

    def _weighed(
        self,
        config: AuxiliaryConfig,
        number: int,
        groups: Sequence[int],
        examples_of: Callable[[], list[Example]],
        weights: Sequence[float],
        num: int,
    ) -> tuple[SupervisedResult, int]:
        """The loss of examples of these groups, as a mean over so many of this process; a collective."""
        assert self._supervised is not None
        examples: list[Example] = []

        def collect_examples() -> int:
            examples.extend(examples_of())
            return num

        total = sum(self._job.run_on_all(collect_examples))
        seeds = [derive_seed(self._seed, EXAMPLES_SEED, number, group) for group in groups]
        batch = SupervisedBatch(examples=examples, seeds=seeds)
        result = accumulate_weighted(
            self._supervised, batch, weights, num=max(total, 1), job=self._job, scale=config.weight
        )
        return result, len(examples)

    def _forced_prefix(self, sample: Sample) -> str:
        if not isinstance(self._supervised, SupportsTextOffsets):
            raise ConfigError("objective.auxiliary: prefixes needs a policy that generates text: leave it out")
        return (sample.text or "")[: self._supervised.text_offsets(sample)[sample.num_forced - 1]]

    def _answer(self, sample: Sample, column: str) -> Example:
        prompt, key = sample.prompt, (id(sample.prompt), column)
        if key not in self._answers:
            self._answers[key] = prompt, answer_of(prompt, column, writes=sample.text is not None)
        return self._answers[key][1]


def success_rates(advantages: Advantages, rows: Sequence[int], parts: Sequence[Part], *, right: float) -> Tensor:
    """The share of each part's samples among these rows that are right; 1 where no reward applied to any.

    Args:
        advantages: the rows of this process.
        rows: some of them.
        parts: of each of these rows.
        right: the reward from which on a sample is right.

    Returns:
        (P,), float64, of each part in the order in which they come.
    """
    rollout, rows_N = advantages.rollout, torch.tensor(list(rows), dtype=torch.long)
    scored_N = advantages.scored_N[advantages.local_rows][rows_N]
    if rollout.source_B is not None:
        scored_N = scored_N & (rollout.source_B[rows_N] == Source.ON_POLICY)
    right_N = advantages.reward_B[rows_N] >= right
    rates = []
    for part in dict.fromkeys(parts):
        of_N = scored_N & torch.tensor([other == part for other in parts])
        rates.append(float(right_N[of_N].double().mean()) if bool(of_N.any()) else 1.0)
    return torch.tensor(rates, dtype=torch.float64)


def answered_rows(*, source: str, column: str, writes: bool = False, limit: int | None = None) -> list[Example]:
    """Rows of a file or data set as examples, each with its answer.

    Args:
        source: as ``prompts.source``.
        column: a text if the policy generates texts; else an image or the frames of a video.
        writes: whether the policy writes.
        limit: the first so many rows alone.

    Returns:
        The examples, all held in memory.

    Raises:
        DataError: as ``load_prompts`` and ``answer_of``.
    """
    return [answer_of(prompt, column, writes=writes) for prompt in load_prompts(source, limit=limit)]
