"""What an engine release would make of a folder that is looked at, with nothing told at launch."""

from __future__ import annotations

from converter.checks import as_it_is
from converter.checks.as_it_is import Lying, Seen
from converter.look.subject import Subject
from converter.rules.engine import EngineRelease
from converter.rules.fields import derived_dtype


def seen_by(engine: EngineRelease, subject: Subject) -> Seen:
    """The release's view of the subject's own config and names, held against what the trainer meant."""
    [fc, *_] = subject.tensors.get("fc.weight", ("fc.weight",))
    derived = derived_dtype(subject.checkpoint, fc)
    folder = Lying(subject.source.config, list(subject.source.checkpoint.tensors), derived, {})
    # An output is of the kind that its own config says; a trainer's folder of the kind that it was read as.
    return as_it_is.seen_by(engine, folder, subject.target, subject.spec, subject.is_output, subject.unsaid)
