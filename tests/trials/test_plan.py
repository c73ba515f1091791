"""The runs of a comparison, and errors before the first of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from mmgrpo.config.loading import dump_config, load_config
from mmgrpo.errors import ConfigError, DataError
from mmgrpo.trials.trial_plan import Comparison, plan_comparison, write_configurations

TEXT, IMAGE = "quickstart/arithmetic-text", "quickstart/digits-image"


def planned(root: Path, *methods: str, on: str = TEXT, seeds: int = 2, overrides: tuple[str, ...] = ()) -> Comparison:
    return plan_comparison(methods, on, num_seeds=seeds, overrides=overrides, root=root)


def test_a_method_is_merged_on_top_of_the_task(tmp_path: Path) -> None:
    """What dapo's file says holds, what it does not say is the task's."""
    result = planned(tmp_path, "grpo", "dapo", overrides=("steps=3",))
    dapo = result.trials[2].config
    assert [trial.name for trial in result.trials] == ["grpo-0", "grpo-1", "dapo-0", "dapo-1"]
    assert dapo.about.method is not None
    assert (dapo.about.method.name, dapo.steps, dapo.rollout.group_size) == ("dapo", 3, 8)
    assert dapo.objective.surrogate is not None
    assert dapo.objective.surrogate.settings == {"low": 0.2, "high": 0.28}


def test_the_warm_up_of_a_seed_is_run_once(tmp_path: Path) -> None:
    result = planned(tmp_path, "grpo", "gspo")
    assert [(trial.name, trial.config.steps, trial.config.evaluation) for trial in result.warmups] == [
        ("warm-up-0", 0, None),
        ("warm-up-1", 0, None),
    ]
    for trial in result.trials:
        assert trial.config.update.warmup is None
        assert trial.config.policy is not None
        assert trial.config.policy.settings["adapter"] == str(tmp_path / f"runs/warm-up-{trial.seed}")
    assert [trial.seed for trial in result.runs] == [0, 1, 0, 0, 1, 1]


def test_adapters_warm_up_by_themselves(tmp_path: Path) -> None:
    """Their reference is the model without them, which a run that begins from adapters does not share."""
    result = planned(tmp_path, "grpo", overrides=("policy.lora={}",))
    assert result.warmups == ()
    assert result.trials[0].config.update.warmup is not None


@pytest.mark.parametrize(
    ("methods", "on", "message"),
    [
        (("grpo", "flow-grpo"), TEXT, "flow-grpo is for denoising policies, and the policy language is for tokens"),
        (("papo",), IMAGE, "papo is for tokens, and the policy denoising is for denoising policies"),
        (("grpo", "methods/grpo"), TEXT, "a method is repeated"),
        (("gpro",), TEXT, "no method 'gpro'; did you mean"),
    ],
)
def test_invalid_plans_raise_at_once(tmp_path: Path, methods: tuple[str, ...], on: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        planned(tmp_path, *methods, on=on)


def test_a_folder_holds_one_comparison(tmp_path: Path) -> None:
    first = planned(tmp_path, "grpo")
    write_configurations(first)
    write_configurations(planned(tmp_path, "grpo", "gspo"))  # a method more
    assert load_config(first.trials[1].file) == first.trials[1].config
    with pytest.raises(DataError, match=r"warm-up-0\.yaml differs"):
        write_configurations(planned(tmp_path, "grpo", overrides=("update.optimizer.lr=1",)))


def test_a_method_of_the_task_is_left_out(tmp_path: Path) -> None:
    """Of geometry3k's DAPO the refill, the eps and the upper bound; the recipe's own batch stays."""
    recipe = "recipes/qwen2.5-vl-geometry3k"
    result = planned(tmp_path, "grpo", "dapo", on=recipe, seeds=1)
    grpo, dapo = (trial.config for trial in result.trials)
    assert (grpo.rollout.strategy.name, grpo.advantage.scale.settings, grpo.advantage.zero_variance_groups) == (
        "fixed",
        {},
        "keep",
    )
    assert grpo.objective.surrogate is not None
    assert grpo.objective.surrogate.settings == {"low": 0.2, "high": 0.2}
    assert grpo.about.method is not None
    assert (grpo.about.method.name, grpo.about.method.over) == (
        "grpo",
        (),
    )
    recipe_config = load_config(recipe)
    for key in ("policy", "rewards", "rollout", "advantage", "objective", "update"):
        assert getattr(dapo, key) == getattr(recipe_config, key)
    assert grpo.rollout.prompts_per_step == recipe_config.rollout.prompts_per_step == 16
    assert grpo.rewards == recipe_config.rewards


def test_published_values_that_the_task_puts_in_force_stay(tmp_path: Path) -> None:
    recipe = "recipes/sd3.5-flow-grpo-ocr"
    recipe_config, (trial,) = load_config(recipe), planned(tmp_path, "dance-grpo", on=recipe, seeds=1).trials
    assert trial.config.rollout.group_size == recipe_config.rollout.group_size
    assert trial.config.update.optimizer.lr == recipe_config.update.optimizer.lr
    assert recipe_config.policy is not None
    assert trial.config.policy is not None
    assert trial.config.policy.settings["call"] == recipe_config.policy.settings["call"]


def test_a_run_that_holds_the_values_of_a_method_is_not_compared(tmp_path: Path) -> None:
    run = tmp_path / "config.yaml"
    run.write_text(dump_config(load_config("recipes/qwen2.5-vl-geometry3k")))
    around = tmp_path / "around.yaml"
    around.write_text("include: [config.yaml]\nsteps: 3")
    for file in (run, around):
        with pytest.raises(ConfigError, match=r"config.yaml holds the values of dapo itself.* includes methods/dapo"):
            planned(tmp_path, "grpo", on=str(file))
    with pytest.raises(
        ConfigError, match=r"has settings of rollout.window without the name, which an included method sets"
    ):
        planned(tmp_path, "grpo", on="recipes/flux-dance-grpo")
