"""The papers and their state: those with a file, read from the files, and the rows of ``configs/papers.jsonl``.

A paper has a file if a method or a run of ``configs/papers/`` has its arXiv number or its name. A row of the ledger is
for a paper without a file, and is ignored once there is a file.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from mmgrpo.config import POLICIES
from mmgrpo.config.loading import CONFIGS, find_config, shipped
from mmgrpo.config.registry import suggestion
from mmgrpo.config.sections import Section
from mmgrpo.config.validating import explain_validation
from mmgrpo.docgen.methods import KINDS, OTHERS, MethodRow, method_index
from mmgrpo.errors import ConfigError, UnknownNameError
from mmgrpo.system.yamls import parse_yaml

LEDGER = CONFIGS / "papers.jsonl"

State = Literal["file", "setting", "open"]
STATES: tuple[State, ...] = ("file", "setting", "open")

COMPLETENESS = ("all", "your reward", "part")
"""The first words of ``holds``, the most complete first."""

GROUPS: Mapping[str, tuple[str, str | None]] = {
    "none": ("No new function", "advantage, objective, rewards"),
    "advantage_fn": ("Advantages of a group", "advantage.scale"),
    "surrogate_fn": ("Surrogates", "objective.surrogate"),
    "ratio_level_fn": ("Ratio levels", "objective.ratio_level"),
    "selection_fn": ("Selections of decisions", "objective.selections"),
    "aggregate_fn": ("Aggregates of a loss", "objective.aggregate"),
    "sampler_fn": ("Samplers of denoising policies", "policy.sampler"),
    "peft_setting": ("Adapters other than LoRA and DoRA", None),
    "reward_group": ("Rewards of complete groups", "rewards"),
    "reward_task": ("Verifiers of a task", "rewards"),
    "reward_judge_text": ("Judges of texts", "rewards"),
    "reward_model_scalar": ("Reward models of texts, and served solvers", "rewards"),
    "reward_execution": ("Rewards that execute", "rewards"),
    "scoped_rewards": ("Rewards of spans, steps and ranks", "advantage.estimators"),
    "decision_credit": ("Credit of each decision", "advantage.estimators"),
    "sample_filter": ("Filters of group members", "advantage.filters"),
    "group_losses": ("Losses of complete groups", "objective.terms"),
    "decision_numbers": ("Bounds and weights of single decisions", "objective.modulations"),
    "aux_losses": ("Auxiliary losses", "objective.auxiliary"),
    "views": ("The same tokens under other weights or another prompt", "objective.views"),
    "vocab_terms": ("Terms of the full token distribution", "objective.terms, objective.modulations"),
    "rounds": ("Rollouts in rounds, groups of any size", "rollout.strategy"),
    "forest": ("Trees: shared prefixes, branches and exits", "rollout.tree, rollout.strategy"),
    "contexts": ("Separate prompts for group members", "rollout.prompt_templates"),
    "foreign_members": ("Off-policy rows", "objective.off_policy"),
    "prompt_state": ("Statistics of prompts, and sampling by them", "prompts.sampler"),
    "prompt_mixture": ("Several prompt sources", "prompts.sources"),
    "schedules": ("Settings that change over the run", "schedules"),
    "reference_update": ("Reference updates", "update.reference"),
    "forward_process": ("Losses on re-noised samples", "rollout.training_states"),
    "trainer_hooks": ("Optimizer step and weights", "update.hooks"),
    "multi_turn": ("Turns, tools and environments", "rollout.environment"),
    "staged_rollouts": ("Rollouts of several calls: proposer and solver, drafts, chunks", None),
    "critic": ("A learned value function", "advantage.critic"),
    "policy_handle": ("Rewards computed by the policy", None),
    "internals": ("Hidden states, attention maps, curvature", None),
    "policy_masked": ("Policies of masked tokens", "policy.name: masked, policy.reading"),
    "policy_image_tokens": ("Policies of image tokens", "policy.name: image_tokens"),
    "policy_audio": ("Audio policies", "policy.model and the audio of prompts"),
    "policy_robotics": ("Policies in robot environments", "policy.name"),
    "policy_other": ("Other policies", None),
    "data_pipeline": ("Data generated outside a run", None),
    "scale": ("Engines for sampling at scale", None),
}
"""Contribution of papers without a file -> heading, and the key of its functions; None: not supported yet."""

RUNS = "papers"
"""Folder of complete runs of papers, with a folder per modality."""

GENERATORS = ("image_generation", "video_generation")
"""Modalities of denoising policies."""

PREAMBLE = """# Papers

`mmgrpo methods --papers` prints this list, `mmgrpo methods --paper ID` a paper of it.

A paper with a *file* is implemented by that file: a method ([methods](methods/index.md) has the source of each value
and the deviations), or a complete run. A *setting* needs no file: its row has the settings, and the parts that they do
not cover. The row of an *open* paper has its contribution: if every group that it needs has a configuration key, the
paper needs a function and a YAML ([extending](../how-to/extending.md)); otherwise the engine does not support it yet.
Of the open papers, core ones are objectives and rollouts, recipes are data, rewards and stages, extensions are further
from GRPO.
"""


class PaperRow(Section):
    """A line of the ledger: a paper without a file."""

    id: str
    title: str
    tier: Literal["core", "recipe", "extension"]
    arxiv: str | None = Field(default=None, description="arXiv number")
    group: str = Field(description="main contribution, a key of GROUPS")
    studied_on: str = Field(description="kind of model in its experiments")
    needs: tuple[str, ...] = Field(default=(), description="required groups, keys of GROUPS")
    setting: str | None = Field(default=None, description="settings that implement it, if it needs no file")
    leaves_out: str | None = Field(default=None, description="parts that the setting does not cover")
    adds: str | None = Field(default=None, description="contribution that no setting covers")
    code: str | None = Field(default=None, description="source of its formula: repository and file")
    unread: bool = Field(default=False, description="its formula was not read, in the paper or in its code")


@dataclass(frozen=True, slots=True, kw_only=True)
class Paper:
    """A paper with its files, or its row.

    Attributes:
        id: name of its first file, or id of its row.
        title: its title.
        arxiv: arXiv number; empty if it is not recorded.
        group: folder of its first file, such as ``methods/ratios``; without a file, the group of its row.
        applies_to: the policies that its files are for, in words; without a file, those of its experiments.
        files: names of its files.
        num_deviations: number of deviations that its files state.
        evidence: checks of its files.
        holds: how much of the paper is implemented, as ``holds`` of its most complete file; a setting is part of the
            paper if its row leaves something out; None: nothing is, or its files do not state it.
        row: its line in the ledger; None: it has a file.
    """

    id: str
    title: str
    arxiv: str
    group: str
    applies_to: str
    files: tuple[str, ...] = ()
    num_deviations: int = 0
    evidence: tuple[str, ...] = ()
    holds: str | None = None
    row: PaperRow | None = None

    @property
    def state(self) -> State:
        """The state of the paper."""
        if self.row is None:
            return "file"
        return "setting" if self.row.setting else "open"

    @property
    def lacks(self) -> tuple[str, ...]:
        """The groups that it needs and that the engine does not support."""
        return tuple(name for name in (self.row.needs if self.row else ()) if GROUPS[name][1] is None)


def ledger(path: Path = LEDGER) -> list[PaperRow]:
    """The rows of the ledger.

    Args:
        path: path of the file.

    Returns:
        A row per paper, in the order of the file.

    Raises:
        ConfigError: a line is no valid row, or names an unknown group.
    """
    lines = path.read_text(encoding="utf-8").splitlines()
    rows = [_parse_row(f"{path.name}, line {number}", line) for number, line in enumerate(lines, 1)]
    for row in rows:
        for name in {row.group, *row.needs} - set(GROUPS):
            raise ConfigError(f"{path.name}: {row.id} has no group {name!r}{suggestion(name, GROUPS)}")
    return rows


def paper_index(methods: Iterable[MethodRow] | None = None, *, rows: Iterable[PaperRow] | None = None) -> list[Paper]:
    """The papers with a file, then those of the ledger without one.

    Args:
        methods: rows of the method index; None: all methods.
        rows: rows of a ledger; None: of the shipped one.

    Returns:
        A paper per arXiv number, or name where a file has none, and a paper per row.
    """
    method_rows = method_index() if methods is None else methods
    files = [*map(_method_file, method_rows), *map(_run_file, shipped(RUNS))]
    files_of: dict[str, list[_File]] = {}
    for file in files:
        files_of.setdefault(file.arxiv or file.name, []).append(file)
    without_file = [row for row in (ledger() if rows is None else rows) if not any(_is_of(row, file) for file in files)]
    return [*map(_paper_of_files, files_of.values()), *map(_paper_of_row, without_file)]


def by_group(papers: Iterable[Paper]) -> dict[str, list[Paper]]:
    """The papers by group, without empty groups: kinds of methods, folders of runs, then the groups of the ledger."""
    papers = list(papers)
    folders = {paper.group for paper in papers} - set(GROUPS)
    kinds = [f"methods/{kind}" for kind in KINDS]
    order = [*kinds, *sorted(folders - set(kinds)), *GROUPS]
    members = {name: [paper for paper in papers if paper.group == name] for name in order}
    return {name: group for name, group in members.items() if group}


def counts(papers: Iterable[Paper]) -> list[tuple[str, ...]]:
    """Rows of a table: group, number of papers per state; the last row has the totals."""
    groups = by_group(papers)
    rows = [_count_row(name, members) for name, members in groups.items()]
    return [*rows, _count_row("all", [paper for members in groups.values() for paper in members])]


def summary(papers: Iterable[Paper]) -> str:
    """The counts in a sentence, and the number of open papers that the engine does not support."""
    papers = list(papers)
    states = Counter(paper.state for paper in papers)
    missing = sum(paper.state == "open" and bool(paper.lacks) for paper in papers)
    complete = {kind: sum((paper.holds or "").startswith(kind) for paper in papers) for kind in COMPLETENESS}
    return (
        f"{len(papers)} papers: {states['file']} have a file, {states['setting']} are a setting, {states['open']} are "
        f"open, of which {missing} need a feature that the engine does not have yet. Of those with a file or a setting "
        f"{complete['all']} are complete, {complete['part']} are implemented in part, and {complete['your reward']} "
        "need a reward of yours."
    )


HEAD = ("group", *STATES)
"""Columns of ``counts``."""


def state_text(paper: Paper) -> str:
    """The state of a paper, in one line."""
    row = paper.row
    if row is None:
        return ", ".join(paper.files)
    if row.setting:
        return f"setting: {row.setting}" + (f"; leaves out: {row.leaves_out}" if row.leaves_out else "")
    unread = " Its formula has not been read yet." if row.unread else ""
    lacks = f" Not supported yet: {', '.join(paper.lacks)}." if paper.lacks else ""
    return f"{row.tier}, open: {row.adds}.{lacks}{unread}"


def paper_section(name: str) -> str:
    """The section of a paper.

    Args:
        name: id or arXiv number of the paper, or name of one of its files.

    Returns:
        Markdown.

    Raises:
        UnknownNameError: there is no such paper; the message lists ids that contain the name.
    """
    papers, query = paper_index(), name.lower()
    for paper in papers:
        if query in (paper.id.lower(), paper.arxiv, *(file.rpartition("/")[2] for file in paper.files)):
            return "\n".join(_section(paper)) + "\n"
    near = ", ".join(paper.id for paper in papers if query in paper.id.lower())
    if near:
        raise UnknownNameError(f"no paper {name!r}; there are {near}")
    hint = suggestion(name, [paper.id for paper in papers])
    raise UnknownNameError(f"no paper {name!r}{hint}; mmgrpo methods --papers lists all")


def papers_page(papers: Iterable[Paper]) -> str:
    """The papers as a Markdown page.

    Args:
        papers: the papers.

    Returns:
        Counts, and a table per group.
    """
    papers = list(papers)
    lines = [PREAMBLE, "## Counts", "", summary(papers), "", f"| {' | '.join(HEAD)} |", f"|{' --- |' * len(HEAD)}"]
    lines += [f"| {' | '.join(row)} |" for row in counts(papers)]
    for name, members in by_group(papers).items():
        lines += ["", f"## {group_text(name)}", "", f"`{name}`", "", "| id | paper | state |", "|" + " --- |" * 3]
        lines += [f"| `{paper.id}` | {_title_link(paper)} | {_state_cell(paper)} |" for paper in members]
    return "\n".join(lines) + "\n"


def _state_cell(paper: Paper) -> str:
    """The state of a paper in a table: its methods as links, or its row."""
    if paper.row is not None:
        return _cell(state_text(paper))
    holds = f"; {_cell(paper.holds)}" if paper.holds else ""
    return f"{', '.join(map(_file_link, paper.files))}{holds}; deviations: {paper.num_deviations}"


def _file_link(file: str) -> str:
    """A file, as a link if it is a method with a section on the page of its kind."""
    folder, _, name = file.partition("/")
    kind = find_config(file).parent.name
    return f"[{file}](methods/{kind}.md#{name})" if folder == "methods" and kind in KINDS else file


def group_text(group: str) -> str:
    """The heading of a group: the kind of its methods, or the contribution of its papers with the configuration key."""
    folder, _, name = group.partition("/")
    if name:
        if folder == "methods":
            return next((heading for kind, heading in KINDS.items() if kind == name), OTHERS)
        return f"Runs of papers: {name.replace('_', ' ')}"
    heading, key = GROUPS[group]
    return f"Without a file: {heading.lower()}; {'not supported yet' if key is None else f'set in {key}'}"


def _parse_row(where: str, line: str) -> PaperRow:
    try:
        return PaperRow.model_validate_json(line)
    except ValidationError as error:
        raise ConfigError(f"{where}: {explain_validation(error, PaperRow)}") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class _File:
    """A file of a paper."""

    include: str
    name: str
    title: str
    arxiv: str
    group: str
    applies_to: str
    num_deviations: int
    evidence: tuple[str, ...]
    holds: str | None


def _method_file(row: MethodRow) -> _File:
    method = row.method
    return _File(
        include=row.include,
        name=method.name,
        title=method.paper_title or method.title,
        arxiv=method.paper or "",
        group=f"methods/{method.kind or OTHERS.lower()}",
        applies_to=POLICIES[method.applies_to],
        num_deviations=len(method.deviations),
        evidence=method.evidence,
        holds=method.holds,
    )


@cache
def run_section(include: str) -> dict[str, Any]:
    """The section ``about`` of a run of a paper, without the values that it includes."""
    return parse_yaml(find_config(include).read_text(encoding="utf-8")).get("about") or {}


@cache
def _run_file(include: str) -> _File:
    """The file of a run of a paper, without the values that it includes."""
    path, section = find_config(include), run_section(include)
    return _File(
        include=include,
        name=path.stem,
        title=section.get("title") or path.stem,
        arxiv=section.get("paper") or "",
        group=f"{RUNS}/{path.parent.name}",
        applies_to=POLICIES["denoising" if path.parent.name in GENERATORS else "tokens"],
        num_deviations=len(section.get("deviations", ())),
        evidence=tuple(section.get("evidence", ())),
        holds=section.get("holds"),
    )


def _is_of(row: PaperRow, file: _File) -> bool:
    """Whether a file is of the paper of a row: by number if both have one, because papers share names, else by name."""
    return file.arxiv == row.arxiv if file.arxiv and row.arxiv else file.name == row.id


def _paper_of_files(files: Sequence[_File]) -> Paper:
    first, policies = files[0], {file.applies_to for file in files}
    holds = [file.holds for kind in COMPLETENESS for file in files if file.holds and file.holds.startswith(kind)]
    return Paper(
        id=first.name,
        title=first.title,
        arxiv=first.arxiv,
        group=first.group,
        applies_to=POLICIES["both"] if len(policies) > 1 else first.applies_to,
        files=tuple(file.include for file in files),
        num_deviations=sum(file.num_deviations for file in files),
        evidence=tuple(item for file in files for item in file.evidence),
        holds=holds[0] if holds else None,
    )


def _paper_of_row(row: PaperRow) -> Paper:
    is_generator = row.studied_on in ("image-gen", "video-gen") and not row.group.startswith("policy_")
    return Paper(
        id=row.id,
        title=row.title,
        arxiv=row.arxiv or "",
        group=row.group,
        applies_to=POLICIES["denoising" if is_generator else "tokens"],
        holds=(f"part, without {row.leaves_out}" if row.leaves_out else "all") if row.setting else None,
        row=row,
    )


def _count_row(name: str, papers: list[Paper]) -> tuple[str, ...]:
    states = Counter(paper.state for paper in papers)
    return (name, *(str(states[state]) for state in STATES))


def _section(paper: Paper) -> Iterator[str]:
    row = paper.row
    studied = f", {row.tier}, studied on {row.studied_on}" if row else ""
    yield from (f"## {paper.title}", "", f"`{paper.id}`, {paper.applies_to}{studied}.")
    if paper.arxiv:
        yield f"arXiv:{paper.arxiv}."
    yield from ("", f"- {state_text(paper)}")
    if paper.holds and row is None:
        yield f"- holds: {paper.holds}"
    if row is not None:
        yield from (f"- needs `{name}`: {group_text(name)}" for name in row.needs)
        if row.code:
            yield f"- source of its formula: {row.code}"
    yield from (f"- checked: {evidence}" for evidence in paper.evidence)


def _title_link(paper: Paper) -> str:
    title = _cell(paper.title)
    return f"[{title}](https://arxiv.org/abs/{paper.arxiv})" if paper.arxiv else title


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")
