"""Certificates of X.509, made by openssl."""

from __future__ import annotations

import subprocess
from pathlib import Path

from hopsum.protocol.roles import ROLE_URI


def certify(
    folder: Path,
    name: str,
    authority: str | None = None,
    names: str = "DNS:localhost",
    role: str | None = None,
) -> None:
    """Make `name`.pem and `name`.key, an authority of its own or certified by another.

    The common name is `name`; `names` are its subjectAltName, with the URI of a role if one is
    given.
    """
    if role is not None:
        names += f",URI:{ROLE_URI}{role}"
    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    asked = ("req", *key, "-keyout", f"{name}.key", "-subj", f"/CN={name}")
    if authority is None:
        _openssl(folder, *asked, "-x509", "-out", f"{name}.pem", "-days", "2")
        return
    _openssl(folder, *asked, "-out", f"{name}.csr")
    (folder / "names").write_text(f"subjectAltName={names}")
    _openssl(
        folder, "x509", "-req", "-in", f"{name}.csr", "-CA", f"{authority}.pem",
        "-CAkey", f"{authority}.key", "-CAcreateserial", "-out", f"{name}.pem", "-days", "2",
        "-extfile", "names",
    )  # fmt: skip


def _openssl(folder: Path, *arguments: str) -> None:
    subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)
