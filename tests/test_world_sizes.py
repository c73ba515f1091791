"""One process or two: the same updates to float32 rounding, of GRPO and of the warm-up, whatever rows a rank holds.

A row in a separate forward is computed in the same way on every process, so only the order of summed gradients differs.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from mmgrpo.examples.digits import digit_prompts
from mmgrpo.rewards.groups.sample_chains import OfLater, OfPromptTemplate
from torch import Tensor

from mmgrpo import Example, Prompt, Sample, Trainer
from mmgrpo.distributed.parameter_shards import ParameterShard, local_shards
from tests.forked import on_processes
from tests.policies.test_language_exchanges import terse
from tests.policies.tiny_language import policy_of, prompts_of
from tests.test_trainer import make_policy
from tests.test_trainer_language import trained
from tests.training.test_credit_of_turns import CORRIDOR

RELATIVE = 1e-7
TIMES = int(os.environ.get("MMGRPO_TIMES", "1"))
"""How many times as many groups and examples a step has; 3 lets three processes share them."""
TEXTS = ("one", "a", "two red squares on the left", "is one red", "what", "say the number that you see", "b", "c d e")


def brightness(samples: Sequence[Sample]) -> list[float]:
    return [sum(sample.image.tobytes()) / 64 for sample in samples if sample.image is not None]


def first_half_at_first(samples: Sequence[Sample]) -> list[float | None]:
    """Lengths; at the first step nothing of the prompts that a second process holds."""
    step = len(first_half_at_first.steps)  # pyrefly: ignore[missing-attribute]
    first_half_at_first.steps.append(step)  # pyrefly: ignore[missing-attribute]
    return [None if step == 0 and s.group >= 1 else number for s, number in zip(samples, lengths(samples), strict=True)]


def lengths(samples: Sequence[Sample]) -> list[float | None]:
    """Lengths, and a little more for later members."""
    return [len(s.tokens or ()) + 0.1 * s.member for s in samples]


def read_aloud(samples: int = 8) -> list[Example]:
    """Texts of very different lengths, so that a mean over tokens is no mean of the processes' means."""
    return [Example(Prompt(f"what number is {text}"), text=text) for text in TEXTS[:samples]]


def base(output: Path, **sections: Any) -> dict[str, Any]:
    # AdamW divides by the size of a gradient, and so blows up roundings of small ones: eps is large here
    update = {"minibatches": 2, "optimizer": {"lr": 1e-3, "eps": 1e-2}, **sections.pop("update", {})}
    for section, name, key in ((sections, "rollout", "prompts_per_step"), (update, "warmup", "batch_size")):
        if name in section:
            section[name] = {**section[name], key: TIMES * section[name][key]}  # pyrefly: ignore[bad-index, invalid-argument]
    return {"output": str(output), "steps": 2, "update": update, "runtime": {"device": "cpu"}, **sections}


def on_images(output: Path) -> Trainer:
    rollout = {"prompts_per_step": 4, "group_size": 2, "window": {"name": "fixed", "start": 0, "size": 3}}
    objective = {"kl": {"divergence": "gaussian", "beta": 0.1}}
    values = base(output, rollout=rollout, advantage={"scale": "batch"}, objective=objective)
    policy = make_policy(rollout_batch=1, update_batch=1)
    return finished(Trainer(policy, {"brightness": brightness}, digit_prompts(), values))


def on_images_remembered(output: Path) -> Trainer:
    """A sampler whose choice at the second step goes by the rewards of all processes at the first."""
    rollout = {"prompts_per_step": 2, "group_size": 2, "window": {"name": "fixed", "start": 0, "size": 3}}
    settled = {"sampler": {"name": "skip_settled", "right": 100, "wrong": 100, "start": 0.1}}
    values = base(output, rollout=rollout, prompts=settled, advantage={"scale": "batch"})
    policy = make_policy(rollout_batch=1, update_batch=1)
    return finished(Trainer(policy, {"brightness": brightness}, digit_prompts()[:3], values))


def on_pictures_and_words(output: Path) -> Trainer:
    values = base(output, rollout={"prompts_per_step": 4, "group_size": 4})
    settings = {"rollout_batch": 1, "update_tokens": 1}
    return trained(output, settings=settings, update=values["update"], rollout=values["rollout"])


def a_rank_without_rows(output: Path) -> Trainer:
    """Full weights and a reference: the process whose first update holds no row must not copy moved weights later."""
    first_half_at_first.steps = []  # pyrefly: ignore[missing-attribute]
    objective = {"kl": {"divergence": "k3", "beta": 0.5}}
    values = base(output, rollout={"prompts_per_step": 2, "group_size": 4}, objective=objective)
    values["update"] |= {"minibatches": 1, "optimizer": {"lr": 1e-2, "eps": 1e-2}}
    policy = policy_of("llama", batch=1)
    return finished(Trainer(policy, {"length": first_half_at_first}, prompts_of("llama"), values))


def uneven(samples: Sequence[Sample]) -> list[float | None]:
    """Groups of equal rewards, of differing ones, and members without any."""
    kinds = {0: lambda m: 1.0, 1: lambda m: m, 2: lambda m: None if m == 1 else 0.3 * m}
    return [kinds[(s.group + len(s.prompt.text) + 2) % 3](s.member) for s in samples]


def refilled(output: Path) -> Trainer:
    """Rounds of prompts that the two processes share unevenly, groups that are dropped, and rewards that are None."""
    rollout = {"prompts_per_step": 2, "group_size": 3, "strategy": {"name": "refill", "factor": 1.5, "rounds": 3}}
    policy = policy_of("llama", batch=1)
    return finished(Trainer(policy, {"uneven": uneven}, prompts_of("llama"), base(output, rollout=rollout)))


def joined_by_replay(output: Path) -> Trainer:
    """Ragged groups: remembered rows join those whose prompt has any; the loss compares the members of a group."""
    rollout = {"prompts_per_step": 2, "group_size": 2, "strategy": {"name": "with_replay", "num": 1}}
    objective = {"surrogate": None, "terms": [{"name": "gvpo"}]}
    values = base(output, rollout=rollout, objective=objective, steps=3)
    return finished(Trainer(policy_of("llama", batch=1), {"uneven": uneven}, prompts_of("llama"), values))


def attempted_again(output: Path) -> Trainer:
    """Groups of two rounds, scored by a reward that compares their members once a group is complete."""
    strategy = {"name": "on_failure", "members": 2, "settings": {"temperature": 1.5}}
    rollout = {"prompts_per_step": 2, "group_size": 3, "strategy": strategy}
    policy = policy_of("llama", batch=1)
    return finished(Trainer(policy, {"shortest": shortest}, prompts_of("llama"), base(output, rollout=rollout)))


def shortest(samples: Sequence[Sample]) -> list[float]:
    """The share of the other members that are no shorter, below 1 until a group has five."""

    def of(sample: Sample) -> float:
        others = [len(s.text or "") for s in samples if s.group == sample.group and s.member != sample.member]
        return sum(length >= len(sample.text or "") for length in others) / (len(others) + 1) + 0.01 * sample.member

    return [of(sample) for sample in samples]


def a_tree_of_images(output: Path) -> Trainer:
    """Trees of denoising steps, credited node by node; leaves without a reward, and rounds that are shared unevenly."""
    rollout = {
        "prompts_per_step": 2,
        "group_size": 4,
        "tree": {"name": "at", "at": [0, 1], "spread": 2.0},
        "window": {"name": "fixed", "start": 0, "size": 3},
        "strategy": {"name": "refill", "factor": 1.5, "rounds": 2},
    }
    advantage = {"estimators": [{"name": "by_depth"}, {"name": "shared_once"}]}
    values = base(output, rollout=rollout, advantage=advantage, update={"minibatches": 1})
    policy = make_policy(rollout_batch=1, update_batch=1)
    return finished(Trainer(policy, {"uneven": uneven_brightness}, digit_prompts(), values))


def uneven_brightness(samples: Sequence[Sample]) -> list[float | None]:
    """Brightness; of each third prompt the same for all, of the next nothing of one leaf."""
    return [
        1.0 if s.group % 3 == 0 else None if s.group % 3 == 1 and s.member == 2 else light
        for s, light in zip(samples, brightness(samples), strict=True)
    ]


def moving(output: Path) -> Trainer:
    """Numbers that move from step to step, two of them by what all processes measured, and groups that grow."""
    rollout = {"prompts_per_step": 2, "group_size": 3, "strategy": {"name": "refill", "factor": 1.5, "rounds": 3}}
    values = base(
        output,
        steps=3,
        rollout=rollout,
        update={"minibatches": 1},
        objective={"kl": {"divergence": "k3", "beta": 0.5}, "surrogate": {"name": "clipped", "low": 0.2, "high": 0.2}},
        schedules={
            "rollout.group_size": {"name": "step", "values": [3, 4], "at": [1]},
            "policy.temperature": {"name": "linear", "start": 1.5, "end": 1.0, "steps": 3},
            "objective.surrogate.high": {"name": "linear", "start": 0.2, "end": 0.3, "steps": 3},
            "objective.kl.beta": {"name": "adaptive_kl", "target": 1e-6},
            "update.optimizer.max_grad_norm": {
                "name": "dual_ascent",
                "metric": "reward/uneven/mean",
                "target": 0.6,
                "rate": 0.5,
            },
        },
    )
    return finished(Trainer(policy_of("llama", batch=1), {"uneven": uneven}, prompts_of("llama"), values))


def exchanged(output: Path) -> Trainer:
    """Exchanges of several turns, compared state by state; samples without a reward, and a second round."""
    rollout = {
        "prompts_per_step": 2,
        "group_size": 3,
        "environment": {"name": CORRIDOR, "named": True},
        "max_turns": 3,
        "strategy": {"name": "refill", "factor": 1.5, "rounds": 3},
    }
    advantage = {"estimators": [{"name": "anchor_states"}]}
    values = base(output, rollout=rollout, advantage=advantage, update={"minibatches": 1})
    policy = terse("llama", batch=1, max_new_tokens=60)
    return finished(Trainer(policy, {"uneven": uneven}, prompts_of("llama"), values))


def turns_with_pictures(output: Path) -> Trainer:
    """Conversations whose environment answers with images that depend on the policy's text."""
    environment = {"name": "python:tests.policies.test_language_media_turns:Showing"}
    rollout = {"prompts_per_step": 2, "group_size": 3, "environment": environment}
    policy = terse("qwen2.5-vl", batch=1, max_new_tokens=120)
    return finished(Trainer(policy, {"length": lengths}, prompts_of("qwen2.5-vl"), base(output, rollout=rollout)))


def in_trees(output: Path) -> Trainer:
    """Rows that continue others before their most uncertain tokens, credited by branch; each decision trains once."""
    rollout = {
        "prompts_per_step": 2,
        "group_size": 2,
        "strategy": {"name": "branch_at_uncertain", "num": 1, "levels": 2},
    }
    credit = [{"name": "temporal_difference", "mean_of": "children"}, {"name": "along_segments"}]
    advantage = {"estimators": credit, "filters": [{"name": "each_decision_once"}]}
    values = base(output, rollout=rollout, advantage=advantage)
    return finished(Trainer(policy_of("llama", batch=1), {"uneven": uneven}, prompts_of("llama"), values))


def in_chains(output: Path) -> Trainer:
    """Groups after the text of the round before, others after theirs, and rewards of later rows."""
    then = [
        {"prompt_template": "problem", "rows": "right", "right": 0.3, "most": 1},
        {"prompt_template": "solution", "members": 2},
    ]
    prompt_templates = {
        "problem": {"name": "after_answers", "text": "Vary: {answer}"},
        "solution": {"name": "after_answers", "text": "{answer}"},
    }
    rollout = {"prompts_per_step": 4, "group_size": 3, "strategy": {"name": "stages", "then": then}}
    rewards = {
        "own": OfPromptTemplate(uneven, prompt_templates=[None, "solution"]),
        "later": OfLater(uneven, prompt_templates=["problem"], later="solution"),
    }
    values = base(output, rollout={**rollout, "prompt_templates": prompt_templates})
    return finished(Trainer(policy_of("llama", batch=1), rewards, prompts_of("llama"), values))


def three_prompts() -> list[Prompt]:
    """The prompts of an evaluation, of which one process has two."""
    return [Prompt(f"what number is {text}") for text in TEXTS[:3]]


def taking_turns(output: Path) -> Trainer:
    """Two roles of one policy; the best of the candidates of a turn is continued. Evaluations are conversations too."""
    strategy = {"name": "take_turns", "roles": ["asker", "helper"], "turns": 3, "follow": "best"}
    prompt_templates = {
        "asker": {"name": "role", "text": "Ask: {prompt}"},
        "helper": {"name": "role", "text": "Help: {prompt}"},
    }
    rollout = {"prompts_per_step": 4, "group_size": 3, "strategy": strategy, "prompt_templates": prompt_templates}
    evaluation = {
        "prompts": {"source": "python:tests.test_world_sizes:three_prompts"},
        "every": 1,
        "samples_per_prompt": 2,
        "sampled": True,
        "rewards": [{"name": "python:tests.test_world_sizes:lengths", "label": "length"}],
    }
    values = base(output, rollout=rollout, evaluation=evaluation)
    return finished(Trainer(policy_of("llama", batch=1), {"uneven": uneven}, prompts_of("llama"), values))


def warmed_on_texts(output: Path) -> Trainer:
    warmup = {"examples": "python:tests.test_world_sizes:read_aloud", "steps": 3, "batch_size": 8}
    values = base(output, steps=0, rollout={"prompts_per_step": 2}, update={"warmup": warmup})
    return finished(Trainer(policy_of("llama", batch=1), {"length": lengths}, prompts_of("llama"), values))


def warmed_on_images(output: Path) -> Trainer:
    warmup = {"examples": {"name": "mislabeled_digits", "fraction": 0.5}, "steps": 3, "batch_size": 4}
    values = base(output, steps=0, rollout={"prompts_per_step": 2}, update={"warmup": warmup})
    return finished(Trainer(make_policy(), {"brightness": brightness}, digit_prompts(), values))


def joined_by_answers(output: Path) -> Trainer:
    """Demonstrations with a separate surrogate and term; also answers of groups that fail, and examples."""
    rollout = {"prompts_per_step": 2, "group_size": 3, "strategy": {"name": "with_answer"}}
    off_policy = {"surrogate": {"name": "shaped", "gamma": 0.1}, "ratio_level": "sequence", "weight": 0.5}
    terms = [{"name": "negative_logprob", "sources": ["demonstration"], "weight": 0.1}]
    failed = {
        "name": "answers",
        "label": "failed",
        "column": "solution",
        "weight_by_success": {"name": "below", "rate": 0.7},
    }
    read = {
        "label": "aloud",
        "name": "python:tests.test_world_sizes:read_aloud",
        "batch_size": 4 * TIMES,
        "weight": 0.3,
    }
    values = base(
        output, rollout=rollout, objective={"off_policy": off_policy, "terms": terms, "auxiliary": [failed, read]}
    )
    prompts = [
        replace(prompt, columns={"solution": text}) for prompt, text in zip(prompts_of("llama"), TEXTS, strict=False)
    ]
    return finished(Trainer(policy_of("llama", batch=1), {"uneven": uneven}, prompts, values))


def with_views(output: Path) -> Trainer:
    """Views of other prompts, with a gradient and without, a moving reference after a peer's answer, a teacher."""
    views = {
        "rude": {"prompt_template": {"name": "template", "text": "say it now: {prompt}"}},
        "peer": {"weights": "reference", "prompt_template": {"name": "peer_answer", "at_least": 0.5}},
        "teacher": {"policy": {"name": "language", "model": "python:tests.training.test_view_runs:writer", **FLOAT32}},
    }
    terms = [
        {"name": "divergence", "view": "rude", "weight": -0.05, "grad": True},
        {"name": "distillation", "view": "peer"},
    ]
    credit = {"estimators": [{"name": "log_ratio", "view": "teacher", "weight": 0.1}]}
    rollout = {"prompts_per_step": 2, "group_size": 3}
    values = base(output, rollout=rollout, objective={"views": views, "terms": terms}, advantage=credit)
    values["update"]["reference"] = {"ema": {"decay": 0.5}}
    return finished(Trainer(policy_of("llama", batch=1), {"uneven": uneven}, prompts_of("llama"), values))


def with_a_critic(output: Path) -> Trainer:
    """The value of a second model is subtracted from the reward, and trained in the same updates."""
    body = {"name": "language", "model": "python:tests.training.test_critic:writer", **FLOAT32}
    critic = {"policy": body, "optimizer": {"lr": 1e-3}}
    advantage = {"scale": "raw", "estimators": [{"name": "gae", "gamma": 1.0, "decay": 1.0}], "critic": critic}
    values = base(output, rollout={"prompts_per_step": 2, "group_size": 3}, advantage=advantage)
    return finished(Trainer(policy_of("llama", batch=1), {"uneven": uneven}, prompts_of("llama"), values))


def over_several_steps(output: Path) -> Trainer:
    """Rows of three windows, and a critic that waits for their ends."""
    body = {"name": "language", "model": "python:tests.training.test_critic:writer", **FLOAT32}
    advantage = {"scale": "raw", "estimators": ["extended_gae"], "critic": {"policy": body, "optimizer": {"lr": 1e-3}}}
    strategy = {"name": "partial_rollouts", "window": 3}
    values = base(output, rollout={"prompts_per_step": 2, "group_size": 3, "strategy": strategy}, advantage=advantage)
    values["steps"] = 4
    return finished(Trainer(policy_of("llama", batch=1), {"uneven": uneven}, prompts_of("llama"), values))


FLOAT32 = {"dtype": "float32", "rollout_batch": 1, "update_tokens": 1, "temperature": 4.0}
"""A teacher of one row at a time."""

SCENARIOS: dict[str, Callable[[Path], Trainer]] = {
    "images": on_images,
    "images remembered": on_images_remembered,
    "pictures and words": on_pictures_and_words,
    "a rank without rows": a_rank_without_rows,
    "refilled": refilled,
    "joined by replay": joined_by_replay,
    "attempted again": attempted_again,
    "joined by answers": joined_by_answers,
    "a tree of images": a_tree_of_images,
    "moving": moving,
    "exchanged": exchanged,
    "turns with pictures": turns_with_pictures,
    "in trees": in_trees,
    "in chains": in_chains,
    "taking turns": taking_turns,
    "seen otherwise": with_views,
    "with a critic": with_a_critic,
    "over several steps": over_several_steps,
    "warm-up on texts": warmed_on_texts,
    "warm-up on images": warmed_on_images,
}


EVERYDAY = ("images", "a rank without rows", "joined by answers", "exchanged")
BY_NIGHT = tuple(name for name in SCENARIOS if name not in EVERYDAY)

REFILLED = (
    *("refilled", "attempted again", "a tree of images", "moving", "exchanged", "in trees", "in chains"),
    "taking turns",
)
"""Those whose strategy asks for a second round."""


ROUNDING = 8 * torch.finfo(torch.float32).eps
"""A loss and a gradient may be sums of terms of about one that nearly cancel: these say how a sum is rounded.

One process that multiplies matrices by another kernel differs as much.
"""


def finished(trainer: Trainer) -> Trainer:
    trainer.train()
    return trainer


def outcome(trainer: Trainer) -> tuple[Tensor, list[dict[str, Any]]]:
    """The weights at the end, and the lines of the log."""
    trainer.job.barrier()
    logs = [trainer.folder.path / name for name in ("warmup.jsonl", "metrics.jsonl", "evaluation.jsonl")]
    lines = [json.loads(line) for log in logs if log.is_file() for line in log.read_text().splitlines()]
    weights = [
        part.parameter_layout.gather(part.detach()) if isinstance(part, ParameterShard) else part.detach()
        for part in local_shards(trainer.parameters)
    ]
    return torch.cat([weight.flatten() for weight in weights]), lines


def outcomes(folder: Path, names: Sequence[str]) -> dict[str, tuple[Tensor, list[dict[str, Any]]]]:
    """The scenarios, on however many processes there are."""
    return {name: outcome(SCENARIOS[name](folder / name)) for name in names}


@pytest.mark.nightly
@pytest.mark.parametrize("names", [EVERYDAY, pytest.param(BY_NIGHT, marks=pytest.mark.nightly)], ids=["day", "night"])
def test_two_processes_make_the_updates_of_one(names: Sequence[str], tmp_path: Path) -> None:
    both = on_processes(tmp_path, names, function="outcomes", module="tests.test_world_sizes")
    for name in names:
        weights, lines = both[name]
        _assert_equals_single_process(name, weights, lines, tmp_path / "alone" / name)


def _assert_equals_single_process(name: str, result: Tensor, lines_of_two: list[dict[str, Any]], output: Path) -> None:
    expected, lines = outcome(SCENARIOS[name](output))
    start = torch.cat([parameter.detach().flatten() for parameter in _untrained(name)])
    assert float((expected - start).norm() / start.norm()) > 1e-4, name  # it moved, by far more than what may differ
    assert float((result - expected).norm() / expected.norm()) < RELATIVE, name
    assert len(lines) == len(lines_of_two) > 0, name
    assert (name in REFILLED) == any(line.get("rollout/rounds", 1) > 1 for line in lines), name
    for ours, theirs in zip(lines, lines_of_two, strict=True):
        moved = {key for key in ours if key.startswith("config/")}
        evaluated = {key for key in ours if key.startswith("eval/")}
        for key in ("loss", "policy/loss", "policy/kl_mean", "reward/mean", "optimizer/grad_norm", *moved, *evaluated):
            if key in ours:
                assert theirs[key] == pytest.approx(ours[key], rel=1e-5, abs=ROUNDING), (name, key)


def _untrained(name: str) -> Sequence[torch.nn.Parameter]:
    if "images" in name:
        return make_policy().trainable
    return policy_of("qwen2.5-vl" if "pictures" in name else "llama").trainable
