"""The hook in programs of other people, on every rank: torch_cases_test.py PACKAGES."""
import contextlib
import copy
import importlib.util
import io
import multiprocessing
import os
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
from torch_support import LINK, PACKAGES, dptrain_comm, passed, refused  # noqa: E402

import torch  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

dptrain_comm.start()  # at the top of the script, which spawned workers import


HAS_EARLY = hasattr(torch.Tensor, "register_post_accumulate_grad_hook")  # gradients can leave in backward without DDP


class Branches(nn.Module):
    """Layers that are used by all ranks, by one, in some steps, or never."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(2)
        self.common, self.first, self.second, self.sometimes, self.never = (nn.Linear(40, 40) for _ in range(5))

    def forward(self, x, step):
        y = (self.first if (step + dptrain_comm.rank()) % 2 else self.second)(self.common(x))
        return self.sometimes(y) if step % 3 == 1 else y


def trained(how: str, codec: str, optimizer, steps: int = 9) -> Branches:
    net = Branches()
    state = None if how == "ddp" else dptrain_comm.prepare(net, codec, **LINK) if how == "prepare" else dptrain_comm.init(codec, **LINK)
    run = DistributedDataParallel(net, find_unused_parameters=True) if how in ("ddp", "hook") else net
    if how == "hook":
        run.register_comm_hook(state, dptrain_comm.hook)
    steps_of = optimizer(net.parameters())
    draw = torch.Generator().manual_seed(dptrain_comm.rank())
    for step in range(steps):
        steps_of.zero_grad(set_to_none=True)
        run(torch.randn(6, 40, generator=draw), step).square().mean().backward()
        if how == "prepare" and step > 0 and HAS_EARLY:
            assert 0 < len(state._overlap.early) <= 6, "nothing has left in backward"
        if how in ("allreduce", "prepare"):
            state.allreduce_gradients(net)
        assert (net.never.weight.grad is None) and (net.sometimes.weight.grad is None) == (step % 3 != 1), (how, codec, step)
        steps_of.step()
    if state is not None:
        state.close()
    return net


def unused_parameters_stay_as_they_are() -> None:
    for optimizer in (lambda p: torch.optim.AdamW(p, 0.01, weight_decay=0.1),
                      lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, weight_decay=0.01)):
        wanted = trained("ddp", "none", optimizer)
        for how in ("hook", "allreduce", "prepare"):
            found = trained(how, "none", optimizer)
            for (name, x), y in zip(wanted.named_parameters(), found.parameters()):
                difference = (x - y).abs().max().item()
                assert difference <= (0 if dptrain_comm.size() <= 2 else 1e-5), (how, name, difference)
        for codec in ("q4", "ecq:bits=0.5", "auto:min=0.5,max=0.5"):
            found = trained("allreduce", codec, optimizer)
            assert torch.equal(found.never.weight, Branches().never.weight), codec


def nothing_is_lost_in_between() -> None:
    """A codec's delivery while no rank has a gradient comes with the next one, also after a checkpoint and in a new scale."""
    net, size = nn.Linear(50, 40, bias=False), dptrain_comm.size()
    other = nn.Linear(50, 40, bias=False)
    both = nn.ModuleList([net, other])
    draw = torch.Generator().manual_seed(5)
    state = dptrain_comm.init("topk:ratio=0.05", **LINK)
    went_in, came_out = torch.zeros(40, 50), torch.zeros(40, 50)
    for step in range(200):
        parts = torch.randn((size, 40, 50), generator=draw) if step in (0, 150) else torch.zeros(size, 40, 50)
        scale = 1.0 if step < 100 else 4.0
        both.zero_grad(set_to_none=True)
        if step == 0 or step >= 150:
            net.weight.grad = parts[dptrain_comm.rank()] * scale
        other.weight.grad = torch.ones(40, 50)
        if step == 100:
            state.scale_residual(4.0)
        if step == 120:
            saved = state.state_dict()
            state.close()
            state = dptrain_comm.init("topk:ratio=0.05", **LINK)
            state.load_state_dict(saved)
        state.allreduce_gradients(both)
        went_in += parts.mean(0)
        assert (net.weight.grad is None) == (0 < step < 150), step
        if net.weight.grad is not None:
            came_out += net.weight.grad / scale
    waits = (went_in - came_out).norm() / went_in.norm()
    assert waits < 1e-5, waits
    state.close()


def several_networks_share_a_state() -> None:
    """A GAN's: one has gradients in this step, the other in the next."""
    def steps(exchange) -> torch.Tensor:
        torch.manual_seed(4)
        one, other = nn.Linear(8, 8), nn.Linear(8, 8)
        optimizers = [torch.optim.Adam(net.parameters(), 0.01) for net in (one, other)]
        draw = torch.Generator().manual_seed(dptrain_comm.rank())
        for step in range(6):
            net, optimizer = (one, optimizers[0]) if step % 2 else (other, optimizers[1])
            one.zero_grad(set_to_none=True)
            other.zero_grad(set_to_none=True)
            net(torch.randn(4, 8, generator=draw)).square().sum().backward()
            exchange(net, torch.nn.ModuleList([one, other]))
            optimizer.step()
        return torch.cat([p.detach().reshape(-1) for p in (*one.parameters(), *other.parameters())])

    def by_torch(net, _) -> None:
        for parameter in net.parameters():
            torch.distributed.all_reduce(parameter.grad)
            parameter.grad /= dptrain_comm.size()

    wanted = steps(by_torch)
    state = dptrain_comm.init("none", **LINK)
    found = steps(lambda _, both: state.allreduce_gradients(both))
    assert (wanted - found).abs().max() <= 1e-6, (wanted - found).abs().max()
    later = nn.Linear(8, 8)
    later(torch.ones(4, 8)).sum().backward()
    refused("is not in the exchange, and some that are have no gradient: each network has a state of its own", state.allreduce_gradients, later)
    its_own = dptrain_comm.init("q8", **LINK)
    its_own.allreduce_gradients(later)
    assert (later.weight.grad - 4).abs().max() < 0.1
    its_own.close()
    state.close()


class Growing:
    """A network whose first layers are frozen, then trained, then frozen again, by DDP, by the hook or by allreduce_gradients()."""

    PHASES = ((4, False), (4, True), (4, False), (3, True))  # steps, and whether the first layers are trained

    def __init__(self, how: str, codec: str, log: "str | None" = None):
        torch.manual_seed(6)
        self.net = nn.Sequential(nn.Linear(60, 80), nn.Linear(80, 70), nn.Linear(70, 30))
        self.how, self.log = how, log
        self.state = None if how == "ddp" else dptrain_comm.init(codec, log=log, **LINK)
        if how == "prepare":
            self.state.overlap(self.net)
        self.optimizer = torch.optim.SGD(self.net.parameters(), 0.02, momentum=0.9)
        self.draw = torch.Generator().manual_seed(dptrain_comm.rank())
        self.changes: list = []  # of the first layers' weights, by step

    def run(self) -> torch.Tensor:
        for number, (steps, is_trained) in enumerate(self.PHASES):
            for parameter in (*self.net[0].parameters(), *self.net[1].parameters()):
                parameter.requires_grad = is_trained
                parameter.grad = None
            run = self.net if self.how in ("allreduce", "prepare") else DistributedDataParallel(self.net, bucket_cap_mb=0.01)
            if self.how == "hook":
                run.register_comm_hook(self.state, dptrain_comm.hook)
            for _ in range(steps):
                self.step(run)
            if self.log is not None:
                self.state.epoch(samples=8 * steps)
        if self.state is not None:
            self.state.close()
        return torch.cat([p.detach().reshape(-1) for p in self.net.parameters()])

    def step(self, run) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        before = self.net[0].weight.detach().clone()
        run(torch.randn(8, 60, generator=self.draw)).square().mean().backward()
        if self.how in ("allreduce", "prepare"):
            self.state.allreduce_gradients(self.net)
        self.optimizer.step()
        self.changes.append((self.net[0].weight.detach() - before).abs().max().item())


def parameters_come_and_go() -> None:
    wanted = Growing("ddp", "none").run()
    bound = 0 if dptrain_comm.size() <= 2 else 1e-5
    for how in ("hook", "allreduce", "prepare"):
        found = Growing(how, "none").run()
        assert (wanted - found).abs().max().item() <= bound, (how, (wanted - found).abs().max())
        for codec in ("q4", "topk:ratio=0.05", "powersgd:rank=2", "ecq:bits=0.5", "auto:min=0.5,max=0.5"):
            one = Growing(how, codec)
            found = one.run()
            everyone = [torch.empty_like(found) for _ in range(dptrain_comm.size())]
            torch.distributed.all_gather(everyone, found)
            assert all(torch.equal(found, other) for other in everyone), (how, codec)
            # Frozen layers stay as they are, whatever waits for them.
            trained = [is_trained for steps, is_trained in Growing.PHASES for _ in range(steps)]
            assert [change > 0 for change in one.changes] == trained, (how, codec, one.changes)


def end_step(state, net) -> None:
    """After a refusal in the middle of a step, with which a program would end."""
    if state._overlap is not None:
        state._overlap.early = {slot: (p, p.grad, p.grad._version) for slot, (p, _, _) in state._overlap.early.items()}
    state.allreduce_gradients(net)


def parts_of_a_batch_leave_together() -> None:
    """Within no_sync() gradients gather, and nothing leaves; without it the second backward pass is refused."""
    def run(exchange) -> torch.Tensor:
        torch.manual_seed(3)
        net = nn.Sequential(nn.Linear(30, 40), nn.Linear(40, 20))
        exchange = exchange(net)
        optimizer = torch.optim.SGD(net.parameters(), 0.05)
        draw = torch.Generator().manual_seed(dptrain_comm.rank())
        for _ in range(5):
            optimizer.zero_grad()
            with exchange.no_sync() if exchange else contextlib.nullcontext():
                net(torch.randn(8, 30, generator=draw)).square().mean().backward()
            net(torch.randn(8, 30, generator=draw)).square().mean().backward()
            if exchange:
                exchange.allreduce_gradients(net)
            else:
                for parameter in net.parameters():
                    torch.distributed.all_reduce(parameter.grad)
                    parameter.grad /= dptrain_comm.size()
            optimizer.step()
        if exchange:
            net(torch.ones(8, 30)).sum().backward()
            if HAS_EARLY:
                refused("a second time since the last allreduce_gradients(): all but the last", lambda: net(torch.ones(8, 30)).sum().backward())
            end_step(exchange, net)
            exchange.close()
        return torch.cat([p.detach().reshape(-1) for p in net.parameters()])

    wanted, found = run(lambda net: None), run(lambda net: dptrain_comm.prepare(net, "none", **LINK))
    assert (wanted - found).abs().max() <= 1e-6


def changes_after_a_gradient_has_left_are_refused() -> None:
    if not HAS_EARLY or dptrain_comm.size() == 1:
        return

    def halved(net) -> None:
        net[0].weight.grad = net[0].weight.grad / 2

    def clipped(net) -> None:
        nn.utils.clip_grad_norm_(net.parameters(), 1e-3)

    for change in (halved, clipped):
        net = nn.Sequential(nn.Linear(30, 40), nn.Linear(40, 0), nn.Linear(0, 20))  # a layer has no values
        net.forward = lambda x, net=net: net[2](x[:, :0]).sum() + net[0](x).square().sum() + net[1](net[0](x)).sum()
        state = dptrain_comm.prepare(net, "none", **LINK)
        for step in range(3):
            net(torch.ones(8, 30)).backward()
            if step == 2:
                change(net)
                refused("was changed between backward(), in which it has left", state.allreduce_gradients, net)
                end_step(state, net)
            else:
                state.allreduce_gradients(net)
        state.close()
    net = nn.Linear(30, 40)
    state = dptrain_comm.prepare(net, "none", **LINK)
    state.overlap(net)  # once more: each gradient leaves once
    for _ in range(2):
        net(torch.ones(8, 30)).sum().backward()
        state.allreduce_gradients(net)
    state.close()


def a_failed_growth_loses_nothing() -> None:
    if dptrain_comm.size() == 1:
        return
    net, state = nn.Linear(100, 80, bias=False), dptrain_comm.init("topk:ratio=0.05", **LINK)
    for _ in range(2):
        net.weight.grad = torch.randn(80, 100)
        state.allreduce_gradients(net)
    saved = state.exchange.save()
    odd = nn.ParameterList([nn.Parameter(torch.ones(3, dtype=torch.complex64))])
    refused("is complex", state.allreduce_gradients, nn.ModuleList([net, odd]))
    assert state.exchange.save() == saved
    net.weight.grad = torch.randn(80, 100)
    state.allreduce_gradients(net)
    state.close()


def a_checkpoint_after_growth_goes_on() -> None:
    """A program that is started again has its parameters in another order, or without those that are frozen: residuals find theirs
    by name."""
    def fed(codec: str, resume_at: "int | None", is_frozen: bool) -> torch.Tensor:
        nets = nn.ModuleList([nn.Linear(90, 70, bias=False) for _ in range(2)])  # of the same shape
        state = dptrain_comm.init(codec, **LINK)
        nets[0].weight.requires_grad = False
        came_out = torch.zeros(2, 70, 90)
        for step in range(40):
            if step == 3:
                nets[0].weight.requires_grad = True
            if is_frozen and step == 6:
                nets[0].weight.requires_grad = False
            if step == resume_at:
                saved = state.state_dict()
                state.close()
                state = dptrain_comm.init(codec, **LINK)
                state.load_state_dict(saved)
                saved = state.state_dict()
            for number, net in enumerate(nets):
                scale = 0.0 if step >= 6 else number + 1.0
                draw = torch.Generator().manual_seed(10 * step + number + 1000 * dptrain_comm.rank())
                net.weight.grad = torch.randn(70, 90, generator=draw) * scale if net.weight.requires_grad else None
            state.allreduce_gradients(nets)
            for number, net in enumerate(nets):
                if net.weight.grad is not None:
                    came_out[number] += net.weight.grad
        state.close()
        return came_out

    for is_frozen in (False, True):
        wanted, found = fed("topk:ratio=0.05", None, is_frozen), fed("topk:ratio=0.05", 8, is_frozen)
        difference = (wanted - found)[1 if is_frozen else 0:].abs().max().item()
        assert difference < 1e-5, (is_frozen, difference)


def what_waits_stays_when_parameters_come() -> None:
    """Sums of what went in and what came out, over a step in which the exchange is made anew."""
    if dptrain_comm.size() == 1:
        return
    net, later = nn.Linear(100, 80, bias=False), nn.Linear(30, 20, bias=False)
    draw = torch.Generator().manual_seed(5)
    state = dptrain_comm.init("topk:ratio=0.05", **LINK)
    went_in, came_out = torch.zeros(80, 100), torch.zeros(80, 100)
    for step in range(60):
        parts = torch.randn((dptrain_comm.size(), 80, 100), generator=draw) * (step < 3)
        net.weight.grad = parts[dptrain_comm.rank()].clone()
        later.weight.grad = torch.zeros(20, 30)
        state.allreduce_gradients(net if step < 3 else nn.ModuleList([later, net]))
        went_in += parts.mean(0)
        came_out += net.weight.grad
        if step in (2, 3):
            left = (went_in - came_out).norm() / went_in.norm()
            assert left > 0.5, (step, left)  # there is something to lose
    assert (went_in - came_out).abs().max() < 1e-5, (went_in - came_out).abs().max()
    state.close()


def a_log_goes_on_with_other_parameters() -> None:
    if importlib.util.find_spec("h5py") is None:
        print("without h5py: the log of a growing network is not tried")
        return
    import h5py
    with tempfile.TemporaryDirectory() as folder:
        name = [os.path.join(folder, "run.h5")]
        torch.distributed.broadcast_object_list(name)
        Growing("allreduce", "none", log=name[0]).run()
        if dptrain_comm.rank() == 0:
            with h5py.File(name[0]) as file:
                sent = file["epochs"]["sent_bytes"]
                assert len(sent) == len(Growing.PHASES) and file.attrs["finished"] == 1
                if dptrain_comm.size() > 1:
                    assert sent[0] < 0.5 * sent[1] and sent[0] > 0, sent
        torch.distributed.barrier()


def networks_that_ddp_knows() -> None:
    refused("the first argument is a codec", dptrain_comm.init, None)
    empty = nn.ModuleList([nn.Linear(4, 3), nn.Linear(3, 0, bias=False)])
    state = dptrain_comm.init("q8", **LINK)
    empty[1](empty[0](torch.ones(2, 4))).sum().backward()
    empty[0].weight.grad = torch.ones(3, 4)
    state.allreduce_gradients(empty)
    assert (empty[0].weight.grad - 1).abs().max() < 0.01
    state.close()

    state = dptrain_comm.init("q8", **LINK)
    ddp = DistributedDataParallel(nn.Linear(4, 4))
    ddp.register_comm_hook(state, dptrain_comm.hook)
    ddp(torch.ones(2, 4)).sum().backward()
    assert torch.equal(copy.deepcopy(ddp).module.weight, ddp.module.weight)
    torch.save(ddp, io.BytesIO())
    averaged = torch.optim.swa_utils.AveragedModel(ddp)
    averaged.update_parameters(ddp)
    ddp(torch.ones(2, 4)).sum().backward()
    state.close()



def error_of_backward(ddp, *inputs) -> str:
    try:
        ddp(*inputs).sum().backward()
    except RuntimeError as error:  # PyTorch 1 hands on a hook's error as an error of its own, with the place behind its text
        return str(error)
    raise AssertionError("a hook reported nothing")


def groups_are_those_of_mpi() -> None:
    """Also behind a function of the program that calls the hook."""
    state = dptrain_comm.init("q8", **LINK)

    def own_hook(state_of_hook, bucket):
        return dptrain_comm.hook(state, bucket)

    whole = torch.distributed.new_group(list(range(dptrain_comm.size())))
    for hook in (own_hook, dptrain_comm.hook):
        ddp = DistributedDataParallel(nn.Linear(4, 4), process_group=whole)
        ddp.register_comm_hook(state if hook is dptrain_comm.hook else None, hook)
        ddp(torch.ones(2, 4)).sum().backward()
        state.close()
    if dptrain_comm.size() == 1:
        return
    groups = [torch.distributed.new_group([rank]) for rank in range(dptrain_comm.size())]
    mine = DistributedDataParallel(nn.Linear(4, 4), process_group=groups[dptrain_comm.rank()])
    refused("DistributedDataParallel's process_group", mine.register_comm_hook, state, dptrain_comm.hook)
    state = dptrain_comm.init("q8", **LINK)
    mine.register_comm_hook(None, own_hook)
    assert "DistributedDataParallel's process_group" in error_of_backward(mine, torch.ones(2, 4))


def gradients_of_any_form() -> None:
    """Expanded ones, scalars, transposed ones, and those of a module that has no batch on some rank."""
    rank, size = dptrain_comm.rank(), dptrain_comm.size()
    net = nn.ParameterList([nn.Parameter(torch.tensor(2.0)), nn.Parameter(torch.randn(40, 50).t()), nn.Parameter(torch.randn(3, 1, 1)),
                            nn.Parameter(torch.randn(2, 30, 4, 5).to(memory_format=torch.channels_last))])
    state = dptrain_comm.init("none", **LINK)
    mean = (1 + size) / 2
    for form, wanted in ((lambda p: torch.full_like(p, 1.0 + rank), mean),
                         (lambda p: torch.full((1,) * p.dim(), 1.0 + rank).expand(p.shape), mean),
                         (lambda p: torch.full_like(p, 1.0 + rank).contiguous(), mean),
                         (lambda p: torch.full_like(p, 1.0) if rank == 0 else None, 1 / size)):
        for parameter in net:
            parameter.grad = form(parameter)
        state.allreduce_gradients(net)
        for parameter in net:
            assert parameter.grad.shape == parameter.shape and (parameter.grad == wanted).all(), (wanted, parameter.grad)
    state.close()


def arguments_are_checked() -> None:
    for words, options in (("exact 5: must be a name", {"exact": 5}), ("must be a dict of codecs by names", {"codecs": "q8"}),
                           ("codecs x=: must be a slot's name", {"codecs": {"x": ""}}), ("q9: unknown codec", {"codecs": {"x": "q9"}}), ("seed -1: must be a whole", {"seed": -1}),
                           ("bucket_bytes 1.5: must be a whole", {"bucket_bytes": 1.5}), ("timeout_s '5': must be a n", {"timeout_s": "5"}),
                           ("timeout_s nan: must be above 0", {"timeout_s": float("nan")}),
                           ("link_bit_per_s inf: must be finite and 0 or more", {"link_bit_per_s": float("inf")}),
                           ("topology b'ring': must be text", {"topology": b"ring"}), ("trace 5: must be text", {"trace": 5}),
                           ("trace_first None: must be", {"trace_first": None}), ("total_steps '10': must be", {"total_steps": "10"}),
                           ("total_steps nan: must be", {"total_steps": float("nan")}), ("log_steps None: must", {"log_steps": None}),
                           ("log 5: must be the name", {"log": 5}), ("about 'x': must be a dict", {"about": "x"}),
                           ("init() got str; it needs a torch.nn.Module", {"model": "net"})):
        refused(words, dptrain_comm.init, "q8", **options)
    refused("compress 'q8\\x00': must be text without zero bytes", dptrain_comm.init, "q8\0")
    state = dptrain_comm.init("q8", **LINK)
    for model in (None, [nn.Linear(2, 2)], nn.Linear(2, 2).parameters()):
        refused("() got ", state.allreduce_gradients, model)
        refused("() got ", dptrain_comm.broadcast_parameters, model)
    refused("the model has no parameter to exchange", state.allreduce_gradients, nn.ReLU())
    refused("hook() got a Tensor, no bucket of DistributedDataParallel; FSDP works by", dptrain_comm.hook, state, torch.ones(3))


def a_sparse_embedding_is_refused() -> None:
    class Words(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding, self.dense = nn.Embedding(50, 32, sparse=True), nn.Linear(32, 4)

        def forward(self, words):
            return self.dense(self.embedding(words))

    ddp = DistributedDataParallel(Words())
    ddp.register_comm_hook(dptrain_comm.init("none", **LINK), dptrain_comm.hook)
    assert "has a sparse gradient; the exchange needs dense ones" in error_of_backward(ddp, torch.arange(4))
    net = Words()
    state = dptrain_comm.init("none", **LINK)
    net.dense(torch.ones(4, 32)).sum().backward()
    state.allreduce_gradients(net)  # the embedding has no gradient yet
    net(torch.arange(4)).sum().backward()
    refused("embedding.weight has a sparse gradient", state.allreduce_gradients, net)
    state.close()


def other_networks_are_refused_between_steps() -> None:
    """Two DistributedDataParallel with one state; and the exchange goes on, since nothing had left."""
    state = dptrain_comm.init("none", **LINK)
    one, other = (DistributedDataParallel(nn.Linear(6, 5)) for _ in range(2))
    for ddp in (one, other):
        ddp.register_comm_hook(state, dptrain_comm.hook)
    one(torch.ones(2, 6)).sum().backward()
    assert "each network has a state of its own" in error_of_backward(other, torch.ones(2, 6))
    state.close()
    state = dptrain_comm.init("none", **LINK)
    net = nn.Linear(6, 5)
    net(torch.ones(2, 6)).sum().backward()
    state.allreduce_gradients(net)
    state.close()


class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, place):
        return torch.tensor([float(place), float(dptrain_comm.rank())])


def in_worker(_number: int) -> tuple:
    """In a process pool, which calls all that does nothing there."""
    dptrain_comm.start()
    dptrain_comm.init("q8", **LINK)
    dptrain_comm.broadcast_parameters(nn.Linear(2, 2))
    net = nn.Linear(2, 2)
    refused(f"this process was started by rank {dptrain_comm.rank()}", dptrain_comm.init("q8", **LINK).allreduce_gradients, net)
    return dptrain_comm.rank(), dptrain_comm.size()


def workers_import_the_script() -> None:
    for how in ("spawn", "fork", "forkserver"):
        context = multiprocessing.get_context(how)
        loader = torch.utils.data.DataLoader(Numbers(), batch_size=4, num_workers=1, multiprocessing_context=context,
                                             persistent_workers=True)
        for batch in [*loader, *loader]:
            assert batch[:, 0].tolist() == [0, 1, 2, 3] and (batch[:, 1] == dptrain_comm.rank()).all(), (how, batch)
        with context.Pool(1) as pool:
            assert pool.map(in_worker, [0]) == [(dptrain_comm.rank(), dptrain_comm.size())], how


def children_cannot_take_part() -> None:
    done = subprocess.run([sys.executable, "-c", "import dptrain_comm; dptrain_comm.start()"], capture_output=True, text=True,
                          timeout=60, env={**os.environ, "PYTHONPATH": PACKAGES})
    assert done.returncode == 2, done
    assert f"rank {dptrain_comm.rank()} (process " in done.stderr, done.stderr
    # Without a living chain of parents to the rank it has the rank's identity all the same.
    environment = {name: value for name, value in os.environ.items() if name != "DPTRAIN_COMM_RANK"}
    done = subprocess.run([sys.executable, "-c", "import dptrain_comm; dptrain_comm.start()"], capture_output=True, text=True,
                          timeout=60, env={**environment, "PYTHONPATH": PACKAGES})
    assert done.returncode == 2, done
    assert f"of this job is taken by process {os.getpid()}:" in done.stderr, done.stderr


if __name__ == "__main__":
    dptrain_comm.init_process_group()
    unused_parameters_stay_as_they_are()
    nothing_is_lost_in_between()
    several_networks_share_a_state()
    parameters_come_and_go()
    parts_of_a_batch_leave_together()
    changes_after_a_gradient_has_left_are_refused()
    a_failed_growth_loses_nothing()
    a_checkpoint_after_growth_goes_on()
    what_waits_stays_when_parameters_come()
    a_log_goes_on_with_other_parameters()
    networks_that_ddp_knows()
    gradients_of_any_form()
    groups_are_those_of_mpi()
    arguments_are_checked()
    workers_import_the_script()
    children_cannot_take_part()
    other_networks_are_refused_between_steps()
    a_sparse_embedding_is_refused()
    passed()
