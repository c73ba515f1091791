"""Every shipped method and recipe trains: two real steps on tiny pipelines of the model's own class."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from mmgrpo.policies.diffusion import DenoisingPolicy

from mmgrpo.algorithm import Algorithm
from mmgrpo.config import RunConfig
from mmgrpo.config.loading import load_config, shipped
from mmgrpo.data.prompt_loading import load_prompts_of
from mmgrpo.maths.windows import shortened
from mmgrpo.scoring import NamedReward
from mmgrpo.training.build import build_rewards
from mmgrpo.training.trainer import Trainer
from mmgrpo.types import Sample, Scope, Score
from tests.breadth import assembly
from tests.configs.generator_data import standin_overrides
from tests.configs.mechanisms import ANY_KIND, EVERYDAY, STEP_METHODS, applies_to, nightly, settings, untrained
from tests.configs.tiny_scorers import TinyScorers
from tests.policies.families import daily
from tests.policies.tiny_policies import pipeline_of

GROUP_SIZE = 2
AUDIO = "StableAudioPipeline"
SHRUNK: dict[str, Any] = {
    "steps": 2,
    "rollout.prompts_per_step": 4,
    "rollout.group_size": GROUP_SIZE,
    "policy.call.height": 16,
    "policy.call.width": 16,
    "policy.call.max_sequence_length": 16,
    "policy.dtype": "float32",
    "policy.gradient_checkpointing": False,  # which changes no gradient, as tests of the policy show
    "runtime.device": "cpu",
}


def trained(config: RunConfig, pipeline: str, rewards: Any) -> list[dict[str, Any]]:
    """The metrics of a run on a tiny pipeline."""
    assert config.policy is not None
    built = assembly.build(pipeline) if pipeline == AUDIO else pipeline_of(pipeline)
    policy = DenoisingPolicy(built, config.policy.settings)
    assert config.prompts is not None
    trainer = Trainer(policy, rewards, load_prompts_of(config.prompts), config)
    trainer.train()
    return [json.loads(line) for line in (trainer.folder.path / "metrics.jsonl").read_text().splitlines()]


def forwards_per_sample(config: RunConfig, stochastic: tuple[int, ...], *, dead_frac: float = 0.0) -> float:
    """What a step costs: a shared state is computed once for its group, and the reference doubles the update.

    Without a reference, groups of equal rewards take no part in the update.
    """
    assert config.policy is not None
    steps = config.policy.settings["call"]["num_inference_steps"]
    if tail := config.policy.settings.get("fast_remainder"):  # as test_windows.py has them by hand
        steps = len(shortened(steps, stochastic[-1], tail["frac"]))
    shared, share = (stochastic[0] + 1, 1 / GROUP_SIZE) if config.rollout.same_initial_noise else (0, 1.0)
    rollout = steps - shared + shared * share
    update = len(stochastic) - 1 + share
    return rollout + update * (2 if config.objective.kl.beta else 1 - dead_frac)


@pytest.fixture
def write(tmp_path: Path) -> Callable[[dict[str, Any]], Path]:
    (tmp_path / "prompts.txt").write_text("a cat\na dog\na red cube\ntwo lamps\na boat\n")

    def written(values: dict[str, Any]) -> Path:
        path = tmp_path / "run.yaml"
        path.write_text(yaml.safe_dump(values))
        return path

    return written


NIGHTLY = ("flow-grpo", "mix-grpo", "dance-grpo", "flow-grpo-fast")
"""The first is that of a recipe below; each other one's samplers, windows and plans are tested elsewhere."""


@pytest.mark.first_case
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.nightly if name in NIGHTLY else ())
        for name in ("dance-grpo", "flow-grpo", "flow-grpo-fast", "grpo-guard", "mix-grpo", "mix-grpo-flash")
    ],
)
def test_method_trains(name: str, write: Callable[[dict[str, Any]], Path], tmp_path: Path) -> None:
    values = {
        "include": ["models/sd3.5-medium", f"methods/{name}"],
        "use_paper_hparams": True,
        "prompts": {"source": str(tmp_path / "prompts.txt")},
        "rewards": [{"name": "brightness"}],
    }
    overrides = SHRUNK | {"output": str(tmp_path), "policy.call.guidance_scale": 1.0}
    config = load_config(write(values), overrides)
    metrics = trained(config, "sd3", build_rewards(config.rewards))
    num_updates = config.update.epochs * config.update.minibatches
    assert [(line["step"], line["update"]) for line in metrics] == [(s, u) for s in (1, 2) for u in range(num_updates)]
    policy = DenoisingPolicy(pipeline_of("sd3"), {"call": config.policy.settings["call"]})  # type: ignore[union-attr]
    for line in metrics:
        assert line["policy/on_policy_gap"] < 1e-5
        assert line["reward/brightness/applies_frac"] == 1.0
        assert 0 < line["reward/mean"] < 1
    for step in (1, 2):
        first, *_, last = (line for line in metrics if line["step"] == step)
        stochastic = Algorithm.of(config).window_at(policy, step - 1)
        assert first["policy/ratio_mean"] == pytest.approx(1.0, abs=1e-6)
        assert last["policy/ratio_mean"] != 1.0  # the later updates of a rollout are off policy
        dead_frac = first["groups/zero_std_frac"]
        assert dead_frac <= 0.25
        expected = forwards_per_sample(config, stochastic or (), dead_frac=dead_frac)
        assert last["count/forwards_per_sample"] == pytest.approx(expected)
    assert {line["optimizer/lr"] for line in metrics} == {config.update.optimizer.lr}


RIGHT_AND_WRONG = (
    "coba-rl",
    "dars",
    "disco",
    "f-grpo",
    "greso",
    "knapsack-rl",
    "pacs",
    "pass-k-training",
    "real",
    "stable-grpo",
)
"""Those whose groups have a gradient if some members are right and some are wrong; groups of images need not."""

SMALL: dict[str, dict[str, Any]] = {
    "aapo": {"advantage.estimators": [{"name": "column_margin", "column": "difficulty"}]},
    "process-supervision": {"about.method.needs": []},
    "dr-irl": {"about.method.needs": [], "advantage.estimators": [{"name": "column_weight", "column": "static_value"}]},
    "pass-k-training": {"rollout.group_size": 4, "advantage.scale.k": 2},
    "prorl": {"update.reference.reset_every": 1},
    "chunk-grpo": {"policy.segments": [2, 2]},
    "prs-vspo": {"rollout.prompts_per_step": 4},
    "flow-dppo": {"rollout.window.high": 3, "rollout.prompts_per_step": 4},
    "ppl-position": {"advantage.estimators": [{"name": "late_decisions", "start": 0}]},
}


def by_turns(samples: Sequence[Sample]) -> list[float]:
    """Every other member is right."""
    return [float(sample.member % 2) for sample in samples]


def steps_by_turns(samples: Sequence[Sample]) -> list[Score]:
    """Every other member is right in all of its steps."""
    return [Score(0.0, scopes=[Scope(0, 1, s.member % 2), Scope(1, 3, s.member % 2)]) for s in samples]


def by_turns_after_the_first_prompt(samples: Sequence[Sample]) -> list[float]:
    """Every other member is right, except for the first prompt, whose members all are."""
    return [float(sample.member % 2 or sample.group == 0) for sample in samples]


REWARDS: dict[str, Any] = {
    "process-supervision": [NamedReward("steps", steps_by_turns, weight=0.0)],
    "prs-vspo": {"brightness": by_turns_after_the_first_prompt},
}
"""Rewards of methods that need scores of parts, or a group of equal rewards."""


@pytest.mark.nightly
@pytest.mark.first_case
@pytest.mark.parametrize("name", nightly("any kind", [*ANY_KIND, *STEP_METHODS]))
def test_method_of_any_kind_trains_a_denoising_policy(
    name: str, write: Callable[[dict[str, Any]], Path], tmp_path: Path
) -> None:
    texts = ("a cat", "a dog", "a red cube", "two lamps")
    rows = [{"prompt": text, "difficulty": n, "static_value": 0.25} for n, text in enumerate(texts)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    values = {
        "include": ["models/sd3.5-medium", f"methods/{name}"],
        "prompts": {"source": str(tmp_path / "rows.jsonl")},
        "rewards": [{"name": "brightness"}],
    }
    small = {"policy.call.guidance_scale": 1.0, "policy.call.num_inference_steps": 4, "update.minibatches": 2}
    small |= {"rollout.prompts_per_step": 2}
    config = load_config(write(values), SHRUNK | small | SMALL.get(name, {}) | {"output": str(tmp_path)})
    rewards = {"brightness": by_turns} if name in RIGHT_AND_WRONG else build_rewards(config.rewards)
    rewards = REWARDS.get(name, rewards)
    metrics = trained(config, "sd3", rewards)
    assert [(line["step"], line["update"]) for line in metrics] == [(1, 0), (1, 1), (2, 0), (2, 1)]
    for line in metrics:
        assert line["policy/on_policy_gap"] < 1e-5
        # what the first update took far; the highest sheet of answers, which is good and worth 0
        left_out = (name == "flow-dppo" and line["update"] == 1) or name == "riskpo"
        if name != "prs-vspo":  # one of its two minibatches has the group of equal rewards
            assert (line["policy/trained_frac"] < 1.0) == left_out
        assert line["optimizer/grad_norm"] > 0
        assert ("reward/kl/mean" in line) == (config.advantage.kl.beta > 0)
        assert ("policy/kl_mean" in line) == (config.objective.kl.beta > 0)
    assert metrics[0]["policy/ratio_mean"] == pytest.approx(1.0, abs=1e-6)
    assert metrics[1]["policy/ratio_std"] > 0
    if name == "prs-vspo":  # two members of equal rewards, and four times two by turns of the other prompts
        assert metrics[0]["reward/mean"] == pytest.approx(6 / 10)


@pytest.mark.nightly
@pytest.mark.parametrize("name", daily(["awm", "crd", "dgpo", "diffusion-nft"], "diffusion-nft"))
def test_renoised_samples_train(name: str, write: Callable[[dict[str, Any]], Path], tmp_path: Path) -> None:
    values = {
        "include": ["models/sd3.5-medium", f"methods/{name}"],
        "prompts": {"source": str(tmp_path / "prompts.txt")},
        "rewards": [{"name": "brightness"}],
    }
    small = {"policy.call.guidance_scale": 1.0, "policy.call.num_inference_steps": 4, "update.minibatches": 2}
    fewer = {"policy.reading.num_levels": 5} if name == "crd" else {}  # than the 20 of its file
    config = load_config(write(values), SHRUNK | small | fewer | {"output": str(tmp_path)})
    metrics = trained(config, "sd3", {"turns": by_turns})
    assert [(line["step"], line["update"]) for line in metrics] == [(1, 0), (1, 1), (2, 0), (2, 1)]
    levels, passes = {"awm": (6, 3), "crd": (5, 5), "dgpo": (4, 5), "diffusion-nft": (4, 3)}[name]
    for line in metrics:
        assert line["policy/on_policy_gap"] < 1e-5
        assert line["optimizer/grad_norm"] > 0
        assert line["groups/zero_std_frac"] == 0
    # four steps without noise, a forward a level to read them, two a level in an update (policy and reference),
    # and two before it where a group has to be known first
    assert metrics[1]["count/forwards_per_sample"] == pytest.approx(4 + passes * levels)
    assert metrics[0]["policy/kl_mean"] == pytest.approx(0.0, abs=1e-12)
    assert metrics[-1]["policy/kl_mean"] > 0
    if name == "awm":
        assert metrics[0]["policy/ratio_mean"] == pytest.approx(1.0, abs=1e-6)
        assert metrics[1]["policy/ratio_std"] > 0


def test_every_function_that_a_method_of_any_kind_names_is_trained() -> None:
    assert {f"methods/{name}" for name in ANY_KIND} <= {
        name for name in shipped("methods") if applies_to(name) == "both"
    }
    assert untrained("both", ANY_KIND) == set()


def test_daily_configurations_set_every_key() -> None:
    covered = {*ANY_KIND, *STEP_METHODS}
    assert set(EVERYDAY["any kind"]) < covered
    daily = (*EVERYDAY["any kind"], *EVERYDAY["tokens"])
    everyday = {setting for name in daily for setting in settings(f"methods/{name}")}
    assert {setting for name in covered for setting in settings(f"methods/{name}")} - everyday == set()


DRAWING = {
    "sd3.5-flow-grpo-geneval": "sd3",
    "sd3.5-flow-grpo-ocr": "sd3",
    "sd3.5-flow-grpo-pick-score": "sd3",
    "sd3.5-flow-grpo-fast": "sd3",
    "flux-mix-grpo": "flux",
    "flux-dance-grpo": "flux",
    "wan-flow-grpo": "wan",
    "wan-dance-grpo": "wan",
    "stable-audio-flow-grpo": "StableAudioPipeline",
    "kontext-flow-grpo-counting": "flux-kontext",
    "kontext-nft-judged": "flux-kontext",
}
EDIT = {
    "policy.call.max_area": 16 * 16,
    "policy.call._auto_resize": False,
}  # Kontext scales images to about a megapixel
AUDIO_CALL = {f"policy.call.{key}": value for key, value in assembly.arguments(AUDIO).items()}
AUDIO_CALL["policy.call.audio_end_in_s"] = 2.0  # the most that the tiny model generates
VIDEO = {"policy.call.height": 32, "policy.call.width": 32, "policy.call.num_frames": 5}


@pytest.fixture(scope="module")
def scorers(tmp_path_factory: pytest.TempPathFactory) -> TinyScorers:
    return TinyScorers(tmp_path_factory.mktemp("scorers"))


def test_every_diffusion_recipe_is_covered() -> None:
    drawing = {name for name in shipped("recipes") if "/qwen" not in name and not name.endswith("-one-gpu")}
    assert {f"recipes/{name}" for name in DRAWING} == drawing


@pytest.mark.nightly
@pytest.mark.parametrize(
    "name",
    [name if name == "sd3.5-flow-grpo-ocr" else pytest.param(name, marks=pytest.mark.nightly) for name in DRAWING],
)
def test_recipe_runs_with_its_own_rewards(name: str, scorers: TinyScorers, tmp_path: Path) -> None:
    """Its prompts, rewards, judges and watchdog; the checkpoints of the rewards are tiny and random."""
    small = {
        "steps": 1,
        "output": str(tmp_path),
        "policy.evaluation_call.num_inference_steps": 2,
        "evaluation.prompts.limit": 4,
        "update.minibatches": 2,
        **(VIDEO if name.startswith("wan") else EDIT if name.startswith("kontext") else {}),
    }
    shrunk = SHRUNK
    if DRAWING[name] == AUDIO:
        shrunk = {key: value for key, value in SHRUNK.items() if not key.startswith("policy.call.")} | AUDIO_CALL
    small |= standin_overrides(load_config(f"recipes/{name}"), tmp_path / "data")
    config = scorers.in_place_of_the_hubs(load_config(f"recipes/{name}", shrunk | small))
    metrics = trained(config, DRAWING[name], build_rewards(config.rewards))
    assert metrics[0]["policy/on_policy_gap"] < 1e-5
    for reward in config.rewards:
        assert metrics[0][f"reward/{reward.logged_name}/applies_frac"] == 1.0
        assert metrics[0][f"reward/{reward.logged_name}/failed_frac"] == 0.0
    assert config.evaluation is not None
    (folder,) = tmp_path.glob("*/evaluation.jsonl")
    evaluations = [json.loads(line) for line in folder.read_text().splitlines()]
    assert [line["step"] for line in evaluations] == [0, 1]
    expected = {f"eval/{reward.logged_name}/mean" for reward in config.evaluation.rewards} - {"eval/motion/mean"}
    assert {key for line in evaluations for key in line} >= expected - {"eval/grid_artifacts/mean"}
    if name == "wan-flow-grpo":  # 20 steps, of which 19 are sampled; guidance takes two forwards; update and reference
        assert metrics[-1]["count/forwards_per_sample"] == pytest.approx(2 * (20 + 2 * 19))
        assert metrics[0]["policy/kl_mean"] == pytest.approx(0.0, abs=1e-9)
