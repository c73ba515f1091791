"""All weights trained and sharded on two processes: the updates of replicated ones, and the same files."""

from __future__ import annotations

import json
import os
import resource
import signal
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import SD3Transformer2DModel
from safetensors.torch import load_file
from torch import Tensor

from mmgrpo import Sample, Trainer
from mmgrpo.errors import OutputError, RewardError
from mmgrpo.runs.checkpoint import checkpoint_fault, list_checkpoints, load_checkpoint
from mmgrpo.shards import Stored, read_shards, shard_name
from tests import test_world_sizes as scenarios
from tests.policies import tiny_policies
from tests.policies.tiny_language import prompts_of
from tests.test_sharding import BLOCKWISE, SCENARIOS, Outcome, ask, needs_deepspeed, on_two, run, run_full

pytestmark = pytest.mark.nightly  # `.ci/run` has ten minutes

RELATIVE = 1e-7
EVERYDAY = ("images", f"a rank without rows{BLOCKWISE}")
FILES = ("kept", "texts", "failed", "loaded", "full")
"""Runs whose files are read; and, nightly, one that gets a signal to end."""
BY_NIGHT = tuple(name for name in SCENARIOS if name not in EVERYDAY)
SAME = ("loss", "reward/mean", "optimizer/grad_norm", "rollout/rounds", "advantage/abs_mean")


def checkpointed(output: Path, **changes: Any) -> Trainer:
    """An average, hooks, a moving reference, evaluations and a checkpoint a step; the last update is skipped.

    In the third step one group earns so much that its gradient is infinite.
    """

    def reward(samples: Sequence[Sample]) -> list[float]:
        if trainer.step < 2 or len({sample.member for sample in samples}) == 1:
            return scenarios.brightness(samples)
        return [(3e38 if sample.group == 1 else 1.0) * (1 if sample.member else -1) for sample in samples]

    rollout = {"prompts_per_step": 2, "group_size": 2, "window": {"name": "fixed", "start": 0, "size": 2}}
    hooks = [{"name": "slow_fast", "inner": 2, "alpha": 0.5}, {"name": "mask", "share": 0.5}]
    values = scenarios.base(
        output,
        steps=3,
        rollout=rollout,
        advantage={"scale": "none"},
        objective={"kl": {"divergence": "gaussian", "beta": 0.1}},
        update={"minibatches": 1, "ema": {"decay": 0.5}, "hooks": hooks, "reference": {"ema": {"decay": 0.5}}},
        checkpoint={"every": 1},
        evaluation={"prompts": {"source": "python:mmgrpo.examples.digits:digit_prompts", "limit": 3}, "every": 1},
    )
    policy = scenarios.make_policy(rollout_batch=1, update_batch=1)
    trainer = Trainer(policy, {"brightness": reward}, scenarios.digit_prompts(), {**values, **changes})
    return trainer


def texts(output: Path) -> Trainer:
    """A language model, whose blocks are a part of what is saved as one; a reference and an average."""
    rollout = {"prompts_per_step": 2, "group_size": 4}
    objective, update = {"kl": {"divergence": "k3", "beta": 0.1}}, {"ema": {"decay": 0.5}}
    values = scenarios.base(output, rollout=rollout, objective=objective, update=update, checkpoint={"every": 1})
    policy, rewards = scenarios.policy_of("llama"), {"shortest": scenarios.shortest}
    return Trainer(policy, rewards, prompts_of("llama"), values)


def ended_early(output: Path, *, raises: bool) -> Trainer:
    """The second step is given up because one process gets a signal, or its reward fails; no checkpoint is due."""
    rollout = {"prompts_per_step": 2, "group_size": 2, "window": {"name": "fixed", "start": 0, "size": 2}}
    values = scenarios.base(output, rollout=rollout, checkpoint={"every": None})

    def ending(samples: Sequence[Sample]) -> list[float]:
        if trainer.step == 1 and os.environ["RANK"] == "1":
            if raises:
                raise RewardError("this one is out of order")
            os.kill(os.getpid(), signal.SIGTERM)
        return scenarios.brightness(samples)

    policy = scenarios.make_policy(rollout_batch=1, update_batch=1)
    trainer = Trainer(policy, {"ending": ending}, scenarios.digit_prompts(), values)
    with pytest.raises(RewardError, match="out of order") if raises else nullcontext():
        trainer.train()
    return trainer


def without_room(output: Path) -> Trainer:
    """The second process has no room for its part of the second checkpoint."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)

    def filling(samples: Sequence[Sample]) -> list[float]:
        if trainer.step == 1 and os.environ["RANK"] == "1":
            resource.setrlimit(resource.RLIMIT_FSIZE, (5000, limits[1]))
        return scenarios.brightness(samples)

    rollout = {"prompts_per_step": 2, "group_size": 2, "window": {"name": "fixed", "start": 0, "size": 2}}
    values = scenarios.base(output, rollout=rollout, checkpoint={"every": 1})
    policy = scenarios.make_policy(rollout_batch=1, update_batch=1)
    trainer = Trainer(policy, {"filling": filling}, scenarios.digit_prompts(), values)
    with pytest.raises(OutputError, match=r"step-000002.* cannot be written: process 1: .*existing checkpoints stay"):
        trainer.train()
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    return trainer


def loaded(output: Path) -> Trainer:
    """A bfloat16 model that a configuration names, whose blocks become float32 once they are parted, and a copy."""
    rollout = {"prompts_per_step": 2, "group_size": 2, "window": {"name": "fixed", "start": 0, "size": 2}}
    model = "python:tests.policies.tiny_policies:build_sd3"
    named = {"name": "denoising", "model": model, "dtype": "bfloat16", "join_steps": False}  # as the unsharded run
    call = scenarios.make_policy().settings.call
    objective = {"kl": {"divergence": "gaussian", "beta": 0.1}}
    values = scenarios.base(output, rollout=rollout, objective=objective, steps=2, advantage={"scale": "none"})
    arguments = {"brightness": scenarios.brightness}, scenarios.digit_prompts()
    return Trainer(None, *arguments, {**values, "policy": {**named, "lora": None, "call": dict(call)}})


def of_files(folder: Path, names: Sequence[str]) -> list[dict[str, Any]]:
    """The scenarios, and runs whose files are looked at."""
    made = {
        "kept": checkpointed,
        "texts": texts,
        "terminated": partial(ended_early, raises=False),
        "failed": partial(ended_early, raises=True),
        "loaded": loaded,
        "full": without_room,
    }
    result: list[dict[str, Any]] = list(run_full(folder, [name for name in names if name not in made]))
    for number, parts in enumerate((False, True)):
        ask(in_parts=parts)
        for name in (name for name in names if name in made and (parts or name != "full")):
            trainer = made[name](folder / str(parts) / name)
            if name in ("kept", "texts", "loaded"):
                trainer.train()
            result[number][name] = str(trainer.folder.path), scenarios.outcome(trainer)[0]
        assert trainer.job.is_sharded == parts  # pyrefly: ignore[unbound-name]
    return result


def lines(folder: Path, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


def close(tensor: Tensor, other: Tensor) -> bool:
    return tensor.shape == other.shape and float((tensor - other).norm()) <= 1e-5 * float(tensor.norm()) + 1e-9


def same_updates(unsharded: dict[str, Outcome], parts: dict[str, Outcome], name: str) -> None:
    ours, theirs = unsharded[name], parts[name]
    assert float((ours.weights - theirs.weights).norm() / ours.weights.norm()) < RELATIVE, name
    assert theirs.sharded_frac == pytest.approx(0.5, abs=0.01)
    assert len(ours.lines) == len(theirs.lines) > 0
    for line, other in zip(ours.lines, theirs.lines, strict=True):
        for key in SAME:
            if key in line:
                assert other[key] == pytest.approx(line[key], rel=1e-4, abs=1e-7), (name, key)


ZERO = [pytest.param(engine, marks=(needs_deepspeed, pytest.mark.nightly)) for engine in ("zero2", "zero3")]


def by_deepspeed(folder: Path, names: Sequence[str]) -> dict[str, dict[str, Outcome]]:
    """The scenarios of weights, unsharded and sharded; ZeRO-3 replaces torch's linear function, so it is last."""
    result = {}
    for engine in ("zero2", "whole", "zero3"):
        os.environ["TEST_ENGINE"] = engine
        result[engine] = run(folder / engine, names, in_parts=engine != "whole")
    return result


@needs_deepspeed
def test_weights_sharded_by_deepspeed_have_the_unsharded_updates(tmp_path: Path) -> None:
    runs = on_two(tmp_path, EVERYDAY, function="by_deepspeed", module="tests.test_sharding_full")
    for name in EVERYDAY:
        same_updates(runs["whole"], runs["zero2"], name)
        same_updates(runs["whole"], runs["zero3"], name)


@pytest.mark.nightly
@pytest.mark.parametrize("engine", ["fsdp2", *ZERO])
def test_sharded_weights_have_the_unsharded_updates_in_every_scenario(engine: str, tmp_path: Path) -> None:
    unsharded, parts = on_two(tmp_path, BY_NIGHT, function="run_full", engine=engine)
    for name in BY_NIGHT:
        same_updates(unsharded, parts, name)


@pytest.mark.parametrize(
    ("scenarios", "ended"),
    [
        (EVERYDAY[:1], ("failed",)),
        pytest.param(EVERYDAY, ("failed", "terminated"), marks=pytest.mark.nightly),
    ],
    ids=["day", "night"],
)
@pytest.mark.parametrize("engine", ["fsdp2", *ZERO])
def test_weights_in_parts_on_two_processes(
    engine: str, scenarios: Sequence[str], ended: Sequence[str], tmp_path: Path
) -> None:
    names = [*scenarios, *dict.fromkeys((*FILES, *ended))]
    runs = on_two(tmp_path, names, function="of_files", module="tests.test_sharding_full", engine=engine)
    for name in scenarios:
        same_updates(runs[0], runs[1], name)
    checkpoints_lie_in_parts(runs)
    so_do_those_of_language_models(runs)
    evaluations_are_of_the_average(runs)
    rows_at_fault_are_named(runs)
    run_ends_on_all_processes(runs)
    blocks_that_waited_are_trained_as_others(runs)
    no_part_is_left_of_what_one_could_not_write(runs)
    for name in ended:
        the_last_finished_step_is_saved(runs, name)


def checkpoints_lie_in_parts(runs: Any) -> None:
    unsharded, parts = (Path(outcome["kept"][0]) for outcome in runs)
    assert [checkpoint.name for checkpoint in list_checkpoints(parts)] == ["step-000001", "step-000002", "step-000003"]
    last = [folder / "checkpoints" / "step-000003" for folder in (unsharded, parts)]
    folders = [
        sorted({str(path.parent.relative_to(folder)) for path in folder.rglob("*.safetensors")}) for folder in last
    ]
    assert folders[1] == sorted([*folders[0], "training"])
    assert "policy/kept/reference/transformer" in folders[0]
    for name in folders[0]:
        ours, theirs = load_file(next((last[0] / name).glob("*.safetensors"))), read_shards(last[1] / name)
        assert ours.keys() == theirs.keys()
        assert all(close(ours[key], theirs[key].full_tensor()) for key in ours), name
    ours, theirs = (load_checkpoint(folder, None, "cpu")[1] for folder in last)
    for number, state in ours["optimizer"]["state"].items():
        assert close(state["exp_avg"], read(theirs["optimizer"]["state"][number]["exp_avg"]))
        assert torch.equal(state["step"], theirs["optimizer"]["state"][number]["step"])
    of_hooks = ours["hooks"]["0.slow_fast"]["start"], theirs["hooks"]["0.slow_fast"]["start"]
    assert all(close(tensor, read(other)) for tensor, other in zip(*of_hooks, strict=True))
    sizes = [path.stat().st_size for path in sorted((last[1] / "training").iterdir())]
    assert len(sizes) == 2
    assert sizes[0] == pytest.approx(sizes[1], rel=0.02)
    policy, put_together = scenarios.make_policy(), parts.parent / "put together"
    put_together.mkdir()
    policy.load(last[1] / "average")
    policy.save(put_together)
    loaded = SD3Transformer2DModel.from_pretrained(put_together / "transformer")
    averaged = load_file(last[0] / "average/transformer/diffusion_pytorch_model.safetensors")
    assert all(close(averaged[name], value) for name, value in loaded.state_dict().items())


def so_do_those_of_language_models(runs: Any) -> None:
    unsharded, parts = (Path(outcome["texts"][0]) / "checkpoints" / "step-000002" for outcome in runs)
    for name in ("policy/model", "policy/kept/reference/model", "average/model"):
        assert {path.name for path in (parts / name).glob("*.safetensors")} == {shard_name(n, 2) for n in range(2)}
        policy = scenarios.policy_of("llama")
        policy.load((parts / name).parent)
        ours, theirs = load_file(unsharded / name / "model.safetensors"), policy.model.state_dict()
        assert len(ours) >= len(dict(policy.model.named_parameters()))
        assert all(close(value, theirs[key]) for key, value in ours.items()), name


def read(value: Tensor | Stored) -> Tensor:
    return value.full_tensor() if isinstance(value, Stored) else value


def evaluations_are_of_the_average(runs: Any) -> None:
    ours, theirs = (lines(Path(outcome["kept"][0]), "evaluation.jsonl") for outcome in runs)
    assert [line["step"] for line in ours] == [0, 1, 2, 3]
    means = [[line["eval/brightness/mean"] for line in each] for each in (ours, theirs)]
    assert means[1] == pytest.approx(means[0], rel=1e-4)


def rows_at_fault_are_named(runs: Any) -> None:
    for folder, _ in (outcome["kept"] for outcome in runs):
        (line,) = lines(Path(folder), "skipped.jsonl")
        assert [(sample["group"], sample["member"]) for sample in line["samples"]] == [(1, 0), (1, 1)]


def run_ends_on_all_processes(runs: Any) -> None:
    ends = []
    for folder, _ in (outcome["kept"] for outcome in runs):
        again = checkpointed(Path(folder).parent, steps=4)
        again = Trainer(
            scenarios.make_policy(rollout_batch=1, update_batch=1),
            {"brightness": scenarios.brightness},
            scenarios.digit_prompts(),
            again.config,
            resume=Path(folder),
        )
        again.train()
        assert again.step == 4
        ends.append(torch.cat([p.detach().flatten() for p in again.parameters]))
    assert close(*ends)
    assert not close(ends[0], runs[0]["kept"][1])


def blocks_that_waited_are_trained_as_others(runs: Any) -> None:
    (_, unsharded), (_, parts) = (outcome["loaded"] for outcome in runs)
    before = torch.cat([p.detach().flatten().float() for p in tiny_policies.build_sd3().transformer.parameters()])
    moved = unsharded - before.to(torch.bfloat16).float()
    assert float((unsharded - parts).norm()) < 0.05 * float(moved.norm())  # Adam makes much of bfloat16's rounding


def no_part_is_left_of_what_one_could_not_write(runs: Any) -> None:
    folder = Path(runs[1]["full"][0])
    assert [path.name for path in (folder / "checkpoints").iterdir()] == ["step-000001"]
    assert checkpoint_fault(folder / "checkpoints" / "step-000001") is None
    assert json.loads((folder / "run.json").read_text())["status"] == "failed"


def the_last_finished_step_is_saved(runs: Any, name: str) -> None:
    for folder, weights in (outcome[name] for outcome in runs):
        assert json.loads((Path(folder) / "run.json").read_text())["status"] == name
        (last,) = list_checkpoints(Path(folder))
        assert last.name == "step-000001"
        policy = scenarios.make_policy()
        policy.load(last / "policy")
        assert torch.equal(torch.cat([p.detach().flatten() for p in policy.trainable]), weights)
