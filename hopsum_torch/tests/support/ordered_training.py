"""Run as a rank: the same steps with ordered gradients and with DistributedDataParallel. Prints the
greatest difference between their parameters, and the loss, as JSON.

python ordered_training.py BACKEND EXAMPLE, whose `Mixture` is trained.
"""

from __future__ import annotations

import json
import runpy
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from hopsum_torch.ordered import OrderedGradients

backend, example = sys.argv[1:]
dist.init_process_group(backend)
rank = dist.get_rank()
mixture = runpy.run_path(example)["Mixture"]
# Those of rank 0 are everybody's.
torch.manual_seed(rank)
model = mixture()
ordered = OrderedGradients(model)
other = mixture()
other.load_state_dict(model.state_dict())
theirs = DistributedDataParallel(other, find_unused_parameters=True)
generator = torch.Generator().manual_seed(rank)
optimizers = [torch.optim.SGD(each.parameters(), lr=0.1) for each in (model, theirs)]
losses = []
for _ in range(8):
    # Few images, so that ranks use few experts.
    images = torch.randn(2, 64, generator=generator)
    targets = torch.randint(10, (2,), generator=generator)
    for each, optimizer in zip((model, theirs), optimizers, strict=True):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(each(images), targets)
        loss.backward()
        losses.append(float(loss.detach()))
        if each is model:
            ordered.synchronize()
        optimizer.step()
pairs = zip(model.parameters(), other.parameters(), strict=True)
difference = max(float((mine - its).detach().abs().max()) for mine, its in pairs)
print("came", json.dumps([difference, *losses]), flush=True)
ordered.close()
dist.destroy_process_group()
