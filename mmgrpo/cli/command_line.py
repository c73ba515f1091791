"""The commands of ``mmgrpo``: ``mmgrpo train CONFIG [a.b=c ...]`` and the others."""

from __future__ import annotations

import inspect
import json
import shlex
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.table import Table

from mmgrpo import __version__
from mmgrpo.cli.listings import methods, policies, recipes, rewards
from mmgrpo.cli.overrides_command import OverridesCommand
from mmgrpo.cli.plain_errors import console, plain_errors
from mmgrpo.cli.run_inputs import (
    evaluated_settings_of,
    evaluation_of,
    is_series,
    job_of,
    policy_of,
    print_importing,
    prompt_of_command,
    prompts_of,
    resumed_settings,
    sampler_of,
    settings_of,
    single_settings_of,
    task_settings_of,
    weights_for,
)
from mmgrpo.errors import ConfigError
from mmgrpo.system import interrupts
from mmgrpo.system.console import PlainConsole, escape_controls, plain_excepthook, shorten, styled, use_plain_logging

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mmgrpo.types import Sample

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, pretty_exceptions_enable=False)
EXIT_CODES = {"interrupted": 130, "terminated": 143}  # 128 + signal number, as shells report them

Config = Annotated[
    str, typer.Argument(help="A YAML file, a run folder, or a shipped name such as quickstart/digits-image.")
]
Overrides = Annotated[list[str] | None, typer.Argument(help="Settings that override the file: a.b=c.")]
TaskOption = Annotated[str | None, typer.Option(help="The task of a mixed run.")]
BestOption = Annotated[
    bool, typer.Option("--best", help="Use the run's best checkpoint by checkpoint.best, not the newest.")
]
TrustOption = Annotated[
    bool,
    typer.Option("--trust", help="Let someone else's run folder execute the code and call the servers that it names."),
]
CheckpointOption = Annotated[Path | None, typer.Option(help="The run folder or checkpoint to load the weights from.")]


def _print_version(requested: bool) -> None:
    if requested:
        typer.echo(f"mmgrpo {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """GRPO for anything that generates."""
    use_plain_logging()
    sys.excepthook = plain_excepthook


@app.command(cls=OverridesCommand)
def train(
    config: Annotated[str | None, typer.Argument(help="A YAML file or a shipped name; optional with --resume.")] = None,
    overrides: Overrides = None,
    trust: TrustOption = False,
    resume: Annotated[
        Path | None,
        typer.Option(help="The run folder or checkpoint to resume; its config.yaml is used unless you pass CONFIG."),
    ] = None,
    accelerate: Annotated[
        str | None,
        typer.Option(help="Train on several processes: gpus, fsdp2, zero2, zero3, or a file of accelerate config."),
    ] = None,
    processes: Annotated[
        int | None, typer.Option(min=1, help="Number of processes (default: from the file, else one per GPU).")
    ] = None,
) -> None:
    """Train a model; write a run folder with metrics, samples, checkpoints and report.html."""
    interrupts.install()
    with plain_errors():
        if accelerate is not None:
            from mmgrpo.cli.launch import launch

            if resume is not None and not is_series(resume):  # report errors once, not from each process
                resumed_settings(resume, config, overrides or [], computes=False)
            elif resume is None and config is not None:
                settings_of(config, overrides, computes=False, trust=trust, trains=True)
            arguments = [*([config] if config else []), *(overrides or [])]
            arguments += [*(["--resume", str(resume)] if resume else []), *(["--trust"] if trust else [])]
            launch(accelerate, arguments, processes=processes)
        if processes is not None:
            raise ConfigError("--processes needs --accelerate: add it, for example --accelerate gpus")
        from mmgrpo.cli.train import resume_series, train_one, train_series

        if resume is not None and is_series(resume):
            run_end = resume_series(resume, [*([config] if config else []), *(overrides or [])], console.print_line)
        elif resume is not None:
            run_end = train_one(resumed_settings(resume, config, overrides or []), resume)
        elif config is None:
            raise ConfigError("train needs a configuration (a YAML file or a shipped name), or --resume RUN")
        else:
            settings = settings_of(config, overrides, trust=trust, trains=True)
            run_end = train_series(settings, console.print_line) if settings.series else train_one(settings)
        if run_end.main:
            console.print_line(f"report: {run_end.run / 'report.html'}")
        raise typer.Exit(EXIT_CODES.get(run_end.status, 0))


@app.command(cls=OverridesCommand)
def sample(
    config: Config,
    prompt: Annotated[str, typer.Argument(help="The prompt.")],
    overrides: Overrides = None,
    checkpoint: CheckpointOption = None,
    best: BestOption = False,
    task: TaskOption = None,
    trust: TrustOption = False,
    out: Annotated[
        Path, typer.Option(help="Folder of the results; if it has samples already, a new folder next to it is used.")
    ] = Path("samples"),
    count: Annotated[int, typer.Option(min=1, help="Number of samples.")] = 4,
    seed: Annotated[int, typer.Option(help="Random seed.")] = 0,
    image: Annotated[list[Path] | None, typer.Option(help="An input image; repeatable.")] = None,
    audio: Annotated[list[Path] | None, typer.Option(help="An input audio file; repeatable.")] = None,
    column: Annotated[
        list[str] | None, typer.Option(help="A column of the data row as NAME=VALUE, parsed as YAML; repeatable.")
    ] = None,
    noise: Annotated[
        bool, typer.Option("--noise", help="Sample as training does; without it texts are decoded greedily.")
    ] = False,
) -> None:
    """Generate samples for one prompt from the base model or a checkpoint; print texts too."""
    with plain_errors():
        from mmgrpo.config.loading import parsed_pairs
        from mmgrpo.runs.prompt_samples import captions_of, write_prompt_samples
        from mmgrpo.training.build import build_rewards, exchange_plan
        from mmgrpo.training.evaluation import sample_prompt
        from mmgrpo.training.held_out_sampling import conversations

        run = task_settings_of(config, overrides, task, trust=trust)
        settings, weights = run.settings, weights_for(config, checkpoint, task, best=best)
        judges = (settings.evaluation and settings.evaluation.rewards) or settings.rewards
        sampler, policy = sampler_of(run, weights, job_of(settings)), policy_of(settings, weights)
        columns = parsed_pairs(column or [], "--column", "label=3")
        command_prompt = prompt_of_command(settings, prompt, columns, images=image or (), audios=audio or ())
        plan = exchange_plan(settings)
        results = sample_prompt(
            policy, command_prompt, build_rewards(judges), sampler, count=count, seed=seed, noise=noise, plan=plan
        )
        folder = write_prompt_samples(results, out)
        texts = [
            (_conversation_text([results.samples[row] for row in rows]), rows)
            for rows in conversations(results.samples)
            if results.samples[rows[0]].text is not None
        ]
        rows_of = dict(reversed(texts))
        for text, times in Counter(text for text, _ in texts).items():
            scores = "  ".join(caption for row in rows_of[text] for caption in captions_of(results.scores, row))
            repeated = f"({times} times) " if times > 1 else ""
            typer.echo(f"{escape_controls(text)}\n{repeated}{escape_controls(scores) or '-' * 40}")
        for name, reason in results.unscored.items():
            console.print_line(f"not scored by {name}: {shorten(reason)}")
        console.print_line(f"{count} samples in {folder}")


@app.command(cls=OverridesCommand)
def evaluate(
    config: Config,
    overrides: Overrides = None,
    checkpoint: CheckpointOption = None,
    best: BestOption = False,
    task: TaskOption = None,
    trust: TrustOption = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one line of JSON; keys of a mixed run start with the task.")
    ] = False,
) -> None:
    """Evaluate a run (all tasks of a mixed run), a checkpoint or the base model on held-out prompts."""
    with plain_errors():
        from mmgrpo.explain.explanation import evaluation_notes
        from mmgrpo.training.mixed import under_task

        table = Table("reward", "mean", "spread", "scored", "failed", box=None, header_style="bold")
        metrics: dict[str, float] = {}
        for name, run in evaluated_settings_of(config, overrides, task, trust=trust).items():
            for note in evaluation_notes(run.settings):
                PlainConsole(stderr=True).print_line(f"note: {f'{name}: ' if name else ''}{note}")
            result = evaluation_of(run, weights_for(config, checkpoint, task or name, best=best))
            for row in result.rows() if result else ():
                table.add_row(f"{name}/{row[0]}" if name else row[0], *row[1:])
            for key, value in result.metrics().items() if result else ():
                metrics[under_task(name, key) if name else key] = value
        if metrics and as_json:
            sys.stdout.write(json.dumps(metrics) + "\n")
        elif metrics:
            console.print(table)


@app.command()
def export(
    run: Annotated[str, typer.Argument(help="A run folder or checkpoint.")],
    to: Annotated[
        Path | None,
        typer.Option(help="Output folder (default: exports/RUN); if it exists, a new folder next to it is used."),
    ] = None,
    merged: Annotated[
        bool, typer.Option("--merged", help="Merge the adapters into the model and write the full model.")
    ] = False,
    dtype: Annotated[
        Literal["float32", "bfloat16"] | None,
        typer.Option(help="Data type of a full model (default: the one that it was loaded in)."),
    ] = None,
    best: BestOption = False,
    task: TaskOption = None,
    trust: TrustOption = False,
    push: Annotated[str | None, typer.Option(help="Repository on the hub to upload to: owner/name.")] = None,
    public: Annotated[bool, typer.Option("--public", help="Make a repository that --push creates public.")] = False,
) -> None:
    """Write a run's adapters or full model for diffusers, peft and transformers, with a model card."""
    with plain_errors():
        from mmgrpo.cli.export import ExportRequest, export_run, push_export

        if public and push is None:
            raise ConfigError("--public needs --push OWNER/NAME, the repository to create")
        folder = export_run(run, ExportRequest(to=to, merged=merged, dtype=dtype, best=best, task=task, trust=trust))
        console.print_line(f"exported to {folder}")
        if push is not None:
            console.print_line(f"pushed: {push_export(folder, push, public=public)}")


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(help="A run folder, or several to compare.")],
    out: Annotated[
        Path | None, typer.Option(help="Page of several runs (default: compare.html in the first folder).")
    ] = None,
    png: Annotated[
        Path | None, typer.Option(help="Write the images or videos before and after to this file instead.")
    ] = None,
    gif: Annotated[
        Path | None, typer.Option(help="Write the images or videos over the steps to this file instead.")
    ] = None,
) -> None:
    """Write report.html into a run folder, or one page that compares several runs."""
    with plain_errors():
        from mmgrpo.report import write_comparison, write_gif, write_png, write_report

        if len(runs) == 1 and out is not None:
            raise ConfigError("--out is for several runs; the report of one is report.html in its folder")
        if len(runs) > 1 and (png or gif):
            raise ConfigError("--png and --gif are of one run; pass one run folder")
        pictures = [(write_png, png), (write_gif, gif)]
        for write, path in pictures:
            if path is not None:
                console.print_line(str(write(runs[0], path)))
        if png is None and gif is None:
            console.print_line(str(write_report(runs[0]) if len(runs) == 1 else write_comparison(runs, out)))


@app.command()
def watch(
    runs: Annotated[list[Path], typer.Argument(help="A run folder, or several to compare; none has to exist yet.")],
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port of this machine; 0: a free one.")] = 8765,
) -> None:
    """Serve the report of a running run at http://127.0.0.1; the page reloads itself. Press Ctrl+C to end."""
    with plain_errors():
        from mmgrpo.report.live_server import ADDRESS, live_server

        with live_server(runs, port) as server:
            console.print_line(f"watching {', '.join(map(str, runs))} at http://{ADDRESS}:{server.server_port}")
            try:
                server.serve_forever()
            except KeyboardInterrupt:
                console.print_line("ended")


@app.command()
def compare(
    methods: Annotated[
        list[str],
        typer.Argument(help="Methods, such as grpo gspo, or files; and a.b=c, which overrides settings of every run."),
    ],
    on: Annotated[str, typer.Option(help="The task: a YAML file or a shipped name.")],
    seeds: Annotated[int, typer.Option(min=1, help="Number of seeds, starting at the seed of the task.")] = 3,
    jobs: Annotated[int, typer.Option(min=1, help="Number of runs at a time.")] = 1,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the runs and the page (default: comparisons/TASK).")
    ] = None,
) -> None:
    """Train several methods on one task and compare them; the same command resumes an interrupted comparison."""
    with plain_errors():
        from mmgrpo.cli.compare import compare_methods
        from mmgrpo.trials.run_trials import ComparisonInterrupted

        try:
            page, has_failures = compare_methods(
                methods, on, num_seeds=seeds, num_jobs=jobs, out=out, print_line=console.print_line
            )
        except ComparisonInterrupted as interruption:
            raise typer.Exit(interruption.exit_code) from None
        console.print_line(f"page: {page}" if page else "no run has ended, so there is no page")
        raise typer.Exit(1 if has_failures else 0)


@app.command(cls=OverridesCommand)
def doctor(config: Config, overrides: Overrides = None, trust: TrustOption = False) -> None:
    """Check exactness, windows, the reference model and the rewards on your model; print suggested fixes."""
    with plain_errors():
        from mmgrpo.config.parts import tasks_of
        from mmgrpo.doctor.examination import examine, render
        from mmgrpo.training.build import build_rewards

        run_settings, is_ok = settings_of(config, overrides, trust=trust), True
        for name, settings in (tasks_of(run_settings) or {"": run_settings}).items():
            rewards, prompts = build_rewards(settings.rewards), prompts_of(settings)
            policy = policy_of(settings, None)
            results = examine(settings, policy, rewards, prompts)
            if name:
                console.print(styled(name, "bold"))
            console.print(render(results))
            is_ok = is_ok and all(result.ok for result in results)
        if not is_ok:
            raise typer.Exit(1)


@app.command(cls=OverridesCommand)
def explain(
    config: Config,
    overrides: Overrides = None,
    trust: TrustOption = False,
    processes: Annotated[
        int | None, typer.Option(min=1, help="Predict memory and time per process for this number of processes.")
    ] = None,
    accelerate: Annotated[
        str, typer.Option(help="How the model is distributed: gpus, fsdp2, zero2 or zero3.")
    ] = "gpus",
    tflops: Annotated[
        float | None, typer.Option(min=1e-6, help="Speed of a process, in 1e12 operations per second.")
    ] = None,
    memory_gb_s: Annotated[float | None, typer.Option(min=1e-6, help="Memory bandwidth, in 1e9 bytes/s.")] = None,
    launch_us: Annotated[float | None, typer.Option(min=0, help="Minimum time per operator, in microseconds.")] = None,
    link_gb_s: Annotated[
        float | None, typer.Option(min=1e-6, help="Bandwidth between processes, in 1e9 bytes/s.")
    ] = None,
    measure: Annotated[
        bool,
        typer.Option("--measure", help="Measure this machine instead of --tflops, --memory-gb-s and --launch-us."),
    ] = False,
    prompt_tokens: Annotated[
        int, typer.Option(min=1, help="Prompt length of a language model in tokens, images included.")
    ] = 512,
) -> None:
    """Print the resolved formula with its settings, the batch geometry and the cost of a sample; load no model."""
    with plain_errors():
        from mmgrpo.config.parts import singles_of
        from mmgrpo.config.registry import OUTLINES
        from mmgrpo.docgen.signatures import require_settings
        from mmgrpo.explain.explanation import explanation
        from mmgrpo.explain.lines import WIDTH, labeled_lines

        if accelerate not in (engines := ("gpus", "fsdp2", "zero2", "zero3")):
            raise ConfigError(f"--accelerate {accelerate}: use one of {', '.join(engines)}")
        if measure and processes is None:
            raise ConfigError("--measure needs --processes N, the number of processes to predict for")
        if measure and (tflops, memory_gb_s, launch_us) != (None, None, None):
            raise ConfigError("--measure replaces --tflops, --memory-gb-s and --launch-us; remove it or them")
        width = min(WIDTH, console.width) if sys.stdout.isatty() else WIDTH
        for settings in singles_of(settings_of(config, overrides, computes=False, trust=trust)):
            require_settings(settings)
            typer.echo(escape_controls(explanation(settings, width)))
            if processes is None and settings.policy is not None and settings.policy.name in OUTLINES:
                hint = "add --processes 1 for memory, time and the GPUs that fit"
                typer.echo(labeled_lines([("memory", hint)], width))
            if processes is not None:
                from mmgrpo.explain.card_sizes import card_rows
                from mmgrpo.explain.operator_times import MachineSpeed, measured_speed
                from mmgrpo.explain.process_scale import ShardingEngine, plan_processes, require_shardable, scale_rows

                sharding = ShardingEngine(accelerate)
                require_shardable(settings, sharding)
                print_line = PlainConsole(stderr=True).print_line
                plan = plan_processes(
                    settings, num_processes=processes, prompt_tokens=prompt_tokens, print_line=print_line
                )
                numbers: dict[str, Any] = {
                    "tflops": tflops,
                    "memory_gb_s": memory_gb_s,
                    "launch_us": launch_us,
                    "link_gb_s": link_gb_s,
                }
                speed = MachineSpeed(**{name: number for name, number in numbers.items() if number is not None})
                if measure:
                    speed = measured_speed(plan.dtype, device=plan.device, link_gb_s=speed.link_gb_s)
                rows = [*scale_rows(plan, speed, sharding), *card_rows(plan, sharding, print_line)]
                typer.echo(labeled_lines(rows, width))


@app.command("serve-rewards", cls=OverridesCommand)
def serve_rewards(
    config: Config,
    overrides: Overrides = None,
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0: all addresses.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port to listen on.")] = 8000,
    token_variable: Annotated[
        str | None, typer.Option(help="Environment variable that holds the bearer token.")
    ] = None,
    max_batch: Annotated[int, typer.Option(min=1, help="Maximum number of samples scored in one call.")] = 64,
    window_ms: Annotated[
        float, typer.Option(min=0, help="Time that a request waits to be batched with others, in milliseconds.")
    ] = 5.0,
    max_body_mb: Annotated[int, typer.Option(min=1, help="Maximum request size, in MiB.")] = 256,
    task: TaskOption = None,
    trust: TrustOption = False,
    timeout_s: Annotated[float, typer.Option(min=0.001, help="Maximum time to score a request, in seconds.")] = 110.0,
) -> None:
    """Serve the configuration's rewards over HTTP; other runs call them by the reward named remote."""
    with plain_errors():
        print_importing()
        from mmgrpo.serving.wire import token_of
        from mmgrpo.system.extras import missing
        from mmgrpo.training.build import build_rewards

        try:
            from mmgrpo.serving.app import ServerLimits, make_app
            from mmgrpo.serving.server import ignored_settings, serve
        except ModuleNotFoundError as error:
            raise missing(error.name or "fastapi", "a server") from error
        limits = ServerLimits(
            max_batch=max_batch, window_s=window_ms / 1000, max_body=max_body_mb * 2**20, score_timeout_s=timeout_s
        )
        settings = single_settings_of(config, overrides, task, trust=trust)
        rewards = build_rewards(settings.rewards)
        app = make_app(rewards, limits=limits, token=token_of(token_variable))
        served = ", ".join(reward.name for reward in rewards)
        if token_variable is None and host not in ("127.0.0.1", "localhost", "::1"):
            console.print_line(
                styled("warning:", "bold yellow"),
                "any client that reaches this machine can send requests; set --token-variable to require a token",
            )
        if ignored := ", ".join(ignored_settings(settings)):
            console.print_line(
                styled("warning:", "bold yellow"),
                "a server only scores; weights and schedules belong in the configuration of the training run. "
                f"These settings have no effect here: {ignored}",
            )
        console.print_line(f"serving {served} at http://{host}:{port}/score")
        serve(app, host=host, port=port)


@app.command()
def init(
    folder: Annotated[
        Path, typer.Argument(help="Output folder, created if missing; with --from the file to read.")
    ] = Path(),
    kind: Annotated[
        str,
        typer.Option(help="The model of the first run: text, vlm, image, edit, video; digits is a small one."),
    ] = "digits",
    library: Annotated[
        str | None,
        typer.Option(
            "--from", help="Convert a file of another library into run.yaml: trl, a GRPOConfig script or YAML."
        ),
    ] = None,
    arguments: Annotated[
        str | None,
        typer.Option(help="With --from: the arguments of the script's command line, in quotes."),
    ] = None,
) -> None:
    """Write a first run to edit: a configuration, a reward, prompts; or convert a run of TRL."""
    with plain_errors():
        from mmgrpo.cli.init import write_converted_run, write_starter_files

        if library is not None:
            console.print_line(f"wrote {write_converted_run(library, folder, arguments)}")
            console.print_line("mmgrpo explain run.yaml")
            return
        if arguments is not None:
            raise ConfigError("--arguments needs --from, the library whose script reads them: remove it")
        for path in write_starter_files(folder, kind):
            console.print_line(f"wrote {path}")
        console.print_line(f"{'' if folder == Path() else f'cd {shlex.quote(str(folder))} && '}mmgrpo train run.yaml")


def _conversation_text(samples: Sequence[Sample]) -> str:
    """The text of a sample; of a conversation between roles, that of each turn under the name of its role."""
    if len(samples) == 1:
        return _sample_text(samples[0])
    return "\n".join(f"{sample.prompt_template}: {_sample_text(sample)}" for sample in samples)


def _sample_text(sample: Sample) -> str:
    """The text; of a conversation its turns, each followed by an arrow and the environment's reply."""
    if not sample.turn_texts:
        return f"{sample.text}{'' if sample.finished else ' ... (cut off by the length limit)'}"
    lines = []
    for text, reply in zip(sample.turn_texts, sample.turn_replies or [None] * len(sample.turn_texts), strict=True):
        lines.append(text)
        if reply is not None and (reply.text or reply.num_media):
            media = f"[{reply.num_media} {'medium' if reply.num_media == 1 else 'media'}]" if reply.num_media else ""
            lines.append(" ".join(filter(None, ("→", media, reply.text))))
    if not sample.finished:
        lines.append("... (cut off: a limit of the tokens or turns was reached)")
    return "\n".join(lines)


for _listing in (recipes, policies, rewards, methods):
    app.command()(_listing)

EXAMPLES = {
    "train": "mmgrpo train quickstart/digits-image steps=20 seed=1",
    "sample": 'mmgrpo sample runs/digits-image "a handwritten digit three" --count 8',
    "evaluate": "mmgrpo evaluate runs/digits-image --best --json",
    "export": "mmgrpo export runs/digits-image --merged --push owner/name",
    "report": "mmgrpo report runs/first runs/second --out compare.html",
    "watch": "mmgrpo watch runs/digits-image --port 8765",
    "compare": "mmgrpo compare grpo gspo --on quickstart/arithmetic-text --seeds 3",
    "doctor": "mmgrpo doctor recipes/qwen2.5-vl-geometry3k",
    "explain": "mmgrpo explain recipes/sd3.5-flow-grpo-fast --processes 8 --accelerate fsdp2",
    "serve-rewards": "mmgrpo serve-rewards quickstart/digits-image --port 8000",
    "init": "mmgrpo init my-run --kind vlm",
    "recipes": "mmgrpo recipes flux",
    "policies": "mmgrpo policies",
    "rewards": "mmgrpo rewards pick_score",
    "methods": "mmgrpo methods --for length",
}

for _command in app.registered_commands:  # without short_help, click truncates the first line
    _command.short_help = (inspect.getdoc(_command.callback) or "").partition("\n")[0]
    _command.epilog = f"Example: {EXAMPLES[_command.name or getattr(_command.callback, '__name__', '')]}"
