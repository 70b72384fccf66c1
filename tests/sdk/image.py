"""A small image: busybox under all its names, and what the SDKs take for bash."""

import hashlib
import io
import json
import subprocess
import tarfile

BUSYBOX = "/bin/busybox"


def write(path):
    """Writes it as `docker save` does."""
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as tree:
        for folder in ("bin", "etc", "home", "root", "srv", "tmp", "usr", "usr/bin"):
            add(tree, folder, tarfile.DIRTYPE, mode=0o1777 if folder == "tmp" else 0o755)
        with open(BUSYBOX, "rb") as file:
            add(tree, "bin/busybox", content=file.read(), mode=0o755)
        for name in subprocess.run([BUSYBOX, "--list"], stdout=subprocess.PIPE, text=True, check=True).stdout.split():
            if name != "busybox":
                add(tree, "bin/" + name, tarfile.SYMTYPE, "busybox")
        add(tree, "bin/bash", content=b'#!/bin/sh\nexec /bin/sh "$@"\n', mode=0o755)
        add(tree, "usr/bin/env", tarfile.SYMTYPE, "/bin/busybox")
    layer = layer.getvalue()
    config = json.dumps({
        "architecture": "amd64", "os": "linux", "config": {"Env": ["PATH=/usr/bin:/bin"]},
        "rootfs": {"type": "layers", "diff_ids": ["sha256:" + hashlib.sha256(layer).hexdigest()]},
    }).encode()
    with tarfile.open(path, "w") as archive:
        add(archive, "layer.tar", content=layer)
        add(archive, "config.json", content=config)
        manifest = [{"Config": "config.json", "RepoTags": ["localhost/small:latest"], "Layers": ["layer.tar"]}]
        add(archive, "manifest.json", content=json.dumps(manifest).encode())


def add(archive, name, kind=tarfile.REGTYPE, to="", content=b"", mode=0o644):
    entry = tarfile.TarInfo(name)
    entry.type, entry.linkname, entry.size, entry.mode = kind, to, len(content), mode
    archive.addfile(entry, io.BytesIO(content))
