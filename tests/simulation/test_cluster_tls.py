"""A dask cluster with TLS refuses clients without a certificate of its authority."""

import datetime
import subprocess
import sys
from contextlib import contextmanager

import pytest
from outputs import content

import fastfed
from fastfed.results.store import FILE
from fastfed.simulation.experiment import experiment_from_spec

pytest.importorskip("distributed")
pytest.importorskip("cryptography")

SPEC = {
    "name": "x", "horizon": 60, "silos": 3, "replicates": 2,
    "environment": {"kind": "sphere", "dimension": 3, "actions": 4},
    "curve": [{"label": "one", "algorithm": "fedlinucb", "batch_size": 10}],
}  # fmt: skip


def certificates(folder):
    """Create an authority and a certificate for every party of the cluster; return the paths."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    folder.mkdir()
    now = datetime.datetime.now(datetime.UTC)

    def key_and_certificate(name, issuer=None):
        """Return a new key and its certificate, self-signed or by an issuer."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(subject if issuer is None else issuer[1].subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(hours=1))
            .not_valid_after(now + datetime.timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), True)
        )
        certificate = builder.sign(key if issuer is None else issuer[0], hashes.SHA256())
        return key, certificate

    authority = key_and_certificate("authority")
    key, certificate = key_and_certificate("cluster", authority)
    pem = serialization.Encoding.PEM
    (folder / "ca.pem").write_bytes(authority[1].public_bytes(pem))
    (folder / "cluster.pem").write_bytes(certificate.public_bytes(pem))
    (folder / "cluster.key").write_bytes(
        key.private_bytes(
            pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )  # fmt: skip
    (folder / "cluster.key").chmod(0o600)
    return folder


def settings(folder):
    """Return dask's configuration, as in docs/clusters.md, for the certificates of a folder."""
    each = {"cert": f"{folder}/cluster.pem", "key": f"{folder}/cluster.key"}
    return {
        "distributed.comm.require-encryption": True,
        "distributed.comm.tls.ca-file": f"{folder}/ca.pem",
        "distributed.comm.tls.scheduler": each,
        "distributed.comm.tls.worker": each,
        "distributed.comm.tls.client": each,
    }


@contextmanager
def cluster(folder):
    """Run a cluster with the certificates of a folder; yield the address of its scheduler."""
    import dask
    from distributed import LocalCluster
    from distributed.security import Security

    with dask.config.set(settings(folder)):
        security = Security()
    with LocalCluster(
        n_workers=1, threads_per_worker=1, processes=True, security=security,
        protocol="tls", dashboard_address=None, silence_logs=50,
    ) as actual:  # fmt: skip
        yield actual.scheduler_address


@pytest.mark.slow
def test_a_run_over_tls_has_the_same_bits_and_strangers_are_refused(tmp_path, monkeypatch):
    import dask

    folder = certificates(tmp_path / "certificates")
    strangers = certificates(tmp_path / "strangers")
    patience = "fastfed.simulation.engines.dask.CONNECT_SECONDS"
    monkeypatch.setattr(patience, 60.0)  # on a busy machine
    e = experiment_from_spec(SPEC)
    with cluster(folder) as address:
        assert address.startswith("tls://")
        with dask.config.set(settings(folder)):
            fastfed.run(e, tmp_path / "tls", engine="dask", scheduler=address)
        monkeypatch.setattr(patience, 5.0)
        # Refused are clients without a certificate, with one of another authority, and without TLS.
        refused = {"none": {}, "strangers": settings(strangers)}
        for name, config in refused.items():
            with dask.config.set(config), pytest.raises(fastfed.InputError) as error:
                fastfed.run(e, tmp_path / f"out-{name}", engine="dask", scheduler=address)
            assert "no dask scheduler answers at tls://" in str(error.value)
            assert "\n" not in str(error.value) and not (tmp_path / f"out-{name}").exists()
        with pytest.raises(fastfed.InputError, match="no dask scheduler answers"):
            fastfed.run(
                e, tmp_path / "clear", engine="dask", scheduler=address.replace("tls", "tcp")
            )
    fastfed.run(e, tmp_path / "here")
    assert content(tmp_path / "tls" / FILE) == content(tmp_path / "here" / FILE)


def test_the_help_says_what_a_scheduler_is_trusted_with():
    result = subprocess.run(
        [sys.executable, "-m", "fastfed", "run", "--help"],
        capture_output=True, text=True, env={**__import__("os").environ, "COLUMNS": "200"},
    )  # fmt: skip
    text = " ".join(result.stdout.replace("│", " ").split())
    assert "run any code" in text and "tls://" in text
