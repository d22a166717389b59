"""What is read out of a package, whichever engine it is, and what a reader of an engine's packages has to say."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from converter.upkeep.config_keys import Read, id_keys
from converter.upkeep.drafts import DraftReading, read_drafts
from converter.upkeep.package import Package, PackageError
from converter.upkeep.source import CannotTell, Class, Source
from converter.upkeep.targets import UNTOLD, Fact, Setter, TargetReading, read_target

IDS = "eagle_aux_hidden_state_layer_ids"


@dataclass(frozen=True)
class Names:
    """What a package calls its classes.

    targets   architecture -> class, of everything that could be a target
    drafts    architecture -> class, of its EAGLE-3 draft classes
    unread    architecture -> what stands in the way
    families  parts of model types that the release takes as targets; empty where it takes all
    """

    targets: Mapping[str, Class]
    drafts: Mapping[str, Class]
    unread: Mapping[str, Fact]
    families: tuple[str, ...] = ()


@dataclass(frozen=True)
class Reader:
    """How the packages of an engine are read: where things are in them, as data.

    engine      as the mapping calls it, which is its package's name, too
    prefix      what the mapping leaves out of paths
    models      folder of the model classes
    names       finds the architectures
    setter      how a target class is told its points
    supports    whether a class takes part where it has the setter
    ids_in      folders in which ids are read from a drafter's config; `ids_apart` a pattern of files in them that do
                so for other methods than EAGLE-3
    elsewhere   files in which other keys of a drafter's config are read, by the engine's own config classes
    """

    engine: str
    prefix: str
    models: str
    names: Callable[[Source], Names]
    setter: Setter
    supports: Callable[[Class], bool]
    ids_in: tuple[str, ...]
    ids_apart: str
    elsewhere: tuple[str, ...]


@dataclass(frozen=True)
class Reading:
    """All that was told of one package.

    drafts        architecture of a draft class -> what it reads and loads
    ids           dotted keys under which ids are read, and places where that is not followed
    elsewhere     text of the files that read other keys of a config
    """

    package: Package
    source: Source
    names: Names
    targets: Mapping[str, TargetReading]
    drafts: Mapping[str, DraftReading]
    ids: Mapping[str, Read]
    ids_unread: tuple[str, ...]
    elsewhere: str


def read_package(reader: Reader, package: Package, drafts: tuple[str, ...]) -> Reading:
    """Everything that can be told. drafts: architectures of the draft classes to read. Raises PackageError."""
    source = Source(package, reader.prefix)
    try:
        names = reader.names(source)
        ids, unread = id_keys(source, reader.ids_in, IDS, reader.ids_apart)
        found = {a: names.drafts[a] for a in drafts if a in names.drafts}
        read = {a: read_drafts([cls], reader.models) for a, cls in found.items()}
    except CannotTell as problem:
        raise PackageError(f"{package.origin}: {problem}; is this {reader.engine}'s package?") from problem
    targets = {
        architecture: _target(architecture, cls, reader, names)
        for architecture, cls in sorted(names.targets.items())
        if reader.supports(cls) and cls.method(reader.setter.name) is not None
    }
    paths = [p for p in sorted(package.paths) if p.startswith(reader.elsewhere)]
    return Reading(package, source, names, targets, read, ids, tuple(unread), "\n".join(map(package.text, paths)))


def _target(architecture: str, cls: Class, reader: Reader, names: Names) -> TargetReading:
    try:
        return read_target(architecture, cls, reader.setter, names.targets.get)
    except CannotTell as problem:
        untold = Fact(UNTOLD, problem.place, problem.why)
    except RecursionError:
        untold = Fact(UNTOLD, cls.place, "expressions that are nested too deep")
    return TargetReading(architecture, *[untold] * 5)
