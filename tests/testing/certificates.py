"""Throw-away certificates, made by the `openssl` command."""

import base64
import hashlib
import pathlib
import shutil
import subprocess


def why_not():
    return None if shutil.which("openssl") else "there is no `openssl` (Debian package openssl)"


class Authority:
    """Signs certificates; all files lie in `folder`."""

    def __init__(self, folder, name="authority", key=None):
        """`key`: the PEM text of a private key that there is already."""
        self.folder = pathlib.Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.certificate = self.folder / f"{name}.pem"
        self.key = self.folder / f"{name}.key"
        how = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", self.key)
        if key is not None:
            self.key.write_text(key)
            how = ("-key", self.key)
        self._openssl("req", "-x509", *how, "-days", "2", "-subj", f"/CN={name}", "-out", self.certificate)

    @classmethod
    def of_group_key(cls, folder, key):
        """The authority that everybody is who has the group key (server/daemon/group_key.h)."""
        seed = hashlib.sha256(b"ckptd group key 1\n" + key.encode()).digest()
        # RFC 8410, section 7: what precedes the 32 bytes of an Ed25519 key.
        der = bytes.fromhex("302e020100300506032b657004220420") + seed
        pem = f"-----BEGIN PRIVATE KEY-----\n{base64.b64encode(der).decode()}\n-----END PRIVATE KEY-----\n"
        return cls(folder, "ckptd group key", pem)

    def issue(self, name, *alternative_names):
        """(certificate, key) for e.g. "IP:10.77.0.1" or "DNS:trainer"."""
        request, certificate = self.folder / f"{name}.csr", self.folder / f"{name}.pem"
        key, extensions = self.folder / f"{name}.key", self.folder / f"{name}.ext"
        extensions.write_text(f"subjectAltName={','.join(alternative_names)}\n")
        self._openssl("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
                      "-subj", f"/CN={name}", "-keyout", key, "-out", request)
        self._openssl("x509", "-req", "-days", "2", "-in", request, "-CA", self.certificate, "-CAkey", self.key,
                      "-CAcreateserial", "-extfile", extensions, "-out", certificate)
        return certificate, key

    def options(self, name, *alternative_names):
        """The daemon's options that use a certificate made for it."""
        certificate, key = self.issue(name, *alternative_names)
        return ("--tls-cert", str(certificate), "--tls-key", str(key), "--tls-ca", str(self.certificate))

    @staticmethod
    def _openssl(*arguments):
        subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True, timeout=120)
