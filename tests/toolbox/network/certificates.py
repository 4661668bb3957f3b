"""A certificate authority of its own for each test run, and the files that TLS asks for."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    KeySerializationEncryption,
    NoEncryption,
    PrivateFormat,
)
from cryptography.x509.oid import NameOID

LIFE = dt.timedelta(days=1)


class Authority:
    """Signs certificates; ``certificate`` is the file with its own."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _named(name)
        certificate = (
            _builder(self._name, self._name, self._key.public_key())
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.certificate = folder / f"{name}.pem"
        self.certificate.write_bytes(certificate.public_bytes(Encoding.PEM))

    def issue(self, name: str, *, password: str | None = None) -> Issued:
        """Make a certificate for the host ``name`` and its key, the key encrypted if there is a ``password``."""
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = (
            _builder(_named(name), self._name, key.public_key())
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        encryption: KeySerializationEncryption = NoEncryption()
        if password is not None:
            encryption = BestAvailableEncryption(password.encode())
        return Issued(
            self._folder / name,
            certificate.public_bytes(Encoding.PEM),
            key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption),
        )


class Issued:
    """The files of one certificate: alone, its key alone, and both in one as Java likes it."""

    def __init__(self, stem: Path, certificate: bytes, key: bytes) -> None:
        self.certificate = stem.with_suffix(".crt.pem")
        self.key = stem.with_suffix(".key.pem")
        self.both = stem.with_suffix(".both.pem")
        self.certificate.write_bytes(certificate)
        self.key.write_bytes(key)
        self.both.write_bytes(key + certificate)


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        # Clocks of hosts differ.
        .not_valid_before(now - LIFE)
        .not_valid_after(now + LIFE)
    )
