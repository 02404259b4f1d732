"""Make a certificate authority and a server certificate for loopback: with `cryptography`, else with `openssl`."""

from __future__ import annotations

import datetime as dt
import ipaddress
import shutil
import ssl
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_NAMES: Final = ("localhost",)
_ADDRESSES: Final = ("127.0.0.1", "::1")
_DAYS: Final = 365


class NoCertificatesError(Exception):
    """There is nothing here that certificates can be made with."""


@dataclass(frozen=True, slots=True)
class Certificates:
    """What clients trust (PEM), and what the server speaks with."""

    ca: str
    context: ssl.SSLContext


def make(folder: Path) -> Certificates:
    """Make new ones in a folder that only we can read. Raises `NoCertificatesError`."""
    try:
        import cryptography  # noqa: F401 - only whether it is there
    except ImportError:
        if shutil.which("openssl") is None:
            raise NoCertificatesError(
                "TLS needs the Python package cryptography or the program openssl: neither is there"
            ) from None
        _with_openssl(folder)
    else:
        _with_cryptography(folder)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(folder / "server.pem", folder / "server.key")
    context.set_alpn_protocols(["http/1.1"])
    return Certificates((folder / "ca.pem").read_text(encoding="ascii"), context)


def _with_cryptography(folder: Path) -> None:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    now = dt.datetime.now(dt.UTC)

    def named(text: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])

    def begin(subject: str, issuer: str, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(named(subject))
            .issuer_name(named(issuer))
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(hours=1))
            .not_valid_after(now + dt.timedelta(days=_DAYS))
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False)
        )

    def usage(*, signs_certificates: bool) -> x509.KeyUsage:
        return x509.KeyUsage(
            digital_signature=True,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            key_cert_sign=signs_certificates,
            crl_sign=signs_certificates,
            encipher_only=False,
            decipher_only=False,
        )

    ca_key = ec.generate_private_key(ec.SECP256R1())
    ca = (
        begin("embedded-ca", "embedded-ca", ca_key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage(signs_certificates=True), critical=True)
        .sign(ca_key, hashes.SHA256())
    )
    key = ec.generate_private_key(ec.SECP256R1())
    alternatives: list[x509.GeneralName] = [x509.DNSName(name) for name in _NAMES]
    alternatives += [x509.IPAddress(ipaddress.ip_address(address)) for address in _ADDRESSES]
    certificate = (
        begin("embedded", "embedded-ca", key.public_key())
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    (folder / "ca.pem").write_bytes(ca.public_bytes(pem))
    (folder / "server.pem").write_bytes(certificate.public_bytes(pem))
    key_file = folder / "server.key"
    key_file.touch(mode=0o600)
    key_file.write_bytes(key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()))


def _with_openssl(folder: Path) -> None:
    alternatives = ",".join([f"DNS:{name}" for name in _NAMES] + [f"IP:{address}" for address in _ADDRESSES])
    (folder / "server.cnf").write_text(
        f"basicConstraints=critical,CA:FALSE\nextendedKeyUsage=serverAuth\nsubjectAltName={alternatives}\n"
        "subjectKeyIdentifier=hash\nauthorityKeyIdentifier=keyid\n",
        encoding="ascii",
    )
    curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    steps = (
        ("req", "-x509", *curve, "-keyout", "ca.key", "-out", "ca.pem", "-days", str(_DAYS), "-subj", "/CN=embedded-ca",
         "-addext", "keyUsage=critical,keyCertSign,cRLSign"),
        ("req", *curve, "-keyout", "server.key", "-out", "server.csr", "-subj", "/CN=embedded"),
        ("x509", "-req", "-in", "server.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial",
         "-out", "server.pem", "-days", str(_DAYS), "-extfile", "server.cnf"),
    )  # fmt: skip
    for step in steps:
        subprocess.run(["openssl", *step], cwd=folder, check=True, capture_output=True)
