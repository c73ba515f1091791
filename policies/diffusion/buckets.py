"""Sizes to draw in: each group in one of several, its rows in runs of their own."""

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
from .sampling_params import SamplingParams
from .settings import BucketSettings

BUCKET = -3  # keys the choice of a bucket, apart from every decision, the initial noise and levels that are read
SIZES = ("width", "height", "num_frames")
ASPECT_WEIGHT = 4.0  # how much more a change of form counts than one of area or length


@dataclass(frozen=True, slots=True)
class RowSet:
    """Rows of whole groups that are drawn alike."""

    groups: Sequence[Sequence[DenoisingRow]]
    drawing: SamplingParams

    @property
    def rows(self) -> list[DenoisingRow]:
        """All rows, group by group."""
        return [row for members in self.groups for row in members]


@dataclass(frozen=True, slots=True)
class Size:
    """Of a picture, or of a video with its number of frames, in pixels."""

    width: float
    height: float
    num_frames: float | None = None


@dataclass(frozen=True, slots=True)
class Buckets:
    """The sizes of a run; without settings all rows are drawn by the call as it is."""

    settings: BucketSettings | None = None

    def require_taken(self, form: CallForm) -> None:
        """Raises ConfigError for a bucket with an argument that the pipeline's call does not take."""
        names = {name for size in self._sizes for name in size}
        if unknown := sorted(name for name in names if not form.takes(name)):
            raise ConfigError(f"policy.buckets.sizes: the pipeline's call takes no {' and no '.join(unknown)}")

    def parts(self, groups: Sequence[Sequence[DenoisingRow]], drawing: SamplingParams) -> list[RowSet]:
        """The rows by bucket, in the order of the buckets; a group is in one, which is a function of its keys."""
        if self.settings is None:
            return [RowSet(groups, drawing)]
        chosen: dict[int, int] = {}
        found: dict[int, list[Sequence[DenoisingRow]]] = {}
        for members in groups:
            if members:
                bucket = chosen.setdefault(members[0].group, self._bucket_of(members[0]))
                found.setdefault(bucket, []).append(members)
        return [RowSet(found[bucket], _in_size(drawing, self._sizes[bucket])) for bucket in sorted(found)]

    def calls(self, examples: Sequence[Example], call: Mapping[str, Any]) -> list[Mapping[str, Any]]:
        """The call that draws what is likest in size to each finished picture or video: of a bucket, one object."""
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
        return derive_seed(row.seed, row.group, BUCKET) % len(self._sizes)

    def _nearest(self, size: Size) -> int:
        far = [_distance(size, Size(**bucket)) for bucket in self._sizes]
        return far.index(min(far))


def _in_size(drawing: SamplingParams, size: Mapping[str, int]) -> SamplingParams:
    call = {**size, **drawing.changed_call}
    return replace(drawing, call={**drawing.call, **call}, changes={**drawing.changes, "call": call})


def _size_of(row: DenoisingRow) -> Size:
    columns = row.prompt.columns
    stated: dict[str, Any] = {
        name: columns.get(name) for name in SIZES if name != "num_frames" or columns.get(name) is not None
    }
    if wrong := [f"{name} {value!r}" for name, value in stated.items() if not _is_length(value)]:
        raise DataError(
            "policy.buckets.choose: nearest reads numbers above 0 from the columns width, height and, if there, "
            f"num_frames, and the row {row.prompt.text!r} has {', '.join(wrong)}; give them, or choose: random"
        )
    return Size(**stated)


def _size_of_media(example: Example) -> Size:
    frames = [example.image] if example.image is not None else example.video or ()
    if not frames:
        raise DataError("policy.buckets: a sample that is neither picture nor video does not say which size is its own")
    return Size(frames[0].width, frames[0].height, len(frames) if example.video is not None else None)


def _is_length(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value > 0


def _distance(size: Size, bucket: Size) -> float:
    """ASPECT_WEIGHT |log of the ratio of the forms| + |log of that of the areas| + |log of that of the lengths|."""
    wide, high = log(size.width / bucket.width), log(size.height / bucket.height)
    long = log(size.num_frames / bucket.num_frames) if size.num_frames and bucket.num_frames else 0.0
    return ASPECT_WEIGHT * abs(wide - high) + abs(wide + high) + abs(long)
