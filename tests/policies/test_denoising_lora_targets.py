"""Default LoRA targets: the linear layers of attention, under any name, and no others."""

from __future__ import annotations

import logging

import pytest
from diffusers import Kandinsky5Transformer3DModel
from mmgrpo.policies.adapter_formats import DiffusersFiles
from mmgrpo.policies.diffusion.lora_targets import adapter_targets
from mmgrpo.policies.lora import LoraSettings
from mmgrpo.policies.weights import Weights
from torch import nn

from tests.policies.foreign_pipelines import Net
from tests.policies.tiny_policies import pipeline_of

PROJECTIONS = ("to_k", "to_out.0", "to_q", "to_v")
FLUX2 = (
    "add_k_proj", "add_q_proj", "add_v_proj", "single_transformer_blocks.0.attn.to_out",
    "single_transformer_blocks.1.attn.to_out", "to_add_out", "to_k", "to_out.0", "to_q", "to_qkv_mlp_proj", "to_v",
)  # fmt: skip
JOINT = ("add_k_proj", "add_q_proj", "add_v_proj", "to_add_out", *PROJECTIONS)


def kandinsky5() -> nn.Module:
    return Kandinsky5Transformer3DModel(
        in_visual_dim=4,
        in_text_dim=8,
        in_text_dim2=8,
        time_dim=8,
        out_visual_dim=4,
        model_dim=16,
        ff_dim=16,
        num_text_blocks=1,
        num_visual_blocks=1,
        axes_dims=(2, 2, 4),
    )


def adapted(denoiser: nn.Module) -> set[str]:
    """Paths of the layers that carry adapters by default."""
    denoisers = {"transformer": denoiser}
    Weights(denoisers, LoraSettings(rank=1), adapter_targets(denoisers), DiffusersFiles())
    end = ".lora_A.default.weight"
    return {name.removesuffix(end) for name, _ in denoiser.named_parameters() if name.endswith(end)}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("pixart-sigma", PROJECTIONS),
        ("sd3", JOINT),
        ("flux2", FLUX2),
    ],
)
def test_lora_target_endings_are_minimal(name: str, expected: tuple[str, ...]) -> None:
    assert adapter_targets({"transformer": pipeline_of(name).transformer}) == expected


def test_attention_layers_with_unusual_names_are_targets() -> None:
    attention = ("text_transformer_blocks.0.self_attention", "visual_transformer_blocks.0.self_attention")
    attention += ("visual_transformer_blocks.0.cross_attention",)
    layers = ("to_query", "to_key", "to_value", "out_layer")  # feed-forwards and embeddings have an out_layer too
    assert adapted(kandinsky5()) == {f"{path}.{layer}" for path in attention for layer in layers}


def test_without_attention_all_linear_layers_get_adapters_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert adapted(Net()) == {"inner", "outer"}
    assert "transformer (Net) has no recognized attention" in caplog.text


def test_torch_multihead_attention_gets_no_adapters() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16)
    assert adapter_targets({"transformer": layer}) == ("linear1", "linear2")


def test_several_denoisers_share_target_endings() -> None:
    denoiser, other = pipeline_of("pixart-sigma").transformer, kandinsky5()
    actual = adapter_targets({"transformer": denoiser, "transformer_2": other})
    assert set(actual) == {
        *PROJECTIONS, "to_query", "to_key", "to_value", "self_attention.out_layer", "cross_attention.out_layer",
    }  # fmt: skip
