"""A rank over gloo whose process ends while gloo's thread gives back the tensors of a call."""

import torch
import torch.distributed as dist

dist.init_process_group("hopsum")
# As FSDP's modules do: so the group outlives `destroy_process_group`.
kept = dist.group.WORLD
tensors = [torch.ones(8, dtype=torch.float64) for _ in range(30_000)]
options = dist.AllreduceCoalescedOptions()
work = kept.allreduce_coalesced(tensors, options)
del tensors
work.wait()
del work
dist.destroy_process_group()
