"""A wire between two daemons that a test can tamper with: TCP on loopback, without TLS."""

import contextlib
import re
import socket
import threading


class Wire:
    """Passes bytes on between who connects to `address` and `target` (host, port).

    tamper: function(bytes that go to the target) -> bytes that go there instead, of the same number."""

    def __init__(self, target, tamper):
        self.target, self.tamper = target, tamper
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = self.listener.getsockname()
        self.lock = threading.Lock()
        self.open = set()
        self.threads = [threading.Thread(target=self._accept)]
        self.threads[0].start()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                near, _ = self.listener.accept()
                try:
                    far = socket.create_connection(self.target, timeout=60)
                except OSError:
                    near.close()
                    continue
                far.settimeout(None)
                with self.lock:
                    self.open |= {near, far}
                for ends in ((near, far, self.tamper), (far, near, bytes)):
                    self.threads.append(threading.Thread(target=self._pass, args=ends))
                    self.threads[-1].start()

    def _pass(self, source, sink, tamper):
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 18):
                sink.sendall(tamper(data))
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self):
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self.threads[0].join(60)
        with self.lock:
            for end in self.open:
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
        for thread in self.threads[1:]:
            thread.join(60)
        for end in self.open:
            end.close()


class TappedMember:
    """Wires for the daemon of a member: it must call the leader at `rendezvous`, and is then
    called back through a wire that tampers with what it is sent."""

    def __init__(self, leader, tamper):
        self.tamper, self.tap = tamper, None
        self.join = Wire(leader, self._introduce)
        self.rendezvous = "127.0.0.1:{}".format(self.join.address[1])

    def _introduce(self, data):
        """A member says at which address it is called: it says the wire's, of as many digits."""
        for found in re.findall(rb"127\.0\.0\.1:(\d{5})", data):
            port = int(found)
            if port == self.join.address[1] or (self.tap and port == self.tap.address[1]):
                continue
            if self.tap is None:
                self.tap = Wire(("127.0.0.1", port), self.tamper)
            data = data.replace(b"127.0.0.1:" + found, b"127.0.0.1:%05d" % self.tap.address[1])
        return data

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for wire in (self.join, self.tap):
            if wire is not None:
                wire.close()
