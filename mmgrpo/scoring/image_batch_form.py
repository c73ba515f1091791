"""Adapter for flow_grpo's reward functions, which take images, prompts and metadata."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from inspect import Parameter, signature
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from mmgrpo.data.image_loading import load_image
from mmgrpo.errors import ConfigError, RewardError
from mmgrpo.scoring.result_parsing import to_list
from mmgrpo.types import Sample

_IMAGES, _PROMPTS, _METADATA = ("images",), ("prompts",), ("metadata", "metadatas")


def is_image_batch_form(parameters: Mapping[str, Parameter]) -> bool:
    """Whether a function's parameters begin with ``images, prompts, metadata`` (or ``metadatas``).

    Keyword-only parameters with a default, such as those that a ``partial`` sets, do not count.

    Args:
        parameters: as ``inspect.signature`` gives them.

    Returns:
        True if they do.
    """
    names = [name for name, parameter in parameters.items() if not _is_set(parameter)][:3]
    return len(names) == 3 and all(
        name in form for name, form in zip(names, (_IMAGES, _PROMPTS, _METADATA), strict=True)
    )


def _is_set(parameter: Parameter) -> bool:
    return parameter.kind is Parameter.KEYWORD_ONLY and parameter.default is not Parameter.empty


def parameters_of(function: Callable[..., Any]) -> Mapping[str, Parameter]:
    """The parameters of a function, or of the ``forward`` of a module of torch.

    Raises TypeError or ValueError for a builtin without a signature.
    """
    return signature(function.forward if isinstance(function, torch.nn.Module) else function).parameters


@final
class ImageBatchReward:
    """A reward function in flow_grpo's form, as a ``Reward``.

    The function is called with ``images``, a float32 tensor (N, 3, H, W) in [0, 1], or (N, F, 3, H, W) for videos;
    ``prompts``, a list of N texts; ``metadata``, a list of N dicts, the columns of the rows; and with ``only_strict``
    where the function requires it. It returns the scores, or the pair (scores, info), where scores are N numbers (a
    list, array or tensor) or a dict of such lists, of which ``avg`` is used. Each image size is scored by a separate
    call; samples without an image or video get None.

    Source: flow_grpo, flow_grpo/rewards.py and its call in scripts/train_sd3.py. Deviation: ``info`` is not logged.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        """Wrap a function.

        Args:
            function: with the parameters ``images, prompts, metadata``.

        Raises:
            ConfigError: the function requires other arguments as well.
        """
        parameters = parameters_of(function)
        first = [parameter for parameter in parameters.values() if not _is_set(parameter)][:3]
        self._keywords = [parameter.name for parameter in first] if first[0].kind is Parameter.KEYWORD_ONLY else []
        self.__name__ = getattr(function, "__name__", type(function).__name__)
        required = [
            name
            for name, parameter in parameters.items()
            if parameter.default is Parameter.empty
            and parameter.kind in (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
        ]
        names = {parameter.name for parameter in first}
        others = [name for name in required if name not in names and name != "only_strict"]
        if others:
            raise ConfigError(
                f"{self.__name__} has flow_grpo's form (images, prompts, metadata), but also requires "
                f"{', '.join(others)}, which mmgrpo does not pass; give it a default"
            )
        self._function = function
        self._strict = {"only_strict": True} if "only_strict" in required else {}

    def __call__(self, samples: Sequence[Sample]) -> Sequence[float | None]:
        values: list[Any] = [None] * len(samples)
        pixels = {row: _pixels(sample) for row, sample in enumerate(samples)}
        by_shape: dict[torch.Size, list[int]] = {}
        for row, pixels_FCHW in pixels.items():
            if pixels_FCHW is not None:
                by_shape.setdefault(pixels_FCHW.shape, []).append(row)
        for rows in by_shape.values():
            images = torch.stack([pixels[row] for row in rows])  # type: ignore[misc]
            prompts = [samples[row].prompt for row in rows]
            values_of = (images, [prompt.text for prompt in prompts], [dict(prompt.columns) for prompt in prompts])
            if self._keywords:
                returned = self._function(**dict(zip(self._keywords, values_of, strict=True)), **self._strict)
            else:
                returned = self._function(*values_of, **self._strict)
            for row, value in zip(rows, to_list(_scores(returned, self.__name__), len(rows)), strict=True):
                values[row] = value
        return values


def _pixels(sample: Sample) -> Tensor | None:
    """(3, H, W) of an image or (F, 3, H, W) of a video, in [0, 1]."""
    if sample.image is not None:
        return _image(sample.image)
    return None if sample.video is None else torch.stack([_image(frame) for frame in sample.video])


def _image(image: Any) -> Tensor:
    pixels_HWC = np.asarray(load_image(image), dtype=np.float32)
    return torch.from_numpy(pixels_HWC / 255).permute(2, 0, 1).contiguous()


def _scores(returned: Any, name: str) -> Any:
    scores = returned[0] if isinstance(returned, tuple) and len(returned) == 2 else returned
    if not isinstance(scores, Mapping):
        return scores
    if "avg" not in scores and len(scores) != 1:
        raise RewardError(f"{name} returned scores under {', '.join(map(str, scores))}; one of them must be named avg")
    return scores["avg"] if "avg" in scores else next(iter(scores.values()))
