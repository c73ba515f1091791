"""The codes of ``quickstart/digits-tokens``: their meaning, and how well they reconstruct a digit."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from mmgrpo.examples.digits import fit_judge, fit_verifier, load_split
from mmgrpo.examples.patch_codes import NUM_PATCHES, PatchCodes, digits_tokens, patch_codes


def test_patches_are_in_row_order() -> None:
    patch_KD = torch.tensor([[-1.0, -1, -1, -1], [1, 1, 1, 1], [-1, -1, 1, 1], [-1, 1, -1, 1]])
    codes = PatchCodes(patch_KD)
    code_144 = torch.arange(16).reshape(1, 4, 4) % 4
    pixels = codes.decode(code_144)
    assert pixels.shape == (1, 1, 8, 8)
    assert pixels[0, 0, :2].tolist() == [[-1, -1, 1, 1, -1, -1, -1, 1], [-1, -1, 1, 1, 1, 1, -1, 1]]
    assert torch.equal(codes.encode(pixels + 0.3), code_144)


@pytest.mark.nightly
def test_a_digit_is_still_read_after_it_was_coded() -> None:
    split, codes = load_split(), patch_codes()
    assert codes.num_codes == NUM_PATCHES == 128
    for images, labels, reader, least in (
        (split.train, split.train_labels, fit_judge(), 0.97),
        (split.held_out, split.held_out_labels, fit_verifier(), 0.94),
    ):
        again = codes.decode(codes.encode(torch.from_numpy(np.array(images))[:, None]))
        read = np.asarray(reader.predict(again.flatten(1).numpy()))
        assert np.mean(read == labels) > least


@pytest.mark.nightly
def test_builds_are_small_and_follow_from_their_seed() -> None:
    state = torch.get_rng_state()
    (first, tokenizer, codes), (second, _, _), (other, _, _) = (digits_tokens(seed) for seed in (0, 0, 1))
    assert torch.equal(torch.get_rng_state(), state)
    assert first.config.vocab_size == len(tokenizer) + codes.num_codes
    assert sum(parameter.numel() for parameter in first.parameters()) == 676_736
    assert torch.equal(first.lm_head.weight, second.lm_head.weight)
    assert not torch.equal(first.lm_head.weight, other.lm_head.weight)
