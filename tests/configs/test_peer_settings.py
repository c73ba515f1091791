"""A setting of another library in a run is an error that names our key, and each such key exists."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from mmgrpo.algorithm import Algorithm
from mmgrpo.config import RunConfig
from mmgrpo.config.loading import CONFIGS, load_config, validated
from mmgrpo.config.peers import MAX_NAMED, PEERS, peer, peer_suggestions
from mmgrpo.config.registry import REWARDS, names, resolve, settings_type
from mmgrpo.config.validating import explain_validation
from mmgrpo.docgen.configuration import FUNCTIONS, configuration_page
from mmgrpo.docgen.peers import linked_pages, peer_table
from mmgrpo.docgen.signatures import require_settings, signature_at
from mmgrpo.errors import ConfigError, UnknownNameError
from mmgrpo.explain.explanation import explanation
from mmgrpo.trl.arguments import ARGUMENTS, PEER

MENTIONED = re.compile(r"(?<![\w/.:])[a-z]+(?:_[a-z]+)*(?:\.[a-z_]+|\[\]\.[a-z_]+)+(?![\w(/])")
NOT_KEYS = ("torch.backends", "trainer.state", "metrics.jsonl", "config.json", "model_index.json")
SECTIONS = {"rewards": "rewards", "rollout.environment": "environments"}


@cache
def keys() -> set[str]:
    """Every dotted key of a run, those of named blocks by the numbers of their functions."""
    documented = set(re.findall(r"^\| `([\w.\[\]]+)`", configuration_page(), re.MULTILINE))
    numbers = {
        f"{key}.{number}"
        for key, functions in FUNCTIONS.items()
        for function in functions.values()
        for number, parameter in inspect.signature(function).parameters.items()
        if parameter.kind is parameter.KEYWORD_ONLY
    }
    critics = {
        f"advantage.critic{key.removeprefix('update')}" for key in documented if key.startswith("update.optimizer.")
    }
    return documented | numbers | critics | {f"{key}.name" for key in FUNCTIONS}


def keys_in(text: str) -> list[str]:
    """The dotted keys that a text names."""
    words = [word for word in MENTIONED.findall(text) if not word.startswith(NOT_KEYS)]
    return [word for word in words if word.partition(".")[0].removesuffix("[]") in RunConfig.model_fields]


def blocks_in(text: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The named blocks of a text, each with its key."""
    for key, block in re.findall(r"([a-z_.]+): \[?(\{name: [^{}]*\})", text):
        yield key, yaml.safe_load(block)


@pytest.mark.parametrize("name", PEERS)
def test_keys_in_place_of_a_setting_exist(name: str) -> None:
    library = peer(name)
    texts = [*library.keys.values(), *library.replacements.values()]
    assert {key for text in texts for key in keys_in(text)} - keys() == set()
    starts = {re.match(r"[a-z_.\[\]]+", text)[0].rstrip(".") for text in library.keys.values()}  # pyrefly: ignore[unsupported-operation]
    assert starts - keys() == set()
    assert library.keys.keys() & library.replacements.keys() == set()


@pytest.mark.parametrize("name", PEERS)
def test_blocks_in_place_of_a_setting_name_functions_with_their_numbers(name: str) -> None:
    for text in peer(name).keys.values():
        for key, block in blocks_in(text):
            function = block.pop("name", None)
            if key in SECTIONS and function not in (None, "NAME") and not function.startswith("python:"):
                assert function in names(SECTIONS[key]), text
                parameters = inspect.signature(resolve(SECTIONS[key], function)).parameters
            elif key in FUNCTIONS and function is not None:
                parameters = inspect.signature(FUNCTIONS[key][function]).parameters
            else:
                continue
            assert block.keys() <= {*parameters, "weight"}, text


@pytest.mark.parametrize("name", PEERS)
def test_rewards_in_place_of_those_of_a_library_exist_with_their_settings(name: str) -> None:
    for reward, text in peer(name).rewards.items():
        settings = yaml.safe_load(text.partition("}")[0] + "}")
        signature = signature_at(REWARDS[settings.pop("name")])
        assert signature is not None
        assert signature.takes is None or settings.keys() <= {*signature.takes, "weight"}, reward


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("pickscore", "flow_grpo's pickscore is {name: pick_score}"),
        ("CLIP", "Flow-Factory's CLIP is {name: clip_score}"),
        ("accuracy", "ms-swift's accuracy is {name: math_verify, column: solution}"),
        ("accuracy_reward", "TRL's accuracy_reward is {name: math_verify, column: solution}"),
        ("pick_scor", "did you mean pick_score or"),
    ],
)
def test_unknown_reward_names_that_of_another_library(name: str, message: str) -> None:
    for raise_error in (
        lambda: resolve("rewards", name),
        lambda: require_settings(validated({"rewards": [{"name": name}]})),
    ):
        with pytest.raises(UnknownNameError, match=re.escape(f"unknown name {name!r} among rewards; {message}")):
            raise_error()


def test_arguments_of_trl_are_complete() -> None:
    assert len(PEER.settings) > 190
    assert ARGUMENTS.keys() <= PEER.settings.keys()
    assert PEER.keys["num_generations"] == "rollout.group_size"
    assert PEER.replacements["use_cache"].startswith("leave it out: decoding has a cache")


def test_each_argument_of_trl_names_its_key_or_its_replacement() -> None:
    arguments = [name for name in PEER.settings if "." not in name and name not in RunConfig.model_fields]
    assert len(arguments) > 190
    for name in arguments:
        with pytest.raises(ConfigError, match=re.escape(f"unknown key {name!r}; {PEER.settings[name]}")):
            validated({name: 1})


@pytest.mark.parametrize("name", PEERS)
def test_each_setting_of_a_library_is_among_the_suggestions(name: str) -> None:
    for setting, text in {**peer(name).keys, **peer(name).replacements}.items():
        first_key = re.split("[:,]", text)[0]
        assert any(first_key in sentence for sentence in peer_suggestions(setting)), setting


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("num_generations=4", "'num_generations'; TRL's num_generations is rollout.group_size"),
        ("rollout.num_generations=4", "'rollout.num_generations'; TRL's num_generations is rollout.group_size"),
        ("load_in_4bit=true", "is policy.quantization_config: {load_in_4bit: true} with policy.lora"),
        ("use_vllm=true", "TRL's use_vllm is rollout.engine: {name: vllm, url: ADDRESS}"),
        ("learning_rate=1e-5", "TRL's learning_rate is update.optimizer.lr"),
        ("lora.r=16", "'lora'; TRL's peft_config.r is policy.lora.rank"),
        ("packing=true", "TRL's packing is policy.padding_free: true, for rows of text alone"),
        ("padding_free=true", "TRL's padding_free is policy.padding_free: true, for rows of text alone"),
        ("group_by_length=true", "TRL's group_by_length is not supported; leave it out: rows are batched"),
        ("per_device_train_batch_size=2", "is rollout.prompts_per_step: the rows of a generation"),
        ("beta=0.1", "TRL's beta is objective.kl.beta"),
        ("epsilon=0.2", "TRL's epsilon is objective.surrogate: {name: clipped, low: NUMBER, high: NUMBER}"),
        ("max_steps=10", "'max_steps'; TRL's max_steps is steps"),
        ("sample.num_image_per_prompt=24", "flow_grpo's sample.num_image_per_prompt is rollout.group_size"),
        ("worker={rollout: {n: 5}}", "'worker'; EasyR1's worker.rollout.n is rollout.group_size"),
        ("train={unique_sample_num_per_epoch: 48}", "is rollout.prompts_per_step"),
        ("network={linear: 16}", "ai-toolkit's network.linear is policy.lora.rank"),
        ("quant_bits=4", "ms-swift's quant_bits is policy.quantization_config"),
        ("seeed=1", "'seeed'; did you mean seed"),
    ],
)
def test_setting_on_the_command_line_names_the_key(override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        load_config("quickstart/digits-image", [override])


AI_TOOLKIT_PAGE = "https://mmgrpo.github.io/mmgrpo/coming-from/ai-toolkit/"


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("network.type=lora", "ai-toolkit's network.type is not supported; leave it out for lora; there is no locon"),
        ("model.arch=flux", "ai-toolkit's model.arch is not supported; leave it out: the class of the pipeline"),
        ("model.quantize_te=true", "ai-toolkit's model.quantize_te is policy.quantization_config"),
        ("model.assistant_lora_path=x", "ai-toolkit's model.assistant_lora_path is not supported; leave it out: GRPO"),
        ("train.loss_type=mse", "ai-toolkit's train.loss_type is not supported; instead: a method in include"),
        ("sample.walk_seed=true", "ai-toolkit's sample.walk_seed is not supported; leave it out: each held-out prompt"),
        (
            "timestep_type=sigmoid",
            "ai-toolkit's train.timestep_type is policy.reading.levels: logit_normal for sigmoid",
        ),
        ("train.content_or_style=style", "ai-toolkit's train.content_or_style is rollout.window: {name: random"),
        ("train.skip_first_sample=true", "ai-toolkit's train.skip_first_sample is not supported; leave it out"),
        ("train.unload_text_encoder=true", "ai-toolkit's train.unload_text_encoder is policy.offload: [text_encoder]"),
        ("train.cache_text_embeddings=true", "ai-toolkit's train.cache_text_embeddings is policy.memo_bytes"),
        ("logging.log_every=1", "ai-toolkit's logging.log_every is not supported; leave it out: metrics.jsonl has"),
        ("performance_log_every=1", "ai-toolkit's process.performance_log_every is not supported; leave it out"),
        ("offload_optimizer=true", "ms-swift's offload_optimizer is not supported; instead: rollout.engine on another"),
        ("offload_model=true", "ms-swift's offload_model is not supported; instead: rollout.engine on another GPU"),
        ("stop_words=[a]", "ms-swift's stop_words is not supported; instead: further ids as eos_token_id"),
        (
            "move_model_batches=4",
            "ms-swift's move_model_batches is not supported; leave it out: `transfer` of",
        ),
        (
            "async_generate=true",
            "ms-swift's async_generate is rollout.engine: {name: vllm, url: ADDRESS, steps_ahead: 1}",
        ),
        ("completion_length_limit_scope=total", "leave it out for total: policy.max_new_tokens counts all turns"),
        ("num_infer_workers=1", "ms-swift's num_infer_workers is not supported; leave it out: rollout.engine names"),
        ("model.frobnicate=1", f"not in the tables of {AI_TOOLKIT_PAGE.replace('ai-toolkit', 'flow-factory')} and "),
        ("train.beta=1", "flow_grpo's train.beta is objective.kl.beta"),
        ("logging.num_generations=1", f"not in the tables of {AI_TOOLKIT_PAGE}: logging.num_generations"),
        (
            "network={linear: 16, unknown: 1}",
            f"is policy.lora.rank; not in the tables of {AI_TOOLKIT_PAGE}: network.unknown",
        ),
        ("eval.every=5", "did you mean evaluation? not in the tables of"),
    ],
)
def test_key_in_a_section_of_a_library_names_that_library_alone(override: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as error:
        load_config("quickstart/digits-image", [override])
    message = str(error.value)
    assert message.startswith(f"unknown key '{re.split('[.=]', override)[0]}'; ")
    assert sentence in message
    assert "TRL's" not in message


@pytest.mark.parametrize(
    ("key", "value", "sentences"),
    [
        ("critic", {"model": {"path": "m"}}, ["not in the tables of {verl}: critic.model"]),
        ("critic", {"optim": {"lr": 1}}, ["verl's critic.optim.lr is advantage.critic.optimizer.lr"]),
        ("actor_rollout_ref", {"rollout": {"val_kwargs": {"top_p": 1}}}, ["not in the tables of {verl}: "
         "actor_rollout_ref.rollout"]),
        ("model", {"path": "m"}, ["verl's actor_rollout_ref.model.path is policy.model"]),
        ("lora", {"r": 8}, ["TRL's peft_config.r is policy.lora.rank"]),
        ("eval_rewards", {"name": "a", "reward_model": "b"}, ["Flow-Factory's eval_rewards is evaluation.rewards"]),
        ("trackers", [{"name": "wandb"}], []),
        ("peft_config", {"r": 8, "unknown": 1}, ["TRL's peft_config.r is policy.lora.rank",
         "not in the tables of {trl}: peft_config.unknown"]),
        ("nothing", {"like": 1}, []),
        ("0", None, []),
    ],
)  # fmt: skip
def test_section_of_a_library_is_compared_with_its_settings(key: str, value: object, sentences: list[str]) -> None:
    pages = {name: f"https://mmgrpo.github.io/mmgrpo/coming-from/{name}/" for name in ("trl", "verl")}
    assert peer_suggestions(key, value) == [sentence.format(**pages) for sentence in sentences]


def test_section_names_each_of_its_keys_by_the_library_with_most_of_them(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(
        "train: {learning_rate: 1.0e-4, clip_range: 1.0e-4, beta: 0.1, adv_clip_max: 5, ema: true, use_8bit_adam: 1}\n"
    )
    with pytest.raises(ConfigError) as error:
        load_config(file)
    sentences = str(error.value).split("; ")
    assert sentences[0] == "unknown key 'train'"
    assert len(sentences) == 7
    assert all(sentence.startswith("flow_grpo's train.") for sentence in sentences[1:])


def test_settings_above_the_limit_are_counted_with_their_page() -> None:
    keys = [name.removeprefix("train.") for name in peer("ai-toolkit").settings if name.startswith("train.")]
    sentences = peer_suggestions("config", {"process": [{"train": dict.fromkeys(keys, 1)}]})
    assert len(sentences) == len(keys) <= MAX_NAMED
    models = [name.removeprefix("model.") for name in peer("ai-toolkit").settings if re.match(r"model\.\w+$", name)]
    both = {"train": dict.fromkeys(keys, 1), "model": dict.fromkeys(models, 1)}
    sentences = peer_suggestions("config", {"process": [both]})
    assert len(sentences) == MAX_NAMED + 1
    assert sentences[-1] == f"and {len(keys) + len(models) - MAX_NAMED} more, see {AI_TOOLKIT_PAGE}"


def test_flat_file_of_ms_swift_names_each_of_its_settings(tmp_path: Path) -> None:
    swift, trl = list(peer("ms-swift").settings), ["num_generations", "max_completion_length", "learning_rate"]
    file = tmp_path / "run.yaml"
    file.write_text("\n".join(f"{name}: 1" for name in [*swift[:40], *trl]))
    with pytest.raises(ConfigError) as error:
        load_config(file)
    assert str(error.value).count("unknown key") == 43
    assert "more" not in str(error.value).rpartition("; ")[2]
    file.write_text("\n".join(f"{name}: 1" for name in [*swift, *trl]))
    with pytest.raises(ConfigError) as error:
        load_config(file)
    assert str(error.value).count("unknown key") == MAX_NAMED
    page = AI_TOOLKIT_PAGE.replace("ai-toolkit", "ms-swift")
    rest = f"and {len(swift) + 3 - MAX_NAMED} more, see {page} and {page.replace('ms-swift', 'trl')}"
    assert str(error.value).endswith(rest)


def test_unknown_keys_of_no_library_are_limited(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("\n".join(f"qqzz{number}: 1" for number in range(10)))
    with pytest.raises(ConfigError) as error:
        load_config(file)
    assert str(error.value).count("unknown key") == 8
    assert str(error.value).endswith("; and 2 more")


AI_TOOLKIT = """
job: extension
config:
  name: my_flux_lora
  process:
    - type: sd_trainer
      network: {type: lora, linear: 16, linear_alpha: 16}
      datasets: [{folder_path: images, caption_ext: txt}]
      train: {batch_size: 1, steps: 2000, train_unet: true, noise_scheduler: flowmatch, lr: 1.0e-4}
      model: {name_or_path: black-forest-labs/FLUX.1-dev, is_flux: true, quantize: true}
      sample: {width: 1024, seed: 42, guidance_scale: 4}
"""


def test_file_of_ai_toolkit_names_the_keys_of_its_nested_settings(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(AI_TOOLKIT)
    with pytest.raises(ConfigError) as error:
        load_config(file)
    for sentence in (
        "network.linear is policy.lora.rank",
        "train.lr is update.optimizer.lr",
        "train.batch_size is rollout.prompts_per_step, times rollout.group_size the samples of a step",
        "model.quantize is policy.quantization_config: {load_in_4bit: true, bnb_4bit_quant_type: nf4}",
        "datasets.caption_ext is not supported; instead: prompts.source",
        "job is not supported; leave it out: a file is one run",
    ):
        assert f"; ai-toolkit's {sentence}" in str(error.value)
    assert not [name for name in ("flow_grpo", "TRL", "verl", "swift", "Factory") if name in str(error.value)]


def test_value_of_another_library_names_that_of_a_run() -> None:
    with pytest.raises(ValidationError) as error:
        settings_type("denoising").model_validate({"model": "m", "sampler": "sde"})
    message = explain_validation(error.value, settings_type("denoising"))
    assert message.endswith("got 'sde'; flow_grpo's sde is flow_sde, for Wan wan_sde")
    assert all(library.values.keys() <= keys() for library in map(peer, PEERS))


def test_window_of_flow_grpo_has_an_exclusive_end() -> None:
    assert peer("flow-grpo").keys["sample.sde_window_range"].endswith("high: END}, END exclusive")


def test_misspelled_use_paper_hparams_is_suggested(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("include: [methods/flow-grpo]\nuse_paper_hparam: true\n")
    with pytest.raises(ConfigError, match=r"'use_paper_hparam'; did you mean use_paper_hparams\?"):
        load_config(file)


def test_setting_inside_a_policy_names_the_key() -> None:
    with pytest.raises(ValidationError) as error:
        settings_type("language").model_validate({"model": "m", "lora": {"r": 8}})
    message = explain_validation(error.value, settings_type("language"))
    assert message == "unknown key 'lora.r'; TRL's peft_config.r is policy.lora.rank"


def test_setting_that_may_be_a_typo_names_both_keys() -> None:
    with pytest.raises(ValidationError) as error:
        settings_type("language").model_validate({"model": "m", "adapters": "run"})
    message = explain_validation(error.value, settings_type("language"))
    assert message == "unknown key 'adapters'; did you mean adapter? ms-swift's adapters is policy.adapter"


def test_setting_inside_a_function_names_the_key_after_the_nearest_setting() -> None:
    config = validated({"objective": {"surrogate": {"name": "clipped", "low": 0.2, "high": 0.2, "epsilon": 0.2}}})
    with pytest.raises(
        ConfigError, match=r"clipped takes no 'epsilon'; .*[?;] TRL's epsilon is objective\.surrogate: "
    ):
        Algorithm.of(config)


@pytest.mark.parametrize("name", PEERS)
def test_tables_of_the_page_have_every_setting(name: str) -> None:
    table = peer_table(name)
    library = peer(name)
    assert all(f"\n| `{setting}` | `{text}` |" in table for setting, text in library.keys.items())
    assert all(f"\n| `{setting}` | {linked_pages(text)} |" in table for setting, text in library.replacements.items())
    assert "mmgrpo.github.io" not in table
    assert ("| `loss_type='dr_grpo'" in table) == (name == "trl")


@pytest.mark.parametrize("name", PEERS)
def test_runs_of_the_page_are_explained(name: str, tmp_path: Path) -> None:
    page = (CONFIGS.resolve().parent / f"docs/coming-from/{name}.md").read_text()
    for number, run in enumerate(re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)):
        (tmp_path / f"{number}.yaml").write_text(run)
        assert " samples a step" in explanation(load_config(tmp_path / f"{number}.yaml"))
