"""The command line: ``mmgrpo train CONFIG [a.b=c ...]`` and its companions."""

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
from mmgrpo.cli.plain_errors import console, plain_errors
from mmgrpo.cli.run_inputs import (
    evaluated_settings_of,
    is_series,
    judged_by,
    policy_of,
    prompts_of,
    resumed_settings,
    say_importing,
    settings_of,
    shown_prompt,
    single_settings_of,
    weights_for,
)
from mmgrpo.errors import ConfigError
from mmgrpo.system import interrupts
from mmgrpo.system.console import PlainConsole, brief, log_plainly, raised_plainly, shown, styled

if TYPE_CHECKING:
    from mmgrpo.types import Sample

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, pretty_exceptions_enable=False)
EXIT_CODES = {"interrupted": 130, "terminated": 143}  # as a shell gives them

Config = Annotated[
    str, typer.Argument(help="a YAML file, a run folder, or a shipped name such as quickstart/digits-image")
]
Overrides = Annotated[list[str] | None, typer.Argument(help="a.b=c, laid over the file")]
TaskOption = Annotated[str | None, typer.Option(help="of a mixed run: the task that is meant")]
BestOption = Annotated[
    bool, typer.Option("--best", help="of the run's checkpoints the best by checkpoint.best, not the newest")
]
TrustOption = Annotated[
    bool, typer.Option("--trust", help="a run folder that is not yours may run the code and ask the servers it names")
]
CheckpointOption = Annotated[Path | None, typer.Option(help="a run folder or checkpoint whose weights are used")]


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"mmgrpo {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="says which")] = False,
) -> None:
    """GRPO for anything that generates."""
    log_plainly()
    sys.excepthook = raised_plainly


@app.command()
def train(
    config: Annotated[
        str | None, typer.Argument(help="a YAML file, or a shipped name; may be left out with --resume")
    ] = None,
    overrides: Overrides = None,
    trust: TrustOption = False,
    resume: Annotated[
        Path | None, typer.Option(help="a run folder or checkpoint to go on from, by its own config.yaml if alone")
    ] = None,
    accelerate: Annotated[
        str | None, typer.Option(help="on several processes: gpus, fsdp2, zero2, zero3, or a file of accelerate config")
    ] = None,
    processes: Annotated[
        int | None, typer.Option(min=1, help="how many, if not as that file says or one a GPU")
    ] = None,
) -> None:
    """Trains, and writes a run folder with metrics, samples, checkpoints and report.html."""
    interrupts.install()
    with plain_errors():
        if accelerate is not None:
            from mmgrpo.cli.launch import launch

            if resume is not None and not is_series(resume):  # what is wrong is said once, and not by each process
                resumed_settings(resume, config, overrides or [], computes=False)
            elif resume is None and config is not None:
                settings_of(config, overrides, computes=False, trust=trust, trains=True)
            again = [*([config] if config else []), *(overrides or []), *(["--resume", str(resume)] if resume else [])]
            launch(accelerate, [*again, *(["--trust"] if trust else [])], processes=processes)
        if processes is not None:
            raise ConfigError("--processes says how many of --accelerate: give that too, gpus for example")
        from mmgrpo.cli.train import resume_series, train_one, train_series

        if resume is not None and is_series(resume):
            ended = resume_series(resume, [*([config] if config else []), *(overrides or [])], console.say)
        elif resume is not None:
            ended = train_one(resumed_settings(resume, config, overrides or []), resume)
        elif config is None:
            raise ConfigError("train needs a configuration (a YAML file or a shipped name), or --resume RUN")
        else:
            settings = settings_of(config, overrides, trust=trust, trains=True)
            ended = train_series(settings, console.say) if settings.runs else train_one(settings)
        if ended.main:
            console.say(f"report: {ended.run / 'report.html'}")
        raise typer.Exit(EXIT_CODES.get(ended.status, 0))


@app.command()
def sample(
    config: Config,
    prompt: Annotated[str, typer.Argument(help="what to draw or to answer")],
    overrides: Overrides = None,
    checkpoint: CheckpointOption = None,
    best: BestOption = False,
    task: TaskOption = None,
    trust: TrustOption = False,
    out: Annotated[Path, typer.Option(help="folder for the results; where it has some, one beside it")] = Path(
        "samples"
    ),
    count: Annotated[int, typer.Option(min=1, help="how many")] = 4,
    seed: Annotated[int, typer.Option(help="seed of the draw")] = 0,
    image: Annotated[list[Path] | None, typer.Option(help="what the model is shown; may be given again")] = None,
    audio: Annotated[list[Path] | None, typer.Option(help="what the model hears; may be given again")] = None,
    column: Annotated[
        list[str] | None, typer.Option(help="NAME=VALUE of the data row, as YAML; may be given again")
    ] = None,
    noise: Annotated[
        bool, typer.Option("--noise", help="draw as training does; texts without it are the likeliest, all the same")
    ] = False,
) -> None:
    """Draws samples for one prompt from the base model or a checkpoint; texts are printed too."""
    with plain_errors():
        from mmgrpo.config.loading import parsed_pairs
        from mmgrpo.runs.drawing import captions_of, draw, write
        from mmgrpo.training.build import build_rewards, exchange_plan

        settings = single_settings_of(config, overrides, task, trust=trust)
        judges = (settings.evaluation and settings.evaluation.rewards) or settings.rewards
        policy = policy_of(settings, weights_for(config, checkpoint, task, best=best))
        columns = parsed_pairs(column or [], "--column", "label=3")
        asked = shown_prompt(settings, prompt, columns, images=image or (), audios=audio or ())
        plan = exchange_plan(settings)
        drawn = draw(policy, asked, build_rewards(judges), count=count, seed=seed, noise=noise, plan=plan)
        folder = write(drawn, out)
        texts = [_written(sample) for sample in drawn.samples if sample.text is not None]
        for text, times in Counter(texts).items():
            said = "  ".join(captions_of(drawn.scores, texts.index(text)))
            typer.echo(f"{shown(text)}\n{f'({times} times) ' if times > 1 else ''}{shown(said) or '-' * 40}")
        for name, why in drawn.unasked.items():
            console.say(f"not judged by {name}: {brief(why)}")
        console.say(f"{count} samples in {folder}")


@app.command()
def evaluate(
    config: Config,
    overrides: Overrides = None,
    checkpoint: CheckpointOption = None,
    best: BestOption = False,
    task: TaskOption = None,
    trust: TrustOption = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="print one line of JSON, for machines; of a mixed run by task")
    ] = False,
) -> None:
    """Judges a run, all tasks of a mixed one, a checkpoint or the base model on its evaluation prompts."""
    with plain_errors():
        from mmgrpo.training.mixed import under_task

        table = Table("judge", "mean", "spread", "judged", "failed", box=None, header_style="bold")
        found: dict[str, float] = {}
        for name, settings in evaluated_settings_of(config, overrides, task, trust=trust).items():
            judged = judged_by(settings, weights_for(config, checkpoint, task or name, best=best), trust=trust)
            for row in judged.rows() if judged else ():
                table.add_row(f"{name}/{row[0]}" if name else row[0], *row[1:])
            for key, value in judged.metrics().items() if judged else ():
                found[under_task(name, key) if name else key] = value
        if found and as_json:
            sys.stdout.write(json.dumps(found) + "\n")
        elif found:
            console.print(table)


@app.command()
def export(
    run: Annotated[str, typer.Argument(help="a run folder or checkpoint")],
    to: Annotated[
        Path | None, typer.Option(help="the folder, or one beside it where it is taken; exports/RUN if not given")
    ] = None,
    merged: Annotated[
        bool, typer.Option("--merged", help="adapters made part of the model, which is written whole")
    ] = False,
    dtype: Annotated[
        Literal["float32", "bfloat16"] | None, typer.Option(help="of a model that is written whole; as it was loaded")
    ] = None,
    best: BestOption = False,
    task: TaskOption = None,
    trust: TrustOption = False,
    push: Annotated[str | None, typer.Option(help="owner/name on the hub to upload it to")] = None,
    public: Annotated[bool, typer.Option("--public", help="a repository made for --push is for everybody")] = False,
) -> None:
    """Writes a run's adapters, or its whole model, as diffusers, peft and transformers load them, with a model card."""
    with plain_errors():
        from mmgrpo.cli.export import ExportRequest, export_run, push_export

        if public and push is None:
            raise ConfigError("--public says who may see what --push uploads; give that too")
        folder = export_run(run, ExportRequest(to=to, merged=merged, dtype=dtype, best=best, task=task, trust=trust))
        console.say(f"exported to {folder}")
        if push is not None:
            console.say(f"pushed: {push_export(folder, push, public=public)}")


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(help="a run folder; several are put side by side")],
    out: Annotated[Path | None, typer.Option(help="the page of several runs, if not compare.html in the first")] = None,
) -> None:
    """Writes report.html into a run folder, or one page that puts several runs side by side."""
    with plain_errors():
        from mmgrpo.report import write_comparison, write_report

        if len(runs) == 1 and out is not None:
            raise ConfigError("--out is for several runs; the report of one is report.html in its folder")
        console.say(str(write_report(runs[0]) if len(runs) == 1 else write_comparison(runs, out)))


@app.command()
def compare(
    methods: Annotated[
        list[str], typer.Argument(help="methods, such as grpo gspo, or files; and a.b=c, laid over every run")
    ],
    on: Annotated[str, typer.Option(help="the task: a YAML file or a shipped name")],
    seeds: Annotated[int, typer.Option(min=1, help="how many, from the task's own on")] = 3,
    jobs: Annotated[int, typer.Option(min=1, help="runs at a time")] = 1,
    out: Annotated[Path | None, typer.Option(help="folder of runs and page; comparisons/TASK if not given")] = None,
) -> None:
    """Trains several methods on one task and puts them side by side; given again, it goes on where it was cut off."""
    with plain_errors():
        from mmgrpo.cli.compare import compared
        from mmgrpo.trials.run_trials import ComparisonInterrupted

        try:
            page, failed = compared(methods, on, num_seeds=seeds, num_jobs=jobs, out=out, say=console.say)
        except ComparisonInterrupted as told:
            raise typer.Exit(told.exit_code) from None
        console.say(f"page: {page}" if page else "no run has ended, so there is no page")
        raise typer.Exit(1 if failed else 0)


@app.command()
def doctor(config: Config, overrides: Overrides = None, trust: TrustOption = False) -> None:
    """Checks exactness, windows, the reference and the rewards on your own model, and prints cures."""
    with plain_errors():
        from mmgrpo.config.parts import tasks_of
        from mmgrpo.doctor.examination import examine, render
        from mmgrpo.training.build import build_rewards

        whole, sound = settings_of(config, overrides, trust=trust), True
        for name, settings in (tasks_of(whole) or {"": whole}).items():
            rewards, prompts = build_rewards(settings.rewards), prompts_of(settings)
            policy = policy_of(settings, None)
            findings = examine(settings, policy, rewards, prompts)
            if name:
                console.print(styled(name, "bold"))
            console.print(render(findings))
            sound = sound and all(finding.ok for finding in findings)
        if not sound:
            raise typer.Exit(1)


@app.command()
def explain(
    config: Config,
    overrides: Overrides = None,
    trust: TrustOption = False,
    processes: Annotated[
        int | None, typer.Option(min=1, help="predict memory and time on each of so many, from shapes alone")
    ] = None,
    accelerate: Annotated[str, typer.Option(help="how they hold the model: gpus, fsdp2, zero2 or zero3")] = "gpus",
    tflops: Annotated[
        float | None, typer.Option(min=1e-6, help="1e12 operations a second that a process gets done")
    ] = None,
    memory_gb_s: Annotated[float | None, typer.Option(min=1e-6, help="1e9 bytes a second, read or written")] = None,
    launch_us: Annotated[
        float | None, typer.Option(min=0, help="1e-6 seconds that an operator takes at the least")
    ] = None,
    link_gb_s: Annotated[float | None, typer.Option(min=1e-6, help="between processes, of each")] = None,
    measure: Annotated[
        bool, typer.Option("--measure", help="take what this machine does in place of the first three")
    ] = False,
    prompt_tokens: Annotated[int, typer.Option(min=1, help="of a language model's prompts, pictures included")] = 512,
) -> None:
    """Prints the resolved formula with its numbers, the batch geometry and what a sample costs; loads no model."""
    with plain_errors():
        from mmgrpo.config.parts import singles_of
        from mmgrpo.docgen.reward_signatures import require_rewards
        from mmgrpo.explain.explanation import explanation
        from mmgrpo.explain.lines import WIDTH, told

        if accelerate not in (engines := ("gpus", "fsdp2", "zero2", "zero3")):
            raise ConfigError(f"--accelerate {accelerate}: what is predicted is {', '.join(engines)}")
        if measure and processes is None:
            raise ConfigError("--measure is of what is predicted; say of how many processes: --processes N")
        if measure and (tflops, memory_gb_s, launch_us) != (None, None, None):
            raise ConfigError("--measure is in place of --tflops, --memory-gb-s and --launch-us; leave it or them out")
        width = min(WIDTH, console.width) if sys.stdout.isatty() else WIDTH
        for settings in singles_of(settings_of(config, overrides, computes=False, trust=trust)):
            require_rewards(settings)
            typer.echo(shown(explanation(settings, width)))
            if processes is not None:
                from mmgrpo.explain.operator_times import MachineSpeed, measured
                from mmgrpo.explain.process_scale import ShardingEngine, planned, scale_rows

                say = PlainConsole(stderr=True).say
                plan = planned(settings, num_processes=processes, prompt_tokens=prompt_tokens, say=say)
                numbers: dict[str, Any] = {
                    "tflops": tflops,
                    "memory_gb_s": memory_gb_s,
                    "launch_us": launch_us,
                    "link_gb_s": link_gb_s,
                }
                machine = MachineSpeed(**{name: number for name, number in numbers.items() if number is not None})
                machine = measured(plan.dtype, device=plan.device, link_gb_s=machine.link_gb_s) if measure else machine
                typer.echo(told(scale_rows(plan, machine, ShardingEngine(accelerate)), width))


@app.command("serve-rewards")
def serve_rewards(
    config: Config,
    overrides: Overrides = None,
    host: Annotated[str, typer.Option(help="address to listen on; 0.0.0.0: all of them")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="port to listen on")] = 8000,
    token_variable: Annotated[str | None, typer.Option(help="environment variable with the bearer token")] = None,
    max_batch: Annotated[int, typer.Option(min=1, help="samples judged in one call")] = 64,
    window_ms: Annotated[float, typer.Option(min=0, help="how long a request waits for others")] = 5.0,
    max_body_mb: Annotated[int, typer.Option(min=1, help="largest request, in MiB")] = 256,
    task: TaskOption = None,
    trust: TrustOption = False,
    timeout_s: Annotated[float, typer.Option(min=0.001, help="time that judging a request may take")] = 110.0,
) -> None:
    """Serves the configuration's rewards to runs elsewhere, whose reward is then named remote."""
    with plain_errors():
        say_importing()
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
            console.say(styled("warning:", "bold yellow"), "whoever reaches this machine may ask; set --token-variable")
        if ignored := ", ".join(ignored_settings(settings)):
            console.say(
                styled("warning:", "bold yellow"),
                "a server judges and no more; how it counts is for the run that asks, "
                f"and these do nothing here: {ignored}",
            )
        console.say(f"serving {served} at http://{host}:{port}/score")
        serve(app, host=host, port=port)


@app.command()
def init(folder: Annotated[Path, typer.Argument(help="where to; made if it is not there")] = Path()) -> None:
    """Writes a configuration, a reward and prompts to edit, which train takes as they are."""
    with plain_errors():
        from mmgrpo.cli.init import start

        for path in start(folder):
            console.say(f"wrote {path}")
        console.say(f"{'' if folder == Path() else f'cd {shlex.quote(str(folder))} && '}mmgrpo train run.yaml")


def _written(sample: Sample) -> str:
    return f"{sample.text}{'' if sample.finished else ' ... (cut off by the length limit)'}"


for _listing in (recipes, policies, rewards, methods):
    app.command()(_listing)

for _command in app.registered_commands:  # click cuts a first line that is not given as the short help
    _command.short_help = (inspect.getdoc(_command.callback) or "").partition("\n")[0]
