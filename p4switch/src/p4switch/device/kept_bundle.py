"""Bundles of P4 source that were made before, in the cache of `packet_io.compile`."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from p4switch.backends.native import build
from p4switch.packet_io.compile import cache_entry, is_intact, locked, replace_file, seal
from p4switch.packet_io.private_files import UnsafePathError


def kept_bundle(path: Path, include_paths: Sequence[Path], defines: Mapping[str, str]) -> bytes:
    """Return the bundle of a source file, without preprocessing it if nothing has changed.

    An entry of the cache holds all files that were looked for, with their contents, or None where
    there was no file. Without a usable cache each bundle is made again. Raises P4Error.
    """
    parts = (str(path), repr([str(folder) for folder in include_paths]), repr(dict(defines)))
    try:
        entry = cache_entry("bundle", *parts, build.package_hash())
    except UnsafePathError:
        return _make(path, include_paths, defines)[1]
    kept = entry / "bundle.pickle"
    if is_intact(entry, [kept.name]):
        files, bundle = pickle.loads(kept.read_bytes())
        if all(_contents(file) == contents for file, contents in files.items()):
            return bytes(bundle)
    made = _make(path, include_paths, defines)
    with suppress(OSError), locked(entry):
        replace_file(kept, pickle.dumps(made))
        seal(entry, [kept.name])
    return made[1]


def _make(
    path: Path, include_paths: Sequence[Path], defines: Mapping[str, str]
) -> tuple[dict[Path, bytes | None], bytes]:
    from p4switch.device.bundle import to_text
    from p4switch.frontend.source.preprocessor import preprocess

    tokens = preprocess(path, include_paths=include_paths, defines=defines)
    return tokens.files, to_text(tokens).encode()


def _contents(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None
