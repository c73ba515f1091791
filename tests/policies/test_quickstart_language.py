"""The models of the quickstarts of tokens read their prompts, write their answers and load as they were saved."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from mmgrpo.examples import tiny_digits
from mmgrpo.examples.arithmetic import careless_sums, held_out_sums
from mmgrpo.examples.digits import digit_questions, held_out_digit_questions, misread_digits
from mmgrpo.examples.language_models import arithmetic_lm, digits_vlm, zoom_vlm
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText, AutoProcessor, AutoTokenizer
from typer.testing import CliRunner

from mmgrpo.cli import app
from mmgrpo.config.loading import load_config
from mmgrpo.scoring import score
from mmgrpo.training.build import build_rewards
from mmgrpo.types import Sample, Score

QUESTION = (
    "<|im_start|> user <|vision_start|> {} <|vision_end|> which digit is shown ? <|im_end|> <|im_start|> assistant"
)


def encoded(processor: Any, images: list[Any]) -> Any:
    turn = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": digit_questions()[0].text}]}]
    text = processor.apply_chat_template(turn, add_generation_prompt=True, tokenize=False)
    return processor(text=[text] * len(images), images=[[image] for image in images], return_tensors="pt")


def member_number(samples: Sequence[Sample]) -> list[float | Score | None]:
    """A reward that differs within each group."""
    return [float(sample.member) for sample in samples]


def test_a_digit_is_four_tokens_of_sixteen_patches() -> None:
    _, processor = digits_vlm()
    inputs = encoded(processor, [digit_questions()[0].images[0].convert("RGB")])
    assert processor.tokenizer.decode(inputs["input_ids"][0]) == QUESTION.format(" ".join(["<|image_pad|>"] * 4))
    assert inputs["image_grid_thw"].tolist() == [[1, 4, 4]]


@pytest.mark.parametrize(("build", "expected"), [(digits_vlm, 532_224), (arithmetic_lm, 331_648)])
def test_builds_are_small_and_follow_from_their_seed(build: Any, expected: int) -> None:
    state = torch.get_rng_state()
    first, second, other = (build(seed)[0] for seed in (0, 0, 1))
    assert torch.equal(torch.get_rng_state(), state)
    assert sum(parameter.numel() for parameter in first.parameters()) == expected
    assert torch.equal(first.lm_head.weight, second.lm_head.weight)
    assert not torch.equal(first.lm_head.weight, other.lm_head.weight)


@pytest.mark.nightly
def test_every_answer_survives_its_tokenizer() -> None:
    """None of a text becomes an unknown word, and what is decoded is graded as what was written."""
    reader, zoomer, adder = digits_vlm()[1].tokenizer, zoom_vlm()[1].tokenizer, arithmetic_lm()[1]
    for tokenizer, examples in ((reader, misread_digits()), (adder, careless_sums()), (zoomer, tiny_digits.examples())):
        for example in examples[:500]:
            decoded = tokenizer.convert_tokens_to_string(tokenizer.tokenize(example.text or ""))
            assert decoded.replace(" ", "") == (example.text or "").replace(" ", "")
    assert adder.decode(adder.encode("34+58=92")) == "34+58=92"
    assert reader.unk_token_id not in reader.encode(digit_questions()[0].text)
    assert zoomer.unk_token_id not in zoomer.encode(tiny_digits.questions()[0].text)


@pytest.mark.parametrize(
    ("name", "right", "wrong", "totals"),
    [
        ("digits-vlm", "<answer> {} </answer>", "{}", (1.2, 0.0)),
        ("arithmetic-text", "{}", "{}0", (1.0, 0.0)),
    ],
)
def test_rewards_of_the_configuration(name: str, right: str, wrong: str, totals: tuple[float, float]) -> None:
    prompt = (held_out_digit_questions() if name == "digits-vlm" else held_out_sums())[0]
    texts = [form.format(prompt.columns["answer"]) for form in (right, wrong)]
    samples = [Sample(prompt, group=0, member=member, text=text) for member, text in enumerate(texts)]
    rewards = build_rewards(load_config(f"quickstart/{name}").rewards)
    scores = score(samples, rewards)
    assert scores.valid_BR.all()
    assert (scores.value_BR @ scores.weight_R).tolist() == pytest.approx(totals)


def test_saved_models_load_as_they_were(tmp_path: Path) -> None:
    inputs = encoded(digits_vlm()[1], [digit_questions()[0].images[0].convert("RGB")])
    numbers = arithmetic_lm()[1]([held_out_sums()[0].text], return_tensors="pt")
    for build, model_class, reader, batch in (
        (digits_vlm, AutoModelForImageTextToText, AutoProcessor, inputs),
        (arithmetic_lm, AutoModelForCausalLM, AutoTokenizer, numbers),
    ):
        folder = tmp_path / build.__name__
        model, processor = build()
        model.save_pretrained(folder)
        processor.save_pretrained(folder)
        loaded: Any = model_class.from_pretrained(folder)
        again: Any = reader.from_pretrained(folder)
        assert again.decode(batch["input_ids"][0]) == processor.decode(batch["input_ids"][0])
        with torch.no_grad():
            assert torch.equal(model.eval()(**batch).logits, loaded.eval()(**batch).logits)


@pytest.mark.nightly
@pytest.mark.parametrize(
    "name",
    [
        *("digits-vlm", "arithmetic-text", "calculator-tool"),
        *(pytest.param(name, marks=pytest.mark.nightly) for name in ("zoom-vlm", "digits-tokens")),
    ],
)
def test_the_quickstart_runs(name: str, tmp_path: Path) -> None:
    """With one more reward, since untrained models are wrong everywhere, and rows of equal rewards are not scored."""
    rewards = [reward.model_dump(exclude_unset=True) for reward in load_config(f"quickstart/{name}").rewards]
    unequal = {"name": f"python:{__name__}:member_number", "label": "member_number"}
    small = ["update.warmup.steps=3", "steps=2", "rollout.prompts_per_step=4", "evaluation.prompts.limit=8"]
    folder = trained(name, [*small, f"rewards={json.dumps([*rewards, unequal])}", f"output={tmp_path}"])
    assert all(line["policy/on_policy_gap"] < 1e-4 for line in lines(folder / "metrics.jsonl"))
    assert [line["step"] for line in lines(folder / "evaluation.jsonl")] == [0, 2]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        *((name, 0.65, 0.90) for name in ("digits-vlm", "arithmetic-text", "calculator-tool", "digits-tokens")),
        ("zoom-vlm", 0.20, 0.85),
    ],
)
def test_the_quickstart_learns(name: str, before: float, after: float, tmp_path: Path) -> None:
    accuracies = [
        line["eval/held_out_accuracy/mean"]
        for line in lines(trained(name, [f"output={tmp_path}"]) / "evaluation.jsonl")
    ]
    assert accuracies[0] <= before
    assert accuracies[-1] >= after


def trained(name: str, overrides: list[str]) -> Path:
    result = CliRunner().invoke(app, ["train", f"quickstart/{name}", *overrides])
    assert result.exit_code == 0, result.output
    return Path(overrides[-1].removeprefix("output=")) / name


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]
