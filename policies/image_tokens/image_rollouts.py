"""Image-token rollouts: rows that the policy generates, and off-policy rows.

Axes: B rows, T codes of each, n rows of a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from mmgrpo.errors import ConfigError, DataError, PolicyError
from mmgrpo.maths.prefixes import prefix_states
from mmgrpo.maths.seeds import derive_seed
from mmgrpo.types import Example, OffPolicySample, Plan, Prompt, Rollout, Sample
from mmgrpo.values import ENTROPY, OLD

from ..completion import Completion, recorded_samplings
from ..sampling import SamplingDistribution
from ..token_buffer import TokenBuffer
from .code_sampler import CodeSampler
from .code_trace import CodeScorer, CodeTrace
from .image_codec import ImageCodec
from .image_prompts import EncodedImagePrompt, ImagePromptEncoder
from .settings import ImageTokensSettings

NOTHING = torch.empty(0, dtype=torch.long)
UNTRUNCATED = SamplingDistribution(temperature=1.0, top_k=None, top_p=None, min_p=None, suppressed=NOTHING)
NUMBERS = ("certainty", "entropy")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ImageRollouts:
    """Makes the rows of rollouts.

    Attributes:
        encoder: encoder of prompts.
        codec: decoder and encoder of images.
        settings: settings of the policy.
        guidance: guidance scale if the settings have none.
        scoring: returns the current scorer.
    """

    encoder: ImagePromptEncoder
    codec: ImageCodec
    settings: ImageTokensSettings
    guidance: float
    scoring: Callable[[], CodeScorer]

    def sample(self, prompts: Sequence[Prompt], *, group_size: int, seed: int, plan: Plan) -> Rollout:
        """Rows that the policy generates now; a greedy plan has one row per prompt, copied to all members."""
        self._require(plan)
        ids = plan.prompt_ids or tuple(range(len(prompts)))
        rows = [(p, m) for p, numbers in enumerate(plan.members_of(len(prompts), group_size)) for m in numbers]
        carriers_of = [[row] for row in range(len(rows))]  # the rows that hold the prefix that is sampled once
        if plan.deterministic:
            carriers_of = [[row for row, (q, _) in enumerate(rows) if q == p] for p in range(len(prompts))]
        first_rows = [rows[carriers[0]] for carriers in carriers_of]
        encoded = [self.encoder(prompt) for prompt in prompts]
        seeds = [derive_seed(seed, ids[p], member) for p, member in first_rows]
        completions: dict[int, Completion] = {}
        samples: dict[int, Sample] = {}
        for batch in self._written([encoded[p] for p, _ in first_rows], seeds, plan):
            images = self.codec.decode(torch.stack([completion.token_T for completion in batch.values()]))
            finished = []
            for (number, completion), image in zip(batch.items(), images, strict=True):
                for row in carriers_of[number]:
                    p, member = rows[row]
                    sample = Sample(prompts[p], group=ids[p], member=member, image=image)
                    completions[row], samples[row] = completion, _sample(sample, completion, plan.sample_values)
                    finished.append(samples[row])
            plan.emit_samples(finished)
        all_rows = range(len(rows))
        trace = CodeTrace([encoded[p] for p, _ in rows], [completions[row] for row in all_rows])
        return self._assembled(trace, [samples[row] for row in all_rows], plan)

    def read(self, samples: Sequence[OffPolicySample], *, plan: Plan) -> Rollout:
        """Off-policy rows; missing log-probabilities are 0."""
        self._require(plan)
        samplings = recorded_samplings(samples, self._sampling(plan))
        codes = self._codes_of(samples)
        completions = [
            Completion.recorded(code_T, sampling, logprob_T=sample.old_logprob_T)
            for sample, code_T, sampling in zip(samples, codes, samplings, strict=True)
        ]
        trace = CodeTrace([self.encoder(sample.sample.prompt) for sample in samples], completions)
        trace = self.scoring().supported(trace, max_tokens=self.settings.update_tokens)
        row_samples = [
            replace(
                sample.sample,
                tokens=code_T.tolist(),
                image=sample.sample.image or self.codec.decode(code_T[None])[0],
            )
            for sample, code_T in zip(samples, codes, strict=True)
        ]
        rollout = self._assembled(trace, row_samples, replace(plan, values=()), mask_BT=self._sampled(samples))
        return replace(rollout, source_B=torch.tensor([sample.source for sample in samples]), num_forwards=0)

    def override_prompts(self, rollout: Rollout, prompts: Sequence[Prompt]) -> Rollout:
        """``SupportsPromptOverride.override_prompts``: the same codes, under their sampling distribution."""
        if not isinstance(rollout.trace, CodeTrace):
            raise ConfigError(
                "image tokens score image-token rollouts only, and this rollout is of another kind of policy"
            )
        trace = replace(rollout.trace, prompts=[self.encoder(prompt) for prompt in prompts])
        return replace(rollout, trace=trace)

    def supervised_trace(self, examples: Sequence[Example], seeds: Sequence[int]) -> CodeTrace:
        """Examples as rows, some of them without their prompt. Raises DataError for examples without an image."""
        images = [example.image for example in examples if example.image is not None]
        if len(images) < len(examples):
            raise DataError("the warm-up of a policy of image tokens needs examples with an image")
        codes = self.codec.encode(images)
        encoded = []
        for example, seed in zip(examples, seeds, strict=True):
            encoded_prompt = self.encoder(example.prompt)
            share = float(torch.rand(1, generator=torch.Generator().manual_seed(seed)))
            encoded.append(encoded_prompt.dropped if share < self.settings.caption_dropout else encoded_prompt)
        return CodeTrace(encoded, [Completion.recorded(code_T, UNTRUNCATED, logprob_T=None) for code_T in codes])

    def _written(
        self, prompts: Sequence[EncodedImagePrompt], seeds: Sequence[int], plan: Plan
    ) -> Iterator[dict[int, Completion]]:
        """Generated rows, batch by batch; decision t of a row uses the t-th random number of its seed."""
        sampler: CodeSampler = self.scoring().sampler
        sampling, T = self._sampling(plan), sampler.grid.num_codes
        statistics = {*plan.sample_values, *(value.name for value in plan.values if value == ENTROPY)}
        random_T = None
        if plan.stochastic is not None:
            random_T = torch.zeros(T, dtype=torch.bool)
            random_T[list(plan.stochastic)] = True
        for start in range(0, len(prompts), self.settings.rollout_batch):
            rows = range(start, min(start + self.settings.rollout_batch, len(prompts)))
            uniforms = [torch.rand(T, generator=torch.Generator().manual_seed(seeds[row])) for row in rows]
            buffer = TokenBuffer(
                sampling,
                limit_N=torch.full((len(rows),), T),
                device=sampler.device,
                uniform_NT=None if plan.deterministic else torch.stack(uniforms),
                random_T=random_T,
                numbers=tuple(sorted(statistics)),
            )
            sampler.write([prompts[row] for row in rows], sampling, buffer)
            completions = buffer.completions(NOTHING.to(sampler.device))
            yield {row: replace(completion, finished=True) for row, completion in zip(rows, completions, strict=True)}

    def _sampled(self, samples: Sequence[OffPolicySample]) -> Tensor:
        """(B, T) bool, the codes that were sampled: all of them, or those of a row's window."""
        every_T = torch.ones(self.codec.grid.num_codes, dtype=torch.bool)
        return torch.stack([(sample.record or {}).get("sampled", every_T) for sample in samples])

    def _assembled(
        self, trace: CodeTrace, samples: Sequence[Sample], plan: Plan, *, mask_BT: Tensor | None = None
    ) -> Rollout:
        code_BT, grid = trace.code_BT, self.codec.grid
        if mask_BT is None:
            mask_BT = torch.ones(code_BT.shape, dtype=torch.bool)
        if plan.stochastic is not None:
            mask_BT[:] = torch.isin(torch.arange(grid.num_codes), torch.tensor(plan.stochastic, dtype=torch.long))
        number = {key: n for n, key in enumerate(dict.fromkeys(map(_root, samples, trace.prompts)))}
        root_B = torch.tensor([number[_root(*completion)] for completion in zip(samples, trace.prompts, strict=True)])
        stored_values = [] if plan.deterministic else [value for value in plan.values if value == ENTROPY]
        return Rollout(
            samples=samples,
            prompt_index_B=torch.tensor([sample.group for sample in samples]),
            old_logprob_BT=torch.stack([completion.logprob_T for completion in trace.completions]) * mask_BT,
            mask_BT=mask_BT,
            state_BT=prefix_states(code_BT, torch.ones_like(mask_BT), root_B),
            segment_BT=grid.line_T.expand(code_BT.shape).clone(),
            trace=trace,
            token_BT=code_BT,
            is_prefix=True,
            record_B=[
                completion.record() if bool(mask_T.all()) else {**completion.record(), "sampled": mask_T.clone()}
                for completion, mask_T in zip(trace.completions, mask_BT, strict=True)
            ],
            values={
                value: torch.stack([completion.numbers[value.name] for completion in trace.completions])
                for value in stored_values
            },
            num_forwards=sum(1 + completion.sampling.guides for completion in trace.completions),
        )

    def _codes_of(self, samples: Sequence[OffPolicySample]) -> list[Tensor]:
        """The codes of samples: their tokens, else those of their images.

        Raises: DataError for a sample without either, and for another number of codes or log-probabilities.
        """
        T, codes = self.codec.grid.num_codes, []
        for off_policy in samples:
            sample, old_T = off_policy.sample, off_policy.old_logprob_T
            if sample.tokens is None and sample.image is None:
                raise DataError(f"the answer to {sample.prompt.text!r:.60} is no image: image tokens cannot score it")
            if sample.tokens is not None:
                code_T = torch.as_tensor(list(sample.tokens), dtype=torch.long)
            else:
                code_T = self.codec.encode([sample.image])[0]  # pyrefly: ignore[bad-argument-type] (checked above)
            if len(code_T) != T or (old_T is not None and old_T.shape != (T,)):
                num_logprobs = "no" if old_T is None else str(len(old_T))
                raise DataError(
                    f"the image for {sample.prompt.text!r:.60} has {len(code_T)} codes and {num_logprobs} "
                    f"log-probabilities; the grid has {T}"
                )
            codes.append(code_T)
        return codes

    def _sampling(self, plan: Plan) -> SamplingDistribution:
        settings = self.settings.overridden(plan.settings)
        scale = self.guidance if settings.guidance_scale is None else settings.guidance_scale
        return replace(SamplingDistribution.of(settings, NOTHING), guidance=scale)

    def _require(self, plan: Plan) -> None:
        """Raises an error for parts of a plan that image tokens do not support."""
        if plan.splits or any(value.view == OLD for value in plan.values):
            raise PolicyError("image tokens have no trees of noise and no means: leave out tree and normalize_ratio")
        if plan.environment is not None or plan.continues_texts:
            raise PolicyError(
                "image tokens support no environments and no continuations: leave out rollout.environment and "
                "such strategies"
            )
        if unknown := [name for name in plan.sample_values if name not in NUMBERS]:
            raise ConfigError(
                f"image tokens have no sample value {', '.join(unknown)}: supported are {', '.join(NUMBERS)}"
            )
        beyond = [t for t in plan.stochastic or () if t >= self.codec.grid.num_codes]
        if beyond:
            raise PolicyError(f"an image has {self.codec.grid.num_codes} decisions, the plan names {beyond[0]}")


def _root(sample: Sample, prompt: EncodedImagePrompt) -> tuple[int, int]:
    return sample.group, id(prompt)


def _sample(sample: Sample, completion: Completion, names: Sequence[str]) -> Sample:
    return replace(
        sample,
        tokens=completion.token_T.tolist(),
        logprob=completion.mean(completion.logprob_T),
        values={name: mean for name in names if (mean := completion.mean(completion.numbers[name])) is not None},
    )
