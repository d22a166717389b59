"""`eagle3 seal verify` and `eagle3 seal sign`; what they do is in converter/verifying.py and converter/signing.py."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click

from converter.cli.common import CONTEXT, VERSION, reader_may_leave, run_work, say_json

if TYPE_CHECKING:
    from converter.verifying import Verified

_QUIET = click.option("-q", "--quiet", is_flag=True, help="Print only errors.")


@click.group("seal", context_settings=CONTEXT, short_help="Verify or sign what eagle3-convert wrote.")
def seal_group() -> None:
    """The record beside a converted drafter: eagle3-seal.json."""


@seal_group.command("verify", context_settings=CONTEXT, short_help="Say whether a folder is what was sealed.")
@click.argument("folder", metavar="FOLDER")
@click.option("--signed", default="", metavar="KEY", help="Who must have signed it: a public key's file, or sigstore.")
@click.option("--identity", default="", metavar="NAME", help="With sigstore: who signed, an address or a job's URL.")
@click.option("--identity-provider", "provider", default="", metavar="URL", help="With sigstore: who vouched for that.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("-v", "--verbose", is_flag=True, help="Show everything that is otherwise counted.")
@_QUIET
@VERSION
def verify_command(
    folder: str, signed: str, identity: str, provider: str, as_json: bool, verbose: bool, quiet: bool
) -> None:
    """Say whether FOLDER, a folder or org/name[@revision] on the Hub, is what was sealed, and what changed since.

    Exit code 0: it is; 1: it is not, or is not sealed, or not signed as --signed says; 3: the seal cannot be read.
    """

    def work() -> Verified:
        from converter.signing import open_trusted
        from converter.verifying import verify

        trusted = open_trusted(signed, identity, provider) if signed or identity or provider else None
        return verify(folder, trusted)

    _show(run_work(work, as_json=as_json), as_json, verbose, quiet)


@seal_group.command("sign", context_settings=CONTEXT, short_help="Sign a sealed folder.")
@click.argument("folder", metavar="FOLDER", type=click.Path(path_type=Path))
@click.option("--key", required=True, metavar="KEY", help="A private key's file, PEM, or sigstore.")
@click.option("--force", is_flag=True, help="Replace a signature that is there.")
@_QUIET
@VERSION
def sign_command(folder: Path, key: str, force: bool, quiet: bool) -> None:
    """Sign the sealed FOLDER: the seal, and every file that it lists. It must be as it was sealed."""

    def work() -> tuple[Verified, Path | None]:
        from converter.checkpoint.paths import real
        from converter.errors import OutputError, UsageError
        from converter.seal import must_be_signed
        from converter.signing import open_signer
        from converter.source import SIGNATURE
        from converter.verifying import verify

        signer = open_signer(key)
        if not folder.is_dir():
            raise UsageError(f"{folder} is no folder here; what is on the Hub is signed before it is pushed")
        found, signature = verify(str(folder)), folder / SIGNATURE
        if not found.in_order or found.sealed is None:
            return found, None
        if signature.exists() and not force:
            raise UsageError(f"{signature} exists; --force replaces it")
        try:
            signer.sign(folder, must_be_signed(found.sealed), real(folder).name)
        except OSError as problem:
            raise OutputError(f"cannot write {signature}: {problem.strerror or problem}") from problem
        return found, signature

    found, signature = run_work(work)
    if signature is None:
        _show(found, False, False, quiet)
    if not quiet:
        from converter.report.words import clean

        with reader_may_leave():
            click.echo(clean(f"signed: {signature}"))


def _show(found: Verified, as_json: bool, verbose: bool, quiet: bool) -> NoReturn:
    """Print what was found and end with the exit code that it means."""
    from converter.report.verified import VerifiedPrinter
    from converter.report.verified import as_json as document

    if as_json:
        say_json(document(found))
    elif not (quiet and found.in_order):
        with reader_may_leave():
            VerifiedPrinter(sys.stdout, verbose, quiet).verified(found)
    sys.exit(0 if found.in_order else 1)
