"""The doctor on a healthy run, and the faults that it finds in broken ones."""

from __future__ import annotations

import io
import random
import re
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from mmgrpo.policies.diffusion import DenoisingPolicy
from mmgrpo.rewards.groups.of_task import OfTask
from mmgrpo.rewards.images.pixels import Brightness, JpegSize
from rich.console import Console
from torch import nn

from mmgrpo.config import RunConfig
from mmgrpo.config.loading import merge, validated
from mmgrpo.doctor.checks import CheckResult
from mmgrpo.doctor.examination import examine, render
from mmgrpo.errors import ConfigError, DataError
from mmgrpo.types import Sample
from tests.policies.families import daily
from tests.tiny.pipelines import PIPELINES

PROMPTS = ("a red fox", "two blue squares on a table", "never asked")
HEALTHY: dict[str, Any] = {
    "rollout": {"prompts_per_step": 2, "group_size": 2},
    "objective": {
        "surrogate": {"name": "clipped", "low": 1e-4, "high": 2e-4},
        "kl": {"divergence": "gaussian", "beta": 0.1},
    },
}
LORA = {"rank": 2}


def config_of(**sections: Any) -> RunConfig:
    return validated(merge(HEALTHY, sections))


def policy_of(**settings: Any) -> DenoisingPolicy:
    tiny = PIPELINES["sd3"]
    return DenoisingPolicy(tiny.build(), {"call": {**tiny.call, **tiny.no_cfg}, "lora": LORA, **settings})


def findings_of(policy: DenoisingPolicy, config: RunConfig | None = None, **rewards: Any) -> dict[str, CheckResult]:
    findings = examine(config or config_of(), policy, rewards or {"brightness": Brightness()}, PROMPTS)
    assert len({finding.check for finding in findings}) == len(findings)
    return {finding.check: finding for finding in findings}


def dropping_policy(*, active: bool, **settings: Any) -> tuple[DenoisingPolicy, nn.Dropout]:
    """A policy with a dropout in its denoiser, and the dropout."""
    policy = policy_of(**settings)
    dropout = nn.Dropout(0.3).train(active)
    policy.pipeline.transformer.transformer_blocks[0].ff.net[1] = dropout
    return policy, dropout


def first_number(pattern: str, finding: CheckResult) -> float:
    findings = re.search(pattern, finding.measured)
    assert findings, finding
    return float(findings[1])


def test_a_healthy_run_passes_every_check() -> None:
    findings = findings_of(policy_of(), brightness=Brightness(), jpeg=JpegSize())
    checks = ["window", "same-seed replay", "on-policy gap", "batch invariance", "gradient", "reference", "KL gradient"]
    assert list(findings) == ["choices", *checks, "cost", "reward brightness", "reward jpeg"]
    assert findings["choices"].measured == (
        "sampler flow_sde, which fits FlowMatchEulerDiscreteScheduler; steps of flow_sde leave up to "
        "0.74 more noise than the next noise level, in latent units; sampler cps leaves none"
    )
    assert all(finding.ok and not finding.fix for finding in findings.values())
    # 4 steps, the last never random
    assert findings["window"].measured == "3 of 4 decisions of a sample trained on"
    assert findings["same-seed replay"].measured == "4 of 4 samples identical"
    assert findings["on-policy gap"].measured == "log-prob 0.0e+00, log-ratio 0.0e+00; smallest clip bound 0.0001"
    # a tenth of the bound
    assert findings["batch invariance"].measured.endswith("allowed 1.0e-05")
    assert first_number(r"log-prob (\S+),", findings["batch invariance"]) < 1e-6
    # the last block's queries of the text feed nothing
    assert "; 2 of 30 trained tensors without gradient (7%)" in findings["gradient"].measured
    assert first_number(r"norm (\S+) ", findings["gradient"]) > 1e-3
    assert findings["reference"].measured.startswith("log-prob of policy against reference 0.0e+00")
    assert first_number(r"norm (\S+) ", findings["KL gradient"]) > 1e-6
    assert first_number(r"KL of (\S+),", findings["KL gradient"]) > 0
    assert "; spread in 2 of 2 groups; failed on 0 of 4 samples, None on 0;" in findings["reward brightness"].measured


@pytest.mark.nightly
def test_windows_shared_noise_and_normalized_sequences_pass_too() -> None:
    config = config_of(
        rollout={"same_initial_noise": True, "window": {"name": "progressive", "size": 2, "interval": 1}},
        objective={"normalize_ratio": True, "ratio_level": "sequence"},
    )
    findings = findings_of(policy_of(lora=None), config)
    assert all(finding.ok for finding in findings.values())
    # 3 decisions can be random, so two windows of 2 take turns
    assert findings["window"].measured == (
        "2 of 4 decisions of a sample trained on; the windows have the decisions (0, 1) at step 1, (1, 2) at step 2, "
        "(0, 1) at step 3, (1, 2) at step 4, (0, 1) at step 5"
    )
    assert findings["drift"].measured == "stored; 0.0e+00 under the behavior policy"


@pytest.mark.nightly
def test_a_tree_is_examined_completely() -> None:
    findings = findings_of(
        policy_of(), config_of(rollout={"group_size": 4, "tree": {"name": "evenly"}}), bright=Brightness()
    )
    assert all(finding.ok for finding in findings.values())
    assert findings["same-seed replay"].measured == "8 of 8 samples identical"
    assert "; spread in 2 of 2 groups; failed on 0 of 8 samples" in findings["reward bright"].measured


READ: dict[str, dict[str, Any]] = {
    "awm": {"surrogate": {"name": "clipped", "low": 1.0, "high": 1.0}},
    "diffusion-nft": {"surrogate": None, "terms": [{"name": "diffusion_nft", "strength": 1.0, "limit": 5.0}]},
}


def read_config(name: str, kl_beta: float = 0.1) -> RunConfig:
    objective = {"kl": {"divergence": "velocity_mse", "beta": kl_beta}, **READ[name]}
    return config_of(rollout={"training_states": "renoised"}, objective=objective)


@pytest.mark.nightly
@pytest.mark.parametrize("name", daily(READ, "diffusion-nft"))
def test_samples_that_are_read_are_examined_as_they_are_trained_on(name: str) -> None:
    policy = policy_of(reading={"num_levels": 3})
    findings = findings_of(policy, read_config(name))
    assert all(finding.ok for finding in findings.values())
    assert findings["levels"].measured == "each sample scored at 3 noise levels, all trained on"
    assert findings["on-policy gap"].measured.startswith("log-prob 0.0e+00, log-ratio 0.0e+00")
    assert "2 of 30 trained tensors without gradient" in findings["gradient"].measured
    assert first_number(r"norm (\S+) ", findings["gradient"]) > 1e-3
    # of the divergence alone, whatever other terms there are: it grows with its weight
    tenfold = findings_of(policy, read_config(name, kl_beta=1.0))
    norms = [first_number(r"norm (\S+) ", finding["KL gradient"]) for finding in (findings, tenfold)]
    assert norms[0] > 0
    assert norms[1] == pytest.approx(10 * norms[0], rel=0.1)  # both are said with two digits


def test_dropout_is_found_in_rescored_rows() -> None:
    policy, dropout = dropping_policy(active=False, reading={"num_levels": 2})
    assert all(finding.ok for finding in findings_of(policy, read_config("awm")).values())
    dropout.train()  # keyed by the batch, it says the same of the same batch
    findings = findings_of(policy, read_config("awm"))
    assert not findings["batch invariance"].ok
    assert first_number(r"log-prob (\S+),", findings["batch invariance"]) > 0.1  # a tenth of the bound of 1


@pytest.mark.nightly
def test_the_policy_is_left_as_it_was() -> None:
    policy = policy_of()
    parameters = policy.trainable
    parameters[0].grad = torch.full_like(parameters[0], 7.0)
    before = [parameter.detach().clone() for parameter in parameters]
    state = torch.get_rng_state()
    findings_of(policy)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(map(torch.equal, parameters, before))
    assert all(parameter.requires_grad for parameter in parameters)
    assert parameters[0].grad is not None
    assert bool((parameters[0].grad == 7.0).all())
    assert all(parameter.grad is None for parameter in parameters[1:])


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("surrogate", "bound", "allowed"),
    [
        ({"name": "unclipped"}, "no clip bound", "1.0e-02"),
        ({"name": "cispo", "low": None, "high": 5e-4}, "smallest clip bound 0.0005", "5.0e-05"),
    ],
)
def test_noise_is_measured_by_the_clip_bound(surrogate: dict[str, Any], bound: str, allowed: str) -> None:
    findings = findings_of(policy_of(), validated({**HEALTHY, "objective": {"surrogate": surrogate}}))
    assert findings["on-policy gap"].measured.endswith(f"; {bound}")
    assert findings["batch invariance"].measured.endswith(f"allowed {allowed}")


@pytest.mark.nightly
def test_without_a_penalty_the_reference_is_not_checked() -> None:
    findings = findings_of(policy_of(), config_of(objective={"kl": {"beta": 0.0}}))
    assert "reference" not in findings
    assert "KL gradient" not in findings


@pytest.mark.nightly
def test_trained_weights_differ_from_the_reference() -> None:
    policy = policy_of()
    with torch.no_grad():
        for parameter in policy.trainable:
            parameter.add_(0.05)
    findings = findings_of(policy)
    assert [check for check, finding in findings.items() if not finding.ok] == ["reference"]
    assert first_number(r"reference (\S+),", findings["reference"]) > 1e-4


@pytest.mark.nightly
def test_dropout_that_wakes_after_the_first_rollout_is_an_on_policy_gap() -> None:
    policy, dropout = dropping_policy(active=False)
    assert all(finding.ok for finding in findings_of(policy).values())
    dropout.train()
    findings = findings_of(policy)
    assert not findings["on-policy gap"].ok
    gap = first_number(r"log-ratio (\S+);", findings["on-policy gap"])
    assert gap > 1e-3
    assert first_number(r"log-prob (\S+),", findings["on-policy gap"]) > 1e-3
    assert "score at the temperature of the rollout" in findings["on-policy gap"].fix
    assert not findings["batch invariance"].ok


@pytest.mark.nightly
def test_dropout_within_one_batch_makes_rows_run_alone() -> None:
    policy, _ = dropping_policy(active=True)  # replayed in the rollout's own batch, it drops the same
    findings = findings_of(policy)
    assert findings["on-policy gap"].ok
    assert findings["batch invariance"].ok
    assert findings["batch invariance"].measured == "4 of 4 rows depend on the other rows of their batch, and run alone"


def test_a_policy_that_refuses_to_replay_is_a_finding() -> None:
    policy, dropout = dropping_policy(active=False)

    def shaken(_: nn.Module, __: Any, output: Any) -> Any:
        return output * (1 + random.SystemRandom().random())

    dropout.register_forward_hook(shaken)
    findings = findings_of(policy)
    assert list(findings) == ["on-policy gap", "reward brightness"]
    assert not findings["on-policy gap"].ok
    assert "changes its log-probability by" in findings["on-policy gap"].measured
    assert findings["reward brightness"].ok


def constant(samples: Sequence[Sample]) -> list[float]:
    return [float(sample.group) for sample in samples]


def broken(samples: Sequence[Sample]) -> list[float]:
    return [float("nan"), *(float(index) for index in range(1, len(samples)))]


def raising(samples: Sequence[Sample]) -> list[float]:
    raise OSError("no such model")


def absent(samples: Sequence[Sample]) -> list[None]:
    return [None] * len(samples)


def partial(samples: Sequence[Sample]) -> list[float | None]:
    return [None, 1.0, 2.0, 4.0]


def short(samples: Sequence[Sample]) -> list[float]:
    return [1.0]


def of_image(image, prompt):
    return float(image.width > len(prompt))


JUDGES = (constant, broken, raising, absent, partial, OfTask("painter"), short, of_image)


@pytest.fixture(scope="module")
def judges() -> list[CheckResult]:
    """What is found of each, in one examination."""
    rewards: dict[str, Any] = {f"judge-{n}": reward for n, reward in enumerate(JUDGES)}
    findings = findings_of(policy_of(), **rewards)
    return [findings[f"reward judge-{n}"] for n in range(len(JUDGES))]


@pytest.mark.parametrize(
    ("reward", "ok", "measured", "cure"),
    [
        (constant, True, "0 to 1; spread in 0 of 2 groups; failed on 0 of 4 samples, None on 0;", "groups of equal"),
        (broken, False, "failed on 1 of 4 samples, None on 0", "it raised an error or returned NaN"),
        (raising, False, "failed on 4 of 4 samples, None on 0", "it raised an error or returned NaN"),
        (
            of_image,
            False,
            "failed on 4 of 4 samples, None on 0",
            "it raised an error or returned NaN or infinity: fix it, or return None where it does not apply. A reward "
            "is of_image(samples), with Sample objects",
        ),
        (absent, True, "failed on 0 of 4 samples, None on 4", "it scored no sample"),
        (partial, True, "1 to 4; spread in 1 of 2 groups; failed on 0 of 4 samples, None on 1;", ""),
        (JUDGES[5], True, "computed by task 'painter' from the samples", ""),
        (short, False, "reward 'judge-6': expected 4 values, one per sample in order, got 1", "change the settings"),
    ],
)
def test_rewards(reward: Callable[..., Any], ok: bool, measured: str, cure: str, judges: list[CheckResult]) -> None:
    finding = judges[JUDGES.index(reward)]
    assert finding.ok is ok
    assert finding.measured.startswith(measured)
    assert finding.fix.startswith(cure)
    assert bool(finding.fix) is bool(cure)


@pytest.mark.nightly
def test_equal_rewards_are_no_warning_before_the_warm_up() -> None:
    config = config_of(update={"warmup": {"examples": "mislabeled_digits", "steps": 1}})
    finding = findings_of(policy_of(), config, judge=constant)["reward judge"]
    assert finding.ok
    assert finding.fix == ""
    assert finding.measured.endswith("; the warm-up has not run yet")


def test_windows_that_are_the_same_are_named_once() -> None:
    window = {"name": "fixed", "start": 1, "size": 2}
    findings = findings_of(policy_of(), config_of(rollout={"window": window}))
    assert findings["window"].measured == (
        "2 of 4 decisions of a sample trained on; the window of the first 5 steps has the decisions (1, 2)"
    )


def test_a_window_outside_the_schedule() -> None:
    findings = findings_of(policy_of(), config_of(rollout={"window": {"name": "random", "size": 4}}))
    assert list(findings) == ["rollout", "reward brightness"]
    assert findings["rollout"].measured.startswith("a window of 4 decisions does not fit")
    assert not findings["rollout"].ok


def test_a_deterministic_sampler_is_reported() -> None:
    findings = findings_of(policy_of(strength=0.0))
    assert findings["window"].measured == "0 of 4 decisions of a sample trained on"
    assert not findings["window"].ok


def test_an_objective_that_the_policy_cannot_serve() -> None:
    findings = findings_of(policy_of(), config_of(objective={"entropy_bonus": 0.1}))
    assert not findings["first update"].ok
    assert "denoising steps have no value entropy; supported are" in findings["first update"].measured


def test_unsupported_policies_raise() -> None:
    with pytest.raises(DataError, match="no prompts"):
        examine(config_of(), policy_of(), {"brightness": Brightness()}, [])
    with pytest.raises(ConfigError, match="no rewards"):
        examine(config_of(), policy_of(), {}, PROMPTS)


def test_table() -> None:
    findings = [
        CheckResult("one", True, "[4 of 4] samples"),
        CheckResult("two", True, "0 of 2 groups", "a finer reward"),
        CheckResult("three", False, "gap 1", "dropout off"),
    ]
    console = Console(width=120, file=io.StringIO())
    with console.capture() as capture:
        console.print(render(findings))
    rows = [line.split() for line in capture.get().splitlines()]
    assert rows == [
        ["ok", "one", "[4", "of", "4]", "samples"],
        ["warn", "two", "0", "of", "2", "groups"],
        ["->", "a", "finer", "reward"],
        ["FAIL", "three", "gap", "1"],
        ["->", "dropout", "off"],
    ]


def test_table_at_80_columns() -> None:
    measured = (
        "0.25 to 0.75; spread in 0 of 2 groups; failed on 0 of 4 samples, None on 0; 0.0009 s a sample, "
        "rollout 0.025 s a sample, update 0.0054 s a forward, in batches of 4"
    )
    cure = "groups of equal reward have no learning signal: try larger groups, else a finer reward"
    findings = [
        CheckResult("on-policy gap", True, measured),
        CheckResult("reward a_long_name_of_a_reward", True, measured, cure),
    ]
    console = Console(width=80, file=io.StringIO())
    with console.capture() as capture:
        console.print(render(findings))
    lines = [line.rstrip() for line in capture.get().splitlines()]
    assert max(map(len, lines)) <= 80
    # 163 characters in lines of about 48 are four; the fix has 89 with its arrow: two. Before, columns of 25 took 7
    assert len(lines) == 4 + 4 + 2
    start = lines[0].index("0.25 to")
    assert " ".join(line[start:] for line in lines) == f"{measured} {measured} -> {cure}"
