"""One page that compares runs: settings, curves and samples of the same requests."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mmgrpo.errors import DataError
from mmgrpo.report.chart_sections import unique_sections
from mmgrpo.report.curves import Chart, draw_chart, read_curve, span
from mmgrpo.report.image_grids import MEDIA_BYTES, CellBuilder
from mmgrpo.report.logs import Log, read_log
from mmgrpo.report.movement import scales_of
from mmgrpo.report.number_format import clip
from mmgrpo.report.page_templates import render_page, write_page
from mmgrpo.report.run_charts import Headline, headlines, measures
from mmgrpo.report.run_files import RunFiles
from mmgrpo.report.run_info import environment, overview_rows, read_about
from mmgrpo.report.sample_selection import in_turn
from mmgrpo.report.sample_sets import SampleRecord, SampleSet, common_changes, read_sample_sets, shared_requests
from mmgrpo.report.text_samples import binary_rewards
from mmgrpo.system.yamls import YamlError, parse_yaml

MAX_RUNS = 6
MAX_REQUESTS = 12
MAX_ROWS = 300
TRAINING = {"reward/mean": "Reward in training", "policy/kl_mean": "KL from the reference"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedRun:
    """A run of the comparison.

    Attributes:
        label: unique label.
        files: the run folder.
        about: content of run.json.
        settings: dotted key of the configuration -> value, as text.
        metrics: log of training.
        evaluation: log of the evaluations.
        sample_set: the samples of the last evaluated step, if there are any.
    """

    label: str
    files: RunFiles
    about: Mapping[str, Any]
    settings: Mapping[str, str]
    metrics: Log
    evaluation: Log
    sample_set: SampleSet | None


def write_comparison(folders: Sequence[Path], out: Path | None = None) -> Path:
    """Renders run folders into one page; reads no file outside of the folders.

    Args:
        folders: two to six run folders.
        out: the page; None: ``compare.html`` in the first folder.

    Returns:
        The path of the page.

    Raises:
        DataError: a folder does not exist or is repeated, or there are too many or too few.
    """
    require_comparable(folders)
    for folder in folders:
        if not folder.is_dir():
            raise DataError(f"no run folder at {folder}; pass a folder that `mmgrpo train` wrote")
    return write_page(out or folders[0] / "compare.html", "compare.html.jinja", _page(_runs(folders)))


def live_comparison(folders: Sequence[Path], links: Mapping[str, str], version: str) -> str:
    """The comparison of existing run folders as a page that reloads itself; nothing is written.

    Args:
        folders: two to six run folders.
        links: label -> path of the other pages of the server.
        version: version of the page.

    Returns:
        HTML.
    """
    return render_page("compare.html.jinja", {**_page(_runs(folders)), "links": links, "live": version})


def require_comparable(folders: Sequence[Path]) -> None:
    """Raises DataError if there are too few or too many folders, or one is repeated; none has to exist."""
    if not 2 <= len(folders) <= MAX_RUNS:
        raise DataError(f"cannot compare {len(folders)} runs; pass two to {MAX_RUNS}")
    if len({folder.resolve() for folder in folders}) < len(folders):
        raise DataError("a run folder is repeated; pass each run folder once")


def _runs(folders: Sequence[Path]) -> list[ComparedRun]:
    labels = run_labels([folder.resolve() for folder in folders])
    return [_read(folder, label) for folder, label in zip(folders, labels, strict=True)]


def run_labels(folders: Sequence[Path]) -> list[str]:
    """The last parts of each path, as many as make the labels unique."""
    for count in range(1, max(len(folder.parts) for folder in folders)):
        labels = ["/".join(folder.parts[-count:]) for folder in folders]
        if len(set(labels)) == len(labels):
            return labels
    return [str(folder) for folder in folders]


def _read(folder: Path, label: str) -> ComparedRun:
    files = RunFiles(folder)
    sample_sets = read_sample_sets(files)
    return ComparedRun(
        label=label,
        files=files,
        about=read_about(files),
        settings=_settings(files.text("config.yaml")),
        metrics=read_log(files, "metrics.jsonl"),
        evaluation=read_log(files, "evaluation.jsonl"),
        sample_set=sample_sets[-1] if sample_sets else None,
    )


def _settings(text: str | None) -> dict[str, str]:
    try:
        config = parse_yaml(text or "")
    except YamlError:
        return {}
    return dict(_leaves(config)) if isinstance(config, dict) else {}


def _leaves(values: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """(dotted key, value) of every setting; a mapping in a list has its label or name as key."""
    for key, value in values.items():
        inner = _by_name(value) if isinstance(value, list) else value
        if isinstance(inner, dict) and inner:
            yield from _leaves(inner, f"{prefix}{key}.")
        elif value is not None:
            yield f"{prefix}{key}", str(value)


def _by_name(members: Sequence[Any]) -> dict[str, Any] | None:
    """The members of a list by label or name, or by position if those repeat; None if they are not mappings."""
    if not all(isinstance(member, dict) for member in members):
        return None
    names = [str(member.get("label") or member.get("name") or index) for index, member in enumerate(members)]
    return dict(zip(names if len(set(names)) == len(names) else map(str, range(len(names))), members, strict=True))


def _page(runs: Sequence[ComparedRun]) -> dict[str, Any]:
    overviews = [dict(overview_rows(run.about, run.metrics)) | dict(environment(run.about)) for run in runs]
    measures_by_run = [{item.name: item for item in headlines(run.evaluation)} for run in runs]
    return {
        "links": {},
        "statuses": [str(run.about.get("status") or "not recorded") for run in runs],
        "facts": _rows([dict(list(overview.items())[:MAX_ROWS]) for overview in overviews]),
        "differences": [row for row in _rows([run.settings for run in runs]) if len(set(row[1])) > 1],
        "measured": _rows(measures_by_run),
        "section": unique_sections({"all": _charts(runs)})["all"],
        **_request_values(runs),
        "left_out": [(run.label, name) for run in runs for name in [*run.files.refused, *run.files.cut][:MAX_ROWS]],
        "unreadable": [
            (run.label, log.name, log.num_unreadable)
            for run in runs
            for log in (run.metrics, run.evaluation, *([run.sample_set.log] if run.sample_set else []))
            if log.num_unreadable
        ],
    }


def same_requests(folders: Mapping[str, Path]) -> dict[str, Any]:
    """The values of the section of requests for runs by label; of more than six runs, of the first six.

    Args:
        folders: label -> run folder.

    Returns:
        The values of ``requests.html.jinja``; ``requests`` is empty if the runs share none.
    """
    return _request_values([_read(folder, label) for label, folder in list(folders.items())[:MAX_RUNS]])


def _request_values(runs: Sequence[ComparedRun]) -> dict[str, Any]:
    return {
        "labels": [run.label for run in runs],
        "requests": _shared_requests(runs),
        "verdicts": binary_rewards([record for run in runs if run.sample_set for record in run.sample_set.records]),
        "steps": [run.sample_set.step if run.sample_set else None for run in runs],
    }


def _rows(columns: Sequence[Mapping[str, str | Headline]]) -> list[tuple[str, list[Any]]]:
    """(key, value of each column) of every key that any column has; None for a column without it."""
    keys = list(dict.fromkeys(key for column in columns for key in column))[:MAX_ROWS]
    return [(clip(key, 200), [_short(column.get(key)) for column in columns]) for key in keys]


def _short(value: str | Headline | None) -> str | Headline | None:
    return clip(value, 300) if isinstance(value, str) else value


def _charts(runs: Sequence[ComparedRun]) -> list[Chart]:
    """A chart per measure, with a curve of each run that has it."""
    names = list(dict.fromkeys(name for run in runs for name in measures(run.evaluation)))
    series = [("evaluation", f"eval/{name}/mean", name) for name in names]
    series += [("metrics", key, title) for key, title in TRAINING.items()]
    charts = []
    for log, key, title in series:
        curves = [read_curve(run.evaluation if log == "evaluation" else run.metrics, key, run.label) for run in runs]
        spans = [span(curve) for curve in curves if curve.points]
        shares = log == "evaluation" and spans and all(low >= 0 and high <= 1 for low, high in spans)
        charts.append(draw_chart(title, curves, within=(0.0, 1.0) if shares else ()))
    return [chart for chart in charts if chart]


def _shared_requests(runs: Sequence[ComparedRun]) -> list[tuple[str, list[tuple[Any, Any]]]]:
    """(prompt, image and sample of each run) of a few requests that all runs have at their last evaluated step."""
    sample_sets = [run.sample_set for run in runs if run.sample_set]
    if len(sample_sets) < len(runs):
        return []
    common = set(shared_requests(sample_sets[:1])).intersection(
        *(shared_requests([sample_sets[0], a]) for a in sample_sets[1:])
    )
    by_prompt: dict[str, list[int]] = {}
    for index in sorted(common):
        by_prompt.setdefault(sample_sets[0].records[index].prompt, []).append(index)
    chosen = sorted(in_turn(list(by_prompt.values()), MAX_REQUESTS))
    common_names = {change.name for change in common_changes(sample_sets, sorted(common))}
    scales = scales_of(sample_sets, common_names)
    share = MEDIA_BYTES // max(len(chosen) * len(runs), 1)
    builders = [CellBuilder(files=run.files, share=share, scales=scales) for run in runs]
    return [
        (
            sample_sets[0].records[index].prompt,
            [
                (
                    builder.cell(sample_set, index) if sample_set.records[index].path else None,
                    _without(sample_set.records[index], common_names),
                )
                for builder, sample_set in zip(builders, sample_sets, strict=True)
            ],
        )
        for index in chosen
    ]


def _without(record: SampleRecord, names: Container[str]) -> SampleRecord:
    return replace(record, rewards={name: value for name, value in record.rewards.items() if name not in names})
