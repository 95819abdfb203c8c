"""Units of systemd, started with the rights that they ask for, where no systemd runs.

What is understood of `[Service]` is in `KNOWN`; another setting is an error, so that none is taken
for tested that is not. The folders of `%S`, `%C` and of the tests stand in for the machine's.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.support.paths import ROOT

KNOWN = {
    "AmbientCapabilities",
    "CacheDirectory",
    "CapabilityBoundingSet",
    "Environment",
    "ExecStart",
    "NoNewPrivileges",
    "PrivateTmp",
    "ProtectHome",
    "ProtectSystem",
    "Restart",
    "StateDirectory",
    "User",
}
SERVICE_USER = 64123
"""Stands in for the user that a unit names; nobody's on machines that tests run on."""

ENTER = """
set -eu
cover() {  # FOLDER MODE PATH...: hide a folder, but for paths in it
    folder=$1; mode=$2; shift 2
    test -d "$folder" || return 0
    exec 9<"$folder"
    mount -t tmpfs -o "mode=$mode" tmpfs "$folder"
    for path; do
        case $path in
            "$folder"/*)
                mkdir -p "$path"
                mount --no-canonicalize --rbind "/proc/self/fd/9${path#"$folder"}" "$path" ;;
        esac
    done
    exec 9<&-
}
read_only() {  # FOLDER...: all that is mounted can only be read, but for these folders
    for folder; do mount --bind "$folder" "$folder"; done
    for point in $(cut -d' ' -f2 /proc/self/mounts); do
        case $point in /dev|/dev/*|/proc|/proc/*|/sys|/sys/*|/tmp|/var/tmp) continue ;; esac
        for folder; do test "$point" != "$folder" || continue 2; done
        mount -o remount,bind,ro "$point"
    done
}
"""


@dataclass(frozen=True)
class Unit:
    """The settings of a unit's service."""

    settings: Mapping[str, str]

    @classmethod
    def read(cls, text: str) -> Unit:
        """Read a unit. Raises ValueError for a setting of the service that is not known here."""
        [service] = re.findall(r"^\[Service\]\n(.*?)(?=^\[|\Z)", text, re.MULTILINE | re.DOTALL)
        lines = service.replace("\\\n", " ").splitlines()
        settings = dict(line.split("=", 1) for line in lines if line and line[0] not in "#;")
        if unknown := set(settings) - KNOWN:
            raise ValueError(f"[Service] {', '.join(unknown)}: expected {', '.join(KNOWN)}")
        return cls(settings)

    def on(self, name: str) -> bool:
        """Whether a switch of the unit is on."""
        return self.settings.get(name) in ("yes", "true", "strict")

    def directories(self, state: Path, cache: Path) -> list[Path]:
        """The folders that the service may write to."""
        kinds = (("StateDirectory", state), ("CacheDirectory", cache))
        return [parent / self.settings[kind] for kind, parent in kinds if kind in self.settings]

    def command(self, state: Path, cache: Path) -> list[str]:
        """Return what starts the service, as root in a mount namespace of its own.

        `state` and `cache` stand for /var/lib and /var/cache. What the test and its interpreter
        are read from stays visible where homes and temporary folders are hidden.
        """
        writable = self.directories(state, cache)
        for folder in writable:
            folder.mkdir(parents=True, exist_ok=True)
        seen = shlex.join(
            _outermost([Path(sys.prefix), Path(sys.base_prefix), ROOT, state.parents[1]])
        )
        steps = [ENTER]
        if self.on("ProtectHome"):
            steps += [f"cover {home} 755 {seen}" for home in ("/root", "/home")]
        # Without one of its own the machine's, which tests may have hidden from other users.
        mode = 1777 if self.on("PrivateTmp") else 755
        steps += [f"cover {folder} {mode} {seen}" for folder in ("/tmp", "/var/tmp")]
        if self.on("ProtectSystem"):
            steps.append(f"read_only {shlex.join(map(str, writable))}")
        start = ["exec", "setpriv"]
        if "User" in self.settings:
            user = str(SERVICE_USER)
            steps[1:1] = [f"chown {user} {shlex.quote(str(folder))}" for folder in writable]
            start += ["--reuid", user, "--regid", user, "--clear-groups"]
        if "CapabilityBoundingSet" in self.settings:
            start += ["--bounding-set", _capabilities(self.settings["CapabilityBoundingSet"])]
        ambient = _capabilities(self.settings.get("AmbientCapabilities", ""))
        start += ["--inh-caps", ambient, "--ambient-caps", ambient]
        if self.on("NoNewPrivileges"):
            start.append("--no-new-privs")
        environment = self.settings.get("Environment", "").replace("%C", str(cache))
        start += ["--", "env", "-u", "HOME", *shlex.split(environment)]
        steps.append(f"{shlex.join(start)} {self.settings['ExecStart']}")
        return ["sh", "-c", "\n".join(steps)]


def _outermost(paths: list[Path]) -> list[str]:
    """Return the paths that are in none of the others: a mount there would be hidden by theirs."""
    return [str(path) for path in paths if not any(other in path.parents for other in paths)]


def _capabilities(names: str) -> str:
    """Return capabilities as setpriv wants them: none but those named."""
    return ",".join(["-all", *(f"+{name.removeprefix('CAP_').lower()}" for name in names.split())])
