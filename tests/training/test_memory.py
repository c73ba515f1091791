from __future__ import annotations

import io

import pytest
import torch
from PIL import Image

from mmgrpo.data.replies import plain_reply, reply_of
from mmgrpo.environment import Turn
from mmgrpo.errors import CheckpointError, ConfigError
from mmgrpo.maths.columns import COLUMNS, column_of
from mmgrpo.maths.strategies.replay_order import replayed
from mmgrpo.memory import Column, Memory, ReplayRow
from mmgrpo.training.prompt_stats import PromptStats, outcomes_of, update_prompt_stats
from mmgrpo.types import Audio

ALL = Memory().declared(COLUMNS.values())


def facts(step: int, rewards: dict[str, list[float | None]]) -> PromptStats:
    rows = [(key, reward) for key, many in rewards.items() for reward in many]
    return PromptStats(
        keys=[key for key, _ in rows],
        reward_B=torch.tensor([reward or 0.0 for _, reward in rows]),
        valid_B=torch.tensor([reward is not None for _, reward in rows]),
        step=step,
    )


def row(key: str, step: int, reward: float = 0.0) -> ReplayRow:
    return ReplayRow(key=key, reward=reward, advantage=0.0, step=step, text=f"{key}{step}")


def through_file(state: object) -> object:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


class TestColumns:
    def test_numbers_of_two_steps(self) -> None:
        memory = update_prompt_stats(ALL, facts(3, {"a": [1, 1, 0, None], "b": [1, 1], "c": [None, None]}))
        memory = update_prompt_stats(memory, facts(5, {"b": [1, 1], "a": [0, 0, 0, 0]}))
        keys = ["a", "b", "c"]

        def read(name: str) -> list[float]:
            return memory.read(name, keys).tolist()

        assert read("visits") == [2, 2, 1]  # c was sampled, and has no score
        assert read("num_samples") == [7, 4, 0]
        assert read("reward_sum") == [2, 4, 0]
        assert read("reward_square_sum") == [2, 4, 0]
        assert read("last_rate") == [0, 1, 0]
        assert read("last_step") == [5, 5, 3]
        assert read("right_streak") == [0, 2, 0]  # a: 2/3 is neither right nor wrong; 0 is wrong
        assert read("wrong_streak") == [1, 0, 0]
        # a: 0.875 (0.875 / 2 + 0.125 * 2/3) + 0 = 175/384; b: 0.5 -> 0.5625 -> 0.6171875; c has no reward
        assert read("value") == pytest.approx([175 / 384, 0.6171875, 0.5], abs=1e-15)

    def test_groups_of_one_prompt_are_one_visit(self) -> None:
        outcomes = outcomes_of(facts(0, {"a": [1, 0], "b": [1]}))
        twice = outcomes_of(
            PromptStats(keys=["a", "b", "a"], reward_B=torch.tensor([1.0, 1, 0]), valid_B=torch.ones(3).bool(), step=0)
        )
        assert outcomes.keys == twice.keys == ("a", "b")
        assert outcomes.rate_K.tolist() == twice.rate_K.tolist() == [0.5, 1]

    def test_other_numbers_of_a_rule(self) -> None:
        memory = Memory().declared([column_of("right_streak", {"right": 0.5})])
        assert update_prompt_stats(memory, facts(0, {"a": [1, 0]})).read("right_streak", ["a"]).tolist() == [1]
        with pytest.raises(ConfigError, match="declared twice"):
            memory.declared([COLUMNS["right_streak"]])
        assert memory.declared([column_of("right_streak", {"right": 0.5})]) == memory
        with pytest.raises(ConfigError, match="known are visits"):
            column_of("visit")

    def test_an_empty_memory_stays_itself(self) -> None:
        memory = Memory()
        assert update_prompt_stats(memory, facts(0, {"a": [1.0]})) is memory

    def test_a_column_written_by_its_owner(self) -> None:
        column = Column("temperature", default=1.0)
        memory = Memory().declared([column])
        changed = memory.write("temperature", ["b"], torch.tensor([0.7], dtype=torch.float64))
        assert changed.read("temperature", ["a", "b"]).tolist() == [1.0, 0.7]
        assert memory.read("temperature", ["a", "b"]).tolist() == [1.0, 1.0]
        with pytest.raises(ConfigError, match="no part of the run declares the column 'visits'"):
            memory.read("visits", ["a"])


class TestReplay:
    def test_oldest_go_first(self) -> None:
        memory = Memory().with_replay([row("a", 0), row("a", 1), row("b", 1), row("a", 2)], per_prompt=2, total=9)
        assert [row.step for row in memory.replay["a"]] == [1, 2]
        # of b1, a1, a2 and b3, with room for 3, a1 is as old as b1 and came first
        memory = memory.with_replay([row("b", 3)], per_prompt=2, total=3)
        assert {key: [row.step for row in state] for key, state in memory.replay.items()} == {"a": [2], "b": [1, 3]}
        memory = memory.with_replay([row("c", 4), row("c", 5)], per_prompt=2, total=2)
        assert {key: [row.step for row in state] for key, state in memory.replay.items()} == {"c": [4, 5]}

    def test_strategies(self) -> None:
        rewards = [0.0, 1.0, 0.6, 0.1, 0.9]
        memory = Memory().with_replay([row("a", step, r) for step, r in enumerate(rewards)], per_prompt=9, total=9)

        def steps(strategy: str, num: int) -> list[int]:
            return [row.step for row in replayed(memory, "a", num, strategy)]

        assert steps("recency", 2) == [4, 3]
        assert steps("reward", 2) == [1, 4]
        # squared differences of {1, .9, 0}: .01 + 1 + .81 = 1.82; of {1, .6, 0}: .16 + 1 + .36 = 1.52; of
        # {1, .1, 0}: 1.82 too, and of equals the one with more of the highest is taken
        assert steps("variance", 2) == [1, 0]
        assert steps("variance", 3) == [1, 4, 0]
        assert steps("variance", 4) == [1, 4, 3, 0]
        assert steps("variance", 0) == []
        assert steps("full", 1) == [4, 3, 2, 1, 0]
        assert [row.step for row in replayed(memory, "a", 9, "recency", at_least=0.6)] == [4, 2, 1]
        assert replayed(memory, "a", 9, "recency", least=4, at_least=0.6) == []
        assert replayed(memory, "nobody", 2, "recency") == []
        with pytest.raises(ConfigError, match="choose from recency"):
            replayed(memory, "a", 1, "recent")

    def test_the_surest_row_is_the_likeliest_per_token(self) -> None:
        likely, long, unlikely = (
            ReplayRow(key="a", old_logprob_T=torch.tensor(logprob_T), reward=1.0, advantage=0.0, step=step)
            for step, logprob_T in enumerate(([-0.5], [-0.2] * 4, [-0.1, -3.0]))
        )
        unknown = ReplayRow(key="a", reward=1.0, advantage=0.0, step=3)
        memory = Memory().with_replay([unlikely, unknown, likely, long], per_prompt=9, total=9)
        assert [row.step for row in replayed(memory, "a", 9, "surest")] == [1, 0, 2, 3]


TURN_WITH_IMAGE = Turn(
    text="look",
    role="tool",
    images=[Image.new("RGB", (3, 2), "red")],
    videos=[[Image.new("RGB", (2, 2), color) for color in ("blue", "green")]],
    audios=[Audio(torch.linspace(-1, 1, 8)[None], 16000)],
)


class TestCheckpoint:
    def test_restored_is_the_same(self) -> None:
        memory = update_prompt_stats(ALL, facts(0, {"a": [1.0, 0.0], "b": [0.3]})).with_state("kl", {"value": 0.1})
        replay_row = ReplayRow(
            key="b",
            tokens=torch.tensor([3, 4]),
            old_logprob_T=torch.tensor([-0.1, -2.0]),
            reward=1,
            advantage=0.5,
            step=2,
            num_forced=1,
            turns={"turn_ends": [2], "turn_rewards": [None], "turn_keys": ["a"]},
            replies=[plain_reply(TURN_WITH_IMAGE), None],
        )
        memory = memory.with_replay([replay_row, row("a", 3)], per_prompt=2, total=4)
        again = ALL.restored(through_file(memory.state_dict()))  # type: ignore[arg-type]
        for name in COLUMNS:
            assert torch.equal(again.read(name, ["a", "b", "c"]), memory.read(name, ["a", "b", "c"]))
        assert again.states == memory.states
        assert again.replay["a"] == memory.replay["a"]
        (state,) = again.replay["b"]
        assert (state.num_forced, state.turns) == (1, replay_row.turns)
        assert state.replies[1] is None
        reply = reply_of(state.replies[0])
        assert reply is not None
        assert (reply.text, reply.role) == ("look", "tool")
        assert reply.images[0].tobytes() == TURN_WITH_IMAGE.images[0].tobytes()
        assert [frame.tobytes() for frame in reply.videos[0]] == [
            frame.tobytes() for frame in TURN_WITH_IMAGE.videos[0]
        ]
        assert torch.equal(reply.audios[0].values, TURN_WITH_IMAGE.audios[0].values)
        assert plain_reply(Turn(text="no media")) is None
        assert state.old_logprob_T is not None
        assert state.old_logprob_T.tolist() == torch.tensor([-0.1, -2.0]).tolist()
        later = facts(4, {"c": [1.0], "b": [0.0]})
        assert (
            update_prompt_stats(again, later).numbers["value"].tolist()
            == update_prompt_stats(memory, later).numbers["value"].tolist()
        )

    def test_added_and_removed_columns(self) -> None:
        state = update_prompt_stats(ALL, facts(0, {"a": [1.0]})).state_dict()
        fewer = Memory().declared([COLUMNS["visits"], Column("hint_share", default=0.5)]).restored(state)
        assert fewer.read("visits", ["a"]).tolist() == [1]
        assert fewer.read("hint_share", ["a"]).tolist() == [0.5]
        with pytest.raises(CheckpointError, match="'visits'"):
            Memory().declared([Column("visits", "float64")]).restored(state)

    def test_a_checkpoint_without_one(self) -> None:
        assert ALL.restored(None) is ALL
