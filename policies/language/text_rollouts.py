"""Text rollouts: rows that the policy generates, and off-policy rows."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from re import Pattern
from typing import Any

import torch
from torch import Tensor

from mmgrpo.environment import Turn
from mmgrpo.errors import ConfigError, DataError, PolicyError
from mmgrpo.maths.seeds import row_seed
from mmgrpo.splits import Lookahead
from mmgrpo.types import OffPolicySample, Plan, Prompt, Rollout, Sample, Source
from mmgrpo.values import ENTROPY, OLD, SEMANTIC_ENTROPY

from ..completion import Completion, CompletionTurn, recorded_samplings
from ..engines.engine import CompletionSource, Engine
from ..sampling import SamplingDistribution
from ..token_buffer import TOKEN_STATISTICS
from .conversations import (
    ConversationRow,
    generate_conversations,
    inherited_turns,
    replay_turns,
    with_opening_turn,
    with_turns,
)
from .encoding import EncodedPrompt, PromptEncoder
from .engine_generation import send_ahead
from .environment_pool import EnvironmentPool
from .forward_paths import ForwardPath
from .guarded_environment import GuardedEnvironment
from .lookahead import search_beginnings
from .plain_path import PlainPath
from .retokenized import RetokenizedTrace, common_starts
from .row_generation import GenerationParams, RowRequest, RowStart
from .settings import LanguageSettings
from .text_offsets import token_text_offsets
from .text_trace import TextTrace, build_rollout, with_completion
from .token_generation import generate_rows, initial_completion
from .token_scoring import with_supports

NO_TEXTS = "a language policy scores text rollouts only, and this rollout is of another kind of policy"
STORED_VALUES = (ENTROPY, SEMANTIC_ENTROPY)
"""Values of the decisions that are stored at sampling, if the plan requests them."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Rows:
    """The rows of a rollout that are generated.

    Attributes:
        prompts: the prompts of the rollout.
        ids: the identity of each prompt.
        members: prompt and member of each row.
        seed: of the random numbers.
        plan: how to sample.
        params: the sampling parameters of the plan.
    """

    prompts: Sequence[Prompt]
    ids: Sequence[int]
    members: Sequence[tuple[int, int]]
    seed: int
    plan: Plan
    params: GenerationParams

    @property
    def row_prompts(self) -> list[Prompt]:
        """The prompt of each row."""
        return [self.prompts[p] for p, _ in self.members]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TextRollouts:
    """Makes the rows of rollouts.

    Attributes:
        encoder: encoder of prompts and answers.
        settings: settings of the policy.
        sampling: the sampling distribution of these settings.
        end_ids: tokens that end an answer.
        segment_end: pattern of a token that ends a segment.
        path_for: selects the forward path for rows of some prompts.
        vectors: returns the input embeddings, (V, D).
    """

    encoder: PromptEncoder
    settings: LanguageSettings
    sampling: SamplingDistribution
    end_ids: Tensor
    segment_end: Pattern[str] | None
    path_for: Callable[[Sequence[EncodedPrompt]], ForwardPath]
    vectors: Callable[[], Tensor]

    def generate(
        self,
        prompts: Sequence[Prompt],
        *,
        group_size: int,
        seed: int,
        plan: Plan,
        source: CompletionSource | None = None,
    ) -> Rollout:
        """Rows that the policy generates now; a greedy plan has one row per prompt, copied to all members.

        Args:
            prompts: the prompts.
            group_size: members per prompt.
            seed: of the random numbers.
            plan: how to sample.
            source: has the completions; None: the model generates them.

        Returns:
            The rollout, with the log-probabilities of the program that sampled.
        """
        all_rows = self._rows(prompts, group_size=group_size, seed=seed, plan=plan, source=source)
        ids, rows, params = all_rows.ids, all_rows.members, all_rows.params
        carriers_of = [[row] for row in range(len(rows))]  # the rows that hold the prefix that is written once
        if plan.deterministic:
            carriers_of = [[row for row, (q, _) in enumerate(rows) if q == p] for p in range(len(prompts))]
        first_rows = [rows[carriers[0]] for carriers in carriers_of]
        batches = self._batches(replace(all_rows, members=first_rows))
        generated: dict[int, ConversationRow] = {}
        samples: dict[int, Sample] = {}
        with closing(batches):  # an error closes the environments at once
            for batch in batches:
                new = {row: written for number, written in batch.items() for row in carriers_of[number]}
                generated |= new
                for row, written in new.items():
                    p, member = rows[row]
                    sample = Sample(
                        prompts[p],
                        group=ids[p],
                        member=member,
                        is_partial=params.is_partial(written.completion),
                    )
                    samples[row] = with_completion(sample, written.completion, self.encoder.text, plan.sample_values)
                plan.emit_samples([samples[row] for row in new])
        numbers = range(len(rows))
        return build_rollout(
            TextTrace.of(
                [generated[row].prompt for row in numbers],
                [ids[p] for p, _ in rows],
                [generated[row].completion for row in numbers],
            ),
            [samples[row] for row in numbers],
            self.encoder.tokenizer,
            segment_end=self.segment_end,
            trained=not plan.deterministic,
            stored_values=() if plan.deterministic else [value for value in plan.values if value in STORED_VALUES],
        )

    def send_ahead(
        self, prompts: Sequence[Prompt], *, group_size: int, seed: int, plan: Plan, engine: Engine
    ) -> Callable[[], dict[str, Any]]:
        """Sends the requests of ``generate`` to an engine; returns a function that waits for their completions."""
        rows = self._rows(prompts, group_size=group_size, seed=seed, plan=plan, source=engine)
        _, requests = self._starts(rows, rows.row_prompts)
        return send_ahead(engine, requests, rows.params)

    def _rows(
        self, prompts: Sequence[Prompt], *, group_size: int, seed: int, plan: Plan, source: CompletionSource | None
    ) -> _Rows:
        members_of = plan.members_of(len(prompts), group_size)
        return _Rows(
            prompts=prompts,
            ids=plan.prompt_ids or tuple(range(len(prompts))),
            members=[(p, member) for p, members in enumerate(members_of) for member in members],
            seed=seed,
            plan=plan,
            params=self.params(plan, source),
        )

    def _batches(self, rows: _Rows) -> Generator[dict[int, ConversationRow]]:
        """Generates rows, batch by batch; the environments are closed however it ends."""
        plan = rows.plan
        if plan.environment is None:
            starts, requests = self._starts(rows, rows.row_prompts)
            path = self.path_for([start.prompt for start in starts])
            if complete := _complete_rows(starts, requests):
                yield complete
            for finished in generate_rows(path, requests, rows.params):
                yield {row: ConversationRow(starts[row].prompt, completion) for row, completion in finished.items()}
            return
        if self.segment_end is not None:
            raise ConfigError("turns are the segments of a conversation: remove policy.segment_end")
        if plan.max_turns > 1:
            self.encoder.require_turns()
        limits = {"workers": plan.environment_workers, "timeout_s": plan.environment_timeout_s}
        with EnvironmentPool(plan.environment, len(rows.members), **limits) as pool:
            openings = pool.reset(rows.row_prompts)
            starts, requests = self._starts(rows, self._opened(rows, openings, pool), environments=pool.environments)
            inherited = [inherited_turns(plan.continues[p]) if plan.continues else () for p, _ in rows.members]
            replay_turns(pool, openings, starts, inherited, self.encoder)
            yield from generate_conversations(
                self.path_for,
                self._with_media(requests, inherited),
                rows.params,
                pool=pool,
                openings=openings,
                inherited=inherited,
                encoder=self.encoder,
                max_turns=plan.max_turns,
            )

    def _opened(self, rows: _Rows, openings: Sequence[Turn], pool: EnvironmentPool) -> list[Prompt]:
        """The prompt of each row with the opening turn of its environment; equal ones are one object."""
        shared: dict[tuple[int, str], Prompt] = {}
        opened_prompts = rows.row_prompts
        for n, opening in enumerate(openings):
            try:
                opened = self._with_opening(opened_prompts[n], opening)
            except DataError as error:
                pool.environments[n].fail("reset", error)
                continue
            if not (opened.images or opening.num_media):
                key = rows.members[n][0], repr((opened.text, opened.messages, opened.chat_template_kwargs))
                opened = shared.setdefault(key, opened)
            opened_prompts[n] = opened
        return opened_prompts

    def _starts(
        self, rows: _Rows, opened_prompts: Sequence[Prompt], *, environments: Sequence[GuardedEnvironment] = ()
    ) -> tuple[list[RowStart], list[RowRequest]]:
        """The beginning of each row, and the rows to generate, of which those of one beginning share it."""
        encoded = self._encoded(opened_prompts, rows.row_prompts, environments, rows.params.length)
        path = self.path_for(encoded)
        if environments and isinstance(path, PlainPath) and path.has_encoder:
            raise PolicyError(f"{type(path.model).__name__} is an encoder-decoder: it cannot continue after an answer")
        of_entry = {p: n for n, (p, _) in reversed(list(enumerate(rows.members)))}
        entries = [encoded[of_entry[p]] for p in range(len(rows.prompts))]
        initial = self._initial(path, entries, rows.plan, rows.params)
        starts = [RowStart(opened, initial[p]) for opened, (p, _) in zip(encoded, rows.members, strict=True)]
        is_complete = [False] * len(starts)
        if rows.plan.lookahead is not None:
            starts, is_complete = self._searched(path, starts, rows, rows.plan.lookahead)
        first_of: dict[tuple[int, int, int], RowStart] = {}  # rows of one beginning read it once
        requests = []
        for row, (start, (p, member)) in enumerate(zip(starts, rows.members, strict=True)):
            if is_complete[row]:
                continue
            key = (rows.ids[p], id(start.prompt), id(start.initial))
            continuation = rows.plan.continues[p] if rows.plan.continues else None
            seed = row_seed(rows.seed, rows.ids[p], member)
            if continuation is not None and continuation.seed is not None:
                seed = continuation.seed
            requests.append(RowRequest(row=row, start=first_of.setdefault(key, start), seed=seed))
        return starts, requests

    def _searched(
        self, path: ForwardPath, starts: Sequence[RowStart], rows: _Rows, lookahead: Lookahead
    ) -> tuple[list[RowStart], list[bool]]:
        """Each row with the beginning that a search found for it, and whether that is a complete answer."""
        if rows.plan.environment is not None:
            raise ConfigError("a lookahead is for answers of one turn: remove rollout.environment")
        rows_of = [[row for row, (q, _) in enumerate(rows.members) if q == p] for p in range(len(rows.prompts))]
        first_starts, counts = (
            [starts[of_prompt[0]] for of_prompt in rows_of],
            [len(of_prompt) for of_prompt in rows_of],
        )
        beginnings = search_beginnings(path, first_starts, counts, rows.params, lookahead, self.encoder.text)
        searched, is_complete = list(starts), [False] * len(starts)
        for of_prompt, completions in zip(rows_of, beginnings, strict=True):
            for row, completion in zip(of_prompt, completions, strict=True):
                start = starts[row]
                num_initial = start.num_initial + completion.num_inherited
                initial = replace(start.followed_by(completion), num_inherited=num_initial)
                searched[row] = replace(start, initial=initial)
                is_complete[row] = completion.finished or len(initial.token_T) == rows.params.length
        return searched, is_complete

    def _with_media(
        self, requests: Sequence[RowRequest], inherited: Sequence[Sequence[CompletionTurn]]
    ) -> list[RowRequest]:
        """The rows with the media of the turns that they take over; those of one beginning share it."""
        starts: dict[int, RowStart] = {}
        for request, turns in zip(requests, inherited, strict=True):
            start = request.start
            if id(start) not in starts and start.initial is not None and turns:
                completion = replace(start.initial, turns=tuple(turns))
                prompt = with_turns(self.encoder, start.prompt, completion, self.end_ids.tolist())
                starts[id(start)] = replace(start, prompt=prompt)
        return [replace(request, start=starts.get(id(request.start), request.start)) for request in requests]

    def _encoded(
        self,
        opened: Sequence[Prompt],
        original: Sequence[Prompt],
        environments: Sequence[GuardedEnvironment],
        length: int,
    ) -> list[EncodedPrompt]:
        """Prompts with the turn of ``reset``, or without it if the policy cannot take that turn.

        Raises DataError for a prompt that it cannot take either way, and if it can take none of the turns.
        """
        encoded, errors = [], []
        for number, prompt in enumerate(opened):
            try:
                encoded_prompt = self.encoder(prompt)
                self.encoder.require_room(encoded_prompt, length)
            except DataError as error:
                if prompt is original[number]:
                    raise
                errors.append(error)
                environments[number].fail("reset", error)
                encoded_prompt = self.encoder(original[number])
                self.encoder.require_room(encoded_prompt, length)
            encoded.append(encoded_prompt)
        if errors and len(errors) == len(opened):
            raise errors[0]
        return encoded

    def read(self, samples: Sequence[OffPolicySample], *, plan: Plan) -> Rollout:
        """Off-policy rows; missing log-probabilities are 0."""
        encoded = [self.encoder(self._rescoring_prompt(sample.sample, plan)) for sample in samples]
        samplings = recorded_samplings(samples, self.params(plan).sampling)
        completions = [self.completion(sample, sampling) for sample, sampling in zip(samples, samplings, strict=True)]
        for sample, completion in zip(encoded, completions, strict=True):
            self.encoder.require_room(sample, len(completion.token_T))
        end_ids = self.end_ids.tolist()
        encoded = [with_turns(self.encoder, *row, end_ids) for row in zip(encoded, completions, strict=True)]
        trace = TextTrace.of(encoded, [sample.sample.group for sample in samples], completions)
        trace = with_supports(self.path_for(encoded), trace, head_bytes=self.settings.head_bytes)
        rollout = build_rollout(
            trace,
            [self._sample(sample, completion) for sample, completion in zip(samples, trace.completions, strict=True)],
            self.encoder.tokenizer,
            segment_end=self.segment_end,
            trained=True,
        )
        return replace(rollout, source_B=torch.tensor([sample.source for sample in samples]), num_forwards=0)

    def _rescoring_prompt(self, sample: Sample, plan: Plan) -> Prompt:
        """The prompt of an off-policy sample, with the environment's opening turn if the sample is a conversation."""
        if plan.environment is None or not sample.turn_ends:
            return sample.prompt
        with closing(GuardedEnvironment(plan.environment)) as environment:
            opening = environment.reset(sample.prompt)
        return self._with_opening(sample.prompt, opening)

    def _with_opening(self, prompt: Prompt, opening: Turn) -> Prompt:
        """The prompt with the turn of ``reset``, whose special tokens are characters."""
        return with_opening_turn(prompt, self.encoder.opening(opening), takes_tools=self.encoder.takes_tools)

    def override_prompts(self, rollout: Rollout, prompts: Sequence[Prompt]) -> Rollout:
        """``SupportsPromptOverride.override_prompts``: the same tokens, under their sampling distribution."""
        trace = rollout.trace
        if not isinstance(trace, TextTrace):
            raise ConfigError(NO_TEXTS)
        self._require_tokens(rollout)
        encoded = [self._overridden(rollout, trace, row, prompt) for row, prompt in enumerate(prompts)]
        return replace(rollout, trace=TextTrace.of(encoded, rollout.prompt_index_B.tolist(), trace.completions))

    def retokenize(
        self, rollout: Rollout, prompts: Sequence[Prompt], text_offsets_B: Sequence[Sequence[int]]
    ) -> Rollout:
        """``SupportsTokenLogits.retokenize``: tokens of texts without an end token."""
        if not isinstance(rollout.trace, TextTrace):
            raise ConfigError(NO_TEXTS)
        if any(completion.turns for completion in rollout.trace.completions):
            raise ConfigError(
                "a conversation has the tokens of its environment's turns: a view with another tokenizer does not "
                "support them; leave the view out, or rollout.environment"
            )
        completions, index_BT = [], torch.full(rollout.shape, -1)
        for row, (sample, offsets_T) in enumerate(zip(rollout.samples, text_offsets_B, strict=True)):
            token_U = self.encoder.encode_text(sample.text or "")
            completions.append(Completion.forced(token_U, self.sampling, finished=False))
            other_offsets = token_text_offsets(
                self.encoder.tokenizer, token_U.tolist(), sample.text or "", decode=self.encoder.text
            )
            index_T = common_starts(offsets_T, other_offsets, len(sample.text or ""))
            index_BT[row, : len(index_T)] = torch.tensor(index_T)
        encoded = {id(prompt): self.encoder(prompt) for prompt in {id(prompt): prompt for prompt in prompts}.values()}
        row_prompts = [encoded[id(prompt)] for prompt in prompts]
        for prompt, completion in zip(row_prompts, completions, strict=True):
            self.encoder.require_room(prompt, len(completion.token_T))
        trace = TextTrace.of(row_prompts, rollout.prompt_index_B.tolist(), completions)
        mask_BT = rollout.mask_BT & (index_BT >= 0)
        return replace(rollout, trace=RetokenizedTrace(trace, index_BT), mask_BT=mask_BT)

    def _overridden(self, rollout: Rollout, trace: TextTrace, row: int, prompt: Prompt) -> EncodedPrompt:
        """A row's prompt in the form of this model; a conversation keeps that with the turns of its environment."""
        completion = trace.completions[row]
        if completion.turns and prompt is not rollout.samples[row].prompt:
            raise ConfigError(
                "a conversation depends on the turns of its environment: views with another prompt are not supported"
            )
        encoded = trace.prompts[trace.prompt_of_B[row]] if completion.turns else self.encoder(prompt)
        self.encoder.require_room(encoded, len(completion.token_T))
        return encoded

    def _require_tokens(self, rollout: Rollout) -> None:
        """Raises ConfigError if the tokens of sampled rows decode to another text here."""
        for row, sample in enumerate(rollout.samples):
            is_sampled = rollout.source_B is None or int(rollout.source_B[row]) == Source.ON_POLICY
            decoded = self.encoder.text(sample.tokens or ())
            if is_sampled and decoded != sample.text:
                raise ConfigError(
                    f"the policy of a view decodes {decoded!r:.50} in place of {sample.text!r:.50}: give it the "
                    "tokenizer of the trained policy"
                )

    def _sample(self, off_policy: OffPolicySample, completion: Completion) -> Sample:
        """The sample, with missing fields filled in from the completion."""
        sample, completed = off_policy.sample, with_completion(off_policy.sample, completion, self.encoder.text, ())
        logprob = sample.logprob if off_policy.old_logprob_T is None else completed.logprob
        return replace(
            completed,
            text=completed.text if sample.text is None else sample.text,
            logprob=logprob,
            values=sample.values,
        )

    def completion(self, off_policy: OffPolicySample, sampling: SamplingDistribution) -> Completion:
        """A sample's tokens as a row, to be scored under this distribution.

        Raises: DataError for a sample without text, for log-probabilities of another length, and for tokens that the
        policy never samples.
        """
        sample, old_T = off_policy.sample, off_policy.old_logprob_T
        if sample.tokens is None and sample.text is None:
            raise DataError(f"the answer to {sample.prompt.text!r:.60} is no text: a language policy cannot score it")
        if sample.tokens is None:
            end = [self.encoder.end_id(self.end_ids.tolist())] if sample.finished else []
            token_T = torch.cat([self.encoder.encode_text(sample.text or ""), torch.tensor(end, dtype=torch.long)])
        else:
            token_T = torch.as_tensor(list(sample.tokens), dtype=torch.long)
        if len(token_T) == 0 or (old_T is not None and old_T.shape != token_T.shape):
            counted = "none" if old_T is None else f"{len(old_T)} log-probabilities"
            raise DataError(
                f"the answer to {sample.prompt.text!r:.60} has {len(token_T)} tokens and {counted}; a row needs "
                "at least one token, and old_logprob_T one number per token"
            )
        completion = Completion.recorded(
            token_T,
            sampling,
            logprob_T=old_T,
            num_forced=max(off_policy.num_forced, sample.num_forced),
            finished=sample.finished,
        )
        completion = completion.with_turns(sample) if sample.turn_ends else completion
        self._require_sampled(sample, completion)
        return completion

    def _require_sampled(self, sample: Sample, completion: Completion) -> None:
        """Raises DataError for a token of an answer that the policy never samples: its log-probability is infinite."""
        is_suppressed_T = (
            torch.isin(completion.token_T, completion.sampling.suppressed.cpu()) & completion.is_decision_T
        )
        if bool(is_suppressed_T.any()):
            position = int(is_suppressed_T.nonzero()[0])
            token = int(completion.token_T[position])
            text = self.encoder.tokenizer.decode([token])
            raise DataError(
                f"the answer to {sample.prompt.text!r:.60} (group {sample.group}, member {sample.member}) has the "
                f"token {token} ({text!r}) at position {position}, which the policy never samples: remove it from "
                "policy.suppress, or from the answer"
            )

    def params(self, plan: Plan, source: CompletionSource | None = None) -> GenerationParams:
        """The sampling parameters of a plan. Raises PolicyError or ConfigError for a plan that has no tokens."""
        if plan.stochastic or plan.same_initial_noise or plan.splits or any(value.view == OLD for value in plan.values):
            raise PolicyError(
                "tokens have no windows, shared noise, trees of noise or means: leave out window, same_initial_noise, "
                "tree and normalize_ratio"
            )
        if unknown := [name for name in plan.sample_values if name not in TOKEN_STATISTICS]:
            raise ConfigError(
                f"tokens have no sample value {', '.join(unknown)}: supported are {', '.join(TOKEN_STATISTICS)}"
            )
        settings = self.settings.overridden(plan.settings)
        _require_window(plan, settings)
        statistics = {*plan.sample_values, *(value.name for value in plan.values if value in STORED_VALUES)}
        return GenerationParams(
            sampling=SamplingDistribution.of(settings, self.sampling.suppressed) if plan.settings else self.sampling,
            length=settings.max_new_tokens,
            greedy=plan.deterministic,
            numbers=tuple(sorted(statistics)),
            batch_size=settings.rollout_batch,
            end_ids=self.end_ids,
            embedding_VD=self.vectors() if SEMANTIC_ENTROPY.name in statistics else None,
            source=source,
            media_ids=self.encoder.media_ids,
            window=plan.token_window,
        )

    def _initial(
        self, path: ForwardPath, encoded: Sequence[EncodedPrompt], plan: Plan, params: GenerationParams
    ) -> Sequence[Completion | None]:
        """The beginning of each prompt's rows: the plan's continuation, else the prompt's prefix."""
        continues = plan.continues or (None,) * len(encoded)
        if len(continues) != len(encoded):
            raise DataError(f"Plan.continues is for {len(continues)} prompts, got {len(encoded)}")
        initial = [
            initial_completion(self.encoder, encoded_prompt, continuation, params)
            for encoded_prompt, continuation in zip(encoded, continues, strict=True)
        ]
        started = [p for p, completion in enumerate(initial) if completion is not None]
        if started and isinstance(path, PlainPath) and path.has_encoder:
            raise PolicyError(f"{type(path.model).__name__} is an encoder-decoder: its answers cannot have a prefix")
        trace = TextTrace(
            [encoded[p] for p in started],
            range(len(started)),
            [completion for completion in initial if completion is not None],
        )
        supported_completions = with_supports(path, trace, head_bytes=self.settings.head_bytes).completions
        completion_of = dict(zip(started, supported_completions, strict=True))
        return [completion_of.get(p) for p in range(len(initial))]


def _complete_rows(starts: Sequence[RowStart], requests: Sequence[RowRequest]) -> dict[int, ConversationRow]:
    """The rows that are complete at their beginning: those that no request continues."""
    continued = {request.row for request in requests}
    return {
        row: ConversationRow(start.prompt, start.initial)
        for row, start in enumerate(starts)
        if row not in continued and start.initial is not None
    }


def _require_window(plan: Plan, settings: LanguageSettings) -> None:
    """Raises ConfigError for a plan whose rows cannot continue after its window."""
    if plan.token_window is None:
        return
    if plan.environment is not None:
        raise ConfigError("a window of tokens divides answers of one turn: remove rollout.environment, or the window")
    if settings.temperature_schedule is not None:
        raise ConfigError(
            "policy.temperature_schedule counts the tokens of a rollout, and a window of tokens divides rows into "
            "several: remove one of the two"
        )
    if plan.token_window >= settings.max_new_tokens:
        raise ConfigError(
            f"a window of {plan.token_window} tokens is not below policy.max_new_tokens={settings.max_new_tokens}, so "
            "that no row would continue: lower rollout.strategy.window"
        )
