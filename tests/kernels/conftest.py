import pytest
import torch


@pytest.fixture(autouse=True)
def one_thread():
    """Tiny tensors lose more to thread hand-over than they gain; ranks run on one thread too."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
