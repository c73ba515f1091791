"""Any model that fills in hidden tokens as a policy: masked language models, and AmusedPipeline."""

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
from ..overriding import override_settings
from ..rescoring import rescore
from ..weights import Weights
from .masked_loading import load, predictor_of
from .masked_records import assembled, parts_of, read_again, sampled_records
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
    """A model of hidden tokens, whose reveals are decisions.

    A sample begins hidden. At each reveal tokens are drawn at all hidden places and some of them are shown; what is
    scored is how likely those were in that state, which is seen again in the update. No part of it is per-model.

    Attributes:
        predictor: the model as it is asked.
        settings: how it fills in and what is trained.
    """

    settings_type = MaskedSettings

    def __init__(self, *parts: Any, settings: MaskedSettings | Mapping[str, Any] | None = None) -> None:
        """Wraps live parts; dropout is off from now on, and everything but what is trained is frozen.

        Args:
            *parts: an ``AmusedPipeline``; or a masked language model, its tokenizer and, for pictures, a ``VQModel``.
            settings: ``MaskedSettings`` or a mapping of its fields.
        """
        if settings is None or isinstance(settings, Mapping):
            settings = MaskedSettings(**(settings or {}))
        self.settings = settings
        self.predictor = predictor_of(parts, settings)
        for module in self.predictor.facts.frozen:
            module.requires_grad_(False).eval()
        dtype = next(next(iter(self.predictor.facts.modules.values())).parameters()).dtype
        if dtype == torch.float16:
            raise ConfigError("float16 gradients underflow without a loss scaler; load it in bfloat16 or float32")
        facts = self.predictor.facts
        self.weights = Weights(facts.modules, settings.lora, facts.targets, facts.files)
        if settings.adapter is not None:
            self.weights.load_initial(Path(settings.adapter))
        self._autocast = dtype if settings.lora is None and dtype != torch.float32 else None
        self._reveals = self._reveals_of(settings)

    @classmethod
    def from_config(
        cls, settings: MaskedSettings | Mapping[str, Any], *, device: str | torch.device = "cpu"
    ) -> MaskedPolicy:
        """Loads what the settings name from a path or hub id (or calls ``python:module:function``) and wraps it."""
        if isinstance(settings, Mapping):
            settings = MaskedSettings(**settings)
        parts = load(settings)
        return cls(*(part.to(device) if hasattr(part, "to") else part for part in parts), settings=settings)

    @property
    def num_decisions(self) -> int:
        """The reveals of a sample. Raises ConfigError where single tokens are decisions."""
        if self.settings.decision == "token":
            raise ConfigError("windows are laid over reveals: set policy.decision: reveal")
        return len(self._reveals)

    def save(self, directory: Path) -> None:
        """LoRA as peft or diffusers have it, full weights as ``save_pretrained`` folders, a tokenizer beside."""
        self.weights.save(directory)
        if self.predictor.facts.beside is not None:
            (name,) = self.predictor.facts.modules
            self.predictor.facts.beside.save_pretrained(directory if self.settings.lora else directory / name)

    def export(self, directory: Path, *, dtype: str | None = None) -> None:
        """The model of transformers and its tokenizer by ``save_pretrained``."""
        facts = self.predictor.facts
        if facts.beside is None:
            raise ConfigError(
                "a masked pipeline is not written as a whole: its checkpoints hold adapters that diffusers loads, or "
                "the transformer as save_pretrained has it"
            )
        (model,) = merge_adapters(self.weights, dtype).values()
        model.save_pretrained(directory)  # pyright: ignore[reportCallIssue] (the stub of a module hides it)
        facts.beside.save_pretrained(directory)

    def supervised_loss(self, examples: Sequence[Example], *, seeds: Sequence[int]) -> SupervisedLoss:
        """Cross-entropy of a random number of hidden tokens; a mean over examples."""
        with self._computing():
            mean = supervised_loss(self.predictor, self._modules, examples, seeds)
        return SupervisedLoss(mean=mean, num_terms=len(examples))

    def check_prompt(self, prompt: Prompt) -> None:
        """Raises DataError for a prompt that cannot be encoded."""
        self.predictor.condition(prompt)

    def rollout(self, prompts: Sequence[Prompt], *, group_size: int, seed: int, plan: Plan | None = None) -> Rollout:
        """Fills in ``group_size`` samples per prompt; a decision is a token that is shown, in the order of the showing.

        With ``decision: reveal`` it is all that a reveal shows, and ``plan.stochastic`` says which of them draw. A plan
        without any fills in the likeliest tokens, once per prompt, or draws at ``evaluation_temperature``.
        """
        plan = plan or Plan()
        _require_drawable(plan)
        settings = override_settings(self.settings, plan.settings, self.settings.of_a_rollout)
        ids = plan.prompt_ids or tuple(range(len(prompts)))
        rows = [(p, m) for p, members in enumerate(plan.members_of(len(prompts), group_size)) for m in members]
        drawing, sampler = self._sampler(settings, plan)
        carried = [[row] for row in range(len(rows))]  # the rows that carry what is filled in once
        if sampler.stochastic == ():
            carried = [[row for row, (q, _) in enumerate(rows) if q == p] for p in range(len(prompts))]
        first = [rows[carriers[0]] for carriers in carried]
        conditions = [self.predictor.condition(prompt) for prompt in prompts]
        filled: dict[int, UnmaskedAnswers] = {}
        samples: dict[int, Sample] = {}
        for batch in batches_of_kind([conditions[p].kind for p, _ in first], self.settings.rollout_batch):
            own = [conditions[first[n][0]] for n in batch]
            seeds = [derive_seed(seed, ids[first[n][0]], first[n][1]) for n in batch]
            with self._computing():
                found = unmask(self.predictor, self._modules, own, seeds, sampler)
            carriers = [(place, row) for place, n in enumerate(batch) for row in carried[n]]
            bare = [self._bare(prompts, ids, rows[row], found, place, plan) for place, row in carriers]
            new = self.predictor.samples(bare, found.token_NL[[place for place, _ in carriers]])
            for (place, row), sample in zip(carriers, new, strict=True):
                filled[row], samples[row] = found.row(place), sample
            plan.emit_samples(new)
        whole = UnmaskedAnswers.joined([filled[row] for row in range(len(rows))])
        condition_B = torch.tensor([p for p, _ in rows])
        trace = MaskedTrace(
            conditions=conditions,
            token_BL=whole.token_NL,
            looks=unmasking_passes(condition_B, whole.order_NL, [reveal.count for reveal in sampler.reveals]),
            pooled=settings.reduction if settings.decision == "reveal" else None,
            drawing=drawing,
        )
        sampled_T = _drawn_columns(trace, plan)
        rollout = assembled(
            [(torch.arange(len(rows)), trace)],
            [samples[row] for row in range(len(rows))],
            [trace.mask_BT() & sampled_T],
            sampled_records(trace, whole.order_NL, sampled_T),
        )
        return replace(
            rollout,
            old_logprob_BT=_pooled(whole.logprob_NL, trace),
            values={ENTROPY: _pooled(whole.entropy_NL, replace(trace, pooled=trace.pooled and "mean"))},
            num_forwards=len(first) * len(sampler.reveals),
        )

    def read(self, samples: Sequence[OffPolicySample], *, seed: int, plan: Plan | None = None) -> Rollout:
        """Answers hidden again as ``policy.reading`` says, by their tokens, or else by their text or picture.

        A decision is a token under a masking, or what a masking adds to a bound; of a sample with a record it is what
        that says. Log-probabilities that are given are those of these decisions.
        """
        plan = plan or Plan()
        if any(one.num_forced for one in samples):
            raise DataError("an answer that is hidden again has no beginning that could be forced: num_forced is 0")
        settings = override_settings(self.settings, plan.settings, self.settings.of_a_rollout)
        tokens = [self._tokens(one.sample) for one in samples]
        samples = [
            replace(one, sample=replace(one.sample, tokens=token_L.tolist())) if one.sample.tokens is None else one
            for one, token_L in zip(samples, tokens, strict=True)
        ]
        rollout = read_again(
            self.predictor,
            samples,
            tokens,
            settings.reading,
            TokenSampling(temperature=settings.temperature, guidance_scale=settings.guidance_scale),
            seed=seed,
        )
        rollout = replace(rollout, origin_B=torch.tensor([int(one.origin) for one in samples]))
        num_forwards = sum(
            int(rollout.mask_BT[row_N][:, list(columns)].any(1).sum())
            for row_N, trace in parts_of(rollout.trace)
            for columns in trace.columns
        )
        rollout = replace(rescore(self, rollout, values=(ENTROPY,)), num_forwards=num_forwards)
        for row, one in enumerate(samples):
            if one.old_logprob_T is not None:
                num = rollout.num_decisions(row)
                if one.old_logprob_T.shape != (num,):
                    raise DataError(f"old_logprob_T must be {num} numbers, one of each decision")
                rollout.old_logprob_BT[row, :num] = one.old_logprob_T
        plan.emit_samples(rollout.samples)
        return rollout

    def override_prompts(self, rollout: Rollout, prompts: Sequence[Prompt]) -> Rollout:
        """The same maskings of the same answers behind other prompts, of which nothing is hidden."""
        if not isinstance(rollout.trace, MaskedTrace | MaskedTraces):
            raise ConfigError("a masked policy looks at what was hidden: the view is of a policy of another kind")
        made = {id(prompt): self.predictor.condition(prompt) for prompt in prompts}
        place = {key: number for number, key in enumerate(made)}
        parts = []
        for row_N, trace in parts_of(rollout.trace):
            if len(trace.conditions) > len(row_N):
                raise ConfigError(
                    "a prompt that is hidden in part has no view behind other prompts: set prompt_share to 0"
                )
            condition_N = torch.tensor([place[id(prompts[row])] for row in row_N.tolist()])
            looks = [replace(look, condition_B=condition_N) for look in trace.looks]
            parts.append((row_N, replace(trace, conditions=list(made.values()), looks=looks)))
        return replace(rollout, trace=parts[0][1] if len(parts) == 1 else MaskedTraces(parts))

    def evaluate(
        self,
        rollout: Rollout,
        rows: Sequence[int] | Tensor | None = None,
        *,
        values: Collection[Value] = (),
    ) -> Iterator[Evaluation]:
        """Streams one slice per reveal or masking and batch of rows.

        Of values there are those of ``distribution.OF_LOGITS``, means over what is one decision, and of the reference
        and of kept weights the log-probability and the divergences k1, k2 and k3.
        """
        chosen = range(len(rollout.samples)) if rows is None else [int(row) for row in rows]
        for row_N, trace in parts_of(rollout.trace):
            number = {row: n for n, row in enumerate(row_N.tolist())}
            own = [number[row] for row in chosen if row in number]
            for found in self._evaluated(trace, rollout.mask_BT[row_N], own, values):
                assert found.rows is not None
                yield replace(found, rows=row_N[found.rows])

    def _evaluated(
        self, trace: MaskedTrace, mask_NT: Tensor, chosen: Sequence[int], values: Collection[Value]
    ) -> Iterator[Evaluation]:
        """The slices of the rows of one trace, by their numbers in it."""
        views = required_views(values, self.weights.names, current_names=LOGIT_VALUES)
        own = [value for value in values if value.view is None]
        for look, columns in zip(trace.looks, trace.columns, strict=True):
            kept_N = mask_NT[:, list(columns)].any(1)
            kept = [row for row in chosen if bool(kept_N[row])]
            kinds = [trace.conditions[int(look.condition_B[row])].kind for row in kept]
            for places in batches_of_kind(kinds, self.settings.update_batch):
                batch = [kept[place] for place in places]
                others = {view: self._of_view(view, trace, look, batch) for view in views}
                now = self._scored(trace, look, batch, own)
                yield Evaluation(
                    columns=columns,
                    logprob_BT=now.logprob,
                    values={**now.values, **view_values(values, now.logprob, others)},
                    rows=torch.tensor(batch),
                    num_forwards=len(batch) * (1 + len(views)),
                )

    @property
    def _modules(self) -> Mapping[str, nn.Module]:
        """What is asked now: the modules, or the frozen copies that stand in for them."""
        return {**self.predictor.facts.modules, **self.weights.active_copies}

    def _reveals_of(self, settings: MaskedSettings) -> list[UnmaskingStep]:
        facts = self.predictor.facts
        return unmasking_steps(
            facts.length,
            num_steps=settings.num_steps or facts.num_steps,
            block_length=settings.block_length,
            schedule=settings.schedule or facts.schedule,
            noise=facts.order_noise if settings.order_noise is None else settings.order_noise,
        )

    def _sampler(self, settings: MaskedSettings, plan: Plan) -> tuple[TokenSampling, UnmaskingSampler]:
        """How a plan is drawn, and what its tokens are scored by."""
        drawing = TokenSampling(temperature=settings.temperature, guidance_scale=settings.guidance_scale)
        reveals = self._reveals_of(settings)
        if plan.stochastic and settings.decision == "token":
            raise ConfigError("windows are laid over reveals: set policy.decision: reveal")
        if not plan.deterministic or plan.for_rescoring:
            stochastic = None if plan.for_rescoring else plan.stochastic
            return drawing, UnmaskingSampler(
                reveals=reveals, order=settings.order, drawing=drawing, stochastic=stochastic
            )
        warm = settings.evaluation_temperature
        shown = replace(drawing, temperature=warm or drawing.temperature)
        return shown, UnmaskingSampler(
            reveals=reveals, order=settings.order, drawing=shown, stochastic=None if warm else ()
        )

    def _bare(
        self,
        prompts: Sequence[Prompt],
        ids: Sequence[int],
        row: tuple[int, int],
        found: UnmaskedAnswers,
        place: int,
        plan: Plan,
    ) -> Sample:
        """A sample without its answer."""
        known = {"entropy": found.entropy_NL, "certainty": found.certainty_NL}
        if unknown := sorted(set(plan.sample_values) - set(known)):
            raise ConfigError(f"samples of hidden tokens have no {', '.join(unknown)}; they have {', '.join(known)}")
        return Sample(
            prompts[row[0]],
            group=ids[row[0]],
            member=row[1],
            logprob=None if plan.deterministic else float(found.logprob_NL[place].mean()),
            values={name: float(known[name][place].mean()) for name in plan.sample_values},
        )

    def _tokens(self, sample: Sample) -> Tensor:
        if sample.tokens is None:
            return self.predictor.target(Example(sample.prompt, text=sample.text, image=sample.image))
        if len(sample.tokens) != self.predictor.facts.length:
            raise DataError(
                f"an answer has {self.predictor.facts.length} tokens, got a sample with {len(sample.tokens)}"
            )
        return torch.tensor(list(sample.tokens))

    def _scored(
        self, trace: MaskedTrace, look: MaskedPass, rows: Sequence[int], values: Sequence[Value] = ()
    ) -> ScoredPass:
        with self._computing():
            return score_pass(self.predictor, self._modules, trace, look, rows, values)

    @torch.no_grad()
    def _of_view(self, view: str, trace: MaskedTrace, look: MaskedPass, rows: Sequence[int]) -> Tensor:
        with self.weights.using(view):
            return self._scored(trace, look, rows).logprob

    def _computing(self) -> AbstractContextManager[Any]:
        if self._autocast is None:
            return nullcontext()
        device = next(iter(self.trainable)).device
        return torch.autocast(device.type, dtype=self._autocast)


def _require_drawable(plan: Plan) -> None:
    """Raises PolicyError for what hidden answers cannot be drawn with."""
    if plan.environment is not None or plan.continues is not None:
        raise PolicyError("an answer is filled in as a whole, in one turn: leave out rollout.environment and branches")
    if plan.splits or plan.same_initial_noise:
        raise PolicyError(
            "every answer begins hidden as a whole: leave out rollout.tree and rollout.same_initial_noise"
        )


def _pooled(value_BL: Tensor, trace: MaskedTrace) -> Tensor:
    """Numbers of tokens, in the order of their showing, as numbers of decisions."""
    if trace.pooled is None:
        return value_BL
    parts = value_BL.split([look.place_Bn.shape[1] for look in trace.looks], dim=1)
    pool = torch.sum if trace.pooled == "sum" else torch.mean
    return torch.cat([pool(part, dim=1, keepdim=True) for part in parts], dim=1)


def _drawn_columns(trace: MaskedTrace, plan: Plan) -> Tensor:
    """(T,) bool, the decisions that the plan draws at random."""
    if plan.stochastic is None or plan.deterministic:
        return torch.full((trace.num_decisions,), not plan.deterministic)
    return torch.isin(torch.arange(len(trace.looks)), torch.tensor(plan.stochastic, dtype=torch.long))
