"""The benchmarks run, and their counts are those worked out by hand; times are not tested."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from mmgrpo.policies.diffusion.encoder_cache import EncoderCache

from benchmarks import axes, forwards, overhead
from benchmarks.counting import denoising_methods
from benchmarks.forwards import count_method
from benchmarks.measuring import lines_of, measure
from benchmarks.peers import PEERS
from benchmarks.profiling import RULES, group_of, shares
from benchmarks.serving import Load, under_load
from benchmarks.settings import Passes, Setting, passes_of

FIXED = {"group_size": 2, "window": {"name": "fixed", "start": 2, "size": 1}}


def test_passes_without_sharing() -> None:
    # 6 samples in batches of 4 and 2, at each of 4 steps; 3 of the steps are trained
    setting = Setting(steps=4, group=6, batch=4)
    assert passes_of(setting) == Passes((4, 2) * 4, (4, 2) * 3, (4, 2), rollout_calls=2)


def test_passes_with_shared_noise() -> None:
    # the first step is one row for all; it is a separate pipeline call
    setting = Setting(steps=4, group=6, batch=4, same_initial_noise=True)
    assert passes_of(setting) == Passes((1, 4, 2, 4, 2, 4, 2), (1, 4, 2, 4, 2), (4, 2), rollout_calls=3)


@pytest.mark.nightly
def test_memory_of_an_update_is_that_of_one_call_for_any_steps_and_group() -> None:
    """16 further states, each of 4 channels of 32 x 32 numbers: a rollout has at most four tensors of each."""
    base = axes.measure(axes.BASE, repeat=1)
    for setting in (replace(axes.BASE, steps=8), replace(axes.BASE, group=8)):
        point = axes.measure(setting, repeat=1)
        assert abs(point.update / base.update - 1) < 0.002
        assert 0 < point.rollout - base.rollout < 16 * 4 * (4 * 32 * 32 * 4)
    wide = axes.measure(replace(axes.BASE, batch=4), repeat=1)
    assert wide.update > 1.4 * base.update


@pytest.mark.nightly
def test_overhead_spends_the_floors_rows() -> None:
    setting = Setting(steps=2, group=2)
    result = {
        same_initial_noise: [
            (line.part, line.calls, line.rows, line.floor_rows)
            for line in lines_of(setting.sharing(same_initial_noise), turns)
        ]
        for same_initial_noise, turns in measure(setting, repeat=1).items()
    }
    # 2 samples x 2 steps sampled, 2 x 1 trained; shared, the first step is one row in both
    assert result == {
        False: [("rollout", 1, 4, 4), ("update", 1, 2, 2), ("iteration", 2, 6, 6)],
        True: [("rollout", 2, 3, 3), ("update", 1, 1, 1), ("iteration", 3, 4, 4)],
    }


@pytest.mark.nightly
def test_overhead_profile_prints_both_parts(capsys: pytest.CaptureFixture[str]) -> None:
    overhead.main(["--steps", "2", "--group", "2", "--profile"])
    printed = capsys.readouterr().out
    assert "2 steps, one group of 2, batches of 8, guidance 1, all weights, float32 on cpu" in printed
    assert [line.split(":")[0] for line in printed.splitlines() if "a pipeline call outside" in line] == [
        "rollout",
        "update",
    ]
    assert "preamble: prompt" in printed


def test_time_is_charged_to_the_first_owner() -> None:
    denoising = "/checkout/policies/diffusion/"
    assert group_of((denoising + "encoder_cache.py", 1, "_keys")) == "encoder cache"
    assert group_of((denoising + "instrumented_pipeline.py", 1, "_denoise")) == "ghost steps"
    assert group_of((denoising + "instrumented_pipeline.py", 1, "_installed")) == "preamble: pipeline run"
    assert group_of(("/site/torch/_tensor.py", 1, "backward")) is None
    # the hashing of the cache and the sine count for the cache, its caller for no group
    memo, x = EncoderCache(1024), torch.ones(4)
    result = shares(lambda: [memo(None, torch.sin, (x,), {}) for _ in range(10)])
    assert set(result) == {"encoder cache", "other"}
    assert sum(result.values()) == pytest.approx(1.0)


def test_rules_name_code_of_this_checkout() -> None:
    root = Path(__file__).parents[2]
    for rule in RULES:
        if not rule.path.startswith(("policies/", "mmgrpo/", "benchmarks/")):
            continue
        files = [*root.glob(f"{rule.path}*.py"), *(root / rule.path).rglob("*.py")]
        assert files, rule.path
        source = "".join(path.read_text() for path in files)
        assert [name for name in rule.functions if f"def {name}" not in source] == []


@pytest.mark.nightly
def test_forwards_of_an_unguided_window() -> None:
    separate, shared = count_method("flow-grpo-fast", FIXED)
    # 10 steps sampled, 1 trained; shared, steps 0 to 2 are sampled once for 2 samples, and step 2 is trained once
    assert (separate.spent.sample, separate.spent.trained, separate.spent.reference, separate.spent.reported) == (
        10,
        1,
        0,
        11,
    )
    assert (shared.spent.sample, shared.spent.trained, shared.spent.reference, shared.spent.reported) == (
        8.5,
        0.5,
        0,
        9,
    )
    assert (separate.spent.cost(2), shared.spent.cost(2)) == (12, 9.5)
    assert separate.mean == separate.spent
    assert shared.mean == shared.spent
    assert (separate.as_written, shared.as_written, separate.guided) == (True, False, False)


@pytest.mark.nightly
def test_forwards_of_guidance_and_a_reference(capsys: pytest.CaptureFixture[str]) -> None:
    separate, shared = count_method("flow-grpo", {"group_size": 2})
    # every pass twice: 10 steps sampled, 9 trained, 9 of the reference; shared, half a pass less of each
    assert (separate.spent.sample, separate.spent.trained, separate.spent.reference, separate.spent.reported) == (
        20,
        18,
        18,
        56,
    )
    assert (shared.spent.sample, shared.spent.trained, shared.spent.reference, shared.spent.reported) == (
        19,
        17,
        17,
        53,
    )
    assert separate.peer is not None
    assert separate.spent.cost(2) == separate.peer.total == 74
    forwards.main(["--method", "flow-grpo-fast", "--group", "2", "--window", "2", "1"])
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("flow-grpo-fast   shared"))
    assert line.split()[2:11] == ["no", "2", "10", "2", "8.50", "1.00", "0.00", "9.50", "9.50"]


UNCOUNTED = {
    "awm": "renoised",
    "branch-grpo": "a tree",
    "crd": "a loss of groups",
    "dgpo": "renoised",
    "diffusion-dpo": "renoised",
    "diffusion-nft": "positive_error",
    "promptecho": "renoised",
    "tdm-r1": "clean_shift",
}
"""Methods that train on other decisions than each step of each sample, and a part of the message about that."""


@pytest.mark.nightly
def test_methods_that_are_not_counted_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    forwards.main([part for name in UNCOUNTED for part in ("--method", name)] + ["--group", "2"])
    printed = capsys.readouterr().out
    for name, reason in UNCOUNTED.items():
        assert f"{name:16} is not counted: " in printed
        assert reason in printed


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted({*denoising_methods()} - {*UNCOUNTED}))
def test_every_method_costs_its_peer_without_sharing(name: str) -> None:
    separate, shared = count_method(name, {"group_size": 2})
    assert separate.spent.reported == separate.spent.sample + separate.spent.trained + separate.spent.reference
    assert shared.spent.reported < separate.spent.reported
    if name != "mix-grpo-flash":  # the formula does not shorten the rest of the schedule
        assert separate.spent == separate.mean
    if name in PEERS:
        assert separate.spent.cost(separate.weight) == PEERS[name].total


@pytest.mark.slow
def test_a_server_under_load_counts_its_calls() -> None:
    load = Load(clients=4, requests=3, samples=1, side=8)
    assert under_load("call", "tensors", load, max_batch=1).samples_per_call == 1
    assert under_load("call", "png", load, max_batch=64).samples_per_call > 1.5
