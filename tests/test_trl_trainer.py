"""``mmgrpo.trl`` in place of ``trl``: the same arguments, the same update, the same methods."""

from __future__ import annotations

import json
import warnings
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import pytest
import torch
import trl
from datasets import Dataset, load_dataset
from mmgrpo.policies.language import LanguagePolicy
from peft import LoraConfig, get_peft_model
from PIL import Image
from transformers import (
    AutoModelForCausalLM,
    BitsAndBytesConfig,
    HfArgumentParser,
    LlamaConfig,
    LlamaForSequenceClassification,
    MixtralConfig,
    SchedulerType,
)
from transformers.trainer_utils import IntervalStrategy, SaveStrategy

from mmgrpo import Trainer
from mmgrpo.config.loading import validated
from mmgrpo.config.validating import set_value
from mmgrpo.errors import ConfigError
from mmgrpo.trl import GRPOConfig, GRPOTrainer
from mmgrpo.trl.arguments import ARGUMENTS
from mmgrpo.trl.log_history import log_history
from mmgrpo.trl.run_values import TrainingData, differences, log_interval, run_values
from tests.policies.families import daily
from tests.tiny.causal_models import text
from tests.tiny.language_models import make, save

TEXTS = ["what number is this", "how many red squares do you see"]
ROWS = Dataset.from_dict({"prompt": TEXTS, "target": [3, 5]})
CHATS = Dataset.from_dict({"prompt": [[{"role": "user", "content": text}] for text in TEXTS], "target": [3, 5]})
DATA = TrainingData(num_prompts=64, is_conversational=True, has_tools=False)
TINY: dict[str, Any] = {
    "use_cpu": True, "bf16": False, "max_completion_length": 12, "num_generations": 4, "max_steps": 2,
    "learning_rate": 1e-2, "shuffle_dataset": False, "save_strategy": "no", "gradient_checkpointing": False,
    "temperature": 2.0, "adam_epsilon": 1e-4, "logging_steps": 1,
}  # fmt: skip


def default_of(argument: Any) -> Any:
    return argument.default if argument.default is not MISSING else argument.default_factory()


def values_of(data: TrainingData = DATA, **arguments: Any) -> dict[str, Any]:
    nested: dict[str, Any] = {}
    for key, value in run_values(GRPOConfig(**arguments), data).items():
        set_value(nested, key.split("."), value)
    return nested


def test_arguments_and_defaults_are_those_of_trl() -> None:
    theirs = {argument.name: default_of(argument) for argument in fields(trl.GRPOConfig)}
    ours = {argument.name: default_of(argument) for argument in fields(GRPOConfig) if argument.name != "overrides"}
    assert ours == theirs


def test_every_argument_has_a_key_or_a_replacement() -> None:
    assert {argument.name for argument in fields(GRPOConfig)} - ARGUMENTS.keys() == {"overrides"}


def test_arguments_of_a_command_line() -> None:
    line = "--output_dir out --learning_rate 1e-5 --bf16 false --reward_weights 1 0.5 --report_to wandb"
    kwargs = ["--chat_template_kwargs", '{"enable_thinking": false}']
    arguments: Any = GRPOConfig
    (args,) = HfArgumentParser(arguments).parse_args_into_dataclasses([*line.split(), *kwargs])
    expected = {"output_dir": "out", "learning_rate": 1e-5, "bf16": False, "reward_weights": [1.0, 0.5]}
    assert {name: getattr(args, name) for name in expected} == expected
    assert (args.report_to, args.chat_template_kwargs) == ("wandb", {"enable_thinking": False})


def test_a_value_without_a_key_is_an_error_with_its_replacement() -> None:
    with pytest.raises(ConfigError, match=r"torch_compile=True is not supported; instead: overrides=.'policy.compile'"):
        GRPOConfig(torch_compile=True)
    with pytest.raises(ConfigError, match=r"vllm_structured_outputs_regex='a' is not supported; instead: leave it out"):
        GRPOConfig(vllm_structured_outputs_regex="a")
    with pytest.raises(ConfigError, match=r"push_to_hub=True .* save_model.*; hub_model_id='me/model'"):
        GRPOConfig(push_to_hub=True, hub_model_id="me/model")
    assert GRPOConfig(optim="adamw_torch", eval_delay=0.0, pad_to_multiple_of=None).optim == "adamw_torch"


def test_arguments_of_earlier_versions_are_those_of_today() -> None:
    values = values_of(warmup_ratio=0.1, max_steps=20)
    assert values["update"]["optimizer"]["schedule"] == {"name": "linear", "warmup_steps": 2}
    assert values == values_of(warmup_steps=0.1, max_steps=20)
    assert values_of(warmup_ratio=0.1, max_steps=40)["update"]["optimizer"]["schedule"]["warmup_steps"] == 4
    args: Any = GRPOConfig("out", evaluation_strategy="steps", no_cuda=True)  # pyrefly: ignore[unexpected-keyword]
    assert (args.output_dir, args.eval_strategy, args.use_cpu) == ("out", "steps", True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"max_prompt_length": 512}, "GRPOConfig has no argument max_prompt_length: .* instead: shorter prompts"),
        (
            {"overwrite_output_dir": True, "group_by_length": True},
            "leave it out: each run .*; GRPOConfig has no",
        ),
        ({"model_name_or_path": "m"}, r"TRL's model_name_or_path is policy\.model"),
        ({"learning_rte": 1e-5}, "GRPOConfig has no argument learning_rte; did you mean learning_rate"),
        (
            {"warmup_ratio": 0.1, "warmup_steps": 3},
            "warmup_ratio is the earlier name of warmup_steps: set warmup_steps",
        ),
        ({"warmup_ratio": 1.0}, r"warmup_ratio=1\.0 must be from 0 to below 1; warmup_steps is a number of updates"),
    ],
)
def test_another_argument_is_an_error_with_its_replacement(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        GRPOConfig(**arguments)
    with pytest.raises(ConfigError, match=r"GRPOTrainer has no argument ref_model: .* leave it out: the reference is"):
        GRPOTrainer("m", length, ref_model="m")  # pyrefly: ignore[unexpected-keyword]


def test_batch_sizes_are_those_of_trl() -> None:
    cases: list[dict[str, Any]] = [
        {},
        {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 4},
        {"generation_batch_size": 32},
        {"steps_per_generation": 4, "num_generations": 16},
    ]
    for arguments in cases:
        ours, theirs = GRPOConfig(**arguments), trl.GRPOConfig(**arguments, use_cpu=True, bf16=False)
        names = ("generation_batch_size", "steps_per_generation", "output_dir", "scale_rewards")
        assert [getattr(ours, name) for name in names] == [getattr(theirs, name) for name in names]
    with pytest.raises(ConfigError, match="must be a multiple of num_generations=8"):
        GRPOConfig(per_device_train_batch_size=4)


def test_numbers_of_steps() -> None:
    """64 prompts, 32 rows of 8 groups a generation: 2 groups of 4 rows an update, so 4 updates for each of 2 passes."""
    arguments: dict[str, Any] = {"num_generations": 4, "generation_batch_size": 32, "gradient_accumulation_steps": 1}
    values = values_of(**arguments, num_iterations=2, num_train_epochs=1.5, warmup_steps=0.1, save_steps=100)
    assert values["rollout"] == {"group_size": 4, "prompts_per_step": 8, "saved_groups": 2}
    assert (values["update"]["epochs"], values["update"]["minibatches"]) == (2, 4)
    assert values["steps"] == 12  # 1.5 passes over 8 generations
    assert values["update"]["optimizer"]["schedule"] == {"name": "linear", "warmup_steps": 10}  # of 96 updates
    assert values["checkpoint"]["every"] == 13  # at the first complete step after 100 updates
    with pytest.raises(ConfigError, match="max_steps=20 must be a multiple of 8"):
        values_of(**arguments, num_iterations=2, max_steps=20)
    with pytest.raises(ConfigError, match="4 updates per generation need as many groups"):
        values_of(DATA, **arguments | {"num_generations": 16})
    with pytest.raises(ConfigError, match="steps_per_generation=1 must be a multiple of gradient_accumulation_steps=2"):
        values_of(generation_batch_size=8, gradient_accumulation_steps=2)


def test_values_of_trl_are_those_of_the_run() -> None:
    values = values_of(
        temperature=0.7, top_k=20, top_p=0.9, epsilon_high=0.28, beta=0.1, scale_rewards=False, sync_ref_model=True,
        ref_model_sync_steps=4, lr_scheduler_type="constant", max_grad_norm=0.0, report_to=["wandb", "tensorboard"],
        model_init_kwargs={"dtype": "bfloat16", "attn_implementation": "eager"}, run_name="first", ddp_timeout=60,
        overrides={"rollout.environment_timeout_s": 5.0, "policy.compile": True},
    )  # fmt: skip
    policy = {key: values["policy"][key] for key in ("temperature", "top_k", "top_p", "dtype", "attention", "compile")}
    assert list(policy.values()) == [0.7, 20, 0.9, "bfloat16", "eager", True]
    assert values["objective"]["surrogate"] == {"name": "clipped", "low": 0.2, "high": 0.28}
    assert values["objective"]["kl"] == {"divergence": "k3", "beta": 0.1, "ratio_level": "token"}
    assert values["advantage"] == {"scale": "none", "combine": "nansum"}
    assert values["update"]["reference"] == {"ema": {"decay": 0.4, "every": 4}}
    assert values["update"]["optimizer"]["max_grad_norm"] is None
    assert values["runtime"]["trackers"] == [
        {"name": "wandb", "project": "huggingface"},
        {"name": "tensorboard", "project": "huggingface"},
    ]
    assert values["runtime"]["collective_timeout_s"] == 60
    assert (values["about"]["name"], values["rollout"]["environment_timeout_s"]) == ("first", 5.0)


@pytest.mark.parametrize(
    ("optim", "settings"),
    [
        ("adamw_torch", {"betas": [0.8, 0.999], "eps": 1e-6}),
        ("adamw_bnb_8bit", {"name": "adamw_8bit", "betas": [0.8, 0.999], "eps": 1e-6}),
        ("paged_adamw_8bit", {"name": "adamw_8bit", "paged": True, "betas": [0.8, 0.999], "eps": 1e-6}),
        ("adafactor", {"name": "adafactor"}),
    ],
)
def test_optimizers_of_trl_are_those_of_the_run(optim: str, settings: dict[str, Any]) -> None:
    numbers: dict[str, Any] = {} if optim == "adafactor" else {"adam_beta1": 0.8, "adam_epsilon": 1e-6}
    values = values_of(optim=optim, learning_rate=1e-5, weight_decay=0.1, max_steps=2, **numbers)["update"]["optimizer"]
    shared = {"lr": 1e-5, "weight_decay": 0.1, "max_grad_norm": 1.0}
    assert values == {**settings, **shared, "schedule": {"name": "linear", "warmup_steps": 0}}
    assert validated({"update": {"optimizer": values}}).update.optimizer.name == settings.get("name", "adamw")


def test_dtypes_and_quantization_of_trl_are_those_of_the_policy() -> None:
    assert values_of(max_steps=2)["policy"]["dtype"] == "bfloat16"
    assert values_of(max_steps=2, fp16=True)["policy"]["dtype"] == "float16"
    quantized = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.bfloat16)
    expected = {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_compute_dtype": "bfloat16"}
    for quantization in (quantized, expected):
        loading = {"dtype": torch.float16, "quantization_config": quantization}
        policy = values_of(max_steps=2, fp16=True, model_init_kwargs=loading)["policy"]
        assert (policy["dtype"], policy["quantization_config"]) == ("float16", expected)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"optim": "lion_8bit"}, "optim='lion_8bit' is not supported; use adamw_torch_fused, .*, adafactor, or the"),
        ({"optim": "adafactor", "adam_beta1": 0.8}, "adam_beta1=0.8 has no effect with optim='adafactor', only with"),
        ({"fp16": True, "bf16": True}, "fp16 and bf16 exclude each other"),
        ({"model_init_kwargs": {"dtype": "float16"}}, "dtype float16 needs fp16=True"),
        ({"model_init_kwargs": {"quantization_config": 4}}, "a BitsAndBytesConfig or a mapping of arguments, got int"),
        ({"loss_type": "cispo"}, "takes epsilon_high as the largest ratio"),
        ({"loss_type": "ppo"}, r"must be grpo, .*sapo or vespo"),
        (
            {"loss_type": "sapo", "delta": 2.0},
            "delta=2.0 has no effect with loss_type='sapo', only with 'grpo', 'bnpo'",
        ),
        ({"sapo_temperature_pos": 2.0}, "no effect with loss_type='dapo', only with 'sapo': leave it out"),
        ({"loss_type": "vespo", "importance_sampling_level": "sequence"}, "no effect with loss_type='vespo'"),
        ({"use_bias_correction_kl": False}, r"no effect with beta=0\.0: leave it out"),
        ({"max_steps": 5, "num_train_epochs": 1}, "num_train_epochs=1 has no effect with max_steps=5"),
        ({"save_strategy": "no", "save_steps": 10}, "save_steps=10 has no effect with save_strategy='no'"),
        ({"lr_scheduler_type": "constant", "warmup_steps": 3}, "only with 'constant_with_warmup', 'linear'"),
        ({"multi_objective_aggregation": "normalize_then_sum", "scale_rewards": False}, "scale_rewards='none' has no"),
        ({"max_tool_calling_iterations": 2}, "needs tools or environment_factory"),
        ({"model_init_kwargs": {"device_map": {"": 0}}}, "device_map must be 'auto' or None"),
        ({"chat_template_kwargs": "[1]"}, "must be a JSON object"),
        ({"save_strategy": "best"}, "must be 'no', 'steps' or 'epoch'"),
        ({"lr_scheduler_type": "polynomial"}, "is not supported; use constant"),
        ({"max_completion_length": None}, "max_completion_length must be set"),
        ({"sync_ref_model": True}, "needs beta above 0"),
        ({"model_init_kwargs": {"dtype": "float64"}}, "use float32, bfloat16, float16"),
        ({"scale_rewards": "std"}, "must be 'group', 'batch' or 'none'"),
        ({"report_to": "swanlab"}, "supported are tensorboard"),
        ({"generation_batch_size": 1024}, "the dataset has fewer rows than the 128 prompts"),
    ],
)
def test_combinations_that_mmgrpo_does_not_have(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        values_of(**arguments)


def test_intervals_of_logs() -> None:
    """64 prompts in 8 generations of 4 updates."""
    arguments: dict[str, Any] = {"num_generations": 4, "generation_batch_size": 32, "gradient_accumulation_steps": 1}
    cases = [
        ({}, 10),
        ({"logging_steps": 0.25, "num_train_epochs": 1}, 8),
        ({"logging_strategy": "epoch"}, 32),
        ({"logging_strategy": IntervalStrategy.NO}, 0),
    ]
    intervals = [log_interval(GRPOConfig(**arguments, **values), DATA) for values, _ in cases]  # pyrefly: ignore[bad-argument-type]
    assert intervals == [interval for _, interval in cases]


def test_enumerations_of_transformers_are_their_values() -> None:
    values = values_of(lr_scheduler_type=SchedulerType.COSINE, save_strategy=SaveStrategy.NO)
    assert values["checkpoint"]["every"] is None
    assert values["update"]["optimizer"]["schedule"]["name"] == "cosine"


def test_differences_are_named() -> None:
    assert differences(GRPOConfig(), DATA) == []
    notes = differences(GRPOConfig(warmup_steps=3, weight_decay=0.1, top_p=0.9), DATA)
    assert [note.partition(":")[0] for note in notes] == ["top_p, top_k and min_p", "warmup_steps", "weight_decay"]


class Recording:
    """A reward that records the tokens of every generation."""

    __name__ = "length"

    def __init__(self, missing: int | None = None) -> None:
        self.generations: list[list[list[int]]] = []
        self.missing = missing

    def __call__(self, prompts: list[Any], completions: list[Any], completion_ids: list[list[int]], **columns: Any):
        self.generations.append([list(ids) for ids in completion_ids])
        return [
            None if row == self.missing else float(sum(ids) % 7 + target)
            for row, (ids, target) in enumerate(zip(completion_ids, columns["target"], strict=True))
        ]


def parity(completion_ids: list[list[int]], target: list[int], **columns: Any) -> list[float]:
    return [float(len(ids) % 2) * number for ids, number in zip(completion_ids, target, strict=True)]


def replayed(generations: list[list[list[int]]]) -> type[trl.GRPOTrainer]:
    """TRL's trainer, whose generations are recorded ones."""
    remaining = iter(generations)

    class Replaying(trl.GRPOTrainer):
        def _generate_single_turn(self, *arguments: Any, **more: Any) -> Any:
            return next(remaining), None

    return Replaying


CASES: dict[str, dict[str, Any]] = {
    "defaults": {},
    "chat": {"rows": CHATS},
    "kl": {"loss_type": "grpo", "beta": 0.5, "epsilon_high": 0.28},
    "iterations": {"loss_type": "dr_grpo", "num_iterations": 3, "max_steps": 6, "epsilon": 0.01, "delta": 1.5},
    "sequence": {"loss_type": "grpo", "importance_sampling_level": "sequence", "num_iterations": 2, "max_steps": 4},
    "truncated": {"mask_truncated_completions": True, "scale_rewards": "batch"},
    "truncated_mean": {"mask_truncated_completions": True, "loss_type": "grpo", "scale_rewards": False},
    "missing": {"missing": 2, "reward_weights": [1.0, 0.5]},
    "normalized": {"multi_objective_aggregation": "normalize_then_sum", "reward_weights": [0.3, 2.0]},
    "accumulated": {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 4, "lr_scheduler_type": "cosine"},
}


@pytest.mark.first_case
@pytest.mark.parametrize("case", daily(CASES, "defaults", "chat", "iterations", "truncated", "missing"))
def test_updates_are_those_of_trl(case: str, tmp_path: Path) -> None:
    arguments: dict[str, Any] = {**TINY, "output_dir": str(tmp_path), **CASES[case]}
    rows, missing = arguments.pop("rows", ROWS), arguments.pop("missing", None)
    source, reward = folder_of(tmp_path), Recording(missing)
    ours = GRPOTrainer(source, [reward, parity], GRPOConfig(**arguments), rows)
    ours.train()
    recorded = [generation for generation in reward.generations if len(generation) == 8]
    with warnings.catch_warnings(action="ignore"):
        theirs = replayed(recorded)(
            model=source,
            reward_funcs=[Recording(missing), parity],  # pyrefly: ignore[bad-argument-type]
            args=trl.GRPOConfig(**arguments),
            train_dataset=rows,
        )
        theirs.train()
    before = make("llama")[0].state_dict()
    expected: dict[str, torch.Tensor] = theirs.model.state_dict()  # pyrefly: ignore[missing-attribute]
    assert distance(expected, before) > 1e-3
    assert distance(expected, ours.model.state_dict()) < 1e-4
    train_loss = theirs.state.log_history[-1]["train_loss"]
    assert ours.state.log_history[-1]["train_loss"] == pytest.approx(train_loss, rel=1e-3, abs=1e-5)
    our_log = [line for line in ours.state.log_history if "loss" in line]
    their_log = [line for line in theirs.state.log_history if "loss" in line]
    for name in ("step", "reward", "rewards/length/mean", "completions/mean_length", "grad_norm", "loss"):
        pairs = zip(our_log, their_log, strict=True)
        common = [(line[name], other[name]) for line, other in pairs if name in other]  # TRL: of generations alone
        assert all(value == pytest.approx(their_value, rel=1e-3, abs=1e-5) for value, their_value in common), name


def distance(weights: dict[str, torch.Tensor], others: dict[str, torch.Tensor]) -> float:
    return max(float((weights[name] - others[name]).abs().max()) for name in weights)


def folder_of(tmp_path: Path) -> str:
    save("llama", tmp_path / "model")
    return str(tmp_path / "model")


def length(completions: list[str], **columns: Any) -> list[float]:
    return [float(len(completion)) for completion in completions]


def short(output: Path, **arguments: Any) -> GRPOConfig:
    return GRPOConfig(str(output), **{**TINY, **arguments})


def test_rewards_receive_the_state_of_the_trainer(tmp_path: Path) -> None:
    states: list[Any] = []

    def scheduled(completions: list[str], trainer_state: Any, **columns: Any) -> list[float]:
        states.append((trainer_state.global_step, trainer_state.max_steps, len(trainer_state.log_history)))
        return [1.0] * len(completions)

    trainer = GRPOTrainer(folder_of(tmp_path), scheduled, short(tmp_path / "out"), ROWS)
    output = trainer.train()
    assert states[-2:] == [(0, 2, 0), (1, 2, 1)]
    assert (output.global_step, output.metrics["rewards/scheduled/mean"]) == (2, 1.0)
    assert trainer.state.epoch == 2.0  # both rows in each step


def test_a_function_of_prompts_alone_is_called_as_trl_does(tmp_path: Path) -> None:
    prompts_of_call: list[Any] = []

    def of_prompts(prompts: list[str], **columns: Any) -> list[float]:
        prompts_of_call.extend(prompts)
        return [1.0] * len(prompts)

    GRPOTrainer(folder_of(tmp_path), of_prompts, short(tmp_path / "out", max_steps=1), ROWS).train()
    assert set(prompts_of_call) == set(TEXTS)


def test_the_log_has_metrics_that_the_last_step_lacks() -> None:
    updates = [{"step": 0, "reward/mean": 0.5, "policy/loss": 1.0}, {"step": 1, "policy/loss": 3.0}]
    assert log_history(updates, [], 1, every=2) == [{"step": 2, "reward": 0.5, "loss": 2.0}]


@pytest.mark.nightly
def test_models_are_saved_and_evaluated(tmp_path: Path) -> None:
    config = short(tmp_path / "out", eval_strategy="steps", eval_steps=1, num_generations_eval=2)
    trainer = GRPOTrainer(folder_of(tmp_path), length, config, ROWS, eval_dataset=ROWS.select([0]))  # pyrefly: ignore[bad-argument-type]
    output = trainer.train()
    updates = [line for line in trainer.state.log_history if "loss" in line]
    assert output.metrics == {**updates[-1], "train_loss": output.training_loss}
    trainer.save_model()
    saved = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert all(torch.equal(value, trainer.model.state_dict()[name]) for name, value in saved.state_dict().items())
    result = trainer.evaluate()
    assert result["eval_reward"] == result["eval_rewards/length/mean"] > 0
    other = trainer.evaluate(ROWS.select([1]), metric_key_prefix="test")  # pyrefly: ignore[bad-argument-type]
    assert other.keys() == {"test_reward", "test_rewards/length/mean", "test_rewards/length/std"}
    evaluations = [line for line in trainer.state.log_history if "eval_rewards/length/mean" in line]
    assert [line["step"] for line in evaluations] == [0, 1, 2]
    assert evaluations[-1]["eval_rewards/length/mean"] == pytest.approx(result["eval_reward"])


@pytest.mark.nightly
def test_loaded_models_and_tokenizers_are_trained(tmp_path: Path) -> None:
    model, tokenizer = make("llama")
    before = {name: value.clone() for name, value in model.state_dict().items()}
    trainer = GRPOTrainer(model, length, short(tmp_path / "out"), ROWS, processing_class=tokenizer)
    trainer.train()
    assert trainer.model is model
    assert distance(model.state_dict(), before) > 1e-3
    named = GRPOTrainer(folder_of(tmp_path), length, short(tmp_path / "out"), ROWS, processing_class=tokenizer)
    assert named.processing_class is tokenizer
    named.train()
    assert distance(named.model.state_dict(), model.state_dict()) == 0


def test_reward_models_are_loaded_by_their_path(tmp_path: Path) -> None:
    tokenizer: Any = make("llama")[1]
    torch.manual_seed(0)
    config = LlamaConfig(**text(tokenizer), num_labels=1)  # pyrefly: ignore[unexpected-keyword]
    for part in (LlamaForSequenceClassification(config), tokenizer):
        part.save_pretrained(tmp_path / "judge")
    trainer = GRPOTrainer(folder_of(tmp_path), str(tmp_path / "judge"), short(tmp_path / "out"), CHATS)
    trainer.train()
    assert "rewards/judge/mean" in trainer.state.log_history[-2]


def test_a_load_balancing_loss_is_not_left_out_silently(tmp_path: Path) -> None:
    MixtralConfig().save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match=r"the load-balancing loss of mixtral .*: set router_aux_loss_coef=0\.0"):
        GRPOTrainer(str(tmp_path), length, short(tmp_path / "out"), ROWS)


def test_evaluation_without_a_score_has_no_number(tmp_path: Path) -> None:
    def unscored(completions: list[str], **columns: Any) -> list[None]:
        return [None] * len(completions)

    trainer = GRPOTrainer(folder_of(tmp_path), unscored, short(tmp_path / "out"), ROWS, eval_dataset=ROWS)
    assert trainer.evaluate() == {}


def width(prompts: list[Any], image_width: list[int], **columns: Any) -> list[float]:
    return [float(number) for number in image_width]


@pytest.mark.parametrize("form", ["relative", "absolute", "transformed"])
def test_media_of_held_out_rows_are_located_as_those_of_training_rows(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "images").mkdir()
    for size in (32, 40):
        Image.new("RGB", (size, 32), "red").save(tmp_path / f"images/{size}.png")
    folder = tmp_path / "images" if form == "absolute" else Path("images")
    rows = [
        {"prompt": CHATS[0]["prompt"], "images": [str(folder / f"{size}.png")], "image_width": size}
        for size in (32, 40)
    ]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    dataset: Any = load_dataset("json", data_files="rows.jsonl", split="train", cache_dir=str(tmp_path / "cache"))
    held_out = dataset.select([1])
    if form == "transformed":
        held_out.set_transform(lambda batch: {**batch, "image_width": [number + 1 for number in batch["image_width"]]})
    save("qwen3-vl", tmp_path / "model")
    config = short(tmp_path / "out", eval_strategy="steps", overrides={"evaluation.seed": 5})
    trainer = GRPOTrainer("model", width, config, dataset, eval_dataset=held_out)
    (prompt,) = trainer.trainer.held_out.prompts
    assert list(prompt.images) == [str(folder / "40.png")]
    assert trainer.evaluate()["eval_reward"] == (41 if form == "transformed" else 40)
    assert trainer.evaluate(dataset.select([0]))["eval_reward"] == 32
    assert (evaluation := trainer.trainer.config.evaluation) is not None
    assert evaluation.seed == 5


def test_held_out_prompts_that_have_no_effect_are_an_error(tmp_path: Path) -> None:
    policy = LanguagePolicy(*make("llama"), {})
    values: dict[str, Any] = {"output": str(tmp_path), "steps": 1}
    with pytest.raises(ConfigError, match="evaluation_prompts have no effect without the section evaluation"):
        Trainer(policy, length, TEXTS, values, evaluation_prompts=TEXTS)
    values["evaluation"] = {"prompts": {"source": "held_out.jsonl"}}
    with pytest.raises(ConfigError, match=r"take the place of evaluation\.prompts\.source=held_out\.jsonl"):
        Trainer(policy, length, TEXTS, values, evaluation_prompts=TEXTS)
    values["evaluation"] = {"prompts": {}}
    with pytest.raises(ConfigError, match=r"set evaluation\.prompts\.source to a file or dataset"):
        Trainer(policy, length, TEXTS, values)


def test_evaluation_without_a_dataset_is_an_error(tmp_path: Path) -> None:
    trainer = GRPOTrainer(folder_of(tmp_path), length, short(tmp_path / "out"), ROWS)
    with pytest.raises(ConfigError, match="needs eval_dataset"):
        trainer.evaluate()


def test_adapters_are_those_of_peft(tmp_path: Path) -> None:
    source = folder_of(tmp_path)
    peft_config = LoraConfig(r=4, lora_alpha=8, use_rslora=True)
    trainer = GRPOTrainer(source, length, short(tmp_path / "out"), ROWS, peft_config=peft_config)
    trainer.train()
    trainer.save_model(tmp_path / "adapter")
    plain = get_peft_model(AutoModelForCausalLM.from_pretrained(source), peft_config)
    plain.load_adapter(str(tmp_path / "adapter"), "trained")
    plain.set_adapter("trained")
    inputs = trainer.processing_class(TEXTS[0], return_tensors="pt")
    with torch.no_grad():
        torch.testing.assert_close(plain(**inputs).logits, trainer.model(**inputs).logits)
    trained = {name for name, parameter in trainer.model.named_parameters() if parameter.requires_grad}
    targets = {name.split(".")[-4] for name in trained}
    assert targets == {"q_proj", "v_proj"}  # peft's default of the architecture
    with pytest.raises(ConfigError, match=r"lora_dropout must have the default of LoraConfig; dropout is off"):
        GRPOTrainer(source, length, short(tmp_path / "out"), ROWS, peft_config=LoraConfig(lora_dropout=0.1))


@pytest.mark.nightly
@pytest.mark.parametrize("quantization", [None, {"load_in_4bit": True}], ids=["full", "4 bit"])
def test_fp16_and_8_bit_optimizers_train(quantization: dict[str, Any] | None, tmp_path: Path) -> None:
    pytest.importorskip("bitsandbytes")
    half = {"bf16": None, "fp16": True, "optim": "adamw_8bit", "learning_rate": 1e-2}
    peft_config = LoraConfig(r=4, init_lora_weights="gaussian")
    trainer = GRPOTrainer(
        folder_of(tmp_path),
        [length, parity],
        short(tmp_path / "out", **half),
        ROWS,
        peft_config=peft_config,
        quantization_config=quantization and BitsAndBytesConfig(**quantization),
    )
    before = [parameter.detach().clone() for parameter in trainer.trainer.parameters]
    trainer.train()
    assert type(trainer.trainer.optimizer.optimizer).__name__ == "AdamW8bit"
    kinds = {type(parameter).__name__ for parameter in trainer.model.parameters()}
    assert ("Params4bit" in kinds) == (quantization is not None)
    moved = [not torch.equal(old, new) for old, new in zip(before, trainer.trainer.parameters, strict=True)]
    assert any(moved)


@pytest.mark.nightly
def test_a_run_resumes_as_if_never_stopped(tmp_path: Path) -> None:
    config = {"save_strategy": "steps", "save_steps": 1, "max_steps": 3}
    source = folder_of(tmp_path)
    straight = GRPOTrainer(source, length, short(tmp_path / "straight", **config), ROWS)
    straight.train()
    interrupted = GRPOTrainer(source, length, short(tmp_path / "out", **config), ROWS)
    interrupted.train()
    checkpoint = interrupted.trainer.folder.path / "checkpoints" / "step-000001"
    resumed = GRPOTrainer(source, length, short(tmp_path / "out", **config), ROWS)
    assert resumed.train(resume_from_checkpoint=checkpoint).global_step == 3
    pairs = zip(straight.model.parameters(), resumed.model.parameters(), strict=True)
    assert all(torch.equal(parameter, other) for parameter, other in pairs)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"callbacks": [object()]}, "callbacks is not supported; instead: leave it out"),
        ({"rollout_func": print}, "instead: an environment_factory"),
        ({"optimizers": (object(), None)}, r"the optimizer is that of args\.optim"),
        ({"train_dataset": [{"prompt": "a"}]}, r"must be a datasets\.Dataset, got list"),
        ({"eval_dataset": {"easy": ROWS, "hard": ROWS}}, "eval_dataset must be one dataset, got easy, hard"),
        ({"train_dataset": ROWS.select([])}, "train_dataset has no rows"),
        (
            {"args": {"logging_strategy": "step", "logging_steps": 10}},
            "logging_strategy='step' must be 'no', 'steps' or 'epoch'",
        ),
        ({"args": {"eval_strategy": "epoch"}}, "eval_strategy='epoch' needs eval_dataset"),
        (
            {"model": make("llama")[0], "args": {"bf16": True}},
            r"bf16=True has no effect on a loaded model of torch\.float32",
        ),
        (
            {"model": make("llama")[0], "args": {"model_init_kwargs": {"dtype": "bfloat16"}}},
            "has no effect on a loaded",
        ),
        ({"model": make("llama")[0], "args": {"fp16": True}}, r"fp16=True has no effect on a loaded model of torch"),
        (
            {"model": make("llama")[0], "quantization_config": {"load_in_8bit": True}},
            "quantization_config has no effect on a loaded model",
        ),
        (
            {"quantization_config": {"a": 1}, "args": {"model_init_kwargs": {"quantization_config": {"a": 1}}}},
            r"quantization_config is also in args\.model_init_kwargs",
        ),
        ({"quantization_config": {"load_in_8bit": True}}, "quantized weights cannot be trained in full"),
        ({"reward_funcs": [length, length], "args": {"reward_weights": [1.0]}}, "1 numbers for 2 reward functions"),
    ],
)
def test_arguments_that_mmgrpo_does_not_have(arguments: dict[str, Any], message: str, tmp_path: Path) -> None:
    args = short(tmp_path / "out", **arguments.pop("args", {}))
    with pytest.raises(ConfigError, match=message):
        GRPOTrainer(
            **{"model": folder_of(tmp_path), "reward_funcs": length, "args": args, "train_dataset": ROWS, **arguments}  # pyrefly: ignore[bad-argument-type]
        )
