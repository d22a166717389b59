"""Signatures of sealed folders: real keys, made here; also held against model-signing's own command."""

from __future__ import annotations

import base64
import errno
import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from model_signing import hashing, signing, verifying

from converter import seal
from converter.source import SIGNATURE
from tests.hub_server import unused_port
from tests.support import DRAFTERS, TARGET, Done, eagle3, run
from tests.test_schemas import assert_published

A = DRAFTERS / "a_plain"


@dataclass(frozen=True)
class Keys:
    private: Path
    public: Path


def write_key(path: Path, key: Any, password: bytes | None = None) -> Keys:
    """The private key in PEM at `path`, the public one beside it."""
    how = serialization.BestAvailableEncryption(password) if password else serialization.NoEncryption()
    path.write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, how))
    public = path.with_suffix(".pub")
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    public.write_bytes(key.public_key().public_bytes(serialization.Encoding.PEM, form))
    return Keys(path, public)


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Keys:
    return write_key(tmp_path_factory.mktemp("keys") / "key.pem", ec.generate_private_key(ec.SECP256R1()))


@pytest.fixture(scope="module")
def signed(keys: Keys, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("signed") / "out"
    done = eagle3("convert", A, out, "--target", TARGET, "--sign", keys.private)
    assert done.returncode == 0 and f"signed: {out / SIGNATURE}" in done.stdout, done.stderr
    return out


@pytest.fixture
def folder(signed: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(signed, tmp_path / "out"))


def verify(folder: Path, key: object, *options: object) -> Done:
    return eagle3("seal", "verify", folder, "--signed", key, *options)


def errors(folder: Path, key: object) -> list[str]:
    """Codes of the errors in the document, which is as it is published."""
    done = verify(folder, key, "--json")
    found = json.loads(done.stdout)
    assert_published(found, "verify")
    codes = [f["code"] for f in found["findings"] if f["severity"] == "error"]
    assert done.returncode == int(bool(codes)) and found["signature"]["of"] == f"the key {key}"
    assert found["signature"]["holds"] is not bool({"H434", "H435", "H436"} & set(codes))
    return codes


# --- a signature that holds ---------------------------------------------------------------------------------


def test_the_key_tells_who_signed(folder: Path, keys: Keys) -> None:
    done = verify(folder, keys.public)
    assert done.returncode == 0 and done.stdout.startswith("Sealed, signed and unchanged.\n"), done.stderr
    assert "there, not looked at (--signed KEY)" in eagle3("seal", "verify", folder).stdout
    assert errors(folder, keys.public) == []


def test_what_lies_beside_the_files_is_not_signed(folder: Path, keys: Keys) -> None:
    """And model-signing's own command says the same, with nothing of this project."""
    (folder / "README.md").write_text("a card")
    (folder / ".gitattributes").write_text("*.safetensors filter=lfs")
    (folder / ".cache" / "huggingface").mkdir(parents=True)
    (folder / ".cache" / "huggingface" / "CACHEDIR.TAG").write_text("")
    assert errors(folder, keys.public) == []
    words = ("verify", "key", ".", "--signature", SIGNATURE, "--public_key", keys.public)
    command = [sys.executable, "-m", "model_signing", *words]
    own = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert own.returncode == 0 and "Verification succeeded" in own.stdout, own.stderr
    (folder / "config.json").write_text("{}")
    with pytest.raises(ValueError, match=r"Hash mismatch for 'config\.json'"):
        verifying.Config().use_elliptic_key_verifier(public_key=keys.public).verify(folder, folder / SIGNATURE)


def test_the_signature_names_the_folder_and_all_files(signed: Path) -> None:
    payload = json.loads(base64.b64decode(json.loads((signed / SIGNATURE).read_text())["dsseEnvelope"]["payload"]))
    names = {resource["name"] for resource in payload["predicate"]["resources"]}
    assert names == {"config.json", "model.safetensors", seal.NAME} and payload["subject"][0]["name"] == "out"
    assert sorted(p.name for p in signed.iterdir()) == sorted({*names, SIGNATURE})


@pytest.mark.parametrize("curve", [ec.SECP384R1(), ec.SECP521R1()], ids=lambda c: str(c.name))
def test_a_folder_that_was_sealed_before_is_signed(curve: ec.EllipticCurve, tmp_path: Path) -> None:
    keys = write_key(tmp_path / "key.pem", ec.generate_private_key(curve))
    run(A, tmp_path / "out", digest=False)
    (tmp_path / "out" / "README.md").write_text("a card")
    (tmp_path / "out" / "config.json").rename(tmp_path / "config.json")
    (tmp_path / "out" / "config.json").symlink_to(tmp_path / "config.json")
    sign = ("seal", "sign", tmp_path / "out", "--key", keys.private)
    assert eagle3(*sign).stdout == f"signed: {tmp_path / 'out' / SIGNATURE}\n"
    assert errors(tmp_path / "out", keys.public) == []
    again = eagle3(*sign)
    assert again.returncode == 2 and "--force" in again.stderr
    forced = eagle3(*sign, "--force", "-q")
    assert forced.returncode == 0 and forced.stdout == ""
    # Sealed without digests: the signature alone tells what has the size that it had.
    data = bytearray((tmp_path / "out" / "model.safetensors").read_bytes())
    data[-1] ^= 1
    (tmp_path / "out" / "model.safetensors").write_bytes(data)
    assert errors(tmp_path / "out", keys.public) == ["H436"]


def test_a_signed_output_is_replaced(folder: Path, keys: Keys) -> None:
    convert = ("convert", A, folder, "--target", TARGET, "--force")
    assert eagle3(*convert).returncode == 0 and not (folder / SIGNATURE).exists()
    assert eagle3(*convert, "--sign", keys.private).returncode == 0 and errors(folder, keys.public) == []
    document = json.loads(eagle3(*convert, "--sign", keys.private, "--json").stdout)
    assert document["output"]["signature"] == str(folder / SIGNATURE)
    assert_published(document, "report")


# --- and one that does not ----------------------------------------------------------------------------------


def test_what_nobody_signed(folder: Path, keys: Keys) -> None:
    (folder / SIGNATURE).unlink()
    assert errors(folder, keys.public) == ["H434"]
    assert verify(folder, keys.public).stdout.startswith("Sealed and unchanged, but not signed.\n")
    assert "none" in eagle3("seal", "verify", folder).stdout


def flipped(text: bytes, at: int = -3) -> bytes:
    data = bytearray(text)
    data[at] ^= 1
    return bytes(data)


def rewritten(folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    document = json.loads((folder / SIGNATURE).read_text())
    change(document)
    (folder / SIGNATURE).write_text(json.dumps(document))


def other_payload(bundle: dict[str, Any]) -> None:
    payload = json.loads(base64.b64decode(bundle["dsseEnvelope"]["payload"]))
    payload["predicate"]["resources"].pop(0)
    bundle["dsseEnvelope"]["payload"] = base64.b64encode(json.dumps(payload).encode()).decode()


def other_signature(bundle: dict[str, Any]) -> None:
    first = bundle["dsseEnvelope"]["signatures"][0]
    first["sig"] = base64.b64encode(flipped(base64.b64decode(first["sig"]))).decode()


@pytest.mark.parametrize(
    "change",
    [
        lambda f: (f / SIGNATURE).write_text(""),
        lambda f: (f / SIGNATURE).write_text("[]"),
        lambda f: (f / SIGNATURE).write_text("{}"),
        lambda f: (f / SIGNATURE).write_bytes(b"\xff\xfe"),
        lambda f: rewritten(f, other_payload),
        lambda f: rewritten(f, other_signature),
        lambda f: rewritten(f, lambda b: b["dsseEnvelope"].update(signatures=[])),
        lambda f: rewritten(f, lambda b: b["dsseEnvelope"].update(payload="")),
        lambda f: rewritten(f, lambda b: b.pop("dsseEnvelope")),
        lambda f: rewritten(f, lambda b: b.pop("verificationMaterial")),
        lambda f: rewritten(f, lambda b: b.update(verificationMaterial={})),
        lambda f: rewritten(f, lambda b: b.update(mediaType="mine")),
        lambda f: rewritten(f, lambda b: (b["verificationMaterial"]["publicKey"].update(hint=""), other_signature(b))),
    ],
)
def test_a_signature_that_was_changed(folder: Path, keys: Keys, change: Callable[[Path], object]) -> None:
    change(folder)
    assert errors(folder, keys.public) == ["H435"]
    assert "but the signature does not hold." in verify(folder, keys.public).stdout.splitlines()[0]


def test_a_signature_of_somebody_else(folder: Path, tmp_path: Path) -> None:
    other = write_key(tmp_path / "other.pem", ec.generate_private_key(ec.SECP256R1()))
    assert errors(folder, other.public) == ["H435"]
    rewritten(folder, lambda bundle: bundle["verificationMaterial"]["publicKey"].update(hint=""))  # of whom is not said
    assert errors(folder, other.public) == ["H435"]


@pytest.mark.parametrize(
    ("change", "codes", "words"),
    [
        (lambda f: (f / "model.safetensors").write_bytes(flipped((f / "model.safetensors").read_bytes())),
         ["C233", "H436"], "found model.safetensors has other contents Who"),
        (lambda f: (f / "config.json").unlink(), ["C233", "H436"], "found config.json is gone, or no plain file Who"),
        (lambda f: shutil.copy(f / "model.safetensors", f / "more.safetensors"), ["C233"], ""),
        # A seal that somebody made fit to other files, or to a better proof.
        (lambda f: (f / seal.NAME).write_text((f / seal.NAME).read_text().replace('"none"', '"sample"')), ["H436"],
         f"found {seal.NAME} has other contents Who"),
    ],
)  # fmt: skip
def test_files_that_nobody_signed(
    folder: Path, keys: Keys, change: Callable[[Path], object], codes: list[str], words: str
) -> None:
    change(folder)
    assert errors(folder, keys.public) == codes
    assert words in " ".join(verify(folder, keys.public).stdout.split())


def test_a_signature_must_cover_all_that_is_sealed(folder: Path, keys: Keys) -> None:
    class Some(hashing.Config):
        def hash(self, model_path: Any, *, files_to_hash: Any = None) -> Any:
            return super().hash(model_path, files_to_hash=[folder / seal.NAME, folder / "config.json"])

    config = signing.Config().use_elliptic_key_signer(private_key=keys.private).set_hashing_config(Some())
    config.sign(folder, folder / SIGNATURE)
    assert errors(folder, keys.public) == ["H436"]
    assert "does not cover model.safetensors" in verify(folder, keys.public).stdout


def test_a_signature_of_another_folder(folder: Path, keys: Keys, tmp_path: Path) -> None:
    run(DRAFTERS / "g_aux024", tmp_path / "other")
    shutil.copy(folder / SIGNATURE, tmp_path / "other")
    assert errors(tmp_path / "other", keys.public) == ["H436"]


# --- keys, and what else keeps it from being made -----------------------------------------------------------


def test_keys_that_cannot_be_used(tmp_path: Path, signed: Path, keys: Keys) -> None:
    (tmp_path / "junk.pem").write_bytes(b"\xff no key")
    ecc = ec.generate_private_key(ec.SECP256R1())
    locked = write_key(tmp_path / "locked.pem", ecc, b"password")
    other = write_key(tmp_path / "rsa.pem", rsa.generate_private_key(65537, 1024))
    bitcoin = write_key(tmp_path / "k1.pem", ec.generate_private_key(ec.SECP256K1()))
    for key, words in (
        (tmp_path / "nothing.pem", "No such file"),
        (tmp_path, "Is a directory"),
        (tmp_path / "junk.pem", "no private key in PEM"),
        (locked.private, "it is encrypted"),
        (other.private, "another kind than elliptic curves"),
        (bitcoin.private, "secp256k1"),
        (keys.public, "it holds a public key"),
    ):
        done = eagle3("convert", A, tmp_path / "out", "--target", TARGET, "--sign", key)
        assert done.returncode == 3 and "H418" in done.stderr and words in " ".join(done.stderr.split()), done.stderr
        assert "openssl" in done.stderr and not (tmp_path / "out").exists()
        assert eagle3("seal", "sign", signed, "--key", key, "--force").returncode == 3
    for key, words in (
        (keys.private, "it holds a private key"),
        (other.public, "elliptic"),
        (tmp_path / "no", "No such"),
    ):
        done = verify(signed, key, "--json")
        found = json.loads(done.stdout)["findings"]
        assert done.returncode == 3 and [f["code"] for f in found] == ["H418"] and words in found[0]["found"]
    # What is to be typed is what a shell takes.
    (tmp_path / "my keys").mkdir()
    other_way = shutil.copy(keys.private, tmp_path / "my keys" / "key.pem")
    done = verify(signed, Path(other_way), "--json")
    words = ["openssl", "ec", "-in", str(other_way), "-pubout", "-out", "key.pub"]
    assert json.loads(done.stdout)["findings"][0]["fix"] == [shlex.join(words)]
    # Before any work: that IN is not there would be said first otherwise.
    done = eagle3("convert", tmp_path / "no-drafter", tmp_path / "out", "--sign", tmp_path / "nothing.pem")
    assert "H418" in done.stderr and "F100" not in done.stderr


def test_without_the_library(tmp_path: Path, signed: Path, keys: Keys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "model_signing", None)
    for done in (
        eagle3("convert", A, tmp_path / "out", "--target", TARGET, "--sign", keys.private),
        eagle3("seal", "sign", signed, "--key", keys.private),
        verify(signed, keys.public),
    ):
        assert done.returncode == 2 and "pip install 'eagle3-convert[sign]'" in done.stderr
    assert not (tmp_path / "out").exists() and eagle3("seal", "verify", signed).returncode == 0


def test_what_is_changed_is_not_signed(folder: Path, keys: Keys) -> None:
    (folder / SIGNATURE).unlink()
    (folder / "config.json").write_text("{}")
    sign = ("seal", "sign", "--key", keys.private)
    done = eagle3(*sign, folder)
    assert done.returncode == 1 and "C233" in done.stdout and not (folder / SIGNATURE).exists()
    (folder / seal.NAME).unlink()
    assert eagle3(*sign, folder).returncode == 1
    elsewhere = eagle3(*sign, "org/name")
    assert elsewhere.returncode == 2 and "before it is pushed" in elsewhere.stderr


def test_a_disk_that_fails_leaves_nothing(
    folder: Path, keys: Keys, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OUT is absent, and a signature that was there stays."""
    before = (folder / SIGNATURE).read_bytes()
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def replace(self: Path, target: Path) -> None:
        raise full

    monkeypatch.setattr(Path, "replace", replace)
    done = eagle3("convert", A, tmp_path / "new", "--target", TARGET, "--sign", keys.private)
    assert done.returncode == 4 and "No space left" in done.stderr and not (tmp_path / "new").exists()
    done = eagle3("seal", "sign", folder, "--key", keys.private, "--force")
    assert done.returncode == 4 and (folder / SIGNATURE).read_bytes() == before
    assert not list(folder.glob(f".{SIGNATURE}*"))


def test_sigstore_out_of_reach(tmp_path: Path, signed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What there is to test of it without a network. No key may be taken for an identity, nor the other way round."""
    nowhere = f"http://127.0.0.1:{unused_port()}"
    for name in ("HTTPS_PROXY", "HTTP_PROXY", "https_proxy", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, nowhere)
    for name in ("HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    done = eagle3("convert", A, tmp_path / "out", "--target", TARGET, "--sign", "sigstore")
    assert done.returncode == 4 and "with sigstore" in done.stderr and not (tmp_path / "out").exists()
    who = ("--identity", "me@example.org", "--identity-provider", "https://accounts.example.org")
    done = verify(signed, "sigstore", *who)
    assert done.returncode == 4 and "cannot verify with sigstore" in done.stderr
    assert verify(signed, "sigstore").returncode == 2
    assert verify(signed, tmp_path / "key.pub", *who).returncode == 2
    assert eagle3("seal", "verify", signed, *who).returncode == 2
