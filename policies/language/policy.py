"""A transformers language or vision-language model as a policy."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from mmgrpo.errors import ConfigError, DataError
from mmgrpo.layouts import move_modules
from mmgrpo.policy import (
    EngineContext,
    ModuleSharder,
    SupportsCritic,
    SupportsEngine,
    SupportsExport,
    SupportsFloat16,
    SupportsNamedWeights,
    SupportsOffPolicyScoring,
    SupportsPartialRollouts,
    SupportsPromptCheck,
    SupportsPromptOverride,
    SupportsSharding,
    SupportsSupervisedLoss,
    SupportsTextOffsets,
    SupportsTokenLogits,
    SupportsTraceConcat,
)
from mmgrpo.types import Evaluation, Example, LogitsPart, OffPolicySample, Plan, Prompt, Rollout, Sample, SupervisedLoss
from mmgrpo.values import ENTROPY, OF_TWO_DISTRIBUTIONS, PEERS, SAMPLER_LOGPROB, Value

from ..distribution import LOGIT_VALUES, required_views, view_values
from ..engines.engine import Engine
from ..merging import merge_adapters
from ..model_source import require_no_loading_settings
from ..offloading import layers_of, load_offloaded, offload_layers, require_no_offloading, require_offloadable
from ..quantization import arithmetic_dtype
from ..rescoring import rescore, scatter_to_mask
from ..sampling import SamplingDistribution
from ..text_models import checkpointing, require_checkpointing
from ..weights import Weights
from .encoding import EncodedPrompt, PromptEncoder, position_switch, prompt_batches
from .engine_generation import engine_sampling, require_untruncated
from .engine_rollouts import EngineRollouts, engine_rollouts
from .forward_paths import CachedPath, ForwardPath
from .group_divergence import group_divergence
from .language_critic import HiddenStates, LanguageCritic
from .language_loading import end_token_ids, load_model, media_token_ids, suppressed_token_ids, trained_weights
from .length_buckets import FORWARD_TOKENS, LOADING_FORWARD_TOKENS
from .parity_check import TOLERANCES, ParityCase, VerifiedRows, require_plain_agreement
from .path_selection import PathSelector, path_candidates
from .plain_path import PlainPath
from .retokenized import RetokenizedTrace, retokenized_logits
from .settings import LanguageSettings
from .sharded import is_sharded_gradient, shard_decoder
from .text_offsets import token_text_offsets
from .text_rollouts import TextRollouts
from .text_trace import TextTrace
from .token_scoring import NO_LOGITS, decision_states, score_rows, with_supports
from .token_values import STATE_VALUES, TOKEN_VALUES

CHECKED_PROMPTS, CHECKED_TOKENS = 4, 16
"""Prompts, and tokens of each completion, that are scored before an engine samples ahead."""

UNTRUNCATED = SamplingDistribution(
    temperature=1.0, top_k=None, top_p=None, min_p=None, suppressed=torch.empty(0, dtype=torch.long)
)


class LanguagePolicy(
    SupportsNamedWeights,
    SupportsSupervisedLoss,
    SupportsOffPolicyScoring,
    SupportsTextOffsets,
    SupportsPartialRollouts,
    SupportsTraceConcat,
    SupportsPromptOverride,
    SupportsTokenLogits,
    SupportsCritic,
    SupportsSharding,
    SupportsExport,
    SupportsPromptCheck,
    SupportsEngine,
    SupportsFloat16,
):
    """A causal language model, a vision-language model or an encoder-decoder, whose decisions are tokens.

    A prompt, with its images, runs through the model once per group in the rollout and once in the update; its
    key-value cache is expanded to the members. Logits are computed for one chunk of tokens at a time. If this does
    not agree with the model's plain call, the plain call is used. No code is specific to one model.

    Attributes:
        model: the wrapped model.
        processor: its processor or tokenizer.
        settings: the sampling and training settings.
        weights: the trained weights; LoRA in peft's folder, full weights as ``save_pretrained`` folders.
    """

    settings_type = LanguageSettings

    def __init__(
        self,
        model: PreTrainedModel,
        processor: Any,
        settings: LanguageSettings | Mapping[str, Any] | None = None,
        *,
        weights: Weights | None = None,
    ) -> None:
        """Wraps a loaded model; turns dropout off, since rollout and update must use the same policy.

        Args:
            model: any causal language or image-text-to-text model of transformers, on its device.
            processor: its ``AutoProcessor`` or ``AutoTokenizer``.
            settings: ``LanguageSettings`` or a mapping of its fields.
            weights: the trained weights, if the policy shares them with another one; None: made from the settings.
        """
        if settings is None or isinstance(settings, Mapping):
            require_no_loading_settings(settings or {}, "revision", "dtype", "attention", "quantization_config")
            settings = LanguageSettings(**(settings or {}))
        dtype = arithmetic_dtype(model) if weights is None else weights.dtype
        if dtype not in TOLERANCES:
            raise ConfigError(f"a model in {dtype} is not supported: load it in float32, bfloat16 or float16")
        self.model = model
        self.processor = processor
        self.settings = settings
        text = model.config.get_text_config(decoder=True)
        context = max(getattr(text, "max_position_embeddings", None) or 0, 0) or None
        self._tokenizer = getattr(processor, "tokenizer", processor)
        ends = end_token_ids(model, self._tokenizer)
        media_ids = media_token_ids(model, processor, self._tokenizer)
        self._encoder = PromptEncoder(
            processor,
            settings,
            context=context,
            control_ids=[*ends, *media_ids],
            media_ids=media_ids,
            switch=position_switch(text),
        )
        self._end_ids = torch.tensor(ends, device=model.device)
        never = suppressed_token_ids(model, processor, self._tokenizer, settings.suppress, end_ids=ends)
        self._sampling = SamplingDistribution.of(settings, never)
        if settings.offload:
            require_offloadable({"model": model}, settings.lora)
        self.weights: Weights = weights or trained_weights(model, settings)
        if settings.offload:
            offload_layers([model], model.device)
        if settings.gradient_checkpointing:
            require_checkpointing(model)
        self._autocast = dtype if settings.lora is None and dtype != torch.float32 else None
        self._tolerance = TOLERANCES[dtype]
        self._is_sharded = False
        self._loads_weights = settings.offload  # in every forward
        self._selector, self._warmup_selector = self._selectors()
        self._rollouts = TextRollouts(
            encoder=self._encoder,
            settings=settings,
            sampling=self._sampling,
            end_ids=self._end_ids,
            segment_end=None if settings.segment_end is None else re.compile(settings.segment_end),
            path_for=self._path_for,
            vectors=self._vectors,
        )
        self._frozen: dict[int, tuple[ForwardPath, ForwardPath]] = {}  # by copy: a path, and itself through the copy
        self._verified = VerifiedRows()
        self._engine: EngineRollouts | None = None

    def check_prompt(self, prompt: Prompt) -> None:
        """Raises DataError for a prompt that processor, chat template or context length do not support."""
        self._encoder(prompt)

    @classmethod
    def from_config(
        cls, settings: LanguageSettings | Mapping[str, Any], *, device: str | torch.device = "cpu"
    ) -> LanguagePolicy:
        """Loads model and processor from a path or hub id (or calls ``python:module:function``) and wraps them."""
        if isinstance(settings, Mapping):
            settings = LanguageSettings(**settings)
        model, processor = load_model(settings, device=device)
        move_modules([model], lambda part: part.to(device), without=layers_of(model) if settings.offload else ())
        return cls(model, processor, settings)

    @contextmanager
    def use_engine(self, engine: Engine, context: EngineContext) -> Iterator[None]:
        """A context in which an engine generates the samples, except those under named weights."""
        require_no_offloading([self.model], "rollout.engine")
        if self.settings.compile:
            raise ConfigError("policy.compile speeds up sampling by the trainer: remove it, or rollout.engine")
        params = self._rollouts.params(Plan(), engine)
        engine_sampling(params)
        if engine.steps_ahead:
            require_untruncated(params)
        with engine_rollouts(engine, self.weights, self.processor, context) as self._engine:
            try:
                yield
            finally:
                self._engine = None

    @property
    def has_engine(self) -> bool:
        """Whether an engine generates the samples."""
        return self._engine is not None

    @property
    def is_float16(self) -> bool:
        """Whether the model computes in float16."""
        return self.weights.dtype == torch.float16

    @property
    def path(self) -> ForwardPath:
        """The selected forward path; selected again when a prompt of a new kind comes."""
        return self._selector.path

    @property
    def shares_prefix(self) -> bool:
        """Whether updates run a prompt once for all of its rows."""
        return isinstance(self.path, CachedPath) and self.path.shared

    def save(self, directory: Path) -> None:
        """Writes the weights and the processor."""
        self.weights.save(directory)
        self.processor.save_pretrained(directory if self.weights.lora else directory / "model")

    def export(self, directory: Path, *, dtype: str | None = None) -> None:
        """The model and its processor by ``save_pretrained``, without quantization."""
        load_offloaded(self.model)
        merge_adapters(self.weights, dtype)
        self.model.save_pretrained(directory)
        self.processor.save_pretrained(directory)

    def shard(self, shard: ModuleSharder) -> None:
        """Shards the decoder blocks; embeddings, output head and encoders of media stay unsharded.

        Compiled blocks are sharded; decoding is not compiled then.
        """
        require_no_offloading([self.model], "sharding")
        self.weights.shard(lambda _, model: shard_decoder(model, shard))
        self._selector.decode_uncompiled()
        self._is_sharded = is_sharded_gradient(self.trainable)
        self._loads_weights = True

    def text_offsets(self, sample: Sample) -> Sequence[int]:
        """Text offsets of the tokens, by decoding."""
        return token_text_offsets(
            self._tokenizer, list(sample.tokens or ()), sample.text or "", decode=self._encoder.text
        )

    def check_window(self, window: int, settings: Mapping[str, Any]) -> None:
        """Raises ConfigError for a window that is not below ``max_new_tokens``, and for a ``temperature_schedule``."""
        self._rollouts.params(Plan(token_window=window, settings=settings))

    def concat_traces(self, traces: Sequence[Any]) -> TextTrace:
        """Rows with one prompt share it, and rows that continue others share their common tokens."""
        return TextTrace.joined(traces)

    def rollout(self, prompts: Sequence[Prompt], *, group_size: int, seed: int, plan: Plan | None = None) -> Rollout:
        """Generates ``group_size`` completions per prompt; a decision is one token.

        A greedy plan (``stochastic=()``) generates one completion per prompt, copied to all members.
        """
        plan = plan or Plan()
        if self._engine is not None and self.weights.is_current:
            return self._engine_rollout(self._engine, prompts, group_size=group_size, seed=seed, plan=plan)
        rollout = self._rollouts.generate(prompts, group_size=group_size, seed=seed, plan=plan)
        self._verify(rollout)
        if not (self.settings.rescore or self.settings.router_replay) or plan.deterministic:
            return rollout
        again = tuple(value for value in rollout.values if value.name in LOGIT_VALUES)
        return replace(rescore(self, rollout, values=again), num_forwards=2 * rollout.num_forwards)

    def _engine_rollout(
        self, link: EngineRollouts, prompts: Sequence[Prompt], *, group_size: int, seed: int, plan: Plan
    ) -> Rollout:
        """A rollout by an engine, scored by an update's forward."""
        source = link.source(plan)
        rollout = self._rollouts.generate(prompts, group_size=group_size, seed=seed, plan=plan, source=source)
        if plan.deterministic:
            link.engine.sleep()
            return rollout
        path = self._path_for(rollout.trace.prompts)
        trace = with_supports(path, rollout.trace, head_bytes=self.settings.head_bytes)
        rollout = link.scored(self, replace(rollout, trace=trace), is_ahead=source.is_ahead)
        self._verify(rollout)
        return rollout

    def sample_ahead(
        self, prompts: Sequence[Prompt], *, group_size: int, seed: int, plan: Plan
    ) -> Callable[[], Mapping[str, Any]]:
        """Sends the requests of a later rollout to the engine, once the beginnings of some completions agree."""
        link = self._engine
        assert link is not None, "the policy samples ahead within use_engine"
        arguments: dict[str, Any] = {"group_size": group_size, "seed": seed}
        self._engine_rollout(link, prompts[:CHECKED_PROMPTS], plan=self._check_plan(prompts, plan), **arguments)
        return self._rollouts.send_ahead(prompts, plan=plan, engine=link.engine, **arguments)

    def _check_plan(self, prompts: Sequence[Prompt], plan: Plan) -> Plan:
        """The plan of completions that are compared with the policy's log-probabilities, of ``CHECKED_TOKENS``."""
        num_prefix = max(len(self._encoder.encode_text(prompt.prefix or "")) for prompt in prompts[:CHECKED_PROMPTS])
        length = min(self._rollouts.params(plan).length, num_prefix + CHECKED_TOKENS)
        return Plan(settings={**plan.settings, "max_new_tokens": length})

    def read(self, samples: Sequence[OffPolicySample], *, seed: int, plan: Plan | None = None) -> Rollout:
        """Rows of off-policy answers: their tokens, or else the tokens of their text and, if it is finished, the end
        token.

        Missing log-probabilities are computed by the current policy, and with them the entropy if the plan requests
        it and no row has log-probabilities. The columns of a row are its tokens, so one answer under two prompts has
        the same columns.
        """
        del seed  # reading takes no random numbers
        plan = plan or Plan()
        rollout = self._rollouts.read(samples, plan=plan)
        unscored = [row for row, sample in enumerate(samples) if sample.old_logprob_T is None]
        if unscored:
            stored_values = tuple(value for value in plan.values if value == ENTROPY and len(unscored) == len(samples))
            rollout = replace(rescore(self, rollout, unscored, values=stored_values), num_forwards=len(unscored))
        if self._engine is not None:  # rows of a rollout of the engine, which join these, have it too
            rollout = replace(rollout, values={**rollout.values, SAMPLER_LOGPROB: rollout.old_logprob_BT})
        plan.emit_samples(rollout.samples)
        return rollout

    def override_prompts(self, rollout: Rollout, prompts: Sequence[Prompt]) -> Rollout:
        """The same tokens under other prompts, of this policy or of one with the same tokenizer."""
        return self._rollouts.override_prompts(rollout, prompts)

    def critic(self) -> LanguageCritic:
        """A scalar head in place of the logits. Raises ConfigError for a model that does not return hidden states."""
        self._require_states("critic")
        head: Any = self.model.get_output_embeddings()
        if head is None:
            raise ConfigError(f"critic: {type(self.model).__name__} has no output embeddings, so use another model")
        width, device = head.weight.shape[1], self.model.device
        return LanguageCritic(
            self._states, self._prompt_states, self.override_prompts, body=self.trainable, width=width, device=device
        )

    def evaluate(
        self,
        rollout: Rollout,
        rows: Sequence[int] | Tensor | None = None,
        *,
        values: Collection[Value] = (),
    ) -> Iterator[Evaluation]:
        """Streams one slice per batch of rows, with all their decisions; rows of one prompt are adjacent.

        Supported values: those of ``LOGIT_VALUES`` and ``STATE_VALUES``, of another view its log-probability and the
        divergences k1, k2 and k3, and of another view with logits the divergence of both distributions.
        """
        pairs = [value for value in values if value.name in OF_TWO_DISTRIBUTIONS]
        single, trace = [value for value in values if value not in pairs], rollout.trace
        views = required_views(single, self.weights.names, current_names=TOKEN_VALUES)
        row_logits = {str(value.view): self._row_logits(value, rollout) for value in pairs}
        scored_values = [*(value for value in single if value.view is None and value != PEERS), *pairs]
        peers_BT = self._group_divergence(rollout) if PEERS in values else None
        for batch, mask_NT in self._batches(rollout, rows):
            other = {view: self._of_view(view, trace, batch, mask_NT) for view in views}
            view_logits = {view: logits_of(batch, mask_NT) for view, logits_of in row_logits.items()}
            logprob_NT, values_NT = self._scored(trace, batch, mask_NT, scored_values, view_logits)
            if peers_BT is not None:
                values_NT[PEERS] = peers_BT[batch, : mask_NT.shape[1]].where(mask_NT, 0.0).to(logprob_NT.device)
            values_NT |= view_values(single, logprob_NT, other)
            yield Evaluation(
                columns=range(mask_NT.shape[1]),
                logprob_BT=logprob_NT,
                values=values_NT,
                rows=torch.tensor(batch),
                num_forwards=len(batch) * (1 + len(views) + len(row_logits)),
            )

    @torch.no_grad()
    def token_logits(self, rollout: Rollout, rows: Sequence[int], mask_NT: Tensor) -> LogitsPart:
        """The logits before temperature and truncation, from the states of the decisions, which are held."""
        retokenized: Any = rollout.trace
        is_retokenized = isinstance(retokenized, RetokenizedTrace)
        trace: TextTrace = retokenized.trace if is_retokenized else retokenized
        path = self._path_for([trace.prompts[owner] for owner in sorted({trace.prompt_of_B[row] for row in rows})])
        if is_retokenized:
            return retokenized_logits(path, retokenized, rows, mask_NT)
        states_MD = decision_states(path, trace, rows, mask_NT)
        return lambda start, stop: path.logits(states_MD[start:stop])

    def retokenize(
        self, rollout: Rollout, prompts: Sequence[Prompt], text_offsets_B: Sequence[Sequence[int]]
    ) -> Rollout:
        """The texts in this policy's tokens, without their ends, under prompts that its processor encodes."""
        return self._rollouts.retokenize(rollout, prompts, text_offsets_B)

    def _row_logits(self, value: Value, rollout: Rollout) -> Callable[[Sequence[int], Tensor], LogitsPart]:
        """The logits of a view of the rollout, or of named weights. Raises ConfigError for others."""
        view = str(value.view)
        if view in rollout.view_logits:
            return rollout.view_logits[view]
        if view not in self.weights.names:
            raise ConfigError(
                f"{value}: there are no logits of {view}; supported are the views of objective.views and "
                f"{', '.join(sorted(self.weights.names))}"
            )

        def of_rows(rows: Sequence[int], mask_NT: Tensor) -> LogitsPart:
            with self.weights.using(view):
                logits_of = self.token_logits(rollout, rows, mask_NT)
            return partial(self._part_under, view, logits_of)

        return of_rows

    @torch.no_grad()
    def _part_under(self, view: str, logits_of: LogitsPart, start: int, stop: int) -> Tensor:
        with self.weights.using(view):
            return logits_of(start, stop)

    def _group_divergence(self, rollout: Rollout) -> Tensor:
        """Divergence of the members of each group, whichever rows are requested."""
        head_bytes = self.settings.head_bytes
        self._selector.see(rollout.trace.prompts)
        return group_divergence(
            self._active_path(self.path), rollout.trace, rollout.prompt_index_B, head_bytes=head_bytes
        )

    def _batches(self, rollout: Rollout, rows: Sequence[int] | Tensor | None) -> Iterator[tuple[list[int], Tensor]]:
        """Batches of rows, with the mask of their decisions up to the last unmasked one."""
        if isinstance(rollout.trace, RetokenizedTrace):
            raise ConfigError(
                "texts in the tokens of another tokenizer have no log-probabilities of the sampled tokens: use of this "
                "view the term sorted_distance alone, or a policy with the tokenizer of the trained one"
            )
        requested = range(len(rollout.samples)) if rows is None else [int(row) for row in rows]
        trained_rows = [row for row in requested if bool(rollout.mask_BT[row].any())]
        trace: TextTrace = rollout.trace
        path = self._selector.see(
            [trace.prompts[owner] for owner in sorted({trace.prompt_of_B[row] for row in trained_rows})]
        )
        for batch in [batch for alike in trace.alike(trained_rows) for batch in path.batches(trace, alike)]:
            mask_NT = rollout.mask_BT[batch]
            yield batch, mask_NT[:, : int(mask_NT.any(0).nonzero().max()) + 1]

    def _states(self, rollout: Rollout, rows: Sequence[int] | Tensor | None) -> Iterator[HiddenStates]:
        """Last hidden states under the current policy."""
        trace: TextTrace = rollout.trace
        for batch, mask_NT in self._batches(rollout, rows):
            self._require_states("critic")
            tokens = [trace.completions[row].token_T[: mask_NT.shape[1]] for row in batch]
            with self._checkpointing():
                states_NTD = self.path.states(trace, batch, tokens)
            yield HiddenStates(rows=batch, states_NTD=states_NTD, num_forwards=len(batch))

    def _prompt_states(self, prompts: Sequence[Prompt]) -> Iterator[tuple[Sequence[int], Tensor]]:
        """Which prompts a batch has, and the last hidden state of each, under the current policy."""
        encoded = [self._encoder(prompt) for prompt in prompts]
        self._selector.see(encoded)
        transformer = self._require_states("critic").transformer
        for batch in prompt_batches(encoded, self.settings.update_tokens):
            with self._checkpointing():
                prefix = transformer.prefill([encoded[k] for k in batch], max_tokens=self.settings.update_tokens)
            yield batch, prefix.hidden_ND

    def _require_states(self, feature: str) -> CachedPath:
        if not isinstance(self.path, CachedPath):
            name = type(self.model).__name__
            raise ConfigError(
                f"{feature}: {name} needs the plain path, which returns no hidden states: use another model"
            )
        return self.path

    @torch.no_grad()
    def _of_view(self, view: str, trace: TextTrace, rows: Sequence[int], mask_NT: Tensor) -> Tensor:
        with self.weights.using(view):
            return self._scored(trace, rows, mask_NT)[0]

    def supervised_loss(self, examples: Sequence[Example], *, seeds: Sequence[int]) -> SupervisedLoss:
        """Cross-entropy of the examples' texts and their end token, mean over tokens; deterministic."""
        if any(example.text is None for example in examples):
            raise DataError("the warm-up of a language policy needs examples with a text")
        encoded = [self._encoder(example.prompt) for example in examples]
        answers = [
            OffPolicySample(sample=Sample(example.prompt, 0, n, text=example.text, finished=example.finished))
            for n, example in enumerate(examples)
        ]
        trace = TextTrace(
            encoded, range(len(encoded)), [self._rollouts.completion(answer, UNTRUNCATED) for answer in answers]
        )
        path = self._warmup_selector.see(encoded)
        with self._checkpointing():
            sums = [
                score_rows(path, trace, batch, head_bytes=self.settings.head_bytes)[0].sum()
                for batch in path.batches(trace, range(len(encoded)))
            ]
        num_tokens = sum(len(completion.token_T) for completion in trace.completions)
        return SupervisedLoss(mean=-torch.stack(sums).sum() / num_tokens, num_terms=num_tokens)

    def _path_for(self, prompts: Sequence[EncodedPrompt]) -> ForwardPath:
        return self._active_path(self._selector.see(prompts))

    def _vectors(self) -> Tensor:
        table: Any = self.model.get_input_embeddings()
        return table.weight

    def _scored(
        self,
        trace: TextTrace,
        rows: Sequence[int],
        mask_NT: Tensor,
        values: Sequence[Value] = (),
        view_logits: Mapping[str, LogitsPart] = NO_LOGITS,
    ) -> tuple[Tensor, dict[Value, Tensor]]:
        """Log-probabilities and values where the mask is True, 0 elsewhere, (N, T)."""
        for value in values:
            if value.name in STATE_VALUES:
                self._require_states(str(value))
        for setting in ("router_replay", "padding_free"):
            if getattr(self.settings, setting):
                self._require_states(f"policy.{setting}")
        with self._checkpointing():
            logprob_M, values_M = score_rows(
                self._active_path(self.path),
                trace,
                rows,
                head_bytes=self.settings.head_bytes,
                mask_NT=mask_NT,
                values=values,
                view_logits=view_logits,
            )
        logprob_NT, *values_M = (scatter_to_mask(mask_NT, each_M) for each_M in (logprob_M, *values_M))
        return logprob_NT, dict(zip(values, values_M, strict=True))

    def _active_path(self, path: ForwardPath) -> ForwardPath:
        """The path through the model, or through the frozen copy that replaces it."""
        model_copy: Any = self.weights.active_copies.get("model")
        if model_copy is not None and self._frozen.get(id(model_copy), (None, None))[0] is not path:
            self._frozen[id(model_copy)] = (path, path.with_model(model_copy))
        if model_copy is not None:
            return self._frozen[id(model_copy)][1]
        if self.weights.is_current or not isinstance(path, CachedPath):
            return path
        return replace(path, routes=None)  # other weights choose their experts

    def _checkpointing(self) -> AbstractContextManager[None]:
        return checkpointing(self.model, self.settings.gradient_checkpointing)

    def _selectors(self) -> tuple[PathSelector, PathSelector]:
        """The path selectors of rollouts and updates, and of the warm-up."""
        candidates = path_candidates(
            self.model,
            self.settings,
            self._autocast,
            forward_tokens=lambda: LOADING_FORWARD_TOKENS if self._loads_weights else FORWARD_TOKENS,
        )
        if not candidates.per_row:
            # a model that reads its own masks off its tokens would skip the padding token
            self._sampling = self._sampling.without([self._tokenizer.pad_token_id], keep=self._end_ids.tolist())
        trial = ParityCase(
            trace=TextTrace([], [], []),
            sampling=self._sampling,
            parameters=lambda: [] if self._is_sharded else self.trainable,
            head_bytes=self.settings.head_bytes,
            end_ids=self._end_ids,
            special=self._tokenizer.all_special_ids,
            checkpointing=self._checkpointing,
        )
        rollout_selector, warmup_selector = (
            PathSelector(
                paths, candidates.plain, trial, self._tolerance, within=self.weights.current, against=candidates.against
            )
            for paths in (
                [*candidates.per_group, *candidates.per_row],
                [replace(path, routes=None) for path in candidates.per_row],
            )
        )
        return rollout_selector, warmup_selector

    def _verify(self, rollout: Rollout) -> None:
        """Compares rows with the plain call.

        They are the row of the lowest log-probability in the first rollout, and each that is longer than all before or
        of a new kind.
        """
        if not bool(rollout.mask_BT.any()):
            return
        limits = {"vocabulary": self.path.vocabulary, "max_tokens": self.settings.update_tokens}
        plain = PlainPath(model=self.model, autocast=self._autocast, fill=self.path.fill, batched=False, **limits)
        rows = self._verified.rows_of(rollout.trace, only_first=is_sharded_gradient(self.trainable))
        for row in rows:
            require_plain_agreement(plain, rollout.trace, row, self._tolerance, head_bytes=self.settings.head_bytes)
