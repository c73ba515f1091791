"""Runs of papers with an environment train a tiny language model on conversations."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mmgrpo.config.loading import load_config
from mmgrpo.samples import ToolResult
from mmgrpo.scoring import NamedReward, score
from mmgrpo.scoring.shaping import shape_scores
from mmgrpo.training.build import build_rewards
from mmgrpo.training.trainer import Trainer
from mmgrpo.types import Prompt, Sample
from tests.configs.language_models import CRITIC
from tests.environments.test_search import CITIES, written
from tests.policies.test_language_exchanges import terse
from tests.policies.tiny_language import picture, prompts_of
from tests.rewards.endpoint import Server
from tests.rewards.sandboxed import needs_sandbox
from tests.rewards.written import conversation
from tests.running import running

pytestmark = needs_sandbox

SMALL: Mapping[str, Any] = {
    "steps": 2,
    "rollout.prompts_per_step": 2,
    "rollout.group_size": 4,
    "rollout.max_turns": 2,
    "update.minibatches": 1,
    "update.optimizer.lr": 1e-3,
    "runtime.device": "cpu",
    "advantage.zero_variance_groups": "keep",
}


TABLE = "create table t (a integer, b integer); insert into t values (1, 2), (3, 4);"


def environment_of(name: str) -> tuple[str, dict[str, Any]]:
    """The name and the settings of a run's environment."""
    environment = load_config(f"papers/{name}").rollout.environment
    assert environment is not None
    return environment.name, dict(environment.settings)


def as_shipped(name: str, folder: Path, url: str) -> dict[str, Any]:
    return {}


def local_search(name: str, folder: Path, url: str) -> dict[str, Any]:
    """A run with a corpus in the folder."""
    kind, numbers = environment_of(name)
    corpus = str(written(folder / "cities.jsonl", CITIES))
    if kind == "combined":
        search, *others = numbers["parts"]
        numbers["parts"] = [{**search, "corpus": corpus}, *others]
    else:
        numbers = {key: value for key, value in numbers.items() if key != "url"} | {"corpus": corpus}
    return {"rollout.environment": {"name": kind, **numbers}}


def in_memory(name: str, folder: Path, url: str) -> dict[str, Any]:
    """A run with a database that the row creates."""
    config = load_config(f"papers/{name}")
    kind, numbers = environment_of(name)
    rewards = [reward.model_dump(exclude_unset=True) for reward in config.rewards]
    return {
        "rollout.environment": {"name": kind, **{key: value for key, value in numbers.items() if key != "database"}},
        "rewards": [{key: value for key, value in reward.items() if key != "database"} for reward in rewards],
    }


def simulated(name: str, folder: Path, url: str) -> dict[str, Any]:
    """A run with a model at a server."""
    kind, numbers = environment_of(name)
    if kind == "combined":
        factory = "python:tests.environments.test_combined:Orders"
        parts = [{"name": "tool_object", "factory": factory}]
        numbers |= {"parts": parts, "partner": {**numbers["partner"], "url": url}}
    else:
        numbers["url"] = url
    return {"rollout.environment": {"name": kind, **numbers}}


def without_models(name: str, folder: Path, url: str) -> dict[str, Any]:
    """A run without rewards by models."""
    rewards = [reward.model_dump(exclude_unset=True) for reward in load_config(f"papers/{name}").rewards]
    return {"rewards": [reward for reward in rewards if "model" not in reward]}


def served(name: str, folder: Path, url: str) -> dict[str, Any]:
    """A run with a judge at a server, and the tools of a shop in place of a module of the user."""
    rewards = [reward.model_dump(exclude_unset=True) for reward in load_config(f"papers/{name}").rewards]
    changes: dict[str, Any] = {
        "rewards": [{**reward, "endpoint": {"url": url}} if "endpoint" in reward else reward for reward in rewards]
    }
    if load_config(f"papers/{name}").rollout.environment is not None:
        shop = {"name": "tool_object", "factory": "python:tests.environments.test_combined:Orders"}
        changes["rollout.environment"] = shop
    return changes


def frozen_lake(name: str, folder: Path, url: str) -> dict[str, Any]:
    """A run with a game of gymnasium in place of the user's, and a critic of the tiny model."""
    game = {"name": "gymnasium", "game": "FrozenLake-v1", "settings": {"render_mode": "ansi"}}
    return {"rollout.environment": game, "advantage.critic.policy": CRITIC}


Columns = Mapping[str, Any]
CALLS = [{"name": "cancel", "arguments": {"order": "7"}}]
QUERY: Columns = {"query": "select a from t", "db_id": "t", "schema": TABLE}
ORDER: Columns = {"task": "Cancel order 7.", "calls": CALLS}
DOOR: Columns = {"task": "Open the door.", "experiences": "A key opens it."}

RUNS: Mapping[str, tuple[Callable[[str, Path, str], dict[str, Any]], Columns, Columns]] = {
    "tapo": (local_search, {"answer": "7", "fact": "Oslo"}, {"value": 0.5, "estimate": 200}),
    "veri-r1": (local_search, {"answer": "SUPPORT", "evidence": ["Oslo"]}, {"answer": "REFUTE", "evidence": []}),
    "reex-sql": (in_memory, QUERY, QUERY),
    "cove": (simulated, ORDER, ORDER),
    "dreamgym": (simulated, DOOR, DOOR),
    "cosineverifier": (as_shipped, {"answer": "correct"}, {"answer": "incorrect"}),
    "datarus-r1": (without_models, {}, {}),
    "meow-tea-taro": (frozen_lake, {"seed": 1}, {"seed": 2}),
    "smartsnap": (served, {"task": "Cancel order 7."}, {"task": "Cancel order 7."}),
    "mobile-r1": (served, {}, {}),
    "meta-bandit-llm-training": (as_shipped, {"seed": 1}, {"seed": 2}),
}
"""The changes of each run and the columns of its two rows."""

VISION = "qwen2.5-vl"
SHOPS = ("cove", "smartsnap", "mobile-r1")
"""Runs in a shop that shows an image."""

REPLY = "I see. <reward>1</reward>"


@pytest.mark.nightly
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == "tapo" else pytest.mark.nightly) for name in RUNS]
)
def test_run_trains_on_conversations(name: str, tmp_path: Path) -> None:
    changes, *columns = RUNS[name]
    model = VISION if name in SHOPS else "llama"
    train(name, model, prompts_of(model), changes, columns, tmp_path)


CHART = {"question": "How many?", "answer": "7", "tools": ["7 bars", None]}
FRAMES = {"answer": "A", "frames": {"scores": [1, 4], "fps": 1, "start": 0, "visible": [0, 1]}}


@pytest.mark.nightly
def test_vista_trains_on_choices_of_tools(tmp_path: Path) -> None:
    train("vista", VISION, prompts_of(VISION), served, [CHART] * 2, tmp_path)


def with_zoom(name: str, folder: Path, url: str) -> dict[str, Any]:
    """A run with its judges at a server, and a tool whose signature is not in the prompt, which is too short for it."""
    zoom = {"name": "image_tools", "tools": ["zoom"], "describe": False}
    return {**served(name, folder, url), "rollout.environment": zoom}


@pytest.mark.nightly
def test_codev_trains_on_conversations_about_images(tmp_path: Path) -> None:
    prompts = [replace(prompt, images=[picture(56, 56, seed=seed)]) for seed, prompt in enumerate(prompts_of(VISION))]
    train("codev", VISION, prompts, with_zoom, [{"answer": "7"}] * 2, tmp_path)


@pytest.mark.nightly
def test_conan_trains_on_conversations_about_videos(tmp_path: Path) -> None:
    prompts = [
        Prompt("what is shown", videos=[[picture(56, 56, seed=seed) for seed in seeds]]) for seeds in ((0, 1), (2, 3))
    ]
    train("conan", VISION, prompts, as_shipped, [FRAMES] * 2, tmp_path)


def train(
    name: str,
    model: str,
    prompts: Sequence[Prompt],
    changes: Callable[[str, Path, str], dict[str, Any]],
    columns: Sequence[Columns],
    tmp_path: Path,
) -> None:
    """Trains a tiny model on a run of a paper for two steps; a further reward differs within every group."""
    prompts = [replace(prompt, columns=row) for prompt, row in zip(prompts, columns, strict=True)]
    with running(Server(says=lambda text: REPLY, first=lambda text: {"yes": 0.75, "no": 0.25})) as server:
        settings = {**SMALL, **changes(name, tmp_path, server.url), "output": str(tmp_path / "run")}
        config = load_config(f"papers/{name}", settings)
        policy = terse(model, max_new_tokens=80)
        rewards = [*build_rewards(config.rewards), NamedReward("member", by_member)]
        folder = Trainer(policy, rewards, prompts, config).train()
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert {line["step"] for line in lines} == {1, 2}
    for line in lines:
        assert line["policy/on_policy_gap"] < 1e-5
        assert 0 < line["optimizer/grad_norm"] < float("inf")
        assert not any(value for key, value in line.items() if "failed" in key), line


def by_member(samples: Sequence[Sample]) -> list[float]:
    """A different reward for each sample of a group."""
    return [float(sample.member) for sample in samples]


def total(name: str, changes: Mapping[str, Any], sample: Sample) -> float:
    """The weighted sum of a run's rewards for a sample at the first step."""
    rewards = build_rewards(load_config(f"papers/{name}", dict(changes)).rewards)
    scores = shape_scores(score([sample], rewards), rewards, 0)[0]
    return float((scores.value_BR * scores.weight_R).where(scores.valid_BR, 0.0).sum())


@pytest.mark.nightly
def test_a_right_query_after_one_that_explores_earns_all_weights_of_reex_sql(tmp_path: Path) -> None:
    """The form 2, the rows 3, the words 1, the columns 1 and the exploration 2; a failed query explores nothing."""
    row = {"query": "select a from t", "db_id": "t", "schema": TABLE}
    changes = in_memory("reex-sql", tmp_path, "")
    look = "<think>so</think><intermediate_sql>select * from t</intermediate_sql>"
    rows = [ToolResult("query", "<result>\na | b\n1 | 2\n</result>")]
    failed = [ToolResult("query", "<result>\nError: no such column\n</result>")]

    def earned(query: str, results: Sequence[ToolResult], form: str = "<think>so</think>") -> float:
        turns = [look, f"{form}<answer>{query}</answer>"]
        return total("reex-sql", changes, conversation(row, turns, [results]))

    assert earned("select a from t", rows) == pytest.approx(9)
    assert earned("select a from t", failed) == pytest.approx(7)
    assert earned("select a from t where b > 0", rows) == pytest.approx(2 + 3 + 0.5 + 2)  # the same rows, a and b
    assert earned("select b from t", rows, "so ") == pytest.approx(2)


def test_required_calls_without_redundant_ones_score_1_in_cove() -> None:
    def earned(*calls: ToolResult) -> float:
        return total("cove", {}, conversation({"calls": CALLS}, ["a", "b"], [calls]))

    right = ToolResult("cancel", "done", arguments={"order": "7"})
    assert earned(right, ToolResult("look_up", "7", arguments={"user": "a"})) == 1
    assert earned(right, right) == 0
    assert earned(ToolResult("cancel", "done", arguments={"order": "8"})) == 0
    assert earned(replace(right, failed=True)) == 0


def test_answer_form_and_mean_of_the_calls_count_in_codev() -> None:
    """Right 1, in form 0.3, and half of the mean of 1 and 0.25 for two calls, one of which failed in the other case."""
    zoomed, other = ToolResult("zoom", "cat"), ToolResult("zoom", "dog", arguments={"box": [1]})
    failed = ToolResult("zoom", "", failed=True)

    def reply(text: str) -> str:
        return "yes" if "Does the response" in text else f"Score: {0.25 if 'box' in text else 1}"

    def likely(text: str) -> dict[str, float]:
        return {"yes": 0.9, "no": 0.1}

    with running(Server(says=reply, first=likely)) as server:
        changes = with_zoom("codev", Path(), server.url)

        def earned(*calls: ToolResult, answer: str = "<answer>7</answer>") -> float:
            results = [calls] if calls else []
            return total(
                "codev", changes, conversation({"answer": "7"}, ["look", answer][-1 - len(results) :], results)
            )

        assert earned(zoomed, other) == pytest.approx(0.9 + 0.3 + 0.5 * 0.625)
        assert earned(zoomed, failed) == pytest.approx(0.9 + 0.3 + 0.5 * 0.5)
        assert earned() == pytest.approx(0.9 + 0.3)
        assert earned(zoomed, answer="7") == pytest.approx(0.5)


def test_task_and_thoughts_count_in_mobile_r1() -> None:
    """P(done) 0.9, and 1 for thoughts in every turn."""
    with running(Server(first=lambda text: {"yes": 0.9, "no": 0.1} if "order 7" in text else {"no": 1.0})) as server:
        changes = served("mobile-r1", Path(), server.url)

        def earned(*turns: str) -> float:
            return total("mobile-r1", changes, conversation({}, turns))

        assert earned("<think>a</think> order 7", "<think>b</think> done") == pytest.approx(1.9)
        assert earned("<think>a</think> order 7", "done") == pytest.approx(0.9)
        assert earned("<think>a</think> order 8") == pytest.approx(1.0)


def test_weight_moves_from_structure_to_reward_models_in_datarus_r1() -> None:
    """Half a cosine from 1 to 0.2: 0.6 at half the steps; the reward models' is the reverse."""
    rewards = build_rewards(load_config("papers/datarus-r1").rewards)
    sample = conversation({}, ["<thought>a</thought>```python\n1\n```", "<thought>b</thought><answer>c</answer>"])
    structure = rewards[0]
    assert [structure.schedule and structure.schedule(step) for step in (0, 500, 1000)] == pytest.approx([1, 0.6, 0.2])
    assert [rewards[2].schedule and rewards[2].schedule(step) for step in (0, 500)] == pytest.approx([0.2, 0.6])
    assert score([sample, conversation({}, ["<answer>c</answer>"])], rewards[:1]).value_BR[:, 0].tolist() == [1, 0]
