"""A network of pods on one machine: a bridge, a cable to each pod, and one file of the names that pods have."""

import pathlib
import uuid

from namespaces import tool


class PodNetwork:
    """A namespace of its own holds the bridge. Nothing else on this machine is reached from it.

    A pod's name leads to its address from the moment it is there, as a headless Service with
    `publishNotReadyAddresses` has it in DNS. A pod in its place has another address."""

    def __init__(self, folder):
        self.hosts_file = pathlib.Path(folder) / "hosts"
        self._namespace = f"ckptd-{uuid.uuid4().hex[:6]}"
        self._names, self._pods = {}, 0

    def __enter__(self):
        self._write()
        tool("ip", "netns", "add", self._namespace)
        tool("ip", "-n", self._namespace, "link", "add", "name", "br0", "type", "bridge")
        tool("ip", "-n", self._namespace, "link", "set", "br0", "up")
        return self

    def __exit__(self, *_):
        tool("ip", "netns", "delete", self._namespace, check=False)

    def attach(self, process, names):
        """The address that the namespace of a process gets, with a cable to the others."""
        self._pods += 1
        cable, address = f"pod{self._pods}", f"10.78.0.{self._pods}"
        inside = ("nsenter", f"--net=/proc/{process}/ns/net", "ip")
        tool("ip", "-n", self._namespace, "link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", str(process))
        tool("ip", "-n", self._namespace, "link", "set", cable, "master", "br0", "up")
        tool(*inside, "address", "add", f"{address}/24", "dev", "eth0")
        tool(*inside, "link", "set", "eth0", "up")
        self._names |= dict.fromkeys(names, address)
        self._write()
        return address

    def _write(self):
        # In place: pods see this file, and not another one of its name.
        lines = [f"{address} {name}\n" for name, address in self._names.items()]
        with open(self.hosts_file, "w") as file:
            file.write("127.0.0.1 localhost\n" + "".join(lines))
