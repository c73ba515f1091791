"""Finished samples as rows of decisions: noised again at keyed levels, the network's error there a decision's score."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from mmgrpo.errors import ConfigError, DataError
from mmgrpo.maths.divergences import LOGPROB_DIVERGENCES
from mmgrpo.maths.matching import MatchingErrors, matching_errors
from mmgrpo.maths.seeds import derive_seed
from mmgrpo.types import Evaluation, Example, OffPolicySample, Plan, Rollout
from mmgrpo.values import OLD, Value

from .batches import Batches
from .branching import branching_of
from .buckets import Buckets
from .call_form import CallForm
from .denoising_rows import INITIAL_NOISE, DenoisingRow, call_has_media
from .denoising_scorer import require_grad
from .instrumented_pipeline import InstrumentedPipeline
from .noised_prediction import CleanSample, NoisedPrediction, predict_at_levels, two_step_call
from .parity import BatchParity
from .sampling_params import checked_call
from .settings import ReadingSettings
from .supervised_denoising import Targets

READ = -2  # keys levels and their noise, apart from every decision that is drawn and from the initial noise
ERROR, LEVEL = Value("error"), Value("level")
IMPLIED = ("positive_error", "negative_error")
DIVERGENCES = ("velocity_mse", *LOGPROB_DIVERGENCES)


@dataclass(frozen=True, slots=True, kw_only=True)
class RenoisedTrace:
    """The record of rows that were read.

    Attributes:
        cleans: per row, the sample at each of its T levels.
        reading: how levels are drawn and errors weighed.
        calls: per row, arguments of the pipeline's call; of rows that may run together one object.
        old: per row, what the network said when it was read, T states, if the plan asks for what takes it.
    """

    cleans: tuple[tuple[CleanSample, ...], ...]
    reading: ReadingSettings
    calls: tuple[Mapping[str, Any], ...]
    old: tuple[tuple[Tensor, ...], ...] | None = None


def require_read_values(values: Collection[Value], kept: Collection[str]) -> None:
    """Raises ConfigError for a value that read rows do not have, or of a view that is not kept."""
    views = {OLD, *kept}
    for value in values:
        named = ("logprob", *IMPLIED, *DIVERGENCES)
        is_known = value in (ERROR, LEVEL) or (value.view in views and value.name in named)
        if is_known and len(value.numbers) == (value.name in IMPLIED):
            continue
        raise ConfigError(
            f"samples that are read have no value {value}: leave out what asks for it; known are {ERROR}, {LEVEL}, and "
            f"{', '.join(named)} of {', '.join(sorted(views))}, {' and '.join(IMPLIED)} with their strength"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Renoiser:
    """Reads finished samples, and scores what it read.

    Attributes:
        stage: the pipeline.
        targets: encodes pictures and videos.
        batches: how many noised samples share a run.
        parity: compares rows alone with rows beside longer prompts.
        using: the weights of a view, within the context.
        reading: how levels are drawn and errors weighed.
        call: arguments of the pipeline's call.
        buckets: sizes that it is asked for instead.
    """

    stage: InstrumentedPipeline
    targets: Targets
    batches: Batches
    parity: BatchParity
    using: Callable[[str], AbstractContextManager[None]]
    reading: ReadingSettings
    call: Mapping[str, Any]
    buckets: Buckets

    def read(self, given: Sequence[OffPolicySample], seed: int, plan: Plan) -> Rollout:
        """``SupportsOffPolicyScoring.read``."""
        reading, call = _settings(self, plan.settings, self.stage.form)
        T = reading.num_levels
        _require_readable(given, T)
        noised = replace(plan, same_initial_noise=True) if reading.shared else plan
        branching = branching_of(noised, 1 + max(one.sample.member for one in given))
        rows = [
            DenoisingRow(
                prompt=one.sample.prompt,
                seed=seed,
                group=one.sample.group,
                member=one.sample.member,
                branching=branching,
                entry=entry,
            )
            for entry, one in enumerate(given)
        ]
        examples = [
            Example(s.prompt, image=s.image, video=s.video, audio=s.audio) for s in (one.sample for one in given)
        ]
        calls = self.buckets.calls(examples, call)
        for shared in {id(one): one for one in calls}.values():
            self.parity.settle([row for row, own in zip(rows, calls, strict=True) if own is shared], shared)
        trace = RenoisedTrace(
            cleans=tuple(
                tuple(CleanSample(row=row, data=state, seed=_key(row, place), place=place) for place in range(T))
                for row, state in zip(rows, self._states(given, examples, rows, calls), strict=True)
            ),
            reading=reading,
            calls=tuple(calls),
        )
        B = len(given)
        rollout = Rollout(
            samples=[one.sample for one in given],
            prompt_index_B=torch.tensor([row.group for row in rows]),
            old_logprob_BT=torch.zeros(B, T),
            mask_BT=torch.ones(B, T, dtype=torch.bool),
            state_BT=torch.arange(B * T).reshape(B, T),
            segment_BT=torch.arange(T).expand(B, T),
            trace=trace,
            origin_B=torch.tensor([int(one.origin) for one in given]),
        )
        return self._at_the_weights_of_now(rollout, given, keeps_old=any(value.view == OLD for value in plan.values))

    @torch.no_grad()
    def _at_the_weights_of_now(self, rollout: Rollout, given: Sequence[OffPolicySample], *, keeps_old: bool) -> Rollout:
        """The rollout with its log-probabilities and levels, and the predictions of now where they are asked for."""
        trace: RenoisedTrace = rollout.trace
        logprob_BT, level_BT = torch.zeros(rollout.shape), torch.zeros(rollout.shape)
        old: list[list[Tensor]] = [[torch.empty(0)] * rollout.shape[1] for _ in given]
        num_forwards = 0
        for cells in self._runs(rollout, range(len(given))):
            found = self._matched(trace, cells)
            num_forwards += found.num_forwards
            index = torch.tensor(cells).T
            logprob_BT[index[0], index[1]] = _logprob_N(found, trace.reading).cpu()
            level_BT[index[0], index[1]] = found.sigma_N.cpu()
            if keeps_old:
                for (row, place), output in zip(
                    cells, found.output.cpu().split(len(found.data) // len(cells)), strict=True
                ):
                    old[row][place] = output
        for row, one in enumerate(given):
            if one.old_logprob_T is not None:
                logprob_BT[row] = one.old_logprob_T
        kept = tuple(tuple(outputs) for outputs in old) if keeps_old else None
        return replace(
            rollout,
            old_logprob_BT=logprob_BT,
            trace=replace(trace, old=kept),
            values={LEVEL: level_BT},
            num_forwards=num_forwards,
        )

    def evaluate(self, rollout: Rollout, chosen: Sequence[int], values: Collection[Value]) -> Iterator[Evaluation]:
        """One slice per run of the pipeline, of some rows and some of their levels."""
        for cells in self._runs(rollout, chosen):
            yield self._score(rollout, cells, values)

    def _score(self, rollout: Rollout, cells: Sequence[tuple[int, int]], values: Collection[Value]) -> Evaluation:
        trace: RenoisedTrace = rollout.trace
        others, num_forwards = {}, 0
        for view in sorted({value.view for value in values if value.view is not None}):
            if view == OLD:
                others[view] = _stored(trace, cells)
                continue
            with torch.no_grad(), self.using(view):
                seen = self._matched(trace, cells)
            others[view], num_forwards = seen.output, num_forwards + seen.num_forwards
        now = self._matched(trace, cells)
        logprob_N = _logprob_N(now, trace.reading)
        require_grad(logprob_N, "the prediction of a noised sample", self.stage)
        rows, columns = (list(dict.fromkeys(part)) for part in zip(*cells, strict=True))
        index = [(rows.index(row), columns.index(column)) for row, column in cells]
        at = tuple(torch.tensor(index, device=logprob_N.device).T)

        def laid(value_N: Tensor) -> Tensor:
            return torch.zeros(len(rows), len(columns), device=value_N.device).index_put(at, value_N.float())

        return Evaluation(
            columns=tuple(columns),
            logprob_BT=laid(logprob_N),
            values={value: laid(_value_N(value, now, others, logprob_N, trace.reading)) for value in values},
            rows=torch.tensor(rows),
            num_forwards=num_forwards + now.num_forwards,
        )

    def _runs(self, rollout: Rollout, chosen: Sequence[int]) -> Iterator[list[tuple[int, int]]]:
        """The kept cells of some rows, in runs: whole rows of one shape side by side, or a part of a row's levels."""
        trace: RenoisedTrace = rollout.trace
        form = self.stage.form
        size = 1 if call_has_media(trace.calls[0]) or form.single else self.batches.update
        run: list[tuple[int, int]] = []
        for row in chosen:
            cells = [(row, column) for column in range(rollout.shape[1]) if bool(rollout.mask_BT[row, column])]
            own = trace.cleans[row][0].row
            most = size if form.together(own, own) else 1
            parts = [cells[start : start + most] for start in range(0, len(cells), most)]
            joins = len(parts) == 1 and most > 1
            if run and not (
                joins
                and len(run) + len(cells) <= size
                and _alike(trace, run[0][0], row)
                and form.together(trace.cleans[run[0][0]][0].row, own)
            ):
                yield run
                run = []
            if joins:
                run += cells
            else:
                yield from parts
        if run:
            yield run

    def _matched(self, trace: RenoisedTrace, cells: Sequence[tuple[int, int]]) -> NoisedPrediction:
        cleans = [trace.cleans[row][place] for row, place in cells]
        return predict_at_levels(
            self.stage, cleans, trace.calls[cells[0][0]], trace.reading, grad=torch.is_grad_enabled()
        )

    def _states(
        self,
        given: Sequence[OffPolicySample],
        examples: Sequence[Example],
        rows: Sequence[DenoisingRow],
        calls: Sequence[Mapping[str, Any]],
    ) -> list[Tensor]:
        """The final state of each sample: its own, or what its picture or video is encoded to."""
        found: list[Tensor] = []
        for one, example, row, call in zip(given, examples, rows, calls, strict=True):
            if one.sample.latent is not None:
                found.append(one.sample.latent.float())
            else:
                found += self.targets([example], [row], call, remember=False)
        return found


def _settings(
    reader: Renoiser, settings: Mapping[str, Any], form: CallForm
) -> tuple[ReadingSettings, Mapping[str, Any]]:
    if unknown := sorted(set(settings) - {"call", "reading"}):
        raise ConfigError(f"Plan.settings of samples that are read are call and reading; got {', '.join(unknown)}")
    changes = dict(settings.get("reading", {}))
    if unknown := sorted(set(changes) - set(ReadingSettings.model_fields)):
        known = ", ".join(ReadingSettings.model_fields)
        raise ConfigError(f"Plan.settings: reading takes {known}; got {', '.join(unknown)}")
    reading = ReadingSettings(**{**reader.reading.model_dump(), **changes})
    return reading, two_step_call({**reader.call, **checked_call(settings.get("call", {}), form)})


def _require_readable(given: Sequence[OffPolicySample], num_levels: int) -> None:
    if not given:
        raise DataError("there is nothing to read: give at least one sample")
    if any(one.num_forced for one in given):
        raise DataError("a sample that is read at noise levels has no beginning that could be forced: num_forced is 0")
    wrong = [one.old_logprob_T.shape for one in given if one.old_logprob_T is not None]
    if wrong := [tuple(shape) for shape in wrong if shape != (num_levels,)]:
        raise DataError(f"old_logprob_T must be {num_levels} numbers, one of each level, got {wrong[0]}")


def _key(row: DenoisingRow, place: int) -> int:
    return derive_seed(row.seed, row.group, row.branch(INITIAL_NOISE), READ, place)


def _alike(trace: RenoisedTrace, row: int, other: int) -> bool:
    shapes = [trace.cleans[one][0].data.shape for one in (row, other)]
    return trace.calls[row] is trace.calls[other] and shapes[0] == shapes[1]


def _stored(trace: RenoisedTrace, cells: Sequence[tuple[int, int]]) -> Tensor:
    if trace.old is None:
        raise ConfigError("nothing was kept of the policy that read: name the values of view old in Plan.values")
    return torch.cat([trace.old[row][place] for row, place in cells])


def _logprob_N(found: NoisedPrediction, reading: ReadingSettings) -> Tensor:
    return -_weight_N(found, reading) * found.error_N


def _weight_N(found: NoisedPrediction, reading: ReadingSettings) -> Tensor:
    return reading.weight * found.sigma_N.to(found.output.device) ** reading.power


def _value_N(
    value: Value, now: NoisedPrediction, others: Mapping[str, Tensor], logprob_N: Tensor, reading: ReadingSettings
) -> Tensor:
    """A value of N noised samples."""
    if value == ERROR:
        return now.error_N
    if value.view is None:
        return now.sigma_N
    output = others[value.view].to(now.output.device)
    if value.name == "velocity_mse":
        return (now.output - output).square().reshape(now.num_rows, -1).mean(1)
    if value.name in IMPLIED:
        errors = _implied_errors(now, output, strength=value.numbers[0])
        return errors.positive if value.name == "positive_error" else errors.negative
    other_N = _logprob_N(replace(now, output=output), reading)
    return other_N if value.name == "logprob" else LOGPROB_DIVERGENCES[value.name](logprob_N, other_N)


def _implied_errors(now: NoisedPrediction, old_output: Tensor, *, strength: float) -> MatchingErrors:
    """``matching_errors`` in terms of clean samples, x0 = 0 - 1 (-x0), which every family's output says."""
    by_row = [
        x.reshape(now.num_rows, -1) for x in (now.data, now.noised.clean(now.output), now.noised.clean(old_output))
    ]
    data, clean, old_clean = by_row
    ones_N = torch.ones(now.num_rows, device=data.device)
    return matching_errors(data, torch.zeros_like(data), ones_N, -clean, -old_clean, strength=strength)
