"""Which device a run uses, and what is said about it."""

from __future__ import annotations

import pytest
import torch
from threadpoolctl import threadpool_info

from pgtrain.device import SMALL_NETWORK, resolve, use_threads
from pgtrain.types import UserError


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch):
    def with_gpus(cuda: int = 0, mps: bool = False) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: cuda)
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)

    with_gpus()
    return with_gpus


def test_auto_without_a_gpu_is_the_cpu_and_says_nothing(machine) -> None:
    for parameters in (10, SMALL_NETWORK * 10):
        assert resolve("auto", parameters) == (torch.device("cpu"), None)


@pytest.mark.parametrize(("gpu", "name"), [({"cuda": 1}, "cuda"), ({"mps": True}, "mps")])
def test_auto_takes_the_cpu_for_small_networks_and_says_so(machine, gpu, name) -> None:
    machine(**gpu)
    device, notice = resolve("auto", 9_155)
    assert device == torch.device("cpu")
    assert "9,155 parameters" in notice and f"device={name}" in notice and "\n" not in notice
    assert resolve("auto", SMALL_NETWORK - 1)[0].type == "cpu"
    large, notice = resolve("auto", SMALL_NETWORK)
    assert large == torch.device(name) and f"takes {name}" in notice


def test_what_is_asked_for_is_taken_without_a_word(machine) -> None:
    assert resolve("cpu", 10) == (torch.device("cpu"), None)
    machine(cuda=2)
    assert resolve("cuda", 10) == (torch.device("cuda"), None)
    assert resolve("cuda:1", 10) == (torch.device("cuda:1"), None)
    machine(mps=True)
    assert resolve("mps", 10) == (torch.device("mps"), None)


def test_a_missing_device_is_refused_in_one_line(machine) -> None:
    for name, said in (("cuda", "no CUDA GPU"), ("cuda:0", "no CUDA GPU"), ("mps", "no Apple GPU")):
        with pytest.raises(UserError, match=f"device={name}: .*{said}.*device=cpu") as error:
            resolve(name, 10)
        assert "\n" not in str(error.value)
    machine(cuda=2)
    with pytest.raises(
        UserError, match=r"device=cuda:2: this machine has 2 CUDA device\(s\), cuda:0 to cuda:1"
    ):
        resolve("cuda:2", 10)


def test_threads_are_those_of_torch_and_of_numpys_blas() -> None:
    before = torch.get_num_threads()
    try:
        for count in (2, 1):
            use_threads(count)
            assert torch.get_num_threads() == count
            found = [pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"]
            # a build of the library may allow fewer than asked for, e.g. where the machine has one core
            assert found and max(found) <= count
    finally:
        use_threads(before)
