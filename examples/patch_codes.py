"""The model of ``quickstart/digits-tokens``: a stock Llama of 0.6 M weights that generates digits from patches.

An image of 8 x 8 pixels is 16 patches of 2 x 2, each the nearest of 128 k-means centroids of the training digits. The
vocabulary has the words of the captions and these 128 codes.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from mmgrpo.examples.digits import SIDE, load_split
from mmgrpo.examples.pipelines import word_tokenizer
from scipy.cluster.vq import kmeans2
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

PATCH = 2  # pixels a side
NUM_PATCHES = 128


class PatchCodes:
    """Vector quantization of digits: the nearest centroid of each patch. Pixels are in [-1, 1].

    Attributes:
        grid: number of patches, down and across.
        num_codes: number of codes.
    """

    def __init__(self, patch_KD: Tensor) -> None:
        """Store the centroids.

        Args:
            patch_KD: pixels of each centroid, row by row.
        """
        self.grid = (SIDE // PATCH, SIDE // PATCH)
        self.num_codes = len(patch_KD)
        self._patch_KD = patch_KD

    def encode(self, pixels: Tensor) -> Tensor:
        """(N, 1, 8, 8) -> the number of the nearest patch, (N, 4, 4)."""
        return torch.cdist(patches_of(pixels), self._patch_KD).argmin(-1).unflatten(1, self.grid)

    def decode(self, codes: Tensor) -> Tensor:
        """(N, 4, 4) -> (N, 1, 8, 8)."""
        blocks = self._patch_KD[codes].unflatten(-1, (PATCH, PATCH))  # down, across, down in a patch, across in it
        return blocks.movedim(3, 2).reshape(len(codes), 1, SIDE, SIDE)


def patches_of(pixels: Tensor) -> Tensor:
    """The patches of images, row by row: (N, 1, 8, 8) -> (N, 16, 4)."""
    down = pixels.unfold(2, PATCH, PATCH).unfold(3, PATCH, PATCH)
    return down.reshape(len(pixels), -1, PATCH * PATCH)


@lru_cache(maxsize=1)
def patch_codes() -> PatchCodes:
    """The k-means centroids of the patches of the training digits, deterministic."""
    pixels = torch.from_numpy(np.array(load_split().train))[:, None]
    centroids, _ = kmeans2(patches_of(pixels).flatten(0, 1).double().numpy(), NUM_PATCHES, iter=30, minit="++", rng=0)
    return PatchCodes(torch.from_numpy(centroids).float())


def digits_tokens(seed: int = 0) -> tuple[LlamaForCausalLM, PreTrainedTokenizerFast, PatchCodes]:
    """An untrained model that generates digits token by token, its tokenizer and its codes; the seed fixes its
    weights.
    """
    tokenizer, codes = word_tokenizer(), patch_codes()
    config = LlamaConfig(
        vocab_size=len(tokenizer) + codes.num_codes,
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=32,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return LlamaForCausalLM(config), tokenizer, codes
