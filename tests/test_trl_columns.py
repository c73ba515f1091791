"""``mmgrpo init --from trl``: columns that a script gives to its rows become ``prompts.columns``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from datasets import Dataset
from trl.scripts import grpo

from mmgrpo.config.loading import load_config
from mmgrpo.data.prompt_loading import load_prompts_of
from mmgrpo.trl.conversion import converted
from mmgrpo.trl.expressions import shortened

SYSTEM = "Think first, {then} answer."
ROWS = [
    {"problem": "1 + 1", "solution": "2", "meta": {"level": [3, 4]}, "prompt": "old"},
    {"problem": 'a "text" of {braces}', "solution": "\n", "meta": {"level": [5, 6]}, "prompt": "older"},
]
NESTED = """
def make_conversation(example):
    \"\"\"As in TRL's scripts.\"\"\"
    prompt = [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": example["problem"]},
    ]
    return {"prompt": prompt, "answer": example["solution"]}
"""
ASSIGNED = """
def make(row):
    row["prompt"] = f"Solve {row['problem']} {{now}}."
    row["answer"] = row["prompt"] + "\\n" + row["solution"]
    return row
"""
PARTS = """
def make(row):
    text = {"type": "text", "text": row["problem"] + "!"}
    return {**row, "prompt": [{"role": "user", "content": [{"type": "image"}, text]}]}
"""


def script(functions: str, operations: str) -> str:
    return (
        f"{functions}\nrows = load_dataset('json', data_files='rows.jsonl', split='train')\nrows = rows{operations}\n"
        "GRPOTrainer(model='m', train_dataset=rows, args=GRPOConfig(max_steps=1))"
    )


def text_of(prompt: Any) -> tuple[str | None, str]:
    """The system turn and the text of a prompt of ``datasets``."""
    if isinstance(prompt, str):
        return None, prompt
    *system, user = prompt
    content = user["content"]
    text = content if isinstance(content, str) else content[-1]["text"]
    return (system[0]["content"] if system else None), text


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Dataset.from_list(ROWS).to_json("rows.jsonl")
    return tmp_path


@pytest.mark.parametrize(
    ("functions", "operations", "chat"),
    [
        ("", ".rename_column('prompt', 'former').rename_columns({'problem': 'prompt', 'solution': 'answer'})", None),
        ("", ".rename_column('solution', 'key').map(lambda r: {'answer': r['key']}, num_proc=1)", None),
        (NESTED, ".map(make_conversation)", True),
        (NESTED, ".map(function=make_conversation).rename_column('answer', 'label')", True),
        (NESTED, ".map(make_conversation).map(lambda row: dict(answer=f'{row[\"answer\"]}.'))", True),
        (ASSIGNED, ".map(make, desc='rows')", False),
        (PARTS, ".map(make)", True),
        ("", ".map(lambda row: {'answer': row['meta']['level'][1], 'prompt': 'Q: ' + row['problem']})", False),
    ],
)
def test_rows_equal_those_of_the_executed_script(
    functions: str, operations: str, chat: bool | None, folder: Path
) -> None:
    names: dict[str, Any] = {"SYSTEM": SYSTEM}
    exec(functions, names)
    rows = eval(f"rows{operations}", names | {"rows": Dataset.from_json("rows.jsonl")})
    text = converted(write(folder / "t.py", script(f"SYSTEM = {SYSTEM!r}\n{functions}", operations)))
    assert "is not executed" not in text
    assert ("policy.chat: false, if the prompts are texts" in text) == (chat is None)
    config = load_config(write(folder / "run.yaml", text))
    policy = yaml.safe_load(text)["policy"]
    assert policy.get("chat") is chat
    assert config.prompts is not None
    prompts = load_prompts_of(config.prompts)
    for prompt, row in zip(prompts, rows, strict=True):
        assert (policy.get("system"), prompt.text) == text_of(row["prompt"])
        for name in {"answer", "label"} & set(rows.column_names):
            assert prompt.columns[name] == row[name]


@pytest.mark.parametrize(
    ("operations", "unread"),
    [
        (".map(lambda row: {'a': len(row['problem'])})", None),
        (".map(lambda row: {'a': row['problem'] + row['solution']})", None),
        (".map(lambda row: {'a': 'constant'})", None),
        (".map(lambda row, i: {'a': row['problem']}, with_indices=True)", None),
        (".map(lambda row: {'a': row['problem']}, batched=True)", None),
        (".map(lambda row: {'prompt': [{'role': 'assistant', 'content': row['problem']}]})", None),
        (".rename_column('a.b', 'c')", None),
        (".cast_column('a', Image())", None),
        (".shuffle(seed=1).map(lambda row: {'a': row['problem']})", ".shuffle(seed=1)"),
        (".map(lambda row: {'a': row['problem']}, remove_columns=['problem'])", "remove_columns=['problem']"),
        (".map(f).map(lambda row: {'a': row['problem']})", ".map(f), .map(lambda row: {'a': row['problem']})"),
    ],
)
def test_operations_that_are_not_read_become_a_comment(operations: str, unread: str | None, folder: Path) -> None:
    text = converted(write(folder / "t.py", script("def f(row):\n  print(row)\n  return {'a': row['b']}", operations)))
    assert f"# * train_dataset: {unread or shortened(operations)} is not executed, " in text
    columns = yaml.safe_load(text)["prompts"].get("columns")
    assert columns == ({"a": "problem"} if unread is not None and ".map(f)" not in operations else None)


def test_system_turn_of_other_held_out_rows_becomes_a_comment(folder: Path) -> None:
    text = converted(
        write(
            folder / "t.py",
            f"SYSTEM = 'Think.'\n{NESTED}\nrows = load_dataset('a/b')\n"
            "GRPOTrainer(model='m', train_dataset=rows['train'].map(make_conversation), eval_dataset=rows['test'],"
            "args=GRPOConfig(max_steps=1, eval_strategy='steps'), reward_funcs='accuracy_reward')",
        )
    )
    values = yaml.safe_load(text)
    assert values["policy"]["system"] == "Think."
    assert values["prompts"]["columns"] == {"prompt": "problem", "answer": "solution"}
    assert "columns" not in values["evaluation"]["prompts"]
    assert (
        "# * policy.system and policy.chat are those of train_dataset: the prompts of eval_dataset have others" in text
    )


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


PARSED = f"""
SYSTEM = "Think."
{NESTED}
if __name__ == "__main__":
    script_args, training_args = TrlParser((ScriptArguments, GRPOConfig)).parse_args_and_config()
    rows = load_dataset(script_args.dataset_name, name=script_args.dataset_config)
    rows = rows.map(make_conversation)
    GRPOTrainer(
        model="m",
        args=training_args,
        train_dataset=rows[script_args.dataset_train_split],
        eval_dataset=rows[script_args.dataset_test_split] if training_args.eval_strategy != "no" else None,
    )
"""


def test_dataset_is_named_by_the_command_line(folder: Path) -> None:
    script, line = write(folder / "t.py", PARSED), "--max_steps 3 --reward_funcs accuracy_reward"
    source = " --dataset_name openai/gsm8k --dataset_config main --eval_strategy steps --dataset_test_split held_out"
    text = converted(script, line + source)
    values, columns = yaml.safe_load(text), {"prompt": "problem", "answer": "solution"}
    assert values["prompts"] == {"source": "openai/gsm8k:main", "split": "train", "columns": columns}
    assert values["evaluation"]["prompts"] == {"source": "openai/gsm8k:main", "split": "held_out", "columns": columns}
    assert values["policy"]["system"] == "Think."
    assert "is not executed" not in text
    assert "it is not read" not in text
    text = converted(script, line)
    assert "# * prompts.source: set the data set of the hub, or a file\n" in text


def test_methods_of_a_dataset_that_depends_on_branches_become_a_comment(folder: Path) -> None:
    load = "    rows = load_dataset(script_args.dataset_name, name=script_args.dataset_config)\n"
    branches = f"    if script_args.a:\n    {load}    else:\n        rows = load()\n"
    text = converted(write(folder / "t.py", PARSED.replace(load, branches)), "--max_steps 3 --dataset_name a/b")
    assert yaml.safe_load(text)["prompts"] == {"source": "a/b", "split": "train"}
    assert "# * train_dataset: .map(...) of the script is not executed, rows are as they are stored\n" in text


def test_script_of_trl_has_the_rewards_of_its_command_line(folder: Path) -> None:
    text = converted(Path(grpo.__file__), "--dataset_name a/b --model_name_or_path c/d --reward_funcs accuracy_reward")
    values = yaml.safe_load(text)
    assert values["rewards"] == [{"name": "python:trl.rewards:accuracy_reward"}]
    assert values["prompts"] == {"source": "a/b", "split": "train"}
    assert "reward_funcs" not in text
