"""Models that FSDP shards over the ranks of a host, and the exchange between hosts, on 4 ranks: torch_shards_test.py PACKAGES.

Exit code 77: this PyTorch has no fully_shard().
"""
import sys

sys.dont_write_bytecode = True
from torch_support import LINK, dptrain_comm, passed, refused  # noqa: E402

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402

try:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)

SHARDS, STEPS = 2, 12


def network(mesh) -> nn.Module:
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(60, 81), nn.ReLU(), nn.Linear(81, 70), nn.ReLU(), nn.Linear(70, 5))
    for layer in net[::2]:
        fully_shard(layer, mesh=mesh)
    return fully_shard(net, mesh=mesh)


def batch(step: int):
    x = torch.randn(8, 60, generator=torch.Generator().manual_seed(100 * dptrain_comm.rank() + step))
    return x, (x.sum(1) > 0).long()


def trained(mesh, codec: "str | None", knows_optimizer: bool = False, resume_at: "int | None" = None) -> torch.Tensor:
    """Without a codec by FSDP alone, whose mesh then has two dimensions."""
    net = network(mesh)
    optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)

    def start():
        return dptrain_comm.init(codec, model=net, shards=SHARDS, optimizer=optimizer if knows_optimizer else None, **LINK)

    state = None if codec is None else start()
    for step in range(STEPS):
        if step == resume_at:
            saved = state.state_dict()
            state.close()
            state = start()
            state.load_state_dict(saved)
        optimizer.zero_grad()
        x, y = batch(step)
        F.cross_entropy(net(x), y).backward()
        if state is not None:
            state.allreduce_gradients(net)
        optimizer.step()
    if state is not None:
        state.close()
    return torch.cat([p.full_tensor().detach().reshape(-1) for p in net.parameters()])


def all_have_the_same(values: torch.Tensor) -> bool:
    everyone = [torch.empty_like(values) for _ in range(dptrain_comm.size())]
    torch.distributed.all_gather(everyone, values)
    return all(torch.equal(values, one) for one in everyone)


def main() -> None:
    replicas = dptrain_comm.size() // SHARDS
    mesh = init_device_mesh("cpu", (replicas, SHARDS), mesh_dim_names=("replica", "shard"))
    wanted = trained(mesh, None)
    found = trained(mesh["shard"], "none")
    assert torch.equal(wanted, found), (wanted - found).abs().max()
    for codec, knows_optimizer in (("q4", False), ("topk:ratio=0.1", False), ("ecq:bits=2,velocity=on", True)):
        found = trained(mesh["shard"], codec, knows_optimizer)
        assert all_have_the_same(found) and 0 < (wanted - found).abs().max() < 0.5, (codec, (wanted - found).abs().max())
        assert torch.equal(found, trained(mesh["shard"], codec, knows_optimizer, resume_at=7)), codec

    def step(mesh_of_model, **options):
        net = network(mesh_of_model)
        x, y = batch(0)
        F.cross_entropy(net(x), y).backward()
        state = dptrain_comm.init("q8", model=net, **options, **LINK)
        try:
            state.allreduce_gradients(net)
        finally:
            state.close()

    refused("is on the ranks", step, mesh["shard"])
    refused("without the dimension of replicas", step, mesh, shards=SHARDS)
    refused("(shards=2)", step, mesh["replica"], shards=SHARDS)
    refused("shards 3: must divide the number of ranks, 4", dptrain_comm.Exchange, [dptrain_comm.Slot("x", 10, 10)], "q8", shards=3, **LINK)
    refused("shards 0: must be 1 or more", dptrain_comm.init, "q8", shards=0)
    refused("not available with 2 shards", dptrain_comm.init, "q8", shards=2, trace="t.json")
    refused("not available with shards", dptrain_comm.init, "q8", shards=2, log="run.h5")
    refused("a rank does not see the norm", dptrain_comm.init, "q8", shards=2, clip_norm=1.0,
            optimizer=torch.optim.SGD(nn.Linear(2, 2).parameters(), 0.1))
    state = dptrain_comm.init("q8", shards=SHARDS, **LINK)
    refused("each rank saves its own state", state.state_dict, all_ranks=True)
    # A broadcast reaches all ranks, even if the only exchange joins half of them.
    net = network(mesh["shard"])
    x, y = batch(0)
    F.cross_entropy(net(x), y).backward()
    state.allreduce_gradients(net)
    assert state.broadcast(torch.full((3,), float(dptrain_comm.rank()))).tolist() == [0.0] * 3
    state.close()


dptrain_comm.init_process_group()
main()
torch.distributed.destroy_process_group()
passed()
