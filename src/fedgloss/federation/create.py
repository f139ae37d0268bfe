"""`fedgloss federation init`: a folder with a ready Flower app, certificates and keys for a trial, and a script."""

from __future__ import annotations

import datetime
import ipaddress
import os
import re
import shutil
import socket
import sys
import tempfile
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from string import Template
from typing import TypeAlias

from ..errors import InvalidInput, require
from ..files import disk_errors

Known: TypeAlias = str | ipaddress.IPv4Address | ipaddress.IPv6Address
"""What a certificate is for: a name or an address."""

_FILES = {
    "pyproject.toml": "app/pyproject.toml",
    "app.py": "app/federated/app.py",
    "data.py": "app/federated/data.py",
    "config.toml": "app/federated/config.toml",
    "flower.toml": "flower/config.toml",
    "nginx.conf": "nginx.conf",
    "start.sh": "start.sh",
    "superlink.sh": "superlink.sh",
    "register.sh": "register.sh",
    "site.sh": "site.sh",
}


def create(folder: Path, *, sites: int, host: str = "localhost") -> None:
    """Write the folder, or nothing at all. ``host`` is the name that sites know the server by."""
    require(1 <= sites <= 1000, "--sites", f"must lie between 1 and 1000, got {sites}")
    known = _known_as(host)
    folder, programs = folder.absolute(), Path(sys.executable).parent
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise InvalidInput(f"{folder}: exists and is not empty; choose another folder")
    for path in (folder, programs):
        if not re.fullmatch(r"[\w./+@%,=~-]+", str(path)):  # shells and nginx read the others in ways of their own
            raise InvalidInput(
                f"{path}: the scripts cannot work in a folder with quotes, dollars or spaces (or the like) in it"
            )
    port, proxy, *runtime = _free_ports(2 + sites)
    names = {
        "folder": str(folder),
        "sites": sites,
        "last": sites - 1,
        "port": port,
        "proxy": proxy,
        "runtime": runtime[0],
        "bin": str(programs),
    }
    with disk_errors(folder):
        _write(folder, names, sites, known)


def _write(folder: Path, names: Mapping[str, object], sites: int, known: Known) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        for template, place in _FILES.items():
            path = made / place
            path.parent.mkdir(parents=True, exist_ok=True)
            text = (resources.files(__package__) / "templates" / f"{template}.template").read_text()
            path.write_text(Template(text).substitute(names))
            if path.suffix == ".sh":
                path.chmod(0o755)
        (made / "app/federated/__init__.py").write_text('"""The federation\'s app."""\n')
        _certificates(made / "certificates", known)
        for site in range(sites):
            _node_key(made / "keys", f"site-{site}")
        made.chmod(0o755)
        if folder.exists():
            folder.rmdir()
        made.rename(folder)
    except BaseException:
        shutil.rmtree(made, ignore_errors=True)
        raise


def _known_as(host: str) -> Known:
    """The name or address, if it can stand in a certificate; a port or a scheme cannot."""
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        part = "[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?"
        if len(host) > 253 or not re.fullmatch(rf"{part}(\.{part})*", host):
            raise InvalidInput(
                f"--host {host}: must be the server's name or address alone, like fed.example.org or 10.0.0.1"
            ) from None
        return host


def _free_ports(count: int) -> list[int]:
    """Free ports; all but the first two in a row, for the sites of a trial."""
    for base in range(20000 + os.getpid() % 5000, 60000, count):
        ports = list(range(base, base + count))
        if all(_is_free(port) for port in ports):
            return ports
    raise InvalidInput("federation: no free ports on this machine")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def _secret(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(data)


def _node_key(folder: Path, name: str) -> None:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP384R1())
    plain = serialization.NoEncryption()
    _secret(
        folder / name, key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, plain)
    )
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    (folder / f"{name}.pub").write_bytes(public + b"\n")


def _certificates(folder: Path, host: Known) -> None:
    """An authority of the trial's own, and the server's certificate for ``host`` and the loopback."""
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.x509.oid import NameOID
    except ImportError as error:
        raise InvalidInput(
            f"federation: Flower needs other packages ({error}); pip install 'fedgloss[flower]'"
        ) from None

    now = datetime.datetime.now(datetime.UTC)

    def name(text: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])

    def builder(subject: str, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(name(subject))
            .issuer_name(name("fedgloss trial authority"))
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=365))
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
        )

    authority, server = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    signs = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key())
    root = (
        builder("fedgloss trial authority", authority.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(signs, critical=True)
        .sign(authority, hashes.SHA256())
    )
    known: x509.GeneralName = x509.DNSName(host) if isinstance(host, str) else x509.IPAddress(host)
    loopback = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    names = [known, *(n for n in loopback if n != known)]
    certificate = (
        builder("fedgloss trial server", server.public_key())  # its names are below: here a long one has no room
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([x509.oid.ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(issuer, critical=False)
        .sign(authority, hashes.SHA256())
    )
    encoding = serialization.Encoding.PEM
    for stem, key, made in (("ca", authority, root), ("server", server, certificate)):
        plain = serialization.NoEncryption()
        private = key.private_bytes(encoding, serialization.PrivateFormat.PKCS8, plain)
        _secret(folder / f"{stem}.key", private)
        (folder / f"{stem}.crt").write_bytes(made.public_bytes(encoding))
