"""Any transformers language or vision-language model as a policy."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from mmgrpo.errors import ConfigError, DataError, PolicyError
from mmgrpo.maths.divergences import LOGPROB_DIVERGENCES
from mmgrpo.maths.seeds import derive_seed
from mmgrpo.policies.language.agreement import TOLERANCES, Trial, told
from mmgrpo.policies.language.choosing import Choice
from mmgrpo.policies.language.decoding import Completion, Tape
from mmgrpo.policies.language.encoding import Encoded, Encoder
from mmgrpo.policies.language.loading import (
    end_ids,
    language_linears,
    language_parameters,
    load_model,
    media_ids,
)
from mmgrpo.policies.language.plain import Plain
from mmgrpo.policies.language.sampling import Sampling
from mmgrpo.policies.language.scoring import logprobs
from mmgrpo.policies.language.settings import LanguageSettings
from mmgrpo.policies.language.trace import Trace, assembled, sample_of
from mmgrpo.policies.language.transformer import Transformer
from mmgrpo.policies.language.values import views_of
from mmgrpo.policies.language.ways import Cached, Way
from mmgrpo.policies.weights import PeftFiles, Weights
from mmgrpo.policy import Policy, Supervised
from mmgrpo.types import Evaluation, Example, Plan, Prompt, Rollout, Sample, SupervisedLoss
from mmgrpo.values import ENTROPY, OLD, Value

WHOLE = Sampling(temperature=1.0, top_k=None, top_p=None, min_p=None, suppressed=torch.empty(0, dtype=torch.long))


class LanguagePolicy(Policy, Supervised):
    """A causal language model, a vision-language model or an encoder-decoder, whose tokens are decisions.

    A prompt, with its pictures, goes through the model once per group in the rollout and once in the update; its
    key-value cache is expanded to the members. Logits exist a chunk of tokens at a time. Where that is not what the
    model says when it is called plainly, it is called plainly. No part of it is per-model.

    Attributes:
        model: the wrapped model.
        processor: its processor or tokenizer.
        settings: how it writes and what is trained.
    """

    settings_type = LanguageSettings

    def __init__(
        self, model: PreTrainedModel, processor: Any, settings: LanguageSettings | Mapping[str, Any] | None = None
    ) -> None:
        """Wraps a live model; dropout is off from now on, since rollout and update must see the same policy.

        Args:
            model: any causal language or image-text-to-text model of transformers, on its device.
            processor: its ``AutoProcessor`` or ``AutoTokenizer``.
            settings: ``LanguageSettings`` or a mapping of its fields.
        """
        if settings is None or isinstance(settings, Mapping):
            settings = LanguageSettings(**(settings or {}))
        dtype = next(model.parameters()).dtype
        if dtype not in TOLERANCES:
            raise ConfigError(f"{dtype} gradients need a loss scaler; load the model in bfloat16 or float32")
        self.model = model
        self.processor = processor
        self.settings = settings
        text = model.config.get_text_config(decoder=True)
        context = getattr(text, "max_position_embeddings", None)
        self._encoder = Encoder(processor, settings, context=context if context and context > 0 else None)
        self._tokenizer = self._encoder.tokenizer
        self._end_ids = torch.tensor(end_ids(model, self._tokenizer), device=model.device)
        self._sampling = Sampling(
            temperature=settings.temperature,
            top_k=settings.top_k,
            top_p=settings.top_p,
            min_p=settings.min_p,
            suppressed=self._suppressed(model, processor),
        )
        self._segment_end = None if settings.segment_end is None else re.compile(settings.segment_end)
        self._weights = Weights({"model": model}, settings.lora, language_linears(model), PeftFiles())
        if settings.lora is None and settings.freeze_vision:
            kept = language_parameters(model)
            for parameter in model.parameters():
                parameter.requires_grad_(parameter in kept)
        if settings.gradient_checkpointing:
            enable = getattr(model, "activation_checkpointing_enable", model.gradient_checkpointing_enable)  # renamed
            enable({"use_reentrant": False})
        self._autocast = dtype if settings.lora is None and dtype != torch.float32 else None
        self._tolerance = TOLERANCES[dtype]
        self._choice, self._teaching = self._choices(model)
        self._frozen: dict[int, Way] = {}
        self._refers = False
        self._verified = False

    @classmethod
    def from_config(
        cls, settings: LanguageSettings | Mapping[str, Any], *, device: str | torch.device = "cpu"
    ) -> LanguagePolicy:
        """Loads model and processor from a path or hub id (or calls ``python:module:function``) and wraps them."""
        if isinstance(settings, Mapping):
            settings = LanguageSettings(**settings)
        model, processor = load_model(settings)
        model.to(device)  # pyright: ignore[reportArgumentType] (its stub hides the argument)
        return cls(model, processor, settings)

    @property
    def trainable(self) -> list[nn.Parameter]:
        """The adapters, or all weights; float32."""
        return self._weights.trainable

    @property
    def way(self) -> Way:
        """How rows go through the model now; decided anew when a kind of prompt comes that was not seen before."""
        return self._choice.way

    @property
    def shares_prefix(self) -> bool:
        """Whether updates run a prompt once for all rows that share it."""
        return isinstance(self.way, Cached) and self.way.shared

    def save(self, directory: Path) -> None:
        """LoRA as peft's own folder, full weights as ``save_pretrained`` has them, the processor beside."""
        self._weights.save(directory)
        self.processor.save_pretrained(directory if self._weights.lora else directory / "model")

    def load(self, directory: Path) -> None:
        """Restores what ``save`` wrote."""
        self._weights.load(directory)

    @contextmanager
    def reference(self) -> Iterator[None]:
        """Adapters off; for a full fine-tune, a copy of the weights as they were when first asked for."""
        if self._weights.lora is not None:
            with self._weights.adapters_off():
                yield
            return
        self._weights.frozen_copies()
        before, self._refers = self._refers, True
        try:
            yield
        finally:
            self._refers = before

    def rollout(self, prompts: Sequence[Prompt], *, group_size: int, seed: int, plan: Plan | None = None) -> Rollout:
        """Writes ``group_size`` completions per prompt; a decision is one token.

        A greedy plan (``stochastic=()``) writes one completion per prompt, which all members carry.
        """
        plan = plan or Plan()
        if plan.stochastic or plan.share_noise or any(value.view == OLD for value in plan.values):
            raise PolicyError(
                "tokens have no windows, shared noise or means: leave out window, share_noise and normalise_ratio"
            )
        ids = plan.prompt_ids or tuple(range(len(prompts)))
        encoded = [self._encoder(prompt) for prompt in prompts]
        self._choice.see(encoded)
        drawn = 1 if plan.deterministic else group_size
        carried = group_size // drawn  # rows of the rollout that carry one completion
        keys = [(p, ids[p], member) for p in range(len(prompts)) for member in range(drawn)]
        identities = [(prompts[p], ids[p], member) for p in range(len(prompts)) for member in range(group_size)]
        written: dict[int, Completion] = {}
        samples: dict[int, Sample] = {}
        for batch in self.way.decode_batches(encoded, drawn, self.settings.rollout_batch):
            rows = [row * carried + n for row in batch for n in range(carried)]
            completions = self._complete(encoded, keys, batch, seed, plan)
            written |= zip(rows, (one for one in completions for _ in range(carried)), strict=True)
            samples |= {row: sample_of(*identities[row], written[row], self._tokenizer) for row in rows}
            plan.hand_over([samples[row] for row in rows])
        everything = range(len(identities))
        trace = Trace(encoded, [row // group_size for row in everything], [written[row] for row in everything])
        rollout = assembled(
            trace,
            [samples[row] for row in everything],
            self._tokenizer,
            segment_end=self._segment_end,
            trained=not plan.deterministic,
        )
        self._verify(rollout)
        return self._rescored(rollout) if self.settings.rescore and not plan.deterministic else rollout

    def evaluate(
        self,
        rollout: Rollout,
        rows: Sequence[int] | Tensor | None = None,
        *,
        values: Collection[Value] = (),
    ) -> Iterator[Evaluation]:
        """Streams one slice per batch of rows, all their decisions in it; rows of one prompt stand together.

        Of values there are the entropy, and of another view its log-probability and divergences k1, k2 and k3.
        """
        views = views_of(values)
        chosen = range(len(rollout.samples)) if rows is None else [int(row) for row in rows]
        kept = [row for row in chosen if bool(rollout.mask_BT[row].any())]
        trace: Trace = rollout.trace
        way = self._choice.see([trace.prompts[owner] for owner in sorted({trace.prompt_of_B[row] for row in kept})])
        for batch in way.batches(trace, kept):
            mask_NT = rollout.mask_BT[batch]
            width = int(mask_NT.any(0).nonzero().max()) + 1
            other = {view: self._of_view(view, trace, batch, mask_NT[:, :width]) for view in views}
            logprob_NT, entropy_NT = self._scored(trace, batch, mask_NT[:, :width], entropy=ENTROPY in values)
            found = {} if entropy_NT is None else {ENTROPY: entropy_NT}
            for value in values:
                if value.view is not None:
                    other_NT = other[value.view]
                    known = value.name == "logprob"
                    found[value] = other_NT if known else LOGPROB_DIVERGENCES[value.name](logprob_NT, other_NT)
            yield Evaluation(
                columns=range(width),
                logprob_BT=logprob_NT,
                values=found,
                rows=torch.tensor(batch),
                num_forwards=len(batch) * (1 + len(views)),
            )

    @torch.no_grad()
    def _of_view(self, view: str, trace: Trace, rows: Sequence[int], mask_NT: Tensor) -> Tensor:
        del view  # the reference is the only one there is
        with self.reference():
            return self._scored(trace, rows, mask_NT, entropy=False)[0]

    def supervised_loss(self, examples: Sequence[Example], *, seeds: Sequence[int]) -> SupervisedLoss:
        """Cross-entropy of the examples' texts and their end token, mean over tokens; no randomness is used."""
        if any(example.text is None for example in examples):
            raise DataError("the warm-up of a language policy needs examples with a text")
        encoded = [self._encoder(example.prompt) for example in examples]
        end = torch.tensor([self._encoder.end_id(self._end_ids.tolist())])
        tokens = [torch.cat([self._encoder.target(example.text or ""), end]) for example in examples]
        completions = [Completion(token_T, torch.zeros(len(token_T)), None, True) for token_T in tokens]
        trace = Trace(encoded, range(len(encoded)), completions)
        way = self._teaching.see(encoded)
        with self._checkpointing():
            sums = [
                logprobs(way, trace, batch, sampling=WHOLE, head_bytes=self.settings.head_bytes)[0].sum()
                for batch in way.batches(trace, range(len(encoded)))
            ]
        num_tokens = sum(len(token_T) for token_T in tokens)
        return SupervisedLoss(mean=-torch.stack(sums).sum() / num_tokens, num_terms=num_tokens)

    @torch.no_grad()
    def _rescored(self, rollout: Rollout) -> Rollout:
        """The rollout with the log-probabilities that an update's forward finds."""
        found_BT = torch.zeros(rollout.shape)
        for part in self.evaluate(rollout):
            assert part.rows is not None
            found_BT[part.rows[:, None], torch.tensor(part.columns)[None]] = part.logprob_BT.cpu()
        return replace(rollout, old_logprob_BT=found_BT, num_forwards=2 * rollout.num_forwards)

    def _complete(
        self,
        encoded: Sequence[Encoded],
        keys: Sequence[tuple[int, int, int]],
        batch: Sequence[int],
        seed: int,
        plan: Plan,
    ) -> list[Completion]:
        prompts = sorted({keys[row][0] for row in batch})
        T = self.settings.max_new_tokens
        uniform_NT = None
        if not plan.deterministic:
            seeds = [derive_seed(seed, *keys[row][1:]) for row in batch]
            uniform_NT = torch.stack([torch.rand(T, generator=torch.Generator().manual_seed(s)) for s in seeds])
        tape = Tape(self._sampling, rows=len(batch), length=T, device=self.model.device, uniform_NT=uniform_NT)
        owners = [prompts.index(keys[row][0]) for row in batch]
        self._now(self.way).write([encoded[p] for p in prompts], owners, tape, self._end_ids)
        return tape.completions(self._end_ids)

    def _scored(
        self, trace: Trace, rows: Sequence[int], mask_NT: Tensor, *, entropy: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Log-probabilities and entropies where the mask holds, 0 elsewhere, (N, T)."""
        with self._checkpointing():
            logprob_M, entropy_M = logprobs(
                self._now(self.way),
                trace,
                rows,
                sampling=self._sampling,
                head_bytes=self.settings.head_bytes,
                mask_NT=mask_NT,
                entropy=entropy,
            )
        index = mask_NT.to(logprob_M.device)
        logprob_NT = torch.zeros(mask_NT.shape, device=logprob_M.device).masked_scatter(index, logprob_M)
        if entropy_M is None:
            return logprob_NT, None
        return logprob_NT, torch.zeros_like(logprob_NT).masked_scatter(index, entropy_M)

    def _now(self, way: Way) -> Way:
        """A way through the model, or through the frozen copy where the reference is asked."""
        if not self._refers:
            return way
        if id(way) not in self._frozen:
            frozen: Any = self._weights.frozen_copies()["model"]
            self._frozen = {id(way): way.through(frozen)}
        return self._frozen[id(way)]

    @contextmanager
    def _checkpointing(self) -> Iterator[None]:
        """Within it the layers keep only their inputs for the backward, if so asked; dropout stays off."""
        active = self.settings.gradient_checkpointing and torch.is_grad_enabled()
        layers = [m for m in self.model.modules() if isinstance(m, GradientCheckpointingLayer)] if active else []
        for layer in layers:
            layer.training = True
        try:
            yield
        finally:
            for layer in layers:
                layer.training = False

    def _choices(self, model: PreTrainedModel) -> tuple[Choice, Choice]:
        """Between the ways that rollouts and updates may go, and those of the warm-up."""
        if not model.can_generate():
            raise PolicyError(
                f"{type(model).__name__} does not write: it has no generate; use a model with a language head"
            )
        settings = self.settings
        vocabulary = model.config.get_text_config(decoder=True).vocab_size
        against: list[str] = []
        transformer = None
        try:
            transformer = Transformer(model, autocast=self._autocast)
            vocabulary = transformer.vocabulary
        except Exception as error:
            against = [f"cached: {told(error)}"]
            self._sampling = self._never(self._tokenizer.pad_token_id)
        if settings.compile and (transformer is None or not transformer.compiles):
            raise ConfigError(
                f"policy.compile needs a cache of full attention in every layer, which {type(model).__name__} has not"
            )
        limits = {"vocabulary": vocabulary, "max_tokens": settings.update_tokens}
        plain = Plain(model=model, autocast=self._autocast, **limits)
        whole: list[Cached] = []
        if transformer is not None:
            whole = [Cached(transformer=transformer, shared=False, compiled=settings.compile, **limits)]
        shared = [replace(way, shared=True) for way in whole] if self._may_share(transformer) else []
        trial = Trial(
            trace=Trace([], [], []),
            sampling=self._sampling,
            parameters=self.trainable,
            head_bytes=settings.head_bytes,
            end_ids=self._end_ids,
            special=self._tokenizer.all_special_ids,
            checkpointing=self._checkpointing,
        )
        make: Callable[..., Choice] = lambda ways: Choice(ways, plain, trial, self._tolerance, against=against)  # noqa: E731
        return make([*shared, *whole]), make(whole)

    def _may_share(self, transformer: Transformer | None) -> bool:
        wanted, settings = self.settings.share_prefix, self.settings
        can = transformer is not None and transformer.shares_prefix and not settings.gradient_checkpointing
        if wanted and not can:
            why = "gradient checkpointing drops the cache" if settings.gradient_checkpointing else "its cache cannot"
            raise ConfigError(f"policy.share_prefix is true, but {why}; leave it unset")
        return can if wanted is None else wanted

    def _suppressed(self, model: PreTrainedModel, processor: Any) -> Tensor:
        found = {*media_ids(model, processor, self._tokenizer), *self.settings.suppress} - set(self._end_ids.tolist())
        vocabulary = model.config.get_text_config(decoder=True).vocab_size
        kept = sorted(value for value in found if value < vocabulary)
        return torch.tensor(kept, dtype=torch.long, device=model.device)

    def _never(self, pad_id: int | None) -> Sampling:
        """The sampling without the padding token: a model that reads its own masks off its tokens would skip it."""
        if pad_id is None or pad_id in self._end_ids.tolist():
            return self._sampling
        suppressed = torch.cat([self._sampling.suppressed, self._end_ids.new_tensor([pad_id])]).unique()
        return replace(self._sampling, suppressed=suppressed)

    @torch.no_grad()
    def _verify(self, rollout: Rollout) -> None:
        """Refuses, at the first rollout, a model whose likeliest mistake the trial did not see."""
        if self._verified or not bool(rollout.mask_BT.any()):
            return
        trace: Trace = rollout.trace
        row = min(range(len(trace.completions)), key=lambda r: float(trace.completions[r].logprob_T.sum()))
        limits = {"vocabulary": self.way.vocabulary, "max_tokens": self.settings.update_tokens}
        plain = Plain(model=self.model, autocast=self._autocast, fill=self.way.fill, together=False, **limits)
        true_T, _ = logprobs(plain, trace, [row], sampling=self._sampling, head_bytes=self.settings.head_bytes)
        gap = float((true_T.cpu() - trace.completions[row].logprob_T).abs().mean())
        most = max(self._tolerance.value, self._tolerance.most_value)
        if not gap <= most:
            raise PolicyError(
                f"{type(self.model).__name__} called plainly gives log-probabilities that differ by {gap:.1e} from "
                "those of its decoding: its attention is not exact; try policy.attention: eager"
            )
        self._verified = True
