"""docs/how-to/slurm.md and its example, with Slurm on namespaces in the place of machines."""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from hopsum.network.loaders import load_network
from tests.support.machine import PATIENCE, until
from tests.support.machines import Machines, machines
from tests.support.paths import ROOT
from tests.support.units import SERVICE_USER, Unit

PROGRAMS = ("slurmctld", "slurmd", "srun", "sbatch", "munged")
missing = [name for name in PROGRAMS if shutil.which(name) is None]
pytestmark = [
    pytest.mark.network,
    pytest.mark.long,
    pytest.mark.skipif(bool(missing), reason=f"needs {missing}: apt-get install slurm-wlm munge"),
    pytest.mark.skipif(find_spec("torch") is None, reason="torch is an extra: make torch"),
]

BIN = Path(sys.executable).parent
PAGE = ROOT / "docs/how-to/slurm.md"
SERVICES = ROOT / "docs/how-to/several-machines.md"
EXAMPLE = ROOT / "examples/slurm"
BLOCK = re.compile(r'^```\w+ title="([^"]*)"\n(.*?)^```$', re.MULTILINE | re.DOTALL)
CONTROLLER = "192.0.2.1:9600"
NODES = {"h1": "192.0.2.21", "h2": "192.0.2.22"}
ADDRESSES = {
    "ctl": "192.0.2.1/24",
    "s1": "192.0.2.11/24",
    "ps": "192.0.2.23/24",
    **{name: f"{address}/24" for name, address in NODES.items()},
}
ALICE = 64124
"""A user of the cluster, as no service is."""
SLOTS = 64
"""Of the switch. A training that does not ask for a window holds half of them at most."""
OWN_CONFIGURATION = """
ClusterName=test
SlurmctldHost=ctl(192.0.2.1)
SlurmUser=root
AuthInfo=socket={munge}/socket,cred_expire=5
StateSaveLocation={state}/controller
SlurmctldPidFile={state}/controller.pid
SlurmctldLogFile={state}/controller.log
SlurmdSpoolDir={state}/%n
SlurmdPidFile={state}/%n.pid
SlurmdLogFile={state}/%n.log
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
MailProg=/bin/true
NodeName=h1 NodeAddr=192.0.2.21 CPUs=4
NodeName=h2 NodeAddr=192.0.2.22 CPUs=4
PartitionName=main Nodes=h1,h2 Default=YES
"""
ENTER = """
set -eu
hostname "$1"
for file in hosts passwd group; do mount --bind "$2/$file" "/etc/$file"; done
mount --bind "$2/slurm" /etc/slurm
shift 2
exec "$@"
"""
"""Give a process the name of a machine, and a machine's files in /etc."""


@dataclass
class Cluster:
    """Machines with hopsum and Slurm; `login` is the process whose machine a user is at."""

    up: Machines
    login: int

    def as_alice(self, *command: str) -> str:
        """Return what a command prints that a user runs on a node."""
        user = ("setpriv", "--reuid", f"{ALICE}", "--regid", f"{ALICE}", "--clear-groups")
        enter = ("nsenter", "--target", f"{self.login}", "--mount", "--uts", "--net", *user)
        there = ("env", f"--chdir={EXAMPLE}", f"PATH={BIN}:{os.environ['PATH']}")
        done = subprocess.run(
            [*enter, *there, *command],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert done.returncode == 0, done.stdout
        return done.stdout

    def submit(self, log: str, *options: str, epochs: int) -> str:
        """Submit the example; return the number of Slurm's job."""
        output = self.up.folder / "logs" / log
        words = ("--parsable", f"--output={output}", *options, "train.sbatch", "--epochs")
        return self.as_alice("sbatch", *words, f"{epochs}").strip()

    def printed(self, log: str) -> str:
        """Return what a job has printed so far."""
        file = self.up.folder / "logs" / log
        return file.read_text() if file.exists() else ""

    def slurm(self, job: str) -> dict[str, str]:
        """Return what Slurm says of a job."""
        shown = self.as_alice("scontrol", "--oneliner", "show", "job", job)
        return dict(word.split("=", 1) for word in shown.split() if "=" in word)

    def hopsum(self, *command: str) -> Any:
        """Return what one of hopsum's commands prints as JSON."""
        line = [f"{BIN}/hopsum", *command, "--controller", CONTROLLER, "--json"]
        done = self.up.run("ctl", line)
        assert done.returncode == 0, done.stdout
        return json.loads(done.stdout)

    def jobs_of(self, job: str) -> list[dict[str, Any]]:
        """Return the controller's jobs of one of Slurm's, the oldest first."""
        found = [j for j in self.hopsum("jobs") if j["name"].startswith(f"torch-slurm-{job}-")]
        return sorted(found, key=lambda each: int(each["job"]))

    def states_of(self, job: str) -> list[str]:
        """Return their states."""
        return [each["state"] for each in self.jobs_of(job)]

    def slots(self) -> int:
        """Return how many slots are in use."""
        line = [f"{BIN}/hopsum", "status", "--controller", CONTROLLER]
        shown = self.up.run("ctl", line, COLUMNS="200").stdout
        [used] = re.findall(rf"\bs1\W+{SLOTS}\W+{SLOTS}\W+(\d+)", shown)
        return int(used)

    def until(self, true: Any, what: str) -> None:
        """Wait for something while all that was started goes on."""

        def checked() -> bool:
            ended = [each.args for each in self.up.running if each.poll() is not None]
            assert not ended, ended
            return bool(true())

        until(checked, what)

    def until_trains(self, job: str, number: int = 1) -> None:
        """Wait until the training sums for the number-th time that Slurm has started it."""
        self.until(
            lambda: (
                len(self.jobs_of(job)) == number
                and self.jobs_of(job)[-1]["state"] == "running"
                and self.jobs_of(job)[-1]["round"] > 0
            ),
            f"Slurm's job {job} to train",
        )

    def until_over(self, job: str) -> None:
        """Wait until neither Slurm nor hopsum has anything of a job."""
        going = ("PENDING", "CONFIGURING", "RUNNING", "COMPLETING")
        self.until(lambda: self.slurm(job)["JobState"] not in going, f"the end of job {job}")
        self.until(
            lambda: set(self.states_of(job)) <= {"finished", "failed", "cancelled"},
            f"the end of hopsum's part of job {job}",
        )


@contextmanager
def munge() -> Iterator[Path]:
    """Run munged, which all users must be able to reach; give its folder."""
    folder = Path(tempfile.mkdtemp(prefix="hopsum-munge-", dir="/run"))
    folder.chmod(0o755)
    (folder / "key").touch(0o600)
    (folder / "key").write_bytes(secrets.token_bytes(128))
    files = {"key-file": "key", "socket": "socket", "pid-file": "pid", "seed-file": "seed"}
    command = ["munged", "--foreground", *(f"--{o}={folder / f}" for o, f in files.items())]
    log = folder / "log"
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out)
    try:
        until(lambda: (folder / "socket").exists() or process.poll() is not None, "munge to listen")
        assert process.poll() is None, log.read_text()
        yield folder
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(PATIENCE)
        shutil.rmtree(folder)


def blocks_of(page: Path) -> dict[str, str]:
    """Return a page's files by their path."""
    found = BLOCK.findall(page.read_text())
    return {title.rpartition(": ")[2]: text for title, text in found}


def configure(up: Machines, munge_folder: Path) -> Path:
    """Write what is below /etc on all machines; return the folder."""
    etc = up.folder / "etc"
    state = up.folder / "state"
    for folder in (etc / "slurm", state / "controller"):
        folder.mkdir(parents=True)
    files = blocks_of(PAGE)
    page = files["/etc/slurm/slurm.conf"].replace("4096", f"{SLOTS}")
    own = OWN_CONFIGURATION.format(munge=munge_folder, state=state)
    (etc / "slurm/slurm.conf").write_text(own + page)
    # Else slurmd looks for the kernel's control groups, which `ip netns exec` has hidden.
    (etc / "slurm/cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
    prolog = etc / "slurm/hopsum-task-prolog"
    prolog.write_text(files["/etc/slurm/hopsum-task-prolog"])
    prolog.chmod(0o755)
    names = {"ctl": "192.0.2.1", **NODES}
    (etc / "hosts").write_text("".join(f"{at} {name}\n" for name, at in names.items()))
    for file in ("passwd", "group"):
        known = Path("/etc", file).read_text()
        for name, number in (("hopsum", SERVICE_USER), ("alice", ALICE)):
            rest = f"{number}::/:/bin/sh" if file == "passwd" else ""
            known += f"{name}:x:{number}:{rest}\n"
        (etc / file).write_text(known)
    return etc


def start_hopsum(up: Machines) -> None:
    """Start a switch, a controller and an agent on each host, as the pages say but without TLS."""
    hosts = [*NODES, "ps"]
    nodes: list[dict[str, Any]] = [{"id": "s1", "kind": "switch", "slots": SLOTS}]
    nodes += [
        {"id": name, "kind": "host", "ip": f"10.0.0.{n}", "mac": f"02:00:00:00:01:0{n}"}
        for n, name in enumerate(hosts, 1)
    ]
    edges = [
        {"source": "s1", "source_port": n, "target": name, "bandwidth": "1G"}
        for n, name in enumerate(hosts, 1)
    ]
    file = up.home("ctl") / "network.json"
    file.write_text(json.dumps({"nodes": nodes, "edges": edges}))
    network = load_network(str(file))
    for number, host in enumerate(network.hosts.values(), 1):
        up.cable(("s1", f"eth{number}"), (host.name, "eth1"))
        up.run(host.name, ["ip", "link", "set", "eth1", "address", host.mac])
    ports = [word for n in range(1, len(hosts) + 1) for word in ("-i", f"{n}@eth{n}")]
    switch = ("run", "--no-p4", "--device-id", "1", "--cpu-port", "510", *ports)
    at = ("--grpc-server-addr", "192.0.2.11:9559")
    up.start("s1", [f"{BIN}/p4switch", *switch, *at])
    settings = up.home("ctl") / "controller.toml"
    quota = blocks_of(PAGE)["/etc/hopsum/controller.toml"]
    settings.write_text(f"[controller]\nquota = 1.0\n{quota}")
    serve = ("controller", "serve", str(file), "--listen", CONTROLLER, "--insecure")
    more = ("--switch", "s1=192.0.2.11:9559", "--config", str(settings))
    up.start("ctl", [f"{BIN}/hopsum", *serve, *more])
    service = blocks_of(SERVICES)["/etc/systemd/system/hopsum-agent.service"]
    for host in hosts:
        options = f"--controller {CONTROLLER} --interface eth1 --host {host}"
        text = re.sub(r"--config \S+ --host %l", options, service)
        var = up.home(host) / "var"
        unit = Unit.read(text.replace("/opt/hopsum/bin", str(BIN)))
        up.start(host, unit.command(var / "lib", var / "cache"))


def start_slurm(up: Machines, etc: Path) -> int:
    """Start Slurm's services; return the process of a node."""
    for name, program in {"ctl": "slurmctld", **dict.fromkeys(NODES, "slurmd")}.items():
        # What tests run from may be in a home, which users cannot enter.
        text = f"[Service]\nExecStart={shutil.which(program)} -D\nProtectHome=yes\nPrivateTmp=yes\n"
        command = Unit.read(text).command(up.folder / "var/lib", up.folder / "var/cache")
        enter = ["unshare", "--uts", "sh", "-c", ENTER, "sh", name, str(etc)]
        up.start(name, [*enter, *command])
    return up.running[-1].pid


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("slurm")
    folder.chmod(0o755)
    (folder / "logs").mkdir()
    os.chown(folder / "logs", ALICE, ALICE)
    with munge() as munge_folder, machines(folder, ADDRESSES) as up:
        etc = configure(up, munge_folder)
        start_hopsum(up)
        made = Cluster(up, start_slurm(up, etc))
        made.until(
            lambda: (
                up.run("ctl", [f"{BIN}/hopsum", "nodes", "--controller", CONTROLLER]).returncode
                == 0
            ),
            "the controller",
        )
        made.until(lambda: all(n["attached"] for n in made.hopsum("nodes")), "all agents")
        made.until(
            lambda: made.as_alice("sinfo", "--noheader", "--format=%D %T") == "2 idle\n",
            "both nodes",
        )
        yield made


def test_a_training_of_the_example_goes_through_the_switches(cluster: Cluster) -> None:
    job = cluster.submit("first", "--licenses=hopsum_slots:64", epochs=3)
    cluster.until_over(job)
    printed = cluster.printed("first")
    assert cluster.slurm(job)["JobState"] == "COMPLETED", printed
    losses = [float(loss) for loss in re.findall(r"loss ([\d.]+)", printed)]
    assert len(losses) == 3, printed
    assert losses[-1] < losses[0] / 2
    [summed] = cluster.jobs_of(job)
    assert summed["state"] == "finished"
    # A step's gradients, 15 steps an epoch.
    assert summed["round"] >= 3 * 15
    assert cluster.slots() == 0


def test_slurm_starts_what_there_are_licences_for(cluster: Cluster) -> None:
    """A job that is cancelled gives its slots to the next."""
    first = cluster.submit("a", "--licenses=hopsum_slots:64", epochs=100_000)
    second = cluster.submit("b", "--licenses=hopsum_slots:64", epochs=1)
    cluster.until_trains(first)
    assert cluster.slots() == SLOTS // 2
    said = cluster.slurm(second)
    assert (said["JobState"], said["Reason"]) == ("PENDING", "Licenses")
    assert cluster.jobs_of(second) == []
    cluster.as_alice("scancel", first)
    cluster.until_over(first)
    cluster.until_over(second)
    assert cluster.slurm(first)["JobState"] == "CANCELLED"
    assert cluster.slurm(second)["JobState"] == "COMPLETED", cluster.printed("b")
    assert cluster.states_of(second) == ["finished"]
    assert cluster.slots() == 0


def test_a_requeued_job_begins_again_on_free_slots(cluster: Cluster) -> None:
    job = cluster.submit("again", "--licenses=hopsum_slots:64", epochs=100_000)
    cluster.until_trains(job)
    cluster.as_alice("scontrol", "requeue", job)
    cluster.until(lambda: cluster.slots() == 0, "free slots")
    cluster.until_trains(job, 2)
    assert cluster.slots() == SLOTS // 2
    cluster.as_alice("scancel", job)
    cluster.until_over(job)
    assert cluster.slots() == 0


def test_a_job_that_waits_for_slots_in_vain_leaves_none_taken(cluster: Cluster) -> None:
    """It has asked for no licences, as users forget; its processes are gone when it would begin."""
    window = ("--window", f"{SLOTS}", "--servers", "ps")
    cluster.hopsum("submit", "holds-all", "--workers", "h1,h2", "--from-processes", *window)
    assert cluster.slots() == SLOTS
    job = cluster.submit("waits", "--licenses=", epochs=1)
    cluster.until(lambda: cluster.states_of(job) == ["queued"], "a queued job")
    cluster.as_alice("scancel", job)
    cluster.until(lambda: cluster.slurm(job)["JobState"] == "CANCELLED", "its end in Slurm")
    cluster.hopsum("cancel", "holds-all")
    cluster.until_over(job)
    cluster.until(lambda: cluster.slots() == 0, "free slots")
