"""Tensors as bytes: copied out whole whatever their strides, and written in place or beside."""

import pytest
import torch
from transfer_states import bits, every_kind, plain, same

from replica.transfer.manifest import Layout
from replica.transfer.memory import Destination, copy_out, empty_tensors, specs_of, view

pytestmark = pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")


def layout_of(state: dict[str, torch.Tensor], chunk_bytes: int = 1024) -> Layout:
    return Layout(tensors=specs_of(state), chunk_bytes=chunk_bytes)


def fill(destination: Destination, layout: Layout, flat: memoryview) -> None:
    for chunk in range(layout.chunks):
        start, _ = layout.bounds(chunk)
        for part in destination.parts(chunk):
            part[:] = flat[start : start + len(part)]
            start += len(part)


def test_every_kind_of_tensor_goes_out_and_in_bit_for_bit() -> None:
    state = every_kind()
    layout = layout_of(state)
    flat = copy_out(state, layout)
    assert bytes(view(flat)) == b"".join(bits(tensor) for tensor in state.values())
    new = empty_tensors(layout)
    fill(Destination(new, layout, fresh=True), layout, view(flat))
    assert same(new, state)


def test_a_copy_is_a_copy() -> None:
    state = plain(1)
    flat = copy_out(state, layout_of(state))
    before = bytes(view(flat))
    state["weight.0"].zero_()
    assert bytes(view(flat)) == before


def test_strides_and_lazy_conjugates_do_not_matter() -> None:
    base = torch.arange(12, dtype=torch.float32).reshape(3, 4)
    state = {
        "turned": base.t(),
        "every other": base[:, ::2],
        "conjugate": torch.complex(base, base + 1).conj(),
        "negative": torch.complex(base, base + 1).conj().imag,
    }
    layout = layout_of(state)
    plainly = {name: tensor.clone().resolve_conj().resolve_neg() for name, tensor in state.items()}
    assert bytes(view(copy_out(state, layout))) == b"".join(bits(tensor) for tensor in plainly.values())


@pytest.mark.parametrize("fresh", [True, False])
def test_fresh_writes_in_place_and_otherwise_beside(fresh: bool) -> None:
    own, sent = plain(0), plain(1)
    layout = layout_of(own)
    destination = Destination(own, layout, fresh=fresh)
    fill(destination, layout, view(copy_out(sent, layout)))
    destination.finish()
    assert same(destination.tensors, sent)
    assert same(own, sent if fresh else plain(0))


def test_an_own_tensor_with_strides_is_written_at_the_end() -> None:
    base = torch.zeros(4, 6)
    own = {"turned": base.t(), "plain": torch.zeros(5)}
    sent = {"turned": torch.arange(24.0).reshape(6, 4), "plain": torch.arange(5.0)}
    layout = layout_of(own)
    destination = Destination(own, layout, fresh=True)
    fill(destination, layout, view(copy_out(sent, layout)))
    assert not base.any()
    destination.finish()
    assert torch.equal(base.t(), sent["turned"])
    assert torch.equal(own["plain"], sent["plain"])


@pytest.mark.parametrize(
    ("name", "tensor"),
    [
        ("sparse", torch.eye(3).to_sparse()),
        ("a\nb", torch.zeros(1)),
        ("n" * 5000, torch.zeros(1)),
    ],
)
def test_what_cannot_travel_is_named(name: str, tensor: torch.Tensor) -> None:
    with pytest.raises(ValueError, match="cannot be sent to a peer"):
        specs_of({"good": torch.zeros(1), name: tensor})
