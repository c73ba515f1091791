"""Image sizes (buckets): each group is sampled in one of several, its rows in separate runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import log
from typing import Any

from mmgrpo.errors import ConfigError, DataError
from mmgrpo.maths.seeds import derive_seed
from mmgrpo.types import Example

from .call_form import CallForm
from .denoising_rows import DenoisingRow
from .outputs import SIZES
from .sampling_params import SamplingParams
from .settings import BucketSettings

BUCKET_CHOICE = -3  # seed key of the bucket choice, distinct from decisions, the initial noise and renoising levels
ASPECT_WEIGHT = 4.0  # weight of a change of aspect ratio, relative to one of area or length


@dataclass(frozen=True, slots=True)
class RowSet:
    """Rows of complete groups with the same sampling parameters."""

    groups: Sequence[Sequence[DenoisingRow]]
    params: SamplingParams

    @property
    def rows(self) -> list[DenoisingRow]:
        """All rows, group by group."""
        return [row for members in self.groups for row in members]


@dataclass(frozen=True, slots=True)
class Size:
    """Size of an image, or of a video with its number of frames, in pixels."""

    width: float
    height: float
    num_frames: float | None = None


@dataclass(frozen=True, slots=True)
class Buckets:
    """The buckets of a run; without settings all rows are sampled at the size of the call."""

    settings: BucketSettings | None = None

    def require_supported(self, form: CallForm) -> None:
        """Raises ConfigError for a bucket argument that the pipeline's call does not take."""
        names = {name for size in self._sizes for name in size}
        if unknown := sorted(name for name in names if not form.takes(name)):
            raise ConfigError(f"policy.buckets.sizes: the pipeline's call has no argument {', '.join(unknown)}")

    def row_sets(self, groups: Sequence[Sequence[DenoisingRow]], params: SamplingParams) -> list[RowSet]:
        """The rows by bucket, in the order of the buckets. A group is in one bucket, a function of its seed keys."""
        if self.settings is None:
            return [RowSet(groups, params)]
        chosen: dict[int, int] = {}
        groups_of: dict[int, list[Sequence[DenoisingRow]]] = {}
        for members in groups:
            if members:
                bucket = chosen.setdefault(members[0].group, self._bucket_of(members[0]))
                groups_of.setdefault(bucket, []).append(members)
        return [RowSet(groups_of[bucket], _in_size(params, self._sizes[bucket])) for bucket in sorted(groups_of)]

    def calls(self, examples: Sequence[Example], call: Mapping[str, Any]) -> list[Mapping[str, Any]]:
        """Per finished image or video, the call of the bucket nearest in size; one object per bucket."""
        if self.settings is None:
            return [call] * len(examples)
        sized = [{**call, **size} for size in self._sizes]
        return [sized[self._nearest(_size_of_media(example))] for example in examples]

    @property
    def _sizes(self) -> Sequence[dict[Any, int]]:
        return () if self.settings is None else self.settings.sizes

    def _bucket_of(self, row: DenoisingRow) -> int:
        assert self.settings is not None
        if self.settings.choose == "nearest":
            return self._nearest(_size_of(row))
        return derive_seed(row.seed, row.group, BUCKET_CHOICE) % len(self._sizes)

    def _nearest(self, size: Size) -> int:
        distances = [_distance(size, Size(**bucket)) for bucket in self._sizes]
        return distances.index(min(distances))


def _in_size(params: SamplingParams, size: Mapping[str, int]) -> SamplingParams:
    call = {**size, **params.changed_call}
    return replace(params, call={**params.call, **call}, changes={**params.changes, "call": call})


def _size_of(row: DenoisingRow) -> Size:
    columns = row.prompt.columns
    sizes: dict[str, Any] = {
        name: columns.get(name) for name in SIZES if name != "num_frames" or columns.get(name) is not None
    }
    if wrong := [f"{name} {value!r}" for name, value in sizes.items() if not _is_length(value)]:
        raise DataError(
            "policy.buckets.choose: nearest needs numbers above 0 in the columns width, height and (optional) "
            f"num_frames; the row {row.prompt.text!r} has {', '.join(wrong)}. Add them, or set choose: random"
        )
    return Size(**sizes)


def _size_of_media(example: Example) -> Size:
    frames = [example.image] if example.image is not None else example.video or ()
    if not frames:
        raise DataError("policy.buckets needs samples with an image or a video, to select the bucket by their size")
    return Size(frames[0].width, frames[0].height, len(frames) if example.video is not None else None)


def _is_length(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value > 0


def _distance(size: Size, bucket: Size) -> float:
    """ASPECT_WEIGHT |log ratio of aspect ratios| + |log ratio of areas| + |log ratio of lengths|."""
    wide, high = log(size.width / bucket.width), log(size.height / bucket.height)
    long = log(size.num_frames / bucket.num_frames) if size.num_frames and bucket.num_frames else 0.0
    return ASPECT_WEIGHT * abs(wide - high) + abs(wide + high) + abs(long)
