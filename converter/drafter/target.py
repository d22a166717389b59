"""What is known of the target: from its own config.json, from --target-arch, or only from the drafter's config."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from converter.checkpoint.paths import is_here
from converter.drafter.spec import Rope
from converter.findings import Finding


@dataclass(frozen=True)
class Target:
    """Unknown facts are "" or None.

    name          as the launch command should name it (path or Hub id)
    architecture  class name, e.g. "LlamaForCausalLM"
    layers        number of decoder layers, L
    hidden_size, vocab_size, max_position_embeddings   of its text model
    rope          its rotary embedding
    model_type    of its text model, as transformers names it
    norm_eps      epsilon of its norms
    where         what these facts were read from
    folder        holds its config and what was had of the files beside it; None where only a config was given
    cache_width   values that its attention caches for a token in one layer: keys and values of all heads, or one latent
    injected      how many of its first layers have image features added to their output
    ends          ids at which its config has an answer end
    rotated       its checkpoint was rotated (QuaRot, SpinQuant): states are not those of the original
    commit        of the repository on the Hub that they were read from, 40 hex digits
    notes         what is to be said of that
    """

    name: str = ""
    architecture: str = ""
    layers: int | None = None
    hidden_size: int | None = None
    vocab_size: int | None = None
    max_position_embeddings: int | None = None
    rope: Rope | None = None
    model_type: str = ""
    norm_eps: float | None = None
    where: str = ""
    folder: Path | None = None
    cache_width: int | None = None
    injected: int = 0
    ends: tuple[int, ...] = ()
    rotated: bool = False
    commit: str = ""
    notes: tuple[Finding, ...] = ()

    def named_absolutely(self) -> Target:
        """With an absolute path for a name that is a folder here, for commands and files that are used elsewhere."""
        here = bool(self.name) and is_here(Path(self.name), folder=True)
        return replace(self, name=str(Path(self.name).absolute())) if here else self
