"""The report page of a run folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mmgrpo.errors import DataError
from mmgrpo.report.chart_sections import unique_sections
from mmgrpo.report.contact_sheet import contact_sheet, encoded_image, opening_strip, steps_gif
from mmgrpo.report.embedded_media import data_uri
from mmgrpo.report.image_grids import image_grids_of
from mmgrpo.report.logs import by_step, by_tasks, mean_or_none, read_log
from mmgrpo.report.number_format import clip
from mmgrpo.report.page_templates import render_page, write_page
from mmgrpo.report.phase_times import phases
from mmgrpo.report.run_charts import (
    completion_charts,
    evaluation_charts,
    headlines,
    measures,
    other_charts,
    policy_charts,
    reward_charts,
    total_rewards,
    unrecorded_titles,
)
from mmgrpo.report.run_files import RunFiles
from mmgrpo.report.run_info import (
    environment,
    overview_rows,
    parse_note,
    parse_tasks,
    read_about,
    run_name,
    training_summary,
)
from mmgrpo.report.sample_sets import SampleSet, read_sample_sets
from mmgrpo.report.text_samples import MEDIA_BYTES, texts_of
from mmgrpo.system.files import replace_bytes

PREVIEW = "preview.png"
MAX_GIF_BYTES = 900_000
"""Of the animation that the page offers to save; ``mmgrpo report --gif`` writes larger ones."""

ALERT_KEYS = ("step", "kind", "measured", "suggested_fix")


def write_report(run: Path) -> Path:
    """Renders a run folder into ``report.html`` inside it; an earlier report is replaced.

    A run with images or videos also gets ``preview.png``, the picture that a link to the page shows.

    Args:
        run: the run folder; any of its files may be missing.

    Returns:
        The path of the page.

    Raises:
        DataError: if there is no such folder.
    """
    run = Path(run)
    if not run.is_dir():
        raise DataError(f"no run folder at {run}; a report is made from the folder that `mmgrpo train` wrote")
    values = _page(run)
    if (sheet := contact_sheet(RunFiles(run))) is not None:
        replace_bytes(run / PREVIEW, encoded_image(sheet, "PNG"))
        values["preview"] = PREVIEW
    return write_page(run / "report.html", "template.html.jinja", values)


def live_report(run: Path, links: Mapping[str, str], version: str) -> str:
    """The report of a run as a page that reloads itself; nothing is written.

    Args:
        run: an existing run folder.
        links: label -> path of the other pages of the server.
        version: version of the page.

    Returns:
        HTML.
    """
    return render_page("template.html.jinja", {**_page(run), "links": links, "live": version})


def _page(run: Path) -> dict[str, Any]:
    files = RunFiles(run)
    about, config_text = read_about(files), files.text("config.yaml")
    logs = ("metrics", "warmup", "evaluation", "alerts")
    metrics, warmup, evaluation, alerts = (read_log(files, f"{name}.jsonl") for name in logs)
    tasks = parse_tasks(config_text)
    evaluation = by_tasks(evaluation) if tasks else evaluation
    sample_sets, trained = read_sample_sets(files), read_sample_sets(files, "train")
    image_grids = image_grids_of(files, sample_sets)
    texts = texts_of(files, sample_sets, trained, media_bytes=MEDIA_BYTES // 4 if image_grids else MEDIA_BYTES)
    versions = about.get("versions")
    return {
        "about": about,
        "name": run_name(files),
        "folder": run.resolve().name,
        "note": parse_note(config_text),
        "tasks": tasks,
        "links": {},
        "preview": None,
        "summary": training_summary(config_text),
        "opening": opening_strip(files, sample_sets),
        "gif": _embedded_gif(files, sample_sets) if image_grids else None,
        "facts": overview_rows(about, metrics),
        "headlines": headlines(evaluation),
        "evaluation": evaluation,
        "alerts": [{key: clip(str(row.get(key, ""))) for key in ALERT_KEYS} for row in alerts.rows],
        "measures": measures(evaluation),
        "sections": unique_sections(
            {
                "evaluation": evaluation_charts(evaluation),
                "reward": reward_charts(metrics, tasks),
                "completions": completion_charts(metrics),
                "policy": policy_charts(metrics, warmup),
                "other": other_charts(metrics),
            }
        ),
        "has_reward": any(metrics.has(key) for key in total_rewards(tasks)),
        "image_grids": image_grids,
        "num_reduced": sum(1 for cell in image_grids.cells if cell.image and not cell.image.exact)
        if image_grids
        else 0,
        "texts": texts,
        "unrecorded": [] if tasks else unrecorded_titles(metrics, warmup),
        "phases": phases(about, metrics, warmup, evaluation),
        "forwards": mean_or_none(by_step(metrics, "count/forwards_per_sample", max).values()),
        "config_text": config_text,
        "environment": environment(about),
        "versions": versions if isinstance(versions, dict) else {},
        "checkpoints": files.folders("checkpoints", "step-"),
        "refused": list(files.refused),
        "cut": list(files.cut),
        "unreadable": [
            log
            for log in (metrics, warmup, evaluation, alerts, *(a.log for a in (*sample_sets, *trained)))
            if log.num_unreadable
        ],
    }


def _embedded_gif(files: RunFiles, sample_sets: Sequence[SampleSet]) -> str | None:
    """The animation over the steps as a data URI; None if it is too large or has one step."""
    data = steps_gif(files, sample_sets) if len(sample_sets) > 1 else None
    return data_uri(data, "GIF") if data is not None and len(data) <= MAX_GIF_BYTES else None
