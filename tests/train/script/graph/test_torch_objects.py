"""Tensors, modules, optimizers and what belongs to them come back bit for bit, sharing memory as they did."""

from __future__ import annotations

import pytest

from tests.train.script.graph.relaunch import assert_exact

NET = """
import torch
from torch import nn
def make(): return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(0.2), nn.Linear(6, 2))
net = make()
losses = []
def train(optimizer, model=None, scheduler=None):
    model = model or net
    optimizer.zero_grad()
    loss = model(torch.randn(5, 4)).pow(2).mean()
    loss.backward()
    optimizer.step()
    if scheduler: scheduler.step()
    losses.append(loss.item())
def show(): return losses, list(net.state_dict().values())
"""

CASES = {
    "Adam, names that are one object": """
opt = torch.optim.Adam(net.parameters(), lr=0.1)
first = net[0].weight
table = {first: 1}
def step(i):
    table[first] += i
    train(opt)
def show(): return losses, list(net.state_dict().values()), first is net[0].weight, table[net[0].weight]
""",
    "SGD with momentum": """
opt = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9, nesterov=True)
def step(i): train(opt)
""",
    "AdamW with amsgrad": "opt = torch.optim.AdamW(net.parameters(), 0.1, amsgrad=True)\ndef step(i): train(opt)\n",
    "RMSprop, foreach": "opt = torch.optim.RMSprop(net.parameters(), 0.01, foreach=True)\ndef step(i): train(opt)\n",
    "LBFGS": """
opt = torch.optim.LBFGS(net.parameters(), 0.1, history_size=3, max_iter=3)
x = torch.randn(6, 4)
def closure():
    opt.zero_grad(); loss = net(x).pow(2).mean(); loss.backward(); losses.append(loss.item()); return loss
def step(i): opt.step(closure)
""",
    "groups added and frozen in the loop": """
for p in net[4].parameters(): p.requires_grad_(False)
opt = torch.optim.Adam([{"params": net[0].parameters(), "lr": 0.1}, {"params": net[1].parameters(), "lr": 0.2}])
def step(i):
    if i == 1:
        for p in net[4].parameters(): p.requires_grad_(True)
        opt.add_param_group({"params": list(net[4].parameters()), "lr": 0.05})
    if i == 2: net[0].weight.requires_grad_(False)
    opt.param_groups[0]["lr"] *= 0.9
    train(opt)
def show(): return losses, [g["lr"] for g in opt.param_groups], [p.requires_grad for p in net.parameters()]
""",
    "optimizers that swap their networks": """
a, b = make(), make()
oa, ob = torch.optim.Adam(a.parameters(), 0.1), torch.optim.SGD(b.parameters(), 0.1, momentum=0.5)
def step(i):
    global a, b, oa, ob
    if i % 2 == 0: a, b = b, a
    if i == 2: oa, ob = ob, oa
    train(oa, a); train(ob, b)
def show():
    return losses, a[0].weight, b[0].weight, oa.param_groups[0]["params"][0] is a[0].weight, type(oa).__name__
""",
    "gradients accumulate over steps": """
opt = torch.optim.SGD(net.parameters(), 0.1)
def step(i):
    loss = net(torch.randn(5, 4)).pow(2).mean()
    loss.backward()
    losses.append(loss.item())
    if i % 4 == 3: opt.step(); opt.zero_grad(set_to_none=False)
""",
    "tied weights and views": """
class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(7, 4)
        self.out = nn.Linear(4, 7, bias=False)
        self.out.weight = self.embed.weight
        self.register_buffer("count", torch.zeros(7))
        self.row = self.count[2:4]
    def forward(self, x): return self.out(self.embed(x))
tied = Tied()
opt = torch.optim.Adam(tied.parameters(), 0.1)
def step(i):
    opt.zero_grad(); loss = tied(torch.arange(7)).logsumexp(1).mean(); loss.backward(); opt.step()
    tied.row += i; losses.append(loss.item())
def show():
    shared = tied.count.data_ptr() == tied.row.data_ptr() - 8
    return losses, tied.out.weight is tied.embed.weight, tied.count, tied.row, shared
""",
    "aliasing that changes in the loop": """
base = torch.zeros(10)
view, other = base[2:6], torch.zeros(4)
flat = torch.zeros(6)
parts = [flat[:3], flat[3:]]
def step(i):
    global view, other, parts
    if i == 1: view, other = other, base[4:8]
    if i == 2: parts = [parts[1], torch.ones(3), base.view(2, 5).t()]
    base.add_(i); view.add_(1); other.mul_(2); parts[0].add_(1)
def show(): return base, view, other, parts, flat
""",
    "module grows and is replaced": """
class Grow(nn.Module):
    def __init__(self): super().__init__(); self.layers = nn.ModuleList([nn.Linear(3, 3)]); self.head = nn.Linear(3, 2)
    def forward(self, x):
        for l in self.layers: x = l(x).relu()
        return self.head(x)
grow = Grow()
opt = torch.optim.Adam(grow.parameters(), 0.1)
def step(i):
    global opt
    if i == 1:
        grow.layers.append(nn.Linear(3, 3)); grow.head = nn.Linear(3, 4); opt = torch.optim.Adam(grow.parameters(), 0.1)
    opt.zero_grad(); loss = grow(torch.randn(4, 3)).pow(2).mean(); loss.backward(); opt.step()
    losses.append(loss.item())
def show(): return losses, list(grow.state_dict().items())
""",
    "GradScaler and autocast": """
opt, scaler = torch.optim.SGD(net.parameters(), 0.1), torch.amp.GradScaler("cpu", growth_interval=2)
def step(i):
    opt.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16): loss = net(torch.randn(5, 4)).float().pow(2).mean()
    scaler.scale(loss).backward(); scaler.step(opt); scaler.update(); losses.append((loss.item(), scaler.get_scale()))
""",
    "averages of the model": """
import copy
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
opt = torch.optim.SGD(net.parameters(), 0.1)
ema, swa, best = AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(0.9)), AveragedModel(net), copy.deepcopy(net)
shadow = {k: v.clone() for k, v in net.state_dict().items()}
def step(i):
    global best
    train(opt); ema.update_parameters(net); swa.update_parameters(net)
    for k, v in net.state_dict().items(): shadow[k].mul_(0.5).add_(v, alpha=0.5) if v.is_floating_point() else None
    if i % 2 == 0: best = copy.deepcopy(net)
def show(): return losses, list(ema.parameters()), list(swa.buffers()), list(best.parameters()), shadow
""",
    "replay buffer": """
from collections import deque
import random
memory = deque(maxlen=5)
state = torch.zeros(3)
opt = torch.optim.Adam(net.parameters(), 0.01)
def step(i):
    global state
    new = state + torch.randn(3)
    memory.append((state, i, new)); state = new
    s, a, n = random.choice(memory)
    losses.append((s.sum() + n.sum() + a).item())
def show(): return losses, list(memory), memory[-1][2] is state, len(memory) < 2 or memory[-1][0] is memory[-2][2]
""",
    "hooks": """
seen, total = [], torch.zeros(1)
class Watch:
    n = 0
    def __call__(self, module, args, out): self.n += 1; seen.append(float(out.detach().sum()))
watch = Watch()
net[0].register_forward_hook(watch)
handle = net[4].register_forward_hook(lambda m, a, o: o * 0.5)
net[0].weight.register_hook(lambda g: g * 2)
net[4].weight.register_post_accumulate_grad_hook(lambda p: None if total.add_(p.grad.sum()) is None else None)
opt = torch.optim.SGD(net.parameters(), 0.1)
opt.register_step_post_hook(lambda o, a, k: seen.append(len(o.state)))
def step(i):
    if i == 2: handle.remove()
    if i == 1: net[4].bias.register_hook(lambda g: g * 3)
    train(opt)
def show(): return losses, seen, watch.n, total, list(net.parameters())
""",
    "user's own tensors": """
class Tagged(torch.Tensor):
    @classmethod
    def __torch_function__(cls, f, types, args=(), kwargs=None):
        Tagged.calls = getattr(Tagged, "calls", 0) + 1
        return super().__torch_function__(f, types, args, kwargs or {})
class Masked(nn.Parameter): pass
t = torch.ones(3).as_subclass(Tagged)
m = Masked(torch.ones(2))
t.note = "a"
class Model(nn.Module):
    def __init__(self): super().__init__(); self.m = m; self.w = nn.Parameter(torch.ones(2)); self.w.scale = [1]
model = Model()
def step(i):
    global t
    t = t * 2; t.note = [model.w]; model.w.scale.append(i)
    with torch.no_grad(): m.add_(i)
def show():
    same = t.note[0] is model.w, m is model.m
    return t.tolist(), type(t).__name__, m.tolist(), type(model.m).__name__, same, m.requires_grad
""",
    "kinds of tensors": """
import warnings
import numpy as np
warnings.simplefilter("ignore")
made = {}
array = np.arange(6.0)
shared, view = torch.from_numpy(array), array[2:5]
ints = torch.zeros(3, dtype=torch.int64).numpy()
def step(i):
    array[0] += 1; shared[2] += 5; view[1] += 1; ints[0] += i
    made["half"] = torch.randn(3).bfloat16(); made["f16"] = torch.randn(2).half()
    made["complex"] = torch.randn(3, dtype=torch.complex64)
    made["conj"] = made["complex"].conj()
    made["imag"] = made["conj"].imag
    made["bool"] = torch.rand(3) > 0.5; made["byte"] = torch.tensor([i], dtype=torch.uint8)
    made["scalar"] = torch.tensor(i); made["empty"] = torch.empty(0, 3); made["wide"] = torch.randn(2, 1).expand(2, 3)
    made["t"] = torch.randn(3, 2).t(); made["last"] = torch.randn(1, 2, 3, 3).to(memory_format=torch.channels_last)
    made["coo"] = torch.eye(3).to_sparse() * i; made["csr"] = (torch.eye(3) * i).to_sparse_csr()
    made["q"] = torch.quantize_per_tensor(torch.randn(3), 0.1, 2, torch.qint8)
    made["f8"] = torch.randn(4).to(torch.float8_e4m3fn); made["meta"] = torch.empty(i, device="meta")
    with torch.inference_mode(): made["inference"] = torch.randn(2)
    made["np"] = np.random.rand(2, 3)[::-1, ::2]; made["rec"] = np.array([(i, 2.0)], dtype=[("a", "i4"), ("b", "f8")])
    made["obj"] = np.array([made["t"], None, "x"], dtype=object); made["scalar64"] = np.float64(i)
    made["zero"] = np.array(i)
    made["text"] = np.array(["a", "bc" * i]); made["frozen"] = np.arange(i); made["frozen"].flags.writeable = False
    made["none"] = np.zeros((0, 3)); made["day"] = np.datetime64("2020-01-01") + i
    made["dtype"] = made["rec"].dtype, torch.half
def show():
    rows = [(k, v if k != "coo" else v.to_dense()) for k, v in made.items() if k not in ("q", "f8")]
    rows.append((made["q"].int_repr(), made["f8"].float(), array, shared, view, ints))
    flags = [made["inference"].is_inference(), made["obj"][0] is made["t"], made["frozen"].flags.writeable]
    flags += [made["last"].is_contiguous(), made["conj"].is_conj(), made["rec"].flags.writeable]
    return rows, flags, made["wide"].stride(), made["t"].stride()
""",
    "embedding with sparse gradients": """
emb = nn.Embedding(5, 3, sparse=True)
opt = torch.optim.SparseAdam(emb.parameters(), 0.1)
def step(i):
    emb(torch.tensor([i % 5, 1])).pow(2).sum().backward()
    if i % 2 == 1: opt.step(); opt.zero_grad()
def show(): return emb.weight, emb.weight.grad is None or emb.weight.grad.to_dense()
""",
    "recurrent state and lazy modules": """
rnn = nn.LSTM(3, 4)
lazy = nn.LazyLinear(2)
hidden = None
opt = torch.optim.SGD(rnn.parameters(), 0.1)
def step(i):
    global hidden, opt
    out, (h, c) = rnn(torch.randn(2, 1, 3), hidden)
    loss = lazy(out).pow(2).mean()
    if i == 0: opt = torch.optim.Adam([*rnn.parameters(), *lazy.parameters()], 0.1)
    opt.zero_grad(); loss.backward(); opt.step(); losses.append(loss.item())
    hidden = h.detach(), c.detach()
def show(): return losses, hidden, type(lazy).__name__, list(lazy.parameters())
""",
    "parametrizations, pruning, weight norm": """
from torch.nn.utils import parametrizations, prune
a, b = parametrizations.weight_norm(nn.Linear(3, 3)), nn.Linear(3, 3)
prune.l1_unstructured(b, "weight", 0.3)
s = parametrizations.spectral_norm(nn.Linear(3, 3))
opt = torch.optim.Adam([*a.parameters(), *b.parameters(), *s.parameters()], 0.1)
def step(i):
    if i == 2: prune.random_unstructured(b, "weight", 0.2)
    opt.zero_grad(); loss = s(b(a(torch.randn(4, 3)))).pow(2).mean(); loss.backward(); opt.step()
    losses.append(loss.item())
def show(): return losses, a.weight, b.weight, s.weight
""",
    "a loss that carries its graph": """
opt = torch.optim.SGD(net.parameters(), 0.1)
total, last = 0, None
def step(i):
    global total, last
    last = net(torch.randn(5, 4)).pow(2).mean()
    total += last.detach(); opt.zero_grad(); last.backward(); opt.step()
def show(): return total, last.item(), last.requires_grad
""",
    "modules' own functions and buffers": """
class Act(nn.Module):
    def __init__(self):
        super().__init__()
        self.act = torch.relu; self.fn = nn.functional.gelu; self.body = nn.Linear(2, 2)
        self.where = torch.device("cpu")
        self.forward = self.second; self.kind = torch.float32
        self.register_buffer("steps", torch.tensor(0)); self.register_buffer("lazy", None)
    def second(self, x): self.steps += 1; return self.act(self.body(x))
act = Act()
def step(i):
    losses.append(act(torch.randn(1, 2)).sum().item())
    if i == 1: act.act = torch.tanh; act.lazy = torch.ones(2)
    if i == 2: act.half_way = True; act.eval()
def show(): return losses, act.steps, act.lazy, act.training, act.half_way
""",
}

SCHEDULERS = {
    "LambdaLR": "s.LambdaLR(opt, lambda e: 0.9 ** e)",
    "MultiplicativeLR": "s.MultiplicativeLR(opt, lambda e: 0.9)",
    "StepLR": "s.StepLR(opt, 2, 0.5)",
    "MultiStepLR": "s.MultiStepLR(opt, [2, 4], 0.5)",
    "ConstantLR": "s.ConstantLR(opt, 0.5, 4)",
    "LinearLR": "s.LinearLR(opt, 0.5, total_iters=5)",
    "ExponentialLR": "s.ExponentialLR(opt, 0.9)",
    "PolynomialLR": "s.PolynomialLR(opt, 8)",
    "CosineAnnealingLR": "s.CosineAnnealingLR(opt, 8)",
    "CosineAnnealingWarmRestarts": "s.CosineAnnealingWarmRestarts(opt, 2, 2)",
    "CyclicLR": "s.CyclicLR(opt, 0.01, 0.1, 2, 3, mode='exp_range', gamma=0.9)",
    "CyclicLR with a function": "s.CyclicLR(opt, 0.01, 0.1, 2, scale_fn=lambda x: 0.5 ** x)",
    "OneCycleLR": "s.OneCycleLR(opt, 0.2, 10)",
    "SequentialLR": "s.SequentialLR(opt, [s.ConstantLR(opt, 0.1, 2), s.ExponentialLR(opt, 0.9)], [2])",
    "ChainedScheduler": "s.ChainedScheduler([s.ConstantLR(opt, 0.1, 2), s.ExponentialLR(opt, 0.9)], opt)",
    "SWALR": "torch.optim.swa_utils.SWALR(opt, 0.05, anneal_epochs=4)",
}
SCHEDULED = (
    NET
    + """
import torch.optim.lr_scheduler as s
opt = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
sched = {}
def step(i): train(opt, scheduler=sched)
def show(): return losses, sched.get_last_lr(), opt.param_groups[0]["lr"], opt.param_groups[0]["momentum"]
"""
)
PLATEAU = (
    NET
    + """
opt = torch.optim.SGD(net.parameters(), 0.1)
sched = torch.optim.lr_scheduler.ReduceLROnPlateau(opt, patience=1, threshold=0.9)
def step(i): train(opt); sched.step(losses[-1])
def show(): return losses, opt.param_groups[0]["lr"], sched.best, sched.num_bad_epochs
"""
)


@pytest.mark.parametrize("name", CASES)
def test_comes_back(name: str) -> None:
    assert_exact(NET + CASES[name])


@pytest.mark.parametrize("name", SCHEDULERS)
def test_scheduler_comes_back(name: str) -> None:
    assert_exact(SCHEDULED.replace("{}", SCHEDULERS[name]))


def test_plateau_scheduler_comes_back() -> None:
    assert_exact(PLATEAU)


def test_scheduler_made_in_the_loop() -> None:
    assert_exact(
        SCHEDULED.replace("sched = {}", "sched = None").replace(
            "def step(i): train",
            "def step(i):\n    global sched\n    if i == 1: sched = s.StepLR(opt, 1, 0.9)\n    train",
        )
    )
