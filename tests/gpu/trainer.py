"""A trainer on a GPU: python trainer.py ADDRESS SOURCE MODE [RANK WORLD FOLDER].

Trains a model over the daemon's memory beside the same one over PyTorch's own; answers each
line of JSON with one (client.py). With RANK, both are wrapped by fully_shard over gloo, or
NCCL where there is one rank. On a fake GPU the same runs on the host's view of its memory.
"""

import gc
import json
import os
import sys
import time

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # the same sums each time

import ckptd  # noqa: E402
import ckptd.torch  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402

ON_GPU = torch.cuda.is_available()
HOME = "cuda" if ON_GPU else "cpu"
WIDTH = 64
# Elements that no step touches, so that a shard that is lost can be seen from what is free.
BALLAST = 64 << 20 if ON_GPU else 1 << 10


class Net(nn.Module):
    """Awkward sizes: odd numbers of rows, one of a single element."""

    def __init__(self, ballast):
        super().__init__()
        if ballast:
            self.ballast = nn.Parameter(torch.zeros(BALLAST))
        self.embed = nn.Embedding(1001, WIDTH)
        self.up = nn.Linear(WIDTH, 2 * WIDTH + 3)
        self.norm = nn.LayerNorm(WIDTH)
        self.down = nn.Linear(2 * WIDTH + 3, WIDTH)
        self.gain = nn.Parameter(torch.ones(1))
        self.head = nn.Linear(WIDTH, 77, bias=False)

    def forward(self, tokens):
        x = self.embed(tokens) * self.gain
        return self.head(self.norm(x + self.down(torch.relu(self.up(x)))))


def numbers(ballast):
    """The same weights in every process."""
    generator = torch.Generator().manual_seed(7)
    found = {
        name: torch.randn(tensor.shape, generator=generator) * 0.2
        for name, tensor in Net(False).state_dict().items()
    }
    return {**found, "ballast": torch.arange(BALLAST, dtype=torch.float32)} if ballast else found


def write_source(path, ballast) -> str:
    """The checkpoint that trainers load; those that are wrapped go without ballast."""
    import files

    tensors = {}
    for name, tensor in numbers(ballast).items():
        data = tensor.contiguous().view(torch.uint8).numpy().tobytes()
        tensors[name] = files.Tensor("F32", tuple(tensor.shape), data)
    return files.write(path, tensors)


def local(tensor):
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def settle():
    if ON_GPU:
        torch.cuda.synchronize()


class Trainer:
    def __init__(self, address, source, mode, world=0):
        self.address, self.source, self.mode, self.world = address, source, mode, world
        self.ours = self.theirs = None

    def _wrap(self, model):
        if self.world:
            from torch.distributed.device_mesh import init_device_mesh
            from torch.distributed.fsdp import fully_shard

            mesh = init_device_mesh(HOME, (self.world,))
            fully_shard(model.up, mesh=mesh)
            fully_shard(model, mesh=mesh)
        return model.requires_grad_(self.mode != "shared")

    def _optimizer(self, model):
        if self.mode == "shared":
            return None
        return torch.optim.AdamW(model.parameters(), lr=0.01)

    def _of_torch(self):
        model = Net(not self.world)
        model.load_state_dict(numbers(not self.world))
        return self._wrap(model.to(HOME))

    def reference(self):
        """PyTorch's own model. A wrapped one makes a step first: can PyTorch do it here?"""
        if self.world:
            model = self._of_torch()
            self._steps(model, self._optimizer(model), 1)
        self.theirs = self._of_torch()
        self.their_optimizer = self._optimizer(self.theirs)
        return {}

    def load(self):
        with torch.device("meta"):
            self.ours = Net(not self.world)
        self._wrap(self.ours)
        self.optimizer = self._optimizer(self.ours)
        begin = time.perf_counter()
        result = ckptd.torch.load_into(self.ours, self.source, mode=self.mode, address=self.address)
        return {
            "seconds": time.perf_counter() - begin,
            "mode": result.mode,
            "nbytes": result.nbytes,
            "copied": result.copied,
            "replaced": result.replaced,
            "copied_bytes": result.copied_bytes,
            "resident": result.resident,
            "device": result.device,
        }

    def inside(self):
        """Whether every parameter lies in memory that came from the daemon."""
        from ckptd._cuda import DeviceMemory

        spans = [(m.address, m.nbytes) for m in gc.get_objects() if type(m) is DeviceMemory]
        pointers = [local(p).data_ptr() for p in self.ours.parameters() if local(p).numel()]
        outside = [p for p in pointers if not any(a <= p < a + n for a, n in spans)]
        return {"inside": len(pointers) - len(outside), "outside": len(outside)}

    def compare(self):
        settle()
        for (name, mine), (_, other) in zip(
            self.ours.named_parameters(), self.theirs.named_parameters()
        ):
            a, b = local(mine).detach(), local(other).detach()
            assert a.shape == b.shape, f"{name}: {a.shape} instead of {b.shape}"
            same = a.numel() == 0 or torch.equal(
                a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8)
            )
            if not same:
                return {"same": False, "differs": name, "by": float((a - b).abs().max())}
        return {"same": True}

    def _steps(self, model, optimizer, count):
        losses = []
        tokens = torch.arange(0, 96, device=HOME).reshape(4, 24) * 10
        for step in range(count):
            loss = model(tokens + step % 8).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.detach())
        return [loss.item() for loss in losses]

    def train(self, steps):
        """Both models the same steps; losses and every parameter's bits must agree."""
        ours = self._steps(self.ours, self.optimizer, steps)
        theirs = self._steps(self.theirs, self.their_optimizer, steps)
        assert ours == theirs, f"losses differ: {ours[-1]} and {theirs[-1]}"
        return self.compare()

    def forward(self):
        tokens = torch.arange(96, device=HOME)
        with torch.no_grad():
            return {"same": torch.equal(self.ours(tokens), self.theirs(tokens))}

    def graph(self, replays):
        """Steps recorded in a CUDA graph and replayed, beside the same steps one by one."""
        plain = [torch.optim.SGD(m.parameters(), lr=0.01) for m in (self.ours, self.theirs)]
        tokens = torch.arange(96, device=HOME)

        def step(model, optimizer):
            optimizer.zero_grad(set_to_none=False)
            model(tokens).square().mean().backward()
            optimizer.step()

        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                step(self.ours, plain[0])
        torch.cuda.current_stream().wait_stream(side)
        recorded = torch.cuda.CUDAGraph()
        with torch.cuda.graph(recorded):
            step(self.ours, plain[0])
        for _ in range(replays):
            recorded.replay()
        for _ in range(3 + replays):
            step(self.theirs, plain[1])
        return self.compare()

    def write(self):
        """Writes read-only memory: whatever happens, this process is done for."""
        with torch.no_grad():
            local(self.ours.up.weight).add_(1)
        settle()
        return {"error": None}

    def count(self):
        """What PyTorch's own allocator holds."""
        return {"allocated": torch.cuda.memory_allocated() if ON_GPU else 0}

    def drop(self):
        self.ours = self.optimizer = None
        gc.collect()
        return {}


def start_group(rank, world, folder):
    import datetime

    store = dist.FileStore(os.path.join(folder, "store"), world)
    backend = "cpu:gloo,cuda:nccl" if ON_GPU and world == 1 else "gloo"
    dist.init_process_group(
        backend, store=store, rank=rank, world_size=world, timeout=datetime.timedelta(seconds=20)
    )


def main(address, source, mode, rank="", world="0", folder=""):
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True, warn_only=True)
    if not ON_GPU:
        import host_view

        host_view.install()
    if rank:
        start_group(int(rank), int(world), folder)
    trainer = Trainer(address, source, mode, int(world))
    for line in sys.stdin:
        verb, arguments = json.loads(line)
        try:
            answer = getattr(trainer, verb)(**arguments)
        except ckptd.Error as error:
            answer = {"reason": error.reason, "message": error.message}
        except Exception as error:
            answer = {"reason": type(error).__name__, "message": str(error)[-1500:]}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
