"""Any transformers language or vision-language model as a policy."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel

from mmgrpo.errors import ConfigError, DataError, PolicyError
from mmgrpo.maths.divergences import LOGPROB_DIVERGENCES
from mmgrpo.maths.seeds import derive_seed
from mmgrpo.policies.language.decoding import Completion, complete
from mmgrpo.policies.language.encoding import Encoded, Encoder
from mmgrpo.policies.language.loading import (
    end_ids,
    language_linears,
    language_parameters,
    load_model,
    media_ids,
)
from mmgrpo.policies.language.sampling import Sampling, Support, token_logprobs
from mmgrpo.policies.language.settings import LanguageSettings
from mmgrpo.policies.language.trace import Trace, assembled, sample_of
from mmgrpo.policies.language.transformer import Transformer
from mmgrpo.policies.weights import PeftFiles, Weights
from mmgrpo.policy import Policy, Supervised
from mmgrpo.types import Evaluation, Example, Plan, Prompt, Rollout, Sample

EXACTNESS = {torch.float32: 1e-3, torch.bfloat16: 0.25}
"""How far a stored log-probability may lie from the model's own, called plainly, before the model is refused."""

PLAIN = Sampling(temperature=1.0, top_k=None, top_p=None, min_p=None, suppressed=torch.empty(0, dtype=torch.long))


class LanguagePolicy(Policy, Supervised):
    """A causal language model, or a vision-language model, whose tokens are decisions.

    A prompt, with its pictures, goes through the model once per group in the rollout and once in the update; its
    key-value cache is expanded to the members. Logits exist a chunk of tokens at a time. No part of it is per-model.

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
        if dtype not in EXACTNESS:
            raise ConfigError(f"{dtype} gradients need a loss scaler; load the model in bfloat16 or float32")
        self.model = model
        self.processor = processor
        self.settings = settings
        text = model.config.get_text_config(decoder=True)
        self._encoder = Encoder(processor, settings, context=getattr(text, "max_position_embeddings", None))
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
        self._transformer = Transformer(model, autocast=self._autocast)
        if settings.compile and not self._transformer.compiles:
            raise ConfigError(
                f"policy.compile needs a cache of full attention in every layer, which {type(model).__name__} has not"
            )
        self._frozen: Transformer | None = None
        self._shares = self._may_share()
        self._tolerance: float | None = EXACTNESS[dtype]

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
    def shares_prefix(self) -> bool:
        """Whether updates run a prompt once for all rows that share it."""
        return self._shares

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
        if self._frozen is None:
            frozen: Any = self._weights.frozen_copies()["model"]
            self._frozen = Transformer(frozen, autocast=self._autocast)
        trained, self._transformer = self._transformer, self._frozen
        try:
            yield
        finally:
            self._transformer = trained

    def rollout(self, prompts: Sequence[Prompt], *, group_size: int, seed: int, plan: Plan | None = None) -> Rollout:
        """Writes ``group_size`` completions per prompt; a decision is one token.

        A greedy plan (``stochastic=()``) writes one completion per prompt, which all members carry.
        """
        plan = plan or Plan()
        if plan.stochastic or plan.share_noise or plan.keep_mean:
            raise PolicyError(
                "tokens have no windows, shared noise or means: leave out window, share_noise and recentre"
            )
        ids = plan.prompt_ids or tuple(range(len(prompts)))
        encoded = [self._encoder(prompt) for prompt in prompts]
        drawn = 1 if plan.deterministic else group_size
        carried = group_size // drawn  # rows of the rollout that carry one completion
        keys = [(p, ids[p], member) for p in range(len(prompts)) for member in range(drawn)]
        identities = [(prompts[p], ids[p], member) for p in range(len(prompts)) for member in range(group_size)]
        written: dict[int, Completion] = {}
        samples: dict[int, Sample] = {}
        for batch in self._decode_batches(encoded, drawn):
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
        divergence: str | None = None,
        entropy: bool = False,
    ) -> Iterator[Evaluation]:
        """Streams one slice per batch of rows, all their decisions in it; rows of one prompt stand together."""
        if divergence is not None and divergence not in LOGPROB_DIVERGENCES:
            raise ConfigError(f"unknown divergence {divergence!r} for tokens; known are {sorted(LOGPROB_DIVERGENCES)}")
        chosen = range(len(rollout.samples)) if rows is None else [int(row) for row in rows]
        kept = [row for row in chosen if bool(rollout.mask_BT[row].any())]
        trace: Trace = rollout.trace
        for batch in trace.batches(kept, max_tokens=self.settings.update_tokens, shared=self._shares):
            mask_NT = rollout.mask_BT[batch]
            width = int(mask_NT.any(0).nonzero().max()) + 1
            kl_NT = None
            if divergence is not None:
                with torch.no_grad(), self.reference():
                    other_NT, _ = self._scored(trace, batch, mask_NT[:, :width], entropy=False)
            logprob_NT, entropy_NT = self._scored(trace, batch, mask_NT[:, :width], entropy=entropy)
            if divergence is not None:
                kl_NT = LOGPROB_DIVERGENCES[divergence](logprob_NT, other_NT)
            yield Evaluation(
                columns=range(width),
                logprob_BT=logprob_NT,
                kl_BT=kl_NT,
                entropy_BT=entropy_NT,
                rows=torch.tensor(batch),
                num_forwards=len(batch) * (1 if divergence is None else 2),
            )

    def supervised_loss(self, examples: Sequence[Example], *, seeds: Sequence[int]) -> Tensor:
        """Cross-entropy of the examples' texts and their end token, mean over tokens; no randomness is used."""
        if any(example.text is None for example in examples):
            raise DataError("the warm-up of a language policy needs examples with a text")
        encoded = [self._encoder(example.prompt) for example in examples]
        end = torch.tensor([self._encoder.end_id(self._end_ids.tolist())])
        tokens = [torch.cat([self._encoder.target(example.text or ""), end]) for example in examples]
        completions = [Completion(token_T, torch.zeros(len(token_T)), None, True) for token_T in tokens]
        trace = Trace(encoded, range(len(encoded)), completions)
        batches = trace.batches(range(len(encoded)), max_tokens=self.settings.update_tokens, shared=False)
        with self._checkpointing():
            sums = [self._logprobs(trace, batch, sampling=PLAIN, shared=False)[0].sum() for batch in batches]
        return -torch.stack(sums).sum() / sum(len(token_T) for token_T in tokens)

    @torch.no_grad()
    def _rescored(self, rollout: Rollout) -> Rollout:
        """The rollout with the log-probabilities that an update's forward finds."""
        found_BT = torch.zeros(rollout.shape)
        for part in self.evaluate(rollout):
            assert part.rows is not None
            found_BT[part.rows[:, None], torch.tensor(part.columns)[None]] = part.logprob_BT.cpu()
        return replace(rollout, old_logprob_BT=found_BT, num_forwards=2 * rollout.num_forwards)

    def _decode_batches(self, encoded: Sequence[Encoded], members: int) -> list[list[int]]:
        """Rows that are decoded together: prompts of like length, whole groups where they fit."""
        order = sorted(range(len(encoded)), key=lambda p: encoded[p].length)
        rows = [p * members + member for p in order for member in range(members)]
        size = self.settings.rollout_batch
        size = size - size % members if size > members else size
        if not self._transformer.shares_prefix:
            size = min(size, members)  # one prompt at a time: such caches cannot be joined
        return [rows[start : start + size] for start in range(0, len(rows), size)]

    def _complete(
        self,
        encoded: Sequence[Encoded],
        keys: Sequence[tuple[int, int, int]],
        batch: Sequence[int],
        seed: int,
        plan: Plan,
    ) -> list[Completion]:
        prompts = sorted({keys[row][0] for row in batch})
        with torch.no_grad():
            prefix = self._transformer.prefill([encoded[p] for p in prompts], max_tokens=self.settings.update_tokens)
            prefix = prefix.rows(torch.tensor([prompts.index(keys[row][0]) for row in batch], device=self.model.device))
        T = self.settings.max_new_tokens
        uniform_NT = None
        if not plan.deterministic:
            seeds = [derive_seed(seed, *keys[row][1:]) for row in batch]
            uniform_NT = torch.stack([torch.rand(T, generator=torch.Generator().manual_seed(s)) for s in seeds])
        return complete(
            self._transformer,
            prefix,
            uniform_NT,
            self._sampling,
            end_ids=self._end_ids,
            max_new_tokens=T,
            compiled=self.settings.compile,
        )

    def _scored(
        self, trace: Trace, rows: Sequence[int], mask_NT: Tensor, *, entropy: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Log-probabilities and entropies where the mask holds, 0 elsewhere, (N, T)."""
        with self._checkpointing():
            logprob_M, entropy_M = self._logprobs(
                trace, rows, sampling=self._sampling, shared=self._shares, mask_NT=mask_NT, entropy=entropy
            )
        index = mask_NT.to(logprob_M.device)
        logprob_NT = torch.zeros(mask_NT.shape, device=logprob_M.device).masked_scatter(index, logprob_M)
        if entropy_M is None:
            return logprob_NT, None
        return logprob_NT, torch.zeros_like(logprob_NT).masked_scatter(index, entropy_M)

    def _logprobs(
        self,
        trace: Trace,
        rows: Sequence[int],
        *,
        sampling: Sampling,
        shared: bool,
        mask_NT: Tensor | None = None,
        entropy: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Log-probability of every token of the rows that the mask keeps, one after the other, (M,)."""
        completions = [trace.completions[row] for row in rows]
        lengths_N = torch.tensor([len(completion.token_T) for completion in completions])
        exists_NT = torch.arange(int(lengths_N.max()))[None] < lengths_N[:, None]
        if mask_NT is not None:
            exists_NT = exists_NT[:, : mask_NT.shape[1]] & mask_NT
        T = exists_NT.shape[1]
        tokens = [completion.token_T[:T] for completion in completions]
        device = self._transformer.device
        hidden_NTD = self._hidden(trace, rows, tokens, shared)
        index = exists_NT.to(device)
        token_NT = pad_sequence(tokens, batch_first=True).to(device)
        support = None
        if sampling.truncates:
            rows_of = zip(completions, exists_NT, strict=True)
            support = Support.chained([c.support.at(kept_T) for c, kept_T in rows_of if c.support is not None])
        return token_logprobs(
            hidden_NTD[index],
            token_NT[index],
            self._transformer.logits,
            sampling,
            chunk=self.settings.head_bytes // (4 * self._transformer.vocabulary),
            support=support,
            entropy=entropy,
        )

    def _hidden(self, trace: Trace, rows: Sequence[int], tokens: Sequence[Tensor], shared: bool) -> Tensor:
        """The states that each token of each row is predicted from, (N, T, D)."""
        owners = [trace.prompt_of_B[row] for row in rows]
        if not shared:
            return self._transformer.whole([trace.prompts[owner] for owner in owners], tokens)
        unique = sorted(set(owners))
        device = self._transformer.device
        prefix = self._transformer.prefill(
            [trace.prompts[owner] for owner in unique], max_tokens=self.settings.update_tokens
        ).rows(torch.tensor([unique.index(owner) for owner in owners], device=device))
        token_NT = pad_sequence(list(tokens), batch_first=True).to(device)
        first_N1D = prefix.hidden_ND[:, None]
        if token_NT.shape[1] == 1:
            return first_N1D
        _, later_NTD = self._transformer.extend(prefix, token_NT[:, :-1])
        return torch.cat([first_N1D, later_NTD], dim=1)

    def _checkpointing(self) -> Any:
        active = self.settings.gradient_checkpointing and torch.is_grad_enabled()
        return self._transformer.checkpointing() if active else nullcontext()

    def _may_share(self) -> bool:
        wanted, settings = self.settings.share_prefix, self.settings
        can = self._transformer.shares_prefix and not settings.gradient_checkpointing
        if wanted and not can:
            why = "gradient checkpointing drops the cache" if settings.gradient_checkpointing else "its cache cannot"
            raise ConfigError(f"policy.share_prefix is true, but {why}; leave it unset")
        return can if wanted is None else wanted

    def _suppressed(self, model: PreTrainedModel, processor: Any) -> Tensor:
        found = {*media_ids(model, processor, self._tokenizer), *self.settings.suppress} - set(self._end_ids.tolist())
        vocabulary = model.config.get_text_config(decoder=True).vocab_size
        kept = sorted(value for value in found if value < vocabulary)
        return torch.tensor(kept, dtype=torch.long, device=model.device)

    @torch.no_grad()
    def _verify(self, rollout: Rollout) -> None:
        """Refuses, at the first rollout, a model that says something else when it is called plainly."""
        if self._tolerance is None or not bool(rollout.mask_BT.any()):
            return
        trace: Trace = rollout.trace
        row = min(range(len(trace.completions)), key=lambda r: float(trace.completions[r].logprob_T.sum()))
        prompt, completion = trace.prompts[trace.prompt_of_B[row]], trace.completions[row]
        logits_TV = self._sampling.tempered(self._transformer.true_logits(prompt, completion.token_T))
        if completion.support is not None:
            keep_TV = completion.support.mask(logits_TV.shape[-1], logits_TV.device)
            logits_TV = logits_TV.masked_fill(~keep_TV, -torch.inf)
        true_T = logits_TV.log_softmax(-1).gather(-1, completion.token_T[:, None].to(logits_TV.device))[:, 0].cpu()
        gap = float((true_T - completion.logprob_T).abs().mean())
        if not gap <= self._tolerance:
            raise PolicyError(
                f"{type(self.model).__name__} called plainly gives log-probabilities that differ by {gap:.1e} from "
                "those of its cached decoding: it reads a prompt otherwise when a completion follows (a prefix "
                "language model?), or its attention is not exact; try policy.attention: eager"
            )
        self._tolerance = None
