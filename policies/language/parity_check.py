"""Parity check: whether a forward path agrees with the model's plain call in values, gradients and decoded tokens.

The plain call, one row at a time and without padding, is the reference. Every kind of row of a run is checked before
the first one is sampled: text only, one image, several, videos, prompts of one length and of several.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from mmgrpo.differentiating import gradients_of
from mmgrpo.errors import PolicyError
from mmgrpo.system.out_of_memory import is_out_of_memory

from ..completion import Completion
from ..sampling import SamplingDistribution
from ..token_buffer import TokenBuffer
from .encoding import EncodedPrompt
from .forward_paths import CachedPath, ForwardPath
from .plain_path import FILLS, PlainPath
from .text_trace import TextTrace
from .token_scoring import score_rows

LENGTHS = (3, 2)  # tokens of the two completions of each prompt
ENTRIES = 65536  # compared entries of a gradient, evenly spaced
SMALL = 0.03  # least norm of a gradient in its comparison, as a share of the full norm
NOISE = 4.0  # allowed multiple of the difference that padding alone causes
NUM_ROUNDINGS = 2  # number of perturbed roundings to measure


@dataclass(frozen=True, slots=True, kw_only=True)
class Tolerance:
    """Allowed difference of a path from the plain call.

    Attributes:
        value: of a log-probability, in nats.
        gradient: of a parameter's gradient, relative to its norm.
        noisy: whether rounding may exceed these limits and is measured on the model; the measured difference is then
            allowed, up to ``most_value`` and ``most_gradient``.
        most_value: largest limit on ``value``.
        most_gradient: largest limit on ``gradient``.
    """

    value: float
    gradient: float
    noisy: bool = False
    most_value: float = 0.0
    most_gradient: float = 0.0


TOLERANCES = {
    torch.float32: Tolerance(value=1e-3, gradient=2e-3),
    torch.bfloat16: Tolerance(value=0.02, gradient=0.02, noisy=True, most_value=0.25, most_gradient=0.3),
    torch.float16: Tolerance(value=0.01, gradient=0.01, noisy=True, most_value=0.1, most_gradient=0.1),
}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ParityCase:
    """The rows on which paths are compared.

    Attributes:
        trace: prompts of every kind, each with two completions of different lengths.
        sampling: the distribution of the scores, without truncation.
        parameters: returns the trained parameters; if there are none, only values are compared.
        head_bytes: maximum size of float32 logits in memory.
        end_ids: tokens that end a completion; none is in the trace.
        special: further tokens that are not in the trace; some models count positions after their padding token.
        checkpointing: context for the computation of gradients.
    """

    trace: TextTrace
    sampling: SamplingDistribution
    parameters: Callable[[], Sequence[nn.Parameter]]
    head_bytes: int
    end_ids: Tensor
    special: Sequence[int]
    checkpointing: Callable[[], AbstractContextManager[None]]

    def on(self, prompts: Sequence[EncodedPrompt], vocabulary: int) -> ParityCase:
        """The same case with other prompts: two completions each, sampled uniformly from all tokens that do not end a
        text.
        """
        sampling, end_ids = replace(self.sampling, top_k=None, top_p=None, min_p=None), self.end_ids
        weight_V = torch.ones(vocabulary)
        weight_V[[t for t in (*sampling.suppressed.tolist(), *end_ids.tolist(), *self.special) if t < vocabulary]] = 0
        generator = torch.Generator().manual_seed(0)
        lengths = LENGTHS * len(prompts)
        token_lists = [weight_V.multinomial(length, generator=generator) for length in lengths]
        completions = [Completion.recorded(token_T, sampling, logprob_T=None) for token_T in token_lists]
        trace = TextTrace(prompts, [row // len(LENGTHS) for row in range(len(lengths))], completions)
        return replace(self, trace=trace, sampling=sampling)

    @property
    def rows(self) -> range:
        """Rows of the trace."""
        return range(len(self.trace.completions))


@dataclass(frozen=True, slots=True, eq=False)
class PathOutputs:
    """Outputs of a path for the rows of a parity case.

    Attributes:
        logprob_M: log-probabilities of the tokens, row by row.
        gradients: entries of every trained parameter's gradient, of a fixed weighted sum of the log-probabilities.
    """

    logprob_M: Tensor
    gradients: Sequence[Tensor]

    def value_gap(self, other: PathOutputs) -> float:
        """The largest difference of a log-probability."""
        return _largest(self.logprob_M - other.logprob_M)

    def gradient_gap(self, other: PathOutputs) -> float:
        """The largest difference of a parameter's gradient, relative to its norm."""
        pairs = list(zip(self.gradients, other.gradients, strict=True))
        if not pairs:
            return 0.0
        norms = torch.stack([theirs.norm() for _, theirs in pairs])
        floor = SMALL * norms.norm()
        gaps = torch.stack([(ours - theirs).norm() for ours, theirs in pairs])
        return _largest(gaps / torch.maximum(norms, floor).clamp(min=1e-30))


def measure_path(path: ForwardPath, trial: ParityCase, *, alone: bool = False) -> PathOutputs:
    """Outputs of a path for the rows, in its own batches or one row at a time."""
    weight_MT = _weights(trial)
    values: dict[int, Tensor] = {}
    parameters = trial.parameters()
    gradients = [torch.zeros(0)] * len(parameters)
    for batch in [[row] for row in trial.rows] if alone else path.batches(trial.trace, trial.rows):
        with torch.set_grad_enabled(len(parameters) > 0), trial.checkpointing():
            logprob_M, _ = score_rows(path, trial.trace, batch, head_bytes=trial.head_bytes)
            lengths = [len(trial.trace.completions[row].token_T) for row in batch]
            values |= zip(batch, logprob_M.detach().cpu().split(lengths), strict=True)
            weights = torch.cat([weight_MT[row][:length] for row, length in zip(batch, lengths, strict=True)])
            total = (weights.to(logprob_M) * logprob_M).sum()
            if parameters and not total.requires_grad:
                raise ValueError("no gradient reaches the trained parameters")
        grads = gradients_of(total, parameters) if parameters else ()  # after the context, as in an update
        for number, gradient in enumerate(grads):
            if gradient is not None:
                entries = _entries(gradient)
                gradients[number] = entries if len(gradients[number]) == 0 else gradients[number] + entries
    entries = [_entries(torch.zeros_like(p)) if len(g) == 0 else g for g, p in zip(gradients, parameters, strict=True)]
    return PathOutputs(torch.cat([values[row] for row in trial.rows]), entries)


def decoded_logprobs(path: ForwardPath, trial: ParityCase) -> Tensor:
    """Log-probabilities of the case's tokens from decoding, row by row."""
    prompts, completions = trial.trace.prompts, trial.trace.completions
    forced_NT = pad_sequence([c.token_T for c in completions], batch_first=True)
    logprobs_by_row: dict[int, Tensor] = {}
    for batch in path.decode_batches(prompts, trial.trace.prompt_of_B, len(completions)):
        owners = sorted({trial.trace.prompt_of_B[row] for row in batch})
        buffer = TokenBuffer(
            trial.sampling,
            limit_N=torch.full((len(batch),), forced_NT.shape[1]),
            device=trial.end_ids.device,
            forced_NT=forced_NT[batch],
        )
        index = [owners.index(trial.trace.prompt_of_B[row]) for row in batch]
        path.write([prompts[owner] for owner in owners], index, buffer, trial.end_ids)
        lengths = [len(completions[row].token_T) for row in batch]
        decoded = buffer.completions(trial.end_ids[:0])
        logprobs_by_row |= {
            row: completion.logprob_T[:length] for row, completion, length in zip(batch, decoded, lengths, strict=True)
        }
    return torch.cat([logprobs_by_row[row] for row in trial.rows])


def parity_error(path: ForwardPath, trial: ParityCase, truth: PathOutputs, tolerance: Tolerance) -> str | None:
    """Why a path is not exact on the rows of the case; None if it is exact."""
    try:
        gap = _largest(decoded_logprobs(path, trial) - truth.logprob_M)
        if not gap <= tolerance.value:
            return f"its decoding differs by {gap:.1e} nats from the model's plain call"
        ours = measure_path(path, trial)
    except Exception as error:
        return error_summary(error)
    if not (gap := ours.value_gap(truth)) <= tolerance.value:
        return f"its log-probabilities differ by {gap:.1e} from the model's plain call"
    if not (gap := ours.gradient_gap(truth)) <= tolerance.gradient:
        return f"its gradients differ by {gap:.1%} from the plain call's"
    return None


@dataclass(frozen=True, slots=True, eq=False)
class PathChoice:
    """The selected path.

    Attributes:
        path: the first exact path; None if none is.
        reasons: why the paths before it were rejected, without repeats.
    """

    path: CachedPath | PlainPath | None
    reasons: Sequence[str]


def first_exact_path(
    candidates: Sequence[CachedPath], plain: PlainPath, trial: ParityCase, tolerance: Tolerance
) -> PathChoice:
    """The first path that is exact on the rows of the case; the plain path is the last candidate.

    The plain call may depend on the value of per-token tensors at tokens of a completion (for example, whether they
    belong to the prompt): every value is tried, and the one under which a path agrees with the call is kept.
    """
    reasons: list[str] = []
    tensors = [(p, t) for p in trial.trace.prompts for t in (*p.per_token.values(), *p.media.values())]
    asks = any(tensor.shape[:2] == (1, prompt.length) for prompt, tensor in tensors)
    for fill in FILLS if asks else FILLS[:1]:
        calling = replace(plain, fill=fill)
        try:
            truth = measure_path(calling, trial, alone=True)
            if not bool(torch.isfinite(truth.logprob_M).all()):
                raise ValueError("its log-probabilities are not finite")
            allowed = _allowed(calling, trial, truth, tolerance)
        except Exception as error:
            reasons.append(f"plain call: {error_summary(error)}")
            continue
        for path in (*candidates, calling, replace(calling, batched=False)):
            path = replace(path, fill=fill)
            reason = parity_error(path, trial, truth, allowed)
            if reason is None:
                return PathChoice(path, list(dict.fromkeys(reasons)))
            reasons.append(f"{path}: {reason}")
    return PathChoice(None, list(dict.fromkeys(reasons)))


@torch.no_grad()
def require_plain_agreement(
    plain: PlainPath, trace: TextTrace, row: int, tolerance: Tolerance, *, head_bytes: int
) -> None:
    """Raises PolicyError if the model's plain call does not give the log-probabilities that a row has from sampling.

    Decisions that the row took over from another are left out: other weights may have sampled them.
    """
    completion = trace.completions[row]
    is_sampled_T = completion.is_decision_T & (torch.arange(len(completion.token_T)) >= completion.num_inherited)
    if not bool(is_sampled_T.any()):
        return
    true_T, _ = score_rows(plain, trace, [row], head_bytes=head_bytes)
    difference_T = (true_T.cpu() - completion.logprob_T).abs().where(is_sampled_T, 0.0)
    limit, last = max(tolerance.value, tolerance.most_value), _start_after_media(completion)
    name = type(plain.model).__name__
    for part in (slice(0, last), slice(last, None)):
        gap = float(difference_T[part].sum() / is_sampled_T[part].sum().clamp(min=1))
        if gap <= limit:
            continue
        if part.stop:
            raise PolicyError(
                f"{name} gives other log-probabilities (by {gap:.1e}) to the turns before the environment's last turn "
                "with media than when it sampled them: its features of a medium depend on the other media of a "
                "conversation, as where audio is padded to the longest. Let the environment return media of the size "
                "and duration of those in the prompt, or use another model"
            )
        length = trace.prompts[trace.prompt_of_B[row]].length + len(completion.token_T)
        raise PolicyError(
            f"{name} gives log-probabilities in a plain call that differ by {gap:.1e} from those of its decoding, in a "
            f"row of {length} tokens: its attention or its positions are not exact at that length; try "
            "policy.attention: eager, or keep prompts and policy.max_new_tokens shorter"
        )


def _start_after_media(completion: Completion) -> int:
    """The first token of the policy after the environment's last turn with media; 0 without such a turn."""
    following = pairwise(completion.turns)
    return max((turn.start for before, turn in following if before.reply and before.reply.num_media), default=0)


@dataclass(slots=True)
class VerifiedRows:
    """Record of the rows that were compared with the plain call after sampling.

    Attributes:
        length: number of tokens of the longest one, including its prompt.
        kinds: kinds of their prompts.
    """

    length: int = 0
    kinds: set[Any] = field(default_factory=set)

    def rows_of(self, trace: TextTrace, *, only_first: bool) -> list[int]:
        """Rows of a rollout to compare: the unlikeliest of the first rollout, and the longest of each new kind.

        A row is new if it is longer than all before or its prompt is of a new kind: effects that depend on the
        length, such as rotary embeddings that are scaled from some length on, do not appear in shorter rows.

        Args:
            trace: trace of the rollout.
            only_first: compare the unlikeliest row of the first rollout only, for sharded weights: all processes
                must run the same number of forwards.

        Returns:
            The rows.
        """
        decided = [row for row, completion in enumerate(trace.completions) if bool(completion.is_decision_T.any())]
        lengths = {
            row: trace.prompts[trace.prompt_of_B[row]].length + len(trace.completions[row].token_T) for row in decided
        }
        rows = [] if self.kinds else [min(decided, key=lambda row: float(trace.completions[row].logprob_T.sum()))]
        if only_first:
            self.kinds |= {row_kind(trace.prompts[trace.prompt_of_B[row]]) for row in rows}
            return rows
        longest: dict[Any, int] = {}
        for row in sorted(decided, key=lambda row: (lengths[row], -row)):
            longest[row_kind(trace.prompts[trace.prompt_of_B[row]])] = row
        for kind, row in longest.items():
            if kind not in self.kinds or lengths[row] > self.length:
                rows.append(row)
        self.kinds |= longest.keys()
        self.length = max(self.length, *lengths.values())
        return list(dict.fromkeys(rows))


RowKind = tuple[tuple[str, ...], int, int, int, bool]


def row_kind(prompt: EncodedPrompt) -> RowKind:
    """The kind of a prompt: names of its tensors, number of its media, how its positions are scaled."""
    names = tuple(sorted({*prompt.per_token, *prompt.media}))
    prompt_media = (prompt.prompt.images, prompt.prompt.videos, prompt.prompt.audios)
    images, videos, sounds = (min(len(media), 2) for media in prompt_media)
    return names, images, videos, sounds, prompt.is_beyond_switch


def error_summary(error: Exception) -> str:
    """The first line of an error of another library; re-raises out-of-memory errors."""
    if is_out_of_memory(error):
        raise error
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]:.200}"


def _allowed(plain: PlainPath, trial: ParityCase, truth: PathOutputs, tolerance: Tolerance) -> Tolerance:
    """The tolerance, widened by the effect of rounding on the plain call if its arithmetic is coarse.

    Measured on the model: ``NOISE`` times the effect of padding, and the effect of one rounding step up or down on
    every output of a matrix product, which another order of summation may cause.
    """
    if not tolerance.noisy:
        return tolerance
    padded = measure_path(plain, trial)
    values, gradients = [NOISE * padded.value_gap(truth)], [NOISE * padded.gradient_gap(truth)]
    for seed in range(NUM_ROUNDINGS):
        with perturbed_rounding(plain.model, seed):
            rounded = measure_path(plain, trial, alone=True)
        values.append(rounded.value_gap(truth))
        gradients.append(rounded.gradient_gap(truth))
    return replace(
        tolerance,
        value=min(max(tolerance.value, *values), tolerance.most_value),
        gradient=min(max(tolerance.gradient, *gradients), tolerance.most_gradient),
    )


@contextmanager
def perturbed_rounding(model: nn.Module, seed: int) -> Iterator[None]:
    """A context in which every half-precision output of a matrix product is rounded one step up or down, at random.

    Args:
        model: the model whose matrix products are perturbed.
        seed: seed of the directions.

    Yields:
        None: nothing.
    """
    generator = torch.Generator().manual_seed(seed)

    def jitter(module: nn.Module, inputs: Any, output: Any) -> Any:
        if not isinstance(output, Tensor) or output.dtype not in (torch.bfloat16, torch.float16):
            return None
        sign = torch.randint(0, 2, output.shape, generator=generator).to(output.device) * 2 - 1
        return (output.float() * (1 + sign * torch.finfo(output.dtype).eps / 2)).to(output.dtype)

    products = [module for module in model.modules() if _is_matrix_product(module)]
    hooks = [module.register_forward_hook(jitter) for module in products]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _is_matrix_product(module: nn.Module) -> bool:
    weight = getattr(module, "weight", None)
    return isinstance(weight, Tensor) and weight.ndim == 2 and not isinstance(module, nn.Embedding)


def _weights(trial: ParityCase) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return 1 + torch.rand(len(trial.rows), max(LENGTHS), generator=generator)


def _entries(gradient: Tensor) -> Tensor:
    flat = gradient.detach().flatten()
    return flat[:: max(1, len(flat) // ENTRIES)].float().cpu()


def _largest(difference: Tensor) -> float:
    return float(difference.abs().max()) if difference.numel() else 0.0
