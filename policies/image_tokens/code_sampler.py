"""Sampling and scoring of image codes with a transformers model: from prompts to prefixes, to states, to code logits.

Axes: N rows, b sides of guidance, T codes of a row, L tokens, P tokens of a prompt, D model width, K codes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import Cache, DynamicCache, PreTrainedModel

from ..prefix import Prefix, cache_argument, extend_prefix, longer_cache, repeatable, with_growing_cache
from ..sampling import SamplingDistribution
from ..token_buffer import TokenBuffer
from .grids import Grid
from .image_codes import CodeRange, image_codes
from .image_prompts import EncodedImagePrompt


class CodeSampler:
    """Runs a model's decoder over prompts and codes; rows of the unconditional side follow the conditional ones.

    Attributes:
        model: the wrapped model.
        grid: grid of the codes.
        codes: the model's code embeddings and logits.
    """

    def __init__(self, model: PreTrainedModel, grid: Grid, codes: CodeRange, *, autocast: torch.dtype | None) -> None:
        """Finds the parts of the model that generate images.

        Args:
            model: the model.
            grid: grid of the codes.
            codes: range of the codes in the vocabulary, unless the model defines it.
            autocast: dtype of the arithmetic, if it differs from that of the weights.
        """
        self.model = model
        self.grid = grid
        self.codes = image_codes(model, codes)
        self._range = codes
        self._autocast = autocast
        self._decoder: Any = model.get_decoder()
        self._cache_argument = cache_argument(self._decoder)
        self._table: Any = model.get_input_embeddings()

    @property
    def device(self) -> torch.device:
        """Device of the model."""
        return self.model.device

    def with_model(self, model: PreTrainedModel) -> CodeSampler:
        """The same sampler with another model of the same class."""
        return CodeSampler(model, self.grid, self._range, autocast=self._autocast)

    def logits(self, states_MbD: Tensor, sampling: SamplingDistribution) -> Tensor:
        """Guided logits, float32.

        Shapes: (M, b, D) -> (M, K).
        """
        with self._arithmetic():
            logits_MbK = self.codes.logits(states_MbD).float()
        return sampling.guided(logits_MbK)

    @torch.no_grad()
    def write(self, prompts: Sequence[EncodedImagePrompt], sampling: SamplingDistribution, buffer: TokenBuffer) -> None:
        """Samples all codes of N rows, one row per prompt."""
        N = len(prompts)
        prefix, index = self._prefix(prompts, 1 + sampling.guides)
        prefix = with_growing_cache(prefix.rows(index))
        row_N = torch.arange(N, device=self.device)
        for t in range(self.grid.num_codes):
            states_NbD = prefix.hidden_ND.unflatten(0, (-1, N)).transpose(0, 1)
            code_N = buffer.write(t, row_N, self.logits(states_NbD, sampling))
            if t + 1 < self.grid.num_codes:
                prefix, _ = self._extended(prefix, self._decoder_inputs(code_N[:, None], last=t))

    def states(self, prompts: Sequence[EncodedImagePrompt], code_NT: Tensor, *, num_sides: int, shared: bool) -> Tensor:
        """The states that predict codes.

        Args:
            prompts: N prompts.
            code_NT: the codes of each, up to the last requested one.
            num_sides: 1, or 2 with the unconditional side.
            shared: whether a prompt runs once for all of its rows.

        Returns:
            (N, T, b, D), with grad where grad is enabled.
        """
        N, T = code_NT.shape
        inner_NLD = self._decoder_inputs(code_NT[:, : T - 1].to(self.device), last=T - 2)
        if shared:
            prefix, index = self._prefix(prompts, num_sides)
            rows = prefix.continued(index)
            hidden_MLD = rows.hidden_ND[:, None]
            if T > 1:
                _, later = self._extended(rows, inner_NLD)
                hidden_MLD = torch.cat([hidden_MLD, later], dim=1)
        else:
            hidden_MLD = self._full_rows(prompts, inner_NLD, num_sides)
        position_T = self.grid.position_T[:T].to(self.device)
        return hidden_MLD[:, position_T].unflatten(0, (num_sides, N)).movedim(0, 2)

    def _decoder_inputs(self, code_NT: Tensor, *, last: int) -> Tensor:
        """Decoder inputs of codes that end at position ``last`` of the grid: from the first code, or of that code
        alone.
        """
        with self._arithmetic():
            code_NTD = self.codes.embed(code_NT)
            end = self.grid.line_end
            line_D = None if end is None else self._table(torch.tensor(end, device=self.device))
        if code_NT.shape[1] == last + 1:
            return self.grid.with_line_ends(code_NTD, line_D)
        if line_D is None or not self.grid.ends_line(last):
            return code_NTD
        return torch.cat([code_NTD, line_D.to(code_NTD).expand(len(code_NTD), 1, -1)], dim=1)

    def _prefix(self, prompts: Sequence[EncodedImagePrompt], num_sides: int) -> tuple[Prefix, Tensor]:
        """The different prefixes, each run once, and the index of that of each row and side."""
        rows = [ids_P for side in range(num_sides) for ids_P in (prompt.sides(num_sides)[side] for prompt in prompts)]
        keys = [tuple(ids_P.tolist()) for ids_P in rows]
        row_of = {key: number for number, key in enumerate(dict.fromkeys(keys))}
        first = dict(zip(reversed(keys), reversed(rows), strict=True))
        index = torch.tensor([row_of[key] for key in keys], device=self.device)
        return self._prefilled([first[key] for key in row_of]), index

    def _prefilled(self, rows: Sequence[Tensor]) -> Prefix:
        ids_ML, mask_ML = _aligned(rows, self.device)
        is_full = bool(mask_ML.all())
        cache = repeatable(DynamicCache(config=self.model.config), grows=True)
        output = self._run(self._table(ids_ML), mask_ML, cache)
        return Prefix(
            cache=longer_cache(cache),
            mask_NL=None if is_full else mask_ML,
            next_position=mask_ML.sum(1),
            hidden_ND=output.last_hidden_state[:, -1],
            length=ids_ML.shape[1],
        )

    def _extended(self, prefix: Prefix, inner_NLD: Tensor) -> tuple[Prefix, Tensor]:
        num_sides = len(prefix.hidden_ND) // len(inner_NLD)
        inputs = torch.cat([inner_NLD] * num_sides)

        def run(cache: Cache, **extra_inputs: Any) -> Tensor:
            extra_inputs[self._cache_argument] = cache
            with self._arithmetic():
                return self._decoder(inputs_embeds=inputs, **extra_inputs, use_cache=True).last_hidden_state

        return extend_prefix(prefix, inner_NLD.shape[1], run)

    def _full_rows(self, prompts: Sequence[EncodedImagePrompt], inner_NLD: Tensor, num_sides: int) -> Tensor:
        """Runs each row in one forward, without a cache: the states from the last token of the prompt on."""
        rows = [prompt.sides(num_sides)[side] for side in range(num_sides) for prompt in prompts]
        ids_MP, mask_MP = _aligned(rows, self.device)
        prompt_MPD = self._table(ids_MP)
        inputs = torch.cat([prompt_MPD, torch.cat([inner_NLD] * num_sides).to(prompt_MPD)], dim=1)
        mask_ML = pad(mask_MP, (0, inner_NLD.shape[1]), value=True)
        return self._run(inputs, mask_ML).last_hidden_state[:, ids_MP.shape[1] - 1 :]

    def _run(self, inputs: Tensor, mask_ML: Tensor, cache: Cache | None = None) -> Any:
        more: dict[str, Any] = {"use_cache": cache is not None}
        if cache is not None:
            more[self._cache_argument] = cache
        if not bool(mask_ML.all()):
            more |= {"attention_mask": mask_ML, "position_ids": (mask_ML.cumsum(1) - 1).clamp(min=0)}
        with self._arithmetic():
            return self._decoder(inputs_embeds=inputs, **more)

    def _arithmetic(self) -> torch.autocast:
        return torch.autocast(self.device.type, dtype=self._autocast, enabled=self._autocast is not None)


def _aligned(rows: Sequence[Tensor], device: torch.device) -> tuple[Tensor, Tensor]:
    """Right-aligned tokens and their mask, (M, L) each."""
    longest = max(map(len, rows))
    ids_ML = torch.stack([pad(ids_P, (longest - len(ids_P), 0)) for ids_P in rows])
    lengths_M = torch.tensor([len(ids_P) for ids_P in rows])
    return ids_ML.to(device), (torch.arange(longest) >= longest - lengths_M[:, None]).to(device)
