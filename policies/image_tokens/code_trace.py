"""The trace of an image-token rollout, and the log-probabilities of its codes.

Axes: N rows of a batch, M codes of them, T decisions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from mmgrpo.values import Value

from ..completion import Completion
from ..distribution import LOGIT_VALUES
from ..sampling import Support, compute_supports, token_logprobs
from .code_sampler import CodeSampler
from .image_prompts import EncodedImagePrompt


@dataclass(frozen=True, slots=True, eq=False)
class CodeTrace:
    """Prompts and codes.

    Attributes:
        prompts: prompt of each row.
        completions: codes of each row, the same number for all, and their distribution.
    """

    prompts: Sequence[EncodedImagePrompt]
    completions: Sequence[Completion]

    @property
    def code_BT(self) -> Tensor:
        """The codes of all rows."""
        return torch.stack([completion.token_T for completion in self.completions])

    def batches(self, rows: Sequence[int], *, max_tokens: int) -> list[list[int]]:
        """Scoring batches of rows with one distribution, rows of one prompt together."""
        batches: list[list[int]] = []
        prompt_index = {id(prompt_object): number for number, prompt_object in enumerate(self.prompts)}
        of = {row: (id(self.completions[row].sampling), prompt_index[id(self.prompts[row])]) for row in rows}
        for row in sorted(rows, key=lambda row: of[row]):
            prompt, completion = self.prompts[row], self.completions[row]
            num_sides = 1 + completion.sampling.guides
            cost = num_sides * (max(map(len, prompt.sides(num_sides))) + len(completion.token_T))
            joins = batches and of[batches[-1][0]][0] == of[row][0] and (len(batches[-1]) + 1) * cost <= max_tokens
            if joins:
                batches[-1].append(row)
            else:
                batches.append([row])
        return batches


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CodeScorer:
    """Scores rows.

    Attributes:
        sampler: the model.
        shared: whether a prompt runs once for all of its rows.
        head_bytes: maximum size of float32 logits in memory.
    """

    sampler: CodeSampler
    shared: bool
    head_bytes: int

    @property
    def _chunk(self) -> int:
        return self.head_bytes // (4 * self.sampler.codes.num)

    def logprobs(
        self, trace: CodeTrace, rows: Sequence[int], mask_NT: Tensor, values: Sequence[Value] = ()
    ) -> tuple[Tensor, list[Tensor]]:
        """Log-probabilities of the unmasked codes of some rows, concatenated.

        Args:
            trace: the trace of the rollout.
            rows: N of its rows, all with one distribution.
            mask_NT: the requested codes.
            values: further requested values of the distributions, as in ``LOGIT_VALUES``.

        Returns:
            logprob_M, and a vector for each of the values; float32.
        """
        completions = [trace.completions[row] for row in rows]
        sampling, T = completions[0].sampling, mask_NT.shape[1]
        code_NT = torch.stack([completion.token_T[:T] for completion in completions])
        states_NTbD = self._states(trace, rows, code_NT)
        index = mask_NT.to(states_NTbD.device)
        support = None
        if sampling.truncates:
            of_rows = zip(completions, mask_NT, strict=True)
            support = Support.concat([c.support.at(keep_T) for c, keep_T in of_rows if c.support is not None])
        return token_logprobs(
            states_NTbD[index],
            code_NT.to(states_NTbD.device)[index],
            partial(self.sampler.logits, sampling=sampling),
            sampling,
            chunk=self._chunk,
            support=support,
            extra_values=[partial(_value_of, value) for value in values],
        )

    @torch.no_grad()
    def supported(self, trace: CodeTrace, *, max_tokens: int) -> CodeTrace:
        """The trace with the support of each code filled in, under the current policy."""
        completions = list(trace.completions)
        rows = [
            row
            for row, completion in enumerate(completions)
            if completion.sampling.truncates and completion.support is None
        ]
        for batch in trace.batches(rows, max_tokens=max_tokens):
            code_NT = trace.code_BT[batch]
            for row, states_TbD, code_T in zip(batch, self._states(trace, batch, code_NT), code_NT, strict=True):
                sampling = completions[row].sampling
                logits_of = partial(self.sampler.logits, sampling=sampling)
                support = compute_supports(
                    states_TbD, code_T.to(states_TbD.device), logits_of, sampling, chunk=self._chunk
                )
                completions[row] = replace(completions[row], support=support)
        return replace(trace, completions=completions)

    def _states(self, trace: CodeTrace, rows: Sequence[int], code_NT: Tensor) -> Tensor:
        num_sides = 1 + trace.completions[rows[0]].sampling.guides
        prompts = [trace.prompts[row] for row in rows]
        return self.sampler.states(prompts, code_NT, num_sides=num_sides, shared=self.shared)


def _value_of(value: Value, states_mbD: Tensor, logits_mK: Tensor, code_m: Tensor) -> Tensor:
    return LOGIT_VALUES[value.name](logits_mK, code_m, *value.numbers)
