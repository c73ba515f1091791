"""The predicted memory of a process is that of live modules, gradients and moments; and that of passes."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from mmgrpo.policies.diffusion.denoising_outline import outline_of
from mmgrpo.policies.diffusion.settings import DenoisingSettings
from mmgrpo.policies.language import LanguagePolicy
from torch import nn
from typer.testing import CliRunner

from mmgrpo.cli import app
from mmgrpo.config.loading import load_config, validated
from mmgrpo.distributed.job import Job
from mmgrpo.distributed.parameter_shards import local_shards
from mmgrpo.errors import ConfigError
from mmgrpo.explain.memory_meter import MemoryMeter, meter_pass, passes_of
from mmgrpo.explain.operator_times import MachineSpeed, Operator, measured_speed, optimizer_work, work_of
from mmgrpo.explain.process_scale import ProcessPlan, ShardingEngine, plan_processes, scale_rows
from mmgrpo.explain.resident_memory import block_sizes, gathered_bytes, resident_memory
from mmgrpo.types import Prompt
from tests.test_sharding import on_two
from tests.tiny.language_models import make as make_language_model


class Block(nn.Linear):
    """3 by 2 weights and 3 numbers."""


class Blocks(nn.Module):
    """Two blocks, and a layer in none of them."""

    _no_split_modules = ("Block",)

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(2, 3), Block(2, 3)])
        self.head = nn.Linear(3, 1)


def test_bytes_by_hand() -> None:
    module = Blocks()
    complete = resident_memory([module], averages=True, copied=[module], num_copies=1)
    # 2 (6 + 3) + 4 = 22 numbers of 4 bytes; 6 parameters whose steps are counted
    assert (complete.trained, complete.gradients, complete.average, complete.copies) == (88, 88, 88, 88)
    assert (complete.moments, complete.total) == (2 * 88 + 6 * 4, 4 * 88 + 2 * 88 + 24)
    sets = resident_memory([module], copied=[module], num_sets=2, num_set_averages=1)
    assert (sets.weight_sets, sets.copies) == (2 * (88 + 2 * 88 + 24) + 88, 0)
    parts = resident_memory([module], sharded=[module], num_processes=2)
    # of 3 rows the larger part is 2: 2 (2 * 2 + 2) + 4 = 16 numbers
    assert parts.trained == 64
    assert gathered_bytes([module]) == 2 * 9 * 4
    module.requires_grad_(False)
    module.blocks[0].bias.requires_grad_(True)  # as an adapter: complete, with sharded frozen weights
    parts = resident_memory([module], sharded=[module], num_processes=2)
    assert (parts.trained, parts.frozen) == (12, 4 * (4 + 6 + 4))


def test_bytes_and_operations_of_a_pass_by_hand() -> None:
    layer, x_BD = nn.Linear(4, 3, bias=False), torch.ones(2, 4)
    result = meter_pass(lambda _: layer(x_BD), [layer.weight, x_BD])
    # 2 x 4 by 4 x 3: 24 products and their sums; 8 + 12 numbers read, 6 written, of 4 bytes
    assert result.num_bytes == 2 * 3 * 4
    assert result.work == {Operator(flops=2 * 24, num_bytes=4 * (8 + 12 + 6)): 1}


def test_prepared_bytes_count_and_their_operators_do_not() -> None:
    result = meter_pass(lambda x_N: x_N.add_(1), [], prepare=lambda: torch.zeros(5))
    assert result.num_bytes == 5 * 4
    assert result.work == {Operator(flops=0, num_bytes=2 * 5 * 4): 1}  # read and written


def test_seconds_of_operators_by_hand() -> None:
    machine = MachineSpeed(tflops=1.0, memory_gb_s=1000.0, launch_us=2.0)
    # of arithmetic 4 us against 1 us; of bytes 3 us; less than a launch
    work = Counter({Operator(4_000_000, 1_000_000): 1, Operator(0, 3_000_000): 2, Operator(10, 10): 5})
    assert machine.seconds(work) == pytest.approx((4 + 2 * 3 + 5 * 2) * 1e-6)
    assert machine.seconds(work, 0.5) == pytest.approx((2 + 2 * 3 + 5 * 2) * 1e-6)
    assert machine.batched(work, rows=10, batch_size=4) == pytest.approx((20 + 20 + 18) * 1e-6)  # 4, 4 and 2 rows


def test_steps_of_the_optimizer_are_those_of_torch() -> None:
    weights = [nn.Parameter(torch.zeros(1000, 1000)), nn.Parameter(torch.zeros(500, 1000))]
    optimizer = torch.optim.AdamW(weights, weight_decay=0.1, foreach=False)
    for weight in weights:
        weight.grad = torch.ones_like(weight)
    optimizer.step()  # makes the moments
    large = Counter({call: num for call, num in work_of(optimizer.step).items() if call.num_bytes > 1000})
    sizes = [weight.nbytes for weight in weights]
    assert optimizer_work(sizes, averages=False, fused=False) == large
    assert sum(optimizer_work(sizes, averages=True, fused=True).values()) == 9


@pytest.mark.nightly
def test_a_machine_is_measured() -> None:
    result = measured_speed(torch.float32, device=torch.device("cpu"), link_gb_s=3.0)
    assert result.link_gb_s == 3.0
    assert not result.fused_optimizer
    assert 1e-4 < result.tflops < 10
    assert 0.1 < result.memory_gb_s < 1000
    assert 0.1 < result.launch_us < 10_000


LORAS: tuple[dict[str, Any] | None, ...] = (None, {"rank": 4, "alpha": 8.0})


def settings_with(lora: dict[str, Any] | None) -> dict[str, Any]:
    config = load_config("quickstart/arithmetic-text")
    assert config.policy is not None
    return {key: value for key, value in {**config.policy.settings, "lora": lora}.items() if key != "name"}


@pytest.mark.nightly
def test_resident_memory_is_that_of_a_live_policy() -> None:
    config = load_config("quickstart/arithmetic-text")
    for lora in LORAS:
        named = settings_with(lora)
        policy = LanguagePolicy.from_config(named)
        optimizer = torch.optim.AdamW(policy.trainable)
        for parameter in policy.trainable:
            parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
        plan = plan_processes(validated({**config.model_dump(), "policy": {"name": "language", **named}}))
        resident = plan.memory().resident
        assert resident.trained == sum(p.nbytes for p in policy.trainable)
        assert resident.frozen == sum(p.nbytes for p in policy.model.parameters() if not p.requires_grad)
        assert resident.moments == sum(tensor.nbytes for state in optimizer.state.values() for tensor in state.values())


@pytest.mark.nightly
def test_the_peak_of_an_update_with_shared_prompts_and_checkpointed_layers_is_that_of_a_live_policy() -> None:
    config = load_config("quickstart/arithmetic-text", ["rollout.prompts_per_step=1", "update.minibatches=1"])
    named = {**settings_with(None), "gradient_checkpointing": True}
    policy = LanguagePolicy.from_config(named)
    rollout = policy.rollout([Prompt("one seven " * 2)], group_size=8, seed=0)
    length = rollout.trace.prompts[0].length
    run = validated({**config.model_dump(), "policy": {"name": "language", **named}})
    outline = plan_processes(run, prompt_tokens=length).outline
    for parameter in policy.trainable:
        parameter.grad = torch.zeros_like(parameter)
    existing = [*policy.model.parameters(), *(p.grad for p in policy.trainable if p.grad is not None)]
    with MemoryMeter(existing) as meter:
        next(iter(policy.evaluate(rollout))).logprob_BT.mean().backward()
    passes = passes_of(outline)
    assert passes.update.num_bytes == pytest.approx(meter.peak, rel=0.03)
    with MemoryMeter(existing) as meter, torch.no_grad():  # as a rollout of an inference server is scored
        next(iter(policy.evaluate(rollout)))
    assert passes.forward is not None
    assert passes.forward.num_bytes == pytest.approx(meter.peak, rel=0.03)


def sharded_sizes(folder: Path, names: Sequence[str]) -> list[tuple[int, int]]:
    """Bytes of trained and of frozen weights that this process of two holds, of all weights trained and of adapters."""
    os.environ.update({"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2"})
    job, result = Job(Accelerator()), []
    assert job.sharding is not None
    for lora in LORAS:
        policy = LanguagePolicy.from_config(settings_with(lora))
        policy.shard(job.sharding.shard)
        sizes = [
            (parameter.requires_grad, local_shards([parameter])[0].nbytes) for parameter in policy.model.parameters()
        ]
        result.append(
            (sum(size for trains, size in sizes if trains), sum(size for trains, size in sizes if not trains))
        )
    return result


@pytest.mark.nightly
def test_resident_memory_is_that_of_two_sharded_processes(tmp_path: Path) -> None:
    result = on_two(tmp_path, (), function="sharded_sizes", module="tests.test_explain_memory")
    config = load_config("quickstart/arithmetic-text")
    for lora, (trained, frozen) in zip(LORAS, result, strict=True):
        run = validated({**config.model_dump(), "policy": {"name": "language", **settings_with(lora)}})
        estimate = plan_processes(run, num_processes=2).memory(ShardingEngine.FSDP2).resident
        assert (estimate.trained, estimate.frozen) == (trained, frozen)


@pytest.mark.nightly
def test_the_prediction_is_printed() -> None:
    config = load_config("quickstart/arithmetic-text")
    alone, two, plan = (plan_processes(config, num_processes=num, prompt_tokens=8) for num in (1, 2, 3))
    estimate = dict(scale_rows(plan, MachineSpeed(), ShardingEngine.FSDP2))
    assert estimate["processes"] == "3, the model sharded (FSDP2): predicted, not measured"
    assert "GiB peak per process: trained" in estimate["memory"]
    assert (
        alone.seconds(MachineSpeed(), ShardingEngine.FSDP2).gathers
        == alone.seconds(MachineSpeed(), ShardingEngine.FSDP2).sums
        == 0
    )
    assert two.seconds(MachineSpeed(), ShardingEngine.FSDP2).gathers == pytest.approx(
        2 * two.seconds(MachineSpeed(link_gb_s=100.0), ShardingEngine.FSDP2).gathers
    )


@pytest.mark.nightly
@pytest.mark.parametrize("lora", LORAS)
def test_engines_hold_and_gather_the_predicted_bytes(lora: dict[str, Any] | None) -> None:
    config = load_config("quickstart/arithmetic-text")
    named = {"name": "language", **settings_with(lora)}
    runtime = {**config.runtime.model_dump(), "gather_for_rollout": True}
    plan = plan_processes(validated({**config.model_dump(), "policy": named, "runtime": runtime}), num_processes=2)
    memory = {engine: plan.memory(engine) for engine in ShardingEngine}
    seconds = {engine: plan.seconds(MachineSpeed(), engine) for engine in ShardingEngine}
    fsdp2, zero2, zero3 = ShardingEngine.FSDP2, ShardingEngine.ZERO2, ShardingEngine.ZERO3
    assert memory[zero3] == memory[fsdp2]
    assert seconds[zero3] == seconds[fsdp2]
    if lora:  # ZeRO-2 does not shard a module with an adapter
        assert memory[zero2] == memory[ShardingEngine.GPUS]
        assert seconds[zero2] == seconds[ShardingEngine.GPUS]
        return
    blocks = sum(block_sizes(plan.outline.sharded))
    assert memory[zero2].resident == memory[fsdp2].resident
    assert memory[zero2].update_blocks == memory[zero2].rollout_blocks == blocks
    rows = config.rollout.prompts_per_step // 2 * config.rollout.group_size
    once = blocks / 2 / 50e9
    slices = rows / plan.outline.update_rows * config.update.epochs
    for engine, times in ((zero2, 2), (fsdp2, 3)):  # gathered once or twice, and gradients added
        assert seconds[engine].gathers == pytest.approx(once * (1 + times * slices))


@pytest.mark.nightly
def test_predictions_by_measuring() -> None:
    estimate = CliRunner().invoke(app, ["explain", "quickstart/arithmetic-text", "--processes", "1", "--measure"])
    assert estimate.exit_code == 0
    assert "us an operator" in estimate.output
    refused = CliRunner().invoke(app, ["explain", "quickstart/arithmetic-text", "--measure"])
    assert refused.exit_code == 2
    assert "--processes N" in refused.output


@pytest.mark.nightly
def test_passes_are_counted_once_for_a_model_and_its_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    model = tmp_path / "model"
    make_language_model("llama")[0].save_pretrained(model)
    lines: list[str] = []

    def plan_of(**settings: Any) -> ProcessPlan:
        named = {"name": "language", "model": str(model), "max_new_tokens": 4, **settings}
        values = {**load_config("quickstart/arithmetic-text").model_dump(), "policy": named}
        return plan_processes(validated(values), num_processes=2, prompt_tokens=6, print_line=lines.append)

    first = plan_of()
    num_lines = len(lines)
    assert (
        lines[0]
        == f"counting the operators of a rollout of {first.outline.rollout_rows} row(s) (1 of {num_lines}; shapes "
        "alone) ..."
    )
    again = plan_of()
    assert len(lines) == num_lines
    assert again.passes == first.passes
    assert again.seconds(MachineSpeed()) == first.seconds(MachineSpeed())
    assert plan_of(max_new_tokens=5).passes != first.passes
    assert len(lines) == 2 * num_lines
    values = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**values, "num_hidden_layers": values["num_hidden_layers"] + 1}))
    assert plan_of().passes.update.work.total() > first.passes.update.work.total()
    for file in (tmp_path / "state").rglob("*.json"):
        file.write_text("{")  # torn
    plan_of()
    assert len(lines) == 4 * num_lines


@pytest.mark.nightly
def test_the_page_has_the_current_predictions() -> None:
    from benchmarks.scale import table
    from mmgrpo.config.loading import CONFIGS

    page = (CONFIGS.resolve().parent / "docs" / "how-to/scale.md").read_text()
    assert "\n".join(table()) in page


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("changed", "rows"),
    [
        pytest.param({"update_tokens": 1000}, 80, marks=pytest.mark.nightly),  # of 6 + 8 * 4 = 38 tokens a group 26 fit
        ({"update_tokens": 100}, 16),  # 2 groups
        ({"update_tokens": 20}, 3),  # of one group (20 - 6) / 4 rows
        ({"update_tokens": 100, "share_prefix": False}, 10),  # of 6 + 4 tokens each
    ],
)
def test_slices_hold_the_rows_that_fit(changed: dict[str, Any], rows: int) -> None:
    config = load_config("quickstart/arithmetic-text", ["rollout.prompts_per_step=30"])
    assert config.rollout.group_size == 8
    named = {"name": "language", **settings_with(None), **changed, "max_new_tokens": 4}
    plan = plan_processes(validated({**config.model_dump(), "policy": named}), num_processes=3, prompt_tokens=6)
    assert (plan.outline.update_rows, plan.outline.rollout_rows) == (rows, 80)


def test_argument_that_the_pipeline_lacks_raises() -> None:
    settings = {"model": "stabilityai/stable-diffusion-3.5-medium", "call": {"steps": 4, "height": 64, "width": 64}}
    with pytest.raises(ConfigError, match=r"policy\.call: the call of StableDiffusion3Pipeline has no argument steps"):
        outline_of(DenoisingSettings(**settings))
