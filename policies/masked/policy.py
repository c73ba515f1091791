"""Masked models as policies: masked language models, and AmusedPipeline."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mmgrpo.errors import ConfigError, DataError, PolicyError
from mmgrpo.maths.seeds import derive_seed
from mmgrpo.policy import (
    SupportsExport,
    SupportsNamedWeights,
    SupportsOffPolicyScoring,
    SupportsPromptCheck,
    SupportsPromptOverride,
    SupportsSupervisedLoss,
    SupportsWindows,
)
from mmgrpo.types import Evaluation, Example, OffPolicySample, Plan, Prompt, Rollout, Sample, SupervisedLoss
from mmgrpo.values import ENTROPY, Value

from ..distribution import LOGIT_VALUES, required_views, view_values
from ..merging import merge_adapters
from ..model_source import require_no_loading_settings
from ..overriding import override_settings
from ..quantization import arithmetic_dtype
from ..rescoring import rescore
from ..weights import Weights
from .masked_loading import load, predictor_of
from .masked_records import assembled, parts_of, remasked_rollout, sampled_records
from .masked_scoring import ScoredPass, batches_of_kind, score_pass
from .masked_trace import MaskedPass, MaskedTrace, MaskedTraces, TokenSampling, unmasking_passes
from .settings import MaskedSettings
from .supervised import supervised_loss
from .unmasking import UnmaskedAnswers, UnmaskingSampler, unmask
from .unmasking_schedule import UnmaskingStep, unmasking_steps


class MaskedPolicy(
    SupportsNamedWeights,
    SupportsSupervisedLoss,
    SupportsWindows,
    SupportsOffPolicyScoring,
    SupportsPromptOverride,
    SupportsExport,
    SupportsPromptCheck,
):
    """A masked model whose unmasking steps are decisions.

    A sample starts fully masked. Each step samples tokens at all masked positions and keeps some of them; their
    log-probability in that state is the score, which the update computes again. No part of it is per-model.

    Attributes:
        predictor: the model.
        settings: the sampling and training settings.
        weights: LoRA in the format of peft or diffusers, full weights as ``save_pretrained`` folders.
    """

    settings_type = MaskedSettings

    def __init__(self, *parts: Any, settings: MaskedSettings | Mapping[str, Any] | None = None) -> None:
        """Wraps live parts; disables dropout and freezes all weights except the trained ones.

        Args:
            *parts: an ``AmusedPipeline``; or a masked language model, its tokenizer and, for images, a ``VQModel``.
            settings: ``MaskedSettings`` or a mapping of its fields.
        """
        if settings is None or isinstance(settings, Mapping):
            require_no_loading_settings(settings or {}, "revision", "dtype", "attention")
            settings = MaskedSettings(**(settings or {}))
        self.settings = settings
        self.predictor = predictor_of(parts, settings)
        for module in self.predictor.spec.frozen:
            module.requires_grad_(False).eval()
        dtype = arithmetic_dtype(next(iter(self.predictor.spec.modules.values())))
        if dtype == torch.float16:
            raise ConfigError("a masked model does not support float16: load it in bfloat16 or float32")
        spec = self.predictor.spec
        self.weights: Weights = Weights(spec.modules, settings.lora, spec.targets, spec.files)
        if settings.adapter is not None:
            self.weights.load_initial(Path(settings.adapter))
        self._autocast = dtype if settings.lora is None and dtype != torch.float32 else None
        self._steps = self._steps_of(settings)

    @classmethod
    def from_config(
        cls, settings: MaskedSettings | Mapping[str, Any], *, device: str | torch.device = "cpu"
    ) -> MaskedPolicy:
        """Loads the model from a path or hub id (or calls ``python:module:function``) and wraps it."""
        if isinstance(settings, Mapping):
            settings = MaskedSettings(**settings)
        parts = load(settings)
        return cls(*(part.to(device) if hasattr(part, "to") else part for part in parts), settings=settings)

    @property
    def num_decisions(self) -> int:
        """The unmasking steps of a sample. Raises ConfigError if single tokens are decisions."""
        if self.settings.decision == "token":
            raise ConfigError("windows need unmasking steps as decisions: set policy.decision: reveal")
        return len(self._steps)

    def save(self, directory: Path) -> None:
        """Saves LoRA in the format of peft or diffusers, full weights as save_pretrained folders, and the tokenizer."""
        self.weights.save(directory)
        if self.predictor.spec.extra is not None:
            (name,) = self.predictor.spec.modules
            self.predictor.spec.extra.save_pretrained(directory if self.settings.lora else directory / name)

    def export(self, directory: Path, *, dtype: str | None = None) -> None:
        """Saves the transformers model and its tokenizer with ``save_pretrained``."""
        spec = self.predictor.spec
        if spec.extra is None:
            raise ConfigError(
                "export does not support masked pipelines: their checkpoints have adapters that diffusers loads, or "
                "the transformer in the format of save_pretrained"
            )
        (model,) = merge_adapters(self.weights, dtype).values()
        model.save_pretrained(directory)  # pyrefly: ignore[not-callable] (the stub of a module hides it)
        spec.extra.save_pretrained(directory)

    def supervised_loss(self, examples: Sequence[Example], *, seeds: Sequence[int]) -> SupervisedLoss:
        """Cross-entropy of a random number of masked tokens, averaged over examples."""
        with self._computing():
            mean = supervised_loss(self.predictor, self._modules, examples, seeds)
        return SupervisedLoss(mean=mean, num_terms=len(examples))

    def check_prompt(self, prompt: Prompt) -> None:
        """Raises DataError for a prompt that cannot be encoded."""
        self.predictor.condition(prompt)

    def rollout(self, prompts: Sequence[Prompt], *, group_size: int, seed: int, plan: Plan | None = None) -> Rollout:
        """Samples ``group_size`` answers per prompt; a decision is an unmasked token, in unmasking order.

        With ``decision: reveal`` a decision is all tokens of a step, and ``plan.stochastic`` has the stochastic steps.
        A deterministic plan takes the most likely tokens, once per prompt, or samples at ``evaluation_temperature``.
        """
        plan = plan or Plan()
        _require_supported(plan)
        settings = override_settings(self.settings, plan.settings, self.settings.of_a_rollout)
        ids = plan.prompt_ids or tuple(range(len(prompts)))
        rows = [(p, m) for p, members in enumerate(plan.members_of(len(prompts), group_size)) for m in members]
        sampling, sampler = self._sampler(settings, plan)
        row_groups = [[row] for row in range(len(rows))]  # rows with one common answer
        if sampler.stochastic == ():
            row_groups = [[row for row, (q, _) in enumerate(rows) if q == p] for p in range(len(prompts))]
        first = [rows[group[0]] for group in row_groups]
        conditions = [self.predictor.condition(prompt) for prompt in prompts]
        answers: dict[int, UnmaskedAnswers] = {}
        samples: dict[int, Sample] = {}
        for batch in batches_of_kind([conditions[p].kind for p, _ in first], self.settings.rollout_batch):
            batch_conditions = [conditions[first[n][0]] for n in batch]
            seeds = [derive_seed(seed, ids[first[n][0]], first[n][1]) for n in batch]
            with self._computing():
                unmasked = unmask(self.predictor, self._modules, batch_conditions, seeds, sampler)
            batch_rows = [(index, row) for index, n in enumerate(batch) for row in row_groups[n]]
            unanswered = [self._unanswered(prompts, ids, rows[row], unmasked, index, plan) for index, row in batch_rows]
            batch_samples = self.predictor.samples(unanswered, unmasked.token_NL[[index for index, _ in batch_rows]])
            for (index, row), sample in zip(batch_rows, batch_samples, strict=True):
                answers[row], samples[row] = unmasked.row(index), sample
            plan.emit_samples(batch_samples)
        merged = UnmaskedAnswers.joined([answers[row] for row in range(len(rows))])
        condition_B = torch.tensor([p for p, _ in rows])
        trace = MaskedTrace(
            conditions=conditions,
            token_BL=merged.token_NL,
            passes=unmasking_passes(condition_B, merged.order_NL, [step.count for step in sampler.steps]),
            pooled=settings.reduction if settings.decision == "reveal" else None,
            sampling=sampling,
        )
        sampled_T = _stochastic_columns(trace, plan)
        rollout = assembled(
            [(torch.arange(len(rows)), trace)],
            [samples[row] for row in range(len(rows))],
            [trace.mask_BT() & sampled_T],
            sampled_records(trace, merged.order_NL, sampled_T),
        )
        return replace(
            rollout,
            old_logprob_BT=_pooled(merged.logprob_NL, trace),
            values={ENTROPY: _pooled(merged.entropy_NL, replace(trace, pooled=trace.pooled and "mean"))},
            num_forwards=len(first) * len(sampler.steps),
        )

    def read(self, samples: Sequence[OffPolicySample], *, seed: int, plan: Plan | None = None) -> Rollout:
        """Answers masked again as configured by ``policy.reading``, by their tokens, or else by their text or image.

        A decision is a token under a masking, or a masking's term of a bound; for a sample with a record it is the
        recorded decision. ``old_logprob_T`` are log-probabilities of these decisions.
        """
        plan = plan or Plan()
        if any(item.num_forced for item in samples):
            raise DataError("num_forced must be 0 for remasked answers: they have no forced prefix")
        settings = override_settings(self.settings, plan.settings, self.settings.of_a_rollout)
        tokens = [self._tokens(item.sample) for item in samples]
        samples = [
            item
            if item.sample.tokens is not None
            else replace(item, sample=replace(item.sample, tokens=token_L.tolist()))
            for item, token_L in zip(samples, tokens, strict=True)
        ]
        rollout = remasked_rollout(
            self.predictor,
            samples,
            tokens,
            settings.reading,
            TokenSampling(temperature=settings.temperature, guidance_scale=settings.guidance_scale),
            seed=seed,
        )
        rollout = replace(rollout, source_B=torch.tensor([int(item.source) for item in samples]))
        num_forwards = sum(
            int(rollout.mask_BT[row_N][:, list(columns)].any(1).sum())
            for row_N, trace in parts_of(rollout.trace)
            for columns in trace.columns
        )
        rollout = replace(rescore(self, rollout, values=(ENTROPY,)), num_forwards=num_forwards)
        for row, item in enumerate(samples):
            if item.old_logprob_T is not None:
                num = rollout.num_decisions(row)
                if item.old_logprob_T.shape != (num,):
                    raise DataError(
                        f"old_logprob_T must have {num} numbers, one per decision, got shape "
                        f"{tuple(item.old_logprob_T.shape)}"
                    )
                rollout.old_logprob_BT[row, :num] = item.old_logprob_T
        plan.emit_samples(rollout.samples)
        return rollout

    def override_prompts(self, rollout: Rollout, prompts: Sequence[Prompt]) -> Rollout:
        """The same maskings of the same answers under other prompts, without masked prompt tokens."""
        if not isinstance(rollout.trace, MaskedTrace | MaskedTraces):
            raise ConfigError(
                "prompt overrides of a masked policy need its own rollout; got one of another kind of policy"
            )
        condition_of = {id(prompt): self.predictor.condition(prompt) for prompt in prompts}
        index_of = {key: number for number, key in enumerate(condition_of)}
        parts = []
        for row_N, trace in parts_of(rollout.trace):
            if len(trace.conditions) > len(row_N):
                raise ConfigError(
                    "prompt overrides do not support partly masked prompts: set policy.reading.prompt_share to 0"
                )
            condition_N = torch.tensor([index_of[id(prompts[row])] for row in row_N.tolist()])
            passes = [replace(masked_pass, condition_B=condition_N) for masked_pass in trace.passes]
            parts.append((row_N, replace(trace, conditions=list(condition_of.values()), passes=passes)))
        return replace(rollout, trace=parts[0][1] if len(parts) == 1 else MaskedTraces(parts))

    def evaluate(
        self,
        rollout: Rollout,
        rows: Sequence[int] | Tensor | None = None,
        *,
        values: Collection[Value] = (),
    ) -> Iterator[Evaluation]:
        """Yields one slice per unmasking step or masking and batch of rows.

        Values are those of ``distribution.LOGIT_VALUES``, averaged per decision, and of the reference and stored
        weights the log-probability and the divergences k1, k2 and k3.
        """
        selected = range(len(rollout.samples)) if rows is None else [int(row) for row in rows]
        for row_N, trace in parts_of(rollout.trace):
            index_of = {row: n for n, row in enumerate(row_N.tolist())}
            trace_rows = [index_of[row] for row in selected if row in index_of]
            for evaluation in self._evaluate_trace(trace, rollout.mask_BT[row_N], trace_rows, values):
                assert evaluation.rows is not None
                yield replace(evaluation, rows=row_N[evaluation.rows])

    def _evaluate_trace(
        self, trace: MaskedTrace, mask_NT: Tensor, rows: Sequence[int], values: Collection[Value]
    ) -> Iterator[Evaluation]:
        """The slices of the rows of one trace, by their index in it."""
        views = required_views(values, self.weights.names, current_names=LOGIT_VALUES)
        policy_values = [value for value in values if value.view is None]
        for masked_pass, columns in zip(trace.passes, trace.columns, strict=True):
            is_trained_N = mask_NT[:, list(columns)].any(1)
            trained = [row for row in rows if bool(is_trained_N[row])]
            kinds = [trace.conditions[int(masked_pass.condition_B[row])].kind for row in trained]
            for indices in batches_of_kind(kinds, self.settings.update_batch):
                batch = [trained[index] for index in indices]
                others = {view: self._view_logprobs(view, trace, masked_pass, batch) for view in views}
                current = self._score(trace, masked_pass, batch, policy_values)
                yield Evaluation(
                    columns=columns,
                    logprob_BT=current.logprob,
                    values={**current.values, **view_values(values, current.logprob, others)},
                    rows=torch.tensor(batch),
                    num_forwards=len(batch) * (1 + len(views)),
                )

    @property
    def _modules(self) -> Mapping[str, nn.Module]:
        """The active modules, or the frozen copies that replace them."""
        return {**self.predictor.spec.modules, **self.weights.active_copies}

    def _steps_of(self, settings: MaskedSettings) -> list[UnmaskingStep]:
        spec = self.predictor.spec
        return unmasking_steps(
            spec.length,
            num_steps=settings.num_steps or spec.num_steps,
            block_length=settings.block_length,
            schedule=settings.schedule or spec.schedule,
            noise=spec.order_noise if settings.order_noise is None else settings.order_noise,
        )

    def _sampler(self, settings: MaskedSettings, plan: Plan) -> tuple[TokenSampling, UnmaskingSampler]:
        """A plan's unmasking parameters, and the token distribution that scores its tokens."""
        sampling = TokenSampling(temperature=settings.temperature, guidance_scale=settings.guidance_scale)
        steps = self._steps_of(settings)
        if plan.stochastic and settings.decision == "token":
            raise ConfigError("windows need unmasking steps as decisions: set policy.decision: reveal")
        if not plan.deterministic or plan.for_rescoring:
            stochastic = None if plan.for_rescoring else plan.stochastic
            return sampling, UnmaskingSampler(
                steps=steps, order=settings.order, sampling=sampling, stochastic=stochastic
            )
        temperature = settings.evaluation_temperature
        evaluation = replace(sampling, temperature=temperature or sampling.temperature)
        return evaluation, UnmaskingSampler(
            steps=steps, order=settings.order, sampling=evaluation, stochastic=None if temperature else ()
        )

    def _unanswered(
        self,
        prompts: Sequence[Prompt],
        ids: Sequence[int],
        row: tuple[int, int],
        unmasked: UnmaskedAnswers,
        index: int,
        plan: Plan,
    ) -> Sample:
        """A sample without its answer."""
        values_NL = {"entropy": unmasked.entropy_NL, "certainty": unmasked.certainty_NL}
        if unknown := sorted(set(plan.sample_values) - set(values_NL)):
            raise ConfigError(f"samples of masked policies have no {', '.join(unknown)}; use {', '.join(values_NL)}")
        return Sample(
            prompts[row[0]],
            group=ids[row[0]],
            member=row[1],
            logprob=None if plan.deterministic else float(unmasked.logprob_NL[index].mean()),
            values={name: float(values_NL[name][index].mean()) for name in plan.sample_values},
        )

    def _tokens(self, sample: Sample) -> Tensor:
        if sample.tokens is None:
            return self.predictor.target(Example(sample.prompt, text=sample.text, image=sample.image))
        if len(sample.tokens) != self.predictor.spec.length:
            raise DataError(
                f"an answer has {self.predictor.spec.length} tokens; got a sample with {len(sample.tokens)}"
            )
        return torch.tensor(list(sample.tokens))

    def _score(
        self, trace: MaskedTrace, masked_pass: MaskedPass, rows: Sequence[int], values: Sequence[Value] = ()
    ) -> ScoredPass:
        with self._computing():
            return score_pass(self.predictor, self._modules, trace, masked_pass, rows, values)

    @torch.no_grad()
    def _view_logprobs(self, view: str, trace: MaskedTrace, masked_pass: MaskedPass, rows: Sequence[int]) -> Tensor:
        with self.weights.using(view):
            return self._score(trace, masked_pass, rows).logprob

    def _computing(self) -> AbstractContextManager[Any]:
        if self._autocast is None:
            return nullcontext()
        device = next(iter(self.trainable)).device
        return torch.autocast(device.type, dtype=self._autocast)


def _require_supported(plan: Plan) -> None:
    """Raises PolicyError for plan features that masked policies do not support."""
    if plan.environment is not None or plan.continues_texts:
        raise PolicyError(
            "masked policies support neither multi-turn rollouts nor branches and windows of texts: remove "
            "rollout.environment and such strategies"
        )
    if plan.splits or plan.same_initial_noise:
        raise PolicyError(
            "masked policies do not support shared prefixes: remove rollout.tree and rollout.same_initial_noise"
        )


def _pooled(value_BL: Tensor, trace: MaskedTrace) -> Tensor:
    """Values per token, in unmasking order, pooled per decision."""
    if trace.pooled is None:
        return value_BL
    parts = value_BL.split([masked_pass.position_Bn.shape[1] for masked_pass in trace.passes], dim=1)
    pool = torch.sum if trace.pooled == "sum" else torch.mean
    return torch.cat([pool(part, dim=1, keepdim=True) for part in parts], dim=1)


def _stochastic_columns(trace: MaskedTrace, plan: Plan) -> Tensor:
    """(T,) bool, the stochastic decisions of the plan."""
    if plan.stochastic is None or plan.deterministic:
        return torch.full((trace.num_decisions,), not plan.deterministic)
    return torch.isin(torch.arange(len(trace.passes)), torch.tensor(plan.stochastic, dtype=torch.long))
