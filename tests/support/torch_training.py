"""Run by torchrun in test_torch_backend: trains two models alike, one of them alone."""

from __future__ import annotations

import torch.distributed as dist

import host_agent.torch_backend as backend
from tests.support.torch_models import check_training_together

dist.init_process_group(backend.NAME)
check_training_together()
dist.destroy_process_group()
