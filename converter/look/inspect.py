"""What a drafter is, without converting or running it: everything that `eagle3 inspect` shows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from converter.checks.as_it_is import Seen
from converter.drafter.drafter import Drafter
from converter.drafter.vocab import VocabularyMap
from converter.findings import Finding, Severity
from converter.look.engines import seen_by
from converter.look.parts import Cost, Group, cost_of, grouped, heaped
from converter.look.subject import Asked, Subject, open_subject
from converter.rules import loading
from converter.rules.fields import leaves, lookup
from converter.rules.releases import resolve

LOWEST = 256  # byte tokens and the like are the first of most vocabularies


@dataclass(frozen=True)
class MapFacts:
    """A vocabulary map in a few numbers.

    source    how it was stored (offsets, ids, t2d, head), "" for none over a full vocabulary
    agrees    with t2d; None where there is none
    identity  draft id i is target id i
    lowest    how many of the target's first `LOWEST` ids the draft vocabulary holds
    special   config key -> target id -> whether it is in the draft vocabulary
    """

    source: str
    agrees: bool | None
    identity: bool
    lowest: int
    special: Mapping[str, Mapping[int, bool]]


@dataclass(frozen=True)
class Owners:
    """Whose embedding and head it has.

    embedding           own, or none
    embedding_is        as Drafter.embedding
    embedding_trained   the input says that it was
    head                own, the embedding (tied), or none
    head_frozen         its trainer freezes it; None where that is not known
    """

    embedding: str
    embedding_is: str
    embedding_trained: bool
    head: str
    head_frozen: bool | None


@dataclass(frozen=True)
class Inspection:
    """What a folder holds, and what each engine makes of it.

    map, owners, cost   None where no spec could be read; map also where a map that there must be cannot be
    asked               the options that it was looked at with
    """

    subject: Subject
    groups: tuple[Group, ...]
    engines: tuple[Seen, ...]
    map: MapFacts | None = None
    owners: Owners | None = None
    cost: Cost | None = None
    asked: Asked = field(default_factory=Asked)

    def count(self, severity: Severity) -> int:
        """How many findings there are of it."""
        return sum(f.severity == severity for f in self.subject.findings)

    @property
    def refusal(self) -> Finding | None:
        """Why the folder is not read as a drafter; None where it is."""
        errors = [f for f in self.subject.findings if f.severity == "error"]
        return errors[0] if errors and self.subject.spec is None else None

    @property
    def perhaps(self) -> str:
        """Another meaning that the ids may have; "" where they have one."""
        of_ids = (f.expected for f in self.subject.findings if f.code == "A109")
        return next(of_ids, "").removeprefix("perhaps ")

    def as_trained(self, seen: Seen) -> bool | None:
        """Whether the points are the trainer's, in the order of fc's blocks; None where one side is not known."""
        trained = self.subject.points
        return None if seen.points is None or isinstance(trained, str) else seen.points == trained


def inspect(given: str, asked: Asked) -> Inspection:
    """Look at the drafter `given`, a folder, a file or an id on the Hub.

    Raises InputError where nothing can be opened, UsageError for options that name nothing.
    """
    wanted = asked.engines or tuple(loading.names("engines"))
    releases = [release for requirement in wanted for release in resolve(requirement)]
    subject = open_subject(given, asked)
    checkpoint, drafter = subject.source.checkpoint, subject.drafter
    stored = {canonical: tuple(map(subject.stored_in, names)) for canonical, names in subject.tensors.items()}
    seen = tuple(seen_by(release, subject) for release in releases)
    groups = tuple(grouped(checkpoint, stored) if stored else heaped(checkpoint))
    if drafter is None:
        return Inspection(subject, groups, seen, asked=asked)
    return Inspection(
        subject,
        groups,
        seen,
        _map_facts(drafter, subject.source.config),
        _owners(drafter, subject),
        cost_of(drafter.spec, subject.checkpoint, subject.tensors),
        asked,
    )


def _map_facts(drafter: Drafter, config: Mapping[str, Any]) -> MapFacts | None:
    spec, vocab = drafter.spec, drafter.vocab
    if vocab is None:
        return None if spec.reduced_vocabulary else MapFacts("", None, True, min(LOWEST, spec.vocab_size), {})
    held = set(vocab.ids.tolist())
    special: dict[str, dict[int, bool]] = {}
    for key, ids in _special(config, spec.vocab_size):  # one key may stand in several places
        special.setdefault(key, {}).update({i: i in held for i in ids})
    lowest = sum(i in held for i in range(min(LOWEST, spec.vocab_size)))
    return MapFacts(vocab.source, _agrees(drafter, vocab), vocab.identity, lowest, special)


def _agrees(drafter: Drafter, vocab: VocabularyMap) -> bool | None:
    """Whether t2d marks exactly the ids of the map."""
    import numpy as np

    name = drafter.tensors.get("t2d")
    if name is None:
        return None
    return bool(np.array_equal(np.flatnonzero(drafter.checkpoint.read(name)), np.sort(vocab.ids)))


def _special(config: Mapping[str, Any], vocab_size: int) -> Iterator[tuple[str, list[int]]]:
    """Ids that the config names: bos, eos and pad, wherever it keeps them."""
    for leaf in leaves(config):
        key = leaf.rpartition(".")[2]
        if key in ("bos_token_id", "eos_token_id", "pad_token_id"):
            value = lookup(config, leaf)
            ids = value if isinstance(value, list) else [value]
            found = [i for i in ids if isinstance(i, int) and not isinstance(i, bool) and 0 <= i < vocab_size]
            if found:
                yield key, found


def _owners(drafter: Drafter, subject: Subject) -> Owners:
    head = "own" if any(n.startswith("lm_head.") for n in subject.tensors) else "none"
    frozen = subject.dialect.rules.get("head") if subject.dialect is not None else None
    return Owners(
        embedding="own" if "embed_tokens.weight" in subject.tensors else "none",
        embedding_is=drafter.embedding,
        embedding_trained=drafter.provenance.embedding_trained,
        head="the embedding" if drafter.spec.tie_word_embeddings else head,
        head_frozen=None if frozen is None else frozen == "frozen",
    )
