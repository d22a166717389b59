"""Signatures of sealed folders, by OpenSSF model-signing (the extra `sign`, imported late).

A signature is a sigstore bundle over the digests of the seal and of every file that it lists (DSSE, in-toto statement),
which the library's own command verifies as well: docs/seal.md.
"""

from __future__ import annotations

import base64
import contextlib
import importlib
import io
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from converter.checkpoint.jsonfile import parse, read_object, reading, shortened
from converter.checkpoint.whole import replacing
from converter.errors import InputError, OutputError, UsageError
from converter.findings import Finding, error
from converter.hub.snapshot import CARD
from converter.source import SIGNATURE

if TYPE_CHECKING:
    from model_signing import manifest

SIGSTORE = "sigstore"  # in place of a key: an identity that sigstore's public instance vouches for
_CURVES = {"secp256r1": "P-256", "secp384r1": "P-384", "secp521r1": "P-521"}  # those that the library signs with
# What may lie beside a signed folder's files and is not signed: the card, what git keeps, and what `hf download` does.
_BESIDE = (CARD, ".cache", ".git", ".gitattributes", ".github", ".gitignore", SIGNATURE)
_MAKE_KEY = "openssl ecparam -name prime256v1 -genkey -noout -out key.pem"
_MAKE_PUBLIC = "openssl ec -in key.pem -pubout -out key.pub"
# How the library begins its complaint where a signature is good, and the files are not those that were signed.
_OTHER_FILES = ("Signature mismatch", "Cannot use")
# What it then names: in a list that Python's repr has quoted, or as a path.
_OTHER = re.compile(r"Hash mismatch for \\?'(.*?)\\?': Expected")
_GONE = re.compile(r"Cannot use '(.*)' as file or directory")


@dataclass(frozen=True)
class Signer:
    """config: the library's, with the key that was read when this was made; online: it is sigstore that signs."""

    config: Any
    online: bool

    def sign(self, folder: Path, names: Sequence[str], named: str = "") -> None:
        """Write the signature of the files `names` into `folder`, whole or not at all. `named`: what the folder is
        called in it, where that is not its name.

        Raises InputError F100 for a file that cannot be read, OutputError where sigstore refuses or cannot be reached,
        and OSError.
        """
        self.config.set_hashing_config(_Digests(tuple(names), named))
        explained = _sigstore_explained("sign") if self.online else contextlib.nullcontext()
        with replacing(folder / SIGNATURE) as staged, explained:
            self.config.sign(folder, staged)


@dataclass(frozen=True)
class Trusted:
    """Whose signature is asked for. config: the library's, with the key that was read when this was made; words: the
    key or identity, for people.
    """

    config: Any
    words: str


def open_signer(key: str) -> Signer:
    """`key`: the file of a private key, PEM, or "sigstore".

    Raises UsageError without the library, InputError H418 for a key that cannot sign, OutputError where sigstore cannot
    be reached.
    """
    _needs_library("to sign")
    from model_signing import signing

    config = signing.Config()
    if key == SIGSTORE:
        with _sigstore_explained("sign"):
            config.use_sigstore_signer(use_ambient_credentials=True)
    else:
        config.use_elliptic_key_signer(private_key=_checked_key(Path(key), private=True))
    return Signer(config, key == SIGSTORE)


def open_trusted(key: str, identity: str = "", provider: str = "") -> Trusted:
    """`key`: the file of a public key, PEM, or "sigstore" with the identity that signed and the OpenID Connect provider
    that vouched for it. Raises as `open_signer` does.
    """
    if (key == SIGSTORE) != bool(identity and provider) or bool(identity) != bool(provider):
        raise UsageError(f"--signed {SIGSTORE} goes with --identity and --identity-provider, and a key with neither")
    _needs_library("to verify a signature")
    from model_signing import verifying

    config = verifying.Config()
    if key != SIGSTORE:
        config.use_elliptic_key_verifier(public_key=_checked_key(Path(key), private=False))
        return Trusted(config, f"the key {key}")
    with _sigstore_explained("verify"):
        config.use_sigstore_verifier(identity=identity, oidc_issuer=provider)
    return Trusted(config, f"{identity} ({provider})")


def check_signature(folder: Path, names: Sequence[str], trusted: Trusted, where: str) -> list[Finding]:
    """What is wrong with the signature in `folder`: H434 none, H435 not of whom is trusted, H436 of other files, or not
    of all `names`. Raises InputError where a file cannot be read.
    """
    file = folder / SIGNATURE
    if not file.is_file():
        return [
            error(
                "H434",
                f"{where} is not signed",
                where=where,
                expected=SIGNATURE,
                fix=("eagle3 seal sign FOLDER --key KEY    signs a folder that is sealed",),
            )
        ]
    from cryptography.exceptions import InvalidSignature
    from model_signing import hashing
    from sigstore.errors import Error as SigstoreError

    trusted.config.set_hashing_config(hashing.Config().set_allow_symlinks(True))  # the cache of the Hub holds links
    trusted.config.set_ignore_unsigned_files(True)
    try:
        read_object(file)  # bounded, and strict
        with contextlib.redirect_stdout(io.StringIO()):  # on which the library warns
            trusted.config.verify(folder, file)
    except InputError as problem:
        return [_not_of(trusted, where, problem.finding.message)]
    except ValueError as problem:
        if str(problem).startswith(_OTHER_FILES):
            return [_of_others(where, _differing(_first_line(problem)))]
        return [_not_of(trusted, where, _first_line(problem))]
    # A bundle that lacks a part ends in one of the last four: the library takes it as it comes.
    except (InvalidSignature, SigstoreError, KeyError, TypeError, AttributeError, IndexError) as problem:
        words = _first_line(problem) if isinstance(problem, SigstoreError) else ""
        return [_not_of(trusted, where, words)]
    missing = sorted(set(names) - _covered(file))
    return [_of_others(where, f"it does not cover {', '.join(missing[:5])}")] if missing else []


# --- what is signed -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Digests:
    """Stands for the library's hashing.Config where it signs: only these files, and a folder of this name."""

    names: tuple[str, ...]
    named: str

    def hash(self, folder: Path) -> manifest.Manifest:
        from model_signing import hashing, manifest

        config = hashing.Config().set_ignored_paths(paths=[n for n in _BESIDE if n not in self.names])
        config.set_allow_symlinks(True)
        with reading(folder):
            found = config.hash(folder, files_to_hash=[folder / name for name in self.names])
        form = manifest.SerializationType.from_args(found.serialization_type)
        items = [form.new_item(file.identifier, file.digest) for file in found.resource_descriptors()]
        return manifest.Manifest(self.named or found.model_name, items, form)


def _covered(file: Path) -> set[str]:
    """Names of the files that a signature, which holds, is of."""
    payload = parse(base64.b64decode(read_object(file)["dsseEnvelope"]["payload"]))
    return {resource["name"] for resource in payload["predicate"]["resources"]}


# --- keys -----------------------------------------------------------------------------------------------------


def _needs_library(what: str) -> None:
    try:
        importlib.import_module("model_signing")
    except ImportError as problem:
        raise UsageError(
            f"{what}, model-signing is needed and cannot be imported ({problem}):  pip install 'eagle3-convert[sign]'"
        ) from problem


def _checked_key(path: Path, private: bool) -> Path:
    """`path`, which holds a key that the library can use. Raises InputError H418."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_pem_public_key

    kind = "private" if private else "public"
    try:
        text = path.read_bytes()
    except OSError as problem:
        raise _bad_key(path, kind, problem.strerror or str(problem)) from problem
    try:
        key: Any = load_pem_private_key(text, None) if private else load_pem_public_key(text)
    except TypeError as problem:
        why = "it is encrypted, and this tool asks for no passwords"
        plain = f"{shlex.join(['openssl', 'ec', '-in', str(path), '-out', 'PLAIN.pem'])}    for as long as you sign"
        raise _bad_key(path, kind, why, plain) from problem
    except (ValueError, UnsupportedAlgorithm) as problem:
        other = b"PUBLIC KEY-----" if private else b"PRIVATE KEY-----"
        fix = () if private else (shlex.join(["openssl", "ec", "-in", str(path), "-pubout", "-out", "key.pub"]),)
        if other in text:
            named = "public" if private else "private"
            raise _bad_key(path, kind, f"it holds a {named} key", *fix) from problem
        raise _bad_key(path, kind, f"it holds no {kind} key in PEM") from problem
    if not isinstance(key, (ec.EllipticCurvePrivateKey, ec.EllipticCurvePublicKey)):
        raise _bad_key(path, kind, "it is of another kind than elliptic curves")
    if key.curve.name not in _CURVES:
        raise _bad_key(path, kind, f"it is on the curve {key.curve.name}")
    return path


def _bad_key(path: Path, kind: str, found: str, *fix: str) -> InputError:
    ways = (_MAKE_KEY,) if kind == "private" else (_MAKE_PUBLIC,)
    return InputError(
        error(
            "H418",
            f"{path} cannot be used as a {kind} key",
            where=str(path),
            found=found,
            expected=f"a {kind} key in PEM on {', '.join(_CURVES.values())}",
            fix=fix or ways,
        )
    )


# --- words ----------------------------------------------------------------------------------------------------


def _not_of(trusted: Trusted, where: str, words: str) -> Finding:
    return error(
        "H435",
        f"the signature of {where} is not of {trusted.words}",
        where=f"{where}/{SIGNATURE}",
        found=shortened(words),
        why="somebody else signed it, or the signature was changed",
        fix=("ask who published it for the key, and compare it with another source",),
    )


def _of_others(where: str, words: str) -> Finding:
    return error(
        "H436",
        f"the signature of {where} holds, but of other files than these",
        where=f"{where}/{SIGNATURE}",
        found=shortened(words),
        why="who signed did not sign what lies there",
        fix=("copy the folder again, whole", "or, if it is yours and was changed on purpose, convert and sign again"),
    )


def _differing(words: str) -> str:
    """The files that the library complains of, without its digests; its own words where it names none."""
    if gone := _GONE.search(words):
        return f"{Path(gone[1]).name} is gone, or no plain file"
    other = _OTHER.findall(words)
    return f"{', '.join(other)} {'has' if len(other) == 1 else 'have'} other contents" if other else words


def _first_line(problem: BaseException) -> str:
    return next((line.strip() for line in str(problem).splitlines() if line.strip()), "")


@contextlib.contextmanager
def _sigstore_explained(what: str) -> Iterator[None]:
    """What sigstore and the network raise, as OutputError."""
    from requests import RequestException
    from sigstore._internal.fulcio.client import FulcioClientError  # which has no public name
    from sigstore._internal.rekor import RekorClientError
    from sigstore.errors import Error as SigstoreError
    from sigstore.oidc import ExpiredIdentity, IssuerError

    refusals = (SigstoreError, IssuerError, ExpiredIdentity, FulcioClientError, RekorClientError, RequestException)
    try:
        yield
    except refusals as problem:
        cause = problem.__cause__
        words = ": ".join(filter(None, (_first_line(p) for p in (problem, cause) if p is not None)))
        raise OutputError(
            f"cannot {what} with sigstore: {shortened(words)}. It needs a network, and to sign a browser or the "
            "credentials of a CI job; a key of your own needs neither"
        ) from problem
