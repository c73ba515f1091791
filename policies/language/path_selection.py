"""Selection of the forward path, made before the first row of a new kind is sampled or trained on."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

import torch
from transformers import PreTrainedModel

from mmgrpo.errors import ConfigError, PolicyError

from .encoding import EncodedPrompt
from .forward_paths import CachedPath
from .parity_check import ParityCase, RowKind, Tolerance, error_summary, first_exact_path, row_kind
from .plain_path import PlainPath
from .router_replay import RouterReplay
from .settings import LanguageSettings
from .transformer import Transformer

logger = logging.getLogger(__name__)


class PathSelector:
    """Selects the first candidate path that is exact on every kind of row so far.

    Attributes:
        path: the selected path.
    """

    def __init__(
        self,
        candidates: Sequence[CachedPath],
        plain: PlainPath,
        trial: ParityCase,
        tolerance: Tolerance,
        *,
        within: Callable[[], AbstractContextManager[None]],
        against: Sequence[str] = (),
    ) -> None:
        """Starts without a selection.

        Args:
            candidates: paths that are preferred to the plain one, best first.
            plain: the plain path.
            trial: the parity case; its prompts are filled in.
            tolerance: allowed difference from the plain call.
            within: a context of the trained weights, whose gradients are compared, for any active view.
            against: reasons why other paths are not candidates.
        """
        self.path: CachedPath | PlainPath = candidates[0] if candidates else plain
        self._candidates = candidates
        self._plain = plain
        self._trial = trial
        self._tolerance = tolerance
        self._within = within
        self._against = against
        self._prompts_of_kind: dict[RowKind, list[EncodedPrompt]] = {}

    def see(self, prompts: Sequence[EncodedPrompt]) -> CachedPath | PlainPath:
        """The path for rows of these prompts and of all earlier ones.

        Raises: PolicyError if no path is exact; no row of the new kind has been sampled then.
        """
        prompts_by_kind = {kind: list(kind_prompts) for kind, kind_prompts in self._prompts_of_kind.items()}
        for prompt in sorted((each.up_to_media for each in prompts), key=lambda p: p.length):
            _take(prompts_by_kind.setdefault(row_kind(prompt), []), prompt)
        if prompts_by_kind != self._prompts_of_kind:
            self._decide(prompts_by_kind)
            self._prompts_of_kind = prompts_by_kind
        return self.path

    def decode_uncompiled(self) -> None:
        """Decodes without compiled code from now on."""
        self._candidates = [replace(path, compiled=False) for path in self._candidates]
        if isinstance(self.path, CachedPath):
            self.path = replace(self.path, compiled=False)

    def _decide(self, prompts_by_kind: dict[RowKind, list[EncodedPrompt]]) -> None:
        prompts = [prompt for kind_prompts in prompts_by_kind.values() for prompt in kind_prompts]
        trial = self._trial.on(prompts, self._plain.vocabulary)
        with self._within():
            choice = first_exact_path(self._candidates, self._plain, trial, self._tolerance)
        reasons = "; ".join([*self._against, *choice.reasons])
        rows, model = ", ".join(map(_described, prompts_by_kind)), type(self._plain.model).__name__
        if choice.path is None:
            raise PolicyError(
                f"{model} cannot be trained on rows of {rows}: no forward path is exact ({reasons}); use another "
                "model, or prompts of another kind; policy.attention: eager helps where a kernel is not exact"
            )
        if reasons and (not self._prompts_of_kind or str(choice.path) != str(self.path)):
            logger.warning("%s on rows of %s: the run uses %s (%s)", model, rows, choice.path, reasons)
        if str(choice.path) != str(self.path) or choice.path.fill != self.path.fill:
            self.path = choice.path


@dataclass(frozen=True, slots=True, eq=False)
class PathCandidates:
    """The forward paths of a model, before any is checked.

    Attributes:
        per_group: paths that run a prompt once per group in updates too, if the cache allows it.
        per_row: paths that run each row in full in updates.
        plain: the plain path.
        against: reasons why other paths are missing.
    """

    per_group: Sequence[CachedPath]
    per_row: Sequence[CachedPath]
    plain: PlainPath
    against: Sequence[str]


def path_candidates(
    model: PreTrainedModel,
    settings: LanguageSettings,
    autocast: torch.dtype | None,
    *,
    forward_tokens: Callable[[], int],
) -> PathCandidates:
    """The forward paths that the model's class and the settings allow.

    Args:
        model: the model.
        settings: settings of the policy.
        autocast: dtype of the arithmetic, if it differs from that of the weights.
        forward_tokens: tokens of padding that are as bad as another forward.

    Returns:
        The paths.

    Raises:
        PolicyError: the model has no ``generate``.
        ConfigError: its cache does not support the settings.
    """
    if not model.can_generate():
        raise PolicyError(f"{type(model).__name__} has no generate: use a model with a language head")
    vocabulary = model.config.get_text_config(decoder=True).vocab_size
    against: list[str] = []
    transformer = None
    try:
        transformer = Transformer(
            model, autocast=autocast, feature_bytes=settings.memo_bytes, compiled=settings.compile
        )
        vocabulary = transformer.vocabulary
    except Exception as error:
        against = [f"cached: {error_summary(error)}"]
    if settings.compile and (transformer is None or not transformer.compiles):
        raise ConfigError(
            f"policy.compile needs full attention in every layer, which {type(model).__name__} does not have"
        )
    limits = {"vocabulary": vocabulary, "max_tokens": settings.update_tokens}
    per_row: list[CachedPath] = []
    if transformer is not None:
        batches = CachedPath(
            transformer=transformer,
            shared=False,
            compiled=settings.compile,
            packed=settings.padding_free,
            forward_tokens=forward_tokens,
            **limits,
        )
        if settings.router_replay:
            batches = replace(batches, routes=RouterReplay(model))
        in_slots = transformer.takes_slots and not settings.compile
        per_row = [replace(batches, slots=True), batches] if in_slots else [batches]
    per_group = [replace(path, shared=True) for path in per_row] if _may_share(model, settings, transformer) else []
    return PathCandidates(per_group, per_row, PlainPath(model=model, autocast=autocast, **limits), against)


def _may_share(model: PreTrainedModel, settings: LanguageSettings, transformer: Transformer | None) -> bool:
    wanted = settings.shares_prefix
    can = transformer is not None and transformer.shares_prefix
    if wanted and not can:
        raise ConfigError(
            f"policy.share_prefix is true, but rows cannot share the cache of {type(model).__name__}; leave it unset"
        )
    return can if wanted is None else wanted


def _take(prompts: list[EncodedPrompt], prompt: EncodedPrompt) -> None:
    """Adds a prompt if it is the first of its kind, or the second with another length."""
    if not prompts or (len(prompts) == 1 and prompts[0].length != prompt.length):
        prompts.append(prompt)


def _described(kind: RowKind) -> str:
    counts = ("no", "one", "several")
    media = [(kind[1], "picture"), (kind[2], "video"), (kind[3], "sound")]
    counted = [f"{counts[count]} {word}{'s' * (count > 1)}" for count, word in media if count]
    described = " and ".join(counted) or "text alone"
    return f"{described} beyond the original context" if kind[4] else described
