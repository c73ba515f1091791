"""Any transformers language or vision-language model as a policy."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
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
from mmgrpo.policies.language.agreement import TOLERANCES, Trial
from mmgrpo.policies.language.choosing import Choice, candidates_of
from mmgrpo.policies.language.completion import Completion
from mmgrpo.policies.language.decoding import NUMBERS
from mmgrpo.policies.language.drawing import Drawing, Start, begun_by, write
from mmgrpo.policies.language.encoding import Encoded, Encoder
from mmgrpo.policies.language.loading import (
    end_ids,
    language_linears,
    language_parameters,
    load_model,
    suppressed_ids,
)
from mmgrpo.policies.language.plain import Plain
from mmgrpo.policies.language.sampling import Sampling
from mmgrpo.policies.language.scoring import logprobs, supported
from mmgrpo.policies.language.settings import LanguageSettings
from mmgrpo.policies.language.trace import Trace, assembled, sample_of
from mmgrpo.policies.language.values import views_of
from mmgrpo.policies.language.ways import Cached, Way
from mmgrpo.policies.weights import PeftFiles, Weights
from mmgrpo.policy import Keeping, Policy, Supervised
from mmgrpo.types import Evaluation, Example, Plan, Prompt, Rollout, Sample, SupervisedLoss
from mmgrpo.values import ENTROPY, OLD, REFERENCE, Value

WHOLE = Sampling(temperature=1.0, top_k=None, top_p=None, min_p=None, suppressed=torch.empty(0, dtype=torch.long))


class LanguagePolicy(Policy, Supervised, Keeping):
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
        never = suppressed_ids(model, processor, self._tokenizer, settings.suppress, end_ids=self._end_ids.tolist())
        self._sampling = Sampling.of(settings, never)
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
        self._choice, self._teaching = self._choices()
        self._copies: Mapping[str, nn.Module] = {}
        self._frozen: dict[int, tuple[Way, Way]] = {}  # by copy: a way, and the same through the copy
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

    def keep(self, name: str, *, decay: float = 0.0) -> None:
        """Kept adapters are further frozen adapters, kept full weights a further frozen copy of the model."""
        self._weights.keep(name, decay=decay)

    @contextmanager
    def using(self, name: str) -> Iterator[None]:
        """The reference that was never kept is the adapters off, or full weights as they were when first asked for."""
        before, weights = self._copies, self._weights.using(name)
        try:
            with weights as self._copies:
                yield
        finally:
            self._copies = before

    def reference(self) -> AbstractContextManager[None]:
        """``using("reference")``."""
        return self.using(REFERENCE)

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
        drawing = self._drawing(plan)
        encoded = self._encoded(prompts, drawing.length)
        starts = [Start(one, begun) for one, begun in zip(encoded, self._begun(encoded, plan, drawing), strict=True)]
        asked = [(ids[p], id(one)) for p, one in enumerate(encoded)]  # entries of one prompt read it once
        alike = [key if start.begun is None else p for p, (key, start) in enumerate(zip(asked, starts, strict=True))]
        rows = [(p, m) for p, of in enumerate(plan.members_of(len(prompts), group_size)) for m in of]
        carried = [[row] for row in range(len(rows))]  # the rows that carry a completion
        if drawing.greedy:
            carried = [[row for row, (q, _) in enumerate(rows) if q == p] for p in range(len(prompts))]
        first = [rows[carriers[0]] for carriers in carried]
        owners, seeds = [alike.index(alike[p]) for p, _ in first], [derive_seed(seed, ids[p], m) for p, m in first]
        written: dict[int, Completion] = {}
        samples: dict[int, Sample] = {}
        for batch in write(self._now(self.way), starts, owners, seeds, drawing):
            new = {row: completion for number, completion in batch.items() for row in carried[number]}
            written |= new
            samples |= {
                row: sample_of(prompts[p], ids[p], member, new[row], self._tokenizer, plan.sample_values)
                for row, (p, member) in ((row, rows[row]) for row in new)
            }
            plan.hand_over([samples[row] for row in new])
        everything = range(len(rows))
        trace = Trace(encoded, [asked.index(asked[p]) for p, _ in rows], [written[row] for row in everything])
        rollout = assembled(
            trace,
            [samples[row] for row in everything],
            self._tokenizer,
            segment_end=self._segment_end,
            trained=not drawing.greedy,
            keeps_entropy=ENTROPY in plan.values and not drawing.greedy,
        )
        self._verify(rollout)
        return self._rescored(rollout) if self.settings.rescore and not drawing.greedy else rollout

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
        views = views_of(values, self._weights.kept)
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
        with self.using(view):
            return self._scored(trace, rows, mask_NT, entropy=False)[0]

    def supervised_loss(self, examples: Sequence[Example], *, seeds: Sequence[int]) -> SupervisedLoss:
        """Cross-entropy of the examples' texts and their end token, mean over tokens; no randomness is used."""
        if any(example.text is None for example in examples):
            raise DataError("the warm-up of a language policy needs examples with a text")
        encoded = [self._encoder(example.prompt) for example in examples]
        end = torch.tensor([self._encoder.end_id(self._end_ids.tolist())])
        tokens = [torch.cat([self._encoder.target(example.text or ""), end]) for example in examples]
        completions = [Completion.taken(token_T, WHOLE, logprob_T=None) for token_T in tokens]
        trace = Trace(encoded, range(len(encoded)), completions)
        way = self._teaching.see(encoded)
        with self._checkpointing():
            sums = [
                logprobs(way, trace, batch, head_bytes=self.settings.head_bytes)[0].sum()
                for batch in way.batches(trace, range(len(encoded)))
            ]
        num_tokens = sum(len(token_T) for token_T in tokens)
        return SupervisedLoss(mean=-torch.stack(sums).sum() / num_tokens, num_terms=num_tokens)

    @torch.no_grad()
    def _rescored(self, rollout: Rollout) -> Rollout:
        """The rollout with the log-probabilities that an update's forward finds."""
        found_BT = torch.zeros(rollout.shape)
        found = {value: torch.zeros(rollout.shape) for value in rollout.values}
        for part in self.evaluate(rollout, values=tuple(found)):
            assert part.rows is not None
            index = part.rows[:, None], torch.tensor(part.columns)[None]
            found_BT[index] = part.logprob_BT.cpu()
            for value, matrix_BT in found.items():
                matrix_BT[index] = part.values[value].cpu()
        return replace(rollout, old_logprob_BT=found_BT, values=found, num_forwards=2 * rollout.num_forwards)

    def _drawing(self, plan: Plan) -> Drawing:
        settings = self.settings.overridden(plan.settings)
        if unknown := [name for name in plan.sample_values if name not in NUMBERS]:
            raise ConfigError(f"tokens have no sample value {', '.join(unknown)}: known are {', '.join(NUMBERS)}")
        kept = {*plan.sample_values, *(["entropy"] if ENTROPY in plan.values else [])}
        return Drawing(
            sampling=Sampling.of(settings, self._sampling.suppressed) if plan.settings else self._sampling,
            length=settings.max_new_tokens,
            greedy=plan.deterministic,
            numbers=tuple(sorted(kept)),
            batch=settings.rollout_batch,
            end_ids=self._end_ids,
        )

    def _encoded(self, prompts: Sequence[Prompt], length: int) -> list[Encoded]:
        encoded = [self._encoder(prompt) for prompt in prompts]
        for one in encoded:
            self._encoder.require_room(one, length)
        self._choice.see(encoded)
        return encoded

    def _begun(self, encoded: Sequence[Encoded], plan: Plan, drawing: Drawing) -> list[Completion | None]:
        """What each prompt's rows go on from: what the plan continues, else the beginning that the prompt gives."""
        continues = plan.continues or (None,) * len(encoded)
        if len(continues) != len(encoded):
            raise DataError(f"Plan.continues is for {len(continues)} prompts, got {len(encoded)}")
        begun = [
            begun_by(self._encoder, one, continuation, drawing)
            for one, continuation in zip(encoded, continues, strict=True)
        ]
        there = [p for p, one in enumerate(begun) if one is not None]
        if there and isinstance(self.way, Plain) and self.way.translates:
            raise PolicyError(f"{type(self.model).__name__} reads and writes apart: its answers cannot be begun for it")
        trace = Trace([encoded[p] for p in there], range(len(there)), [one for one in begun if one is not None])
        known = supported(self._now(self.way), trace, head_bytes=self.settings.head_bytes).completions
        for p, completion in zip(there, known, strict=True):
            begun[p] = completion
        return begun

    def _scored(
        self, trace: Trace, rows: Sequence[int], mask_NT: Tensor, *, entropy: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Log-probabilities and entropies where the mask holds, 0 elsewhere, (N, T)."""
        with self._checkpointing():
            logprob_M, entropy_M = logprobs(
                self._now(self.way),
                trace,
                rows,
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
        """A way through the model, or through the frozen copy of it that stands in."""
        copied: Any = self._copies.get("model")
        if copied is not None and self._frozen.get(id(copied), (None, None))[0] is not way:
            self._frozen[id(copied)] = (way, way.through(copied))
        return way if copied is None else self._frozen[id(copied)][1]

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

    def _choices(self) -> tuple[Choice, Choice]:
        """Between the ways that rollouts and updates may go, and those of the warm-up."""
        found = candidates_of(self.model, self.settings, self._autocast)
        if not found.whole:
            self._sampling = self._never(self._tokenizer.pad_token_id)
        trial = Trial(
            trace=Trace([], [], []),
            sampling=self._sampling,
            parameters=self.trainable,
            head_bytes=self.settings.head_bytes,
            end_ids=self._end_ids,
            special=self._tokenizer.all_special_ids,
            checkpointing=self._checkpointing,
        )
        every, teaching = (
            Choice(ways, found.plain, trial, self._tolerance, against=found.against)
            for ways in ([*found.shared, *found.whole], found.whole)
        )
        return every, teaching

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
        rows = rollout.mask_BT.any(1).nonzero().flatten().tolist()
        row = min(rows, key=lambda r: float(trace.completions[r].logprob_T.sum()))
        completion = trace.completions[row]
        limits = {"vocabulary": self.way.vocabulary, "max_tokens": self.settings.update_tokens}
        plain = Plain(model=self.model, autocast=self._autocast, fill=self.way.fill, together=False, **limits)
        true_T, _ = logprobs(plain, trace, [row], head_bytes=self.settings.head_bytes)
        gap = float((true_T.cpu() - completion.logprob_T)[completion.decided_T].abs().mean())
        most = max(self._tolerance.value, self._tolerance.most_value)
        if not gap <= most:
            raise PolicyError(
                f"{type(self.model).__name__} called plainly gives log-probabilities that differ by {gap:.1e} from "
                "those of its decoding: its attention is not exact; try policy.attention: eager"
            )
        self._verified = True
