"""Pinned memory, for tensors on GPUs."""

from __future__ import annotations

import gc
import json
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="hopsum_torch needs torch")

from tests.support.agents import Agents  # noqa: E402
from tests.support.ranks import SUPPORT, run  # noqa: E402

from hopsum_torch.errors import HopsumError  # noqa: E402
from hopsum_torch.pinned import pin, pinning  # noqa: E402
from hopsum_torch.shared_memory import Memory  # noqa: E402

GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")


class Runtime:
    """What is used of the CUDA runtime; `error`: what it returns."""

    def __init__(self) -> None:
        self.pinned: dict[int, int] = {}
        self.error = 0

    def cudaHostRegister(self, address: int, size: int, flags: int) -> int:
        assert address not in self.pinned
        if not self.error:
            self.pinned[address] = size
        return self.error

    def cudaHostUnregister(self, address: int) -> int:
        del self.pinned[address]
        return 0


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> Runtime:
    made = Runtime()
    monkeypatch.setattr(torch.cuda, "cudart", lambda: made)
    return made


def test_a_memory_is_pinned_once_and_as_long_as_it_exists(runtime: Runtime) -> None:
    memory = Memory(0, 1 << 14)
    address = memory.bytes.ctypes.data
    for _ in range(2):
        pin(memory)
        assert runtime.pinned == {address: 1 << 14}
    assert memory.pinned
    memory.close_descriptor()
    del memory
    gc.collect()
    assert runtime.pinned == {}


def test_a_memory_that_cannot_be_pinned_is_an_error(runtime: Runtime) -> None:
    runtime.error = 2
    memory = Memory(0, 1 << 14)
    with pytest.raises(HopsumError, match=r"16384 bytes .* cannot be pinned: CUDA error 2"):
        pin(memory)
    assert not memory.pinned
    memory.close_descriptor()


def test_only_tensors_on_gpus_need_pinned_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """The work that is under way on them comes first."""
    ended = []

    def current_stream(device: str) -> Any:
        return SimpleNamespace(synchronize=lambda: ended.append(device))

    monkeypatch.setattr(torch.cuda, "current_stream", current_stream)
    assert pinning([torch.ones(3), torch.ones(4)]) is None
    assert not ended
    here: Any = SimpleNamespace(is_cuda=True, device="cuda:1")
    assert pinning([torch.ones(3), here, here]) is pin
    assert ended == ["cuda:1"]


@pytest.mark.slow
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=GPU)])
def test_calls_with_tensors_on_a_device(device: str) -> None:
    agents = Agents(3)
    for text in run(list(agents.names.values()), SUPPORT / "devices.py", device):
        [line] = [line for line in text.splitlines() if line.startswith("said ")]
        said = json.loads(line.removeprefix("said "))
        assert said["wrong"] == []
        assert said["pinned"]
        assert set(said["pinned"]) == {device == "cuda"}
    agents.close()
    assert {kind for kind, _ in agents.sums} == {"sum", "copy", "max"}
