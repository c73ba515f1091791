"""The configuration of a masked policy, the ``policy:`` section of a run."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from mmgrpo.config.sections import Section

from ..lora import LoraSettings


class MaskingSettings(Section):
    """Masking of finished samples, ``num_levels`` times each.

    The masks are a function of the step's seed, the group, the member and the index of the masking, so that the current
    and the behavior policy are scored under the same masks.
    """

    estimate: Literal["whole", "shares", "bound"] = Field(
        default="whole",
        description="whole: all tokens of the answer are masked, each is a decision, as in d1; shares: a fraction of "
        "them is masked, each masked token is a decision, as in UniGRPO and MaskGRPO; bound: masked at "
        "the levels of a Gauss quadrature, each level's term of the bound on the sample's log-likelihood "
        "is a decision, as in GDPO",
    )
    num_levels: int = Field(default=1, ge=1, description="number of maskings per sample, each a segment")
    low: float = Field(default=0.5, ge=0, lt=1, description="for shares: smallest masked fraction")
    high: float = Field(default=1.0, gt=0, le=1, description="for shares: masked fraction of the last masking")
    places: Literal["alike", "later"] = Field(
        default="alike",
        description="for shares: mask all positions with equal probability (alike), or later ones with higher "
        "probability (later)",
    )
    prompt_share: float = Field(
        default=0.0, ge=0, lt=1, description="fraction of the prompt's tokens that is masked too; 0.15 in d1"
    )


class CodesSettings(Section):
    """Tokens of a language model that are image codes, as in MMaDA."""

    offset: int = Field(ge=0, description="token id of the first code")
    number: int = Field(ge=1, description="number of codes")
    height: int = Field(ge=1, description="height of the image, in codes")
    width: int = Field(ge=1, description="width of the image, in codes")
    decoder: str | None = Field(
        default=None,
        description="path or hub id of the diffusers VQModel that encodes images to codes and decodes them",
    )
    before: str = Field(default="", description="text between the prompt and the codes, for example <|soi|>")
    after: str = Field(default="", description="text after the codes, for example <|eoi|>")


class MaskedSettings(Section):
    """Sampling, training and batch sizes of a masked model."""

    resumable: ClassVar[tuple[str, ...]] = (
        "attention", "system", "num_steps", "block_length", "schedule", "order", "order_noise", "temperature",
        "evaluation_temperature", "guidance_scale", "decision", "reduction", "reading", "suppress", "rollout_batch",
        "update_batch",
    )  # fmt: skip
    """Settings that may change when a run resumes."""
    decides: ClassVar[str] = "masked"  # kind of methods that support it, in addition to those for tokens
    is_scheduled: ClassVar[bool] = True  # all samples take the same number of unmasking steps
    of_a_rollout: ClassVar[tuple[str, ...]] = ("temperature", "guidance_scale", "order_noise")
    """Settings that a plan may override for one rollout."""

    model: str | None = Field(
        default=None,
        description="path or hub id of a masked language model or an AmusedPipeline, or python:module:function that "
        "returns a pipeline, or a model, its tokenizer and, for images, a VQModel",
    )
    revision: str | None = Field(default=None, description="revision of the hub repository")
    trust_remote_code: bool = Field(
        default=False,
        description="run the code in the model's folder, which LLaDA, Dream and MMaDA need",
    )
    dtype: Literal["float32", "bfloat16"] = Field(
        default="float32",
        description="dtype of the computation; with full fine-tuning, trained weights stay in float32",
    )
    attention: str | None = Field(default=None, description="attn_implementation of transformers; null: its default")
    chat: bool | None = Field(
        default=None,
        description="render prompts with the chat template; null: if there is one; false: use the prompt's text",
    )
    system: str | None = Field(default=None, description="system message for prompts without one")
    mask_token: int | None = Field(
        default=None,
        description="token id of the mask, 126336 for LLaDA; null: from the tokenizer or the model",
    )
    shifted: bool = Field(
        default=False, description="whether the logits of a position are at the position before it, as in Dream"
    )
    length: int = Field(default=64, ge=1, description="tokens of an answer, including padding after its end")
    codes: CodesSettings | None = Field(
        default=None, description="for answers that are images: which tokens of a language model are image codes"
    )
    pipeline: dict[str, Any] = Field(
        default_factory=dict,
        description="arguments of AmusedPipeline: height, width, micro_conditioning_aesthetic_score, "
        "micro_conditioning_crop_coord",
    )
    num_steps: int | None = Field(
        default=None, ge=1, description="unmasking steps of a sample; null: one per token of a text, 12 for an image"
    )
    block_length: int | None = Field(
        default=None, ge=1, description="tokens per block; blocks are unmasked one after the other; null: one block"
    )
    schedule: Literal["even", "linear", "cosine"] | None = Field(
        default=None,
        description="tokens unmasked per step; even: equal numbers, as in LLaDA; linear and cosine: as in "
        "AmusedScheduler; null: even for a text, the scheduler's for an image",
    )
    order: Literal["confidence", "random", "left_to_right"] = Field(
        default="confidence",
        description="which sampled tokens are unmasked: the most likely, random ones, or the first; the others stay "
        "masked",
    )
    order_noise: tuple[float, float] | None = Field(
        default=None,
        description="factor of the Gumbel noise on the log-confidence, for the first and the last step, linear in "
        "between; null: (0, 0) for a text, (2, 0) for an image, as in AmusedPipeline",
    )
    temperature: float = Field(default=1.0, gt=0, description="divides the logits, in sampling and in scoring")
    evaluation_temperature: float = Field(
        default=0.0,
        ge=0,
        description="temperature of samples without decisions, as in evaluations; 0: most likely tokens",
    )
    guidance_scale: float = Field(
        default=1.0,
        ge=0,
        description="s of u + s (c - u), c with the prompt and u without it, in sampling and in scoring; 1: no "
        "guidance; LLaDA's cfg_scale is s - 1",
    )
    decision: Literal["token", "reveal"] = Field(
        default="token", description="unit of a decision: each token that a step unmasks, or all of them together"
    )
    reduction: Literal["mean", "sum"] = Field(
        default="sum", description="log-probability of an unmasking step: the sum over its tokens, or their mean"
    )
    reading: MaskingSettings = Field(default_factory=MaskingSettings)
    suppress: tuple[int, ...] = Field(
        default=(), description="token ids that are never sampled, in addition to the mask"
    )
    lora: LoraSettings | None = Field(default=None, description="null: full fine-tuning")
    adapter: str | None = Field(
        default=None,
        description="initial weights from another run: its folder, a checkpoint, or adapters in the format of peft "
        "or diffusers; without lora the full weights of a run. The reference without adapters is the "
        "model itself",
    )
    rollout_batch: int = Field(default=64, ge=1, description="rows sampled per batch")
    update_batch: int = Field(default=64, ge=1, description="rows of one unmasking step or masking scored per batch")

    @model_validator(mode="after")
    def _fits(self) -> MaskedSettings:
        positions = self.length if self.codes is None else self.codes.height * self.codes.width
        if self.block_length is not None and positions % self.block_length:
            raise ValueError(f"block_length must divide the answer's {positions} positions, got {self.block_length}")
        return self

    def samples_tokens(self, *, renoised: bool) -> bool:
        """Whether a decision is one token.

        Args:
            renoised: whether decisions are those of ``reading`` (``rollout.training_states: renoised``).

        Returns:
            Whether it is.
        """
        if renoised:
            return self.reading.estimate != "bound"
        positions = self.length if self.codes is None else self.codes.height * self.codes.width
        steps = self.num_steps or (positions if self.codes is None else 1)
        return self.decision == "token" or steps >= positions

    def described(self) -> list[tuple[str, str]]:
        """Label and text of the settings for ``mmgrpo explain``."""
        trained = "every weight" if self.lora is None else f"LoRA, rank {self.lora.rank}, alpha {self.lora.alpha:g}"
        steps = "one unmasking step per token" if self.num_steps is None else f"{self.num_steps} unmasking steps"
        density = "each unmasked token" if self.decision == "token" else "all tokens of an unmasking step"
        guided = "" if self.guidance_scale == 1 else f", guidance {self.guidance_scale:g}"
        return [
            ("trained", trained),
            ("sampling", f"{steps}, by {self.order}; temperature = {self.temperature:g}{guided}"),
            ("decision", density),
        ]
