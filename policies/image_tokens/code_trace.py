"""What a rollout of pictures remembers of itself, row by row, and how likely its codes are.

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
        prompts: what each row was drawn behind.
        completions: its codes, as many for every row, and the distribution that they are of.
    """

    prompts: Sequence[EncodedImagePrompt]
    completions: Sequence[Completion]

    @property
    def code_BT(self) -> Tensor:
        """The codes of all rows."""
        return torch.stack([completion.token_T for completion in self.completions])

    def batches(self, rows: Sequence[int], *, max_tokens: int) -> list[list[int]]:
        """Rows of one distribution that are scored together, those of one prompt side by side."""
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
    """How rows are scored.

    Attributes:
        painter: the model.
        shared: whether a prompt is run once for all rows that have it.
        head_bytes: float32 logits held at a time.
    """

    painter: CodeSampler
    shared: bool
    head_bytes: int

    @property
    def _chunk(self) -> int:
        return self.head_bytes // (4 * self.painter.codes.num)

    def logprobs(
        self, trace: CodeTrace, rows: Sequence[int], mask_NT: Tensor, values: Sequence[Value] = ()
    ) -> tuple[Tensor, list[Tensor]]:
        """Log-probability of the codes of some rows where a mask holds, one row after the other.

        Args:
            trace: what was drawn.
            rows: N of its rows, all of one distribution.
            mask_NT: the codes wanted.
            values: what is wanted of the distributions too, as ``LOGIT_VALUES`` has it.

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
            support = Support.concat([c.support.at(kept_T) for c, kept_T in of_rows if c.support is not None])
        return token_logprobs(
            states_NTbD[index],
            code_NT.to(states_NTbD.device)[index],
            partial(self.painter.logits, sampling=sampling),
            sampling,
            chunk=self._chunk,
            support=support,
            extra_values=[partial(_asked, value) for value in values],
        )

    @torch.no_grad()
    def supported(self, trace: CodeTrace, *, max_tokens: int) -> CodeTrace:
        """The trace with what could be drawn in place of each code known, as far as the weights of now say."""
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
                logits_of = partial(self.painter.logits, sampling=sampling)
                support = compute_supports(
                    states_TbD, code_T.to(states_TbD.device), logits_of, sampling, chunk=self._chunk
                )
                completions[row] = replace(completions[row], support=support)
        return replace(trace, completions=completions)

    def _states(self, trace: CodeTrace, rows: Sequence[int], code_NT: Tensor) -> Tensor:
        num_sides = 1 + trace.completions[rows[0]].sampling.guides
        prompts = [trace.prompts[row] for row in rows]
        return self.painter.states(prompts, code_NT, num_sides=num_sides, shared=self.shared)


def _asked(value: Value, states_mbD: Tensor, logits_mK: Tensor, code_m: Tensor) -> Tensor:
    return LOGIT_VALUES[value.name](logits_mK, code_m, *value.numbers)
