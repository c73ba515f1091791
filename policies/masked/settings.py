"""The configuration of a masked policy, as a run's ``policy:`` section holds it."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from ..lora import LoraSettings


class MaskingSettings(BaseModel):
    """How finished samples are read: hidden again, in whole or in part, ``num_levels`` times.

    What is hidden is a function of the step's seed, the group, the member and the number of the masking, so that the
    policy of now and the one that sampled are asked the same.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    estimate: Literal["whole", "shares", "bound"] = Field(
        default="whole",
        description="whole: the answer is hidden whole, a decision is a token of it, as in d1; shares: a share of it "
        "is hidden, a decision is a hidden token, as in UniGRPO and MaskGRPO; bound: hidden at the levels of a Gauss "
        "quadrature, a decision is what a level adds to the bound on the sample's log-likelihood, as in GDPO",
    )
    num_levels: int = Field(default=1, ge=1, description="maskings of a sample, each a segment of it")
    low: float = Field(default=0.5, ge=0, lt=1, description="of shares: least share that is hidden")
    high: float = Field(default=1.0, gt=0, le=1, description="of shares: the share that the last masking hides")
    places: Literal["alike", "later"] = Field(
        default="alike",
        description="of shares: every place is as likely to be hidden, or later ones are likelier to be",
    )
    prompt_share: float = Field(
        default=0.0, ge=0, lt=1, description="share of the prompt's tokens that is hidden too; 0.15 in d1"
    )


class CodesSettings(BaseModel):
    """A language model's tokens that are the codes of a picture, as MMaDA has them."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    offset: int = Field(ge=0, description="token id of the first code")
    number: int = Field(ge=1, description="of codes")
    height: int = Field(ge=1, description="of the picture, in codes")
    width: int = Field(ge=1, description="of the picture, in codes")
    decoder: str | None = Field(
        default=None, description="path or hub id of the VQModel of diffusers that makes pictures of codes and back"
    )
    before: str = Field(default="", description="text between the prompt and the codes, for example <|soi|>")
    after: str = Field(default="", description="text behind the codes, for example <|eoi|>")


class MaskedSettings(BaseModel):
    """How a masked model fills in what is hidden, what of it is trained, and in what batches it runs."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    resumable: ClassVar[tuple[str, ...]] = (
        "attention", "system", "num_steps", "block_length", "schedule", "order", "order_noise", "temperature",
        "evaluation_temperature", "guidance_scale", "decision", "reduction", "reading", "suppress", "rollout_batch",
        "update_batch",
    )  # fmt: skip
    """What a resumed run may have otherwise."""
    decides: ClassVar[str] = "masked"  # which methods are for it, beside those for tokens
    is_scheduled: ClassVar[bool] = True  # a sample takes as many reveals as any other
    of_a_rollout: ClassVar[tuple[str, ...]] = ("temperature", "guidance_scale", "order_noise")
    """What a plan may set otherwise for one rollout."""

    model: str | None = Field(
        default=None,
        description="path or hub id of a masked language model or of an AmusedPipeline, or python:module:function that "
        "returns a pipeline, or a model, its tokenizer and, for pictures, a VQModel",
    )
    revision: str | None = Field(default=None, description="of the hub repository")
    trust_remote_code: bool = Field(
        default=False,
        description="run the code that the model's folder brings along, as LLaDA, Dream and MMaDA ask for",
    )
    dtype: Literal["float32", "bfloat16"] = Field(
        default="float32",
        description="of the arithmetic; weights that are trained in full are kept in float32 beside it",
    )
    attention: str | None = Field(default=None, description="attn_implementation of transformers; null: it chooses")
    chat: bool | None = Field(
        default=None,
        description="put prompts into the chat template; null: if there is one; false: the prompt's text as it is",
    )
    system: str | None = Field(default=None, description="system turn for prompts that have none")
    mask_token: int | None = Field(
        default=None,
        description="token id that stands for what is hidden, 126336 of LLaDA; null: the tokenizer's or model's own",
    )
    shifted: bool = Field(default=False, description="the logits of a place stand one place before it, as Dream's do")
    length: int = Field(default=64, ge=1, description="tokens of an answer, of whatever comes behind its end too")
    codes: CodesSettings | None = Field(
        default=None, description="the answer is a picture: which tokens of a language model are its codes"
    )
    pipeline: dict[str, Any] = Field(
        default_factory=dict,
        description="of AmusedPipeline: height, width, micro_conditioning_aesthetic_score, "
        "micro_conditioning_crop_coord",
    )
    num_steps: int | None = Field(
        default=None, ge=1, description="reveals of a sample; null: one of each token of a text, 12 of a picture"
    )
    block_length: int | None = Field(
        default=None, ge=1, description="blocks of so many tokens are filled in one after the other; null: one block"
    )
    schedule: Literal["even", "linear", "cosine"] | None = Field(
        default=None,
        description="how many tokens a reveal shows; even: LLaDA's, all alike; linear and cosine: AmusedScheduler's; "
        "null: even of a text, the scheduler's own of a picture",
    )
    order: Literal["confidence", "random", "left_to_right"] = Field(
        default="confidence",
        description="which of the tokens drawn are shown: the likeliest, any, or the first; the others stay hidden",
    )
    order_noise: tuple[float, float] | None = Field(
        default=None,
        description="what multiplies the Gumbel noise on the logarithm of the confidence, from the first reveal to the "
        "last; null: (0, 0) of a text, (2, 0) of a picture, as AmusedPipeline has it",
    )
    temperature: float = Field(default=1.0, gt=0, description="divides the logits, in sampling and in scoring")
    evaluation_temperature: float = Field(
        default=0.0, ge=0, description="of samples that no decision is taken of, as in evaluations; 0: the likeliest"
    )
    guidance_scale: float = Field(
        default=1.0,
        ge=0,
        description="s of u + s (c - u), c with the prompt and u without it, in drawing and in scoring; 1: none; "
        "LLaDA's cfg_scale is s - 1",
    )
    decision: Literal["token", "reveal"] = Field(
        default="token", description="what a decision is: each token that a reveal shows, or all of them together"
    )
    reduction: Literal["mean", "sum"] = Field(
        default="sum", description="log-probability of a reveal: the sum over its tokens, or their mean"
    )
    reading: MaskingSettings = Field(default_factory=MaskingSettings)
    suppress: tuple[int, ...] = Field(default=(), description="token ids that are never drawn, beside the mask")
    lora: LoraSettings | None = Field(default=None, description="null: every weight is trained")
    adapter: str | None = Field(
        default=None,
        description="start from what another run trained: its folder, a checkpoint, or adapters as peft or diffusers "
        "keep them; without lora the whole weights of a run. The reference without adapters stays the model itself",
    )
    rollout_batch: int = Field(default=64, ge=1, description="rows that are drawn together")
    update_batch: int = Field(default=64, ge=1, description="rows of one reveal or masking that are scored together")

    @model_validator(mode="after")
    def _fits(self) -> MaskedSettings:
        places = self.length if self.codes is None else self.codes.height * self.codes.width
        if self.block_length is not None and places % self.block_length:
            raise ValueError(f"an answer of {places} places has no whole number of blocks of {self.block_length}")
        return self

    def samples_tokens(self, *, renoised: bool) -> bool:
        """Whether a decision is one token.

        Args:
            renoised: whether decisions are those of ``reading`` (``rollout.decisions: read``).

        Returns:
            Whether it is.
        """
        if renoised:
            return self.reading.estimate != "bound"
        places = self.length if self.codes is None else self.codes.height * self.codes.width
        steps = self.num_steps or (places if self.codes is None else 1)
        return self.decision == "token" or steps >= places

    def described(self) -> list[tuple[str, str]]:
        """What ``mmgrpo explain`` says of these settings: labels and texts."""
        trained = "every weight" if self.lora is None else f"LoRA, rank {self.lora.rank}, alpha {self.lora.alpha:g}"
        steps = "a reveal for each token" if self.num_steps is None else f"{self.num_steps} reveals"
        density = "each token that a reveal shows" if self.decision == "token" else "what a reveal shows, together"
        guided = "" if self.guidance_scale == 1 else f", guidance {self.guidance_scale:g}"
        return [
            ("trained", trained),
            ("sampling", f"{steps}, by {self.order}; temperature = {self.temperature:g}{guided}"),
            ("decision", density),
        ]
