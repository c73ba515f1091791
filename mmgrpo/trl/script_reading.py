"""The arguments of a run of TRL, read from its script or its YAML file without executing it."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, final

from mmgrpo.errors import ConfigError
from mmgrpo.system.training_scripts import training_line
from mmgrpo.system.yamls import MAX_CHARACTERS, YamlError, parse_yaml
from mmgrpo.trl.command_arguments import command_arguments
from mmgrpo.trl.expressions import NO_LITERAL, name_of, shortened
from mmgrpo.trl.run_values import LOADING
from mmgrpo.trl.script_columns import CHANGES, CHOICES, ColumnReader
from mmgrpo.trl.script_datasets import script_dataset

LORA = {"r": "lora_r", "target_modules": "lora_target_modules"}
"""Arguments of peft's ``LoraConfig`` with another name in TRL's scripts."""

LORA_DEFAULTS = {"use_peft": True, "lora_r": 8, "lora_alpha": 8}
"""Those of ``LoraConfig``; TRL's scripts have others."""


OF_FLAGS: Mapping[str, tuple[str, ...]] = {
    "model": ("model_name_or_path",),
    "train_dataset": ("dataset_name",),
    "eval_dataset": ("dataset_name",),
    "peft_config": ("use_peft",),
    "quantization_config": ("load_in_4bit", "load_in_8bit"),
    "reward_funcs": ("reward_funcs",),
}
"""Argument of ``GRPOTrainer`` that a script computes -> those of its command line that it is computed from."""

OF_DATASETS: Mapping[str, str | None] = {
    "dataset_name": None,
    "dataset_config": None,
    "dataset_train_split": "train",
    "dataset_test_split": "test",
}
"""Arguments of TRL's ``ScriptArguments`` that scripts load datasets with -> their defaults."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class TrlRun:
    """A run of TRL.

    Attributes:
        arguments: those of ``GRPOConfig`` and of TRL's scripts, by name.
        unread: argument of ``GRPOTrainer``, or of the model's ``from_pretrained``, that is not read -> its expression.
        comments: sentences about parts of other arguments that are not read.
    """

    arguments: Mapping[str, Any]
    unread: Mapping[str, str]
    comments: Sequence[str] = ()


def read_trl_run(path: Path, command: str | None = None) -> TrlRun:
    """The arguments of a script with one ``GRPOConfig(...)`` of literals or with defaults, or of a YAML file of TRL.

    Args:
        path: the file; its name ends in ``.py``, ``.yaml`` or ``.yml``.
        command: the arguments of its command line, which override those of a YAML file; ``--config`` names one.

    Returns:
        The arguments.

    Raises:
        ConfigError: the file cannot be read, has no or several configurations, or one with values that are computed.
    """
    text = _text(path)
    flags = None if command is None else command_arguments(command)
    if flags is not None and isinstance(file := flags.pop("config", None), str):
        flags = {**_of_yaml(Path(file), _text(Path(file))).arguments, **flags}
    if path.suffix == ".py":
        return _of_script(path, text, flags)
    run = _of_yaml(path, text)
    return replace(run, arguments={**run.arguments, **(flags or {})})


def _text(path: Path) -> str:
    """The text of a file. Raises ConfigError if it cannot be read."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from None
    if len(text) > MAX_CHARACTERS:
        raise ConfigError(f"{path} has more than {MAX_CHARACTERS} characters")
    return text


def _of_yaml(path: Path, text: str) -> TrlRun:
    try:
        values = parse_yaml(text)
    except YamlError as error:
        raise ConfigError(f"{path} is not YAML: {error}") from None
    if not isinstance(values, dict):
        raise ConfigError(f"{path} must be a mapping of TRL's arguments, such as learning_rate: 1.0e-6")
    return TrlRun(arguments=values, unread={})


def _of_script(path: Path, text: str, flags: Mapping[str, Any] | None) -> TrlRun:
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ConfigError(f"{path} is not Python: {error}") from None
    script = _Script(path, tree, training_line(text), flags)
    configs = script.calls("GRPOConfig")
    if len(configs) != 1 and (configs or flags is None) and not script.has_default_arguments:
        raise ConfigError(
            f"{path} has {len(configs)} calls of GRPOConfig and must have one, with literal arguments; a script that "
            "reads its arguments from the command line has them in a YAML file: mmgrpo init --from trl CONFIG.yaml; or "
            f"pass them: mmgrpo init --from trl {path.name} --arguments '--model_name_or_path NAME --use_peft'"
        )
    arguments = {**(script.literals(configs[0], first="output_dir") if configs else {}), **(flags or {})}
    unread: dict[str, str] = {}
    for name, node in script.trainer_arguments().items():
        values = script.read(name, node)
        arguments |= values or {}
        if values is None and not (flags and flags.keys() & OF_FLAGS.get(name, ())):
            unread[name] = ast.unparse(node)
        elif values is None and name.endswith("dataset"):
            script.comment_on_operations(name)
        elif values is not None and name == "model":
            unread |= script.unread_loading(node)
    return TrlRun(arguments=arguments, unread=unread, comments=script.comments)


@final
class _Script:
    """A parsed script: its calls, and the names that are assigned once."""

    def __init__(
        self, path: Path, tree: ast.Module, training_line: int | None, flags: Mapping[str, Any] | None
    ) -> None:
        self.path, self.training_line = path, training_line
        self.flags = {} if flags is None else {name: flags.get(name, value) for name, value in OF_DATASETS.items()}
        self.nodes = list(ast.walk(tree))
        self.functions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
        definitions = [node for node in self.nodes if isinstance(node, ast.FunctionDef)]
        repeated = Counter(node.name for node in definitions)
        self.definitions = {node.name: node for node in definitions if repeated[node.name] == 1}
        assignments: list[Any] = [
            node for node in self.nodes if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
        ]
        self.comments: list[str] = []
        self.assignments: dict[str, list[ast.Assign]] = {}
        for node in sorted(assignments, key=lambda node: node.lineno):
            self.assignments.setdefault(node.targets[0].id, []).append(node)
        self.assigned = {name: nodes[0].value for name, nodes in self.assignments.items() if len(nodes) == 1}
        self.imported = {
            alias.asname or alias.name: f"python:{node.module}:{alias.name}"
            for node in self.nodes
            if isinstance(node, ast.ImportFrom) and not node.level
            for alias in node.names
        }

    def calls(self, name: str) -> list[ast.Call]:
        """The calls of a function or class, by its name or as an attribute of a module."""
        return [node for node in self.nodes if isinstance(node, ast.Call) and name_of(node.func) == name]

    def value(self, node: ast.expr) -> ast.expr:
        """An expression, or the one that its name is assigned to."""
        return self.assigned.get(node.id, node) if isinstance(node, ast.Name) else node

    @property
    def has_default_arguments(self) -> bool:
        """Whether the script has one trainer, and no configuration for it."""
        trainers = self.calls("GRPOTrainer")
        if len(trainers) != 1 or len(trainers[0].args) > 2 or self.calls("GRPOConfig"):
            return False
        return not {"args", None} & {keyword.arg for keyword in trainers[0].keywords}

    def trainer_arguments(self) -> dict[str, ast.expr]:
        """The arguments of the trainer but its configuration; none if there are several trainers."""
        trainers = self.calls("GRPOTrainer")
        if len(trainers) != 1:
            return {}
        named = {keyword.arg: keyword.value for keyword in trainers[0].keywords if keyword.arg not in (None, "args")}
        return {**dict(zip(("model", "reward_funcs"), trainers[0].args, strict=False)), **named}

    def read(self, name: str, node: ast.expr) -> dict[str, Any] | None:
        """An argument of the trainer with the names of TRL's scripts; None: it cannot be read."""
        readers = {
            "model": self.model,
            "train_dataset": self.train_dataset,
            "eval_dataset": self.eval_dataset,
            "reward_funcs": self.rewards,
            "peft_config": self.adapters,
        }
        return readers[name](node) if name in readers else None

    def literals(self, call: ast.Call, *, first: str | None = None) -> dict[str, Any]:
        """The arguments of a call. Raises ConfigError for those that are no literals."""
        named = [(keyword.arg or "**", keyword.value) for keyword in call.keywords]
        named += [(first or "*", node) for node in call.args]
        values, computed = {}, []
        for name, node in named:
            try:
                values[name] = self.literal(node)
            except NO_LITERAL:
                computed.append(f"{name}={shortened(ast.unparse(node))} (line {node.lineno})")
        if computed:
            raise ConfigError(
                f"{self.path}: {', '.join(computed)} must be literals: nothing of the script is executed. Write the "
                "values into the call, or into a YAML file of TRL"
            )
        return values

    def literal(self, node: ast.expr) -> Any:
        """The value of a literal, with names, dtypes of torch and ``BitsAndBytesConfig(...)`` within it.

        The arguments of a command line that name datasets (``script_args.dataset_name``) are literals.

        Raises: ValueError or TypeError for other expressions.
        """
        match self.value(node):
            case ast.Dict(keys=keys, values=values):
                return {ast.literal_eval(k or node): self.literal(v) for k, v in zip(keys, values, strict=True)}
            case ast.List(elts=parts) | ast.Tuple(elts=parts):
                return [self.literal(part) for part in parts]
            case ast.Attribute(value=ast.Name(id="torch"), attr=dtype):
                return dtype
            case ast.Attribute(value=ast.Name(), attr=name) if name in self.flags:
                return self.flags[name]
            case ast.Call(args=[], keywords=keywords) as call if name_of(call.func) in ("BitsAndBytesConfig", "dict"):
                return {_required(keyword.arg): self.literal(keyword.value) for keyword in keywords}
            case expression:
                return ast.literal_eval(expression)

    def model(self, node: ast.expr) -> dict[str, Any] | None:
        """The argument ``model`` as those of TRL's scripts; None: it is no text, and no ``from_pretrained`` of one."""
        match self.value(node):
            case ast.Constant(value=str() as text):
                return {"model_name_or_path": text}
            case ast.Call(func=ast.Attribute(attr="from_pretrained"), args=[source]) as call:
                try:
                    text, loading = self.literal(source), self._loading(call)
                except NO_LITERAL:
                    return None
                return {"model_name_or_path": text, **({"model_init_kwargs": loading} if loading else {})}
        return None

    def _loading(self, call: ast.Call) -> dict[str, Any]:
        named = {"dtype" if part.arg == "torch_dtype" else part.arg: part.value for part in call.keywords}
        return {name: self.literal(named[name]) for name in LOADING if name in named}

    def unread_loading(self, node: ast.expr) -> dict[str, str]:
        """The arguments of ``from_pretrained`` that are not read, with their expressions."""
        call = self.value(node)
        keywords = call.keywords if isinstance(call, ast.Call) else []
        read = (*LOADING, "torch_dtype")
        return {part.arg or "**": ast.unparse(part.value) for part in keywords if part.arg not in read}

    def train_dataset(self, node: ast.expr) -> dict[str, Any] | None:
        """The source and the split of a dataset; None: it is another expression."""
        return self._dataset(node, "train_dataset", "prompts", ("dataset_name", "dataset_train_split", "train_columns"))

    def eval_dataset(self, node: ast.expr) -> dict[str, Any] | None:
        """The same of the held-out rows."""
        return self._dataset(
            node, "eval_dataset", "evaluation.prompts", ("eval_dataset", "dataset_test_split", "eval_columns")
        )

    def _dataset(self, node: ast.expr, argument: str, key: str, names: tuple[str, ...]) -> dict[str, Any] | None:
        columns = ColumnReader(functions=self.definitions, literal=self.literal)
        dataset = script_dataset(node, self.assignments, columns, default_split="train" if key == "prompts" else "test")
        if dataset is None:
            return None
        self.comments += dataset.comments(argument, key)
        return dict(zip(names, (dataset.source, dataset.split, dataset.columns), strict=True))

    def comment_on_operations(self, argument: str) -> None:
        """A comment on the calls that change the rows of a dataset which is read by its name alone."""
        calls = [call for name in (*CHANGES, *CHOICES) for call in self.calls(name)]
        methods = [call.func for call in calls if isinstance(call.func, ast.Attribute)]
        if methods:
            names = ", ".join(f".{method.attr}(...)" for method in sorted(methods, key=lambda method: method.lineno))
            self.comments.append(f"{argument}: {names} of the script is not executed, rows are as they are stored")

    def rewards(self, node: ast.expr) -> dict[str, Any] | None:
        """The functions as targets of ``rewards``; None: one of them has no name that can be imported."""
        listed = self.value(node)
        if isinstance(node, ast.Name) and any(_is_method_of(node.id, call) for call in self.calls("append")):
            return None
        parts = listed.elts if isinstance(listed, ast.List | ast.Tuple) else [node]
        targets = [target for part in parts if (target := self._target(part)) is not None]
        self._comment_on_training(targets)
        return {"reward_funcs": targets} if len(targets) == len(parts) else None

    def _comment_on_training(self, targets: Sequence[str]) -> None:
        """A comment on functions of the script if its import trains."""
        prefix, moved = f"python:{self.path.stem}:", f"{self.path.stem}_functions"
        names = [target.removeprefix(prefix) for target in targets if target.startswith(prefix)]
        if self.training_line is not None and names:
            self.comments.append(
                f"rewards: {self.path.name} trains when it is imported (line {self.training_line}): move "
                f"{', '.join(names)} to {moved}.py, and name it python:{moved}:FUNCTION"
            )

    def _target(self, node: ast.expr) -> str | None:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            return node.value
        name = node.id if isinstance(node, ast.Name) else ""
        return f"python:{self.path.stem}:{name}" if name in self.functions else self.imported.get(name)

    def adapters(self, node: ast.expr) -> dict[str, Any] | None:
        """The arguments of ``LoraConfig(...)`` with the names of TRL's scripts; None: it is another expression."""
        call = self.value(node)
        if not isinstance(call, ast.Call) or name_of(call.func) != "LoraConfig":
            return None
        return LORA_DEFAULTS | {LORA.get(name, name): value for name, value in self.literals(call).items()}


def _is_method_of(name: str, call: ast.Call) -> bool:
    match call.func:
        case ast.Attribute(value=ast.Name(id=owner)):
            return owner == name
    return False


def _required(name: str | None) -> str:
    """A name that is there. Raises ValueError for the keywords of a mapping."""
    if name is None:
        raise ValueError("keywords of a mapping")
    return name
