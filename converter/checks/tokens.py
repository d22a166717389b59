"""What the files beside drafter and target say of tokens: the ids they have, chat templates, what ends an answer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from converter.checkpoint.paths import real
from converter.drafter.spec import DrafterSpec
from converter.drafter.target import Target
from converter.drafter.vocab import VocabularyMap
from converter.findings import CAPTURE, Finding, note, warning
from converter.tokenizer import VOCABULARY, Tokenizer, read_tokenizer

_SHOWN = 3  # tokens named in a finding


def check_tokens(
    spec: DrafterSpec, vocab: VocabularyMap | None, target: Target, drafter_folder: Path
) -> Iterator[Finding]:
    """C237 another tokenizer, C238 another chat template, C239 ids past the vocabulary, C240 a file that cannot be
    read, V212 no end in the draft vocabulary. Without a folder of the target's, nothing.
    """
    if target.folder is None:
        return
    theirs = read_tokenizer(target.folder)
    # A folder that holds drafter and target has one tokenizer.
    ours = theirs if real(drafter_folder) == real(target.folder) else read_tokenizer(drafter_folder)
    for finding in dict.fromkeys((*ours.unread, *theirs.unread)):
        yield warning("C240", f"the tokens were not compared: {finding.message}", where=finding.where, why=finding.why)
    yield from _other_ids(ours, theirs)
    yield from _other_template(ours, theirs)
    yield from _past_the_end(theirs, spec, target)
    if vocab is not None and spec.reduced_vocabulary:
        yield from _no_end(theirs, vocab, target)


def _other_ids(ours: Tokenizer, theirs: Tokenizer) -> Iterator[Finding]:
    both = ours.tokens.keys() & theirs.tokens.keys()
    differ = sorted(i for i in both if ours.tokens[i] != theirs.tokens[i])
    if differ:
        shown = [f"{i}: {ours.tokens[i]!r} there, {theirs.tokens[i]!r} in the target" for i in differ[:_SHOWN]]
        yield warning(
            "C237",
            f"the tokenizer beside the drafter is not the target's: {len(differ):,} of {len(both):,} ids differ",
            where=VOCABULARY,
            found="; ".join(shown)[:300],
            why="the target's is served; a drafter that was trained with another reads and names other tokens",
            fix=("give the target that the drafter was trained for, or take the stray tokenizer out of its folder",),
        )


def _other_template(ours: Tokenizer, theirs: Tokenizer) -> Iterator[Finding]:
    if ours.template and theirs.template and ours.template.split() != theirs.template.split():
        yield warning(
            "C238",
            "the chat template beside the drafter is not the target's",
            where=ours.template_in,
            found=f"{len(ours.template):,} characters; the target's {theirs.template_in} has {len(theirs.template):,}",
            why="if it was trained on chats laid out so, it is less often right on those that are served",
            fix=(f"compare the two, and measure on a sample of the target's own: {CAPTURE}",),
        )


def _past_the_end(theirs: Tokenizer, spec: DrafterSpec, target: Target) -> Iterator[Finding]:
    past = sorted(i for i in theirs.tokens if i >= spec.vocab_size)
    if past:
        shown = ", ".join(f"{i} {theirs.tokens[i]!r}" for i in past[:_SHOWN])
        yield note(
            "C239",
            f"the target's tokenizer has {len(past):,} ids past the vocabulary of {spec.vocab_size:,}",
            where=str(Path(target.name) / VOCABULARY),
            found=shown[:200],
            expected=f"ids below {spec.vocab_size:,}; fewer tokens than rows is usual, tables are padded",
            why="target and drafter have no row for them: either they never occur, or the vocabulary was cut",
        )


def _no_end(theirs: Tokenizer, vocab: VocabularyMap, target: Target) -> Iterator[Finding]:
    """Of the ids that end an answer, at least one should be drafted, and the one that ends a turn of a chat."""
    drafted = frozenset(vocab.ids.tolist())
    turn = () if theirs.end is None else (theirs.end,)
    ends = tuple(dict.fromkeys((*turn, *(theirs.ends or target.ends))))
    if not ends or drafted.intersection(turn or ends):
        return
    words = ", ".join(f"{i} {theirs.tokens[i]!r}" if i in theirs.tokens else str(i) for i in ends if i not in drafted)
    yield warning(
        "V212",
        "the token that ends an answer is not in the draft vocabulary",
        where="d2t",
        found=f"{words} left out of {len(drafted):,} draft tokens",
        expected="it among them: it ends every answer",
        why="the drafter can never propose the end: a draft in the last step of every answer is wasted",
        fix=("count the end of the target's own answers when the draft vocabulary is chosen, and train again",),
    )
