"""Finished samples as rows of decisions: renoised at keyed levels; a decision's score is the network's error there.

With ``policy.reading.states`` the decisions are states of the sampler. Those of ``steps`` also have the values with
which the clean sample that the network predicts is trained by predictions of others, in the state after the step,
noised further: ``clean_shift@VIEW(s, g)`` is the mean of (x0 - sg(x0 + s (x0_view - x0_reference)))^2, sg = no
gradient, and ``clean_distance@VIEW(g)`` that of |sg x0 - x0_view|, where g = 1 takes the guided prediction of the view.
"""

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
from mmgrpo.values import OLD, REFERENCE, Value

from .batches import Batches
from .buckets import Buckets
from .call_form import CallForm
from .denoising_rows import INITIAL_NOISE, DenoisingRow, call_has_media
from .denoising_scorer import require_grad
from .instrumented_pipeline import InstrumentedPipeline
from .noised_prediction import CleanSample, NoisedPrediction, predict_at_levels, two_step_call
from .parity import BatchParity
from .sampler_steps import steps_of
from .sampling_params import checked_call
from .settings import ReadingSettings, reading_of
from .state_sharing import branching_of
from .supervised_denoising import Targets

RENOISING = -2  # seed key of levels and their noise, distinct from sampled decisions and the initial noise
ERROR, LEVEL = Value("error"), Value("level")
IMPLIED = ("positive_error", "negative_error")
DIVERGENCES = ("velocity_mse", *LOGPROB_DIVERGENCES)
CLEAN = {"clean_shift": 2, "clean_distance": 1}  # number of the parameters
PLAIN, GUIDED = "plain", "guided"
Prediction = tuple[str, str]
"""A view, and the kind of its prediction: empty, in the state of the decision; plain or guided, in the state after the
step, noised further."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RenoisedTrace:
    """The trace of renoised rows.

    Attributes:
        clean_samples: per row, the sample at each of its T levels.
        reading: distribution of levels and weights of errors.
        calls: per row, arguments of the pipeline's call; one object for rows that may share a run.
        old: per row, the predictions of the behavior policy, T states, if the plan's values need them.
    """

    clean_samples: tuple[tuple[CleanSample, ...], ...]
    reading: ReadingSettings
    calls: tuple[Mapping[str, Any], ...]
    old: tuple[tuple[Tensor, ...], ...] | None = None


def require_renoising_values(values: Collection[Value], stored_views: Collection[str], states: str = "sample") -> None:
    """Raises ConfigError for a value that renoised rows do not have, or of a view without stored weights."""
    views = {OLD, *stored_views}
    for value in values:
        if value.name in CLEAN:
            _require_clean_value(value, stored_views, states)
            continue
        names = ("logprob", *IMPLIED, *DIVERGENCES)
        is_supported = value in (ERROR, LEVEL) or (value.view in views and value.name in names)
        if is_supported and len(value.numbers) == (value.name in IMPLIED):
            continue
        raise ConfigError(
            f"renoised samples have no value {value}; supported are {ERROR}, {LEVEL}, and {', '.join(names)} of "
            f"{', '.join(sorted(views))}, {' and '.join(IMPLIED)} with their strength"
        )


def _require_clean_value(value: Value, stored_views: Collection[str], states: str) -> None:
    if states != "steps":
        raise ConfigError(f"{value} needs the states before steps of the sampler: set policy.reading.states: steps")
    if value.view not in stored_views or len(value.numbers) != CLEAN[value.name] or value.numbers[-1] not in (0, 1):
        raise ConfigError(
            f"{value}: {value.name} has {CLEAN[value.name]} parameters, the last one 0 or 1 (guided), and a view of "
            f"stored weights: {', '.join(sorted(stored_views))}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Renoiser:
    """Renoises finished samples, and scores them.

    Attributes:
        instrumented: the pipeline.
        targets: encodes images and videos.
        batches: batch sizes.
        parity: compares rows alone with rows in a batch with longer prompts.
        using: context in which a view's weights are active.
        reading: distribution of levels and weights of errors.
        call: arguments of the pipeline's call.
        buckets: sizes that override those of the call.
    """

    instrumented: InstrumentedPipeline
    targets: Targets
    batches: Batches
    parity: BatchParity
    using: Callable[[str], AbstractContextManager[None]]
    reading: ReadingSettings
    call: Mapping[str, Any]
    buckets: Buckets

    def read(self, items: Sequence[OffPolicySample], seed: int, plan: Plan) -> Rollout:
        """``SupportsOffPolicyScoring.read``."""
        reading, call = _settings(self, plan.settings, self.instrumented.form)
        _require_renoisable(items)
        noise_plan = replace(plan, same_initial_noise=True) if reading.shared else plan
        branching = branching_of(noise_plan, 1 + max(item.sample.member for item in items))
        rows = [
            DenoisingRow(
                prompt=item.sample.prompt,
                seed=seed,
                group=item.sample.group,
                member=item.sample.member,
                branching=branching,
                entry=entry,
            )
            for entry, item in enumerate(items)
        ]
        examples = [
            Example(s.prompt, image=s.image, video=s.video, audio=s.audio) for s in (item.sample for item in items)
        ]
        calls = self.buckets.calls(examples, call)
        for shared in {id(row_call): row_call for row_call in calls}.values():
            self.parity.ensure([row for row, row_call in zip(rows, calls, strict=True) if row_call is shared], shared)
        states = self._states(items, examples, rows, calls)
        finite_B = torch.tensor([bool(state.isfinite().all()) for state in states])  # others fail, and train nothing
        states = [state.nan_to_num(0.0, 0.0, 0.0) for state in states]
        clean_samples = tuple(_decisions(*each, reading) for each in zip(items, rows, states, strict=True))
        T = len(clean_samples[0])
        _require_lengths(items, [len(samples) for samples in clean_samples])
        trace = RenoisedTrace(
            clean_samples=clean_samples,
            reading=reading,
            calls=tuple(calls),
        )
        B = len(items)
        rollout = Rollout(
            samples=[item.sample for item in items],
            prompt_index_B=torch.tensor([row.group for row in rows]),
            old_logprob_BT=torch.zeros(B, T),
            mask_BT=finite_B[:, None].expand(B, T).clone(),
            state_BT=torch.arange(B * T).reshape(B, T),
            segment_BT=torch.arange(T).expand(B, T),
            trace=trace,
            source_B=torch.tensor([int(item.source) for item in items]),
        )
        return self._with_current_scores(rollout, items, stores_old=any(value.view == OLD for value in plan.values))

    @torch.no_grad()
    def _with_current_scores(self, rollout: Rollout, items: Sequence[OffPolicySample], *, stores_old: bool) -> Rollout:
        """The rollout with log-probabilities under the current weights, levels and, optionally, the predictions."""
        trace: RenoisedTrace = rollout.trace
        logprob_BT, level_BT = torch.zeros(rollout.shape), torch.zeros(rollout.shape)
        old: list[list[Tensor]] = [[torch.empty(0)] * rollout.shape[1] for _ in items]
        num_forwards = 0
        for cells in self._runs(rollout, range(len(items))):
            prediction = self._predict(trace, cells)
            num_forwards += prediction.num_forwards
            index = torch.tensor(cells).T
            logprob_BT[index[0], index[1]] = _logprob_N(prediction, trace.reading).cpu()
            level_BT[index[0], index[1]] = prediction.sigma_N.cpu()
            if stores_old:
                for (row, level), output in zip(
                    cells, prediction.output.cpu().split(len(prediction.data) // len(cells)), strict=True
                ):
                    old[row][level] = output
        for row, item in enumerate(items):
            if item.old_logprob_T is not None:
                logprob_BT[row] = item.old_logprob_T
        stored = tuple(tuple(outputs) for outputs in old) if stores_old else None
        return replace(
            rollout,
            old_logprob_BT=logprob_BT,
            trace=replace(trace, old=stored),
            values={LEVEL: level_BT},
            num_forwards=num_forwards,
        )

    def evaluate(self, rollout: Rollout, rows: Sequence[int], values: Collection[Value]) -> Iterator[Evaluation]:
        """One slice per pipeline run, of some rows and some of their levels."""
        for cells in self._runs(rollout, rows):
            yield self._score(rollout, cells, values)

    def _score(self, rollout: Rollout, cells: Sequence[tuple[int, int]], values: Collection[Value]) -> Evaluation:
        trace: RenoisedTrace = rollout.trace
        others: dict[Prediction, Tensor] = {}
        num_forwards = 0.0
        for view, kind in sorted({part for value in values for part in _predictions(value, trace.reading)}):
            if view == OLD:
                others[view, kind] = _stored(trace, cells)
                continue
            with torch.no_grad(), self.using(view):
                prediction = self._predict(trace, cells, kind)
            others[view, kind] = prediction.noised.clean(prediction.output) if kind else prediction.output
            num_forwards += prediction.num_forwards
        current = self._predict(trace, cells)
        logprob_N = _logprob_N(current, trace.reading)
        require_grad(logprob_N, "the prediction of a renoised sample", self.instrumented)
        rows, columns = (list(dict.fromkeys(part)) for part in zip(*cells, strict=True))
        index = [(rows.index(row), columns.index(column)) for row, column in cells]
        at = tuple(torch.tensor(index, device=logprob_N.device).T)

        def as_matrix(value_N: Tensor) -> Tensor:
            return torch.zeros(len(rows), len(columns), device=value_N.device).index_put(at, value_N.float())

        return Evaluation(
            columns=tuple(columns),
            logprob_BT=as_matrix(logprob_N),
            values={value: as_matrix(_value_N(value, current, others, logprob_N, trace.reading)) for value in values},
            rows=torch.tensor(rows),
            num_forwards=num_forwards + current.num_forwards,
        )

    def _runs(self, rollout: Rollout, rows: Sequence[int]) -> Iterator[list[tuple[int, int]]]:
        """The trained cells of some rows, in runs: several complete rows of one shape, or part of one row's levels."""
        trace: RenoisedTrace = rollout.trace
        form = self.instrumented.form
        size = 1 if call_has_media(trace.calls[0]) or form.single else self.batches.update
        run: list[tuple[int, int]] = []
        for row in rows:
            cells = [(row, column) for column in range(rollout.shape[1]) if bool(rollout.mask_BT[row, column])]
            clean_row = trace.clean_samples[row][0].row
            max_cells = size if form.can_share_run(clean_row, clean_row) else 1
            parts = [cells[start : start + max_cells] for start in range(0, len(cells), max_cells)]
            is_joinable = len(parts) == 1 and max_cells > 1
            if run and not (
                is_joinable
                and len(run) + len(cells) <= size
                and _can_batch(trace, run[0][0], row)
                and form.can_share_run(trace.clean_samples[run[0][0]][0].row, clean_row)
            ):
                yield run
                run = []
            if is_joinable:
                run += cells
            else:
                yield from parts
        if run:
            yield run

    def _predict(self, trace: RenoisedTrace, cells: Sequence[tuple[int, int]], kind: str = "") -> NoisedPrediction:
        clean_samples = [trace.clean_samples[row][level] for row, level in cells]
        call, reading = trace.calls[cells[0][0]], trace.reading
        if kind:
            reading = reading.model_copy(update={"states": "boundaries"})
        if kind == GUIDED:
            call = {**call, **checked_call(reading.guided_call, self.instrumented.form)}
        return predict_at_levels(self.instrumented, clean_samples, call, reading, grad=torch.is_grad_enabled())

    def _states(
        self,
        items: Sequence[OffPolicySample],
        examples: Sequence[Example],
        rows: Sequence[DenoisingRow],
        calls: Sequence[Mapping[str, Any]],
    ) -> list[Tensor]:
        """The final state of each sample: its latent, or its encoded image or video."""
        states: list[Tensor] = []
        for item, example, row, call in zip(items, examples, rows, calls, strict=True):
            if item.sample.latent is not None:
                states.append(item.sample.latent.float())
            else:
                states += self.targets([example], [row], call, remember=False)
        return states


def _settings(
    renoiser: Renoiser, settings: Mapping[str, Any], form: CallForm
) -> tuple[ReadingSettings, Mapping[str, Any]]:
    if unknown := sorted(set(settings) - {"call", "reading"}):
        raise ConfigError(f"Plan.settings of renoised samples are call and reading; got {', '.join(unknown)}")
    changes = dict(settings.get("reading", {}))
    if unknown := sorted(set(changes) - set(ReadingSettings.model_fields)):
        names = ", ".join(ReadingSettings.model_fields)
        raise ConfigError(f"Plan.settings: reading takes {names}; got {', '.join(unknown)}")
    reading = reading_of({**renoiser.reading.model_dump(exclude_unset=True), **changes})
    return reading, two_step_call({**renoiser.call, **checked_call(settings.get("call", {}), form)})


def _decisions(
    item: OffPolicySample, row: DenoisingRow, state: Tensor, reading: ReadingSettings
) -> tuple[CleanSample, ...]:
    """The decisions of a row, each keyed by its number."""
    if reading.states == "sample":
        T, steps = reading.num_levels, None
    else:
        steps = steps_of(item.sample, state)
        T = len(steps)
    return tuple(
        CleanSample(
            row=row,
            data=state if steps is None else steps[t].next_state,
            seed=_key(row, t),
            level_index=t,
            step=None if steps is None else steps[t],
        )
        for t in range(T)
    )


def _require_renoisable(items: Sequence[OffPolicySample]) -> None:
    if not items:
        raise DataError("renoising needs at least one sample, got none")
    if any(item.num_forced for item in items):
        raise DataError("num_forced must be 0 for renoised samples: they have no forced prefix")


def _require_lengths(items: Sequence[OffPolicySample], lengths: Sequence[int]) -> None:
    """Raises DataError for rows of several lengths, and for log-probabilities of other numbers of decisions."""
    if len(set(lengths)) > 1:
        raise DataError(f"samples of one rollout must have as many steps of the sampler, got {sorted(set(lengths))}")
    shapes = [tuple(item.old_logprob_T.shape) for item in items if item.old_logprob_T is not None]
    if wrong := [shape for shape in shapes if shape != (lengths[0],)]:
        raise DataError(f"old_logprob_T must have {lengths[0]} numbers, one per level, got shape {wrong[0]}")


def _key(row: DenoisingRow, level_index: int) -> int:
    return derive_seed(row.seed, row.group, row.branch(INITIAL_NOISE), RENOISING, level_index)


def _can_batch(trace: RenoisedTrace, row: int, other: int) -> bool:
    shapes = [trace.clean_samples[number][0].data.shape for number in (row, other)]
    return trace.calls[row] is trace.calls[other] and shapes[0] == shapes[1]


def _stored(trace: RenoisedTrace, cells: Sequence[tuple[int, int]]) -> Tensor:
    if trace.old is None:
        raise ConfigError("predictions of the old policy are not stored; add the values of view old to Plan.values")
    return torch.cat([trace.old[row][level] for row, level in cells])


def _logprob_N(prediction: NoisedPrediction, reading: ReadingSettings) -> Tensor:
    return -_weight_N(prediction, reading) * prediction.error_N


def _weight_N(prediction: NoisedPrediction, reading: ReadingSettings) -> Tensor:
    return reading.weight * prediction.sigma_N.to(prediction.output.device) ** reading.power


def _value_N(
    value: Value,
    current: NoisedPrediction,
    others: Mapping[Prediction, Tensor],
    logprob_N: Tensor,
    reading: ReadingSettings,
) -> Tensor:
    """A value of N renoised samples."""
    if value == ERROR:
        return current.error_N
    if value.view is None:
        return current.sigma_N
    if value.name in CLEAN:
        return _clean_value_N(value, current, others, reading)
    output = others[value.view, ""].to(current.output.device)
    if value.name == "velocity_mse":
        return (current.output - output).square().reshape(current.num_rows, -1).mean(1)
    if value.name in IMPLIED:
        errors = _implied_errors(current, output, strength=value.numbers[0])
        return errors.positive if value.name == "positive_error" else errors.negative
    other_N = _logprob_N(replace(current, output=output), reading)
    return other_N if value.name == "logprob" else LOGPROB_DIVERGENCES[value.name](logprob_N, other_N)


def _implied_errors(current: NoisedPrediction, old_output: Tensor, *, strength: float) -> MatchingErrors:
    """``matching_errors`` in terms of clean samples, x0 = 0 - 1 (-x0), which every family's output implies."""
    by_row = [
        x.reshape(current.num_rows, -1)
        for x in (current.data, current.noised.clean(current.output), current.noised.clean(old_output))
    ]
    data, clean, old_clean = by_row
    ones_N = torch.ones(current.num_rows, device=data.device)
    return matching_errors(data, torch.zeros_like(data), ones_N, -clean, -old_clean, strength=strength)


def _predictions(value: Value, reading: ReadingSettings) -> list[Prediction]:
    """The predictions of views that a value is computed from."""
    if value.view is None:
        return []
    if value.name not in CLEAN:
        return [(value.view, "")]
    kind = GUIDED if value.numbers[-1] and reading.guided_call else PLAIN
    return [(value.view, kind), *([(REFERENCE, PLAIN)] if value.name == "clean_shift" else [])]


def _clean_value_N(
    value: Value, current: NoisedPrediction, others: Mapping[Prediction, Tensor], reading: ReadingSettings
) -> Tensor:
    """``clean_shift`` or ``clean_distance`` of N steps."""
    clean, (target, *start) = current.noised.clean(current.output), _predictions(value, reading)
    if not start:
        difference = (clean.detach() - others[target].to(clean)).abs()
    else:
        shift = value.numbers[0] * (others[target] - others[start[0]]).to(clean)
        difference = (clean - (clean + shift).detach()).square()
    return difference.reshape(current.num_rows, -1).mean(1)
