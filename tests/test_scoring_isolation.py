"""Rewards that change global state, that lack their column, or are written for flow_grpo."""

from __future__ import annotations

import inspect
import io
import os
import random
import re
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from mmgrpo.rewards.groups.pairs import PairwiseWinRate
from mmgrpo.rewards.groups.substitute_references import AcrossPromptTemplates, OverReference
from mmgrpo.rewards.groups.usefulness import WhereUseful
from mmgrpo.rewards.groups.verifiers import NoisyVerifier
from mmgrpo.rewards.images.textures import Color
from mmgrpo.rewards.text.answers import ExactMatch, YesNo
from mmgrpo.rewards.text.forecasts import Brier
from mmgrpo.rewards.text.lengths import StatedLength
from mmgrpo.rewards.text.quantities import MeanRelativeAccuracy, Number
from PIL import Image

from mmgrpo import Prompt, Sample, Trainer, build_rewards
from mmgrpo.config import RewardConfig
from mmgrpo.config.registry import names, resolve
from mmgrpo.errors import ConfigError, RewardError
from mmgrpo.scoring import NamedReward, Scorer, as_reward, named_rewards, score
from mmgrpo.scoring.required_columns import require_columns, require_references
from tests.policies.tiny_language import policy_of


def samples(count: int = 2) -> list[Sample]:
    return [Sample(Prompt("a"), 0, member, text="x") for member in range(count)]


class Unpleasant:
    """A reward whose constructor turns off gradients, as scripts of reward models do."""

    def __init__(self) -> None:
        torch.set_grad_enabled(False)

    def __call__(self, samples: Any) -> list[float]:
        return [1.0 for _ in samples]


class TestGlobalState:
    def test_settings_are_restored_and_the_reward_is_named(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        def rude(samples: Any) -> list[float]:
            torch.set_default_dtype(torch.float64)
            torch.set_grad_enabled(False)
            torch.use_deterministic_algorithms(True)
            os.chdir(tmp_path)
            raise ValueError("after its changes")

        directory = os.getcwd()
        score(samples(), [NamedReward("rude", rude)], max_failure_frac=1.0)
        assert torch.get_default_dtype() == torch.float32
        assert torch.is_grad_enabled()
        assert not torch.are_deterministic_algorithms_enabled()
        assert os.getcwd() == directory
        assert "reward 'rude' changed the default dtype from torch.float32 to torch.float64" in caplog.text

    def test_rewards_on_threads_restore_the_state_from_before_all_of_them(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Each starts while the other's change is in force, and the first to change is the first to end."""
        changed, entered = threading.Event(), threading.Event()

        def first(samples: Any) -> list[float]:
            torch.set_default_dtype(torch.float64)
            changed.set()
            entered.wait(5)
            return [0.0 for _ in samples]

        def second(samples: Any) -> list[float]:
            entered.set()
            until = time.monotonic() + 5
            while torch.get_default_dtype() == torch.float64 and time.monotonic() < until:
                time.sleep(0.01)
            return [0.0 for _ in samples]

        scorer = Scorer([NamedReward("first", first, concurrent=True)])
        pending = scorer.open(group_sizes={0: 2})
        pending.submit(samples())
        changed.wait(5)
        score(samples(), [NamedReward("second", second)])
        pending.collect(samples())
        assert torch.get_default_dtype() == torch.float32
        assert "first" in caplog.text

    def test_autocast_precision_and_numpy_errors_are_restored(self) -> None:
        def rude(samples: Any) -> list[float]:
            torch.autocast("cpu", dtype=torch.bfloat16).__enter__()
            torch.set_float32_matmul_precision("medium")
            torch.backends.cudnn.benchmark = True
            torch.set_default_device("meta")
            np.seterr(all="raise")
            return [0.0 for _ in samples]

        before = np.geterr()
        score(samples(), [NamedReward("rude", rude)])
        assert not torch.is_autocast_enabled("cpu")
        assert torch.get_float32_matmul_precision() == "highest"
        assert not torch.backends.cudnn.benchmark
        assert torch.ones(1).device.type == "cpu"
        assert np.geterr() == before

    def test_changes_while_building_a_reward_are_restored(self, caplog: pytest.LogCaptureFixture) -> None:
        (reward,) = build_rewards([RewardConfig.model_validate({"name": f"python:{__name__}:Unpleasant"})])
        assert torch.is_grad_enabled()
        assert "changed grad mode from True to False" in caplog.text
        assert score(samples(), [reward]).value_BR.flatten().tolist() == [1.0, 1.0]

    def test_a_reward_that_seeds_leaves_the_generators_of_the_run(self) -> None:
        def seeding(samples: Any) -> list[float]:
            torch.manual_seed(0)
            random.seed(0)
            np.random.seed(0)
            return [0.0 for _ in samples]

        def numbers() -> list[float]:
            return [float(torch.rand(())), random.random(), float(np.random.rand())]

        torch.manual_seed(7)
        random.seed(7)
        np.random.seed(7)
        expected = numbers()
        torch.manual_seed(7)
        random.seed(7)
        np.random.seed(7)
        score(samples(), [NamedReward("seeding", seeding)])
        assert numbers() == expected

    def test_random_numbers_of_a_reward_continue_from_call_to_call(self) -> None:
        scorer = Scorer([NamedReward("dice", lambda samples: [random.random() for _ in samples])])
        first, second = (scorer(samples()).value_BR.flatten().tolist() for _ in range(2))
        assert len({*first, *second}) == 4


class TestColumns:
    def rewards(self, **settings: Any) -> list[NamedReward]:
        return build_rewards([RewardConfig.model_validate(settings)])

    def test_a_column_of_no_row_is_an_error_that_names_one(self) -> None:
        prompts = [Prompt("a", columns={"answer": "1", "empty": None})]
        with pytest.raises(
            ConfigError, match=r"exact_match reads the column 'answr'.*columns are answer\..*column: answer"
        ):
            require_columns(self.rewards(name="exact_match", column="answr"), prompts, "prompts")
        with pytest.raises(ConfigError, match="reads the column 'empty'"):
            require_columns(self.rewards(name="exact_match", column="empty"), prompts, "prompts")
        require_columns(self.rewards(name="exact_match"), prompts, "prompts")

    def test_rewards_without_a_reference_need_no_column(self) -> None:
        prompts = [Prompt("a")]
        for settings in (
            {"name": "ocr_accuracy"},
            {"name": "format"},
            {"name": "color", "color": "red"},
            {"name": "motion", "direction": "left"},
            {"name": "motion", "measure": "magnitude"},
            {"name": "sound_length", "seconds": 2.0},
            {"name": "frame_mean", "of": {"name": "color", "color": "red"}},
            {"name": "across_prompt_templates", "of": {"name": "caption_score", "metric": "bleu"}},
        ):
            require_columns(self.rewards(**settings), prompts, "prompts")
        for settings in ({"name": "color"}, {"name": "motion", "measure": "direction"}, {"name": "sound_length"}):
            with pytest.raises(ConfigError, match="which no row of prompts has"):
                require_columns(self.rewards(**settings), prompts, "prompts")

    def test_required_columns_of_trl_functions_are_checked(self) -> None:
        def correct(completions: Any, solution: Any) -> list[float]:
            return [0.0 for _ in completions]

        with pytest.raises(ConfigError, match="reward correct reads the column 'solution'"):
            require_columns([NamedReward("correct", correct)], [Prompt("a", columns={"answer": 1})], "prompts")

    def test_column_of_a_custom_class_is_to_be_added(self) -> None:
        class Scaled:
            needs_columns = ("answr",)

            def __call__(self, samples: Any) -> list[float]:
                return [0.0 for _ in samples]

        fix = r"are answer\. Add the column to the rows \(prompts\.columns: \{answr: answer\} maps one\), or remove"
        with pytest.raises(ConfigError, match=fix):
            require_columns([NamedReward("scaled", Scaled())], [Prompt("a", columns={"answer": 1})], "prompts")

    def test_reward_objects_need_their_columns(self) -> None:
        needs = {
            ExactMatch(): ("answer",),
            Brier(): ("answer",),
            Brier(of=YesNo(column="truth")): ("truth",),
            StatedLength(8, judge={"name": "number", "column": "sum"}): ("sum",),
            AcrossPromptTemplates(ExactMatch()): (),
            Color(color="red"): (),
            NoisyVerifier(WhereUseful(ExactMatch(column="result"), marks=["think"])): ("result",),
            OverReference(Number(column="sum"), column="answer"): ("answer", "sum"),
            PairwiseWinRate(of=MeanRelativeAccuracy(column="sum")): ("sum",),
        }
        assert {reward: NamedReward("r", reward).needs_columns for reward in needs} == needs
        with pytest.raises(ConfigError, match="reward r reads the column 'result'"):
            require_columns(
                [NamedReward("r", NoisyVerifier(ExactMatch(column="result")))],
                [Prompt("a", columns={"answer": 1})],
                "prompts",
            )

    @pytest.mark.nightly
    def test_every_registered_reward_exposes_its_columns_and_inner_rewards(self) -> None:
        hidden = []
        for name in names("rewards"):
            target = resolve("rewards", name)
            if getattr(target, "needs_columns", None) is not None or not inspect.isclass(target):
                continue
            settings = {
                "column",
                "text_column",
                "of",
                "grade",
                "likelihood",
                *getattr(target, "in_place_of_columns", ()),
            }
            parameters = settings & inspect.signature(target).parameters.keys()
            code = inspect.getsource(target)
            hidden += [f"{name}.{setting}" for setting in sorted(parameters) if f"self.{setting}" not in code]
        assert hidden == []

    def test_references_of_wrapped_rewards_are_checked(self) -> None:
        prompts = [Prompt("a", columns={"answer": "yes"})]
        with pytest.raises(ConfigError, match="noisy_verifier cannot read 1 of 1 references in column 'answer'"):
            require_references(self.rewards(name="noisy_verifier", of={"name": "number"}), prompts, "prompts")
        with pytest.raises(ConfigError, match="reward r cannot read 1 of 1 references in column 'answer'"):
            require_references([NamedReward("r", StatedLength(8, judge="count"))], prompts, "prompts")

    @pytest.mark.parametrize(
        ("settings", "unreadable", "readable", "reason"),
        [
            ({"name": "yes_no"}, "maybe", "Yes.", "it is not yes, no, true, false or a bool"),
            ({"name": "classification"}, "...", "cat", "each with a word"),
            ({"name": "label_set", "labels": ["a", "b"]}, ["c"], ["a"], "a list of labels of LabelSet.labels"),
            ({"name": "exact_match"}, {"a": 1}, [7, "seven"], "it is not a text, a number, or a list of them"),
            ({"name": "edit_distance"}, "x" * 10_001, "x", "at most 10,000 characters"),
            ({"name": "multiple_choice"}, 1.5, "B", "a text, or the integer of an option"),
            ({"name": "brier"}, 1.5, True, "a bool or a number from 0 to 1"),
            ({"name": "first_error"}, "none", -1, "an integer of at least -1"),
            ({"name": "value_match"}, "no grid", "[[1, 2]]", "a list or an object with cells"),
            ({"name": "field_match"}, "[1]", {"a": 1}, "an object with keys"),
            ({"name": "table_similarity"}, "a | b", "<table><tr><td>a</td></tr></table>", "an HTML table"),
            ({"name": "number_list"}, "none", [1, 2], "a list of numbers"),
            ({"name": "tool_calls"}, "none", '{"name": "f", "arguments": {}}', "one or more tool calls"),
            ({"name": "ordering"}, ["a", "a"], ["a", "b"], "a list or a text of items"),
            ({"name": "box_iou"}, [10, 10, 10, 20], "[1, 2, 3, 4]", "exactly one box with an area"),
            ({"name": "detection"}, "a cat", "[]", "a list of boxes with an area, or an empty list"),
            ({"name": "point_in_box"}, [[1, 2, 3, 4], [5, 6, 7, 8]], [1, 2, 3, 4], "exactly one box"),
            ({"name": "average_precision"}, [3, 3, 1, 1], [{"bbox_2d": [1, 1, 3, 3], "label": "a"}], "a list of boxes"),
            ({"name": "temporal_iou"}, [5, 2], [2, 5], "the end after the start"),
            ({"name": "mask_iou"}, "a cat", [1, 2, 3, 4], "regions with an area"),
            ({"name": "trajectory"}, "a cat", [[1, 2], [3, 4]], "a list of points"),
            ({"name": "gui_action"}, "nothing", {"action": "click", "coordinate": [1, 2]}, "exactly one action"),
            ({"name": "code_tests", "column": "answer"}, "assert (", "assert f(1) == 2", "Python code"),
        ],
        ids=lambda value: value["name"] if isinstance(value, dict) and "name" in value else "-",
    )
    def test_references_are_checked_with_the_parser_of_the_reward(
        self, settings: dict[str, Any], unreadable: Any, readable: Any, reason: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        rewards = self.rewards(**settings)
        rows = [Prompt("a", columns={"answer": value}) for value in (unreadable, readable)]
        with pytest.raises(ConfigError, match=re.escape(reason)):
            require_references(rewards, rows[:1], "prompts")
        require_references(rewards, rows, "prompts")
        assert f"{settings['name']} cannot read 1 of 2 references" in caplog.text

    def test_rewards_of_a_few_rows_do_not_stop_the_run(self, caplog: pytest.LogCaptureFixture) -> None:
        rows = [Prompt("a", columns={"answer": "yes" if row == 301 else "maybe"}) for row in range(1000)]
        require_references(self.rewards(name="yes_no"), rows, "prompts")
        assert "yes_no cannot read 200 of 200 references" in caplog.text
        with pytest.raises(ConfigError, match="yes_no cannot read 200 of 200"):
            require_references(self.rewards(name="yes_no"), rows[302:], "prompts")

    def test_references_that_no_row_has_are_an_error_with_the_reason(self, caplog: pytest.LogCaptureFixture) -> None:
        prompts = [Prompt("a", columns={"answer": answer}) for answer in ("yes", r"\sqrt{2}")]
        with pytest.raises(
            ConfigError, match="number cannot read 2 of 2 references in column 'answer' of prompts, such as 'yes'"
        ):
            require_references(self.rewards(name="number"), prompts, "prompts")
        require_references(self.rewards(name="number"), [*prompts, Prompt("b", columns={"answer": 3.0})], "prompts")
        assert "number cannot read 2 of 3 references" in caplog.text
        require_references(self.rewards(name="exact_match"), prompts, "prompts")

    def test_math_verify_reads_its_references_before_the_run(self) -> None:
        pytest.importorskip("math_verify")
        rewards = self.rewards(name="math_verify", column="answer")
        with pytest.raises(ConfigError, match=r"math_verify cannot read 1 of 1 .* it cannot be parsed completely"):
            require_references(rewards, [Prompt("a", columns={"answer": "12 34"})], "prompts")
        require_references(rewards, [Prompt("a", columns={"answer": r"2 \sqrt { 221 }"})], "prompts")

    def test_a_trainer_raises_before_its_first_step(self, tmp_path: Path) -> None:
        config = {
            "about": {"name": "x"},
            "steps": 1,
            "rollout": {"prompts_per_step": 1, "group_size": 2},
            "runtime": {"device": "cpu"},
        }
        with pytest.raises(ConfigError, match="which no row of prompts has"):
            Trainer(policy_of("llama"), "exact_match", [{"prompt": "a", "label": "b"}], config)


def images(*values: int) -> list[Sample]:
    """Gray images of 4 x 2 pixels, and one of 2 x 2 at the end."""
    sizes = [(4, 2)] * (len(values) - 1) + [(2, 2)]
    made = [Image.new("RGB", size, (value,) * 3) for value, size in zip(values, sizes, strict=True)]
    prompts = [Prompt(f"p{i}", columns={"number": i}) for i in range(len(values))]
    return [Sample(prompts[i], i, 0, image=image) for i, image in enumerate(made)]


class TestFlowGrpoForm:
    def test_images_prompts_and_metadata(self) -> None:
        calls: list[Any] = []

        def brightness(images: torch.Tensor, prompts: list[str], metadata: list[dict[str, Any]]) -> Any:
            calls.append((tuple(images.shape), images.dtype, prompts, metadata))
            return images.mean(dim=(1, 2, 3)), {}

        values = as_reward(brightness)([*images(0, 255, 51), Sample(Prompt("t"), 9, 0, text="no image")])
        assert [None if value is None else round(float(value), 6) for value in values] == [0.0, 1.0, 0.2, None]
        assert calls == [
            ((2, 3, 2, 4), torch.float32, ["p0", "p1"], [{"number": 0}, {"number": 1}]),
            ((1, 3, 2, 2), torch.float32, ["p2"], [{"number": 2}]),
        ]

    def test_a_jpeg_reward_as_flow_grpo_writes_it(self) -> None:
        def size_kb(images: Any, prompts: Any, metadata: Any) -> Any:
            pixels = (images * 255).round().clamp(0, 255).to(torch.uint8).cpu().numpy().transpose(0, 2, 3, 1)
            buffers = [io.BytesIO() for _ in pixels]
            for array, buffer in zip(pixels, buffers, strict=True):
                Image.fromarray(array).save(buffer, format="JPEG", quality=95)
            return np.array([buffer.tell() / 1000 for buffer in buffers]), {}

        (sample,) = images(77)
        buffer = io.BytesIO()
        sample.image.save(buffer, format="JPEG", quality=95)  # type: ignore[union-attr]
        assert score([sample], [NamedReward("size", size_kb)]).value_BR.item() == pytest.approx(buffer.tell() / 1000)

    def test_dicts_of_scores_and_strictness(self) -> None:
        def several(images: Any, prompts: Any, metadatas: Any, only_strict: bool) -> Any:
            return {"a": [0.0] * len(images), "avg": [0.5 if only_strict else 0.0] * len(images)}, {}

        assert list(as_reward(several)(images(1))) == [0.5]

        def unnamed(images: Any, prompts: Any, metadata: Any) -> Any:
            return {"a": [0.0], "b": [0.0]}

        with pytest.raises(RewardError, match="scores under a, b; one of them must be named avg"):
            as_reward(unnamed)(images(1))

    def test_videos_are_five_dimensional(self) -> None:
        frames = [image.image for image in images(0, 255, 255)[:2]]
        shapes: list[Any] = []

        def motion(images: Any, prompts: Any, metadata: Any) -> Any:
            shapes.append(tuple(images.shape))
            return images[:, 1].mean(dim=(1, 2, 3)) - images[:, 0].mean(dim=(1, 2, 3))

        assert list(as_reward(motion)([Sample(Prompt("a"), 0, 0, video=frames)])) == [1.0]  # pyrefly: ignore[bad-argument-type]
        assert shapes == [(1, 2, 3, 2, 4)]

    def test_partials_keywords_and_modules_are_in_the_form(self) -> None:
        def scaled(scale: float, images: Any, prompts: Any, metadata: Any) -> Any:
            return [scale * len(prompts) for _ in images], {}

        def by_keyword(*, images: Any, prompts: Any, metadata: Any) -> Any:
            return [float(len(prompts)) for _ in images]

        class Module(torch.nn.Module):
            def forward(self, images: Any, prompts: Any, metadata: Any) -> Any:
                return images.mean(dim=(1, 2, 3))

        sample = Sample(Prompt("a"), 0, 0, image=Image.new("RGB", (8, 8), "white"))
        functions = [partial(scaled, 3.0), partial(scaled, scale=2.0), by_keyword, Module()]
        assert [as_reward(function)([sample])[0] for function in functions] == [3.0, 2.0, 1.0, 1.0]
        (named,) = named_rewards([functions[0]])
        assert named.name == "scaled"

    def test_arguments_that_no_caller_gives_are_an_error(self) -> None:
        def scored(images: Any, prompts: Any, metadata: Any, reference: Any) -> Any:
            return []

        with pytest.raises(ConfigError, match=r"scored has flow_grpo's form .* also requires reference"):
            as_reward(scored)


def test_a_reward_of_the_user_is_logged_under_the_name_of_its_function() -> None:
    assert RewardConfig(name="python:my_rewards:accuracy_reward").logged_name == "accuracy_reward"
    assert RewardConfig(name="python:my_rewards:accuracy_reward", label="right").logged_name == "right"
    assert RewardConfig(name="exact_match").logged_name == "exact_match"
