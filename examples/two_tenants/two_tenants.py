"""Two jobs on one network: a long one, and a short one that comes later and shares its switches."""

import asyncio
import tempfile
from pathlib import Path

from hopsum.cli.job_commands import make_submission
from hopsum.collectives.choices import Engine
from hopsum.controller.api.records import job_dict
from hopsum.controller.jobs.job_state import JobState
from hopsum.controller.jobs.priorities import ONE_LEVEL
from hopsum.controller.jobs.settings import ClusterSettings
from hopsum.experiment.pipelines import pipeline_for
from hopsum.experiment.simulated import loader
from hopsum.network.loaders import load_network
from hopsum.protocol import hopsum_pb2 as pb
from hopsum.simulation.cluster import ClusterOptions, VirtualCluster
from hopsum.simulation.events import EventQueue
from hopsum.simulation.loop import run_virtual

JOBS = {"long": (0.0, 60), "short": (1.5, 12)}
"""After how many seconds each is submitted, and how many tensors of 5,000 elements it sums."""


async def run_jobs(cluster: VirtualCluster) -> dict[str, float]:
    """Submit both jobs, one after the other; return how many seconds each took."""
    controller, _ = await cluster.up()
    await cluster.until(lambda: len(controller.nodes.attached) == 4, "the agents")
    jobs, began, took = {}, {}, dict[str, float]()
    for name, (start, rounds) in JOBS.items():
        await asyncio.sleep(start)
        request = make_submission(name, "h1,h2,h3", "ps", elements=5_000, rounds=rounds)
        await cluster.people.Submit(request)
        jobs[name], began[name] = controller.jobs.find(name=name), cluster.queue.now
    while len(took) < len(jobs):
        for name, job in jobs.items():
            if job.state.over and name not in took:
                took[name] = cluster.queue.now - began[name]
                report = job_dict(await cluster.people.JobDetails(pb.JobQuery(name=name)))
                assert report["state"] == JobState.FINISHED, report["reason"]
                print(f"  {name}: {took[name]:.1f} s, {report['wrong']} sums wrong")
        await asyncio.sleep(0.01)
    return took


def seconds_of_jobs(priorities: bool) -> dict[str, float]:
    """Bring up three workers and a server at a switch, and run both jobs, in virtual time."""
    network, queue = load_network("star:3", link_rate="2.5Mbit"), EventQueue()
    with tempfile.TemporaryDirectory() as folder:
        settings = ClusterSettings(
            journal=Path(folder, "jobs"), priorities=None if priorities else ONE_LEVEL
        )
        options = ClusterOptions(
            pipeline_for(network, Engine.EMBEDDED, settings), loader(), settings
        )

        async def run() -> dict[str, float]:
            async with VirtualCluster(network, options, queue) as cluster:
                return await run_jobs(cluster)

        return run_virtual(run(), queue)


if __name__ == "__main__":
    for how in (True, False):
        print("with priorities" if how else "sharing links fairly")
        seconds_of_jobs(how)
