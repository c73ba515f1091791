"""A model that generates images token by token as a policy."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from mmgrpo.errors import ConfigError, PolicyError
from mmgrpo.policy import (
    SupportsExport,
    SupportsNamedWeights,
    SupportsOffPolicyScoring,
    SupportsPromptCheck,
    SupportsPromptOverride,
    SupportsSupervisedLoss,
    SupportsTraceConcat,
    SupportsWindows,
)
from mmgrpo.types import Evaluation, Example, OffPolicySample, Plan, Prompt, Rollout, SupervisedLoss
from mmgrpo.values import ENTROPY, Value

from ..adapter_formats import PeftFiles
from ..distribution import LOGIT_VALUES, required_views, view_values
from ..merging import merge_adapters
from ..model_source import require_no_loading_settings
from ..quantization import arithmetic_dtype
from ..rescoring import rescore, scatter_to_mask
from ..text_models import checkpointing, language_linears, require_checkpointing
from ..weights import Weights
from .code_sampler import CodeSampler
from .code_trace import CodeScorer, CodeTrace
from .image_codec import ImageCodec, resolve_grid
from .image_codes import CodeRange
from .image_prompts import ImagePromptEncoder
from .image_rollouts import ImageRollouts
from .image_token_loading import load
from .settings import ImageTokensSettings

TOLERANCES = {torch.float32: 1e-3, torch.bfloat16: 0.25}
"""Allowed mean difference of sampling log-probabilities from those of a plain forward, in nats."""


class ImageTokensPolicy(
    SupportsNamedWeights,
    SupportsSupervisedLoss,
    SupportsWindows,
    SupportsOffPolicyScoring,
    SupportsTraceConcat,
    SupportsPromptOverride,
    SupportsExport,
    SupportsPromptCheck,
):
    """A unified transformers model, or a causal one over codes, whose decisions are image tokens.

    A token is sampled from the guided distribution and scored under it, both sides with grad. Tokens that the model
    puts between the tokens of an image are forced: they are no decisions. A prompt runs through the model once per
    group.

    Attributes:
        model: the wrapped model.
        processor: its processor or tokenizer.
        settings: the sampling and training settings.
        weights: the trained weights; LoRA in peft's folder, full weights as ``save_pretrained`` folders.
    """

    settings_type = ImageTokensSettings

    def __init__(
        self,
        model: PreTrainedModel,
        processor: Any,
        settings: ImageTokensSettings | Mapping[str, Any] | None = None,
        *,
        autoencoder: Any = None,
        alone: bool = True,
    ) -> None:
        """Wraps a loaded model; turns dropout off, since rollout and update must use the same policy.

        Args:
            model: Janus, Emu3, Chameleon or similar, or a causal language model whose vocabulary ends in codes, on its
                device.
            processor: its ``AutoProcessor`` or ``AutoTokenizer``.
            settings: ``ImageTokensSettings`` or a mapping of its fields.
            autoencoder: converts between codes and images; None: the model's own.
            alone: whether to train only the parts that generate images; else all but the autoencoder.
        """
        if settings is None or isinstance(settings, Mapping):
            require_no_loading_settings(settings or {}, "revision", "dtype", "attention")
            settings = ImageTokensSettings(**(settings or {}))
        dtype = arithmetic_dtype(model)
        if dtype not in TOLERANCES:
            raise ConfigError(f"an image-token model does not support {dtype}: load it in bfloat16 or float32")
        self.model = model
        self.processor = processor
        self.settings = settings
        model_codec = getattr(model.base_model, "vqmodel", None)
        autoencoder = model_codec if autoencoder is None else autoencoder
        if autoencoder is None:
            raise ConfigError(f"{type(model).__name__} has no autoencoder for its codes: set policy.autoencoder")
        if isinstance(autoencoder, nn.Module):
            autoencoder.to(model.device)
        codec_parameters = [
            p for part in (model_codec, autoencoder) if isinstance(part, nn.Module) for p in part.parameters()
        ]
        mapping = getattr(model.base_model, "vocabulary_mapping", None)
        grid = resolve_grid(settings.grid, autoencoder, processor, getattr(mapping, "eol_token_id", None))
        self.weights: Weights = Weights({"model": model}, settings.lora, language_linears(model), PeftFiles())
        if settings.adapter is not None:
            self.weights.load_initial(Path(settings.adapter))
        self._autocast = dtype if settings.lora is None and dtype != torch.float32 else None
        self._sampler = CodeSampler(
            model, grid, _range(model, processor, settings, autoencoder), autocast=self._autocast
        )
        drawing = [model.get_decoder(), model.get_input_embeddings(), *self._sampler.codes.parts]
        parts = drawing if alone else [model]
        used = {parameter for part in parts for parameter in part.parameters()} - set(codec_parameters)
        for parameter in chain(model.parameters(), codec_parameters):
            parameter.requires_grad_(parameter.requires_grad and parameter in used)
        if settings.gradient_checkpointing:
            require_checkpointing(model)
        self._rollouts = ImageRollouts(
            encoder=ImagePromptEncoder(model, processor, settings, grid),
            codec=ImageCodec(autoencoder, grid, processor, encoder=model_codec),
            settings=settings,
            guidance=getattr(model.generation_config, "guidance_scale", None) or 1.0,
            scoring=self._scoring,
        )
        self._frozen: dict[int, CodeSampler] = {}  # by copy: the same through it
        self._tolerance = TOLERANCES[dtype]
        self._verified = False

    @classmethod
    def from_config(
        cls, settings: ImageTokensSettings | Mapping[str, Any], *, device: str | torch.device = "cpu"
    ) -> ImageTokensPolicy:
        """Loads model, processor and autoencoder (or calls ``python:module:function``) and wraps them."""
        if isinstance(settings, Mapping):
            settings = ImageTokensSettings(**settings)
        model, processor, autoencoder = load(settings)
        model.to(device)  # pyrefly: ignore[bad-argument-type] (its stub hides the argument)
        return cls(model, processor, settings, autoencoder=autoencoder)

    @property
    def num_decisions(self) -> int:
        """Number of codes of an image."""
        return self._sampler.grid.num_codes

    def save(self, directory: Path) -> None:
        """Writes the weights and the processor."""
        self.weights.save(directory)
        self.processor.save_pretrained(directory if self.weights.lora else directory / "model")

    def export(self, directory: Path, *, dtype: str | None = None) -> None:
        """The model and its processor by ``save_pretrained``."""
        merge_adapters(self.weights, dtype)
        self.model.save_pretrained(directory)
        self.processor.save_pretrained(directory)

    def concat_traces(self, traces: Sequence[Any]) -> CodeTrace:
        """The rows of all traces."""
        trace_fields = [(trace.prompts, trace.completions) for trace in traces]
        return CodeTrace(*([row for part in parts for row in part] for parts in zip(*trace_fields, strict=True)))

    def check_prompt(self, prompt: Prompt) -> None:
        """Raises DataError for a prompt that cannot be encoded."""
        self._rollouts.encoder(prompt)

    def rollout(self, prompts: Sequence[Prompt], *, group_size: int, seed: int, plan: Plan | None = None) -> Rollout:
        """Generates ``group_size`` images per prompt; a decision is one image token.

        Decisions that are not stochastic in the plan take the likeliest token. A greedy plan (``stochastic=()``)
        generates one image per prompt, copied to all members.
        """
        plan = plan or Plan()
        rollout = self._rollouts.sample(prompts, group_size=group_size, seed=seed, plan=plan)
        self._verify(rollout)
        if not self.settings.rescore or plan.deterministic:
            return rollout
        again = rescore(self, rollout, values=tuple(rollout.values))
        return replace(again, num_forwards=2 * rollout.num_forwards)

    def read(self, samples: Sequence[OffPolicySample], *, seed: int, plan: Plan | None = None) -> Rollout:
        """Rows of off-policy images: their tokens, or else the codes of the image from the autoencoder.

        Missing log-probabilities are computed by the current policy, and with them the entropy if the plan requests it.
        """
        del seed  # reading takes no random numbers
        plan = plan or Plan()
        rollout = self._rollouts.read(samples, plan=plan)
        unscored = [row for row, sample in enumerate(samples) if sample.old_logprob_T is None]
        if unscored:
            stored_values = tuple(value for value in plan.values if value == ENTROPY and len(unscored) == len(samples))
            rollout = replace(rescore(self, rollout, unscored, values=stored_values), num_forwards=len(unscored))
        plan.emit_samples(rollout.samples)
        return rollout

    def override_prompts(self, rollout: Rollout, prompts: Sequence[Prompt]) -> Rollout:
        """The same codes under other prompts, of this policy or of one with the same codes."""
        return self._rollouts.override_prompts(rollout, prompts)

    def evaluate(
        self,
        rollout: Rollout,
        rows: Sequence[int] | Tensor | None = None,
        *,
        values: Collection[Value] = (),
    ) -> Iterator[Evaluation]:
        """Streams one slice per batch of rows, with all their decisions; rows of one prompt are adjacent.

        Supported values: ``LOGIT_VALUES`` of the guided distribution, and of another view its log-probability and the
        divergences k1, k2 and k3.
        """
        views, trace = required_views(values, self.weights.names, current_names=LOGIT_VALUES), rollout.trace
        unviewed_values = [value for value in values if value.view is None]
        requested = range(len(rollout.samples)) if rows is None else [int(row) for row in rows]
        trained_rows = [row for row in requested if bool(rollout.mask_BT[row].any())]
        for batch in trace.batches(trained_rows, max_tokens=self.settings.update_tokens):
            mask_NT = rollout.mask_BT[batch]
            mask_NT = mask_NT[:, : int(mask_NT.any(0).nonzero().max()) + 1]
            other = {view: self._of_view(view, trace, batch, mask_NT) for view in views}
            logprob_NT, values_NT = self._scored(trace, batch, mask_NT, unviewed_values)
            sides = sum(1 + trace.completions[row].sampling.guides for row in batch)
            yield Evaluation(
                columns=range(mask_NT.shape[1]),
                logprob_BT=logprob_NT,
                values=values_NT | view_values(values, logprob_NT, other),
                rows=torch.tensor(batch),
                num_forwards=sides * (1 + len(views)),
            )

    def supervised_loss(self, examples: Sequence[Example], *, seeds: Sequence[int]) -> SupervisedLoss:
        """Cross-entropy of the codes of the examples' images, mean over codes, without guidance.

        A share of the examples, by their seeds, is trained without its prompt.
        """
        trace = self._rollouts.supervised_trace(examples, seeds)
        rows, T = range(len(examples)), self.num_decisions
        batches = trace.batches(rows, max_tokens=self.settings.update_tokens)
        sums = [self._scored(trace, some, torch.ones(len(some), T, dtype=torch.bool))[0].sum() for some in batches]
        return SupervisedLoss(mean=-torch.stack(sums).sum() / (len(rows) * T), num_terms=len(rows) * T)

    @torch.no_grad()
    def _of_view(self, view: str, trace: CodeTrace, rows: Sequence[int], mask_NT: Tensor) -> Tensor:
        with self.weights.using(view):
            return self._scored(trace, rows, mask_NT)[0]

    def _scored(
        self, trace: CodeTrace, rows: Sequence[int], mask_NT: Tensor, values: Sequence[Value] = ()
    ) -> tuple[Tensor, dict[Value, Tensor]]:
        """Log-probabilities and values where the mask is True, 0 elsewhere, (N, T)."""
        with checkpointing(self.model, self.settings.gradient_checkpointing):
            logprob_M, values_M = self._scoring().logprobs(trace, rows, mask_NT, values)
        logprob_NT, *values_M = (scatter_to_mask(mask_NT, each_M) for each_M in (logprob_M, *values_M))
        return logprob_NT, dict(zip(values, values_M, strict=True))

    def _scoring(self, *, shared: bool | None = None) -> CodeScorer:
        """The scorer with the model, or with the frozen copy that replaces it."""
        copied: Any = self.weights.active_copies.get("model")
        if copied is not None and id(copied) not in self._frozen:
            self._frozen[id(copied)] = self._sampler.with_model(copied)
        sampler = self._sampler if copied is None else self._frozen[id(copied)]
        share_prefix = self.settings.share_prefix if shared is None else shared
        return CodeScorer(sampler=sampler, shared=share_prefix, head_bytes=self.settings.head_bytes)

    @torch.no_grad()
    def _verify(self, rollout: Rollout) -> None:
        """Compares the unlikeliest row of the first rollout with one plain forward; PolicyError if they differ."""
        if self._verified or not bool(rollout.mask_BT.any()):
            return
        row = int(rollout.old_logprob_BT.sum(1).argmin())
        mask_1T = rollout.mask_BT[[row]]
        true_M, _ = self._scoring(shared=False).logprobs(rollout.trace, [row], mask_1T)
        gap = float((true_M.cpu() - rollout.old_logprob_BT[[row]][mask_1T]).abs().mean())
        if not gap <= self._tolerance:
            raise PolicyError(
                f"{type(self.model).__name__} samples with log-probabilities that differ by {gap:.1e} from those of a "
                "plain forward: its attention is not exact; try policy.attention: eager"
            )
        self._verified = True


def _range(model: PreTrainedModel, processor: Any, settings: ImageTokensSettings, autoencoder: Any) -> CodeRange:
    """The codes of a vocabulary without a mapping: all ids after the tokenizer's own."""
    tokenizer = getattr(processor, "tokenizer", processor)
    first = len(tokenizer) if settings.first_code is None else settings.first_code
    book = getattr(autoencoder, "quantize", autoencoder)
    sizes = (getattr(book, name, None) for name in ("n_e", "num_embeddings", "num_codes"))
    rest = model.config.get_text_config(decoder=True).vocab_size - first
    return CodeRange(first, next((size for size in sizes if isinstance(size, int)), rest))
