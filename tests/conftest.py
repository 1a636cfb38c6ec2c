"""What all tests share: hypothesis without a deadline, since a busy machine is no failure; one thread; and
certificates.
"""

import os
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address
from pathlib import Path

import pytest
from hypothesis import settings

# Before torch is loaded: with several processes at once, more threads only get in each other's way.
os.environ.setdefault("OMP_NUM_THREADS", "1")

settings.register_profile("headway", deadline=None)
settings.load_profile("headway")


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of PEM files: the CAs ca and other, and for 127.0.0.1 own (of ca) and foreign (of other)."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    folder = tmp_path_factory.mktemp("certificates")
    begin = datetime.now(tz=UTC) - timedelta(hours=1)
    alternatives = x509.SubjectAlternativeName([x509.IPAddress(IPv4Address("127.0.0.1"))])

    def make(name: str, signer: tuple[str, ec.EllipticCurvePrivateKey] | None) -> ec.EllipticCurvePrivateKey:
        key = ec.generate_private_key(ec.SECP256R1())
        issuer, signing = signer or (name, key)
        subject, by = (
            x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, each)]) for each in (name, issuer)
        )
        builder = x509.CertificateBuilder(issuer_name=by, subject_name=subject, public_key=key.public_key())
        builder = builder.serial_number(x509.random_serial_number())
        builder = builder.not_valid_before(begin).not_valid_after(begin + timedelta(days=2))
        constraints = x509.BasicConstraints(ca=signer is None, path_length=None)
        builder = builder.add_extension(constraints, critical=True)
        if signer is not None:
            builder = builder.add_extension(alternatives, critical=False)
        made = builder.sign(signing, hashes.SHA256())
        pem = serialization.Encoding.PEM
        (folder / f"{name}.pem").write_bytes(made.public_bytes(pem))
        form, none = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        (folder / f"{name}.key").write_bytes(key.private_bytes(pem, form, none))
        return key

    for ca, holder in (("ca", "own"), ("other", "foreign")):
        make(holder, (ca, make(ca, None)))
    return folder
