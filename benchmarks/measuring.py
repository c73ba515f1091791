"""Alternating iterations, floors and hollow iterations, and their statistics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

from benchmarks.floor import Floor
from benchmarks.iteration import Learner
from benchmarks.settings import Setting, passes_of
from benchmarks.timing import Parts, Spent, Spread, spread, timed

HOLLOW_TURNS = 3  # hollow iterations a repeat; they are cheap


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One repeat of one setting, its parts measured one right after the other.

    Attributes:
        ours: the iteration.
        floor: the passes it needs; each part measured right after ours.
        decode: the autoencoder's part of the floor's rollout, measured once more.
        hollow: iterations with a denoiser that costs nothing.
        num_forwards: denoiser rows of the rollout, as the policy counts them.
        num_backwards: denoiser rows of the update, as the learner counts them.
    """

    ours: Parts
    floor: Parts
    decode: Spent
    hollow: Sequence[Parts]
    num_forwards: float
    num_backwards: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One part of an iteration compared with its floor.

    Attributes:
        part: rollout, update or iteration, which is both and the reward.
        calls: pipeline calls.
        rows: denoiser rows the engine counts.
        floor_rows: denoiser rows of the floor.
        wall: ours / floor by wall time, over the repeats.
        cpu: ours / floor by processor time.
        best: the fastest of ours / the fastest of the floor, by processor time.
        decode_frac: the autoencoder's share of the floor.
        hollow_frac: time of the part without the denoiser and the autoencoder, as a share of the floor.
        hollow_ms: the same, in milliseconds per pipeline call.
    """

    part: str
    calls: int
    rows: float
    floor_rows: float
    wall: Spread
    cpu: Spread
    best: float
    decode_frac: float
    hollow_frac: float
    hollow_ms: float


def measure(setting: Setting, *, repeat: int) -> dict[bool, list[Turn]]:
    """Turns without (False) and with (True) shared noise, interleaved, on one model, after one unmeasured."""
    learner, hollow = Learner.mid_size(setting), Learner.mid_size(replace(setting, lora=0), hollow=True)
    settings = [setting.sharing(share) for share in (False, True)]
    floors = [Floor(learner, each) for each in settings]
    turns: dict[bool, list[Turn]] = {False: [], True: []}
    for number in range(repeat + 1):
        for each, floor in zip(settings, floors, strict=True):
            turn = _turn(learner, floor, hollow, each)
            if number > 0:  # the first allocates, checks the replay and fills the memo
                turns[each.same_initial_noise].append(turn)
    return turns


def lines_of(setting: Setting, turns: Sequence[Turn]) -> list[Line]:
    """The table's lines of one setting."""
    passes, first = passes_of(setting), turns[0]
    calls = passes.rollout_calls, len(passes.backward)
    rows = first.num_forwards, first.num_backwards
    needed = setting.branches * sum(passes.forward), setting.branches * sum(passes.backward)
    return [
        _line(setting, turns, "rollout", calls[0], rows[0], needed[0]),
        _line(setting, turns, "update", calls[1], rows[1], needed[1]),
        _line(setting, turns, "iteration", sum(calls), sum(rows), sum(needed)),
    ]


def _turn(learner: Learner, floor: Floor, hollow: Learner, setting: Setting) -> Turn:
    device = setting.device
    sampled = timed(device, lambda: learner.draw(setting.group, same_initial_noise=setting.same_initial_noise))
    sampled_bare = timed(device, floor.draw)
    scored = timed(device, lambda: learner.judge(sampled.value))
    updated = timed(device, lambda: learner.learn(sampled.value, scored.value))
    updated_bare = timed(device, floor.learn)
    return Turn(
        ours=Parts(rollout=sampled.spent, credit=scored.spent, update=updated.spent),
        floor=Parts(rollout=sampled_bare.spent, update=updated_bare.spent),
        decode=timed(device, floor.decode).spent,
        hollow=[_iterated(hollow, setting) for _ in range(HOLLOW_TURNS)],
        num_forwards=sampled.value.num_forwards,
        num_backwards=updated.value.num_forwards,
    )


def _iterated(learner: Learner, setting: Setting) -> Parts:
    sampled = timed(setting.device, lambda: learner.draw(setting.group, same_initial_noise=setting.same_initial_noise))
    scored = timed(setting.device, lambda: learner.judge(sampled.value))
    updated = timed(setting.device, lambda: learner.learn(sampled.value, scored.value))
    return Parts(rollout=sampled.spent, credit=scored.spent, update=updated.spent)


def _line(setting: Setting, turns: Sequence[Turn], part: str, calls: int, rows: float, floor_rows: float) -> Line:
    pairs = [(_of(turn.ours, part), _of(turn.floor, part)) for turn in turns]
    floor_s = _median_s(setting, [floor for _, floor in pairs])
    decode_s = 0.0 if part == "update" else _median_s(setting, [turn.decode for turn in turns])
    hollow_s = _median_s(setting, [_of(run, part) for turn in turns for run in turn.hollow]) - decode_s
    return Line(
        part=part,
        calls=calls,
        rows=rows,
        floor_rows=floor_rows,
        wall=spread([ours.wall_s / floor.wall_s for ours, floor in pairs]),
        cpu=spread([ours.cpu_s / floor.cpu_s for ours, floor in pairs]),
        best=min(ours.cpu_s for ours, _ in pairs) / min(floor.cpu_s for _, floor in pairs),
        decode_frac=decode_s / floor_s,
        hollow_frac=hollow_s / floor_s,
        hollow_ms=1000 * hollow_s / calls,
    )


def _of(parts: Parts, name: str) -> Spent:
    return {"rollout": parts.rollout, "update": parts.update, "iteration": parts.iteration}[name]


def _median_s(setting: Setting, times: Sequence[Spent]) -> float:
    """Of processor time, on which contention has little effect; on a GPU of wall time."""
    return median(spent.cpu_s if setting.device == "cpu" else spent.wall_s for spent in times)
