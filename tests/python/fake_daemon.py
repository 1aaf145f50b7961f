"""A daemon for unit tests: the contract over one safetensors file, in this process.

Serves CheckpointService on a Unix socket and descriptors on another. Loads are
immediate; memory is real sealed memfds in several segments, so a client is
tested against what it would map (fake_slab). Knobs (attributes of
FakeDaemon) bend replies for tests of what must be refused.
"""

import concurrent.futures
import hashlib
import os
import socket
import struct
import threading

import grpc
import numpy as np
from ckptd import _dtypes, _proto
from fake_slab import Refusal, Slab, cast, joined, local_indices, read_file


def identity_of(path):
    file = os.stat(path)
    return f"{file.st_ino:08x}{file.st_mtime_ns:016x}"


class FakeDaemon:
    """Listens on `folder`/rank-{rank}.sock once entered. A context manager."""

    def __init__(self, folder, rank=0, world_size=1, segment_bytes=1 << 16, page=7, gpu=None):
        """gpu: keeps slabs in the memory of the GPU of that number."""
        self.rank, self.world_size = rank, world_size
        self.path = os.path.join(folder, f"rank-{rank}.sock")
        self.fd_path = os.path.join(folder, f"rank-{rank}.fd.sock")
        self.segment_bytes, self.page, self.gpu = segment_bytes, page, gpu
        self.checkpoints, self.slabs, self.requests, self.tokens = {}, {}, [], {}
        self.lock = threading.Condition()
        self.identities = {}  # of the files of each checkpoint
        self.sources = {}  # of each checkpoint
        self.leases = 0  # connections open on the fd socket
        # Knobs.
        self.calls = []
        self.fail_next = {}  # method -> list of Refusal, raised one a call
        self.stay_loading = False
        self.settled = 2  # the state that loads end in: ACTIVE
        self.watch_silence = 2.0  # seconds until the same progress is told again
        self.bend_acquire = lambda reply: None
        self.bend_segments = lambda fds: fds
        self.fd_status = (0, "")
        self.fds_per_message = 3

    # -- life ----------------------------------------------------------------

    def __enter__(self):
        self.server = grpc.server(concurrent.futures.ThreadPoolExecutor(8))
        handlers = {}
        for name, (_, request, response, streams) in _proto.METHODS.items():
            service, _, method = name.partition(".")
            if service != "CheckpointService" or not hasattr(self, method):
                continue
            make = (
                grpc.unary_stream_rpc_method_handler
                if streams
                else grpc.unary_unary_rpc_method_handler
            )
            wrap = self._stream if streams else self._unary
            handlers[method] = make(
                wrap(method),
                _proto.message(request).FromString,
                _proto.message(response).SerializeToString,
            )
        self.server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("ckptd.v1.CheckpointService", handlers),)
        )
        self.server.add_insecure_port(f"unix:{self.path}")
        self.server.start()
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(self.fd_path)
        self.listener.listen()
        threading.Thread(target=self._serve_fds, daemon=True).start()
        return self

    def __exit__(self, *_):
        with self.lock:
            self.stay_loading = False
            self.lock.notify_all()
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self.server.stop(0).wait(60)
        for slab in self.slabs.values():
            slab.close()

    def wait_for(self, condition, timeout=60.0):
        with self.lock:
            assert self.lock.wait_for(condition, timeout), (
                "the fake daemon never came to that state"
            )

    def _fail(self, context, refusal):
        info = _proto.message("ErrorInfo")(
            reason=refusal.reason, domain="ckptd", metadata=refusal.facts
        )
        status = _proto.message("ErrorStatus")(code=refusal.code, message=refusal.message)
        status.details.add(
            type_url="type.googleapis.com/google.rpc.ErrorInfo", value=info.SerializeToString()
        )
        context.set_trailing_metadata((("grpc-status-details-bin", status.SerializeToString()),))
        code = next(c for c in grpc.StatusCode if c.value[0] == refusal.code)
        context.abort(code, refusal.message)

    def _enter_call(self, method, context):
        with self.lock:
            self.calls.append(method)
            self.lock.notify_all()
            planned = self.fail_next.get(method)
            refusal = planned.pop(0) if planned else None
        if refusal is not None:
            if refusal.reason == "":
                context.abort(grpc.StatusCode.UNAVAILABLE, refusal.message)
            self._fail(context, refusal)

    def _unary(self, method):
        def handle(request, context):
            self._enter_call(method, context)
            try:
                return getattr(self, method)(request)
            except Refusal as refusal:
                self._fail(context, refusal)

        return handle

    def _stream(self, method):
        def handle(request, context):
            self._enter_call(method, context)
            context.add_callback(self._wake)
            yield from getattr(self, method)(request, context)

        return handle

    def _wake(self):
        with self.lock:
            self.lock.notify_all()

    # -- calls ---------------------------------------------------------------

    def GetTrainerKey(self, request):
        key = hashlib.sha256(os.path.dirname(self.path).encode()).digest()
        return _proto.message("GetTrainerKeyResponse")(key=key)

    def _open(self, source):
        if not os.path.exists(source):
            raise Refusal(
                5,
                "SOURCE_NOT_FOUND",
                f"opening {source}: no such file; check the path",
                {"file": source},
            )
        return read_file(source)

    def InspectCheckpoint(self, request):
        tensors = self._open(request.source)
        names = sorted(tensors)
        start = int(request.page_token or 0)
        reply = _proto.message("InspectCheckpointResponse")(
            tensor_count=len(names), source_identity=identity_of(request.source)
        )
        reply.index.source = request.source
        reply.index.files.add(path=request.source, bytes=os.path.getsize(request.source))
        reply.index.metadata["format"] = "pt"
        for name in names[start : start + self.page]:
            row, shape, offset, data = tensors[name]
            table = reply.index.tensors
            table.names.append(name)
            table.dtypes.append(row.number)
            table.ranks_of_shape.append(len(shape))
            table.dims.extend(shape)
            table.files.append(0)
            table.offsets.append(offset)
            table.bytes.append(len(data))
        if start + self.page < len(names):
            reply.next_page_token = str(start + self.page)
        return reply

    def LoadCheckpoint(self, request):
        spec = request.spec
        tensors = self._open(spec.source)
        with self.lock:
            key = (
                spec.source,
                os.stat(spec.source).st_mtime_ns,
                spec.layout.SerializeToString(deterministic=True),
                spec.dtype_policy.SerializeToString(deterministic=True),
                spec.intended_mode == 3,
            )
            self.requests.append(request)
            name, resident = self.checkpoints.get(key), True
            if name is None:
                resident, name = False, f"checkpoints/{len(self.checkpoints) + 1:x}"
                self.slabs[name] = self._fill(tensors, spec)
                self.checkpoints[key] = name
                self.identities[name] = identity_of(spec.source)
                self.sources[name] = spec.source
            reply = _proto.message("LoadCheckpointResponse")(resident=resident)
            self._describe(reply.checkpoint, name)
            return reply

    def _describe(self, message, name):
        message.name, message.source = name, self.sources[name]
        message.source_identity = self.identities[name]
        message.state = 1 if self.stay_loading else self.settled
        message.rank, message.world_size = self.rank, self.world_size
        message.slab_bytes = self.slabs[name].size
        message.progress.stage = 1 if self.stay_loading else 7
        message.progress.slowest_rank = -1
        if self.stay_loading:
            message.progress.waiting_ranks.extend([3, 5])

    def _new_slab(self):
        if self.gpu is None:
            return Slab(self.segment_bytes)
        from fake_device_slab import DeviceSlab

        return DeviceSlab(self.gpu)

    def _fill(self, tensors, spec):
        slab = self._new_slab()
        if spec.layout.WhichOneof("form") == "rules":
            for name in sorted(tensors):
                row, shape, _, data = tensors[name]
                array, row = cast(
                    np.frombuffer(data, row.numpy),
                    row,
                    spec.dtype_policy.cast_to if row.number in _dtypes.CASTABLE else 0,
                )
                slab.add(name, row, array.reshape(shape), array.size)
        else:
            self._fill_stated(slab, tensors, spec.layout.rank_layout)
        slab.finish(spec.intended_mode == 3)
        return slab

    def _fill_stated(self, slab, tensors, layout):
        if layout.world_size != self.world_size or layout.rank != self.rank:
            raise Refusal(
                3,
                "WRONG_RANK",
                f"rank {layout.rank} of {layout.world_size} asked rank "
                f"{self.rank} of {self.world_size}",
            )
        at = 0
        names = {i: [name] for i, name in enumerate(layout.names)}
        for alias, i in zip(layout.alias_names, layout.alias_tensors):
            names[i].append(alias)
        known = {name for each in names.values() for name in each}
        slab.unexpected = sorted(set(tensors) - known)
        for i, name in enumerate(layout.names):
            shape = tuple(layout.dims[at : at + layout.ranks_of_shape[i]])
            at += len(shape)
            held = next((each for each in names[i] if each in tensors), None)
            optional = i in layout.optional_tensors
            if held is None and (optional or layout.skip_missing):
                continue
            if held is None:
                raise Refusal(
                    5,
                    "TENSOR_NOT_FOUND",
                    f"planning: {name} is not in the source",
                    {"tensor": name},
                )
            row, full, _, data = tensors[held]
            if (full, shape) == ((1,), ()):  # as PyTorch
                shape = full
            if full != shape and optional:
                continue
            if full != shape:
                raise Refusal(
                    3, "LAYOUT_MISMATCH", f"planning {name}: {full} in the source, {shape} wanted"
                )
            array, row = cast(np.frombuffer(data, row.numpy), row, layout.dtypes[i], name)
            array, padded = array.reshape(shape), None
            sharding = layout.shardings[layout.sharding_of[i]]
            if sharding.HasField("mesh"):
                lists, padded = local_indices(sharding, layout.meshes, shape, self.rank)
                array = array[np.ix_(*lists)] if shape else array
            elif sharding.boxes:
                array = joined(array, sharding.boxes)
            count = array.size
            if padded is not None:
                others = [
                    size for dim, size in enumerate(array.shape) if dim != sharding.padded_dim
                ]
                count = int(np.prod(others, dtype=int)) * padded
            slab.aliases += [(alias, len(slab.rows)) for alias in names[i][1:]]
            slab.add(name, row, array, count)
        if layout.refuse_unexpected and slab.unexpected:
            sentence = f"planning: {slab.unexpected} in the source"
            raise Refusal(3, "UNEXPECTED_TENSORS", sentence, {"tensor": slab.unexpected[0]})

    def WatchCheckpoint(self, request, context):
        while True:
            reply = _proto.message("WatchCheckpointResponse")()
            with self.lock:
                self._describe(reply.checkpoint, request.name)
            yield reply
            if reply.checkpoint.state != 1:
                return
            with self.lock:
                self.lock.wait_for(lambda: not self.stay_loading or not context.is_active(),
                                   self.watch_silence)
            if not context.is_active():
                return

    def GetCheckpoint(self, request):
        if request.name not in self.slabs:
            raise Refusal(5, "CHECKPOINT_NOT_FOUND", f"no {request.name} here; see ckptctl list")
        reply = _proto.message("GetCheckpointResponse")()
        self._describe(reply.checkpoint, request.name)
        return reply

    def ListCheckpoints(self, request):
        names = sorted(self.slabs)
        start = int(request.page_token or 0)
        reply = _proto.message("ListCheckpointsResponse")(rank=self.rank, world_size=self.world_size)
        for name in names[start : start + 1]:
            self._describe(reply.checkpoints.add(), name)
        if start + 1 < len(names):
            reply.next_page_token = str(start + 1)
        if self.gpu is not None:
            reply.device_uuid = self._new_slab().name
        return reply

    def PlanLoad(self, request):
        self._open(request.spec.source)
        reply = _proto.message("PlanLoadResponse")(storage_bytes=11, plan_digest="ab")
        reply.ranks.add(rank=0, slab_bytes=512, tensor_bytes=11, tensor_count=1)
        reply.files.add(path=request.spec.source, read_bytes=11)
        return reply

    def VerifyCheckpoint(self, request):
        return _proto.message("VerifyCheckpointResponse")(
            tensor_count=2, bytes=9, mismatched=["w"], files=["/models/a.safetensors"]
        )

    def ReleaseShard(self, request):
        return _proto.message("ReleaseShardResponse")()

    def _table(self, table, slab, start):
        for name, dtype, shape, offset, size, padded in slab.rows[start : start + self.page]:
            table.names.append(name)
            table.dtypes.append(dtype)
            table.ranks_of_shape.append(len(shape))
            table.dims.extend(shape)
            table.offsets.append(offset)
            table.bytes.append(size)
            table.padded_bytes.append(padded)
        following = start + self.page
        for name, index in slab.aliases:
            if start <= index < following:
                table.alias_names.append(name)
                table.alias_tensors.append(index - start)
        if following < len(slab.rows):
            return str(following)
        table.unexpected_names.extend(slab.unexpected)
        return ""

    def AcquireShard(self, request):
        self.accepted_kinds = list(request.accepted_kinds)
        slab = self.slabs[request.name]
        token = os.urandom(16).hex()
        reply = _proto.message("AcquireShardResponse")(
            lease=f"{request.name}/leases/1",
            token=token,
            mode=request.mode or 1,
            slab_bytes=slab.size,
            tensor_count=len(slab.rows),
        )
        slab.describe(reply, self.fd_path, request.mode == 3)
        reply.next_page_token = self._table(reply.tensors, slab, 0)
        with self.lock:
            self.tokens[token] = (slab, request.mode == 3)
        self.bend_acquire(reply)
        return reply

    def ListShardTensors(self, request):
        reply = _proto.message("ListShardTensorsResponse")()
        start = int(request.page_token)
        reply.next_page_token = self._table(reply.tensors, self.slabs[request.name], start)
        return reply

    # -- descriptors ---------------------------------------------------------

    def _serve_fds(self):
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self._hand_over, args=(connection,), daemon=True).start()

    def _hand_over(self, connection):
        token = b""
        while len(token) < 32:
            part = connection.recv(32 - len(token))
            if not part:
                connection.close()
                return
            token += part
        held = self.tokens.pop(token.decode(), None)
        status, sentence = self.fd_status if held else (16, "showing a token: it is not known")
        if status:
            text = sentence.encode()
            connection.sendall(struct.pack("<4sIIII", b"CKP1", status, 0, 0, len(text)) + text)
            connection.close()
            return
        with self.lock:
            self.leases += 1
            self.lock.notify_all()
        slab, writable = held
        fds = self.bend_segments(slab.descriptors(writable))
        self._send(connection, fds)
        for fd in fds:
            os.close(fd)
        self._wake()
        try:
            connection.recv(1)
        except OSError:
            pass
        connection.close()
        with self.lock:
            self.leases -= 1
            self.lock.notify_all()

    def _send(self, connection, fds):
        step = self.fds_per_message
        for at in range(0, max(len(fds), 1), step):
            part = fds[at : at + step]
            left = max(len(fds) - at - step, 0)
            header = struct.pack("<4sIII", b"CKP1", 0, len(part), left)
            try:
                socket.send_fds(connection, [header], part) if part else connection.sendall(header)
            except OSError:
                return
