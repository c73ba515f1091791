"""``mmgrpo init --from trl``: a script or a YAML file of TRL becomes a configuration with the same values."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from datasets import Dataset
from typer.testing import CliRunner

from mmgrpo.cli import app
from mmgrpo.config.loading import load_config, validated
from mmgrpo.config.sections import at
from mmgrpo.config.validating import set_value
from mmgrpo.errors import ConfigError
from mmgrpo.trl import GRPOConfig
from mmgrpo.trl.conversion import converted
from mmgrpo.trl.run_values import TrainingData, run_values
from tests.tiny.language_models import save

SCRIPT = """\
import os
from datasets import load_dataset
from peft import LoraConfig
from trl import GRPOConfig, GRPOTrainer
from trl.rewards import accuracy_reward

os.remove("precious.txt")  # nothing of a script is executed
model_id = "Qwen/Qwen2.5-VL-3B-Instruct"
dataset = load_dataset("lmms-lab/multimodal-open-r1-8k-verified", split="train[:5%]")
training_args = GRPOConfig(
    output_dir="out",
    learning_rate=1e-5,
    max_steps=40,
    per_device_train_batch_size=2,
    gradient_accumulation_steps=8,
    max_completion_length=1024,
    num_generations=2,
    epsilon_high=0.28,
    beta=0.04,
    lr_scheduler_type="cosine",
    max_prompt_length=2048,
    push_to_hub=True,
    save_steps=10,
    use_vllm=True,
    reward_weights=[1.0, 0.5],
    report_to=["tensorboard"],
)

def length(completions, **kwargs):
    return [float(len(text)) for text in completions]

if __name__ == "__main__":
    trainer = GRPOTrainer(
        model=model_id,
        reward_funcs=[accuracy_reward, length],
        args=training_args,
        train_dataset=dataset,
        peft_config=LoraConfig(r=16, lora_alpha=32, lora_dropout=0.1, target_modules=["q_proj", "v_proj"]),
        callbacks=[Callback()],
    )
    trainer.train()
"""
ARGUMENTS: dict[str, Any] = {
    "output_dir": "out", "learning_rate": 1e-5, "max_steps": 40, "per_device_train_batch_size": 2,
    "gradient_accumulation_steps": 8, "max_completion_length": 1024, "num_generations": 2, "epsilon_high": 0.28,
    "beta": 0.04, "lr_scheduler_type": "cosine", "save_steps": 10, "report_to": ["tensorboard"], "use_vllm": True,
    "overrides": {"rollout.engine.python": "vllm-env/bin/python"},
}  # fmt: skip
"""Those of the script that have keys, and the setting that TRL does not have."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_script_becomes_the_configuration_of_the_same_arguments(folder: Path) -> None:
    (folder / "precious.txt").touch()
    written(folder / "train_grpo.py", SCRIPT)
    result = CliRunner().invoke(app, ["init", "--from", "trl", "train_grpo.py"])
    assert (result.exit_code, result.output) == (0, "wrote run.yaml\nmmgrpo explain run.yaml\n")
    assert (folder / "precious.txt").exists()
    data = TrainingData(num_prompts=None, is_conversational=True, has_tools=False)
    values: dict[str, Any] = {"policy": {"name": "language"}}
    for key, value in run_values(GRPOConfig(**ARGUMENTS), data).items():
        set_value(values, key.split("."), value)
    expected, config = validated(values), load_config(folder / "run.yaml")
    for section in ("steps", "seed", "output", "rollout", "advantage", "objective", "update", "checkpoint", "runtime"):
        assert getattr(config, section) == getattr(expected, section)
    assert config.policy is not None
    settings = dict(config.policy.settings)
    assert (settings["model"], settings["dtype"], settings["max_new_tokens"]) == (
        "Qwen/Qwen2.5-VL-3B-Instruct", "bfloat16", 1024,
    )  # fmt: skip
    assert settings["lora"] == {
        "rank": 16, "alpha": 32.0, "targets": ["q_proj", "v_proj"], "init": "kaiming", "dora": False,
    }  # fmt: skip
    assert config.prompts is not None
    assert (config.prompts.source, config.prompts.split) == ("lmms-lab/multimodal-open-r1-8k-verified", "train[:5%]")
    assert [(reward.name, reward.weight) for reward in config.rewards] == [
        ("python:trl.rewards:accuracy_reward", 1.0), ("python:train_grpo:length", 0.5),
    ]  # fmt: skip


def test_file_has_a_comment_for_each_argument_without_a_counterpart(folder: Path) -> None:
    comments = [line for line in converted(written(folder / "t.py", SCRIPT)).splitlines() if line.startswith("# *")]
    for start in (
        "# * callbacks=[Callback()]: it is not read; TRL's callbacks is not supported; leave it out",
        "# * max_prompt_length=2048: TRL's max_prompt_length is not supported; instead: shorter prompts",
        "# * push_to_hub=True: TRL's push_to_hub is not supported; instead: `mmgrpo export RUN --push",
        "# * rollout.engine.python: set the Python of an environment with vLLM (https://",
        "# * not as in TRL: vllm_mode='colocate': the run starts one vLLM server in a separate process",
        "# * lora_dropout=0.1: TRL's lora_dropout is not supported; leave it out: dropout is off",
        "# * rollout.prompts_per_step is for one process",
        "# * policy.chat: false, if the prompts are texts",
    ):
        assert [line for line in comments if line.startswith(start)], start
    assert len(comments) == 9  # with that of modules that rewards are imported from


@pytest.mark.nightly
def test_yaml_of_the_command_line_becomes_a_run_that_trains(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save("qwen2", folder / "model")
    (folder / "rows").mkdir()
    rows = [{"prompt": [{"role": "user", "content": text}]} for text in ("one", "two")]
    Dataset.from_list(rows).to_parquet(folder / "rows/train-00000-of-00001.parquet")
    written(folder / "my_lengths.py", "def length(completions, **kwargs):\n    return [1.0 for _ in completions]\n")
    monkeypatch.setattr(sys, "path", [*sys.path, str(folder)])
    written(
        folder / "config.yaml",
        "model_name_or_path: model\ndataset_name: rows\nreward_funcs: [my_lengths.length]\nmax_steps: 2\n"
        "use_cpu: true\n"
        "bf16: false\nnum_generations: 2\nper_device_train_batch_size: 2\nmax_completion_length: 3\nuse_peft: true\n"
        "lora_r: 2\nsave_strategy: 'no'\npacking: true\nlearning_rate: 1.0e-3\n",
    )
    for arguments in (["init", "--from", "trl", "config.yaml"], ["train", "run.yaml"]):
        result = CliRunner().invoke(app, arguments)
        assert result.exit_code == 0, result.output
    assert "# * packing=True: TRL's packing is policy.padding_free: true" in (folder / "run.yaml").read_text()
    (metrics,) = folder.glob("trainer_output/*/metrics.jsonl")
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    assert [(line["step"], line["reward/length/mean"]) for line in lines] == [(1, 1.0), (2, 1.0)]


def test_arguments_of_earlier_versions_are_converted(folder: Path) -> None:
    script = SCRIPT.replace("push_to_hub=True,", 'warmup_ratio=0.1, evaluation_strategy="steps", eval_steps=5,')
    text = converted(written(folder / "train_grpo.py", script))
    values = yaml.safe_load(text)
    assert validated(values).update.num_updates == 1
    assert values["update"]["optimizer"]["schedule"] == {"name": "cosine", "warmup_steps": 4}  # a tenth of 40
    assert values["evaluation"]["every"] == 5
    assert "warmup_ratio" not in text
    assert "evaluation_strategy" not in text


def test_epochs_become_a_comment_with_the_steps(folder: Path) -> None:
    text = converted(written(folder / "c.yaml", "num_train_epochs: 2\nnum_generations: 4\n"))
    assert (
        "# * steps: 100 is not a number of TRL's run: num_train_epochs=2 is 2 * rows / 2 steps; set it\n" in text
    )  # 8 rows are 2 groups of 4
    assert "\nsteps: 100\n" in text
    assert "# * policy.model: set the path or hub id of the model\n" in text
    assert at(load_config(written(folder / "run.yaml", text)).model_dump(), "rollout.prompts_per_step") == 2


def test_script_without_a_configuration_has_the_defaults_of_trl(folder: Path) -> None:
    script = """\
from datasets import load_dataset
from trl import GRPOTrainer
from trl.rewards import accuracy_reward

dataset = load_dataset("trl-lib/DeepMath-103K", split="train")
trainer = GRPOTrainer(model="Qwen/Qwen2-0.5B-Instruct", reward_funcs=accuracy_reward, train_dataset=dataset)
"""
    text = converted(written(folder / "s.py", script))
    expected = converted(written(folder / "t.py", script.replace("train_dataset", "args=GRPOConfig(), train_dataset")))
    assert text.replace("s.py", "t.py") == expected
    assert "Qwen/Qwen2-0.5B-Instruct" in text


QUANTIZED = """\
import torch
from peft import LoraConfig
from transformers import AutoModelForCausalLM, BitsAndBytesConfig
from trl import GRPOConfig, GRPOTrainer

name = "Qwen/Qwen2.5-0.5B-Instruct"
four_bit = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.bfloat16)
LOADED
args = GRPOConfig("out", max_steps=3)
GRPOTrainer(model=model, args=args, peft_config=LoraConfig(r=8), reward_funcs=["accuracy_reward"])
"""
LOADINGS = (
    "model = AutoModelForCausalLM.from_pretrained(name, quantization_config=four_bit, torch_dtype=torch.bfloat16, "
    "attn_implementation='sdpa', device_map='auto', use_cache=False)",
    "model = AutoModelForCausalLM.from_pretrained(name, dtype='bfloat16', quantization_config=dict(load_in_4bit=True, "
    "bnb_4bit_quant_type='nf4', bnb_4bit_compute_dtype='bfloat16'), attn_implementation='sdpa', use_cache=False)",
)


@pytest.mark.parametrize("loaded", LOADINGS)
def test_model_that_the_script_loads_is_loaded_likewise(tmp_path: Path, loaded: str) -> None:
    (tmp_path / "script.py").write_text(QUANTIZED.replace("LOADED", loaded))
    text = converted(tmp_path / "script.py")
    policy = yaml.safe_load(text)["policy"]
    assert {key: policy[key] for key in ("model", "dtype", "attention", "quantization_config")} == {
        "model": "Qwen/Qwen2.5-0.5B-Instruct",
        "dtype": "bfloat16",
        "attention": "sdpa",
        "quantization_config": {
            "load_in_4bit": True,
            "bnb_4bit_quant_type": "nf4",
            "bnb_4bit_compute_dtype": "bfloat16",
        },
    }
    assert "# * use_cache=False: it is not read; " in text


TLDR = {"source": "trl-lib/tldr", "split": "train"}
LOADS = 'dataset = load_dataset("trl-lib/tldr", split="train")\n'


@pytest.mark.parametrize(
    ("lines", "expression", "prompts"),
    [
        ('dataset = load_dataset("json", data_files="train.jsonl")', 'dataset["train"]', {"source": "train.jsonl"}),
        ("", 'load_dataset("json", data_files=["train.jsonl"], split="train")', {"source": "train.jsonl"}),
        (
            "",
            'load_dataset("json", data_files={"train": "a.jsonl", "test": "b.jsonl"})["train"]',
            {"source": "a.jsonl"},
        ),
        ("", 'load_dataset("parquet", data_files="https://a.b/c.parquet")', {"source": "https://a.b/c.parquet"}),
        ("", 'Dataset.from_json("rows.jsonl")', {"source": "rows.jsonl"}),
        ("", 'load_from_disk("rows")["train"]', {"source": "rows", "split": "train"}),
        (LOADS, "dataset", TLDR),
        ("", 'datasets.load_dataset(path="a/b", split="train[:9]")', {"source": "a/b", "split": "train[:9]"}),
        ("", 'load_dataset("openai/gsm8k", "main")', {"source": "openai/gsm8k:main", "split": "train"}),
        ("", 'load_dataset("a/b", data_files="c.parquet")', {"source": "a/b:c.parquet", "split": "train"}),
        ("", 'load_dataset("a/b")["hard"] if on_line() else None', {"source": "a/b", "split": "hard"}),
        (
            LOADS + "dataset = dataset.map(f)\nrows = dataset.filter(g)",
            "rows",
            {"source": "trl-lib/tldr", "split": "train"},
        ),
    ],
)
def test_dataset_of_a_script_is_the_source_of_the_prompts(
    lines: str, expression: str, prompts: dict[str, str], folder: Path
) -> None:
    script = f"{lines}\nGRPOTrainer(model='m', train_dataset={expression}, args=GRPOConfig(max_steps=1))"
    text = converted(written(folder / "t.py", script))
    assert yaml.safe_load(text)["prompts"] == prompts
    assert "train_dataset=" not in text
    assert load_config(written(folder / "run.yaml", text)).prompts is not None


def test_operations_on_a_dataset_become_a_comment(folder: Path) -> None:
    """The form of TRL's ``grpo_vlm.py``: one data set in two parts, whose rows are mapped."""
    script = (
        LOADS + "dataset = dataset.train_test_split(test_size=100, seed=42)\ndataset = dataset.map(make_conversation)\n"
        "train_dataset = dataset['train']\nheld_out = dataset['test'] if is_evaluated else None\n"
        "GRPOTrainer(model='m', train_dataset=train_dataset, eval_dataset=held_out, reward_funcs='accuracy_reward',"
        "args=GRPOConfig(max_steps=1, eval_strategy='steps'))"
    )
    text = converted(written(folder / "t.py", script))
    for argument, section, part in (
        ("train_dataset", "prompts", "train"),
        ("eval_dataset", "evaluation.prompts", "test"),
    ):
        line = (
            f"# * {argument}: .train_test_split(test_size=100, seed=42)['{part}'], .map(make_conversation) is not "
            f"executed, {section}.source has the rows as they are stored: {section}.columns maps columns, "
        )
        assert line in text
    values = yaml.safe_load(text)
    assert values["prompts"] == values["evaluation"]["prompts"] == TLDR


def test_parts_of_a_dataset_that_are_not_read_become_comments(folder: Path) -> None:
    script = (
        "rows = load_dataset('json', data_files='data/rows.jsonl', num_proc=os.cpu_count())\n"
        "GRPOTrainer(model='m', train_dataset=rows, args=GRPOConfig(max_steps=1))"
    )
    text = converted(written(folder / "t.py", script))
    assert "# * train_dataset: num_proc=os.cpu_count() of load_dataset is not read\n" in text
    assert "# * train_dataset: paths of media count from the folder of data/rows.jsonl\n" in text


@pytest.mark.parametrize(
    ("lines", "expression"),
    [
        ("", "load_dataset(script_args.dataset_name)"),
        ("", "load_dataset('json', data_files=['a.jsonl', 'b.jsonl'])"),
        ("", "load_dataset('json', data_files='rows/*.jsonl')"),
        ("", "load_dataset('json', data_files='a', split='train[:9]')"),
        ("", "load_dataset('csv', data_files='a.csv')"),
        ("", "load_dataset(**arguments)"),
        ("", "make_dataset()"),
        ("if a:\n  rows = load_dataset('a/b')\nelse:\n  rows = load_dataset('c/d')", "rows"),
        ("rows = rows.map(f)", "rows"),
    ],
)
def test_dataset_that_is_computed_is_left_to_the_user(lines: str, expression: str, folder: Path) -> None:
    script = f"{lines}\nGRPOTrainer(model='m', train_dataset={expression}, args=GRPOConfig(max_steps=1))"
    text = converted(written(folder / "t.py", script))
    assert "prompts" not in yaml.safe_load(text)
    assert "# * prompts.source: set the data set of the hub, or a file\n" in text
    assert f"# * train_dataset={expression}: it is not read" in text.replace('"', "'")


PARSED = """\
from datasets import load_dataset
from trl import GRPOConfig, GRPOTrainer, ModelConfig, ScriptArguments, TrlParser, get_peft_config
from trl.rewards import accuracy_reward, think_format_reward

if __name__ == "__main__":
    parser = TrlParser((ScriptArguments, GRPOConfig, ModelConfig))
    script_args, training_args, model_args = parser.parse_args_and_config()
    training_args.model_init_kwargs = dict(revision=model_args.model_revision)
    dataset = load_dataset("lmms-lab/multimodal-open-r1-8k-verified", split="train")
    trainer = GRPOTrainer(
        model=model_args.model_name_or_path,
        args=training_args,
        reward_funcs=[think_format_reward, accuracy_reward],
        train_dataset=dataset,
        peft_config=get_peft_config(model_args),
        callbacks=[Callback()],
    )
    trainer.train()
"""
FLAGS = (
    "--model_name_or_path Qwen/Qwen2.5-VL-3B-Instruct --learning_rate 1e-5 --dtype bfloat16 --max_steps=40 --use_peft "
    "--lora_target_modules q_proj v_proj --lora_r 8 --reward_weights 1 0.5 --no_gradient_checkpointing --run-name 7 "
    "--log_completions --use_vllm --vllm_mode colocate --bf16 False --max_prompt_length 2048"
)


@pytest.mark.parametrize("start", ["", "accelerate launch --config_file=zero3.yaml examples/grpo_vlm.py "])
def test_script_with_the_arguments_of_its_command_line(start: str, folder: Path) -> None:
    written(folder / "grpo_vlm.py", PARSED)
    result = CliRunner().invoke(app, ["init", "--from", "trl", "grpo_vlm.py", "--arguments", start + FLAGS])
    assert (result.exit_code, result.output) == (0, "wrote run.yaml\nmmgrpo explain run.yaml\n")
    text = (folder / "run.yaml").read_text()
    values = yaml.safe_load(text)
    assert values["policy"]["model"] == "Qwen/Qwen2.5-VL-3B-Instruct"
    assert values["policy"]["lora"] == {
        "rank": 8, "alpha": 32.0, "targets": ["q_proj", "v_proj"], "init": "kaiming", "dora": False,
    }  # fmt: skip
    assert (values["update"]["optimizer"]["lr"], values["steps"]) == (1e-5, 40)
    assert values["prompts"] == {"source": "lmms-lab/multimodal-open-r1-8k-verified", "split": "train"}
    assert values["rewards"] == [
        {"name": "python:trl.rewards:think_format_reward"},
        {"name": "python:trl.rewards:accuracy_reward", "weight": 0.5},
    ]
    assert "gradient_checkpointing" not in values["policy"]
    assert values["about"]["name"] == "7"
    assert values["rollout"]["engine"]["python"] == "vllm-env/bin/python"
    comments = [line for line in text.splitlines() if "it is not read" in line]
    assert [line.partition("=")[0] for line in comments] == ["# * callbacks"]
    assert "# * max_prompt_length=2048: TRL's max_prompt_length is not supported" in text


def test_arguments_of_a_command_line_override_its_file(folder: Path) -> None:
    script, file = written(folder / "t.py", PARSED), written(folder / "c.yaml", "max_steps: 3\nbeta: 0.1\nseed: 2\n")
    for path, line in ((file, "--max_steps 5"), (script, "--config c.yaml --max_steps 5")):
        values = yaml.safe_load(converted(path, line))
        assert (values["steps"], values["objective"]["kl"]["beta"], values["seed"]) == (5, 0.1, 2)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("learning_rate 1e-5", "--arguments must begin with a name, such as --learning_rate 1e-5; got 'learning_rate'"),
        ("--run_name 'a", "--arguments cannot be split into words: No closing quotation"),
        ("--config absent.yaml", r"absent\.yaml cannot be read"),
    ],
)
def test_command_line_that_cannot_be_read_raises(line: str, message: str, folder: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        converted(written(folder / "t.py", PARSED), line)
    result = CliRunner().invoke(app, ["init", "new", "--arguments", line])
    assert (result.exit_code, "--arguments needs --from" in result.stderr) == (2, True)


def test_long_expressions_in_comments_are_cut_visibly(folder: Path) -> None:
    expression = "load_dataset(names[0], split=f'train[:{number}]', revision=revision_of(name))"
    script = f"GRPOTrainer(model='m', train_dataset={expression}, args=GRPOConfig(max_steps=1, run_name='{'a' * 90}'))"
    text = converted(written(folder / "t.py", script.replace("run_name", "hub_model_id")))
    assert f"# * train_dataset={expression[:57]}...: it is not read" in text
    assert f"# * hub_model_id='{'a' * 56}...: TRL's" in text


def test_layers_in_4_bit_compute_as_in_trl(tmp_path: Path) -> None:
    """``trl.get_quantization_config`` has the dtype of the model, and a bare ``BitsAndBytesConfig`` float32."""
    arguments = "model_name_or_path: m\nuse_peft: true\nload_in_4bit: true\ndtype: bfloat16\nmax_steps: 1\n"
    policy = yaml.safe_load(converted(written(tmp_path / "c.yaml", arguments)))["policy"]
    assert (policy["dtype"], policy["quantization_config"]) == (
        "bfloat16", {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"},
    )  # fmt: skip
    script = QUANTIZED.replace("LOADED", LOADINGS[0]).replace(", bnb_4bit_compute_dtype=torch.bfloat16", "")
    policy = yaml.safe_load(converted(written(tmp_path / "t.py", script)))["policy"]
    assert policy["quantization_config"]["bnb_4bit_compute_dtype"] == "float32"


def test_model_that_is_loaded_with_computed_arguments_is_left_to_the_user(tmp_path: Path) -> None:
    loaded = "model = AutoModelForCausalLM.from_pretrained(name, dtype=best_dtype(), revision=f'{name}-v2')"
    (tmp_path / "script.py").write_text(QUANTIZED.replace("LOADED", loaded))
    text = converted(tmp_path / "script.py")
    assert "# * policy.model: set the path or hub id of the model" in text
    assert "# * model=model: it is not read; " in text


def test_reward_that_trl_lacks_is_of_the_script(folder: Path) -> None:
    text = converted(written(folder / "c.yaml", "max_steps: 2\nreward_funcs: [accuracy_reward, box_reward]\n"))
    names = [reward.name for reward in load_config(written(folder / "run.yaml", text)).rewards]
    assert names == ["python:trl.rewards:accuracy_reward", "python:MODULE_OF_THE_SCRIPT:box_reward"]
    assert (
        "# * rewards: trl.rewards does not have python:MODULE_OF_THE_SCRIPT:box_reward: replace MODULE_OF_THE_SCRIPT"
        in text
    )


def test_tools_are_left_to_the_user_and_their_turns_are_converted(folder: Path) -> None:
    script = "GRPOTrainer(model='m', tools=[search], args=GRPOConfig(max_steps=1, max_tool_calling_iterations=3))"
    text = converted(written(folder / "t.py", script))
    assert "# * tools=[search]: it is not read; TRL's tools is rollout.environment: {name: tools, functions: [" in text
    assert load_config(written(folder / "run.yaml", text)).rollout.max_turns == 4


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        (
            "t.py",
            "GRPOConfig(learning_rate=args.lr, beta=2 * b)",
            r"learning_rate=args\.lr \(line 1\), beta=2 \* b \(line",
        ),
        ("t.py", "GRPOConfig(**settings)", r"\*\*=settings \(line 1\) must be literals"),
        ("t.py", "lr = 1\nlr = 2\nGRPOConfig(learning_rate=lr)", "learning_rate=lr"),
        ("t.py", "GRPOConfig()\nGRPOConfig()", "has 2 calls of GRPOConfig and must have one"),
        (
            "t.py",
            "parser = TrlParser((ScriptArguments, GRPOConfig))",
            "; or pass them: mmgrpo init .*t.py --arguments",
        ),
        ("t.py", "GRPOTrainer(model='m', args=read_arguments())", "has 0 calls .* in a YAML file: mmgrpo init"),
        ("t.py", "GRPOTrainer(**settings)", "has 0 calls .* in a YAML file: mmgrpo init"),
        ("t.py", "def (", "is not Python"),
        ("t.py", "(" * 5000, "is not Python"),
        ("c.yaml", "[1, 2]", "must be a mapping of TRL's arguments"),
        ("c.yaml", "a: [", "is not YAML"),
        ("c.yaml", "max_steps: 3\nnum_generations: 3", "must be a multiple of num_generations=3"),
        ("c.yaml", "max_steps: 3\nload_in_4bit: true", "quantized weights cannot be trained in full"),
        (
            "c.yaml",
            "reward_funcs: [a.b]\nreward_weights: [1, 2]",
            "reward_weights has 2 numbers for 1 reward functions",
        ),
    ],
)
def test_file_that_cannot_be_converted_raises(folder: Path, name: str, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        converted(written(folder / name, text))


def test_command_replaces_no_file_and_names_the_libraries(folder: Path) -> None:
    written(folder / "c.yaml", "max_steps: 3\n")
    written(folder / "run.yaml", "mine")
    result = CliRunner().invoke(app, ["init", "--from", "trl", "c.yaml"])
    assert result.exit_code == 2
    assert "run.yaml exists already" in result.stderr
    assert (folder / "run.yaml").read_text() == "mine"
    result = CliRunner().invoke(app, ["init", "--from", "tlr", "c.yaml"])
    assert "--from tlr is unknown; did you mean trl?" in result.stderr
