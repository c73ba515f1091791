"""Two processes that shard a model: bitwise the run of two that replicate it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from accelerate.utils import DeepSpeedPlugin, FullyShardedDataParallelPlugin
from torch import Tensor
from torch.distributed.tensor import DTensor

from mmgrpo import Trainer
from mmgrpo.config import RuntimeConfig
from mmgrpo.distributed.job import Job
from mmgrpo.distributed.parameter_shards import ParameterShard, local_shards
from mmgrpo.distributed.sharding import Sharding
from mmgrpo.errors import ConfigError
from mmgrpo.layouts import blocks_of, layout_of, local_part
from mmgrpo.system.extras import is_installed
from mmgrpo.types import Plan
from tests import test_world_sizes as scenarios
from tests.forked import on_processes
from tests.policies import tiny_language, tiny_policies
from tests.policies.contract import gradients, values
from tests.policies.tiny_language import prompts_of

pytestmark = pytest.mark.nightly  # `.ci/run` has ten minutes

BLOCKWISE = ", drawn block by block"
EVERYDAY = ("images", f"a rank without rows{BLOCKWISE}", "joined by answers")
"""A reference, a process that has no call to make, and one that has more of them in one gradient."""


@dataclass(frozen=True)
class Outcome:
    """What a run came to.

    Attributes:
        weights: what was trained.
        lines: of its log.
        sharded_frac: share of the frozen weights of the blocks that the first process holds.
    """

    weights: Tensor
    lines: list[dict[str, Any]]
    sharded_frac: float


def resumed(output: Path) -> Trainer:
    """The second step taken by a trainer that resumes from the first one's checkpoint."""
    rollout = {"prompts_per_step": 4, "group_size": 2, "window": {"name": "fixed", "start": 0, "size": 3}}
    values = scenarios.base(output, rollout=rollout, checkpoint={"every": 1})
    arguments = {"brightness": scenarios.brightness}, scenarios.digit_prompts()

    def policy() -> Any:
        return scenarios.make_policy(rollout_batch=1, update_batch=1)

    first = scenarios.finished(Trainer(policy(), *arguments, values))
    first.job.barrier()
    if first.job.is_main:
        shutil.rmtree(first.folder.path / "checkpoints" / "step-000002")
    first.job.barrier()
    again = scenarios.finished(Trainer(policy(), *arguments, values, resume=first.folder.path))
    assert all(
        torch.equal(parameter, other) for parameter, other in zip(first.parameters, again.parameters, strict=True)
    )
    return again


def block_by_block(output: Path, *, scenario: Callable[[Path], Trainer]) -> Trainer:
    """A scenario whose rollouts gather the weights where they are called."""
    base, trained = scenarios.base, scenarios.trained
    runtime = {"device": "cpu", "gather_for_rollout": False}
    scenarios.base = lambda output, **sections: base(output, **sections) | {"runtime": runtime}
    scenarios.trained = lambda output, **sections: trained(output, **{"runtime": runtime, **sections})  # pyrefly: ignore[bad-argument-type]
    try:
        trainer = scenario(output)
    finally:
        scenarios.base, scenarios.trained = base, trained
    assert not trainer.config.runtime.gather_for_rollout
    return trainer


GATHERED: dict[str, Callable[[Path], Trainer]] = {**scenarios.SCENARIOS, "resumed": resumed}
SCENARIOS = GATHERED | {f"{name}{BLOCKWISE}": partial(block_by_block, scenario=made) for name, made in GATHERED.items()}


BY_NIGHT = tuple(name for name in SCENARIOS if name not in EVERYDAY)

needs_deepspeed = pytest.mark.skipif(not is_installed("deepspeed"), reason="the extra deepspeed is not installed")


def untimed(line: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in line.items() if not key.startswith(("time", "memory/"))}


def with_adapters() -> None:
    """Has the scenarios train adapters in place of all weights."""
    lora: dict[str, Any] = {"lora": {"rank": 2}}
    for name in ("make_policy", "policy_of", "terse"):
        setattr(scenarios, name, partial(getattr(scenarios, name), **lora))
    trained = scenarios.trained
    scenarios.trained = lambda output, settings, **config: trained(output, settings={**lora, **settings}, **config)  # pyrefly: ignore[bad-assignment]


def ask(*, in_parts: bool) -> None:
    """The argument for accelerate: the engine that ``on_two`` has, or no sharding."""
    engine = os.environ.get("TEST_ENGINE", "fsdp2")
    os.environ["ACCELERATE_USE_FSDP"] = str(in_parts and engine == "fsdp2").lower()
    os.environ["ACCELERATE_USE_DEEPSPEED"] = str(in_parts and engine != "fsdp2").lower()
    os.environ.update({"FSDP_VERSION": "2", "ACCELERATE_DEEPSPEED_ZERO_STAGE": engine[-1]})


def run(folder: Path, names: Sequence[str], *, in_parts: bool) -> dict[str, Outcome]:
    """The scenarios, on however many processes there are."""
    ask(in_parts=in_parts)
    result = {}
    for name in names:
        torch.manual_seed(0)
        trainer = SCENARIOS[name](folder / str(in_parts) / name)
        weights, lines = scenarios.outcome(trainer)
        modules: Any = trainer.policy.weights.modules  # pyrefly: ignore[missing-attribute]
        frozen = [p for module in modules.values() for p in module.parameters() if layout_of(p) is not None]
        total = sum(layout.shape.numel() for layout in map(layout_of, frozen) if layout is not None)
        sharded_frac = sum(local_part(p).numel() for p in frozen) / max(total, 1)
        result[name] = Outcome(weights, lines, sharded_frac)
    return result


def run_both(folder: Path, names: Sequence[str]) -> list[dict[str, Outcome]]:
    """The scenarios of a model, unsharded and sharded; adapters are trained."""
    with_adapters()
    return run_full(folder, names)


def run_full(folder: Path, names: Sequence[str]) -> list[dict[str, Outcome]]:
    """The same, and all weights are."""
    return [run(folder, names, in_parts=parts) for parts in (False, True)]


def gradients_apart(
    folder: Path, names: Sequence[str], *, tiny: ModuleType = tiny_policies, **settings: Any
) -> dict[str, float]:
    """Distance of a sharded model's gradients from an unsharded one's, of their norm; their decisions are equal."""
    apart = {"join_steps": False} if tiny is tiny_policies else {}  # joined ones are equal to rounding alone
    settings = {"lora": {"rank": 2}} | apart | settings
    ask(in_parts=True)
    job, result = Job(Accelerator()), {}
    assert job.sharding is not None
    for name in names:
        torch.manual_seed(0)
        unsharded = tiny.policy_of(name, **settings)
        torch.manual_seed(0)
        parts = tiny.policy_of(name, **settings)
        parts.shard(job.sharding.shard)
        rollouts = [policy.rollout(tiny.prompts_of(name), group_size=2, seed=1) for policy in (unsharded, parts)]
        assert torch.equal(rollouts[0].old_logprob_BT, rollouts[1].old_logprob_BT)
        job.barrier()
        ours, theirs = gradients(unsharded, rollouts[0]), gradients(parts, rollouts[1])
        theirs = [
            both(gradient, part, job) for gradient, part in zip(theirs, local_shards(parts.trainable), strict=True)
        ]
        result[name] = max(float((x - y).norm() / x.norm().clamp(min=1e-12)) for x, y in zip(ours, theirs, strict=True))
        job.barrier()
    return result


def joined_by_default(folder: Path, names: Sequence[str]) -> tuple[list[list[tuple[int, ...]]], list[int], list[float]]:
    """Of an unsharded model and of a sharded one: the decisions of each slice of an update, and the calls of a block;
    the largest difference of their log-probabilities, and the relative one of their gradients."""
    ask(in_parts=True)
    job = Job(Accelerator())
    assert job.sharding is not None
    policies = [tiny_policies.policy_of("sd3", batch=8) for _ in range(2)]
    policies[1].shard(job.sharding.shard)
    columns, calls, logprobs, grads = [], [], [], []
    for policy in policies:
        plan = Plan(stochastic=(0, 1))
        rollout = policy.rollout(tiny_policies.prompts_of("sd3"), group_size=2, seed=1, plan=plan)
        logprobs.append(values(policy, rollout))  # the first one compares joined steps with separate ones
        (module,) = policy.weights.modules.values()
        counted: list[object] = []
        handle = blocks_of(module)[0].register_forward_hook(lambda *args, counted=counted: counted.append(1))
        with torch.no_grad():
            columns.append([tuple(part.columns) for part in policy.evaluate(rollout)])
        handle.remove()
        calls.append(len(counted))
        grads.append(gradients(policy, rollout))
        job.barrier()
    shards = local_shards(policies[1].trainable)
    theirs = [both(gradient, shard, job) for gradient, shard in zip(grads[1], shards, strict=True)]
    norms = [float((x - y).norm() / x.norm().clamp(min=1e-12)) for x, y in zip(grads[0], theirs, strict=True)]
    job.barrier()
    return columns, calls, [float((logprobs[0] - logprobs[1]).abs().max()), max(norms)]


def both(gradient: Any, part: Tensor, job: Job) -> Tensor:
    """One process's gradient of what two had a gradient of, each the same."""
    job.barrier()
    local = gradient.to_local() if isinstance(gradient, DTensor) else gradient
    return part.parameter_layout.gather(local) / 2 if isinstance(part, ParameterShard) else gradient


def full_gradients_apart(folder: Path, names: Sequence[str]) -> dict[str, float]:
    """The same of all weights."""
    return gradients_apart(folder, names, lora=None)


def checkpointed_gradients_apart(folder: Path, names: Sequence[str]) -> list[dict[str, float]]:
    """The same of language models whose layers run again in the backward pass, of adapters and of all weights."""
    settings: list[dict[str, Any]] = [{}, {"lora": None}]
    return [
        gradients_apart(folder, names, tiny=tiny_language, gradient_checkpointing=True, **changed)
        for changed in settings
    ]


def on_two(
    folder: Path,
    names: Sequence[str],
    *,
    function: str,
    module: str = "tests.test_sharding",
    engine: str = "fsdp2",
    processes: int = 2,
) -> Any:
    """What a function of a module of tests gives on the first of two processes, or of so many."""
    environment = {"TEST_ENGINE": engine}
    return on_processes(folder, names, module=module, function=function, processes=processes, environment=environment)


@pytest.mark.parametrize("names", [EVERYDAY, pytest.param(BY_NIGHT, marks=pytest.mark.nightly)], ids=["day", "night"])
def test_a_sharded_model_has_the_updates_of_an_unsharded_one(names: Sequence[str], tmp_path: Path) -> None:
    unsharded, parts = on_two(tmp_path, names, function="run_both")
    for name in names:
        assert torch.equal(unsharded[name].weights, parts[name].weights), name
        for line, other in zip(unsharded[name].lines, parts[name].lines, strict=True):
            assert untimed(line) == untimed(other)
        assert unsharded[name].sharded_frac == 0.0
        assert parts[name].sharded_frac == pytest.approx(0.5, abs=0.01)


@needs_deepspeed
@pytest.mark.nightly
def test_adapters_sharded_by_deepspeed_have_the_unsharded_updates(tmp_path: Path) -> None:
    """DeepSpeed's linear layers add in another order than torch's."""
    unsharded, parts = on_two(tmp_path, tuple(SCENARIOS), function="run_both", engine="zero3")
    for name in SCENARIOS:
        assert float((unsharded[name].weights - parts[name].weights).norm() / unsharded[name].weights.norm()) < 1e-7, (
            name
        )
        assert len(unsharded[name].lines) == len(parts[name].lines)
        assert parts[name].sharded_frac == pytest.approx(0.5, abs=0.01)


def rollout_of_rank(folder: Path, names: Sequence[str]) -> tuple[list[int], list[Tensor]]:
    """Weights of a model on the first of two processes, before, while and after it alone samples from it.

    And log-probabilities of the samples under the unsharded and this model, by a reference of a later first use.
    """
    ask(in_parts=True)
    job = Job(Accelerator())
    assert job.sharding is not None
    unsharded, policy = scenarios.policy_of("llama"), scenarios.policy_of("llama")
    policy.shard(job.sharding.shard)

    def resident_bytes() -> int:
        return sum((p.to_local() if isinstance(p, DTensor) else p).numel() for p in policy.trainable)

    result = [resident_bytes()]
    with job.gathered_for_rollout(RuntimeConfig()):
        result.append(resident_bytes())
        if job.is_main:  # the other makes no call meanwhile, not even an empty one
            policy.rollout(prompts_of("llama"), group_size=2, seed=0)
            result.append(resident_bytes())
        job.barrier()
        logprobs: list[Tensor] = []
        for model in (unsharded, policy):
            with model.weights.using("reference"):
                logprobs.append(model.rollout(prompts_of("llama"), group_size=2, seed=1).old_logprob_BT)
        job.barrier()
    result.append(resident_bytes())
    return result, logprobs


def tried_alone(folder: Path, names: Sequence[str]) -> list[Tensor]:
    """Samples of an unsharded model with adapters, and of a sharded one of which the first of two processes samples."""
    ask(in_parts=True)
    job = Job(Accelerator())
    assert job.sharding is not None
    unsharded, policy = (scenarios.policy_of("llama", lora={"rank": 2}) for _ in range(2))
    policy.shard(job.sharding.shard)
    logprobs: list[Tensor] = []
    with job.gathered_for_rollout(RuntimeConfig()):
        if job.is_main:  # which tries ways by their gradients, and so needs the other's empty calls
            logprobs.append(policy.rollout(prompts_of("llama"), group_size=2, seed=0).old_logprob_BT)
    job.barrier()
    return [*logprobs, unsharded.rollout(prompts_of("llama"), group_size=2, seed=0).old_logprob_BT]


def alone(folder: Path, names: Sequence[str]) -> tuple[Any, list[Tensor]]:
    """Both."""
    return rollout_of_rank(folder, names), tried_alone(folder, names)


@pytest.mark.parametrize("engine", ["fsdp2", pytest.param("zero3", marks=(needs_deepspeed, pytest.mark.nightly))])
def test_a_model_is_gathered_on_each_process_while_it_samples(engine: str, tmp_path: Path) -> None:
    ((parted, *drawing, after), logprobs), tried = on_two(tmp_path, (), function="alone", engine=engine)
    assert torch.equal(*logprobs)
    assert torch.equal(*tried)
    total = sum(parameter.numel() for parameter in scenarios.policy_of("llama").trainable)
    assert after == parted < total
    assert drawing == [total, total]


@pytest.mark.nightly
@pytest.mark.parametrize("engine", ["fsdp2", pytest.param("zero3", marks=needs_deepspeed)])
def test_gradients_of_pipelines_in_parts(engine: str, tmp_path: Path) -> None:
    """A U-Net adds in another order; its blocks hold blocks."""
    apart = on_two(tmp_path, ("flux", "wan", "sd15"), function="gradients_apart", engine=engine)
    exact = {"flux": 0.0, "wan": 0.0} if engine == "fsdp2" else {}
    assert apart == dict.fromkeys(("flux", "wan", "sd15"), pytest.approx(0.0, abs=1e-5)) | exact
    (tmp_path / "full").mkdir()
    apart = on_two(tmp_path / "full", ("flux", "wan", "sd15"), function="full_gradients_apart", engine=engine)
    assert apart == dict.fromkeys(("flux", "wan", "sd15"), pytest.approx(0.0, abs=1e-5))


@pytest.mark.parametrize("engine", ["fsdp2", pytest.param("zero3", marks=needs_deepspeed)])
def test_steps_of_sharded_denoisers_share_a_call(engine: str, tmp_path: Path) -> None:
    columns, calls, apart = on_two(tmp_path, (), function="joined_by_default", engine=engine)
    assert columns == [[(0,), (1,)], [(0, 1)]]
    assert calls == [2, 1]  # each call of a block gathers its weights
    assert apart == pytest.approx([0.0, 0.0], abs=1e-4)


@pytest.mark.parametrize("engine", ["fsdp2", pytest.param("zero3", marks=needs_deepspeed)])
def test_gradients_of_checkpointed_layers_in_parts(engine: str, tmp_path: Path) -> None:
    apart = on_two(tmp_path, ("llama", "qwen2.5-vl"), function="checkpointed_gradients_apart", engine=engine)
    assert apart == [dict.fromkeys(("llama", "qwen2.5-vl"), pytest.approx(0.0, abs=1e-5))] * 2


def compiled_gradients_apart(folder: Path, names: Sequence[str]) -> dict[str, list[float]]:
    """Of a sharded and compiled model and of a plain one: the distance of their log-probabilities and gradients; of the
    first, the on-policy gap."""
    ask(in_parts=True)
    job, result = Job(Accelerator()), {}
    assert job.sharding is not None
    loras: dict[str, Any] = {"lora": {"rank": 2}, "full": None}
    kinds: dict[str, tuple[ModuleType, dict[str, Any]]] = {
        "flux": (tiny_policies, {"call": {"num_inference_steps": 3}}),
        "llama": (tiny_language, {"rescore": True}),
    }
    for name in names:
        family, weights = name.split()
        kind, settings = kinds[family]
        policies = [kind.policy_of(family, compile=on, lora=loras[weights], **settings) for on in (False, True)]
        policies[1].shard(job.sharding.shard)
        rollouts = [each.rollout(kind.prompts_of(family), group_size=2, seed=1) for each in policies]
        job.barrier()
        apart = float((rollouts[0].old_logprob_BT - rollouts[1].old_logprob_BT).abs().max())
        gap = float((values(policies[1], rollouts[1]) - rollouts[1].old_logprob_BT).abs().max())
        ours, theirs = (gradients(policy, rollout) for policy, rollout in zip(policies, rollouts, strict=True))
        shards = local_shards(policies[1].trainable)
        theirs = [both(gradient, shard, job) for gradient, shard in zip(theirs, shards, strict=True)]
        norms = [float((x - y).norm() / x.norm().clamp(min=1e-12)) for x, y in zip(ours, theirs, strict=True)]
        result[name] = [apart, gap, max(norms)]
        job.barrier()
    return result


@pytest.mark.slow
@pytest.mark.parametrize("weights", ["lora", "full"])
@pytest.mark.parametrize("family", ["flux", "llama"])
def test_compiled_blocks_are_sharded(family: str, weights: str, tmp_path: Path) -> None:
    name = f"{family} {weights}"
    result = on_two(tmp_path, (name,), function="compiled_gradients_apart")
    assert result == {name: pytest.approx([0.0, 0.0, 0.0], abs=1e-5)}


def error_of_weight_sets(folder: Path, names: Sequence[str]) -> str:
    """The error of further trained weights of a sharded policy."""
    ask(in_parts=True)
    job = Job(Accelerator())
    assert job.sharding is not None
    policy = tiny_policies.policy_of(names[0])
    policy.shard(job.sharding.shard)
    with pytest.raises(ConfigError) as raised, policy.weights.training("copy"):
        pass
    job.barrier()
    return str(raised.value)


@pytest.mark.nightly
def test_weight_sets_of_a_sharded_policy_are_an_error(tmp_path: Path) -> None:
    message = on_two(tmp_path, ("sd3",), function="error_of_weight_sets")
    assert message.startswith("update.weight_sets needs complete weights in every process, and these are sharded")


def test_unsupported_sharding_raises() -> None:
    accelerator = Accelerator(cpu=True)
    with pytest.raises(ConfigError, match="set fsdp_version: 2"):
        Sharding(accelerator, FullyShardedDataParallelPlugin(fsdp_version=1))
    sharding = Sharding(accelerator, FullyShardedDataParallelPlugin(fsdp_version=2))
    with pytest.raises(ConfigError, match=r"head cannot be sharded: Linear names no blocks"):
        sharding.shard("head", torch.nn.Linear(2, 2).requires_grad_(False))
    with pytest.raises(ConfigError, match=r"policy.compile does not support sharding the .*is compiled as one module"):
        scenarios.make_policy(lora={"rank": 2}, compile=True).shard(sharding.shard)


@needs_deepspeed
@pytest.mark.parametrize(
    ("settings", "logprobs"),
    [
        ({"zero_optimization": {"stage": 1}}, "ZeRO-1 is not supported"),
        (
            {"zero_optimization": {"stage": 3}, "optimizer": {"type": "AdamW", "params": {"lr": 1}}},
            "optimizer.type, op",
        ),
        ({"zero_optimization": {"stage": 3}, "gradient_clipping": 0.5}, "gradient_clipping, which"),
        ({"zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"}}}, "offload_param.device, which"),
    ],
)
def test_ignored_settings_of_deepspeed_raise(settings: dict[str, Any], logprobs: str) -> None:
    with pytest.raises(ConfigError, match=logprobs):
        Sharding(Accelerator(cpu=True), DeepSpeedPlugin(hf_ds_config=settings))


@needs_deepspeed
def test_settings_of_deepspeed_that_only_set_its_speed_are_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    settings = {"zero_optimization": {"stage": 2, "overlap_comm": True}, "train_batch_size": "auto"}
    assert Sharding(Accelerator(cpu=True), DeepSpeedPlugin(hf_ds_config=settings)).engine == "DeepSpeed ZeRO-2"
    assert "no effect here: zero_optimization.overlap_comm" in caplog.text
