"""The language policy at the shape of Qwen2.5-VL 3B: exactness against direct calls, speed, and share of the peak."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from statistics import median
from typing import Any

import torch
from mmgrpo.policies.language import LanguagePolicy
from mmgrpo.policies.language.language_loading import end_token_ids, suppressed_token_ids
from torch import Tensor
from torch.nn.functional import pad

from benchmarks.gpu.flops import counted, decoder_forward
from benchmarks.gpu.rows import Bench, Value, peak
from benchmarks.iteration import Learner, gap_of
from benchmarks.language import CASES, Case, model_and_processor, questions
from benchmarks.timing import timed
from mmgrpo.explain.process_scale import GIB
from mmgrpo.scoring import NamedReward
from mmgrpo.types import Prompt, Rollout, Sample

GROUP = 8
ROWS = 2  # of a direct call: eight would fill the GPU
TINY_TOKENS, TINY_SIDE = 12, 32


def ramp(samples: Sequence[Sample]) -> list[float]:
    """Another score for every member."""
    return [float(row % 7) for row in range(len(samples))]


class DirectCalls:
    """The model called directly on a group of one prompt: each row reads the prompt for itself.

    Attributes:
        prompt_length: tokens of the prompt.
        length: tokens of the longest answer.
    """

    def __init__(self, policy: LanguagePolicy, rollout: Rollout, autocast: torch.dtype | None) -> None:
        """Prepares the tokens.

        Args:
            policy: whose model is called.
            rollout: one group.
            autocast: dtype of the arithmetic; None: that of the weights.
        """
        model, tokenizer = policy.model, policy.processor.tokenizer
        self._model, self._autocast, self._prompt = model, autocast, rollout.trace.prompts[0]
        self._tokens = [torch.tensor(sample.tokens) for sample in rollout.samples]
        self.prompt_length, self.length = self._prompt.length, max(map(len, self._tokens))
        self._suppressed = suppressed_token_ids(
            model, policy.processor, tokenizer, (), end_ids=end_token_ids(model, tokenizer)
        )

    def logprobs(self) -> Tensor:
        """(G, T) log-probabilities of the answers, without grad; padding has arbitrary values."""
        with torch.no_grad():
            return torch.cat([self._scored(tokens) for tokens in self._chunks()])

    def forward(self) -> None:
        """The forwards without grad."""
        with torch.no_grad():
            for tokens in self._chunks():
                self._model(**self._inputs(tokens), logits_to_keep=self.length + 1)

    def backward(self) -> None:
        """Forwards and backwards of the mean log-probability."""
        for tokens in self._chunks():
            (self._scored(tokens).mean() * len(tokens) / len(self._tokens)).backward()

    def generate(self) -> int:
        """The number of tokens that transformers' own ``generate`` samples, as many for each row."""
        empty = [token_T[:0] for token_T in self._tokens]
        with self._arithmetic():
            ids_NL = self._model.generate(  # pyrefly: ignore[not-callable]
                **self._inputs(empty, length=0),
                do_sample=True,
                top_k=0,
                max_new_tokens=self.length,
                min_new_tokens=self.length,
                pad_token_id=0,
            )
        return len(ids_NL) * (ids_NL.shape[1] - self.prompt_length)

    def _chunks(self) -> list[list[Tensor]]:
        return [self._tokens[start : start + ROWS] for start in range(0, len(self._tokens), ROWS)]

    def _scored(self, tokens: list[Tensor]) -> Tensor:
        with self._arithmetic():
            logits = self._model(**self._inputs(tokens), logits_to_keep=self.length + 1).logits
        never_V = torch.zeros(logits.shape[-1], dtype=torch.bool, device=logits.device)
        never_V[self._suppressed] = True
        logits_NTV = logits[:, :-1].float().masked_fill(never_V, -torch.inf)
        answer_NT = self._answers(tokens, self.length).to(logits.device)
        return logits_NTV.log_softmax(-1).gather(-1, answer_NT[..., None])[..., 0]

    def _answers(self, tokens: list[Tensor], length: int) -> Tensor:
        return torch.stack([pad(token_T, (0, length - len(token_T))) for token_T in tokens])

    def _inputs(self, tokens: list[Tensor], length: int | None = None) -> dict[str, Tensor]:
        """Inputs of some rows: the prompt's, repeated, and the answers, padded on the right."""
        length, rows, prompt = self.length if length is None else length, len(tokens), self._prompt
        longer = prompt.with_tokens(torch.zeros(length, dtype=torch.long), 0)
        ids_NL = torch.cat([prompt.ids_P.cpu().expand(rows, -1), self._answers(tokens, length)], dim=1)
        lengths = torch.tensor([prompt.length + (len(token_T) if length else 0) for token_T in tokens])
        mask_NL = (torch.arange(ids_NL.shape[1]) < lengths[:, None]).long()
        media = {name: torch.cat([tensor] * rows) for name, tensor in prompt.media.items()}
        per_token = {name: tensor.expand(rows, -1) for name, tensor in longer.per_token.items()}
        inputs = {"input_ids": ids_NL, "attention_mask": mask_NL, **per_token, **media}
        return {name: self._placed(tensor) for name, tensor in inputs.items()}

    def _placed(self, tensor: Tensor) -> Tensor:
        tensor = tensor.to(self._model.device)
        return tensor.to(self._model.dtype) if tensor.is_floating_point() else tensor

    def _arithmetic(self) -> torch.autocast:
        return torch.autocast(self._model.device.type, dtype=self._autocast, enabled=self._autocast is not None)


def settings_of(bench: Bench, case: Case, **settings: Any) -> dict[str, Any]:
    """Settings of the policy with the completions of a case."""
    return {"max_new_tokens": TINY_TOKENS if bench.tiny else case.completion, **settings}


def policy_of(bench: Bench, case: Case, *, attention: str | None = None, **settings: Any) -> LanguagePolicy:
    """The policy on the device, with the same random weights each time.

    Args:
        bench: device and sizes.
        case: the model.
        attention: implementation of transformers; None: the model's default.
        settings: of the policy.

    Returns:
        The policy.
    """
    model, processor = model_and_processor(case, bench.device)
    if attention is not None:
        model.set_attn_implementation(attention)
    return LanguagePolicy(model, processor, settings_of(bench, case, **settings))


def learner_of(policy: LanguagePolicy, case: Case) -> Learner:
    """A learner of one prompt, with another score for every member of a group."""
    text, image = questions(case, 1)[0]
    prompts = [Prompt(text, images=[image] if case.shows else [])]
    return Learner(policy, prompts=prompts, rewards=[NamedReward("ramp", ramp)])


class LanguageRun:
    """A language policy on the device, warmed up by one iteration.

    Attributes:
        policy: the policy.
        direct: direct calls of its model.
        gap: largest difference of a log-probability between rollout and update.
        direct_gap: the same between rollout and a direct call.
        mean_gap: mean difference between rollout and a direct call.
    """

    def __init__(self, policy: LanguagePolicy, case: Case) -> None:
        """Runs one iteration of the policy, in which paths through the model are compared."""
        self.policy, self.learner = policy, learner_of(policy, case)
        self._rollout = self.learner.draw(GROUP)
        self._credit = self.learner.judge(self._rollout)
        self.gap = gap_of(self.learner.gradient(self._rollout, self._credit))
        self._clear()
        autocast = torch.bfloat16 if policy.settings.lora is None and case.published else None
        self.direct = DirectCalls(self.policy, self._rollout, autocast)
        gap_M = (self.direct.logprobs().cpu() - self._rollout.old_logprob_BT)[self._rollout.mask_BT].abs()
        self.direct_gap, self.mean_gap = float(gap_M.max()), float(gap_M.mean())

    def rollout(self) -> Rollout:
        """A group."""
        return self.learner.draw(GROUP)

    def gradient(self) -> None:
        """The gradient of the objective, cleared."""
        self.gap = max(self.gap, gap_of(self.learner.gradient(self._rollout, self._credit)))
        self._clear()

    def bare_gradient(self) -> None:
        """The gradient of a direct call, cleared."""
        self.direct.backward()
        self._clear()

    def update_flops(self) -> float:
        """Operations of the decoder and its head in the forward of an update; the vision tower's do not count."""
        config, prompt = self.policy.model.config.get_text_config(decoder=True), self.direct.prompt_length
        lengths = [len(sample.tokens or ()) for sample in self._rollout.samples]
        if self.policy.shares_prefix:
            segments = [(prompt, 0), *((length, prompt) for length in lengths)]
        else:
            segments = [(prompt + length, 0) for length in lengths]
        return decoder_forward(config, segments, sum(lengths))

    def _clear(self) -> None:
        for parameter in self.policy.trainable:
            parameter.grad = None


def vision_case(*, tiny: bool) -> Case:
    """The published shape with 784 image tokens, or the small one with 16."""
    return replace(CASES["image"], side=TINY_SIDE) if tiny else CASES["image-3b"]


def language_rows(bench: Bench, peak_rate: float) -> None:
    """Adapters, then every weight; of the latter the gradient alone, since its moments would fill the GPU."""
    case = vision_case(tiny=bench.tiny)
    for name, settings in (
        ("LoRA", {"lora": {"rank": 32, "alpha": 64.0}}),
        ("LoRA, rescore", {"lora": {"rank": 32, "alpha": 64.0}, "rescore": True}),
        ("all weights, gradient alone", {"lora": None}),
    ):
        title = f"Qwen2.5-VL-3B, 784 image tokens, G={GROUP}, {name}"
        if not bench.has_time:
            bench.row(title, {"skipped": "no time left in the section"})
            continue
        with bench.case(title):
            bench.row(title, _measured(bench, case, settings, peak_rate))


def _measured(bench: Bench, case: Case, settings: dict[str, Any], peak_rate: float) -> dict[str, Value]:
    device, run = bench.device, LanguageRun(policy_of(bench, case, **settings), case)
    rollouts, generations, updates, bare = [], [], [], []
    num_tokens = num_generated = rollout_peak = update_peak = 0
    for turn in range(bench.rounds):
        if turn and (not bench.has_time or settings.get("rescore")):
            break
        sampled, rollout_peak = peak(device, lambda: timed(device, run.rollout))
        num_tokens = sum(len(sample.tokens or ()) for sample in sampled.value.samples)
        rollouts.append(sampled.spent.wall_s)
        generated = timed(device, run.direct.generate)
        num_generated = generated.value
        generations.append(generated.spent.wall_s)
        updated, update_peak = peak(device, lambda: timed(device, run.gradient))
        updates.append(updated.spent.wall_s)
        bare.append(timed(device, run.bare_gradient).spent.wall_s)
    flops, passes = run.update_flops(), 2 if settings.get("lora") else 3
    return {
        "log-prob gap": run.gap,
        "ratio - 1": math.expm1(run.gap),
        "direct call, max gap": run.direct_gap,
        "direct call, mean gap": run.mean_gap,
        "path": type(run.policy.path).__name__,
        "shares prompt": run.policy.shares_prefix,
        "prompt tokens": run.direct.prompt_length,
        "tokens/s": num_tokens / median(rollouts),
        "generate tokens/s": num_generated / median(generations),
        "rollout s": median(rollouts),
        "gradient s": median(updates),
        "direct gradient s": median(bare),
        "direct / ours": [a / b for a, b in zip(bare, updates, strict=True)],
        "gradient MFU": passes * flops / median(updates) / peak_rate,
        "formula / counted": _formula_over_counted(run),
        "peak GiB rollout": rollout_peak / GIB,
        "peak GiB update": update_peak / GIB,
    }


def _formula_over_counted(run: LanguageRun) -> float:
    """Operations of a direct forward by formula, over those that torch counts, which include the vision tower."""
    direct, config = run.direct, run.policy.model.config.get_text_config(decoder=True)
    lengths = [direct.prompt_length + direct.length] * GROUP
    formula = decoder_forward(config, [(length, 0) for length in lengths], GROUP * (direct.length + 1))
    return formula / counted(direct.forward)
